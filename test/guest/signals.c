/* Signals: what handlers are told, when calls are interrupted, what state survives, timers, stopping and killing. */
#include "check.h"
#include "vectors.h"
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/ucontext.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

static volatile sig_atomic_t count, last_signal;
/* Volatile, since glibc declares raise() and kill() as calling nothing of this file. */
static volatile siginfo_t last_info;
static volatile mcontext_t last_registers;
static sigjmp_buf resume;

static void set_handler(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO};
    OK(sigaction(signal, &action, NULL));
}

static void record(int signal, siginfo_t *info, void *context)
{
    last_signal = signal;
    last_info = *info;
    last_registers = ((ucontext_t *)context)->uc_mcontext;
    count++;
}

static void escape(int signal, siginfo_t *info, void *context)
{
    record(signal, info, context);
    siglongjmp(resume, 1);
}

static sigset_t set_of(int first, int second)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, first);
    if (second)
        sigaddset(&set, second);
    return set;
}

static void block(int first, int second)
{
    sigset_t set = set_of(first, second);
    OK(sigprocmask(SIG_BLOCK, &set, NULL));
}

static void unblock(int first, int second)
{
    sigset_t set = set_of(first, second);
    OK(sigprocmask(SIG_UNBLOCK, &set, NULL));
}

/* Ticks every 5 ms until turned off with 0, so that no tick that comes early is missed for good. */
static void tick_every_us(long us)
{
    struct itimerval timer = {{0, us}, {0, us}};
    OK(setitimer(ITIMER_REAL, &timer, NULL));
}

/* --- what a handler is told --- */

static void senders(void)
{
    set_handler(SIGUSR1, record, 0);
    OK(kill(getpid(), SIGUSR1));
    CHECK(count == 1 && last_signal == SIGUSR1);
    CHECK_EQ(last_info.si_signo, SIGUSR1);
    CHECK_EQ(last_info.si_code, SI_USER);
    CHECK_EQ(last_info.si_pid, getpid());
    CHECK_EQ(last_info.si_uid, getuid());
    OK(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1));
    CHECK(count == 2 && last_info.si_code == SI_TKILL && last_info.si_pid == getpid());
    union sigval value = {.sival_ptr = (void *)0x123456789abcUL};
    OK(sigqueue(getpid(), SIGUSR1, value));
    CHECK(count == 3 && last_info.si_code == SI_QUEUE && last_info.si_pid == getpid());
    CHECK(last_info.si_value.sival_ptr == value.sival_ptr);
    pid_t parent = getpid();
    block(SIGUSR1, 0);
    pid_t child = CHILD(OK(sigqueue(parent, SIGUSR1, (union sigval){.sival_int = 77})));
    JOIN(child);
    CHECK_EQ(count, 3);
    unblock(SIGUSR1, 0);
    CHECK(count == 4 && last_info.si_pid == child && last_info.si_value.sival_int == 77);
    CHECK_ERR(kill(getpid(), 65), EINVAL);
    CHECK_ERR(kill(getpid(), -1), EINVAL);
    OK(kill(getpid(), 0));
    CHECK_ERR(syscall(SYS_tgkill, getpid(), 0, SIGUSR1), EINVAL);
    CHECK_ERR(syscall(SYS_tgkill, 1, syscall(SYS_gettid), SIGUSR1), getpid() == 1 ? 0 : ESRCH);
    /* Nobody may pretend to be the kernel towards another process. */
    siginfo_t forged = {.si_signo = SIGUSR1, .si_code = SI_KERNEL};
    pid_t other = CHILD(pause());
    CHECK_ERR(syscall(SYS_rt_sigqueueinfo, other, SIGUSR1, &forged), EPERM);
    OK(kill(other, SIGKILL));
    CHECK_KILLED(other, SIGKILL);
    if (getuid() == 0)
        JOIN(CHILD({
            OK(setuid(65534));
            CHECK_ERR(kill(parent, SIGUSR1), EPERM);
        }));
}

static void children(void)
{
    block(SIGCHLD, 0);
    set_handler(SIGCHLD, record, 0);
    pid_t child = CHILD(_exit(23));
    OK(waitid(P_PID, child, &(siginfo_t){0}, WEXITED | WNOWAIT));
    unblock(SIGCHLD, 0);
    CHECK(count == 1 && last_info.si_signo == SIGCHLD && last_info.si_code == CLD_EXITED);
    CHECK(last_info.si_pid == child && last_info.si_status == 23 && last_info.si_uid == getuid());
    CHECK_EQ(status_of(child), 23 << 8);
    child = CHILD(for (;;) pause());
    OK(kill(child, SIGSTOP));
    CHECK_EQ(waitpid(child, NULL, WUNTRACED), child);
    /* A stop can be waited for a moment before its SIGCHLD is sent (kernel/signal.c, do_signal_stop). */
    for (int tries = 0; count < 2 && tries < 5000; tries++)
        usleep(1000);
    CHECK(count == 2 && last_info.si_code == CLD_STOPPED && last_info.si_status == SIGSTOP);
    set_handler(SIGCHLD, record, SA_NOCLDSTOP);
    OK(kill(child, SIGCONT));
    CHECK_EQ(waitpid(child, NULL, WCONTINUED), child);
    CHECK_EQ(count, 2);
    OK(kill(child, SIGKILL));
    CHECK_KILLED(child, SIGKILL);
    CHECK(count == 3 && last_info.si_code == CLD_KILLED && last_info.si_status == SIGKILL);
}


