//! `dormouse list`, `state`, `kill`, `hibernate`, `wake` and `stats`.

use std::collections::BTreeMap;
use std::fmt::Write;

use runtime::state::{Id, Root};
use runtime::{container, orders};
use vmm::hibernate::Reap;
use vmm::signals;

use crate::choices::ListFormat;
use crate::failure::{Failure, say};

pub fn list(root: &Root, format: ListFormat, quiet: bool) -> Result<u8, Failure> {
    let states = root.states()?;
    if quiet {
        return say(&states.iter().map(|state| format!("{}\n", state.id)).collect::<String>());
    }
    if format == ListFormat::Json {
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

pub fn state(root: &Root, id: &str) -> Result<u8, Failure> {
    let state = root.state(&Id::new(id)?)?;
    say(&(serde_json::to_string_pretty(&state)? + "\n"))
}

pub fn kill(root: &Root, id: &str, signal: &str, all: bool) -> Result<u8, Failure> {
    let id = Id::new(id)?;
    let number = if signal == "0" { Some(0) } else { signals::parse(signal) };
    let signal = number.ok_or_else(|| {
        format!("cannot send signal to sandbox {}: unknown signal {signal:?}; pass a name or a number from 0 to 64", id.as_str())
    })?;
    container::kill(root, &id, signal, all)?;
    Ok(0)
}

pub fn hibernate(root: &Root, id: &str, json: bool) -> Result<u8, Failure> {
    let done = orders::hibernate(root, &Id::new(id)?)?;
    if json {
        return say(&(serde_json::to_string_pretty(&done)? + "\n"));
    }
    let written = done.swap_bytes + done.reap_bytes + done.packed_bytes;
    let mut text = format!("{id}: hibernated in {} ms\n", millis(done.total_us));
    writeln!(text, "pages    {} stored, {} of them the working set", done.pages, done.working_set_pages)?;
    writeln!(
        text,
        "written  {written} bytes; {} pages of one word, {} kept",
        done.word_pages, done.kept_pages
    )?;
    if done.memory_pages > 0 {
        writeln!(
            text,
            "memory   {} pages kept, in {} bytes with others",
            done.memory_pages, done.memory_bytes
        )?;
    }
    writeln!(text, "freed    {} bytes of memory, {} of the kernel's", done.freed_bytes, done.heap_bytes)?;
    let [pause, collect, write, release] =
        [done.pause_us, done.collect_us, done.write_us, done.release_us].map(millis);
    writeln!(
        text,
        "times    pause {pause} ms, collect {collect} ms, write {write} ms, release {release} ms"
    )?;
    say(&text)
}

pub fn wake(root: &Root, id: &str, json: bool, reap: Option<Reap>) -> Result<u8, Failure> {
    let done = orders::wake(root, &Id::new(id)?, reap)?;
    if json {
        return say(&(serde_json::to_string_pretty(&done)? + "\n"));
    }
    let (total, prefetch) = (millis(done.total_us), millis(done.prefetch_us));
    let (pages, bytes) = (done.pages, done.bytes);
    say(&format!("{id}: woken in {total} ms\nprefetch {pages} pages, {bytes} bytes read in {prefetch} ms\n"))
}

pub fn stats(root: &Root, id: &str, json: bool) -> Result<u8, Failure> {
    let stats = orders::stats(root, &Id::new(id)?)?;
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
        ("in the packed file", memory.packed_file_bytes),
        ("packed in memory", memory.home_bytes),
        ("read", stats.read_bytes),
        ("written", stats.written_bytes),
        ("copied for patched calls", stats.patched_bytes),
        ("given back while awake", stats.returned_bytes),
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
        ("wakes for timers", stats.timer_wakes),
        ("answered probes", stats.answered_probes),
        ("unknown system calls", stats.unknown_calls),
    ];
    for (what, count) in lines {
        writeln!(text, "{what:24} {count:>14}")?;
    }
    writeln!(text, "{:24} {:>14}", "codec", stats.codec)?;
    let of_home = |name| stats.home.get(name).copied().unwrap_or(0);
    let [input, output] = ["packed_input_bytes", "packed_output_bytes"].map(of_home);
    let [set_input, set_output] = ["set_input_bytes", "set_output_bytes"].map(of_home);
    let on_disk = memory.swap_file_bytes + memory.reap_file_bytes + memory.packed_file_bytes;
    for (what, input, output) in [
        ("packed to one of", input, output),
        ("the working set", set_input, set_output),
        ("all, with word pages", memory.swapped_bytes, on_disk),
    ] {
        if let Some(tenths) = (input * 10).checked_div(output) {
            writeln!(text, "{what:24} {:>14}", format!("{}.{}", tenths / 10, tenths % 10))?;
        }
    }
    write_home(&mut text, &stats.home)?;
    for class in &stats.wake_times {
        writeln!(text, "  below {:>10} µs      {:>14}", class.below_us, class.wakes)?;
    }
    say(&text)
}

/// The counters of a home but those of its files.
fn write_home(text: &mut String, home: &BTreeMap<String, u64>) -> std::fmt::Result {
    let mut others = home.iter().filter(|(name, _)| !name.ends_with("_file_bytes"));
    others.try_for_each(|(name, value)| writeln!(text, "home: {name:22} {value:>10}"))
}

pub fn why(root: &Root, id: &str, json: bool) -> Result<u8, Failure> {
    let reasons = orders::why(root, &Id::new(id)?)?;
    if json {
        return say(&(serde_json::to_string_pretty(&reasons)? + "\n"));
    }
    let kept = reasons.kept_awake.map_or_else(|| "nothing".into(), |kept| kept.words());
    let woken = reasons.woken_by.map_or_else(|| "nothing so far".into(), |woken| woken.words());
    say(&format!("kept awake by {kept}\nwoken last by {woken}\n"))
}

pub fn millis(us: u64) -> String {
    format!("{}.{:03}", us / 1000, us % 1000)
}
