//! The kvm platform: the kernel in guest ring 0, applications in ring 3, each process with its own page tables.
//!
//! There is no in-kernel interrupt controller. A vCPU leaves the guest for hostcalls (a port write), when it is kicked
//! or its deadline comes (a signal), and to idle; system calls and page faults of applications never leave it.

pub mod counters;
mod cpuid;
mod features;
mod kick;
mod machine;
mod state;
mod tables;
mod vcpu;

pub use counters::ExitCounters;
pub use features::{Unusable, check};
pub(super) use kick::Watchdog;
pub use kick::{CpuControl, install_kick_handler, kick_signal};
pub use machine::{HostRegion, ImageSegment, KvmError, Machine, Memory, UserState};
pub(super) use state::special_registers;
pub use vcpu::{Hostcalls, Next, Stopped, Vcpu};
