//! The users that the VMM is on the host: namespaces, and the ids it works with.
//!
//! Two ids matter, and they differ. The *file-system id* owns the files that the VMM makes, and is the guest's root.
//! The *process's owner* (real, effective and saved id) decides which processes the VMM may signal and which may signal
//! it. It is this sandbox's alone: an id that no user of the host has, with the VMM's own process id in it.
//!
//! | mode | the guest's root is | the rest |
//! |---|---|---|
//! | mapped | id [`MAPPED_BASE`] on the host: nobody. Files are shown through id-mapped mounts | needs file systems that can be id-mapped |
//! | identity | id 0, for files only: capabilities count inside a user namespace, which has no other power | |
//! | host | id 0 with the kept capabilities, in the host's user namespace | only when asked for, or where user namespaces are off |
//! | given | the id on the host that a bundle's user namespace gives it | files lie on disk with the host's ids |
//! | caller | the unprivileged user who started it | no choice |

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::str::FromStr;

use super::privileges;
use super::root::{Propagation, leave_chroot, set_propagation};
use super::step::{JailError, step};
use crate::host_paths::HostPaths;
use crate::ids::{Extent, IdMaps, OWN_IDS};

/// The guest's id 0 on the host when ids are mapped.
pub const MAPPED_BASE: u32 = 0x4000_0000;
/// How many ids a sandbox has when they are mapped.
pub const MAPPED_COUNT: u32 = 0x2000_0000;
/// Ids of the VMMs themselves: this plus the process number, which is below 2^22.
const OWN_BASE: u32 = 0x6000_0000;

/// The user that the host's root claims to be towards a VMM whose ids are mapped: the last of its ids. No process has
/// it, and only a process with power over all ids of the host can claim it.
pub const PROOF_USER: u32 = MAPPED_BASE + PROOF_USER_INSIDE;
/// That user, as such a VMM sees it.
pub const PROOF_USER_INSIDE: u32 = MAPPED_COUNT - 1;

/// The modes of user namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserNamespace {
    /// mapped where the file systems allow it, else identity
    #[default]
    Auto,
    /// Root in the sandbox is nobody on the host
    Mapped,
    /// Root in the sandbox owns files as the host's root does, and has no power beyond files
    Identity,
    /// No user namespace
    Host,
}

impl FromStr for UserNamespace {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "mapped" => Ok(Self::Mapped),
            "identity" => Ok(Self::Identity),
            "host" => Ok(Self::Host),
            _ => Err(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Mapped,
    Identity,
    Host,
    /// The ids are mapped as a bundle describes it. The fields are the ids on the host that the guest's root is for
    /// files.
    Given {
        user: u32,
        group: u32,
    },
    /// An unprivileged caller's own namespace, entered already.
    Caller,
}

const _: () = assert!(IdMaps::INSIDE_MAX < PROOF_USER_INSIDE);
const _: () = assert!(*OWN_IDS.start() == PROOF_USER && *OWN_IDS.end() == OWN_BASE + (1 << 22));

/// A user namespace for mounts: an id on disk becomes its id on the host plus `base`.
pub fn namespace_of_mounts(_: &HostPaths, maps: &IdMaps, base: u32) -> io::Result<OwnedFd> {
    let lines = |extents: &[Extent]| -> io::Result<String> {
        let line = |extent: &Extent| {
            let host = extent.host.checked_add(base).filter(|_| !extent.has_own_ids(base));
            let host = host.ok_or(io::ErrorKind::InvalidInput)?;
            Ok(format!("{} {host} {}\n", extent.inside, extent.count))
        };
        extents.iter().map(line).collect()
    };
    make_namespace(&lines(&maps.users)?, &lines(&maps.groups)?)
}

/// The id on the host that 0 inside is.
fn host_root(extents: &[Extent]) -> Result<u32, JailError> {
    let root = extents.iter().find(|extent| extent.inside == 0 && extent.count > 0);
    root.map(|extent| extent.host).ok_or(JailError::NoRoot)
}

/// The ids of one sandbox.
#[derive(Debug)]
pub struct Users {
    mode: Mode,
    namespace: Option<OwnedFd>,
}

/// An id mapping for mounts: ids on disk are shown as the namespace maps them.
#[derive(Clone, Copy, Debug)]
pub struct IdMap<'a> {
    pub namespace: BorrowedFd<'a>,
}

