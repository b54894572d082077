//! `/proc/PID/{maps,smaps,smaps_rollup}`.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::proc::subject::Subject;
use crate::pseudo::Out;
use crate::task;
use machine::errno::Result;
use machine::mm::report::{Mapping, Pages};
use machine::mm::vma::VmaFlags;
use machine::mm::{AddressSpace, MemoryObject, PAGE, Prot};

/// Column at which a mapping's name begins.
const NAME_COLUMN: usize = 73;

/// Most mappings that are asked for at once.
const AT_ONCE: usize = 64;

/// Adds what `push` makes of each mapping from an address on to a piece; where the next piece begins.
fn push_mappings(
    aspace: &AddressSpace,
    from: u64,
    count_pages: bool,
    out: &mut Out,
    mut push: impl FnMut(&mut Out, &Mapping),
) -> Result<Option<u64>> {
    let mut from = from;
    loop {
        let mappings = aspace.mappings(from, AT_ONCE, count_pages)?;
        for mapping in &mappings {
            out.entry()?;
            push(out, mapping);
            from = mapping.end;
            if out.is_enough() {
                out.entry()?;
                return Ok(Some(from));
            }
        }
        if mappings.len() < AT_ONCE {
            return Ok(None);
        }
    }
}

/// `/proc/PID/maps`.
pub fn maps(subject: &Subject, from: u64, out: &mut Out) -> Result<Option<u64>> {
    let Ok(aspace) = subject.aspace() else { return Ok(None) };
    let stack = aspace.with_layout(|layout| layout.start_stack);
    let root = own_root();
    push_mappings(&aspace, from, false, out, |out, mapping| push_line(out, mapping, stack, &root))
}

/// `/proc/PID/smaps`: each line of `maps` with the sizes of the mapping's resident part.
pub fn smaps(subject: &Subject, from: u64, out: &mut Out) -> Result<Option<u64>> {
    let Ok(aspace) = subject.aspace() else { return Ok(None) };
    let stack = aspace.with_layout(|layout| layout.start_stack);
    let root = own_root();
    push_mappings(&aspace, from, true, out, |out, mapping| {
        push_line(out, mapping, stack, &root);
        push_size(out, "Size", mapping.end - mapping.start);
        push_size(out, "KernelPageSize", PAGE);
        push_size(out, "MMUPageSize", PAGE);
        push_pages(out, &Sums::of(mapping), false);
        writeln!(out, "THPeligible:           0");
        push_vm_flags(out, mapping);
    })
}

/// `/proc/PID/smaps_rollup`: the sums over all mappings.
pub fn smaps_rollup(subject: &Subject, out: &mut Out) -> Result<()> {
    let Ok(aspace) = subject.aspace() else { return Ok(()) };
    let mut sums = Sums::default();
    let (mut start, mut end) = (None, 0);
    loop {
        let mappings = aspace.mappings(end, AT_ONCE, true)?;
        out.entry()?;
        sums = mappings.iter().map(Sums::of).fold(sums, Sums::plus);
        start = start.or(mappings.first().map(|mapping| mapping.start));
        end = mappings.last().map_or(end, |mapping| mapping.end);
        if mappings.len() < AT_ONCE {
            break;
        }
    }
    let Some(start) = start else { return Ok(()) };
    let before = out.bytes.len();
    write!(out, "{start:08x}-{end:08x} ---p 00000000 00:00 0 ");
    pad(out, before);
    out.push(b"[rollup]\n");
    push_pages(out, &sums, true);
    Ok(())
}

/// `/proc/PID/numa_maps`: the policy of each mapping, and its resident pages, which are all of the one node.
pub fn numa_maps(subject: &Subject, from: u64, out: &mut Out) -> Result<Option<u64>> {
    let Ok(aspace) = subject.aspace() else { return Ok(None) };
    let stack = aspace.with_layout(|layout| layout.start_stack);
    let own = subject.task().map_or(0, |task| task.mempolicy.load(Ordering::Relaxed));
    let root = own_root();
    push_mappings(&aspace, from, true, out, |out, mapping| push_numa_line(out, mapping, own, stack, &root))
}

