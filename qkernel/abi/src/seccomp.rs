//! Filters of system calls (`seccomp(2)`): classic BPF programs, which the runtime compiles and the kernel runs.

/// One instruction, as `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// The operation: [`LOAD`] ….
    pub code: u16,
    /// Instructions to skip if a condition holds.
    pub jt: u8,
    /// Instructions to skip if a condition does not hold.
    pub jf: u8,
    /// The operation's number.
    pub k: u32,
}
pin_layout!(Instruction, 8, code: 0, jt: 2, jf: 3, k: 4);

/// Bytes of an instruction.
pub const INSTRUCTION_BYTES: usize = size_of::<Instruction>();
/// Most instructions of a program (`BPF_MAXINSNS`).
pub const PROGRAM_MAX: usize = 4096;

/// Loads a word of [`DATA_BYTES`], at `k`, into the accumulator.
pub const LOAD: u16 = 0x20;
/// Jumps `k` instructions further.
pub const JUMP: u16 = 0x05;
/// Conditional jump: the accumulator is `k`.
pub const JUMP_EQUAL: u16 = 0x15;
/// Conditional jump: the accumulator is greater than `k`.
pub const JUMP_GREATER: u16 = 0x25;
/// Conditional jump: the accumulator is `k` or greater.
pub const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
/// The accumulator becomes its bits that `k` has as well.
pub const AND: u16 = 0x54;
/// The verdict is `k`.
pub const RETURN: u16 = 0x06;

/// Bytes of `struct seccomp_data`, which a program looks at.
pub const DATA_BYTES: u32 = 64;
/// Offset of the call's number (32 bits) in `struct seccomp_data`.
pub const DATA_NUMBER: u32 = 0;
/// Offset of the architecture (32 bits) in `struct seccomp_data`.
pub const DATA_ARCH: u32 = 4;
/// Offset of the instruction's address (64 bits) in `struct seccomp_data`.
pub const DATA_IP: u32 = 8;
/// Offset of the first argument (64 bits each) in `struct seccomp_data`.
pub const DATA_ARGS: u32 = 16;
/// `AUDIT_ARCH_X86_64`.
pub const ARCH_X86_64: u32 = 0xc000_003e;
/// Numbers of x32 calls have this bit.
pub const X32_BIT: u32 = 0x4000_0000;

/// Verdict: the process ends. Verdicts (`SECCOMP_RET_*`) are an action in the upper half, its data in the lower. As signed numbers, a lower
/// one is more restrictive.
pub const KILL_PROCESS: u32 = 0x8000_0000;
/// Verdict: the thread ends.
pub const KILL_THREAD: u32 = 0;
/// Verdict: the thread gets `SIGSYS`.
pub const TRAP: u32 = 0x0003_0000;
/// Verdict: the call fails with the data as its errno.
pub const ERRNO: u32 = 0x0005_0000;
/// Verdict: a supervisor is asked.
pub const NOTIFY: u32 = 0x7fc0_0000;
/// Verdict: a tracer is asked.
pub const TRACE: u32 = 0x7ff0_0000;
/// Verdict: the call is made, and logged.
pub const LOG: u32 = 0x7ffc_0000;
/// Verdict: the call is made.
pub const ALLOW: u32 = 0x7fff_0000;
/// The action's bits of a verdict.
pub const ACTION_BITS: u32 = 0xffff_0000;
/// The data's bits of a verdict.
pub const VERDICT_DATA_BITS: u32 = 0xffff;

impl Instruction {
    /// An instruction that does not jump by a condition.
    #[must_use]
    pub const fn plain(code: u16, k: u32) -> Self {
        Self { code, jt: 0, jf: 0, k }
    }

    /// The instruction in a record and in user memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; INSTRUCTION_BYTES] {
        let [code, code_high] = self.code.to_le_bytes();
        let [a, b, c, d] = self.k.to_le_bytes();
        [code, code_high, self.jt, self.jf, a, b, c, d]
    }

    /// See [`Self::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: [u8; INSTRUCTION_BYTES]) -> Self {
        let [code, code_high, jt, jf, a, b, c, d] = bytes;
        Self { code: u16::from_le_bytes([code, code_high]), jt, jf, k: u32::from_le_bytes([a, b, c, d]) }
    }

    /// The instructions that follow each other in `bytes`; `None` if a part of one is left.
    pub fn all(bytes: &[u8]) -> Option<impl Iterator<Item = Self> + '_> {
        let (instructions, []) = bytes.as_chunks::<INSTRUCTION_BYTES>() else { return None };
        Some(instructions.iter().map(|bytes| Self::from_bytes(*bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_come_back_from_their_bytes() {
        let instruction = Instruction { code: JUMP_EQUAL, jt: 1, jf: 2, k: 0x1234_5678 };
        assert_eq!(Instruction::from_bytes(instruction.to_bytes()), instruction);
        let bytes = [instruction.to_bytes(), Instruction::plain(RETURN, ALLOW).to_bytes()].concat();
        assert_eq!(Instruction::all(&bytes).map(Iterator::count), Some(2));
        assert!(Instruction::all(&bytes[1..]).is_none());
    }
}