#define FAULT(signal, ...)                                                                                             \
    do {                                                                                                               \
        count = 0;                                                                                                     \
        if (sigsetjmp(resume, 1) == 0) {                                                                               \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
        if (count != 1 || last_signal != (signal))                                                                     \
            FAIL("want %s, got %d signals, last %d", #signal, (int)count, (int)last_signal);                           \
    } while (0)

extern char divide_here[], undefined_here[], break_here[], float_here[];

__attribute__((noinline, noclone)) static void execute_faults(int which, const volatile char *at)
{
    switch (which) {
    case 0:
        __asm__ volatile("xor %%edx, %%edx\n mov $1, %%eax\n xor %%ecx, %%ecx\n"
                         "divide_here: div %%ecx" : : : "eax", "ecx", "edx", "cc");
        break;
    case 1:
        __asm__ volatile("undefined_here: ud2");
        break;
    case 2:
        __asm__ volatile("break_here: int3");
        break;
    case 3: { /* SSE division by zero, unmasked */
        unsigned control = 0x1f80 & ~0x200U;
        __asm__ volatile("ldmxcsr %0\n mov $1, %%eax\n cvtsi2sd %%eax, %%xmm0\n xorpd %%xmm1, %%xmm1\n"
                         "float_here: divsd %%xmm1, %%xmm0" : : "m"(control) : "eax", "xmm0", "xmm1");
        break;
    }
    case 4: /* one step with the trap flag */
        __asm__ volatile("sub $128, %%rsp\n pushf\n orl $0x100, (%%rsp)\n popf\n nop\n nop\n add $128, %%rsp"
                         : : : "memory", "cc");
        break;
    case 5:
        __asm__ volatile("hlt");
        break;
    case 6:
        __asm__ volatile("movb (%0), %%al" : : "r"(at) : "al");
        break;
    default:
        __asm__ volatile("movb $1, (%0)" : : "r"(at) : "memory");
        break;
    }
}

static void faults(void)
{
    static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        set_handler(caught[i], escape, 0);
    FAULT(SIGFPE, execute_faults(0, NULL));
    CHECK(last_info.si_code == FPE_INTDIV && last_info.si_addr == divide_here);
    CHECK_EQ(last_registers.gregs[REG_RIP], (long)divide_here);
    CHECK_EQ(last_registers.gregs[REG_TRAPNO], 0);
    FAULT(SIGILL, execute_faults(1, NULL));
    CHECK(last_info.si_code == ILL_ILLOPN && last_info.si_addr == undefined_here);
    FAULT(SIGTRAP, execute_faults(2, NULL));
    CHECK_EQ(last_info.si_code, SI_KERNEL);
    CHECK_EQ(last_registers.gregs[REG_RIP], (long)break_here + 1);
    if (!getenv("EMULATED")) { /* emulators forget the exceptions of vector units */
        FAULT(SIGFPE, execute_faults(3, NULL));
        CHECK(last_info.si_code == FPE_FLTDIV && last_info.si_addr == float_here);
    }
    __asm__ volatile("ldmxcsr %0" : : "m"((unsigned){0x1f80}));
    FAULT(SIGTRAP, execute_faults(4, NULL));
    CHECK_EQ(last_info.si_code, TRAP_TRACE);
    FAULT(SIGSEGV, execute_faults(5, NULL));
    CHECK_EQ(last_info.si_code, SI_KERNEL);
    CHECK_EQ(last_registers.gregs[REG_TRAPNO], 13);
    FAULT(SIGSEGV, execute_faults(6, (char *)0x1234));
    CHECK(last_info.si_code == SEGV_MAPERR && last_info.si_addr == (void *)0x1234);
    CHECK_EQ(last_registers.gregs[REG_TRAPNO], 14);
    CHECK_EQ(last_registers.gregs[REG_ERR] & 7, 4);
    CHECK_EQ(last_registers.gregs[REG_CR2], 0x1234);
    char *volatile page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FAULT(SIGSEGV, execute_faults(7, page + 3));
    CHECK(last_info.si_code == SEGV_ACCERR && last_info.si_addr == page + 3);
    CHECK_EQ(last_registers.gregs[REG_ERR] & 6, 6);
    FAULT(SIGSEGV, execute_faults(6, (char *)0x8000000000000000UL));
    CHECK(last_info.si_code == SI_KERNEL && last_info.si_addr == NULL);
    FAULT(SIGSEGV, execute_faults(6, (char *)0xffff888000000000UL));
    CHECK(last_info.si_code == SEGV_MAPERR && last_info.si_addr == (void *)0xffff888000000000UL);
    int fd = FD(open("file", O_CREAT | O_RDWR, 0644));
    page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    FAULT(SIGBUS, execute_faults(6, page + 8));
    CHECK(last_info.si_code == BUS_ADRERR && last_info.si_addr == page + 8);
    /* A fault whose signal is blocked or ignored kills all the same. */
    CHECK_KILLED(CHILD({
                     block(SIGSEGV, 0);
                     execute_faults(6, NULL);
                 }),
                 SIGSEGV);
    CHECK_KILLED(CHILD({
                     signal(SIGFPE, SIG_IGN);
                     execute_faults(0, NULL);
                 }),
                 SIGFPE);
}

/* --- interrupted calls --- */

static int helper_pipe[2], futex_word, ticks_wanted;

/* At the wanted tick, brings about what the interrupted call waits for. */
static void tick(int signal, siginfo_t *info, void *context)
{
    int saved = errno;
    record(signal, info, context);
    if (count == ticks_wanted) {
        CHECK_EQ(write(helper_pipe[1], "x", 1), 1);
        __atomic_store_n(&futex_word, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &futex_word, FUTEX_WAKE, 1);
    }
    errno = saved;
}

static void start_ticks(int flags, int wanted)
{
    count = 0;
    ticks_wanted = wanted;
    futex_word = 0;
    set_handler(SIGALRM, tick, flags);
    tick_every_us(3000);
}

static void interrupted(void)
{
    char byte;
    OK(pipe(helper_pipe));
    start_ticks(0, -1);
    CHECK_ERR(read(helper_pipe[0], &byte, 1), EINTR);
    struct pollfd input = {helper_pipe[0], POLLIN, 0};
    CHECK_ERR(syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, NULL), EINTR);
    CHECK_ERR(poll(&input, 1, -1), EINTR);
    pid_t child = CHILD(for (;;) pause());
    CHECK_ERR(waitpid(child, NULL, 0), EINTR);
    OK(kill(child, SIGKILL));
    tick_every_us(0);
    CHECK_KILLED(child, SIGKILL);

    /* These are interrupted whatever the flags say. */
    start_ticks(SA_RESTART, -1);
    struct timespec hour = {3600, 0}, left = {0};
    CHECK_ERR(nanosleep(&hour, &left), EINTR);
    CHECK(left.tv_sec == 3599 && left.tv_nsec > 0);
    CHECK_EQ(clock_nanosleep(CLOCK_MONOTONIC, 0, &hour, NULL), EINTR);
    CHECK_ERR(poll(&input, 1, 1000000), EINTR);
    CHECK_ERR(syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, &hour), EINTR);
    CHECK_ERR(pause(), EINTR);
    CHECK_ERR(select(0, NULL, NULL, NULL, NULL), EINTR);
    sigset_t none;
    sigemptyset(&none);
    CHECK_ERR(sigsuspend(&none), EINTR);
    /* An ignored signal interrupts nothing. */
    signal(SIGALRM, SIG_IGN);
    int64_t start = now_ns(CLOCK_MONOTONIC);
    CHECK_EQ(poll(&input, 1, 40), 0);
    OK(nanosleep(&(struct timespec){0, 20000000}, NULL));
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 60000000);
}

