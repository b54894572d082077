use super::*;
use crate::fs::notify::instance::Queued;
use crate::fs::notify::limits::Limits;
use alloc::vec;

fn instance(limits: &Arc<Limits>) -> Arc<Instance> {
    Instance::new(limits.take(7).expect("a place"))
}

/// Keys of a test's own: tests run side by side.
fn target(key: usize) -> Target {
    Target { key, tree: key, is_dir: false, dev: 1, ino: 2, pin: Pin::NONE, by_host: None }
}

/// A target as a view sees it, which keeps a name and a node.
fn target_of(key: usize, tree: usize, kept: &(Arc<()>, Arc<()>)) -> Target {
    let pin = Pin { name: Some(Box::new(kept.0.clone())), node: Some(Box::new(kept.1.clone())) };
    Target { tree, pin, ..target(key) }
}

fn counts(kept: &(Arc<()>, Arc<()>)) -> (usize, usize) {
    (Arc::strong_count(&kept.0) - 1, Arc::strong_count(&kept.1) - 1)
}

fn all(instance: &Instance) -> Vec<(i32, Mask, Vec<u8>)> {
    let next = || instance.take(4096).expect("room");
    core::iter::from_fn(next)
        .map(|Queued { descriptor, mask, name, .. }| (descriptor, mask, name.to_vec()))
        .collect()
}

fn named(mask: Mask, name: &[u8]) -> Event<'_> {
    Event { mask, cookie: 0, name, is_unlinked: false, by_host: false }
}

#[test]
fn watches_are_told_what_they_want_once() {
    let limits = Limits::new();
    let (one, other) = (instance(&limits), instance(&limits));
    let key = 0x1000;
    assert_eq!(add(&one, target(key), Mask::CREATE | Mask::OPEN), Ok(1));
    assert_eq!(add(&other, target(key), Mask::DELETE), Ok(1));
    for _ in 0..3 {
        tell(key, &named(Mask::CREATE, b"a"));
    }
    tell(key, &named(Mask::CREATE, b"b"));
    tell(key, &named(Mask::MODIFY, b"b"));
    let created = |name: &[u8]| (1, Mask::CREATE, name.to_vec());
    assert_eq!(all(&one), [created(b"a"), created(b"b")]);
    assert!(all(&other).is_empty());
    assert_eq!(add(&one, target(key), Mask::DELETE | Mask::MASK_CREATE), Err(Errno::EEXIST));
    assert_eq!(add(&one, target(key), Mask::DELETE | Mask::MASK_ADD), Ok(1));
    tell(key, &named(Mask::OPEN, b"a"));
    assert_eq!(add(&one, target(key), Mask::DELETE), Ok(1));
    tell(key, &named(Mask::OPEN, b"c"));
    assert_eq!(all(&one), [(1, Mask::OPEN, b"a".to_vec())]);
    end(key, Mask::DELETE_SELF);
    assert_eq!(all(&one), [(1, Mask::IGNORED, vec![])]);
    assert_eq!((one.remove(1), is_watched(key, Mask::DELETE)), (Err(Errno::EINVAL), false));
    assert_eq!(add(&one, target(key), Mask::DELETE), Ok(2));
}

#[test]
fn a_watch_for_one_event_ends_with_it() {
    let one = instance(&Limits::new());
    let key = 0x2000;
    assert_eq!(add(&one, target(key), Mask::OPEN | Mask::ONE_SHOT), Ok(1));
    tell(key, &Event::own(Mask::OPEN));
    tell(key, &Event::own(Mask::OPEN));
    assert_eq!(all(&one), [(1, Mask::OPEN, vec![]), (1, Mask::IGNORED, vec![])]);
    assert!(!is_watched(key, Mask::OPEN));
}

#[test]
fn a_full_queue_says_so_once() {
    let limits = Limits::new();
    limits.events.store(3, Ordering::Relaxed);
    let one = instance(&limits);
    let key = 0x3000;
    assert_eq!(add(&one, target(key), Mask::EVENTS), Ok(1));
    for name in [b"a", b"b", b"c", b"d", b"e"] {
        tell(key, &named(Mask::CREATE, name));
    }
    assert_eq!(one.readable_bytes(), 3 * 32 + 16);
    assert_eq!(all(&one)[2..], [(1, Mask::CREATE, b"c".to_vec()), (-1, Mask::OVERFLOW, vec![])]);
    assert_eq!((one.readable_bytes(), one.is_empty()), (0, true));
    tell(key, &named(Mask::CREATE, b"f"));
    assert_eq!((one.take(16), one.take(31)), (Err(Errno::EINVAL), Err(Errno::EINVAL)));
    assert_eq!(all(&one).len(), 1);
}

