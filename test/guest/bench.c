/*
 * Microbenchmarks.  usage: bench [--scale=PERCENT] [--rounds=N] [--file=PATH] [--pin] [NAME...]
 *
 * Prints `NAME ns_per_op` a line, the median of the rounds. --pin keeps all on one processor, so that the two switches
 * measure a switch and not the wake-up of another processor. `bench child` ends at once (what `exec` runs).
 */
#include "check.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>

enum { MOST_ROUNDS = 101, PAGE = 4096, TOUCH_BYTES = 64 << 20 };
static const char *file_path;
static int file, zero, pipe_ends[2];
static char page[PAGE];

static void null_call(long count)
{
    for (long i = 0; i < count; i++)
        syscall(SYS_getppid);
}

static void read_zero(long count)
{
    for (long i = 0; i < count; i++)
        CHECK_EQ(read(zero, page, 1), 1);
}

static void pread_file(long count)
{
    for (long i = 0; i < count; i++)
        CHECK_EQ(pread(file, page, PAGE, (i & 15) * PAGE), PAGE);
}

static void pipe_pair(long count)
{
    for (long i = 0; i < count; i++) {
        CHECK_EQ(write(pipe_ends[1], page, 1), 1);
        CHECK_EQ(read(pipe_ends[0], page, 1), 1);
    }
}

static void open_close(long count)
{
    for (long i = 0; i < count; i++)
        OK(close(FD(open(file_path, O_RDONLY))));
}

static void stat_file(long count)
{
    struct stat info;
    for (long i = 0; i < count; i++)
        OK(stat(file_path, &info));
}

/* One operation is one page of 64 MiB. */
static void touch(long count)
{
    for (long left = count; left > 0; left -= TOUCH_BYTES / PAGE) {
        long pages = left < TOUCH_BYTES / PAGE ? left : TOUCH_BYTES / PAGE;
        char *area = mmap(NULL, TOUCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(area != MAP_FAILED);
        madvise(area, TOUCH_BYTES, MADV_NOHUGEPAGE);
        for (long i = 0; i < pages; i++)
            area[i * PAGE] = 1;
        OK(munmap(area, TOUCH_BYTES));
    }
}

static void map_unmap(long count)
{
    for (long i = 0; i < count; i++) {
        char *area = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(area != MAP_FAILED);
        area[0] = 1;
        OK(munmap(area, PAGE));
    }
}

static void fork_wait(long count)
{
    for (long i = 0; i < count; i++)
        JOIN(CHILD(_exit(0)));
}

static void exec_wait(long count)
{
    static char *const arguments[] = {"bench", "child", NULL};
    for (long i = 0; i < count; i++)
        JOIN(CHILD(execv("/proc/self/exe", arguments)));
}

static void thread_join(long count)
{
    extern void *nothing(void *);
    pthread_t thread;
    for (long i = 0; i < count; i++) {
        PT(pthread_create(&thread, NULL, nothing, NULL));
        PT(pthread_join(thread, NULL));
    }
}

void *nothing(void *argument)
{
    return argument;
}

static void vdso_time(long count)
{
    struct timespec now;
    for (long i = 0; i < count; i++)
        clock_gettime(CLOCK_MONOTONIC, &now);
}

static uint32_t turn;
static long turns;

static void play(uint32_t mine)
{
    for (long i = 0; i < turns; i++) {
        uint32_t now;
        while ((now = __atomic_load_n(&turn, __ATOMIC_ACQUIRE)) != mine)
            syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, now, NULL);
        __atomic_store_n(&turn, !mine, __ATOMIC_RELEASE);
        syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1);
    }
}

static void *play_second(void *unused)
{
    play(1);
    return unused;
}

/* One operation is one hand-over from a thread to the other. */
static void futex_switch(long count)
{
    pthread_t thread;
    turn = 0;
    turns = (count + 1) / 2;
    PT(pthread_create(&thread, NULL, play_second, NULL));
    play(0);
    PT(pthread_join(thread, NULL));
}

