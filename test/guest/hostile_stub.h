/*
 * Attacks of a program on the stub that it runs in (systrap): the library of hostile_stub.c.
 *
 * A program shares its address space with the stub's text and with the hand-over areas of the stub's threads. It can jump
 * to any byte of the text, and write any word of the areas. The pieces here:
 *
 *   hs_find_gate     finds a system call instruction of the stub's from which the program gets control back
 *   hs_gate          makes a system call at the gate, as the stub would
 *   hs_claim         reports a system call to the VMM, and goes on running: a running thread that counts as stopped
 *   hs_clone         makes a host thread that neither the VMM nor the kernel knows of
 *   hs_leave_behind  claims to exit, and waits for whoever gets the stub thread next, with chosen registers
 *
 * The gate needs no knowledge of the stub's code. Every register that survives a call points to a block which is a
 * hand-over area and a signal context at once. Whatever code follows the instruction, if it looks for its turn, it finds
 * that it has it, and that it is to go on with the context, which is the program's.
 */
#ifndef HOSTILE_STUB_H
#define HOSTILE_STUB_H

#include "check.h"
#include <linux/futex.h>
#include <stddef.h>
#include <sys/mman.h>

/* Where things are: qkernel/abi/src/layout.rs, qvisor/stub/src/area.rs. */
#define HS_TEXT 0x7fff10000000ul
#define HS_TEXT_BYTES 0x2000ul
#define HS_ORDERS 0x7fff18000000ul
#define HS_AREA 0x7fff20000000ul
#define HS_AREA_BYTES 0x8000ul

enum { HS_TURN_STUB = 1, HS_TURN_SLEEPS = 2, HS_TURN_DEAD = 4, HS_TURN_PARK = 8 };
enum { HS_RUN = 1, HS_LEAVE_CALL = 3, HS_SPAWN = 3, HS_FORK = 4 };
#define HS_THREAD_FLAGS 0x50f00ul
#define HS_SIGSYS 31

struct hs_area {
    volatile uint32_t turn, pad0[15];
    volatile uint32_t command, bases, pad1[2];
    volatile uint64_t fs_base, gs_base, argument, orders_at, spin_cycles;
    volatile uint32_t mapper_tid, pad2;
    volatile uint32_t signal, errno_;
    volatile uint64_t frame, trap_fs_base, trap_gs_base, value;
    volatile uint32_t core, has_call;
    volatile uint64_t pad3[2];
    volatile uint64_t frame_at;
    volatile uint32_t has_fsgsbase, vmm_pid;
    volatile uint64_t areas_len, filter[2], mapper_filter[2];
    volatile uint32_t orders_fd, mapper_ready;
    volatile uint64_t call[24], scratch[456];
};
_Static_assert(sizeof(struct hs_area) == 4096, "an area's header is a page");
_Static_assert(offsetof(struct hs_area, command) == 64, "as the stub has it");
_Static_assert(offsetof(struct hs_area, frame_at) == 192, "as the stub has it");
_Static_assert(offsetof(struct hs_area, call) == 256, "as the stub has it");

/* `struct ucontext` of the host's kernel, with the `siginfo` behind it in a frame. */
struct hs_context {
    uint64_t flags, link, stack, stack_flags, stack_bytes;
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags;
    uint64_t selectors, error, trapno, oldmask, cr2, fpstate, reserved[8];
    uint64_t mask;
    uint32_t si_signo, si_errno, si_code, si_pad;
    uint64_t si_address;
    uint32_t call, arch;
};
_Static_assert(offsetof(struct hs_context, r8) == 40, "as the host has it");
_Static_assert(offsetof(struct hs_context, mask) == 296, "as the host has it");

/* A block that is an area and a context: see the top. Aligned like an area. */
union hs_block {
    struct hs_area area;
    struct hs_context context;
    uint8_t bytes[HS_AREA_BYTES];
};
_Static_assert(offsetof(struct hs_context, r11) == offsetof(struct hs_area, command), "one word, two meanings");

