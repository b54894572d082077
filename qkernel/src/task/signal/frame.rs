//! Signal frames: what a handler finds on its stack, and the way back. The layout is Linux's `struct rt_sigframe`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::signals::{UNBLOCKABLE, bit};
use crate::task::core::Task;
use crate::task::signal::action::{Action, SA_NODEFER, SA_ONSTACK, SA_RESTORER};
use crate::task::signal::altstack::{AltStack, StackT, change_alt_stack};
use crate::task::signal::facts::Facts;
use crate::task::signal::fpu;
use crate::task::signal::info::SIGINFO_BYTES;
use crate::task::signal::info::SigInfo;
use crate::task::signal::mask::set_blocked;
use abi::run::UserRegs;
use machine::errno::{Errno, Result};
use machine::mm::{UserAddr, UserMemory};
use machine::platform;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `uc_flags`: the FPU state is an extended image.
const UC_FP_XSTATE: u64 = 1;
/// `uc_flags`: `ss` is saved, and restored exactly.
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;
const USER_CS: u16 = 0x33;
const USER_SS: u16 = 0x2b;
/// Flags a program may set for itself: AC, RF, OF, DF, TF, SF, ZF, AF, PF, CF.
const USER_FLAGS: u64 = 0x5_0dd5;
/// Flags that are always as they are in user code: IF and the one that is fixed.
const FIXED_FLAGS: u64 = 0x202;
/// Flags a handler starts without: DF, RF, TF.
const CLEARED_FLAGS: u64 = 0x400 | 0x1_0000 | 0x100;
/// Bytes below the stack pointer that belong to the interrupted function (System V ABI).
const RED_ZONE_BYTES: u64 = 128;

/// `struct sigcontext`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
struct SigContext {
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    rflags: u64,
    cs: u16,
    gs: u16,
    fs: u16,
    ss: u16,
    err: u64,
    trapno: u64,
    oldmask: u64,
    cr2: u64,
    fpstate: u64,
    reserved: [u64; 8],
}

/// `struct ucontext`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
struct UContext {
    flags: u64,
    link: u64,
    stack: StackT,
    machine: SigContext,
    mask: u64,
}

/// `struct rt_sigframe`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct Frame {
    return_to: u64,
    context: UContext,
    info: [u8; SIGINFO_BYTES],
}
const _: () = assert!(size_of::<SigContext>() == 256);
const _: () = assert!(size_of::<UContext>() == 304);
const _: () = assert!(core::mem::offset_of!(UContext, machine) == 40);
const _: () = assert!(size_of::<Frame>() == 440);
const CONTEXT_OFFSET: u64 = core::mem::offset_of!(Frame, context) as u64;
const INFO_OFFSET: u64 = core::mem::offset_of!(Frame, info) as u64;

/// The addresses of a frame's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Places {
    frame: u64,
    fpu: u64,
}

/// Finds room below the interrupted code's stack pointer, or on the alternate stack; `None` when that would overflow.
fn place(sp: u64, on_alternate: bool, alt: &AltStack, fpu_bytes: usize) -> Option<Places> {
    let below = sp.wrapping_sub(RED_ZONE_BYTES);
    let nested = alt.in_use(sp);
    let entry = if on_alternate { alt.entry(below) } else { None };
    let top = entry.unwrap_or(below);
    let fpu = top.wrapping_sub(fpu_bytes as u64) & !63;
    // As after a call instruction: 8 below a multiple of 16.
    let frame = (fpu.wrapping_sub(size_of::<Frame>() as u64) & !15).wrapping_sub(8);
    ((!nested && entry.is_none()) || alt.contains(frame)).then_some(Places { frame, fpu })
}

/// The state of a task that goes into a frame.
struct State {
    regs: UserRegs,
    mask: u64,
    alt: AltStack,
    facts: Facts,
}

