//! Bounds of a sandbox of `dormouse do` on the host: control groups or a limit of processes, the quota of its layer;
//! and the environment that it gets of its caller.

mod test_dir;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use test_dir::TestDir;

/// A directory for a test that is not in memory: the quota counts a disk's blocks. Everybody may make files in it.
fn on_disk() -> TestDir {
    let test_dir = TestDir::below(Path::new("/var/tmp"));
    fs::set_permissions(test_dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    test_dir
}

/// Runs a script of the shell in a sandbox; result: its output.
fn run_script(test_dir: &TestDir, options: &[&str], script: &str) -> String {
    printed(&test_dir.sandbox(&[options, &["--", "/bin/sh", "-ec", script]].concat()).output().unwrap())
}

/// Starts a sandbox that says so and then waits.
fn start_sleeper(mut command: Command) -> Sleeper {
    command.args(["--", "/bin/sh", "-c", "echo up; while :; do sleep 1000; done"]);
    let mut front = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(front.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    // A process takes its name when it runs first.
    let child = |name| {
        let path = format!("/proc/{0}/task/{0}/children", front.id());
        let named = || {
            let children = fs::read_to_string(&path).unwrap();
            let mut pids = children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap());
            pids.find(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() == name)
        };
        let tries = std::iter::repeat_with(named).take(1000);
        let mut tries = tries.inspect(|_| std::thread::sleep(Duration::from_millis(10)));
        tries.find_map(|found| found).unwrap()
    };
    Sleeper { vmm: child("dormouse-vmm"), watcher: child("dormouse-watch"), front }
}

struct Sleeper {
    front: Child,
    vmm: u32,
    watcher: u32,
}

impl Sleeper {
    /// The directories of its own control groups.
    fn groups(&self) -> Vec<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = fs::read_to_string(format!("/proc/{}/cgroup", self.vmm)).unwrap();
        let marker = format!(".{}", self.front.id());
        let own =
            own.lines().filter_map(|line| line.rsplit(':').next()).filter(|path| path.ends_with(&marker));
        let own: Vec<&str> = own.filter_map(|path| path.rsplit('/').next()).collect();
        let mounts = mounts.lines().filter(|line| line.contains(" - cgroup"));
        let mut found = Vec::new();
        for mount in mounts.filter_map(|line| line.split(' ').nth(4)) {
            find(Path::new(mount), &own, &mut found);
        }
        found
    }

    fn end(mut self, number: i32) {
        kill(self.front.id(), number);
        self.front.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // A test that failed must not leave its sandbox running.
        let _ = self.front.kill();
        let _ = self.front.wait();
    }
}

fn find(dir: &Path, names: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if names.iter().any(|name| entry.file_name() == *name) {
                found.push(entry.path());
            } else {
                find(&entry.path(), names, found);
            }
        }
    }
}

fn kill(pid: u32, number: i32) {
    // SAFETY: integers only; the process is one of this test's.
    assert_eq!(unsafe { libc::kill(pid.cast_signed(), number) }, 0);
}

