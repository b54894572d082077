//! Host objects on their way from one VMM to the next: the open files themselves, and what is known of them.
#![deny(unsafe_code)]

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::arguments::Handle;
use super::file::{FileKind, FileTable, HANDLES_MAX, HostFile, MountTraits};
use super::host_io::HostIo;
use super::io_threads::handover::{IoLeft, IoPlan};
use super::io_threads::{EventSink, IoThreads};
use super::locks::LockPlan;
use super::quota::Held;
use super::quota::handover::{HeldPlan, QuotaPlan};
use super::watches::WatchPlan;
use crate::handover::{HandOverError, Placed};

/// The host objects of a sandbox for the next VMM. Descriptors by their numbers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostIoPlan {
    files: Vec<FilePlan>,
    /// The handles that are free, in the order in which they are given again, the last one first.
    free: Vec<Handle>,
    terminal: Option<Handle>,
    watches: Option<WatchPlan>,
    locks: Vec<LockPlan>,
    quota: Option<QuotaPlan>,
    io: IoPlan,
}

/// An open file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePlan {
    handle: Handle,
    fd: RawFd,
    kind: FileKind,
    path_only: bool,
    read_only: bool,
    no_devices: bool,
    is_volume: bool,
    /// Its part of the quota's account, if one bounds it.
    held: Option<HeldPlan>,
}

/// Host objects that are left to the next VMM.
pub(crate) struct HostIoLeft<'h> {
    host: &'h HostIo,
    files: Vec<(Handle, Arc<HostFile>)>,
    free: Vec<Handle>,
    io: IoLeft<'h>,
}

impl HostIo {
    /// Whether a plan has words for all.
    pub(crate) fn may_be_left(&self) -> Result<(), HandOverError> {
        self.quota().map(|quota| quota.may_be_left()).transpose()?;
        if self.broker().is_some() {
            return Err(HandOverError::Refused("it may connect to Unix sockets of the host"));
        }
        Ok(())
    }

    /// Leaves all to the next VMM. Nothing is asked of it any more.
    pub(crate) fn hand_over(&self) -> Result<HostIoLeft<'_>, HandOverError> {
        self.may_be_left()?;
        let io = self.io().leave();
        let (files, free) = self.files().all();
        Ok(HostIoLeft { host: self, files, free, io })
    }
}

impl HostIoLeft<'_> {
    /// The plan for them.
    pub(crate) fn plan(&self) -> HostIoPlan {
        let file = |(handle, file): &(Handle, Arc<HostFile>)| FilePlan {
            handle: *handle,
            fd: file.as_fd().as_raw_fd(),
            kind: file.kind(),
            path_only: file.is_path_only(),
            read_only: file.mount().read_only,
            no_devices: file.mount().no_devices,
            is_volume: file.mount().is_volume,
            held: file.held().map(Held::plan),
        };
        let (io, watches) = (self.io.plan(), self.host.watches().lock().plan());
        HostIoPlan {
            files: self.files.iter().map(file).collect(),
            free: self.free.clone(),
            terminal: self.host.terminal.get(),
            watches,
            locks: self.host.locks().plan(),
            quota: self.host.quota().map(|quota| quota.plan()),
            io,
        }
    }

    /// The descriptors that the plan names.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.files.iter().map(|(_, file)| file.as_fd()).chain(self.io.descriptors()).collect()
    }
}

fn damaged(what: &'static str) -> HandOverError {
    HandOverError::Damaged(what)
}

