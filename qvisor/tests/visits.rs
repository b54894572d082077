//! Visitors that do not restart the idle time: they are answered and wake a sandbox, which sleeps again once they have gone.

mod sleeper;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use sleeper::{Events, TestSandbox};

/// Who is ignored, and somebody else.
const NODE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Longer than the grace, in which a sandbox that was visited stays awake.
const A_WHILE: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_secs(10);

/// Says what it is told to whoever speaks to it, over TCP with IPv6 and IPv4 on one socket where the host has both, and over UDP.
const SERVER: &str = "
import socket, threading
both = socket.has_dualstack_ipv6()
family = socket.AF_INET6 if both else socket.AF_INET
server = socket.create_server(('', 0), family=family, dualstack_ipv6=both)
packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
packets.bind(('127.0.0.1', 0))
def answer(client):
    while data := client.recv(100): client.sendall(data)
    client.close()
def accept():
    while True: threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
print('ready')
print(server.getsockname()[1], packets.getsockname()[1])
while True:
    data, source = packets.recvfrom(100)
    packets.sendto(data, source)";

/// A server in a sandbox that ignores `NODE`.
struct Server {
    sandbox: TestSandbox,
    tcp: u16,
    udp: u16,
}

impl Server {
    fn new(idle_timeout: &str) -> Self {
        let mut sandbox = TestSandbox::new();
        let options = ["--idle-timeout", idle_timeout, "--idle-ignores", "fd00::/8,127.0.0.1/32"];
        sandbox.start(&options, &[], &["python3", "-u", "-c", SERVER]);
        let line = sleeper::next_line(sandbox.front.as_mut().unwrap());
        let mut ports = line.split_whitespace().map(|port| port.parse().unwrap());
        let (tcp, udp) = (ports.next().unwrap(), ports.next().unwrap());
        Self { sandbox, tcp, udp }
    }

    /// A connection from an address.
    fn connect(&self, from: Ipv4Addr) -> Connection {
        // The standard library cannot say from where.
        let program = "
import socket, sys
connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])), source_address=(sys.argv[2], 0))
while line := sys.stdin.buffer.readline():
    connection.sendall(line)
    sys.stdout.buffer.write(connection.recv(100))
    sys.stdout.buffer.flush()
connection.shutdown(socket.SHUT_WR)
connection.recv(100)";
        let mut client = Command::new("python3");
        client.args(["-c", program, &self.tcp.to_string(), &from.to_string()]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (client.stdin.take(), client.stdout.take().unwrap());
        let mut connection = Connection { client, stdin, stdout };
        connection.speak();
        connection
    }

    /// A datagram from an address, and its answer.
    fn send(&self, from: Ipv4Addr) {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send_to(b"x", (NODE, self.udp)).unwrap();
        assert_eq!(socket.recv(&mut [0; 9]).unwrap(), 1);
    }

    fn hibernate(&self) {
        self.sandbox.order(&["hibernate"]);
    }

    /// It is awake, and will be.
    fn stays_awake(&self) {
        sleep(A_WHILE);
        assert_ne!(self.sandbox.sandbox_state(), "hibernated");
    }

    /// Visits it while it sleeps: it wakes, and then sleeps again by itself.
    fn wakes_and_sleeps(&self, visit: impl FnOnce()) {
        let mut events = Events::of(&self.sandbox);
        visit();
        let said = |event: &serde_json::Value| (event["to"].clone(), event["cause"].clone());
        let told = events.until(|event| {
            event["from"] != "hibernated" && event["to"] == "hibernated" && event["from"].is_string()
        });
        assert!(
            told.iter().any(|event| said(event) == ("hibernate-running".into(), "request".into())),
            "{told:?}"
        );
        assert_eq!(told.last().unwrap()["cause"], "idle-timeout", "{told:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.sandbox.kill("KILL");
        let code = self.sandbox.end().0;
        if !std::thread::panicking() {
            assert_eq!(code, Some(137));
        }
    }
}

struct Connection {
    client: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
}

impl Connection {
    /// Says something, and hears it.
    fn speak(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"x\n").unwrap();
        let mut answer = [0; 2];
        self.stdout.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"x\n");
    }

    /// Closes it, and waits until the other side has, too.
    fn close(mut self) {
        drop(self.stdin.take());
        assert!(self.client.wait().unwrap().success());
    }
}

#[test]
fn whoever_is_ignored_is_answered_and_keeps_nobody_awake() {
    let server = Server::new("1h");
    server.hibernate();
    server.wakes_and_sleeps(|| server.connect(NODE).close());
    server.wakes_and_sleeps(|| server.send(NODE));
    // By a connection that is there, and stays.
    let mut old = server.connect(NODE);
    server.hibernate();
    for _ in 0..3 {
        server.wakes_and_sleeps(|| old.speak());
    }
    // Whoever waits for an answer is not kept waiting: a new connection keeps it awake as long as it is open.
    let new = server.connect(NODE);
    server.stays_awake();
    new.close();
    server.sandbox.becomes("hibernated");
    old.close();
}

#[test]
fn anybody_else_restarts_the_time() {
    let server = Server::new("1h");
    let visits: [(&str, &dyn Fn()); 5] = [
        ("connection", &|| server.connect(OTHER).close()),
        ("datagram", &|| server.send(OTHER)),
        ("connection among others", &|| {
            let other = server.connect(OTHER);
            server.connect(NODE).close();
            server.send(NODE);
            other.close();
        }),
        ("exec", &|| assert!(server.sandbox.run(&["exec", "s", "true"]).status.success())),
        ("order", &|| drop(server.sandbox.order(&["wake"]))),
    ];
    for (what, visit) in visits {
        server.hibernate();
        visit();
        // Who is ignored does not put it to sleep.
        server.connect(NODE).close();
        server.send(NODE);
        server.stays_awake();
        eprintln!("{what}: as it should");
    }
    // Data of a connection that is there.
    let mut old = server.connect(OTHER);
    server.hibernate();
    old.speak();
    server.stays_awake();
    old.close();
}

#[test]
fn one_that_is_probed_all_the_time_sleeps_between() {
    let server = Server::new("2s");
    let done = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let peer = SocketAddr::new(IpAddr::V4(NODE), server.tcp);
                let mut probe = TcpStream::connect(peer).unwrap();
                probe.set_read_timeout(Some(PATIENCE)).unwrap();
                probe.write_all(b"x").unwrap();
                probe.read_exact(&mut [0]).unwrap();
                drop(probe);
                sleep(Duration::from_secs(1));
            }
        });
        for _ in 0..3 {
            server.sandbox.becomes("hibernated");
            server.sandbox.wakes();
        }
        done.store(true, Ordering::Relaxed);
    });
    server.sandbox.becomes("hibernated");
}

#[test]
fn a_list_that_is_none_is_refused() {
    let sandbox = TestSandbox::new();
    let output = sandbox.run(&["do", "--idle-ignores", "127.0.0.1/33", "--", "true"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{error}");
    assert!(error.contains("127.0.0.1/33") && error.contains("neither an address nor a prefix"), "{error}");
}