fn printed(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {error}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether this user may make control groups here; a sandbox then has some.
fn may_make_groups() -> bool {
    let test_dir = on_disk();
    let bounded = !start_sleeper(test_dir.sandbox(&[])).groups().is_empty();
    // SAFETY: takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() == 0 };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_version_1 = mounts.lines().any(|line| line.contains(" - cgroup ") && line.contains("pids"));
    let is_writable = mounts.lines().any(|line| line.contains(" - cgroup ") && line.contains(" rw,"));
    assert!(bounded || !(is_root && is_version_1 && is_writable), "groups can be made, and none were");
    if !bounded {
        eprintln!("skipped: this user may make no control groups here");
    }
    bounded
}

#[test]
fn more_address_space_than_memory_may_be_asked_for_but_not_used() {
    let test_dir = on_disk();
    let dd = "code=0; dd if=/dev/zero of=/dev/null bs=20M count=5 2>/dev/null || code=$?; echo $code";
    assert_eq!(run_script(&test_dir, &["--memory", "15M"], dd), "137\n");
    assert_eq!(run_script(&test_dir, &["--memory", "64M"], dd), "0\n");
}

#[test]
fn a_sandbox_is_in_groups_of_its_own_with_its_limits() {
    if !may_make_groups() {
        return;
    }
    let test_dir = on_disk();
    let options =
        ["--memory", "64M", "--cpus", "1", "--pids", "10", "--disk", "64M", "--platform", "systrap"];
    let sleeper = start_sleeper(test_dir.sandbox(&options));
    let groups = sleeper.groups();
    let read = |names: &[&str]| {
        let path = groups.iter().flat_map(|dir| names.iter().map(|name| dir.join(name)));
        path.filter_map(|path| fs::read_to_string(path).ok()).map(|text| text.trim().to_owned()).next()
    };
    // The memory, the VMM's headroom as of a bundle, and the account of 4096 files.
    let memory = (64 + 128 + 2 + 2) * (1 << 20) / 4096 + 4096 * 128 / 4096;
    let found = read(&["memory.limit_in_bytes", "memory.max"]).unwrap().parse::<u64>().unwrap() / 4096;
    assert!(found.abs_diff(memory) < 1024, "{found} pages");
    assert_eq!(read(&["pids.max"]).unwrap(), (10 * 3 + 128).to_string());
    if let Some(quota) = read(&["cpu.cfs_quota_us", "cpu.max"]) {
        assert_eq!(quota.split(' ').next(), Some("200000"));
    }
    for group in &groups {
        let members = fs::read_to_string(group.join("cgroup.procs")).unwrap();
        let vmm = sleeper.vmm.to_string();
        assert!(members.lines().any(|pid| pid == vmm) && members.lines().count() > 1, "{}", group.display());
    }
    let front = sleeper.front.id().to_string();
    assert!(!fs::read_to_string(groups[0].join("cgroup.procs")).unwrap().lines().any(|pid| pid == front));
    sleeper.end(libc::SIGTERM);
    assert!(groups.iter().all(|group| !group.exists()), "{groups:?}");
}

#[test]
fn groups_of_a_killed_sandbox_go() {
    if !may_make_groups() {
        return;
    }
    let test_dir = on_disk();
    let sleeper = start_sleeper(test_dir.sandbox(&[]));
    let groups = sleeper.groups();
    sleeper.end(libc::SIGKILL);
    until("the watcher leaves groups behind", || groups.iter().all(|group| !group.exists()));
    // With neither front end nor watcher left, the next start removes the groups.
    let sleeper = start_sleeper(test_dir.sandbox(&[]));
    let (groups, vmm) = (sleeper.groups(), sleeper.vmm);
    kill(sleeper.watcher, libc::SIGKILL);
    sleeper.end(libc::SIGKILL);
    until("the VMM lives on", || !Path::new(&format!("/proc/{vmm}")).exists());
    let members = |group: &PathBuf| fs::read(group.join("cgroup.procs")).unwrap_or_default();
    until("stubs live on", || groups.iter().all(|group| members(group).is_empty()));
    assert!(groups.iter().all(|group| group.exists()));
    run_script(&test_dir, &[], "true");
    assert!(groups.iter().all(|group| !group.exists()), "{groups:?}");
}

#[test]
fn who_may_make_no_groups_has_a_limit_of_processes() {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can start a sandbox as somebody else");
        return;
    }
    let test_dir = on_disk();
    // The build directory may be closed to others.
    let program = test_dir.join("dormouse");
    fs::copy(env!("CARGO_BIN_EXE_dormouse"), &program).unwrap();
    let mut command = test_dir.command_of(&program, &["do", "--pids", "10", "--cpus", "1"]);
    let sleeper = start_sleeper({
        command.uid(65534).gid(65534).env("HOME", test_dir.path());
        command
    });
    assert_eq!(sleeper.groups(), Vec::<PathBuf>::new());
    let limits = fs::read_to_string(format!("/proc/{}/limits", sleeper.vmm)).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max processes")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[2..4], ["158", "158"], "{line}");
}

#[test]
fn tasks_are_as_many_as_asked_for() {
    let test_dir = on_disk();
    let script = "for i in $(seq 30); do sleep 30 & done; echo all";
    let run = |most| test_dir.sandbox(&["--pids", most, "--", "/bin/sh", "-c", script]).output().unwrap();
    let output = run("20");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout.is_empty() && error.contains("fork"), "{error}");
    assert_eq!(printed(&run("60")), "all\n");
}

