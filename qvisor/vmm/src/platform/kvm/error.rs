//! Why a machine cannot be made, and why a vCPU cannot go on.

use std::fmt;

use abi::layout::MAX_CPUS;

use super::features::Unusable;

/// Why a machine cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    #[error("{0}")]
    Unusable(#[from] Unusable),
    #[error("KVM cannot {action} ({error})")]
    Kvm { action: &'static str, error: kvm_ioctls::Error },
    #[error("the boot page tables do not fit in kernel memory")]
    NoRoom,
    #[error("a sandbox has 1 to {MAX_CPUS} vCPUs, not {0}")]
    Cpus(u32),
    #[error("a vCPU started before the kernel was loaded")]
    NotLoaded,
}

/// The guest's registers when it went wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestRegisters {
    pub(super) rip: u64,
    pub(super) rsp: u64,
    pub(super) cr2: u64,
    pub(super) cr3: u64,
    pub(super) ring: u8,
}

impl fmt::Display for GuestRegisters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rip, rsp, cr2, cr3, ring } = self;
        write!(f, "ring {ring}, rip {rip:#x}, rsp {rsp:#x}, cr2 {cr2:#x}, cr3 {cr3:#x}")
    }
}

/// Why a vCPU cannot go on. Each is a fault of the guest's kernel, of KVM or of the host.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the guest's processor shut down after a triple fault ({0})")]
    Shutdown(GuestRegisters),
    #[error("the guest used physical address {phys:#x}, where it has no memory ({registers})")]
    NoMemory { phys: u64, registers: GuestRegisters },
    #[error("the host cannot provide memory that the guest's kernel uses ({0})")]
    HostMemory(GuestRegisters),
    #[error(
        "the pages of its snapshot that it shares with others are lost from page {0} on: their file is shorter than it was"
    )]
    Template(u64),
    #[error("the guest made a hostcall at {0:#x}, which is not its memory")]
    Call(u64),
    #[error("the guest made a hostcall of {bytes} bytes, not 4 ({registers})")]
    CallSize { bytes: usize, registers: GuestRegisters },
    #[error("the guest used the unknown I/O port {port:#x} ({registers})")]
    Port { port: u16, registers: GuestRegisters },
    #[error("KVM could not enter the guest (hardware reason {reason:#x}, {registers})")]
    Entry { reason: u64, registers: GuestRegisters },
    #[error("KVM failed inside (suberror {suberror}, {registers})")]
    Internal { suberror: u32, registers: GuestRegisters },
    #[error("the guest left for a reason that is not expected: {exit} ({registers})")]
    Unexpected { exit: String, registers: GuestRegisters },
    #[error("KVM cannot run the vCPU ({0})")]
    Run(kvm_ioctls::Error),
    #[error("KVM cannot deliver an interrupt ({0})")]
    Interrupt(std::io::Error),
    #[error("the vCPU's thread has no timer ({0})")]
    Thread(std::io::Error),
}
