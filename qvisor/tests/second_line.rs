//! The second line around a VMM that has been taken over: the arguments that its filter checks, and the limits that
//! Landlock sets. Needs root, to be other users as well.

mod test_dir;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use test_dir::TestDir;
use vmm::jail::landlock;

/// A user of the host without privileges.
const USER: u32 = 65534;
const MODES: [&str; 3] = ["mapped", "identity", "host"];

/// A user who starts sandboxes, with a directory of its own.
struct Caller {
    dir: TestDir,
    /// `None`: root.
    user: Option<u32>,
}

impl Caller {
    fn new(user: Option<u32>) -> Self {
        let dir = TestDir::new();
        let empty = dir.directory("empty");
        // The build directory may be closed to others.
        // By another program: a file that this one has open for writing could not be run while a thread forks.
        let copied =
            Command::new("cp").arg(env!("CARGO_BIN_EXE_dormouse")).arg(dir.join("dormouse")).status();
        assert!(copied.unwrap().success());
        for path in [dir.path(), &empty] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            chown(path, user, user).unwrap();
        }
        Self { dir, user }
    }

    /// The command, which others than root may run as well.
    fn command(&self, args: &[&str]) -> Command {
        self.dir.command_of(&self.dir.join("dormouse"), args)
    }

    /// The output of a VMM that makes an attempt once its jail is closed, as if it had been taken over, and its
    /// sandbox's end.
    fn attempt(&self, options: &[&str], what: &str, stdin: Stdio) -> String {
        let fixed = ["do", "--platform", "systrap", "--rootfs", "empty"];
        let mut command = self.command(&[&fixed, options, &["--", "/none"]].concat());
        command.stdin(stdin).env("DORMOUSE_TEST_VMM_HOOK", what);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let output = command.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }
}

/// A process of another user's that has nothing to do with any sandbox; ended at the end.
struct Bystander(Child);

