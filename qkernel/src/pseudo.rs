//! The framework of `/proc` and `/sys`: trees that are data tables, with text made when it is read.
//!
//! A directory is a table of [`Entry`]s, and may be extended by names that come and go ([`Dynamic`]: process ids,
//! descriptors, CPUs). The functions in a table get a [`Context`], the object they are about, such as one process.
//! Inodes are made by each lookup; their numbers come from their path, so they stay the same.

pub mod file;

use abi::hostcall::HostStatFs;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::caller;
use crate::fs::changes::{Changes, Seen};
use crate::fs::file::{FileOps, OpenFlags};
use crate::fs::inode::{
    AttrChange, CachePolicy, Inode, LinkTarget, NewNode, NodeKind, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, Stat,
};
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::sched::work;
use machine::sync::Once;

pub use file::{DirFile, Listing, TextFile, seek_plain};

/// Inode number of every pseudo file system's root.
pub const ROOT_INO: u64 = 1;
/// Most bytes of one text, which the kernel holds for each open file.
const TEXT_MAX_BYTES: usize = 16 << 20;

/// One pseudo file system.
pub struct FileSystem {
    /// `st_dev`.
    pub dev: u64,
    /// `f_type` of `statfs(2)`.
    pub magic: u64,
    /// The error for an attempt to make a name.
    pub no_new_names: Errno,
}

impl FileSystem {
    /// The answer to `statfs(2)`: the file system stores nothing anywhere.
    pub fn statfs(&self) -> HostStatFs {
        HostStatFs { kind: self.magic, bsize: 4096, namelen: 255, frsize: 4096, ..Default::default() }
    }
}

/// The object that the functions of a table are about.
pub trait Context: Clone + Send + Sync + 'static {
    fn file_system(&self) -> &'static FileSystem;
    /// User and group the files belong to.
    fn owner(&self) -> (u32, u32) {
        (0, 0)
    }
    /// User and group of the directories that all may look into.
    fn owner_of_public(&self) -> (u32, u32) {
        self.owner()
    }
    /// The current task is, or belongs to, the object.
    fn is_callers(&self) -> bool {
        false
    }
    /// An error once the object is gone.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// An error when the current task may not look into it (entries that are `guarded`).
    fn guard(&self) -> Result<()> {
        Ok(())
    }
    /// Changes when readers that were let in before must be checked again (see [`Self::guard`]).
    fn generation(&self) -> u32 {
        0
    }
    /// The files' times.
    fn time_ns(&self) -> i64 {
        start_time_ns()
    }
    /// `st_size` of links.
    fn link_size(&self) -> u64 {
        0
    }
    /// The error for a write to a text without settings.
    fn refusal(&self) -> Errno {
        Errno::EROFS
    }
    /// Whether names in static directories may go away.
    fn is_fleeting(&self) -> bool {
        false
    }
}

/// When the sandbox started, near enough.
fn start_time_ns() -> i64 {
    static START: Once<i64> = Once::new();
    *START.call_once(|| machine::time::realtime_ns().cast_signed())
}

/// Text being made. `write!` to it returns no error: once there is no room for something, all that follows is dropped, the next
/// [`Out::entry`] fails, and so does the whole.
#[derive(Default)]
pub struct Out {
    pub bytes: Vec<u8>,
    /// There was no memory for all of it, or it is too long.
    is_short: bool,
    /// Bytes that have been counted as work.
    counted: usize,
}

/// Bytes that are enough for a piece of a text.
const PIECE_BYTES: usize = 16 << 10;

impl Out {
    /// For `write!`.
    pub fn write_fmt(&mut self, args: core::fmt::Arguments<'_>) {
        let _ = core::fmt::Write::write_fmt(self, args);
    }

    /// Adds bytes as they are.
    pub fn push(&mut self, bytes: &[u8]) {
        let fits = || self.bytes.len() + bytes.len() <= TEXT_MAX_BYTES;
        if !self.is_short && fits() && account::reserve(&mut self.bytes, bytes.len()).is_ok() {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.is_short = true;
        }
    }

