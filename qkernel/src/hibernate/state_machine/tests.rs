//! The transitions of the state machine.

use super::*;

/// The wake event of these tests.
const COMES: WakeEvent = WakeEvent::Stream;

fn hibernate(request: i64, is_hastened: bool) -> Input {
    Input::Hibernate(Order { request, since_ns: 0, is_hastened, is_held: false, stays: false })
}

fn resume(request: i64) -> Input {
    Input::Resume { request, serves: false }
}

/// Where these inputs lead, and the actions of the last one.
fn after(inputs: &[Input]) -> (HibernationMachine, Vec<Action>) {
    let mut machine = HibernationMachine::new();
    let mut last = Vec::new();
    for input in inputs {
        last = machine.step(*input).iter().collect();
    }
    (machine, last)
}

const BACK: Input = Input::BroughtBack { streams: false };

#[test]
fn each_transition_leads_where_the_table_says() {
    use Input::{CalledOut, Frozen, Pause, Stored, Told};
    let down = [hibernate(1, false), Frozen, Stored, Told(1)];
    let order = Order { request: 1, since_ns: 0, is_hastened: false, is_held: false, stays: false };
    let table: &[(&[Input], State, &[Action])] = &[
        (&[Pause(1)], State::Pausing(1), &[Action::Pause(1)]),
        (&[Pause(1), CalledOut(1)], State::Paused, &[]),
        (&[Pause(1), resume(2)], State::Running, &[Action::Resume(2)]),
        (&[Pause(1), CalledOut(1), resume(2)], State::Running, &[Action::Resume(2)]),
        (&[hibernate(1, true)], State::Pausing(1), &[Action::Pause(1)]),
        (&[hibernate(1, false)], State::Running, &[]),
        (&[hibernate(1, false), hibernate(1, true)], State::Pausing(1), &[Action::Pause(1)]),
        (&down[..2], State::Hibernating(1), &[Action::Pause(1), Action::Store(order)]),
        (&down[..3], State::Answering(1), &[Action::Tell(1, Outcome::Done)]),
        (&down, State::Hibernated, &[]),
        (&[&down[..], &[hibernate(1, true)]].concat(), State::Hibernated, &[]),
        (
            &[&down[..], &[hibernate(2, true), Frozen]].concat(),
            State::Answering(2),
            &[Action::Tell(2, Outcome::Already)],
        ),
        (&[&down[..], &[resume(2)]].concat(), State::Waking(2), &[Action::BringBack]),
        (&[&down[..], &[resume(2), BACK]].concat(), State::Running, &[Action::Resume(2)]),
        (
            &[&down[..], &[resume(2), hibernate(3, true), BACK]].concat(),
            State::Pausing(3),
            &[Action::Pause(3)],
        ),
        (
            &[&down[..], &[Input::WakeEvent(COMES)]].concat(),
            State::Waking(1),
            &[Action::TellWakeEvent(COMES), Action::BringBack],
        ),
        (
            &[&down[..], &[Input::WakeEvent(COMES), BACK]].concat(),
            State::Running,
            &[Action::Resume(1), Action::TellIdle],
        ),
    ];
    for (inputs, state, actions) in table {
        let (machine, last) = after(inputs);
        assert_eq!((machine.state(), &last[..]), (*state, *actions), "{inputs:?}");
    }
}

#[test]
fn the_last_request_counts_in_whatever_order_they_are_taken() {
    let (machine, last) = after(&[resume(3), Input::Pause(2), hibernate(1, true)]);
    assert_eq!((machine.state(), machine.goal(), &last[..]), (State::Running, Goal::Run, &[][..]));
    let (_, last) = after(&[hibernate(1, false), resume(2)]);
    assert_eq!(last, [Action::Tell(1, Outcome::Cancelled), Action::Resume(2)]);
}

#[test]
fn a_wake_event_on_the_way_down_wakes_it_once_it_sleeps_and_means_nothing_in_a_pause() {
    let down = [hibernate(1, true), Input::CalledOut(1), Input::Frozen, Input::Stored, Input::Told(1)];
    for at in 1..down.len() {
        let mut inputs = down.to_vec();
        inputs.insert(at, Input::WakeEvent(COMES));
        let (machine, last) = after(&inputs);
        assert_eq!(machine.state(), State::Waking(1), "{inputs:?}");
        assert_eq!(last, [Action::TellWakeEvent(COMES), Action::BringBack]);
    }
    let paused = [Input::Pause(1), Input::CalledOut(1), Input::WakeEvent(COMES), hibernate(2, true)];
    let (machine, _) =
        after(&[&paused[..], &[Input::CalledOut(2), Input::Frozen, Input::Stored, Input::Told(2)]].concat());
    assert_eq!(machine.state(), State::Hibernated);
}

