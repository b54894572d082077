//! Signals: what is pending, who takes it, and how handlers run.
//!
//! The lock of a process's shared queue (`Process::pending`) is its *signal lock*: whoever queues, takes or blocks
//! signals of any of its threads holds it. Inside it, in this order: the thread list, a task's [`TaskSignals`], the
//! dispositions. The process tree is locked before it or not at all.

pub mod action;
pub mod altstack;
pub mod continued;
pub mod deliver;
pub mod facts;
pub mod fault;
pub mod fpu;
pub mod frame;
pub mod info;
pub mod mask;
pub mod queue;
pub mod send;
pub mod state;
pub mod stop;
pub mod stop_state;
pub mod take;

pub use action::{Action, DefaultAction, SIG_DFL, SIG_IGN, SigHand};
pub use altstack::{AltStack, StackT, change_alt_stack};
pub use deliver::{after_exec, call_interrupted, correct, deliver_pending, refuse_frame};
pub use fault::{raise_bad_instruction_pointer, raise_exception, raise_fault};
pub use frame::return_from_handler;
pub use info::SigInfo;
pub use mask::{change_mask, restore_mask, set_blocked, set_temporary_mask, with_temporary_mask};
pub use queue::PendingSignals;
pub use send::{
    Sent, forget_signals, is_blocked_or_ignored, kill_process, leave_task, pending_set, send,
    send_to_foreground, send_to_group, send_to_process, send_to_task, set_action, signal_queue,
};
pub use state::{Restart, TaskSignals};
pub use stop::{discards_children, leave_session, parent_died};
pub use take::{take_pending, wait_for_signal};
