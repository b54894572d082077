//! `checkpoint`: from a sandbox to a snapshot.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use vmm::checkpoint::{ImageHead, ImageTaken, ImageTerms, Style, WrittenFile};
use vmm::directory::Directory;
use vmm::hibernate::micros;
use vmm::jail::Users;
use vmm::process;

use crate::cgroup;
use crate::control::{self, Imaged, ImagingError, OrderError};
use crate::front::CommandRecord;
use crate::orders;
use crate::snapshot::{
    Copied, Described, Key, Layer, LayerError, Making, Manifest, Place, SnapshotError, Store,
};
use crate::state::{self, Id, OciState, Root};
use crate::status::Status;

/// How long a container may take to end that is to.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// The part of its memory that a sandbox may grow by beside an image of it in memory.
const ROOM_PART: u64 = 4;
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
    /// The snapshot whose pages are not written again where they are the same.
    pub parent: Option<Place>,
    /// Packs the pages once they are written.
    pub codec: Style,
    /// The file of the key that its content is sealed by.
    pub key_file: Option<PathBuf>,
    /// Its place is in memory.
    pub in_memory: bool,
    /// Called when it takes long.
    pub progress: Option<Progress<'o>>,
}

/// A snapshot that was made.
#[derive(Clone, Debug)]
pub struct Taken {
    pub manifest: Manifest,
    pub image: ImageTaken,
    /// How long nothing ran while the changes to files were copied, in microseconds, if they belong to it.
    pub layer_us: Option<u64>,
    /// How long pages were packed, in microseconds, if they were.
    pub packed_us: Option<u64>,
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
    if let Some(first) = super::first_of(root, id) {
        let why = format!("it is in the pod of {first}, which is written as a whole; make one of that");
        return Err(refused(&why));
    }
    let (mut described, layer) = describe(root, id, &state)?;
    // A key that cannot be had is no reason to end a container.
    let key = options.store.key()?;
    let parent = options.parent.as_ref().map(|parent| options.store.parent(parent)).transpose()?;
    if options.key_file.is_some() {
        may_be_sealed(options, layer.is_some()).map_err(|why| refused(&why))?;
    }
    if options.key_file.is_some() || options.in_memory {
        // Until it is sealed it is in memory.
        has_room(root, id, &state, options.in_memory).map_err(|why| refused(&why))?;
    }
    let making = options.store.begin(&options.place, parent, options.key_file.as_deref())?;
    let sandbox = root.sandbox(id)?;
    let mut taking = Taking { id, layer, making, copied: RefCell::new(None) };
    let terms = ImageTerms { seals: options.key_file.is_some(), ..options.terms };
    let ask = || taking.ask(&sandbox, terms);
    let imaged = with_progress(&|| taking.making.written_bytes(), options.progress, ask)?;
    taking.making.take_below(&imaged.image.below)?;
    let packed_us = match taking.pack(&imaged, options) {
        Err(_) if !imaged.stands_still() => {
            let why =
                "it went on before its pages were packed; choose a quicker codec, or pass --leave-running";
            return Err(refused(why));
        }
        packed => packed?,
    };
    if !imaged.stands_still() {
        return Err(refused("it went on before all of it was copied"));
    }
    let written = if terms.seals { &[][..] } else { &imaged.image.written };
    describe_taken(root, id, &imaged.image.further, written, &mut described).map_err(|why| refused(&why))?;
    // Until it is on the disk the sandbox stands still, and goes on should that fail.
    let (manifest, layer) = taking.commit(imaged.image.head.clone(), described, &key)?;
    let image = imaged.kept().map_err(|source| {
        // It goes on, and nobody was told of the snapshot. Where that is not known nothing is lost.
        if matches!(source, OrderError::Refused(_)) {
            options.store.take_back(&options.place, &manifest);
        }
        SnapshotError::Order { id: id.as_str().to_owned(), source }
    })?;
    if !options.terms.leave_running {
        // With thousands of tasks that takes its time.
        state::wait_for_end(&sandbox, Instant::now() + END_PATIENCE);
    }
    Ok(Taken { manifest, image, layer_us: layer, packed_us })
}