static void restarted(void)
{
    char byte;
    OK(pipe(helper_pipe));
    start_ticks(SA_RESTART, 3);
    CHECK_EQ(read(helper_pipe[0], &byte, 1), 1);
    CHECK(count >= 3);
    start_ticks(SA_RESTART, 3);
    long result = syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, NULL);
    CHECK(result == 0 || errno == EAGAIN);
    CHECK(count >= 3);
    tick_every_us(0);
    CHECK_EQ(read(helper_pipe[0], &byte, 1), 1);
    pid_t child = CHILD({
        if (read(helper_pipe[0], &byte, 1) != 1)
            _exit(1);
    });
    start_ticks(SA_RESTART, 3);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    CHECK(count >= 3);
    int sockets[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    tick_every_us(0);
    helper_pipe[1] = sockets[1];
    start_ticks(SA_RESTART, 3);
    CHECK_EQ(recv(sockets[0], &byte, 1, 0), 1);
    CHECK(count >= 3);
    tick_every_us(0);

    /* A write that has moved something is not repeated: it returns what it moved. */
    int full[2];
    OK(pipe(full));
    static char big[1 << 20];
    start_ticks(SA_RESTART, -1);
    ssize_t moved = write(full[1], big, sizeof big);
    CHECK(moved > 0 && moved < (ssize_t)sizeof big);
    CHECK(count >= 1);
    tick_every_us(0);

    /* Stopping and continuing is no interruption at all. */
    bool was_stopped = false;
    for (int ms = 60; !was_stopped; ms *= 2) { /* one that slept too short a time had ended before */
        int64_t start = now_ns(CLOCK_MONOTONIC);
        child = CHILD({
            OK(nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL));
            CHECK(now_ns(CLOCK_MONOTONIC) - start >= ms * 1000000LL);
        });
        wait_until_asleep(child);
        OK(kill(child, SIGSTOP));
        int status;
        CHECK_EQ(waitpid(child, &status, WUNTRACED), child);
        was_stopped = WIFSTOPPED(status);
        if (was_stopped) {
            OK(kill(child, SIGCONT));
            JOIN(child);
        } else
            CHECK_EQ(status, 0);
    }
}

/* --- stacks and flags --- */

static char *alternate;
enum { ALTERNATE_BYTES = 65536 };
static volatile int on_alternate, disarmed;

static void look_at_stack(int signal, siginfo_t *info, void *context)
{
    char here;
    stack_t now;
    record(signal, info, context);
    on_alternate = &here >= alternate && &here < alternate + ALTERNATE_BYTES;
    OK(sigaltstack(NULL, &now));
    disarmed = (now.ss_flags & SS_DISABLE) != 0;
    if (on_alternate && !disarmed) {
        CHECK_EQ(now.ss_flags, SS_ONSTACK);
        CHECK_ERR(sigaltstack(&now, NULL), EPERM);
    }
    if (signal == SIGSEGV)
        siglongjmp(resume, 1);
}

static void stacks(void)
{
    alternate = mmap(NULL, ALTERNATE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = alternate, .ss_size = ALTERNATE_BYTES}, old;
    OK(sigaltstack(&stack, &old));
    CHECK_EQ(old.ss_flags, SS_DISABLE);
    set_handler(SIGUSR1, look_at_stack, 0);
    set_handler(SIGUSR2, look_at_stack, SA_ONSTACK);
    raise(SIGUSR1);
    CHECK(count == 1 && !on_alternate);
    raise(SIGUSR2);
    CHECK(count == 2 && on_alternate && !disarmed);
    OK(sigaltstack(NULL, &old));
    CHECK(old.ss_flags == 0 && old.ss_sp == alternate && old.ss_size == ALTERNATE_BYTES);
    /* The handler runs although the ordinary stack pointer is rubbish. */
    set_handler(SIGSEGV, look_at_stack, SA_ONSTACK);
    if (sigsetjmp(resume, 1) == 0)
        __asm__ volatile("mov $8, %%rsp\n push %%rax" : : : "memory");
    CHECK(count == 3 && on_alternate);
    stack.ss_flags = (int)SS_AUTODISARM;
    OK(sigaltstack(&stack, NULL));
    raise(SIGUSR2);
    CHECK(count == 4 && on_alternate && disarmed);
    OK(sigaltstack(NULL, &old)); /* armed again by the return */
    CHECK(old.ss_sp == alternate && old.ss_flags == (int)SS_AUTODISARM);
    CHECK_ERR(sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = 100}, NULL), ENOMEM);
    CHECK_ERR(sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = 65536, .ss_flags = 77}, NULL), EINVAL);
    OK(sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL));
    raise(SIGUSR2);
    CHECK(count == 5 && !on_alternate);
    /* An alternate stack that cannot be written: nothing is left but to die. */
    CHECK_KILLED(CHILD({
                     OK(mprotect(alternate, ALTERNATE_BYTES, PROT_NONE));
                     OK(sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = ALTERNATE_BYTES}, NULL));
                     raise(SIGUSR2);
                 }),
                 SIGSEGV);
}