    /// The text; `ENOMEM`: there was no memory for all of it.
    pub fn finish(self) -> Result<Vec<u8>> {
        self.check()?;
        Ok(self.bytes)
    }

    /// Adds bytes, with those in `special` and backslashes as octal escapes (`seq_path(9)`).
    pub fn push_escaped(&mut self, bytes: &[u8], special: &[u8]) {
        let is_special = |byte: &u8| *byte == b'\\' || special.contains(byte);
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_short {
            let plain = rest.iter().position(is_special).unwrap_or(rest.len());
            self.push(&rest[..plain]);
            if let Some(byte) = rest.get(plain) {
                write!(self, "\\{byte:03o}");
            }
            rest = rest.get(plain + 1..).unwrap_or_default();
        }
    }

    /// An entry of a list begins, whose length programs choose: others go on now and then. `ENOMEM`: what was made so far did not fit
    /// any more, so that nothing that follows would either; `EINTR`: the task is to end. The caller may sleep.
    pub fn entry(&mut self) -> Result<()> {
        let bytes = self.bytes.len().saturating_sub(self.counted);
        self.counted = self.bytes.len();
        work::count_or_end(u32::try_from(1 + bytes / work::BYTES_A_UNIT).unwrap_or(u32::MAX))?;
        self.check()
    }

    /// Whether it is long enough for a piece.
    pub fn is_enough(&self) -> bool {
        self.bytes.len() >= PIECE_BYTES
    }

    /// `ENOMEM`: something is missing.
    fn check(&self) -> Result<()> {
        if self.is_short { Err(Errno::ENOMEM) } else { Ok(()) }
    }
}

impl core::fmt::Write for Out {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Makes a file's text.
pub type Show<C> = fn(&C, &mut Out) -> Result<()>;
/// Makes a piece of a long text: the entries from a place on, 0 being the first, until [`Out::is_enough`]. The result is the place at
/// which the next piece begins, such as an address or a number in some order; `None`: this was the last.
pub type ShowPiece<C> = fn(&C, u64, &mut Out) -> Result<Option<u64>>;
/// Stores the bytes written to a file, one `write(2)` at a time.
pub type Store<C> = fn(&C, &[u8]) -> Result<()>;

/// The kind of an entry.
pub enum Kind<C: 'static> {
    /// A directory, with names that come and go behind those of the table.
    Dir(&'static [Entry<C>], Option<&'static dyn Dynamic<C>>),
    /// Text that never changes.
    Fixed(&'static str),
    Text(Show<C>),
    /// Text that is made piece by piece, as it is read.
    Pieces(ShowPiece<C>),
    /// Text that is made piece by piece, and the function that finds what tells of its changes.
    Watched(ShowPiece<C>, fn(&C) -> Result<Arc<Changes>>),
    Setting(Show<C>, Store<C>),
    Link(fn(&C) -> Result<LinkTarget>),
    /// A file with operations of its own.
    File(fn(&C, OpenFlags) -> Result<Box<dyn FileOps>>),
}

/// A name in a table.
pub struct Entry<C: 'static> {
    pub name: &'static str,
    /// Permission bits.
    pub mode: u32,
    pub kind: Kind<C>,
    /// Only for tasks that [`Context::guard`] lets in.
    pub guarded: bool,
}

