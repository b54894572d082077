//! `dormouse codec bench`: every codec on real pages, the disk that they would come back from, and what `auto` would choose.

mod chart;
mod cores;
mod disk;
pub mod example;
mod report;

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use codec::{PAGE_BYTES, Style};
use iaa::discovery;
use runtime::orders;
use runtime::settings::NodeConfig;
use runtime::state::{Id, OciState, Root};
use runtime::status::{SandboxState, Status};
use vmm::hibernate::DEFAULT_DIR;
use vmm::process;

use self::cores::Cores;
use self::example::Example;
use self::report::Report;
use crate::codec_args::BenchArgs;
use crate::failure::{Failure, say};
use crate::measuring::source::{MOST_BYTES, is_words};
use crate::measuring::{Pages, cannot_write, check_place, named, of_sandbox};

/// The things that are measured, in errors.
const WHAT: &str = "codecs";

pub fn run(root: &Root, config: Option<&Path>, args: &BenchArgs) -> Result<u8, Failure> {
    if let Some(svg) = &args.svg {
        check_place(svg)?;
    }
    // The sandbox that is started for it, if one is, has to live until its pages are read.
    let (pages, _example) = match &args.data {
        Some(data) => (named(root, data, WHAT)?, None),
        None => of_any(root)?,
    };
    let failed = |why: String| -> Failure { format!("cannot measure codecs on {}: {why}", pages.of).into() };
    let memory = pages.source.read(MOST_BYTES).map_err(|error| failed(format!("{error}; try again")))?;
    if memory.len() < PAGE_BYTES {
        return Err(failed(format!("there is less than a page of {PAGE_BYTES} bytes; give it more")));
    }
    if is_words(&memory) {
        let why = "each page holds one word again and again, and such pages are stored nowhere; take others";
        return Err(failed(why.into()));
    }
    // Before this command itself takes a core.
    let cores = Cores::watch(pages.pid);
    let disk = disk::measure(&swap_directory(config, args.swap_dir.as_deref())?)?;
    let wrong = |error: codec::Corrupt| failed(error.to_string());
    let mut measured = codec::measure(&memory, &Style::ALL, args.rounds.into()).map_err(wrong)?;
    let engine = iaa::open(&discovery::find(Path::new("/sys"), Path::new("/dev")));
    let no_accelerator = engine.as_ref().err().map(ToString::to_string);
    if let Ok(engine) = engine {
        measured.extend(codec::measure_by(&*engine, &memory, args.rounds.into()).map_err(wrong)?);
        measured.sort_by_key(|one| one.piece_bytes);
    }
    let place_bytes_s =
        swap::placing_bytes_s(&memory).ok_or_else(|| failed("there is no memory to put pages to".into()))?;
    let report = Report {
        pages_of: pages.of.clone(),
        bytes_there: pages.source.len(),
        bytes: memory.len(),
        rounds: args.rounds,
        measured,
        place_bytes_s,
        disk,
        cores,
        no_accelerator,
    };
    if let Some(svg) = &args.svg {
        let chart = chart::draw(&report.pages_of, &report.measured);
        fs::write(svg, chart).map_err(|error| cannot_write(svg, &error))?;
    }
    if args.json {
        return say(&(serde_json::to_string_pretty(&report.json())? + "\n"));
    }
    say(&report.text()?)
}

/// Where a sandbox's swap files would lie. A directory that nobody asked for is made, as a sandbox does.
fn swap_directory(config: Option<&Path>, asked: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(dir) = asked {
        return Ok(std::path::absolute(dir)?);
    }
    let usual = NodeConfig::load(config)?.default.hibernation.dir.or_else(Root::default_swap);
    let dir = usual.unwrap_or_else(|| DEFAULT_DIR.into());
    // One that cannot be made cannot be written to either, which says why.
    let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    Ok(dir)
}

/// Pages of the awake sandbox with the most memory; where there is none, of one that is started for it.
fn of_any(root: &Root) -> Result<(Pages, Option<Example>), Failure> {
    if process::effective_user() != 0 {
        let why = "only root may read its memory; run it as root, or pass --data FILE";
        return Err(format!("cannot measure codecs on a sandbox: {why}").into());
    }
    let mut most: Option<(u64, Id, OciState)> = None;
    for state in root.states()? {
        let is_awake = state.status == Status::Running
            && state.sandbox_state.is_some_and(|now| now != SandboxState::Hibernated);
        let Ok(id) = Id::new(&state.id) else { continue };
        if !is_awake {
            continue;
        }
        // One that has just ended has no statistics.
        let bytes = orders::stats(root, &id).map_or(0, |stats| stats.memory.user_resident_bytes);
        if most.as_ref().is_none_or(|(least, ..)| bytes > *least) {
            most = Some((bytes, id, state));
        }
    }
    if let Some((_, id, state)) = most {
        return Ok((of_sandbox(&id, &state, WHAT)?, None));
    }
    let example = Example::start(root, WHAT)?;
    let id = Id::new(example.id.as_str())?;
    let pages = of_sandbox(&id, &root.state(&id)?, WHAT)?;
    Ok((Pages { of: "a sandbox with Python".to_owned(), ..pages }, Some(example)))
}
