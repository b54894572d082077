//! The keys of a container.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::keys::quota::Quotas;
use crate::keys::ring::Links;
use crate::keys::{
    KEY_BYTES, Key, KeyOwner, Kind, POSSESSOR_ALL, POSSESSOR_NO_SETATTR, Payload, State, USER_ALL, USER_LINK,
    USER_READ, USER_VIEW, charge, now,
};
use machine::errno::Result;
use machine::random;
use machine::sched;
use machine::sync::{Mutex, MutexGuard, Rank, SpinLock};

/// The group of keys that belong to a user alone.
const NO_GROUP: u32 = u32::MAX;

/// The keyrings that a user has whatever processes there are.
#[derive(Clone)]
pub struct UserRings {
    pub user: Arc<Key>,
    pub session: Arc<Key>,
}

/// All keys of a container.
pub struct KeySpace {
    me: Weak<KeySpace>,
    turn: Mutex<Cell<u64>>,
    registry: SpinLock<BTreeMap<i32, Weak<Key>>>,
    users: SpinLock<BTreeMap<u32, UserRings>>,
    /// `KEYCTL_GET_PERSISTENT`.
    persistent: SpinLock<BTreeMap<u32, Arc<Key>>>,
    pub quotas: Quotas,
}

/// Whether a new key counts for its owner's quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    No,
    /// It does, and there must be room.
    Within,
    /// It does, however much there is: what a task cannot do without.
    Beyond,
}

/// The right to look at several keys, and to change how they hang together.
pub struct Turn<'a>(MutexGuard<'a, Cell<u64>>);

