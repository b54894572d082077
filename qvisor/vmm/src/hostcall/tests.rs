//! Every file call against a temporary directory, driven as the guest drives it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use abi::hostcall::{self as nr, HostStat, HostStatFs, NO_HANDLE, SetAttr};
use abi::word::to_usize;
use libc::{O_CREAT, O_DIRECTORY, O_EXCL, O_PATH, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};

use super::testing::Bench;
use crate::guest_memory::{GuestBox, GuestSlice};

pub(super) fn neg(code: i32) -> i64 {
    -i64::from(code)
}

fn stat(bench: &Bench, handle: u32, name: &str) -> Result<HostStat, i64> {
    let out = bench.memory.room(size_of::<HostStat>());
    let [phys, len] = bench.name(name);
    match bench.call(nr::STAT, &[handle.into(), phys, len, out]) {
        0 => Ok(GuestBox::new(&bench.memory, out).unwrap().read()),
        error => Err(error),
    }
}

pub(super) fn set(bench: &Bench, handle: u32, name: &str, change: SetAttr) -> i64 {
    let at = bench.memory.room(size_of::<SetAttr>());
    GuestBox::new(&bench.memory, at).unwrap().write(&change);
    let [phys, len] = bench.name(name);
    bench.call(nr::SETATTR, &[handle.into(), phys, len, at])
}

fn list(bench: &Bench, handle: u32, buffer: u64) -> Vec<(String, u64)> {
    let (mut found, mut position) = (Vec::new(), 0);
    loop {
        let out = bench.memory.room(to_usize(buffer));
        let result = bench.call(nr::READDIR, &[handle.into(), out, buffer, position]);
        assert!(result >= 0, "{result}");
        let is_end = result.cast_unsigned() & nr::READDIR_END != 0;
        let bytes = bench.memory.get(out, to_usize(result.cast_unsigned() & !nr::READDIR_END));
        let mut rest = &bytes[..];
        assert!(!rest.is_empty() || is_end);
        while !rest.is_empty() {
            position = u64::from_le_bytes(rest[8..16].try_into().unwrap());
            let len = usize::from(u16::from_le_bytes(rest[16..18].try_into().unwrap()));
            let name = rest[19..len].split(|b| *b == 0).next().unwrap();
            found.push((String::from_utf8_lossy(name).into_owned(), position));
            rest = &rest[len..];
        }
        if is_end {
            return found;
        }
    }
}

#[test]
fn a_file_is_made_written_read_and_closed() {
    let bench = Bench::new();
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT | O_EXCL);
    assert_eq!(bench.write(file, b"hello world", 0), 11);
    assert_eq!(bench.read(file, 5, 6).unwrap(), b"world");
    assert_eq!(bench.read(file, 5, 11).unwrap(), b"");
    assert_eq!(bench.open(bench.root, "f", O_RDWR | O_CREAT | O_EXCL, 0o600), neg(libc::EEXIST));
    assert_eq!(bench.call(nr::FSYNC, &[file.into(), 1]), 0);
    assert_eq!(bench.call(nr::CLOSE, &[file.into()]), 0);
    assert_eq!(bench.call(nr::CLOSE, &[file.into()]), neg(libc::EBADF));
    assert_eq!(bench.read(file, 1, 0), Err(neg(libc::EBADF)));
    let again = bench.handle(bench.root, "f", O_WRONLY | O_CREAT | O_TRUNC);
    assert_eq!(again, file, "handles are used again");
    assert_eq!(bench.read(again, 1, 0), Err(neg(libc::EBADF)), "not open for reading");
    assert_eq!(fs::metadata(bench.dir.path().join("f")).unwrap().len(), 0);
}

#[test]
fn the_hosts_table_of_descriptors_is_large_before_threads_begin() {
    let _bench = Bench::new();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap().trim();
    assert!(size.parse::<u32>().unwrap() >= 1024, "{size}");
}

