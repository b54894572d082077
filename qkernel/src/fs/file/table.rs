//! Descriptor tables.

use abi::word::to_usize;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::sched::work;
use machine::sync::{Rank, SpinLock};

use super::{File, OpenFlags, keepers};

/// An entry of a descriptor table.
#[derive(Clone)]
pub struct Descriptor {
    pub file: Arc<File>,
    pub close_on_exec: bool,
}

struct Slots {
    entries: Vec<Option<Descriptor>>,
    /// No slot below this is free.
    lowest: usize,
}

impl Slots {
    fn take(&mut self, index: usize) -> Option<Descriptor> {
        let taken = self.entries.get_mut(index)?.take();
        if taken.is_some() {
            self.lowest = self.lowest.min(index);
        }
        taken
    }
}

/// Bytes of kernel memory an open file takes, without those it holds for its readers.
const FILE_BYTES: u64 = 1024;

/// Makes room for `len` entries; `ENOMEM`.
fn reserve(entries: &mut Vec<Option<Descriptor>>, len: usize) -> Result<()> {
    account::reserve(entries, len.saturating_sub(entries.len()))
}

/// The descriptors of a process (or of several that share them by `CLONE_FILES`).
pub struct FileTable {
    slots: SpinLock<Slots>,
    /// Unique among all tables ever: who owns the POSIX locks made through it.
    pub id: u64,
    /// Tasks that have it.
    tasks: AtomicUsize,
}

/// A task's hold on its descriptors.
pub struct TableOfTask(Arc<FileTable>);

impl TableOfTask {
    /// A task has the table from now on.
    pub fn new(table: Arc<FileTable>) -> Self {
        table.tasks.fetch_add(1, Ordering::SeqCst);
        Self(table)
    }

    /// The table, to look at or to close.
    pub fn table(&self) -> Arc<FileTable> {
        self.0.clone()
    }
}

impl Drop for TableOfTask {
    fn drop(&mut self) {
        self.0.tasks.fetch_sub(1, Ordering::SeqCst);
    }
}

static NEXT_TABLE: AtomicU64 = AtomicU64::new(1);

impl FileTable {
    /// An empty table.
    pub fn new() -> Arc<Self> {
        Self::with(Vec::new(), 0)
    }

    fn with(entries: Vec<Option<Descriptor>>, lowest: usize) -> Arc<Self> {
        let id = NEXT_TABLE.fetch_add(1, Ordering::Relaxed);
        let slots = SpinLock::new(Rank::FileTable, Slots { entries, lowest });
        Arc::new(Self { slots, id, tasks: AtomicUsize::new(0) })
    }

    /// A copy with the same descriptions (`fork(2)`).
    pub fn fork(&self) -> Result<Arc<Self>> {
        let slots = self.slots.lock();
        let mut entries = Vec::new();
        reserve(&mut entries, slots.entries.len())?;
        entries.extend_from_slice(&slots.entries);
        Ok(Self::with(entries, slots.lowest))
    }

    /// The table for a task that shares it with nobody: this one if no other task has it (locks stay with it), else a copy. Who
    /// only looks at it, as by `/proc`, does not count.
    pub fn unshare(self: &Arc<Self>) -> Result<Arc<Self>> {
        if self.tasks.load(Ordering::SeqCst) <= 1 { Ok(self.clone()) } else { self.fork() }
    }

    /// The description of a descriptor; `EBADF`.
    pub fn get(&self, fd: i32) -> Result<Arc<File>> {
        self.descriptor(fd).map(|descriptor| descriptor.file)
    }

