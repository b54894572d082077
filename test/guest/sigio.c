/* Signals about I/O: whom they go to, what they say, and who may not be signalled. */
#include "check.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>

#define SIG (SIGRTMIN + 3)
#include "awaited.h"

/* None but of this reason: of some there may be several. */
static void only(int code)
{
    siginfo_t info;
    struct timespec at_once = {0, 0};
    int signal;
    while ((signal = sigtimedwait(&watched, &info, &at_once)) >= 0)
        CHECK_EQ(info.si_code, code);
}

#define EXPECT(fd, code, band) expect(__LINE__, fd, code, band)

static void expect(int line, int fd, int code, long band)
{
    siginfo_t info = next();
    if (info.si_signo != SIG || info.si_code != code || info.si_band != band || info.si_fd != fd)
        FAIL("line %d: signal %d, code %d, band %#lx, descriptor %d; want code %d, band %#lx, descriptor %d", line,
             info.si_signo, info.si_code, info.si_band, info.si_fd, code, band, fd);
}

#define BAND_IN (POLLIN | POLLRDNORM)
#define BAND_OUT (POLLOUT | POLLWRNORM | POLLWRBAND)

/* Switches the signals of a file on, for this process. */
static void async(int fd, int signal)
{
    OK(fcntl(fd, F_SETOWN, getpid()));
    OK(fcntl(fd, F_SETSIG, signal));
    OK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC));
}

