//! `/sys/fs/cgroup` inside: the container's limits and what it uses, as programs look for them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use super::pods::{exec, pod};
use super::world::{World, both, dormouse, status_of};

fn with_cgroup_mount(world: &mut World) -> &mut World {
    with_mount(world, "ro")
}

fn with_mount<'a>(world: &'a mut World, how: &str) -> &'a mut World {
    let mounts = world.config["mounts"].as_array_mut().unwrap();
    mounts.retain(|mount| mount["destination"] != "/sys/fs/cgroup");
    world.mount(json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
        "options": ["nosuid", "noexec", "nodev", "relatime", how]}))
}

fn limits() -> Value {
    json!({"memory": {"limit": 96 << 20, "reservation": 48 << 20}, "cpu": {"quota": 150_000, "period": 50_000,
        "shares": 512}, "pids": {"limit": 40}})
}

/// Bytes that programs may come to hold or give back beside what a test is about.
const SLACK: u64 = 256 << 10;

/// Files of the group, a line each.
const SHOW: &str =
    "cd /sys/fs/cgroup; for f in memory.max memory.low pids.max cpu.max; do echo $f $(cat $f); done";

#[test]
fn programs_see_the_limits_of_their_container() {
    dormouse(|world| {
        with_cgroup_mount(world).set("/linux/resources", limits());
        world.script(SHOW);
        let shown = "memory.max 100663296\nmemory.low 50331648\npids.max 40\ncpu.max 150000 50000\n";
        assert_eq!(world.output(), shown);
        // Half the usual shares is less than half the usual weight, by the kernel's own conversion or a line.
        world.script("cat /sys/fs/cgroup/cpu.weight");
        let weight: u64 = world.output().trim().parse().unwrap();
        assert!((15..100).contains(&weight), "{weight}");
        world.set("/linux/resources", json!({}));
        world.script(SHOW);
        assert_eq!(world.output(), "memory.max max\nmemory.low 0\npids.max max\ncpu.max max 100000\n");
    });
}

#[test]
fn what_is_used_is_counted() {
    dormouse(|world| {
        with_cgroup_mount(world).set("/linux/resources", limits());
        world.script(
            "cd /sys/fs/cgroup; a=$(cat memory.current); dd if=/dev/zero of=/dev/shm/x bs=1M count=20 2>/dev/null; \
             b=$(cat memory.current); f=$(free -k | grep Mem); rm /dev/shm/x; c=$(cat memory.current); \
             echo $a $b $c $(cat memory.peak) $f; cat cgroup.procs | head -1; cat pids.current; grep -c usage_usec cpu.stat",
        );
        let out = world.output();
        let words: Vec<&str> = out.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let (before, during, after, peak) = (number(0), number(1), number(2), number(3));
        // The shell itself may have given a few pages back between the two looks.
        assert!(during + SLACK >= before + (20 << 20) && during < before + (24 << 20), "{out}");
        assert!(after + (18 << 20) < during && peak >= during, "{out}");
        // `Mem: total used …` in KiB.
        assert_eq!((words[4], number(5)), ("Mem:", 96 << 10), "{out}");
        assert!(number(6) * 1024 + SLACK >= 20 << 20, "{out}");
        assert_eq!((words[11], words.last().copied()), ("1", Some("1")), "{out}");
    });
}

/// A shell takes memory in pieces of 1 MiB, and fills them, until it is killed. A single piece larger than the limit would
/// be refused.
const GROW: &str = "sh -c 'x=0123456789abcdef; while [ ${#x} -lt 1000000 ]; do x=$x$x; done; i=0; \
                    while [ $i -lt 400 ]; do eval v$i=$x; i=$((i+1)); done'; echo $?";

#[test]
fn what_takes_more_than_the_limit_is_killed() {
    both(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id)));
        world.set("/linux/resources", json!({"memory": {"limit": 96 << 20, "swap": 96 << 20}}));
        world.script(GROW);
        let (_, out, err) = world.run_container();
        assert_eq!(out, "137\n", "{:?} {err}", world.runtime);
    });
}

#[test]
fn what_reaches_a_limit_is_counted() {
    dormouse(|world| {
        with_cgroup_mount(world).set("/linux/resources", limits());
        world.script(&format!("{GROW}; grep ^oom_kill /sys/fs/cgroup/memory.events"));
        let (_, out, err) = world.run_container();
        assert_eq!(out, "137\noom_kill 1\n", "{err}");
        world.script(
            "cd /sys/fs/cgroup; sh -c 'i=0; while [ $i -lt 60 ]; do sleep 100 & i=$((i+1)); done' 2>/dev/null; cat pids.events",
        );
        let (_, out, err) = world.run_container();
        let refused: u64 =
            out.trim().strip_prefix("max ").unwrap_or_else(|| panic!("{out} {err}")).parse().unwrap();
        assert!(refused > 0, "{out} {err}");
    });
}

#[test]
fn what_is_killed_at_the_limit_is_an_event() {
    both(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id)));
        world.set("/linux/resources", json!({"memory": {"limit": 96 << 20, "swap": 96 << 20}}));
        world.script(&format!("{GROW}; while [ ! -e /end ]; do sleep 0.05; done"));
        world.create();
        let mut events = world.command(&["events", &world.id]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
        let is_oom = |line: String| {
            let line: Value = serde_json::from_str(&line).unwrap();
            line["type"] == "oom"
        };
        if world.is_dormouse() {
            assert!(!is_oom(lines.next().unwrap().unwrap()), "the first line says what it is now");
        } else {
            // runc says nothing before.
            std::thread::sleep(Duration::from_secs(1));
        }
        world.start();
        world.wait_output("137");
        assert!(lines.by_ref().any(|line| is_oom(line.unwrap())), "{:?}", world.runtime);
        fs::write(world.rootfs().join("end"), "").unwrap();
        world.wait_status("stopped");
        if world.is_dormouse() {
            lines.for_each(drop);
            assert!(events.wait().unwrap().success(), "it ends with the container");
        } else {
            events.kill().unwrap();
            events.wait().unwrap();
        }
        world.delete();
    });
}

