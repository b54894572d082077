//! The report on a machine's KVM.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The verdict on this machine's KVM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Ring 0 and ring 3 run on the processor: use it.
    Native,
    /// Ring 0 is interpreted: systrap is faster.
    Interpreted,
    /// It does not work, for this reason.
    Broken(String),
    /// There is no `/dev/kvm`.
    Absent,
}

/// The findings about KVM, for `dormouse doctor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvmReport {
    /// `/dev/kvm` exists.
    pub present: bool,
    /// Why `/dev/kvm` cannot be opened, if it cannot.
    pub open_error: Option<String>,
    pub api_version: Option<i32>,
    /// Nanoseconds one instruction takes in the guest's ring 0, and in a program on the host.
    pub ns_per_ring0_instruction: Option<f64>,
    pub ns_per_host_instruction: Option<f64>,
    /// Nanoseconds from the guest to the VMM and back.
    pub ns_per_exit: Option<f64>,
    /// A system call in ring 3 arrived in ring 0 with the right registers.
    pub syscall_works: Option<bool>,
    pub verdict: Verdict,
}

impl KvmReport {
    pub(super) fn new(present: bool, verdict: Verdict) -> Self {
        Self {
            present,
            open_error: None,
            api_version: None,
            ns_per_ring0_instruction: None,
            ns_per_host_instruction: None,
            ns_per_exit: None,
            syscall_works: None,
            verdict,
        }
    }

    /// How much slower ring 0 is than a program on the host.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.ns_per_ring0_instruction? / self.ns_per_host_instruction?)
    }

    /// Whether sandboxes should run on kvm.
    pub fn is_usable(&self) -> bool {
        self.verdict == Verdict::Native
    }
}

/// One sentence: the verdict and why.
impl fmt::Display for KvmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Verdict::Absent => f.write_str("there is no /dev/kvm"),
            Verdict::Broken(reason) => f.write_str(reason),
            Verdict::Native => f.write_str("ring 0 runs natively"),
            Verdict::Interpreted => f.write_str("ring 0 is interpreted"),
        }?;
        if let (Some(ns), Some(ratio)) = (self.ns_per_ring0_instruction, self.ratio()) {
            let digits = usize::from(ratio < 10.0);
            write!(f, " ({ns:.1} ns an instruction, {ratio:.digits$} times a host program's)")?;
        }
        Ok(())
    }
}

/// The measurements of the trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) ns_per_ring0_instruction: f64,
    pub(super) ns_per_host_instruction: f64,
    pub(super) ns_per_exit: f64,
    pub(super) syscall_works: bool,
}