impl HostIoPlan {
    /// Takes the objects over, whose descriptors have their old numbers again.
    pub(crate) fn open(self, placed: &mut Placed, sink: EventSink) -> Result<HostIo, HandOverError> {
        let mut files = Vec::with_capacity(self.files.len());
        let quota = self.quota.map(QuotaPlan::open);
        for FilePlan { handle, fd, kind, path_only, read_only, no_devices, is_volume, held } in self.files {
            let fd = placed.take(fd).ok_or(damaged("a file is missing"))?;
            let quota = match (&held, &quota) {
                (Some(_), None) => return Err(damaged("a file is bounded by a quota that there is not")),
                (held, quota) => held.as_ref().and(quota.clone()),
            };
            let held = held.zip(quota.as_ref()).map(|(held, quota)| held.open(quota));
            let mount = MountTraits { read_only, no_devices, is_volume, quota };
            files.push((handle, HostFile::with(fd, kind, path_only, mount, held)));
        }
        let files =
            FileTable::of_former(files, self.free).ok_or(damaged("its handles contradict each other"))?;
        let io = IoThreads::of_former(self.io, &files, placed, sink)?;
        let is_there = |handle: &Handle| files.get(*handle).is_ok();
        let named = self.terminal.iter().chain(self.watches.as_ref().map(WatchPlan::stream));
        let named: BTreeSet<Handle> = named.chain(self.locks.iter().map(LockPlan::handle)).copied().collect();
        if !self.locks.iter().all(LockPlan::is_whole) {
            return Err(damaged("a lock ends before it begins"));
        }
        if !named.iter().all(is_there) {
            return Err(damaged("it names a handle that is not open"));
        }
        let host = HostIo::of_former(files, io, self.terminal, self.watches, self.locks)?;
        if let Some(quota) = quota {
            host.set_quota(quota);
        }
        Ok(host)
    }
}

impl FileTable {
    /// All files by their handles, and the handles that are free.
    fn all(&self) -> (Vec<(Handle, Arc<HostFile>)>, Vec<Handle>) {
        self.look(|files, free| {
            let files =
                (0..).zip(files).filter_map(|(handle, file)| Some((handle, Arc::clone(file.as_ref()?))));
            (files.collect(), free.to_vec())
        })
    }

    /// A table with these files under these handles, which together with those that are free are all from 0 on.
    fn of_former(files: Vec<(Handle, HostFile)>, free: Vec<Handle>) -> Option<Self> {
        let table = Self::new();
        let end = files.len() + free.len();
        if end as u64 > HANDLES_MAX {
            return None;
        }
        let mut slots: Vec<Option<Arc<HostFile>>> = Vec::new();
        slots.resize_with(end, || None);
        for (handle, file) in files {
            let slot = slots.get_mut(usize::try_from(handle).ok()?)?;
            if slot.replace(Arc::new(file)).is_some() {
                return None;
            }
        }
        let is_free = |handle: &Handle| {
            usize::try_from(*handle).is_ok_and(|at| slots.get(at).is_some_and(Option::is_none))
        };
        let all: BTreeSet<Handle> = free.iter().copied().collect();
        (all.len() == free.len() && all.iter().all(is_free)).then(|| table.with(slots, free))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn null() -> HostFile {
        let fd = File::open("/dev/null").unwrap().into();
        HostFile::new(fd, FileKind::Node, false, MountTraits::default()).unwrap()
    }

    #[test]
    fn a_table_has_each_handle_once_and_gives_the_last_free_one_first() {
        let of = |handles: &[Handle], free: &[Handle]| {
            FileTable::of_former(handles.iter().map(|handle| (*handle, null())).collect(), free.to_vec())
        };
        let table = of(&[0, 3], &[2, 1]).unwrap();
        assert_eq!((table.len(), table.get(1).is_ok(), table.get(3).is_ok()), (2, false, true));
        assert_eq!([table.insert(null()), table.insert(null()), table.insert(null())], [Ok(1), Ok(2), Ok(4)]);
        for (handles, free) in [
            (&[0, 0][..], &[1][..]),
            (&[0, 1], &[1]),
            (&[0], &[1, 1]),
            (&[5], &[]),
            (&[], &[u32::MAX]),
            (&[0, 2], &[]),
        ] {
            assert!(of(handles, free).is_none(), "{handles:?} {free:?}");
        }
    }
}
