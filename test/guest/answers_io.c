/* What pipes, sockets, terminals, epoll and futexes answer at their edges, and which of several errors comes first. */
#include "check.h"
#include <arpa/inet.h>
#include <limits.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <termios.h>

static void *read_nothing(void *argument)
{
    char bytes[16];
    CHECK_EQ(recv(*(int *)argument, bytes, sizeof bytes, 0), 0);
    return NULL;
}

static struct sockaddr_in here(int fd)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    OK(bind(fd, (struct sockaddr *)&name, sizeof name));
    OK(getsockname(fd, (struct sockaddr *)&name, &length));
    return name;
}

static void shutting_down_datagrams(void)
{
    int fd = FD(socket(AF_INET, SOCK_DGRAM, 0)), other = FD(socket(AF_INET, SOCK_DGRAM, 0));
    CHECK_ERR(shutdown(fd, SHUT_RD), ENOTCONN);
    CHECK_ERR(shutdown(fd, 7), EINVAL);
    struct sockaddr_in name = here(other);
    here(fd);
    CHECK_ERR(shutdown(fd, SHUT_RD), ENOTCONN);
    OK(connect(fd, (struct sockaddr *)&name, sizeof name));
    pthread_t thread;
    PT(pthread_create(&thread, NULL, read_nothing, &fd));
    sleep_ms(30);
    OK(shutdown(fd, SHUT_RD));
    PT(pthread_join(thread, NULL));
    char byte = 'x';
    struct pollfd poll_ = {fd, POLLIN | POLLRDHUP | POLLOUT, 0};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(poll(&poll_, 1, 0), 1);
        CHECK_EQ(poll_.revents, POLLIN | POLLRDHUP | POLLOUT);
        if (i == 0)
            CHECK_EQ(recv(fd, &byte, 1, 0), 0);
        else
            CHECK_ERR(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
    }
    CHECK_EQ(send(fd, "y", 1, 0), 1);
    CHECK_EQ(recv(other, &byte, 1, 0), 1);
    OK(shutdown(fd, SHUT_WR));
    signal(SIGPIPE, SIG_IGN);
    CHECK_ERR(send(fd, "y", 1, 0), EPIPE);
    int tcp = FD(socket(AF_INET, SOCK_STREAM, 0)), file = FD(open("/dev/null", O_RDONLY));
    CHECK_ERR(shutdown(tcp, SHUT_RDWR), ENOTCONN);
    CHECK_ERR(shutdown(tcp, 7), EINVAL);
    CHECK_ERR(shutdown(file, SHUT_RD), ENOTSOCK);
    CHECK_ERR(shutdown(file, 7), ENOTSOCK);
    CHECK_ERR(shutdown(-1, 7), EBADF);
    int unix_ = FD(socket(AF_UNIX, SOCK_STREAM, 0));
    OK(shutdown(unix_, SHUT_RD));
    CHECK_ERR(shutdown(unix_, 7), EINVAL);
}

static void gifts_to_pipes(void)
{
    int ends[2];
    static char bytes[200000];
    struct iovec piece = {bytes, sizeof bytes};
    OK(pipe(ends));
    long got = vmsplice(ends[1], &piece, 1, 0);
    CHECK(got >= 61440 && got <= 65536);
    CHECK_ERR(vmsplice(ends[1], &piece, 1, SPLICE_F_NONBLOCK), EAGAIN);
    piece.iov_len = 100;
    CHECK_EQ(vmsplice(ends[0], &piece, 1, 0), 100);
    CHECK_ERR(vmsplice(ends[1], &piece, 1, 64), EINVAL);
    CHECK_EQ(vmsplice(ends[1], &piece, 0, 0), 0);
    CHECK_ERR(vmsplice(ends[1], &piece, 1025, 0), EINVAL);
    int file = FD(open("/dev/null", O_RDWR));
    CHECK_ERR(vmsplice(file, &piece, 1, 0), EBADF);
    int small[2];
    OK(pipe(small));
    OK(close(small[0]));
    signal(SIGPIPE, SIG_IGN);
    CHECK_ERR(vmsplice(small[1], &piece, 1, 0), EPIPE);
}

