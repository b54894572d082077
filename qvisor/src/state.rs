//! Sandboxes on this host: who exists, who owns which directory, and what dead ones left behind.
//!
//! Two roots hold one directory a sandbox: the *state root* (on `/run`: `state.json`, the control socket) and the
//! *layer root* (on a disk: the layers of its file systems). In both, an owner holds a lock on the directory's `lock`
//! file as long as it lives; a directory whose lock is free belongs to nobody and is removed at the next start.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::control::{self, Answer, Order};

/// Version of the OCI runtime specification that `state` speaks.
pub const OCI_VERSION: &str = "1.2.0";
/// Its presence makes a directory a sandbox's; nothing else under the root is ours to remove.
const LOCK: &str = "dormouse.lock";
/// Guards creation and removal of directories below a root.
const ROOT_LOCK: &str = ".lock";
const STATE: &str = "state.json";
/// What the first process is made of.
const PROCESS: &str = "process";
/// What a container's directory has and others have not: it stays until it is deleted.
const RECORD: &str = "container.json";

/// Why a sandbox could not be registered or found.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(
        "cannot use {id:?} as a sandbox's ID: only letters, digits, '_', '.' and '-' are allowed, 1 to 64 of them"
    )]
    BadId { id: String },
    #[error("cannot start sandbox {id}: a sandbox with this ID exists; choose another --id, or end that one")]
    InUse { id: String },
    #[error("cannot find sandbox {id}: no such sandbox; see dormouse list")]
    Unknown { id: String },
    #[error("cannot use directory {path}: {source}; pass a writable --root or free some space")]
    Root { path: PathBuf, source: io::Error },
}

/// A name for a sandbox that is safe as a file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id(String);

impl Id {
    /// Checks a name.
    pub fn new(text: &str) -> Result<Self, StateError> {
        let known = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        let dots = text.starts_with('.');
        if text.is_empty() || text.len() > 64 || !text.chars().all(known) || dots {
            return Err(StateError::BadId { id: text.chars().take(80).collect() });
        }
        Ok(Self(text.to_owned()))
    }

    /// A short name that no other sandbox is likely to have.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0_u8; 6];
        let read =
            File::open("/dev/urandom").and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes));
        if read.is_err() {
            bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
        }
        Self(bytes.iter().map(|b| format!("{b:02x}")).collect())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What `dormouse state` shows: the state of the OCI runtime specification.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub oci_version: String,
    pub id: String,
    pub status: Status,
    pub pid: i32,
    pub bundle: PathBuf,
    pub annotations: std::collections::BTreeMap<String, String>,
    /// Of a sandbox whose first process runs; Dormouse's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_state: Option<SandboxState>,
    /// Why its last hibernation failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hibernate_error: Option<String>,
}

impl State {
    /// With what its VMM says meanwhile.
    fn with(self, answer: Answer) -> Self {
        let Answer { status, sandbox_state, hibernate_error, .. } = answer;
        Self { status: status.unwrap_or(self.status), sandbox_state, hibernate_error, ..self }
    }
}

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Creating,
    Created,
    Running,
    /// Stopped where it stands; its memory stays where it is.
    Paused,
    Stopped,
}

/// What a sandbox does, and where its memory is (Hibernate Container, section 3.1).
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxState {
    /// All of its memory is there, and no processor has anything to do.
    Warm,
    /// All of its memory is there, and it works.
    Running,
    /// Its memory is in its home.
    Hibernated,
    /// It was woken and works; its memory comes back as it is used.
    HibernateRunning,
    /// It was woken, and no processor has anything to do.
    WokenUp,
}

impl SandboxState {
    /// The same with a processor at work.
    #[must_use]
    pub fn when_busy(self) -> Self {
        match self {
            Self::Warm => Self::Running,
            Self::WokenUp => Self::HibernateRunning,
            other => other,
        }
    }
}

impl std::fmt::Display for SandboxState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Warm => "warm",
            Self::Running => "running",
            Self::Hibernated => "hibernated",
            Self::HibernateRunning => "hibernate-running",
            Self::WokenUp => "woken-up",
        })
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Creating => "creating",
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        })
    }
}

/// A directory that holds one directory a sandbox.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

/// A sandbox's directory, owned by this process and those that share its lock.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    lock: File,
}

