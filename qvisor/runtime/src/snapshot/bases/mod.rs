//! Snapshots whose pages are held in memory, for all sandboxes that begin with them.
//!
//! A keeper, a small process of its own, has the pages, their table and an index of them in sealed memory files, and gives whoever of this
//! user connects descriptors of these that are open for reading only ([`keeper`]). It has nothing else, knows no sandbox, and is ended by an
//! order over its socket, or by any signal. Whoever has got the files keeps them: a base goes with its keeper and the last sandbox that uses it.
//!
//! The files are written from the snapshot's own, each page with its checksum compared ([`filling`]), so a snapshot that is packed, or has
//! pages of others, is held as one that is neither.

mod filling;
mod keeper;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use abi::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use vmm::checkpoint::FileId;
use vmm::directory::Directory;
use vmm::sealed_file::is_sealed;
use vmm::{descriptor_passing, process};

use self::keeper::{Keeper, RELEASE, TAKE};
use super::error::{SnapshotError, Unfit};
use super::place::Place;
use super::socket::DigestSocket;
use super::store::{Opened, Store};
use crate::state::Root;

/// The directory of keepers' sockets in that of the sandboxes' state. No sandbox's name begins with a dot.
const PLACE: &str = ".bases";
/// How long a keeper may take to answer, and to end.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long one that somebody else has begun may take to be ready, and how often it is looked at.
const BEGUN_PATIENCE: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(5);
/// Most bytes of an answer: the path of a snapshot is in it.
const ANSWER_MAX: usize = 16 << 10;
/// The part of the host's free memory that is left to others.
const LEFT_PART: u64 = 8;
/// Files of a base.
const FILES: usize = 3;

/// A snapshot's pages in memory. The files are sealed, and open for reading only.
#[derive(Debug)]
pub struct Held {
    /// Page *n* at *n* × 4096, with holes where there is none.
    pub pages: File,
    /// The table of them, as that of a snapshot that has all of its pages itself, each in one place.
    pub table: File,
    /// The index of them, which only hints; empty if there is none.
    pub index: File,
    of: HeldOf,
}

/// The snapshot that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HeldOf {
    /// The name by which it was held, or its directory.
    name: String,
    /// The digest of its manifest, in words.
    digest: String,
}

impl Held {
    /// The files once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        let (pages, table) = (self.pages.try_clone()?, self.table.try_clone()?);
        Ok(Self { pages, table, index: self.index.try_clone()?, of: self.of.clone() })
    }

    /// The name by which the snapshot was held, or its directory. There may be another snapshot there now.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.of.name
    }

    /// The digest of the snapshot's manifest, in words.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.of.digest
    }

    /// Bytes of memory that its pages take up.
    pub fn pages_bytes(&self) -> io::Result<u64> {
        memory_bytes(&self.pages)
    }

    /// Bytes of memory that its index takes up.
    pub fn index_bytes(&self) -> io::Result<u64> {
        memory_bytes(&self.index)
    }

    /// Asks a keeper for its files; `None`: there is none, or it is just ending.
    fn take(socket: &DigestSocket) -> io::Result<Option<Self>> {
        let Some(connection) = connect(socket)? else { return Ok(None) };
        if !process::send_now(&connection, &[TAKE]) {
            return Ok(None);
        }
        if !process::wait_readable([connection.as_raw_fd()], milliseconds(PATIENCE))[0] {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its keeper does not answer"));
        }
        let (mut answer, mut files) = (vec![0; ANSWER_MAX], Vec::new());
        let received = descriptor_passing::receive_now(&connection, &mut answer, &mut files);
        let len = received.map_or(0, |received| received.len);
        if len == 0 {
            return Ok(None);
        }
        let other = || io::Error::new(io::ErrorKind::InvalidData, "its keeper answers something else");
        let of: HeldOf =
            serde_json::from_slice(answer.get(..len).unwrap_or_default()).map_err(|_| other())?;
        let files: Vec<File> = files.into_iter().map(File::from).filter(is_sealed).collect();
        let [pages, table, index]: [File; FILES] = files.try_into().map_err(|_| other())?;
        Ok(Some(Self { pages, table, index, of }))
    }
}

/// Bytes of memory that a memory file takes up.
fn memory_bytes(file: &File) -> io::Result<u64> {
    const BLOCK_BYTES: u64 = 512;
    Ok(file.metadata()?.blocks() * BLOCK_BYTES)
}

