//! How far a container has got, and what moved its sandbox.

/// How far a container has got, in the words of the OCI runtime specification: `Starting` is shown as `running`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Stage {
    Creating,
    Created,
    Starting,
    Running,
    /// Of a further container: when the first one stops, the sandbox ends.
    Stopped,
}

/// The request that a program's deadline is.
pub(super) const TIMER: &str = "timer";

/// The cause of a hibernation or a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// `dormouse hibernate` or `wake`.
    Order,
    /// `SIGSTOP` or `SIGCONT`, sent to the leash or by `dormouse kill`.
    Signal,
    /// `pause`: only `resume`, or `wake` where it is hibernated, ends it.
    Pause,
    /// `resume`.
    Resume,
    /// It had nothing to do for as long as was asked for.
    IdleTimeout,
    /// Something came for the container; what.
    Request(&'static str),
}

impl Cause {
    /// The name of this cause in events.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Signal => "signal",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::IdleTimeout => "idle-timeout",
            Self::Request(_) => "request",
        }
    }
}
