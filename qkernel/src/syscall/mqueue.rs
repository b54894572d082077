//! POSIX message queues: `mq_open(2)` and its relatives.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::fs::access::Want;
use crate::fs::file::{File, OpenFlags};
use crate::ipc::Who;
use crate::ipc::mqueue::file::QueueFile;
use crate::ipc::mqueue::{Attr, MQ_PRIO_MAX, NAME_MAX, NewQueue, Notifier, Queue, Registration, Wait};
use crate::limits::RLIMIT_MSGQUEUE;
use crate::net::SocketFile;
use crate::net::netlink::NetlinkSocket;
use crate::signals::{Source, is_valid};
use crate::syscall::context::SyscallResult;
use crate::syscall::ipc::who;
use crate::syscall::timer::SigEvent;
use crate::syscall::timespec::read_timespec_opt;
use crate::task;
use crate::task::clock::monotonic_of_realtime;
use crate::task::context::Ctx;
use crate::task::process::Process;
use crate::task::signal::send::send_to_process;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

const SIGEV_SIGNAL: u32 = 0;
const SIGEV_NONE: u32 = 1;
const SIGEV_THREAD: u32 = 2;
/// `SI_MESGQ`.
const SI_MESGQ: i32 = -3;
/// Bytes of a cookie. Its last byte says why it comes.
const COOKIE_BYTES: usize = 32;
const NOTIFY_WOKENUP: u8 = 1;
const NOTIFY_REMOVED: u8 = 2;

fn read_name(cx: &Ctx<'_>, addr: UserAddr) -> Result<Vec<u8>> {
    let name = cx.user().read_path(addr)?;
    match &*name {
        [] => Err(Errno::ENOENT),
        name if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        b"." | b".." => Err(Errno::EACCES),
        name if name.contains(&b'/') => Err(Errno::EACCES),
        _ => Ok(name),
    }
}

/// `mq_open(2)`: returns a descriptor.
pub(super) fn mq_open(cx: &Ctx<'_>, name: UserAddr, flags: u32, mode: u32, attr: UserAddr) -> SyscallResult {
    let attr: Option<Attr> = cx.user().read_opt(attr)?;
    let name = read_name(cx, name)?;
    let flags = OpenFlags::from_bits_truncate(flags);
    let kept = flags & (OpenFlags::WRONLY | OpenFlags::RDWR | OpenFlags::NONBLOCK);
    let caller = who(cx);
    let ipc = cx.container().ipc();
    let queue = match ipc.mq_find(&name) {
        Err(Errno::ENOENT) if flags.contains(OpenFlags::CREAT) => {
            let mode = mode & !cx.task.fs.get().umask();
            let most_bytes = cx.limit(RLIMIT_MSGQUEUE);
            match ipc.mq_make(&caller, &name, &NewQueue { mode, attr: attr.as_ref(), most_bytes }) {
                // Somebody was faster.
                Err(Errno::EEXIST) => ipc.mq_find(&name)?,
                made => {
                    let queue = made?;
                    let opened = cx.install(QueueFile::open(queue.clone(), kept), true);
                    return opened.inspect_err(|_| ipc.mq_give_up(&name, &queue));
                }
            }
        }
        found => found?,
    };
    check_found(&queue, &caller, flags)?;
    cx.install(QueueFile::open(queue, kept), true)
}

/// Whether `mq_open(2)` may open a queue that there is.
fn check_found(queue: &Queue, caller: &Who, flags: OpenFlags) -> Result<()> {
    if flags.contains(OpenFlags::CREAT | OpenFlags::EXCL) {
        return Err(Errno::EEXIST);
    }
    if flags.contains(OpenFlags::WRONLY | OpenFlags::RDWR) {
        return Err(Errno::EINVAL);
    }
    // By the access mode alone: with O_PATH the description could be read all the same.
    let mode = flags & (OpenFlags::WRONLY | OpenFlags::RDWR);
    let mut want = Want::empty();
    want.set(Want::READ, mode.readable());
    want.set(Want::WRITE, mode.writable());
    queue.check(caller, want)
}

/// `mq_unlink(2)`.
pub(super) fn mq_unlink(cx: &Ctx<'_>, name: UserAddr) -> SyscallResult {
    let name = read_name(cx, name)?;
    cx.container().ipc().mq_unlink(&who(cx), &name).map(|()| 0)
}

/// The queue of a descriptor. `EBADF`.
fn queue_of(file: &File) -> Result<&Arc<Queue>> {
    file.as_ops::<QueueFile>().map(|file| &file.queue).ok_or(Errno::EBADF)
}

fn wait(file: &File, timeout_ns: Option<u64>) -> Wait {
    Wait { is_nonblocking: file.is_nonblocking(), deadline_ns: timeout_ns.map(monotonic_of_realtime) }
}

/// `mq_timedsend(2)`.
pub(super) fn mq_timedsend(
    cx: &Ctx<'_>,
    fd: i32,
    from: UserAddr,
    len: usize,
    priority: u32,
    timeout: UserAddr,
) -> SyscallResult {
    let timeout_ns = read_timespec_opt(cx, timeout)?;
    if priority >= MQ_PRIO_MAX {
        return Err(Errno::EINVAL);
    }
    let file = cx.opened(fd)?;
    let queue = queue_of(&file)?;
    if !file.flags().writable() {
        return Err(Errno::EBADF);
    }
    if len > queue.capacity().message_bytes as usize {
        return Err(Errno::EMSGSIZE);
    }
    let bytes = cx.user().read_array(from, len)?;
    queue.send(priority, bytes, &wait(&file, timeout_ns))?;
    Ok(0)
}

