//! Tests of the claims in `docs/security.md`: a VMM that has been taken over, a stub that has been taken over, and the
//! lines of the VMM's list of system calls. Needs root, as the claims are about root.

mod test_dir;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use abi::boot::Platform;
use test_dir::TestDir;
use vmm::jail::{KEPT, RULES};

/// `dormouse do` on systrap.
fn on_systrap(test_dir: &TestDir, options: &[&str], program: &[&str]) -> Command {
    test_dir.sandbox(&[&["--platform", "systrap"], options, &["--"], program].concat())
}

fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A sandbox that sleeps; killed at the end.
struct Sleeper {
    front: Child,
    vmm: u32,
}

impl Sleeper {
    fn start(test_dir: &TestDir) -> Self {
        let program = ["/bin/sh", "-c", "echo asleep; exec sleep 100"];
        let mut front = on_systrap(test_dir, &[], &program).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(front.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "asleep\n");
        let vmm = vmm_of(front.id());
        Self { front, vmm }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.front.kill();
        let _ = self.front.wait();
    }
}

fn children(pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().map(|word| word.parse::<u32>().unwrap()));
    }
    all
}

fn vmm_of(front: u32) -> u32 {
    let is_vmm = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "dormouse-vmm")
    };
    let start = Instant::now();
    loop {
        if let Some(pid) = children(front).into_iter().find(is_vmm) {
            return pid;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no VMM runs");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The values of a line of `/proc/PID/status`.
fn status(pid: u32, key: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_vmm_has_given_up_the_host() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    let file = fs::File::create(test_dir.join("inherited")).unwrap();
    // SAFETY: a plain duplication, which children inherit.
    let inherited = unsafe { libc::dup(std::os::fd::AsRawFd::as_raw_fd(&file)) };
    let sleeper = Sleeper::start(&test_dir);
    // SAFETY: the number was just made, and is nobody else's.
    unsafe { libc::close(inherited) };
    let vmm = sleeper.vmm;
    assert!(status(vmm, "Uid").iter().chain(&status(vmm, "Gid")).all(|id| id != "0"));
    assert_eq!(status(vmm, "Groups"), Vec::<String>::new());
    assert_eq!((status(vmm, "NoNewPrivs"), status(vmm, "Seccomp")), (vec!["1".into()], vec!["2".into()]));
    let ptrace = 1 << 19;
    let kept = KEPT.iter().fold(ptrace, |all: u64, (one, _)| all | 1 << one);
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(u64::from_str_radix(&status(vmm, set)[0], 16).unwrap(), kept, "{set}");
    }
    assert!(["CapInh", "CapAmb"].iter().all(|set| u64::from_str_radix(&status(vmm, set)[0], 16) == Ok(0)));
    for namespace in ["mnt", "ipc", "uts", "user"] {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        assert_ne!(of(&vmm.to_string()), of("self"), "{namespace}");
    }
    // Every thread, the ones that were there before included.
    for task in fs::read_dir(format!("/proc/{vmm}/task")).unwrap().flatten() {
        let text = fs::read_to_string(task.path().join("status")).unwrap();
        assert!(text.contains("Seccomp_filters:\t2"), "{text}");
    }
    assert_eq!(fs::read_dir(format!("/proc/{vmm}/root")).unwrap().count(), 0);
    let limits = fs::read_to_string(format!("/proc/{vmm}/limits")).unwrap();
    let cores = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert!(cores.split_whitespace().filter(|word| *word == "0").count() == 2, "{cores}");
    // Nothing of the caller's stays open.
    for entry in fs::read_dir(format!("/proc/{vmm}/fd")).unwrap().flatten() {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        assert!(!link.ends_with("inherited"), "{} is open", link.display());
    }
    let front = fs::read_dir(format!("/proc/{}/fd", sleeper.front.id())).unwrap().flatten();
    let mut links = front.filter_map(|entry| fs::read_link(entry.path()).ok());
    assert!(links.any(|link| link.ends_with("inherited")), "the front end did not inherit it either");
    // The zygote and the stub of `sleep` stay; one whose program has just ended may go while it is looked at.
    let uid = format!("\nUid:\t{}\t", status(vmm, "Uid")[0]);
    let texts =
        children(vmm).into_iter().filter_map(|stub| fs::read_to_string(format!("/proc/{stub}/status")).ok());
    let alive: Vec<String> = texts.filter(|text| !text.contains("\nState:\tZ")).collect();
    assert!(!alive.is_empty());
    for text in alive {
        for line in ["\nCapPrm:\t0000000000000000\n", "\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n", &uid] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }
}

#[test]
fn no_two_sandboxes_share_an_owner() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    let (one, two) = (Sleeper::start(&test_dir), Sleeper::start(&test_dir));
    assert_ne!(status(one.vmm, "Uid")[0], status(two.vmm, "Uid")[0]);
}

