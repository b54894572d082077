//! Descriptors on their way from one process to another, each with the number that it had and is to have again: a set of `epoll(7)`
//! knows what it watches by number.
//!
//! They go in messages of one size, each of which is answered by a byte: the host bounds how many descriptors of a user are on
//! their way.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::descriptor_passing::{self, Received};

/// Most descriptors beside one message.
const BATCH: usize = 64;
/// The count of descriptors and their numbers, of 4 bytes each.
const MESSAGE_BYTES: usize = 4 * (1 + BATCH);
/// How long the other side may take for a message or an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The answer to a message.
const TAKEN: u8 = 1;
/// Most descriptors that are taken.
const MOST: usize = 1 << 20;

/// A descriptor, and the number that it had where it comes from. Those below 0 say what it is to a [`Plan`](crate::successor::Plan) instead.
#[derive(Debug)]
pub struct Numbered {
    /// The number.
    pub number: RawFd,
    /// The descriptor, under whatever number it has here.
    pub fd: OwnedFd,
}

/// Sends descriptors, each with a number.
pub(crate) fn send(socket: &UnixStream, all: &[(RawFd, BorrowedFd<'_>)]) -> io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    // The one without any ends it.
    for batch in all.chunks(BATCH).chain([&[][..]]) {
        let mut message = [0; MESSAGE_BYTES];
        let count = u32::try_from(batch.len()).unwrap_or(0).to_le_bytes();
        let numbers = batch.iter().map(|(number, _)| number.to_le_bytes());
        for (place, word) in message.as_chunks_mut::<4>().0.iter_mut().zip([count].into_iter().chain(numbers))
        {
            *place = word;
        }
        let fds: Vec<BorrowedFd<'_>> = batch.iter().map(|(_, fd)| *fd).collect();
        let sent = descriptor_passing::send(socket.as_fd(), &fds, &message, 0)?;
        (&*socket).write_all(&message[sent..])?;
        let mut answer = [0];
        (&*socket).read_exact(&mut answer)?;
    }
    Ok(())
}

/// Takes what [`send`] sends. The sender may be hostile.
pub(crate) fn receive(socket: &UnixStream) -> io::Result<Vec<Numbered>> {
    let mut all = Vec::new();
    loop {
        let (mut message, mut len, mut fds) = ([0; MESSAGE_BYTES], 0, Vec::new());
        while len < MESSAGE_BYTES {
            wait(socket)?;
            match descriptor_passing::receive_now(socket, &mut message[len..], &mut fds) {
                None => {}
                Some(Received { len: 0, .. }) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(received) => len += received.len,
            }
        }
        let mut words = message.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word));
        let count = words.next().and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
        if count != fds.len() || count > BATCH || all.len() + count > MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        all.extend(words.zip(fds).map(|(number, fd)| Numbered { number, fd }));
        (&*socket).write_all(&[TAKEN])?;
        if count == 0 {
            return Ok(all);
        }
    }
}

fn wait(socket: &UnixStream) -> io::Result<()> {
    let patience = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&patience)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Descriptors that have the numbers they had in the former process.
#[derive(Debug, Default)]
pub struct Placed(BTreeMap<RawFd, OwnedFd>);

impl Placed {
    /// Gives each descriptor its number; those below 0 come back by themselves. None of the numbers is in use here, but by the
    /// descriptors themselves.
    pub(crate) fn place(all: Vec<Numbered>) -> io::Result<(Self, Vec<Numbered>)> {
        let above = all.iter().map(|one| one.number).max().unwrap_or(0).max(2).saturating_add(1);
        // Out of the way first, so that no number is in use by another one of them.
        let mut moved = Vec::with_capacity(all.len());
        for Numbered { number, fd } in all {
            moved.push((number, rustix::io::fcntl_dupfd_cloexec(&fd, above)?));
        }
        let (mut placed, mut others) = (BTreeMap::new(), Vec::new());
        for (number, fd) in moved {
            if number < 0 {
                others.push(Numbered { number, fd });
                continue;
            }
            let fd = rustix::io::fcntl_dupfd_cloexec(&fd, number)?;
            // The lowest one that is free.
            if fd.as_raw_fd() != number {
                let why = format!("the number {number} of a descriptor is in use");
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
            placed.insert(number, fd);
        }
        Ok((Self(placed), others))
    }

    /// The descriptor with this number, once.
    pub(crate) fn take(&mut self, number: RawFd) -> Option<OwnedFd> {
        self.0.remove(&number)
    }

    /// Whether all have been taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Sends from another thread, as both sides wait for each other.
    fn pass(numbers: &[RawFd], fds: &[File]) -> io::Result<Vec<Numbered>> {
        let (ours, theirs) = UnixStream::pair()?;
        std::thread::scope(|scope| {
            let all: Vec<_> = numbers.iter().zip(fds).map(|(number, fd)| (*number, fd.as_fd())).collect();
            let sender = scope.spawn(move || send(&theirs, &all));
            let received = receive(&ours);
            drop(ours);
            sender.join().unwrap().and(received)
        })
    }

    #[test]
    fn descriptors_get_the_numbers_they_had() {
        let dir = testdir::TempDir::new();
        let files: Vec<File> =
            (0..BATCH * 2 + 3).map(|at| File::create(dir.path().join(at.to_string())).unwrap()).collect();
        // The first numbers are those that others of them have when they come.
        let numbers: Vec<RawFd> =
            (0..files.len()).map(|at| 700 + RawFd::try_from(at * 7 % 131).unwrap()).collect();
        let received = pass(&numbers, &files).unwrap();
        assert_eq!(received.len(), files.len());
        let (mut placed, others) = Placed::place(received).unwrap();
        assert!(others.is_empty());
        for (number, file) in numbers.iter().zip(&files) {
            let fd = placed.take(*number).unwrap();
            assert_eq!(fd.as_raw_fd(), *number);
            assert_eq!(File::from(fd).metadata().unwrap().ino(), file.metadata().unwrap().ino());
        }
        assert!(placed.is_empty());
    }

    #[test]
    fn a_number_in_use_or_given_twice_is_refused() {
        let null = || File::open("/dev/null").unwrap();
        let twice = pass(&[900, 900], &[null(), null()]).unwrap();
        assert!(Placed::place(twice).is_err());
        let used = null();
        let taken = pass(&[used.as_raw_fd()], &[null()]).unwrap();
        assert!(Placed::place(taken).unwrap_err().to_string().contains("is in use"));
        let (placed, others) = Placed::place(pass(&[-7], &[null()]).unwrap()).unwrap();
        assert_eq!((placed.is_empty(), others[0].number), (true, -7));
    }

    #[test]
    fn a_sender_that_lies_is_refused() {
        for message in [[9; MESSAGE_BYTES].as_slice(), &[0xff; MESSAGE_BYTES], &[0; 5]] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (&theirs).write_all(message).unwrap();
            drop(theirs);
            assert!(receive(&ours).is_err());
        }
    }
}
