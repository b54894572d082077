//! Receiving through a filter of the program's (`SO_ATTACH_FILTER`).

use crate::net::filter::Filter;
use crate::net::inbox::{ReceiveHow, Received};
use crate::net::inet::InetSocket;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, account};
use machine::sched::wait::PollEvents;
use machine::socket as hs;

/// Longest datagram, and bytes of the header that a filter sees before it.
const DATAGRAM_MAX: usize = 65_535;
const UDP_HEADER_BYTES: usize = 8;
/// Messages that a filter may drop in one attempt to receive.
const DROPS_AT_ONCE: usize = 64;

impl InetSocket {
    /// Receives the next message that a filter keeps, cut to what it keeps of it. The others are taken off the queue, also by a look.
    pub(super) fn receive_filtered(
        &self,
        filter: &Filter,
        buf: &mut IoBuf<'_>,
        how: &ReceiveHow,
    ) -> Result<Received> {
        let mut bytes = account::filled(0u8, UDP_HEADER_BYTES + DATAGRAM_MAX)?;
        let port =
            |address: &[u8]| address.get(2..4).and_then(<[u8]>::first_chunk).map_or([0; 2], |port| *port);
        bytes[2..4].copy_from_slice(&port(&hs::name(&self.handle, false)?));
        for _ in 0..DROPS_AT_ONCE {
            // What is taken off the queue is what was looked at.
            let judging = self.judging.lock();
            let named = ReceiveHow { name: true, ..*how };
            let mut received =
                self.receive_all(&mut IoBuf::kernel(&mut bytes[UDP_HEADER_BYTES..]), &named)?;
            let whole = UDP_HEADER_BYTES + received.bytes;
            bytes[..2].copy_from_slice(&port(received.from.as_deref().unwrap_or_default()));
            bytes[4..6].copy_from_slice(&u16::try_from(whole).unwrap_or(u16::MAX).to_be_bytes());
            let kept = filter.keeps(&bytes[..whole]).min(whole);
            if kept == 0 {
                if how.peek {
                    let take = ReceiveHow { peek: false, ..*how };
                    self.receive_all(&mut IoBuf::kernel(&mut bytes[UDP_HEADER_BYTES..]), &take)?;
                }
                continue;
            }
            drop(judging);
            received.full = kept.saturating_sub(UDP_HEADER_BYTES);
            received.bytes = received.full.min(buf.remaining());
            buf.fill(&bytes[UDP_HEADER_BYTES..UDP_HEADER_BYTES + received.bytes])?;
            return Ok(received);
        }
        // There may be as many as somebody cares to send. Who waits is woken at once, and looks at its signals and its time before it
        // goes on; anybody else is told that there is more.
        self.readiness.tell(PollEvents::READABLE);
        Err(Errno::EAGAIN)
    }
}
