//! Chains of filters: what a task has, its children get, and only grows.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::seccomp::{ACTION_BITS, ALLOW, INSTRUCTION_BYTES, Instruction};
use machine::errno::{Errno, Result};
use machine::mm::account;

use super::program::{Data, Program};

/// Numbers of calls whose verdict is found out beforehand. No call has a larger one.
pub const NUMBERS: usize = 512;
/// Most instructions of a chain, with [`FILTER_COST`] for each of its filters.
const PATH_MAX: usize = 32768;
const FILTER_COST: usize = 4;

/// A set of numbers of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers([u64; NUMBERS / 64]);

impl Numbers {
    #[inline]
    fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    /// The calls that a program allows whatever their arguments are.
    fn allowed_by(program: &Program) -> Self {
        let mut words = [0; NUMBERS / 64];
        for (word, first) in words.iter_mut().zip((0u32..).step_by(64)) {
            for bit in 0..64 {
                let is_allowed =
                    program.constant(first + bit).is_some_and(|verdict| verdict & ACTION_BITS == ALLOW);
                *word |= u64::from(is_allowed) << bit;
            }
        }
        Self(words)
    }

    fn both(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= other);
        self
    }
}

/// A program that no task has yet.
#[derive(Debug)]
pub struct NewFilter {
    program: Program,
    allowed: Numbers,
    logs: bool,
}

impl NewFilter {
    /// Checks a program (`EINVAL`) and finds out which calls it always allows. `logs`: what it does not allow is logged.
    pub fn new(code: Vec<Instruction>, logs: bool) -> Result<Self> {
        account::check(size_of::<Filter>() + code.len() * INSTRUCTION_BYTES)?;
        let program = Program::check(code)?;
        Ok(Self { allowed: Numbers::allowed_by(&program), program, logs })
    }

    /// The filter at the head of a chain; `ENOMEM` if that becomes too long.
    pub fn onto(self, older: Option<Arc<Filter>>) -> Result<Arc<Filter>> {
        let (count, path, allowed) = match &older {
            Some(older) => (older.count, older.path + FILTER_COST, self.allowed.both(&older.allowed)),
            None => (0, 0, self.allowed),
        };
        let path = path + self.program.len();
        if path > PATH_MAX {
            return Err(Errno::ENOMEM);
        }
        let Self { program, logs, .. } = self;
        Ok(Arc::new(Filter { program, logs, older, allowed, count: count + 1, path }))
    }
}

/// A filter, with those that were there before it.
#[derive(Debug)]
pub struct Filter {
    program: Program,
    logs: bool,
    older: Option<Arc<Filter>>,
    /// The numbers of the calls that the whole chain allows without a look at the arguments.
    allowed: Numbers,
    count: u32,
    path: usize,
}

/// The verdict of a chain of filters on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The action, with its data.
    pub value: u32,
    /// The filter that said so wants it logged.
    pub logs: bool,
}

impl Verdict {
    /// The action alone.
    pub fn action(self) -> u32 {
        self.value & ACTION_BITS
    }
}

impl Filter {
    /// Whether the chain allows all calls with this number.
    #[inline]
    pub fn always_allows(&self, number: u32) -> bool {
        self.allowed.has(number)
    }

    /// The most restrictive verdict in the chain; of equal ones the latest filter's.
    pub fn verdict(&self, data: &Data) -> Verdict {
        let strictness = |value: u32| (value & ACTION_BITS).cast_signed();
        let mut verdict = Verdict { value: ALLOW, logs: false };
        let mut next = Some(self);
        while let Some(filter) = next {
            let value = filter.program.run(data);
            if strictness(value) < strictness(verdict.value) {
                verdict = Verdict { value, logs: filter.logs };
            }
            next = filter.older.as_deref();
        }
        verdict
    }

    /// Bytes of kernel memory that the chain's instructions take, of eight bytes each.
    pub fn bytes(&self) -> u64 {
        self.path as u64 * 8
    }

    /// Number of filters in the chain.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether the chain is `older` with perhaps more filters; each chain is one of the empty chain.
    pub fn extends(&self, older: Option<&Filter>) -> bool {
        let Some(older) = older else { return true };
        let mut next = Some(self);
        while let Some(filter) = next {
            if core::ptr::eq(filter, older) {
                return true;
            }
            next = filter.older.as_deref();
        }
        false
    }
}

