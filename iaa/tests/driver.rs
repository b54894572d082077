//! The driver on the software device: jobs in flight, and everything that goes wrong.

mod pieces;

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use codec::{PAGE_BYTES, PIECE_BYTES, Table, Work};
use iaa::{Counters, Driver, Fate, Portal, Settings, Shared, SoftwareDevice, Submitted, layout::Descriptor};

use pieces::{packed, piece, table};

fn settings() -> Settings {
    Settings { in_flight: 8, patience: Duration::from_millis(20), ..Settings::default() }
}

/// Unpacks 60 pages, and compares them.
fn unpack<P: Portal>(driver: &mut Driver<P>, table: &Arc<Table>) -> Counters {
    let pieces: Vec<_> = (0..60).map(|seed| piece(PAGE_BYTES, seed)).collect();
    let packed = packed(table, &pieces);
    let mut outs = vec![vec![0xee; PAGE_BYTES]; pieces.len()];
    let mut work: Vec<_> =
        packed.iter().zip(&mut outs).map(|(packed, out)| Work::Unpack { packed, out }).collect();
    driver.run(&mut work).unwrap();
    assert!(outs == pieces);
    driver.counters()
}

/// A driver on a device with room for 32, on which jobs have this fate; job 0 reads the table.
fn on_device(fate: impl FnMut(u64) -> Fate + Send + 'static) -> (Driver<SoftwareDevice>, Arc<Table>) {
    let table = table();
    (Driver::new(SoftwareDevice::new(32, fate), &table, settings()), table)
}

#[test]
fn jobs_are_in_flight_together_and_end_in_any_order() {
    let (mut driver, table) = on_device(|_| Fate::Done);
    let counters = unpack(&mut driver, &table);
    assert_eq!((counters.by_device, counters.by_software, counters.submitted), (60, 0, 61));
    assert_eq!((counters.most_in_flight, counters.unpacked_bytes), (8, 60 * 4096));
    assert!(counters.packed_bytes > 0 && counters.packed_bytes < counters.unpacked_bytes);
    let seen = driver.portal().seen();
    assert_eq!((seen.taken, seen.most_waiting, seen.turned_away), (61, 8, 0));
    assert!(seen.out_of_order > 10 && seen.bytes_written >= counters.unpacked_bytes, "{seen:?}");
    assert_eq!(driver.portal().seen().without_record, 0);
}

#[test]
fn a_full_queue_makes_the_driver_wait() {
    let table = table();
    let mut driver = Driver::new(SoftwareDevice::new(3, |_| Fate::Done), &table, settings());
    let counters = unpack(&mut driver, &table);
    assert_eq!((counters.by_device, counters.most_in_flight), (60, 3));
    assert_eq!(counters.full, driver.portal().seen().turned_away);
    assert!(counters.full > 10);
}

#[test]
fn a_queue_that_is_full_for_ever_is_done_without() {
    struct Full(Cell<bool>, SoftwareDevice, Cell<u64>);
    impl Portal for Full {
        fn submit(&self, descriptor: &Descriptor) -> Submitted {
            if self.0.get() { Submitted::Retry } else { self.1.submit(descriptor) }
        }
        fn wait(&self) {
            self.2.update(|waits| waits + 1);
            self.1.wait();
        }
        fn share(&self, memory: &Shared) {
            self.1.share(memory);
        }
    }
    let table = table();
    let full = Full(Cell::new(false), SoftwareDevice::new(32, |_| Fate::Done), Cell::new(0));
    let mut driver = Driver::new(full, &table, settings());
    driver.portal().0.set(true);
    let counters = unpack(&mut driver, &table);
    assert_eq!((counters.by_device, counters.by_software), (0, 60));
    assert!(driver.is_up());
    // Whoever waited once for nothing does not wait again.
    let mut waits = |work: &mut dyn FnMut(&mut Driver<Full>)| {
        driver.portal().2.set(0);
        work(&mut driver);
        driver.portal().2.get()
    };
    assert!(waits(&mut |driver| assert_eq!(unpack(driver, &table).by_software, 120)) <= 60);
    assert_eq!(waits(&mut |driver| driver.set_table(&table)), 0);
    driver.portal().0.set(false);
    driver.set_table(&table);
    assert_eq!(unpack(&mut driver, &table).by_device, 60);
}

