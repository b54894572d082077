//! The further containers that the kernel has been told of and has not taken yet.
//!
//! Whoever wants one has its request put here, and posts an `EVENT_CREATE` with the id that it gets. The kernel takes the request by one
//! hostcall. What becomes of the container comes in reports, by that id.
#![deny(unsafe_code)]

use std::collections::BTreeMap;

use abi::report::ContainerId;

use crate::errno::Errno;
use crate::handover::{HandOverError, LEAVES};
use crate::hostcall::host_io::HostIo;
use crate::lock::{Mutex, Rank};
use crate::request::Request;

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    requests: BTreeMap<ContainerId, Request>,
    /// Nobody is taken in.
    is_closed: bool,
}

/// See the module. Any thread may call; nothing waits.
#[derive(Debug)]
pub struct ContainerQueue(Mutex<Waiting>);

impl Default for ContainerQueue {
    fn default() -> Self {
        Self(Mutex::new(Rank::ContainerQueue, Waiting::default()))
    }
}

impl ContainerQueue {
    /// Adds a container; result: its id, which no other one has had, and how many bytes its records have. The error says why it is
    /// none.
    pub fn add(&self, request: Request) -> Result<(ContainerId, i64), &'static str> {
        let mut waiting = self.0.lock();
        if waiting.is_closed {
            return Err(LEAVES);
        }
        waiting.last += 1;
        let (id, len) = (ContainerId(waiting.last), request.len());
        waiting.requests.insert(id, request);
        Ok((id, len))
    }

    /// Adds a container that the kernel has had under another VMM, by the id that it had. The error says why it is none.
    pub fn add_again(&self, id: ContainerId, request: Request) -> Result<(), &'static str> {
        let mut waiting = self.0.lock();
        if waiting.is_closed {
            return Err(LEAVES);
        }
        if id.0 > waiting.last || waiting.requests.contains_key(&id) {
            return Err("it is no container that was there, or comes in already");
        }
        waiting.requests.insert(id, request);
        Ok(())
    }

    /// Drops the request for a container that is wanted no more, if the kernel has not taken it; whether it had not.
    pub fn drop_request(&self, id: ContainerId) -> bool {
        self.0.lock().requests.remove(&id).is_some()
    }

    /// How many bytes the records of a container have.
    pub(crate) fn len(&self, id: ContainerId) -> Result<i64, Errno> {
        self.0.lock().requests.get(&id).map(Request::len).ok_or(Errno(libc::ESRCH))
    }

    /// Takes nobody in any more, unless one waits: so the next VMM needs no more than the last id.
    pub(crate) fn close(&self) -> Result<(), HandOverError> {
        let mut waiting = self.0.lock();
        if !waiting.requests.is_empty() {
            return Err(HandOverError::Refused("a container comes in"));
        }
        waiting.is_closed = true;
        Ok(())
    }

    /// Takes containers in again.
    pub(crate) fn reopen(&self) {
        self.0.lock().is_closed = false;
    }

    /// The last id that was given.
    pub(crate) fn last(&self) -> ContainerId {
        ContainerId(self.0.lock().last)
    }

    /// The queue of a kernel that has had containers up to this id.
    pub(crate) fn following(ContainerId(last): ContainerId) -> Result<Self, HandOverError> {
        // Ids that are yet to be given are above it.
        if last > u64::MAX / 2 {
            return Err(HandOverError::Damaged("it has had too many containers"));
        }
        let waiting = Waiting { last, ..Waiting::default() };
        Ok(Self(Mutex::new(Rank::ContainerQueue, waiting)))
    }

    /// Leaves the ids up to this one to containers that the kernel has had. Called before any is added.
    pub fn begin_after(&self, last: u64) {
        // Ids that are yet to be given are above it.
        self.0.lock().last = last.min(u64::MAX / 2);
    }

    /// The kernel takes the request that it was told of, and with it the handles of its streams and mounts.
    pub(crate) fn take(&self, id: ContainerId, io: &HostIo) -> Result<Vec<u8>, Errno> {
        let request = self.0.lock().requests.remove(&id);
        request.ok_or(Errno(libc::ESRCH))?.give(io)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use abi::mount::{Handles, HostKind};

    use super::*;
    use crate::boot::{BootSpec, Mount};

    fn request(root: &str) -> Request {
        let files = Handles { root: 0, lower: None };
        let root_mount = Mount::of_host(HostKind::Root, files, "/".into(), 0);
        let spec = BootSpec { args: vec![b"sh".to_vec()], mounts: vec![root_mount], ..BootSpec::default() };
        Request::for_container(spec.container_records(), vec![File::open(root).unwrap().into()]).unwrap()
    }

    fn io() -> HostIo {
        HostIo::new(Arc::new(|_| {})).unwrap()
    }

    #[test]
    fn a_request_is_taken_once_by_its_own_id() {
        let (queue, io) = (ContainerQueue::default(), io());
        let [(first, len), (second, _)] = [(); 2].map(|()| queue.add(request("/")).unwrap());
        assert!(first != second && first != ContainerId::FIRST && second != ContainerId::FIRST);
        assert_eq!(queue.take(ContainerId(99), &io).unwrap_err(), Errno(libc::ESRCH));
        assert_eq!(i64::try_from(queue.take(second, &io).unwrap().len()), Ok(len));
        assert_eq!(queue.take(second, &io).unwrap_err(), Errno(libc::ESRCH));
        assert_eq!(io.files().len(), 1);
        assert!(queue.take(first, &io).is_ok());
        let (third, _) = queue.add(request("/")).unwrap();
        assert!(third != first && third != second, "an id comes again");
    }

    #[test]
    fn another_vmm_gives_the_next_id_and_nobody_comes_in_meanwhile() {
        let (queue, io) = (ContainerQueue::default(), io());
        let (first, _) = queue.add(request("/")).unwrap();
        assert!(queue.close().is_err(), "one comes in");
        assert!(queue.take(first, &io).is_ok());
        queue.close().unwrap();
        assert!(queue.add(request("/")).is_err());
        let next = ContainerQueue::following(queue.last()).unwrap();
        assert_eq!(next.add(request("/")).unwrap().0.0, first.0 + 1);
        queue.reopen();
        assert!(queue.add(request("/")).is_ok());
        assert!(ContainerQueue::following(ContainerId(u64::MAX)).is_err());
    }

    #[test]
    fn one_that_was_there_comes_again_by_its_id_and_no_other_one_does() {
        let (queue, io) = (ContainerQueue::default(), io());
        queue.begin_after(3);
        queue.add_again(ContainerId(2), request("/")).unwrap();
        assert!(queue.add_again(ContainerId(2), request("/")).is_err(), "it comes in already");
        assert!(queue.add_again(ContainerId(4), request("/")).is_err(), "it was never there");
        assert_eq!(queue.len(ContainerId(3)), Err(Errno(libc::ESRCH)));
        let len = queue.len(ContainerId(2)).unwrap();
        assert_eq!(i64::try_from(queue.take(ContainerId(2), &io).unwrap().len()), Ok(len));
        assert_eq!(queue.add(request("/")).unwrap().0, ContainerId(4));
    }

    #[test]
    fn one_that_is_wanted_no_more_is_not_there() {
        let (queue, io) = (ContainerQueue::default(), io());
        let (id, _) = queue.add(request("/")).unwrap();
        assert!(queue.drop_request(id) && !queue.drop_request(id));
        assert_eq!(queue.take(id, &io).unwrap_err(), Errno(libc::ESRCH));
        assert!(io.files().is_empty());
    }
}
