//! When a sandbox falls asleep by itself: only while everything that somebody outside waits for would wake it.
//!
//! The table in `docs/hibernation.md`, section "Idle", is the list of cases: each line is tried here, natively first where a server
//! answers, and a line that is missing there or here fails.

mod sleeper;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use sleeper::{PATIENCE, TestSandbox};

/// Shorter than any answer that takes long, by more than it takes to fall asleep.
const IDLE: &str = "2s";
const LONG: Duration = Duration::from_secs(6);

/// A question to a server, with the effect that its answer has on sleep.
#[derive(Clone, Copy, Debug)]
enum Ask {
    /// An answer that takes longer than the idle time: it comes, and the sandbox has not slept.
    Slow(&'static str),
    /// An answer that takes longer than the idle time, of a server that has more to read than it takes, and reads no
    /// more until it has answered: it comes, and the sandbox has not slept.
    Full(&'static str),
    /// An answer at once, over a connection that stays open: the sandbox sleeps, and the next answer comes.
    KeepAlive,
    /// An answer that another request brings about: the sandbox sleeps, and both are answered.
    Wait,
    /// A line that comes back, over a connection that stays open, as of a websocket: the sandbox sleeps, and the next line comes back.
    Echo,
    /// A body that comes in pieces, with pauses longer than the idle time: it may sleep between them, and the answer comes.
    Upload,
}

/// A server: how the document names it, what it needs, and its lines of the table as (asked, outcome, ask).
struct Served {
    name: &'static str,
    needs: &'static str,
    command: fn() -> Vec<String>,
    cases: &'static [(&'static str, &'static str, Ask)],
}

const AWAKE: &str = "stays awake";
const SLEEPS: &str = "sleeps";

const SERVERS: &[Served] = &[
    Served {
        name: "http.server, threads",
        needs: "python3",
        command: || python("threads"),
        cases: &[
            ("nothing, keep-alive", SLEEPS, Ask::KeepAlive),
            ("sleeps before it answers", AWAKE, Ask::Slow("/sleep")),
            ("waits for a child that sleeps", AWAKE, Ask::Slow("/child")),
            ("polls every 50 ms", AWAKE, Ask::Slow("/poll")),
            ("tries again, ever later", AWAKE, Ask::Slow("/retry")),
            ("pauses after its first bytes", AWAKE, Ask::Slow("/stream")),
            ("long poll, event from outside", SLEEPS, Ask::Wait),
            ("frames both ways", SLEEPS, Ask::Echo),
            ("an upload that trickles", SLEEPS, Ask::Upload),
        ],
    },
    Served {
        name: "asyncio",
        needs: "python3",
        command: || python("asyncio"),
        cases: &[
            ("nothing, keep-alive", SLEEPS, Ask::KeepAlive),
            ("sleeps before it answers", AWAKE, Ask::Slow("/sleep")),
            ("waits for a child that sleeps", AWAKE, Ask::Slow("/child")),
            ("polls every 50 ms", AWAKE, Ask::Slow("/poll")),
            ("pauses after its first bytes", AWAKE, Ask::Slow("/stream")),
            ("a thread sleeps after its first bytes", AWAKE, Ask::Slow("/pool")),
            ("a timer's signal brings the answer", AWAKE, Ask::Slow("/alarm")),
            ("long poll, event from outside", SLEEPS, Ask::Wait),
            ("frames both ways", SLEEPS, Ask::Echo),
        ],
    },
    Served {
        name: "asyncio with a tick, as uvicorn",
        needs: "python3",
        command: || python("ticking"),
        cases: &[
            ("nothing, keep-alive", SLEEPS, Ask::KeepAlive),
            ("sleeps before it answers", AWAKE, Ask::Slow("/sleep")),
            ("waits for a child that sleeps", AWAKE, Ask::Slow("/child")),
            ("sleeps before it answers and reads the rest", AWAKE, Ask::Full("/sleep")),
            ("frames both ways", SLEEPS, Ask::Echo),
        ],
    },
    Served {
        name: "Node, http",
        needs: "node",
        command: || vec!["node".into(), file("server.js")],
        cases: &[
            ("nothing, keep-alive", SLEEPS, Ask::KeepAlive),
            ("sleeps before it answers", AWAKE, Ask::Slow("/sleep")),
            ("pauses after its first bytes", AWAKE, Ask::Slow("/stream")),
        ],
    },
    Served {
        name: "Go, net/http",
        needs: "go",
        command: || vec![built_by_go()],
        cases: &[
            ("nothing, keep-alive", SLEEPS, Ask::KeepAlive),
            ("sleeps before it answers", AWAKE, Ask::Slow("/sleep")),
            ("pauses after its first bytes", AWAKE, Ask::Slow("/stream")),
        ],
    },
    Served {
        name: "Java, com.sun.net.httpserver",
        needs: "java",
        // Its statistics and its compiler use more than a hundredth of a slow processor for long.
        command: || {
            let options = ["-Xmx128m", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
            let words = core::iter::once("java").chain(options).map(String::from);
            words.chain([file("Server.java")]).collect()
        },
        cases: &[
            ("nothing, keep-alive", SLEEPS, Ask::KeepAlive),
            ("sleeps before it answers", AWAKE, Ask::Slow("/sleep")),
            ("pauses after its first bytes", AWAKE, Ask::Slow("/stream")),
        ],
    },
];

/// Lines of the table that other tests here try.
const OTHERS: &[(&str, &str, &str)] = &[
    ("Node, http2", "the last frame of a session that has its answer", SLEEPS),
    ("redis", "nothing, keep-alive", SLEEPS),
    ("redis", "a list that stays empty, for 5 s", AWAKE),
    ("an exec'd process", "sleeps between its steps, as a build", AWAKE),
    ("an exec'd process", "waits for its input", SLEEPS),
    ("a client", "waits for an answer with a time-out", AWAKE),
    ("a client with `--outbound sleep`", "waits for an answer with a time-out", SLEEPS),
];

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/idle").join(name);
    path.to_str().unwrap().to_owned()
}

fn python(kind: &str) -> Vec<String> {
    vec!["python3".into(), "-u".into(), file("servers.py"), kind.into()]
}

fn built_by_go() -> String {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = dir.join(format!("idle-server-{}", std::process::id()));
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(file("server.go"));
    assert!(build.env("GOCACHE", dir.join("go-cache")).status().unwrap().success());
    program.to_str().unwrap().to_owned()
}

fn is_here(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir: PathBuf| dir.join(program).exists())
}

/// A connection to a server, and answers that come over it.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn say(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn ask(&mut self, path: &str) {
        self.say(&format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n"));
    }

