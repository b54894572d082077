//! The gateway over HTTP, with functions that are tasks of the test.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use faas::backend::{Backend, BackendError};
use faas::config::{BackendKind, Config, FunctionConfig};
use faas::gateway::Gateway;
use faas::proxy;

/// For anything that is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
const FUNCTION_BYTES: u64 = 10;

/// Functions do what their commands say: `serve`, `fail` to start, never `listen`, or be `silent`, `rude`, or `slow`.
#[derive(Default)]
struct Tasks {
    starts: AtomicU64,
    /// The last container of each start, to be killed by the test.
    started: Mutex<Vec<Arc<TaskContainer>>>,
}

struct TaskContainer {
    is_awake: watch::Sender<bool>,
    has_ended: watch::Sender<bool>,
    server: Mutex<Option<JoinHandle<()>>>,
    was_asleep: AtomicBool,
}

impl TaskContainer {
    fn kill(&self) {
        if let Some(server) = self.server.lock().unwrap().take() {
            server.abort();
        }
        self.has_ended.send_replace(true);
    }
}

/// A backend that shares its tasks with its test.
struct Shared(Arc<Tasks>);

impl Backend for Shared {
    type Container = Arc<TaskContainer>;
    const CAN_SLEEP: bool = true;

    async fn start(&self, function: &FunctionConfig, _id: &str) -> Result<Self::Container, BackendError> {
        self.0.starts.fetch_add(1, Ordering::Relaxed);
        let kind = function.command[0].clone();
        if kind == "fail" {
            return Err(BackendError("the test does not want it".to_owned()));
        }
        let container = Arc::new(TaskContainer {
            is_awake: watch::Sender::new(true),
            has_ended: watch::Sender::new(false),
            server: Mutex::new(None),
            was_asleep: AtomicBool::new(false),
        });
        if kind != "listen" {
            let served = serve(kind, function.name.clone(), function.port, container.is_awake.subscribe());
            *container.server.lock().unwrap() = Some(tokio::spawn(served));
        }
        self.0.started.lock().unwrap().push(Arc::clone(&container));
        Ok(container)
    }