#[test]
fn a_page_fault_begins_the_job_anew() {
    let (mut driver, table) = on_device(|job| if job % 3 == 1 { Fate::PageFault } else { Fate::Done });
    let counters = unpack(&mut driver, &table);
    assert_eq!((counters.by_device + counters.by_software, counters.failed), (60, 0));
    assert!(counters.by_device > 50 && counters.page_faults > 20, "{counters:?}");
    assert_eq!(counters.partial_bytes, counters.page_faults * 2048);
    assert_eq!(counters.submitted, 1 + counters.by_device + counters.page_faults);
}

#[test]
fn pages_that_never_come_leave_the_work_to_the_processor() {
    let (mut driver, table) = on_device(|job| if job == 0 { Fate::Done } else { Fate::PageFault });
    let counters = unpack(&mut driver, &table);
    assert_eq!((counters.by_device, counters.by_software, counters.page_faults), (0, 60, 240));
}

#[test]
fn what_the_device_does_wrongly_is_done_by_the_processor() {
    let every_fifth =
        |fate: Fate| move |job: u64| if job > 0 && job.is_multiple_of(5) { fate } else { Fate::Done };
    for (fate, count) in [
        (Fate::Fail, (|counters| counters.failed) as fn(Counters) -> u64),
        (Fate::BadChecksum, |counters| counters.bad_checksums),
        (Fate::BadOutput, |counters| counters.bad_checksums),
    ] {
        let (mut driver, table) = on_device(every_fifth(fate));
        let counters = unpack(&mut driver, &table);
        assert_eq!((counters.by_device, counters.by_software, count(counters)), (48, 12, 12), "{fate:?}");
        assert!(driver.is_up());
    }
}

#[test]
fn a_device_that_does_nothing_is_not_believed() {
    let (mut driver, table) = on_device(|job| if job == 0 { Fate::Done } else { Fate::Idle });
    let counters = unpack(&mut driver, &table);
    assert_eq!((counters.by_device, counters.by_software, counters.bad_checksums), (0, 60, 60));
}

#[test]
fn jobs_that_hang_cost_their_slots_and_at_last_the_device() {
    let (mut driver, table) = on_device(|job| if job == 5 || job == 20 { Fate::Hang } else { Fate::Done });
    let counters = unpack(&mut driver, &table);
    assert_eq!((counters.hung, counters.by_software, counters.by_device), (2, 2, 58));
    assert!(driver.is_up());
    assert_eq!(unpack(&mut driver, &table).by_device, 118);

    let (mut driver, table) = on_device(|job| if job > 10 { Fate::Hang } else { Fate::Done });
    let counters = unpack(&mut driver, &table);
    assert_eq!((counters.hung, counters.by_software, counters.by_device), (8, 50, 10));
    assert!(!driver.is_up());
    assert_eq!(unpack(&mut driver, &table).by_software, 110);
}

#[test]
fn without_a_device_the_processor_does_everything() {
    // The table is not read: a failure, a hang, a queue that is closed.
    for fate in [Fate::Fail, Fate::Hang] {
        let (mut driver, table) = on_device(move |_| fate);
        assert!(!driver.is_up());
        assert_eq!(unpack(&mut driver, &table).by_software, 60, "{fate:?}");
    }
    let (mut driver, table) = on_device(|_| Fate::Done);
    driver.portal().close();
    assert_eq!(unpack(&mut driver, &table).by_software, 60);
    assert!(!driver.is_up());
}