static volatile int depth, deepest;

static void recurse(int signal, siginfo_t *info, void *context)
{
    record(signal, info, context);
    depth++;
    deepest = depth > deepest ? depth : deepest;
    if (count < 3)
        raise(signal);
    depth--;
}

static volatile int order[8], order_length;

static void note_order(int signal, siginfo_t *info, void *context)
{
    record(signal, info, context);
    order[order_length++ & 7] = signal;
    if (signal == SIGUSR1) {
        raise(SIGUSR2);
        order[order_length++ & 7] = -signal;
    }
}

static void flags(void)
{
    set_handler(SIGUSR1, recurse, SA_NODEFER);
    raise(SIGUSR1);
    CHECK(count == 3 && deepest == 3);
    count = deepest = 0;
    set_handler(SIGUSR1, recurse, 0);
    raise(SIGUSR1);
    CHECK(count == 3 && deepest == 1);
    set_handler(SIGUSR1, record, (int)SA_RESETHAND);
    struct sigaction action;
    raise(SIGUSR1);
    OK(sigaction(SIGUSR1, NULL, &action));
    CHECK(action.sa_handler == SIG_DFL);
    /* Nested at once, or held back by sa_mask until the first handler is done. */
    set_handler(SIGUSR1, note_order, 0);
    set_handler(SIGUSR2, note_order, 0);
    raise(SIGUSR1);
    CHECK(order_length == 3 && order[0] == SIGUSR1 && order[1] == SIGUSR2 && order[2] == -SIGUSR1);
    action = (struct sigaction){.sa_sigaction = note_order, .sa_flags = SA_SIGINFO, .sa_mask = set_of(SIGUSR2, 0)};
    OK(sigaction(SIGUSR1, &action, NULL));
    order_length = 0;
    raise(SIGUSR1);
    CHECK(order_length == 3 && order[0] == SIGUSR1 && order[1] == -SIGUSR1 && order[2] == SIGUSR2);
    CHECK_ERR(sigaction(SIGKILL, &action, NULL), EINVAL);
    CHECK_ERR(sigaction(SIGSTOP, &action, NULL), EINVAL);
    CHECK_ERR(syscall(SYS_rt_sigaction, 65, NULL, NULL, 8), EINVAL);
    CHECK_ERR(syscall(SYS_rt_sigaction, SIGUSR1, NULL, NULL, 4), EINVAL);
}

/* --- masks and queues --- */

static void unmask(int signal, siginfo_t *info, void *context)
{
    record(signal, info, context);
    sigset_t *mask = &((ucontext_t *)context)->uc_sigmask;
    CHECK(!sigismember(mask, SIGUSR1) && sigismember(mask, SIGHUP));
    sigaddset(mask, SIGTERM);
}

static void masks(void)
{
    sigset_t set, old;
    set_handler(SIGUSR1, record, 0);
    block(SIGUSR1, 0);
    for (int i = 0; i < 3; i++)
        OK(kill(getpid(), SIGUSR1));
    OK(sigpending(&set));
    CHECK(sigismember(&set, SIGUSR1) && !sigismember(&set, SIGUSR2) && count == 0);
    unblock(SIGUSR1, 0);
    CHECK_EQ(count, 1); /* ordinary signals do not queue */
    sigfillset(&set);
    OK(sigprocmask(SIG_SETMASK, &set, NULL));
    OK(sigprocmask(SIG_SETMASK, NULL, &old));
    CHECK(!sigismember(&old, SIGKILL) && !sigismember(&old, SIGSTOP) && sigismember(&old, SIGTERM));
    OK(kill(getpid(), SIGUSR1));
    sigemptyset(&set);
    CHECK_ERR(sigsuspend(&set), EINTR);
    CHECK_EQ(count, 2);
    OK(sigprocmask(SIG_SETMASK, NULL, &old));
    CHECK(sigismember(&old, SIGUSR1)); /* as it was */
    OK(kill(getpid(), SIGUSR1));
    signal(SIGUSR1, SIG_IGN); /* throws away what is pending */
    OK(sigpending(&set));
    CHECK(!sigismember(&set, SIGUSR1));
    sigemptyset(&set);
    OK(sigprocmask(SIG_SETMASK, &set, NULL));
    block(SIGHUP, 0);
    set_handler(SIGUSR1, unmask, 0);
    raise(SIGUSR1);
    OK(sigprocmask(SIG_SETMASK, NULL, &old));
    CHECK(sigismember(&old, SIGTERM) && sigismember(&old, SIGHUP) && !sigismember(&old, SIGUSR1));
    CHECK_ERR(sigprocmask(77, &old, NULL), EINVAL);
    /* A child starts with its parent's mask and nothing pending. */
    OK(kill(getpid(), SIGTERM));
    JOIN(CHILD({
        OK(sigpending(&set));
        CHECK(!sigismember(&set, SIGTERM));
        OK(sigprocmask(SIG_SETMASK, NULL, &old));
        CHECK(sigismember(&old, SIGTERM));
    }));
    signal(SIGTERM, SIG_IGN);
}

