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

use abi::boot::STREAM_TTY;
use vmm::boot::{BootSpec, Stream};
use vmm::exec_relay::VIEWS_MAX;
use vmm::jail::{self, Users};
use vmm::mounts::View;
use vmm::process::{self, Terminal};
use vmm::{footprint, pod_place};

use crate::cgroup::Cgroups;
use crate::control::{self, Order, Report};
use crate::hooks;
use crate::oci::Accounts;
use crate::preserved::{self, Preserved};
use crate::state::{Id, OciState, Root};
use crate::vmm_process::error::{VmmError, chain};
use crate::vmm_process::files::{self, Piece};
use crate::vmm_process::plan::{Bundle, Inherited};
use crate::vmm_process::{IGNORED, begin_leash, sysctl};
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
    pub cgroups: Cgroups,
}

/// The keeper, from its fork to its end. `parent` is the front end.
#[allow(unsafe_code)]
pub fn main(mut plan: KeeperPlan, inherited: Inherited, parent: i32) -> ! {
    process::set_name(c"dormouse-keeper");
    if !process::die_with_parent(parent) {
        process::exit_now(1);
    }
    process::ignore_signals(IGNORED);
    process::unblock_signals();
    footprint::keep_heap_small();
    let Inherited { channel, listener, lock, console, preserved } = inherited;
    process::leave_session();
    let early = plan.cgroups.join().and_then(|()| console.map_or(Ok(()), process::take_terminal));
    let KeeperPlan { bundle, place, vmm_pid, vmm, root, first, cgroups: _cgroups } = plan;
    let (further, flags): (Vec<_>, Vec<_>) = preserved.0.into_iter().map(|one| (one.fd, one.flags)).unzip();
    let has_lock = lock.is_some();
    let own = [channel.into(), listener.into(), vmm];
    let kept = lock.into_iter().chain(own).chain(further).collect();
    // SAFETY: this process was just forked; what the front end's values own is not used here any more, and they are
    // never dropped, since this function does not return.
    let Ok(kept) = (unsafe { process::keep_all(kept) }) else { process::exit_now(1) };
    let mut kept = kept.into_iter();
    let _lock = if has_lock { kept.next() } else { None };
    let (Some(channel), Some(listener), Some(vmm)) = (kept.next(), kept.next(), kept.next()) else {
        process::exit_now(1)
    };
    let further = kept.zip(flags).map(|(fd, flags)| preserved::PreservedFd { fd, flags });
    let keeper = Keeper {
        bundle,
        place,
        vmm_pid,
        vmm,
        root,
        first,
        channel: Arc::new(channel.into()),
        listener: listener.into(),
        preserved: Preserved(further.collect()),
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
    bundle: Bundle,
    place: String,
    vmm_pid: i32,
    vmm: OwnedFd,
    root: Root,
    first: String,
    channel: Arc<UnixStream>,
    listener: UnixListener,
    preserved: Preserved,
    /// The front end.
    parent: i32,
}

impl Keeper {
    /// Does what needs the host, and asks for the container.
    fn begin(self) -> Result<Links, VmmError> {
        let container = &self.bundle.container;
        // That of the pod, which the container's own has been found to be; and its names and IPC.
        process::enter_namespaces_of(self.vmm.as_fd()).map_err(VmmError::PodSocket)?;
        jail::begin_apart()?;
        sysctl::write(&container.sysctls)?;
        if let Some(score) = container.oom_score_adj {
            std::fs::write("/proc/self/oom_score_adj", score.to_string())
                .map_err(|source| VmmError::OomScore { score, source })?;
            // Its memory is the VMM's.
            oom_score::raise(self.vmm_pid, score);
        }
        std::env::set_current_dir("/").map_err(VmmError::Prepare)?;
        let (views, mut boot) = self.show_files()?;
        let leash = begin_leash(&container.boot.args, false, &self.channel)?;
        let state = OciState { pid: leash.pid(), ..self.bundle.state.clone() };
        hooks::run("createContainer", container.hooks.create_container().as_deref(), &state)?;
        let streams = streams(container.terminal, &self.preserved)?;
        boot.streams = records(&streams);
        boot.mounts.iter_mut().filter(|mount| mount.handle != abi::hostcall::NO_HANDLE).for_each(|mount| {
            mount.handle += u32::try_from(streams.len()).unwrap_or(0);
        });
        let socket = self.connect().map_err(VmmError::PodSocket)?;
        self.ask(&socket, &boot, &streams, &views)?;
        let terminal = Terminal::new(io::stdin().as_fd()).filter(|_| container.terminal);
        drop((streams, views));
        process::close_streams();
        jail::leave_host_apart()?;
        if !process::die_with_parent(self.parent) {
            process::exit_now(1);
        }
        process::drop_privileges();
        Links::new(leash, socket, self.channel, terminal).map_err(VmmError::Prepare)
    }

    /// Makes the views of the container's files, and shows them to the VMM. Result: they, and the records with the mounts,
    /// whose handles are places among the views.
    fn show_files(&self) -> Result<(Vec<View>, BootSpec), VmmError> {
        let container = &self.bundle.container;
        let users = Users::of_process(self.vmm_pid).map_err(VmmError::PodPlace)?;
        let mut boot = container.boot.clone();
        let (mut views, mut mounts) = (Vec::new(), Vec::new());
        for piece in files::bundle_tree(container, &users)? {
            match piece {
                Piece::Kernel(mount) => mounts.push(mount),
                Piece::Host(view, kind, flags) => {
                    let at = u32::try_from(views.len()).unwrap_or(u32::MAX);
                    mounts.push(files::mount_of(&view, at, kind, flags));
                    views.push(view);
                }
            }
        }
        boot.mounts = mounts;
        if let Some(root) = views.first() {
            files::add_home(&mut boot, &Accounts::read(&root.fd));
        }
        if views.len() > VIEWS_MAX {
            return Err(VmmError::TooManyViews { count: views.len(), most: VIEWS_MAX });
        }
        let shown: Vec<BorrowedFd<'_>> = views.iter().map(|view| view.fd.as_fd()).collect();
        pod_place::show(self.vmm.as_fd(), &self.place, &shown).map_err(VmmError::PodPlace)?;
        Ok((views, boot))
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
        views: &[View],
    ) -> Result<(), VmmError> {
        let records = boot.container_records();
        let len = u32::try_from(records.len()).unwrap_or(u32::MAX);
        let listener = [self.listener.as_fd()].into_iter();
        let descriptors = listener
            .chain(streams.iter().map(|(fd, _)| fd.as_fd()))
            .chain(views.iter().map(|view| view.fd.as_fd()));
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.collect();
        control::ask(socket, Order::Create { len }, &records, &descriptors).map_err(VmmError::PodSocket)
    }
}

/// The descriptors of the container's first process, with the flags of their records.
fn streams(is_terminal: bool, preserved: &Preserved) -> Result<Vec<(OwnedFd, u32)>, VmmError> {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let own = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let standard = own.into_iter().map(|fd| {
        let is_tty = is_terminal && Terminal::new(fd).is_some();
        (fd, if is_tty { STREAM_TTY } else { 0 })
    });
    let further = preserved.0.iter().map(|one| (one.fd.as_fd(), one.flags));
    let open = |(fd, flags)| Ok((process::open_without_waiting(fd)?, flags));
    standard.chain(further).map(open).collect::<io::Result<_>>().map_err(VmmError::Prepare)
}

/// The records of these streams, which are numbered by their places.
fn records(streams: &[(OwnedFd, u32)]) -> Vec<Stream> {
    let record = |(at, (_, flags)): (u32, &(OwnedFd, u32))| Stream { fd: at, handle: at, flags: *flags };
    (0..).zip(streams).map(record).collect()
}

/// Takes the files of a container that is no more away from its pod's VMM, if that lives.
pub fn take_files_away(vmm: BorrowedFd<'_>, place: &str) {
    // A VMM that has ended has none of them left.
    let _ = pod_place::remove(vmm, place);
}
