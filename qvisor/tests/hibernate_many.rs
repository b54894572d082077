//! Many sandboxes that hibernate and wake at the same time.

mod sleeper;

use std::thread::scope;
use std::time::{Duration, Instant};

use sleeper::{TestSandbox, guest};

const SANDBOXES: usize = 50;
/// Memory that each program fills and checks at its end.
const MIB: u64 = 8;
const PATIENCE: Duration = Duration::from_secs(60);

/// Does it for all sandboxes at the same time.
fn for_all<T: Send>(sandboxes: &mut [TestSandbox], work: impl Fn(&mut TestSandbox) -> T + Sync) -> Vec<T> {
    let work = &work;
    scope(|scope| {
        let threads: Vec<_> =
            sandboxes.iter_mut().map(|sandbox| scope.spawn(move || work(sandbox))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn fifty_hibernate_at_once_and_wake_at_once() {
    let program = guest("midst");
    let mut sandboxes: Vec<TestSandbox> = (0..SANDBOXES).map(|_| TestSandbox::new()).collect();
    for few in sandboxes.chunks_mut(8) {
        for_all(few, |sandbox| {
            let program = [program.to_str().unwrap(), "memory", &MIB.to_string()];
            sandbox.start(&["--memory", "32M", "--cpus", "2"], &[], &program);
        });
    }
    let warm: u64 = for_all(&mut sandboxes, |sandbox| sandbox.memory_kib()).iter().sum();
    for reap in ["off", "on", "on"] {
        let start = Instant::now();
        let stored = for_all(&mut sandboxes, |sandbox| sandbox.order(&["hibernate"]));
        for down in &stored {
            let pages = down["pages"].as_u64().unwrap() + down["kept_pages"].as_u64().unwrap();
            assert!(pages >= MIB * 256, "{down}");
        }
        let asleep: u64 = for_all(&mut sandboxes, |sandbox| sandbox.memory_kib()).iter().sum();
        println!("{SANDBOXES} asleep after {:?}: {asleep} KiB of {warm} KiB", start.elapsed());
        assert!(asleep + SANDBOXES as u64 * MIB * 1024 * 3 / 4 < warm, "{asleep} KiB of {warm} KiB");
        for_all(&mut sandboxes, |sandbox| sandbox.order(&["wake", "--reap", reap]));
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    }
    for_all(&mut sandboxes, |sandbox| sandbox.order(&["hibernate"]));
    // A line for each wakes them all, and has them check all they have.
    let start = Instant::now();
    for_all(&mut sandboxes, |sandbox| {
        sandbox.says_line();
        sandbox.ends_well();
    });
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}
