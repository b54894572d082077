//! Operations of `keyctl(2)` on keyrings.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::creds::{CAP_SETUID, Creds};
use crate::keys::{Key, Kind, Need};
use crate::syscall::context::SyscallResult;
use crate::syscall::keys::{not_found, number, read_description, read_kind};
use crate::task::container::FIRST_PID;
use crate::task::context::Ctx;
use crate::task::keyrings::{CREATE, Found, How, PLAIN, SESSION, Seeker};
use machine::errno::Errno;
use machine::mm::UserAddr;

/// `KEYCTL_JOIN_SESSION_KEYRING`.
pub(super) fn join_session(cx: &Ctx<'_>, name: UserAddr) -> SyscallResult {
    let name = if name.is_null() { None } else { Some(read_description(cx, name)?) };
    match name.as_deref().map(<[u8]>::first) {
        Some(None) => return Err(Errno::EINVAL),
        Some(Some(b'.')) => return Err(Errno::EPERM),
        _ => {}
    }
    let seeker = Seeker::new(cx.task);
    let _turn = seeker.space.turn();
    let old = cx.task.keyrings.session();
    let new = seeker.join(name.as_deref())?;
    let is_again = name.is_some() && old.is_some_and(|old| Arc::ptr_eq(&old, &new));
    if is_again { Ok(0) } else { number(&new) }
}

/// `KEYCTL_CLEAR`.
pub(super) fn clear(cx: &Ctx<'_>, id: i32) -> SyscallResult {
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    seeker.find(&turn, id, CREATE, Some(Need::Write))?.key.clear().map(|()| 0)
}

/// `KEYCTL_LINK`.
pub(super) fn link(cx: &Ctx<'_>, id: i32, ring: i32) -> SyscallResult {
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let ring = seeker.find(&turn, ring, CREATE, Some(Need::Write))?.key;
    let key = seeker.find(&turn, id, CREATE, Some(Need::Link))?.key;
    ring.link(&turn, &key).map(|()| 0)
}

/// `KEYCTL_UNLINK`: no permission of the key's own is needed.
pub(super) fn unlink(cx: &Ctx<'_>, id: i32, ring: i32) -> SyscallResult {
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let ring = seeker.find(&turn, ring, PLAIN, Some(Need::Write))?.key;
    let key = seeker.find(&turn, id, How { creates: false, ended_too: true }, None)?.key;
    ring.unlink(&key).map(|()| 0)
}

/// `KEYCTL_SEARCH`: what was found is linked to a keyring, if one is named.
pub(super) fn search(
    cx: &Ctx<'_>,
    ring: i32,
    kind: UserAddr,
    description: UserAddr,
    to: i32,
) -> SyscallResult {
    let kind = read_kind(cx, kind)?;
    let description = read_description(cx, description)?;
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let ring = seeker.find(&turn, ring, PLAIN, Some(Need::Search))?;
    let to = match to {
        0 => None,
        to => Some(seeker.find(&turn, to, CREATE, Some(Need::Write))?.key),
    };
    let kind = Kind::of(&kind).map_err(|_| Errno::ENOKEY)?;
    let found = seeker.search(&turn, &ring, kind, &description).map_err(not_found)?;
    if let Some(to) = to {
        seeker.check(&found, Need::Link)?;
        to.link(&turn, &found.key)?;
    }
    number(&found.key)
}

/// `KEYCTL_MOVE`: out of one keyring into another; `KEYCTL_MOVE_EXCL`: only if no other key has to make way.
pub(super) fn move_key(cx: &Ctx<'_>, id: i32, from: i32, to: i32, flags: u32) -> SyscallResult {
    const EXCLUSIVE: u32 = 1;
    if flags & !EXCLUSIVE != 0 {
        return Err(Errno::EINVAL);
    }
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let key = seeker.find(&turn, id, CREATE, Some(Need::Link))?.key;
    let from = seeker.find(&turn, from, PLAIN, Some(Need::Write))?.key;
    let to = seeker.find(&turn, to, CREATE, Some(Need::Write))?.key;
    if from.kind != Kind::Keyring || to.kind != Kind::Keyring {
        return Err(Errno::ENOTDIR);
    }
    if Arc::ptr_eq(&from, &to) {
        return Ok(0);
    }
    if !from.holds(&key) {
        return Err(Errno::ENOENT);
    }
    if flags & EXCLUSIVE != 0 && to.link_of(key.kind, &key.description).is_some() {
        return Err(Errno::EEXIST);
    }
    to.link(&turn, &key)?;
    from.unlink(&key).map(|()| 0)
}

