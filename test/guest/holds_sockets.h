/* Families of holds.c: Unix sockets with credentials and descriptors on their way, signals about I/O, TCP, UDP. */
#include "holds.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Sends a number, and a descriptor unless that is -1. */
static void send_number(int socket, long number, int passed)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec bytes = {&number, sizeof number};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (passed >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &passed, sizeof passed);
    }
    MOVE(sendmsg(socket, &message, 0), sizeof number);
}

/* Takes a number that `sender` sent, and the descriptor with it; -1: there is none. `sender`: 0 if it does not say so. */
static int take_number(int socket, long *number, pid_t sender)
{
    char control[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))] __attribute__((aligned(8)));
    struct iovec bytes = {number, sizeof *number};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    MOVE(recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC), sizeof *number);
    CHECK_EQ(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC), 0);
    int passed = -1;
    struct ucred from = {0, 0, 0};
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        CHECK_EQ(part->cmsg_level, SOL_SOCKET);
        if (part->cmsg_type == SCM_RIGHTS)
            memcpy(&passed, CMSG_DATA(part), sizeof passed);
        else
            memcpy(&from, CMSG_DATA(part), sizeof from);
    }
    CHECK(from.pid == sender && from.uid == (sender ? getuid() : 0));
    return passed;
}

/* An end of a pair of sockets in whose queue lies a memory file with this number. */
static int parcel(long number)
{
    int pair[2], content = FD(memfd_create("parcel", MFD_CLOEXEC));
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    MOVE(pwrite(content, &number, sizeof number, 0), sizeof number);
    send_number(pair[1], number, content);
    OK(close(content));
    OK(close(pair[1]));
    return pair[0];
}

static void open_parcel(int socket, long number)
{
    long got, inner;
    int content = take_number(socket, &got, 0);
    CHECK(content >= 0 && got == number);
    MOVE(pread(content, &inner, sizeof inner, 0), sizeof inner);
    CHECK_EQ(inner, number);
    OK(close(content));
    OK(close(socket));
}

/* Numbers in their order, each with its sender, and every third with a descriptor that may be far behind on its way. */
static void numbers_over(int type)
{
    int pair[2], on = 1;
    OK(socketpair(AF_UNIX, type, 0, pair));
    OK(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    pid_t sender = MEMBER({
        OK(close(pair[0]));
        for (long number = 0;; number++) {
            bool is_last = !goes_on() && number > 0;
            int passed = number % 3 == 0 ? parcel(number) : -1;
            send_number(pair[1], is_last ? -number : number, passed);
            if (passed >= 0)
                OK(close(passed));
            if (is_last)
                break;
        }
    });
    OK(close(pair[1]));
    long number = 0, got = 0;
    for (; got >= 0; number++) {
        AT();
        int passed = take_number(pair[0], &got, sender);
        CHECK(got == number || got == -number);
        CHECK_EQ(passed >= 0, number % 3 == 0);
        if (passed >= 0)
            open_parcel(passed, number);
        if (number % 16 == 0)
            usleep(300); /* the queue fills */
    }
    JOIN(sender);
}

static void unix_streams(void) { numbers_over(SOCK_STREAM); }
static void unix_datagrams(void) { numbers_over(SOCK_DGRAM); }
static void unix_records(void) { numbers_over(SOCK_SEQPACKET); }

/* Signals of a file go to a thread (`type` F_OWNER_TID) or a process. */
static void have_signals(int fd, int signal, int type, pid_t pid)
{
    struct f_owner_ex owner = {type, pid};
    OK(fcntl(fd, F_SETSIG, signal));
    OK(fcntl(fd, F_SETOWN_EX, &owner));
    OK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC | O_NONBLOCK));
}

struct told {
    int fd, signal;
    pid_t pid;
    int answer;
};

/* Reads what it is told of, and answers each number. */
static void *read_what_is_told(void *argument)
{
    struct told *told = argument;
    pid_t pid = told->pid ? told->pid : (pid_t)syscall(SYS_gettid);
    have_signals(told->fd, told->signal, told->pid ? F_OWNER_PID : F_OWNER_TID, pid);
    give_turn(told->answer);
    for (long number = 0, got = 0; got >= 0;) {
        siginfo_t info = await_signal(told->signal);
        CHECK(info.si_fd == told->fd && (info.si_code == POLL_IN || info.si_code == POLL_OUT));
        ssize_t size = read(told->fd, &got, sizeof got);
        if (size < 0) {
            CHECK_EQ(errno, EAGAIN); /* it was read already, for another signal */
            continue;
        }
        MOVE(size, sizeof got);
        CHECK(got == number || got == -number);
        number++;
        give_turn(told->answer);
    }
    return NULL;
}

static void tell_of_files(int source, int other, int answer, int second)
{
    for (long number = 0;; number++) {
        bool is_last = !goes_on() && number > 0;
        long value = is_last ? -number : number;
        AT();
        take_turn(answer);
        MOVE(write(source, &value, sizeof value), sizeof value);
        take_turn(second);
        MOVE(write(other, &value, sizeof value), sizeof value);
        if (is_last)
            return;
    }
}

/* A pipe whose signals go to a thread, and a socket whose signals go to the process: none is lost. */
static void sigio(void)
{
    int ends[2], pair[2];
    OK(pipe(ends));
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    block_signal(42);
    block_signal(43);
    struct told first = {ends[0], 42, 0, FD(eventfd(0, 0))}, second = {pair[0], 43, getpid(), FD(eventfd(0, 0))};
    pid_t writer = MEMBER(tell_of_files(ends[1], pair[1], first.answer, second.answer));
    pthread_t threads[] = {thread_of(read_what_is_told, &first), thread_of(read_what_is_told, &second)};
    for (int i = 0; i < 2; i++)
        PT(pthread_join(threads[i], NULL));
    JOIN(writer);
}

