/* Processes that make calls with random arguments and are killed in the middle of them. */
#ifndef RANDOM_CALLS_H
#define RANDOM_CALLS_H
#include "check.h"

/* Where the calling process's random numbers come from. */
static uint64_t state;

static uint64_t any(uint64_t bound)
{
    return next_random(&state) % bound;
}

/* Arguments of the program: for how many seconds, and a number that the calls follow from. */
struct campaign {
    long seconds;
    uint64_t seed;
};

UNUSED static struct campaign campaign_of(int argc, char **argv, long seconds)
{
    struct campaign campaign = {
        .seconds = argc > 1 ? atol(argv[1]) : seconds,
        .seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)now_ns(CLOCK_REALTIME),
    };
    dprintf(2, "seed %llu\n", (unsigned long long)campaign.seed);
    return campaign;
}

/* Has so many processes `work`, which does not return, and replaces one after the other. On return all have ended. */
UNUSED static void attack(struct campaign campaign, unsigned workers, void (*work)(void))
{
    pid_t pids[64] = {0};
    uint64_t chooser = campaign.seed | 1;
    int64_t end = now_ns(CLOCK_MONOTONIC) + campaign.seconds * 1000000000LL;
    CHECK(workers <= sizeof pids / sizeof *pids);
    while (now_ns(CLOCK_MONOTONIC) < end) {
        unsigned at = (unsigned)(next_random(&chooser) % workers);
        if (pids[at]) {
            OK(kill(pids[at], SIGKILL));
            status_of(pids[at]);
        }
        pids[at] = fork();
        CHECK(pids[at] >= 0);
        if (pids[at] == 0) {
            state = next_random(&chooser) | 1;
            work();
            _exit(0);
        }
        sleep_ms(20);
    }
    for (unsigned i = 0; i < workers; i++)
        if (pids[i]) {
            OK(kill(pids[i], SIGKILL));
            status_of(pids[i]);
        }
}

#endif
