//! `dormouse metrics`: figures of all sandboxes in Prometheus' text format (version 0.0.4). Wakes nobody.

mod families;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use runtime::overview::overview;
use runtime::state::Root;
use runtime::units::parse_time;
use vmm::directory;

use crate::failure::{Failure, complain, say};

#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Answer scrapes of http://ADDR/metrics until a signal ends it, as 127.0.0.1:9475
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["textfile", "interval"])]
    listen: Option<String>,
    /// Write to a file, in one step, for node_exporter's textfile collector; its name ends with .prom
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
    /// Write that file again and again, this far apart, as 15s
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "textfile")]
    interval: Option<Duration>,
}

pub fn run(root: &Root, args: &MetricsArgs) -> Result<u8, Failure> {
    let page = || -> Result<String, Failure> { Ok(families::page(&overview(root)?)) };
    if let Some(address) = &args.listen {
        server::serve(address, &|| page().map_err(|error| error.to_string()))?;
    }
    let Some(file) = &args.textfile else { return say(&page()?) };
    if file.extension().is_none_or(|extension| extension != "prom") {
        return Err(format!(
            "--textfile {}: the collector reads files ending with .prom only",
            file.display()
        )
        .into());
    }
    let Some(interval) = args.interval else { return write(file, &page()?) };
    if interval.is_zero() {
        return Err("--interval 0: expected a time above zero, as 15s".into());
    }
    loop {
        // A full disk may have room later.
        if let Err(error) = page().and_then(|page| write(file, &page)) {
            complain(&*error);
        }
        std::thread::sleep(interval);
    }
}

/// Replaces the file, so that a reader sees the old or the new one, and nobody else's link is followed.
fn write(file: &Path, page: &str) -> Result<u8, Failure> {
    let written = directory::replace_file(file, page.as_bytes());
    written
        .map(|()| 0)
        .map_err(|error| format!("cannot write {}: {error}; correct --textfile", file.display()).into())
}
