//! Programs that attack the stub they run in, against every change of mappings and every end of a process: they may harm
//! themselves, and nobody else. The attacks are in `test/guest/hostile_stub.h`. Needs root, as user 1000 of the sandbox
//! attacks its root.
//!
//! One attack at a time keeps every core busy; beside another one it could do less.

mod sleeper;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serial_test::serial;
use sleeper::{TestSandbox, dormouse, guest, next_line, quiet_window};

fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Seconds of one attack.
fn seconds() -> String {
    sleeper::number("DORMOUSE_TEST_ATTACK_SECONDS", 3).to_string()
}

/// A sandbox in which an attack is under way; it ends with the value.
struct Attack(Child);

impl Attack {
    fn start(sandbox: &TestSandbox, cpus: &str, words: &[&str]) -> Self {
        let program = guest("hostile_stub");
        let swap = sandbox.swap.to_str().unwrap();
        let fixed = ["do", "--id", "h", "--platform", "systrap", "--cpus", cpus, "--swap-dir", swap, "--"];
        let mut command = sandbox.command(&[&fixed[..], &[program.to_str().unwrap()], words].concat());
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// The exit code, and the output.
    fn end(&mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(120), "the sandbox hangs");
            sleep(Duration::from_millis(10));
        }
        let mut text = String::new();
        self.0.stdout.as_mut().unwrap().read_to_string(&mut text).unwrap();
        self.0.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
        (self.0.wait().unwrap().code(), text)
    }

    /// The attack was made, and had no effect.
    fn fails(&mut self) {
        let (code, text) = self.end();
        assert_eq!(code, Some(0), "{text}");
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fails(cpus: &str, words: &[&str]) {
    if !is_root() {
        return;
    }
    let sandbox = TestSandbox::new();
    Attack::start(&sandbox, cpus, words).fails();
}

macro_rules! attacks {
    ($($name:ident: $words:expr;)*) => { $(
        #[test]
        #[serial(cores)]
        fn $name() {
            for cpus in ["1", "2"] {
                fails(cpus, &$words);
            }
        }
    )* };
}

attacks! {
    nothing_is_reached_after_munmap: ["stale", "munmap", "claim", &seconds()];
    nothing_is_reached_after_mremap: ["stale", "mremap", "claim", &seconds()];
    nothing_is_reached_after_madvise: ["stale", "dontneed", "claim", &seconds()];
    nothing_is_reached_after_a_mapping_over_it: ["stale", "over", "claim", &seconds()];
    nothing_is_reached_after_brk: ["stale", "brk", "claim", &seconds()];
    nothing_is_reached_after_ftruncate: ["stale", "ftruncate", "claim", &seconds()];
    nothing_is_reached_after_a_hole_is_punched: ["stale", "punch", "claim", &seconds()];
    nothing_is_reached_after_a_copy_on_write: ["stale", "copy", "claim", &seconds()];
    nothing_is_reached_after_exit: ["stale", "exit", "claim", &seconds()];
    nothing_is_reached_after_exec: ["stale", "exec", "claim", &seconds()];
    a_childs_copy_stays_as_it_is: ["stale", "fork", "claim", &seconds()];
    a_sealed_file_stays_as_it_is: ["stale", "seal", "claim", &seconds()];
    forged_frames_harm_nobody_else: ["stale", "frames", "claim", &seconds()];
    jumps_into_the_stub_harm_nobody_else: ["stale", "jumps", "claim", &seconds()];
    nothing_is_left_for_the_next_process: ["leftover", "20"];
    a_thief_of_wake_ups_robs_itself: ["pays", "thief", &seconds()];
    who_blocks_the_interrupt_hinders_itself: ["pays", "deaf", &seconds()];
    who_is_never_seen_asleep_hinders_itself: ["pays", "dodger", &seconds()];
    a_call_that_is_not_left_ends_its_process: ["pays", "stayer", &seconds()];
    who_never_gives_the_turn_back_hinders_itself: ["pays", "silent", &seconds()];
}

#[test]
#[serial(cores)]
fn nothing_is_reached_across_hibernation() {
    if !is_root() {
        return;
    }
    let sandbox = TestSandbox::new();
    let mut attack = Attack::start(&sandbox, "2", &["stale", "munmap", "claim", "5"]);
    let mut hibernated = 0;
    while attack.0.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(100));
        let output = sandbox.run(&["hibernate", "h"]);
        hibernated += u32::from(output.status.success());
        sandbox.run(&["wake", "h"]);
    }
    attack.fails();
    assert!(hibernated > 0, "it was never hibernated");
}

/// Processor time of a process so far, in clock ticks.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum()
}

#[test]
#[serial(cores)]
fn a_stub_of_a_hibernated_sandbox_uses_no_processor_time() {
    if !is_root() {
        return;
    }
    let sandbox = TestSandbox::new();
    let mut attack = Attack::start(&sandbox, "1", &["restless"]);
    assert_eq!(next_line(&mut attack.0), "ready\n");
    let vmm = vmm_of(attack.0.id());
    // The program writes its line before it sleeps.
    sleep(Duration::from_millis(500));
    let output = sandbox.run(&["hibernate", "h"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Spare processes end.
    sleep(Duration::from_millis(300));
    let all = || children(vmm).into_iter().map(ticks).sum::<u64>();
    let used = quiet_window(Duration::from_secs(2), 0, all);
    assert_eq!(used, 0, "ticks of a hibernated sandbox");
}

fn children(pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    all
}

/// The VMM of a front end, once it runs.
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
        sleep(Duration::from_millis(2));
    }
}

