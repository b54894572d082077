use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Barrier;

use proptest::prelude::*;

use super::*;

const BASE: u64 = 0x1_4000_0000;

/// Control pages of `blocks` blocks, in memory of their own.
struct Table(Box<[ControlPage]>);

impl Table {
    fn new(blocks: usize) -> Self {
        Self((0..blocks).map(|_| ControlPage::new()).collect())
    }
}

impl ControlPages for Table {
    fn page(&self, block: usize) -> NonNull<ControlPage> {
        NonNull::from(&self.0[block])
    }
}

type Frames = BitmapAllocator<Table>;

fn frames(blocks: usize, limit_frames: usize) -> Frames {
    // SAFETY: the table has a page for each block; frames of these tests are numbers only.
    unsafe {
        BitmapAllocator::new(
            BASE,
            blocks as u64 * BLOCK_BYTES,
            limit_frames,
            Table::new(blocks),
            SpinLock::new(),
        )
    }
}

/// Allocates until nothing is left.
fn drain(frames: &Frames) -> Vec<Frame> {
    std::iter::from_fn(|| frames.alloc()).map(|(frame, _)| frame).collect()
}

#[test]
fn every_frame_but_the_control_pages_is_handed_out_once() {
    let frames = frames(3, usize::MAX);
    let all = drain(&frames);
    assert_eq!(all.len(), 3 * USABLE_FRAMES);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    assert!(
        all.iter().all(|f| f.addr().is_multiple_of(FRAME_BYTES) && !f.addr().is_multiple_of(BLOCK_BYTES))
    );
    assert!(all.iter().all(|f| frames.range().contains(&f.addr())));
    assert_eq!(frames.frames_in_use(), all.len());
}

#[test]
fn a_freed_frame_is_dirty_and_comes_back() {
    let frames = frames(1, usize::MAX);
    let (frame, clean) = frames.alloc().unwrap();
    assert!(clean);
    assert_eq!(frames.dec_ref(frame), Ok(true));
    assert_eq!(frames.alloc(), Some((frame, false)));
}

#[test]
fn the_limit_holds_and_can_be_changed() {
    let frames = frames(2, 5);
    assert_eq!(drain(&frames).len(), 5);
    assert_eq!(frames.alloc_run(8, None), None);
    frames.set_limit_frames(7);
    assert_eq!(frames.alloc_run(8, None).map(|run| run.frames), Some(2));
    frames.set_limit_frames(1);
    assert_eq!(frames.alloc(), None);
    assert_eq!(frames.limit_frames(), 1);
}

#[test]
fn runs_continue_where_the_last_one_ended() {
    let frames = frames(2, usize::MAX);
    let first = frames.alloc_run(16, None).unwrap();
    let second = frames.alloc_run(16, Some(first.start.add(first.frames))).unwrap();
    assert_eq!(second.start, first.start.add(16));
    assert_eq!((second.frames, second.clean), (16, true));
    // The frame after is taken: the run starts elsewhere, and has full length.
    let third = frames.alloc_run(16, Some(second.start)).unwrap();
    assert_eq!((third.start, third.frames), (second.start.add(16), 16));
    assert_eq!(frames.alloc_run(0, None), None);
    assert_eq!(frames.alloc_run(4096, None).unwrap().frames, MAX_RUN_FRAMES);
}

#[test]
fn a_run_prefers_length_over_the_first_hole() {
    let frames = frames(1, usize::MAX);
    let all = frames.alloc_run(64, None).unwrap();
    frames.dec_ref(all.start.add(3)).unwrap();
    for index in 20..28 {
        frames.dec_ref(all.start.add(index)).unwrap();
    }
    let run = frames.alloc_run(8, None).unwrap();
    assert_eq!((run.start, run.frames, run.clean), (all.start.add(20), 8, false));
}

#[test]
fn a_run_stops_where_the_content_changes() {
    let frames = frames(1, usize::MAX);
    let all = frames.alloc_run(8, None).unwrap();
    frames.dec_refs((0..8).map(|index| all.start.add(index)));
    let run = frames.alloc_run(512, Some(all.start)).unwrap();
    assert_eq!((run.frames, run.clean), (8, false));
    assert!(frames.alloc_run(512, Some(all.start.add(8))).unwrap().clean);
}

