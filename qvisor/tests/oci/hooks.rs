//! Hooks: their order, namespaces and input, and the end of the container when they fail.

use std::path::Path;

use serde_json::{Value, json};
use serial_test::serial;

use super::world::{World, both, dormouse, status_of};

/// A hook that writes its name, its network namespace and the state it gets.
fn hook(world: &World, name: &str) -> Value {
    let log = world.dir.join("hooks");
    let text = format!(
        "s=$(cat); echo {name} $(readlink /proc/self/ns/net) $(readlink /proc/self/ns/mnt) $WORD \"$s\" >> {}",
        log.display()
    );
    json!({"path": "/bin/sh", "args": ["sh", "-c", text], "env": ["WORD=w", "PATH=/bin:/usr/bin"]})
}

fn all_hooks(world: &mut World) {
    let mut hooks = json!({});
    for name in ["prestart", "createRuntime", "createContainer", "poststart", "poststop"] {
        hooks[name] = json!([hook(world, &format!("{name}-1")), hook(world, &format!("{name}-2"))]);
    }
    world.set("/hooks", hooks);
}

#[test]
#[serial(mounts)]
fn a_hook_inside_runs_before_the_first_process() {
    both(|world| {
        let text = "cat >/state; id -u >>/log; echo $WORD $(pwd) $(ls /) >>/log";
        let inside = json!({"path": "/bin/sh", "args": ["sh", "-c", text], "env": ["WORD=w", "PATH=/bin"]});
        world.set("/hooks", json!({"startContainer": [inside]}));
        world.script("cat /log; echo began").create();
        assert!(!world.rootfs().join("log").exists(), "{:?}: it ran before the start", world.runtime);
        world.start().wait_output("began");
        assert!(world.read("out").starts_with("0\nw / "), "{:?}: {}", world.runtime, world.read("out"));
        let state: Value =
            serde_json::from_slice(&std::fs::read(world.rootfs().join("state")).unwrap()).unwrap();
        assert_eq!(state["id"], json!(world.id), "{:?}", world.runtime);
        world.wait_status("stopped");
        world.ok(&["delete", &world.id]);
    });
}

#[test]
#[serial(mounts)]
fn a_hook_inside_that_fails_keeps_it_from_starting() {
    both(|world| {
        let inside =
            json!({"path": "/bin/sh", "args": ["sh", "-c", "echo sorry; exit 3"], "env": ["PATH=/bin"]});
        world.set("/hooks", json!({"startContainer": [inside]}));
        world.script("echo began").create();
        let output = world.run(&["start", &world.id]);
        if world.is_dormouse() {
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(
                words.contains("startContainer hook /bin/sh") && words.contains("code 3 (sorry)"),
                "{words}"
            );
        }
        world.ok(&["delete", "--force", &world.id]);
        assert!(!world.read("out").contains("began"), "{:?}", world.runtime);
        world.assert_gone();
    });
}