/// Runs a VMM that makes an attempt once its jail is closed, as if it had been taken over; its output and its end. Its
/// sandbox has an empty root.
fn attempt(test_dir: &TestDir, options: &[&str], what: &str) -> String {
    let root = test_dir.join("empty");
    let _ = fs::create_dir(&root);
    let mut command =
        on_systrap(test_dir, &[&["--rootfs", root.to_str().unwrap()], options].concat(), &["/none"]);
    let output = command.env("DORMOUSE_TEST_VMM_HOOK", what).output().unwrap();
    text(&output)
}

/// The attempt is no call that the filter knows.
fn is_forbidden(test_dir: &TestDir, options: &[&str], what: &str) {
    let text = attempt(test_dir, options, what);
    // The second where not even a last word is possible: another processor mode's call.
    let words = ["made a forbidden call", "made a system call that its filter forbids"];
    assert!(words.iter().any(|word| text.contains(word)), "{what}: {text}");
    assert!(!text.contains("succeeded"), "{what}: {text}");
}

/// The attempt is a call that passes the filter, and comes to nothing.
fn is_refused(test_dir: &TestDir, options: &[&str], what: &str, errors: &[&str]) {
    let text = attempt(test_dir, options, what);
    assert!(errors.iter().any(|error| text.contains(error)) && text.contains("refused"), "{what}: {text}");
}

const MODES: [&[&str]; 3] = [&["--userns", "mapped"], &["--userns", "identity"], &["--userns", "host"]];

#[test]
fn a_taken_over_vmm_opens_no_host_file() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    let secret = test_dir.join("secret");
    fs::write(&secret, "secret").unwrap();
    let secret = secret.to_str().unwrap();
    for mode in MODES {
        for path in [secret, "/etc/passwd", "/proc/1/environ", "/dev/mem", "/sys/kernel/uevent_helper"] {
            is_refused(&test_dir, mode, &format!("open:{path}"), &["No such file"]);
        }
        let up = "../../../../../../..";
        let me = std::process::id();
        for path in [format!("{up}{secret}"), format!("{up}/etc/passwd"), format!("../../{me}/root{secret}")]
        {
            is_refused(
                &test_dir,
                mode,
                &format!("open-below:{path}"),
                &["No such file", "Permission denied"],
            );
        }
        // Through the `/proc` that it has: no switch of the kernel's.
        for path in ["../../sysrq-trigger", "../../sys/kernel/core_pattern", "../../kcore"] {
            is_refused(&test_dir, mode, &format!("open-below:{path}"), &["No such file"]);
        }
    }
}

#[test]
fn a_taken_over_vmm_does_not_change_the_hosts_program() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    for mode in MODES {
        // The view is mounted nowhere any more, and some kernels then find nothing behind the link.
        let errors = ["Read-only file system", "not permitted", "Permission denied", "No such file"];
        is_refused(&test_dir, mode, "chmod-program:../exe", &errors);
        is_refused(&test_dir, mode, "chmod-program:../../self/exe", &errors);
    }
}

#[test]
fn a_taken_over_vmm_signals_nobody_and_reaches_no_other_sandbox() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    let other = Sleeper::start(&test_dir);
    let mut bystander = Command::new("sleep").arg("100").spawn().unwrap();
    for mode in MODES {
        for target in [other.vmm, bystander.id(), std::process::id()] {
            is_refused(&test_dir, mode, &format!("signal:{target}"), &["not permitted"]);
            is_refused(&test_dir, mode, &format!("signal-pidfd:{target}"), &["not permitted"]);
            is_forbidden(&test_dir, mode, &format!("kill:{target}"));
            is_forbidden(&test_dir, mode, &format!("ptrace:{target}"));
        }
        let environ = format!("../../{}/environ", other.vmm);
        is_refused(&test_dir, mode, &format!("open-below:{environ}"), &["No such file", "Permission denied"]);
        let control = test_dir.join("state");
        is_refused(&test_dir, mode, &format!("open:{}", control.display()), &["No such file"]);
        is_forbidden(&test_dir, mode, "unix-socket");
    }
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    assert!(fs::exists(format!("/proc/{}/root", other.vmm)).unwrap());
}

