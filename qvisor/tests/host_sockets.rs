//! Unix sockets of the host in volumes: `--host-uds connect`.

mod sleeper;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use sleeper::{TestSandbox, next_line};

/// A sandbox with a volume in which listeners of the host are.
struct Sockets {
    sandbox: TestSandbox,
    volume: PathBuf,
}

impl Sockets {
    fn new() -> Self {
        let sandbox = TestSandbox::new();
        // A socket's name is short.
        let name =
            format!("/tmp/dormouse-uds-{}-{}", std::process::id(), sandbox.dir.to_str().unwrap().len());
        let volume = PathBuf::from(format!("{name}-{}", sandbox.dir.file_name().unwrap().to_str().unwrap()));
        fs::create_dir(&volume).unwrap();
        Self { sandbox, volume }
    }

    fn listen(&self, name: &str) -> UnixListener {
        let path = self.volume.join(name);
        let listener = UnixListener::bind(&path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        listener
    }

    fn start(&mut self, options: &[&str], program: &str) {
        let volume = format!("{}:/v", self.volume.display());
        let all = [&["--volume", &volume], options].concat();
        self.sandbox.start(&all, &[], &["python3", "-u", "-c", program]);
    }

    fn ends_well(&mut self) {
        self.sandbox.ends_well();
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.volume);
    }
}

const CONNECT: &[&str] = &["--host-uds", "connect"];

fn accept(listener: &UnixListener) -> UnixStream {
    let mut wait = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, live for the call.
    assert_eq!(unsafe { libc::poll(&raw mut wait, 1, 30_000) }, 1, "nobody connects");
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn read_line(stream: &mut UnixStream) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while byte[0] != b'\n' {
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

fn peer(stream: &UnixStream) -> (u32, u32) {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of_val(&who)).unwrap();
    // SAFETY: both places are live, and the length is the first one's.
    let got = unsafe {
        let value = (&raw mut who).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut len)
    };
    assert_eq!(got, 0);
    (who.uid, who.gid)
}

#[test]
fn streams_go_both_ways_and_datagrams_do_not() {
    let mut sockets = Sockets::new();
    let listener = sockets.listen("stream");
    let _log = UnixDatagram::bind(sockets.volume.join("log")).unwrap();
    let program = "
import socket, select, os
print('ready')
s = socket.socket(socket.AF_UNIX)
s.connect('/v/stream')
assert s.getpeername().endswith('stream'), s.getpeername()
s.sendall(b'hello\\n')
got = b''
while len(got) < 3000000: got += s.recv(1 << 20)
assert got == b'x' * 3000000
s.sendall(b'y' * 3000000)
s.settimeout(10)
assert s.recv(10) == b'tick'
s.setblocking(False)
try: s.recv(1); assert False
except BlockingIOError: pass
p = select.epoll(); p.register(s, select.EPOLLIN)
assert p.poll(0) == []
print('silent')
assert p.poll(10) == [(s.fileno(), select.EPOLLIN)]
assert s.recv(10) == b'tock'
for act in (lambda: s.connect('/v/stream'), lambda: s.sendto(b'x', '/v/stream')):
    try: act(); assert False
    except OSError as error: assert error.errno == 106, error
s.shutdown(socket.SHUT_WR)
p.modify(s, select.EPOLLIN | select.EPOLLRDHUP)
assert p.poll(10)[0][1] & select.EPOLLRDHUP
assert s.recv(1) == b''
d = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for act in (lambda: d.connect('/v/log'), lambda: d.sendto(b'x', '/v/log')):
    try: act(); assert False
    except ConnectionRefusedError: pass
print('ok')
";
    sockets.start(CONNECT, program);
    let mut stream = accept(&listener);
    assert_eq!(read_line(&mut stream), "hello\n");
    stream.write_all(&vec![b'x'; 3_000_000]).unwrap();
    let mut back = vec![0; 3_000_000];
    stream.read_exact(&mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == b'y'));
    stream.write_all(b"tick").unwrap();
    assert_eq!(next_line(sockets.sandbox.front.as_mut().unwrap()), "silent\n");
    stream.write_all(b"tock").unwrap();
    assert_eq!(stream.read(&mut back).unwrap(), 0);
    drop(stream);
    sockets.ends_well();
}

#[test]
fn it_is_off_unless_asked_for_and_for_volumes_alone() {
    let mut sockets = Sockets::new();
    let _listener = sockets.listen("stream");
    let elsewhere = format!("{}-elsewhere", sockets.volume.display());
    let _elsewhere = UnixListener::bind(&elsewhere).unwrap();
    let refused = |path: &str| {
        format!(
            "
import socket
print('ready')
for path in ['/v/file', {path}]:
    try: socket.socket(socket.AF_UNIX).connect(path); print('connected', path)
    except ConnectionRefusedError: pass
print('ok')"
        )
    };
    fs::write(sockets.volume.join("file"), "").unwrap();
    sockets.start(&[], &refused("'/v/stream'"));
    sockets.ends_well();
    sockets.start(CONNECT, &refused(&format!("'{elsewhere}'")));
    sockets.ends_well();
    fs::remove_file(elsewhere).unwrap();
}

