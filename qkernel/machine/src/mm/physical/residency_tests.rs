use super::*;

fn absent(words: &[u64]) -> Residency {
    let residency = Residency::new();
    let table = |_| {
        let bits: Vec<AtomicU64> = words.iter().map(|_| AtomicU64::new(0)).collect();
        Some(&*bits.leak())
    };
    residency.prepare(table).unwrap();
    residency.replace(words.iter().copied());
    residency
}

fn claim(residency: &Residency, wanted: &[u32]) -> Vec<u32> {
    let mut claimed = Vec::new();
    residency.claim(wanted.iter().copied(), |_| Some(()), |index, ()| claimed.push(index));
    claimed
}

#[test]
fn only_what_is_absent_is_claimed_and_only_once() {
    let residency = absent(&[0b1010, 1]);
    assert_eq!(claim(&residency, &[0, 1, 64, 1, 500]), [1, 64]);
    assert_eq!(claim(&residency, &[1, 3, 64]), [3]);
    assert_eq!(
        [0, 1, 3].map(|index| residency.of(index)),
        [Residence::Resident, Residence::Arriving, Residence::Arriving]
    );
    residency.land([(1, Landed::Came), (3, Landed::Not)].into_iter());
    assert_eq!([1, 3].map(|index| residency.of(index)), [Residence::Resident, Residence::Absent]);
    assert_eq!(residency.count.load(Ordering::Relaxed), 2);
    assert_eq!(claim(&residency, &[1, 3, 64]), [3]);
}

#[test]
fn a_frame_that_nobody_gets_hold_of_stays_absent() {
    let residency = absent(&[2]);
    residency.claim([1].into_iter(), |_| None::<()>, |_, ()| panic!("claimed"));
    assert_eq!(residency.of(1), Residence::Absent);
    // Allocated anew between the look and the hold.
    let holds = |_| {
        clear(&residency.absent, 1);
        Some(())
    };
    residency.claim([1].into_iter(), holds, |_, ()| panic!("claimed"));
    assert_eq!(residency.of(1), Residence::Resident);
}

#[test]
fn a_frame_that_is_allocated_anew_is_not_fetched() {
    let residency = absent(&[6]);
    assert!(!residency.forget(1));
    assert_eq!(claim(&residency, &[1, 2]), [2]);
    assert_eq!(residency.count.load(Ordering::Relaxed), 1);
}

#[test]
fn a_touch_is_seen_once() {
    let residency = absent(&[4]);
    assert!(!residency.touch(1) && residency.touch(2) && !residency.touch(2));
    residency.replace([4].into_iter());
    assert!(residency.touch(2));
}

#[test]
fn what_stays_is_resident_again_but_for_what_is_on_its_way() {
    let residency = absent(&[0b1111, 1]);
    assert!(!residency.leaves(1));
    residency.stay([0b0111, 1].into_iter());
    assert_eq!(claim(&residency, &[1, 2]), [1, 2]);
    residency.land([(2, Landed::Came)].into_iter());
    // It has landed, was allocated anew, or never stayed.
    assert!(!residency.leaves(2) && residency.leaves(64) && !residency.leaves(64) && !residency.leaves(3));
    assert!(!residency.forget(64));
    residency.end_stay(1);
    assert_eq!(
        [0, 1, 2, 3, 64].map(|index| residency.of(index)),
        [
            Residence::Resident,
            Residence::Arriving,
            Residence::Resident,
            Residence::Absent,
            Residence::Resident
        ]
    );
    assert_eq!(residency.count.load(Ordering::Relaxed), 2);
    // It did not come, and is there.
    residency.land([(1, Landed::Not)].into_iter());
    assert_eq!((residency.of(1), residency.count.load(Ordering::Relaxed)), (Residence::Resident, 1));
}

#[test]
fn what_has_stayed_and_was_not_reached_stays_on() {
    let residency = absent(&[0b1111]);
    residency.stay([0b0111].into_iter());
    assert_eq!(claim(&residency, &[1]), [1]);
    residency.land([(1, Landed::Came)].into_iter());
    // All are marked again; the one that was reached is listed, and another one that was resident before.
    residency.replace([0b1_1111].into_iter());
    residency.stay([0b1_0010].into_iter());
    assert_eq!((residency.count.load(Ordering::Relaxed), residency.stayed()), (5, 4));
    // Frame 3 is elsewhere.
    assert!(
        [0, 1, 2, 4].iter().all(|index| is_set(&residency.staying, *index)) && !is_set(&residency.staying, 3)
    );
    // The number is another one.
    residency.end_stay(1);
    assert_eq!((residency.of(0), residency.number()), (Residence::Absent, Some(3)));
    residency.end_stay(3);
    assert_eq!([0, 1, 2, 4].map(|index| residency.of(index)), [Residence::Resident; 4]);
    assert_eq!((residency.of(3), residency.number()), (Residence::Absent, None));
    // Nothing has stayed by then that would stay on.
    residency.replace([0b1_1111].into_iter());
    residency.stay([0b1].into_iter());
    assert!(is_set(&residency.staying, 0) && !is_set(&residency.staying, 2));
}

