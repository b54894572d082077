//! Arguments of `dormouse codec`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use vmm::checkpoint::Style;

#[derive(Debug, Subcommand)]
pub enum CodecCommand {
    /// Measure every codec on real pages, by page and by partition of 64 KiB, and say what `auto` would choose on this disk
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// A sandbox that is awake, or a file whose bytes are taken as memory; of more than 64 MiB a sample, evenly spread
    /// [default: the awake sandbox with the most memory; where there is none, one with Python, which is started for it]
    #[arg(long, value_name = "FILE|ID")]
    pub data: Option<OsString>,
    /// How often everything is packed and unpacked; medians are shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a chart as well
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// The directory whose disk is measured, by an unnamed file of 128 MiB [default: that of sandboxes' swap files]
    #[arg(long, value_name = "DIR")]
    pub swap_dir: Option<PathBuf>,
}

/// Refuses to pack chunks that travel by what is not unpacked of strangers.
pub fn check_travelling_codec(codec: Style, what: impl FnOnce() -> String) -> Result<(), String> {
    if matches!(codec, Style::None | Style::Lz4) {
        return Ok(());
    }
    Err(format!("cannot {}: chunks that travel are packed by none or lz4, not {codec}", what()))
}

/// Refuses to pack chunks by what no chunk is packed by.
pub fn check_chunk_codec(codec: Style, what: impl FnOnce() -> String) -> Result<(), String> {
    if matches!(codec, Style::None | Style::Lz4 | Style::Zstd(_)) {
        return Ok(());
    }
    Err(format!("cannot {}: chunks are packed by none, lz4 or zstd, not {codec}", what()))
}
