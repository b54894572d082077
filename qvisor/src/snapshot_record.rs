//! `dormouse snapshot record`: which pages of a snapshot a request needs (SnapBPF).
//!
//! A clone begins with the snapshot and has its pages from a copy of which nothing is cached; the command makes the request. Two lists come of
//! it: the kernel's, of the pages that programs touched, and which they wrote; and the host's, of the pages that came into the page cache.

use std::cell::RefCell;
use std::process::Command;

use runtime::container::Surroundings;
use runtime::orders;
use runtime::settings::{NodeConfig, Sharing};
use runtime::snapshot::Store;
use runtime::state::{Id, Root};
use serde_json::json;
use swap::capture::{Capture, CaptureError, Fills};
use vmm::hibernate::Wishes;
use vmm::jail::UserNamespace;

use crate::failure::{Failure, say, warn};
use crate::snapshot::{CloneOptions, run_clone_of};
use crate::snapshot_args::{ChangedFiles, RecordArgs, named_place};

/// How often a recording is made once more of which the host's list is not whole.
const ATTEMPTS: u32 = 3;
/// Bytes that what the clone changes may take up on the host's disk.
const DISK_BYTES: u64 = 1 << 30;

pub fn record(
    root: &Root,
    node: (NodeConfig, bool),
    store: &Store,
    args: &RecordArgs,
) -> Result<u8, Failure> {
    let mut lost = 0;
    for _ in 0..ATTEMPTS {
        let recorded = attempt(root, node.clone(), store, args)?;
        if let Some(fills) = recorded {
            if fills.lost > 0 {
                lost = fills.lost;
                continue;
            }
        }
        return tell(store, args);
    }
    Err(format!(
        "cannot record snapshot {}: {lost} fills of the page cache were missed; try again",
        args.name
    )
    .into())
}

/// Runs the clone and its requests once; result: what the host has seen, if it could.
fn attempt(
    root: &Root,
    node: (NodeConfig, bool),
    store: &Store,
    args: &RecordArgs,
) -> Result<Option<Fills>, Failure> {
    let place = named_place(&args.name)?;
    let mut opened = store.open(&place, None)?;
    let recorder = store.record(&mut opened)?;
    let capture = match opened.cold().map(Capture::begin) {
        Some(Ok(capture)) => Some(capture),
        Some(Err(why)) => {
            announce(&why);
            None
        }
        None => {
            warn(&format!(
                "snapshot {place} cannot be shared, so fills of the page cache are not seen; the kernel's own list serves"
            ));
            None
        }
    };
    let capture = RefCell::new(capture);
    let shares = opened.cold().is_some();
    let clone = CloneOptions {
        id: Id::random(),
        disk_bytes: DISK_BYTES,
        userns: UserNamespace::default(),
        share: shares.then_some(Sharing::Snapshot),
        hibernation: Wishes::default(),
        surroundings: Surroundings {
            accepts_changed: args.changed_files == ChangedFiles::Accept,
            ports: args.port.clone(),
        },
    };
    let seen = RefCell::new(None);
    let requests =
        |root: &Root, id: &Id| {
            let mut code = 0;
            for _ in 0..args.requests {
                code = request(args, id)?;
                if code != 0 {
                    break;
                }
            }
            *seen.borrow_mut() =
                capture.borrow_mut().as_mut().map(Capture::take).transpose().map_err(|error| {
                    Failure::from(format!("cannot record snapshot {}: {error}", args.name))
                })?;
            // With its sleep the kernel tells what it has seen.
            orders::hibernate(root, id).map_err(|error| error.to_string())?;
            Ok(code)
        };
    let code = run_clone_of(root, node, store, opened, clone, Some(&requests))?;
    if code != 0 {
        return Err(format!("cannot record snapshot {}: its command ended with {code}", args.name).into());
    }
    if !recorder.wait() {
        return Err(format!("cannot record snapshot {}: the clone told of no pages", args.name).into());
    }
    let fills = seen.into_inner();
    if let Some(fills) = fills.as_ref().filter(|fills| fills.lost == 0) {
        store.add_fills(&place, &fills.pages)?;
    }
    Ok(fills)
}

fn announce(why: &CaptureError) {
    warn(&format!("fills of the page cache cannot be seen by eBPF ({why}); the kernel's own list serves"));
}

/// Runs the command once; result: its exit code.
fn request(args: &RecordArgs, id: &Id) -> Result<u8, Failure> {
    let Some((program, rest)) = args.command.split_first() else { return Ok(0) };
    let ended = Command::new(program).args(rest).env("DORMOUSE_ID", id.as_str()).status();
    let ended = ended.map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    Ok(ended.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

fn tell(store: &Store, args: &RecordArgs) -> Result<u8, Failure> {
    let (touched, filled) = store.recorded_pages(&named_place(&args.name)?)?;
    if args.json {
        return say(&format!("{:#}\n", json!({ "touched_pages": touched, "filled_pages": filled })));
    }
    say(&format!(
        "{}: {touched} pages were touched, {filled} were seen to come into the page cache\n",
        args.name
    ))
}