#[test]
fn a_full_reference_count_is_refused_and_kept() {
    let frames = frames(1, usize::MAX);
    let (frame, _) = frames.alloc().unwrap();
    for expected in 2..=u16::MAX {
        assert_eq!(frames.inc_ref(frame), Ok(expected));
    }
    assert_eq!(frames.inc_ref(frame), Err(RefError::Overflow));
    assert_eq!(frames.ref_count(frame), Ok(u16::MAX));
    for _ in 1..u16::MAX {
        assert_eq!(frames.dec_ref(frame), Ok(false));
    }
    assert_eq!(frames.dec_ref(frame), Ok(true));
}

#[test]
fn wrong_frames_are_refused() {
    let frames = frames(2, usize::MAX);
    let outside = [0, BASE - FRAME_BYTES, BASE + 2 * BLOCK_BYTES, !0xfff, BASE + FRAME_BYTES + 1];
    for frame in outside.map(Frame::new) {
        assert_eq!(frames.inc_ref(frame), Err(RefError::OutOfRange));
        assert_eq!(frames.dec_ref(frame), Err(RefError::OutOfRange));
        assert_eq!(frames.ref_count(frame), Err(RefError::OutOfRange));
    }
    // Free: in a block never used, freed twice, a control page.
    let (freed, _) = frames.alloc().unwrap();
    frames.dec_ref(freed).unwrap();
    for frame in [Frame::new(BASE + BLOCK_BYTES + FRAME_BYTES), freed, Frame::new(BASE)] {
        assert_eq!(frames.inc_ref(frame), Err(RefError::Free));
        assert_eq!(frames.dec_ref(frame), Err(RefError::Free));
        assert_eq!(frames.ref_count(frame), Ok(0));
    }
    assert_eq!(frames.dec_refs([freed, Frame::new(1)]), Dropped { freed: 0, refused: 2 });
    assert!(frames.mark_clean(BASE, 3 * BLOCK_BYTES).is_err());
    assert!(frames.mark_clean(BASE + 1, FRAME_BYTES).is_err());
    assert!(frames.mark_clean(u64::MAX - 4095, FRAME_BYTES).is_err());
}

#[test]
fn empty_blocks_are_returned_and_used_before_new_ones() {
    let frames = frames(4, usize::MAX);
    let all: Vec<_> = (0..3 * USABLE_FRAMES).map(|_| frames.alloc().unwrap().0).collect();
    assert_eq!(frames.stats().blocks_in_use, 3);
    let middle = all.iter().copied().filter(|f| (f.addr() - BASE) / BLOCK_BYTES == 1);
    assert_eq!(frames.dec_refs(middle), Dropped { freed: USABLE_FRAMES, refused: 0 });
    let stats = frames.stats();
    assert_eq!((stats.blocks_in_use, stats.blocks_opened), (2, 3));
    let (frame, _) = frames.alloc().unwrap();
    assert_eq!((frame.addr() - BASE) / BLOCK_BYTES, 1);
}

#[test]
fn reclaim_shows_each_dirty_free_frame_once_and_nothing_else() {
    let frames = frames(2, usize::MAX);
    let run = frames.alloc_run(10, None).unwrap();
    for index in [2, 3, 4, 8] {
        frames.dec_ref(run.start.add(index)).unwrap();
    }
    let mut shown = Vec::new();
    frames.for_each_free_range(|addr, len| shown.push((addr, len)));
    let expected = vec![(run.start.add(2).addr(), 3 * FRAME_BYTES), (run.start.add(8).addr(), FRAME_BYTES)];
    assert_eq!(shown, expected);
    let mut asked = Vec::new();
    let released = frames.reclaim(|addr, len| {
        asked.push((addr, len));
        // Nobody gets the frames that are being released.
        let (other, clean) = frames.alloc().unwrap();
        assert!(clean && other > run.start.add(9));
        len > FRAME_BYTES
    });
    assert_eq!((asked, released), (expected, 3 * FRAME_BYTES));
    assert_eq!(frames.stats().dirty_free_frames, 1);
    assert_eq!(frames.alloc(), Some((run.start.add(2), true)));
    frames.mark_clean(BASE, 2 * BLOCK_BYTES).unwrap();
    assert_eq!(frames.stats().dirty_free_frames, 0);
}

