/*
 * Unix sockets that travel in each other's messages: what nobody can receive any more is closed, and what somebody can stays.
 *
 * Each cycle holds the write end of a pipe. Its reader sees the end of the pipe once the cycle is gone.
 */
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { MOST = 8 };

/* Sends files with a text; the result of sendmsg. */
static ssize_t try_send(int to, const char *text, const int *files, int count)
{
    struct iovec piece = {(void *)text, strlen(text)};
    char control[CMSG_SPACE(MOST * sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), files, count * sizeof(int));
    return sendmsg(to, &message, MSG_NOSIGNAL);
}

static void send_files(int to, const char *text, const int *files, int count)
{
    CHECK_EQ(try_send(to, text, files, count), strlen(text));
}

/* Receives a text and this many files. */
static void receive_files(int from, const char *text, int *files, int count, int flags)
{
    char bytes[64], control[CMSG_SPACE(MOST * sizeof(int))];
    struct iovec piece = {bytes, sizeof bytes};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK_EQ(recvmsg(from, &message, flags), strlen(text));
    CHECK(memcmp(bytes, text, strlen(text)) == 0);
    CHECK_EQ(message.msg_flags & MSG_CTRUNC, 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header && header->cmsg_type == SCM_RIGHTS);
    CHECK_EQ(header->cmsg_len, CMSG_LEN(count * sizeof(int)));
    memcpy(files, CMSG_DATA(header), count * sizeof(int));
}

static void pair(int type, int ends[2])
{
    OK(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends));
}

/* The pipe of a cycle: the reader's end, and the one that goes into it. */
static void witness(int ends[2])
{
    OK(pipe2(ends, O_CLOEXEC));
}

static bool has_ended(int reader)
{
    struct pollfd entry = {reader, POLLIN, 0};
    CHECK(poll(&entry, 1, 0) >= 0);
    return entry.revents & POLLHUP;
}

/* Closes a socket of nobody's concern, for which Linux looks for what nobody can reach. */
static void stir(void)
{
    int ends[2];
    pair(SOCK_STREAM, ends);
    close(ends[0]);
    close(ends[1]);
}

static bool ends_soon(int reader)
{
    AWAIT((stir(), has_ended(reader)), 1000);
    return has_ended(reader);
}

static bool is_alone(int end)
{
    return send(end, "after", 5, MSG_NOSIGNAL | MSG_DONTWAIT) == -1 && errno != EAGAIN;
}

/* A socket whose only reference is in its own queue, of each type, alone and behind others' messages. */
static void in_itself(void)
{
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
        int ends[2], pipe[2];
        pair(types[i], ends);
        witness(pipe);
        CHECK_EQ(send(ends[1], "before", 6, 0), 6);
        send_files(ends[1], "x", (int[]){ends[0], pipe[1]}, 2);
        send_files(ends[1], "y", (int[]){ends[0]}, 1);
        OK(close(pipe[1]));
        OK(close(ends[0]));
        /* The other end lives, and hears of the end, which may come a moment after that of what lay beside the socket. */
        CHECK(ends_soon(pipe[0]));
        AWAIT(is_alone(ends[1]), 1000);
        CHECK(is_alone(ends[1]));
        OK(close(ends[1]));
        OK(close(pipe[0]));
    }
}

static void in_each_other(void)
{
    int one[2], other[2], pipe[2];
    pair(SOCK_STREAM, one);
    pair(SOCK_SEQPACKET, other);
    witness(pipe);
    send_files(one[1], "x", (int[]){other[0], other[1], pipe[1]}, 3);
    send_files(other[1], "y", (int[]){one[0], one[1], pipe[1]}, 3);
    for (int i = 0; i < 2; i++)
        OK(close(one[i]) | close(other[i]));
    OK(close(pipe[1]));
    CHECK(ends_soon(pipe[0]));
}

