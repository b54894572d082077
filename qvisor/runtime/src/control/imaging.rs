//! The asker's side of a checkpoint.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use vmm::checkpoint::{BelowFiles, FileId, ImageFiles, ImageTaken, ImageTerms};
use vmm::directory::Directory;
use vmm::process;

use super::{Figures, KEPT, Order, OrderError, START_PATIENCE, answer, ask, connect};

/// How long it may take to hibernate and then to be written.
const CHECKPOINT_PATIENCE: Duration = Duration::from_secs(660);

/// Has the sandbox whose directory this is written to files, which are empty and open to write. Its container is the only one in it.
/// Pages that `parent` has are left to it. `copy` is called once, if it is there, while nothing of the sandbox runs: its files are those of the memory that is written.
pub fn checkpoint<E>(
    sandbox: &Directory,
    (files, parent): (&ImageFiles, &[BelowFiles]),
    terms: ImageTerms,
    copy: Option<&dyn Fn() -> Result<(), E>>,
) -> Result<Imaged, ImagingError<E>> {
    let stream = connect(sandbox)?;
    let ImageFiles { kernel, pages, table, orphans, .. } = files;
    let tables = parent.iter().map(|base| &base.table);
    let descriptors: Vec<_> =
        [kernel, pages, table, orphans].into_iter().chain(tables).map(File::as_fd).collect();
    let parent = parent.iter().map(|base| FileId::of(&base.pages)).collect::<io::Result<_>>()?;
    let ImageTerms { leave_running, refuses_connections, seals, .. } = terms;
    let order =
        Order::Checkpoint { leave_running, refuses_connections, copies_files: copy.is_some(), seals, parent };
    ask(&stream, order, &[], &descriptors)?;
    let deadline = Instant::now() + CHECKPOINT_PATIENCE;
    let mut figures = answer(&stream, deadline)?.figures;
    if let (Some(copy), None, true) = (copy, &figures, leave_running) {
        copy().map_err(ImagingError::Copy)?;
        (&mut &stream).write_all(KEPT)?;
        figures = answer(&stream, deadline)?.figures;
    } else if let (Some(copy), Some(_)) = (copy, &figures) {
        // It stands still until it is told to end.
        copy().map_err(ImagingError::Copy)?;
    }
    match figures {
        Some(Figures::Checkpoint(image)) => Ok(Imaged {
            image: *image,
            ends: (!leave_running).then_some(stream),
            has_gone_on: Cell::new(false),
        }),
        _ => Err(OrderError::Ended.into()),
    }
}

/// Why a sandbox could not be written to files.
#[derive(Debug)]
pub enum ImagingError<E> {
    Order(OrderError),
    /// Its files could not be copied.
    Copy(E),
}

impl<E> From<io::Error> for ImagingError<E> {
    fn from(error: io::Error) -> Self {
        Self::Order(error.into())
    }
}

impl<E> From<OrderError> for ImagingError<E> {
    fn from(error: OrderError) -> Self {
        Self::Order(error)
    }
}

/// A sandbox that has been written to files. One that is to end stands still until [`Imaged::kept`], and goes on if this is dropped.
#[derive(Debug)]
pub struct Imaged {
    pub image: ImageTaken,
    ends: Option<UnixStream>,
    /// It was heard that it has gone on.
    has_gone_on: Cell<bool>,
}

impl Imaged {
    /// Whether it stands still yet, if it is to end.
    #[must_use]
    pub fn stands_still(&self) -> bool {
        let says_nothing =
            |stream: &UnixStream| process::receive_now(stream, &mut [0]).is_none() && !self.has_gone_on.get();
        let stands_still = self.ends.as_ref().is_none_or(says_nothing);
        self.has_gone_on.set(!stands_still);
        stands_still
    }

    /// The files are safe: the sandbox ends, if it is to. An error says that it goes on.
    pub fn kept(self) -> Result<ImageTaken, OrderError> {
        let Some(stream) = &self.ends else { return Ok(self.image) };
        // One that has ended meanwhile does not hear it.
        let _ = (&mut &*stream).write_all(KEPT);
        match answer(stream, Instant::now() + START_PATIENCE) {
            Err(OrderError::Ended) => Ok(self.image),
            Err(OrderError::Connection(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                Ok(self.image)
            }
            Err(error) => Err(error),
            Ok(_) => Err(OrderError::Refused("it does not end".into())),
        }
    }
}
