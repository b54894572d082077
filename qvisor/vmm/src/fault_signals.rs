//! Signals that a fault in this process raises: in a recoverable copy, in the kernel (systrap runs it here), or in
//! the VMM itself.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::errno::HostError;
use crate::recoverable_copy;

const SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

/// A fault as the host reports it.
#[derive(Clone, Copy)]
pub struct Fault {
    pub signal: i32,
    pub address: u64,
    pub context: *mut libc::ucontext_t,
}

impl Fault {
    /// A register of the interrupted code.
    pub fn register(&self, register: i32) -> u64 {
        let index = usize::try_from(register).unwrap_or(0);
        // SAFETY: the context is the live signal frame, and `register` one of `libc::REG_*`.
        unsafe { (*self.context).uc_mcontext.gregs.get(index).map_or(0, |value| value.cast_unsigned()) }
    }

    /// Changes a register of the interrupted code.
    pub fn set_register(&self, register: i32, value: u64) {
        let index = usize::try_from(register).unwrap_or(0);
        // SAFETY: as above; the handler owns the frame until it returns.
        let registers = unsafe { &mut (*self.context).uc_mcontext.gregs };
        if let Some(slot) = registers.get_mut(index) {
            *slot = value.cast_signed();
        }
    }
}

/// Looks at a fault of its thread; true: it changed the registers so that the thread goes on.
pub type Hook = fn(&Fault) -> bool;

thread_local! {
    static HOOK: Cell<Option<Hook>> = const { Cell::new(None) };
}

/// Sets the calling thread's hook.
pub fn set_hook(hook: Option<Hook>) {
    HOOK.set(hook);
}

static OLD: OnceLock<[libc::sigaction; 5]> = OnceLock::new();

/// Installs the handlers, once a process.
pub fn install() -> Result<(), HostError> {
    if OLD.get().is_some() {
        return Ok(());
    }
    // SAFETY: all zeros is a valid `sigaction`.
    let mut old: [libc::sigaction; 5] = unsafe { MaybeUninit::zeroed().assume_init() };
    for (signal, old) in SIGNALS.into_iter().zip(&mut old) {
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both structures are live; the handler is async-signal-safe unless it ends the process.
        if unsafe { libc::sigaction(signal, &raw const action, old) } < 0 {
            return Err(HostError::last("handle faults"));
        }
    }
    let _ = OLD.set(old);
    Ok(())
}

/// Words of a stack that [`place_of`] takes.
pub const STACK_WORDS: usize = 128;
unsafe extern "C" {
    /// The program's first byte, and the end of its text: the linker's.
    static __executable_start: u8;
    static etext: u8;
}

/// How far into this program's text an address is; `None` outside.
pub fn offset_in_program(address: u64) -> Option<u64> {
    let (start, end) = (&raw const __executable_start as u64, &raw const etext as u64);
    (start..end).contains(&address).then(|| address - start)
}

/// How long a thread may take to say where it is.
const ANSWER_MS: u32 = 500;

/// A thread's place as it reports it: instruction pointer, then its stack.
static PLACE: [AtomicU64; STACK_WORDS + 1] = [const { AtomicU64::new(0) }; STACK_WORDS + 1];
static ANSWERED: AtomicBool = AtomicBool::new(false);

/// Asks a thread of this process for its place: its instruction pointer and the words on its stack. Only one thread
/// asks at a time.
pub fn place_of(tid: i32) -> Option<(u64, [u64; STACK_WORDS])> {
    ANSWERED.store(false, SeqCst);
    // SAFETY: the handler only takes notes when the signal comes from this process.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGTRAP) };
    for _ in 0..ANSWER_MS {
        if ANSWERED.load(SeqCst) {
            let at = |index: usize| PLACE.get(index).map_or(0, |word| word.load(SeqCst));
            return Some((at(0), std::array::from_fn(|index| at(index + 1))));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    None
}

fn say_where(fault: &Fault) {
    let stack = fault.register(libc::REG_RSP) & !7;
    PLACE[0].store(fault.register(libc::REG_RIP), SeqCst);
    for (index, word) in (0..).zip(&PLACE[1..]) {
        let at = stack + 8 * index;
        // A stack ends at the end of a page, and the words in use are in the stack pointer's page.
        let is_there = at >> 12 == stack >> 12;
        // SAFETY: the page of a live stack pointer is mapped.
        word.store(if is_there { unsafe { ptr::read_volatile(at as *const u64) } } else { 0 }, SeqCst);
    }
    ANSWERED.store(true, SeqCst);
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the host passes a live siginfo.
    let (address, code) = unsafe { ((*info).si_addr() as u64, (*info).si_code) };
    let fault = Fault { signal, address, context: context.cast() };
    if signal == libc::SIGTRAP && code == libc::SI_TKILL {
        return say_where(&fault);
    }
    if let Some(next) = recoverable_copy::fix_up(fault.register(libc::REG_RIP)) {
        fault.set_register(libc::REG_RIP, next);
        return;
    }
    if HOOK.get().is_some_and(|hook| hook(&fault)) {
        return;
    }
    // A fault in the VMM: the former handler sees it when the instruction runs again.
    let position = SIGNALS.iter().position(|known| *known == signal).unwrap_or(0);
    let former = OLD.get().and_then(|old| old.get(position)).map_or(ptr::null(), ptr::from_ref);
    // SAFETY: restores the handler that was installed before; with a null pointer nothing changes.
    unsafe { libc::sigaction(signal, former, ptr::null_mut()) };
}

/// An alternate signal stack for the calling thread, freed with the value.
#[derive(Debug)]
pub struct SignalStack {
    base: *mut libc::c_void,
}

impl SignalStack {
    const BYTES: usize = 64 << 10;

    /// Maps a stack and makes it the thread's.
    pub fn install() -> Result<Self, HostError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(ptr::null_mut(), Self::BYTES, prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(HostError::last("map a signal stack"));
        }
        let stack = libc::stack_t { ss_sp: base, ss_flags: 0, ss_size: Self::BYTES };
        // SAFETY: the memory is this value's, and the stack is disabled before it goes.
        if unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) } < 0 {
            return Err(HostError::last("set a signal stack"));
        }
        Ok(Self { base })
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: the thread is not on this stack, and it is unmapped only when it is no longer installed.
        unsafe {
            libc::sigaltstack(&raw const none, ptr::null_mut());
            libc::munmap(self.base, Self::BYTES);
        }
    }
}
