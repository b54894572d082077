//! From rules about system calls to a classic BPF program, as libseccomp would have it decide.
//!
//! The numbers of calls are split into intervals with one treatment each, and the program is a binary search for the
//! interval. That keeps it short: a profile that allows most calls has long intervals.

use std::collections::BTreeMap;

use abi::seccomp::{
    AND, DATA_ARGS, DATA_NUMBER, ERRNO, Instruction, JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_OR_EQUAL,
    LOAD, PROGRAM_MAX, RETURN, X32_BIT,
};

/// A comparison of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    Equal(u64),
    NotEqual(u64),
    Less(u64),
    LessOrEqual(u64),
    Greater(u64),
    GreaterOrEqual(u64),
    /// The argument's bits in `mask` are those of `value`.
    Masked {
        mask: u64,
        value: u64,
    },
}

/// A condition: the argument's index, and the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    pub index: u32,
    pub test: Test,
}

/// The verdict on calls of which all conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub verdict: u32,
    pub conditions: Vec<Condition>,
}

/// The treatment that calls of one number get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Treatment {
    Always(u32),
    /// The first rule that holds counts, or else the default.
    Depends(Vec<Rule>),
}

/// A profile without names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub default: u32,
    pub calls: BTreeMap<u32, Treatment>,
    /// Calls with larger numbers, which the author of the profile cannot have known of, do not exist (`ENOSYS`).
    pub largest_known: Option<u32>,
    /// The verdict on x32 calls.
    pub x32: u32,
}

/// `ENOSYS`.
pub const NO_SUCH_CALL: u32 = ERRNO | 38;

/// Two rules have the same conditions and different verdicts.
#[derive(Debug)]
pub struct Contradiction;

impl Treatment {
    /// Adds a rule as libseccomp does: one without conditions stands for all, and the first of those counts.
    pub fn add(&mut self, rule: Rule) -> Result<(), Contradiction> {
        let Self::Depends(rules) = self else { return Ok(()) };
        if rule.conditions.is_empty() {
            *self = Self::Always(rule.verdict);
            return Ok(());
        }
        if let Some(same) = rules.iter().find(|known| known.conditions == rule.conditions) {
            return if same.verdict == rule.verdict { Ok(()) } else { Err(Contradiction) };
        }
        rules.push(rule);
        // Where rules of different verdicts hold at once libseccomp's order decides: the later argument first, equality
        // before comparisons, larger values before smaller ones.
        rules.sort_by_key(|rule| {
            let mut keys: Vec<_> = rule.conditions.iter().map(Condition::order).collect();
            keys.sort_unstable();
            keys
        });
        Ok(())
    }
}

impl Condition {
    fn order(&self) -> (u32, u32, u64) {
        let (rank, value) = match self.test {
            Test::Equal(value) | Test::NotEqual(value) => (0, value),
            Test::GreaterOrEqual(value) | Test::Less(value) => (1, value),
            Test::Greater(value) | Test::LessOrEqual(value) => (2, value),
            Test::Masked { value, .. } => (3, value),
        };
        (u32::MAX - self.index, rank, u64::MAX - value)
    }
}

/// The program; `None` if it would be too long.
pub fn compile(profile: &Profile) -> Option<Vec<Instruction>> {
    let mut intervals: Vec<(u32, Treatment)> = Vec::new();
    let mut begin = |at: u32, treatment: Treatment| match intervals.last() {
        Some((_, last)) if *last == treatment => {}
        Some((start, _)) if *start == at => {
            intervals.pop();
            intervals.push((at, treatment));
        }
        _ => intervals.push((at, treatment)),
    };
    let otherwise = Treatment::Always(profile.default);
    begin(0, otherwise.clone());
    for (number, treatment) in &profile.calls {
        begin(*number, treatment.clone());
        begin(number + 1, otherwise.clone());
    }
    if let Some(largest) = profile.largest_known {
        begin(largest + 1, Treatment::Always(NO_SUCH_CALL));
    }
    begin(X32_BIT, Treatment::Always(profile.x32));
    // No call, but what tracers put in a call's place.
    begin(u32::MAX, otherwise);
    let mut program = vec![Instruction::plain(LOAD, DATA_NUMBER)];
    program.extend(search(&intervals, profile.default));
    (program.len() <= PROGRAM_MAX).then_some(program)
}

