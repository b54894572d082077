//! Hibernation as containers see it: `SIGSTOP` and `SIGCONT` at random while clients send requests, and a VMM that is
//! killed on the way.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use serde_json::json;
use vmm::hibernate::injection::{POINTS, Point};

use super::random::Random;
use super::world::{PATIENCE, World, assert_ended, dormouse, is_stopped, lives, signal, status_of};

/// The guest program's answer.
fn answer_to(number: u64) -> u64 {
    let at = number % (256 * 512);
    let mixed = 7u64.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// A connection and some requests on it.
fn ask(port: u16, random: &mut Random) -> u32 {
    let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let count = 1 + random.below(4);
    for _ in 0..count {
        let number = random.below(1 << 40);
        server.write_all(&number.to_ne_bytes()).unwrap();
        let mut answer = [0; 8];
        server.read_exact(&mut answer).unwrap();
        assert_eq!(u64::from_ne_bytes(answer), answer_to(number), "the answer to {number}");
        sleep(Duration::from_millis(random.below(10)));
    }
    u32::try_from(count).unwrap()
}

fn settles(world: &World, is_down: bool) {
    if is_down {
        world.wait_state("hibernated");
    } else {
        world.wait_awake();
    }
    let start = Instant::now();
    while is_stopped(world.pid()) != is_down {
        assert!(start.elapsed() < PATIENCE, "the leash does not show that it is down: {is_down}");
        sleep(Duration::from_millis(2));
    }
    // And it stays so.
    sleep(Duration::from_millis(50));
    assert_eq!(is_stopped(world.pid()), is_down);
    assert_eq!(world.state()["sandboxState"] == "hibernated", is_down);
}

/// Starts the guest program as a server of the host's loopback.
fn start_server(world: &mut World) -> u16 {
    let port = testdir::free_port();
    world.add_guest("midst");
    let namespaces = world.config["linux"]["namespaces"].as_array().unwrap();
    let own = namespaces.iter().filter(|one| one["type"] != "network").cloned().collect::<Vec<_>>();
    world.set("/linux/namespaces", json!(own));
    world.script(&format!("sleep 100000 | midst server {port} 24")).create().start();
    world.wait_output("ready");
    port
}

/// Prints a container's condition when the test that uses it fails.
struct LastWords<'a>(&'a World);

impl Drop for LastWords<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let World { id, .. } = self.0;
            let state = self.0.run(&["state", id]);
            let state = String::from_utf8_lossy(&state.stdout);
            let last = self.0.read("events").lines().rev().take(3).map(str::to_owned).collect::<Vec<_>>();
            eprintln!("{id}: {state}\n{}{}\n{last:?}", self.0.read("out"), self.0.read("err"));
        }
    }
}

#[test]
fn stops_and_continues_at_random_lose_no_request() {
    let signals = std::env::var("DORMOUSE_SIGNALS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    dormouse(|world| {
        let port = start_server(world);
        let leash = world.pid();
        let events = fs::File::create(world.dir.join("events")).unwrap();
        let mut reader = world.command(&["events", &world.id]).stdout(events).spawn().unwrap();
        let (done, answers) = (AtomicBool::new(false), AtomicU32::new(0));
        let _last_words = LastWords(world);
        let mut random = Random(0x5eed_0001);
        let mut is_down = false;
        scope(|scope| {
            for client in 0..20 {
                let (done, answers) = (&done, &answers);
                scope.spawn(move || {
                    let mut random = Random(0x5eed_1000 + client);
                    while !done.load(Ordering::SeqCst) {
                        answers.fetch_add(ask(port, &mut random), Ordering::SeqCst);
                        sleep(Duration::from_millis(random.below(40)));
                    }
                });
            }
            for _ in 0..signals {
                is_down = random.below(2) == 0;
                signal(leash, if is_down { libc::SIGSTOP } else { libc::SIGCONT });
                sleep(Duration::from_micros(random.below(20_000)));
            }
            done.store(true, Ordering::SeqCst);
        });
        assert!(answers.load(Ordering::SeqCst) > 200, "{answers:?} answers only");
        // No client asks for anything any more: the last signal decides the state.
        for last in [libc::SIGSTOP, libc::SIGCONT, libc::SIGSTOP, libc::SIGCONT] {
            for _ in 0..random.below(6) {
                signal(leash, if random.below(2) == 0 { libc::SIGSTOP } else { libc::SIGCONT });
                sleep(Duration::from_micros(random.below(5000)));
            }
            signal(leash, last);
            settles(world, last == libc::SIGSTOP);
        }
        ask(port, &mut random);
        world.ok(&["kill", &world.id, "KILL"]);
        assert_eq!(libc::WTERMSIG(status_of(leash)), libc::SIGKILL);
        reader.wait().unwrap();
        let events = world.read("events");
        let slept = events.lines().filter(|line| line.contains(r#""to":"hibernated""#)).count();
        println!("{answers:?} answers, hibernated {slept} times of {signals} signals");
        assert!(slept >= 20, "it was hibernated {slept} times only: {events}");
        world.delete();
    });
}

#[test]
fn a_vmm_that_is_killed_on_the_way_leaves_nothing_behind() {
    // Packing is looked at in hibernate_faults.rs.
    for (name, _) in POINTS.iter().filter(|(_, point)| *point < Point::Packing) {
        dormouse(|world| {
            world.script("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done");
            world.create_with(&[("DORMOUSE_DIE_AT", name)]).start();
            world.wait_output("1\n");
            let (vmm, leash, family) = (world.vmm(), world.pid(), world.family());
            let start = Instant::now();
            while lives(vmm) {
                assert!(start.elapsed() < PATIENCE, "the VMM never gets to {name}");
                world.run(&["hibernate", &world.id]);
                world.run(&["wake", &world.id]);
            }
            status_of(vmm);
            status_of(leash);
            assert_ended(&family);
            assert_eq!(world.status(), "stopped", "{name}");
            world.delete();
        });
    }
}
