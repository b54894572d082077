//! The kvm platform: the kernel in guest ring 0, applications in ring 3, each process with its own page tables.
//!
//! There is no in-kernel interrupt controller. A vCPU leaves the guest for hostcalls (a port write), when it is kicked
//! or its deadline comes (a signal), and to idle; system calls and page faults of applications never leave it.

mod cpuid;
mod decision;
pub mod error;
mod exits;
mod features;
mod kick;
mod state;
mod statistics;
mod tables;
mod vcpu;

use std::sync::{Arc, OnceLock};

use abi::layout::{
    KERNEL_PHYS, LINEAR_BASE_KVM, MAX_CPUS, PAGE_SIZE, TEMPLATE_PHYS, USER_PHYS, WINDOW_PHYS, WINDOW_PHYS_END,
};
use kvm_bindings::{KVM_MEM_READONLY, kvm_cpuid_entry2, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;

use self::error::KvmError;
use self::exits::ExitCounters;
use self::kick::Kicker;
use self::statistics::ExitCount;
use self::tables::{LinearMap, TableMemory};
use self::vcpu::Vcpu;
use super::machine::{Machine, PlatformError, Upcalls};
use crate::cpu::XsaveLayout;
use crate::image::LoadedImage;
use crate::lock::{Mutex, Rank};
use crate::memory::SandboxMemory;
use crate::vcpu::Cpus;
pub use features::{Unusable, check};
pub(super) use kick::GuestWatchdog;
pub(super) use state::special_registers;

fn failed(action: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> KvmError {
    move |error| KvmError::Kvm { action, error }
}

/// `/dev/kvm`, open: a VMM that leaves the host before it makes its machine takes it along.
#[derive(Clone, Debug)]
pub struct Device(Arc<kvm_ioctls::Kvm>);

impl Device {
    /// Opens it.
    pub fn open() -> Result<Self, KvmError> {
        let kvm = kvm_ioctls::Kvm::new().map_err(Unusable::Open)?;
        Ok(Self(Arc::new(kvm)))
    }
}

/// The platform's state for one sandbox: a virtual machine.
#[derive(Debug)]
pub struct Kvm {
    // Dropped before the memory it uses.
    vm: VmFd,
    memory: Arc<SandboxMemory>,
    supported: Vec<kvm_cpuid_entry2>,
    /// Guest-physical address of the boot page tables, once they are written.
    root: OnceLock<u64>,
    kickers: Vec<Kicker>,
    exits: ExitCounters,
    /// KVM's own counts, of the vCPUs made so far.
    counts: Mutex<Vec<ExitCount>>,
}

impl Kvm {
    /// Makes a machine for `cpus` vCPUs with `memory` in it, by the device if it is open already.
    pub fn new(memory: &Arc<SandboxMemory>, cpus: u32, device: Option<&Device>) -> Result<Self, KvmError> {
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(KvmError::Cpus(cpus));
        }
        let Device(kvm) = match device {
            Some(device) => device.clone(),
            None => Device::open()?,
        };
        let supported = check(&kvm)?;
        let vm = kvm.create_vm().map_err(failed("create a machine"))?;
        // The file window is one slot for good: chunks are mapped inside it. Only programs see the template.
        let window = WINDOW_PHYS_END - WINDOW_PHYS;
        let slots =
            [(KERNEL_PHYS, memory.kernel_bytes()), (USER_PHYS, memory.user_bytes()), (WINDOW_PHYS, window)];
        let template = memory.template().map(|(_, len)| (TEMPLATE_PHYS, len, KVM_MEM_READONLY));
        let slots = slots.map(|(phys, len)| (phys, len, 0)).into_iter().chain(template);
        for (slot, (phys, len, flags)) in (0..).zip(slots) {
            let region = kvm_userspace_memory_region {
                slot,
                flags,
                guest_phys_addr: phys,
                memory_size: len,
                userspace_addr: memory.base() as u64 + phys,
            };
            // SAFETY: (1) the region lies in the reservation of `memory`, which is kept longer than the machine;
            // (2) they do not overlap.
            unsafe { vm.set_user_memory_region(region) }.map_err(failed("map guest memory"))?;
        }
        let kickers = (0..cpus).map(|_| Kicker::default()).collect();
        let memory = Arc::clone(memory);
        let (exits, counts) = (ExitCounters::default(), Mutex::new(Rank::Exits, Vec::new()));
        Ok(Self { vm, memory, supported, root: OnceLock::new(), kickers, exits, counts })
    }

    /// Makes vCPU `cpu`, which will start at `entry`.
    fn create_vcpu(&self, cpu: u32, entry: u64) -> Result<Vcpu<'_>, KvmError> {
        let root = *self.root.get().ok_or(KvmError::NotLoaded)?;
        let (Some(kicker), count) = (self.kickers.get(cpu as usize), self.kickers.len()) else {
            return Err(KvmError::Cpus(cpu));
        };
        let fd = self.vm.create_vcpu(u64::from(cpu)).map_err(failed("create a vCPU"))?;
        let cpuid = cpuid::filter(&self.supported, cpu, u32::try_from(count).unwrap_or(MAX_CPUS))
            .ok_or_else(|| failed("describe the processor")(kvm_ioctls::Error::new(libc::E2BIG)))?;
        fd.set_cpuid2(&cpuid).map_err(failed("describe the processor"))?;
        state::enable_components(&fd, self.xsave().mask).map_err(failed("enable vector registers"))?;
        state::share_tsc(&fd);
        state::set_up(&fd, cpu, root, entry).map_err(failed("set a vCPU's registers"))?;
        self.counts.lock().extend(ExitCount::of(&fd));
        Ok(Vcpu { fd, cpu, kicker, exits: &self.exits })
    }
}

impl Machine for Kvm {
    fn linear_base(&self) -> u64 {
        LINEAR_BASE_KVM
    }

    fn xsave(&self) -> XsaveLayout {
        cpuid::user_state(&self.supported)
    }

    fn image_loaded(&self, image: &LoadedImage) -> Result<u64, PlatformError> {
        let map = LinearMap {
            kernel_end: KERNEL_PHYS + self.memory.kernel_bytes(),
            user_end: USER_PHYS + self.memory.user_bytes(),
            image: &image.parts,
        };
        let free = image.end_phys.next_multiple_of(PAGE_SIZE);
        let (root, heap) =
            tables::build(&mut KernelWords(&self.memory), &map, free).map_err(|_| KvmError::NoRoom)?;
        let _ = self.root.set(root);
        Ok(heap)
    }

    fn run_cpu(&self, sandbox: &(dyn Upcalls + 'static), cpu: u32, entry: u64) -> Result<(), PlatformError> {
        let mut vcpu = self.create_vcpu(cpu, entry)?;
        Ok(vcpu.run(sandbox)?)
    }

    fn interrupt(&self, _cpus: &Cpus, cpu: u32) {
        if let Some(kicker) = self.kickers.get(cpu as usize) {
            kicker.interrupt();
        }
    }

    fn set_deadline(&self, cpus: &Cpus, cpu: u32, deadline_ns: u64) -> i64 {
        vcpu::tell_alarm(cpus, cpu, kick::arm(deadline_ns));
        0
    }

    fn exits(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.lock();
        let mut values = self.exits.values();
        values.push(("all", counts.iter().map(ExitCount::value).sum()));
        values
    }
}

/// Kernel memory, for page tables.
struct KernelWords<'m>(&'m SandboxMemory);

impl TableMemory for KernelWords<'_> {
    fn store(&mut self, phys: u64, value: u64) {
        // The builder stays below the end of kernel memory.
        let _ = self.0.write(phys, &value);
    }
}
