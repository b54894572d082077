//! How far a sandbox has got, and what moved it.

/// How far it has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Stage {
    Creating,
    Created,
    Starting,
    Running,
    /// Of a further container: the sandbox's end is the first one's.
    Ended,
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