fn build(state: &State, info: &SigInfo, restorer: u64, places: Places, extended: bool) -> Frame {
    let regs = &state.regs;
    let machine = SigContext {
        r8: regs.r8,
        r9: regs.r9,
        r10: regs.r10,
        r11: regs.r11,
        r12: regs.r12,
        r13: regs.r13,
        r14: regs.r14,
        r15: regs.r15,
        rdi: regs.rdi,
        rsi: regs.rsi,
        rbp: regs.rbp,
        rbx: regs.rbx,
        rdx: regs.rdx,
        rax: regs.rax,
        rcx: regs.rcx,
        rsp: regs.rsp,
        rip: regs.rip,
        rflags: regs.rflags,
        cs: USER_CS,
        gs: 0,
        fs: 0,
        ss: USER_SS,
        err: state.facts.error,
        trapno: state.facts.trap,
        oldmask: state.mask,
        cr2: state.facts.cr2,
        fpstate: places.fpu,
        reserved: [0; 8],
    };
    let flags = UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS | if extended { UC_FP_XSTATE } else { 0 };
    let context = UContext { flags, link: 0, stack: state.alt.saved(), machine, mask: state.mask };
    Frame { return_to: restorer, context, info: info.to_bytes() }
}

/// Makes the current task run a handler. On an error nothing has changed and the frame could not be written.
pub fn enter_handler(task: &Arc<Task>, info: &SigInfo, action: &Action) -> Result<()> {
    if !action.has(SA_RESTORER) {
        return Err(Errno::EFAULT);
    }
    let aspace = task.aspace().ok_or(Errno::EFAULT)?;
    let state_bytes = platform::xsave_size();
    let (regs, mut image): (UserRegs, Vec<u8>) = {
        let mut context = task.context();
        context.sync_fpu();
        (context.run.regs, context.fpu.0[..state_bytes.max(fpu::LEGACY_BYTES)].to_vec())
    };
    let state = {
        let own = task.signals.lock();
        let mask = own.saved_mask.unwrap_or(own.blocked);
        State { regs, mask, alt: own.alt_stack, facts: own.fault }
    };
    fpu::seal(&mut image, state_bytes, platform::xsave_mask());
    let places = place(regs.rsp, action.has(SA_ONSTACK), &state.alt, image.len()).ok_or(Errno::EFAULT)?;
    let extended = image.len() > fpu::LEGACY_BYTES;
    let frame = build(&state, info, action.restorer, places, extended);
    let user = UserMemory::new(aspace);
    user.write_bytes(UserAddr::new(places.fpu), &image)?;
    user.write(UserAddr::new(places.frame), &frame)?;

    {
        let mut context = task.context();
        let regs = &mut context.run.regs;
        regs.rdi = u64::from(info.signal);
        regs.rsi = places.frame + INFO_OFFSET;
        regs.rdx = places.frame + CONTEXT_OFFSET;
        regs.rax = 0;
        regs.rsp = places.frame;
        regs.rip = action.handler;
        regs.rflags = (regs.rflags & !CLEARED_FLAGS & USER_FLAGS) | FIXED_FLAGS;
        fpu::reset(&mut context.fpu.0);
        context.fpu_live = false;
    }
    let blocked = {
        let mut own = task.signals.lock();
        own.alt_stack.enter_handler();
        own.saved_mask = None;
        let deferred = if action.has(SA_NODEFER) { 0 } else { bit(info.signal) };
        own.blocked | action.mask | deferred
    };
    set_blocked(task, blocked);
    Ok(())
}

/// `rt_sigreturn(2)`: the current task goes on as the frame at its stack pointer says.
pub fn return_from_handler(task: &Arc<Task>, user: &UserMemory) -> Result<()> {
    let rsp = task.context().run.regs.rsp;
    // The handler's return has popped `return_to`.
    let context: UContext = user.read(UserAddr::new(rsp.wrapping_sub(8).wrapping_add(CONTEXT_OFFSET)))?;
    set_blocked(task, context.mask & !UNBLOCKABLE);
    if context.machine.cs | 3 != USER_CS {
        return Err(Errno::EFAULT);
    }
    let image = read_image(user, UserAddr::new(context.machine.fpstate))?;
    {
        let live = &mut *task.context();
        let area = &mut live.fpu.0;
        match &image {
            Some(image) => fpu::open(area, image, platform::xsave_mask()).ok_or(Errno::EFAULT)?,
            None => fpu::reset(area),
        }
        live.fpu_live = false;
        restore_registers(&mut live.run.regs, &context.machine);
    }
    let mut own = task.signals.lock();
    // As on Linux a stack that cannot be set is no error here.
    if let Ok(stack) = change_alt_stack(&own.alt_stack, &context.stack, context.machine.rsp) {
        own.alt_stack = stack;
    }
    Ok(())
}

