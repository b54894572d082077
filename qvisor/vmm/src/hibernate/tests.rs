use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{self, Arc, Condvar, mpsc};
use std::{io, thread};

use abi::boot::Platform;
use abi::hostcall::SwapOut;
use abi::layout::USER_PHYS;
use swap::io::{Device, Piece};
use swap::{Packing, SwapHome, TieredHome};

use super::*;

const LIST: u64 = 0x1000;
const CLASSES: u64 = 0x8000;
const REQUEST: u64 = 0x9000;

pub(super) fn begin() -> (SandboxMemory, Hibernation) {
    begin_with(SwapPlan { dir: Some(std::env::temp_dir()), ..SwapPlan::default() })
}

pub(super) fn begin_with(plan: SwapPlan) -> (SandboxMemory, Hibernation) {
    let memory = SandboxMemory::new(Platform::Kvm, 16 << 20, 4 << 20).unwrap();
    (memory, Hibernation::open(&HostPaths::of_new_process(), plan).unwrap())
}

pub(super) fn phys(id: PageId) -> u64 {
    USER_PHYS + u64::from(id) * PAGE_SIZE
}

/// Stores the pages, each of which begins with its number and holds nothing else, and gives their memory back.
pub(super) fn sleep(memory: &SandboxMemory, hibernation: &Hibernation, ids: &[PageId]) {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
    memory.copy_out(LIST, &bytes).unwrap();
    for id in ids {
        memory.write(phys(*id), id).unwrap();
    }
    let (rest_count, kept) = (ids.len() as u64, 0x100);
    let list = SwapOut { rest: LIST, rest_count, kept, rest_classes: CLASSES, ..SwapOut::default() };
    memory.write(REQUEST, &list).unwrap();
    assert_eq!(hibernation.swap_out(memory, REQUEST), 0);
    ids.iter().for_each(|id| memory.release(phys(*id), PAGE_SIZE).unwrap());
}

pub(super) fn swap_in(
    memory: &SandboxMemory,
    hibernation: &Hibernation,
    ids: &[PageId],
    how: u64,
) -> (i64, Vec<PageId>) {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
    memory.copy_out(LIST, &bytes).unwrap();
    let result = hibernation.swap_in(memory, LIST, ids.len() as u64, how).unwrap();
    (result, lists::numbers(memory, LIST, ids.len() as u64).unwrap())
}

#[test]
fn what_did_not_come_is_struck_out_of_any_batch() {
    let (memory, hibernation) = begin();
    let ids: Vec<PageId> = (1..500).collect();
    sleep(&memory, &hibernation, &ids);
    let wanted: Vec<PageId> = (100..400).collect();
    let (result, came) = swap_in(&memory, &hibernation, &wanted, hc::SWAP_IN_AROUND);
    let expected: Vec<PageId> = wanted.iter().map(|id| if *id <= 132 { *id } else { hc::NO_FRAME }).collect();
    assert_eq!((result, came), (0, expected));
    assert_eq!((memory.read(phys(132)), memory.read(phys(133))), (Some(132_u32), Some(0_u32)));
    assert_eq!(swap_in(&memory, &hibernation, &wanted, hc::SWAP_IN_ALL), (0, wanted.clone()));
    assert!(wanted.iter().all(|id| memory.read(phys(*id)) == Some(*id)));
    assert_eq!(hibernation.woken().pages, 0);
    assert_eq!(swap_in(&memory, &hibernation, &ids, hc::SWAP_IN_SET).0, 0);
    assert_eq!(hibernation.woken().pages, 499);
}

#[test]
fn bad_requests_are_refused() {
    let (memory, hibernation) = begin();
    let errno = |ids: &[PageId], how| swap_in(&memory, &hibernation, ids, how).0;
    assert_eq!(errno(&[1], hc::SWAP_IN_SHOWN_AHEAD + 1), -i64::from(libc::EINVAL));
    assert_eq!(errno(&[1024], hc::SWAP_IN_ALL), BAD);
    assert_eq!(hibernation.swap_in(&memory, u64::MAX, 1, hc::SWAP_IN_ALL).unwrap(), BAD);
    // A page that is nowhere is lost.
    memory.write(LIST, &5_u32).unwrap();
    assert!(hibernation.swap_in(&memory, LIST, 1, hc::SWAP_IN_ALL).is_err());
    assert_eq!(hibernation.swap_in(&memory, 0, 0, hc::SWAP_IN_ALL).unwrap(), 0);
    assert_eq!(Hibernation::none().fetch(&memory, &mut [1], Fetch::All).unwrap(), NONE);
}

