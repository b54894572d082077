/* Restartable sequences: registration and its errors, the CPU in a thread's word, sequences that signals and other threads
 * interrupt, bad memory, fork, exec and threads. The C library's own registration is turned off by running once more. */
#include "check.h"
#include "restartable.h"
#include <limits.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#define PAGE 4096

struct sequence {
    uint32_t version, flags;
    uint64_t start, length, abort;
} __attribute__((aligned(32)));

static __thread struct area own;
static volatile int signals;
static volatile uint64_t seen_rip;

static long rseq(void *area, uint32_t length, int flags, uint32_t signature)
{
    return syscall(SYS_rseq, area, length, flags, signature);
}

static unsigned cpu_now(void)
{
    unsigned cpu = -1;
    OK(syscall(SYS_getcpu, &cpu, NULL, NULL));
    return cpu;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    OK(sched_setaffinity(0, sizeof set, &set));
}

static int cpus_of(int *found, int most)
{
    cpu_set_t set;
    int count = 0;
    OK(sched_getaffinity(0, sizeof set, &set));
    for (int cpu = 0; cpu < CPU_SETSIZE && count < most; cpu++)
        if (CPU_ISSET(cpu, &set))
            found[count++] = cpu;
    return count;
}

extern char spin_start[], spin_abort[];

/* Spins in a sequence until it is interrupted (2), or for `rounds` rounds (0). */
static __attribute__((noinline)) int spin(volatile struct area *area, long rounds)
{
    int result;
    asm volatile(".pushsection .data\n\t.balign 32\n"
                 "3:\t.long 0, 0\n\t.quad spin_start, 2f - spin_start, spin_abort\n\t.popsection\n\t"
                 "leaq 3b(%%rip), %%rax\n\tmovq %%rax, 8(%[area])\n"
                 "spin_start:\n1:\tpause\n\tdecq %[rounds]\n\tjnz 1b\n"
                 "2:\tmovl $0, %[result]\n\tjmp 5f\n\t"
                 ".byte 0x0f, 0xb9, 0x3d\n\t.long %c[signature]\n"
                 "spin_abort:\n\tmovl $2, %[result]\n"
                 "5:\n"
                 : [result] "=r"(result), [rounds] "+r"(rounds)
                 : [area] "r"(area), [signature] "i"(SIGNATURE)
                 : "rax", "memory", "cc");
    return result;
}

static void note_signal(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    seen_rip = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    signals++;
}

static void handle(int number)
{
    struct sigaction action = {.sa_sigaction = note_signal, .sa_flags = SA_SIGINFO};
    OK(sigaction(number, &action, NULL));
}

static void registration(void)
{
    if (getauxval(27)) {
        CHECK(getauxval(27) >= 20);
        CHECK(getauxval(28) >= 32);
    }
    char *other = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_ERR(rseq(&own, 16, 0, SIGNATURE), EINVAL);
    CHECK_ERR(rseq((char *)&own + 8, 32, 0, SIGNATURE), EINVAL);
    CHECK_ERR(rseq(&own, 32, 2, SIGNATURE), EINVAL);
    CHECK_ERR(rseq(&own, 32, 1, SIGNATURE), EINVAL);
    CHECK_ERR(rseq((void *)0xffff800000000000ul, 32, 0, SIGNATURE), EFAULT);
    own.cpu = -1;
    OK(rseq(&own, 32, 0, SIGNATURE));
    CHECK_ERR(rseq(&own, 32, 0, SIGNATURE), EBUSY);
    CHECK_ERR(rseq(&own, 32, 0, SIGNATURE + 1), EPERM);
    CHECK_ERR(rseq(&own, 64, 0, SIGNATURE), EINVAL);
    CHECK_ERR(rseq(other, 32, 0, SIGNATURE), EINVAL);
    CHECK_ERR(rseq(&own, 32, 1, SIGNATURE + 1), EPERM);
    CHECK_ERR(rseq(other, 32, 1, SIGNATURE), EINVAL);
    CHECK_ERR(rseq(&own, 32, 3, SIGNATURE), EINVAL);
    CHECK((int)own.cpu >= 0 && own.cpu == own.cpu_start && own.node == 0);
    OK(rseq(&own, 32, 1, SIGNATURE));
    CHECK((int)own.cpu == -1 && own.cpu_start == 0);
    CHECK_ERR(rseq(&own, 32, 1, SIGNATURE), EINVAL);
    if (kernel_is(6, 3)) {
        OK(rseq(other, 64, 0, 1));
        OK(rseq(other, 64, 1, 1));
    }
}