#[test]
fn damaged_input_is_an_error_of_its_piece_alone() {
    let (mut driver, table) = on_device(|_| Fate::Done);
    let pieces: Vec<_> = (0..9).map(|seed| piece(PAGE_BYTES, seed)).collect();
    let mut packed = packed(&table, &pieces);
    packed[4].truncate(100);
    packed[7] = vec![0xff; 900];
    let mut outs = vec![vec![0; PAGE_BYTES]; pieces.len()];
    let mut work: Vec<_> =
        packed.iter().zip(&mut outs).map(|(packed, out)| Work::Unpack { packed, out }).collect();
    assert_eq!(driver.run(&mut work).unwrap_err().0, 4);
    for index in [0, 1, 2, 3, 5, 6, 8] {
        assert!(outs[index] == pieces[index], "{index}");
    }
    let counters = driver.counters();
    assert_eq!((counters.by_device, counters.by_software, counters.bad_data), (7, 2, 2));
}

#[test]
fn input_that_is_longer_than_its_room_overflows_and_is_refused() {
    let (mut driver, table) = on_device(|_| Fate::Done);
    let packed = packed(&table, &[piece(PAGE_BYTES, 1)]);
    let mut out = vec![0; PAGE_BYTES - 8];
    assert!(driver.run(&mut [Work::Unpack { packed: &packed[0], out: &mut out }]).is_err());
    assert_eq!((driver.counters().overflows, driver.counters().by_software), (1, 1));
}

#[test]
fn what_the_device_packs_is_unpacked_by_all() {
    let (mut driver, table) = on_device(|job| if job % 4 == 2 { Fate::Fail } else { Fate::Done });
    let pieces: Vec<_> = (0..20).map(|seed| piece(PAGE_BYTES << (seed % 5), seed)).collect();
    let mut outs = vec![vec![0; PIECE_BYTES]; pieces.len()];
    let mut work: Vec<_> = pieces
        .iter()
        .zip(&mut outs)
        .map(|(piece, out)| Work::Pack { piece, out, packed_bytes: None })
        .collect();
    driver.run(&mut work).unwrap();
    let lengths: Vec<_> = work
        .iter()
        .map(
            |work| {
                if let Work::Pack { packed_bytes: Some(len), .. } = work { *len } else { panic!("it fits") }
            },
        )
        .collect();
    assert!(driver.counters().by_device > 10 && driver.counters().by_software > 3);
    // Whoever packed a piece, the bytes are the same.
    let expected = packed(&table, &pieces);
    for ((out, len), expected) in outs.iter().zip(lengths).zip(expected) {
        assert!(out[..len] == expected);
    }
    // What does not fit is said so, and is no failure.
    let mut out = [0; 64];
    let mut work = [Work::Pack { piece: &pieces[0], out: &mut out, packed_bytes: Some(1) }];
    driver.run(&mut work).unwrap();
    assert!(matches!(work[0], Work::Pack { packed_bytes: None, .. }));
}

#[test]
fn a_queue_that_blocks_on_faults_is_asked_to() {
    let table = table();
    let blocking = Settings { blocks_on_fault: true, ..settings() };
    let device = SoftwareDevice::new(32, |_| Fate::Done).with_block_on_fault();
    assert_eq!(unpack(&mut Driver::new(device, &table, blocking), &table).by_device, 60);
    // A queue that does not refuses the flag.
    let mut driver = Driver::new(SoftwareDevice::new(32, |_| Fate::Done), &table, blocking);
    assert_eq!(unpack(&mut driver, &table).by_device, 0);
}

/// Changes one bit of a job's descriptor, or of the engine's states.
struct Tap {
    device: SoftwareDevice,
    /// Which submission, and which of its bits.
    bit: Option<(u64, usize)>,
    submitted: Cell<u64>,
    memory: RefCell<Vec<Shared>>,
}

