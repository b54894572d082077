//! The sandbox's ties to the host: a row for each handle, which says where the file behind it comes from.
//!
//! A VMM that never had the file finds it by that (`docs/architecture.md`, *Another VMM*). A row begins with its handle and ends
//! before the VMM is told to close it, since the number may be another file's from then on. Names are not copied: a node says how it is
//! reached now, so renames change no row.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::mem;

use abi::hostcall::HostStat;

use crate::counts::Charge;
use crate::errno::{Errno, Result};
use crate::rank::Rank;
use crate::spin::SpinLock;

/// Rows that are allocated at once.
const PIECE_ROWS: u32 = 64;
const PIECE: usize = PIECE_ROWS as usize;
/// Most options of a socket that are noted: of those that programs may set, and of memberships.
const OPTIONS_MAX: usize = 256;
/// Bytes of the longest value of an option that counts: `struct group_source_req`.
pub const VALUE_MAX: usize = 264;

/// Where the file behind a handle comes from.
#[derive(Debug)]
pub enum Origin {
    /// The VMM gave it in the boot records.
    Given(Given),
    /// A node of the host's, open by `flags`, in the tree that its mount shows or, of an overlay, in the lower one.
    Node {
        /// The node.
        node: Weak<dyn Node>,
        /// `O_…`.
        flags: u32,
        /// It was opened in the lower directory.
        is_lower: bool,
    },
    /// A file that was made without a name.
    Unnamed,
    /// A socket of the kernel's own making.
    Socket(Box<SocketOrigin>),
    /// A connection that somebody outside has the other end of: without that it is nothing.
    Connection(ConnectionOrigin),
    /// The host's news of watched files.
    Watch,
    /// An opening that carries the sandbox's locks of a file, which whoever has the file open can replace.
    Locks,
}

impl Origin {
    /// The options that were set, of a socket or a connection.
    pub(crate) fn options(&self) -> &[SetOption] {
        match self {
            Self::Socket(socket) => &socket.options,
            Self::Connection(connection) => &connection.options,
            _ => &[],
        }
    }
}

/// A file of the boot records, by what the next VMM's records call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// The root of a mount, by the container and the path there.
    Mount {
        /// The container's number.
        container: u64,
        /// The path inside.
        path: Box<[u8]>,
        /// Its place among the container's mounts, of which several may have one path.
        at: u32,
        /// It is the lower directory of an overlay.
        is_lower: bool,
    },
    /// The stream that a process of the container begins with under a number.
    Stream {
        /// The container's number.
        container: u64,
        /// The number of the process that has come in; 0: the container's first.
        entrant: u64,
        /// The descriptor inside.
        fd: u32,
    },
    /// A text of the host's kernel, by its name.
    Text {
        /// The name in `/proc/net`.
        name: Box<[u8]>,
    },
}

/// A connection, by what one that is lost, or made anew, has in common with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionOrigin {
    /// Address family (`AF_…`).
    pub family: u32,
    /// Type (`SOCK_…`).
    pub kind: u32,
    /// By which the host tells of its readiness.
    pub token: u64,
    /// Options that were set, of those that there was room to note; those of the listening socket come first.
    pub options: Vec<SetOption>,
}

/// A socket that the kernel has had made, with what the host does not tell of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOrigin {
    /// Address family (`AF_…`).
    pub family: u32,
    /// Type (`SOCK_…`).
    pub kind: u32,
    /// Protocol (`IPPROTO_…`).
    pub protocol: u32,
    /// By which the host tells of its readiness.
    pub token: u64,
    /// The address that it is bound to by the program's word.
    pub address: Option<Box<[u8]>>,
    /// The address that it was connected to, or is being.
    pub peer: Option<Box<[u8]>>,
    /// Connections that may wait to be accepted, once it listens.
    pub backlog: Option<usize>,
    /// Options in the order in which they were set, without what later ones have undone.
    pub options: Vec<SetOption>,
    /// There was no room to note an option that is in force.
    pub is_incomplete: bool,
}

