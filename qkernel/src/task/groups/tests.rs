use super::*;
use crate::fs::inode::AttrChange;

fn make(groups: &Groups, parent: GroupId, name: &[u8]) -> Result<GroupId> {
    groups.make(parent, &NewGroup { name, owner: Owner { mode: 0o755, uid: 7, gid: 8 } })
}

fn give(groups: &Groups, id: GroupId, words: &str) -> Result<()> {
    groups.hand_on(id, Change::parse(words).unwrap())
}

fn remove(groups: &Groups, parent: GroupId, name: &[u8]) -> Result<()> {
    groups.remove((parent, name), &[], || ())
}

fn ticks(user: u64) -> Ticks {
    Ticks { user, system: 2 * user }
}

/// A process with one task.
fn process(groups: &Groups, id: GroupId) -> Member {
    let member = Member::new(groups.root());
    groups.begin_in(&member, id).unwrap();
    groups.add_task(&member);
    member
}

#[test]
fn paths_are_below_the_containers_own_group() {
    let groups = Groups::new();
    let a = make(&groups, groups.root(), b"a").unwrap();
    let b = make(&groups, a, b"b").unwrap();
    assert_eq!(groups.path(groups.root()).unwrap(), b"/");
    assert_eq!(groups.path(b).unwrap(), b"/a/b");
    assert_eq!(groups.common(b, a), a);
    let c = make(&groups, groups.root(), b"c").unwrap();
    assert_eq!(groups.common(b, c), groups.root());
    assert!(groups.is_within(a, b) && !groups.is_within(b, a) && !groups.is_within(c, b));
    assert_eq!(make(&groups, a, b"b"), Err(Errno::EEXIST));
    assert_eq!(remove(&groups, groups.root(), b"a"), Err(Errno::EBUSY));
    remove(&groups, a, b"b").unwrap();
    assert_eq!(groups.path(b), None);
    assert_eq!(make(&groups, b, b"x"), Err(Errno::ENODEV));
    assert_eq!(groups.find(a, b"b"), Err(Errno::ENOENT));
    assert_eq!(groups.facts(groups.root()).unwrap().descendants, 2);
}

#[test]
fn tasks_count_for_all_groups_above() {
    let groups = Groups::new();
    let a = make(&groups, groups.root(), b"a").unwrap();
    let b = make(&groups, a, b"b").unwrap();
    let member = process(&groups, b);
    groups.add_task(&member);
    let tasks = |id| groups.facts(id).unwrap().tasks;
    assert_eq!([tasks(groups.root()), tasks(a), tasks(b)], [2, 2, 2]);
    assert_eq!(remove(&groups, a, b"b"), Err(Errno::EBUSY));
    groups.move_to(&member, (member.group(), a), ticks(10)).unwrap();
    assert_eq!([tasks(groups.root()), tasks(a), tasks(b)], [2, 2, 0]);
    assert_eq!(member.used_here(ticks(15)), ticks(5));
    groups.remove_task(&member, None);
    groups.remove_task(&member, Some(ticks(30)));
    let used = |id| groups.facts(id).unwrap().used;
    assert_eq!([used(groups.root()), used(a), used(b)], [ticks(30), ticks(30), ticks(10)]);
    assert_eq!(member.used_here(ticks(30)), Ticks::default());
    assert_eq!(groups.move_to(&member, (member.group(), b), ticks(30)), Err(Errno::ESRCH));
    remove(&groups, a, b"b").unwrap();
    assert_eq!(groups.move_to(&member, (member.group(), b), ticks(30)), Err(Errno::ENODEV));
    assert_eq!(groups.facts(a).unwrap().tasks_peak, 2);
}

