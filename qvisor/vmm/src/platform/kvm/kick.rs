//! Calling a vCPU's attention: kicks, deadlines, idling.
//!
//! A caller that wants a vCPU first sets its request (`CpuHeader::pending`, or that the sandbox ends), then looks where
//! the vCPU is. In the guest: a signal makes `KVM_RUN` return, or not begin, since its handler sets `immediate_exit`.
//! In the host: nothing is needed, because the guest's kernel looks at `pending` before it runs user code, and the vCPU
//! loop looks before it goes back to user code.

use std::cell::{Cell, RefCell};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use kvm_ioctls::VcpuFd;

use crate::cpu;

thread_local! {
    /// `kvm_run::immediate_exit` of the vCPU this thread runs.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(null_mut()) };
    /// Its timer, and when that fires.
    static TIMER: RefCell<Option<ThreadTimer>> = const { RefCell::new(None) };
    static ALARM_NS: Cell<u64> = const { Cell::new(NEVER) };
}

/// Of a timer that is not set.
const NEVER: u64 = u64::MAX;

/// The signal that makes a vCPU leave the guest. Nothing else in the process uses it.
fn kick_signal() -> libc::c_int {
    libc::SIGRTMIN() + 2
}

extern "C" fn on_kick(_signal: libc::c_int) {
    let flag = IMMEDIATE_EXIT.with(Cell::get);
    if !flag.is_null() {
        // SAFETY: the pointer is set only while this thread's `Seat` or `GuestWatchdog` exists, which keeps the vCPU mapped.
        unsafe { flag.write_volatile(1) };
    }
}

/// Installs the kick signal's handler for the process, once.
fn install_kick_handler() {
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
pub fn now_ns() -> u64 {
    cpu::clock_ns(libc::CLOCK_MONOTONIC)
}

fn timespec(ns: u64) -> libc::timespec {
    let second = 1_000_000_000;
    libc::timespec { tv_sec: (ns / second).cast_signed(), tv_nsec: (ns % second).cast_signed() }
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
pub(in crate::platform) struct GuestWatchdog {
    timer: ThreadTimer,
}

impl GuestWatchdog {
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

impl Drop for GuestWatchdog {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(null_mut());
    }
}

/// How other threads interrupt a vCPU.
#[derive(Debug, Default)]
pub struct Kicker {
    in_guest: AtomicBool,
    /// The vCPU's thread, 0 while it has none.
    thread: AtomicI32,
}

impl Kicker {
    /// Makes the vCPU leave the guest if it is there. The caller has set the request that the vCPU looks at before it
    /// enters: one of the two sees the other.
    pub fn interrupt(&self) {
        let thread = self.thread.load(Ordering::SeqCst);
        if self.in_guest.load(Ordering::SeqCst) && thread != 0 {
            // SAFETY: a signal to a thread of this process; its handler is installed, and harmless on any thread.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, kick_signal()) };
        }
    }

    /// The vCPU is about to enter the guest. It sees requests that were set before this; a later one sends a signal.
    pub fn enter_guest(&self) {
        self.in_guest.store(true, Ordering::SeqCst);
    }

    pub fn leave_guest(&self) {
        self.in_guest.store(false, Ordering::SeqCst);
    }

    /// Makes the calling thread the vCPU's.
    ///
    /// # Safety
    /// `immediate_exit` is the vCPU's, and stays mapped until the result is dropped.
    pub unsafe fn sit(&self, immediate_exit: *mut u8) -> std::io::Result<Seat<'_>> {
        let timer = ThreadTimer::new()?;
        IMMEDIATE_EXIT.set(immediate_exit);
        TIMER.replace(Some(timer));
        ALARM_NS.set(NEVER);
        // SAFETY: no preconditions.
        self.thread.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        Ok(Seat { kicker: self })
    }
}

/// While it exists, this thread runs the vCPU.
pub struct Seat<'k> {
    kicker: &'k Kicker,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.kicker.thread.store(0, Ordering::SeqCst);
        TIMER.replace(None);
        IMMEDIATE_EXIT.set(null_mut());
    }
}