/// An option that was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetOption {
    /// Level (`SOL_…`, `IPPROTO_…`).
    pub level: u32,
    /// Number.
    pub name: u32,
    /// The value, of which the host looks at no more bytes than [`VALUE_MAX`].
    pub value: Vec<u8>,
}

impl SetOption {
    /// An option as it was set; `None`: there is no memory.
    #[must_use]
    pub fn new(level: u32, name: u32, value: &[u8]) -> Option<Self> {
        let value = &value[..value.len().min(VALUE_MAX)];
        let mut kept = Vec::new();
        kept.try_reserve_exact(value.len()).ok()?;
        kept.extend_from_slice(value);
        Some(Self { level, name, value: kept })
    }
}

/// The effect of an option on those that were set before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionEffect {
    /// It takes the place of an earlier value.
    Replaces,
    /// It holds beside earlier ones, as memberships do.
    Adds,
    /// It ends what an option of this number began, most often one with the same value.
    Ends(u32),
}

/// The directory that a node is in, and its name there.
pub struct Named {
    /// The directory.
    pub dir: Arc<dyn Node>,
    /// The name.
    pub name: Box<[u8]>,
}

/// A node of the host's tree.
pub trait Node: Send + Sync {
    /// The directory that it is in now, and its name there; `None`: no name leads to it, or it is a root.
    fn named(&self) -> Option<Named>;

    /// The handle that leads to it without a name.
    fn own_handle(&self) -> Option<u32>;

    /// The handle of the root of its tree.
    fn root_handle(&self) -> Option<u32>;

    /// Whether the name that it is known by leads to this file.
    fn is_by_name(&self, now: &HostStat) -> bool;

    /// Takes down the file that is open now, since memory is taken.
    fn note(&self, now: &HostStat);

    /// Whether `now` is the file that was noted, with the content that it had.
    fn is_noted(&self, now: &HostStat) -> bool;
}

impl SocketOrigin {
    /// Notes an option that has been set; `None`: there is no memory for it.
    pub fn set(&mut self, option: Option<SetOption>, effect: OptionEffect) {
        self.is_incomplete |= !note_option(&mut self.options, option, effect);
    }
}

/// Notes an option among those that were set before. Whether there was room for it.
fn note_option(options: &mut Vec<SetOption>, option: Option<SetOption>, effect: OptionEffect) -> bool {
    let Some(option) = option else { return false };
    let is_undone = |old: &SetOption| match effect {
        OptionEffect::Replaces => (old.level, old.name) == (option.level, option.name),
        OptionEffect::Adds => false,
        OptionEffect::Ends(name) => (old.level, old.name, &old.value) == (option.level, name, &option.value),
    };
    let undone = options.iter().rposition(is_undone).map(|at| options.remove(at));
    if undone.is_some() && matches!(effect, OptionEffect::Ends(_)) {
        return true;
    }
    let has_room = options.len() < OPTIONS_MAX && options.try_reserve(1).is_ok();
    if has_room {
        options.push(option);
    }
    has_room
}

struct Row {
    origin: Origin,
    charge: Charge,
}

/// The rows by the number of their handle, in pieces.
struct Table(Vec<Vec<Option<Row>>>);

static ROWS: SpinLock<Table> = SpinLock::new(Rank::Objects, Table::new());

impl Table {
    const fn new() -> Self {
        Self(Vec::new())
    }

    fn row(&mut self, number: u32) -> Option<&mut Option<Row>> {
        let at = number as usize;
        self.0.get_mut(at / PIECE)?.get_mut(at % PIECE)
    }

    /// The place of a row, made if there is none yet.
    fn place(&mut self, number: u32) -> Result<&mut Option<Row>> {
        let at = number as usize;
        let pieces = at / PIECE + 1;
        if self.0.len() < pieces {
            self.0.try_reserve(pieces - self.0.len()).map_err(|_| Errno::ENOMEM)?;
            self.0.resize_with(pieces, Vec::new);
        }
        let piece = &mut self.0[at / PIECE];
        if piece.is_empty() {
            piece.try_reserve_exact(PIECE).map_err(|_| Errno::ENOMEM)?;
            piece.resize_with(PIECE, || None);
        }
        Ok(&mut piece[at % PIECE])
    }

