//! Whole stores: what is stored comes back, whoever is killed or damaged in between.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use codec::Style;
use testdir::TempDir;

use super::*;
use crate::difference::PAGE;

const LONG: u64 = 64 << 20;

fn page(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // Half of it packs well.
    (0..512).flat_map(|at| if at % 2 == 0 { word().to_le_bytes() } else { [0x20; 8] }).collect()
}

/// The file of a snapshot with these pages, each at the place of its number; 0 is a page of zeros.
fn image(seeds: &[u64]) -> Vec<u8> {
    seeds.iter().flat_map(|seed| if *seed == 0 { vec![0; 4096] } else { page(*seed) }).collect()
}

fn put(store: &Store, domain: &Domain, style: Style, image: &[u8], kernel: &[u8]) -> (Recipe, [Added; 6]) {
    let mut writer = Writer::begin(store, domain, Chunking::default(), style).unwrap();
    let middle = image.len() / 8192 * 4096;
    writer.add(0, Region::File, 0, &image[..middle]).unwrap();
    writer.add(0, Region::Anonymous, middle as u64, &image[middle..]).unwrap();
    writer.add(1, Region::Kernel, 8192, kernel).unwrap();
    let written = writer.end(&[(0, image.len() as u64), (1, 8192 + kernel.len() as u64)]).unwrap();
    (written.recipe, written.added)
}

fn get(store: &Store, recipe: &Recipe, place: &TempDir) -> Result<(Vec<u8>, Vec<u8>, Retrieved), StoreError> {
    let file = |number: u8| {
        let path = place.path().join(format!("file{number}"));
        let mut options = File::options();
        let file = options.create(true).truncate(true).read(true).write(true).open(path).unwrap();
        file.set_len(recipe.length(number).unwrap()).unwrap();
        file
    };
    let (pages, kernel) = (file(0), file(1));
    let done = retrieve(store, recipe, &[(0, &pages), (1, &kernel)], 3)?;
    let content = |file: &File| {
        // The last chunk may end behind the file.
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    Ok((content(&pages), content(&kernel), done))
}

fn in_order(store: &Store, recipe: &Recipe, image: &[u8]) -> Retrieved {
    let [pages, kernel] = [0, 1].map(|number| {
        let file = File::from(rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(recipe.length(number).unwrap()).unwrap();
        file
    });
    let done = retrieve_in_order(store, recipe, &[(0, &pages), (1, &kernel)], 2).unwrap();
    let mut found = vec![0; image.len()];
    pages.read_exact_at(&mut found, 0).unwrap();
    assert!(found == image);
    done
}

fn dblocks(place: &TempDir) -> Vec<std::path::PathBuf> {
    let mut all: Vec<_> = fs::read_dir(place.path().join("store/dblocks"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    all.sort();
    all
}

fn at(place: &TempDir) -> Store {
    Store::open(&place.path().join("store")).unwrap()
}

#[test]
fn snapshots_come_back_and_chunks_are_kept_once() {
    for style in [Style::None, Style::Lz4, Style::Zstd(3)] {
        let place = TempDir::new();
        let (store, domain) = (at(&place), Domain::new(&[3; 32]));
        let first = image(&[1, 2, 3, 0, 2, 4, 5, 6, 0, 7]);
        let (one, added) = put(&store, &domain, style, &first, &page(90)[..3000]);
        // Page 2 twice, but 4 and 5 are of two regions.
        assert_eq!(added[1].shared_bytes, 4096);
        assert_eq!(added[1].zero_bytes + added[2].zero_bytes, 8192);
        assert_eq!(added[1].stored_bytes == 3 * 4096, style == Style::None, "{added:?}");
        let second = image(&[9, 2, 3, 1, 1, 6, 5, 4, 8, 7]);
        let (two, added) = put(&store, &domain, style, &second, &page(90)[..3000]);
        assert_eq!((added[1].shared_bytes, added[4].stored_bytes), (4 * 4096, 0));
        for (recipe, image) in [(&one, &first), (&two, &second)] {
            let recipe = Recipe::decode(&recipe.encode()).unwrap();
            let (pages, kernel, done) = get(&store, &recipe, &place).unwrap();
            assert!(pages == *image && kernel[8192..8192 + 3000] == page(90)[..3000]);
            assert!(kernel[..8192].iter().all(|byte| *byte == 0));
            assert!(done.reads <= done.dblocks && done.read_bytes > 0, "{done:?}");
            assert!(done.reads <= in_order(&store, &recipe, image).reads);
        }
        store.verify([&one, &two]).unwrap();
    }
}

#[test]
fn a_domain_has_nothing_of_anothers() {
    let place = TempDir::new();
    let store = at(&place);
    let image = image(&[1, 2, 3, 4]);
    put(&store, &Domain::new(&[1; 32]), Style::None, &image, &[]);
    let (_, added) = put(&store, &Domain::new(&[2; 32]), Style::None, &image, &[]);
    assert_eq!((added[1].shared_bytes, added[2].shared_bytes), (0, 0));
    let (_, added) = put(&store, &Domain::new(&[2; 32]), Style::None, &image, &[]);
    assert_eq!((added[1].shared_bytes, added[2].shared_bytes), (8192, 8192));
}

#[test]
fn snapshots_say_what_they_have_to_themselves() {
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[1; 32]));
    let images = [image(&[1, 2, 3, 4, 5, 5]), image(&[1, 2, 3, 6, 7, 8])];
    let recipes = images.each_ref().map(|image| put(&store, &domain, Style::None, image, &[]).0);
    let mut usage = Usage::new(&store).unwrap();
    recipes.iter().for_each(|recipe| usage.add(recipe));
    let mut of = |recipe| usage.of(recipe);
    let page = 4096;
    assert_eq!(of(&recipes[0]), Needed { unique_bytes: 2 * page, shared_bytes: 3 * page });
    assert_eq!(of(&recipes[1]), Needed { unique_bytes: 3 * page, shared_bytes: 3 * page });
    // What is gone, or damaged, is nobody's.
    fs::write(dblocks(&place).remove(0), "none").unwrap();
    let mut usage = Usage::new(&store).unwrap();
    usage.add(&recipes[0]);
    assert!(usage.of(&recipes[0]).unique_bytes < 5 * page);
}

#[test]
fn fingerprints_that_are_alike_confuse_nothing() {
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[1; 32]).with_bits(2));
    let images = [image(&(1..40).collect::<Vec<_>>()), image(&(20..60).rev().collect::<Vec<_>>())];
    let recipes = images.each_ref().map(|image| put(&store, &domain, Style::Lz4, image, &page(7)).0);
    for (recipe, image) in recipes.iter().zip(&images) {
        assert!(get(&store, recipe, &place).unwrap().0 == *image);
    }
}

