//! Sandboxes on this host: their directories, the owners of these, and the remains of dead sandboxes.
//!
//! Two roots hold one directory a sandbox: the *state root* (on `/run`: `state.json`, the control socket) and the
//! *layer root* (on a disk: the layers of its file systems). In both, an owner holds a lock on the directory's `lock`
//! file as long as it lives; a directory whose lock is free belongs to nobody and is removed at the next start.
//!
//! Roots belong to the caller and nobody else may write them, or they are refused ([`vmm::directory`]). There is no
//! default in a directory that users share: another user could have made it first.

mod error;
mod id;
mod oci_state;
mod places;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use vmm::directory::Directory;

use crate::cgroup;
use crate::control::{self, Order, OrderError};
use crate::removal;
use crate::status::Status;
pub use error::StateError;
pub use id::Id;
pub use oci_state::{OCI_VERSION, OciState};

/// Its presence makes a directory a sandbox's; nothing else under the root is ours to remove.
const LOCK: &str = "dormouse.lock";
/// The lock's name until it is held: a lock of the proper name has been held from the beginning.
const NEW_LOCK: &str = ".dormouse.lock";
/// Guards creation and removal of directories below a root.
const ROOT_LOCK: &str = ".lock";
const STATE: &str = "state.json";
/// The boot records of the first process.
const PROCESS: &str = "process";
/// The limits of a container as they are now, and the lock of whoever changes them.
const LIMITS: &str = "limits.json";
const LIMITS_LOCK: &str = "limits.lock";
const START_LOCK: &str = "start.lock";
/// How often the lock of a VMM that ends is looked at.
const ENDING_STEP: Duration = Duration::from_millis(2);
/// A file that only a container's directory has: such a directory stays until it is deleted.
const RECORD: &str = "container.json";
/// All that a snapshot must say of a sandbox of `dormouse do`.
const COMMAND: &str = "command.json";

/// A directory that holds one directory a sandbox.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

/// A sandbox or container, and whether its VMM has answered.
#[derive(Clone, Debug)]
pub struct Seen {
    pub state: OciState,
    /// The VMM lives, and does not say what it does within the time that it has for that.
    pub is_silent: bool,
}

impl Seen {
    /// Nobody had to be asked, or the VMM has answered.
    fn known(state: OciState) -> Self {
        Self { state, is_silent: false }
    }

    fn state(self) -> OciState {
        self.state
    }
}

/// A sandbox's directory, owned by this process and those that share its lock.
#[derive(Debug)]
pub struct Claim {
    root: Directory,
    name: OsString,
    directory: Directory,
    lock: File,
    /// Remains of dead sandboxes that could not be removed.
    left: Vec<StateError>,
}

/// The directory of a dead sandbox, with its lock held.
struct Dead {
    name: OsString,
    directory: Directory,
    _lock: File,
}

impl Root {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The default place of state.
    pub fn default_state() -> Result<Self, StateError> {
        places::state().map(Self)
    }

    /// The default place of layers: on a disk, so that a sandbox's files do not take memory.
    pub fn default_layers() -> Result<Self, StateError> {
        places::layers().map(Self)
    }

    /// The default place of swap files where that is not the system's: a user's own.
    #[must_use]
    pub fn default_swap() -> Option<PathBuf> {
        places::swap_of_user()
    }

    /// The default place of snapshots: on a disk that outlives the host's start.
    pub fn default_snapshots() -> Result<PathBuf, StateError> {
        places::snapshots()
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn error(&self, source: io::Error) -> StateError {
        StateError::Root { path: self.0.clone(), source }
    }

    /// The directory itself; `None` while there is none.
    fn open(&self) -> Result<Option<Directory>, StateError> {
        match Directory::open(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            result => result.map(Some).map_err(|source| self.error(source)),
        }
    }

    /// Creates the directory of a new sandbox, and removes the remains of dead ones.
    pub fn claim(&self, id: &Id) -> Result<Claim, StateError> {
        let failed = |source| self.error(source);
        let root = Directory::make(&self.0).map_err(failed)?;
        let guard = guard(&root).map_err(failed)?;
        let name = OsString::from(id.as_str());
        let mut dead = dead(&root);
        // One whose groups still hold processes stays listed for the next start.
        dead.retain(|dead| cgroup::remove_listed(&dead.directory.path_by_descriptor()) || dead.name == name);
        let (same, others): (Vec<_>, Vec<_>) = dead.into_iter().partition(|dead| dead.name == name);
        // This process holds the lock, so a directory of this name that is free can be removed at once.
        same.iter().try_for_each(|dead| remove(&root, &dead.name, &dead.directory))?;
        drop(same);
        // A directory without a lock is left from a claim that was cut short; it is removed if it is empty.
        let _ = root.remove_directory(&name);
        let directory = match root.make_directory(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(StateError::InUse { id: id.as_str().to_owned() });
            }
            result => result.map_err(failed)?,
        };
        let lock = new_lock(&directory).map_err(|source| {
            let _ = remove(&root, &name, &directory);
            self.error(source)
        })?;
        drop(guard);
        let left = others.iter().filter_map(|dead| remove(&root, &dead.name, &dead.directory).err());
        let left = left.collect();
        Ok(Claim { root, name, directory, lock, left })
    }

