//! The home of a sandbox's pages, put together as a plan says.
#![deny(unsafe_code)]

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use swap::io::Device;
use swap::{Engine, Home, Layered, StackedBase, SwapFileError, SwapHome, TablesError};

use super::injection;
use super::plan::{DEFAULT_DIR, SwapPlan};

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
    Own(SwapHome),
    OnBase(Layered<StackedBase, SwapHome>),
}

impl From<SwapHome> for PagesHome {
    fn from(home: SwapHome) -> Self {
        Self::Own(home)
    }
}

impl PagesHome {
    /// Makes the home, whose own storage is empty. A directory that was not asked for may be missing.
    pub fn create(plan: HomePlan, engine: Option<Arc<dyn Engine>>) -> Result<Self, SwapFileError> {
        let HomePlan { base, own } = plan;
        let [swap, reap, packed] = files_in(own.dir.as_deref().unwrap_or(Path::new(DEFAULT_DIR)))?;
        let home = SwapHome::new(swap, reap, own.limit_bytes).with_packing(packed, own.packing);
        let home = with_engine(home, engine);
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
        own: impl FnOnce(&[u8]) -> Result<SwapHome, TablesError>,
    ) -> Result<Self, TablesError> {
        let own = |tables: &[u8]| own(tables).map(|home| with_engine(home, engine));
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

    /// Its own storage, which can be packed.
    pub fn own(&self) -> &SwapHome {
        match self {
            Self::Own(home) => home,
            Self::OnBase(home) => home.own(),
        }
    }

    /// Its own storage, to take over what was packed of it.
    pub fn own_mut(&mut self) -> &mut SwapHome {
        match self {
            Self::Own(home) => home,
            Self::OnBase(home) => home.own_mut(),
        }
    }

    /// The pages that the sandbox began with, if there are any.
    pub fn base(&self) -> Option<&StackedBase> {
        self.on_a_base().map(Layered::base)
    }

    /// The home, if it is on pages that the sandbox began with.
    pub fn on_a_base(&self) -> Option<&Layered<StackedBase, SwapHome>> {
        match self {
            Self::Own(_) => None,
            Self::OnBase(home) => Some(home),
        }
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