#[test]
fn a_step_releases_long_runs_of_one_block_and_no_more_than_it_may() {
    let frames = frames(3, usize::MAX);
    let all = drain(&frames);
    let block = |frame: &Frame| (frame.addr() - BASE) / BLOCK_BYTES;
    // The middle block whole, every other frame of the last.
    frames.dec_refs(all.iter().copied().filter(|frame| block(frame) == 1));
    frames.dec_refs(all.iter().copied().filter(|frame| block(frame) == 2).step_by(2));
    let dirty = frames.stats().dirty_free_frames;
    assert_eq!(frames.dirty_free_frames(), dirty);
    let mut asked = Vec::new();
    let mut release = |addr, len| {
        // Others see that there will be frames again.
        assert_eq!((frames.set_aside_frames(), frames.dirty_free_frames()), (500, dirty - 500));
        asked.push((addr, len));
        true
    };
    assert_eq!(frames.reclaim_step(usize::MAX, 16, 500, &mut release), Some((1, 500)));
    assert_eq!(asked, [(BASE + BLOCK_BYTES + FRAME_BYTES, 500 * FRAME_BYTES)]);
    assert_eq!((frames.set_aside_frames(), frames.dirty_free_frames()), (0, dirty - 500));
    // One that is refused stays as it was.
    assert_eq!(frames.reclaim_step(2, 16, 100, |_, _| false), Some((1, 0)));
    assert_eq!((frames.set_aside_frames(), frames.dirty_free_frames()), (0, dirty - 500));
    assert_eq!(frames.reclaim_step(2, 16, usize::MAX, |_, _| true), Some((1, USABLE_FRAMES - 500)));
    assert_eq!(frames.reclaim_step(1, 16, 500, |_, _| panic!("nothing is free")), Some((0, 0)));
    assert_eq!(frames.reclaim_step(0, 16, 500, |_, _| panic!("no block")), None);
    assert_eq!(frames.reclaim_step(3, 1, usize::MAX, |_, _| true).map(|(block, _)| block), Some(2));
    assert_eq!(frames.dirty_free_frames(), 0);
}

#[test]
fn frames_with_host_memory_are_taken_before_blocks_without() {
    let frames = frames(3, usize::MAX);
    let all = drain(&frames);
    frames.dec_refs(all);
    assert_eq!(frames.reclaim_step(2, 1, usize::MAX, |_, _| true), Some((1, USABLE_FRAMES)));
    let (_, taken) = frames.take_watermark();
    for _ in 0..2 * USABLE_FRAMES {
        assert!(!frames.alloc().unwrap().1);
    }
    assert_eq!(frames.take_watermark(), (0, taken));
    assert!(frames.alloc().unwrap().1);
    assert_eq!(frames.take_watermark(), (0, taken + 1));
}

#[test]
fn the_watermark_is_how_many_were_never_needed() {
    let frames = frames(1, usize::MAX);
    let run = frames.alloc_run(100, None).unwrap();
    let give = |count: usize| frames.dec_refs((0..count).map(|at| run.start.add(at)));
    assert_eq!(give(100).freed, 100);
    assert_eq!(frames.take_watermark().0, 0, "there were none at first");
    assert_eq!(frames.take_watermark().0, 100);
    let again = frames.alloc_run(60, Some(run.start)).unwrap();
    assert_eq!((again.start, again.frames), (run.start, 60));
    give(60);
    assert_eq!(frames.take_watermark().0, 40);
    assert_eq!(frames.take_watermark().0, 100);
    frames.mark_clean(run.start.addr(), 30 * FRAME_BYTES).unwrap();
    assert_eq!(frames.take_watermark().0, 70);
}

