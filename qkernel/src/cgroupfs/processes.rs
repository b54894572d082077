//! Files about a group's processes and the groups below it: `cgroup.*`.

use alloc::sync::Arc;
use core::fmt::Display;

use crate::cgroupfs::own::{number, push_limit};
use crate::cgroupfs::{Group, check_move};
use crate::creds::Creds;
use crate::pseudo::{Out, parse_number};
use crate::task;
use crate::task::groups::{Change, MAX};
use crate::task::process::Process;
use machine::errno::{Errno, Result};
use machine::sched::work;

pub fn controllers(group: &Group, out: &mut Out) -> Result<()> {
    number(out, group.groups().facts(group.id)?.standing.has.names())
}

pub fn subtree_control(group: &Group, out: &mut Out) -> Result<()> {
    number(out, group.groups().facts(group.id)?.standing.gives.names())
}

pub fn set_subtree_control(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let change = Change::parse(text)?;
    // No process that begins has its group already and does not count yet.
    let _no_forks = group.container.pids.tree.lock();
    group.groups().hand_on(group.id, change)
}

pub fn events(group: &Group, out: &mut Out) -> Result<()> {
    let populated = u8::from(group.groups().facts(group.id)?.tasks != 0);
    number(out, format_args!("populated {populated}\nfrozen 0"))
}

pub fn stat(group: &Group, out: &mut Out) -> Result<()> {
    let descendants = group.groups().facts(group.id)?.descendants;
    number(out, format_args!("nr_descendants {descendants}\nnr_dying_descendants 0"))
}

pub fn max_depth(group: &Group, out: &mut Out) -> Result<()> {
    show_limit(out, group.groups().facts(group.id)?.settings.max_depth)
}

pub fn max_descendants(group: &Group, out: &mut Out) -> Result<()> {
    show_limit(out, group.groups().facts(group.id)?.settings.max_descendants)
}

pub fn set_max_depth(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let most = count_limit(text)?;
    group.groups().set(group.id, |settings| settings.max_depth = most)
}

pub fn set_max_descendants(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let most = count_limit(text)?;
    group.groups().set(group.id, |settings| settings.max_descendants = most)
}

/// A limit that a group keeps.
pub fn show_limit(out: &mut Out, limit: u64) -> Result<()> {
    push_limit(out, Some(limit).filter(|limit| *limit != MAX), "\n");
    Ok(())
}

/// Reads a limit of groups: `ERANGE` for a number that is none.
fn count_limit(text: &str) -> Result<u64> {
    if text == "max" {
        return Ok(MAX);
    }
    let most = parse_number(text.as_bytes())?;
    if i32::try_from(most).is_err() || most < 0 { Err(Errno::ERANGE) } else { Ok(most.unsigned_abs()) }
}

/// Only groups of whole processes exist.
pub fn set_type(_: &Group, text: &str, _: &Creds) -> Result<()> {
    Err(if text == "threaded" { Errno::EOPNOTSUPP } else { Errno::EINVAL })
}

pub fn kill(group: &Group, text: &str, _: &Creds) -> Result<()> {
    if parse_number(text.as_bytes())? != 1 {
        return Err(Errno::ERANGE);
    }
    group.kill();
    Ok(())
}

pub fn procs(group: &Group, out: &mut Out) -> Result<()> {
    lines(out, group.own_processes().iter().map(|process| process.pid))
}

pub fn threads(group: &Group, out: &mut Out) -> Result<()> {
    for process in group.own_processes() {
        let tasks = process.tasks.lock().clone();
        lines(out, tasks.iter().map(|task| task.tid()))?;
    }
    Ok(())
}

fn lines<T: Display>(out: &mut Out, mut values: impl Iterator<Item = T>) -> Result<()> {
    values.try_for_each(|value| {
        out.entry()?;
        number(out, value)
    })
}

/// The process of an id, 0 for the writer's own; `ESRCH` unless it is the container's.
fn named(group: &Group, text: &str) -> Result<Arc<Process>> {
    let pid = u32::try_from(parse_number(text.as_bytes())?).map_err(|_| Errno::EINVAL)?;
    let me = task::current();
    let process = match pid {
        0 => me.process.clone(),
        pid => me.process.container.pids.find_task(pid).ok_or(Errno::ESRCH)?.process.clone(),
    };
    if Arc::ptr_eq(&process.container, &group.container) { Ok(process) } else { Err(Errno::ESRCH) }
}

/// Moves the process, with all its threads, into the group.
pub fn move_process(group: &Group, text: &str, opener: &Creds) -> Result<()> {
    let process = named(group, text)?;
    let groups = group.groups();
    loop {
        // Somebody else may move it meanwhile, to where the writer may not take it from.
        let from = process.member.group();
        check_move(groups, from, group.id, opener)?;
        if groups.move_to(&process.member, (from, group.id), process.group_ticks())? {
            break;
        }
        work::count_or_end(1)?;
    }
    groups.tell();
    Ok(())
}

/// A thread stays in its process's group.
pub fn move_thread(group: &Group, text: &str, _: &Creds) -> Result<()> {
    if named(group, text)?.member.group() == group.id { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}
