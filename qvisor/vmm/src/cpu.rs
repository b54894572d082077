//! The processor's features, clocks and random bytes.

use std::arch::x86_64::{__cpuid, __cpuid_count, _rdtsc};
use std::fs::File;
use std::io::{self, Read};
use std::sync::OnceLock;
use std::time::Duration;

/// Components that user state never carries: AMX tiles, which a process must ask for.
const AMX: u64 = 3 << 17;
const XCR0_PARTS: std::ops::Range<u32> = 2..63;

/// An XSAVE image in the standard format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XsaveLayout {
    /// Bytes of an image, header included.
    pub size: u32,
    /// State components in it.
    pub mask: u64,
}

/// The words of `flags` in the host's `/proc/cpuinfo`, of its first processor; `None` where they cannot be read. Asked
/// once, which must be before the jail: no path leads there from it.
pub fn host_flags() -> Option<&'static str> {
    /// More than one processor's part, so that the host need not make up the others'.
    const START_BYTES: u64 = 8 << 10;
    static FLAGS: OnceLock<Option<String>> = OnceLock::new();
    let flags = FLAGS.get_or_init(|| {
        let mut start = Vec::new();
        File::open("/proc/cpuinfo").ok()?.take(START_BYTES).read_to_end(&mut start).ok()?;
        let start = String::from_utf8_lossy(&start);
        // A line that is not whole would hide features.
        let line =
            start.split_inclusive('\n').find(|line| line.starts_with("flags") && line.ends_with('\n'))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    flags.as_deref()
}

/// The image of all user state the host has enabled, AMX left out: the image that the host kernel puts into signal
/// frames.
pub fn xsave_layout() -> XsaveLayout {
    static LAYOUT: OnceLock<XsaveLayout> = OnceLock::new();
    *LAYOUT.get_or_init(|| {
        let enabled = xcr0();
        let mask = enabled & !AMX;
        let mut size = 576;
        for part in XCR0_PARTS.filter(|part| mask >> part & 1 == 1) {
            let leaf = __cpuid_count(0xd, part);
            size = size.max(leaf.eax + leaf.ebx);
        }
        XsaveLayout { size, mask }
    })
}

fn xcr0() -> u64 {
    let osxsave = __cpuid(1).ecx & 1 << 27 != 0;
    if !osxsave {
        return 3;
    }
    let (low, high): (u32, u32);
    // SAFETY: the operating system has enabled XSAVE, which makes this an ordinary register read.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack))
    };
    u64::from(high) << 32 | u64::from(low)
}

/// The time-stamp counter.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: reads a counter.
    unsafe { _rdtsc() }
}

/// The counter and the monotonic clock at nearly the same time.
pub fn tsc_and_clock() -> (u64, Duration) {
    let mut best = (u64::MAX, 0, Duration::ZERO);
    for _ in 0..4 {
        let before = tsc();
        let clock = clock(libc::CLOCK_MONOTONIC);
        let after = tsc();
        let width = after.wrapping_sub(before);
        if width < best.0 {
            best = (width, before + width / 2, clock);
        }
    }
    (best.1, best.2)
}

/// The TSC's frequency by CPUID, where processor or hypervisor tell it.
pub fn nominal_tsc_hz() -> Option<u64> {
    if __cpuid(0).eax >= 0x15 {
        let leaf = __cpuid(0x15);
        if leaf.eax != 0 && leaf.ebx != 0 && leaf.ecx != 0 {
            return Some(u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax));
        }
    }
    let hypervisor = __cpuid(1).ecx & 1 << 31 != 0;
    if hypervisor && __cpuid(0x4000_0000).eax >= 0x4000_0010 {
        let khz = __cpuid(0x4000_0010).eax;
        return (khz != 0).then(|| u64::from(khz) * 1000);
    }
    None
}

/// Whether user code may use `rdfsbase` and its kin: the host kernel says so.
pub fn has_fsgsbase() -> bool {
    // SAFETY: reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & 2 != 0 }
}

/// A clock's time; zero if the host does not have it.
pub fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is this function's own.
    let result = unsafe { libc::clock_gettime(id, &raw mut time) };
    if result < 0 {
        return Duration::ZERO;
    }
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A clock's time in nanoseconds.
pub fn clock_ns(id: libc::clockid_t) -> u64 {
    u64::try_from(clock(id).as_nanos()).unwrap_or(u64::MAX)
}

/// The processor time another process has used, in nanoseconds; 0 if there is no such process.
pub fn process_cpu_ns(pid: i32) -> u64 {
    clock_ns((!pid) << 3 | 2)
}

/// Fills `bytes` from the host's random source.
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // SAFETY: writes into the slice only.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(count) => filled += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Processors this process may use.
pub fn online_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Gives the core to another thread.
pub fn yield_core() {
    // SAFETY: touches no memory.
    unsafe { libc::sched_yield() };
}
