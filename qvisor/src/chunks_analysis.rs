//! `dormouse store analyse`: what snapshots consist of, and which chunks would keep them in the fewest bytes, as figures 2 to 4 of *SnapStore*
//! have it.

mod chart;

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use runtime::snapshot::{self, Analysed, Analysis, Estimate, Region, Store};
use serde_json::{Value, json};

use crate::failure::{Failure, say};
use crate::measuring::{cannot_write, check_place};

#[derive(Debug, Args)]
pub struct AnalyseArgs {
    /// Names of the snapshots, plain or stored, as they would come into the store [default: all that can be analysed]
    names: Vec<String>,
    /// Draw the figures into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(store: &Store, args: &AnalyseArgs) -> Result<u8, Failure> {
    if let Some(svg) = &args.svg {
        check_place(svg)?;
    }
    let names = args.names.iter().map(|name| snapshot::name(name)).collect::<Result<Vec<_>, _>>()?;
    let analysis = store.analyse(&names)?;
    if let Some(svg) = &args.svg {
        fs::write(svg, chart::draw(&analysis)).map_err(|error| cannot_write(svg, &error))?;
    }
    if args.json {
        return say(&(serde_json::to_string_pretty(&object(&analysis))? + "\n"));
    }
    say(&text(&analysis)?)
}

/// The regions of which there is something, with their outcomes.
fn regions(analysis: &Analysis) -> impl Iterator<Item = (Region, &[Estimate])> {
    let all = Region::OF_MEMORY
        .into_iter()
        .zip(&analysis.estimates)
        .map(|(region, estimates)| (region, &estimates[..]));
    all.filter(|(_, estimates)| estimates.iter().any(|estimate| estimate.bytes > 0))
}

/// The size of chunks with which all of a region takes the fewest bytes.
fn best(estimates: &[Estimate]) -> Option<&Estimate> {
    estimates.iter().min_by_key(|estimate| estimate.total_bytes())
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// The parts of one snapshot's memory, by their names; the kernel's is the last.
fn parts(one: &Analysed) -> Vec<(&'static str, u64)> {
    let mut parts = vec![("untouched", one.untouched_bytes), ("elsewhere", one.elsewhere_bytes)];
    let bytes = one.region_bytes.iter().copied();
    parts.extend(Region::OF_MEMORY.into_iter().map(Region::name).zip(bytes));
    parts
}

fn text(analysis: &Analysis) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let width = analysis.snapshots.iter().map(|one| one.name.len()).max().unwrap_or(0).max(8);
    let heads = parts(&analysis.snapshots[0]);
    write!(text, "{:width$} {:>10}", "SNAPSHOT", "MEMORY")?;
    heads.iter().try_for_each(|(name, _)| write!(text, " {:>12}", name.to_uppercase()))?;
    writeln!(text, "  MiB")?;
    for one in &analysis.snapshots {
        write!(text, "{:width$} {:10.1}", one.name, mib(one.memory_bytes))?;
        parts(one).iter().try_for_each(|(_, bytes)| write!(text, " {:12.1}", mib(*bytes)))?;
        writeln!(text)?;
    }
    for (region, estimates) in regions(analysis) {
        let best = best(estimates).map_or(0, |best| best.chunk_bytes);
        writeln!(
            text,
            "\n{}: {:.1} MiB, fewest in chunks of {best} bytes",
            region.name(),
            mib(estimates[0].bytes)
        )?;
        writeln!(
            text,
            "{:>8} {:>10} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10}  MiB",
            "BYTES", "REPEATED", "ZEROS", "DIFFERENT", "CHUNKS", "INDEX", "ENTRIES", "RECIPES", "TOTAL"
        )?;
        for estimate in estimates {
            let [index, entries, recipes] = estimate.metadata_bytes().map(mib);
            let repeated = percent(estimate.repeated_bytes(), estimate.filled_bytes());
            writeln!(
                text,
                "{:8} {repeated:9.1}% {:10.1} {:12} {:10.1} {index:10.1} {entries:10.1} {recipes:10.1} {:10.1}",
                estimate.chunk_bytes,
                mib(estimate.zero_bytes),
                estimate.chunks,
                mib(estimate.kept_bytes()),
                mib(estimate.total_bytes()),
            )?;
        }
    }
    analysis.left_out.iter().try_for_each(|why| writeln!(text, "\nleft out: {why}"))?;
    Ok(text)
}

