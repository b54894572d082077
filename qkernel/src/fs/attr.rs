//! Changing attributes, with the permission rules for each change.

use crate::creds::{CAP_CHOWN, CAP_FSETID};
use crate::fs::access;
use crate::fs::access::{Actor, Want};
use crate::fs::file::File;
use crate::fs::inode::{
    AttrChange, Inode, S_IFDIR, S_IFREG, S_ISGID, SetIdRule, SetTime, Stat, while_writing,
};
use crate::fs::leases;
use crate::fs::notify::Mask;
use crate::fs::path::Path;
use machine::errno::{Errno, Result};

/// The permission bits that a file with these attributes gets when `actor` asks for `mode`.
fn new_mode(actor: &Actor, stat: &Stat, mode: u32) -> Result<AttrChange> {
    if !access::is_owner(&actor.creds, stat) {
        return Err(Errno::EPERM);
    }
    let mut mode = mode & 0o7777;
    if !actor.creds.in_group(stat.gid) && !actor.creds.has(CAP_FSETID) {
        mode &= !S_ISGID;
    }
    Ok(AttrChange { mode: Some(mode), ..AttrChange::default() })
}

/// `chmod(2)`.
pub fn chmod(actor: &Actor, path: &Path, mode: u32) -> Result<()> {
    path.mount.check_writable()?;
    let change = new_mode(actor, &path.inode.stat()?, mode)?;
    path.inode.set_attr(&change)?;
    path.notify(Mask::ATTRIB);
    Ok(())
}

/// `fchmod(2)`.
pub fn fchmod(actor: &Actor, file: &File, mode: u32) -> Result<()> {
    match &file.path {
        Some(path) => chmod(actor, path, mode),
        None => file.ops.set_attr(&new_mode(actor, &file.ops.stat(file)?, mode)?),
    }
}

/// `fchown(2)`; `None` leaves an id as it is.
pub fn fchown(actor: &Actor, file: &File, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    match &file.path {
        Some(path) => chown(actor, path, uid, gid),
        None => file.ops.set_attr(&new_owner(actor, &file.ops.stat(file)?, uid, gid)?),
    }
}

/// `chown(2)`; `None` leaves an id as it is.
pub fn chown(actor: &Actor, path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    path.mount.check_writable()?;
    let change = new_owner(actor, &path.inode.stat()?, uid, gid)?;
    path.inode.set_attr(&change)?;
    path.notify(Mask::ATTRIB);
    Ok(())
}

/// The owner that a file with these attributes gets when `actor` asks for it.
fn new_owner(actor: &Actor, stat: &Stat, uid: Option<u32>, gid: Option<u32>) -> Result<AttrChange> {
    let creds = &actor.creds;
    if !creds.has(CAP_CHOWN) {
        let owns = stat.uid == creds.fsuid;
        let uid_stays = uid.is_none_or(|uid| owns && uid == stat.uid);
        let gid_is_own = gid.is_none_or(|gid| owns && (gid == stat.gid || creds.in_group(gid)));
        if !uid_stays || !gid_is_own {
            return Err(Errno::EPERM);
        }
    }
    // Set-id bits go with the owner they stood for.
    let set_id = Some(access::without_set_id as SetIdRule);
    Ok(AttrChange { uid, gid, set_id, ..AttrChange::default() })
}

/// `utimensat(2)`; `None` leaves a time as it is.
pub fn set_times(actor: &Actor, path: &Path, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
    if atime.is_none() && mtime.is_none() {
        return Ok(());
    }
    path.mount.check_writable()?;
    let stat = path.inode.stat()?;
    if !access::is_owner(&actor.creds, &stat) {
        if (atime, mtime) != (Some(SetTime::Now), Some(SetTime::Now)) {
            return Err(Errno::EPERM);
        }
        access::permitted(&actor.creds, &stat, Want::WRITE)?;
    }
    path.inode.set_attr(&AttrChange { atime, mtime, ..AttrChange::default() })?;
    // One of both alone looks as if the file had been read or written.
    path.notify(match (atime, mtime) {
        (Some(_), None) => Mask::ACCESS,
        (None, Some(_)) => Mask::MODIFY,
        _ => Mask::ATTRIB,
    });
    Ok(())
}

/// `truncate(2)`. `may_become` says whether a file may have the new size.
pub fn truncate(
    actor: &Actor,
    path: &Path,
    size: u64,
    may_become: impl FnOnce(&dyn Inode) -> Result<()>,
) -> Result<()> {
    match path.inode.kind() {
        S_IFREG => {}
        S_IFDIR => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    access::check(&actor.creds, path, Want::WRITE)?;
    while_writing(&*path.inode, || {
        leases::make_way(&*path.inode, true, true)?;
        may_become(&*path.inode)?;
        // The rule is passed even where the bits stay: the host would clear them by its own rules.
        let set_id = Some(access::mode_after_write as SetIdRule);
        path.inode.set_attr(&AttrChange { size: Some(size), set_id, ..AttrChange::default() })
    })?;
    path.notify(Mask::MODIFY);
    Ok(())
}
