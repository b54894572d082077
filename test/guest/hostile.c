/*
 * A program that means harm.  usage: hostile [--drop] [--instructions] [--dry] [--as-root] [--seed=N] [SECONDS]
 *
 * First it runs, each in a child, instructions that user code must not run, accesses to addresses that are not its own,
 * and entries into the kernel with spoiled registers; each must end as Linux ends it. Then, for SECONDS (default 2),
 * children make system calls with random and half-valid arguments. The system has won when it still works at the end.
 *
 * --instructions leaves the system calls out. --drop becomes user 65534 first. As root the system calls are only made
 * with --as-root, which belongs inside a sandbox. --dry lets a seccomp filter answer them all, to test this program.
 * Run it in an empty directory.
 */
#include "check.h"
#include <grp.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>

/* A system call that needs nothing of libc: no errno, no thread-local data. */
static inline long raw(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return number;
}

__attribute__((noreturn)) static void leave(int code)
{
    for (;;)
        raw(SYS_exit_group, code, 0, 0, 0, 0, 0);
}

/* --- instructions --- */

enum { LIVES = 0, ANY_DEATH = -1, ANYTHING = -2 };

struct attack {
    const char *name;
    void (*run)(void);
    int want; /* a signal, or one of the above */
};

#define REGISTERS "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc"
/* The caller uses no register afterwards: it leaves at once. */
#define ATTACK(name, code)                                                                                             \
    __attribute__((noinline)) static void name(void)                                                                   \
    {                                                                                                                  \
        __asm__ volatile(code);                                                                                        \
    }
/* For code that has lost its stack: ends the process, with 0 when rax holds no error. */
#define LEAVE "shr $63, %%rax\n mov %%eax, %%edi\n mov $231, %%eax\n syscall\n ud2\n"
#define ATTACK_AND_LEAVE(name, code)                                                                                   \
    static void name(void)                                                                                             \
    {                                                                                                                  \
        __asm__ volatile(code LEAVE : : : REGISTERS);                                                                  \
    }
#define FLAGS(bits) "sub $128, %%rsp\n pushf\n orl $" #bits ", (%%rsp)\n popf\n"
#define GETPID "mov $39, %%eax\n syscall\n"