#[test]
fn a_writer_is_alone_and_one_that_is_dropped_leaves_nothing_that_counts() {
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[1; 32]));
    let mut writer = Writer::begin(&store, &domain, Chunking::default(), Style::None).unwrap();
    let begin = || Writer::begin(&store, &domain, Chunking::default(), Style::None);
    assert!(matches!(begin().err(), Some(StoreError::Busy)));
    assert!(matches!(Collector::begin(&store).err(), Some(StoreError::Busy)));
    let many = image(&(1..1500).collect::<Vec<_>>());
    writer.add(0, Region::File, 0, &many).unwrap();
    drop(writer);
    assert_eq!(dblocks(&place).len(), 0, "one was full, and goes with it");
    fs::write(place.path().join("store/dblocks/00000009.new"), "half").unwrap();
    let (recipe, _) = put(&store, &domain, Style::None, &many, &[]);
    assert!(get(&store, &recipe, &place).unwrap().0 == many);
    assert!(dblocks(&place).iter().all(|path| path.extension().is_none()));
}

#[test]
fn what_nobody_needs_goes_and_what_somebody_needs_moves() {
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[1; 32]));
    let images: Vec<Vec<u8>> = (0..6_u64)
        .map(|number| image(&(1..200).map(|seed| seed + number * 60).collect::<Vec<_>>()))
        .collect();
    let mut recipes: Vec<Recipe> =
        images.iter().map(|image| put(&store, &domain, Style::Lz4, image, &page(5)).0).collect();
    let all = store.bytes().unwrap();
    let collect = |recipes: &mut Vec<Recipe>, grace: u64| {
        let mut collector = Collector::begin(&store).unwrap();
        recipes.iter().for_each(|recipe| collector.mark(recipe));
        let moved = collector.move_out(LONG).unwrap();
        for recipe in recipes.iter_mut() {
            if let Some(relocated) = recipe.relocated(&moved).unwrap() {
                *recipe = Recipe::decode(&relocated.encode()).unwrap();
            }
        }
        collector.end(Duration::from_secs(grace)).unwrap()
    };
    let before = recipes[5].clone();
    let collected = collect(&mut recipes, 1000);
    assert!(collected.moved_dblocks > 5 && collected.removed_dblocks == 0, "{collected:?}");
    assert!(get(&store, &before, &place).unwrap().0 == images[5], "a reader of before goes on");
    let collected = collect(&mut recipes, 0);
    assert!(collected.removed_dblocks > 5, "{collected:?}");
    assert!(matches!(get(&store, &before, &place), Err(StoreError::Gone { .. })));
    for (recipe, image) in recipes.iter().zip(&images) {
        assert!(get(&store, recipe, &place).unwrap().0 == *image);
    }
    store.verify(&recipes).unwrap();
    assert!(store.bytes().unwrap() < all, "small ones are together");
    // Removed in any order, all of it goes.
    for at in [3, 0, 2, 0, 1, 0] {
        recipes.remove(at);
        collect(&mut recipes, 0);
        for recipe in &recipes {
            get(&store, recipe, &place).unwrap();
        }
    }
    assert_eq!(dblocks(&place), Vec::<std::path::PathBuf>::new());
    // No number is used again.
    let (recipe, _) = put(&store, &domain, Style::Lz4, &images[0], &[]);
    assert!(!recipe.dblocks().iter().any(|id| before.dblocks().contains(id) || *id < 10));
}