#[test]
fn top_blocks_close_when_empty_and_clean() {
    let frames = frames(3, usize::MAX);
    let all = drain(&frames);
    frames.dec_refs(all.iter().copied().filter(|f| f.addr() >= BASE + BLOCK_BYTES));
    let mut closed = Vec::new();
    frames.close_top_blocks(|block| closed.push(block));
    assert_eq!(closed, []);
    frames.reclaim(|_, _| true);
    frames.close_top_blocks(|block| closed.push(block));
    assert_eq!(closed, [2, 1]);
    assert_eq!(frames.stats().blocks_opened, 1);
    assert_eq!(frames.dec_ref(all[2 * USABLE_FRAMES]), Err(RefError::Free));
    // A closed block opens again, all clean.
    let (frame, clean) = frames.alloc().unwrap();
    assert!(clean && frame.addr() == BASE + BLOCK_BYTES + FRAME_BYTES);
}

#[test]
fn control_pages_may_open_their_blocks() {
    const BLOCK: usize = BLOCK_FRAMES * size_of::<ControlPage>();
    let layout = std::alloc::Layout::from_size_align(2 * BLOCK, BLOCK).unwrap();
    // SAFETY: the layout is not empty.
    let memory = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
    let base = memory.addr().get() as u64;
    let control = StridedControl::in_blocks(memory);
    // SAFETY: the memory is zero-filled, aligned, and this allocator's alone.
    let frames = unsafe { BitmapAllocator::new(base, 2 * BLOCK_BYTES, usize::MAX, control, SpinLock::new()) };
    let at = |frame: Frame| {
        memory.as_ptr().wrapping_add(usize::try_from(frame.addr() - base).unwrap()).cast::<u64>()
    };
    let all: Vec<_> = std::iter::from_fn(|| frames.alloc()).collect();
    assert_eq!(all.len(), 2 * USABLE_FRAMES);
    for &(frame, clean) in &all {
        assert!(clean);
        // SAFETY: the frame is ours; writing all of it must not disturb the control pages.
        unsafe { std::slice::from_raw_parts_mut(at(frame), 512).fill(frame.addr()) };
    }
    // SAFETY: the frames are ours, and were written.
    assert!(all.iter().all(|&(frame, _)| unsafe { at(frame).add(511).read() } == frame.addr()));
    assert_eq!(frames.dec_refs(all.iter().map(|&(frame, _)| frame)).freed, all.len());
    assert_eq!(frames.stats().blocks_in_use, 0);
    // SAFETY: nothing uses the memory any more.
    unsafe { std::alloc::dealloc(memory.as_ptr(), layout) };
}

#[test]
fn threads_share_frames_without_losing_any() {
    let frames = frames(2, 1500);
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for seed in 0..4usize {
            let (frames, barrier) = (&frames, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let mut held = Vec::new();
                for step in 0..20_000usize {
                    match (step * 7 + seed * 3 + step / 11) % 5 {
                        0 | 1 => held.extend(frames.alloc().map(|(frame, _)| frame)),
                        2 => {
                            if let Some(run) = frames.alloc_run(9, held.last().map(|frame| frame.add(1))) {
                                held.extend((0..run.frames).map(|index| run.start.add(index)));
                            }
                        }
                        3 if !held.is_empty() => {
                            let frame = held[step % held.len()];
                            frames.inc_ref(frame).unwrap();
                            held.push(frame);
                        }
                        _ => {
                            let keep = held.len() / 2;
                            assert_eq!(frames.dec_refs(held.drain(keep..)).refused, 0);
                        }
                    }
                }
                frames.dec_refs(held);
            });
        }
    });
    assert_eq!(frames.frames_in_use(), 0);
    frames.set_limit_frames(usize::MAX);
    assert_eq!(drain(&frames).len(), 2 * USABLE_FRAMES);
}