#define HS_SELECTORS 0x002b000000000033ul
#define HS_RFLAGS 0x202ul
/* Every signal but those that a stub handles. */
#define HS_MASK (~((1ul << 3) | (1ul << 4) | (1ul << 6) | (1ul << 7) | (1ul << 9) | (1ul << 10) | (1ul << 30)))

/* The signals that the contexts here block. */
static uint64_t hs_mask = HS_MASK;

/* The registers that survive a call. */
struct hs_registers {
    uint64_t rbx, rbp, r12, r13, r14, r15, rsp, rip, result;
};

/* Like setjmp and longjmp; hs_load makes hs_save return `how`. */
__attribute__((naked, noipa, used, returns_twice)) static long hs_save(struct hs_registers *to UNUSED)
{
    __asm__("mov %rbx, (%rdi)\n mov %rbp, 8(%rdi)\n mov %r12, 16(%rdi)\n mov %r13, 24(%rdi)\n mov %r14, 32(%rdi)\n"
            "mov %r15, 40(%rdi)\n lea 8(%rsp), %rax\n mov %rax, 48(%rdi)\n mov (%rsp), %rax\n mov %rax, 56(%rdi)\n"
            "xor %eax, %eax\n ret");
}

__attribute__((naked, noipa, used, noreturn)) static void hs_load(struct hs_registers *from UNUSED, long how UNUSED)
{
    __asm__("mov (%rdi), %rbx\n mov 8(%rdi), %rbp\n mov 16(%rdi), %r12\n mov 24(%rdi), %r13\n mov 32(%rdi), %r14\n"
            "mov 40(%rdi), %r15\n mov 48(%rdi), %rsp\n mov %rsi, %rax\n jmp *56(%rdi)");
}

/* Where a context goes on whose rbx points to registers: notes the result, and loads them. */
__attribute__((naked, noipa, used)) UNUSED static void hs_back(void)
{
    __asm__("mov %rax, 64(%rbx)\n mov %rbx, %rdi\n mov $1, %esi\n jmp hs_load");
}

/* --- areas --- */

static uint64_t hs_areas(void)
{
    return ((struct hs_area *)HS_AREA)->areas_len / HS_AREA_BYTES;
}

static struct hs_area *hs_area(uint64_t index)
{
    return (struct hs_area *)(HS_AREA + index * HS_AREA_BYTES);
}

static struct hs_context *hs_context(struct hs_area *area)
{
    return (struct hs_context *)(area->frame_at + 8);
}

/* The area of the calling thread: the one whose frame holds what the thread had in a register at its last trap. */
UNUSED static struct hs_area *hs_mine(void)
{
    for (;;) {
        uint64_t cookie = __builtin_ia32_rdtsc() * 0x9e3779b97f4a7c15ul | 1, number = SYS_getppid;
        register uint64_t r15 __asm__("r15") = cookie;
        __asm__ volatile("syscall" : "+a"(number) : "r"(r15) : "rcx", "r11", "memory");
        for (uint64_t i = 0; i < hs_areas(); i++) {
            struct hs_area *area = hs_area(i);
            if (area->turn & HS_TURN_STUB && hs_context(area)->r15 == cookie)
                return area;
        }
    }
}

/* --- the gate --- */

static uint64_t hs_the_gate;

