//! Structures that driver and device agree on: descriptors and completion records as in Linux's
//! `include/uapi/linux/idxd.h`, the engine's state (AECS) as in Linux's `iaa_crypto` driver.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A job (`struct iax_hw_desc`).
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C, align(64))]
pub struct Descriptor {
    /// Address space in the low 20 bits, privilege in the highest. The kernel or the processor fills them in.
    pub pasid: u32,
    /// Flags in the low 24 bits, the operation above.
    pub flags: u32,
    pub completion: u64,
    pub source: u64,
    pub destination: u64,
    pub source_bytes: u32,
    pub interrupt: u16,
    /// Of compression or decompression.
    pub coding: u16,
    /// The engine's state (`src2`).
    pub state: u64,
    pub destination_bytes: u32,
    pub state_bytes: u32,
    pub filter: u32,
    pub inputs: u32,
}

const _: () = {
    assert!(size_of::<Descriptor>() == 64 && align_of::<Descriptor>() == 64);
    assert!(offset_of!(Descriptor, flags) == 4 && offset_of!(Descriptor, completion) == 8);
    assert!(offset_of!(Descriptor, source) == 16 && offset_of!(Descriptor, destination) == 24);
    assert!(offset_of!(Descriptor, source_bytes) == 32 && offset_of!(Descriptor, interrupt) == 36);
    assert!(offset_of!(Descriptor, coding) == 38 && offset_of!(Descriptor, state) == 40);
    assert!(offset_of!(Descriptor, destination_bytes) == 48 && offset_of!(Descriptor, state_bytes) == 52);
    assert!(offset_of!(Descriptor, filter) == 56 && offset_of!(Descriptor, inputs) == 60);
};

/// Flags of a descriptor (`IDXD_OP_FLAG_*`).
pub mod flag {
    /// The engine waits while a page fault is resolved.
    pub const BLOCK_ON_FAULT: u32 = 0x02;
    /// The completion record's address is valid, and a record is wanted.
    pub const RECORD: u32 = 0x04 | 0x08;
    /// The state is read before the job.
    pub const READ_STATE: u32 = 0x01_0000;
    /// The state is written at the job's end.
    pub const WRITE_STATE: u32 = 0x04_0000;
}

/// Operations (`enum iax_opcode`).
pub mod opcode {
    pub const DECOMPRESS: u32 = 0x42;
    pub const COMPRESS: u32 = 0x43;
}

/// Flags of decompression (`IAA_DECOMP_*`).
pub mod decompress {
    pub const ENABLE: u16 = 1;
    pub const FLUSH: u16 = 1 << 1;
    pub const CHECK_END: u16 = 1 << 2;
    pub const STOP_AT_END: u16 = 1 << 3;
    /// How many bits at the end of the input do not count.
    pub const IGNORE_BITS_SHIFT: u32 = 6;
    pub const SUPPRESS_OUTPUT: u16 = 1 << 9;
}

/// Flags of compression (`IAA_COMP_*`).
pub mod compress {
    pub const FLUSH: u16 = 1 << 1;
    pub const APPEND_END: u16 = 1 << 2;
}

/// How a job ended (`enum iax_completion_status`).
pub mod status {
    pub const SUCCESS: u8 = 0x01;
    pub const PAGE_FAULT: u8 = 0x04;
    pub const ANALYTICS_ERROR: u8 = 0x0a;
    pub const OUTPUT_OVERFLOW: u8 = 0x0b;
    pub const BAD_OPCODE: u8 = 0x10;
    pub const INVALID_FLAGS: u8 = 0x11;
    pub const RESERVED_NOT_ZERO: u8 = 0x12;
    pub const INVALID_SIZE: u8 = 0x13;
    pub const OVERLAP: u8 = 0x16;
    pub const ADDRESS_ALIGNMENT: u8 = 0x1c;
    pub const HARDWARE_ERROR: u8 = 0x20;
    pub const INVALID_CODING_FLAGS: u8 = 0x30;
    pub const INVALID_FILTER_FLAGS: u8 = 0x31;
    /// The faulting access was a write; the rest of the byte is the status.
    pub const IS_WRITE: u8 = 0x80;
}

/// The record that a device writes of a job that ended (`struct iax_completion_record`). The status is written last.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C, align(64))]
pub struct Completion {
    pub status: u8,
    pub error: u8,
    pub fault_info: u16,
    /// How much of the source was read.
    pub bytes_completed: u32,
    pub fault_address: u64,
    pub invalid_flags: u32,
    pub reserved: u32,
    /// How much was written to the destination.
    pub output_bytes: u32,
    pub output_bits: u8,
    pub reserved2: u8,
    pub xor_checksum: u16,
    /// CRC-32 of what is not packed.
    pub crc: u32,
    pub min: u32,
    pub max: u32,
    pub sum: u32,
    pub reserved3: [u64; 2],
}

const _: () = {
    assert!(size_of::<Completion>() == 64 && align_of::<Completion>() == 64);
    assert!(offset_of!(Completion, bytes_completed) == 4 && offset_of!(Completion, fault_address) == 8);
    assert!(offset_of!(Completion, invalid_flags) == 16 && offset_of!(Completion, output_bytes) == 24);
    assert!(offset_of!(Completion, output_bits) == 28 && offset_of!(Completion, xor_checksum) == 30);
    assert!(
        offset_of!(Completion, crc) == 32
            && offset_of!(Completion, sum) == 44
            && offset_of!(Completion, reserved3) == 48
    );
};

/// The engine's state for compression (`struct aecs_comp_table_record`): the codes, and bits that come before the output.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub struct CompressState {
    pub crc: u32,
    pub xor_checksum: u32,
    pub reserved: [u32; 5],
    pub accumulated_bits: u32,
    pub accumulated: [u8; 256],
    /// Length of a code above bit 15, below it the code, its first bit highest.
    pub litlens: [u32; 286],
    pub reserved2: [u32; 2],
    pub distances: [u32; 30],
    pub reserved3: [u32; 2],
}

const _: () = {
    assert!(size_of::<CompressState>() == COMPRESS_STATE_BYTES as usize);
    assert!(
        offset_of!(CompressState, accumulated_bits) == 28 && offset_of!(CompressState, accumulated) == 32
    );
    assert!(offset_of!(CompressState, litlens) == 288 && offset_of!(CompressState, distances) == 1440);
};

pub const COMPRESS_STATE_BYTES: u32 = 0x620;
/// Bytes of the part of the engine's state for decompression that has the codes (1088 bytes in `iaa_crypto`'s canned
/// mode). The device writes it when it reads a header, and nobody else looks inside.
pub const DECOMPRESS_STATE_BYTES: u32 = 0x440;
/// How the engine's state is aligned.
pub const STATE_ALIGN: usize = 32;
/// How far back the device can go.
pub const WINDOW_BYTES: usize = 4096;