/// Finds the interval of the number in the accumulator.
fn search(intervals: &[(u32, Treatment)], default: u32) -> Vec<Instruction> {
    let (low, high) = intervals.split_at(intervals.len() / 2);
    let Some(((first, _), _)) = high.split_first().filter(|_| !low.is_empty()) else {
        return intervals.first().map_or_else(Vec::new, |(_, treatment)| decide(treatment, default));
    };
    let (low, high) = (search(low, default), search(high, default));
    let mut code = match u8::try_from(low.len()) {
        Ok(skip) => vec![Instruction { code: JUMP_GREATER_OR_EQUAL, jt: skip, jf: 0, k: *first }],
        // A condition's jump is short.
        Err(_) => vec![
            Instruction { code: JUMP_GREATER_OR_EQUAL, jt: 0, jf: 1, k: *first },
            Instruction::plain(JUMP, u32::try_from(low.len()).unwrap_or(u32::MAX)),
        ],
    };
    code.extend(low);
    code.extend(high);
    code
}

fn decide(treatment: &Treatment, default: u32) -> Vec<Instruction> {
    match treatment {
        Treatment::Always(verdict) => vec![Instruction::plain(RETURN, *verdict)],
        Treatment::Depends(rules) => {
            let mut code: Vec<Instruction> = rules.iter().flat_map(apply).collect();
            code.push(Instruction::plain(RETURN, default));
            code
        }
    }
}

/// Where a comparison goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Next,
    /// Behind the condition: it holds.
    Holds,
    /// Behind the rule: it does not hold.
    Fails,
}

/// One instruction of a condition, with where it jumps.
type Step = (u16, u32, To, To);

/// The verdict if the conditions hold; else it goes on behind.
fn apply(rule: &Rule) -> Vec<Instruction> {
    let conditions: Vec<Vec<Step>> = rule.conditions.iter().map(steps).collect();
    let len: usize = conditions.iter().map(Vec::len).sum::<usize>() + 1;
    let mut code = Vec::new();
    for condition in &conditions {
        let end = code.len() + condition.len();
        for (operation, k, jt, jf) in condition {
            let from = code.len() + 1;
            // A rule has at most six conditions of at most six instructions.
            let to = |place: &To| match place {
                To::Next => 0,
                To::Holds => u8::try_from(end - from).unwrap_or(u8::MAX),
                To::Fails => u8::try_from(len - from).unwrap_or(u8::MAX),
            };
            code.push(Instruction { code: *operation, jt: to(jt), jf: to(jf), k: *k });
        }
    }
    code.push(Instruction::plain(RETURN, rule.verdict));
    code
}

/// The 64 bits of an argument are compared by halves, the upper one first.
fn steps(condition: &Condition) -> Vec<Step> {
    use To::{Fails, Holds, Next};
    let at = DATA_ARGS + 8 * condition.index;
    let halves = |value: u64| ((value >> 32) as u32, (value & 0xffff_ffff) as u32);
    let load = |offset: u32| (LOAD, offset, Next, Next);
    let (high, low) = (load(at + 4), load(at));
    match condition.test {
        Test::Equal(value) => {
            let (upper, lower) = halves(value);
            vec![high, (JUMP_EQUAL, upper, Next, Fails), low, (JUMP_EQUAL, lower, Next, Fails)]
        }
        Test::NotEqual(value) => {
            let (upper, lower) = halves(value);
            vec![high, (JUMP_EQUAL, upper, Next, Holds), low, (JUMP_EQUAL, lower, Fails, Next)]
        }
        Test::Greater(value) | Test::GreaterOrEqual(value) => {
            let (upper, lower) = halves(value);
            let last =
                if matches!(condition.test, Test::Greater(_)) { JUMP_GREATER } else { JUMP_GREATER_OR_EQUAL };
            vec![
                high,
                (JUMP_GREATER, upper, Holds, Next),
                (JUMP_EQUAL, upper, Next, Fails),
                low,
                (last, lower, Next, Fails),
            ]
        }
        Test::Less(value) | Test::LessOrEqual(value) => {
            let (upper, lower) = halves(value);
            let last =
                if matches!(condition.test, Test::Less(_)) { JUMP_GREATER_OR_EQUAL } else { JUMP_GREATER };
            vec![
                high,
                (JUMP_GREATER, upper, Fails, Next),
                (JUMP_EQUAL, upper, Next, Holds),
                low,
                (last, lower, Fails, Next),
            ]
        }
        Test::Masked { mask, value } => {
            let ((mask_upper, mask_lower), (upper, lower)) = (halves(mask), halves(value & mask));
            vec![
                high,
                (AND, mask_upper, Next, Next),
                (JUMP_EQUAL, upper, Next, Fails),
                low,
                (AND, mask_lower, Next, Next),
                (JUMP_EQUAL, lower, Next, Fails),
            ]
        }
    }
}
