/* Pipes, event descriptors, epoll and friends, memory files, Unix sockets, terminals. */
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <termios.h>

static int events_of(int fd, short wanted, int timeout_ms)
{
    struct pollfd one = {fd, wanted, 0};
    int count = poll(&one, 1, timeout_ms);
    CHECK(count >= 0 && count == (one.revents != 0));
    return one.revents;
}

/* --- pipes --- */

static void pipes(void)
{
    int ends[2];
    char byte, page[4096];
    OK(pipe2(ends, O_NONBLOCK | O_CLOEXEC));
    CHECK_ERR(read(ends[0], &byte, 1), EAGAIN);
    CHECK_EQ(events_of(ends[0], POLLIN, 0), 0);
    CHECK_EQ(events_of(ends[1], POLLOUT, 0), POLLOUT);
    CHECK_EQ(write(ends[1], "hello", 5), 5);
    int available;
    OK(ioctl(ends[0], FIONREAD, &available));
    CHECK_EQ(available, 5);
    CHECK_EQ(read(ends[0], page, 3), 3);
    CHECK_EQ(read(ends[0], page + 3, 100), 2);
    CHECK_EQ(memcmp(page, "hello", 5), 0);
    CHECK_EQ(fcntl(ends[0], F_GETPIPE_SZ), 65536);
    memset(page, 'f', sizeof page);
    long total = 0;
    for (ssize_t got; (got = write(ends[1], page, sizeof page)) > 0;)
        total += got;
    CHECK(errno == EAGAIN && total == 65536);
    CHECK_EQ(events_of(ends[1], POLLOUT, 0), 0);
    CHECK_EQ(read(ends[0], page, 100), 100);
    CHECK_ERR(write(ends[1], page, 4096), EAGAIN); /* PIPE_BUF bytes go whole or not at all */
    CHECK_EQ(read(ends[0], page, 4096), 4096);
    CHECK_EQ(write(ends[1], page, 4096), 4096);
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, 200000) >= 200000);
    CHECK_EQ(write(ends[1], page, 4096), 4096);
    CHECK_ERR(fcntl(ends[1], F_SETPIPE_SZ, 4096), EBUSY);
    OK(close(ends[1]));
    CHECK_EQ(events_of(ends[0], POLLIN, 0), POLLIN | POLLHUP);
    while (read(ends[0], page, sizeof page) > 0)
        ;
    CHECK_EQ(read(ends[0], page, sizeof page), 0);
    CHECK_EQ(events_of(ends[0], POLLIN, 0), POLLHUP);
    CHECK_ERR(write(ends[0], "x", 1), EBADF);

    OK(pipe(ends));
    signal(SIGPIPE, SIG_IGN);
    OK(close(ends[0]));
    CHECK_ERR(write(ends[1], "x", 1), EPIPE);
    CHECK_EQ(events_of(ends[1], POLLOUT, 0), POLLOUT | POLLERR);
    OK(pipe2(ends, O_DIRECT)); /* packets */
    CHECK_EQ(write(ends[1], "one", 3), 3);
    CHECK_EQ(write(ends[1], "three", 5), 5);
    CHECK_EQ(read(ends[0], page, 100), 3);
    CHECK_EQ(read(ends[0], page, 2), 2); /* the rest of a packet is lost */
    CHECK_ERR(pipe2(ends, 0x7), EINVAL);
}

/* Writers of PIPE_BUF bytes each, all at once: no piece is torn. */
static void atomic_writes(void)
{
    enum { WRITERS = 4, PIECE = 4096 };
    int ends[2];
    OK(pipe(ends));
    long pieces = scaled(100);
    pid_t children[WRITERS];
    for (int w = 0; w < WRITERS; w++)
        children[w] = CHILD({
            char piece[PIECE];
            memset(piece, 'a' + w, PIECE);
            for (long i = 0; i < pieces; i++)
                CHECK_EQ(write(ends[1], piece, PIECE), PIECE);
        });
    OK(close(ends[1]));
    static char piece[PIECE];
    for (long i = 0; i < pieces * WRITERS; i++) {
        for (size_t have = 0; have < PIECE;) {
            ssize_t got = read(ends[0], piece + have, PIECE - have);
            CHECK(got > 0);
            have += (size_t)got;
        }
        for (int b = 1; b < PIECE; b++)
            CHECK_EQ(piece[b], piece[0]);
    }
    CHECK_EQ(read(ends[0], piece, 1), 0);
    for (int w = 0; w < WRITERS; w++)
        JOIN(children[w]);
}

/* A megabyte through a pipe in odd sizes arrives in order. */
static void streams(void)
{
    int ends[2];
    OK(pipe(ends));
    long total = scaled(4 << 20);
    pid_t child = CHILD({
        static char out[70000];
        uint64_t seed = 3;
        for (long sent = 0; sent < total;) {
            long size = 1 + (long)(next_random(&seed) % (sizeof out - 1));
            size = size > total - sent ? total - sent : size;
            for (long i = 0; i < size; i++)
                out[i] = (char)((sent + i) * 7 / 3);
            CHECK_EQ(write(ends[1], out, (size_t)size), size); /* blocking: all of it */
            sent += size;
        }
    });
    OK(close(ends[1]));
    static char in[50000];
    long received = 0;
    uint64_t seed = 4;
    for (ssize_t got; (got = read(ends[0], in, 1 + next_random(&seed) % (sizeof in - 1))) > 0; received += got)
        for (long i = 0; i < got; i++)
            CHECK_EQ(in[i], (char)((received + i) * 7 / 3));
    CHECK_EQ(received, total);
    JOIN(child);
}