/* One operation is one hand-over from a process to the other. */
static void pipe_switch(long count)
{
    int there[2], back[2];
    OK(pipe(there));
    OK(pipe(back));
    long rounds = (count + 1) / 2;
    pid_t child = CHILD(for (long i = 0; i < rounds; i++) {
        CHECK_EQ(read(there[0], page, 1), 1);
        CHECK_EQ(write(back[1], page, 1), 1);
    });
    for (long i = 0; i < rounds; i++) {
        CHECK_EQ(write(there[1], page, 1), 1);
        CHECK_EQ(read(back[0], page, 1), 1);
    }
    JOIN(child);
    for (int i = 0; i < 2; i++)
        close(there[i]), close(back[i]);
}

static volatile int handled;
static void handle(int signal)
{
    (void)signal;
    handled++;
}

static void signal_self(long count)
{
    signal(SIGUSR1, handle);
    for (long i = 0; i < count; i++)
        raise(SIGUSR1);
}

static const struct benchmark {
    const char *name;
    void (*run)(long);
    long count;
} benchmarks[] = {
    {"null", null_call, 100000},      {"read_zero", read_zero, 50000},     {"pread_4k", pread_file, 50000},
    {"pipe", pipe_pair, 30000},       {"open_close", open_close, 10000},   {"stat", stat_file, 20000},
    {"touch", touch, TOUCH_BYTES / PAGE}, {"map_unmap", map_unmap, 5000},  {"fork", fork_wait, 50},
    {"exec", exec_wait, 50},          {"thread", thread_join, 300},        {"vdso", vdso_time, 200000},
    {"futex_switch", futex_switch, 5000}, {"pipe_switch", pipe_switch, 5000}, {"signal", signal_self, 10000},
};

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    int rounds = 5;
    char made[] = "/tmp/bench.XXXXXX";
    bool named = false, known = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "child") == 0)
            return 0;
        if (strncmp(argv[i], "--scale=", 8) == 0)
            scale_percent = atoi(argv[i] + 8);
        else if (strncmp(argv[i], "--rounds=", 9) == 0)
            rounds = atoi(argv[i] + 9);
        else if (strcmp(argv[i], "--pin") == 0) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(sched_getcpu(), &set);
            OK(sched_setaffinity(0, sizeof set, &set));
        } else if (strncmp(argv[i], "--file=", 7) == 0)
            file_path = argv[i] + 7;
        else {
            named = true;
            bool found = false;
            for (size_t b = 0; b < sizeof benchmarks / sizeof *benchmarks; b++)
                found |= strcmp(argv[i], benchmarks[b].name) == 0;
            if (!found)
                dprintf(2, "bench: nothing is called %s\n", argv[i]);
            known &= found;
        }
    }
    if (!known || rounds < 1 || rounds > MOST_ROUNDS)
        return 2;
    if (file_path) {
        file = FD(open(file_path, O_RDONLY));
    } else {
        file = FD(mkstemp(made));
        file_path = made;
        for (int i = 0; i < 16; i++)
            CHECK_EQ(write(file, page, PAGE), PAGE);
    }
    CHECK(lseek(file, 0, SEEK_END) >= 16 * PAGE);
    zero = FD(open("/dev/zero", O_RDONLY));
    OK(pipe(pipe_ends));
    for (size_t b = 0; b < sizeof benchmarks / sizeof *benchmarks; b++) {
        const struct benchmark *benchmark = &benchmarks[b];
        bool wanted = !named;
        for (int i = 1; i < argc; i++)
            wanted |= strcmp(argv[i], benchmark->name) == 0;
        if (!wanted)
            continue;
        double results[MOST_ROUNDS];
        long count = scaled(benchmark->count);
        benchmark->run(count / 10 + 1); /* warm-up */
        for (int r = 0; r < rounds; r++) {
            int64_t start = now_ns(CLOCK_MONOTONIC);
            benchmark->run(count);
            results[r] = (double)(now_ns(CLOCK_MONOTONIC) - start) / (double)count;
        }
        qsort(results, (size_t)rounds, sizeof *results, by_value);
        dprintf(1, "%s %.1f\n", benchmark->name, results[rounds / 2]);
    }
    if (file_path == made)
        OK(unlink(made));
    return 0;
}
