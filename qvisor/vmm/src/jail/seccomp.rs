//! The allow-list of `syscalls.rs` as seccomp filters, and the action for a call that is not on it.

use std::collections::BTreeMap;

use abi::boot::Platform;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

use super::step::JailError;
use super::syscalls::{RULES, Rule, When};
use crate::hostcall::sockets::allow;
use crate::net::devices_may_be_chosen;

fn failed(error: impl std::fmt::Display) -> JailError {
    JailError::Filter(error.to_string())
}

/// The proof that this process's system calls are filtered: only [`seal`] makes one, and nothing takes a filter away.
/// A function that reads what an attacker may have written asks for it.
#[derive(Debug)]
pub struct Seal(());

/// Installs the filter for every thread of the process, present and future. The last step before the kernel runs: it
/// cannot be undone.
pub fn seal(platform: Platform) -> Result<Seal, JailError> {
    let rules = RULES.iter().enumerate().filter(|(index, _)| !is_left_out(*index)).map(|(_, rule)| rule);
    let rules = rules.filter(|rule| rule.platform.is_none_or(|only| only == platform));
    let allowed = compile(rules, SeccompAction::Allow, forbidden_action())?;
    let absent = absent()?;
    #[cfg(debug_assertions)]
    last_word::install();
    // In this order, since the second does not let a filter be installed.
    seccompiler::apply_filter_all_threads(&absent).map_err(failed)?;
    seccompiler::apply_filter_all_threads(&allowed).map_err(failed)?;
    #[cfg(debug_assertions)]
    super::trial::run();
    Ok(Seal(()))
}

/// The filter of calls that answer `ENOSYS`; a filter has one action for all the calls it lists. The C library then
/// makes threads by `clone`, whose flags can be seen, and does without the affinity of a new thread, whose id cannot be
/// told from a stranger's.
fn absent() -> Result<BpfProgram, JailError> {
    let not_the_caller =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0).map_err(failed)?;
    let not_the_caller = SeccompRule::new(vec![not_the_caller]).map_err(failed)?;
    let calls =
        BTreeMap::from([(libc::SYS_clone3, Vec::new()), (libc::SYS_sched_getaffinity, vec![not_the_caller])]);
    let nosys = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let filter =
        SeccompFilter::new(calls, SeccompAction::Allow, nosys, TargetArch::x86_64).map_err(failed)?;
    BpfProgram::try_from(filter).map_err(failed)
}

/// The action for a call that is not listed: the end of the process. Debug builds print a last word.
fn forbidden_action() -> SeccompAction {
    if cfg!(debug_assertions) { SeccompAction::Trap } else { SeccompAction::KillProcess }
}

/// Whether a wait status is that of a VMM that its filter ended.
#[must_use]
pub fn has_ended_by_filter(status: i32) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS
}

/// For the test that each rule is needed: debug builds leave out the one with this index.
fn is_left_out(index: usize) -> bool {
    if !cfg!(debug_assertions) {
        return false;
    }
    let asked = std::env::var("DORMOUSE_TEST_WITHOUT_RULE").ok();
    asked.and_then(|text| text.parse::<usize>().ok()) == Some(index)
}

fn compile<'a>(
    rules: impl Iterator<Item = &'a Rule>,
    listed: SeccompAction,
    other: SeccompAction,
) -> Result<BpfProgram, JailError> {
    let mut table: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut program = BpfProgram::new();
    for rule in rules {
        if rule.number == HOTTEST {
            program = shortcut(rule);
        }
        let chains = table.entry(rule.number).or_default();
        for conditions in alternatives(&rule.when) {
            // A call without conditions has no chain.
            if !conditions.is_empty() {
                let conditions = conditions.into_iter().map(condition).collect::<Result<Vec<_>, _>>()?;
                chains.push(SeccompRule::new(conditions).map_err(failed)?);
            }
        }
    }
    let filter = SeccompFilter::new(table, other, listed, TargetArch::x86_64).map_err(failed)?;
    program.extend(BpfProgram::try_from(filter).map_err(failed)?);
    Ok(program)
}

/// The call of every hand-over that sleeps. The host goes through the list call by call, and caches its verdict only
/// for calls without conditions.
const HOTTEST: i64 = libc::SYS_futex;

/// Lets a call with a condition on one argument pass before the list is gone through; the list judges calls that this
/// does not let pass.
fn shortcut(rule: &Rule) -> BpfProgram {
    const LOAD: u16 = 0x20;
    const JUMP: u16 = 0x05;
    const IF_EQUAL: u16 = 0x15;
    const AND: u16 = 0x54;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const X86_64: u32 = 0xc000_003e;
    let (argument, mask, values) = match rule.when {
        When::OneOf(argument, values) => (argument, u32::MAX, values),
        When::Masked(argument, mask, values) => (argument, mask, values),
        _ => return BpfProgram::new(),
    };
    let line = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    // Jumps count from the next line.
    let count = u8::try_from(values.len()).unwrap_or(0);
    let number = u32::try_from(rule.number).unwrap_or(u32::MAX);
    let mut program = vec![
        line(LOAD, 0, 0, 4),
        line(IF_EQUAL, 0, count + 6, X86_64),
        line(LOAD, 0, 0, 0),
        line(IF_EQUAL, 0, count + 4, number),
        line(LOAD, 0, 0, 16 + 8 * u32::from(argument)),
        line(AND, 0, 0, mask),
    ];
    program.extend((0..count).zip(values).map(|(at, value)| line(IF_EQUAL, count - at, 0, *value)));
    program.extend([line(JUMP, 0, 0, 1), line(RETURN, 0, 0, ALLOW)]);
    program
}

