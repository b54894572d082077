//! The files of groups.

use alloc::vec::Vec;

use crate::cgroupfs::{Group, PROCS, PROCS_MODE, own, processes, resources};
use crate::creds::Creds;
use crate::pseudo::Out;
use crate::task::groups::{Controllers, DIR, Event};
use machine::errno::{Errno, Result};

/// Makes a file's text.
pub type Show = fn(&Group, &mut Out) -> Result<()>;
/// Stores the text that was written, without white space around it, with the rights of whoever opened the file.
pub type Store = fn(&Group, &str, &Creds) -> Result<()>;

/// A file of groups.
pub struct File {
    pub name: &'static str,
    pub mode: u32,
    /// The controllers one of which must be handed to a group that has the file; empty: each group has it.
    needs: Controllers,
    /// The container's own group, and groups below.
    in_root: Option<Show>,
    below: Option<Show>,
    pub store: Option<Store>,
    /// The container may write it in its own group as well.
    pub is_delegated: bool,
    /// The changes of the file that can be polled for; `None`: it has none.
    pub event: Option<Event>,
}

impl File {
    /// Whether a group has it that was handed these controllers.
    pub fn is_shown(&self, is_root: bool, has: Controllers) -> bool {
        self.show(is_root, has).is_some()
    }

    /// Returns the function that makes the text in such a group; `None`: the group does not have the file.
    pub fn show(&self, is_root: bool, has: Controllers) -> Option<Show> {
        if is_root { self.in_root } else { self.below.filter(|_| has.contains(self.needs)) }
    }

    /// A file that is alike in all groups, the container's own among them.
    const fn all(name: &'static str, needs: Controllers, show: Show) -> Self {
        Self::split(name, needs, Some(show), Some(show))
    }

    const fn split(
        name: &'static str,
        needs: Controllers,
        in_root: Option<Show>,
        below: Option<Show>,
    ) -> Self {
        Self { name, mode: 0o444, needs, in_root, below, store: None, is_delegated: false, event: None }
    }

    const fn stores(mut self, store: Store) -> Self {
        (self.mode, self.store) = (0o644, Some(store));
        self
    }

    const fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    const fn delegated(mut self) -> Self {
        self.is_delegated = true;
        self
    }

    const fn tells(mut self, event: Event) -> Self {
        self.event = Some(event);
        self
    }
}

/// The names of all files and of the directory.
pub fn names() -> Vec<&'static str> {
    FILES.iter().map(|file| file.name).chain([DIR]).collect()
}

fn nothing(_: &Group, _: &mut Out) -> Result<()> {
    Ok(())
}

fn only_written(_: &Group, _: &mut Out) -> Result<()> {
    Err(Errno::EINVAL)
}

macro_rules! fixed {
    ($text:expr) => {
        |_, out| {
            out.push($text.as_bytes());
            Ok(())
        }
    };
}

const BASE: Controllers = Controllers::empty();
const CPU: Controllers = Controllers::CPU;
const CPUSET: Controllers = Controllers::CPUSET;
const IO: Controllers = Controllers::IO;
const MEMORY: Controllers = Controllers::MEMORY;
const PIDS: Controllers = Controllers::PIDS;

