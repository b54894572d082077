/* Signals that are waited for one by one: SIG, which whoever includes this defines, SIGIO and SIGURG. */
#ifndef AWAITED_H
#define AWAITED_H
#include "check.h"

static sigset_t watched;

/* Blocks the signals and waits for none of them yet. */
static void watch(void)
{
    sigemptyset(&watched);
    sigaddset(&watched, SIG);
    sigaddset(&watched, SIGIO);
    sigaddset(&watched, SIGURG);
    OK(sigprocmask(SIG_BLOCK, &watched, NULL));
}

/* The next signal, at most a while later. */
static siginfo_t next(void)
{
    siginfo_t info;
    struct timespec patience = {10, 0};
    int signal;
    do
        signal = sigtimedwait(&watched, &info, &patience);
    while (signal < 0 && errno == EINTR);
    CHECK(signal > 0);
    return info;
}

/* There is none. */
static void none(void)
{
    siginfo_t info;
    struct timespec at_once = {0, 0};
    int signal = sigtimedwait(&watched, &info, &at_once);
    if (signal >= 0)
        FAIL("signal %d, code %d, band %#lx", signal, info.si_code, info.si_band);
    CHECK_EQ(errno, EAGAIN);
}

#endif
