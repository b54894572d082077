//! Hostcalls as typed functions.

use abi::hostcall::{self as hc, HostLock, HostStat, HostStatFs, Segment, SetAttr};
use abi::report::{ContainerId, Report};
use abi::word::{high32, low32, to_usize};
use alloc::vec::Vec;

use crate::counts::Charge;
use crate::errno::{Errno, Result};
use crate::handles;
use crate::objects::{Given, OptionEffect, Origin, SetOption, SocketOrigin, Tie};
use crate::outside;
use crate::platform::{call, phys_of};
use crate::upcall;

pub use crate::platform::{Line, die};

/// A file the VMM holds open for the kernel, with a row that says where it comes from ([`objects`](crate::objects)); closed when
/// dropped, and then no more of the owner's that had it opened.
#[derive(Debug)]
pub struct Handle(Tie);

impl Handle {
    /// Takes over a handle number from the boot records.
    pub fn given(number: u32, given: Given) -> Result<Self> {
        Self::made(number, handles::charge_unbounded(), Origin::Given(given))
    }

    /// The handle that the VMM has just made; it is closed again where there is no room for its row.
    fn made(number: u32, charge: Charge, origin: Origin) -> Result<Self> {
        Tie::begin(number, charge, origin).map(Self).inspect_err(|_| close(number))
    }

    /// Its number.
    pub fn raw(&self) -> u32 {
        self.0.number()
    }

    /// Says where it comes from now that this is known.
    pub fn comes_from(&self, origin: Origin) {
        self.0.set_origin(origin);
    }

    /// Has `change` note what the host does not tell of a socket.
    pub fn note(&self, change: impl FnOnce(&mut SocketOrigin)) {
        self.0.note(change);
    }

    /// Notes an option that has been set, of a socket or a connection.
    pub fn note_option(&self, option: Option<SetOption>, effect: OptionEffect) {
        self.0.note_option(option, effect);
    }

    /// Notes the options that a connection has from the beginning.
    pub(crate) fn inherit_options(&self, options: Vec<SetOption>) {
        self.0.inherit_options(options);
    }

    /// Whether it is a connection that was accepted.
    pub fn is_accepted(&self) -> bool {
        self.origin(|origin| matches!(origin, Origin::Connection(_))).unwrap_or(false)
    }

    /// Looks at where it comes from.
    pub(crate) fn origin<R>(&self, look: impl FnOnce(&Origin) -> R) -> Option<R> {
        self.0.look(look)
    }

    /// Stands for a file that is absent under this VMM. On an error it is closed.
    pub fn replace(self, absent: &Self) -> Result<()> {
        self.place(absent.raw())
    }

    /// `PLACE`: gives the file the number of one that has a row, and is absent under this VMM. On an error it is closed.
    pub(crate) fn place(self, to: u32) -> Result<()> {
        call(hc::PLACE, [self.arg(), to.into(), 0, 0, 0, 0])?;
        // Its own number is the VMM's again; nobody is told to close it.
        drop(self.0.end());
        core::mem::forget(self);
        Ok(())
    }

    pub(crate) fn arg(&self) -> u64 {
        u64::from(self.raw())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The row ends first: once the VMM is told, the number may be another's.
        let _charge = self.0.end();
        close(self.raw());
    }
}

fn close(number: u32) {
    let _ = call(hc::CLOSE, [number.into(), 0, 0, 0, 0, 0]);
}

/// Performs a hostcall that makes a handle, for the current task; `ENFILE` when it may have none.
pub(crate) fn open_by(number: u32, args: [u64; 6], origin: Origin) -> Result<Handle> {
    let (handle, rest) = open_by_with_rest(number, args, origin)?;
    if rest == 0 { Ok(handle) } else { Err(Errno::EIO) }
}

/// Performs a hostcall that makes a handle, as [`open_by`] does, and returns the upper half of its result as well.
pub(crate) fn open_by_with_rest(number: u32, args: [u64; 6], origin: Origin) -> Result<(Handle, u32)> {
    let open = || Ok((handles::charge()?, call(number, args)?));
    let (charge, result) = match open() {
        Err(Errno::ENFILE | Errno::EMFILE) => {
            // What is kept in case it is needed comes behind what is needed.
            upcall::close_kept();
            open()?
        }
        result => result?,
    };
    Ok((Handle::made(low32(result), charge, origin)?, high32(result)))
}

