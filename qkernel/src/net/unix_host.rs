//! Unix sockets of the host, in volumes, that the sandbox may connect to: the VMM's broker does so, where there is one.
//!
//! The program's socket stays a Unix socket of ours; behind it is a connected socket of the host, as internet sockets have one.
//! Bytes and messages go through, descriptors and credentials do not.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::caller::CallerCtx;
use crate::fs::host_poll::readiness::Readiness;
use crate::fs::hostfs::HostInode;
use crate::fs::inode::Inode;
use crate::net::families::AF_UNIX;
use crate::net::inet::InetSocket;
use machine::errno::{Errno, Result};
use machine::sched::{self, wait::WaitQueue};
use machine::socket as hs;
use machine::time;

/// A caller that may wait asks a listener without a free place for a connection this often: nobody tells of one.
const ASK_AGAIN_NS: u64 = 5 * time::NSEC / 1000;

/// A socket of the host, and who connects to it.
#[derive(Clone)]
pub struct HostTarget {
    node: Arc<dyn Inode>,
    /// User, group, further groups.
    ids: Arc<[u32]>,
}

impl HostTarget {
    /// `None`: the node is none of the host's.
    pub fn new(cx: &CallerCtx<'_>, node: &Arc<dyn Inode>) -> Option<Self> {
        node.as_any().downcast_ref::<HostInode>()?;
        let creds = cx.caller.creds();
        let ids: Vec<u32> =
            [creds.euid, creds.egid].into_iter().chain(creds.groups.iter().copied()).collect();
        Some(Self { node: node.clone(), ids: ids.into() })
    }

    /// A connection of the type `kind`, whose events wake those who wait in `queue`. `wait`: the caller waits for a place in the
    /// listener's backlog, and calls again.
    pub fn connect(&self, kind: u32, queue: &Arc<WaitQueue>, wait: bool) -> Result<Arc<InetSocket>> {
        let node = self.node.as_any().downcast_ref::<HostInode>().ok_or(Errno::ECONNREFUSED)?;
        let readiness = Readiness::of_queue(queue.clone());
        match hs::connect_node(&*node.socket_handle()?, kind, readiness.token(), &self.ids) {
            Ok(handle) => Ok(Arc::new(InetSocket::connected(handle, readiness, AF_UNIX, kind))),
            Err(Errno::EAGAIN) if wait => {
                let until = time::monotonic_ns() + ASK_AGAIN_NS;
                sched::sleep_until(sched::Sleep::Interruptible, Some(until), || None::<()>)?;
                Err(Errno::EAGAIN)
            }
            Err(error) => Err(error),
        }
    }
}