ATTACK(hlt, "hlt")
ATTACK(cli, "cli")
ATTACK(sti, "sti")
ATTACK(lgdt, "sub $128, %rsp\n lgdt (%rsp)")
ATTACK(lidt, "sub $128, %rsp\n lidt (%rsp)")
ATTACK(lldt, "xor %eax, %eax\n lldt %ax")
ATTACK(ltr, "mov $0x40, %eax\n ltr %ax")
ATTACK(sgdt, "sub $256, %rsp\n sgdt (%rsp)\n add $256, %rsp")
ATTACK(sidt, "sub $256, %rsp\n sidt (%rsp)\n add $256, %rsp")
ATTACK(sldt, "sldt %eax")
ATTACK(str, "str %eax")
ATTACK(smsw, "smsw %eax")
ATTACK(lmsw, "mov $1, %eax\n lmsw %ax")
ATTACK(read_cr0, "mov %cr0, %rax")
ATTACK(read_cr3, "mov %cr3, %rax")
ATTACK(write_cr0, "xor %eax, %eax\n mov %rax, %cr0")
ATTACK(write_cr3, "xor %eax, %eax\n mov %rax, %cr3")
ATTACK(write_cr4, "xor %eax, %eax\n mov %rax, %cr4")
ATTACK(write_cr8, "xor %eax, %eax\n mov %rax, %cr8")
ATTACK(write_dr7, "xor %eax, %eax\n mov %rax, %dr7")
ATTACK(read_dr0, "mov %dr0, %rax")
ATTACK(clts, "clts")
ATTACK(in_port, "mov $0x60, %edx\n in %dx, %al")
ATTACK(out_port, "mov $0x64, %edx\n mov $0xfe, %al\n out %al, %dx")
ATTACK(out_reset, "mov $0xcf9, %edx\n mov $6, %al\n out %al, %dx")
ATTACK(out_byte, "out %al, $0x80")
ATTACK(ins_port, "mov $0x60, %edx\n lea -64(%rsp), %rdi\n insb")
ATTACK(rdmsr, "mov $0xc0000082, %ecx\n rdmsr")
ATTACK(wrmsr, "mov $0xc0000082, %ecx\n xor %eax, %eax\n xor %edx, %edx\n wrmsr")
ATTACK(wrmsr_apic, "mov $0x830, %ecx\n mov $0xfffff, %eax\n xor %edx, %edx\n wrmsr")
ATTACK(invlpg, "invlpg (%rsp)")
ATTACK(invd, "invd")
ATTACK(wbinvd, "wbinvd")
ATTACK(swapgs, "swapgs")
ATTACK(sysret, "mov $0x401000, %ecx\n mov $0x202, %r11d\n sysretq")
ATTACK(sysexit, "xor %ecx, %ecx\n xor %edx, %edx\n sysexitl")
ATTACK(xsetbv, "xor %ecx, %ecx\n mov $7, %eax\n xor %edx, %edx\n xsetbv")
ATTACK(rdpmc, "xor %ecx, %ecx\n rdpmc")
ATTACK(monitor, "mov %rsp, %rax\n xor %ecx, %ecx\n xor %edx, %edx\n monitor")
ATTACK(mwait, "xor %ecx, %ecx\n xor %eax, %eax\n mwait")
ATTACK(vmcall, "mov $-1, %eax\n vmcall")
ATTACK(vmmcall, "mov $-1, %eax\n vmmcall")
ATTACK(vmlaunch, "vmlaunch")
ATTACK(vmxon, "sub $128, %rsp\n vmxon (%rsp)")
ATTACK(vmrun, "xor %eax, %eax\n .byte 0x0f, 0x01, 0xd8")
ATTACK(stgi, ".byte 0x0f, 0x01, 0xdc")
ATTACK(rsm, "rsm")
ATTACK(ud2, "ud2")
ATTACK(ud0, ".byte 0x0f, 0xff, 0xc0")
ATTACK(too_long, ".byte 0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x90")
ATTACK(int_3, "int3")
ATTACK(icebp, ".byte 0xf1")
ATTACK(int_0x80, "mov $20, %eax\n int $0x80")
ATTACK(int_0, "int $0")
ATTACK(int_1, "int $1")
ATTACK(int_2, "int $2")
ATTACK(int_8, "int $8")
ATTACK(int_13, "int $13")
ATTACK(int_14, "int $14")
ATTACK(int_0x20, "int $0x20")
ATTACK(int_0xec, "int $0xec")
ATTACK(int_0xff, "int $0xff")
ATTACK(sysenter, "mov $20, %eax\n sysenter")
ATTACK(iret_kernel,
       "mov %rsp, %rax\n push $0x18\n push %rax\n push $0x3202\n push $0x10\n push $0\n iretq")
ATTACK(iret_noncanonical,
       "mov %rsp, %rcx\n mov %ss, %eax\n mov %cs, %edx\n mov $0x8000000000000000, %rbx\n"
       "push %rax\n push %rcx\n pushf\n push %rdx\n push %rbx\n iretq")
