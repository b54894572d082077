//! The seccomp filters of stub processes, as data: one for threads that run application code, one for mappers, and one
//! that all of them begin with.
//!
//! Every system call of application code becomes SIGSYS. The stub's own text, which application code can jump into, may
//! take turns; the mapper thread, which no application code reaches (`stub/src/mapper.rs`), may change the user half's
//! mappings and start threads. Such a thread adds the application's filter to the mapper's, so both allow what it needs.

use abi::layout::{STUB_AREA, STUB_AREA_SIZE, STUB_TEXT, USER_MAX};
use abi::word::{high32, low32};

use super::area::{
    CLOSE_RANGE_UNSHARE, FD_FILE, FD_IDS, FD_SOCKETS, FD_TEMPLATE, FD_USER, FORK_FLAGS, MAPPER_FLAGS, Orders,
    STUB_ORDERS, THREAD_FLAGS, ZYGOTE_TEXT, ZYGOTE_TEXT_END,
};

const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

// Offsets in `struct seccomp_data`.
const NR: u32 = 0;
const ARCH: u32 = 4;
const IP_LOW: u32 = 8;
const IP_HIGH: u32 = 12;
const fn arg_low(index: u32) -> u32 {
    16 + 8 * index
}
const fn arg_high(index: u32) -> u32 {
    20 + 8 * index
}

const MAP_SHARED_FIXED: u32 = 0x11;
const MAP_POPULATE: u32 = 0x8000;
const FUTEX_WAKE: u32 = 1;
const MADV_HUGEPAGE: u32 = 14;
const MADV_POPULATE_READ: u32 = 22;
const ARCH_SET_GS: u32 = 0x1001;
const ARCH_SET_FS: u32 = 0x1002;
const PR_SET_PDEATHSIG: u32 = 1;
const SECCOMP_SET_MODE_FILTER: u32 = 1;

/// One instruction of classic BPF, as the host kernel lays it out.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub on_true: u8,
    pub on_false: u8,
    pub value: u32,
}

/// The target of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    /// The next instruction.
    Next,
    Allow,
    Trap,
    Calls,
    Range,
    RangeEnd,
    Flags,
    Carry,
    HighPart,
    Clone,
    Turn,
    Futex,
    Receive,
    Close,
    Answer,
    Position,
    Give,
    Seal,
    Map,
    Bases,
    DeathSignal,
    Advice,
}

#[derive(Clone, Copy)]
enum Line {
    At(Label),
    /// Loads a word of `seccomp_data`.
    Load(u32),
    /// Compares the accumulator: operation, value, where to go.
    Jump(u16, u32, Label, Label),
    Plain(u16, u32),
}

const EQUAL: u16 = 0x15;
const GREATER: u16 = 0x25;
const AT_LEAST: u16 = 0x35;
const AT_LEAST_X: u16 = 0x3d;
const LOAD_VALUE: u16 = 0;
const LOAD_SLOT: u16 = 0x60;
const STORE_SLOT: u16 = 0x02;
const TO_X: u16 = 0x07;
const ADD_X: u16 = 0x0c;
const RETURN: u16 = 0x06;

fn call(number: libc::c_long, target: Label) -> Line {
    Line::Jump(EQUAL, u32::try_from(number).unwrap_or(u32::MAX), target, Label::Next)
}

