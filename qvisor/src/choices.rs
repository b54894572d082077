//! Options whose value is one of a fixed list. The descriptions of the values are shown by `--help`.

use runtime::platform;
use runtime::settings::HostUds;
use vmm::hibernate::{ExecProbe, Outbound, Reap};
use vmm::jail::UserNamespace;
use vmm::jail::mitigations::Mitigations;
use vmm::net::Network;

/// How a log file is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// How a list is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ListFormat {
    #[default]
    Table,
    Json,
}

/// Which platform a sandbox is to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PlatformChoice {
    /// kvm where it runs ring 0 natively, else systrap
    #[default]
    Auto,
    Kvm,
    Systrap,
}

/// Something that is on or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    #[default]
    On,
    Off,
}

/// Which network a sandbox is to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum NetChoice {
    /// the caller's, loopback included
    #[default]
    Host,
    /// one of its own with nothing but a loopback interface
    None,
}

impl From<PlatformChoice> for platform::PlatformChoice {
    fn from(choice: PlatformChoice) -> Self {
        match choice {
            PlatformChoice::Auto => Self::Auto,
            PlatformChoice::Kvm => Self::Kvm,
            PlatformChoice::Systrap => Self::Systrap,
        }
    }
}

impl From<NetChoice> for Network {
    fn from(choice: NetChoice) -> Self {
        match choice {
            NetChoice::Host => Self::Host,
            NetChoice::None => Self::None,
        }
    }
}

/// The modes of user namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum UserNamespaceChoice {
    /// mapped where the file systems allow it, else identity
    #[default]
    Auto,
    /// Root in the sandbox is nobody on the host
    Mapped,
    /// Root in the sandbox owns files as the host's root does, and has no power beyond files
    Identity,
    /// No user namespace
    Host,
}

impl From<UserNamespaceChoice> for UserNamespace {
    fn from(choice: UserNamespaceChoice) -> Self {
        match choice {
            UserNamespaceChoice::Auto => Self::Auto,
            UserNamespaceChoice::Mapped => Self::Mapped,
            UserNamespaceChoice::Identity => Self::Identity,
            UserNamespaceChoice::Host => Self::Host,
        }
    }
}

/// Mitigations of speculative execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MitigationsChoice {
    /// all that the host lets a process choose
    #[default]
    Auto,
    /// those only that the host imposes
    Off,
}

impl From<MitigationsChoice> for Mitigations {
    fn from(choice: MitigationsChoice) -> Self {
        match choice {
            MitigationsChoice::Auto => Self::Auto,
            MitigationsChoice::Off => Self::Off,
        }
    }
}

/// Unix sockets of the host in volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HostUdsChoice {
    /// nothing
    #[default]
    None,
    /// connect to them
    Connect,
}

impl From<HostUdsChoice> for HostUds {
    fn from(choice: HostUdsChoice) -> Self {
        match choice {
            HostUdsChoice::None => Self::None,
            HostUdsChoice::Connect => Self::Connect,
        }
    }
}

/// Probes of a sandbox that is hibernated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ExecProbeChoice {
    /// what it runs, once the sandbox is awake
    Wake,
    /// exit code 0: nothing runs, and the sandbox sleeps on
    AsleepIsAlive,
}

impl From<ExecProbeChoice> for ExecProbe {
    fn from(choice: ExecProbeChoice) -> Self {
        match choice {
            ExecProbeChoice::Wake => Self::Wake,
            ExecProbeChoice::AsleepIsAlive => Self::AsleepIsAlive,
        }
    }
}

/// A sandbox that is idle but waits, with a time-out, for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OutboundChoice {
    /// it stays awake: the time-out would not wake it
    Awake,
    /// it sleeps: the answer wakes it
    Sleep,
}

impl From<OutboundChoice> for Outbound {
    fn from(choice: OutboundChoice) -> Self {
        match choice {
            OutboundChoice::Awake => Self::Awake,
            OutboundChoice::Sleep => Self::Sleep,
        }
    }
}

/// How the working set comes back when a sandbox wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ReapChoice {
    /// Page by page, as it is touched
    Off,
    /// All at once, before anything runs
    On,
    /// All at once, while programs run already
    Stream,
}

impl From<ReapChoice> for Reap {
    fn from(choice: ReapChoice) -> Self {
        match choice {
            ReapChoice::Off => Self::Off,
            ReapChoice::On => Self::On,
            ReapChoice::Stream => Self::Stream,
        }
    }
}