static void owners(void)
{
    int ends[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    int fd = ends[0];
    struct f_owner_ex owner = {9, 9};
    OK(fcntl(fd, F_GETOWN_EX, &owner));
    CHECK(owner.type == F_OWNER_TID && owner.pid == 0);
    CHECK_EQ(syscall(SYS_fcntl, fd, F_GETOWN), 0);
    CHECK_EQ(fcntl(fd, F_GETSIG), 0);
    OK(fcntl(fd, F_SETOWN, getpid()));
    CHECK_EQ(fcntl(fd, F_GETOWN), getpid());
    OK(fcntl(fd, F_GETOWN_EX, &owner));
    CHECK(owner.type == F_OWNER_PID && owner.pid == getpid());
    OK(fcntl(fd, F_SETOWN, -getpgrp()));
    CHECK_EQ(fcntl(fd, F_GETOWN), -getpgrp());
    OK(fcntl(fd, F_GETOWN_EX, &owner));
    CHECK(owner.type == F_OWNER_PGRP && owner.pid == getpgrp());
    owner = (struct f_owner_ex){F_OWNER_TID, gettid()};
    OK(fcntl(fd, F_SETOWN_EX, &owner));
    owner.pid = 0;
    OK(fcntl(fd, F_GETOWN_EX, &owner));
    CHECK(owner.type == F_OWNER_TID && owner.pid == gettid());
    owner = (struct f_owner_ex){3, getpid()};
    CHECK_ERR(fcntl(fd, F_SETOWN_EX, &owner), EINVAL);
    owner = (struct f_owner_ex){F_OWNER_PID, 4000000};
    CHECK_ERR(fcntl(fd, F_SETOWN_EX, &owner), ESRCH);
    owner = (struct f_owner_ex){F_OWNER_PGRP, -1};
    CHECK_ERR(fcntl(fd, F_SETOWN_EX, &owner), ESRCH);
    CHECK_ERR(fcntl(fd, F_SETOWN, 4000000), ESRCH);
    CHECK_ERR(fcntl(fd, F_SETOWN, -4000000), ESRCH);
    CHECK_ERR(fcntl(fd, F_SETOWN, INT32_MIN), EINVAL);
    CHECK_ERR(fcntl(fd, F_SETOWN_EX, 8), EFAULT);
    CHECK_ERR(fcntl(fd, F_SETSIG, 65), EINVAL);
    CHECK_ERR(fcntl(fd, F_SETSIG, -1), EINVAL);
    OK(fcntl(fd, F_SETSIG, 64));
    CHECK_EQ(fcntl(fd, F_GETSIG), 64);
    /* The requests of old. */
    int id = getpid();
    OK(ioctl(fd, FIOSETOWN, &id));
    id = 0;
    OK(ioctl(fd, SIOCGPGRP, &id));
    CHECK_EQ(id, getpid());
    id = -getpgrp();
    OK(ioctl(fd, SIOCSPGRP, &id));
    OK(ioctl(fd, FIOGETOWN, &id));
    CHECK_EQ(id, -getpgrp());
    int pipes[2];
    OK(pipe(pipes));
    CHECK_ERR(ioctl(pipes[0], FIOSETOWN, &id), ENOTTY);
    OK(fcntl(pipes[0], F_SETOWN, 0));
    CHECK_EQ(fcntl(pipes[0], F_GETOWN), 0);
    /* One that is gone is nobody, also for whoever gets its number. */
    pid_t child = CHILD(pause());
    OK(fcntl(fd, F_SETOWN, child));
    CHECK_EQ(fcntl(fd, F_GETOWN), child);
    OK(kill(child, SIGKILL));
    status_of(child);
    CHECK_EQ(fcntl(fd, F_GETOWN), 0);
    /* Files without such signals. */
    int file = FD(open("file", O_RDWR | O_CREAT, 0600)), on = 1;
    OK(fcntl(file, F_SETOWN, getpid()));
    CHECK_EQ(fcntl(file, F_GETOWN), getpid());
    OK(fcntl(file, F_SETFL, O_ASYNC | O_APPEND));
    CHECK_EQ(fcntl(file, F_GETFL) & (O_ASYNC | O_APPEND), O_APPEND);
    CHECK_ERR(ioctl(file, FIOASYNC, &on), ENOTTY);
}

static void pipes(void)
{
    watch();
    int ends[2];
    char page[4096] = {0};
    OK(pipe2(ends, O_NONBLOCK));
    async(ends[0], SIG);
    none();
    CHECK_EQ(write(ends[1], "x", 1), 1);
    EXPECT(ends[0], POLL_IN, BAND_IN);
    none();
    CHECK_EQ(read(ends[0], page, 10), 1);
    none();
    /* The writer's end. */
    async(ends[1], SIG);
    while (write(ends[1], page, sizeof page) > 0)
        ;
    CHECK_EQ(errno, EAGAIN);
    only(POLL_IN);
    while (read(ends[0], page, sizeof page) > 0)
        ;
    EXPECT(ends[1], POLL_OUT, BAND_OUT);
    only(POLL_OUT);
    /* Off. */
    int off = 0;
    OK(ioctl(ends[0], FIOASYNC, &off));
    CHECK(!(fcntl(ends[0], F_GETFL) & O_ASYNC));
    CHECK_EQ(write(ends[1], "x", 1), 1);
    none();
    OK(fcntl(ends[0], F_SETFL, O_NONBLOCK | O_ASYNC));
    CHECK_EQ(read(ends[0], page, 10), 1);
    only(POLL_OUT);
    /* The last writer goes. */
    OK(close(ends[1]));
    EXPECT(ends[0], POLL_IN, BAND_IN);
    none();
    /* FIFOs as well. */
    OK(mkfifo("fifo", 0600));
    int reader = FD(open("fifo", O_RDONLY | O_NONBLOCK)), writer = FD(open("fifo", O_WRONLY));
    async(reader, SIG);
    CHECK_EQ(write(writer, "x", 1), 1);
    EXPECT(reader, POLL_IN, BAND_IN);
    /* Without a choice it is SIGIO, with nothing else to say. */
    OK(fcntl(reader, F_SETSIG, 0));
    CHECK_EQ(read(reader, page, 10), 1);
    CHECK_EQ(write(writer, "x", 1), 1);
    siginfo_t info = next();
    CHECK(info.si_signo == SIGIO && info.si_code == SI_KERNEL);
    OK(fcntl(reader, F_SETSIG, SIGIO));
    CHECK_EQ(read(reader, page, 10), 1);
    CHECK_EQ(write(writer, "x", 1), 1);
    info = next();
    CHECK(info.si_signo == SIGIO && info.si_code == POLL_IN && info.si_fd == reader && info.si_band == BAND_IN);
    /* A signal whose codes say something else. */
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGCHLD);
    OK(sigprocmask(SIG_BLOCK, &bus, NULL));
    OK(fcntl(reader, F_SETSIG, SIGCHLD));
    CHECK_EQ(read(reader, page, 10), 1);
    CHECK_EQ(write(writer, "x", 1), 1);
    CHECK_EQ(sigwaitinfo(&bus, &info), SIGCHLD);
    CHECK(info.si_code == SI_SIGIO && info.si_band == BAND_IN);
}

