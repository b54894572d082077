//! The digest of a layer: of every name below a directory, with its attributes and content.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use blake3::Hasher;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use vmm::directory::Directory;

use super::super::digest;
use super::LayerError;
use super::attributes;
use super::copy::{DEPTH_MAX, NAMES_MAX, names, open_directory};

/// The digest in hexadecimal digits.
pub(in crate::snapshot) fn sum(directory: &Directory) -> Result<String, LayerError> {
    let top = directory.as_fd().try_clone_to_owned();
    let top = top.map_err(|error| LayerError::new(directory.path(), error))?;
    let mut hasher = Hasher::new();
    add_entries(&mut hasher, &top, &mut PathBuf::new(), 0)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Adds what is in a directory. Each part has its length before it, so no two trees give the same bytes.
fn add_entries(
    hasher: &mut Hasher,
    directory: &OwnedFd,
    path: &mut PathBuf,
    depth: usize,
) -> Result<(), LayerError> {
    let failed = |path: &PathBuf, error: io::Error| LayerError::new(path, error);
    let (mut names, _) = names(directory, NAMES_MAX).map_err(|error| failed(path, error))?;
    names.sort();
    add_number(hasher, names.len() as u64);
    for name in names {
        path.push(&name);
        let stat = fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|error| failed(path, error.into()))?;
        add_node(hasher, directory, &name, &stat).map_err(|error| failed(path, error))?;
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            // Copies lie two below the layer's own directory.
            if depth > DEPTH_MAX + 2 {
                return Err(failed(path, io::Error::other("it lies too deep")));
            }
            let inner = open_directory(directory, &name).map_err(|error| failed(path, error))?;
            add_entries(hasher, &inner, path, depth + 1)?;
        }
        path.pop();
    }
    Ok(())
}

fn add_number(hasher: &mut Hasher, number: u64) {
    hasher.update(&number.to_le_bytes());
}

fn add_bytes(hasher: &mut Hasher, bytes: &[u8]) {
    add_number(hasher, bytes.len() as u64);
    hasher.update(bytes);
}

fn add_node(hasher: &mut Hasher, directory: &OwnedFd, name: &OsStr, stat: &Stat) -> io::Result<()> {
    add_bytes(hasher, name.as_bytes());
    let kind = FileType::from_raw_mode(stat.st_mode);
    let numbers = [stat.st_mode, stat.st_uid, stat.st_gid].map(u64::from);
    numbers.into_iter().chain([stat.st_rdev]).for_each(|number| add_number(hasher, number));
    let attributes = attributes::of(&attributes::at(directory, name))?;
    add_number(hasher, attributes.len() as u64);
    for (name, value) in attributes {
        add_bytes(hasher, &name);
        add_bytes(hasher, &value);
    }
    add_number(hasher, stat.st_mtime.cast_unsigned());
    add_number(hasher, stat.st_mtime_nsec);
    if kind.is_symlink() {
        add_bytes(hasher, fs::readlinkat(directory, name, Vec::new())?.as_bytes());
    } else if kind.is_file() {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(fs::openat(directory, name, flags, Mode::empty())?);
        hasher.update(digest::of(&file)?.as_bytes());
    }
    Ok(())
}
