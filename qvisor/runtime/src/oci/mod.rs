//! Bundles of the OCI runtime specification: `config.json` is checked, and made into the description of a sandbox.
//!
//! An unsupported setting is refused by name. A setting that has no effect inside a sandbox (a system call filter, say)
//! is accepted, with a sentence in [`Container::remarks`]; `docs/oci.md` has the list.
#![deny(unsafe_code)]

mod error;
mod file;
mod hooks;
mod mounts;
mod namespaces;
mod process;
mod refuse;
mod resources;
pub mod spec;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Hooks, Process, Spec};
use vmm::boot::BootSpec;
use vmm::hibernate::Wishes;
use vmm::jail::UserNamespace;

use crate::platform::PlatformChoice;
use crate::resources::Resources;
use crate::units::{parse_size, parse_time};
pub use error::BundleError;
use error::Result;
use file::{CONFIG_MAX, read};
pub use mounts::{MountPlan, Source};
pub use namespaces::Namespaces;
pub use process::capability;
use spec::CONFIG;

/// A bundle that can be run.
#[derive(Debug)]
pub struct Container {
    /// Absolute.
    pub bundle: PathBuf,
    pub annotations: BTreeMap<String, String>,
    /// The platform that runs its kernel.
    pub platform: PlatformChoice,
    /// The host user that the container's root is.
    pub userns: UserNamespace,
    /// The root file system's directory.
    pub root: PathBuf,
    pub root_read_only: bool,
    /// In the order of the configuration, the root not among them.
    pub mounts: Vec<MountPlan>,
    pub namespaces: Namespaces,
    /// Settings of the network namespace: name below `/proc/sys`, value.
    pub sysctls: Vec<(String, String)>,
    pub cgroups_path: Option<PathBuf>,
    pub resources: Resources,
    pub hooks: Hooks,
    /// Options of hibernation.
    pub hibernation: Wishes,
    pub terminal: bool,
    pub oom_score_adj: Option<i32>,
    /// Everything of the first process; without mounts and streams.
    pub boot: BootSpec,
    /// A sentence for each setting that was accepted without effect.
    pub remarks: Vec<String>,
}

/// Reads and checks the bundle in `dir`.
pub fn load(dir: &Path) -> Result<Container> {
    let unusable = |source| BundleError::Bundle { path: dir.to_owned(), source };
    let bundle = std::fs::canonicalize(dir).map_err(unusable)?;
    let text = read(&bundle.join(CONFIG))?;
    check(bundle, &text)
}

/// Checks the configuration of the bundle in `bundle`, which is absolute.
pub fn check(bundle: PathBuf, text: &[u8]) -> Result<Container> {
    let spec = parse(&bundle.join(CONFIG), text)?;
    let mut remarks = Vec::new();
    refuse::check(&spec, &mut remarks)?;
    let linux = spec.linux().clone().unwrap_or_default();
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
    boot.hostname = namespaces.hostname(spec.hostname().as_deref())?;
    boot.domainname = spec.domainname().clone().unwrap_or_default().into_bytes();
    boot.masked = paths("linux.maskedPaths", linux.masked_paths().as_deref())?;
    boot.read_only = paths("linux.readonlyPaths", linux.readonly_paths().as_deref())?;
    let resources = resources::resources(linux.resources().as_ref(), &mut remarks)?;
    boot.tasks_max = resources.tasks_max();
    Ok(Container {
        mounts: mounts::plan(&spec, &bundle)?,
        platform: platform(spec.annotations().as_ref())?,
        userns: userns(spec.annotations().as_ref())?,
        annotations: annotations(&spec)?,
        hibernation: hibernation(spec.annotations().as_ref())?,
        sysctls: namespaces.sysctls(linux.sysctl().as_ref())?,
        cgroups_path: linux.cgroups_path().clone(),
        hooks: hooks::check(spec.hooks().clone().unwrap_or_default())?,
        terminal: process.terminal().unwrap_or(false),
        oom_score_adj: process::oom_score_adj(process)?,
        root: directory,
        root_read_only: root.readonly().unwrap_or(false),
        bundle,
        namespaces,
        resources,
        boot,
        remarks,
    })
}

