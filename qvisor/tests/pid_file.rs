//! `dormouse do --pid-file`: a process that stands for the sandbox, as a container's leash does.

mod sleeper;

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sleeper::TestSandbox;

const PATIENCE: Duration = Duration::from_secs(20);

/// Answers each connection with a number, and SIGTERM with its exit code.
const SERVER: &str = "import signal, socket, sys, os
signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('ready', flush=True)
count = 0
while True:
    client = server.accept()[0]
    count += 1
    client.sendall(b'%d\\n' % count)
    client.close()
";

/// A server in sandbox `s`, its port, and the pid in its pid file.
fn start(sandbox: &mut TestSandbox) -> (u16, i32) {
    let port = testdir::free_port();
    let pid_file = sandbox.dir.join("pid");
    let options = ["--pid-file", pid_file.to_str().unwrap()];
    sandbox.start(&options, &[], &["python3", "-u", "-c", SERVER, &port.to_string()]);
    let pid: i32 = fs::read_to_string(pid_file).unwrap().parse().unwrap();
    assert_eq!(sandbox.state()["pid"].as_i64(), Some(pid.into()));
    assert!(sandbox.processes()[2..].contains(&pid.cast_unsigned()), "it is a process of the sandbox's");
    (port, pid)
}

fn ask(port: u16) -> String {
    let mut text = String::new();
    TcpStream::connect(("127.0.0.1", port)).unwrap().read_to_string(&mut text).unwrap();
    text
}

fn signal(pid: i32, number: i32) {
    // SAFETY: integers only; the process is one of this test's.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0);
}

/// The letter of `/proc/PID/stat`; none: it is gone.
fn condition(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn it_stands_for_the_sandbox() {
    let mut sandbox = TestSandbox::new();
    let (port, pid) = start(&mut sandbox);
    assert_eq!(ask(port), "1\n");
    signal(pid, libc::SIGSTOP);
    sandbox.becomes("hibernated");
    wait_for("the leash is stopped", || condition(pid) == Some('T'));
    assert_eq!(ask(port), "2\n");
    sandbox.wakes();
    wait_for("a request continues the leash", || condition(pid) == Some('S'));
    signal(pid, libc::SIGSTOP);
    sandbox.becomes("hibernated");
    signal(pid, libc::SIGCONT);
    sandbox.wakes();
    sandbox.order(&["hibernate"]);
    wait_for("an order stops the leash", || condition(pid) == Some('T'));
    sandbox.order(&["wake"]);
    wait_for("an order continues the leash", || condition(pid) == Some('S'));
    signal(pid, libc::SIGTERM);
    assert_eq!(sandbox.end().0, Some(5));
    assert_eq!(condition(pid), None, "the leash goes with the sandbox");
}

#[test]
fn a_front_end_that_is_stopped_stops_alone() {
    let mut sandbox = TestSandbox::new();
    let (port, pid) = start(&mut sandbox);
    let front = sandbox.processes()[0].cast_signed();
    signal(front, libc::SIGSTOP);
    wait_for("the front end is stopped", || condition(front) == Some('T'));
    assert_eq!(ask(port), "1\n");
    assert_eq!(condition(pid), Some('S'));
    // The sandbox hibernates and wakes meanwhile.
    signal(pid, libc::SIGSTOP);
    sandbox.becomes("hibernated");
    assert_eq!(ask(port), "2\n");
    sandbox.wakes();
    signal(front, libc::SIGCONT);
    signal(front, libc::SIGTERM);
    assert_eq!(sandbox.end().0, Some(5));
}

#[test]
fn the_sandbox_ends_when_it_is_killed() {
    let mut sandbox = TestSandbox::new();
    let (_, pid) = start(&mut sandbox);
    signal(pid, libc::SIGKILL);
    assert_eq!(sandbox.end().0, Some(137));
    assert_eq!(
        fs::read_dir(sandbox.dir.join("layers")).unwrap().flatten().filter(is_of_a_sandbox).count(),
        0
    );
}

fn is_of_a_sandbox(entry: &fs::DirEntry) -> bool {
    entry.file_name() == "s"
}

#[test]
fn a_file_that_cannot_be_written_is_said_before_anything_runs() {
    let sandbox = TestSandbox::new();
    let file = sandbox.dir.join("nowhere/pid");
    let mark = sandbox.dir.join("mark");
    let volume = format!("{0}:{0}", sandbox.dir.display());
    let output = sandbox.run(&[
        "do",
        "--id",
        "s",
        "--volume",
        &volume,
        "--pid-file",
        file.to_str().unwrap(),
        "--",
        "touch",
        mark.to_str().unwrap(),
    ]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(
        text.starts_with("dormouse: cannot write pid file ") && text.trim().lines().count() == 1,
        "{text}"
    );
    assert!(!mark.exists());
    assert!(!sandbox.run(&["state", "s"]).status.success());
    let output = sandbox.run(&["do", "--id", "s", "--", "true"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
