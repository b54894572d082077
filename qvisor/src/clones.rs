//! Clones: sandboxes that begin with a snapshot and go with the command that began them.

use std::sync::Arc;

use runtime::container::{self, CreateOptions, Surroundings};
use runtime::front::{self, Attended, FromOptions};
use runtime::settings::{Asked, NodeConfig, Sharing};
use runtime::snapshot::{Opened, SnapshotError, Store, Unfit};
use runtime::state::{Id, Root};
use vmm::hibernate::Wishes;
use vmm::jail::UserNamespace;

use crate::failure::{Failure, remark, warn};
use crate::log;

/// How a clone is run.
pub struct CloneOptions {
    pub id: Id,
    /// Bytes that what it changes may take up on the host's disk.
    pub disk_bytes: u64,
    pub userns: UserNamespace,
    pub share: Option<Sharing>,
    pub hibernation: Wishes,
    pub surroundings: Surroundings,
}

/// Runs a clone until the attended program ends; result: its exit code.
pub fn run_clone_of(
    root: &Root,
    (node, systemd_cgroup): (NodeConfig, bool),
    store: &Store,
    opened: Arc<Opened>,
    clone: CloneOptions,
    attended: &Attended<'_, Failure>,
) -> Result<u8, Failure> {
    let CloneOptions { id, disk_bytes, userns, share, mut hibernation, surroundings } = clone;
    if opened.manifest.container.command.is_some() {
        let template = store.template(&opened, &share.unwrap_or_default())?.map(Arc::new);
        let compare = store.compared(root, &hibernation, Some((&opened, template.as_deref())))?.map(Arc::new);
        let Surroundings { accepts_changed, ports } = surroundings;
        let options = FromOptions {
            id,
            opened,
            template,
            compare,
            disk_bytes,
            userns,
            hibernation,
            accepts_changed,
            ports,
            log_level: log::level_of_sandboxes(),
            is_silent: attended.is_silent(),
        };
        let result = front::run_from(root, options, attended, warn);
        // What was to be removed meanwhile is not used here any more.
        store.sweep();
        return result;
    }
    keep_sealed(&opened, &mut hibernation)?;
    let options = CreateOptions {
        asked: Asked { userns, share, hibernation, ..Asked::default() },
        root: root.clone(),
        id,
        bundle: opened.bundle(None)?.to_owned(),
        pid_file: None,
        console_socket: None,
        systemd_cgroup,
        node,
        snapshot: Some(opened),
        snapshot_container: None,
        surroundings,
        clone: None,
        strace: false,
        log_level: log::level_of_sandboxes(),
        remark,
        warn,
    };
    let layers = Root::default_layers()?;
    container::run_clone(options, &layers, disk_bytes, attended, warn)
}

/// The memory of what begins with a sealed snapshot is sealed as well when it comes to the disk.
pub fn keep_sealed(opened: &Opened, wishes: &mut Wishes) -> Result<(), SnapshotError> {
    if opened.manifest.files.sealed.is_none() {
        return Ok(());
    }
    if wishes.encrypt == Some(false) {
        return Err(SnapshotError::Unfit { place: opened.place.clone(), why: Unfit::InTheClear });
    }
    wishes.encrypt = Some(true);
    Ok(())
}
