use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixListener};

use super::*;

fn ids(user: u32) -> Ids {
    Ids { user, group: user, groups: vec![user] }
}

#[test]
fn requests_are_read_as_they_were_written() {
    let request =
        Request { number: 5, kind: libc::SOCK_STREAM, ids: Ids { user: 1, group: 2, groups: vec![3, 4] } };
    assert_eq!(Request::of(&request.to_bytes()), Some(request.clone()));
    let many = Request { ids: Ids { groups: vec![7; 99], ..request.ids.clone() }, ..request.clone() };
    assert_eq!(Request::of(&many.to_bytes()).unwrap().ids.groups.len(), GROUPS_MAX);
    let mut bytes = request.to_bytes();
    assert_eq!(Request::of(&bytes[..bytes.len() - 1]), None);
    bytes[16] = 200;
    assert_eq!(Request::of(&bytes), None);
    for kind in [libc::SOCK_RAW, libc::SOCK_DGRAM] {
        let other = Request { kind, ..request.clone() };
        assert_eq!(Request::of(&other.to_bytes()), None);
    }
}

#[test]
fn ids_are_those_of_the_host() {
    let extent = |inside, host, count| Extent { inside, host, count };
    let maps =
        IdMaps { users: vec![extent(0, 100_000, 10)], groups: vec![extent(0, 7, 1), extent(1, 50, 2)] };
    let serving = |maps| Serving { mounts: Vec::new(), maps };
    let asked = Ids { user: 3, group: 2, groups: vec![0, 9, 1] };
    let found = serving(Some(maps)).on_the_host(&asked);
    assert_eq!(found, Some(Ids { user: 100_003, group: 51, groups: vec![7, 50] }));
    assert_eq!(serving(None).on_the_host(&asked), Some(asked));
}

/// A bind mount's root is what [`mount_of_root`] tells; without the right to mount, a node of another one does.
fn node(path: &std::path::Path) -> OwnedFd {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    sys::openat(sys::working_directory(), &path, libc::O_PATH | libc::O_CLOEXEC, 0).unwrap()
}

#[test]
fn nodes_of_the_mounts_are_connected_to_and_no_others() {
    let dir = testdir::TempDir::new();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let _log = UnixDatagram::bind(dir.path().join("log")).unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let mount = sys::statx_mount(node(&path).as_fd()).unwrap().stx_mnt_id;
    let us = process::effective_user();
    let broker = Broker::start(&HostPaths::of_new_process(), vec![mount], None).unwrap();
    let mut ours = UnixStream::from(broker.connect(node(&path).as_fd(), libc::SOCK_STREAM, ids(us)).unwrap());
    let (mut theirs, _) = listener.accept().unwrap();
    ours.write_all(b"hello").unwrap();
    let mut got = [0; 5];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    let refused =
        |name: &str, kind| broker.connect(node(&dir.path().join(name)).as_fd(), kind, ids(us)).unwrap_err();
    assert_eq!(refused("file", libc::SOCK_STREAM), Errno(libc::ECONNREFUSED));
    assert_eq!(refused("", libc::SOCK_STREAM), Errno(libc::ECONNREFUSED));
    assert_eq!(refused("log", libc::SOCK_STREAM), Errno(libc::EPROTOTYPE));
    // It goes on after each.
    if us == 0 {
        broker.connect(node(&path).as_fd(), libc::SOCK_STREAM, ids(1234)).unwrap_err();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let _ours = broker.connect(node(&path).as_fd(), libc::SOCK_STREAM, ids(1234)).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        assert_eq!(process::peer_user(&theirs).unwrap(), 1234);
    }
    let elsewhere = Broker::start(&HostPaths::of_new_process(), vec![mount + 1], None).unwrap();
    let error = elsewhere.connect(node(&path).as_fd(), libc::SOCK_STREAM, ids(us)).unwrap_err();
    assert_eq!(error, Errno(libc::ECONNREFUSED));
    for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
        let broker = Broker::start(&HostPaths::of_new_process(), vec![mount], None).unwrap();
        let ask = |kind| broker.connect(node(&path).as_fd(), kind, ids(us));
        assert_eq!(ask(kind).unwrap_err(), Errno(libc::ECONNREFUSED));
        assert!(ask(libc::SOCK_STREAM).is_err(), "who asks for such a thing is not answered again");
    }
}

#[test]
fn it_ends_with_its_vmm() {
    let dir = testdir::TempDir::new();
    let path = dir.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mount = sys::statx_mount(node(&path).as_fd()).unwrap().stx_mnt_id;
    let (mut told, tells) = io::pipe().unwrap();
    // Stands for a VMM that has broken the rules.
    if process::fork().unwrap().is_none() {
        let broker = Broker::start(&HostPaths::of_new_process(), vec![mount], None).unwrap();
        let _ = broker.connect(node(&path).as_fd(), libc::SOCK_STREAM, ids(1234));
        let held = broker.asking.lock();
        let socket = &held.as_ref().unwrap().socket;
        let request = Request { number: 9, kind: libc::SOCK_STREAM, ids: ids(1234) }.to_bytes();
        // Its own end is on its way to the broker, and the answers are not taken.
        let mut sent = 0;
        while send(socket.as_fd(), &[socket.as_fd()], &request, libc::MSG_DONTWAIT).is_ok() && sent < 10_000 {
            sent += 1;
        }
        process::exit_now(0);
    }
    drop(tells);
    // The broker closes what it inherited at once; whoever holds this is the one above.
    assert_eq!(told.read(&mut [0]).unwrap(), 0);
    assert_eq!(brokers_of_the_dead(), 0);
}

/// Brokers of this test program whose parent is none of its processes.
fn brokers_of_the_dead() -> usize {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let is_left = |pid: &str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let is_ours = std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t")).unwrap_or_default();
            let parents = std::fs::read_link(format!("/proc/{parent}/exe")).is_ok_and(|exe| exe == program);
            is_ours && !parents && status.starts_with("Name:\tdormouse-broker")
        };
        let all = std::fs::read_dir("/proc").unwrap();
        let names = all.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let left = names.filter(|name| is_left(name)).count();
        if left == 0 || std::time::Instant::now() > until {
            return left;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
