//! Classic BPF as `seccomp(2)` takes it: what a program may be, and how it runs. Filters of sockets (`net::filter`)
//! run on the same interpreter.
//!
//! Programs come from applications. One that is accepted only jumps forward and ends in a verdict, so it runs for at most
//! [`PROGRAM_MAX`] steps whatever it looks at.

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi::seccomp::{
    ARCH_X86_64, DATA_BYTES, DATA_NUMBER, Instruction, KILL_PROCESS, KILL_THREAD, PROGRAM_MAX,
};
use abi::word::low32;
use machine::errno::{Errno, Result};

/// Words of a program's scratch memory (`BPF_MEMWORDS`).
const MEMORY_WORDS: usize = 16;

/// The instructions' codes (`linux/filter.h`); those of comparisons and arithmetic with `k` have a twin for the index
/// register.
pub mod code {
    pub const LD_ABS: u16 = 0x20;
    pub const LD_LEN: u16 = 0x80;
    pub const LDX_LEN: u16 = 0x81;
    pub const LD_IMM: u16 = 0x00;
    pub const LDX_IMM: u16 = 0x01;
    pub const LD_MEM: u16 = 0x60;
    pub const LDX_MEM: u16 = 0x61;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const TAX: u16 = 0x07;
    pub const TXA: u16 = 0x87;
    pub const NEG: u16 = 0x84;
    pub const JA: u16 = 0x05;
    pub const RET_K: u16 = 0x06;
    pub const RET_A: u16 = 0x16;
    /// The bit that makes the operand the index register.
    pub const OPERAND_X: u16 = 0x08;
    pub const ADD: u16 = 0x04;
    pub const SUB: u16 = 0x14;
    pub const MUL: u16 = 0x24;
    pub const DIV: u16 = 0x34;
    pub const OR: u16 = 0x44;
    pub const AND: u16 = 0x54;
    pub const LSH: u16 = 0x64;
    pub const RSH: u16 = 0x74;
    pub const XOR: u16 = 0xa4;
    pub const JEQ: u16 = 0x15;
    pub const JGT: u16 = 0x25;
    pub const JGE: u16 = 0x35;
    pub const JSET: u16 = 0x45;
}

/// `struct seccomp_data` in words: number, architecture, the address behind the instruction, six arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data([u32; DATA_BYTES as usize / 4]);

impl Data {
    /// A call as programs see it.
    pub fn new(number: u32, address: u64, args: &[u64; 6]) -> Self {
        let mut words = [0; DATA_BYTES as usize / 4];
        (words[0], words[1]) = (number, ARCH_X86_64);
        for (at, value) in core::iter::once(&address).chain(args).enumerate() {
            (words[2 + 2 * at], words[3 + 2 * at]) = (low32(*value), low32(*value >> 32));
        }
        Self(words)
    }

    fn word(&self, offset: u32) -> u32 {
        self.0.get(offset as usize / 4).copied().unwrap_or(0)
    }
}

/// A program that was checked.
#[derive(Debug)]
pub struct Program(Box<[Instruction]>);

/// The step of a program that follows an instruction.
pub enum Next {
    Skip(u32),
    Verdict(u32),
    /// It depends on something that is not known.
    Unknown,
}

/// An interpreter of classic BPF: the registers of a running program. A value that is not known is `None`.
pub struct BpfInterpreter {
    pub a: Option<u32>,
    pub x: Option<u32>,
    memory: [Option<u32>; MEMORY_WORDS],
}

impl Default for BpfInterpreter {
    /// At the start of a program.
    fn default() -> Self {
        Self { a: Some(0), x: Some(0), memory: [Some(0); MEMORY_WORDS] }
    }
}

