//! Serves the calls of host files: from a copied call to its result.

use abi::HostCall;

use super::decode::{Request, decode};
use super::host_io::HostIo;
use crate::errno::Errno;
use crate::guest_memory::GuestMemory;

impl HostIo {
    /// Serves one copied call; result: as the guest sees it.
    pub fn serve<M: GuestMemory + ?Sized>(&self, call: &HostCall, memory: &M) -> i64 {
        decode(call, memory).and_then(|request| self.carry_out(request)).unwrap_or_else(Errno::as_result)
    }

    /// Carries out a checked request.
    pub fn carry_out(&self, request: Request<'_>) -> Result<i64, Errno> {
        match request {
            Request::Read { .. }
            | Request::Write { .. }
            | Request::PollArm { .. }
            | Request::PollNow { .. }
            | Request::SubmitFsync { .. }
            | Request::SubmitWarm { .. }
            | Request::TtyWinsize { .. } => self.carry_out_stream(request),
            Request::Stat { .. }
            | Request::StatList { .. }
            | Request::ReadLink { .. }
            | Request::SetAttr { .. }
            | Request::StatFs { .. }
            | Request::GetXattr { .. }
            | Request::SetXattr { .. }
            | Request::ListXattr { .. }
            | Request::RemoveXattr { .. } => self.carry_out_attribute(request),
            Request::WatchOpen | Request::WatchAdd { .. } | Request::WatchRemove { .. } => {
                self.carry_out_watch(request)
            }
            Request::LockBytes { .. } | Request::LockQuery { .. } | Request::LockWhole { .. } => {
                self.carry_out_lock(request)
            }
            Request::Place { .. }
            | Request::Placed
            | Request::LostStream
            | Request::LostConnection { .. } => self.carry_out_tie(request),
            Request::Socket(request) => self.carry_out_socket(request),
            _ => self.carry_out_node(request),
        }
    }
}
