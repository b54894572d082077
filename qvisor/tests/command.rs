//! The `dormouse` command from outside, as far as it needs no kernel: bad input, lists, IDs, cleaning up.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use runtime::state::{Id, Root};

/// State and layers of one test, away from all others.
struct Host(PathBuf);

impl Host {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("dormouse-command-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    fn layers(&self) -> PathBuf {
        self.0.join("layers")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.args(args).env("DORMOUSE_ROOT", self.state()).env("DORMOUSE_LAYERS", self.layers());
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Starts a sandbox whose kernel is a stand-in that ends with the first signal.
    fn start(&self, args: &[&str]) -> Sandbox {
        let args: Vec<_> = [&["do"], args, &["--", "sleep"]].concat();
        let mut command = self.command(&args);
        command.env("DORMOUSE_FAKE_KERNEL", "1").stdout(Stdio::piped());
        let mut front = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(front.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("mounts"), "{line:?}");
        let parent = front.id();
        // The stand-in may speak before the watcher has its name.
        let find = |name| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(30) {
                if let Some(pid) = children(parent).into_iter().find(|pid| comm(*pid) == name) {
                    return pid;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            panic!("{name} does not run");
        };
        Sandbox { vmm: find("dormouse-vmm"), watcher: find("dormouse-watch"), front }
    }

    fn is_clean(&self) -> bool {
        let empty = |dir: PathBuf| {
            fs::read_dir(dir).is_ok_and(|mut all| all.all(|e| e.unwrap().file_name() == ".lock"))
        };
        empty(self.state()) && empty(self.layers())
    }

    fn assert_clean_soon(&self) {
        let start = Instant::now();
        while !self.is_clean() {
            assert!(start.elapsed() < Duration::from_secs(10), "left behind below {}", self.0.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Sandbox {
    front: Child,
    vmm: u32,
    watcher: u32,
}

impl Sandbox {
    fn end(mut self) -> (Option<i32>, String) {
        let mut errors = String::new();
        let code = self.front.wait().unwrap().code();
        if let Some(mut stderr) = self.front.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut errors).unwrap();
        }
        for pid in [self.vmm, self.watcher] {
            assert_gone_soon(pid);
        }
        (code, errors)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A test that failed must not leave its sandbox running.
        let _ = self.front.kill();
        let _ = self.front.wait();
    }
}

fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn assert_gone_soon(pid: u32) {
    let start = Instant::now();
    while comm(pid).starts_with("dormouse") {
        assert!(start.elapsed() < Duration::from_secs(10), "process {pid} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(pid: u32, number: i32) {
    // SAFETY: integers only; the process is one of this test's.
    assert_eq!(unsafe { libc::kill(pid.cast_signed(), number) }, 0);
}

fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// One sentence on standard error, and the exit code of a failure: 125 of `do`, 255 of `exec`, 1 of the others.
fn assert_refused(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(1 | 125 | 255)), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn bad_input_is_one_sentence() {
    let host = Host::new();
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["do", "--rootfs", "/nowhere", "true"],
            &["dormouse: cannot use root file system /nowhere", "--rootfs"],
        ),
        (&["do", "--rootfs", "/etc/passwd", "true"], &["cannot use root file system", "Not a directory"]),
        (&["do", "--memory", "1K", "true"], &["cannot give a sandbox 1024 bytes of memory", "--memory"]),
        (&["do", "--memory", "lots", "true"], &["512M"]),
        (&["do", "--cpus", "0", "true"], &["--cpus"]),
        (&["do", "--cpus", "17", "true"], &["--cpus"]),
        (&["do", "--id", "a/b", "true"], &["cannot use \"a/b\" as a sandbox's ID"]),
        (&["do", "--env", "=x", "true"], &["NAME=value"]),
        (&["do", "--volume", "/nowhere:/x", "true"], &["cannot mount volume /nowhere", "--volume"]),
        (&["do", "--volume", "/etc:x", "true"], &["--volume", "absolute"]),
        (&["do", "--cwd", "x", "true"], &["cannot start in x", "--cwd"]),
        (&["do", "--tty", "true"], &["standard input is not one", "--tty"]),
        (&["do", "--platform", "xen", "true"], &["--platform"]),
        (&["do", "--net", "bridge", "true"], &["--net"]),
        (&["do"], &["CMD"]),
        (&["state", "nobody"], &["cannot find sandbox nobody", "dormouse list"]),
        (&["state", ".."], &["cannot use \"..\" as a sandbox's ID"]),
        (&["kill", "nobody"], &["cannot find sandbox nobody"]),
        (&["kill", "nobody", "SIGNOPE"], &["unknown signal \"SIGNOPE\""]),
        (&["fly"], &["fly"]),
    ];
    for (args, words) in cases {
        assert_refused(&host.run(args), words);
    }
    assert!(!host.state().exists() && !host.layers().exists(), "nothing was made");
}

#[test]
fn an_empty_host_has_an_empty_list() {
    let host = Host::new();
    let output = host.run(&["list"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    let output = host.run(&["list", "--json"]);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap(), serde_json::json!([]));
}

#[test]
fn the_doctor_speaks_json() {
    let output = Host::new().run(&["doctor", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for feature in
        ["kvm", "seccomp", "user_namespaces", "overlayfs", "cgroup", "fsgsbase", "large_folios", "iaa"]
    {
        assert!(found[feature]["ok"].is_boolean() && found[feature]["detail"].is_string(), "{feature}");
    }
    assert!(["kvm", "systrap"].contains(&found["platform"].as_str().unwrap()));
    assert!(!found["reason"].as_str().unwrap().is_empty());
    assert!(found["iaa"]["queues"].is_array() && found["iaa"]["devices"].is_array());
}

#[test]
fn output_to_a_closed_pipe_is_no_error() {
    let host = Host::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = host.command(&["doctor"]).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_sandbox_is_listed_shown_and_killed() {
    let host = Host::new();
    let sandbox = host.start(&["--id", "web.1"]);
    let state: serde_json::Value = serde_json::from_slice(&host.run(&["state", "web.1"]).stdout).unwrap();
    assert_eq!(state["id"], "web.1");
    assert_eq!(state["pid"], sandbox.vmm);
    assert_eq!(state["ociVersion"], "1.2.0");
    assert!(String::from_utf8_lossy(&host.run(&["list"]).stdout).contains("web.1"));
    assert_refused(
        &host.run(&["do", "--id", "web.1", "true"]),
        &["cannot start sandbox web.1", "already exists; choose another ID"],
    );
    assert_eq!(host.run(&["kill", "web.1", "SIGUSR1"]).status.code(), Some(0));
    assert_eq!(sandbox.end().0, Some(128 + libc::SIGUSR1));
    assert!(host.is_clean());
    assert_refused(&host.run(&["kill", "web.1"]), &["cannot find sandbox web.1"]);
}

#[test]
fn sigkill_ends_a_sandbox_at_once() {
    let host = Host::new();
    let sandbox = host.start(&["--id", "k"]);
    assert_eq!(host.run(&["kill", "k", "9"]).status.code(), Some(0));
    assert_eq!(sandbox.end().0, Some(137));
    assert!(host.is_clean());
}

#[test]
fn signals_of_the_command_reach_the_program() {
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR2] {
        let host = Host::new();
        let sandbox = host.start(&[]);
        signal(sandbox.front.id(), number);
        assert_eq!(sandbox.end().0, Some(128 + number));
        assert!(host.is_clean());
    }
}

#[test]
fn a_killed_vmm_leaves_nothing() {
    let host = Host::new();
    let sandbox = host.start(&["--id", "v"]);
    signal(sandbox.vmm, libc::SIGKILL);
    assert_eq!(sandbox.end().0, Some(125));
    assert!(host.is_clean());
}

#[test]
fn a_killed_front_end_leaves_nothing() {
    let host = Host::new();
    let sandbox = host.start(&[]);
    signal(sandbox.front.id(), libc::SIGKILL);
    sandbox.end();
    host.assert_clean_soon();
}

#[test]
fn a_killed_watcher_is_not_missed() {
    let host = Host::new();
    let sandbox = host.start(&[]);
    signal(sandbox.watcher, libc::SIGKILL);
    std::thread::sleep(Duration::from_millis(50));
    signal(sandbox.front.id(), libc::SIGTERM);
    assert_eq!(sandbox.end().0, Some(143));
    assert!(host.is_clean());
}

#[test]
fn what_nobody_could_clean_goes_at_the_next_start() {
    let host = Host::new();
    let sandbox = host.start(&["--id", "dead"]);
    // Stopped, the watcher cannot do its work before it is killed as well.
    signal(sandbox.watcher, libc::SIGSTOP);
    signal(sandbox.front.id(), libc::SIGKILL);
    signal(sandbox.watcher, libc::SIGKILL);
    sandbox.end();
    assert!(!host.is_clean());
    assert_eq!(String::from_utf8_lossy(&host.run(&["list"]).stdout).lines().count(), 1, "it is not listed");
    let next = host.start(&["--id", "dead"]);
    signal(next.front.id(), libc::SIGTERM);
    next.end();
    assert!(host.is_clean());
}

#[test]
fn the_vmm_keeps_no_path_to_the_host() {
    let host = Host::new();
    let sandbox = host.start(&[]);
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", sandbox.vmm)).unwrap();
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    if is_root() {
        let root = fs::read_dir(format!("/proc/{}/root", sandbox.vmm)).unwrap();
        assert_eq!(root.count(), 0);
    }
    for entry in fs::read_dir(format!("/proc/{}/fd", sandbox.vmm)).unwrap() {
        let target = fs::read_link(entry.unwrap().path()).unwrap_or_default();
        assert!(!target.ends_with("lock"), "{}", target.display());
    }
    signal(sandbox.front.id(), libc::SIGTERM);
    sandbox.end();
}

fn network_of(pid: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/net")).unwrap()
}

#[test]
fn the_network_is_the_hosts_or_none() {
    let host = Host::new();
    for (args, own) in [(&[][..], false), (&["--net", "host"], false), (&["--net", "none"], true)] {
        let sandbox = host.start(args);
        let network = network_of(&sandbox.vmm.to_string());
        assert_eq!(network != network_of("self"), own, "{args:?}");
        if own {
            let file = |name| fs::read_to_string(format!("/proc/{}/net/{name}", sandbox.vmm)).unwrap();
            assert_eq!(file("dev").lines().count(), 3, "two lines of heading, and lo");
            assert!(file("fib_trie").contains("127.0.0.1"), "lo is up");
        }
        signal(sandbox.front.id(), libc::SIGTERM);
        sandbox.end();
    }
}

#[test]
fn closed_streams_are_no_obstacle() {
    let host = Host::new();
    let program = env!("CARGO_BIN_EXE_dormouse");
    let script = format!("exec {program} do true 0<&- 1>&- 2>&-");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("DORMOUSE_ROOT", host.state()).env("DORMOUSE_LAYERS", host.layers());
    let code = shell.status().unwrap().code();
    assert!(matches!(code, Some(0..=125)), "{code:?}");
    assert!(host.is_clean());
}

#[test]
fn a_directory_without_permission_is_named() {
    if !is_root() {
        return;
    }
    let host = Host::new();
    fs::set_permissions(&host.0, fs::Permissions::from_mode(0o755)).unwrap();
    // The build directory may be closed to others.
    let program = host.0.join("dormouse");
    fs::copy(env!("CARGO_BIN_EXE_dormouse"), &program).unwrap();
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(program);
    command.args(["do", "true"]).env("DORMOUSE_ROOT", host.state()).uid(65534).gid(65534).current_dir("/");
    assert_refused(&command.output().unwrap(), &["cannot use directory", "Permission denied", "--root"]);
}

#[test]
fn a_full_disk_is_named() {
    if !is_root() {
        return;
    }
    let host = Host::new();
    let (layers, program) = (host.layers(), env!("CARGO_BIN_EXE_dormouse"));
    fs::create_dir(&layers).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=4k,nr_inodes=4,mode=0700 none {0} && exec {program} do true",
        Path::new(&layers).display()
    );
    let mut shell = Command::new("unshare");
    shell
        .args(["-m", "sh", "-c", &script])
        .env("DORMOUSE_ROOT", host.state())
        .env("DORMOUSE_LAYERS", &layers);
    assert_refused(&shell.output().unwrap(), &["No space left", "DORMOUSE_LAYERS"]);
}

#[test]
fn orders_of_garbage_do_no_harm() {
    let host = Host::new();
    let sandbox = host.start(&["--id", "g"]);
    for garbage in [&b"\xff\xfe\n"[..], b"{}\n", &[b'x'; 100_000]] {
        // The connection is made with the credentials of a user who may give orders, or it would be refused.
        let sandbox = Root::new(host.state()).sandbox(&Id::new("g").unwrap()).unwrap();
        let mut stream = runtime::control::connect(&sandbox).unwrap();
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    assert_eq!(host.run(&["kill", "g", "TERM"]).status.code(), Some(0));
    assert_eq!(sandbox.end().0, Some(143));
}
