// Calls made from one place many times: a runtime may patch such places, and nobody may notice.
#include "check.h"
#include <asm/prctl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

enum { MANY = 300 };

#define FUNCTION(name, body)                                                                                           \
    __asm__(".text\n.balign 64\n.globl " name "\n.type " name ", @function\n" name ":\n" body ".balign 64\n")

// A number, then the call; `number_call` is where the call itself is.
FUNCTION("number_site", "mov $110, %eax\n.globl number_call\nnumber_call: syscall\nret\n");
// A call that reads, as libraries make it; `read_call` and `read_compare` are in its midst.
FUNCTION("read_site", "xor %eax, %eax\n.globl read_call\nread_call: syscall\n.globl read_compare\nread_compare: "
                      "cmp $-4096, %rax\nja 1f\nret\n1: mov $-1, %rax\nret\n");
// Sites that lie across two pages, and one right before its end.
__asm__(".text\n.balign 4096\n.skip 4092\n.globl across_site\nacross_site: mov $110, %eax\nsyscall\nret\n"
        ".balign 4096\n.skip 4089\n.globl last_site\nlast_site: mov $110, %eax\nsyscall\nret\n.balign 64\n");

long number_site(void);
long across_site(void);
long last_site(void);
long read_site(int fd, void *to, size_t count);
extern const uint8_t number_call[], read_call[], read_compare[];

static long call_at(const void *where, long rax, long a, const void *b, long c)
{
    long result = rax;
    register long r10 __asm__("r10") = 0;
    __asm__ volatile("call *%[where]"
                     : "+a"(result)
                     : [where] "r"(where), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory", "cc");
    return result;
}

static void warm(void)
{
    static uint8_t bytes[MANY];
    int zero = FD(open("/dev/zero", O_RDONLY | O_CLOEXEC));
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(number_site(), getppid());
        CHECK_EQ(read_site(zero, bytes, sizeof bytes), sizeof bytes);
    }
    close(zero);
}

// Every byte of a site is where one may jump to that a compiler could have meant.
static void entries(void)
{
    warm();
    int ends[2];
    OK(pipe(ends));
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(call_at(number_call, SYS_getpid, 0, 0, 0), getpid());
        CHECK_EQ(call_at(number_call, SYS_getuid, 0, 0, 0), getuid());
        char byte = (char)i, back = 0;
        CHECK_EQ(call_at(read_call, SYS_write, ends[1], &byte, 1), 1);
        CHECK_EQ(read_site(ends[0], &back, 1), 1);
        CHECK_EQ(back, byte);
        CHECK_EQ(call_at(read_call, SYS_statx, -1, 0, 0), -1);
        CHECK_EQ(call_at(read_compare, 4711, 0, 0, 0), 4711);
        CHECK_EQ(call_at(read_compare, -5, 0, 0, 0), -1);
    }
}

static void results(void)
{
    uint8_t second[4096];
    int self = FD(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    CHECK_EQ(pread(self, second, sizeof second, 4096), sizeof second);
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(across_site(), getppid());
        CHECK_EQ(last_site(), getppid());
        char byte;
        CHECK_EQ(read_site(-1, &byte, 1), -1);
        CHECK_EQ(syscall(SYS_getppid), getppid());
        CHECK_EQ(syscall(SYS_getpid), getpid());
        // Six arguments: the last comes from the stack.
        uint8_t *page = (uint8_t *)syscall(SYS_mmap, 0L, 4096L, (long)PROT_READ, (long)MAP_PRIVATE, (long)self, 4096L);
        CHECK(page != MAP_FAILED && page[0] == second[0] && page[4095] == second[4095]);
        OK(munmap(page, 4096));
    }
}

// The bytes of a site in the midst of other instructions: `mov $39, %r8d`, a store, and `xor %r8d, %r8d`.
FUNCTION("prefixed_site", "mov $110, %eax\nmov $39, %r8d\nsyscall\nmov %r8, %rdx\nret\n");
FUNCTION("store_site", "push %rbp\nmov %rsp, %rbp\nmov $39, %eax\n.byte 0xc7, 0x45, 0xb8\n.long 39\nsyscall\n"
                       "mov -72(%rbp), %edx\npop %rbp\nret\n");
FUNCTION("zero_site", "mov $110, %eax\nxor %r8d, %r8d\nsyscall\ncmp $-4096, %rax\nja 1f\nret\n1: mov $-1, %rax\nret\n");
long prefixed_site(void), store_site(void), zero_site(void);

