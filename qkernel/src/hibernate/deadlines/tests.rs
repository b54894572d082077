//! The rules, tried on a model of a sandbox whose programs wait for timers and which falls asleep as soon as they do.

use alloc::vec::Vec;

use super::*;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
const WAKE: Rules = Rules { ahead_ns: 30 * SECOND, grid_ns: 0 };

fn waiter(name: &[u8]) -> Waiter {
    let mut own = [0; 16];
    own[..name.len()].copy_from_slice(name);
    Waiter { container: 0, family: 1, pid: 7, name: own, kind: TimerKind::Wait }
}

/// A program that waits for so long, again and again, and writes in one of so many rounds (0: never).
struct Program {
    waiter: Waiter,
    period_ns: u64,
    writes_each: u64,
    due_ns: u64,
    set_ns: u64,
    rounds: u64,
}

impl Program {
    fn new(name: &[u8], period_ns: u64, writes_each: u64) -> Self {
        Self { waiter: waiter(name), period_ns, writes_each, due_ns: period_ns, set_ns: 0, rounds: 0 }
    }
}

/// When the sandbox wakes, and who wakes it, until `end_ns`. Each wake takes a tenth of a second.
fn run(rules: Rules, programs: &mut [Program], end_ns: u64) -> Vec<(u64, [u8; 16])> {
    let mut deadlines = Deadlines::new();
    deadlines.set_rules(rules);
    let (mut written, mut wakes) = (0, Vec::new());
    loop {
        deadlines.begin_sleep(0, written);
        for program in programs.iter_mut() {
            // A new process each time, as of `sleep` in a shell's loop.
            program.waiter.pid += 1;
            let Program { waiter, due_ns, set_ns, .. } = *program;
            deadlines.stands(Deadline { waiter, due_ns, set_ns });
        }
        let now_ns = deadlines.next_ns();
        if now_ns >= end_ns {
            return wakes;
        }
        assert_eq!(deadlines.take_due(now_ns - 1, written), None);
        let wake = deadlines.take_due(now_ns, written).unwrap();
        assert!(wake.deadline.due_ns <= now_ns && deadlines.take_due(now_ns, written).is_none());
        wakes.push((now_ns, wake.deadline.waiter.name));
        for program in programs.iter_mut().filter(|program| program.due_ns <= now_ns) {
            program.rounds += 1;
            written += u64::from(program.rounds.checked_rem(program.writes_each) == Some(0));
            program.set_ns = now_ns + SECOND / 10;
            program.due_ns = program.set_ns + program.period_ns;
        }
    }
}

#[test]
fn a_deadline_counts_that_was_set_long_before() {
    assert!(WAKE.counts(30 * SECOND, 0) && WAKE.counts(HOUR, 0) && WAKE.counts(130 * SECOND, 100 * SECOND));
    // A program's loop turned a little before it computed the time that was left.
    assert!(WAKE.counts(30 * SECOND, SECOND / 2) && !WAKE.counts(30 * SECOND, 3 * SECOND));
    assert!(!WAKE.counts(SECOND, 0) && !WAKE.counts(0, SECOND) && !WAKE.counts(u64::MAX, u64::MAX));
    assert!(!Rules::default().counts(u64::MAX, 0));
    let mut off = Deadlines::new();
    off.begin_sleep(0, 0);
    off.stands(Deadline { waiter: waiter(b"cron"), due_ns: HOUR, set_ns: 0 });
    assert_eq!((off.next_ns(), off.take_due(u64::MAX, 0)), (u64::MAX, None));
}

#[test]
fn a_scheduler_that_works_is_served_on_time() {
    let wakes = run(WAKE, &mut [Program::new(b"cron", 60 * SECOND, 1)], HOUR);
    assert_eq!(wakes.len(), 59);
    // One of three rounds is enough.
    let wakes = run(WAKE, &mut [Program::new(b"cron", 60 * SECOND, 3)], HOUR);
    assert_eq!(wakes.len(), 59);
}

