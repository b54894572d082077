//! A sandbox that goes on under another VMM: its memory, its descriptors under their old numbers, and a plan that says which is what.
//!
//! The former VMM has put the sandbox to sleep and had its memory taken ([`Sandbox::ask_for_snapshot`]). It sends everything to a
//! [`Kept`](handover::Kept), which reads no byte of it, and ends. The next one is a new program with another address layout: it takes everything
//! in, and its kernel is revived.
//!
//! | what | how it travels |
//! |---|---|
//! | the kernel's memory, and what is left of the programs' | a memory file ([`crate::snapshot`]) |
//! | stored pages | the files of their home, and its tables in a memory file |
//! | exec'd processes | the connections of their peers, and what was read of these |
//! | files, sockets, streams, watches, locks | the open files themselves; what the VMM knows of them, in the plan |
//! | what the host has to tell | the sets of `epoll(7)` with all that is registered in them |
//!
//! A sandbox with something that the plan has no words for is refused.
#![deny(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use abi::boot::Platform;
use abi::hostcall::{
    EVENT_DONE, EVENT_EXEC_SIGNAL, EVENT_EXEC_WINSIZE, EVENT_LOOK, EVENT_READY, EVENT_SIGNAL, EVENT_WINSIZE,
    Event,
};
use abi::report::ContainerId;
use serde::{Deserialize, Serialize};

use crate::container_queue::ContainerQueue;
use crate::exec_relay::handover::ExecRelayPlan;
use crate::exec_relay::{ExecRelay, MakePeer};
use crate::handover::{self, HandOverError, MEMORY, PLAN, Placed, TABLES, VERSION};
use crate::hibernate::Hibernation;
use crate::hibernate::handover::HomeRecord;
use crate::host_paths::HostPaths;
use crate::hostcall::handover::HostIoPlan;
use crate::hostcall::host_io::HostIo;
use crate::hostcall::io_threads::EventSink;
use crate::image::KERNEL_DIGEST;
use crate::memory;
use crate::sandbox::{Sandbox, SandboxConfig};
use crate::snapshot::Snapshot;

/// Most bytes of a plan, and of a home's tables.
const PLAN_BYTES_MAX: u64 = 256 << 20;
const TABLES_BYTES_MAX: u64 = 1 << 30;

/// The plan of a sandbox for the next VMM. Whoever wrote it may be hostile.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    version: u32,
    kernel: String,
    machine: MachinePlan,
    host: HostIoPlan,
    home: HomeRecord,
    execs: ExecRelayPlan,
    last_container: u64,
    events: Vec<EventPlan>,
}

/// The sizes that the kernel has built its tables for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachinePlan {
    is_kvm: bool,
    cpus: u32,
    memory_bytes: u64,
    memory_most_bytes: u64,
    kernel_bytes: u64,
    vmms: u32,
    taken_bytes: u64,
}

/// The most that a plan may ask for, by the word of whoever starts the next VMM.
#[derive(Clone, Copy, Debug)]
pub struct SizesMost {
    pub cpus: u32,
    /// For both limits of memory of a [`SandboxConfig`].
    pub memory_most_bytes: u64,
    pub kernel_bytes: u64,
}

impl MachinePlan {
    /// Refuses what is more than that.
    fn check(&self, most: &SizesMost) -> Result<(), HandOverError> {
        let too_much = |what| Err(HandOverError::TooMuch(what));
        match self {
            Self { cpus, .. } if *cpus > most.cpus => too_much("vCPUs"),
            Self { memory_bytes, memory_most_bytes, .. }
                if *memory_bytes.max(memory_most_bytes) > most.memory_most_bytes =>
            {
                too_much("memory")
            }
            Self { kernel_bytes, .. } if *kernel_bytes > most.kernel_bytes => too_much("kernel memory"),
            _ => Ok(()),
        }
    }
}

/// An event that the kernel has not been told.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventPlan {
    kind: u32,
    flags: u32,
    token: u64,
    value: i64,
}

impl Plan {
    /// Reads a plan that anybody may have written.
    pub fn parse(bytes: &[u8]) -> Result<Self, HandOverError> {
        // Of another version only that is understood.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
            kernel: String,
        }
        let Head { version, kernel } = serde_json::from_slice(bytes)?;
        if version != VERSION {
            return Err(HandOverError::Version(version));
        }
        if kernel != KERNEL_DIGEST {
            return Err(HandOverError::Kernel(kernel));
        }
        Ok(serde_json::from_slice(bytes)?)
    }
}