static void hanging_up(void)
{
    int ends[2], ep = FD(epoll_create1(0));
    struct epoll_event event = {.events = 0, .data.u64 = 7}, got[4];
    OK(pipe(ends));
    OK(epoll_ctl(ep, EPOLL_CTL_ADD, ends[0], &event));
    CHECK_EQ(write(ends[1], "x", 1), 1);
    CHECK_EQ(epoll_wait(ep, got, 4, 0), 0);
    pid_t pid = CHILD({
        OK(close(ends[1]));
        CHECK_EQ(epoll_wait(ep, got, 4, 5000), 1);
        CHECK_EQ(got[0].events, EPOLLHUP);
    });
    wait_until_asleep(pid);
    OK(close(ends[1]));
    JOIN(pid);
    CHECK_EQ(epoll_wait(ep, got, 4, 5000), 1);
    CHECK_EQ(got[0].events, EPOLLHUP);
    CHECK_EQ(got[0].data.u64, 7);
    OK(close(ends[0]));
    CHECK_EQ(epoll_wait(ep, got, 4, 0), 0);
    OK(pipe(ends));
    OK(epoll_ctl(ep, EPOLL_CTL_ADD, ends[1], &event));
    CHECK_EQ(epoll_wait(ep, got, 4, 0), 0);
    OK(close(ends[0]));
    CHECK_EQ(epoll_wait(ep, got, 4, 5000), 1);
    CHECK_EQ(got[0].events, EPOLLERR);
    /* Edge triggered: told once. */
    int again = FD(epoll_create1(0));
    event.events = EPOLLET;
    OK(epoll_ctl(again, EPOLL_CTL_ADD, ends[1], &event));
    CHECK_EQ(epoll_wait(again, got, 4, 1000), 1);
    CHECK_EQ(epoll_wait(again, got, 4, 0), 0);
    /* Once only, and then not at all: neither hang-up nor error. */
    event.events = EPOLLONESHOT;
    OK(epoll_ctl(again, EPOLL_CTL_MOD, ends[1], &event));
    CHECK_EQ(epoll_wait(again, got, 4, 1000), 1);
    CHECK_EQ(epoll_wait(again, got, 4, 0), 0);
    struct pollfd poll_ = {ends[1], 0, 0};
    CHECK_EQ(poll(&poll_, 1, 0), 1);
    CHECK_EQ(poll_.revents, POLLERR);
    int pair[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    event.events = 0;
    OK(epoll_ctl(again, EPOLL_CTL_ADD, pair[0], &event));
    OK(close(pair[1]));
    CHECK_EQ(epoll_wait(again, got, 4, 1000), 1);
    CHECK_EQ(got[0].events, EPOLLHUP);
}

static ssize_t receive(int fd, struct ucred *from, size_t room)
{
    char bytes[64], control[CMSG_SPACE(sizeof *from)];
    struct iovec piece = {bytes, room};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header && header->cmsg_type == SCM_CREDENTIALS);
    memcpy(from, CMSG_DATA(header), sizeof *from);
    return got;
}

/* A read tells of one sender, and ends before what another has sent. */
static void senders(void)
{
    int pair[2], yes = 1;
    struct ucred from;
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    OK(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes));
    CHECK_EQ(write(pair[0], "abc", 3), 3);
    CHECK_EQ(write(pair[0], "def", 3), 3);
    pid_t pid = CHILD(CHECK_EQ(write(pair[0], "ghi", 3), 3));
    JOIN(pid);
    CHECK_EQ(write(pair[0], "jkl", 3), 3);
    CHECK_EQ(receive(pair[1], &from, 64), 6);
    CHECK_EQ(from.pid, getpid());
    CHECK_EQ(receive(pair[1], &from, 64), 3);
    CHECK_EQ(from.pid, pid);
    CHECK_EQ(receive(pair[1], &from, 2), 2);
    CHECK_EQ(from.pid, getpid());
    CHECK_EQ(receive(pair[1], &from, 64), 1);
    /* Who does not ask for credentials gets all at once. */
    int no = 0;
    char bytes[16];
    OK(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &no, sizeof no));
    CHECK_EQ(write(pair[0], "abc", 3), 3);
    JOIN(CHILD(CHECK_EQ(write(pair[0], "ghi", 3), 3)));
    CHECK_EQ(recv(pair[1], bytes, sizeof bytes, 0), 6);
}

static void least_buffers(void)
{
    static const int kinds[][2] = {{AF_UNIX, SOCK_STREAM}, {AF_INET, SOCK_DGRAM}, {AF_INET, SOCK_STREAM}};
    for (int i = 0; i < 3; i++) {
        int fd = FD(socket(kinds[i][0], kinds[i][1], 0)), value = 1;
        socklen_t length = sizeof value;
        OK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof value));
        OK(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &length));
        CHECK(value >= 2048 && value < 4096);
        value = 1;
        OK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof value));
        OK(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &length));
        CHECK(value >= 4096 && value < 8192);
        value = 10000;
        OK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof value));
        OK(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &length));
        CHECK_EQ(value, 20000);
    }
}

/* What is written to the master is kept well beyond one page for a slave that does not read yet. */
static volatile sig_atomic_t handled;

static void handle(int number)
{
    handled = number;
}

/* Who asks and never waits gets the signals that only its mask lets in. */
static void signals_without_waiting(void)
{
    sigset_t usual, none;
    OK(sigemptyset(&none));
    OK(sigemptyset(&usual) | sigaddset(&usual, SIGUSR1));
    OK(sigprocmask(SIG_BLOCK, &usual, NULL));
    OK(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handle}, NULL));
    OK(raise(SIGUSR1));
    CHECK_ERR(ppoll(NULL, 0, &(struct timespec){0, 0}, &none), EINTR);
    CHECK_EQ(handled, SIGUSR1);
    handled = 0;
    OK(raise(SIGUSR1));
    CHECK_ERR(pselect(0, NULL, NULL, NULL, &(struct timespec){0, 0}, &none), EINTR);
    CHECK_EQ(handled, SIGUSR1);
    handled = 0;
    /* What there is comes first. */
    struct pollfd some = {.fd = FD(eventfd(1, 0)), .events = POLLIN};
    OK(raise(SIGUSR1));
    CHECK_EQ(ppoll(&some, 1, &(struct timespec){0, 0}, &none), 1);
    CHECK_EQ(handled, 0);
    CHECK_EQ(ppoll(NULL, 0, &(struct timespec){0, 0}, NULL), 0);
}

