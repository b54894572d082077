/* Threads on the CPUs that they may run on (sched_setaffinity(2)). */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { CPUS_MAX = 1024, LONG_BITS = 8 * sizeof(long), WORDS = CPUS_MAX / LONG_BITS };

struct mask {
    unsigned long bits[WORDS];
};

/* The CPUs there are for this process, by number. */
static int cpus[CPUS_MAX], cpu_count;

static void find_cpus(void)
{
    struct mask mask = {0};
    CHECK(syscall(SYS_sched_getaffinity, 0, sizeof mask, &mask) > 0);
    for (int cpu = 0; cpu < CPUS_MAX; cpu++)
        if (mask.bits[cpu / LONG_BITS] >> (cpu % LONG_BITS) & 1)
            cpus[cpu_count++] = cpu;
    CHECK(cpu_count > 0);
}

static struct mask mask_of(int cpu)
{
    struct mask mask = {0};
    mask.bits[cpu / LONG_BITS] = 1ul << (cpu % LONG_BITS);
    return mask;
}

static int bind_to(pid_t tid, int cpu)
{
    struct mask mask = mask_of(cpu);
    return (int)syscall(SYS_sched_setaffinity, tid, sizeof mask, &mask);
}

static int bind_to_all(pid_t tid)
{
    struct mask mask = {0};
    for (int i = 0; i < cpu_count; i++)
        mask.bits[cpus[i] / LONG_BITS] |= 1ul << (cpus[i] % LONG_BITS);
    return (int)syscall(SYS_sched_setaffinity, tid, sizeof mask, &mask);
}

static int here(void)
{
    unsigned cpu = ~0u;
    OK(syscall(SYS_getcpu, &cpu, NULL, NULL));
    return (int)cpu;
}

/* The call and the C library's word (`rseq(2)`) say the same of a thread that cannot move. */
static void check_is_on(int cpu)
{
    CHECK_EQ(here(), cpu);
    CHECK_EQ(sched_getcpu(), cpu);
}

static void the_caller_moves_at_once(void)
{
    for (int turn = 0; turn < 300; turn++) {
        int cpu = cpus[turn % cpu_count];
        OK(bind_to(0, cpu));
        check_is_on(cpu);
        if (turn % 10 == 0) {
            sched_yield();
            check_is_on(cpu);
            usleep(100);
            check_is_on(cpu);
        }
    }
    OK(bind_to_all(0));
}

/* Before it has said anything it is nowhere. */
static atomic_int spinner_cpu = -1, spinner_tid;
static atomic_bool stops;

static void *spins(void *unused)
{
    spinner_tid = (int)gettid();
    while (!stops) {
        spinner_cpu = here();
        for (volatile int i = 0; i < 1000; i++)
            ;
    }
    return unused;
}

/* A thread that runs all the time is on its CPU soon, and stays. */
static void another_thread_moves(void)
{
    pthread_t thread;
    PT(pthread_create(&thread, NULL, spins, NULL));
    while (!spinner_tid)
        sched_yield();
    for (int turn = 0; turn < 100; turn++) {
        int cpu = cpus[turn % cpu_count];
        OK(bind_to(spinner_tid, cpu));
        while (spinner_cpu != cpu)
            sched_yield();
        for (int look = 0; look < 50; look++) {
            CHECK_EQ(spinner_cpu, cpu);
            if (look % 10 == 0)
                sched_yield();
        }
    }
    stops = true;
    PT(pthread_join(thread, NULL));
}

static atomic_int pipe_ends[2];

/* A thread that is woken again and again is on its CPU each time. */
static void *wakes(void *unused)
{
    spinner_tid = (int)gettid();
    char byte;
    while (read(pipe_ends[0], &byte, 1) == 1)
        spinner_cpu = here();
    return unused;
}

static void wake_ups_choose_an_allowed_cpu(void)
{
    int ends[2];
    OK(pipe(ends));
    pipe_ends[0] = ends[0];
    pipe_ends[1] = ends[1];
    pthread_t thread;
    PT(pthread_create(&thread, NULL, wakes, NULL));
    while (!spinner_tid)
        sched_yield();
    for (int turn = 0; turn < 200; turn++) {
        int cpu = cpus[turn % cpu_count];
        OK(bind_to(spinner_tid, cpu));
        spinner_cpu = -1;
        CHECK_EQ(write(ends[1], "x", 1), 1);
        while (spinner_cpu == -1)
            sched_yield();
        CHECK_EQ(spinner_cpu, cpu);
        if (turn % 8 == 0)
            usleep(200); /* all CPUs may be idle by then */
    }
    close(ends[1]);
    PT(pthread_join(thread, NULL));
}

static void children_and_programs_inherit(void)
{
    int cpu = cpus[cpu_count - 1];
    OK(bind_to(0, cpu));
    struct mask wanted_mask = mask_of(cpu);
    for (int i = 0; i < 20; i++)
        JOIN(CHILD({
            struct mask mask = {0};
            check_is_on(cpu);
            CHECK(syscall(SYS_sched_getaffinity, 0, sizeof mask, &mask) > 0);
            CHECK(!memcmp(&mask, &wanted_mask, sizeof mask));
        }));
    char number[16];
    snprintf(number, sizeof number, "%d", cpu);
    JOIN(CHILD({
        char *arguments[] = {"affinity", "--is-on", number, NULL};
        execv("/proc/self/exe", arguments);
        FAIL("execv");
    }));
    /* As /proc tells it. */
    char line[64] = "", want[64], path[] = "/proc/thread-self/status";
    FILE *file = fopen(path, "r");
    CHECK(file);
    while (strncmp(line, "Cpus_allowed_list:", 18) && fgets(line, sizeof line, file))
        ;
    fclose(file);
    snprintf(want, sizeof want, "Cpus_allowed_list:\t%d\n", cpu);
    CHECK(!strcmp(line, want));
    OK(bind_to_all(0));
}

