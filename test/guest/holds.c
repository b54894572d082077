/*
 * Holds kernel objects of one kind and keeps using them, while its sandbox hibernates and wakes.
 *
 *     holds MODE [SECONDS]      ends at a line on standard input, or after this time
 *
 * A mode consists of families of processes and threads, each of which checks after every round that nothing was lost,
 * doubled or put out of its order, and in the end its totals. Says "ready" once each has done a few rounds, and "ok" with
 * the number of rounds if all was well. SIGUSR1 has it say on standard error where the families are.
 */
#include "holds.h"
#include "holds_files.h"
#include "holds_ipc.h"
#include "holds_memory.h"
#include "holds_sockets.h"
#include "holds_streams.h"
#include "holds_threads.h"
#include "holds_timers.h"

enum { ROUNDS_AT_FIRST = 3, END_SECONDS = 30 };

static const struct mode {
    const char *name;
    struct test families[FAMILIES_MAX];
} MODES[] = {
    {"ipc", {TEST(sysv), TEST(mq_notified), TEST(mq_stream), TEST(keys)}},
    {"files", {TEST(inotify), TEST(leases), TEST(locks)}},
    {"sockets", {TEST(unix_streams), TEST(unix_datagrams), TEST(unix_records), TEST(sigio)}},
    {"net", {TEST(tcp), TEST(udp)}},
    {"timers", {TEST(timer_files), TEST(posix_timers), TEST(interval_timer), TEST(event_files)}},
    {"memory", {TEST(memory), TEST(copies), TEST(other_memory)}},
    {"threads", {TEST(cpu_counters), TEST(robust_locks), TEST(inheriting_locks), TEST(conditions)}},
    {"streams", {TEST(pipes), TEST(terminals)}},
};

static const struct mode *mode;
static pid_t pids[FAMILIES_MAX];

static void say_where(void)
{
    for (int i = 0; i < FAMILIES_MAX && mode->families[i].name; i++)
        dprintf(2, "%s: %ld rounds, at line %d, %s\n", mode->families[i].name, board->rounds[i], board->line[i],
                pids[i] ? "goes on" : "has ended");
}

static void begin_families(void)
{
    for (int i = 0; i < FAMILIES_MAX && mode->families[i].name; i++)
        pids[i] = MEMBER({
            family = i;
            block_signal(SIGUSR1);
            OK(mkdir(mode->families[i].name, 0700));
            OK(chdir(mode->families[i].name));
            mode->families[i].run();
            exit(0);
        });
}

/* Looks after the families: one that has ended must have been told to. */
static int living_families(void)
{
    int living = 0, status;
    for (int i = 0; i < FAMILIES_MAX && mode->families[i].name; i++) {
        if (pids[i] && waitpid(pids[i], &status, WNOHANG) == pids[i]) {
            if (status != 0 || !board->ends) {
                dprintf(2, "%s has ended with wait status %#x\n", mode->families[i].name, (unsigned)status);
                say_where();
                exit(1);
            }
            pids[i] = 0;
        }
        living += pids[i] != 0;
    }
    return living;
}

static bool all_have_begun(void)
{
    for (int i = 0; i < FAMILIES_MAX && mode->families[i].name; i++)
        if (board->rounds[i] < ROUNDS_AT_FIRST)
            return false;
    return true;
}

/* Waits some milliseconds, and tells where the families are if it is asked. True: a line, or the end, has come. */
static bool wait_a_little(int ms)
{
    sigset_t asked;
    siginfo_t info;
    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR1);
    struct pollfd input = {0, POLLIN, 0};
    bool has_come = poll(&input, 1, ms) > 0;
    if (take_signal(SIGUSR1, &info))
        say_where();
    return has_come;
}

static void end_families(void)
{
    int64_t end = now_ns(CLOCK_MONOTONIC) + END_SECONDS * 1000000000LL;
    board->ends = true;
    while (living_families() > 0) {
        sleep_ms(2);
        if (now_ns(CLOCK_MONOTONIC) > end) {
            dprintf(2, "it does not end\n");
            say_where();
            exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof MODES / sizeof *MODES; i++)
        if (!strcmp(argv[1], MODES[i].name))
            mode = &MODES[i];
    if (!mode) {
        dprintf(2, "usage: see the source\n");
        return 2;
    }
    block_signal(SIGUSR1);
    char directory[] = "/tmp/holds.XXXXXX";
    CHECK(mkdtemp(directory) && chdir(directory) == 0);
    board = pages_of(1, MAP_SHARED);
    begin_families();
    while (!all_have_begun()) {
        living_families();
        sleep_ms(1);
    }
    puts("ready");
    fflush(stdout);
    int64_t end = argc > 2 ? now_ns(CLOCK_MONOTONIC) + atol(argv[2]) * 1000000000LL : INT64_MAX;
    while (!wait_a_little(50) && now_ns(CLOCK_MONOTONIC) < end)
        living_families();
    end_families();
    printf("ok");
    for (int i = 0; i < FAMILIES_MAX && mode->families[i].name; i++)
        printf(" %s %ld", mode->families[i].name, board->rounds[i]);
    puts("");
    nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    return 0;
}
