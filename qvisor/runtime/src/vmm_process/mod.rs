//! The VMM process of one sandbox: opens everything it needs of the host, gives up the rest, runs the kernel.

mod birth;
pub mod error;
pub(crate) mod files;
pub mod plan;
pub(crate) mod sysctl;

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use vmm::companions::Companions;
use vmm::footprint;
use vmm::hibernate::BaseInMemory;
use vmm::host_paths::HostPaths;
use vmm::leash::Leash;
use vmm::process;

use self::birth::{Beginning, FrontEnd, Outside};
use self::error::VmmError;
use self::plan::{Inherited, Plan, RestorePlan, Tree};
use crate::control::{self, Order, Report};
use crate::preserved::{Preserved, PreservedFd};

/// Signals that are the front end's business; the VMM shares its process group, so it ignores them.
const IGNORED: &[i32] = &[
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGWINCH,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    // A file that would get too long is an error of the call.
    libc::SIGXFSZ,
];

/// The VMM process, from its fork to its end. `parent` is the front end.
#[allow(unsafe_code)]
pub fn main(mut plan: Plan, inherited: Inherited, parent: i32) -> ! {
    let host = begin(c"dormouse-vmm", parent);
    let Inherited { channel, listener, lock, companions, console, preserved } = inherited;
    let early = || -> io::Result<()> {
        if let Tree::Bundle(_) = &plan.tree {
            process::leave_session();
        }
        plan.cgroups.join()?;
        console.map_or(Ok(()), process::take_terminal)
    };
    let early = early();
    let is_told = plan.restore.as_ref().is_some_and(|restore| restore.told.is_some());
    let (head, image) = match plan.restore.take() {
        Some(RestorePlan { head, files, shares, page_key, further, told, base: _ }) => (
            Some((head, shares, page_key, further)),
            files.into_descriptors().into_iter().chain(told).collect::<Vec<_>>(),
        ),
        None => (None, Vec::new()),
    };
    let image_count = image.len();
    let (compare, has) = plan.compare.take().map(BaseInMemory::into_descriptors).unwrap_or_default();
    let more = image.into_iter().chain(compare).collect();
    // SAFETY: this process was just forked; what the front end's values own is not used here any more, and they are
    // never dropped, since this function does not return.
    let kept = unsafe { keep(channel, listener, lock, companions, preserved, more) };
    let Ok(Kept { channel, listener, _lock, companions, preserved, more: mut image }) = kept else {
        process::exit_now(1)
    };
    let compare = image.split_off(image_count.min(image.len()));
    plan.compare = BaseInMemory::from_descriptors(compare, has).filter(|_| has != [false; 2]);
    let channel = Arc::new(channel);
    let front_end = FrontEnd { pid: parent, channel: Arc::clone(&channel), listener };
    let sealed = early.map_err(VmmError::Prepare).and_then(|()| {
        let records = plan.boot.clone();
        let beginning = match head {
            Some(head) => {
                Beginning::restore(records, head, image, is_told).ok_or(VmmError::Prepare(lost()))?
            }
            None => Beginning::Boot(records),
        };
        birth::seal(Outside { host, plan: &plan, beginning, front_end, companions, preserved })
    });
    match sealed {
        Ok(sealed) => sealed.run(),
        Err(error) => {
            let _ = control::send(&channel, &Report::Failed { message: error.to_string(), code: None });
            process::exit_now(0)
        }
    }
}

/// A descriptor did not come along.
fn lost() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// The first steps of a process that was forked by the front end `parent`, and ends with it for now. It has its front end's
/// right to the host's files.
pub(crate) fn begin(name: &CStr, parent: i32) -> HostPaths {
    process::set_name(name);
    if !process::die_with_parent(parent) {
        process::exit_now(1);
    }
    process::ignore_signals(IGNORED);
    process::unblock_signals();
    footprint::keep_heap_small();
    HostPaths::of_new_process()
}

/// The inherited descriptors that stay open.
pub(crate) struct Kept {
    pub channel: UnixStream,
    pub listener: UnixListener,
    pub _lock: Option<OwnedFd>,
    pub companions: Option<Companions>,
    pub preserved: Preserved,
    pub more: Vec<OwnedFd>,
}

/// Closes every other descriptor.
///
/// # Safety
/// As [`process::keep_only`].
#[allow(unsafe_code)]
pub(crate) unsafe fn keep(
    channel: UnixStream,
    listener: UnixListener,
    lock: Option<OwnedFd>,
    companions: Option<Companions>,
    preserved: Preserved,
    more: Vec<OwnedFd>,
) -> io::Result<Kept> {
    let companions = companions.map(|companions| companions.descriptor()).transpose()?;
    let (has_lock, has_companions, count) = (lock.is_some(), companions.is_some(), more.len());
    let (further, flags): (Vec<_>, Vec<_>) = preserved.0.into_iter().map(|one| (one.fd, one.flags)).unzip();
    let own = [channel.into(), listener.into()].into_iter().chain(lock).chain(companions);
    let all = own.chain(more).chain(further).collect();
    // SAFETY: the caller's promise.
    let mut kept = unsafe { process::keep_all(all) }?.into_iter();
    let mut next = || kept.next().ok_or(io::ErrorKind::UnexpectedEof);
    let (channel, listener) = (next()?.into(), next()?.into());
    let _lock = if has_lock { Some(next()?) } else { None };
    let companions = if has_companions { Some(Companions::inherited(next()?)) } else { None };
    let more = kept.by_ref().take(count).collect();
    let preserved = Preserved(kept.zip(flags).map(|(fd, flags)| PreservedFd { fd, flags }).collect());
    Ok(Kept { channel, listener, _lock, companions, preserved, more })
}

/// How likely the host ends this process and its children when memory is short, if a bundle says so.
pub(crate) fn set_oom_score(_: &HostPaths, score: Option<i32>) -> Result<(), VmmError> {
    let Some(score) = score else { return Ok(()) };
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
        .map_err(|source| VmmError::OomScore { score, source })
}

/// Makes the leash, and waits until the front end has done what it does with the leash's pid.
pub(crate) fn begin_leash(
    _: &HostPaths,
    program: &[Vec<u8>],
    leads_group: bool,
    companions: Option<Companions>,
    channel: &Arc<UnixStream>,
) -> Result<Leash, VmmError> {
    let leash = Leash::start(program, leads_group, companions).map_err(VmmError::Leash)?;
    let _ = control::send(channel, &Report::Prepared { pid: leash.pid() });
    match control::receive(channel) {
        Ok(Some(Order::Proceed)) => Ok(leash),
        _ => process::exit_now(1),
    }
}
