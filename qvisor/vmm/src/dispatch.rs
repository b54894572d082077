//! Dispatches the kernel's hostcalls, and serves those on the sandbox, its CPUs and its memory.
#![deny(unsafe_code)]

use std::sync::Arc;

use abi::HostCall;
use abi::hostcall::{
    AS_CREATE, AS_DESTROY, AS_RUN, AS_SAVE_FPU, AS_SYNC, ASYNC_SWAP_IN, BEGIN_WAKE, CLOCK, CONTAINER_TAKE,
    CPU_TIME, EVENTS, EXEC_TAKE, EXIT, Event, HIBERNATED, HostClocks, IDLE, IMAGE_REGION, KEEP, KEEP_CONTENT,
    KICK, LOG, OPEN, PANIC, PLACED, PUT_CONTENT, RANDOM, RELEASE, REPORT, SET_DEADLINE, SNAPSHOT, STATS,
    SUBMIT, SWAP_IN, SWAP_IN_AHEAD, SWAP_IN_SHOWN_AHEAD, SWAP_OUT, WINDOW_COPY, WINDOW_MAP, WINDOW_UNMAP,
    YIELD,
};
use abi::layout::{WINDOW_CHUNK, WINDOW_CHUNKS, WINDOW_PHYS};
use abi::report::{self, ContainerId, Report};
use abi::socket::ROUTE_QUERY;
use abi::word::low32;

use crate::cpu;
use crate::errno::Errno;
use crate::footprint;
use crate::hibernate::CameOut;
use crate::hibernate::Hibernation;
use crate::hibernate::injection::{self, Point};
use crate::hostcall::file::FileKind;
use crate::hostcall::io_threads::Urgency;
use crate::hostcall::route;
use crate::memory::SandboxMemory;
use crate::platform::machine::{Reply, Upcalls};
use crate::sandbox::{Outcome, Sandbox};
use crate::vcpu::Cpus;
use crate::watchdog::Pulse;

/// Longest text of one log line or of a panic, in bytes.
const TEXT_MAX: u64 = 4096;
/// Most events taken at once.
const EVENTS_MAX: u64 = 1024;

impl Upcalls for Sandbox {
    fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    fn memory(&self) -> &SandboxMemory {
        &self.memory
    }

    fn hostcall(&self, cpu: u32, call: &HostCall) -> Reply {
        dispatch(self, cpu, call)
    }

    fn set_pending(&self, cpu: u32) {
        self.cpus.set_pending(cpu, self.files.io());
    }

    fn kernel_failed(&self, why: String) {
        self.finish(Outcome::Panicked(why));
    }
}

/// Carries out one call of vCPU `cpu`. `call` is the VMM's own copy.
fn dispatch(sandbox: &Sandbox, cpu: u32, call: &HostCall) -> Reply {
    if sandbox.cpus.is_stopping() {
        return Reply::Leave;
    }
    let [a, b, c, ..] = call.args;
    let pulse = sandbox.pulses.cpu(cpu);
    let waits_for_lock = call.number == YIELD && a == 0;
    pulse.filter(|_| waits_for_lock).inspect(|pulse| pulse.waits_for_lock());
    // That is no progress.
    let pulse = pulse.filter(|_| !waits_for_lock);
    pulse.inspect(|pulse| pulse.enter(call.number));
    let result = match call.number {
        AS_CREATE | AS_DESTROY | AS_RUN | AS_SYNC | AS_SAVE_FPU => {
            sandbox.machine.address_space(&sandbox.cpus, cpu, call)
        }
        LOG => log(sandbox, a, b, c),
        EXIT => {
            sandbox.finish(Outcome::Exited(low32(a)));
            return Reply::Leave;
        }
        PANIC => {
            let text = sandbox.memory.copy_in(a, b.min(TEXT_MAX)).unwrap_or_default();
            sandbox.finish(Outcome::Panicked(String::from_utf8_lossy(&text).into_owned()));
            return Reply::Leave;
        }
        IDLE => sandbox.pulses.resting(pulse, || idle(sandbox, cpu, a, b)),
        KICK => {
            sandbox.kick(low32(a));
            0
        }
        SET_DEADLINE => sandbox.machine.set_deadline(&sandbox.cpus, cpu, a),
        YIELD => {
            cpu::yield_core();
            0
        }
        CLOCK => clock(sandbox, a),
        CPU_TIME => cpu_time(sandbox).cast_signed(),
        EVENTS => take_events(sandbox, a, b),
        RANDOM => random(sandbox, a, b),
        EXEC_TAKE | CONTAINER_TAKE => take_records(sandbox, call),
        REPORT => take_report(sandbox, &call.args),
        HIBERNATED => hibernated(sandbox, a, b),
        STATS => set_stats(sandbox, a),
        SNAPSHOT | IMAGE_REGION | KEEP_CONTENT | PUT_CONTENT | PLACED => {
            of_an_image(sandbox, cpu, call, pulse)
        }
        SWAP_OUT => sandbox.hibernation().swap_out(&sandbox.memory, a),
        SWAP_IN => swap_in(sandbox, call.args),
        KEEP => sandbox.hibernation().keep(&sandbox.memory, a, b),
        SUBMIT if a == ASYNC_SWAP_IN => submit_swap_in(sandbox, call.args),
        BEGIN_WAKE => sandbox.hibernation().wake_mode(),
        RELEASE => release(sandbox, a, b),
        WINDOW_MAP => window_map(sandbox, &call.args),
        WINDOW_UNMAP => window_unmap(sandbox, a),
        WINDOW_COPY => answer(sandbox.memory.window_copy(a, b, c)),
        ROUTE_QUERY => route::query(call, &*sandbox.memory),
        OPEN.. => sandbox.files.serve(call, &*sandbox.memory),
        _ => -i64::from(libc::ENOSYS),
    };
    pulse.inspect(|pulse| pulse.leave());
    if sandbox.cpus.is_stopping() { Reply::Leave } else { Reply::Result(result) }
}

