//! Limits of a namespace: `kernel.shm*`, `kernel.msg*`, `kernel.sem` and `fs.mqueue.*` of `proc(5)`.

use alloc::format;
use alloc::string::String;

use crate::ipc::table::OBJECTS_MAX;
use machine::errno::{Errno, Result};

/// Linux's default for both the largest segment and all pages: no limit but that of an address.
const SHM_DEFAULT: u64 = u64::MAX - (1 << 24);

/// All limits of a namespace. Sizes are in bytes but for `shmall`, which is in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub shmmax: u64,
    pub shmall: u64,
    pub shmmni: u32,
    /// Segments go with their last mapping, and with their maker.
    pub shm_rmid_forced: u32,
    /// Semaphores of a set, of all sets, operations of a call, sets.
    pub semmsl: u32,
    pub semmns: u32,
    pub semopm: u32,
    pub semmni: u32,
    pub msgmax: u32,
    pub msgmnb: u32,
    pub msgmni: u32,
    pub queues_max: u32,
    pub mq_msg_max: u32,
    pub mq_msgsize_max: u32,
    pub mq_msg_default: u32,
    pub mq_msgsize_default: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            shmmax: SHM_DEFAULT,
            shmall: SHM_DEFAULT,
            shmmni: 4096,
            shm_rmid_forced: 0,
            semmsl: 32_000,
            semmns: 1_024_000_000,
            semopm: 500,
            semmni: 32_000,
            msgmax: 8192,
            msgmnb: 16_384,
            msgmni: 32_000,
            queues_max: 256,
            mq_msg_max: 10,
            mq_msgsize_max: 8192,
            mq_msg_default: 10,
            mq_msgsize_default: 8192,
        }
    }
}

const INT_MAX: u32 = i32::MAX.unsigned_abs();
/// Most messages and bytes that a privileged program may give a queue (`HARD_MSGMAX`, `HARD_MSGSIZEMAX`).
pub const MQ_MSG_HARD_MAX: u32 = 65_536;
pub const MQ_MSGSIZE_HARD_MAX: u32 = 16 << 20;

/// One setting: a number, or the four of `kernel.sem`.
enum Field<'a> {
    Long(&'a mut u64),
    /// With the least and the largest value.
    Int(&'a mut u32, u32, u32),
    Four([&'a mut u32; 4]),
}

impl Limits {
    fn field(&mut self, name: &str) -> Option<Field<'_>> {
        Some(match name {
            "kernel/shmmax" => Field::Long(&mut self.shmmax),
            "kernel/shmall" => Field::Long(&mut self.shmall),
            "kernel/shmmni" => Field::Int(&mut self.shmmni, 0, OBJECTS_MAX),
            "kernel/shm_rmid_forced" => Field::Int(&mut self.shm_rmid_forced, 0, 1),
            "kernel/sem" => {
                Field::Four([&mut self.semmsl, &mut self.semmns, &mut self.semopm, &mut self.semmni])
            }
            "kernel/msgmax" => Field::Int(&mut self.msgmax, 0, INT_MAX),
            "kernel/msgmnb" => Field::Int(&mut self.msgmnb, 0, INT_MAX),
            "kernel/msgmni" => Field::Int(&mut self.msgmni, 0, OBJECTS_MAX),
            "fs/mqueue/queues_max" => Field::Int(&mut self.queues_max, 0, INT_MAX),
            "fs/mqueue/msg_max" => Field::Int(&mut self.mq_msg_max, 1, MQ_MSG_HARD_MAX),
            "fs/mqueue/msgsize_max" => Field::Int(&mut self.mq_msgsize_max, 128, MQ_MSGSIZE_HARD_MAX),
            "fs/mqueue/msg_default" => Field::Int(&mut self.mq_msg_default, 1, MQ_MSG_HARD_MAX),
            "fs/mqueue/msgsize_default" => Field::Int(&mut self.mq_msgsize_default, 128, MQ_MSGSIZE_HARD_MAX),
            _ => return None,
        })
    }

    /// The setting of this name below `/proc/sys` as its file shows it.
    pub fn show(mut self, name: &str) -> Option<String> {
        Some(match self.field(name)? {
            Field::Long(value) => format!("{value}\n"),
            Field::Int(value, ..) => format!("{value}\n"),
            Field::Four([a, b, c, d]) => format!("{a}\t{b}\t{c}\t{d}\n"),
        })
    }

    /// Sets it to what was written. `EINVAL`: that is no such number, or too small or large.
    pub fn store(&mut self, name: &str, text: &[u8]) -> Result<()> {
        let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        let text = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\0');
        let mut words = text.split_ascii_whitespace();
        let mut next = || words.next().and_then(|word| word.parse::<u64>().ok());
        match self.field(name).ok_or(Errno::ENOENT)? {
            Field::Long(value) => *value = next().ok_or(Errno::EINVAL)?,
            Field::Int(value, least, most) => {
                let new = next().and_then(|new| u32::try_from(new).ok());
                *value = new.filter(|new| (least..=most).contains(new)).ok_or(Errno::EINVAL)?;
            }
            Field::Four(values) => {
                let mut new = [0; 4];
                // Numbers that are left out stay.
                for (new, value) in new.iter_mut().zip(&values) {
                    *new = match next() {
                        Some(given) => u32::try_from(given).map_err(|_| Errno::EINVAL)?,
                        None => **value,
                    };
                }
                if new.iter().any(|new| *new > INT_MAX) || new[3] > OBJECTS_MAX {
                    return Err(Errno::EINVAL);
                }
                values.into_iter().zip(new).for_each(|(value, new)| *value = new);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_shown_and_stored() {
        let mut limits = Limits::default();
        assert_eq!(limits.show("kernel/sem").as_deref(), Some("32000\t1024000000\t500\t32000\n"));
        assert_eq!(limits.store("kernel/sem", b"250 32000\t32 128\n"), Ok(()));
        assert_eq!((limits.semmsl, limits.semmns, limits.semopm, limits.semmni), (250, 32_000, 32, 128));
        assert_eq!(limits.store("kernel/sem", b"300"), Ok(()));
        assert_eq!((limits.semmsl, limits.semmni), (300, 128));
        assert_eq!(limits.store("kernel/sem", b"1 1 1 32769"), Err(Errno::EINVAL));
        assert_eq!(limits.store("kernel/shmmax", b"18446744073709551615"), Ok(()));
        assert_eq!(limits.shmmax, u64::MAX);
        for bad in [&b"-1"[..], b"x", b"", b"2", b"18446744073709551616"] {
            assert_eq!(limits.store("kernel/shm_rmid_forced", bad), Err(Errno::EINVAL));
        }
        assert_eq!(limits.store("kernel/panic", b"1"), Err(Errno::ENOENT));
        assert_eq!(limits.store("fs/mqueue/msg_max", b"0"), Err(Errno::EINVAL));
    }
}
