//! Removal of a sandbox's files, whatever its guest has made of them.
//!
//! A guest may have nested directories deeper than any path is long, taken all permissions from them, or filled them
//! with millions of names. So every entry is reached from a directory's descriptor by a single name, no link is
//! followed, and no directory is entered that another file system is mounted on. At most [`DEPTH`] directories are open
//! at a time: deeper ones are moved up to the top and removed from there.
#![deny(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{self, AtFlags, Dir, DirEntry, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

/// Most directories that are open at a time.
const DEPTH: usize = 32;
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Entries that could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("{count} of the names in it stay, {name:?} among them: {source}")]
pub struct Left {
    pub count: u64,
    /// One of them, and why it stays.
    pub name: OsString,
    pub source: io::Error,
}

/// Removes everything in `dir` but the entry called `kept`.
pub fn empty(dir: BorrowedFd<'_>, kept: &str) -> Result<(), Left> {
    let mut moved = 0;
    loop {
        let mut pass = Pass { top: dir, kept, moved, left: None, has_removed: false, is_over: true };
        if let Err(error) = pass.run() {
            pass.keep(c".", error);
        }
        moved = pass.moved;
        // The removals may have freed the room that another directory needed to be moved.
        match pass.left {
            None if pass.is_over => return Ok(()),
            Some(left) if !pass.has_removed => return Err(left),
            None if !pass.has_removed => {
                let source = Errno::NOTEMPTY.into();
                return Err(Left { count: 1, name: ".".into(), source });
            }
            _ => {}
        }
    }
}

/// One walk through the remaining entries.
struct Pass<'a> {
    top: BorrowedFd<'a>,
    kept: &'a str,
    /// How many names were tried for directories that were moved.
    moved: u64,
    left: Option<Left>,
    has_removed: bool,
    /// No entry was seen that needs another walk.
    is_over: bool,
}

/// A directory that is being emptied, and its name in the one above.
struct Level {
    dir: Dir,
    name: CString,
}

impl Pass<'_> {
    fn run(&mut self) -> io::Result<()> {
        let mut levels = vec![Level { dir: Dir::read_from(self.top)?, name: CString::default() }];
        while let Some(level) = levels.last_mut() {
            let entry = level.dir.read();
            match entry {
                Some(Ok(entry)) => {
                    let name = entry.file_name();
                    let is_kept = levels.len() == 1 && name.to_bytes() == self.kept.as_bytes();
                    if name != c"." && name != c".." && !is_kept {
                        self.take(&mut levels, &entry);
                    }
                }
                Some(Err(error)) => {
                    self.keep(c".", error.into());
                    self.close(&mut levels);
                }
                None => self.close(&mut levels),
            }
        }
        Ok(())
    }

    /// Removes an entry of the innermost directory, or enters it.
    fn take(&mut self, levels: &mut Vec<Level>, entry: &DirEntry) {
        let name = entry.file_name();
        let result = match levels.last().map(|level| level.dir.fd()) {
            Some(Ok(parent)) => match unlink(parent, entry) {
                Ok(()) => Ok(None),
                Err(Errno::NOENT) => return,
                Err(Errno::NOTEMPTY | Errno::EXIST) => enter(parent, name).and_then(|dir| {
                    if levels.len() < DEPTH {
                        return Ok(Some(dir));
                    }
                    self.is_over = false;
                    self.move_up(parent, name).map(|()| None)
                }),
                Err(error) => Err(error.into()),
            },
            Some(Err(error)) => Err(error.into()),
            None => return,
        };
        match result.and_then(|dir| dir.map(|dir| Ok(Dir::new(dir)?)).transpose()) {
            Ok(Some(dir)) => levels.push(Level { dir, name: name.to_owned() }),
            Ok(None) => self.has_removed = true,
            Err(error) => self.keep(name, error),
        }
    }

    /// The innermost directory has been walked through.
    fn close(&mut self, levels: &mut Vec<Level>) {
        let Some(Level { dir, name }) = levels.pop() else { return };
        drop(dir);
        let Some(Ok(parent)) = levels.last().map(|level| level.dir.fd()) else { return };
        match fs::unlinkat(parent, &name, AtFlags::REMOVEDIR) {
            Ok(()) => self.has_removed = true,
            // Its entries were reported already, or were passed over while others were removed.
            Err(Errno::NOTEMPTY | Errno::EXIST) => self.is_over = false,
            Err(error) => self.keep(&name, error.into()),
        }
    }

    /// Moves a directory to the top.
    fn move_up(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        loop {
            self.moved += 1;
            match fs::renameat(parent, name, self.top, format!(".deep-{}", self.moved)) {
                // The name is taken. An empty directory of that name would have been replaced.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                result => return Ok(result?),
            }
        }
    }

    fn keep(&mut self, name: &CStr, source: io::Error) {
        let count = self.left.as_ref().map_or(0, |left| left.count) + 1;
        let first = self.left.take().map(|left| (left.name, left.source));
        let (name, source) = first.unwrap_or_else(|| (OsStr::from_bytes(name.to_bytes()).into(), source));
        self.left = Some(Left { count, name, source });
    }
}