static void waiting(void)
{
    sigset_t set = set_of(SIGUSR1, SIGRTMIN);
    siginfo_t info;
    block(SIGUSR1, SIGRTMIN);
    struct timespec nothing = {0, 0}, little = {0, 20000000}, long_time = {20, 0};
    CHECK_ERR(sigtimedwait(&set, &info, &nothing), EAGAIN);
    int64_t start = now_ns(CLOCK_MONOTONIC);
    CHECK_ERR(sigtimedwait(&set, &info, &little), EAGAIN);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 20000000);
    OK(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 5}));
    OK(kill(getpid(), SIGUSR1));
    CHECK_EQ(sigtimedwait(&set, &info, &long_time), SIGUSR1);
    CHECK_EQ(info.si_code, SI_USER);
    CHECK_EQ(sigwaitinfo(&set, &info), SIGRTMIN);
    CHECK_EQ(info.si_value.sival_int, 5);
    pid_t parent = getpid();
    pid_t child = CHILD({
        wait_until_asleep(parent);
        OK(kill(parent, SIGUSR1));
    });
    CHECK_EQ(sigtimedwait(&set, &info, &long_time), SIGUSR1);
    CHECK_EQ(info.si_pid, child);
    JOIN(child);
    set_handler(SIGALRM, record, SA_RESTART);
    tick_every_us(3000);
    CHECK_ERR(sigtimedwait(&set, &info, &long_time), EINTR);
    tick_every_us(0);
}

static volatile int queue_signals[64], queue_values[64], queue_length;

static void note_queue(int signal, siginfo_t *info, void *context)
{
    (void)context;
    queue_signals[queue_length & 63] = signal;
    queue_values[queue_length++ & 63] = info->si_value.sival_int;
}

/* Real-time signals queue; the lowest number goes first, and within a number the oldest. */
static void queues(void)
{
    sigset_t all;
    sigfillset(&all);
    for (int i = 0; i < 4; i++) {
        struct sigaction action = {.sa_sigaction = note_queue, .sa_flags = SA_SIGINFO, .sa_mask = all};
        OK(sigaction(SIGRTMIN + i, &action, NULL));
    }
    OK(sigprocmask(SIG_BLOCK, &all, NULL));
    for (int i = 0; i < 32; i++)
        OK(sigqueue(getpid(), SIGRTMIN + (i * 7 + 3) % 4, (union sigval){.sival_int = i}));
    OK(sigprocmask(SIG_UNBLOCK, &all, NULL));
    CHECK_EQ(queue_length, 32);
    /* Every signal is masked while a handler runs, so they ran one by one. */
    for (int i = 1; i < 32; i++)
        CHECK(queue_signals[i] > queue_signals[i - 1]
              || (queue_signals[i] == queue_signals[i - 1] && queue_values[i] > queue_values[i - 1]));
    JOIN(CHILD({
        struct rlimit limit = {100, 100};
        OK(setrlimit(RLIMIT_SIGPENDING, &limit));
        block(SIGRTMIN, 0);
        int sent = 0;
        while (sent < 1000 && sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = sent}) == 0)
            sent++;
        CHECK(sent <= 100 && errno == EAGAIN);
    }));
}

static void *wait_for_directed(void *result)
{
    sigset_t set = set_of(SIGUSR1, 0);
    siginfo_t info;
    CHECK_EQ(syscall(SYS_rt_sigtimedwait, &set, &info, NULL, 8), SIGUSR1); /* glibc hides SI_TKILL */
    *(int *)result = info.si_code;
    return NULL;
}

static void directed(void)
{
    block(SIGUSR1, 0);
    int code = 0;
    pthread_t thread;
    PT(pthread_create(&thread, NULL, wait_for_directed, &code));
    PT(pthread_kill(thread, SIGUSR1));
    sigset_t set = set_of(SIGUSR1, 0);
    struct timespec nothing = {0, 0};
    PT(pthread_join(thread, NULL));
    CHECK_EQ(code, SI_TKILL);
    CHECK_ERR(sigtimedwait(&set, NULL, &nothing), EAGAIN); /* not ours */
    PT(pthread_create(&thread, NULL, wait_for_directed, &code));
    OK(kill(getpid(), SIGUSR1)); /* anyone's; nobody else waits */
    PT(pthread_join(thread, NULL));
    CHECK_EQ(code, SI_USER);
}

/* Nothing is lost between two processes that exchange queued signals as fast as they can. */
static void storm(void)
{
    long rounds = scaled(3000);
    block(SIGRTMIN, SIGRTMIN + 1);
    pid_t parent = getpid();
    pid_t child = CHILD({
        sigset_t set = set_of(SIGRTMIN, 0);
        siginfo_t info;
        for (int i = 0; i < rounds; i++) {
            CHECK_EQ(sigwaitinfo(&set, &info), SIGRTMIN);
            CHECK_EQ(info.si_value.sival_int, i);
            OK(sigqueue(parent, SIGRTMIN + 1, (union sigval){.sival_int = i + 1}));
        }
    });
    sigset_t set = set_of(SIGRTMIN + 1, 0);
    siginfo_t info;
    for (int i = 0; i < rounds; i++) {
        OK(sigqueue(child, SIGRTMIN, (union sigval){.sival_int = i}));
        CHECK_EQ(sigwaitinfo(&set, &info), SIGRTMIN + 1);
        CHECK_EQ(info.si_value.sival_int, i + 1);
    }
    JOIN(child);
}

/* --- register state --- */

static int width;
static struct vectors clobber, scratch;
static volatile unsigned handler_mxcsr;

static void clobber_state(int signal, siginfo_t *info, void *context)
{
    record(signal, info, context);
    __asm__ volatile("stmxcsr %0" : "=m"(handler_mxcsr));
    with_vectors(width, &clobber, &scratch, 1, -1, 0, 0, 0);
    __asm__ volatile("fninit\n fldpi\n fldz\n fld1\n ldmxcsr %0" : : "m"((unsigned){0x1f80}));
}

