//! The host's tables of sockets, for `/proc/net` in a network that the sandbox shares with others: there a program sees all of
//! the network's sockets, as it would without a sandbox.
//!
//! The VMM opened them before it went to jail, and they tell of the network that the sandbox's sockets are in. They are read as they
//! are asked for, a piece at a time.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use machine::errno::Result;
use machine::file;
use machine::host::Handle;
use machine::host_fact::HostFact;
use machine::mm::IoBuf;
use machine::mm::account;
use machine::sched;

/// Bytes that are asked for at a time.
const PIECE_BYTES: usize = 16 << 10;
/// Most bytes of a table that are read, some 28,000 lines.
const TABLE_MAX_BYTES: u64 = 4 << 20;
/// Lines that are longer are no sockets.
const LINE_MAX_BYTES: usize = 512;

static TABLES: HostFact<BTreeMap<&'static str, Handle>> = HostFact::unknown();

/// Takes the tables, by their names in `/proc/net`.
pub fn take(tables: impl IntoIterator<Item = (&'static str, Handle)>) {
    TABLES.set(tables.into_iter().collect());
}

/// A line of a table of Internet sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Both ends, as the table shows them.
    pub local: &'a str,
    pub remote: &'a str,
    /// From the state to the retransmissions.
    pub state: [&'a str; 4],
    pub uid: u32,
}

impl<'a> Line<'a> {
    /// `None`: a heading, or a part of a line, of a table that changed while it was read.
    fn parse(line: &'a [u8], address_digits: usize) -> Option<Self> {
        let mut fields = core::str::from_utf8(line).ok()?.split_ascii_whitespace();
        fields.next()?.strip_suffix(':')?;
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let end = |text: &'a str| {
            let (address, port) = text.split_once(':')?;
            let fits = address.len() == address_digits && port.len() == 4 && is_hex(address) && is_hex(port);
            fits.then_some(text)
        };
        let (local, remote) = (end(fields.next()?)?, end(fields.next()?)?);
        let mut numbers =
            || fields.next().filter(|text| text.bytes().all(|b| b == b':' || b.is_ascii_hexdigit()));
        let state = [numbers()?, numbers()?, numbers()?, numbers()?];
        let uid = fields.next()?.parse().ok()?;
        Some(Self { local, remote, state, uid })
    }
}

/// Shows `each` the lines of a table, whose addresses have so many digits; none where the network is the sandbox's own.
pub fn lines(name: &str, address_digits: usize, mut each: impl FnMut(&Line<'_>)) -> Result<()> {
    let Some(tables) = TABLES.get() else { return Ok(()) };
    let Some(table) = tables.get(name) else { return Ok(()) };
    let mut piece = account::filled(0u8, PIECE_BYTES)?;
    let mut rest = account::vec(2 * LINE_MAX_BYTES)?;
    let mut at = 0;
    while at < TABLE_MAX_BYTES {
        let got = file::read(table, at, &mut IoBuf::kernel(&mut piece))?;
        let Some(bytes) = piece.get(..got).filter(|bytes| !bytes.is_empty()) else { break };
        at += got as u64;
        split(&mut rest, bytes, |line| {
            Line::parse(line, address_digits).iter().for_each(&mut each);
        });
        // The host is asked often for a long table.
        sched::go_on()?;
    }
    Ok(())
}

/// Cuts bytes into lines; `rest` keeps the beginning of one that goes on in the next bytes.
fn split(rest: &mut Vec<u8>, bytes: &[u8], mut each: impl FnMut(&[u8])) {
    for part in bytes.split_inclusive(|byte| *byte == b'\n') {
        // Of a line that is too long the end is not taken for a line: it has fewer fields.
        if rest.len() + part.len() > LINE_MAX_BYTES {
            rest.clear();
        } else {
            rest.extend_from_slice(part);
        }
        if part.ends_with(b"\n") {
            each(rest);
            rest.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADING: &[u8] =
        b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
    const LISTENS: &[u8] = b"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 00000000c0ffee00 100 0 0 10 0\n";

    #[test]
    fn lines_are_read_whatever_the_pieces() {
        let table = [HEADING, LISTENS, LISTENS].concat();
        for size in [1, 7, 150, table.len()] {
            let (mut rest, mut found) = (Vec::new(), 0);
            for piece in table.chunks(size) {
                split(&mut rest, piece, |line| {
                    if let Some(line) = Line::parse(line, 8) {
                        assert_eq!((line.local, line.remote), ("0100007F:1F90", "00000000:0000"));
                        assert_eq!(line.state, ["0A", "00000000:00000000", "00:00000000", "00000000"]);
                        assert_eq!(line.uid, 1000);
                        found += 1;
                    }
                });
            }
            assert_eq!(found, 2, "in pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_line_is_left_out() {
        let table =
            [&[b'x'; 2 * LINE_MAX_BYTES][..], b"\n", HEADING, &LISTENS[30..], b"\xff\n\n", LISTENS].concat();
        let (mut rest, mut found) = (Vec::new(), 0);
        split(&mut rest, &table, |line| found += u32::from(Line::parse(line, 8).is_some()));
        assert_eq!((found, rest.len()), (1, 0));
        assert!(Line::parse(LISTENS, 32).is_none(), "an address of the other family");
    }
}