#[test]
#[serial(mounts)]
fn a_hook_inside_may_say_any_amount() {
    both(|world| {
        let text = "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo enough; exit 4";
        let inside = json!({"path": "/bin/sh", "args": ["sh", "-c", text], "env": ["PATH=/bin:/usr/bin"]});
        world.set("/hooks", json!({"startContainer": [inside]}));
        world.script("echo began").create();
        let output = world.run(&["start", &world.id]);
        if world.is_dormouse() {
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(words.contains("code 4") && words.contains("xx, enough)"), "{words}");
            assert!(words.len() < 4000, "{}", words.len());
        }
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
#[serial(mounts)]
fn of_two_starts_one_runs_the_hooks() {
    dormouse(|world| {
        let text = "echo once >>/log; sleep 0.3";
        let inside = json!({"path": "/bin/sh", "args": ["sh", "-c", text], "env": ["PATH=/bin:/usr/bin"]});
        world.set("/hooks", json!({"startContainer": [inside]}));
        world.script("cat /log; echo began; exec sleep 100").create();
        let world = &*world;
        let codes: Vec<_> = std::thread::scope(|scope| {
            let starts = [(); 3].map(|()| scope.spawn(|| world.run(&["start", &world.id]).status.success()));
            starts.map(|start| start.join().unwrap()).into()
        });
        assert_eq!(codes.iter().filter(|is_ok| **is_ok).count(), 1, "{codes:?}");
        world.wait_output("began");
        assert_eq!(world.read("out"), "once\nbegan\n");
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
#[serial(mounts)]
fn they_run_in_their_order_and_their_namespaces() {
    both(|world| {
        all_hooks(world);
        world.script("sleep 1000").create();
        let names = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
        };
        let numbered = |names: &[&str]| -> Vec<String> {
            names.iter().flat_map(|name| [format!("{name}-1"), format!("{name}-2")]).collect()
        };
        let first = ["prestart", "createRuntime", "createContainer"];
        let found = names(&world.read("hooks"));
        if world.is_dormouse() {
            assert_eq!(found, numbered(&first));
        } else {
            // Versions of runc differ in when poststart runs.
            assert_eq!(found[..6], numbered(&first));
        }
        let pid = world.pid();
        let container = std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        let host = std::fs::read_link("/proc/self/ns/net").unwrap();
        for line in world.read("hooks").lines().take(6) {
            let fields: Vec<&str> = line.splitn(5, ' ').collect();
            let inside = fields[0].starts_with("createContainer");
            let expected = if inside { &container } else { &host };
            assert_eq!(Path::new(fields[1]), expected, "{line}");
            let mounts = std::fs::read_link("/proc/self/ns/mnt").unwrap();
            assert_eq!(Path::new(fields[2]) != mounts, inside, "{line}");
            assert_eq!(fields[3], "w");
            let state: Value = serde_json::from_str(fields[4]).unwrap();
            // runc tells the pid in the container's namespace, which says nothing.
            assert!(state["pid"] == pid || inside && !world.is_dormouse(), "{line}");
            assert_eq!(state["id"], world.id.as_str());
            assert_eq!(state["status"], "creating");
        }
        world.start();
        let so_far = [&first[..], &["poststart"]].concat();
        assert_eq!(names(&world.read("hooks")), numbered(&so_far));
        world.ok(&["kill", &world.id, "KILL"]);
        status_of(pid);
        world.wait_status("stopped");
        world.delete();
        let all = [&so_far[..], &["poststop"]].concat();
        assert_eq!(names(&world.read("hooks")), numbered(&all));
        let last: Vec<String> = world.read("hooks").lines().map(str::to_owned).collect();
        assert!(last.last().unwrap().contains("stopped"), "{last:?}");
    });
}

#[test]
fn one_that_fails_undoes_everything() {
    for kind in ["prestart", "createRuntime", "createContainer"] {
        dormouse(|world| {
            all_hooks(world);
            let bad = json!([{"path": "/bin/sh", "args": ["sh", "-c", "echo why not >&2; exit 3"]}]);
            world.set(&format!("/hooks/{kind}"), bad).write();
            let words = [kind, "/bin/sh", "exit code 3", "why not"];
            world.refused(&world.with_bundle("create", &[]), &words);
            world.assert_gone();
            assert!(world.read("hooks").contains("poststop-2"), "{kind}: {}", world.read("hooks"));
            world.set(&format!("/hooks/{kind}"), json!([{"path": "/no/such/hook"}])).write();
            world.refused(&world.with_bundle("create", &[]), &[kind, "/no/such/hook", "cannot be started"]);
            world.assert_gone();
        });
    }
}

#[test]
fn one_that_hangs_is_ended() {
    for kind in ["prestart", "createContainer"] {
        dormouse(|world| {
            let hangs = json!([{"path": "/bin/sleep", "args": ["sleep", "1000"], "timeout": 1}]);
            world.set("/hooks", json!({kind: hangs})).write();
            world.refused(&world.with_bundle("create", &[]), &[kind, "/bin/sleep", "longer than 1 s"]);
            world.assert_gone();
        });
    }
}

#[test]
fn late_ones_only_warn() {
    dormouse(|world| {
        let bad = json!([{"path": "/bin/false"}, hook(world, "after")]);
        world.set("/hooks", json!({"poststart": bad, "poststop": bad})).script("sleep 1000").create();
        let output = world.run(&["start", &world.id]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("poststart hook /bin/false"), "{text}");
        assert_eq!(world.status(), "running");
        let output = world.run(&["delete", "--force", &world.id]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("poststop hook /bin/false"), "{text}");
        assert_eq!(world.read("hooks").matches("after").count(), 2);
        world.assert_gone();
    });
}

#[test]
fn one_may_leave_something_running() {
    dormouse(|world| {
        let text = "sleep 30 & echo $! > ";
        let file = world.dir.join("left");
        let args = json!(["sh", "-c", format!("{text}{}", file.display())]);
        world.set("/hooks", json!({"prestart": [{"path": "/bin/sh", "args": args}]})).script("true").create();
        let left: i32 = world.read("left").trim().parse().unwrap();
        assert!(super::world::lives(left), "what a hook leaves is its own");
        super::world::signal(left, libc::SIGKILL);
        world.ok(&["delete", "--force", &world.id]);
    });
}
