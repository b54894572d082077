//! The companions of a container's leash: the leashes of processes that `exec` added to the container.
//!
//! On Linux the end of a PID namespace's first process is seen when nobody else is left in it (pid_namespaces(7)), and
//! engines rely on that: once Docker has heard of the end of the first process it listens for no other's, so `docker exec` would wait
//! for ever, and containerd's shim for runc goes with it. So the container's leash ends last.
//!
//! A FIFO in the container's directory counts them: each companion holds its writing end for its life, from before its
//! process is asked for, and the host closes it whatever ends the companion. A companion waits for the VMM, so who waits for
//! all companions does so when the VMM has gone. For a leash that was killed, whose end is seen when the VMM has ended, the VMM
//! waits for those whose process had begun ([`ExecRelay::outlive`](crate::exec_relay::ExecRelay::outlive)).
#![deny(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use crate::directory::Directory;
use crate::process;

const FIFO: &str = "execs";
/// How long they may take, each of which ends on its own once its process has. One that was stopped cannot.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// How long it may take from one's closing its files, which is what can be seen of it, until its parent has been told that it ended: the host
/// may have others to run in between.
pub const SETTLING: Duration = Duration::from_millis(100);

/// The reading end. See the module.
#[derive(Debug)]
pub struct Companions(File);

impl Companions {
    /// Those of the container whose directory this is; nobody yet.
    pub fn new(container: &Directory) -> io::Result<Self> {
        Ok(Self::inherited(container.make_fifo(FIFO)?))
    }

    /// The reading end as another process gave it.
    #[must_use]
    pub fn inherited(reading: OwnedFd) -> Self {
        Self(reading.into())
    }

    /// The reading end, for another process.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// Makes the caller one of them as long as it holds the result; `None`: nobody waits for it.
    #[must_use]
    pub fn join(container: &Directory) -> Option<OwnedFd> {
        container.fifo_to_write(FIFO).ok()
    }

    fn is_any(&self) -> bool {
        // Nothing is ever written, so there is an end or nothing.
        (&self.0).read(&mut [0; 64]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Waits until all have ended, but not for ever.
    pub fn outlive(&self) {
        self.outlive_if(self.is_any());
    }

    /// Waits as [`Self::outlive`] does when the VMM was killed, which nobody has seen coming: one of them may have gone just before.
    pub fn outlive_killed(&self) {
        // With nothing to be read it has ended for its reader once there was a writer, and there is none any more (pipe(7)).
        let [was_any] = process::wait_readable([self.0.as_raw_fd()], 0);
        self.outlive_if(was_any || self.is_any());
    }

    fn outlive_if(&self, was_any: bool) {
        let start = Instant::now();
        while self.is_any() && start.elapsed() < PATIENCE {
            let _ = process::wait_readable([self.0.as_raw_fd()], 100);
        }
        if was_any {
            thread::sleep(SETTLING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testdir::TempDir;

    #[test]
    fn who_waits_sees_the_last_one_go() {
        let place = TempDir::new();
        let directory = Directory::make(&place.path().join("container")).unwrap();
        assert!(Companions::join(&directory).is_none());
        let companions = Companions::new(&directory).unwrap();
        assert!(!companions.is_any());
        let start = Instant::now();
        companions.outlive();
        companions.outlive_killed();
        assert!(start.elapsed() < SETTLING, "there was nobody");
        let (one, other) = (Companions::join(&directory).unwrap(), Companions::join(&directory).unwrap());
        drop(one);
        assert!(companions.is_any());
        let again = Companions::inherited(companions.descriptor().unwrap());
        let ends = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            drop(other);
        });
        again.outlive();
        assert!(!companions.is_any());
        ends.join().unwrap();
        let start = Instant::now();
        companions.outlive_killed();
        assert!(start.elapsed() >= SETTLING, "the last one may have gone just before");
        let stays = Companions::join(&directory).unwrap();
        assert!(companions.is_any());
        drop((companions, again));
        assert!(Companions::join(&directory).is_none(), "nobody reads");
        drop(stays);
    }
}
