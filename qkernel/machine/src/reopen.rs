//! The sandbox's ties to the host, made anew under a VMM that has none of them (`docs/architecture.md`, *Another VMM*).
//!
//! Each handle keeps its number, which others have noted. Roots of mounts and streams come from the VMM's records; nodes are opened below
//! their roots, by their names; sockets are made again; and where somebody outside had the other end of something, that end is closed.

mod pairs;

use abi::PAGE_SIZE;
use abi::hostcall::{HostStat, SET_ATIME, SET_GID, SET_MODE, SET_MTIME, SET_UID, SetAttr};
use abi::report::ContainerId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::errno::{Errno, Result};
use crate::host::{self, Handle};
use crate::objects::{self, Given, Node, Origin, SetOption, SocketOrigin, Tied};
use crate::rank::Rank;
use crate::socket;
use crate::spin::SpinLock;

pub use pairs::{Connections, End, Endpoint, Pair, endpoint, note_connections};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const O_RDWR: u32 = 2;
const AT_REMOVEDIR: u32 = 0x200;
/// Names that are tried for a directory that is to have none.
const NAMES_MAX: u32 = 100;
const O_PATH: u32 = 0o10_000_000;
const O_DIRECTORY: u32 = 0o200_000;
/// Flags of how a file is read and written; the others were for its first opening.
const KEPT_FLAGS: u32 = 0o3 | O_PATH | O_DIRECTORY | 0o10_000 | 0o4_010_000;
const AF_UNIX: u32 = 1;
const SOCK_STREAM: u32 = 1;
const SOL_SOCKET: u32 = 1;
const SO_REUSEADDR: u32 = 2;

/// Why the ties could not be made anew, in words.
pub type Why = String;

/// A file or directory that no name leads to, but a handle.
struct Orphan {
    /// Of the handle.
    number: u32,
    /// Where the image has its content.
    at: u64,
    len: u64,
    stat: HostStat,
}

/// Those that the last image keeps.
static ORPHANS: SpinLock<Vec<Orphan>> = SpinLock::new(Rank::Objects, Vec::new());

/// Files that have changed since memory was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// They are a reason to end.
    Refuse,
    /// Programs see what there is now.
    Accept,
}

/// Finds what a sandbox with these containers holds that could not be opened anew.
pub fn check(ties: &[(u32, Tied)], containers: &[ContainerId]) -> core::result::Result<(), Why> {
    ties.iter().try_for_each(|(_, tied)| match tied {
        Tied::Alone(why) => Err(String::from(*why)),
        Tied::Given(Given::Mount { container, .. }) if !containers.contains(&ContainerId(*container)) => {
            Err("files of a container that has ended are open".into())
        }
        Tied::Node { node, .. } => check_node(node, ties),
        Tied::Socket(socket) if socket.is_incomplete => {
            Err("a socket has more options than are noted".into())
        }
        Tied::Given(_) | Tied::Socket(_) | Tied::Connection(_) | Tied::Watch | Tied::Locks => Ok(()),
    })
}

/// Finds a connection, which another VMM would not have: none of those whose both ends are made anew.
pub fn check_unconnected(ties: &[(u32, Tied)], pairs: &[Pair]) -> core::result::Result<(), Why> {
    let made: BTreeSet<u32> =
        pairs.iter().flat_map(|pair| [pair.connecting.number, pair.accepted.number]).collect();
    ties.iter().filter(|(number, _)| !made.contains(number)).try_for_each(|(_, tied)| match tied {
        Tied::Socket(socket) if socket.kind == SOCK_STREAM => match &socket.peer {
            Some(_) if socket.family == AF_UNIX => {
                Err("a connection to a Unix socket of the host is open".into())
            }
            Some(peer) => Err(format!("a connection to {} is open", address_in_words(peer))),
            None => Ok(()),
        },
        Tied::Connection(_) => Err("a connection that somebody has made to it is open".into()),
        _ => Ok(()),
    })
}

