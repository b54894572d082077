//! The home of pages on its way from one VMM to the next.
#![deny(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use swap::io::Device;
use swap::{BaseError, BaseTables, Bits, FileBase, Packing, PageId, StackedBase, SwapHome, Tier};

use super::settling::{self, Settling};
use super::{Hibernation, HomePolicy, PagesHome, Reap, SwapPlan, accelerator, injection};
use crate::handover::{HandOverError, Placed};
use crate::host_paths::HostPaths;
use crate::lock::{ReadGuard, RwLock};
use crate::memory::frames_of;

/// A home for the next VMM. Descriptors by their numbers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HomeRecord {
    base: Option<BaseRecord>,
    /// Those that have some of its pages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    below: Vec<BaseRecord>,
    /// Of the swap file, the REAP file and the packed one.
    files: [RawFd; 3],
    turn: Option<RawFd>,
    limit_bytes: u64,
    codec: String,
    cpus: Option<f64>,
    reap: Reap,
    settle: Duration,
    /// Pages go to memory, and to the disk after so long.
    #[serde(default)]
    in_memory: bool,
    #[serde(default)]
    disk_after: Option<Duration>,
}

/// The pages under a home.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BaseRecord {
    file: RawFd,
    /// Ranges of its pages, in ascending order.
    pages: Vec<(PageId, PageId)>,
    /// The checksums of all of them; `None`: they are not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sums: Option<Vec<u32>>,
    /// How they are packed; empty: they are not.
    #[serde(default, skip_serializing_if = "<[u8]>::is_empty")]
    packed: Box<[u8]>,
    /// Ranges of those pages that count; `None`: all of them do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    used: Option<Vec<(PageId, PageId)>>,
}

/// A home that is left to the next VMM. Nothing is stored or packed any more.
pub(crate) struct HomeLeft<'h> {
    home: ReadGuard<'h, PagesHome>,
    turn: Option<BorrowedFd<'h>>,
    plan: &'h SwapPlan,
    /// Of the files of its base, in their order.
    bases: Vec<BaseTables>,
    files: [RawFd; 3],
    tables: Vec<u8>,
}

impl Hibernation {
    /// Whether a plan has words for it.
    pub(crate) fn may_be_left(&self) -> Result<(), HandOverError> {
        if self.plan.packing.encrypt {
            return Err(HandOverError::Refused("its pages are sealed with a key that ends with this VMM"));
        }
        let home = self.home.as_ref().map_err(|_| HandOverError::Refused("its pages have no home"))?;
        {
            let home = home.read();
            if home.base().is_some_and(|base| base.files().any(|(file, _)| file.is_sealed())) {
                return Err(HandOverError::Refused("the snapshot that it began with is sealed"));
            }
            if home.tiers().occupied().is_none() {
                return Ok(());
            }
        }
        // Later on nothing may fail. Whoever packs holds the home.
        self.settling.interrupt();
        leave_memory(home)
    }

    /// Leaves the home to the next VMM.
    pub(crate) fn hand_over(&self) -> Result<HomeLeft<'_>, HandOverError> {
        self.settling.end_packing();
        let home = self.home.as_ref().map_err(|_| HandOverError::Refused("its pages have no home"))?;
        leave_memory(home)?;
        let home = home.read();
        let mut tables = Vec::new();
        home.pages().persist(&mut tables)?;
        let numbers: Vec<RawFd> = home.pages().descriptors().iter().map(AsRawFd::as_raw_fd).collect();
        let files = numbers.try_into().map_err(|_| HandOverError::Refused("its home is not in files"))?;
        let files_of_base = home.base().into_iter().flat_map(StackedBase::files);
        let bases = files_of_base.map(|(file, _)| file.tables()).collect::<Result<_, _>>()?;
        Ok(HomeLeft {
            home,
            bases,
            turn: self.settling.turn_file().map(AsFd::as_fd),
            plan: &self.plan,
            files,
            tables,
        })
    }
}

/// Pages in memory end with this VMM: they go to the disk.
fn leave_memory(home: &RwLock<PagesHome>) -> Result<(), HandOverError> {
    let moved = home.write().tiers_mut().move_all(Tier::Disk);
    moved.map_err(|_| HandOverError::Refused("its pages in memory cannot go to the disk"))
}

