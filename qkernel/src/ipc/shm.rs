//! System V shared memory (`shmget(2)`): segments, whose pages are those of a file in memory.
//!
//! A segment that is removed lives as long as somebody maps it. So from then on the table keeps a weak reference alone, and
//! the mappings hold the pages. How often it is attached is counted when somebody asks, by looking at the address spaces
//! that map it: `fork`, `exec`, `munmap` and `mremap` need do nothing for it.

use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::creds::Creds;
use crate::fs::caller::PidOf;
use crate::ipc::IpcNamespace;
use crate::ipc::perm::{self, Perm};
use crate::ipc::table::{self, Got, IPC_PRIVATE, Table};
use crate::ipc::{OBJECT_BYTES, Who, now};
use machine::errno::{Errno, Result};
use machine::mm::account::Charge;
use machine::mm::{MemoryObject, PAGE, PageStore, frames};
use machine::sync::{Rank, SpinLock};

/// `SHM_HUGETLB`, and where the size of the pages stands.
const HUGETLB: u32 = 0o4000;
const HUGE_SHIFT: u32 = 26;
const HUGE_MASK: u32 = 0x3f;
/// `SHM_NORESERVE`.
const NORESERVE: u32 = 0o10_000;
/// Bits of a mode: it goes with the last mapping; it is locked.
const SHM_DEST: u32 = 0o1000;
const SHM_LOCKED: u32 = 0o2000;
/// Segments that are forgotten at once.
const GONE_MAX: usize = 256;

/// The pages of a segment.
enum Pages {
    Kept(Arc<PageStore>),
    /// It is removed: its mappings have them.
    Mapped(Weak<PageStore>),
}

struct State {
    perm: Perm,
    pages: Pages,
    atime: i64,
    dtime: i64,
    ctime: i64,
    last: PidOf,
    is_locked: bool,
    /// The process that made it, while that lives.
    maker: Option<PidOf>,
    was_attached: bool,
}

/// A segment.
pub struct Segment {
    id: i32,
    size: u64,
    creator: PidOf,
    state: SpinLock<State>,
    _charge: Charge,
}

/// All segments of a namespace.
pub type Segments = Table<Segment>;

/// The facts about a segment that `IPC_STAT` tells.
pub struct Facts {
    pub perm: Perm,
    /// Permission bits, with `SHM_DEST` and `SHM_LOCKED`.
    pub mode: u32,
    pub size: u64,
    pub atime: i64,
    pub dtime: i64,
    pub ctime: i64,
    pub creator: PidOf,
    pub last: PidOf,
    pub attached: u64,
    /// Bytes in memory or on disk.
    pub held: u64,
}

/// The sums over all segments that `SHM_INFO` tells; sizes are in pages.
pub struct Usage {
    pub segments: usize,
    pub total: u64,
    pub held: u64,
    pub last_index: u32,
}

impl Segment {
    /// Its pages; `None`: it is removed, and nobody maps it any more.
    fn store(&self) -> Option<Arc<PageStore>> {
        match &self.state.lock().pages {
            Pages::Kept(store) => Some(store.clone()),
            Pages::Mapped(store) => store.upgrade(),
        }
    }

    fn is_of(&self, store: &Arc<PageStore>) -> bool {
        match &self.state.lock().pages {
            Pages::Kept(own) => Arc::ptr_eq(own, store),
            Pages::Mapped(own) => own.as_ptr() == Arc::as_ptr(store),
        }
    }

    fn is_gone(&self) -> bool {
        matches!(&self.state.lock().pages, Pages::Mapped(store) if store.strong_count() == 0)
    }

    /// Whether nobody maps it, who has, or whose maker has ended. Each mapping holds the pages; so does who looks at them at
    /// this moment, and then the next one to look finds it.
    fn is_loose(&self) -> bool {
        let state = self.state.lock();
        let is_unmapped = matches!(&state.pages, Pages::Kept(store) if Arc::strong_count(store) == 1);
        is_unmapped && (state.was_attached || state.maker.is_none())
    }

    fn pages(&self) -> u64 {
        self.size.div_ceil(PAGE)
    }

    fn check(&self, creds: &Creds, wanted: u32) -> Result<()> {
        self.state.lock().perm.check(creds, wanted)
    }

