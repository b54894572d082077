//! Which key a caller means, and what it may do with it.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::creds::Creds;
use crate::keys::ring::DEPTH_MAX;
use crate::keys::space::{Count, KeySpace, Turn};
use crate::keys::{Key, KeyOwner, Kind, Need};
use crate::task::core::Task;
use machine::errno::{Errno, Result};
use machine::sched;

/// Numbers that stand for keyrings of the caller (`KEY_SPEC_*`).
pub const THREAD: i32 = -1;
pub const PROCESS: i32 = -2;
pub const SESSION: i32 = -3;
pub const USER: i32 = -4;
pub const USER_SESSION: i32 = -5;
const REQUEST: i32 = -7;
const REQUESTOR: i32 = -8;

/// A key, and whether the caller holds it: it is in a keyring of the caller's.
#[derive(Clone)]
pub struct Found {
    pub key: Arc<Key>,
    pub is_possessed: bool,
}

/// How a key is looked up.
#[derive(Clone, Copy, Default)]
pub struct How {
    /// A keyring of the caller that is not there yet is made.
    pub creates: bool,
    /// The key may have ended.
    pub ended_too: bool,
}

/// Looks up a key that is there and can be used.
pub const PLAIN: How = How { creates: false, ended_too: false };
/// Looks up a key that can be used, and makes a keyring that is not there yet.
pub const CREATE: How = How { creates: true, ended_too: false };

/// A caller of these calls.
pub struct Seeker<'a> {
    pub task: &'a Task,
    pub creds: Arc<Creds>,
    pub space: Arc<KeySpace>,
}

impl<'a> Seeker<'a> {
    /// A task.
    pub fn new(task: &'a Task) -> Self {
        Self { task, creds: task.creds.get(), space: task.process.container.keys.clone() }
    }

    /// Who owns what the caller makes.
    pub fn owner(&self) -> KeyOwner {
        KeyOwner { uid: self.creds.fsuid, gid: self.creds.fsgid }
    }

    /// Whether the caller may do something with a key.
    pub fn may(&self, found: &Found, need: Need) -> bool {
        let facts = found.key.facts();
        let (owner, perm) = (facts.owner, facts.perm);
        let of_group = perm >> 8 & 0x3f != 0 && owner.gid != u32::MAX && self.creds.in_group(owner.gid);
        let mut granted = match owner.uid == self.creds.fsuid {
            true => perm >> 16,
            false if of_group => perm >> 8,
            false => perm,
        };
        if found.is_possessed {
            granted |= perm >> 24;
        }
        granted & need as u32 != 0
    }

