//! Which pages of a file come into the page cache, and in which order: seen by an eBPF program on the tracepoint
//! `filemap/mm_filemap_add_to_page_cache` (SnapBPF, "capture"). Whoever wants to know which pages of a snapshot a request needs has them read
//! from a file that nothing of is cached, with read-ahead off.
//!
//! It takes `CAP_SYS_ADMIN`, with which tracefs is looked at and the program loaded, and which the process that runs a sandbox has not.

mod program;

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{self, Mode, OFlags};
use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags};

use self::program::{EVENT_BYTES, Fields, Instruction};
use crate::page::PageId;

const TRACEPOINT: &str = "events/filemap/mm_filemap_add_to_page_cache";
/// Bytes of the ring; a fill takes 24 of them.
const RING_BYTES: usize = 1 << 20;
const PAGE: usize = 4096;

/// Why fills of the page cache cannot be seen.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Something that the host was asked for.
    #[error("cannot {what}: {source}")]
    Host {
        /// The thing that it was asked for.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// The fields are not those that are known.
    #[error("cannot read the tracepoint: it has other fields than are known")]
    Format,
    /// Pages were read, and no fill was seen.
    #[error(
        "cannot see a file's pages come into the cache: they come into that of another one, or there is none"
    )]
    Unseen,
}

fn failed(what: &'static str) -> CaptureError {
    CaptureError::Host { what, source: io::Error::last_os_error() }
}

/// The fills that were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fills {
    /// Pages in the order in which they came; each once.
    pub pages: Vec<PageId>,
    /// Fills that were seen and not noted, for want of room.
    pub lost: u64,
}

/// A capture of one file's fills, from when it is made until it is dropped.
#[derive(Debug)]
pub struct Capture {
    ring: Ring,
    lost: OwnedFd,
    // The program runs as long as this is open.
    _event: OwnedFd,
}

impl Capture {
    /// Begins to see the fills of a file.
    pub fn begin(file: &File) -> Result<Self, CaptureError> {
        let host = |what| move |source: io::Error| CaptureError::Host { what, source };
        let found = file.metadata().map_err(host("look at the file"))?;
        let (format, id) = tracepoint()?;
        let fields = Fields::parse(&format).ok_or(CaptureError::Format)?;
        let ring = Ring::new()?;
        let lost = map(MAP_ARRAY, 4, 8, 1)?;
        let device = kernel_device(found.dev());
        let code = program::program(&fields, (device, found.ino()), ring.fd.as_raw_fd(), lost.as_raw_fd());
        let program = load(&code)?;
        let event = attach(&program, id)?;
        Ok(Self { ring, lost, _event: event })
    }

    /// The fills since it began, or was asked last.
    pub fn take(&mut self) -> Result<Fills, CaptureError> {
        let mut fills = Fills { pages: Vec::new(), lost: self.take_lost()? };
        let mut seen = std::collections::BTreeSet::new();
        for (index, order) in self.ring.take() {
            let pages = (index..).take(1 << order.min(10)).filter_map(|page| PageId::try_from(page).ok());
            fills.pages.extend(pages.filter(|page| seen.insert(*page)));
        }
        Ok(fills)
    }

    fn take_lost(&self) -> Result<u64, CaptureError> {
        let (key, mut value) = (0_u32, 0_u64);
        let attr = ElementAttr {
            map: self.lost.as_raw_fd().cast_unsigned(),
            pad: 0,
            key: (&raw const key) as u64,
            value: (&raw mut value) as u64,
            flags: 0,
        };
        bpf(MAP_LOOKUP, &attr).map_err(|_| failed("read the count of lost events"))?;
        let lost = value;
        value = 0;
        let attr = ElementAttr { value: (&raw mut value) as u64, ..attr };
        bpf(MAP_UPDATE, &attr).map_err(|_| failed("reset the count of lost events"))?;
        Ok(lost)
    }
}

/// Whether fills of files in a directory can be seen: reads a page of a file that is made there and goes again.
pub fn check(directory: impl AsFd) -> Result<(), CaptureError> {
    let host = |what| move |error: rustix::io::Errno| CaptureError::Host { what, source: error.into() };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR).map_err(host("make a file"))?;
    let file = File::from(file);
    fs::ftruncate(&file, PAGE as u64).map_err(host("make a file"))?;
    let mut capture = Capture::begin(&file)?;
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 0)
        .map_err(|source| CaptureError::Host { what: "read a file", source })?;
    if capture.take()?.pages == [0] { Ok(()) } else { Err(CaptureError::Unseen) }
}

/// The number of a device as the host's kernel has it in itself.
fn kernel_device(dev: u64) -> u32 {
    rustix::fs::major(dev) << 20 | rustix::fs::minor(dev)
}

