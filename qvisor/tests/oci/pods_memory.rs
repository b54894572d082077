//! Memory and descriptors by container in a pod: limits, kills, figures.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::pods::{exec, pod, run};
use super::world::{World, dormouse, status_of};

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

/// The program that takes sockets, for a root file system without libraries.
fn hoard() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../test/guest/hoard.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hoard-{}", std::process::id()));
    let status = Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(source).status();
    assert!(status.expect("a C compiler runs").success());
    program
}

/// How many sockets are told of.
fn count(said: &str) -> u64 {
    said.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_container_that_hoards_sockets_leaves_some_to_the_others_and_to_exec() {
    const OPEN_FILES: u64 = 4096;
    dormouse(|first| {
        first.open_files = Some(OPEN_FILES);
        first.begin_pod().create().start();
        let program = hoard();
        let further = |script: &str| {
            let world = first.further(script);
            fs::copy(&program, world.rootfs().join("bin/hoard")).unwrap();
            world.create().start();
            world
        };
        let neighbour = further("exec sleep 1000");
        let hoarder = further("exec hoard");
        hoarder.wait_output("the next one is refused");
        // A quarter of them is the VMM's and its reserve.
        let most = OPEN_FILES / 2;
        let has = count(&hoarder.read("out"));
        assert!((most / 2..most).contains(&has), "{has} sockets of one that hoards");
        for world in [&neighbour, &hoarder, first as &World] {
            assert_eq!(exec(world, "echo lives"), "lives\n");
        }
        assert_eq!(exec(&neighbour, "hoard 700"), "700 sockets\n");
        let late = further("hoard 700; exec sleep 1000");
        late.wait_output("700 sockets\n");
        // A second one that hoards gets half of the rest.
        let second = count(&exec(&neighbour, "hoard 100000"));
        assert!((has / 3..has).contains(&second), "{second} sockets of a second one");
        // What it had is free again.
        hoarder.ok(&["kill", &hoarder.id, "KILL"]);
        hoarder.wait_status("stopped");
        hoarder.delete();
        let again = count(&exec(&neighbour, "hoard 100000"));
        assert!((most / 2..most).contains(&again), "{again} sockets of another one");
        fs::remove_file(program).unwrap();
    });
}

#[test]
fn containers_have_the_pages_of_one_file_in_common_and_what_they_write_alone() {
    pod(|first| {
        let (image, copy) = (first.dir.join("image"), first.dir.join("copy"));
        for place in [&image, &copy] {
            fs::create_dir(place).unwrap();
            fs::copy("/bin/busybox", place.join("busybox")).unwrap();
        }
        let begin = |image: &Path| {
            let mut world = first.further("/image/busybox echo ready; exec /image/busybox sleep 1000");
            let options = json!(["rbind", "ro"]);
            world
                .mount(json!({"destination": "/image", "type": "bind", "source": image, "options": options}));
            world.add_guest("private_pages").create().start();
            world.wait_output("ready");
            world
        };
        let used = |world: &World| {
            let line: Value = serde_json::from_str(&world.ok(&["events", "--stats", &world.id])).unwrap();
            line["data"]["memory"]["usage"]["usage"].as_u64().unwrap()
        };
        // The shell that begins is each root's own; so is the other file, though it holds the same.
        let (one, other, apart) = (begin(&image), begin(&image), begin(&copy));
        let (first_has, other_has, apart_has) = (used(&one), used(&other), used(&apart));
        assert!(other_has < first_has - (256 << 10), "{other_has} of {first_has}");
        assert!(apart_has > other_has + (256 << 10), "{apart_has} of {other_has}");

        let sums = |world: &World| exec(world, "private_pages /image/busybox");
        let read = sums(&one);
        let (before, after) = read.trim().split_once(' ').expect("two sums");
        assert_ne!(before, after);
        for world in [&other, &apart, &one] {
            assert_eq!(sums(world), read);
        }
        other.ok(&["hibernate", &other.id]);
        assert_eq!(sums(&other), read);
        one.ok(&["delete", "--force", &one.id]);
        assert_eq!(sums(&other), read);
    });
}
