//! `/proc/sysvipc`: all objects of the reader's IPC namespace (`sysvipc(7)`).

use crate::fs::caller::PidOf;
use crate::proc::Whole;
use crate::pseudo::{Entry, Out};
use crate::task;
use crate::task::container;
use machine::errno::Result;

/// The directory.
pub static TABLE: &[Entry<Whole>] =
    &[Entry::text("msg", show_queues), Entry::text("sem", show_sets), Entry::text("shm", show_segments)];

fn pid(pid: PidOf) -> u32 {
    pid.seen_by(&*task::current())
}

fn show_queues(_: &Whole, out: &mut Out) -> Result<()> {
    out.push(b"       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime\n");
    let creds = task::current().creds.get();
    for (id, queue) in container::current().ipc().all_message_queues().0 {
        let Ok(facts) = queue.facts(&creds, true) else { continue };
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
    }
    Ok(())
}

fn show_sets(_: &Whole, out: &mut Out) -> Result<()> {
    out.push(b"       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n");
    let creds = task::current().creds.get();
    for (id, set) in container::current().ipc().all_sem_sets().0 {
        let Ok(facts) = set.facts(&creds, true) else { continue };
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
    }
    Ok(())
}

fn show_segments(_: &Whole, out: &mut Out) -> Result<()> {
    out.push(b"       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n");
    let creds = task::current().creds.get();
    for (id, segment) in container::current().ipc().all_segments() {
        let Ok(facts) = segment.facts(&creds, true) else { continue };
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
    }
    Ok(())
}
