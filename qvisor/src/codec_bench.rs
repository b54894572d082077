//! `dormouse codec bench`: every codec on real pages, the disk that they would come back from, and what `auto` would choose.

mod chart;
mod cores;
mod disk;
mod example;
mod report;
mod sample;
mod user_memory;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use codec::{PAGE_BYTES, Style};
use iaa::discovery;
use runtime::orders;
use runtime::settings::NodeConfig;
use runtime::state::{Id, OciState, Root};
use runtime::status::{SandboxState, Status};
use rustix::fs::OFlags;
use vmm::hibernate::DEFAULT_DIR;
use vmm::process;

use self::cores::Cores;
use self::example::Example;
use self::report::Report;
use self::sample::{MOST_BYTES, Source};
use crate::codec_args::BenchArgs;
use crate::failure::{Failure, say};

/// Pages that are to be measured.
struct Pages {
    /// Whose they are, in words.
    of: String,
    source: Source,
    /// A process whose processor time is limited as theirs would be.
    pid: i32,
    /// The sandbox that was started for them, if one was: it has to live until they are read.
    _example: Option<Example>,
}

pub fn run(root: &Root, config: Option<&Path>, args: &BenchArgs) -> Result<u8, Failure> {
    if let Some(svg) = &args.svg {
        check_place(svg)?;
    }
    let pages = match &args.data {
        Some(data) => named(root, data)?,
        None => of_any(root)?,
    };
    let failed = |why: String| -> Failure { format!("cannot measure codecs on {}: {why}", pages.of).into() };
    let memory = pages.source.read(MOST_BYTES).map_err(|error| failed(format!("{error}; try again")))?;
    if memory.len() < PAGE_BYTES {
        return Err(failed(format!("there is less than a page of {PAGE_BYTES} bytes; give it more")));
    }
    if sample::is_words(&memory) {
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

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    format!("cannot write {}: {error}; pass another file with --svg", path.display()).into()
}

/// Whether a file can be made there, before time is spent on what goes into it.
fn check_place(svg: &Path) -> Result<(), Failure> {
    let directory = svg.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = fs::metadata(directory).and_then(|found| match found.is_dir() {
        true if svg.is_dir() => Err(std::io::ErrorKind::IsADirectory.into()),
        true => Ok(()),
        false => Err(std::io::ErrorKind::NotADirectory.into()),
    });
    found.map_err(|error| cannot_write(svg, &error))
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

/// Pages of a sandbox, or else of a file. What has a slash is a file's name.
fn named(root: &Root, data: &OsStr) -> Result<Pages, Failure> {
    let id = data.to_str().and_then(|text| Id::new(text).ok());
    if let Some(id) = id
        && let Ok(state) = root.state(&id)
    {
        return of_sandbox(&id, &state, None);
    }
    if data.is_empty() {
        return Err("cannot measure codecs: --data names nothing; pass a file or the ID of a sandbox".into());
    }
    let path = Path::new(data);
    let failed =
        |why: &str| -> Failure { format!("cannot measure codecs on {}: {why}", path.display()).into() };
    let opened = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let file = match opened {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !data.as_bytes().contains(&b'/') => {
            return Err(failed("there is neither a sandbox of this ID nor such a file; see dormouse list"));
        }
        opened => opened.map_err(|error| failed(&format!("{error}; pass a file that can be read")))?,
    };
    let metadata = file.metadata()?;
    let page = PAGE_BYTES as u64;
    if !metadata.is_file() {
        return Err(failed("it is not a regular file; pass one that holds pages of memory"));
    }
    if metadata.len() < page {
        let len = metadata.len();
        return Err(failed(&format!("it has {len} bytes, less than a page of {page}; pass a larger file")));
    }
    let whole = metadata.len() / page * page;
    let source = Source { file, ranges: std::iter::once(0..whole).collect() };
    Ok(Pages { of: path.display().to_string(), source, pid: process::id(), _example: None })
}

/// Pages of a sandbox that is awake.
fn of_sandbox(id: &Id, state: &OciState, example: Option<Example>) -> Result<Pages, Failure> {
    let id = id.as_str();
    let failed = |why: &str| -> Failure { format!("cannot measure codecs on sandbox {id}: {why}").into() };
    match (state.status, state.sandbox_state) {
        (Status::Stopped, _) => return Err(failed("it has ended; pass one that runs")),
        (_, Some(SandboxState::Hibernated)) => {
            return Err(failed(&format!(
                "it is hibernated, so its memory is on the disk; run: dormouse wake {id}"
            )));
        }
        (Status::Creating | Status::Created, _) => {
            return Err(failed(&format!("its program does not run yet; run: dormouse start {id}")));
        }
        (Status::Running | Status::Paused, _) => {}
    }
    let found = vmm_memory(state.pid).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            failed("only root may read a sandbox's memory; run it as root, or pass --data FILE")
        }
        _ => failed(&format!("its memory cannot be read: {error}; see dormouse state {id}")),
    })?;
    let (pid, source) = found.ok_or_else(|| failed("its VMM was not found; see dormouse list"))?;
    if source.len() == 0 {
        return Err(failed("it has no memory; ask again once its program runs"));
    }
    let of = match example {
        Some(_) => "a sandbox with Python".to_owned(),
        None => format!("sandbox {id}"),
    };
    Ok(Pages { of, source, pid, _example: example })
}

/// The VMM and the memory that it holds. The pid that a state shows is the VMM's, or that of its child, the leash.
fn vmm_memory(pid: i32) -> std::io::Result<Option<(i32, Source)>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may hold anything; behind it come the state and the parent.
    let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
    for pid in [Some(pid), parent].into_iter().flatten() {
        if let Some(source) = user_memory::open(Path::new(&format!("/proc/{pid}")))? {
            return Ok(Some((pid, source)));
        }
    }
    Ok(None)
}

/// Pages of the awake sandbox with the most memory; where there is none, of one that is started for it.
fn of_any(root: &Root) -> Result<Pages, Failure> {
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
        return of_sandbox(&id, &state, None);
    }
    let example = Example::start(root)?;
    let id = Id::new(example.id.as_str())?;
    of_sandbox(&id, &root.state(&id)?, Some(example))
}
