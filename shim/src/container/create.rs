//! How a container comes to be.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use containerd_shim_protos::events::task::{TaskCreate, TaskIO};
use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::shim::shim::CreateTaskRequest;
use containerd_shim_protos::ttrpc::Code;
use runtime::cgroup::Groups;
use runtime::state::{Id, Root};
use serde::Deserialize;
use vmm::process;

use super::{Container, Process, Processes, Surroundings};
use crate::console::{Console, ConsoleSocket};
use crate::dormouse::Dormouse;
use crate::events::Topic;
use crate::failure::{Failure, Result};
use crate::log;
use crate::mounts;
use crate::options::Options;
use crate::streams::{Held, Input, Names, Streams};

const PID_FILE: &str = "init.pid";

/// Creates a container. The caller expects its leash, and claims it once the container is known.
pub fn create(around: &Surroundings, request: &CreateTaskRequest) -> Result<Container> {
    if !request.checkpoint.is_empty() {
        let why = "cannot create a container from a checkpoint: not yet implemented; start it anew";
        return Err(Failure::new(Code::UNIMPLEMENTED, why));
    }
    let sandbox = Id::new(&request.id).map_err(|error| Failure::invalid(error.to_string()))?;
    let bundle = PathBuf::from(&request.bundle);
    let spec = Spec::of(&bundle);
    let options = settle_options(request, &spec, &bundle)?;
    let state = options.state_root(&around.namespace);
    let dormouse = Dormouse::new(&options, &state, &bundle).map_err(failed)?;

    let rootfs = bundle.join("rootfs");
    mount_root(request, &rootfs)?;
    let mounted = Mounted(Some(rootfs.clone()));

    let names = Names {
        stdin: request.stdin.clone(),
        stdout: request.stdout.clone(),
        stderr: request.stderr.clone(),
        terminal: request.terminal,
    };
    let mut arguments: Vec<OsString> = ["create", "--bundle"].map(Into::into).to_vec();
    arguments.extend([bundle.clone().into(), "--pid-file".into(), bundle.join(PID_FILE).into()]);
    let begun = Begun::new(around, &request.id, names, &bundle, "init")?;
    let ready = begun.run(around, &dormouse, arguments, sandbox.as_str())?;
    let root = Root::new(state);
    let mut process = Process::new(ready.names());
    ready.settle(&mut process, PID_FILE).inspect_err(|_| {
        // The failure that is told is the first one.
        let _ = runtime::container::delete(&root, &sandbox, true);
    })?;
    let groups = Groups::of(process.pid);
    mounted.keep();

    around.publisher.publish(Topic::Create, &event(request, process.pid()));
    let processes = Processes {
        init: process,
        execs: BTreeMap::new(),
        is_paused: false,
        held_end: None,
        specs: BTreeMap::new(),
    };
    let container = Container {
        is_further: runtime::container::is_further(&root, &sandbox),
        id: request.id.clone(),
        rootfs,
        dormouse,
        root,
        sandbox,
        has_hooks: spec.has_hooks(),
        bundle,
        groups,
        changing: Mutex::new(()),
        processes: Mutex::new(processes),
        files: AtomicU64::new(0),
    };
    Ok(container)
}

/// The options of a request, completed by what the bundle and the host say, and kept in the bundle.
fn settle_options(request: &CreateTaskRequest, spec: &Spec, bundle: &Path) -> Result<Options> {
    let any = request.options.as_ref();
    let options = any.map(|any| Options::read(&any.type_url, &any.value)).transpose();
    let mut options = options.map_err(Failure::invalid)?.flatten().unwrap_or_default();
    options.complete(spec.cgroups_path(), Path::new("/sys/fs/cgroup/cgroup.controllers").exists());
    options
        .write(bundle)
        .map_err(|error| Failure::other(format!("cannot write into bundle {}: {error}", bundle.display())))?;
    Ok(options)
}

/// Mounts the root file system that a request describes.
fn mount_root(request: &CreateTaskRequest, rootfs: &Path) -> Result<()> {
    if request.rootfs.is_empty() {
        return Ok(());
    }
    match std::fs::create_dir(rootfs) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Failure::other(format!("cannot make {}: {error}", rootfs.display())));
        }
        _ => {}
    }
    mounts::mount_all(&request.rootfs, rootfs)
        .map_err(|why| Failure::other(format!("failed to mount rootfs component: {why}")))
}

fn failed(why: String) -> Failure {
    Failure::other(format!("OCI runtime create failed: {why}"))
}

/// Mounts that go if nothing comes of the container.
struct Mounted(Option<PathBuf>);

impl Mounted {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(root) = self.0.take()
            && let Err(error) = mounts::unmount_all(&root)
        {
            log::note(format_args!("cannot unmount {}: {error}", root.display()));
        }
    }
}

