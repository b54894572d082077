//! From `create` to `delete`.

use serde_json::json;

use super::world::{both, children, dormouse, status_of, wait_for};

#[test]
fn step_by_step() {
    both(|world| {
        world.script("echo began; exit 7").set("/annotations", json!({"org.example": "yes"})).create();
        let state = world.state();
        assert_eq!(state["status"], "created");
        assert_eq!(state["id"], world.id.as_str());
        assert_eq!(state["pid"], world.pid());
        assert_eq!(state["annotations"]["org.example"], "yes");
        assert_eq!(state["bundle"], world.dir.to_str().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(world.read("out"), "", "it waits for its start");
        world.start();
        assert_eq!(libc::WEXITSTATUS(status_of(world.pid())), 7);
        world.wait_status("stopped");
        assert_eq!(world.read("out"), "began\n");
        assert_eq!(world.state()["pid"], 0);
        world.delete();
        assert!(!world.run(&["state", &world.id]).status.success());
    });
}

#[test]
fn what_is_out_of_order_is_refused() {
    both(|world| {
        world.config["process"]["args"] = json!(["sleep", "1000"]);
        let world = &*world;
        let fails = |args: &[&str]| {
            let output = world.run(args);
            assert!(!output.status.success(), "{:?} {args:?}", world.runtime);
        };
        fails(&["start", &world.id]);
        fails(&["delete", &world.id]);
        world.ok(&["delete", "--force", &world.id]);
        world.create();
        fails(&world.with_bundle("create", &[]));
        assert_eq!(world.status(), "created", "the second one did it no harm");
        world.start();
        fails(&["start", &world.id]);
        fails(&["delete", &world.id]);
        fails(&world.with_bundle("run", &[]));
        assert_eq!(world.status(), "running");
        world.ok(&["kill", &world.id, "KILL"]);
        assert_eq!(libc::WTERMSIG(status_of(world.pid())), libc::SIGKILL);
        world.wait_status("stopped");
        fails(&["start", &world.id]);
        fails(&["kill", &world.id, "TERM"]);
        world.delete();
    });
}

#[test]
fn messages_say_what_to_do() {
    dormouse(|world| {
        let id = world.id.clone();
        world.refused(&["start", &id], &["cannot find sandbox", "dormouse list"]);
        world.refused(&["delete", &id], &["cannot find sandbox"]);
        world.config["process"]["args"] = json!(["sleep", "1000"]);
        world.create().start();
        world.refused(&["start", &id], &["cannot start container", "already running container"]);
        world.refused(&["delete", &id], &["cannot delete container", "not stopped: running", "--force"]);
        world.refused(&world.with_bundle("create", &[]), &["given ID already exists"]);
        world.refused(&["kill", &id, "NOPE"], &["unknown signal"]);
        world.ok(&["delete", "--force", &id]);
        world.assert_gone();
        world.refused(&["delete", "../x"], &["as a sandbox's ID"]);
    });
}

#[test]
fn a_created_container_can_be_deleted() {
    both(|world| {
        world.script("echo never").create();
        world.ok(&["delete", "--force", &world.id]);
        status_of(world.pid());
        world.assert_gone();
        assert_eq!(world.read("out"), "");
    });
}

#[test]
fn detached_and_in_the_foreground() {
    both(|world| {
        world.script("trap 'exit 5' TERM; while :; do sleep 0.05; done").write();
        let status = world
            .command(
                &world
                    .with_bundle("run", &["--detach", "--pid-file", world.dir.join("pid").to_str().unwrap()]),
            )
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        world.wait_status("running");
        // The trap is set a moment after the start.
        wait_for(
            || {
                let _ = world.run(&["kill", &world.id, "TERM"]);
                world.status() == "stopped"
            },
            || "it does not end".into(),
        );
        assert_eq!(libc::WEXITSTATUS(status_of(world.pid())), 5);
        world.delete();
        world.script("echo words; exit 3");
        let (code, out, _) = world.run_container();
        assert_eq!((code, out.as_str()), (Some(3), "words\n"));
        world.assert_gone();
    });
}

#[test]
fn signals_to_the_foreground_are_the_containers() {
    both(|world| {
        world.script("trap 'echo got; exit 4' USR1; echo ready; while :; do sleep 0.05; done").write();
        let out = std::fs::File::create(world.dir.join("out")).unwrap();
        let mut front = world.command(&world.with_bundle("run", &[])).stdout(out).spawn().unwrap();
        world.wait_output("ready");
        super::world::signal(front.id().cast_signed(), libc::SIGUSR1);
        assert_eq!(front.wait().unwrap().code(), Some(4));
        assert!(world.read("out").contains("got"));
        world.assert_gone();
    });
}

#[test]
fn the_foreground_takes_its_container_along() {
    dormouse(|world| {
        world.script("echo ready; sleep 1000").write();
        let out = std::fs::File::create(world.dir.join("out")).unwrap();
        let mut front = world.command(&world.with_bundle("run", &[])).stdout(out).spawn().unwrap();
        world.wait_output("ready");
        let family = world.family();
        front.kill().unwrap();
        front.wait().unwrap();
        super::world::assert_ended(&family);
        assert_eq!(world.status(), "stopped");
        world.delete();
    });
}

#[test]
fn lists_show_containers() {
    dormouse(|world| {
        world.script("sleep 1000").create();
        let list = world.ok(&["list"]);
        assert!(list.contains(&world.id) && list.contains("created"), "{list}");
        world.start();
        let list: serde_json::Value = serde_json::from_str(&world.ok(&["list", "--json"])).unwrap();
        assert_eq!(list[0]["status"], "running");
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn errors_and_remarks_go_to_the_log() {
    dormouse(|world| {
        world.set("/linux/mountLabel", json!("label")).script("true").write();
        let log = world.dir.join("log");
        let mut args = vec!["--log", log.to_str().unwrap(), "--log-format", "json"];
        args.extend(world.with_bundle("run", &[]));
        world.ok(&args);
        assert!(world.read("log").contains("linux.mountLabel is not applied"), "{}", world.read("log"));
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        world.config["process"]["args"] = json!(["nosuch"]);
        world.write();
        assert_eq!(world.run(&args).status.code(), Some(127));
        let last = world.read("log").lines().last().unwrap().to_owned();
        let last: serde_json::Value = serde_json::from_str(&last).unwrap();
        assert_eq!(last["level"], "error");
        assert!(last["msg"].as_str().unwrap().contains("nosuch"));
    });
}

#[test]
fn a_default_bundle_runs() {
    dormouse(|world| {
        let dir = world.dir.to_str().unwrap().to_owned();
        world.ok(&["spec", "--bundle", &dir]);
        world.refused(&["spec", "--bundle", &dir], &["cannot write", "config.json", "File exists"]);
        let text = world.read("config.json");
        world.config = serde_json::from_str(&text).unwrap();
        world.set("/process/terminal", json!(false)).script("echo $0 $(id -u)");
        assert_eq!(world.output(), "sh 0\n");
    });
}

#[test]
fn many_at_once() {
    dormouse(|world| {
        world.script("exit 9").write();
        let ids: Vec<String> = (0..8).map(|n| format!("{}-{n}", world.id)).collect();
        std::thread::scope(|scope| {
            for id in &ids {
                let world = &*world;
                scope.spawn(move || {
                    let mut args = world.with_bundle("run", &[]);
                    args.pop();
                    args.push(id);
                    assert_eq!(world.run(&args).status.code(), Some(9));
                });
            }
        });
        assert_eq!(world.groups(), Vec::<std::path::PathBuf>::new());
        assert!(children(1).len() < 1000);
    });
}
