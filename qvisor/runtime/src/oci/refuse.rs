//! Settings that Dormouse does not support, by name; and settings that have no effect here.

use oci_spec::runtime::{Linux, LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType, Process, Spec};

use super::error::{BundleError, Result};

/// Devices that the guest kernel has: type, major, minor.
const VIRTUAL_DEVICES: &[(i64, i64)] = &[(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)];

/// Refuses unsupported settings, and adds a remark for each one that is accepted without effect.
pub(super) fn check(spec: &Spec, remarks: &mut Vec<String>) -> Result<()> {
    let foreign = [
        ("solaris", spec.solaris().is_some()),
        ("windows", spec.windows().is_some()),
        ("vm", spec.vm().is_some()),
        ("zos", spec.zos().is_some()),
    ];
    refuse_any(&foreign)?;
    if let Some(process) = spec.process() {
        check_process(process, remarks)?;
    }
    match spec.linux() {
        Some(linux) => check_linux(linux, remarks),
        None => Ok(()),
    }
}

fn refuse_any(list: &[(&str, bool)]) -> Result<()> {
    match list.iter().find(|(_, present)| *present) {
        Some((name, _)) => Err(BundleError::refused(*name)),
        None => Ok(()),
    }
}

pub(super) fn check_process(process: &Process, remarks: &mut Vec<String>) -> Result<()> {
    refuse_any(&[
        ("process.ioPriority", process.io_priority().is_some()),
        ("process.scheduler", process.scheduler().is_some()),
        ("process.execCPUAffinity", process.exec_cpu_affinity().is_some()),
        ("process.commandLine", process.command_line().is_some()),
    ])?;
    let labels = [("apparmorProfile", process.apparmor_profile()), ("selinuxLabel", process.selinux_label())];
    for (name, label) in labels {
        if label.as_ref().is_some_and(|label| !label.is_empty()) {
            remarks.push(unneeded(&format!("process.{name}")));
        }
    }
    Ok(())
}

/// The guest's system calls do not reach the host's kernel, so a setting that filters or labels them there has no
/// effect.
fn unneeded(what: &str) -> String {
    format!("{what} is not applied: system calls of the sandbox do not reach the host's kernel")
}

fn check_linux(linux: &Linux, remarks: &mut Vec<String>) -> Result<()> {
    let has = |list: Option<usize>| list.is_some_and(|len| len > 0);
    refuse_any(&[
        ("linux.netDevices", has(linux.net_devices().as_ref().map(|map| map.len()))),
        ("linux.intelRdt", linux.intel_rdt().is_some()),
        ("linux.memoryPolicy", linux.memory_policy().is_some()),
        ("linux.personality", linux.personality().is_some()),
        ("linux.timeOffsets", has(linux.time_offsets().as_ref().map(|map| map.len()))),
    ])?;
    if linux.mount_label().as_ref().is_some_and(|label| !label.is_empty()) {
        remarks.push(unneeded("linux.mountLabel"));
    }
    match linux.rootfs_propagation().as_deref() {
        // Mounts that a sandbox makes are its kernel's, and are seen by nobody else.
        None
        | Some("" | "private" | "rprivate" | "slave" | "rslave" | "shared" | "rshared" | "unbindable") => {}
        Some(other) => {
            return Err(BundleError::invalid("linux.rootfsPropagation", other, "which is no propagation"));
        }
    }
    let rules = linux.resources().as_ref().and_then(|resources| resources.devices().as_ref());
    let gets_all = rules.is_some_and(|rules| rules.iter().any(allows_all));
    let devices = linux.devices().as_deref().unwrap_or_default();
    let strange: Vec<_> = devices.iter().filter(|device| !is_virtual(device)).collect();
    match strange.first() {
        // A privileged container is given all devices that the host happens to have.
        Some(_) if gets_all => {
            let names: Vec<_> = strange.iter().map(|device| device.path().display().to_string()).collect();
            remarks.push(format!("devices of the host do not go into a sandbox: {}", names.join(", ")));
        }
        Some(device) => return Err(no_device(device)),
        None => {}
    }
    Ok(())
}

/// Whether a rule gives all devices.
fn allows_all(rule: &LinuxDeviceCgroup) -> bool {
    let all = |number: Option<i64>| number.is_none_or(|number| number < 0);
    rule.allow()
        && rule.typ().is_none_or(|kind| kind == LinuxDeviceType::A)
        && all(rule.major())
        && all(rule.minor())
}

fn is_virtual(device: &LinuxDevice) -> bool {
    matches!(device.typ(), LinuxDeviceType::C | LinuxDeviceType::U)
        && VIRTUAL_DEVICES.contains(&(device.major(), device.minor()))
}

fn no_device(device: &LinuxDevice) -> BundleError {
    let (path, kind) = (device.path().display(), device.typ());
    let what = format!("device {path} ({} {}:{})", kind.as_str(), device.major(), device.minor());
    BundleError::refused_because(what, "devices of the host do not go into a sandbox")
}