#[test]
fn real_programs_find_the_disk_full() {
    let test_dir = on_disk();
    let out = run_script(
        &test_dir,
        &["--disk", "8M"],
        "cd /var/tmp; used() { df -k --output=used /var/tmp | tail -1; }
         dd if=/dev/zero of=big bs=1M count=16 2>&1 | grep -c 'No space left' || true
         test $(stat -c %b big) -le 16384 && echo bounded
         rm big; test $(used) -lt 64 && echo back
         truncate -s 1T sparse; test $(used) -lt 64 && echo sparse
         fallocate -l 4M some && test $(used) -ge 4096 && echo allocated
         fallocate -l 8M more 2>&1 | grep -c 'No space left' || true
         rm -f some more sparse; test $(used) -lt 64 && echo back
         mkdir many; for i in $(seq 4200); do : > many/$i || break; done 2>&1 | grep -c 'No space left' || true
         rm -r many; test $(used) -lt 1024 && echo back
         df -k --output=size /var/tmp | tail -1 | tr -d ' '",
    );
    let expected = ["1", "bounded", "back", "sparse", "allocated", "1", "back", "1", "back", "8192"];
    assert_eq!(out.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_large_file_of_the_hosts_is_copied_up_only_where_there_is_room() {
    let test_dir = on_disk();
    let big = test_dir.join("big");
    fs::write(&big, vec![7; 6 << 20]).unwrap();
    let script = "used() { df -k --output=used /var/tmp | tail -1; }
         for try in 1 2 3; do
             (echo x >> \"$BIG\") 2>/dev/null || chmod 600 \"$BIG\" 2>/dev/null || echo refused
         done
         test $(used) -lt 64 && echo nothing; tail -c 1 \"$BIG\" | od -An -tu1 | tr -d ' '";
    let variable = format!("BIG={}", big.display());
    let out = run_script(&test_dir, &["--disk", "4M", "--env", &variable], script);
    assert_eq!(out.lines().collect::<Vec<_>>(), ["refused", "refused", "refused", "nothing", "7"]);
    let script = "used() { df -k --output=used /var/tmp | tail -1; }
         echo x >> \"$BIG\"; test $(used) -ge 6144 && echo counted
         rm \"$BIG\"; test $(used) -lt 64 && echo back";
    let out = run_script(&test_dir, &["--disk", "8M", "--env", &variable], script);
    assert_eq!(out.lines().collect::<Vec<_>>(), ["counted", "back"]);
    assert_eq!(fs::read(&big).unwrap().len(), 6 << 20);
}

#[test]
fn what_is_held_or_mapped_counts() {
    let test_dir = on_disk();
    let two_names = test_dir.join("one");
    fs::write(&two_names, vec![7; 2 << 20]).unwrap();
    fs::hard_link(&two_names, test_dir.join("two")).unwrap();
    let script = r#"
import mmap, os, signal, sys
os.chdir("/var/tmp")
def used():
    view = os.statvfs("/var/tmp")
    return (view.f_blocks - view.f_bfree) * view.f_frsize >> 20
def make(name):
    return os.open(name, os.O_RDWR | os.O_CREAT)
file = make("held")
os.write(file, bytes(4 << 20))
os.unlink("held")
print("held", used())
os.close(file)
print("closed", used())
file = make("mapped")
os.ftruncate(file, 64 << 20)
view = mmap.mmap(file, 64 << 20)
child = os.fork()
if not child:
    for page in range(0, 64 << 20, 4096):
        view[page] = 1
    os._exit(0)
print("stores", os.waitpid(child, 0)[1] & 127 == signal.SIGBUS, os.fstat(file).st_blocks <= 8 << 11, used() <= 8)
view.close()
os.close(file)
os.unlink("mapped")
print("unmapped", used())
one = sys.argv[1]
known = os.open(one, os.O_PATH)
open(one, "ab").close()
os.unlink(one)
print("known", used())
os.close(known)
print("forgotten", used())
"#;
    let one = two_names.to_str().unwrap();
    let args = ["--disk", "8M", "--", "/usr/bin/env", "python3", "-c", script, one];
    let out = printed(&test_dir.sandbox(&args).output().unwrap());
    let expected = ["held 4", "closed 0", "stores True True True", "unmapped 0", "known 2", "forgotten 0"];
    assert_eq!(out.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn an_environment_comes_in_without_secrets() {
    let test_dir = on_disk();
    let env = |options: &[&str]| {
        let mut command = test_dir.sandbox(&[options, &["--", "/usr/bin/env"]].concat());
        command.env("TOKEN", "secret").env("LC_TIME", "C").env("TERM", "dumb").env("HOME", "/root");
        let mut all: Vec<String> = printed(&command.output().unwrap()).lines().map(str::to_owned).collect();
        all.sort();
        all
    };
    let has = |all: &[String], pair: &str| all.iter().any(|known| known == pair);
    let plain = env(&[]);
    assert!(["LC_TIME=C", "TERM=dumb", "HOME=/root"].iter().all(|pair| has(&plain, pair)), "{plain:?}");
    assert!(plain.iter().any(|pair| pair.starts_with("PATH=")), "{plain:?}");
    assert!(!plain.iter().any(|pair| pair.contains("secret") || pair.starts_with("DORMOUSE_")), "{plain:?}");
    assert!(has(&env(&["--env", "TOKEN"]), "TOKEN=secret"));
    assert!(has(&env(&["--env", "TOKEN=other", "--env-all"]), "TOKEN=other"));
    let all = env(&["--env-all"]);
    assert!(has(&all, "TOKEN=secret") && all.iter().any(|pair| pair.starts_with("DORMOUSE_ROOT=")));
    assert_eq!(env(&["--env", "NOT_THERE"]), plain);
}