static void vector_state(void)
{
    width = vector_bytes();
    memset(&clobber, 0xee, sizeof clobber);
    set_handler(SIGUSR1, clobber_state, 0);
    set_handler(SIGALRM, clobber_state, 0);
    struct vectors in = {0}, out = {0};
    uint64_t seed = 99;
    for (size_t i = 0; i < sizeof in.bytes; i++)
        in.bytes[i] = (uint8_t)next_random(&seed);
    unsigned rounding = 0x5f80, got;
    unsigned short control = 0x0f7f, control_got;
    double x87[3] = {1.25, -3e100, 0.1}, x87_got[3];
    __asm__ volatile("ldmxcsr %0\n fninit\n fldcw %1\n fldl %2\n fldl %3\n fldl %4"
                     : : "m"(rounding), "m"(control), "m"(x87[0]), "m"(x87[1]), "m"(x87[2]));
    long tid = syscall(SYS_gettid), pid = getpid();
    /* tgkill of oneself: the handler has run before the call returns. */
    OK(with_vectors(width, &in, &out, 1, SYS_tgkill, pid, tid, SIGUSR1));
    __asm__ volatile("stmxcsr %0\n fnstcw %1\n fstpl %4\n fstpl %3\n fstpl %2"
                     : "=m"(got), "=m"(control_got), "=m"(x87_got[0]), "=m"(x87_got[1]), "=m"(x87_got[2]));
    __asm__ volatile("ldmxcsr %0\n fninit" : : "m"((unsigned){0x1f80}));
    CHECK_EQ(count, 1);
    CHECK_EQ(memcmp(in.bytes, out.bytes, vectors_used(width)), 0);
    CHECK_EQ(got, rounding);
    CHECK_EQ(handler_mxcsr, 0x1f80); /* a handler starts with a clean unit */
    CHECK_EQ(control_got, control);
    CHECK_EQ(memcmp(x87, x87_got, sizeof x87), 0);
    count = 0;
    tick_every_us(1000); /* and at places nobody chose */
    while (count < 10) {
        memset(&out, 0, sizeof out);
        with_vectors(width, &in, &out, 20000, -1, 0, 0, 0);
        CHECK_EQ(memcmp(in.bytes, out.bytes, vectors_used(width)), 0);
    }
    tick_every_us(0);
}

enum { XSAVE_MAGIC = 0x46505853, SOFTWARE_BYTES = 464, YMM_HIGH = 576 };

static void edit_context(int signal, siginfo_t *info, void *context)
{
    record(signal, info, context);
    mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
    if (signal == SIGILL)
        machine->gregs[REG_RIP] += 2;
    machine->gregs[REG_RBX] = 0x1122334455667788;
    machine->gregs[REG_R15] ^= 0xff;
    machine->fpregs->mxcsr = 0x3f80;
    memset(&machine->fpregs->_xmm[3], 0xab, 16);
    uint32_t magic;
    memcpy(&magic, (char *)machine->fpregs + SOFTWARE_BYTES, sizeof magic);
    if (width >= 32 && magic == XSAVE_MAGIC)
        memset((char *)machine->fpregs + YMM_HIGH + 3 * 16, 0xcd, 16);
}

static void context_edits(void)
{
    width = vector_bytes();
    set_handler(SIGILL, edit_context, 0);
    long rbx = 1, rcx = 7;
    register long r15 __asm__("r15") = 0x0f;
    unsigned mxcsr;
    __asm__ volatile("ud2" : "+b"(rbx), "+r"(r15), "+c"(rcx) : : "memory");
    __asm__ volatile("stmxcsr %0\n ldmxcsr %1" : "=m"(mxcsr) : "m"((unsigned){0x1f80}));
    CHECK_EQ(count, 1);
    CHECK_EQ(rbx, 0x1122334455667788);
    CHECK_EQ(r15, 0xf0);
    CHECK_EQ(rcx, 7);
    CHECK_EQ(mxcsr, 0x3f80);
    set_handler(SIGUSR1, edit_context, 0);
    struct vectors in = {0}, out = {0};
    memset(&in, 0x11, sizeof in);
    /* rbx and r15 are changed under the compiler's feet, so they are saved around the call. */
    __asm__ volatile("" : : : "rbx", "r15");
    long number = SYS_tgkill;
    if (width >= 32)
        __asm__ volatile("vmovdqu (%[in]), %%ymm3\n syscall\n vmovdqu %%ymm3, (%[out])\n vzeroupper"
                         : "+a"(number)
                         : [in] "r"(in.bytes), [out] "r"(out.bytes), "D"((long)getpid()), "S"(syscall(SYS_gettid)),
                           "d"((long)SIGUSR1)
                         : "rcx", "r11", "rbx", "r15", "memory", "xmm3");
    else
        __asm__ volatile("movdqu (%[in]), %%xmm3\n syscall\n movdqu %%xmm3, (%[out])"
                         : "+a"(number)
                         : [in] "r"(in.bytes), [out] "r"(out.bytes), "D"((long)getpid()), "S"(syscall(SYS_gettid)),
                           "d"((long)SIGUSR1)
                         : "rcx", "r11", "rbx", "r15", "memory", "xmm3");
    __asm__ volatile("ldmxcsr %0" : : "m"((unsigned){0x1f80}));
    OK(number);
    CHECK_EQ(count, 2);
    for (int i = 0; i < (width >= 32 ? 32 : 16); i++)
        CHECK_EQ(out.bytes[i], i < 16 ? 0xab : 0xcd);
}

static void jumps(void)
{
    set_handler(SIGUSR1, escape, 0);
    volatile int jumped = 0;
    for (volatile int i = 0; i < 1000; i++)
        if (sigsetjmp(resume, 1) == 0) {
            raise(SIGUSR1);
            FAIL("not reached");
        } else {
            jumped++;
        }
    CHECK_EQ(jumped, 1000);
    sigset_t mask;
    OK(sigprocmask(SIG_SETMASK, NULL, &mask));
    CHECK(!sigismember(&mask, SIGUSR1));
}

