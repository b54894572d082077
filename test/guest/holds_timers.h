/* Families of holds.c: timers of every kind, and files that stand for events. */
#include "holds.h"
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>

enum { PERIOD_NS = 2700000, SIGNAL_TIMER = 44, SIGNAL_QUEUED = 45 };

/* A periodic timer has told of all its expirations up to this moment, and of none that is yet to come. */
static void check_expirations(int line, int64_t start_ns, long told, int64_t before_ns)
{
    int64_t least = (before_ns - start_ns) / PERIOD_NS, most = (now_ns(CLOCK_MONOTONIC) - start_ns) / PERIOD_NS;
    if (told < least || told > most)
        FAIL("line %d: %ld expirations, of at least %lld and at most %lld", line, told, (long long)least, (long long)most);
}

static struct itimerspec every_period(int64_t start_ns)
{
    int64_t first_ns = start_ns + PERIOD_NS;
    return (struct itimerspec){{0, PERIOD_NS}, {first_ns / 1000000000, first_ns % 1000000000}};
}

static void timer_files(void)
{
    int fd = FD(timerfd_create(CLOCK_MONOTONIC, 0));
    int64_t start_ns = now_ns(CLOCK_MONOTONIC);
    struct itimerspec periods = every_period(start_ns);
    OK(timerfd_settime(fd, TFD_TIMER_ABSTIME, &periods, NULL));
    long told = 0;
    do {
        uint64_t expirations;
        AT();
        int64_t before_ns = now_ns(CLOCK_MONOTONIC);
        MOVE(read(fd, &expirations, sizeof expirations), sizeof expirations);
        CHECK(expirations > 0);
        told += (long)expirations;
        check_expirations(__LINE__, start_ns, told, before_ns);
    } while (goes_on());
}

/* As above, by signals and their overruns. A thread sleeps until given moments meanwhile. */
static void *sleep_until_moments(void *unused)
{
    while (!atomic_load(&board->ends)) {
        int64_t until_ns = now_ns(CLOCK_REALTIME) + (int64_t)random_below(4000000);
        struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
        PT(clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL));
        CHECK(now_ns(CLOCK_REALTIME) >= until_ns);
    }
    return unused;
}

static void posix_timers(void)
{
    block_signal(SIGNAL_TIMER);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGNAL_TIMER, .sigev_value.sival_int = 77};
    timer_t timer;
    OK(timer_create(CLOCK_MONOTONIC, &event, &timer));
    pthread_t sleeper = thread_of(sleep_until_moments, NULL);
    int64_t start_ns = now_ns(CLOCK_MONOTONIC);
    struct itimerspec periods = every_period(start_ns);
    OK(timer_settime(timer, TIMER_ABSTIME, &periods, NULL));
    long told = 0;
    do {
        AT();
        int64_t before_ns = now_ns(CLOCK_MONOTONIC);
        siginfo_t info = await_signal(SIGNAL_TIMER);
        CHECK(info.si_code == SI_TIMER && info.si_value.sival_int == 77);
        told += 1 + info.si_overrun;
        check_expirations(__LINE__, start_ns, told, before_ns);
    } while (goes_on());
    OK(timer_delete(timer));
    PT(pthread_join(sleeper, NULL));
}

static atomic_long alarms;

static void on_alarm(int signal)
{
    (void)signal;
    alarms++;
}

/* An alarm that interrupts calls which are made again; none is early, and they go on coming. */
static void interval_timer(void)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    OK(sigaction(SIGALRM, &action, NULL));
    struct itimerval period = {{0, PERIOD_NS / 1000}, {0, PERIOD_NS / 1000}};
    int ends[2];
    OK(pipe(ends));
    pid_t writer = MEMBER({
        do
            MOVE(write(ends[1], "x", 1), 1);
        while (goes_on());
    });
    OK(close(ends[1]));
    int64_t start_ns = now_ns(CLOCK_MONOTONIC);
    OK(setitimer(ITIMER_REAL, &period, NULL));
    char byte;
    ssize_t got;
    AT();
    while ((got = read(ends[0], &byte, 1)) == 1)
        CHECK(alarms <= (now_ns(CLOCK_MONOTONIC) - start_ns) / PERIOD_NS);
    CHECK_EQ(got, 0);
    JOIN(writer);
    long before = alarms;
    while (alarms == before)
        usleep(200);
}