/// Only 64-bit system calls (x32 numbers are in no list), and only from the stub's text: one comparison for the common
/// case, since application code is never where the stub is.
const FROM_STUB: [Line; 7] = [
    Line::Load(ARCH),
    Line::Jump(EQUAL, AUDIT_ARCH_X86_64, Label::Next, Label::Trap),
    Line::Load(IP_HIGH),
    Line::Jump(EQUAL, high32(STUB_TEXT), Label::Next, Label::Trap),
    Line::Load(IP_LOW),
    Line::Jump(AT_LEAST, low32(ZYGOTE_TEXT), Label::Trap, Label::Next),
    Line::Jump(AT_LEAST, low32(STUB_TEXT), Label::Calls, Label::Trap),
];
/// The filter of the zygote, which every process begins with: it allows each call that the zygote or a stub needs at
/// some time, and none by which a process without privileges and files could do harm. It is put in place before the
/// sandbox runs; the two closer filters come from the VMM while it does, and add to this one.
pub fn base() -> Vec<Instruction> {
    use Label::*;
    use Line::*;
    let lines = [
        Load(ARCH),
        Jump(EQUAL, AUDIT_ARCH_X86_64, Next, Trap),
        Load(IP_HIGH),
        Jump(EQUAL, high32(STUB_TEXT), Next, Trap),
        Load(IP_LOW),
        Jump(AT_LEAST, low32(ZYGOTE_TEXT_END), Trap, Next),
        Jump(AT_LEAST, low32(STUB_TEXT), Calls, Trap),
        At(Calls),
        Load(NR),
        call(libc::SYS_rt_sigreturn, Allow),
        call(libc::SYS_futex, Allow),
        call(libc::SYS_clone, Clone),
        call(libc::SYS_arch_prctl, Bases),
        call(libc::SYS_mmap, Flags),
        call(libc::SYS_mprotect, Allow),
        call(libc::SYS_munmap, Allow),
        call(libc::SYS_madvise, Advice),
        call(libc::SYS_write, Allow),
        call(libc::SYS_recvmsg, Allow),
        call(libc::SYS_close, Allow),
        call(libc::SYS_close_range, Allow),
        call(libc::SYS_lseek, Allow),
        call(libc::SYS_getppid, Allow),
        call(libc::SYS_prctl, DeathSignal),
        call(libc::SYS_seccomp, Allow),
        Plain(RETURN, TRAP),
        At(Clone),
        Load(arg_low(0)),
        Jump(EQUAL, low32(THREAD_FLAGS), Allow, Next),
        Jump(EQUAL, low32(MAPPER_FLAGS), Allow, Next),
        Jump(EQUAL, low32(FORK_FLAGS), Allow, Trap),
        At(Bases),
        Load(arg_low(0)),
        Jump(EQUAL, ARCH_SET_FS, Allow, Next),
        Jump(EQUAL, ARCH_SET_GS, Allow, Trap),
        At(Flags),
        Load(arg_low(3)),
        Jump(EQUAL, MAP_SHARED_FIXED, Allow, Next),
        Jump(EQUAL, MAP_SHARED_FIXED | MAP_POPULATE, Allow, Trap),
        At(Advice),
        Load(arg_low(2)),
        Jump(EQUAL, MADV_HUGEPAGE, Allow, Next),
        Jump(EQUAL, MADV_POPULATE_READ, Allow, Trap),
        At(DeathSignal),
        Load(arg_low(0)),
        Jump(EQUAL, PR_SET_PDEATHSIG, Allow, Trap),
    ];
    assemble(&join(&[&lines, &ENDS]))
}

/// Waiting for a turn and giving it: FUTEX_WAIT and FUTEX_WAKE.
const FUTEX: [Line; 3] = [
    Line::At(Label::Futex),
    Line::Load(arg_low(1)),
    Line::Jump(GREATER, FUTEX_WAKE, Label::Trap, Label::Allow),
];
const ENDS: [Line; 4] =
    [Line::At(Label::Trap), Line::Plain(RETURN, TRAP), Line::At(Label::Allow), Line::Plain(RETURN, ALLOW)];

/// FS and GS bases, on hosts that have no instruction for it.
const BASES: [Line; 4] = [
    Line::At(Label::Bases),
    Line::Load(arg_low(0)),
    Line::Jump(EQUAL, ARCH_SET_FS, Label::Allow, Label::Next),
    Line::Jump(EQUAL, ARCH_SET_GS, Label::Allow, Label::Trap),
];

/// The filter of threads that run application code, for a sandbox with `cpus` vCPUs.
pub fn application(cpus: u32) -> Vec<Instruction> {
    use Label::*;
    use Line::*;
    let areas_end = STUB_AREA + u64::from(cpus) * STUB_AREA_SIZE;
    let calls = [
        At(Calls),
        Load(NR),
        call(libc::SYS_rt_sigreturn, Allow),
        call(libc::SYS_futex, Turn),
        call(libc::SYS_arch_prctl, Bases),
        Plain(RETURN, TRAP),
        // Words of its own process's areas only: a thread that could wait on a word of the orders would take the
        // mapper's wake-ups.
        At(Turn),
        Load(arg_high(0)),
        Jump(EQUAL, high32(STUB_AREA), Next, Trap),
        Load(arg_low(0)),
        Jump(AT_LEAST, low32(areas_end), Trap, Next),
        Jump(AT_LEAST, low32(STUB_AREA), Next, Trap),
        // And without a timeout: a thread that claims to have stopped would go on by itself.
        Load(arg_high(3)),
        Jump(EQUAL, 0, Next, Trap),
        Load(arg_low(3)),
        Jump(EQUAL, 0, Futex, Trap),
    ];
    assemble(&join(&[&FROM_STUB, &calls, &BASES, &FUTEX, &ENDS]))
}

