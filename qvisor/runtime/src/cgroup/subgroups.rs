//! Groups that somebody made below a container's (`exec --cgroup`).

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::hierarchy::{Hierarchy, find_hierarchies};

/// A group below a container's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subgroup {
    /// The controller of version 1 that it is one of; `None`: of each.
    controller: Option<String>,
    path: PathBuf,
}

/// Reads options as runc takes them: one path for all controllers, or `CONTROLLER[,CONTROLLER…]:PATH` for each. The
/// error says why not.
pub fn parse_subgroups(options: &[String]) -> Result<Vec<Subgroup>, String> {
    let mut all: Vec<Subgroup> = Vec::new();
    for option in options {
        let (controllers, path) = match option.split_once(':') {
            None if options.len() > 1 => {
                return Err(format!(
                    "{option} is one of several and names no controller; pass CONTROLLER:{option}"
                ));
            }
            None => (vec![None], option.as_str()),
            Some((names, path)) => (names.split(',').map(|name| Some(name.to_owned())).collect(), path),
        };
        let is_below = |part: Component<'_>| {
            matches!(part, Component::Normal(_) | Component::CurDir | Component::RootDir)
        };
        if path.contains(':') || !Path::new(path).components().all(is_below) {
            return Err(format!(
                "{option} names no group below the container's; pass [CONTROLLER:]PATH without .."
            ));
        }
        for controller in controllers {
            if let Some(name) = controller
                .as_ref()
                .filter(|name| all.iter().any(|one| one.controller.as_ref() == Some(*name)))
            {
                return Err(format!("two paths are given for controller {name}; pass one"));
            }
            all.push(Subgroup { controller, path: path.trim_start_matches('/').into() });
        }
    }
    Ok(all)
}

/// The directories of such groups below those of process `pid`. The error names one that is not there.
pub fn find_subgroups(pid: i32, wanted: &[Subgroup]) -> Result<Vec<PathBuf>, String> {
    let read =
        |path: &str| fs::read_to_string(path).map_err(|error| format!("{path} cannot be read: {error}"));
    let theirs = find_hierarchies(&read("/proc/self/mountinfo")?, &read(&format!("/proc/{pid}/cgroup"))?);
    directories(&theirs, wanted)
}

fn directories(groups: &[Hierarchy], wanted: &[Subgroup]) -> Result<Vec<PathBuf>, String> {
    let mut all = Vec::new();
    for one in wanted {
        let is_its =
            |group: &&Hierarchy| one.controller.as_ref().is_none_or(|name| group.controllers.contains(name));
        let before = all.len();
        all.extend(groups.iter().filter(is_its).map(|group| group.own.join(&one.path)));
        if let Some(name) = one.controller.as_ref().filter(|_| all.len() == before) {
            return Err(format!("the host has no controller {name} of version 1; leave it out"));
        }
    }
    match all.iter().find(|path| !path.join("cgroup.procs").exists()) {
        Some(missing) => Err(format!("there is no control group {}; make it first", missing.display())),
        None => Ok(all),
    }
}

/// Moves this process into groups.
pub fn enter(groups: &[PathBuf]) -> io::Result<()> {
    groups.iter().try_for_each(|group| fs::write(group.join("cgroup.procs"), "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &[&str]) -> Result<Vec<Subgroup>, String> {
        parse_subgroups(&options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_runcs() {
        let one = |controller: Option<&str>, path: &str| Subgroup {
            controller: controller.map(str::to_owned),
            path: path.into(),
        };
        assert_eq!(parsed(&["a/b"]).unwrap(), [one(None, "a/b")]);
        assert_eq!(parsed(&["/a"]).unwrap(), [one(None, "a")]);
        let all = [one(Some("cpu"), "a"), one(Some("cpuacct"), "a"), one(Some("pids"), "b")];
        assert_eq!(parsed(&["cpu,cpuacct:a", "pids:/b"]).unwrap(), all);
        for bad in [&["a", "b"][..], &["pids:a", "pids:b"], &["pids:a:b"], &[".."], &["pids:a/../../b"]] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn groups_are_found_below_the_containers() {
        let dir = testdir::TempDir::new();
        let group = |name: &str| Hierarchy {
            mount: dir.path().join(name),
            controllers: vec![name.into()],
            own: dir.path().join(name).join("c"),
        };
        let groups = [group("pids"), group("memory")];
        let below = |name: &str| dir.path().join(name).join("c/sub");
        fs::create_dir_all(below("pids")).unwrap();
        fs::write(below("pids").join("cgroup.procs"), "").unwrap();
        assert_eq!(directories(&groups, &parsed(&["pids:sub"]).unwrap()).unwrap(), [below("pids")]);
        assert!(directories(&groups, &parsed(&["sub"]).unwrap()).unwrap_err().contains("memory/c/sub"));
        assert!(
            directories(&groups, &parsed(&["io:sub"]).unwrap()).unwrap_err().contains("no controller io")
        );
        enter(&[below("pids")]).unwrap();
        assert_eq!(fs::read_to_string(below("pids").join("cgroup.procs")).unwrap(), "0");
    }
}
