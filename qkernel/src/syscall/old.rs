//! Old calls that a few programs make.

use alloc::vec::Vec;

use crate::proc::system::FILE_SYSTEMS;
use crate::syscall::context::SyscallResult;
use crate::syscall::unknown::unknown;
use crate::task::context::Ctx;
use abi::word::low32;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// `sysfs(2)`: the types of file systems by number.
pub(super) fn sysfs(cx: &Ctx<'_>, option: u32, a: u64, to: UserAddr) -> SyscallResult {
    const INDEX: u32 = 1;
    const NAME: u32 = 2;
    const COUNT: u32 = 3;
    let names: Vec<&str> = FILE_SYSTEMS.lines().filter_map(|line| line.split('\t').nth(1)).collect();
    match option {
        INDEX => {
            let wanted = cx.user().read_path(UserAddr::new(a))?;
            let at = names.iter().position(|name| name.as_bytes() == wanted);
            at.map(|at| at as u64).ok_or(Errno::EINVAL)
        }
        NAME => {
            let name = names.get(low32(a) as usize).ok_or(Errno::EINVAL)?;
            let mut text = name.as_bytes().to_vec();
            text.push(0);
            cx.user().write_bytes(to, &text).map(|()| 0)
        }
        COUNT => Ok(names.len() as u64),
        _ => Err(Errno::EINVAL),
    }
}

/// `modify_ldt(2)`: the table has no entries, and gets none.
pub(super) fn modify_ldt(cx: &Ctx<'_>, function: u32, to: UserAddr, bytes: u64) -> SyscallResult {
    const READ: u32 = 0;
    const READ_DEFAULT: u32 = 2;
    const DEFAULT_BYTES: usize = 128;
    match function {
        READ => Ok(0),
        READ_DEFAULT => {
            let len = usize::try_from(bytes).unwrap_or(usize::MAX).min(DEFAULT_BYTES);
            cx.user().write_bytes(to, &[0; DEFAULT_BYTES][..len])?;
            Ok(len as u64)
        }
        _ => unknown(154),
    }
}
