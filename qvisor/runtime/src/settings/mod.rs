//! How a container is run, beyond what its bundle describes: the options of the command, the annotations of the bundle,
//! and the node's configuration.
//!
//! All three speak the same words ([`Asked::set`]). An option of the command counts before an annotation, and that before
//! the node's default. Annotations come from strangers: an annotation may ask for less than the node's default gives, but
//! for more only where the node's configuration allows it by name ([`NodeConfig`]).

mod node;
mod widening;

#[cfg(test)]
mod tests;

use std::str::FromStr;

use vmm::hibernate::{CodecError, ExecProbe, Outbound, Wishes};
use vmm::jail::UserNamespace;
use vmm::jail::mitigations::Mitigations;

use crate::platform::PlatformChoice;
use crate::state::Id;
use crate::units::{parse_home, parse_percent, parse_size, parse_time, parse_timers};
pub use node::{NodeConfig, NodeConfigError};
pub use widening::Widening;

/// The effect of `pause`: tasks stop, or the container hibernates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PauseKind {
    /// Tasks stop where they stand; memory stays.
    #[default]
    Freeze,
    /// The container hibernates, and only `resume` wakes it.
    Hibernate,
}

/// Where the containers of a pod run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pods {
    /// In one sandbox, with one kernel.
    #[default]
    Shared,
    /// In a sandbox each.
    Separate,
}

/// The use that programs may make of Unix sockets of the host that volumes show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostUds {
    #[default]
    None,
    /// Connect to them ([`vmm::broker`]).
    Connect,
}

/// The snapshot that a container begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FromSnapshot {
    /// It boots.
    #[default]
    None,
    /// The one of this name in the store of the user who runs this.
    Named(Id),
}

/// With whom a sandbox that begins with a snapshot shares the pages of it that it does not write. They can learn from each other's use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// It has a copy of each.
    #[default]
    None,
    /// With all others that share this snapshot so.
    Snapshot,
    /// With those of this domain.
    Domain(Id),
}

/// Most letters of a domain's name: it is a part of a file's.
const DOMAIN_MAX: usize = 200;

impl FromStr for Sharing {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "snapshot" => Ok(Self::Snapshot),
            domain if domain.len() > DOMAIN_MAX => Err("longer than a domain's name may be, 200 letters"),
            domain => {
                Id::new(domain).map(Self::Domain).map_err(|_| "neither none, snapshot nor a domain's name")
            }
        }
    }
}

/// The settings that somebody asks for: a command, a bundle or a node's configuration. `None` and `auto`: they did not
/// say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub platform: PlatformChoice,
    /// The host user that the container's root is.
    pub userns: UserNamespace,
    pub mitigations: Option<Mitigations>,
    /// See [`vmm::boot::BootSpec::share_files`].
    pub share_files: Option<bool>,
    /// Whether [`vmm::boot::BootSpec::plain_calls`] is off.
    pub patch_calls: Option<bool>,
    /// Whether programs connect to Unix sockets of the host in volumes.
    pub host_uds: Option<HostUds>,
    pub pause: Option<PauseKind>,
    pub pods: Option<Pods>,
    pub snapshot: Option<FromSnapshot>,
    pub share: Option<Sharing>,
    pub hibernation: Wishes,
}

/// How a container is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub platform: PlatformChoice,
    pub userns: UserNamespace,
    pub mitigations: Mitigations,
    pub share_files: bool,
    pub patch_calls: bool,
    pub host_uds: HostUds,
    pub pause: PauseKind,
    pub pods: Pods,
    pub snapshot: FromSnapshot,
    pub share: Sharing,
    /// Somebody has asked for that, and it is not the node's default.
    pub asks_to_share: bool,
    pub hibernation: Wishes,
}

/// Why a setting does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetError {
    /// There is no setting of this name.
    Unknown,
    /// The words follow "which is".
    Value(String),
}

fn one_of<T>(value: &str, known: &[(&str, T)]) -> Result<T, SetError>
where
    T: Copy,
{
    let found = known.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning);
    found.ok_or_else(|| {
        let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
        let (last, rest) = words.split_last().unwrap_or((&"", &[]));
        SetError::Value(format!("neither {} nor {last}", rest.join(", ")))
    })
}

/// The words of a setting that is on or off.
const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];

