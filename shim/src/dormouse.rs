//! The `dormouse` command: which one, and how it is called. Creating a sandbox forks, which a process with several
//! threads must not do; and a shim that contained the kernel would be large.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child;
use crate::log;
use crate::options::Options;
use crate::reaper::Reaper;
use crate::streams::{Streams, stdio};

const NAME: &str = "dormouse";

/// How one container's commands are called.
#[derive(Clone, Debug)]
pub struct Dormouse {
    program: PathBuf,
    root: PathBuf,
    config: Option<PathBuf>,
    systemd_cgroup: bool,
    bundle: PathBuf,
}

impl Dormouse {
    /// `root`: the directory of its state.
    pub fn new(options: &Options, root: &Path, bundle: &Path) -> Result<Self, String> {
        Ok(Self {
            program: find(options.binary.as_deref())?,
            root: root.to_owned(),
            config: options.config.clone(),
            systemd_cgroup: options.systemd_cgroup,
            bundle: bundle.to_owned(),
        })
    }

    /// Whether control groups are scopes of systemd's.
    #[must_use]
    pub fn has_scopes(&self) -> bool {
        self.systemd_cgroup
    }

    /// Runs a command to its end; the error is the last one in its log. `log`: a file name for it. `streams`: the
    /// sandbox's; what is left to it of them is closed here.
    pub fn run<I, A>(
        &self,
        arguments: I,
        log: &str,
        streams: &mut Streams,
        reaper: &Reaper,
    ) -> Result<(), String>
    where
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        let log = self.bundle.join(log);
        let mut command = Command::new(&self.program);
        command.current_dir(&self.bundle);
        // These are for the shim's own heap.
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MALLOC_"))
        {
            command.env_remove(name);
        }
        command.arg("--root").arg(&self.root).arg("--log").arg(&log).args(["--log-format", "json"]);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        if self.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        command.args(arguments);
        let taken = (streams.stdin.take(), streams.stdout.take(), streams.stderr.take());
        command.stdin(stdio(taken.0)).stdout(stdio(taken.1)).stderr(stdio(taken.2));
        child::tie(&mut command);
        let started = reaper.spawn(&mut command);
        // The descriptors go with it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let program = started.map_err(|error| format!("cannot start {}: {error}", self.program.display()))?;
        let status = program.wait();
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(&log);
        let (errors, remarks) = sort(&said);
        remarks.iter().for_each(|remark| log::note(format_args!("dormouse: {remark}")));
        match status {
            Some(0) => Ok(()),
            status => Err(errors.last().cloned().unwrap_or_else(|| {
                format!("{} ended with wait status {}", self.program.display(), status.unwrap_or(-1))
            })),
        }
    }
}

/// The errors, and the rest, of a log of JSON lines.
fn sort(log: &str) -> (Vec<String>, Vec<String>) {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let text = |line: &serde_json::Value, name: &str| line.get(name)?.as_str().map(str::to_owned);
    let pairs = lines.filter_map(|line| Some((text(&line, "level")?, text(&line, "msg")?)));
    let (errors, remarks): (Vec<_>, Vec<_>) = pairs.partition(|(level, _)| level == "error");
    let words = |pairs: Vec<(String, String)>| pairs.into_iter().map(|(_, text)| text).collect();
    (words(errors), words(remarks))
}

/// The program: the one named, by a path or on `PATH`, or the one beside the shim, or on `PATH`.
fn find(named: Option<&Path>) -> Result<PathBuf, String> {
    let shim = std::env::current_exe().ok();
    let beside = shim.as_deref().and_then(Path::parent);
    let search = std::env::var_os("PATH").unwrap_or_default();
    let on_path =
        |name: &Path| std::env::split_paths(&search).map(|dir| dir.join(name)).find(|path| is_program(path));
    let found = match named {
        Some(path) if path.components().count() > 1 => Some(path.to_owned()).filter(|path| is_program(path)),
        Some(name) => on_path(name),
        None => beside
            .map(|dir| dir.join(NAME))
            .filter(|path| is_program(path))
            .or_else(|| on_path(NAME.as_ref())),
    };
    found.ok_or_else(|| {
        let name = named.unwrap_or(NAME.as_ref()).display();
        format!("cannot find program {name}: it is neither beside the shim nor on PATH; install it, or set BinaryName")
    })
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_from_remarks() {
        let log = "{\"level\":\"info\",\"msg\":\"a\",\"time\":\"x\"}\nnonsense\n{\"level\":\"error\",\"msg\":\"b\"}\n";
        assert_eq!(sort(log), (vec!["b".to_owned()], vec!["a".to_owned()]));
    }

    #[test]
    fn a_named_program_has_to_be_there() {
        assert!(find(Some(Path::new("/no/such/dormouse"))).unwrap_err().contains("/no/such/dormouse"));
        assert!(find(Some(Path::new("sh"))).is_ok());
        let dir = testdir::TempDir::new();
        std::fs::write(dir.path().join("plain"), "").unwrap();
        assert!(find(Some(&dir.path().join("plain"))).is_err());
    }
}