fn name_args(name: &[u8]) -> (u64, u64) {
    (phys_of(name.as_ptr()), name.len() as u64)
}

/// Writes one line to the host's log.
pub fn log(level: u32, line: &str) {
    let _ = call(hc::LOG, [phys_of(line.as_ptr()), line.len() as u64, u64::from(level), 0, 0, 0]);
}

/// Ends the sandbox.
pub fn exit(wait_status: i32) -> ! {
    loop {
        let _ = call(hc::EXIT, [wait_status.cast_unsigned().into(), 0, 0, 0, 0, 0]);
    }
}

/// Reports to the host how far the sandbox has got.
pub fn report(report: &Report<'_>) {
    let _ = call(hc::REPORT, report.words(phys_of));
}

/// Takes the records of a process that comes in, into `bytes`.
pub fn exec_take(id: u64, bytes: &mut [u8]) -> Result<usize> {
    take_records(hc::EXEC_TAKE, id, bytes)
}

/// How many bytes the records have of a container that is to begin.
pub fn container_len(id: ContainerId) -> Result<i64> {
    call(hc::CONTAINER_TAKE, [id.0, 0, 0, 0, 0, 0]).map(u64::cast_signed)
}

/// Takes the records of a container that is to begin, into `bytes`.
pub fn container_take(id: ContainerId, bytes: &mut [u8]) -> Result<usize> {
    take_records(hc::CONTAINER_TAKE, id.0, bytes)
}

fn take_records(number: u32, id: u64, bytes: &mut [u8]) -> Result<usize> {
    let got = call(number, [id, phys_of(bytes.as_mut_ptr()), bytes.len() as u64, 0, 0, 0])?;
    Ok(to_usize(got).min(bytes.len()))
}

/// Fills `bytes` with random ones.
pub fn random(bytes: &mut [u8]) {
    let _ = call(hc::RANDOM, [phys_of(bytes.as_ptr()), bytes.len() as u64, 0, 0, 0, 0]);
}

/// `OPEN`: one component below `dir`, or `dir` itself anew when `name` is empty. `origin`: of what is opened.
pub fn open(dir: &Handle, name: &[u8], flags: u32, mode: u32, origin: Origin) -> Result<Handle> {
    let (at, len) = name_args(name);
    open_by(hc::OPEN, [dir.arg(), at, len, u64::from(flags), u64::from(mode), 0], origin)
}

/// `OPEN` below the directory behind a handle that has this number.
pub(crate) fn open_below(dir: u32, name: &[u8], flags: u32) -> Result<Handle> {
    let (at, len) = name_args(name);
    open_by(hc::OPEN, [dir.into(), at, len, flags.into(), 0, 0], Origin::Unnamed)
}

/// `PLACED`.
pub fn end_placing() {
    let _ = call(hc::PLACED, [0; 6]);
}

/// `LOST`: in the place of a connection, or of a stream (family 0).
pub(crate) fn lost(family: u32, kind: u32, token: u64) -> Result<Handle> {
    open_by(hc::LOST, [family.into(), kind.into(), token, 0, 0, 0], Origin::Unnamed)
}

/// `TMPFILE` in the directory behind a handle that has this number.
pub(crate) fn tmpfile_below(dir: u32, flags: u32, mode: u32) -> Result<Handle> {
    open_by(hc::TMPFILE, [dir.into(), flags.into(), mode.into(), 0, 0, 0], Origin::Unnamed)
}

/// `MKDIR` in the directory behind a handle that has this number.
pub(crate) fn mkdir_below(dir: u32, name: &[u8], mode: u32) -> Result<()> {
    let (at, len) = name_args(name);
    changed(call(hc::MKDIR, [dir.into(), at, len, mode.into(), 0, 0]))
}

/// `UNLINK` in the directory behind a handle that has this number.
pub(crate) fn unlink_below(dir: u32, name: &[u8], flags: u32) -> Result<()> {
    let (at, len) = name_args(name);
    changed(call(hc::UNLINK, [dir.into(), at, len, flags.into(), 0, 0]))
}

