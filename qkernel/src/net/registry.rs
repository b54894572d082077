//! The sockets that are open, for the tables of `/proc/net`.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::net::socket::Socket;
use machine::sync::{Rank, SpinLock};

struct Entry {
    socket: Weak<dyn Socket>,
    uid: u32,
}

/// By inode number.
static OPEN: SpinLock<BTreeMap<u64, Entry>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

/// A socket that is open.
pub struct Open {
    pub ino: u64,
    pub uid: u32,
    pub socket: Arc<dyn Socket>,
}

/// A file of `socket` was made, with this inode number and owner.
pub fn add(ino: u64, uid: u32, socket: &Arc<dyn Socket>) {
    OPEN.lock().insert(ino, Entry { socket: Arc::downgrade(socket), uid });
}

/// The file is closed.
pub fn remove(ino: u64) {
    OPEN.lock().remove(&ino);
}

/// All that are open, in the order they were made.
pub fn list() -> Vec<Open> {
    let open = OPEN.lock();
    let all = open
        .iter()
        .filter_map(|(ino, entry)| Some(Open { ino: *ino, uid: entry.uid, socket: entry.socket.upgrade()? }));
    all.collect()
}
