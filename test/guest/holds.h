/* What the families of holds.c have in common: when to go on, numbered words, and processes and threads that end with them. */
#ifndef HOLDS_H
#define HOLDS_H

#include "check.h"
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

enum { PAGE = 4096, WORDS = PAGE / 8, FAMILIES_MAX = 8 };

/* Shared by all processes. */
struct board {
    atomic_bool ends;
    atomic_long rounds[FAMILIES_MAX];
    /* Where the family is, for the reader of a run that hangs. */
    atomic_int line[FAMILIES_MAX];
};
static struct board *board;
static int family;

/* Notes where the family is. */
#define AT() atomic_store(&board->line[family], __LINE__)

/* The word at a place of a stream of words. */
UNUSED static uint64_t word(uint64_t key, uint64_t at)
{
    uint64_t x = (key + 1) * 0x9e3779b97f4a7c15ull ^ at * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 31;
    return x * 0xd6e8feb86659fd93ull;
}

UNUSED static uint64_t random_below(uint64_t bound)
{
    static __thread uint64_t state;
    if (!state)
        state = word((uint64_t)syscall(SYS_gettid), 1) | 1;
    return next_random(&state) % bound;
}

/* A round of the calling thread is over, by whom the family is driven. Rests now and then. False: it is time to end. */
UNUSED static bool goes_on(void)
{
    atomic_fetch_add(&board->rounds[family], 1);
    if (random_below(3) == 0)
        usleep((useconds_t)random_below(1500));
    return !atomic_load(&board->ends);
}

/* Memory that processes share, or of this process alone. */
UNUSED static void *pages_of(size_t pages, int flags)
{
    void *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

UNUSED static void fill_page(volatile uint64_t *page, uint64_t key)
{
    for (uint64_t i = 0; i < WORDS; i++)
        page[i] = word(key, i);
}

UNUSED static void check_page(int line, const volatile uint64_t *page, uint64_t key)
{
    for (uint64_t i = 0; i < WORDS; i++)
        if (page[i] != (key ? word(key, i) : 0))
            FAIL("line %d: word %d of a page is %#llx, its key is %#llx", line, (int)i, (unsigned long long)page[i],
                 (unsigned long long)key);
}

/* The page holds the words of this key; of key 0, zeros. */
#define PAGE_HOLDS(page, key) check_page(__LINE__, page, key)

/* A process of the family, which ends with it. */
#define MEMBER(...)                                                                                                    \
    CHILD({                                                                                                            \
        prctl(PR_SET_PDEATHSIG, SIGKILL);                                                                              \
        __VA_ARGS__;                                                                                                   \
    })

UNUSED static pthread_t thread_of(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    PT(pthread_create(&thread, NULL, run, argument));
    return thread;
}

UNUSED static void block_signal(int signal)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    PT(pthread_sigmask(SIG_BLOCK, &set, NULL));
}

/* Waits for this signal, which is blocked. */
UNUSED static siginfo_t await_signal(int signal)
{
    sigset_t set;
    siginfo_t info;
    sigemptyset(&set);
    sigaddset(&set, signal);
    while (sigwaitinfo(&set, &info) < 0)
        CHECK_EQ(errno, EINTR);
    return info;
}

/* Takes this signal if it is pending. */
UNUSED static bool take_signal(int signal, siginfo_t *info)
{
    sigset_t set;
    struct timespec at_once = {0, 0};
    sigemptyset(&set);
    sigaddset(&set, signal);
    int got;
    while ((got = sigtimedwait(&set, info, &at_once)) < 0 && errno == EINTR)
        ;
    CHECK(got > 0 || errno == EAGAIN);
    return got > 0;
}

/* Moves all of it. */
#define MOVE(call, size) CHECK_EQ(call, (ssize_t)(size))

/* Two processes that take turns, by event counters: one hands over, the other takes, until the first one ends it. */
enum { TURNS_END = 1000 };

UNUSED static void give_turn(int event) { OK(eventfd_write(event, 1)); }
UNUSED static void end_turns(int event) { OK(eventfd_write(event, TURNS_END)); }

UNUSED static bool take_turn(int event)
{
    eventfd_t value;
    OK(eventfd_read(event, &value));
    CHECK(value == 1 || value == TURNS_END || value == TURNS_END + 1);
    return value == 1;
}

#endif
