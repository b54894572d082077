//! `dormouse do`.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use abi::boot::Platform;

use super::{DoArgs, Failure, NetChoice, PlatformChoice, Switch};
use crate::boot::{BootSpec, Creds, Rlimit};
use crate::net::Network;
use crate::platform::probe::{self, Verdict};
use crate::process::{self, Terminal};
use crate::state::{Id, Root};
use crate::vmm::{Plan, Tree};
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
        env: environment(&args.env),
        cwd: mounts::bytes_of(&working_directory(args.cwd, &root)?),
        hostname: hostname(),
        creds: Creds { uid: 0, gid: 0, groups: groups() },
        rlimits: limits(),
        umask: process::umask(),
        winsize: size.filter(|_| terminal),
        strace: args.strace,
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
        cpus: args.cpus.unwrap_or_else(|| u32::try_from(cores.min(CPUS_MAX)).unwrap_or(1)),
        boot,
        swap: wishes.into(),
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

/// The caller's environment, with what was set on the command line.
fn environment(set: &[OsString]) -> Vec<Vec<u8>> {
    let inherited =
        std::env::vars_os().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
    let mut all: Vec<Vec<u8>> = inherited.collect();
    set_variables(&mut all, set);
    all
}

/// Sets variables in an environment.
pub(super) fn set_variables(env: &mut Vec<Vec<u8>>, set: &[OsString]) {
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

    #[test]
    fn the_command_line_wins_over_the_environment() {
        let all = environment(&["PATH=/x".into(), "NEW=1=2".into(), "NEW=3".into()]);
        assert_eq!(all.iter().filter(|pair| pair.starts_with(b"PATH=")).count(), 1);
        assert!(all.contains(&b"PATH=/x".to_vec()) && all.contains(&b"NEW=3".to_vec()));
    }

    #[test]
    fn memory_has_bounds() {
        assert!(memory(Some(1024)).unwrap_err().to_string().contains("16 MiB"));
        assert!(memory(Some(1 << 50)).is_err());
        assert_eq!(memory(Some(64 << 20)).unwrap(), 64 << 20);
        assert!(memory(None).unwrap() <= MEMORY_DEFAULT);
    }
}
