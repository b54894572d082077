//! Address spaces.

use abi::layout::{USER_MAX, USER_MIN};
use abi::run::{MAP_OP_MAP, MAP_OP_PROTECT, MAP_OP_UNMAP, MapOp};
use abi::word::to_usize;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::away::{Away, Stop, fault_of};
use super::commit::Promise;
use super::family::Family;
use super::object::MemoryObject;
use super::page::{Fault, PAGE};
use super::pagetable::{Entry, PageTable, Region};
use super::physical::account::{self, STUB_BYTES};
use super::physical::frames::{self, Frame, FrameRef};
use super::shown::Shown;
use super::sites::{Hits, Sites};
use super::vma::{Prot, VMA_BYTES, Vma, VmaFlags, mirror_prot};
use super::window::HostFileMap;
use crate::errno::Result;
use crate::lock_order;
use crate::mutex::{Mutex, MutexGuard};
use crate::owner::{self, Owner};
use crate::platform::{self, OpBatch, UserSpace};
use crate::rank::Rank;
use crate::sched::{self, work};
use crate::spin::SpinLock;

/// Frames that are given back in one go.
const FREED_AT_ONCE: usize = 4096;
/// Pages of a space that ends at once: some milliseconds.
const SHED_PAGES: u64 = 32_768;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// All address spaces by their id.
static ALL: SpinLock<BTreeMap<u64, Weak<AddressSpace>>> = SpinLock::new(Rank::Spaces, BTreeMap::new());

/// An address space: the memory that one process's threads see.
pub struct AddressSpace {
    pub(super) machine: UserSpace,
    /// For whom the host keeps its stub.
    owner: Owner,
    /// Operations that give the stub further access, to be carried out before user code runs next (systrap). Held while
    /// the stub carries operations out, so that none overtakes another. Inside `inner`.
    pub(super) mirror: Mutex<Vec<MapOp>>,
    /// Whether there are some, or the stub is carrying them out. Changed with the lock held.
    pub(super) is_queued: AtomicBool,
    /// The stub was told to drop all it shows while entries say that it may show them.
    pub(super) has_dropped: AtomicBool,
    pub(super) hits: Hits,
    pub(super) inner: Mutex<Space>,
}

/// The part behind the lock.
pub struct Space {
    /// The address space's id.
    pub(super) id: u64,
    pub(super) table: PageTable,
    pub(super) vmas: BTreeMap<u64, Vma>,
    pub(super) batch: OpBatch,
    /// Frames to be freed once no CPU and no stub can touch them any more.
    pub(super) freed: Vec<Frame>,
    /// Host files whose mappings were removed: their window chunks go once no stub can touch them any more, like frames.
    pub(super) removed: Vec<MemoryObject>,
    /// Present entries were changed or removed: processors (kvm) and the stub (systrap) must hear of it before anything
    /// rests on it.
    pub(super) stale: bool,
    pub(super) brk_start: u64,
    pub(super) brk: u64,
    /// The address at which top-down searches for free addresses begin.
    pub(super) mmap_top: u64,
    /// The address at which the next search begins; everything between here and `mmap_top` was full.
    pub(super) free_hint: u64,
    /// The frame behind the one allocated last, so that neighbours get neighbours.
    pub(super) next_frame: Option<Frame>,
    /// Pages of user frames mapped.
    pub(super) resident_pages: u64,
    /// The most there were of them.
    pub(super) resident_peak: u64,
    /// Ranges without mappings whose tables may go once no CPU walks them any more.
    pub(super) unmapped: Vec<(u64, u64)>,
    /// The mappings that the stub shows (systrap).
    pub(super) shown: Shown,
    /// Who holds the lock has waited for content before, and now takes it however long that takes.
    pub(super) has_waited: bool,
    /// This attempt has waited for content of any kind.
    pub(super) is_retry: bool,
    pub(super) sites: Sites,
    /// The memory that the program was promised.
    pub(super) promise: Promise,
    /// Flags of new mappings: how they are locked (`MCL_FUTURE`).
    pub(super) future_locks: VmaFlags,
    /// Processes run in it at the same time, or did.
    pub(super) is_shared: bool,
    /// Set once it was forked, or is such a copy.
    pub(super) family: Option<Arc<Family>>,
    /// Facts for `/proc`.
    pub layout: Layout,
}

