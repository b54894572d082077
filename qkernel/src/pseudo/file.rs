//! Open text files and directories of pseudo file systems.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::changes::Seen;
use crate::fs::file::{At, DirEntry, File, FileOps, Whence};
use crate::fs::inode::{Inode, S_IFDIR, Stat};
use crate::fs::poll::PollTable;
use crate::pseudo::{Context, InodeNumbers, Kind, Node, child_ino, dirent_type};
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;
use machine::sched::work;
use machine::sync::{Mutex, Rank};

/// Most bytes one write hands to a file.
const STORE_MAX_BYTES: usize = 4096;

/// A piece of a text.
struct Piece {
    /// Where it begins in the text, in bytes.
    start: u64,
    bytes: Vec<u8>,
    /// Where the next one begins, in terms of who makes it.
    next: Option<u64>,
}

impl Piece {
    /// Returns the piece's bytes from an offset in the text on; `None`: the offset lies before the piece.
    fn from(&self, offset: u64) -> Option<&[u8]> {
        let skip = offset.checked_sub(self.start)?;
        Some(usize::try_from(skip).ok().and_then(|skip| self.bytes.get(skip..)).unwrap_or_default())
    }
}

/// Which piece has to be made next for a reader at an offset: where it begins in the text, and for who makes it. `None`: the one that
/// there is has what is read, or is the last.
fn needed(piece: Option<&Piece>, offset: u64) -> Option<(u64, u64)> {
    let known = piece.and_then(|piece| Some((piece, piece.from(offset)?)));
    match known {
        None => Some((0, 0)),
        Some((piece, [])) => piece.next.map(|next| (piece.start + piece.bytes.len() as u64, next)),
        Some(_) => None,
    }
}

/// Work for a piece, beside that for its entries.
const PIECE_UNITS: u32 = 16;

/// An open text file. The text is made by the first read at offset 0 and stays for the reads that follow; a long one is made in
/// pieces, each of which stays until the next is read. Who goes back in it has it made anew from the beginning.
///
/// Opening a guarded file checks the reader against the object at that time. Once the object is something else (a
/// process runs another program, perhaps as another user) the file is empty.
pub struct TextFile<C: Context> {
    node: Arc<Node<C>>,
    generation: u32,
    text: Mutex<Option<Piece>>,
    /// Of a text whose changes can be polled for.
    seen: Option<Seen>,
}

impl<C: Context> TextFile<C> {
    pub(super) fn new(node: Arc<Node<C>>, generation: u32, seen: Option<Seen>) -> Self {
        Self { node, generation, text: Mutex::new(Rank::Text, None), seen }
    }
}

impl<C: Context> TextFile<C> {
    fn is_stale(&self) -> bool {
        self.node.is_guarded() && self.node.cx.generation() != self.generation
    }

    /// Makes the piece of the text that begins at the offset `start`.
    fn make(&self, start: u64, from: u64) -> Result<Piece> {
        let nothing = || Piece { start, bytes: Vec::new(), next: None };
        if self.is_stale() {
            return Ok(nothing());
        }
        let (bytes, next) = self.node.show(from)?;
        // The object may have become something else meanwhile.
        Ok(if self.is_stale() { nothing() } else { Piece { start, bytes, next } })
    }
}

