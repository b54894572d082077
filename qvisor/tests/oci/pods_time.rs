//! Processor time by container in a pod.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::pods::{exec, pod};
use super::world::World;

/// The program that does long work in the kernel, for a root file system without libraries.
fn longwork() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../test/guest/longwork.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("longwork-{}", std::process::id()));
    let status =
        Command::new("cc").args(["-O2", "-static", "-pthread", "-o"]).arg(&program).arg(source).status();
    assert!(status.expect("a C compiler runs").success());
    program
}

/// Six readers of 2 GiB of random bytes kept all vCPUs for a minute: nobody took news of the host, so that neither `exec` in the
/// neighbour nor the end of the attacker came through.
#[test]
fn a_container_whose_calls_compute_keeps_neither_exec_nor_its_end_waiting() {
    pod(|first| {
        let program = longwork();
        let attacker = first.further("exec longwork --for-ever random");
        fs::copy(&program, attacker.rootfs().join("bin/longwork")).unwrap();
        fs::create_dir_all(attacker.rootfs().join("tmp")).unwrap();
        let neighbour = first.further("echo ready; exec sleep 1000");
        neighbour.create().start();
        neighbour.wait_output("ready");
        attacker.create().start();
        attacker.wait_output("begins");
        for world in [&neighbour, first as &World] {
            for _ in 0..3 {
                assert_eq!(exec(world, "echo lives"), "lives\n");
            }
        }
        // Its timers fire.
        assert_eq!(exec(&neighbour, "sleep 0.1; echo slept"), "slept\n");
        attacker.ok(&["kill", &attacker.id, "KILL"]);
        attacker.wait_status("stopped");
        attacker.delete();
        fs::remove_file(program).unwrap();
    });
}