static void splicing(void)
{
    int first[2], second[2];
    char text[100] = {0};
    OK(pipe(first));
    OK(pipe(second));
    int fd = FD(open("file", O_CREAT | O_RDWR, 0644));
    CHECK_EQ(write(fd, "0123456789", 10), 10);
    loff_t at = 2;
    ssize_t moved = splice(fd, &at, first[1], NULL, 5, 0);
    if (moved < 0 && (errno == ENOSYS || errno == EINVAL)) {
        NOTE("no splice");
    } else {
        CHECK(moved == 5 && at == 7);
        CHECK_EQ(splice(first[0], NULL, second[1], NULL, 3, 0), 3);
        CHECK_EQ(splice(first[0], NULL, fd, &(loff_t){20}, 100, 0), 2);
        CHECK_EQ(read(second[0], text, 100), 3);
        CHECK_EQ(memcmp(text, "234", 3), 0);
        CHECK_EQ(pread(fd, text, 100, 20), 2);
        CHECK_EQ(memcmp(text, "56", 2), 0);
        CHECK_ERR(splice(first[0], NULL, second[1], NULL, 1, SPLICE_F_NONBLOCK), EAGAIN);
        CHECK_ERR(splice(fd, NULL, fd, NULL, 1, 0), EINVAL);
    }
    CHECK_EQ(write(first[1], "tea", 3), 3);
    moved = tee(first[0], second[1], 100, 0);
    if (moved < 0 && errno == ENOSYS) {
        NOTE("no tee");
        CHECK_EQ(read(first[0], text, 100), 3);
    } else {
        CHECK_EQ(moved, 3);
        CHECK_EQ(read(first[0], text, 100), 3);
        CHECK_EQ(read(second[0], text + 3, 100 - 3), 3);
        CHECK_EQ(memcmp(text, "teatea", 6), 0);
    }
    struct iovec parts[2] = {{"vm", 2}, {"splice", 6}};
    moved = vmsplice(first[1], parts, 2, 0);
    if (moved < 0 && errno == ENOSYS)
        SKIP("no vmsplice");
    CHECK_EQ(moved, 8);
    CHECK_EQ(read(first[0], text, 100), 8);
    CHECK_EQ(memcmp(text, "vmsplice", 8), 0);
}

static void fifos(void)
{
    OK(mkfifo("fifo", 0644));
    CHECK_ERR(mkfifo("fifo", 0644), EEXIST);
    CHECK_ERR(open("fifo", O_WRONLY | O_NONBLOCK), ENXIO);
    pid_t child = CHILD({
        int out = FD(open("fifo", O_WRONLY)); /* waits for a reader */
        CHECK_EQ(write(out, "through", 7), 7);
    });
    wait_until_asleep(child);
    int in = FD(open("fifo", O_RDONLY));
    char text[20];
    CHECK_EQ(read(in, text, 20), 7);
    CHECK_EQ(read(in, text, 20), 0);
    JOIN(child);
    struct stat info;
    OK(stat("fifo", &info));
    CHECK(S_ISFIFO(info.st_mode));
    int again = FD(open("fifo", O_WRONLY | O_NONBLOCK));
    CHECK_EQ(write(again, "x", 1), 1);
    CHECK_EQ(read(in, text, 20), 1);
}

/* --- event descriptors --- */

static void events(void)
{
    uint64_t value;
    int fd = FD(eventfd(3, EFD_NONBLOCK | EFD_CLOEXEC));
    CHECK_EQ(events_of(fd, POLLIN | POLLOUT, 0), POLLIN | POLLOUT);
    CHECK_EQ(read(fd, &value, 8), 8);
    CHECK_EQ(value, 3);
    CHECK_ERR(read(fd, &value, 8), EAGAIN);
    CHECK_ERR(read(fd, &value, 4), EINVAL);
    value = 5;
    CHECK_EQ(write(fd, &value, 8), 8);
    CHECK_EQ(write(fd, &value, 8), 8);
    CHECK_EQ(read(fd, &value, 8), 8);
    CHECK_EQ(value, 10);
    value = UINT64_MAX;
    CHECK_ERR(write(fd, &value, 8), EINVAL);
    value = UINT64_MAX - 1;
    CHECK_EQ(write(fd, &value, 8), 8);
    CHECK_EQ(events_of(fd, POLLOUT, 0), 0);
    value = 1;
    CHECK_ERR(write(fd, &value, 8), EAGAIN);
    int semaphore = FD(eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK));
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(read(semaphore, &value, 8), 8);
        CHECK_EQ(value, 1);
    }
    CHECK_ERR(read(semaphore, &value, 8), EAGAIN);
    CHECK_ERR(eventfd(0, 0x100), EINVAL);
    int blocking = FD(eventfd(0, 0));
    pid_t child = CHILD({
        CHECK_EQ(read(blocking, &value, 8), 8);
        CHECK_EQ(value, 9);
    });
    wait_until_asleep(child);
    value = 9;
    CHECK_EQ(write(blocking, &value, 8), 8);
    JOIN(child);
}

static void timers(void)
{
    uint64_t expirations;
    int fd = FD(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    CHECK_ERR(read(fd, &expirations, 8), EAGAIN);
    struct itimerspec spec = {{0, 5000000}, {0, 5000000}}, now;
    int64_t start = now_ns(CLOCK_MONOTONIC);
    OK(timerfd_settime(fd, 0, &spec, NULL));
    uint64_t total = 0;
    while (total < 4) {
        CHECK_EQ(events_of(fd, POLLIN, 5000), POLLIN);
        CHECK_EQ(read(fd, &expirations, 8), 8);
        CHECK(expirations >= 1);
        total += expirations;
    }
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= (int64_t)total * 5000000);
    sleep_ms(30);
    CHECK_EQ(read(fd, &expirations, 8), 8);
    CHECK(expirations >= 4); /* counted while nobody looked */
    OK(timerfd_gettime(fd, &now));
    CHECK(now.it_interval.tv_nsec == 5000000 && now.it_value.tv_nsec <= 5000000);
    OK(timerfd_settime(fd, 0, &(struct itimerspec){0}, &now)); /* cancelled */
    CHECK_EQ(now.it_interval.tv_nsec, 5000000);
    sleep_ms(10);
    CHECK_EQ(events_of(fd, POLLIN, 0), 0);
    int absolute = FD(timerfd_create(CLOCK_REALTIME, 0));
    int64_t target = now_ns(CLOCK_REALTIME) + 20000000;
    spec = (struct itimerspec){{0, 0}, {target / 1000000000, target % 1000000000}};
    OK(timerfd_settime(absolute, TFD_TIMER_ABSTIME, &spec, NULL));
    CHECK_EQ(read(absolute, &expirations, 8), 8);
    CHECK(expirations == 1 && now_ns(CLOCK_REALTIME) >= target);
    spec.it_value = (struct timespec){1, 0}; /* long past */
    OK(timerfd_settime(absolute, TFD_TIMER_ABSTIME, &spec, NULL));
    CHECK_EQ(read(absolute, &expirations, 8), 8);
    CHECK_ERR(timerfd_create(99, 0), EINVAL);
    spec.it_value.tv_nsec = 1000000000;
    CHECK_ERR(timerfd_settime(fd, 0, &spec, NULL), EINVAL);
    CHECK_ERR(timerfd_settime(0, 0, &(struct itimerspec){0}, NULL), EINVAL);
}

