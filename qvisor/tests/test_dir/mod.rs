//! The directory of one test, in which it runs the command away from all others.
#![allow(dead_code)]

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// State, layers and files of one test; removed at the end.
pub struct TestDir(PathBuf);

impl TestDir {
    /// Makes one below the host's directory for temporary files.
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// Makes one below `parent`. Other users may enter it.
    pub fn below(parent: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("dormouse-command-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = parent.join(name);
        DirBuilder::new().mode(0o755).create(&dir).unwrap();
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a directory in it.
    pub fn directory(&self, name: &str) -> PathBuf {
        let dir = self.join(name);
        fs::create_dir(&dir).unwrap();
        dir
    }

    /// The command with its state and layers here, and nothing to read.
    pub fn command(&self, args: &[&str]) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_dormouse")), args)
    }

    /// The command as another file, such as a copy that other users may run.
    pub fn command_of(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        self.set_roots(&mut command);
        command
    }

    /// Has a command keep its state and layers here.
    pub fn set_roots<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("DORMOUSE_ROOT", self.join("state")).env("DORMOUSE_LAYERS", self.join("layers"))
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// `dormouse do`, which makes a sandbox.
    pub fn sandbox(&self, args: &[&str]) -> Command {
        self.command(&[&["do"], args].concat())
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        // Not by the standard library: after a failed test there may be more left than it can remove.
        let _ = Command::new("rm").arg("-rf").arg(&self.0).status();
    }
}