impl Program {
    /// Takes a program if Linux takes it; else `EINVAL`.
    pub fn check(code: Vec<Instruction>) -> Result<Self> {
        if code.is_empty() || code.len() > PROGRAM_MAX {
            return Err(Errno::EINVAL);
        }
        let ends = code.last().is_some_and(|last| matches!(last.code, code::RET_K | code::RET_A));
        let is_sound = |(at, instruction): (usize, &Instruction)| is_sound(instruction, code.len() - at - 1);
        if !ends || !code.iter().enumerate().all(is_sound) || reads_unset_memory(&code) {
            return Err(Errno::EINVAL);
        }
        Ok(Self(code.into()))
    }

    /// Number of instructions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never: a program has a verdict at least.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The verdict about a call.
    pub fn run(&self, data: &Data) -> u32 {
        self.execute(|offset| Some(data.word(offset))).unwrap_or(KILL_PROCESS)
    }

    /// The verdict about all calls with this number, whatever their arguments are, if the number alone decides.
    pub fn constant(&self, number: u32) -> Option<u32> {
        self.execute(|offset| match offset {
            DATA_NUMBER => Some(number),
            abi::seccomp::DATA_ARCH => Some(ARCH_X86_64),
            _ => None,
        })
    }

    fn execute(&self, load: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let mut interpreter = BpfInterpreter::default();
        let mut at = 0;
        loop {
            // Every jump of a checked program stays inside of it.
            let instruction = self.0.get(at)?;
            match interpreter.step(instruction, &load) {
                Next::Skip(more) => at += 1 + more as usize,
                Next::Verdict(verdict) => return Some(verdict),
                Next::Unknown => return None,
            }
        }
    }
}

impl BpfInterpreter {
    /// Carries out an instruction; `load` finds a word.
    #[inline]
    pub fn step(&mut self, instruction: &Instruction, load: &impl Fn(u32) -> Option<u32>) -> Next {
        let Instruction { code, jt, jf, k } = *instruction;
        match code {
            code::LD_ABS => self.a = load(k),
            code::LD_LEN => self.a = Some(DATA_BYTES),
            code::LDX_LEN => self.x = Some(DATA_BYTES),
            code::LD_IMM => self.a = Some(k),
            code::LDX_IMM => self.x = Some(k),
            code::LD_MEM => self.a = self.memory.get(k as usize).copied().flatten(),
            code::LDX_MEM => self.x = self.memory.get(k as usize).copied().flatten(),
            code::ST => self.store(k, self.a),
            code::STX => self.store(k, self.x),
            code::TAX => self.x = self.a,
            code::TXA => self.a = self.x,
            code::NEG => self.a = self.a.map(u32::wrapping_neg),
            code::JA => return Next::Skip(k),
            code::RET_K => return Next::Verdict(k),
            code::RET_A => return self.a.map_or(Next::Unknown, Next::Verdict),
            _ => {
                let operand = if code & code::OPERAND_X != 0 { self.x } else { Some(k) };
                let (Some(a), Some(operand)) = (self.a, operand) else {
                    if is_jump(code) {
                        return Next::Unknown;
                    }
                    // As on Linux, a division by nothing is a verdict, so one that may be is not known.
                    if code & !code::OPERAND_X == code::DIV && operand.is_none_or(|by| by == 0) {
                        return Next::Unknown;
                    }
                    self.a = None;
                    return Next::Skip(0);
                };
                if is_jump(code) {
                    return Next::Skip(u32::from(if holds(code, a, operand) { jt } else { jf }));
                }
                match compute(code, a, operand) {
                    Some(value) => self.a = Some(value),
                    None => return Next::Verdict(KILL_THREAD),
                }
            }
        }
        Next::Skip(0)
    }

    fn store(&mut self, at: u32, value: Option<u32>) {
        if let Some(word) = self.memory.get_mut(at as usize) {
            *word = value;
        }
    }
}

fn is_jump(code: u16) -> bool {
    matches!(code & !code::OPERAND_X, code::JEQ | code::JGT | code::JGE | code::JSET)
}