fn threads_of(pid: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

#[test]
#[serial(cores)]
fn a_stub_has_a_thread_for_each_vcpu_and_a_mapper() {
    if !is_root() {
        return;
    }
    for cpus in [1, 2] {
        let sandbox = TestSandbox::new();
        let mut attack = Attack::start(&sandbox, &cpus.to_string(), &["threads", "100"]);
        let vmm = vmm_of(attack.0.id());
        let mut most = 0;
        while attack.0.try_wait().unwrap().is_none() {
            most = children(vmm).into_iter().map(|stub| threads_of(stub).len()).max().unwrap_or(0).max(most);
            sleep(Duration::from_millis(2));
        }
        attack.fails();
        assert!((1..=cpus + 1).contains(&most), "{most} threads on {cpus} vCPUs");
    }
}

/// A user of the host's who may start sandboxes and owns other processes, and a copy of the command for it.
struct User {
    sandbox: TestSandbox,
    command: PathBuf,
}

impl User {
    const ID: u32 = 64_242;

    fn new() -> Self {
        let sandbox = TestSandbox::new();
        chown(&sandbox.dir, Some(Self::ID), Some(Self::ID)).unwrap();
        let command = sandbox.dir.join("dormouse");
        fs::copy(dormouse(), &command).unwrap();
        let program = sandbox.dir.join("hostile_stub");
        fs::copy(guest("hostile_stub"), &program).unwrap();
        for path in [&command, &program] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { sandbox, command }
    }

    fn run(&self, command: &mut Command) -> Child {
        command.uid(Self::ID).gid(Self::ID).current_dir(&self.sandbox.dir).env("HOME", &self.sandbox.dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    }
}

/// Whether another user could run something below the directory.
fn is_open(dir: &Path) -> bool {
    dir.ancestors().all(|dir| fs::metadata(dir).is_ok_and(|data| data.permissions().mode() & 0o001 != 0))
}

fn affinity(tid: i32) -> libc::cpu_set_t {
    // SAFETY: all zeros is a valid set, and the place is live for the call.
    unsafe {
        let mut set = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(tid, size_of::<libc::cpu_set_t>(), &raw mut set), 0);
        set
    }
}

/// Binds every thread of a process to one of the cores in `all`, another one each time.
fn move_threads(pid: u32, all: &libc::cpu_set_t, round: usize) {
    // SAFETY: all zeros is a valid set; the index is in bounds.
    let is_set = |core: &usize| unsafe { libc::CPU_ISSET(*core, all) };
    let cores: Vec<usize> = (0..1024).filter(is_set).collect();
    for (index, tid) in threads_of(pid).into_iter().enumerate() {
        // SAFETY: as above.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::CPU_SET(cores[(index + round) % cores.len()], &mut set);
            libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

/// The sandbox of an unprivileged caller writes the id of another process of that caller's in each place where the stub
/// notes one.
fn ids_are_not_believed(how: &str, cpus: &str) {
    if !is_root() {
        return;
    }
    let user = User::new();
    if !is_open(&user.sandbox.dir) {
        eprintln!("skipped: another user cannot reach {}", user.sandbox.dir.display());
        return;
    }
    let mut bystander = user.run(Command::new("sleep").arg("1000"));
    let pid = bystander.id().cast_signed();
    let before = affinity(pid);
    let mut command = Command::new(&user.command);
    command.args(["do", "--platform", "systrap", "--cpus", cpus, "--", "./hostile_stub", "ids", how]);
    command.args([&pid.to_string(), &seconds()]);
    command.env("DORMOUSE_ROOT", user.sandbox.dir.join("state"));
    command.env("DORMOUSE_LAYERS", user.sandbox.dir.join("layers"));
    let mut attack = Attack(user.run(&mut command));
    assert_eq!(next_line(&mut attack.0), "ready\n");
    let vmm = vmm_of(attack.0.id());
    let mut touched = false;
    for round in 0.. {
        if touched || attack.0.try_wait().unwrap().is_some() {
            break;
        }
        // The VMM's own threads move, so that it uses the thread ids of its stubs to move these as well.
        move_threads(vmm, &before, round);
        sleep(Duration::from_millis(5));
        // SAFETY: both are valid sets.
        touched = unsafe { !libc::CPU_EQUAL(&affinity(pid), &before) };
    }
    let lives = bystander.try_wait().unwrap().is_none();
    let _ = bystander.kill();
    let _ = bystander.wait();
    assert!(!touched, "another process was bound to a core");
    assert!(lives, "another process was ended");
    assert_eq!(attack.0.wait().unwrap().code(), Some(0));
}

#[test]
#[serial(cores)]
fn the_id_of_a_mapper_is_not_the_programs_to_choose() {
    for cpus in ["1", "2"] {
        ids_are_not_believed("mapper", cpus);
    }
}

#[test]
#[serial(cores)]
fn the_id_of_a_thread_is_not_the_programs_to_choose() {
    ids_are_not_believed("thread", "2");
}