impl Drop for Filter {
    /// One after the other: a chain is longer than a kernel stack is deep.
    fn drop(&mut self) {
        let mut next = self.older.take();
        while let Some(mut filter) = next.and_then(Arc::into_inner) {
            next = filter.older.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::seccomp::{
        DATA_ARGS, DATA_NUMBER, ERRNO, JUMP_EQUAL, KILL_PROCESS, KILL_THREAD, LOAD, LOG, RETURN, TRACE, TRAP,
    };

    fn constant(value: u32) -> Vec<Instruction> {
        alloc::vec![Instruction::plain(RETURN, value)]
    }

    /// `value` for the calls whose word at `offset` is `word`, else they are allowed.
    fn if_word(offset: u32, word: u32, value: u32) -> Vec<Instruction> {
        alloc::vec![
            Instruction::plain(LOAD, offset),
            Instruction { code: JUMP_EQUAL, jt: 0, jf: 1, k: word },
            Instruction::plain(RETURN, value),
            Instruction::plain(RETURN, ALLOW),
        ]
    }

    fn chain(programs: &[Vec<Instruction>]) -> Arc<Filter> {
        let add = |older, code: &Vec<Instruction>| {
            Some(NewFilter::new(code.clone(), false).unwrap().onto(older).unwrap())
        };
        programs.iter().fold(None, add).unwrap()
    }

    fn about(number: u32) -> Data {
        Data::new(number, 0, &[5, 0, 0, 0, 0, 0])
    }

    #[test]
    fn the_most_restrictive_verdict_counts() {
        let order = [KILL_PROCESS, KILL_THREAD, TRAP, ERRNO, TRACE, LOG, ALLOW];
        for (at, stricter) in order.iter().enumerate() {
            for other in &order[at..] {
                for pair in [[*stricter, *other], [*other, *stricter]] {
                    assert_eq!(chain(&pair.map(constant)).verdict(&about(0)).value, *stricter);
                }
            }
        }
        // Of equal ones the latest.
        assert_eq!(chain(&[constant(ERRNO | 1), constant(ERRNO | 2)]).verdict(&about(0)).value, ERRNO | 2);
    }

    #[test]
    fn what_is_always_allowed_is_what_every_filter_always_allows() {
        let filter = chain(&[
            if_word(DATA_NUMBER, 7, ERRNO),
            if_word(DATA_NUMBER, 511, TRAP),
            if_word(DATA_ARGS, 5, LOG),
        ]);
        assert_eq!((filter.always_allows(7), filter.always_allows(8)), (false, false));
        let filter = chain(&[if_word(DATA_NUMBER, 7, ERRNO), if_word(DATA_NUMBER, 511, TRAP)]);
        for number in [0, 6, 8, 63, 64, 510] {
            assert!(filter.always_allows(number), "{number}");
            assert_eq!(filter.verdict(&about(number)).value, ALLOW);
        }
        for number in [7, 511, 512, u32::MAX] {
            assert!(!filter.always_allows(number), "{number}");
        }
        assert_eq!((filter.verdict(&about(7)).action(), filter.verdict(&about(511)).action()), (ERRNO, TRAP));
    }

    #[test]
    fn chains_have_a_longest_length_and_end_without_recursion() {
        let mut head = None;
        let mut count = 0;
        loop {
            match NewFilter::new(constant(ALLOW), false).unwrap().onto(head.clone()) {
                Ok(longer) => head = Some(longer),
                Err(error) => break assert_eq!(error, Errno::ENOMEM),
            }
            count += 1;
        }
        let head = head.unwrap();
        assert_eq!((count, head.count()), (6554, 6554));
        // On a stack that would not hold a frame for each of them.
        std::thread::Builder::new().stack_size(32 << 10).spawn(move || drop(head)).unwrap().join().unwrap();
    }

    #[test]
    fn a_chain_extends_what_it_was_made_from() {
        let base = chain(&[constant(ALLOW)]);
        let longer = NewFilter::new(constant(ALLOW), false).unwrap().onto(Some(base.clone())).unwrap();
        let other = NewFilter::new(constant(ALLOW), false).unwrap().onto(Some(base.clone())).unwrap();
        assert!(longer.extends(None) && longer.extends(Some(&base)) && longer.extends(Some(&longer)));
        assert!(!base.extends(Some(&longer)) && !other.extends(Some(&longer)));
    }
}
