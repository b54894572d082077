//! The broker: a child of the VMM that connects to Unix sockets of the host for the sandbox's programs.
//!
//! It stays outside of the jail. The VMM hands it a socket's node and a program's ids, and gets a connection back. The broker opens no
//! path: it takes nodes on the mounts that it was started with, the volumes', and nothing else that the VMM may hold. The
//! listener sees the program's user and group, not the broker's (`SO_PEERCRED`). A list of its own bounds its system calls.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::descriptor_passing::{receive_now, send};
use crate::errno::Errno;
use crate::host_paths::HostPaths;
use crate::ids::{Extent, IdMaps};
use crate::lock::{Mutex, Rank};
use crate::{footprint, process, sys};

/// `CAP_DAC_OVERRIDE`, which root has when it connects, `CAP_SETGID` and `CAP_SETUID`.
const CAPABILITIES: u32 = 1 << 1 | 1 << 6 | 1 << 7;
/// Most supplementary groups that a connection is made with.
pub const GROUPS_MAX: usize = 32;
/// How long the VMM waits for an answer, which takes some 50 µs, in milliseconds.
const PATIENCE_MS: i32 = 5_000;

/// The ids that a program connects with, as it sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    pub user: u32,
    pub group: u32,
    pub groups: Vec<u32>,
}

/// A connection of type `kind` (`SOCK_STREAM` …) by somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    /// Its answer has the same.
    number: u32,
    kind: i32,
    ids: Ids,
}

/// Whether sockets of a type go nowhere else once they are connected. A datagram socket's holder can name any address with each
/// message, abstract ones of the host among them; the VMM makes no such socket, and is not to get one.
#[must_use]
pub fn is_connected_for_good(kind: i32) -> bool {
    matches!(kind, libc::SOCK_STREAM | libc::SOCK_SEQPACKET)
}

const WORDS: usize = 5 + GROUPS_MAX;
const REQUEST_BYTES: usize = 4 * WORDS;
/// The request's number, and an error or 0.
const ANSWER_BYTES: usize = 8;

impl Request {
    fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let groups = &self.ids.groups[..self.ids.groups.len().min(GROUPS_MAX)];
        let count = u32::try_from(groups.len()).unwrap_or(0);
        let head = [self.number, self.kind.cast_unsigned(), self.ids.user, self.ids.group, count];
        let mut bytes = [0; REQUEST_BYTES];
        let words = head.iter().chain(groups);
        bytes
            .chunks_exact_mut(4)
            .zip(words)
            .for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// `None`: no such request.
    fn of(bytes: &[u8]) -> Option<Self> {
        let (chunks, []) = bytes.as_chunks() else { return None };
        let mut words = chunks.iter().map(|chunk| u32::from_le_bytes(*chunk));
        let (number, kind) = (words.next()?, words.next()?);
        let (user, group, count) = (words.next()?, words.next()?, words.next()?);
        let kind = kind.cast_signed();
        if !is_connected_for_good(kind) {
            return None;
        }
        let count = usize::try_from(count).ok().filter(|count| *count <= GROUPS_MAX)?;
        let groups: Vec<u32> = words.take(count).collect();
        (groups.len() == count).then_some(Self { number, kind, ids: Ids { user, group, groups } })
    }
}

/// The number of the mount that a descriptor is the root of; `None`: it is the root of none.
#[must_use]
pub fn mount_of_root(fd: BorrowedFd<'_>) -> Option<u64> {
    const ATTR_MOUNT_ROOT: u64 = libc::STATX_ATTR_MOUNT_ROOT.cast_unsigned() as u64;
    let status = sys::statx_mount(fd).ok()?;
    let known = status.stx_mask & sys::MOUNT_KNOWN != 0;
    (known && status.stx_attributes & ATTR_MOUNT_ROOT != 0).then_some(status.stx_mnt_id)
}

/// The VMM's end of it.
#[derive(Debug)]
pub struct Broker {
    /// Held from a request to its answer.
    asking: Mutex<Option<Asking>>,
}

/// Who asks.
#[derive(Debug)]
struct Asking {
    socket: UnixStream,
    /// Of the last request.
    number: u32,
}

impl Broker {
    /// Forks it. `mounts`: those whose sockets it takes ([`mount_of_root`]); `maps`: what the ids of programs are on the host, if
    /// they are not the same. Only before any thread is started, and before the process gives up the host.
    pub fn start(_: &HostPaths, mounts: Vec<u64>, maps: Option<&IdMaps>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let (mut is_ready, ready) = io::pipe()?;
        let vmm = process::id();
        let vmm_life = process::pidfd(vmm)?;
        if process::fork()?.is_none() {
            drop((ours, is_ready));
            Serving { mounts, maps: maps.cloned() }.live(theirs, ready, vmm_life, vmm)
        }
        drop(ready);
        // It needs the host's /proc, which the VMM is about to leave.
        io::Read::read_exact(&mut is_ready, &mut [0])?;
        let asking = Asking { socket: ours, number: 0 };
        Ok(Self { asking: Mutex::new(Rank::Broker, Some(asking)) })
    }

