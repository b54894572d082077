use super::*;

const A: FunctionIndex = 0;
const B: FunctionIndex = 1;
const C: FunctionIndex = 2;

fn policy(budget_bytes: u64) -> Policy {
    Policy::new(Bounds { budget_bytes, requests_each: 4, can_sleep: true }, 3)
}

fn without_sleep(budget_bytes: u64) -> Policy {
    Policy::new(Bounds { budget_bytes, requests_each: 4, can_sleep: false }, 3)
}

fn request(policy: &mut Policy, function: FunctionIndex, ticket: Ticket) -> Vec<Action> {
    policy.step(Event::Request { function, ticket })
}

fn gone(policy: &mut Policy, function: FunctionIndex, ticket: Ticket) -> Vec<Action> {
    policy.step(Event::Gone { function, ticket })
}

fn report(policy: &mut Policy, function: FunctionIndex, report: Report) -> Vec<Action> {
    let instance = policy.functions[function].instance;
    policy.step(Event::Report { function, instance, report })
}

fn memory(policy: &mut Policy, function: FunctionIndex, bytes: u64) -> Vec<Action> {
    report(policy, function, Report::Memory { bytes, is_asleep: false })
}

/// Has a function serve one request, by this ticket, and use so much; result: what is to be done at its end.
fn serve(policy: &mut Policy, function: FunctionIndex, ticket: Ticket, bytes: u64) -> Vec<Action> {
    assert!(matches!(request(policy, function, ticket)[..], [Action::Start { .. }]));
    assert_eq!(report(policy, function, Report::Started), [Action::Grant { ticket }]);
    assert_eq!(memory(policy, function, bytes), []);
    gone(policy, function, ticket)
}

/// A function that has slept.
fn sleeper(budget_bytes: u64) -> Policy {
    let mut policy = policy(budget_bytes);
    assert_eq!(serve(&mut policy, A, 1, budget_bytes + 1), [Action::Sleep { function: A, instance: 1 }]);
    assert_eq!(report(&mut policy, A, Report::Slept), []);
    policy
}

#[test]
fn the_first_request_starts_a_function_and_others_wait_for_the_same_start() {
    let mut policy = policy(10);
    assert_eq!(request(&mut policy, A, 1), [Action::Start { function: A, instance: 1 }]);
    assert_eq!(request(&mut policy, A, 2), []);
    assert_eq!(
        report(&mut policy, A, Report::Started),
        [Action::Grant { ticket: 1 }, Action::Grant { ticket: 2 }]
    );
    assert_eq!(request(&mut policy, A, 3), [Action::Grant { ticket: 3 }]);
    assert_eq!(policy.counters().cold_starts, 1);
}

#[test]
fn the_least_recently_used_one_sleeps_first() {
    let mut policy = policy(10);
    assert_eq!(serve(&mut policy, A, 1, 4), []);
    assert_eq!(serve(&mut policy, B, 2, 4), []);
    // A is used again, so B is the oldest.
    assert_eq!(request(&mut policy, A, 3), [Action::Grant { ticket: 3 }]);
    assert_eq!(gone(&mut policy, A, 3), []);
    assert!(matches!(request(&mut policy, C, 4)[..], [Action::Start { .. }]));
    assert_eq!(report(&mut policy, C, Report::Started), [Action::Grant { ticket: 4 }]);
    assert_eq!(memory(&mut policy, C, 4), [Action::Sleep { function: B, instance: 2 }]);
    assert_eq!(report(&mut policy, B, Report::Slept), []);
    assert_eq!(report(&mut policy, B, Report::Memory { bytes: 1, is_asleep: true }), []);
    let now = policy.now();
    assert_eq!((now.awake, now.asleep, now.awake_bytes, now.asleep_bytes), (2, 1, 8, 1));
}

#[test]
fn a_request_wakes_a_sleeper() {
    let mut policy = sleeper(10);
    assert_eq!(request(&mut policy, A, 2), [Action::Wake { function: A, instance: 1 }]);
    assert_eq!(request(&mut policy, A, 3), []);
    assert_eq!(
        report(&mut policy, A, Report::Woken),
        [Action::Grant { ticket: 2 }, Action::Grant { ticket: 3 }]
    );
    assert_eq!((policy.counters().cold_starts, policy.counters().wakes), (1, 1));
}