/// `own`: the mode of the thread's policy, with its flags, which counts for mappings without one.
fn push_numa_line(out: &mut Out, mapping: &Mapping, own: u32, start_stack: u64, root: &[u8]) {
    const MODES: [&str; 8] = [
        "default",
        "prefer:0",
        "bind:0",
        "interleave:0",
        "local",
        "prefer (many):0",
        "weighted interleave:0",
        "default",
    ];
    let mode = if mapping.flags.policy() != 0 { mapping.flags.policy() } else { own };
    write!(out, "{:08x} {}", mapping.start, MODES[(mode & 7) as usize]);
    let label = mapping.object.as_ref().and_then(MemoryObject::label).map(|name| seen_from(name, root));
    match name_of(mapping, label, start_stack) {
        b"[heap]" if mapping.object.is_none() => out.push(b" heap"),
        b"[stack]" if mapping.object.is_none() => out.push(b" stack"),
        name if mapping.object.is_some() && !name.is_empty() => {
            out.push(b" file=");
            out.push_escaped(name, b"\n\t= ");
        }
        _ => {}
    }
    let Sums { pages, anonymous, .. } = Sums::of(mapping);
    let resident = pages.resident();
    if anonymous != 0 {
        write!(out, " anon={anonymous} dirty={anonymous}");
    }
    if anonymous != resident {
        write!(out, " mapped={resident}");
    }
    if resident != 0 {
        write!(out, " N0={resident} kernelpagesize_kB={}", PAGE / 1024);
    }
    out.push(b"\n");
}

/// The path of the reader's root directory. Mappings keep the name from the tree's root that they were given, so a file
/// below the reader's root is shown by its name from there.
pub(super) fn own_root() -> Vec<u8> {
    task::current().fs.get().root().absolute()
}

/// A name from the tree's root as a reader sees it whose root is at `root`; the name of a file elsewhere stays as it
/// is.
pub(super) fn seen_from<'a>(name: &'a [u8], root: &[u8]) -> &'a [u8] {
    name.strip_prefix(root).filter(|rest| root != b"/" && rest.starts_with(b"/")).unwrap_or(name)
}

fn pad(out: &mut Out, line_start: usize) {
    // The bytes are counted before they are written: bytes that do not fit are dropped.
    for _ in out.bytes.len().saturating_sub(line_start)..NAME_COLUMN {
        out.push(b" ");
    }
}

fn push_line(out: &mut Out, mapping: &Mapping, start_stack: u64, root: &[u8]) {
    let flag = |prot, letter: char| if mapping.prot.contains(prot) { letter } else { '-' };
    let before = out.bytes.len();
    let label = mapping.object.as_ref().and_then(MemoryObject::label).map(|name| seen_from(name, root));
    let (dev, ino) = mapping.object.as_ref().map_or((0, 0), MemoryObject::identity);
    let offset = if mapping.object.is_some() { mapping.offset } else { 0 };
    write!(
        out,
        "{:08x}-{:08x} {}{}{}{} {offset:08x} {:02x}:{:02x} {ino} ",
        mapping.start,
        mapping.end,
        flag(Prot::READ, 'r'),
        flag(Prot::WRITE, 'w'),
        flag(Prot::EXEC, 'x'),
        if mapping.flags.contains(VmaFlags::SHARED) { 's' } else { 'p' },
        crate::proc::mounts::major(dev),
        crate::proc::mounts::minor(dev),
    );
    let name = name_of(mapping, label, start_stack);
    if !name.is_empty() {
        pad(out, before);
        out.push_escaped(name, b"\n");
    }
    out.push(b"\n");
}

fn name_of<'a>(mapping: &Mapping, label: Option<&'a [u8]>, start_stack: u64) -> &'a [u8] {
    match (&mapping.object, label) {
        (_, Some(label)) => label,
        (Some(MemoryObject::Store(_)), None) => b"/dev/zero (deleted)",
        (Some(MemoryObject::Host(_)), None) => b"",
        (None, None) if mapping.flags.contains(VmaFlags::SPECIAL) => b"[vdso]",
        (None, None) if mapping.flags.contains(VmaFlags::SLOTS) => b"[calls]",
        (None, None) if mapping.flags.contains(VmaFlags::HEAP) => b"[heap]",
        (None, None) if (mapping.start..mapping.end).contains(&start_stack) => b"[stack]",
        (None, None) => b"",
    }
}