/// A step of a random sequence. Indices are taken modulo the number of frames held.
#[derive(Clone, Debug)]
enum Op {
    Alloc,
    Run { max: usize, near: Option<usize> },
    Inc(usize),
    Dec(usize),
    DecMany { from: usize, count: usize, step: usize },
    Reclaim { refuse: usize },
    Step { below: usize, least: usize, most: usize },
    Clean { from: usize, count: usize },
    Close,
    Limit(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => Just(Op::Alloc),
        4 => (0..600usize, prop::option::of(any::<usize>())).prop_map(|(max, near)| Op::Run { max, near }),
        3 => any::<usize>().prop_map(Op::Inc),
        3 => any::<usize>().prop_map(Op::Dec),
        3 => (any::<usize>(), 0..1200usize, 1..4usize)
            .prop_map(|(from, count, step)| Op::DecMany { from, count, step }),
        1 => (1..9usize).prop_map(|refuse| Op::Reclaim { refuse }),
        2 => (0..5usize, 1..20usize, 1..1500usize)
            .prop_map(|(below, least, most)| Op::Step { below, least, most }),
        1 => (any::<usize>(), 0..2000usize).prop_map(|(from, count)| Op::Clean { from, count }),
        1 => Just(Op::Close),
        1 => (0..4 * BLOCK_FRAMES).prop_map(Op::Limit),
    ];
    prop::collection::vec(op, 1..120)
}

/// The plain model: a count and a "may be dirty" for each frame of memory.
struct Model {
    refs: Vec<u16>,
    dirty: Vec<bool>,
    limit: usize,
}

impl Model {
    fn new(blocks: usize) -> Self {
        let count = blocks * BLOCK_FRAMES;
        Self { refs: vec![0; count], dirty: vec![false; count], limit: usize::MAX }
    }

    fn index(frame: Frame) -> usize {
        ((frame.addr() - BASE) / FRAME_BYTES) as usize
    }

    fn is_free(&self, index: usize) -> bool {
        !index.is_multiple_of(BLOCK_FRAMES) && self.refs.get(index) == Some(&0)
    }

    fn in_use(&self) -> usize {
        self.refs.iter().filter(|&&count| count > 0).count()
    }

    fn may_alloc(&self) -> bool {
        self.in_use() < self.limit && (0..self.refs.len()).any(|index| self.is_free(index))
    }

    fn take(&mut self, start: Frame, count: usize, clean: bool) {
        let start = Self::index(start);
        assert_eq!(start / BLOCK_FRAMES, (start + count - 1) / BLOCK_FRAMES, "a run stays in its block");
        for index in start..start + count {
            assert!(self.is_free(index));
            assert_eq!(self.dirty[index], !clean);
            self.refs[index] = 1;
        }
        assert!(self.in_use() <= self.limit);
    }

    /// Drops a reference: whether it was the last, or that the frame was free.
    fn drop_ref(&mut self, index: usize) -> Result<bool, RefError> {
        self.refs[index] = self.refs[index].checked_sub(1).ok_or(RefError::Free)?;
        self.dirty[index] |= self.refs[index] == 0;
        Ok(self.refs[index] == 0)
    }

    fn dirty_free(&self) -> BTreeSet<usize> {
        (0..self.refs.len()).filter(|&index| self.refs[index] == 0 && self.dirty[index]).collect()
    }
}

fn at(index: usize) -> Frame {
    Frame::new(BASE).add(index)
}

fn apply(frames: &Frames, model: &mut Model, op: &Op) {
    let total = model.refs.len();
    match *op {
        Op::Alloc => {
            let expected = model.may_alloc();
            let got = frames.alloc();
            assert_eq!(got.is_some(), expected);
            got.inspect(|&(frame, clean)| model.take(frame, 1, clean));
        }
        Op::Run { max, near } => {
            let expected = max > 0 && model.may_alloc();
            let got = frames.alloc_run(max, near.map(|index| at(index % (total + 10))));
            assert_eq!(got.is_some(), expected);
            if let Some(run) = got {
                assert!(run.frames >= 1 && run.frames <= max.min(MAX_RUN_FRAMES));
                model.take(run.start, run.frames, run.clean);
            }
        }
        Op::Inc(index) => {
            let index = index % total;
            let expected =
                if model.refs[index] == 0 { Err(RefError::Free) } else { Ok(model.refs[index] + 1) };
            assert_eq!(frames.inc_ref(at(index)), expected);
            model.refs[index] = expected.unwrap_or(0);
        }
        Op::Dec(index) => assert_eq!(frames.dec_ref(at(index % total)), model.drop_ref(index % total)),
        Op::DecMany { from, count, step } => {
            let list: Vec<_> = (0..count).map(|k| (from % total + k * step) % total).collect();
            let mut expected = Dropped::default();
            for &index in &list {
                match model.drop_ref(index) {
                    Ok(last) => expected.freed += usize::from(last),
                    Err(_) => expected.refused += 1,
                }
            }
            assert_eq!(frames.dec_refs(list.into_iter().map(at)), expected);
        }
        Op::Reclaim { refuse } => reclaim(frames, model, refuse),
        Op::Step { below, least, most } => step(frames, model, below, least, most),
        Op::Clean { from, count } => {
            let from = from % total;
            let count = count.min(total - from);
            frames.mark_clean(at(from).addr(), count as u64 * FRAME_BYTES).unwrap();
            for index in from..from + count {
                model.dirty[index] &= model.refs[index] > 0;
            }
        }
        Op::Close => frames.close_top_blocks(|block| {
            let range = block * BLOCK_FRAMES..(block + 1) * BLOCK_FRAMES;
            assert!(range.into_iter().all(|index| model.refs[index] == 0 && !model.dirty[index]));
        }),
        Op::Limit(limit) => {
            model.limit = limit;
            frames.set_limit_frames(limit);
        }
    }
}