#[test]
fn a_timer_that_never_does_anything_is_served_ever_later() {
    let idle = [(&b"node"[..], 30), (b"Common-Cleaner", 60), (b"postgres", 60)];
    for (name, seconds) in idle {
        let wakes = run(WAKE, &mut [Program::new(name, seconds * SECOND, 0)], 24 * HOUR);
        let waits: Vec<_> = wakes.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(wakes[2].0 < 4 * seconds * SECOND, "three are on time: {wakes:?}");
        assert!(waits[1..].is_sorted() && waits.iter().all(|wait| *wait <= HOUR + SECOND), "{waits:?}");
        assert!(*waits.last().unwrap() >= HOUR - SECOND);
        for (at, (from, _)) in wakes.iter().enumerate().skip(2) {
            let within = wakes[at + 1..].iter().take_while(|(then, _)| then - from < HOUR).count();
            assert!(within <= 4, "{within} within an hour of {from}: {wakes:?}");
        }
    }
}

#[test]
fn all_idle_timers_together_leave_it_asleep_and_a_busy_one_is_on_time_among_them() {
    let mut programs = [
        Program::new(b"node", 30 * SECOND, 0),
        Program::new(b"Common-Cleaner", 61 * SECOND, 0),
        Program::new(b"postgres", 67 * SECOND, 0),
        Program::new(b"cron", 600 * SECOND, 1),
    ];
    let wakes = run(WAKE, &mut programs, 24 * HOUR);
    let of = |name: &[u8]| wakes.iter().filter(|(_, woken)| *woken == waiter(name).name).count();
    assert!((130..=143).contains(&of(b"cron")), "{wakes:?}");
    // Where one shares a wake with the busy one it counts as having worked, and has three wakes more.
    for name in [&b"node"[..], b"Common-Cleaner", b"postgres"] {
        assert!(of(name) <= 24 * 4, "{} by {name:?}", of(name));
    }
}

#[test]
fn one_that_begins_to_work_is_on_time_again() {
    let mut deadlines = Deadlines::new();
    deadlines.set_rules(WAKE);
    let (mut now_ns, mut written) = (0, 0);
    let mut wait_of = |writes: bool| {
        let set_ns = now_ns;
        deadlines.begin_sleep(0, written);
        let due_ns = set_ns + 40 * SECOND;
        deadlines.stands(Deadline { waiter: waiter(b"job"), due_ns, set_ns });
        now_ns = deadlines.next_ns();
        deadlines.take_due(now_ns, written).unwrap();
        written += u64::from(writes);
        (now_ns - set_ns) / SECOND
    };
    let waits = [false, false, false, false, true, false, false, false, false].map(&mut wait_of);
    assert_eq!(waits, [40, 40, 40, 160, 640, 40, 40, 40, 160]);
}

#[test]
fn it_wakes_no_more_often_than_the_gap_however_many_timers_there_are() {
    let mut programs: Vec<_> = (0..200)
        .map(|number: u64| Program::new(&number.to_ne_bytes(), 30 * SECOND + number * 100_000_007, 1))
        .collect();
    let wakes = run(WAKE, &mut programs, HOUR);
    assert!(wakes.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 30 * SECOND), "{wakes:?}");
    assert!(wakes.len() > 100, "each gap ends with a wake: {}", wakes.len());
    // Deadlines in the past are one wake.
    let mut deadlines = Deadlines::new();
    deadlines.set_rules(WAKE);
    deadlines.begin_sleep(0, 0);
    (0..100).for_each(|due_ns| {
        deadlines.stands(Deadline { waiter: waiter(b"late"), due_ns: due_ns + 40 * SECOND, set_ns: 0 });
    });
    assert!(deadlines.take_due(HOUR, 0).is_some() && deadlines.take_due(HOUR, 0).is_none());
    deadlines.begin_sleep(0, 0);
    deadlines.stands(Deadline { waiter: waiter(b"other"), due_ns: 50 * SECOND, set_ns: 0 });
    assert_eq!(deadlines.next_ns(), HOUR + 30 * SECOND);
}

#[test]
fn sandboxes_wake_together_on_a_grid() {
    let rules = Rules { ahead_ns: 30 * SECOND, grid_ns: 600 * SECOND };
    for start in [0, 17, 333] {
        let mut programs = [Program::new(b"cron", (100 + start) * SECOND, 1)];
        let wakes = run(rules, &mut programs, 2 * HOUR);
        assert_eq!(wakes.len(), 11);
        assert!(wakes.iter().all(|(at, _)| at.is_multiple_of(600 * SECOND)), "{wakes:?}");
    }
    let mut last = Deadlines::new();
    last.set_rules(rules);
    last.begin_sleep(0, 0);
    last.stands(Deadline { waiter: waiter(b"never"), due_ns: u64::MAX - 1, set_ns: 0 });
    assert_eq!(last.next_ns(), u64::MAX, "there is no later point of the grid");
}

