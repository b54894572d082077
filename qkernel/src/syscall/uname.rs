//! The names of the system: `uname(2)`, `sethostname(2)`, `setdomainname(2)`.

use alloc::borrow::Cow;
use alloc::vec;
use core::sync::atomic::Ordering;

use crate::config::KERNEL_RELEASE;
use crate::creds::CAP_SYS_ADMIN;
use crate::proc::sys::UTS_NAME_MAX;
use crate::proc::system::KERNEL_VERSION;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::process::{PER_LINUX32, UNAME26};
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// Bytes of one field of `struct new_utsname`, with its NUL.
const UTS_FIELD: usize = UTS_NAME_MAX + 1;

/// `uname(2)`.
pub(super) fn uname(cx: &Ctx<'_>, to: UserAddr) -> SyscallResult {
    let (host, domain) = (cx.container().host_name(), cx.container().domain_name());
    let personality = cx.process().personality.load(Ordering::Relaxed);
    let release =
        if personality & UNAME26 != 0 { old_release(KERNEL_RELEASE) } else { KERNEL_RELEASE.into() };
    let machine: &[u8] = if personality & PER_LINUX32 != 0 { b"i686" } else { b"x86_64" };
    let fields: [&[u8]; 6] =
        [b"Linux", &host, release.as_bytes(), KERNEL_VERSION.as_bytes(), machine, &domain];
    cx.user().write_bytes(to, &uts_bytes(&fields))?;
    Ok(0)
}

/// A release as programs see it that know of none after 2.6: 6.12 is 2.6.72, since 4.0 was 2.6.60.
fn old_release(release: &str) -> Cow<'_, str> {
    let number = |part: &str| part.parse::<u32>().unwrap_or(0);
    let end = release.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(release.len());
    let (numbers, rest) = release.split_at(end);
    let minor = numbers.split('.').nth(1).map_or(0, number);
    alloc::format!("2.6.{}{rest}", minor + 60).into()
}

fn uts_bytes(fields: &[&[u8]; 6]) -> [u8; 6 * UTS_FIELD] {
    let mut bytes = [0u8; 6 * UTS_FIELD];
    for (to, from) in bytes.chunks_mut(UTS_FIELD).zip(fields) {
        let len = from.len().min(UTS_NAME_MAX);
        to[..len].copy_from_slice(&from[..len]);
    }
    bytes
}

fn read_name(cx: &Ctx<'_>, name: UserAddr, len: i32) -> Result<alloc::vec::Vec<u8>> {
    if !cx.task.creds.get().has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let len = usize::try_from(len).ok().filter(|len| *len <= UTS_NAME_MAX).ok_or(Errno::EINVAL)?;
    let mut bytes = vec![0u8; len];
    cx.user().read_bytes(name, &mut bytes)?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(len);
    bytes.truncate(end);
    Ok(bytes)
}

/// `sethostname(2)`.
pub(super) fn sethostname(cx: &Ctx<'_>, name: UserAddr, len: i32) -> SyscallResult {
    cx.container().set_host_name(read_name(cx, name, len)?);
    Ok(0)
}

/// `setdomainname(2)`.
pub(super) fn setdomainname(cx: &Ctx<'_>, name: UserAddr, len: i32) -> SyscallResult {
    cx.container().set_domain_name(read_name(cx, name, len)?);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_releases_count_on() {
        assert_eq!(old_release("6.12.0-dormouse"), "2.6.72-dormouse");
        assert_eq!(old_release("4.0"), "2.6.60");
    }

    #[test]
    fn names_are_cut_to_their_fields() {
        let long = [b'x'; 100];
        let bytes = uts_bytes(&[b"Linux", &long, b"", b"", b"x86_64", b""]);
        assert_eq!(bytes.len(), 390);
        assert_eq!(&bytes[..6], b"Linux\0");
        assert_eq!(bytes[65 + 63..65 + 66], [b'x', 0, 0]);
        assert_eq!(&bytes[260..266], b"x86_64");
    }
}