impl Sandbox {
    /// Sends a sandbox whose memory was taken to the [`Kept`](handover::Kept) at the other end. Nothing of it may be used afterwards: the process is to
    /// end.
    pub fn hand_over(&self, socket: &UnixStream) -> Result<(), HandOverError> {
        let snapshot = self.snapshot().ok_or(HandOverError::Refused("its memory was not taken"))?;
        let host = self.files.hand_over()?;
        let execs = self.execs().leave();
        let last_container = self.coming_containers().last().0;
        let home = self.hibernation().hand_over()?;
        let config = self.config();
        let plan = Plan {
            version: VERSION,
            kernel: KERNEL_DIGEST.into(),
            machine: MachinePlan {
                is_kvm: config.platform == Platform::Kvm,
                cpus: config.cpus,
                memory_bytes: config.memory_bytes,
                memory_most_bytes: config.memory_most_bytes,
                kernel_bytes: config.kernel_bytes,
                vmms: snapshot.vmms(),
                taken_bytes: snapshot.bytes(),
            },
            host: host.plan(),
            home: home.plan(),
            execs: execs.plan(),
            last_container,
            // Nobody posts any more. Requests are made anew by who made them.
            events: self.events.take(usize::MAX).into_iter().filter(is_news).map(EventPlan::from).collect(),
        };
        let (mut text, mut tables) = (memory_file(c"dormouse-plan")?, memory_file(c"dormouse-tables")?);
        text.write_all(&serde_json::to_vec(&plan)?)?;
        tables.write_all(home.tables())?;
        let own = [(PLAN, text.as_fd()), (MEMORY, snapshot.file()), (TABLES, tables.as_fd())];
        let placed = host
            .descriptors()
            .into_iter()
            .chain(home.descriptors())
            .chain(execs.descriptors())
            .map(|fd| (fd.as_raw_fd(), fd));
        let all: Vec<_> = own.into_iter().chain(placed).collect();
        Ok(handover::send(socket, &all)?)
    }
}

/// Whether an event is news of the host's rather than a request, whose number means nothing to another VMM.
fn is_news(event: &Event) -> bool {
    matches!(
        event.kind,
        EVENT_READY
            | EVENT_DONE
            | EVENT_LOOK
            | EVENT_SIGNAL
            | EVENT_WINSIZE
            | EVENT_EXEC_SIGNAL
            | EVENT_EXEC_WINSIZE
    )
}

impl From<Event> for EventPlan {
    fn from(Event { kind, flags, token, value }: Event) -> Self {
        Self { kind, flags, token, value }
    }
}

impl From<EventPlan> for Event {
    fn from(EventPlan { kind, flags, token, value }: EventPlan) -> Self {
        Self { kind, flags, token, value }
    }
}

fn memory_file(name: &std::ffi::CStr) -> Result<File, HandOverError> {
    Ok(memory::memory_file(name)?.into())
}

/// A sandbox that has come from another VMM, and does not run yet.
pub struct Arrived {
    /// Its host objects.
    pub host: HostIo,
    /// The home of its pages.
    pub home: Hibernation,
    /// Its exec'd processes.
    pub execs: ExecRelay,
    /// Its further containers that are to come.
    pub containers: ContainerQueue,
    /// Its memory.
    pub snapshot: Snapshot,
    /// Events that the kernel has not been told.
    pub events: Vec<Event>,
    machine: MachinePlan,
}

