//! The list of a container's processes for the host: what `dormouse ps` shows. It wakes nobody, waits for no lock that is held for
//! long, and touches no memory of programs, so that a sandbox that sleeps can be asked.

use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering;

use abi::report::{PROCESSES_MAX_BYTES, Report};
use abi::word::to_usize;

use crate::proc::status::{comm_of, name_of, state_of};
use crate::proc::subject::Subject;
use crate::task::container::{self, ContainerId};
use machine::host;
use machine::time;

/// Longest line.
const LINE_MAX: usize = 160;

/// Tells the host the processes of a container; see [`Report::Processes`] for the form.
pub fn tell(id: ContainerId) {
    let mut text = String::new();
    if let Some(container) = container::find(id) {
        let room = to_usize(PROCESSES_MAX_BYTES);
        for process in container.processes() {
            let line = line(&Subject::process(process.clone(), process.pid));
            if text.len() + line.len() > room || text.try_reserve(LINE_MAX).is_err() {
                break;
            }
            text.push_str(&line);
        }
    }
    host::report(&Report::Processes { container: id, lines: text.as_bytes() });
}

fn line(subject: &Subject) -> String {
    let (process, family) = (&subject.process, subject.family().unwrap_or_default());
    let task = process.any_task();
    let uid = task.as_ref().map_or(0, |task| task.creds.get().uid);
    // A space that is just being changed has a size that is about to be another one.
    let resident =
        task.as_ref().and_then(|task| task.held_aspace()).and_then(|aspace| aspace.resident_bytes_now());
    let (user, system) = process.cpu_ticks();
    let cpu_ms = time::ticks_to_ns(user + system) / 1_000_000;
    let stopped = process.stopped.load(Ordering::Relaxed);
    let state = if stopped { 'T' } else { state_of(subject, &family).0 };
    let name = name_of(subject, task.as_ref());
    let (pid, parent, threads) = (process.pid, family.parent, process.tasks.lock().len());
    let resident_kib = resident.unwrap_or(0) >> 10;
    format!(
        "{pid} {parent} {uid} {state} {threads} {resident_kib} {cpu_ms} {}\n",
        comm_of(&name).escape_ascii()
    )
}