    /// A descriptor with its flag.
    pub fn descriptor(&self, fd: i32) -> Result<Descriptor> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        self.slots.lock().entries.get(index).and_then(Option::clone).ok_or(Errno::EBADF)
    }

    /// Puts a file at the lowest free descriptor from `least` on, below `limit` (`RLIMIT_NOFILE`); `EMFILE`.
    pub fn insert(&self, file: Arc<File>, close_on_exec: bool, least: usize, limit: u64) -> Result<i32> {
        account::check(to_usize(FILE_BYTES))?;
        let mut slots = self.slots.lock();
        let from = least.max(slots.lowest);
        let entries = &mut slots.entries;
        let free = (from..entries.len()).find(|&i| entries[i].is_none()).unwrap_or(entries.len().max(from));
        if free as u64 >= limit {
            return Err(Errno::EMFILE);
        }
        let fd = i32::try_from(free).map_err(|_| Errno::EMFILE)?;
        if free >= entries.len() {
            reserve(entries, free + 1)?;
            entries.resize(free + 1, None);
        }
        entries[free] = Some(Descriptor { file, close_on_exec });
        if least <= slots.lowest {
            slots.lowest = free + 1;
        }
        Ok(fd)
    }

    /// Bytes that closing all descriptors would free. A file that other tables hold as well counts in part.
    pub fn held_bytes(&self) -> u64 {
        let slots = self.slots.lock();
        let held = |descriptor: &Descriptor| {
            let holders = Arc::strong_count(&descriptor.file).max(1) as u64;
            (FILE_BYTES + descriptor.file.ops.held_bytes()) / holders
        };
        let files: u64 = slots.entries.iter().flatten().map(held).sum();
        files + (slots.entries.capacity() * size_of::<Option<Descriptor>>()) as u64
    }

    /// `EMFILE` when no descriptor below `limit` is free.
    pub fn check_room(&self, limit: u64) -> Result<()> {
        let slots = self.slots.lock();
        let free = (slots.lowest..slots.entries.len()).find(|&i| slots.entries[i].is_none());
        let free = free.unwrap_or(slots.entries.len().max(slots.lowest));
        if (free as u64) < limit { Ok(()) } else { Err(Errno::EMFILE) }
    }

    /// Puts a file at exactly this descriptor (`dup2(2)`). Returns the former descriptor, which the caller hands to
    /// [`Self::closed`].
    pub fn replace(
        &self,
        fd: i32,
        file: Arc<File>,
        close_on_exec: bool,
        limit: u64,
    ) -> Result<Option<Descriptor>> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        if index as u64 >= limit {
            return Err(Errno::EBADF);
        }
        let mut slots = self.slots.lock();
        if index >= slots.entries.len() {
            reserve(&mut slots.entries, index + 1)?;
            slots.entries.resize(index + 1, None);
        }
        Ok(slots.entries[index].replace(Descriptor { file, close_on_exec }))
    }

    /// Closes a descriptor; `EBADF`.
    pub fn close(&self, fd: i32) -> Result<()> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let closed = self.slots.lock().take(index).ok_or(Errno::EBADF)?;
        if Arc::strong_count(&closed.file) == 1 {
            closed.file.ops.last_close();
        }
        self.closed(closed);
        Ok(())
    }

    /// Carries out the effects of a close other than freeing the slot: POSIX locks go, and the file is flushed.
    pub fn closed(&self, descriptor: Descriptor) {
        // A descriptor that only names its file (`O_PATH`) has no part in locks.
        if !descriptor.file.flags().contains(OpenFlags::PATH) {
            keepers().for_each(|keeper| (keeper.descriptor_closed)(&descriptor.file, self.id));
        }
        descriptor.file.ops.flush(&descriptor.file, self);
        let after = descriptor.file.ops.after_close(&descriptor.file);
        drop(descriptor);
        if let Some(after) = after {
            after();
        }
    }

    /// Changes the close-on-exec flag.
    pub fn set_close_on_exec(&self, fd: i32, close_on_exec: bool) -> Result<()> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let mut slots = self.slots.lock();
        let slot = slots.entries.get_mut(index).and_then(Option::as_mut).ok_or(Errno::EBADF)?;
        slot.close_on_exec = close_on_exec;
        Ok(())
    }

    /// Takes the descriptors with the close-on-exec flag out of the table; the caller closes them by [`Self::close_taken`].
    pub fn take_for_exec(&self) -> Vec<Descriptor> {
        self.take_where(|_, descriptor| descriptor.close_on_exec)
    }

    /// Carries out the closing of descriptors that are in the table no more.
    pub fn close_taken(&self, taken: Vec<Descriptor>) {
        for descriptor in taken {
            self.closed(descriptor);
            work::count(4);
        }
    }

    /// Closes everything (the process ends).
    pub fn close_all(&self) {
        self.close_where(|_, _| true);
    }

    /// Closes the descriptors `which` chooses.
    pub fn close_where(&self, which: impl Fn(usize, &Descriptor) -> bool) {
        self.close_taken(self.take_where(which));
    }

    fn take_where(&self, which: impl Fn(usize, &Descriptor) -> bool) -> Vec<Descriptor> {
        let mut taken = Vec::new();
        let mut slots = self.slots.lock();
        for fd in 0..slots.entries.len() {
            if slots.entries[fd].as_ref().is_some_and(|descriptor| which(fd, descriptor)) {
                taken.extend(slots.take(fd));
            }
        }
        taken
    }

    /// Sets close-on-exec on the descriptors of a range (`close_range(2)`).
    pub fn set_close_on_exec_range(&self, first: usize, last: usize) {
        let mut slots = self.slots.lock();
        for slot in slots.entries.iter_mut().take(last.saturating_add(1)).skip(first).flatten() {
            slot.close_on_exec = true;
        }
    }

    /// The open descriptors with their files, in order.
    pub fn list(&self) -> Vec<(i32, Descriptor)> {
        let slots = self.slots.lock();
        let all = slots.entries.iter().enumerate();
        all.filter_map(|(fd, slot)| Some((i32::try_from(fd).ok()?, slot.clone()?))).collect()
    }
}

impl Drop for FileTable {
    fn drop(&mut self) {
        self.close_all();
    }
}
