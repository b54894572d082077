//! Probes of sandboxes that sleep.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::world::{PATIENCE, World, dormouse, wait_for};

fn stats(world: &World) -> Value {
    serde_json::from_str(&world.ok(&["stats", "--json", &world.id])).unwrap()
}

/// Runs a command in the container; result: its exit code and output.
fn exec(world: &World, options: &[&str], script: &str) -> (Option<i32>, String) {
    let output = world.run(&[&["exec"], options, &[&world.id, "sh", "-c", script]].concat());
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// A container that waits for signals, and is hibernated.
fn asleep<'a>(world: &'a mut World, annotations: &Value) -> &'a World {
    world.set("/annotations", annotations.clone());
    world.script("echo up; trap : TERM; while :; do sleep 1000 & wait; done").create();
    world.start().wait_output("up");
    world.ok(&["hibernate", &world.id]);
    world
}

#[test]
fn a_probe_by_a_command_wakes_a_sleeper_unless_told_otherwise() {
    dormouse(|world| {
        let world = asleep(world, &json!({}));
        assert_eq!(exec(world, &["--probe"], "echo here; exit 3"), (Some(3), "here\n".into()));
        assert_eq!(
            (stats(world)["wakes"].as_u64(), stats(world)["answered_probes"].as_u64()),
            (Some(1), Some(0))
        );
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn a_sleeper_may_be_alive_for_a_probe_by_a_command() {
    dormouse(|world| {
        let world = asleep(world, &json!({"dev.dormouse.exec-probe": "asleep-is-alive"}));
        for script in ["echo here; exit 3", "kill -9 1"] {
            assert_eq!(exec(world, &["--probe"], script), (Some(0), String::new()));
        }
        // As a shim asks: the process that stands for it on the host ends as the probe did.
        let pid_file = world.dir.join("probe");
        let options = ["--detach", "--probe", "--pid-file", pid_file.to_str().unwrap()];
        assert_eq!(exec(world, &options, "exit 3"), (Some(0), String::new()));
        let pid: i32 = world.read("probe").trim().parse().unwrap();
        let mut status = -1;
        // SAFETY: `status` is live for the call.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!((ended, status), (pid, 0), "an orphan of this process's");
        world.wait_state("hibernated");
        assert_eq!(
            (stats(world)["wakes"].as_u64(), stats(world)["answered_probes"].as_u64()),
            (Some(0), Some(3))
        );
        // One that does not say so wakes it, and one that comes then runs.
        assert_eq!(exec(world, &[], "echo here; exit 3"), (Some(3), "here\n".into()));
        world.wait_awake();
        assert_eq!(exec(world, &["--probe"], "echo here; exit 4"), (Some(4), "here\n".into()));
        assert_eq!(
            (stats(world)["wakes"].as_u64(), stats(world)["answered_probes"].as_u64()),
            (Some(1), Some(3))
        );
        world.ok(&["hibernate", &world.id]);
        world.ok(&["pause", &world.id]);
        world.refused(&["exec", "--probe", &world.id, "true"], &["paused container"]);
        world.ok(&["delete", "--force", &world.id]);
    });
}

/// Whoever comes in while the container falls asleep or wakes comes in: nobody has paused it.
#[test]
fn probes_that_meet_sleeps_and_wakes_are_never_refused() {
    const ROUNDS: usize = 25;
    dormouse(|world| {
        let world: &World = asleep(world, &json!({}));
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    // One that comes upon a process that has just come in may fail.
                    world.run(&["hibernate", &world.id]);
                }
            });
            let probe = |options: &'static [&str]| {
                (0..ROUNDS).map(|_| exec(world, options, "exit 3")).collect::<Vec<_>>()
            };
            let probes = [&["--probe"][..], &[], &[]].map(|options| scope.spawn(move || probe(options)));
            let answers = probes.map(|probe| probe.join().unwrap());
            is_done.store(true, Ordering::Relaxed);
            let refused: Vec<_> =
                answers.iter().flatten().filter(|answer| **answer != (Some(3), String::new())).collect();
            assert!(refused.is_empty(), "{refused:?}");
        });
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn a_probe_of_a_container_in_a_pod_finds_the_pod_asleep() {
    dormouse(|world| {
        world.begin_pod();
        world.config["annotations"]["dev.dormouse.exec-probe"] = json!("asleep-is-alive");
        world.create().start();
        let further = world.further("echo up; trap : TERM; while :; do sleep 1000 & wait; done");
        further.create().start().wait_output("up");
        let ended = world.further("echo up");
        ended.create().start().wait_output("up");
        ended.wait_status("stopped");
        world.ok(&["hibernate", &world.id]);
        assert_eq!(exec(&further, &["--probe"], "exit 3"), (Some(0), String::new()));
        ended.refused(&["exec", "--probe", &ended.id, "true"], &["stopped"]);
        assert_eq!(stats(world)["answered_probes"], 1);
        assert_eq!(exec(&further, &[], "exit 3"), (Some(3), String::new()));
        for container in [&ended, &further, &*world] {
            container.ok(&["delete", "--force", &container.id]);
        }
    });
}

#[test]
fn who_is_ignored_by_annotation_does_not_keep_it_awake() {
    dormouse(|world| {
        let port = testdir::free_port();
        let namespaces = world.config["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "network");
        let annotations =
            json!({"dev.dormouse.idle-timeout": "1h", "dev.dormouse.idle-ignores": "127.0.0.0/8"});
        world.set("/annotations", annotations);
        world.script(&format!("echo ready; exec busybox nc -ll -p {port} -e cat")).create();
        world.start().wait_output("ready");
        wait_for(
            || TcpStream::connect(("127.0.0.1", port)).is_ok(),
            || format!("nobody listens: {}", world.read("err")),
        );
        world.ok(&["hibernate", &world.id]);
        for round in 1..4 {
            let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.write_all(b"text").unwrap();
            let mut answer = [0; 4];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"text");
            drop(client);
            wait_for(
                || stats(world)["hibernations"] == round + 1,
                || format!("it does not sleep again: {}", stats(world)),
            );
            assert_eq!(stats(world)["wakes"], round);
        }
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn a_value_that_is_none_is_refused_in_words() {
    dormouse(|world| {
        for (name, value, why) in [
            ("exec-probe", "on", "neither wake nor asleep-is-alive"),
            ("idle-ignores", "10.0.0.1/33", "no list of addresses"),
            ("timers", "wake:100ms", "at least 1s and at most 24h"),
        ] {
            let name = format!("dev.dormouse.{name}");
            world.script("true").set("/annotations", json!({&name: value})).write();
            world.refused(&world.with_bundle("create", &[]), &[&name, &format!("{value:?}"), why]);
        }
        assert!(!Path::new(&world.state_root().join(&world.id)).exists());
    });
}