/// The addresses that `execve(2)` chose.
#[derive(Clone, Default)]
pub struct Layout {
    pub start_code: u64,
    pub end_code: u64,
    pub start_data: u64,
    pub end_data: u64,
    pub start_stack: u64,
    pub arg_start: u64,
    pub arg_end: u64,
    pub env_start: u64,
    pub env_end: u64,
    pub vdso: u64,
    pub auxv: Vec<u64>,
}

impl AddressSpace {
    /// An empty address space.
    pub fn new() -> Result<Arc<Self>> {
        let table = PageTable::new()?;
        let stub_bytes = if platform::current().mirrors() { STUB_BYTES } else { 0 };
        account::check(stub_bytes)?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let machine = UserSpace::new(id, table.root());
        platform::current().create_space(&machine)?;
        let owner = owner::current();
        account::add_host_side(owner, stub_bytes);
        let hits = Hits::default();
        let sites = Sites::beside(&hits);
        let aspace = Arc::new(Self {
            owner,
            machine,
            mirror: Mutex::new(Rank::Mirror, Vec::new()),
            is_queued: AtomicBool::new(false),
            has_dropped: AtomicBool::new(false),
            hits,
            inner: Mutex::new(
                Rank::AddressSpace,
                Space {
                    id,
                    table,
                    vmas: BTreeMap::new(),
                    batch: OpBatch::default(),
                    freed: Vec::new(),
                    removed: Vec::new(),
                    stale: false,
                    brk_start: 0,
                    brk: 0,
                    mmap_top: USER_MAX,
                    free_hint: USER_MAX,
                    next_frame: None,
                    resident_pages: 0,
                    resident_peak: 0,
                    unmapped: Vec::new(),
                    shown: Shown::new(owner),
                    has_waited: false,
                    is_retry: false,
                    sites,
                    promise: Promise::none(owner),
                    future_locks: VmaFlags::empty(),
                    is_shared: false,
                    family: None,
                    layout: Layout::default(),
                },
            ),
        });
        ALL.lock().insert(id, Arc::downgrade(&aspace));
        Ok(aspace)
    }

    /// All address spaces there are.
    pub fn all() -> Vec<Arc<Self>> {
        ALL.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// The stubs of all of them are gone with their VMM; each gets another one when it runs. Their mirrors have been dropped, but for
    /// what `template::lose` forgets.
    pub fn lose_stubs() {
        Self::all().iter().for_each(|space| space.machine.lose_number());
    }

    /// The one with this id, if it is still there.
    pub fn find(id: u64) -> Option<Arc<Self>> {
        ALL.lock().get(&id).and_then(Weak::upgrade)
    }

    /// Whether the space with this id is there still, be it only about to end.
    pub fn is_listed(id: u64) -> bool {
        ALL.lock().contains_key(&id)
    }

    /// Locks it if that needs no waiting.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Space>> {
        self.inner.try_lock()
    }

    /// Marks the entries of the frames that `is_stored` as swapped, and forgets those of the file window. Those that show the template's
    /// pages stay as they are if they `outlast` the sleep. Nothing runs in it, and its mirror is dropped.
    pub fn swap_entries(
        &self,
        space: &mut Space,
        is_stored: impl Fn(Frame) -> bool,
        outlasts: impl Fn(Entry) -> bool,
    ) {
        space.table.for_each(USER_MIN, USER_MAX, |_, entry| match entry.region() {
            Some(Region::Frame(frame)) if is_stored(frame) => *entry = entry.swapped(),
            Some(Region::Frame(_)) | None => {}
            Some(Region::Template(_)) if outlasts(*entry) => {}
            // Their frames' content is away, or was just stored.
            Some(Region::Template(_)) => *entry = entry.swapped(),
            Some(Region::Window(_)) => *entry = Entry::NONE,
        });
        // Every CPU flushes before it runs here again (kvm).
        self.machine.change_generation();
    }

    pub fn id(&self) -> u64 {
        self.machine.id
    }

    /// The platform's side of it.
    pub fn machine(&self) -> &UserSpace {
        &self.machine
    }

