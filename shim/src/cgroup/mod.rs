//! The control groups of a sandbox: where they are, and what is read from them.

mod files;
pub mod oom;
mod v1;
mod v2;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Error, Message};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Groups {
    None,
    /// A directory for each controller.
    V1(BTreeMap<String, PathBuf>),
    V2(PathBuf),
}

impl Groups {
    /// Those of a process.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        find(&read("/proc/self/mountinfo"), &read(&format!("/proc/{pid}/cgroup")))
    }

    /// What they count. `hibernated_bytes`: of the sandbox's memory, on disk; the host does not know of them.
    pub fn metrics(&self, hibernated_bytes: u64) -> Option<Result<Any, Error>> {
        let (type_url, value) = match self {
            Self::None => return None,
            Self::V1(groups) => {
                ("io.containerd.cgroups.v1.Metrics", v1::metrics(groups, hibernated_bytes).write_to_bytes())
            }
            Self::V2(group) => {
                ("io.containerd.cgroups.v2.Metrics", v2::metrics(group, hibernated_bytes).write_to_bytes())
            }
        };
        Some(value.map(|value| Any { type_url: type_url.into(), value, ..Any::default() }))
    }
}

/// A mounted hierarchy: its root, its mount point, and for version 1 its controllers.
type Mounted<'a> = (&'a str, &'a str, Option<Vec<&'a str>>);

fn mounted(line: &str) -> Option<Mounted<'_>> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(3);
    let (root, point) = (front.next()?, front.next()?);
    let mut back = back.split(' ');
    match back.next()? {
        "cgroup2" => Some((root, point, None)),
        "cgroup" => Some((root, point, Some(back.nth(1)?.split(',').collect()))),
        _ => None,
    }
}

/// By the text of `mountinfo`, and that of the process's `cgroup`.
fn find(mounts: &str, own: &str) -> Groups {
    let mounts: Vec<_> = mounts.lines().filter_map(mounted).collect();
    let below = |root: &str, point: &str, path: &str| {
        let rest = Path::new(path)
            .strip_prefix(root)
            .unwrap_or(Path::new(path).strip_prefix("/").unwrap_or(Path::new("")));
        Path::new(point).join(rest)
    };
    let mut controllers = BTreeMap::new();
    let mut unified = None;
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(names), Some(path)) = (parts.next(), parts.next()) else { continue };
        for (root, point, has) in &mounts {
            match has {
                None if names.is_empty() => unified = Some(below(root, point, path)),
                Some(has) => {
                    for name in names.split(',').filter(|name| !name.is_empty() && has.contains(name)) {
                        controllers.entry(name.to_owned()).or_insert_with(|| below(root, point, path));
                    }
                }
                None => {}
            }
        }
    }
    // Both may be mounted; then version 1 has the controllers.
    match unified {
        _ if controllers.contains_key("memory") || controllers.contains_key("pids") => {
            Groups::V1(controllers)
        }
        Some(group) => Groups::V2(group),
        None if controllers.is_empty() => Groups::None,
        None => Groups::V1(controllers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "30 29 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        31 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n\
        32 29 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    #[test]
    fn groups_of_both_versions_are_found() {
        let own = "5:memory:/default/a\n4:cpu,cpuacct:/default/a\n1:name=systemd:/x\n0::/default/a\n";
        let Groups::V1(groups) = find(V1, own) else { panic!("version 1 has the controllers") };
        assert_eq!(groups.get("cpuacct"), Some(&"/sys/fs/cgroup/cpu,cpuacct/default/a".into()));
        assert_eq!(groups.get("memory"), Some(&"/sys/fs/cgroup/memory/default/a".into()));
        let v2 = "30 29 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(find(v2, "0::/default/a\n"), Groups::V2("/sys/fs/cgroup/default/a".into()));
        let inner = "30 29 0:26 /docker/c /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(find(inner, "0::/docker/c/b\n"), Groups::V2("/sys/fs/cgroup/b".into()));
        assert_eq!(find("", "0::/\n"), Groups::None);
    }
}
