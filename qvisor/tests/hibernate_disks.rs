//! Hibernation to file systems that are full, read-only or gone: small ones of the test's own, in a mount namespace that
//! only its thread sees.

mod sleeper;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use sleeper::TestSandbox;

/// Runs a command, which must succeed.
fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {error}");
}

/// A sandbox to be, and an ext4 of `mib` MiB at `disk` in its place; `None`: without root there are no mounts.
fn on_a_disk(mib: u32) -> Option<(TestSandbox, PathBuf)> {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: needs root");
        return None;
    }
    // SAFETY: integers only; the namespace is this thread's, and that of the processes it starts.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    run("mount", &["--make-rprivate", "/"]);
    let mut sandbox = TestSandbox::new();
    let (image, disk) = (sandbox.dir.join("image"), sandbox.dir.join("disk"));
    fs::File::create(&image).unwrap().set_len(u64::from(mib) << 20).unwrap();
    let (image, at) = (image.to_str().unwrap(), disk.to_str().unwrap());
    run("mkfs.ext4", &["-q", "-m", "0", image]);
    fs::create_dir(&disk).unwrap();
    run("mount", &["-o", "loop,errors=remount-ro", image, at]);
    sandbox.swap = disk.join("swap");
    Some((sandbox, disk))
}

/// Ends the program, which finds all its memory as it was; then its disk can go.
fn ends_well(mut sandbox: TestSandbox, disk: &Path) {
    sleep(Duration::from_millis(50));
    sandbox.kill("TERM");
    sandbox.ends_well();
    run("umount", &[disk.to_str().unwrap()]);
}

/// Leaves no room on a disk.
fn fill(disk: &Path) {
    let of = format!("of={}", disk.join("ballast").display());
    let output = Command::new("dd").args(["if=/dev/zero", &of, "bs=64k"]).output().unwrap();
    assert!(!output.status.success(), "the disk is not full");
}

fn make_room(disk: &Path) {
    fs::remove_file(disk.join("ballast")).unwrap();
    // Only then the blocks are free.
    run("sync", &["-f", disk.to_str().unwrap()]);
}

#[test]
fn a_full_disk_leaves_it_warm_until_there_is_room() {
    let Some((mut sandbox, disk)) = on_a_disk(128) else { return };
    sandbox.start_pattern(&[], &[]);
    fill(&disk);
    for _ in 0..3 {
        sandbox.refuses(&["hibernate"], "No space left on device (os error 28); the sandbox stays warm");
        assert_eq!(sandbox.status(), "running");
        sleep(Duration::from_millis(20));
    }
    make_room(&disk);
    let cycle = |reap| {
        sandbox.order(&["hibernate"]);
        sandbox.order(&["wake", "--reap", reap]);
        sleep(Duration::from_millis(20));
    };
    cycle("on");
    cycle("off");
    // The room it has may do this time.
    fill(&disk);
    if sandbox.run(&["hibernate", "s"]).status.success() {
        sandbox.order(&["wake"]);
    }
    make_room(&disk);
    cycle("on");
    ends_well(sandbox, &disk);
}

#[test]
fn a_disk_that_turns_read_only_leaves_it_warm() {
    let Some((mut sandbox, disk)) = on_a_disk(128) else { return };
    sandbox.start_pattern(&[], &[]);
    sandbox.order(&["hibernate"]);
    sandbox.order(&["wake", "--reap", "off"]);
    // As after an error of the disk: files that are open for writing do not hinder it.
    run("mount", &["-o", "remount,abort", disk.to_str().unwrap()]);
    for _ in 0..2 {
        let output = sandbox.run(&["hibernate", "s"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("cannot write pages to the"), "{error}");
        assert!(error.contains("Read-only file system") || error.contains("Input/output error"), "{error}");
        assert_eq!(sandbox.status(), "running");
        sleep(Duration::from_millis(20));
    }
    // The pages it has not touched since are still there, and can be read.
    ends_well(sandbox, &disk);
}

#[test]
fn a_directory_that_goes_is_not_missed() {
    let mut sandbox = TestSandbox::new();
    sandbox.start_pattern(&[], &[]);
    fs::remove_dir_all(&sandbox.swap).unwrap();
    for reap in ["off", "on", "on"] {
        sandbox.order(&["hibernate"]);
        sandbox.order(&["wake", "--reap", reap]);
        sleep(Duration::from_millis(20));
    }
    assert!(!sandbox.swap.exists());
    sandbox.kill("TERM");
    sandbox.ends_well();
}

#[test]
fn a_read_only_disk_is_refused() {
    let Some((sandbox, disk)) = on_a_disk(16) else { return };
    run("mount", &["-o", "remount,ro", disk.to_str().unwrap()]);
    let output = sandbox.run(&["do", "--swap-dir", disk.to_str().unwrap(), "--", "/bin/true"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{error}");
    assert!(
        error.contains("cannot make a swap file in") && error.contains("Read-only file system"),
        "{error}"
    );
    run("umount", &[disk.to_str().unwrap()]);
}
