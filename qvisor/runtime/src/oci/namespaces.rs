//! Namespaces: those of the host that a sandbox joins, and the replacements of the others.
//!
//! Processes, mounts, ids, host name and IPC of a sandbox are its own kernel's, so only the network namespace is one of
//! the host's. A user namespace says which ids of the host those of the sandbox are (`id_maps`); one by path is not
//! joined, since the configuration has the same mappings.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use abi::sysctl::IPC;
use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceType as Type, Spec};
use vmm::net::Network;
use vmm::process;

use super::error::{BundleError, Result};
use super::file::open_without_waiting;

/// The namespaces that a sandbox shares with the host.
#[derive(Clone, Debug)]
pub struct Namespaces {
    pub network: Network,
    /// The process whose pid namespace it shares. The sandbox of a pod knows it as one of its own containers.
    pub pids_of: Option<i32>,
    /// The IPC namespace that it shares with others.
    pub ipc: Option<PathBuf>,
    uts: Uts,
}

/// Settings that a bundle asks for: name below `/proc/sys`, value.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) network: Vec<(String, String)>,
    /// The sandbox's kernel has them itself.
    pub(super) ipc: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
enum Uts {
    New,
    Host,
    Path(PathBuf),
}

/// The name of a kind of namespace in messages, and its flag `CLONE_NEW…`.
fn describe(kind: Type) -> (&'static str, i32) {
    match kind {
        Type::Mount => ("mount", libc::CLONE_NEWNS),
        Type::Cgroup => ("cgroup", libc::CLONE_NEWCGROUP),
        Type::Uts => ("uts", libc::CLONE_NEWUTS),
        Type::Ipc => ("ipc", libc::CLONE_NEWIPC),
        Type::User => ("user", libc::CLONE_NEWUSER),
        Type::Pid => ("pid", libc::CLONE_NEWPID),
        Type::Network => ("network", libc::CLONE_NEWNET),
        Type::Time => ("time", 0x80),
    }
}

/// The sysctl of the NIS domain name, which Docker sets.
const DOMAINNAME: &str = "kernel/domainname";

impl Namespaces {
    pub(super) fn new(spec: &Spec) -> Result<Self> {
        let list = spec.linux().as_ref().and_then(|linux| linux.namespaces().clone()).unwrap_or_default();
        for (at, namespace) in list.iter().enumerate() {
            if list[..at].iter().any(|other| other.typ() == namespace.typ()) {
                let (name, _) = describe(namespace.typ());
                return Err(BundleError::invalid("linux.namespaces", name, "which is there twice"));
            }
            check(namespace)?;
        }
        let find = |kind| list.iter().find(|namespace| namespace.typ() == kind);
        let own = [
            (Type::Pid, "its processes run on a kernel of their own, which knows no others"),
            (Type::Mount, "its kernel makes its mounts itself"),
            (
                Type::Ipc,
                "its shared memory, semaphores and queues are its own kernel's, and no process of the host's can use them",
            ),
        ];
        for (kind, why) in own {
            if find(kind).is_none() {
                let (name, _) = describe(kind);
                let why = format!("{why}; add a new one to linux.namespaces");
                return Err(BundleError::refused_because(format!("the host's {name} namespace"), &why));
            }
        }
        let network = match find(Type::Network).map(LinuxNamespace::path) {
            None => Network::Host,
            Some(None) => Network::None,
            Some(Some(path)) => Network::Path(path.clone()),
        };
        let uts = match find(Type::Uts).map(LinuxNamespace::path) {
            None => Uts::Host,
            Some(None) => Uts::New,
            Some(Some(path)) => Uts::Path(path.clone()),
        };
        let pids_of = find(Type::Pid).and_then(|namespace| process_of(namespace.path().as_deref()?));
        let ipc = find(Type::Ipc).and_then(|namespace| namespace.path().clone());
        Ok(Self { network, pids_of, ipc, uts })
    }

    /// Whether its host name is that of others, whose namespace it names.
    #[must_use]
    pub fn shares_host_name(&self) -> bool {
        matches!(self.uts, Uts::Path(_))
    }

    /// The sandbox's host name: the configuration's, or that of the namespace it names.
    pub(super) fn hostname(&self, asked: Option<&str>) -> Result<Vec<u8>> {
        let asked = asked.filter(|name| !name.is_empty());
        match (&self.uts, asked) {
            (_, Some(name)) if name.len() > 64 || name.contains('\0') => {
                Err(BundleError::invalid("hostname", name, "which is longer than 64 bytes"))
            }
            (Uts::New, Some(name)) => Ok(name.as_bytes().to_vec()),
            (_, Some(_)) => {
                let why = "add a new uts namespace to linux.namespaces";
                Err(BundleError::refused_because("a hostname in another's uts namespace", why))
            }
            (Uts::New | Uts::Host, None) => Ok(process::host_name()),
            (Uts::Path(path), None) => process::host_name_of(path).map_err(|error| BundleError::Namespace {
                what: "uts",
                path: path.clone(),
                why: error.to_string(),
            }),
        }
    }

