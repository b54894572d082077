//! `checkpoint`: from a sandbox to a snapshot.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use vmm::checkpoint::{ImageTaken, ImageTerms};

use crate::control::{self, Imaged, OrderError};
use crate::snapshot::{Making, Manifest, Place, SnapshotError, Store};
use crate::state::{Id, Root};
use crate::status::Status;

/// From when on, and how often, the progress is told.
const SLOW: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(200);

/// Told of a checkpoint that takes long: so many bytes are written; `None`: it is over.
pub type Progress<'p> = &'p (dyn Fn(Option<u64>) + Sync);

/// How a snapshot is to be made.
pub struct CheckpointOptions<'o> {
    pub store: &'o Store,
    pub place: Place,
    pub terms: ImageTerms,
    /// Called when it takes long.
    pub progress: Option<Progress<'o>>,
}

/// A snapshot that was made.
#[derive(Clone, Debug)]
pub struct Taken {
    pub manifest: Manifest,
    pub image: ImageTaken,
}

/// Makes a snapshot of a container that runs; returns once it is on the disk. Unless it is left running the container has ended by then.
pub fn checkpoint(root: &Root, id: &Id, options: &CheckpointOptions<'_>) -> Result<Taken, SnapshotError> {
    let refused = |why: &str| SnapshotError::Sandbox { id: id.as_str().to_owned(), why: why.to_owned() };
    let state = root.state(id)?;
    match state.status {
        Status::Running => {}
        Status::Stopped => return Err(refused("container not running: it has ended")),
        Status::Paused => return Err(refused("it is paused; resume it first")),
        Status::Creating | Status::Created => {
            return Err(refused("its first process does not run yet; start it first"));
        }
    }
    if super::is_further(root, id) {
        return Err(refused("it shares the sandbox of a pod, and snapshots are made of whole sandboxes"));
    }
    let Some(described) = super::described(root, id, &state) else {
        return Err(refused(
            "it was started by dormouse do, whose files end with it; make a container of a bundle",
        ));
    };
    // A key that cannot be had is no reason to end a container.
    let key = options.store.key()?;
    let making = options.store.begin(&options.place)?;
    let sandbox = root.sandbox(id)?;
    let ask = || control::checkpoint(&sandbox, making.files(), options.terms);
    let failed = |source| SnapshotError::Order { id: id.as_str().to_owned(), source };
    let imaged = with_progress(&making, options.progress, ask).map_err(failed)?;
    // Until it is on the disk the sandbox stands still, and goes on should that fail.
    let manifest = making.commit(imaged.image.head.clone(), described, &key)?;
    let image = imaged.kept().map_err(|error| {
        // It goes on, and nobody was told of the snapshot.
        if let Place::Named(name) = &options.place {
            let _ = options.store.remove(name);
        }
        failed(error)
    })?;
    Ok(Taken { manifest, image })
}

/// Does something that writes the files, and tells of it from time to time.
fn with_progress(
    making: &Making,
    progress: Option<Progress<'_>>,
    ask: impl FnOnce() -> Result<Imaged, OrderError>,
) -> Result<Imaged, OrderError> {
    let Some(progress) = progress else { return ask() };
    let (over, ends) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut patience = SLOW;
            while ends.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                progress(Some(making.written_bytes()));
                patience = STEP;
            }
            if patience == STEP {
                progress(None);
            }
        });
        let result = ask();
        drop(over);
        result
    })
}
