//! Limits to what annotations may ask for.

use std::time::Duration;

use vmm::hibernate::{ExecProbe, HomePolicy, Outbound, Tier};
use vmm::jail::UserNamespace;
use vmm::jail::mitigations::Mitigations;

use super::{Asked, FromSnapshot, HostUds, NodeConfig, Pods, Sharing};
use crate::platform::PlatformChoice;

/// An annotation asks for more than the node's configuration allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot run this bundle: its annotation dev.dormouse.{name} asks for more than this node gives to strangers; leave it \
     out, or name {name:?} under allow in the node's configuration"
)]
pub struct Widening {
    pub name: &'static str,
}

/// The settings that annotations can widen, and so the names that a node's configuration may allow.
pub(super) const NAMES: &[&str] = &[
    "platform",
    "userns",
    "mitigations",
    "share-files",
    "host-uds",
    "pods",
    "snapshot",
    "share",
    "swap-dir",
    "swap-limit",
    "idle-timeout",
    "idle-ignores",
    "awake-at-most",
    "outbound",
    "exec-probe",
    "timers",
    "encrypt",
    "home",
    "memory-pressure",
    "base",
];

/// How much of the host's the modes give. `auto` may become `identity`.
fn reach(userns: UserNamespace) -> u8 {
    match userns {
        UserNamespace::Mapped => 0,
        UserNamespace::Auto => 1,
        UserNamespace::Identity => 2,
        UserNamespace::Host => 3,
    }
}

/// Whether an amount is larger than one that the node has chosen.
fn exceeds<T: Ord>(asked: Option<T>, node: Option<T>) -> bool {
    matches!((asked, node), (Some(asked), Some(node)) if asked > node)
}

/// Whether a home keeps a sleeper in memory for longer than another.
fn takes_more(asks: HomePolicy, gives: HomePolicy) -> bool {
    let most = |policy: HomePolicy| match policy.tier {
        Tier::Disk => Duration::ZERO,
        Tier::Memory => policy.disk_after.unwrap_or(Duration::MAX),
    };
    most(asks) > most(gives)
}

/// Checks the annotations of a bundle.
pub(super) fn check(bundle: &Asked, node: &NodeConfig) -> Result<(), Widening> {
    let default = &node.default;
    let turns_on = |asked: Option<bool>, node: Option<bool>| asked == Some(true) && node != Some(true);
    let (asks, gives) = (&bundle.hibernation, &default.hibernation);
    let widened = [
        ("platform", ![PlatformChoice::Auto, default.platform].contains(&bundle.platform)),
        // One that does not say gets the node's default.
        ("userns", bundle.userns != UserNamespace::Auto && reach(bundle.userns) > reach(default.userns)),
        (
            "mitigations",
            bundle.mitigations == Some(Mitigations::Off) && default.mitigations != Some(Mitigations::Off),
        ),
        ("share-files", turns_on(bundle.share_files, default.share_files)),
        ("host-uds", bundle.host_uds == Some(HostUds::Connect) && default.host_uds != Some(HostUds::Connect)),
        // Another kernel stands between containers that are separate.
        ("pods", bundle.pods == Some(Pods::Shared) && default.pods == Some(Pods::Separate)),
        // A snapshot shows its reader the memory of whoever it was made of.
        ("snapshot", matches!(bundle.snapshot, Some(FromSnapshot::Named(_)))),
        // Who shares learns from the others' use.
        (
            "share",
            bundle
                .share
                .as_ref()
                .is_some_and(|asks| *asks != Sharing::None && default.share.as_ref() != Some(asks)),
        ),
        ("swap-dir", asks.dir.is_some() && asks.dir != gives.dir),
        ("swap-limit", exceeds(asks.limit_bytes, gives.limit_bytes)),
        // Nobody takes away from a container what its node gives to all.
        ("encrypt", asks.encrypt == Some(false) && gives.encrypt == Some(true)),
        // A sleeper in memory takes the node's.
        ("home", asks.home.is_some_and(|asks| takes_more(asks, gives.home.unwrap_or_default()))),
        ("memory-pressure", exceeds(asks.pressure, gives.pressure)),
        // Who is compared with a snapshot may learn from the time it takes what is in it.
        ("base", asks.base.as_deref().is_some_and(|name| name != "none") && asks.base != gives.base),
        ("idle-timeout", exceeds(asks.idle_timeout, gives.idle_timeout)),
        // Whoever restarts the idle time keeps it awake.
        (
            "idle-ignores",
            matches!((&asks.idle_ignores, &gives.idle_ignores), (Some(asks), Some(gives)) if !asks.covers(gives)),
        ),
        ("awake-at-most", exceeds(asks.awake_at_most, gives.awake_at_most)),
        ("outbound", asks.outbound == Some(Outbound::Awake) && gives.outbound == Some(Outbound::Sleep)),
        // What wakes it more often takes more of the node.
        (
            "exec-probe",
            asks.exec_probe == Some(ExecProbe::Wake) && gives.exec_probe == Some(ExecProbe::AsleepIsAlive),
        ),
        (
            "timers",
            matches!((asks.timers, gives.timers), (Some(asks), Some(gives)) if asks.wakes_more_than(gives)),
        ),
    ];
    match widened.iter().find(|(name, is_wider)| *is_wider && !node.allows(name)) {
        Some((name, _)) => Err(Widening { name }),
        None => Ok(()),
    }
}
