//! The quota against a temporary directory: its content at the beginning stands for the host's files.

use std::fs;
use std::os::fd::AsFd;

use abi::hostcall::{self as nr, HostStatFs, SetAttr};
use libc::{O_CREAT, O_PATH, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};

use super::testing::Bench;
use crate::guest_memory::GuestBox;

const MIB: u64 = 1 << 20;
const ENOSPC: i64 = -(libc::ENOSPC as i64);

fn set_size(bench: &Bench, handle: u32, size: u64) -> i64 {
    let at = bench.memory.room(size_of::<SetAttr>());
    let change = SetAttr { valid: nr::SET_SIZE, size, ..SetAttr::default() };
    GuestBox::new(&bench.memory, at).unwrap().write(&change);
    bench.call(nr::SETATTR, &[handle.into(), 0, 0, at])
}

fn set_mode(bench: &Bench, name: &str) -> i64 {
    let at = bench.memory.room(size_of::<SetAttr>());
    let change = SetAttr { valid: nr::SET_MODE, mode: 0o600, ..SetAttr::default() };
    GuestBox::new(&bench.memory, at).unwrap().write(&change);
    let [phys, len] = bench.name(name);
    bench.call(nr::SETATTR, &[bench.root.into(), phys, len, at])
}

fn unlink(bench: &Bench, name: &str) -> i64 {
    let [phys, len] = bench.name(name);
    bench.call(nr::UNLINK, &[bench.root.into(), phys, len, 0])
}

fn rename(bench: &Bench, old: &str, new: &str) -> i64 {
    let ([old_phys, old_len], [new_phys, new_len]) = (bench.name(old), bench.name(new));
    let root = u64::from(bench.root);
    bench.call(nr::RENAME, &[root, old_phys, old_len << 32 | new_len, root, new_phys, 0])
}

fn close(bench: &Bench, handle: u32) {
    assert_eq!(bench.call(nr::CLOSE, &[handle.into()]), 0);
}

/// Writes blocks of 64 KiB until something fails; result: bytes, and the error.
fn fill(bench: &Bench, handle: u32) -> (u64, i64) {
    let mut at = 0;
    loop {
        match bench.write(handle, &[7; 64 << 10], at) {
            done @ 1.. => at += done.cast_unsigned(),
            error => return (at, error),
        }
    }
}

/// The host's file system may count its directories and blocks differently; the tests allow for so much.
fn is_about(used: u64, expected: u64) -> bool {
    used >= expected && used <= expected + (64 << 10)
}

#[test]
fn writes_end_at_the_limit_and_unlinking_gives_back() {
    let (bench, quota) = Bench::with_quota(4 * MIB);
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    let (written, error) = fill(&bench, file);
    assert_eq!(error, ENOSPC);
    assert!((4 * MIB - (64 << 10)..=4 * MIB).contains(&written), "{written}");
    assert!(fs::metadata(bench.dir.path().join("f")).unwrap().len() <= 4 * MIB);
    // Existing blocks can be written again, and nothing else.
    assert_eq!(bench.write(file, &[8; 4096], 4096), 4096);
    let other = bench.handle_or(bench.root, "g", O_RDWR | O_CREAT);
    assert!(other.is_err() || bench.write(other.unwrap(), b"x", 0) == ENOSPC);
    assert_eq!(unlink(&bench, "f"), 0);
    assert!(quota.used().0 >= written, "it is held still");
    close(&bench, file);
    assert!(is_about(quota.used().0, 0), "{:?}", quota.used());
}

#[test]
fn each_way_to_take_space_is_refused_and_leaks_nothing() {
    let (bench, quota) = Bench::with_quota(MIB);
    fs::write(bench.dir.path().join("big"), vec![1; 2 << 20]).unwrap();
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    let before = quota.used();
    let source = bench.handle(bench.root, "big", O_RDONLY);
    for _ in 0..3 {
        assert_eq!(bench.call(nr::FALLOCATE, &[file.into(), 0, 0, 2 * MIB]), ENOSPC);
        assert_eq!(bench.open(bench.root, "big", O_WRONLY, 0), ENOSPC);
        assert_eq!(set_mode(&bench, "big"), ENOSPC);
        assert_eq!(rename(&bench, "big", "bigger"), ENOSPC);
        assert_eq!(quota.used(), before);
    }
    // A copy is as long as there is room; its content stays the host's otherwise.
    let copied = bench.call(nr::COPY_RANGE, &[source.into(), 0, file.into(), 0, 2 * MIB]);
    assert!(copied > 0 && copied.cast_unsigned() <= MIB, "{copied}");
    assert_eq!(bench.call(nr::COPY_RANGE, &[source.into(), 0, file.into(), 4 * MIB, MIB]), ENOSPC);
    assert_eq!(set_size(&bench, file, 0), 0);
    assert_eq!(quota.used(), before);
}

