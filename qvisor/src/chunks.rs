//! `dormouse snapshot store` and `dormouse store`: snapshots whose content lies in the store of chunks.

use std::fmt::Write;
use std::path::Path;

use runtime::settings::NodeConfig;
use runtime::snapshot::{self, PutAway, Store, StoreFigures};
use serde_json::json;
use vmm::checkpoint::Style;

use crate::chunks_analysis;
use crate::failure::{Failure, say};
use crate::snapshot_args::StoreCommand;

/// `snapshot store`.
pub fn store(
    store: &Store,
    name: &str,
    codec: Style,
    domain: Option<&str>,
    as_json: bool,
) -> Result<u8, Failure> {
    if !matches!(codec, Style::None | Style::Lz4 | Style::Zstd(_)) {
        return Err(
            format!("cannot store {name}: chunks are packed by none, lz4 or zstd, not {codec}").into()
        );
    }
    let PutAway { added, recipe_bytes, was_there } = store.put_away(&snapshot::name(name)?, domain, codec)?;
    let sum = |of: &dyn Fn(&snapshot::Added) -> u64| added.iter().map(of).sum::<u64>();
    let [bytes, zero, shared, stored] = [
        sum(&|added| added.bytes),
        sum(&|added| added.zero_bytes),
        sum(&|added| added.shared_bytes),
        sum(&|added| added.stored_bytes),
    ];
    if as_json {
        let object = json!({
            "snapshot": name, "was_there": was_there, "bytes": bytes, "zero_bytes": zero, "shared_bytes": shared,
            "stored_bytes": stored, "recipe_bytes": recipe_bytes,
        });
        return say(&(serde_json::to_string_pretty(&object)? + "\n"));
    }
    if was_there {
        return say(&format!("{name} is in the store already\n"));
    }
    let mut text = format!("{name}: stored {bytes} bytes\n");
    writeln!(text, "new      {stored} bytes, and {recipe_bytes} of its recipe")?;
    writeln!(text, "shared   {shared} bytes that the store had, {zero} of zeros")?;
    say(&text)
}

/// `store`.
pub fn run(config: Option<&Path>, command: StoreCommand) -> Result<u8, Failure> {
    let store = Store::of_user(&NodeConfig::load(config)?)?;
    match command {
        StoreCommand::Stats { json } => stats(&store.chunk_figures()?, json),
        StoreCommand::Analyse(args) => chunks_analysis::run(&store, &args),
        StoreCommand::Retrieve { name, json } => retrieve(&store, &name, json),
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
