//! Memory that is reached as a debugger reaches it, whatever its protection.

use crate::harness::host::feed_process;
use crate::harness::rounds::run_all;
use crate::harness::script::{PAUSE, call};
use crate::harness::world::{first_container, make_leader, make_root};
use crate::task::container::ContainerId;
use machine::errno::Errno;
use machine::mm::{AddressSpace, PAGE, Prot, UserAddr};

pub const SCENARIOS: &[fn()] = &[what_is_forced_is_the_mappings_own];

const HEAP: u64 = 0x2000_0000;
const MMAP: u64 = 9;

fn read(aspace: &AddressSpace, addr: u64) -> Result<[u8; 4], Errno> {
    let mut bytes = [0; 4];
    aspace.copy_in(UserAddr::new(addr), &mut bytes).map(|()| bytes)
}

fn read_forced(aspace: &AddressSpace, addr: u64) -> Result<[u8; 4], Errno> {
    let mut bytes = [0; 4];
    aspace.copy_in_forced(UserAddr::new(addr), &mut bytes).map(|()| bytes)
}

/// The words of `/proc/PID/pagemap`: whether pages are there, and the mapping's alone.
fn are_own(aspace: &AddressSpace) -> [bool; 4] {
    let mut words = [0; 4];
    aspace.page_map(HEAP, &mut words);
    words.map(|word| word >> 63 == 1 && word >> 56 & 1 == 1)
}

/// A mapping without access is written across two pages; a copy of it keeps what was there when it was made.
fn what_is_forced_is_the_mappings_own() {
    let leader = make_leader(&first_container(), &make_root(), 0);
    let private_anonymous_fixed = 0x32;
    let map = call(MMAP, &[HEAP, 4 * PAGE, 0, private_anonymous_fixed, u64::MAX, 0]);
    feed_process(ContainerId::FIRST, leader.process.pid, [map, call(PAUSE, &[])]);
    leader.start();
    run_all();
    let aspace = leader.aspace().expect("memory");
    let across = HEAP + PAGE - 2;
    aspace.copy_out_forced(UserAddr::new(across), b"data").expect("written");
    assert_eq!(read(&aspace, across), Err(Errno::EFAULT), "the program may not read it");
    assert_eq!(read_forced(&aspace, across), Ok(*b"data"));
    assert_eq!(read_forced(&aspace, HEAP + 2 * PAGE), Ok([0; 4]));
    assert!(are_own(&aspace)[..2] == [true, true], "{:?}", are_own(&aspace));
    aspace.protect(HEAP, 4 * PAGE, Prot::READ, false).expect("readable");
    assert_eq!(read(&aspace, across), Ok(*b"data"));
    assert_eq!(aspace.copy_out(UserAddr::new(across), b"DATA"), Err(Errno::EFAULT), "it may not write it");
    // Beside another address space that has the pages, too.
    let copy = aspace.fork([], false).expect("a copy");
    aspace.copy_out_forced(UserAddr::new(across), b"DATA").expect("written");
    assert_eq!((read(&aspace, across), read(&copy, across)), (Ok(*b"DATA"), Ok(*b"data")));
    let nowhere = UserAddr::new(HEAP + 4 * PAGE);
    assert_eq!(aspace.copy_out_forced(nowhere, b"data"), Err(Errno::EFAULT));
}
