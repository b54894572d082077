//! `dormouse exec`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use runtime::cgroup;
use runtime::environment::set_variables;
use runtime::exec::{self, ExecError, ExecOptions};
use runtime::oci;
use runtime::preserved::Preserved;
use runtime::state::{Id, Root};
use vmm::boot::{BootSpec, Capabilities};
use vmm::mounts::bytes_of;

use crate::exec_args::ExecArgs;
use crate::failure::{Failure, complain, remark};

pub fn run_in(root: &Root, args: ExecArgs, preserved: Preserved) -> Result<u8, Failure> {
    let id = Id::new(&args.id)?;
    // An unknown sandbox is reported as such, rather than by the file that is missing.
    root.state(&id)?;
    refuse(&args)?;
    let (process, terminal) = match &args.process {
        Some(path) => whole(root, &id, path)?,
        None => (merged(root, &id, &args)?, args.tty),
    };
    check_terminal(&args, terminal)?;
    let subgroups = cgroup::parse_subgroups(&args.cgroup);
    let subgroups =
        subgroups.map_err(|why| format!("cannot run a process in sandbox {}: --cgroup {why}", args.id))?;
    if !subgroups.is_empty() {
        remark(
            "--cgroup holds for the process on the host alone: memory and time of the program are the sandbox's",
        );
    }
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let options = ExecOptions {
        root: root.clone(),
        id,
        process,
        terminal,
        no_input: args.no_input,
        detach: args.detach,
        pid_file: args.pid_file.map(absolute),
        console_socket: args.console_socket.map(absolute),
        ignore_paused: args.ignore_paused,
        probe: args.probe,
        subgroups,
    };
    match exec::run(&options, preserved) {
        // The program is to blame; anything else is a failure of the command's.
        Err(error @ ExecError::Failed { code: code @ (126 | 127), .. }) => {
            complain(&error);
            Ok(code)
        }
        result => Ok(result?),
    }
}

fn refuse(args: &ExecArgs) -> Result<(), Failure> {
    let id = &args.id;
    let unneeded =
        [("--apparmor", args.apparmor.is_some()), ("--process-label", args.process_label.is_some())];
    for (name, _) in unneeded.iter().filter(|(_, given)| *given) {
        let words =
            format!("{name} is not applied: system calls of the sandbox do not reach the host's kernel");
        remark(&words);
    }
    if args.process.is_none() && args.command.is_empty() {
        return Err(format!(
            "cannot run a process in sandbox {id}: no command is given; add one, or pass --process"
        )
        .into());
    }
    Ok(())
}

fn check_terminal(args: &ExecArgs, terminal: bool) -> Result<(), Failure> {
    let why = match (terminal, args.detach, args.console_socket.is_some()) {
        (true, true, false) => "nobody would hold it; pass --console-socket, or leave out --tty or --detach",
        (true, false, true) => {
            "the command stays and has its own; pass --detach, or leave out --console-socket"
        }
        (false, _, true) => "none is asked for; pass --tty, or leave out --console-socket",
        _ => return Ok(()),
    };
    Err(format!("cannot give a process in sandbox {} a terminal: {why}", args.id).into())
}

/// The process that a file describes, and whether it is to have a terminal.
fn whole(root: &Root, id: &Id, path: &Path) -> Result<(BootSpec, bool), Failure> {
    let (mut process, terminal, remarks) = oci::read_process(path)?;
    remarks.iter().for_each(|words| remark(words));
    // The filter is the container's, not the process's.
    process.seccomp = first(root, id)?.seccomp;
    Ok((process, terminal))
}

/// The description of the first process.
fn first(root: &Root, id: &Id) -> Result<BootSpec, Failure> {
    let failed = |why: String| {
        let id = id.as_str();
        format!(
            "cannot run a process in sandbox {id}: what its first one was made of is not known: {why}; start it anew"
        )
    };
    let records = root.process(id).map_err(|error| failed(error.to_string()))?;
    Ok(BootSpec::of_process(&records).map_err(|_| failed("its record is damaged".into()))?)
}

/// The description of the first process, changed by the options.
fn merged(root: &Root, id: &Id, args: &ExecArgs) -> Result<BootSpec, Failure> {
    let mut spec = first(root, id)?;
    spec.args = args.command.iter().cloned().map(OsString::into_vec).collect();
    spec.winsize = None;
    set_variables(&mut spec.env, &args.env);
    if let Some(cwd) = &args.cwd {
        if !cwd.is_absolute() {
            let shown = cwd.display();
            return Err(
                format!("cannot start in {shown}: it is not an absolute path; pass one with --cwd").into()
            );
        }
        spec.cwd = bytes_of(cwd);
    }
    if let Some(user) = args.user {
        let first = std::mem::replace(&mut spec.creds.uid, user.uid);
        spec.creds.gid = user.gid.unwrap_or(spec.creds.gid);
        if user.uid != first {
            // Another user's home is another one.
            spec.env.retain(|pair| {
                !pair.starts_with(b"HOME=") || args.env.iter().any(|set| set.as_encoded_bytes() == pair)
            });
        }
    }
    spec.creds.groups.extend(&args.additional_gids);
    spec.no_new_privs |= args.no_new_privs;
    let more = args.cap.iter().fold(0, |bits, cap| bits | cap);
    if let Some(sets) = &mut spec.capabilities {
        add_capabilities(sets, more);
    }
    Ok(spec)
}

/// A user without capability sets of their own has those of the id: root all, others none.
fn add_capabilities(sets: &mut Capabilities, more: u64) {
    for set in [&mut sets.bounding, &mut sets.effective, &mut sets.permitted, &mut sets.ambient] {
        *set |= more;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::exec_args::User;

    fn parsed(args: &[&str]) -> ExecArgs {
        let cli = Cli::try_parse_from([&["dormouse", "exec"], args].concat()).unwrap();
        let Command::Exec(args) = cli.command else { panic!("exec") };
        *args
    }

    #[test]
    fn options_end_with_the_name() {
        let args = parsed(&["-t", "-e", "A=1", "--env", "B=2", "-u", "5:6", "c1", "ls", "-t", "--json"]);
        assert!(args.tty && args.id == "c1" && args.env.len() == 2);
        assert_eq!(args.command, ["ls", "-t", "--json"]);
        assert_eq!(args.user, Some(User { uid: 5, gid: Some(6) }));
        assert_eq!(parsed(&["c1", "--", "sh", "-c", "x"]).command, ["sh", "-c", "x"]);
        let args = parsed(&["--process", "p.json", "--detach", "--pid-file", "p", "c1"]);
        assert!(args.command.is_empty() && args.detach);
    }

    #[test]
    fn a_terminal_needs_somebody_who_holds_it() {
        let refused = |args: &[&str], terminal| check_terminal(&parsed(args), terminal).is_err();
        assert!(!refused(&["c", "sh"], false) && !refused(&["-t", "c", "sh"], true));
        assert!(!refused(&["-t", "-d", "--console-socket", "s", "c", "sh"], true));
        assert!(refused(&["-t", "-d", "c", "sh"], true));
        assert!(refused(&["-t", "--console-socket", "s", "c", "sh"], true));
        assert!(refused(&["-d", "--console-socket", "s", "c", "sh"], false));
    }
}