impl std::fmt::Debug for Arrived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrived").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl Arrived {
    /// Takes a sandbox in. The process has opened nothing yet but the socket, whose number no VMM uses for a sandbox, and is to have
    /// no other thread. `sink` as for [`HostIo::new`]; `make_peer` makes the peers of its exec'd processes.
    pub fn receive(
        host: &HostPaths,
        socket: &UnixStream,
        most: &SizesMost,
        sink: EventSink,
        make_peer: MakePeer<'_>,
    ) -> Result<Self, HandOverError> {
        crate::process::raise_open_files();
        let (mut placed, mut own) = Placed::place(handover::receive(socket)?)?;
        let mut file = |number| {
            let at = own.iter().position(|one| one.number == number);
            at.map(|at| own.swap_remove(at).fd).ok_or(HandOverError::Damaged("a file is missing"))
        };
        let (text, memory, tables) = (file(PLAN)?, file(MEMORY)?, file(TABLES)?);
        let Plan { machine, host: objects, home, execs, last_container, events, .. } =
            Plan::parse(&content(text, PLAN_BYTES_MAX)?)?;
        machine.check(most)?;
        let home =
            home.open(host, &content(tables, TABLES_BYTES_MAX)?, machine.memory_most_bytes, &mut placed)?;
        let objects = objects.open(&mut placed, sink)?;
        let execs = execs.open(&mut placed, make_peer)?;
        if !placed.is_empty() || !own.is_empty() {
            return Err(HandOverError::Damaged("it does not say what a descriptor is for"));
        }
        check_memory_file(&memory)?;
        let snapshot = Snapshot::of_former(memory, machine.taken_bytes, machine.vmms);
        let events = events.into_iter().map(Event::from).filter(is_news).collect();
        let containers = ContainerQueue::following(ContainerId(last_container))?;
        Ok(Self { host: objects, home, execs, containers, snapshot, events, machine })
    }

    /// Gives a configuration the sizes that the kernel has built its tables for.
    #[must_use]
    pub fn configure(&self, config: SandboxConfig) -> SandboxConfig {
        let MachinePlan { is_kvm, cpus, memory_bytes, memory_most_bytes, kernel_bytes, .. } = self.machine;
        let platform = if is_kvm { Platform::Kvm } else { Platform::Systrap };
        SandboxConfig { platform, cpus, memory_bytes, memory_most_bytes, kernel_bytes, ..config }
    }
}

/// A file of a file server could answer anything.
fn check_memory_file(file: &OwnedFd) -> Result<(), HandOverError> {
    rustix::fs::fcntl_get_seals(file)
        .map(drop)
        .map_err(|_| HandOverError::Damaged("a file is none in memory"))
}

/// A memory file's bytes, if they are not too many.
fn content(file: OwnedFd, most: u64) -> Result<Vec<u8>, HandOverError> {
    check_memory_file(&file)?;
    let file = File::from(file);
    let len = file.metadata()?.len();
    if len > most {
        return Err(HandOverError::Damaged("it is too long"));
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| HandOverError::Damaged("it is too long"))?];
    // Whoever wrote the file shares its position.
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Plays a plan that anybody may have written, as far as it can be opened with descriptors of nothing.
#[cfg(fuzzing)]
pub fn play(input: &[u8]) {
    let _ = Plan::parse(input);
    // The home's tables come behind the first line.
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (plan, tables) = input.split_at(end);
    let Ok(Plan { machine, host, home, execs, last_container, .. }) = serde_json::from_slice::<Plan>(plan)
    else {
        return;
    };
    let most = SizesMost { cpus: 4, memory_most_bytes: 1 << 30, kernel_bytes: 1 << 30 };
    if machine.check(&most).is_err() || ContainerQueue::following(ContainerId(last_container)).is_err() {
        return;
    }
    let null = || File::open("/dev/null").map(|file| handover::Numbered { number: 0, fd: file.into() });
    let numbered =
        (600..632).filter_map(|number| null().ok().map(|one| handover::Numbered { number, ..one }));
    let Ok((mut placed, _)) = Placed::place(numbered.collect()) else { return };
    let host_paths = HostPaths::of_new_process();
    let _ =
        home.open(&host_paths, tables.get(1..).unwrap_or_default(), machine.memory_most_bytes, &mut placed);
    let _ = host.open(&mut placed, std::sync::Arc::new(|_| {}));
    let _ =
        execs.open(&mut placed, &|fd, unread| Box::new(crate::exec_relay::handover::SilentPeer(fd, unread)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_asks_for_no_more_than_the_next_vmm_is_given() {
        let machine = MachinePlan {
            is_kvm: false,
            cpus: 2,
            memory_bytes: 64 << 20,
            memory_most_bytes: 256 << 20,
            kernel_bytes: 1 << 30,
            vmms: 1,
            taken_bytes: 0,
        };
        let most = SizesMost { cpus: 2, memory_most_bytes: 256 << 20, kernel_bytes: 1 << 30 };
        machine.check(&most).unwrap();
        let refused = [
            (MachinePlan { cpus: 3, ..machine }, "vCPUs"),
            (MachinePlan { memory_bytes: (256 << 20) + 1, ..machine }, "memory"),
            (MachinePlan { memory_most_bytes: u64::MAX, ..machine }, "memory"),
            (MachinePlan { kernel_bytes: (1 << 30) + 1, ..machine }, "kernel memory"),
        ];
        for (machine, what) in refused {
            let error = machine.check(&most).unwrap_err();
            assert!(matches!(error, HandOverError::TooMuch(of) if of == what), "{error}");
        }
    }
}
