//! From the options of `do` to the plan that its VMM gets.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use abi::boot::Platform;
use vmm::boot::{BootSpec, Creds, Rlimit};
use vmm::hibernate::BaseInMemory;
use vmm::jail::mitigations::Mitigations;
use vmm::mounts::{self, Volume};
use vmm::process::{self, Terminal};

use super::options::{DoError, DoOptions, FromOptions};
use crate::cgroup::Cgroups;
use crate::environment::set_variables;
use crate::resources::{MEMORY_MIN, Resources};
use crate::settings::HostUds;
use crate::snapshot::comparing::Compared;
use crate::snapshot::{Manifest, SnapshotError, Unfit};
use crate::state::Root;
use crate::vmm_process::plan::{Bounds, Plan, RestorePlan, Tree, say_wishes, swap_plan};

/// Memory of a sandbox when nothing else is asked for.
const MEMORY_DEFAULT: u64 = 2 << 30;
const CPUS_MAX: usize = abi::layout::MAX_CPUS as usize;

pub(super) fn make(options: DoOptions, state_root: &Root, layer_root: &Root) -> Result<Plan, DoError> {
    let memory_bytes = memory(options.memory_bytes)?;
    let root = root_directory(&options.rootfs)?;
    let platform = options.platform.choose()?;
    check_volumes(&options.volumes)?;
    let (terminal, winsize) = terminal(options.terminal)?;
    let wishes = options.hibernation;
    let cpus = options.cpus.unwrap_or_else(default_cpus);
    let resources = Resources::for_command(memory_bytes, options.pids, cpus, platform);
    // A directory that is asked for is needed; the current one may not be there.
    let make_cwd = options.cwd.is_some();
    let mut boot = BootSpec {
        make_cwd,
        args: options.command.into_iter().map(OsString::into_vec).collect(),
        env: environment(std::env::vars_os(), &options.env, options.env_all),
        cwd: mounts::bytes_of(&working_directory(options.cwd, &root)?),
        hostname: hostname(),
        creds: Creds { uid: 0, gid: 0, groups: groups() },
        rlimits: limits(),
        umask: process::umask(),
        winsize,
        strace: options.strace,
        limits: resources.container_limits(),
        share_files: options.share_files,
        plain_calls: !options.patch_calls,
        log_level: options.log_level,
        ..BootSpec::default()
    };
    let hidden = hidden(state_root, layer_root);
    let (layer, volumes) = (PathBuf::new(), options.volumes);
    let tree = Tree::CopyOnWrite { root, layer, volumes, hidden, below: Vec::new(), is_silent: false };
    say_wishes(&mut boot, &wishes);
    Ok(Plan {
        tree,
        network: options.network,
        userns: options.userns,
        mitigations: options.mitigations,
        platform,
        memory_bytes,
        memory_most_bytes: memory_bytes,
        cpus,
        exec_probe: wishes.exec_probe.unwrap_or_default(),
        swap: swap_plan(wishes, &boot),
        boot,
        pause_hibernates: false,
        is_pod: false,
        restore: None,
        compare: compare(options.compare.as_deref())?,
        host_uds: options.host_uds == HostUds::Connect,
        cgroups: Cgroups::default(),
        bounds: Some(Bounds { resources, pids: options.pids, disk_bytes: options.disk_bytes }),
        terminal,
        has_leash: options.pid_file.is_some(),
    })
}

/// The base that pages are compared with, for a VMM.
fn compare(compared: Option<&Compared>) -> Result<Option<BaseInMemory>, DoError> {
    let base = compared.map(Compared::try_clone).transpose();
    Ok(base.map_err(SnapshotError::InMemory)?.map(|compared| compared.base))
}

