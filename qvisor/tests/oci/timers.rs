//! Timers of containers that sleep, by annotation.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::world::{World, dormouse, wait_for};

/// Longer than the programs' timers take.
const A_WHILE: Duration = Duration::from_secs(4);

fn timer_wakes(world: &World) -> u64 {
    let stats: Value = serde_json::from_str(&world.ok(&["stats", "--json", &world.id])).unwrap();
    stats["timer_wakes"].as_u64().unwrap()
}

/// A container whose program waits for a timer again and again.
fn begin<'a>(world: &'a mut World, annotations: &Value) -> &'a World {
    world.set("/annotations", annotations.clone());
    world.script("echo up; while sleep 2; do echo due; done").create();
    world.start().wait_output("up");
    world
}

#[test]
fn a_timer_wakes_a_container_whose_annotation_asks_for_it() {
    dormouse(|world| {
        let world =
            begin(world, &json!({"dev.dormouse.timers": "wake:1s", "dev.dormouse.idle-timeout": "300ms"}));
        for wakes in 1..=2 {
            wait_for(|| timer_wakes(world) >= wakes, || "no timer wakes it".into());
        }
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn no_timer_wakes_a_container_without_it() {
    dormouse(|world| {
        let world = begin(world, &json!({"dev.dormouse.idle-timeout": "300ms"}));
        world.wait_state("hibernated");
        sleep(A_WHILE);
        assert_eq!((world.sandbox_state(), timer_wakes(world)), ("hibernated".into(), 0));
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn no_timer_wakes_one_that_is_paused_and_what_was_due_comes_when_it_is_resumed() {
    for pause in ["hibernate", "freeze"] {
        dormouse(|world| {
            let world = begin(world, &json!({"dev.dormouse.timers": "wake:1s", "dev.dormouse.pause": pause}));
            world.ok(&["pause", &world.id]);
            let said = world.read("out");
            let wakes = timer_wakes(world);
            sleep(A_WHILE);
            assert_eq!((world.status(), timer_wakes(world)), ("paused".into(), wakes), "{pause}");
            assert_eq!(world.read("out"), said, "{pause}");
            world.ok(&["resume", &world.id]);
            wait_for(|| world.read("out").len() > said.len(), || format!("{pause}: its timer is lost"));
            world.ok(&["delete", "--force", &world.id]);
        });
    }
}
