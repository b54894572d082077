//! The keeper of a pod's further container: the process that stands for the container where the pod's VMM cannot.
//!
//! The VMM went to jail before anybody knew of the container, so what needs the host is done here: the network namespace and
//! the control groups are entered, the views of the container's files are made and shown to the VMM
//! ([`vmm::pod_place`]), the leash is forked. Then the container is asked for over the pod's control socket, and the keeper
//! gives up its rights and passes messages on: what the leash sees to the VMM, what becomes of the container to the leash
//! and to the front end. It ends with the container, and the container with it.

mod links;
mod oom_score;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use abi::mount::Handles;
use vmm::boot::BootSpec;
use vmm::companions::Companions;
use vmm::host_paths::HostPaths;
use vmm::jail::{self, Users};
use vmm::mounts::OpenMount;
use vmm::pod_place;
use vmm::process::{self, Terminal};
use vmm::request::VIEWS_MAX;

use crate::cgroup::Cgroups;
use crate::control::{self, Order, Report, Restores};
use crate::exec::streams;
use crate::hooks;
use crate::oci::Accounts;
use crate::preserved::Preserved;
use crate::state::{Id, OciState, Root};
use crate::vmm_process::error::{VmmError, chain};
use crate::vmm_process::files;
use crate::vmm_process::plan::{Bundle, Inherited};
use crate::vmm_process::{self, Kept, begin_leash, keep, set_oom_score, sysctl};
use links::Links;

/// Everything that the keeper of a container is told.
#[derive(Debug)]
pub struct KeeperPlan {
    pub bundle: Bundle,
    /// The container's name in the pod's place.
    pub place: String,
    /// The pod's VMM.
    pub vmm_pid: i32,
    pub vmm: OwnedFd,
    /// The state root, and the id of the container that the pod began with.
    pub root: Root,
    pub first: String,
    /// It goes on in a pod that begins with a snapshot.
    pub restores: Option<Restores>,
    pub cgroups: Cgroups,
}

/// The keeper, from its fork to its end. `parent` is the front end.
#[allow(unsafe_code)]
pub fn main(mut plan: KeeperPlan, inherited: Inherited, parent: i32) -> ! {
    let host = vmm_process::begin(c"dormouse-keeper", parent);
    let Inherited { channel, listener, lock, companions, console, preserved } = inherited;
    process::leave_session();
    let early = plan.cgroups.join().and_then(|()| console.map_or(Ok(()), process::take_terminal));
    let KeeperPlan { bundle, place, vmm_pid, vmm, root, first, restores, cgroups: _cgroups } = plan;
    // SAFETY: this process was just forked; what the front end's values own is not used here any more, and they are
    // never dropped, since this function does not return.
    let kept = unsafe { keep(channel, listener, lock, companions, preserved, vec![vmm]) };
    let Ok(Kept { channel, listener, _lock, companions, preserved, mut more }) = kept else {
        process::exit_now(1)
    };
    let Some(vmm) = more.pop() else { process::exit_now(1) };
    let keeper = Keeper {
        host,
        bundle,
        place,
        vmm_pid,
        vmm,
        root,
        first,
        restores,
        channel: Arc::new(channel),
        listener,
        companions,
        preserved,
        parent,
    };
    let channel = Arc::clone(&keeper.channel);
    let begun = early.map_err(VmmError::Prepare).and_then(|()| keeper.begin());
    match begun {
        Ok(mut links) => links.serve(),
        Err(error) => {
            let report = Report::Failed { message: chain(&error), code: None };
            let _ = control::send(&channel, &report);
            process::exit_now(0)
        }
    }
}

/// A keeper whose container has not begun.
struct Keeper {
    host: HostPaths,
    bundle: Bundle,
    place: String,
    vmm_pid: i32,
    vmm: OwnedFd,
    root: Root,
    first: String,
    restores: Option<Restores>,
    channel: Arc<UnixStream>,
    listener: UnixListener,
    companions: Option<Companions>,
    preserved: Preserved,
    /// The front end.
    parent: i32,
}