/// Calls about memory and files that are taken, or were. Disks take as long as they do.
fn of_an_image(sandbox: &Sandbox, cpu: u32, call: &HostCall, pulse: Option<&Pulse>) -> i64 {
    let [a, b, c, ..] = call.args;
    let carry_out = || match call.number {
        SNAPSHOT => snapshot(sandbox, cpu, a).map(|()| 0),
        IMAGE_REGION => sandbox.note_region(a, b, c),
        KEEP_CONTENT => sandbox.keep_content(a, b),
        PUT_CONTENT => sandbox.put_content(a, b, c),
        _ => {
            sandbox.has_placed_all();
            Ok(sandbox.files.serve(call, &*sandbox.memory))
        }
    };
    sandbox.pulses.resting(pulse, carry_out).unwrap_or_else(Errno::as_result)
}

/// `REPORT`. News of exec'd processes are the relay's; all others are passed on.
fn take_report(sandbox: &Sandbox, words: &[u64; 6]) -> i64 {
    let place = report::payload(words);
    let payload = match place.len {
        0 => Some(Vec::new()),
        len => sandbox.memory.copy_in(place.phys, len),
    };
    let Some(payload) = payload else { return -i64::from(libc::EFAULT) };
    let Some(report) = Report::parse(words, &payload) else { return -i64::from(libc::EINVAL) };
    match report {
        Report::ExecStarted { exec, pid } => {
            let waiting = sandbox.execs().started(exec, pid);
            waiting.into_iter().for_each(|event| sandbox.events.post(event));
        }
        Report::ExecFailed { exec, code, why } => {
            sandbox.execs().failed(exec, code, &String::from_utf8_lossy(why));
        }
        Report::ExecEnded { exec, status } => sandbox.execs().ended(exec, status),
        _ => {
            injection::reported(&report);
            if report == Report::Idle {
                sandbox.hibernation().rest();
            }
            sandbox.report(&report);
        }
    }
    0
}

fn answer(result: Result<(), i32>) -> i64 {
    result.map_or_else(|errno| -i64::from(errno), |()| 0)
}

fn log(sandbox: &Sandbox, phys: u64, len: u64, level: u64) -> i64 {
    match sandbox.memory.copy_in(phys, len.min(TEXT_MAX)) {
        Some(text) => {
            sandbox.log(low32(level), &String::from_utf8_lossy(&text));
            0
        }
        None => -i64::from(libc::EFAULT),
    }
}

fn clock(sandbox: &Sandbox, phys: u64) -> i64 {
    // The kernel takes the middle of the call for the time of the monotonic clock, which is read second of three.
    let realtime_ns = cpu::clock_ns(libc::CLOCK_REALTIME);
    let clocks = HostClocks {
        realtime_ns,
        monotonic_ns: cpu::clock_ns(libc::CLOCK_MONOTONIC),
        boottime_ns: cpu::clock_ns(libc::CLOCK_BOOTTIME),
    };
    sandbox.memory.write(phys, &clocks).map_or(-i64::from(libc::EFAULT), |()| 0)
}