static void inside_others(void)
{
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(prefixed_site(), getppid());
        CHECK_EQ(store_site(), getpid());
        CHECK_EQ(zero_site(), getppid());
    }
}

struct registers {
    uint64_t general[14], flags, below[16], vector[8];
};

// Loads all registers, calls, and stores them: rbx rbp rdi rsi rdx r8 r9 r10 r12 r13 r14 r15, flags, what is below the stack
// pointer, and vector registers.
FUNCTION("with_registers",
         "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\npush %rdi\n"
         "mov %rdi, %rax\n"
         "mov 200(%rax), %rbx\nmov %rbx, -8(%rsp)\nmov 208(%rax), %rbx\nmov %rbx, -128(%rsp)\n"
         "movups 248(%rax), %xmm0\nmovups 264(%rax), %xmm15\n"
         "mov (%rax), %rbx\nmov 8(%rax), %rbp\nmov 16(%rax), %rdi\nmov 24(%rax), %rsi\nmov 32(%rax), %rdx\n"
         "mov 40(%rax), %r8\nmov 48(%rax), %r9\nmov 56(%rax), %r10\nmov 64(%rax), %r12\nmov 72(%rax), %r13\n"
         "mov 80(%rax), %r14\nmov 88(%rax), %r15\n"
         "stc\nstd\n"
         ".balign 16\nmov $110, %eax\nsyscall\n"
         "mov (%rsp), %rax\n"
         "mov %rbx, (%rax)\nmov %rbp, 8(%rax)\nmov %rdi, 16(%rax)\nmov %rsi, 24(%rax)\nmov %rdx, 32(%rax)\n"
         "mov %r8, 40(%rax)\nmov %r9, 48(%rax)\nmov %r10, 56(%rax)\nmov %r12, 64(%rax)\nmov %r13, 72(%rax)\n"
         "mov %r14, 80(%rax)\nmov %r15, 88(%rax)\n"
         "movups %xmm0, 248(%rax)\nmovups %xmm15, 264(%rax)\n"
         "mov -8(%rsp), %rbx\nmov %rbx, 200(%rax)\nmov -128(%rsp), %rbx\nmov %rbx, 208(%rax)\n"
         "pushfq\npopq 112(%rax)\ncld\n"
         "pop %rdi\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n");
void with_registers(struct registers *registers);

static void registers(void)
{
    struct registers want, is;
    uint64_t state = 4711;
    for (int i = 0; i < MANY; i++) {
        uint64_t *word = (uint64_t *)&want;
        for (size_t at = 0; at < sizeof want / 8; at++)
            word[at] = next_random(&state);
        is = want;
        with_registers(&is);
        // Carry and direction were set.
        CHECK_EQ(is.flags & 0x401, 0x401);
        is.flags = want.flags;
        CHECK_EQ(memcmp(&is, &want, sizeof is), 0);
    }
}

// All vector registers are a task's own, whoever has the processor while it waits.
FUNCTION("vector_site", "movups (%rdi), %xmm0\nmovups 16(%rdi), %xmm1\nmovups 32(%rdi), %xmm7\nmovups 48(%rdi), %xmm15\n"
                        "fldpi\nmov $24, %eax\nsyscall\nfstp %st(0)\n"
                        "movups %xmm0, (%rdi)\nmovups %xmm1, 16(%rdi)\nmovups %xmm7, 32(%rdi)\nmovups %xmm15, 48(%rdi)\nret\n");
void vector_site(uint64_t *registers);

static void *yields(void *seed)
{
    uint64_t want[8], is[8];
    for (int i = 0; i < 8; i++)
        want[i] = (uint64_t)(uintptr_t)seed * 0x9e3779b97f4a7c15 + (uint64_t)i;
    for (int i = 0; i < 10 * MANY; i++) {
        memcpy(is, want, sizeof is);
        vector_site(is);
        CHECK_EQ(memcmp(is, want, sizeof is), 0);
    }
    return 0;
}

static void vectors(void)
{
    pid_t children[3];
    for (int i = 0; i < 3; i++)
        children[i] = CHILD({
            pthread_t threads[3];
            for (long t = 0; t < 3; t++)
                PT(pthread_create(&threads[t], 0, yields, (void *)(10 * i + t + 1L)));
            for (int t = 0; t < 3; t++)
                PT(pthread_join(threads[t], 0));
        });
    for (int i = 0; i < 3; i++)
        JOIN(children[i]);
}

static volatile long ticks, strange;

