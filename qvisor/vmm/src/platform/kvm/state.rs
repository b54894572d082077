//! The state a vCPU starts in: long mode, ring 0, paging on.

use abi::layout::{BOOT_INFO_PHYS, CPU_AREA_PHYS, CPU_AREA_SIZE, LINEAR_BASE_KVM};
use kvm_bindings::{
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, kvm_device_attr, kvm_regs, kvm_segment, kvm_sregs, kvm_xcr,
    kvm_xcrs,
};
use kvm_ioctls::{Error, VcpuFd};
use std::os::fd::AsRawFd;

/// `_IOW(KVMIO, 0xe1, struct kvm_device_attr)`
const KVM_SET_DEVICE_ATTR: libc::c_ulong = 0x4018_aee1;

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_PGE: u64 = 1 << 7;
const CR4_OSFXSR: u64 = 1 << 9;
const EFER_SCE: u64 = 1;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;

/// The kernel's code selector; its own descriptor table has the same.
const KERNEL_CODE: u16 = 0x10;

/// A flat segment: 4 GiB limit, which long mode ignores.
fn segment(selector: u16, type_: u8, long: bool) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl: 0,
        db: u8::from(!long),
        s: 1,
        l: u8::from(long),
        g: 1,
        ..Default::default()
    }
}

/// Control registers and segments of a 64-bit ring 0.
pub fn special_registers(old: kvm_sregs, root: u64, gs_base: u64) -> kvm_sregs {
    let data = segment(0x18, 3, false);
    kvm_sregs {
        cs: segment(KERNEL_CODE, 11, true),
        ss: data,
        ds: data,
        es: data,
        fs: data,
        gs: kvm_segment { base: gs_base, ..data },
        tr: kvm_segment { limit: 0x67, type_: 11, s: 0, db: 0, g: 0, ..segment(0, 11, false) },
        ldt: kvm_segment { present: 0, unusable: 1, ..Default::default() },
        cr0: CR0_PE | CR0_ET | CR0_NE | CR0_WP | CR0_PG,
        cr3: root,
        cr4: CR4_PAE | CR4_PGE | CR4_OSFXSR,
        efer: EFER_SCE | EFER_LME | EFER_LMA | EFER_NXE,
        ..old
    }
}

/// Enables the XSAVE components in `mask`. The kernel does so too, with `xsetbv`, which QEMU's emulation of a
/// hypervisor's guest lets pass unnoticed.
pub fn enable_components(vcpu: &VcpuFd, mask: u64) -> Result<(), Error> {
    let mut xcrs = kvm_xcrs { nr_xcrs: 1, ..Default::default() };
    xcrs.xcrs[0] = kvm_xcr { xcr: 0, value: mask, ..Default::default() };
    vcpu.set_xcrs(&xcrs)
}

/// Makes the guest's time-stamp counter the host's, so that CPUs agree and the host's frequency holds. Where KVM cannot
/// (before Linux 5.16), it keeps CPUs that are made together in step by itself.
pub fn share_tsc(vcpu: &VcpuFd) {
    let offset: u64 = 0;
    let attribute = kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: u64::from(KVM_VCPU_TSC_OFFSET),
        addr: &raw const offset as u64,
        flags: 0,
    };
    // SAFETY: the descriptor is a vCPU's, and the attribute's value outlives the call.
    unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_SET_DEVICE_ATTR, &raw const attribute) };
}

/// Puts CPU `cpu` at `entry` (a linear-map address) with its boot stack and arguments.
pub fn set_up(vcpu: &VcpuFd, cpu: u32, root: u64, entry: u64) -> Result<(), Error> {
    let area = LINEAR_BASE_KVM + CPU_AREA_PHYS + u64::from(cpu) * CPU_AREA_SIZE;
    vcpu.set_sregs(&special_registers(vcpu.get_sregs()?, root, area))?;
    vcpu.set_regs(&kvm_regs {
        rip: entry,
        // As after a call: 8 below a multiple of 16.
        rsp: area + CPU_AREA_SIZE - 8,
        rdi: LINEAR_BASE_KVM + BOOT_INFO_PHYS,
        rsi: u64::from(cpu),
        rflags: 2,
        ..Default::default()
    })
}
