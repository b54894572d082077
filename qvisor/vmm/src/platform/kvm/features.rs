//! The features that KVM must offer.

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use kvm_ioctls::{Cap, Kvm};

use super::cpuid;

/// The version of the KVM interface, the same since Linux 2.6.22.
const API_VERSION: i32 = 12;

/// Why this machine's KVM cannot run sandboxes, apart from how fast it is.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("/dev/kvm cannot be opened ({0})")]
    Open(kvm_ioctls::Error),
    #[error("/dev/kvm speaks version {0} of the KVM interface, not 12")]
    Version(i32),
    #[error("KVM lacks the capability {0}")]
    Capability(&'static str),
    #[error("the processor, as KVM offers it, lacks {0}")]
    Processor(&'static str),
    #[error("KVM does not tell which processor features it supports ({0})")]
    Cpuid(kvm_ioctls::Error),
}

/// Checks an open `/dev/kvm`; answers the processor features it supports.
pub fn check(kvm: &Kvm) -> Result<Vec<kvm_cpuid_entry2>, Unusable> {
    let version = kvm.get_api_version();
    if version != API_VERSION {
        return Err(Unusable::Version(version));
    }
    let needed = [
        (Cap::UserMemory, "user memory"),
        (Cap::ExtCpuid, "extended cpuid"),
        (Cap::ImmediateExit, "immediate exit"),
        (Cap::VcpuEvents, "vcpu events"),
        (Cap::Xcrs, "extended control registers"),
        (Cap::DestroyMemoryRegionWorks, "memory regions that can be removed"),
    ];
    if let Some((_, name)) = needed.iter().find(|(cap, _)| !kvm.check_extension(*cap)) {
        return Err(Unusable::Capability(name));
    }
    let supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(Unusable::Cpuid)?;
    match cpuid::missing_feature(supported.as_slice()) {
        Some(name) => Err(Unusable::Processor(name)),
        None => Ok(supported.as_slice().to_vec()),
    }
}
