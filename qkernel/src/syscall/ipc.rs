//! The parts that the calls of the three kinds of System V objects have in common.

use crate::fs::caller::PidOf;
use crate::ipc::Who;
use crate::ipc::perm::Perm;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(super) const IPC_RMID: i32 = 0;
pub(super) const IPC_SET: i32 = 1;
pub(super) const IPC_STAT: i32 = 2;
pub(super) const IPC_INFO: i32 = 3;

/// `struct ipc64_perm`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
pub(super) struct PermView {
    key: i32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    cuid: u32,
    cgid: u32,
    pub(super) mode: u32,
    sequence: u16,
    pad: [u16; 3],
    unused: [u64; 2],
}
const _: () = assert!(size_of::<PermView>() == 48);

impl PermView {
    /// The permissions of the object with this id as `IPC_STAT` shows them; `mode` has the bits beyond the permissions.
    pub(super) fn new(id: i32, perm: &Perm, mode: u32) -> Self {
        let Perm { key, uid, gid, cuid, cgid, .. } = *perm;
        let sequence = u16::try_from(id >> 15).unwrap_or(0);
        Self { key, uid, gid, cuid, cgid, mode, sequence, pad: [0; 3], unused: [0; 2] }
    }
}

/// The caller of a call.
pub(super) fn who(cx: &Ctx<'_>) -> Who {
    Who::of(&**cx.task)
}

/// A process's id as the caller knows it.
pub(super) fn pid_for(cx: &Ctx<'_>, pid: PidOf) -> i32 {
    pid.seen_by(&**cx.task).cast_signed()
}

/// Reads the structure of `IPC_SET`.
pub(super) fn read<T: machine::mm::Pod>(cx: &Ctx<'_>, addr: UserAddr) -> Result<T> {
    cx.user().read(addr)
}

/// Refuses ids below 0, which name nothing. `EINVAL`.
pub(super) fn check_id(id: i32) -> Result<()> {
    if id < 0 { Err(Errno::EINVAL) } else { Ok(()) }
}
