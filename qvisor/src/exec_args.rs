//! Arguments of `dormouse exec`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use runtime::oci;

use crate::values::{OsParser, env_pair};

/// The user that a process runs as: `UID` or `UID:GID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: Option<u32>,
}

#[derive(Debug, Default, Args)]
pub struct ExecArgs {
    /// Give it a terminal: the command's own, or one for the console socket
    #[arg(long, short)]
    pub tty: bool,
    /// Working directory [default: the first process's at its start]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// Set an environment variable
    #[arg(long, short, value_name = "K=V", value_parser = OsParser(env_pair))]
    pub env: Vec<OsString>,
    /// User, and group [default: the first process's]
    #[arg(long, short, value_name = "UID[:GID]", value_parser = user)]
    pub user: Option<User>,
    /// Further groups
    #[arg(long, short = 'g', value_name = "GID", value_parser = id)]
    pub additional_gids: Vec<u32>,
    /// Capabilities besides the first process's
    #[arg(long, short, value_name = "CAP", value_parser = oci::capability)]
    pub cap: Vec<u64>,
    /// No program it runs gets more rights than it has
    #[arg(long)]
    pub no_new_privs: bool,
    /// Its standard input is empty.
    #[arg(skip)]
    pub no_input: bool,
    /// Come back once the program runs
    #[arg(long, short)]
    pub detach: bool,
    /// Write the process ID that stands for it to a file
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Unix socket that gets its terminal
    #[arg(long, value_name = "SOCKET")]
    pub console_socket: Option<PathBuf>,
    /// All of the process, as the OCI runtime specification has it, instead of options and a command
    #[arg(long, short, value_name = "FILE")]
    pub process: Option<PathBuf>,
    /// Also in a paused sandbox, once that goes on
    #[arg(long)]
    pub ignore_paused: bool,
    /// It may be a probe: where exec-probe is asleep-is-alive, a hibernated sandbox answers exit code 0 and sleeps on
    #[arg(long, conflicts_with = "tty")]
    pub probe: bool,
    /// Accepted; system calls of the sandbox do not reach the host's kernel
    #[arg(long, hide = true, value_name = "PROFILE")]
    pub apparmor: Option<String>,
    /// Accepted; system calls of the sandbox do not reach the host's kernel
    #[arg(long, hide = true, value_name = "LABEL")]
    pub process_label: Option<String>,
    /// Further descriptors of this command's that it gets, from 3 on
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub preserve_fds: usize,
    /// A control group below the sandbox's, for the process that stands for it on the host
    #[arg(long, value_name = "[CONTROLLER:]PATH")]
    pub cgroup: Vec<String>,
    pub id: String,
    /// The program and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

fn id(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(id) if id != u32::MAX => Ok(id),
        _ => Err("expected a number; names are not looked up".into()),
    }
}

fn user(text: &str) -> Result<User, String> {
    match text.split_once(':') {
        None => Ok(User { uid: id(text)?, gid: None }),
        Some((uid, gid)) => Ok(User { uid: id(uid)?, gid: Some(id(gid)?) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers() {
        assert_eq!(user("7"), Ok(User { uid: 7, gid: None }));
        for bad in ["", "root", "1:", ":1", "-1", "4294967295", "1:2:3"] {
            assert!(user(bad).is_err(), "{bad}");
        }
    }
}