#[test]
fn holes_cost_nothing_until_they_are_filled() {
    let (bench, quota) = Bench::with_quota(MIB);
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    let before = quota.used();
    assert_eq!(set_size(&bench, file, 1 << 40), 0);
    assert_eq!(quota.used(), before);
    assert_eq!(bench.write(file, &[1; 4096], 1 << 39), 4096);
    assert!(is_about(quota.used().0, before.0 + 4096), "{:?}", quota.used());
    assert_eq!(bench.call(nr::FALLOCATE, &[file.into(), 0, 0, MIB / 2]), 0);
    assert!(is_about(quota.used().0, MIB / 2), "{:?}", quota.used());
    // Kept, though the length does not show it.
    let keep = u64::from(libc::FALLOC_FL_KEEP_SIZE.cast_unsigned());
    let other = bench.handle(bench.root, "g", O_RDWR | O_CREAT);
    assert_eq!(bench.call(nr::FALLOCATE, &[other.into(), keep, 0, MIB / 4]), 0);
    assert!(quota.used().0 >= MIB / 4 + MIB / 2, "{:?}", quota.used());
}

#[test]
fn what_is_copied_up_counts_and_gives_back() {
    let (bench, quota) = Bench::with_quota(4 * MIB);
    fs::write(bench.dir.path().join("host"), vec![1; 1 << 20]).unwrap();
    // The file has a handle from before.
    let named = bench.handle(bench.root, "host", O_PATH);
    assert_eq!(quota.used(), (0, 0));
    let file = bench.handle(bench.root, "host", O_WRONLY);
    assert!(is_about(quota.used().0, MIB), "{:?}", quota.used());
    close(&bench, file);
    assert_eq!(unlink(&bench, "host"), 0);
    assert!(quota.used().0 >= MIB, "it is held still");
    close(&bench, named);
    assert!(is_about(quota.used().0, 0), "{:?}", quota.used());
    // A file that is truncated at once is not copied.
    fs::write(bench.dir.path().join("other"), vec![1; 8 << 20]).unwrap();
    bench.handle(bench.root, "other", O_WRONLY | O_TRUNC);
}

#[test]
fn names_and_nodes_are_counted_once() {
    let (bench, quota) = Bench::with_quota(16 * MIB);
    let file = bench.handle(bench.root, "a", O_RDWR | O_CREAT);
    assert_eq!(bench.write(file, &[1; 1 << 20], 0), 1 << 20);
    close(&bench, file);
    let used = quota.used();
    let [phys, len] = bench.name("b");
    let node = bench.handle(bench.root, "a", O_PATH);
    assert_eq!(bench.call(nr::LINK, &[node.into(), bench.root.into(), phys, len]), 0);
    close(&bench, node);
    assert_eq!(unlink(&bench, "a"), 0);
    assert_eq!(quota.used().1, used.1);
    let victim = bench.handle(bench.root, "c", O_RDWR | O_CREAT);
    close(&bench, victim);
    assert_eq!(rename(&bench, "b", "c"), 0);
    assert_eq!(quota.used().1, used.1);
    assert_eq!(unlink(&bench, "c"), 0);
    assert_eq!(quota.used().1, used.1 - 1);
}

#[test]
fn files_run_out_as_space_does() {
    let (bench, quota) = Bench::with_quota(64 * MIB);
    let most = 4096 - 1; // with the directory itself
    for at in 0..most {
        close(&bench, bench.handle(bench.root, &at.to_string(), O_WRONLY | O_CREAT));
    }
    assert_eq!(bench.open(bench.root, "more", O_WRONLY | O_CREAT, 0o644), ENOSPC);
    let [phys, len] = bench.name("dir");
    assert_eq!(bench.call(nr::MKDIR, &[bench.root.into(), phys, len, 0o755]), ENOSPC);
    assert_eq!(unlink(&bench, "7"), 0);
    assert_eq!(bench.call(nr::MKDIR, &[bench.root.into(), phys, len, 0o755]), 0);
    assert_eq!(quota.used().1, 4096);
}

