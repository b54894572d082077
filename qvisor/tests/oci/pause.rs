//! `pause`, `resume` and `ps`, beside runc.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use super::world::{World, both, dormouse, is_stopped, signal, status_of, wait_for};

const COUNTS: &str = "i=0; while true; do i=$((i+1)); echo $i >> /ticks; sleep 0.02; done";

fn ticks(world: &World) -> usize {
    std::fs::read_to_string(world.rootfs().join("ticks")).unwrap_or_default().lines().count()
}

/// Nothing runs in it.
fn rests(world: &World) {
    let before = ticks(world);
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(ticks(world), before, "{:?}", world.runtime);
}

fn goes_on(world: &World) {
    let before = ticks(world);
    wait_for(|| ticks(world) > before + 1, || format!("{:?} does not go on", world.runtime));
}

#[test]
fn only_resume_ends_it() {
    both(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id))).script(COUNTS).create().start();
        goes_on(world);
        world.ok(&["pause", &world.id]);
        assert_eq!(world.status(), "paused");
        rests(world);
        let output = world.run(&["pause", &world.id]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("container not running"));
        let output = world.run(&["exec", &world.id, "true"]);
        assert_eq!(output.status.code(), Some(255));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("cannot exec in a paused container (use --ignore-paused to override)"),
            "{said}"
        );
        // Signals wait.
        world.ok(&["kill", &world.id, "CONT"]);
        signal(world.pid(), libc::SIGCONT);
        rests(world);
        assert_eq!(world.status(), "paused");
        world.ok(&["resume", &world.id]);
        assert_eq!(world.status(), "running");
        goes_on(world);
        world.ok(&["pause", &world.id]);
        world.ok(&["kill", &world.id, "KILL"]);
        world.wait_status("stopped");
        world.ok(&["delete", &world.id]);
    });
}

#[test]
fn before_its_start() {
    both(|world| {
        world.script("sleep 1000").create();
        world.ok(&["pause", &world.id]);
        assert_eq!(world.status(), "paused");
        world.ok(&["resume", &world.id]);
        assert_eq!(world.status(), "created");
        world.start();
        world.ok(&["delete", "--force", &world.id]);
    });
}

/// A server that answers each connection, on a port that it prints.
fn server(world: &mut World) -> bool {
    let namespaces = json!([{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]);
    world.set("/linux/namespaces", namespaces);
    world.config.as_object_mut().unwrap().remove("hostname");
    let nc = std::process::Command::new("/bin/busybox").args(["nc", "--help"]).output();
    nc.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("-l"))
}

