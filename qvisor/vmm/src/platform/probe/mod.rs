//! Whether KVM is worth using, found out by measuring.
//!
//! Many cloud machines have a `/dev/kvm` whose guests' ring 0 is interpreted, a thousand times slower than it should
//! be, or whose ring 3 cannot make system calls. A throw-away machine runs a short loop in ring 0 and one system call
//! from ring 3; the loop's time is compared with the same loop on the host. The result is kept until the next boot.

mod cache;
mod report;
mod trial;

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use kvm_ioctls::Kvm;

use super::kvm;
use report::Measured;
pub use report::{KvmReport, Verdict};

/// Ring 0 slower than the host's user mode by more than this is not run by the processor. Native ring 0 measures
/// about 1 to 10, an interpreter 500 and more.
const INTERPRETED_RATIO: f64 = 60.0;
/// How long the trial may take before KVM counts as broken.
const PATIENCE: Duration = Duration::from_secs(4);
/// The file that keeps the result.
const CACHE: &str = "/run/dormouse/kvm-probe.json";

/// The report, from this boot's earlier measurement if there is one. Whether `/dev/kvm` opens is always looked at.
pub fn report() -> KvmReport {
    report_from(Path::new("/dev/kvm"), Path::new(CACHE))
}

fn report_from(device: &Path, cache: &Path) -> KvmReport {
    let kvm = match open(device) {
        Ok(kvm) => kvm,
        Err(report) => return *report,
    };
    if let Some(report) = cache::load(cache) {
        return report;
    }
    let report = measure(kvm);
    // A broken KVM may be mended, or may have failed for want of memory or time.
    if matches!(report.verdict, Verdict::Native | Verdict::Interpreted) {
        cache::store(cache, &report);
    }
    report
}

fn open(device: &Path) -> Result<Kvm, Box<KvmReport>> {
    if !device.exists() {
        return Err(Box::new(KvmReport::new(false, Verdict::Absent)));
    }
    Kvm::new().map_err(|error| {
        let error = std::io::Error::from(error);
        let hint = if error.kind() == std::io::ErrorKind::PermissionDenied {
            "; add the user to group kvm"
        } else {
            ""
        };
        let verdict = Verdict::Broken(format!("/dev/kvm cannot be opened ({error}){hint}"));
        Box::new(KvmReport { open_error: Some(error.to_string()), ..KvmReport::new(true, verdict) })
    })
}

/// Measures, without looking at the cache.
pub fn measure(kvm: Kvm) -> KvmReport {
    let api_version = Some(kvm.get_api_version());
    let broken = |reason| KvmReport { api_version, ..KvmReport::new(true, Verdict::Broken(reason)) };
    // A missing feature of the processor is reported only if ring 0 is fast: of the two, an interpreter is the better
    // explanation.
    let lacking = match kvm::check(&kvm) {
        Ok(_) => None,
        Err(error @ kvm::Unusable::Processor(_)) => Some(error.to_string()),
        Err(error) => return broken(error.to_string()),
    };
    // On a thread of its own: should it hang in a call that no signal ends, it is left behind.
    let (sender, receiver) = mpsc::channel();
    let body = move || drop(sender.send(trial::run(&kvm)));
    if let Err(error) = std::thread::Builder::new().name("kvm-probe".into()).spawn(body) {
        return broken(format!("cannot start a thread to try KVM ({error})"));
    }
    match receiver.recv_timeout(PATIENCE) {
        Ok(Ok(measured)) => judge(api_version, measured, lacking),
        Ok(Err(reason)) => broken(reason),
        Err(_) => broken(format!("KVM did not finish a trial within {} s", PATIENCE.as_secs())),
    }
}

fn judge(api_version: Option<i32>, measured: Measured, lacking: Option<String>) -> KvmReport {
    let interpreted =
        measured.ns_per_ring0_instruction > INTERPRETED_RATIO * measured.ns_per_host_instruction;
    let verdict = if interpreted {
        Verdict::Interpreted
    } else if let Some(reason) = lacking {
        Verdict::Broken(reason)
    } else if measured.syscall_works {
        Verdict::Native
    } else {
        Verdict::Broken("a system call in ring 3 does not arrive in the guest's ring 0".into())
    };
    KvmReport {
        api_version,
        ns_per_ring0_instruction: Some(measured.ns_per_ring0_instruction),
        ns_per_host_instruction: Some(measured.ns_per_host_instruction),
        ns_per_exit: Some(measured.ns_per_exit),
        syscall_works: Some(measured.syscall_works),
        ..KvmReport::new(true, verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(ratio: f64, syscall_works: bool) -> Measured {
        Measured {
            ns_per_ring0_instruction: ratio * 0.5,
            ns_per_host_instruction: 0.5,
            ns_per_exit: 1000.0,
            syscall_works,
        }
    }

    #[test]
    fn the_verdict_follows_the_ratio_and_the_system_call() {
        let verdict = |ratio, works| judge(Some(12), measured(ratio, works), None).verdict;
        assert_eq!(verdict(1.0, true), Verdict::Native);
        assert_eq!(verdict(10.0, true), Verdict::Native);
        assert_eq!(verdict(500.0, true), Verdict::Interpreted);
        assert_eq!(verdict(500.0, false), Verdict::Interpreted);
        assert!(matches!(verdict(1.0, false), Verdict::Broken(_)));
        let lacking = || Some("the processor lacks xsave".to_owned());
        assert_eq!(
            judge(Some(12), measured(1.0, true), lacking()).verdict,
            Verdict::Broken(lacking().unwrap())
        );
        assert_eq!(judge(Some(12), measured(500.0, true), lacking()).verdict, Verdict::Interpreted);
    }

    #[test]
    fn no_device_is_absent() {
        let report = report_from(Path::new("/dev/no-such-device"), Path::new("/proc/none/cache"));
        assert_eq!(report.verdict, Verdict::Absent);
        assert!(!report.present);
    }

    #[test]
    fn a_report_survives_serialisation() {
        let report = judge(Some(12), measured(2.0, true), None);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<KvmReport>(&text).unwrap(), report);
        assert_eq!(
            report.to_string(),
            "ring 0 runs natively (1.0 ns an instruction, 2.0 times a host program's)"
        );
    }

    /// Whatever this machine's KVM is like, the probe ends with a report.
    #[test]
    fn the_probe_ends_on_this_machine() {
        let report = open(Path::new("/dev/kvm")).map_or_else(|report| *report, measure);
        eprintln!("{report}: {report:?}");
        assert!(report.present || report.verdict == Verdict::Absent);
    }
}
