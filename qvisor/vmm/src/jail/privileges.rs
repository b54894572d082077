//! The VMM's privileges beyond its ids: capabilities, limits, and the rule that it gains none any more.

use abi::word::{high32, low32};

use super::step::{JailError, step};

/// The capabilities that stay, with the reason. In a user namespace they count for files whose owners it knows, and for
/// nothing else of the host.
pub const KEPT: &[(u32, &str)] = &[
    (CAP_CHOWN, "the guest's root gives files away"),
    (CAP_DAC_OVERRIDE, "the guest's kernel has decided who may open what before it asks"),
    (CAP_FOWNER, "modes, times and attributes of files that are another user's"),
    (CAP_FSETID, "set-id bits stay where the guest's kernel leaves them"),
    (CAP_NET_BIND_SERVICE, "ports below 1024, where the network namespace is ours"),
    (CAP_SETFCAP, "file capabilities that package managers set"),
];
/// Kept as well where the file-system id differs from the process's owner: `/proc` shows the sandbox's own stubs, whose
/// threads are counted before one is used again, only to processes that might trace them. In the user namespace are no
/// others, and tracing itself is no call that the filter lets pass.
const FOR_OWN_STUBS: u32 = CAP_SYS_PTRACE;

const CAP_CHOWN: u32 = 0;
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_FOWNER: u32 = 3;
const CAP_FSETID: u32 = 4;
const CAP_NET_BIND_SERVICE: u32 = 10;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SETFCAP: u32 = 31;
/// Higher than any capability of the host's kernel, whose last one is found by asking until it knows none.
const CAP_MOST: u32 = 63;

const SECBIT_NOROOT: u64 = 1;
const SECBIT_NO_SETUID_FIXUP: u64 = 1 << 2;
const SECBIT_KEEP_CAPS: u64 = 1 << 4;
const SECBIT_NO_CAP_AMBIENT_RAISE: u64 = 1 << 6;
/// Each bit's lock is the next bit.
const fn locked(bits: u64) -> u64 {
    bits | bits << 1
}

/// Limits of the VMM, as soft and hard limit alike. Open files are as many as the host allows (`HostIo` asked), and the
/// guest's kernel limits the guest's processes.
const LIMITS: &[(u32, u64, &str)] = &[
    (libc::RLIMIT_CORE, 0, "memory of a sandbox is nobody's to read after its end"),
    (libc::RLIMIT_MSGQUEUE, 0, "message queues of the host are not used"),
    (libc::RLIMIT_RTPRIO, 0, "no thread runs before the host's own"),
    (libc::RLIMIT_NICE, 0, "as above"),
];

fn prctl(name: &'static str, option: i32, argument: u64) -> Result<(), JailError> {
    // SAFETY: these options take integers only.
    step(name, || unsafe { i64::from(libc::prctl(option, argument, 0, 0, 0)) })
}

/// Changing ids is not to change capabilities: they are set once, by [`give_up`].
pub(super) fn keep_capabilities_across_ids() -> Result<(), JailError> {
    let bits = SECBIT_NO_SETUID_FIXUP | SECBIT_KEEP_CAPS;
    prctl("keeping capabilities while ids change", libc::PR_SET_SECUREBITS, bits)
}

/// Gives up every privilege that is not listed, for good. Capabilities are a thread's own: only before others start.
pub(super) fn give_up(separate_ids: bool) -> Result<(), JailError> {
    let more = if separate_ids { 1 << FOR_OWN_STUBS } else { 0 };
    let kept = KEPT.iter().fold(more, |all: u64, (one, _)| all | 1 << one);
    for capability in (0..=CAP_MOST).filter(|capability| kept >> capability & 1 == 0) {
        // SAFETY: integers only. Fails for numbers that the host's kernel does not know.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    let bits = locked(SECBIT_NOROOT)
        | locked(SECBIT_NO_SETUID_FIXUP)
        | locked(SECBIT_NO_CAP_AMBIENT_RAISE)
        | SECBIT_LOCKED_KEEP;
    prctl("locking the capabilities", libc::PR_SET_SECUREBITS, bits)?;
    set_capabilities(kept)?;
    prctl("giving up new privileges", libc::PR_SET_NO_NEW_PRIVS, 1)?;
    prctl("closing the memory to others", libc::PR_SET_DUMPABLE, 0)?;
    for (resource, limit, _) in LIMITS {
        let limit = libc::rlimit { rlim_cur: *limit, rlim_max: *limit };
        // SAFETY: the structure is live for the call.
        step("setting limits", || unsafe { i64::from(libc::setrlimit(*resource, &raw const limit)) })?;
    }
    Ok(())
}

/// Capabilities are never kept across a change of ids again.
const SECBIT_LOCKED_KEEP: u64 = SECBIT_KEEP_CAPS << 1;

/// Makes `kept`, as far as the thread has them, the effective and permitted capabilities; none is inherited.
fn set_capabilities(kept: u64) -> Result<(), JailError> {
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = [VERSION_3, 0];
    // Two times effective, permitted, inheritable: the low words, then the high ones.
    let mut sets = [0_u32; 6];
    step("reading the capabilities", || {
        // SAFETY: header and sets have the layout of version 3.
        unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) }
    })?;
    let (low, high) = (low32(kept), high32(kept));
    let (low, high) = (sets[1] & low, sets[4] & high);
    let sets = [low, low, 0, high, high, 0];
    // SAFETY: as above.
    step("dropping capabilities", || unsafe {
        libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr())
    })
}
