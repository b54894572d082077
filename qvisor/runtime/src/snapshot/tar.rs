//! Tar files, as far as snapshots that travel need them: headers of POSIX (*ustar*), with extended ones (*pax*) before them where a value
//! does not fit, and GNU's sparse files, version 1.0. What is read may have been written by an enemy.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use abi::PAGE_SIZE;

use super::digest::each_part;

const BLOCK: usize = 512;
/// Most bytes of an extended header: room for the attributes of a file.
const PAX_MAX: u64 = 1 << 20;
/// Most pieces of a sparse file.
const PIECES_MAX: u64 = 1 << 22;
/// Bytes that are copied at a time.
const AT_ONCE: usize = 1 << 20;
/// Where the fields of a header are, and their lengths.
const PATH: (usize, usize) = (0, 100);
const MODE: (usize, usize) = (100, 8);
const USER: (usize, usize) = (108, 8);
const GROUP: (usize, usize) = (116, 8);
const BYTES: (usize, usize) = (124, 12);
const TIME: (usize, usize) = (136, 12);
const SUM: (usize, usize) = (148, 8);
const KIND: (usize, usize) = (156, 1);
const LINK: (usize, usize) = (157, 100);
const MAGIC: (usize, usize) = (257, 8);
const MAJOR: (usize, usize) = (329, 8);
const MINOR: (usize, usize) = (337, 8);
const PREFIX: (usize, usize) = (345, 155);
/// Names of records that are not a file's own.
const SPARSE_NAME: &[u8] = b"GNU.sparse.name";
const SPARSE_BYTES: &[u8] = b"GNU.sparse.realsize";
const SPARSE_VERSION: [(&[u8], &[u8]); 2] = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0")];

/// The kind of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    File,
    /// Another name of a file that came before
    Link,
    Symlink,
    CharacterDevice,
    BlockDevice,
    Directory,
    Fifo,
}

const KINDS: [(Kind, u8); 7] = [
    (Kind::File, b'0'),
    (Kind::Link, b'1'),
    (Kind::Symlink, b'2'),
    (Kind::CharacterDevice, b'3'),
    (Kind::BlockDevice, b'4'),
    (Kind::Directory, b'5'),
    (Kind::Fifo, b'6'),
];

/// An entry's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub path: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    pub user: u32,
    pub group: u32,
    /// Bytes of data that follow.
    pub bytes: u64,
    /// The target of a link.
    pub link: Vec<u8>,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Further records, by name.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Head {
    /// The header of a file for its owner alone, made at no time.
    pub fn of_file(path: &str) -> Self {
        Self { path: path.into(), mode: 0o600, ..Self::default() }
    }

    /// The value of a record.
    pub fn record(&self, name: &[u8]) -> Option<&[u8]> {
        self.records.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    fn encode(&self) -> Vec<u8> {
        let mut records = self.records.clone();
        let mut far = |name: &str, value: &[u8]| records.push((name.into(), value.into()));
        for (name, value) in [("path", &self.path), ("linkpath", &self.link)] {
            if value.len() > PATH.1 {
                far(name, value);
            }
        }
        for (name, value, field) in
            [("size", self.bytes, BYTES), ("uid", self.user.into(), USER), ("gid", self.group.into(), GROUP)]
        {
            if octal(value, field.1).is_none() {
                far(name, value.to_string().as_bytes());
            }
        }
        let mut out = Vec::new();
        if !records.is_empty() {
            let body: Vec<u8> = records.iter().flat_map(|(name, value)| line(name, value)).collect();
            let head = Self { path: b"pax".into(), mode: 0o600, bytes: body.len() as u64, ..Self::default() };
            out.extend_from_slice(&head.block(b'x'));
            out.extend_from_slice(&body);
            out.resize(out.len().next_multiple_of(BLOCK), 0);
        }
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or(b'0', |(_, byte)| *byte);
        out.extend_from_slice(&self.block(kind));
        out
    }

    fn block(&self, kind: u8) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let numbers = [
            (MODE, self.mode.into()),
            (USER, self.user.into()),
            (GROUP, self.group.into()),
            (BYTES, self.bytes),
            (TIME, 0),
            (MAJOR, self.device.0.into()),
            (MINOR, self.device.1.into()),
        ];
        for (field, value) in numbers {
            put(&mut block, field, &octal(value, field.1).unwrap_or_default());
        }
        put(&mut block, PATH, &self.path);
        put(&mut block, LINK, &self.link);
        put(&mut block, KIND, &[kind]);
        put(&mut block, MAGIC, b"ustar\x0000");
        let sum = format!("{:06o}\0 ", sum(&block));
        put(&mut block, SUM, sum.as_bytes());
        block
    }

    /// The header of a block, with what the extended one before it says. `None`: it is none, or of a kind that is not read.
    fn decode(block: &[u8; BLOCK], records: Vec<(Vec<u8>, Vec<u8>)>) -> Option<Self> {
        let byte = get(block, KIND).first().copied().map(|byte| if byte == 0 { b'0' } else { byte })?;
        let kind = KINDS.iter().find(|(_, of)| *of == byte).map(|(kind, _)| *kind)?;
        let number = |field| number(get(block, field));
        let (path, prefix) = (text(get(block, PATH)), text(get(block, PREFIX)));
        let path = if prefix.is_empty() { path.to_vec() } else { [prefix, b"/", path].concat() };
        let mut head = Self {
            path,
            kind,
            mode: u32::try_from(number(MODE)?).ok()? & 0o7777,
            user: u32::try_from(number(USER)?).ok()?,
            group: u32::try_from(number(GROUP)?).ok()?,
            bytes: number(BYTES)?,
            link: text(get(block, LINK)).to_vec(),
            device: (u32::try_from(number(MAJOR)?).ok()?, u32::try_from(number(MINOR)?).ok()?),
            records: Vec::new(),
        };
        for (name, value) in records {
            match &*name {
                b"path" => head.path = value,
                b"linkpath" => head.link = value,
                b"size" => head.bytes = decimal(&value)?,
                b"uid" => head.user = u32::try_from(decimal(&value)?).ok()?,
                b"gid" => head.group = u32::try_from(decimal(&value)?).ok()?,
                _ => head.records.push((name, value)),
            }
        }
        if kind != Kind::File {
            head.bytes = 0;
        }
        if let Some(name) = head.record(SPARSE_NAME) {
            head.path = name.to_vec();
        }
        Some(head)
    }
}