UNUSED static union hs_block *hs_new_block(int flags)
{
    uint8_t *at = mmap(NULL, 2 * HS_AREA_BYTES, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    union hs_block *block = (void *)(((uint64_t)at + HS_AREA_BYTES - 1) & -HS_AREA_BYTES);
    memset(block, 1, sizeof *block);
    memset(block, 0, sizeof *block);
    return block;
}

/* Fills in a context that goes on with `registers`, on the signal stack of `owner`. */
UNUSED static void hs_aim(union hs_block *block, struct hs_registers *registers, const void *stack, uint64_t rip)
{
    struct hs_context *context = &block->context;
    memset(context, 0, sizeof *context);
    context->flags = 7;
    context->stack = (uint64_t)stack + 4096;
    context->stack_flags = 1u << 31;
    context->stack_bytes = HS_AREA_BYTES - 4096;
    context->rbx = (uint64_t)registers;
    context->r11 = HS_RUN;
    context->rsp = registers->rsp;
    context->rip = rip;
    context->rflags = HS_RFLAGS;
    context->selectors = HS_SELECTORS;
    context->mask = hs_mask;
    block->area.frame_at = (uint64_t)block - 8;
}

/* rbx, rbp, r12 to r15. */
enum { HS_KEPT = 6 };

/* Jumps to `target` with a call's registers, and these in the ones that survive a call. */
__attribute__((naked, noipa, used, noreturn)) static void hs_leap(uint64_t target UNUSED, long number UNUSED,
                                                                const uint64_t *args UNUSED,
                                                                const uint64_t *kept UNUSED)
{
    __asm__("mov %rdi, %r11\n mov %rsi, %rax\n mov (%rcx), %rbx\n mov 8(%rcx), %rbp\n mov 16(%rcx), %r12\n"
            "mov 24(%rcx), %r13\n mov 32(%rcx), %r14\n mov 40(%rcx), %r15\n mov %rdx, %rcx\n mov (%rcx), %rdi\n"
            "mov 8(%rcx), %rsi\n mov 16(%rcx), %rdx\n mov 24(%rcx), %r10\n mov 32(%rcx), %r8\n mov 40(%rcx), %r9\n"
            "jmp *%r11");
}

/*
 * Makes a call at `gate`, and comes back on the signal stack of `owner`. The block is used up: one for each thread.
 * The call's result is lost.
 */
UNUSED static void hs_call_at(uint64_t gate, union hs_block *block, const void *owner, long number,
                              const uint64_t *args)
{
    struct hs_registers registers;
    if (hs_save(&registers) != 0)
        return;
    hs_aim(block, &registers, owner, (uint64_t)hs_back);
    uint64_t kept[HS_KEPT];
    for (int i = 0; i < HS_KEPT; i++)
        kept[i] = (uint64_t)block;
    hs_leap(gate, number, args, kept);
}

#define hs_gate(block, owner, number, ...)                                                                             \
    hs_call_at(hs_the_gate, block, owner, number, (const uint64_t[6]){__VA_ARGS__})

/* Whether there is a stub: elsewhere there is nothing to attack. */
UNUSED static bool hs_has_stub(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(*(volatile uint8_t *)HS_TEXT == 0 && hs_areas() == 0);
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool hs_is_call(uint64_t at)
{
    const volatile uint8_t *byte = (uint8_t *)at;
    return byte[0] == 0x0f && byte[1] == 0x05;
}

/* Where the stub's text, which ends with its page, has system call instructions. */
UNUSED static int hs_instructions(uint64_t *found, int max)
{
    int count = 0;
    for (uint64_t at = HS_TEXT; at < HS_TEXT + 0xfff && count < max; at++)
        if (hs_is_call(at))
            found[count++] = at;
    return count;
}

/* The child ends with 0 within `milliseconds`; else it is killed. */
static bool hs_ends_well(pid_t child, long milliseconds)
{
    for (long i = 0; i < milliseconds; i += 2) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) && WEXITSTATUS(status) == 0;
        usleep(2000);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return false;
}

/* Which of the registers the code behind the gate takes the context from. */
static int hs_context_register;

/* Whether a call at `gate` comes back to the context that register `which` alone points to; all of them for -1. */
static bool hs_comes_back(uint64_t gate, int which)
{
    pid_t child = fork();
    if (child == 0) {
        union hs_block *block = hs_new_block(MAP_PRIVATE), *other = hs_new_block(MAP_PRIVATE);
        struct hs_area *mine = hs_mine();
        struct hs_registers registers;
        uint64_t kept[HS_KEPT];
        if (hs_save(&registers) != 0)
            _exit(0);
        hs_aim(block, &registers, mine, (uint64_t)hs_back);
        hs_aim(other, &registers, mine, which < 0 ? (uint64_t)hs_back : 0);
        for (int i = 0; i < HS_KEPT; i++)
            kept[i] = (uint64_t)(i == which ? block : other);
        hs_leap(gate, SYS_futex, (const uint64_t[6]){(uint64_t)&mine->scratch[100], FUTEX_WAKE, 1}, kept);
    }
    return child > 0 && hs_ends_well(child, 500);
}

/* Finds a gate by trying, in children; false if there is none. */
UNUSED static bool hs_find_gate(void)
{
    uint64_t found[64];
    int count = hs_instructions(found, 64);
    for (int i = 0; i < count; i++) {
        if (!hs_comes_back(found[i], -1))
            continue;
        for (int which = 0; which < HS_KEPT; which++)
            if (hs_comes_back(found[i], which)) {
                hs_the_gate = found[i];
                hs_context_register = which;
                return true;
            }
    }
    return false;
}

/* --- claims --- */

/* A thread that runs while the VMM believes that it stopped. */
struct hs_claim {
    struct hs_registers registers;
    struct hs_area *area;
    union hs_block *block;
};

/* Gives the turn to the VMM, and wakes it. */
static void hs_report(struct hs_claim *claim)
{
    if (__atomic_exchange_n(&claim->area->turn, 0, __ATOMIC_SEQ_CST) & HS_TURN_SLEEPS && hs_the_gate)
        hs_gate(claim->block, claim->area, SYS_futex, (uint64_t)&claim->area->turn, FUTEX_WAKE, 1);
}

/* Writes a system call into the frame of an area, as if the thread had made it; it goes on at `rip`. */
static void hs_forge(struct hs_area *area, struct hs_registers *registers, uint64_t rip, long number,
                     const uint64_t *args)
{
    struct hs_context *context = hs_context(area);
    context->rbx = (uint64_t)registers;
    context->rsp = registers->rsp;
    context->rip = rip;
    context->rax = (uint64_t)number;
    context->rdi = args[0], context->rsi = args[1], context->rdx = args[2];
    context->r10 = args[3], context->r8 = args[4], context->r9 = args[5];
    context->rflags = HS_RFLAGS;
    context->arch = 0xc000003e;
    context->si_code = 1;
    area->signal = HS_SIGSYS;
    area->errno_ = 0;
    area->frame = area->frame_at;
    uint64_t fs, gs;
    if (area->has_fsgsbase) {
        __asm__ volatile("rdfsbase %0\n rdgsbase %1" : "=r"(fs), "=r"(gs));
        area->trap_fs_base = fs, area->trap_gs_base = gs;
    }
}

/*
 * Returns 0 in a thread that counts as having made the call, and 1, with the call's result in claim->registers.result,
 * when the kernel lets it go on: at once when the thread faults meanwhile, or by hs_go_on.
 */
#define hs_claim(claim, number, ...)                                                                                   \
    (hs_save(&(claim)->registers) ? 1 : (hs_claim_now(claim, number, (const uint64_t[6]){__VA_ARGS__}), 0))

UNUSED static void hs_claim_now(struct hs_claim *claim, long number, const uint64_t *args)
{
    claim->area = hs_mine();
    hs_forge(claim->area, &claim->registers, (uint64_t)hs_back, number, args);
    hs_report(claim);
}

/* Whether the kernel wants the thread to go on. */
static inline bool hs_has_turn(const struct hs_claim *claim)
{
    return claim->area->turn & HS_TURN_STUB;
}

/* Goes on as the kernel said. */
__attribute__((noreturn)) UNUSED static void hs_go_on(struct hs_claim *claim)
{
    struct hs_context *context = hs_context(claim->area);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (context->rip == (uint64_t)hs_back && context->rbx == (uint64_t)&claim->registers) {
        claim->registers.result = context->rax;
        hs_load(&claim->registers, 1);
    }
    /* A signal's handler. The stub resumes it: nothing here knows how the code behind its loop looks. */
    uint64_t kept[HS_KEPT];
    for (int i = 0; i < HS_KEPT; i++)
        kept[i] = (uint64_t)claim->area;
    kept[hs_context_register] = (uint64_t)context;
    hs_leap(hs_the_gate, SYS_futex, (const uint64_t[6]){(uint64_t)&claim->area->scratch, FUTEX_WAKE, 1}, kept);
}

/* --- threads that nobody knows of --- */

/* The `clone` of the stub's text, by what follows it; 0 if there is none. */
UNUSED static uint64_t hs_clone_instruction(void)
{
    static const uint8_t code[] = {0x0f, 0x05, 0x48, 0x85, 0xc0, 0x74, 0x01, 0xc3};
    for (uint64_t at = HS_TEXT; at < HS_TEXT + 0xfff - sizeof code; at++)
        if (memcmp((void *)at, code, sizeof code) == 0)
            return at;
    return 0;
}

/* Calls the stub's `clone` with a made-up area, which must say where the thread begins; the result is the call's. */
__attribute__((naked, noipa, used)) UNUSED static long hs_clone_at(uint64_t target UNUSED, union hs_block *area UNUSED)
{
    __asm__("mov %rdi, %r11\n mov %rsi, %r9\n lea 0x3000(%rsi), %rsi\n mov $0x50f00, %edi\n xor %edx, %edx\n"
            "xor %r10d, %r10d\n xor %r8d, %r8d\n mov $56, %eax\n jmp *%r11");
}

/* Starts a host thread at `begin` with its stack and signal stack in the block; negative, if the stub has no way. */
UNUSED static long hs_clone(union hs_block *block, void (*begin)(void *), void *argument)
{
    uint64_t target = hs_clone_instruction();
    if (!target)
        return -ENOSYS;
    struct hs_registers registers = {.rsp = ((uint64_t)block->bytes + 0x2ff0) - 8};
    /* The context may not lie where the signal's frame will: the block's first page is both. */
    hs_aim(block, &registers, block, (uint64_t)begin);
    block->context.rdi = (uint64_t)argument;
    block->context.rsp = (uint64_t)block->bytes + 0x2ff8;
    return hs_clone_at(target, block);
}

/* --- what is left behind --- */

/*
 * Reports exit_group, and waits for the thread's next turn like the stub, but with a context of its own: whoever runs in
 * this stub next begins with a system call that this process chose.
 */
__attribute__((noreturn)) UNUSED static void hs_leave_behind(long number, const uint64_t *args)
{
    struct hs_registers registers = {0};
    struct hs_area *area = hs_mine();
    /* Low in the signal stack: the frame is at its end. */
    struct hs_context *context = (struct hs_context *)((uint64_t)area + 0x1100);
    memset(context, 0, sizeof *context);
    context->flags = 7;
    context->stack = (uint64_t)area + 4096;
    context->stack_flags = 1u << 31;
    context->stack_bytes = HS_AREA_BYTES - 4096;
    /* Which is no call that the stub may make, and so one that the kernel hears of. */
    context->rip = hs_the_gate;
    context->rax = (uint64_t)number;
    context->rdi = args[0], context->rsi = args[1], context->rdx = args[2];
    context->r10 = args[3], context->r8 = args[4], context->r9 = args[5];
    context->rsp = (uint64_t)area + 0x2000;
    context->rflags = HS_RFLAGS;
    context->selectors = HS_SELECTORS;
    context->mask = hs_mask;
    uint64_t kept[HS_KEPT];
    for (int i = 0; i < HS_KEPT; i++)
        kept[i] = (uint64_t)area;
    kept[hs_context_register] = (uint64_t)context;
    const uint64_t wake[6] = {(uint64_t)&area->turn, FUTEX_WAKE, 1};
    hs_forge(area, &registers, hs_the_gate, SYS_exit_group, (const uint64_t[6]){0});
    __atomic_store_n(&area->turn, 0, __ATOMIC_SEQ_CST);
    hs_leap(hs_the_gate, SYS_futex, wake, kept);
}

#endif
