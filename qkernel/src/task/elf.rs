//! ELF images: checked headers and the segments to map. Pure; a fuzz target runs it on anything.

use alloc::vec::Vec;

use abi::layout::USER_MAX;
use machine::errno::{Errno, Result};
use machine::mm::{PAGE, Prot, page_down, page_up};

/// Bytes of the file that [`Image::parse`] wants to see of the header.
pub const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// Most program headers (64 KiB of them, as on Linux).
const PROGRAM_HEADERS_MAX: usize = 65536 / PROGRAM_HEADER_BYTES;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const EM_X86_64: u16 = 62;

/// The fixed header's facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether it is linked for address 0 and may be loaded anywhere.
    pub position_independent: bool,
    pub entry: u64,
    pub program_headers_offset: u64,
    pub program_headers: usize,
}

/// A `PT_LOAD` segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub vaddr: u64,
    pub offset: u64,
    pub file_bytes: u64,
    pub memory_bytes: u64,
    pub prot: Prot,
}

/// The files and addresses to load from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub header: Header,
    /// In ascending order of addresses, not overlapping in pages they start in.
    pub segments: Vec<Segment>,
    /// Offset and length of the interpreter's path in the file.
    pub interpreter: Option<(u64, u64)>,
    pub executable_stack: bool,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl Header {
    /// Checks the file's first [`HEADER_BYTES`]; `ENOEXEC` for anything but an x86-64 program.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < HEADER_BYTES || &bytes[..4] != b"\x7fELF" || bytes[4] != 2 || bytes[5] != 1 {
            return Err(Errno::ENOEXEC);
        }
        let kind = u16_at(bytes, 16);
        let count = u16_at(bytes, 56) as usize;
        let fits =
            (1..=PROGRAM_HEADERS_MAX).contains(&count) && u16_at(bytes, 54) as usize == PROGRAM_HEADER_BYTES;
        if !matches!(kind, ET_EXEC | ET_DYN) || u16_at(bytes, 18) != EM_X86_64 || !fits {
            return Err(Errno::ENOEXEC);
        }
        let table = u64_at(bytes, 32).checked_add((count * PROGRAM_HEADER_BYTES) as u64);
        if table.is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(Errno::ENOEXEC);
        }
        Ok(Self {
            position_independent: kind == ET_DYN,
            entry: u64_at(bytes, 24),
            program_headers_offset: u64_at(bytes, 32),
            program_headers: count,
        })
    }

    /// Bytes of the program headers.
    pub fn program_header_bytes(&self) -> usize {
        self.program_headers * PROGRAM_HEADER_BYTES
    }
}

impl Image {
    /// Reads the program headers; `ENOEXEC` when they make no sense.
    pub fn parse(header: Header, table: &[u8]) -> Result<Self> {
        if table.len() < header.program_header_bytes() {
            return Err(Errno::ENOEXEC);
        }
        let mut image = Self { header, segments: Vec::new(), interpreter: None, executable_stack: true };
        for entry in table.chunks_exact(PROGRAM_HEADER_BYTES).take(header.program_headers) {
            match u32_at(entry, 0) {
                PT_LOAD => image.add_segment(entry)?,
                PT_INTERP if image.interpreter.is_none() => {
                    image.interpreter = Some((u64_at(entry, 8), u64_at(entry, 32)));
                }
                PT_GNU_STACK => image.executable_stack = u32_at(entry, 4) & PF_X != 0,
                _ => {}
            }
        }
        if image.segments.is_empty() { Err(Errno::ENOEXEC) } else { Ok(image) }
    }

    fn add_segment(&mut self, entry: &[u8]) -> Result<()> {
        let flags = u32_at(entry, 4);
        let mut prot = Prot::empty();
        prot.set(Prot::READ, flags & PF_R != 0);
        prot.set(Prot::WRITE, flags & PF_W != 0);
        prot.set(Prot::EXEC, flags & PF_X != 0);
        let segment = Segment {
            offset: u64_at(entry, 8),
            vaddr: u64_at(entry, 16),
            file_bytes: u64_at(entry, 32),
            memory_bytes: u64_at(entry, 40),
            prot,
        };
        if segment.memory_bytes == 0 {
            return Ok(());
        }
        let end = segment.vaddr.checked_add(segment.memory_bytes).and_then(page_up);
        let after_last = self.segments.last().is_none_or(|last| {
            last.vaddr < segment.vaddr
                && page_down(last.vaddr + last.memory_bytes - 1) <= page_down(segment.vaddr)
        });
        let sane = segment.file_bytes <= segment.memory_bytes
            && end.is_some_and(|end| end <= USER_MAX)
            && segment.offset.checked_add(segment.file_bytes).is_some_and(|end| i64::try_from(end).is_ok())
            && segment.offset % PAGE == segment.vaddr % PAGE
            && after_last;
        if !sane {
            return Err(Errno::ENOEXEC);
        }
        self.segments.push(segment);
        Ok(())
    }

    /// The pages from the first segment's start to the last one's end.
    pub fn span(&self) -> (u64, u64) {
        let start = self.segments.first().map_or(0, |segment| page_down(segment.vaddr));
        let end = self.segments.last().and_then(|segment| page_up(segment.vaddr + segment.memory_bytes));
        (start, end.unwrap_or(start))
    }

    /// The address of the program headers in memory, relative to the load bias.
    pub fn program_headers_address(&self) -> u64 {
        let offset = self.header.program_headers_offset;
        self.segments
            .iter()
            .find(|segment| offset >= segment.offset && offset < segment.offset + segment.file_bytes)
            .map_or(0, |segment| segment.vaddr + (offset - segment.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        let mut bytes = alloc::vec![0u8; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[16] = 2;
        bytes[18] = 62;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes
    }

    fn load(vaddr: u64, file: u64, memory: u64) -> Vec<u8> {
        let mut entry = alloc::vec![0u8; 56];
        entry[0] = 1;
        entry[4] = 5;
        entry[16..24].copy_from_slice(&vaddr.to_le_bytes());
        entry[8..16].copy_from_slice(&(vaddr % 4096).to_le_bytes());
        entry[32..40].copy_from_slice(&file.to_le_bytes());
        entry[40..48].copy_from_slice(&memory.to_le_bytes());
        entry
    }

    #[test]
    fn a_plain_program_is_accepted() {
        let header = Header::parse(&header()).unwrap();
        let image = Image::parse(header, &load(0x40_0000, 100, 5000)).unwrap();
        assert_eq!(image.span(), (0x40_0000, 0x40_2000));
        assert_eq!(image.segments[0].prot, Prot::READ | Prot::EXEC);
    }

    #[test]
    fn other_architectures_and_truncated_headers_are_refused() {
        let mut arm = header();
        arm[18] = 183;
        assert_eq!(Header::parse(&arm), Err(Errno::ENOEXEC));
        assert_eq!(Header::parse(&header()[..40]), Err(Errno::ENOEXEC));
    }

    #[test]
    fn absurd_segments_are_refused() {
        let parse = |entry: &[u8]| Image::parse(Header::parse(&header()).unwrap(), entry);
        assert_eq!(parse(&load(0x40_0000, 5000, 100)), Err(Errno::ENOEXEC));
        assert_eq!(parse(&load(u64::MAX - 4096, 10, 8192)), Err(Errno::ENOEXEC));
        assert_eq!(parse(&load(USER_MAX, 10, 10)), Err(Errno::ENOEXEC));
    }
}
