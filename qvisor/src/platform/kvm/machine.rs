//! A virtual machine: memory slots, boot page tables, vCPUs.

use abi::layout::{CPU_AREA_PHYS, CPU_AREA_SIZE, KERNEL_PHYS, MAX_CPUS, USER_PHYS, WINDOW_PHYS};
use abi::run::CpuHeader;
use kvm_bindings::{kvm_cpuid_entry2, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VmFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::tables::{LinearMap, TableMemory};
use super::{CpuControl, ExitCounters, Unusable, Vcpu, cpuid, features, state, tables};

pub use super::cpuid::UserState;

/// Host memory behind a guest-physical region.
#[derive(Clone, Copy, Debug)]
pub struct HostRegion {
    pub host: NonNull<u8>,
    /// Bytes; a multiple of 2 MiB.
    pub len: u64,
}

/// A loaded segment of the kernel image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSegment {
    pub phys: u64,
    pub len: u64,
    pub writable: bool,
    pub executable: bool,
}

/// The guest's memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    pub kernel: HostRegion,
    pub user: HostRegion,
    pub window: HostRegion,
    pub image: &'a [ImageSegment],
    /// First free byte of kernel memory behind the image.
    pub free_phys: u64,
}

/// Why a machine cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    #[error("{0}")]
    Unusable(#[from] Unusable),
    #[error("KVM cannot {action} ({error})")]
    Kvm { action: &'static str, error: kvm_ioctls::Error },
    #[error("the boot page tables do not fit in kernel memory")]
    NoRoom,
    #[error("a sandbox has at most {MAX_CPUS} CPUs")]
    TooManyCpus,
}

fn failed(action: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> KvmError {
    move |error| KvmError::Kvm { action, error }
}

/// A virtual machine without vCPUs yet.
#[derive(Debug)]
pub struct Machine {
    vm: VmFd,
    supported: Vec<kvm_cpuid_entry2>,
    kernel: HostRegion,
    root: u64,
    heap_phys: u64,
    cpus: u32,
    counters: Arc<ExitCounters>,
}

// SAFETY: the raw pointer in `kernel` names memory that the creator promised to keep; nothing here is thread-bound.
unsafe impl Send for Machine {}
// SAFETY: as above; all methods after `new` take `&self` and touch shared memory atomically only.
unsafe impl Sync for Machine {}

/// Writes page tables into kernel memory.
struct KernelWords(HostRegion);

impl TableMemory for KernelWords {
    fn store(&mut self, phys: u64, value: u64) {
        let offset = phys - KERNEL_PHYS;
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.0.len, "page table outside kernel memory");
        // SAFETY: (1) the offset was just checked against the region; (2) no CPU runs yet, so nothing else uses it.
        unsafe { self.0.host.as_ptr().add(usize::try_from(offset).unwrap_or(0)).cast::<u64>().write(value) };
    }
}

impl Machine {
    /// Makes a machine with `cpus` CPUs, maps `memory` and writes the boot page tables to it.
    ///
    /// # Safety
    /// The regions of `memory` stay mapped as long as the machine and its vCPUs live. Kernel memory behind
    /// `free_phys` is zero and unused.
    pub unsafe fn new(kvm: &Kvm, memory: &Memory<'_>, cpus: u32) -> Result<Self, KvmError> {
        if cpus > MAX_CPUS {
            return Err(KvmError::TooManyCpus);
        }
        let supported = features::check(kvm)?;
        let vm = kvm.create_vm().map_err(failed("create a machine"))?;
        let slots = [(KERNEL_PHYS, memory.kernel), (USER_PHYS, memory.user), (WINDOW_PHYS, memory.window)];
        for (slot, (phys, region)) in (0..).zip(slots) {
            let region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: phys,
                memory_size: region.len,
                userspace_addr: region.host.as_ptr() as u64,
            };
            // SAFETY: the caller vouches for the regions' lifetime; they do not overlap in guest-physical space.
            unsafe { vm.set_user_memory_region(region) }.map_err(failed("map guest memory"))?;
        }
        let map = LinearMap {
            kernel_end: KERNEL_PHYS + memory.kernel.len,
            user_end: USER_PHYS + memory.user.len,
            image: memory.image,
        };
        let free = memory.free_phys.next_multiple_of(abi::PAGE_SIZE);
        let (root, heap_phys) =
            tables::build(&mut KernelWords(memory.kernel), &map, free).map_err(|_| KvmError::NoRoom)?;
        let counters = Arc::new(ExitCounters::default());
        Ok(Self { vm, supported, kernel: memory.kernel, root, heap_phys, cpus, counters })
    }

    /// First free byte of kernel memory behind the page tables: `BootInfo::heap_phys`.
    pub fn heap_phys(&self) -> u64 {
        self.heap_phys
    }

    /// The user state for `BootInfo`.
    pub fn user_state(&self) -> UserState {
        cpuid::user_state(&self.supported)
    }

    /// Exits of all vCPUs so far.
    pub fn counters(&self) -> &Arc<ExitCounters> {
        &self.counters
    }

    /// Makes CPU `cpu`, which will start at `entry` (a linear-map address).
    pub fn create_vcpu(&self, cpu: u32, entry: u64) -> Result<Vcpu, KvmError> {
        if cpu >= self.cpus {
            return Err(KvmError::TooManyCpus);
        }
        let vcpu = self.vm.create_vcpu(u64::from(cpu)).map_err(failed("create a vCPU"))?;
        let cpuid = cpuid::filter(&self.supported, cpu, self.cpus)
            .ok_or_else(|| failed("describe the processor")(kvm_ioctls::Error::new(libc::E2BIG)))?;
        vcpu.set_cpuid2(&cpuid).map_err(failed("describe the processor"))?;
        state::enable_components(&vcpu, self.user_state().xsave_mask)
            .map_err(failed("enable vector registers"))?;
        state::share_tsc(&vcpu);
        state::set_up(&vcpu, cpu, self.root, entry).map_err(failed("set a vCPU's registers"))?;
        // SAFETY: (1) the header lies in kernel memory, which `new`'s caller keeps mapped.
        let control = unsafe { CpuControl::new(self.header(cpu)) };
        Ok(Vcpu::new(vcpu, cpu, control, self.counters.clone()))
    }

    /// Frequency of the guest's time-stamp counter in Hz, if KVM knows it.
    pub fn tsc_hz(vcpu: &Vcpu) -> Option<u64> {
        vcpu.tsc_hz()
    }

    fn header(&self, cpu: u32) -> *const CpuHeader {
        let offset = CPU_AREA_PHYS + u64::from(cpu) * CPU_AREA_SIZE - KERNEL_PHYS;
        // SAFETY: kernel memory is far larger than the CPU areas, which lie at its start.
        unsafe { self.kernel.host.as_ptr().add(usize::try_from(offset).unwrap_or(0)).cast() }
    }
}
