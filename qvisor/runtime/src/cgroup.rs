//! The control groups of a sandbox: made before its VMM starts, joined by it, removed with it.
//!
//! The sandbox's kernel enforces the container's own limits; the groups get them with headroom for the VMM, so that they
//! are a second line, and account for everything.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vmm::process;

use crate::resources::Resources;

/// Controllers of version 1 that a container joins where they are mounted.
const JOINED: &[&str] =
    &["memory", "cpu", "cpuacct", "cpuset", "pids", "blkio", "freezer", "devices", "name=systemd"];
/// Controllers of version 2 that are switched on for it.
const ENABLED: &[&str] = &["memory", "cpu", "cpuset", "pids", "io"];
/// Those that bound a sandbox without a bundle.
const BOUNDING: &[&str] = &["memory", "cpu", "pids"];
/// File of a state directory that names the groups.
const LIST: &str = "cgroups.json";
/// How long the last processes may take to leave a group that is to go.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no control group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error(
        "cannot make control group {path}: {source}; correct linux.cgroupsPath, or run as a user who may"
    )]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot use control group {path}: it holds processes; choose another linux.cgroupsPath")]
    InUse { path: PathBuf },
    #[error(
        "cannot write {value:?} to {path}: {source}; correct linux.resources, or let the host have this controller"
    )]
    Set { path: PathBuf, value: String, source: io::Error },
    #[error("cannot use control group {path:?}: it is of systemd's form; give a path")]
    Systemd { path: PathBuf },
    #[error(
        "cannot limit resources: no control groups are mounted; mount them, or leave out linux.resources"
    )]
    NotMounted,
    #[error("cannot remove control group {path}: {source}; end the processes in it")]
    Remove { path: PathBuf, source: io::Error },
}

/// A mounted hierarchy.
#[derive(Debug)]
struct Hierarchy {
    mount: PathBuf,
    /// Controllers of version 1; none: version 2.
    controllers: Vec<String>,
    /// A process's group below `mount`; as a rule this process's.
    own: PathBuf,
}

/// The groups of one sandbox.
#[derive(Debug, Default)]
pub struct Cgroups {
    /// Directories that were made, parents first.
    made: Vec<PathBuf>,
    /// `cgroup.procs` of each group.
    entrances: Vec<File>,
    /// One of them limits processes.
    counts_processes: bool,
}

