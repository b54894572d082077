//! Threads: a task's kernel stack, its user registers, and the memory it sees.

use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::errno::Result;
use crate::host;
use crate::mm::{AddressSpace, give_back, stats};
use crate::platform::{self, Trap, UserContext};
use crate::rank::Rank;
use crate::sched::{self, SchedState};
use crate::spin::SpinLock;

/// The part of a task that the machine runs.
pub struct Thread {
    pub sched: SchedState,
    context: UnsafeCell<UserContext>,
    /// A [`ContextGuard`] is out. Only the thread itself touches it.
    is_context_lent: AtomicBool,
    /// The memory it sees. Replaced by `execve(2)`, dropped when it ends.
    aspace: SpinLock<Option<Arc<AddressSpace>>>,
    /// The memory it sees, for the thread itself, which needs no lock to use it.
    own_aspace: AtomicPtr<AddressSpace>,
}

// SAFETY: `context` is touched only by the thread itself while it is current, one borrower at a time (`context`,
// `run_user`, `leave_cpu` check both), by who fetches it while it rests (`fetch_from` checks that), and by whoever makes the thread.
unsafe impl Sync for Thread {}
// SAFETY: as above.
unsafe impl Send for Thread {}

impl Thread {
    /// A thread that does `main` once it is started; its user code begins with `context`.
    pub fn new(context: UserContext, aspace: Option<Arc<AddressSpace>>, main: fn()) -> Result<Self> {
        Ok(Self::with(SchedState::new(main)?, context, aspace))
    }

    /// The thread of a CPU with nothing to do, on the stack the CPU was booted on.
    pub fn idle() -> Self {
        Self::with(SchedState::idle(), UserContext::new(), None)
    }

    fn with(sched: SchedState, context: UserContext, aspace: Option<Arc<AddressSpace>>) -> Self {
        Self {
            sched,
            context: UnsafeCell::new(context),
            is_context_lent: AtomicBool::new(false),
            own_aspace: AtomicPtr::new(pointer_of(aspace.as_ref())),
            aspace: SpinLock::new(Rank::ThreadMemory, aspace),
        }
    }

    /// The memory the thread sees; `None` once it has ended.
    pub fn aspace(&self) -> Option<Arc<AddressSpace>> {
        self.aspace.lock().clone()
    }

    /// Replaces the memory of the current thread, returning the former, which no CPU's page table is any more.
    pub fn replace_aspace(&self, aspace: Option<Arc<AddressSpace>>) -> Option<Arc<AddressSpace>> {
        self.expect_current();
        platform::current().enter_space(aspace.as_deref().map(AddressSpace::machine));
        self.own_aspace.store(pointer_of(aspace.as_ref()), Ordering::Relaxed);
        core::mem::replace(&mut *self.aspace.lock(), aspace)
    }

    /// The user registers and FPU state of the current thread. The guard must be gone before the thread sleeps.
    pub fn context(&self) -> ContextGuard<'_> {
        self.expect_current();
        if self.is_context_lent.load(Ordering::Relaxed) {
            host::die("a thread's registers are lent twice");
        }
        self.is_context_lent.store(true, Ordering::Relaxed);
        ContextGuard { thread: self }
    }

    /// Shows the stub what the current thread's user code may touch next. It may sleep, and lose the CPU. What is queued later comes
    /// the next time, or by a fault.
    pub fn flush_mirror(&self) {
        self.expect_current();
        // SAFETY: as in `run_user`.
        let aspace = unsafe { self.own_aspace.load(Ordering::Relaxed).as_ref() };
        if let Some(aspace) = aspace.filter(|_| platform::current().mirrors()) {
            aspace.flush_mirror();
        }
    }

    /// Runs user code of the current thread until it traps; `None`: it has no memory. It neither sleeps nor loses the CPU before.
    pub fn run_user(&self) -> Option<Trap> {
        self.expect_current();
        // SAFETY: `aspace` holds what the pointer leads to, and only the thread itself changes both, which it does not do
        // before the trap: it is current, and this is what it does.
        let aspace = unsafe { self.own_aspace.load(Ordering::Relaxed).as_ref() }?;
        let mut context = self.context();
        self.sched.count_time(false);
        let trap = platform::current().run_user(&mut context, aspace.machine());
        self.sched.count_time(true);
        Some(trap.into())
    }

    /// See [`sched::Run::enter_cpu`].
    pub fn enter_cpu(&self) {
        platform::current().enter_space(self.aspace().as_deref().map(AddressSpace::machine));
    }

    /// See [`sched::Run::leave_cpu`].
    pub fn leave_cpu(&self) {
        if !self.sched.is_idle() {
            let mut context = self.context();
            context.sync_fpu();
            context.fpu_live = false;
        }
    }

    /// See [`sched::Run::rest_on_cpu`].
    pub fn rest_on_cpu(&self) {
        // The guard of the registers must be gone, as if they were saved.
        drop(self.context());
    }

    /// See [`sched::Run::fetch_from`].
    pub fn fetch_from(&self, cpu: usize) {
        if !self.sched.is_fetched() || self.is_context_lent.load(Ordering::Relaxed) {
            host::die("a thread's registers are fetched by two");
        }
        // SAFETY: it runs nowhere, and as long as it is being fetched nobody else comes here or has it run.
        let context = unsafe { &mut *self.context.get() };
        if !core::mem::take(&mut context.fpu_live) {
            return;
        }
        let Some(aspace) = self.aspace() else { return };
        // SAFETY: an `FpuArea` is aligned and large enough.
        unsafe { platform::current().fetch_fpu(cpu, aspace.machine(), context.fpu.0.as_mut_ptr()) };
    }

    /// The state that only the thread itself may touch is touched by itself.
    fn expect_current(&self) {
        if !self.sched.is_current() {
            host::die("a thread's registers or memory are touched by another");
        }
    }
}

fn pointer_of(aspace: Option<&Arc<AddressSpace>>) -> *mut AddressSpace {
    aspace.map_or(core::ptr::null_mut(), |aspace| Arc::as_ptr(aspace).cast_mut())
}

/// The user half of the current thread's processor state, exclusively.
pub struct ContextGuard<'a> {
    thread: &'a Thread,
}

impl ContextGuard<'_> {
    /// Makes `fpu` what the processor holds.
    pub fn sync_fpu(&mut self) {
        if !self.fpu_live {
            return;
        }
        let Some(aspace) = self.thread.aspace() else { return };
        let area = self.fpu.0.as_mut_ptr();
        // SAFETY: an `FpuArea` is aligned and large enough.
        unsafe { platform::current().save_fpu(aspace.machine(), area) };
    }
}

impl Deref for ContextGuard<'_> {
    type Target = UserContext;
    fn deref(&self) -> &UserContext {
        // SAFETY: the guard was made by the current thread, and there is one at a time.
        unsafe { &*self.thread.context.get() }
    }
}

impl DerefMut for ContextGuard<'_> {
    fn deref_mut(&mut self) -> &mut UserContext {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.thread.context.get() }
    }
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        self.thread.is_context_lent.store(false, Ordering::Relaxed);
    }
}

/// Handles what made the VMM interrupt this CPU, and timers that are due.
pub fn handle_pending() {
    if sched::handle_pending() {
        stats::refresh();
    }
    give_back::look_if_freed();
}
