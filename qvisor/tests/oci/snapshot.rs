//! Snapshots by their commands: a container is written, and others go on from there.

use std::fs;

use serde_json::{Value, json};

use super::settings::{configure, create};
use super::world::{World, dormouse, is_stopped, wait_for};

/// A script that shows by its output how far it is.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done";

/// Gives the world snapshots of its own.
fn with_store(world: &mut World) {
    let store = world.dir.join("snapshots").to_str().unwrap().to_owned();
    world.env.push(("DORMOUSE_SNAPSHOTS", store.leak()));
}

fn numbers(world: &World) -> Vec<u64> {
    world.read("out").lines().filter_map(|line| line.parse().ok()).collect()
}

fn counts_on(world: &World) -> u64 {
    let before = numbers(world).len();
    wait_for(|| numbers(world).len() > before + 2, || "it does not go on".into());
    numbers(world).last().copied().unwrap()
}

fn end(world: &World) {
    world.ok(&["kill", &world.id, "KILL"]);
    world.wait_status("stopped");
    world.delete();
}

#[test]
fn a_clone_goes_on_where_its_snapshot_was_made() {
    dormouse(|world| {
        with_store(world);
        let data = world.dir.join("data");
        fs::create_dir(&data).unwrap();
        world.mount(json!({"destination": "/data", "type": "bind", "source": data, "options": ["rbind"]}));
        world.script(COUNTER).create();
        world.start();
        counts_on(world);
        world.ok(&["checkpoint", "--leave-running", "--name", "early", &world.id]);
        counts_on(world);
        world.ok(&["checkpoint", &world.id]);
        world.wait_status("stopped");
        let last = numbers(world).last().copied().unwrap();
        world.delete();
        world.ok(&["snapshot", "verify", &world.id]);
        let listed: Value = serde_json::from_str(&world.ok(&["snapshot", "list", "--json"])).unwrap();
        let names: Vec<_> = listed.as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["early", world.id.as_str()]);
        // By the annotation it is created asleep, and nothing but the start wakes it.
        let name = world.id.clone();
        world.annotate("dev.dormouse.snapshot", &name).write();
        world.refused(&world.with_bundle("create", &[]), &["dev.dormouse.snapshot", "strangers"]);
        let config = configure(world, "allow = ['snapshot']");
        create(world, &config);
        assert_eq!((world.status().as_str(), world.sandbox_state().as_str()), ("created", "hibernated"));
        wait_for(|| is_stopped(world.pid()), || "its leash is not stopped".into());
        world.refused(&["wake", &world.id], &["start it first"]);
        assert_eq!(world.read("out"), "");
        world.start();
        counts_on(world);
        assert_eq!(numbers(world)[0], last + 1);
        assert!(!is_stopped(world.pid()));
        end(world);
        // A snapshot that was removed is none.
        world.ok(&["snapshot", "remove", &world.id]);
        let options = ["--config", config.as_str()];
        world.refused(&world.with_bundle("create", &options), &["there is none"]);
        world.annotate("dev.dormouse.snapshot", "early").set("/mounts", json!([])).write();
        world
            .refused(&world.with_bundle("create", &options), &["made with a mount at /", "the bundle lacks"]);
    });
}

#[test]
fn a_clone_is_restored_from_a_directory_and_sleeps_like_any_other() {
    dormouse(|world| {
        with_store(world);
        world.script(COUNTER).create();
        world.start();
        counts_on(world);
        let image = world.dir.join("image");
        let image = image.to_str().unwrap();
        world.ok(&["checkpoint", "--image-path", image, &world.id]);
        world.wait_status("stopped");
        let last = numbers(world).last().copied().unwrap();
        world.delete();
        let (out, pid) = (fs::File::create(world.dir.join("out")).unwrap(), world.dir.join("pid"));
        let args =
            ["restore", "--detach", "--image-path", image, "--pid-file", pid.to_str().unwrap(), &world.id];
        assert!(world.command(&args).stdout(out).status().unwrap().success());
        counts_on(world);
        assert_eq!(numbers(world)[0], last + 1);
        world.ok(&["hibernate", &world.id]);
        world.ok(&["wake", &world.id]);
        counts_on(world);
        // A clone of the clone.
        world.ok(&["checkpoint", "--name", "second", "--leave-running", &world.id]);
        counts_on(world);
        world.ok(&["snapshot", "verify", "second"]);
        end(world);
    });
}
