//! The sets of `select(2)`.

use alloc::vec::Vec;

use crate::syscall::poll::watched::Watched;
use crate::task::context::Ctx;
use machine::errno::Result;
use machine::mm::{UserAddr, account};
use machine::sched::wait::PollEvents;

/// The three sets of `select(2)`.
pub(super) struct Sets {
    pub(super) addrs: [UserAddr; 3],
    pub(super) bits: [Vec<u64>; 3],
}

/// The events that count as an answer in each set.
const ANSWER: [PollEvents; 3] = [
    PollEvents::READABLE.union(PollEvents::RDBAND).union(PollEvents::HUP).union(PollEvents::ERR),
    PollEvents::WRITABLE.union(PollEvents::WRBAND).union(PollEvents::ERR),
    PollEvents::PRI,
];

impl Sets {
    pub(super) fn read(cx: &Ctx<'_>, count: usize, addrs: [UserAddr; 3]) -> Result<Self> {
        let mut bits = [const { Vec::new() }; 3];
        for (set, addr) in bits.iter_mut().zip(addrs) {
            let words = count.div_ceil(64);
            *set = if addr.is_null() {
                account::filled(0, words)?
            } else {
                cx.user().read_array(addr, words)?
            };
        }
        Ok(Self { addrs, bits })
    }

    pub(super) fn events(&self, fd: usize) -> PollEvents {
        let mut events = PollEvents::empty();
        for (set, asked) in self.bits.iter().zip(ANSWER) {
            if set[fd / 64] & (1 << (fd % 64)) != 0 {
                events |= asked;
            }
        }
        events
    }

    /// Replaces the sets by the answers; returns how many bits are set.
    pub(super) fn answer(&mut self, found: &[(usize, Watched)]) -> Result<u64> {
        let asked = core::mem::replace(&mut self.bits, [const { Vec::new() }; 3]);
        let mut count = 0;
        for (which, set) in asked.iter().enumerate() {
            let mut out = account::filled(0u64, set.len())?;
            for (fd, one) in found {
                let bit = 1 << (fd % 64);
                if set[fd / 64] & bit != 0 && one.found.intersects(ANSWER[which]) {
                    out[fd / 64] |= bit;
                    count += 1;
                }
            }
            self.bits[which] = out;
        }
        Ok(count)
    }

    pub(super) fn write(&self, cx: &Ctx<'_>) -> Result<()> {
        for (set, addr) in self.bits.iter().zip(self.addrs) {
            if !addr.is_null() {
                for (at, word) in set.iter().enumerate() {
                    cx.user().write(addr.offset(at as u64 * 8), word)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_report_what_was_asked() {
        let bits = [alloc::vec![0b11], alloc::vec![0b10], alloc::vec![0]];
        let mut sets = Sets { addrs: [UserAddr::NULL; 3], bits };
        assert_eq!(sets.events(0), ANSWER[0]);
        assert_eq!(sets.events(1), ANSWER[0] | ANSWER[1]);
        let one = |found| Watched { file: None, events: PollEvents::empty(), found };
        let found = [(0, one(PollEvents::HUP)), (1, one(PollEvents::OUT))];
        assert_eq!(sets.answer(&found), Ok(2));
        assert_eq!(sets.bits, [alloc::vec![0b01], alloc::vec![0b10], alloc::vec![0]]);
    }
}