#[test]
fn timers_beyond_those_that_are_known_are_forgotten_oldest_first() {
    let mut deadlines = Deadlines::new();
    deadlines.set_rules(WAKE);
    let mut now_ns = 0;
    for number in 0..3 * KNOWN as u64 {
        deadlines.begin_sleep(0, 0);
        let due_ns = now_ns + 30 * SECOND;
        deadlines.stands(Deadline { waiter: waiter(&number.to_ne_bytes()), due_ns, set_ns: now_ns });
        now_ns = deadlines.next_ns();
        deadlines.take_due(now_ns, 0).unwrap();
    }
    let known = |number: u64| {
        deadlines.known.iter().flatten().any(|known| known.waiter.is(&waiter(&number.to_ne_bytes())))
    };
    assert!(known(3 * KNOWN as u64 - 1) && known(2 * KNOWN as u64) && !known(2 * KNOWN as u64 - 1));
}

#[test]
fn work_that_a_wake_has_begun_is_told_from_what_always_waits() {
    let mut deadlines = Deadlines::new();
    deadlines.set_rules(WAKE);
    let short = |name: &[u8], set_ns: u64| Deadline { waiter: waiter(name), due_ns: set_ns + SECOND, set_ns };
    let job = Deadline { waiter: waiter(b"job"), due_ns: 60 * SECOND, set_ns: 0 };
    deadlines.begin_sleep(0, 0);
    deadlines.stands(job);
    deadlines.stands(short(b"server", 9 * SECOND));
    assert!(!deadlines.is_awake_for_one() && !deadlines.is_of_new_work(&short(b"job", 10 * SECOND)));
    deadlines.take_due(60 * SECOND, 0).unwrap();
    assert!(deadlines.is_awake_for_one());
    assert!(deadlines.is_of_new_work(&short(b"job", 61 * SECOND)));
    assert!(!deadlines.is_of_new_work(&short(b"server", 61 * SECOND)), "it always waits so");
    assert!(!deadlines.is_of_new_work(&short(b"other", 59 * SECOND)), "it has waited since before the wake");
    let next = Deadline { due_ns: 121 * SECOND, set_ns: 61 * SECOND, ..job };
    assert!(!deadlines.is_of_new_work(&next), "it wakes the sandbox");
    // One that has more waiters than can be known is not kept awake by them.
    deadlines.begin_sleep(0, 0);
    (0..=SHORT as u64).for_each(|number| deadlines.stands(short(&number.to_ne_bytes(), 70 * SECOND)));
    deadlines.stands(job);
    deadlines.take_due(100 * SECOND, 0).unwrap();
    assert!(!deadlines.is_of_new_work(&short(b"new", 101 * SECOND)));
}

#[test]
fn work_that_a_sleep_cut_off_goes_on_unless_it_was_an_order() {
    let mut deadlines = Deadlines::new();
    deadlines.set_rules(WAKE);
    deadlines.begin_sleep(HOUR, 0);
    deadlines.has_unfinished_work();
    assert_eq!(deadlines.next_ns(), u64::MAX, "somebody wanted that");
    deadlines.note_idle(HOUR);
    deadlines.begin_sleep(HOUR + SECOND, 0);
    assert_eq!(deadlines.next_ns(), u64::MAX, "it has nothing to do");
    deadlines.has_unfinished_work();
    let wake = deadlines.take_due(HOUR + SECOND, 0).unwrap();
    assert_eq!((wake.deadline.waiter.kind, wake.deadline.waiter.pid), (TimerKind::Unfinished, 0));
    // No more often than for a deadline.
    deadlines.note_idle(HOUR + 2 * SECOND);
    deadlines.begin_sleep(HOUR + 3 * SECOND, 0);
    deadlines.has_unfinished_work();
    assert_eq!(deadlines.next_ns(), HOUR + 31 * SECOND);
    // Long after it was idle.
    deadlines.begin_sleep(HOUR + 60 * SECOND, 0);
    deadlines.has_unfinished_work();
    assert_eq!(deadlines.next_ns(), u64::MAX);
}