static void tick(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    uint64_t rip = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    // In user code, and where a program has code at all.
    strange += rip < 0x10000 || rip > 0x7fffffffffff;
    ticks++;
    char byte;
    CHECK_EQ(read_site(-1, &byte, 1), -1);
    CHECK_EQ(number_site(), getppid());
}

static void interrupts(void)
{
    warm();
    struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART};
    OK(sigaction(SIGALRM, &action, 0));
    struct itimerval often = {{0, 500}, {0, 500}};
    OK(setitimer(ITIMER_REAL, &often, 0));
    pid_t parent = getppid();
    double sum = 0;
    for (long i = 0; ticks < scaled(300); i++) {
        CHECK_EQ(number_site(), parent);
        sum += (double)i * 0.5;
    }
    CHECK(sum >= 0);
    memset(&often, 0, sizeof often);
    OK(setitimer(ITIMER_REAL, &often, 0));
    CHECK_EQ(strange, 0);
}

static int slow[2];

static void *writer(void *unused)
{
    (void)unused;
    for (int i = 0; i < 30; i++) {
        sleep_ms(5);
        CHECK_EQ(write(slow[1], "x", 1), 1);
    }
    return 0;
}

// Calls that wait are made again after a handler, and fail where they are to.
static void restarts(void)
{
    warm();
    OK(pipe(slow));
    struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART};
    OK(sigaction(SIGALRM, &action, 0));
    struct itimerval often = {{0, 1000}, {0, 1000}};
    OK(setitimer(ITIMER_REAL, &often, 0));
    pthread_t thread;
    PT(pthread_create(&thread, 0, writer, 0));
    char byte;
    for (int i = 0; i < 30; i++) {
        CHECK_EQ(read_site(slow[0], &byte, 1), 1);
        CHECK_EQ(byte, 'x');
    }
    PT(pthread_join(thread, 0));
    action.sa_flags = SA_SIGINFO;
    OK(sigaction(SIGALRM, &action, 0));
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(read_site(slow[0], &byte, 1), -1);
        CHECK_ERR(poll(0, 0, 10000), EINTR);
    }
    memset(&often, 0, sizeof often);
    OK(setitimer(ITIMER_REAL, &often, 0));
}

static void *caller(void *unused)
{
    (void)unused;
    double sum = 0;
    for (int i = 0; i < 20 * MANY; i++) {
        CHECK_EQ(number_site(), getppid());
        sum += i * 0.25;
        if (i % 64 == 0)
            sched_yield();
    }
    CHECK(sum == 0.25 * (20.0 * MANY - 1) * (20.0 * MANY) / 2);
    return 0;
}

static void threads(void)
{
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
        PT(pthread_create(&threads[i], 0, caller, 0));
    for (int i = 0; i < 6; i++)
        PT(pthread_join(threads[i], 0));
}

static void children(void)
{
    warm();
    for (int i = 0; i < 20; i++) {
        pid_t me = getpid();
        pid_t child = CHILD({
            CHECK_EQ(number_site(), me);
            warm();
            CHECK_EQ(number_site(), me);
        });
        CHECK(number_site() > 0);
        JOIN(child);
        child = vfork();
        if (child == 0)
            _exit(number_site() == me ? 0 : 1);
        JOIN(child);
    }
}

static const uint8_t number_bytes[] = {0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xc3};
static const uint8_t read_bytes[] = {0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff};

// What the kernel reads of the text is the file's.
static void text(void)
{
    warm();
    uint8_t is[16] = {0};
    int self = FD(open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
    CHECK_EQ(pread(self, is, sizeof number_bytes, (off_t)(uintptr_t)number_site), sizeof number_bytes);
    CHECK_EQ(memcmp(is, number_bytes, sizeof number_bytes), 0);
    warm();
    int ends[2];
    OK(pipe(ends));
    CHECK_EQ(write(ends[1], read_site, sizeof read_bytes), sizeof read_bytes);
    CHECK_EQ(read(ends[0], is, sizeof is), sizeof read_bytes);
    CHECK_EQ(memcmp(is, read_bytes, sizeof read_bytes), 0);
    warm();
}

// Code that is made writable is what it was, and what is written there runs.
static void change(void)
{
    warm();
    uint8_t *page = (uint8_t *)((uintptr_t)number_site & ~4095UL);
    for (int i = 0; i < 3; i++) {
        OK(mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC));
        CHECK_EQ(memcmp((void *)number_site, number_bytes, sizeof number_bytes), 0);
        volatile uint8_t *number = (uint8_t *)number_site + 1;
        *number = SYS_getpid;
        OK(mprotect(page, 4096, PROT_READ | PROT_EXEC));
        for (int calls = 0; calls < MANY; calls++)
            CHECK_EQ(number_site(), getpid());
        OK(mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC));
        CHECK_EQ(*number, SYS_getpid);
        *number = SYS_getppid;
        OK(mprotect(page, 4096, PROT_READ | PROT_EXEC));
        for (int calls = 0; calls < MANY; calls++)
            CHECK_EQ(number_site(), getppid());
    }
}

