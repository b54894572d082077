//! `siginfo_t`.

use abi::seccomp::ARCH_X86_64;

use crate::signals::Source;
use machine::time::ticks_to_ns;

/// Bytes of a `siginfo_t`.
pub const SIGINFO_BYTES: usize = 128;

pub const SI_USER: i32 = 0;
pub const SI_KERNEL: i32 = 0x80;
pub const SI_TIMER: i32 = -2;
pub const SI_TKILL: i32 = -6;
const SYS_SECCOMP: i32 = 1;
/// Nanoseconds of a tick of `times(2)` and `si_utime`.
const CLOCK_TICK_NS: u64 = 10_000_000;

/// A signal with its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigInfo {
    pub signal: u32,
    pub source: Source,
}

impl SigInfo {
    /// `si_code`.
    pub fn code(&self) -> i32 {
        match self.source {
            Source::Kernel => SI_KERNEL,
            Source::User { .. } => SI_USER,
            Source::Thread { .. } => SI_TKILL,
            Source::Timer { .. } => SI_TIMER,
            Source::Queue { code, .. }
            | Source::Child { code, .. }
            | Source::Fault { code, .. }
            | Source::Poll { code, .. } => code,
            Source::Syscall { .. } => SYS_SECCOMP,
        }
    }

    /// The structure as user memory holds it.
    pub fn to_bytes(&self) -> [u8; SIGINFO_BYTES] {
        let mut bytes = [0u8; SIGINFO_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &self.signal.to_le_bytes());
        put(8, &self.code().to_le_bytes());
        match self.source {
            Source::Kernel => {}
            Source::User { pid, uid } | Source::Thread { pid, uid } => {
                put(16, &pid.to_le_bytes());
                put(20, &uid.to_le_bytes());
            }
            Source::Queue { errno, pid, uid, value, .. } => {
                put(4, &errno.to_le_bytes());
                put(16, &pid.to_le_bytes());
                put(20, &uid.to_le_bytes());
                put(24, &value.to_le_bytes());
            }
            Source::Timer { id, overrun, value } => {
                put(16, &id.to_le_bytes());
                put(20, &overrun.to_le_bytes());
                put(24, &value.to_le_bytes());
            }
            Source::Child { pid, uid, status, user_ticks, system_ticks, .. } => {
                put(16, &pid.to_le_bytes());
                put(20, &uid.to_le_bytes());
                put(24, &status.to_le_bytes());
                put(32, &(ticks_to_ns(user_ticks) / CLOCK_TICK_NS).to_le_bytes());
                put(40, &(ticks_to_ns(system_ticks) / CLOCK_TICK_NS).to_le_bytes());
            }
            Source::Fault { addr, .. } => put(16, &addr.to_le_bytes()),
            Source::Poll { band, fd, .. } => {
                put(16, &band.to_le_bytes());
                put(24, &fd.to_le_bytes());
            }
            Source::Syscall { addr, number, errno } => {
                put(4, &errno.to_le_bytes());
                put(16, &addr.to_le_bytes());
                put(24, &number.to_le_bytes());
                put(28, &ARCH_X86_64.to_le_bytes());
            }
        }
        bytes
    }

    /// A `siginfo_t` that a program made itself (`rt_sigqueueinfo(2)`), sent as `signal`.
    pub fn from_user(signal: u32, bytes: &[u8; SIGINFO_BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let value = u64::from(word(24)) | u64::from(word(28)) << 32;
        let source = Source::Queue {
            code: word(8).cast_signed(),
            errno: word(4),
            pid: word(16),
            uid: word(20),
            value,
        };
        Self { signal, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_signal_survives_the_way_through_user_memory() {
        let source = Source::Queue { code: -1, errno: 5, pid: 7, uid: 8, value: 0x1234_5678_9abc };
        let info = SigInfo { signal: 35, source };
        let bytes = info.to_bytes();
        assert_eq!(bytes[..12], [35, 0, 0, 0, 5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(SigInfo::from_user(35, &bytes), info);
    }

    #[test]
    fn a_fault_has_its_address_at_sixteen() {
        let info = SigInfo { signal: 11, source: Source::Fault { code: 1, addr: 0x1234 } };
        let bytes = info.to_bytes();
        assert_eq!(bytes[8], 1);
        assert_eq!(bytes[16..24], 0x1234u64.to_le_bytes());
    }
}