impl Root {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Where state lives when nothing else is asked for.
    #[must_use]
    pub fn default_state() -> Self {
        if crate::process::effective_user() == 0 {
            return Self("/run/dormouse".into());
        }
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(dir) if !dir.is_empty() => Self(Path::new(&dir).join("dormouse")),
            _ => Self(format!("/tmp/dormouse-{}", crate::process::effective_user()).into()),
        }
    }

    /// Where layers live: on a disk, so that what a sandbox writes does not eat memory.
    #[must_use]
    pub fn default_layers() -> Self {
        if let Some(dir) = std::env::var_os("DORMOUSE_LAYERS").filter(|dir| !dir.is_empty()) {
            return Self(dir.into());
        }
        if crate::process::effective_user() == 0 {
            return Self("/var/lib/dormouse".into());
        }
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state"));
        let state =
            std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from).or_else(home);
        state.map_or_else(|| Self("/var/tmp/dormouse".into()), |dir| Self(dir.join("dormouse")))
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn error(&self, source: io::Error) -> StateError {
        StateError::Root { path: self.0.clone(), source }
    }

    /// Creates the directory of a new sandbox, and removes what dead ones left.
    pub fn claim(&self, id: &Id) -> Result<Claim, StateError> {
        let guard = self.guard().map_err(|source| self.error(source))?;
        let stale = self.stale();
        stale.iter().for_each(|(_lock, old)| crate::oci::cgroup::remove_listed(old));
        let path = self.0.join(id.as_str());
        // Held by us now, so a directory of this name that is free can go at once.
        if let Some((lock, old)) = stale.iter().find(|(_, old)| *old == path) {
            remove(old).map_err(|source| self.error(source))?;
            let _ = lock;
        }
        // One without a lock was left before it got one; it goes if it is empty.
        let _ = fs::remove_dir(&path);
        match private_dir().create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(StateError::InUse { id: id.as_str().to_owned() });
            }
            result => result.map_err(|source| self.error(source))?,
        }
        let claim =
            lock_file(&path, true).and_then(|lock| lock.try_lock().map(|()| lock).map_err(Into::into));
        let lock = claim.map_err(|source| {
            let _ = fs::remove_dir_all(&path);
            self.error(source)
        })?;
        drop(guard);
        for (_lock, old) in stale.iter().filter(|(_, old)| *old != path) {
            let _ = remove(old);
        }
        Ok(Claim { path, lock })
    }

    /// Directories of dead sandboxes, with their locks held.
    fn stale(&self) -> Vec<(File, PathBuf)> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let free =
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).filter_map(|entry| {
                // No sandbox's name begins with a dot.
                let is_ours = entry.file_name().as_encoded_bytes().starts_with(b".");
                if is_ours || entry.path().join(RECORD).exists() {
                    return None;
                }
                let lock = lock_file(&entry.path(), false).ok()?;
                lock.try_lock().ok()?;
                Some((lock, entry.path()))
            });
        free.collect()
    }

    fn guard(&self) -> io::Result<File> {
        private_dir().recursive(true).create(&self.0)?;
        let guard = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.0.join(ROOT_LOCK))?;
        guard.lock()?;
        Ok(guard)
    }

    /// Where a sandbox's state is, whether or not it exists.
    #[must_use]
    pub fn directory(&self, id: &Id) -> PathBuf {
        self.0.join(id.as_str())
    }

    /// The record of a container.
    #[must_use]
    pub fn record<T: serde::de::DeserializeOwned>(&self, id: &Id) -> Option<T> {
        serde_json::from_slice(&fs::read(self.directory(id).join(RECORD)).ok()?).ok()
    }

    /// Whether it is a container's, made from a bundle.
    #[must_use]
    pub fn is_container(&self, id: &Id) -> bool {
        self.directory(id).join(RECORD).exists()
    }

    /// What a sandbox's first process was made of, as boot records.
    pub fn process(&self, id: &Id) -> io::Result<Vec<u8>> {
        fs::read(self.directory(id).join(PROCESS))
    }

    /// Removes the directory of a container that has ended.
    pub fn remove(&self, id: &Id) -> Result<(), StateError> {
        let _guard = self.guard().map_err(|source| self.error(source))?;
        remove(&self.directory(id)).map_err(|source| self.error(source))
    }

    /// States of the sandboxes that live, and of containers that are not deleted, by ID.
    #[must_use]
    pub fn states(&self) -> Vec<State> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut states: Vec<_> = entries.filter_map(|entry| read_any(&entry.path())).collect();
        states.sort_by(|a, b| a.id.cmp(&b.id));
        states
    }

    /// The state of one sandbox that lives, or of a container.
    pub fn state(&self, id: &Id) -> Result<State, StateError> {
        read_any(&self.directory(id)).ok_or_else(|| StateError::Unknown { id: id.as_str().to_owned() })
    }
}

impl Claim {
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `state.json` so that a reader sees the old or the new one, never half of it.
    pub fn write_state(&self, state: &State) -> io::Result<()> {
        let fresh = self.path.join(".state.json");
        fs::write(&fresh, serde_json::to_vec(state)?)?;
        fs::rename(fresh, self.path.join(STATE))
    }

    /// Writes what makes it a container's directory.
    pub fn write_record(&self, record: &impl Serialize) -> io::Result<()> {
        let fresh = self.path.join(".container.json");
        fs::write(&fresh, serde_json::to_vec(record)?)?;
        fs::rename(fresh, self.path.join(RECORD))
    }

    /// Writes what its first process is made of, for those that come in later.
    pub fn write_process(&self, records: &[u8]) -> io::Result<()> {
        fs::write(self.path.join(PROCESS), records)
    }

