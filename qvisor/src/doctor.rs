//! `dormouse doctor`: the host's features, and the platform that is chosen, with the reason.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use runtime::state::Root;
use serde::Serialize;
use vmm::jail::{landlock, mitigations};
use vmm::mounts;
use vmm::platform::folios::{self, Folios};
use vmm::platform::probe::{self, KvmReport};

use crate::accelerator::{self, Accelerator};
use crate::failure::{Failure, say};

/// The features that were found on the host.
#[derive(Debug, Serialize)]
struct Findings {
    kvm: Finding,
    seccomp: Finding,
    landlock: Finding,
    mitigations: Finding,
    user_namespaces: Finding,
    overlayfs: Finding,
    cgroup: Finding,
    fsgsbase: Finding,
    large_folios: Finding,
    capture: Finding,
    iaa: Accelerator,
    platform: &'static str,
    reason: String,
    kvm_report: KvmReport,
}

/// One feature: whether a sandbox can use it, and the details.
#[derive(Debug, Serialize)]
struct Finding {
    ok: bool,
    detail: String,
}

impl Finding {
    fn new(ok: bool, detail: impl Into<String>) -> Self {
        Self { ok, detail: detail.into() }
    }
}

pub fn run(json: bool) -> Result<u8, Failure> {
    let findings = examine();
    if json {
        return say(&(serde_json::to_string_pretty(&findings)? + "\n"));
    }
    let mut text = String::new();
    let lines = [
        ("kvm", &findings.kvm),
        ("seccomp", &findings.seccomp),
        ("landlock", &findings.landlock),
        ("mitigations", &findings.mitigations),
        ("user namespaces", &findings.user_namespaces),
        ("overlayfs", &findings.overlayfs),
        ("cgroup", &findings.cgroup),
        ("fsgsbase", &findings.fsgsbase),
        ("large folios", &findings.large_folios),
        ("capture", &findings.capture),
    ];
    let iaa = &findings.iaa;
    let lines = lines.into_iter().map(|(name, finding)| (name, finding.ok, &finding.detail));
    let queues = iaa.queues.iter().map(|queue| (queue.name.as_str(), queue.ok, &queue.detail));
    for (name, ok, detail) in lines.chain([("iaa", iaa.ok, &iaa.detail)]).chain(queues) {
        writeln!(text, "{name:16} {:4} {detail}", if ok { "ok" } else { "no" })?;
    }
    writeln!(text, "{:16}      {}: {}", "platform", findings.platform, findings.reason)?;
    say(&text)
}

fn examine() -> Findings {
    let report = probe::report();
    let platform = runtime::platform::automatic(&report);
    Findings {
        kvm: kvm(&report),
        seccomp: seccomp(),
        landlock: landlock(),
        mitigations: mitigations(),
        user_namespaces: user_namespaces(),
        overlayfs: Finding::new(mounts::knows_overlay(), "copy-on-write views"),
        cgroup: cgroup(),
        fsgsbase: fsgsbase(),
        large_folios: large_folios(),
        capture: capture(),
        iaa: accelerator::examine(Path::new("/sys"), Path::new("/dev")),
        platform,
        reason: report.to_string(),
        kvm_report: report,
    }
}

fn kvm(report: &KvmReport) -> Finding {
    Finding::new(report.is_usable(), report.to_string())
}

fn seccomp() -> Finding {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let needed = ["trap", "user_notif"];
    let found = needed.iter().all(|action| actions.split_whitespace().any(|known| known == *action));
    Finding::new(found, if actions.is_empty() { "not available".into() } else { actions.trim().to_owned() })
}

fn landlock() -> Finding {
    let words = |known: bool| if known { "kept in the sandbox" } else { "not restricted" };
    let (signals, files) = landlock::knows();
    let detail = match landlock::version() {
        0 => "none: the jail has one line less".to_owned(),
        version => {
            format!("version {version}: signals are {}, files are {}", words(signals), words(files))
        }
    };
    Finding::new(signals && files, detail)
}

/// The mitigations that a process may choose; those that the host imposes are in
/// `/sys/devices/system/cpu/vulnerabilities`.
fn mitigations() -> Finding {
    let choices = mitigations::choices();
    let detail = match choices.is_empty() {
        true => "the host lets a process give up no speculation".to_owned(),
        false => format!("speculation that sandboxes give up: {}", mitigations::names(&choices)),
    };
    Finding::new(!choices.is_empty(), detail)
}

fn user_namespaces() -> Finding {
    let number = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let most = number("/proc/sys/user/max_user_namespaces").unwrap_or(0);
    let refused = [
        ("/proc/sys/kernel/unprivileged_userns_clone", 0),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 1),
    ];
    let switch = refused.iter().find(|(path, value)| number(path) == Some(*value));
    match switch {
        _ if most == 0 => Finding::new(false, "user.max_user_namespaces is 0"),
        Some((path, value)) => Finding::new(false, format!("for root only ({path} is {value})")),
        None => Finding::new(true, format!("at most {most}")),
    }
}

fn cgroup() -> Finding {
    let is_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let hybrid = Path::new("/sys/fs/cgroup/unified/cgroup.controllers").exists();
    let v1 = Path::new("/sys/fs/cgroup/memory").exists();
    match (is_v2, v1, hybrid) {
        (true, ..) => Finding::new(true, "version 2"),
        (_, true, true) => Finding::new(true, "version 1, hybrid"),
        (_, true, false) => Finding::new(true, "version 1"),
        _ => Finding::new(false, "not mounted"),
    }
}

fn large_folios() -> Finding {
    let how = "echo advise > /sys/kernel/mm/transparent_hugepage/hugepages-64kB/shmem_enabled";
    match folios::policy() {
        Folios::Never => Finding::new(
            false,
            format!(
                "new memory comes page by page; where Linux has large folios (6.14) they are switched on by: {how}"
            ),
        ),
        Folios::Asked => Finding::new(true, "shared memory has them where it is asked for"),
        Folios::Always => Finding::new(true, "all shared memory has them"),
    }
}

/// Whether fills of the page cache can be seen, for `snapshot record`.
fn capture() -> Finding {
    // Where snapshots are, if there are any: not every file system has its pages in the page cache's usual way.
    let snapshots = Root::default_snapshots().ok().and_then(|dir| fs::File::open(dir).ok());
    let looked = snapshots.map_or_else(|| fs::File::open("/var/tmp"), Ok).map_err(|error| error.to_string());
    match looked.and_then(|dir| swap::capture::check(dir).map_err(|error| error.to_string())) {
        Ok(()) => Finding::new(true, "eBPF sees which pages of a snapshot come into the page cache"),
        Err(why) => {
            Finding::new(false, format!("{why}; working sets are recorded by the kernel's list alone"))
        }
    }
}

fn fsgsbase() -> Finding {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let found = flags.split_whitespace().any(|flag| flag == "fsgsbase");
    Finding::new(
        found,
        if found { "segment bases without system calls" } else { "not known to the processor" },
    )
}
