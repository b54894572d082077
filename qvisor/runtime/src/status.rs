//! The states of a sandbox, in the words that users read.

use serde::{Deserialize, Serialize};

/// How far a sandbox has got, as the OCI runtime specification has it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Creating,
    Created,
    Running,
    /// Stopped where it stands; its memory stays where it is.
    Paused,
    Stopped,
}

/// A sandbox's activity, and the place of its memory (Hibernate Container, section 3.1).
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxState {
    /// All of its memory is there, and no processor has anything to do.
    Warm,
    /// All of its memory is there, and it works.
    Running,
    /// Its memory is in its home.
    Hibernated,
    /// It was woken and works; its memory comes back as it is used.
    HibernateRunning,
    /// It was woken, and no processor has anything to do.
    WokenUp,
}

impl SandboxState {
    /// This state with a processor at work: `Running` for `Warm`, `HibernateRunning` for `WokenUp`, else unchanged.
    #[must_use]
    pub fn when_busy(self) -> Self {
        match self {
            Self::Warm => Self::Running,
            Self::WokenUp => Self::HibernateRunning,
            other => other,
        }
    }
}

impl std::fmt::Display for SandboxState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Warm => "warm",
            Self::Running => "running",
            Self::Hibernated => "hibernated",
            Self::HibernateRunning => "hibernate-running",
            Self::WokenUp => "woken-up",
        })
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Creating => "creating",
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        })
    }
}
