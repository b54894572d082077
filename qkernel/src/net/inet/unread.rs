//! Bytes of a stream that the kernel has taken out of the host's socket before a program reads them, because they are to be in a
//! snapshot ([`super::own`]). They come before all that is still in the host's.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use machine::errno::Result;
use machine::mm::IoBuf;
use machine::sync::{Mutex, MutexGuard, Rank};

/// The bytes of one socket.
pub(super) struct Unread {
    /// Held while some of them are read, and what comes after them is read from the host.
    pieces: Mutex<Pieces>,
    /// How many there are.
    len: AtomicUsize,
    /// Tasks that are about to read from the host. One of them may sleep where it has seen that there are no bytes here.
    readers: AtomicU32,
}

/// The bytes, in pieces.
#[derive(Default)]
pub(super) struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that have been read.
    read: usize,
}

/// A task that is about to read from the host.
pub(super) struct Reader<'a>(&'a Unread);

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Unread {
    pub(super) const fn new() -> Self {
        let pieces = Pieces { pieces: VecDeque::new(), read: 0 };
        Self { pieces: Mutex::new(Rank::Inbox, pieces), len: AtomicUsize::new(0), readers: AtomicU32::new(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// While what it returns lives, no bytes are added.
    pub(super) fn reader(&self) -> Reader<'_> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        Reader(self)
    }

    /// The bytes, for a reader.
    pub(super) fn lock(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock()
    }

    /// The bytes, for who adds some while no task runs; `None`: a task sleeps in the middle of a read.
    pub(super) fn lock_to_add(&self) -> Option<MutexGuard<'_, Pieces>> {
        self.pieces.try_lock().filter(|_| self.readers.load(Ordering::SeqCst) == 0)
    }

    /// Adds bytes at the end.
    pub(super) fn add(&self, to: &mut Pieces, piece: Vec<u8>) {
        self.len.fetch_add(piece.len(), Ordering::SeqCst);
        to.pieces.push_back(piece);
    }

    /// Moves bytes to a buffer, as many as there is room for. Those that could not be moved to a bad address stay. `discards`: without
    /// a copy (`MSG_TRUNC`).
    pub(super) fn take(&self, from: &mut Pieces, buf: &mut IoBuf<'_>, discards: bool) -> Result<usize> {
        let mut taken = 0;
        while !buf.is_empty()
            && let Some(piece) = from.pieces.front()
        {
            let before = buf.done();
            let part = &piece[from.read..piece.len().min(from.read.saturating_add(buf.remaining()))];
            let result = if discards {
                buf.skip(part.len());
                Ok(())
            } else {
                buf.fill(part)
            };
            let moved = buf.done() - before;
            let is_whole = from.read + moved == piece.len();
            from.read += moved;
            taken += moved;
            self.len.fetch_sub(moved, Ordering::SeqCst);
            if is_whole {
                from.read = 0;
                drop(from.pieces.pop_front());
            }
            match result {
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
                Ok(()) => {}
            }
        }
        if from.pieces.is_empty() {
            from.pieces = VecDeque::new();
        }
        Ok(taken)
    }

    /// Copies bytes to a buffer, as many as there is room for, and leaves them.
    pub(super) fn look(from: &Pieces, buf: &mut IoBuf<'_>) -> Result<usize> {
        let (mut read, start) = (from.read, buf.done());
        for piece in &from.pieces {
            let part = &piece[read..piece.len().min(read.saturating_add(buf.remaining()))];
            match buf.fill(part) {
                Err(error) if buf.done() == start => return Err(error),
                Err(_) => break,
                Ok(()) => read = 0,
            }
        }
        Ok(buf.done() - start)
    }

    /// There is no connection any more that they were of.
    pub(super) fn clear(&self) {
        let mut pieces = self.lock();
        *pieces = Pieces::default();
        self.len.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use machine::errno::Errno;

    use super::*;

    fn with(pieces: &[&[u8]]) -> Unread {
        let unread = Unread::new();
        let mut to = unread.lock_to_add().unwrap();
        pieces.iter().for_each(|piece| unread.add(&mut to, piece.to_vec()));
        drop(to);
        unread
    }

    fn take(unread: &Unread, room: usize) -> Vec<u8> {
        let mut bytes = vec![0; room];
        let taken = unread.take(&mut unread.lock(), &mut IoBuf::kernel(&mut bytes), false).unwrap();
        bytes.truncate(taken);
        bytes
    }

    #[test]
    fn bytes_come_once_and_in_order() {
        let unread = with(&[b"abc", b"defg"]);
        assert_eq!((take(&unread, 2), unread.len()), (b"ab".to_vec(), 5));
        let mut seen = [0; 10];
        assert_eq!(Unread::look(&unread.lock(), &mut IoBuf::kernel(&mut seen)), Ok(5));
        assert_eq!((&seen[..5], unread.len()), (&b"cdefg"[..], 5));
        assert_eq!(Unread::look(&unread.lock(), &mut IoBuf::kernel(&mut seen[..3])), Ok(3));
        let mut to = unread.lock_to_add().unwrap();
        unread.add(&mut to, b"hi".to_vec());
        drop(to);
        assert_eq!(take(&unread, 3), b"cde");
        assert_eq!(take(&unread, 0), b"");
        assert_eq!((take(&unread, 9), unread.is_empty()), (b"fghi".to_vec(), true));
        assert_eq!(take(&unread, 9), b"");
    }

    #[test]
    fn bytes_are_discarded_without_a_copy() {
        let unread = with(&[b"abc", b"def"]);
        let mut bytes = [0; 4];
        let taken = unread.take(&mut unread.lock(), &mut IoBuf::kernel(&mut bytes), true);
        assert_eq!((taken, bytes, take(&unread, 9)), (Ok(4), [0; 4], b"ef".to_vec()));
    }

    #[test]
    fn bytes_for_a_bad_address_stay() {
        let unread = with(&[b"abc"]);
        // Of a buffer that is only drained nothing can be filled.
        let taken = unread.take(&mut unread.lock(), &mut IoBuf::constant(b"12"), false);
        assert_eq!((taken, take(&unread, 9)), (Err(Errno::EFAULT), b"abc".to_vec()));
    }

    #[test]
    fn nothing_is_added_while_somebody_reads() {
        let unread = with(&[b"abc"]);
        let reader = unread.reader();
        assert!(unread.lock_to_add().is_none());
        drop(reader);
        let reading = unread.lock();
        assert!(unread.lock_to_add().is_none());
        drop(reading);
        assert!(unread.lock_to_add().is_some());
        unread.clear();
        assert!(unread.is_empty() && take(&unread, 9).is_empty());
    }
}
