//! The tree as a whole, on a file system in memory.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::creds::Creds;
use crate::fs::access::Actor;
use crate::fs::file::{File, FileOps, FileTable, OpenFlags};
use crate::fs::inode::Stat;
use crate::fs::mount::{Limits, Mount};
use crate::fs::names;
use crate::fs::names::{RENAME_EXCHANGE, RENAME_NOREPLACE};
use crate::fs::path::{FsContext, Path};
use crate::fs::tmpfs;
use crate::fs::walk::{Resolve, Walker};
use machine::errno::{Errno, Result};

fn world() -> (Actor, Path) {
    world_of(0)
}

fn world_of(uid: u32) -> (Actor, Path) {
    let root = Mount::of(tmpfs::new(0o1777), b"tmpfs", b"none", Limits::empty()).path();
    let fs = FsContext::new(root.clone(), root.clone(), 0);
    (Actor { creds: Arc::new(Creds::new(uid, uid, vec![])), fs }, root)
}

fn find(actor: &Actor, root: &Path, path: &[u8]) -> Result<Path> {
    Walker::new(actor, root.clone(), path, Resolve::empty())?.finish(true)
}

fn mkdir(actor: &Actor, root: &Path, path: &[u8]) {
    assert_eq!(names::mkdir(actor, root.clone(), path, 0o755), Ok(()));
}

fn rename(actor: &Actor, root: &Path, old: &[u8], new: &[u8], flags: u32) -> Result<()> {
    names::rename(actor, (root.clone(), old), (root.clone(), new), flags)
}

#[test]
fn links_lead_on_and_circles_end() {
    let (actor, root) = world();
    mkdir(&actor, &root, b"/a");
    mkdir(&actor, &root, b"/a/b");
    names::symlink(&actor, root.clone(), b"/l", b"a/../a/b").unwrap();
    assert_eq!(find(&actor, &root, b"/l/.").unwrap().absolute(), b"/a/b");
    names::symlink(&actor, root.clone(), b"/x", b"y").unwrap();
    names::symlink(&actor, root.clone(), b"/y", b"/x").unwrap();
    assert_eq!(find(&actor, &root, b"x").err(), Some(Errno::ELOOP));
    assert_eq!(find(&actor, &root, b"/../../a").unwrap().absolute(), b"/a");
    assert_eq!(find(&actor, &root, &[b'n'; 256]).err(), Some(Errno::ENAMETOOLONG));
}

#[test]
fn mounts_cover_and_are_left_upwards() {
    let (actor, root) = world();
    mkdir(&actor, &root, b"/m");
    mkdir(&actor, &root, b"/m/below");
    let place = find(&actor, &root, b"/m").unwrap();
    let mount = Mount::of(tmpfs::new(0o755), b"tmpfs", b"none", Limits::READ_ONLY);
    mount.attach(&place);
    assert_eq!(find(&actor, &root, b"/m/below").err(), Some(Errno::ENOENT));
    assert_eq!(names::mkdir(&actor, root.clone(), b"/m/x", 0o755), Err(Errno::EROFS));
    mount.set_limits(Limits::empty());
    mkdir(&actor, &root, b"/m/x");
    assert_eq!(find(&actor, &root, b"/m/x").unwrap().absolute(), b"/m/x");
    assert!(find(&actor, &root, b"/m/x/../..").unwrap().same(&root));
    assert_eq!(names::rmdir(&actor, root.clone(), b"/m"), Err(Errno::EBUSY));
    assert_eq!(rename(&actor, &root, b"/m/x", b"/x", 0), Err(Errno::EXDEV));
    mount.detach(true).unwrap();
    assert!(find(&actor, &root, b"/m/below").is_ok());
}

