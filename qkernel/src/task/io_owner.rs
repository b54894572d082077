//! Receivers of the signals about files (`fs::sigio`).

use alloc::sync::{Arc, Weak};

use crate::fs::caller::Caller;
use crate::fs::sigio::{Owner, OwnerKind, Setter};
use crate::signals::{SIGIO, Source};
use crate::task::core::Task;
use crate::task::pid_space::PidSpace;
use crate::task::process::Process;
use crate::task::signal::info::SigInfo;
use crate::task::signal::send::{Sent, send};
use machine::errno::{Errno, Result};

/// A receiver. It is the very thread or process that was named, whoever has its id later.
pub struct IoOwner {
    pids: Weak<PidSpace>,
    space: u64,
    id: u32,
    target: Target,
}

enum Target {
    Thread(Weak<Task>),
    Process(Weak<Process>),
    Group,
}

impl IoOwner {
    /// The thread, process or group with this id; `ESRCH`.
    pub fn find(pids: &Arc<PidSpace>, kind: OwnerKind, id: u32) -> Result<Arc<dyn Owner>> {
        let target = match kind {
            OwnerKind::Thread => Target::Thread(Arc::downgrade(&pids.find_task(id).ok_or(Errno::ESRCH)?)),
            OwnerKind::Process => {
                Target::Process(Arc::downgrade(&pids.find_process(id).ok_or(Errno::ESRCH)?))
            }
            OwnerKind::Group if !pids.tree.lock().has_group(id) => return Err(Errno::ESRCH),
            OwnerKind::Group => Target::Group,
        };
        Ok(Arc::new(Self { pids: Arc::downgrade(pids), space: pids.number, id, target }))
    }

    /// Whether what was named is still there.
    fn exists(&self) -> bool {
        let Some(pids) = self.pids.upgrade() else { return false };
        match &self.target {
            Target::Thread(task) => {
                let found = pids.find_task(self.id);
                found.is_some_and(|found| core::ptr::eq(Arc::as_ptr(&found), task.as_ptr()))
            }
            Target::Process(process) => {
                let found = pids.find_process(self.id);
                found.is_some_and(|found| core::ptr::eq(Arc::as_ptr(&found), process.as_ptr()))
            }
            Target::Group => pids.tree.lock().has_group(self.id),
        }
    }
}

impl Owner for IoOwner {
    fn kind(&self) -> OwnerKind {
        match self.target {
            Target::Thread(_) => OwnerKind::Thread,
            Target::Process(_) => OwnerKind::Process,
            Target::Group => OwnerKind::Group,
        }
    }

    fn seen_by(&self, caller: &dyn Caller) -> u32 {
        if self.space == caller.pid_space() && self.exists() { self.id } else { 0 }
    }

    fn signal(
        &self,
        signal: u32,
        source: Source,
        setter: Setter,
        from: u32,
        room: usize,
    ) -> (Option<u32>, usize) {
        match &self.target {
            Target::Thread(task) => {
                if let Some(task) = task.upgrade() {
                    signal_one(&task.process, Some(&task), signal, source, setter);
                }
                (None, 1)
            }
            Target::Process(process) => {
                if let Some(process) = process.upgrade() {
                    signal_one(&process, None, signal, source, setter);
                }
                (None, 1)
            }
            Target::Group => {
                let Some(pids) = self.pids.upgrade() else { return (None, 0) };
                let (members, next) = pids.tree.lock().some_of_group(self.id, from, room.max(1));
                for process in &members {
                    signal_one(process, None, signal, source, setter);
                }
                (next, members.len())
            }
        }
    }
}

fn signal_one(process: &Arc<Process>, task: Option<&Arc<Task>>, signal: u32, source: Source, setter: Setter) {
    let Some(judge) = task.cloned().or_else(|| process.any_task()) else { return };
    let creds = judge.creds.get();
    let theirs = [creds.uid, creds.suid];
    if setter.euid != 0 && !theirs.contains(&setter.euid) && !theirs.contains(&setter.uid) {
        return;
    }
    if send(process, task, SigInfo { signal, source }) == Sent::Full {
        send(process, task, SigInfo { signal: SIGIO, source: Source::Kernel });
    }
}