impl Cgroups {
    /// Makes the groups and sets their limits.
    pub fn make(
        path: Option<&Path>,
        id: &str,
        resources: &Resources,
        memory_bytes: u64,
        cpus: u32,
    ) -> Result<Self, CgroupError> {
        if let Some(path) = path.filter(|path| path.as_os_str().as_encoded_bytes().contains(&b':')) {
            return Err(CgroupError::Systemd { path: path.to_owned() });
        }
        let wanted = path.is_some() || resources.need_groups();
        let hierarchies = hierarchies();
        if hierarchies.is_empty() && wanted {
            return Err(CgroupError::NotMounted);
        }
        let limits = Limits { resources, memory_bytes, cpus };
        let mut groups = Self::default();
        let leaf = |one: &Hierarchy| match path {
            Some(path) if path.is_absolute() => one.mount.join(path.strip_prefix("/").unwrap_or(path)),
            Some(path) => one.own.join(path),
            None => one.own.join(format!("dormouse-{id}")),
        };
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
        let without_cpu = Resources { cpu: crate::resources::Cpu::default(), ..limits.resources.clone() };
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
        let entrance = File::options().write(true).open(&procs);
        self.entrances.push(entrance.map_err(|source| CgroupError::Make { path: leaf.to_owned(), source })?);
        self.counts_processes |= limits.resources.pids.is_some() && one.has("pids");
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

    /// Moves this process into the groups.
    pub fn join(&mut self) -> io::Result<()> {
        self.entrances.drain(..).try_for_each(|mut entrance| entrance.write_all(b"0"))
    }

    /// Removes the groups, after a failure: nothing is in them.
    pub fn undo(&self) {
        let _ = remove(&self.made);
    }

    /// The directories to be removed with the sandbox.
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

impl Hierarchy {
    /// Whether a controller may be there. Version 2 says so only once it is switched on.
    fn has(&self, controller: &str) -> bool {
        self.controllers.is_empty() || self.controllers.iter().any(|known| known == controller)
    }

    fn is_bounding(&self) -> bool {
        BOUNDING.iter().any(|controller| self.has(controller))
    }

    /// Possible places of a command's group. The first is in the caller's own group, so that its limits hold as well.
    /// Version 2 gives no controllers to groups in a group that holds processes; there the group may lie beside the
    /// caller's, unless the sandbox would escape a limit that way.
    fn places(&self) -> Vec<PathBuf> {
        let mut places = vec![self.own.clone()];
        let is_free = |file: &str| {
            fs::read_to_string(self.own.join(file))
                .is_ok_and(|limit| limit.split_whitespace().next() == Some("max"))
                || !self.own.join(file).exists()
        };
        let unlimited = ["memory.max", "memory.high", "pids.max", "cpu.max"].into_iter().all(is_free);
        if self.controllers.is_empty()
            && self.own != self.mount
            && unlimited
            && let Some(above) = self.own.parent()
        {
            places.push(above.to_owned());
        }
        places
    }
}

/// Writes down the directories, in `dir`, for the process that cleans up after a sandbox that cannot do so itself.
pub fn write_list(dir: &Path, directories: &[PathBuf]) -> io::Result<()> {
    if directories.is_empty() {
        return Ok(());
    }
    fs::write(dir.join(LIST), serde_json::to_vec(directories)?)
}

/// Removes the groups that a dead sandbox wrote down in `dir`, if it did. Those that still hold processes stay.
pub fn remove_listed(dir: &Path) {
    let list =
        fs::read(dir.join(LIST)).ok().and_then(|list| serde_json::from_slice::<Vec<PathBuf>>(&list).ok());
    for path in list.unwrap_or_default().iter().rev() {
        let _ = fs::remove_dir(path);
    }
}

/// Moves this process into the groups of another one.
pub fn join_those_of(pid: i32) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let theirs = find_hierarchies(&mounts, &fs::read_to_string(format!("/proc/{pid}/cgroup"))?);
    let ours = hierarchies();
    let differ = |one: &&Hierarchy| !ours.iter().any(|own| own.own == one.own);
    theirs.iter().filter(differ).try_for_each(|one| fs::write(one.own.join("cgroup.procs"), "0"))
}

/// Removes groups that [`Cgroups::directories`] named. Those above the container's own stay if others are in them.
pub fn remove(directories: &[PathBuf]) -> Result<(), CgroupError> {
    let is_leaf = |path: &Path| !directories.iter().any(|other| other != path && other.starts_with(path));
    for path in directories.iter().rev() {
        let start = Instant::now();
        loop {
            match fs::remove_dir(path) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(_) if !is_leaf(path) => break,
                Err(source) if start.elapsed() > PATIENCE => {
                    return Err(CgroupError::Remove { path: path.clone(), source });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
    Ok(())
}

impl Resources {
    /// Whether the limits need control groups.
    fn need_groups(&self) -> bool {
        let cpu = &self.cpu;
        self.memory.is_some()
            || self.pids.is_some()
            || cpu.shares.is_some()
            || cpu.quota.is_some()
            || cpu.cpus.is_some()
            || cpu.mems.is_some()
            || !self.unified.is_empty()
    }
}

/// The limits that the groups are given.
#[derive(Clone, Copy)]
struct Limits<'a> {
    resources: &'a Resources,
    memory_bytes: u64,
    cpus: u32,
}

fn write(dir: &Path, file: &str, value: impl ToString) -> Result<(), CgroupError> {
    let (path, value) = (dir.join(file), value.to_string());
    fs::write(&path, &value).map_err(|source| CgroupError::Set { path, value, source })
}

fn write_some(dir: &Path, file: &str, value: Option<impl ToString>) -> Result<(), CgroupError> {
    value.map_or(Ok(()), |value| write(dir, file, value))
}

impl Limits<'_> {
    /// The container's limit with room for the VMM; `None` when there is none.
    fn memory(&self) -> Option<u64> {
        self.resources.memory.map(|_| Resources::with_headroom(self.memory_bytes))
    }

    fn memory_and_swap(&self) -> Option<i64> {
        let both = self.resources.memory_and_swap?;
        Some(both.map_or(-1, |bytes| i64::try_from(Resources::with_headroom(bytes)).unwrap_or(i64::MAX)))
    }

    fn set_v1(&self, dir: &Path, controllers: &[String]) -> Result<(), CgroupError> {
        let has = |name: &str| controllers.iter().any(|known| known == name);
        let (resources, cpu) = (self.resources, &self.resources.cpu);
        if has("memory") {
            write_some(dir, "memory.limit_in_bytes", self.memory())?;
            if let Some(both) = self.memory_and_swap() {
                write(dir, "memory.memsw.limit_in_bytes", both)?;
            }
            write_some(dir, "memory.soft_limit_in_bytes", resources.reservation)?;
            write_some(dir, "memory.swappiness", resources.swappiness)?;
        }
        if has("cpu") {
            write_some(dir, "cpu.shares", cpu.shares)?;
            write_some(dir, "cpu.cfs_period_us", cpu.period)?;
            write_some(dir, "cpu.cfs_quota_us", cpu.quota)?;
            write_some(dir, "cpu.cfs_burst_us", cpu.burst)?;
            write_some(dir, "cpu.rt_period_us", cpu.realtime_period)?;
            write_some(dir, "cpu.rt_runtime_us", cpu.realtime_runtime)?;
            write_some(dir, "cpu.idle", cpu.idle)?;
        }
        if has("cpuset") {
            write_some(dir, "cpuset.cpus", cpu.cpus.as_ref())?;
            write_some(dir, "cpuset.mems", cpu.mems.as_ref())?;
        }
        if has("pids") {
            write_some(dir, "pids.max", resources.host_tasks(self.cpus))?;
        }
        match resources.unified.first() {
            Some((file, value)) => Err(CgroupError::Set {
                path: dir.join(file),
                value: value.clone(),
                source: io::Error::other("the host's control groups are of version 1"),
            }),
            None => Ok(()),
        }
    }

    fn set_v2(&self, dir: &Path) -> Result<(), CgroupError> {
        let (resources, cpu) = (self.resources, &self.resources.cpu);
        if cpu.realtime_runtime.is_some() || cpu.realtime_period.is_some() || resources.swappiness.is_some() {
            return Err(CgroupError::Set {
                path: dir.to_owned(),
                value: "realtime or swappiness".into(),
                source: io::Error::other("control groups of version 2 do not have it"),
            });
        }
        write_some(dir, "memory.max", self.memory())?;
        if let (Some(both), Some(limit)) = (resources.memory_and_swap, resources.memory) {
            let swap = both.map_or("max".to_owned(), |both| both.saturating_sub(limit).to_string());
            write(dir, "memory.swap.max", swap)?;
        }
        write_some(dir, "memory.low", resources.reservation)?;
        write_some(dir, "cpu.weight", cpu.shares.map(weight))?;
        if cpu.quota.is_some() || cpu.period.is_some() {
            let quota =
                cpu.quota.filter(|quota| *quota > 0).map_or("max".to_owned(), |quota| quota.to_string());
            write(dir, "cpu.max", format!("{quota} {}", cpu.period.unwrap_or(100_000)))?;
        }
        write_some(dir, "cpu.max.burst", cpu.burst)?;
        write_some(dir, "cpu.idle", cpu.idle)?;
        write_some(dir, "cpuset.cpus", cpu.cpus.as_ref())?;
        write_some(dir, "cpuset.mems", cpu.mems.as_ref())?;
        write_some(dir, "pids.max", resources.host_tasks(self.cpus))?;
        resources.unified.iter().try_for_each(|(file, value)| write(dir, file, value))
    }
}

/// Shares of version 1 (2 to 262144) as a weight of version 2 (1 to 10000).
fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
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

/// The hierarchies to join: those of version 1 with controllers, or else the one of version 2.
fn hierarchies() -> Vec<Hierarchy> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    find_hierarchies(&mounts, &groups)
}

fn find_hierarchies(mounts: &str, groups: &str) -> Vec<Hierarchy> {
    let mut v1 = Vec::new();
    let mut v2 = Vec::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(root), Some(mount)) = (fields.nth(3), fields.next()) else { continue };
        let mut rest = fields.skip_while(|field| *field != "-").skip(1);
        let (kind, options) = (rest.next().unwrap_or_default(), rest.nth(1).unwrap_or_default());
        let all: Vec<String> =
            options.split(',').filter(|option| JOINED.contains(option)).map(str::to_owned).collect();
        let (list, key) = match kind {
            "cgroup" if !all.is_empty() => (&mut v1, all.first().map_or("", String::as_str)),
            "cgroup2" => (&mut v2, ""),
            _ => continue,
        };
        let own = own_group(groups, key).unwrap_or("/");
        let own =
            Path::new(own).strip_prefix(root).or(Path::new(own).strip_prefix("/")).unwrap_or(Path::new(""));
        let mount = PathBuf::from(mount);
        if list.iter().any(|known: &Hierarchy| known.controllers == all) {
            continue;
        }
        list.push(Hierarchy { own: mount.join(own), mount, controllers: all.clone() });
    }
    if v1.is_empty() { v2 } else { v1 }
}