static void signal_descriptors(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGCHLD);
    OK(sigprocmask(SIG_BLOCK, &set, NULL));
    int fd = FD(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    struct signalfd_siginfo info[3];
    CHECK_ERR(read(fd, info, sizeof info), EAGAIN);
    OK(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 12}));
    CHECK_EQ(events_of(fd, POLLIN, 0), POLLIN);
    CHECK_EQ(read(fd, info, sizeof info), sizeof info[0]);
    CHECK(info[0].ssi_signo == SIGUSR1 && info[0].ssi_int == 12 && info[0].ssi_pid == (uint32_t)getpid());
    CHECK_EQ(info[0].ssi_code, SI_QUEUE);
    pid_t child = CHILD(_exit(6));
    CHECK_EQ(events_of(fd, POLLIN, 10000), POLLIN);
    CHECK_EQ(read(fd, info, sizeof info), sizeof info[0]);
    CHECK(info[0].ssi_signo == SIGCHLD && info[0].ssi_pid == (uint32_t)child && info[0].ssi_status == 6);
    CHECK_EQ(status_of(child), 6 << 8);
    CHECK_ERR(read(fd, info, 10), EINVAL);
}

/* --- waiting for many --- */

static int wait_once(int set, struct epoll_event *got, int timeout_ms)
{
    int count = epoll_wait(set, got, 8, timeout_ms);
    CHECK(count >= 0);
    return count;
}

static void epolls(void)
{
    int set = FD(epoll_create1(EPOLL_CLOEXEC)), ends[2];
    OK(pipe(ends));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x123456789abcdef0}, got[8];
    char buffer[16];
    OK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event), EEXIST);
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event), ENOENT);
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_ADD, set, &event), EINVAL);
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_ADD, FD(open(".", O_RDONLY)), &event), EPERM);
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_ADD, 9999, &event), EBADF);
    CHECK_ERR(epoll_wait(set, got, 0, 0), EINVAL);
    CHECK_EQ(wait_once(set, got, 0), 0);
    CHECK_EQ(write(ends[1], "ab", 2), 2);
    for (int i = 0; i < 2; i++) { /* level: again and again */
        CHECK_EQ(wait_once(set, got, 1000), 1);
        CHECK(got[0].events == EPOLLIN && got[0].data.u64 == event.data.u64);
    }
    event.events = EPOLLIN | EPOLLET;
    OK(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event));
    CHECK_EQ(wait_once(set, got, 0), 1);
    CHECK_EQ(wait_once(set, got, 0), 0); /* edge: once, though data is left */
    CHECK_EQ(write(ends[1], "c", 1), 1);
    CHECK_EQ(wait_once(set, got, 1000), 1);
    CHECK_EQ(read(ends[0], buffer, 1), 1);
    CHECK_EQ(wait_once(set, got, 0), 0);
    event.events = EPOLLIN | EPOLLONESHOT;
    OK(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event));
    CHECK_EQ(wait_once(set, got, 0), 1);
    CHECK_EQ(write(ends[1], "d", 1), 1);
    CHECK_EQ(wait_once(set, got, 0), 0);
    OK(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event)); /* armed again */
    CHECK_EQ(wait_once(set, got, 0), 1);
    OK(epoll_ctl(set, EPOLL_CTL_DEL, ends[0], NULL));
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_DEL, ends[0], NULL), ENOENT);
    CHECK_EQ(wait_once(set, got, 0), 0);
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    OK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
    CHECK_EQ(wait_once(set, got, 0), 1);
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event), EINVAL);

    int outer = FD(epoll_create1(0)); /* a set in a set */
    event = (struct epoll_event){.events = EPOLLIN, .data.fd = set};
    OK(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event));
    CHECK_EQ(wait_once(outer, got, 0), 1);
    CHECK_EQ(got[0].data.fd, set);
    CHECK_EQ(events_of(outer, POLLIN, 0), POLLIN);
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_ADD, outer, &event), ELOOP);
    CHECK_EQ(read(ends[0], buffer, 16), 3);
    CHECK_EQ(wait_once(outer, got, 0), 0);
    int copy = FD(dup(ends[0])); /* closing one of two descriptors does not remove the file */
    OK(close(ends[0]));
    CHECK_EQ(write(ends[1], "e", 1), 1);
    CHECK_EQ(wait_once(set, got, 0), 1);
    OK(close(copy));
    CHECK_EQ(wait_once(set, got, 0), 0);

    int64_t start = now_ns(CLOCK_MONOTONIC);
    CHECK_EQ(wait_once(set, got, 20), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 20000000);
    struct timespec timeout = {0, 15000000};
    start = now_ns(CLOCK_MONOTONIC);
    long result = syscall(441 /* epoll_pwait2 */, set, got, 8, &timeout, NULL, 8);
    if (result < 0 && errno == ENOSYS) {
        NOTE("no epoll_pwait2");
    } else {
        CHECK_EQ(result, 0);
        CHECK(now_ns(CLOCK_MONOTONIC) - start >= 15000000);
    }
    int many[8]; /* fair: all are reported, in pieces */
    for (int i = 0; i < 8; i++) {
        many[i] = FD(eventfd(1, 0));
        event = (struct epoll_event){.events = EPOLLIN, .data.u32 = (uint32_t)i};
        OK(epoll_ctl(set, EPOLL_CTL_ADD, many[i], &event));
    }
    unsigned seen = 0;
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(epoll_wait(set, got, 2, 0), 2);
        seen |= 1U << got[0].data.u32 | 1U << got[1].data.u32;
    }
    CHECK_EQ(seen, 0xff);
}

static void *write_later(void *fd)
{
    sleep_ms(10);
    CHECK_EQ(write((int)(long)fd, "w", 1), 1);
    return NULL;
}

static volatile int alarms;
static void on_alarm(int signal)
{
    (void)signal;
    alarms++;
}