/// Address (argument 0) plus length (argument 1) must end in the user half. Slot 0: low word of the sum.
const RANGE: [Line; 27] = [
    Line::At(Label::Range),
    Line::Load(arg_low(1)),
    Line::Plain(TO_X, 0),
    Line::Load(arg_low(0)),
    Line::Plain(ADD_X, 0),
    Line::Plain(STORE_SLOT, 0),
    Line::Jump(AT_LEAST_X, 0, Label::Next, Label::Carry),
    Line::Plain(LOAD_VALUE, 0),
    Line::Jump(EQUAL, 0, Label::HighPart, Label::Trap),
    Line::At(Label::Carry),
    Line::Plain(LOAD_VALUE, 1),
    Line::At(Label::HighPart),
    Line::Plain(STORE_SLOT, 1),
    Line::Load(arg_high(0)),
    Line::Jump(GREATER, high32(USER_MAX), Label::Trap, Label::Next),
    Line::Plain(TO_X, 0),
    Line::Load(arg_high(1)),
    Line::Jump(GREATER, high32(USER_MAX), Label::Trap, Label::Next),
    Line::Plain(ADD_X, 0),
    Line::Plain(TO_X, 0),
    Line::Plain(LOAD_SLOT, 1),
    Line::Plain(ADD_X, 0),
    Line::Jump(GREATER, high32(USER_MAX), Label::Trap, Label::Next),
    Line::Jump(EQUAL, high32(USER_MAX), Label::RangeEnd, Label::Allow),
    Line::At(Label::RangeEnd),
    Line::Plain(LOAD_SLOT, 0),
    Line::Jump(EQUAL, low32(USER_MAX), Label::Allow, Label::Trap),
];

/// The calls by which a mapper starts a thread, with their arguments.
fn start_of_thread() -> [Line; 22] {
    use Label::*;
    use Line::*;
    let application = STUB_ORDERS + std::mem::offset_of!(Orders, application_filter) as u64;
    [
        At(Clone),
        Load(arg_high(0)),
        Jump(EQUAL, high32(THREAD_FLAGS), Next, Trap),
        Load(arg_low(0)),
        Jump(EQUAL, low32(THREAD_FLAGS), Allow, Trap),
        At(Position),
        Load(arg_low(0)),
        Jump(EQUAL, FD_IDS.cast_unsigned(), Allow, Trap),
        At(Give),
        Load(arg_low(0)),
        Jump(EQUAL, 0, Next, Trap),
        Load(arg_low(1)),
        Jump(EQUAL, u32::MAX, Next, Trap),
        Load(arg_low(2)),
        Jump(EQUAL, CLOSE_RANGE_UNSHARE, Allow, Trap),
        At(Seal),
        Load(arg_low(0)),
        Jump(EQUAL, SECCOMP_SET_MODE_FILTER, Next, Trap),
        Load(arg_high(2)),
        Jump(EQUAL, high32(application), Next, Trap),
        Load(arg_low(2)),
        Jump(EQUAL, low32(application), Allow, Trap),
    ]
}

