//! `dormouse hibernate` and `wake` on real programs: content, memory, and wake events.

mod sleeper;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use sleeper::{TestSandbox, next_line, quiet_window};

#[test]
fn patterns_survive_thirty_cycles() {
    let mut sandbox = TestSandbox::new();
    sandbox.start_pattern(&[], &[]);
    for cycle in 0..30 {
        sleep(Duration::from_millis(20));
        let down = sandbox.order(&["hibernate"]);
        assert!(down["pages"].as_u64().unwrap() + down["kept_pages"].as_u64().unwrap() > 1000, "{down}");
        let reap = cycle % 2 == 1;
        let up = sandbox.order(&["wake", "--reap", if reap { "on" } else { "off" }]);
        assert_eq!(up["pages"].as_u64().unwrap() > 0, reap, "cycle {cycle}: {up} after {down}");
        if reap {
            assert_eq!(up["pages"], down["working_set_pages"], "{up} after {down}");
        }
    }
    sleep(Duration::from_millis(100));
    sandbox.kill("TERM");
    sandbox.ends_well();
}

#[test]
fn patterns_survive_on_few_processors_and_little_memory() {
    let mut sandbox = TestSandbox::new();
    sandbox.start_pattern(&["--cpus", "1", "--memory", "64M", "--reap", "off"], &[]);
    for _ in 0..10 {
        sleep(Duration::from_millis(10));
        sandbox.order(&["hibernate"]);
        let up = sandbox.order(&["wake"]);
        assert_eq!(up["pages"], 0, "{up}");
    }
    sandbox.kill("TERM");
    sandbox.ends_well();
}

#[test]
fn a_hibernated_sandbox_takes_little_memory_and_no_time() {
    let mut sandbox = TestSandbox::new();
    let program = "x = [bytes([i % 251 + 1]) * 4096 for i in range(10000)]; print('ready', flush=True)
import time
while True: time.sleep(0.01)";
    sandbox.start(&[], &[], &["python3", "-c", program]);
    let warm = sandbox.memory_kib();
    assert!(warm > 40_000, "{warm} KiB");
    let down = sandbox.order(&["hibernate"]);
    assert_eq!(sandbox.status(), "hibernated");
    let asleep = sandbox.memory_kib();
    assert!(asleep < warm / 3 && asleep < 16_000, "{asleep} KiB of {warm}; {down}");
    assert!(sandbox.file_kib() < 2000, "{} KiB; {down}", sandbox.file_kib());
    let used = || {
        let vmm = sandbox.front.as_ref().unwrap().id();
        let children = fs::read_to_string(format!("/proc/{vmm}/task/{vmm}/children")).unwrap();
        let text = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ticks = |pid: &str| -> u64 {
            let text = text(pid);
            let mut fields = text.rsplit(") ").next().unwrap_or_default().split(' ').skip(11);
            let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
            next() + next()
        };
        children.split_whitespace().map(ticks).sum::<u64>()
    };
    let ticks = quiet_window(Duration::from_secs(2), 1, used);
    assert!(ticks <= 1, "{ticks} ticks of a hibernated sandbox");
    sandbox.order(&["wake"]);
    assert_eq!(sandbox.status(), "running");
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
}

#[test]
fn signals_wake_and_kill_does_not() {
    let mut sandbox = TestSandbox::new();
    sandbox.start_pattern(&[], &[]);
    sandbox.refuses(&["wake"], "not hibernated");
    sandbox.order(&["hibernate"]);
    sandbox.refuses(&["hibernate"], "already");
    sandbox.kill("TERM");
    sandbox.ends_well();
    sandbox.start_pattern(&[], &[]);
    sandbox.order(&["hibernate"]);
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
    let left = fs::read_dir(sandbox.dir.join("swap")).unwrap().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = left.filter(|name| name != ".packing").collect();
    assert!(left.is_empty(), "files are left in the swap directory: {left:?}");
    sandbox.refuses(&["hibernate"], "container does not exist");
}

#[test]
fn clients_wake_it_by_a_connection_and_by_data() {
    let mut sandbox = TestSandbox::new();
    let port = testdir::free_port();
    let program = "import socket, sys
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('ready', flush=True)
while True:
    client, _ = server.accept()
    while data := client.recv(100): client.sendall(data)";
    sandbox.start(&[], &[], &["python3", "-c", program, &port.to_string()]);
    for _ in 0..3 {
        sandbox.sleeps();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut echo = |text: &[u8; 3]| {
            client.write_all(text).unwrap();
            let mut answer = [0; 3];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, text);
        };
        echo(b"one");
        sandbox.becomes("running");
        sandbox.sleeps();
        echo(b"two");
        sandbox.becomes("running");
    }
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
}

/// The program waits for a signal alone. What it has on its way, and its lease, are as they were.
#[test]
fn a_signal_about_a_connection_wakes_it() {
    let mut sandbox = TestSandbox::new();
    let port = testdir::free_port();
    let program = "import fcntl, os, signal, socket, struct, sys
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
sender, receiver = socket.socketpair()
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
leased = os.open('leased', os.O_RDONLY | os.O_CREAT)
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_RDLCK)
sender.sendmsg([b'bytes'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('i', leased))])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
fcntl.fcntl(server, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(server, fcntl.F_SETFL, os.O_ASYNC)
print('ready', flush=True)
signal.sigwaitinfo([signal.SIGIO])
data, messages, _, _ = receiver.recvmsg(100, 100)
print(data.decode(), len(messages), fcntl.fcntl(leased, fcntl.F_GETLEASE), flush=True)";
    sandbox.start(&[], &[], &["python3", "-c", program, &port.to_string()]);
    sandbox.sleeps();
    let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (code, out, err) = sandbox.end();
    assert!(code == Some(0) && out == "bytes 2 0\n", "{code:?} {out:?} {err:?}");
}

#[test]
fn standard_input_wakes_it_and_time_does_not() {
    let mut sandbox = TestSandbox::new();
    sandbox.start(&[], &[], &["/bin/sh", "-c", "while sleep 0.05; do :; done & echo ready; cat"]);
    for line in ["first\n", "one\n", "two\n"] {
        // Data on a stream wakes the sandbox only if a task waits for it already: at first `cat` may not run yet.
        if line != "first\n" {
            sleep(Duration::from_millis(300));
            sandbox.sleeps();
        }
        let front = sandbox.front.as_mut().unwrap();
        front.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        sandbox.becomes("running");
        assert_eq!(next_line(sandbox.front.as_mut().unwrap()), line);
    }
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
}

#[test]
fn a_swap_directory_that_cannot_be_used_is_refused() {
    let sandbox = TestSandbox::new();
    fs::write(sandbox.dir.join("file"), "").unwrap();
    let output = sandbox.run(&["do", "--swap-dir", "file", "--", "/bin/true"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{error}");
    assert!(error.contains("cannot make a swap file in") && error.contains("--swap-dir"), "{error}");
}