impl Users {
    /// Leaves the host's mount, ipc and uts namespaces, and prepares the user namespace. An unprivileged caller enters
    /// one at once, since it has no right to mount anything otherwise. Only before any thread is started.
    ///
    /// `given`: the user namespace that a bundle describes, which then counts instead of what is `wanted`.
    pub fn enter_namespaces(
        _: &HostPaths,
        wanted: UserNamespace,
        given: Option<&IdMaps>,
        propagation: Propagation,
    ) -> Result<Self, JailError> {
        // While this process may still do so.
        crate::process::raise_open_files();
        let plain = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        let (user, group) = (crate::process::effective_user(), crate::process::effective_group());
        if user != 0 {
            if matches!(wanted, UserNamespace::Mapped | UserNamespace::Host) || given.is_some() {
                return Err(JailError::NeedsRoot);
            }
            unshare(plain | libc::CLONE_NEWUSER)?;
            set_propagation(propagation)?;
            let map = |file: &str, text: String| {
                std::fs::write(format!("/proc/self/{file}"), text)
                    .map_err(|source| JailError::Step { step: "mapping the caller's ids", source })
            };
            map("setgroups", "deny".into())?;
            map("gid_map", format!("0 {group} 1"))?;
            map("uid_map", format!("0 {user} 1"))?;
            return Ok(Self { mode: Mode::Caller, namespace: None });
        }
        unshare(plain)?;
        set_propagation(propagation)?;
        if let Some(maps) = given {
            return Self::make_given(maps);
        }
        match wanted {
            UserNamespace::Host => Ok(Self { mode: Mode::Host, namespace: None }),
            UserNamespace::Identity => Self::make(Mode::Identity),
            UserNamespace::Mapped => Self::make(Mode::Mapped),
            // A host without user namespaces still runs sandboxes.
            UserNamespace::Auto => {
                Self::make(Mode::Mapped).or(Ok(Self { mode: Mode::Host, namespace: None }))
            }
        }
    }

    fn make(mode: Mode) -> Result<Self, JailError> {
        let map = match mode {
            Mode::Mapped => {
                let own = own_id(crate::process::id());
                format!("0 {MAPPED_BASE} {MAPPED_COUNT}\n{MAPPED_COUNT} {own} 1\n")
            }
            _ => format!("0 0 {}\n", u32::MAX),
        };
        let namespace = make_namespace(&map, &map).map_err(no_namespace)?;
        Ok(Self { mode, namespace: Some(namespace) })
    }

    fn make_given(maps: &IdMaps) -> Result<Self, JailError> {
        let mode = Mode::Given { user: host_root(&maps.users)?, group: host_root(&maps.groups)? };
        let own = own_id(crate::process::id());
        let lines = |extents: &[Extent]| -> String {
            let line = |extent: &Extent| format!("{} {} {}\n", extent.inside, extent.host, extent.count);
            let given: String = extents.iter().map(line).collect();
            format!("{given}{PROOF_USER_INSIDE} {PROOF_USER} 1\n{MAPPED_COUNT} {own} 1\n")
        };
        let namespace = make_namespace(&lines(&maps.users), &lines(&maps.groups)).map_err(no_namespace)?;
        Ok(Self { mode, namespace: Some(namespace) })
    }

