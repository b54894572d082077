//! Mitigations of speculative execution that a process chooses for itself (`prctl(PR_SET_SPECULATION_CTRL)`).
//!
//! They are chosen for the VMM's first thread before it starts any other and before the stubs' zygote is made: threads and
//! processes inherit them, over `execve` as well, and nobody takes them back.

use super::step::prctl_with;

/// The mitigations that are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mitigations {
    /// all that the host lets a process choose
    #[default]
    Auto,
    /// those only that the host imposes
    Off,
}

/// A behaviour of the processor that a process may give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculation {
    /// Loads that pass older stores. Its end (SSBD) costs nothing at a switch between processes that both gave it up.
    StoreBypass,
    /// Branches predicted from other code's branches. Its end is a barrier (IBPB) at each switch to another process on
    /// the same core, and no sharing with the core's other thread (STIBP).
    IndirectBranch,
}

impl Speculation {
    const ALL: [Self; 2] = [Self::StoreBypass, Self::IndirectBranch];

    fn number(self) -> u64 {
        match self {
            Self::StoreBypass => 0,
            Self::IndirectBranch => 1,
        }
    }

    /// The name of this feature in the log and in messages of `doctor`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::StoreBypass => "store bypass",
            Self::IndirectBranch => "indirect branches",
        }
    }

    /// Whether the host lets the calling thread give it up, and it has not yet.
    fn is_choice(self) -> bool {
        const GET: i32 = 52;
        const PER_THREAD: i32 = 1;
        const ENABLED: i32 = 2;
        let both = PER_THREAD | ENABLED;
        // For a feature that the host does not know the call returns an error, which is negative.
        prctl_with(GET, self.number(), 0).is_ok_and(|state| state & both == both)
    }

    fn give_up(self) -> bool {
        const SET: i32 = 53;
        const FOR_GOOD: u64 = 8;
        prctl_with(SET, self.number(), FOR_GOOD).is_ok()
    }
}

/// The features that the host lets a process give up.
#[must_use]
pub fn choices() -> Vec<Speculation> {
    Speculation::ALL.into_iter().filter(|one| one.is_choice()).collect()
}

/// Applies the choice to the calling thread and all that it starts later; returns the features that were given up.
pub fn apply(asked: Mitigations) -> Vec<Speculation> {
    match asked {
        Mitigations::Auto => choices().into_iter().filter(|one| one.give_up()).collect(),
        Mitigations::Off => Vec::new(),
    }
}

/// The names, or `none`.
#[must_use]
pub fn names(of: &[Speculation]) -> String {
    let names: Vec<_> = of.iter().map(|one| one.name()).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}
