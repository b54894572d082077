//! The home of a sandbox's pages, put together as a plan says.
#![deny(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use swap::io::Device;
use swap::{
    BASE_PAGES_MAX, BaseIndex, Engine, FileBase, Home, Layered, MemoryHome, PageSums, Reference, StackedBase,
    SwapFileError, SwapHome, TablesError, Tier, TieredHome,
};

use super::injection;
use super::plan::{DEFAULT_DIR, SwapPlan};

/// Most bytes of records in memory: the control group of a sandbox has twice as much beside its limit, and frames may be taken anew as long
/// as records of others are kept.
const RECORDS_MOST: u64 = 64 << 20;

/// The parts of a home.
#[derive(Debug)]
pub struct HomePlan {
    /// The pages that the sandbox begins with, which are only read; `None`: it begins with none.
    pub base: Option<StackedBase>,
    /// The sandbox's own storage, for all other pages.
    pub own: SwapPlan,
}

impl From<SwapPlan> for HomePlan {
    fn from(own: SwapPlan) -> Self {
        Self { base: None, own }
    }
}

/// A home that has been put together.
pub(super) enum PagesHome {
    Own(TieredHome),
    OnBase(Layered<StackedBase, TieredHome>),
}

impl From<TieredHome> for PagesHome {
    fn from(home: TieredHome) -> Self {
        Self::Own(home)
    }
}

impl PagesHome {
    /// Makes the home, whose own storage is empty. A directory that was not asked for may be missing.
    pub fn create(plan: HomePlan, engine: Option<Arc<dyn Engine>>) -> Result<Self, SwapFileError> {
        let HomePlan { base, own } = plan;
        let [swap, reap, packed] = files_in(own.dir.as_deref().unwrap_or(Path::new(DEFAULT_DIR)))?;
        let is_sealed = own.packing.encrypt;
        let disk = SwapHome::new(swap, reap, own.limit_bytes).with_packing(packed, own.packing);
        let home = TieredHome::from(with_engine(disk, engine));
        // What is sealed on the disk does not lie open in memory.
        let home = if is_sealed {
            home
        } else {
            home.with_memory(MemoryHome::new(None, RECORDS_MOST), own.home.tier)
        };
        Ok(match base {
            Some(base) => Self::OnBase(Layered::new(Arc::new(base), home)),
            None => Self::Own(home),
        })
    }

    /// The home that wrote down `tables` and had this base. `own` opens its own storage by the tables of that.
    pub fn reopen(
        base: Option<StackedBase>,
        tables: &[u8],
        engine: Option<Arc<dyn Engine>>,
        tier: Tier,
        own: impl FnOnce(&[u8]) -> Result<SwapHome, TablesError>,
    ) -> Result<Self, TablesError> {
        let own = |tables: &[u8]| {
            let home = TieredHome::from(with_engine(own(tables)?, engine));
            Ok(home.with_memory(MemoryHome::new(None, RECORDS_MOST), tier))
        };
        Ok(match base {
            Some(base) => Self::OnBase(Layered::reopen(Arc::new(base), tables, own)?),
            None => Self::Own(own(tables)?),
        })
    }

    /// The home, which holds nothing yet, on other pages than it had under it.
    pub fn on_base(self, base: StackedBase) -> Self {
        let own = match self {
            Self::Own(home) => home,
            Self::OnBase(home) => home.into_own(),
        };
        Self::OnBase(Layered::new(Arc::new(base), own))
    }

    /// Where its pages are.
    pub fn pages(&self) -> &dyn Home {
        match self {
            Self::Own(home) => home,
            Self::OnBase(home) => home,
        }
    }

    /// Where its pages go.
    pub fn pages_mut(&mut self) -> &mut dyn Home {
        match self {
            Self::Own(home) => home,
            Self::OnBase(home) => home,
        }
    }

    /// Its own storage on the disk, which can be packed.
    pub fn own(&self) -> &SwapHome {
        self.tiers().disk()
    }

    /// Its own storage on the disk, to take over what was packed of it.
    pub fn own_mut(&mut self) -> &mut SwapHome {
        self.tiers_mut().disk_mut()
    }