static struct sockaddr_in address_of(uint32_t host, int port)
{
    return (struct sockaddr_in){AF_INET, htons((uint16_t)port), {htonl(host)}, ""};
}

/* A socket that is bound to a port of the loopback, which goes to `at`. */
static int bound_socket(int type, struct sockaddr_in *at)
{
    socklen_t size = sizeof *at;
    int fd = FD(socket(AF_INET, type, 0));
    *at = address_of(INADDR_LOOPBACK, 0);
    OK(bind(fd, (struct sockaddr *)at, size));
    OK(getsockname(fd, (struct sockaddr *)at, &size));
    return fd;
}

/* Sends words on a connection until the end; closes it after a while and makes another. */
static void send_words(const struct sockaddr_in *to, atomic_long *sent)
{
    uint64_t at = 0, buffer[WORDS];
    bool is_last = false;
    while (!is_last) {
        int fd = FD(socket(AF_INET, SOCK_STREAM, 0));
        OK(connect(fd, (const struct sockaddr *)to, sizeof *to));
        for (int pieces = 0; pieces < 50 && !is_last; pieces++) {
            is_last = !goes_on();
            size_t count = 1 + random_below(WORDS);
            for (size_t i = 0; i < count; i++)
                buffer[i] = word(8, at + i);
            for (size_t done = 0; done < count * 8;) {
                ssize_t moved = send(fd, (char *)buffer + done, count * 8 - done, MSG_NOSIGNAL);
                CHECK(moved > 0);
                done += (size_t)moved;
            }
            at += count;
        }
        if (is_last)
            *sent = (long)at;
        OK(close(fd));
    }
}

/* A stream over connections that come and go, whose bytes lie in the sockets as they may. */
static void tcp(void)
{
    struct sockaddr_in at;
    int listener = bound_socket(SOCK_STREAM, &at);
    OK(listen(listener, 4));
    atomic_long *sent = pages_of(1, MAP_SHARED);
    *sent = -1;
    pid_t sender = MEMBER(send_words(&at, sent));
    uint64_t got = 0, buffer[3 * WORDS];
    while ((long)got != *sent) {
        AT();
        int fd = FD(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
        ssize_t moved;
        AT();
        while ((moved = recv(fd, buffer, sizeof buffer, MSG_WAITALL)) > 0) {
            CHECK_EQ(moved % 8, 0);
            for (ssize_t i = 0; i < moved / 8; i++)
                CHECK_EQ(buffer[i], word(8, got + (uint64_t)i));
            got += (uint64_t)moved / 8;
        }
        CHECK_EQ(moved, 0);
        OK(close(fd));
    }
    JOIN(sender);
}

/* Answers a datagram, until the one with -1. */
static void *echo_datagrams(void *socket)
{
    long number;
    struct sockaddr_in from;
    do {
        socklen_t size = sizeof from;
        MOVE(recvfrom(*(int *)socket, &number, sizeof number, 0, (struct sockaddr *)&from, &size), sizeof number);
        MOVE(sendto(*(int *)socket, &number, sizeof number, 0, (struct sockaddr *)&from, size), sizeof number);
    } while (number >= 0);
    return NULL;
}

/* A member of a group on the loopback, at the group's port; the first one chooses that. */
static int member_of(uint32_t group, int *port)
{
    int on = 1, fd = FD(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in at = address_of(group, *port);
    socklen_t size = sizeof at;
    struct ip_mreq membership = {{htonl(group)}, {htonl(INADDR_LOOPBACK)}};
    OK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    OK(bind(fd, (struct sockaddr *)&at, sizeof at));
    OK(getsockname(fd, (struct sockaddr *)&at, &size));
    OK(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof membership));
    *port = ntohs(at.sin_port);
    return fd;
}

/* Datagrams to and fro, and to two members of a group: one at a time, since the network may drop what is too much. */
static void udp(void)
{
    enum { GROUP = 0xefff2a2a };
    struct sockaddr_in at, other;
    struct in_addr loopback = {htonl(INADDR_LOOPBACK)};
    int server = bound_socket(SOCK_DGRAM, &at), client = bound_socket(SOCK_DGRAM, &other), port = 0;
    int members[2] = {member_of(GROUP, &port), member_of(GROUP, &port)};
    struct sockaddr_in group = address_of(GROUP, port);
    OK(setsockopt(client, IPPROTO_IP, IP_MULTICAST_IF, &loopback, sizeof loopback));
    pthread_t echo = thread_of(echo_datagrams, &server);
    for (long number = 0, got, is_last = 0; !is_last; number++) {
        is_last = !goes_on();
        long value = is_last ? -1 : number;
        AT();
        MOVE(sendto(client, &value, sizeof value, 0, (struct sockaddr *)&at, sizeof at), sizeof value);
        MOVE(recv(client, &got, sizeof got, 0), sizeof got);
        CHECK_EQ(got, value);
        AT();
        MOVE(sendto(client, &value, sizeof value, 0, (struct sockaddr *)&group, sizeof group), sizeof value);
        for (int i = 0; i < 2; i++) {
            MOVE(recv(members[i], &got, sizeof got, 0), sizeof got);
            CHECK_EQ(got, value);
        }
    }
    PT(pthread_join(echo, NULL));
    for (int i = 0; i < 2; i++) {
        char byte;
        CHECK_ERR(recv(members[i], &byte, 1, MSG_DONTWAIT), EAGAIN);
    }
}
