//! `dormouse list`, `state` and `kill`.

use std::fmt::Write;

use super::{Failure, say};
use crate::container;
use crate::signals;
use crate::state::{Id, Root};

pub(super) fn list(root: &Root, json: bool) -> Result<u8, Failure> {
    let states = root.states();
    if json {
        return say(&(serde_json::to_string_pretty(&states)? + "\n"));
    }
    let width = states.iter().map(|state| state.id.len()).max().unwrap_or(0).max(12);
    let mut text = format!("{:width$}  {:>8}  {:9}  BUNDLE\n", "ID", "PID", "STATUS");
    for state in states {
        let (status, bundle) = (state.status.to_string(), state.bundle.display());
        writeln!(text, "{:width$}  {:>8}  {status:9}  {bundle}", state.id, state.pid)?;
    }
    say(&text)
}

pub(super) fn state(root: &Root, id: &str) -> Result<u8, Failure> {
    let state = root.state(&Id::new(id)?)?;
    say(&(serde_json::to_string_pretty(&state)? + "\n"))
}

pub(super) fn kill(root: &Root, id: &str, signal: &str, all: bool) -> Result<u8, Failure> {
    let id = Id::new(id)?;
    let signal = signals::parse(signal).ok_or_else(|| {
        format!("cannot send signal {signal:?}: no such signal; pass a name or a number from 1 to 64")
    })?;
    container::kill(root, &id, signal, all)?;
    Ok(0)
}