static int counter;
static const uint64_t LAST = 1ull << 40;

/* Adds numbers to a counter, queues numbered signals, and has a child that ends; `LAST` comes after all. */
static void *cause_events(void *sums)
{
    long *sum = sums;
    do {
        uint64_t value = 1 + random_below(9);
        OK(eventfd_write(counter, value));
        sum[0] += (long)value;
        while (sigqueue(getpid(), SIGNAL_QUEUED, (union sigval){.sival_int = (int)sum[1]}) < 0) {
            CHECK_EQ(errno, EAGAIN);
            usleep(500);
        }
        sum[1]++;
    } while (goes_on());
    OK(eventfd_write(counter, LAST));
    return NULL;
}

static int watch_file(int set, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    return fd;
}

/* A child that lives for a moment, and its descriptor. */
static int mortal(pid_t *pid)
{
    *pid = MEMBER({
        usleep((useconds_t)random_below(3000));
        _exit(*pid & 31);
    });
    return FD((int)syscall(SYS_pidfd_open, *pid, 0));
}

static void bury(int fd, pid_t pid, int code)
{
    siginfo_t info;
    OK(waitid((idtype_t)3, (id_t)fd, &info, WEXITED));
    CHECK(info.si_pid == pid && info.si_code == CLD_EXITED && info.si_status == code);
    OK(close(fd));
}

/* Takes the numbers of queued signals that are there. */
static long take_numbers(int fd, long number)
{
    struct signalfd_siginfo infos[4];
    ssize_t size;
    while ((size = read(fd, infos, sizeof infos)) > 0)
        for (size_t i = 0; i < (size_t)size / sizeof *infos; i++)
            CHECK_EQ(infos[i].ssi_int, number++);
    CHECK_EQ(errno, EAGAIN);
    return number;
}

/* Counters, signals and ends of processes, through sets of files, one within another. */
static void event_files(void)
{
    sigset_t queued;
    sigemptyset(&queued);
    sigaddset(&queued, SIGNAL_QUEUED);
    block_signal(SIGNAL_QUEUED);
    counter = FD(eventfd(0, EFD_NONBLOCK));
    int outer = FD(epoll_create1(0)), inner = watch_file(outer, FD(epoll_create1(0)), EPOLLIN);
    int signals = watch_file(inner, FD(signalfd(-1, &queued, SFD_NONBLOCK)), EPOLLIN);
    watch_file(outer, counter, EPOLLIN | EPOLLET);
    pid_t pid = 0, last_pid = 0;
    int child = watch_file(inner, mortal(&pid), EPOLLIN);
    long sums[2] = {0, 0}, counted = 0, number = 0;
    pthread_t causer = thread_of(cause_events, sums);
    while (counted < (long)LAST) {
        struct epoll_event event;
        AT();
        CHECK_EQ(epoll_wait(outer, &event, 1, -1), 1);
        if (event.data.fd == counter) {
            eventfd_t value = 0;
            if (eventfd_read(counter, &value) < 0)
                CHECK_EQ(errno, EAGAIN);
            counted += (long)value;
            continue;
        }
        CHECK_EQ(event.data.fd, inner);
        int got = epoll_wait(inner, &event, 1, 0);
        CHECK(got == 0 || got == 1);
        if (got == 1 && event.data.fd == signals)
            number = take_numbers(signals, number);
        else if (got == 1) {
            CHECK_EQ(event.data.fd, child);
            bury(child, pid, last_pid & 31);
            last_pid = pid;
            child = watch_file(inner, mortal(&pid), EPOLLIN);
        }
    }
    PT(pthread_join(causer, NULL));
    number = take_numbers(signals, number);
    CHECK_EQ(counted - (long)LAST, sums[0]);
    CHECK_EQ(number, sums[1]);
    bury(child, pid, last_pid & 31);
}