    /// `IPC_STAT`, `SHM_STAT`; with `any` for those who may not read it, too.
    pub fn facts(&self, creds: &Creds, any: bool) -> Result<Facts> {
        if !any {
            self.check(creds, perm::READ)?;
        }
        let store = self.store().ok_or(Errno::EIDRM)?;
        let (attached, held) = (store.mappings() as u64, store.resident_bytes());
        let state = self.state.lock();
        let mut mode = state.perm.mode;
        if matches!(state.pages, Pages::Mapped(_)) {
            mode |= SHM_DEST;
        }
        if state.is_locked {
            mode |= SHM_LOCKED;
        }
        Ok(Facts {
            perm: state.perm,
            mode,
            size: self.size,
            atime: state.atime,
            dtime: state.dtime,
            ctime: state.ctime,
            creator: self.creator,
            last: state.last,
            attached,
            held,
        })
    }

    /// `IPC_SET`.
    pub fn set(&self, creds: &Creds, uid: u32, gid: u32, mode: u32) -> Result<()> {
        let mut state = self.state.lock();
        state.perm.check_owner(creds)?;
        state.perm.change(uid, gid, mode)?;
        state.ctime = now();
        Ok(())
    }

    /// `SHM_LOCK`, `SHM_UNLOCK`: a mark alone. `may_lock`: by capability or `RLIMIT_MEMLOCK`.
    pub fn lock(&self, creds: &Creds, lock: bool, is_privileged: bool, may_lock: bool) -> Result<()> {
        let mut state = self.state.lock();
        let is_owner = creds.euid == state.perm.uid || creds.euid == state.perm.cuid;
        if !is_privileged && (!is_owner || (lock && !may_lock)) {
            return Err(Errno::EPERM);
        }
        state.is_locked = lock;
        Ok(())
    }

    /// The pages for `shmat(2)`, whose caller may have the access. The size is in bytes.
    pub fn for_attach(&self, creds: &Creds, wanted: u32) -> Result<(Arc<PageStore>, u64)> {
        self.check(creds, wanted)?;
        self.store().map(|store| (store, self.size)).ok_or(Errno::EIDRM)
    }

    /// `who` has attached it.
    pub fn attached(&self, who: &Who) {
        let mut state = self.state.lock();
        (state.atime, state.last, state.was_attached) = (now(), who.pid, true);
    }

    fn detached(&self, who: &Who) {
        let mut state = self.state.lock();
        (state.dtime, state.last) = (now(), who.pid);
    }
}

/// Refuses pages of a size that there are none of, as a machine without huge pages does.
fn check_flags(flags: u32) -> Result<()> {
    if flags & HUGETLB == 0 {
        return Ok(());
    }
    match flags >> HUGE_SHIFT & HUGE_MASK {
        0 | 21 | 30 => Err(Errno::ENOMEM),
        _ => Err(Errno::EINVAL),
    }
}

impl IpcNamespace {
    /// `shmget(2)`.
    pub fn shm_get(&self, who: &Who, key: i32, size: u64, flags: u32) -> Result<i32> {
        let got = self.with_segments(|segments| {
            segments.get_or(key, flags, |segments| self.new_segment(segments, who, key, size, flags))
        });
        match got? {
            Got::New(id) => Ok(id),
            Got::Old(_, segment) if size > segment.size => Err(Errno::EINVAL),
            Got::Old(id, segment) => segment.check(&who.creds, flags).map(|()| id),
        }
    }

    fn new_segment(
        &self,
        segments: &mut Segments,
        who: &Who,
        key: i32,
        size: u64,
        flags: u32,
    ) -> Result<i32> {
        let limits = self.limits();
        if size == 0 || size > limits.shmmax {
            return Err(Errno::EINVAL);
        }
        let pages = size.div_ceil(PAGE);
        let total: u64 = segments.iter().map(|(_, segment)| segment.pages()).sum();
        if pages > i64::MAX.unsigned_abs() / PAGE
            || total.checked_add(pages).is_none_or(|total| total > limits.shmall)
        {
            return Err(Errno::ENOSPC);
        }
        if segments.count() >= limits.shmmni as usize {
            return Err(Errno::ENOSPC);
        }
        check_flags(flags)?;
        if flags & NORESERVE == 0 && pages > frames::total() as u64 {
            return Err(Errno::ENOMEM);
        }
        let perm = Perm::new(key, flags, &who.creds);
        segments.insert(key, limits.shmmni, |id| {
            let charge = Charge::lasting(OBJECT_BYTES)?;
            let store = PageStore::new(size);
            MemoryObject::Store(store.clone()).set_label(format!("/SYSV{key:08x} (deleted)").as_bytes());
            let state = State {
                perm,
                pages: Pages::Kept(store),
                atime: 0,
                dtime: 0,
                ctime: now(),
                last: PidOf::default(),
                is_locked: false,
                maker: Some(who.pid),
                was_attached: false,
            };
            let state = SpinLock::new(Rank::Leaf, state);
            Ok(Arc::new(Segment { id, size, creator: who.pid, state, _charge: charge }))
        })
    }