#[test]
fn the_view_says_how_large_it_is() {
    let (bench, quota) = Bench::with_quota(8 * MIB);
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    assert_eq!(bench.write(file, &[1; 1 << 20], 0), 1 << 20);
    let out = bench.memory.room(size_of::<HostStatFs>());
    assert_eq!(bench.call(nr::STATFS, &[bench.root.into(), out]), 0);
    let status: HostStatFs = GuestBox::new(&bench.memory, out).unwrap().read();
    let (used, nodes) = quota.used();
    assert_eq!(status.blocks * status.frsize, 8 * MIB);
    assert_eq!(status.bavail, (8 * MIB - used) / status.frsize);
    assert_eq!((status.files, status.files - status.ffree), (4096, nodes as u64));
}

#[test]
fn windows_count_the_holes_they_may_fill() {
    let (bench, quota) = Bench::with_quota(5 * MIB);
    let handle = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    assert_eq!(set_size(&bench, handle, 64 * MIB), 0);
    let before = quota.used().0;
    let file = fs::File::options().read(true).write(true).open(bench.dir.path().join("f")).unwrap();
    quota.show(0, file.as_fd(), true).unwrap();
    quota.show(1, file.as_fd(), true).unwrap();
    assert_eq!(quota.used().0, before + 4 * MIB);
    assert_eq!(quota.show(2, file.as_fd(), true).unwrap_err().0, libc::ENOSPC);
    // Reading fills nothing.
    quota.show(3, file.as_fd(), false).unwrap();
    // Shorter, and then longer again: the windows are there still.
    assert_eq!(set_size(&bench, handle, 0), 0);
    assert_eq!(quota.used().0, before);
    for at in [0, MIB] {
        assert_eq!(bench.write(handle, &[1; 1 << 20], at), 1 << 20);
    }
    assert_eq!(set_size(&bench, handle, 64 * MIB), ENOSPC);
    quota.hide(0, Some(file.as_fd()));
    quota.hide(1, Some(file.as_fd()));
    assert_eq!(set_size(&bench, handle, 64 * MIB), 0);
    // A window holds a file as a handle does.
    assert_eq!(unlink(&bench, "f"), 0);
    close(&bench, handle);
    assert!(quota.used().0 >= 2 * MIB);
    quota.hide(3, Some(file.as_fd()));
    assert!(is_about(quota.used().0, 0), "{:?}", quota.used());
}

#[test]
fn no_range_is_inserted_under_windows() {
    let (bench, quota) = Bench::with_quota(5 * MIB);
    let handle = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    for at in 0..4 {
        assert_eq!(bench.write(handle, &[1; 1 << 20], at * MIB), 1 << 20);
    }
    let file = fs::File::options().read(true).write(true).open(bench.dir.path().join("f")).unwrap();
    quota.show(0, file.as_fd(), true).unwrap();
    quota.show(1, file.as_fd(), true).unwrap();
    let before = quota.used();
    let insert = u64::from(libc::FALLOC_FL_INSERT_RANGE.cast_unsigned());
    let refused = bench.call(nr::FALLOCATE, &[handle.into(), insert, 0, 4 * MIB]);
    assert_eq!(refused, -i64::from(libc::EOPNOTSUPP));
    assert_eq!((quota.used(), file.metadata().unwrap().len()), (before, 4 * MIB));
}

#[test]
fn blocks_behind_the_end_fill_no_holes() {
    let (bench, quota) = Bench::with_quota(7 * MIB);
    let handle = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    assert_eq!(set_size(&bench, handle, 4 * MIB), 0);
    let keep = u64::from(libc::FALLOC_FL_KEEP_SIZE.cast_unsigned());
    assert_eq!(bench.call(nr::FALLOCATE, &[handle.into(), keep, 4 * MIB, 4 * MIB]), 0);
    let file = fs::File::options().read(true).write(true).open(bench.dir.path().join("f")).unwrap();
    quota.show(0, file.as_fd(), true).unwrap();
    assert!(quota.used().0 >= 6 * MIB, "{:?}", quota.used());
    assert_eq!(quota.show(1, file.as_fd(), true).unwrap_err().0, libc::ENOSPC);
    quota.hide(0, Some(file.as_fd()));
}
