//! One sandbox: its memory, its host objects, its vCPUs, and how it ends.
#![deny(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use abi::boot::Platform;
use abi::hostcall::{EVENT_FLAG_IMAGE, EVENT_FLAG_UNCONNECTED, EVENT_SNAPSHOT, Event};
use abi::layout::kernel_bytes;
use abi::report::Report;

use crate::boot::{self, BootError, BootSpec, TscMeter};
use crate::checkpoint::{ImageSink, WantedImage};
use crate::container_queue::ContainerQueue;
use crate::errno::Errno;
use crate::exec_relay::ExecRelay;
use crate::fault_signals;
use crate::footprint;
use crate::handover::HandOverError;
use crate::hibernate::Hibernation;
use crate::hibernate::stats::{self, Cycles, KernelPlace, Stats};
use crate::hostcall::events::EventQueue;
use crate::hostcall::host_io::HostIo;
use crate::image::{self, ImageError, ImageFile, LoadedImage, Part};
use crate::jail::{JailError, Seal};
use crate::lock::{Guard, Mutex, Rank};
use crate::memory::{self, MemoryError, SandboxMemory};
use crate::platform::kvm::{self, Kvm};
use crate::platform::machine::{LogSink, Machine, PlatformError};
use crate::platform::systrap::Systrap;
use crate::snapshot::Snapshot;
use crate::vcpu::Cpus;
use crate::watchdog::{Pulses, Verdict, Watchdog, Watched};

/// [`SandboxConfig::patience`]: more than anything may take that waits for a stub.
const PATIENCE: Duration = Duration::from_secs(20);

/// Takes the kernel's reports, but those of exec'd processes; must not wait.
pub type ReportSink = Arc<dyn Fn(&Report<'_>) + Send + Sync>;
/// Takes the outcome of the hibernation that the request with this number asked for: whether user memory is stored. Must
/// not wait.
pub type SleepSink = Arc<dyn Fn(u64, bool) + Send + Sync>;

/// How long a vCPU may take to leave once the sandbox has ended.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// More than the kernel's image takes: addresses this far from its beginning are not named.
const IMAGE_BYTES: u64 = 8 << 20;

/// How a sandbox is to be made.
#[derive(Clone)]
pub struct SandboxConfig {
    pub platform: Platform,
    pub cpus: u32,
    /// Memory the sandbox's applications may use, in bytes.
    pub memory_bytes: u64,
    /// The most that this limit may ever become, in bytes: address space, of which only memory in use costs anything.
    pub memory_most_bytes: u64,
    /// Address space for kernel memory, in bytes; only memory in use costs anything.
    pub kernel_bytes: u64,
    /// The kernel's ELF image.
    pub kernel: &'static [u8],
    /// The file it comes from, if it is at hand.
    pub kernel_file: Option<Arc<ImageFile>>,
    pub log: LogSink,
    pub report: ReportSink,
    pub sleeps: SleepSink,
    /// Takes the images that were asked for ([`Sandbox::ask_for_image`]).
    pub images: ImageSink,
    /// The home of its pages while it sleeps.
    pub hibernation: Arc<Hibernation>,
    /// Exec'd processes.
    pub execs: Arc<ExecRelay>,
    /// Further containers that the kernel has not taken.
    pub containers: Arc<ContainerQueue>,
    /// How long a vCPU or the control thread may make no progress, in whole seconds.
    pub patience: Duration,
    /// `/dev/kvm`, if no path leads to it any more.
    pub device: Option<kvm::Device>,
    /// The pages of the snapshot that it begins with, if it shares them with others: a file that is open for reading only.
    pub template: Option<Arc<OwnedFd>>,
}

impl SandboxConfig {
    /// A configuration with the built-in kernel, which logs to standard error.
    #[must_use]
    pub fn new(platform: Platform, cpus: u32, memory_bytes: u64) -> Self {
        Self {
            platform,
            cpus,
            memory_bytes,
            memory_most_bytes: memory_bytes,
            kernel_bytes: kernel_bytes(memory_bytes),
            kernel: image::KERNEL,
            kernel_file: None,
            log: Arc::new(|_, text| eprintln!("{text}")),
            report: Arc::new(|_| {}),
            sleeps: Arc::new(|_, _| {}),
            images: Arc::new(|_, _| {}),
            hibernation: Arc::new(Hibernation::none()),
            execs: Arc::default(),
            containers: Arc::default(),
            patience: PATIENCE,
            device: None,
            template: None,
        }
    }
}

impl fmt::Debug for SandboxConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxConfig")
            .field("platform", &self.platform)
            .field("cpus", &self.cpus)
            .field("memory_bytes", &self.memory_bytes)
            .finish_non_exhaustive()
    }
}