fn parse(path: &Path, text: &[u8]) -> Result<Spec> {
    let spec: Spec = serde_json::from_slice(text)
        .map_err(|source| BundleError::Syntax { path: path.to_owned(), source })?;
    match spec.version().split('.').next() {
        Some("1") => Ok(spec),
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
    let process: Process = serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
    let mut remarks = Vec::new();
    let checked = refuse::check_process(&process, &mut remarks).and_then(|()| process::boot(&process));
    let boot = checked.map_err(|error| match error {
        BundleError::Missing { what } => failed(format!("{what} is missing")),
        BundleError::Invalid { what, value, why } => failed(format!("{what} is {value:?}, {why}")),
        BundleError::Refused { what, why } => failed(format!("Dormouse does not do {what}{why}")),
        other => other,
    })?;
    Ok((boot, process.terminal().unwrap_or(false), remarks))
}

fn paths(what: &str, list: Option<&[String]>) -> Result<Vec<Vec<u8>>> {
    let absolute = |path: &String| match path.starts_with('/') && !path.contains('\0') {
        true => Ok(path.clone().into_bytes()),
        false => Err(BundleError::invalid(what, path, "which is no absolute path")),
    };
    list.unwrap_or_default().iter().map(absolute).collect()
}

/// Annotations go into the state as they are; Dormouse's own must be known.
fn annotations(spec: &Spec) -> Result<BTreeMap<String, String>> {
    const OURS: &str = "dev.dormouse.";
    let all = spec.annotations().clone().unwrap_or_default();
    for name in all.keys().filter(|name| name.starts_with(OURS)) {
        match name.strip_prefix(OURS) {
            // See `platform`, `userns` and `hibernation`.
            Some("platform" | "userns" | "idle-timeout" | "swap-limit" | "reap") => {}
            _ => return Err(BundleError::refused(format!("annotation {name}"))),
        }
    }
    Ok(all.into_iter().collect())
}

/// The annotation `dev.dormouse.platform`.
fn platform(annotations: Option<&HashMap<String, String>>) -> Result<PlatformChoice> {
    let asked = annotation(annotations, "dev.dormouse.platform", |value| {
        value.parse().map_err(|()| "which is neither auto, kvm nor systrap".into())
    })?;
    Ok(asked.unwrap_or_default())
}

/// The annotation `dev.dormouse.userns`.
fn userns(annotations: Option<&HashMap<String, String>>) -> Result<UserNamespace> {
    let name = "dev.dormouse.userns";
    let Some(value) = annotations.and_then(|all| all.get(name)) else { return Ok(UserNamespace::Auto) };
    value
        .parse()
        .map_err(|()| BundleError::invalid(name, value, "which is neither auto, mapped, identity nor host"))
}

/// The annotations `dev.dormouse.idle-timeout`, `dev.dormouse.swap-limit` and `dev.dormouse.reap`.
fn hibernation(annotations: Option<&HashMap<String, String>>) -> Result<Wishes> {
    Ok(Wishes {
        dir: None,
        limit_bytes: annotation(annotations, "dev.dormouse.swap-limit", parse_size)?,
        reap: annotation(annotations, "dev.dormouse.reap", |value| {
            value.parse().map_err(|()| "which is neither on, off nor stream".into())
        })?,
        idle_timeout: annotation(annotations, "dev.dormouse.idle-timeout", parse_time)?,
    })
}

fn annotation<T>(
    annotations: Option<&HashMap<String, String>>,
    name: &str,
    parse: fn(&str) -> std::result::Result<T, String>,
) -> Result<Option<T>> {
    let Some(value) = annotations.and_then(|all| all.get(name)) else { return Ok(None) };
    parse(value).map(Some).map_err(|why| BundleError::invalid(name, value, why))
}

#[cfg(test)]
mod tests;