fn put(block: &mut [u8; BLOCK], (at, len): (usize, usize), value: &[u8]) {
    block.iter_mut().skip(at).take(len).zip(value).for_each(|(to, from)| *to = *from);
}

fn get(block: &[u8; BLOCK], (at, len): (usize, usize)) -> &[u8] {
    block.get(at..at + len).unwrap_or_default()
}

/// A number as a field of so many bytes has it, if it fits.
fn octal(value: u64, len: usize) -> Option<Vec<u8>> {
    let digits = format!("{value:0width$o}", width = len - 1);
    (digits.len() < len).then(|| digits.into_bytes())
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn number(field: &[u8]) -> Option<u64> {
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0_u64, |sum, digit| match digit {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

/// The sum of a header's bytes, its own field taken for blanks.
fn sum(block: &[u8; BLOCK]) -> u64 {
    let of = |(at, byte): (usize, &u8)| {
        if (SUM.0..SUM.0 + SUM.1).contains(&at) { u64::from(b' ') } else { u64::from(*byte) }
    };
    block.iter().enumerate().map(of).sum()
}

/// A record of an extended header: its length, which counts itself, name and value.
fn line(name: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = name.len() + value.len() + 3;
    let mut len = rest;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    [len.to_string().as_bytes(), b" ", name, b"=", value, b"\n"].concat()
}

/// The records of an extended header.
fn records(mut body: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    while !body.is_empty() {
        let digits = body.split(|byte| *byte == b' ').next()?;
        let len = usize::try_from(decimal(digits)?).ok()?;
        let (record, rest) = body.split_at_checked(len)?;
        let record = record.get(digits.len() + 1..)?.strip_suffix(b"\n")?;
        let at = record.iter().position(|byte| *byte == b'=')?;
        found.push((record.get(..at)?.to_vec(), record.get(at + 1..)?.to_vec()));
        body = rest;
    }
    Some(found)
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the tar file {why}"))
}

/// Writes a tar file.
pub(super) struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    pub fn new(to: W) -> Self {
        Self { to }
    }

    /// Writes a header, whose data, if it has any, come next.
    pub fn head(&mut self, head: &Head) -> io::Result<()> {
        self.to.write_all(&head.encode())
    }

    /// Writes an entry with its data.
    pub fn entry(&mut self, head: Head, data: &[u8]) -> io::Result<()> {
        self.head(&Head { bytes: data.len() as u64, ..head })?;
        self.to.write_all(data)?;
        self.pad(data.len() as u64)
    }

    /// Writes an entry with data of which the header says how many they are.
    pub fn entry_from(&mut self, head: &Head, mut data: impl Read) -> io::Result<()> {
        self.head(head)?;
        let copied = io::copy(&mut data, &mut self.to)?;
        if copied != head.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.pad(copied)
    }

    fn pad(&mut self, bytes: u64) -> io::Result<()> {
        let missing = bytes.next_multiple_of(BLOCK as u64) - bytes;
        io::copy(&mut io::repeat(0).take(missing), &mut self.to).map(drop)
    }

    /// Writes a file with its data. Pages of zeros are left out, whether the file has them or holes, so that the same content gives the same
    /// bytes.
    pub fn file(&mut self, mut head: Head, file: &File) -> io::Result<()> {
        let (mut pieces, len) = pieces(file)?;
        if pieces == [(0, len)] || len == 0 {
            self.head(&Head { bytes: len, ..head })?;
            self.data(file, &pieces)?;
            return self.pad(len);
        }
        let data: u64 = pieces.iter().map(|(_, len)| len).sum();
        if pieces.last().is_none_or(|(at, bytes)| at + bytes < len) {
            // By which others know where it ends.
            pieces.push((len, 0));
        }
        let mut map = format!("{}\n", pieces.len());
        pieces.iter().for_each(|(at, bytes)| map.push_str(&format!("{at}\n{bytes}\n")));
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(BLOCK), 0);
        let name = std::mem::replace(&mut head.path, b"GNUSparseFile.0/file".into());
        head.records.extend(SPARSE_VERSION.map(|(name, value)| (name.into(), value.into())));
        head.records.push((SPARSE_NAME.into(), name));
        head.records.push((SPARSE_BYTES.into(), len.to_string().into_bytes()));
        head.bytes = map.len() as u64 + data;
        self.head(&head)?;
        self.to.write_all(&map)?;
        self.data(file, &pieces)?;
        self.pad(head.bytes)
    }

    fn data(&mut self, file: &File, pieces: &[(u64, u64)]) -> io::Result<()> {
        let mut room = vec![0; AT_ONCE];
        for (at, bytes) in pieces {
            let mut done = 0;
            while done < *bytes {
                let count = usize::try_from(bytes - done).unwrap_or(AT_ONCE).min(AT_ONCE);
                let part = room.get_mut(..count).unwrap_or_default();
                file.read_exact_at(part, at + done)?;
                self.to.write_all(part)?;
                done += count as u64;
            }
        }
        Ok(())
    }

    /// Ends the file.
    pub fn end(mut self) -> io::Result<W> {
        self.to.write_all(&[0; 2 * BLOCK])?;
        self.to.flush()?;
        Ok(self.to)
    }
}

/// The pieces of a file that are not pages of zeros, and its length.
fn pieces(file: &File) -> io::Result<(Vec<(u64, u64)>, u64)> {
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    let page_bytes = usize::try_from(PAGE_SIZE).unwrap_or(BLOCK);
    let len = each_part(file, |start, bytes| {
        for (number, page) in (0..).zip(bytes.chunks(page_bytes)) {
            let at = start + number * PAGE_SIZE;
            match pieces.last_mut() {
                _ if page.iter().all(|byte| *byte == 0) => {}
                Some((from, len)) if *from + *len == at => *len += page.len() as u64,
                _ => pieces.push((at, page.len() as u64)),
            }
        }
        Ok::<_, io::Error>(())
    })?;
    Ok((pieces, len))
}

/// Reads a tar file. As a reader it gives the data of the entry that it is at.
pub(super) struct Reader<R> {
    from: R,
    /// Bytes that were read so far.
    at: u64,
    /// Bytes of the entry's data that were not read yet, and of what fills its last block.
    left: u64,
    fill: u64,
    /// Room for data on its way to a file, once there is any.
    room: Vec<u8>,
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let most = to.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self.from.read(to.get_mut(..most).unwrap_or_default())?;
        if got == 0 && most > 0 {
            return Err(bad("is cut off"));
        }
        (self.at, self.left) = (self.at + got as u64, self.left - got as u64);
        Ok(got)
    }
}

