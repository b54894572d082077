//! The content of an inbox: bytes, and a record for each message or run of bytes.

use alloc::collections::VecDeque;

use crate::fs::pages::PageQueue;
use crate::net::inbox::urgent::Mark;
use crate::net::inbox::{Envelope, RECORD_COST, ReceiveHow, Received};
use crate::net::passing::Rights;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, account};

/// Bytes that arrived together, or the rest of them.
pub(super) struct Record {
    pub(super) len: usize,
    pub(super) envelope: Envelope,
    pub(super) mark: Mark,
}

/// The bytes of an inbox, and their records.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) data: PageQueue,
    pub(super) records: VecDeque<Record>,
    /// How many records have left it: the number of the first one that is there.
    pub(super) gone: u64,
    /// Records that are marks alone.
    pub(super) taken: usize,
}

impl Queue {
    /// Makes room for another record; `ENOMEM`.
    pub(super) fn reserve(&mut self) -> Result<()> {
        account::check(RECORD_COST)?;
        self.records.try_reserve(1).map_err(|_| Errno::ENOMEM)
    }

    /// Reads bytes of a stream into `buf` and counts them in `out`, from the record `at` on, of which `skip` bytes are left out and
    /// which begins at the byte `start`. Result: the files that were taken with them.
    pub(super) fn read_bytes(
        &mut self,
        (mut at, skip, mut start): (usize, usize, usize),
        buf: &mut IoBuf<'_>,
        how: &ReceiveHow,
        out: &mut Received,
    ) -> Result<Rights> {
        let mut inside = skip;
        let mut taken = Rights::default();
        while let Some(record) = self.records.get(at) {
            if how.split_senders && record.envelope.creds != out.creds {
                break;
            }
            if out.bytes > 0 && record.mark != Mark::None {
                // Bytes end at the mark; an older one is passed.
                if record.mark == Mark::Urgent || self.urgent().is_none() {
                    out.at_mark = true;
                    break;
                }
                if how.peek {
                    at += 1;
                    start += 1;
                } else {
                    self.consume(1);
                }
                continue;
            }
            let len = record.len - inside;
            inside = 0;
            let from = if how.peek { start + skip + out.bytes } else { 0 };
            let moved = match self.data.peek(from, buf, len) {
                Ok(moved) => moved,
                Err(error) if out.bytes == 0 => return Err(error),
                Err(_) => break,
            };
            out.bytes += moved;
            let Some(record) = self.records.get_mut(at) else { break };
            let has_rights = !record.envelope.rights.is_empty();
            if how.peek {
                out.files = record.envelope.rights.copy();
                at += 1;
            } else {
                taken = record.envelope.rights.leave();
                self.consume(moved);
            }
            if has_rights || moved < len || buf.is_empty() {
                break;
            }
        }
        Ok(taken)
    }

    /// The record that a look `skip` bytes further on begins in: its place, the bytes of it that are left out, and where it begins
    /// in the data. `None`: there is nothing that far. An empty message at the very place counts.
    pub(super) fn first_behind(&self, skip: Option<usize>, stream: bool) -> Option<(usize, usize, usize)> {
        let (mut skip, mut start) = (skip.unwrap_or(0), 0);
        for (at, record) in self.records.iter().enumerate() {
            if skip < record.len || (skip == 0 && !stream) {
                return Some((at, skip, start));
            }
            skip -= record.len;
            start += record.len;
        }
        None
    }

    /// Takes the first record out, but not its bytes.
    pub(super) fn pop(&mut self) -> Option<Record> {
        let first = self.records.pop_front()?;
        self.gone += 1;
        Some(first)
    }

    /// Takes bytes of the first record out, and the record with its last one.
    pub(super) fn consume(&mut self, count: usize) {
        self.data.discard(count);
        if let Some(first) = self.records.front_mut() {
            first.len -= count.min(first.len);
            if first.len == 0 {
                self.taken -= usize::from(first.mark == Mark::Taken);
                self.pop();
            }
        }
    }
}

impl Record {
    /// Whether bytes with this envelope may follow in the same record.
    pub(super) fn joins(&self, envelope: &Envelope) -> bool {
        self.mark == Mark::None && self.envelope.rights.is_empty() && self.envelope.creds == envelope.creds
    }
}
