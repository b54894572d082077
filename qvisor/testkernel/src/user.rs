//! Application code the cases run, position-independent, copied into user memory.

use core::arch::global_asm;

global_asm!(
    r#"
.macro program name
.globl user_\name
user_\name:
.endm

program begin

# Asks twice for the process id; the second call passes on the first one's answer.
program syscalls
    mov eax, 39
    syscall
    mov rdi, rax
    mov eax, 110
    syscall
    ud2

# Endless null system calls.
program null
    mov eax, 39
2:  syscall
    jmp 2b

# Loads from rdi, stores to rsi, then one exception after the other.
program faults
    mov rax, [rdi]
    mov [rsi], rax
    mov eax, 1
    syscall
    ud2
    int3
    xor edx, edx
    xor ecx, ecx
    div ecx
    hlt
    int 0x80
    mov rax, 0x8000000000000000
    mov rax, [rax]
    ud2

# Puts rdi into both ends of ymm0, traps, and passes them back.
program fpu
    vmovq xmm0, rdi
    vinsertf128 ymm0, ymm0, xmm0, 1
    mov eax, 1
    syscall
    vmovq rdi, xmm0
    vextractf128 xmm1, ymm0, 1
    vmovq rsi, xmm1
    mov eax, 2
    syscall
    ud2

# Spins.
program spin
3:  inc rbx
    jmp 3b

# Adds to the counter at rdi, then calls with the old value; rsi times, then call 2.
program count
4:  mov eax, 1
    lock xadd [rdi], rax
    mov r12, rax
    mov eax, 1
    syscall
    dec rsi
    jnz 4b
    mov eax, 2
    syscall
    ud2

# Reads through FS and GS, moves FS on by itself, reads again.
program bases
    mov rdi, fs:[0]
    mov rsi, gs:[0]
    mov eax, 1
    syscall
    rdfsbase rax
    add rax, 8
    wrfsbase rax
    mov rdi, fs:[0]
    mov eax, 2
    syscall
    ud2

# Touches rsi pages from rdi on, then call 1.
program touch
5:  mov byte ptr [rdi], 1
    add rdi, 4096
    dec rsi
    jnz 5b
    mov eax, 1
    syscall
    ud2

# Tries to get at the stub: its area's turn word (in rdi) is overwritten while it runs.
program wreck
    mov dword ptr [rdi], 0
6:  pause
    jmp 6b

# Jumps to the address in rdi with rax as a system call number.
program jump
    jmp rdi

# Jumps to the address in r15 with every other register as it is.
program leap
    jmp r15

# Writes rsi to the address in rdi, then call 1.
program poke
    mov [rdi], rsi
    mov eax, 1
    syscall
    ud2

program end
"#
);

macro_rules! programs {
    ($($name:ident = $symbol:ident),* $(,)?) => {
        unsafe extern "C" { $( static $symbol: u8; )* }
        /// Where each program lies behind the start of the code page.
        $( pub fn $name() -> u64 {
            &raw const $symbol as u64 - &raw const user_begin as u64
        } )*
    };
}
unsafe extern "C" {
    static user_begin: u8;
    static user_end: u8;
}
programs!(
    syscalls = user_syscalls,
    null = user_null,
    faults = user_faults,
    fpu = user_fpu,
    spin = user_spin,
    count = user_count,
    bases = user_bases,
    touch = user_touch,
    wreck = user_wreck,
    jump = user_jump,
    leap = user_leap,
    poke = user_poke,
);

/// All programs' code.
pub fn code() -> (*const u8, usize) {
    let (begin, end) = (&raw const user_begin, &raw const user_end);
    (begin, end as usize - begin as usize)
}
