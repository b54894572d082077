//! How many keys a user may have, and how many bytes they may hold (`keyrings(7)`, `/proc/sys/kernel/keys`).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use machine::errno::{Errno, Result};
use machine::sync::{Rank, SpinLock};

/// The keys, and bytes, that a user has, or may have.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    pub keys: u32,
    pub bytes: usize,
}

impl Usage {
    fn plus(self, keys: u32, bytes: usize) -> Self {
        Self { keys: self.keys.saturating_add(keys), bytes: self.bytes.saturating_add(bytes) }
    }

    fn fits(self, most: Self) -> bool {
        self.keys <= most.keys && self.bytes <= most.bytes
    }
}

/// The limits, root's by themselves.
pub struct Limits {
    pub keys: AtomicU32,
    pub bytes: AtomicU32,
    pub root_keys: AtomicU32,
    pub root_bytes: AtomicU32,
    /// Seconds that the keyring of a user who is not there stays.
    pub persistent_seconds: AtomicU32,
    /// Kept alone: what nobody holds is gone at once here.
    pub gc_delay: AtomicU32,
}

/// The users of a container.
pub struct Quotas {
    pub limits: Limits,
    used: SpinLock<BTreeMap<u32, Usage>>,
}

impl Default for Quotas {
    /// Linux's limits.
    fn default() -> Self {
        Self {
            limits: Limits {
                keys: AtomicU32::new(200),
                bytes: AtomicU32::new(20_000),
                root_keys: AtomicU32::new(1_000_000),
                root_bytes: AtomicU32::new(25_000_000),
                persistent_seconds: AtomicU32::new(3 * 24 * 3600),
                gc_delay: AtomicU32::new(300),
            },
            used: SpinLock::new(Rank::Leaf, BTreeMap::new()),
        }
    }
}

impl Quotas {
    /// Most keys and bytes that a user may have.
    pub fn most(&self, uid: u32) -> Usage {
        let limits = &self.limits;
        let (keys, bytes) =
            if uid == 0 { (&limits.root_keys, &limits.root_bytes) } else { (&limits.keys, &limits.bytes) };
        Usage { keys: keys.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) as usize }
    }

    /// Whether a user may have so many more.
    pub fn has_room(&self, uid: u32, keys: u32, bytes: usize) -> bool {
        let used = self.used.lock().get(&uid).copied().unwrap_or_default();
        used.plus(keys, bytes).fits(self.most(uid))
    }

    /// Counts keys and bytes of a user. `EDQUOT`: there would be more than may be.
    pub fn take(&self, uid: u32, keys: u32, bytes: usize) -> Result<()> {
        let most = self.most(uid);
        let mut used = self.used.lock();
        let user = used.entry(uid).or_default();
        let new = user.plus(keys, bytes);
        let fits = new.fits(most);
        if fits {
            *user = new;
        } else if *user == Usage::default() {
            used.remove(&uid);
        }
        if fits { Ok(()) } else { Err(Errno::EDQUOT) }
    }

    /// Counts them, however many there are.
    pub fn take_all_the_same(&self, uid: u32, keys: u32, bytes: usize) {
        let mut used = self.used.lock();
        let user = used.entry(uid).or_default();
        *user = user.plus(keys, bytes);
    }

    /// Counts them no more.
    pub fn give_back(&self, uid: u32, keys: u32, bytes: usize) {
        let mut used = self.used.lock();
        if let Some(user) = used.get_mut(&uid) {
            user.keys = user.keys.saturating_sub(keys);
            user.bytes = user.bytes.saturating_sub(bytes);
            if *user == Usage::default() {
                used.remove(&uid);
            }
        }
    }

    /// Some of the users who have any, from this id on.
    pub fn some_from(&self, uid: u32) -> Vec<(u32, Usage)> {
        self.used.lock().range(uid..).take(64).map(|(uid, usage)| (*uid, *usage)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_as_much_as_is_allowed_and_root_has_more() {
        let quotas = Quotas::default();
        assert_eq!(quotas.take(1000, 1, 20_001), Err(Errno::EDQUOT));
        assert_eq!(quotas.some_from(0), []);
        assert_eq!(quotas.take(1000, 200, 20_000), Ok(()));
        assert_eq!(quotas.take(1000, 1, 0), Err(Errno::EDQUOT));
        assert_eq!(quotas.take(0, 201, 20_001), Ok(()));
        quotas.give_back(1000, 200, 19_999);
        assert_eq!(quotas.some_from(1), [(1000, Usage { keys: 0, bytes: 1 })]);
        quotas.give_back(1000, 0, 1);
        assert_eq!(quotas.some_from(1), []);
    }
}