impl Keeper {
    /// Does what needs the host, and asks for the container.
    fn begin(mut self) -> Result<Links, VmmError> {
        let container = &self.bundle.container;
        // That of the pod, which the container's own has been found to be; and its names and IPC.
        process::enter_namespaces_of(self.vmm.as_fd()).map_err(VmmError::PodSocket)?;
        jail::begin_apart(container.propagation())?;
        sysctl::write(&self.host, &container.sysctls)?;
        set_oom_score(&self.host, container.oom_score_adj)?;
        if let Some(score) = container.oom_score_adj {
            // Its memory is the VMM's.
            oom_score::raise(self.vmm_pid, score);
        }
        std::env::set_current_dir("/").map_err(VmmError::Prepare)?;
        let (mounts, mut boot) = self.show_files()?;
        let (program, companions) = (&container.boot.args, self.companions.take());
        let leash = begin_leash(&self.host, program, false, companions, &self.channel)?;
        let state = OciState { pid: leash.pid(), ..self.bundle.state.clone() };
        hooks::run("createContainer", container.hooks.create_container().as_deref(), &state)?;
        let mut streams = streams::open_standard(container.terminal).map_err(VmmError::Prepare)?;
        streams.extend(streams::open_further(&self.preserved).map_err(VmmError::Prepare)?);
        boot.streams = streams::records(&streams);
        let mut views = Vec::new();
        boot.mounts = mounts
            .into_iter()
            .map(|mount| {
                mount.map_files(|files| {
                    // The views come behind the streams.
                    let place = streams.len() + views.len();
                    views.push(files.fd);
                    Handles { root: u32::try_from(place).unwrap_or(u32::MAX), lower: None }
                })
            })
            .collect();
        let socket = self.connect().map_err(VmmError::PodSocket)?;
        self.ask(&socket, &boot, &streams, &views)?;
        let terminal = Terminal::new(io::stdin().as_fd()).filter(|_| container.terminal);
        drop((streams, views));
        process::close_streams();
        jail::leave_host_apart(self.host)?;
        if !process::die_with_parent(self.parent) {
            process::exit_now(1);
        }
        process::drop_privileges();
        Links::new(leash, socket, self.channel, terminal).map_err(VmmError::Prepare)
    }

    /// Makes the views of the container's files, and shows them to the VMM. Result: the mounts, and the records without them.
    fn show_files(&self) -> Result<(Vec<OpenMount>, BootSpec), VmmError> {
        let container = &self.bundle.container;
        let users = Users::of_process(self.vmm_pid).map_err(VmmError::PodPlace)?;
        let mut boot = container.boot.clone();
        let mounts = files::bundle_tree(&self.host, container, None, &users)?;
        if let Some(root) = mounts.first().and_then(OpenMount::files) {
            files::add_home(&mut boot, &Accounts::read(&root.fd));
        }
        let shown = mounts
            .iter()
            .filter_map(|mount| Some((mount.files()?.fd.as_fd(), files::propagation_of(mount, container))));
        let shown: Vec<_> = shown.collect();
        if shown.len() > VIEWS_MAX {
            return Err(VmmError::TooManyViews { count: shown.len(), most: VIEWS_MAX });
        }
        pod_place::show(self.vmm.as_fd(), &self.place, &shown).map_err(VmmError::PodPlace)?;
        Ok((mounts, boot))
    }

    /// Connects to the pod's control socket, whose other side does not wait long for an order.
    fn connect(&self) -> io::Result<UnixStream> {
        let id = Id::new(&self.first).map_err(io::Error::other)?;
        control::connect(&self.root.sandbox(&id).map_err(io::Error::other)?)
    }

    fn ask(
        &self,
        socket: &UnixStream,
        boot: &BootSpec,
        streams: &[(OwnedFd, u32)],
        views: &[OwnedFd],
    ) -> Result<(), VmmError> {
        let records = boot.container_records();
        let len = u32::try_from(records.len()).unwrap_or(u32::MAX);
        let listener = [self.listener.as_fd()].into_iter();
        let descriptors =
            listener.chain(streams.iter().map(|(fd, _)| fd.as_fd())).chain(views.iter().map(OwnedFd::as_fd));
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.collect();
        let order = Order::Create { len, restores: self.restores };
        control::ask(socket, order, &records, &descriptors).map_err(VmmError::PodSocket)
    }
}
