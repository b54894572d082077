//! A small thread pool for one piece of work: while some threads wait for the disk, others find, check and fill pages.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Threads beside the caller's. Between calls they find, check and fill pages; with these the disk always has work.
const HELPERS: usize = 2;
/// A helper's stack, in bytes: coders keep tables there.
pub const STACK_BYTES: usize = 256 << 10;

/// How many threads work at a time, the caller's included.
pub const THREADS: f64 = 1.0 + HELPERS as f64;

/// How many processors there are for this process.
pub fn processors() -> f64 {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    #[expect(clippy::cast_precision_loss, reason = "a few thousand at most")]
    let processors = processors as f64;
    processors
}

/// Calls `work` for each item, the calling thread and helpers taking turns; the results are in the items' order. Without
/// a second item, or a second thread, the caller does it all.
pub fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let all = || loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(item) = items.get(at) else { break };
        let result = work(item);
        done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
    };
    thread::scope(|scope| {
        for _ in 0..HELPERS.min(items.len().saturating_sub(1)) {
            // Should there be no thread to be had, the others do without.
            let helper = thread::Builder::new().name("dormouse-swap".into()).stack_size(STACK_BYTES);
            let _ = helper.spawn_scoped(scope, all);
        }
        all();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_done_once_and_in_order() {
        for count in [0, 1, 2, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let doubled: Vec<usize> = items.iter().map(|item| 2 * item).collect();
            assert_eq!(map(&items, |item| 2 * item), doubled);
        }
    }
}