/// A process that is about to begin, with its streams open.
pub(super) struct Begun {
    names: Names,
    streams: Streams,
    socket: Option<ConsoleSocket>,
    bundle: PathBuf,
    log: String,
}

impl Begun {
    /// `name`: for files in the bundle.
    pub(super) fn new(
        around: &Surroundings,
        container: &str,
        names: Names,
        bundle: &Path,
        name: &str,
    ) -> Result<Self> {
        let streams = Streams::open(&names, container, &around.namespace, &around.reaper)
            .map_err(|why| Failure::other(format!("failed to create I/O: {why}")))?;
        let socket = names.terminal.then(|| ConsoleSocket::new(bundle, &format!("console-{name}.sock")));
        let socket = socket.transpose().map_err(|error| {
            Failure::other(format!("failed to create OCI runtime console socket: {error}"))
        })?;
        let log = format!("log-{name}.json");
        Ok(Self { names, streams, socket, bundle: bundle.to_owned(), log })
    }

    /// Runs the command that makes the process, `create` or `exec`.
    pub(super) fn run(
        mut self,
        around: &Surroundings,
        dormouse: &Dormouse,
        mut arguments: Vec<OsString>,
        container: &str,
    ) -> Result<Ready> {
        let deed = arguments.first().map(|first| first.to_string_lossy().into_owned()).unwrap_or_default();
        let mut streams = self.streams;
        // What a terminal shows is the shim's to write.
        let shown = self.socket.as_ref().and_then(|_| streams.stdout.take());
        if let Some(socket) = &self.socket {
            arguments.extend(["--console-socket".into(), socket.address().into()]);
        }
        arguments.push(container.into());
        dormouse
            .run(&arguments, &self.log, &mut streams, &around.reaper)
            .map_err(|why| Failure::other(format!("OCI runtime {deed} failed: {why}")))?;
        let Streams { held, input, .. } = streams;
        Ok(Ready { names: self.names, held, input, shown, socket: self.socket.take(), bundle: self.bundle })
    }
}

/// A process that was made.
pub(super) struct Ready {
    names: Names,
    held: Held,
    input: Option<Input>,
    socket: Option<ConsoleSocket>,
    /// Where what its terminal shows goes.
    shown: Option<OwnedFd>,
    bundle: PathBuf,
}

impl Ready {
    /// Completes the process: its terminal and input, and the pid in its pid file.
    pub(super) fn settle(self, process: &mut Process, pid_file: &str) -> Result<()> {
        let text = std::fs::read_to_string(self.bundle.join(pid_file)).unwrap_or_default();
        process.pid = text.trim().parse().map_err(|_| {
            Failure::other(format!("failed to retrieve OCI runtime container pid: {pid_file} holds {text:?}"))
        })?;
        // An end that comes before this is told all the same.
        process.pidfd = process::pidfd(process.pid).ok();
        process.held = self.held;
        if let Some(socket) = &self.socket {
            let no_console = |error| Failure::other(format!("failed to retrieve console master: {error}"));
            let controller = socket.receive().map_err(no_console)?;
            let console = Console::start(controller, self.input, self.shown, &mut process.held);
            process.console = Some(console.map_err(no_console)?.into());
        } else if let Some(input) = self.input {
            let no_input =
                |error| Failure::other(format!("failed to open stdin fifo {}: {error}", self.names.stdin));
            process.held.copy(input, None).map_err(no_input)?;
        }
        Ok(())
    }

    pub(super) fn names(&self) -> Names {
        self.names.clone()
    }
}

fn event(request: &CreateTaskRequest, pid: u32) -> TaskCreate {
    let mut io = TaskIO::new();
    io.stdin.clone_from(&request.stdin);
    io.stdout.clone_from(&request.stdout);
    io.stderr.clone_from(&request.stderr);
    io.terminal = request.terminal;
    let mut event = TaskCreate::new();
    event.container_id.clone_from(&request.id);
    event.bundle.clone_from(&request.bundle);
    event.io = MessageField::some(io);
    event.pid = pid;
    event
}

/// The part of a bundle's configuration that the shim needs; nothing is there if it cannot be read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    hooks: Option<Hooks>,
    linux: Option<Linux>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Hooks {
    poststart: Option<Vec<serde::de::IgnoredAny>>,
    poststop: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Linux {
    cgroups_path: Option<String>,
}

impl Spec {
    fn of(bundle: &Path) -> Self {
        let text = std::fs::read(bundle.join("config.json")).ok();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    fn cgroups_path(&self) -> &str {
        self.linux.as_ref().and_then(|linux| linux.cgroups_path.as_deref()).unwrap_or_default()
    }

    /// Whether the bundle has hooks for after the start or the end.
    fn has_hooks(&self) -> bool {
        let is_some = |list: &Option<Vec<_>>| list.as_ref().is_some_and(|list| !list.is_empty());
        self.hooks.as_ref().is_some_and(|hooks| is_some(&hooks.poststart) || is_some(&hooks.poststop))
    }
}
