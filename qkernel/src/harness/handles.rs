//! Handles of the host's, of which containers of a sandbox leave each other some.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::harness::containers::make;
use crate::harness::host::{feed_process, results};
use crate::harness::rounds::run_all;
use crate::harness::script::{EXIT_GROUP, PAUSE, call};
use crate::harness::steps::Step;
use crate::harness::world::{first_container, make_leader, make_root};
use crate::task::container::{Container, ContainerId};
use crate::task::core::Task;
use machine::errno::Errno;
use machine::handles;
use machine::testing;

pub const SCENARIOS: &[fn()] = &[
    a_container_by_itself_gets_all,
    one_that_hoards_leaves_half,
    what_ends_gives_all_back,
    who_comes_in_gets_some_from_a_full_container,
];

const SECOND: ContainerId = ContainerId(2);
const SOCKET: u64 = 41;
const INTERNET: u64 = 2;
const DATAGRAM: u64 = 2;
/// Most handles that programs may have, without those kept for processes that come in from outside.
const MOST: usize = testing::HANDLES as usize - 64;
/// More than there are.
const MANY: usize = 1000;

fn sockets(count: usize, last: Step) -> Vec<Step> {
    let socket = (0..count).map(|_| call(SOCKET, &[INTERNET, DATAGRAM, 0]));
    socket.chain([last]).collect()
}

/// Has a new process of the container make so many sockets.
fn hoard(container: &Arc<Container>, count: usize, last: Step) -> Arc<Task> {
    let leader = make_leader(container, &make_root(), 0);
    hoard_by(&leader, count, last);
    leader
}

fn hoard_by(leader: &Arc<Task>, count: usize, last: Step) {
    testing::set_sockets(1 << 20);
    feed_process(leader.process.container.id, leader.process.pid, sockets(count, last));
    leader.start();
    run_all();
    testing::set_sockets(0);
}

/// How many it has got; each other one was refused as it should be.
fn got(task: &Task) -> usize {
    let results = results(task.process.container.id, task.process.pid);
    let got = results.iter().filter(|result| **result >= 0).count();
    let refused = -i64::from(Errno::ENFILE.0);
    assert!(results.iter().all(|result| *result >= 0 || *result == refused), "{results:?}");
    got
}

fn a_container_by_itself_gets_all() {
    let leader = hoard(&first_container(), MANY, call(PAUSE, &[]));
    assert_eq!((got(&leader), handles::in_use()), (MOST, MOST), "handles of the only container");
}

fn one_that_hoards_leaves_half() {
    let second = make(SECOND);
    let hoarder = hoard(&second, MANY, call(PAUSE, &[]));
    assert_eq!(got(&hoarder), MOST / 2, "handles of one that hoards");
    assert_eq!(handles::in_use_by(second.memory().owner()), MOST / 2, "handles that are counted for it");
    // Another process of the container has no share of its own.
    assert_eq!(got(&hoard(&second, 5, call(PAUSE, &[]))), 0, "handles of its other process");
    let neighbour = hoard(&first_container(), MOST / 4, call(PAUSE, &[]));
    assert_eq!(got(&neighbour), MOST / 4, "handles of its neighbour");
    let third = hoard(&make(ContainerId(3)), MOST / 8, call(PAUSE, &[]));
    assert_eq!(got(&third), MOST / 8, "handles of one that came later");
}

fn what_ends_gives_all_back() {
    for _ in 0..3 {
        let second = make(SECOND);
        let hoarder = hoard(&second, MANY, call(EXIT_GROUP, &[0]));
        assert_eq!(got(&hoarder), MOST / 2, "handles of one that hoards");
        assert_eq!(handles::in_use(), 0, "handles of one that has ended");
    }
}

fn who_comes_in_gets_some_from_a_full_container() {
    let second = make(SECOND);
    let hoarder = hoard(&second, MANY, call(PAUSE, &[]));
    assert_eq!(got(&hoarder), MOST / 2, "handles of one that hoards");
    let guest = make_leader(&second, &make_root(), 0);
    guest.thread.sched.allow_reserve();
    hoard_by(&guest, 10, call(PAUSE, &[]));
    assert_eq!(got(&guest), 10, "handles of who comes in");
}
