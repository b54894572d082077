//! The snapshot that a container begins with, if it begins with one.

use std::fs::File;
use std::sync::Arc;

use abi::boot::Platform;
use vmm::boot::BootSpec;
use vmm::process;

use super::create::{CreateOptions, Surroundings};
use super::error::ContainerError;
use super::membership::Membership;
use crate::control::Restores;
use crate::oci::{self, ContainerSpec};
use crate::settings::{FromSnapshot, Settings, Sharing};
use crate::snapshot::comparing::Compared;
use crate::snapshot::{MountPoint, Opened, Place, SnapshotError, Store, Unfit};
use crate::vmm_process::plan::RestorePlan;

const OF_THE_FIRST: &str =
    "ports and changed files are the whole pod's; give --port and --changed-files to its first container";

/// The platform that a sandbox begins on, and its snapshot.
pub(super) struct Base {
    pub platform: Platform,
    /// Of a sandbox that begins with it.
    pub snapshot: Option<Arc<Opened>>,
    /// Its pages, if it shares them.
    pub template: Option<File>,
    /// The base in memory that its pages are compared with.
    pub compared: Option<Compared>,
    /// Of a further container of a pod that does.
    pub further: Option<Restores>,
    /// The digest of the snapshot's manifest.
    pub digest: Option<String>,
}

impl Base {
    /// Finds it, and checks that bundle and settings are such that it can be.
    pub(super) fn of(
        options: &CreateOptions,
        settings: &Settings,
        container: &ContainerSpec,
        pod: &Membership,
    ) -> Result<Self, ContainerError> {
        let failed =
            |message| ContainerError::Failed { id: options.id.as_str().to_owned(), message, code: None };
        let plain = || {
            let platform = settings.platform.choose().map_err(|error| failed(error.to_string()))?;
            let is_first = !matches!(pod, Membership::Further(_));
            let compared = if is_first { compared(options, settings, None)? } else { None };
            Ok(Self { platform, snapshot: None, template: None, compared, further: None, digest: None })
        };
        // An annotation is that of all containers of a pod: those that are new there, or whose pod has gone on since, begin as any other.
        let is_new = matches!(pod, Membership::Further(_)) && options.snapshot.is_none();
        let snapshot = match find(options, settings) {
            Ok(Some(snapshot)) => snapshot,
            Ok(None) => return plain(),
            Err(_) if is_new => return plain(),
            Err(error) => return Err(error.into()),
        };
        let unfit = |why: Unfit| why.at(&snapshot.place);
        let (manifest, digest) = (&snapshot.manifest, Some(snapshot.digest()?));
        let described = &manifest.container;
        if described.command.is_some() {
            return Err(unfit(Unfit::OfCommand).into());
        }
        let platform = manifest.platform_for(settings).map_err(unfit)?;
        let mounts = MountPoint::of(&container.mounts);
        if let Membership::Further(pod) = pod {
            let name = options.snapshot_container.as_deref().or(oci::container_name(&container.annotations));
            let further = described.needs_further(name.unwrap_or(options.id.as_str()));
            let is_theirs = digest.as_deref().is_some_and(|digest| pod.began_with(digest));
            if options.snapshot.is_none() && (further.is_err() || !is_theirs) {
                return plain();
            }
            let further = further.map_err(unfit)?;
            if !is_theirs {
                return Err(failed("its pod began with another snapshot, or with none".into()));
            }
            further.container.check_bundle(&mounts, container.terminal).map_err(unfit)?;
            if options.surroundings != Surroundings::default() {
                return Err(failed(OF_THE_FIRST.into()));
            }
            let restores = Restores { number: further.number, or_begins: options.snapshot.is_none() };
            let further = Some(restores);
            return Ok(Self { platform, snapshot: None, template: None, compared: None, further, digest });
        }
        check_pod(described.pod.is_some(), pod, options.clone.is_some()).map_err(unfit)?;
        if let Some(name) = &options.snapshot_container {
            return Err(failed(format!(
                "it is to go on as container {name} of a pod, and its bundle is of none"
            )));
        }
        let memory_bytes = pod.resources(container).memory_bytes(process::host_memory());
        let checked = described.check_bundle(&mounts, container.terminal);
        checked.and_then(|()| manifest.check_limit(memory_bytes)).map_err(unfit)?;
        let template = template(&snapshot, options, settings)?;
        let compared = compared(options, settings, Some((&snapshot, template.as_ref())))?;
        Ok(Self { platform, snapshot: Some(snapshot), template, compared, further: None, digest })
    }

