use std::sync::Arc;
use std::thread;
use std::time::Duration;

use codec::{Corrupt, Engine, Packer, Table, Unpacker, Work};
use iaa::{Fate, QueueEngine, Settings, SoftwareDevice};

use super::tests::{PAGES, World, fill, world};
use super::*;
use crate::packing::Packing;
use crate::testing::{Handle, Memory};

const NAMES: [&str; 4] = ["iaa_by_device", "iaa_by_software", "iaa_jobs", "iaa_most_in_flight"];

fn packing(encrypt: bool) -> Packing {
    Packing { codec: Codec::Iaa, encrypt, cpus: None }
}

fn settings() -> Settings {
    Settings { patience: Duration::from_millis(20), ..Settings::default() }
}

fn device(room: usize, fate: impl FnMut(u64) -> Fate + Send + 'static) -> Arc<dyn Engine> {
    Arc::new(QueueEngine::new(SoftwareDevice::new(room, fate), settings()))
}

/// A world whose pages an engine packs and unpacks.
fn with(engine: Arc<dyn Engine>, encrypt: bool) -> World {
    let world = world(packing(encrypt), u64::MAX);
    World { home: world.home.with_engine(engine), ..world }
}

fn good() -> Arc<dyn Engine> {
    device(64, |_| Fate::Done)
}

/// Stores, packs, fetches all pages and single ones, changes some, and does it again.
fn live(world: &mut World) {
    world.store_all();
    assert!(world.pack());
    world.comes_back();
    for id in (0..PAGES).step_by(3) {
        fill(&mut world.memory, id, u64::from(id) * 7 + 1);
    }
    let set = world.memory.pages((0..PAGES).step_by(3));
    world.home.store(&set, &[]).unwrap();
    assert!(world.pack());
    world.comes_back();
}

#[test]
fn a_device_packs_and_unpacks_everything() {
    for encrypt in [false, true] {
        let mut world = with(good(), encrypt);
        world.store_all();
        assert!(world.pack());
        assert_eq!(world.home.packing(), "iaa");
        let [packed, by_software, jobs, in_flight] = NAMES.map(|name| world.stat(name));
        // Of 50 pages of words none is packed; the rest is packed page by page.
        let set = (50..200_u64).filter(|id| id % 8 != 0).count().div_ceil(16) as u64;
        let rest = (0..50).chain(200..u64::from(PAGES)).filter(|id| id % 8 != 0).count() as u64;
        // Two tables are read. Partitions that do not get smaller overflow, which is a result as well.
        assert_eq!((packed, by_software, jobs), (set + rest, 0, set + rest + 2));
        assert_eq!(in_flight, 8);
        assert!(world.stat("iaa_overflows") >= 30 && world.stat("iaa_packed_bytes") > 0);
        let unpacked = world.stat("iaa_unpacked_bytes");
        world.comes_back();
        let packed_pages = world.stat("packed_pages") - world.stat("iaa_overflows");
        assert!(world.stat("iaa_unpacked_bytes") - unpacked >= packed_pages * 4096);
        assert_eq!((world.stat("iaa_by_software"), world.stat("iaa_redone")), (0, 0));
        live(&mut world);
        assert_eq!((world.stat("iaa_by_software"), world.stat("iaa_most_in_flight")), (0, 8));
    }
}

#[test]
fn without_an_engine_nothing_is_counted_of_one() {
    let mut world = world(packing(false), u64::MAX);
    live(&mut world);
    assert!(!world.home.stats().iter().any(|stat| stat.name.starts_with("iaa_")));
}

