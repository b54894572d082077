//! Kernel stacks.

use alloc::vec::Vec;

use crate::config::KERNEL_STACK_BYTES;
use crate::errno::{Errno, Result};
use crate::heap;
use crate::owner::{self, Owner};
use crate::platform;
use crate::rank::Rank;
use crate::spin::SpinLock;

/// Stacks of ended tasks, kept for the next ones: their pages are warm.
static POOL: SpinLock<Vec<u64>> = SpinLock::new(Rank::Stacks, Vec::new());
const POOL_MAX: usize = 16;
const CANARY: u64 = 0x5d0f_a1ee_7bad_c0de;

/// A task's stack in kernel memory. Its lowest word holds a canary that is checked when the task ends; 0 once the pages
/// below a sleeping task have been given back.
pub struct KernelStack {
    base: u64,
}

impl KernelStack {
    /// A stack from the pool or the heap.
    pub fn new() -> Result<Self> {
        let pooled = POOL.lock().pop();
        let base = match pooled {
            Some(base) => {
                heap::give_pages(base, owner::current());
                base
            }
            None => heap::alloc_pages(KERNEL_STACK_BYTES).ok_or(Errno::ENOMEM)?,
        };
        // SAFETY: the stack's memory is ours.
        unsafe { (base as *mut u64).write(CANARY) };
        Ok(Self { base })
    }

    /// The address just behind the stack.
    pub fn top(&self) -> u64 {
        self.base + KERNEL_STACK_BYTES as u64
    }

    /// Gives the pages below `sp` back to the host: a task that sleeps there uses none of them.
    pub fn trim(&self, sp: u64) {
        let end = sp / abi::PAGE_SIZE * abi::PAGE_SIZE;
        if (self.base + 1..self.top()).contains(&end) {
            // Memory that stays is only lost.
            let _ = platform::release(platform::phys_of(self.base as *const u8), end - self.base);
        }
    }
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        // SAFETY: the stack's memory is ours until it is given back below.
        if ![CANARY, 0].contains(&unsafe { (self.base as *const u64).read() }) {
            crate::host::die("kernel stack overflow");
        }
        heap::give_pages(self.base, Owner::SANDBOX);
        let mut pool = POOL.lock();
        if pool.len() < POOL_MAX && pool.capacity() >= POOL_MAX {
            pool.push(self.base);
        } else if pool.capacity() < POOL_MAX {
            pool.reserve(POOL_MAX);
            pool.push(self.base);
        } else {
            drop(pool);
            heap::free_pages(self.base, KERNEL_STACK_BYTES);
        }
    }
}

/// Gives pooled stacks back to the heap.
pub fn trim() {
    let pooled = core::mem::take(&mut *POOL.lock());
    for base in pooled {
        heap::free_pages(base, KERNEL_STACK_BYTES);
    }
}