#define FAR(name, selector)                                                                                            \
    ATTACK(name, "sub $256, %rsp\n movl $0x1000, (%rsp)\n movw $" #selector ", 4(%rsp)\n ljmp *(%rsp)")
FAR(far_null, 0)
FAR(far_kernel, 0x10)
FAR(far_kernel_rpl3, 0x13)
FAR(far_32_bit, 0x23)
FAR(far_tss, 0x40)
FAR(far_ldt, 0x07)
FAR(far_beyond, 0xffff)
ATTACK(far_return, "pushq $0x10\n lea 1f(%rip), %rax\n push %rax\n lretq\n 1:")
#define SELECTOR(name, segment, selector) ATTACK(name, "mov $" #selector ", %eax\n mov %eax, %" #segment)
SELECTOR(ds_kernel, ds, 0x10)
SELECTOR(ds_kernel_data, ds, 0x18)
SELECTOR(es_beyond, es, 0xfff3)
SELECTOR(ss_null, ss, 0)
SELECTOR(ss_kernel, ss, 0x18)
SELECTOR(fs_tss, fs, 0x40)
SELECTOR(gs_ldt, gs, 0x0f)
SELECTOR(ds_null, ds, 0)
SELECTOR(ds_user, ds, 0x2b)
ATTACK(fs_gs_null, "xor %eax, %eax\n mov %eax, %gs\n mov %eax, %es\n")
ATTACK(segments_then_call, "mov $0x2b, %eax\n mov %eax, %ds\n mov %eax, %es\n mov %eax, %ss\n mov $39, %eax\n syscall")

static void gs_base_in_kernel(void)
{
    raw(SYS_arch_prctl, 0x1001 /* ARCH_SET_GS */, 0xffff888000000000, 0, 0, 0, 0);
    if (getauxval(AT_HWCAP2) & 2)
        __asm__ volatile("wrgsbase %0" : : "r"(0xffff888000000000UL));
    for (int i = 0; i < 1000; i++)
        raw(SYS_getppid, 0, 0, 0, 0, 0, 0);
}

static void fs_base_noncanonical(void)
{
    if (getauxval(AT_HWCAP2) & 2)
        __asm__ volatile("wrfsbase %0" : : "r"(0x8000000000000000UL));
    else
        __asm__ volatile("ud2");
}

static void read_gs_in_kernel(void)
{
    gs_base_in_kernel();
    __asm__ volatile("mov %%gs:0, %%rax" : : : "rax");
}

ATTACK_AND_LEAVE(trap_flag_then_call, FLAGS(0x100) GETPID)
ATTACK_AND_LEAVE(alignment_flag_then_call, FLAGS(0x40000) GETPID GETPID)
ATTACK_AND_LEAVE(direction_flag_then_call, FLAGS(0x400) GETPID "mov $63, %%eax\n lea -1024(%%rsp), %%rdi\n syscall\n")
ATTACK_AND_LEAVE(nested_flag_then_call, FLAGS(0x4000) GETPID GETPID)
ATTACK_AND_LEAVE(all_flags_then_call, FLAGS(0x277ed5) GETPID)
ATTACK_AND_LEAVE(stack_null, "xor %%esp, %%esp\n" GETPID)
ATTACK_AND_LEAVE(stack_odd, "mov $7, %%esp\n" GETPID)
ATTACK_AND_LEAVE(stack_noncanonical, "mov $0x8000000000000000, %%rsp\n" GETPID)
ATTACK_AND_LEAVE(stack_kernel, "mov $0xffff888000001000, %%rsp\n" GETPID)
ATTACK_AND_LEAVE(stack_end, "mov $-8, %%rsp\n" GETPID)
ATTACK(stack_kernel_fault, "mov $0xffff888000001000, %rsp\n push %rax")
ATTACK(stack_kernel_trap, "mov $0xffff888000001000, %rsp\n int3")
ATTACK(stack_noncanonical_fault, "mov $0x8000000000000000, %rsp\n push %rax")
ATTACK(stack_null_fault, "xor %esp, %esp\n ud2")

static void ignore(int signal)
{
    (void)signal;
}

/* A signal frame must not be written where the stack pointer says, if that is not the process's own. */
static void signal_on_stack(unsigned long where)
{
    signal(SIGUSR1, ignore);
    __asm__ volatile("mov %0, %%rsp\n mov $39, %%eax\n syscall\n mov %%eax, %%edi\n mov $10, %%esi\n mov $62, %%eax\n"
                     "syscall\n ud2" : : "r"(where) : REGISTERS);
}

static void signal_stack_kernel(void) { signal_on_stack(0xffffc90000004000); }
static void signal_stack_noncanonical(void) { signal_on_stack(0x0001000000000000); }
static void signal_stack_null(void) { signal_on_stack(8); }

/* A system call as the last instruction of the address space: the way back must not go to a wrong address. */
static void call_at_the_end(void)
{
    unsigned char *last = mmap((void *)0x7fffffffe000, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (last != (void *)0x7fffffffe000)
        __asm__ volatile("ud2"); /* taken: nothing to see */
    last[4094] = 0x0f, last[4095] = 0x05;
    __asm__ volatile("mov $39, %%eax\n jmp *%0" : : "r"(last + 4094) : "rax", "rcx", "r11", "memory");
}

static void map_the_end(void)
{
    if (mmap((void *)0x7ffffffff000, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
        == MAP_FAILED)
        leave(0);
    leave(1);
}

static void write_vdso(void)
{
    volatile char *vdso = (char *)getauxval(AT_SYSINFO_EHDR);
    if (!vdso)
        raise(SIGSEGV);
    vdso[0] = 0;
}

static const struct attack attacks[] = {
#define DIES(name, signal) {#name, name, signal}
    DIES(hlt, SIGSEGV), DIES(cli, SIGSEGV), DIES(sti, SIGSEGV), DIES(lgdt, SIGSEGV), DIES(lidt, SIGSEGV),
    DIES(lldt, SIGSEGV), DIES(ltr, SIGSEGV), DIES(sgdt, ANYTHING), DIES(sidt, ANYTHING), DIES(sldt, ANYTHING),
    DIES(str, ANYTHING), DIES(smsw, ANYTHING), DIES(lmsw, SIGSEGV), DIES(read_cr0, SIGSEGV), DIES(read_cr3, SIGSEGV),
    DIES(write_cr0, SIGSEGV), DIES(write_cr3, SIGSEGV), DIES(write_cr4, SIGSEGV), DIES(write_cr8, SIGSEGV),
    DIES(write_dr7, SIGSEGV), DIES(read_dr0, SIGSEGV), DIES(clts, SIGSEGV), DIES(in_port, SIGSEGV),
    DIES(out_port, SIGSEGV), DIES(out_reset, SIGSEGV), DIES(out_byte, SIGSEGV), DIES(ins_port, SIGSEGV),
    DIES(rdmsr, SIGSEGV), DIES(wrmsr, SIGSEGV), DIES(wrmsr_apic, SIGSEGV), DIES(invlpg, SIGSEGV), DIES(invd, SIGSEGV),
    DIES(wbinvd, SIGSEGV), DIES(swapgs, ANY_DEATH), DIES(sysret, ANY_DEATH), DIES(sysexit, ANY_DEATH),
    DIES(xsetbv, ANY_DEATH), DIES(rdpmc, ANYTHING), DIES(monitor, ANYTHING), DIES(mwait, ANYTHING),
    DIES(vmcall, ANYTHING), DIES(vmmcall, ANYTHING), DIES(vmlaunch, ANY_DEATH), DIES(vmxon, ANY_DEATH),
    DIES(vmrun, ANY_DEATH), DIES(stgi, ANY_DEATH), DIES(rsm, ANY_DEATH), DIES(ud2, SIGILL), DIES(ud0, ANY_DEATH),
    DIES(too_long, SIGSEGV), DIES(int_3, SIGTRAP), DIES(icebp, ANY_DEATH), DIES(int_0x80, ANYTHING),
    DIES(int_0, SIGSEGV), DIES(int_1, SIGSEGV), DIES(int_2, SIGSEGV), DIES(int_8, SIGSEGV), DIES(int_13, SIGSEGV),
    DIES(int_14, SIGSEGV), DIES(int_0x20, SIGSEGV), DIES(int_0xec, SIGSEGV), DIES(int_0xff, SIGSEGV),
    DIES(sysenter, ANYTHING), DIES(iret_kernel, SIGSEGV), DIES(iret_noncanonical, SIGSEGV), DIES(far_null, SIGSEGV),
    DIES(far_kernel, SIGSEGV), DIES(far_kernel_rpl3, SIGSEGV), DIES(far_32_bit, SIGSEGV), DIES(far_tss, SIGSEGV),
    DIES(far_ldt, SIGSEGV), DIES(far_beyond, SIGSEGV), DIES(far_return, SIGSEGV), DIES(ds_kernel, SIGSEGV),
    DIES(ds_kernel_data, SIGSEGV), DIES(es_beyond, SIGSEGV), DIES(ss_null, SIGSEGV), DIES(ss_kernel, SIGSEGV),
    DIES(fs_tss, SIGSEGV), DIES(gs_ldt, SIGSEGV), DIES(ds_null, LIVES), DIES(ds_user, LIVES), DIES(fs_gs_null, LIVES),
    DIES(segments_then_call, LIVES), DIES(gs_base_in_kernel, LIVES), DIES(fs_base_noncanonical, ANY_DEATH),
    DIES(read_gs_in_kernel, ANY_DEATH), DIES(trap_flag_then_call, SIGTRAP), DIES(alignment_flag_then_call, LIVES),
    DIES(direction_flag_then_call, LIVES), DIES(nested_flag_then_call, LIVES), DIES(all_flags_then_call, ANYTHING),
    DIES(stack_null, LIVES), DIES(stack_odd, LIVES), DIES(stack_noncanonical, LIVES), DIES(stack_kernel, LIVES),
    DIES(stack_end, LIVES), DIES(stack_kernel_fault, SIGSEGV), DIES(stack_kernel_trap, SIGTRAP),
    DIES(stack_noncanonical_fault, ANY_DEATH), DIES(stack_null_fault, SIGILL), DIES(signal_stack_kernel, SIGSEGV),
    DIES(signal_stack_noncanonical, SIGSEGV), DIES(signal_stack_null, SIGSEGV), DIES(call_at_the_end, ANY_DEATH),
    DIES(map_the_end, LIVES), DIES(write_vdso, SIGSEGV),
};

static int run_attacks(void)
{
    int bad = 0;
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        const struct attack *attack = &attacks[i];
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(10);
            attack->run();
            leave(0);
        }
        int status = status_of(pid);
        int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        bool dead = signal == SIGSEGV || signal == SIGILL || signal == SIGBUS || signal == SIGTRAP || signal == SIGFPE;
        bool good = attack->want == ANYTHING    ? dead || status == 0
                    : attack->want == ANY_DEATH ? dead
                    : attack->want == LIVES     ? status == 0
                                                : signal == attack->want;
        if (!good) {
            dprintf(2, "not ok hostile.%s: wait status %#x, wanted %d\n", attack->name, (unsigned)status, attack->want);
            bad++;
        }
    }
    return bad;
}

/* --- addresses --- */

static sigjmp_buf resume;
static volatile int hits;

static void caught(int signal)
{
    (void)signal;
    hits++;
    siglongjmp(resume, 1);
}

enum { PEEK, POKE, JUMP, ATOMIC };

/* Whether touching the address faults. */
__attribute__((noinline)) static bool denied(uint64_t address, int how)
{
    hits = 0;
    if (sigsetjmp(resume, 1) == 0)
        switch (how) {
        case PEEK: __asm__ volatile("movb (%0), %%al" : : "r"(address) : "rax", "memory"); break;
        case POKE: __asm__ volatile("movb $1, (%0)" : : "r"(address) : "memory"); break;
        case ATOMIC: __asm__ volatile("lock incb (%0)" : : "r"(address) : "memory", "cc"); break;
        default: __asm__ volatile("call *%0" : : "r"(address) : REGISTERS); break;
        }
    return hits != 0;
}

static const uint64_t edges[] = {
    0x7ffffffff000,     0x7fffffffffff,     0x800000000000,     0x00ffffffffffffff, 0x7fffffffffffffff,
    0x8000000000000000, 0xffff7fffffffffff, 0xffff800000000000, 0xffff888000000000, 0xffffc90000000000,
    0xffffea0000000000, 0xfffffe0000000000, 0xffffffff80000000, 0xffffffff81000000, 0xffffffffa0000000,
    0xffffffffff000000, 0xffffffffff5ff000, 0xffffffffff700000, 0xfffffffffffff000, 0xffffffffffffffff,
    0x100000000000000,  0xfee00000,         0xb8000,            0xfffffff0,         0,
};

static bool vsyscall_page(uint64_t address)
{
    return address >> 12 == 0xffffffffff600;
}

/* Nothing outside the process's own memory can be read, written or run, nor handed to the kernel. */
static void run_addresses(uint64_t seed)
{
    static char stack[65536];
    OK(sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL));
    struct sigaction action = {.sa_handler = caught, .sa_flags = SA_ONSTACK | SA_NODEFER};
    OK(sigaction(SIGSEGV, &action, NULL));
    OK(sigaction(SIGBUS, &action, NULL));
    int zero = FD(open("/dev/zero", O_RDONLY)), ends[2];
    OK(pipe(ends));
    size_t edge_count = sizeof edges / sizeof *edges;
    for (size_t i = 0; i < edge_count + 3000; i++) {
        uint64_t address = i < edge_count ? edges[i] : next_random(&seed) | 0x8000000000000000;
        if (vsyscall_page(address))
            continue;
        if (i % 2 == 0 && i >= edge_count) /* half of them where kernels live */
            address |= 0xffff800000000000;
        for (int how = PEEK; how <= ATOMIC; how++)
            if (!denied(address, how))
                FAIL("address %#llx can be touched (way %d)", (unsigned long long)address, how);
        CHECK_EQ(raw(SYS_read, zero, (long)address, 1, 0, 0, 0), -EFAULT);
        CHECK_EQ(raw(SYS_write, ends[1], (long)address, 1, 0, 0, 0), -EFAULT);
    }
}

