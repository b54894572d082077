//! Directories that nobody but their owner can change, and their entries, reached by descriptor.
//!
//! A directory is opened once, and checked through its descriptor: it is a directory and no link to one, it belongs to
//! the caller, and nobody else may write it. From then on its entries are reached by that descriptor alone, so the
//! directory that is used is the one that was checked, whatever becomes of the path. Entries are never followed if they
//! are links, and opening one never waits, as it would for a FIFO.
#![deny(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};

use crate::process;

/// Others than the owner may write it.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The flags by which a directory is opened to be checked.
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// See the module.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    /// For messages, and for other programs.
    path: PathBuf,
}

impl Directory {
    /// Opens a directory of the caller's. The path's last component must not be a link.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::check(fs::open(path, DIRECTORY, Mode::empty()), path.to_owned(), || {
            std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
        })
    }

    /// Opens a directory as [`Self::open`] does; if it is not there it is made first, with its parents, for the caller
    /// alone.
    pub fn make(path: &Path) -> io::Result<Self> {
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(path)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(error);
        }
        Self::open(path)
    }

    /// A directory in this one.
    pub fn directory(&self, name: &OsStr) -> io::Result<Self> {
        let found = fs::openat(&self.fd, name, DIRECTORY, Mode::empty());
        Self::check(found, self.path.join(name), || {
            self.stat(name).is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_symlink())
        })
    }

    /// A new directory in this one, for the caller alone.
    pub fn make_directory(&self, name: &OsStr) -> io::Result<Self> {
        fs::mkdirat(&self.fd, name, Mode::RWXU)?;
        self.directory(name)
    }

    fn check(
        found: rustix::io::Result<OwnedFd>,
        path: PathBuf,
        is_link: impl Fn() -> bool,
    ) -> io::Result<Self> {
        let fd = match found {
            // The host reports a link as something that is no directory.
            Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) if is_link() => {
                return Err(refused("it is a symbolic link, which is not followed"));
            }
            found => found?,
        };
        let found = fs::fstat(&fd)?;
        check_owner(&found)?;
        if found.st_mode & WRITABLE_BY_OTHERS != 0 {
            let mode = found.st_mode & 0o7777;
            return Err(refused(&format!("others than its owner may write it (its mode is {mode:03o})")));
        }
        Ok(Self { fd, path })
    }

    /// Another descriptor of the directory.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, path: self.path.clone() })
    }

    /// Its descriptor, and its path.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, PathBuf) {
        (self.fd, self.path)
    }

    /// The directory of such parts.
    #[must_use]
    pub fn of_parts(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path }
    }

    /// The path at which it was found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Whether it has an entry of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.stat(OsStr::new(name)).is_ok()
    }

    /// The names of its entries.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(&self.fd)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Opens a regular file of the caller's.
    pub fn file(&self, name: &str) -> io::Result<File> {
        self.file_with(name, OFlags::RDWR)
    }

    /// Opens a regular file of the caller's; if it is not there it is made first.
    pub fn make_file(&self, name: &str) -> io::Result<File> {
        self.file_with(name, OFlags::RDWR | OFlags::CREATE)
    }

    /// Makes a file for the caller alone; an error if there is an entry of this name.
    pub fn new_file(&self, name: &str) -> io::Result<File> {
        self.file_with(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    /// Opens a regular file of the caller's that nobody else may write, to be read only.
    pub fn file_to_read(&self, name: &str) -> io::Result<File> {
        let file = self.file_with(name, OFlags::RDONLY)?;
        if fs::fstat(&file)?.st_mode & WRITABLE_BY_OTHERS != 0 {
            return Err(refused(&format!("others than its owner may write {name} in it")));
        }
        Ok(file)
    }

    fn file_with(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR) {
            Err(rustix::io::Errno::LOOP) => {
                return Err(refused(&format!("{name} in it is a symbolic link")));
            }
            file => file?,
        };
        let found = fs::fstat(&file)?;
        if !FileType::from_raw_mode(found.st_mode).is_file() {
            return Err(refused(&format!("{name} in it is no regular file")));
        }
        check_owner(&found)?;
        Ok(file.into())
    }

    /// Makes a FIFO for the caller alone; result: its reading end, which does not wait.
    pub fn make_fifo(&self, name: &str) -> io::Result<OwnedFd> {
        fs::mknodat(&self.fd, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        self.fifo(name, OFlags::RDONLY)
    }

    /// The writing end of a FIFO of the caller's; an error if nobody reads it.
    pub fn fifo_to_write(&self, name: &str) -> io::Result<OwnedFd> {
        self.fifo(name, OFlags::WRONLY)
    }

    fn fifo(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fifo = fs::openat(&self.fd, name, flags, Mode::empty())?;
        let found = fs::fstat(&fifo)?;
        if !FileType::from_raw_mode(found.st_mode).is_fifo() {
            return Err(refused(&format!("{name} in it is no FIFO")));
        }
        check_owner(&found)?;
        Ok(fifo)
    }

    /// The content of a file of the caller's.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file_with(name, OFlags::RDONLY)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes a file in place of any entry of this name. A reader sees the old one or the new one, never half of it.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        replace(self.fd.as_fd(), OsStr::new(name), bytes, Mode::RUSR | Mode::WUSR)
    }

    /// Renames an entry within the directory.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Gives a file of it another name, in another directory of the same file system.
    pub fn link(&self, from: &str, to: &Self, name: &str) -> io::Result<()> {
        Ok(fs::linkat(&self.fd, from, &to.fd, name, AtFlags::empty())?)
    }

    /// Removes a file.
    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// A short path to the directory's entries that leads there by the descriptor, for calls that take no descriptor.
    /// It holds as long as this does.
    #[must_use]
    pub fn path_by_descriptor(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn check_owner(found: &Stat) -> io::Result<()> {
    let user = process::effective_user();
    if found.st_uid != user {
        return Err(refused(&format!("it belongs to user {}, not to user {user}", found.st_uid)));
    }
    if !process::is_one_user(user) {
        return Err(refused("its owner has no name in this user namespace"));
    }
    Ok(())
}

/// Writes a file that others may read in place of any file of its name. It is made under a name of its own first, so no
/// link that another user has put there is followed.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::from_raw_os_error(libc::EISDIR))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    replace(dir.as_fd(), name, bytes, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)
}

fn replace(dir: BorrowedFd<'_>, name: &OsStr, bytes: &[u8], mode: Mode) -> io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (fresh, file) = loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let ending = format!(".{}-{number}", process::id());
        // A name may have 255 bytes.
        let start = name.as_bytes().get(..name.len().min(200)).unwrap_or_default();
        let fresh = OsString::from_vec([b".", start, ending.as_bytes()].concat());
        match fs::openat(dir, &fresh, flags, mode) {
            // The name was left by a process that was killed, or made by another user.
            Err(rustix::io::Errno::EXIST) if number < 1000 => {}
            file => break (fresh, file?),
        }
    };
    let written = File::from(file).write_all(bytes);
    let result = written.and_then(|()| Ok(fs::renameat(dir, &fresh, dir, name)?));
    if result.is_err() {
        let _ = fs::unlinkat(dir, &fresh, AtFlags::empty());
    }
    result
}