/// `KEYCTL_RESTRICT_KEYRING`: nothing more may be linked to a keyring. No type has rules of its own.
pub(super) fn restrict(cx: &Ctx<'_>, id: i32, kind: UserAddr, rule: UserAddr) -> SyscallResult {
    if kind.is_null() && !rule.is_null() {
        return Err(Errno::EINVAL);
    }
    let kind = if kind.is_null() { None } else { Some(read_kind(cx, kind)?) };
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let ring = seeker.find(&turn, id, PLAIN, Some(Need::SetAttr))?.key;
    if ring.kind != Kind::Keyring {
        return Err(Errno::ENOTDIR);
    }
    match kind {
        Some(kind) => Kind::of(&kind).and(Err(Errno::ENOENT)),
        None => ring.restrict().map(|()| 0),
    }
}

/// `KEYCTL_SET_REQKEY_KEYRING`: where a new key would go; what it was before.
pub(super) fn set_destination(cx: &Ctx<'_>, to: i32) -> SyscallResult {
    const NO_CHANGE: i32 = -1;
    const THREAD: i32 = 1;
    const PROCESS: i32 = 2;
    let destination = &cx.task.keyrings.destination;
    let old = u64::from(destination.load(Ordering::Relaxed));
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    match to {
        NO_CHANGE => return Ok(old),
        THREAD | PROCESS => drop(seeker.find(&turn, -to, CREATE, None)?),
        0 | 3..=5 | 7 => {}
        _ => return Err(Errno::EINVAL),
    }
    destination.store(to.cast_unsigned(), Ordering::Relaxed);
    Ok(old)
}

/// `KEYCTL_GET_PERSISTENT`: links the keyring that outlives a user's processes. Another user's: with `CAP_SETUID`.
pub(super) fn get_persistent(cx: &Ctx<'_>, uid: u32, to: i32) -> SyscallResult {
    let seeker = Seeker::new(cx.task);
    let creds = &seeker.creds;
    let uid = if uid == u32::MAX { creds.uid } else { uid };
    if uid != creds.uid && uid != creds.euid && !creds.has(CAP_SETUID) {
        return Err(Errno::EPERM);
    }
    let turn = seeker.space.turn();
    let to = seeker.find(&turn, to, CREATE, Some(Need::Write))?.key;
    if to.kind != Kind::Keyring {
        return Err(Errno::ENOTDIR);
    }
    let ring = Found { key: seeker.space.persistent_ring(uid)?, is_possessed: true };
    seeker.check(&ring, Need::Link)?;
    to.link(&turn, &ring.key)?;
    number(&ring.key)
}

/// `KEYCTL_SESSION_TO_PARENT`: the parent joins the caller's session. `EPERM`: it is somebody else, or has several threads.
pub(super) fn session_to_parent(cx: &Ctx<'_>) -> SyscallResult {
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let session = seeker.find(&turn, SESSION, PLAIN, Some(Need::Link))?.key;
    let parent = cx.process().parent.load(Ordering::Relaxed);
    let parent =
        (parent > FIRST_PID).then(|| cx.pids().find_process(parent)).flatten().ok_or(Errno::EPERM)?;
    let tasks = parent.tasks.lock().clone();
    let [task] = &tasks[..] else { return Err(Errno::EPERM) };
    let theirs = task.keyrings.session();
    if theirs.as_ref().is_some_and(|theirs| Arc::ptr_eq(theirs, &session)) {
        return Ok(0);
    }
    let is_own = |ring: &Key| ring.facts().owner.uid == seeker.creds.euid;
    let is_ours =
        Arc::ptr_eq(&parent.container, cx.container()) && is_same_user(&task.creds.get(), &seeker.creds);
    if !is_ours || !is_own(&session) || !theirs.as_deref().is_none_or(is_own) {
        return Err(Errno::EPERM);
    }
    task.keyrings.set_session(session);
    Ok(0)
}

/// Whether all ids of one are those in effect of the other.
fn is_same_user(one: &Creds, other: &Creds) -> bool {
    [one.uid, one.euid, one.suid].iter().all(|id| *id == other.euid)
        && [one.gid, one.egid, one.sgid].iter().all(|id| *id == other.egid)
}
