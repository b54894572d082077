//! A byte queue over user frames, in which pipes, sockets and terminals hold bytes for their readers. The frames count
//! as the container's memory and are bounded by it; each user bounds its own queue.

use alloc::collections::VecDeque;

use machine::errno::{Errno, Result};
#[cfg(not(test))]
use machine::mm::frames::{self, FrameRef};
use machine::mm::{IoBuf, account};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// One page of data.
#[cfg(not(test))]
struct DataPage(FrameRef);

#[cfg(not(test))]
impl DataPage {
    fn new() -> Result<Self> {
        frames::alloc_any().map(Self).ok_or(Errno::ENOMEM)
    }
    fn copy_to(&self, buf: &mut IoBuf<'_>, at: usize, len: usize) -> Result<()> {
        buf.fill_from_frame(self.0.frame(), at, len)
    }
    fn copy_from(&mut self, buf: &mut IoBuf<'_>, at: usize, len: usize) -> Result<()> {
        buf.drain_to_frame(self.0.frame(), at, len)
    }
}

#[cfg(test)]
struct DataPage(alloc::boxed::Box<[u8; PAGE_BYTES]>);

#[cfg(test)]
impl DataPage {
    #[allow(clippy::unnecessary_wraps)]
    fn new() -> Result<Self> {
        Ok(Self(alloc::boxed::Box::new([0; PAGE_BYTES])))
    }
    fn copy_to(&self, buf: &mut IoBuf<'_>, at: usize, len: usize) -> Result<()> {
        buf.fill(self.0.get(at..at + len).ok_or(Errno::EINVAL)?)
    }
    fn copy_from(&mut self, buf: &mut IoBuf<'_>, at: usize, len: usize) -> Result<()> {
        buf.drain(self.0.get_mut(at..at + len).ok_or(Errno::EINVAL)?)
    }
}

/// First in, first out. Pages are allocated as data comes and freed as it goes; one is kept for reuse.
#[derive(Default)]
pub struct PageQueue {
    pages: VecDeque<DataPage>,
    /// Offset of the first byte in the first page.
    head: usize,
    len: usize,
    spare: Option<DataPage>,
}

impl PageQueue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { pages: VecDeque::new(), head: 0, len: 0, spare: None }
    }

    /// Bytes it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the next `count` bytes of `buf`. A partial count when memory ends or the buffer is bad halfway.
    pub fn push(&mut self, buf: &mut IoBuf<'_>, count: usize) -> Result<usize> {
        let mut done = 0;
        while done < count {
            let end = self.head + self.len;
            let (page, inside) = (end / PAGE_BYTES, end % PAGE_BYTES);
            let part = (PAGE_BYTES - inside).min(count - done);
            match self.page_for(page).and_then(|page| page.copy_from(buf, inside, part)) {
                Ok(()) => {
                    self.len += part;
                    done += part;
                }
                Err(error) => {
                    self.trim();
                    return if done == 0 { Err(error) } else { Ok(done) };
                }
            }
        }
        Ok(done)
    }

    /// Appends all of `bytes`, or nothing.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let before = self.len;
        match self.push(&mut IoBuf::constant(bytes), bytes.len()) {
            Ok(done) if done == bytes.len() => Ok(()),
            result => {
                self.cut(before);
                Err(result.err().unwrap_or(Errno::ENOMEM))
            }
        }
    }

    fn page_for(&mut self, index: usize) -> Result<&mut DataPage> {
        while self.pages.len() <= index {
            if self.pages.len() == self.pages.capacity() {
                account::check(2 * self.pages.len() * size_of::<DataPage>())?;
                self.pages.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            }
            let page = match self.spare.take() {
                Some(page) => page,
                None => DataPage::new()?,
            };
            self.pages.push_back(page);
        }
        self.pages.get_mut(index).ok_or(Errno::ENOMEM)
    }

    /// Copies up to `count` bytes from `skip` on into `buf`, leaving them queued.
    pub fn peek(&self, skip: usize, buf: &mut IoBuf<'_>, count: usize) -> Result<usize> {
        let count = count.min(self.len.saturating_sub(skip)).min(buf.remaining());
        let mut done = 0;
        while done < count {
            let at = self.head + skip + done;
            let inside = at % PAGE_BYTES;
            let part = (PAGE_BYTES - inside).min(count - done);
            let page = self.pages.get(at / PAGE_BYTES).ok_or(Errno::EIO)?;
            match page.copy_to(buf, inside, part) {
                Ok(()) => done += part,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Moves up to `count` bytes into `buf`.
    pub fn pop(&mut self, buf: &mut IoBuf<'_>, count: usize) -> Result<usize> {
        let done = self.peek(0, buf, count)?;
        self.discard(done);
        Ok(done)
    }

    /// Forgets the first `count` bytes.
    pub fn discard(&mut self, count: usize) {
        let count = count.min(self.len);
        self.head += count;
        self.len -= count;
        let gone = if self.len == 0 { self.pages.len() } else { self.head / PAGE_BYTES };
        for page in self.pages.drain(..gone) {
            self.spare = Some(page);
        }
        self.head = if self.len == 0 { 0 } else { self.head % PAGE_BYTES };
    }

    /// Forgets everything behind the first `len` bytes.
    pub fn cut(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.trim();
    }

    /// Frees pages behind the last byte.
    fn trim(&mut self) {
        if self.len == 0 {
            self.head = 0;
        }
        self.pages.truncate((self.head + self.len).div_ceil(PAGE_BYTES));
    }

    /// Forgets everything, the spare page too.
    pub fn clear(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn take(queue: &mut PageQueue, count: usize) -> Vec<u8> {
        let mut out = vec![0; count];
        let got = queue.pop(&mut IoBuf::kernel(&mut out), count).unwrap_or(0);
        out.truncate(got);
        out
    }

    #[test]
    fn bytes_come_out_in_order_across_pages() {
        let mut queue = PageQueue::new();
        let data: Vec<u8> = (0..20_000u32).map(|i| (i * 7 / 3).to_le_bytes()[0]).collect();
        let mut out = Vec::new();
        let mut sent = 0;
        for step in [1usize, 4095, 4097, 10, 9000, 2797] {
            queue.push_bytes(&data[sent..sent + step]).unwrap();
            sent += step;
            out.extend(take(&mut queue, step / 2));
        }
        out.extend(take(&mut queue, 100_000));
        assert_eq!(out, data);
        assert!(queue.is_empty() && queue.pages.is_empty() && queue.head == 0);
    }

    #[test]
    fn peek_leaves_and_cut_takes_back() {
        let mut queue = PageQueue::new();
        queue.push_bytes(b"hello world").unwrap();
        let mut out = [0u8; 5];
        assert_eq!(queue.peek(6, &mut IoBuf::kernel(&mut out), 5), Ok(5));
        assert_eq!(&out, b"world");
        queue.cut(5);
        assert_eq!(take(&mut queue, 100), b"hello");
    }

    #[test]
    fn memory_follows_the_data() {
        let mut queue = PageQueue::new();
        queue.push_bytes(&vec![1; 10 * PAGE_BYTES]).unwrap();
        assert_eq!(queue.pages.len(), 10);
        queue.discard(9 * PAGE_BYTES + 1);
        assert_eq!(queue.pages.len(), 1);
        queue.discard(PAGE_BYTES);
        assert!(queue.pages.is_empty() && queue.spare.is_some());
    }
}
