//! `linux.seccomp`: the profile of a bundle becomes a filter, which the guest kernel runs.
//!
//! It decides as runc's does: names that x86-64 does not have are left out, rules with the default action have no effect,
//! and calls that are newer than all that the profile names do not exist (`ENOSYS`), unless it allows by default.

pub mod compile;
mod names;

use std::collections::BTreeMap;

use abi::seccomp::{ALLOW, ERRNO, KILL_PROCESS, KILL_THREAD, LOG, TRACE, TRAP};
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompFilterFlag, LinuxSeccompOperator,
    LinuxSyscall,
};
use vmm::boot::Filter;

use super::error::{BundleError, Result};
use compile::{Condition, NO_SUCH_CALL, Profile, Rule, Test, Treatment, compile};

/// `EPERM`, the error of rules that name none.
const ERRNO_DEFAULT: u32 = 1;
/// The largest error number.
const ERRNO_MAX: u32 = 4095;
const ARGUMENTS: usize = 6;

/// The filter of a profile.
pub(super) fn filter(asked: &LinuxSeccomp) -> Result<Filter> {
    if asked.listener_path().is_some() {
        let why = "a listener would answer system calls in the guest kernel's stead";
        return Err(BundleError::refused_because("linux.seccomp.listenerPath", why));
    }
    let flags = asked.flags().as_deref().unwrap_or_default();
    let program = compile(&profile(asked)?).ok_or_else(|| {
        BundleError::refused_because("this linux.seccomp", "a filter of more than 4096 instructions")
    })?;
    Ok(Filter { logs: flags.contains(&LinuxSeccompFilterFlag::SeccompFilterFlagLog), program })
}

/// The rules of a profile.
pub fn profile(asked: &LinuxSeccomp) -> Result<Profile> {
    let default_action = asked.default_action();
    let default = verdict("linux.seccomp.defaultAction", default_action, asked.default_errno_ret())?;
    let mut calls = BTreeMap::new();
    let mut largest = None;
    for group in asked.syscalls().as_deref().unwrap_or_default() {
        let verdict = verdict("linux.seccomp.syscalls", group.action(), group.errno_ret())?;
        let rules = rules(group, verdict)?;
        for name in group.names() {
            let Some(number) = names::number(name) else { continue };
            largest = largest.max(Some(number));
            if verdict == default {
                continue;
            }
            let treatment = calls.entry(number).or_insert(Treatment::Depends(Vec::new()));
            for rule in &rules {
                treatment.add(rule.clone()).map_err(|_| {
                    let why = "and two rules with the same conditions ask for different actions";
                    BundleError::invalid("linux.seccomp.syscalls", name, why)
                })?;
            }
        }
    }
    let permits = matches!(
        default_action,
        LinuxSeccompAction::ScmpActAllow | LinuxSeccompAction::ScmpActLog | LinuxSeccompAction::ScmpActTrace
    );
    let has_x32 = asked.architectures().as_ref().is_some_and(|list| list.contains(&Arch::ScmpArchX32));
    Ok(Profile {
        default,
        calls,
        largest_known: largest.filter(|_| !permits),
        // The guest kernel has no x32 calls. Where the profile does not know of them either, they kill.
        x32: if has_x32 { NO_SUCH_CALL } else { KILL_THREAD },
    })
}

fn verdict(what: &str, action: LinuxSeccompAction, errno: Option<u32>) -> Result<u32> {
    let number = || match errno {
        None => Ok(ERRNO_DEFAULT),
        Some(errno) if errno <= ERRNO_MAX => Ok(errno),
        Some(errno) => {
            Err(BundleError::invalid(format!("{what}: errnoRet"), errno, "and at most 4095 is possible"))
        }
    };
    Ok(match action {
        LinuxSeccompAction::ScmpActKill | LinuxSeccompAction::ScmpActKillThread => KILL_THREAD,
        LinuxSeccompAction::ScmpActKillProcess => KILL_PROCESS,
        LinuxSeccompAction::ScmpActTrap => TRAP,
        LinuxSeccompAction::ScmpActErrno => ERRNO | number()?,
        LinuxSeccompAction::ScmpActTrace => TRACE | number()?,
        LinuxSeccompAction::ScmpActLog => LOG,
        LinuxSeccompAction::ScmpActAllow => ALLOW,
        LinuxSeccompAction::ScmpActNotify => {
            let why = "a listener would answer system calls in the guest kernel's stead";
            return Err(BundleError::refused_because(format!("{what} SCMP_ACT_NOTIFY"), why));
        }
    })
}

