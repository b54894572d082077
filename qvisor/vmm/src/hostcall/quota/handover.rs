//! The account of a quota on its way from one VMM to the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::{Held, Key, Ledger, Quota, nodes_most};
use crate::handover::HandOverError;
use crate::lock::{Mutex, Rank};

/// The account, but for what is held: each file says that of itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::hostcall) struct QuotaPlan {
    limit: u64,
    used: u64,
    charged: Vec<(Key, u64)>,
    nameless: Vec<Key>,
    by_blocks: Vec<Key>,
    renumbered: Vec<(Key, Key)>,
}

/// An open file's part of the account.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::hostcall) struct HeldPlan {
    key: Key,
    pending: u64,
}

impl Quota {
    /// Whether the account is at rest: no window shows a file, and no change is under way.
    pub(in crate::hostcall) fn may_be_left(&self) -> Result<(), HandOverError> {
        let ledger = self.lock();
        if !ledger.windows.is_empty() || !ledger.chunks.is_empty() || ledger.nodes_reserved > 0 {
            return Err(HandOverError::Refused("a file of a view with a quota is being changed"));
        }
        Ok(())
    }

    /// The plan for the next VMM, of an account at rest.
    pub(in crate::hostcall) fn plan(&self) -> QuotaPlan {
        let ledger = self.lock();
        QuotaPlan {
            limit: self.limit,
            used: ledger.used,
            charged: ledger.charged.iter().map(|(key, bytes)| (*key, *bytes)).collect(),
            nameless: ledger.nameless.iter().copied().collect(),
            by_blocks: ledger.by_blocks.iter().copied().collect(),
            renumbered: ledger.renumbered.iter().map(|(key, former)| (*key, *former)).collect(),
        }
    }
}

impl QuotaPlan {
    /// Opens the account again. Nothing is held yet.
    pub(in crate::hostcall) fn open(self) -> Arc<Quota> {
        let Self { limit, used, charged, nameless, by_blocks, renumbered } = self;
        let ledger = Ledger {
            used,
            charged: charged.into_iter().collect(),
            nameless: nameless.into_iter().collect(),
            by_blocks: by_blocks.into_iter().collect(),
            renumbered: renumbered.into_iter().collect::<HashMap<_, _>>(),
            ..Ledger::default()
        };
        Arc::new(Quota { limit, nodes_most: nodes_most(limit), ledger: Mutex::new(Rank::Quota, ledger) })
    }
}

impl Held {
    /// The plan for the next VMM.
    pub(in crate::hostcall) fn plan(&self) -> HeldPlan {
        HeldPlan { key: self.key, pending: self.pending.load(Ordering::Relaxed) }
    }
}

impl HeldPlan {
    /// Holds the node again, which the account knows by the number that it had when it was opened.
    pub(in crate::hostcall) fn open(self, quota: &Arc<Quota>) -> Held {
        *quota.lock().held.entry(self.key).or_default() += 1;
        Held { quota: Arc::clone(quota), key: self.key, pending: AtomicU64::new(self.pending) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    fn read_back<T: Serialize + for<'a> Deserialize<'a>>(plan: &T) -> T {
        serde_json::from_slice(&serde_json::to_vec(plan).unwrap()).unwrap()
    }

    #[test]
    fn an_account_goes_on_where_it_was() {
        let dir = testdir::TempDir::new();
        let path = dir.path().join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(&[1; 40_000]).unwrap();
        file.sync_all().unwrap();
        let quota = Quota::new(1 << 20);
        let held = quota.hold(file.as_fd()).unwrap();
        quota.made(file.as_fd());
        let (fits, bytes) = held.reserve(file.as_fd(), 40_000, 10_000).unwrap();
        held.wrote(file.as_fd(), bytes, false);
        assert!(fits == 10_000 && held.is_pending());
        let used = quota.used();
        let next = read_back(&quota.plan()).open();
        let holds = read_back(&held.plan()).open(&next);
        assert_eq!((next.used(), holds.is_pending()), (used, true));
        // Without a name it is charged as long as it is held.
        std::fs::remove_file(&path).unwrap();
        next.removed(file.as_fd());
        assert_eq!(next.used().1, 1);
        holds.let_go(file.as_fd());
        assert_eq!(next.used(), (0, 0));
    }

    #[test]
    fn one_that_shows_a_file_stays() {
        let dir = testdir::TempDir::new();
        let file = File::create(dir.path().join("file")).unwrap();
        let quota = Quota::new(1 << 20);
        quota.show(3, file.as_fd(), true).unwrap();
        assert!(quota.may_be_left().is_err());
        quota.hide(3, Some(file.as_fd()));
        assert!(quota.may_be_left().is_ok());
    }
}
