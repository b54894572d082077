//! The hierarchies of control groups that the host mounts, and the places of a process in them.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Controllers of version 1 that a container joins where they are mounted.
const JOINED: &[&str] =
    &["memory", "cpu", "cpuacct", "cpuset", "pids", "blkio", "freezer", "devices", "name=systemd"];
/// Those that bound a sandbox without a bundle.
const BOUNDING: &[&str] = &["memory", "cpu", "pids"];

/// A mounted hierarchy.
#[derive(Debug)]
pub(super) struct Hierarchy {
    pub(super) mount: PathBuf,
    /// Controllers of version 1; none: version 2.
    pub(super) controllers: Vec<String>,
    /// A process's group below `mount`; as a rule this process's.
    pub(super) own: PathBuf,
}

impl Hierarchy {
    /// The group of a container with the `linux.cgroupsPath` `path`, as runc has it: below the mount, or, if the path is
    /// relative, below this process's group. In version 2 it is then beside that group, which cannot have controllers
    /// for others while it holds this process. No `..` leads out of there.
    pub(super) fn leaf(&self, path: &Path) -> PathBuf {
        let mut clean = PathBuf::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => clean.push(name),
                Component::ParentDir => drop(clean.pop()),
                _ => {}
            }
        }
        if path.is_absolute() {
            return self.mount.join(clean);
        }
        let is_beside = self.controllers.is_empty() && self.own != self.mount;
        let above = self.own.parent().filter(|_| is_beside);
        above.unwrap_or(&self.own).join(clean)
    }

    /// Whether a controller may be there. Version 2 says so only once it is switched on.
    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.is_empty() || self.controllers.iter().any(|known| known == controller)
    }

    /// The file by which a process of one thread joins a group. `cgroup.procs` waits until every CPU has seen that no process
    /// makes threads, some 10 ms; `tasks` moves the writer alone, and has no need to.
    pub(super) fn entrance(&self, group: &Path) -> PathBuf {
        let (procs, tasks) = (group.join("cgroup.procs"), group.join("tasks"));
        if self.controllers.is_empty() || !tasks.exists() { procs } else { tasks }
    }

    pub(super) fn is_bounding(&self) -> bool {
        BOUNDING.iter().any(|controller| self.has(controller))
    }

    /// Possible places of a command's group. The first is in the caller's own group, so that its limits hold as well.
    /// Version 2 gives no controllers to groups in a group that holds processes; there the group may lie beside the
    /// caller's, unless the sandbox would escape a limit that way.
    pub(super) fn places(&self) -> Vec<PathBuf> {
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

/// The hierarchies to join: those of version 1 with controllers, or else the one of version 2.
pub(super) fn hierarchies() -> Vec<Hierarchy> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    find_hierarchies(&mounts, &groups)
}

pub(super) fn find_hierarchies(mounts: &str, groups: &str) -> Vec<Hierarchy> {
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
pub(super) fn own_group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
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
    #[test]
    fn a_path_of_any_form_stays_below_its_place() {
        let mount = PathBuf::from("/m");
        let v1 = Hierarchy { own: mount.join("a/b"), mount, controllers: vec!["memory".into()] };
        for (path, leaf) in [
            ("/x/y", "/m/x/y"),
            ("system.slice:docker:1", "/m/a/b/system.slice:docker:1"),
            ("x/./y", "/m/a/b/x/y"),
            ("../../../etc", "/m/a/b/etc"),
            ("/../x/../../etc", "/m/etc"),
        ] {
            assert_eq!(v1.leaf(Path::new(path)), Path::new(leaf), "{path}");
        }
        let v2 = Hierarchy { controllers: Vec::new(), ..v1 };
        assert_eq!(v2.leaf(Path::new("x")), Path::new("/m/a/x"));
        assert_eq!(Hierarchy { own: v2.mount.clone(), ..v2 }.leaf(Path::new("x")), Path::new("/m/x"));
    }
}