#[test]
fn a_collection_that_ends_in_the_middle_loses_nothing() {
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[1; 32]));
    let images = [image(&(1..50).collect::<Vec<_>>()), image(&(30..90).collect::<Vec<_>>())];
    let recipes = images.each_ref().map(|image| put(&store, &domain, Style::None, image, &[]).0);
    for steps in 0..2 {
        let mut collector = Collector::begin(&store).unwrap();
        recipes.iter().for_each(|recipe| collector.mark(recipe));
        if steps > 0 {
            assert!(!collector.move_out(LONG).unwrap().is_empty());
        }
        drop(collector);
        for (recipe, image) in recipes.iter().zip(&images) {
            assert!(get(&store, recipe, &place).unwrap().0 == *image);
        }
    }
    // The copies that nobody knows of go.
    let mut collector = Collector::begin(&store).unwrap();
    recipes.iter().for_each(|recipe| collector.mark(recipe));
    assert!(collector.end(Duration::ZERO).unwrap().removed_dblocks > 0);
    store.verify(&recipes).unwrap();
}

#[test]
fn damage_is_found_wherever_it_is() {
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[1; 32]));
    let content = image(&[1, 2, 3, 4, 5, 6]);
    let (recipe, _) = put(&store, &domain, Style::Lz4, &content, &page(3));
    for path in dblocks(&place) {
        let good = fs::read(&path).unwrap();
        let mut found = 0;
        for at in (0..good.len()).step_by(good.len() / 23) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            // A few bits of what is packed make no difference.
            found += usize::from(store.verify([&recipe]).is_err());
            if let Ok((pages, kernel, _)) = get(&store, &recipe, &place) {
                assert!(pages == content && kernel[8192..8192 + 4096] == page(3), "{at}");
            }
            // A damaged chunk stands for no other.
            let (again, _) = put(&store, &domain, Style::Lz4, &content, &page(3));
            if let Ok((pages, _, _)) = get(&store, &again, &place) {
                assert!(pages == content);
            }
        }
        assert!(found > 20, "{found}");
        for cut in [0, 10, good.len() / 2, good.len() - 1] {
            fs::write(&path, &good[..cut]).unwrap();
            get(&store, &recipe, &place).unwrap_err();
        }
        fs::write(&path, &good).unwrap();
    }
    assert!(get(&store, &recipe, &place).unwrap().0 == content);
    let gone = dblocks(&place).remove(0);
    fs::remove_file(gone).unwrap();
    assert!(matches!(get(&store, &recipe, &place), Err(StoreError::Gone { id: 1 })));
}