    /// The directory of a sandbox that may live, or of a container.
    pub fn sandbox(&self, id: &Id) -> Result<Directory, StateError> {
        let unknown = || StateError::Unknown { id: id.as_str().to_owned() };
        match self.open()?.ok_or_else(unknown)?.directory(OsStr::new(id.as_str())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(unknown()),
            result => result.map_err(|source| StateError::Root { path: self.0.join(id.as_str()), source }),
        }
    }

    /// The record of a container.
    #[must_use]
    pub fn record<T: serde::de::DeserializeOwned>(&self, id: &Id) -> Option<T> {
        serde_json::from_slice(&self.sandbox(id).ok()?.read(RECORD).ok()?).ok()
    }

    /// The record of a sandbox of `dormouse do`.
    pub fn command<T: serde::de::DeserializeOwned>(&self, id: &Id) -> Option<T> {
        serde_json::from_slice(&self.sandbox(id).ok()?.read(COMMAND).ok()?).ok()
    }

    /// Whether it is a container's, made from a bundle.
    #[must_use]
    pub fn is_container(&self, id: &Id) -> bool {
        self.sandbox(id).is_ok_and(|sandbox| sandbox.has(RECORD))
    }

    /// The boot records of a sandbox's first process.
    pub fn process(&self, id: &Id) -> io::Result<Vec<u8>> {
        self.sandbox(id).map_err(io::Error::other)?.read(PROCESS)
    }

    /// The limits of a container as they are now; `None`: it is no container.
    #[must_use]
    pub fn limits<T: serde::de::DeserializeOwned>(&self, id: &Id) -> Option<T> {
        serde_json::from_slice(&self.sandbox(id).ok()?.read(LIMITS).ok()?).ok()
    }

    /// Writes the limits down after a change.
    pub fn write_limits(&self, id: &Id, limits: &impl Serialize) -> Result<(), StateError> {
        let written = serde_json::to_vec(limits).map_err(io::Error::from);
        let written =
            written.and_then(|limits| self.sandbox(id).map_err(io::Error::other)?.write(LIMITS, &limits));
        written.map_err(|source| self.error(source))
    }

    /// Held while limits are changed.
    pub fn lock_limits(&self, id: &Id) -> Result<File, StateError> {
        self.lock(id, LIMITS_LOCK)
    }

    /// Held while a container is started.
    pub fn lock_start(&self, id: &Id) -> Result<File, StateError> {
        self.lock(id, START_LOCK)
    }

    fn lock(&self, id: &Id, name: &str) -> Result<File, StateError> {
        let lock = self.sandbox(id)?.make_file(name).and_then(|lock| lock.lock().map(|()| lock));
        lock.map_err(|source| self.error(source))
    }

    /// Removes the directory of a container that has ended.
    pub fn remove(&self, id: &Id) -> Result<(), StateError> {
        let Some(root) = self.open()? else { return Ok(()) };
        let _guard = guard(&root).map_err(|source| self.error(source))?;
        match self.sandbox(id) {
            Err(StateError::Unknown { .. }) => Ok(()),
            sandbox => remove(&root, OsStr::new(id.as_str()), &sandbox?),
        }
    }

    /// The names of sandboxes and containers, among them such as have ended meanwhile.
    pub fn ids(&self) -> Result<Vec<Id>, StateError> {
        let Some(root) = self.open()? else { return Ok(Vec::new()) };
        let names = root.names().map_err(|source| self.error(source))?;
        let mut ids: Vec<_> = names.iter().filter_map(|name| Id::new(name.to_str()?).ok()).collect();
        ids.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        Ok(ids)
    }