/// `KEEP_CONTENT` of the file behind a handle that has this number.
pub(crate) fn keep_content(file: u32, offset: u64) -> Result<u64> {
    call(hc::KEEP_CONTENT, [file.into(), offset, 0, 0, 0, 0])
}

/// `PUT_CONTENT`.
pub(crate) fn put_content(file: &Handle, offset: u64, len: u64) -> Result<()> {
    call(hc::PUT_CONTENT, [file.arg(), offset, len, 0, 0, 0]).map(drop)
}

/// `TMPFILE`: an unnamed file in `dir`.
pub fn tmpfile(dir: &Handle, flags: u32, mode: u32) -> Result<Handle> {
    open_by(hc::TMPFILE, [dir.arg(), u64::from(flags), u64::from(mode), 0, 0, 0], Origin::Unnamed)
}

/// `STAT` of a component.
pub fn stat(dir: &Handle, name: &[u8]) -> Result<HostStat> {
    let mut stat = HostStat::default();
    let (at, len) = name_args(name);
    call(hc::STAT, [dir.arg(), at, len, phys_of(&raw mut stat), 0, 0])?;
    Ok(stat)
}

/// `STAT` of the handle with this number.
pub(crate) fn stat_number(number: u32) -> Result<HostStat> {
    let mut stat = HostStat::default();
    call(hc::STAT, [number.into(), 0, 0, phys_of(&raw mut stat), 0, 0])?;
    Ok(stat)
}

/// `WATCH_OPEN`.
pub fn watch_open() -> Result<Handle> {
    open_by(hc::WATCH_OPEN, [0; 6], Origin::Watch)
}

/// `WATCH_ADD` for `events`; result: the watch's descriptor, 1 or more.
pub fn watch_add(stream: &Handle, node: &Handle, events: u32) -> Result<i32> {
    let descriptor = call(hc::WATCH_ADD, [stream.arg(), node.arg(), u64::from(events), 0, 0, 0])?;
    i32::try_from(descriptor).ok().filter(|descriptor| *descriptor > 0).ok_or(Errno::EIO)
}

/// `WATCH_REMOVE`.
pub fn watch_remove(stream: &Handle, descriptor: i32) -> Result<()> {
    call(hc::WATCH_REMOVE, [stream.arg(), u64::from(descriptor.unsigned_abs()), 0, 0, 0, 0]).map(drop)
}

/// The `LOCK_…` of a lock's kind.
fn lock_kind(exclusive: Option<bool>) -> u64 {
    match exclusive {
        None => hc::LOCK_NONE,
        Some(false) => hc::LOCK_SHARED,
        Some(true) => hc::LOCK_EXCLUSIVE,
    }
}

/// `LOCK_BYTES`; `None` gives them back.
pub fn lock_bytes(file: &Handle, first: u64, last: u64, exclusive: Option<bool>) -> Result<()> {
    call(hc::LOCK_BYTES, [file.arg(), first, last, lock_kind(exclusive), 0, 0]).map(drop)
}

/// `LOCK_WHOLE`; `None` gives it back.
pub fn lock_whole(file: &Handle, exclusive: Option<bool>) -> Result<()> {
    call(hc::LOCK_WHOLE, [file.arg(), lock_kind(exclusive), 0, 0, 0, 0]).map(drop)
}

/// `LOCK_QUERY`: what keeps [`lock_bytes`] from it.
pub fn lock_query(file: &Handle, first: u64, last: u64, exclusive: bool) -> Result<Option<HostLock>> {
    let mut found = HostLock::default();
    let at = phys_of(&raw mut found);
    let is_there = call(hc::LOCK_QUERY, [file.arg(), first, last, lock_kind(Some(exclusive)), at, 0])?;
    Ok((is_there != 0).then_some(found))
}

/// `STAT_LIST` of `count` names, each ended by NUL.
pub fn stat_list(dir: &Handle, names: &[u8], count: usize) -> Result<Vec<HostStat>> {
    let mut stats = alloc::vec![HostStat::default(); count];
    let (at, len) = name_args(names);
    call(hc::STAT_LIST, [dir.arg(), at, len, phys_of(stats.as_mut_ptr()), count as u64, 0])?;
    Ok(stats)
}