impl HomeLeft<'_> {
    /// The plan for it.
    pub(crate) fn plan(&self) -> HomeRecord {
        let files = self.home.base().into_iter().flat_map(StackedBase::files).zip(&self.bases);
        let mut bases = files.filter_map(|((file, used), tables)| {
            Some(BaseRecord::of(file.descriptor()?, tables, used.map(|used| used.runs().collect())))
        });
        let SwapPlan { limit_bytes, reap, packing, settle, home, .. } = self.plan;
        HomeRecord {
            base: bases.next(),
            below: bases.collect(),
            files: self.files,
            turn: self.turn.map(|turn| turn.as_raw_fd()),
            limit_bytes: *limit_bytes,
            codec: packing.codec.to_string(),
            cpus: packing.cpus,
            reap: *reap,
            settle: *settle,
            in_memory: self.home.tiers().goes_to() == Tier::Memory,
            disk_after: home.disk_after,
        }
    }

    /// The home's tables.
    pub(crate) fn tables(&self) -> &[u8] {
        &self.tables
    }

    /// The descriptors that the plan names.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let files = self.home.base().into_iter().flat_map(StackedBase::files);
        let bases = files.filter_map(|(file, _)| file.descriptor());
        self.home.pages().descriptors().into_iter().chain(self.turn).chain(bases).collect()
    }
}

impl BaseRecord {
    fn of(file: BorrowedFd<'_>, tables: &BaseTables, used: Option<Vec<(PageId, PageId)>>) -> Self {
        let BaseTables { present, sums, packed } = tables;
        let pages = present.runs().collect();
        Self { file: file.as_raw_fd(), pages, sums: sums.clone(), packed: packed.clone(), used }
    }

    /// Opens the file of a sandbox with so many frames. Result: with those of its pages that count.
    fn open(
        self,
        end: PageId,
        take: impl FnOnce(RawFd) -> Result<OwnedFd, HandOverError>,
    ) -> Result<(FileBase, Bits), HandOverError> {
        let present = set_of(&self.pages, end)?;
        let used = self.used.map_or_else(|| Ok(present.clone()), |used| set_of(&used, end))?;
        let tables = BaseTables { present, sums: self.sums, packed: self.packed };
        Ok((FileBase::reopen(File::from(take(self.file)?), tables).map_err(bad_base)?, used))
    }
}

/// The set of pages that ranges of them are, which ascend and have ends up to this one.
fn set_of(runs: &[(PageId, PageId)], end: PageId) -> Result<Bits, HandOverError> {
    let (mut set, mut behind) = (Bits::default(), 0);
    for (first, last) in runs.iter().copied() {
        if first < behind || last <= first || last > end {
            return Err(HandOverError::Damaged("its base has pages that cannot be"));
        }
        (first..last).for_each(|page| set.set(page));
        behind = last;
    }
    Ok(set)
}

impl HomeRecord {
    /// Opens the home of a sandbox whose memory may become so large.
    pub(crate) fn open(
        self,
        _: &HostPaths,
        tables: &[u8],
        memory_most_bytes: u64,
        placed: &mut Placed,
    ) -> Result<Hibernation, HandOverError> {
        let mut take = |number| placed.take(number).ok_or(HandOverError::Damaged("a file is missing"));
        let [swap, reap, packed] = self.files;
        let [swap, reap, packed] = [(swap, "swap"), (reap, "reap"), (packed, "packed")]
            .map(|(number, name)| take(number).map(|fd| device(File::from(fd), name)));
        let turn = self.turn.map(&mut take).transpose()?.map(File::from);
        // The former VMM may have packed to its end.
        turn.as_ref().map(settling::let_go);
        let codec = self.codec.parse().map_err(|_| HandOverError::Damaged("its codec is unknown"))?;
        let packing = Packing { codec, encrypt: false, cpus: self.cpus };
        let swap_plan = SwapPlan {
            dir: None,
            limit_bytes: self.limit_bytes,
            reap: self.reap,
            packing: packing.clone(),
            settle: self.settle,
            home: HomePolicy {
                tier: if self.in_memory { Tier::Memory } else { Tier::Disk },
                disk_after: self.disk_after,
            },
            // Who watches it has a descriptor of the former VMM's.
            pressure: None,
        };
        let end = frames_of(memory_most_bytes);
        let own = self.base.map(|base| base.open(end, &mut take)).transpose()?;
        let below = self.below.into_iter().map(|base| base.open(end, &mut take)).collect::<Result<_, _>>()?;
        let base = own.map(|(own, _)| StackedBase::new(own, below).map_err(bad_base)).transpose()?;
        let files = [swap?, reap?, packed?];
        let tier = swap_plan.home.tier;
        let home = PagesHome::reopen(base, tables, accelerator::open(codec)?, tier, |tables| {
            SwapHome::reopen(files, packing, tables, end, self.limit_bytes)
        })?;
        Ok(Hibernation {
            settling: Settling::new(self.settle, turn),
            ..Hibernation::new(Ok(home), swap_plan)
        })
    }
}