fn object(analysis: &Analysis) -> Value {
    let snapshots: Vec<Value> = analysis.snapshots.iter().map(of_snapshot).collect();
    let regions: Vec<Value> = regions(analysis)
        .map(|(region, estimates)| {
            let sizes: Vec<Value> = estimates.iter().map(of_estimate).collect();
            let best = best(estimates).map(|best| best.chunk_bytes);
            json!({ "region": region.name(), "best_chunk_bytes": best, "sizes": sizes })
        })
        .collect();
    json!({ "snapshots": snapshots, "regions": regions, "left_out": analysis.left_out })
}

fn of_snapshot(one: &Analysed) -> Value {
    let regions: serde_json::Map<String, Value> = Region::OF_MEMORY
        .into_iter()
        .zip(one.region_bytes)
        .map(|(region, bytes)| (region.name().to_owned(), bytes.into()))
        .collect();
    json!({
        "name": one.name, "memory_bytes": one.memory_bytes, "untouched_bytes": one.untouched_bytes,
        "elsewhere_bytes": one.elsewhere_bytes, "region_bytes": regions,
    })
}

fn of_estimate(estimate: &Estimate) -> Value {
    let [index, entries, recipes] = estimate.metadata_bytes();
    json!({
        "chunk_bytes": estimate.chunk_bytes, "bytes": estimate.bytes, "zero_bytes": estimate.zero_bytes,
        "repeated_bytes": estimate.repeated_bytes(), "chunks": estimate.chunks, "runs": estimate.runs,
        "kept_bytes": estimate.kept_bytes(), "index_bytes": index, "entry_bytes": entries, "recipe_bytes": recipes,
        "total_bytes": estimate.total_bytes(),
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Two snapshots with two regions.
    pub fn analysis() -> Analysis {
        let one = |name: &str| Analysed {
            name: name.into(),
            memory_bytes: 512 << 20,
            untouched_bytes: 400 << 20,
            elsewhere_bytes: 12 << 20,
            region_bytes: [0, 0, 100 << 20, 0, 1 << 20, 0],
        };
        let mut estimates = [[Estimate::default(); snapshot::CHUNK_SIZES.len()]; Region::ALL.len()];
        for region in [Region::Anonymous, Region::Kernel] {
            for (estimate, size) in
                estimates[usize::from(region.number())].iter_mut().zip(snapshot::CHUNK_SIZES)
            {
                let chunks = (100 << 20) / u64::from(size);
                *estimate =
                    Estimate { chunk_bytes: size, bytes: 200 << 20, zero_bytes: 0, chunks, runs: chunks };
            }
        }
        Analysis {
            snapshots: vec![one("a<b"), one("c")],
            left_out: vec!["cannot use snapshot d".into()],
            estimates,
        }
    }

    #[test]
    fn every_region_with_bytes_has_its_table() {
        let text = text(&analysis()).unwrap();
        for words in [
            "anonymous: 200.0 MiB, fewest in chunks of 4096 bytes",
            "kernel: ",
            "left out: cannot use",
            "50.0%",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("executable: "), "{text}");
        let object = object(&analysis());
        assert_eq!(object["regions"].as_array().map(Vec::len), Some(2));
        assert_eq!(object["regions"][0]["sizes"][6]["entry_bytes"], (100 << 20) / 4096 * 14);
        assert_eq!(object["snapshots"][1]["region_bytes"]["kernel"], 1 << 20);
    }
}
