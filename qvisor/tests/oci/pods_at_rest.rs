//! Further containers of a pod that rest, by a signal or by `pause`, and the sleep of the whole pod.

use std::thread::sleep;
use std::time::Duration;

use libc::{SIGCONT, SIGSTOP};

use super::pods::{exec, pod, run};
use super::world::{World, assert_ended, signal, status_of, wait_for};

/// Writes a byte now and then.
const TICKING: &str = "echo ready; while :; do printf x >> /ticks; sleep 0.02; done";

fn ticks(world: &World) -> usize {
    std::fs::read(world.rootfs().join("ticks")).unwrap_or_default().len()
}

fn assert_rests(world: &World) {
    // The last one may be on its way.
    sleep(Duration::from_millis(100));
    let before = ticks(world);
    sleep(Duration::from_millis(200));
    assert_eq!(ticks(world), before, "it goes on");
}

fn wait_ticks(world: &World) {
    let before = ticks(world);
    wait_for(|| ticks(world) > before + 2, || "it rests".into());
}

#[test]
fn a_stopped_leash_has_its_container_rest_alone() {
    pod(|first| {
        let (one, two) = (run(first, TICKING), run(first, TICKING));
        wait_ticks(&one);
        signal(one.pid(), SIGSTOP);
        one.wait_status("paused");
        assert_rests(&one);
        wait_ticks(&two);
        assert_eq!((two.status().as_str(), first.status().as_str()), ("running", "running"));
        one.refused(&["exec", &one.id, "true"], &["paused"]);
        signal(one.pid(), SIGCONT);
        one.wait_status("running");
        wait_ticks(&one);
        // The same by order.
        one.ok(&["kill", &one.id, "STOP"]);
        one.wait_status("paused");
        assert_rests(&one);
        one.ok(&["kill", &one.id, "CONT"]);
        wait_ticks(&one);
    });
}

#[test]
fn a_pod_whose_containers_are_all_stopped_hibernates_and_goes_on_as_one() {
    pod(|first| {
        let (one, two) = (run(first, TICKING), run(first, TICKING));
        wait_ticks(&two);
        signal(one.pid(), SIGSTOP);
        one.wait_status("paused");
        signal(two.pid(), SIGSTOP);
        first.wait_state("hibernated");
        first.ok(&["wake", &first.id]);
        wait_ticks(&one);
        wait_ticks(&two);
        one.wait_status("running");
        // One that goes on wakes the pod, and with it the others.
        signal(one.pid(), SIGSTOP);
        one.wait_status("paused");
        signal(two.pid(), SIGSTOP);
        first.wait_state("hibernated");
        signal(one.pid(), SIGCONT);
        wait_ticks(&one);
        wait_ticks(&two);
        first.wait_awake();
    });
}

#[test]
fn a_pod_that_sleeps_wakes_for_the_start_of_a_container() {
    pod(|first| {
        let one = first.further("echo begun; exec sleep 1000");
        one.create();
        first.ok(&["hibernate", &first.id]);
        assert_eq!(first.sandbox_state(), "hibernated");
        one.start().wait_output("begun");
        first.wait_awake();
    });
}

#[test]
fn a_pause_stays_until_resume() {
    pod(|first| {
        let (one, two) = (run(first, TICKING), run(first, TICKING));
        wait_ticks(&one);
        one.ok(&["pause", &one.id]);
        assert_eq!(one.status(), "paused");
        assert_rests(&one);
        one.refused(&["pause", &one.id], &["already"]);
        signal(one.pid(), SIGCONT);
        two.ok(&["hibernate", &two.id]);
        assert_eq!(exec(&two, "echo awake"), "awake\n");
        wait_ticks(&two);
        assert_rests(&one);
        assert_eq!(one.status(), "paused");
        two.ok(&["hibernate", &two.id]);
        one.ok(&["resume", &one.id]);
        wait_ticks(&one);
        first.wait_awake();
        one.refused(&["resume", &one.id], &["not paused"]);
    });
}

#[test]
fn a_container_that_rests_can_be_ended() {
    pod(|first| {
        for how in ["pause", "stop"] {
            let one = run(first, TICKING);
            wait_ticks(&one);
            let (leash, keeper) = (one.pid(), one.vmm());
            if how == "pause" {
                one.ok(&["pause", &one.id]);
            } else {
                signal(leash, SIGSTOP);
                one.wait_status("paused");
            }
            one.ok(&["delete", "--force", &one.id]);
            assert_eq!(status_of(leash), libc::SIGKILL);
            assert_ended(&[keeper]);
            one.assert_gone();
        }
    });
}