#[test]
fn what_is_held_goes_on_by_request_alone() {
    let held =
        Input::Hibernate(Order { request: 1, since_ns: 0, is_hastened: true, is_held: true, stays: false });
    let down = [held, Input::CalledOut(1), Input::Frozen, Input::Stored, Input::Told(1)];
    for at in 0..=down.len() {
        let mut inputs = down.to_vec();
        inputs.insert(at, Input::WakeEvent(COMES));
        assert_eq!(after(&inputs).0.state(), State::Hibernated, "{inputs:?}");
    }
    let later = |request| [&down[..], &[request, Input::WakeEvent(COMES)]].concat();
    assert_eq!(after(&later(Input::Hold(2))).0.state(), State::Hibernated);
    assert_eq!(after(&later(Input::Pause(2))).0.state(), State::Waking(2));
    assert_eq!(after(&later(resume(2))).0.state(), State::Waking(2));
    let first = [
        hibernate(1, true),
        Input::CalledOut(1),
        Input::WakeEvent(COMES),
        Input::Hold(2),
        Input::CalledOut(2),
    ];
    assert_eq!(after(&first).0.state(), State::Paused);
}

#[test]
fn memory_that_has_stayed_is_stored_by_the_next_order() {
    use Input::{CalledOut, Frozen, NotStored, Stored, Told};
    let stays = Order { request: 1, since_ns: 0, is_hastened: true, is_held: true, stays: true };
    let down = [Input::Hibernate(stays), CalledOut(1), Frozen, Stored, Told(1)];
    let order = Order { request: 2, is_held: false, stays: false, ..stays };
    let again = |more: &[Input]| after(&[&down[..], &[Input::Hibernate(order)], more].concat());
    // Not before everything is at rest.
    assert_eq!(again(&[Input::NotFrozen { now_ns: PATIENCE_NS - 1 }]).0.state(), State::Hibernated);
    let late = again(&[Input::NotFrozen { now_ns: PATIENCE_NS }]);
    assert_eq!(late.1, [Action::Tell(2, Outcome::Failed(Obstacle::Busy)), Action::BringBack]);
    let (machine, actions) = again(&[Frozen]);
    assert_eq!((machine.state(), actions), (State::Hibernating(2), vec![Action::Store(order)]));
    assert_eq!(again(&[Frozen, Stored]).1, [Action::Tell(2, Outcome::Done)]);
    // Now it is in its home.
    let third = Input::Hibernate(Order { request: 3, ..order });
    assert_eq!(again(&[Frozen, Stored, Told(2), third, Frozen]).1, [Action::Tell(3, Outcome::Already)]);
    // What could not be stored stays: it is tried again, or the sandbox is woken.
    let busy = NotStored { why: Obstacle::Busy, now_ns: 0 };
    assert_eq!(again(&[Frozen, busy, Frozen]).1, [Action::Store(order)]);
    let failed = NotStored { why: Obstacle::Store, now_ns: 0 };
    let (machine, actions) = again(&[Frozen, failed]);
    assert_eq!(machine.state(), State::Waking(2));
    assert_eq!(actions, [Action::Tell(2, Outcome::Failed(Obstacle::Store)), Action::BringBack]);
    // After a wake nothing has stayed.
    assert_eq!(after(&[&down[..], &[resume(2), BACK]].concat()).0.state(), State::Running);
    for is_image in [false, true] {
        let mut machine = after(&down).0;
        machine.count_anew(is_image);
        machine.step(Input::Hibernate(Order { request: 1, ..order }));
        let actions: Vec<_> = machine.step(Frozen).iter().collect();
        assert_eq!(actions == [Action::Tell(1, Outcome::Already)], is_image, "{actions:?}");
    }
    let fourth = Order { request: 4, ..stays };
    assert_eq!(again(&[Frozen, Stored, Told(2), Input::Hibernate(fourth), Frozen]).1.len(), 1);
}

#[test]
fn whatever_fails_leaves_it_running() {
    for why in [Obstacle::NoMemory, Obstacle::Store] {
        let failed = Input::NotStored { why, now_ns: 0 };
        let (machine, last) = after(&[hibernate(1, false), Input::Frozen, failed]);
        assert_eq!(machine.state(), State::Running);
        assert_eq!(last, [Action::Tell(1, Outcome::Failed(why)), Action::Resume(1)]);
    }
    let early = Input::NotFrozen { now_ns: PATIENCE_NS - 1 };
    let (machine, last) = after(&[hibernate(1, false), early]);
    assert!(machine.is_wanted() && last.is_empty());
    let (machine, last) = after(&[hibernate(1, false), early, Input::NotFrozen { now_ns: PATIENCE_NS }]);
    assert!(!machine.is_wanted());
    assert_eq!(last, [Action::Tell(1, Outcome::Failed(Obstacle::Busy)), Action::Resume(1)]);
}

#[test]
fn nothing_is_stored_while_pages_come_back() {
    let (mut machine, last) = after(&[
        hibernate(1, false),
        Input::Frozen,
        Input::Stored,
        Input::Told(1),
        resume(2),
        Input::BroughtBack { streams: true },
    ]);
    assert_eq!(last, [Action::Resume(2), Action::Stream]);
    machine.step(hibernate(3, false));
    assert!(machine.step(Input::Frozen).is_empty() && !machine.wants_freeze());
    machine.step(Input::Streamed);
    assert!(machine.wants_freeze());
}