pub static FILES: &[File] = &[
    File::all("cgroup.controllers", BASE, processes::controllers),
    File::all("cgroup.events", BASE, processes::events).tells(Event::Group),
    File::split("cgroup.freeze", BASE, Some(fixed!("0\n")), None).stores(|_, _, _| Err(Errno::EPERM)),
    File::all("cgroup.kill", BASE, only_written).stores(processes::kill).mode(0o200),
    File::all("cgroup.max.depth", BASE, processes::max_depth).stores(processes::set_max_depth),
    File::all("cgroup.max.descendants", BASE, processes::max_descendants)
        .stores(processes::set_max_descendants),
    File::all(PROCS, BASE, processes::procs).stores(processes::move_process).mode(PROCS_MODE).delegated(),
    File::all("cgroup.stat", BASE, processes::stat),
    File::all("cgroup.subtree_control", BASE, processes::subtree_control)
        .stores(processes::set_subtree_control)
        .delegated(),
    File::all("cgroup.threads", BASE, processes::threads).stores(processes::move_thread).delegated(),
    File::all("cgroup.type", BASE, fixed!("domain\n")).stores(processes::set_type),
    File::split("cpu.idle", CPU, Some(fixed!("0\n")), Some(resources::cpu_idle))
        .stores(resources::set_cpu_idle),
    File::split("cpu.max", CPU, Some(own::cpu_max), Some(resources::cpu_max)).stores(resources::set_cpu_max),
    File::all("cpu.max.burst", CPU, fixed!("0\n")).stores(resources::set_zero),
    File::split("cpu.pressure", BASE, Some(own::cpu_pressure), None),
    File::split("cpu.stat", BASE, Some(own::cpu_stat), Some(resources::cpu_stat)),
    File::split("cpu.weight", CPU, Some(own::cpu_weight), Some(resources::cpu_weight))
        .stores(resources::set_cpu_weight),
    File::all("cpuset.cpus", CPUSET, fixed!("\n")).stores(resources::set_cpus),
    File::all("cpuset.cpus.effective", CPUSET, resources::cpus),
    File::all("cpuset.mems", CPUSET, fixed!("\n")).stores(resources::set_mems),
    File::all("cpuset.mems.effective", CPUSET, fixed!("0\n")),
    File::all("io.max", IO, nothing).stores(resources::set_of_device),
    File::split("io.pressure", BASE, Some(own::io_pressure), None),
    File::all("io.stat", IO, nothing),
    File::split("io.weight", IO, None, Some(resources::io_weight)).stores(resources::set_io_weight),
    File::split("memory.current", MEMORY, Some(own::memory_current), Some(resources::memory_current)),
    File::split("memory.events", MEMORY, Some(own::memory_events), Some(resources::memory_events))
        .tells(Event::Memory),
    File::split("memory.events.local", MEMORY, Some(own::memory_events), None),
    File::all("memory.high", MEMORY, fixed!("max\n")).stores(resources::set_no_limit),
    File::split("memory.low", MEMORY, Some(own::memory_low), Some(resources::memory_low))
        .stores(resources::set_memory_low),
    File::split("memory.max", MEMORY, Some(own::memory_max), Some(fixed!("max\n")))
        .stores(resources::set_no_limit),
    File::split("memory.min", MEMORY, Some(fixed!("0\n")), Some(resources::memory_min))
        .stores(resources::set_memory_min),
    File::split("memory.oom.group", MEMORY, Some(fixed!("0\n")), Some(resources::oom_group))
        .stores(resources::set_oom_group),
    File::split("memory.peak", MEMORY, Some(own::memory_peak), None),
    File::split("memory.pressure", BASE, Some(own::memory_pressure), None),
    File::split("memory.stat", MEMORY, Some(own::memory_stat), Some(resources::memory_stat)),
    File::all("memory.swap.current", MEMORY, fixed!("0\n")),
    File::all("memory.swap.events", MEMORY, fixed!("high 0\nmax 0\nfail 0\n")),
    File::split("memory.swap.high", MEMORY, Some(fixed!("max\n")), Some(resources::swap_high))
        .stores(resources::set_swap_high),
    File::split("memory.swap.max", MEMORY, Some(own::swap_max), Some(resources::swap_max))
        .stores(resources::set_swap_max),
    File::split("pids.current", PIDS, Some(own::pids_current), Some(resources::pids_current)),
    File::split("pids.events", PIDS, Some(own::pids_events), Some(resources::pids_events)).tells(Event::Pids),
    File::split("pids.max", PIDS, Some(own::pids_max), Some(resources::pids_max))
        .stores(resources::set_pids_max),
    File::split("pids.peak", PIDS, None, Some(resources::pids_peak)),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::groups::{GroupId, file_key};

    #[test]
    fn each_file_has_a_key_of_its_own() {
        let mut keys: Vec<usize> = names().iter().map(|name| file_key(GroupId(5), name)).collect();
        keys.push(file_key(GroupId(6), DIR));
        keys.sort_unstable();
        let count = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), count);
        assert!(keys.iter().all(|key| key % 2 == 1));
    }

    #[test]
    fn files_of_a_controller_show_where_it_is_handed_to() {
        let file = |name| FILES.iter().find(|file| file.name == name).unwrap();
        assert!(file("pids.max").is_shown(true, Controllers::empty()));
        assert!(!file("pids.max").is_shown(false, Controllers::all() - PIDS));
        assert!(file("pids.max").is_shown(false, PIDS));
        assert!(file("cpu.stat").is_shown(false, BASE));
        assert!(!file("memory.peak").is_shown(false, Controllers::all()));
    }
}