static void waits(void)
{
    int ends[2], other[2];
    OK(pipe(ends));
    OK(pipe(other));
    struct pollfd both[3] = {{ends[0], POLLIN, 0}, {other[0], POLLIN, 0}, {-1, POLLIN, 0}};
    int64_t start = now_ns(CLOCK_MONOTONIC);
    CHECK_EQ(poll(both, 3, 20), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 20000000);
    pthread_t thread;
    PT(pthread_create(&thread, NULL, write_later, (void *)(long)other[1]));
    CHECK_EQ(poll(both, 3, -1), 1);
    CHECK(both[0].revents == 0 && both[1].revents == POLLIN && both[2].revents == 0);
    PT(pthread_join(thread, NULL));
    struct pollfd closed = {9999, POLLIN, 0};
    CHECK_EQ(poll(&closed, 1, 0), 1);
    CHECK_EQ(closed.revents, POLLNVAL);
    struct timespec little = {0, 20000000}, none = {0, 0};
    start = now_ns(CLOCK_MONOTONIC);
    CHECK_EQ(ppoll(both, 1, &little, NULL), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 20000000);

    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(ends[0], &in);
    FD_SET(other[0], &in);
    FD_SET(ends[1], &out);
    struct timeval wait_for = {0, 0};
    CHECK_EQ(select(other[1] + 1, &in, &out, NULL, &wait_for), 2);
    CHECK(!FD_ISSET(ends[0], &in) && FD_ISSET(other[0], &in) && FD_ISSET(ends[1], &out));
    FD_ZERO(&in);
    FD_SET(ends[0], &in);
    wait_for = (struct timeval){0, 20000};
    start = now_ns(CLOCK_MONOTONIC);
    CHECK_EQ(select(ends[0] + 1, &in, NULL, NULL, &wait_for), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 20000000);
    CHECK(wait_for.tv_sec == 0 && wait_for.tv_usec == 0); /* Linux gives the rest back */
    CHECK_ERR(select(-1, NULL, NULL, NULL, &wait_for), EINVAL);
    int unused = FD(dup(0));
    OK(close(unused));
    FD_ZERO(&in);
    FD_SET(unused, &in);
    CHECK_ERR(select(unused + 1, &in, NULL, NULL, &wait_for), EBADF);

    /* A blocked signal that a wait lets in: with the mask it is seen, in the wait and not after it. */
    signal(SIGALRM, on_alarm);
    sigset_t set, empty;
    sigemptyset(&empty);
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    OK(sigprocmask(SIG_BLOCK, &set, NULL));
    raise(SIGALRM);
    CHECK_EQ(poll(both, 1, 0), 0);
    CHECK_EQ(alarms, 0);
    CHECK_ERR(ppoll(both, 1, NULL, &empty), EINTR);
    CHECK_EQ(alarms, 1);
    raise(SIGALRM);
    CHECK_ERR(pselect(0, NULL, NULL, NULL, NULL, &empty), EINTR);
    CHECK_EQ(alarms, 2);
    raise(SIGALRM);
    struct epoll_event got;
    CHECK_ERR(epoll_pwait(FD(epoll_create1(0)), &got, 1, -1, &empty), EINTR);
    CHECK_EQ(alarms, 3);
    sigset_t now;
    OK(sigprocmask(SIG_SETMASK, NULL, &now));
    CHECK(sigismember(&now, SIGALRM));
    CHECK_EQ(ppoll(both, 1, &none, NULL), 0);
}

/* --- memory files --- */

static void memory_files(void)
{
    int fd = FD(memfd_create("name", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    char link[100] = {0}, path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(readlink(path, link, sizeof link - 1) > 0);
    CHECK(strcmp(link, "/memfd:name (deleted)") == 0);
    OK(ftruncate(fd, 8192));
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    map[5000] = 'm';
    char byte;
    CHECK_EQ(pread(fd, &byte, 1, 5000), 1);
    CHECK_EQ(byte, 'm');
    CHECK_EQ(fcntl(fd, F_GET_SEALS), 0);
    CHECK_ERR(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY); /* mapped writably */
    OK(munmap(map, 8192));
    OK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    CHECK_ERR(ftruncate(fd, 4096), EPERM);
    CHECK_ERR(ftruncate(fd, 16384), EPERM);
    CHECK_ERR(pwrite(fd, "x", 1, 8192), EPERM);
    CHECK_EQ(pwrite(fd, "x", 1, 100), 1);
    OK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL));
    CHECK_ERR(pwrite(fd, "x", 1, 100), EPERM);
    CHECK_ERR((long)mmap(NULL, 8192, PROT_WRITE, MAP_SHARED, fd, 0), EPERM);
    CHECK(mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) != MAP_FAILED);
    CHECK_ERR(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), EPERM);
    CHECK_EQ(fcntl(fd, F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    CHECK_ERR(fcntl(FD(memfd_create("x", 0)), F_ADD_SEALS, F_SEAL_WRITE), EPERM);
    CHECK_ERR(memfd_create("x", 0x8000), EINVAL);
}

/* A write that takes long ends with its process. */
static void long_write_ends(void)
{
    size_t bytes = 256 << 20;
    int fd = FD(memfd_create("long", MFD_CLOEXEC));
    char *zeros = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(zeros != MAP_FAILED);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(write(fd, zeros, bytes) < 0);
    struct stat stat = {0};
    while (stat.st_size == 0)
        OK(fstat(fd, &stat));
    OK(kill(child, SIGKILL));
    CHECK_EQ(status_of(child), SIGKILL);
    OK(fstat(fd, &stat));
    CHECK(stat.st_size < (off_t)bytes);
}

/* Large writes to sockets come through while others want the processor. */
static void large_writes_beside_others(void)
{
    enum { PAIRS = 3, HOGS = 3 };
    size_t bytes = (size_t)scaled(8) << 20;
    char *data = calloc(1, bytes);
    CHECK(data != NULL);
    pid_t hogs[HOGS], sides[2 * PAIRS];
    for (int i = 0; i < HOGS; i++)
        if ((hogs[i] = fork()) == 0)
            for (;;)
                ;
    for (int i = 0; i < PAIRS; i++) {
        int ends[2];
        OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
        if ((sides[2 * i] = fork()) == 0) {
            for (int round = 0; round < 3; round++)
                if (write(ends[1], data, bytes) != (ssize_t)bytes)
                    _exit(1);
            _exit(0);
        }
        if ((sides[2 * i + 1] = fork()) == 0) {
            static char part[65536];
            for (size_t left = 3 * bytes; left > 0;) {
                ssize_t got = read(ends[0], part, sizeof part);
                if (got <= 0)
                    _exit(1);
                left -= (size_t)got;
            }
            _exit(0);
        }
        close(ends[0]);
        close(ends[1]);
    }
    for (int i = 0; i < 2 * PAIRS; i++)
        CHECK_EQ(status_of(sides[i]), 0);
    for (int i = 0; i < HOGS; i++) {
        OK(kill(hogs[i], SIGKILL));
        CHECK_EQ(status_of(hogs[i]), SIGKILL);
    }
}

/* --- Unix sockets --- */

static socklen_t unix_address(struct sockaddr_un *address, const char *name)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t length = strlen(name);
    memcpy(address->sun_path + (name[0] == '@'), name + (name[0] == '@'), length - (name[0] == '@'));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (name[0] != '@'));
}

