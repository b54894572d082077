//! Times a store of 64 Ki pages and its return, in the directory that is given: medians of several rounds.

use std::path::Path;
use std::ptr::NonNull;
use std::time::Instant;

use swap::{Home, PAGE_BYTES, Page, PageId, SwapHome, open_unnamed};

const PAGES: PageId = 64 << 10;
const ROUNDS: usize = 9;
/// Every so many pages one is a repeated word.
const WORD_EVERY: PageId = 8;
/// Faults that each bring in the pages around one.
const FAULTS: PageId = 2048;

#[repr(align(4096))]
#[derive(Clone)]
struct Content([u8; PAGE_BYTES]);

fn content(id: PageId) -> Content {
    let mut page = Content([0; PAGE_BYTES]);
    let mut state = u64::from(id);
    for word in page.0.as_chunks_mut::<8>().0 {
        if !id.is_multiple_of(WORD_EVERY) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        *word = state.to_ne_bytes();
    }
    page
}

fn page(memory: &mut [Content], id: PageId) -> Page {
    let addr = NonNull::from(&mut memory[id as usize]).cast();
    // SAFETY: the memory outlives the measurement, and nothing else uses it meanwhile.
    unsafe { Page::new(id, addr) }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".into());
    let mut memory: Vec<Content> = (0..PAGES).map(content).collect();
    let all: Vec<Page> = (0..PAGES).map(|id| page(&mut memory, id)).collect();
    let mut times: [Vec<f64>; 5] = Default::default();
    for _ in 0..ROUNDS {
        let device = || Box::new(open_unnamed(Path::new(&dir)).expect("a file"));
        let mut home = SwapHome::new(device(), device(), u64::MAX);
        let mut step = 0;
        let mut time = |work: &mut dyn FnMut()| {
            let start = Instant::now();
            work();
            times[step].push(start.elapsed().as_secs_f64() * 1e3);
            step += 1;
        };
        time(&mut || {
            home.store(&[], &all).expect("room");
        });
        time(&mut || {
            home.fetch(&all).expect("the pages");
        });
        time(&mut || {
            for id in (0..FAULTS).map(|at| at * (PAGES / FAULTS) + 1) {
                let mut around: Vec<Page> = (id..id + 16).map(|id| all[id as usize]).collect();
                home.fetch_around(&mut around).expect("the pages");
            }
        });
        time(&mut || {
            home.store(&all, &[]).expect("room");
        });
        time(&mut || {
            home.fetch(&all).expect("the pages");
        });
    }
    let names = ["store, swap file", "fetch, swap file", "faults", "store, REAP file", "fetch, REAP file"];
    for (name, times) in names.into_iter().zip(times) {
        println!("{name:18} {:8.1} ms", median(times));
    }
}
