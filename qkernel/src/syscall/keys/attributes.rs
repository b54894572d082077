//! Operations of `keyctl(2)` on a key's attributes.

use alloc::format;
use alloc::vec::Vec;

use crate::creds::CAP_SYS_ADMIN;
use crate::keys::{KeyOwner, Need, PERM_ALL, now};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::keyrings::{CREATE, PLAIN, Seeker};
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// `KEYCTL_REVOKE`: for whoever may write to the key, or change its attributes.
pub(super) fn revoke(cx: &Ctx<'_>, id: i32) -> SyscallResult {
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let found = match seeker.find(&turn, id, PLAIN, Some(Need::Write)) {
        Err(Errno::EACCES) => seeker.find(&turn, id, PLAIN, Some(Need::SetAttr)),
        found => found,
    };
    found?.key.revoke();
    Ok(0)
}

/// `KEYCTL_INVALIDATE`: for whoever may search for the key.
pub(super) fn invalidate(cx: &Ctx<'_>, id: i32) -> SyscallResult {
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let key = seeker.find(&turn, id, PLAIN, Some(Need::Search))?.key;
    key.invalidate();
    seeker.space.unlink_everywhere(&turn, &key).map(|()| 0)
}

/// `KEYCTL_CHOWN`: to another user, and to a group that the caller is not in, only with `CAP_SYS_ADMIN`.
pub(super) fn chown(cx: &Ctx<'_>, id: i32, uid: u32, gid: u32) -> SyscallResult {
    if (uid, gid) == (u32::MAX, u32::MAX) {
        return Ok(0);
    }
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let key = seeker.find(&turn, id, CREATE, Some(Need::SetAttr))?.key;
    let old = key.facts().owner;
    let new = KeyOwner {
        uid: if uid == u32::MAX { old.uid } else { uid },
        gid: if gid == u32::MAX { old.gid } else { gid },
    };
    let is_own_group = new.gid == old.gid || seeker.creds.in_group(new.gid);
    if !seeker.creds.has(CAP_SYS_ADMIN) && (new.uid != old.uid || !is_own_group) {
        return Err(Errno::EACCES);
    }
    key.set_owner(new).map(|()| 0)
}

/// `KEYCTL_SETPERM`: for the owner, or with `CAP_SYS_ADMIN`.
pub(super) fn set_perm(cx: &Ctx<'_>, id: i32, perm: u32) -> SyscallResult {
    if perm & !PERM_ALL != 0 {
        return Err(Errno::EINVAL);
    }
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let key = seeker.find(&turn, id, CREATE, Some(Need::SetAttr))?.key;
    if !seeker.creds.has(CAP_SYS_ADMIN) && key.facts().owner.uid != seeker.creds.fsuid {
        return Err(Errno::EACCES);
    }
    key.set_perm(perm);
    Ok(0)
}

/// `KEYCTL_SET_TIMEOUT`: seconds from now; 0: it does not end.
pub(super) fn set_timeout(cx: &Ctx<'_>, id: i32, seconds: u32) -> SyscallResult {
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let key = seeker.find(&turn, id, CREATE, Some(Need::SetAttr))?.key;
    key.set_expiry((seconds != 0).then(|| now() + u64::from(seconds)));
    Ok(0)
}

/// `KEYCTL_DESCRIBE`: type, owner, group, permissions and description.
pub(super) fn describe(cx: &Ctx<'_>, id: i32, buffer: UserAddr, room: u64) -> SyscallResult {
    let text = {
        let seeker = Seeker::new(cx.task);
        let turn = seeker.space.turn();
        let key = seeker.find(&turn, id, PLAIN, Some(Need::View))?.key;
        let facts = key.facts();
        let (uid, gid) = (facts.owner.uid, facts.owner.shown_gid());
        let mut text = format!("{};{uid};{gid};{:08x};", key.kind.name(), facts.perm).into_bytes();
        text.extend_from_slice(&key.description);
        text.push(0);
        text
    };
    tell(cx, text, buffer, room)
}

/// `KEYCTL_GET_SECURITY`: there are no labels.
pub(super) fn get_security(cx: &Ctx<'_>, id: i32, buffer: UserAddr, room: u64) -> SyscallResult {
    {
        let seeker = Seeker::new(cx.task);
        let turn = seeker.space.turn();
        seeker.find(&turn, id, PLAIN, Some(Need::View))?;
    }
    tell(cx, [0].into(), buffer, room)
}

/// Copies a text if there is room for all of it; its length.
fn tell(cx: &Ctx<'_>, text: Vec<u8>, buffer: UserAddr, room: u64) -> Result<u64> {
    if !buffer.is_null() && text.len() as u64 <= room {
        cx.user().write_bytes(buffer, &text)?;
    }
    Ok(text.len() as u64)
}