static void stream_sockets(void)
{
    static const char *const names[] = {"socket", "@dormouse-ipc-test"};
    for (int n = 0; n < 2; n++) {
        struct sockaddr_un address, peer;
        socklen_t length = unix_address(&address, names[n]), size = sizeof peer;
        int server = FD(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), client = FD(socket(AF_UNIX, SOCK_STREAM, 0));
        CHECK_ERR(connect(client, (struct sockaddr *)&address, length), n ? ECONNREFUSED : ENOENT);
        OK(bind(server, (struct sockaddr *)&address, length));
        CHECK_ERR(connect(client, (struct sockaddr *)&address, length), ECONNREFUSED);
        OK(listen(server, 5));
        CHECK_EQ(events_of(server, POLLIN, 0), 0);
        pid_t child = CHILD({
            OK(connect(client, (struct sockaddr *)&address, length));
            char text[10];
            CHECK_EQ(write(client, "ping", 4), 4);
            CHECK_EQ(read(client, text, 10), 4);
            CHECK_EQ(memcmp(text, "pong", 4), 0);
            OK(shutdown(client, SHUT_WR));
            CHECK_EQ(read(client, text, 10), 0);
        });
        int connection = FD(accept4(server, (struct sockaddr *)&peer, &size, SOCK_CLOEXEC));
        CHECK(size >= sizeof(sa_family_t) && peer.sun_family == AF_UNIX);
        struct ucred credentials;
        size = sizeof credentials;
        OK(getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &credentials, &size));
        CHECK(credentials.pid == child && credentials.uid == geteuid() && credentials.gid == getegid());
        char text[10];
        CHECK_EQ(recv(connection, text, 2, MSG_PEEK), 2);
        CHECK_EQ(recv(connection, text, 4, MSG_WAITALL), 4);
        CHECK_EQ(memcmp(text, "ping", 4), 0);
        CHECK_ERR(recv(connection, text, 1, MSG_DONTWAIT), EAGAIN);
        CHECK_EQ(send(connection, "pong", 4, 0), 4);
        CHECK_EQ(recv(connection, text, 10, 0), 0);
        size = sizeof peer;
        OK(getsockname(server, (struct sockaddr *)&peer, &size));
        CHECK(size == length && memcmp(&peer, &address, length) == 0);
        int second = FD(socket(AF_UNIX, SOCK_STREAM, 0));
        CHECK_ERR(bind(second, (struct sockaddr *)&address, length), EADDRINUSE);
        OK(close(connection));
        JOIN(child);
        OK(close(server));
    }
    struct stat info;
    OK(stat("socket", &info));
    CHECK(S_ISSOCK(info.st_mode));
    CHECK_ERR(open("socket", O_RDWR), ENXIO);
    CHECK_ERR(socket(AF_UNIX, 77, 0), EINVAL);
    CHECK_ERR(socket(9999, SOCK_STREAM, 0), EAFNOSUPPORT);
    CHECK_ERR(accept(FD(socket(AF_UNIX, SOCK_STREAM, 0)), NULL, NULL), EINVAL);
    CHECK_ERR(send(FD(socket(AF_UNIX, SOCK_STREAM, 0)), "x", 1, 0), ENOTCONN);
    CHECK_ERR(listen(0, 1), ENOTSOCK);
}

static void message_sockets(void)
{
    char text[32];
    int pair[2], type;
    socklen_t size = sizeof type;
    OK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
    OK(getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &type, &size));
    CHECK_EQ(type, SOCK_SEQPACKET);
    CHECK_EQ(send(pair[0], "first", 5, 0), 5);
    CHECK_EQ(send(pair[0], "second", 6, 0), 6);
    CHECK_EQ(recv(pair[1], text, sizeof text, 0), 5); /* borders kept */
    struct iovec part = {text, 3};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK_EQ(recvmsg(pair[1], &message, 0), 3);
    CHECK_EQ(message.msg_flags & MSG_TRUNC, MSG_TRUNC);
    CHECK_ERR(recv(pair[1], text, 1, MSG_DONTWAIT), EAGAIN);
    OK(close(pair[0]));
    CHECK_EQ(recv(pair[1], text, 1, 0), 0);

    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    CHECK_EQ(send(pair[0], "", 0, 0), 0); /* an empty message is one */
    CHECK_EQ(send(pair[0], "abcdef", 6, 0), 6);
    CHECK_EQ(events_of(pair[1], POLLIN, 0), POLLIN);
    CHECK_EQ(recv(pair[1], text, sizeof text, 0), 0);
    CHECK_EQ(recv(pair[1], text, 2, MSG_TRUNC), 6);
    struct sockaddr_un one, two, from;
    int first = FD(socket(AF_UNIX, SOCK_DGRAM, 0)), second = FD(socket(AF_UNIX, SOCK_DGRAM, 0));
    socklen_t one_length = unix_address(&one, "one"), two_length = unix_address(&two, "two");
    OK(bind(first, (struct sockaddr *)&one, one_length));
    OK(bind(second, (struct sockaddr *)&two, two_length));
    CHECK_EQ(sendto(first, "to two", 6, 0, (struct sockaddr *)&two, two_length), 6);
    size = sizeof from;
    CHECK_EQ(recvfrom(second, text, sizeof text, 0, (struct sockaddr *)&from, &size), 6);
    CHECK(size == one_length && strcmp(from.sun_path, "one") == 0);
    OK(connect(second, (struct sockaddr *)&one, one_length));
    CHECK_EQ(send(second, "back", 4, 0), 4);
    CHECK_EQ(recv(first, text, sizeof text, 0), 4);
    OK(close(first));
    CHECK_ERR(send(second, "x", 1, 0), ECONNREFUSED);
    struct timeval limit = {0, 20000};
    OK(setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    int64_t start = now_ns(CLOCK_MONOTONIC);
    CHECK_ERR(recv(pair[1], text, 1, 0), EAGAIN);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 20000000);
}

union control {
    char bytes[256];
    struct cmsghdr align;
};