static void unix_sockets(void)
{
    watch();
    char text[4096] = {0};
    int ends[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends));
    async(ends[0], SIG);
    CHECK_EQ(write(ends[1], "a", 1), 1);
    EXPECT(ends[0], POLL_IN, BAND_IN);
    CHECK_EQ(write(ends[1], "b", 1), 1);
    EXPECT(ends[0], POLL_IN, BAND_IN);
    none();
    CHECK_EQ(read(ends[0], text, 8), 2);
    none();
    /* Room, once there was none. */
    while (write(ends[0], text, sizeof text) > 0)
        ;
    none();
    while (read(ends[1], text, sizeof text) > 0)
        ;
    EXPECT(ends[0], POLL_OUT, BAND_OUT);
    none();
    CHECK_EQ(write(ends[0], "c", 1), 1);
    CHECK_EQ(read(ends[1], text, 8), 1);
    none();
    OK(shutdown(ends[1], SHUT_WR));
    EXPECT(ends[0], POLL_IN, BAND_IN);
    OK(close(ends[1]));
    EXPECT(ends[0], POLL_HUP, POLLHUP | POLLERR);
    none();
    /* A listener, and datagrams. */
    int listener = FD(socket(AF_UNIX, SOCK_STREAM, 0)), client = FD(socket(AF_UNIX, SOCK_STREAM, 0));
    struct sockaddr_un address = {AF_UNIX, "listener"};
    OK(bind(listener, (void *)&address, sizeof address));
    OK(listen(listener, 5));
    async(listener, SIG);
    OK(connect(client, (void *)&address, sizeof address));
    EXPECT(listener, POLL_IN, BAND_IN);
    int accepted = FD(accept(listener, NULL, NULL));
    CHECK(!(fcntl(accepted, F_GETFL) & O_ASYNC));
    CHECK_EQ(write(client, "x", 1), 1);
    none();
    int datagrams[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams));
    async(datagrams[0], SIG);
    CHECK_EQ(write(datagrams[1], "x", 1), 1);
    EXPECT(datagrams[0], POLL_IN, BAND_IN);
    /* The signal names the descriptor that was switched on, also for others of the file. */
    int second = FD(dup(datagrams[0]));
    OK(close(datagrams[0]));
    CHECK_EQ(write(datagrams[1], "x", 1), 1);
    EXPECT(datagrams[0], POLL_IN, BAND_IN);
    OK(close(second));
    CHECK_ERR(write(datagrams[1], "x", 1), ECONNREFUSED);
    none();
}

static int loopback(int type, struct sockaddr_in *address)
{
    int fd = FD(socket(AF_INET, type, 0));
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof *address;
    OK(bind(fd, (void *)address, length));
    OK(getsockname(fd, (void *)address, &length));
    return fd;
}