fn holds(code: u16, a: u32, operand: u32) -> bool {
    match code & !code::OPERAND_X {
        code::JEQ => a == operand,
        code::JGT => a > operand,
        code::JGE => a >= operand,
        _ => a & operand != 0,
    }
}

/// `None`: a division by zero.
fn compute(code: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match code & !code::OPERAND_X {
        code::ADD => a.wrapping_add(operand),
        code::SUB => a.wrapping_sub(operand),
        code::MUL => a.wrapping_mul(operand),
        code::DIV => return a.checked_div(operand),
        code::OR => a | operand,
        code::AND => a & operand,
        code::LSH => a.wrapping_shl(operand),
        code::RSH => a.wrapping_shr(operand),
        _ => a ^ operand,
    })
}

/// Whether an instruction with `behind` others behind it is one that Linux takes.
pub fn is_sound(instruction: &Instruction, behind: usize) -> bool {
    let Instruction { code, jt, jf, k } = *instruction;
    match code {
        code::LD_ABS => k < DATA_BYTES && k.is_multiple_of(4),
        code::LD_MEM | code::LDX_MEM | code::ST | code::STX => (k as usize) < MEMORY_WORDS,
        code::JA => (k as usize) < behind,
        code::DIV => k != 0,
        code::LSH | code::RSH => k < 32,
        code::LD_LEN | code::LDX_LEN | code::LD_IMM | code::LDX_IMM | code::TAX | code::TXA => true,
        code::NEG | code::RET_K | code::RET_A => true,
        _ if is_jump(code) => usize::from(jt) < behind && usize::from(jf) < behind,
        _ => matches!(
            code & !code::OPERAND_X,
            code::ADD
                | code::SUB
                | code::MUL
                | code::DIV
                | code::OR
                | code::AND
                | code::LSH
                | code::RSH
                | code::XOR
        ),
    }
}