/* A ring, with a second one that hangs on it. */
static void in_a_ring(void)
{
    enum { LONG = 100 };
    int ring[LONG][2], pipe[2], tail[2];
    witness(pipe);
    pair(SOCK_DGRAM, tail);
    for (int i = 0; i < LONG; i++)
        pair(SOCK_DGRAM, ring[i]);
    for (int i = 0; i < LONG; i++)
        send_files(ring[i][1], "x", (int[]){ring[(i + 1) % LONG][0]}, 1);
    send_files(tail[1], "t", (int[]){tail[0], tail[1], pipe[1]}, 3);
    send_files(ring[7][1], "y", (int[]){tail[0]}, 1);
    for (int i = 0; i < LONG; i++)
        OK(close(ring[i][0]) | close(ring[i][1]));
    OK(close(tail[0]) | close(tail[1]) | close(pipe[1]));
    CHECK(ends_soon(pipe[0]));
}

static int listener(struct sockaddr_un *address, socklen_t *size)
{
    int fd = FD(socket(AF_UNIX, SOCK_STREAM, 0));
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    OK(bind(fd, (struct sockaddr *)address, sizeof(sa_family_t)));
    *size = sizeof *address;
    OK(getsockname(fd, (struct sockaddr *)address, size));
    OK(listen(fd, 16));
    return fd;
}

/* Connections that nobody has accepted hold their listener, and what else was sent by them. */
static void in_a_listener(void)
{
    struct sockaddr_un address;
    socklen_t size;
    int fd = listener(&address, &size), pipe[2];
    witness(pipe);
    for (int i = 0; i < 3; i++) {
        int client = FD(socket(AF_UNIX, SOCK_STREAM, 0));
        OK(connect(client, (struct sockaddr *)&address, size));
        send_files(client, "x", (int[]){fd, client, pipe[1]}, 3);
        OK(close(client));
    }
    OK(close(fd) | close(pipe[1]));
    CHECK(ends_soon(pipe[0]));
    /* Its name is free. */
    int again = FD(socket(AF_UNIX, SOCK_STREAM, 0));
    OK(bind(again, (struct sockaddr *)&address, size));
}

/* The same with a descriptor left: all is there, in order. */
static void in_a_listener_that_lives(void)
{
    struct sockaddr_un address;
    socklen_t size;
    int fd = listener(&address, &size), pipe[2], got[3];
    witness(pipe);
    for (int i = 0; i < 3; i++) {
        int client = FD(socket(AF_UNIX, SOCK_STREAM, 0));
        OK(connect(client, (struct sockaddr *)&address, size));
        send_files(client, "hello", (int[]){fd, client, pipe[1]}, 3);
        OK(close(client));
    }
    OK(close(pipe[1]));
    for (int i = 0; i < 3; i++) {
        for (int round = 0; round < 20; round++)
            stir();
        usleep(60000);
        CHECK(!has_ended(pipe[0]));
        int connection = FD(accept(fd, NULL, NULL));
        receive_files(connection, "hello", got, 3, 0);
        CHECK_EQ(send(got[1], "back", 4, MSG_NOSIGNAL), 4);
        char back[5] = "";
        CHECK_EQ(recv(connection, back, 4, 0), 4);
        CHECK(strcmp(back, "back") == 0);
        OK(close(connection) | close(got[0]) | close(got[1]) | close(got[2]));
    }
    CHECK(ends_soon(pipe[0]));
}

/* Sets of epoll in a cycle, which watch sockets of it; one that lives watches as well, and holds nothing. */
static void with_epoll(void)
{
    int ends[2], pipe[2], set = FD(epoll_create1(0)), outer = FD(epoll_create1(0)), lives = FD(epoll_create1(0));
    pair(SOCK_STREAM, ends);
    witness(pipe);
    struct epoll_event event = {.events = EPOLLIN};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
    OK(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event));
    OK(epoll_ctl(lives, EPOLL_CTL_ADD, ends[0], &event));
    send_files(ends[1], "x", (int[]){ends[0], ends[1], set, outer, pipe[1]}, 5);
    OK(close(ends[0]) | close(ends[1]) | close(set) | close(outer) | close(pipe[1]));
    AWAIT((stir(), epoll_wait(lives, &event, 1, 0), has_ended(pipe[0])), 1000);
    CHECK(has_ended(pipe[0]));
    CHECK_EQ(epoll_wait(lives, &event, 1, 0), 0);
}

