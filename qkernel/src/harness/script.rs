//! Steps that a test writes down.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::path::Path;
use crate::harness::host::{feed_process, results};
use crate::harness::rounds::run_all;
use crate::harness::steps::{SCRATCH, Step};
use crate::signals::{SIGUSR1, Source};
use crate::task::process::Process;
use crate::task::signal::send_to_process;

pub const GETPID: u64 = 39;
pub const PAUSE: u64 = 34;
pub const ACCESS: u64 = 21;
pub const SCHED_YIELD: u64 = 24;
pub const FORK: u64 = 57;
pub const WAIT4: u64 = 61;
pub const KILL: u64 = 62;
pub const MKDIR: u64 = 83;
pub const SETPGID: u64 = 109;
pub const GETPPID: u64 = 110;
pub const GETPGID: u64 = 121;
pub const GETSID: u64 = 124;
pub const SIGTIMEDWAIT: u64 = 128;
pub const SETHOSTNAME: u64 = 170;
pub const EXIT_GROUP: u64 = 231;

/// `kill(2)`: all that the caller may.
pub const EVERYBODY: u64 = u64::MAX;
/// `wait4(2)`: any child.
pub const ANY: u64 = u64::MAX;
pub const WNOHANG: u64 = 1;

pub fn call(number: u64, args: &[u64]) -> Step {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    Step::Call { number, args: all }
}

pub fn text(addr: u64, text: &[u8]) -> Step {
    Step::Write { addr, bytes: text.to_vec() }
}

pub fn has(root: &Path, name: &[u8]) -> bool {
    root.inode.lookup(name).is_ok()
}

/// Steps to sleep until [`turn`].
pub fn sleep() -> impl Iterator<Item = Step> {
    const SIGPROCMASK: u64 = 14;
    const SET: u64 = SCRATCH + 0x800;
    let begin = [text(SET, &(1_u64 << (SIGUSR1 - 1)).to_le_bytes()), call(SIGPROCMASK, &[0, SET, 0, 8])];
    // A stop or a pause ends the call (`signal(7)`).
    begin.into_iter().chain((0..8).map(|_| call(SIGTIMEDWAIT, &[SET, 0, 0, 8])))
}

/// Ends a [`sleep`].
pub fn wake(process: &Arc<Process>) {
    send_to_process(process, SIGUSR1, Source::Kernel);
}

/// Wakes a process that sleeps as by [`sleep`], has it take these steps and sleep again; runs all tasks until each sleeps.
/// Result: what its calls have come to.
pub fn turn(process: &Arc<Process>, steps: impl IntoIterator<Item = Step>) -> Vec<i64> {
    let steps: Vec<Step> = steps.into_iter().collect();
    let calls = steps.iter().filter(|step| matches!(step, Step::Call { .. })).count();
    let (container, pid) = (process.container.id, process.pid);
    feed_process(container, pid, steps.into_iter().chain(sleep()));
    wake(process);
    run_all();
    let mut results = results(container, pid);
    results.truncate(calls);
    results
}