fn bad_base(error: BaseError) -> HandOverError {
    match error {
        BaseError::Damaged { what } => HandOverError::Damaged(what),
        BaseError::File(source) => HandOverError::Io(source),
        _ => HandOverError::Damaged("its base cannot be read"),
    }
}

fn device(file: File, name: &str) -> Box<dyn Device> {
    injection::faulty(Box::new(file), name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::mpsc;

    use abi::hostcall::{SWAP_IN_ALL, SWAP_IN_SET};
    use swap::PAGE_BYTES;

    use super::super::HomePlan;
    use super::super::tests::{begin, phys, sleep, swap_in};
    use super::*;
    use crate::handover::Numbered;
    use crate::memory::memory_file;

    const MEMORY: u64 = 4 << 20;

    /// A base whose pages begin with their numbers.
    fn base(pages: std::ops::Range<PageId>) -> FileBase {
        let file = File::from(memory_file(c"base").unwrap());
        file.set_len(u64::from(pages.end) * PAGE_BYTES as u64).unwrap();
        for page in pages.clone() {
            file.write_all_at(&page.to_ne_bytes(), u64::from(page) * PAGE_BYTES as u64).unwrap();
        }
        FileBase::new(file, pages.collect()).unwrap()
    }

    /// Such a base, packed.
    fn packed_base(pages: std::ops::Range<PageId>) -> FileBase {
        let (memory, hibernation) = begin();
        sleep(&memory, &hibernation, &pages.collect::<Vec<_>>());
        let [plain, table, packed, packed_table] =
            [(); 4].map(|()| File::from(memory_file(c"image").unwrap()));
        swap::write_pages(hibernation.home.as_ref().unwrap().read().pages(), &plain, &table).unwrap();
        let sums = swap::PageSums::read(&table, frames_of(MEMORY)).unwrap();
        swap::pack_base((&plain, &sums), (swap::Style::Lz4, None), (&packed, &packed_table), &|| true)
            .unwrap();
        let sums = swap::PageSums::read(&packed_table, frames_of(MEMORY)).unwrap();
        FileBase::with_sums(packed, sums).unwrap()
    }

    /// A base with pages in a file of its own, in a packed one, and in one of which it has few.
    fn stacked_base() -> StackedBase {
        let used = |pages: std::ops::Range<PageId>| pages.collect::<Bits>();
        let below = vec![(packed_base(1..60), used(10..60)), (base(1..100), used(70..90))];
        let own = base(1..10);
        let file = File::from(memory_file(c"base").unwrap());
        file.set_len(100 * PAGE_BYTES as u64).unwrap();
        for page in (60..70).chain(90..100) {
            file.write_all_at(&PageId::to_ne_bytes(page), u64::from(page) * PAGE_BYTES as u64).unwrap();
        }
        let more = FileBase::new(file, (60..70).chain(90..100).collect()).unwrap();
        let below = below.into_iter().chain([(own, used(1..10))]).collect();
        StackedBase::new(more, below).unwrap()
    }

    fn open(base: Option<StackedBase>) -> Hibernation {
        let packing = Packing { codec: "lz4".parse().unwrap(), ..Packing::default() };
        let dir = Some(std::env::temp_dir());
        let own = SwapPlan { dir, packing, settle: Duration::ZERO, ..SwapPlan::default() };
        Hibernation::open(&HostPaths::of_new_process(), HomePlan { base, own }).unwrap()
    }

    fn stat(hibernation: &Hibernation, name: &str) -> Option<u64> {
        hibernation.home_stats().0.into_iter().find(|stat| stat.name == name).map(|stat| stat.value)
    }

    /// Opens a home as another VMM does, by descriptors with other numbers.
    fn pass_on(
        left: &HomeLeft<'_>,
        change: impl FnOnce(&mut HomeRecord),
    ) -> Result<Hibernation, HandOverError> {
        let passed = left.descriptors().into_iter().map(|fd| {
            let old = fd.as_raw_fd();
            (old, fd.try_clone_to_owned().unwrap())
        });
        let passed: Vec<(RawFd, OwnedFd)> = passed.collect();
        let number_of = |old: RawFd| passed.iter().find(|(number, _)| *number == old).unwrap().1.as_raw_fd();
        let mut record = left.plan();
        record.files = record.files.map(number_of);
        record.turn = record.turn.map(number_of);
        record.base = record.base.map(|base| BaseRecord { file: number_of(base.file), ..base });
        record.below.iter_mut().for_each(|base| base.file = number_of(base.file));
        change(&mut record);
        let text = serde_json::to_string(&record).unwrap();
        let record: HomeRecord = serde_json::from_str(&text).unwrap();
        let all = passed.into_iter().map(|(_, fd)| Numbered { number: fd.as_raw_fd(), fd }).collect();
        let (mut placed, _) = Placed::place(all).unwrap();
        record.open(&HostPaths::of_new_process(), left.tables(), MEMORY, &mut placed)
    }

    #[test]
    fn a_home_on_a_base_stores_what_differs_and_goes_on_under_another_vmm() {
        for base in [base(1..100).into(), packed_base(1..100).into(), stacked_base()] {
            goes_on_under_another_vmm(base);
        }
    }

    fn goes_on_under_another_vmm(base: StackedBase) {
        let (memory, _) = begin();
        let hibernation = open(Some(base));
        // It begins with the base's pages.
        assert_eq!(swap_in(&memory, &hibernation, &[7, 99], SWAP_IN_SET).0, 0);
        assert_eq!((memory.read(phys(7)), memory.read(phys(99))), (Some(7_u32), Some(99_u32)));
        let ids: Vec<PageId> = (50..150).collect();
        sleep(&memory, &hibernation, &ids);
        // Those before the 50th were not listed any more.
        assert_eq!(
            (stat(&hibernation, "base_pages"), stat(&hibernation, "file_pages")),
            (Some(50), Some(50))
        );
        let left = hibernation.hand_over().unwrap();
        let next = pass_on(&left, |_| {}).unwrap();
        drop(left);
        for of in [&hibernation, &next] {
            ids.iter().for_each(|id| memory.write(phys(*id), &0_u32).unwrap());
            assert_eq!(swap_in(&memory, of, &ids, SWAP_IN_ALL).0, 0);
            assert!(ids.iter().all(|id| memory.read(phys(*id)) == Some(*id)));
            assert!(of.fetch(&memory, &mut [7], super::super::Fetch::All).is_err());
            assert_eq!(stat(of, "base_pages"), Some(50));
        }
        // Its own storage is packed as that of any other.
        let (tell, told) = mpsc::channel();
        next.when_told(move |told| tell.send(told).unwrap());
        let next = Arc::new(next);
        Hibernation::settle(&next);
        let told = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(told, super::super::Told::Packed(Ok(packed)) if packed.output_bytes > 0));
        assert_eq!(swap_in(&memory, &next, &ids, SWAP_IN_ALL).0, 0);
        assert!(ids.iter().all(|id| memory.read(phys(*id)) == Some(*id)));
    }

    #[test]
    fn a_home_without_a_base_has_none_under_another_vmm() {
        let (memory, _) = begin();
        let hibernation = open(None);
        sleep(&memory, &hibernation, &[3, 4]);
        let left = hibernation.hand_over().unwrap();
        let next = pass_on(&left, |record| assert!(record.base.is_none())).unwrap();
        // Its tables are no layered home's.
        let of_swap = |record: &mut HomeRecord| {
            record.base = Some(BaseRecord {
                file: record.turn.take().unwrap(),
                pages: Vec::new(),
                sums: None,
                packed: Box::default(),
                used: None,
            });
        };
        assert!(matches!(pass_on(&left, of_swap), Err(HandOverError::Tables(_))));
        drop(left);
        assert_eq!((swap_in(&memory, &next, &[3, 4], SWAP_IN_ALL).0, memory.read(phys(4))), (0, Some(4_u32)));
        assert_eq!(stat(&next, "base_pages"), None);
    }

    #[test]
    fn a_base_that_cannot_be_is_refused() {
        let hibernation = open(Some(base(1..100).into()));
        let left = hibernation.hand_over().unwrap();
        let refused = |pages: &[(PageId, PageId)]| {
            pass_on(&left, |record| record.base.as_mut().unwrap().pages = pages.into()).unwrap_err()
        };
        let end = frames_of(MEMORY);
        let impossible: [&[(PageId, PageId)]; 5] =
            [&[(5, 5)], &[(6, 5)], &[(1, 9), (8, 10)], &[(20, 30), (1, 9)], &[(1, end + 1)]];
        for pages in impossible {
            assert!(matches!(refused(pages), HandOverError::Damaged(_)), "{pages:?}");
        }
        let sums = pass_on(&left, |record| record.base.as_mut().unwrap().sums = Some(vec![0; 98]));
        assert!(matches!(sums, Err(HandOverError::Damaged(_))));
        // The file is shorter.
        assert!(matches!(refused(&[(1, 101)]), HandOverError::Io(_)));
        let lost = pass_on(&left, |record| record.base.as_mut().unwrap().file = 1 << 20);
        assert!(matches!(lost, Err(HandOverError::Damaged(_))));
    }
}
