//! The `process` of a configuration as boot records.

use oci_spec::runtime::{Capabilities, Capability, LinuxCapabilities, PosixRlimitType, Process};
use vmm::boot::{BootSpec, Capabilities as Sets, Creds, Rlimit};

use super::error::{BundleError, Result};

/// `PATH_MAX` and the like: no argument of `execve(2)` is longer.
const STRING_MAX: usize = 128 << 10;

pub(super) fn boot(process: &Process) -> Result<BootSpec> {
    let args = strings("process.args", process.args().as_deref())?;
    if args.first().is_none_or(Vec::is_empty) {
        return Err(BundleError::Missing { what: "process.args" });
    }
    let env = strings("process.env", process.env().as_deref())?;
    if let Some(bad) = env.iter().find(|pair| !matches!(pair.iter().position(|b| *b == b'='), Some(1..))) {
        let shown = String::from_utf8_lossy(bad);
        return Err(BundleError::invalid("process.env", shown, "which is not NAME=value"));
    }
    let cwd = process.cwd();
    if !cwd.is_absolute() {
        return Err(BundleError::invalid("process.cwd", cwd.display(), "which is no absolute path"));
    }
    let user = process.user();
    let groups = user.additional_gids().clone().unwrap_or_default();
    for id in [user.uid(), user.gid()].iter().chain(&groups) {
        if *id == u32::MAX {
            return Err(BundleError::invalid("process.user", id, "and that is no user or group"));
        }
    }
    if let Some(mask) = user.umask().filter(|mask| *mask > 0o777) {
        return Err(BundleError::invalid(
            "process.user.umask",
            mask,
            "and at most 511 (octal 777) is possible",
        ));
    }
    Ok(BootSpec {
        args,
        env,
        cwd: vmm::mounts::bytes_of(cwd),
        creds: Creds { uid: user.uid(), gid: user.gid(), groups },
        capabilities: Some(capabilities(process.capabilities().as_ref())),
        no_new_privs: process.no_new_privileges().unwrap_or(false),
        rlimits: rlimits(process)?,
        umask: user.umask().unwrap_or(0o022),
        winsize: console_size(process)?,
        hold: true,
        make_cwd: true,
        ..BootSpec::default()
    })
}

fn strings(what: &str, list: Option<&[String]>) -> Result<Vec<Vec<u8>>> {
    let check = |text: &String| {
        if text.contains('\0') || text.len() >= STRING_MAX {
            let start: String = text.chars().take(40).collect();
            return Err(BundleError::invalid(what, start, "which has a NUL or is longer than 128 KiB"));
        }
        Ok(text.clone().into_bytes())
    };
    list.unwrap_or_default().iter().map(check).collect()
}

/// Rows and columns, when there is a terminal.
fn console_size(process: &Process) -> Result<Option<(u16, u16)>> {
    if !process.terminal().unwrap_or(false) {
        return Ok(None);
    }
    let Some(size) = process.console_size() else { return Ok(Some((0, 0))) };
    let fit = |value: u64| {
        u16::try_from(value)
            .map_err(|_| BundleError::invalid("process.consoleSize", value, "and at most 65535 is possible"))
    };
    Ok(Some((fit(size.height())?, fit(size.width())?)))
}

pub(super) fn oom_score_adj(process: &Process) -> Result<Option<i32>> {
    match process.oom_score_adj() {
        Some(score) if !(-1000..=1000).contains(&score) => {
            Err(BundleError::invalid("process.oomScoreAdj", score, "and -1000 to 1000 are possible"))
        }
        score => Ok(score),
    }
}

fn rlimits(process: &Process) -> Result<Vec<Rlimit>> {
    let mut limits: Vec<Rlimit> = Vec::new();
    for limit in process.rlimits().as_deref().unwrap_or_default() {
        let resource = resource(limit.typ());
        if limits.iter().any(|known| known.resource == resource) {
            return Err(BundleError::invalid("process.rlimits", limit.typ(), "which is there twice"));
        }
        if limit.soft() > limit.hard() {
            let what = format!("process.rlimits ({})", limit.typ());
            return Err(BundleError::invalid(what, limit.soft(), "and the soft limit is above the hard one"));
        }
        limits.push(Rlimit { resource, soft: limit.soft(), hard: limit.hard() });
    }
    Ok(limits)
}