    /// States of the sandboxes that live, and of containers that are not deleted, by ID.
    pub fn states(&self) -> Result<Vec<OciState>, StateError> {
        let Some(root) = self.open()? else { return Ok(Vec::new()) };
        let names = root.names().map_err(|source| self.error(source))?;
        let sandboxes = names.iter().filter_map(|name| root.directory(name).ok());
        let mut states: Vec<_> =
            sandboxes.filter_map(|sandbox| read_any(&sandbox)).map(Seen::state).collect();
        states.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(states)
    }

    /// The state of the container that has this pid now. Those that have written another are not asked.
    #[must_use]
    pub fn state_of_pid(&self, pid: i32) -> Option<OciState> {
        let root = self.open().ok()??;
        let written = |sandbox: &Directory| -> Option<OciState> {
            serde_json::from_slice(&sandbox.read(STATE).ok()?).ok()
        };
        let sandboxes = root.names().ok()?.into_iter().filter_map(|name| root.directory(&name).ok());
        let had_it = sandboxes.filter(|sandbox| written(sandbox).is_some_and(|state| state.pid == pid));
        // One that has ended has left its state.
        had_it.filter_map(|sandbox| read_any(&sandbox)).map(Seen::state).find(|state| state.pid == pid)
    }

    /// The state of one sandbox that lives, or of a container.
    pub fn state(&self, id: &Id) -> Result<OciState, StateError> {
        self.look(id, Instant::now() + control::PATIENCE).map(Seen::state)
    }

    /// The state, and whether it is the VMM's own word, if that comes until the deadline.
    pub fn look(&self, id: &Id, deadline: Instant) -> Result<Seen, StateError> {
        read_until(&self.sandbox(id)?, deadline)
            .ok_or_else(|| StateError::Unknown { id: id.as_str().to_owned() })
    }
}

impl Claim {
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Remains of dead sandboxes that could not be removed, and why.
    #[must_use]
    pub fn left(&self) -> &[StateError] {
        &self.left
    }

    /// Writes `state.json` so that a reader sees the old or the new one, never half of it.
    pub fn write_state(&self, state: &OciState) -> io::Result<()> {
        self.directory.write(STATE, &serde_json::to_vec(state)?)
    }

    /// The state that was written last.
    #[must_use]
    pub fn state(&self) -> Option<OciState> {
        serde_json::from_slice(&self.directory.read(STATE).ok()?).ok()
    }

    /// Writes the record, which makes the directory a container's.
    pub fn write_record(&self, record: &impl Serialize) -> io::Result<()> {
        self.directory.write(RECORD, &serde_json::to_vec(record)?)
    }

    /// Writes the record of a sandbox of `dormouse do`.
    pub fn write_command(&self, record: &impl Serialize) -> io::Result<()> {
        self.directory.write(COMMAND, &serde_json::to_vec(record)?)
    }

    /// Writes the boot records of its first process, for processes that `exec` adds later.
    pub fn write_process(&self, records: &[u8]) -> io::Result<()> {
        self.directory.write(PROCESS, records)
    }

    /// Writes the limits of a container, for those who change them later.
    pub fn write_limits(&self, limits: &impl Serialize) -> io::Result<()> {
        self.directory.write(LIMITS, &serde_json::to_vec(limits)?)
    }

    /// The lock, for a process that shares it.
    pub fn lock(&self) -> io::Result<std::os::fd::OwnedFd> {
        Ok(self.lock.try_clone()?.into())
    }

    /// Removes the directory with everything in it. Files that cannot be removed now are removed at the next start.
    pub fn remove(&self) -> Result<(), StateError> {
        remove(&self.root, &self.name, &self.directory)
    }
}

/// Held while directories below a root are made or removed.
fn guard(root: &Directory) -> io::Result<File> {
    let guard = root.make_file(ROOT_LOCK)?;
    guard.lock()?;
    Ok(guard)
}

/// The lock of a new sandbox, held.
fn new_lock(directory: &Directory) -> io::Result<File> {
    let lock = directory.make_file(NEW_LOCK)?;
    lock.try_lock()?;
    directory.rename(NEW_LOCK, LOCK)?;
    Ok(lock)
}

/// Directories of dead sandboxes, with their locks held. The root's guard is held.
fn dead(root: &Directory) -> Vec<Dead> {
    let names = root.names().unwrap_or_default().into_iter();
    let dead = names.filter_map(|name| {
        let directory = root.directory(&name).ok()?;
        // No sandbox's name begins with a dot.
        if name.as_encoded_bytes().starts_with(b".") || directory.has(RECORD) {
            return None;
        }
        // A process that makes a directory holds the guard meanwhile. This one holds it now, so the maker is dead.
        let _ = directory.rename(NEW_LOCK, LOCK);
        let Ok(lock) = directory.file(LOCK) else {
            // Whoever made it had no lock yet, or whoever removes it has none any more. Only an empty one goes.
            let _ = root.remove_directory(&name);
            return None;
        };
        lock.try_lock().ok()?;
        Some(Dead { name, directory, _lock: lock })
    });
    dead.collect()
}