    /// The NIS domain name, which the configuration names itself or as a sysctl.
    pub(super) fn domainname(
        &self,
        asked: Option<&str>,
        sysctls: Option<&HashMap<String, String>>,
    ) -> Result<Vec<u8>> {
        let setting = sysctls.into_iter().flatten().find(|(name, _)| path_of(name) == DOMAINNAME);
        let name = setting.map(|(_, value)| value.as_str()).or(asked).unwrap_or_default();
        if name.len() > 64 || name.contains('\0') {
            return Err(BundleError::invalid("domainname", name, "which is longer than 64 bytes"));
        }
        if setting.is_some() && !matches!(self.uts, Uts::New) {
            let why = "add a new uts namespace to linux.namespaces";
            return Err(BundleError::refused_because(
                "linux.sysctl kernel.domainname in another's uts namespace",
                why,
            ));
        }
        Ok(name.as_bytes().to_vec())
    }

    /// Settings by their names below `/proc/sys`: those of the network namespace, and those of the IPC namespace.
    pub(super) fn sysctls(&self, asked: Option<&HashMap<String, String>>) -> Result<Settings> {
        let mut settings = Settings::default();
        for (name, value) in asked.into_iter().flatten() {
            let path = path_of(name);
            if path == DOMAINNAME {
                continue;
            }
            if IPC.contains(&path.as_str()) {
                settings.ipc.push((path, value.clone()));
                continue;
            }
            if !path.starts_with("net/") || path.split('/').any(|part| part.is_empty() || part == "..") {
                return Err(BundleError::refused_because(format!("linux.sysctl {name}"), why_not(&path)));
            }
            if matches!(self.network, Network::Host) {
                let why = "it would change the host; add a network namespace";
                return Err(BundleError::refused_because(format!("linux.sysctl {name}"), why));
            }
            settings.network.push((path, value.clone()));
        }
        settings.network.sort();
        settings.ipc.sort();
        Ok(settings)
    }
}

/// A setting's path below `/proc/sys`. As for runc and sysctl(8), one that has a slash before any dot keeps its dots.
fn path_of(name: &str) -> String {
    match name.find(['.', '/']).map(|at| &name[at..=at]) {
        Some("/") => name.to_owned(),
        _ => name
            .chars()
            .map(|c| {
                if c == '.' {
                    '/'
                } else if c == '/' {
                    '.'
                } else {
                    c
                }
            })
            .collect(),
    }
}

/// Why a setting that is not the network's is not applied.
fn why_not(path: &str) -> &'static str {
    if path == "kernel/hostname" {
        "use hostname"
    } else {
        "net.*, kernel.domainname and the limits of IPC are applied; the rest is the sandbox's kernel's own"
    }
}

/// The process whose pid namespace a path names, as `/proc/PID/ns/pid`.
fn process_of(path: &Path) -> Option<i32> {
    let pid = path.to_str()?.strip_prefix("/proc/")?.strip_suffix("/ns/pid")?;
    pid.parse().ok().filter(|pid| *pid > 0)
}

fn check(namespace: &LinuxNamespace) -> Result<()> {
    let (name, kind) = describe(namespace.typ());
    let Some(path) = namespace.path() else { return Ok(()) };
    if namespace.typ() == Type::Pid && process_of(path).is_some() {
        // A container of a pod may share those of another; whether it is one is known later.
        return Ok(());
    }
    if matches!(namespace.typ(), Type::Pid | Type::Mount | Type::Cgroup | Type::Time) {
        return Err(BundleError::refused_because(
            format!("{name} namespace {}", path.display()),
            "a sandbox's is its own",
        ));
    }
    is_namespace(path, kind).map_err(|why| BundleError::Namespace { what: name, path: path.clone(), why })
}

/// Whether `path` is a namespace of this kind.
fn is_namespace(path: &Path, kind: i32) -> std::result::Result<(), String> {
    let file = open_without_waiting(path).map_err(|error| error.to_string())?;
    match process::namespace_kind(&file) {
        Some(found) if found == kind => Ok(()),
        Some(_) => Err("it is another kind of namespace".into()),
        None => Err("it is no namespace".into()),
    }
}
