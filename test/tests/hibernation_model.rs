//! A model of hibernation: the kernel's state machine and the supervisor's, over the channel between them.
//!
//! Both machines are the real ones. Around them are the queue of events, two CPUs that take events, carry out actions and
//! report, and what comes from outside: orders, wake events, processes that come in, and failures. The model goes through
//! every order in which all of this can happen, up to so many things from outside. After each step it checks what always
//! holds ([`World::broken_now`]), and once nothing is left to be done, what holds then ([`World::broken_when_quiet`]).
//!
//! The last tests break one rule each, and the same walk finds the flaw.

mod world;

use std::time::Instant;

use world::walk::{Walk, walk};
use world::{AS_IT_IS, Budget, Rules, World};

fn holds(what: &str, can_hibernate: bool, budget: Budget) {
    let began = Instant::now();
    let Walk { states, quiet, depth, flaw } = walk(World::new(can_hibernate, budget), AS_IT_IS);
    println!("{what}: {states} states, {quiet} of them quiet, {depth} steps deep, {:?}", began.elapsed());
    assert_eq!(flaw, None, "{what}");
    assert!(states > 1000 && quiet > 10);
}

/// Which flaw the walk finds.
fn flaw_of(rules: Rules, budget: Budget) -> &'static str {
    let found = walk(World::new(true, budget), rules);
    println!("{} states, {:#?}", found.states, found.flaw);
    found.flaw.map_or("none", |(flaw, _)| flaw)
}

#[test]
fn orders_and_failures() {
    holds("orders", true, Budget { orders: 6, holds: 0, wake_events: 0, execs: 0, failures: 0 });
    holds("failures", true, Budget { orders: 4, holds: 0, wake_events: 0, execs: 0, failures: 2 });
}

#[test]
fn wake_events() {
    holds("wake events", true, Budget { orders: 3, holds: 0, wake_events: 1, execs: 0, failures: 1 });
    holds("two wake events", true, Budget { orders: 3, holds: 0, wake_events: 2, execs: 0, failures: 1 });
}

#[test]
fn processes_that_come_in() {
    holds("exec", true, Budget { orders: 2, holds: 0, wake_events: 0, execs: 2, failures: 1 });
    holds(
        "exec and a wake event",
        true,
        Budget { orders: 2, holds: 0, wake_events: 1, execs: 1, failures: 1 },
    );
}

#[test]
fn pauses() {
    holds("pauses", false, Budget { orders: 5, holds: 0, wake_events: 1, execs: 0, failures: 0 });
}

#[test]
fn what_is_held_goes_on_by_order_alone() {
    holds("held", true, Budget { orders: 2, holds: 2, wake_events: 1, execs: 0, failures: 1 });
    holds("held and exec", true, Budget { orders: 1, holds: 2, wake_events: 1, execs: 1, failures: 1 });
    holds(
        "held before its start",
        false,
        Budget { orders: 2, holds: 3, wake_events: 1, execs: 0, failures: 0 },
    );
}

const SMALL: Budget = Budget { orders: 2, holds: 0, wake_events: 1, execs: 1, failures: 1 };

#[test]
fn it_finds_a_wake_event_that_is_lost_on_the_way_to_rest() {
    let rules = Rules { tells_wake_events_on_the_way_to_rest: false, ..AS_IT_IS };
    assert_eq!(flaw_of(rules, SMALL), "a wake event is lost");
}

#[test]
fn it_finds_that_the_host_hears_of_a_wake_before_the_sleep() {
    let rules = Rules { tells_host_first: false, ..AS_IT_IS };
    assert_eq!(flaw_of(rules, SMALL), "the host hears of a sleep, and the memory is not in its home");
}

#[test]
fn it_finds_a_process_that_sleeps_with_the_sandbox() {
    let rules = Rules { looks_for_execs: false, ..AS_IT_IS };
    assert_eq!(flaw_of(rules, SMALL), "a process that came in sleeps with the sandbox");
}

#[test]
fn it_finds_a_failure_that_is_taken_for_a_sleep() {
    let rules = Rules { tells_failures: false, ..AS_IT_IS };
    assert_eq!(flaw_of(rules, SMALL), "the host hears of a sleep, and the memory is not in its home");
}
