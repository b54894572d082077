//! `start`: makes the shim that serves a container, or names the one that serves its pod.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::bootstrap::{Bootstrap, answer};
use crate::flags::Flags;
use crate::socket::Claim;

/// File in the bundle that holds the address of the shim's socket.
pub const ADDRESS: &str = "address";
/// Where sockets lie, unless containerd says otherwise.
const SOCKETS: &str = "/run/containerd/s";
/// Annotations that name a container's pod.
const GROUPS: [&str; 2] = ["io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"];
/// Longest input.
const INPUT_MAX: u64 = 10 << 20;
/// Environment variables of glibc's `malloc` that keep the server's heap small, from its first allocation on.
const HEAP: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "1"), ("MALLOC_TOP_PAD_", "16384"), ("MALLOC_TRIM_THRESHOLD_", "65536")];

/// Result: what standard output gets.
pub fn run(flags: &Flags) -> Result<Vec<u8>, String> {
    let mut input = Vec::new();
    io::stdin()
        .take(INPUT_MAX)
        .read_to_end(&mut input)
        .map_err(|error| format!("cannot read standard input: {error}"))?;
    let bootstrap = Bootstrap::read(&input, &flags.id, &flags.namespace)?;
    let group =
        group(&std::fs::read("config.json").map_err(|error| format!("cannot read config.json: {error}"))?)?;
    let directory = bootstrap.socket_dir.as_deref().unwrap_or(Path::new(SOCKETS));
    let socket = socket(directory, flags, group.as_deref().unwrap_or(&flags.id));
    let address = format!("unix://{}", socket.display());
    let failed = |error: io::Error| format!("cannot listen at {}: {error}", socket.display());
    // Before anything is made there, so that `delete` finds what a start leaves that is killed.
    std::fs::write(ADDRESS, &address).map_err(|error| format!("cannot write {ADDRESS}: {error}"))?;
    // Held until the server has been started.
    let claim = Claim::new(&socket).map_err(failed)?;
    if let Some(listener) = claim.listen().map_err(failed)? {
        let pid = match serve(flags, listener) {
            Ok(pid) => pid,
            Err(why) => {
                claim.remove();
                return Err(why);
            }
        };
        drop(claim);
        if let Some(group) = &bootstrap.options.shim_cgroup {
            join(group, pid)?;
        }
        adjust_score(pid);
    }
    Ok(answer(bootstrap.form, &address))
}

/// The pod that a container belongs to.
fn group(config: &[u8]) -> Result<Option<String>, String> {
    #[derive(Deserialize)]
    struct Spec {
        #[serde(default)]
        annotations: Option<std::collections::BTreeMap<String, String>>,
    }
    let spec: Spec =
        serde_json::from_slice(config).map_err(|error| format!("cannot read config.json: {error}"))?;
    let annotations = spec.annotations.unwrap_or_default();
    Ok(GROUPS.iter().find_map(|name| annotations.get(*name).cloned()))
}

/// The socket of a pod: a name that is short whatever containerd's and the pod's are.
fn socket(directory: &Path, flags: &Flags, group: &str) -> PathBuf {
    let name = Path::new(&flags.address).join(&flags.namespace).join(group);
    let hash = Sha256::digest(name.as_os_str().as_encoded_bytes());
    directory.join(hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Starts the server; result: its pid.
fn serve(flags: &Flags, listener: UnixListener) -> Result<u32, String> {
    let shim =
        std::env::current_exe().map_err(|error| format!("cannot find the shim's own program: {error}"))?;
    let mut command = Command::new(shim);
    command.args(["-namespace", &flags.namespace, "-id", &flags.id, "-address", &flags.address]);
    if flags.debug {
        command.arg("-debug");
    }
    command.envs(HEAP).process_group(0);
    // containerd waits for the end of this process's output.
    command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(|child| child.id()).map_err(|error| format!("cannot start the shim: {error}"))
}

/// Moves the shim into a group that is there already.
fn join(group: &Path, pid: u32) -> Result<(), String> {
    let below = group.strip_prefix("/").unwrap_or(group);
    let unified = Path::new("/sys/fs/cgroup").join(below).join("cgroup.procs");
    let controllers = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let files = controllers.map(|controller| controller.path().join(below).join("cgroup.procs"));
    let found: Vec<_> = std::iter::once(unified).chain(files).filter(|file| file.exists()).collect();
    if found.is_empty() {
        return Err(format!(
            "cannot join control group {}: it does not exist; make it first",
            group.display()
        ));
    }
    found.iter().try_for_each(|file| {
        std::fs::write(file, pid.to_string())
            .map_err(|error| format!("cannot join control group {}: {error}", file.display()))
    })
}

/// The host ends the shim rather than containerd when memory is short.
fn adjust_score(pid: u32) {
    let own = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", std::os::unix::process::parent_id()));
    let score = own.ok().and_then(|text| text.trim().parse::<i32>().ok()).unwrap_or(0);
    // It works without.
    let _ =
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), score.saturating_add(1).min(1000).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_a_pod_have_one_shim() {
        let config = br#"{"annotations": {"io.kubernetes.cri.sandbox-id": "pod", "other": "x"}}"#;
        assert_eq!(group(config), Ok(Some("pod".into())));
        assert_eq!(group(b"{}"), Ok(None));
        assert!(group(b"nonsense").is_err());
        let flags = |id: &str| Flags {
            address: "/run/c.sock".into(),
            namespace: "k8s.io".into(),
            id: id.into(),
            ..Flags::default()
        };
        let dir = Path::new("/run/s");
        assert_eq!(socket(dir, &flags("a"), "pod"), socket(dir, &flags("b"), "pod"));
        assert_ne!(socket(dir, &flags("a"), "a"), socket(dir, &flags("b"), "b"));
    }
}