#[test]
fn one_that_comes_late_to_end_it_ends_no_later_stay() {
    let residency = absent(&[0b11]);
    residency.stay([0b01].into_iter());
    residency.end_stay(1);
    residency.replace([0b11].into_iter());
    residency.stay([0b11].into_iter());
    residency.end_stay(1);
    assert_eq!((residency.of(0), residency.number()), (Residence::Absent, Some(3)));
    // A claim that is given back meanwhile leaves it where it is.
    assert_eq!(claim(&residency, &[1]), [1]);
    residency.land([(1, Landed::Not)].into_iter());
    assert_eq!(residency.of(1), Residence::Absent);
    residency.end_stay(3);
    assert_eq!([0, 1].map(|index| residency.of(index)), [Residence::Resident; 2]);
}

#[test]
fn another_vmms_memory_has_nothing_that_stays() {
    let residency = absent(&[0b11]);
    residency.stay([0b01].into_iter());
    residency.begin_elsewhere();
    assert!(!residency.leaves(0) && residency.number().is_none());
    assert_eq!([0, 1].map(|index| residency.of(index)), [Residence::Absent; 2]);
    assert_eq!(claim(&residency, &[0]), [0]);
    residency.land([(0, Landed::Not)].into_iter());
    assert_eq!(residency.of(0), Residence::Absent);
}

#[test]
fn what_the_template_shows_is_absent_still_until_it_comes() {
    let residency = absent(&[0b1111]);
    assert_eq!(claim(&residency, &[0, 1, 2]), [0, 1, 2]);
    residency.land([(0, Landed::Shown), (1, Landed::Shown), (2, Landed::Not)].into_iter());
    let shown = |residency: &Residency| [0, 1, 2, 3].map(|index| is_set(&residency.shown, index));
    assert_eq!(shown(&residency), [true, true, false, false]);
    assert_eq!((residency.of(0), residency.count.load(Ordering::Relaxed)), (Residence::Absent, 4));
    // Its content comes into the frame, or somebody else gets the frame: what is stored of it later is not the template's.
    assert_eq!(claim(&residency, &[0]), [0]);
    residency.land([(0, Landed::Came)].into_iter());
    assert!(!residency.forget(1));
    assert_eq!(shown(&residency), [false; 4]);
    residency.replace([0b0011].into_iter());
    assert_eq!(shown(&residency), [false; 4]);
}

#[test]
fn a_frame_that_was_shown_and_freed_is_not_shown_as_somebody_elses() {
    for allocated_before_the_sleep in [false, true] {
        let residency = absent(&[0b1111]);
        assert_eq!(claim(&residency, &[3]), [3]);
        residency.land([(3, Landed::Shown)].into_iter());
        // It is freed. A sleep that lists it no more, or not yet, comes before it has a new owner, or after.
        if allocated_before_the_sleep {
            assert!(!residency.forget(3));
        }
        residency.replace([0b0111].into_iter());
        if !allocated_before_the_sleep {
            assert!(!residency.forget(3));
        }
        residency.replace([0b1111].into_iter());
        assert!(residency.of(3) == Residence::Absent && !is_set(&residency.shown, 3));
    }
}

#[test]
fn another_vmm_shows_nothing_yet() {
    let residency = absent(&[0b11]);
    assert_eq!(claim(&residency, &[1]), [1]);
    residency.land([(1, Landed::Shown)].into_iter());
    residency.begin_elsewhere();
    assert!(!is_set(&residency.shown, 1) && residency.of(1) == Residence::Absent);
}

#[test]
fn marking_anew_drops_what_was_marked() {
    let residency = absent(&[1, 1]);
    residency.replace([2, 0].into_iter());
    assert_eq!(
        [0, 1, 64].map(|index| residency.of(index)),
        [Residence::Resident, Residence::Absent, Residence::Resident]
    );
}