impl<C: 'static> Entry<C> {
    /// A directory anyone may list.
    pub const fn dir(name: &'static str, table: &'static [Self]) -> Self {
        Self { name, mode: 0o555, kind: Kind::Dir(table, None), guarded: false }
    }
    /// A directory with changing names.
    pub const fn dynamic(name: &'static str, table: &'static [Self], more: &'static dyn Dynamic<C>) -> Self {
        Self { name, mode: 0o555, kind: Kind::Dir(table, Some(more)), guarded: false }
    }
    /// A file anyone may read.
    pub const fn text(name: &'static str, show: Show<C>) -> Self {
        Self { name, mode: 0o444, kind: Kind::Text(show), guarded: false }
    }
    /// A file anyone may read, whose length programs choose.
    pub const fn pieces(name: &'static str, show: ShowPiece<C>) -> Self {
        Self { name, mode: 0o444, kind: Kind::Pieces(show), guarded: false }
    }
    /// A file anyone may read, whose length programs choose, and whose changes can be polled for.
    pub const fn watched(
        name: &'static str,
        show: ShowPiece<C>,
        changes: fn(&C) -> Result<Arc<Changes>>,
    ) -> Self {
        Self { name, mode: 0o444, kind: Kind::Watched(show, changes), guarded: false }
    }
    /// A file with this text, always.
    pub const fn fixed(name: &'static str, text: &'static str) -> Self {
        Self { name, mode: 0o444, kind: Kind::Fixed(text), guarded: false }
    }
    /// A file its owner may write.
    pub const fn setting(name: &'static str, show: Show<C>, store: Store<C>) -> Self {
        Self { name, mode: 0o644, kind: Kind::Setting(show, store), guarded: false }
    }
    /// A symbolic link.
    pub const fn link(name: &'static str, target: fn(&C) -> Result<LinkTarget>) -> Self {
        Self { name, mode: 0o777, kind: Kind::Link(target), guarded: false }
    }
    /// Replaces the permission bits.
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }
    /// Restricts the entry to tasks that [`Context::guard`] lets in.
    pub const fn guarded(mut self) -> Self {
        self.guarded = true;
        self
    }
    /// The `S_IFMT` part of its mode.
    pub fn kind_bits(&self) -> u32 {
        match self.kind {
            Kind::Dir(..) => S_IFDIR,
            Kind::Link(_) => S_IFLNK,
            _ => S_IFREG,
        }
    }
}

/// A name in a dynamic directory. `key` orders the names; a listing goes on behind the last key it has seen.
pub struct Item {
    pub key: u64,
    pub name: Vec<u8>,
    /// The `S_IFMT` part of its mode.
    pub kind: u32,
}

/// Names that come and go.
pub trait Dynamic<C>: Sync {
    /// The node of a name in the directory with the numbers `dir`.
    fn find(&self, cx: &C, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>>;
    /// Calls `add` for the names with keys from `from` on, in their order, until it answers false.
    fn list(&self, cx: &C, from: u64, add: &mut dyn FnMut(Item) -> bool);
    /// How many of its entries are directories, for `st_nlink`.
    fn directories(&self, _cx: &C) -> u32 {
        0
    }
    /// `st_size`.
    fn size(&self, _cx: &C) -> u64 {
        0
    }
}

/// The inode numbers of a node and of its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeNumbers {
    pub ino: u64,
    pub parent: u64,
}

impl InodeNumbers {
    /// The numbers of a file system's root.
    pub const ROOT: Self = Self { ino: ROOT_INO, parent: ROOT_INO };

    /// The numbers of a name in this directory.
    pub fn child(self, name: &[u8]) -> Self {
        Self { ino: child_ino(self.ino, name), parent: self.ino }
    }
}

/// An inode number that depends on nothing but the path (FNV-1a, 48 bits).
pub fn child_ino(parent: u64, name: &[u8]) -> u64 {
    let bytes = parent.to_le_bytes();
    let hash = bytes.iter().chain(name).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    ((hash ^ (hash >> 48)) & 0xffff_ffff_ffff).max(2)
}

/// A node of a tree.
pub struct Node<C: Context> {
    pub cx: C,
    entry: &'static Entry<C>,
    numbers: InodeNumbers,
}

impl<C: Context> Node<C> {
    /// The node of `entry` that has these numbers.
    pub fn new(cx: C, entry: &'static Entry<C>, numbers: InodeNumbers) -> Arc<Self> {
        Arc::new(Self { cx, entry, numbers })
    }

    /// Whether it is a node of this entry.
    pub fn is(&self, entry: &'static Entry<C>) -> bool {
        core::ptr::eq(self.entry, entry)
    }

