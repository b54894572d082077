//! Limits and figures of the control groups of a container, in either version.

use std::fs;
use std::os::unix::fs::MetadataExt;

use runtime::cgroup::{groups_of, usage};
use serde_json::json;

use super::world::{World, assert_ended, both, dormouse, signal, status_of, wait_for};

/// A file of the container's groups; `None`: no group has it.
fn read(world: &World, file: &str) -> Option<String> {
    let text = groups_of(world.pid()).iter().find_map(|dir| fs::read_to_string(dir.join(file)).ok());
    text.map(|text| text.trim().to_owned())
}

/// The disk that a directory of the host is on; `None`: on none that can be limited.
fn disk_of(path: &str) -> Option<(u64, u64)> {
    let device = fs::metadata(path).ok()?.dev();
    let (major, minor) = (u64::from(libc::major(device)), u64::from(libc::minor(device)));
    let whole = |major, minor| fs::metadata(format!("/sys/dev/block/{major}:{minor}/queue")).is_ok();
    (major != 0 && whole(major, minor)).then_some((major, minor))
}

#[test]
fn rates_of_a_disk() {
    let Some((major, minor)) = disk_of("/") else {
        eprintln!("skipped: the root file system is on no disk of its own");
        return;
    };
    both(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id)));
        let rate = |rate: u64| json!([{"major": major, "minor": minor, "rate": rate}]);
        let limits = json!({"throttleReadBpsDevice": rate(1 << 20), "throttleWriteIOPSDevice": rate(77)});
        world.set("/linux/resources", json!({"blockIO": limits})).script("sleep 1000").create();
        let device = format!("{major}:{minor}");
        if let Some(io) = read(world, "io.max") {
            assert_eq!(
                io,
                format!("{device} rbps=1048576 wbps=max riops=max wiops=77"),
                "{:?}",
                world.runtime
            );
        } else {
            let of = |file| read(world, file).unwrap();
            assert_eq!(of("blkio.throttle.read_bps_device"), format!("{device} 1048576"));
            assert_eq!(of("blkio.throttle.write_iops_device"), format!("{device} 77"));
        }
        let pid = world.pid();
        world.ok(&["delete", "--force", &world.id]);
        status_of(pid);
        world.assert_gone();
    });
}

#[test]
fn weights_are_set_or_refused() {
    dormouse(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id)));
        world.set("/linux/resources", json!({"blockIO": {"weight": 1000}})).script("sleep 1000").write();
        let out = fs::File::create(world.dir.join("err")).unwrap();
        let pid_file = world.dir.join("pid");
        let args = world.with_bundle("create", &["--pid-file", pid_file.to_str().unwrap()]);
        // The container keeps the streams, so they are no pipes.
        let mut command = world.command(&args);
        command.stdout(out.try_clone().unwrap()).stderr(out);
        if !command.status().unwrap().success() {
            let text = world.read("err");
            assert!(text.contains("weight") && text.contains("controller"), "{text}");
            return world.assert_gone();
        }
        let files = ["io.bfq.weight", "blkio.bfq.weight", "io.weight", "blkio.weight"];
        let weight = files.iter().find_map(|file| read(world, file)).unwrap();
        assert!(["default 1000", "default 10000", "1000"].contains(&weight.as_str()), "{weight}");
        let pid = world.pid();
        world.ok(&["delete", "--force", &world.id]);
        status_of(pid);
        world.assert_gone();
    });
}

#[test]
fn what_a_container_uses_is_counted() {
    both(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id)));
        world.set("/linux/resources", json!({"memory": {"limit": 64 << 20}, "pids": {"limit": 20}}));
        world
            .script("i=0; while test $i -lt 20000; do i=$((i+1)); done; echo ready; sleep 1000")
            .create()
            .start();
        world.wait_output("ready");
        let used = usage(&groups_of(world.pid()));
        assert!(used.cpu.total_ns > 1_000_000, "{used:?}");
        assert!(used.memory.usage.bytes > 0 && !used.memory.stat.is_empty(), "{used:?}");
        let limit = used.memory.usage.limit_bytes.unwrap();
        assert!(limit >= 64 << 20, "{used:?}");
        assert!(used.pids.current > 0 && used.pids.limit >= Some(20), "{used:?}");
        // The directories that were made tell the same.
        let made = usage(&world.groups());
        assert_eq!((made.pids.limit, made.memory.usage.limit_bytes), (used.pids.limit, Some(limit)));
        world.ok(&["kill", &world.id, "KILL"]);
        status_of(world.pid());
        world.wait_status("stopped");
        world.ok(&["delete", &world.id]);
        world.assert_gone();
    });
}

#[test]
fn groups_go_after_the_vmm_was_killed() {
    dormouse(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/parent-{0}/child-{0}", world.id)));
        world.set("/linux/resources", json!({"memory": {"limit": 64 << 20}, "pids": {"limit": 20}}));
        world.script("sleep 1000").create().start();
        let family = world.family();
        assert!(!world.groups().is_empty());
        signal(world.vmm(), libc::SIGKILL);
        status_of(world.pid());
        world.wait_status("stopped");
        assert_ended(&family);
        world.ok(&["delete", &world.id]);
        world.assert_gone();
    });
}

#[test]
fn the_groups_of_a_killed_command_go_at_a_later_start() {
    dormouse(|world| {
        let id = format!("{}-do", world.id);
        let args = [
            "do",
            "--platform",
            "systrap",
            "--net",
            "none",
            "--id",
            &id,
            "--",
            "/bin/busybox",
            "sleep",
            "1000",
        ];
        let mut command = world.command(&args).spawn().unwrap();
        wait_for(|| !world.groups().is_empty(), || "the command has no group".into());
        let listed = || world.run(&["list", "--json"]).stdout;
        wait_for(|| String::from_utf8_lossy(&listed()).contains("running"), || "it does not run".into());
        // The VMM and the watcher die as well, so that nobody cleans up.
        let children = super::world::children(i32::try_from(command.id()).unwrap());
        children.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
        command.kill().unwrap();
        command.wait().unwrap();
        world.script("true");
        // The first starts may find processes that are about to end.
        let goes = || {
            world.run_container();
            world.groups().is_empty()
        };
        wait_for(goes, || format!("left: {:?}", world.groups()));
    });
}