static void inet_sockets(void)
{
    watch();
    char text[8];
    struct sockaddr_in address;
    int listener = loopback(SOCK_STREAM, &address);
    OK(listen(listener, 5));
    async(listener, SIG);
    int client = FD(socket(AF_INET, SOCK_STREAM, 0));
    OK(connect(client, (void *)&address, sizeof address));
    EXPECT(listener, POLL_IN, BAND_IN);
    int server = FD(accept(listener, NULL, NULL));
    async(server, SIG);
    CHECK_EQ(write(client, "abc", 3), 3);
    EXPECT(server, POLL_IN, BAND_IN);
    CHECK_EQ(read(server, text, 8), 3);
    only(POLL_IN);
    /* Urgent data: SIGURG for the owner, and with O_ASYNC the other signal as well. */
    CHECK_EQ(send(client, "!", 1, MSG_OOB), 1);
    bool urgent = false, told = false;
    while (!urgent || !told) {
        siginfo_t info = next();
        if (info.si_signo == SIGURG)
            urgent = true;
        else if (info.si_code == POLL_PRI) {
            CHECK_EQ(info.si_band, POLLPRI | POLLRDBAND);
            told = true;
        } else
            CHECK_EQ(info.si_code, POLL_IN);
    }
    CHECK_EQ(recv(server, text, 1, MSG_OOB), 1);
    only(POLL_IN);
    /* SIGURG needs an owner and nothing else. */
    OK(fcntl(client, F_SETOWN, getpid()));
    CHECK_EQ(write(server, "x", 1), 1);
    CHECK_EQ(read(client, text, 1), 1);
    CHECK_EQ(send(server, "!", 1, MSG_OOB), 1);
    siginfo_t info = next();
    while (info.si_signo != SIGURG)
        info = next();
    CHECK_EQ(recv(client, text, 1, MSG_OOB), 1);
    /* The peer goes. */
    only(POLL_IN);
    OK(close(client));
    info = next();
    CHECK(info.si_code == POLL_IN || info.si_code == POLL_HUP || info.si_code == POLL_ERR);
    OK(close(server));
    OK(close(listener));
    while (sigtimedwait(&watched, &info, &(struct timespec){0, 1000000}) > 0)
        ;
    int receiver = loopback(SOCK_DGRAM, &address), sender = FD(socket(AF_INET, SOCK_DGRAM, 0));
    async(receiver, SIG);
    for (int round = 0; round < 3; round++) {
        CHECK_EQ(sendto(sender, "x", 1, 0, (void *)&address, sizeof address), 1);
        EXPECT(receiver, POLL_IN, BAND_IN);
        CHECK_EQ(read(receiver, text, 8), 1);
    }
    only(POLL_IN);
}

static void terminals(void)
{
    watch();
    int controller, program;
    CHECK_EQ(openpty(&controller, &program, NULL, NULL, NULL), 0);
    struct termios mode;
    OK(tcgetattr(program, &mode));
    mode.c_lflag &= ~ECHO;
    OK(tcsetattr(program, TCSANOW, &mode));
    OK(fcntl(program, F_SETSIG, SIG));
    OK(fcntl(program, F_SETFL, O_RDWR | O_ASYNC));
    /* Nobody was named, and it has no foreground group: it is whoever asked. */
    CHECK_EQ(fcntl(program, F_GETOWN), getpid());
    CHECK_EQ(write(controller, "key", 3), 3);
    only(POLL_OUT);
    CHECK_EQ(write(controller, "s\n", 2), 2);
    siginfo_t info = next();
    while (info.si_code == POLL_OUT)
        info = next();
    CHECK(info.si_code == POLL_IN && info.si_fd == program && info.si_band == BAND_IN);
    char text[16];
    CHECK_EQ(read(program, text, 16), 5);
}

/* Signals go to the thread, the process or the group that was named. */
static void *take_own(void *argument)
{
    int *ends = argument;
    struct f_owner_ex owner = {F_OWNER_TID, gettid()};
    OK(fcntl(ends[0], F_SETOWN_EX, &owner));
    OK(fcntl(ends[0], F_SETSIG, SIG));
    OK(fcntl(ends[0], F_SETFL, O_ASYNC));
    CHECK_EQ(write(ends[1], "x", 1), 1);
    EXPECT(ends[0], POLL_IN, BAND_IN);
    CHECK_EQ(write(ends[1], "x", 1), 1);
    return NULL;
}

static void receivers(void)
{
    watch();
    int ends[2];
    pthread_t thread;
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    PT(pthread_create(&thread, NULL, take_own, ends));
    PT(pthread_join(thread, NULL));
    /* What went to a thread that is gone is gone. */
    none();
    /* A group. */
    int ready[2];
    OK(pipe(ready));
    pid_t group = 0, children[2];
    for (int at = 0; at < 2; at++) {
        children[at] = CHILD({
            setpgid(0, group);
            CHECK_EQ(write(ready[1], "r", 1), 1);
            siginfo_t info = next();
            CHECK(info.si_signo == SIG && info.si_code == POLL_IN && info.si_fd == ends[0]);
        });
        setpgid(children[at], group);
        group = group ? group : children[at];
    }
    char two[2];
    for (int got = 0; got < 2;)
        got += read(ready[0], two, 2 - got);
    OK(fcntl(ends[0], F_SETOWN, -group));
    CHECK_EQ(write(ends[1], "x", 1), 1);
    JOIN(children[0]);
    JOIN(children[1]);
    none();
}