    /// The ids of a VMM that runs, as the host shows them.
    pub fn of_process(pid: i32) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let namespace = File::open(format!("/proc/{pid}/ns/user"))?;
        if namespace.metadata()?.ino() == std::fs::metadata("/proc/self/ns/user")?.ino() {
            return Ok(Self { mode: Mode::Host, namespace: None });
        }
        let root = |file: &str| -> io::Result<u32> {
            let map = std::fs::read_to_string(format!("/proc/{pid}/{file}"))?;
            let lines = map.lines().map(|line| line.split_whitespace().map(str::parse::<u32>));
            let mut lines = lines.map(|words| words.collect::<Result<Vec<u32>, _>>().unwrap_or_default());
            let line = lines.find(|words| words.first() == Some(&0));
            line.and_then(|words| words.get(1).copied()).ok_or_else(|| io::ErrorKind::InvalidData.into())
        };
        let mode = match (root("uid_map")?, root("gid_map")?) {
            (0, 0) => Mode::Identity,
            (MAPPED_BASE, MAPPED_BASE) => Mode::Mapped,
            (user, group) => Mode::Given { user, group },
        };
        Ok(Self { mode, namespace: Some(namespace.into()) })
    }

    /// Whether the ids that a bundle's user namespace gives (`None`: it describes none) are those of a VMM that runs.
    pub fn are_shown_by(pid: i32, given: Option<&IdMaps>) -> io::Result<bool> {
        let has_own = matches!(Self::of_process(pid)?.mode, Mode::Given { .. });
        let Some(IdMaps { users, groups }) = given else { return Ok(!has_own) };
        let shows = |file: &str, extents: &[Extent]| -> io::Result<bool> {
            let map = std::fs::read_to_string(format!("/proc/{pid}/{file}"))?;
            let words = |line: &str| line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let lines: Vec<Vec<u32>> = map.lines().map(words).collect();
            Ok(extents.iter().all(|one| lines.contains(&vec![one.inside, one.host, one.count])))
        };
        Ok(has_own && shows("uid_map", users)? && shows("gid_map", groups)?)
    }

    /// Gives up the mapping for a user namespace in which ids are as on the host.
    pub fn fall_back(&mut self) -> Result<(), JailError> {
        *self = Self::make(Mode::Identity)?;
        Ok(())
    }

    /// The mapping that mounts need, if ids are mapped.
    #[must_use]
    pub fn id_map(&self) -> Option<IdMap<'_>> {
        let namespace = self.namespace.as_ref().filter(|_| self.mode == Mode::Mapped)?;
        Some(IdMap { namespace: namespace.as_fd() })
    }

    /// The number that is added to an id to show it to the guest: the first id on the host if ids are mapped by mounts,
    /// else 0.
    #[must_use]
    pub fn base(&self) -> u32 {
        if self.mode == Mode::Mapped { MAPPED_BASE } else { 0 }
    }

    /// User and group on the host, as files are to be made with that belong to the guest's root; `None`: root's own.
    #[must_use]
    pub fn file_owner(&self) -> Option<(u32, u32)> {
        match self.mode {
            Mode::Mapped => Some((MAPPED_BASE, MAPPED_BASE)),
            Mode::Given { user, group } => Some((user, group)),
            _ => None,
        }
    }

    /// Whether the host's root is shown to the VMM as nobody it knows.
    #[must_use]
    pub fn hide_hosts_root(&self) -> bool {
        matches!(self.mode, Mode::Mapped | Mode::Given { .. })
    }

    /// Whether the VMM will be in a user namespace that it does not share with the host.
    #[must_use]
    pub fn is_separate(&self) -> bool {
        self.mode != Mode::Host
    }

    /// Whether the VMM's file-system id and its owner differ, so that files about its own children are not its own.
    #[must_use]
    pub fn ids_differ(&self) -> bool {
        self.namespace.is_some()
    }

    /// The name of this mode of ids, for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.mode {
            Mode::Mapped => "mapped",
            Mode::Identity => "identity",
            Mode::Host => "host",
            Mode::Given { .. } => "given",
            Mode::Caller => "caller",
        }
    }

    /// Takes on the ids. The calling thread is the only one, and may lose capabilities by it only as far as the caller
    /// of this sets them anew.
    pub(super) fn become_nobody(self) -> Result<(), JailError> {
        let pid = crate::process::id();
        if let Some(namespace) = &self.namespace {
            // SAFETY: integers only.
            step("entering the user namespace", || unsafe {
                i64::from(libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWUSER))
            })?;
        }
        privileges::keep_capabilities_across_ids()?;
        let own = match self.mode {
            Mode::Caller => return Ok(()),
            Mode::Mapped | Mode::Given { .. } => MAPPED_COUNT,
            Mode::Identity | Mode::Host => own_id(pid),
        };
        // The C library's wrappers would do the same for every thread; there is one.
        step("leaving the host's groups", || {
            // SAFETY: an empty list.
            unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) }
        })?;
        // SAFETY: integers only.
        step("changing the group", || unsafe { libc::syscall(libc::SYS_setresgid, own, own, own) })?;
        // SAFETY: integers only.
        step("changing the user", || unsafe { libc::syscall(libc::SYS_setresuid, own, own, own) })?;
        // The files that the VMM makes belong to the guest's root.
        // SAFETY: integers only; the calls answer the former id and cannot fail otherwise.
        unsafe {
            libc::syscall(libc::SYS_setfsgid, 0);
            libc::syscall(libc::SYS_setfsuid, 0);
        }
        Ok(())
    }
}

/// The id on the host that is the VMM's alone.
#[must_use]
pub fn own_id(pid: i32) -> u32 {
    OWN_BASE + u32::try_from(pid).unwrap_or(0)
}

fn unshare(flags: i32) -> Result<(), JailError> {
    // SAFETY: takes integers only; the process is single-threaded.
    step("making namespaces", || unsafe { i64::from(libc::unshare(flags)) })
}