    /// Connects to the socket that `node`, an `O_PATH` descriptor, is; does not wait for a place in its backlog (`EAGAIN`).
    pub fn connect(&self, node: BorrowedFd<'_>, kind: i32, ids: Ids) -> Result<OwnedFd, Errno> {
        let mut held = self.asking.lock();
        let asking = held.as_mut().ok_or(Errno(libc::ECONNREFUSED))?;
        asking.number = asking.number.wrapping_add(1);
        let request = Request { number: asking.number, kind, ids };
        asking.ask(node, &request).unwrap_or_else(|Gone| {
            *held = None;
            Err(Errno(libc::ECONNREFUSED))
        })
    }
}

/// The broker is not there any more, or does not keep to the rules.
struct Gone;

impl Asking {
    fn ask(&self, node: BorrowedFd<'_>, request: &Request) -> Result<Result<OwnedFd, Errno>, Gone> {
        let bytes = request.to_bytes();
        match send(self.socket.as_fd(), &[node], &bytes, libc::MSG_DONTWAIT) {
            Ok(sent) if sent == bytes.len() => {}
            // It has been stopped, and many have asked since.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Err(Errno(libc::ETIMEDOUT)));
            }
            _ => return Err(Gone),
        }
        loop {
            let [true] = process::wait_readable([self.socket.as_raw_fd()], PATIENCE_MS) else {
                // It has been stopped. Its answer is passed over when it comes.
                return Ok(Err(Errno(libc::ETIMEDOUT)));
            };
            let (mut bytes, mut fds) = ([0; ANSWER_BYTES], Vec::new());
            let Some(received) = receive_now(&self.socket, &mut bytes, &mut fds) else { continue };
            if received.len != ANSWER_BYTES {
                return Err(Gone);
            }
            let [number, error] =
                [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte])));
            if number != request.number {
                continue;
            }
            return match (error, fds.pop()) {
                (0, Some(fd)) => Ok(Ok(fd)),
                (error @ 1..=4095, None) => Ok(Err(Errno(error.cast_signed()))),
                _ => Err(Gone),
            };
        }
    }
}

/// The broker itself.
struct Serving {
    mounts: Vec<u64>,
    maps: Option<IdMaps>,
}

impl Serving {
    fn live(&self, socket: UnixStream, ready: io::PipeWriter, vmm_life: OwnedFd, vmm: i32) -> ! {
        process::set_name(c"dormouse-broker");
        // A descriptor's name here leads to its node, along no path.
        let Ok(names) = std::fs::File::open("/proc/self/fd") else { process::exit_now(1) };
        let keep = [socket.into(), ready.into(), names.into(), vmm_life];
        // SAFETY: this process was just forked, and uses nothing of its parent's but these.
        let Ok([socket, ready, names, vmm_life]) = (unsafe { process::keep_only(keep) }) else {
            process::exit_now(1)
        };
        process::close_streams();
        if !process::die_with_parent(vmm) || sys::fchdir(names.as_fd()).is_err() {
            process::exit_now(1);
        }
        drop(names);
        process::gain_nothing();
        process::keep_capabilities(CAPABILITIES);
        footprint::trim();
        let told = io::Write::write_all(&mut std::fs::File::from(ready), &[1]);
        if told.is_err() || bound_calls().is_err() {
            process::exit_now(1);
        }
        let socket = UnixStream::from(socket);
        // A process that changes its ids is no longer told of its parent's death by a signal.
        while let [asked, false] = process::wait_readable([socket.as_raw_fd(), vmm_life.as_raw_fd()], -1) {
            if asked && self.serve_one(&socket).is_none() {
                break;
            }
        }
        process::exit_now(0)
    }

    /// `None`: nobody asks any more, or takes no answers.
    fn serve_one(&self, socket: &UnixStream) -> Option<()> {
        let (mut bytes, mut fds) = ([0; REQUEST_BYTES], Vec::new());
        let Some(received) = receive_now(socket, &mut bytes, &mut fds) else { return Some(()) };
        if received.len == 0 {
            return None;
        }
        // Who asks otherwise than agreed is not the VMM's program any more.
        let request = Request::of(&bytes[..received.len])?;
        let connected = match fds.as_slice() {
            [node] => self.connect(node.as_fd(), &request),
            _ => Err(Errno(libc::EINVAL)),
        };
        let (error, fd) = match &connected {
            Ok(fd) => (0, Some(fd.as_fd())),
            Err(Errno(error)) => (error.cast_unsigned(), None),
        };
        let mut answer = [0; ANSWER_BYTES];
        answer[..4].copy_from_slice(&request.number.to_le_bytes());
        answer[4..].copy_from_slice(&error.to_le_bytes());
        let sent = send(socket.as_fd(), fd.as_slice(), &answer, libc::MSG_DONTWAIT);
        sent.is_ok_and(|sent| sent == answer.len()).then_some(())
    }

