//! Jobs as descriptors, and what their completion records say.

use codec::Table;
use zerocopy::{FromZeros, IntoBytes};

use crate::layout::{
    COMPRESS_STATE_BYTES, Completion, CompressState, DECOMPRESS_STATE_BYTES, Descriptor, compress,
    decompress, flag, opcode, status,
};

/// Where a job's parts are in memory.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub completion: u64,
    pub source: u64,
    pub source_bytes: u32,
    pub destination: u64,
    pub destination_bytes: u32,
    pub state: u64,
}

fn descriptor(operation: u32, flags: u32, coding: u16, state_bytes: u32, places: Places) -> Descriptor {
    Descriptor {
        flags: operation << 24 | flag::RECORD | flags,
        completion: places.completion,
        source: places.source,
        destination: places.destination,
        source_bytes: places.source_bytes,
        coding,
        state: places.state,
        destination_bytes: places.destination_bytes,
        state_bytes,
        ..Descriptor::default()
    }
}

/// Reads the header of a table and leaves the codes in the engine's state, as Linux's canned mode does it.
pub fn read_header(places: Places, header_bits: usize) -> Descriptor {
    let ignored = places.source_bytes as usize * 8 - header_bits;
    let ignored = u16::try_from(ignored).expect("less than a byte") << decompress::IGNORE_BITS_SHIFT;
    let coding = decompress::ENABLE | decompress::SUPPRESS_OUTPUT | ignored;
    descriptor(opcode::DECOMPRESS, flag::WRITE_STATE, coding, DECOMPRESS_STATE_BYTES, places)
}

/// Unpacks one body by the codes in the engine's state.
pub fn unpack(places: Places, blocks_on_fault: bool) -> Descriptor {
    let coding = decompress::ENABLE | decompress::FLUSH | decompress::CHECK_END | decompress::STOP_AT_END;
    let flags = flag::READ_STATE | if blocks_on_fault { flag::BLOCK_ON_FAULT } else { 0 };
    descriptor(opcode::DECOMPRESS, flags, coding, DECOMPRESS_STATE_BYTES, places)
}

/// Packs one piece by the codes in the engine's state.
pub fn pack(places: Places, blocks_on_fault: bool) -> Descriptor {
    let flags = flag::READ_STATE | if blocks_on_fault { flag::BLOCK_ON_FAULT } else { 0 };
    descriptor(opcode::COMPRESS, flags, compress::FLUSH | compress::APPEND_END, COMPRESS_STATE_BYTES, places)
}

/// A code as the engine's state has it.
pub fn code_word(bits: u16, length: u8) -> u32 {
    u32::from(length) << 15 | u32::from(bits)
}

/// The engine's state for packing by a table.
pub fn compress_state(table: &Table) -> Vec<u8> {
    let mut state = CompressState::new_zeroed();
    let (litlens, distances) = table.code_words();
    for (word, (bits, length)) in state.litlens.iter_mut().zip(litlens) {
        *word = code_word(bits, length);
    }
    for (word, (bits, length)) in state.distances.iter_mut().zip(distances) {
        *word = code_word(bits, length);
    }
    state.as_bytes().to_vec()
}

/// The outcome of a job, as its completion record says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// So many bytes were read and written; the checksum is of what is not packed.
    Done {
        read: usize,
        written: usize,
        crc: u32,
    },
    /// A page is not there. So much was written already; the job begins anew, for the engine cannot go on where it stopped
    /// (*Sabre*, section 3.2.2).
    PageFault {
        address: u64,
        is_write: bool,
        written: usize,
    },
    /// The destination is too small.
    Overflow,
    /// The bytes to be unpacked are damaged.
    BadData,
    Failed(u8),
}

pub fn outcome(record: &Completion) -> Outcome {
    let written = record.output_bytes as usize;
    match record.status {
        status::SUCCESS if record.error == 0 => {
            Outcome::Done { read: record.bytes_completed as usize, written, crc: record.crc }
        }
        status::OUTPUT_OVERFLOW => Outcome::Overflow,
        status::ANALYTICS_ERROR => Outcome::BadData,
        code if code & !status::IS_WRITE == status::PAGE_FAULT => Outcome::PageFault {
            address: record.fault_address,
            is_write: code & status::IS_WRITE != 0,
            written,
        },
        code => Outcome::Failed(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places {
        completion: 0x1111_2222_3333_4440,
        source: 0x0102_0304_0506_0708,
        source_bytes: 0x0a0b_0c0d,
        destination: 0x1122_3344_5566_7788,
        destination_bytes: 0x0001_0000,
        state: 0x99aa_bbcc_ddee_ff00,
    };

    fn words(descriptor: &Descriptor) -> Vec<u64> {
        descriptor.as_bytes().chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn descriptors_have_these_bytes() {
        let common = [0x1111_2222_3333_4440, 0x0102_0304_0506_0708, 0x1122_3344_5566_7788];
        let golden = |flags: u64, coding: u64, state_bytes: u64| {
            let mut golden = vec![flags << 32];
            golden.extend(common);
            golden.extend([
                coding << 48 | 0x0a0b_0c0d,
                0x99aa_bbcc_ddee_ff00,
                state_bytes << 32 | 0x0001_0000,
                0,
            ]);
            golden
        };
        assert_eq!(words(&unpack(PLACES, false)), golden(0x4201_000c, 0x000f, 0x440));
        assert_eq!(words(&unpack(PLACES, true)), golden(0x4201_000e, 0x000f, 0x440));
        assert_eq!(words(&pack(PLACES, false)), golden(0x4301_000c, 0x0006, 0x620));
        let places = Places { source_bytes: 0x20, ..PLACES };
        let header = words(&read_header(places, 0x20 * 8 - 5));
        assert_eq!((header[0], header[4] >> 48, header[6] >> 32), (0x4204_000c << 32, 0x201 | 5 << 6, 0x440));
    }

    #[test]
    fn records_are_read() {
        let record =
            Completion { status: 1, bytes_completed: 9, output_bytes: 4096, crc: 7, ..Completion::default() };
        assert_eq!(outcome(&record), Outcome::Done { read: 9, written: 4096, crc: 7 });
        assert_eq!(outcome(&Completion { error: 3, ..record }), Outcome::Failed(1));
        let fault =
            Completion { status: 0x84, fault_address: 0x5000, output_bytes: 12, ..Completion::default() };
        assert_eq!(outcome(&fault), Outcome::PageFault { address: 0x5000, is_write: true, written: 12 });
        assert_eq!(outcome(&Completion { status: 0x0b, ..record }), Outcome::Overflow);
        assert_eq!(outcome(&Completion { status: 0x0a, ..record }), Outcome::BadData);
        assert_eq!(outcome(&Completion { status: 0x24, ..record }), Outcome::Failed(0x24));
    }

    #[test]
    fn codes_are_words_as_linux_has_them() {
        // The first of its fixed codes: literal 0 is 0011 0000 with eight bits, distance 1 is 0 0001 with five.
        assert_eq!((code_word(0x30, 8), code_word(1, 5)), (0x40030, 0x28001));
    }
}