    /// Locks it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Space> {
        self.inner.lock()
    }

    /// Has `f` use the space. Where it meets a page whose content is away, the space's lock is given back until the content
    /// has come, and `f` begins anew: the mappings may be others by then.
    pub(super) fn attempt<R>(
        &self,
        mut f: impl FnMut(&mut Space) -> core::result::Result<R, Stop>,
    ) -> core::result::Result<R, Fault> {
        lock_order::may_sleep();
        let (mut has_waited, mut is_retry) = (false, false);
        loop {
            let mut space = self.lock();
            (space.has_waited, space.is_retry) = (has_waited, is_retry);
            let result = f(&mut space);
            self.commit(&mut space);
            drop(space);
            match result {
                Ok(value) => return Ok(value),
                Err(Stop::Fault(fault)) => return Err(fault),
                Err(Stop::Failed(error)) => return Err(fault_of(error, 0)),
                Err(Stop::Away(away)) => {
                    is_retry = true;
                    has_waited |= matches!(away, Away::Elsewhere(_));
                    away.come();
                }
            }
        }
    }

    /// Bytes of kernel memory that the space takes, the host's share included.
    pub fn kernel_bytes(&self) -> usize {
        let space = self.lock();
        space.table.bytes() + space.vmas.len() * VMA_BYTES + space.shown.bytes() + STUB_BYTES
    }

    /// Facts for `/proc`, under the lock.
    pub fn with_layout<R>(&self, f: impl FnOnce(&mut Layout) -> R) -> R {
        f(&mut self.lock().layout)
    }

    /// Bytes mapped, bytes of resident user frames.
    pub fn sizes(&self) -> (u64, u64) {
        let space = self.lock();
        (space.vmas.values().map(Vma::len).sum(), space.resident_pages * PAGE)
    }

    /// Bytes of mappings that count against `RLIMIT_DATA`.
    pub fn data_bytes(&self) -> u64 {
        self.lock().vmas.values().filter(|vma| vma.is_data()).map(Vma::len).sum()
    }

    /// Bytes from `start` to `end` that count against `RLIMIT_DATA`, and those that would if they were writable.
    pub fn data_between(&self, start: u64, end: u64) -> (u64, u64) {
        let space = self.lock();
        let mut found = (0, 0);
        for vma in space.vmas.range(..end).map(|(_, vma)| vma).filter(|vma| start < vma.end) {
            let len = vma.end.min(end) - vma.start.max(start);
            if vma.is_data() {
                found.0 += len;
            } else if !vma.flags.intersects(VmaFlags::SHARED | VmaFlags::STACK | VmaFlags::GROWS_DOWN) {
                found.1 += len;
            }
        }
        found
    }

    /// Whether the mapping at an address counts against `RLIMIT_DATA`.
    pub fn is_data(&self, addr: u64) -> bool {
        self.lock().vmas.range(..=addr).next_back().is_some_and(|(_, vma)| addr < vma.end && vma.is_data())
    }

    /// Bytes of resident user frames.
    pub fn resident_bytes(&self) -> u64 {
        self.lock().resident_pages * PAGE
    }

    /// The most bytes of user frames that were resident at once.
    pub fn resident_peak(&self) -> u64 {
        self.lock().resident_peak * PAGE
    }

    /// The most that it has held is what it holds now.
    pub fn forget_peak(&self) {
        let mut space = self.lock();
        space.resident_peak = space.resident_pages;
    }

    /// Bytes of resident user frames; `None`: somebody changes it just now.
    pub fn resident_bytes_now(&self) -> Option<u64> {
        self.try_lock().map(|space| space.resident_pages * PAGE)
    }

    /// Calls `f` for each mapping, in order.
    pub fn for_each_vma(&self, mut f: impl FnMut(&Vma)) {
        self.lock().vmas.values().for_each(&mut f);
    }

    /// Makes the changes of `space` visible and frees what they freed. Ends every operation that changed entries.
    ///
    /// When it returns, nobody has access any more that was withdrawn: neither user code that has stopped nor user code
    /// that only claims to have. So the frames may be used again, and what rests on the withdrawal (a seal, a child's
    /// copy) may be promised.
    pub(super) fn commit(&self, space: &mut Space) {
        let withdraws = core::mem::take(&mut space.stale);
        if platform::current().mirrors() {
            self.commit_mirror(space, withdraws);
        } else if withdraws {
            self.machine.change_generation();
            platform::current().shoot_down(&self.machine);
        }
        let freed = core::mem::take(&mut space.freed);
        for some in freed.chunks(FREED_AT_ONCE) {
            frames::drop_refs(some.iter().copied());
            work::count(u32::try_from(some.len() / 4).unwrap_or(u32::MAX));
        }
        drop(core::mem::take(&mut space.removed));
        space.prune_tables();
    }

    /// Lets go of a space, and ends it if it was the last who held it. The caller may sleep, and others go on meanwhile.
    pub fn release(space: Arc<Self>) {
        if let Some(space) = Arc::into_inner(space) {
            space.shed();
        }
    }

    /// The space for somebody who looks at it while its programs may end.
    pub fn hold(space: Arc<Self>) -> HeldSpace {
        HeldSpace(ManuallyDrop::new(space))
    }

    /// Gives back all pages of a space that nobody runs in any more but so many as may go at once.
    fn shed(&self) {
        let mut from = USER_MIN;
        loop {
            let mut space = self.lock();
            if space.resident_pages < SHED_PAGES {
                return;
            }
            while space.freed.len() < to_usize(SHED_PAGES) {
                let Some((start, end)) = space.mapped_from(from) else { break };
                from = end.min(start + SHED_PAGES * PAGE);
                space.clear(start, from);
            }
            let is_last = space.freed.len() < to_usize(SHED_PAGES);
            self.commit(&mut space);
            drop(space);
            if is_last {
                return;
            }
            sched::let_others_go_on();
        }
    }

    /// Processes run in it at the same time from now on.
    pub fn share(&self) {
        self.lock().is_shared = true;
    }

    /// Whether they do, or did.
    pub fn is_shared(&self) -> bool {
        self.lock().is_shared
    }

    /// Whether a shared mapping of `store` is writable, or may be made so.
    pub(super) fn maps_writable(&self, object: *const ()) -> bool {
        self.lock().vmas.values().any(|vma| {
            vma.is_shared()
                && vma.max_prot.contains(super::vma::Prot::WRITE)
                && vma.object.as_ref().is_some_and(|mapped| mapped.address() == object)
        })
    }

    /// Removes the pages `[first, last)` of `object` from every mapping (truncation).
    pub(super) fn unmap_object_pages(&self, object: *const (), first: u64, last: u64) {
        let mut space = self.lock();
        let space = &mut *space;
        let cut = |vma: &Vma| {
            let from = first.saturating_mul(PAGE).max(vma.offset);
            let to = last.saturating_mul(PAGE).min(vma.offset + vma.len());
            (from < to).then(|| (vma.start + (from - vma.offset), vma.start + (to - vma.offset)))
        };
        let of_object = |vma: &&Vma| vma.object.as_ref().is_some_and(|mapped| mapped.address() == object);
        let ranges: Vec<(u64, u64)> = space.vmas.values().filter(of_object).filter_map(cut).collect();
        for (start, end) in ranges {
            space.clear(start, end);
        }
        self.commit(space);
    }
}