#[test]
fn users_have_as_much_as_the_limits_say() {
    let limits = Limits::new();
    limits.instances.store(2, Ordering::Relaxed);
    limits.watches.store(1, Ordering::Relaxed);
    let (one, other) = (instance(&limits), instance(&limits));
    assert_eq!(limits.take(7).map(drop), Err(Errno::EMFILE));
    assert!(limits.take(8).is_ok());
    assert_eq!(add(&one, target(0x4000), Mask::OPEN), Ok(1));
    assert_eq!(add(&other, target(0x4000), Mask::OPEN), Err(Errno::ENOSPC));
    assert_eq!(one.remove(1), Ok(()));
    assert_eq!(add(&other, target(0x4000), Mask::OPEN), Ok(1));
    drop(other);
    assert!(!is_watched(0x4000, Mask::OPEN));
    assert_eq!(add(&one, target(0x4000), Mask::OPEN), Ok(2));
    assert!(limits.take(7).is_ok());
}

#[test]
fn a_node_has_more_watches_than_are_told_at_a_time() {
    let limits = Limits::new();
    let key = 0x5000;
    let many: Vec<_> = (0..CHUNK * 2 + 1).map(|_| instance(&limits)).collect();
    for one in &many {
        assert_eq!(add(one, target(key), Mask::OPEN), Ok(1));
    }
    tell(key, &Event::own(Mask::OPEN));
    unmounted(key);
    for one in &many {
        let told: Vec<_> = all(one).into_iter().map(|(_, mask, _)| mask).collect();
        assert_eq!(told, [Mask::OPEN, Mask::UNMOUNT, Mask::IGNORED]);
    }
}

#[test]
fn the_end_of_a_view_ends_its_own_watches_alone() {
    let limits = Limits::new();
    let (key, other_key, view, other_view) = (0x6000, 0x6001, 0x6010, 0x6020);
    let (kept, other_kept) = <((Arc<()>, Arc<()>), (Arc<()>, Arc<()>))>::default();
    let (one, other) = (instance(&limits), instance(&limits));
    assert_eq!(add(&one, target_of(key, view, &kept), Mask::OPEN), Ok(1));
    assert_eq!(add(&other, target_of(key, other_view, &other_kept), Mask::OPEN), Ok(1));
    assert_eq!(add(&other, target_of(other_key, view, &kept), Mask::OPEN), Ok(2));
    assert_eq!((counts(&kept), counts(&other_kept)), ((2, 2), (1, 1)));
    unmounted(view);
    assert_eq!((counts(&kept), counts(&other_kept)), ((0, 0), (1, 1)));
    let ended = |descriptor| [Mask::UNMOUNT, Mask::IGNORED].map(|mask| (descriptor, mask, vec![]));
    assert_eq!((all(&one), all(&other)), (ended(1).to_vec(), ended(2).to_vec()));
    tell(key, &Event::own(Mask::OPEN));
    assert_eq!((all(&one), all(&other)), (vec![], vec![(1, Mask::OPEN, vec![])]));
    unmounted(other_view);
    assert_eq!((all(&other), counts(&other_kept)), (ended(1).to_vec(), (0, 0)));
}

#[test]
fn who_leaves_keeps_nothing_of_a_node_that_others_watch() {
    let limits = Limits::new();
    let (key, view, other_view) = (0x7000, 0x7010, 0x7020);
    let (kept, other_kept) = <((Arc<()>, Arc<()>), (Arc<()>, Arc<()>))>::default();
    let (one, other) = (instance(&limits), instance(&limits));
    assert_eq!(add(&one, target_of(key, view, &kept), Mask::OPEN), Ok(1));
    assert_eq!(add(&other, target_of(key, other_view, &other_kept), Mask::OPEN), Ok(1));
    drop(one);
    assert_eq!((counts(&kept), counts(&other_kept)), ((0, 0), (1, 1)));
    // Found by another view, it is kept there.
    assert_eq!(add(&other, target_of(key, view, &kept), Mask::OPEN), Ok(1));
    assert_eq!((counts(&kept), counts(&other_kept)), ((1, 1), (0, 0)));
    assert_eq!(other.remove(1), Ok(()));
    assert_eq!(counts(&kept), (0, 0));
}

