//! Calls that come without a signal. A patched call site jumps, by a slot of its address space, to the start of this text with
//! the address to go on at in RCX; GS leads to below the thread's area, as the slot has seen. The registers go to the area, the FPU's stay
//! where they are: no code of the stub touches them.
//!
//! Signals are not blocked here. One that calls the thread back is only noted while it is about to hand over or waits, and
//! takes the registers from the area once it has its turn again (`interrupted`).

use core::arch::naked_asm;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::area::*;
use crate::{give_turn, load_bases, note_place, wait_turn};

/// Where slots jump to: the first instruction of the text.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.call_entry")]
unsafe extern "C" fn call_entry() -> ! {
    naked_asm!(
        "mov gs:[{call} + 8*13], rcx",
        "mov gs:[{call} + 8*15], rsp",
        "mov gs:[{call} + 8*0], r15",
        "mov gs:[{call} + 8*1], r14",
        "mov gs:[{call} + 8*2], r13",
        "mov gs:[{call} + 8*3], r12",
        "mov gs:[{call} + 8*4], r10",
        "mov gs:[{call} + 8*5], r9",
        "mov gs:[{call} + 8*6], r8",
        "mov gs:[{call} + 8*7], rax",
        "mov gs:[{call} + 8*8], rdx",
        "mov gs:[{call} + 8*9], rsi",
        "mov gs:[{call} + 8*10], rdi",
        "mov gs:[{call} + 8*11], rbp",
        "mov gs:[{call} + 8*12], rbx",
        "rdgsbase rdi",
        "lea rdi, [rdi + {below}]",
        "lea rsp, [rdi + {stack}]",
        "pushfq",
        "pop qword ptr gs:[{call} + 8*14]",
        "cld",
        "call {serve}",
        "push qword ptr gs:[{call} + 8*14]",
        "popfq",
        "mov r15, gs:[{call} + 8*0]",
        "mov r14, gs:[{call} + 8*1]",
        "mov r13, gs:[{call} + 8*2]",
        "mov r12, gs:[{call} + 8*3]",
        "mov r11, gs:[{call} + 8*14]",
        "mov r10, gs:[{call} + 8*4]",
        "mov r9, gs:[{call} + 8*5]",
        "mov r8, gs:[{call} + 8*6]",
        "mov rax, gs:[{call} + 8*7]",
        "mov rcx, gs:[{call} + 8*13]",
        "mov rdx, gs:[{call} + 8*8]",
        "mov rsi, gs:[{call} + 8*9]",
        "mov rdi, gs:[{call} + 8*10]",
        "mov rbp, gs:[{call} + 8*11]",
        "mov rbx, gs:[{call} + 8*12]",
        "mov rsp, gs:[{call} + 8*15]",
        "mov dword ptr gs:[{is_calling}], 0",
        ".global call_end",
        "call_end:",
        "jmp qword ptr gs:[{call} + 8*13]",
        call = const CALL_AT + GS_BELOW as usize,
        is_calling = const IS_CALLING_AT + GS_BELOW as usize,
        below = const GS_BELOW,
        stack = const CALL_STACK_END,
        serve = sym serve_call,
    )
}

unsafe extern "C" {
    /// The last instruction of a return to user code.
    fn call_end();
}

/// Hands over, and returns when user code is to go on from the registers in the area.
unsafe extern "C" fn serve_call(area: &Area) {
    area.signal.store(SIGNAL_CALL, Relaxed);
    area.errno.store(0, Relaxed);
    area.has_call.store(1, Relaxed);
    area.command.store(0, Relaxed);
    note_place(area);
    area.is_calling.store(1, Release);
    give_turn(area);
    loop {
        wait_turn(area);
        match area.command.load(Relaxed) {
            COMMAND_RUN_CALL => {
                load_bases(area);
                if area.was_called_back.load(Relaxed) == 0 {
                    return;
                }
                // SAFETY: the registers are in the area.
                unsafe { leave() }
            }
            // SAFETY: as above.
            COMMAND_LEAVE_CALL => unsafe { leave() },
            _ => {}
        }
        area.errno.store(crate::EINVAL, Relaxed);
        give_turn(area);
    }
}

/// Raises the signal whose frame takes the FPU's registers. Does not come back: the handler gives the stack up.
#[unsafe(naked)]
unsafe extern "C" fn leave() -> ! {
    naked_asm!("ud2")
}

/// A signal came at `address` in the stub's text. The signal that the handler goes on with; none: the thread goes on
/// where it was.
pub fn interrupted(area: &Area, signal: u32, address: u64) -> Option<u32> {
    let (last, leaves) = (call_end as *const () as u64, leave as *const () as u64);
    if signal != INTERRUPT_SIGNAL {
        // Of other signals only this one is the stub's own. Code that jumps here to raise others answers for it.
        let is_ours = address == leaves;
        area.has_call.store(u32::from(is_ours), Relaxed);
        return Some(if is_ours { INTERRUPT_SIGNAL } else { signal });
    }
    let has_turn = area.turn.load(Acquire) & TURN_STUB != 0;
    let returns = area.is_calling.load(Acquire) != 0
        && has_turn
        && area.command.load(Relaxed) == COMMAND_RUN_CALL;
    if !returns && address != last {
        area.was_called_back.store(1, Relaxed);
        return None;
    }
    load_bases(area);
    area.has_call.store(1, Relaxed);
    Some(signal)
}
