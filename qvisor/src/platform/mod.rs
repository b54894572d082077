//! What runs the kernel: its vCPUs and, on systrap, the applications' address spaces.

pub mod kvm;
pub mod probe;
pub mod systrap;

use abi::HostCall;

use crate::cpu::{self, XsaveLayout};
use crate::errno::HostError;
use crate::image::LoadedImage;
use crate::memory::MemoryError;
use crate::sandbox::Sandbox;

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
    Kvm(#[from] kvm::KvmError),
    #[error(transparent)]
    Vcpu(#[from] kvm::Failure),
}

/// An error of the host's last call.
pub(crate) fn failed(what: &'static str) -> PlatformError {
    HostError::last(what).into()
}

/// Runs the vCPUs of one sandbox.
pub trait Machine: Send + Sync {
    /// The linear map's base as the kernel sees it.
    fn linear_base(&self) -> u64;

    /// `BootInfo::hostcall_entry`.
    fn hostcall_entry(&self) -> u64 {
        0
    }

    /// The user state that tasks have: what the kernel saves and restores.
    fn xsave(&self) -> XsaveLayout {
        cpu::xsave_layout()
    }

    /// The kernel is in memory. Answers the first byte of kernel memory that stays free: `BootInfo::heap_phys`.
    fn image_loaded(&self, image: &LoadedImage) -> Result<u64, PlatformError> {
        Ok(image.end_phys)
    }

    /// Runs vCPU `cpu` on the calling thread, from the kernel's entry point `entry` until the sandbox ends. Every
    /// hostcall goes through [`crate::hostcall::dispatch`].
    fn run_cpu(&self, sandbox: &Sandbox, cpu: u32, entry: u64) -> Result<(), PlatformError>;

    /// Makes the vCPU return from user code to the kernel soon, if it runs any. Called after `pending` was set.
    fn interrupt(&self, sandbox: &Sandbox, cpu: u32);

    /// [`abi::hostcall::SET_DEADLINE`].
    fn set_deadline(&self, _sandbox: &Sandbox, _cpu: u32, _deadline_ns: u64) -> i64 {
        0
    }

    /// The calls on address spaces, `AS_CREATE` to `AS_SAVE_FPU`.
    fn address_space(&self, _sandbox: &Sandbox, _cpu: u32, _call: &HostCall) -> i64 {
        -i64::from(libc::ENOSYS)
    }

    /// How often vCPUs left the guest, by reason (kvm).
    fn exits(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Lets go of what is kept for speed only; the sandbox hibernates.
    fn trim(&self) {}

    /// Processor time used outside this process, in nanoseconds.
    fn cpu_ns(&self) -> u64 {
        0
    }
}