#[test]
fn a_limit_of_tasks_holds_for_all_below() {
    let groups = Groups::new();
    let a = make(&groups, groups.root(), b"a").unwrap();
    let b = make(&groups, a, b"b").unwrap();
    give(&groups, groups.root(), "+pids").unwrap();
    groups.set(a, |settings| settings.pids_max = 1).unwrap();
    assert_eq!(groups.check_room(b), Ok(()));
    let member = process(&groups, b);
    assert_eq!(groups.check_room(b), Err(Errno::EAGAIN));
    let refused = |id| groups.facts(id).unwrap().counts.forks_refused;
    assert_eq!([refused(groups.root()), refused(a), refused(b)], [1, 1, 0]);
    // A limit goes with its controller, and does not come back with it.
    for change in ["-pids", "+pids"] {
        give(&groups, groups.root(), change).unwrap();
        assert_eq!(groups.check_room(b), Ok(()), "{change}");
    }
    groups.set(a, |settings| settings.pids_max = 1).unwrap();
    assert_eq!(groups.check_room(b), Err(Errno::EAGAIN));
    groups.remove_task(&member, Some(Ticks::default()));
    assert_eq!(groups.check_room(b), Ok(()));
}

#[test]
fn controllers_are_handed_down_and_taken_back() {
    let groups = Groups::new();
    let a = make(&groups, groups.root(), b"a").unwrap();
    let b = make(&groups, a, b"b").unwrap();
    assert_eq!(give(&groups, a, "+pids"), Err(Errno::ENOENT));
    give(&groups, groups.root(), "+pids +memory").unwrap();
    give(&groups, a, "+pids").unwrap();
    assert_eq!(groups.facts(b).unwrap().standing.has, Controllers::PIDS);
    assert_eq!(give(&groups, groups.root(), "-pids"), Err(Errno::EBUSY));
    give(&groups, groups.root(), "-memory").unwrap();
    // Processes go below, or where only such controllers are handed on that tell threads apart.
    let member = process(&groups, b);
    assert_eq!(groups.move_to(&member, (member.group(), a), Ticks::default()), Err(Errno::EBUSY));
    give(&groups, a, "-pids").unwrap();
    groups.move_to(&member, (member.group(), a), Ticks::default()).unwrap();
    remove(&groups, a, b"b").unwrap();
    give(&groups, groups.root(), "-pids").unwrap();
    let c = make(&groups, a, b"c").unwrap();
    give(&groups, groups.root(), "+memory").unwrap();
    assert_eq!(give(&groups, a, "+memory"), Err(Errno::EBUSY), "it has a process");
    // A group that goes uses nothing any more.
    groups.move_to(&member, (member.group(), c), Ticks::default()).unwrap();
    give(&groups, a, "+memory").unwrap();
    groups.remove_task(&member, Some(Ticks::default()));
    remove(&groups, a, b"c").unwrap();
    remove(&groups, groups.root(), b"a").unwrap();
    give(&groups, groups.root(), "-memory").unwrap();
}

#[test]
fn who_comes_in_goes_beside_the_first_process_where_the_root_is_closed() {
    let groups = Groups::new();
    let a = make(&groups, groups.root(), b"a").unwrap();
    let first = process(&groups, a);
    let other = Member::new(groups.root());
    groups.come_in(&other, &first);
    assert_eq!(other.group(), groups.root());
    give(&groups, groups.root(), "+memory").unwrap();
    groups.come_in(&other, &first);
    assert_eq!(other.group(), a);
}

#[test]
fn depth_and_number_are_bounded() {
    let groups = Groups::new();
    let mut at = groups.root();
    let mut depth = 0;
    while let Ok(id) = make(&groups, at, b"d") {
        (at, depth) = (id, depth + 1);
    }
    assert_eq!(depth, DEPTH_MAX);
    let a = make(&groups, groups.root(), b"a").unwrap();
    groups.set(a, |settings| (settings.max_depth, settings.max_descendants) = (1, 2)).unwrap();
    let b = make(&groups, a, b"b").unwrap();
    assert_eq!(make(&groups, b, b"c"), Err(Errno::EAGAIN));
    make(&groups, a, b"c").unwrap();
    assert_eq!(make(&groups, a, b"e"), Err(Errno::EAGAIN));
}

