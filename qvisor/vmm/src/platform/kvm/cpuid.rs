//! The guest's `cpuid`: the features that KVM supports, less those that the kernel does not.

use std::arch::x86_64::__cpuid;

use abi::word::{high32, low32};
use kvm_bindings::{CpuId, kvm_cpuid_entry2};

use crate::cpu::XsaveLayout;

/// XSAVE components the kernel saves and restores: x87, SSE, AVX and the three of AVX-512.
const COMPONENTS: u64 = 0b1110_0111;
const COMPONENTS_AVX512: u64 = 0b1110_0000;

// Leaf 1, ECX.
const MONITOR: u32 = 1 << 3;
const VMX: u32 = 1 << 5;
const X2APIC: u32 = 1 << 21;
const TSC_DEADLINE: u32 = 1 << 24;
const OSXSAVE: u32 = 1 << 27;
const XSAVE: u32 = 1 << 26;
// Leaf 7, EBX.
const FSGSBASE: u32 = 1;
const SGX: u32 = 1 << 2;
const MPX: u32 = 1 << 14;
const PROCESSOR_TRACE: u32 = 1 << 25;
// Leaf 7, ECX.
const PKU: u32 = 1 << 3;
const OSPKE: u32 = 1 << 4;
const WAITPKG: u32 = 1 << 5;
const SHADOW_STACKS: u32 = 1 << 7;
const LA57: u32 = 1 << 16;
const BUS_LOCK_DETECT: u32 = 1 << 24;
const ENQCMD: u32 = 1 << 29;
const SGX_LAUNCH: u32 = 1 << 30;
const PKS: u32 = 1 << 31;
// Leaf 7, EDX.
const USER_INTERRUPTS: u32 = 1 << 5;
const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25;
const INDIRECT_BRANCH_TRACKING: u32 = 1 << 20;
// Leaf 7.1, EAX and EDX.
const AMX_FP16: u32 = 1 << 21;
const FRED_AND_LKGS: u32 = 1 << 17 | 1 << 18;
const LAM: u32 = 1 << 26;
const AMX_COMPLEX: u32 = 1 << 8;
const APX: u32 = 1 << 21;
const AVX10: u32 = 1 << 19;
// Leaf 0x80000001, ECX and EDX.
const SVM: u32 = 1 << 2;
const LIGHTWEIGHT_PROFILING: u32 = 1 << 15;
const SYSCALL: u32 = 1 << 11;
const NX: u32 = 1 << 20;
const LONG_MODE: u32 = 1 << 29;
// Leaf 0x80000007, EDX.
const INVARIANT_TSC: u32 = 1 << 8;

fn find(cpuid: &[kvm_cpuid_entry2], function: u32, index: u32) -> Option<&kvm_cpuid_entry2> {
    cpuid.iter().find(|e| e.function == function && e.index == index)
}

/// A feature that the kernel cannot do without and the processor lacks.
pub fn missing_feature(supported: &[kvm_cpuid_entry2]) -> Option<&'static str> {
    let has = |function, pick: fn(&kvm_cpuid_entry2) -> u32, bits| {
        find(supported, function, 0).is_some_and(|e| pick(e) & bits == bits)
    };
    let needs = [
        (has(1, |e| e.ecx, XSAVE), "xsave"),
        (has(7, |e| e.ebx, FSGSBASE), "fsgsbase"),
        (has(0x8000_0001, |e| e.edx, SYSCALL), "syscall"),
        (has(0x8000_0001, |e| e.edx, NX), "nx"),
        (has(0x8000_0001, |e| e.edx, LONG_MODE), "lm"),
    ];
    needs.iter().find(|(present, _)| !present).map(|(_, name)| *name)
}

/// The state component mask and image size that follow from what KVM supports.
pub fn user_state(supported: &[kvm_cpuid_entry2]) -> XsaveLayout {
    let offered = find(supported, 0xd, 0).map_or(3, |e| u64::from(e.eax) | u64::from(e.edx) << 32);
    let mut mask = (offered & COMPONENTS) | 3;
    // The three components of AVX-512 are one, and need AVX.
    if mask & COMPONENTS_AVX512 != COMPONENTS_AVX512 || mask & 4 == 0 {
        mask &= !COMPONENTS_AVX512;
    }
    let ends = (2..64).filter(|bit| mask >> bit & 1 != 0).filter_map(|bit| find(supported, 0xd, bit));
    let size = ends.map(|e| e.ebx.saturating_add(e.eax)).max().unwrap_or(0).max(576);
    XsaveLayout { size, mask }
}

/// The `cpuid` of CPU `cpu`.
pub fn filter(supported: &[kvm_cpuid_entry2], cpu: u32, cpus: u32) -> Option<CpuId> {
    let state = user_state(supported);
    let entries: Vec<_> = supported
        .iter()
        .filter(|e| keep(e, state.mask))
        .map(|e| {
            let mut entry = *e;
            adjust(&mut entry, cpu, cpus, state);
            entry
        })
        .collect();
    CpuId::from_entries(&entries).ok()
}