/// `STAT` of the handle itself.
pub fn stat_handle(node: &Handle) -> Result<HostStat> {
    stat_number(node.raw())
}

/// `READ` of up to `len` bytes at `offset` to guest-physical memory at `phys`, which is the caller's; `cached`: `EAGAIN`
/// rather than wait for a disk.
pub fn read_phys(file: &Handle, offset: u64, phys: u64, len: u64, cached: bool) -> Result<u64> {
    let moved = transfer(hc::READ, file, offset, &[Segment { phys, len }], 0, cached)?;
    Ok((moved as u64).min(len))
}

/// `READ` or `WRITE` of memory by segments, `done` bytes on from `offset` (`u64::MAX`: at the stream position); `cached`: as
/// [`read_phys`].
pub(crate) fn transfer(
    number: u32,
    file: &Handle,
    offset: u64,
    segments: &[Segment],
    done: usize,
    cached: bool,
) -> Result<usize> {
    let at = if offset == u64::MAX { offset } else { offset + done as u64 };
    let list = phys_of(segments.as_ptr());
    let moved = call(number, [file.arg(), list, segments.len() as u64, at, cached.into(), 0])?;
    if number == hc::WRITE && moved > 0 {
        outside::note();
    }
    usize::try_from(moved).map_err(|_| Errno::EIO)
}

/// `READDIR`: raw `linux_dirent64` records from `position`; how many bytes of them, and whether nothing comes behind them.
pub fn readdir(dir: &Handle, buf: &mut [u8], position: u64) -> Result<(usize, bool)> {
    let got = call(hc::READDIR, [dir.arg(), phys_of(buf.as_ptr()), buf.len() as u64, position, 0, 0])?;
    let bytes = to_usize(got & !hc::READDIR_END).min(buf.len());
    Ok((bytes, bytes == 0 || got & hc::READDIR_END != 0))
}

/// The result of a call that changes something of the host's.
fn changed(result: Result<u64>) -> Result<()> {
    result.map(|_| outside::note())
}

/// `MKDIR`.
pub fn mkdir(dir: &Handle, name: &[u8], mode: u32) -> Result<()> {
    let (at, len) = name_args(name);
    changed(call(hc::MKDIR, [dir.arg(), at, len, u64::from(mode), 0, 0]))
}

/// `UNLINK`; `flags` as `unlinkat(2)`.
pub fn unlink(dir: &Handle, name: &[u8], flags: u32) -> Result<()> {
    let (at, len) = name_args(name);
    changed(call(hc::UNLINK, [dir.arg(), at, len, u64::from(flags), 0, 0]))
}

/// `RENAME`; `flags` as `renameat2(2)`.
pub fn rename(old_dir: &Handle, old: &[u8], new_dir: &Handle, new: &[u8], flags: u32) -> Result<()> {
    let lens = (old.len() as u64) << 32 | new.len() as u64;
    let args =
        [old_dir.arg(), phys_of(old.as_ptr()), lens, new_dir.arg(), phys_of(new.as_ptr()), u64::from(flags)];
    changed(call(hc::RENAME, args))
}

/// `LINK`: another name for the node.
pub fn link(node: &Handle, dir: &Handle, name: &[u8]) -> Result<()> {
    let (at, len) = name_args(name);
    changed(call(hc::LINK, [node.arg(), dir.arg(), at, len, 0, 0]))
}

/// `SYMLINK`.
pub fn symlink(dir: &Handle, name: &[u8], target: &[u8]) -> Result<()> {
    let (at, len) = name_args(name);
    let (target_at, target_len) = name_args(target);
    changed(call(hc::SYMLINK, [dir.arg(), at, len, target_at, target_len, 0]))
}

/// `READLINK`.
pub fn readlink(dir: &Handle, name: &[u8]) -> Result<Vec<u8>> {
    let mut target = alloc::vec![0u8; 4096];
    let (at, len) = name_args(name);
    let got = call(hc::READLINK, [dir.arg(), at, len, phys_of(target.as_ptr()), target.len() as u64, 0])?;
    target.truncate(to_usize(got));
    Ok(target)
}