    fn rows(&self) -> impl Iterator<Item = (u32, &Row)> {
        (0_u32..).zip(self.0.iter()).flat_map(|(at, piece)| {
            let first = at * PIECE_ROWS;
            (first..).zip(piece).filter_map(|(number, row)| Some((number, row.as_ref()?)))
        })
    }

    /// Gives back pieces without a row.
    fn trim(&mut self) {
        for piece in &mut self.0 {
            if piece.iter().all(Option::is_none) {
                *piece = Vec::new();
            }
        }
        let used = self.0.iter().rposition(|piece| !piece.is_empty()).map_or(0, |last| last + 1);
        self.0.truncate(used);
    }
}

/// A row, which ends with this.
#[derive(Debug)]
pub(crate) struct Tie {
    number: u32,
}

impl Tie {
    /// Begins the row of a handle that the VMM has just made. `ENOMEM`: there is no room for it, and the charge is given back.
    pub(crate) fn begin(number: u32, charge: Charge, origin: Origin) -> Result<Self> {
        let mut row = Some(Row { origin, charge });
        let former = {
            let mut table = ROWS.lock();
            let place = table.place(number);
            place.map(|place| core::mem::replace(place, row.take()))
        };
        // What is left of either is dropped without the lock.
        drop(row);
        former.map(|_| Self { number })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Says where it comes from, in place of what was said before.
    pub(crate) fn set_origin(&self, origin: Origin) {
        let _former = self.with(|row| core::mem::replace(&mut row.origin, origin));
    }

    /// Has `change` note something of a socket of the kernel's making; of others nothing is noted.
    pub(crate) fn note(&self, change: impl FnOnce(&mut SocketOrigin)) {
        self.with(|row| {
            if let Origin::Socket(socket) = &mut row.origin {
                change(socket);
            }
        });
    }

    /// Notes an option that has been set, of a socket or a connection.
    pub(crate) fn note_option(&self, option: Option<SetOption>, effect: OptionEffect) {
        self.with(|row| match &mut row.origin {
            Origin::Socket(socket) => socket.set(option, effect),
            // One that is not noted is lost with the connection, as a rule.
            Origin::Connection(connection) => drop(note_option(&mut connection.options, option, effect)),
            _ => {}
        });
    }

    /// Notes the options that a connection has from the beginning.
    pub(crate) fn inherit_options(&self, options: Vec<SetOption>) {
        self.with(|row| {
            if let Origin::Connection(connection) = &mut row.origin {
                connection.options = options;
            }
        });
    }

    /// Looks at where it comes from.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Origin) -> R) -> Option<R> {
        self.with(|row| look(&row.origin))
    }

    fn with<R>(&self, change: impl FnOnce(&mut Row) -> R) -> Option<R> {
        ROWS.lock().row(self.number)?.as_mut().map(change)
    }

    /// Ends the row; the handle counts until what is returned is dropped.
    pub(crate) fn end(&self) -> Option<Charge> {
        let row = ROWS.lock().row(self.number).and_then(Option::take);
        row.map(|row| row.charge)
    }
}

/// Handles whose rows there are.
#[must_use]
pub fn count() -> usize {
    ROWS.lock().rows().count()
}