// Code that moves, or is mapped anew, still calls.
static void move(void)
{
    int file = FD(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    char line[512];
    uint64_t from = 0, offset = 0, unused;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != 0);
    uint64_t at = (uint64_t)(uintptr_t)number_site;
    while (fgets(line, sizeof line, maps)) {
        uint64_t start, end;
        if (sscanf(line, "%lx-%lx %*s %lx %lx", &start, &end, &offset, &unused) >= 3 && start <= at && at < end) {
            from = start;
            break;
        }
    }
    fclose(maps);
    CHECK(from != 0);
    off_t place = (off_t)(offset + ((at & ~4095UL) - from));
    uint8_t *code = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, place);
    CHECK(code != MAP_FAILED);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MANY; i++)
            CHECK_EQ(((long (*)(void))(code + at % 4096))(), getppid());
        uint8_t *to = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(to != MAP_FAILED);
        code = mremap(code, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        CHECK(code == to);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MANY; i++)
            CHECK_EQ(((long (*)(void))(code + at % 4096))(), getppid());
        OK(madvise(code, 4096, MADV_DONTNEED));
    }
    // Beyond the end of user addresses, with patches elsewhere.
    const int advices[] = {MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_DOFORK, 24 /* MADV_DONTNEED_LOCKED */};
    for (unsigned i = 0; i < sizeof advices / sizeof *advices; i++)
        CHECK_ERR(madvise((void *)0x7ffffffff000, 4096, advices[i]), ENOMEM);
    OK(munmap(code, 4096));
}

// Low addresses are the program's if it wants them, before and after.
static void low(void)
{
    warm();
    uint8_t *want = (uint8_t *)0x60000;
    for (int round = 0; round < 3; round++) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | (round == 1 ? MAP_FIXED : MAP_FIXED_NOREPLACE);
        uint8_t *got = mmap(want, 8 * 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
        CHECK(got == want);
        for (int at = 0; at < 8 * 4096; at++)
            CHECK_EQ(got[at], 0);
        memset(got, 0x5a, 8 * 4096);
        warm();
        for (int at = 0; at < 8 * 4096; at++)
            CHECK_EQ(got[at], 0x5a);
        OK(munmap(got, 8 * 4096));
        warm();
    }
}

static void *reads(void *unused)
{
    (void)unused;
    char byte;
    CHECK_EQ(read_site(slow[0], &byte, 1), 1);
    return 0;
}

// Memory that others ask for, there or anywhere, does nothing to a call that waits.
static void low_meanwhile(void)
{
    warm();
    for (int round = 0; round < 4; round++) {
        OK(pipe(slow));
        pthread_t thread;
        PT(pthread_create(&thread, 0, reads, 0));
        sleep_ms(20);
        void *want = round == 2 ? (void *)0x60000 : 0;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | (want ? MAP_FIXED : 0);
        uint8_t *got = mmap(want, 1 << 20, PROT_READ | PROT_WRITE, flags, -1, 0);
        CHECK(got != MAP_FAILED);
        memset(got, 0xcc, 1 << 20);
        CHECK_EQ(write(slow[1], "x", 1), 1);
        PT(pthread_join(thread, 0));
        OK(munmap(got, 1 << 20));
        close(slow[0]), close(slow[1]);
    }
}

static volatile int forked;

static void fork_in_handler(int signal)
{
    (void)signal;
    if (!forked++) {
        pid_t child = fork();
        if (child > 0)
            JOIN(child);
        else
            forked = 100;
    }
}

// A child that is made while its parent was in a call goes on behind it.
static void forks_in_calls(void)
{
    warm();
    OK(pipe(slow));
    struct sigaction action = {.sa_handler = fork_in_handler};
    OK(sigaction(SIGALRM, &action, 0));
    struct itimerval once = {{0, 0}, {0, 20000}};
    OK(setitimer(ITIMER_REAL, &once, 0));
    char byte;
    CHECK_EQ(read_site(slow[0], &byte, 1), -1);
    if (forked >= 100)
        _exit(0);
    CHECK_EQ(forked, 1);
}