/* --- system calls --- */

enum { AREA = 64 * 1024, MOST_CALLS = 2000 };
static char *area;
static long my_pid;
static char *const paths[] = {"a", "b", "c/d", ".", "..", "/", "/proc/self/maps", "/proc/self/mem", "/dev/null", "", "x/../y"};

static const short skipped[] = {
    SYS_exit, SYS_exit_group, SYS_vhangup, SYS_reboot, SYS_rt_sigreturn, SYS_kexec_load, 320 /* kexec_file_load */,
};

/* Calls that reach other processes: their first (or so) argument is never anybody else's number. */
static const short reaching[] = {
    SYS_kill,     SYS_tkill,          SYS_tgkill,         SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_prlimit64,
    SYS_ptrace,   SYS_process_vm_writev, SYS_process_vm_readv, SYS_sched_setaffinity, SYS_sched_setscheduler,
    SYS_sched_setparam, SYS_sched_setattr, SYS_setpriority, SYS_ioprio_set,  SYS_migrate_pages,     SYS_move_pages,
    SYS_setpgid,  434 /* pidfd_open */, SYS_perf_event_open, SYS_fcntl,
};

static bool listed(const short *list, size_t count, long number)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == number)
            return true;
    return false;
}
#define LISTED(list, number) listed(list, sizeof(list) / sizeof *(list), number)