impl<R: Read> Reader<R> {
    pub fn new(from: R) -> Self {
        Self { from, at: 0, left: 0, fill: 0, room: Vec::new() }
    }

    /// Where in the file the data of its entry begin, if none of them were read yet.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next entry. `None`: there is no further one.
    pub fn next(&mut self) -> io::Result<Option<Head>> {
        let mut known = Vec::new();
        loop {
            self.left += std::mem::take(&mut self.fill);
            io::copy(self, &mut io::sink())?;
            let mut block = [0; BLOCK];
            self.left = BLOCK as u64;
            self.read_exact(&mut block)?;
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            if number(get(&block, SUM)) != Some(sum(&block)) {
                return Err(bad("is damaged: the sum of a header is wrong"));
            }
            let bytes = || number(get(&block, BYTES)).ok_or_else(|| bad("has a header that cannot be"));
            match get(&block, KIND) {
                [b'x'] => {
                    self.expect(bytes()?);
                    let mut body = Vec::new();
                    if self.left > PAX_MAX || self.read_to_end(&mut body).is_err() {
                        return Err(bad("has an extended header that is too long"));
                    }
                    known = records(&body).ok_or_else(|| bad("has an extended header that cannot be"))?;
                }
                // Of all entries: none of those counts here.
                [b'g'] => self.expect(bytes()?),
                _ => {
                    let head = Head::decode(&block, known);
                    let head = head.ok_or_else(|| bad("has a header that cannot be"))?;
                    self.expect(head.bytes);
                    return Ok(Some(head));
                }
            }
        }
    }

