//! The pages of a snapshot that come first, and how it comes to be known which these are.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::PoisonError;

use abi::records::RecordUntil;
use abi::report::WRITTEN;
use rustix::fs::{self, Advice};
use vmm::boot::BootSpec;
use vmm::checkpoint;

use super::error::{SnapshotError, Unfit};
use super::store::Opened;
use super::working_set::{self, BadWorkingSet, Recording};

/// No page has this number. A working set of it alone is known and empty, where without one the sandbox's kernel takes a guess.
const NO_PAGE: u32 = !WRITTEN;

/// The list by which the host reads pages ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// Those that were seen to come into the page cache
    Bpf,
    /// Those that the kernel has seen touched
    List,
    /// Those that the kernel has seen touched, from a file in which they lie together
    Reap,
    /// Those that the host guesses: what was recorded is not used
    Host,
    /// None at all
    None,
}

/// The working set of a snapshot.
#[derive(Debug)]
pub(super) enum WorkingSet {
    Recorded(Vec<u32>),
    /// There is none, or it is not used for this reason.
    Missing(Option<BadWorkingSet>),
}

impl Opened {
    /// Starts the process that writes its working set, if it has none; without one it is recorded another time.
    pub(crate) fn start_recording(&self) -> Option<OwnedFd> {
        if let Some(teller) = &self.recorded {
            let (ours, theirs) = UnixStream::pair().ok()?;
            *teller.lock().unwrap_or_else(PoisonError::into_inner) = Some(ours);
            return Some(theirs.into());
        }
        self.wanted_recording()?.start().ok()
    }

    /// The way to record the working set, if it is to be: there is none, or it is time to do so once more.
    pub(super) fn wanted_recording(&self) -> Option<&Recording> {
        let is_known = matches!(self.working_set, WorkingSet::Recorded(_));
        self.recording.as_ref().filter(|recording| !is_known || recording.is_due())
    }

    /// Says which pages come back first, or that they are to be recorded; `of_exec`: until a command in the clone has ended.
    pub(crate) fn say_working_set(&self, boot: &mut BootSpec, of_exec: bool, warn: fn(&str)) {
        match &self.working_set {
            WorkingSet::Recorded(pages) => boot.working_set.clone_from(pages),
            WorkingSet::Missing(Some(why)) => {
                let place = &self.place;
                let advice =
                    if self.recording.is_some() { "it is recorded anew" } else { "remove its file ws" };
                warn(&format!("the working set of snapshot {place} is not used: {why}; {advice}"));
            }
            WorkingSet::Missing(None) => {}
        }
        let until = if of_exec { RecordUntil::Exec } else { RecordUntil::Time };
        let usual = self.wanted_recording().map(|_| until);
        boot.records_working_set = self.recorded.as_ref().map(|_| RecordUntil::Sleep).or(usual);
    }

    /// Has the host read the pages that will be brought first, from the file that is shared if there is one.
    pub(crate) fn read_ahead(&self, template: Option<&File>) {
        if self.held_for(template).is_some() {
            return;
        }
        if let Some(together) = &self.files.together {
            return checkpoint::read_ahead_all(together);
        }
        let pages = match &self.working_set {
            _ if !self.fills.is_empty() => &self.fills,
            WorkingSet::Recorded(pages) if *pages != [NO_PAGE] => pages,
            _ => return,
        };
        let pages: Vec<u32> = pages.iter().map(|page| working_set::number(*page)).collect();
        match template {
            Some(template) => checkpoint::read_ahead(template, &pages),
            None => self.files.read_ahead(&pages, &self.manifest.files.packed()),
        }
    }

    /// Has what is read ahead go by this, and not by what there is.
    pub fn prefetch(&mut self, by: Prefetch) -> Result<(), SnapshotError> {
        match by {
            Prefetch::Bpf if self.fills.is_empty() => return Err(Unfit::NoFills.at(&self.place)),
            Prefetch::Bpf => {}
            Prefetch::List => self.fills = Vec::new(),
            Prefetch::Reap if self.held.is_some() => return Err(Unfit::HeldTogether.at(&self.place)),
            Prefetch::Reap => {
                let found = self.directory.file_to_read(working_set::TOGETHER);
                let none = |error: io::Error| match error.kind() {
                    io::ErrorKind::NotFound => Unfit::NotTogether,
                    _ => error.into(),
                };
                self.files.together = Some(found.map_err(|error| none(error).at(&self.place))?);
                self.fills = Vec::new();
            }
            Prefetch::Host | Prefetch::None => {
                if by == Prefetch::None {
                    // A host that does not take it reads more.
                    let _ = fs::fadvise(&self.files.pages, 0, None, Advice::Random);
                }
                (self.working_set, self.fills) = (WorkingSet::Recorded(vec![NO_PAGE]), Vec::new());
                self.recording = None;
            }
        }
        Ok(())
    }

    /// Sandboxes that begin with it do not tell which pages they need.
    pub fn leave_unrecorded(&mut self) {
        self.recording = None;
    }
}