static long random_argument(uint64_t *seed)
{
    uint64_t value = next_random(seed);
    switch (value % 16) {
    case 0: return 0;
    case 1: return (long)(value >> 8 & 63) - 4;
    case 2: return (long)next_random(seed);
    case 3: return 1L << (value >> 8 & 63);
    case 4: return (long)(edges[(value >> 8) % (sizeof edges / sizeof *edges)]);
    case 5: return (long)(area + AREA - (value >> 8 & 31)); /* runs over the end */
    case 6: return (long)paths[(value >> 8) % (sizeof paths / sizeof *paths)];
    case 7: return INT_MAX - (long)(value >> 8 & 3);
    case 8: return (long)(value >> 8 & 0xfff) << 12;
    case 9: return (int)next_random(seed);
    case 10:
    case 11: return 3 + (long)(value >> 8) % 14; /* a descriptor */
    default: return (long)(area + (value >> 8) % AREA / 8 * 8);
    }
}

/* Structures of random numbers, half of them small, some pointing back into the area. */
static void fill_area(uint64_t *seed)
{
    uint64_t *words = (uint64_t *)area;
    for (size_t i = 0; i < AREA / 8; i++) {
        uint64_t value = next_random(seed);
        words[i] = value % 4 == 0 ? value >> 32 : value % 4 == 1 ? (uint64_t)(area + (value >> 8) % AREA) : value >> 58;
    }
}