/// Processor time of the sandbox's processes, in nanoseconds, without what it takes to answer questions about the sandbox:
/// who looks at it does not keep it busy.
fn cpu_time(sandbox: &Sandbox) -> u64 {
    let all = cpu::clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID) + sandbox.machine.cpu_ns();
    all.saturating_sub(sandbox.pulses.control_cpu_ns())
}

/// The place of events in guest memory.
struct EventRoom<'a> {
    sandbox: &'a Sandbox,
    at: u64,
    room: usize,
    count: i64,
}

impl<'a> EventRoom<'a> {
    fn new(sandbox: &'a Sandbox, phys: u64, most: u64) -> Option<Self> {
        let most = most.min(EVENTS_MAX);
        if most > 0 {
            sandbox.memory.host_ptr(phys, most * size_of::<Event>() as u64)?;
        }
        Some(Self { sandbox, at: phys, room: usize::try_from(most).unwrap_or(0), count: 0 })
    }

    fn give(&mut self, event: Event) {
        if self.sandbox.memory.write(self.at, &event).is_some() {
            self.at += size_of::<Event>() as u64;
            self.count += 1;
        }
    }
}

fn take_events(sandbox: &Sandbox, phys: u64, most: u64) -> i64 {
    let Some(mut room) = EventRoom::new(sandbox, phys, most) else { return -i64::from(libc::EFAULT) };
    let queued = sandbox.events.take(room.room);
    let left = room.room - queued.len();
    queued.into_iter().for_each(|event| room.give(event));
    sandbox.files.io().take_edges(left, |event| room.give(event));
    room.count
}

fn idle(sandbox: &Sandbox, cpu: u32, phys: u64, most: u64) -> i64 {
    let Some(mut room) = EventRoom::new(sandbox, phys, most) else { return -i64::from(libc::EFAULT) };
    let most = room.room;
    sandbox.cpus.idle(cpu, sandbox.files.io(), most, &mut |event| room.give(event));
    room.count
}

fn random(sandbox: &Sandbox, phys: u64, len: u64) -> i64 {
    const ROUND: u64 = 4096;
    if sandbox.memory.host_ptr(phys, len).is_none() {
        return -i64::from(libc::EFAULT);
    }
    let mut done = 0;
    while done < len {
        let mut bytes = vec![0; usize::try_from((len - done).min(ROUND)).unwrap_or(0)];
        if cpu::random(&mut bytes).is_err() {
            return -i64::from(libc::EIO);
        }
        if sandbox.memory.copy_out(phys + done, &bytes).is_none() {
            return -i64::from(libc::EFAULT);
        }
        done += bytes.len() as u64;
    }
    0
}

/// `EXEC_TAKE` and `CONTAINER_TAKE`.
fn take_records(sandbox: &Sandbox, call: &HostCall) -> i64 {
    let [id, phys, len, ..] = call.args;
    if call.number == CONTAINER_TAKE && len == 0 {
        return sandbox.coming_containers().len(ContainerId(id)).unwrap_or_else(|error| error.as_result());
    }
    if sandbox.memory.host_ptr(phys, len).is_none() {
        return -i64::from(libc::EFAULT);
    }
    let taken = match call.number {
        CONTAINER_TAKE => sandbox.coming_containers().take(ContainerId(id), &sandbox.files),
        _ => sandbox.execs().take(id, &sandbox.files),
    };
    match taken {
        // They are as long as the kernel was told.
        Ok(records) if records.len() as u64 <= len && sandbox.memory.copy_out(phys, &records).is_some() => {
            i64::try_from(records.len()).unwrap_or(0)
        }
        Ok(_) => -i64::from(libc::EINVAL),
        Err(error) => error.as_result(),
    }
}

fn window_map(sandbox: &Sandbox, args: &[u64; 6]) -> i64 {
    use std::os::fd::AsFd;
    let [chunk, handle, offset, writable, ..] = *args;
    let file = match sandbox.files.files().get(low32(handle)) {
        Ok(file) if matches!(file.kind(), FileKind::Socket(_)) => return -i64::from(libc::ENODEV),
        Ok(file) => file,
        Err(error) => return error.as_result(),
    };
    let Some(quota) = file.quota().filter(|_| chunk < WINDOW_CHUNKS) else {
        return answer(sandbox.memory.window_map(chunk, file.as_fd(), offset, writable != 0));
    };
    let show = || quota.show(chunk, file.as_fd(), writable != 0);
    let shown = show().or_else(|_| {
        sandbox.files.measure_all();
        show()
    });
    if let Err(error) = shown {
        return error.as_result();
    }
    let result = sandbox.memory.window_map(chunk, file.as_fd(), offset, writable != 0);
    if result.is_err() {
        quota.hide(chunk, Some(file.as_fd()));
    }
    answer(result)
}