#[test]
fn the_listener_sees_who_connects() {
    let mut sockets = Sockets::new();
    let listener = sockets.listen("all");
    let _root_only = sockets.listen("root");
    fs::set_permissions(sockets.volume.join("root"), Permissions::from_mode(0o700)).unwrap();
    // SAFETY: the call takes nothing.
    let us = unsafe { libc::geteuid() };
    let program = "
import socket, os
print('ready')
a = socket.socket(socket.AF_UNIX); a.connect('/v/all')
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(77, 77, 77); os.setresuid(1234, 1234, 1234)
    try: socket.socket(socket.AF_UNIX).connect('/v/root'); assert False
    except PermissionError: pass
b = socket.socket(socket.AF_UNIX); b.connect('/v/all')
b.recv(1)
print('ok')";
    sockets.start(CONNECT, program);
    let first = accept(&listener);
    let mut second = accept(&listener);
    assert_eq!(peer(&first).0, us);
    assert_eq!(peer(&second), if us == 0 { (1234, 77) } else { peer(&first) });
    second.write_all(b"x").unwrap();
    sockets.ends_well();
}

#[test]
fn descriptors_do_not_cross() {
    let mut sockets = Sockets::new();
    let listener = sockets.listen("stream");
    let program = "
import socket, os, array
print('ready')
s = socket.socket(socket.AF_UNIX); s.connect('/v/stream')
r, w = os.pipe()
try: s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [r]))]); assert False
except OSError as error: assert error.errno == 95, error
s.sendall(b'go\\n')
got = s.recvmsg(10, 1000)
assert got[0] == b'data' and got[1] == [], got
print('ok')";
    sockets.start(CONNECT, program);
    let mut stream = accept(&listener);
    assert_eq!(read_line(&mut stream), "go\n");
    let file = fs::File::open("/dev/null").unwrap();
    let fds = [std::os::fd::AsFd::as_fd(&file)];
    let sent = vmm::descriptor_passing::send(std::os::fd::AsFd::as_fd(&stream), &fds, b"data", 0);
    assert_eq!(sent.unwrap(), 4);
    sockets.ends_well();
}

#[test]
fn a_full_backlog_is_waited_for() {
    let mut sockets = Sockets::new();
    let path = sockets.volume.join("busy");
    let listener = sockets.listen("busy");
    // SAFETY: integers only.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let filler = UnixStream::connect(&path).unwrap();
    let program = "
import socket
print('ready')
n = socket.socket(socket.AF_UNIX); n.setblocking(False)
try: n.connect('/v/busy'); assert False
except BlockingIOError: pass
print('full')
s = socket.socket(socket.AF_UNIX); s.connect('/v/busy'); s.sendall(b'in\\n')
s.recv(1)
print('ok')";
    sockets.start(CONNECT, program);
    assert_eq!(next_line(sockets.sandbox.front.as_mut().unwrap()), "full\n");
    std::thread::sleep(Duration::from_millis(100));
    drop(accept(&listener));
    let mut stream = accept(&listener);
    assert_eq!(read_line(&mut stream), "in\n");
    drop(stream);
    drop(filler);
    sockets.ends_well();
}

#[test]
fn connections_outlast_a_sleep_and_end_it() {
    let mut sockets = Sockets::new();
    let listener = sockets.listen("stream");
    let program = "
import socket
print('ready')
s = socket.socket(socket.AF_UNIX); s.connect('/v/stream')
while True:
    got = s.recv(100)
    if not got: break
    s.sendall(got.upper())
print('ok')";
    sockets.start(CONNECT, program);
    let mut stream = accept(&listener);
    for _ in 0..3 {
        sockets.sandbox.order(&["hibernate"]);
        assert_eq!(sockets.sandbox.sandbox_state(), "hibernated");
        stream.write_all(b"wake\n").unwrap();
        assert_eq!(read_line(&mut stream), "WAKE\n");
        sockets.sandbox.wakes();
    }
    // It may get back to its sleep before its end is seen.
    drop(stream);
    sockets.ends_well();
}

#[test]
fn a_listener_that_ends_is_met_as_one_of_ours_is() {
    let mut sockets = Sockets::new();
    let listener = sockets.listen("stream");
    let program = "
import socket, signal
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
print('ready')
s = socket.socket(socket.AF_UNIX); s.connect('/v/stream')
try:
    while True: s.sendall(b'x' * 65536)
except (BrokenPipeError, ConnectionResetError): pass
try: socket.socket(socket.AF_UNIX).connect('/v/stream'); assert False
except ConnectionRefusedError: pass
print('ok')";
    sockets.start(CONNECT, program);
    let stream = accept(&listener);
    drop(listener);
    drop(stream);
    sockets.ends_well();
}