static void open_things(void)
{
    raw(SYS_close_range, 0, ~0U, 0, 0, 0, 0);
    for (int i = 0; i < 3; i++)
        open("/dev/null", O_RDWR);
    int pair[2];
    open("a", O_RDWR | O_CREAT, 0644);
    open(".", O_RDONLY | O_DIRECTORY);
    (void)!pipe2(pair, O_NONBLOCK);
    socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair);
    socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair);
    eventfd(0, EFD_NONBLOCK);
    epoll_create1(0);
    timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    memfd_create("m", MFD_ALLOW_SEALING);
    socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    open("/proc/self/mem", O_RDWR);
    open("/proc/self/maps", O_RDONLY);
}

static void limit(int which, rlim_t value)
{
    struct rlimit wanted = {value, value};
    OK(setrlimit(which, &wanted));
}

/* Answers every call but exit with ENOSYS. */
static void deny_all_calls(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

__attribute__((noreturn)) static void make_calls(uint64_t seed, bool dry)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_things();
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_CPU, 5);
    limit(RLIMIT_FSIZE, 1 << 20);
    limit(RLIMIT_AS, 512UL << 20);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 50000}, {0, 200000}}, NULL);
    fill_area(&seed);
    my_pid = getpid();
    if (dry)
        deny_all_calls();
    for (int i = 0; i < MOST_CALLS; i++) {
        long number = (long)(next_random(&seed) % 471), arguments[6];
        for (int a = 0; a < 6; a++)
            arguments[a] = random_argument(&seed);
        if (LISTED(skipped, number) || (dry && (number == 335 || number == 336))) /* uprobes pass seccomp by */
            continue;
        if (LISTED(reaching, number)) {
            long harmless = next_random(&seed) % 2 ? my_pid : INT_MAX;
            if (number == SYS_fcntl) {
                if ((arguments[1] & 0xff) == F_SETOWN || (arguments[1] & 0xff) == F_SETOWN_EX)
                    continue;
            } else if (number == SYS_ptrace || number == SYS_setpriority || number == SYS_ioprio_set
                       || number == SYS_perf_event_open) {
                arguments[1] = harmless;
                if (number == SYS_setpriority || number == SYS_ioprio_set)
                    arguments[0] = number == SYS_ioprio_set; /* PROCESS only */
            } else {
                arguments[0] = harmless;
                if (number == SYS_tgkill || number == SYS_rt_tgsigqueueinfo)
                    arguments[1] = harmless;
            }
        }
        long result = raw(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
        bool forks = number == SYS_fork || number == SYS_vfork || number == SYS_clone || number == SYS_clone3;
        if (forks && result == 0)
            leave(0);
        if (i % 64 == 63)
            fill_area(&seed);
    }
    leave(0);
}