/* Whose signals they are counts, not who writes; and not what the file's user may do later. */
static void permissions(void)
{
    NEEDS_ROOT();
    watch();
    int ends[2], own[2];
    OK(pipe(ends));
    OK(pipe(own));
    JOIN(CHILD({
        /* A user asks for another's process to be signalled: it is not. */
        OK(setresuid(1234, 1234, 1234));
        OK(fcntl(ends[0], F_SETOWN, getppid()));
        OK(fcntl(ends[0], F_SETSIG, SIG));
        OK(fcntl(ends[0], F_SETFL, O_ASYNC));
        CHECK_EQ(write(ends[1], "x", 1), 1);
    }));
    none();
    CHECK_EQ(write(ends[1], "x", 1), 1);
    none();
    /* Once somebody who may says so, it is. */
    OK(fcntl(ends[0], F_SETOWN, getpid()));
    JOIN(CHILD(OK(setresuid(1234, 1234, 1234)); CHECK_EQ(write(ends[1], "x", 1), 1)));
    EXPECT(ends[0], POLL_IN, BAND_IN);
    /* SIGKILL is a signal like others for those who may not send it. */
    pid_t child = CHILD(pause());
    JOIN(CHILD({
        OK(setresuid(1234, 1234, 1234));
        OK(fcntl(own[0], F_SETOWN, child));
        OK(fcntl(own[0], F_SETSIG, SIGKILL));
        OK(fcntl(own[0], F_SETFL, O_ASYNC));
        CHECK_EQ(write(own[1], "x", 1), 1);
    }));
    CHECK_EQ(waitpid(child, NULL, WNOHANG), 0);
    OK(kill(child, SIGTERM));
    CHECK_KILLED(child, SIGTERM);
}

/* More signals than may be queued: what is lost is told by SIGIO. Many files, many ways to end. */
static void floods(void)
{
    watch();
    int ends[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends));
    async(ends[0], SIG);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)ignore;
    char text[4];
    for (int at = 0; at < 50000; at++) {
        CHECK_EQ(write(ends[1], "x", 1), 1);
        CHECK_EQ(read(ends[0], text, 4), 1);
    }
    sigset_t pending;
    OK(sigpending(&pending));
    CHECK(sigismember(&pending, SIG));
    siginfo_t info;
    long count = 0;
    while (sigtimedwait(&watched, &info, &(struct timespec){0, 0}) > 0)
        count++;
    CHECK(count >= 1 && count <= 50001);
    for (int round = 0; round < 300; round++) {
        int many[2];
        OK(socketpair(AF_UNIX, SOCK_STREAM, 0, many));
        async(many[0], SIG);
        async(many[1], 0);
        CHECK_EQ(write(many[1], "x", 1), 1);
        CHECK_EQ(write(many[0], "x", 1), 1);
        OK(close(many[round % 2]));
        OK(close(many[1 - round % 2]));
    }
    while (sigtimedwait(&watched, &info, &(struct timespec){0, 0}) > 0)
        ;
}

/* Without a handler the signal ends the program, and one that sleeps is woken by it. */
static void effects(void)
{
    int ends[2];
    OK(pipe(ends));
    CHECK_KILLED(CHILD({
                     async(ends[0], 0);
                     CHECK_EQ(write(ends[1], "x", 1), 1);
                     for (;;)
                         pause();
                 }),
                 SIGIO);
    watch();
    int told[2];
    OK(pipe(told));
    pid_t child = CHILD({
        async(told[0], SIG);
        CHECK_EQ(write(ends[1], "r", 1), 1);
        EXPECT(told[0], POLL_IN, BAND_IN);
    });
    char text[4];
    while (read(ends[0], text, 1) == 1 && text[0] != 'r')
        ;
    wait_until_asleep(child);
    /* A write that has to wait tells of what it has written so far. */
    static char much[1 << 20];
    pid_t writer = CHILD(CHECK_EQ(write(told[1], much, 100000), 100000));
    JOIN(child);
    OK(kill(writer, SIGKILL));
    status_of(writer);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(owners),    TEST(pipes),     TEST(unix_sockets), TEST(inet_sockets), TEST(terminals),
        TEST(receivers), TEST(permissions), TEST(floods),     TEST(effects),
    };
    return RUN_TESTS("sigio", tests, argc, argv);
}
