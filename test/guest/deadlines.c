// Waits two seconds again and again by one kind of timer of the kernel's, and says `due` each time.
//
// deadlines timerfd | timerfd-real | posix | posix-real | itimer | alarm | until | until-real [ROUNDS]
// Real ones are set to a time of the wall clock.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 2 };

static void die(const char *what) {
    fprintf(stderr, "deadlines: %s: %s\n", what, strerror(errno));
    exit(2);
}

static struct timespec from_now(clockid_t clock) {
    struct timespec at;
    if (clock_gettime(clock, &at)) die("clock_gettime");
    at.tv_sec += SECONDS;
    return at;
}

// Blocked, so that no signal is lost between two waits.
static void take_alarm(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    int sig;
    if (sigwait(&set, &sig)) die("sigwait");
}

static int fd = -1;
static timer_t timer;

static void prepare(const char *mode, clockid_t clock) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    struct itimerspec periodic = {{SECONDS, 0}, from_now(clock)};
    if (!strncmp(mode, "timerfd", 7)) {
        fd = timerfd_create(clock, TFD_CLOEXEC);
        if (fd < 0 || timerfd_settime(fd, TFD_TIMER_ABSTIME, &periodic, NULL)) die("timerfd");
    } else if (!strncmp(mode, "posix", 5)) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
        if (timer_create(clock, &event, &timer) || timer_settime(timer, TIMER_ABSTIME, &periodic, NULL)) die("timer");
    } else if (!strcmp(mode, "itimer")) {
        struct itimerval value = {{SECONDS, 0}, {SECONDS, 0}};
        if (setitimer(ITIMER_REAL, &value, NULL)) die("setitimer");
    }
}

static void wait_for(const char *mode, clockid_t clock) {
    if (fd >= 0) {
        uint64_t expired;
        if (read(fd, &expired, sizeof expired) != sizeof expired || !expired) die("read");
    } else if (!strncmp(mode, "until", 5)) {
        struct timespec at = from_now(clock);
        if (clock_nanosleep(clock, TIMER_ABSTIME, &at, NULL)) die("clock_nanosleep");
        struct timespec now;
        clock_gettime(clock, &now);
        if (now.tv_sec < at.tv_sec || (now.tv_sec == at.tv_sec && now.tv_nsec < at.tv_nsec)) {
            fprintf(stderr, "deadlines: it woke early\n");
            exit(1);
        }
    } else {
        if (!strcmp(mode, "alarm")) alarm(SECONDS);
        take_alarm();
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const char *mode = argv[1];
    long rounds = argc > 2 ? atol(argv[2]) : 0;
    clockid_t clock = strstr(mode, "-real") ? CLOCK_REALTIME : CLOCK_MONOTONIC;
    prepare(mode, clock);
    puts("ready");
    fflush(stdout);
    for (long round = 0; !rounds || round < rounds; round++) {
        wait_for(mode, clock);
        puts("due");
        fflush(stdout);
    }
    return 0;
}
