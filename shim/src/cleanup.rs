//! `delete`: removes what a shim has left that was killed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::shim::DeleteResponse;
use runtime::cgroup;
use runtime::state::{Id, Root};

use crate::flags::Flags;
use crate::log;
use crate::mounts;
use crate::options::Options;
use crate::socket::Claim;
use crate::start::ADDRESS;
use crate::time;

/// How long the end of what was killed may take. containerd waits for five seconds in all.
const PATIENCE: Duration = Duration::from_secs(2);
/// Exit code of a container whose own is not known.
const KILLED: u32 = 128 + 9;

/// Result: what standard output gets.
pub fn run(flags: &Flags) -> Result<Vec<u8>, String> {
    let bundle = bundle(flags)?;
    let options = Options::left_in(&bundle);
    let root = Root::new(options.state_root(&flags.namespace));
    let id = Id::new(&flags.id).map_err(|error| error.to_string())?;
    // What can be removed is, and the rest is said.
    if let Err(why) = remove(&root, &id) {
        log::note(format_args!("{why}"));
    }
    if let Err(error) = mounts::unmount_all(&bundle.join("rootfs")) {
        log::note(format_args!("cannot unmount {}: {error}", bundle.join("rootfs").display()));
    }
    remove_socket(&bundle);
    let pid = std::fs::read_to_string(bundle.join("init.pid")).unwrap_or_default();
    let mut response = DeleteResponse::new();
    response.pid = pid.trim().parse().unwrap_or(0);
    response.exit_status = KILLED;
    response.exited_at = MessageField::some(time::now());
    response.write_to_bytes().map_err(|error| format!("cannot write the answer: {error}"))
}

/// Ends the sandbox and removes its state, however far its creation had got when that was killed.
fn remove(root: &Root, id: &Id) -> Result<(), String> {
    let start = Instant::now();
    while let Err(error) = runtime::container::delete(root, id, true) {
        if start.elapsed() > PATIENCE {
            return Err(error.to_string());
        }
        // Its creator, which ends with the shim, may not be gone yet.
        std::thread::sleep(Duration::from_millis(20));
    }
    if let Ok(left) = root.sandbox(id) {
        // It was not known to be a container's yet. Nobody holds it, or there would have been an error.
        // What was in its groups may be about to end. The list of them goes with the state, which the next start reads otherwise.
        while !cgroup::remove_listed(&left.path_by_descriptor()) {
            if start.elapsed() > PATIENCE {
                return Err("its control groups still hold processes; the next start removes them".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        return root.remove(id).map_err(|error| error.to_string());
    }
    Ok(())
}

/// The bundle of the container: that of the command line, or the one beside the working directory, which may be that
/// of another container of its pod.
fn bundle(flags: &Flags) -> Result<PathBuf, String> {
    if let Some(bundle) = &flags.bundle {
        return Ok(bundle.clone());
    }
    let here =
        std::env::current_dir().map_err(|error| format!("cannot find the working directory: {error}"))?;
    Ok(here.parent().unwrap_or(&here).join(&flags.id))
}

/// Removes the shim's socket, and the lock that a start leaves which was killed before it made one, if nobody listens.
fn remove_socket(bundle: &Path) {
    let address = std::fs::read_to_string(bundle.join(ADDRESS)).unwrap_or_default();
    if let Some(path) = address.trim().strip_prefix("unix://").map(Path::new)
        && (path.exists() || path.with_extension("lock").exists())
        && let Ok(claim) = Claim::new(path)
        && !claim.is_served()
    {
        claim.remove();
    }
}
