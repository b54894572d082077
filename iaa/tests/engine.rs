//! One queue for several threads, on the software device.

mod pieces;

use std::{
    collections::HashSet,
    sync::{Arc, Condvar, Mutex},
    thread::{self, ThreadId},
    time::Duration,
};

use codec::{Engine, PAGE_BYTES, Table, Work};
use iaa::{Fate, Portal, QueueEngine, Settings, Shared, SoftwareDevice, Submitted, layout::Descriptor};

use pieces::{packed, piece, table};

fn settings() -> Settings {
    Settings { patience: Duration::from_millis(50), ..Settings::default() }
}

fn count(engine: &dyn Engine, name: &str) -> u64 {
    engine.counters().into_iter().find(|(known, _)| *known == name).unwrap().1
}

/// Unpacks `pages` pages, and compares them.
fn unpack(engine: &dyn Engine, table: &Arc<Table>, pages: u64) {
    let pieces: Vec<_> = (0..pages).map(|seed| piece(PAGE_BYTES, seed)).collect();
    let packed = packed(table, &pieces);
    let mut outs = vec![vec![0xee; PAGE_BYTES]; pieces.len()];
    let mut work: Vec<_> =
        packed.iter().zip(&mut outs).map(|(packed, out)| Work::Unpack { packed, out }).collect();
    engine.run(table, &mut work).unwrap();
    assert!(outs == pieces);
}

/// A device that does nothing until two threads have submitted.
struct Meeting {
    device: SoftwareDevice,
    threads: Mutex<HashSet<ThreadId>>,
    met: Condvar,
}

impl Portal for Meeting {
    fn submit(&self, descriptor: &Descriptor) -> Submitted {
        self.threads.lock().unwrap().insert(thread::current().id());
        self.met.notify_all();
        self.device.submit(descriptor)
    }

    fn wait(&self) {
        let threads = self.threads.lock().unwrap();
        let waited = self.met.wait_timeout_while(threads, Duration::from_secs(20), |found| found.len() < 2);
        assert!(!waited.unwrap().1.timed_out(), "nobody else submits");
        self.device.wait();
    }

    fn share(&self, memory: &Shared) {
        self.device.share(memory);
    }
}

#[test]
fn threads_use_the_queue_at_once() {
    let device = SoftwareDevice::new(64, |_| Fate::Done);
    let meeting = Meeting { device, threads: Mutex::default(), met: Condvar::new() };
    let engine = QueueEngine::new(meeting, Settings { patience: Duration::from_secs(60), ..settings() });
    let tables = [table(), table()];
    thread::scope(|scope| {
        for table in &tables {
            scope.spawn(|| unpack(&engine, table, 60));
        }
    });
    assert_eq!((count(&engine, "iaa_by_device"), count(&engine, "iaa_by_software")), (120, 0));
    assert_eq!((count(&engine, "iaa_jobs"), count(&engine, "iaa_most_in_flight")), (122, 8));
}

#[test]
fn more_threads_than_drivers_take_turns() {
    for (size, most) in [(2, 1), (6, 1), (16, 4), (128, 8)] {
        let device = SoftwareDevice::new(size, |_| Fate::Done);
        let engine = QueueEngine::new(device, Settings { in_flight: size, is_dedicated: true, ..settings() });
        let tables: Vec<_> = (0..3).map(|_| table()).collect();
        thread::scope(|scope| {
            for number in 0..9 {
                let (engine, table) = (&engine, &tables[number % 3]);
                scope.spawn(move || (0..4).for_each(|_| unpack(engine, table, 20)));
            }
        });
        assert_eq!((count(&engine, "iaa_by_device"), count(&engine, "iaa_by_software")), (9 * 4 * 20, 0));
        assert_eq!(count(&engine, "iaa_most_in_flight"), most, "of {size}");
        // A dedicated queue drops what it has no room for.
        let seen = engine.portal().seen();
        assert!(seen.turned_away == 0 && seen.most_waiting <= size, "{seen:?}");
    }
}

#[test]
fn a_driver_learns_another_table() {
    let engine =
        QueueEngine::new(SoftwareDevice::new(1, |_| Fate::Done), Settings { in_flight: 1, ..settings() });
    let (one, other) = (table(), table());
    for (table, jobs) in [(&one, 6), (&one, 11), (&other, 17), (&one, 23)] {
        unpack(&engine, table, 5);
        assert_eq!(count(&engine, "iaa_jobs"), jobs);
    }
    engine.rest();
    unpack(&engine, &one, 5);
    assert_eq!((count(&engine, "iaa_jobs"), count(&engine, "iaa_by_device")), (29, 25));
}