impl Turn<'_> {
    /// A number for a walk through keyrings.
    pub fn new_walk(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

impl KeySpace {
    /// One without keys.
    pub fn new() -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            turn: Mutex::new(Rank::Keys, Cell::new(0)),
            registry: SpinLock::new(Rank::Leaf, BTreeMap::new()),
            users: SpinLock::new(Rank::Leaf, BTreeMap::new()),
            persistent: SpinLock::new(Rank::Leaf, BTreeMap::new()),
            quotas: Quotas::default(),
        })
    }

    /// Waits for the turn of this call.
    pub fn turn(&self) -> Turn<'_> {
        Turn(self.turn.lock())
    }

    /// The key with this number.
    pub fn get(&self, serial: i32) -> Option<Arc<Key>> {
        self.registry.lock().get(&serial).and_then(Weak::upgrade)
    }

    /// Some of the keys, by their numbers, from one on. None: there are no more.
    fn some_from(&self, serial: i32) -> Vec<Arc<Key>> {
        const SOME: usize = 64;
        let mut from = serial;
        loop {
            let some: Vec<_> = self
                .registry
                .lock()
                .range(from..)
                .take(SOME)
                .map(|(serial, key)| (*serial, key.clone()))
                .collect();
            let Some((last, _)) = some.last() else { return Vec::new() };
            from = last.saturating_add(1);
            let keys: Vec<_> = some.iter().filter_map(|(_, key)| key.upgrade()).collect();
            if !keys.is_empty() {
                return keys;
            }
        }
    }

    /// A key that nobody holds yet. `EDQUOT`, if it counts; `ENOMEM`.
    pub fn create(
        &self,
        (kind, description): (Kind, &[u8]),
        owner: KeyOwner,
        perm: u32,
        payload: Box<[u8]>,
        count: Count,
    ) -> Result<Arc<Key>> {
        let memory = charge(KEY_BYTES + description.len() + payload.len())?;
        let bytes = kind.quota_bytes(description, payload.len());
        match count {
            Count::No => {}
            Count::Within => self.quotas.take(owner.uid, 1, bytes)?,
            Count::Beyond => self.quotas.take_all_the_same(owner.uid, 1, bytes),
        }
        let payload = match kind {
            Kind::Keyring => Payload::Links(Links::new()),
            _ => Payload::Bytes(payload),
        };
        let state = State {
            owner,
            perm,
            expires: None,
            is_revoked: false,
            is_invalidated: false,
            is_restricted: false,
            payload,
            charged: (count != Count::No).then_some(bytes),
            memory,
        };
        let mut key = Key {
            serial: 0,
            kind,
            description: description.into(),
            space: self.me.clone(),
            state: SpinLock::new(Rank::Leaf, state),
            seen_by: AtomicU64::new(0),
            seen_depth: AtomicU32::new(0),
        };
        loop {
            key.serial = random_serial();
            let mut registry = self.registry.lock();
            // There are far fewer keys than numbers.
            if let Entry::Vacant(place) = registry.entry(key.serial) {
                let key = Arc::new(key);
                place.insert(Arc::downgrade(&key));
                return Ok(key);
            }
        }
    }

    /// A key's number means nothing any more.
    pub(super) fn forget(&self, serial: i32) {
        let gone = self.registry.lock().remove(&serial);
        drop(gone);
    }

    /// The keyring of a thread or process that has just been asked for.
    pub fn private_ring(&self, name: &str, owner: KeyOwner) -> Result<Arc<Key>> {
        let perm = POSSESSOR_ALL | USER_VIEW;
        self.create((Kind::Keyring, name.as_bytes()), owner, perm, Box::default(), Count::Beyond)
    }

    /// A session's keyring. Those with a name can be joined by others of the user.
    pub fn session_ring(&self, name: Option<&[u8]>, owner: KeyOwner, count: Count) -> Result<Arc<Key>> {
        let perm = POSSESSOR_ALL | USER_VIEW | USER_READ | if name.is_some() { USER_LINK } else { 0 };
        self.create((Kind::Keyring, name.unwrap_or(b"_ses")), owner, perm, Box::default(), count)
    }

    /// The keyrings of a user.
    pub fn user_rings(&self, turn: &Turn, uid: u32) -> Result<UserRings> {
        let is_there = |key: &Arc<Key>| !key.facts().is_invalidated;
        let (user, session) = self.known_user_rings(uid).map(|rings| (rings.user, rings.session)).unzip();
        let (user, session) = (user.filter(is_there), session.filter(is_there));
        if let (Some(user), Some(session)) = (&user, &session) {
            return Ok(UserRings { user: user.clone(), session: session.clone() });
        }
        let (owner, perm) = (KeyOwner { uid, gid: NO_GROUP }, POSSESSOR_NO_SETATTR | USER_ALL);
        let make = |name: &str| {
            let name = format!("{name}.{uid}");
            self.create((Kind::Keyring, name.as_bytes()), owner, perm, Box::default(), Count::Beyond)
        };
        let (user, session) =
            (user.map_or_else(|| make("_uid"), Ok)?, session.map_or_else(|| make("_uid_ses"), Ok)?);
        let rings = UserRings { user, session };
        rings.session.link(turn, &rings.user)?;
        let old = self.users.lock().insert(uid, rings.clone());
        drop(old);
        Ok(rings)
    }

    /// The keyrings of a user, if anybody has asked for them yet.
    pub fn known_user_rings(&self, uid: u32) -> Option<UserRings> {
        self.users.lock().get(&uid).cloned()
    }

    /// Takes what has ended some time ago out of all keyrings (`gc_delay`). `EINTR`: the caller is to end.
    pub fn collect(&self, _turn: &Turn) -> Result<()> {
        let before = now().saturating_sub(u64::from(self.quotas.limits.gc_delay.load(Ordering::Relaxed)));
        self.for_each(|key| {
            key.unlink_ended(before);
            Ok(())
        })
    }

    /// Looks at all keys, by their numbers. Others may run in between. `EINTR`: the caller is to end.
    pub fn for_each(&self, mut visit: impl FnMut(&Arc<Key>) -> Result<()>) -> Result<()> {
        let mut from = 0;
        loop {
            sched::go_on()?;
            let some = self.some_from(from);
            some.iter().try_for_each(&mut visit)?;
            match some.last().and_then(|last| last.serial.checked_add(1)) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// The keyring of a user that outlives the user's processes for a while, from now on.
    pub fn persistent_ring(&self, uid: u32) -> Result<Arc<Key>> {
        let known = self.persistent.lock().get(&uid).cloned();
        let ring = match known.filter(|ring| ring.check_alive().is_ok()) {
            Some(ring) => ring,
            None => {
                let (owner, perm) =
                    (KeyOwner { uid, gid: NO_GROUP }, POSSESSOR_NO_SETATTR | USER_VIEW | USER_READ);
                let name = format!("_persistent.{uid}");
                let ring =
                    self.create((Kind::Keyring, name.as_bytes()), owner, perm, Box::default(), Count::No)?;
                let old = self.persistent.lock().insert(uid, ring.clone());
                drop(old);
                ring
            }
        };
        let seconds = self.quotas.limits.persistent_seconds.load(Ordering::Relaxed);
        ring.set_expiry(Some(now() + u64::from(seconds)));
        Ok(ring)
    }

    /// Takes a key out of all keyrings. `EINTR`: the caller is to end.
    pub fn unlink_everywhere(&self, _turn: &Turn, key: &Arc<Key>) -> Result<()> {
        self.for_each(|ring| {
            // Most do not hold it.
            let _ = ring.unlink(key);
            Ok(())
        })
    }
}

/// A number that may be a key's: larger than those that the calls give a meaning.
fn random_serial() -> i32 {
    loop {
        let mut bytes = [0; 4];
        random::fill(&mut bytes);
        let serial = (u32::from_ne_bytes(bytes) >> 1).cast_signed();
        if serial > 2 {
            return serial;
        }
    }
}
