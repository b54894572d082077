//! `dormouse do`.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use abi::boot::Platform;

use super::{DoArgs, Failure, NetChoice, PlatformChoice, Switch};
use crate::boot::{BootSpec, Creds, Rlimit};
use crate::net::Network;
use crate::oci::Resources;
use crate::oci::cgroup::Cgroups;
use crate::platform::probe::{self, Verdict};
use crate::process::{self, Terminal};
use crate::state::{Id, Root};
use crate::vmm::{Bounds, Plan, Tree};
use crate::{front, mounts};

/// Least memory that the kernel and one small program fit in.
const MEMORY_MIN: u64 = 16 << 20;
/// Memory of a sandbox when nothing else is asked for.
const MEMORY_DEFAULT: u64 = 2 << 30;
const CPUS_MAX: usize = abi::layout::MAX_CPUS as usize;

pub(super) fn run(state_root: &Root, args: DoArgs) -> Result<u8, Failure> {
    let id = args.id.as_deref().map_or_else(|| Ok(Id::random()), Id::new)?;
    let layer_root = Root::default_layers()?;
    let plan = plan(args, state_root, &layer_root)?;
    Ok(front::run(&id, state_root, &layer_root, plan)?)
}

fn plan(args: DoArgs, state_root: &Root, layer_root: &Root) -> Result<Plan, Failure> {
    let memory_bytes = memory(args.memory)?;
    let root = root_directory(&args.rootfs)?;
    let platform = platform(args.platform)?;
    for volume in &args.volume {
        std::fs::metadata(&volume.source)
            .map_err(|source| mounts::MountError::Volume { path: volume.source.clone(), source })?;
    }
    let terminal = args.tty || std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let size = Terminal::new(std::os::fd::AsFd::as_fd(&std::io::stdin())).map(|terminal| terminal.size());
    if args.tty && size.is_none() {
        return Err("cannot drive the terminal: standard input is not one; leave out --tty".into());
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let wishes = args.hibernation.wishes()?;
    let boot = BootSpec {
        idle_timeout: wishes.idle_timeout,
        args: args.command.into_iter().map(OsString::into_vec).collect(),
        env: environment(std::env::vars_os(), &args.env, args.env_all),
        cwd: mounts::bytes_of(&working_directory(args.cwd, &root)?),
        hostname: hostname(),
        creds: Creds { uid: 0, gid: 0, groups: groups() },
        rlimits: limits(),
        umask: process::umask(),
        winsize: size.filter(|_| terminal),
        strace: args.strace,
        tasks_max: Some(u64::from(args.pids)),
        share_files: args.share_files == Switch::On,
        log_level: log_level(),
        ..BootSpec::default()
    };
    let tree = Tree::CopyOnWrite {
        hidden: vec![layer_root.path().to_owned(), state_root.path().to_owned()],
        root,
        layer: PathBuf::new(),
        volumes: args.volume,
    };
    let cpus = args.cpus.unwrap_or_else(|| u32::try_from(cores.min(CPUS_MAX)).unwrap_or(1));
    let resources = Resources::for_command(memory_bytes, args.pids, cpus, platform);
    Ok(Plan {
        tree,
        network: match args.net {
            NetChoice::Host => Network::Host,
            NetChoice::None => Network::None,
        },
        userns: args.userns,
        mitigations: args.mitigations,
        platform,
        memory_bytes,
        cpus,
        boot,
        swap: wishes.into(),
        cgroups: Cgroups::default(),
        bounds: Some(Bounds { resources, disk_bytes: args.disk }),
        terminal,
    })
}

fn root_directory(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |source| mounts::MountError::Root { path: path.to_owned(), source };
    let root = std::fs::canonicalize(path).map_err(failed)?;
    if !root.is_dir() {
        return Err(failed(std::io::Error::from_raw_os_error(libc::ENOTDIR)).into());
    }
    Ok(root)
}

fn memory(asked: Option<u64>) -> Result<u64, Failure> {
    let host = process::host_memory();
    match asked {
        None => Ok(MEMORY_DEFAULT.min(host)),
        Some(bytes) if bytes < MEMORY_MIN => Err(format!(
            "cannot give a sandbox {bytes} bytes of memory: it needs at least {} MiB; pass a larger --memory",
            MEMORY_MIN >> 20
        )
        .into()),
        Some(bytes) if bytes > abi::layout::USER_PHYS_MAX - abi::layout::USER_PHYS => Err(format!(
            "cannot give a sandbox {bytes} bytes of memory: at most {} GiB are possible; pass a smaller --memory",
            (abi::layout::USER_PHYS_MAX - abi::layout::USER_PHYS) >> 30
        )
        .into()),
        Some(bytes) => Ok(bytes),
    }
}

/// The platform to use; one that was asked for by name and cannot serve is refused.
pub(super) fn platform(choice: PlatformChoice) -> Result<Platform, Failure> {
    if choice == PlatformChoice::Systrap {
        return Ok(Platform::Systrap);
    }
    let report = probe::report();
    match (report.verdict.clone(), choice) {
        (Verdict::Native, _) => Ok(Platform::Kvm),
        (_, PlatformChoice::Auto) => Ok(Platform::Systrap),
        // Slow, but it works, and was asked for.
        (Verdict::Interpreted, _) if report.syscall_works == Some(true) => Ok(Platform::Kvm),
        _ => Err(format!("cannot use platform kvm: {report}; pass --platform systrap").into()),
    }
}

/// Variables that a program gets from the caller without being asked for: where things are, who the user is, what the
/// terminal and the language are, and which programs the user likes. None of them is known to hold a secret; the rest of
/// an environment often does (tokens, passwords in proxies' and data bases' addresses, sockets of agents).
const HANDED_OVER: &[&str] = &[
    "COLORTERM",
    "COLUMNS",
    "EDITOR",
    "HOME",
    "LANG",
    "LANGUAGE",
    "LINES",
    "LOGNAME",
    "NO_COLOR",
    "PAGER",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "VISUAL",
];

fn is_handed_over(name: &[u8]) -> bool {
    name.starts_with(b"LC_") || HANDED_OVER.iter().any(|known| known.as_bytes() == name)
}

/// What the program gets of the caller's environment, with what was asked for on the command line: `NAME=value`, or a
/// name alone, which stands for the caller's value and for nothing if there is none.
fn environment(
    caller: impl IntoIterator<Item = (OsString, OsString)>,
    asked: &[OsString],
    all: bool,
) -> Vec<Vec<u8>> {
    let (names, set): (Vec<_>, Vec<_>) = asked.iter().partition(|word| !word.as_bytes().contains(&b'='));
    let wanted = |name: &OsString| all || is_handed_over(name.as_bytes()) || names.contains(&name);
    let caller = caller.into_iter().filter(|(name, _)| wanted(name));
    let mut env: Vec<Vec<u8>> =
        caller.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect();
    set_variables(&mut env, set);
    env
}

/// Sets variables in an environment.
pub(super) fn set_variables<'a>(env: &mut Vec<Vec<u8>>, set: impl IntoIterator<Item = &'a OsString>) {
    let name_of = |pair: &[u8]| pair.split(|b| *b == b'=').next().unwrap_or_default().to_vec();
    for pair in set {
        let name = name_of(pair.as_bytes());
        env.retain(|known| name_of(known) != name);
        env.push(pair.as_bytes().to_vec());
    }
}

