//! Descriptors on their way from one process to another, each with the number that it had and is to have again: a set of `epoll(7)`
//! knows what it watches by number.
//!
//! They go in messages of one size, each of which is answered by a byte: the host bounds how many descriptors of a user are on
//! their way.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::descriptor_passing::{self, Received};

/// Most descriptors beside one message.
const BATCH: usize = 64;
/// The count of descriptors and their numbers, of 4 bytes each.
const MESSAGE_BYTES: usize = 4 * (1 + BATCH);
/// How long the other side may take for all that it sends, or for an answer.
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
    let (mut all, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    loop {
        let (mut message, mut len, mut fds) = ([0; MESSAGE_BYTES], 0, Vec::new());
        while len < MESSAGE_BYTES {
            wait(socket, deadline)?;
            match descriptor_passing::receive_now(socket, &mut message[len..], &mut fds) {
                None => {}
                Some(Received { len: 0, .. }) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(received) => len += received.len,
            }
            if fds.len() > BATCH {
                return Err(io::ErrorKind::InvalidData.into());
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

/// Waits until something has come.
fn wait(socket: &UnixStream, deadline: Instant) -> io::Result<()> {
    let patience = deadline.saturating_duration_since(Instant::now());
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
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
        let wanted: BTreeSet<RawFd> = all.iter().map(|one| one.number).collect();
        if wanted.len() < all.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "two descriptors have one number"));
        }
        let above = wanted.last().map_or(0, |last| last.saturating_add(1)).max(3);
        let (mut placed, mut others, mut pending) = (Self::default(), Vec::new(), BTreeMap::new());
        for Numbered { number, fd } in all {
            match number {
                0.. => _ = pending.insert(fd.as_raw_fd(), (number, fd)),
                // Out of the way.
                _ => others.push(Numbered { number, fd: rustix::io::fcntl_dupfd_cloexec(&fd, above)? }),
            }
        }
        while let Some((&first, _)) = pending.first_key_value() {
            // Each waits for the next one to leave the number that it is to have.
            let mut waiting = vec![first];
            while let Some((&last, (number, _))) = waiting.last().and_then(|last| pending.get_key_value(last))
            {
                if *number == last || !pending.contains_key(number) {
                    break;
                }
                if *number != first {
                    waiting.push(*number);
                    continue;
                }
                // They wait for each other.
                if let Some((number, fd)) = pending.remove(&first) {
                    let moved = rustix::io::fcntl_dupfd_cloexec(&fd, above)?;
                    pending.insert(moved.as_raw_fd(), (number, moved));
                }
                waiting.remove(0);
                break;
            }
            for current in waiting.into_iter().rev() {
                if let Some((number, fd)) = pending.remove(&current) {
                    placed.0.insert(number, move_to(number, fd)?);
                }
            }
        }
        Ok((placed, others))
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

/// The descriptor under this number, which nobody uses.
fn move_to(number: RawFd, fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() == number {
        return Ok(fd);
    }
    let moved = rustix::io::fcntl_dupfd_cloexec(&fd, number)?;
    // The lowest one that is free.
    if moved.as_raw_fd() == number {
        return Ok(moved);
    }
    let why = format!("the number {number} of a descriptor is in use");
    Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
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

    /// Descriptors whose numbers are those that the others have come with: in a row, in a circle, and as they are.
    #[test]
    fn descriptors_that_have_each_others_numbers_change_places() {
        let dir = testdir::TempDir::new();
        let files: Vec<File> =
            (0..9).map(|at| File::create(dir.path().join(at.to_string())).unwrap()).collect();
        let inodes: Vec<u64> = files.iter().map(|file| file.metadata().unwrap().ino()).collect();
        let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let order = [1, 2, 0, 4, 3, 5, 7, 8, 6];
        let all = files.into_iter().zip(order);
        let all = all.map(|(file, at)| Numbered { number: numbers[at], fd: file.into() }).collect();
        let (mut placed, _) = Placed::place(all).unwrap();
        for (inode, at) in inodes.iter().zip(order) {
            let fd = placed.take(numbers[at]).unwrap();
            assert_eq!((fd.as_raw_fd(), File::from(fd).metadata().unwrap().ino()), (numbers[at], *inode));
        }
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
