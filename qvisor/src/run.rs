//! `dormouse do`.

use std::path::Path;
use std::sync::Arc;

use runtime::front::{self, DoOptions};
use runtime::settings::NodeConfig;
use runtime::snapshot::Store;
use runtime::state::{Id, Root};

use crate::args::DoArgs;
use crate::choices::Switch;
use crate::failure::{Failure, warn};
use crate::log;

pub fn run(state_root: &Root, config: Option<&Path>, args: DoArgs) -> Result<u8, Failure> {
    let hibernation = args.hibernation.wishes()?;
    let compare = match &hibernation.base {
        Some(_) => Store::of_user(&NodeConfig::load(config)?)?.compared(state_root, &hibernation, None)?,
        None => None,
    };
    let options = DoOptions {
        id: args.id.as_deref().map_or_else(|| Ok(Id::random()), Id::new)?,
        rootfs: args.rootfs,
        platform: args.platform.into(),
        memory_bytes: args.memory,
        cpus: args.cpus,
        pids: args.pids,
        disk_bytes: args.disk,
        env: args.env,
        env_all: args.env_all,
        cwd: args.cwd,
        volumes: args.volume,
        network: args.net.into(),
        userns: args.userns.into(),
        pid_file: args.pid_file.map(|path| std::path::absolute(&path).unwrap_or(path)),
        terminal: args.tty,
        hibernation,
        compare: compare.map(Arc::new),
        mitigations: args.mitigations.into(),
        share_files: args.share_files == Switch::On,
        patch_calls: args.patch_calls == Switch::On,
        host_uds: args.host_uds.into(),
        strace: args.strace,
        log_level: log::level_of_sandboxes(),
        command: args.command,
    };
    Ok(front::run(state_root, options, warn)?)
}
