//! The control groups of a sandbox: made before its VMM starts, joined by it, removed with it.
//!
//! The sandbox's kernel enforces the container's own limits; the groups get them with headroom for the VMM, so that they
//! are a second line, and account for everything.
//!
//! Groups of paths are made and limited by code of our own, scopes of systemd's by the crate `libcgroups` ([`systemd`]). Its
//! managers for paths do not carry what is needed here: a process joins by its number, where the VMM joins by a descriptor
//! that it was given; a relative path is below the mount, and not below the caller's group; they do not say which
//! directories they made, so that parents stay, and nothing can be written down for the clean-up after a crash; they add no
//! headroom; a command's groups may do without a limit that cannot be set.

mod block_io;
mod controllers;
mod error;
pub mod files;
mod hierarchy;
mod limits;
mod members;
mod removal;
mod subgroups;
mod systemd;
mod update;
mod usage;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use vmm::process;

pub use self::controllers::Groups;
pub use self::error::CgroupError;
use self::hierarchy::{Hierarchy, find_hierarchies, hierarchies};
use self::limits::Limits;
pub use self::members::members_beside;
pub use self::removal::{remove, remove_listed, write_list};
pub use self::subgroups::{Subgroup, enter, find_subgroups, parse_subgroups};
pub use self::systemd::Holder;
use self::systemd::Scope;
pub use self::update::update;
pub use self::usage::{BlockUsage, CpuUsage, MemoryCount, MemoryUsage, PidsUsage, Usage, groups_of, usage};
use crate::resources::{Cpu, Resources};

/// Controllers of version 2 that are switched on for it.
const ENABLED: &[&str] = &["memory", "cpu", "cpuset", "pids", "io"];

/// The groups of one sandbox.
#[derive(Debug, Default)]
pub struct Cgroups {
    /// Directories that were made, parents first; after its directory a scope of systemd's by its name.
    made: Vec<PathBuf>,
    /// The file of each group that takes who joins.
    entrances: Vec<File>,
    /// Who keeps systemd's scope alive until somebody joins it.
    holder: Option<Holder>,
    /// One of them limits processes.
    counts_processes: bool,
}

impl Cgroups {
    /// Has systemd make a scope, and sets its limits. `path` is `linux.cgroupsPath`, in the form `slice:prefix:name`. Forks,
    /// so no other thread may run yet.
    pub fn make_scope(
        path: Option<&Path>,
        id: &str,
        resources: &Resources,
        memory_bytes: u64,
        cpus: u32,
    ) -> Result<Self, CgroupError> {
        let mut scope = Scope::of(path, id)?;
        let hierarchies = hierarchies();
        let one = hierarchies.first().ok_or(CgroupError::NotMounted)?;
        if !one.controllers.is_empty() {
            return Err(CgroupError::NotUnified);
        }
        let limits = Limits { resources, memory_bytes, cpus };
        let (group, holder) = scope.start(&one.mount, id, &limits)?;
        let directory = one.mount.join(group);
        let made = vec![directory.clone(), scope.entry()];
        let mut groups = Self { made, holder: Some(holder), ..Self::default() };
        let resources = &resources.without_weight();
        let limited = Limits { resources, ..limits }.set_v2(&directory);
        let entered = limited.and_then(|()| groups.add_entrance(one, &directory, resources));
        entered.inspect_err(|_| groups.undo()).map(|()| groups)
    }

    /// Makes the groups and sets their limits. `path` is `linux.cgroupsPath`, taken for a path whatever it looks like.
    pub fn make(
        path: Option<&Path>,
        id: &str,
        resources: &Resources,
        memory_bytes: u64,
        cpus: u32,
    ) -> Result<Self, CgroupError> {
        let wanted = path.is_some() || resources.need_groups();
        let hierarchies = hierarchies();
        if hierarchies.is_empty() && wanted {
            return Err(CgroupError::NotMounted);
        }
        if !resources.block_io.is_empty() && !hierarchies.iter().any(|one| one.has("blkio")) {
            return Err(CgroupError::NoBlockIo);
        }
        let limits = Limits { resources, memory_bytes, cpus };
        let mut groups = Self::default();
        // A file name has so many bytes. An ID that leaves no room for the rest is nobody else's either.
        let name = if id.len() > 255 - "dormouse-".len() { id.to_owned() } else { format!("dormouse-{id}") };
        let name = PathBuf::from(name);
        let leaf = |one: &Hierarchy| one.leaf(path.unwrap_or(&name));
        let result = hierarchies.iter().try_for_each(|one| groups.add(one, &leaf(one), &limits));
        match result {
            Ok(()) => Ok(groups),
            // A caller who may not make groups, and asked for none, runs without.
            Err(_) if !wanted && process::effective_user() != 0 => {
                groups.undo();
                Ok(Self::default())
            }
            Err(error) => {
                groups.undo();
                Err(error)
            }
        }
    }