#[test]
fn a_lost_index_is_made_anew() {
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[1; 32]));
    let content = image(&(1..300).collect::<Vec<_>>());
    put(&store, &domain, Style::None, &content, &page(1));
    let path = place.path().join("store/index");
    for lose in [true, false] {
        if lose {
            fs::remove_file(&path).unwrap();
        } else {
            fs::write(&path, "no index").unwrap();
        }
        let (_, added) = put(&store, &domain, Style::None, &content, &page(1));
        assert_eq!(added.iter().map(|added| added.stored_bytes).sum::<u64>(), 0);
    }
}

#[test]
fn regions_that_are_not_compared_are_kept_as_they_come() {
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[1; 32]));
    let chunking = Chunking::uniform(64).unwrap().without(Region::Anonymous);
    let content = image(&[1, 2, 1, 2]);
    let put = || {
        let mut writer = Writer::begin(&store, &domain, chunking, Style::None).unwrap();
        writer.add(0, Region::Anonymous, 0, &content[..8192]).unwrap();
        writer.add(0, Region::File, 8192, &content[8192..]).unwrap();
        let written = writer.end(&[(0, 16_384), (1, 0)]).unwrap();
        (written.recipe, written.added)
    };
    put();
    let (recipe, added) = put();
    assert_eq!((added[2].shared_bytes, added[1].shared_bytes), (0, 8192));
    assert!(get(&store, &recipe, &place).unwrap().0 == content);
    fs::remove_file(place.path().join("store/index")).unwrap();
    let (recipe, _) = put();
    assert!(get(&store, &recipe, &place).unwrap().0 == content);
}

/// A page of a program's own, at an address.
fn own_page(seed: u64, address: u64) -> Vec<u8> {
    let (page, mut at) = (page(seed), 0_u64);
    let word = |word: &[u8]| {
        at += 1;
        if at.is_multiple_of(5) { (address + at * 24).to_le_bytes().to_vec() } else { word.to_vec() }
    };
    page.chunks(8).flat_map(word).collect()
}

#[test]
fn pages_that_are_like_others_are_kept_as_differences() {
    for style in [Style::None, Style::Zstd(1)] {
        let place = TempDir::new();
        let (store, domain) = (at(&place), Domain::new(&[1; 32]));
        let start = |address: u64| -> Vec<u8> {
            // The front half of an image is a file's.
            let own = (1..40).flat_map(|seed| own_page(seed, 0x7f00_0000_0000 + address));
            [vec![0; 39 * PAGE], own.collect()].concat()
        };
        let images = [0, 0x1_2345_6000, 0x77_0000_1000, 0x1_2345_6000].map(start);
        let mut recipes = Vec::new();
        for (number, image) in images.iter().enumerate() {
            let (recipe, added) = put(&store, &domain, style, image, &[]);
            let expected = [(0, 0), (39 * 4096, 0), (39 * 4096, 0), (0, 39 * 4096)][number];
            assert_eq!((added[2].near_bytes, added[2].shared_bytes), expected, "{number}");
            assert!(number == 0 || added[2].stored_bytes < 39 * 700, "{added:?}");
            recipes.push(Recipe::decode(&recipe.encode()).unwrap());
        }
        let all_come_back = |recipes: &[Recipe], of: &[usize]| {
            store.verify(recipes).unwrap();
            for (recipe, at) in recipes.iter().zip(of) {
                assert!(get(&store, recipe, &place).unwrap().0 == images[*at], "{at}");
            }
        };
        all_come_back(&recipes, &[0, 1, 2, 3]);
        // The base's own snapshot goes; what others need of it stays, and moves.
        recipes.remove(0);
        recipes.remove(1);
        for _ in 0..2 {
            let mut collector = Collector::begin(&store).unwrap();
            recipes.iter().for_each(|recipe| collector.mark(recipe));
            let moved = collector.move_out(LONG).unwrap();
            for recipe in &mut recipes {
                *recipe = recipe.relocated(&moved).unwrap().unwrap_or(recipe.clone());
            }
            collector.end(Duration::ZERO).unwrap();
            all_come_back(&recipes, &[1, 3]);
        }
        // With an index made anew, too.
        fs::remove_file(place.path().join("store/index")).unwrap_or_default();
        let (recipe, added) = put(&store, &domain, style, &images[2], &[]);
        assert_eq!(added[2].near_bytes, 39 * 4096);
        recipes.push(recipe);
        all_come_back(&recipes, &[1, 3, 2]);
        let (_, added) = put(&store, &Domain::new(&[2; 32]), style, &images[1], &[]);
        assert_eq!(added[2].near_bytes + added[2].shared_bytes, 0, "another domain's");
    }
}

