//! Memory by container in a pod: limits, kills, figures.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use super::pods::{exec, pod, run};
use super::world::{World, status_of};

fn with_limit(first: &World, mib: u64, script: &str) -> World {
    let mut world = first.further(script);
    world.set("/linux/resources", json!({"memory": {"limit": mib << 20}}));
    world
}

#[test]
fn a_container_without_memory_is_the_only_one_that_pays() {
    pod(|first| {
        let large = with_limit(
            first,
            128,
            "dd if=/dev/zero of=/dev/null bs=64M count=1 && echo done; exec sleep 1000",
        );
        large.create().start();
        large.wait_output("done");
        let small = with_limit(first, 24, "exec dd if=/dev/zero of=/dev/null bs=64M count=1");
        small.create();
        let mut events = small.command(&["events", &small.id]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains("\"to\""));
        let mut others = large.command(&["events", &large.id]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = small.pid();
        small.start();
        assert_eq!(status_of(pid), libc::SIGKILL);
        assert!(lines.any(|line| line.unwrap().contains("\"oom\"")));
        others.kill().unwrap();
        let said = others.wait_with_output().unwrap().stdout;
        assert!(!String::from_utf8_lossy(&said).contains("oom"));
        events.wait().unwrap();
        for world in [&large, first as &World] {
            assert_eq!(exec(world, "echo lives"), "lives\n");
        }
        small.delete();
    });
}

#[test]
fn a_containers_limit_is_seen_and_changed() {
    pod(|first| {
        let mut one = with_limit(first, 32, "echo ready; exec sleep 1000");
        one.mount(json!({"destination": "/sys", "type": "sysfs", "source": "sysfs"}));
        one.mount(
            json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro"]}),
        );
        one.create().start();
        one.wait_output("ready");
        let max =
            "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; true";
        assert!(exec(&one, max).contains(&(32 << 20).to_string()));
        one.ok(&["update", "--memory", "64M", &one.id]);
        assert!(exec(&one, max).contains(&(64 << 20).to_string()));
        assert_eq!(
            exec(&one, "dd if=/dev/zero of=/dev/null bs=40M count=1 2>/dev/null && echo fits"),
            "fits\n"
        );
    });
}

#[test]
fn a_containers_figures_are_its_own() {
    pod(|first| {
        let hold = "dd if=/dev/zero of=/dev/shm/held bs=1M count=30 2>/dev/null; echo ready; exec sleep 1000";
        let (holder, idle) = (run(first, hold), run(first, "echo ready; exec sleep 1000"));
        holder.wait_output("ready");
        idle.wait_output("ready");
        let used = |world: &World| {
            let line: Value = serde_json::from_str(&world.ok(&["events", "--stats", &world.id])).unwrap();
            (
                line["data"]["memory"]["usage"]["usage"].as_u64().unwrap(),
                line["data"]["pids"]["current"].clone(),
            )
        };
        assert!((30 << 20..40 << 20).contains(&used(&holder).0), "{:?}", used(&holder));
        assert!(used(&idle).0 < 8 << 20, "{:?}", used(&idle));
        assert_eq!(used(&idle).1, 1);
        holder.ok(&["hibernate", &holder.id]);
        assert!(used(&holder).0 < 8 << 20, "{:?}", used(&holder));
        assert_eq!(first.sandbox_state(), "hibernated");
    });
}
