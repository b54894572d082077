//! The `dormouse` command. Failures of our own end with one sentence on standard error; `failure` has the exit codes.
#![warn(clippy::unwrap_used)]

mod accelerator;
mod args;
mod background;
mod bases;
mod bundle;
mod choices;
mod chunks;
mod chunks_analysis;
mod chunks_bench;
mod clones;
mod codec_args;
mod codec_bench;
mod diff_args;
mod diff_bench;
mod doctor;
mod events;
mod exec;
mod exec_args;
mod failure;
mod features;
mod fork;
mod hibernation_args;
mod home;
mod log;
mod manual;
mod measuring;
mod metrics;
mod moved;
mod pool;
mod ps;
mod run;
mod show;
mod snapshot;
mod snapshot_args;
mod snapshot_record;
mod top;
mod update;
mod values;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use runtime::preserved::Preserved;

use crate::args::{Cli, Command};
use crate::choices::ListFormat;
use crate::codec_args::CodecCommand;
use crate::diff_args::DiffCommand;
use crate::failure::{Failure, complain, exit_code_of_usage};

/// Commands that make sandboxes.
const MAKING_SANDBOXES: [&str; 7] = ["create", "do", "fork", "pool", "record", "restore", "run"];

fn main() -> ExitCode {
    vmm::process::panics_abort();
    // The arguments are not read twice where one of them may be such a command; whether it is one shows below.
    if std::env::args_os().any(|word| MAKING_SANDBOXES.iter().any(|making| word == *making)) {
        vmm::jail::run_from_read_only_view();
    }
    let mut command = Cli::command();
    // Not for every command: the platform has to be looked for.
    if std::env::args_os().nth(1).is_some_and(|word| word == "--version") {
        command = command.long_version(version::words());
    }
    let cli = match command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            let code = exit_code_of_usage(std::env::args_os().skip(1));
            return if error.use_stderr() { code.into() } else { ExitCode::SUCCESS };
        }
    };
    let code = cli.command.exit_code();
    if cli.command.goes_on() {
        // SAFETY: nothing was opened so far but files that are closed again.
        #[allow(unsafe_code)]
        unsafe {
            vmm::process::close_inherited();
        }
    }
    if let Err(words) = log::open(cli.log.clone(), cli.log_format, cli.debug) {
        complain(&*Failure::from(words));
        return code.into();
    }
    if cli.command.makes_a_sandbox() {
        vmm::jail::run_from_read_only_view();
    }
    // SAFETY: nothing was opened so far but files that are closed again.
    #[allow(unsafe_code)]
    let preserved = unsafe { Preserved::take(cli.command.preserved_fds()) };
    match preserved.map_err(Failure::from).and_then(|preserved| obey(cli, preserved)) {
        Ok(code) => code.into(),
        Err(error) => {
            complain(&*error);
            code.into()
        }
    }
}

/// Carries out the command; result: its exit code.
fn obey(cli: Cli, preserved: Preserved) -> Result<u8, Failure> {
    // Most commands need the root, and report an error if there is none.
    let root = cli.state_root();
    let config = cli.config.as_deref();
    let systemd = cli.systemd_cgroup;
    match cli.command {
        Command::Spec { bundle } => bundle::write_spec(&bundle),
        Command::Doctor { json } => doctor::run(json),
        Command::Do(args) => match args.origin.from.clone() {
            Some(name) => snapshot::run_clone(&root?, config, systemd, &name, *args),
            None => run::run(&root?, config, *args),
        },
        Command::Exec(args) => exec::run_in(&root?, *args, preserved),
        Command::List { json, format, quiet } => {
            show::list(&root?, if json { ListFormat::Json } else { format }, quiet)
        }
        Command::State { id } => show::state(&root?, &id),
        Command::Kill { id, signal, all } => show::kill(&root?, &id, &signal, all),
        Command::Pause { id } => ps::pause(&root?, &id),
        Command::Resume { id } => ps::resume(&root?, &id),
        Command::Ps { id, format, options } => ps::ps(&root?, &id, format, &options),
        Command::Update(args) => update::run(&root?, &args),
        Command::Hibernate { id, json } => show::hibernate(&root?, &id, json),
        Command::Wake { id, json, reap } => show::wake(&root?, &id, json, reap.map(Into::into)),
        Command::Checkpoint(args) => snapshot::checkpoint(&root?, config, args),
        Command::Restore(args) => snapshot::restore(&root?, config, systemd, *args, preserved),
        Command::Fork(args) => fork::fork(&root?, config, systemd, &args),
        Command::Pool(args) => pool::run(&root?, config, systemd, &args),
        Command::Snapshot { command } => snapshot::run(root.map_err(Into::into), config, systemd, command),
        Command::Store { command } => chunks::run(config, command),
        Command::Stats { id, json } => show::stats(&root?, &id, json),
        Command::Home(args) => home::run(&root?, &args),
        Command::Why { id, json } => show::why(&root?, &id, json),
        Command::Events { id, stats, interval } => events::events(&root?, &id, stats, interval),
        Command::Top(args) => top::run(&root?, &args),
        Command::Metrics(args) => metrics::run(&root?, &args),
        Command::Codec { command: CodecCommand::Bench(args) } => codec_bench::run(&root?, config, &args),
        Command::Diff { command: DiffCommand::Bench(args) } => diff_bench::run(&root?, config, &args),
        Command::Features => features::show(),
        Command::Completion { shell } => manual::completion(shell),
        Command::Man { directory } => manual::pages(&directory),
        Command::Create(args) => bundle::create(&root?, config, systemd, *args, preserved),
        Command::Start { id } => bundle::start(&root?, &id),
        Command::Run { create, detach, .. } => {
            bundle::run(&root?, config, systemd, *create, preserved, detach)
        }
        Command::Delete { id, force } => bundle::delete(&root?, &id, force),
    }
}