/// Bytes of a mapping in memory, by kind.
#[derive(Clone, Copy, Default)]
struct Sums {
    pages: Pages,
    anonymous: u64,
    locked: u64,
    /// Its share of pages by what they are of: a page that others have, too, counts half.
    share: Share,
}

/// See [`Sums::share`].
#[derive(Clone, Copy, Default)]
struct Share {
    anonymous: u64,
    file: u64,
    memory_file: u64,
}

impl Sums {
    fn of(mapping: &Mapping) -> Self {
        let pages = mapping.pages;
        let is_private = !mapping.flags.contains(VmaFlags::SHARED);
        // Frames of a private mapping of an object are copies, except those still shared with the object.
        let anonymous = match mapping.object {
            None => pages.own + pages.shared,
            Some(_) if is_private => pages.own,
            Some(_) => 0,
        };
        let locked = if mapping.flags.contains(VmaFlags::LOCKED) { pages.resident() } else { 0 };
        let all = pages.own + pages.file + pages.shared / 2;
        let mut share = Share::default();
        match mapping.object {
            None => share.anonymous = all,
            Some(_) if is_private => (share.anonymous, share.file) = (pages.own, all - pages.own),
            Some(MemoryObject::Store(_)) => share.memory_file = all,
            Some(MemoryObject::Host(_)) => share.file = all,
        }
        Self { pages, anonymous, locked, share }
    }

    fn plus(self, other: Self) -> Self {
        let (a, b) = (self.pages, other.pages);
        let pages = Pages {
            own: a.own + b.own,
            shared: a.shared + b.shared,
            file: a.file + b.file,
            swapped: a.swapped + b.swapped,
        };
        let share = Share {
            anonymous: self.share.anonymous + other.share.anonymous,
            file: self.share.file + other.share.file,
            memory_file: self.share.memory_file + other.share.memory_file,
        };
        let (anonymous, locked) = (self.anonymous + other.anonymous, self.locked + other.locked);
        Self { pages, anonymous, locked, share }
    }
}

fn push_size(out: &mut Out, name: &str, bytes: u64) {
    writeln!(out, "{:<16}{:>8} kB", alloc::format!("{name}:"), bytes / 1024);
}

/// The number of processes that share a page isn't known; `Pss` counts a shared page half. `by_kind`: also by what it is of.
fn push_pages(out: &mut Out, sums: &Sums, by_kind: bool) {
    let Sums { pages, anonymous, locked, share } = *sums;
    let first = [
        ("Rss", pages.resident()),
        ("Pss", share.anonymous + share.file + share.memory_file),
        ("Pss_Dirty", pages.own + pages.shared / 2),
        ("Pss_Anon", share.anonymous),
        ("Pss_File", share.file),
        ("Pss_Shmem", share.memory_file),
    ];
    for (name, pages) in first.into_iter().take(if by_kind { 6 } else { 3 }) {
        push_size(out, name, pages * PAGE);
    }
    let lines = [
        ("Shared_Clean", 0),
        ("Shared_Dirty", pages.shared),
        ("Private_Clean", pages.file),
        ("Private_Dirty", pages.own),
        ("Referenced", pages.resident()),
        ("Anonymous", anonymous),
        ("KSM", 0),
        ("LazyFree", 0),
        ("AnonHugePages", 0),
        ("ShmemPmdMapped", 0),
        ("FilePmdMapped", 0),
        ("Shared_Hugetlb", 0),
        ("Private_Hugetlb", 0),
        ("Swap", pages.swapped),
        ("SwapPss", pages.swapped),
        ("Locked", locked),
    ];
    for (name, pages) in lines {
        push_size(out, name, pages * PAGE);
    }
}