    fn is_guarded(&self) -> bool {
        self.entry.guarded
    }

    /// The text from a place on (see [`ShowPiece`]), and the place where it goes on.
    fn show(&self, from: u64) -> Result<(Vec<u8>, Option<u64>)> {
        self.cx.check()?;
        let mut out = Out::default();
        let mut next = None;
        match &self.entry.kind {
            Kind::Fixed(text) => out.push(text.as_bytes()),
            Kind::Text(show) | Kind::Setting(show, _) => show(&self.cx, &mut out)?,
            Kind::Pieces(show) | Kind::Watched(show, _) => next = show(&self.cx, from, &mut out)?,
            _ => return Err(Errno::EINVAL),
        }
        Ok((out.finish()?, next))
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        self.cx.check()?;
        match &self.entry.kind {
            Kind::Setting(_, store) => store(&self.cx, bytes),
            _ => Err(self.cx.refusal()),
        }
    }

    fn directories(&self) -> u32 {
        let Kind::Dir(table, dynamic) = &self.entry.kind else { return 0 };
        let count = table.iter().filter(|entry| entry.kind_bits() == S_IFDIR).count();
        u32::try_from(count).unwrap_or(0) + dynamic.map_or(0, |dynamic| dynamic.directories(&self.cx))
    }
}

impl<C: Context> Inode for Node<C> {
    fn stat(&self) -> Result<Stat> {
        let is_dir = self.kind() == S_IFDIR;
        let is_public = is_dir && self.entry.mode == 0o555;
        let (uid, gid) = if is_public { self.cx.owner_of_public() } else { self.cx.owner() };
        let time = self.cx.time_ns();
        Ok(Stat {
            dev: self.cx.file_system().dev,
            ino: self.numbers.ino,
            mode: self.kind() | self.entry.mode,
            nlink: if is_dir { 2 + self.directories() } else { 1 },
            uid,
            gid,
            size: match &self.entry.kind {
                Kind::Link(_) => self.cx.link_size(),
                Kind::Dir(_, Some(more)) => more.size(&self.cx),
                _ => 0,
            },
            blksize: 1024,
            atime_ns: time,
            mtime_ns: time,
            ctime_ns: time,
            btime_ns: 0,
            ..Default::default()
        })
    }

    fn protection(&self) -> Result<Stat> {
        let mut stat = self.stat()?;
        // Its own descriptors are a process's whoever it has become.
        if self.entry.guarded && stat.is_dir() && self.cx.is_callers() {
            stat.uid = caller::current().creds().fsuid;
        }
        Ok(stat)
    }

    fn kind(&self) -> u32 {
        self.entry.kind_bits()
    }

    fn cache_policy(&self) -> CachePolicy {
        match &self.entry.kind {
            Kind::Dir(_, None) if !self.cx.is_fleeting() => CachePolicy::Trust,
            _ => CachePolicy::Never,
        }
    }

    fn create(&self, _name: &[u8], _kind: NodeKind, _new: NewNode) -> Result<Arc<dyn Inode>> {
        Err(self.cx.file_system().no_new_names)
    }

    fn mkdir(&self, _name: &[u8], _new: NewNode) -> Result<Arc<dyn Inode>> {
        Err(self.cx.file_system().no_new_names)
    }

    fn symlink(&self, _name: &[u8], _target: &[u8], _new: NewNode) -> Result<Arc<dyn Inode>> {
        Err(self.cx.file_system().no_new_names)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let Kind::Dir(table, more) = &self.entry.kind else { return Err(Errno::ENOTDIR) };
        self.cx.check().map_err(|_| Errno::ENOENT)?;
        if let Some(entry) = table.iter().find(|entry| entry.name.as_bytes() == name) {
            return Ok(Self::new(self.cx.clone(), entry, self.numbers.child(name)));
        }
        match more {
            Some(more) => more.find(&self.cx, self.numbers, name),
            None => Err(Errno::ENOENT),
        }
    }

