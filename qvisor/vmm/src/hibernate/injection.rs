//! Fault injection, in debug builds alone: disks that fail, and a VMM that is killed in the middle of it.
//!
//! `DORMOUSE_SWAP_FAULT` = *kind*[`:`*file*[`:`*call*]] makes a sandbox's disk fail, its `swap`, `reap` or `packed` file or
//! (`any`) all of them, from the given call of that kind on, counted from 1. `DORMOUSE_DIE_AT` names the [`Point`] at which its
//! VMM kills itself.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use abi::report::Report;
use swap::io::{Device, Piece};

/// A disk's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskFault {
    /// `EIO` and `ENOSPC`.
    Write,
    Full,
    Read,
    /// A page a call.
    ShortWrite,
    ShortRead,
    /// Reads change a bit.
    Flip,
}

/// A fault to inject: its kind, its place, and its first occasion.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DiskFaultPlan {
    fault: DiskFault,
    file: Option<&'static str>,
    from_call: u32,
}

impl FromStr for DiskFaultPlan {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(':');
        let fault = match words.next() {
            Some("write") => DiskFault::Write,
            Some("full") => DiskFault::Full,
            Some("read") => DiskFault::Read,
            Some("short-write") => DiskFault::ShortWrite,
            Some("short-read") => DiskFault::ShortRead,
            Some("flip") => DiskFault::Flip,
            _ => return Err(()),
        };
        let file = match words.next() {
            None | Some("any") => None,
            Some("swap") => Some("swap"),
            Some("reap") => Some("reap"),
            Some("packed") => Some("packed"),
            Some(_) => return Err(()),
        };
        let from_call = words.next().map_or(Ok(1), str::parse).map_err(drop)?;
        Ok(Self { fault, file, from_call })
    }
}

/// The device of a sandbox's `swap`, `reap` or `packed` file, which fails if that is wanted.
pub(super) fn faulty(device: Box<dyn Device>, file: &str) -> Box<dyn Device> {
    if !cfg!(debug_assertions) {
        return device;
    }
    let plan = std::env::var("DORMOUSE_SWAP_FAULT").ok().and_then(|text| text.parse::<DiskFaultPlan>().ok());
    let plan = plan.filter(|plan| plan.file.is_none_or(|wanted| wanted == file));
    let point = if file == "packed" { Point::Packing } else { Point::Storing };
    Box::new(Faulty { device, plan, point, calls: AtomicU32::new(0) })
}

struct Faulty {
    device: Box<dyn Device>,
    plan: Option<DiskFaultPlan>,
    /// The point that is passed ([`pass`]) after each write.
    point: Point,
    /// Reads or writes so far, whichever fail.
    calls: AtomicU32,
}

impl Faulty {
    /// The fault of this call, if it has one.
    fn fault(&self, kinds: &[DiskFault]) -> Option<DiskFault> {
        let plan = self.plan.as_ref().filter(|plan| kinds.contains(&plan.fault))?;
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        (call >= plan.from_call).then_some(plan.fault)
    }
}

/// The first page of the pieces.
fn one_page<'a>(pieces: &[Piece<'a>]) -> Vec<Piece<'a>> {
    pieces.first().map(|piece| piece.first(swap::PAGE_BYTES)).into_iter().collect()
}

/// Changes a bit of the piece here and there: what a read is for need not begin where the read does.
fn flip(piece: &Piece<'_>) {
    const EVERY: usize = 64;
    for at in (0..piece.len()).step_by(EVERY) {
        let mut byte = [0];
        let place = piece.skip(at);
        place.copy_out(&mut byte);
        place.copy_in(&[byte[0] ^ 1]);
    }
}