#[test]
fn many_names_are_asked_for_at_once() {
    let bench = Bench::new();
    for (name, bytes) in [("a", 1), ("bc", 22)] {
        fs::write(bench.dir.path().join(name), vec![0; bytes]).unwrap();
    }
    symlink("a", bench.dir.path().join("l")).unwrap();
    let size = size_of::<HostStat>();
    let ask = |names: &[u8], count: u64| {
        let (phys, out) = (bench.memory.put(names), bench.memory.room(size * 64));
        (bench.call(nr::STAT_LIST, &[bench.root.into(), phys, names.len() as u64, out, count]), out)
    };
    let (result, out) = ask(b"bc\0none\0l\0a\0", 4);
    assert_eq!(result, 0);
    let seen: Vec<HostStat> =
        (0..4).map(|at| GuestBox::new(&bench.memory, out + at * size as u64).unwrap().read()).collect();
    assert_eq!(seen[0], stat(&bench, bench.root, "bc").unwrap());
    assert_eq!((seen[1], seen[2].mode & libc::S_IFMT, seen[3].size), (HostStat::default(), libc::S_IFLNK, 1));
    for (names, count) in
        [(&b"a\0"[..], 2), (b"a\0a\0", 1), (b"a", 1), (b"a\0b", 2), (b"../x\0", 1), (b"..\0", 1)]
    {
        assert_eq!(ask(names, count).0, neg(libc::EINVAL), "{names:?}");
    }
    assert_eq!(ask(b"\0", 1).0, neg(libc::ENOENT));
    assert_eq!(ask(b"", 0).0, neg(libc::EINVAL));
    assert_eq!(ask(&b"a\0".repeat(65), 65).0, neg(libc::EINVAL));
    assert_eq!(ask(&[&[b'x'; 255][..], b"\0"].concat().repeat(64), 64).0, 0);
    assert_eq!(ask(&[&[b'x'; 256][..], b"\0a\0"].concat(), 2).0, neg(libc::ENAMETOOLONG));
    let names = bench.memory.put(b"a\0");
    let end = bench.memory.end() - 8;
    assert_eq!(bench.call(nr::STAT_LIST, &[bench.root.into(), names, 2, end, 1]), neg(libc::EFAULT));
}

#[test]
fn the_mode_is_the_guests_alone() {
    let bench = Bench::new();
    assert!(bench.open(bench.root, "f", O_WRONLY | O_CREAT, 0o666) >= 0);
    assert_eq!(stat(&bench, bench.root, "f").unwrap().mode, libc::S_IFREG | 0o666);
    assert_eq!(bench.open(bench.root, "g", O_WRONLY | O_CREAT, 0o1_0000), neg(libc::EINVAL));
}

#[test]
fn links_are_never_followed() {
    let bench = Bench::new();
    symlink("/etc/passwd", bench.dir.path().join("l")).unwrap();
    symlink("/etc", bench.dir.path().join("d")).unwrap();
    for flags in [O_RDONLY, O_RDWR, O_RDWR | O_CREAT, O_WRONLY | O_TRUNC] {
        assert_eq!(bench.open(bench.root, "l", flags, 0o644), neg(libc::ELOOP));
    }
    let link = bench.handle(bench.root, "l", O_PATH);
    let [nothing, zero] = bench.name("");
    assert_eq!(bench.call(nr::OPEN, &[link.into(), nothing, zero, 0, 0]), neg(libc::ELOOP));
    let dir = bench.handle(bench.root, "d", O_PATH);
    assert_eq!(bench.open(dir, "passwd", O_RDONLY, 0), neg(libc::ENOTDIR));
    assert_eq!(bench.open(bench.root, "d", O_RDONLY | O_DIRECTORY, 0), neg(libc::ELOOP));
    let out = bench.memory.room(64);
    let read = bench.call(nr::READLINK, &[link.into(), nothing, zero, out, 64]);
    assert_eq!(bench.memory.get(out, usize::try_from(read).unwrap()), b"/etc/passwd");
    let [l, n] = bench.name("l");
    assert_eq!(bench.call(nr::READLINK, &[bench.root.into(), l, n, out, 4]), 4);
}