    /// The lock, for a process that shares it.
    pub fn lock(&self) -> io::Result<std::os::fd::OwnedFd> {
        Ok(self.lock.try_clone()?.into())
    }

    /// Removes the directory with everything in it.
    pub fn remove(&self) {
        let _ = remove(&self.path);
    }
}

fn private_dir() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

fn lock_file(dir: &Path, create: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(dir.join(LOCK))
}

/// A container's state: what was written, what its VMM says meanwhile, or that it has ended.
fn read_any(dir: &Path) -> Option<State> {
    if !dir.join(RECORD).exists() {
        return read_live(dir);
    }
    let state: State = serde_json::from_slice(&fs::read(dir.join(STATE)).ok()?).ok()?;
    let stopped = || State { status: Status::Stopped, pid: 0, ..state.clone() };
    if lock_file(dir, false).ok()?.try_lock_shared().is_ok() {
        return Some(stopped());
    }
    if state.status == Status::Creating {
        return Some(state);
    }
    match control::order(dir, Order::State) {
        Ok(answer) => Some(state.with(answer)),
        // It ended just now.
        Err(_) if lock_file(dir, false).ok()?.try_lock_shared().is_ok() => Some(stopped()),
        Err(_) => Some(state),
    }
}

fn read_live(dir: &Path) -> Option<State> {
    let lock = lock_file(dir, false).ok()?;
    if lock.try_lock_shared().is_ok() {
        return None;
    }
    let state: State = serde_json::from_slice(&fs::read(dir.join(STATE)).ok()?).ok()?;
    // One that does not answer is about to begin, or to end.
    Some(match control::order(dir, Order::State) {
        Ok(answer) => state.with(answer),
        Err(_) => state,
    })
}

/// Removes a tree, also below directories whose mode forbids it; links are not followed.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path);
            fs::remove_dir_all(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn open_up(path: &Path) {
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostcall::testing::TempDir;

    fn state(id: &Id) -> State {
        State {
            oci_version: OCI_VERSION.into(),
            id: id.as_str().into(),
            status: Status::Running,
            pid: 1,
            bundle: "/".into(),
            annotations: std::collections::BTreeMap::new(),
            sandbox_state: None,
            hibernate_error: None,
        }
    }

    #[test]
    fn ids_are_file_names() {
        for good in ["a", "web-1", "A.b_c-9", &"x".repeat(64)] {
            assert!(Id::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".lock", "a/b", "a b", "é", "a\n", &"x".repeat(65)] {
            assert!(Id::new(bad).is_err(), "{bad}");
        }
        assert!(Id::new(Id::random().as_str()).is_ok());
    }

    #[test]
    fn directories_of_others_stay() {
        let dir = TempDir::new();
        let root = Root::new(dir.path().to_owned());
        for (name, file) in [("theirs", "state.json"), ("precious", "lock"), ("dead", LOCK)] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join(file), "").unwrap();
        }
        fs::create_dir(dir.path().join("begun")).unwrap();
        root.claim(&Id::new("begun").unwrap()).unwrap();
        assert!(matches!(root.claim(&Id::new("theirs").unwrap()), Err(StateError::InUse { .. })));
        assert!(dir.path().join("theirs/state.json").exists() && dir.path().join("precious/lock").exists());
        assert!(!dir.path().join("dead").exists());
    }

    #[test]
    fn an_id_is_claimed_once() {
        let dir = TempDir::new();
        let root = Root::new(dir.path().join("deep/root"));
        let id = Id::new("one").unwrap();
        let claim = root.claim(&id).unwrap();
        assert!(matches!(root.claim(&id), Err(StateError::InUse { .. })));
        assert!(root.states().is_empty(), "no state yet");
        claim.write_state(&state(&id)).unwrap();
        assert_eq!(root.state(&id).unwrap(), state(&id));
        assert_eq!(fs::metadata(claim.path()).unwrap().permissions().mode() & 0o777, 0o700);
        claim.remove();
        assert!(root.state(&id).is_err());
        assert!(root.claim(&id).is_ok());
    }

    #[test]
    fn what_the_dead_left_goes_at_the_next_start() {
        let dir = TempDir::new();
        let root = Root::new(dir.path().to_owned());
        let (dead, live) = (Id::new("dead").unwrap(), Id::new("live").unwrap());
        let claim = root.claim(&dead).unwrap();
        claim.write_state(&state(&dead)).unwrap();
        fs::create_dir_all(claim.path().join("0/work/work")).unwrap();
        fs::set_permissions(claim.path().join("0/work/work"), fs::Permissions::from_mode(0o000)).unwrap();
        drop(claim);
        assert!(root.state(&dead).is_err(), "its lock is free");
        let _live = root.claim(&live).unwrap();
        assert!(!dir.path().join("dead").exists());
        assert!(root.claim(&dead).is_ok());
    }
}
