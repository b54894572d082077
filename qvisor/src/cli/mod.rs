//! The `dormouse` command line. Failures of our own end with exit code 125 and one sentence on standard error.

mod args;
mod bundle;
mod doctor;
mod exec;
pub(crate) mod log;
mod run;
mod show;

use std::process::ExitCode;

use clap::Parser;

pub use args::{Cli, Command, CreateArgs, DoArgs, LogFormat, NetChoice, PlatformChoice, Switch};
pub(crate) use args::{parse_size, parse_time};

/// Exit code of failures that are Dormouse's own, not the program's.
pub const EXIT_FAILURE: u8 = 125;

/// An error for the command line: one sentence.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Runs the command; result: its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { EXIT_FAILURE.into() } else { ExitCode::SUCCESS };
        }
    };
    log::open(cli.log.clone(), cli.log_format, cli.debug);
    if cli.systemd_cgroup {
        complain(&*Failure::from(
            "cannot let systemd manage control groups: this is not supported; leave out --systemd-cgroup",
        ));
        return EXIT_FAILURE.into();
    }
    if matches!(cli.command, Command::Do(_) | Command::Create(_) | Command::Run { .. }) {
        crate::jail::run_from_read_only_view();
    }
    match obey(cli) {
        Ok(code) => code.into(),
        Err(error) => {
            complain(&*error);
            EXIT_FAILURE.into()
        }
    }
}

/// Does what the command says; result: its exit code.
fn obey(cli: Cli) -> Result<u8, Failure> {
    // Most commands need it, and say so if there is none.
    let root = cli.state_root();
    match cli.command {
        Command::Spec { bundle } => bundle::write_spec(&bundle),
        Command::Doctor { json } => doctor::run(json),
        Command::Do(args) => run::run(&root?, *args),
        Command::Exec(args) => exec::run_in(&root?, *args),
        Command::List { json } => show::list(&root?, json),
        Command::State { id } => show::state(&root?, &id),
        Command::Kill { id, signal, all } => show::kill(&root?, &id, &signal, all),
        Command::Hibernate { id, json } => show::hibernate(&root?, &id, json),
        Command::Wake { id, json, reap } => show::wake(&root?, &id, json, reap),
        Command::Stats { id, json } => show::stats(&root?, &id, json),
        Command::Events { id } => show::events(&root?, &id),
        Command::Create(args) => bundle::create(&root?, *args),
        Command::Start { id } => bundle::start(&root?, &id),
        Command::Run { create, detach } => bundle::run(&root?, *create, detach),
        Command::Delete { id, force } => bundle::delete(&root?, &id, force),
    }
}

/// Says what went wrong, on standard error and in the log.
fn complain(error: &dyn std::error::Error) {
    log::write(log::Level::Error, &error.to_string());
}

/// Writes to standard output; a closed pipe is the reader's choice, not an error.
pub(crate) fn say(text: &str) -> Result<u8, Failure> {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}; free some space").into())
        }
        _ => Ok(0),
    }
}
