//! Bundles of the OCI runtime specification: `config.json` is checked, and made into the description of a sandbox.
//!
//! An unsupported setting is refused by name. A setting that has no effect inside a sandbox (a label of SELinux, say)
//! is accepted, with a sentence in [`ContainerSpec::remarks`]; `docs/oci.md` has the list.
#![deny(unsafe_code)]

mod accounts;
mod block_io;
mod error;
mod file;
mod hooks;
mod id_maps;
mod mounts;
mod namespaces;
mod newer;
mod pod;
mod process;
mod refuse;
mod resources;
pub mod seccomp;
pub mod spec;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Hooks, LinuxResources, Process, Spec};
use vmm::boot::BootSpec;
use vmm::ids::IdMaps;
use vmm::jail::Propagation;
use vmm::mounts as mounts_of_host;

use crate::resources::Resources;
use crate::settings::{Asked, SetError};
pub use accounts::Accounts;
pub use error::BundleError;
use error::Result;
use file::{CONFIG_MAX, read};
pub use mounts::{HostSource, MountPlan, mount_options};
pub use namespaces::Namespaces;
pub use pod::{Pod, PodSize, container_name};
pub use process::capability;
use spec::CONFIG;

/// The limits that `linux.resources` asks for, checked.
pub fn resources(asked: Option<&LinuxResources>) -> Result<Resources> {
    resources::resources(asked, &mut Vec::new())
}

/// A bundle that can be run.
#[derive(Debug)]
pub struct ContainerSpec {
    /// Absolute.
    pub bundle: PathBuf,
    pub annotations: BTreeMap<String, String>,
    /// The settings that the annotations ask for.
    pub asked: Asked,
    /// The root file system's directory.
    pub root: PathBuf,
    pub root_read_only: bool,
    /// In the order of the configuration, the root not among them.
    pub mounts: Vec<MountPlan>,
    pub namespaces: Namespaces,
    pub pod: Pod,
    /// The ids of its user namespace, if it describes one.
    pub id_maps: Option<IdMaps>,
    /// Settings of the network namespace: name below `/proc/sys`, value.
    pub sysctls: Vec<(String, String)>,
    pub cgroups_path: Option<PathBuf>,
    pub resources: Resources,
    /// The bundle's `linux.resources`, from which `resources` come.
    pub asked_resources: Option<LinuxResources>,
    pub hooks: Hooks,
    pub terminal: bool,
    pub oom_score_adj: Option<i32>,
    /// Everything of the first process; without mounts and streams.
    pub boot: BootSpec,
    /// A sentence for each setting that was accepted without effect.
    pub remarks: Vec<String>,
}

impl ContainerSpec {
    /// Whether the sandbox's own mounts follow the host's: a volume that is to do so has to be copied from one that does.
    #[must_use]
    pub fn propagation(&self) -> Propagation {
        if self.mounts.iter().filter_map(MountPlan::files).any(|source| source.follows_host) {
            Propagation::Slave
        } else {
            Propagation::Private
        }
    }
}

/// Reads and checks the bundle in `dir`.
pub fn load(dir: &Path) -> Result<ContainerSpec> {
    let unusable = |source| BundleError::Bundle { path: dir.to_owned(), source };
    let bundle = std::fs::canonicalize(dir).map_err(unusable)?;
    let text = read(&bundle.join(CONFIG))?;
    check(bundle, &text)
}