/// Whether there is a way to a load of a word of memory that nothing was stored to. The jumps are sound.
pub fn reads_unset_memory(code: &[Instruction]) -> bool {
    // For each instruction the words that are set on every way to it, a bit each.
    let mut set_at = alloc::vec![u16::MAX; code.len()];
    let mut set = 0u16;
    let arrive = |set_at: &mut [u16], at: usize, set: u16| {
        if let Some(known) = set_at.get_mut(at) {
            *known &= set;
        }
    };
    for (at, instruction) in code.iter().enumerate() {
        set &= set_at[at];
        let bit = 1u16.wrapping_shl(instruction.k);
        match instruction.code {
            code::ST | code::STX => set |= bit,
            code::LD_MEM | code::LDX_MEM if set & bit == 0 => return true,
            code::JA => {
                arrive(&mut set_at, at + 1 + instruction.k as usize, set);
                set = u16::MAX;
            }
            jump if is_jump(jump) => {
                arrive(&mut set_at, at + 1 + usize::from(instruction.jt), set);
                arrive(&mut set_at, at + 1 + usize::from(instruction.jf), set);
                set = u16::MAX;
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::seccomp::{ALLOW, DATA_ARCH, DATA_ARGS, ERRNO};

    fn op(code: u16, k: u32) -> Instruction {
        Instruction::plain(code, k)
    }

    fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    fn verdict(code: &[Instruction], data: &Data) -> u32 {
        Program::check(code.to_vec()).unwrap().run(data)
    }

    fn call(number: u32, args: [u64; 6]) -> Data {
        Data::new(number, 0x1122_3344_5566_7788, &args)
    }

    #[test]
    fn every_field_of_a_call_is_at_its_offset() {
        let data = call(39, [0x1_0000_0002, 3, 4, 5, 6, 0xffff_ffff_0000_0007]);
        let field = |offset| verdict(&[op(code::LD_ABS, offset), op(code::RET_A, 0)], &data);
        let words = [39, ARCH_X86_64, 0x5566_7788, 0x1122_3344, 2, 1, 3, 0, 4, 0, 5, 0, 6, 0, 7, u32::MAX];
        for (at, word) in (0u32..).zip(words) {
            assert_eq!(field(4 * at), word, "offset {}", 4 * at);
        }
    }

    #[test]
    fn arithmetic_is_that_of_32_bits() {
        let data = call(0, [0; 6]);
        let run = |a: u32, code: u16, k: u32| {
            verdict(&[op(code::LD_IMM, a), op(code, k), op(code::RET_A, 0)], &data)
        };
        let with_x = |a: u32, code: u16, x: u32| {
            let all = [
                op(code::LD_IMM, a),
                op(code::LDX_IMM, x),
                op(code | code::OPERAND_X, 9),
                op(code::RET_A, 0),
            ];
            verdict(&all, &data)
        };
        for (a, code, operand, result) in [
            (u32::MAX, code::ADD, 2, 1),
            (1, code::SUB, 2, u32::MAX),
            (1 << 31, code::MUL, 2, 0),
            (7, code::DIV, 2, 3),
            (5, code::OR, 2, 7),
            (5, code::AND, 4, 4),
            (5, code::XOR, 4, 1),
            (3, code::LSH, 31, 1 << 31),
            (1 << 31, code::RSH, 31, 1),
        ] {
            assert_eq!(run(a, code, operand), result, "{code:#x}");
            assert_eq!(with_x(a, code, operand), result, "{code:#x} by the index");
        }
        assert_eq!(run(1, code::NEG, 0), u32::MAX);
        assert_eq!(with_x(7, code::DIV, 0), KILL_THREAD);
        // The processor takes five bits of a shift.
        assert_eq!(with_x(3, code::LSH, 33), 6);
        let moves = [
            op(code::LD_LEN, 0),
            op(code::ST, 15),
            op(code::LDX_MEM, 15),
            op(code::TXA, 0),
            op(code::RET_A, 0),
        ];
        assert_eq!(verdict(&moves, &data), 64);
    }

    #[test]
    fn jumps_go_where_they_say() {
        let code = [
            op(code::LD_ABS, DATA_ARGS),
            jump(code::JGT, 10, 0, 1),
            op(code::JA, 1),
            jump(code::JSET, 3, 1, 2),
            op(code::RET_K, 1),
            op(code::RET_K, 2),
            op(code::RET_K, 3),
        ];
        for (arg, expected) in [(11, 1), (10, 2), (8, 3), (3, 2), (0, 3)] {
            assert_eq!(verdict(&code, &call(0, [arg, 0, 0, 0, 0, 0])), expected, "{arg}");
        }
    }

    #[test]
    fn what_linux_refuses_is_refused() {
        let end = op(code::RET_K, ALLOW);
        let refused = |code: &[Instruction]| Program::check(code.to_vec()).err() == Some(Errno::EINVAL);
        assert!(refused(&[]));
        assert!(refused(&alloc::vec![end; PROGRAM_MAX + 1]));
        assert!(!refused(&alloc::vec![end; PROGRAM_MAX]));
        // It has to end.
        assert!(refused(&[op(code::LD_IMM, 1)]));
        for bad in [
            op(code::LD_ABS, 64),
            op(code::LD_ABS, 2),
            op(code::LD_ABS, u32::MAX - 3),
            // Bytes, halves and loads by the index, which packet filters have.
            op(0x28, 0),
            op(0x30, 0),
            op(0x40, 0),
            op(0xb1, 0),
            // Remainders, which packet filters have as well.
            op(0x94, 1),
            op(code::LD_MEM, 0),
            op(code::ST, 16),
            op(code::STX, u32::MAX),
            op(code::DIV, 0),
            op(code::LSH, 32),
            op(code::RSH, 32),
            op(code::JA, 1),
            op(code::JA, u32::MAX),
            jump(code::JEQ, 0, 1, 0),
            jump(code::JEQ | code::OPERAND_X, 0, 0, 1),
            op(0xffff, 0),
        ] {
            assert!(refused(&[bad, end]), "{bad:?}");
        }
        // Only one of two ways stores what is read.
        let one_way = [
            op(code::LD_ABS, DATA_ARCH),
            jump(code::JEQ, 7, 0, 1),
            op(code::ST, 3),
            op(code::LD_MEM, 3),
            end,
        ];
        assert!(refused(&one_way));
        let both = [op(code::ST, 3), jump(code::JEQ, 7, 0, 1), op(code::ST, 4), op(code::LD_MEM, 3), end];
        assert!(!refused(&both));
    }

    #[test]
    fn a_verdict_is_constant_only_if_no_argument_decides() {
        let refuse = ERRNO | 1;
        let program = Program::check(alloc::vec![
            op(code::LD_ABS, DATA_NUMBER),
            jump(code::JEQ, 1, 0, 1),
            op(code::RET_K, ALLOW),
            jump(code::JEQ, 2, 0, 3),
            op(code::LD_ABS, DATA_ARGS),
            jump(code::JEQ, 7, 0, 1),
            op(code::RET_K, ALLOW),
            op(code::RET_K, refuse),
        ])
        .unwrap();
        assert_eq!([0, 1, 2].map(|number| program.constant(number)), [Some(refuse), Some(ALLOW), None]);
        // An unknown value that decides nothing does not matter; one that is divided by may.
        let masked = [op(code::LD_ABS, DATA_ARGS), op(code::ST, 0), op(code::LD_IMM, 5), op(code::RET_A, 0)];
        assert_eq!(Program::check(masked.to_vec()).unwrap().constant(0), Some(5));
        let divided = [
            op(code::LD_ABS, DATA_ARGS),
            op(code::TAX, 0),
            op(code::LD_IMM, 1),
            op(code::DIV | code::OPERAND_X, 0),
            op(code::RET_K, ALLOW),
        ];
        assert_eq!(Program::check(divided.to_vec()).unwrap().constant(0), None);
    }

    /// Programs of all sorts: those that pass the check end with a verdict, and what is called constant is.
    #[test]
    fn programs_that_pass_end_and_constants_hold() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u32| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            u32::try_from(state >> 33).unwrap() % below
        };
        let codes = [
            0x20, 0x80, 0x81, 0x00, 0x01, 0x60, 0x61, 0x02, 0x03, 0x07, 0x87, 0x84, 0x05, 0x06, 0x16, 0x04,
            0x14, 0x24, 0x34, 0x44, 0x54, 0x64, 0x74, 0xa4, 0x0c, 0x1c, 0x2c, 0x3c, 0x4c, 0x5c, 0x6c, 0x7c,
            0xac, 0x15, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d, 0x94, 0x28,
        ];
        let (mut passed, mut constants) = (0, 0);
        for _ in 0..40_000 {
            let len = 1 + random(12);
            let mut program: Vec<Instruction> = (0..len)
                .map(|_| {
                    let code = codes[random(43) as usize];
                    let k = if code == 0x20 { random(17) * 4 } else { random(20) };
                    jump(code, k, u8::try_from(random(4)).unwrap(), u8::try_from(random(4)).unwrap())
                })
                .collect();
            program.push(op(code::RET_A, 0));
            let Ok(program) = Program::check(program) else { continue };
            passed += 1;
            let number = random(5);
            let constant = program.constant(number);
            constants += u32::from(constant.is_some());
            for _ in 0..8 {
                let args = core::array::from_fn(|_| u64::from(random(9)) << (random(2) * 32));
                let verdict = program.run(&call(number, args));
                assert!(constant.is_none_or(|constant| constant == verdict), "{program:?}");
            }
        }
        assert!(passed > 1000 && constants > 100, "{passed} {constants}");
    }
}
