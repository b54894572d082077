//! Hibernation of a container by signals to its leash, and its state as others see it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::Value;

use super::world::{PATIENCE, World, dormouse, is_stopped, signal, wait_for};

/// A script that never rests for long, and shows by its output that it runs.
const BUSY: &str = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.003; done";

/// Reads a container's events.
struct Events {
    command: Child,
    lines: Receiver<String>,
}

impl Events {
    fn new(world: &World) -> Self {
        let mut command = world.command(&["events", &world.id]).stdout(Stdio::piped()).spawn().unwrap();
        let reader = BufReader::new(command.stdout.take().unwrap()).lines();
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || reader.map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        Self { command, lines }
    }

    fn next(&mut self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("an event");
        serde_json::from_str(&line).unwrap()
    }

    /// The next one has these members, and no others that say what happened.
    fn expect(&mut self, members: &[(&str, &str)]) -> Value {
        let event = self.next();
        let told = ["from", "to", "cause", "request"].iter().filter_map(|name| {
            let value = event[*name].as_str()?;
            Some((*name, value))
        });
        assert_eq!(told.collect::<Vec<_>>(), members, "{event}");
        assert!(event["time_us"].as_u64().unwrap() > 1_600_000_000_000_000, "{event}");
        event
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

#[test]
fn every_way_to_say_it_is_told() {
    dormouse(|world| {
        world.script("trap 'echo usr1' USR1; echo ready; while :; do sleep 1; done").create();
        world.start();
        world.wait_output("ready");
        let mut events = Events::new(world);
        let id = world.id.clone();
        events.expect(&[("to", "warm")]);
        signal(world.pid(), libc::SIGSTOP);
        world.wait_state("hibernated");
        assert_eq!(world.status(), "running", "for others it runs");
        let down = events.expect(&[("from", "warm"), ("to", "hibernated"), ("cause", "signal")]);
        assert!(down["hibernated"]["pages"].as_u64().unwrap() > 0, "{down}");
        world.refused(&["hibernate", &id], &["it is hibernated already"]);
        signal(world.pid(), libc::SIGCONT);
        let up = events.expect(&[("from", "hibernated"), ("to", "woken-up"), ("cause", "signal")]);
        assert!(up["woken"]["total_us"].as_u64().unwrap() > 0, "{up}");
        world.wait_awake();
        world.ok(&["kill", &id, "STOP"]);
        events.expect(&[("from", "woken-up"), ("to", "hibernated"), ("cause", "signal")]);
        world.wait_state("hibernated");
        world.ok(&["kill", &id, "CONT"]);
        events.expect(&[("from", "hibernated"), ("to", "woken-up"), ("cause", "signal")]);
        world.wait_awake();
        world.ok(&["hibernate", &id]);
        assert!(is_stopped(world.pid()), "whoever is told finds the leash stopped");
        events.expect(&[("from", "woken-up"), ("to", "hibernated"), ("cause", "order")]);
        world.ok(&["wake", &id]);
        assert!(!is_stopped(world.pid()));
        events.expect(&[("from", "hibernated"), ("to", "woken-up"), ("cause", "order")]);
        world.ok(&["hibernate", &id]);
        events.expect(&[("from", "woken-up"), ("to", "hibernated"), ("cause", "order")]);
        world.ok(&["kill", &id, "USR1"]);
        events.expect(&[
            ("from", "hibernated"),
            ("to", "hibernate-running"),
            ("cause", "request"),
            ("request", "signal"),
        ]);
        world.wait_output("usr1");
        assert!(!is_stopped(world.pid()));
        events.expect(&[("from", "hibernate-running"), ("to", "woken-up")]);
        world.ok(&["kill", &id, "KILL"]);
        let end = events.lines.recv_timeout(PATIENCE);
        assert_eq!(end, Err(RecvTimeoutError::Disconnected), "they end with the container");
        world.wait_status("stopped");
        world.delete();
    });
}

#[test]
fn a_client_wakes_it_and_the_leash_goes_on() {
    dormouse(|world| {
        let port = testdir::free_port();
        let namespaces = world.config["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "network");
        world.script(&format!("echo ready; exec busybox nc -ll -p {port} -e cat")).create();
        world.start();
        world.wait_output("ready");
        let mut client = None;
        wait_for(
            || TcpStream::connect(("127.0.0.1", port)).is_ok(),
            || format!("nobody listens: {}", world.read("err")),
        );
        for round in 0..10 {
            signal(world.pid(), libc::SIGSTOP);
            world.wait_state("hibernated");
            let new = || TcpStream::connect(("127.0.0.1", port)).unwrap();
            // By a connection, and by data on one that is open.
            let client = if round % 2 == 0 { client.insert(new()) } else { client.get_or_insert_with(new) };
            client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            client.write_all(b"text").unwrap();
            let mut answer = [0; 4];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"text");
            world.wait_awake();
        }
        // A stop right after a wake counts.
        signal(world.pid(), libc::SIGSTOP);
        world.wait_state("hibernated");
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        wait_for(|| !is_stopped(world.pid()), || "it does not wake".into());
        signal(world.pid(), libc::SIGSTOP);
        world.wait_state("hibernated");
        std::thread::sleep(Duration::from_millis(300));
        world.wait_state("hibernated");
        world.ok(&["delete", "--force", &world.id]);
    });
}

/// Numbers that look random and are the same each time.
fn dice(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |sides| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % sides
    }
}

#[test]
fn of_many_signals_the_last_counts() {
    dormouse(|world| {
        world.script(BUSY).create().start();
        world.wait_output("3\n");
        let (pid, id) = (world.pid(), world.id.clone());
        let mut roll = dice(7);
        for round in 0..10 {
            let mut down = false;
            for _ in 0..10 {
                down = roll(2) == 0;
                // Some requests come while the one before is being carried out, some at once, some later.
                match roll(4) {
                    0 => drop(world.ok(&["kill", &id, if down { "STOP" } else { "CONT" }])),
                    _ => signal(pid, if down { libc::SIGSTOP } else { libc::SIGCONT }),
                }
                std::thread::sleep(Duration::from_micros(roll(4) * roll(20_000)));
            }
            if down {
                world.wait_state("hibernated");
            } else {
                world.wait_awake();
            }
            std::thread::sleep(Duration::from_millis(100));
            let state = world.sandbox_state();
            assert_eq!(is_stopped(pid), down, "round {round}: {state}");
            assert_eq!(state == "hibernated", down, "round {round}: {state}");
        }
        signal(pid, libc::SIGCONT);
        world.wait_awake();
        let said = world.read("out").lines().count();
        wait_for(|| world.read("out").lines().count() > said, || "it does not go on".into());
        // It has lost nothing, and done nothing twice.
        let out = world.read("out");
        for (at, line) in out.lines().enumerate().take(said) {
            assert_eq!(line, (at + 1).to_string());
        }
        world.ok(&["delete", "--force", &id]);
    });
}

#[test]
fn before_its_start_it_is_paused() {
    dormouse(|world| {
        world.script("echo ready; sleep 1000").create();
        signal(world.pid(), libc::SIGSTOP);
        world.wait_status("paused");
        world.refused(&["hibernate", &world.id], &["its first process does not run yet"]);
        signal(world.pid(), libc::SIGCONT);
        world.wait_status("created");
        world.start();
        world.wait_output("ready");
        world.ok(&["hibernate", &world.id]);
        world.wait_state("hibernated");
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn a_stop_that_fails_leaves_it_warm_and_says_why() {
    dormouse(|world| {
        world.env.push(("DORMOUSE_SWAP_FAULT", "write"));
        world.script(BUSY).create().start();
        world.wait_output("3\n");
        let mut events = Events::new(world);
        events.next();
        for _ in 0..3 {
            signal(world.pid(), libc::SIGSTOP);
            let event = events.expect(&[("from", "warm"), ("to", "warm"), ("cause", "signal")]);
            let why = event["error"].as_str().unwrap();
            assert!(why.contains("cannot write pages to the swap file: Input/output error"), "{event}");
            world.wait_awake();
            assert_eq!(world.state()["hibernateError"], why);
            let said = world.read("out").lines().count();
            wait_for(|| world.read("out").lines().count() > said, || "it does not go on".into());
        }
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn programs_are_the_containers_own_copies_which_hibernate() {
    dormouse(|world| {
        let volume = world.dir.join("volume");
        std::fs::create_dir(&volume).unwrap();
        let program = volume.join("busybox");
        std::fs::copy("/bin/busybox", &program).unwrap();
        let options = serde_json::json!(["bind"]);
        world.mount(
            serde_json::json!({"destination": "/v", "type": "bind", "source": volume, "options": options}),
        );
        std::os::unix::fs::symlink("busybox", volume.join("sleep")).unwrap();
        world.script("exec /v/sleep 1000").create();
        world.start().wait_status("running");
        let banner = || world.ok(&["exec", &world.id, "/v/busybox"]);
        assert!(banner().starts_with("BusyBox v"), "{}", banner());
        world.ok(&["hibernate", &world.id]);
        let stats: Value = serde_json::from_str(&world.ok(&["stats", "--json", &world.id])).unwrap();
        let number = |name: &str| stats.pointer(name).and_then(Value::as_u64).unwrap();
        assert!(number("/home/file_pages") > 20, "{stats}");
        assert_eq!(number("/memory/file_mapped_bytes"), 0, "{stats}");
        // What the host writes in place shows in the next process, though another one keeps the old copies mapped.
        let mut bytes = std::fs::read(&program).unwrap();
        let places: Vec<_> =
            (0..bytes.len() - 9).filter(|at| bytes[*at..].starts_with(b"BusyBox v")).collect();
        places.iter().for_each(|at| bytes[at + 5] = b'u');
        let mut file = std::fs::File::options().write(true).open(&program).unwrap();
        file.write_all(&bytes).unwrap();
        drop(file);
        assert!(banner().starts_with("BusyBux v"), "{}", banner());
        world.ok(&["delete", "--force", &world.id]);
    });
}
