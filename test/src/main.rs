//! Runs workloads natively and in a sandbox and compares the results that a user would see: output and exit status.
//!
//! A workload that fails natively is a broken test, and is reported as such: expectations are Linux's, not ours.

mod exits;
mod run;
mod stuck;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use run::{Outcome, Target};
use workload::{Expect, Workload};

/// Runs workloads natively and in sandboxes, and compares.
#[derive(Parser)]
#[command(args_override_self = true)]
struct Options {
    /// The command under test.
    #[arg(long, default_value = "target/release/dormouse")]
    dormouse: PathBuf,
    /// The platform of the sandboxes.
    #[arg(long, default_value = "auto")]
    platform: String,
    /// Workload files.
    #[arg(long, default_values_os_t = [PathBuf::from("test/workloads.txt")])]
    workloads: Vec<PathBuf>,
    /// Where the guest programs were built; `$GUEST` in commands.
    #[arg(long, default_value = "target/guest")]
    guest: PathBuf,
    /// Where the scripts are; `$SCRIPTS` in commands.
    #[arg(long, default_value = "test/guest/scripts")]
    scripts: PathBuf,
    /// Run the smaller variants, for emulated machines.
    #[arg(long)]
    lab: bool,
    /// Only workloads whose name contains one of these (separated by commas).
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// No workloads whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    except: Vec<String>,
    /// Seconds a workload may take.
    #[arg(long, default_value_t = 120)]
    timeout: u64,
    /// Also print the output of failed workloads in full.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let mut workloads = Vec::new();
    for file in &options.workloads {
        match workload::read(file) {
            Ok(found) => workloads.extend(found),
            Err(error) => {
                eprintln!("dormouse-test: {error}");
                return ExitCode::from(2);
            }
        }
    }
    let is_one = |names: &[String], name: &str| names.iter().any(|part| name.contains(part.as_str()));
    let wanted = |name: &str| {
        (options.only.is_empty() || is_one(&options.only, name)) && !is_one(&options.except, name)
    };
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for workload in workloads.iter().filter(|workload| wanted(&workload.name)) {
        match check(&options, workload) {
            Verdict::Passed(line) => {
                passed += 1;
                println!("ok      {:<28} {line}", workload.name);
            }
            Verdict::Skipped(why) => {
                skipped += 1;
                println!("skipped {:<28} {why}", workload.name);
            }
            Verdict::Failed(why) => {
                failed += 1;
                println!("FAILED  {:<28} {why}", workload.name);
            }
        }
    }
    if options.platform == "kvm" && wanted("exits") {
        match exits::check(&options) {
            Ok(seen) => {
                passed += 1;
                println!("ok      {:<28} {seen}", "exits");
            }
            Err(why) => {
                failed += 1;
                println!("FAILED  {:<28} {why}", "exits");
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How long the first of two native runs may take.
const FIRST_TRY: Duration = Duration::from_secs(90);

enum Verdict {
    Passed(String),
    Failed(String),
    Skipped(String),
}

fn check(options: &Options, workload: &Workload) -> Verdict {
    let command = workload.command(options.lab);
    if options.lab && workload.outside_lab {
        return Verdict::Skipped("emulated, it takes minutes without a sandbox too".to_owned());
    }
    if let Some(missing) = workload.missing_program() {
        return Verdict::Skipped(format!("{missing} is not installed here"));
    }
    let timeout = Duration::from_secs(workload.timeout.unwrap_or(options.timeout));
    // The emulated machine is slow: there only what is compared is run natively. That the others hold is seen outside.
    let native = if workload.sandbox_only || options.lab && !workload.expect.is_native() {
        None
    } else {
        match natively(options, workload, &command, timeout) {
            Ok(outcome) => Some(outcome),
            Err(why) => return Verdict::Failed(why),
        }
    };
    let sandbox = match sandboxed(options, workload, &command, timeout) {
        Ok(outcome) => outcome,
        Err(error) => return Verdict::Failed(format!("cannot run: {error}")),
    };
    match matches(&workload.expect, &sandbox, native.as_ref()) {
        Ok(()) => {
            let native = native.map_or(String::new(), |native| format!("native {:.2} s, ", native.seconds()));
            Verdict::Passed(format!("{native}sandbox {:.2} s", sandbox.seconds()))
        }
        Err(why) => Verdict::Failed(if options.verbose { sandbox.full() + &why } else { why }),
    }
}

/// The outcome without a sandbox. In the lab it may try twice: the emulated machine itself loses an event now and then,
/// and a program that hangs there natively tells nothing of Dormouse.
fn natively(
    options: &Options,
    workload: &Workload,
    command: &str,
    timeout: Duration,
) -> Result<Outcome, String> {
    let mut tries = if options.lab { 2 } else { 1 };
    loop {
        tries -= 1;
        // What hangs is soon tried again.
        let timeout = if tries > 0 { timeout.min(FIRST_TRY) } else { timeout };
        let native = run::run(&Target::Native, options, command, timeout);
        let native = native.map_err(|error| format!("cannot run natively: {error}"))?;
        match matches(&workload.expect, &native, None) {
            Ok(()) => return Ok(native),
            Err(why) if tries == 0 => return Err(format!("natively, so the test is wrong: {why}")),
            Err(why) => println!("again   {:<28} natively: {why}", workload.name),
        }
    }
}

/// The outcome in a sandbox. In the lab one that does not end is tried once more, for the same reason; where it slept is printed.
fn sandboxed(
    options: &Options,
    workload: &Workload,
    command: &str,
    timeout: Duration,
) -> std::io::Result<Outcome> {
    let target = Target::Sandbox { extra: &workload.options };
    let first = run::run(&target, options, command, timeout)?;
    if !(options.lab && first.timed_out) {
        return Ok(first);
    }
    println!("again   {:<28} in a sandbox: still running after {:.0} s", workload.name, first.seconds());
    run::run(&target, options, command, timeout)
}

/// Whether an outcome is the expected one; natively when there is nothing to compare with yet.
fn matches(expect: &Expect, outcome: &Outcome, native: Option<&Outcome>) -> Result<(), String> {
    if outcome.timed_out {
        return Err(format!("still running after {:.0} s; so far: {}", outcome.seconds(), outcome.tail()));
    }
    if expect.codes.contains(&outcome.status) == expect.forbidden {
        let not = if expect.forbidden { "anything but" } else { "one of" };
        return Err(format!(
            "exit {} instead of {not} {:?}: {}",
            outcome.status,
            expect.codes,
            outcome.tail()
        ));
    }
    let wanted = expect.stdout.as_ref().or(native.map(|native| &native.stdout));
    match wanted {
        Some(wanted) if !expect.any_output && outcome.stdout != *wanted => {
            Err(format!("other output: {}", difference(wanted, &outcome.stdout)))
        }
        _ => Ok(()),
    }
}

/// Where two outputs part, on one line.
fn difference(wanted: &[u8], got: &[u8]) -> String {
    let (wanted, got) = (String::from_utf8_lossy(wanted), String::from_utf8_lossy(got));
    let (mut wanted, mut got) = (wanted.lines(), got.lines());
    for number in 1.. {
        match (wanted.next(), got.next()) {
            (None, None) => break,
            (want, have) if want == have => {}
            (want, have) => {
                let show = |line: Option<&str>| line.map_or("the end".to_owned(), |line| format!("{line:?}"));
                return format!("line {number} is {} instead of {}", show(have), show(want));
            }
        }
    }
    "the same lines, other line ends".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_different_line_is_told() {
        assert_eq!(difference(b"a\nb\n", b"a\nc\n"), r#"line 2 is "c" instead of "b""#);
        assert_eq!(difference(b"a\nb\n", b"a\n"), r#"line 2 is the end instead of "b""#);
    }
}
