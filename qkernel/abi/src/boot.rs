//! The boot information for the kernel.

/// The platform the kernel runs on.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// Guest ring 0 under KVM.
    Kvm = 1,
    /// Inside the VMM process; applications in stub processes.
    Systrap = 2,
}

/// Written by the VMM at [`crate::layout::BOOT_INFO_PHYS`] before any CPU enters the kernel.
///
/// The entry point is `extern "C" fn(boot: *const BootInfo, cpu: u32) -> !`, called once on each vCPU with the
/// stack at the end of the CPU's area, GS base at the CPU's header, interrupts off.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BootInfo {
    /// [`crate::ABI_VERSION`].
    pub version: u32,
    /// A [`Platform`] as its number.
    pub platform: u32,
    /// The linear map's base address.
    pub linear_base: u64,
    /// First byte of kernel memory that is free (behind the image): the beginning of the heap.
    pub heap_phys: u64,
    /// The end of kernel memory, and of the heap.
    pub heap_end_phys: u64,
    /// End of user memory (it starts at `USER_PHYS`); a multiple of 4 MiB. Includes slack for control pages.
    pub user_end_phys: u64,
    /// Most user frames the sandbox may have in use: its memory limit.
    pub user_frames_limit: u64,
    /// Bytes of [`crate::records`] at `RECORDS_PHYS`.
    pub records_len: u64,
    /// Address of the hostcall entry (systrap): `extern "C" fn(*mut HostCall)`, called on the kernel's stack; it
    /// switches to the host stack itself. 0 on kvm, where a hostcall is `out HOSTCALL_PORT, eax` with the
    /// call's guest-physical address in `eax`.
    pub hostcall_entry: u64,
    /// Size in bytes of an XSAVE image (standard format) of the user state.
    pub xsave_size: u32,
    /// CPUs that the sandbox has.
    pub cpus: u32,
    /// The component mask of an XSAVE image of the user state.
    pub xsave_mask: u64,
    /// First estimate of the TSC's frequency in Hz.
    pub tsc_hz: u64,
    /// 32 random bytes from the host.
    pub random_seed: [u8; 32],
    /// Non-zero: log every syscall (`--strace`).
    pub strace: u32,
    /// Minimum log level that reaches the host: 0 error, 1 warn, 2 info, 3 debug.
    pub log_level: u32,
    /// Non-zero: private mappings show the host's page cache, which sandboxes share.
    pub share_files: u32,
    /// Most handles that programs may have at a time. The VMM refuses more, but for those it has a request come with.
    pub handles_max: u32,
    /// Non-zero: call sites that are used often are patched (systrap).
    pub patch_calls: u32,
    /// The host's memory, which is what one mapping may promise at most (`vm.overcommit_memory`).
    pub host_memory_mib: u32,
    /// How many VMMs this kernel has had before; 0: it has not run yet. Otherwise its memory is as it left it, and it is asleep.
    pub former_vmms: u32,
    /// Non-zero: this VMM tells what the former one was asked to tell, and nothing of that is lost.
    pub keeps_news: u32,
    /// Frames of which the template may have pages: those from 0 on. 0: there is no template.
    pub template_frames: u32,
    /// Padding, which is 0.
    pub pad: u32,
}
pin_layout!(
    BootInfo, 160,
    version: 0, platform: 4, linear_base: 8, heap_phys: 16, heap_end_phys: 24, user_end_phys: 32,
    user_frames_limit: 40, records_len: 48, hostcall_entry: 56, xsave_size: 64, cpus: 68, xsave_mask: 72,
    tsc_hz: 80, random_seed: 88, strace: 120, log_level: 124, share_files: 128, handles_max: 132,
    patch_calls: 136, host_memory_mib: 140, former_vmms: 144, keeps_news: 148,
    template_frames: 152, pad: 156,
);

/// The tables of `/proc/net` that the host's kernel may have for the sandbox's network.
pub const NET_TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];

/// Most bytes of records of a process that comes in from outside ([`crate::hostcall::EVENT_EXEC`]), its streams included.
pub const EXEC_RECORDS_MAX: u64 = 1 << 20;

/// A mount's flag: writes answer `EROFS`.
pub const MOUNT_READ_ONLY: u32 = 1;
/// A mount's flag: the host may change files under it, so cached names must be revalidated.
pub const MOUNT_SHARED: u32 = 2;
/// A mount's flag: programs do not run with their set-user-id and set-group-id bits.
pub const MOUNT_NO_SUID: u32 = 4;
/// A mount's flag: device nodes are not opened.
pub const MOUNT_NO_DEV: u32 = 8;
/// A mount's flag: nothing there is executed, nor mapped for it.
pub const MOUNT_NO_EXEC: u32 = 16;
/// A mount's flag: a volume, whose files the host watches for those who watch them, and locks for those who lock them.
pub const MOUNT_VOLUME: u32 = 32;
/// All flags of mounts.
pub const MOUNT_FLAGS: u32 = (MOUNT_VOLUME << 1) - 1;

/// A stream's flag: the host side is a terminal in raw mode; the kernel runs the line discipline.
pub const STREAM_TTY: u32 = 1;
/// A stream's flag: it can be read. Without this one and the next the descriptor's number says what it is for.
pub const STREAM_READABLE: u32 = 2;
/// A stream's flag: it can be written.
pub const STREAM_WRITABLE: u32 = 4;
/// All flags of streams.
pub const STREAM_FLAGS: u32 = (STREAM_WRITABLE << 1) - 1;
