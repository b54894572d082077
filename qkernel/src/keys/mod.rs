//! Keys and keyrings (`keyrings(7)`).
//!
//! A [`KeySpace`] is a container's: serial numbers, users' keyrings and quotas. A key lives as long as a keyring, a task or a call
//! holds it. Calls that look at several keys take [`KeySpace::turn`] first, so that what they have found stays as it is.

pub mod quota;
pub mod ring;
pub mod space;

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::keys::ring::Links;
use crate::keys::space::KeySpace;
use machine::errno::{Errno, Result};
use machine::mm::account::{self, Charge};
use machine::sync::{Rank, SpinLock};
use machine::time;

/// The types of keys that this kernel knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Keyring,
    User,
    Logon,
    BigKey,
}

impl Kind {
    const ALL: [(&'static str, Self); 4] =
        [("keyring", Self::Keyring), ("user", Self::User), ("logon", Self::Logon), ("big_key", Self::BigKey)];

    /// The type of this name. `ENODEV`.
    pub fn of(name: &[u8]) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|(known, _)| known.as_bytes() == name);
        known.map(|(_, kind)| kind).ok_or(Errno::ENODEV)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether programs can read what such a key holds.
    pub fn is_readable(self) -> bool {
        self != Self::Logon
    }

    /// The permissions of a key that a program adds: all for who holds it, and its owner sees it.
    pub fn first_perm(self) -> u32 {
        let is_read = if self.is_readable() { POSSESSOR_READ } else { 0 };
        POSSESSOR_ALL & !POSSESSOR_READ | is_read | USER_VIEW
    }

    /// Whether what such a key holds can be replaced.
    pub fn is_updatable(self) -> bool {
        self != Self::Keyring
    }

    /// How many bytes of its owner's quota a key takes.
    pub fn quota_bytes(self, description: &[u8], payload: usize) -> usize {
        description.len() + 1 + self.counted(payload)
    }

    /// How many bytes of its owner's quota a key takes for what it holds. A large one is for memory, not for the quota, to bound.
    fn counted(self, bytes: usize) -> usize {
        const BIG: usize = 16;
        if self == Self::BigKey { BIG } else { bytes }
    }

    /// Whether a key may have this description and hold this. `EINVAL`.
    pub fn check(self, description: &[u8], payload: &[u8]) -> Result<()> {
        let most = if self == Self::BigKey { BIG_MAX } else { PAYLOAD_MAX };
        let fits = match self {
            Self::Keyring => payload.is_empty(),
            _ => (1..=most).contains(&payload.len()),
        };
        // Before the colon stands whose it is.
        let is_qualified = description.iter().position(|byte| *byte == b':').is_some_and(|at| at > 0);
        if fits && (self != Self::Logon || is_qualified) { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// Most bytes that a key holds, and a key of type `big_key`.
const PAYLOAD_MAX: usize = 32_767;
pub const BIG_MAX: usize = (1 << 20) - 1;
/// Kernel memory of a key beside its description and what it holds.
const KEY_BYTES: usize = 512;

/// The use that a caller wants to make of a key, as a bit of each eight of its permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Need {
    View = 1,
    Read = 2,
    Write = 4,
    Search = 8,
    Link = 16,
    SetAttr = 32,
}

/// Permissions: eight bits each of possessor, user, group and others.
pub const PERM_ALL: u32 = 0x3f3f_3f3f;
const POSSESSOR_ALL: u32 = 0x3f00_0000;
const POSSESSOR_READ: u32 = 0x0200_0000;
const POSSESSOR_NO_SETATTR: u32 = 0x1f00_0000;
const USER_VIEW: u32 = 0x1_0000;
const USER_READ: u32 = 0x2_0000;
const USER_LINK: u32 = 0x10_0000;
const USER_ALL: u32 = 0x3f_0000;

/// Who owns a key; `u32::MAX` as group: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyOwner {
    pub uid: u32,
    pub gid: u32,
}

impl KeyOwner {
    /// The group as programs see it.
    pub fn shown_gid(self) -> u32 {
        const OVERFLOW: u32 = 65_534;
        if self.gid == u32::MAX { OVERFLOW } else { self.gid }
    }
}

/// The content of a key.
enum Payload {
    /// Nothing any more: it was revoked.
    Gone,
    Bytes(Box<[u8]>),
    Links(Links),
}

/// The part of a key that can change.
struct State {
    owner: KeyOwner,
    perm: u32,
    /// In seconds of the wall clock.
    expires: Option<u64>,
    is_revoked: bool,
    is_invalidated: bool,
    /// Nothing more may be linked (`KEYCTL_RESTRICT_KEYRING`).
    is_restricted: bool,
    payload: Payload,
    /// Bytes of its owner's quota; `None`: it counts for nobody.
    charged: Option<usize>,
    /// Kernel memory of it and what it holds, but for links.
    memory: Charge,
}

/// Charges kernel memory that outlives processes. `ENOMEM`.
fn charge(bytes: usize) -> Result<Charge> {
    Charge::lasting(bytes).map_err(|_| Errno::ENOMEM)
}

/// A key, or a keyring.
pub struct Key {
    pub serial: i32,
    pub kind: Kind,
    pub description: Box<[u8]>,
    space: Weak<KeySpace>,
    state: SpinLock<State>,
    /// The last search that came here, and how deep it was then. Used within a [`KeySpace::turn`] alone.
    seen_by: AtomicU64,
    seen_depth: AtomicU32,
}

/// The facts about a key that can be seen.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub owner: KeyOwner,
    pub perm: u32,
    pub expires: Option<u64>,
    pub is_revoked: bool,
    pub is_invalidated: bool,
    /// Bytes that it holds, or keys.
    pub holds: usize,
    /// It counts for its owner's quota.
    pub is_counted: bool,
    /// Nothing more may be linked to it.
    pub is_restricted: bool,
}

/// The wall clock in seconds.
pub fn now() -> u64 {
    time::realtime_ns() / time::NSEC
}

impl Key {
    /// Returns the facts about the key that can be seen.
    pub fn facts(&self) -> Facts {
        let state = self.state.lock();
        Facts {
            owner: state.owner,
            perm: state.perm,
            expires: state.expires,
            is_revoked: state.is_revoked,
            is_invalidated: state.is_invalidated,
            holds: match &state.payload {
                Payload::Gone => 0,
                Payload::Bytes(bytes) => bytes.len(),
                Payload::Links(links) => links.len(),
            },
            is_counted: state.charged.is_some(),
            is_restricted: state.is_restricted,
        }
    }

