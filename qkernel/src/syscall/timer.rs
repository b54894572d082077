//! POSIX timers.

use alloc::sync::Arc;

use crate::syscall::context::SyscallResult;
use crate::syscall::timespec::Timespec;
use crate::task::clock::Clock;
use crate::task::context::Ctx;
use crate::task::posix_timer;
use crate::task::timers::Notify;
use crate::task::timers::Setting;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct sigevent`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
pub(super) struct SigEvent {
    pub(super) value: u64,
    pub(super) signal: u32,
    pub(super) notify: u32,
    tid: i32,
    pad: [u32; 11],
}

/// `struct itimerspec`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct ItimerSpec {
    interval: Timespec,
    value: Timespec,
}
const _: () = assert!(size_of::<SigEvent>() == 64);

impl From<Setting> for ItimerSpec {
    fn from(setting: Setting) -> Self {
        Self { interval: Timespec::from_ns(setting.interval_ns), value: Timespec::from_ns(setting.value_ns) }
    }
}

fn notify(cx: &Ctx<'_>, event: &SigEvent) -> Result<Option<Notify>> {
    const SIGEV_SIGNAL: u32 = 0;
    const SIGEV_NONE: u32 = 1;
    const SIGEV_THREAD: u32 = 2;
    const SIGEV_THREAD_ID: u32 = 4;
    let task = match event.notify {
        SIGEV_NONE => return Ok(None),
        SIGEV_SIGNAL | SIGEV_THREAD => None,
        SIGEV_THREAD_ID => {
            let task = u32::try_from(event.tid).ok().and_then(|tid| cx.pids().find_task(tid));
            let task = task.filter(|task| Arc::ptr_eq(&task.process, cx.process())).ok_or(Errno::EINVAL)?;
            Some(Arc::downgrade(&task))
        }
        _ => return Err(Errno::EINVAL),
    };
    if !crate::signals::is_valid(event.signal) {
        return Err(Errno::EINVAL);
    }
    Ok(Some(Notify { signal: event.signal, value: Some(event.value), task }))
}

/// `timer_create(2)`.
pub(super) fn timer_create(cx: &Ctx<'_>, clock: i32, event: UserAddr, id: UserAddr) -> SyscallResult {
    let event = cx.user().read_opt::<SigEvent>(event)?;
    let clock = Clock::for_timer(cx.task, clock)?;
    let notify = match event {
        Some(event) => notify(cx, &event)?,
        None => Some(Notify { signal: crate::signals::SIGALRM, value: None, task: None }),
    };
    let made = posix_timer::create(cx.process(), clock, notify)?;
    cx.user().write(id, &made).inspect_err(|_| {
        let _ = posix_timer::delete(cx.process(), made);
    })?;
    Ok(0)
}

/// `timer_settime(2)`.
pub(super) fn timer_settime(
    cx: &Ctx<'_>,
    id: u32,
    flags: u32,
    new: UserAddr,
    old: UserAddr,
) -> SyscallResult {
    const TIMER_ABSTIME: u32 = 1;
    if new.is_null() {
        return Err(Errno::EINVAL);
    }
    let new: ItimerSpec = cx.user().read(new)?;
    let setting = Setting { value_ns: new.value.to_ns()?, interval_ns: new.interval.to_ns()? };
    let former = posix_timer::set(cx.process(), id, setting, flags & TIMER_ABSTIME != 0)?;
    cx.user().write_opt(old, &ItimerSpec::from(former))?;
    Ok(0)
}

/// `timer_gettime(2)`.
pub(super) fn timer_gettime(cx: &Ctx<'_>, id: u32, to: UserAddr) -> SyscallResult {
    let setting = posix_timer::get(cx.process(), id)?;
    cx.user().write(to, &ItimerSpec::from(setting))?;
    Ok(0)
}

/// `timer_getoverrun(2)`.
pub(super) fn timer_getoverrun(cx: &Ctx<'_>, id: u32) -> SyscallResult {
    posix_timer::overrun(cx.process(), id).map(u64::from)
}

/// `timer_delete(2)`.
pub(super) fn timer_delete(cx: &Ctx<'_>, id: u32) -> SyscallResult {
    posix_timer::delete(cx.process(), id).map(|()| 0)
}
