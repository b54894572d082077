//! `dormouse store bench`: what storing snapshots takes, and retrieving them, in one way or another ("SnapStore", section 5).

use std::fs;

use runtime::snapshot::{self, Chunking, Listed, Region, Store, Trial, Tried};
use runtime::state::Id;
use serde_json::{Value, json};

use crate::codec_args::check_chunk_codec;
use crate::failure::{Failure, say};
use crate::snapshot_args::StoreBenchArgs;

fn trial(args: &StoreBenchArgs) -> Result<Trial, Failure> {
    let chunking = match args.chunk_bytes {
        None => Chunking::default(),
        Some(bytes) => Chunking::uniform(bytes).ok_or_else(|| {
            format!("cannot cut chunks of {bytes} bytes: it has to be a power of two from 64 to 4096")
        })?,
    };
    let chunking = if args.no_differences { chunking.without_differences() } else { chunking };
    let own = [Region::Anonymous, Region::Memory];
    let chunking = if args.skip_own { own.into_iter().fold(chunking, Chunking::without) } else { chunking };
    Ok(Trial {
        chunking,
        has_regions: !args.no_regions,
        style: args.codec,
        sparse_bytes: args.sparse_bytes,
        kept: args.kept_dblocks,
        in_order: args.in_order.then_some(args.kept_dblocks),
    })
}

/// `store bench`.
pub fn bench(store: &Store, args: &StoreBenchArgs) -> Result<u8, Failure> {
    check_chunk_codec(args.codec, || "store snapshots".into())?;
    let trial = trial(args)?;
    let mut names: Vec<Id> = args.names.iter().map(|name| snapshot::name(name)).collect::<Result<_, _>>()?;
    if names.is_empty() {
        let all = store.list()?;
        let is_plain = |one: &&Listed| {
            one.manifest.as_ref().is_some_and(|of| of.files.sealed.is_none() && of.files.packed.is_none())
        };
        names = all.iter().filter(is_plain).map(|one| snapshot::name(&one.name)).collect::<Result<_, _>>()?;
    }
    let (tried, bytes) = store.try_storing(&names, &trial, &args.dir)?;
    let sum = |of: &dyn Fn(&Tried) -> u64| tried.iter().map(of).sum::<u64>();
    let recipe_bytes = sum(&|tried| tried.recipe_bytes);
    let given = sum(&|tried| tried.added.iter().map(|added| added.bytes).sum());
    let index_bytes = tried.iter().map(|tried| tried.index_bytes).max().unwrap_or(0);
    let (storing, retrieving) = (sum(&|tried| micros(tried.storing)), sum(&|tried| micros(tried.retrieving)));
    if args.json {
        let all: Vec<Value> = names.iter().zip(&tried).map(|(name, tried)| figures(name, tried)).collect();
        let object = json!({
            "snapshots": all, "bytes": given, "store_bytes": bytes, "recipe_bytes": recipe_bytes, "index_bytes": index_bytes,
            "storing_us": storing, "retrieving_us": retrieving, "memory_bytes": peak_bytes(),
        });
        return say(&(serde_json::to_string_pretty(&object)? + "\n"));
    }
    let all = bytes + recipe_bytes;
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let ratio = if all > 0 { given as f64 / all as f64 } else { 1.0 };
    say(&format!(
        "{} snapshots, {given} bytes\nstored     in {} ms: {bytes} bytes, and {recipe_bytes} of recipes, 1 : {ratio:.2}\nindex      {index_bytes} bytes \
         in memory\nretrieved  in {} ms: {} bytes by {} reads\n",
        names.len(),
        storing / 1000,
        retrieving / 1000,
        sum(&|tried| tried.retrieved.read_bytes),
        sum(&|tried| tried.retrieved.reads),
    ))
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn figures(name: &Id, tried: &Tried) -> Value {
    let stored: u64 = tried.added.iter().map(|added| added.stored_bytes).sum();
    json!({
        "snapshot": name.as_str(), "bytes": tried.added.iter().map(|added| added.bytes).sum::<u64>(), "stored_bytes": stored,
        "recipe_bytes": tried.recipe_bytes, "storing_us": micros(tried.storing), "retrieving_us": micros(tried.retrieving),
        "retrieved_bytes": tried.retrieved.bytes, "read_bytes": tried.retrieved.read_bytes, "reads": tried.retrieved.reads,
        "dblocks": tried.retrieved.dblocks,
    })
}

/// Most bytes of memory that this process had of its own (`VmHWM` counts files that it maps, and they are its program).
fn peak_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}