/// Adds what is known only of an image that was taken: names of files are in the memory, which may be sealed, so those are given apart.
fn describe_taken(
    root: &Root,
    id: &Id,
    further: &[u64],
    written: &[WrittenFile],
    described: &mut Described,
) -> Result<(), String> {
    if let Some(pod) = &mut described.pod {
        *pod = super::further_described(root, id, further)?;
    }
    described.take_written(written);
    Ok(())
}

fn may_be_sealed(options: &CheckpointOptions<'_>, has_layer: bool) -> Result<(), String> {
    if has_layer {
        return Err("its changes to files would be in the clear: those of dormouse do are not sealed".into());
    }
    if options.parent.is_some() {
        return Err("its content is to be sealed, and a parent's pages are not".into());
    }
    Ok(())
}

/// Whether all memory of the sandbox, stored or not, can be there once more, in its control group and on the host; or why not. `stays`: for
/// long, so that there is to be some left for the sandbox to grow.
fn has_room(root: &Root, id: &Id, state: &OciState, stays: bool) -> Result<(), String> {
    let stats = orders::stats(root, id).map_err(|error| error.to_string())?.memory;
    let needed = stats.user_resident_bytes + stats.swapped_bytes + stats.kernel_heap_bytes;
    let needed = if stays { needed + needed / ROOM_PART } else { needed };
    let short = |left: u64, of: &str| {
        format!("its memory is needed once more, {needed} bytes, and {of} has {left} left")
    };
    let memory = cgroup::usage(&cgroup::groups_of(state.pid)).memory;
    let stat = |name: &str| memory.stat.get(name).copied().unwrap_or(0);
    // The host gives files' pages up first.
    let cache = stat("cache").max(stat("file")).saturating_sub(stat("shmem"));
    let in_use = memory.usage.bytes.saturating_sub(cache);
    let left = memory.usage.limit_bytes.map(|limit| limit.saturating_sub(in_use));
    if let Some(left) = left.filter(|left| *left < needed) {
        return Err(short(left, "the limit of its control group"));
    }
    match process::available_memory() {
        Some(left) if left < needed => Err(short(left, "the host")),
        _ => Ok(()),
    }
}

/// The words about a container in its snapshot, and the layer of one of `dormouse do`.
fn describe(root: &Root, id: &Id, state: &OciState) -> Result<(Described, Option<Layer>), SnapshotError> {
    if let Some(record) = root.command::<CommandRecord>(id) {
        let layer = layer_of(&record);
        let layer =
            layer.map_err(|source| layer_error(id, LayerError { path: record.layer.clone(), source }))?;
        return Ok((record.described(state), Some(layer)));
    }
    let why = "it is a clone of a container, whose changes to files end with it, or nothing was noted of it";
    let unknown = || SnapshotError::Sandbox { id: id.as_str().to_owned(), why: why.into() };
    Ok((super::described(root, id, state).ok_or_else(unknown)?, None))
}

fn layer_error(id: &Id, source: LayerError) -> SnapshotError {
    SnapshotError::Layer { id: id.as_str().to_owned(), source }
}

/// The layer of a sandbox of `dormouse do`.
fn layer_of(record: &CommandRecord) -> io::Result<Layer> {
    let vmm = record.vmm().ok_or_else(|| io::Error::other("it has ended"))?;
    Layer::open(&record.layer, Users::of_process(vmm)?.base(), record.front)
}

/// A snapshot that is being made.
struct Taking<'t> {
    id: &'t Id,
    /// The sandbox's, if it is one of `dormouse do`.
    layer: Option<Layer>,
    making: Making,
    copied: RefCell<Option<(Directory, Copied)>>,
}

