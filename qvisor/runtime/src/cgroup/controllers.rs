//! The control groups of a process, by their controllers.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::hierarchy::find_hierarchies;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Groups {
    None,
    /// A directory for each controller that the runtime uses.
    V1(BTreeMap<String, PathBuf>),
    V2(PathBuf),
}

impl Groups {
    /// Those of a process.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self::find(&read("/proc/self/mountinfo"), &read(&format!("/proc/{pid}/cgroup")))
    }

    /// By the text of `mountinfo`, and that of the process's `cgroup`.
    fn find(mounts: &str, groups: &str) -> Self {
        if groups.is_empty() {
            return Self::None;
        }
        let mut controllers = BTreeMap::new();
        for one in find_hierarchies(mounts, groups) {
            if one.controllers.is_empty() {
                return Self::V2(one.own);
            }
            controllers.extend(one.controllers.into_iter().map(|name| (name, one.own.clone())));
        }
        if controllers.is_empty() { Self::None } else { Self::V1(controllers) }
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
        let Groups::V1(groups) = Groups::find(V1, own) else { panic!("version 1 has the controllers") };
        assert_eq!(groups.get("cpuacct"), Some(&"/sys/fs/cgroup/cpu,cpuacct/default/a".into()));
        assert_eq!(groups.get("memory"), Some(&"/sys/fs/cgroup/memory/default/a".into()));
        let v2 = "30 29 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(Groups::find(v2, "0::/default/a\n"), Groups::V2("/sys/fs/cgroup/default/a".into()));
        let inner = "30 29 0:26 /docker/c /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(Groups::find(inner, "0::/docker/c/b\n"), Groups::V2("/sys/fs/cgroup/b".into()));
        assert_eq!((Groups::find("", "0::/\n"), Groups::find(v2, "")), (Groups::None, Groups::None));
    }
}