impl Bystander {
    fn new(user: u32) -> Self {
        Self(Command::new("sleep").arg("100").uid(user).gid(user).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Skips a test, with the reason, where it cannot be run.
fn can_run(needs_landlock: bool) -> bool {
    if !is_root() {
        eprintln!("skipped: needs root");
    } else if needs_landlock && landlock::knows() != (true, true) {
        eprintln!("skipped: this host's Landlock is version {}", landlock::version());
    } else {
        return true;
    }
    false
}

/// The attempt passes the filter, and is refused with one of the errors.
fn is_refused(caller: &Caller, options: &[&str], what: &str, stdin: Stdio, errors: &[&str]) {
    let text = caller.attempt(options, what, stdin);
    let is_refused = text.contains("refused: ") && errors.iter().any(|error| text.contains(error));
    assert!(is_refused, "{options:?} {what}: {text}");
}

#[test]
fn a_taken_over_vmm_signals_nobody_of_its_session() {
    if !can_run(true) {
        return;
    }
    // A process may continue any other of its session, whatever their owners are.
    let caller = Caller::new(None);
    let bystander = Bystander::new(0);
    for mode in MODES {
        let what = format!("continue:{}", bystander.0.id());
        is_refused(&caller, &["--userns", mode], &what, Stdio::null(), &["not permitted"]);
    }
}

#[test]
fn a_taken_over_vmm_does_not_signal_its_callers_processes() {
    if !can_run(true) {
        return;
    }
    let caller = Caller::new(Some(USER));
    let mut bystander = Bystander::new(USER);
    for attempt in ["signal", "signal-pidfd", "continue"] {
        let text = caller.attempt(&[], &format!("{attempt}:{}", bystander.0.id()), Stdio::null());
        if text.contains("cannot jail") || text.contains("cannot make a copy-on-write view") {
            eprintln!("skipped: this host gives users no namespaces, or no overlays in them: {text}");
            return;
        }
        assert!(text.contains("refused: Operation not permitted"), "{attempt}: {text}");
    }
    assert!(bystander.0.try_wait().unwrap().is_none());
}

#[test]
fn names_move_between_directories() {
    if !can_run(false) {
        return;
    }
    let caller = Caller::new(None);
    let volume = caller.dir.join("shared");
    fs::create_dir(&volume).unwrap();
    let shared = format!("{}:/mnt", volume.display());
    // Not by `mv`, which copies where it may not rename.
    let script = "import os
for top in ['/tmp/moved', '/mnt/moved']:
    os.makedirs(top + '/a'); os.makedirs(top + '/b')
    open(top + '/a/f', 'w').close()
    os.rename(top + '/a/f', top + '/b/f')
    os.link(top + '/b/f', top + '/a/g')
    os.rename(top + '/a', top + '/b/c')
print('moved')";
    for userns in ["mapped", "identity", "host"] {
        let options = ["--userns", userns, "--volume", &shared];
        let mut command = caller.command(&["do", "--platform", "systrap"]);
        command.args(options).args(["--", "python3", "-c", script]);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "moved\n", "{userns}: {output:?}");
        fs::remove_dir_all(volume.join("moved")).unwrap();
    }
}

#[test]
fn what_was_handed_over_to_be_read_is_not_written() {
    if !can_run(true) {
        return;
    }
    let caller = Caller::new(None);
    let input = caller.dir.join("input");
    fs::write(&input, "as it was").unwrap();
    // Anybody may write it who can open it: its owner and mode do not keep the VMM from that.
    fs::set_permissions(&input, fs::Permissions::from_mode(0o666)).unwrap();
    for mode in MODES {
        let stdin = fs::File::open(&input).unwrap();
        is_refused(&caller, &["--userns", mode], "reopen:0", stdin.into(), &["Permission denied"]);
    }
}

/// The lines of a process's status about speculation, without their names; `None`: it has ended.
fn speculation(pid: &str) -> Option<Vec<String>> {
    let text = match fs::read_to_string(format!("/proc/{pid}/status")) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => return None,
        text => text.unwrap(),
    };
    let lines = text.lines().filter(|line| line.starts_with("Speculation"));
    Some(lines.filter_map(|line| line.split_once(':')).map(|(_, state)| state.trim().to_owned()).collect())
}

/// The lines about speculation ([`speculation`]) of each stub of a VMM, at least two. Stubs end with the programs that
/// they serve.
fn speculation_of_stubs(vmm: u32) -> Vec<Vec<String>> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        let stubs = children(vmm).into_iter();
        let states: Vec<_> = stubs.filter_map(|stub| speculation(&stub.to_string())).collect();
        if states.len() > 1 {
            return states;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the stubs of {vmm} end: {:?}", children(vmm));
}

/// The line of a state after a process gave the feature up for good.
fn given_up(state: &str) -> String {
    match state {
        "thread vulnerable" => "thread force mitigated".into(),
        "conditional enabled" => "conditional force disabled".into(),
        // No process may choose, or has chosen by default.
        other => other.into(),
    }
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

#[test]
fn speculation_is_given_up_by_the_vmm_and_its_stubs() {
    if !can_run(false) {
        return;
    }
    let caller = Caller::new(None);
    let own = speculation("self").unwrap();
    for (option, expected) in [("auto", own.iter().map(|one| given_up(one)).collect()), ("off", own.clone())]
    {
        let mut command = caller.command(&["do", "--platform", "systrap", "--mitigations", option]);
        command.args(["--", "/bin/sh", "-c", "echo runs; exec sleep 100"]);
        let mut front = Bystander(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(front.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "runs\n");
        let vmm = children(front.0.id())[0];
        for state in speculation_of_stubs(vmm).into_iter().chain([speculation(&vmm.to_string()).unwrap()]) {
            assert_eq!(state, *expected, "{option}");
        }
    }
}

/// Calls that are on the list, with arguments that nothing needs.
fn needless_calls() -> Vec<(&'static str, Vec<i64>)> {
    let (inet, stream, datagram) =
        (i64::from(libc::AF_INET), i64::from(libc::SOCK_STREAM), i64::from(libc::SOCK_DGRAM));
    let socket = i64::from(libc::SOL_SOCKET);
    let kill = i64::from(libc::SIGKILL);
    let here = i64::from(libc::AT_FDCWD);
    let own = i64::from(std::process::id());
    vec![
        ("MPTCP", vec![libc::SYS_socket, inet, stream, 262]),
        ("SCTP", vec![libc::SYS_socket, inet, stream, 132]),
        ("UDP-Lite", vec![libc::SYS_socket, inet, datagram, 136]),
        ("a packet socket", vec![libc::SYS_socket, inet, 10, 0]),
        ("netlink of IPsec", vec![libc::SYS_socket, 16, 3, 6]),
        ("SO_ATTACH_FILTER", vec![libc::SYS_setsockopt, 0, socket, 26]),
        ("SO_ATTACH_BPF", vec![libc::SYS_setsockopt, 0, socket, 50]),
        ("SO_MARK", vec![libc::SYS_setsockopt, 0, socket, 36]),
        ("TCP_ULP", vec![libc::SYS_setsockopt, 0, 6, 31]),
        ("IP_TRANSPARENT", vec![libc::SYS_setsockopt, 0, 0, 19]),
        ("a packet filter's rules", vec![libc::SYS_setsockopt, 0, 0, 64]),
        ("SO_PEERPIDFD", vec![libc::SYS_getsockopt, 0, socket, 77]),
        ("F_SETOWN", vec![libc::SYS_fcntl, 0, 8, own]),
        ("F_SETSIG", vec![libc::SYS_fcntl, 0, 10, kill]),
        ("F_SETLEASE", vec![libc::SYS_fcntl, 0, 1024, 0]),
        ("F_NOTIFY", vec![libc::SYS_fcntl, 0, 1026, 1]),
        ("FUTEX_LOCK_PI", vec![libc::SYS_futex, 0, 6]),
        ("FUTEX_CMP_REQUEUE_PI", vec![libc::SYS_futex, 0, 12]),
        ("MADV_MERGEABLE", vec![libc::SYS_madvise, 0, 4096, 12]),
        ("MADV_HWPOISON", vec![libc::SYS_madvise, 0, 4096, 100]),
        ("an unknown kind of space", vec![libc::SYS_fallocate, 0, 0x400, 0, 1]),
        ("a whiteout", vec![libc::SYS_renameat2, here, 0, here, 0, 4]),
        ("a link to a descriptor itself", vec![libc::SYS_linkat, 0, 0, here, 0, 0x1000]),
        ("an owner behind a link", vec![libc::SYS_fchownat, here, 0, 0, 0, 0]),
        ("another's thread's clock", vec![libc::SYS_clock_gettime, (!own << 3) | 6]),
        ("a device's clock", vec![libc::SYS_clock_gettime, (!0 << 3) | 3]),
        ("a sleep by such a clock", vec![libc::SYS_clock_nanosleep, (!own << 3) | 2]),
        ("a wait for anybody", vec![libc::SYS_waitid, 0]),
        ("a wait for a process group", vec![libc::SYS_waitid, 2, own]),
        ("a wait for a child that is no stub", vec![libc::SYS_wait4, -1, 0, 1]),
        ("a thread by descriptor", vec![libc::SYS_pidfd_open, own, 0x80]),
        ("a made-up sender", vec![libc::SYS_pidfd_send_signal, 0, kill, 0x1000]),
        ("a made-up sender, further up", vec![libc::SYS_pidfd_send_signal, 0, kill, 1 << 32]),
        ("a signal to a process group", vec![libc::SYS_pidfd_send_signal, 0, kill, 0, 4]),
        ("SIGSTOP by descriptor", vec![libc::SYS_pidfd_send_signal, 0, 19]),
        ("SIGSTOP by number", vec![libc::SYS_tgkill, own, own, 19]),
        ("PR_SET_SPECULATION_CTRL", vec![libc::SYS_prctl, 53]),
        ("ARCH_SET_CPUID", vec![libc::SYS_arch_prctl, 0x1012]),
        ("a process", vec![libc::SYS_clone, 17]),
        ("executable memory", vec![libc::SYS_mprotect, 0, 4096, 4]),
        ("typing for the terminal", vec![libc::SYS_ioctl, 0, 0x5412]),
        ("flags of a file", vec![libc::SYS_ioctl, 0, 0x4008_6602]),
        ("a device", vec![libc::SYS_mknodat, here, 0, 0o020_600, 0]),
    ]
}

#[test]
fn a_listed_call_is_bound_by_its_arguments() {
    if !can_run(false) {
        return;
    }
    let caller = Caller::new(None);
    for (name, call) in needless_calls() {
        let words: Vec<_> = call.iter().map(i64::to_string).collect();
        let text = caller.attempt(&[], &format!("call:{}", words.join(",")), Stdio::null());
        assert!(text.contains("made a forbidden call"), "{name}: {text}");
    }
    // The arguments name no other process's processors.
    for process in [1, std::process::id()] {
        let what = format!("call:{},{process},8,0", libc::SYS_sched_getaffinity);
        is_refused(&caller, &[], &what, Stdio::null(), &["Function not implemented"]);
    }
}