/// The processor packs pages to the same bytes as a device does, within the device's window, and unpacks the device's.
#[test]
fn device_and_processor_write_the_same_file() {
    let file = |mut world: World| {
        world.store_all();
        assert!(world.pack());
        let bytes = world.files[2].bytes.lock().unwrap().clone();
        (bytes, world)
    };
    let (by_device, device_world) = file(with(good(), false));
    let (by_processor, _) = file(world(packing(false), u64::MAX));
    assert!(by_device == by_processor);
    let canned = Packing { codec: Codec::Style(Style::DeflateCanned), ..packing(false) };
    let (with_a_large_window, _) = file(world(canned.clone(), u64::MAX));
    assert!(by_device != with_a_large_window);
    // The tables tell: opened anew the same pages are unpacked by another device, or by none.
    let mut tables = Vec::new();
    device_world.home.persist(&mut tables).unwrap();
    for (packing, engine) in [(packing(false), Some(good())), (packing(false), None), (canned, None)] {
        let devices =
            device_world.files.clone().map(|file| Box::new(Handle(file)) as Box<dyn crate::io::Device>);
        let home = SwapHome::reopen(devices, packing, &tables, PAGES, u64::MAX).unwrap();
        let has_engine = engine.is_some();
        let home = match engine {
            Some(engine) => home.with_engine(engine),
            None => home,
        };
        let (files, memory) = (device_world.files.clone(), device_world.memory.clone());
        let mut again = World { home, files, memory };
        again.comes_back();
        assert!(!has_engine || again.stat("iaa_by_device") > 300 && again.stat("iaa_by_software") == 0);
    }
}

/// Sets of another codec are the processor's.
#[test]
fn what_is_not_packed_for_a_device_is_not_sent_to_it() {
    let canned = Packing { codec: Codec::Style(Style::DeflateCanned), ..packing(false) };
    let world = world(canned, u64::MAX);
    let mut world = World { home: world.home.with_engine(good()), ..world };
    live(&mut world);
    assert_eq!(NAMES.map(|name| world.stat(name)), [0; 4]);
}

#[test]
fn what_a_device_does_not_do_the_processor_does() {
    for encrypt in [false, true] {
        for (fate, counter) in [
            (Fate::PageFault, "iaa_page_faults"),
            (Fate::Fail, "iaa_failed"),
            (Fate::BadChecksum, "iaa_bad_checksums"),
            (Fate::BadOutput, "iaa_bad_checksums"),
        ] {
            let every_fifth = move |job: u64| if job % 5 == 4 { fate } else { Fate::Done };
            let mut world = with(device(64, every_fifth), encrypt);
            live(&mut world);
            let [by_device, by_software, jobs, _] = NAMES.map(|name| world.stat(name));
            assert!(by_device > 500 && world.stat(counter) > 100, "{fate:?}: {by_device}");
            // A job that met a page fault begins anew, others are left to the processor.
            match fate {
                Fate::PageFault => {
                    assert!(jobs >= by_device + world.stat(counter) && by_software < by_device / 100);
                    assert!(world.stat("iaa_partial_bytes") > 0);
                }
                _ => assert!(by_software >= world.stat(counter) - 10, "{fate:?}"),
            }
        }
    }
}

#[test]
fn a_full_queue_is_waited_for() {
    let mut world = with(device(2, |_| Fate::Done), false);
    live(&mut world);
    let [by_device, by_software, ..] = NAMES.map(|name| world.stat(name));
    let full = world.stat("iaa_full");
    assert!(by_device > 500 && full > 100, "{by_device} {full}");
    assert_eq!(by_software, 0);
}

#[test]
fn a_device_that_hangs_is_done_without() {
    // While pages are packed, and while they come back.
    for from in [30, 400] {
        let mut world = with(device(64, move |job| if job < from { Fate::Done } else { Fate::Hang }), false);
        live(&mut world);
        let [by_device, by_software, jobs, _] = NAMES.map(|name| world.stat(name));
        // The first jobs of each driver that there was until then.
        let hung = world.stat("iaa_hung");
        assert!((8..=32).contains(&hung), "{hung}");
        assert!(by_device <= from && by_software > 500 && jobs == from + hung, "{jobs} {hung}");
        // Nothing is asked of it any more.
        world.comes_back();
        assert_eq!(world.stat("iaa_jobs"), jobs);
    }
}

