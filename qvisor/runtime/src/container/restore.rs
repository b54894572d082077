//! The snapshot that a container begins with, if it begins with one.

use std::sync::Arc;

use abi::boot::Platform;
use vmm::boot::BootSpec;
use vmm::process;

use super::create::CreateOptions;
use super::error::ContainerError;
use super::membership::Membership;
use crate::oci::ContainerSpec;
use crate::settings::{FromSnapshot, Settings};
use crate::snapshot::{MountPoint, Opened, Place, SnapshotError, Store, Unfit};
use crate::vmm_process::plan::RestorePlan;

/// The platform that a sandbox begins on, and its snapshot.
pub(super) struct Base {
    pub platform: Platform,
    pub snapshot: Option<Arc<Opened>>,
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
        let Some(snapshot) = find(options, settings)? else {
            let platform = settings.platform.choose().map_err(|error| failed(error.to_string()))?;
            return Ok(Self { platform, snapshot: None });
        };
        if !matches!(pod, Membership::None) {
            return Err(failed(
                "a snapshot is of a sandbox of its own, and it belongs to a pod; set pods to separate".into(),
            ));
        }
        let manifest = &snapshot.manifest;
        if manifest.container.command.is_some() {
            return Err(Unfit::OfCommand.at(&snapshot.place).into());
        }
        let memory_bytes = container.resources.memory_bytes(process::host_memory());
        let checked =
            manifest.check_bundle(&MountPoint::of(&container.mounts), container.terminal, memory_bytes);
        let platform = checked.and_then(|()| manifest.platform_for(settings));
        let platform = platform.map_err(|why| why.at(&snapshot.place))?;
        Ok(Self { platform, snapshot: Some(snapshot) })
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
        Ok(Some(RestorePlan { head, files: snapshot.files()?, page_key, told }))
    }

    /// Says which pages come back first, or that they are to be recorded.
    pub(super) fn say_working_set(&self, options: &CreateOptions, boot: &mut BootSpec) {
        let is_of_exec = options.clone.as_ref().is_some_and(|clone| clone.is_silent);
        self.snapshot.iter().for_each(|snapshot| snapshot.say_working_set(boot, is_of_exec, options.warn));
    }

    /// Has the host read what the VMM brings first.
    pub(super) fn read_ahead(&self) {
        self.snapshot.iter().for_each(|snapshot| snapshot.read_ahead());
    }
}

fn find(options: &CreateOptions, settings: &Settings) -> Result<Option<Arc<Opened>>, SnapshotError> {
    match (&options.snapshot, &settings.snapshot) {
        (Some(opened), _) => Ok(Some(Arc::clone(opened))),
        (None, FromSnapshot::None) => Ok(None),
        (None, FromSnapshot::Named(name)) => {
            let store = Store::of_user(&options.node)?;
            Ok(Some(Arc::new(store.open(&Place::Named(name.clone()), None)?)))
        }
    }
}