/// Removes a file, or a directory that is empty.
fn unlink(parent: BorrowedFd<'_>, entry: &DirEntry) -> rustix::io::Result<()> {
    let name = entry.file_name();
    let kind = match entry.file_type() {
        FileType::Unknown => {
            FileType::from_raw_mode(fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
        }
        kind => kind,
    };
    fs::unlinkat(parent, name, if kind.is_dir() { AtFlags::REMOVEDIR } else { AtFlags::empty() })
}

/// Opens a directory that is no mount point, with all the permissions that emptying it needs.
fn enter(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let there = fs::openat(
        parent,
        name,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let wanted = StatxFlags::BASIC_STATS;
    let look = |fd: BorrowedFd<'_>| fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted);
    let (above, found) = (look(parent)?, look(there.as_fd())?);
    // Hosts before 5.8 do not say whether a directory is a mount point; one on another device is a mount point in any
    // case.
    if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        || (above.stx_dev_major, above.stx_dev_minor) != (found.stx_dev_major, found.stx_dev_minor)
    {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "something is mounted on it"));
    }
    if u32::from(found.stx_mode) & 0o700 != 0o700 {
        // The owner and root may change the mode. The path leads by the descriptor, since a name could lead elsewhere.
        let _ = fs::chmod(format!("/proc/self/fd/{}", there.as_raw_fd()), Mode::RWXU);
    }
    Ok(fs::openat(&there, c".", DIRECTORY, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::*;
    use testdir::TempDir;

    fn open(path: &Path) -> OwnedFd {
        fs::open(path, DIRECTORY, Mode::empty()).unwrap()
    }

    /// A chain of directories, each in the one before; result: the last.
    fn nest(top: OwnedFd, depth: usize, name: &str) -> OwnedFd {
        (0..depth).fold(top, |dir, _| {
            fs::mkdirat(&dir, name, Mode::RWXU).unwrap();
            fs::openat(&dir, name, DIRECTORY, Mode::empty()).unwrap()
        })
    }

    fn names(path: &Path) -> Vec<OsString> {
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn depth_is_no_obstacle() {
        let temp = TempDir::new();
        let long = "x".repeat(250);
        let last = nest(open(temp.path()), 3000, &long);
        fs::openat(&last, "file", OFlags::CREATE | OFlags::WRONLY, Mode::empty()).unwrap();
        // Names that the mover would have chosen, and chains beside one another.
        std::fs::write(temp.path().join(".deep-1"), "").unwrap();
        nest(open(temp.path()), 100, ".deep-2");
        nest(open(temp.path()), DEPTH, "even");
        nest(open(temp.path()), DEPTH + 1, "more");
        std::fs::write(temp.path().join("lock"), "").unwrap();
        empty(open(temp.path()).as_fd(), "lock").unwrap();
        assert_eq!(names(temp.path()), ["lock"]);
        assert!(last.as_raw_fd() >= 0);
    }

    #[test]
    fn width_and_modes_are_no_obstacle() {
        let temp = TempDir::new();
        let wide = temp.path().join("wide");
        std::fs::create_dir(&wide).unwrap();
        for number in 0..500 {
            std::fs::create_dir(wide.join(number.to_string())).unwrap();
            std::fs::write(wide.join(format!("{number}/file")), "").unwrap();
            std::fs::write(wide.join(format!("f{number}")), "").unwrap();
        }
        let modes = [0o000, 0o100, 0o200, 0o400, 0o500, 0o555, 0o4000];
        let mut inner = wide;
        for _ in modes {
            inner.push("inner");
            std::fs::create_dir(&inner).unwrap();
            symlink("/etc", inner.join("link")).unwrap();
            fs::mkfifoat(open(&inner), "fifo", Mode::empty()).unwrap();
            std::fs::write(inner.join("file"), "").unwrap();
        }
        // From within, as the way there is closed afterwards.
        for (dir, mode) in inner.ancestors().zip(modes) {
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        empty(open(temp.path()).as_fd(), "").unwrap();
        assert_eq!(names(temp.path()), Vec::<OsString>::new());
        assert!(Path::new("/etc/passwd").exists());
    }

    /// In a mount namespace of its own, which ends with the thread; false: this user or this place has none.
    #[allow(unsafe_code)]
    fn bind(path: &Path) -> bool {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mount = |from: &CStr, at: &CStr, flags| {
            // SAFETY: zero-terminated strings, and null for what is left out.
            let result =
                unsafe { libc::mount(from.as_ptr(), at.as_ptr(), std::ptr::null(), flags, std::ptr::null()) };
            result == 0
        };
        // SAFETY: integers only; this thread alone is in the new namespace.
        let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNS) == 0 };
        is_apart
            && mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)
            && mount(&path, &path, libc::MS_BIND)
    }

    #[test]
    fn mounts_are_not_entered_and_what_stays_is_said() {
        let temp = TempDir::new();
        let held = temp.path().join("some/where");
        std::fs::create_dir_all(&held).unwrap();
        std::fs::write(held.join("file"), "").unwrap();
        std::fs::write(temp.path().join("some/other"), "").unwrap();
        std::thread::scope(|scope| {
            let mounted = scope.spawn(|| {
                // A mount of the same file system: the device tells nothing. It needs root.
                if !bind(&held) {
                    return;
                }
                let left = empty(open(temp.path()).as_fd(), "").unwrap_err();
                assert!(held.join("file").exists(), "it was not entered");
                assert!(!temp.path().join("some/other").exists(), "the rest went");
                assert_eq!((left.count, left.name.to_str()), (1, Some("where")), "{left}");
            });
            mounted.join().unwrap();
        });
        empty(open(temp.path()).as_fd(), "").unwrap();
        assert_eq!(names(temp.path()), Vec::<OsString>::new());
    }
}
