//! `/proc/locks`, and the locks of a descriptor in its `fdinfo` (`proc_locks(5)`).

use alloc::sync::Arc;

use crate::fs::caller::PidOf;
use crate::fs::file::{File, FileTable};
use crate::fs::leases;
use crate::fs::locks::{self, END, Listed, Lock, Node, Owner, Shown};
use crate::proc::Whole;
use crate::proc::mounts::{major, minor};
use crate::pseudo::Out;
use crate::task;
use machine::errno::Result;

/// `/proc/locks`: those of processes that the reader sees.
pub fn locks(_: &Whole, out: &mut Out) -> Result<()> {
    let mut number = 0;
    let mut from = 0;
    while let Some(listed) = locks::list(from)? {
        from = listed.next;
        out.entry()?;
        push_file(out, listed, &mut number)?;
    }
    from = 0;
    while let Some(listed) = leases::list(from)? {
        from = listed.next;
        out.entry()?;
        let numbers = numbers_of(listed.node.as_ref());
        for lease in listed.leases.iter().filter(|lease| id_of(lease.process) != 0) {
            number += 1;
            write!(out, "{number}: ");
            push_lease(out, lease, numbers);
        }
    }
    Ok(())
}

/// The lines of `fdinfo/N` about the locks that were taken by this description, by whoever has this table if they are a process's.
pub fn of_descriptor(files: &FileTable, file: &Arc<File>, out: &mut Out) -> Result<()> {
    let mut number = 0;
    if let Some(listed) = locks::list_of(file)? {
        let is_its = |lock: &Lock| lock.file == file.id;
        let is_theirs = |lock: &Lock| match lock.owner {
            Owner::Table(table) => table == files.id,
            Owner::Description(_) | Owner::Outside { .. } => true,
        };
        let numbers = numbers_of(listed.node.as_ref());
        for shown in listed.held.iter().filter(|shown| is_its(&shown.lock) && is_theirs(&shown.lock)) {
            number += 1;
            write!(out, "lock:\t{number}: ");
            push_lock(out, shown, numbers);
        }
    }
    if let Some(lease) = leases::of_file(file) {
        number += 1;
        write!(out, "lock:\t{number}: ");
        push_lease(out, &lease, numbers_of(Some(&Node::of(file))));
    }
    Ok(())
}

/// A process as the reader knows it; 0: it does not.
fn id_of(process: PidOf) -> u32 {
    process.seen_by(&*task::current())
}

fn numbers_of(node: Option<&Node>) -> (u64, u64) {
    node.and_then(Node::numbers).unwrap_or_default()
}

/// Each lock with those that wait for it.
fn push_file(out: &mut Out, mut listed: Listed, number: &mut u64) -> Result<()> {
    let is_seen = |shown: &&Shown| id_of(shown.lock.process) != 0;
    if !listed.held.iter().any(|shown| is_seen(&shown)) {
        return Ok(());
    }
    let numbers = numbers_of(listed.node.as_ref());
    let blocked = &mut listed.blocked;
    for held in listed.held.iter().filter(is_seen) {
        *number += 1;
        write!(out, "{number}: ");
        push_lock(out, held, numbers);
        if blocked.is_empty() {
            continue;
        }
        let waits = |shown: &Shown| shown.is_flock == held.is_flock && held.lock.conflicts(&shown.lock);
        for shown in blocked.iter().filter(|shown| waits(shown)).filter(is_seen) {
            write!(out, "{number}: -> ");
            push_lock(out, shown, numbers);
        }
        blocked.retain(|shown| !waits(shown));
        out.entry()?;
    }
    Ok(())
}

fn push_lock(out: &mut Out, shown: &Shown, numbers: (u64, u64)) {
    let Shown { is_flock, lock } = shown;
    let kind = match lock.owner {
        _ if *is_flock => "FLOCK ",
        Owner::Table(_) => "POSIX ",
        Owner::Description(_) | Owner::Outside { .. } => "OFDLCK",
    };
    write!(out, "{kind} ADVISORY  {} ", if lock.exclusive { "WRITE" } else { "READ" });
    if !is_flock && matches!(lock.owner, Owner::Description(_)) {
        write!(out, "-1");
    } else {
        write!(out, "{}", id_of(lock.process));
    }
    push_numbers(out, numbers);
    if lock.end == END {
        writeln!(out, "{} EOF", lock.start);
    } else {
        writeln!(out, "{} {}", lock.start, lock.end);
    }
}

fn push_lease(out: &mut Out, lease: &leases::Shown, numbers: (u64, u64)) {
    let state = if lease.is_breaking { "BREAKING" } else { "ACTIVE" };
    let kind = match lease.exclusive {
        Some(true) => "WRITE",
        Some(false) => "READ",
        None => "UNLCK",
    };
    write!(out, "LEASE  {state:<9} {kind} {}", id_of(lease.process));
    push_numbers(out, numbers);
    out.push(b"0 EOF\n");
}

fn push_numbers(out: &mut Out, (dev, ino): (u64, u64)) {
    write!(out, " {:02x}:{:02x}:{ino} ", major(dev), minor(dev));
}