impl<C: Context> FileOps for TextFile<C> {
    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        // Serialises readers; the position's own lock is held only briefly, since making the text may read positions
        // (`fdinfo`), this file's included.
        let mut text = self.text.lock();
        let offset = at.from(*file.pos.lock());
        if offset == 0 {
            *text = None;
        }
        while let Some((start, from)) = needed(text.as_ref(), offset) {
            // On the way to an offset that is far ahead there may be many.
            work::count_or_end(PIECE_UNITS)?;
            *text = None;
            *text = Some(self.make(start, from)?);
        }
        let rest = text.as_ref().and_then(|piece| piece.from(offset)).unwrap_or_default();
        let len = rest.len().min(buf.remaining());
        buf.fill(&rest[..len])?;
        if at.moves() {
            *file.pos.lock() = offset + len as u64;
        }
        Ok(len)
    }

    fn write(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        let len = buf.remaining();
        if len > STORE_MAX_BYTES {
            return Err(Errno::EINVAL);
        }
        let mut bytes = vec![0u8; len];
        buf.drain(&mut bytes)?;
        if self.is_stale() {
            return Err(Errno::EACCES);
        }
        self.node.store(&bytes)?;
        if at.moves() {
            *file.pos.lock() += len as u64;
        }
        Ok(len)
    }

    fn is_polled(&self) -> bool {
        self.seen.is_some()
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        match &self.seen {
            Some(seen) => seen.poll(table),
            None => PollEvents::READABLE | PollEvents::WRITABLE,
        }
    }

    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        seek_plain(file, offset, whence)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    /// `O_TRUNC`, which shells ask for: the text is made anew anyway.
    fn truncate(&self, file: &File, _size: u64) -> Result<()> {
        if file.flags().writable() { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        self.node.stat()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `lseek(2)` where there is no end to seek from.
pub fn seek_plain(file: &File, offset: i64, whence: Whence) -> Result<u64> {
    let mut pos = file.pos.lock();
    let base = match whence {
        Whence::Set => 0,
        Whence::Current => pos.cast_signed(),
        _ => return Err(Errno::EINVAL),
    };
    let to = base.checked_add(offset).and_then(|to| u64::try_from(to).ok()).ok_or(Errno::EINVAL)?;
    *pos = to;
    Ok(to)
}

/// A directory that can be listed.
pub trait Listing: Inode {
    /// Its inode number and its parent's.
    fn numbers(&self) -> InodeNumbers;
    /// An error once the directory is gone.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// Calls `add` for the entries at positions from `from` on (2 is the first), until it answers false.
    fn entries(&self, from: u64, add: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;
}

/// An open directory.
pub struct DirFile<D: Listing> {
    dir: Arc<D>,
}

impl<D: Listing> DirFile<D> {
    /// Opens a directory.
    pub fn new(dir: Arc<D>) -> Self {
        Self { dir }
    }
}

impl<D: Listing> FileOps for DirFile<D> {
    fn read(&self, _file: &File, _buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        // Its size is 0.
        seek_plain(file, offset, if whence == Whence::End { Whence::Set } else { whence })
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn read_dir(&self, file: &File, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.dir.check()?;
        let numbers = self.dir.numbers();
        let mut pos = *file.pos.lock();
        let mut full = false;
        for (at, name, ino) in [(0, &b"."[..], numbers.ino), (1, b"..", numbers.parent)] {
            if pos == at && !full {
                full = !sink(&DirEntry { name, ino, next: at + 1, kind: dirent_type(S_IFDIR) });
                pos = if full { at } else { at + 1 };
            }
        }
        if !full {
            self.dir.entries(pos, &mut |entry| {
                let taken = sink(entry);
                if taken {
                    pos = entry.next;
                }
                taken
            })?;
        }
        *file.pos.lock() = pos;
        Ok(())
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        self.dir.stat()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<C: Context> Listing for Node<C> {
    fn numbers(&self) -> InodeNumbers {
        self.numbers
    }

    fn check(&self) -> Result<()> {
        self.cx.check().map_err(|_| Errno::ENOENT)
    }

    fn entries(&self, from: u64, add: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let Kind::Dir(table, more) = &self.entry.kind else { return Err(Errno::ENOTDIR) };
        let skip = usize::try_from(from.saturating_sub(2)).unwrap_or(usize::MAX);
        for (index, entry) in table.iter().enumerate().skip(skip) {
            let name = entry.name.as_bytes();
            let ino = child_ino(self.numbers.ino, name);
            let kind = dirent_type(entry.kind_bits());
            if !add(&DirEntry { name, ino, next: index as u64 + 3, kind }) {
                return Ok(());
            }
        }
        let Some(more) = more else { return Ok(()) };
        let base = table.len() as u64 + 2;
        more.list(&self.cx, from.saturating_sub(base), &mut |item| {
            let ino = child_ino(self.numbers.ino, &item.name);
            let next = base + item.key + 1;
            add(&DirEntry { name: &item.name, ino, next, kind: dirent_type(item.kind) })
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dynamic, Entry, FileSystem, Item, Out};
    use super::*;
    use crate::fs::OpenFlags;
    use crate::fs::inode::CachePolicy;
    use core::sync::atomic::{AtomicU32, Ordering};

    #[derive(Clone)]
    struct Test;
    impl Context for Test {
        fn file_system(&self) -> &'static FileSystem {
            static FS: FileSystem = FileSystem { dev: 77, magic: 1, no_new_names: Errno::EPERM };
            &FS
        }
    }

    static VALUE: AtomicU32 = AtomicU32::new(7);

    fn show(_: &Test, out: &mut Out) -> Result<()> {
        writeln!(out, "value {}", VALUE.load(Ordering::Relaxed));
        Ok(())
    }
    fn store(_: &Test, bytes: &[u8]) -> Result<()> {
        let value = super::super::parse_number(bytes)?;
        VALUE.store(u32::try_from(value).map_err(|_| Errno::EINVAL)?, Ordering::Relaxed);
        Ok(())
    }

    struct Even;
    impl Dynamic<Test> for Even {
        fn find(&self, cx: &Test, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
            let number = super::super::parse_id(name).filter(|n| n % 2 == 0 && *n < 7);
            number.ok_or(Errno::ENOENT)?;
            Ok(Node::new(cx.clone(), &FIXED, dir.child(name)))
        }
        fn list(&self, _: &Test, from: u64, add: &mut dyn FnMut(Item) -> bool) {
            for key in (from.next_multiple_of(2)..7).step_by(2) {
                let name = alloc::format!("{key}").into_bytes();
                if !add(Item { key, name, kind: crate::fs::inode::S_IFREG }) {
                    return;
                }
            }
        }
    }
    static FIXED: Entry<Test> = Entry::fixed("", "fixed\n");
    static TABLE: &[Entry<Test>] = &[Entry::setting("value", show, store), Entry::dir("sub", &[])];
    static LONG: Entry<Test> = Entry::pieces("", show_long);
    static ENDLESS: Entry<Test> = Entry::text("", show_endless);

    /// How often a piece was made.
    static PIECES: AtomicU32 = AtomicU32::new(0);
    const LINES: u64 = 10_000;

    fn show_long(_: &Test, from: u64, out: &mut Out) -> Result<Option<u64>> {
        PIECES.fetch_add(1, Ordering::Relaxed);
        for line in from..LINES {
            if out.is_enough() {
                return Ok(Some(line));
            }
            out.entry()?;
            writeln!(out, "{line:09}");
        }
        Ok(None)
    }

    /// It would not end but for the limit.
    fn show_endless(_: &Test, out: &mut Out) -> Result<()> {
        loop {
            out.entry()?;
            out.push(&[b'x'; 1 << 16]);
        }
    }

    fn open_node(entry: &'static Entry<Test>) -> Arc<File> {
        let node = Node::new(Test, entry, InodeNumbers::ROOT);
        File::new(node.open(OpenFlags::RDWR).unwrap(), OpenFlags::RDWR, None)
    }
    static ROOT: Entry<Test> = Entry::dynamic("", TABLE, &Even);

    fn open(path: &[u8]) -> Arc<File> {
        let root = Node::new(Test, &ROOT, InodeNumbers::ROOT);
        let node: Arc<dyn Inode> = if path.is_empty() { root } else { root.lookup(path).unwrap() };
        File::new(node.open(OpenFlags::RDWR).unwrap(), OpenFlags::RDWR, None)
    }

    fn read(file: &File, at: At, most: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; most];
        let got = file.ops.read(file, &mut IoBuf::kernel(&mut bytes), at).unwrap();
        bytes.truncate(got);
        bytes
    }

    #[test]
    fn a_text_stays_the_same_until_it_is_read_from_the_start_again() {
        let file = open(b"value");
        file.ops.write(&file, &mut IoBuf::constant(b"7\n"), At::Offset(0)).unwrap();
        assert_eq!(read(&file, At::Position, 3), b"val");
        file.ops.write(&file, &mut IoBuf::constant(b"1234"), At::Offset(0)).unwrap();
        assert_eq!(read(&file, At::Position, 99), b"ue 7\n");
        assert_eq!(read(&file, At::Position, 99), b"");
        file.ops.seek(&file, 0, Whence::Set).unwrap();
        assert_eq!(read(&file, At::Position, 99), b"value 1234\n");
        assert_eq!(read(&file, At::Offset(6), 2), b"12");
        assert_eq!(read(&file, At::Offset(u64::MAX), 2), b"");
        assert_eq!(file.ops.write(&file, &mut IoBuf::constant(b"x"), At::Offset(0)), Err(Errno::EINVAL));
    }

    #[test]
    fn a_long_text_is_made_as_far_as_it_is_read() {
        let file = open_node(&LONG);
        assert_eq!(read(&file, At::Position, 10), b"000000000\n");
        assert_eq!(PIECES.swap(0, Ordering::Relaxed), 1);
        let mut text = b"000000000\n".to_vec();
        loop {
            let more = read(&file, At::Position, 999);
            if more.is_empty() {
                break;
            }
            text.extend(more);
        }
        let expected: Vec<u8> =
            (0..LINES).flat_map(|line| alloc::format!("{line:09}\n").into_bytes()).collect();
        assert_eq!(text, expected);
        assert!(PIECES.swap(0, Ordering::Relaxed) < 10);
        // Back, which begins anew, far ahead, and beyond the end.
        assert_eq!(read(&file, At::Offset(15), 10), b"0001\n00000");
        assert_eq!(read(&file, At::Offset(99_990), 99), b"000009999\n");
        assert_eq!(read(&file, At::Offset(u64::MAX), 9), b"");
    }

    #[test]
    fn a_text_without_end_is_an_error() {
        let file = open_node(&ENDLESS);
        let mut bytes = [0; 9];
        let got = file.ops.read(&file, &mut IoBuf::kernel(&mut bytes), At::Position);
        assert_eq!(got, Err(Errno::ENOMEM));
    }

    #[test]
    fn a_listing_goes_on_where_it_was_full_and_agrees_with_stat() {
        let file = open(b"");
        let mut names: Vec<Vec<u8>> = Vec::new();
        for _ in 0..20 {
            let mut room = 2;
            let mut sink = |entry: &DirEntry<'_>| {
                room -= 1;
                if room >= 0 {
                    if entry.name[0] != b'.' {
                        let node = Node::new(Test, &ROOT, InodeNumbers::ROOT).lookup(entry.name).unwrap();
                        assert_eq!(node.stat().unwrap().ino, entry.ino);
                        assert_eq!(dirent_type(node.kind()), entry.kind);
                    }
                    names.push(entry.name.to_vec());
                }
                room >= 0
            };
            file.ops.read_dir(&file, &mut sink).unwrap();
        }
        let expected: Vec<&[u8]> = vec![b".", b"..", b"value", b"sub", b"0", b"2", b"4", b"6"];
        assert_eq!(names, expected);
    }

    #[test]
    fn unknown_names_are_absent_and_read_only_files_refuse_writes() {
        let root = Node::new(Test, &ROOT, InodeNumbers::ROOT);
        for name in [&b"3"[..], b"nothing", b"00"] {
            assert_eq!(root.lookup(name).err(), Some(Errno::ENOENT));
        }
        assert_eq!(root.cache_policy(), CachePolicy::Never);
        let file = open(b"2");
        assert_eq!(file.ops.write(&file, &mut IoBuf::constant(b"x"), At::Position), Err(Errno::EROFS));
        assert_eq!(read(&file, At::Position, 9), b"fixed\n");
    }
}
