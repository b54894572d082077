//! `dormouse diff bench`: pages as differences from those of a base, beside other ways to make a memory small, as figures 1 and 2 of
//! *Phoenix* have them ("Phoenix", section 6.1).

mod chart;
mod peers;
mod report;
mod xdelta;

use std::fs;
use std::path::Path;

use codec::PAGE_BYTES;
use runtime::settings::NodeConfig;
use runtime::snapshot::Store;
use runtime::state::{Id, Root};
use swap::{PagesInMemory, measure_diffs};

use self::report::Report;
use crate::codec_bench::example::Example;
use crate::diff_args::BenchArgs;
use crate::failure::{Failure, say};
use crate::measuring::{Pages, cannot_write, check_place, named, of_sandbox};
use crate::snapshot_args::named_place;

/// The things that are measured, in errors.
const WHAT: &str = "differences";
/// Most bytes of data: measuring takes several times as much memory.
const MOST_BYTES: usize = 256 << 20;
/// Most pages of a base, which is held as a whole.
const BASE_PAGES_MAX: u64 = (8 << 30) / PAGE_BYTES as u64;

/// The base and the data, each with words for whose they are.
struct Both {
    base: (String, PagesInMemory),
    data: (String, PagesInMemory),
}

pub fn run(root: &Root, config: Option<&Path>, args: &BenchArgs) -> Result<u8, Failure> {
    if let Some(svg) = &args.svg {
        check_place(svg)?;
    }
    let Both { base: (base_of, base), data: (data_of, data) } = both(root, config, args)?;
    let failed = |why: String| -> Failure {
        format!("cannot measure {WHAT} on {data_of} from {base_of}: {why}").into()
    };
    let rounds = args.rounds.into();
    let measured =
        measure_diffs(&base, &data, rounds).map_err(|error| failed(format!("{error}; try another base")))?;
    let peers = peers::measure(&base, &data, &measured.diff, rounds)
        .map_err(|why| failed(format!("{why}; report this")))?;
    let (xdelta, no_xdelta) = match xdelta::measure(&base, &data, rounds) {
        Ok(peer) => (Some(peer), None),
        Err(why) => (None, Some(why)),
    };
    let report = Report {
        base_of,
        base_pages: base.ids.len(),
        data_of,
        pages: data.ids.len(),
        rounds: args.rounds,
        measured,
        peers: peers.into_iter().chain(xdelta).collect(),
        no_xdelta,
    };
    if let Some(svg) = &args.svg {
        fs::write(svg, chart::draw(&report)).map_err(|error| cannot_write(svg, &error))?;
    }
    if args.json {
        return say(&(serde_json::to_string_pretty(&report.json())? + "\n"));
    }
    say(&report.text()?)
}

fn both(root: &Root, config: Option<&Path>, args: &BenchArgs) -> Result<Both, Failure> {
    match (&args.base, &args.data) {
        (Some(base), Some(data)) => {
            let data = read(&named(root, data, WHAT)?)?;
            Ok(Both { base: of_snapshot(config, base)?, data })
        }
        (None, None) => {
            // The first has ended before the second begins, as if one had come after the other.
            let base = of_example(root)?;
            Ok(Both { base, data: of_example(root)? })
        }
        (Some(_), None) => Err(format!(
            "cannot measure {WHAT}: there are no pages to compare with the base; pass --data FILE or --data ID"
        )
        .into()),
        (None, Some(_)) => Err(format!(
            "cannot measure {WHAT}: there is no base; pass a snapshot's name or the path of its directory by --base"
        )
        .into()),
    }
}

/// The pages of a snapshot, packed or not.
fn of_snapshot(config: Option<&Path>, name: &str) -> Result<(String, PagesInMemory), Failure> {
    let store = Store::of_user(&NodeConfig::load(config)?)?;
    let place = named_place(name)?;
    let of = format!("snapshot {place}");
    let failed = |why: String| -> Failure { format!("cannot use {of} as a base: {why}").into() };
    let manifest = store.inspect(&place)?;
    if manifest.files.sealed.is_some() {
        return Err(failed(
            "it is sealed, and its pages would lie in memory in the clear; pass another".into(),
        ));
    }
    if manifest.head.pages > BASE_PAGES_MAX {
        return Err(failed(format!("it has more than {BASE_PAGES_MAX} pages; pass a smaller one")));
    }
    let mut opened = store.open(&place, None)?;
    opened.leave_unrecorded();
    let stacked = opened.files.open_base(&opened.manifest.head, None);
    let stacked = stacked.map_err(|error| failed(format!("{error}; run: dormouse snapshot verify")))?;
    let pages = stacked.read().map_err(|error| failed(format!("{error}; run: dormouse snapshot verify")))?;
    Ok((of, pages.into_iter().collect()))
}

/// The pages of a sandbox that is started for it.
fn of_example(root: &Root) -> Result<(String, PagesInMemory), Failure> {
    let example = Example::start(root, WHAT)?;
    let id = Id::new(example.id.as_str())?;
    let pages = of_sandbox(&id, &root.state(&id)?, WHAT)?;
    read(&Pages { of: "a sandbox with Python".to_owned(), ..pages })
}

fn read(pages: &Pages) -> Result<(String, PagesInMemory), Failure> {
    let failed = |why: String| -> Failure { format!("cannot measure {WHAT} on {}: {why}", pages.of).into() };
    let ids = pages.source.numbers(MOST_BYTES);
    let memory = pages.source.read(MOST_BYTES).map_err(|error| failed(format!("{error}; try again")))?;
    let content = memory.as_chunks::<PAGE_BYTES>().0.to_vec();
    if content.is_empty() {
        return Err(failed(format!("there is less than a page of {PAGE_BYTES} bytes; give it more")));
    }
    Ok((pages.of.clone(), PagesInMemory { ids, content }))
}