/// One comparison of an argument's low half with a value, or of the whole argument with zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Low { argument: u8, mask: u32, value: u32 },
    Zero { argument: u8 },
}

const fn low(argument: u8, mask: u32, value: u32) -> Comparison {
    Comparison::Low { argument, mask, value }
}

/// The ways to meet a condition, each a list of comparisons that must all hold.
fn alternatives(when: &When) -> Vec<Vec<Comparison>> {
    match when {
        When::Always => vec![Vec::new()],
        When::OneOf(argument, values) => {
            values.iter().map(|value| vec![low(*argument, u32::MAX, *value)]).collect()
        }
        When::Masked(argument, mask, values) => {
            values.iter().map(|value| vec![low(*argument, *mask, *value)]).collect()
        }
        When::Zero(argument) => vec![vec![Comparison::Zero { argument: *argument }]],
        When::OwnProcess(argument) => {
            vec![vec![low(*argument, u32::MAX, crate::process::id().cast_unsigned())]]
        }
        When::SocketOption(to_set) => {
            let pair = |(level, name): (i32, i32)| {
                vec![low(1, u32::MAX, level.cast_unsigned()), low(2, u32::MAX, name.cast_unsigned())]
            };
            allow::options(*to_set, devices_may_be_chosen()).map(pair).collect()
        }
        When::Any(parts) => parts.iter().flat_map(alternatives).collect(),
        When::Every(parts) => parts.iter().fold(vec![Vec::new()], |so_far, part| {
            let part = alternatives(part);
            so_far
                .iter()
                .flat_map(|left| part.iter().map(move |right| [left.as_slice(), right].concat()))
                .collect()
        }),
    }
}

fn condition(comparison: Comparison) -> Result<SeccompCondition, JailError> {
    let made = match comparison {
        Comparison::Zero { argument } => {
            SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
        }
        Comparison::Low { argument, mask, value } => {
            let operation =
                if mask == u32::MAX { SeccompCmpOp::Eq } else { SeccompCmpOp::MaskedEq(u64::from(mask)) };
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, u64::from(value))
        }
    };
    made.map_err(failed)
}

/// Debug builds say which call it was before they end.
#[cfg(debug_assertions)]
mod last_word {
    use std::io::Write;

    /// Installs the handler of SIGSYS.
    pub fn install() {
        // SAFETY: a zeroed `sigaction` is valid; the handler makes two system calls and formats into its own stack.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_forbidden as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
        }
    }

    extern "C" fn on_forbidden(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: `siginfo` of SIGSYS has the call's number behind the address of the instruction.
        let number = unsafe { info.cast::<u8>().add(24).cast::<i32>().read() };
        let mut text = [0_u8; 96];
        let room = text.len();
        let mut rest = &mut text[..];
        let _ = writeln!(rest, "dormouse: the VMM made a forbidden call, number {number}; it ends");
        let len = room - rest.len();
        // SAFETY: writes the text above, then ends the process.
        unsafe {
            libc::write(2, text.as_ptr().cast(), len);
            libc::_exit(128 + libc::SIGSYS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jail::syscalls::When::{Every, Masked, OneOf};

    #[test]
    fn conditions_multiply_out() {
        const BOTH: When = Every(&[OneOf(0, &[2, 10]), Masked(1, 0xf, &[1, 2])]);
        assert_eq!(alternatives(&BOTH).len(), 4);
        assert_eq!(alternatives(&BOTH)[3], [low(0, u32::MAX, 10), low(1, 0xf, 2)]);
        assert_eq!(alternatives(&When::Always), [vec![]]);
    }

    /// The result of a program without arithmetic but `and`; `None`: it ended without one.
    fn run(program: &[sock_filter], data: impl Fn(u32) -> u32) -> Option<u32> {
        let (mut at, mut value) = (0, 0);
        while let Some(line) = program.get(at) {
            at += 1;
            match line.code {
                0x20 => value = data(line.k),
                0x54 => value &= line.k,
                0x05 => at += line.k as usize,
                0x15 => at += usize::from(if value == line.k { line.jt } else { line.jf }),
                _ => return Some(line.k),
            }
        }
        None
    }

    #[test]
    fn the_shortcut_lets_pass_what_the_list_does() {
        let rule = RULES.iter().find(|rule| rule.number == HOTTEST).unwrap();
        let program = shortcut(rule);
        let verdict = |arch, number, operation| {
            run(&program, |offset| match offset {
                0 => number,
                4 => arch,
                24 => operation,
                _ => panic!("{offset}"),
            })
        };
        let (arch, futex) = (0xc000_003e, u32::try_from(libc::SYS_futex).unwrap());
        for operation in [0, 1, 9, 128, 129, 137, 0x109] {
            assert_eq!(verdict(arch, futex, operation), Some(0x7fff_0000), "{operation}");
        }
        for operation in [2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 0x200, 0x8000_0000] {
            assert_eq!(verdict(arch, futex, operation), None, "{operation}");
        }
        for (arch, number) in [(0x4000_0003, futex), (arch, futex + 1), (arch, futex | 1 << 30)] {
            assert_eq!(verdict(arch, number, 0), None);
        }
    }

    #[test]
    fn both_filters_compile() {
        for platform in [Platform::Kvm, Platform::Systrap] {
            let rules = RULES.iter().filter(|rule| rule.platform.is_none_or(|only| only == platform));
            let program = compile(rules, SeccompAction::Allow, SeccompAction::KillProcess).unwrap();
            assert!(program.len() < 4096, "{}", program.len());
        }
    }
}
