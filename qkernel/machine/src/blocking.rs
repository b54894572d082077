//! Calls to the host that may take long: the task sleeps meanwhile, and its CPU runs others.
#![deny(unsafe_code)]

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::errno::{Errno, Result};
use crate::in_flight;
use crate::sched::wait::WaitQueue;

struct Call {
    ended: AtomicBool,
    result: AtomicI64,
    waiter: WaitQueue,
}

/// Has the host carry out an operation (`ASYNC_FSYNC` …), and sleeps until it has ended. Signals don't end the wait.
pub fn call(operation: u64, args: [u64; 3]) -> Result<u64> {
    let call =
        Arc::new(Call { ended: AtomicBool::new(false), result: AtomicI64::new(0), waiter: WaitQueue::new() });
    let shared = call.clone();
    let ended = move |result| {
        shared.result.store(result, Ordering::Relaxed);
        shared.ended.store(true, Ordering::Release);
        shared.waiter.wake_all();
    };
    in_flight::submit(operation, args, Box::new(ended)).map_err(|(error, _)| error)?;
    let _awaited = in_flight::Awaited::begin();
    call.waiter.wait_uninterruptible(|| call.ended.load(Ordering::Acquire));
    Errno::check(call.result.load(Ordering::Relaxed))
}