/* --- sigreturn as an enemy uses it --- */

static int spoil;

static void spoil_context(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
    switch (spoil) {
    case 0: machine->gregs[REG_RIP] = (greg_t)0xffffffff81000000; break;
    case 1: machine->gregs[REG_RIP] = (greg_t)0x8000000000000000; break;
    case 2: machine->gregs[REG_RIP] = 0; break;
    case 3: machine->gregs[REG_CSGSFS] = (machine->gregs[REG_CSGSFS] & ~0xffffL) | 0x10; break;
    case 4: machine->gregs[REG_CSGSFS] = (machine->gregs[REG_CSGSFS] & ~0xffffL) | 0xffff; break;
    case 5: machine->fpregs = (void *)8; break;
    case 6: machine->fpregs = (void *)0xffff888000000000; break;
    case 7: memset(context, 0xff, sizeof(ucontext_t)); break;
    default: memset(context, 0, sizeof(ucontext_t)); break;
    }
}

static void bad_returns(void)
{
    for (spoil = 0; spoil < 9; spoil++)
        CHECK_KILLED(CHILD({
                         set_handler(SIGUSR1, spoil_context, 0);
                         raise(SIGUSR1);
                         for (;;)
                             pause();
                     }),
                     SIGSEGV);
    static const unsigned long stacks_wanted[] = {8, 0x8000000000000000, 0xffff888000000000, 0x7ffffffff000};
    for (size_t i = 0; i < sizeof stacks_wanted / sizeof *stacks_wanted; i++)
        CHECK_KILLED(CHILD(__asm__ volatile("mov %0, %%rsp\n syscall"
                                            : : "r"(stacks_wanted[i]), "a"((long)SYS_rt_sigreturn) : "memory")),
                     SIGSEGV);
    uint64_t seed = 4242;
    for (int i = 0; i < scaled(30); i++) {
        uint64_t start = seed;
        CHECK_KILLED(CHILD({
                         static uint64_t frame[1024];
                         seed = start;
                         for (size_t w = 0; w < 1024; w++)
                             frame[w] = next_random(&seed) | 0x8000000000000000UL;
                         __asm__ volatile("mov %0, %%rsp\n syscall"
                                          : : "r"(&frame[64]), "a"((long)SYS_rt_sigreturn) : "memory");
                     }),
                     SIGSEGV);
        next_random(&seed);
    }
}

static void raise_privilege(int signal, siginfo_t *info, void *context)
{
    record(signal, info, context);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= 0x3000 | 0x20000; /* I/O privilege, virtual 8086 */
}

static void flag_return(void)
{
    set_handler(SIGUSR1, raise_privilege, 0);
    raise(SIGUSR1);
    CHECK_EQ(count, 1);
    unsigned long now;
    __asm__ volatile("sub $128, %%rsp\n pushf\n pop %0\n add $128, %%rsp" : "=r"(now) : : "memory", "cc");
    CHECK_EQ(now & (0x3000 | 0x20000), 0);
    CHECK_EQ(now & 0x200, 0x200);
}

/* --- timers --- */

static void burn_until(int wanted)
{
    int64_t end = now_ns(CLOCK_PROCESS_CPUTIME_ID) + 5000000000LL;
    while (count < wanted && now_ns(CLOCK_PROCESS_CPUTIME_ID) < end)
        for (volatile int i = 0; i < 1000; i++)
            ;
    CHECK(count >= wanted);
}

static void interval_timers(void)
{
    struct itimerval timer = {{0, 5000}, {0, 5000}}, off = {0}, now;
    set_handler(SIGALRM, record, 0);
    int64_t start = now_ns(CLOCK_MONOTONIC);
    OK(setitimer(ITIMER_REAL, &timer, NULL));
    while (count < 5)
        CHECK_ERR(pause(), EINTR);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 25000000 - 5000000);
    OK(getitimer(ITIMER_REAL, &now));
    CHECK(now.it_interval.tv_usec == 5000 && now.it_value.tv_sec == 0 && now.it_value.tv_usec <= 5000);
    OK(setitimer(ITIMER_REAL, &off, &now));
    CHECK_EQ(now.it_interval.tv_usec, 5000);
    int before = count;
    sleep_ms(20);
    CHECK_EQ(count, before);
    CHECK_EQ(last_info.si_code, SI_KERNEL);

    set_handler(SIGVTALRM, record, 0);
    count = 0;
    int64_t cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    OK(setitimer(ITIMER_VIRTUAL, &timer, NULL));
    sleep_ms(30);
    CHECK(count <= 1); /* sleeping costs nothing */
    burn_until(3);
    CHECK(last_signal == SIGVTALRM && now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu >= 5000000);
    OK(setitimer(ITIMER_VIRTUAL, &off, NULL));
    set_handler(SIGPROF, record, 0);
    count = 0;
    OK(setitimer(ITIMER_PROF, &timer, NULL));
    burn_until(3);
    CHECK_EQ(last_signal, SIGPROF);
    OK(setitimer(ITIMER_PROF, &off, NULL));
    CHECK_ERR(setitimer(7, &timer, NULL), EINVAL);

    CHECK_EQ(alarm(100), 0);
    unsigned left = alarm(0);
    CHECK(left == 100 || left == 99);
    CHECK_EQ(alarm(0), 0);
    CHECK_KILLED(CHILD({
                     signal(SIGALRM, SIG_DFL);
                     OK(setitimer(ITIMER_REAL, &timer, NULL));
                     for (;;)
                         pause();
                 }),
                 SIGALRM);
    OK(setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {50, 0}}, NULL));
    JOIN(CHILD({
        OK(getitimer(ITIMER_REAL, &now));
        CHECK(now.it_value.tv_sec == 0 && now.it_value.tv_usec == 0); /* not inherited */
    }));
}

