//! The host's names, namespaces and memory, as this process sees them.

use std::io;
use std::os::fd::AsRawFd;

use super::calls::check;

/// The kind of namespace (`CLONE_NEW…`) that a file of `/proc/PID/ns` stands for; `None` for other files.
#[must_use]
pub fn namespace_kind(file: &std::fs::File) -> Option<i32> {
    const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
    // SAFETY: the request takes no argument; files that are no namespaces refuse it.
    check(unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) }).ok()
}

/// The host name of this process's namespace.
#[must_use]
pub fn host_name() -> Vec<u8> {
    let mut name = [0_u8; 65];
    // SAFETY: the buffer is live, and one byte longer than is told.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), 64) };
    name.iter().copied().take_while(|byte| *byte != 0).collect()
}

/// The host name of another namespace. Only while this process has a single thread.
pub fn host_name_of(namespace: &std::path::Path) -> io::Result<Vec<u8>> {
    let (own, other) = (std::fs::File::open("/proc/self/ns/uts")?, std::fs::File::open(namespace)?);
    let enter = |file: &std::fs::File| {
        // SAFETY: integers only.
        check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWUTS) })
    };
    enter(&other)?;
    let name = host_name();
    enter(&own)?;
    Ok(name)
}

/// Names the uts namespace that this process is in, if it may.
pub fn set_host_name(name: &[u8]) {
    // SAFETY: a live slice with its length.
    unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) };
}

/// Memory of the host in bytes; 2 GiB when it does not say.
#[must_use]
pub fn host_memory() -> u64 {
    memory_info("MemTotal:").unwrap_or(2 << 30)
}

/// Memory of the host in bytes that programs may still take; `None`: it does not say.
#[must_use]
pub fn available_memory() -> Option<u64> {
    memory_info("MemAvailable:")
}

fn memory_info(what: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let found = text.lines().find_map(|line| line.strip_prefix(what))?;
    found.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
}

/// Memory of the host in MiB, asked of its kernel: for processes that do not see the host's files any more.
#[must_use]
pub fn host_memory_mib() -> u32 {
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is live, and of the call's type.
    unsafe { libc::sysinfo(&raw mut info) };
    let bytes = u128::from(info.totalram) * u128::from(info.mem_unit);
    u32::try_from(bytes >> 20).unwrap_or(u32::MAX)
}
