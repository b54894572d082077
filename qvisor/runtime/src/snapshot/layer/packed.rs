//! A layer in a tar file: owners, modes, times, attributes, hard links and what overlayfs has for names that are gone go along, as they do
//! with a [copy](super::copy).

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use vmm::directory::Directory;

use super::super::tar::{Head, Kind, Reader, Writer};
use super::LayerError;
use super::attributes::{self, Ids, at};
use super::copy::{DEPTH_MAX, NAMES_MAX, names, open_directory};

/// Names of records: of an extended attribute, of the time, and of what tar has no kind for.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
const TIME: &[u8] = b"mtime";
const SOCKET: &[u8] = b"DORMOUSE.socket";
/// Bytes that a name takes up beside itself.
const NAME_EXTRA: usize = 100;

/// Writes a layer's directory, as an entry of this name and those in it.
pub(in crate::snapshot) fn pack<W: Write>(
    directory: &Directory,
    name: &str,
    to: &mut Writer<W>,
) -> Result<(), LayerError> {
    let mut packer = Packer { to, linked: HashMap::new() };
    let top = open_directory(&directory_above(directory)?, OsStr::new("."));
    let top = top.map_err(|error| LayerError::new(directory.path(), error))?;
    let failed = |error: io::Error| LayerError::new(Path::new(name), error);
    let stat = fs::fstat(&top).map_err(|error| failed(error.into()))?;
    let head = Head { path: name.into(), ..head_of(&top, OsStr::new("."), &stat).map_err(failed)? };
    packer.to.head(&head).map_err(failed)?;
    packer.entries(&top, &mut PathBuf::from(name), 0)
}

fn directory_above(directory: &Directory) -> Result<OwnedFd, LayerError> {
    use std::os::fd::AsFd;
    let copy = directory.as_fd().try_clone_to_owned();
    copy.map_err(|error| LayerError::new(directory.path(), error))
}

struct Packer<'w, W> {
    to: &'w mut Writer<W>,
    /// Files with more than one name, and the first of them.
    linked: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Packer<'_, W> {
    fn entries(&mut self, directory: &OwnedFd, path: &mut PathBuf, depth: usize) -> Result<(), LayerError> {
        let (mut names, _) = names(directory, NAMES_MAX).map_err(|error| LayerError::new(path, error))?;
        names.sort();
        for name in names {
            path.push(&name);
            let stat = self.entry(directory, &name, path).map_err(|error| LayerError::new(path, error))?;
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                if depth > DEPTH_MAX + 2 {
                    return Err(LayerError::new(path, io::Error::other("it lies too deep")));
                }
                let inner = open_directory(directory, &name).map_err(|error| LayerError::new(path, error))?;
                self.entries(&inner, path, depth + 1)?;
            }
            path.pop();
        }
        Ok(())
    }

    fn entry(&mut self, directory: &OwnedFd, name: &OsStr, path: &Path) -> io::Result<Stat> {
        let stat = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let mut head = head_of(directory, name, &stat)?;
        head.path = path.as_os_str().as_bytes().to_vec();
        if stat.st_nlink > 1 && !kind.is_dir() {
            if let Some(first) = self.linked.get(&(stat.st_dev, stat.st_ino)) {
                let link = first.as_os_str().as_bytes().to_vec();
                self.to.head(&Head { path: head.path, kind: Kind::Link, link, ..Head::default() })?;
                return Ok(stat);
            }
            self.linked.insert((stat.st_dev, stat.st_ino), path.to_owned());
        }
        if kind.is_file() {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = File::from(fs::openat(directory, name, flags, Mode::empty())?);
            self.to.file(head, &file)?;
        } else {
            self.to.head(&head)?;
        }
        Ok(stat)
    }
}

/// The header of an entry, without its path.
fn head_of(directory: &OwnedFd, name: &OsStr, stat: &Stat) -> io::Result<Head> {
    let mut records =
        vec![(TIME.into(), format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec).into_bytes())];
    for (name, value) in attributes::of(&at(directory, name))? {
        if name.contains(&b'=') {
            return Err(io::Error::other("the name of an attribute has a '=', which no tar file can have"));
        }
        records.push(([ATTRIBUTE, &name].concat(), value));
    }
    let mut head = Head {
        mode: stat.st_mode & 0o7777,
        user: stat.st_uid,
        group: stat.st_gid,
        device: (fs::major(stat.st_rdev), fs::minor(stat.st_rdev)),
        ..Head::default()
    };
    head.kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::CharacterDevice => Kind::CharacterDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => {
            records.push((SOCKET.into(), b"1".into()));
            Kind::File
        }
        _ => Kind::File,
    };
    if head.kind == Kind::Symlink {
        head.link = fs::readlinkat(directory, name, Vec::new())?.into_bytes();
    }
    Ok(Head { records, ..head })
}

/// Makes a layer's directory from entries, which an enemy may have written: each is one name in a directory that was made before it, and
/// nothing else is followed.
pub(in crate::snapshot) struct Unpacker {
    /// The directories that the last entry lies in, the layer's own first.
    open: Vec<Open>,
    /// Files that may get further names, and the bytes of all names.
    files: HashSet<PathBuf>,
    names_bytes: usize,
}

/// A directory whose entries come.
struct Open {
    directory: OwnedFd,
    name: OsString,
    head: Head,
}

impl Unpacker {
    /// Begins with the entry of the layer's directory itself, which is made in `to`.
    pub fn begin(to: &Directory, name: &str, head: Head) -> io::Result<Self> {
        if head.kind != Kind::Directory {
            return Err(refused("the layer is no directory"));
        }
        let directory = to.make_directory(OsStr::new(name))?.into_parts().0;
        let top = Open { directory, name: name.into(), head: kept(head) };
        Ok(Self { open: vec![top], files: HashSet::new(), names_bytes: 0 })
    }

