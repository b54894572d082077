//! `sendfile(2)`.

use crate::config::RW_MAX_BYTES;
use crate::fs::file::{At, File, OpenFlags};
use crate::fs::hostfs::file::HostFile;
use crate::fs::inode::S_IFDIR;
use crate::net::SocketFile;
use crate::syscall::context::SyscallResult;
use crate::syscall::rw::{count_copy, written};
use crate::syscall::transfer::{Cursor, copy, is_stream, readable, writable};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::sched::wait::PollEvents;

/// `sendfile(2)`.
pub(in crate::syscall) fn sendfile(
    cx: &Ctx<'_>,
    out: i32,
    input: i32,
    offset: UserAddr,
    count: usize,
) -> SyscallResult {
    let given = cx.user().read_opt::<i64>(offset)?;
    let source = readable(cx, input)?;
    if i64::try_from(count).is_err() || given.is_some_and(|at| at < 0) {
        return Err(Errno::EINVAL);
    }
    let target = writable(cx, out)?;
    if !source.ops.is_seekable() || source.ops.stat(&source)?.kind() == S_IFDIR {
        return Err(if !offset.is_null() && !source.ops.is_seekable() {
            Errno::ESPIPE
        } else {
            Errno::EINVAL
        });
    }
    if target.flags().contains(OpenFlags::APPEND) || is_stream(&source) {
        return Err(Errno::EINVAL);
    }
    let mut from = Cursor::new(cx, &source, offset)?;
    let count = count.min(RW_MAX_BYTES);
    let moved = match send_on_host(&mut from, &target, count) {
        Some(moved) => {
            if moved.is_ok_and(|moved| moved > 0) {
                source.accessed();
            }
            moved
        }
        None => copy(&mut from, count, |buf| target.write(buf, At::Position)),
    };
    from.finish(cx)?;
    count_copy(cx, written(cx, moved))
}

/// Lets the host send one of its files over one of its sockets; `None` when the files are of another kind.
fn send_on_host(from: &mut Cursor<'_>, target: &File, count: usize) -> Option<Result<usize>> {
    let (source, socket) = (from.file.as_ops::<HostFile>()?, &SocketFile::of(target).ok()?.socket);
    let wait = !target.is_nonblocking();
    let mut done = 0;
    while done < count {
        let mut usable = true;
        let sent = target.blocking(PollEvents::WRITABLE, || {
            socket.send_file(source.handle(), from.at, count - done, wait).unwrap_or_else(|| {
                usable = false;
                Ok(0)
            })
        });
        match sent {
            _ if !usable => return None,
            Ok(0) => break,
            Ok(sent) => {
                done += sent;
                from.at += sent as u64;
            }
            Err(error) if done == 0 => return Some(Err(error)),
            Err(error) => {
                socket.keep_error(error);
                break;
            }
        }
        if !wait {
            break;
        }
    }
    Some(Ok(done))
}