static void cpu_follows(void)
{
    int cpus[64], count = cpus_of(cpus, 64);
    OK(rseq(&own, 32, 0, SIGNATURE));
    for (int round = 0; round < 20; round++) {
        pin(cpus[round % count]);
        sched_yield();
        volatile struct area *area = &own;
        unsigned before, cpu, tries = 0;
        do { /* it may have moved meanwhile */
            before = area->cpu;
            cpu = cpu_now();
        } while ((before != cpu || area->cpu != cpu || area->cpu_start != cpu) && ++tries < 1000);
        CHECK(tries < 1000);
    }
}

static void signal_aborts(void)
{
    OK(rseq(&own, 32, 0, SIGNATURE));
    handle(SIGALRM);
    struct itimerval often = {{0, 2000}, {0, 2000}};
    OK(setitimer(ITIMER_REAL, &often, NULL));
    int aborted = 0, before;
    /* On a busy machine other threads may end one sequence after the other, and no signal come in between. */
    for (int round = 0; round < 20 || (aborted == 0 && round < 100000); round++) {
        do {
            before = signals;
            seen_rip = 0;
        } while (spin(&own, 100000000) == 0);
        CHECK_EQ(((volatile struct area *)&own)->sequence, 0);
        /* Another thread may have been the reason as well. */
        if (signals != before && seen_rip == (uint64_t)spin_abort)
            aborted++;
    }
    CHECK(aborted > 0);
    /* Outside of a sequence nothing is changed. */
    struct itimerval never = {{0, 0}, {0, 0}};
    OK(setitimer(ITIMER_REAL, &never, NULL));
    OK(raise(SIGALRM));
    CHECK(seen_rip != (uint64_t)spin_abort);
}

static void preemption_aborts(void)
{
    int cpu;
    cpus_of(&cpu, 1);
    pin(cpu);
    pid_t other = CHILD(for (;;) { asm volatile("pause"); });
    OK(rseq(&own, 32, 0, SIGNATURE));
    for (int round = 0; round < 3; round++)
        while (spin(&own, 100000000) == 0) {}
    OK(kill(other, SIGKILL));
    CHECK_KILLED(other, SIGKILL);
}

/* Nobody computes for ever in one: a thread that nobody is in the way of loses it as well. */
static void nobody_stays(void)
{
    OK(rseq(&own, 32, 0, SIGNATURE));
    for (int round = 0; round < 3; round++)
        CHECK_EQ(spin(&own, LONG_MAX), 2);
}

enum { THREADS = 6, SLOTS = 64 };
static struct { volatile long count; char pad[56]; } slots[SLOTS];
static long rounds;

static void *adder(void *unused)
{
    OK(rseq(&own, sizeof own, 0, SIGNATURE));
    for (long i = 0; i < rounds; i++) {
        volatile struct area *area = &own;
        for (;;) {
            uint32_t cpu = area->cpu_start;
            CHECK(cpu < SLOTS);
            if (add_on(area, &slots[cpu].count, cpu) == 0)
                break;
        }
    }
    return unused;
}

static void counters_of_cpus(void)
{
    pthread_t threads[THREADS];
    rounds = scaled(300000);
    for (int i = 0; i < THREADS; i++)
        PT(pthread_create(&threads[i], NULL, adder, NULL));
    for (int i = 0; i < THREADS; i++)
        PT(pthread_join(threads[i], NULL));
    long sum = 0;
    for (int i = 0; i < SLOTS; i++)
        sum += slots[i].count;
    CHECK_EQ(sum, THREADS * rounds);
}