    /// The segment with this id. `EINVAL`.
    pub fn segment(&self, id: i32) -> Result<Arc<Segment>> {
        self.with_segments(|segments| segments.get(id))
    }

    /// Id and segment at an index. `EINVAL`.
    pub fn segment_at(&self, index: i32) -> Result<(i32, Arc<Segment>)> {
        self.with_segments(|segments| segments.at(index))
    }

    /// Calls `f` for each segment and its id; see [`table::for_each`].
    pub fn for_each_segment(&self, f: impl FnMut(i32, &Arc<Segment>) -> Result<()>) -> Result<()> {
        table::for_each(&self.segments, f)
    }

    /// `SHM_INFO`.
    pub fn shm_usage(&self) -> Usage {
        let mut usage = self.with_segments(|segments| Usage {
            segments: segments.count(),
            total: segments.iter().map(|(_, segment)| segment.pages()).sum(),
            held: 0,
            last_index: segments.last_index(),
        });
        let _ = self.for_each_segment(|_, segment| {
            usage.held += segment.store().map_or(0, |store| store.resident_bytes()) / PAGE;
            Ok(())
        });
        usage
    }

    /// `IPC_RMID`: the segment goes with its last mapping, or now.
    pub fn shm_remove(&self, creds: &Creds, id: i32) -> Result<()> {
        let segment = self.segment(id)?;
        segment.state.lock().perm.check_owner(creds)?;
        self.remove_segment(&segment);
        Ok(())
    }

    fn remove_segment(&self, segment: &Segment) {
        self.segments.lock().forget_key(segment.id);
        let kept = {
            let mut state = segment.state.lock();
            state.perm.key = IPC_PRIVATE;
            let mapped = match &state.pages {
                Pages::Kept(store) => Pages::Mapped(Arc::downgrade(store)),
                Pages::Mapped(_) => return,
            };
            core::mem::replace(&mut state.pages, mapped)
        };
        // Frees the pages if nobody maps them, without a lock held.
        drop(kept);
        self.without_gone(|_| ());
    }

    /// `shmdt(2)` has removed a mapping of these pages.
    pub fn shm_detached(&self, who: &Who, store: Arc<PageStore>) {
        let _ = self.for_each_segment(|_, segment| {
            if segment.is_of(&store) {
                segment.detached(who);
                return Err(Errno::EEXIST);
            }
            Ok(())
        });
        drop(store);
        self.drop_unattached();
    }

    /// Removes what nobody maps, where `kernel.shm_rmid_forced` asks for that: segments that were attached before, and those
    /// whose maker has ended. Called by whoever may have removed a mapping, and before anybody looks at segments.
    pub fn drop_unattached(&self) {
        if self.limits().shm_rmid_forced == 0 {
            return;
        }
        let _ = table::for_each(&self.segments, |_, segment| {
            if segment.is_loose() {
                self.remove_segment(segment);
            }
            Ok(())
        });
    }

    /// A process has ended.
    pub fn process_ended(&self, process: PidOf) {
        if self.segments.lock().count() == 0 {
            return;
        }
        let _ = self.for_each_segment(|_, segment| {
            let mut state = segment.state.lock();
            if state.maker == Some(process) {
                state.maker = None;
            }
            Ok(())
        });
        self.drop_unattached();
    }

    /// Calls `f` with the table, without segments that are not to be seen any more.
    fn with_segments<R>(&self, f: impl FnOnce(&mut Segments) -> R) -> R {
        self.drop_unattached();
        self.without_gone(f)
    }

    /// Calls `f` with the table, without segments that were removed and have lost their last mapping since.
    fn without_gone<R>(&self, f: impl FnOnce(&mut Segments) -> R) -> R {
        let mut segments = self.segments.lock();
        loop {
            let gone: Vec<i32> = {
                let gone = segments.iter().filter(|(_, segment)| segment.is_gone());
                gone.map(|(id, _)| id).take(GONE_MAX).collect()
            };
            for id in &gone {
                // Its pages are gone already.
                segments.remove(*id);
            }
            if gone.len() < GONE_MAX {
                return f(&mut segments);
            }
        }
    }
}