/// `MKNOD`; `kind` is `S_IFIFO`, `S_IFSOCK` or `S_IFREG`.
pub fn mknod(dir: &Handle, name: &[u8], mode: u32, kind: u32) -> Result<()> {
    let (at, len) = name_args(name);
    changed(call(hc::MKNOD, [dir.arg(), at, len, u64::from(mode), u64::from(kind), 0]))
}

/// `SETATTR` of a component (or of the handle, when `name` is empty).
pub fn set_attr(dir: &Handle, name: &[u8], attr: &SetAttr) -> Result<()> {
    let (at, len) = name_args(name);
    call(hc::SETATTR, [dir.arg(), at, len, phys_of(&raw const *attr), 0, 0]).map(drop)
}

/// `FALLOCATE`.
pub fn fallocate(file: &Handle, mode: u32, offset: u64, len: u64) -> Result<()> {
    changed(call(hc::FALLOCATE, [file.arg(), u64::from(mode), offset, len, 0, 0]))
}

/// `FSYNC`, for which this CPU waits.
pub fn fsync(file: &Handle, data_only: bool) -> Result<()> {
    call(hc::FSYNC, [file.arg(), u64::from(data_only), 0, 0, 0, 0]).map(drop)
}

/// `STATFS`.
pub fn statfs(node: &Handle) -> Result<HostStatFs> {
    let mut stat = HostStatFs::default();
    call(hc::STATFS, [node.arg(), phys_of(&raw mut stat), 0, 0, 0, 0])?;
    Ok(stat)
}

/// `GETXATTR`; an empty buffer asks for the size.
pub fn getxattr(node: &Handle, name: &[u8], value: &mut [u8]) -> Result<usize> {
    let (at, len) = name_args(name);
    let got = call(hc::GETXATTR, [node.arg(), at, len, phys_of(value.as_ptr()), value.len() as u64, 0])?;
    Ok(to_usize(got))
}

/// `SETXATTR`.
pub fn setxattr(node: &Handle, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
    let (at, len) = name_args(name);
    let args = [node.arg(), at, len, phys_of(value.as_ptr()), value.len() as u64, u64::from(flags)];
    call(hc::SETXATTR, args).map(drop)
}

/// `LISTXATTR`; an empty buffer asks for the size.
pub fn listxattr(node: &Handle, list: &mut [u8]) -> Result<usize> {
    Ok(to_usize(call(hc::LISTXATTR, [node.arg(), phys_of(list.as_ptr()), list.len() as u64, 0, 0, 0])?))
}

/// `REMOVEXATTR`.
pub fn removexattr(node: &Handle, name: &[u8]) -> Result<()> {
    let (at, len) = name_args(name);
    call(hc::REMOVEXATTR, [node.arg(), at, len, 0, 0, 0]).map(drop)
}

/// `SEEK`: the next data or hole.
pub fn seek(file: &Handle, offset: u64, whence: u32) -> Result<u64> {
    call(hc::SEEK, [file.arg(), offset, u64::from(whence), 0, 0, 0])
}

/// `COPY_RANGE` between two files of the host.
pub fn copy_range(from: &Handle, from_at: u64, to: &Handle, to_at: u64, len: u64) -> Result<usize> {
    let copied = call(hc::COPY_RANGE, [from.arg(), from_at, to.arg(), to_at, len, 0])?;
    outside::note();
    Ok(to_usize(copied))
}

/// `ROUTE_QUERY`: asks about the network; `EMSGSIZE` when the answer doesn't fit.
pub fn route_query(request: &[u8], reply: &mut [u8], strict: bool) -> Result<usize> {
    let (at, room) = (phys_of(reply.as_mut_ptr()), reply.len() as u64);
    let args = [phys_of(request.as_ptr()), request.len() as u64, at, room, u64::from(strict), 0];
    let got = call(abi::socket::ROUTE_QUERY, args)?;
    Ok(to_usize(got).min(reply.len()))
}

/// `POLL_ARM`.
pub fn poll_arm(file: &Handle, events: u32, token: u64) -> Result<()> {
    call(hc::POLL_ARM, [file.arg(), u64::from(events), token, 0, 0, 0]).map(drop)
}

/// `POLL_NOW`.
pub fn poll_now(file: &Handle, events: u32) -> Result<u32> {
    call(hc::POLL_NOW, [file.arg(), u64::from(events), 0, 0, 0, 0]).map(low32)
}
