use super::*;

fn frames_of(set: &[Touch]) -> Vec<u32> {
    set.iter().map(|touch| touch.frame).collect()
}

fn same(touch: &Touch) -> Option<(u32, bool)> {
    Some((touch.frame, false))
}

fn set_of(touches: &[(u64, u32)]) -> WorkingSet {
    let mut set = WorkingSet::new();
    touches.iter().for_each(|&(page, frame)| set.touch(Touch::new(1, page, frame)));
    set
}

impl WorkingSet {
    /// Goes on to the next set as storing it does; result: its frames.
    fn turn(&mut self, probe: Probe) -> Vec<u32> {
        let next = self.next(probe, same);
        (self.members, self.touched) = (Members::of(&next), Vec::new());
        frames_of(&next)
    }

    /// A wake in which these pages of space 1 are used: what of them faults is seen. Result: what was
    /// probed.
    fn wake(&mut self, used: &[u64]) -> Probe {
        let probe = self.next_probe();
        let members: Vec<_> = self.members.touches().map(|member| member.key()).collect();
        for page in used {
            let key = (1, *page);
            if probe.includes(key) || !members.contains(&key) {
                self.touch(Touch::new(1, *page, low32(page / PAGE)));
            }
        }
        self.turn(probe);
        probe
    }
}

#[test]
fn what_was_only_read_is_remembered_as_such_and_what_was_written_is_recorded_as_such() {
    let mut set = set_of(&[(0x7000, 7), (0x8000, 8), (0x9000, 9)]);
    let next = set.next(Probe::NONE, |touch| Some((touch.frame, touch.frame != 8)));
    set.store(&next);
    assert_eq!(set.members.touches().map(|touch| touch.is_read).collect::<Vec<_>>(), [true, false, true]);
    let mut set = set_of(&[(0x7000, 7), (0x8000, 8)]);
    set.written.insert(8);
    assert_eq!(set.frames(), [7, 8 | WRITTEN]);
}

#[test]
fn what_is_new_comes_after_what_was_touched_before_it_and_what_is_gone_does_not() {
    let mut set = set_of(&[(0x7000, 7), (0x3000, 3), (0x9000, 9)]);
    let next = set.next(Probe::NONE, |touch| (touch.frame != 9).then_some((touch.frame, false)));
    assert_eq!(frames_of(&next), [7, 3]);
    assert_eq!(set.turn(Probe::NONE), [7, 3, 9]);
    set.touched = [1, 3, 5, 4, 9, 6].map(|frame| Touch::new(1, u64::from(frame) * PAGE, frame)).to_vec();
    assert_eq!(set.turn(Probe::NONE), [1, 7, 3, 5, 4, 9, 6]);
}

#[test]
fn neighbours_take_the_room_of_one() {
    let set = set_of(&[(0x1000, 7), (0x2000, 8), (0x3000, 9), (0x5000, 10), (0x6000, 12)]);
    let store = [4, 5].map(|frame| Touch::new(NO_SPACE, 0, frame));
    let mut all: Vec<Touch> = set.touched.iter().chain(&store).copied().collect();
    all[1].idle_probes = 0;
    let members = Members::of(&all);
    assert_eq!((members.runs.len(), members.len()), (4, 7));
    assert_eq!(members.touches().collect::<Vec<_>>(), all);
}

#[test]
fn a_page_that_was_copied_is_in_the_set_with_its_new_frame() {
    let set = set_of(&[(0x7000, 7)]);
    assert_eq!(frames_of(&set.next(Probe::NONE, |touch| (touch.page == 0x7000).then_some((8, false)))), [8]);
}

#[test]
fn the_untouched_leave_after_two_probes_and_the_new_after_one() {
    let mut set = set_of(&[(0x7000, 7), (0x3000, 3), (0x5000, 5)]);
    assert_eq!(set.turn(Probe::NONE), [7, 3, 5]);
    for (used, left) in [(vec![7, 3], vec![7, 3]), (vec![3], vec![7, 3]), (vec![3], vec![3])] {
        set.touched = used.iter().map(|frame| Touch::new(1, u64::from(*frame) * PAGE, *frame)).collect();
        assert_eq!(set.turn(Probe::ALL), left);
        assert_eq!(set.turn(Probe::NONE), left);
    }
}