/// The files that a mapper gets, maps and answers by, and the ways in which it maps them.
fn files_of_mapper(cpus: u32) -> [Line; 24] {
    use Label::*;
    use Line::*;
    let sockets = FD_SOCKETS.cast_unsigned();
    [
        // Files come by the vCPUs' sockets and are closed once mapped.
        At(Receive),
        Load(arg_low(0)),
        Jump(AT_LEAST, sockets + cpus, Trap, Next),
        Jump(AT_LEAST, sockets, Allow, Trap),
        At(Close),
        Load(arg_low(0)),
        Jump(EQUAL, FD_FILE.cast_unsigned(), Allow, Trap),
        At(Answer),
        Load(arg_low(0)),
        Jump(AT_LEAST, sockets + 2 * cpus, Trap, Next),
        Jump(AT_LEAST, sockets + cpus, Allow, Trap),
        // Only files are mapped, never anonymous memory, and only three.
        At(Map),
        Load(arg_low(4)),
        Jump(EQUAL, FD_USER.cast_unsigned(), Flags, Next),
        Jump(EQUAL, FD_TEMPLATE.cast_unsigned(), Flags, Next),
        Jump(EQUAL, FD_FILE.cast_unsigned(), Flags, Trap),
        At(Flags),
        Load(arg_low(3)),
        Jump(EQUAL, MAP_SHARED_FIXED, Range, Next),
        Jump(EQUAL, MAP_SHARED_FIXED | MAP_POPULATE, Range, Trap),
        // Large folios, and pages at once.
        At(Advice),
        Load(arg_low(2)),
        Jump(EQUAL, MADV_HUGEPAGE, Range, Next),
        Jump(EQUAL, MADV_POPULATE_READ, Range, Trap),
    ]
}

/// The filter of mapper threads, for a sandbox with `cpus` vCPUs. They carry out the VMM's orders, so this is a second
/// line: it allows only calls that the VMM has reason to order.
pub fn mapper(cpus: u32) -> Vec<Instruction> {
    use Label::*;
    use Line::*;
    let calls = [
        At(Calls),
        Load(NR),
        call(libc::SYS_futex, Futex),
        call(libc::SYS_mmap, Map),
        call(libc::SYS_mprotect, Range),
        call(libc::SYS_munmap, Range),
        call(libc::SYS_madvise, Advice),
        call(libc::SYS_write, Answer),
        call(libc::SYS_recvmsg, Receive),
        call(libc::SYS_close, Close),
        // To start a thread …
        call(libc::SYS_clone, Clone),
        call(libc::SYS_lseek, Position),
        call(libc::SYS_close_range, Give),
        call(libc::SYS_seccomp, Seal),
        // … and for the calls of that thread, to which both filters apply.
        call(libc::SYS_rt_sigreturn, Allow),
        call(libc::SYS_arch_prctl, Bases),
        Plain(RETURN, TRAP),
    ];
    let start = start_of_thread();
    let files = files_of_mapper(cpus);
    assemble(&join(&[&FROM_STUB, &calls, &start, &files, &RANGE, &BASES, &FUTEX, &ENDS]))
}

fn join(parts: &[&[Line]]) -> Vec<Line> {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}

