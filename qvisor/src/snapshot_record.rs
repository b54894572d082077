//! `dormouse snapshot record`: which pages of a snapshot a request needs (SnapBPF).
//!
//! A clone begins with the snapshot and has its pages from a copy of which nothing is cached; the command makes the request. Two lists come of
//! it: the kernel's, of the pages that programs touched, and which they wrote; and the host's, of the pages that came into the page cache.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use abi::report::WORKING_SET_MAX_PAGES;
use runtime::container::Surroundings;
use runtime::front::Attended;
use runtime::orders;
use runtime::settings::{NodeConfig, Sharing};
use runtime::snapshot::{Recorded, Recorder, Store};
use runtime::state::{Id, Root};
use serde_json::json;
use swap::capture::{self, Capture, CaptureError};
use vmm::hibernate::Wishes;
use vmm::jail::UserNamespace;
use vmm::process;

use crate::clones::{CloneOptions, run_clone_of};
use crate::failure::{Failure, say, warn};
use crate::snapshot_args::{ChangedFiles, RecordArgs, named_place};

/// How often a recording is made once more of which the host's list is not whole.
const ATTEMPTS: u32 = 3;
/// Longer than a clone is recorded.
const AWAKE: Duration = Duration::from_hours(24 * 30);
/// Bytes that what the clone changes may take up on the host's disk.
const DISK_BYTES: u64 = 1 << 30;

/// The host's list, as it comes.
#[derive(Default)]
struct Seen {
    pages: Vec<u32>,
    known: BTreeSet<u32>,
    lost: u64,
}

impl Seen {
    fn take(&mut self, capture: &mut Capture) -> Result<(), CaptureError> {
        let fills = capture.take()?;
        if !self.is_full() {
            self.lost += fills.lost;
            self.pages.extend(fills.pages.into_iter().filter(|page| self.known.insert(*page)));
        }
        Ok(())
    }

    /// Whether pages that come later are in no working set.
    fn is_full(&self) -> bool {
        self.pages.len() >= WORKING_SET_MAX_PAGES
    }

    fn is_whole(&self) -> bool {
        self.lost == 0 || self.is_full()
    }
}

pub fn record(
    root: &Root,
    node: (NodeConfig, bool),
    store: &Store,
    args: &RecordArgs,
) -> Result<u8, Failure> {
    for _ in 0..ATTEMPTS {
        if let Some(pages) = attempt(root, node.clone(), store, args)? {
            return tell(pages, args);
        }
    }
    Err(failed(args, "fills of the page cache were missed each time; try again"))
}

fn failed(args: &RecordArgs, why: &str) -> Failure {
    format!("cannot record snapshot {}: {why}", args.name).into()
}

/// Runs the clone and its requests once, and writes down what was seen; `None`: the host has missed some, and nothing is written.
fn attempt(
    root: &Root,
    node: (NodeConfig, bool),
    store: &Store,
    args: &RecordArgs,
) -> Result<Option<Recorded>, Failure> {
    let place = named_place(&args.name)?;
    if store.inspect(&place)?.files.sealed.is_some() {
        return Err(failed(args, "its content is sealed; restores record what such need"));
    }
    let mut opened = store.open(&place, None)?;
    let recorder = store.record(&mut opened, warn)?;
    let capture = opened.cold().and_then(|file| begin_capture(&recorder, file));
    let share = if opened.cold().is_some() { Sharing::Snapshot } else { Sharing::None };
    let clone = clone_options(args, share);
    let (capture, seen, slept) = (RefCell::new(capture), RefCell::new(Seen::default()), RefCell::new(None));
    let see = |seen: &RefCell<Seen>, capture: &RefCell<Option<Capture>>| {
        let taken = capture.borrow_mut().as_mut().map_or(Ok(()), |capture| seen.borrow_mut().take(capture));
        taken.map_err(|error| failed(args, &error.to_string()))
    };
    let requests = |root: &Root, id: &Id| {
        for _ in 0..args.requests {
            let code = request(args, id)?;
            see(&seen, &capture)?;
            if code != 0 {
                return Err(failed(args, &format!("its command ended with {code}")));
            }
        }
        if seen.borrow().is_whole() {
            // With its sleep the kernel tells what it has seen. It may be asleep already.
            *slept.borrow_mut() = orders::hibernate(root, id).err().map(|error| error.to_string());
            see(&seen, &capture)?;
        }
        Ok(0)
    };
    run_clone_of(root, node, store, Arc::new(opened), clone, &Attended::Further(&requests))?;
    let seen = seen.into_inner();
    if !seen.is_whole() {
        return Ok(None);
    }
    let fills = capture.into_inner().map(|_| seen.pages);
    let kept =
        store.keep_recorded(&recorder, fills.as_deref()).map_err(|error| failed(args, &error.to_string()))?;
    if args.together && kept.is_some() {
        recorder.write_together(store).map_err(|error| failed(args, &error.to_string()))?;
    }
    let why = || slept.into_inner().unwrap_or_else(|| "its programs touched no page".into());
    kept.map(Some).ok_or_else(|| failed(args, &why()))
}

/// How the clone is run.
fn clone_options(args: &RecordArgs, share: Sharing) -> CloneOptions {
    CloneOptions {
        id: Id::random(),
        disk_bytes: DISK_BYTES,
        userns: UserNamespace::default(),
        share: Some(share),
        // It sleeps when it has been recorded, and not before.
        hibernation: Wishes { idle_timeout: Some(AWAKE), ..Wishes::default() },
        surroundings: Surroundings {
            accepts_changed: args.changed_files == ChangedFiles::Accept,
            ports: args.port.clone(),
        },
    }
}

/// Begins to see which pages of a file come into the page cache; where that cannot be, it is said.
fn begin_capture(recorder: &Recorder, file: &File) -> Option<Capture> {
    match capture::check(recorder.directory()).and_then(|()| Capture::begin(file)) {
        Ok(capture) => Some(capture),
        Err(why) => {
            warn(&format!(
                "fills of the page cache cannot be seen by eBPF ({why}); the kernel's own list serves"
            ));
            None
        }
    }
}

/// Runs the command once; result: its exit code.
fn request(args: &RecordArgs, id: &Id) -> Result<u8, Failure> {
    let Some((program, rest)) = args.command.split_first() else { return Ok(0) };
    let run = || {
        // It gets the signals that this process only collects; what ends it ends this one as well, and the clone with that.
        process::unblock_signals();
        Command::new(program).args(rest).env("DORMOUSE_ID", id.as_str()).status()
    };
    let ended = thread::scope(|scope| scope.spawn(run).join());
    let ended = ended.map_err(|_| failed(args, "its command could not be waited for"))?;
    let ended =
        ended.map_err(|error| failed(args, &format!("{} cannot be run: {error}", program.display())))?;
    Ok(ended.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

fn tell(recorded: Recorded, args: &RecordArgs) -> Result<u8, Failure> {
    let Recorded { touched, filled, freed } = recorded;
    if args.json {
        let object = json!({ "touched_pages": touched, "filled_pages": filled, "freed_pages": freed });
        return say(&format!("{object:#}\n"));
    }
    say(&format!(
        "{}: {touched} pages were touched, {filled} were seen to come into the page cache, {freed} of them free in the snapshot\n",
        args.name
    ))
}