    /// So many bytes of data come now.
    fn expect(&mut self, bytes: u64) {
        (self.left, self.fill) =
            (bytes, bytes.checked_next_multiple_of(BLOCK as u64).map_or(0, |end| end - bytes));
    }

    /// Reads the data of an entry, `most` bytes at most.
    pub fn all(&mut self, most: u64) -> io::Result<Vec<u8>> {
        if self.left > most {
            return Err(bad("has an entry that is too long"));
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the data of a file to a new one. It has `most` bytes at most.
    pub fn file(&mut self, head: &Head, to: &File, most: u64) -> io::Result<()> {
        let too_long = || bad("has an entry that is too long");
        let Some(len) = head.record(SPARSE_BYTES) else {
            let len = self.left;
            return if len > most { Err(too_long()) } else { self.piece(to, 0, len) };
        };
        let wrong = || bad("has a sparse file that cannot be");
        if SPARSE_VERSION.iter().any(|(name, value)| head.record(name) != Some(value)) {
            return Err(wrong());
        }
        let len = decimal(len).ok_or_else(wrong)?;
        if len > most {
            return Err(too_long());
        }
        to.set_len(len)?;
        let mut map_bytes = 0;
        let count = self.map_number(&mut map_bytes)?;
        if count > PIECES_MAX {
            return Err(wrong());
        }
        let (mut pieces, mut behind) = (Vec::new(), 0);
        for _ in 0..count {
            let (at, bytes) = (self.map_number(&mut map_bytes)?, self.map_number(&mut map_bytes)?);
            let end = at.checked_add(bytes).filter(|end| *end <= len).ok_or_else(wrong)?;
            if at < behind {
                return Err(wrong());
            }
            pieces.push((at, bytes));
            behind = end;
        }
        let fill = map_bytes.next_multiple_of(BLOCK as u64) - map_bytes;
        io::copy(&mut self.by_ref().take(fill), &mut io::sink())?;
        pieces.into_iter().try_for_each(|(at, bytes)| self.piece(to, at, bytes))
    }

    /// A number in the map of a sparse file.
    fn map_number(&mut self, map_bytes: &mut u64) -> io::Result<u64> {
        let mut digits = Vec::new();
        loop {
            let mut byte = [0];
            self.read_exact(&mut byte)?;
            *map_bytes += 1;
            match byte {
                [b'\n'] => return decimal(&digits).ok_or_else(|| bad("has a sparse file that cannot be")),
                [digit] if digits.len() < 20 => digits.push(digit),
                _ => return Err(bad("has a sparse file that cannot be")),
            }
        }
    }

    fn piece(&mut self, to: &File, at: u64, bytes: u64) -> io::Result<()> {
        let (mut room, mut done) = (std::mem::take(&mut self.room), 0);
        room.resize(AT_ONCE, 0);
        while done < bytes {
            let count = usize::try_from(bytes - done).unwrap_or(AT_ONCE).min(AT_ONCE);
            let part = room.get_mut(..count).unwrap_or_default();
            self.read_exact(part)?;
            to.write_all_at(part, at + done)?;
            done += count as u64;
        }
        self.room = room;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
