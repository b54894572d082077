//! `dormouse features`: what bundles may ask for, in the form of the OCI runtime specification.

use runtime::oci;
use runtime::state::OCI_VERSION;
use serde_json::json;

use crate::failure::{Failure, say};

const HOOKS: &[&str] = &["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
const NAMESPACES: &[&str] = &["cgroup", "ipc", "mount", "network", "pid", "user", "uts"];
/// By their numbers.
const CAPABILITIES: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

pub fn show() -> Result<u8, Failure> {
    let features = json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": OCI_VERSION,
        "hooks": HOOKS,
        "mountOptions": oci::mount_options(),
        "linux": {
            "namespaces": NAMESPACES,
            "capabilities": CAPABILITIES,
            "cgroup": {"v1": true, "v2": true, "systemd": false, "systemdUser": false, "rdma": false},
            "apparmor": {"enabled": false},
            "selinux": {"enabled": false},
            "intelRdt": {"enabled": false},
        },
        "annotations": {"dev.dormouse.version": env!("CARGO_PKG_VERSION")},
        "potentiallyUnsafeConfigAnnotations": ["dev.dormouse."],
    });
    say(&(serde_json::to_string_pretty(&features)? + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_those_that_bundles_may_name() {
        for (number, name) in CAPABILITIES.iter().enumerate() {
            assert_eq!(oci::capability(name), Ok(1 << number), "{name}");
        }
        assert!(oci::mount_options().contains(&"nosuid"));
    }
}
