//! The operations that every platform offers, and those that it needs of the sandbox whose vCPUs it runs.

use std::sync::Arc;

use abi::HostCall;

use super::kvm::error::{Failure, KvmError};
use crate::cpu::{self, XsaveLayout};
use crate::errno::HostError;
use crate::image::LoadedImage;
use crate::memory::{MemoryError, SandboxMemory};
use crate::vcpu::Cpus;

/// Why a platform cannot run.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("cannot set up shared memory")]
    Memory(#[from] MemoryError),
    #[error("the stub did not start; is running programs from memory files forbidden (vm.memfd_noexec)?")]
    Stub,
    #[error(transparent)]
    Kvm(#[from] KvmError),
    #[error(transparent)]
    Vcpu(#[from] Failure),
}

/// The platform's next step after a hostcall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Goes on in the kernel, with this result.
    Result(i64),
    /// Leaves the kernel for good: the sandbox ends.
    Leave,
}

/// Takes log lines: level (0 error … 3 debug) and text.
pub type LogSink = Arc<dyn Fn(u32, &str) + Send + Sync>;

/// The sandbox as the platform sees it that runs its vCPUs.
pub trait Upcalls: Send + Sync {
    fn cpus(&self) -> &Cpus;

    fn memory(&self) -> &SandboxMemory;

    /// Carries out one hostcall of vCPU `cpu`, whose thread calls this. `call` is the VMM's own copy.
    fn hostcall(&self, cpu: u32, call: &HostCall) -> Reply;

    /// Sets `CpuHeader::pending` of a vCPU and ends its sleep; see [`Cpus::set_pending`].
    fn set_pending(&self, cpu: u32);

    /// Ends the sandbox: its kernel has done something that no kernel does. Each vCPU leaves at its next hostcall.
    fn kernel_failed(&self, why: String);
}

/// Runs the vCPUs of one sandbox.
pub trait Machine: Send + Sync {
    /// The linear map's base as the kernel sees it.
    fn linear_base(&self) -> u64;

    /// `BootInfo::hostcall_entry`.
    fn hostcall_entry(&self) -> u64 {
        0
    }

    /// The user state that tasks have: the components that the kernel saves and restores.
    fn xsave(&self) -> XsaveLayout {
        cpu::xsave_layout()
    }

    /// The kernel is in memory. Answers the first byte of kernel memory that stays free: `BootInfo::heap_phys`.
    fn image_loaded(&self, image: &LoadedImage) -> Result<u64, PlatformError> {
        Ok(image.end_phys)
    }

    /// Runs vCPU `cpu` on the calling thread, from the kernel's entry point `entry` until the sandbox ends. Every
    /// hostcall goes through [`Upcalls::hostcall`].
    fn run_cpu(&self, sandbox: &(dyn Upcalls + 'static), cpu: u32, entry: u64) -> Result<(), PlatformError>;

    /// Makes the vCPU return from user code to the kernel soon, if it runs any. Called after `pending` was set.
    fn interrupt(&self, cpus: &Cpus, cpu: u32);

    /// [`abi::hostcall::SET_DEADLINE`].
    fn set_deadline(&self, _cpus: &Cpus, _cpu: u32, _deadline_ns: u64) -> i64 {
        0
    }

    /// The calls on address spaces, `AS_CREATE` to `AS_SAVE_FPU`.
    fn address_space(&self, _cpus: &Cpus, _cpu: u32, _call: &HostCall) -> i64 {
        -i64::from(libc::ENOSYS)
    }

    /// How often vCPUs left the guest, by reason (kvm).
    fn exits(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Frees memory that is kept for speed only; the sandbox hibernates.
    fn trim(&self) {}

    /// Processor time used outside this process, in nanoseconds.
    fn cpu_ns(&self) -> u64 {
        0
    }
}