#[test]
fn it_may_hibernate_and_no_request_wakes_it() {
    dormouse(|world| {
        if !server(world) {
            return;
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        world.set("/annotations", json!({"dev.dormouse.pause": "hibernate"}));
        let script = format!("while true; do echo hello | busybox nc -l -p {port}; done");
        world.script(&script).create().start();
        world.wait_state("warm");
        let ask = || {
            let mut said = String::new();
            let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.set_read_timeout(Some(Duration::from_millis(300))).ok()?;
            let _ = stream.write_all(b"?");
            stream.read_to_string(&mut said).ok()?;
            Some(said)
        };
        wait_for(|| ask().is_some_and(|said| said == "hello\n"), || "no answer".into());
        world.ok(&["pause", &world.id]);
        assert_eq!((world.status(), world.sandbox_state()), ("paused".into(), "hibernated".into()));
        assert_eq!(ask(), None, "a request wakes it");
        world.ok(&["kill", &world.id, "CONT"]);
        signal(world.pid(), libc::SIGCONT);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!((world.status(), world.sandbox_state()), ("paused".into(), "hibernated".into()));
        wait_for(|| is_stopped(world.pid()), || "the leash goes on".into());
        world.ok(&["resume", &world.id]);
        wait_for(|| ask().is_some_and(|said| said == "hello\n"), || "no answer after resume".into());
        assert_eq!(world.status(), "running");
        world.ok(&["pause", &world.id]);
        world.ok(&["wake", &world.id]);
        wait_for(|| ask().is_some_and(|said| said == "hello\n"), || "no answer after wake".into());
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn processes_are_listed() {
    both(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id)));
        world.script("sleep 1000 & exec sleep 2000").create().start();
        let pid_file = world.dir.join("exec-pid");
        // The process keeps the streams.
        let mut exec = world.command(&[
            "exec",
            "--detach",
            "--pid-file",
            pid_file.to_str().unwrap(),
            &world.id,
            "sleep",
            "3000",
        ]);
        assert!(exec.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
        let exec: i64 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        let pids: Value = serde_json::from_str(&world.ok(&["ps", "--format", "json", &world.id])).unwrap();
        let pids: Vec<i64> = pids.as_array().unwrap().iter().map(|pid| pid.as_i64().unwrap()).collect();
        assert!(
            pids.contains(&i64::from(world.pid())) && pids.contains(&exec),
            "{:?}: {pids:?}",
            world.runtime
        );
        // Docker shows what the host's ps says of them.
        let shown = |pid: i64| {
            let ps = std::process::Command::new("ps")
                .args(["-o", "args=", "-p", &pid.to_string()])
                .output()
                .unwrap();
            String::from_utf8_lossy(&ps.stdout).trim().to_owned()
        };
        assert!(
            shown(world.pid().into()).contains("sleep 2000"),
            "{:?}: {}",
            world.runtime,
            shown(world.pid().into())
        );
        assert_eq!(shown(exec), "sleep 3000", "{:?}", world.runtime);
        wait_for(
            || world.ok(&["ps", &world.id]).matches("sleep").count() == 3,
            || world.ok(&["ps", &world.id]),
        );
        world.ok(&["ps", &world.id, "-o", "pid,args"]);
        if world.is_dormouse() {
            world.ok(&["hibernate", &world.id]);
            assert_eq!(world.ok(&["ps", &world.id]).matches("sleep").count(), 3);
            assert_eq!(world.sandbox_state(), "hibernated", "nobody was woken");
        }
        world.ok(&["kill", "--all", &world.id, "KILL"]);
        // The end of the container waits for those that somebody outside has to wait for.
        status_of(i32::try_from(exec).unwrap());
        status_of(world.pid());
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn statistics_are_in_runcs_form() {
    both(|world| {
        world
            .set("/linux/cgroupsPath", json!(format!("/{}", world.id)))
            .set("/linux/resources", json!({"pids": {"limit": 50}}));
        world.script("sleep 1000").create().start();
        let line = world.ok(&["events", "--stats", &world.id]);
        assert_eq!(line.lines().count(), 1, "{line}");
        let stats: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&stats["type"], &stats["id"]), (&json!("stats"), &json!(world.id)));
        for member in
            ["/data/cpu/usage/total", "/data/memory/usage/usage", "/data/pids/current", "/data/pids/limit"]
        {
            let number = stats.pointer(member).and_then(Value::as_u64);
            assert!(number.is_some_and(|number| number > 0), "{:?} {member}: {line}", world.runtime);
        }
        world.ok(&["kill", &world.id, "KILL"]);
        world.wait_status("stopped");
        let output = world.run(&["events", "--stats", &world.id]);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("container with id {} is not running", world.id)), "{said}");
    });
}

#[test]
fn lists_and_features_are_in_runcs_form() {
    both(|world| {
        world.script("sleep 1000").create();
        let list: Value = serde_json::from_str(&world.ok(&["list", "--format", "json"])).unwrap();
        assert_eq!((&list[0]["id"], &list[0]["status"]), (&json!(world.id), &json!("created")));
        assert_eq!(world.ok(&["list", "-q"]).trim(), world.id);
        let features: Value = serde_json::from_str(&world.ok(&["features"])).unwrap();
        assert_eq!(features["ociVersionMin"], "1.0.0");
        for (place, member) in
            [("/mountOptions", "nosuid"), ("/hooks", "poststop"), ("/linux/capabilities", "CAP_KILL")]
        {
            let list = features.pointer(place).and_then(Value::as_array).unwrap();
            assert!(list.contains(&json!(member)), "{:?} {place}", world.runtime);
        }
        world.ok(&["delete", "--force", &world.id]);
    });
}