/// A process's group in the hierarchy of a controller; the empty name is version 2's.
fn own_group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (names, path) = rest.split_once(':')?;
        names.split(',').any(|name| name == controller).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found() {
        let mounts = "25 20 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      26 20 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      27 20 0:24 / /sys/fs/cgroup/net_cls rw - cgroup cgroup rw,net_cls\n\
                      28 20 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "5:memory:/a/b\n4:cpu,cpuacct:/\n0::/c\n";
        let found = find_hierarchies(mounts, groups);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].own, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(found[1].controllers, ["cpu", "cpuacct"]);
        let only_v2 = "28 20 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = find_hierarchies(only_v2, groups);
        assert_eq!((found.len(), found[0].own.as_path()), (1, Path::new("/sys/fs/cgroup/c")));
    }

    fn limited() -> Resources {
        let cpu = crate::resources::Cpu {
            shares: Some(1024),
            quota: Some(50_000),
            period: Some(100_000),
            cpus: Some("0-1".into()),
            ..Default::default()
        };
        let (memory, pids) = (Some(64 << 20), Some(10));
        Resources { memory, memory_and_swap: Some(Some(96 << 20)), cpu, pids, ..Resources::default() }
    }

    #[test]
    fn limits_are_written_as_each_version_has_them() {
        let resources = limited();
        let limits = Limits { resources: &resources, memory_bytes: 64 << 20, cpus: 1 };
        let dir = testdir::TempDir::new();
        let read = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap_or_default();
        limits.set_v2(dir.path()).unwrap();
        let with_room = (194_u64 << 20).to_string();
        assert_eq!(
            (read("memory.max"), read("memory.swap.max")),
            (with_room.clone(), (32 << 20).to_string())
        );
        assert_eq!((read("cpu.weight"), read("cpu.max")), ("39".into(), "50000 100000".into()));
        assert_eq!((read("cpuset.cpus"), read("pids.max")), ("0-1".into(), (10 * 3 + 128).to_string()));
        limits.set_v1(dir.path(), &["memory".into(), "cpu".into()]).unwrap();
        assert_eq!(read("memory.limit_in_bytes"), with_room);
        assert_eq!(read("memory.memsw.limit_in_bytes"), (227_u64 << 20).to_string());
        assert_eq!((read("cpu.shares"), read("cpu.cfs_quota_us")), ("1024".into(), "50000".into()));
        let odd = Resources { swappiness: Some(1), ..Resources::default() };
        let limits = Limits { resources: &odd, ..limits };
        assert!(limits.set_v2(dir.path()).unwrap_err().to_string().contains("version 2"));
    }

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

    #[test]
    fn what_a_dead_sandbox_listed_is_removed() {
        let dir = testdir::TempDir::new();
        let made = [dir.path().join("a"), dir.path().join("a/b")];
        made.iter().for_each(|path| fs::create_dir(path).unwrap());
        write_list(dir.path(), &made).unwrap();
        remove_listed(dir.path());
        assert!(!made[0].exists());
        remove_listed(&dir.path().join("nothing"));
    }

    #[test]
    fn shares_become_weights() {
        assert_eq!((weight(2), weight(1024), weight(262_144)), (1, 39, 10_000));
    }
}
