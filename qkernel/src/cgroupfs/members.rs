//! Walks through the processes of a group and of those below. A container has up to [`TASKS_MAX`] of them, so others go on
//! meanwhile.
//!
//! [`TASKS_MAX`]: crate::config::TASKS_MAX

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::cgroupfs::Group;
use crate::signals::SIGKILL;
use crate::task;
use crate::task::container::FIRST_PID;
use crate::task::groups::Ticks;
use crate::task::process::Process;
use crate::task::signal::send::kill_process;
use machine::errno::Result;
use machine::sched::work;

/// The work that one look at a process counts as.
const LOOK: u32 = 8;
/// How often a sum is made anew since somebody left.
const SUMS_MAX: usize = 16;
/// How often living processes are looked for that are to be killed. Who was killed forks no more, so each look finds those that
/// were forked during the one before.
const LOOKS_MAX: usize = 64;

impl Group {
    /// The processes that are in the group itself and have not ended, by their ids.
    pub fn own_processes(&self) -> Vec<Arc<Process>> {
        let is_in =
            |process: &&Arc<Process>| process.member.group() == self.id && process.member.tasks() != 0;
        let tree = self.container.pids.tree.lock();
        tree.living(&self.container).filter(is_in).cloned().collect()
    }

    /// Does something for each process in the group and below it that has not ended.
    fn for_each_within(&self, mut act: impl FnMut(&Arc<Process>)) -> Result<()> {
        for process in &self.container.processes() {
            if process.member.tasks() != 0 && self.groups().is_within(self.id, process.member.group()) {
                act(process);
            }
            work::count_or_end(LOOK)?;
        }
        Ok(())
    }

    /// The processor time of a group. A process that leaves meanwhile would be missed, so then it is asked again.
    pub fn used(&self) -> Result<Ticks> {
        let counted = || self.groups().facts(self.id).map(|facts| facts.used);
        let mut before = counted()?;
        for _ in 0..SUMS_MAX {
            let mut sum = before;
            self.for_each_within(|process| {
                let here = process.member.used_here(process.group_ticks());
                sum.user += here.user;
                sum.system += here.system;
            })?;
            let after = counted()?;
            if after == before {
                return Ok(sum);
            }
            before = after;
        }
        Ok(before)
    }

    /// Bytes of memory that the processes of a group have, and of kernel memory that goes with their address spaces. What several
    /// of them share counts for each, unless they share all of it.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let mut seen = BTreeSet::new();
        let (mut bytes, mut kernel) = (0_u64, 0_u64);
        self.for_each_within(|process| {
            let space = process.any_task().and_then(|task| task.held_aspace());
            if let Some(space) = space.filter(|space| seen.insert(Arc::as_ptr(space) as usize)) {
                bytes = bytes.saturating_add(space.resident_bytes());
                kernel = kernel.saturating_add(space.kernel_bytes() as u64);
            }
        })?;
        Ok((bytes, kernel))
    }

    /// Kills all processes of a group, also if the caller is one of them.
    pub fn kill(&self) {
        // As with any signal, a container's own programs do not end its first process.
        let is_inside = task::current().process.container.pids.number == self.container.pids.number;
        for _ in 0..LOOKS_MAX {
            let mut found = false;
            for process in self.container.processes() {
                let is_spared = is_inside && process.pid == FIRST_PID;
                let is_alive = process.member.tasks() != 0 && !process.is_exiting() && !is_spared;
                if is_alive && self.groups().is_within(self.id, process.member.group()) {
                    found = true;
                    kill_process(&process, SIGKILL);
                }
                work::count(LOOK);
            }
            if !found {
                break;
            }
        }
    }
}
