//! A VMM process that has left the host: it makes its sandbox, takes orders, and gives up all but listed system calls.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use abi::report::{ContainerId, Report};
use vmm::hibernate::Hibernation;
use vmm::hostcall::events::EventQueue;
use vmm::hostcall::host_io::HostIo;
use vmm::image::ImageFile;
use vmm::jail;
use vmm::leash::Leash;
use vmm::platform::kvm;
use vmm::sandbox::{Sandbox, SandboxConfig};
use vmm::{process, sys};

use super::sealed::{Guest, Kernel, Sealed};
use super::{Beginning, FrontEnd};
use crate::stderr_log;
use crate::supervisor::Supervisor;
use crate::vmm_process::error::VmmError;
use crate::vmm_process::plan::{Plan, RestorePlan, Tree};

/// A VMM process that has left the host.
pub(super) struct Jailed<'p> {
    /// The host's root is shown to this process as nobody it knows.
    pub(super) ids_are_mapped: bool,
    pub(super) kernel_file: Option<Arc<ImageFile>>,
    /// Where the platform has one.
    pub(super) device: Option<kvm::Device>,
    pub(super) beginning: Beginning,
    pub(super) io: HostIo,
    pub(super) leash: Option<Leash>,
    pub(super) hibernation: Hibernation,
    pub(super) events: Arc<EventQueue>,
    pub(super) front_end: FrontEnd,
    pub(super) plan: &'p Plan,
}

impl Jailed<'_> {
    /// Makes the sandbox, starts to take orders, loads the kernel, and filters the system calls of all threads; the filter comes
    /// last, since it lets nobody make a sandbox. A sandbox that fails once orders are taken ends with its process, as one
    /// that runs: those who have asked for something get their answers.
    pub(super) fn seal(self) -> Result<Sealed, VmmError> {
        let Self {
            plan,
            front_end,
            events,
            hibernation,
            leash,
            io,
            mut beginning,
            device,
            kernel_file,
            ids_are_mapped,
        } = self;
        let FrontEnd { channel, listener, .. } = front_end;
        let hibernation = beginning.home(hibernation)?;
        let hibernation = match &plan.compare {
            Some(base) => hibernation.comparing_with(base).map_err(VmmError::NoHome)?,
            None => hibernation,
        };
        let supervisor = supervise(plan, &channel, leash, &events, hibernation, beginning.snapshot())?;
        if cfg!(debug_assertions) && std::env::var_os("DORMOUSE_FAKE_KERNEL").is_some() {
            take_orders(&supervisor, listener, ids_are_mapped)?;
            let seal = jail::seal(plan.platform)?;
            let mounts = beginning.records().mounts.len();
            // The descriptors stay open, as a sandbox's do.
            std::mem::forget((io, device, kernel_file));
            return Ok(Sealed { seal, kernel: Kernel::StandIn { supervisor, events, mounts } });
        }
        let template = beginning.template().map_err(VmmError::Prepare)?;
        let sandbox = Sandbox::new(
            SandboxConfig { kernel_file, template, ..config(plan, device, &supervisor) },
            io,
            Arc::clone(&events),
        )?;
        supervisor.set_sandbox(Arc::downgrade(&sandbox));
        take_orders(&supervisor, listener, ids_are_mapped)?;
        let (log_level, platform) = (beginning.records().log_level, plan.platform);
        let guest = Guest { sandbox, supervisor, log_level, platform };
        let loaded = beginning.load(&guest.sandbox);
        let sealed = |loaded| Ok((jail::seal(platform)?, loaded));
        match loaded.and_then(sealed) {
            Ok((seal, loaded)) => Ok(Sealed { seal, kernel: Kernel::Loaded(guest, loaded) }),
            Err(error) => guest.end(Err(error)),
        }
    }
}

/// Makes the supervisor, which watches the packing of pages from then on.
fn supervise(
    plan: &Plan,
    channel: &Arc<UnixStream>,
    leash: Option<Leash>,
    events: &Arc<EventQueue>,
    hibernation: Hibernation,
    snapshot: Option<&mut RestorePlan>,
) -> Result<Arc<Supervisor>, VmmError> {
    let (channel, events) = (Arc::clone(channel), Arc::clone(events));
    let supervisor = Supervisor::new(channel, leash, events, hibernation, plan.pause_hibernates)
        .map_err(VmmError::Prepare)?
        .of_a_command(matches!(plan.tree, Tree::CopyOnWrite { .. }))
        .of_a_pod(plan.is_pod)
        .with_exec_probe(plan.exec_probe);
    let supervisor = match snapshot {
        Some(RestorePlan { head, further, told, .. }) => supervisor.of_a_snapshot(head, further, told.take()),
        None => supervisor,
    };
    let supervisor = Arc::new(supervisor);
    supervisor.watch_pages();
    Ok(supervisor)
}

fn config(plan: &Plan, device: Option<kvm::Device>, supervisor: &Arc<Supervisor>) -> SandboxConfig {
    let mut config = SandboxConfig::new(plan.platform, plan.cpus, plan.memory_bytes);
    config.memory_most_bytes = plan.memory_most_bytes;
    config.kernel_bytes = abi::layout::kernel_bytes(plan.memory_most_bytes);
    let newline = if plan.terminal { "\r\n" } else { "\n" };
    let [teller, listening, told, imaged] = [(); 4].map(|()| Arc::clone(supervisor));
    config.log = Arc::new(move |level, text| {
        if !teller.keep(level, text) {
            stderr_log::write(level, text, newline);
        }
    });
    config.report = Arc::new(move |report| listening.report(report));
    config.sleeps = Arc::new(move |request, is_stored| told.hibernated(request, is_stored));
    config.images = Arc::new(move |request, news| imaged.imaged(request, news));
    config.hibernation = Arc::clone(supervisor.hibernation());
    config.execs = Arc::clone(supervisor.execs());
    config.containers = Arc::clone(supervisor.coming_containers());
    config.device = device;
    config
}

/// Starts to take orders.
fn take_orders(
    supervisor: &Arc<Supervisor>,
    listener: UnixListener,
    ids_are_mapped: bool,
) -> Result<(), VmmError> {
    if !supervisor.is_command() {
        // From here on the end of the channel says that the front end is gone; a container may survive that.
        process::survive_parent();
    }
    let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name.into()).stack_size(128 << 10);
        let body = move || {
            sys::block_signals();
            body();
        };
        thread.spawn(body).map(drop).map_err(VmmError::Thread)
    };
    let serving = Arc::clone(supervisor);
    start("dormouse-ctl", Box::new(move || serving.serve(&listener, ids_are_mapped)))?;
    if supervisor.leash().is_some() {
        let watching = Arc::clone(supervisor);
        start("dormouse-leash", Box::new(move || watching.watch()))?;
    }
    if supervisor.is_command() && !supervisor.is_restored() {
        supervisor.report(&Report::ContainerRunning { container: ContainerId::FIRST });
    }
    Ok(())
}
