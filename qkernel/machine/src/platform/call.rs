//! The boot information, the linear map, and hostcalls.

use abi::HostCall;
use abi::boot::BootInfo;
use abi::hostcall as hc;
use abi::run;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::arch::ring0;
use crate::errno::{Errno, Result};

static PLATFORM: AtomicU32 = AtomicU32::new(0);
static HOSTCALL_ENTRY: AtomicUsize = AtomicUsize::new(0);
static LINEAR_BASE: AtomicU64 = AtomicU64::new(0);
static XSAVE_SIZE: AtomicUsize = AtomicUsize::new(0);
static XSAVE_MASK: AtomicU64 = AtomicU64::new(0);
static CPUS: AtomicU32 = AtomicU32::new(1);
/// Number of VMMs that have said something, the present one included.
static VMMS: AtomicU32 = AtomicU32::new(0);

/// Most bytes of an XSAVE image the kernel keeps.
pub const FPU_AREA_BYTES: usize = 4096;

/// Remembers what the VMM said. Called once under each VMM, before anything else.
pub fn init(boot: &BootInfo) {
    HOSTCALL_ENTRY.store(usize::try_from(boot.hostcall_entry).unwrap_or(0), Ordering::Relaxed);
    LINEAR_BASE.store(boot.linear_base, Ordering::Relaxed);
    XSAVE_SIZE.store((boot.xsave_size as usize).min(FPU_AREA_BYTES), Ordering::Relaxed);
    XSAVE_MASK.store(boot.xsave_mask, Ordering::Relaxed);
    CPUS.store(boot.cpus, Ordering::Relaxed);
    PLATFORM.store(boot.platform, Ordering::Release);
    VMMS.store(boot.former_vmms.wrapping_add(1), Ordering::Release);
}

/// Whether a VMM has what tasks and timers of this kernel rely on: the former one's platform, CPUs, addresses and registers.
pub fn fits(boot: &BootInfo) -> bool {
    PLATFORM.load(Ordering::Relaxed) == boot.platform
        && CPUS.load(Ordering::Relaxed) == boot.cpus
        && LINEAR_BASE.load(Ordering::Relaxed) == boot.linear_base
        && XSAVE_SIZE.load(Ordering::Relaxed) == (boot.xsave_size as usize).min(FPU_AREA_BYTES)
        && XSAVE_MASK.load(Ordering::Relaxed) == boot.xsave_mask
}

/// Number of VMMs that this kernel has had, the present one included.
pub fn vmms() -> u32 {
    VMMS.load(Ordering::Acquire)
}

/// Whether [`init`] has run under the VMM that says this.
pub fn is_ready_for(boot: &BootInfo) -> bool {
    VMMS.load(Ordering::Acquire) == boot.former_vmms.wrapping_add(1)
}

/// Whether [`init`] has run.
pub fn is_ready() -> bool {
    PLATFORM.load(Ordering::Acquire) != 0
}

/// `abi::boot::Platform` as a number; 0 before [`init`].
#[inline]
pub(super) fn kind() -> u32 {
    PLATFORM.load(Ordering::Relaxed)
}

/// Number of vCPUs.
#[inline]
pub fn cpus() -> usize {
    CPUS.load(Ordering::Relaxed) as usize
}

/// Bytes of an XSAVE image of the user state.
#[inline]
pub fn xsave_size() -> usize {
    XSAVE_SIZE.load(Ordering::Relaxed)
}

/// The state components of such an image.
#[inline]
pub fn xsave_mask() -> u64 {
    XSAVE_MASK.load(Ordering::Relaxed)
}

/// Linear-map address of a guest-physical one.
#[inline]
pub fn linear(phys: u64) -> u64 {
    LINEAR_BASE.load(Ordering::Relaxed) + phys
}

/// Linear-map pointer to a guest-physical address.
#[inline]
pub fn ptr<T>(phys: u64) -> *mut T {
    linear(phys) as *mut T
}

/// Guest-physical address of an object in kernel memory.
#[inline]
pub fn phys_of<T: ?Sized>(object: *const T) -> u64 {
    (object.cast::<u8>() as u64).wrapping_sub(LINEAR_BASE.load(Ordering::Relaxed))
}

/// Performs a hostcall.
#[inline]
pub fn call(number: u32, args: [u64; 6]) -> Result<u64> {
    let mut call = HostCall { number, pad: 0, args, result: 0 };
    let entry = HOSTCALL_ENTRY.load(Ordering::Relaxed);
    if entry != 0 {
        // SAFETY: the VMM put the address of its hostcall entry there; it switches to the host's stack itself and
        // preserves what the C calling convention preserves.
        let entry: extern "sysv64" fn(*mut HostCall) = unsafe { core::mem::transmute(entry) };
        entry(&raw mut call);
    } else {
        ring0::hostcall(&mut call);
    }
    Errno::check(call.result)
}

/// The header of any CPU.
pub fn header_of(cpu: usize) -> &'static run::CpuHeader {
    let phys = abi::layout::CPU_AREA_PHYS + cpu as u64 * abi::layout::CPU_AREA_SIZE;
    // SAFETY: the VMM lays out one header per CPU there; they are shared and live for ever.
    unsafe { &*ptr::<run::CpuHeader>(phys) }
}

/// Makes `cpu` look at timers, the run queue and events.
pub fn kick(cpu: usize) {
    let _ = call(hc::KICK, [cpu as u64, 0, 0, 0, 0, 0]);
}

/// Gives whole pages back to the host; they read as zeros afterwards, unless there is an error.
pub fn release(phys: u64, bytes: u64) -> Result<()> {
    call(hc::RELEASE, [phys, bytes, 0, 0, 0, 0]).map(drop)
}

/// Ends the sandbox because the kernel contradicts itself.
pub fn die(message: &str) -> ! {
    loop {
        let _ = call(hc::PANIC, [phys_of(message.as_ptr()), message.len() as u64, 0, 0, 0, 0]);
    }
}

/// A line for [`die`], built on the stack: the heap may be what broke. What does not fit is cut off.
pub struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; 256], len: 0 }
    }
}

impl Line {
    /// The bytes written so far.
    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or("a message that is no text")
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let take = text.floor_char_boundary(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len += take;
        Ok(())
    }
}