/* A sequence that may not be ends the program as soon as it is looked at. */
static void with_sequence(const struct sequence *sequence)
{
    OK(rseq(&own, 32, 0, SIGNATURE));
    handle(SIGUSR1);
    handle(SIGSEGV);
    ((volatile struct area *)&own)->sequence = (uint64_t)sequence;
    kill(getpid(), SIGUSR1);
    sleep_ms(1);
    _exit(3);
}

static void bad_sequences(void)
{
    static char code[64] __attribute__((aligned(32)));
    memcpy(code + 28, &(uint32_t){SIGNATURE}, 4);
    uint64_t at = (uint64_t)code, edge = 0x7ffffffff000;
    struct sequence good = {0, 0, at, 16, at + 32};
    struct sequence bad[] = {
        {1, 0, at, 16, at + 32}, {0, 0, at, 16, at + 33},        {0, 0, at, 16, at + 8},  {0, 0, edge, 16, at + 32},
        {0, 0, at, -1, at + 32}, {0, 0, at, 16, ~0ul},           {0, 0, at, edge, at + 32}, {0, 0, at, 16, 4},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_KILLED(CHILD(with_sequence(&bad[i])), SIGSEGV);
    CHECK_KILLED(CHILD(with_sequence((void *)64)), SIGSEGV);
    CHECK_KILLED(CHILD(with_sequence((void *)0xffff800000000000ul)), SIGSEGV);
    int status = status_of(CHILD(with_sequence(&good)));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

static void memory_that_is_gone(void)
{
    CHECK_KILLED(CHILD({
        char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        OK(rseq(page, 32, 0, SIGNATURE));
        handle(SIGUSR1);
        sleep_ms(1);
        OK(munmap(page, PAGE));
        kill(getpid(), SIGUSR1);
        sleep_ms(1);
        _exit(3);
    }), SIGSEGV);
}

static void *fresh(void *unused)
{
    CHECK_ERR(rseq(&own, 32, 1, SIGNATURE), EINVAL);
    OK(rseq(&own, 32, 0, SIGNATURE));
    return unused;
}

static void who_inherits(void)
{
    OK(rseq(&own, 32, 0, SIGNATURE));
    JOIN(CHILD({
        CHECK_ERR(rseq(&own, 32, 0, SIGNATURE), EBUSY);
        CHECK_EQ(((volatile struct area *)&own)->cpu, cpu_now());
        OK(rseq(&own, 32, 1, SIGNATURE));
    }));
    pthread_t thread;
    PT(pthread_create(&thread, NULL, fresh, NULL));
    PT(pthread_join(thread, NULL));
    JOIN(CHILD({
        OK(dup2(FD(open("/dev/null", O_WRONLY)), 1) < 0);
        execl("/proc/self/exe", "rseq", "--no-fork", "registration", NULL);
        FAIL("exec");
    }));
}

/* Random words in the structure and the call: whatever happens, happens to the process alone. */
static void at_random(void)
{
    for (int round = 0; round < scaled(60); round++) {
        pid_t pid = CHILD({
            uint64_t seed = 77 + round;
            handle(SIGUSR1);
            struct area *area = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (int i = 0; i < 20; i++) {
                rseq((char *)area + next_random(&seed) % 3 * 16, next_random(&seed) % 100, next_random(&seed) % 3, 5);
                uint64_t *words = (uint64_t *)area;
                words[next_random(&seed) % 8] = next_random(&seed) % 2 ? next_random(&seed) : (uint64_t)(words + 8);
                words[8 + next_random(&seed) % 4] = next_random(&seed) >> next_random(&seed) % 64;
                kill(getpid(), SIGUSR1);
                sched_yield();
            }
        });
        int status = status_of(pid);
        CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
    }
}

int main(int argc, char **argv)
{
    if (!getenv("GLIBC_TUNABLES")) {
        setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
        execv("/proc/self/exe", argv);
        FAIL("exec");
    }
    static const struct test tests[] = {
        TEST(registration),     TEST(cpu_follows),   TEST(signal_aborts),       TEST(preemption_aborts),
        TEST(counters_of_cpus), TEST(bad_sequences), TEST(memory_that_is_gone), TEST(who_inherits),
        TEST(at_random),        TEST(nobody_stays),
    };
    return RUN_TESTS("rseq", tests, argc, argv);
}