    /// `ENOKEY`, `EKEYREVOKED`, `EKEYEXPIRED`: it cannot be used any more.
    pub fn check_alive(&self) -> Result<()> {
        let facts = self.facts();
        match facts.expires {
            _ if facts.is_invalidated => Err(Errno::ENOKEY),
            _ if facts.is_revoked => Err(Errno::EKEYREVOKED),
            Some(expires) if expires <= now() => Err(Errno::EKEYEXPIRED),
            _ => Ok(()),
        }
    }

    /// A copy of what it holds. `EKEYREVOKED`: that is gone. `ENOMEM`.
    pub fn bytes(&self) -> Result<Box<[u8]>> {
        account::check(self.held_bytes())?;
        match &self.state.lock().payload {
            Payload::Bytes(bytes) => Ok(bytes.clone()),
            Payload::Links(_) => Err(Errno::EOPNOTSUPP),
            Payload::Gone => Err(Errno::EKEYREVOKED),
        }
    }

    /// Replaces what it holds, which also takes back its end. `EDQUOT`, `ENOMEM`; `EKEYREVOKED`.
    pub fn update(&self, bytes: Box<[u8]>) -> Result<()> {
        if self.state.lock().is_revoked {
            return Err(Errno::EKEYREVOKED);
        }
        let memory = charge(KEY_BYTES + self.description.len() + bytes.len())?;
        let (held, new) = (self.kind.counted(self.held_bytes()), self.kind.counted(bytes.len()));
        self.recharge(|charged| (charged + new).saturating_sub(held))?;
        let mut state = self.state.lock();
        state.expires = None;
        state.memory = memory;
        let old = core::mem::replace(&mut state.payload, Payload::Bytes(bytes));
        drop(state);
        drop(old);
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        match &self.state.lock().payload {
            Payload::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// It cannot be used from now on, and holds nothing.
    pub fn revoke(&self) {
        let held = self.kind.counted(self.held_bytes());
        let mut state = self.state.lock();
        state.is_revoked = true;
        let empty = if self.kind == Kind::Keyring { Payload::Links(Links::new()) } else { Payload::Gone };
        let old = core::mem::replace(&mut state.payload, empty);
        drop(state);
        let links = if let Payload::Links(links) = &old { links.len() * ring::LINK_BYTES } else { 0 };
        // Less is never refused.
        let _ = self.recharge(|charged| charged.saturating_sub(held + links));
        ring::drop_all(old);
    }

    /// It is as if it were not there. The caller takes it out of all keyrings.
    pub fn invalidate(&self) {
        self.state.lock().is_invalidated = true;
    }

    /// Sets its permissions.
    pub fn set_perm(&self, perm: u32) {
        self.state.lock().perm = perm;
    }

    /// Sets when it ends.
    pub fn set_expiry(&self, expires: Option<u64>) {
        self.state.lock().expires = expires;
    }

    /// Nothing more may be linked to it. `EEXIST`: that is so already.
    pub fn restrict(&self) -> Result<()> {
        let mut state = self.state.lock();
        if core::mem::replace(&mut state.is_restricted, true) { Err(Errno::EEXIST) } else { Ok(()) }
    }

    /// Gives it to somebody. `EDQUOT`: that one has enough keys.
    pub fn set_owner(&self, owner: KeyOwner) -> Result<()> {
        let (old, charged) = {
            let state = self.state.lock();
            (state.owner, state.charged)
        };
        if let (Some(charged), Some(space)) = (charged, self.space.upgrade())
            && old.uid != owner.uid
        {
            space.quotas.take(owner.uid, 1, charged)?;
            space.quotas.give_back(old.uid, 1, charged);
        }
        self.state.lock().owner = owner;
        Ok(())
    }

    /// Changes how many bytes of its owner's quota it takes. `EDQUOT`.
    fn recharge(&self, to: impl FnOnce(usize) -> usize) -> Result<()> {
        let (uid, charged) = {
            let state = self.state.lock();
            (state.owner.uid, state.charged)
        };
        let (Some(charged), Some(space)) = (charged, self.space.upgrade()) else { return Ok(()) };
        let new = to(charged);
        match new.checked_sub(charged) {
            Some(more) => space.quotas.take(uid, 0, more)?,
            None => space.quotas.give_back(uid, 0, charged - new),
        }
        self.state.lock().charged = Some(new);
        Ok(())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let (links, uid, charged) = {
            let mut state = self.state.lock();
            (core::mem::replace(&mut state.payload, Payload::Gone), state.owner.uid, state.charged)
        };
        ring::drop_all(links);
        if let Some(space) = self.space.upgrade() {
            if let Some(charged) = charged {
                space.quotas.give_back(uid, 1, charged);
            }
            space.forget(self.serial);
        }
    }
}

/// The keyrings of a task that it does not share with its process.
pub struct TaskKeyrings {
    held: SpinLock<Held>,
    /// `KEYCTL_SET_REQKEY_KEYRING`.
    pub destination: AtomicU32,
}

#[derive(Default)]
struct Held {
    thread: Option<Arc<Key>>,
    session: Option<Arc<Key>>,
}

impl Default for TaskKeyrings {
    fn default() -> Self {
        Self { held: SpinLock::new(Rank::Leaf, Held::default()), destination: AtomicU32::new(0) }
    }
}

impl TaskKeyrings {
    /// Its own keyring.
    pub fn thread(&self) -> Option<Arc<Key>> {
        self.held.lock().thread.clone()
    }

    /// That of its session.
    pub fn session(&self) -> Option<Arc<Key>> {
        self.held.lock().session.clone()
    }

    /// Sets its own one.
    pub fn set_thread(&self, ring: Option<Arc<Key>>) {
        let old = core::mem::replace(&mut self.held.lock().thread, ring);
        drop(old);
    }

    /// Joins a session.
    pub fn set_session(&self, ring: Arc<Key>) {
        let old = self.held.lock().session.replace(ring);
        drop(old);
    }

    /// Begins with its creator's session.
    pub fn inherit(&self, creator: &Self) {
        if let Some(session) = creator.session() {
            self.set_session(session);
        }
        self.destination.store(creator.destination.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