#[test]
fn threads_fetch_by_one_device() {
    let mut world = with(good(), false);
    world.store_all();
    assert!(world.pack());
    let jobs = world.stat("iaa_jobs");
    thread::scope(|scope| {
        for first in 0..6 {
            let world = &world;
            scope.spawn(move || {
                for id in (first..PAGES).step_by(6) {
                    let mut fetched = Memory::new(PAGES as usize);
                    world.home.fetch(&fetched.pages([id])).unwrap();
                    assert!(fetched.0[id as usize].0 == world.memory.0[id as usize].0);
                }
            });
        }
    });
    assert!(world.stat("iaa_jobs") > jobs + 250);
    assert_eq!(world.stat("iaa_by_software"), 0);
}

/// An engine that says that all is well, and changes a bit of each fourth piece that it unpacks.
struct Liar;

impl Engine for Liar {
    fn run(&self, table: &Arc<Table>, work: &mut [Work<'_>]) -> Result<(), (usize, Corrupt)> {
        let mut packer = Packer::new(Style::DeflateCanned, Some(Arc::clone(table)))
            .with_window(codec::ENGINE_WINDOW_BYTES);
        let mut unpacker = Unpacker::new(Style::DeflateCanned, Some(Arc::clone(table)));
        for (at, work) in work.iter_mut().enumerate() {
            match work {
                Work::Pack { piece, out, packed_bytes } => *packed_bytes = packer.pack(piece, out),
                Work::Unpack { packed, out } => {
                    unpacker.unpack(packed, out).map_err(|error| (at, error))?;
                    out[17] ^= u8::from(at % 4 == 0);
                }
            }
        }
        Ok(())
    }

    fn rest(&self) {}

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

#[test]
fn what_an_engine_unpacks_wrongly_is_unpacked_again() {
    for encrypt in [false, true] {
        let mut world = with(Arc::new(Liar), encrypt);
        live(&mut world);
        assert!(world.stat("iaa_redone") > 100);
    }
}

#[test]
fn a_flipped_bit_is_never_taken_for_data() {
    for encrypt in [false, true] {
        let files = [(); 3].map(|()| crate::testing::Faulty::good());
        let [swap, reap, packed] = files.clone();
        let home =
            crate::testing::home(&swap, &reap).with_packing(Box::new(Handle(packed)), packing(encrypt));
        let mut home = home.with_engine(good());
        let mut memory = Memory::new(5);
        (0..5).for_each(|id| memory.set_text(id, u64::from(id) + 4));
        home.store(&memory.pages(0..3), &memory.clone().pages(3..5)).unwrap();
        let packed = home.pack(&|| true).unwrap().unwrap();
        assert!(home.adopt(packed, true));
        let used = home.packing_stats().iter().find(|stat| stat.name == "packed_output_bytes").unwrap().value;
        let (mut refused, mut refused_alone) = (0, 0);
        let len = files[2].bytes.lock().unwrap().len();
        for at in (0..len).step_by(3) {
            files[2].bytes.lock().unwrap()[at] ^= 1 << (at % 8);
            let mut fetched = Memory::new(5);
            let is_same = |fetched: &Memory, id: usize| fetched.0[id].0 == memory.0[id].0;
            match home.fetch(&fetched.pages(0..5)) {
                Ok(_) => assert!((0..5).all(|id| is_same(&fetched, id)), "byte {at}"),
                Err(_) => refused += 1,
            }
            match home.fetch(&fetched.pages([4])) {
                Ok(_) => assert!(is_same(&fetched, 4), "byte {at}"),
                Err(_) => refused_alone += 1,
            }
            files[2].bytes.lock().unwrap()[at] ^= 1 << (at % 8);
        }
        assert!(refused >= used / 3 / 8 * 7 && refused_alone > 100, "{refused} of {used}, {refused_alone}");
    }
}
