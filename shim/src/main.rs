//! `containerd-shim-dormouse-v1`: the process between containerd and the sandboxes of a pod.
//!
//! containerd starts it with `start`, which leaves a server behind and tells where that listens; with `delete` to clean
//! up after one that was killed. The server speaks the task API, version 2, over ttrpc. It has `dormouse` make
//! sandboxes and processes in them, and gives orders to those that run by itself.
#![deny(unsafe_code)]
#![warn(clippy::unwrap_used)]

mod bootstrap;
mod cgroup;
mod child;
mod cleanup;
mod console;
mod container;
mod dormouse;
mod events;
mod failure;
mod fields;
mod flags;
mod log;
mod mounts;
mod options;
mod pids;
mod reaper;
mod serve;
mod service;
mod socket;
mod start;
mod streams;
mod thread;
mod time;
mod ttrpc;

use std::io::Write;
use std::process::ExitCode;

use flags::Flags;

/// The runtime's type in containerd's configuration.
const NAME: &str = "io.containerd.dormouse.v1";

fn main() -> ExitCode {
    vmm::process::panics_abort();
    match obey() {
        Ok(output) if std::io::stdout().write_all(&output).is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            log::note(format_args!("{NAME}: {why}"));
            ExitCode::FAILURE
        }
    }
}

/// Result: what standard output gets.
fn obey() -> Result<Vec<u8>, String> {
    let flags = Flags::parse(std::env::args().skip(1))?;
    if flags.version {
        return Ok(
            format!("containerd-shim-dormouse-v1:\n  Version:  {}\n", env!("CARGO_PKG_VERSION")).into()
        );
    }
    if flags.info {
        return Ok(bootstrap::info(NAME, env!("CARGO_PKG_VERSION")));
    }
    if flags.namespace.is_empty() {
        return Err("shim namespace cannot be empty".into());
    }
    match flags.action.as_str() {
        "start" => start::run(&flags),
        "delete" => cleanup::run(&flags),
        "" => serve::run(&flags).map(|()| Vec::new()),
        other => Err(format!("unknown action {other}")),
    }
}