#[test]
fn a_difference_that_is_damaged_or_has_lost_its_base_is_told() {
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[1; 32]));
    let own =
        |address| [vec![0; 8 * PAGE], (1..9).flat_map(|seed| own_page(seed, address)).collect()].concat();
    put(&store, &domain, Style::None, &own(0x7f00_0000_0000), &[]);
    let (recipe, _) = put(&store, &domain, Style::None, &own(0x7f00_7777_0000), &[]);
    for path in dblocks(&place) {
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(good.len() / 40) {
            let mut bad = good.clone();
            bad[at] ^= 4;
            fs::write(&path, &bad).unwrap();
            if let Ok((pages, _, _)) = get(&store, &recipe, &place) {
                assert!(pages == own(0x7f00_7777_0000), "{at}");
            }
            let (again, _) = put(&store, &domain, Style::None, &own(0x7f00_7777_0000), &[]);
            if let Ok((pages, _, _)) = get(&store, &again, &place) {
                assert!(pages == own(0x7f00_7777_0000), "{at}");
            }
        }
        fs::write(&path, &good).unwrap();
    }
}

#[test]
fn a_snapshot_that_has_little_of_many_others_comes_back_by_few_reads() {
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[1; 32]));
    let no_own = |seeds: std::ops::Range<u64>| [image(&seeds.collect::<Vec<_>>()), image(&[0; 200])].concat();
    let mut recipes: Vec<Recipe> = (0..20)
        .map(|number| put(&store, &domain, Style::None, &no_own(1 + number * 100..101 + number * 100), &[]).0)
        .collect();
    // Ten pages of each, and most of the last one.
    let mixed: Vec<u64> =
        (0..20).flat_map(|number| 1 + number * 100..11 + number * 100).chain(1911..2001).collect();
    let content = [image(&mixed), image(&[0; 400])].concat();
    let store_by = |sparse_bytes: u32| {
        let mut writer =
            Writer::begin(&store, &domain, Chunking::default(), Style::None).unwrap().gathering(sparse_bytes);
        writer.add(0, Region::File, 0, &content).unwrap();
        let written = writer.end(&[(0, content.len() as u64), (1, 0)]).unwrap();
        (written.recipe, written.added[1])
    };
    let (scattered, added) = store_by(0);
    assert_eq!((added.stored_bytes, added.again_bytes, scattered.dblocks().len()), (0, 0, 20));
    let (gathered, added) = store_by(256 << 10);
    assert_eq!((added.stored_bytes, added.again_bytes, gathered.dblocks().len()), (0, 19 * 10 * 4096, 2));
    assert!(get(&store, &gathered, &place).unwrap().0 == content);
    // The next one like it finds them there.
    let (again, added) = store_by(256 << 10);
    assert_eq!((added.again_bytes, again.dblocks()), (0, gathered.dblocks()));
    recipes.extend([scattered, gathered, again]);
    store.verify(&recipes).unwrap();
    // Without an index, too, and when only one is left.
    fs::remove_file(place.path().join("store/index")).unwrap();
    let (last, _) = store_by(256 << 10);
    let mut collector = Collector::begin(&store).unwrap();
    collector.mark(&last);
    let last = last.relocated(&collector.move_out(LONG).unwrap()).unwrap().unwrap_or(last);
    collector.end(Duration::ZERO).unwrap();
    assert!(get(&store, &last, &place).unwrap().0 == content);
}