#[test]
fn who_serves_a_request_is_never_put_to_sleep() {
    let mut policy = policy(10);
    assert!(matches!(request(&mut policy, A, 1)[..], [Action::Start { .. }]));
    assert_eq!(report(&mut policy, A, Report::Started), [Action::Grant { ticket: 1 }]);
    assert_eq!(memory(&mut policy, A, 100), []);
    assert_eq!(policy.step(Event::Tick), []);
    assert_eq!(gone(&mut policy, A, 1), [Action::Sleep { function: A, instance: 1 }]);
}

#[test]
fn a_budget_smaller_than_one_function_has_it_sleep_after_each_request() {
    let mut policy = sleeper(1);
    for ticket in 2..5 {
        assert_eq!(request(&mut policy, A, ticket), [Action::Wake { function: A, instance: 1 }]);
        assert_eq!(report(&mut policy, A, Report::Woken), [Action::Grant { ticket }]);
        assert_eq!(gone(&mut policy, A, ticket), [Action::Sleep { function: A, instance: 1 }]);
        assert_eq!(report(&mut policy, A, Report::Slept), []);
    }
}

#[test]
fn a_request_that_comes_while_it_is_put_to_sleep_wakes_it_afterwards() {
    let mut policy = policy(1);
    assert_eq!(serve(&mut policy, A, 1, 2), [Action::Sleep { function: A, instance: 1 }]);
    assert_eq!(request(&mut policy, A, 2), []);
    assert_eq!(report(&mut policy, A, Report::Slept), [Action::Wake { function: A, instance: 1 }]);
    assert_eq!(report(&mut policy, A, Report::Woken), [Action::Grant { ticket: 2 }]);
}

#[test]
fn a_request_that_goes_away_while_it_is_put_to_sleep_does_not_wake_it() {
    let mut policy = policy(1);
    assert_eq!(serve(&mut policy, A, 1, 2), [Action::Sleep { function: A, instance: 1 }]);
    assert_eq!(request(&mut policy, A, 2), []);
    assert_eq!(gone(&mut policy, A, 2), []);
    assert_eq!(report(&mut policy, A, Report::Slept), []);
    assert_eq!(policy.now().asleep, 1);
}

#[test]
fn one_that_cannot_be_put_to_sleep_serves_and_is_tried_again_after_a_tick() {
    let mut policy = policy(1);
    assert_eq!(serve(&mut policy, A, 1, 2), [Action::Sleep { function: A, instance: 1 }]);
    assert_eq!(request(&mut policy, A, 2), []);
    assert_eq!(report(&mut policy, A, Report::SleepFailed), [Action::Grant { ticket: 2 }]);
    assert_eq!(gone(&mut policy, A, 2), []);
    assert_eq!(memory(&mut policy, A, 2), []);
    assert_eq!(policy.step(Event::Tick), [Action::Sleep { function: A, instance: 1 }]);
}

#[test]
fn a_start_that_fails_refuses_all_who_wait_and_the_next_request_tries_again() {
    let mut policy = policy(10);
    assert_eq!(request(&mut policy, A, 1), [Action::Start { function: A, instance: 1 }]);
    assert_eq!(request(&mut policy, A, 2), []);
    let refusal = Refusal::NotStarted { why: "no".to_owned() };
    assert_eq!(
        report(&mut policy, A, Report::StartFailed { why: "no".to_owned() }),
        [1, 2].map(|ticket| Action::Refuse { ticket, refusal: refusal.clone() })
    );
    assert_eq!(request(&mut policy, A, 3), [Action::Start { function: A, instance: 2 }]);
    assert_eq!(policy.counters().refused, 2);
}