    fn connect(&self, node: BorrowedFd<'_>, request: &Request) -> Result<OwnedFd, Errno> {
        let status = sys::statx_mount(node)?;
        let is_socket = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFSOCK;
        let is_volumes = status.stx_mask & sys::MOUNT_KNOWN != 0 && self.mounts.contains(&status.stx_mnt_id);
        if !is_socket || !is_volumes {
            return Err(Errno(libc::ECONNREFUSED));
        }
        let ids = self.on_the_host(&request.ids).ok_or(Errno(libc::EACCES))?;
        let flags = request.kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: integers only.
        let socket = unsafe { libc::socket(libc::AF_UNIX, flags, 0) };
        if socket < 0 {
            return Err(last_error());
        }
        // SAFETY: it was just made, and is in nobody else's hands.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // Which an unprivileged caller's broker can always do.
        if (ids.user, ids.group) == (process::effective_user(), process::effective_group()) {
            return connect_by_name(&socket, node).map(|()| socket);
        }
        take_on(&ids)?;
        let connected = connect_by_name(&socket, node);
        if be_oneself_again().is_err() {
            process::exit_now(1);
        }
        connected.map(|()| socket)
    }

    fn on_the_host(&self, ids: &Ids) -> Option<Ids> {
        let Some(maps) = &self.maps else { return Some(ids.clone()) };
        let find = |extents: &[Extent], id: u32| extents.iter().find_map(|extent| extent.on_the_host(id));
        Some(Ids {
            user: find(&maps.users, ids.user)?,
            group: find(&maps.groups, ids.group)?,
            groups: ids.groups.iter().filter_map(|group| find(&maps.groups, *group)).collect(),
        })
    }
}

fn last_error() -> Errno {
    Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// `connect(2)` to a node by its descriptor's name in the working directory.
fn connect_by_name(socket: &OwnedFd, node: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: zeros are an address without a name.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX.try_into().unwrap_or(0);
    let name = node.as_raw_fd().to_string();
    address.sun_path.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte.cast_signed());
    let len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
    // SAFETY: the address is live, and `len` its size.
    let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if result < 0 { Err(last_error()) } else { Ok(()) }
}

const KEEP: u32 = u32::MAX;

fn set_ids(user: u32, group: u32, groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: integers, and groups that live for the call; the process has one thread, so the C library need not tell others.
    let results = unsafe {
        [
            libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()),
            libc::syscall(libc::SYS_setresgid, KEEP, group, KEEP),
            libc::syscall(libc::SYS_setresuid, KEEP, user, KEEP),
        ]
    };
    if results.iter().any(|result| *result < 0) { Err(Errno(libc::EACCES)) } else { Ok(()) }
}

/// Becomes somebody else in effect, so that permissions are theirs and the listener sees who they are.
fn take_on(ids: &Ids) -> Result<(), Errno> {
    let taken = if ids.user == KEEP || ids.group == KEEP {
        Err(Errno(libc::EACCES))
    } else {
        set_ids(ids.user, ids.group, &ids.groups)
    };
    if taken.is_err() && be_oneself_again().is_err() {
        process::exit_now(1);
    }
    taken
}

/// The capabilities come back with the user.
fn be_oneself_again() -> Result<(), Errno> {
    // SAFETY: as above.
    let user = unsafe { libc::syscall(libc::SYS_setresuid, KEEP, 0, KEEP) };
    if user < 0 { Err(Errno(libc::EACCES)) } else { set_ids(0, 0, &[]) }
}

/// The calls that it makes; another one ends it.
fn bound_calls() -> Result<(), seccompiler::Error> {
    const CALLS: &[i64] = &[
        libc::SYS_poll,
        libc::SYS_recvmsg,
        libc::SYS_sendmsg,
        libc::SYS_statx,
        libc::SYS_socket,
        libc::SYS_connect,
        libc::SYS_close,
        // Debug builds look before they close.
        libc::SYS_fcntl,
        libc::SYS_geteuid,
        libc::SYS_getegid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        libc::SYS_setgroups,
        // The heap.
        libc::SYS_brk,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_madvise,
        libc::SYS_restart_syscall,
        libc::SYS_exit_group,
    ];
    let table: BTreeMap<_, _> = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    let filter =
        SeccompFilter::new(table, SeccompAction::KillProcess, SeccompAction::Allow, TargetArch::x86_64)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
}

#[cfg(test)]
mod tests;