    /// Reads up to the end of an answer.
    fn hear(&mut self) {
        let mut heard = Vec::new();
        while !heard.ends_with(b"ok\n") && !heard.ends_with(b"ok\n\r\n0\r\n\r\n") {
            assert_ne!(self.0.read_until(b'\n', &mut heard).unwrap(), 0, "{}", heard.escape_ascii());
        }
        if heard.windows(7).any(|word| word.eq_ignore_ascii_case(b"chunked")) {
            while !heard.ends_with(b"0\r\n\r\n") {
                assert_ne!(self.0.read_until(b'\n', &mut heard).unwrap(), 0, "{}", heard.escape_ascii());
            }
        }
    }

    fn echo(&mut self) {
        self.say("line\n");
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert_eq!(line, "line\n");
    }

    /// Asks, and calls `pause` where a sandbox would sleep.
    fn carry_out(&mut self, ask: Ask, port: u16, pause: &dyn Fn()) {
        match ask {
            Ask::Slow(path) => {
                self.ask(path);
                self.hear();
            }
            Ask::Full(path) => {
                self.ask(path);
                self.say(&"x".repeat(300_000));
                self.hear();
            }
            Ask::KeepAlive => {
                self.ask("/quick");
                self.hear();
                pause();
                // Some servers end a connection that nobody uses for a while.
                let mut again = if self.is_closed() {
                    Self::new(port)
                } else {
                    Self(BufReader::new(self.0.get_ref().try_clone().unwrap()))
                };
                again.ask("/quick");
                again.hear();
            }
            Ask::Wait => {
                self.ask("/wait");
                pause();
                let mut other = Self::new(port);
                other.ask("/happen");
                other.hear();
                self.hear();
            }
            Ask::Echo => {
                self.ask("/echo");
                self.echo();
                pause();
                self.echo();
            }
            Ask::Upload => {
                self.say("POST /upload HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\n");
                for piece in ["a", "b", "c"] {
                    pause();
                    self.say(piece);
                }
                self.hear();
            }
        }
    }

