//! `update`: limits change while the container runs.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::world::{World, both, dormouse, wait_for};

/// A file of a container's group of version 1, or 2.
fn group(world: &World, controller: &str, v1: &str, v2: &str) -> String {
    let mount = Path::new("/sys/fs/cgroup");
    let (dir, file) = match mount.join(controller).join("cgroup.procs").exists() {
        true => (mount.join(controller), v1),
        false => (mount.to_owned(), v2),
    };
    let file = dir.join(&world.id).join(file);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}")).trim().to_owned()
}

fn begin(world: &mut World, resources: Value, script: &str) {
    world.set("/linux/cgroupsPath", json!(format!("/{}", world.id))).set("/linux/resources", resources);
    world.script(script).create().start();
}

#[test]
fn groups_and_kernel_follow() {
    both(|world| {
        begin(
            world,
            json!({"memory": {"limit": 64 << 20}, "pids": {"limit": 20}, "cpu": {"shares": 512}}),
            "sleep 1000",
        );
        world.ok(&["update", "--memory", "96M", "--pids-limit", "30", "--cpu-share", "700", &world.id]);
        let memory: u64 = group(world, "memory", "memory.limit_in_bytes", "memory.max").parse().unwrap();
        let pids: u64 = group(world, "pids", "pids.max", "pids.max").parse().unwrap();
        if world.is_dormouse() {
            assert!(memory > (96 << 20) + (64 << 20) && pids > 30, "{memory} {pids}");
        } else {
            assert_eq!((memory, pids), (96 << 20, 30));
        }
        assert!(["700", "27"].contains(&&*group(world, "cpu", "cpu.shares", "cpu.weight")));
        world.ok(&["update", "--cpu-period", "50000", "--cpu-quota", "20000", &world.id]);
        let quota = group(world, "cpu", "cpu.cfs_quota_us", "cpu.max");
        assert!(quota == "20000" || quota == "20000 50000", "{quota}");
        // The others stay.
        assert_eq!(group(world, "pids", "pids.max", "pids.max").parse::<u64>().unwrap(), pids);
        let change = json!({"pids": {"limit": 40}, "memory": {"limit": 80 << 20}}).to_string();
        let mut update =
            world.command(&["update", "--resources", "-", &world.id]).stdin(Stdio::piped()).spawn().unwrap();
        update.stdin.take().unwrap().write_all(change.as_bytes()).unwrap();
        assert!(update.wait().unwrap().success());
        assert!(
            group(world, "memory", "memory.limit_in_bytes", "memory.max").parse::<u64>().unwrap() < memory
        );
        assert!(group(world, "pids", "pids.max", "pids.max").parse::<u64>().unwrap() > pids);
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn programs_see_it_at_once() {
    dormouse(|world| {
        begin(
            world,
            json!({"memory": {"limit": 64 << 20}, "pids": {"limit": 20}}),
            "while true; do head -1 /proc/meminfo; cat /sys/fs/cgroup/pids.max; sleep 0.05; done",
        );
        world.wait_output("65536 kB");
        world.ok(&["update", "--memory", "1G", "--pids-limit", "7", &world.id]);
        world.wait_output("1048576 kB");
        world.wait_output("\n7\n");
        world.ok(&["update", "--memory", "48M", "--pids-limit", "-1", &world.id]);
        world.wait_output("49152 kB");
        world.wait_output("\nmax\n");
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn memory_that_was_not_to_be_had_is() {
    both(|world| {
        world.mount(
            json!({"destination": "/big", "type": "tmpfs", "source": "tmpfs", "options": ["size=1g"]}),
        );
        let tries = "try() { dd if=/dev/zero of=/big/$1 bs=1M count=$2 2>/dev/null && echo $1 fits; }; \
                     while true; do test -e /go && try large 100 && exec sleep 1000; sleep 0.05; done";
        begin(world, json!({"memory": {"limit": 48 << 20, "swap": 48 << 20}}), tries);
        world.ok(&["update", "--memory", "400M", "--memory-swap", "400M", &world.id]);
        std::fs::write(world.rootfs().join("go"), "").unwrap();
        world.wait_output("large fits");
        // What is in use is not taken away.
        let output = world.run(&["update", "--memory", "32M", "--memory-swap", "32M", &world.id]);
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        if world.is_dormouse() || Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("busy") || said.contains("current usage"), "{said}");
        }
        if world.is_dormouse() {
            let limit = group(world, "memory", "memory.limit_in_bytes", "memory.max");
            assert!(limit.parse::<u64>().unwrap() > 400 << 20, "the old limit stays: {limit}");
        }
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn one_that_sleeps_is_not_woken() {
    dormouse(|world| {
        begin(world, json!({"memory": {"limit": 64 << 20}}), "sleep 1000");
        world.wait_state("warm");
        world.ok(&["hibernate", &world.id]);
        world.ok(&["update", "--memory", "1G", &world.id]);
        assert_eq!(world.sandbox_state(), "hibernated");
        world.ok(&["wake", &world.id]);
        wait_for(|| world.sandbox_state() == "woken-up", || world.sandbox_state());
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn little_memory_starts_what_fits() {
    both(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id)));
        // Docker's least.
        world.set("/linux/resources", json!({"memory": {"limit": 6 << 20}})).script("echo fits");
        assert_eq!(world.output(), "fits\n");
    });
}

#[test]
fn what_cannot_be_changed() {
    dormouse(|world| {
        begin(world, json!({}), "sleep 1000");
        world.refused(
            &["update", "--resources", "/no/such/file", &world.id],
            &["cannot change limits", "/no/such/file"],
        );
        world.refused(&["update", "--cpuset-cpus", "x", &world.id], &["cannot change limits", "cpus"]);
        world.refused(
            &["update", "--cpuset-cpus", "1000", &world.id],
            &["cannot change limits", "cpuset.cpus"],
        );
        world.refused(
            &["update", "--memory", "64M", "--memory-swap", "32M", &world.id],
            &["cannot change limits", "swap"],
        );
        std::fs::write(world.dir.join("bad"), "{\"memory\": 7}").unwrap();
        world.refused(
            &["update", "--resources", world.dir.join("bad").to_str().unwrap(), &world.id],
            &["cannot change limits"],
        );
        world.ok(&["update", "--memory", "64M", &world.id]);
        world.ok(&["delete", "--force", &world.id]);
    });
}
