//! `/proc/sysvipc`: all objects of the reader's IPC namespace (`sysvipc(7)`).

use core::marker::PhantomData;

use crate::fs::caller::PidOf;
use crate::pseudo::{Entry, Out};
use crate::task;
use crate::task::container;
use machine::errno::Result;

/// The directory, for whatever the entries around it are about.
pub struct Lists<C>(PhantomData<C>);

impl<C: 'static> Lists<C> {
    /// Its files.
    pub const TABLE: &'static [Entry<C>] = &[
        Entry::text("msg", |_, out| show_queues(out)),
        Entry::text("sem", |_, out| show_sets(out)),
        Entry::text("shm", |_, out| show_segments(out)),
    ];
}

fn pid(pid: PidOf) -> u32 {
    pid.seen_by(&*task::current())
}

fn show_queues(out: &mut Out) -> Result<()> {
    out.push(b"       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime\n");
    let creds = task::current().creds.get();
    container::current().ipc().for_each_message_queue(|id, queue| {
        out.entry()?;
        let Ok(facts) = queue.facts(&creds, true) else { return Ok(()) };
        let perm = facts.perm;
        writeln!(
            out,
            "{:>10} {id:>10}  {:>4o}  {:>10} {:>10} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>10} {:>10} {:>10}",
            perm.key,
            perm.mode,
            facts.bytes,
            facts.messages,
            pid(facts.sender),
            pid(facts.receiver),
            perm.uid,
            perm.gid,
            perm.cuid,
            perm.cgid,
            facts.stime,
            facts.rtime,
            facts.ctime,
        );
        Ok(())
    })
}

fn show_sets(out: &mut Out) -> Result<()> {
    out.push(b"       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n");
    let creds = task::current().creds.get();
    container::current().ipc().for_each_sem_set(|id, set| {
        out.entry()?;
        let Ok(facts) = set.facts(&creds, true) else { return Ok(()) };
        let perm = facts.perm;
        writeln!(
            out,
            "{:>10} {id:>10}  {:>4o} {:>10} {:>5} {:>5} {:>5} {:>5} {:>10} {:>10}",
            perm.key,
            perm.mode,
            facts.size,
            perm.uid,
            perm.gid,
            perm.cuid,
            perm.cgid,
            facts.otime,
            facts.ctime,
        );
        Ok(())
    })
}

fn show_segments(out: &mut Out) -> Result<()> {
    out.push(b"       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n");
    let creds = task::current().creds.get();
    let ipc = container::current().ipc();
    ipc.drop_unattached();
    ipc.for_each_segment(|id, segment| {
        out.entry()?;
        let Ok(facts) = segment.facts(&creds, true) else { return Ok(()) };
        let perm = facts.perm;
        writeln!(
            out,
            "{:>10} {id:>10}  {:>4o} {:>21} {:>5} {:>5}  {:>5} {:>5} {:>5} {:>5} {:>5} {:>10} {:>10} {:>10} {:>21} {:>21}",
            perm.key,
            facts.mode,
            facts.size,
            pid(facts.creator),
            pid(facts.last),
            facts.attached,
            perm.uid,
            perm.gid,
            perm.cuid,
            perm.cgid,
            facts.atime,
            facts.dtime,
            facts.ctime,
            facts.held,
            0,
        );
        Ok(())
    })
}