/// The plan of a sandbox that begins with a snapshot.
pub(super) fn of_snapshot(
    options: FromOptions,
    state_root: &Root,
    layer_root: &Root,
    warn: fn(&str),
) -> Result<Plan, DoError> {
    let place = options.opened.place.clone();
    let unfit = |why: Unfit| DoError::Snapshot(why.at(&place));
    let Manifest { head, container, .. } = options.opened.manifest.clone();
    let damaged = |what: &str| unfit(Unfit::Damaged(what.into()));
    let command = container.command.as_ref().ok_or_else(|| damaged("it is of no sandbox of do"))?;
    let records = command.records().and_then(|records| BootSpec::of_process(&records).ok());
    let mut boot = records.ok_or_else(|| damaged("it does not say how its first process began"))?;
    let is_silent = options.is_silent;
    let (terminal, winsize) = if container.terminal && !is_silent { terminal(true)? } else { (false, None) };
    let root = root_directory(&container.bundle)?;
    let volumes = command.volumes();
    check_volumes(&volumes)?;
    let platform = if head.is_kvm { Platform::Kvm } else { Platform::Systrap };
    let resources = Resources::for_command(head.memory_bytes, command.pids, head.cpus, platform);
    let wishes = options.hibernation;
    say_wishes(&mut boot, &wishes);
    boot.hostname = container.hostname.clone().into_bytes();
    boot.limits = resources.container_limits();
    (boot.winsize, boot.log_level) = (winsize, options.log_level);
    (boot.accepts_changed, boot.ports) = (options.accepts_changed, options.ports);
    options.opened.read_ahead(options.template.as_deref());
    options.opened.say_working_set(&mut boot, is_silent, warn);
    let (told, page_key) = (options.opened.start_recording(), options.opened.page_key.clone());
    let template = options.template.as_deref();
    let (files, shares) = options.opened.files(template).map_err(|error| unfit(error.into()))?;
    let base = options.opened.base_used(template).map(str::to_owned);
    Ok(Plan {
        tree: Tree::CopyOnWrite {
            root,
            layer: PathBuf::new(),
            volumes,
            hidden: hidden(state_root, layer_root),
            below: options.opened.changes.clone(),
            is_silent,
        },
        network: command.network.into(),
        userns: options.userns,
        mitigations: Mitigations::default(),
        platform,
        memory_bytes: head.memory_bytes,
        memory_most_bytes: head.memory_most_bytes,
        cpus: head.cpus,
        exec_probe: wishes.exec_probe.unwrap_or_default(),
        swap: swap_plan(wishes, &boot),
        boot,
        pause_hibernates: false,
        is_pod: false,
        restore: Some(RestorePlan { head, files, shares, page_key, further: Vec::new(), told, base }),
        compare: compare(options.compare.as_deref())?,
        host_uds: command.host_uds,
        cgroups: Cgroups::default(),
        bounds: Some(Bounds { resources, pids: command.pids, disk_bytes: options.disk_bytes }),
        terminal,
        has_leash: false,
    })
}

/// Directories that no sandbox of the command line sees.
fn hidden(state_root: &Root, layer_root: &Root) -> Vec<PathBuf> {
    let roots = [layer_root, state_root].map(|root| root.path().to_owned());
    // A user without a place for snapshots has none.
    roots.into_iter().chain(Root::default_snapshots().ok()).collect()
}

/// Whether the program has a terminal, and that terminal's rows and columns.
fn terminal(asked: bool) -> Result<(bool, Option<(u16, u16)>), DoError> {
    let terminal = asked || io::stdin().is_terminal() && io::stdout().is_terminal();
    let size = Terminal::new(io::stdin().as_fd()).map(|terminal| terminal.size());
    if asked && size.is_none() {
        return Err(DoError::NoTerminal);
    }
    Ok((terminal, size.filter(|_| terminal)))
}

/// Refuses a volume that is not there.
fn check_volumes(volumes: &[Volume]) -> Result<(), mounts::MountError> {
    for volume in volumes {
        std::fs::metadata(&volume.source)
            .map_err(|source| mounts::MountError::Volume { path: volume.source.clone(), source })?;
    }
    Ok(())
}

fn root_directory(path: &Path) -> Result<PathBuf, mounts::MountError> {
    let failed = |source| mounts::MountError::Root { path: path.to_owned(), source };
    let root = std::fs::canonicalize(path).map_err(failed)?;
    if !root.is_dir() {
        return Err(failed(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    Ok(root)
}

/// Processors of a sandbox when nothing else is asked for.
fn default_cpus() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    u32::try_from(cores.min(CPUS_MAX)).unwrap_or(1)
}

fn memory(asked_bytes: Option<u64>) -> Result<u64, DoError> {
    match asked_bytes {
        None => Ok(MEMORY_DEFAULT.min(process::host_memory())),
        Some(bytes) if bytes < MEMORY_MIN => Err(DoError::TooLittleMemory { bytes }),
        Some(bytes) if bytes > abi::layout::USER_PHYS_MAX - abi::layout::USER_PHYS => {
            Err(DoError::TooMuchMemory { bytes })
        }
        Some(bytes) => Ok(bytes),
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

/// The program's environment: variables of the caller's environment, and those asked for on the command line as
/// `NAME=value`, or as a name alone, which stands for the caller's value and for nothing if there is none.
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

fn working_directory(asked: Option<PathBuf>, root: &Path) -> Result<PathBuf, DoError> {
    if let Some(asked) = asked {
        return if asked.is_absolute() { Ok(asked) } else { Err(DoError::RelativeCwd { path: asked }) };
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
        assert!(memory(Some(1024)).unwrap_err().to_string().contains("1 MiB"));
        assert!(memory(Some(1 << 50)).is_err());
        assert_eq!(memory(Some(64 << 20)).unwrap(), 64 << 20);
        assert!(memory(None).unwrap() <= MEMORY_DEFAULT);
    }
}