#[test]
fn renames_exchange_within_a_directory() {
    let (actor, root) = world();
    mkdir(&actor, &root, b"/a");
    names::symlink(&actor, root.clone(), b"/b", b"a").unwrap();
    rename(&actor, &root, b"/a", b"/b", RENAME_EXCHANGE).unwrap();
    assert_eq!(find(&actor, &root, b"/b").unwrap().absolute(), b"/b");
    assert_eq!(find(&actor, &root, b"/a").err(), Some(Errno::ELOOP));
    assert_eq!(rename(&actor, &root, b"/a", b"/b", RENAME_NOREPLACE), Err(Errno::EEXIST));
}

#[test]
fn directories_do_not_move_into_themselves() {
    let (actor, root) = world();
    mkdir(&actor, &root, b"/a");
    mkdir(&actor, &root, b"/a/b");
    assert_eq!(rename(&actor, &root, b"/a", b"/a/b/c", 0), Err(Errno::EINVAL));
    assert_eq!(rename(&actor, &root, b"/a/b", b"/a", 0), Err(Errno::ENOTEMPTY));
    mkdir(&actor, &root, b"/c");
    let moved = find(&actor, &root, b"/a/b").unwrap();
    rename(&actor, &root, b"/a/b", b"/c", 0).unwrap();
    assert_eq!(moved.absolute(), b"/c");
    assert_eq!(root.inode.stat().unwrap().nlink, 4);
}

#[test]
fn removed_places_say_so_and_take_nothing_new() {
    let (actor, root) = world();
    mkdir(&actor, &root, b"/a");
    let gone = find(&actor, &root, b"/a").unwrap();
    names::rmdir(&actor, root.clone(), b"/a").unwrap();
    assert_eq!(gone.absolute(), b"/a (deleted)");
    assert_eq!(names::mkdir(&actor, gone.clone(), b"x", 0o755), Err(Errno::ENOENT));
    mkdir(&actor, &root, b"/a");
    assert!(!find(&actor, &root, b"/a").unwrap().same(&gone));
}

#[test]
fn sticky_directories_protect_names() {
    let (root_user, root) = world();
    mkdir(&root_user, &root, b"/mine");
    let user = Actor { creds: Arc::new(Creds::new(7, 7, vec![])), fs: root_user.fs.clone() };
    assert_eq!(names::rmdir(&user, root.clone(), b"/mine"), Err(Errno::EPERM));
    assert_eq!(names::mkdir(&user, root.clone(), b"/mine/x", 0o755), Err(Errno::EACCES));
    mkdir(&user, &root, b"/yours");
    assert_eq!(names::rmdir(&user, root.clone(), b"/yours"), Ok(()));
}

#[test]
fn paths_deeper_than_the_stack_come_down() {
    let (actor, root) = world();
    let mut at = root.clone();
    for _ in 0..50_000 {
        mkdir(&actor, &at, b"d");
        at = find(&actor, &at, b"d").unwrap();
    }
    drop((actor, root));
    assert_eq!(at.absolute().len(), 100_000);
    drop(at);
}

struct Nothing;

impl FileOps for Nothing {
    fn stat(&self, _file: &File) -> Result<Stat> {
        Err(Errno::EIO)
    }
    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}

#[test]
fn descriptors_are_the_lowest_free_ones() {
    let files = FileTable::new();
    let file = File::new(Box::new(Nothing), OpenFlags::empty(), None);
    let put = |least| files.insert(file.clone(), false, least, 8);
    let first: Vec<_> = (0..4).map(|_| put(0)).collect();
    assert_eq!(first, [Ok(0), Ok(1), Ok(2), Ok(3)]);
    assert_eq!(put(6), Ok(6));
    files.close(1).unwrap();
    files.close(2).unwrap();
    assert_eq!(
        [put(2), put(0), put(0), put(0), put(0), put(0)].to_vec(),
        [Ok(2), Ok(1), Ok(4), Ok(5), Ok(7), Err(Errno::EMFILE)]
    );
    assert_eq!(put(8), Err(Errno::EMFILE));
    let copy = files.fork().unwrap();
    files.close(0).unwrap();
    assert!(copy.get(0).is_ok() && files.get(0).is_err());
}