#[test]
fn a_taken_over_vmm_makes_no_call_that_is_not_listed() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    let attempts = [
        "mount:/",
        "module",
        "unshare",
        "execute:/bin/sh",
        "fork",
        "raw-socket",
        "executable",
        "i386",
        "x32",
    ];
    for what in attempts {
        is_forbidden(&test_dir, &[], what);
    }
}

/// Owners of files in a volume, inside and on the host.
fn owners(userns: &str) {
    let test_dir = TestDir::new();
    let volume = test_dir.directory("volume");
    fs::set_permissions(test_dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, id) in [("roots", 0), ("ones", 1), ("thousands", 1000)] {
        let path = volume.join(name);
        fs::write(&path, name).unwrap();
        chown(&path, Some(id), Some(id)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let script = "set -e; cd /v; stat -c '%n %u %g' roots ones thousands; cat roots ones thousands; echo;
                  echo new >made; chown 7:8 roots; mkdir dir; ln made linked; mv ones renamed; chmod 4755 made;
                  touch /root/own; stat -c '%n %u %g' made /root/own /etc/passwd /";
    let volumes = format!("{}:/v", volume.display());
    let output =
        on_systrap(&test_dir, &["--userns", userns, "--volume", &volumes], &["/bin/sh", "-c", script])
            .output()
            .unwrap();
    let expected = "roots 0 0\nones 1 1\nthousands 1000 1000\nrootsonesthousands\n\
                    made 0 0\n/root/own 0 0\n/etc/passwd 0 0\n/ 0 0\n";
    assert_eq!(text(&output), expected, "{userns}");
    let owner = |name: &str| fs::metadata(volume.join(name)).map(|found| (found.uid(), found.gid())).unwrap();
    assert_eq!(
        (owner("made"), owner("roots"), owner("renamed"), owner("dir")),
        ((0, 0), (7, 8), (1, 1), (0, 0))
    );
    assert_eq!(fs::metadata(volume.join("linked")).unwrap().mode() & 0o7777, 0o4755);
}

#[test]
fn owners_are_the_same_inside_and_outside() {
    if is_root() {
        for userns in ["auto", "mapped", "identity", "host"] {
            owners(userns);
        }
    }
}

#[test]
fn a_root_that_cannot_be_mapped_is_shown_as_it_is() {
    if !is_root() {
        return;
    }
    // An overlay does not take part in id mapping.
    let test_dir = TestDir::new();
    let dirs: Vec<_> = ["lower", "upper", "work", "root"].map(|name| test_dir.directory(name)).into();
    fs::write(dirs[0].join("file"), "from below").unwrap();
    let [lower, upper, work, root] = [0, 1, 2, 3].map(|at| dirs[at].to_str().unwrap());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let program = env!("CARGO_BIN_EXE_dormouse");
    for (userns, expected) in
        [("auto", "from below"), ("identity", "from below"), ("mapped", "--userns identity")]
    {
        let script = format!(
            "mount -t overlay overlay -o {options} {root} && \
             exec {program} do --platform systrap --userns {userns} --volume {root}:/v -- /bin/cat /v/file"
        );
        let mut shell = Command::new("unshare");
        shell.args(["-m", "sh", "-c", &script]);
        test_dir.set_roots(&mut shell);
        let output = shell.output().unwrap();
        assert!(text(&output).contains(expected), "{userns}: {}", text(&output));
    }
}

/// Lines that nothing in the test can need, with the reason.
const NOT_WITNESSED: &[(&str, &str)] = &[
    ("brk", "the C library's heap may have room enough from before the jail"),
    ("mremap", "the C library moves blocks of the heap only when they are large"),
    ("clock_nanosleep", "only when two vCPUs want the same stub at the same moment"),
    ("rt_sigaction", "only when the VMM itself has a fault"),
    ("restart_syscall", "only when the host stops the VMM in a wait with a time limit"),
    ("waitid", "of containers only: tests/oci/leash.rs"),
    ("sched_setscheduler", "only of sandboxes that sleep: tests/packing.rs"),
    ("fadvise64", "only of sandboxes that began with a snapshot"),
    ("exit_group", "the end has been reported by then"),
];
/// The reasons of lines that other tests need: `tests/terminal.rs` and `tests/oci/checkpoint.rs`.
const WITNESSED_ELSEWHERE: &[&str] = &["a terminal's size", "what of the sandbox's memory goes to an image"];

/// Runs `everything.py` without one line of the list. True: it came to its end.
fn runs_without(test_dir: &TestDir, rule: Option<usize>) -> Result<(), String> {
    let (work, elsewhere) =
        (test_dir.join("work"), Path::new("/dev/shm").join(test_dir.path().file_name().unwrap()));
    for dir in [&work, &elsewhere] {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir(dir).unwrap();
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let volumes = [
        format!("{}:/work", work.display()),
        format!("{}:/elsewhere", elsewhere.display()),
        format!("{}:/tests:ro", tests.display()),
    ];
    // With a time-out it is asked how much processor time the sandbox has used.
    let mut options = vec!["--cwd", "/work", "--id", "w", "--idle-timeout", "1h"];
    volumes.iter().for_each(|volume| options.extend(["--volume", volume]));
    let mut command = on_systrap(test_dir, &options, &["/usr/bin/python3", "/tests/everything.py"]);
    let null = fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(null);
    if let Some(index) = rule {
        command.env("DORMOUSE_TEST_WITHOUT_RULE", index.to_string());
    }
    let mut front = command.spawn().unwrap();
    let (mut answers, output) = (front.stdin.take().unwrap(), BufReader::new(front.stdout.take().unwrap()));
    let mut last = String::new();
    for line in output.lines().map_while(Result::ok) {
        last.clone_from(&line);
        match line.as_str() {
            "shorten" => {
                fs::File::options().write(true).open(work.join("short")).unwrap().set_len(10).unwrap()
            }
            "signal" => drop(test_dir.command(&["kill", "w", "USR1"]).output().unwrap()),
            "stop" => stop_and_continue(vmm_of(front.id())),
            _ => continue,
        }
        if answers.write_all(b"go on\n").is_err() {
            break;
        }
    }
    drop(answers);
    let status = front.wait().unwrap();
    let _ = fs::remove_dir_all(elsewhere);
    if last == "done" && status.success() { Ok(()) } else { Err(format!("last line {last:?}, {status}")) }
}

fn stop_and_continue(pid: u32) {
    for signal in [libc::SIGSTOP, libc::SIGCONT] {
        // SAFETY: integers only; the process is one of this test's.
        unsafe { libc::kill(pid.cast_signed(), signal) };
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes away each line of the list in turn: something must fail then, or the line has no reason to be there.
#[test]
fn every_line_of_the_list_is_needed() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    runs_without(&test_dir, None).expect("with every line it runs");
    let excused = |name: &str| NOT_WITNESSED.iter().any(|(known, _)| *known == name);
    let mut needless = Vec::new();
    for (index, rule) in RULES.iter().enumerate() {
        let elsewhere = rule.platform == Some(Platform::Kvm);
        let elsewhere = elsewhere || WITNESSED_ELSEWHERE.contains(&rule.why);
        if !elsewhere && !excused(rule.name) && runs_without(&test_dir, Some(index)).is_ok() {
            needless.push(rule.name);
        }
    }
    assert!(needless.is_empty(), "nothing needs {needless:?}");
}

#[test]
fn stubs_have_no_descriptors() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    let sleeper = Sleeper::start(&test_dir);
    // The zygote has one thread with everything; each process has one mapper with descriptors, and other threads.
    // A process that was forked just now is still like the zygote.
    let kinds = eventually(|| {
        let kinds: Vec<_> = children(sleeper.vmm).into_iter().filter_map(descriptors_by_thread).collect();
        if kinds.iter().filter(|counts| counts.len() == 1).count() == 1 { Ok(kinds) } else { Err(kinds) }
    });
    for counts in kinds.iter().filter(|counts| counts.len() > 1) {
        assert_eq!(counts.iter().filter(|count| **count != 0).count(), 1, "{kinds:?}");
    }
}

/// How many descriptors each thread of a process has, in rising order; `None`: it has ended.
fn descriptors_by_thread(process: u32) -> Option<Vec<usize>> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten();
    let descriptors = |task: PathBuf| fs::read_dir(task.join("fd")).map_or(0, |all| all.count());
    let mut counts: Vec<_> = tasks.map(|task| descriptors(task.path())).collect();
    counts.sort_unstable();
    Some(counts)
}

/// Calls `look` until it finds something, at most for ten seconds, and returns that.
fn eventually<T, E: std::fmt::Debug>(mut look: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(found) => assert!(start.elapsed() < Duration::from_secs(10), "{found:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