    /// Makes groups for a sandbox without a bundle: of the controllers that bound it, in or beside the caller's own. No
    /// other sandbox has the name `name`. Where the processor time cannot be limited, memory and processes still are.
    pub fn for_command(
        name: &str,
        resources: &Resources,
        memory_bytes: u64,
        cpus: u32,
    ) -> Result<Self, CgroupError> {
        Self::bounding(&hierarchies(), name, &Limits { resources, memory_bytes, cpus })
    }

    fn bounding(hierarchies: &[Hierarchy], name: &str, limits: &Limits<'_>) -> Result<Self, CgroupError> {
        let without_cpu = Resources { cpu: Cpu::default(), ..limits.resources.clone() };
        let mut groups = Self::default();
        let result = hierarchies.iter().filter(|one| one.is_bounding()).try_for_each(|one| {
            let mut result = Err(CgroupError::NotMounted);
            for place in one.places() {
                for resources in [limits.resources, &without_cpu] {
                    let before = groups.made.len();
                    result = groups.add(one, &place.join(name), &Limits { resources, ..*limits });
                    if result.is_ok() {
                        return result;
                    }
                    let _ = remove(&groups.made.split_off(before));
                }
            }
            result
        });
        match result {
            Ok(()) if groups.entrances.is_empty() => Err(CgroupError::NotMounted),
            Ok(()) => Ok(groups),
            Err(error) => {
                groups.undo();
                Err(error)
            }
        }
    }

    fn add(&mut self, one: &Hierarchy, leaf: &Path, limits: &Limits<'_>) -> Result<(), CgroupError> {
        self.make_directories(one, leaf)?;
        if one.controllers.is_empty() {
            limits.set_v2(leaf)?
        } else {
            limits.set_v1(leaf, &one.controllers)?
        }
        let procs = leaf.join("cgroup.procs");
        let members = fs::read(&procs).unwrap_or_default();
        if !members.is_empty() {
            return Err(CgroupError::InUse { path: leaf.to_owned() });
        }
        self.add_entrance(one, leaf, limits.resources)
    }

    fn add_entrance(
        &mut self,
        one: &Hierarchy,
        leaf: &Path,
        resources: &Resources,
    ) -> Result<(), CgroupError> {
        let entrance = File::options().write(true).open(one.entrance(leaf));
        self.entrances.push(entrance.map_err(|source| CgroupError::Make { path: leaf.to_owned(), source })?);
        self.counts_processes |= resources.pids.is_some() && one.has("pids");
        Ok(())
    }

    fn make_directories(&mut self, one: &Hierarchy, leaf: &Path) -> Result<(), CgroupError> {
        let inside = leaf.strip_prefix(&one.mount).unwrap_or(leaf);
        let mut at = one.mount.clone();
        for name in inside.components() {
            if one.controllers.is_empty() {
                enable(&at);
            }
            at.push(name);
            match fs::create_dir(&at) {
                Ok(()) => self.made.push(at.clone()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(CgroupError::Make { path: at, source }),
            }
            if one.controllers.iter().any(|name| name == "cpuset") {
                inherit_cpuset(&at);
            }
        }
        Ok(())
    }

    /// Moves this process, which has one thread, into the groups.
    pub fn join(&mut self) -> io::Result<()> {
        self.entrances.drain(..).try_for_each(|mut entrance| entrance.write_all(b"0"))
    }

    /// Who stands in for the sandbox in a scope of systemd's: to be kept until the sandbox has joined.
    #[must_use]
    pub fn take_holder(&mut self) -> Option<Holder> {
        self.holder.take()
    }

    /// Removes the groups, after a failure: nothing is in them.
    pub fn undo(&mut self) {
        drop(self.holder.take());
        let _ = remove(&self.made);
    }

    /// The groups to be removed with the sandbox: directories, and the names of systemd's scopes.
    #[must_use]
    pub fn directories(&self) -> &[PathBuf] {
        &self.made
    }

    /// Whether they limit how many processes there are.
    #[must_use]
    pub fn count_processes(&self) -> bool {
        self.counts_processes
    }
}

/// Moves this process, which has one thread, into the groups of another one.
pub fn join_those_of(pid: i32) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let theirs = find_hierarchies(&mounts, &fs::read_to_string(format!("/proc/{pid}/cgroup"))?);
    let ours = hierarchies();
    let differ = |one: &&Hierarchy| !ours.iter().any(|own| own.own == one.own);
    theirs.iter().filter(differ).try_for_each(|one| fs::write(one.entrance(&one.own), "0"))
}