/// Whether anybody but the kernel may have seen an entry that held a page: where the stub mirrors them, only one that was given to
/// it, or is queued to be.
fn may_be_seen(entry: Entry) -> bool {
    !platform::current().mirrors() || entry.has(Entry::MIRRORED)
}

/// How many pages an entry adds to the resident ones: 1 for one with a user frame.
fn resident(entry: Entry) -> u64 {
    u64::from(entry.held().is_some())
}

/// An address space that is released as by [`AddressSpace::release`]: whoever lets go of it may be the last.
pub struct HeldSpace(ManuallyDrop<Arc<AddressSpace>>);

impl Deref for HeldSpace {
    type Target = Arc<AddressSpace>;

    fn deref(&self) -> &Arc<AddressSpace> {
        &self.0
    }
}

impl Drop for HeldSpace {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        AddressSpace::release(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        let mut space = self.inner.lock();
        // Nobody may sleep here.
        space.table.never_wait();
        space.clear(USER_MIN, USER_MAX);
        let freed = core::mem::take(&mut space.freed);
        drop(space);
        // On return the stub maps nothing any more, or is dead.
        platform::current().destroy_space(&self.machine);
        account::remove_host_side(self.owner, if platform::current().mirrors() { STUB_BYTES } else { 0 });
        frames::drop_refs(freed);
        ALL.lock().remove(&self.machine.id);
    }
}

impl Space {
    /// Calls `f` for each user frame mapped, in the order of addresses.
    pub fn for_each_frame(&mut self, mut f: impl FnMut(Frame)) {
        self.for_each_page(|_, frame| f(frame));
    }

    /// Calls `f` for each page with a user frame, in the order of addresses.
    pub fn for_each_page(&mut self, mut f: impl FnMut(u64, Frame)) {
        self.table.for_each(USER_MIN, USER_MAX, |page, entry| {
            entry.held().iter().for_each(|frame| f(page, *frame))
        });
    }

