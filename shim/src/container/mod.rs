//! A container: one sandbox, with what containerd knows of it.

mod create;
mod delete;
mod end;
mod exec;
mod process;
mod start;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use oci_spec::runtime::LinuxResources;
use runtime::cgroup::Groups;
use runtime::orders::OomKills;
use runtime::state::{Id, Root};

pub use create::create;
pub use process::{Process, Stage};

use crate::cgroup::Source;
use crate::cgroup::oom::{GroupWatch, OomWatch};
use crate::dormouse::Dormouse;
use crate::events::Publisher;
use crate::failure::{Failure, Result};
use crate::reaper::Reaper;
use crate::streams::Streams;

/// The surroundings that all containers of a shim have in common.
#[derive(Debug)]
pub struct Surroundings {
    pub namespace: String,
    pub reaper: Reaper,
    pub publisher: Publisher,
}

/// See the module.
#[derive(Debug)]
pub struct Container {
    pub id: String,
    pub bundle: PathBuf,
    /// Mounts of its root file system lie here, if the shim has made any.
    rootfs: PathBuf,
    dormouse: Dormouse,
    root: Root,
    sandbox: Id,
    /// Hooks run as children, which only a command may wait for.
    has_hooks: bool,
    pub groups: Groups,
    /// It shares the sandbox of a pod that it did not begin.
    is_further: bool,
    /// Held by whoever starts, changes or deletes something.
    changing: Mutex<()>,
    processes: Mutex<Processes>,
    files: AtomicU64,
}

/// The processes of a container.
#[derive(Debug)]
pub struct Processes {
    pub init: Process,
    pub execs: BTreeMap<String, Process>,
    /// By order of containerd.
    pub is_paused: bool,
    /// The first process has ended with this wait status; told once the others' ends are.
    held_end: Option<i32>,
    /// Processes that are to be started, until then.
    specs: BTreeMap<String, Vec<u8>>,
}

impl Processes {
    /// The process of that ID; an empty one: the first.
    pub fn find(&mut self, exec: &str) -> Result<&mut Process> {
        if exec.is_empty() {
            return Ok(&mut self.init);
        }
        let missing = || Failure::not_found(format!("process does not exist {exec}: not found"));
        self.execs.get_mut(exec).ok_or_else(missing)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Container {
    pub fn processes(&self) -> MutexGuard<'_, Processes> {
        lock(&self.processes)
    }

    pub fn change(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
    }

    /// A file name that no other command of this container has.
    fn file(&self, kind: &str) -> String {
        format!("{kind}-{}", self.files.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs a command of `dormouse` that concerns this container.
    fn command(&self, arguments: &[&str], reaper: &Reaper) -> std::result::Result<(), String> {
        self.dormouse.run(arguments, &self.file("log"), &mut Streams::default(), reaper)
    }

    /// Stops or continues all processes.
    pub fn set_paused(&self, pause: bool, reaper: &Reaper) -> Result<()> {
        let _change = self.change();
        {
            let processes = self.processes();
            let deed = if pause { "pause" } else { "resume" };
            processes.init.must_be(Stage::Running, deed)?;
            if processes.is_paused == pause {
                let is = if pause { "paused" } else { "running" };
                return Err(Failure::precondition(format!("cannot {deed} a {is} container")));
            }
        }
        let command = if pause { "pause" } else { "resume" };
        self.command(&[command, self.sandbox.as_str()], reaper)
            .map_err(|why| Failure::other(format!("OCI runtime {command} failed: {why}")))?;
        self.processes().is_paused = pause;
        Ok(())
    }

    /// Changes limits; `resources` is JSON, as in a bundle.
    pub fn update(&self, resources: &[u8], reaper: &Reaper) -> Result<()> {
        let _change = self.change();
        if self.processes().init.stage == Stage::Stopped {
            return Err(Failure::precondition("cannot update a stopped container: container not running"));
        }
        let change: LinuxResources = serde_json::from_slice(resources)
            .map_err(|error| Failure::invalid(format!("cannot read the resources to change: {error}")))?;
        let result = if self.dormouse.has_scopes() {
            self.update_by_command(resources, reaper)
        } else {
            let updated = runtime::orders::update(&self.root, &self.sandbox, &change);
            updated.map_err(|error| error.to_string())
        };
        result.map_err(|why| Failure::other(format!("OCI runtime update failed: {why}")))
    }

    /// Who speaks to systemd leaks a descriptor each time, and may end with the process.
    fn update_by_command(&self, resources: &[u8], reaper: &Reaper) -> std::result::Result<(), String> {
        let file = self.bundle.join(self.file("update"));
        std::fs::write(&file, resources).map_err(|error| error.to_string())?;
        let path = file.to_string_lossy();
        let result = self.command(&["update", "--resources", &path, self.sandbox.as_str()], reaper);
        let _ = std::fs::remove_file(&file);
        result
    }

    /// Sends a signal to a process, or to all of them.
    pub fn kill(&self, exec: &str, signal: i32, all: bool) -> Result<()> {
        {
            let mut processes = self.processes();
            let process = processes.find(exec)?;
            let is_created = process.stage == Stage::Created || process.pid == 0;
            match process.stage {
                Stage::Stopped => return Err(Failure::not_found("process already finished: not found")),
                _ if exec.is_empty() => {}
                _ if is_created => return Err(Failure::precondition("process not created")),
                _ => {
                    process.signal(signal);
                    return Ok(());
                }
            }
        }
        runtime::container::kill(&self.root, &self.sandbox, signal, all)
            .map_err(|error| crate::failure::of_kill(error.to_string()))
    }

    /// Who says that a process in it was killed for lack of memory.
    #[must_use]
    pub fn oom_watches(&self) -> Vec<OomWatch> {
        let group = GroupWatch::new(&self.groups).map(OomWatch::Group);
        let guest = OomKills::of(&self.root, &self.sandbox).map(OomWatch::Guest);
        group.into_iter().chain(guest).collect()
    }

    /// Where the figures of its metrics come from.
    pub fn source_of_metrics(&self) -> Source {
        if self.processes().init.stage != Stage::Running {
            return Source::Groups { hibernated_bytes: 0 };
        }
        if self.is_further {
            return Source::Kernel(runtime::orders::usage(&self.root, &self.sandbox).unwrap_or_default());
        }
        let stats = runtime::orders::stats(&self.root, &self.sandbox);
        Source::Groups { hibernated_bytes: stats.map_or(0, |stats| stats.memory.swapped_bytes) }
    }
}
