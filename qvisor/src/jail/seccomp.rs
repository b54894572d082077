//! The allow-list of `syscalls.rs` as seccomp filters, and what happens to a call that is not on it.

use std::collections::BTreeMap;

use abi::boot::Platform;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::JailError;
use super::syscalls::{RULES, Rule, When};

fn failed(error: impl std::fmt::Display) -> JailError {
    JailError::Filter(error.to_string())
}

/// Installs the filter for every thread of the process, present and future. The last step before the kernel runs: it
/// cannot be undone.
pub fn seal(platform: Platform) -> Result<(), JailError> {
    let rules = RULES.iter().enumerate().filter(|(index, _)| !is_left_out(*index)).map(|(_, rule)| rule);
    let rules = rules.filter(|rule| rule.platform.is_none_or(|only| only == platform));
    let allowed = compile(rules, SeccompAction::Allow, forbidden_action())?;
    // A filter has one answer for what it lists; this one makes the C library use `clone`, whose flags can be seen.
    let absent = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let nosys = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let absent =
        SeccompFilter::new(absent, SeccompAction::Allow, nosys, TargetArch::x86_64).map_err(failed)?;
    let absent = BpfProgram::try_from(absent).map_err(failed)?;
    #[cfg(debug_assertions)]
    last_word::install();
    // In this order, since the second does not let a filter be installed.
    seccompiler::apply_filter_all_threads(&absent).map_err(failed)?;
    seccompiler::apply_filter_all_threads(&allowed).map_err(failed)?;
    #[cfg(debug_assertions)]
    super::trial::run();
    Ok(())
}

/// What a call that is not listed leads to: the end. Debug builds have a last word.
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
    for rule in rules {
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
    BpfProgram::try_from(filter).map_err(failed)
}

/// One comparison: argument, the bits that count, value.
type Comparison = (u8, u32, u32);

/// The ways to meet a condition, each a list of comparisons that must all hold.
fn alternatives(when: &When) -> Vec<Vec<Comparison>> {
    match when {
        When::Always => vec![Vec::new()],
        When::OneOf(argument, values) => {
            values.iter().map(|value| vec![(*argument, u32::MAX, *value)]).collect()
        }
        When::Masked(argument, mask, values) => {
            values.iter().map(|value| vec![(*argument, *mask, *value)]).collect()
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

fn condition((argument, mask, value): Comparison) -> Result<SeccompCondition, JailError> {
    let operation = if mask == u32::MAX { SeccompCmpOp::Eq } else { SeccompCmpOp::MaskedEq(u64::from(mask)) };
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, u64::from(value)).map_err(failed)
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
        assert_eq!(alternatives(&BOTH)[3], [(0, u32::MAX, 10), (1, 0xf, 2)]);
        assert_eq!(alternatives(&When::Always), [vec![]]);
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