    /// Calls `f` for each user frame that is mapped to be run, and not to be written.
    pub fn for_each_executable_frame(&mut self, mut f: impl FnMut(Frame)) {
        for vma in
            self.vmas.values().filter(|vma| vma.prot.contains(Prot::EXEC) && !vma.prot.contains(Prot::WRITE))
        {
            self.table
                .for_each(vma.start, vma.end, |_, entry| entry.held().iter().for_each(|frame| f(*frame)));
        }
    }

    /// Calls `f` for each mapping of a host file.
    pub fn for_each_host_file(&self, mut f: impl FnMut(&Arc<HostFileMap>)) {
        for vma in self.vmas.values() {
            if let Some(MemoryObject::Host(file)) = &vma.object {
                f(file);
            }
        }
    }

    /// The entry of the page at `addr`.
    pub fn entry(&self, addr: u64) -> Entry {
        self.table.get(addr)
    }

    /// The first range from an address on that a mapping covers.
    fn mapped_from(&self, from: u64) -> Option<(u64, u64)> {
        let within = self.find(from).map(|vma| vma.end);
        let next = || self.vmas.range(from..).next().map(|(start, vma)| (*start, vma.end));
        within.map(|end| (from, end)).or_else(next)
    }

    /// The mapping that contains `addr`.
    pub(super) fn find(&self, addr: u64) -> Option<&Vma> {
        self.vmas.range(..=addr).next_back().map(|(_, vma)| vma).filter(|vma| addr < vma.end)
    }

    /// Removes all pages in a range from the page table and the mirror; frames are freed at commit.
    pub(super) fn clear(&mut self, start: u64, end: u64) {
        let Self { table, batch, freed, stale, resident_pages, .. } = self;
        table.for_each(start, end, |addr, entry| {
            debug_assert!(entry.has(Entry::PRESENT) || !entry.has(Entry::MIRRORED), "what is shown is there");
            if entry.holds_page() {
                *stale |= may_be_seen(*entry);
                if entry.has(Entry::MIRRORED) {
                    batch.push(MapOp { kind: MAP_OP_UNMAP, prot: 0, addr, len: PAGE, phys: 0 });
                }
                // A chunk of a file stays with the file's `HostFileMap`.
                if let Some(frame) = entry.held() {
                    freed.push(frame);
                    *resident_pages = resident_pages.saturating_sub(1);
                }
            }
            *entry = Entry::NONE;
        });
    }

    /// Sets a present entry where there was none, or replaces one, and keeps the mirror in step: a mirrored entry that
    /// is replaced is mapped anew at once.
    pub(super) fn install(&mut self, addr: u64, entry: Entry) -> Result<()> {
        let old = self.table.get(addr);
        let mut entry = entry;
        if old.has(Entry::MIRRORED) {
            entry.0 |= Entry::MIRRORED;
            self.batch.push(MapOp {
                kind: MAP_OP_MAP,
                prot: mirror_prot(entry),
                addr,
                len: PAGE,
                phys: entry.phys(),
            });
        }
        self.stale |= old.has(Entry::PRESENT) && may_be_seen(old);
        self.table.set(addr, entry)?;
        self.resident_pages += resident(entry);
        self.resident_pages -= resident(old).min(self.resident_pages);
        self.resident_peak = self.resident_peak.max(self.resident_pages);
        Ok(())
    }

    /// Shows a frame at `addr` by an entry with these flags, which keeps the reference.
    pub(super) fn install_frame(&mut self, addr: u64, frame: FrameRef, flags: u64) -> Result<()> {
        self.install(addr, Entry::new(frame.addr(), flags))?;
        frame.keep();
        Ok(())
    }

    /// Takes write permission from the entries of a range (`fork`), or recomputes permissions (`mprotect`).
    pub(super) fn protect(&mut self, start: u64, end: u64, new: impl Fn(Entry) -> Entry) {
        let Self { table, batch, stale, .. } = self;
        table.for_each(start, end, |addr, entry| {
            let mut changed = new(*entry);
            if changed == *entry {
                return;
            }
            *stale |= entry.has(Entry::PRESENT) && may_be_seen(*entry);
            if entry.has(Entry::MIRRORED) {
                if changed.has(Entry::PRESENT) {
                    let prot = mirror_prot(changed);
                    batch.push(MapOp { kind: MAP_OP_PROTECT, prot, addr, len: PAGE, phys: 0 });
                } else {
                    batch.push(MapOp { kind: MAP_OP_UNMAP, prot: 0, addr, len: PAGE, phys: 0 });
                    changed.0 &= !Entry::MIRRORED;
                }
            }
            *entry = changed;
        });
    }
}
