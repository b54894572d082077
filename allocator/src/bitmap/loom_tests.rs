//! All interleavings of a few operations, by the model checker:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p allocator loom`.

use std::ptr::NonNull;

use loom::sync::Arc;
use loom::thread;

use super::*;

struct Table(Box<[ControlPage]>);

impl ControlPages for Table {
    fn page(&self, block: usize) -> NonNull<ControlPage> {
        NonNull::from(&self.0[block])
    }
}

type Frames = BitmapAllocator<Table>;

fn frames(blocks: usize) -> Arc<Frames> {
    let table = Table((0..blocks).map(|_| ControlPage::new()).collect());
    // SAFETY: the table has a page for each block; frames are numbers only.
    Arc::new(unsafe { Frames::new(0, blocks as u64 * BLOCK_BYTES, usize::MAX, table, SpinLock::new()) })
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

/// Runs `there` in a second thread and `here` in this one.
fn race<A: 'static, B>(
    frames: &Arc<Frames>,
    there: impl FnOnce(&Frames) -> A + 'static,
    here: impl FnOnce(&Frames) -> B,
) -> (A, B) {
    let other = thread::spawn({
        let frames = frames.clone();
        move || there(&frames)
    });
    let here = here(frames);
    (other.join().unwrap(), here)
}

/// Every frame is free, and can be allocated.
fn nothing_lost(frames: &Frames, blocks: usize) {
    assert_eq!(frames.frames_in_use(), 0);
    assert_eq!(frames.stats().blocks_in_use, 0);
    assert_eq!(std::iter::from_fn(|| frames.alloc()).count(), blocks * USABLE_FRAMES);
}

#[test]
fn two_holders_drop_and_one_frees() {
    check(|| {
        let frames = frames(1);
        let (frame, _) = frames.alloc().unwrap();
        frames.inc_ref(frame).unwrap();
        let (a, b) = race(&frames, move |f| f.dec_ref(frame).unwrap(), |f| f.dec_ref(frame).unwrap());
        assert!(a != b, "exactly one of them drops the last reference");
        nothing_lost(&frames, 1);
    });
}

#[test]
fn a_frame_is_reused_only_after_its_last_holder_is_done_with_it() {
    check(|| {
        let frames = frames(1);
        let content = Arc::new(loom::cell::UnsafeCell::new(0u8));
        let (frame, _) = frames.alloc().unwrap();
        frames.inc_ref(frame).unwrap();
        let use_and_drop = move |f: &Frames, content: &loom::cell::UnsafeCell<u8>| {
            // SAFETY: the checker sees to it that reads and writes do not overlap.
            content.with(|byte| assert_eq!(unsafe { *byte }, 0));
            if f.dec_ref(frame).unwrap() {
                assert_eq!(f.alloc(), Some((frame, false)));
                // SAFETY: as above.
                content.with_mut(|byte| unsafe { *byte = 1 });
                f.dec_ref(frame).unwrap();
            }
        };
        let other = content.clone();
        race(&frames, move |f| use_and_drop(f, &other), |f| use_and_drop(f, &content));
        nothing_lost(&frames, 1);
    });
}

#[test]
fn a_double_free_is_refused_once() {
    check(|| {
        let frames = frames(1);
        let (frame, _) = frames.alloc().unwrap();
        let (a, b) = race(&frames, move |f| f.dec_ref(frame), |f| f.dec_ref(frame));
        assert!([(Ok(true), Err(RefError::Free)), (Err(RefError::Free), Ok(true))].contains(&(a, b)));
        nothing_lost(&frames, 1);
    });
}

#[test]
fn sharing_races_with_dropping() {
    check(|| {
        let frames = frames(1);
        let (frame, _) = frames.alloc().unwrap();
        frames.inc_ref(frame).unwrap();
        let share_and_drop = move |f: &Frames| {
            f.inc_ref(frame).unwrap();
            [f.dec_ref(frame).unwrap(), f.dec_ref(frame).unwrap()]
        };
        let ([first, second], other) = race(&frames, share_and_drop, |f| f.dec_ref(frame).unwrap());
        assert!(!first, "this holder had another reference");
        assert!(second != other);
        nothing_lost(&frames, 1);
    });
}

#[test]
fn freeing_into_a_full_block_races_with_allocating() {
    check(|| {
        let frames = frames(1);
        let held: Vec<_> = std::iter::from_fn(|| frames.alloc()).map(|(frame, _)| frame).collect();
        let freed = held[1];
        let (last, got) = race(&frames, move |f| f.dec_ref(freed), |f| f.alloc());
        assert_eq!(last, Ok(true));
        let rest = held.into_iter().filter(|&frame| frame != freed);
        if let Some((frame, clean)) = got {
            assert_eq!((frame, clean), (freed, false));
            assert_eq!(frames.dec_ref(frame), Ok(true));
        }
        assert_eq!(frames.dec_refs(rest).refused, 0);
        nothing_lost(&frames, 1);
    });
}

#[test]
fn allocators_get_distinct_frames_while_a_block_opens() {
    check(|| {
        let frames = frames(2);
        let (a, b) = race(&frames, |f| f.alloc_run(2, None).unwrap(), |f| f.alloc_run(2, None).unwrap());
        let list = |run: Run| (0..run.frames).map(move |index| run.start.add(index));
        assert!(list(a).all(|frame| list(b).all(|other| frame != other)));
        // Blocks that were opened there are seen here, without the lock.
        assert!(list(a).chain(list(b)).all(|frame| frames.ref_count(frame) == Ok(1)));
        assert_eq!(frames.dec_refs(list(a).chain(list(b))).refused, 0);
        nothing_lost(&frames, 2);
    });
}

#[test]
fn reclaim_races_with_allocating_and_freeing() {
    check(|| {
        let frames = frames(1);
        let held: Vec<_> = std::iter::from_fn(|| frames.alloc()).map(|(frame, _)| frame).collect();
        let [first, second, third] = held[..] else { panic!("three frames") };
        frames.dec_ref(first).unwrap();
        let churn = move |f: &Frames| {
            f.dec_ref(second).unwrap();
            f.alloc().map(|(frame, _)| frame)
        };
        let (got, released) = race(&frames, churn, |f| {
            let mut released = Vec::new();
            f.reclaim(|addr, _| {
                released.push(f.ref_count(Frame::new(addr)));
                true
            });
            released
        });
        assert!(released.iter().all(|&count| count == Ok(0)), "an allocated frame was released");
        frames.dec_refs(got.into_iter().chain([third]));
        nothing_lost(&frames, 1);
    });
}

#[test]
fn a_step_of_reclaiming_races_with_allocating_and_freeing() {
    check(|| {
        let frames = frames(1);
        let held: Vec<_> = std::iter::from_fn(|| frames.alloc()).map(|(frame, _)| frame).collect();
        let [first, second, third] = held[..] else { panic!("three frames") };
        frames.dec_ref(first).unwrap();
        let churn = move |f: &Frames| {
            f.dec_ref(second).unwrap();
            f.alloc().map(|(frame, _)| frame)
        };
        let (got, released) = race(&frames, churn, |f| {
            let mut released = Vec::new();
            f.reclaim_step(1, 1, 1, |addr, _| {
                released.push((f.ref_count(Frame::new(addr)), f.set_aside_frames()));
                true
            });
            released
        });
        assert!(released.iter().all(|&seen| seen == (Ok(0), 1)), "an allocated frame was released");
        frames.dec_refs(got.into_iter().chain([third]));
        nothing_lost(&frames, 1);
    });
}