static void passing(void)
{
    int pair[2], ends[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    OK(pipe(ends));
    union control control = {0};
    char byte = 'f';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control};
    message.msg_controllen = CMSG_SPACE(2 * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){CMSG_LEN(2 * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), ends, sizeof ends);
    CHECK_EQ(sendmsg(pair[0], &message, 0), 1);
    OK(close(ends[0]));
    OK(close(ends[1])); /* the message alone keeps the pipe alive */
    JOIN(CHILD({
        int got[2];
        message.msg_controllen = sizeof control;
        CHECK_EQ(recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC), 1);
        header = CMSG_FIRSTHDR(&message);
        CHECK(header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS);
        CHECK_EQ(header->cmsg_len, CMSG_LEN(2 * sizeof(int)));
        memcpy(got, CMSG_DATA(header), sizeof got);
        CHECK_EQ(fcntl(got[0], F_GETFD), FD_CLOEXEC);
        CHECK_EQ(write(got[1], "over", 4), 4);
        char text[8];
        CHECK_EQ(read(got[0], text, 8), 4);
        OK(close(got[1]));
        CHECK_EQ(read(got[0], text, 8), 0);
    }));
    memcpy(CMSG_DATA(header), (int[]){9999, 9998}, 8);
    message.msg_controllen = CMSG_SPACE(2 * sizeof(int));
    CHECK_ERR(sendmsg(pair[0], &message, 0), EBADF);

    int on = 1; /* who sent it, filled in by the kernel */
    OK(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    pid_t child = CHILD(CHECK_EQ(write(pair[0], "c", 1), 1));
    message.msg_controllen = sizeof control;
    CHECK_EQ(recvmsg(pair[1], &message, 0), 1);
    header = CMSG_FIRSTHDR(&message);
    CHECK(header && header->cmsg_type == SCM_CREDENTIALS);
    struct ucred sender;
    memcpy(&sender, CMSG_DATA(header), sizeof sender);
    CHECK(sender.pid == child && sender.uid == getuid() && sender.gid == getgid());
    JOIN(child);
}

static void sockets_ending(void)
{
    int pair[2];
    char text[8];
    signal(SIGPIPE, SIG_IGN);
    OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
    CHECK_EQ(write(pair[0], "left", 4), 4);
    OK(shutdown(pair[0], SHUT_WR));
    CHECK_ERR(write(pair[0], "x", 1), EPIPE);
    CHECK_EQ(events_of(pair[1], POLLIN | POLLRDHUP, 0), POLLIN | POLLRDHUP);
    CHECK_EQ(read(pair[1], text, 8), 4);
    CHECK_EQ(read(pair[1], text, 8), 0);
    CHECK_EQ(write(pair[1], "back", 4), 4); /* the other way still works */
    CHECK_EQ(read(pair[0], text, 8), 4);
    OK(close(pair[0]));
    CHECK_EQ(events_of(pair[1], POLLIN, 0), POLLIN | POLLHUP);
    CHECK_ERR(write(pair[1], "x", 1), EPIPE);
    OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
    CHECK_EQ(write(pair[0], "lost", 4), 4);
    OK(close(pair[1])); /* closed with unread data */
    CHECK_ERR(read(pair[0], text, 8), ECONNRESET);
    OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
    static char block[65536];
    while (write(pair[0], block, sizeof block) > 0)
        ;
    CHECK_EQ(errno, EAGAIN);
    CHECK_EQ(events_of(pair[0], POLLOUT, 0), 0);
    while (read(pair[1], block, sizeof block) > 0)
        ;
    CHECK_EQ(events_of(pair[0], POLLOUT, 1000), POLLOUT);
    CHECK_ERR(shutdown(pair[0], 9), EINVAL);
}

/* --- terminals --- */

static int open_terminal(int *terminal)
{
    int controller = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (controller < 0)
        return -1;
    OK(grantpt(controller));
    OK(unlockpt(controller));
    char name[64];
    CHECK_EQ(ptsname_r(controller, name, sizeof name), 0);
    CHECK(strncmp(name, "/dev/pts/", 9) == 0);
    *terminal = FD(open(name, O_RDWR | O_NOCTTY));
    return controller;
}

static ssize_t read_soon(int fd, char *text, size_t size)
{
    CHECK(events_of(fd, POLLIN, 5000) & (POLLIN | POLLHUP));
    return read(fd, text, size);
}

/* Reads until so many bytes have come. */
static void expect_bytes(int fd, const char *want)
{
    char text[256];
    size_t have = 0, length = strlen(want);
    while (have < length) {
        ssize_t got = read_soon(fd, text + have, length - have);
        CHECK(got > 0);
        have += (size_t)got;
    }
    CHECK_EQ(memcmp(text, want, length), 0);
    CHECK_EQ(events_of(fd, POLLIN, 0), 0);
}

/* A terminal whose controller hears what happens to it. */
static void terminal_packets(void)
{
    int terminal, controller = open_terminal(&terminal);
    if (controller < 0)
        SKIP("no terminals");
    char text[64];
    int on = 7;
    CHECK_ERR(ioctl(terminal, TIOCPKT, &on), ENOTTY);
    OK(ioctl(controller, TIOCGPKT, &on));
    CHECK_EQ(on, 0);
    on = 1;
    OK(ioctl(controller, TIOCPKT, &on));
    OK(ioctl(controller, TIOCGPKT, &on));
    CHECK_EQ(on, 1);
    CHECK_EQ(events_of(controller, POLLIN | POLLPRI, 0), 0);
    OK(fcntl(controller, F_SETFL, O_NONBLOCK));
    text[0] = 'x';
    CHECK_ERR(read(controller, text, sizeof text), EAGAIN);
    CHECK_EQ(text[0], 'x');
    /* What is written comes behind a zero, in each read. */
    CHECK_EQ(write(terminal, "hello", 5), 5);
    CHECK_EQ(events_of(controller, POLLIN | POLLPRI, 5000), POLLIN);
    CHECK_EQ(read(controller, text, 3), 3);
    CHECK_EQ(memcmp(text, "\0he", 3), 0);
    CHECK_EQ(read(controller, text, sizeof text), 4);
    CHECK_EQ(memcmp(text, "\0llo", 4), 0);
    /* What happens comes alone. */
    OK(tcflush(terminal, TCIFLUSH));
    CHECK_EQ(events_of(controller, POLLIN | POLLPRI, 5000), POLLIN | POLLPRI);
    CHECK_EQ(read(controller, text, sizeof text), 1);
    CHECK_EQ(text[0], TIOCPKT_FLUSHREAD);
    CHECK_EQ(events_of(controller, POLLIN | POLLPRI, 0), 0);
    OK(tcflow(terminal, TCOOFF));
    CHECK_EQ(read(controller, text, sizeof text), 1);
    CHECK_EQ(text[0], TIOCPKT_STOP);
    OK(tcflow(terminal, TCOON));
    CHECK_EQ(read(controller, text, sizeof text), 1);
    CHECK_EQ(text[0], TIOCPKT_START);
    struct termios settings;
    OK(tcgetattr(terminal, &settings));
    settings.c_iflag &= ~(tcflag_t)IXON;
    OK(tcsetattr(terminal, TCSANOW, &settings));
    CHECK_EQ(read(controller, text, sizeof text), 1);
    CHECK_EQ(text[0], TIOCPKT_NOSTOP);
    settings.c_iflag |= IXON;
    OK(tcsetattr(terminal, TCSAFLUSH, &settings));
    CHECK_EQ(read(controller, text, sizeof text), 1);
    CHECK_EQ(text[0], TIOCPKT_DOSTOP | TIOCPKT_FLUSHREAD);
    /* What its controller drops it knows. */
    OK(tcflush(controller, TCIFLUSH));
    CHECK_ERR(read(controller, text, sizeof text), EAGAIN);
    on = 0;
    OK(ioctl(controller, TIOCPKT, &on));
    CHECK_EQ(write(terminal, "x", 1), 1);
    CHECK_EQ(events_of(controller, POLLIN, 5000), POLLIN);
    CHECK_EQ(read(controller, text, sizeof text), 1);
    CHECK_EQ(text[0], 'x');
    OK(close(terminal));
    OK(close(controller));
}