static void sets_of_devices(void)
{
    static const char *const ready[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/urandom"};
    int set = FD(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    for (size_t i = 0; i < sizeof ready / sizeof ready[0]; i++)
        CHECK_ERR(epoll_ctl(set, EPOLL_CTL_ADD, FD(open(ready[i], O_RDWR)), &event), EPERM);
    OK(epoll_ctl(set, EPOLL_CTL_ADD, FD(open("/dev/random", O_RDONLY)), &event));
}

/* A terminal, neither side of which waits: its controller, and *slave. */
static int terminal(int *slave)
{
    int master = FD(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK));
    OK(grantpt(master));
    OK(unlockpt(master));
    char name[64];
    OK(ptsname_r(master, name, sizeof name));
    *slave = FD(open(name, O_RDWR | O_NOCTTY | O_NONBLOCK));
    return master;
}

/* Reads until there are so many bytes. */
static void read_bytes(int fd, char *to, size_t wanted)
{
    for (int64_t end = patience_end(); wanted > 0 && !is_over(end);) {
        ssize_t got = read(fd, to, wanted);
        if (got > 0) {
            to += got;
            wanted -= (size_t)got;
        } else {
            CHECK(got < 0 && errno == EAGAIN);
            sleep_ms(2);
        }
    }
    CHECK_EQ(wanted, 0);
}

/* What a program has written is shown, whatever key is typed then, and whatever it drops. */
static void shown_output_stays(void)
{
    int slave, master = terminal(&slave);
    struct pollfd some = {.fd = master, .events = POLLIN};
    char shown[16];
    CHECK_EQ(write(slave, "before\n", 7), 7);
    CHECK_EQ(poll(&some, 1, 10000), 1);
    CHECK_EQ(write(master, "\003", 1), 1);
    read_bytes(master, shown, 10);
    CHECK(memcmp(shown, "before\r\n^C", 10) == 0);
    CHECK_EQ(write(slave, "again\n", 6), 6);
    /* It arrives in pieces, and one that is still on its way may be dropped. */
    int arrived = 0;
    for (int64_t end = patience_end(); arrived < 7 && !is_over(end); sleep_ms(1))
        OK(ioctl(master, FIONREAD, &arrived));
    CHECK_EQ(arrived, 7);
    OK(tcflush(slave, TCIOFLUSH));
    read_bytes(master, shown, 7);
    CHECK(memcmp(shown, "again\r\n", 7) == 0);
}

/* Who does not wait gets what there is, though less than VMIN. */
static void fewer_than_least(void)
{
    int slave, master = terminal(&slave);
    struct termios settings;
    OK(tcgetattr(slave, &settings));
    cfmakeraw(&settings);
    settings.c_cc[VMIN] = 3;
    OK(tcsetattr(slave, TCSANOW, &settings));
    char got[8];
    CHECK_ERR(read(slave, got, sizeof got), EAGAIN);
    CHECK_EQ(write(master, "xy", 2), 2);
    read_bytes(slave, got, 2);
    CHECK(memcmp(got, "xy", 2) == 0);
}

static void large_terminal_input(void)
{
    int slave, master = terminal(&slave);
    struct termios settings;
    OK(tcgetattr(slave, &settings));
    cfmakeraw(&settings);
    OK(tcsetattr(slave, TCSANOW, &settings));
    static char out[10000], in[10000];
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (char)(i * 7 + i / 256);
    size_t sent = 0;
    while (sent < sizeof out) {
        ssize_t put = write(master, out + sent, sizeof out - sent);
        if (put < 0)
            FAIL("after %zu bytes", sent);
        sent += put;
    }
    size_t got = 0;
    for (int64_t end = patience_end(); got < sizeof in && !is_over(end);) {
        ssize_t part = read(slave, in + got, sizeof in - got);
        if (part < 0) {
            CHECK_EQ(errno, EAGAIN);
            sleep_ms(2);
        } else
            got += part;
    }
    CHECK_EQ(got, sizeof in);
    CHECK(memcmp(in, out, sizeof in) == 0);
    /* And the other way. */
    for (sent = 0; sent < sizeof out;) {
        ssize_t put = write(slave, out + sent, sizeof out - sent);
        if (put < 0)
            FAIL("after %zu bytes", sent);
        sent += put;
    }
    for (got = 0; got < sizeof in;) {
        ssize_t part = read(master, in + got, sizeof in - got);
        if (part < 0) {
            CHECK_EQ(errno, EAGAIN);
            sleep_ms(2);
        } else
            got += part;
    }
    CHECK(memcmp(in, out, sizeof in) == 0);
    /* At some point it is full. */
    size_t most = 0;
    for (ssize_t put; (put = write(master, out, sizeof out)) > 0;)
        CHECK((most += put) < 1 << 20);
    CHECK_EQ(errno, EAGAIN);
    CHECK(most >= 8000);
    OK(tcflush(slave, TCIFLUSH));
}

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static uint32_t *word;
static int waiting_operation;

static void *wait_on_word(void *result)
{
    struct timespec limit = {60, 0};
    *(long *)result = futex(word, waiting_operation, 0, &limit);
    return NULL;
}

static long wake_soon(uint32_t *address, int operation)
{
    long woken = 0;
    AWAIT((woken = futex(address, operation, 1, NULL)) != 0, 1000);
    return woken;
}

/* A private futex is its process's alone: neither a call without the flag nor another process reaches its waiters. */
static void private_futexes(void)
{
    word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(word != MAP_FAILED);
    long result = -1;
    pthread_t thread;
    waiting_operation = FUTEX_WAIT_PRIVATE;
    PT(pthread_create(&thread, NULL, wait_on_word, &result));
    sleep_ms(50);
    CHECK_EQ(futex(word, FUTEX_WAKE, 1, NULL), 0);
    JOIN(CHILD({
        CHECK_EQ(futex(word, FUTEX_WAKE, 1, NULL), 0);
        CHECK_EQ(futex(word, FUTEX_WAKE_PRIVATE, 1, NULL), 0);
    }));
    CHECK_EQ(wake_soon(word, FUTEX_WAKE_PRIVATE), 1);
    PT(pthread_join(thread, NULL));
    CHECK_EQ(result, 0);
    waiting_operation = FUTEX_WAIT;
    PT(pthread_create(&thread, NULL, wait_on_word, &result));
    sleep_ms(50);
    CHECK_EQ(futex(word, FUTEX_WAKE_PRIVATE, 1, NULL), 0);
    JOIN(CHILD(CHECK_EQ(wake_soon(word, FUTEX_WAKE), 1)));
    PT(pthread_join(thread, NULL));
    CHECK_EQ(result, 0);
    /* Private memory: with and without the flag are two futexes as well. */
    static uint32_t own;
    word = &own;
    PT(pthread_create(&thread, NULL, wait_on_word, &result));
    sleep_ms(50);
    CHECK_EQ(futex(word, FUTEX_WAKE_PRIVATE, 1, NULL), 0);
    JOIN(CHILD(CHECK_EQ(futex(word, FUTEX_WAKE, 1, NULL), 0)));
    CHECK_EQ(wake_soon(word, FUTEX_WAKE), 1);
    PT(pthread_join(thread, NULL));
    CHECK_EQ(futex((uint32_t *)((char *)word + 1), FUTEX_WAKE, 1, NULL), -1);
    CHECK_EQ(errno, EINVAL);
    CHECK_ERR(futex((uint32_t *)8, FUTEX_WAIT, 0, NULL), EFAULT);
    CHECK_EQ(futex((uint32_t *)8, FUTEX_WAKE_PRIVATE, 1, NULL), 0);
    CHECK_ERR(futex(word, 77, 0, NULL), ENOSYS);
    struct timespec odd = {0, 2000000000};
    CHECK_ERR(futex((uint32_t *)8, FUTEX_WAIT, 0, &odd), EINVAL);
}

#define CALL(...) syscall(SYS_##__VA_ARGS__)

/* Of several errors in one call, the one that Linux finds first. */
static void first_errors(void)
{
    NEEDS_ROOT();
    int ep = FD(epoll_create1(0)), ev = FD(eventfd(0, 0)), timer = FD(timerfd_create(CLOCK_MONOTONIC, 0));
    int udp = FD(socket(AF_INET, SOCK_DGRAM, 0)), file = FD(open("file", O_RDWR | O_CREAT, 0644));
    void *const bad = (void *)8;
    CHECK_ERR(CALL(epoll_wait, ep, NULL, 0, 0), EINVAL);
    CHECK_ERR(CALL(epoll_wait, ep, NULL, -1, 0), EINVAL);
    CHECK_ERR(CALL(epoll_wait, file, bad, 1, 0), EINVAL);
    CHECK_ERR(CALL(epoll_ctl, ep, 99, ev, NULL), EFAULT);
    CHECK_ERR(CALL(epoll_ctl, -1, EPOLL_CTL_ADD, ev, NULL), EFAULT);
    CHECK_ERR(CALL(epoll_ctl, ep, EPOLL_CTL_DEL, ev, NULL), ENOENT);
    struct epoll_event event = {0};
    CHECK_ERR(CALL(epoll_ctl, ep, 99, ev, &event), EINVAL);
    CHECK_ERR(CALL(epoll_ctl, ep, EPOLL_CTL_ADD, file, &event), EPERM);
    CHECK_ERR(CALL(epoll_ctl, ep, EPOLL_CTL_ADD, ep, &event), EINVAL);
    CHECK_ERR(CALL(epoll_create, 0), EINVAL);
    CHECK_ERR(CALL(epoll_pwait, ep, &event, 1, 0, bad, 7), EINVAL);
    CHECK_ERR(CALL(poll, NULL, 1 << 30, 0), EINVAL);
    CHECK_ERR(CALL(poll, NULL, 1, 0), EFAULT);
    CHECK_ERR(CALL(select, -1, NULL, NULL, NULL, NULL), EINVAL);
    CHECK_ERR(CALL(pselect6, 0, NULL, NULL, NULL, bad, NULL), EFAULT);
    CHECK_ERR(CALL(sched_setscheduler, 0, -1, NULL), EINVAL);
    CHECK_ERR(CALL(sched_setscheduler, 0, SCHED_OTHER, NULL), EINVAL);
    CHECK_ERR(CALL(sched_setparam, 0, NULL), EINVAL);
    CHECK_ERR(CALL(sched_getparam, 0, NULL), EINVAL);
    CHECK_ERR(CALL(sched_getparam, -1, bad), EINVAL);
    CHECK_ERR(CALL(sched_getscheduler, -1), EINVAL);
    CHECK_ERR(CALL(sched_rr_get_interval, -1, NULL), EINVAL);
    CHECK_ERR(CALL(sched_setattr, 0, NULL, 0), EINVAL);
    CHECK_ERR(CALL(sched_getattr, 0, NULL, 48, 0), EINVAL);
    CHECK_ERR(CALL(sched_getaffinity, 0, 3, NULL), EINVAL);
    CHECK_ERR(CALL(sched_getaffinity, 0, 128, NULL), EFAULT);
    CHECK_ERR(CALL(getpriority, 99, 0), EINVAL);
    CHECK_ERR(CALL(setpriority, 99, 0, 0), EINVAL);
    CHECK_ERR(CALL(clock_gettime, 999, NULL), EINVAL);
    CHECK_ERR(CALL(clock_gettime, CLOCK_REALTIME, bad), EFAULT);
    CHECK_ERR(CALL(clock_settime, 999, NULL), EINVAL);
    CHECK_ERR(CALL(clock_nanosleep, 999, 0, NULL, NULL), EINVAL);
    CHECK_ERR(CALL(clock_nanosleep, CLOCK_THREAD_CPUTIME_ID, 0, NULL, NULL), EOPNOTSUPP);
    CHECK_ERR(CALL(clock_nanosleep, CLOCK_REALTIME, 0, NULL, NULL), EFAULT);
    OK(CALL(clock_getres, CLOCK_REALTIME, NULL));
    CHECK_ERR(CALL(clock_getres, 999, NULL), EINVAL);
    CHECK_ERR(CALL(timer_create, 999, NULL, NULL), EINVAL);
    CHECK_ERR(CALL(timer_create, 999, bad, NULL), EFAULT);
    CHECK_ERR(CALL(timer_settime, 999, 0, NULL, NULL), EINVAL);
    CHECK_ERR(CALL(timer_settime, 999, 0, bad, NULL), EFAULT);
    CHECK_ERR(CALL(timer_gettime, 999, NULL), EINVAL);
    CHECK_ERR(CALL(getitimer, 99, NULL), EINVAL);
    CHECK_ERR(CALL(setitimer, 99, bad, NULL), EFAULT);
    CHECK_ERR(CALL(getrusage, 99, NULL), EINVAL);
    CHECK_ERR(CALL(getrlimit, 99, NULL), EINVAL);
    CHECK_ERR(CALL(setrlimit, 99, NULL), EFAULT);
    CHECK_ERR(CALL(prlimit64, 0, 99, bad, NULL), EFAULT);
    CHECK_ERR(CALL(nanosleep, NULL, NULL), EFAULT);
    CHECK_ERR(CALL(rt_sigaction, 99, bad, NULL, 8), EFAULT);
    CHECK_ERR(CALL(rt_sigaction, SIGKILL, bad, NULL, 8), EFAULT);
    CHECK_ERR(CALL(rt_sigaction, 0, NULL, NULL, 8), EINVAL);
    CHECK_ERR(CALL(rt_sigaction, SIGUSR1, bad, NULL, 7), EINVAL);
    CHECK_ERR(CALL(rt_sigprocmask, 99, bad, NULL, 8), EFAULT);
    CHECK_ERR(CALL(rt_sigprocmask, 99, bad, NULL, 4), EINVAL);
    OK(CALL(rt_sigprocmask, 99, NULL, NULL, 8));
    CHECK_ERR(CALL(rt_sigpending, bad, 9), EINVAL);
    CHECK_ERR(CALL(rt_sigsuspend, bad, 7), EINVAL);
    CHECK_ERR(CALL(rt_sigtimedwait, bad, NULL, NULL, 7), EINVAL);
    CHECK_ERR(CALL(rt_sigqueueinfo, 0, 0, bad), EFAULT);
    CHECK_ERR(CALL(signalfd4, -1, bad, 7, 0), EINVAL);
    CHECK_ERR(CALL(signalfd4, -1, bad, 8, 0), EFAULT);
    CHECK_ERR(CALL(signalfd4, -1, &event, 8, 1), EINVAL);
    CHECK_ERR(CALL(timerfd_create, 999, 0), EINVAL);
    CHECK_ERR(CALL(timerfd_settime, timer, 99, NULL, NULL), EFAULT);
    CHECK_ERR(CALL(timerfd_settime, ev, 0, bad, NULL), EFAULT);
    CHECK_ERR(CALL(timerfd_gettime, ev, NULL), EINVAL);
    CHECK_ERR(CALL(timerfd_gettime, -1, NULL), EBADF);
    CHECK_ERR(CALL(eventfd2, 0, 7), EINVAL);
    CHECK_ERR(CALL(wait4, -1, bad, 0x100, NULL), EINVAL);
    CHECK_ERR(CALL(readv, file, NULL, -1), EINVAL);
    CHECK_ERR(CALL(readv, file, NULL, 1025), EINVAL);
    CHECK_ERR(CALL(readv, file, NULL, 1), EFAULT);
    CHECK_ERR(CALL(readv, -1, NULL, 1), EBADF);
    CHECK_EQ(CALL(readv, file, NULL, 0), 0);
    CHECK_EQ(CALL(read, file, bad, 0), 0);
    CHECK_ERR(CALL(read, file, bad, -1L), EFAULT);
    CHECK_ERR(CALL(write, file, bad, 1), EFAULT);
    CHECK_ERR(CALL(read, ev, bad, 7), EINVAL);
    CHECK_ERR(CALL(write, ev, bad, 7), EINVAL);
    CHECK_ERR(CALL(write, ev, bad, 8), EFAULT);
    CHECK_ERR(CALL(read, timer, bad, 7), EINVAL);
    CHECK_ERR(CALL(read, ep, bad, 8), EINVAL);
    CHECK_ERR(CALL(clone3, NULL, 1), EINVAL);
    CHECK_ERR(CALL(clone3, NULL, 64), EFAULT);
    CHECK_ERR(CALL(openat2, -1, NULL, NULL, 0), EINVAL);
    CHECK_ERR(CALL(openat2, -1, NULL, NULL, 24), EFAULT);
    CHECK_ERR(CALL(openat2, -1, NULL, NULL, 5000), E2BIG);
    CHECK_ERR(CALL(openat, -1, "relative", O_RDONLY, 0), EBADF);
    CHECK_ERR(CALL(openat, file, "relative", O_RDONLY, 0), ENOTDIR);
    CHECK_ERR(CALL(openat, -1, NULL, O_RDONLY, 0), EFAULT);
    CHECK_ERR(CALL(openat, -1, "", O_RDONLY, 0), ENOENT);
    CHECK_ERR(CALL(statx, -1, NULL, 0x6000, 0, NULL), EINVAL);
    CHECK_ERR(CALL(statx, -1, NULL, 0, 0x80000000, NULL), EINVAL);
    CHECK_ERR(CALL(newfstatat, -1, NULL, NULL, 0x8), EINVAL);
    CHECK_ERR(CALL(faccessat2, -1, NULL, 8, 0), EINVAL);
    CHECK_ERR(CALL(faccessat2, -1, NULL, 0, 1), EINVAL);
    CHECK_ERR(CALL(access, NULL, 8), EINVAL);
    CHECK_ERR(CALL(readlink, NULL, NULL, 0), EINVAL);
    CHECK_ERR(CALL(readlink, "file", bad, -1), EINVAL);
    CHECK_ERR(CALL(readlink, "file", bad, 9), EINVAL);
    CHECK_ERR(CALL(getcwd, NULL, 0), ERANGE);
    CHECK_ERR(CALL(linkat, -1, NULL, -1, NULL, 1), EINVAL);
    CHECK_ERR(CALL(unlinkat, -1, NULL, 1), EINVAL);
    CHECK_ERR(CALL(renameat2, -1, "a", -1, "b", 64), EINVAL);
    CHECK_ERR(CALL(renameat2, -1, "a", -1, "b", 3), EINVAL);
    CHECK_ERR(CALL(fchownat, -1, NULL, 0, 0, 1), EINVAL);
    CHECK_ERR(CALL(utimensat, AT_FDCWD, NULL, NULL, 0), EFAULT);
    CHECK_ERR(CALL(utimensat, file, NULL, NULL, 0x100), EINVAL);
    CHECK_ERR(CALL(utimensat, -1, "x", bad, 0), EFAULT);
    CHECK_ERR(CALL(umount2, NULL, 0x100), EINVAL);
    CHECK_ERR(CALL(mknod, "x", 0170000, 0), EINVAL);
    CHECK_ERR(CALL(mknod, "x", S_IFDIR, 0), EPERM);
    CHECK_ERR(CALL(truncate, "file", -1L), EINVAL);
    CHECK_ERR(CALL(truncate, NULL, -1L), EINVAL);
    CHECK_ERR(CALL(ftruncate, -1, -1L), EINVAL);
    CHECK_ERR(CALL(fallocate, file, 0, 0, 0), EINVAL);
    CHECK_ERR(CALL(fallocate, file, 0, -1L, 1L), EINVAL);
    CHECK_ERR(CALL(fallocate, file, 0x80, 0, 1), EOPNOTSUPP);
    CHECK_ERR(CALL(dup3, 0, 0, 0), EINVAL);
    CHECK_ERR(CALL(dup3, -1, 5, 7), EINVAL);
    CHECK_ERR(CALL(dup3, -1, 5, 0), EBADF);
    CHECK_ERR(CALL(dup2, 0, INT_MAX), EBADF);
    CHECK_ERR(CALL(pipe2, bad, 7), EINVAL);
    CHECK_ERR(CALL(pipe2, bad, 0), EFAULT);
    CHECK_ERR(CALL(getgroups, -1, NULL), EINVAL);
    CHECK_ERR(CALL(setgroups, 65537, NULL), EINVAL);
    CHECK_ERR(CALL(getrandom, NULL, 1, 99), EINVAL);
    CHECK_ERR(CALL(getrandom, bad, 1, 0), EFAULT);
    CHECK_ERR(CALL(sysinfo, NULL), EFAULT);
    CHECK_ERR(CALL(uname, NULL), EFAULT);
    CHECK_ERR(CALL(times, bad), EFAULT);
    CHECK_ERR(CALL(sethostname, NULL, -1), EINVAL);
    CHECK_ERR(CALL(memfd_create, NULL, 0x8000), EINVAL);
    CHECK_ERR(CALL(memfd_create, NULL, 0), EFAULT);
    CHECK_ERR(CALL(close_range, 5, 4, 0), EINVAL);
    CHECK_ERR(CALL(splice, -1, NULL, -1, NULL, 1, 64), EINVAL);
    CHECK_EQ(CALL(splice, -1, NULL, -1, NULL, 0, 0), 0);
    CHECK_EQ(CALL(tee, -1, -1, 0, 0), 0);
    CHECK_ERR(CALL(tee, -1, -1, 1, 64), EINVAL);
    CHECK_ERR(CALL(copy_file_range, -1, bad, -1, NULL, 1, 1), EBADF);
    /* Sockets. */
    CHECK_ERR(CALL(socket, 99, 0, 0), EAFNOSUPPORT);
    CHECK_ERR(CALL(socket, AF_INET, 99, 0), EINVAL);
    CHECK_ERR(CALL(socket, AF_INET, 0x80 | SOCK_STREAM, 0), EINVAL);
    CHECK_ERR(CALL(socket, AF_INET, SOCK_STREAM, 17), EPROTONOSUPPORT);
    CHECK_ERR(CALL(socketpair, AF_UNIX, SOCK_STREAM, 0, bad), EFAULT);
    CHECK_ERR(CALL(bind, udp, NULL, 129), EINVAL);
    CHECK_ERR(CALL(bind, udp, NULL, -1), EINVAL);
    CHECK_ERR(CALL(bind, udp, NULL, 16), EFAULT);
    CHECK_ERR(CALL(bind, udp, NULL, 0), EINVAL);
    CHECK_ERR(CALL(bind, file, NULL, -1), ENOTSOCK);
    CHECK_ERR(CALL(bind, -1, NULL, -1), EBADF);
    CHECK_ERR(CALL(connect, udp, NULL, 0), EINVAL);
    CHECK_ERR(CALL(connect, udp, NULL, 129), EINVAL);
    CHECK_ERR(CALL(connect, udp, NULL, 16), EFAULT);
    CHECK_ERR(CALL(listen, udp, 1), EOPNOTSUPP);
    CHECK_ERR(CALL(accept4, udp, NULL, NULL, 1), EINVAL);
    CHECK_ERR(CALL(accept, udp, NULL, NULL), EOPNOTSUPP);
    CHECK_ERR(CALL(getsockname, udp, NULL, NULL), EFAULT);
    CHECK_ERR(CALL(getpeername, udp, NULL, NULL), ENOTCONN);
    CHECK_ERR(CALL(setsockopt, udp, SOL_SOCKET, SO_RCVBUF, NULL, -1), EINVAL);
    CHECK_ERR(CALL(setsockopt, udp, SOL_SOCKET, SO_RCVBUF, NULL, 4), EFAULT);
    CHECK_ERR(CALL(setsockopt, udp, SOL_SOCKET, 9999, &event, 4), ENOPROTOOPT);
    CHECK_ERR(CALL(getsockopt, udp, SOL_SOCKET, SO_RCVBUF, NULL, NULL), EFAULT);
    CHECK_ERR(CALL(sendto, udp, "x", 1, 0, bad, 129), EINVAL);
    CHECK_ERR(CALL(sendto, udp, "x", 1, 0, bad, 16), EFAULT);
    CHECK_ERR(CALL(sendmsg, udp, NULL, 0), EFAULT);
    CHECK_ERR(CALL(recvmsg, udp, NULL, 0), EFAULT);
    CHECK_ERR(CALL(recvmsg, file, NULL, 0), ENOTSOCK);
    struct msghdr message = {.msg_iovlen = 1025};
    CHECK_ERR(CALL(sendmsg, udp, &message, 0), EMSGSIZE);
    CHECK_ERR(CALL(recvmsg, udp, &message, 0), EMSGSIZE);
}

/* Who listens is refused all else at once, however often it was asked whether somebody has come. */
static void listening_sockets(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    int fd = FD(socket(AF_INET, SOCK_STREAM, 0));
    char byte;
    OK(bind(fd, (struct sockaddr *)&here, sizeof here));
    OK(listen(fd, 1));
    OK(getsockname(fd, (struct sockaddr *)&here, &size));
    struct pollfd wanted = {fd, POLLIN | POLLOUT, 0};
    OK(poll(&wanted, 1, 1));
    CHECK_ERR(read(fd, &byte, 1), ENOTCONN);
    CHECK_ERR(recv(fd, &byte, 1, 0), ENOTCONN);
    CHECK_ERR(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_ERR(connect(fd, (struct sockaddr *)&here, sizeof here), EISCONN);
    OK(close(fd));
}

static int all_events(int fd)
{
    struct pollfd one = {fd, POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLWRBAND, 0};
    CHECK(poll(&one, 1, 0) >= 0);
    return one.revents;
}

/* Counters, timers and signals are ready in one spelling alone, and no pipe is filled from them. */
static void small_files(void)
{
    int pipes[2], counter = FD(eventfd(1, EFD_NONBLOCK)), timer = FD(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    OK(sigprocmask(SIG_BLOCK, &set, NULL));
    OK(kill(getpid(), SIGUSR1));
    int signals = FD(signalfd(-1, &set, SFD_NONBLOCK));
    struct itimerspec soon = {.it_value = {0, 1}};
    OK(timerfd_settime(timer, 0, &soon, NULL));
    AWAIT(all_events(timer) != 0, 1000);
    CHECK_EQ(all_events(counter), POLLIN | POLLOUT);
    CHECK_EQ(all_events(timer), POLLIN);
    CHECK_EQ(all_events(signals), POLLIN);
    OK(pipe(pipes));
    CHECK_ERR(splice(counter, NULL, pipes[1], NULL, 8, 0), EINVAL);
    CHECK_ERR(splice(timer, NULL, pipes[1], NULL, 8, 0), EINVAL);
    CHECK_ERR(splice(signals, NULL, pipes[1], NULL, 128, 0), EINVAL);
    CHECK_ERR(sendfile(pipes[1], counter, NULL, 8), EINVAL);
    uint64_t value;
    CHECK_EQ(read(counter, &value, 8), 8);
    CHECK_ERR(splice(counter, NULL, pipes[1], NULL, 8, 0), EINVAL);
}

/* Once both sides of a connection are done there is no peer. */
static void no_peer_any_more(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, peer;
    socklen_t size = sizeof here;
    char byte;
    int listener = FD(socket(AF_INET, SOCK_STREAM, 0)), fd = FD(socket(AF_INET, SOCK_STREAM, 0));
    OK(bind(listener, (struct sockaddr *)&here, sizeof here));
    OK(listen(listener, 1));
    OK(getsockname(listener, (struct sockaddr *)&here, &size));
    OK(connect(fd, (struct sockaddr *)&here, sizeof here));
    int accepted = FD(accept(listener, NULL, NULL));
    OK(shutdown(fd, SHUT_WR));
    CHECK_EQ(read(accepted, &byte, 1), 0);
    OK(shutdown(accepted, SHUT_WR));
    CHECK_EQ(read(fd, &byte, 1), 0);
    AWAIT(getpeername(accepted, (struct sockaddr *)&peer, &size) != 0, 1000);
    CHECK_ERR(getpeername(accepted, (struct sockaddr *)&peer, &size), ENOTCONN);
}

/* A group in the background that nobody would continue is not stopped, and does not come to the foreground. */
static void orphans_in_the_background(void)
{
    int controller = FD(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)), results[2];
    OK(grantpt(controller));
    OK(unlockpt(controller));
    OK(pipe(results));
    pid_t leader = CHILD({
        CHECK(setsid() > 0);
        int terminal = FD(open(ptsname(controller), O_RDWR));
        OK(ioctl(terminal, TIOCSCTTY, 0));
        JOIN(CHILD({
            pid_t middle = getpid();
            pid_t orphan = fork();
            if (orphan == 0) {
                OK(setpgid(0, 0));
                AWAIT(getppid() != middle, 1000);
                int result = tcsetpgrp(terminal, getpgrp()) == 0 ? 0 : errno;
                CHECK_EQ(write(results[1], &result, sizeof result), sizeof result);
                _exit(0);
            }
            CHECK(orphan > 0);
        }));
        close(results[1]);
        char end;
        /* Until the parent has the answer. */
        CHECK(read(terminal, &end, 1) >= 0);
    });
    close(results[1]);
    int result = -1;
    CHECK_EQ(read(results[0], &result, sizeof result), sizeof result);
    CHECK_EQ(result, ENOTTY);
    CHECK_EQ(write(controller, "\n", 1), 1);
    JOIN(leader);
}

/* Files that never make anybody wait are refused by a set, whatever is to be done with them. */
static void sets_without_files(void)
{
    int set = FD(epoll_create1(0)), file = FD(open("file", O_RDWR | O_CREAT, 0600));
    struct epoll_event event = {.events = EPOLLIN};
    static const int operations[] = {EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, 99};
    int ends[2];
    OK(pipe(ends));
    for (int i = 0; i < 4; i++)
        CHECK_ERR(epoll_ctl(set, operations[i], file, &event), EPERM);
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event), ENOENT);
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_DEL, ends[0], &event), ENOENT);
    CHECK_ERR(epoll_ctl(set, 99, ends[0], &event), EINVAL);
}