fn window_unmap(sandbox: &Sandbox, chunk: u64) -> i64 {
    use std::os::fd::AsFd;
    let shown = chunk.checked_mul(WINDOW_CHUNK).and_then(|at| sandbox.memory.window_fd(WINDOW_PHYS + at));
    let result = sandbox.memory.window_unmap(chunk);
    if let (Ok(()), Some(quota)) = (&result, sandbox.files.quota()) {
        quota.hide(chunk, shown.as_ref().map(|(file, _)| file.as_fd()));
    }
    answer(result)
}

/// `RELEASE`.
fn release(sandbox: &Sandbox, phys: u64, len: u64) -> i64 {
    injection::releases();
    sandbox.hibernation().keep_range(&sandbox.memory, phys, len);
    answer(sandbox.memory.release(phys, len))
}

/// `SWAP_IN`. A page that is lost ends the sandbox.
fn swap_in(sandbox: &Sandbox, [phys, count, how, ..]: [u64; 6]) -> i64 {
    sandbox.hibernation().swap_in(&sandbox.memory, phys, count, how).unwrap_or_else(|error| {
        sandbox.finish(Outcome::Lost(error.to_string()));
        -i64::from(libc::EIO)
    })
}

/// `SUBMIT` of a `SWAP_IN`, whose errors the kernel meets again when it asks itself.
fn submit_swap_in(sandbox: &Sandbox, [_, phys, count, how, token, _]: [u64; 6]) -> i64 {
    let (home, memory) = (Arc::clone(sandbox.hibernation()), Arc::clone(&sandbox.memory));
    let work = move || home.swap_in(&memory, phys, count, how).unwrap_or(-i64::from(libc::EIO));
    let urgency = match how {
        SWAP_IN_AHEAD | SWAP_IN_SHOWN_AHEAD => Urgency::PagesAhead,
        _ => Urgency::Page,
    };
    sandbox.files.io().submit(token, urgency, Box::new(work)).unwrap_or_else(Errno::as_result)
}

/// `STATS`.
fn set_stats(sandbox: &Sandbox, phys: u64) -> i64 {
    if sandbox.kernel_stats.set(&sandbox.memory, phys) { 0 } else { -i64::from(libc::EFAULT) }
}

/// `SNAPSHOT`. Once the memory is taken the sandbox ends, or sleeps on.
fn snapshot(sandbox: &Sandbox, cpu: u32, request: u64) -> Result<(), Errno> {
    if !sandbox.wants_snapshot(request.cast_signed()) {
        return Err(Errno(libc::EPERM));
    }
    if !sandbox.cpus.hold_others(cpu) {
        return Err(Errno(libc::EAGAIN));
    }
    // What the kernel has not been told yet, the next VMM tells. One that begins with an image knows nothing of it.
    let is_at_work = sandbox.files.io().is_at_work();
    let has_news = sandbox.wants_image() && !sandbox.events.is_empty();
    let taken = if is_at_work || has_news { Err(Errno(libc::EAGAIN)) } else { sandbox.take() };
    if !sandbox.cpus.is_stopping() {
        sandbox.cpus.let_go();
    }
    taken
}

/// `HIBERNATED`.
fn hibernated(sandbox: &Sandbox, phys: u64, request: u64) -> i64 {
    match sandbox.hibernation().hibernated(&sandbox.memory, phys) {
        None => return -i64::from(libc::EFAULT),
        Some(CameOut::AsleepAlready) => sandbox.tell_of_sleep(request, true),
        // It is about to go on.
        Some(CameOut::Asleep) if sandbox.hibernation().stays() => {
            sandbox.tell_of_sleep(request, true);
            sandbox.pulses.hush();
        }
        Some(CameOut::Asleep) => {
            sandbox.files.io().rest();
            sandbox.machine.trim();
            sandbox.memory.trim();
            footprint::trim_heap();
            // First: whoever is told of it may order its pages elsewhere at once.
            let sleep = sandbox.hibernation().fall_asleep();
            sandbox.tell_of_sleep(request, true);
            sandbox.pulses.hush();
            Hibernation::arm(sandbox.hibernation(), sleep);
            injection::pass(Point::Asleep);
        }
        Some(CameOut::StayedWarm) => {
            sandbox.tell_of_sleep(request, false);
            injection::pass(Point::Asleep);
        }
    }
    0
}