    fn is_closed(&self) -> bool {
        let stream = self.0.get_ref();
        stream.set_nonblocking(true).unwrap();
        let closed = stream.peek(&mut [0]).is_ok();
        stream.set_nonblocking(false).unwrap();
        closed
    }
}

/// A process that ends with the test.
struct Native(Child);

impl Drop for Native {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn port_of(front: &mut Child) -> u16 {
    sleeper::next_line(front).trim().parse().unwrap()
}

/// Starts a program in a sandbox that sleeps by itself.
fn sandbox(options: &[&str], command: &[String]) -> TestSandbox {
    let mut sandbox = TestSandbox::new();
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    sandbox.start(&[&["--idle-timeout", IDLE], options].concat(), &[], &words);
    sandbox
}

fn hibernations(sandbox: &TestSandbox) -> u64 {
    sandbox.order(&["stats"])["hibernations"].as_u64().unwrap()
}

fn why(sandbox: &TestSandbox) -> Value {
    sandbox.order(&["why"])
}

/// Tries a server's lines of the table, natively and in a sandbox.
fn try_server(name: &str) {
    let server = SERVERS.iter().find(|server| server.name == name).unwrap();
    if !is_here(server.needs) {
        eprintln!("skipped: there is no {}", server.needs);
        return;
    }
    let command = (server.command)();
    {
        let mut native = Command::new(&command[0]);
        let mut native = Native(native.args(&command[1..]).stdout(Stdio::piped()).spawn().unwrap());
        assert_eq!(sleeper::next_line(&mut native.0), "ready\n");
        let port = port_of(&mut native.0);
        for (_, _, ask) in server.cases {
            Client::new(port).carry_out(*ask, port, &|| ());
        }
    }
    let mut sandbox = sandbox(&[], &command);
    let port = port_of(sandbox.front.as_mut().unwrap());
    // Idle from the start, it sleeps.
    sandbox.becomes("hibernated");
    for (asked, outcome, ask) in server.cases {
        let before = hibernations(&sandbox);
        let began = Instant::now();
        let wait = || sandbox.becomes("hibernated");
        Client::new(port).carry_out(*ask, port, &wait);
        let slept = hibernations(&sandbox) - before;
        if *outcome == AWAKE {
            assert_eq!(slept, 0, "{name}: {asked}: {}", why(&sandbox));
        }
        assert!(*outcome == SLEEPS || began.elapsed() >= LONG - Duration::from_secs(1), "{asked}: too fast");
        sandbox.becomes("hibernated");
        eprintln!("{name}: {asked}: as it should");
    }
    sandbox.kill("KILL");
    sandbox.end();
}

#[test]
fn threads() {
    try_server("http.server, threads");
}

#[test]
fn event_loops() {
    try_server("asyncio");
    try_server("asyncio with a tick, as uvicorn");
}

#[test]
fn node() {
    try_server("Node, http");
}

#[test]
fn go() {
    try_server("Go, net/http");
}

#[test]
fn java() {
    try_server("Java, com.sun.net.httpserver");
}

/// A client of one session of HTTP/2, which has had its first answer.
fn client_of_http2(port: u16) -> Native {
    let mut client = Command::new("node");
    client.args([file("http2.js"), port.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = Native(client.spawn().unwrap());
    assert_eq!(sleeper::next_line(&mut client.0), "ok\n");
    client
}

#[test]
fn frames_that_nobody_answers_keep_nobody_awake() {
    if !is_here("node") {
        eprintln!("skipped: there is no node");
        return;
    }
    let command = vec!["node".to_owned(), file("http2.js")];
    let mut sandbox = sandbox(&[], &command);
    let mut client = client_of_http2(port_of(sandbox.front.as_mut().unwrap()));
    for _ in 0..2 {
        sandbox.becomes("hibernated");
        writeln!(client.0.stdin.as_mut().unwrap()).unwrap();
        assert_eq!(sleeper::next_line(&mut client.0), "ok\n");
    }
    sandbox.becomes("hibernated");
    sandbox.kill("KILL");
    sandbox.end();
}

#[test]
fn redis() {
    if !is_here("redis-server") {
        eprintln!("skipped: there is no redis-server");
        return;
    }
    let port = testdir::free_port();
    let script = format!("echo ready; exec redis-server --port {port} --save '' --dir /tmp >/dev/null");
    let mut sandbox = sandbox(&[], &["sh".into(), "-c".into(), script]);
    sandbox.becomes("hibernated");
    let mut client = Client::new(port);
    let mut ask = |text: &str, answer: &str| {
        client.say(text);
        let mut line = String::new();
        client.0.read_line(&mut line).unwrap();
        assert_eq!(line, answer);
    };
    ask("PING\r\n", "+PONG\r\n");
    sandbox.becomes("hibernated");
    let before = hibernations(&sandbox);
    ask("BLPOP nothing 5\r\n", "*-1\r\n");
    assert_eq!(hibernations(&sandbox), before, "{}", why(&sandbox));
    ask("PING\r\n", "+PONG\r\n");
    sandbox.becomes("hibernated");
    sandbox.kill("KILL");
    sandbox.end();
}

#[test]
fn execd_processes() {
    let mut sandbox = sandbox(&[], &["sh".into(), "-c".into(), "echo ready; exec cat".into()]);
    sandbox.becomes("hibernated");
    let before = hibernations(&sandbox);
    // It has yet to end when one looks.
    let build = "for step in 1 2 3 4 5 6; do sleep 1; done; echo built; sleep 30";
    let mut building = sandbox.command(&["exec", "s", "sh", "-c", build]);
    let mut building = building.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(sleeper::next_line(&mut building), "built\n");
    assert_eq!(hibernations(&sandbox), before);
    let _ = building.kill();
    building.wait().unwrap();
    // One that waits for its input sleeps, and goes on.
    let mut shell = sandbox.command(&["exec", "s", "sh"]);
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    for _ in 0..2 {
        writeln!(shell.stdin.as_mut().unwrap(), "echo heard").unwrap();
        assert_eq!(sleeper::next_line(&mut shell), "heard\n");
        sandbox.becomes("hibernated");
    }
    // What it does for a while keeps it awake, and is said.
    writeln!(shell.stdin.as_mut().unwrap(), "sleep 60; echo built").unwrap();
    let kept = kept_by(&sandbox, "exec");
    assert_eq!((&kept["process"], &kept["wait"]), (&"sleep".into(), &"nanosleep".into()), "{kept}");
    let _ = shell.kill();
    shell.wait().unwrap();
    sandbox.kill("KILL");
    sandbox.end();
}

/// Waits until it says that something of a kind keeps it awake; what.
fn kept_by(sandbox: &TestSandbox, kind: &str) -> Value {
    let start = Instant::now();
    loop {
        let reasons = why(sandbox);
        if reasons["kept_awake"]["kind"] == kind {
            return reasons["kept_awake"].clone();
        }
        assert!(start.elapsed() < PATIENCE, "{reasons}");
        sleep(Duration::from_millis(50));
    }
}

/// A client that asks a server of the test, and waits for the answer for at most a minute.
const AGENT: &str = "
import socket, sys
print('ready', flush=True)
connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=60)
connection.sendall(b'question\\n')
print(connection.recv(100).decode(), end='', flush=True)";

/// The agent in a sandbox, and the test's end of its connection.
fn agent(options: &[&str]) -> (TestSandbox, BufReader<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let sandbox = sandbox(options, &["python3", "-c", AGENT, &port].map(str::to_owned));
    let mut upstream = BufReader::new(listener.accept().unwrap().0);
    let mut line = String::new();
    upstream.read_line(&mut line).unwrap();
    assert_eq!(line, "question\n");
    (sandbox, upstream)
}

#[test]
fn whoever_waits_for_an_answer_with_a_time_out_stays_awake_unless_told_otherwise() {
    let (mut sandbox, mut upstream) = agent(&[]);
    let kept = kept_by(&sandbox, "outbound");
    assert_eq!(kept["process"], "python3", "{kept}");
    sleep(LONG);
    assert_eq!(hibernations(&sandbox), 0);
    upstream.get_mut().write_all(b"ok\n").unwrap();
    sandbox.ends_well();
    let (mut sandbox, mut upstream) = agent(&["--outbound", "sleep"]);
    sandbox.becomes("hibernated");
    upstream.get_mut().write_all(b"ok\n").unwrap();
    sandbox.ends_well();
}

#[test]
fn what_may_be_a_request_keeps_it_awake_for_no_longer_than_is_said() {
    let mut sandbox = sandbox(&["--awake-at-most", "3s"], &python("ticking"));
    let port = port_of(sandbox.front.as_mut().unwrap());
    // Idle from the start, it sleeps: its tick is a habit then.
    sandbox.becomes("hibernated");
    let mut client = Client::new(port);
    client.ask("/wait");
    let kept = kept_by(&sandbox, "perhaps-request");
    assert_eq!((&kept["peer"], &kept["port"]), (&"127.0.0.1".into(), &port.into()), "{kept}");
    assert_eq!(kept["peer_port"], client.0.get_ref().local_addr().unwrap().port(), "{kept}");
    sandbox.becomes("hibernated");
    assert_eq!(why(&sandbox)["kept_awake"]["given_up"], true, "{}", why(&sandbox));
    // Whoever comes next wakes it, and is told of.
    let mut other = Client::new(port);
    other.ask("/happen");
    other.hear();
    client.hear();
    let start = Instant::now();
    while why(&sandbox)["woken_by"]["process"] != "python3" {
        assert!(start.elapsed() < PATIENCE, "{}", why(&sandbox));
        sleep(Duration::from_millis(50));
    }
    let woken = why(&sandbox)["woken_by"].clone();
    assert_eq!(
        (&woken["cause"], &woken["request"], &woken["port"]),
        (&"request".into(), &"socket".into(), &port.into())
    );
    assert_eq!(woken["peer_port"], other.0.get_ref().local_addr().unwrap().port(), "{woken}");
    let words = sandbox.run(&["why", "s"]);
    let words = String::from_utf8_lossy(&words.stdout);
    assert!(words.contains("woken last by somebody who came from 127.0.0.1"), "{words}");
    sandbox.kill("KILL");
    sandbox.end();
}

#[test]
fn a_time_that_is_none_is_refused() {
    let sandbox = TestSandbox::new();
    for (option, value, words) in
        [("--awake-at-most", "15", "as 30s or 5m"), ("--outbound", "perhaps", "possible values")]
    {
        let output = sandbox.run(&["do", option, value, "--", "true"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{error}");
        assert!(error.contains(value) && error.contains(words), "{error}");
    }
}

#[test]
fn the_table_in_the_document_is_what_is_tried() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/hibernation.md");
    let text = std::fs::read_to_string(document).unwrap();
    let table = text.split("\n## Idle\n").nth(1).expect("there is a section").split("\n## ").next().unwrap();
    let lines = table.lines().filter(|line| line.starts_with("| ") && !line.contains("---"));
    let cells = lines.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let said: BTreeSet<(String, String, String)> = cells
        .filter(|cells| cells.len() == 5 && [AWAKE, SLEEPS].contains(&cells[3]))
        .map(|cells| (cells[1].to_owned(), cells[2].to_owned(), cells[3].to_owned()))
        .collect();
    let owned = |(server, asked, outcome): (&str, &str, &str)| (server.into(), asked.into(), outcome.into());
    let served = SERVERS
        .iter()
        .flat_map(|server| server.cases.iter().map(|(asked, outcome, _)| (server.name, *asked, *outcome)));
    let tried: BTreeSet<_> = served.chain(OTHERS.iter().copied()).map(owned).collect();
    assert_eq!(said, tried);
}
