//! Further descriptors of the caller's, from 3 on, that a program inside is to have under the same numbers
//! (`--preserve-fds`). As with the standard streams, the sandbox reads and writes them by itself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use abi::boot::{STREAM_READABLE, STREAM_WRITABLE};
use vmm::exec_relay::PRESERVED_MAX;
use vmm::process;
use vmm::sys;

/// The number of the first one.
pub const FIRST: u32 = 3;

/// Why a descriptor cannot be handed in.
#[derive(Debug, thiserror::Error)]
pub enum PreserveError {
    #[error(
        "cannot pass on descriptor {fd}: {source}; open it, or pass a smaller number with --preserve-fds"
    )]
    NotOpen { fd: RawFd, source: io::Error },
    #[error("cannot pass on descriptor {fd}: {what}; pass on files, pipes and connected sockets")]
    Kind { fd: RawFd, what: &'static str },
    #[error(
        "cannot pass on {count} descriptors: at most {PRESERVED_MAX} are possible; pass a smaller number"
    )]
    TooMany { count: usize },
}

/// A descriptor, and the flags of its record.
#[derive(Debug)]
pub struct PreservedFd {
    pub fd: OwnedFd,
    pub flags: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Preserved(pub Vec<PreservedFd>);

impl Preserved {
    /// Takes as many descriptors of the caller's, from 3 on.
    ///
    /// # Safety
    /// This process has not opened any descriptor of its own that is still open.
    #[allow(unsafe_code)]
    pub unsafe fn take(count: usize) -> Result<Self, PreserveError> {
        if count > PRESERVED_MAX {
            return Err(PreserveError::TooMany { count });
        }
        // SAFETY: the caller's promise.
        let taken = unsafe { process::take_inherited(count) };
        let taken = taken.map_err(|(fd, source)| PreserveError::NotOpen { fd, source })?;
        let checked = (3..).zip(taken).map(|(number, fd)| {
            let flags = check(fd.as_fd()).map_err(|what| PreserveError::Kind { fd: number, what })?;
            Ok(PreservedFd { fd, flags })
        });
        checked.collect::<Result<_, _>>().map(Self)
    }
}

/// The flags of a descriptor's record; the error names a kind that is more than bytes to read and write.
fn check(fd: BorrowedFd<'_>) -> Result<u32, &'static str> {
    let access = process::access(fd).map_err(|_| "it cannot be looked at")?;
    if !access.reads && !access.writes {
        return Err("it is open as a name alone");
    }
    let mode = sys::statx(fd, c"").map_err(|_| "it cannot be looked at")?.stx_mode;
    match u32::from(mode) & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFIFO | libc::S_IFCHR | libc::S_IFBLK => {}
        libc::S_IFSOCK if sys::is_listening(fd) => return Err("it is a socket that listens"),
        libc::S_IFSOCK => {}
        libc::S_IFDIR => return Err("it is a directory"),
        _ => return Err("it is neither a file nor a pipe nor a socket"),
    }
    let bit = |set: bool, bit: u32| if set { bit } else { 0 };
    Ok(bit(access.reads, STREAM_READABLE) | bit(access.writes, STREAM_WRITABLE))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn only_what_is_read_and_written_is_handed_in() {
        let (reader, writer) = io::pipe().unwrap();
        assert_eq!(check(reader.as_fd()), Ok(STREAM_READABLE));
        assert_eq!(check(writer.as_fd()), Ok(STREAM_WRITABLE));
        let both = Ok(STREAM_READABLE | STREAM_WRITABLE);
        assert_eq!(check(UnixStream::pair().unwrap().0.as_fd()), both);
        let file = File::options().read(true).write(true).open("/dev/null").unwrap();
        assert_eq!(check(file.as_fd()), both);
        let dir = testdir::TempDir::new();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        assert_eq!(check(listener.as_fd()), Err("it is a socket that listens"));
        assert_eq!(check(File::open("/").unwrap().as_fd()), Err("it is a directory"));
        let name = std::os::unix::fs::OpenOptionsExt::custom_flags(File::options().read(true), libc::O_PATH)
            .open("/dev/null")
            .unwrap();
        assert_eq!(check(name.as_fd()), Err("it is open as a name alone"));
    }
}
