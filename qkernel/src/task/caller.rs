//! A task as files see it.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use machine::mm::AddressSpace;

use crate::creds::Creds;
use crate::fs::caller::Caller;
use crate::fs::file::FileTable;
use crate::fs::path::FsContext;
use crate::signals::Source;
use crate::task::core::Task;
use crate::task::signal::send::send_to_task;

impl Caller for Task {
    fn pid(&self) -> u32 {
        self.process.pid
    }

    fn process_serial(&self) -> u64 {
        self.process.serial
    }

    fn pid_space(&self) -> u64 {
        self.process.container.pids.number
    }

    fn creds(&self) -> Arc<Creds> {
        self.creds.get()
    }

    fn fs(&self) -> Arc<FsContext> {
        self.fs.get()
    }

    fn files(&self) -> Option<Arc<FileTable>> {
        Self::files(self)
    }

    fn aspace(&self) -> Option<Arc<AddressSpace>> {
        Self::aspace(self)
    }

    fn lease_break_seconds(&self) -> i32 {
        self.process.container.lease_break_seconds.load(Ordering::Relaxed)
    }

    fn soft_limit(&self, resource: usize) -> u64 {
        self.process.limits.lock().soft(resource)
    }

    fn send_signal(self: Arc<Self>, signal: u32, source: Source) {
        send_to_task(&self, signal, source);
    }
}
