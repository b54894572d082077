//! Attacks from two containers of a pod at once, while it hibernates, wakes, and its containers are stopped; a third container and
//! the host's user measure.

use std::thread::sleep;
use std::time::{Duration, Instant};

use libc::{SIGCONT, SIGSTOP};
use serde_json::{Value, json};

use super::pods::exec;
use super::random::Random;
use super::world::{PATIENCE, World, dormouse, signal, wait_for};

const MEMORY: u64 = 128 << 20;

/// How long the attacks last; `make soak` takes longer.
fn seconds() -> u64 {
    std::env::var("DORMOUSE_ATTACK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// A container that makes system calls with random and half-valid arguments.
fn attacker(first: &World, seed: u64) -> World {
    let script = format!("cd /tmp; hostile --as-root --seed={seed} {}; echo $? > /ended", seconds());
    let mut world = first.further(&script);
    world.set("/linux/resources", json!({"memory": {"limit": MEMORY}, "pids": {"limit": 200}}));
    world.add_guest("hostile").create().start();
    world
}

/// How often it has said that it runs.
fn ticks(world: &World) -> usize {
    std::fs::read(world.rootfs().join("ticks")).unwrap_or_default().len()
}

fn heap(world: &World) -> u64 {
    let stats: Value = serde_json::from_str(&world.ok(&["stats", &world.id, "--json"])).unwrap();
    stats["memory"]["kernel_heap_bytes"].as_u64().unwrap()
}

/// How long it took until it was seen to go on; that it does is what counts.
fn goes_on(measures: &World) -> Duration {
    let (start, before) = (Instant::now(), ticks(measures));
    wait_for(|| ticks(measures) > before, || "whoever measures does not come to run".into());
    start.elapsed()
}

fn is_over(attacker: &World) -> bool {
    attacker.rootfs().join("ended").exists() || attacker.status() == "stopped"
}

#[test]
fn two_containers_attack_while_the_pod_sleeps_and_wakes() {
    dormouse(|first| {
        first.begin_pod();
        first.annotate("dev.dormouse.encrypt", "on");
        first.annotate("dev.dormouse.codec", "zstd");
        first.annotate("dev.dormouse.settle", "100ms");
        first.create().start();
        let measures = first.further("while :; do printf x >> /ticks; sleep 0.01; done");
        measures.create().start();
        goes_on(&measures);
        let before = heap(first);
        let attackers = [attacker(first, 0x5eed), attacker(first, 0xbad)];
        let (mut random, mut longest, mut sleeps) = (Random(0x9e37_79b9), Duration::ZERO, 0);
        let start = Instant::now();
        let most = Duration::from_secs(seconds()) + PATIENCE;
        while !attackers.iter().all(is_over) {
            assert!(start.elapsed() < most, "the attacks do not end");
            match random.below(4) {
                // One that is overtaken by a wake says so.
                0 => sleeps += u32::from(first.run(&["hibernate", &first.id]).status.success()),
                1 => {
                    let attacker = &attackers[usize::try_from(random.below(2)).unwrap()];
                    if attacker.status() == "running" {
                        signal(attacker.pid(), SIGSTOP);
                        longest = longest.max(goes_on(&measures));
                        signal(attacker.pid(), SIGCONT);
                    }
                }
                2 => assert_eq!(exec(&measures, "echo alive"), "alive\n"),
                _ => sleep(Duration::from_millis(random.below(100))),
            }
            // A request wakes it, as it would any sleeper.
            exec(&measures, "true");
            longest = longest.max(goes_on(&measures));
        }
        // Neither the sandbox nor anybody else's container has ended.
        assert_eq!((first.status().as_str(), measures.status().as_str()), ("running", "running"));
        for attacker in &attackers {
            let _ = attacker.run(&["kill", &attacker.id, "KILL"]);
            attacker.wait_status("stopped");
            attacker.ok(&["delete", &attacker.id]);
        }
        goes_on(&measures);
        let left = heap(first).saturating_sub(before);
        println!("longest gap {longest:?}, {sleeps} sleeps, {left} bytes more of the kernel's heap");
        assert!(left < MEMORY / 8, "{left} bytes of the kernel's are left by containers that are gone");
    });
}
