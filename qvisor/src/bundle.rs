//! `dormouse create`, `start`, `run`, `delete` and `spec`.

use std::path::{Path, PathBuf};

use runtime::container::{self, ContainerError, CreateOptions, Surroundings};
use runtime::front::FrontError;
use runtime::oci::spec;
use runtime::preserved::Preserved;
use runtime::settings::NodeConfig;
use runtime::state::{Id, Root};

use crate::args::CreateArgs;
use crate::failure::{Failure, complain, remark, warn};
use crate::log;

fn options(
    root: &Root,
    config: Option<&Path>,
    systemd_cgroup: bool,
    args: CreateArgs,
) -> Result<CreateOptions, Failure> {
    // Absolute, since the working directory may change.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    Ok(CreateOptions {
        asked: args.asked()?,
        root: root.clone(),
        id: Id::new(&args.id)?,
        bundle: args.bundle,
        pid_file: args.pid_file.map(absolute),
        console_socket: args.console_socket.map(absolute),
        systemd_cgroup,
        node: NodeConfig::load(config)?,
        snapshot: None,
        snapshot_container: None,
        surroundings: Surroundings::default(),
        clone: None,
        strace: args.strace,
        log_level: log::level_of_sandboxes(),
        remark,
        warn,
    })
}

/// An exit code that the container's program is to blame for is passed on.
pub fn coded(error: ContainerError) -> Result<u8, Failure> {
    let code = match &error {
        ContainerError::Failed { code, .. } | ContainerError::Front(FrontError::Failed { code, .. }) => *code,
        _ => None,
    };
    match code {
        Some(code) => {
            complain(&error);
            Ok(code)
        }
        None => Err(error.into()),
    }
}

pub fn create(
    root: &Root,
    config: Option<&Path>,
    systemd_cgroup: bool,
    args: CreateArgs,
    preserved: Preserved,
) -> Result<u8, Failure> {
    container::create(&options(root, config, systemd_cgroup, args)?, preserved)?;
    Ok(0)
}

pub fn start(root: &Root, id: &str) -> Result<u8, Failure> {
    container::start(root, &Id::new(id)?)?.iter().for_each(|words| warn(words));
    Ok(0)
}

pub fn run(
    root: &Root,
    config: Option<&Path>,
    systemd_cgroup: bool,
    args: CreateArgs,
    preserved: Preserved,
    detach: bool,
) -> Result<u8, Failure> {
    let options = options(root, config, systemd_cgroup, args)?;
    container::run(&options, preserved, detach, None, warn).or_else(coded)
}

pub fn delete(root: &Root, id: &str, force: bool) -> Result<u8, Failure> {
    container::delete(root, &Id::new(id)?, force)?.iter().for_each(|words| warn(words));
    Ok(0)
}

pub fn write_spec(bundle: &Path) -> Result<u8, Failure> {
    spec::write(bundle)?;
    Ok(0)
}
