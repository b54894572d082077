//! Profiles of bundles, compiled by the runtime and run by the guest kernel, decide as their rules say.

use std::collections::BTreeMap;

use abi::seccomp::{ALLOW, ERRNO, Instruction, KILL_PROCESS, LOG, TRAP, X32_BIT};
use qkernel::seccomp::filter::{Filter, NewFilter};
use qkernel::seccomp::program::Data;
use runtime::oci::seccomp::compile::{Condition, NO_SUCH_CALL, Profile, Rule, Test, Treatment, compile};

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }

    /// Numbers about which comparisons of halves may go wrong.
    fn value(&mut self) -> u64 {
        const HALVES: &[u64] = &[0, 1, 2, 7, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];
        self.of(HALVES) << 32 | self.of(HALVES)
    }

    fn test(&mut self) -> Test {
        let value = self.value();
        match self.below(7) {
            0 => Test::Equal(value),
            1 => Test::NotEqual(value),
            2 => Test::Less(value),
            3 => Test::LessOrEqual(value),
            4 => Test::Greater(value),
            5 => Test::GreaterOrEqual(value),
            _ => Test::Masked { mask: self.value(), value },
        }
    }

    fn profile(&mut self) -> Profile {
        const VERDICTS: &[u32] = &[ALLOW, ERRNO | 1, ERRNO | 7, TRAP, LOG, KILL_PROCESS];
        let mut calls = BTreeMap::new();
        for _ in 0..self.below(200) {
            let number = u32::try_from(self.below(470)).unwrap();
            let treatment = calls.entry(number).or_insert(Treatment::Depends(Vec::new()));
            let conditions = (0..self.below(4))
                .map(|index| Condition { index: u32::try_from(index).unwrap(), test: self.test() });
            let conditions = conditions.collect();
            // One that contradicts another is not in the profile.
            let _ = treatment.add(Rule { verdict: self.of(VERDICTS), conditions });
        }
        // None of the calls is larger.
        let largest_known = self.of(&[None, Some(469)]);
        Profile { default: self.of(VERDICTS), calls, largest_known, x32: self.of(&[NO_SUCH_CALL, 0]) }
    }
}

fn holds(condition: &Condition, args: &[u64; 6]) -> bool {
    let arg = args[condition.index as usize];
    match condition.test {
        Test::Equal(value) => arg == value,
        Test::NotEqual(value) => arg != value,
        Test::Less(value) => arg < value,
        Test::LessOrEqual(value) => arg <= value,
        Test::Greater(value) => arg > value,
        Test::GreaterOrEqual(value) => arg >= value,
        Test::Masked { mask, value } => arg & mask == value & mask,
    }
}

/// The verdict that a profile's rules give for a call, read as they stand.
fn expected(profile: &Profile, number: u32, args: &[u64; 6]) -> u32 {
    if (X32_BIT..u32::MAX).contains(&number) {
        return profile.x32;
    }
    if number != u32::MAX && profile.largest_known.is_some_and(|largest| number > largest) {
        return NO_SUCH_CALL;
    }
    match profile.calls.get(&number) {
        Some(Treatment::Always(verdict)) => *verdict,
        Some(Treatment::Depends(rules)) => {
            let rule =
                rules.iter().find(|rule| rule.conditions.iter().all(|condition| holds(condition, args)));
            rule.map_or(profile.default, |rule| rule.verdict)
        }
        None => profile.default,
    }
}

fn filter_of(program: Vec<Instruction>) -> std::sync::Arc<Filter> {
    NewFilter::new(program, false).expect("the kernel takes what the runtime compiles").onto(None).unwrap()
}

#[test]
fn compiled_profiles_decide_as_their_rules_say() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut taken = 0;
    for _ in 0..60 {
        let profile = random.profile();
        let Some(program) = compile(&profile) else { continue };
        taken += 1;
        let filter = filter_of(program);
        for number in (0..512).chain([X32_BIT, X32_BIT + 39, u32::MAX - 1, u32::MAX]) {
            for _ in 0..12 {
                let args = std::array::from_fn(|_| random.value());
                let verdict = filter.verdict(&Data::new(number, 0, &args)).value;
                assert_eq!(
                    verdict,
                    expected(&profile, number, &args),
                    "{number} {args:x?} {:?}",
                    profile.calls.get(&number)
                );
                assert!(!filter.always_allows(number) || verdict == ALLOW, "{number}");
            }
        }
    }
    assert!(taken > 40, "{taken}");
}

#[test]
fn calls_that_a_profile_allows_cost_no_look_at_the_filter() {
    let calls: BTreeMap<u32, Treatment> =
        (0..300).filter(|number| number % 7 != 0).map(|number| (number, Treatment::Always(ALLOW))).collect();
    let profile = Profile { default: ERRNO | 1, calls, largest_known: Some(300), x32: 0 };
    let filter = filter_of(compile(&profile).unwrap());
    for number in 0..512 {
        assert_eq!(filter.always_allows(number), number < 300 && number % 7 != 0, "{number}");
    }
}

#[test]
fn a_profile_with_rules_for_every_call_is_taken() {
    let rule = |verdict| Rule { verdict, conditions: vec![Condition { index: 0, test: Test::Greater(7) }] };
    let calls =
        (0..470).map(|number| (number, Treatment::Depends(vec![rule(ERRNO | (number % 100))]))).collect();
    let profile = Profile { default: ALLOW, calls, largest_known: None, x32: 0 };
    let filter = filter_of(compile(&profile).unwrap());
    let verdict = |number, arg| filter.verdict(&Data::new(number, 0, &[arg, 0, 0, 0, 0, 0])).value;
    assert_eq!((verdict(0, 8), verdict(469, 8), verdict(250, 7)), (ERRNO, ERRNO | 69, ALLOW));
}