fn resource(kind: PosixRlimitType) -> u32 {
    match kind {
        PosixRlimitType::RlimitCpu => libc::RLIMIT_CPU,
        PosixRlimitType::RlimitFsize => libc::RLIMIT_FSIZE,
        PosixRlimitType::RlimitData => libc::RLIMIT_DATA,
        PosixRlimitType::RlimitStack => libc::RLIMIT_STACK,
        PosixRlimitType::RlimitCore => libc::RLIMIT_CORE,
        PosixRlimitType::RlimitRss => libc::RLIMIT_RSS,
        PosixRlimitType::RlimitNproc => libc::RLIMIT_NPROC,
        PosixRlimitType::RlimitNofile => libc::RLIMIT_NOFILE,
        PosixRlimitType::RlimitMemlock => libc::RLIMIT_MEMLOCK,
        PosixRlimitType::RlimitAs => libc::RLIMIT_AS,
        PosixRlimitType::RlimitLocks => libc::RLIMIT_LOCKS,
        PosixRlimitType::RlimitSigpending => libc::RLIMIT_SIGPENDING,
        PosixRlimitType::RlimitMsgqueue => libc::RLIMIT_MSGQUEUE,
        PosixRlimitType::RlimitNice => libc::RLIMIT_NICE,
        PosixRlimitType::RlimitRtprio => libc::RLIMIT_RTPRIO,
        PosixRlimitType::RlimitRttime => libc::RLIMIT_RTTIME,
    }
}

/// A set that is missing is empty: a process without `capabilities` has none.
fn capabilities(sets: Option<&LinuxCapabilities>) -> Sets {
    let bits = |set: Option<&Capabilities>| {
        set.into_iter().flatten().fold(0, |bits, capability| bits | 1 << number(*capability))
    };
    let Some(sets) = sets else { return Sets::default() };
    Sets {
        bounding: bits(sets.bounding().as_ref()),
        effective: bits(sets.effective().as_ref()),
        permitted: bits(sets.permitted().as_ref()),
        inheritable: bits(sets.inheritable().as_ref()),
        ambient: bits(sets.ambient().as_ref()),
    }
}

/// A capability by its name, with or without `CAP_`, in any case: its bit.
pub fn capability(name: &str) -> std::result::Result<u64, String> {
    let upper = name.to_ascii_uppercase();
    let whole = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
    let known: std::result::Result<Capability, _> = serde_json::from_value(whole.into());
    known
        .map(|capability| 1 << number(capability))
        .map_err(|_| "no such capability; see capabilities(7)".into())
}

/// The number of `capabilities(7)`.
fn number(capability: Capability) -> u32 {
    match capability {
        Capability::Chown => 0,
        Capability::DacOverride => 1,
        Capability::DacReadSearch => 2,
        Capability::Fowner => 3,
        Capability::Fsetid => 4,
        Capability::Kill => 5,
        Capability::Setgid => 6,
        Capability::Setuid => 7,
        Capability::Setpcap => 8,
        Capability::LinuxImmutable => 9,
        Capability::NetBindService => 10,
        Capability::NetBroadcast => 11,
        Capability::NetAdmin => 12,
        Capability::NetRaw => 13,
        Capability::IpcLock => 14,
        Capability::IpcOwner => 15,
        Capability::SysModule => 16,
        Capability::SysRawio => 17,
        Capability::SysChroot => 18,
        Capability::SysPtrace => 19,
        Capability::SysPacct => 20,
        Capability::SysAdmin => 21,
        Capability::SysBoot => 22,
        Capability::SysNice => 23,
        Capability::SysResource => 24,
        Capability::SysTime => 25,
        Capability::SysTtyConfig => 26,
        Capability::Mknod => 27,
        Capability::Lease => 28,
        Capability::AuditWrite => 29,
        Capability::AuditControl => 30,
        Capability::Setfcap => 31,
        Capability::MacOverride => 32,
        Capability::MacAdmin => 33,
        Capability::Syslog => 34,
        Capability::WakeAlarm => 35,
        Capability::BlockSuspend => 36,
        Capability::AuditRead => 37,
        Capability::Perfmon => 38,
        Capability::Bpf => 39,
        Capability::CheckpointRestore => 40,
    }
}
