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
    /// The address of the completion record.
    pub completion: u64,
    /// The address of the input.
    pub source: u64,
    /// The address of the output.
    pub destination: u64,
    /// The length of the input.
    pub source_bytes: u32,
    /// The handle of the interrupt at the end; unused here, where programs look at the record.
    pub interrupt: u16,
    /// Of compression or decompression.
    pub coding: u16,
    /// The engine's state (`src2`).
    pub state: u64,
    /// The length of the room for the output.
    pub destination_bytes: u32,
    /// The length of the state.
    pub state_bytes: u32,
    /// Flags of the filter operations, which are not used here.
    pub filter: u32,
    /// The number of elements for the filter operations, which are not used here.
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
    /// Unpacks DEFLATE.
    pub const DECOMPRESS: u32 = 0x42;
    /// Packs by DEFLATE.
    pub const COMPRESS: u32 = 0x43;
}

/// Flags of decompression (`IAA_DECOMP_*`).
pub mod decompress {
    /// The engine unpacks the input.
    pub const ENABLE: u16 = 1;
    /// Output that the engine still holds is written at the end of the job.
    pub const FLUSH: u16 = 1 << 1;
    /// Input that ends before its end-of-block code does is an error.
    pub const CHECK_END: u16 = 1 << 2;
    /// The engine stops at the end-of-block code.
    pub const STOP_AT_END: u16 = 1 << 3;
    /// How many bits at the end of the input do not count.
    pub const IGNORE_BITS_SHIFT: u32 = 6;
    /// Nothing is written to the destination: for a job that is there for its state or checksum alone.
    pub const SUPPRESS_OUTPUT: u16 = 1 << 9;
}

/// Flags of compression (`IAA_COMP_*`).
pub mod compress {
    /// Bits that the engine still holds are written at the end of the job.
    pub const FLUSH: u16 = 1 << 1;
    /// The end-of-block code follows the output.
    pub const APPEND_END: u16 = 1 << 2;
}

/// How a job ended (`enum iax_completion_status`).
pub mod status {
    /// The job is done.
    pub const SUCCESS: u8 = 0x01;
    /// A page was not there, and the engine was not asked to wait for it.
    pub const PAGE_FAULT: u8 = 0x04;
    /// The engine found an error in the data; [`super::Completion::error`] says which.
    pub const ANALYTICS_ERROR: u8 = 0x0a;
    /// The output is larger than its room.
    pub const OUTPUT_OVERFLOW: u8 = 0x0b;
    /// The engine does not know the operation.
    pub const BAD_OPCODE: u8 = 0x10;
    /// The operation does not allow a flag of the descriptor.
    pub const INVALID_FLAGS: u8 = 0x11;
    /// A reserved field of the descriptor is not 0.
    pub const RESERVED_NOT_ZERO: u8 = 0x12;
    /// A length is 0, or larger than the queue takes.
    pub const INVALID_SIZE: u8 = 0x13;
    /// The output would overwrite the input or the state.
    pub const OVERLAP: u8 = 0x16;
    /// The address of the record or of the state is not aligned.
    pub const ADDRESS_ALIGNMENT: u8 = 0x1c;
    /// The device itself has failed.
    pub const HARDWARE_ERROR: u8 = 0x20;
    /// Flags of compression or decompression contradict each other.
    pub const INVALID_CODING_FLAGS: u8 = 0x30;
    /// Flags of the filter operations contradict each other.
    pub const INVALID_FILTER_FLAGS: u8 = 0x31;
    /// The faulting access was a write; the rest of the byte is the status.
    pub const IS_WRITE: u8 = 0x80;
}

/// The record that a device writes of a job that ended (`struct iax_completion_record`). The status is written last.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C, align(64))]
pub struct Completion {
    /// One of [`status`]; 0 as long as the job goes on.
    pub status: u8,
    /// The engine's own code of an error in the data.
    pub error: u8,
    /// Details of a page fault, which are not looked at here.
    pub fault_info: u16,
    /// How much of the source was read.
    pub bytes_completed: u32,
    /// The address that was not there.
    pub fault_address: u64,
    /// The flags that the operation does not allow.
    pub invalid_flags: u32,
    /// Unused.
    pub reserved: u32,
    /// How much was written to the destination.
    pub output_bytes: u32,
    /// How many bits of the last byte of the output count.
    pub output_bits: u8,
    /// Unused.
    pub reserved2: u8,
    /// The exclusive or of all 16-bit words of what is not packed.
    pub xor_checksum: u16,
    /// CRC-32 of what is not packed.
    pub crc: u32,
    /// The smallest element of a filter operation, none of which is used here.
    pub min: u32,
    /// The largest element of a filter operation.
    pub max: u32,
    /// The sum of the elements of a filter operation.
    pub sum: u32,
    /// Unused.
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
    /// The CRC-32 to go on from.
    pub crc: u32,
    /// The exclusive or to go on from.
    pub xor_checksum: u32,
    /// Unused.
    pub reserved: [u32; 5],
    /// The number of bits that come before the output.
    pub accumulated_bits: u32,
    /// The bits that come before the output, such as a block's header.
    pub accumulated: [u8; 256],
    /// Length of a code above bit 15, below it the code, its first bit highest.
    pub litlens: [u32; 286],
    /// Unused.
    pub reserved2: [u32; 2],
    /// The codes of distances, in the form of [`Self::litlens`].
    pub distances: [u32; 30],
    /// Unused.
    pub reserved3: [u32; 2],
}

const _: () = {
    assert!(size_of::<CompressState>() == COMPRESS_STATE_BYTES as usize);
    assert!(
        offset_of!(CompressState, accumulated_bits) == 28 && offset_of!(CompressState, accumulated) == 32
    );
    assert!(offset_of!(CompressState, litlens) == 288 && offset_of!(CompressState, distances) == 1440);
};

/// Bytes of [`CompressState`].
pub const COMPRESS_STATE_BYTES: u32 = 0x620;
/// Bytes of the part of the engine's state for decompression that has the codes (1088 bytes in `iaa_crypto`'s canned
/// mode). The device writes it when it reads a header, and nobody else looks inside.
pub const DECOMPRESS_STATE_BYTES: u32 = 0x440;
/// How the engine's state is aligned.
pub const STATE_ALIGN: usize = 32;
/// How far back the device can go.
pub const WINDOW_BYTES: usize = 4096;
