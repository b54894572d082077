//! The home of pages on its way from one VMM to the next.
#![deny(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use swap::io::Device;
use swap::{Home, Packing, SwapHome};

use super::settling::{self, Settling};
use super::{Hibernation, Reap, SwapPlan, accelerator, injection, plan};
use crate::handover::{HandOverError, Placed};
use crate::host_paths::HostPaths;
use crate::lock::ReadGuard;
use crate::memory::frames_of;

/// A home for the next VMM. Descriptors by their numbers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HomePlan {
    /// Of the swap file, the REAP file and the packed one.
    files: [RawFd; 3],
    turn: Option<RawFd>,
    limit_bytes: u64,
    codec: String,
    cpus: Option<f64>,
    reap: Reap,
    settle: Duration,
}

/// A home that is left to the next VMM. Nothing is stored or packed any more.
pub(crate) struct HomeLeft<'h> {
    home: ReadGuard<'h, Box<dyn Home>>,
    turn: Option<BorrowedFd<'h>>,
    plan: &'h SwapPlan,
    files: [RawFd; 3],
    tables: Vec<u8>,
}

impl Hibernation {
    /// Whether a plan has words for it.
    pub(crate) fn may_be_left(&self) -> Result<(), HandOverError> {
        if self.plan.packing.encrypt {
            return Err(HandOverError::Refused("its pages are sealed with a key that ends with this VMM"));
        }
        self.home.as_ref().map(drop).map_err(|_| HandOverError::Refused("its pages have no home"))
    }

    /// Leaves the home to the next VMM.
    pub(crate) fn hand_over(&self) -> Result<HomeLeft<'_>, HandOverError> {
        self.settling.end_packing();
        let home = self.home.as_ref().map_err(|_| HandOverError::Refused("its pages have no home"))?.read();
        let mut tables = Vec::new();
        home.persist(&mut tables)?;
        let numbers: Vec<RawFd> = home.descriptors().iter().map(AsRawFd::as_raw_fd).collect();
        let files = numbers.try_into().map_err(|_| HandOverError::Refused("its home is not in files"))?;
        Ok(HomeLeft {
            home,
            turn: self.settling.turn_file().map(AsFd::as_fd),
            plan: &self.plan,
            files,
            tables,
        })
    }
}

impl HomeLeft<'_> {
    /// The plan for it.
    pub(crate) fn plan(&self) -> HomePlan {
        let SwapPlan { limit_bytes, reap, packing, settle, .. } = self.plan;
        HomePlan {
            files: self.files,
            turn: self.turn.map(|turn| turn.as_raw_fd()),
            limit_bytes: *limit_bytes,
            codec: packing.codec.to_string(),
            cpus: packing.cpus,
            reap: *reap,
            settle: *settle,
        }
    }

    /// The home's tables.
    pub(crate) fn tables(&self) -> &[u8] {
        &self.tables
    }

    /// The descriptors that the plan names.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.home.descriptors().into_iter().chain(self.turn).collect()
    }
}

impl HomePlan {
    /// Opens the home of a sandbox whose memory may become so large.
    pub(crate) fn open(
        self,
        _: &HostPaths,
        tables: &[u8],
        memory_most_bytes: u64,
        placed: &mut Placed,
    ) -> Result<Hibernation, HandOverError> {
        let mut take = |number| placed.take(number).ok_or(HandOverError::Damaged("a file is missing"));
        let [swap, reap, packed] = self.files;
        let [swap, reap, packed] = [(swap, "swap"), (reap, "reap"), (packed, "packed")]
            .map(|(number, name)| take(number).map(|fd| device(File::from(fd), name)));
        let turn = self.turn.map(&mut take).transpose()?.map(File::from);
        // The former VMM may have packed to its end.
        turn.as_ref().map(settling::let_go);
        let codec = self.codec.parse().map_err(|_| HandOverError::Damaged("its codec is unknown"))?;
        let packing = Packing { codec, encrypt: false, cpus: self.cpus };
        let swap_plan = SwapPlan {
            dir: None,
            limit_bytes: self.limit_bytes,
            reap: self.reap,
            packing: packing.clone(),
            settle: self.settle,
        };
        let end = frames_of(memory_most_bytes);
        let home = SwapHome::reopen([swap?, reap?, packed?], packing, tables, end, self.limit_bytes)?;
        let home = plan::with_engine(home, accelerator::open(codec)?);
        Ok(Hibernation {
            settling: Settling::new(self.settle, turn),
            ..Hibernation::new(Ok(home), swap_plan)
        })
    }
}

fn device(file: File, name: &str) -> Box<dyn Device> {
    injection::faulty(Box::new(file), name)
}