/// The rules that a group makes for each of its calls.
fn rules(group: &LinuxSyscall, verdict: u32) -> Result<Vec<Rule>> {
    if group.names().is_empty() {
        return Err(BundleError::invalid("linux.seccomp.syscalls", "a rule", "and it names no system call"));
    }
    let args = group.args().as_deref().unwrap_or_default();
    let conditions = args.iter().map(condition).collect::<Result<Vec<Condition>>>()?;
    let repeats =
        |condition: &Condition| conditions.iter().filter(|other| other.index == condition.index).count() > 1;
    // As in runc, conditions hold together, but one of several is enough if two are about the same argument.
    if conditions.iter().any(repeats) {
        return Ok(conditions
            .iter()
            .map(|condition| Rule { verdict, conditions: vec![*condition] })
            .collect());
    }
    Ok(vec![Rule { verdict, conditions }])
}

fn condition(arg: &LinuxSeccompArg) -> Result<Condition> {
    let index = u32::try_from(arg.index()).ok().filter(|_| arg.index() < ARGUMENTS);
    let index = index.ok_or_else(|| {
        BundleError::invalid("linux.seccomp.syscalls: args.index", arg.index(), "and at most 5 is possible")
    })?;
    let value = arg.value();
    let test = match arg.op() {
        LinuxSeccompOperator::ScmpCmpNe => Test::NotEqual(value),
        LinuxSeccompOperator::ScmpCmpLt => Test::Less(value),
        LinuxSeccompOperator::ScmpCmpLe => Test::LessOrEqual(value),
        LinuxSeccompOperator::ScmpCmpEq => Test::Equal(value),
        LinuxSeccompOperator::ScmpCmpGe => Test::GreaterOrEqual(value),
        LinuxSeccompOperator::ScmpCmpGt => Test::Greater(value),
        LinuxSeccompOperator::ScmpCmpMaskedEq => {
            Test::Masked { mask: value, value: arg.value_two().unwrap_or(0) & value }
        }
    };
    Ok(Condition { index, test })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Profile> {
        profile(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn names_become_numbers_and_unknown_ones_nothing() {
        let profile = parsed(
            r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
                {"names": ["read", "no_such_call", "getpid"], "action": "SCMP_ACT_ALLOW"},
                {"names": ["seccomp"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
                {"names": ["personality"], "action": "SCMP_ACT_ALLOW",
                 "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]}]}"#,
        )
        .unwrap();
        let personality =
            Rule { verdict: ALLOW, conditions: vec![Condition { index: 0, test: Test::Equal(8) }] };
        let calls = [
            (0, Treatment::Always(ALLOW)),
            (39, Treatment::Always(ALLOW)),
            (135, Treatment::Depends(vec![personality])),
        ];
        assert_eq!(profile.calls, BTreeMap::from(calls));
        // The rule for seccomp is the default, yet its author knows the call.
        assert_eq!((profile.default, profile.largest_known), (ERRNO | 1, Some(317)));
    }

    #[test]
    fn one_of_several_conditions_on_one_argument_is_enough() {
        let profile = parsed(
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
                {"names": ["read"], "action": "SCMP_ACT_LOG", "args": [
                    {"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 9, "op": "SCMP_CMP_EQ"}]}]}"#,
        )
        .unwrap();
        let Treatment::Depends(rules) = &profile.calls[&0] else { panic!("{profile:?}") };
        assert_eq!((rules.len(), rules[0].conditions.len(), profile.largest_known), (2, 1, None));
    }

    #[test]
    fn a_rule_without_conditions_stands_for_all() {
        for order in [
            ["", "[{\"index\": 0, \"value\": 1, \"op\": \"SCMP_CMP_GT\"}]"],
            ["[{\"index\": 0, \"value\": 1, \"op\": \"SCMP_CMP_GT\"}]", ""],
        ] {
            let rule = |args: &str, action: &str| {
                let args = if args.is_empty() { "[]" } else { args };
                format!(r#"{{"names": ["read"], "action": "{action}", "args": {args}}}"#)
            };
            let actions = order.map(|args| if args.is_empty() { "SCMP_ACT_TRAP" } else { "SCMP_ACT_KILL" });
            let text = format!(
                r#"{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{}, {}]}}"#,
                rule(order[0], actions[0]),
                rule(order[1], actions[1])
            );
            assert_eq!(parsed(&text).unwrap().calls[&0], Treatment::Always(TRAP), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_taken_is_refused_by_name() {
        for (text, word) in [
            (r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#, "SCMP_ACT_NOTIFY"),
            (r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 5000}"#, "errnoRet"),
            (
                r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_KILL",
                    "args": [{"index": 6, "value": 1, "op": "SCMP_CMP_EQ"}]}]}"#,
                "index",
            ),
            (
                r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": [], "action": "SCMP_ACT_KILL"}]}"#,
                "names no",
            ),
            (
                r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
                    {"names": ["read"], "action": "SCMP_ACT_KILL", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]},
                    {"names": ["read"], "action": "SCMP_ACT_LOG", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]}]}"#,
                "different actions",
            ),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let listener = r#"{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/x"}"#;
        let error = filter(&serde_json::from_str(listener).unwrap()).unwrap_err().to_string();
        assert!(error.contains("listenerPath"), "{error}");
    }
}