/// Takes down which files are open, so that others are told from them later, and has the image keep those without a name.
pub fn note(ties: &[(u32, Tied)]) -> core::result::Result<(), Why> {
    let (mut orphans, mut at) = (Vec::new(), 0);
    for (number, tied) in ties {
        // Of a lower directory the node above knows more.
        let Tied::Node { node, is_lower: false, .. } = tied else { continue };
        let stat = host::stat_number(*number).map_err(|error| failed("look at an open file", error))?;
        if node.named().is_some() && !node.is_by_name(&stat) {
            return Err("a file is open whose name somebody outside has removed or given to another".into());
        }
        node.note(&stat);
        if node.named().is_none() && node.own_handle() == Some(*number) {
            let len = keep(*number, node, &stat, at)?;
            orphans.push(Orphan { number: *number, at, len, stat });
            at += len.next_multiple_of(PAGE_SIZE);
        }
    }
    let former = core::mem::replace(&mut *ORPHANS.lock(), orphans);
    drop(former);
    Ok(())
}

/// Has the image keep the content of a file without a name, if such a file can be made again. Result: its bytes.
fn keep(number: u32, node: &Arc<dyn Node>, stat: &HostStat, at: u64) -> core::result::Result<u64, Why> {
    match stat.mode & S_IFMT {
        S_IFREG if stat.nlink != 0 => {
            return Err("a file is open by a name that is gone, and has others".into());
        }
        S_IFREG => {}
        S_IFDIR => return Ok(0),
        _ => return Err("a pipe or socket without a name is open".into()),
    }
    let root = node.root_handle().ok_or("a file without a name has no mount any more")?;
    host::tmpfile_below(root, O_RDWR, 0o600)
        .map_err(|error| failed("make a file without a name in its mount", error))?;
    host::keep_content(number, at).map_err(|error| failed("keep a file without a name", error))
}

fn check_node(node: &Arc<dyn Node>, ties: &[(u32, Tied)]) -> core::result::Result<(), Why> {
    let root =
        objects::climb(node.clone(), |_, _| {}).ok_or("directories have been moved into each other")?;
    let is_there = |number| ties.binary_search_by_key(&number, |(number, _)| *number).is_ok();
    if root.own_handle().is_some_and(is_there) {
        Ok(())
    } else {
        Err("a file that cannot be found is open".into())
    }
}

/// A node on the way from a root, which is the first: the name that it has in the one before.
type Step = (Arc<dyn Node>, Vec<u8>);

/// The root above a node, and the nodes below that on the way to it, itself the last.
fn names_from_root(node: &Arc<dyn Node>) -> Result<(Arc<dyn Node>, Vec<Step>)> {
    let mut steps = Vec::new();
    let root = objects::climb(node.clone(), |node, name| steps.push((node, name.into_vec())));
    steps.reverse();
    Ok((root.ok_or(Errno::ELOOP)?, steps))
}

/// A path inside its mount, for a message.
fn path_of(steps: &[Step]) -> String {
    steps.iter().map(|(_, name)| format!("/{}", String::from_utf8_lossy(name))).collect()
}

/// Opens all of `old` anew, which this VMM has none of, with the files `given` by its records. Others that were given are closed. What holds
/// locks is left to those who lock, before [`host::end_placing`]. `ports`: those that sockets had, and get.
pub fn reopen(
    old: &[(u32, Tied)],
    given: Vec<Handle>,
    changed: Changed,
    ports: &[(u16, u16)],
) -> core::result::Result<(), Why> {
    let mut reopening = Reopening { old, placed: BTreeSet::new(), ways: BTreeMap::new(), changed };
    reopening.place_given(given)?;
    let orphans = core::mem::take(&mut *ORPHANS.lock());
    orphans.iter().try_for_each(|orphan| reopening.make_orphan(orphan))?;
    let pairs = pairs::make_all(old, ports)?;
    reopening.placed.extend(&pairs);
    for (number, tied) in old {
        match tied {
            Tied::Socket(_) | Tied::Connection(_) if reopening.placed.contains(number) => {}
            Tied::Node { .. } => reopening.open_node(*number)?,
            Tied::Socket(origin) => make_socket(*number, origin, ports)?,
            Tied::Connection(lost) => place_lost(*number, lost.family, lost.kind, lost.token)?,
            Tied::Watch => watch_again(*number)?,
            // Those who lock open their files themselves.
            Tied::Given(_) | Tied::Locks => {}
            Tied::Alone(why) => return Err(String::from(*why)),
        }
    }
    pairs::end_sharing(old, &pairs);
    Ok(())
}

fn watch_again(number: u32) -> core::result::Result<(), Why> {
    let opened = host::watch_open().and_then(|watch| watch.place(number));
    opened.map_err(|error| failed("watch files again", error))
}