impl Taking<'_> {
    fn ask(&self, sandbox: &Directory, terms: ImageTerms) -> Result<Imaged, SnapshotError> {
        let copy = |layer: &Layer| -> Result<(), SnapshotError> {
            let directory = self.making.make_layer()?;
            let copied = layer.copy_own(&directory).map_err(|error| layer_error(self.id, error))?;
            self.copied.replace(Some((directory, copied)));
            Ok(())
        };
        let copy = self.layer.as_ref().map(|layer| move || copy(layer));
        let copy = copy.as_ref().map(|copy| copy as &dyn Fn() -> Result<(), SnapshotError>);
        let failed = |error| match error {
            ImagingError::Order(source) => SnapshotError::Order { id: self.id.as_str().to_owned(), source },
            ImagingError::Copy(error) => error,
        };
        let files = (self.making.files(), self.making.parent());
        control::checkpoint(sandbox, files, terms, copy).map_err(failed)
    }

    /// Packs the pages, if that is asked for. Result: how long it took.
    fn pack(
        &mut self,
        imaged: &Imaged,
        options: &CheckpointOptions<'_>,
    ) -> Result<Option<u64>, SnapshotError> {
        let (style, head) = (options.codec, &imaged.image.head);
        if self.making.is_sealed() {
            return self.seal(imaged, options).map(Some);
        }
        // There is nothing to pack.
        if style == Style::None || head.pages == 0 {
            return Ok(None);
        }
        let since = Instant::now();
        let files = self.making.begin_packing()?;
        let goes_on = || imaged.stands_still();
        let pack = || self.making.pack(head, style, &files, &goes_on);
        if !with_progress(&|| files.written_bytes(), options.progress, pack)? {
            // All of them are in other files.
            self.making.leave_unpacked()?;
            return Ok(None);
        }
        self.making.take_packed(style, files)?;
        Ok(Some(micros(since.elapsed())))
    }

    /// Seals all of it. Result: how long it took.
    fn seal(&mut self, imaged: &Imaged, options: &CheckpointOptions<'_>) -> Result<u64, SnapshotError> {
        let since = Instant::now();
        let files = self.making.begin_sealing()?;
        let goes_on = || imaged.stands_still();
        // Pages of zeros would be sealed as they are.
        let style = if options.codec == Style::None { Style::Lz4 } else { options.codec };
        let seal = || self.making.seal(&imaged.image.head, style, &files, &goes_on);
        let has_pages = with_progress(&|| files.written_bytes(), options.progress, seal)?;
        self.making.take_sealed(has_pages.then_some(style), files);
        Ok(micros(since.elapsed()))
    }

    /// Puts it in its place; result: its manifest, and how long the layer was copied while nothing ran.
    fn commit(
        self,
        head: ImageHead,
        described: Described,
        key: &Key,
    ) -> Result<(Manifest, Option<u64>), SnapshotError> {
        let Self { id, layer, making, copied } = self;
        let (mut files, mut pause_us) = (None, None);
        if let (Some(layer), Some((directory, mut copied))) = (layer, copied.into_inner()) {
            pause_us = Some(copied.pause_us);
            let finished = layer.copy_below(&directory, &mut copied).and_then(|()| copied.finish(&directory));
            files = Some(finished.map_err(|error| layer_error(id, error))?);
        }
        Ok((making.commit(head, described, files, key)?, pause_us))
    }
}

/// Does something that writes the files, and tells of it from time to time.
fn with_progress<T>(
    written_bytes: &(dyn Fn() -> u64 + Sync),
    progress: Option<Progress<'_>>,
    write: impl FnOnce() -> T,
) -> T {
    let Some(progress) = progress else { return write() };
    let (over, ends) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut patience = SLOW;
            while ends.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                progress(Some(written_bytes()));
                patience = STEP;
            }
            if patience == STEP {
                progress(None);
            }
        });
        let result = write();
        drop(over);
        result
    })
}
