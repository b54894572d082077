//! How a sandbox is to hibernate, and the home of its pages that follows from it.
#![deny(unsafe_code)]

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use swap::io::Device;
use swap::{Home, SwapFileError, SwapHome};

use super::injection;

/// The default directory of swap files.
pub const DEFAULT_DIR: &str = "/var/lib/dormouse/.swap";

/// How the working set comes back when a sandbox wakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reap {
    /// Page by page, as it is touched
    Off,
    /// As a whole, before anything runs
    #[default]
    On,
    /// As a whole, while programs run already
    Stream,
}

impl FromStr for Reap {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            "stream" => Ok(Self::Stream),
            _ => Err(()),
        }
    }
}

/// The settings of a sandbox's home of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapPlan {
    /// `None`: [`DEFAULT_DIR`], and a sandbox that cannot have its files there cannot hibernate.
    pub dir: Option<PathBuf>,
    pub limit_bytes: u64,
    pub reap: Reap,
}

impl Default for SwapPlan {
    fn default() -> Self {
        Self { dir: None, limit_bytes: u64::MAX, reap: Reap::default() }
    }
}

/// How a sandbox is to hibernate, as far as somebody has said so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The directory of its files; absolute.
    pub dir: Option<PathBuf>,
    pub limit_bytes: Option<u64>,
    pub reap: Option<Reap>,
    /// After how long without a request.
    pub idle_timeout: Option<Duration>,
}

impl Wishes {
    /// With those of somebody else for what is left open.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            dir: self.dir.or(other.dir),
            limit_bytes: self.limit_bytes.or(other.limit_bytes),
            reap: self.reap.or(other.reap),
            idle_timeout: self.idle_timeout.or(other.idle_timeout),
        }
    }
}

impl From<Wishes> for SwapPlan {
    fn from(wishes: Wishes) -> Self {
        let Wishes { dir, limit_bytes, reap, .. } = wishes;
        Self { dir, limit_bytes: limit_bytes.unwrap_or(u64::MAX), reap: reap.unwrap_or_default() }
    }
}

/// Makes the home that a sandbox with this plan has. A directory that was not asked for may be missing.
pub(super) fn open_home(plan: &SwapPlan) -> Result<Box<dyn Home>, SwapFileError> {
    let [swap, reap] = files_in(plan.dir.as_deref().unwrap_or(Path::new(DEFAULT_DIR)))?;
    Ok(Box::new(SwapHome::new(swap, reap, plan.limit_bytes)))
}

fn files_in(dir: &Path) -> Result<[Box<dyn Device>; 2], SwapFileError> {
    // A directory that cannot be made cannot be opened either, which says why.
    let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let open = |name| swap::open_unnamed(dir).map(|file| injection::faulty(Box::new(file), name));
    Ok([open("swap")?, open("reap")?])
}
