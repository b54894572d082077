//! Calling a vCPU's attention: kicks, deadlines, idling.
//!
//! A kick sets `CpuHeader::pending`, then looks where the CPU is. In the guest: a signal makes `KVM_RUN` return, or not
//! begin, since its handler sets `immediate_exit`. In the host: nothing, because the guest's kernel looks at `pending`
//! before it runs user code, and the vCPU loop looks before it goes back to user code. Idle: it is woken.

use abi::run::CpuHeader;
use kvm_ioctls::VcpuFd;
use std::cell::Cell;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Where a vCPU thread is; also the word an idle one sleeps on.
const HOST: u32 = 0;
const GUEST: u32 = 1;
const IDLE: u32 = 2;

thread_local! {
    /// `kvm_run::immediate_exit` of the vCPU this thread runs.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(null_mut()) };
}

/// The signal that makes a vCPU leave the guest. Nothing else in the process uses it.
pub fn kick_signal() -> libc::c_int {
    libc::SIGRTMIN() + 2
}

extern "C" fn on_kick(_signal: libc::c_int) {
    let flag = IMMEDIATE_EXIT.with(Cell::get);
    if !flag.is_null() {
        // SAFETY: the pointer is set only while this thread's `Attached` exists, which keeps the vCPU mapped.
        unsafe { flag.write_volatile(1) };
    }
}

/// Installs the kick signal's handler for the process, once.
pub fn install_kick_handler() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        // SAFETY: the handler only writes one byte through a thread-local pointer; a zeroed sigaction is valid.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_kick as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(kick_signal(), &raw const action, null_mut());
        }
    });
}

/// Monotonic time in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for a write; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn timespec(ns: u64) -> libc::timespec {
    let second = 1_000_000_000;
    #[allow(clippy::cast_possible_wrap)]
    libc::timespec { tv_sec: (ns / second) as i64, tv_nsec: (ns % second) as i64 }
}

/// A timer that sends the kick signal to the thread that made it.
#[derive(Debug)]
struct ThreadTimer(libc::timer_t);