#[test]
fn one_that_died_asleep_is_started_by_the_next_request() {
    let mut policy = sleeper(10);
    assert_eq!(report(&mut policy, A, Report::Died), []);
    assert_eq!(policy.now(), Now::default());
    assert_eq!(request(&mut policy, A, 2), [Action::Start { function: A, instance: 2 }]);
    assert_eq!(policy.counters().deaths, 1);
}

#[test]
fn one_that_dies_while_it_is_woken_or_put_to_sleep_is_started_for_those_who_wait() {
    let mut policy = sleeper(10);
    assert_eq!(request(&mut policy, A, 2), [Action::Wake { function: A, instance: 1 }]);
    assert_eq!(report(&mut policy, A, Report::Died), [Action::Start { function: A, instance: 2 }]);
    // The answer to the wake of the first comes late.
    let late = Event::Report { function: A, instance: 1, report: Report::Woken };
    assert_eq!(policy.step(late), []);
    assert_eq!(report(&mut policy, A, Report::Started), [Action::Grant { ticket: 2 }]);
    // It has not been measured since; what the first one used is the guess.
    assert_eq!(gone(&mut policy, A, 2), [Action::Sleep { function: A, instance: 2 }]);
    assert_eq!(request(&mut policy, A, 3), []);
    assert_eq!(report(&mut policy, A, Report::Died), [Action::Start { function: A, instance: 3 }]);
}

#[test]
fn one_that_dies_awake_forgets_what_it_served() {
    let mut policy = policy(10);
    assert!(matches!(request(&mut policy, A, 1)[..], [Action::Start { .. }]));
    assert_eq!(report(&mut policy, A, Report::Started), [Action::Grant { ticket: 1 }]);
    assert_eq!(report(&mut policy, A, Report::Died), []);
    assert_eq!(gone(&mut policy, A, 1), []);
    assert_eq!(request(&mut policy, A, 2), [Action::Start { function: A, instance: 2 }]);
    assert_eq!(report(&mut policy, A, Report::Started), [Action::Grant { ticket: 2 }]);
}

#[test]
fn one_that_cannot_be_woken_is_stopped_and_started() {
    let mut policy = sleeper(10);
    assert_eq!(request(&mut policy, A, 2), [Action::Wake { function: A, instance: 1 }]);
    assert_eq!(report(&mut policy, A, Report::WakeFailed), [Action::Stop { function: A, instance: 1 }]);
    // Its end is what was asked for.
    assert_eq!(report(&mut policy, A, Report::Died), []);
    assert_eq!(report(&mut policy, A, Report::Stopped), [Action::Start { function: A, instance: 2 }]);
    assert_eq!(report(&mut policy, A, Report::Started), [Action::Grant { ticket: 2 }]);
    assert_eq!(policy.counters().deaths, 0);
}

#[test]
fn without_sleep_the_oldest_is_stopped_and_a_request_meanwhile_starts_it_again() {
    let mut policy = without_sleep(1);
    assert_eq!(serve(&mut policy, A, 1, 2), [Action::Stop { function: A, instance: 1 }]);
    assert_eq!(request(&mut policy, A, 2), []);
    assert_eq!(report(&mut policy, A, Report::Stopped), [Action::Start { function: A, instance: 2 }]);
    let counters = policy.counters();
    assert_eq!((counters.cold_starts, counters.stops, counters.sleeps), (2, 1, 0));
}

#[test]
fn more_requests_than_may_wait_are_refused() {
    let mut policy = policy(10);
    for ticket in 1..=4 {
        request(&mut policy, A, ticket);
    }
    assert_eq!(request(&mut policy, A, 5), [Action::Refuse { ticket: 5, refusal: Refusal::Busy }]);
    gone(&mut policy, A, 1);
    assert_eq!(request(&mut policy, A, 6), []);
}

#[test]
fn a_figure_of_before_the_sleep_is_not_taken_for_a_sleepers() {
    let mut policy = sleeper(10);
    assert_eq!(memory(&mut policy, A, 500), []);
    assert_eq!(policy.now().awake_bytes + policy.now().asleep_bytes, 0);
}

