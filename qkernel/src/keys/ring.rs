//! Keyrings: the links to keys that they hold.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::keys::space::Turn;
use crate::keys::{Key, Kind, Payload, charge};
use machine::errno::{Errno, Result};
use machine::mm::account::{self, Charge};
use machine::sched;

/// A keyring holds one key of each type and description.
pub type Name = (Kind, Box<[u8]>);
pub type Links = BTreeMap<Name, Link>;

/// A key that a keyring holds.
pub struct Link {
    key: Arc<Key>,
    _memory: Charge,
}

/// Most keys in a keyring: all of them are looked at in one go.
const LINKS_MAX: usize = 1 << 16;

/// How deep keyrings that hold each other are looked through.
pub const DEPTH_MAX: u32 = 6;
/// Bytes of quota that a link takes, and of kernel memory beside the description.
pub const LINK_BYTES: usize = 4;
const LINK_MEMORY: usize = 128;

/// Drops what a key holds, and the keys that nobody else has. They may be nested deeper than a stack is.
pub(super) fn drop_all(payload: Payload) {
    let Payload::Links(links) = payload else { return };
    let mut left: Vec<Arc<Key>> = links.into_values().map(|link| link.key).collect();
    while let Some(key) = left.pop() {
        // Who has a key alone: nobody finds it by its number any more.
        let Some(key) = Arc::into_inner(key) else { continue };
        let payload = core::mem::replace(&mut key.state.lock().payload, Payload::Gone);
        if let Payload::Links(links) = payload {
            left.extend(links.into_values().map(|link| link.key));
        }
    }
}

impl Key {
    /// The key of this type and description that it holds.
    pub fn link_of(&self, kind: Kind, description: &[u8]) -> Option<Arc<Key>> {
        let name = (kind, description.into());
        match &self.state.lock().payload {
            Payload::Links(links) => links.get(&name).map(|link| link.key.clone()),
            _ => None,
        }
    }

    /// Whether it holds this very key.
    pub fn holds(&self, key: &Arc<Key>) -> bool {
        self.link_of(key.kind, &key.description).is_some_and(|held| Arc::ptr_eq(&held, key))
    }

    /// The keyrings that it holds. They come first, as the type is the first part of a name.
    pub fn nested(&self) -> Vec<Arc<Key>> {
        match &self.state.lock().payload {
            Payload::Links(links) => links
                .iter()
                .take_while(|((kind, _), _)| *kind == Kind::Keyring)
                .map(|(_, link)| link.key.clone())
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Has it hold no key any more that ended before a time, in seconds.
    pub fn unlink_ended(self: &Arc<Self>, before: u64) {
        let held: Vec<Arc<Key>> = match &self.state.lock().payload {
            Payload::Links(links) => links.values().map(|link| link.key.clone()).collect(),
            _ => Vec::new(),
        };
        for key in held.iter().filter(|key| key.facts().expires.is_some_and(|expires| expires <= before)) {
            // It holds it, and is a keyring.
            let _ = self.unlink(key);
        }
    }

    /// The serial numbers of what it holds. `ENOMEM`.
    pub fn serials(&self) -> Result<Vec<i32>> {
        account::check(self.facts().holds * size_of::<i32>())?;
        Ok(match &self.state.lock().payload {
            Payload::Links(links) => links.values().map(|link| link.key.serial).collect(),
            _ => Vec::new(),
        })
    }

    /// Has it hold a key, in place of another one of the same type and description. `ENOTDIR`: it is no keyring. `EKEYREVOKED`;
    /// `EPERM`: it is closed. `EDEADLK`: the key holds it. `ELOOP`: the key is too deep. `EDQUOT`, `ENOMEM`.
    pub fn link(self: &Arc<Self>, turn: &Turn, key: &Arc<Key>) -> Result<()> {
        if self.kind != Kind::Keyring {
            return Err(Errno::ENOTDIR);
        }
        {
            let state = self.state.lock();
            if state.is_revoked {
                return Err(Errno::EKEYREVOKED);
            }
            if state.is_restricted {
                return Err(Errno::EPERM);
            }
        }
        if key.kind == Kind::Keyring {
            self.check_cycle(turn, key)?;
        }
        let is_new = self.link_of(key.kind, &key.description).is_none();
        let memory = charge(LINK_MEMORY + key.description.len())?;
        if is_new && self.facts().holds >= LINKS_MAX {
            return Err(Errno::EDQUOT);
        }
        if is_new {
            self.recharge(|charged| charged + LINK_BYTES)?;
        }
        let name = (key.kind, key.description.clone());
        let old = match &mut self.state.lock().payload {
            Payload::Links(links) => links.insert(name, Link { key: key.clone(), _memory: memory }),
            _ => None,
        };
        drop(old);
        Ok(())
    }

    /// `ENOENT`: it does not hold the key.
    pub fn unlink(self: &Arc<Self>, key: &Arc<Key>) -> Result<()> {
        if self.kind != Kind::Keyring {
            return Err(Errno::ENOTDIR);
        }
        if !self.holds(key) {
            return Err(Errno::ENOENT);
        }
        let old = match &mut self.state.lock().payload {
            Payload::Links(links) => links.remove(&(key.kind, key.description.clone())),
            _ => None,
        };
        drop(old);
        self.recharge(|charged| charged.saturating_sub(LINK_BYTES))
    }

    /// Has it hold nothing. `ENOTDIR`: it is no keyring.
    pub fn clear(&self) -> Result<()> {
        let old = match &mut self.state.lock().payload {
            Payload::Links(links) => core::mem::take(links),
            _ => return Err(Errno::ENOTDIR),
        };
        self.recharge(|charged| charged.saturating_sub(old.len() * LINK_BYTES))?;
        drop_all(Payload::Links(old));
        Ok(())
    }

    /// `EDEADLK`: this one is `other`, or within it. `ELOOP`: `other` is too deep.
    fn check_cycle(self: &Arc<Self>, turn: &Turn, other: &Arc<Key>) -> Result<()> {
        if Arc::ptr_eq(self, other) {
            return Err(Errno::EDEADLK);
        }
        let walk = turn.new_walk();
        let mut left = vec![(other.clone(), 0)];
        while let Some((ring, depth)) = left.pop() {
            if !ring.is_new_to(walk, depth) {
                continue;
            }
            sched::go_on()?;
            if ring.holds(self) {
                return Err(Errno::EDEADLK);
            }
            let nested = ring.nested();
            if !nested.is_empty() && depth >= DEPTH_MAX {
                return Err(Errno::ELOOP);
            }
            left.extend(nested.into_iter().map(|ring| (ring, depth + 1)));
        }
        Ok(())
    }

    /// Whether a walk through keyrings has not been here yet, or was deeper then: each is looked at a few times at most.
    pub fn is_new_to(&self, walk: u64, depth: u32) -> bool {
        let was_here = self.seen_by.swap(walk, Ordering::Relaxed) == walk;
        if was_here && self.seen_depth.load(Ordering::Relaxed) <= depth {
            return false;
        }
        self.seen_depth.store(depth, Ordering::Relaxed);
        true
    }
}