#[test]
fn changed_limits_are_seen_at_once() {
    dormouse(|world| {
        with_cgroup_mount(world).set("/linux/resources", limits());
        world.script("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done").create().start();
        world.wait_output("ready");
        world.ok(&[
            "update",
            "--pids-limit",
            "33",
            "--cpu-quota",
            "20000",
            "--memory",
            "134217728",
            &world.id,
        ]);
        let shown = "memory.max 134217728\nmemory.low 50331648\npids.max 33\ncpu.max 20000 50000\n";
        assert_eq!(world.ok(&["exec", &world.id, "sh", "-c", SHOW]), shown);
        assert!(
            world.ok(&["exec", &world.id, "sh", "-c", "grep MemTotal /proc/meminfo"]).contains(" 131072 kB")
        );
        world.ok(&["kill", &world.id, "TERM"]);
        status_of(world.pid());
        world.wait_status("stopped");
        world.delete();
    });
}

#[test]
fn the_group_is_a_mount_that_agrees_with_proc() {
    dormouse(|world| {
        with_cgroup_mount(world);
        world.script(
            "cat /proc/self/cgroup; grep -c ' /sys/fs/cgroup ro,.* - cgroup2 cgroup ' /proc/self/mountinfo; \
             stat -f -c %t /sys/fs/cgroup; mkdir /sys/fs/cgroup/x 2>/dev/null || echo refused; \
             (echo 5 > /sys/fs/cgroup/pids.max) 2>/dev/null || echo refused",
        );
        assert_eq!(world.output(), "0::/\n1\n63677270\nrefused\nrefused\n");
    });
}

#[test]
fn without_a_mount_there_is_no_group() {
    both(|world| {
        let mounts = world.config["mounts"].as_array_mut().unwrap();
        mounts.retain(|mount| mount["destination"] != "/sys/fs/cgroup");
        world.script("ls /sys/fs/cgroup | wc -l; grep -c cgroup /proc/self/mountinfo");
        assert_eq!(world.run_container().1, "0\n0\n", "{:?}", world.runtime);
    });
}

#[test]
fn groups_are_made_where_the_mount_is_writable() {
    dormouse(|world| {
        with_mount(world, "rw").set("/linux/resources", limits());
        world.script(
            "cd /sys/fs/cgroup; mkdir a && echo 0 >a/cgroup.procs; cat /proc/self/cgroup; grep -c . a/cgroup.procs; \
             (echo 5 >pids.max) 2>/dev/null || echo refused; (echo +memory >cgroup.subtree_control) && cat a/memory.max; \
             cat pids.max a/pids.max 2>/dev/null; rmdir a 2>/dev/null || echo busy",
        );
        assert_eq!(world.output(), "0::/a\n2\nrefused\nmax\n40\nbusy\n");
    });
}

#[test]
fn containers_of_a_pod_have_groups_of_their_own() {
    pod(|first| {
        let further = || {
            let mut world = first.further("exec sleep 1000");
            with_mount(&mut world, "rw");
            world.create().start();
            world
        };
        let [one, two] = [further(), further()];
        exec(
            &one,
            "cd /sys/fs/cgroup && mkdir a && echo 1 >a/cgroup.procs && echo $$ >a/cgroup.procs && echo +memory >cgroup.subtree_control",
        );
        assert_eq!(
            exec(&one, "cat /proc/1/cgroup /sys/fs/cgroup/cgroup.stat"),
            "0::/a\nnr_descendants 1\nnr_dying_descendants 0\n"
        );
        // Nobody may be in the group around it any more, so this is beside the first process.
        assert_eq!(exec(&one, "cat /proc/self/cgroup"), "0::/a\n");
        assert_eq!(
            exec(&two, "ls -d /sys/fs/cgroup/a 2>/dev/null; cat /proc/1/cgroup /proc/self/cgroup"),
            "0::/\n0::/\n"
        );
        assert_eq!(exec(&two, "cat /sys/fs/cgroup/cgroup.subtree_control"), "\n");
    });
}

#[test]
fn periods_of_a_quota_are_counted_while_programs_run() {
    dormouse(|world| {
        with_cgroup_mount(world)
            .set("/linux/resources", json!({"cpu": {"quota": 100_000, "period": 10_000}}));
        world.script(
            "cd /sys/fs/cgroup; show() { sed -n 's/nr_periods //p' cpu.stat; }; a=$(show); i=0; \
             while [ $(show) -lt $((a + 5)) ] && [ $i -lt 100000 ]; do i=$((i + 1)); done; \
             [ $(show) -ge $((a + 5)) ] && echo counted; b=$(show); sleep 3; c=$(show); \
             [ $((c - b)) -lt 150 ] && echo rested",
        );
        assert_eq!(world.output(), "counted\nrested\n");
        world.set("/linux/resources", json!({}));
        world.script("grep nr_periods /sys/fs/cgroup/cpu.stat; cat /proc/pressure/cpu | cut -c 1-10");
        assert_eq!(world.output(), "nr_periods 0\nsome avg10\nfull avg10\n");
    });
}
