//! Filters of what a socket receives (`SO_ATTACH_FILTER`): classic BPF programs over a message's bytes.
//!
//! Arithmetic, jumps and memory are those of `seccomp(2)`'s programs; loads are from the message. Programs come from applications. One
//! that is accepted only jumps forward, so it runs for at most [`PROGRAM_MAX`] steps.

use abi::seccomp::{Instruction, PROGRAM_MAX};
use abi::word::{len32, to_usize};
use alloc::vec::Vec;
use zerocopy::FromBytes;

use crate::seccomp::program::{BpfInterpreter, Next, code, is_sound, reads_unset_memory};
use machine::errno::{Errno, Result};
use machine::mm::{UserAddr, UserMemory, account};

/// Loads that `seccomp(2)` does not know: half words and bytes, relative to the index register, and the length of a header.
const LD_H_ABS: u16 = 0x28;
const LD_B_ABS: u16 = 0x30;
const LD_W_IND: u16 = 0x40;
const LD_H_IND: u16 = 0x48;
const LD_B_IND: u16 = 0x50;
const LDX_MSH: u16 = 0xb1;
const MOD_K: u16 = 0x94;
const MOD_X: u16 = MOD_K | code::OPERAND_X;
const DIV_X: u16 = code::DIV | code::OPERAND_X;
/// Offsets from here on are no message's: they ask for facts about a packet (`SKF_AD_OFF` and the like), which are 0 here.
const FACTS: u32 = 0xffe0_0000;

/// `struct sock_fprog`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes)]
struct Described {
    len: u16,
    pad: [u16; 3],
    code: UserAddr,
}

/// A program that was checked.
#[derive(Debug)]
pub struct Filter(Vec<Instruction>);

impl Filter {
    /// Reads the program that the value of `SO_ATTACH_FILTER` describes.
    pub fn read(user: &UserMemory, value: &[u8]) -> Result<Self> {
        if value.len() != size_of::<Described>() {
            return Err(Errno::EINVAL);
        }
        let described = Described::read_from_bytes(value).map_err(|_| Errno::EINVAL)?;
        let len = usize::from(described.len);
        if described.code.is_null() || len == 0 || len > PROGRAM_MAX {
            return Err(Errno::EINVAL);
        }
        account::check(2 * len * size_of::<Instruction>())?;
        let raw: Vec<[u8; 8]> = user.read_array(described.code, len)?;
        let instruction = |raw: [u8; 8]| Instruction {
            code: u16::from_le_bytes([raw[0], raw[1]]),
            jt: raw[2],
            jf: raw[3],
            k: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
        };
        Self::check(raw.into_iter().map(instruction).collect())
    }

    /// Takes a program that always ends; else `EINVAL`.
    fn check(code: Vec<Instruction>) -> Result<Self> {
        let ends = code.last().is_some_and(|last| matches!(last.code, code::RET_K | code::RET_A));
        let sound = |(at, instruction): (usize, &Instruction)| match instruction.code {
            code::LD_ABS | LD_H_ABS | LD_B_ABS | LD_W_IND | LD_H_IND | LD_B_IND | LDX_MSH | MOD_X => true,
            MOD_K => instruction.k != 0,
            _ => is_sound(instruction, code.len() - at - 1),
        };
        if !ends || !code.iter().enumerate().all(sound) || reads_unset_memory(&code) {
            return Err(Errno::EINVAL);
        }
        Ok(Self(code))
    }

    /// How many bytes of a message it keeps; 0: the message is dropped.
    pub fn keeps(&self, message: &[u8]) -> usize {
        self.run(message).map_or(0, |kept| to_usize(kept.into()))
    }

