//! Replaces the VMM of a sandbox again and again, each time by a new program with another address layout, and looks whether anything
//! is lost or doubled.
//!
//!     revive [--rounds N] [--platform kvm|systrap] [--seed N] [--server] [--afresh] [--figures]
//!
//! The driver starts a VMM, which runs a program with threads, children, sockets, timers, locks and memory of many kinds. Each round
//! talks to the program, has the sandbox taken while it is awake or asleep, and has the next VMM take it over and run it once the former
//! one has ended; some are killed before they run anything, and another takes their place. The VMMs are in no jail.

mod driver;
mod entrant;
mod program;
mod vmm_side;

use std::process::ExitCode;

use clap::Parser;

/// Replaces the VMM of a sandbox again and again
#[derive(Clone, Debug, Parser)]
struct Options {
    /// How often
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The platform: kvm or systrap
    #[arg(long, default_value = "systrap")]
    platform: String,
    /// Chooses what happens in which round
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs a plain server instead of the program with something of every kind
    #[arg(long)]
    server: bool,
    /// The next VMM gets the memory and the pages alone, and opens everything else anew
    #[arg(long)]
    afresh: bool,
    /// Prints how long replacements take
    #[arg(long)]
    figures: bool,
    /// Is a VMM of the driver, in this directory, whose standard input is the driver's socket
    #[arg(long, hide = true)]
    vmm: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match &options.vmm {
        Some(dir) => vmm_side::run(dir, &options),
        None => driver::run(&options),
    }
}
