//! Tasks (threads) and processes (thread groups): their life, signals, timers and programs.

mod caller;
pub mod clock;
pub mod clone;
pub mod container;
pub mod context;
pub mod core;
pub mod elf;
pub mod exec;
pub mod exit;
pub mod futex;
pub mod group_exit;
pub mod inspect;
pub mod io_owner;
pub mod itimer;
pub mod kernel_log;
pub mod oom;
pub mod pause;
pub mod pid_space;
pub mod pidfd;
pub mod policy;
pub mod posix_timer;
pub mod process;
pub mod rseq;
pub mod seccomp;
pub mod sequences;
pub mod set_id;
pub mod signal;
pub mod signalfd;
pub mod terminal;
pub mod timers;
pub mod tree;
pub mod usage;
pub mod used;
pub mod vfork;

pub use core::{Start, Task, TaskParts, TaskRef, current};
pub use process::Process;
