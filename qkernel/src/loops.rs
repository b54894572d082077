//! The kernel's loops over things of which a program chooses the number or the length, by families.
//!
//! The kernel is not pre-empted, so each of them is either short whatever a program does, or counts what it does and lets
//! others go on in between ([`machine::sched::work`]): timers that are due fire, news of the host are taken, other tasks run
//! whose turn it is, and a task that is to end leaves work that is not worth finishing. `test/guest/longwork.c` does the
//! worst of each family and measures for how long another task is kept from running. Whoever adds such a loop adds it here.

/// How a family of loops keeps others going.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// It counts each step.
    Counted,
    /// It counts each piece of its work, which is so long at most.
    Pieces,
    /// It is short: the number is bounded, and each step is quick.
    Short,
}

/// A family of loops.
#[derive(Debug)]
pub struct Family {
    /// Its name in `longwork`.
    pub name: &'static str,
    /// The things that the loops go through, and how many there may be.
    pub over: &'static str,
    pub bound: Bound,
    /// Where.
    pub places: &'static str,
}

const fn family(name: &'static str, bound: Bound, over: &'static str, places: &'static str) -> Family {
    Family { name, over, bound, places }
}

/// All of them.
pub const FAMILIES: &[Family] = &[
    family(
        "deep-maps",
        Bound::Counted,
        "names of a mapped file's path, 1 MiB of text at most, for each mapping",
        "fs/path.rs, proc/maps.rs, pseudo.rs",
    ),
    family(
        "many-maps",
        Bound::Counted,
        "mappings of an address space, 65,530",
        "mm/report.rs, mm/map.rs, mm/fork.rs, proc/maps.rs",
    ),
    family(
        "deep-paths",
        Bound::Counted,
        "directories in each other, as many as there is memory; steps of a path, 2,048",
        "fs/path.rs, fs/walk.rs, fs/dentry.rs, fs/names.rs",
    ),
    family(
        "mounts",
        Bound::Counted,
        "mounts on top of and in each other, 10,000 a container",
        "fs/mount.rs, proc/mounts.rs",
    ),
    family(
        "random",
        Bound::Pieces,
        "bytes of a vector of buffers, 2 GiB a call: 512 KiB",
        "mm/io.rs, fs/devfs.rs",
    ),
    family(
        "getrandom",
        Bound::Pieces,
        "random bytes for one buffer, 2 GiB: 512 KiB",
        "mm/io.rs, fs/devfs.rs",
    ),
    family(
        "zeros",
        Bound::Pieces,
        "bytes of a vector of buffers, 2 GiB a call: 512 KiB",
        "mm/io.rs, fs/devfs.rs",
    ),
    family("null", Bound::Short, "buffers of a vector that are not looked into, 1,024", "fs/special.rs"),
    family(
        "forks",
        Bound::Counted,
        "pages and tables of a process that forks",
        "mm/fork.rs, mm/pagetable.rs",
    ),
    family(
        "pages",
        Bound::Counted,
        "pages of a range that is protected, locked, looked at, moved or given back",
        "mm/pagetable.rs, mm/map.rs, mm/remap.rs, mm/advice.rs, mm/aspace.rs, platform/systrap.rs",
    ),
    family("end", Bound::Pieces, "pages of a process that ends or runs a program: 32,768", "mm/aspace.rs"),
    family(
        "memory-files",
        Bound::Pieces,
        "pages of a file in memory that is filled, copied, cut or punched",
        "mm/object.rs, mm/pages.rs, syscall/transfer",
    ),
    family(
        "descriptors",
        Bound::Counted,
        "descriptors of a process, 1,048,576, that are copied, polled or closed",
        "fs/file/table.rs, syscall/poll, syscall/dup.rs",
    ),
    family("epoll", Bound::Counted, "files in an epoll set, as many as there are descriptors", "fs/epoll"),
    family(
        "locks",
        Bound::Counted,
        "record locks of a file, as many as there is memory",
        "fs/locks.rs, proc/locks.rs",
    ),
    family("futexes", Bound::Counted, "waiters on a futex, as many as there are tasks", "task/futex"),
    family(
        "processes",
        Bound::Counted,
        "processes that are signalled, listed or changed, as many as the limit of tasks",
        "task/tree.rs, task/signal, proc/mod.rs, cgroupfs/members.rs, cgroupfs/processes.rs, hibernate/facts.rs",
    ),
    family(
        "directory",
        Bound::Counted,
        "names in a directory in memory; control groups, 16,384 a container",
        "fs/tmpfs/dir.rs, syscall/getdents.rs, cgroupfs/dir.rs",
    ),
    family("links", Bound::Counted, "steps of 40 symbolic links, 80,000", "fs/walk.rs"),
    family(
        "sockets",
        Bound::Counted,
        "sockets of a sandbox, messages in a queue, and ports of a range, 65,535",
        "proc/net_tables.rs, net/inbox, net/inet/local_ports.rs, hibernate/facts.rs, hibernate/awaited.rs",
    ),
    family(
        "semaphores",
        Bound::Short,
        "semaphores of a set, 32,000, and operations of a call, 500",
        "ipc/sem",
    ),
    family(
        "timers",
        Bound::Pieces,
        "timers that are due together, 256; all of them where a sandbox falls asleep, 256 at a time",
        "sched/timer.rs, hibernate/timers.rs, hibernate/facts.rs",
    ),
    family(
        "watches",
        Bound::Counted,
        "watches of an instance of inotify, and of control groups, 64 of them in each other",
        "fs/notify, fs/inotify.rs, task/groups/events.rs",
    ),
    family(
        "other-memory",
        Bound::Pieces,
        "bytes between two processes, 2 GiB a call: 512 KiB",
        "syscall/memory/process_vm.rs",
    ),
    family(
        "arguments",
        Bound::Short,
        "arguments of a program, a quarter of the stack's limit",
        "task/exec.rs, task/exec/initial_stack.rs",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_worst_of_each_family_is_done() {
        let program = include_str!("../../test/guest/longwork.c");
        let table =
            program.split_once("} families[] = {").and_then(|(_, rest)| rest.split_once("};")).unwrap().0;
        let mut done: Vec<&str> =
            table.split("{\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let mut told: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        done.sort_unstable();
        told.sort_unstable();
        assert_eq!(done, told);
        assert!(FAMILIES.iter().all(|family| !family.over.is_empty() && !family.places.is_empty()));
    }
}