/* More threads than CPUs, all bound to one, while another thread that may run there as well takes turns with them: each goes on. */
static atomic_long steps[8];

static void *steps_on(void *number)
{
    OK(bind_to(0, cpus[0]));
    while (!stops) {
        CHECK_EQ(here(), cpus[0]);
        steps[(long)number]++;
    }
    return NULL;
}

static void nobody_starves(void)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        PT(pthread_create(&threads[i], NULL, steps_on, (void *)i));
    for (int i = 0; i < THREADS; i++)
        while (steps[i] < 100)
            usleep(1000);
    stops = true;
    for (int i = 0; i < THREADS; i++)
        PT(pthread_join(threads[i], NULL));
}

/* A CPU that finds only tasks of others does not look for them all the time. */
static void *hogs(void *unused)
{
    OK(bind_to(0, cpus[0]));
    while (!stops)
        ;
    return unused;
}

static void all_bound_to_one_cpu(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        PT(pthread_create(&threads[i], NULL, hogs, NULL));
    usleep(50000);
    /* The free CPU wakes up for its timers, and runs who is bound to it. */
    if (cpu_count > 1)
        for (int turn = 0; turn < 50; turn++) {
            OK(bind_to(0, cpus[1]));
            usleep(100);
            CHECK_EQ(here(), cpus[1]);
        }
    stops = true;
    for (int i = 0; i < THREADS; i++)
        PT(pthread_join(threads[i], NULL));
    OK(bind_to_all(0));
}

/* Masks change at random while threads sleep, wake, fork and end. Others bind these threads, and not their children, which may
   have the numbers in between. */
enum { AT_RANDOM = 6 };
static atomic_int bound_at_random[AT_RANDOM];

static void *is_bound_at_random(void *index)
{
    unsigned seed = 1 + (unsigned)(uintptr_t)index;
    pid_t me = gettid();
    bound_at_random[(uintptr_t)index] = me;
    for (int i = 0; i < 150; i++) {
        int cpu = cpus[rand_r(&seed) % cpu_count];
        switch (rand_r(&seed) % 5) {
        case 0:
            OK(bind_to(me, cpu));
            break;
        case 1:
            OK(bind_to_all(me));
            break;
        case 2:
            usleep(50);
            break;
        case 3:
            sched_yield();
            break;
        default:
            if (i % 10 == 0)
                JOIN(CHILD({
                    OK(bind_to(0, cpu));
                    check_is_on(cpu);
                }));
        }
    }
    return NULL;
}

static void masks_at_random(void)
{
    pthread_t threads[AT_RANDOM];
    for (uintptr_t i = 0; i < AT_RANDOM; i++)
        PT(pthread_create(&threads[i], NULL, is_bound_at_random, (void *)i));
    /* Somebody else binds them, too. */
    unsigned seed = 99;
    for (int i = 0; i < 200; i++) {
        pid_t tid = bound_at_random[rand_r(&seed) % AT_RANDOM];
        if (tid != 0 && bind_to(tid, cpus[rand_r(&seed) % cpu_count]) != 0)
            CHECK_EQ(errno, ESRCH);
    }
    for (int i = 0; i < AT_RANDOM; i++)
        PT(pthread_join(threads[i], NULL));
}

static void pauses_and_mutexes(void)
{
    /* Two processes hand a byte to and fro, each on a CPU of its own. */
    int there[2], back[2];
    OK(pipe(there));
    OK(pipe(back));
    pid_t child = CHILD({
        OK(bind_to(0, cpus[0]));
        char byte;
        close(there[1]);
        while (read(there[0], &byte, 1) == 1) {
            CHECK_EQ(here(), cpus[0]);
            CHECK_EQ(write(back[1], &byte, 1), 1);
        }
    });
    OK(bind_to(0, cpus[cpu_count - 1]));
    for (int i = 0; i < 300; i++) {
        char byte = 'x';
        CHECK_EQ(write(there[1], &byte, 1), 1);
        CHECK_EQ(read(back[0], &byte, 1), 1);
        CHECK_EQ(here(), cpus[cpu_count - 1]);
    }
    close(there[1]);
    JOIN(child);
    OK(bind_to_all(0));
}

int main(int argc, char **argv)
{
    find_cpus();
    if (argc == 3 && strcmp(argv[1], "--is-on") == 0) {
        check_is_on(atoi(argv[2]));
        return 0;
    }
    static const struct test tests[] = {
        TEST(the_caller_moves_at_once),
        TEST(another_thread_moves),
        TEST(wake_ups_choose_an_allowed_cpu),
        TEST(children_and_programs_inherit),
        TEST(nobody_starves),
        TEST(all_bound_to_one_cpu),
        TEST(masks_at_random),
        TEST(pauses_and_mutexes),
    };
    return RUN_TESTS("affinity", tests, argc, argv);
}