/// A table that the device could not read is tried again, one that it read is not.
#[test]
fn a_table_that_was_not_read_is_sent_again() {
    let device = SoftwareDevice::new(16, |job| if job == 0 { Fate::Fail } else { Fate::Done });
    let engine = QueueEngine::new(device, Settings { in_flight: 1, ..settings() });
    let table = table();
    unpack(&engine, &table, 5);
    assert_eq!((count(&engine, "iaa_by_device"), count(&engine, "iaa_by_software")), (0, 5));
    unpack(&engine, &table, 5);
    assert_eq!((count(&engine, "iaa_by_device"), count(&engine, "iaa_by_software")), (5, 5));
}

#[test]
fn a_hang_costs_a_dedicated_queue_and_not_a_shared_one() {
    for is_dedicated in [false, true] {
        let device = SoftwareDevice::new(16, |job| if job == 3 { Fate::Hang } else { Fate::Done });
        let engine = QueueEngine::new(device, Settings { in_flight: 16, is_dedicated, ..settings() });
        let table = table();
        unpack(&engine, &table, 20);
        assert_eq!((count(&engine, "iaa_hung"), count(&engine, "iaa_by_software")), (1, 1));
        unpack(&engine, &table, 20);
        engine.rest();
        unpack(&engine, &table, 20);
        let by_software = if is_dedicated { 41 } else { 1 };
        assert_eq!(count(&engine, "iaa_by_software"), by_software);
        assert_eq!(count(&engine, "iaa_by_device"), 60 - by_software);
    }
}

/// Each job that hangs keeps its memory for ever.
#[test]
fn jobs_that_hang_now_and_then_cost_the_device_at_last() {
    let device = SoftwareDevice::new(16, |job| if job % 5 == 4 { Fate::Hang } else { Fate::Done });
    let settings = Settings { in_flight: 16, patience: Duration::from_millis(5), ..Settings::default() };
    let engine = QueueEngine::new(device, settings);
    let table = table();
    for _ in 0..20 {
        unpack(&engine, &table, 10);
        engine.rest();
    }
    let hung = count(&engine, "iaa_hung");
    assert!((8..16).contains(&hung), "{hung}");
}

#[test]
fn a_queue_that_is_closed_leaves_the_rest_to_the_processor() {
    let engine = QueueEngine::new(SoftwareDevice::new(16, |_| Fate::Done), settings());
    let table = table();
    unpack(&engine, &table, 10);
    engine.portal().close();
    unpack(&engine, &table, 10);
    engine.rest();
    let submitted = count(&engine, "iaa_jobs");
    unpack(&engine, &table, 10);
    assert_eq!((count(&engine, "iaa_by_device"), count(&engine, "iaa_by_software")), (10, 20));
    assert_eq!(count(&engine, "iaa_jobs"), submitted);
}

/// The record is of what the device read; what it wrote is looked at as well.
#[test]
fn what_is_packed_wrongly_is_packed_again() {
    let device = SoftwareDevice::new(16, |job| if job == 2 { Fate::BadOutput } else { Fate::Done });
    let engine = QueueEngine::new(device, settings());
    let table = table();
    let pieces: Vec<_> = (0..4).map(|seed| piece(PAGE_BYTES, seed)).collect();
    let mut outs = vec![vec![0; PAGE_BYTES]; pieces.len()];
    let mut work: Vec<_> = pieces
        .iter()
        .zip(&mut outs)
        .map(|(piece, out)| Work::Pack { piece, out, packed_bytes: None })
        .collect();
    engine.run(&table, &mut work).unwrap();
    let expected = packed(&table, &pieces);
    for (work, expected) in work.iter().zip(expected) {
        let Work::Pack { out, packed_bytes: Some(len), .. } = work else { panic!("it fits") };
        assert!(out[..*len] == expected);
    }
    assert_eq!((count(&engine, "iaa_bad_checksums"), count(&engine, "iaa_by_software")), (1, 1));
}

#[test]
fn an_engine_is_measured() {
    let engine = QueueEngine::new(SoftwareDevice::new(16, |_| Fate::Done), settings());
    let mut memory: Vec<u8> = (0..40).flat_map(|seed| piece(PAGE_BYTES, seed)).collect();
    memory.extend([7; PAGE_BYTES]);
    let measured = codec::measure_by(&engine, &memory, 2).unwrap();
    let sizes: Vec<_> = measured.iter().map(|one| (one.piece_bytes, one.pages, one.word_pages)).collect();
    assert_eq!(sizes, [(4096, 41, 1), (65536, 41, 1)]);
    assert!(measured.iter().all(|one| one.by_engine && one.raw_pieces == 0 && one.ratio() > 1.5));
    // Two rounds each, of pages and of partitions, packed and unpacked.
    assert_eq!((count(&engine, "iaa_by_device"), count(&engine, "iaa_by_software")), (2 * 2 * (40 + 3), 0));
}