static void terminals(void)
{
    int terminal, controller = open_terminal(&terminal);
    if (controller < 0)
        SKIP("no terminals");
    char text[256], name[64];
    struct termios settings, old;
    CHECK(isatty(terminal) && isatty(controller));
    OK(ttyname_r(terminal, name, sizeof name));
    OK(tcgetattr(terminal, &settings));
    CHECK((settings.c_lflag & (ICANON | ECHO | ISIG)) == (ICANON | ECHO | ISIG));
    CHECK(settings.c_oflag & OPOST && settings.c_iflag & ICRNL);
    old = settings;
    /* Canonical: a line at a time, erased and killed as typed, and echoed. */
    CHECK_EQ(write(controller, "helx\177lo", 7), 7);
    CHECK_EQ(events_of(terminal, POLLIN, 20), 0);
    CHECK_EQ(write(controller, "\r", 1), 1);
    CHECK_EQ(read_soon(terminal, text, sizeof text), 6);
    CHECK_EQ(memcmp(text, "hello\n", 6), 0);
    expect_bytes(controller, "helx\b \blo\r\n");
    CHECK_EQ(write(controller, "gone\025kept\n", 10), 10);
    CHECK_EQ(read_soon(terminal, text, 2), 2); /* the rest of the line stays */
    CHECK_EQ(read_soon(terminal, text + 2, 20), 3);
    CHECK_EQ(memcmp(text, "kept\n", 5), 0);
    CHECK(read_soon(controller, text, sizeof text) > 0);
    CHECK_EQ(write(controller, "\004", 1), 1); /* end of file */
    CHECK_EQ(read_soon(terminal, text, sizeof text), 0);
    OK(tcflush(terminal, TCIOFLUSH));
    /* Output is processed on the way out. */
    CHECK_EQ(write(terminal, "a\nb", 3), 3);
    expect_bytes(controller, "a\r\nb");
    cfmakeraw(&settings);
    OK(tcsetattr(terminal, TCSANOW, &settings));
    CHECK_EQ(write(controller, "\003x", 2), 2);
    CHECK_EQ(read_soon(terminal, text, sizeof text), 2);
    CHECK(text[0] == 3 && text[1] == 'x');
    CHECK_EQ(events_of(controller, POLLIN, 0), 0); /* no echo */
    CHECK_EQ(write(terminal, "\n", 1), 1);
    expect_bytes(controller, "\n");
    settings.c_cc[VMIN] = 0;
    settings.c_cc[VTIME] = 1;
    OK(tcsetattr(terminal, TCSADRAIN, &settings));
    int64_t start = now_ns(CLOCK_MONOTONIC);
    CHECK_EQ(read(terminal, text, 1), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 90000000);
    OK(tcsetattr(terminal, TCSAFLUSH, &old));
    /* The older structure has the lower halves of the flags. */
    struct old_settings {
        uint16_t iflag, oflag, cflag, lflag;
        uint8_t line, cc[8];
    } few;
    OK(ioctl(terminal, 0x5405 /* TCGETA */, &few));
    CHECK(few.lflag == (uint16_t)old.c_lflag && few.oflag == (uint16_t)old.c_oflag && few.cc[VINTR] == 3);
    few.lflag &= (uint16_t)~ECHO;
    few.cc[VINTR] = 7;
    for (unsigned long request = 0x5406; request <= 0x5408; request++) /* TCSETA, TCSETAW, TCSETAF */
        OK(ioctl(terminal, request, &few));
    OK(tcgetattr(terminal, &settings));
    CHECK(settings.c_lflag == (old.c_lflag & ~(tcflag_t)ECHO) && settings.c_cc[VINTR] == 7);
    CHECK_EQ(memcmp(settings.c_cc + 8, old.c_cc + 8, 9), 0);
    /* What root has locked stays as it is. */
    struct {
        uint32_t iflag, oflag, cflag, lflag;
        uint8_t line, cc[19];
    } locked = {.lflag = ECHO, .cc = {[VINTR] = 1}}, seen;
    OK(ioctl(terminal, 0x5456 /* TIOCGLCKTRMIOS */, &seen));
    CHECK(seen.lflag == 0 && seen.cc[VINTR] == 0);
    CHECK_ERR(ioctl(terminal, 0x5457 /* TIOCSLCKTRMIOS */, NULL), geteuid() == 0 ? EFAULT : EPERM);
    if (ioctl(terminal, 0x5457, &locked) == 0) {
        OK(tcsetattr(terminal, TCSANOW, &old));
        OK(tcgetattr(terminal, &settings));
        CHECK(!(settings.c_lflag & ECHO) && settings.c_lflag & ICANON && settings.c_cc[VINTR] == 7);
        locked.lflag = 0, locked.cc[VINTR] = 0;
        OK(ioctl(terminal, 0x5457, &locked));
    }
    int local = -1, wanted = 1;
    OK(ioctl(terminal, TIOCGSOFTCAR, &local));
    CHECK_EQ(local, 0);
    OK(ioctl(terminal, TIOCSSOFTCAR, &wanted));
    OK(tcgetattr(terminal, &settings));
    CHECK(settings.c_cflag & CLOCAL);
    OK(tcsetattr(terminal, TCSAFLUSH, &old));
    struct winsize size = {24, 80, 0, 0}, got;
    OK(ioctl(controller, TIOCSWINSZ, &size));
    OK(ioctl(terminal, TIOCGWINSZ, &got));
    CHECK(got.ws_row == 24 && got.ws_col == 80);
    CHECK_ERR(tcgetattr(FD(open("/dev/null", O_RDONLY)), &settings), ENOTTY);
    OK(close(terminal)); /* the last one hangs up the controller */
    CHECK_ERR(read(controller, text, 1), EIO);
}

