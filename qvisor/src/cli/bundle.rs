//! `dormouse create`, `start`, `run`, `delete` and `spec`.

use std::path::{Path, PathBuf};

use abi::boot::Platform;

use super::{CreateArgs, Failure, PlatformChoice, Switch, log, run};
use crate::container::{self, ContainerError, Options};
use crate::front::FrontError;
use crate::oci::spec;
use crate::state::{Id, Root};

fn options(root: &Root, args: CreateArgs) -> Result<Options, Failure> {
    // Absolute, since the working directory may change.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    Ok(Options {
        root: root.clone(),
        id: Id::new(&args.id)?,
        bundle: args.bundle,
        pid_file: args.pid_file.map(absolute),
        console_socket: args.console_socket.map(absolute),
        platform: Box::new(move |wanted| platform(args.platform, wanted)),
        userns: args.userns,
        mitigations: args.mitigations,
        hibernation: args.hibernation.wishes()?,
        strace: args.strace,
        share_files: args.share_files == Switch::On,
        log_level: run::log_level(),
        remark: |remark| log::write(log::Level::Info, remark),
    })
}

/// The platform that the command's caller or else the bundle wants.
fn platform(asked: PlatformChoice, wanted: Option<&str>) -> Result<Platform, String> {
    let choice = match (asked, wanted) {
        (PlatformChoice::Auto, Some("kvm")) => PlatformChoice::Kvm,
        (PlatformChoice::Auto, Some("systrap")) => PlatformChoice::Systrap,
        _ => asked,
    };
    run::platform(choice).map_err(|error| error.to_string())
}

fn warn(words: &str) {
    log::write(log::Level::Warning, words);
}

/// An exit code that the container's program is to blame for is passed on.
fn coded(error: ContainerError) -> Result<u8, Failure> {
    let code = match &error {
        ContainerError::Failed { code, .. } | ContainerError::Front(FrontError::Failed { code, .. }) => *code,
        _ => None,
    };
    match code {
        Some(code) => {
            super::complain(&error);
            Ok(code)
        }
        None => Err(error.into()),
    }
}

pub(super) fn create(root: &Root, args: CreateArgs) -> Result<u8, Failure> {
    container::create(&options(root, args)?)?;
    Ok(0)
}

pub(super) fn start(root: &Root, id: &str) -> Result<u8, Failure> {
    container::start(root, &Id::new(id)?)?.iter().for_each(|words| warn(words));
    Ok(0)
}

pub(super) fn run(root: &Root, args: CreateArgs, detach: bool) -> Result<u8, Failure> {
    container::run(&options(root, args)?, detach, warn).or_else(coded)
}

pub(super) fn delete(root: &Root, id: &str, force: bool) -> Result<u8, Failure> {
    container::delete(root, &Id::new(id)?, force)?.iter().for_each(|words| warn(words));
    Ok(0)
}

pub(super) fn write_spec(bundle: &Path) -> Result<u8, Failure> {
    spec::write(bundle)?;
    Ok(0)
}