/* A descriptor of a socket's place keeps the place and not the socket. */
static void by_its_place(void)
{
    int ends[2], pipe[2];
    char path[64];
    pair(SOCK_STREAM, ends);
    witness(pipe);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    int place = FD(open(path, O_PATH));
    send_files(ends[1], "x", (int[]){place, pipe[1]}, 2);
    OK(close(pipe[1]) | close(ends[0]));
    CHECK(ends_soon(pipe[0]));
    struct stat info;
    OK(fstat(place, &info));
    CHECK(S_ISSOCK(info.st_mode));
    snprintf(path, sizeof path, "/proc/self/fd/%d", place);
    CHECK_ERR(open(path, O_RDWR), ENXIO);
}

/* One descriptor leads to a ring: all of it can be received, with what else its messages hold. */
static void reachable(void)
{
    enum { LONG = 20 };
    int ring[LONG][2], door[2], pipe[2], got[2];
    witness(pipe);
    pair(SOCK_STREAM, door);
    for (int i = 0; i < LONG; i++)
        pair(SOCK_STREAM, ring[i]);
    for (int i = 0; i < LONG; i++) {
        int memory = FD(memfd_create("data", MFD_CLOEXEC));
        CHECK_EQ(write(memory, &i, sizeof i), sizeof i);
        send_files(ring[i][1], "next", (int[]){ring[(i + 1) % LONG][0], memory}, 2);
        OK(close(memory));
    }
    send_files(ring[LONG / 2][1], "pipe", (int[]){pipe[1]}, 1);
    send_files(door[1], "first", (int[]){ring[0][0]}, 1);
    for (int i = 0; i < LONG; i++)
        OK(close(ring[i][0]) | close(ring[i][1]));
    OK(close(pipe[1]));
    for (int round = 0; round < 40; round++) {
        stir();
        usleep(5000);
    }
    CHECK(!has_ended(pipe[0]));
    receive_files(door[0], "first", got, 1, 0);
    int now = got[0], last = -1;
    for (int i = 0; i < LONG; i++) {
        stir();
        /* A look takes nothing away, and its descriptors are as good. */
        receive_files(now, "next", got, 2, MSG_PEEK);
        OK(close(got[0]) | close(got[1]));
        receive_files(now, "next", got, 2, 0);
        int value = -1;
        CHECK_EQ(pread(got[1], &value, sizeof value, 0), sizeof value);
        CHECK_EQ(value, i);
        OK(close(got[1]));
        if (i == LONG / 2)
            receive_files(now, "pipe", &last, 1, 0);
        OK(close(now));
        now = got[0];
    }
    CHECK(!has_ended(pipe[0]));
    OK(close(last) | close(now));
    CHECK(ends_soon(pipe[0]));
}

/* Leaves garbage as fast as it goes. */
static atomic_bool is_done;

static void *litter(void *unused)
{
    while (!is_done) {
        int ends[2];
        pair(SOCK_DGRAM, ends);
        /* Linux refuses it while its own collector is behind. */
        if (try_send(ends[0], "x", ends, 2) < 0)
            CHECK(errno == ETOOMANYREFS || errno == ENOMEM);
        close(ends[0]);
        close(ends[1]);
    }
    return unused;
}