static int report;
static volatile int hung_up;
static void tell(int signal)
{
    hung_up |= signal == SIGHUP;
    char byte = (char)signal;
    if (write(report, &byte, 1) != 1)
        _exit(1);
}

static void job_control(void)
{
    int terminal, controller = open_terminal(&terminal), out[2];
    if (controller < 0)
        SKIP("no terminals");
    OK(pipe(out));
    report = out[1];
    char name[64], byte;
    OK(ttyname_r(terminal, name, sizeof name));
    pid_t leader = CHILD({
        OK(close(controller));
        OK(prctl(PR_SET_PDEATHSIG, SIGKILL)); /* out of the runner's reach, should the test fail */
        CHECK(setsid() > 0);
        OK(ioctl(terminal, TIOCSCTTY, 0));
        CHECK_EQ(tcgetpgrp(terminal), getpid());
        CHECK_EQ(tcgetsid(terminal), getpid());
        OK(close(FD(open("/dev/tty", O_RDWR))));
        signal(SIGHUP, tell);
        signal(SIGINT, tell);
        pid_t job = CHILD({
            OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
            OK(setpgid(0, 0));
            signal(SIGTTOU, SIG_IGN);
            OK(tcsetpgrp(terminal, getpid()));
            signal(SIGHUP, SIG_DFL);
            signal(SIGINT, SIG_DFL);
            signal(SIGWINCH, tell);
            byte = 'r';
            CHECK_EQ(write(out[1], &byte, 1), 1);
            for (;;)
                pause();
        });
        int status;
        CHECK_EQ(waitpid(job, &status, WUNTRACED), job);
        CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTSTP);
        byte = 's';
        CHECK_EQ(write(out[1], &byte, 1), 1);
        OK(kill(job, SIGCONT));
        while (waitpid(job, &status, 0) < 0)
            CHECK_EQ(errno, EINTR);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
        byte = 'd';
        CHECK_EQ(write(out[1], &byte, 1), 1);
        /* A background read stops the reader. */
        job = CHILD({
            OK(setpgid(0, 0));
            if (read(terminal, &byte, 1) == 0)
                _exit(1);
        });
        signal(SIGTTOU, SIG_IGN);
        OK(tcsetpgrp(terminal, getpid()));
        CHECK_EQ(waitpid(job, &status, WUNTRACED), job);
        CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTTIN);
        OK(kill(job, SIGKILL));
        CHECK_KILLED(job, SIGKILL);
        byte = 'b';
        CHECK_EQ(write(out[1], &byte, 1), 1);
        for (int i = 0; i < 5000 && !hung_up; i++)
            usleep(1000);
        CHECK(hung_up);
    });
    OK(close(terminal));
    CHECK_EQ(read(out[0], &byte, 1), 1);
    CHECK_EQ(byte, 'r');
    OK(ioctl(controller, TIOCSWINSZ, &(struct winsize){50, 100, 0, 0}));
    CHECK_EQ(read(out[0], &byte, 1), 1);
    CHECK_EQ(byte, SIGWINCH);
    CHECK_EQ(write(controller, "\032", 1), 1); /* Ctrl-Z */
    CHECK_EQ(read(out[0], &byte, 1), 1);
    CHECK_EQ(byte, 's');
    CHECK_EQ(write(controller, "\003", 1), 1); /* Ctrl-C goes to the job, not to the leader */
    CHECK_EQ(read(out[0], &byte, 1), 1);
    CHECK_EQ(byte, 'd');
    CHECK_EQ(read(out[0], &byte, 1), 1);
    CHECK_EQ(byte, 'b');
    OK(close(controller));
    CHECK_EQ(read(out[0], &byte, 1), 1);
    CHECK_EQ(byte, SIGHUP);
    JOIN(leader);
}

static int outer_set;
static atomic_bool enough;

static void *look_at_set(void *unused)
{
    struct epoll_event got[8];
    while (!enough)
        epoll_wait(outer_set, got, 8, 0);
    return unused;
}

/* A set that another one looks at loses its last descriptor meanwhile; so does one that is on its way in a message. */
static void sets_ending(void)
{
    outer_set = FD(epoll_create1(0));
    pthread_t looker;
    CHECK_EQ(pthread_create(&looker, NULL, look_at_set, NULL), 0);
    struct epoll_event event = {.events = EPOLLIN};
    for (long i = scaled(20000); i > 0; i--) {
        int ends[2], sockets[2], set = FD(epoll_create1(0));
        OK(pipe(ends));
        OK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
        OK(epoll_ctl(outer_set, EPOLL_CTL_ADD, set, &event));
        CHECK_EQ(write(ends[1], "x", 1), 1);
        close(set);
        OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
        OK(epoll_ctl(outer_set, EPOLL_CTL_ADD, sockets[1], &event));
        set = FD(epoll_create1(0));
        union control control = {0};
        struct msghdr message = {.msg_iov = &(struct iovec){"s", 1}, .msg_iovlen = 1, .msg_control = &control};
        message.msg_controllen = CMSG_SPACE(sizeof set);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){CMSG_LEN(sizeof set), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(header), &set, sizeof set);
        CHECK_EQ(sendmsg(sockets[0], &message, 0), 1);
        close(set);
        close(sockets[0]);
        close(sockets[1]);
        close(ends[0]);
        close(ends[1]);
    }
    enough = true;
    CHECK_EQ(pthread_join(looker, NULL), 0);
    OK(close(outer_set));
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(pipes),          TEST(atomic_writes),   TEST(streams), TEST(splicing),       TEST(fifos),
        TEST(events),         TEST(timers),          TEST(signal_descriptors),            TEST(epolls),
        TEST(waits),          TEST(memory_files), TEST(long_write_ends), TEST(large_writes_beside_others),    TEST(stream_sockets),                TEST(message_sockets),
        TEST(passing),        TEST(sockets_ending),  TEST(terminals),         TEST(terminal_packets),         TEST(job_control), TEST(sets_ending),
    };
    return RUN_TESTS("ipc", tests, argc, argv);
}
