//! The words and exit codes that containerd's and Docker's code knows runc by (`runtime::words`), each beside runc's own.

use super::world::{World, both, dormouse, status_of};

/// The command fails with this exit code and these words, which runc has as well.
fn fails(world: &World, args: &[&str], code: i32, words: &str) {
    let output = world.run(args);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{:?} {args:?}: {text}", world.runtime);
    assert!(text.contains(words), "{:?} {args:?}: {words:?} is missing in: {text}", world.runtime);
    if world.is_dormouse() {
        assert!(text.starts_with("dormouse: cannot ") && text.trim().lines().count() == 1, "{text}");
        assert!(args.iter().skip(1).any(|name| text.contains(name)), "the container is not named: {text}");
    }
}

const NONE: &str = "container does not exist";
const ENDED: &str = "container not running";

#[test]
fn of_one_that_there_is_not() {
    both(|world| {
        let commands: [&[&str]; 8] = [
            &["state", "nobody"],
            &["start", "nobody"],
            &["kill", "nobody", "TERM"],
            &["delete", "nobody"],
            &["pause", "nobody"],
            &["resume", "nobody"],
            &["ps", "nobody"],
            &["update", "--memory", "64M", "nobody"],
        ];
        for args in commands {
            fails(world, args, 1, NONE);
        }
        fails(world, &["exec", "nobody", "true"], 255, NONE);
        world.ok(&["delete", "--force", "nobody"]);
    });
}

#[test]
fn of_one_that_runs() {
    both(|world| {
        world.script("sleep 1000").create();
        fails(world, &world.with_bundle("create", &[]), 1, "container with given ID already exists");
        world.start();
        fails(world, &["start", &world.id], 1, "cannot start an already running container");
        fails(
            world,
            &["delete", &world.id],
            1,
            &format!("cannot delete container {} that is not stopped: running", world.id),
        );
        fails(world, &["resume", &world.id], 1, "container not paused");
        fails(world, &["kill", &world.id, "NOSUCH"], 1, "unknown signal ");
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn of_one_that_has_ended() {
    both(|world| {
        world.script("true").create().start();
        status_of(world.pid());
        world.wait_status("stopped");
        // The words by which containerd knows that a process has ended; it would try again for ever otherwise.
        fails(world, &["kill", &world.id, "TERM"], 1, ENDED);
        fails(world, &["kill", &world.id, "0"], 1, ENDED);
        world.ok(&["kill", "--all", &world.id, "KILL"]);
        fails(world, &["pause", &world.id], 1, ENDED);
        fails(world, &["resume", &world.id], 1, "container not paused");
        fails(world, &["update", "--memory", "64M", &world.id], 1, ENDED);
        fails(world, &["start", &world.id], 1, "cannot start a container that has stopped");
        fails(world, &["exec", &world.id, "true"], 255, "cannot exec in a stopped container");
        world.delete();
        fails(world, &["delete", &world.id], 1, NONE);
    });
}

#[test]
fn of_programs_that_cannot_be_run() {
    both(|world| {
        world.set("/process/args", serde_json::json!(["/bin/nothing"])).write();
        // Docker makes 127 of these.
        fails(world, &world.with_bundle("create", &[]), 1, "no such file or directory");
        world.set("/process/args", serde_json::json!(["/dev/null"])).write();
        let output = world.run(&world.with_bundle("create", &[]));
        let text = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(
            !output.status.success() && text.contains("permission denied"),
            "{:?}: {text}",
            world.runtime
        );
    });
}

#[test]
fn of_what_is_asked_of_one_that_runs() {
    both(|world| {
        world.script("sleep 1000").create().start();
        // As kill(2): is it there?
        world.ok(&["kill", &world.id, "0"]);
        assert_eq!(world.status(), "running");
        fails(world, &["start", &world.id], 1, "cannot start an already running container");
        fails(world, &["--log", "/nowhere/log", "state", &world.id], 1, "o such file or directory");
        world.ok(&["kill", &world.id, "KILL"]);
        status_of(world.pid());
        world.wait_status("stopped");
        world.delete();
    });
}

#[test]
fn a_command_line_that_is_none() {
    dormouse(|world| {
        for (args, code) in [(&["create"][..], 1), (&["exec"], 255), (&["do"], 125), (&["nothing"], 1)] {
            assert_eq!(world.run(args).status.code(), Some(code), "{args:?}");
        }
    });
}