impl ThreadTimer {
    /// Also installs the signal's handler and lets the signal through.
    fn new() -> std::io::Result<Self> {
        install_kick_handler();
        // SAFETY: plain system calls on local, valid memory.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, kick_signal());
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut());
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = kick_signal();
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = null_mut();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(Self(timer))
        }
    }

    /// Fires at the monotonic time `at_ns`, then every `interval_ns` (0: once). At 0: never.
    fn arm(&self, at_ns: u64, interval_ns: u64) {
        let spec = libc::itimerspec { it_interval: timespec(interval_ns), it_value: timespec(at_ns) };
        // SAFETY: the timer exists as long as `self`.
        unsafe { libc::timer_settime(self.0, libc::TIMER_ABSTIME, &raw const spec, null_mut()) };
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        // SAFETY: the timer is ours, and nothing arms it any more.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Gets the calling thread out of `KVM_RUN` when that takes too long.
pub(in crate::platform) struct Watchdog {
    timer: ThreadTimer,
}

impl Watchdog {
    /// Fires after the first time every so often, should a signal be swallowed.
    const AGAIN_NS: u64 = 10_000_000;

    /// For `vcpu`, which must outlive the result.
    pub(in crate::platform) fn new(vcpu: &mut VcpuFd) -> std::io::Result<Self> {
        let timer = ThreadTimer::new()?;
        IMMEDIATE_EXIT.set(&raw mut vcpu.get_kvm_run().immediate_exit);
        Ok(Self { timer })
    }

    pub(in crate::platform) fn start(&self, after: std::time::Duration) {
        let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.timer.arm(now_ns().saturating_add(after_ns), Self::AGAIN_NS);
    }

    pub(in crate::platform) fn stop(&self) {
        self.timer.arm(0, 0);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(null_mut());
    }
}

/// One vCPU as other threads see it.
#[derive(Debug)]
pub struct CpuControl {
    header: *const CpuHeader,
    place: AtomicU32,
    thread: AtomicI32,
    timer: AtomicPtr<libc::c_void>,
    has_timer: AtomicBool,
    stopping: AtomicBool,
}

// SAFETY: `header` points at shared memory that outlives the control and is only accessed atomically.
unsafe impl Send for CpuControl {}
// SAFETY: as above.
unsafe impl Sync for CpuControl {}

impl CpuControl {
    /// # Safety
    /// `header` points at the CPU's header, and stays valid as long as the control.
    pub(super) unsafe fn new(header: *const CpuHeader) -> Arc<Self> {
        Arc::new(Self {
            header,
            place: AtomicU32::new(HOST),
            thread: AtomicI32::new(0),
            timer: AtomicPtr::new(null_mut()),
            has_timer: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        })
    }

    fn pending_word(&self) -> &AtomicU32 {
        // SAFETY: the header is valid as long as `self`; the field is an atomic shared with the guest.
        unsafe { &(*self.header).pending }
    }

    fn deadline_ns(&self) -> u64 {
        // SAFETY: as in `pending_word`.
        unsafe { (*self.header).deadline_ns.load(Ordering::SeqCst) }
    }

    /// Whether the guest's kernel is wanted on this CPU.
    pub fn is_pending(&self) -> bool {
        self.pending_word().load(Ordering::SeqCst) != 0
    }

    /// Whether [`CpuControl::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Makes the guest's kernel look at timers, its run queue and host events on this CPU.
    pub fn kick(&self) {
        self.pending_word().store(1, Ordering::SeqCst);
        self.rouse();
    }

    /// Makes the vCPU loop end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.rouse();
    }

    fn rouse(&self) {
        match self.place.compare_exchange(IDLE, HOST, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => self.wake(),
            Err(GUEST) => self.signal(),
            Err(_) => {}
        }
    }

    fn wake(&self) {
        // SAFETY: the futex word outlives the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.place.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            );
        }
    }

    fn signal(&self) {
        let thread = self.thread.load(Ordering::SeqCst);
        if thread != 0 {
            // SAFETY: a signal to a thread of this process; its handler is installed, and harmless on any thread.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, kick_signal()) };
        }
    }

    /// Blocks the calling vCPU thread until it is kicked or stopped, or its deadline has come; serves `IDLE`.
    pub fn idle(&self) {
        self.place.store(IDLE, Ordering::SeqCst);
        while !self.is_pending() && !self.is_stopping() && self.place.load(Ordering::SeqCst) == IDLE {
            let deadline = self.deadline_ns();
            if deadline <= now_ns() {
                self.pending_word().store(1, Ordering::SeqCst);
                break;
            }
            let until = timespec(deadline);
            let until = if deadline == u64::MAX { null() } else { &raw const until };
            let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the futex word and the time outlive the call. The wait's time is absolute and monotonic.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.place.as_ptr(),
                    operation,
                    IDLE,
                    until,
                    null::<u32>(),
                    libc::FUTEX_BITSET_MATCH_ANY,
                );
            }
        }
        self.place.store(HOST, Ordering::SeqCst);
    }

    /// Arms this thread's timer; serves `SET_DEADLINE`. A timer that comes too early, because the kernel moved its
    /// deadline since, is armed again.
    pub fn set_deadline(&self, deadline_ns: u64) {
        if !self.has_timer.load(Ordering::SeqCst) {
            return;
        }
        // A value of zero would disarm.
        let value = timespec(deadline_ns.max(1));
        let spec = libc::itimerspec { it_interval: timespec(0), it_value: value };
        let timer = self.timer.load(Ordering::SeqCst);
        // SAFETY: the timer exists while `has_timer` is set, and only its own thread arms or deletes it.
        unsafe { libc::timer_settime(timer, libc::TIMER_ABSTIME, &raw const spec, null_mut()) };
    }

    /// After a signal: sets `pending` if the deadline has come, or waits for it again.
    pub(super) fn check_deadline(&self) {
        let deadline = self.deadline_ns();
        if deadline <= now_ns() {
            self.pending_word().store(1, Ordering::SeqCst);
        } else if deadline != u64::MAX {
            self.set_deadline(deadline);
        }
    }

    /// The vCPU is about to enter the guest. What was set before is seen by the caller; what comes later, signals.
    pub(super) fn enter_guest(&self) {
        self.place.store(GUEST, Ordering::SeqCst);
    }

    pub(super) fn leave_guest(&self) {
        self.place.store(HOST, Ordering::SeqCst);
    }

    /// Makes the calling thread the vCPU's.
    ///
    /// # Safety
    /// `immediate_exit` is the vCPU's, and stays mapped until the result is dropped.
    pub(super) unsafe fn attach(self: &Arc<Self>, immediate_exit: *mut u8) -> std::io::Result<Attached> {
        let timer = ThreadTimer::new()?;
        IMMEDIATE_EXIT.set(immediate_exit);
        self.timer.store(timer.0, Ordering::SeqCst);
        self.has_timer.store(true, Ordering::SeqCst);
        // SAFETY: no preconditions.
        self.thread.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        Ok(Attached { control: self.clone(), _timer: timer })
    }
}

/// While it exists, this thread runs the vCPU.
pub(super) struct Attached {
    control: Arc<CpuControl>,
    _timer: ThreadTimer,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.control.thread.store(0, Ordering::SeqCst);
        self.control.has_timer.store(false, Ordering::SeqCst);
        IMMEDIATE_EXIT.set(null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    fn header(deadline_ns: u64) -> Box<CpuHeader> {
        Box::new(CpuHeader {
            this: 0,
            current: AtomicU64::new(0),
            trap_sp: 0,
            scratch: 0,
            host_sp: 0,
            pending: AtomicU32::new(0),
            cpu: 0,
            deadline_ns: AtomicU64::new(deadline_ns),
            in_user: AtomicU64::new(0),
        })
    }

    #[test]
    fn an_idle_cpu_wakes_at_its_deadline() {
        let header = header(now_ns() + 20_000_000);
        // SAFETY: the header outlives the control.
        let control = unsafe { CpuControl::new(&raw const *header) };
        let start = Instant::now();
        control.idle();
        assert!(start.elapsed() >= Duration::from_millis(19));
        assert!(control.is_pending());
    }

    #[test]
    fn a_kick_wakes_an_idle_cpu_and_is_not_lost_before_it_idles() {
        let header = header(u64::MAX);
        // SAFETY: the header outlives the control.
        let control = unsafe { CpuControl::new(&raw const *header) };
        control.kick();
        control.idle();
        control.pending_word().store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                control.kick();
            });
            control.idle();
        });
        assert!(control.is_pending());
    }
}
