//! A VMM process that has opened everything, and gives up the host.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmm::boot::BootSpec;
use vmm::hibernate::Hibernation;
use vmm::host_paths::HostPaths;
use vmm::hostcall::events::EventQueue;
use vmm::hostcall::host_io::HostIo;
use vmm::image::ImageFile;
use vmm::jail::{self, Users, landlock, mitigations};
use vmm::leash::Leash;
use vmm::platform::kvm;
use vmm::process;

use super::{Beginning, FrontEnd, Jailed};
use crate::stderr_log::{self, LOG_DEBUG};
use crate::vmm_process::error::VmmError;
use crate::vmm_process::files;
use crate::vmm_process::plan::Plan;

/// A VMM process that has opened everything.
pub(super) struct Prepared<'p> {
    pub(super) kernel_file: Option<Arc<ImageFile>>,
    /// Where the platform has one.
    pub(super) device: Option<kvm::Device>,
    /// The trees that show mounts which the host makes later.
    pub(super) following: Vec<OwnedFd>,
    pub(super) beginning: Beginning,
    pub(super) io: HostIo,
    pub(super) leash: Option<Leash>,
    pub(super) users: Users,
    pub(super) hibernation: Hibernation,
    pub(super) events: Arc<EventQueue>,
    pub(super) front_end: FrontEnd,
    pub(super) plan: &'p Plan,
    pub(super) host: HostPaths,
}

impl<'p> Prepared<'p> {
    /// Gives up the host's files, ids, capabilities and signals. This process has one thread: ids and capabilities are a
    /// thread's own, and the stubs' zygote is to inherit ours.
    pub(super) fn enter_jail(self) -> Result<Jailed<'p>, VmmError> {
        let Self {
            host,
            plan,
            front_end,
            events,
            hibernation,
            users,
            leash,
            io,
            beginning,
            following,
            device,
            kernel_file,
        } = self;
        let ids_are_mapped = users.hide_hosts_root();
        jail::enter(host, users, &following, plan.is_pod)?;
        drop(following);
        if let Some(bounds) = plan.bounds.as_ref().filter(|_| !plan.cgroups.count_processes()) {
            // Counted in the user namespace of these ids, so only this sandbox's own count (Linux 5.14).
            process::limit_processes(bounds.processes(plan.cpus)).map_err(VmmError::Prepare)?;
        }
        restrict(plan, &io, beginning.records(), leash.is_none())?;
        io.enter_jail().map_err(VmmError::HostIo)?;
        // A change of ids takes this back.
        if !process::die_with_parent(front_end.pid) {
            process::exit_now(1);
        }
        Ok(Jailed {
            ids_are_mapped,
            kernel_file,
            device,
            beginning,
            io,
            leash,
            hibernation,
            events,
            front_end,
            plan,
        })
    }
}

/// Gives up speculation and restricts this process by Landlock; its signals as well unless it has a leash, which was made
/// outside of any domain.
fn restrict(plan: &Plan, io: &HostIo, boot: &BootSpec, scopes_signals: bool) -> Result<(), VmmError> {
    let given_up = mitigations::apply(plan.mitigations);
    let files = files::given(io, boot, plan.is_pod).map_err(VmmError::HostIo)?;
    let (keeps_files, is_scoped) = landlock::restrict(files, scopes_signals);
    if boot.log_level >= LOG_DEBUG {
        stderr_log::write(LOG_DEBUG, &landlock_in_words(is_scoped, keeps_files), "\n");
        stderr_log::write(
            LOG_DEBUG,
            &format!("speculation given up: {}", mitigations::names(&given_up)),
            "\n",
        );
    }
    Ok(())
}

fn landlock_in_words(is_scoped: bool, keeps_files: bool) -> String {
    let words = |done: bool| if done { "kept in the sandbox" } else { "not restricted" };
    let (signals, files) = (words(is_scoped), words(keeps_files));
    format!("landlock version {}: signals are {signals}, files are {files}", landlock::version())
}