/// `mq_timedreceive(2)`: returns the message's length.
pub(super) fn mq_timedreceive(
    cx: &Ctx<'_>,
    fd: i32,
    to: UserAddr,
    len: usize,
    priority: UserAddr,
    timeout: UserAddr,
) -> SyscallResult {
    let timeout_ns = read_timespec_opt(cx, timeout)?;
    let file = cx.opened(fd)?;
    let queue = queue_of(&file)?;
    if !file.flags().readable() {
        return Err(Errno::EBADF);
    }
    if len < queue.capacity().message_bytes as usize {
        return Err(Errno::EMSGSIZE);
    }
    let (found, bytes) = queue.receive(&wait(&file, timeout_ns))?;
    cx.user().write_opt(priority, &found)?;
    cx.user().write_bytes(to, &bytes)?;
    Ok(bytes.len() as u64)
}

/// `mq_getattr(3)` and `mq_setattr(3)`, of which only `O_NONBLOCK` can be set.
pub(super) fn mq_getsetattr(cx: &Ctx<'_>, fd: i32, new: UserAddr, old: UserAddr) -> SyscallResult {
    let new: Option<Attr> = cx.user().read_opt(new)?;
    let nonblocking = i64::from(OpenFlags::NONBLOCK.bits());
    if new.is_some_and(|new| new.flags & !nonblocking != 0) {
        return Err(Errno::EINVAL);
    }
    let file = cx.opened(fd)?;
    let queue = queue_of(&file)?;
    let capacity = queue.capacity();
    let former = Attr {
        flags: i64::from((file.flags() & OpenFlags::NONBLOCK).bits()),
        maxmsg: capacity.messages.into(),
        msgsize: capacity.message_bytes.into(),
        curmsgs: i64::try_from(queue.count()).unwrap_or(i64::MAX),
        reserved: [0; 4],
    };
    if let Some(new) = new {
        let mut flags = file.flags();
        flags.set(OpenFlags::NONBLOCK, new.flags & nonblocking != 0);
        file.set_flags(flags)?;
    }
    cx.user().write_opt(old, &former)?;
    Ok(0)
}

/// `mq_notify(2)`.
pub(super) fn mq_notify(cx: &Ctx<'_>, fd: i32, event: UserAddr) -> SyscallResult {
    let Who { pid, .. } = who(cx);
    let registration = match cx.user().read_opt::<SigEvent>(event)? {
        None => None,
        Some(event) => {
            let tell = notifier(cx, &event)?;
            let signal = if event.notify == SIGEV_SIGNAL { event.signal } else { 0 };
            Some(Registration { who: pid, kind: event.notify, signal, tell })
        }
    };
    let file = cx.opened(fd)?;
    queue_of(&file)?.notify(pid, registration)?;
    Ok(0)
}

fn notifier(cx: &Ctx<'_>, event: &SigEvent) -> Result<Notifier> {
    match event.notify {
        SIGEV_NONE => Ok(Box::new(|_| ())),
        SIGEV_SIGNAL if event.signal == 0 => Ok(Box::new(|_| ())),
        SIGEV_SIGNAL if is_valid(event.signal) => {
            let (process, signal, value) = (Arc::downgrade(cx.process()), event.signal, event.value);
            let programs = cx.process().programs.load(Ordering::Relaxed);
            Ok(Box::new(move |has_come| {
                // The next program of the process has not asked for it, and may be one with more rights.
                let asked = |process: &Arc<Process>| process.programs.load(Ordering::Relaxed) == programs;
                let Some(process) = process.upgrade().filter(|process| has_come && asked(process)) else {
                    return;
                };
                let sender = task::current();
                let pid = if Arc::ptr_eq(&sender.process.container.pids, &process.container.pids) {
                    sender.process.pid
                } else {
                    0
                };
                let uid = sender.creds.get().uid;
                send_to_process(
                    &process,
                    signal,
                    Source::Queue { code: SI_MESGQ, errno: 0, pid, uid, value },
                );
            }))
        }
        SIGEV_THREAD => {
            let mut cookie = [0u8; COOKIE_BYTES];
            cx.user().read_bytes(UserAddr::new(event.value), &mut cookie)?;
            // The C library's thread waits at a netlink socket for the cookie.
            let file = cx.file(event.signal.cast_signed())?;
            let socket = SocketFile::of(&file)?.socket.clone();
            if socket.as_any().downcast_ref::<NetlinkSocket>().is_none() {
                return Err(Errno::EINVAL);
            }
            Ok(Box::new(move |has_come| {
                cookie[COOKIE_BYTES - 1] = if has_come { NOTIFY_WOKENUP } else { NOTIFY_REMOVED };
                if let Some(socket) = socket.as_any().downcast_ref::<NetlinkSocket>() {
                    // One whose unread messages have no room hears nothing, as on Linux.
                    let _ = socket.notify(&cookie);
                }
            }))
        }
        _ => Err(Errno::EINVAL),
    }
}