fn working_directory(asked: Option<PathBuf>, root: &Path) -> Result<PathBuf, Failure> {
    if let Some(asked) = asked {
        if !asked.is_absolute() {
            let shown = asked.display();
            return Err(
                format!("cannot start in {shown}: it is not an absolute path; pass one with --cwd").into()
            );
        }
        return Ok(asked);
    }
    let Ok(current) = std::env::current_dir() else { return Ok("/".into()) };
    let inside = current.strip_prefix("/").map(|path| root.join(path));
    if inside.is_ok_and(|path| path.is_dir()) { Ok(current) } else { Ok("/".into()) }
}

fn hostname() -> Vec<u8> {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_else(|_| b"dormouse".to_vec());
    name.trim_ascii().to_vec()
}

/// The caller's groups; an unprivileged caller is root in its sandbox and nothing else.
fn groups() -> Vec<u32> {
    if process::effective_user() == 0 { process::groups() } else { Vec::new() }
}

fn limits() -> Vec<Rlimit> {
    process::limits().into_iter().map(|(resource, soft, hard)| Rlimit { resource, soft, hard }).collect()
}

/// `DORMOUSE_LOG`: error, warn, info or debug; errors alone by default.
pub(super) fn log_level() -> u32 {
    match std::env::var("DORMOUSE_LOG").as_deref() {
        Ok("warn") => 1,
        Ok("info") => 2,
        Ok("debug") => 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(asked: &[&str], all: bool) -> Vec<String> {
        let caller = [("PATH", "/bin"), ("LC_TIME", "C"), ("TOKEN", "secret"), ("LCX", "1"), ("KEEP", "a=b")];
        let caller = caller.map(|(name, value)| (name.into(), value.into()));
        let asked: Vec<OsString> = asked.iter().map(Into::into).collect();
        let env = environment(caller, &asked, all).into_iter();
        env.map(|pair| String::from_utf8(pair).unwrap()).collect()
    }

    #[test]
    fn secrets_of_the_environment_stay_with_the_caller() {
        assert_eq!(chosen(&[], false), ["PATH=/bin", "LC_TIME=C"]);
        assert_eq!(chosen(&["KEEP", "GONE"], false), ["PATH=/bin", "LC_TIME=C", "KEEP=a=b"]);
        assert_eq!(chosen(&[], true).len(), 5);
    }

    #[test]
    fn the_command_line_wins_over_the_environment() {
        let all = chosen(&["PATH=/x", "NEW=1=2", "NEW=3", "KEEP=1", "KEEP"], false);
        assert_eq!(all, ["LC_TIME=C", "PATH=/x", "NEW=3", "KEEP=1"]);
    }

    #[test]
    fn memory_has_bounds() {
        assert!(memory(Some(1024)).unwrap_err().to_string().contains("16 MiB"));
        assert!(memory(Some(1 << 50)).is_err());
        assert_eq!(memory(Some(64 << 20)).unwrap(), 64 << 20);
        assert!(memory(None).unwrap() <= MEMORY_DEFAULT);
    }
}
