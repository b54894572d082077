//! `dormouse snapshot store` and `dormouse store`: snapshots whose content lies in the store of chunks.

use std::path::Path;

use runtime::settings::NodeConfig;
use runtime::snapshot::{self, Added, PutAway, Region, Store, StoreFigures};
use serde_json::{Map, Value, json};
use vmm::checkpoint::Style;
use vmm::process;

use crate::chunks_analysis;
use crate::chunks_bench;
use crate::codec_args::check_chunk_codec;
use crate::failure::{Failure, say};
use crate::moved;
use crate::snapshot_args::StoreCommand;

/// Puts a snapshot into the store of chunks, in idle time.
pub fn put(store: &Store, name: &str, codec: Style, domain: Option<&str>) -> Result<PutAway, Failure> {
    check_chunk_codec(codec, || format!("store {name}"))?;
    process::be_idle();
    process::leave_disk_to_others();
    Ok(store.put_away(&snapshot::name(name)?, domain, codec)?)
}

/// Bytes of a snapshot that was stored.
#[derive(Clone, Copy, Default)]
struct Sums {
    bytes: u64,
    zero: u64,
    shared: u64,
    near: u64,
    stored: u64,
    again: u64,
}

fn sums(put: &PutAway) -> Sums {
    put.added.iter().fold(Sums::default(), |sums, added| Sums {
        bytes: sums.bytes + added.bytes,
        zero: sums.zero + added.zero_bytes,
        shared: sums.shared + added.shared_bytes,
        near: sums.near + added.near_bytes,
        stored: sums.stored + added.stored_bytes,
        again: sums.again + added.again_bytes,
    })
}

/// The figures of a snapshot that was stored, for programs.
pub fn figures(name: &str, put: &PutAway) -> Value {
    let Sums { bytes, zero, shared, near, stored, again } = sums(put);
    let regions: Map<String, Value> = Region::OF_MEMORY
        .iter()
        .zip(&put.added)
        .filter(|(_, added)| added.bytes > 0)
        .map(|(region, added)| {
            let Added { bytes, zero_bytes, shared_bytes, near_bytes, stored_bytes, again_bytes } = *added;
            let object = json!({
                "bytes": bytes, "zero_bytes": zero_bytes, "shared_bytes": shared_bytes, "near_bytes": near_bytes,
                "stored_bytes": stored_bytes, "again_bytes": again_bytes,
            });
            (region.name().to_owned(), object)
        })
        .collect();
    json!({
        "snapshot": name, "was_there": put.was_there, "bytes": bytes, "zero_bytes": zero, "shared_bytes": shared,
        "near_bytes": near, "stored_bytes": stored, "again_bytes": again, "recipe_bytes": put.recipe_bytes, "regions": regions,
    })
}

/// For people.
pub fn words(put: &PutAway) -> String {
    let Sums { zero, shared, near, stored, again, .. } = sums(put);
    format!(
        "stored   {stored} bytes, {again} of what the store had once more, and {} of its recipe\nshared   {shared} bytes that the store had, \
         {zero} of zeros; {near} are like what it has\n",
        put.recipe_bytes
    )
}

/// `snapshot store`.
pub fn store(
    store: &Store,
    name: &str,
    codec: Style,
    domain: Option<&str>,
    as_json: bool,
) -> Result<u8, Failure> {
    let done = put(store, name, codec, domain)?;
    if as_json {
        return say(&(serde_json::to_string_pretty(&figures(name, &done))? + "\n"));
    }
    if done.was_there {
        return say(&format!("{name} is in the store already\n"));
    }
    say(&format!("{name}: {} bytes\n{}", sums(&done).bytes, words(&done)))
}

/// `store`.
pub fn run(config: Option<&Path>, command: StoreCommand) -> Result<u8, Failure> {
    let store = Store::of_user(&NodeConfig::load(config)?)?;
    match command {
        StoreCommand::Push { dir, names, codec } => moved::push(&store, &dir, &names, codec),
        StoreCommand::Pull { dir, names, coming } => moved::pull(&store, &dir, &names, coming),
        StoreCommand::Export(args) => moved::export(&store, &args),
        StoreCommand::Import(args) => moved::import(&store, &args),
        StoreCommand::Stats { json } => stats(&store.chunk_figures()?, json),
        StoreCommand::Analyse(args) => chunks_analysis::run(&store, &args),
        StoreCommand::Retrieve { name, json } => retrieve(&store, &name, json),
        StoreCommand::Bench(args) => chunks_bench::bench(&store, &args),
        StoreCommand::Verify => {
            let verified = store.verify_chunks()?;
            let snapshot::Verified { dblocks, chunks, bytes } = verified;
            say(&format!("the store is whole: {chunks} chunks in {dblocks} dblocks, {bytes} bytes\n"))
        }
        StoreCommand::Gc { grace, json } => {
            let collected = store.collect_chunks(grace)?;
            let snapshot::Collected {
                moved_dblocks,
                moved_bytes,
                dead_dblocks,
                removed_dblocks,
                removed_bytes,
            } = collected;
            if json {
                let object = json!({
                    "moved_dblocks": moved_dblocks, "moved_bytes": moved_bytes, "dead_dblocks": dead_dblocks,
                    "removed_dblocks": removed_dblocks, "removed_bytes": removed_bytes,
                });
                return say(&(serde_json::to_string_pretty(&object)? + "\n"));
            }
            let waiting = dead_dblocks - removed_dblocks;
            say(&format!(
                "removed  {removed_dblocks} dblocks, {removed_bytes} bytes\nwaiting  {waiting} dblocks that nobody needs\nmoved    \
                 {moved_bytes} bytes out of {moved_dblocks} dblocks\n"
            ))
        }
    }
}

fn retrieve(store: &Store, name: &str, as_json: bool) -> Result<u8, Failure> {
    let (retrieved, took) = store.measure_retrieval(&snapshot::name(name)?)?;
    let snapshot::Retrieved { bytes, read_bytes, reads, dblocks } = retrieved;
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    if as_json {
        let object = json!({
            "snapshot": name, "bytes": bytes, "read_bytes": read_bytes, "reads": reads, "dblocks": dblocks, "us": micros,
        });
        return say(&(serde_json::to_string_pretty(&object)? + "\n"));
    }
    say(&format!(
        "{name}: {bytes} bytes in {micros} us\nread     {read_bytes} bytes by {reads} reads, of {dblocks} dblocks\n"
    ))
}

fn stats(figures: &StoreFigures, as_json: bool) -> Result<u8, Failure> {
    let StoreFigures { snapshots, bytes, snapshot_bytes } = *figures;
    if as_json {
        let object = json!({ "snapshots": snapshots, "bytes": bytes, "snapshot_bytes": snapshot_bytes });
        return say(&(serde_json::to_string_pretty(&object)? + "\n"));
    }
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let ratio = if bytes > 0 { snapshot_bytes as f64 / bytes as f64 } else { 1.0 };
    say(&format!(
        "snapshots  {snapshots}, {snapshot_bytes} bytes of data\nstore      {bytes} bytes, 1 : {ratio:.2}\n"
    ))
}