static void posix_timers(void)
{
    timer_t id;
    struct itimerspec spec = {{0, 2000000}, {0, 2000000}}, now;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 31};
    sigset_t set = set_of(SIGRTMIN, 0);
    siginfo_t info;
    block(SIGRTMIN, 0);
    OK(timer_create(CLOCK_MONOTONIC, &event, &id));
    OK(timer_settime(id, 0, &spec, NULL));
    CHECK_EQ(sigwaitinfo(&set, &info), SIGRTMIN);
    CHECK(info.si_code == SI_TIMER && info.si_value.sival_int == 31);
    sleep_ms(30);
    CHECK_EQ(sigwaitinfo(&set, &info), SIGRTMIN); /* one signal, the rest counted */
    CHECK(timer_getoverrun(id) >= 5);
    CHECK(info.si_overrun >= 0);
    OK(timer_gettime(id, &now));
    CHECK(now.it_interval.tv_nsec == 2000000 && now.it_value.tv_sec == 0);
    OK(timer_delete(id));
    CHECK_ERR(syscall(SYS_timer_delete, 12345), EINVAL);

    event.sigev_notify = SIGEV_THREAD_ID;
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    while (sigtimedwait(&set, NULL, &(struct timespec){0, 0}) > 0)
        ;
    OK(timer_create(CLOCK_REALTIME, &event, &id));
    struct timespec at;
    OK(clock_gettime(CLOCK_REALTIME, &at));
    at.tv_nsec += 10000000;
    if (at.tv_nsec >= 1000000000)
        at.tv_sec++, at.tv_nsec -= 1000000000;
    spec = (struct itimerspec){{0, 0}, at};
    OK(timer_settime(id, TIMER_ABSTIME, &spec, NULL));
    CHECK_EQ(sigwaitinfo(&set, &info), SIGRTMIN);
    CHECK(now_ns(CLOCK_REALTIME) >= at.tv_sec * 1000000000LL + at.tv_nsec);
    OK(timer_delete(id));
    event._sigev_un._tid = 1 << 30;
    CHECK_ERR(timer_create(CLOCK_REALTIME, &event, &id), EINVAL);

    event = (struct sigevent){.sigev_notify = SIGEV_NONE};
    OK(timer_create(CLOCK_MONOTONIC, &event, &id));
    spec = (struct itimerspec){{0, 0}, {0, 5000000}};
    OK(timer_settime(id, 0, &spec, NULL));
    OK(timer_gettime(id, &now));
    CHECK(now.it_value.tv_nsec > 0 && now.it_value.tv_nsec <= 5000000);
    sleep_ms(10);
    OK(timer_gettime(id, &now));
    CHECK(now.it_value.tv_sec == 0 && now.it_value.tv_nsec == 0);
    OK(timer_delete(id));
    CHECK_ERR(timer_create(99, NULL, &id), EINVAL);
}

/* --- ends --- */

static void broken_pipe(void)
{
    int ends[2];
    OK(pipe(ends));
    OK(close(ends[0]));
    set_handler(SIGPIPE, record, 0);
    CHECK_ERR(write(ends[1], "x", 1), EPIPE);
    CHECK(count == 1 && last_info.si_code == SI_USER && last_info.si_pid == getpid());
    int sockets[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    OK(close(sockets[0]));
    CHECK_ERR(send(sockets[1], "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(count, 1);
    CHECK_ERR(send(sockets[1], "x", 1, 0), EPIPE);
    CHECK_EQ(count, 2);
    signal(SIGPIPE, SIG_DFL);
    CHECK_KILLED(CHILD(if (write(ends[1], "x", 1)) {}), SIGPIPE);
}

static volatile long *counters;

static void *count_up(void *index)
{
    for (;;)
        counters[(long)index * 8]++;
    return NULL;
}

/* A stopped process stands still in all its threads. */
static void stopped_threads(void)
{
    counters = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = CHILD({
        pthread_t thread;
        for (long i = 0; i < 3; i++)
            PT(pthread_create(&thread, NULL, count_up, (void *)i));
        for (;;)
            pause();
    });
    for (long i = 0; i < 3; i++)
        while (counters[i * 8] == 0)
            sleep_ms(1);
    OK(kill(child, SIGSTOP));
    CHECK_EQ(waitpid(child, NULL, WUNTRACED), child);
    long before[3];
    for (long i = 0; i < 3; i++)
        before[i] = counters[i * 8];
    sleep_ms(30);
    for (long i = 0; i < 3; i++)
        CHECK_EQ(counters[i * 8], before[i]);
    OK(kill(child, SIGCONT));
    for (long i = 0; i < 3; i++)
        while (counters[i * 8] == before[i])
            sleep_ms(1);
    OK(kill(child, SIGKILL));
    CHECK_KILLED(child, SIGKILL);
    child = CHILD({ /* nothing holds SIGKILL up */
        sigset_t all;
        sigfillset(&all);
        OK(sigprocmask(SIG_SETMASK, &all, NULL));
        for (;;)
            sigwaitinfo(&(sigset_t){0}, NULL);
    });
    wait_until_asleep(child);
    OK(kill(child, SIGTERM));
    OK(kill(child, SIGKILL));
    CHECK_KILLED(child, SIGKILL);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(senders),      TEST(children),      TEST(faults),          TEST(interrupted),  TEST(restarted),
        TEST(stacks),       TEST(flags),         TEST(masks),           TEST(waiting),      TEST(queues),
        TEST(directed),     TEST(storm),         TEST(vector_state),    TEST(context_edits), TEST(jumps),
        TEST(bad_returns),  TEST(flag_return),   TEST(interval_timers), TEST(posix_timers), TEST(broken_pipe),
        TEST(stopped_threads),
    };
    return RUN_TESTS("signals", tests, argc, argv);
}