#[test]
fn a_touch_makes_up_for_a_probe_in_vain() {
    let mut set = set_of(&[(0x7000, 7)]);
    set.turn(Probe::NONE);
    for _ in 0..3 {
        set.touch(Touch::new(1, 0x7000, 7));
        assert_eq!(set.turn(Probe::ALL), [7]);
        assert_eq!(set.turn(Probe::ALL), [7]);
    }
    assert_eq!(set.turn(Probe::ALL), []);
}

#[test]
fn each_page_is_probed_once_in_a_round_whatever_the_order() {
    for parts in [QUICK_PARTS, PARTS] {
        for space in 1..4 {
            for page in (0..300).map(|page| 0x7f12_3456_7000 + page * PAGE) {
                let times = (0..parts).filter(|part| Probe { part: *part, parts }.includes((space, page)));
                assert_eq!(times.count(), 1);
            }
        }
        assert!(!Probe::NONE.includes((1, u64::from(parts) * PAGE)));
    }
}

#[test]
fn the_parts_are_about_equal_where_pages_lie_together_and_where_they_do_not() {
    for step in [1, 2, 16, 512, 4096] {
        let probe = Probe { part: 5, parts: PARTS };
        let probed =
            (0..3200).filter(|page| probe.includes((7, 0x7f00_0000_0000 + page * step * PAGE))).count();
        assert!((50..150).contains(&probed), "{probed} of 3200 at distance {step}");
    }
}

#[test]
fn pages_of_two_processes_are_probed_and_leave_apart() {
    let both = [Touch::new(1, 0x7000, 7), Touch::new(2, 0x7000, 7)];
    let mut set = WorkingSet { touched: both.to_vec(), ..WorkingSet::new() };
    assert_eq!(set.turn(Probe::NONE), [7, 7]);
    let of_first =
        (0..PARTS).map(|part| Probe { part, parts: PARTS }).find(|probe| probe.includes((1, 0x7000)));
    let of_first = of_first.unwrap();
    assert!(!of_first.includes((2, 0x7000)));
    set.touch(both[0]);
    for left in [vec![7, 7], vec![7, 7], vec![7]] {
        assert_eq!(set.turn(of_first), left);
    }
    assert_eq!(set.members.touches().next().map(|member| member.space), Some(2));
}

#[test]
fn files_in_memory_leave_when_they_were_probed_in_vain() {
    let mut set = WorkingSet::new();
    [4, 5].into_iter().for_each(|frame| set.touch(Touch::new(NO_SPACE, 0, frame)));
    assert_eq!(set.turn(Probe::ALL), [4, 5]);
    set.touch(Touch::new(NO_SPACE, 0, 5));
    assert_eq!(set.turn(Probe::ALL), [5]);
}

#[test]
fn wrong_guesses_are_gone_after_the_first_round() {
    let pages = |range: core::ops::Range<u64>| range.map(|page| page * PAGE);
    // By a wake without REAP.
    let mut set = WorkingSet::new();
    set.touched.extend(pages(100..500).map(|page| Touch::new(1, page, low32(page / PAGE))));
    assert_eq!(set.turn(Probe::NONE).len(), 400);
    let used: Vec<u64> = pages(100..200).collect();
    let mut last = 400;
    for _ in 0..QUICK_PARTS {
        set.wake(&used);
        let len = set.members.len();
        assert!((20..80).contains(&(last - len)), "{last} {len}");
        last = len;
    }
    let used: Vec<u32> = (100..200).collect();
    assert_eq!(frames_of(&set.members.touches().collect::<Vec<_>>()), used);
    assert_eq!(set.next_probe(), Probe { part: QUICK_PARTS, parts: PARTS });
}

