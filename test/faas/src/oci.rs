//! Containers of a runtime that has runc's command line.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Command;

use crate::backend::BackendError;
use crate::config::{Config, FunctionConfig};

/// For a command of the runtime's.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// For a container to end after SIGKILL.
const END_TIMEOUT: Duration = Duration::from_secs(10);

const CGROUPS: &str = "/sys/fs/cgroup";
const CAPABILITIES: [&str; 6] =
    ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE"];

/// How containers are made and ended.
pub struct Oci {
    runtime: PathBuf,
    runtime_args: Vec<String>,
    directory: PathBuf,
    root: PathBuf,
    show: Vec<PathBuf>,
    annotations: Value,
}

/// One container that was started.
pub struct OciContainer {
    /// Its name at the runtime.
    pub id: String,
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
    /// Its control groups, which outlive its processes.
    pub groups: Groups,
}

/// The control groups of a container.
#[derive(Clone, Debug)]
pub struct Groups {
    /// The directory of the group that accounts for its memory.
    pub memory: PathBuf,
    /// The file that freezes it.
    pub freezer: PathBuf,
}

impl Oci {
    /// # Errors
    /// When the directory of the configuration cannot be made.
    pub fn new(config: &Config) -> io::Result<Self> {
        std::fs::create_dir_all(config.directory.join("state"))?;
        Ok(Self {
            runtime: config.runtime.clone(),
            runtime_args: config.runtime_args.clone(),
            directory: std::path::absolute(&config.directory)?,
            root: config.root.clone(),
            show: config.show.clone(),
            annotations: json!(config.annotations),
        })
    }

    /// Starts a function's command in a container of this name. After an error nothing is left of it.
    ///
    /// # Errors
    /// When the runtime says no, or the container has ended already.
    pub async fn start(&self, function: &FunctionConfig, id: &str) -> Result<OciContainer, BackendError> {
        let started = self.run(function, id).await;
        if started.is_err() {
            self.remove(id).await;
        }
        started
    }

    async fn run(&self, function: &FunctionConfig, id: &str) -> Result<OciContainer, BackendError> {
        let bundle = self.bundle(id);
        let log = self.directory.join(format!("{}.log", function.name));
        let failed = |error: io::Error| BackendError(format!("its bundle cannot be made: {error}"));
        std::fs::create_dir(&bundle).map_err(failed)?;
        let spec = self.spec(function, id).to_string();
        std::fs::write(bundle.join("config.json"), spec).map_err(failed)?;
        let output = File::create(&log).map_err(failed)?;
        let pid_file = bundle.join("pid");
        let mut command = self.command("run");
        command.arg("--detach").arg("--pid-file").arg(&pid_file).arg("--bundle").arg(&bundle).arg(id);
        // The container keeps these.
        command.stdout(output.try_clone().map_err(failed)?).stderr(output);
        let status = tokio::time::timeout(COMMAND_TIMEOUT, command.status())
            .await
            .map_err(|_| {
                BackendError(format!("the runtime takes more than {} s", COMMAND_TIMEOUT.as_secs()))
            })?
            .map_err(|error| BackendError(format!("{} cannot be run: {error}", self.runtime.display())))?;
        if !status.success() {
            return Err(BackendError(last_line(&log)));
        }
        OciContainer::of(id, &pid_file).map_err(|error| {
            BackendError(format!("its process cannot be watched ({error}): {}", last_line(&log)))
        })
    }

    /// Kills a container, waits for its end, and removes what is left of it.
    pub async fn stop(&self, container: &OciContainer) {
        container.kill();
        if tokio::time::timeout(END_TIMEOUT, container.ended()).await.is_err() {
            eprintln!("faas: {} still runs {} s after SIGKILL", container.id, END_TIMEOUT.as_secs());
        }
        self.remove(&container.id).await;
    }

    async fn remove(&self, id: &str) {
        // There may be no such container.
        let _ = self.call("delete", &["--force", id]).await;
        // Nor such a bundle.
        let _ = std::fs::remove_dir_all(self.bundle(id));
    }

    /// Runs a command of the runtime's.
    ///
    /// # Errors
    /// When it fails, with what it says.
    pub async fn call(&self, command: &str, words: &[&str]) -> Result<(), BackendError> {
        let output = self.command(command).args(words).stdout(Stdio::null()).stderr(Stdio::piped()).output();
        let output = tokio::time::timeout(COMMAND_TIMEOUT, output)
            .await
            .map_err(|_| BackendError(format!("{command} takes more than {} s", COMMAND_TIMEOUT.as_secs())))?
            .map_err(|error| BackendError(format!("{} cannot be run: {error}", self.runtime.display())))?;
        if output.status.success() {
            return Ok(());
        }
        Err(BackendError(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    fn command(&self, word: &str) -> Command {
        let mut command = Command::new(&self.runtime);
        command.args(&self.runtime_args).arg("--root").arg(self.directory.join("state")).arg(word);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    fn bundle(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    fn spec(&self, function: &FunctionConfig, id: &str) -> Value {
        let tmpfs = |at: &str| json!({"destination": at, "type": "tmpfs", "source": "tmpfs"});
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            tmpfs("/dev"),
            tmpfs("/tmp"),
        ];
        // After those of the function's own, which may hide them.
        mounts.extend(self.show.iter().map(
            |path| json!({"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]}),
        ));
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": function.command,
                "cwd": "/",
                "env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
                "noNewPrivileges": true,
                "capabilities": {
                    "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
                },
            },
            "root": {"path": self.root, "readonly": true},
            "hostname": function.name,
            "mounts": mounts,
            "annotations": self.annotations,
            // The network is the gateway's own.
            "linux": {
                "namespaces": (["pid", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}))),
                "cgroupsPath": format!("/{id}"),
            },
        })
    }
}

impl OciContainer {
    /// The container whose first process the file names.
    fn of(id: &str, pid_file: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(pid_file)?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other(format!("{text:?} is no pid")))?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        let groups = Groups::of(pid)?;
        Ok(Self { id: id.to_owned(), pid, pidfd: watched(pidfd)?, groups })
    }