#[test]
fn events_are_due_once_and_go_with_the_group() {
    let groups = Groups::new();
    let a = make(&groups, groups.root(), b"a").unwrap();
    let seen = crate::fs::changes::Seen::of(groups.changes(a, Event::Group).unwrap());
    let plain = seen.poll(None);
    let member = process(&groups, a);
    groups.add_task(&member);
    groups.tell();
    assert_ne!(seen.poll(None), plain);
    assert_eq!(seen.poll(None), plain);
    groups.remove_task(&member, None);
    groups.tell();
    assert_eq!(seen.poll(None), plain, "it is populated as before");
    groups.remove_task(&member, Some(Ticks::default()));
    remove(&groups, groups.root(), b"a").unwrap();
    groups.tell();
    assert_eq!(groups.changes(a, Event::Group).err(), Some(Errno::ENODEV));
}

#[test]
fn whoever_makes_a_group_owns_it_and_its_files() {
    let groups = Groups::new();
    let a = make(&groups, groups.root(), b"a").unwrap();
    let owner = |file, mode| groups.owner(a, file, mode).unwrap().0;
    assert_eq!(owner(DIR, 0), Owner { mode: 0o755, uid: 7, gid: 8 });
    assert_eq!(owner("cgroup.procs", 0o644), Owner { mode: 0o644, uid: 7, gid: 8 });
    let change = AttrChange { uid: Some(9), ..AttrChange::default() };
    groups.set_owner(a, DIR, 0, &change).unwrap();
    assert_eq!((owner(DIR, 0).uid, owner("pids.max", 0o644).uid), (9, 7));
    groups.set_owner(a, "pids.max", 0o644, &AttrChange { mode: Some(0o600), ..change }).unwrap();
    assert_eq!(owner("pids.max", 0o644), Owner { mode: 0o600, uid: 9, gid: 8 });
}

#[test]
fn attributes_are_kept_within_bounds() {
    let groups = Groups::new();
    let root = groups.root();
    groups.set_xattr(root, b"trusted.a", b"1", 0).unwrap();
    assert_eq!(groups.set_xattr(root, b"trusted.a", b"2", 1), Err(Errno::EEXIST));
    assert_eq!(groups.set_xattr(root, b"user.b", b"2", 2), Err(Errno::ENODATA));
    groups.set_xattr(root, b"user.b", b"2", 0).unwrap();
    assert_eq!(groups.list_xattrs(root).unwrap(), b"trusted.a\0user.b\0");
    assert_eq!(groups.xattr(root, b"user.b").unwrap(), b"2");
    assert_eq!(groups.set_xattr(root, b"user.c", &[0; 65_536], 0), Err(Errno::ENOSPC));
    groups.remove_xattr(root, b"user.b").unwrap();
    assert_eq!(groups.remove_xattr(root, b"user.b"), Err(Errno::ENODATA));
}

#[test]
fn a_kill_for_memory_may_take_the_whole_group() {
    let groups = Groups::new();
    let a = make(&groups, groups.root(), b"a").unwrap();
    let b = make(&groups, a, b"b").unwrap();
    give(&groups, groups.root(), "+memory").unwrap();
    give(&groups, a, "+memory").unwrap();
    assert_eq!(groups.killed_for_memory(b), None);
    groups.set(b, |settings| settings.is_oom_group = true).unwrap();
    assert_eq!(groups.killed_for_memory(b), Some(b));
    groups.set(a, |settings| settings.is_oom_group = true).unwrap();
    assert_eq!(groups.killed_for_memory(b), Some(a), "the highest one counts");
    let counts = groups.facts(a).unwrap().counts;
    assert_eq!((counts.oom_kills, counts.oom_group_kills), (3, 2));
}
