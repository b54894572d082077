//! Controllers, and the rules by which a group hands them to the groups below it.

use alloc::string::String;

use bitflags::bitflags;
use machine::errno::{Errno, Result};

bitflags! {
    /// The controllers that a group's files belong to.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Controllers: u8 {
        const CPUSET = 1;
        const CPU = 2;
        const IO = 4;
        const MEMORY = 8;
        const PIDS = 16;
    }
}

const NAMES: [(&str, Controllers); 5] = [
    ("cpuset", Controllers::CPUSET),
    ("cpu", Controllers::CPU),
    ("io", Controllers::IO),
    ("memory", Controllers::MEMORY),
    ("pids", Controllers::PIDS),
];

impl Controllers {
    /// Controllers that can tell threads of one process apart. Groups with processes of their own may hand on these alone.
    pub const THREADED: Self = Self::CPUSET.union(Self::CPU).union(Self::PIDS);

    /// How many there are.
    pub const COUNT: usize = NAMES.len();

    /// Whether it has the controller of this number.
    pub fn has(self, number: usize) -> bool {
        NAMES.get(number).is_some_and(|(_, one)| self.contains(*one))
    }

    /// Those whose numbers are chosen.
    pub fn of(chosen: impl Fn(usize) -> bool) -> Self {
        let all = NAMES.iter().enumerate();
        all.filter(|(number, _)| chosen(*number)).fold(Self::empty(), |found, (_, (_, one))| found | *one)
    }

    /// Their names, as `cgroup.controllers` shows them.
    pub fn names(self) -> String {
        let mut text = String::new();
        for (name, _) in NAMES.iter().filter(|(_, one)| self.contains(*one)) {
            text.push_str(if text.is_empty() { "" } else { " " });
            text.push_str(name);
        }
        text
    }
}

/// A write to `cgroup.subtree_control`: controllers to hand on, and to hand on no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    pub enable: Controllers,
    pub disable: Controllers,
}

impl Change {
    /// Reads words such as `+memory -pids`; of a controller that is named twice the last word counts.
    pub fn parse(text: &str) -> Result<Self> {
        let mut change = Self { enable: Controllers::empty(), disable: Controllers::empty() };
        for word in text.split([' ', '\n', '\t']).filter(|word| !word.is_empty()) {
            let named = word.get(1..).and_then(|name| NAMES.iter().find(|(known, _)| *known == name));
            let (_, one) = *named.ok_or(Errno::EINVAL)?;
            match word.as_bytes()[0] {
                b'+' => (change.enable, change.disable) = (change.enable | one, change.disable - one),
                b'-' => (change.enable, change.disable) = (change.enable - one, change.disable | one),
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(change)
    }
}

/// The facts about a group that decide whether it may hand on a controller.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Controllers that it was handed itself.
    pub has: Controllers,
    /// Controllers that it hands on.
    pub gives: Controllers,
    /// Controllers that groups directly below it hand on in turn.
    pub used_below: Controllers,
    /// Tasks of its own run in it.
    pub has_tasks: bool,
    /// Tasks run in a group below it.
    pub is_populated_below: bool,
}

impl Standing {
    /// Whether processes may be in it beside groups below that compete with them: it hands on nothing that counts whole
    /// processes, and nobody is below.
    fn can_be_thread_root(self) -> bool {
        !self.is_populated_below && Controllers::THREADED.contains(self.gives)
    }

    /// Whether a process may be moved into it; `EBUSY`.
    pub fn admits_process(self) -> Result<()> {
        if self.gives.is_empty() || self.can_be_thread_root() { Ok(()) } else { Err(Errno::EBUSY) }
    }

    /// The controllers that it hands on after a change. `ENOENT`: it has not got one itself. `EBUSY`: one is used below, or it
    /// has processes of its own, which the groups below would compete with.
    pub fn after(self, change: Change) -> Result<Controllers> {
        let (enable, disable) = (change.enable - self.gives, change.disable & self.gives);
        if !self.has.contains(enable) {
            return Err(Errno::ENOENT);
        }
        if disable.intersects(self.used_below) {
            return Err(Errno::EBUSY);
        }
        let counts_processes = !Controllers::THREADED.contains(enable);
        if !enable.is_empty() && self.has_tasks && (counts_processes || !self.can_be_thread_root()) {
            return Err(Errno::EBUSY);
        }
        Ok((self.gives | enable) - disable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Controllers = Controllers::all();

    fn standing() -> Standing {
        Standing {
            has: ALL,
            gives: Controllers::empty(),
            used_below: Controllers::empty(),
            has_tasks: false,
            is_populated_below: false,
        }
    }

    #[test]
    fn words_name_controllers_and_the_last_one_counts() {
        let change = Change::parse("+memory -pids  +pids -memory\n").unwrap();
        assert_eq!(change, Change { enable: Controllers::PIDS, disable: Controllers::MEMORY });
        for bad in ["memory", "+hugetlb", "+", "*pids", "+é"] {
            assert_eq!(Change::parse(bad), Err(Errno::EINVAL), "{bad}");
        }
        assert_eq!(ALL.names(), "cpuset cpu io memory pids");
        assert_eq!(Controllers::empty().names(), "");
    }

    #[test]
    fn a_group_with_processes_hands_on_only_what_tells_threads_apart() {
        let enable =
            |standing: Standing, enable| standing.after(Change { enable, disable: Controllers::empty() });
        let busy = Standing { has_tasks: true, ..standing() };
        assert_eq!(enable(standing(), ALL), Ok(ALL));
        assert_eq!(enable(busy, Controllers::MEMORY), Err(Errno::EBUSY));
        assert_eq!(enable(busy, Controllers::PIDS), Ok(Controllers::PIDS));
        let populated = Standing { is_populated_below: true, ..busy };
        assert_eq!(enable(populated, Controllers::PIDS), Err(Errno::EBUSY));
        // A controller that is handed on already changes nothing.
        let gives = Standing { gives: Controllers::MEMORY, ..populated };
        assert_eq!(enable(gives, Controllers::MEMORY), Ok(Controllers::MEMORY));
        let poor = Standing { has: Controllers::CPU, ..standing() };
        assert_eq!(enable(poor, Controllers::PIDS), Err(Errno::ENOENT));
    }

    #[test]
    fn what_is_used_below_stays() {
        let used = Standing { gives: ALL, used_below: Controllers::PIDS, ..standing() };
        let disable = |disable| used.after(Change { enable: Controllers::empty(), disable });
        assert_eq!(disable(Controllers::PIDS), Err(Errno::EBUSY));
        assert_eq!(disable(Controllers::IO), Ok(ALL - Controllers::IO));
    }

    #[test]
    fn processes_go_where_nothing_that_counts_them_is_handed_on() {
        assert_eq!(standing().admits_process(), Ok(()));
        let threaded = Standing { gives: Controllers::THREADED, ..standing() };
        assert_eq!(threaded.admits_process(), Ok(()));
        assert_eq!(Standing { is_populated_below: true, ..threaded }.admits_process(), Err(Errno::EBUSY));
        let whole = Standing { gives: Controllers::MEMORY, ..standing() };
        assert_eq!(whole.admits_process(), Err(Errno::EBUSY));
        assert_eq!(Standing { is_populated_below: true, ..standing() }.admits_process(), Ok(()));
    }
}
