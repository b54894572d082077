//! Descriptor passing between processes (`SCM_RIGHTS`), and senders' credentials.

use alloc::sync::Arc;

use crate::fs::caller::{Caller, PidOf};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most files in one message (`SCM_MAX_FD`).
pub const FILES_MAX: usize = 253;

/// `struct ucred`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, Immutable, IntoBytes)]
pub struct Ucred {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Ucred {
    /// The credentials that are shown when there is no peer.
    pub const NOBODY: Self = Self { pid: 0, uid: u32::MAX, gid: u32::MAX };
    /// Those of a message whose sender was not noted, as nobody had asked for that: the ids that stand for unknown ones.
    pub const UNKNOWN: Self = Self { pid: 0, uid: 65534, gid: 65534 };
}

/// The credentials of a sender or a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SenderCreds {
    pub process: PidOf,
    /// The process's [`Caller::process_serial`]; 0: of none that is known.
    pub serial: u64,
    pub uid: u32,
    pub gid: u32,
}

/// The credentials of a peer, as they were when it connected or listened.
#[derive(Clone, Default)]
pub struct PeerCreds {
    pub creds: SenderCreds,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
}

impl PeerCreds {
    /// Those of a task.
    pub fn of(caller: &dyn Caller) -> Self {
        Self { creds: SenderCreds::of(caller), groups: caller.creds().groups.clone() }
    }
}

impl SenderCreds {
    /// Process and effective ids of a task.
    pub fn of(caller: &dyn Caller) -> Self {
        let creds = caller.creds();
        let serial = caller.process_serial();
        Self { process: PidOf::of(caller), serial, uid: creds.euid, gid: creds.egid }
    }

    /// Process and real ids, which messages carry.
    pub fn real(caller: &dyn Caller) -> Self {
        let creds = caller.creds();
        let serial = caller.process_serial();
        Self { process: PidOf::of(caller), serial, uid: creds.uid, gid: creds.gid }
    }

    /// Returns the credentials in the form that the caller is shown.
    pub fn seen_by(self, caller: &dyn Caller) -> Ucred {
        Ucred { pid: self.process.seen_by(caller), uid: self.uid, gid: self.gid }
    }
}