/// A row's origin, for one who opens the file anew.
pub enum Tied {
    /// See [`Origin::Given`].
    Given(Given),
    /// See [`Origin::Node`].
    Node {
        /// The node.
        node: Arc<dyn Node>,
        /// `O_…`.
        flags: u32,
        /// It was opened in the lower directory.
        is_lower: bool,
    },
    /// See [`Origin::Socket`].
    Socket(Box<SocketOrigin>),
    /// See [`Origin::Connection`].
    Connection(ConnectionOrigin),
    /// See [`Origin::Watch`].
    Watch,
    /// See [`Origin::Locks`].
    Locks,
    /// It cannot be opened anew, for this reason.
    Alone(&'static str),
}

impl From<&Origin> for Tied {
    fn from(origin: &Origin) -> Self {
        match origin {
            Origin::Given(given) => Self::Given(given.clone()),
            Origin::Node { node, flags, is_lower } => match node.upgrade() {
                Some(node) => Self::Node { node, flags: *flags, is_lower: *is_lower },
                None => Self::Alone("a file whose node is gone is open"),
            },
            Origin::Unnamed => Self::Alone("a file without a name is open"),
            Origin::Socket(socket) => Self::Socket(socket.clone()),
            Origin::Connection(connection) => Self::Connection(connection.clone()),
            Origin::Watch => Self::Watch,
            Origin::Locks => Self::Locks,
        }
    }
}

/// All handles with what they are, in ascending order. `ENOMEM`: there is no memory for them.
pub fn ties() -> Result<Vec<(u32, Tied)>> {
    let count = count();
    let mut ties = Vec::new();
    ties.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    // Nobody opens anything meanwhile.
    ties.extend(ROWS.lock().rows().take(count).map(|(number, row)| (number, Tied::from(&row.origin))));
    Ok(ties)
}

/// Has `change` note something of the socket behind the handle with this number.
pub(crate) fn note(number: u32, change: impl FnOnce(&mut SocketOrigin)) {
    if let Some(Row { origin: Origin::Socket(socket), .. }) = ROWS.lock().row(number).and_then(Option::as_mut)
    {
        change(socket);
    }
}

/// Gives back memory that no row needs.
pub fn trim() {
    ROWS.lock().trim();
}

/// Most directories above a node.
const DEPTH_MAX: usize = 1 << 16;

/// How a row was found wanting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untied {
    /// Its node is gone, though the handle is not.
    NodeGone,
    /// No row leads to where its names begin: the file has lost its name, and there was no handle left to keep it by.
    Rootless,
    /// Its names lead back to it: somebody outside has moved directories into each other.
    Circle,
}

/// A row's origin, as far as [`check`] needs it.
enum Way {
    /// Its own row is enough.
    Alone,
    Node(Option<Arc<dyn Node>>),
}

impl Table {
    /// The ways to all handles, in the order of these.
    fn ways(&self) -> Vec<(u32, Way)> {
        let way = |origin: &Origin| match origin {
            Origin::Node { node, .. } => Way::Node(node.upgrade()),
            Origin::Given(_)
            | Origin::Unnamed
            | Origin::Socket(_)
            | Origin::Connection(_)
            | Origin::Watch
            | Origin::Locks => Way::Alone,
        };
        self.rows().map(|(number, row)| (number, way(&row.origin))).collect()
    }
}

/// Whether each handle can be found again: given, of the kernel's making, or by names from such a one; else the handle for which it is
/// not so. For a sandbox that stands still.
pub fn check() -> core::result::Result<(), (u32, Untied)> {
    let ways = ROWS.lock().ways();
    check_ways(&ways)
}

fn check_ways(ways: &[(u32, Way)]) -> core::result::Result<(), (u32, Untied)> {
    let has_row = |wanted: u32| ways.binary_search_by_key(&wanted, |(number, _)| *number).is_ok();
    for (number, way) in ways {
        let Way::Node(node) = way else { continue };
        let node = node.clone().ok_or((*number, Untied::NodeGone))?;
        let root = climb(node, |_, _| {}).ok_or((*number, Untied::Circle))?;
        if !root.own_handle().is_some_and(has_row) {
            return Err((*number, Untied::Rootless));
        }
    }
    Ok(())
}