fn push_vm_flags(out: &mut Out, mapping: &Mapping) {
    let flags = [
        (mapping.prot.contains(Prot::READ), "rd"),
        (mapping.prot.contains(Prot::WRITE), "wr"),
        (mapping.prot.contains(Prot::EXEC), "ex"),
        (mapping.flags.contains(VmaFlags::SHARED), "sh"),
        (true, "mr mw me"),
        (mapping.flags.contains(VmaFlags::GROWS_DOWN), "gd"),
        (mapping.flags.contains(VmaFlags::LOCKED), "lo"),
        (mapping.flags.contains(VmaFlags::LOCK_ON_FAULT), "lf"),
        (mapping.flags.contains(VmaFlags::DONT_FORK), "dc"),
        (mapping.flags.contains(VmaFlags::DONT_DUMP), "dd"),
        (mapping.flags.contains(VmaFlags::NO_RESERVE), "nr"),
        (mapping.flags.contains(VmaFlags::WIPE_ON_FORK), "wf"),
        (mapping.flags.contains(VmaFlags::SEALED), "sl"),
    ];
    out.push(b"VmFlags: ");
    for (_, name) in flags.iter().filter(|(set, _)| *set) {
        write!(out, "{name} ");
    }
    out.push(b"\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, flags: VmaFlags) -> Mapping {
        let prot = Prot::READ | Prot::WRITE;
        Mapping { start, end, prot, flags, offset: 0x3000, object: None, pages: Pages::default() }
    }

    fn line(mapping: &Mapping) -> alloc::string::String {
        let mut out = Out::default();
        push_line(&mut out, mapping, 0x7ffe_0000_1000, b"/");
        alloc::string::String::from_utf8(out.bytes).unwrap()
    }

    #[test]
    fn lines_of_maps_are_those_of_linux() {
        let heap = mapping(0x55bd_860e_0000, 0x55bd_860e_2000, VmaFlags::HEAP);
        assert_eq!(
            line(&heap),
            "55bd860e0000-55bd860e2000 rw-p 00000000 00:00 0                          [heap]\n"
        );
        let plain = mapping(0x40_0000, 0x40_1000, VmaFlags::empty());
        assert_eq!(line(&plain), "00400000-00401000 rw-p 00000000 00:00 0 \n");
        let stack = mapping(0x7ffe_0000_0000, 0x7ffe_0000_2000, VmaFlags::STACK);
        assert!(line(&stack).ends_with(" [stack]\n"));
    }

    #[test]
    fn lines_of_numa_maps_are_those_of_linux() {
        let numa = |mapping: &Mapping, own| {
            let mut out = Out::default();
            push_numa_line(&mut out, mapping, own, 0x7ffe_0000_1000, b"/");
            alloc::string::String::from_utf8(out.bytes).unwrap()
        };
        let mut heap = mapping(0x55bd_860e_0000, 0x55bd_860e_2000, VmaFlags::HEAP);
        assert_eq!(numa(&heap, 0), "55bd860e0000 default heap\n");
        heap.pages.own = 3;
        assert_eq!(
            numa(&heap, 2 | 1 << 15),
            "55bd860e0000 bind:0 heap anon=3 dirty=3 N0=3 kernelpagesize_kB=4\n"
        );
        let mut plain = mapping(0x40_0000, 0x40_1000, VmaFlags::empty().with_policy(1));
        plain.pages.file = 1;
        assert_eq!(numa(&plain, 2), "00400000 prefer:0 mapped=1 N0=1 kernelpagesize_kB=4\n");
    }

    #[test]
    fn names_begin_at_the_readers_root() {
        assert_eq!(seen_from(b"/a/b/c", b"/"), b"/a/b/c");
        assert_eq!(seen_from(b"/a/b/c", b"/a/b"), b"/c");
        assert_eq!(seen_from(b"/a/bc", b"/a/b"), b"/a/bc");
        assert_eq!(seen_from(b"/x", b"/a/b"), b"/x");
    }

    #[test]
    fn lines_of_smaps_are_those_of_linux() {
        let mut out = Out::default();
        push_size(&mut out, "Private_Hugetlb", 8192);
        push_size(&mut out, "Rss", 0);
        assert_eq!(out.bytes, b"Private_Hugetlb:       8 kB\nRss:                   0 kB\n");
    }

    #[test]
    fn a_private_mapping_counts_its_own_frames_as_anonymous() {
        let mut mapping = mapping(0, 4096, VmaFlags::empty());
        mapping.pages = Pages { own: 3, shared: 2, file: 1, swapped: 4 };
        let sums = Sums::of(&mapping).plus(Sums::of(&mapping));
        assert_eq!((sums.anonymous, sums.pages.resident(), sums.pages.swapped), (10, 12, 8));
    }
}