    /// `EACCES`: the caller may not.
    pub fn check(&self, found: &Found, need: Need) -> Result<()> {
        if self.may(found, need) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// The key that a number stands for. `EINVAL`: such a number has no meaning. `ENOKEY`: there is none. `EKEYREVOKED`,
    /// `EKEYEXPIRED`; `EACCES`: it may not be used for that.
    pub fn find(&self, turn: &Turn, id: i32, how: How, need: Option<Need>) -> Result<Found> {
        let found = match id {
            ..0 => Found { key: self.own_ring(turn, id, how.creates)?, is_possessed: true },
            0 => return Err(Errno::EINVAL),
            1.. => {
                let key = self.space.get(id).ok_or(Errno::ENOKEY)?;
                let is_possessed = self.possesses(turn, &key);
                Found { key, is_possessed }
            }
        };
        if !how.ended_too {
            found.key.check_alive()?;
        }
        match need {
            Some(need) => self.check(&found, need).map(|()| found),
            None => Ok(found),
        }
    }

    /// A keyring that a negative number stands for.
    fn own_ring(&self, turn: &Turn, id: i32, creates: bool) -> Result<Arc<Key>> {
        match id {
            THREAD => match self.task.keyrings.thread() {
                Some(ring) => Ok(ring),
                None if !creates => Err(Errno::ENOKEY),
                None => self.make_thread_ring(),
            },
            PROCESS => match self.process_ring() {
                Some(ring) => Ok(ring),
                None if !creates => Err(Errno::ENOKEY),
                None => self.make_process_ring(),
            },
            SESSION => self.session(turn, creates),
            USER => Ok(self.space.user_rings(turn, self.creds.uid)?.user),
            USER_SESSION => Ok(self.space.user_rings(turn, self.creds.uid)?.session),
            // There are no such, and nobody is asked to make keys for others.
            REQUESTOR | REQUEST => Err(Errno::ENOKEY),
            _ => Err(Errno::EINVAL),
        }
    }

    fn process_ring(&self) -> Option<Arc<Key>> {
        self.task.process.keyring.lock().clone()
    }

    /// The caller's own keyring, a new one.
    pub fn make_thread_ring(&self) -> Result<Arc<Key>> {
        let ring = self.space.private_ring("_tid", self.owner())?;
        self.task.keyrings.set_thread(Some(ring.clone()));
        Ok(ring)
    }

    /// The keyring of the caller's process, a new one.
    pub fn make_process_ring(&self) -> Result<Arc<Key>> {
        let ring = self.space.private_ring("_pid", self.owner())?;
        let old = self.task.process.keyring.lock().replace(ring.clone());
        drop(old);
        Ok(ring)
    }

    /// The keyring of the caller's session. One that has none yet joins the user's, or one of its own if something is to be put there.
    fn session(&self, turn: &Turn, creates: bool) -> Result<Arc<Key>> {
        let is_users = |ring: &Arc<Key>| {
            let user = self.space.known_user_rings(self.creds.uid);
            user.is_some_and(|user| Arc::ptr_eq(&user.session, ring))
        };
        match self.task.keyrings.session() {
            Some(ring) if !(creates && is_users(&ring)) => Ok(ring),
            _ if creates => self.join(None),
            _ => {
                let user = self.space.user_rings(turn, self.creds.uid)?.session;
                self.task.keyrings.set_session(user.clone());
                Ok(user)
            }
        }
    }

    /// Joins the session of this name, which is made if there is none, or a new one without a name.
    pub fn join(&self, name: Option<&[u8]>) -> Result<Arc<Key>> {
        let known = name.map(|name| self.ring_named(name)).transpose()?;
        let ring = match known.flatten() {
            Some(ring) => ring,
            None => {
                let is_first = self.task.keyrings.session().is_none();
                let count = if is_first { Count::Beyond } else { Count::Within };
                self.space.session_ring(name, self.owner(), count)?
            }
        };
        self.task.keyrings.set_session(ring.clone());
        Ok(ring)
    }

    /// A keyring of this name that the caller may look into without holding it.
    fn ring_named(&self, name: &[u8]) -> Result<Option<Arc<Key>>> {
        let mut found = None;
        self.space.for_each(|key| {
            let is_it = found.is_none()
                && key.kind == Kind::Keyring
                && *key.description == *name
                && !key.facts().is_revoked
                && self.may(&Found { key: key.clone(), is_possessed: false }, Need::Search);
            if is_it {
                found = Some(key.clone());
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The keyrings that are looked through for a key, in order.
    fn rings(&self) -> Vec<Arc<Key>> {
        let session = self.task.keyrings.session();
        let session = session.or_else(|| Some(self.space.known_user_rings(self.creds.uid)?.session));
        [self.task.keyrings.thread(), self.process_ring(), session].into_iter().flatten().collect()
    }

    /// Whether the caller holds a key, and may find it.
    fn possesses(&self, turn: &Turn, key: &Arc<Key>) -> bool {
        if !self.may(&Found { key: key.clone(), is_possessed: true }, Need::Search) {
            return false;
        }
        self.rings().into_iter().any(|ring| {
            let ring = Found { key: ring, is_possessed: true };
            let is_it = |candidate: &Arc<Key>| Arc::ptr_eq(candidate, key).then_some(());
            self.walk(turn, &ring, is_it, key.kind, &key.description).is_ok()
        })
    }

    /// The first key of a type and description in all the caller's keyrings. `EAGAIN`: there is none.
    pub fn search_all(&self, turn: &Turn, kind: Kind, description: &[u8]) -> Result<Found> {
        let mut error = None;
        let mut was_empty = false;
        for key in self.rings() {
            match self.search(turn, &Found { key, is_possessed: true }, kind, description) {
                Ok(found) => return Ok(found),
                Err(Errno::EAGAIN) => was_empty = true,
                Err(other) => error = Some(other),
            }
        }
        Err(error.filter(|_| !was_empty).unwrap_or(Errno::EAGAIN))
    }

    /// The first key of a type and description in a keyring, and in those that it holds. `EACCES`: it may not be looked through.
    /// `EAGAIN`: there is none. `EKEYREVOKED`, `EKEYEXPIRED`, `EACCES`: there is one of no use.
    pub fn search(&self, turn: &Turn, ring: &Found, kind: Kind, description: &[u8]) -> Result<Found> {
        let mut error = Errno::EAGAIN;
        let is_possessed = ring.is_possessed;
        let usable = |key: &Arc<Key>| {
            let found = Found { key: key.clone(), is_possessed };
            let result = match key.check_alive() {
                Err(Errno::ENOKEY) => Err(Errno::EKEYREVOKED),
                result => result,
            };
            match result.and_then(|()| self.check(&found, Need::Search)) {
                Ok(()) => Some(found),
                Err(other) => {
                    error = other;
                    None
                }
            }
        };
        match self.walk(turn, ring, usable, kind, description) {
            Err(Errno::EAGAIN) => Err(error),
            result => result,
        }
    }

    /// Goes through a keyring and those that it holds, and asks for each key of that type and description.
    fn walk<R>(
        &self,
        turn: &Turn,
        ring: &Found,
        mut ask: impl FnMut(&Arc<Key>) -> Option<R>,
        kind: Kind,
        description: &[u8],
    ) -> Result<R> {
        if ring.key.kind != Kind::Keyring {
            return Err(Errno::ENOTDIR);
        }
        self.check(ring, Need::Search)?;
        let is_it = |key: &Key| key.kind == kind && *key.description == *description;
        if is_it(&ring.key)
            && let Some(found) = ask(&ring.key)
        {
            return Ok(found);
        }
        let walk = turn.new_walk();
        let mut left = vec![(ring.key.clone(), 0)];
        while let Some((ring_here, depth)) = left.pop() {
            let facts = ring_here.facts();
            if facts.is_revoked || facts.is_invalidated || !ring_here.is_new_to(walk, depth) {
                continue;
            }
            sched::go_on()?;
            if let Some(found) = ring_here.link_of(kind, description).and_then(|key| ask(&key)) {
                return Ok(found);
            }
            if depth < DEPTH_MAX {
                // The first one is looked through first.
                for key in ring_here.nested().into_iter().rev() {
                    if self.may(&Found { key: key.clone(), is_possessed: ring.is_possessed }, Need::Search) {
                        left.push((key, depth + 1));
                    }
                }
            }
        }
        Err(Errno::EAGAIN)
    }
}