/// Takes one setting of how a sandbox hibernates.
fn set_wish(wishes: &mut Wishes, name: &str, value: &str) -> Result<(), SetError> {
    let amount = |error: String| SetError::Value(format!("no such amount: {error}"));
    match name {
        "swap-dir" => match value.starts_with('/') {
            true => wishes.dir = Some(value.into()),
            false => return Err(SetError::Value("no absolute path".into())),
        },
        "swap-limit" => wishes.limit_bytes = Some(parse_size(value).map_err(amount)?),
        "codec" => {
            let why = |error: CodecError| SetError::Value(format!("no codec: {error}"));
            wishes.codec = Some(value.parse().map_err(why)?);
        }
        "settle" => wishes.settle = Some(parse_time(value).map_err(amount)?),
        "home" => {
            let why = |error: String| SetError::Value(format!("no home: {error}"));
            wishes.home = Some(parse_home(value).map_err(why)?);
        }
        "base" => {
            let why = |_| SetError::Value("neither none nor a snapshot's name".into());
            wishes.base = Some(Id::new(value).map_err(why)?.as_str().to_owned());
        }
        "memory-pressure" => wishes.pressure = Some(parse_percent(value).map_err(amount)?),
        "encrypt" => wishes.encrypt = Some(one_of(value, &SWITCH)?),
        "idle-timeout" => wishes.idle_timeout = Some(parse_time(value).map_err(amount)?),
        "idle-ignores" => {
            let why = |error: String| SetError::Value(format!("no list of addresses: {error}"));
            wishes.idle_ignores = Some(value.parse().map_err(why)?);
        }
        "awake-at-most" => wishes.awake_at_most = Some(parse_time(value).map_err(amount)?),
        "outbound" => {
            let known = [("awake", Outbound::Awake), ("sleep", Outbound::Sleep)];
            wishes.outbound = Some(one_of(value, &known)?);
        }
        "exec-probe" => {
            let known = [("wake", ExecProbe::Wake), ("asleep-is-alive", ExecProbe::AsleepIsAlive)];
            wishes.exec_probe = Some(one_of(value, &known)?);
        }
        "timers" => {
            let why = |error: String| SetError::Value(format!("no way to treat timers: {error}"));
            wishes.timers = Some(parse_timers(value).map_err(why)?);
        }
        "reap" => {
            let why = || SetError::Value("neither on, off nor stream".into());
            wishes.reap = Some(value.parse().map_err(|()| why())?);
        }
        _ => return Err(SetError::Unknown),
    }
    Ok(())
}

impl Asked {
    /// Takes one setting, by the name that annotations (after `dev.dormouse.`) and the node's configuration have for it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "platform" => {
                use PlatformChoice::{Auto, Kvm, Systrap};
                self.platform = one_of(value, &[("auto", Auto), ("kvm", Kvm), ("systrap", Systrap)])?;
            }
            "userns" => {
                use UserNamespace::{Auto, Host, Identity, Mapped};
                let known = [("auto", Auto), ("mapped", Mapped), ("identity", Identity), ("host", Host)];
                self.userns = one_of(value, &known)?;
            }
            "mitigations" => {
                let known = [("auto", Mitigations::Auto), ("off", Mitigations::Off)];
                self.mitigations = Some(one_of(value, &known)?);
            }
            "share-files" => self.share_files = Some(one_of(value, &SWITCH)?),
            "patch-calls" => self.patch_calls = Some(one_of(value, &SWITCH)?),
            "host-uds" => {
                let known = [("none", HostUds::None), ("connect", HostUds::Connect)];
                self.host_uds = Some(one_of(value, &known)?);
            }
            "pause" => {
                let known = [("freeze", PauseKind::Freeze), ("hibernate", PauseKind::Hibernate)];
                self.pause = Some(one_of(value, &known)?);
            }
            "pods" => {
                let known = [("shared", Pods::Shared), ("separate", Pods::Separate)];
                self.pods = Some(one_of(value, &known)?);
            }
            "snapshot" => {
                let why = |_| SetError::Value("neither none nor a snapshot's name".into());
                let named = |name| Id::new(name).map(FromSnapshot::Named).map_err(why);
                self.snapshot = Some(if value == "none" { FromSnapshot::None } else { named(value)? });
            }
            "share" => self.share = Some(value.parse().map_err(|why: &str| SetError::Value(why.into()))?),
            _ => return set_wish(&mut self.hibernation, name, value),
        }
        Ok(())
    }

    /// With what somebody else asks for where this one did not say.
    #[must_use]
    fn or(self, other: Self) -> Self {
        Self {
            platform: self.platform.or(other.platform),
            userns: if self.userns == UserNamespace::Auto { other.userns } else { self.userns },
            mitigations: self.mitigations.or(other.mitigations),
            share_files: self.share_files.or(other.share_files),
            patch_calls: self.patch_calls.or(other.patch_calls),
            host_uds: self.host_uds.or(other.host_uds),
            pause: self.pause.or(other.pause),
            pods: self.pods.or(other.pods),
            snapshot: self.snapshot.or(other.snapshot),
            share: self.share.or(other.share),
            hibernation: self.hibernation.or(other.hibernation),
        }
    }
}

impl Settings {
    /// How a container is run whose command and bundle ask for this. An annotation that asks for more than the node
    /// allows is an error.
    pub fn settle(command: Asked, bundle: &Asked, node: &NodeConfig) -> Result<Self, Widening> {
        widening::check(bundle, node)?;
        let asks_to_share = command.share.is_some() || bundle.share.is_some();
        let all = command.or(bundle.clone()).or(node.default.clone());
        Ok(Self {
            platform: all.platform,
            userns: all.userns,
            mitigations: all.mitigations.unwrap_or_default(),
            share_files: all.share_files.unwrap_or_default(),
            patch_calls: all.patch_calls.unwrap_or(true),
            host_uds: all.host_uds.unwrap_or_default(),
            pause: all.pause.unwrap_or_default(),
            pods: all.pods.unwrap_or_default(),
            snapshot: all.snapshot.unwrap_or_default(),
            share: all.share.unwrap_or_default(),
            asks_to_share,
            hibernation: all.hibernation,
        })
    }
}