#[test]
fn links_that_were_put_into_a_store_lead_nowhere() {
    use std::os::unix::fs::symlink;
    let place = TempDir::new();
    let (store, domain) = (at(&place), Domain::new(&[3; 32]));
    let (root, secret) = (place.path().join("store"), place.path().join("secret"));
    let from = |name: &str| place.path().join(name);
    fs::write(&secret, "kept").unwrap();
    fs::write(from("blob"), "no dblock").unwrap();
    symlink(&secret, from("link")).unwrap();
    for name in ["lock", "index"] {
        symlink(&secret, root.join(name)).unwrap();
    }
    assert!(matches!(
        Writer::begin(&store, &domain, Chunking::default(), Style::None),
        Err(StoreError::Io { .. })
    ));
    fs::remove_file(root.join("lock")).unwrap();
    fs::hard_link(&secret, root.join("lock")).unwrap();
    assert!(store.adopt([(1, from("blob"))]).is_err());
    fs::remove_file(root.join("lock")).unwrap();
    for name in
        ["index.new", "dblocks/00000001.new", "dblocks/00000002", "dblocks/00000002.new", "dblocks/00000003"]
    {
        symlink(&secret, root.join(name)).unwrap();
    }
    store.adopt([(1, from("blob")), (2, from("blob")), (1 << 21, from("blob")), (0, from("blob"))]).unwrap();
    assert!(fs::symlink_metadata(root.join("dblocks/00000001")).unwrap().is_file());
    assert!(!root.join("dblocks/00200000").exists() && store.file(2).is_err());
    // Another link is not followed either, wherever it is copied or linked from.
    let _ = store.adopt([(4, from("link"))]);
    assert!(store.file(4).is_err());
    let image = image(&[1, 2, 3, 4]);
    let (recipe, _) = put(&store, &domain, Style::Lz4, &image, &[]);
    assert!(get(&store, &recipe, &place).unwrap().0 == image);
    symlink(&secret, root.join("dblocks/00000005.dead")).unwrap();
    store.set_dead(5, true).unwrap();
    assert_eq!(fs::read(&secret).unwrap(), b"kept");
}

#[test]
fn strangers_dblocks_are_unpacked_by_no_c_code_and_their_index_is_not_read() {
    let place = TempDir::new();
    let (mine, domain) = (at(&place), Domain::new(&[3; 32]));
    let image = image(&[1, 2, 3, 4]);
    let (recipe, _) = put(&mine, &domain, Style::Zstd(3), &image, &[]);
    let theirs = Store::of_strangers(&place.path().join("store")).unwrap();
    let refused = get(&theirs, &recipe, &place).unwrap_err();
    assert!(matches!(refused, StoreError::Codec { .. }) && refused.to_string().contains("--codec lz4"));
    let alone = Store::of_files(recipe.dblocks().into_iter().map(|id| (id, mine.path(id))).collect());
    assert!(matches!(get(&alone, &recipe, &place), Err(StoreError::Codec { .. })));
    let mut writer = Writer::begin(&theirs, &domain, Chunking::default(), Style::Zstd(3)).unwrap();
    writer.add(0, Region::File, 0, &image).unwrap();
    assert!(matches!(writer.end(&[(0, 4 * 4096)]), Err(StoreError::Codec { .. })));
    // Nothing of them is left to them, and what is written is found again without an index.
    fs::remove_file(place.path().join("store/index")).unwrap();
    let (first, added) = put(&theirs, &domain, Style::Lz4, &image, &[]);
    assert_eq!(added[1].shared_bytes, 0);
    fs::write(place.path().join("store/lock"), [0xff; 4]).unwrap();
    let (second, added) = put(&theirs, &domain, Style::Lz4, &image, &[]);
    assert_eq!((added[1].shared_bytes, &second), (2 * 4096, &first));
    assert!(!place.path().join("store/index").exists());
    let alone = Store::of_files(second.dblocks().into_iter().map(|id| (id, mine.path(id))).collect());
    assert!(get(&alone, &second, &place).unwrap().0 == image);
}