static void run_calls(double seconds, uint64_t seed, bool dry)
{
    area = mmap(NULL, AREA + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(area != MAP_FAILED);
    OK(munmap(area + AREA, 4096));
    int64_t end = now_ns(CLOCK_MONOTONIC) + (int64_t)(seconds * 1e9);
    pid_t parent = getpid();
    long rounds = 0, whole = 0;
    while (now_ns(CLOCK_MONOTONIC) < end) {
        uint64_t start = next_random(&seed);
        pid_t pid = fork();
        if (pid < 0 && errno == EAGAIN) { /* leftovers that end by and by */
            sleep_ms(10);
            continue;
        }
        CHECK(pid >= 0);
        if (pid == 0)
            make_calls(start | 1, dry);
        int status = wait_at_most(pid, 2); /* kills it then, and the wait must end */
        whole += status == 0;
        rounds++;
        if (dry)
            CHECK_EQ(status, 0);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        CHECK_EQ(getpid(), parent);
    }
    CHECK(rounds > 0);
    dprintf(2, "%ld children, %ld of them made all their %d calls\n", rounds, whole, MOST_CALLS);
}

/* The system still does what it should. */
static void sanity(void)
{
    char *block = malloc(8 << 20);
    CHECK(block != NULL);
    memset(block, 5, 8 << 20);
    JOIN(CHILD({
        CHECK(block[1000000] == 5);
        memset(block, 6, 8 << 20);
    }));
    CHECK(block[1000000] == 5);
    int ends[2];
    OK(pipe(ends));
    JOIN(CHILD(CHECK_EQ(write(ends[1], "fine", 4), 4)));
    char text[8];
    CHECK_EQ(read(ends[0], text, 8), 4);
    sleep_ms(1);
    free(block);
}

int main(int argc, char **argv)
{
    bool drop = false, instructions = false, dry = false, as_root = false;
    double seconds = 2;
    uint64_t seed = (uint64_t)now_ns(CLOCK_REALTIME);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--drop") == 0)
            drop = true;
        else if (strcmp(argv[i], "--instructions") == 0)
            instructions = true;
        else if (strcmp(argv[i], "--dry") == 0)
            dry = true;
        else if (strcmp(argv[i], "--as-root") == 0)
            as_root = true;
        else if (strncmp(argv[i], "--seed=", 7) == 0)
            seed = strtoull(argv[i] + 7, NULL, 0);
        else
            seconds = atof(argv[i]);
    }
    dprintf(2, "seed %#llx\n", (unsigned long long)seed);
    if (drop) {
        OK(setgroups(0, NULL));
        OK(setresgid(65534, 65534, 65534));
        OK(setresuid(65534, 65534, 65534));
        OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    }
    OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
    limit(RLIMIT_CORE, 0);
    int bad = run_attacks();
    JOIN(CHILD(run_addresses(seed | 1)));
    sanity();
    if (!instructions) {
        if (geteuid() == 0 && !as_root && !dry) {
            dprintf(2, "hostile: as root the system calls are only made with --as-root, inside a sandbox\n");
            return 2;
        }
        run_calls(seconds, seed | 1, dry);
        sanity();
    }
    if (bad)
        return 1;
    dprintf(1, "ok hostile\n");
    return 0;
}
