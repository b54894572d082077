//! Copies of directories as they lie on the disk: owners, modes, times, attributes, hard links, holes, and what overlayfs has for names
//! that are gone.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use vmm::directory::Directory;

use super::super::digest;
use super::LayerError;
use super::attributes::{self, Ids, at};

/// How deep directories may lie in each other.
pub(super) const DEPTH_MAX: usize = 256;
/// Most bytes of names that are kept at a time, of directories and, half of them, of files with several names. Further ones of such files become files of
/// their own.
pub(super) const NAMES_MAX: usize = 256 << 20;
/// Bytes that a name takes up beside itself.
const NAME_EXTRA: usize = 100;
/// Bytes that are copied at a time.
const AT_ONCE: usize = 16 << 20;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// See the module.
pub(super) struct Copier {
    ids: Ids,
    /// Files with more than one name, and the name of the copy from its top directory on; and the bytes of these names.
    linked: HashMap<(u64, u64), PathBuf>,
    names_bytes: usize,
    /// When it has taken too long.
    until: Option<Instant>,
    /// Whether the host may let copies have blocks in common.
    clones: bool,
    pub files: u64,
    pub bytes: u64,
}

/// A directory that is copied, and its copy.
struct Pair {
    from: OwnedFd,
    to: OwnedFd,
}

impl Copier {
    /// Refuses to go on after this moment.
    pub(super) fn until(self, until: Instant) -> Self {
        Self { until: Some(until), ..self }
    }

    pub(super) fn new(ids: Ids) -> Self {
        Self { ids, linked: HashMap::new(), names_bytes: 0, until: None, clones: true, files: 0, bytes: 0 }
    }

    /// Copies a directory to a new name in another one.
    pub(super) fn copy(&mut self, from: &Path, to: &Directory, name: &str) -> Result<(), LayerError> {
        let failed = |error: Errno| LayerError::new(from, error);
        let source = fs::open(from, DIRECTORY, Mode::empty()).map_err(failed)?;
        let stat = fs::fstat(&source).map_err(failed)?;
        fs::mkdirat(to, name, Mode::RWXU).map_err(failed)?;
        let copy = fs::openat(to, name, DIRECTORY, Mode::empty()).map_err(failed)?;
        let top = copy.try_clone().map_err(|error| LayerError::new(from, error))?;
        let pair = Pair { from: source, to: copy };
        let mut path = PathBuf::new();
        self.copy_entries(&pair, top.as_fd(), &mut path, 0)?;
        let attributes = attributes::of(&from.join("."));
        let set = attributes.and_then(|attributes| {
            self.dress(&at(&pair.to, OsStr::new(".")), to.as_fd(), OsStr::new(name), &stat, attributes)
        });
        set.map_err(|error| LayerError::new(from, error))
    }