/// Reclaims, refusing every range with `refuse` frames or more.
fn reclaim(frames: &Frames, model: &mut Model, refuse: usize) {
    let mut seen = BTreeSet::new();
    let mut cleaned = Vec::new();
    frames.reclaim(|addr, len| {
        let count = (len / FRAME_BYTES) as usize;
        let range = Model::index(Frame::new(addr))..Model::index(Frame::new(addr)) + count;
        seen.extend(range.clone());
        if count < refuse {
            cleaned.extend(range);
        }
        count < refuse
    });
    assert_eq!(seen, model.dirty_free());
    cleaned.into_iter().for_each(|index| model.dirty[index] = false);
}

fn step(frames: &Frames, model: &mut Model, below: usize, least: usize, most: usize) {
    let mut cleaned = Vec::new();
    let result = frames.reclaim_step(below, least, most, |addr, len| {
        let count = (len / FRAME_BYTES) as usize;
        cleaned.extend((0..count).map(|at| Model::index(Frame::new(addr).add(at))));
        true
    });
    assert!(cleaned.len() <= most);
    let free = model.dirty_free();
    assert!(cleaned.iter().all(|index| free.contains(index) && index / BLOCK_FRAMES < below));
    if let Some((block, released)) = result {
        assert!(cleaned.iter().all(|index| index / BLOCK_FRAMES == block));
        assert_eq!(released, cleaned.len());
    }
    cleaned.into_iter().for_each(|index| model.dirty[index] = false);
}

fn agree(frames: &Frames, model: &Model) {
    let stats = frames.stats();
    assert_eq!(stats.frames_in_use, model.in_use());
    assert_eq!(frames.frames_in_use(), stats.frames_in_use);
    assert_eq!(stats.dirty_free_frames, model.dirty_free().len());
    assert_eq!((frames.dirty_free_frames(), frames.set_aside_frames()), (stats.dirty_free_frames, 0));
    let used_blocks =
        model.refs.chunks(BLOCK_FRAMES).filter(|block| block.iter().any(|&count| count > 0)).count();
    assert_eq!(stats.blocks_in_use, used_blocks);
    let mut shown = BTreeSet::new();
    frames.for_each_free_range(|addr, len| {
        let start = Model::index(Frame::new(addr));
        shown.extend(start..start + (len / FRAME_BYTES) as usize);
    });
    assert_eq!(shown, model.dirty_free());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_sequences_agree_with_the_model(ops in ops()) {
        const BLOCKS: usize = 3;
        let frames = frames(BLOCKS, usize::MAX);
        let mut model = Model::new(BLOCKS);
        for op in &ops {
            apply(&frames, &mut model, op);
            agree(&frames, &model);
        }
        for index in 0..model.refs.len() {
            prop_assert_eq!(frames.ref_count(at(index)), Ok(model.refs[index]));
        }
        // Nothing is lost: the rest can be allocated, to the last frame.
        frames.set_limit_frames(usize::MAX);
        prop_assert_eq!(drain(&frames).len() + model.in_use(), BLOCKS * USABLE_FRAMES);
    }
}