/// Makes a mount namespace that is this process's own.
pub(super) fn leave_mounts() -> Result<(), JailError> {
    unshare(libc::CLONE_NEWNS)
}

/// Takes on the id that is this process's alone, without groups. Its signal at the parent's death must be asked for again.
pub(super) fn become_own() {
    let own = own_id(crate::process::id());
    // SAFETY: an empty list, and integers; the process has one thread. One that may not do so stays who it is.
    unsafe {
        libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>());
        libc::syscall(libc::SYS_setresgid, own, own, own);
        libc::syscall(libc::SYS_setresuid, own, own, own);
    }
}

fn no_namespace(source: io::Error) -> JailError {
    JailError::Step { step: "making a user namespace", source }
}

/// A user namespace with these maps of users and groups. A child makes it, since a process that enters one has lost the
/// right to map more than itself.
fn make_namespace(users: &str, groups: &str) -> io::Result<OwnedFd> {
    let (mut ready, made) = io::pipe()?;
    let parent = crate::process::id();
    let Some(child) = crate::process::fork()? else {
        // The host lets no process in a chroot make one. The namespace does not keep the child's root.
        let _ = leave_chroot();
        // SAFETY: integers only.
        let result = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        let word = if result == 0 { 0 } else { errno };
        // Should this process be killed, the child must not stay behind with its descriptors. Asked for now, since a change
        // of credentials takes the wish back.
        if !crate::process::die_with_parent(parent) {
            crate::process::exit_now(1);
        }
        let _ = io::Write::write_all(&mut &made, &word.to_le_bytes());
        loop {
            // SAFETY: waits for the parent's SIGKILL.
            unsafe { libc::pause() };
        }
    };
    drop(made);
    let result = take_namespace(child, &mut ready, users, groups);
    // SAFETY: a child that is not reaped yet keeps its number; a null status is allowed.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    result
}

fn take_namespace(child: i32, ready: &mut impl io::Read, users: &str, groups: &str) -> io::Result<OwnedFd> {
    let mut word = [0; 4];
    ready.read_exact(&mut word)?;
    match i32::from_le_bytes(word) {
        0 => {}
        errno => return Err(io::Error::from_raw_os_error(errno)),
    }
    for (file, map) in [("gid_map", groups), ("uid_map", users)] {
        std::fs::write(format!("/proc/{child}/{file}"), map)?;
    }
    Ok(File::open(format!("/proc/{child}/ns/user"))?.into())
}

/// A directory of `/proc` that shows this sandbox's own processes and nothing else of the host, where the host can make
/// one: a walk up from a descriptor of it finds no other process and no switch of the kernel's.
pub fn proc_directory(_: &HostPaths, users: &Users) -> io::Result<OwnedFd> {
    own_proc(users.is_separate()).or_else(|_| {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        Ok(File::options().read(true).custom_flags(flags).open("/proc")?.into())
    })
}

fn own_proc(hide: bool) -> io::Result<OwnedFd> {
    const SET_STRING: i64 = 1;
    const CREATE: i64 = 6;
    const ATTRIBUTES: i64 = 1 | 2 | 4 | 8; // read-only, nosuid, nodev, noexec
    let open = |args: [i64; 6]| -> io::Result<i64> {
        let [number, a, b, c, d, e] = args;
        // SAFETY: live descriptors, and pointers to zero-terminated strings.
        let result = unsafe { libc::syscall(number, a, b, c, d, e) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    };
    let owned = |fd: i64| {
        // SAFETY: the calls made this way return a new descriptor.
        unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) }
    };
    let context = owned(open([libc::SYS_fsopen, c"proc".as_ptr() as i64, 1, 0, 0, 0])?);
    let fd = i64::from(context.as_raw_fd());
    let set = |key: &std::ffi::CStr, value: &std::ffi::CStr| {
        open([libc::SYS_fsconfig, fd, SET_STRING, key.as_ptr() as i64, value.as_ptr() as i64, 0])
    };
    set(c"subset", c"pid")?;
    if hide {
        set(c"hidepid", c"ptraceable")?;
    }
    open([libc::SYS_fsconfig, fd, CREATE, 0, 0, 0])?;
    Ok(owned(open([libc::SYS_fsmount, fd, 1, ATTRIBUTES, 0, 0])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_sandboxes_have_the_same_owner() {
        let most = 1 << 22;
        assert!(own_id(1) >= MAPPED_BASE + MAPPED_COUNT);
        assert_ne!(own_id(1), own_id(2));
        // Some of the host's settings count groups in 31 bits.
        assert!(own_id(most) < 1 << 31);
    }
}