impl Device for Faulty {
    fn write(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize> {
        let moved = match self.fault(&[DiskFault::Write, DiskFault::Full, DiskFault::ShortWrite]) {
            None => self.device.write(pieces, offset),
            Some(DiskFault::ShortWrite) => self.device.write(&one_page(pieces), offset),
            Some(DiskFault::Full) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            Some(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
        };
        pass(self.point);
        moved
    }

    fn read(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize> {
        match self.fault(&[DiskFault::Read, DiskFault::ShortRead, DiskFault::Flip]) {
            None => self.device.read(pieces, offset),
            Some(DiskFault::ShortRead) => self.device.read(&one_page(pieces), offset),
            Some(DiskFault::Flip) => {
                let moved = self.device.read(pieces, offset)?;
                pieces.iter().for_each(flip);
                Ok(moved)
            }
            Some(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn discard(&self, offset: u64, len: u64) {
        self.device.discard(offset, len);
    }

    fn lengthen(&self, len: u64) {
        self.device.lengthen(len);
    }

    fn file_len(&self) -> io::Result<u64> {
        self.device.file_len()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.device.descriptor()
    }
}

/// A moment in a sandbox's way to its home and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Point {
    /// Its tasks have been told to rest.
    Pausing,
    /// Its free memory goes back to the host.
    Collecting,
    /// A part of its pages is written.
    Storing,
    /// All of them are, and no entry knows.
    Stored,
    /// Its entries are marked, and the memory is still there.
    Marked,
    /// The memory is gone.
    Released,
    /// Everybody knows that it sleeps.
    Asleep,
    /// It was told to wake.
    Waking,
    /// Its working set is to be read, and has been.
    Prefetching,
    Prefetched,
    /// Its tasks go on.
    Resumed,
    /// A page fault waits for its page.
    Fetching,
    /// A part of its pages is packed and written.
    Packing,
    /// All of them are, and the home's tables do not know.
    Packed,
    /// They do.
    Adopted,
    /// Pages are about to go from memory to the disk, or back.
    Moving,
    /// Some of them have.
    Moved,
}

/// All points, by the names that `DORMOUSE_DIE_AT` knows them by.
pub const POINTS: [(&str, Point); 17] = [
    ("pausing", Point::Pausing),
    ("collecting", Point::Collecting),
    ("storing", Point::Storing),
    ("stored", Point::Stored),
    ("marked", Point::Marked),
    ("released", Point::Released),
    ("asleep", Point::Asleep),
    ("waking", Point::Waking),
    ("prefetching", Point::Prefetching),
    ("prefetched", Point::Prefetched),
    ("resumed", Point::Resumed),
    ("fetching", Point::Fetching),
    ("packing", Point::Packing),
    ("packed", Point::Packed),
    ("adopted", Point::Adopted),
    ("moving", Point::Moving),
    ("moved", Point::Moved),
];

/// The sandbox gets to this point; its VMM may be killed there.
pub(crate) fn pass(point: Point) {
    if cfg!(debug_assertions) && die_at() == Some(point) {
        die();
    }
}

fn die_at() -> Option<Point> {
    static DIE_AT: OnceLock<Option<Point>> = OnceLock::new();
    *DIE_AT.get_or_init(|| {
        let wanted = std::env::var("DORMOUSE_DIE_AT").ok()?;
        POINTS.iter().find(|(name, _)| *name == wanted).map(|(_, point)| *point)
    })
}

/// Ends this process as `SIGKILL` from outside does, by calls that the jail allows.
fn die() -> ! {
    // SAFETY: integers, and no information; the descriptor is this process's.
    unsafe {
        let own = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        libc::syscall(libc::SYS_pidfd_send_signal, own, libc::SIGKILL, 0, 0);
    }
    std::process::abort()
}

/// How far a hibernation is, as far as the kernel's calls tell.
static STEP: AtomicU8 = AtomicU8::new(AWAKE);
const AWAKE: u8 = 0;
const PAUSED: u8 = 1;
const STORED: u8 = 2;

/// Takes note of a report of the kernel's.
pub(crate) fn reported(report: &Report<'_>) {
    match report {
        Report::Paused { .. } => {
            pass(Point::Pausing);
            STEP.store(PAUSED, Ordering::Relaxed);
        }
        Report::Resumed { .. } => {
            STEP.store(AWAKE, Ordering::Relaxed);
            pass(Point::Resumed);
        }
        _ => {}
    }
}

/// All pages are written.
pub(super) fn stored() {
    pass(Point::Stored);
    STEP.store(STORED, Ordering::Relaxed);
}

/// The kernel gives memory back.
pub(crate) fn releases() {
    match STEP.load(Ordering::Relaxed) {
        PAUSED => pass(Point::Collecting),
        STORED => pass(Point::Marked),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read() {
        let plan = |text: &str| text.parse::<DiskFaultPlan>();
        assert_eq!(plan("flip"), Ok(DiskFaultPlan { fault: DiskFault::Flip, file: None, from_call: 1 }));
        let late = DiskFaultPlan { fault: DiskFault::ShortWrite, file: Some("reap"), from_call: 7 };
        assert_eq!(plan("short-write:reap:7"), Ok(late));
        assert_eq!(plan("full:any:2").map(|plan| (plan.file, plan.from_call)), Ok((None, 2)));
        for wrong in ["", "melt", "read:disk", "read:swap:x"] {
            assert_eq!(plan(wrong), Err(()), "{wrong}");
        }
    }

    #[test]
    fn points_stand_in_their_order() {
        assert!(POINTS.iter().enumerate().all(|(at, (_, point))| *point as usize == at));
    }
}
