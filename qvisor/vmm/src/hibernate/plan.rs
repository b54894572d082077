//! How a sandbox is to hibernate.
#![deny(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use abi::address::AddressPrefix;
use serde::{Deserialize, Serialize};
use swap::Packing;
pub use swap::{Codec, CodecError, Tier};

use super::ignored::Ignored;
use super::timers::Timers;

/// The default directory of swap files.
pub const DEFAULT_DIR: &str = "/var/lib/dormouse/.swap";

/// After how long asleep pages are packed, if nobody says.
const SETTLE: Duration = Duration::from_secs(10);
/// The file by whose lock sandboxes pack one after the other.
const TURN: &str = ".packing";

/// How the working set comes back when a sandbox wakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reap {
    /// Page by page, as it is touched
    Off,
    /// All at once, before anything runs
    #[default]
    On,
    /// All at once, while programs run already
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

/// The answer to a probe by a command that finds the sandbox hibernated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecProbe {
    /// It wakes the sandbox, and runs
    #[default]
    Wake,
    /// Exit code 0, by the VMM: nothing runs, and the sandbox sleeps on
    AsleepIsAlive,
}

/// The settings of a sandbox's home of pages.
#[derive(Clone, Debug, PartialEq)]
pub struct SwapPlan {
    /// `None`: [`DEFAULT_DIR`], and a sandbox that cannot have its files there cannot hibernate.
    pub dir: Option<PathBuf>,
    pub limit_bytes: u64,
    pub reap: Reap,
    pub packing: Packing,
    /// After how long asleep its pages are packed.
    pub settle: Duration,
    pub home: HomePolicy,
    /// See [`Wishes::pressure`].
    pub pressure: Option<u8>,
}

/// Where the pages of a sandbox are while it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HomePolicy {
    pub tier: Tier,
    /// After how long asleep they go from memory to the disk; `None`: they stay.
    pub disk_after: Option<Duration>,
}

impl Default for SwapPlan {
    fn default() -> Self {
        Wishes::default().into()
    }
}

/// How a sandbox is to hibernate, as far as somebody has said so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The directory of its files; absolute.
    pub dir: Option<PathBuf>,
    pub limit_bytes: Option<u64>,
    pub reap: Option<Reap>,
    /// How its pages are packed, and after how long asleep.
    pub codec: Option<Codec>,
    pub settle: Option<Duration>,
    /// Whether nothing is stored in the clear.
    pub encrypt: Option<bool>,
    pub home: Option<HomePolicy>,
    /// The name of a snapshot in memory, or `none`: pages in memory are kept as differences from it.
    pub base: Option<String>,
    /// Pages in memory go to the disk while tasks of the host wait for memory for this part of their time, in per cent.
    pub pressure: Option<u8>,
    /// After how long without a request.
    pub idle_timeout: Option<Duration>,
    /// Who comes from these addresses does not restart the idle time.
    pub idle_ignores: Option<Ignored>,
    /// For how long beyond the idle time something may keep it awake of which nobody knows whether it ends.
    pub awake_at_most: Option<Duration>,
    pub outbound: Option<Outbound>,
    pub exec_probe: Option<ExecProbe>,
    pub timers: Option<Timers>,
}

/// The course of a sandbox whose idle time is over while a task waits, with a time-out, for the answer to what it
/// asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outbound {
    /// It stays awake: the time-out would not wake it.
    #[default]
    Awake,
    /// It sleeps: the answer wakes it.
    Sleep,
}

/// See [`Wishes::awake_at_most`].
pub const AWAKE_AT_MOST: Duration = Duration::from_mins(15);

impl Wishes {
    /// With those of somebody else for what is left open.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            dir: self.dir.or(other.dir),
            limit_bytes: self.limit_bytes.or(other.limit_bytes),
            reap: self.reap.or(other.reap),
            codec: self.codec.or(other.codec),
            settle: self.settle.or(other.settle),
            encrypt: self.encrypt.or(other.encrypt),
            home: self.home.or(other.home),
            base: self.base.or(other.base),
            pressure: self.pressure.or(other.pressure),
            idle_timeout: self.idle_timeout.or(other.idle_timeout),
            idle_ignores: self.idle_ignores.or(other.idle_ignores),
            awake_at_most: self.awake_at_most.or(other.awake_at_most),
            outbound: self.outbound.or(other.outbound),
            exec_probe: self.exec_probe.or(other.exec_probe),
            timers: self.timers.or(other.timers),
        }
    }
}

impl Wishes {
    /// The addresses that do not restart the idle time.
    #[must_use]
    pub fn ignored(&self) -> Vec<AddressPrefix> {
        self.idle_ignores.as_ref().map_or_else(Vec::new, |ignored| ignored.prefixes().to_vec())
    }
}

impl From<Wishes> for SwapPlan {
    fn from(wishes: Wishes) -> Self {
        let Wishes { dir, limit_bytes, reap, codec, settle, encrypt, home, pressure, .. } = wishes;
        Self {
            dir,
            limit_bytes: limit_bytes.unwrap_or(u64::MAX),
            reap: reap.unwrap_or_default(),
            packing: Packing {
                codec: codec.unwrap_or_default(),
                encrypt: encrypt.unwrap_or_default(),
                cpus: None,
            },
            settle: settle.unwrap_or(SETTLE),
            home: home.unwrap_or_default(),
            pressure,
        }
    }
}

impl SwapPlan {
    /// For a sandbox that may use so much of a processor in each period.
    #[must_use]
    pub fn with_cpu_quota(mut self, quota_us: Option<u64>, period_us: Option<u64>) -> Self {
        if let (Some(quota), Some(period @ 1..)) = (quota_us.filter(|quota| *quota < u64::MAX), period_us) {
            #[expect(clippy::cast_precision_loss, reason = "a share of a handful of processors")]
            let share = quota as f64 / period as f64;
            self.packing.cpus = Some(share);
        }
        self
    }
}

/// The file of the turn in this plan's directory; `None`: there can be none, or none is needed.
pub(super) fn open_turn(plan: &SwapPlan) -> Option<File> {
    if plan.packing == Packing::default() && plan.home == HomePolicy::default() {
        return None;
    }
    let dir = plan.dir.as_deref().unwrap_or(Path::new(DEFAULT_DIR));
    let mut options = OpenOptions::new();
    // To be read only: a VMM that was taken over can leave nothing in it. Whoever can write to the directory cannot make this
    // open anything else.
    let flags = libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = options.read(true).mode(0o600).custom_flags(flags).open(dir.join(TURN)).ok();
    // In a directory that users share another one could have made it, and keep it locked.
    file.filter(super::settling::is_own)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, chown};

    use super::*;

    #[test]
    fn nobody_waits_for_the_turn_of_another_user() {
        let dir = testdir::TempDir::new();
        let plan = SwapPlan { dir: Some(dir.path().into()), ..SwapPlan::default() };
        assert!(open_turn(&plan).is_some() && open_turn(&plan).is_some());
        let path = dir.path().join(TURN);
        // Only root can give it away, and nobody else could open it then.
        if path.metadata().unwrap().uid() == 0 {
            chown(&path, Some(1), None).unwrap();
            assert!(open_turn(&plan).is_none());
        }
        assert!(!super::super::settling::is_own(&File::open("/dev/null").unwrap()));
    }
}