/// The tracepoint's fields, and its number, from a mount of tracefs that nobody else sees.
fn tracepoint() -> Result<(String, u64), CaptureError> {
    let host = |what| move |error: rustix::io::Errno| CaptureError::Host { what, source: error.into() };
    let context = mount::fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(host("open tracefs"))?;
    mount::fsconfig_create(context.as_fd()).map_err(host("open tracefs"))?;
    let root =
        mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
            .map_err(host("mount tracefs"))?;
    let read = |name: &str| {
        let path = format!("{TRACEPOINT}/{name}");
        let file = fs::openat(&root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = File::from(file.map_err(host("find the tracepoint"))?);
        io::read_to_string(file).map_err(|source| CaptureError::Host { what: "read the tracepoint", source })
    };
    let id = read("id")?.trim().parse().map_err(|_| CaptureError::Format)?;
    Ok((read("format")?, id))
}

// ---- bpf(2) ----

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const PROGRAM_LOAD: libc::c_int = 5;
const MAP_ARRAY: u32 = 2;
const MAP_RING: u32 = 27;
const PROGRAM_TRACEPOINT: u32 = 5;

#[repr(C)]
struct MapAttr {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ElementAttr {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramAttr {
    kind: u32,
    count: u32,
    code: u64,
    licence: u64,
    log: [u32; 2],
    log_at: u64,
    version: u32,
    flags: u32,
}

/// A call with attributes that are all of integers, and whose addresses are of values that live through it.
fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads as many bytes as it is told; the callers' attributes name memory of theirs alone.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attr), size_of::<T>()) };
    i32::try_from(result).ok().filter(|result| *result >= 0).ok_or_else(io::Error::last_os_error)
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just made it, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn map(kind: u32, key: u32, value: u32, entries: u32) -> Result<OwnedFd, CaptureError> {
    bpf(MAP_CREATE, &MapAttr { kind, key, value, entries }).map(owned).map_err(|_| failed("make an eBPF map"))
}

fn load(code: &[Instruction]) -> Result<OwnedFd, CaptureError> {
    let attr = ProgramAttr {
        kind: PROGRAM_TRACEPOINT,
        count: u32::try_from(code.len()).unwrap_or(u32::MAX),
        code: code.as_ptr() as u64,
        licence: c"Dual MIT/GPL".as_ptr() as u64,
        log: [0; 2],
        log_at: 0,
        version: 0,
        flags: 0,
    };
    bpf(PROGRAM_LOAD, &attr).map(owned).map_err(|_| failed("load an eBPF program"))
}

/// Has a program run at each hit of a tracepoint, on all processors, as long as the result is open.
fn attach(program: &OwnedFd, id: u64) -> Result<OwnedFd, CaptureError> {
    const TRACEPOINT: u32 = 2;
    const SET_BPF: libc::c_ulong = 0x4004_2408;
    const ENABLE: libc::c_ulong = 0x2400;
    // `struct perf_event_attr` (perf_event_open(2)), version 0: type, size, config; all else is 0.
    let mut attr = [0_u64; 8];
    attr[0] = u64::from(TRACEPOINT) | (size_of_val(&attr) as u64) << 32;
    attr[1] = id;
    // One sample each; none is looked at.
    attr[2] = 1;
    let flags = 1 << 3;
    // SAFETY: the kernel reads the attributes; the numbers say: any process, on the first processor.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), -1, 0, -1, flags) };
    let event = i32::try_from(fd)
        .ok()
        .filter(|fd| *fd >= 0)
        .map(owned)
        .ok_or_else(|| failed("open the tracepoint"))?;
    for (request, argument) in [(SET_BPF, program.as_raw_fd()), (ENABLE, 0)] {
        // SAFETY: both requests take an integer.
        if unsafe { libc::ioctl(event.as_raw_fd(), request, argument) } < 0 {
            return Err(failed("attach the eBPF program"));
        }
    }
    Ok(event)
}

/// A ring of events (`BPF_MAP_TYPE_RINGBUF`): a page with our position, one with the kernel's, and the events, twice in a row.
#[derive(Debug)]
struct Ring {
    fd: OwnedFd,
    /// How far it has been read.
    at: u64,
    ours: *mut c_void,
    theirs: *mut c_void,
}

// SAFETY: the mappings are this value's alone, and it is used by one thread at a time.
unsafe impl Send for Ring {}

const THEIRS_BYTES: usize = PAGE + 2 * RING_BYTES;
/// Bits of an event's first word: it is being written, it was given up.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEAD_BYTES: u64 = 8;

impl Ring {
    fn new() -> Result<Self, CaptureError> {
        let fd = map(MAP_RING, 0, 0, u32::try_from(RING_BYTES).unwrap_or(u32::MAX))?;
        let show = |len: usize, prot, at: usize| {
            let at = libc::off_t::try_from(at).unwrap_or(0);
            // SAFETY: a new mapping that replaces nothing.
            let place =
                unsafe { libc::mmap(ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), at) };
            if place == libc::MAP_FAILED {
                return Err(failed("map the ring"));
            }
            // What is forked later, and may be taken over, does not have it.
            // SAFETY: the range is that of the new mapping.
            if unsafe { libc::madvise(place, len, libc::MADV_DONTFORK) } < 0 {
                return Err(failed("keep the ring from children"));
            }
            Ok(place)
        };
        let ours = show(PAGE, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let theirs = show(THEIRS_BYTES, libc::PROT_READ, PAGE)?;
        Ok(Self { fd, at: 0, ours, theirs })
    }

    /// The events that are there: index and order of a fill.
    fn take(&mut self) -> Vec<(u64, u64)> {
        // SAFETY: the first words of both pages are positions, which both sides reach by atomics alone.
        let (ours, theirs) = unsafe { (&*self.ours.cast::<AtomicU64>(), &*self.theirs.cast::<AtomicU64>()) };
        let data = self.theirs.cast::<u8>().wrapping_add(PAGE);
        let mut events = Vec::new();
        while self.at < theirs.load(Ordering::Acquire) {
            let inside = usize::try_from(self.at).unwrap_or(0) % RING_BYTES;
            let event = data.wrapping_add(inside);
            // SAFETY: events begin at multiples of eight in the ring, which is mapped twice: none leaves the mapping.
            let head = unsafe { &*event.cast::<AtomicU32>() }.load(Ordering::Acquire);
            if head & BUSY != 0 {
                break;
            }
            let len = u64::from(head & !DISCARDED);
            if head & DISCARDED == 0 && len == u64::from(EVENT_BYTES.cast_unsigned()) {
                // SAFETY: as above; a finished event does not change until our position has passed it.
                let [index, order] = unsafe { event.add(8).cast::<[u64; 2]>().read() };
                events.push((index, order));
            }
            self.at += (HEAD_BYTES + len).next_multiple_of(8);
            ours.store(self.at, Ordering::Release);
        }
        events
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mappings are this value's.
        unsafe {
            libc::munmap(self.ours, PAGE);
            libc::munmap(self.theirs, THEIRS_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// A file of these pages of which nothing is cached, or why fills cannot be seen here.
    fn cold(dir: &testdir::TempDir, pages: usize) -> Result<File, CaptureError> {
        let directory = File::open(dir.path()).unwrap();
        check(&directory)?;
        let path = dir.path().join("pages");
        std::fs::write(&path, vec![7; pages * PAGE]).unwrap();
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        fs::fadvise(&file, 0, None, fs::Advice::DontNeed).unwrap();
        fs::fadvise(&file, 0, None, fs::Advice::Random).unwrap();
        Ok(file)
    }

    #[test]
    fn what_is_read_of_a_cold_file_is_seen_once_in_order() {
        let dir = testdir::TempDir::new();
        let file = match cold(&dir, 64) {
            Ok(file) => file,
            // Without the right to it there is one sentence, and nothing to test.
            Err(error) => return assert!(error.to_string().starts_with("cannot "), "{error}"),
        };
        let mut capture = Capture::begin(&file).unwrap();
        let mut byte = [0];
        for page in [9_u64, 3, 40, 9, 3] {
            file.read_exact_at(&mut byte, page * PAGE as u64).unwrap();
        }
        assert_eq!(capture.take().unwrap(), Fills { pages: vec![9, 3, 40], lost: 0 });
        assert_eq!(capture.take().unwrap(), Fills::default());
        drop(capture);
        file.read_exact_at(&mut byte, 0).unwrap();
        // Another file's are not.
        let other = dir.path().join("other");
        std::fs::write(&other, [0; 100]).unwrap();
        let mut capture = Capture::begin(&File::open(&other).unwrap()).unwrap();
        file.read_exact_at(&mut byte, 63 * PAGE as u64).unwrap();
        assert_eq!(capture.take().unwrap(), Fills::default());
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let dir = testdir::TempDir::new();
        let pages = RING_BYTES / 24 + 1000;
        let file = match cold(&dir, pages) {
            Ok(file) => file,
            Err(error) => return assert!(error.to_string().starts_with("cannot "), "{error}"),
        };
        let mut capture = Capture::begin(&file).unwrap();
        let mut byte = [0];
        for page in 0..pages as u64 {
            file.read_exact_at(&mut byte, page * PAGE as u64).unwrap();
        }
        let fills = capture.take().unwrap();
        assert!(fills.lost > 0, "{} pages were seen", fills.pages.len());
        assert_eq!(fills.pages.len() as u64 + fills.lost, pages as u64);
    }
}