/// The actions that the runtime has yet to carry out, and the requests that wait or have been granted.
#[derive(Default)]
struct World {
    orders: Vec<Action>,
    waiting: BTreeSet<(FunctionIndex, Ticket)>,
    served: BTreeSet<(FunctionIndex, Ticket)>,
}

impl World {
    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Grant { ticket } => {
                    let found = self.waiting.iter().find(|(_, other)| *other == ticket).copied();
                    let request = found.expect("only a request that waits is granted, and only once");
                    self.waiting.remove(&request);
                    self.served.insert(request);
                }
                Action::Refuse { ticket, .. } => {
                    self.waiting.retain(|(_, other)| *other != ticket);
                }
                Action::Sleep { function, .. } => {
                    assert!(self.served.iter().all(|(other, _)| *other != function), "it serves a request");
                    self.orders.push(action);
                }
                order => self.orders.push(order),
            }
        }
    }

    /// The answer to an order; one in four fails.
    fn answer(&mut self, at: usize, chance: u64) -> Event {
        let fails = chance.is_multiple_of(4);
        let (function, instance, report) = match self.orders.remove(at) {
            Action::Start { function, instance } if fails => {
                (function, instance, Report::StartFailed { why: String::new() })
            }
            Action::Start { function, instance } => (function, instance, Report::Started),
            Action::Wake { function, instance } => {
                (function, instance, if fails { Report::WakeFailed } else { Report::Woken })
            }
            Action::Sleep { function, instance } => {
                (function, instance, if fails { Report::SleepFailed } else { Report::Slept })
            }
            Action::Stop { function, instance } => (function, instance, Report::Stopped),
            other => unreachable!("{other:?} is no order"),
        };
        Event::Report { function, instance, report }
    }
}

/// A generator of numbers that are the same each time.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn whatever_comes_every_request_is_granted_or_refused_in_the_end() {
    for seed in 0..400 {
        let mut state = seed;
        let mut policy =
            Policy::new(Bounds { budget_bytes: 12, requests_each: 3, can_sleep: seed % 2 == 0 }, 3);
        let mut world = World::default();
        for ticket in 0..200 {
            let function = usize::try_from(next(&mut state) % 3).unwrap();
            let event = match next(&mut state) % 6 {
                0 | 1 => {
                    world.waiting.insert((function, ticket));
                    Event::Request { function, ticket }
                }
                2 if !world.served.is_empty() => {
                    let (function, ticket) = world.served.pop_first().unwrap();
                    Event::Gone { function, ticket }
                }
                3 if !world.orders.is_empty() => {
                    let at = usize::try_from(next(&mut state)).unwrap() % world.orders.len();
                    world.answer(at, next(&mut state))
                }
                4 => Event::Report {
                    function,
                    instance: policy.functions[function].instance,
                    report: Report::Memory { bytes: next(&mut state) % 10, is_asleep: false },
                },
                5 if next(&mut state).is_multiple_of(8) => {
                    let instance = policy.functions[function].instance;
                    if policy.functions[function].state == State::Awake {
                        world.served.retain(|(other, _)| *other != function);
                    }
                    Event::Report { function, instance, report: Report::Died }
                }
                _ => Event::Tick,
            };
            let actions = policy.step(event);
            world.take(actions);
        }
        settle(&mut policy, &mut world);
        assert_eq!(world.waiting, BTreeSet::new(), "seed {seed}");
        let now = policy.now();
        assert!(now.awake_bytes <= 12 && now.changing == 0, "seed {seed}: {now:?}");
    }
}

/// Ends all requests, and answers all orders well, until nothing is left to do.
fn settle(policy: &mut Policy, world: &mut World) {
    for _ in 0..1000 {
        let event = if let Some((function, ticket)) = world.served.pop_first() {
            Event::Gone { function, ticket }
        } else if !world.orders.is_empty() {
            world.answer(0, 1)
        } else {
            let actions = policy.step(Event::Tick);
            if actions.is_empty() {
                return;
            }
            world.take(actions);
            continue;
        };
        let actions = policy.step(event);
        world.take(actions);
    }
    panic!("it never comes to rest");
}