    fn readlink(&self) -> Result<LinkTarget> {
        let Kind::Link(target) = &self.entry.kind else { return Err(Errno::EINVAL) };
        self.cx.check().map_err(|_| Errno::ENOENT)?;
        // A process that has given up its memory leads nowhere.
        let guard = || {
            let checked = if self.entry.guarded { self.cx.guard() } else { Ok(()) };
            checked.map_err(|error| if error == Errno::ESRCH { Errno::ENOENT } else { error })
        };
        guard()?;
        let found = target(&self.cx)?;
        // The target may belong to a process that has become another user's since the first check.
        guard()?;
        Ok(found)
    }

    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        // `O_TRUNC` and `touch` do nothing to a text that is made anew each time.
        if change.mode.is_some() || change.uid.is_some() || change.gid.is_some() {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        self.cx.check()?;
        // Taken first, so that a change after the guard's check shows.
        let generation = self.cx.generation();
        if self.entry.guarded {
            self.cx.guard()?;
        }
        match &self.entry.kind {
            Kind::Dir(..) => Ok(Box::new(DirFile::new(self))),
            Kind::Link(_) => Err(Errno::ELOOP),
            Kind::File(open) => open(&self.cx, flags),
            Kind::Watched(_, changes) => {
                let seen = Some(Seen::of(changes(&self.cx)?));
                Ok(Box::new(TextFile::new(self, generation, seen)))
            }
            _ => Ok(Box::new(TextFile::new(self, generation, None))),
        }
    }

    fn statfs(&self) -> Result<HostStatFs> {
        Ok(self.cx.file_system().statfs())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `DT_*` of an `S_IFMT` value.
pub fn dirent_type(kind: u32) -> u8 {
    ((kind & S_IFMT) >> 12) as u8
}

/// Reads a number as a program writes it: decimal, octal or hexadecimal, white space around it.
pub fn parse_number(bytes: &[u8]) -> Result<i64> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let text = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\0');
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (digits, radix) = match digits.strip_prefix("0x") {
        Some(hex) => (hex, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    let value = i64::from_str_radix(digits, radix).map_err(|_| Errno::EINVAL)?;
    if negative { value.checked_neg().ok_or(Errno::EINVAL) } else { Ok(value) }
}

/// Reads a name that is a plain decimal number without leading zeros, as process ids and descriptors are.
pub fn parse_id(name: &[u8]) -> Option<u32> {
    let plain = !name.is_empty() && name.len() <= 10 && (name[0] != b'0' || name.len() == 1);
    if !plain || !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(name).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_numbers_depend_on_the_whole_path() {
        let a = InodeNumbers::ROOT.child(b"a");
        assert_eq!(a, InodeNumbers::ROOT.child(b"a"));
        assert_ne!(a.ino, InodeNumbers::ROOT.child(b"b").ino);
        assert_ne!(a.child(b"x").ino, InodeNumbers::ROOT.child(b"b").child(b"x").ino);
    }

    #[test]
    fn ids_are_plain_decimal_numbers() {
        assert_eq!(parse_id(b"0"), Some(0));
        assert_eq!(parse_id(b"4294967295"), Some(u32::MAX));
        for bad in [&b""[..], b"01", b"+1", b"4294967296", b"1a", b"99999999999"] {
            assert_eq!(parse_id(bad), None);
        }
    }

    #[test]
    fn numbers_are_read_as_the_kernel_reads_them() {
        assert_eq!(parse_number(b" -17\n"), Ok(-17));
        assert_eq!(parse_number(b"0x10\0"), Ok(16));
        assert_eq!(parse_number(b"010"), Ok(8));
        assert_eq!(parse_number(b"0"), Ok(0));
        assert_eq!(parse_number(b"1 2"), Err(Errno::EINVAL));
    }

    #[test]
    fn escapes_are_octal() {
        let mut out = Out::default();
        out.push_escaped(b"a b\\c", b" ");
        assert_eq!(out.bytes, b"a\\040b\\134c");
    }
}