/// A connection to a keeper, if it is there.
fn connect(socket: &DigestSocket) -> io::Result<Option<UnixStream>> {
    match socket.connect(PATIENCE) {
        Ok(connection) => Ok(Some(connection)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

/// The directory of keepers' sockets, if there is one.
fn directory_of(root: &Root) -> io::Result<Option<Directory>> {
    match Directory::open(&root.path().join(PLACE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        directory => directory.map(Some),
    }
}

/// All snapshots that are held, by name. One whose keeper does not answer is left out.
pub fn all(root: &Root) -> io::Result<Vec<Held>> {
    let Some(directory) = directory_of(root)? else { return Ok(Vec::new()) };
    let sockets = DigestSocket::all_in(&directory)?;
    let mut all: Vec<_> = sockets.iter().filter_map(|socket| Held::take(socket).ok().flatten()).collect();
    all.sort_by(|a, b| (a.name(), a.digest()).cmp(&(b.name(), b.digest())));
    Ok(all)
}

/// Ends the keeper of a snapshot that is held. Sandboxes that use its files go on.
pub fn release(root: &Root, held: &Held) -> io::Result<()> {
    let Some(directory) = directory_of(root)? else { return Ok(()) };
    let socket = DigestSocket::of(directory, held.digest());
    let Some(mut connection) = connect(&socket)? else { return Ok(()) };
    if process::send_now(&connection, &[RELEASE]) {
        connection.set_read_timeout(Some(PATIENCE))?;
        // Its end is the answer.
        io::copy(&mut connection, &mut io::sink())?;
    }
    Ok(())
}

/// How a snapshot came to be held.
#[derive(Debug)]
pub struct Holding {
    pub held: Held,
    /// It was held before.
    pub was_held: bool,
}

impl Store {
    /// Holds a snapshot's pages in memory, by this name or directory of its, until it is released. This process has one thread.
    pub fn hold_base(&self, root: &Root, place: &Place) -> Result<Holding, SnapshotError> {
        let failed = |source| SnapshotError::Hold { place: place.clone(), source };
        let manifest = self.inspect(place)?;
        if manifest.files.sealed.is_some() {
            return Err(Unfit::HeldSealed.at(place));
        }
        let digest = manifest.digest().map_err(|why| why.at(place))?.to_hex().to_string();
        let directory = Directory::make(&root.path().join(PLACE)).map_err(failed)?;
        let socket = DigestSocket::of(directory, &digest);
        let lock = match lock_or_take(&socket).map_err(failed)? {
            Ok(lock) => lock,
            Err(held) => return Ok(Holding { held, was_held: true }),
        };
        check_room(manifest.head.pages.saturating_mul(PAGE_SIZE)).map_err(failed)?;
        let of = HeldOf { name: place.to_string(), digest };
        // It is forked before anything is read: it stays as small as this process is now.
        let keeper = Keeper::fork(socket, lock, &of).map_err(failed)?;
        let (pages, table, index) = self.fill_base(place, &of.digest)?;
        let held = Held { pages, table, index, of };
        keeper.begin(&held).map_err(failed)?;
        Ok(Holding { held, was_held: false })
    }

    /// The pages of a snapshot in memory, if it is held; also of one that a sandbox does not begin with.
    pub fn held_base(&self, root: &Root, place: &Place) -> Result<Option<Held>, SnapshotError> {
        let failed = |source| SnapshotError::Held { place: place.clone(), source };
        let Some(directory) = directory_of(root).map_err(failed)? else { return Ok(None) };
        let digest = self.digest(place)?;
        held_in(directory, &digest).map_err(failed)
    }
}

/// The files of the snapshot with this digest, if it is held.
fn held_in(directory: Directory, digest: &str) -> io::Result<Option<Held>> {
    let held = Held::take(&DigestSocket::of(directory, digest))?;
    Ok(held.filter(|held| held.digest() == digest))
}

/// Refuses to take memory that the host has not free, and leaves some to others.
fn check_room(bytes: u64) -> io::Result<()> {
    let free = process::available_memory().unwrap_or_else(process::host_memory);
    if bytes <= free - free / LEFT_PART {
        return Ok(());
    }
    let why = format!(
        "its pages are {bytes} bytes, and the host has {free} free, of which it keeps an eighth; free some"
    );
    Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
}

/// The lock of a keeper, or the files of the one that has it.
fn lock_or_take(socket: &DigestSocket) -> io::Result<Result<File, Held>> {
    let deadline = Instant::now() + BEGUN_PATIENCE;
    loop {
        if let Some(lock) = socket.lock()? {
            return Ok(Ok(lock));
        }
        if let Some(held) = Held::take(socket)? {
            return Ok(Err(held));
        }
        if Instant::now() >= deadline {
            let why = "somebody else has begun to, and does not come to an end";
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        thread::sleep(STEP);
    }
}

impl Opened {
    /// Has what begins with it take its pages from memory, if they are held there. If the keeper cannot be asked, `warn` is told, and the files
    /// on the disk serve.
    pub fn take_held(&mut self, root: &Root, warn: fn(&str)) {
        if self.page_key.is_some() {
            return;
        }
        let take = || -> Result<Option<Held>, String> {
            let Some(directory) = directory_of(root).map_err(|error| error.to_string())? else {
                return Ok(None);
            };
            let digest = self.digest().map_err(|error| error.to_string())?;
            held_in(directory, &digest).map_err(|error| error.to_string())
        };
        match take() {
            Ok(held) => self.held = held,
            Err(why) => warn(&format!("what is held of snapshot {} is not used: {why}", self.place)),
        }
    }

    /// Its pages in memory, if they are held there.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Its pages in memory, if what begins with it and maps this file of pages, or none, is to have them from there.
    #[must_use]
    pub(super) fn held_for(&self, template: Option<&File>) -> Option<&Held> {
        let is_same = |template: &File, held: &Held| {
            FileId::of(template).is_ok_and(|id| FileId::of(&held.pages).is_ok_and(|held| held == id))
        };
        // A domain has a file of its own.
        self.held.as_ref().filter(|held| template.is_none_or(|template| is_same(template, held)))
    }

    /// The digest of the snapshot whose held pages these are, if [`Self::held_for`] has any.
    pub(crate) fn base_used(&self, template: Option<&File>) -> Option<&str> {
        self.held_for(template).map(Held::digest)
    }
}

/// Whether a name by which a snapshot was held is that of another one, or of none, by now.
#[must_use]
pub fn is_former(store: &Store, held: &Held) -> bool {
    let place = if held.name().starts_with('/') {
        Ok(Place::Directory(OsStr::new(held.name()).into()))
    } else {
        Place::named(held.name())
    };
    !place.and_then(|place| store.digest(&place)).is_ok_and(|digest| digest == held.digest())
}
