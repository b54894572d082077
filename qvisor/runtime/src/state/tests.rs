use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use testdir::TempDir;

/// A directory that no file-mode creation mask makes writable to others.
pub(super) fn private(path: &Path) {
    std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), 0o700).create(path).unwrap();
}

fn state(id: &Id) -> OciState {
    OciState {
        oci_version: OCI_VERSION.into(),
        id: id.as_str().into(),
        status: Status::Running,
        pid: 1,
        bundle: "/".into(),
        annotations: std::collections::BTreeMap::new(),
        sandbox_state: None,
        hibernate_error: None,
    }
}

#[test]
fn ids_are_file_names() {
    for good in ["a", "web-1", "A.b_c-9", &"x".repeat(255)] {
        assert!(Id::new(good).is_ok(), "{good}");
    }
    for bad in ["", ".", "..", ".lock", "a/b", "a b", "é", "a\n", &"x".repeat(256)] {
        assert!(Id::new(bad).is_err(), "{bad}");
    }
    assert!(Id::new(Id::random().as_str()).is_ok());
}

#[test]
fn directories_of_others_stay() {
    let dir = TempDir::new();
    let root = Root::new(dir.path().to_owned());
    for (name, file) in [("theirs", "state.json"), ("precious", "lock"), ("dead", LOCK)] {
        private(&dir.path().join(name));
        fs::write(dir.path().join(name).join(file), "").unwrap();
    }
    private(&dir.path().join("begun"));
    root.claim(&Id::new("begun").unwrap()).unwrap();
    assert!(matches!(root.claim(&Id::new("theirs").unwrap()), Err(StateError::InUse { .. })));
    assert!(dir.path().join("theirs/state.json").exists() && dir.path().join("precious/lock").exists());
    assert!(!dir.path().join("dead").exists());
}

#[test]
fn an_id_is_claimed_once() {
    let dir = TempDir::new();
    let root = Root::new(dir.path().join("deep/root"));
    let id = Id::new("one").unwrap();
    let claim = root.claim(&id).unwrap();
    assert!(matches!(root.claim(&id), Err(StateError::InUse { .. })));
    assert!(root.states().unwrap().is_empty(), "no state yet");
    claim.write_state(&state(&id)).unwrap();
    assert_eq!(root.state(&id).unwrap(), state(&id));
    assert_eq!(fs::metadata(claim.path()).unwrap().permissions().mode() & 0o777, 0o700);
    claim.remove().unwrap();
    assert!(root.state(&id).is_err());
    assert!(root.claim(&id).is_ok());
}

#[test]
fn a_container_whose_vmm_ends_is_stopped() {
    let dir = TempDir::new();
    let (root, id) = (Root::new(dir.path().to_owned()), Id::new("one").unwrap());
    let claim = root.claim(&id).unwrap();
    fs::write(claim.path().join(RECORD), "{}").unwrap();
    claim.write_state(&OciState { status: Status::Created, ..state(&id) }).unwrap();
    // Nobody listens at its socket any more, and its lock is held for some time yet.
    drop(std::os::unix::net::UnixListener::bind(claim.path().join(control::SOCKET)).unwrap());
    let seen = root.look(&id, Instant::now() + Duration::from_millis(10)).unwrap();
    assert_eq!(seen.state.status, Status::Stopped);
    let ending = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        drop(claim);
    });
    assert_eq!(root.state(&id).unwrap().status, Status::Stopped);
    ending.join().unwrap();
}

#[test]
fn a_vmm_that_hangs_up_and_hears_nobody_is_ending() {
    let dir = TempDir::new();
    let (root, id) = (Root::new(dir.path().to_owned()), Id::new("one").unwrap());
    let claim = root.claim(&id).unwrap();
    fs::write(claim.path().join(RECORD), "{}").unwrap();
    claim.write_state(&OciState { status: Status::Created, ..state(&id) }).unwrap();
    for ends in [false, true] {
        let path = claim.path().join(control::SOCKET);
        let _ = fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
        let ending = thread::spawn(move || {
            drop(listener.accept().unwrap());
            (!ends).then_some(listener)
        });
        let seen = root.look(&id, Instant::now() + Duration::from_millis(200)).unwrap();
        let expected = if ends { Status::Stopped } else { Status::Created };
        assert_eq!(seen.state.status, expected);
        drop(ending.join().unwrap());
    }
}

#[test]
fn a_container_is_waited_for_as_long_as_it_holds_its_lock() {
    let dir = TempDir::new();
    let (root, id) = (Root::new(dir.path().to_owned()), Id::new("one").unwrap());
    let claim = root.claim(&id).unwrap();
    claim.write_state(&state(&id)).unwrap();
    let sandbox = root.sandbox(&id).unwrap();
    // Nobody waits for a sandbox of `dormouse do`, nor longer than to the deadline.
    wait_for_end(&sandbox, Instant::now() + Duration::from_secs(600));
    fs::write(claim.path().join(RECORD), "{}").unwrap();
    wait_for_end(&sandbox, Instant::now() + Duration::from_millis(5));
    let ending = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(claim);
    });
    wait_for_end(&sandbox, Instant::now() + Duration::from_secs(600));
    assert_eq!(root.state(&id).unwrap().status, Status::Stopped);
    ending.join().unwrap();
}

#[test]
fn locks_are_not_followed_and_do_not_hold_up() {
    let dir = TempDir::new();
    let (root, id) = (Root::new(dir.path().join("root")), Id::new("one").unwrap());
    private(root.path());
    let lock = root.path().join(ROOT_LOCK);
    std::os::unix::fs::symlink(dir.path().join("theirs"), &lock).unwrap();
    assert!(root.claim(&id).unwrap_err().to_string().contains("symbolic link"));
    assert!(!dir.path().join("theirs").exists());
    fs::remove_file(&lock).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&lock).status().unwrap().success());
    assert!(root.claim(&id).unwrap_err().to_string().contains("no regular file"));
    fs::remove_file(&lock).unwrap();
    let claim = root.claim(&id).unwrap();
    // A lock that was never held is that of a dead process.
    drop(claim.remove());
    private(&root.path().join("half"));
    fs::write(root.path().join("half").join(NEW_LOCK), "").unwrap();
    let claim = root.claim(&id).unwrap();
    assert!(claim.left().is_empty() && !root.path().join("half").exists());
}

#[test]
fn what_the_dead_left_goes_at_the_next_start() {
    let dir = TempDir::new();
    let root = Root::new(dir.path().to_owned());
    let (dead, live) = (Id::new("dead").unwrap(), Id::new("live").unwrap());
    let claim = root.claim(&dead).unwrap();
    claim.write_state(&state(&dead)).unwrap();
    fs::create_dir_all(claim.path().join("0/work/work")).unwrap();
    fs::set_permissions(claim.path().join("0/work/work"), fs::Permissions::from_mode(0o000)).unwrap();
    drop(claim);
    assert!(root.state(&dead).is_err(), "its lock is free");
    let _live = root.claim(&live).unwrap();
    assert!(!dir.path().join("dead").exists());
    assert!(root.claim(&dead).is_ok());
}
