//! Changes of a group that programs wait for, by `poll(2)` or `inotify(7)`.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;

use crate::fs::changes::Changes;
use crate::fs::notify::{self, Mask};
use crate::task::groups::{GroupId, Groups};
use machine::errno::Result;
use machine::sched::work;

/// The work that telling of one change counts as.
const EVENT_WORK: u32 = 16;

/// The files whose changes are told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// `cgroup.events`.
    Group,
    /// `pids.events`.
    Pids,
    /// `memory.events`.
    Memory,
}

impl Event {
    pub const ALL: [Self; 3] = [Self::Group, Self::Pids, Self::Memory];

    /// The file's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Group => "cgroup.events",
            Self::Pids => "pids.events",
            Self::Memory => "memory.events",
        }
    }
}

pub(super) type Due = BTreeSet<(GroupId, Event)>;

/// The number that stands for a file of a group where watches and locks of files are kept; `file` is empty for the group's
/// directory. It is odd, so it is nobody's address.
pub fn file_key(id: GroupId, file: &str) -> usize {
    // FNV-1a of the names, which are few and do not collide (`cgroupfs` tests that).
    let hash =
        file.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let low = (hash ^ hash >> 16) & 0xffff;
    let key = id.0 << 17 | u64::from(low) << 1 | 1;
    usize::try_from(key).unwrap_or(usize::MAX)
}

impl Groups {
    /// Returns the object that tells of changes of this file.
    pub fn changes(&self, id: GroupId, event: Event) -> Result<Arc<Changes>> {
        let mut state = self.state.lock();
        let slot = &mut state.get_mut(id)?.changes[event as usize];
        Ok(slot.get_or_insert_default().clone())
    }

    /// Tells those who wait of all changes since the last call. Called without spin locks.
    pub fn tell(&self) {
        // What others do meanwhile they tell of.
        let due = core::mem::take(&mut self.state.lock().due);
        for (id, event) in due {
            work::count(EVENT_WORK);
            let changes = {
                let state = self.state.lock();
                let group = state.groups.get(&id);
                group.and_then(|group| group.changes[event as usize].clone())
            };
            if let Some(changes) = changes {
                changes.tell();
            }
            if notify::is_wanted(Mask::MODIFY) {
                let own = notify::Event::own(Mask::MODIFY);
                notify::tell(file_key(id, event.name()), &own);
                notify::tell(file_key(id, ""), &notify::Event { name: event.name().as_bytes(), ..own });
            }
        }
    }
}