static volatile long steps;

static void step(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    if (++steps > 1000)
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100;
}

// A program that goes step by step gets on.
static void stepping(void)
{
    warm();
    struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGTRAP, &action, 0));
    pid_t parent = getppid();
    __asm__ volatile("pushfq\norq $0x100, (%%rsp)\npopfq" ::: "memory", "cc");
    long is = number_site();
    __asm__ volatile("pushfq\nandq $~0x100, (%%rsp)\npopfq" ::: "memory", "cc");
    CHECK_EQ(is, parent);
    CHECK(steps > 0 && steps < 1000);
}

static volatile long illegal;

static void skip_two(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    illegal++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

// An instruction that is none stays so, whatever was in its place before.
static void others_code(void)
{
    warm();
    struct sigaction action = {.sa_sigaction = skip_two, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGILL, &action, 0));
    uint8_t *page = (uint8_t *)((uintptr_t)number_site & ~4095UL);
    uint8_t *saved = malloc(4096);
    memcpy(saved, page, 4096);
    OK(mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC));
    memcpy((uint8_t *)number_site + 5, (uint8_t[]){0x0f, 0x0b, 0xc3}, 3);
    OK(mprotect(page, 4096, PROT_READ | PROT_EXEC));
    CHECK_EQ(number_site(), 110);
    CHECK_EQ(illegal, 1);
    free(saved);
}

// A program may use GS.
static void segment(void)
{
    static uint64_t mine[1024], was[1024];
    warm();
    for (int at = 0; at < 1024; at++)
        mine[at] = was[at] = (uint64_t)at * 0x9e3779b97f4a7c15;
    uint64_t base = 1, word;
    OK(syscall(SYS_arch_prctl, ARCH_GET_GS, &base));
    CHECK_EQ(base, 0);
    OK(syscall(SYS_arch_prctl, ARCH_SET_GS, mine));
    warm();
    CHECK_EQ(memcmp(mine, was, sizeof mine), 0);
    __asm__ volatile("mov %%gs:56, %0" : "=r"(word));
    CHECK_EQ(word, was[7]);
    OK(syscall(SYS_arch_prctl, ARCH_GET_GS, &base));
    CHECK(base == (uint64_t)(uintptr_t)mine);
    OK(syscall(SYS_arch_prctl, ARCH_SET_GS, 0));
    warm();
    CHECK_EQ(memcmp(mine, was, sizeof mine), 0);
}

static sigjmp_buf no_instruction;

static void has_none(int signal)
{
    (void)signal;
    siglongjmp(no_instruction, 1);
}

// The same by the instruction for it, of which the kernel hears nothing.
static void segment_quietly(void)
{
    struct sigaction action = {.sa_handler = has_none};
    OK(sigaction(SIGILL, &action, 0));
    if (sigsetjmp(no_instruction, 1))
        SKIP("no instruction for the base of GS");
    static uint64_t mine[1024], was[1024];
    warm();
    for (int at = 0; at < 1024; at++)
        mine[at] = was[at] = (uint64_t)at * 0x9e3779b97f4a7c15;
    __asm__ volatile(".byte 0xf3, 0x48, 0x0f, 0xae, 0xd8" ::"a"(0L));
    for (int round = 0; round < 3; round++) {
        __asm__ volatile(".byte 0xf3, 0x48, 0x0f, 0xae, 0xd8" ::"a"(mine)); // wrgsbase rax
        warm();
        CHECK_EQ(memcmp(mine, was, sizeof mine), 0);
        uint64_t word;
        __asm__ volatile("mov %%gs:56, %0" : "=r"(word));
        CHECK_EQ(word, was[7]);
        __asm__ volatile(".byte 0xf3, 0x48, 0x0f, 0xae, 0xd8" ::"a"(0L));
        warm();
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(entries), TEST(results),  TEST(registers), TEST(vectors), TEST(interrupts),      TEST(restarts), TEST(threads), TEST(children),
        TEST(text),    TEST(change),   TEST(move),      TEST(low),             TEST(segment), TEST(inside_others), TEST(low_meanwhile), TEST(forks_in_calls), TEST(stepping), TEST(others_code),  TEST(segment_quietly),
    };
    return RUN_TESTS("sites", tests, argc, argv);
}
