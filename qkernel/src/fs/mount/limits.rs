//! Options of a mount: the operations that it does not allow, and the times that it keeps.

use alloc::vec::Vec;
use bitflags::bitflags;

bitflags! {
    /// Operations that a mount does not allow; numbers as in boot records.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Limits: u32 {
        const READ_ONLY = abi::boot::MOUNT_READ_ONLY;
        const NO_SUID = abi::boot::MOUNT_NO_SUID;
        const NO_DEV = abi::boot::MOUNT_NO_DEV;
        const NO_EXEC = abi::boot::MOUNT_NO_EXEC;
        // Those of programs alone.
        const SYNC = 1 << 16;
        const DIR_SYNC = 1 << 17;
        const LAZY_TIME = 1 << 18;
        const NO_ATIME = 1 << 19;
        const NO_DIR_ATIME = 1 << 20;
        /// Every access counts, not only the first after a change and the first of a day.
        const STRICT_ATIME = 1 << 21;
        const NO_SYM_FOLLOW = 1 << 22;
        /// The times of access that it keeps.
        const ATIME = Self::NO_ATIME.bits() | Self::NO_DIR_ATIME.bits() | Self::STRICT_ATIME.bits();
        /// Those that Linux keeps with the file system.
        const OF_FILE_SYSTEM = Self::SYNC.bits() | Self::DIR_SYNC.bits() | Self::LAZY_TIME.bits();
    }
}

impl Limits {
    /// Each with its name in `/proc/PID/mounts` and its bit of `f_flags` (`ST_RDONLY`, `ST_NOSUID`, …).
    const SHOWN: [(Self, &'static [u8], u64); 10] = [
        (Self::READ_ONLY, b"ro", 1),
        (Self::SYNC, b"sync", 0x10),
        (Self::DIR_SYNC, b"dirsync", 0),
        (Self::LAZY_TIME, b"lazytime", 0),
        (Self::NO_SUID, b"nosuid", 2),
        (Self::NO_DEV, b"nodev", 4),
        (Self::NO_EXEC, b"noexec", 8),
        (Self::NO_ATIME, b"noatime", 0x400),
        (Self::NO_DIR_ATIME, b"nodiratime", 0x800),
        (Self::NO_SYM_FOLLOW, b"nosymfollow", 0x2000),
    ];
    const RELATIME: (&'static [u8], u64) = (b"relatime", 0x1000);

    fn is_relatime(self) -> bool {
        !self.intersects(Self::NO_ATIME | Self::STRICT_ATIME)
    }

    /// The options as `/proc/PID/mounts` writes them.
    pub fn names(self) -> Vec<u8> {
        let mut text = if self.contains(Self::READ_ONLY) { Vec::new() } else { b"rw,".to_vec() };
        for (limit, name, _) in Self::SHOWN {
            if limit == Self::NO_SYM_FOLLOW && self.is_relatime() {
                text.extend_from_slice(Self::RELATIME.0);
                text.push(b',');
            }
            if self.contains(limit) {
                text.extend_from_slice(name);
                text.push(b',');
            }
        }
        text.pop();
        text
    }

    /// The flags as `statfs(2)` tells them.
    pub fn statfs_flags(self) -> u64 {
        const ST_VALID: u64 = 0x20;
        let relatime = if self.is_relatime() { Self::RELATIME.1 } else { 0 };
        let shown = Self::SHOWN.into_iter().filter(|(limit, ..)| self.contains(*limit));
        shown.fold(ST_VALID | relatime, |flags, (_, _, bit)| flags | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_alike_in_words_and_bits() {
        assert_eq!(
            (Limits::empty().names(), Limits::empty().statfs_flags()),
            (b"rw,relatime".to_vec(), 0x1020)
        );
        let some = Limits::READ_ONLY | Limits::NO_SUID | Limits::NO_EXEC;
        assert_eq!((some.names(), some.statfs_flags()), (b"ro,nosuid,noexec,relatime".to_vec(), 0x102b));
        assert_eq!(
            (Limits::NO_DEV.names(), Limits::NO_DEV.statfs_flags()),
            (b"rw,nodev,relatime".to_vec(), 0x1024)
        );
        let times = Limits::SYNC | Limits::NO_DEV | Limits::NO_ATIME | Limits::NO_SYM_FOLLOW;
        assert_eq!(
            (times.names(), times.statfs_flags()),
            (b"rw,sync,nodev,noatime,nosymfollow".to_vec(), 0x2434)
        );
        assert_eq!(
            (Limits::STRICT_ATIME.names(), Limits::STRICT_ATIME.statfs_flags()),
            (b"rw".to_vec(), 0x20)
        );
    }
}