    async fn sleep(&self, container: &Self::Container) -> Result<(), BackendError> {
        container.is_awake.send_replace(false);
        container.was_asleep.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn wake(&self, container: &Self::Container) -> Result<(), BackendError> {
        container.is_awake.send_replace(true);
        Ok(())
    }

    async fn stop(&self, container: &Self::Container) {
        container.kill();
    }

    async fn ended(&self, container: &Self::Container) {
        container.has_ended.subscribe().wait_for(|ended| *ended).await.expect("the sender is alive");
    }

    fn memory_bytes(&self, container: &Self::Container) -> Option<u64> {
        Some(if *container.is_awake.borrow() { FUNCTION_BYTES } else { 1 })
    }
}

async fn serve(kind: String, name: String, port: u16, awake: watch::Receiver<bool>) {
    if kind == "slow" {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.expect("the port is free");
    loop {
        let (stream, _) = listener.accept().await.expect("connections can be accepted");
        tokio::spawn(converse(stream, kind.clone(), name.clone(), awake.clone()));
    }
}

/// Answers one request as an HTTP/1.0 server, once it is awake.
async fn converse(mut stream: TcpStream, kind: String, name: String, mut awake: watch::Receiver<bool>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    if awake.wait_for(|awake| *awake).await.is_err() {
        return;
    }
    let first = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    match kind.as_str() {
        "silent" => std::future::pending().await,
        "rude" => {}
        _ => {
            let answer = format!("HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n{name} was asked {first}");
            // The gateway may have gone away.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }
}

/// A gateway at work.
struct World {
    tasks: Arc<Tasks>,
    gateway: Arc<Gateway<Shared>>,
    address: SocketAddr,
}

impl World {
    /// With functions of these names and kinds.
    async fn new(budget_bytes: u64, functions: &[(&str, &str)]) -> Self {
        let mut found = Vec::new();
        for (name, kind) in functions {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let port = free.local_addr().unwrap().port();
            found.push(FunctionConfig { name: (*name).to_owned(), command: vec![(*kind).to_owned()], port });
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = Config {
            listen: address,
            backend: BackendKind::Dormouse,
            runtime: PathBuf::new(),
            runtime_args: Vec::new(),
            directory: PathBuf::new(),
            budget_bytes,
            concurrency: 2,
            requests_each: 3,
            start_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(1),
            root: PathBuf::from("/"),
            show: Vec::new(),
            annotations: std::collections::BTreeMap::new(),
            functions: found,
        };
        let tasks = Arc::new(Tasks::default());
        let gateway = Gateway::new(Shared(Arc::clone(&tasks)), config);
        tokio::spawn(proxy::serve(Arc::clone(&gateway), listener));
        tokio::spawn(Arc::clone(&gateway).tick());
        Self { tasks, gateway, address }
    }

    /// Sends these bytes to the gateway, and returns all that it answers until it closes the connection.
    async fn say(&self, bytes: &[u8]) -> String {
        let conversation = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            let mut answer = Vec::new();
            // A gateway may reset a connection that it has no use for.
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        };
        timeout(PATIENCE, conversation).await.expect("the gateway answers")
    }

    /// The status and the body of an answer.
    async fn get(&self, path: &str) -> (u16, String) {
        let answer =
            self.say(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?} has no head"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        // The chunks of a body whose length was not known are put together.
        let body = if head.contains("chunked") {
            body.lines().skip(1).step_by(2).collect()
        } else {
            body.to_owned()
        };
        (status.unwrap_or_else(|| panic!("{head:?} has no status")), body)
    }

    async fn figure(&self, name: &str) -> u64 {
        let (status, body) = self.get("/-/stats").await;
        assert_eq!(status, 200, "{body}");
        let value: Value = serde_json::from_str(&body).expect("the statistics are JSON");
        value[name].as_u64().unwrap_or_else(|| panic!("{name} is no number in {body}"))
    }

    async fn wait_for(&self, name: &str, figure: u64) {
        let reached = async {
            while self.figure(name).await != figure {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let is_there = timeout(PATIENCE, reached).await.is_ok();
        assert!(is_there, "{name} never becomes {figure}: {}", self.gateway.stats());
    }

    fn starts(&self) -> u64 {
        self.tasks.starts.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn requests_that_come_together_share_one_start() {
    let world = World::new(100, &[("a", "slow"), ("b", "serve")]).await;
    let answers = tokio::join!(world.get("/a/x?y=1"), world.get("/a"), world.get("/b/"));
    let (first, second, third) = answers;
    assert_eq!(first, (200, "a was asked GET /x?y=1 HTTP/1.1".to_owned()));
    assert_eq!(second, (200, "a was asked GET / HTTP/1.1".to_owned()));
    assert_eq!(third, (200, "b was asked GET / HTTP/1.1".to_owned()));
    assert_eq!(world.starts(), 2);
    assert_eq!(world.figure("cold_starts").await, 2);
}

#[tokio::test]
async fn beyond_the_budget_the_oldest_sleeps_until_it_is_asked() {
    let world = World::new(2 * FUNCTION_BYTES, &[("a", "serve"), ("b", "serve"), ("c", "serve")]).await;
    for name in ["a", "b", "c"] {
        assert_eq!(world.get(&format!("/{name}/")).await.0, 200);
    }
    world.wait_for("asleep", 1).await;
    let slept: Vec<_> = world
        .tasks
        .started
        .lock()
        .unwrap()
        .iter()
        .map(|one| one.was_asleep.load(Ordering::Relaxed))
        .collect();
    assert_eq!(slept, [true, false, false]);
    assert_eq!(world.get("/a/").await.0, 200);
    assert_eq!((world.figure("wakes").await, world.starts()), (1, 3));
    world.wait_for("asleep", 1).await;
    assert!(world.figure("awake_bytes").await <= 2 * FUNCTION_BYTES);
}

#[tokio::test]
async fn one_that_died_asleep_is_started_again() {
    let world = World::new(1, &[("a", "serve")]).await;
    assert_eq!(world.get("/a/").await.0, 200);
    world.wait_for("asleep", 1).await;
    let container = Arc::clone(&world.tasks.started.lock().unwrap()[0]);
    container.kill();
    assert_eq!(world.get("/a/").await.0, 200);
    assert_eq!((world.figure("deaths").await, world.starts()), (1, 2));
}

#[tokio::test]
async fn failures_are_one_sentence_with_a_status() {
    let functions = [("fails", "fail"), ("deaf", "listen"), ("silent", "silent"), ("rude", "rude")];
    let world = World::new(100, &functions).await;
    for (path, status, sentence) in [
        ("/fails/", 502, "the function fails cannot be started: the test does not want it\n"),
        ("/deaf/", 502, "the function deaf cannot be started: it does not listen after 1 s\n"),
        ("/silent/", 504, "the function silent gives no answer in 1 s\n"),
        (
            "/rude/",
            502,
            "the function rude gives no whole answer: connection closed before message completed\n",
        ),
        ("/unknown/", 404, "there is no such function\n"),
        ("/../etc/passwd", 404, "there is no such function\n"),
    ] {
        assert_eq!(world.get(path).await, (status, sentence.to_owned()), "{path}");
    }
}

#[tokio::test]
async fn too_many_requests_at_one_function_are_refused() {
    let world = World::new(100, &[("a", "silent")]).await;
    let all = tokio::join!(world.get("/a/"), world.get("/a/"), world.get("/a/"), world.get("/a/"));
    let statuses = [all.0.0, all.1.0, all.2.0, all.3.0];
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 504).count(), 3, "{statuses:?}");
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_keep_its_function_awake() {
    let world = World::new(1, &[("a", "silent")]).await;
    let mut client = TcpStream::connect(world.address).await.unwrap();
    client.write_all(b"GET /a/ HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    world.wait_for("awake", 1).await;
    drop(client);
    world.wait_for("asleep", 1).await;
}

#[tokio::test]
async fn hostile_bytes_harm_nobody() {
    let world = World::new(100, &[("a", "serve")]).await;
    for bytes in [
        &b"\0\xff\xfe garbage\r\n\r\n"[..],
        b"GET /a/ HTTP/9.9\r\n\r\n",
        b"GET /%00%ff/ HTTP/1.0\r\n\r\n",
        b"POST /a/ HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"OPTIONS * HTTP/1.0\r\n\r\n",
        b"CONNECT a:80 HTTP/1.0\r\n\r\n",
        &[b'A'; 1 << 20],
    ] {
        let answer = world.say(bytes).await;
        assert!(!answer.contains(" 200 OK"), "{answer:?}");
    }
    // The function may have answered before it is known that this is no chunk.
    world.say(b"POST /a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n").await;
    assert_eq!(world.get("/a/").await.0, 200);
}