/// Arms the timer of the calling vCPU thread; returns when it fires. One that comes too early, because the kernel moved
/// its deadline since, is to be armed again ([`follow`]).
pub fn arm(deadline_ns: u64) -> u64 {
    // At zero a timer would be disarmed.
    TIMER.with_borrow(|timer| timer.iter().for_each(|timer| timer.arm(deadline_ns.max(1), 0)));
    ALARM_NS.set(deadline_ns);
    deadline_ns
}

/// After a signal: arms the timer of the calling vCPU thread for the kernel's deadline, or for `again_ns`; returns when it
/// fires.
pub fn follow(now_ns: u64, deadline_ns: u64, again_ns: Option<u64>) -> u64 {
    let alarm_ns = ALARM_NS.get();
    match next_alarm(alarm_ns, now_ns, deadline_ns, again_ns) {
        next if next == alarm_ns => next,
        NEVER => {
            ALARM_NS.set(NEVER);
            NEVER
        }
        next => arm(next),
    }
}

/// When a timer set to `alarm_ns` is to fire next. A timer that has not fired is not put off: the kernel relies on it
/// for any deadline it has by then, and does not report a deadline that comes later.
fn next_alarm(alarm_ns: u64, now_ns: u64, deadline_ns: u64, again_ns: Option<u64>) -> u64 {
    let is_set = |time: &u64| *time > now_ns && *time != NEVER;
    [Some(alarm_ns), Some(deadline_ns), again_ns].into_iter().flatten().filter(is_set).min().unwrap_or(NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_deadline_sets_immediate_exit() {
        let mut flag = 0_u8;
        let kicker = Kicker::default();
        // SAFETY: the flag outlives the seat.
        let seat = unsafe { kicker.sit(&raw mut flag) }.unwrap();
        arm(now_ns() + 5_000_000);
        let start = Instant::now();
        // SAFETY: the handler writes the flag on this thread.
        while unsafe { (&raw const flag).read_volatile() } == 0 && start.elapsed() < Duration::from_secs(5) {
            std::hint::spin_loop();
        }
        assert!(start.elapsed() >= Duration::from_millis(4) && start.elapsed() < Duration::from_secs(5));
        drop(seat);
        arm(1);
    }

    #[test]
    fn a_timer_is_never_put_off_and_set_anew_once_it_has_fired() {
        // The kernel knows of 100, and may want that again without a word.
        assert_eq!(next_alarm(100, 50, 500, None), 100);
        assert_eq!(next_alarm(100, 50, NEVER, None), 100);
        assert_eq!(next_alarm(100, 50, 90, Some(70)), 70);
        assert_eq!(next_alarm(100, 50, 40, Some(200)), 100);
        // It has fired.
        assert_eq!(next_alarm(100, 100, 500, None), 500);
        assert_eq!(next_alarm(100, 101, NEVER, None), NEVER);
        assert_eq!(next_alarm(100, 101, 100, Some(121)), 121);
        assert_eq!(next_alarm(NEVER, 101, NEVER, None), NEVER);
    }

    #[test]
    fn only_a_vcpu_in_the_guest_is_signalled() {
        let (kicker, mut flag) = (Kicker::default(), 0_u8);
        std::thread::scope(|scope| {
            // SAFETY: the flag outlives the seat.
            let _seat = unsafe { kicker.sit(&raw mut flag) }.unwrap();
            scope.spawn(|| kicker.interrupt()).join().unwrap();
            // SAFETY: as above.
            assert_eq!(unsafe { (&raw const flag).read_volatile() }, 0);
            kicker.enter_guest();
            scope.spawn(|| kicker.interrupt()).join().unwrap();
            std::thread::sleep(Duration::from_millis(1));
            // SAFETY: as above.
            assert_eq!(unsafe { (&raw const flag).read_volatile() }, 1);
            kicker.leave_guest();
        });
    }
}