    /// The memory of what begins with a sealed snapshot is to be sealed as well when it comes to the disk.
    pub(super) fn check_sealed(&self, encrypt: Option<bool>) -> Result<(), SnapshotError> {
        match &self.snapshot {
            Some(snapshot) if snapshot.page_key.is_some() && encrypt != Some(true) => {
                Err(Unfit::InTheClear.at(&snapshot.place))
            }
            _ => Ok(()),
        }
    }

    /// Its part of the VMM's plan.
    pub(super) fn restore_plan(&self) -> Result<Option<RestorePlan>, std::io::Error> {
        let Some(snapshot) = &self.snapshot else { return Ok(None) };
        let told = snapshot.start_recording();
        let (head, page_key) = (snapshot.manifest.head.clone(), snapshot.page_key.clone());
        let further =
            snapshot.manifest.container.pod.iter().flatten().map(|further| further.number).collect();
        let (files, shares) = snapshot.files(self.template.as_ref())?;
        let base = snapshot.base_used(self.template.as_ref()).map(str::to_owned);
        Ok(Some(RestorePlan { head, files, shares, page_key, further, told, base }))
    }

    /// The digest of the snapshot whose held base the sandbox has.
    pub(super) fn held(&self, restore: Option<&RestorePlan>) -> Option<String> {
        let compared = self.compared.as_ref().map(|compared| &compared.digest);
        compared.or(restore.and_then(|plan| plan.base.as_ref())).cloned()
    }

    /// Says which pages come back first, or that they are to be recorded.
    pub(super) fn say_working_set(&self, options: &CreateOptions, boot: &mut BootSpec) {
        let is_of_exec = options.clone.as_ref().is_some_and(|clone| clone.is_silent);
        self.snapshot.iter().for_each(|snapshot| snapshot.say_working_set(boot, is_of_exec, options.warn));
    }

    /// Has the host read what the VMM brings first.
    pub(super) fn read_ahead(&self) {
        self.snapshot.iter().for_each(|snapshot| snapshot.read_ahead(self.template.as_ref()));
    }
}

/// Checks that what begins with a pod is one, and nothing else is.
fn check_pod(is_of_pod: bool, pod: &Membership, is_clone: bool) -> Result<(), Unfit> {
    match (is_of_pod, pod) {
        (true, _) if is_clone => Err(Unfit::OfPod),
        (true, Membership::None) => Err(Unfit::NeedsPod),
        (false, Membership::First(_)) => Err(Unfit::NoPod),
        _ => Ok(()),
    }
}

/// The pages that it shares. A node's default is for snapshots that can be shared.
fn template(
    snapshot: &Opened,
    options: &CreateOptions,
    settings: &Settings,
) -> Result<Option<File>, SnapshotError> {
    let template = Store::of_user(&options.node)?.template(snapshot, &settings.share);
    match &template {
        // Who is to share with a domain is to be apart from others as well.
        Err(SnapshotError::Unfit { why: Unfit::NotShared(why), .. })
            if !settings.asks_to_share && settings.share == Sharing::Snapshot =>
        {
            (options.warn)(&format!("the pages of snapshot {} are not shared: {why}", snapshot.place));
            Ok(None)
        }
        _ => template,
    }
}

/// The base that its pages are compared with.
fn compared(
    options: &CreateOptions,
    settings: &Settings,
    begins_with: Option<(&Opened, Option<&File>)>,
) -> Result<Option<Compared>, SnapshotError> {
    if begins_with.is_none() && settings.hibernation.base.is_none() {
        return Ok(None);
    }
    Store::of_user(&options.node)?.compared(&options.root, &settings.hibernation, begins_with)
}

fn find(options: &CreateOptions, settings: &Settings) -> Result<Option<Arc<Opened>>, SnapshotError> {
    match (&options.snapshot, &settings.snapshot) {
        (Some(opened), _) => Ok(Some(Arc::clone(opened))),
        (None, FromSnapshot::None) => Ok(None),
        (None, FromSnapshot::Named(name)) => {
            let store = Store::of_user(&options.node)?;
            let mut opened = store.open(&Place::Named(name.clone()), None)?;
            opened.take_held(&options.root, options.warn);
            Ok(Some(Arc::new(opened)))
        }
    }
}