/// Why a sandbox could not be made or came to an irregular end.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("cannot set up guest memory")]
    Memory(#[from] MemoryError),
    #[error("cannot load the kernel")]
    Image(#[from] ImageError),
    #[error("cannot describe the first process")]
    Boot(#[from] BootError),
    #[error("cannot start the platform")]
    Platform(#[from] PlatformError),
    #[error("a sandbox has 1 to {max} vCPUs, not {0}", max = abi::layout::MAX_CPUS)]
    Cpus(u32),
    #[error("cannot start a vCPU thread")]
    Thread(#[source] std::io::Error),
    #[error(transparent)]
    Jail(#[from] JailError),
    #[error("the kernel gave up: {0}")]
    Panicked(String),
    #[error("the sandbox is stuck and ends; please report this: {0}")]
    Stuck(String),
    #[error("its memory was taken for another VMM")]
    Taken,
    #[error("cannot put memory into it that another VMM has left")]
    Put(#[source] std::io::Error),
    #[error(
        "cannot bring its memory back: {0}; check the disk of --swap-dir, and its snapshot if it has one, and start it anew"
    )]
    Lost(String),
}

/// The level of a warning, as the kernel's (`machine::log::Level`).
const LEVEL_WARN: u32 = 1;

/// How the kernel ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With this wait status.
    Exited(u32),
    /// It found itself inconsistent, or faulted.
    Panicked(String),
    /// One of the VMM's threads made no progress.
    Stuck(String),
    /// A page of its applications' memory could not come back.
    Lost(String),
    /// Its memory was taken for another VMM ([`Sandbox::snapshot`]).
    Taken,
}

/// A sandbox.
pub struct Sandbox {
    pub memory: Arc<SandboxMemory>,
    pub files: HostIo,
    pub events: Arc<EventQueue>,
    pub cpus: Cpus,
    pub pulses: Pulses,
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) kernel_stats: KernelPlace,
    config: SandboxConfig,
    tsc: TscMeter,
    former_vmms: AtomicU32,
    /// The parts of the kernel's image.
    image: OnceLock<Vec<Part>>,
    /// The request for its memory that has not been answered; 0: none.
    wants_snapshot: AtomicI64,
    /// Where its memory goes if not to another VMM.
    pub(crate) wanted_image: Mutex<Option<WantedImage>>,
    /// Where the content of its files without a name goes then.
    pub(crate) kept_orphans: Mutex<Option<File>>,
    /// The content of files without a name that the kernel had under a former VMM.
    pub(crate) orphans: Mutex<Option<File>>,
    end: Mutex<End>,
    ended: Condvar,
}

#[derive(Default)]
struct End {
    outcome: Option<Outcome>,
    cpus_left: u32,
    snapshot: Option<Snapshot>,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Makes a sandbox that does not run yet. On systrap the calling thread must outlive it: the stubs die with that
    /// thread.
    pub fn new(
        mut config: SandboxConfig,
        files: HostIo,
        events: Arc<EventQueue>,
    ) -> Result<Arc<Self>, SandboxError> {
        let tsc = TscMeter::start();
        let user_bytes = memory::user_bytes(config.memory_most_bytes.max(config.memory_bytes));
        let memory = SandboxMemory::new(config.platform, config.kernel_bytes, user_bytes)?;
        let memory = Arc::new(match config.template.take() {
            Some(file) => memory.with_template(file)?,
            None => memory,
        });
        let machine: Box<dyn Machine> = match config.platform {
            Platform::Systrap => {
                let proc = files.proc_root().ok();
                Box::new(Systrap::start(&memory, config.cpus, proc, Arc::clone(&config.log))?)
            }
            Platform::Kvm => {
                Box::new(Kvm::new(&memory, config.cpus, config.device.as_ref()).map_err(PlatformError::from)?)
            }
        };
        let cpus = Cpus::new(Arc::clone(&memory), config.cpus, machine.linear_base())
            .ok_or(SandboxError::Cpus(config.cpus))?;
        fault_signals::install().map_err(PlatformError::from)?;
        let pulses = Pulses::new(config.cpus);
        let sandbox = Arc::new(Self {
            pulses,
            memory,
            files,
            events,
            cpus,
            machine,
            kernel_stats: KernelPlace::default(),
            config,
            tsc,
            former_vmms: AtomicU32::new(0),
            image: OnceLock::new(),
            wants_snapshot: AtomicI64::new(0),
            wanted_image: Mutex::new(Rank::Image, None),
            kept_orphans: Mutex::new(Rank::Image, None),
            orphans: Mutex::new(Rank::Image, None),
            end: Mutex::new(Rank::End, End::default()),
            ended: Condvar::new(),
        });
        let weak = Arc::downgrade(&sandbox);
        sandbox.events.bind(Box::new(move || {
            if let Some(sandbox) = weak.upgrade() {
                sandbox.kick(sandbox.cpus.any_idle());
            }
        }));
        Ok(sandbox)
    }

    /// Loads the kernel, and writes what it gets to know. With what a former VMM has left of it, it goes on: then `spec` says what is new,
    /// and names no handles. Called once.
    pub fn load(
        self: &Arc<Self>,
        spec: &BootSpec,
        former: Option<&Snapshot>,
    ) -> Result<Loaded, SandboxError> {
        let linear_base = self.machine.linear_base();
        let protect = self.config.platform == Platform::Systrap;
        let image = image::load(
            self.config.kernel,
            self.config.kernel_file.as_deref(),
            &self.memory,
            linear_base,
            protect,
        )?;
        let machine = boot::MachineSpec {
            platform: self.config.platform,
            linear_base,
            hostcall_entry: self.machine.hostcall_entry(),
            heap_phys: self.machine.image_loaded(&image)?,
            user_frames_limit: self.config.memory_bytes / abi::PAGE_SIZE,
            handles_max: self.files.files().most_for_programs(),
            cpus: self.cpus.count(),
            tsc_hz: self.tsc.hz(),
            xsave: self.machine.xsave(),
            former_vmms: former.map_or(0, Snapshot::vmms),
            keeps_news: former.is_some_and(Snapshot::keeps_news),
        };
        let _ = self.image.set(image.parts.clone());
        self.former_vmms.store(machine.former_vmms, Ordering::Relaxed);
        if let Some(snapshot) = former {
            snapshot.put(&self.memory, &image.parts).map_err(SandboxError::Put)?;
            *self.orphans.lock() = snapshot.orphans().map_err(SandboxError::Put)?;
        }
        boot::write(&self.memory, spec, &machine)?;
        Ok(Loaded { sandbox: Arc::clone(self), image })
    }

    /// Loads and runs a kernel that has had no VMM before, in a process that is in no jail, for tests.
    pub fn run_without_jail(self: &Arc<Self>, spec: &BootSpec) -> Result<u32, SandboxError> {
        self.load(spec, None)?.run_without_jail()
    }

    /// Asks the kernel, which is asleep, to have its memory taken for a VMM that gets its files. A kernel that was not asked is refused.
    pub fn ask_for_snapshot(&self, request: i64) {
        self.ask_for_memory(request, None, false);
    }

    /// Asks for its memory as [`Sandbox::ask_for_snapshot`] does, for a VMM that gets none of its files but the content of those without a
    /// name, in `orphans`.
    pub fn ask_for_snapshot_alone(&self, request: i64, orphans: File) {
        *self.kept_orphans.lock() = Some(orphans);
        self.ask_for_memory(request, None, false);
    }

    pub(crate) fn ask_for_memory(&self, request: i64, image: Option<WantedImage>, refuses_connections: bool) {
        *self.wanted_image.lock() = image;
        self.wants_snapshot.store(request, Ordering::SeqCst);
        let image = if self.kept_orphans.lock().is_some() { EVENT_FLAG_IMAGE } else { 0 };
        let flags = image | if refuses_connections { EVENT_FLAG_UNCONNECTED } else { 0 };
        self.events.post(Event { kind: EVENT_SNAPSHOT, flags, value: request, ..Event::default() });
    }

    /// The request is answered now; false: it was before.
    pub(crate) fn is_answered(&self, request: i64) -> bool {
        self.wants_snapshot.compare_exchange(request, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether its memory was asked for by this request, which has not been answered.
    pub(crate) fn wants_snapshot(&self, request: i64) -> bool {
        request != 0 && self.wants_snapshot.load(Ordering::SeqCst) == request
    }

    /// Whether its memory was asked for as an image.
    pub(crate) fn wants_image(&self) -> bool {
        self.wanted_image.lock().is_some()
    }

    /// Takes its memory as it was asked for. All vCPUs sleep but the one that calls.
    pub(crate) fn take(&self) -> Result<(), Errno> {
        let wanted = self.wanted_image.lock().take();
        *self.kept_orphans.lock() = None;
        wanted.map_or_else(|| self.take_for_next(), |wanted| self.take_image(wanted))
    }

    /// Takes its memory, and ends it, unless there is something that a plan for the next VMM has no words for.
    fn take_for_next(&self) -> Result<(), Errno> {
        let left = self.files.may_be_left().and_then(|()| self.hibernation().may_be_left());
        left.and_then(|()| self.close()).map_err(|why| {
            self.log(LEVEL_WARN, &why.to_string());
            Errno(libc::EBUSY)
        })?;
        let reopen = |_: &Errno| {
            self.execs().reopen();
            self.coming_containers().reopen();
        };
        let snapshot = self.take_memory().inspect_err(reopen)?;
        self.lock_end().snapshot = Some(snapshot);
        self.finish(Outcome::Taken);
        Ok(())
    }

    /// Takes nobody in any more.
    fn close(&self) -> Result<(), HandOverError> {
        self.coming_containers().close()?;
        self.execs().close().inspect_err(|_| self.coming_containers().reopen())
    }

    fn take_memory(&self) -> Result<Snapshot, Errno> {
        let vmms = self.vmms().ok_or(Errno(libc::EOVERFLOW))?;
        self.files.page_map().and_then(|map| {
            Snapshot::take(&self.memory, self.image_parts(), &map, vmms).map_err(|error| {
                self.log(LEVEL_WARN, &format!("cannot take the sandbox's memory: {error}"));
                Errno(libc::EIO)
            })
        })
    }

    /// How many VMMs its kernel has had, this one included.
    pub(crate) fn vmms(&self) -> Option<u32> {
        self.former_vmms.load(Ordering::Relaxed).checked_add(1)
    }

    /// The parts of the kernel's image.
    pub(crate) fn image_parts(&self) -> &[Part] {
        self.image.get().map_or(&[][..], Vec::as_slice)
    }

    /// The memory that was taken from it, once.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        self.lock_end().snapshot.take()
    }

    fn run_cpus(self: &Arc<Self>, image: &LoadedImage) -> Result<u32, SandboxError> {
        self.lock_end().cpus_left = self.cpus.count();
        self.files
            .io()
            .go_on()
            .map_err(|error| SandboxError::Thread(std::io::Error::from_raw_os_error(error.0)))?;
        let mut threads = Vec::new();
        for cpu in 0..self.cpus.count() {
            let sandbox = Arc::clone(self);
            let entry = image.entry;
            let body = move || sandbox.cpu_thread(cpu, entry);
            match std::thread::Builder::new().name(format!("vcpu{cpu}")).spawn(body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    self.cpus.stop(self.files.io());
                    return Err(SandboxError::Thread(error));
                }
            }
        }
        match self.wait_for_end(threads, image) {
            Outcome::Exited(status) => Ok(status),
            Outcome::Panicked(text) => Err(SandboxError::Panicked(text)),
            Outcome::Stuck(text) => Err(SandboxError::Stuck(text)),
            Outcome::Lost(text) => Err(SandboxError::Lost(text)),
            Outcome::Taken => Err(SandboxError::Taken),
        }
    }

    fn cpu_thread(&self, cpu: u32, entry: u64) {
        self.cpus.set_running(true);
        let pulse = self.pulses.cpu(cpu);
        pulse.inspect(|pulse| self.pulses.begin(pulse));
        if let Err(error) = self.machine.run_cpu(self, cpu, entry) {
            self.finish(Outcome::Panicked(format!("vCPU {cpu} failed: {error}")));
        }
        self.cpus.set_running(false);
        pulse.inspect(|pulse| self.pulses.end(pulse));
        self.lock_end().cpus_left -= 1;
        self.ended.notify_all();
    }

    fn wait_for_end(&self, threads: Vec<JoinHandle<()>>, image: &LoadedImage) -> Outcome {
        // Under another VMM somebody may wait for its answer; what the start needed goes once it rests.
        if self.former_vmms.load(Ordering::Relaxed) == 0 {
            footprint::trim();
        }
        // This thread has nothing else to do: it is the watchdog.
        let mut watchdog = Watchdog::new(&self.pulses, self.config.patience);
        let outcome = loop {
            if let Some(outcome) = self.lock_end().outcome.clone() {
                break outcome;
            }
            if watchdog.rest(&self.pulses) {
                // Much of the code was needed for the start alone.
                footprint::trim();
                image.constant.iter().for_each(|(phys, len)| self.memory.give_back_image(*phys, *len));
            }
            match watchdog.look(&self.watched()) {
                Verdict::Well => {}
                Verdict::Long(report) => {
                    self.log(LEVEL_WARN, &format!("{report}\n  It computes, and goes on."))
                }
                Verdict::Stuck(report) => self.finish(Outcome::Stuck(report)),
            }
        };
        let end = self.lock_end();
        // A vCPU that loops in the kernel cannot be stopped; the process's end will do that.
        let (end, timed_out) = end.wait_while(&self.ended, LEAVE_TIMEOUT, |end| end.cpus_left > 0);
        drop(end);
        if !timed_out {
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        outcome
    }

    fn lock_end(&self) -> Guard<'_, End> {
        self.end.lock()
    }

    /// Ends the sandbox: the first outcome counts, and every vCPU leaves at its next hostcall.
    pub fn finish(&self, outcome: Outcome) {
        self.lock_end().outcome.get_or_insert(outcome);
        self.cpus.stop(self.files.io());
        (0..self.cpus.count()).for_each(|cpu| self.machine.interrupt(&self.cpus, cpu));
        self.ended.notify_all();
        self.pulses.finish();
    }

    /// Makes vCPU `cpu` look at its timers, its run queue and the events: wakes it, or interrupts its user code.
    pub fn kick(&self, cpu: u32) {
        self.cpus.set_pending(cpu, self.files.io());
        self.machine.interrupt(&self.cpus, cpu);
    }

    fn watched(&self) -> Watched<'_> {
        let name_of = |address| self.name_of(address);
        Watched { pulses: &self.pulses, cpus: &self.cpus, files: &self.files, name_of: Box::new(name_of) }
    }

    /// The place of an address in the kernel's image or in this program's text; `None` for any other.
    fn name_of(&self, address: u64) -> Option<String> {
        let kernel = self.machine.linear_base() + abi::layout::KERNEL_IMAGE_PHYS;
        let inside = address.wrapping_sub(kernel);
        if inside < IMAGE_BYTES && self.memory.kernel_ptr(address, 1).is_some() {
            return Some(format!("kernel+{inside:#x}"));
        }
        fault_signals::offset_in_program(address).map(|offset| format!("dormouse+{offset:#x}"))
    }

    /// How often vCPUs left the guest, by reason (kvm).
    #[must_use]
    pub fn exits(&self) -> Vec<(&'static str, u64)> {
        self.machine.exits()
    }

    /// How it was made.
    pub(crate) fn config(&self) -> &SandboxConfig {
        &self.config
    }

    /// The home of its pages.
    pub(crate) fn hibernation(&self) -> &Arc<Hibernation> {
        &self.config.hibernation
    }

    /// Exec'd processes.
    pub(crate) fn execs(&self) -> &ExecRelay {
        &self.config.execs
    }

    /// Further containers that the kernel has not taken.
    pub(crate) fn coming_containers(&self) -> &ContainerQueue {
        &self.config.containers
    }

    /// The figures of its memory, and of its hibernations with `cycles`. Asks nothing of the kernel.
    #[must_use]
    pub fn stats(&self, cycles: &Cycles) -> Stats {
        let (counters, home) = (&self.hibernation().counters, self.hibernation().home_stats());
        let vmm = self.files.io_memory();
        let home = (home.0.as_slice(), home.1);
        stats::collect(&self.memory, &self.kernel_stats, counters, home, &vmm, cycles)
    }

    /// Passes a report of the kernel's on.
    pub fn report(&self, report: &Report<'_>) {
        if let Report::NotTaken { request, .. } = report {
            // It may not take it later.
            self.give_up_image(request.cast_signed());
        }
        (self.config.report)(report);
    }

    /// Passes on how a hibernation came out.
    pub(crate) fn tell_of_sleep(&self, request: u64, is_stored: bool) {
        (self.config.sleeps)(request, is_stored);
    }

    /// Passes a line to the log.
    pub fn log(&self, level: u32, text: &str) {
        (self.config.log)(level, text);
    }
}

/// A sandbox whose kernel lies in its memory, and has not run yet.
#[derive(Debug)]
pub struct Loaded {
    sandbox: Arc<Sandbox>,
    image: LoadedImage,
}

impl Loaded {
    /// Boots the kernel and waits for its end; the result is the first process's wait status. The kernel's calls are the
    /// guest's, so this asks for the seal. The vCPUs' threads inherit the calling thread's restrictions.
    pub fn run(self, _: &Seal) -> Result<u32, SandboxError> {
        self.sandbox.run_cpus(&self.image)
    }

    /// Runs the kernel in a process that is in no jail, for tests.
    pub fn run_without_jail(self) -> Result<u32, SandboxError> {
        self.sandbox.run_cpus(&self.image)
    }
}
