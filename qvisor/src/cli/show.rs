//! `dormouse list`, `state`, `kill`, `hibernate`, `wake`, `events` and `stats`.

use std::fmt::Write;
use std::io::{BufRead, Write as _};

use super::{Failure, say};
use crate::container;
use crate::control::{self, Answer, Figures, Order};
use crate::hibernate::Reap;
use crate::signals;
use crate::state::{Id, Root};
use crate::status::Status;

pub(super) fn list(root: &Root, json: bool) -> Result<u8, Failure> {
    let states = root.states()?;
    if json {
        return say(&(serde_json::to_string_pretty(&states)? + "\n"));
    }
    let width = states.iter().map(|state| state.id.len()).max().unwrap_or(0).max(12);
    let mut text = format!("{:width$}  {:>8}  {:9}  {:17}  BUNDLE\n", "ID", "PID", "STATUS", "STATE");
    for state in states {
        let (status, bundle) = (state.status.to_string(), state.bundle.display());
        let does = state.sandbox_state.map_or_else(|| "-".into(), |state| state.to_string());
        writeln!(text, "{:width$}  {:>8}  {status:9}  {does:17}  {bundle}", state.id, state.pid)?;
    }
    say(&text)
}

pub(super) fn state(root: &Root, id: &str) -> Result<u8, Failure> {
    let state = root.state(&Id::new(id)?)?;
    say(&(serde_json::to_string_pretty(&state)? + "\n"))
}

pub(super) fn kill(root: &Root, id: &str, signal: &str, all: bool) -> Result<u8, Failure> {
    let id = Id::new(id)?;
    let signal = signals::parse(signal).ok_or_else(|| {
        format!("cannot send signal {signal:?}: no such signal; pass a name or a number from 1 to 64")
    })?;
    container::kill(root, &id, signal, all)?;
    Ok(0)
}

pub(super) fn hibernate(root: &Root, id: &str, json: bool) -> Result<u8, Failure> {
    let failed = |why: String| {
        let warm = if why.contains("ended") { "" } else { "; the sandbox stays warm" };
        format!("cannot hibernate sandbox {id}: {why}{warm}")
    };
    let Some(Figures::Hibernated(done)) = order(root, id, Order::Hibernate, failed)?.figures else {
        return Err(failed("its VMM did not say how it went".into()).into());
    };
    if json {
        return say(&(serde_json::to_string_pretty(&done)? + "\n"));
    }
    let written = done.swap_bytes + done.reap_bytes;
    let mut text = format!("{id}: hibernated in {} ms\n", millis(done.total_us));
    writeln!(text, "pages    {} stored, {} of them the working set", done.pages, done.working_set_pages)?;
    writeln!(
        text,
        "written  {written} bytes; {} pages of one word, {} kept",
        done.word_pages, done.kept_pages
    )?;
    writeln!(text, "freed    {} bytes of memory, {} of the kernel's", done.freed_bytes, done.heap_bytes)?;
    let [pause, collect, write, release] =
        [done.pause_us, done.collect_us, done.write_us, done.release_us].map(millis);
    writeln!(
        text,
        "times    pause {pause} ms, collect {collect} ms, write {write} ms, release {release} ms"
    )?;
    say(&text)
}

pub(super) fn wake(root: &Root, id: &str, json: bool, reap: Option<Reap>) -> Result<u8, Failure> {
    let failed = |why: String| format!("cannot wake sandbox {id}: {why}; see dormouse state {id}");
    let order_of = Order::Wake { reap };
    let Some(Figures::Woken(done)) = order(root, id, order_of, failed)?.figures else {
        return Err(failed("its VMM did not say how it went".into()).into());
    };
    if json {
        return say(&(serde_json::to_string_pretty(&done)? + "\n"));
    }
    let (total, prefetch) = (millis(done.total_us), millis(done.prefetch_us));
    let (pages, bytes) = (done.pages, done.bytes);
    say(&format!("{id}: woken in {total} ms\nprefetch {pages} pages, {bytes} bytes read in {prefetch} ms\n"))
}

/// Gives an order that is answered by figures, or by statistics.
fn order(root: &Root, id: &str, order: Order, failed: impl Fn(String) -> String) -> Result<Answer, Failure> {
    let id = Id::new(id)?;
    if root.state(&id)?.status == Status::Stopped {
        return Err(failed("it has ended".into()).into());
    }
    Ok(control::order(&root.sandbox(&id)?, order).map_err(|error| failed(error.to_string()))?)
}

pub(super) fn stats(root: &Root, id: &str, json: bool) -> Result<u8, Failure> {
    let failed = |why: String| format!("cannot read statistics of sandbox {id}: {why}; see dormouse list");
    let Some(stats) = order(root, id, Order::Stats, failed)?.stats else {
        return Err(failed("its VMM did not give any".into()).into());
    };
    if json {
        return say(&(serde_json::to_string_pretty(&stats)? + "\n"));
    }
    let memory = &stats.memory;
    let lines = [
        ("applications, in memory", memory.user_resident_bytes),
        ("applications, swapped", memory.swapped_bytes),
        ("working set", memory.working_set_bytes),
        ("files, mapped", memory.file_mapped_bytes),
        ("kernel heap", memory.kernel_heap_bytes),
        ("VMM, resident", memory.vmm_rss_bytes),
        ("VMM, proportional", memory.vmm_pss_bytes),
        ("in the swap file", memory.swap_file_bytes),
        ("in the REAP file", memory.reap_file_bytes),
        ("read", stats.read_bytes),
        ("written", stats.written_bytes),
    ];
    let mut text = String::new();
    for (what, bytes) in lines {
        writeln!(text, "{what:24} {bytes:>14} bytes")?;
    }
    let lines = [
        ("faults served", stats.swap_in_faults),
        ("pages by faults", stats.swap_in_pages),
        ("hibernations", stats.hibernations),
        ("failed hibernations", stats.failed_hibernations),
        ("wakes", stats.wakes),
    ];
    for (what, count) in lines {
        writeln!(text, "{what:24} {count:>14}")?;
    }
    for class in &stats.wake_times {
        writeln!(text, "  below {:>10} µs      {:>14}", class.below_us, class.wakes)?;
    }
    say(&text)
}

pub(super) fn events(root: &Root, id: &str) -> Result<u8, Failure> {
    let id = Id::new(id)?;
    let failed =
        |why: String| format!("cannot read events of sandbox {}: {why}; see dormouse list", id.as_str());
    if root.state(&id)?.status == Status::Stopped {
        return Err(failed("it has ended".into()).into());
    }
    let events = control::events(&root.sandbox(&id)?).map_err(|error| failed(error.to_string()))?;
    let mut out = std::io::stdout();
    for line in events.split(b'\n') {
        // One that was cut off is the last.
        let Ok(line) = line else { break };
        if let Some(why) = refusal(&line) {
            return Err(failed(why).into());
        }
        // Whoever reads this has gone, or wants each line when it comes.
        if out.write_all(&[&line[..], b"\n"].concat()).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(0)
}

/// Why there are no events, if that is what the line says: an event says what the sandbox is, an answer does not.
fn refusal(line: &[u8]) -> Option<String> {
    let line: serde_json::Value = serde_json::from_slice(line).ok()?;
    line.get("to").is_none().then(|| line.get("error")?.as_str().map(str::to_owned))?
}

fn millis(us: u64) -> String {
    format!("{}.{:03}", us / 1000, us % 1000)
}