    fn copy_entries(
        &mut self,
        pair: &Pair,
        top: BorrowedFd<'_>,
        path: &mut PathBuf,
        depth: usize,
    ) -> Result<(), LayerError> {
        if depth > DEPTH_MAX {
            let why = format!("directories lie more than {DEPTH_MAX} deep in each other");
            return Err(LayerError::new(path, io::Error::other(why)));
        }
        let (names, bytes) = names(&pair.from, NAMES_MAX.saturating_sub(self.names_bytes))
            .map_err(|error| LayerError::new(path, error))?;
        self.names_bytes += bytes;
        for name in names {
            path.push(&name);
            if self.until.is_some_and(|until| until <= Instant::now()) {
                return Err(LayerError::new(path, io::Error::other("it takes too long")));
            }
            let stat = fs::statat(&pair.from, &name, AtFlags::SYMLINK_NOFOLLOW);
            let stat = stat.map_err(|error| LayerError::new(path, error))?;
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                let inner = enter(pair, &name).map_err(|error| LayerError::new(path, error))?;
                self.copy_entries(&inner, top, path, depth + 1)?;
            } else if !self
                .link(pair, &name, &stat, top, path)
                .map_err(|error| LayerError::new(path, error))?
            {
                self.copy_node(pair, &name, &stat).map_err(|error| LayerError::new(path, error))?;
            } else {
                path.pop();
                continue;
            }
            self.files += 1;
            let dressed = attributes::of(&at(&pair.from, &name)).and_then(|attributes| {
                self.dress(&at(&pair.to, &name), pair.to.as_fd(), &name, &stat, attributes)
            });
            dressed.map_err(|error| LayerError::new(path, error))?;
            path.pop();
        }
        self.names_bytes = self.names_bytes.saturating_sub(bytes);
        Ok(())
    }

    /// Gives a file that was copied before another name. Result: whether it was.
    fn link(
        &mut self,
        pair: &Pair,
        name: &OsStr,
        stat: &Stat,
        top: BorrowedFd<'_>,
        path: &Path,
    ) -> io::Result<bool> {
        if stat.st_nlink < 2 {
            return Ok(false);
        }
        let key = (stat.st_dev, stat.st_ino);
        if let Some(first) = self.linked.get(&key) {
            return match fs::linkat(top, first, &pair.to, name, AtFlags::empty()) {
                Ok(()) => Ok(true),
                // Too deep to be named, or a file with too many names.
                Err(Errno::NAMETOOLONG | Errno::MLINK) => Ok(false),
                Err(error) => Err(error.into()),
            };
        }
        if self.names_bytes < NAMES_MAX / 2 {
            self.names_bytes += path.as_os_str().len() + NAME_EXTRA;
            self.linked.insert(key, path.to_owned());
        }
        Ok(false)
    }

    fn copy_node(&mut self, pair: &Pair, name: &OsStr, stat: &Stat) -> io::Result<()> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.copy_file(pair, name),
            FileType::Symlink => {
                let target = fs::readlinkat(&pair.from, name, Vec::new())?;
                Ok(fs::symlinkat(&*target, &pair.to, name)?)
            }
            kind => Ok(fs::mknodat(&pair.to, name, kind, Mode::empty(), stat.st_rdev)?),
        }
    }

    fn copy_file(&mut self, pair: &Pair, name: &OsStr) -> io::Result<()> {
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let from: File = fs::openat(&pair.from, name, flags | OFlags::RDONLY, Mode::empty())?.into();
        let new = flags | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let to: File = fs::openat(&pair.to, name, new, Mode::RUSR | Mode::WUSR)?.into();
        let len = from.metadata()?.len();
        self.bytes = self.bytes.saturating_add(from.metadata()?.blocks().saturating_mul(512));
        if self.clones && fs::ioctl_ficlone(&to, &from).is_ok() {
            return Ok(());
        }
        // This file system has no such copies, or not here.
        self.clones = false;
        to.set_len(len)?;
        copy_data(&from, &to, len)
    }

    /// Gives a copy the owner, mode, times and attributes of what it is a copy of.
    fn dress(
        &self,
        copy: &Path,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        stat: &Stat,
        attributes: Vec<attributes::Attribute>,
    ) -> io::Result<()> {
        let (user, group) = (self.ids.of(stat.st_uid), self.ids.of(stat.st_gid));
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        fs::chownat(directory, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        attributes::set(copy, attributes, self.ids)?;
        if !FileType::from_raw_mode(stat.st_mode).is_symlink() {
            fs::chmodat(directory, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
        }
        let time = |seconds, nanos: u64| Timespec { tv_sec: seconds, tv_nsec: nanos.cast_signed() };
        let times = Timestamps {
            last_access: time(stat.st_atime, stat.st_atime_nsec),
            last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
        };
        Ok(fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// The names in a directory, and so many bytes as they take up, `most` at most.
pub(super) fn names(directory: &OwnedFd, most: usize) -> io::Result<(Vec<OsString>, usize)> {
    let (mut names, mut bytes) = (Vec::new(), 0);
    for entry in fs::Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            bytes += name.len() + NAME_EXTRA;
            names.push(OsString::from_vec(name));
        }
        if bytes > most {
            return Err(io::Error::other("directories have too many names"));
        }
    }
    Ok((names, bytes))
}

pub(super) fn open_directory(directory: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    Ok(fs::openat(directory, name, DIRECTORY, Mode::empty())?)
}

fn enter(pair: &Pair, name: &OsStr) -> io::Result<Pair> {
    let from = open_directory(&pair.from, name)?;
    fs::mkdirat(&pair.to, name, Mode::RWXU)?;
    Ok(Pair { from, to: open_directory(&pair.to, name)? })
}

/// Copies what is no hole.
pub(in crate::snapshot) fn copy_data(from: &File, to: &File, len: u64) -> io::Result<()> {
    let mut start = 0;
    while let Some(data) = digest::next_data(from, start)?.filter(|data| *data < len) {
        let end = digest::end_of_data(from, data, len);
        let (mut at_from, mut at_to) = (data, data);
        while at_from < end {
            let most = usize::try_from(end - at_from).unwrap_or(AT_ONCE).min(AT_ONCE);
            match fs::copy_file_range(from, Some(&mut at_from), to, Some(&mut at_to), most) {
                // It is shorter now.
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    read_and_write(from, to, at_from..end)?;
                    at_from = end;
                }
                Err(error) => return Err(error.into()),
            }
        }
        start = end;
    }
    Ok(())
}

fn read_and_write(from: &File, to: &File, range: std::ops::Range<u64>) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let (mut buffer, mut at) = (vec![0; 1 << 20], range.start);
    while at < range.end {
        let most = usize::try_from(range.end - at).unwrap_or(buffer.len()).min(buffer.len());
        let got = from.read_at(buffer.get_mut(..most).unwrap_or_default(), at)?;
        if got == 0 {
            break;
        }
        to.write_all_at(buffer.get(..got).unwrap_or_default(), at)?;
        at += got as u64;
    }
    Ok(())
}