/// A file whose first two reads wait for each other.
struct Meeting {
    file: File,
    reads: sync::Mutex<u32>,
    met: Condvar,
}

impl Meeting {
    fn new() -> Box<Self> {
        let file = swap::open_unnamed(&std::env::temp_dir()).unwrap();
        Box::new(Self { file, reads: sync::Mutex::new(0), met: Condvar::new() })
    }
}

impl Device for Meeting {
    fn write(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize> {
        self.file.write(pieces, offset)
    }

    fn read(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize> {
        let mut reads = self.reads.lock().unwrap();
        *reads += 1;
        self.met.notify_all();
        let waited = self.met.wait_timeout_while(reads, Duration::from_secs(20), |reads| *reads < 2);
        assert!(!waited.unwrap().1.timed_out(), "nobody else reads");
        self.file.read(pieces, offset)
    }

    fn discard(&self, offset: u64, len: u64) {
        self.file.discard(offset, len);
    }

    fn lengthen(&self, len: u64) {
        self.file.lengthen(len);
    }

    fn file_len(&self) -> io::Result<u64> {
        self.file.file_len()
    }
}

#[test]
fn threads_fetch_at_once() {
    let memory = begin().0;
    let home = SwapHome::new(Meeting::new(), Meeting::new(), u64::MAX);
    let hibernation = Hibernation::new(Ok(TieredHome::from(home).into()), SwapPlan::default());
    let ids: Vec<PageId> = (1..801).collect();
    sleep(&memory, &hibernation, &ids);
    thread::scope(|scope| {
        for part in ids.chunks(200) {
            let (memory, hibernation) = (&memory, &hibernation);
            scope.spawn(move || {
                for id in part {
                    assert_eq!(hibernation.fetch(memory, &mut [*id], Fetch::All).unwrap(), 0);
                    // Figures are there for all meanwhile.
                    assert_eq!(hibernation.woken(), Woken::default());
                }
            });
        }
    });
    assert!(ids.iter().all(|id| memory.read(phys(*id)) == Some(*id)));
}

/// A file to which nothing is written before somebody lets it.
struct Gate {
    file: File,
    reached: mpsc::SyncSender<()>,
    open: sync::Mutex<mpsc::Receiver<()>>,
}

impl Device for Gate {
    fn write(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize> {
        self.reached.send(()).unwrap();
        // Whoever opens the gate drops the other end.
        let _ = self.open.lock().unwrap().recv();
        self.file.write(pieces, offset)
    }

    fn read(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize> {
        self.file.read(pieces, offset)
    }

    fn discard(&self, offset: u64, len: u64) {
        self.file.discard(offset, len);
    }

    fn lengthen(&self, len: u64) {
        self.file.lengthen(len);
    }

    fn file_len(&self) -> io::Result<u64> {
        self.file.file_len()
    }
}

/// A sandbox that wakes and sleeps again while it is still packed keeps its turn, and is packed in that sleep.
#[test]
fn the_next_sleep_packs_after_the_last_one() {
    let memory = begin().0;
    let dir = std::env::temp_dir();
    let file = || swap::open_unnamed(&dir).unwrap();
    let ((reached, at_gate), (gate, open)) = (mpsc::sync_channel(100), mpsc::channel::<()>());
    let packed = Gate { file: file(), reached, open: sync::Mutex::new(open) };
    let packing = Packing { codec: "lz4".parse().unwrap(), ..Packing::default() };
    let home = SwapHome::new(Box::new(file()), Box::new(file()), u64::MAX);
    let home = home.with_packing(Box::new(packed), packing);
    let turn = file();
    let other = File::open(format!("/proc/self/fd/{}", turn.as_raw_fd())).unwrap();
    let settling = Settling::new(Duration::ZERO, Some(turn));
    let hibernation = Arc::new(Hibernation {
        settling,
        ..Hibernation::new(Ok(TieredHome::from(home).into()), SwapPlan::default())
    });
    let (tell, told) = mpsc::channel();
    hibernation.when_told(move |told| tell.send(told).unwrap());
    sleep(&memory, &hibernation, &(1..500).collect::<Vec<_>>());
    Hibernation::settle(&hibernation);
    at_gate.recv().unwrap();
    hibernation.begin_wake(None);
    Hibernation::settle(&hibernation);
    for _ in 0..50 {
        assert!(other.try_lock().is_err(), "it lost its turn while it packs");
        thread::sleep(Duration::from_millis(10));
    }
    drop(gate);
    assert!(matches!(told.recv_timeout(Duration::from_secs(60)).unwrap(), Told::Packed(Ok(_))));
}