/* While others leave garbage, a socket goes on from queue to queue, and is in no table most of the time. None of its data is lost. */
static void on_the_move(void)
{
    enum { STATIONS = 4 };
    pthread_t litterers[2];
    int station[STATIONS][2], moved[2], pipe[2];
    witness(pipe);
    pair(SOCK_STREAM, moved);
    for (int i = 0; i < STATIONS; i++)
        pair(i % 2 ? SOCK_STREAM : SOCK_DGRAM, station[i]);
    for (int i = 0; i < 2; i++)
        PT(pthread_create(&litterers[i], NULL, litter, NULL));
    /* It holds the pipe and itself, so that it would be garbage but for the station it is at. */
    send_files(moved[1], "own", (int[]){moved[0], pipe[1]}, 2);
    OK(close(pipe[1]));
    int now = moved[0];
    long rounds = scaled(4000);
    for (long i = 0; i < rounds; i++) {
        int *at = station[i % STATIONS];
        while (try_send(at[1], "go", &now, 1) < 0)
            CHECK(errno == ETOOMANYREFS || errno == ENOMEM);
        OK(close(now));
        if (i % 64 == 0)
            usleep(1000);
        if (i % 3 == 0) {
            receive_files(at[0], "go", &now, 1, MSG_PEEK);
            OK(close(now));
        }
        receive_files(at[0], "go", &now, 1, 0);
        if (i % 16 == 0) {
            int got[2];
            receive_files(now, "own", got, 2, 0);
            CHECK(!has_ended(pipe[0]));
            while (try_send(moved[1], "own", got, 2) < 0)
                CHECK(errno == ETOOMANYREFS || errno == ENOMEM);
            OK(close(got[0]) | close(got[1]));
        }
    }
    is_done = true;
    for (int i = 0; i < 2; i++)
        PT(pthread_join(litterers[i], NULL));
    CHECK(!has_ended(pipe[0]));
    OK(close(now) | close(moved[1]));
    CHECK(ends_soon(pipe[0]));
}

/* What nobody can receive any more does not count for how much a user may have in messages, and what is there does. */
static void counts(void)
{
    struct rlimit few = {64, 64};
    OK(setrlimit(RLIMIT_NOFILE, &few));
    if (geteuid() == 0)
        OK(setresuid(54321, 54321, 54321));
    for (int round = 0; round < 200; round++) {
        int ends[2];
        pair(SOCK_DGRAM, ends);
        ssize_t result = -1;
        AWAIT((result = try_send(ends[0], "x", ends, 2)) == 1 || errno != ETOOMANYREFS || (stir(), false), 1000);
        CHECK_EQ(result, 1);
        int got[2];
        receive_files(ends[1], "x", got, 2, MSG_PEEK | MSG_DONTWAIT);
        OK(close(got[0]) | close(got[1]) | close(ends[0]) | close(ends[1]));
    }
    /* Linux lets some more through; and what was left above may count for a moment longer there, where a thread collects it. */
    int sent = 0;
    for (int try = 0; try < 100 && sent < 8; try++) {
        int ends[2];
        pair(SOCK_STREAM, ends);
        for (sent = 0; sent < 100 && try_send(ends[0], "x", (int[]){0, 0, 0, 0}, 4) == 1;)
            sent++;
        CHECK(sent < 100 && errno == ETOOMANYREFS);
        OK(close(ends[0]) | close(ends[1]));
        if (sent < 8) {
            stir();
            usleep(20000);
        }
    }
    CHECK(sent >= 8);
}

/* Processes that end leave memory in cycles, more in all than a small sandbox has. */
static void memory(void)
{
    enum { ROUNDS = 24, BYTES = 16 << 20 };
    static char bytes[1 << 20];
    memset(bytes, 7, sizeof bytes);
    for (int round = 0; round < ROUNDS; round++)
        JOIN(CHILD({
            int file = FD(memfd_create("left", MFD_CLOEXEC)), ends[2];
            for (int i = 0; i < BYTES / (int)sizeof bytes; i++)
                CHECK_EQ(write(file, bytes, sizeof bytes), sizeof bytes);
            pair(SOCK_DGRAM, ends);
            send_files(ends[0], "x", (int[]){ends[0], ends[1], file}, 3);
        }));
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(in_itself),    TEST(in_each_other), TEST(in_a_ring), TEST(in_a_listener), TEST(in_a_listener_that_lives),
        TEST(with_epoll),   TEST(by_its_place),  TEST(reachable), TEST(on_the_move),   TEST(counts),
        TEST(memory),
    };
    return RUN_TESTS("cycles", tests, argc, argv);
}