/// The FPU image a frame points to; `None`: the initial state.
fn read_image(user: &UserMemory, addr: UserAddr) -> Result<Option<Vec<u8>>> {
    if addr.is_null() {
        return Ok(None);
    }
    let mut image: Vec<u8> = user.read_array(addr, fpu::LEGACY_BYTES)?;
    if let Some(bytes) = fpu::announced(&image, platform::xsave_size()) {
        let rest = bytes + fpu::TAIL_BYTES - fpu::LEGACY_BYTES;
        image.extend(user.read_array::<u8>(addr.offset(fpu::LEGACY_BYTES as u64), rest)?);
    }
    Ok(Some(image))
}

fn restore_registers(regs: &mut UserRegs, machine: &SigContext) {
    *regs = UserRegs {
        r15: machine.r15,
        r14: machine.r14,
        r13: machine.r13,
        r12: machine.r12,
        rbp: machine.rbp,
        rbx: machine.rbx,
        r11: machine.r11,
        r10: machine.r10,
        r9: machine.r9,
        r8: machine.r8,
        rax: machine.rax,
        rcx: machine.rcx,
        rdx: machine.rdx,
        rsi: machine.rsi,
        rdi: machine.rdi,
        rip: machine.rip,
        rflags: (machine.rflags & USER_FLAGS) | FIXED_FLAGS,
        rsp: machine.rsp,
        fs_base: regs.fs_base,
        gs_base: regs.gs_base,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::{SIGUSR1, Source};

    fn alternate(sp: u64, size: u64) -> AltStack {
        let stack = StackT { sp, flags: 0, pad: 0, size };
        change_alt_stack(&AltStack::default(), &stack, 0).unwrap()
    }

    #[test]
    fn a_frame_leaves_the_red_zone_alone_and_is_aligned() {
        for sp in 0x7000_0000..0x7000_0040u64 {
            let places = place(sp, false, &AltStack::default(), 836).unwrap();
            assert_eq!(places.fpu % 64, 0);
            assert_eq!(places.frame % 16, 8);
            assert!(places.fpu + 836 <= sp - 128);
            assert!(places.frame + 440 <= places.fpu);
        }
    }

    #[test]
    fn the_alternate_stack_is_used_once_and_never_overflows() {
        let alt = alternate(0x10_0000, 8192);
        let places = place(0x7000_0000, true, &alt, 836).unwrap();
        assert!(alt.contains(places.frame));
        // Nested handlers go on below.
        let nested = place(places.frame - 64, true, &alt, 836).unwrap();
        assert!(nested.frame < places.frame && alt.contains(nested.frame));
        // The ordinary stack may be rubbish.
        assert!(place(8, true, &alt, 836).is_some());
        assert_eq!(place(0x10_0000 + 600, true, &alt, 836), None);
        // Without SA_ONSTACK the stack pointer counts.
        assert!(place(0x7000_0000, false, &alt, 836).unwrap().frame > 0x6000_0000);
        assert_eq!(place(0x7000_0000, true, &alternate(0x10_0000, 2048), 4000), None);
    }

    #[test]
    fn registers_survive_the_frame_and_flags_are_only_the_programs() {
        let regs =
            UserRegs { r15: 1, rbx: 2, rip: 3, rsp: 4, rflags: 0x246, fs_base: 5, ..Default::default() };
        let state = State { regs, mask: 6, alt: AltStack::default(), facts: Facts::default() };
        let info = SigInfo { signal: SIGUSR1, source: Source::Kernel };
        let places = Places { frame: 0x1008, fpu: 0x2000 };
        let mut frame = build(&state, &info, 7, places, true);
        let mut back = UserRegs { fs_base: 5, ..Default::default() };
        restore_registers(&mut back, &frame.context.machine);
        assert_eq!(back, regs);
        assert_eq!((frame.return_to, frame.context.mask, frame.context.flags), (7, 6, 7));
        frame.context.machine.rflags |= 0x3000 | 0x2_0000;
        frame.context.machine.rflags &= !0x200;
        restore_registers(&mut back, &frame.context.machine);
        assert_eq!(back.rflags, 0x246);
    }
}