/// Leaves of features the guest does not have are left out: they read as zero.
fn keep(entry: &kvm_cpuid_entry2, xsave_mask: u64) -> bool {
    match (entry.function, entry.index) {
        // Thermal and power, SGX, processor trace, AMX, key locker, AVX10, SVM, SEV.
        (0x5 | 0x6 | 0x12 | 0x14 | 0x1d | 0x1e | 0x19 | 0x24 | 0x8000_000a | 0x8000_001f, _) => false,
        (0xd, index @ 2..64) => xsave_mask >> index & 1 != 0,
        (0xd, 64..) => false,
        _ => true,
    }
}

fn adjust(e: &mut kvm_cpuid_entry2, cpu: u32, cpus: u32, state: XsaveLayout) {
    match (e.function, e.index) {
        (1, _) => {
            e.ebx = (e.ebx & 0x0000_ffff) | cpus.next_power_of_two() << 16 | cpu << 24;
            e.ecx &= !(MONITOR | VMX | X2APIC | TSC_DEADLINE | OSXSAVE);
        }
        (7, 0) => {
            e.ebx &= !(SGX | MPX | PROCESSOR_TRACE);
            e.ecx &=
                !(PKU | OSPKE | WAITPKG | SHADOW_STACKS | LA57 | BUS_LOCK_DETECT | ENQCMD | SGX_LAUNCH | PKS);
            e.edx &= !(USER_INTERRUPTS | AMX | INDIRECT_BRANCH_TRACKING);
        }
        (7, 1) => {
            e.eax &= !(AMX_FP16 | FRED_AND_LKGS | LAM);
            e.edx &= !(AMX_COMPLEX | APX | AVX10);
        }
        (0xb | 0x1f, _) => e.edx = cpu,
        (0xd, 0) => {
            (e.eax, e.edx) = (low32(state.mask), high32(state.mask));
            // KVM keeps EBX in step with XCR0.
            (e.ebx, e.ecx) = (state.size, state.size);
        }
        (0xd, 1) => {
            // XSAVEOPT, XSAVEC and XGETBV with ECX = 1; no supervisor states.
            e.eax &= 0b0111;
            (e.ecx, e.edx) = (0, 0);
        }
        (0x8000_0001, _) => e.ecx &= !(SVM | LIGHTWEIGHT_PROFILING),
        // KVM leaves it out, for the sake of guests that move to other hosts; ours do not, and their counter is the
        // host's.
        (0x8000_0007, _) => e.edx = __cpuid(0x8000_0007).edx & INVARIANT_TSC,
        (0x8000_001e, _) => e.eax = cpu,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: u32, index: u32, regs: [u32; 4]) -> kvm_cpuid_entry2 {
        let [eax, ebx, ecx, edx] = regs;
        kvm_cpuid_entry2 { function, index, eax, ebx, ecx, edx, ..Default::default() }
    }

    /// A processor with everything.
    fn supported() -> Vec<kvm_cpuid_entry2> {
        vec![
            entry(1, 0, [0x906ed, 0x0710_0800, u32::MAX, u32::MAX]),
            entry(7, 0, [1, u32::MAX, u32::MAX, u32::MAX]),
            entry(0xd, 0, [0x6_02e7, 0x2b00, 0x2b00, 0]),
            entry(0xd, 1, [0x1f, 0x2b00, 0x1800, 0]),
            entry(0xd, 2, [256, 576, 0, 0]),
            entry(0xd, 5, [64, 1088, 0, 0]),
            entry(0xd, 6, [512, 1152, 0, 0]),
            entry(0xd, 7, [1024, 1664, 0, 0]),
            entry(0xd, 9, [8, 2688, 0, 0]),
            entry(0xd, 18, [8192, 2816, 0, 0]),
            entry(0x8000_0001, 0, [0, 0, u32::MAX, u32::MAX]),
        ]
    }

    #[test]
    fn only_states_the_kernel_saves_are_offered() {
        assert_eq!(user_state(&supported()), XsaveLayout { size: 2688, mask: 0xe7 });
        let filtered = filter(&supported(), 1, 2).unwrap();
        let leaf = |function, index| find(filtered.as_slice(), function, index).copied();
        assert_eq!(leaf(0xd, 0).unwrap().eax, 0xe7);
        assert!(leaf(0xd, 9).is_none() && leaf(0xd, 18).is_none());
        assert_eq!(leaf(7, 0).unwrap().ecx & (PKU | OSPKE | LA57), 0);
        assert_eq!(leaf(7, 0).unwrap().edx & AMX, 0);
        assert_eq!(leaf(1, 0).unwrap().ecx & (VMX | X2APIC), 0);
        assert_eq!(leaf(1, 0).unwrap().ebx >> 24, 1);
        assert_eq!(leaf(0x8000_0001, 0).unwrap().ecx & SVM, 0);
    }

    #[test]
    fn a_plain_processor_has_plain_state() {
        let plain = vec![entry(0xd, 0, [3, 576, 576, 0])];
        assert_eq!(user_state(&plain), XsaveLayout { size: 576, mask: 3 });
    }

    #[test]
    fn needed_features_are_named_when_missing() {
        assert_eq!(missing_feature(&supported()), None);
        let mut without = supported();
        without[1].ebx = 0;
        assert_eq!(missing_feature(&without), Some("fsgsbase"));
    }
}