#[test]
fn a_page_that_is_used_in_some_wakes_comes_and_goes() {
    let mut set = set_of(&[(0x7000, 7), (0x3000, 3)]);
    assert_eq!(set.turn(Probe::NONE), [7, 3]);
    // Its uses while it is not probed nobody sees; when it is probed it is used the first time, and then no more.
    let (mut probes, mut used) = (0, vec![0x3000, 0x7000]);
    while set.members.len() == 2 {
        if set.wake(&used).includes((1, 0x7000)) {
            probes += 1;
            used.truncate(1);
        }
    }
    assert_eq!(probes, 1 + KEEP_PROBES);
    // It faults then, and is back.
    set.wake(&[0x3000, 0x7000]);
    assert_eq!(set.members.len(), 2);
}

#[test]
fn the_longer_touches_go_on_page_by_page_the_more_come_along() {
    let mut set = WorkingSet::new();
    let mut touch = |space, page: u64| {
        let along = set.sequence(space, page * PAGE);
        assert_eq!(along.start, page * PAGE);
        (along.end - along.start) / PAGE
    };
    assert_eq!([10, 11, 13, 17, 25, 41, 73, 105].map(|page| touch(1, page)), [1, 2, 4, 8, 16, 32, 32, 32]);
    // Others in between do not end it, in the same process or in another one.
    assert_eq!([touch(2, 137), touch(1, 500), touch(2, 138), touch(1, 137)], [1, 1, 2, 32]);
    // Some of those that were to come along did not.
    assert_eq!([touch(2, 139), touch(1, 150)], [4, 32]);
    assert_eq!([900, 800, 700, 600].map(|page| touch(1, page)), [1; 4]);
}

#[test]
fn a_set_that_grew_by_half_is_probed_quickly_again() {
    let page = |page| Touch::new(1, page * 0x5000, 1);
    let of_pages = |count: u64| Members::of(&(1..=count).map(page).collect::<Vec<_>>());
    let mut set = WorkingSet { members: of_pages(40), ..WorkingSet::new() };
    let quick = |set: &mut WorkingSet| set.next_probe().parts == QUICK_PARTS;
    assert!((0..QUICK_PARTS).all(|_| quick(&mut set)));
    set.members = of_pages(10);
    assert!(!quick(&mut set));
    set.members = of_pages(15);
    assert!((0..2 * PARTS).all(|_| !quick(&mut set)));
    set.members = of_pages(16);
    assert!((0..QUICK_PARTS).all(|_| quick(&mut set)));
    assert!(!quick(&mut set) && !quick(&mut set));
}

#[test]
fn a_guess_is_for_the_image_alone() {
    let pages: Vec<Touch> = (0..3).map(|i| Touch::new(7, u64::from(i) * PAGE, i)).collect();
    let mut set = WorkingSet::new();
    set.store_guess(&pages);
    assert_eq!(set.members.touches().count(), 3);
    set.begin_in_place();
    set.touch(pages[0]);
    assert!(set.members.len() == 0 && set.touched.is_empty());
    // With a set, what is touched joins it.
    set.store(&pages[..1]);
    set.begin_in_place();
    set.touch(pages[1]);
    assert_eq!(frames_of(&set.next(Probe::NONE, same)), [1, 0]);
}

#[test]
fn a_recorded_set_is_not_probed_and_all_is_while_one_is_recorded() {
    let mut set = set_of(&[(0x7000, 7), (0x3000, 3), (0x9000, 9), (0x3000, 3), (0x8000, 7)]);
    set.learning = Learning::Recording;
    assert_eq!([set.probe(true), set.probe(false)], [Probe::ALL; 2]);
    assert_eq!(set.frames(), [7, 3, 9]);
    set.learning = Learning::Recorded;
    assert_eq!([set.probe(true), set.probe(false)], [Probe::NONE; 2]);
    // All members stay, and what is new joins.
    set.members = Members::of(&[Touch::new(1, 0x5000, 5)]);
    assert_eq!(set.next(Probe::NONE, same).len(), 6);
    set.store(&[Touch::new(1, 0x7000, 7)]);
    assert_eq!([set.probe(true).parts, set.probe(false).parts], [QUICK_PARTS, 0]);
}

#[test]
fn a_recording_has_a_bound() {
    let mut set = WorkingSet::new();
    set.touched = (0..=low32(WORKING_SET_MAX_PAGES as u64)).map(|at| Touch::new(NO_SPACE, 0, at)).collect();
    assert_eq!(set.frames().len(), WORKING_SET_MAX_PAGES);
}
