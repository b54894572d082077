//! The choice of the platform that runs a sandbox's kernel.

use std::str::FromStr;

use abi::boot::Platform;
use vmm::platform::probe::{self, KvmReport, Verdict};

/// The platform that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlatformChoice {
    /// kvm where it runs ring 0 natively, else systrap.
    #[default]
    Auto,
    Kvm,
    Systrap,
}

/// The name of the platform that `auto` chooses by this report.
#[must_use]
pub fn automatic(report: &KvmReport) -> &'static str {
    if report.is_usable() { "kvm" } else { "systrap" }
}

/// Why a platform that was asked for by name cannot serve.
#[derive(Debug, thiserror::Error)]
#[error("cannot use platform kvm: {report}; pass --platform systrap")]
pub struct PlatformChoiceError {
    report: Box<KvmReport>,
}

impl FromStr for PlatformChoice {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Kvm),
            "systrap" => Ok(Self::Systrap),
            _ => Err(()),
        }
    }
}

impl PlatformChoice {
    /// This choice, or the `other` one where this one is `auto`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if self == Self::Auto { other } else { self }
    }

    /// The platform to use; one that was asked for by name and cannot serve is refused.
    pub fn choose(self) -> Result<Platform, PlatformChoiceError> {
        if self == Self::Systrap {
            return Ok(Platform::Systrap);
        }
        let report = probe::report();
        match (report.verdict.clone(), self) {
            (Verdict::Native, _) => Ok(Platform::Kvm),
            (_, Self::Auto) => Ok(Platform::Systrap),
            // Interpreted ring 0 is slow, but it works, and was asked for.
            (Verdict::Interpreted, _) if report.syscall_works == Some(true) => Ok(Platform::Kvm),
            _ => Err(PlatformChoiceError { report: Box::new(report) }),
        }
    }
}