    /// Waits for its end.
    pub async fn ended(&self) {
        // An error would mean that the gateway's own runtime has ended.
        let _ = self.pidfd.readable().await;
        // It is the gateway's to collect, unless another process above has claimed it.
        let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG);
    }

    fn kill(&self) {
        // It may have ended.
        let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL);
    }

    /// Everything that is charged to its memory group.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        self.groups.memory_bytes()
    }
}

impl Groups {
    /// Those of a process, of version 1 or 2.
    fn of(pid: Pid) -> io::Result<Self> {
        let text = std::fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()))?;
        let path = |controller: &str| {
            text.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                let is_it = controllers.split(',').any(|one| one == controller);
                is_it.then(|| path.trim_start_matches('/'))
            })
        };
        let top = Path::new(CGROUPS);
        if let (Some(memory), Some(freezer)) = (path("memory"), path("freezer")) {
            return Ok(Self {
                memory: top.join("memory").join(memory),
                freezer: top.join("freezer").join(freezer).join("freezer.state"),
            });
        }
        let group = path("").ok_or_else(|| io::Error::other("it has no memory group"))?;
        Ok(Self { memory: top.join(group), freezer: top.join(group).join("cgroup.freeze") })
    }

    /// The bytes that are charged to the group; `None` once the group is gone.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        let number =
            |file: &str| std::fs::read_to_string(self.memory.join(file)).ok()?.trim().parse::<u64>().ok();
        if let Some(bytes) = number("memory.current") {
            return Some(bytes);
        }
        // memory.usage_in_bytes also counts what each CPU has set aside (the kernel's cgroup-v1/memory.rst, section 5.5).
        let stat = std::fs::read_to_string(self.memory.join("memory.stat")).ok()?;
        let field = |name: &str| {
            stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok())
        };
        let kernel = number("memory.kmem.usage_in_bytes").unwrap_or(0);
        field("total_rss")?.checked_add(field("total_cache")?)?.checked_add(kernel)
    }
}

/// Deprecated because a caller's own type may change its descriptor meanwhile. An `OwnedFd` keeps its one, and the
/// constructor that took its place is unsafe.
#[expect(deprecated)]
fn watched(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(pidfd, Interest::READABLE)
}

fn last_line(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("the runtime fails, and says nothing").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(files: &[(&str, &str)]) -> (testdir::TempDir, Groups) {
        let directory = testdir::TempDir::new();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let groups = Groups { memory: directory.path().to_owned(), freezer: PathBuf::new() };
        (directory, groups)
    }

    #[test]
    fn what_is_shown_lies_over_the_functions_own_files() {
        let oci = Oci {
            runtime: PathBuf::new(),
            runtime_args: Vec::new(),
            directory: PathBuf::new(),
            root: "/".into(),
            show: vec!["/tmp/with a blank".into()],
            annotations: Value::Null,
        };
        let spec = oci.spec(&FunctionConfig { name: "a".into(), command: vec!["x".into()], port: 1 }, "id");
        let mounts = spec["mounts"].as_array().unwrap();
        let at = |path: &str| mounts.iter().position(|mount| mount["destination"] == path).unwrap();
        assert!(at("/tmp/with a blank") > at("/tmp"), "{spec}");
        let shown = &mounts[at("/tmp/with a blank")];
        assert_eq!(
            (&shown["source"], &shown["options"]),
            (&json!("/tmp/with a blank"), &json!(["rbind", "ro"]))
        );
    }

    #[test]
    fn memory_is_read_from_either_version() {
        let (_directory, groups) = groups(&[("memory.current", "4096\n")]);
        assert_eq!(groups.memory_bytes(), Some(4096));
    }

    #[test]
    fn memory_of_version_1_is_the_sum_of_its_kinds() {
        let stat = "cache 1\nrss 2\ntotal_cache 300\ntotal_rss 20\ntotal_rss_huge 7\n";
        let (_directory, groups) = groups(&[("memory.stat", stat), ("memory.kmem.usage_in_bytes", "1\n")]);
        assert_eq!(groups.memory_bytes(), Some(321));
    }

    #[test]
    fn a_group_that_is_gone_has_no_memory() {
        let (_directory, groups) = groups(&[("memory.stat", "total_rss 5\n")]);
        assert_eq!(groups.memory_bytes(), None);
    }
}
