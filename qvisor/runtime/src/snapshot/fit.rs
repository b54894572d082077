//! Whether a snapshot can run on this host.

use std::collections::BTreeSet;

use abi::boot::Platform;
use abi::layout::{self, MAX_CPUS};
use vmm::checkpoint::ImageHead;
use vmm::{cpu, image, process};

use super::error::{SnapshotError, Unfit};
use super::manifest::{CpuFeatures, Described, Manifest, MountPoint};
use crate::platform::PlatformChoice;
use crate::settings::Settings;

/// Words among a processor's features that say how the host's kernel treats it, or are for hypervisors. Programs see no difference,
/// and another kernel of the host's has others.
const OF_THE_HOST: [&str; 32] = [
    "arat",
    "arch_capabilities",
    "cat_l2",
    "cat_l3",
    "cdp_l2",
    "cdp_l3",
    "cqm",
    "cpuid_fault",
    "dtherm",
    "ept",
    "ept_ad",
    "epb",
    "flexpriority",
    "flush_l1d",
    "hwp",
    "ibpb",
    "ibrs",
    "ibrs_enhanced",
    "ida",
    "mba",
    "md_clear",
    "pln",
    "pti",
    "pts",
    "retpoline",
    "ssbd",
    "stibp",
    "svm",
    "tpr_shadow",
    "vmx",
    "vnmi",
    "vpid",
];

/// A host, as far as snapshots depend on it.
#[derive(Clone, Debug)]
pub struct Host {
    /// Digests of the kernel and of the stub that this program has.
    pub kernel: String,
    pub stub: String,
    pub processor: CpuFeatures,
    pub memory_bytes: u64,
}

impl Host {
    /// This host, with this program.
    #[must_use]
    pub fn this() -> Self {
        let flags = cpu::host_flags().unwrap_or_default();
        let seen = flags.split_ascii_whitespace().filter(|flag| !OF_THE_HOST.contains(flag));
        let xsave = cpu::xsave_layout();
        Self {
            kernel: image::KERNEL_DIGEST.into(),
            stub: image::STUB_DIGEST.into(),
            processor: CpuFeatures {
                flags: seen.map(str::to_owned).collect(),
                xsave_bytes: xsave.size,
                xsave_mask: xsave.mask,
            },
            memory_bytes: process::host_memory(),
        }
    }

    /// Says why a snapshot cannot run here.
    pub fn check(&self, manifest: &Manifest) -> Result<(), Unfit> {
        let head = &manifest.head;
        if head.kernel != self.kernel || head.stub != self.stub {
            return Err(Unfit::Build);
        }
        self.check_processor(&manifest.processor)?;
        self.check_sizes(head)?;
        if head.is_kvm {
            let chosen = PlatformChoice::Kvm.choose();
            chosen.map_err(|error| Unfit::Platform { made: "kvm", why: error.to_string() })?;
        }
        Ok(())
    }

    fn check_processor(&self, made: &CpuFeatures) -> Result<(), Unfit> {
        let has: BTreeSet<&str> = self.processor.flags.iter().map(String::as_str).collect();
        let lacks: Vec<&str> =
            made.flags.iter().map(String::as_str).filter(|flag| !has.contains(flag)).collect();
        if !lacks.is_empty() {
            return Err(Unfit::Processor(lacks.join(", ")));
        }
        let layout = |cpu: &CpuFeatures| format!("{} bytes for {:#x}", cpu.xsave_bytes, cpu.xsave_mask);
        let (made, here) = (layout(made), layout(&self.processor));
        if made == here { Ok(()) } else { Err(Unfit::Registers { made, here }) }
    }

    pub(crate) fn check_sizes(&self, head: &ImageHead) -> Result<(), Unfit> {
        check_numbers(head)?;
        let needed = head.pages.saturating_mul(abi::PAGE_SIZE).saturating_add(head.taken_bytes);
        if needed > self.memory_bytes {
            return refuse(
                format!("{needed} bytes of memory"),
                format!("this host has {}", self.memory_bytes),
            );
        }
        Ok(())
    }
}

fn refuse(what: String, why: String) -> Result<(), Unfit> {
    Err(Unfit::Size { what, why })
}

/// Says why no sandbox has an image of these sizes.
pub(super) fn check_numbers(head: &ImageHead) -> Result<(), Unfit> {
    if !(1..=MAX_CPUS).contains(&head.cpus) {
        return refuse(format!("{} vCPUs", head.cpus), format!("a sandbox has 1 to {MAX_CPUS}"));
    }
    let most = layout::USER_PHYS_MAX - layout::USER_PHYS;
    let is_ordered = head.memory_bytes > 0 && head.memory_bytes <= head.memory_most_bytes;
    if !is_ordered || head.memory_most_bytes > most {
        return refuse(format!("memory of {} bytes", head.memory_most_bytes), "no sandbox has that".into());
    }
    if head.kernel_bytes != layout::kernel_bytes(head.memory_most_bytes) {
        return refuse(format!("{} bytes for its kernel", head.kernel_bytes), "that is not its share".into());
    }
    Ok(())
}

impl Manifest {
    /// The platform of a sandbox that begins with this, if its settings allow that.
    pub fn platform_for(&self, settings: &Settings) -> Result<Platform, Unfit> {
        let (made, is_asked) = match settings.platform {
            PlatformChoice::Auto => (self.head.is_kvm, true),
            PlatformChoice::Kvm => (true, self.head.is_kvm),
            PlatformChoice::Systrap => (false, !self.head.is_kvm),
        };
        if !is_asked {
            let other = if made { "kvm" } else { "systrap" };
            let why = format!("this container is to run on {other}; leave --platform out");
            return Err(Unfit::Platform { made: self.platform(), why });
        }
        Ok(if made { Platform::Kvm } else { Platform::Systrap })
    }

    /// Says why its pages do not fit below a limit of memory.
    pub fn check_limit(&self, memory_bytes: u64) -> Result<(), Unfit> {
        let needed = self.head.pages.saturating_mul(abi::PAGE_SIZE);
        if needed > memory_bytes {
            let why = format!("the bundle's limit is {memory_bytes}; raise linux.resources.memory.limit");
            return Err(Unfit::Size { what: format!("{needed} bytes of memory"), why });
        }
        Ok(())
    }
}

impl Described {
    /// Says what a bundle lacks that it was made with: the kernel finds files by the mounts that they were in.
    pub fn check_bundle(&self, mounts: &[MountPoint], terminal: bool) -> Result<(), Unfit> {
        for made in &self.mounts {
            let has = mounts.iter().rev().find(|mount| mount.path == made.path);
            let Some(has) = has else { return Err(Unfit::NoMount { path: made.path.clone() }) };
            if has.kind != made.kind {
                return Err(Unfit::OtherMount {
                    path: made.path.clone(),
                    made: made.kind.clone(),
                    has: has.kind.clone(),
                });
            }
        }
        if self.terminal == terminal { Ok(()) } else { Err(Unfit::Terminal { wanted: self.terminal }) }
    }
}

impl Unfit {
    /// The error about a snapshot in this place.
    pub(crate) fn at(self, place: &super::place::Place) -> SnapshotError {
        SnapshotError::Unfit { place: place.clone(), why: self }
    }
}