/// A container's state: as it was written, with its VMM's answer added, or as one that has ended.
fn read_any(sandbox: &Directory) -> Option<Seen> {
    read_until(sandbox, Instant::now() + control::PATIENCE)
}

fn read_until(sandbox: &Directory, deadline: Instant) -> Option<Seen> {
    if !sandbox.has(RECORD) {
        return read_live(sandbox, deadline);
    }
    let state: OciState = serde_json::from_slice(&sandbox.read(STATE).ok()?).ok()?;
    let stopped = || OciState { status: Status::Stopped, pid: 0, ..state.clone() };
    let lock = sandbox.file(LOCK).ok()?;
    if lock.try_lock_shared().is_ok() {
        return Some(Seen::known(stopped()));
    }
    if state.status == Status::Creating {
        return Some(Seen::known(state));
    }
    match control::order_until(sandbox, Order::State, deadline) {
        Ok(answer) => Some(Seen::known(state.with(answer))),
        Err(error) if ends(sandbox, &lock, &error, deadline) => Some(Seen::known(stopped())),
        Err(error) => Some(Seen { is_silent: is_silence(&error), state }),
    }
}

/// Whether a VMM that did not answer has ended by the deadline. The host closes its socket some time before it lets go of its lock, and the
/// state that was written is of the container's beginning.
fn ends(sandbox: &Directory, lock: &File, error: &OrderError, deadline: Instant) -> bool {
    while lock.try_lock_shared().is_err() {
        if matches!(error, OrderError::Refused(_)) {
            return false;
        }
        if Instant::now() >= deadline {
            // With thousands of processes that end as well it may take long. One that hung up may hear nobody by now.
            return matches!(error, OrderError::Gone) || is_hang_up(error) && control::is_deaf(sandbox);
        }
        thread::sleep(ENDING_STEP);
    }
    true
}

/// Waits until a container has ended, but no longer than to the deadline. Its VMM may hang up some time before.
pub(crate) fn wait_for_end(sandbox: &Directory, deadline: Instant) {
    let Ok(lock) = sandbox.file(LOCK) else { return };
    // That of a sandbox of `dormouse do` is held by its command.
    while sandbox.has(RECORD) && lock.try_lock_shared().is_err() && Instant::now() < deadline {
        thread::sleep(ENDING_STEP);
    }
}

/// Whether it took the order, and hung up instead of an answer.
fn is_hang_up(error: &OrderError) -> bool {
    match error {
        OrderError::Ended => true,
        OrderError::Connection(error) => {
            matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
        }
        OrderError::Gone | OrderError::Refused(_) => false,
    }
}

/// Whether it is there and does not answer; one that ends, or says no, is not silent.
fn is_silence(error: &OrderError) -> bool {
    matches!(error, OrderError::Connection(error) if error.kind() != io::ErrorKind::NotFound)
}

fn read_live(sandbox: &Directory, deadline: Instant) -> Option<Seen> {
    let lock = sandbox.file(LOCK).ok()?;
    if lock.try_lock_shared().is_ok() {
        return None;
    }
    let state: OciState = serde_json::from_slice(&sandbox.read(STATE).ok()?).ok()?;
    match control::order_until(sandbox, Order::State, deadline) {
        Ok(answer) => Some(Seen::known(state.with(answer))),
        // It ended just now.
        Err(_) if lock.try_lock_shared().is_ok() => None,
        // Nobody listens yet where it is about to begin.
        Err(error) => Some(Seen { is_silent: state.status != Status::Creating && is_silence(&error), state }),
    }
}

/// Removes a sandbox's directory. The lock goes last: should this be cut short, the directory can still be told from
/// those of others.
fn remove(root: &Directory, name: &OsStr, directory: &Directory) -> Result<(), StateError> {
    let failed = |why: String| StateError::Left { path: directory.path().to_owned(), why };
    removal::empty(directory.as_fd(), LOCK).map_err(|left| failed(left.to_string()))?;
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error.to_string())),
        _ => Ok(()),
    };
    gone(directory.remove_file(LOCK))?;
    gone(root.remove_directory(name))
}

#[cfg(test)]
mod tests;