fn assemble(lines: &[Line]) -> Vec<Instruction> {
    let mut places = Vec::new();
    let mut index = 0_usize;
    for line in lines {
        match line {
            Line::At(label) => places.push((*label, index)),
            _ => index += 1,
        }
    }
    let offset = |from: usize, label: Label| -> u8 {
        let target = places.iter().find(|(known, _)| *known == label).map_or(from + 1, |(_, at)| *at);
        // A jump too long for its field would go nowhere: the test runs the program.
        u8::try_from(target - from - 1).unwrap_or(u8::MAX)
    };
    let mut program = Vec::new();
    for line in lines {
        let at = program.len();
        let (code, on_true, on_false, value) = match line {
            Line::At(_) => continue,
            Line::Load(place) => (0x20, 0, 0, *place),
            Line::Jump(code, value, yes, no) => (*code, offset(at, *yes), offset(at, *no), *value),
            Line::Plain(code, value) => (*code, 0, 0, *value),
        };
        program.push(Instruction { code, on_true, on_false, value });
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the host kernel would.
    fn run(program: &[Instruction], data: &[u32; 16]) -> u32 {
        let (mut a, mut x, mut slots, mut pc) = (0_u32, 0_u32, [0_u32; 2], 0);
        loop {
            let i = program[pc];
            pc += 1;
            let mut branch = |yes: bool| pc += usize::from(if yes { i.on_true } else { i.on_false });
            match i.code {
                0x20 => a = data[i.value as usize / 4],
                EQUAL => branch(a == i.value),
                GREATER => branch(a > i.value),
                AT_LEAST => branch(a >= i.value),
                AT_LEAST_X => branch(a >= x),
                LOAD_VALUE => a = i.value,
                LOAD_SLOT => a = slots[i.value as usize],
                STORE_SLOT => slots[i.value as usize] = a,
                TO_X => x = a,
                ADD_X => a = a.wrapping_add(x),
                RETURN => return i.value,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn verdict(program: &[Instruction], number: i64, ip: u64, args: &[u64]) -> bool {
        let mut data = [0; 16];
        data[0] = u32::try_from(number).unwrap();
        data[1] = AUDIT_ARCH_X86_64;
        (data[2], data[3]) = (low32(ip), high32(ip));
        for (i, arg) in args.iter().enumerate() {
            (data[4 + 2 * i], data[5 + 2 * i]) = (low32(*arg), high32(*arg));
        }
        run(program, &data) == ALLOW
    }

    #[test]
    fn application_code_makes_no_system_call() {
        for program in [application(2), mapper(2), base()] {
            for ip in
                [0x1000, 0x40_0000, 0x7ffe_ffff_f000, STUB_TEXT - 2, ZYGOTE_TEXT_END, abi::layout::STUB_AREA]
            {
                for number in [libc::SYS_rt_sigreturn, libc::SYS_getpid, libc::SYS_mmap, 0x4000_0000] {
                    assert!(!verdict(&program, number, ip, &[]), "{number} at {ip:#x}");
                }
            }
            let mut i386 = [0; 16];
            (i386[1], i386[2], i386[3]) = (0x4000_0003, low32(STUB_TEXT), high32(STUB_TEXT));
            for number in 0..500 {
                i386[0] = number;
                assert_eq!(run(&program, &i386), TRAP);
            }
        }
    }

    #[test]
    fn nothing_closer_allows_what_the_base_does_not() {
        let [base, application, mapper] = [base(), application(2), mapper(2)];
        for number in 0..1024 {
            for args in [[0; 6], [0x40_0000, 0x1000, 3, 0x11, 0, 0], [THREAD_FLAGS, 0, 0, 0, 0, 0]] {
                for closer in [&application, &mapper] {
                    let allowed = verdict(closer, number, STUB_TEXT + 2, &args);
                    assert!(!allowed || verdict(&base, number, STUB_TEXT + 2, &args), "{number}");
                }
            }
        }
        for number in [libc::SYS_openat, libc::SYS_socket, libc::SYS_ptrace, libc::SYS_kill, libc::SYS_execve]
        {
            assert!(!verdict(&base, number, ZYGOTE_TEXT, &[]));
        }
        assert!(!verdict(&base, libc::SYS_clone, ZYGOTE_TEXT, &[libc::SIGCHLD as u64]));
        assert!(!verdict(&base, libc::SYS_mmap, ZYGOTE_TEXT, &[0, 4096, 7, 0x22, u64::MAX]));
    }

    #[test]
    fn an_application_thread_takes_turns_and_nothing_else() {
        let program = application(2);
        let verdict = |number, args: &[u64]| verdict(&program, number, STUB_TEXT + 2, args);
        assert!(verdict(libc::SYS_rt_sigreturn, &[]));
        let last = STUB_AREA + 2 * STUB_AREA_SIZE - 4;
        for word in [STUB_AREA, last] {
            assert!(verdict(libc::SYS_futex, &[word, 0]) && verdict(libc::SYS_futex, &[word, 1]));
            assert!(!verdict(libc::SYS_futex, &[word, 6]));
            for timeout in [1, 1 << 32, STUB_AREA] {
                assert!(!verdict(libc::SYS_futex, &[word, 0, 0, timeout]), "it does not go on by itself");
            }
        }
        for word in [0, 0x1000, STUB_ORDERS, STUB_AREA - 4, last + 4, STUB_AREA + (1 << 32)] {
            assert!(!verdict(libc::SYS_futex, &[word, 0]), "{word:#x}");
        }
        for flags in [THREAD_FLAGS, MAPPER_FLAGS, FORK_FLAGS, 17] {
            assert!(!verdict(libc::SYS_clone, &[flags]));
        }
        let known = [libc::SYS_rt_sigreturn, libc::SYS_arch_prctl];
        for number in (0..1024).chain(0x4000_0000..0x4000_0400) {
            for args in [[0_u64; 6], [0x40_0000, 0x1000, 3, 0x11, 0, 0]] {
                assert!(known.contains(&number) || !verdict(number, &args), "{number}");
            }
        }
    }

    #[test]
    fn mappings_stay_in_the_user_half() {
        let program = mapper(2);
        let verdict = |number, args: &[u64]| verdict(&program, number, STUB_TEXT, args);
        let map = |addr, len, flags: u32| verdict(libc::SYS_mmap, &[addr, len, 3, u64::from(flags), 0]);
        assert!(map(0x40_0000, 0x1000, 0x11));
        assert!(map(0x40_0000, 0x1000, 0x8011));
        assert!(!map(0x40_0000, 0x1000, 0x22));
        assert!(!map(0x40_0000, 0x1000, 0x10_0011));
        assert!(map(USER_MAX - 0x1000, 0x1000, 0x11));
        assert!(!map(USER_MAX - 0x1000, 0x2000, 0x11));
        assert!(!map(USER_MAX, 0x1000, 0x11));
        assert!(!map(STUB_TEXT, 0x1000, 0x11));
        assert!(!map(0x1000, u64::MAX, 0x11));
        assert!(!map(u64::MAX - 0xfff, 0x2000, 0x11));
        assert!(map(0xffff_f000, 0x1000, 0x11));
        assert!(map(0x7ffe_ffff_f000, 0x1000, 0x11));
        assert!(!map(0x7ffe_ffff_f000, 0x1_0000_1000, 0x11));
        assert!(!verdict(libc::SYS_mmap, &[0x40_0000, 0x1000, 3, 0x11, 2]));
        let unmap = |addr, len| verdict(libc::SYS_munmap, &[addr, len]);
        assert!(unmap(0, USER_MAX));
        assert!(!unmap(0, USER_MAX + 0x1000));
        assert!(!unmap(STUB_TEXT, 0x1000));
        assert!(!unmap(STUB_ORDERS, 0x1000));
        for advice in 0..128 {
            let is_known = [MADV_HUGEPAGE, MADV_POPULATE_READ].map(u64::from).contains(&advice);
            assert_eq!(verdict(libc::SYS_madvise, &[0x40_0000, 0x1_0000, advice]), is_known, "{advice}");
            assert!(!verdict(libc::SYS_madvise, &[STUB_AREA, 0x1000, advice]));
        }
        assert!(!verdict(libc::SYS_mprotect, &[STUB_ORDERS, 0x1000, 3]));
        assert!(!verdict(libc::SYS_mprotect, &[STUB_TEXT, 0x1000, 7]));
    }

    #[test]
    fn a_mapper_has_its_own_descriptors_only() {
        let program = mapper(2);
        let rows = [
            (libc::SYS_close, 1..2),
            (libc::SYS_lseek, 2..3),
            (libc::SYS_recvmsg, 4..6),
            (libc::SYS_write, 6..8),
        ];
        for (number, allowed) in rows {
            for fd in 0..9 {
                assert_eq!(verdict(&program, number, STUB_TEXT, &[fd]), allowed.contains(&fd));
            }
        }
        for number in [libc::SYS_openat, libc::SYS_sendmsg, libc::SYS_ptrace, libc::SYS_kill, libc::SYS_clone]
        {
            assert!(!verdict(&program, number, STUB_TEXT, &[]));
        }
    }

    #[test]
    fn a_mapper_starts_threads_of_its_process_and_they_take_one_filter() {
        let program = mapper(2);
        let verdict = |number, args: &[u64]| verdict(&program, number, STUB_TEXT, args);
        assert!(verdict(libc::SYS_clone, &[THREAD_FLAGS]));
        for flags in [17, MAPPER_FLAGS, FORK_FLAGS, THREAD_FLAGS | 1 << 33] {
            assert!(!verdict(libc::SYS_clone, &[flags]), "{flags:#x}");
        }
        let filter = STUB_ORDERS + std::mem::offset_of!(Orders, application_filter) as u64;
        assert!(verdict(libc::SYS_seccomp, &[1, 0, filter]));
        assert!(!verdict(libc::SYS_seccomp, &[1, 0, filter + 8]));
        assert!(!verdict(libc::SYS_seccomp, &[1, 0, STUB_AREA]));
        assert!(!verdict(libc::SYS_seccomp, &[0, 0, filter]));
        assert!(verdict(libc::SYS_close_range, &[0, u64::from(u32::MAX), 2]));
        assert!(!verdict(libc::SYS_close_range, &[3, u64::from(u32::MAX), 2]));
        assert!(!verdict(libc::SYS_close_range, &[0, u64::from(u32::MAX), 0]));
    }
}
