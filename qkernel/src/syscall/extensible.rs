//! Structs that grow from one version of Linux to the next.

use abi::word::to_usize;

use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::{Pod, UserAddr};

/// Reads a struct that may grow: a shorter one is padded with zeros, and a longer one must be zero behind the known
/// part.
pub(super) fn read_extensible<T: Pod>(cx: &Ctx<'_>, addr: UserAddr, size: u64, least: u64) -> Result<T> {
    if size < least {
        return Err(Errno::EINVAL);
    }
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    let size = to_usize(size);
    let mut value = T::new_zeroed();
    let known = size.min(size_of::<T>());
    cx.user().read_bytes(addr, &mut value.as_mut_bytes()[..known])?;
    if size > known {
        let rest: alloc::vec::Vec<u8> = cx.user().read_array(addr.offset(known as u64), size - known)?;
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Errno::E2BIG);
        }
    }
    Ok(value)
}
