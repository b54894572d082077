//! Supplementary groups: `getgroups(2)`, `setgroups(2)`.

use crate::creds::{CAP_SETGID, sorted};
use crate::syscall::context::SyscallResult;
use crate::syscall::creds::{change, creds};
use crate::task::context::Ctx;

use machine::errno::Errno;
use machine::mm::UserAddr;

/// Most supplementary groups.
const GROUPS_MAX: u32 = 65_536;

/// `getgroups(2)`.
pub(in crate::syscall) fn getgroups(cx: &Ctx<'_>, size: i32, to: UserAddr) -> SyscallResult {
    let groups = creds(cx).groups.clone();
    let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
    if size != 0 {
        if groups.len() > size {
            return Err(Errno::EINVAL);
        }
        let bytes: alloc::vec::Vec<u8> = groups.iter().flat_map(|group| group.to_le_bytes()).collect();
        cx.user().write_bytes(to, &bytes)?;
    }
    Ok(groups.len() as u64)
}

/// `setgroups(2)`.
pub(in crate::syscall) fn setgroups(cx: &Ctx<'_>, size: u32, from: UserAddr) -> SyscallResult {
    change(cx, |creds| {
        if !creds.has(CAP_SETGID) {
            return Err(Errno::EPERM);
        }
        if size > GROUPS_MAX {
            return Err(Errno::EINVAL);
        }
        creds.groups = sorted(cx.user().read_array::<u32>(from, size as usize)?);
        Ok(())
    })
}