#[test]
fn a_link_swapped_in_is_never_followed() {
    let bench = Bench::new();
    let path = bench.dir.path().to_path_buf();
    fs::write(path.join("secret"), "secret").unwrap();
    fs::create_dir(path.join("inside")).unwrap();
    let inside = bench.handle(bench.root, "inside", O_PATH);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let at = path.join("inside/x");
                let _ = fs::write(&at, "public");
                let _ = fs::remove_file(&at);
                let _ = symlink("../secret", &at);
                let _ = fs::remove_file(&at);
            }
        });
        for round in 0..2000 {
            let flags = if round % 2 == 0 { O_RDONLY } else { O_RDWR | O_CREAT };
            if let Ok(handle) = u32::try_from(bench.open(inside, "x", flags, 0o644)) {
                assert_ne!(bench.read(handle, 6, 0).unwrap(), b"secret");
                assert_eq!(bench.call(nr::CLOSE, &[handle.into()]), 0);
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(fs::read(path.join("secret")).unwrap(), b"secret");
}

#[test]
fn dots_and_slashes_lead_nowhere() {
    let bench = Bench::new();
    for name in ["..", ".", "a/b", "/etc", "../x"] {
        assert_eq!(bench.open(bench.root, name, O_PATH, 0), neg(libc::EINVAL), "{name}");
        assert_eq!(stat(&bench, bench.root, name), Err(neg(libc::EINVAL)), "{name}");
        let [phys, len] = bench.name(name);
        assert_eq!(bench.call(nr::MKDIR, &[bench.root.into(), phys, len, 0o755]), neg(libc::EINVAL));
        assert_eq!(bench.call(nr::UNLINK, &[bench.root.into(), phys, len, 0]), neg(libc::EINVAL));
    }
}

#[test]
fn special_nodes_are_not_opened() {
    let bench = Bench::new();
    let [phys, len] = bench.name("fifo");
    let make = |kind: u32| bench.call(nr::MKNOD, &[bench.root.into(), phys, len, 0o600, kind.into()]);
    assert_eq!(make(libc::S_IFIFO), 0);
    assert!(fs::metadata(bench.dir.path().join("fifo")).unwrap().file_type().is_fifo());
    assert_eq!(bench.open(bench.root, "fifo", O_RDONLY, 0), neg(libc::ENXIO));
    assert_eq!(bench.open(bench.root, "fifo", O_RDWR | O_CREAT, 0o600), neg(libc::ENXIO));
    let node = bench.handle(bench.root, "fifo", O_PATH);
    assert_eq!(bench.call(nr::OPEN, &[node.into(), 0, 0, O_RDWR as u64, 0]), neg(libc::ENXIO));
    assert_eq!(make(libc::S_IFCHR), neg(libc::EPERM));
    let _socket = std::os::unix::net::UnixListener::bind(bench.dir.path().join("s")).unwrap();
    assert_eq!(bench.open(bench.root, "s", O_RDWR, 0), neg(libc::ENXIO));
    let null = fs::File::open("/dev/null").unwrap();
    let null = bench.io.files().adopt_mount(null.into()).unwrap();
    assert_eq!(bench.call(nr::OPEN, &[null.into(), 0, 0, O_RDWR as u64, 0]), neg(libc::EBADF));
}

#[test]
fn a_node_is_reopened_by_its_handle() {
    let bench = Bench::new();
    fs::write(bench.dir.path().join("f"), "data").unwrap();
    let node = bench.handle(bench.root, "f", O_PATH);
    assert_eq!(bench.read(node, 4, 0), Err(neg(libc::EBADF)));
    let open = bench.call(nr::OPEN, &[node.into(), 0, 0, O_RDWR as u64, 0]);
    assert_eq!(bench.read(u32::try_from(open).unwrap(), 4, 0).unwrap(), b"data");
    let directory = bench.call(nr::OPEN, &[node.into(), 0, 0, O_DIRECTORY as u64, 0]);
    assert_eq!(directory, neg(libc::ENOTDIR));
    fs::create_dir(bench.dir.path().join("d")).unwrap();
    assert_eq!(bench.open(bench.root, "d", O_RDWR, 0), neg(libc::EISDIR));
    assert!(bench.open(bench.root, "d", O_RDONLY | O_DIRECTORY, 0) >= 0);
}

#[test]
fn a_read_only_mount_stays_as_it_is() {
    let bench = Bench::new();
    fs::write(bench.dir.path().join("f"), "data").unwrap();
    let open = fs::File::open(bench.dir.path()).unwrap();
    let root = bench.io.files().adopt_read_only_mount(open.into()).unwrap();
    let rofs = neg(libc::EROFS);
    assert!(bench.open(root, "f", O_RDONLY, 0) >= 0);
    for flags in [O_RDWR, O_WRONLY | O_CREAT, O_RDONLY | O_TRUNC] {
        assert_eq!(bench.open(root, "f", flags, 0), rofs);
    }
    assert_eq!(bench.open(root, "new", O_RDONLY | O_CREAT, 0o600), rofs);
    let node = bench.handle(root, "f", O_PATH);
    assert_eq!(bench.call(nr::OPEN, &[node.into(), 0, 0, O_RDWR as u64, 0]), rofs);
    assert_eq!(set(&bench, node, "", SetAttr { valid: nr::SET_MODE, ..SetAttr::default() }), rofs);
    let [x, n] = bench.name("f");
    assert_eq!(bench.call(nr::UNLINK, &[root.into(), x, n, 0]), rofs);
    assert_eq!(bench.call(nr::RENAME, &[root.into(), x, n << 32 | n, bench.root.into(), x, 0]), rofs);
    assert_eq!(bench.call(nr::LINK, &[node.into(), bench.root.into(), x, n]), neg(libc::EXDEV));
    assert_eq!(bench.call(nr::TMPFILE, &[root.into(), O_RDWR as u64, 0o600]), rofs);
    assert_eq!(bench.call(nr::SETXATTR, &[node.into(), x, n, x, n, 0]), rofs);
}

#[test]
fn directories_change() {
    let bench = Bench::new();
    let root = u64::from(bench.root);
    let ([d, dn], [f, fn_], [g, gn]) = (bench.name("dir"), bench.name("file"), bench.name("gone"));
    assert_eq!(bench.call(nr::MKDIR, &[root, d, dn, 0o711]), 0);
    assert_eq!(bench.call(nr::MKDIR, &[root, d, dn, 0o711]), neg(libc::EEXIST));
    assert_eq!(stat(&bench, bench.root, "dir").unwrap().mode & 0o7777, 0o711);
    bench.handle(bench.root, "file", O_RDWR | O_CREAT);
    let dir = u64::from(bench.handle(bench.root, "dir", O_PATH));
    assert_eq!(bench.call(nr::RENAME, &[root, f, fn_ << 32 | gn, dir, g, 0]), 0);
    assert!(bench.dir.path().join("dir/gone").exists());
    assert_eq!(bench.call(nr::UNLINK, &[root, d, dn, libc::AT_REMOVEDIR as u64]), neg(libc::ENOTEMPTY));
    let node = u64::from(bench.handle(u32::try_from(dir).unwrap(), "gone", O_PATH));
    assert_eq!(bench.call(nr::LINK, &[node, root, f, fn_]), 0);
    assert_eq!(stat(&bench, bench.root, "file").unwrap().nlink, 2);
    let no_replace = u64::from(libc::RENAME_NOREPLACE);
    assert_eq!(bench.call(nr::RENAME, &[root, f, fn_ << 32 | gn, dir, g, no_replace]), neg(libc::EEXIST));
    assert_eq!(bench.call(nr::RENAME, &[root, f, fn_ << 32 | gn, dir, g, 4]), neg(libc::EINVAL));
    assert_eq!(bench.call(nr::UNLINK, &[dir, g, gn, 0]), 0);
    assert_eq!(bench.call(nr::UNLINK, &[root, d, dn, libc::AT_REMOVEDIR as u64]), 0);
    assert_eq!(bench.call(nr::UNLINK, &[root, f, fn_, 1]), neg(libc::EINVAL));
    let target = bench.memory.put(b"../any/where");
    assert_eq!(bench.call(nr::SYMLINK, &[root, d, dn, target, 12]), 0);
    assert_eq!(fs::read_link(bench.dir.path().join("dir")).unwrap().to_str(), Some("../any/where"));
    let link = u64::from(bench.handle(bench.root, "dir", O_PATH));
    assert_eq!(bench.call(nr::LINK, &[link, root, g, gn]), 0);
    assert!(bench.dir.path().join("gone").is_symlink());
}

#[test]
fn listing_goes_on_where_it_stopped() {
    let bench = Bench::new();
    for i in 0..200 {
        fs::write(bench.dir.path().join(format!("file-{i}")), "").unwrap();
    }
    let dir = bench.handle(bench.root, "file-0", O_PATH);
    assert_eq!(bench.call(nr::READDIR, &[dir.into(), bench.memory.base(), 512, 0]), neg(libc::ENOTDIR));
    let dir = u32::try_from(bench.call(nr::OPEN, &[bench.root.into(), 0, 0, 0, 0]));
    assert!(dir.is_err(), "the root of this test is not O_PATH");
    let all = list(&bench, bench.root, 512);
    assert_eq!(all.len(), 202);
    assert_eq!(all.iter().map(|e| &e.0).collect::<std::collections::HashSet<_>>().len(), 202);
    let out = bench.memory.room(512);
    let middle = all[100].1;
    assert!(bench.call(nr::READDIR, &[bench.root.into(), out, 512, middle]) > 0);
    let first = bench.memory.get(out + 19, 256);
    assert_eq!(String::from_utf8_lossy(first.split(|b| *b == 0).next().unwrap()), all[101].0);
    assert_eq!(bench.call(nr::READDIR, &[bench.root.into(), out, 512, 1 << 63]), neg(libc::EINVAL));
    // A buffer that takes all of them is filled, and the end is told with them.
    let all_at_once = list(&bench, bench.root, 32 << 10);
    assert_eq!(all_at_once.len(), 202);
    let end = all_at_once[201].1;
    let behind = bench.call(nr::READDIR, &[bench.root.into(), out, 512, end]);
    assert_eq!(behind, nr::READDIR_END.cast_signed());
}

#[test]
fn attributes_are_shown_and_changed() {
    let bench = Bench::new();
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    bench.write(file, b"12345678", 0);
    let path = bench.dir.path().join("f");
    let seen = stat(&bench, file, "").unwrap();
    let real = fs::metadata(&path).unwrap();
    assert_eq!((seen.ino, seen.size, seen.dev), (real.ino(), 8, real.dev()));
    assert!(seen.btime_ns > 0 && seen.mtime_ns > 0);
    let none = SetAttr::default();
    assert_eq!(set(&bench, bench.root, "f", SetAttr { valid: nr::SET_MODE, mode: 0o4751, ..none }), 0);
    assert_eq!(real_mode(&path), 0o4751);
    assert_eq!(set(&bench, file, "", SetAttr { valid: nr::SET_SIZE, size: 3, ..none }), 0);
    let node = bench.handle(bench.root, "f", O_PATH);
    assert_eq!(set(&bench, node, "", SetAttr { valid: nr::SET_SIZE, size: 2, ..none }), 0);
    assert_eq!(set(&bench, node, "", SetAttr { valid: nr::SET_MODE, mode: 0o600, ..none }), 0);
    let times =
        SetAttr { valid: nr::SET_MTIME | nr::SET_ATIME, mtime_ns: -1, atime_ns: 5_000_000_007, ..none };
    assert_eq!(set(&bench, node, "", times), 0);
    let now = stat(&bench, node, "").unwrap();
    assert_eq!((now.size, now.mode & 0o7777, now.mtime_ns, now.atime_ns), (2, 0o600, -1, 5_000_000_007));
    assert_eq!(set(&bench, node, "", SetAttr { valid: nr::SET_MTIME_NOW, ..none }), 0);
    assert_eq!(stat(&bench, node, "").unwrap().atime_ns, 5_000_000_007);
    assert_eq!(set(&bench, node, "", SetAttr { valid: 1 << 30, ..none }), neg(libc::EINVAL));
    assert_eq!(
        set(&bench, node, "", SetAttr { valid: nr::SET_SIZE, size: 1 << 63, ..none }),
        neg(libc::EINVAL)
    );
    assert_eq!(set(&bench, bench.root, "", SetAttr { valid: nr::SET_SIZE, ..none }), neg(libc::EINVAL));
    let read_only = bench.handle(bench.root, "f", O_RDONLY);
    assert_eq!(set(&bench, read_only, "", SetAttr { valid: nr::SET_SIZE, ..none }), neg(libc::EINVAL));
    assert_eq!(bench.write(read_only, b"x", 0), neg(libc::EBADF));
}

fn real_mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn changes_of_a_link_stay_at_the_link() {
    let bench = Bench::new();
    fs::write(bench.dir.path().join("f"), "data").unwrap();
    fs::set_permissions(bench.dir.path().join("f"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("f", bench.dir.path().join("l")).unwrap();
    let none = SetAttr::default();
    let mode = SetAttr { valid: nr::SET_MODE, mode: 0o777, ..none };
    assert_eq!(set(&bench, bench.root, "l", mode), neg(libc::EOPNOTSUPP));
    assert_eq!(set(&bench, bench.root, "l", SetAttr { valid: nr::SET_SIZE, ..none }), neg(libc::EINVAL));
    let time = SetAttr { valid: nr::SET_MTIME, mtime_ns: 1_000_000_000, ..none };
    assert_eq!(set(&bench, bench.root, "l", time), 0);
    assert_eq!(stat(&bench, bench.root, "l").unwrap().mtime_ns, 1_000_000_000);
    assert_ne!(stat(&bench, bench.root, "f").unwrap().mtime_ns, 1_000_000_000);
    assert_eq!(real_mode(&bench.dir.path().join("f")), 0o640);
}

#[test]
fn extended_attributes_work_on_nodes_and_files() {
    let bench = Bench::new();
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    let node = bench.handle(bench.root, "f", O_PATH);
    let [name, len] = bench.name("user.dormouse");
    let value = bench.memory.put(b"nest");
    assert_eq!(bench.call(nr::SETXATTR, &[node.into(), name, len, value, 4, 0]), 0);
    assert_eq!(bench.call(nr::SETXATTR, &[node.into(), name, len, value, 4, 1]), neg(libc::EEXIST));
    let out = bench.memory.room(64);
    for handle in [file, node] {
        assert_eq!(bench.call(nr::GETXATTR, &[handle.into(), name, len, out, 64]), 4);
        assert_eq!(bench.call(nr::GETXATTR, &[handle.into(), name, len, 0, 0]), 4);
        assert_eq!(bench.call(nr::GETXATTR, &[handle.into(), name, len, out, 2]), neg(libc::ERANGE));
        assert!(bench.call(nr::LISTXATTR, &[handle.into(), out, 64]) >= 14);
    }
    assert_eq!(bench.memory.get(out, 14), b"user.dormouse\0");
    assert_eq!(bench.call(nr::REMOVEXATTR, &[node.into(), name, len]), 0);
    assert_eq!(bench.call(nr::REMOVEXATTR, &[file.into(), name, len]), neg(libc::ENODATA));
    for kept in ["trusted.overlay.opaque", "security.selinux"] {
        let [name, len] = bench.name(kept);
        assert_eq!(bench.call(nr::SETXATTR, &[node.into(), name, len, value, 4, 0]), neg(libc::EPERM));
    }
}

#[test]
fn nodes_keep_their_attributes_reachable_in_the_jail() {
    let bench = Bench::new();
    bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    let node = bench.handle(bench.root, "f", O_PATH);
    // Paths of the other tests are absolute, so the working directory is free to change.
    bench.io.enter_jail().unwrap();
    let [name, len] = bench.name("user.dormouse");
    let value = bench.memory.put(b"nest");
    assert_eq!(bench.call(nr::SETXATTR, &[node.into(), name, len, value, 4, 0]), 0);
    assert_eq!(bench.call(nr::GETXATTR, &[node.into(), name, len, 0, 0]), 4);
}

#[test]
fn space_and_data_are_managed() {
    let bench = Bench::new();
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    assert_eq!(bench.call(nr::FALLOCATE, &[file.into(), 0, 0, 1 << 20]), 0);
    assert_eq!(stat(&bench, file, "").unwrap().size, 1 << 20);
    assert_eq!(bench.call(nr::FALLOCATE, &[file.into(), 1 << 20, 0, 1]), neg(libc::EINVAL));
    let sparse = bench.handle(bench.root, "s", O_RDWR | O_CREAT);
    bench.write(sparse, b"end", 1 << 20);
    assert_eq!(bench.call(nr::SEEK, &[sparse.into(), 0, libc::SEEK_DATA as u64]), 1 << 20);
    assert_eq!(bench.call(nr::SEEK, &[sparse.into(), 0, libc::SEEK_END as u64]), neg(libc::EINVAL));
    let out = bench.memory.room(size_of::<HostStatFs>());
    assert_eq!(bench.call(nr::STATFS, &[bench.root.into(), out]), 0);
    let space: HostStatFs = GuestBox::new(&bench.memory, out).unwrap().read();
    assert!(space.blocks > 0 && space.namelen == 255);
    let unnamed = bench.call(nr::TMPFILE, &[bench.root.into(), O_RDWR as u64, 0o600]);
    let unnamed = u32::try_from(unnamed).unwrap();
    bench.write(unnamed, b"unnamed", 0);
    let [n, len] = bench.name("named");
    assert_eq!(bench.call(nr::LINK, &[unnamed.into(), bench.root.into(), n, len]), 0);
    assert_eq!(fs::read(bench.dir.path().join("named")).unwrap(), b"unnamed");
    assert_eq!(bench.call(nr::COPY_RANGE, &[unnamed.into(), 2, file.into(), 0, u64::MAX]), 5);
    assert_eq!(bench.read(file, 5, 0).unwrap(), b"named");
    assert_eq!(bench.call(nr::TMPFILE, &[bench.root.into(), O_RDONLY as u64, 0o600]), neg(libc::EINVAL));
}

#[test]
fn copying_across_file_systems_falls_back() {
    let bench = Bench::new();
    let Ok(shm) = fs::File::open("/dev/shm") else { return };
    let shm = bench.io.files().adopt_mount(shm.into()).unwrap();
    let Ok(there) = u32::try_from(bench.call(nr::TMPFILE, &[shm.into(), O_RDWR as u64, 0o600])) else {
        return;
    };
    let here = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    let data = vec![7_u8; 300_000];
    assert_eq!(bench.write(here, &data, 0), 300_000);
    assert_eq!(bench.call(nr::COPY_RANGE, &[here.into(), 0, there.into(), 10, 300_000]), 300_000);
    assert_eq!(bench.read(there, 300_000, 10).unwrap(), data);
}

#[test]
fn hostile_handles_and_addresses_are_refused() {
    let bench = Bench::new();
    let at = bench.memory.base();
    for handle in [99, u64::from(NO_HANDLE), u64::from(NO_HANDLE) - 1, 1 << 32, u64::MAX] {
        for number in nr::OPEN..=nr::POLL_NOW {
            let result = bench.call(number, &[handle, at, 1, at, 1, 0]);
            assert!(result < 0, "call {number} with handle {handle}: {result}");
        }
    }
    let segments = bench.memory.put_segments(&[(0, 8)]);
    assert_eq!(bench.call(nr::READ, &[bench.root.into(), segments, 1, 0]), neg(libc::EFAULT));
    assert_eq!(bench.call(nr::STAT, &[bench.root.into(), 0, 0, 0]), neg(libc::EFAULT));
    assert_eq!(
        bench.call(nr::READDIR, &[bench.root.into(), bench.memory.end() - 8, 4096, 0]),
        neg(libc::EFAULT)
    );
    assert!(GuestSlice::new(&bench.memory, u64::MAX, 1).is_err());
}
