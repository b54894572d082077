//! Dispositions: `sigaction(2)`.

use alloc::sync::Arc;

use crate::signals::{SIGCHLD, SIGCONT, SIGRTMAX, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH, bit};
use machine::sync::{Rank, SpinLock};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `sa_handler`: the default action.
pub const SIG_DFL: u64 = 0;
/// `sa_handler`: nothing happens.
pub const SIG_IGN: u64 = 1;

pub const SA_NOCLDSTOP: u64 = 1;
pub const SA_NOCLDWAIT: u64 = 2;
pub const SA_SIGINFO: u64 = 4;
/// Kept, and nothing else: addresses have no tags here.
const SA_EXPOSE_TAGBITS: u64 = 0x800;
pub const SA_RESTORER: u64 = 0x0400_0000;
pub const SA_ONSTACK: u64 = 0x0800_0000;
pub const SA_RESTART: u64 = 0x1000_0000;
pub const SA_NODEFER: u64 = 0x4000_0000;
pub const SA_RESETHAND: u64 = 0x8000_0000;
pub(super) const SA_KNOWN: u64 = SA_NOCLDSTOP
    | SA_NOCLDWAIT
    | SA_SIGINFO
    | SA_EXPOSE_TAGBITS
    | SA_RESTORER
    | SA_ONSTACK
    | SA_RESTART
    | SA_NODEFER
    | SA_RESETHAND;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}
const _: () = assert!(size_of::<Action>() == 32);

/// The default disposition of a signal (`signal(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultAction {
    Terminate,
    /// Terminates and would leave a core file; no core is written here.
    Core,
    Ignore,
    Stop,
    Continue,
}

impl DefaultAction {
    /// The action of a signal.
    pub fn of(signal: u32) -> Self {
        use crate::signals::{
            SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGSYS, SIGTRAP, SIGXCPU, SIGXFSZ,
        };
        match signal {
            SIGCHLD | SIGURG | SIGWINCH => Self::Ignore,
            SIGCONT => Self::Continue,
            SIGSTOP | SIGTSTP | SIGTTIN | SIGTTOU => Self::Stop,
            SIGQUIT | SIGILL | SIGTRAP | SIGABRT | SIGBUS | SIGFPE | SIGSEGV | SIGXCPU | SIGXFSZ | SIGSYS => {
                Self::Core
            }
            _ => Self::Terminate,
        }
    }
}

impl Action {
    /// Whether the signal has no effect under this disposition.
    pub fn ignores(&self, signal: u32) -> bool {
        self.handler == SIG_IGN
            || (self.handler == SIG_DFL
                && matches!(DefaultAction::of(signal), DefaultAction::Ignore | DefaultAction::Continue))
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

/// Dispositions, shared by threads.
pub struct SigHand {
    actions: SpinLock<[Action; SIGRTMAX as usize]>,
}

impl SigHand {
    /// All defaults.
    pub fn new() -> Arc<Self> {
        Self::with([Action::default(); SIGRTMAX as usize])
    }

    fn with(actions: [Action; SIGRTMAX as usize]) -> Arc<Self> {
        Arc::new(Self { actions: SpinLock::new(Rank::Leaf, actions) })
    }

    /// A copy for a new process.
    pub fn fork(&self) -> Arc<Self> {
        Self::with(*self.actions.lock())
    }

    /// Handlers become defaults (`execve(2)`); what is ignored stays ignored.
    pub fn reset_for_exec(&self) -> Arc<Self> {
        let mut actions = *self.actions.lock();
        for action in &mut actions {
            let handler = if action.handler == SIG_IGN { SIG_IGN } else { SIG_DFL };
            *action = Action { handler, ..Default::default() };
        }
        Self::with(actions)
    }

    /// The disposition of a signal (1 to 64).
    pub fn get(&self, signal: u32) -> Action {
        self.actions.lock().get(signal.wrapping_sub(1) as usize).copied().unwrap_or_default()
    }

    /// Replaces the disposition of a signal, returning the former.
    pub(super) fn set(&self, signal: u32, action: Action) -> Action {
        let mut actions = self.actions.lock();
        match actions.get_mut(signal.wrapping_sub(1) as usize) {
            Some(slot) => core::mem::replace(slot, action),
            None => Action::default(),
        }
    }

    /// The sets of ignored and of caught signals, for `/proc/PID/status`.
    pub fn ignored_and_caught(&self) -> (u64, u64) {
        let mut sets = (0, 0);
        for (signal, action) in (1..).zip(self.actions.lock().iter()) {
            match action.handler {
                SIG_DFL => {}
                SIG_IGN => sets.0 |= bit(signal),
                _ => sets.1 |= bit(signal),
            }
        }
        sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::{SIGKILL, SIGTERM, SIGUSR1, SIGUSR2};

    #[test]
    fn exec_keeps_what_is_ignored_and_resets_handlers() {
        let hand = SigHand::new();
        hand.set(SIGUSR1, Action { handler: 0x1000, flags: SA_RESTART, restorer: 1, mask: 2 });
        hand.set(SIGUSR2, Action { handler: SIG_IGN, flags: SA_RESTART, ..Default::default() });
        assert_eq!(hand.ignored_and_caught(), (bit(SIGUSR2), bit(SIGUSR1)));
        let hand = hand.reset_for_exec();
        assert_eq!(hand.get(SIGUSR1), Action::default());
        assert_eq!(hand.get(SIGUSR2), Action { handler: SIG_IGN, ..Default::default() });
    }

    #[test]
    fn defaults_are_those_of_signal_7() {
        assert_eq!(DefaultAction::of(SIGTERM), DefaultAction::Terminate);
        assert_eq!(DefaultAction::of(SIGKILL), DefaultAction::Terminate);
        assert_eq!(DefaultAction::of(64), DefaultAction::Terminate);
        assert!(Action::default().ignores(SIGCHLD));
        assert!(Action::default().ignores(SIGCONT));
        assert!(!Action::default().ignores(SIGTSTP));
    }
}
