//! The base that pages of a sandbox are compared with, which it keeps in memory while it sleeps.

use std::fs::File;
use std::io;

use vmm::hibernate::{BaseInMemory, Tier, Wishes};

use super::bases::Held;
use super::error::{SnapshotError, Unfit};
use super::place::Place;
use super::store::{Opened, Store};
use crate::state::Root;

/// A base for the pages of a sandbox.
#[derive(Debug)]
pub struct Compared {
    /// It is handed to the sandbox's VMM.
    pub base: BaseInMemory,
    /// The digest of the snapshot that it is of, in words.
    pub digest: String,
}

impl Compared {
    /// The base once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { base: self.base.try_clone()?, digest: self.digest.clone() })
    }
}

impl Store {
    /// The base that a sandbox's pages are compared with: the one that is wished for, or the snapshot that it begins with if that is held and
    /// its pages come from there. A clone is kept in memory only if what it has in common with its snapshot is there as well.
    pub fn compared(
        &self,
        root: &Root,
        wishes: &Wishes,
        begins_with: Option<(&Opened, Option<&File>)>,
    ) -> Result<Option<Compared>, SnapshotError> {
        let own = begins_with.and_then(|(opened, template)| opened.held_for(template));
        if let Some((opened, _)) = begins_with.filter(|_| own.is_none())
            && wishes.home.is_some_and(|home| home.tier == Tier::Memory)
        {
            return Err(Unfit::NotHeld.at(&opened.place));
        }
        if wishes.base.as_deref() == Some("none") {
            return Ok(None);
        }
        let named = wishes.base.as_deref();
        let Some(name) = named else {
            let place = begins_with.map(|(opened, _)| opened.place.clone());
            let failed = |source| match place {
                Some(place) => SnapshotError::Held { place, source },
                None => SnapshotError::InMemory(source),
            };
            return own.map(|held| compared(held, true)).transpose().map_err(failed);
        };
        let place = Place::named(name)?;
        let held = self.held_base(root, &place)?.ok_or_else(|| Unfit::NotHeld.at(&place))?;
        let is_own = own.is_some_and(|own| own.digest() == held.digest());
        compared(&held, is_own).map(Some).map_err(|source| SnapshotError::Held { place, source })
    }
}

/// Such a base; `is_own`: it is that which the sandbox begins with.
fn compared(held: &Held, is_own: bool) -> io::Result<Compared> {
    let pages = if is_own { None } else { Some((held.pages.try_clone()?, held.table.try_clone()?)) };
    let has_index = held.index.metadata()?.len() > 0;
    let index = has_index.then(|| held.index.try_clone()).transpose()?;
    Ok(Compared { base: BaseInMemory { pages, index }, digest: held.digest().to_owned() })
}