/// Checks the configuration of the bundle in `bundle`, which is absolute.
pub fn check(bundle: PathBuf, text: &[u8]) -> Result<ContainerSpec> {
    let (spec, mut remarks) = parse(&bundle.join(CONFIG), text)?;
    refuse::check(&spec, &mut remarks)?;
    let linux = spec.linux().clone().unwrap_or_default();
    let annotations: BTreeMap<_, _> = spec.annotations().clone().unwrap_or_default().into_iter().collect();
    let root = spec.root().as_ref().ok_or(BundleError::Missing { what: "root" })?;
    let path = bundle.join(root.path());
    let unusable = |source| BundleError::Root { path: path.clone(), source };
    let directory = std::fs::canonicalize(&path).map_err(unusable)?;
    if !directory.is_dir() {
        return Err(unusable(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    let namespaces = Namespaces::new(&spec)?;
    let process = spec.process().as_ref().ok_or(BundleError::Missing { what: "process" })?;
    let mut boot = process::boot(process)?;
    if let Some(name) = process.user().username() {
        let root = mounts_of_host::open_directory(&directory).map_err(unusable)?;
        Accounts::read(root).log_in(name, &mut boot.creds)?;
    }
    boot.hostname = namespaces.hostname(spec.hostname().as_deref())?;
    boot.seccomp = linux.seccomp().as_ref().map(seccomp::filter).transpose()?;
    boot.domainname = namespaces.domainname(spec.domainname().as_deref(), linux.sysctl().as_ref())?;
    boot.masked = paths("linux.maskedPaths", linux.masked_paths().as_deref())?;
    boot.read_only = paths("linux.readonlyPaths", linux.readonly_paths().as_deref())?;
    boot.id_maps = id_maps::of_container(&spec)?;
    boot.oom_score_adj = process::oom_score_adj(process)?;
    let resources = resources::resources(linux.resources().as_ref(), &mut remarks)?;
    boot.limits = resources.container_limits();
    let settings = namespaces.sysctls(linux.sysctl().as_ref())?;
    boot.ipc_settings = settings.ipc;
    Ok(ContainerSpec {
        mounts: mounts::plan(&spec, &bundle)?,
        asked: asked(&annotations)?,
        pod: Pod::of(&annotations)?,
        annotations,
        sysctls: settings.network,
        cgroups_path: linux.cgroups_path().clone(),
        id_maps: boot.id_maps.clone(),
        hooks: hooks::check(spec.hooks().clone().unwrap_or_default())?,
        terminal: process.terminal().unwrap_or(false),
        oom_score_adj: process::oom_score_adj(process)?,
        root: directory,
        root_read_only: root.readonly().unwrap_or(false),
        bundle,
        namespaces,
        resources,
        asked_resources: linux.resources().clone(),
        boot,
        remarks,
    })
}

/// The configuration, with remarks.
fn parse(path: &Path, text: &[u8]) -> Result<(Spec, Vec<String>)> {
    let (spec, remarks) = newer::read::<Spec>(text, "/process")
        .map_err(|source| BundleError::Syntax { path: path.to_owned(), source })?;
    match spec.version().split('.').next() {
        Some("1") => Ok((spec, remarks)),
        Some("") | None => Err(BundleError::Missing { what: "ociVersion" }),
        _ => Err(BundleError::invalid("ociVersion", spec.version(), "and versions 1.x are understood")),
    }
}

/// Reads and checks a process for `exec`, from a file in the form of a configuration's `process`; returns it with
/// whether it gets a terminal, and with remarks.
pub fn read_process(path: &Path) -> Result<(BootSpec, bool, Vec<String>)> {
    use std::io::Read;
    let failed = |why: String| BundleError::Process { path: path.to_owned(), why };
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(CONFIG_MAX).read_to_end(&mut text))
        .map_err(|error| failed(error.to_string()))?;
    let (process, mut remarks) =
        newer::read::<Process>(&text, "").map_err(|error| failed(error.to_string()))?;
    if process.user().username().is_some() {
        return Err(failed("process.user.username is a name, and this process is given ids alone".into()));
    }
    let checked = refuse::check_process(&process, &mut remarks).and_then(|()| process::boot(&process));
    let boot = checked.map_err(|error| match error {
        BundleError::Missing { what } => failed(format!("{what} is missing")),
        BundleError::Invalid { what, value, why } => failed(format!("{what} is {value:?}, {why}")),
        BundleError::Refused { what, why } => failed(format!("Dormouse does not do {what}{why}")),
        other => other,
    })?;
    let boot = BootSpec { oom_score_adj: process::oom_score_adj(&process)?, ..boot };
    Ok((boot, process.terminal().unwrap_or(false), remarks))
}

fn paths(what: &str, list: Option<&[String]>) -> Result<Vec<Vec<u8>>> {
    let absolute = |path: &String| match path.starts_with('/') && !path.contains('\0') {
        true => Ok(path.clone().into_bytes()),
        false => Err(BundleError::invalid(what, path, "which is no absolute path")),
    };
    list.unwrap_or_default().iter().map(absolute).collect()
}

/// Reads the settings that Dormouse's own annotations ask for; an unknown one is refused. All others go into the state
/// as they are.
fn asked(annotations: &BTreeMap<String, String>) -> Result<Asked> {
    const OURS: &str = "dev.dormouse.";
    let mut asked = Asked::default();
    for (name, value) in annotations {
        let Some(setting) = name.strip_prefix(OURS) else { continue };
        asked.set(setting, value).map_err(|error| match error {
            SetError::Unknown => BundleError::refused(format!("annotation {name}")),
            SetError::Value(why) => BundleError::invalid(name, value, format!("which is {why}")),
        })?;
    }
    Ok(asked)
}

#[cfg(test)]
mod tests;