#[cfg(test)]
mod tests {
    use std::fs as std_fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use testdir::TempDir;

    fn set_mode(path: &Path, mode: u32) {
        std_fs::set_permissions(path, std_fs::Permissions::from_mode(mode)).unwrap();
    }

    fn why<T>(result: io::Result<T>) -> String {
        result.err().expect("it is refused").to_string()
    }

    #[test]
    fn directories_that_others_can_change_are_refused() {
        let temp = TempDir::new();
        let dir = temp.path().join("deep/dir");
        Directory::make(&dir).unwrap();
        assert_eq!(std_fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        for (mode, is_fine) in [(0o755, true), (0o750, true), (0o770, false), (0o707, false), (0o1777, false)]
        {
            set_mode(&dir, mode);
            assert_eq!(Directory::make(&dir).is_ok(), is_fine, "{mode:o}");
        }
        set_mode(&dir, 0o700);
        let link = temp.path().join("link");
        symlink(&dir, &link).unwrap();
        assert!(why(Directory::make(&link)).contains("symbolic link"));
        assert!(why(Directory::open(&link)).contains("symbolic link"));
        std_fs::write(temp.path().join("file"), "").unwrap();
        assert!(Directory::open(&temp.path().join("file")).is_err());
        assert_eq!(Directory::open(&temp.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        if process::effective_user() == 0 {
            std::os::unix::fs::chown(&dir, Some(1234), None).unwrap();
            assert!(why(Directory::make(&dir)).contains("belongs to user 1234"));
        }
    }

    #[test]
    fn entries_are_not_followed_and_do_not_hold_up() {
        let temp = TempDir::new();
        let dir = Directory::make(&temp.path().join("dir")).unwrap();
        let at = |name: &str| dir.path().join(name);
        let theirs = temp.path().join("theirs");
        std_fs::write(&theirs, "kept").unwrap();
        symlink(&theirs, at("link")).unwrap();
        symlink(temp.path().join("new"), at("dangling")).unwrap();
        rustix::fs::mkfifoat(&dir, "fifo", Mode::RUSR | Mode::WUSR).unwrap();
        dir.make_directory(OsStr::new("sub")).unwrap();
        symlink("sub", at("sublink")).unwrap();
        assert!(why(dir.make_file("link")).contains("symbolic link"));
        assert!(why(dir.make_file("dangling")).contains("symbolic link"));
        assert!(!temp.path().join("new").exists());
        assert!(why(dir.make_file("fifo")).contains("no regular file"));
        assert!(why(dir.read("fifo")).contains("no regular file"));
        assert!(dir.make_file("sub").is_err() && dir.read("link").is_err());
        assert!(dir.directory(OsStr::new("sub")).is_ok());
        assert!(why(dir.directory(OsStr::new("sublink"))).contains("symbolic link"));
        assert!(dir.make_file("plain").is_ok());
        // Writing replaces what is there.
        dir.write("link", b"new").unwrap();
        assert_eq!(
            (dir.read("link").unwrap(), std_fs::read(&theirs).unwrap()),
            (b"new".into(), b"kept".into())
        );
        assert!(!std_fs::symlink_metadata(at("link")).unwrap().is_symlink());
    }

    #[test]
    fn files_to_be_believed_are_nobody_elses() {
        let temp = TempDir::new();
        let dir = Directory::make(&temp.path().join("dir")).unwrap();
        drop(dir.new_file("file").unwrap());
        assert_eq!(dir.new_file("file").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(dir.file_to_read("file").is_ok());
        set_mode(&dir.path().join("file"), 0o620);
        assert!(why(dir.file_to_read("file")).contains("may write file"));
        symlink("file", dir.path().join("link")).unwrap();
        assert!(why(dir.file_to_read("link")).contains("symbolic link"));
    }

    #[test]
    fn what_was_looked_at_is_what_is_used() {
        let temp = TempDir::new();
        let (path, moved) = (temp.path().join("dir"), temp.path().join("moved"));
        let dir = Directory::make(&path).unwrap();
        std_fs::rename(&path, &moved).unwrap();
        std_fs::create_dir(&path).unwrap();
        dir.write("file", b"x").unwrap();
        assert!(moved.join("file").exists() && !path.join("file").exists());
        assert_eq!(dir.names().unwrap(), ["file"]);
    }

    #[test]
    fn a_file_for_others_follows_no_link() {
        let temp = TempDir::new();
        let (file, theirs) = (temp.path().join("pid"), temp.path().join("theirs"));
        std_fs::write(&theirs, "kept").unwrap();
        symlink(&theirs, &file).unwrap();
        symlink(&theirs, temp.path().join("pid.new")).unwrap();
        replace_file(&file, b"17").unwrap();
        assert_eq!(std_fs::read(&file).unwrap(), b"17");
        assert_eq!(std_fs::read(&theirs).unwrap(), b"kept");
        // Nothing is left of an attempt that failed.
        std_fs::create_dir(temp.path().join("dir")).unwrap();
        assert!(replace_file(&temp.path().join("dir"), b"1").is_err());
        assert_eq!(std_fs::read_dir(temp.path()).unwrap().count(), 4);
    }
}
