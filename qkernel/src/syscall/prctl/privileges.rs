//! The options of `prctl(2)` about capabilities.

use crate::creds::{
    CAP_LAST, CAP_SETPCAP, Creds, SECURE_KEEP_CAPS, SECURE_KEEP_CAPS_LOCKED, SECURE_NO_CAP_AMBIENT_RAISE,
};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};

const PR_GET_KEEPCAPS: u32 = 7;
const PR_SET_KEEPCAPS: u32 = 8;
const PR_CAPBSET_READ: u32 = 23;
const PR_CAPBSET_DROP: u32 = 24;
const PR_GET_SECUREBITS: u32 = 27;
const PR_SET_SECUREBITS: u32 = 28;
const PR_CAP_AMBIENT: u32 = 47;
/// All bits of `securebits` with their locks.
const SECUREBITS_KNOWN: u32 = 0xff;
const SECUREBITS_LOCKS: u32 = 0xaa;

fn change(cx: &Ctx<'_>, how: impl FnOnce(&mut Creds) -> Result<()>) -> SyscallResult {
    let mut new = (*cx.task.creds.get()).clone();
    how(&mut new)?;
    crate::syscall::creds::commit(cx, new);
    Ok(0)
}

/// The options about capabilities.
pub(super) fn capabilities(cx: &Ctx<'_>, creds: &Creds, option: u32, a: u64, b: u64) -> SyscallResult {
    let known = a <= u64::from(CAP_LAST);
    match option {
        PR_GET_KEEPCAPS => Ok(u64::from(creds.keep_caps)),
        PR_SET_KEEPCAPS if a > 1 => Err(Errno::EINVAL),
        PR_SET_KEEPCAPS if creds.securebits & SECURE_KEEP_CAPS_LOCKED != 0 => Err(Errno::EPERM),
        PR_SET_KEEPCAPS => change(cx, |creds| {
            creds.keep_caps = a == 1;
            Ok(())
        }),
        PR_CAPBSET_READ | PR_CAPBSET_DROP if !known => Err(Errno::EINVAL),
        PR_CAPBSET_READ => Ok(creds.bounding >> a & 1),
        PR_CAPBSET_DROP if !creds.has(CAP_SETPCAP) => Err(Errno::EPERM),
        PR_CAPBSET_DROP => change(cx, |creds| {
            creds.bounding &= !(1 << a);
            Ok(())
        }),
        PR_GET_SECUREBITS => {
            let keep = if creds.keep_caps { SECURE_KEEP_CAPS } else { 0 };
            Ok(u64::from(creds.securebits | keep))
        }
        PR_SET_SECUREBITS => set_securebits(cx, creds, a),
        PR_CAP_AMBIENT => ambient(cx, creds, a, b),
        _ => Err(Errno::EINVAL),
    }
}

fn set_securebits(cx: &Ctx<'_>, creds: &Creds, bits: u64) -> SyscallResult {
    let new = u32::try_from(bits).map_err(|_| Errno::EPERM)?;
    let old = creds.securebits | if creds.keep_caps { SECURE_KEEP_CAPS } else { 0 };
    let locks = old & SECUREBITS_LOCKS;
    let unlocks = locks & !new != 0;
    let changes_locked = (old ^ new) & (locks >> 1) != 0;
    if new & !SECUREBITS_KNOWN != 0 || unlocks || changes_locked || !creds.has(CAP_SETPCAP) {
        return Err(Errno::EPERM);
    }
    change(cx, |creds| {
        creds.keep_caps = new & SECURE_KEEP_CAPS != 0;
        creds.securebits = new & !SECURE_KEEP_CAPS;
        Ok(())
    })
}

/// `PR_CAP_AMBIENT`.
fn ambient(cx: &Ctx<'_>, creds: &Creds, what: u64, cap: u64) -> SyscallResult {
    const IS_SET: u64 = 1;
    const RAISE: u64 = 2;
    const LOWER: u64 = 3;
    const CLEAR_ALL: u64 = 4;
    if what == CLEAR_ALL {
        return change(cx, |creds| {
            creds.ambient = 0;
            Ok(())
        });
    }
    if cap > u64::from(CAP_LAST) {
        return Err(Errno::EINVAL);
    }
    let bit = 1u64 << cap;
    match what {
        IS_SET => Ok(u64::from(creds.ambient & bit != 0)),
        RAISE => {
            let allowed = creds.permitted & creds.inheritable & bit != 0
                && creds.securebits & SECURE_NO_CAP_AMBIENT_RAISE == 0;
            if !allowed {
                return Err(Errno::EPERM);
            }
            change(cx, |creds| {
                creds.ambient |= bit;
                Ok(())
            })
        }
        LOWER => change(cx, |creds| {
            creds.ambient &= !bit;
            Ok(())
        }),
        _ => Err(Errno::EINVAL),
    }
}