    /// Takes an entry, whose data `from` has.
    pub fn take<R: Read>(&mut self, head: Head, from: &mut Reader<R>) -> io::Result<()> {
        let path = PathBuf::from(OsStr::from_bytes(&head.path));
        let mut names: Vec<&[u8]> = head.path.split(|byte| *byte == b'/').collect();
        let is_plain = |name: &&[u8]| !name.is_empty() && name != b"." && name != b".." && !name.contains(&0);
        if !names.iter().all(is_plain) {
            return Err(refused("it has a name that leads elsewhere"));
        }
        self.names_bytes += head.path.len() + NAME_EXTRA;
        if self.names_bytes > NAMES_MAX || names.len() > DEPTH_MAX + 5 {
            return Err(refused("it has too many names, or lies too deep"));
        }
        let Some(name) = names.pop() else { return Err(refused("it has an entry without a name")) };
        while self.open.len() > names.len()
            || self.open.iter().zip(&names).any(|(open, name)| open.name.as_bytes() != *name)
        {
            self.close()?;
        }
        let Some(inner) = self.open.last().filter(|_| self.open.len() == names.len()) else {
            return Err(refused("it has an entry of a directory that is not there"));
        };
        let (directory, name) = (&inner.directory, OsStr::from_bytes(name));
        match head.kind {
            Kind::Directory => {
                fs::mkdirat(directory, name, Mode::RWXU)?;
                let made = open_directory(directory, name)?;
                self.open.push(Open { directory: made, name: name.into(), head: kept(head) });
                return Ok(());
            }
            Kind::Link => {
                // In directories that were made here, so no link is on its way.
                let first = PathBuf::from(OsStr::from_bytes(&head.link));
                let Some((top, first)) = self.open.first().zip(first.strip_prefix(self.top()).ok()) else {
                    return Err(refused("it has a link to what is not there"));
                };
                if !self.files.contains(Path::new(OsStr::from_bytes(&head.link))) {
                    return Err(refused("it has a link to what is not there"));
                }
                return Ok(fs::linkat(&top.directory, first, directory, name, AtFlags::empty())?);
            }
            _ => make_node(directory, name, &head, from)?,
        }
        dress(directory, name, &head)?;
        self.files.insert(path);
        Ok(())
    }

    fn top(&self) -> PathBuf {
        self.open.first().map(|top| PathBuf::from(&top.name)).unwrap_or_default()
    }

    /// Comes back from a directory, all of whose entries have come.
    fn close(&mut self) -> io::Result<()> {
        let Some(Open { directory, name, head }) = self.open.pop() else { return Ok(()) };
        match self.open.last() {
            Some(above) => dress(&above.directory, &name, &head),
            // The layer's own directory is not a part of what it has.
            None => {
                drop(directory);
                Ok(())
            }
        }
    }

    /// All has come.
    pub fn end(mut self) -> io::Result<()> {
        while !self.open.is_empty() {
            self.close()?;
        }
        Ok(())
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

fn make_node<R: Read>(
    directory: &OwnedFd,
    name: &OsStr,
    head: &Head,
    from: &mut Reader<R>,
) -> io::Result<()> {
    let kind = match head.kind {
        Kind::Symlink => return Ok(fs::symlinkat(OsStr::from_bytes(&head.link), directory, name)?),
        Kind::File if head.record(SOCKET).is_some() => FileType::Socket,
        Kind::File => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = File::from(fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?);
            return from.file(head, &file, u64::MAX);
        }
        Kind::Fifo => FileType::Fifo,
        // By which overlayfs says that a name is gone.
        Kind::CharacterDevice if head.device == (0, 0) => FileType::CharacterDevice,
        _ => return Err(refused("it has a device")),
    };
    Ok(fs::mknodat(directory, name, kind, Mode::empty(), 0)?)
}

/// The parts of a directory's header that are needed once all that is in it has come.
fn kept(mut head: Head) -> Head {
    head.records.retain(|(name, _)| name.starts_with(ATTRIBUTE) || name == TIME);
    Head { path: Vec::new(), link: Vec::new(), ..head }
}

/// Gives an entry the owner, attributes, mode and time that its header says.
fn dress(directory: &OwnedFd, name: &OsStr, head: &Head) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(head.user), Gid::from_raw(head.group));
    fs::chownat(directory, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    let of =
        |(name, value): &(Vec<u8>, Vec<u8>)| Some((name.strip_prefix(ATTRIBUTE)?.to_vec(), value.clone()));
    attributes::set(&at(directory, name), head.records.iter().filter_map(of).collect(), Ids::AsTheyAre)?;
    if head.kind != Kind::Symlink {
        fs::chmodat(directory, name, Mode::from_raw_mode(head.mode), AtFlags::empty())?;
    }
    let time =
        head.record(TIME).and_then(time_of).ok_or_else(|| refused("it has an entry without a time"))?;
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn time_of(text: &[u8]) -> Option<Timespec> {
    let (seconds, nanos) = std::str::from_utf8(text).ok()?.split_once('.')?;
    let nanos = nanos.parse().ok().filter(|nanos| nanos_are_possible(*nanos))?;
    Some(Timespec { tv_sec: seconds.parse().ok()?, tv_nsec: nanos })
}

fn nanos_are_possible(nanos: i64) -> bool {
    (0..1_000_000_000).contains(&nanos)
}
