//! Processor time by container in a pod: shares, limits, figures. What is compared is what programs have done meanwhile.

use std::fs;
use std::ops::Range;

use libc::{SIGCONT, SIGSTOP};
use serde_json::{Value, json};

use super::pods::{exec, pod, run};
use super::world::{World, assert_ended, dormouse, is_stopped, signal, status_of, wait_for};

/// So much work lasts longer than all that differs at the beginning.
const WORK: u64 = 12_000;

/// A further container that computes in so many processes, or otherwise as `busy` says.
fn busy(first: &World, cpu: Value, args: &str) -> World {
    let mut world = first.further(&format!("exec busy /work {args}"));
    world.set("/linux/resources", json!({"cpu": cpu}));
    world.add_guest("busy").create().start();
    wait_for(|| work(&world) > 0, || format!("nothing is done: {}", world.read("err")));
    world
}

/// The work that a container's processes have done so far, in the units of the program `busy`.
fn work(world: &World) -> u64 {
    let bytes = fs::read(world.rootfs().join("work")).unwrap_or_default();
    bytes.chunks_exact(8).map(|done| u64::from_ne_bytes(done.try_into().unwrap())).sum()
}

/// How many times as much `two` does as `one`, while both do so much together.
fn ratio(one: &World, two: &World) -> f64 {
    let (before_one, before_two) = (work(one), work(two));
    let done = || (work(one) - before_one, work(two) - before_two);
    wait_for(|| done().0 + done().1 > WORK, || format!("they have done {:?}", done()));
    let (one, two) = done();
    two as f64 / one.max(1) as f64
}

/// Sees that this is in a range, in one of a few looks: a host whose cores are not equally free gives one of the two more for the same
/// time, as long as each keeps to a processor of its own.
fn shares_are(one: &World, two: &World, range: Range<f64>) {
    const LOOKS: usize = 5;
    let mut found = Vec::new();
    while !found.last().is_some_and(|last| range.contains(last)) {
        assert!(found.len() < LOOKS, "{found:?} times as much, not {range:?}");
        found.push(ratio(one, two));
    }
}

fn goes_on(world: &World) {
    let before = work(world);
    wait_for(|| work(world) > before + 3, || "it does nothing".into());
}

fn throttling(world: &World) -> Value {
    let line: Value = serde_json::from_str(&world.ok(&["events", "--stats", &world.id])).unwrap();
    line["data"]["cpu"]["throttling"].clone()
}

#[test]
fn containers_that_compute_have_time_by_their_shares() {
    pod(|first| {
        let few = busy(first, json!({"shares": 256}), "2");
        let many = busy(first, json!({"shares": 1024}), "2");
        shares_are(&few, &many, 2.5..8.0);
        few.ok(&["update", "--cpu-shares", "1024", &few.id]);
        shares_are(&few, &many, 0.5..2.0);
    });
}

#[test]
fn a_hundred_tasks_have_no_more_than_two() {
    pod(|first| {
        let two = busy(first, json!({}), "2");
        let hundred = busy(first, json!({}), "100");
        shares_are(&two, &hundred, 0.4..2.5);
        // Neither have those that leave the processor again and again.
        hundred.ok(&["kill", &hundred.id, "KILL"]);
        let naps = busy(first, json!({}), "100 naps");
        shares_are(&two, &naps, 0.0..2.5);
    });
}

#[test]
fn a_limit_holds_is_told_and_can_be_changed() {
    pod(|first| {
        let mut limited = first.further("exec busy /work 2");
        limited.set("/linux/resources", json!({"cpu": {"quota": 10_000, "period": 100_000}}));
        limited.mount(json!({"destination": "/sys", "type": "sysfs", "source": "sysfs"}));
        let options = ["ro"];
        limited.mount(
            json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": options}),
        );
        limited.add_guest("busy").create().start();
        let free = busy(first, json!({}), "2");
        wait_for(|| work(&limited) > 0, || "nothing is done".into());
        let found = ratio(&limited, &free);
        assert!(found > 4.0, "{found} times as much without a limit");
        let told = throttling(&limited);
        assert!(told["throttledPeriods"].as_u64() > Some(0), "{told}");
        assert!(told["throttledTime"].as_u64() > Some(0), "{told}");
        assert_eq!(throttling(&free)["periods"], 0);
        let seen = exec(&limited, "cat /sys/fs/cgroup/cpu.stat");
        assert!(seen.contains("nr_throttled ") && !seen.contains("nr_throttled 0\n"), "{seen}");
        limited.ok(&["update", "--cpu-quota", "-1", &limited.id]);
        shares_are(&limited, &free, 0.5..2.0);
        free.ok(&["update", "--cpu-quota", "10000", "--cpu-period", "100000", &free.id]);
        let found = ratio(&free, &limited);
        assert!(found > 4.0, "{found} times as much without a limit");
    });
}

#[test]
fn who_waits_for_time_rests_sleeps_and_ends_as_others_do() {
    pod(|first| {
        let one = busy(first, json!({"quota": 5000, "period": 100_000}), "5");
        // A pod hibernates once all its further containers are stopped.
        let other = run(first, "exec sleep 1000");
        wait_for(
            || throttling(&one)["throttledPeriods"].as_u64() > Some(2),
            || "it does not wait for time".into(),
        );
        assert_eq!(exec(&one, "echo lives"), "lives\n");
        for how in ["pause", "stop"] {
            if how == "pause" {
                one.ok(&["pause", &one.id]);
            } else {
                signal(one.pid(), SIGSTOP);
            }
            one.wait_status("paused");
            let rests = || {
                let before = work(&one);
                exec(&other, "sleep 0.3");
                work(&one) == before
            };
            wait_for(rests, || "it goes on".into());
            if how == "pause" {
                one.ok(&["resume", &one.id]);
                wait_for(|| !is_stopped(one.pid()), || "its leash rests".into());
            } else {
                signal(one.pid(), SIGCONT);
            }
            goes_on(&one);
        }
        for _ in 0..3 {
            one.ok(&["hibernate", &one.id]);
            assert_eq!(first.sandbox_state(), "hibernated");
            one.ok(&["wake", &one.id]);
            goes_on(&one);
        }
        let (leash, keeper) = (one.pid(), one.vmm());
        one.ok(&["kill", &one.id, "KILL"]);
        assert_eq!(status_of(leash), libc::SIGKILL);
        assert_ended(&[keeper]);
        one.delete();
    });
}

#[test]
fn who_waits_for_time_is_not_idle() {
    dormouse(|first| {
        first.begin_pod();
        first.config["annotations"]["dev.dormouse.idle-timeout"] = json!("1s");
        first.create().start();
        let one = busy(first, json!({}), "1");
        // Far less than what would count as busy. Its beginning takes more than that.
        one.ok(&["update", "--cpu-quota", "1000", "--cpu-period", "1000000", &one.id]);
        // Three times the time after which an idle one sleeps. How much it does then is little on a busy host, whose other work
        // its time is charged with.
        std::thread::sleep(std::time::Duration::from_secs(3));
        goes_on(&one);
        assert_ne!(first.sandbox_state(), "hibernated");
        one.ok(&["kill", &one.id, "KILL"]);
        first.wait_state("hibernated");
    });
}