#[test]
fn all_watches_of_a_node_give_up_what_they_keep() {
    let limits = Limits::new();
    let (key, kept) = (0x8000, <(Arc<()>, Arc<()>)>::default());
    let many: Vec<_> = (0..CHUNK * 2 + 1).map(|_| instance(&limits)).collect();
    for one in &many {
        assert_eq!(add(one, target_of(key, key, &kept), Mask::OPEN), Ok(1));
    }
    release_names(key);
    assert_eq!(counts(&kept), (0, many.len()));
    release(key);
    assert_eq!(counts(&kept), (0, 0));
    tell(key, &Event::own(Mask::OPEN));
    assert!(many.iter().all(|one| all(one) == [(1, Mask::OPEN, vec![])]));
}

fn feed_it(descriptor: Descriptor, told: Mask, key: usize) -> Option<Node> {
    REGISTRY
        .lock()
        .begin_to_feed(HostWatch { descriptor, told, charge: machine::host_watches::charge() }, key)
}

#[test]
fn what_the_host_tells_is_told_once() {
    let one = instance(&Limits::new());
    let (key, fed) = (0x9000, 9000);
    assert_eq!(add(&one, target(key), Mask::CREATE | Mask::DELETE), Ok(1));
    assert!(feed_it(fed, Mask::CREATE, key).is_none());
    tell(key, &Event { by_host: true, ..named(Mask::CREATE, b"own") });
    assert!(all(&one).is_empty());
    tell_of(Of::Fed(fed), &named(Mask::CREATE, b"own"));
    // The host does not tell of this, or knows nothing of it.
    tell(key, &Event { by_host: true, ..named(Mask::DELETE, b"a") });
    tell(key, &named(Mask::CREATE, b"pipe"));
    tell_of(Of::Fed(fed + 1), &named(Mask::CREATE, b"other"));
    let told = |mask, name: &[u8]| (1, mask, name.to_vec());
    let wanted = [told(Mask::CREATE, b"own"), told(Mask::DELETE, b"a"), told(Mask::CREATE, b"pipe")];
    assert_eq!(all(&one), wanted);
}

#[test]
fn a_fed_node_ends_when_the_host_says_so() {
    let (one, other) = (instance(&Limits::new()), instance(&Limits::new()));
    let (key, fed) = (0xa000, 10_000);
    assert_eq!(add(&one, target(key), Mask::EVENTS), Ok(1));
    assert!(feed_it(fed, Mask::EVENTS, key).is_none());
    gone(key);
    assert!(all(&one).is_empty());
    // Another node has its key by now.
    assert_eq!(add(&other, target(key), Mask::EVENTS), Ok(1));
    tell_of(Of::Fed(fed), &named(Mask::ATTRIB, b""));
    tell(key, &named(Mask::OPEN, b""));
    tell_of(Of::Fed(fed), &named(Mask::DELETE_SELF, b""));
    assert!(feed_ended(fed).is_some() && feed_ended(fed).is_none());
    let told = |mask| (1, mask, vec![]);
    assert_eq!(all(&one), [told(Mask::ATTRIB), told(Mask::DELETE_SELF), told(Mask::IGNORED)]);
    assert_eq!(all(&other), [told(Mask::OPEN)]);
    assert!(REGISTRY.lock().unfed.contains(&fed));
}

#[test]
fn a_watch_of_a_node_that_is_ending_can_be_removed() {
    let one = instance(&Limits::new());
    let (key, fed) = (0xb000, 11_000);
    assert_eq!(add(&one, target(key), Mask::EVENTS), Ok(1));
    assert!(feed_it(fed, Mask::EVENTS, key).is_none());
    gone(key);
    assert_eq!(one.remove(1), Ok(()));
    assert!(REGISTRY.lock().unfed.contains(&fed) && feed_ended(fed).is_none());
    // The host may know a node still that has ended here, and find it again.
    assert_eq!(add(&one, target(key), Mask::EVENTS), Ok(2));
    assert!(feed_it(fed, Mask::EVENTS, key).is_none());
    gone(key);
    assert_eq!(add(&one, target(key), Mask::EVENTS), Ok(3));
    assert!(feed_it(fed, Mask::EVENTS, key).is_some_and(|node| node.watches.len() == 1));
}