/// The root above a node: the first on the way up that has no name. Those `passed` have one, in the next. None: the way is a circle.
pub fn climb(node: Arc<dyn Node>, mut passed: impl FnMut(Arc<dyn Node>, Box<[u8]>)) -> Option<Arc<dyn Node>> {
    let (mut at, mut depth) = (node, 0);
    while let Some(Named { dir, name }) = at.named() {
        passed(mem::replace(&mut at, dir), name);
        depth += 1;
        if depth > DEPTH_MAX {
            return None;
        }
    }
    Some(at)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::handles;

    /// A node that is nothing but its place.
    pub(crate) struct Bare {
        pub(crate) dir: Option<Arc<Bare>>,
        pub(crate) own: Option<u32>,
    }

    impl Node for Bare {
        fn named(&self) -> Option<Named> {
            Some(Named { dir: self.dir.clone()?, name: b"name"[..].into() })
        }

        fn own_handle(&self) -> Option<u32> {
            self.own
        }

        fn root_handle(&self) -> Option<u32> {
            None
        }

        fn is_by_name(&self, _now: &HostStat) -> bool {
            true
        }

        fn note(&self, _now: &HostStat) {}

        fn is_noted(&self, _now: &HostStat) -> bool {
            true
        }
    }

    fn row(origin: Origin) -> Option<Row> {
        Some(Row { origin, charge: handles::charge_unbounded() })
    }

    #[test]
    fn rows_are_found_by_number_and_pieces_go_back() {
        let mut table = Table::new();
        for number in [0, 63, 64, 1000] {
            *table.place(number).unwrap() = row(Origin::Watch);
        }
        assert_eq!(table.rows().map(|(number, _)| number).collect::<Vec<_>>(), [0, 63, 64, 1000]);
        assert!(table.row(65).is_some_and(|row| row.is_none()) && table.row(500).is_none());
        for number in [64, 1000] {
            *table.row(number).unwrap() = None;
        }
        table.trim();
        assert_eq!((table.0.len(), table.rows().count()), (1, 2));
    }

    #[test]
    fn a_row_ends_once_and_its_charge_with_who_takes_it() {
        let tie = Tie::begin(4_000_001, handles::charge_unbounded(), Origin::Unnamed).unwrap();
        tie.set_origin(Origin::Watch);
        assert!(tie.with(|row| matches!(row.origin, Origin::Watch)).unwrap());
        assert!(tie.end().is_some() && tie.end().is_none());
        assert!(tie.with(|_| ()).is_none());
    }

    #[test]
    fn options_that_add_are_kept_beside_each_other_and_end_by_value() {
        let mut socket = SocketOrigin::default();
        let some = |name, value: &[u8]| SetOption::new(0, name, value);
        let option = |name, value: &[u8]| SetOption::new(0, name, value).unwrap();
        socket.set(some(2, &[1]), OptionEffect::Replaces);
        socket.set(some(2, &[0]), OptionEffect::Replaces);
        for group in [7, 8] {
            socket.set(some(35, &[group]), OptionEffect::Adds);
        }
        assert_eq!(socket.options, [option(2, &[0]), option(35, &[7]), option(35, &[8])]);
        socket.set(some(36, &[7]), OptionEffect::Ends(35));
        assert_eq!(socket.options, [option(2, &[0]), option(35, &[8])]);
        // Told in other words than those it began with.
        socket.set(some(36, &[8, 0]), OptionEffect::Ends(35));
        assert_eq!(socket.options.last(), Some(&option(36, &[8, 0])));
        assert!(!socket.is_incomplete);
        (0..300).for_each(|_| socket.set(some(35, &[1]), OptionEffect::Adds));
        assert!(socket.is_incomplete && socket.options.len() == OPTIONS_MAX);
    }

    #[test]
    fn a_node_without_a_way_from_a_handle_is_found() {
        let root = Arc::new(Bare { dir: None, own: Some(10) });
        let file: Arc<dyn Node> = Arc::new(Bare { dir: Some(root), own: None });
        let mut table = Table::new();
        let origin = Origin::Node { node: Arc::downgrade(&file), flags: 0, is_lower: false };
        *table.place(11).unwrap() = row(origin);
        assert_eq!(check_ways(&table.ways()), Err((11, Untied::Rootless)));
        let given = Given::Mount { container: 0, path: b"/"[..].into(), at: 0, is_lower: false };
        *table.place(10).unwrap() = row(Origin::Given(given));
        assert_eq!(check_ways(&table.ways()), Ok(()));
        drop(file);
        assert_eq!(check_ways(&table.ways()), Err((11, Untied::NodeGone)));
    }
}
