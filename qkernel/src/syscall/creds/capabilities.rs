//! `capget(2)` and `capset(2)`.

use abi::word::low32;

use crate::creds::CAP_ALL;
use crate::syscall::context::SyscallResult;
use crate::syscall::creds::{change, creds};
use crate::task::context::Ctx;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct __user_cap_header_struct`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct CapHeader {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, Immutable, IntoBytes)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAP_VERSION_1: u32 = 0x1998_0330;
const CAP_VERSION_2: u32 = 0x2007_1026;
const CAP_VERSION_3: u32 = 0x2008_0522;

/// How many words a version's sets have. For an unknown version the supported one is written to the header.
fn cap_words(cx: &Ctx<'_>, header: UserAddr, version: u32) -> Result<usize> {
    match version {
        CAP_VERSION_1 => Ok(1),
        CAP_VERSION_2 | CAP_VERSION_3 => Ok(2),
        _ => {
            cx.user().write(header, &CAP_VERSION_3)?;
            Err(Errno::EINVAL)
        }
    }
}

/// `capget(2)`.
pub(in crate::syscall) fn capget(cx: &Ctx<'_>, header: UserAddr, data: UserAddr) -> SyscallResult {
    let CapHeader { version, pid } = cx.user().read(header)?;
    let words = match cap_words(cx, header, version) {
        Err(Errno::EINVAL) if data.is_null() => return Ok(0),
        words => words?,
    };
    let target = match u32::try_from(pid).map_err(|_| Errno::EINVAL)? {
        0 => creds(cx),
        pid => cx.pids().find_task(pid).ok_or(Errno::ESRCH)?.creds.get(),
    };
    if data.is_null() {
        return Ok(0);
    }
    let mut sets = [CapData::default(); 2];
    for (shift, half) in [0, 32].into_iter().zip(&mut sets) {
        let part = |set: u64| low32(set >> shift);
        *half = CapData {
            effective: part(target.effective),
            permitted: part(target.permitted),
            inheritable: part(target.inheritable),
        };
    }
    for (at, half) in sets.iter().take(words).enumerate() {
        cx.user().write(data.offset((at * size_of::<CapData>()) as u64), half)?;
    }
    Ok(0)
}

/// `capset(2)`: of the caller alone.
pub(in crate::syscall) fn capset(cx: &Ctx<'_>, header: UserAddr, data: UserAddr) -> SyscallResult {
    let CapHeader { version, pid } = cx.user().read(header)?;
    let words = cap_words(cx, header, version)?;
    if pid != 0 && pid.cast_unsigned() != cx.task.tid() {
        return Err(Errno::EPERM);
    }
    let sets: alloc::vec::Vec<CapData> = cx.user().read_array(data, words)?;
    let join = |field: fn(&CapData) -> u32| {
        let words = sets.iter().zip([0, 32]);
        words.fold(0u64, |set, (half, shift)| set | u64::from(field(half)) << shift) & CAP_ALL
    };
    let (effective, permitted, inheritable) =
        (join(|half| half.effective), join(|half| half.permitted), join(|half| half.inheritable));
    change(cx, |creds| creds.set_capabilities(effective, permitted, inheritable))
}
