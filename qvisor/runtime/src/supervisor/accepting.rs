//! Connections are accepted while there are descriptors for them.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// How long no listener is looked at after there was no descriptor for a connection. The connection waits meanwhile.
const REST: Duration = Duration::from_millis(50);

/// See the module. A listener whose connection cannot be accepted stays ready, so that polling it would not wait.
#[derive(Debug, Default)]
pub(super) struct Accepting {
    rests_until: Option<Instant>,
}

impl Accepting {
    /// The listener, or a descriptor that polling skips.
    pub(super) fn polled(&self, listener: RawFd) -> RawFd {
        if self.rests_until.is_some() { -1 } else { listener }
    }

    /// The listener and the connection of a keeper, as they are polled.
    pub(super) fn polled_of_keeper(&self, [listener, line]: [RawFd; 2]) -> [RawFd; 2] {
        [self.polled(listener), line]
    }

    /// Until when listeners are not looked at.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.rests_until
    }

    /// Listeners are looked at again once the time has come.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.rests_until = self.rests_until.filter(|until| *until > now);
    }

    /// The next connection.
    pub(super) fn accept(&mut self, listener: &UnixListener) -> Option<UnixStream> {
        match listener.accept() {
            Ok((peer, _)) => Some(peer),
            Err(error) => {
                self.note(&error);
                None
            }
        }
    }

    fn note(&mut self, error: &io::Error) {
        let is_full =
            matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM));
        if is_full {
            self.rests_until = Some(Instant::now() + REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_listener_rests_while_there_are_no_descriptors() {
        let dir = testdir::TempDir::new();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut accepting = Accepting::default();
        assert!(accepting.accept(&listener).is_none(), "nobody has come");
        assert_eq!(accepting.polled(listener.as_raw_fd()), listener.as_raw_fd());
        accepting.note(&io::Error::from_raw_os_error(libc::EMFILE));
        assert_eq!(accepting.polled_of_keeper([listener.as_raw_fd(), 7]), [-1, 7]);
        let until = accepting.next_deadline().unwrap();
        accepting.go_on(until - REST);
        assert_eq!(accepting.next_deadline(), Some(until));
        accepting.go_on(until);
        assert_eq!((accepting.next_deadline(), accepting.polled(7)), (None, 7));
        let _peer = UnixStream::connect(dir.path().join("socket")).unwrap();
        assert!(accepting.accept(&listener).is_some());
    }
}
