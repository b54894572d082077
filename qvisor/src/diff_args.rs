//! Arguments of `dormouse diff`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum DiffCommand {
    /// Measure how small a sandbox's pages become as differences from those of a base, and how long that takes, beside zstd, LZ4 and
    /// xdelta3, where that is installed
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The snapshot whose pages are the base, by name or by the absolute path of its directory [default: with neither this nor --data,
    /// two sandboxes with Python are started, one after the other: the first is the base of the second]
    #[arg(long, value_name = "NAME|DIR")]
    pub base: Option<String>,
    /// A sandbox that is awake, or a file whose page n is page n of memory; of more than 256 MiB a sample, evenly spread
    #[arg(long, value_name = "FILE|ID")]
    pub data: Option<OsString>,
    /// How often everything is packed and unpacked; medians are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a chart as well
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}
