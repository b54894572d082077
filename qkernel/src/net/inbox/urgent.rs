//! The urgent byte of a stream (`MSG_OOB`). It lies among the others, in a record of its own, which marks the place even when the
//! byte has been received.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::net::families::MsgFlags;
use crate::net::inbox::queue::{Queue, Record};
use crate::net::inbox::{Envelope, Inbox, ReceiveHow, Received};
use crate::net::passing::Rights;
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;

/// The mark on a record of a stream that is, or was, the urgent byte.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mark {
    #[default]
    None,
    /// The urgent byte (`MSG_OOB`); there is one at most.
    Urgent,
    /// One that was received on its own: the mark is still there.
    Taken,
}

impl Inbox {
    /// Whether there is an urgent byte (`POLLPRI`).
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire)
    }

    /// Whether the next byte is the urgent one, or was (`SIOCATMARK`).
    pub fn is_at_mark(&self) -> bool {
        let queue = self.queue.lock();
        let mark = |at: usize| queue.records.get(at).map(|record| record.mark);
        match mark(0) {
            Some(Mark::Urgent) => true,
            Some(Mark::Taken) => queue.urgent().is_none() || mark(1) == Some(Mark::Urgent),
            _ => false,
        }
    }

    /// One attempt to append the urgent byte, the one that is left in the buffer. One before it is as others from now on.
    pub fn push_urgent(
        &self,
        buf: &mut IoBuf<'_>,
        envelope: &mut Option<Envelope>,
        limit: usize,
    ) -> Result<usize> {
        let mut queue = self.queue.lock();
        self.check_room(limit)?;
        queue.reserve()?;
        let moved = queue.data.push(buf, 1)?;
        if moved == 0 {
            return Err(Errno::EFAULT);
        }
        if let Some(at) = queue.urgent() {
            queue.records[at].mark = Mark::None;
        }
        let envelope = envelope.take().unwrap_or_default();
        queue.records.push_back(Record { len: moved, envelope, mark: Mark::Urgent });
        self.mirror(&queue);
        drop(queue);
        self.wait.wake(PollEvents::READABLE | PollEvents::PRI);
        Ok(moved)
    }

    /// Takes the urgent byte out of the stream, or looks at it. `EINVAL`: there is none.
    pub fn receive_urgent(&self, buf: &mut IoBuf<'_>, how: ReceiveHow) -> Result<Received> {
        // What came with the byte is lost, as on Linux; it goes once the lock has gone.
        let mut rights = Rights::default();
        let mut queue = self.queue.lock();
        let at = queue.urgent().filter(|_| !how.urgent_inline).ok_or(Errno::EINVAL)?;
        let offset = queue.records.iter().take(at).map(|record| record.len).sum();
        let bytes = queue.data.peek(offset, buf, 1)?;
        let creds = queue.records[at].envelope.creds;
        if !how.peek {
            let record = &mut queue.records[at];
            record.mark = Mark::Taken;
            rights = record.envelope.rights.leave();
            queue.taken += 1;
            // Of several marks in front the last one counts.
            while queue.is_passed(1, false) && queue.records[0].mark == Mark::Taken {
                queue.consume(1);
            }
            self.mirror(&queue);
        }
        drop(queue);
        drop(rights);
        self.after_receive();
        Ok(Received { bytes, full: 1, creds, flags: MsgFlags::OOB, ..Received::default() })
    }
}

impl Queue {
    /// The record of the urgent byte.
    pub(super) fn urgent(&self) -> Option<usize> {
        self.records.iter().rposition(|record| record.mark == Mark::Urgent)
    }

    /// Whether a receive that begins at a record leaves it out.
    pub(super) fn is_passed(&self, at: usize, urgent_inline: bool) -> bool {
        self.records.get(at).is_some_and(|record| match record.mark {
            Mark::None => false,
            Mark::Urgent => !urgent_inline,
            Mark::Taken => true,
        })
    }

    /// Begins a receive: marks in front are passed, and the urgent byte, which has not been asked for, is lost, or one of the
    /// others.
    pub(super) fn pass_marks(&mut self, urgent_inline: bool) -> Vec<Record> {
        let mut passed = Vec::new();
        while self.is_passed(0, urgent_inline)
            && let Some(record) = self.pop()
        {
            self.data.discard(record.len);
            self.taken -= usize::from(record.mark == Mark::Taken);
            passed.push(record);
        }
        if let Some(first) = self.records.front_mut() {
            first.mark = Mark::None;
        }
        passed
    }
}
