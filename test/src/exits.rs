//! On kvm, system calls and page faults on memory that the host has backed stay inside the guest: the number of exits
//! must not grow with them.

use std::path::Path;
use std::process::Command;

use crate::Options;

/// Exits of one run, as the command reports them at log level `info`.
struct Exits {
    /// Those the VMM saw.
    vmm: u64,
    /// All that KVM counted: also those it handled itself, and interruptions by the host's timer.
    all: u64,
}

/// Of so many operations at most one may have cost an exit to the VMM.
const OPERATIONS_A_VMM_EXIT: u64 = 100;
/// Of so many operations at most one may have cost an exit of any kind; the host's timer alone makes some.
const OPERATIONS_AN_EXIT: u64 = 4;

/// The benches that are repeated: a bench of `guest/bench.c`, its operations a round, and percent of that to run.
const CASES: &[(&str, u64, u64)] = &[("null", 100_000, 10), ("touch", 16_384, 100)];

/// Compares runs of few and of many rounds; the sentence reports the numbers.
pub fn check(options: &Options) -> Result<String, String> {
    let mut seen = Vec::new();
    for &(bench, operations, percent) in CASES {
        let (few, many) = (2, 8);
        let before = exits(options, bench, percent, few)?;
        let after = exits(options, bench, percent, many)?;
        let more = operations * percent / 100 * (many - few);
        let (vmm, all) = (after.vmm.saturating_sub(before.vmm), after.all.saturating_sub(before.all));
        let said = format!("{bench}: {more} more operations, {vmm} more exits to the VMM, {all} in all");
        if before.all == 0 {
            return Err(format!("{said}: KVM counts no exits here"));
        }
        if vmm * OPERATIONS_A_VMM_EXIT > more || all * OPERATIONS_AN_EXIT > more {
            return Err(said);
        }
        seen.push(said);
    }
    Ok(seen.join("; "))
}

fn exits(options: &Options, bench: &str, percent: u64, rounds: u64) -> Result<Exits, String> {
    let program =
        std::path::absolute(options.guest.join("static/bench")).map_err(|error| error.to_string())?;
    let output = Command::new(&options.dormouse)
        .env("DORMOUSE_LOG", "info")
        .args(["do", "--platform", "kvm", "--"])
        .arg(Path::new(&program))
        .arg(format!("--rounds={rounds}"))
        .arg(format!("--scale={percent}"))
        .arg(bench)
        .output()
        .map_err(|error| error.to_string())?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{bench} failed: {}", log.trim()));
    }
    parse(&log).ok_or_else(|| format!("no count of exits in {:?}", log.trim()))
}

/// Reads `exits: hostcall 12, …, all 345`.
fn parse(log: &str) -> Option<Exits> {
    let line = log.lines().find_map(|line| line.trim().strip_prefix("exits: "))?;
    let (mut vmm, mut all) = (0, None);
    for part in line.split(", ") {
        let (reason, count) = part.split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        match reason {
            "all" => all = Some(count),
            _ => vmm += count,
        }
    }
    Some(Exits { vmm, all: all? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let exits = parse("noise\nexits: hostcall 12, signal 3, all 400\n").unwrap();
        assert_eq!((exits.vmm, exits.all), (15, 400));
        assert!(parse("exits: nonsense").is_none() && parse("exits: hostcall 1").is_none());
    }
}
