//! Moving data between files: what `sendfile(2)` and `copy_file_range(2)` share.

pub(super) mod advice;
pub(super) mod copy_file_range;
pub(super) mod fallocate;
pub(super) mod sendfile;

use alloc::sync::Arc;
use alloc::vec;

use crate::fs::file::{At, File, Whence};
use crate::fs::stream::HostStream;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, UserAddr};
use machine::sched;

/// Bytes of the kernel buffer that copies go through.
const BUFFER_BYTES: usize = 64 * 1024;

fn readable(cx: &Ctx<'_>, fd: i32) -> Result<Arc<File>> {
    cx.file(fd).and_then(|file| if file.flags().readable() { Ok(file) } else { Err(Errno::EBADF) })
}

fn writable(cx: &Ctx<'_>, fd: i32) -> Result<Arc<File>> {
    cx.file(fd).and_then(|file| if file.flags().writable() { Ok(file) } else { Err(Errno::EBADF) })
}

/// Whether the file's position is the host's, which the kernel doesn't know: programs then read and write instead.
fn is_stream(file: &File) -> bool {
    file.as_ops::<HostStream>().is_some()
}

/// A file position that a call takes from, and leaves at, a user address; or the description's own.
struct Cursor<'a> {
    file: &'a File,
    addr: UserAddr,
    at: u64,
}

impl<'a> Cursor<'a> {
    fn new(cx: &Ctx<'_>, file: &'a File, addr: UserAddr) -> Result<Self> {
        let at = match cx.user().read_opt::<i64>(addr)? {
            Some(at) => u64::try_from(at).map_err(|_| Errno::EINVAL)?,
            None => file.ops.seek(file, 0, Whence::Current)?,
        };
        Ok(Self { file, addr, at })
    }

    fn finish(self, cx: &Ctx<'_>) -> Result<()> {
        if self.addr.is_null() {
            return self.file.ops.seek(self.file, self.at.cast_signed(), Whence::Set).map(drop);
        }
        cx.user().write(self.addr, &self.at)
    }
}

/// Copies through kernel memory, until `len` bytes, the end of `from`, or an obstacle.
fn copy(
    from: &mut Cursor<'_>,
    len: usize,
    mut write: impl FnMut(&mut IoBuf<'_>) -> Result<usize>,
) -> Result<usize> {
    let mut buffer = vec![0u8; len.min(BUFFER_BYTES)];
    let mut done = 0;
    while done < len {
        let want = (len - done).min(buffer.len());
        let read = from.file.read(&mut IoBuf::kernel(&mut buffer[..want]), At::Offset(from.at));
        let got = match read {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        };
        let moved = match write(&mut IoBuf::constant(&buffer[..got])) {
            Ok(moved) => moved,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        };
        from.at += moved as u64;
        done += moved;
        if moved < got || sched::go_on().is_err() {
            break;
        }
    }
    Ok(done)
}
