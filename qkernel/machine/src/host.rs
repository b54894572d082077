//! Hostcalls as typed functions.

use abi::hostcall::{self as hc, HostLock, HostStat, HostStatFs, Segment, SetAttr};
use abi::word::{high32, low32, to_usize};
use alloc::vec::Vec;

use crate::counts::Charge;
use crate::errno::{Errno, Result};
use crate::handles;
use crate::outside;
use crate::platform::{call, phys_of};
use crate::upcall;

pub use crate::platform::{Line, die};

/// A file the VMM holds open for the kernel; closed when dropped, and then no more of the owner's that had it opened.
#[derive(Debug)]
pub struct Handle {
    number: u32,
    _charge: Charge,
}

impl Handle {
    /// Takes over a handle number from the boot records.
    pub fn from_raw(raw: u32) -> Self {
        Self { number: raw, _charge: handles::charge_unbounded() }
    }
    /// Its number.
    pub fn raw(&self) -> u32 {
        self.number
    }
    pub(crate) fn arg(&self) -> u64 {
        u64::from(self.number)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = call(hc::CLOSE, [self.arg(), 0, 0, 0, 0, 0]);
    }
}

/// Performs a hostcall that makes a handle, for the current task; `ENFILE` when it may have none.
pub(crate) fn open_by(number: u32, args: [u64; 6]) -> Result<Handle> {
    let (handle, rest) = open_by_with_rest(number, args)?;
    if rest == 0 { Ok(handle) } else { Err(Errno::EIO) }
}

/// Performs a hostcall that makes a handle, as [`open_by`] does, and returns the upper half of its result as well.
pub(crate) fn open_by_with_rest(number: u32, args: [u64; 6]) -> Result<(Handle, u32)> {
    let open = || {
        let charge = handles::charge()?;
        let result = call(number, args)?;
        Ok((Handle { number: low32(result), _charge: charge }, high32(result)))
    };
    match open() {
        Err(Errno::ENFILE | Errno::EMFILE) => {
            // What is kept in case it is needed comes behind what is needed.
            upcall::close_kept();
            open()
        }
        result => result,
    }
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

/// Says how far the sandbox has got: `REPORT_READY` …; `of`: the value of the event that is answered, or 0.
pub fn report(what: u64, of: i64) {
    let _ = call(hc::REPORT, [what, of.cast_unsigned(), 0, 0, 0, 0]);
}

/// Takes the records of a process that comes in, into `bytes`.
pub fn exec_take(id: u64, bytes: &mut [u8]) -> Result<usize> {
    let got = call(hc::EXEC_TAKE, [id, phys_of(bytes.as_mut_ptr()), bytes.len() as u64, 0, 0, 0])?;
    Ok(to_usize(got).min(bytes.len()))
}

/// Says how far a container has got: `REPORT_READY` …, `REPORT_CONTAINER_ENDED` with its value.
pub fn report_container(what: u64, id: u64, value: u64) {
    let _ = call(hc::REPORT, [what, id, value, 0, 0, 0]);
}

/// Says what became of a process that came in: `REPORT_EXEC_STARTED` … with its value, and why.
pub fn report_exec(what: u64, id: u64, value: u64, why: &str) {
    let _ = call(hc::REPORT, [what, id, value, phys_of(why.as_ptr()), why.len() as u64, 0]);
}

/// Tells the processes of a container, in the form of `REPORT_PROCESSES`.
pub fn report_processes(id: u64, text: &str) {
    let args = [hc::REPORT_PROCESSES, id, 0, phys_of(text.as_ptr()), text.len() as u64, 0];
    let _ = call(hc::REPORT, args);
}

/// Tells what a container uses, in the form of `REPORT_USAGE`.
pub fn report_usage(id: u64, request: u64, text: &str) {
    let args = [hc::REPORT_USAGE, id, request, phys_of(text.as_ptr()), text.len() as u64, 0];
    let _ = call(hc::REPORT, args);
}

/// Tells whose deadline wakes the sandbox, in the form of `REPORT_TIMER`.
pub fn report_timer(id: u64, text: &[u8]) {
    let _ = call(hc::REPORT, [hc::REPORT_TIMER, id, 0, phys_of(text.as_ptr()), text.len() as u64, 0]);
}

/// Tells something in words: `REPORT_KEPT_AWAKE` ….
pub fn report_text(what: u64, text: &str) {
    let _ = call(hc::REPORT, [what, 0, 0, phys_of(text.as_ptr()), text.len() as u64, 0]);
}

/// Fills `bytes` with random ones.
pub fn random(bytes: &mut [u8]) {
    let _ = call(hc::RANDOM, [phys_of(bytes.as_ptr()), bytes.len() as u64, 0, 0, 0, 0]);
}

/// `OPEN`: one component below `dir`, or `dir` itself anew when `name` is empty.
pub fn open(dir: &Handle, name: &[u8], flags: u32, mode: u32) -> Result<Handle> {
    let (at, len) = name_args(name);
    open_by(hc::OPEN, [dir.arg(), at, len, u64::from(flags), u64::from(mode), 0])
}

/// `TMPFILE`: an unnamed file in `dir`.
pub fn tmpfile(dir: &Handle, flags: u32, mode: u32) -> Result<Handle> {
    open_by(hc::TMPFILE, [dir.arg(), u64::from(flags), u64::from(mode), 0, 0, 0])
}

/// `STAT` of a component.
pub fn stat(dir: &Handle, name: &[u8]) -> Result<HostStat> {
    let mut stat = HostStat::default();
    let (at, len) = name_args(name);
    call(hc::STAT, [dir.arg(), at, len, phys_of(&raw mut stat), 0, 0])?;
    Ok(stat)
}

/// `WATCH_OPEN`.
pub fn watch_open() -> Result<Handle> {
    open_by(hc::WATCH_OPEN, [0; 6])
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
    stat(node, b"")
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