    /// Its own storage.
    pub fn tiers(&self) -> &TieredHome {
        match self {
            Self::Own(home) => home,
            Self::OnBase(home) => home.own(),
        }
    }

    /// Its own storage, in which pages move.
    pub fn tiers_mut(&mut self) -> &mut TieredHome {
        match self {
            Self::Own(home) => home,
            Self::OnBase(home) => home.own_mut(),
        }
    }

    /// Has pages in memory compared with a base that is in memory: the sandbox's own, or this one.
    pub fn compare_with(&mut self, with: &BaseInMemory) -> Result<(), String> {
        let failed = |why: &dyn std::fmt::Display| format!("cannot use its base in memory: {why}");
        let base = match (&with.pages, self.base()) {
            (Some((pages, table)), _) => {
                // It may be of a larger sandbox.
                let sums = PageSums::read(table, BASE_PAGES_MAX).map_err(|error| failed(&error))?;
                let pages = pages.try_clone().map_err(|error| failed(&error))?;
                Arc::new(FileBase::with_sums(pages, sums).map_err(|error| failed(&error))?)
            }
            (None, Some(base)) => Arc::clone(base.own()),
            (None, None) => return Err(failed(&"it has none")),
        };
        // The index is a help, and no more.
        let index = with.index.as_ref().and_then(|index| BaseIndex::map(index).ok());
        let reference = Reference::new(base, index).ok_or_else(|| failed(&"it is not in memory"))?;
        if let Some(memory) = self.tiers_mut().memory_mut() {
            memory.compare_with(reference);
        }
        Ok(())
    }

    /// The pages that the sandbox began with, if there are any.
    pub fn base(&self) -> Option<&StackedBase> {
        self.on_a_base().map(Layered::base)
    }

    /// The home, if it is on pages that the sandbox began with.
    pub fn on_a_base(&self) -> Option<&Layered<StackedBase, TieredHome>> {
        match self {
            Self::Own(_) => None,
            Self::OnBase(home) => Some(home),
        }
    }
}

/// A base in memory.
#[derive(Debug)]
pub struct BaseInMemory {
    /// Its pages and their table, in sealed files; `None`: they are those that the sandbox begins with.
    pub pages: Option<(File, File)>,
    /// Its index, in a sealed file.
    pub index: Option<File>,
}

impl BaseInMemory {
    /// The files once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        let pages = self
            .pages
            .as_ref()
            .map(|(pages, table)| Ok::<_, io::Error>((pages.try_clone()?, table.try_clone()?)));
        Ok(Self { pages: pages.transpose()?, index: self.index.as_ref().map(File::try_clone).transpose()? })
    }

    /// Its descriptors; and whether pages, and an index, are among them.
    #[must_use]
    pub fn into_descriptors(self) -> (Vec<OwnedFd>, [bool; 2]) {
        let has = [self.pages.is_some(), self.index.is_some()];
        let pages = self.pages.into_iter().flat_map(|(pages, table)| [pages, table]);
        (pages.chain(self.index).map(OwnedFd::from).collect(), has)
    }

    /// The base that had these descriptors; `None`: there are others.
    #[must_use]
    pub fn from_descriptors(descriptors: Vec<OwnedFd>, [has_pages, has_index]: [bool; 2]) -> Option<Self> {
        let mut files = descriptors.into_iter().map(File::from);
        let pages = if has_pages { Some((files.next()?, files.next()?)) } else { None };
        let index = if has_index { Some(files.next()?) } else { None };
        files.next().is_none().then_some(Self { pages, index })
    }
}

/// The home with an engine, if there is one.
fn with_engine(home: SwapHome, engine: Option<Arc<dyn Engine>>) -> SwapHome {
    match engine {
        Some(engine) => home.with_engine(engine),
        None => home,
    }
}

fn files_in(dir: &Path) -> Result<[Box<dyn Device>; 3], SwapFileError> {
    // A directory that cannot be made cannot be opened either, which says why.
    let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let open = |name| swap::open_unnamed(dir).map(|file| injection::faulty(Box::new(file), name));
    Ok([open("swap")?, open("reap")?, open("packed")?])
}
