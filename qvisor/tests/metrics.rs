//! `dormouse metrics`: what scrapers see of sandboxes, which sleep on.

mod sleeper;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use sleeper::{PATIENCE, TestSandbox, next_line};

const PROGRAM: [&str; 3] = ["sh", "-c", "echo ready; while read line; do :; done"];

/// The value of a sample by its name and labels; all pages are of sandbox `s`.
fn value(page: &str, sample: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

/// A server of metrics, which ends with the value.
struct Server(Child, String);

impl Server {
    fn new(sandbox: &TestSandbox) -> Self {
        let words = ["metrics", "--listen", "127.0.0.1:0"];
        let mut server = sandbox.command(&words).stdout(Stdio::piped()).spawn().unwrap();
        let line = next_line(&mut server);
        let address =
            line.strip_prefix("metrics at http://").and_then(|rest| rest.strip_suffix("/metrics\n"));
        let address = address.unwrap_or_else(|| panic!("it says {line:?}")).to_owned();
        Self(server, address)
    }

    fn ask(&self, request: &str) -> String {
        let mut connection = TcpStream::connect(&self.1).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_sleeper_is_measured_and_sleeps_on() {
    let mut sandbox = TestSandbox::new();
    sandbox.start(&[], &[], &PROGRAM);
    sandbox.sleeps();
    let page = |sandbox: &TestSandbox| String::from_utf8(sandbox.run(&["metrics"]).stdout).unwrap();
    let asleep = page(&sandbox);
    for (sample, expected) in [
        (r#"dormouse_sandboxes{status="running",state="hibernated"}"#, 1.0),
        (r#"dormouse_sandbox_up{id="s"}"#, 1.0),
        (r#"dormouse_sandbox_state{id="s",state="hibernated"}"#, 1.0),
        (r#"dormouse_sandbox_state{id="s",state="warm"}"#, 0.0),
        (r#"dormouse_sandbox_hibernations_total{id="s",cause="order"}"#, 1.0),
        (r#"dormouse_sandbox_wake_seconds_count{id="s"}"#, 0.0),
        (r#"dormouse_container_tasks{id="s"}"#, 1.0),
    ] {
        assert_eq!(value(&asleep, sample), Some(expected), "{sample} in\n{asleep}");
    }
    assert!(value(&asleep, r#"dormouse_sandbox_swapped_bytes{id="s"}"#).unwrap() > 0.0);
    let time = |page: &str, what: &str| value(page, &format!("dormouse_sandbox_{what}{{id=\"s\"}}")).unwrap();
    assert!(time(&asleep, "unchanged_seconds") >= 0.2, "{asleep}");
    assert_eq!(sandbox.status(), "hibernated");
    sandbox.says_line();
    sandbox.wakes();
    let awake = page(&sandbox);
    for (sample, expected) in [
        (r#"dormouse_sandbox_state{id="s",state="hibernated"}"#, 0.0),
        (r#"dormouse_sandbox_wakes_total{id="s",cause="request",request="stdin"}"#, 1.0),
        (r#"dormouse_sandbox_wake_seconds_bucket{id="s",le="+Inf"}"#, 1.0),
    ] {
        assert_eq!(value(&awake, sample), Some(expected), "{sample} in\n{awake}");
    }
    assert!(time(&awake, "asleep_seconds_total") >= time(&asleep, "asleep_seconds_total"));
    assert!(time(&awake, "wake_seconds_sum") > 0.0);
    sandbox.kill("KILL");
    sandbox.end();
    let gone = page(&sandbox);
    assert!(!gone.contains("id=\"s\"") && gone.contains("dormouse_build_info"), "{gone}");
}

#[test]
fn scrapers_are_answered_while_others_misbehave() {
    let mut sandbox = TestSandbox::new();
    sandbox.start(&[], &[], &PROGRAM);
    sandbox.sleeps();
    let server = Server::new(&sandbox);
    // Some say nothing, one never ends its request.
    let idle: Vec<_> = (0..4).map(|_| TcpStream::connect(&server.1).unwrap()).collect();
    let mut endless = TcpStream::connect(&server.1).unwrap();
    endless.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n").unwrap();
    let answer = server.ask("GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", page.len())), "{head}");
    assert_eq!(value(page, r#"dormouse_sandbox_state{id="s",state="hibernated"}"#), Some(1.0));
    let answer = server.ask("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(server.ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(server.ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                (0..5).for_each(|_| assert!(server.ask("GET /metrics HTTP/1.1\r\n\r\n").contains(" 200 ")))
            });
        }
    });
    assert_eq!(sandbox.status(), "hibernated");
    drop((idle, endless));
    sandbox.kill("KILL");
    sandbox.end();
}

#[test]
fn a_text_file_is_replaced_and_bad_options_are_told() {
    let sandbox = TestSandbox::new();
    let file = sandbox.dir.join("dormouse.prom");
    let name = file.to_str().unwrap();
    assert!(sandbox.run(&["metrics", "--textfile", name]).status.success());
    assert!(fs::read_to_string(&file).unwrap().contains("dormouse_build_info"));
    let mut writer = sandbox.command(&["metrics", "--textfile", name, "--interval", "20ms"]).spawn().unwrap();
    for _ in 0..3 {
        fs::remove_file(&file).unwrap();
        let start = Instant::now();
        while !file.exists() {
            assert!(start.elapsed() < PATIENCE, "it does not come again");
            sleep(Duration::from_millis(5));
        }
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    for (words, why) in [
        (&["--textfile", "x"][..], ".prom"),
        (&["--textfile", "/nowhere/x.prom"], "cannot write /nowhere/x.prom"),
        (&["--listen", "256.0.0.1:1"], "cannot listen at 256.0.0.1:1"),
        (&["--textfile", "x.prom", "--interval", "0s"], "--interval"),
        (&["--interval", "5s"], "--textfile"),
    ] {
        let output = sandbox.run(&[&["metrics"], words].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(why), "{words:?}: {error}");
    }
}