impl Portal for Tap {
    fn submit(&self, descriptor: &Descriptor) -> Submitted {
        use zerocopy::{FromBytes, IntoBytes};
        let number = self.submitted.replace(self.submitted.get() + 1);
        let mut bytes: [u8; 64] = descriptor.as_bytes().try_into().unwrap();
        if let Some((submission, bit)) = self.bit
            && submission == number
        {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        self.device.submit(&Descriptor::read_from_bytes(&bytes).unwrap())
    }

    fn wait(&self) {
        self.device.wait();
    }

    fn share(&self, memory: &Shared) {
        self.memory.borrow_mut().push(memory.clone());
        self.device.share(memory);
    }
}

fn tapped(table: &Arc<Table>, bit: Option<(u64, usize)>) -> Driver<Tap> {
    let device = SoftwareDevice::new(4, |_| Fate::Done);
    let tap = Tap { device, bit, submitted: Cell::new(0), memory: RefCell::default() };
    let settings =
        Settings { in_flight: 1, patience: Duration::from_millis(1), attempts: 1, ..Settings::default() };
    Driver::new(tap, table, settings)
}

#[test]
fn every_bit_of_a_descriptor_counts() {
    let table = table();
    let pieces = [piece(PIECE_BYTES, 5)];
    let packed = packed(&table, &pieces);
    let is_done_by_device = |submission: u64, bit: Option<usize>, packs: bool| {
        let mut driver = tapped(&table, bit.map(|bit| (submission, bit)));
        let mut out = vec![0; PIECE_BYTES];
        let mut work = if packs {
            [Work::Pack { piece: &pieces[0], out: &mut out, packed_bytes: None }]
        } else {
            [Work::Unpack { packed: &packed[0], out: &mut out }]
        };
        driver.run(&mut work).unwrap();
        // Too small a room is no failure of packing: the piece stays as it is.
        if let Work::Pack { packed_bytes: None, .. } = work[0] {
            assert_eq!(driver.counters().overflows, 1);
            return false;
        }
        assert_eq!(out[..100], if packs { &packed[0] } else { &pieces[0] }[..100], "bit {bit:?}");
        driver.counters().by_device == 1
    };
    for packs in [false, true] {
        assert!(is_done_by_device(1, None, packs));
        // The first 20 bits are the address space, which the kernel or the processor fills in.
        for bit in 20..512 {
            assert!(!is_done_by_device(1, Some(bit), packs), "bit {bit}, packs: {packs}");
        }
        assert!(is_done_by_device(1, Some(7), packs));
    }
    // The job that reads the table. It has no output, so that its place means nothing.
    for bit in (20..512).filter(|bit| !(192..256).contains(bit)) {
        assert!(!is_done_by_device(0, Some(bit), false), "bit {bit} of the table's job");
    }
}

#[test]
fn every_bit_of_the_states_counts() {
    let table = table();
    let pieces = [piece(PAGE_BYTES, 5)];
    let packed = packed(&table, &pieces);
    let header = table.to_bytes().len();
    // Some bits of the codes to pack by; all of the header in the state to unpack by.
    let bits = (0..0x620 * 8)
        .step_by(13)
        .map(|bit| (bit, true))
        .chain((0..(4 + header) * 8).map(|bit| (0x640 * 8 + bit, false)));
    for (bit, packs) in bits {
        let mut driver = tapped(&table, None);
        let states = driver.portal().memory.borrow()[0].clone();
        let mut byte = [0];
        states.read(bit / 8, &mut byte);
        states.write(bit / 8, &[byte[0] ^ 1 << (bit % 8)]);
        let mut out = vec![0; PAGE_BYTES];
        let work = if packs {
            Work::Pack { piece: &pieces[0], out: &mut out, packed_bytes: None }
        } else {
            Work::Unpack { packed: &packed[0], out: &mut out }
        };
        driver.run(&mut [work]).unwrap();
        // A changed code that the piece has no symbol of is none the wiser; the padding of the header likewise.
        let counters = driver.counters();
        assert!(
            counters.by_software == 1 || !packs && out == pieces[0],
            "bit {bit}, packs: {packs}, {counters:?}"
        );
        assert_eq!(out[..100], if packs { &packed[0] } else { &pieces[0] }[..100]);
    }
}
