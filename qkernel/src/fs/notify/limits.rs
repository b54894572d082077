//! How many instances and watches each user of a container may have, and events each instance: `/proc/sys/fs/inotify`.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use machine::errno::{Errno, Result};
use machine::sync::{Rank, SpinLock};

/// The largest value of a setting.
const MOST: u32 = i32::MAX.unsigned_abs();
/// Most events that an instance may hold, whatever the setting says: they are freed in one go.
const MOST_EVENTS: u32 = 1 << 20;

/// A container's settings, and what its users have.
pub struct Limits {
    pub events: AtomicU32,
    pub instances: AtomicU32,
    pub watches: AtomicU32,
    users: SpinLock<BTreeMap<u32, User>>,
}

#[derive(Default)]
struct User {
    instances: u32,
    watches: Arc<AtomicU32>,
}

impl Limits {
    /// Linux's defaults. (Of watches it allows more on large machines.)
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            events: AtomicU32::new(16_384),
            instances: AtomicU32::new(128),
            watches: AtomicU32::new(65_536),
            users: SpinLock::new(Rank::Leaf, BTreeMap::new()),
        })
    }

    /// Counts an instance of the user. `EMFILE`: there are as many as may be.
    pub fn take(self: &Arc<Self>, uid: u32) -> Result<InstanceCharge> {
        let most = self.instances.load(Ordering::Relaxed);
        let mut users = self.users.lock();
        if users.get(&uid).map_or(0, |user| user.instances) >= most {
            return Err(Errno::EMFILE);
        }
        let user = users.entry(uid).or_default();
        user.instances += 1;
        Ok(InstanceCharge { limits: self.clone(), uid, watches: user.watches.clone() })
    }
}

/// A setting that was written. `EINVAL`: it is no number, negative or too large.
pub fn store(setting: &AtomicU32, value: i64) -> Result<()> {
    let value = u32::try_from(value).ok().filter(|value| *value <= MOST).ok_or(Errno::EINVAL)?;
    setting.store(value, Ordering::Relaxed);
    Ok(())
}

/// The charge of an instance to its user, who may have so many; given back when dropped.
pub struct InstanceCharge {
    limits: Arc<Limits>,
    uid: u32,
    watches: Arc<AtomicU32>,
}

impl InstanceCharge {
    /// Most events that an instance may hold.
    pub fn most_events(&self) -> usize {
        self.limits.events.load(Ordering::Relaxed).min(MOST_EVENTS) as usize
    }

    /// Counts a watch. `ENOSPC`: there are as many as may be.
    pub fn take_watch(&self) -> Result<()> {
        let most = self.limits.watches.load(Ordering::Relaxed);
        let more = |now: u32| (now < most).then(|| now + 1);
        self.watches
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_or(Err(Errno::ENOSPC), |_| Ok(()))
    }

    /// Counts a watch less.
    pub fn give_watch(&self) {
        self.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for InstanceCharge {
    fn drop(&mut self) {
        let _user = {
            let mut users = self.limits.users.lock();
            let Some(user) = users.get_mut(&self.uid) else { return };
            user.instances -= 1;
            if user.instances == 0 { users.remove(&self.uid) } else { None }
        };
    }
}