struct Reopening<'a> {
    old: &'a [(u32, Tied)],
    placed: BTreeSet<u32>,
    /// Directories that were opened on the way, by their address and whether that is in the lower tree.
    ways: BTreeMap<(usize, bool), Handle>,
    changed: Changed,
}

impl Reopening<'_> {
    fn tied(&self, number: u32) -> Option<&Tied> {
        let at = self.old.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        self.old.get(at).map(|(_, tied)| tied)
    }

    fn place(&mut self, handle: Handle, number: u32, what: &str) -> core::result::Result<(), Why> {
        handle.place(number).map_err(|error| failed(what, error))?;
        self.placed.insert(number);
        Ok(())
    }

    fn place_given(&mut self, mut given: Vec<Handle>) -> core::result::Result<(), Why> {
        let mut known: Vec<Option<Given>> = given.iter().map(given_as).collect();
        for (number, tied) in self.old {
            let Tied::Given(wanted) = tied else { continue };
            match (best(&known, wanted), wanted) {
                (Some(at), _) => {
                    known.remove(at);
                    self.place(given.remove(at), *number, "place a file")?;
                }
                (None, Given::Mount { path, is_lower: false, .. }) => {
                    return Err(format!(
                        "nothing of the host's is mounted at {}, where the snapshot has a mount",
                        String::from_utf8_lossy(path)
                    ));
                }
                // Somebody else's file must not have a number that is the kernel's: it stands for nothing. Nodes of a lower directory
                // are looked for in the one above.
                (None, Given::Stream { .. } | Given::Text { .. } | Given::Mount { .. }) => {
                    place_lost(*number, 0, 0, 0)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a file or directory without a name that is what another was.
    fn make_orphan(&mut self, orphan: &Orphan) -> core::result::Result<(), Why> {
        let Some(Tied::Node { node, flags, .. }) = self.tied(orphan.number) else { return Ok(()) };
        let (is_path, root) = (flags & O_PATH != 0, node.root_handle());
        let what = "make a file without a name again";
        let root =
            root.filter(|root| self.placed.contains(root)).ok_or("a file without a name has no mount")?;
        let made = match orphan.stat.mode & S_IFMT {
            S_IFDIR => make_nameless_directory(root, orphan),
            _ => make_nameless_file(root, orphan, is_path),
        };
        self.place(made.map_err(|error| failed(what, error))?, orphan.number, what)
    }

    /// Opens the node behind a handle, and those on the way to it that have a handle of their own.
    fn open_node(&mut self, number: u32) -> core::result::Result<(), Why> {
        if self.placed.contains(&number) {
            return Ok(());
        }
        let Some(Tied::Node { node, flags, is_lower }) = self.tied(number) else { return Ok(()) };
        let (node, flags, is_lower) = (node.clone(), *flags & KEPT_FLAGS, *is_lower);
        let (root, mut steps) = names_from_root(&node).map_err(|error| failed("find a file", error))?;
        let path = path_of(&steps);
        let last = steps.pop();
        let (mut at, is_lower) =
            self.root_of(&root, is_lower).ok_or_else(|| format!("{path} has no mount"))?;
        for (dir, name) in &steps {
            at = self.open_directory(dir, at, name, is_lower, &path)?;
        }
        let name = last.map_or_else(Vec::new, |(_, name)| name);
        let handle =
            host::open_below(at, &name, flags).map_err(|error| failed(&format!("open {path}"), error))?;
        // One without a name has been made here, or is a mount itself.
        if !path.is_empty() {
            self.check(&node, &handle, &path)?;
        }
        self.place(handle, number, "place a file")
    }

    /// The number of the handle of a mount's root, and whether it is that of the lower directory: where there is none any more the mount
    /// itself has all files.
    fn root_of(&self, root: &Arc<dyn Node>, is_lower: bool) -> Option<(u32, bool)> {
        let upper = root.own_handle()?;
        if is_lower && let Some(Tied::Given(Given::Mount { container, path, at, .. })) = self.tied(upper) {
            let lower = Given::Mount { container: *container, path: path.clone(), at: *at, is_lower: true };
            let found =
                self.old.iter().find(|(_, tied)| matches!(tied, Tied::Given(given) if *given == lower));
            if let Some((number, _)) = found.filter(|(number, _)| self.placed.contains(number)) {
                return Some((*number, true));
            }
        }
        Some((upper, false))
    }

    /// The number of a directory's handle, which is opened in the one with the number `at` unless it is there.
    fn open_directory(
        &mut self,
        dir: &Arc<dyn Node>,
        at: u32,
        name: &[u8],
        is_lower: bool,
        path: &str,
    ) -> core::result::Result<u32, Why> {
        let own = dir.own_handle().filter(|own| !is_lower && self.tied(*own).is_some());
        if let Some(own) = own.filter(|own| self.placed.contains(own)) {
            return Ok(own);
        }
        let key = (Arc::as_ptr(dir).cast::<()>().addr(), is_lower);
        if let Some(handle) = self.ways.get(&key) {
            return Ok(handle.raw());
        }
        let opened = host::open_below(at, name, O_PATH | O_DIRECTORY);
        let handle =
            opened.map_err(|error| failed(&format!("open a directory on the way to {path}"), error))?;
        if let Some(own) = own {
            self.place(handle, own, "place a directory")?;
            return Ok(own);
        }
        let number = handle.raw();
        self.ways.insert(key, handle);
        Ok(number)
    }

    fn check(&self, node: &Arc<dyn Node>, handle: &Handle, path: &str) -> core::result::Result<(), Why> {
        let now: HostStat =
            host::stat_handle(handle).map_err(|error| failed(&format!("look at {path}"), error))?;
        if self.changed == Changed::Refuse && !node.is_noted(&now) {
            return Err(format!("{path} has changed since the snapshot was made"));
        }
        Ok(())
    }
}

fn make_nameless_file(root: u32, Orphan { at, len, stat, .. }: &Orphan, is_path: bool) -> Result<Handle> {
    let file = host::tmpfile_below(root, O_RDWR, stat.mode & 0o7777)?;
    host::put_content(&file, *at, *len)?;
    set_attributes(&file, stat)?;
    if is_path { host::open_below(file.raw(), b"", O_PATH) } else { Ok(file) }
}

fn make_nameless_directory(root: u32, Orphan { number, stat, .. }: &Orphan) -> Result<Handle> {
    let mut tries = 0;
    let name = loop {
        let name = format!(".dormouse-{number}-{tries}").into_bytes();
        match host::mkdir_below(root, &name, stat.mode & 0o7777) {
            Err(Errno::EEXIST) if tries < NAMES_MAX => tries += 1,
            made => break made.map(|()| name)?,
        }
    };
    let opened = host::open_below(root, &name, O_PATH | O_DIRECTORY);
    let attributes = opened.as_ref().map_err(|error| *error).and_then(|dir| set_attributes(dir, stat));
    host::unlink_below(root, &name, AT_REMOVEDIR)?;
    attributes.and(opened)
}

fn set_attributes(node: &Handle, stat: &HostStat) -> Result<()> {
    let attributes = SetAttr {
        valid: SET_MODE | SET_UID | SET_GID | SET_ATIME | SET_MTIME,
        mode: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        atime_ns: stat.atime_ns,
        mtime_ns: stat.mtime_ns,
        ..SetAttr::default()
    };
    host::set_attr(node, b"", &attributes)
}

/// The place of the file that was given in place of `wanted`, among what all that were given are.
fn best(all: &[Option<Given>], wanted: &Given) -> Option<usize> {
    let exactly = all.iter().position(|found| found.as_ref() == Some(wanted));
    let Given::Mount { container, path, is_lower, .. } = wanted else { return exactly };
    // In a bundle with other mounts before it; of several the last one is seen.
    exactly.or_else(|| {
        all.iter().rposition(|found| match found {
            Some(Given::Mount { container: of, path: at, is_lower: lower, .. }) => {
                (of, at, lower) == (container, path, is_lower)
            }
            _ => false,
        })
    })
}

fn given_as(handle: &Handle) -> Option<Given> {
    let of = |origin: &Origin| match origin {
        Origin::Given(given) => Some(given.clone()),
        _ => None,
    };
    handle.origin(of).flatten()
}

fn failed(what: &str, error: Errno) -> Why {
    format!("cannot {what}: {error:?}")
}

fn place_lost(number: u32, family: u32, kind: u32, token: u64) -> core::result::Result<(), Why> {
    let lost = host::lost(family, kind, token).and_then(|lost| lost.place(number));
    lost.map_err(|error| failed("replace a connection that is lost", error))
}

/// Makes a socket that is in the state of an old one. A connection to somebody outside is lost.
fn make_socket(number: u32, origin: &SocketOrigin, ports: &[(u16, u16)]) -> core::result::Result<(), Why> {
    let SocketOrigin { family, kind, protocol, token, .. } = *origin;
    let is_connected = origin.peer.is_some();
    if is_connected && kind == SOCK_STREAM {
        return place_lost(number, family, kind, token);
    }
    let what = |what: &str, error| failed(&format!("{what} a socket again"), error);
    let made = socket::socket(family, kind, protocol, token).map_err(|error| what("make", error))?;
    for option in &origin.options {
        socket::set_option(&made, option.level, option.name, &option.value)
            .map_err(|error| what(&format!("set option {}:{} of", option.level, option.name), error))?;
    }
    if let Some(address) = &origin.address.as_deref().map(|address| with_port(address, ports)) {
        bind(&made, origin, address).map_err(|error| {
            failed(&format!("bind a socket again to {}", address_in_words(address)), error)
        })?;
        objects::note(number, |socket| socket.address = Some(address[..].into()));
    }
    if let Some(backlog) = origin.backlog {
        socket::listen(&made, backlog).map_err(|error| what("listen with", error))?;
    }
    if let Some(peer) = &origin.peer {
        // Nobody may be there now, which the next datagram shows.
        let _ = socket::connect(&made, peer);
    }
    made.place(number).map_err(|error| what("place", error))
}

/// The address with the port that it gets.
fn with_port(address: &[u8], ports: &[(u16, u16)]) -> Vec<u8> {
    let mut address = address.to_vec();
    if let Some(port) = address.get_mut(2..4).and_then(<[u8]>::first_chunk_mut) {
        let old = u16::from_be_bytes(*port);
        let new = ports.iter().find(|(mapped, _)| *mapped == old).map_or(old, |(_, new)| *new);
        *port = new.to_be_bytes();
    }
    address
}

/// Binds to an address that connections of the former socket may still be at, which nobody waits for any more.
fn bind(made: &Handle, origin: &SocketOrigin, address: &[u8]) -> Result<()> {
    let is_reuse = |option: &&SetOption| (option.level, option.name) == (SOL_SOCKET, SO_REUSEADDR);
    let shares =
        origin.options.iter().any(|option| is_reuse(&option) && option.value.iter().any(|byte| *byte != 0));
    if origin.kind != SOCK_STREAM || shares {
        return socket::bind(made, address);
    }
    socket::set_option(made, SOL_SOCKET, SO_REUSEADDR, &1_i32.to_ne_bytes())?;
    let bound = socket::bind(made, address);
    socket::set_option(made, SOL_SOCKET, SO_REUSEADDR, &0_i32.to_ne_bytes())?;
    bound
}

/// A `sockaddr` in words.
fn address_in_words(address: &[u8]) -> String {
    let port = address.get(2..4).and_then(<[u8]>::first_chunk).map_or(0, |port| u16::from_be_bytes(*port));
    match (address.len(), address.get(4..8), address.get(8..24)) {
        (16, Some([a, b, c, d]), _) => format!("{a}.{b}.{c}.{d} port {port}"),
        (28, _, Some(bytes)) => {
            let words: Vec<String> = bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|word| format!("{:x}", u16::from_be_bytes(*word)))
                .collect();
            format!("{} port {port}", words.join(":"))
        }
        _ => format!("port {port}"),
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;
    use crate::objects::ConnectionOrigin;
    use crate::objects::tests::Bare;

    fn mount(container: u64, path: &[u8], at: u32) -> Given {
        Given::Mount { container, path: path.into(), at, is_lower: false }
    }

    #[test]
    fn what_could_not_be_opened_anew_is_found_before() {
        let root = Arc::new(Bare { dir: None, own: Some(3) });
        let node = |dir: Option<Arc<Bare>>, own| -> Arc<dyn Node> { Arc::new(Bare { dir, own }) };
        let tied = |node| Tied::Node { node, flags: 0, is_lower: false };
        let with = |more: Tied| {
            check(&[(3, Tied::Given(mount(0, b"/", 0))), (7, more)], &[ContainerId::FIRST, ContainerId(2)])
        };
        assert!(with(tied(node(Some(root.clone()), None))).is_ok());
        // Without a name, but by a handle of its own; and by none.
        assert!(with(tied(node(None, Some(7)))).is_ok());
        assert!(with(tied(node(None, None))).is_err());
        assert!(with(tied(node(Some(Arc::new(Bare { dir: None, own: Some(9) })), None))).is_err());
        assert!(with(Tied::Connection(ConnectionOrigin::default())).is_ok());
        assert!(with(Tied::Given(mount(2, b"/", 0))).is_ok());
        assert!(with(Tied::Given(mount(1, b"/", 0))).unwrap_err().contains("container"));
        let crowded = SocketOrigin { is_incomplete: true, ..SocketOrigin::default() };
        assert!(with(Tied::Socket(Box::new(crowded))).is_err());
        assert_eq!(with(Tied::Alone("so")), Err("so".into()));
    }

    #[test]
    fn only_connections_that_are_lost_are_refused() {
        let found = |tied: Tied| check_unconnected(&[(3, Tied::Given(mount(0, b"/", 0))), (7, tied)], &[]);
        let peer: Option<Box<[u8]>> = Some([2, 0, 0x1f, 0x90, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0].into());
        let socket =
            |kind, peer| Tied::Socket(Box::new(SocketOrigin { kind, peer, ..SocketOrigin::default() }));
        assert_eq!(
            found(socket(SOCK_STREAM, peer.clone())),
            Err("a connection to 127.0.0.1 port 8080 is open".into())
        );
        assert!(found(Tied::Connection(ConnectionOrigin::default())).is_err());
        let end = |number| End { number, ..End::default() };
        let pair = |one, other| [Pair { connecting: end(one), accepted: end(other) }];
        let ties =
            [(7, socket(SOCK_STREAM, peer.clone())), (8, Tied::Connection(ConnectionOrigin::default()))];
        assert!(check_unconnected(&ties, &pair(7, 8)).is_ok());
        assert!(check_unconnected(&ties, &pair(7, 9)).is_err());
        // Datagrams have an address alone.
        assert!(found(socket(2, peer)).is_ok());
        assert!(found(socket(SOCK_STREAM, None)).is_ok());
        assert!(found(Tied::Watch).is_ok());
    }

    #[test]
    fn a_mount_is_found_by_its_path_wherever_it_is_among_others() {
        let made = |number, given: Given| Handle::given(number, given).unwrap();
        let given = [
            made(5_000_001, mount(0, b"/", 0)),
            made(5_000_002, mount(0, b"/data", 1)),
            made(5_000_003, mount(0, b"/data", 2)),
            made(5_000_004, Given::Stream { container: 0, entrant: 0, fd: 1 }),
        ];
        let known: Vec<Option<Given>> = given.iter().map(given_as).collect();
        let found = |wanted: &Given| best(&known, wanted).map(|at| given[at].raw() - 5_000_000);
        assert_eq!(found(&mount(0, b"/data", 1)), Some(2));
        assert_eq!(found(&mount(0, b"/data", 7)), Some(3));
        assert_eq!(found(&mount(0, b"/", 3)), Some(1));
        assert_eq!(found(&mount(0, b"/none", 1)), None);
        // Another container's is none, wherever it is.
        assert_eq!(found(&mount(2, b"/data", 1)), None);
        assert_eq!(found(&Given::Stream { container: 0, entrant: 0, fd: 1 }), Some(4));
        assert_eq!(found(&Given::Stream { container: 0, entrant: 2, fd: 1 }), None);
        // There is no VMM that would be told that they are closed.
        core::mem::forget(given);
    }

    #[test]
    fn ports_are_mapped_and_told_in_words() {
        let address = [2, 0, 0x1f, 0x90, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(address_in_words(&address), "127.0.0.1 port 8080");
        assert_eq!(with_port(&address, &[]), address);
        let mapped = with_port(&address, &[(80, 81), (8080, 9090)]);
        assert_eq!(address_in_words(&mapped), "127.0.0.1 port 9090");
        assert_eq!(with_port(&[1], &[(0, 1)]), [1]);
        let mut six = [0; 28];
        (six[0], six[3], six[23]) = (10, 80, 1);
        assert_eq!(address_in_words(&six), "0:0:0:0:0:0:0:1 port 80");
    }
}