    /// The verdict; `None` where the program looks beyond the message, or divides by zero.
    fn run(&self, message: &[u8]) -> Option<u32> {
        let mut interpreter = BpfInterpreter::default();
        let mut at = 0;
        loop {
            // Every jump of a checked program stays inside of it.
            let instruction = self.0.get(at)?;
            let (k, x, a) = (instruction.k, interpreter.x?, interpreter.a?);
            let mut skip = 0;
            match instruction.code {
                code::LD_ABS => interpreter.a = Some(word(message, k)?),
                LD_H_ABS => interpreter.a = Some(half(message, k)?),
                LD_B_ABS => interpreter.a = Some(byte(message, k)?),
                LD_W_IND => interpreter.a = Some(word(message, k.wrapping_add(x))?),
                LD_H_IND => interpreter.a = Some(half(message, k.wrapping_add(x))?),
                LD_B_IND => interpreter.a = Some(byte(message, k.wrapping_add(x))?),
                LDX_MSH => interpreter.x = Some((byte(message, k)? & 0xf) << 2),
                code::LD_LEN => interpreter.a = Some(len32(message.len())),
                code::LDX_LEN => interpreter.x = Some(len32(message.len())),
                MOD_K => interpreter.a = Some(a.checked_rem(k)?),
                MOD_X => interpreter.a = Some(a.checked_rem(x)?),
                DIV_X if x == 0 => return None,
                _ => match interpreter.step(instruction, &|_| None) {
                    Next::Skip(more) => skip = more as usize,
                    Next::Verdict(verdict) => return Some(verdict),
                    Next::Unknown => return None,
                },
            }
            at += 1 + skip;
        }
    }
}

/// The bytes at an offset; `None` beyond the end.
fn bytes<const N: usize>(message: &[u8], offset: u32) -> Option<[u8; N]> {
    if offset >= FACTS {
        return Some([0; N]);
    }
    message.get(offset as usize..)?.first_chunk().copied()
}

fn word(message: &[u8], offset: u32) -> Option<u32> {
    bytes(message, offset).map(u32::from_be_bytes)
}

fn half(message: &[u8], offset: u32) -> Option<u32> {
    bytes(message, offset).map(|half| u16::from_be_bytes(half).into())
}

fn byte(message: &[u8], offset: u32) -> Option<u32> {
    bytes(message, offset).map(|[byte]| byte.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(code: u16, k: u32) -> Instruction {
        Instruction::plain(code, k)
    }

    fn verdict(code: &[Instruction], message: &[u8]) -> usize {
        Filter::check(code.to_vec()).unwrap().keeps(message)
    }

    #[test]
    fn loads_are_from_the_message_and_none_is_beyond_it() {
        let message = b"\x12\x34\x56\x78\x9a";
        let load = |code, k| verdict(&[op(code::LDX_IMM, 1), op(code, k), op(code::RET_A, 0)], message);
        assert_eq!(load(code::LD_ABS, 0), 0x1234_5678);
        assert_eq!(load(code::LD_ABS, 2), 0, "beyond the end");
        assert_eq!(load(LD_H_ABS, 3), 0x789a);
        assert_eq!(load(LD_B_ABS, 4), 0x9a);
        assert_eq!(load(LD_B_ABS, 5), 0);
        assert_eq!(load(LD_W_IND, 0), 0x3456_789a);
        assert_eq!(load(LD_H_IND, 0), 0x3456);
        assert_eq!(load(LD_B_IND, u32::MAX), 0x12);
        assert_eq!(load(code::LD_LEN, 0), 5);
        let header = [op(LDX_MSH, 1), op(code::TXA, 0), op(code::RET_A, 0)];
        assert_eq!(verdict(&header, message), 16);
    }

    #[test]
    fn divisions_by_zero_drop_the_message() {
        for by in [DIV_X, MOD_X] {
            let code = [op(code::LD_IMM, 7), op(code::LDX_IMM, 0), op(by, 0), op(code::RET_K, 9)];
            assert_eq!(verdict(&code, b"x"), 0);
        }
        assert_eq!(verdict(&[op(code::LD_IMM, 7), op(MOD_K, 4), op(code::RET_A, 0)], b""), 3);
    }

    #[test]
    fn what_might_not_end_is_no_filter() {
        for bad in [
            &[][..],
            &[op(code::LD_IMM, 0)],
            &[op(code::JA, 1), op(code::RET_K, 0)],
            &[op(MOD_K, 0), op(code::RET_K, 0)],
            &[op(code::LD_MEM, 0), op(code::RET_K, 0)],
            &[op(0xffff, 0), op(code::RET_K, 0)],
        ] {
            assert_eq!(Filter::check(bad.to_vec()).err(), Some(Errno::EINVAL));
        }
    }
}