/* Timers of processor time keep their interval while they are off, that of real time does not. */
static void timers_that_are_off(void)
{
    static const int timers[] = {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF};
    for (int i = 0; i < 3; i++) {
        struct itimerval on = {{10, 0}, {100, 0}}, off = {{5, 0}, {0, 0}}, old;
        OK(setitimer(timers[i], &on, NULL));
        OK(setitimer(timers[i], &off, &old));
        CHECK(old.it_interval.tv_sec == 10 && old.it_value.tv_sec > 0);
        OK(getitimer(timers[i], &old));
        CHECK_EQ(old.it_interval.tv_sec, i == 0 ? 0 : 5);
        CHECK(old.it_value.tv_sec == 0 && old.it_value.tv_usec == 0);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(sets_without_files),      TEST(timers_that_are_off),
        TEST(shutting_down_datagrams), TEST(gifts_to_pipes),       TEST(hanging_up),      TEST(senders),
        TEST(least_buffers),           TEST(large_terminal_input), TEST(shown_output_stays), TEST(sets_of_devices), TEST(signals_without_waiting), TEST(fewer_than_least), TEST(private_futexes), TEST(first_errors),
        TEST(listening_sockets),       TEST(small_files),          TEST(no_peer_any_more), TEST(orphans_in_the_background),
    };
    return RUN_TESTS("answers_io", tests, argc, argv);
}