/// Switches controllers on for the groups below; a controller that is not available is missed when a limit is set.
fn enable(dir: &Path) {
    for controller in ENABLED {
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// A new group of version 1 has no processors and no memory nodes, and can hold no process, until it is given some.
fn inherit_cpuset(dir: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = fs::read_to_string(dir.join(file)).unwrap_or_default();
        if own.trim().is_empty()
            && let Some(above) = dir.parent().and_then(|parent| fs::read_to_string(parent.join(file)).ok())
        {
            let _ = fs::write(dir.join(file), above.trim());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Resources {
        Resources::for_command(64 << 20, 100, 2, abi::boot::Platform::Systrap)
    }

    fn hierarchy(mount: &Path, controllers: &[&str]) -> Hierarchy {
        let controllers = controllers.iter().map(|name| (*name).to_owned()).collect();
        Hierarchy { own: mount.join("caller/own"), mount: mount.to_owned(), controllers }
    }

    #[test]
    fn a_command_is_bounded_in_its_callers_groups() {
        let dir = testdir::TempDir::new();
        let all = [("m", "memory"), ("p", "pids"), ("f", "freezer")];
        let all = all.map(|(mount, name)| hierarchy(&dir.path().join(mount), &[name]));
        for one in &all {
            // The host makes this file in each group.
            fs::create_dir_all(one.own.join("new")).unwrap();
            fs::write(one.own.join("new/cgroup.procs"), "").unwrap();
        }
        let resources = command();
        let limits = Limits { resources: &resources, memory_bytes: 64 << 20, cpus: 2 };
        let groups = Cgroups::bounding(&all, "new", &limits).unwrap();
        assert!(groups.count_processes());
        let read = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap_or_default();
        assert_eq!(read("m/caller/own/new/memory.limit_in_bytes"), (194_u64 << 20).to_string());
        assert_eq!(read("p/caller/own/new/pids.max"), (100 * 4 + 128).to_string());
        assert_eq!(groups.entrances.len(), 2, "what does not bound it is not joined");
    }

    #[test]
    fn in_version_2_a_command_is_where_controllers_can_be() {
        let dir = testdir::TempDir::new();
        let one = hierarchy(dir.path(), &[]);
        // In the caller's group, which holds processes, the limits cannot be written; beside it all but the processor's
        // can.
        let (inside, beside) = (one.own.join("new"), dir.path().join("caller/new"));
        fs::create_dir_all(inside.join("memory.max")).unwrap();
        fs::create_dir_all(beside.join("cpu.max")).unwrap();
        fs::write(beside.join("cgroup.procs"), "").unwrap();
        for file in ["memory.max", "memory.high", "pids.max", "cpu.max"] {
            fs::write(one.own.join(file), if file == "cpu.max" { "max 100000\n" } else { "max\n" }).unwrap();
        }
        let resources = command();
        let limits = Limits { resources: &resources, memory_bytes: 64 << 20, cpus: 2 };
        let groups = Cgroups::bounding(std::slice::from_ref(&one), "new", &limits).unwrap();
        assert!(groups.count_processes());
        assert_eq!(fs::read_to_string(beside.join("memory.max")).unwrap(), (194_u64 << 20).to_string());
        assert_eq!(fs::read_to_string(beside.join("pids.max")).unwrap(), (100 * 4 + 128).to_string());
        // A group is not put beside the caller's where it would escape the caller's limit.
        fs::write(one.own.join("memory.max"), "1000000000\n").unwrap();
        assert!(Cgroups::bounding(std::slice::from_ref(&one), "new", &limits).is_err());
        assert!(Cgroups::bounding(&[], "new", &limits).is_err());
    }
}
