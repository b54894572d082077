//! Operations that the host carries out by itself: submitted by one hostcall, completed by an event. Meanwhile their
//! tasks sleep, if anyone waits for them at all, and the CPUs run others.
//!
//! As long as one is in flight the sandbox is not at rest, and is not frozen: what it writes to is there when it ends.
#![deny(unsafe_code)]

use abi::hostcall as hc;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::errno::Errno;
use crate::owner::{self, OWNERS, Owner};
use crate::platform;
use crate::rank::Rank;
use crate::spin::SpinLock;

/// The function that is called with an operation's result, as a hostcall gives it, when the operation has ended. It is
/// called on any CPU, without a lock held, and must not sleep.
pub type Completion = Box<dyn FnOnce(i64) + Send>;

static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);
static WAITING: SpinLock<BTreeMap<u64, Completion>> = SpinLock::new(Rank::InFlight, BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Begins an operation (`ASYNC_FSYNC` …) with its arguments. If the host does not take it, `then` comes back with the
/// reason.
pub fn submit(operation: u64, [a, b, c]: [u64; 3], then: Completion) -> Result<(), (Errno, Completion)> {
    let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::SeqCst);
    WAITING.lock().insert(token, then);
    let Err(error) = platform::call(hc::SUBMIT, [operation, a, b, c, token, 0]) else { return Ok(()) };
    let then = WAITING.lock().remove(&token);
    match then {
        Some(then) => {
            COUNT.fetch_sub(1, Ordering::SeqCst);
            Err((error, then))
        }
        // The host has said both; the completion counts.
        None => Ok(()),
    }
}

/// The operation with this token has ended.
pub(crate) fn complete(token: u64, result: i64) {
    let then = WAITING.lock().remove(&token);
    if let Some(then) = then {
        then(result);
        // Not before: whoever it has woken is in the run queue by now.
        COUNT.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How many tasks of each owner wait for an operation, whatever signals come.
static AWAITED: [AtomicU32; OWNERS] = [const { AtomicU32::new(0) }; OWNERS];

/// While it lives a task of its owner waits so.
pub(crate) struct Awaited(Owner);

impl Awaited {
    /// The current task begins to wait.
    pub fn begin() -> Self {
        let owner = owner::current();
        AWAITED[usize::from(owner.number())].fetch_add(1, Ordering::Relaxed);
        Self(owner)
    }

    /// How many there are of an owner.
    pub fn by(owner: Owner) -> usize {
        AWAITED[usize::from(owner.number())].load(Ordering::Relaxed) as usize
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        AWAITED[usize::from(self.0.number())].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the host is at work on anything.
pub fn any() -> bool {
    COUNT.load(Ordering::SeqCst) != 0
}
