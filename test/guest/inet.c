/* Internet sockets within one machine: TCP, UDP and ICMP datagrams on the loopback addresses. */
#include "check.h"
#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

static int events_of(int fd, short wanted, int timeout_ms)
{
    struct pollfd one = {fd, wanted, 0};
    int count = poll(&one, 1, timeout_ms);
    CHECK(count >= 0 && count == (one.revents != 0));
    return one.revents;
}

static void set(int fd, int level, int name, int value)
{
    OK(setsockopt(fd, level, name, &value, sizeof value));
}

static int get(int fd, int level, int name)
{
    int value = 0;
    socklen_t length = sizeof value;
    OK(getsockopt(fd, level, name, &value, &length));
    return value;
}

/* A bound socket of a family and type, and its address. */
static int bound(int family, int type, struct sockaddr_storage *address, socklen_t *length)
{
    int fd = FD(socket(family, type, 0));
    memset(address, 0, sizeof *address);
    address->ss_family = family;
    if (family == AF_INET) {
        ((struct sockaddr_in *)address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        *length = sizeof(struct sockaddr_in);
    } else {
        ((struct sockaddr_in6 *)address)->sin6_addr = in6addr_loopback;
        *length = sizeof(struct sockaddr_in6);
    }
    OK(bind(fd, (struct sockaddr *)address, *length));
    OK(getsockname(fd, (struct sockaddr *)address, length));
    struct timeval patience = {5, 0};
    OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
    return fd;
}

static int listener(int family, struct sockaddr_storage *address, socklen_t *length)
{
    int fd = bound(family, SOCK_STREAM, address, length);
    OK(listen(fd, 64));
    return fd;
}

/* Two ends of a TCP connection. */
static void pair_of(int family, int ends[2])
{
    struct sockaddr_storage address;
    socklen_t length;
    int server = listener(family, &address, &length);
    ends[0] = FD(socket(family, SOCK_STREAM, 0));
    OK(connect(ends[0], (struct sockaddr *)&address, length));
    ends[1] = FD(accept4(server, NULL, NULL, SOCK_CLOEXEC));
    OK(close(server));
}

static bool has_ipv6(void)
{
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return has;
}

/* --- connections --- */

static void talk(int family)
{
    struct sockaddr_storage address, peer, mine;
    socklen_t length, peer_length = sizeof peer, mine_length = sizeof mine;
    char text[64];
    int server = listener(family, &address, &length);
    CHECK_EQ(get(server, SOL_SOCKET, SO_ACCEPTCONN), 1);
    CHECK_EQ(get(server, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    CHECK_EQ(get(server, SOL_SOCKET, SO_DOMAIN), family);
    CHECK_EQ(get(server, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
    CHECK_EQ(events_of(server, POLLIN, 0), 0);
    CHECK_ERR(accept4(server, NULL, NULL, 1), EINVAL);
    pid_t child = CHILD({
        int fd = FD(socket(family, SOCK_STREAM, 0));
        OK(connect(fd, (struct sockaddr *)&address, length));
        CHECK_EQ(send(fd, "hello", 5, 0), 5);
        CHECK_EQ(recv(fd, text, 5, MSG_WAITALL), 5);
        CHECK_EQ(memcmp(text, "olleh", 5), 0);
        OK(shutdown(fd, SHUT_WR));
        CHECK_EQ(read(fd, text, 8), 4); /* half-closed: still reads */
        CHECK_EQ(read(fd, text, 8), 0);
    });
    int fd = FD(accept(server, (struct sockaddr *)&peer, &peer_length));
    CHECK_EQ(peer_length, length);
    CHECK_EQ(peer.ss_family, family);
    OK(getpeername(fd, (struct sockaddr *)&mine, &mine_length));
    CHECK(mine_length == length && memcmp(&mine, &peer, length) == 0);
    OK(getsockname(fd, (struct sockaddr *)&mine, &mine_length));
    CHECK_EQ(memcmp(&mine, &address, length), 0);
    CHECK_EQ(recv(fd, text, sizeof text, MSG_PEEK), 5);
    CHECK_EQ(read(fd, text, 2), 2);
    CHECK_EQ(read(fd, text + 2, 3), 3);
    CHECK_EQ(writev(fd, (struct iovec[]){{"ol", 2}, {"", 0}, {"leh", 3}}, 3), 5);
    CHECK_EQ(read(fd, text, 1), 0);
    CHECK_EQ(events_of(fd, POLLIN | POLLRDHUP | POLLOUT, 0), POLLIN | POLLRDHUP | POLLOUT);
    CHECK_EQ(write(fd, "last", 4), 4);
    OK(close(fd));
    JOIN(child);
    OK(close(server));
}

static void tcp(void)
{
    talk(AF_INET);
}

static void tcp6(void)
{
    if (!has_ipv6())
        SKIP("no IPv6 here");
    talk(AF_INET6);
    int fd = FD(socket(AF_INET6, SOCK_STREAM, 0));
    set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    socklen_t length = sizeof any;
    OK(bind(fd, (struct sockaddr *)&any, length));
    OK(listen(fd, 1));
    OK(getsockname(fd, (struct sockaddr *)&any, &length));
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = any.sin6_port};
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int client = FD(socket(AF_INET, SOCK_STREAM, 0));
    OK(connect(client, (struct sockaddr *)&four, sizeof four));
    int other = FD(accept(fd, (struct sockaddr *)&any, &length));
    CHECK(IN6_IS_ADDR_V4MAPPED(&any.sin6_addr));
    close(other);
    close(client);
    close(fd);
}

static void kinds(void)
{
    CHECK_ERR(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    CHECK_ERR(socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), EPROTONOSUPPORT);
    CHECK_ERR(socket(AF_INET, SOCK_SEQPACKET, 0), ESOCKTNOSUPPORT);
    CHECK_ERR(socket(AF_INET, SOCK_STREAM, 1000), EINVAL);
    CHECK_ERR(socket(12345, SOCK_STREAM, 0), EAFNOSUPPORT);
    int two[2];
    CHECK_ERR(socketpair(AF_INET, SOCK_STREAM, 0, two), EOPNOTSUPP);
    int fd = FD(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    CHECK_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CHECK_ERR(listen(FD(socket(AF_INET, SOCK_DGRAM, 0)), 1), EOPNOTSUPP);
    char byte = 0;
    CHECK_ERR(recv(fd, &byte, 1, 0), ENOTCONN);
    CHECK_ERR(send(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
    CHECK_ERR(shutdown(fd, SHUT_WR), ENOTCONN);
    CHECK_ERR(shutdown(fd, 5), EINVAL);
    CHECK_ERR(accept(fd, NULL, NULL), EINVAL);
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    CHECK_ERR(getpeername(fd, (struct sockaddr *)&name, &length), ENOTCONN);
    CHECK_EQ(events_of(fd, POLLIN | POLLOUT, 0), POLLOUT | POLLHUP);
    struct stat info;
    OK(fstat(fd, &info));
    CHECK(S_ISSOCK(info.st_mode));
    CHECK_ERR(lseek(fd, 0, SEEK_SET), ESPIPE);
    CHECK_ERR(pread(fd, &byte, 1, 0), ESPIPE);
}

static void addresses(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int server = listener(AF_INET, &address, &length);
    int other = FD(socket(AF_INET, SOCK_STREAM, 0));
    CHECK_ERR(bind(other, (struct sockaddr *)&address, length), EADDRINUSE);
    CHECK_ERR(bind(other, (struct sockaddr *)&address, 4), EINVAL);
    CHECK_ERR(bind(other, (struct sockaddr *)&address, 1000), EINVAL);
    struct sockaddr_in far = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc0000201)};
    CHECK_ERR(bind(other, (struct sockaddr *)&far, sizeof far), EADDRNOTAVAIL);
    CHECK_ERR(bind(server, (struct sockaddr *)&address, length), EINVAL);
    CHECK_ERR(connect(other, (struct sockaddr *)&address, 2), EINVAL);
    /* Two listeners share a port when both ask for it. */
    int first = FD(socket(AF_INET, SOCK_STREAM, 0)), second = FD(socket(AF_INET, SOCK_STREAM, 0));
    set(first, SOL_SOCKET, SO_REUSEPORT, 1);
    set(second, SOL_SOCKET, SO_REUSEPORT, 1);
    ((struct sockaddr_in *)&address)->sin_port = 0;
    OK(bind(first, (struct sockaddr *)&address, length));
    OK(getsockname(first, (struct sockaddr *)&address, &length));
    OK(bind(second, (struct sockaddr *)&address, length));
    OK(listen(first, 1));
    OK(listen(second, 1));
}

static void refused(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int server = bound(AF_INET, SOCK_STREAM, &address, &length); /* bound, not listening */
    int fd = FD(socket(AF_INET, SOCK_STREAM, 0));
    CHECK_ERR(connect(fd, (struct sockaddr *)&address, length), ECONNREFUSED);
    CHECK_EQ(get(fd, SOL_SOCKET, SO_ERROR), 0);
    close(fd);
    fd = FD(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    CHECK_ERR(connect(fd, (struct sockaddr *)&address, length), EINPROGRESS);
    CHECK_EQ(events_of(fd, POLLOUT, PATIENCE_MS) & (POLLERR | POLLHUP), POLLERR | POLLHUP);
    CHECK_EQ(get(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
    CHECK_EQ(get(fd, SOL_SOCKET, SO_ERROR), 0);
    OK(listen(server, 4));
    CHECK_ERR(connect(fd, (struct sockaddr *)&address, length), ECONNABORTED); /* the end of the attempt before */
    CHECK_ERR(connect(fd, (struct sockaddr *)&address, length), EINPROGRESS);
    CHECK_EQ(events_of(fd, POLLOUT, PATIENCE_MS), POLLOUT);
    CHECK_EQ(get(fd, SOL_SOCKET, SO_ERROR), 0);
    OK(connect(fd, (struct sockaddr *)&address, length));
    CHECK_ERR(connect(fd, (struct sockaddr *)&address, length), EISCONN);
    /* AF_UNSPEC dissolves the connection, and the socket can be used again. */
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    OK(connect(fd, &nobody, sizeof nobody));
    OK(close(FD(accept(server, NULL, NULL))));
    CHECK_EQ(events_of(fd, POLLOUT, 0) & ~POLLERR, POLLOUT | POLLHUP);
    CHECK_EQ(get(fd, SOL_SOCKET, SO_ERROR), ECONNRESET);
    CHECK(connect(fd, (struct sockaddr *)&address, length) == 0 || errno == EINPROGRESS);
    CHECK_EQ(events_of(fd, POLLOUT, PATIENCE_MS), POLLOUT);
}

static void resets(void)
{
    int ends[2];
    char bytes[16];
    struct linger now = {1, 0}, later = {1, 2};
    socklen_t length = sizeof now;
    pair_of(AF_INET, ends);
    OK(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &now, sizeof now));
    OK(close(ends[0]));
    CHECK_EQ(events_of(ends[1], POLLIN | POLLRDHUP, PATIENCE_MS), POLLIN | POLLERR | POLLHUP | POLLRDHUP);
    CHECK_ERR(read(ends[1], bytes, 16), ECONNRESET);
    CHECK_EQ(read(ends[1], bytes, 16), 0);
    signal(SIGPIPE, SIG_IGN);
    CHECK_ERR(write(ends[1], bytes, 1), EPIPE);
    OK(close(ends[1]));
    /* Unread bytes at the end reset the connection as well. */
    pair_of(AF_INET, ends);
    CHECK_EQ(write(ends[0], "abc", 3), 3);
    CHECK_EQ(events_of(ends[1], POLLIN, PATIENCE_MS), POLLIN);
    OK(close(ends[1]));
    CHECK_EQ(events_of(ends[0], POLLIN, PATIENCE_MS) & POLLERR, POLLERR);
    CHECK_EQ(get(ends[0], SOL_SOCKET, SO_ERROR), ECONNRESET);
    OK(close(ends[0]));
    /* A time to linger is kept, and what was sent arrives. */
    pair_of(AF_INET, ends);
    OK(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &later, sizeof later));
    now.l_linger = 77;
    OK(getsockopt(ends[0], SOL_SOCKET, SO_LINGER, &now, &length));
    CHECK(now.l_onoff == 1 && now.l_linger == 2);
    CHECK_EQ(write(ends[0], "bye", 3), 3);
    OK(close(ends[0]));
    CHECK_EQ(recv(ends[1], bytes, 16, MSG_WAITALL), 3);
    OK(close(ends[1]));
    /* While it does not arrive, closing waits for that time. */
    pair_of(AF_INET, ends);
    later.l_linger = 1;
    OK(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &later, sizeof later));
    OK(fcntl(ends[0], F_SETFL, O_NONBLOCK));
    static char bulk[100000];
    long sent = 0, got = 0;
    for (ssize_t part; (part = write(ends[0], bulk, sizeof bulk)) > 0; sent += part)
        ;
    int64_t start = now_ns(CLOCK_MONOTONIC);
    OK(close(ends[0]));
    CHECK(now_ns(CLOCK_MONOTONIC) - start > 900000000);
    for (ssize_t part; (part = read(ends[1], bulk, sizeof bulk)) > 0; got += part)
        ;
    CHECK_EQ(got, sent);
    OK(close(ends[1]));
    /* SIGPIPE, unless it is unwanted. */
    pair_of(AF_INET, ends);
    OK(shutdown(ends[0], SHUT_WR));
    CHECK_ERR(send(ends[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    pid_t child = CHILD({
        signal(SIGPIPE, SIG_DFL);
        send(ends[0], "x", 1, 0);
    });
    CHECK_KILLED(child, SIGPIPE);
}

/* No descriptor left: the connection waits until there is one. */
static void descriptors(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int server = listener(AF_INET, &address, &length), client = FD(socket(AF_INET, SOCK_STREAM, 0));
    OK(connect(client, (struct sockaddr *)&address, length));
    struct rlimit limit = {client + 1, 100}, enough = {100, 100};
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    CHECK_ERR(accept(server, NULL, NULL), EMFILE);
    CHECK_ERR(socket(AF_INET, SOCK_STREAM, 0), EMFILE);
    OK(setrlimit(RLIMIT_NOFILE, &enough));
    CHECK_EQ(write(client, "x", 1), 1);
    int fd = FD(accept(server, NULL, NULL));
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 1);
}

/* Data with the first packet, or after the connection stands; either way it arrives. */
static void fast_open(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    char bytes[16];
    int server = bound(AF_INET, SOCK_STREAM, &address, &length);
    set(server, IPPROTO_TCP, TCP_FASTOPEN, 5);
    OK(listen(server, 5));
    for (int round = 0; round < 3; round++) {
        int client = FD(socket(AF_INET, SOCK_STREAM, 0));
        ssize_t sent = sendto(client, "early", 5, MSG_FASTOPEN, (struct sockaddr *)&address, length);
        if (sent < 0 && errno == EOPNOTSUPP)
            SKIP("no TCP Fast Open here");
        CHECK_EQ(sent, 5);
        int fd = FD(accept(server, NULL, NULL));
        CHECK_EQ(recv(fd, bytes, 5, MSG_WAITALL), 5);
        CHECK_EQ(memcmp(bytes, "early", 5), 0);
        close(client);
        close(fd);
    }
}

/* --- waiting --- */

static void *send_later(void *fd)
{
    sleep_ms(30);
    CHECK_EQ(write(*(int *)fd, "later", 5), 5);
    return NULL;
}

static void blocking(void)
{
    int ends[2];
    char bytes[16];
    pair_of(AF_INET, ends);
    pthread_t thread;
    for (int round = 0; round < 3; round++) {
        PT(pthread_create(&thread, NULL, send_later, &ends[0]));
        CHECK_EQ(round == 0 ? read(ends[1], bytes, 16) : recv(ends[1], bytes, 5, MSG_WAITALL), 5);
        PT(pthread_join(thread, NULL));
    }
    PT(pthread_create(&thread, NULL, send_later, &ends[0]));
    CHECK_EQ(events_of(ends[1], POLLIN, 5000), POLLIN);
    PT(pthread_join(thread, NULL));
    CHECK_EQ(recv(ends[1], bytes, 2, 0), 2);
    CHECK_EQ(events_of(ends[1], POLLIN, 0), POLLIN);
    CHECK_EQ(recv(ends[1], bytes, 16, 0), 3);
    CHECK_EQ(events_of(ends[1], POLLIN, 0), 0);
    CHECK_ERR(recv(ends[1], bytes, 16, MSG_DONTWAIT), EAGAIN);
    struct timeval limit = {0, 50000};
    OK(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    int64_t start = now_ns(CLOCK_MONOTONIC);
    CHECK_ERR(read(ends[1], bytes, 16), EAGAIN);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 45000000);
    /* Many small rounds, each of which waits. */
    pid_t child = CHILD({
        for (int i = 0; i < 2000; i++) {
            CHECK_EQ(recv(ends[0], bytes, 16, 0), 4);
            CHECK_EQ(send(ends[0], bytes, 4, 0), 4);
        }
    });
    limit.tv_sec = 20;
    OK(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    for (int i = 0; i < 2000; i++) {
        CHECK_EQ(write(ends[1], &i, 4), 4);
        int back = -1;
        CHECK_EQ(read(ends[1], &back, 4), 4);
        CHECK_EQ(back, i);
    }
    JOIN(child);
}

static void epolls(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    struct epoll_event event = {EPOLLIN, {.u64 = 1}}, found[8];
    char bytes[8];
    int server = listener(AF_INET, &address, &length);
    int set_fd = FD(epoll_create1(0));
    OK(epoll_ctl(set_fd, EPOLL_CTL_ADD, server, &event));
    CHECK_EQ(epoll_wait(set_fd, found, 8, 0), 0);
    int client = FD(socket(AF_INET, SOCK_STREAM, 0));
    OK(connect(client, (struct sockaddr *)&address, length));
    CHECK_EQ(epoll_wait(set_fd, found, 8, 1000), 1);
    CHECK_EQ(epoll_wait(set_fd, found, 8, 0), 1); /* level: still there */
    int fd = FD(accept4(server, NULL, NULL, SOCK_NONBLOCK));
    CHECK_EQ(epoll_wait(set_fd, found, 8, 0), 0);
    event = (struct epoll_event){EPOLLIN | EPOLLRDHUP | EPOLLET, {.u64 = 2}};
    OK(epoll_ctl(set_fd, EPOLL_CTL_ADD, fd, &event));
    CHECK_EQ(epoll_wait(set_fd, found, 8, 0), 0);
    CHECK_EQ(write(client, "a", 1), 1);
    CHECK_EQ(epoll_wait(set_fd, found, 8, 1000), 1);
    CHECK(found[0].data.u64 == 2 && found[0].events == EPOLLIN);
    CHECK_EQ(epoll_wait(set_fd, found, 8, 20), 0); /* edge: told once */
    CHECK_EQ(write(client, "b", 1), 1);
    CHECK_EQ(epoll_wait(set_fd, found, 8, 1000), 1); /* each arrival is one */
    CHECK_EQ(read(fd, bytes, 8), 2);
    CHECK_ERR(read(fd, bytes, 8), EAGAIN);
    /* Room to write is told when there is some again, not before. */
    event.events = EPOLLOUT | EPOLLET;
    OK(epoll_ctl(set_fd, EPOLL_CTL_MOD, fd, &event));
    CHECK_EQ(epoll_wait(set_fd, found, 8, 0), 1);
    CHECK_EQ(epoll_wait(set_fd, found, 8, 0), 0);
    static char bulk[200000];
    long sent = 0, got = 0;
    for (ssize_t part; (part = write(fd, bulk, sizeof bulk)) > 0; sent += part)
        ;
    CHECK_EQ(errno, EAGAIN);
    CHECK_EQ(events_of(fd, POLLOUT, 0), 0);
    while (got < sent) {
        ssize_t part = read(client, bulk, sizeof bulk);
        CHECK(part > 0);
        got += part;
    }
    CHECK_EQ(epoll_wait(set_fd, found, 8, 1000), 1);
    CHECK_EQ(found[0].events & EPOLLOUT, EPOLLOUT);
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;
    OK(epoll_ctl(set_fd, EPOLL_CTL_MOD, fd, &event));
    OK(shutdown(client, SHUT_WR));
    CHECK_EQ(epoll_wait(set_fd, found, 8, 1000), 1);
    CHECK_EQ(found[0].events, EPOLLIN | EPOLLRDHUP);
    CHECK_EQ(epoll_wait(set_fd, found, 8, 0), 0);
    OK(close(fd));
    OK(close(client));
    CHECK_EQ(epoll_wait(set_fd, found, 8, 0), 0);
}

/* --- bulk --- */

struct stream {
    int fd;
    long bytes;
    uint64_t seed;
    size_t step;
};

static void *pump(void *argument)
{
    struct stream *stream = argument;
    uint64_t seed = stream->seed;
    char *buffer = malloc(stream->step);
    for (long left = stream->bytes; left > 0;) {
        size_t part = (long)stream->step < left ? stream->step : (size_t)left;
        for (size_t i = 0; i < part; i += 8) {
            uint64_t value = next_random(&seed);
            memcpy(buffer + i, &value, part - i < 8 ? part - i : 8);
        }
        CHECK_EQ(write(stream->fd, buffer, part), part);
        left -= part;
    }
    free(buffer);
    OK(shutdown(stream->fd, SHUT_WR));
    return NULL;
}

static void drain(int fd, long bytes, uint64_t seed, size_t step, size_t sent_step)
{
    char *buffer = malloc(step);
    uint64_t value = 0;
    long at = 0;
    for (ssize_t part; (part = read(fd, buffer, step)) != 0;) {
        CHECK(part > 0);
        for (ssize_t i = 0; i < part; i++, at++) {
            size_t inside = at % sent_step % 8;
            if (inside == 0)
                value = next_random(&seed);
            if (buffer[i] != ((char *)&value)[inside])
                FAIL("byte %ld is wrong", at);
        }
    }
    CHECK_EQ(at, bytes);
    free(buffer);
}

static void bulk(void)
{
    static const size_t steps[][2] = {{100000, 65536}, {1 << 20, 300000}, {777, 8192}};
    for (size_t round = 0; round < 3; round++) {
        int ends[2];
        pair_of(AF_INET, ends);
        struct stream stream = {ends[0], scaled(round == 2 ? 400000 : 8000000), 42 + round, steps[round][0]};
        pthread_t thread;
        PT(pthread_create(&thread, NULL, pump, &stream));
        drain(ends[1], stream.bytes, stream.seed, steps[round][1], stream.step);
        PT(pthread_join(thread, NULL));
        close(ends[0]);
        close(ends[1]);
    }
}

static void files(void)
{
    int ends[2], pipes[2];
    static char out[100000], in[100000];
    uint64_t seed = 7;
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (char)next_random(&seed);
    int file = FD(open("data", O_RDWR | O_CREAT | O_TRUNC, 0644));
    CHECK_EQ(write(file, out, sizeof out), sizeof out);
    pair_of(AF_INET, ends);
    off_t offset = 100;
    for (size_t left = sizeof out - 100; left > 0;) {
        ssize_t part = sendfile(ends[0], file, &offset, left);
        CHECK(part > 0);
        left -= part;
        for (ssize_t got = 0; got < part;) {
            ssize_t now = read(ends[1], in + sizeof in - left - part + got, part - got);
            CHECK(now > 0);
            got += now;
        }
    }
    CHECK_EQ(offset, sizeof out);
    CHECK_EQ(memcmp(in + 100, out + 100, sizeof out - 100), 0);
    OK(pipe(pipes));
    CHECK_EQ(write(pipes[1], out, 5000), 5000);
    CHECK_EQ(splice(pipes[0], NULL, ends[0], NULL, 5000, 0), 5000);
    for (size_t got = 0; got < 5000;) {
        ssize_t part = splice(ends[1], NULL, pipes[1], NULL, 5000 - got, 0);
        CHECK(part > 0);
        CHECK_EQ(read(pipes[0], in + got, part), part);
        got += part;
    }
    CHECK_EQ(memcmp(in, out, 5000), 0);
    CHECK_ERR(splice(ends[1], NULL, pipes[1], NULL, 100, SPLICE_F_NONBLOCK), EAGAIN);
}

/* --- urgent data --- */

static void urgent(void)
{
    int ends[2], mark;
    char bytes[16];
    pair_of(AF_INET, ends);
    CHECK_ERR(recv(ends[1], bytes, 1, MSG_OOB), EINVAL);
    CHECK_EQ(send(ends[0], "ab", 2, 0), 2);
    CHECK_EQ(send(ends[0], "!", 1, MSG_OOB), 1);
    CHECK_EQ(send(ends[0], "cd", 2, 0), 2);
    CHECK_EQ(events_of(ends[1], POLLPRI, PATIENCE_MS), POLLPRI);
    sleep_ms(10);
    OK(ioctl(ends[1], SIOCATMARK, &mark));
    CHECK_EQ(mark, 0);
    CHECK_EQ(recv(ends[1], bytes, 16, 0), 2); /* stops at the mark */
    OK(ioctl(ends[1], SIOCATMARK, &mark));
    CHECK_EQ(mark, 1);
    CHECK_EQ(recv(ends[1], bytes, 1, MSG_OOB), 1);
    CHECK_EQ(bytes[0], '!');
    CHECK_EQ(recv(ends[1], bytes, 16, 0), 2);
    CHECK_EQ(memcmp(bytes, "cd", 2), 0);
    set(ends[1], SOL_SOCKET, SO_OOBINLINE, 1);
    CHECK_EQ(send(ends[0], "x!", 2, MSG_OOB), 2);
    CHECK_EQ(events_of(ends[1], POLLIN, PATIENCE_MS), POLLIN);
    sleep_ms(10);
    CHECK_EQ(recv(ends[1], bytes, 16, 0), 1);
    CHECK_EQ(recv(ends[1], bytes, 16, 0), 1);
    CHECK_EQ(bytes[0], '!');
    CHECK_EQ(write(ends[0], "12345", 5), 5);
    CHECK_EQ(events_of(ends[1], POLLIN, PATIENCE_MS), POLLIN);
    int count;
    OK(ioctl(ends[1], FIONREAD, &count));
    CHECK_EQ(count, 5);
}

/* --- options --- */

static void options(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int fd = listener(AF_INET, &address, &length), ends[2];
    static const int switches[] = {SO_REUSEADDR, SO_REUSEPORT, SO_KEEPALIVE, SO_BROADCAST, SO_OOBINLINE, SO_DONTROUTE};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        for (int value = 1; value >= 0; value--) {
            set(fd, SOL_SOCKET, switches[i], value);
            CHECK_EQ(get(fd, SOL_SOCKET, switches[i]), value);
        }
    set(fd, SOL_SOCKET, SO_RCVBUF, 20000);
    CHECK_EQ(get(fd, SOL_SOCKET, SO_RCVBUF), 40000);
    set(fd, SOL_SOCKET, SO_SNDBUF, 30000);
    CHECK_EQ(get(fd, SOL_SOCKET, SO_SNDBUF), 60000);
    set(fd, SOL_SOCKET, SO_PRIORITY, 3);
    CHECK_EQ(get(fd, SOL_SOCKET, SO_PRIORITY), 3);
    set(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    static const int numbers[][2] = {{TCP_NODELAY, 1},   {TCP_CORK, 1},      {TCP_KEEPIDLE, 33}, {TCP_KEEPINTVL, 7},
                                     {TCP_KEEPCNT, 4},   {TCP_SYNCNT, 3},    {TCP_QUICKACK, 0},  {TCP_USER_TIMEOUT, 900},
                                     {TCP_LINGER2, 5},   {TCP_NOTSENT_LOWAT, 4096}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        set(fd, IPPROTO_TCP, numbers[i][0], numbers[i][1]);
        CHECK_EQ(get(fd, IPPROTO_TCP, numbers[i][0]), numbers[i][1]);
    }
    set(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, 0);
    set(fd, IPPROTO_TCP, TCP_FASTOPEN, 5);
    char name[16] = "";
    length = sizeof name;
    OK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length));
    OK(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    CHECK_ERR(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "nonesuch", 8), ENOENT);
    set(fd, IPPROTO_IP, IP_TOS, 0x10);
    CHECK_EQ(get(fd, IPPROTO_IP, IP_TOS), 0x10);
    set(fd, IPPROTO_IP, IP_TTL, 55);
    CHECK_EQ(get(fd, IPPROTO_IP, IP_TTL), 55);
    set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
    CHECK_EQ(get(fd, IPPROTO_IP, IP_MTU_DISCOVER), IP_PMTUDISC_DO);
    set(fd, IPPROTO_IP, IP_FREEBIND, 1);
    CHECK_ERR(setsockopt(fd, IPPROTO_IP, 12345, &length, 4), ENOPROTOOPT);
    CHECK_ERR(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &length, 2), EINVAL);
    CHECK_ERR(setsockopt(fd, SOL_SOCKET, SO_TYPE, &length, 4), ENOPROTOOPT);
    pair_of(AF_INET, ends);
    struct tcp_info info;
    length = sizeof info;
    OK(getsockopt(ends[0], IPPROTO_TCP, TCP_INFO, &info, &length));
    CHECK_EQ(info.tcpi_state, TCP_ESTABLISHED);
    CHECK(get(ends[0], IPPROTO_TCP, TCP_MAXSEG) > 500);
    /* Bytes that TCP_CORK holds back come when it is switched off. */
    char bytes[16];
    set(ends[0], IPPROTO_TCP, TCP_CORK, 1);
    /* They come by themselves after 200 ms, which may pass while this does not run. */
    int64_t begin = now_ns(CLOCK_MONOTONIC);
    CHECK_EQ(send(ends[0], "held", 4, 0), 4);
    int events = events_of(ends[1], POLLIN, 20);
    CHECK(events == 0 || now_ns(CLOCK_MONOTONIC) - begin > 150000000);
    set(ends[0], IPPROTO_TCP, TCP_CORK, 0);
    CHECK_EQ(events_of(ends[1], POLLIN, PATIENCE_MS), POLLIN);
    CHECK_EQ(recv(ends[1], bytes, 16, 0), 4);
    CHECK_EQ(send(ends[0], "mo", 2, MSG_MORE), 2);
    CHECK_EQ(send(ends[0], "re", 2, 0), 2);
    CHECK_EQ(recv(ends[1], bytes, 4, MSG_WAITALL), 4);
    if (has_ipv6()) {
        int six = FD(socket(AF_INET6, SOCK_DGRAM, 0));
        set(six, IPPROTO_IPV6, IPV6_V6ONLY, 1);
        CHECK_EQ(get(six, IPPROTO_IPV6, IPV6_V6ONLY), 1);
        set(six, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 9);
        CHECK_EQ(get(six, IPPROTO_IPV6, IPV6_UNICAST_HOPS), 9);
        set(six, IPPROTO_IPV6, IPV6_TCLASS, 0x20);
        set(six, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 2);
        set(six, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1);
    }
}

/* --- datagrams --- */

static void datagrams_of(int family)
{
    struct sockaddr_storage a, b, from;
    socklen_t length, from_length = sizeof from;
    char bytes[64];
    int one = bound(family, SOCK_DGRAM, &a, &length), two = bound(family, SOCK_DGRAM, &b, &length);
    CHECK_ERR(recv(one, bytes, 64, MSG_DONTWAIT), EAGAIN);
    CHECK_EQ(sendto(one, "first", 5, 0, (struct sockaddr *)&b, length), 5);
    CHECK_EQ(sendto(one, "", 0, 0, (struct sockaddr *)&b, length), 0);
    CHECK_EQ(sendto(one, "a long one", 10, 0, (struct sockaddr *)&b, length), 10);
    CHECK_EQ(recvfrom(two, bytes, 64, 0, (struct sockaddr *)&from, &from_length), 5);
    CHECK(from_length == length && memcmp(&from, &a, length) == 0);
    CHECK_EQ(events_of(two, POLLIN, 0), POLLIN);
    CHECK_EQ(recv(two, bytes, 64, 0), 0);
    CHECK_EQ(recv(two, bytes, 4, MSG_PEEK | MSG_TRUNC), 10);
    struct iovec piece = {bytes, 6};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    CHECK_EQ(recvmsg(two, &message, 0), 6);
    CHECK_EQ(message.msg_flags & MSG_TRUNC, MSG_TRUNC);
    CHECK_ERR(recv(two, bytes, 64, MSG_DONTWAIT), EAGAIN);
    CHECK_EQ(events_of(two, POLLIN, 0), 0);
    CHECK_ERR(send(one, "x", 1, 0), EDESTADDRREQ);
    OK(connect(one, (struct sockaddr *)&b, length));
    CHECK_EQ(write(one, "x", 1), 1);
    CHECK_EQ(read(two, bytes, 64), 1);
    static char big[70000];
    CHECK_ERR(send(one, big, sizeof big, 0), EMSGSIZE);
    CHECK_EQ(send(one, big, 60000, 0), 60000);
    CHECK_EQ(read(two, big, sizeof big), 60000);
    /* Nobody there: told at the next call. */
    OK(close(two));
    CHECK_EQ(send(one, "y", 1, 0), 1);
    CHECK_EQ(events_of(one, POLLIN, PATIENCE_MS) & POLLERR, POLLERR);
    CHECK_ERR(recv(one, bytes, 64, 0), ECONNREFUSED);
    CHECK_ERR(recv(one, bytes, 64, MSG_DONTWAIT), EAGAIN);
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    OK(connect(one, &nobody, sizeof nobody));
    CHECK_ERR(send(one, "x", 1, 0), EDESTADDRREQ);
}

static void datagrams(void)
{
    datagrams_of(AF_INET);
    if (has_ipv6())
        datagrams_of(AF_INET6);
}

static struct cmsghdr *find(struct msghdr *message, int level, int type)
{
    struct cmsghdr *part = CMSG_FIRSTHDR(message);
    while (part && (part->cmsg_level != level || part->cmsg_type != type))
        part = CMSG_NXTHDR(message, part);
    CHECK(part);
    return part;
}

static void controls(void)
{
    struct sockaddr_storage a, b;
    socklen_t length;
    char bytes[64], room[512];
    int one = bound(AF_INET, SOCK_DGRAM, &a, &length), two = bound(AF_INET, SOCK_DGRAM, &b, &length);
    set(two, IPPROTO_IP, IP_PKTINFO, 1);
    set(two, IPPROTO_IP, IP_RECVTTL, 1);
    set(two, IPPROTO_IP, IP_RECVTOS, 1);
    set(two, SOL_SOCKET, SO_TIMESTAMP, 1);
    struct iovec piece = {"ping", 4};
    struct sockaddr_storage other = b; /* where to, then where from */
    struct msghdr message = {.msg_name = &other, .msg_namelen = length, .msg_iov = &piece, .msg_iovlen = 1};
    memset(room, 0, sizeof room);
    message.msg_control = room;
    message.msg_controllen = CMSG_SPACE(sizeof(int));
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    *part = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TTL};
    int ttl = 77;
    memcpy(CMSG_DATA(part), &ttl, sizeof ttl);
    CHECK_EQ(sendmsg(one, &message, 0), 4);
    piece = (struct iovec){bytes, 64};
    message.msg_controllen = sizeof room;
    CHECK_EQ(recvmsg(two, &message, 0), 4);
    CHECK_EQ(message.msg_flags, 0);
    memcpy(&ttl, CMSG_DATA(find(&message, IPPROTO_IP, IP_TTL)), sizeof ttl);
    CHECK_EQ(ttl, 77);
    struct in_pktinfo info;
    memcpy(&info, CMSG_DATA(find(&message, IPPROTO_IP, IP_PKTINFO)), sizeof info);
    CHECK_EQ(info.ipi_addr.s_addr, htonl(INADDR_LOOPBACK));
    CHECK(find(&message, SOL_SOCKET, SO_TIMESTAMP)->cmsg_len >= CMSG_LEN(16));
    CHECK_EQ(find(&message, IPPROTO_IP, IP_TOS)->cmsg_len, CMSG_LEN(1));
    /* Too little room is told. */
    CHECK_EQ(sendto(one, "again", 5, 0, (struct sockaddr *)&b, length), 5);
    message.msg_controllen = 20;
    CHECK_EQ(recvmsg(two, &message, 0), 5);
    CHECK_EQ(message.msg_flags & MSG_CTRUNC, MSG_CTRUNC);
    /* Segments: one call, several datagrams. */
    set(one, IPPROTO_UDP, UDP_SEGMENT, 4);
    CHECK_EQ(sendto(one, "aaaabbbbcc", 10, 0, (struct sockaddr *)&b, length), 10);
    CHECK_EQ(recv(two, bytes, 64, 0), 4);
    CHECK_EQ(recv(two, bytes, 64, 0), 4);
    CHECK_EQ(recv(two, bytes, 64, 0), 2);
    set(one, IPPROTO_UDP, UDP_SEGMENT, 0);
    /* Errors beside the data. */
    set(one, IPPROTO_IP, IP_RECVERR, 1);
    OK(close(two));
    CHECK_EQ(sendto(one, "lost", 4, 0, (struct sockaddr *)&b, length), 4);
    CHECK_EQ(events_of(one, 0, PATIENCE_MS), POLLERR);
    message.msg_controllen = sizeof room;
    piece.iov_len = 64;
    message.msg_namelen = sizeof b;
    CHECK_EQ(recvmsg(one, &message, MSG_ERRQUEUE), 4);
    CHECK_EQ(message.msg_flags & MSG_ERRQUEUE, MSG_ERRQUEUE);
    struct sock_extended_err error;
    memcpy(&error, CMSG_DATA(find(&message, IPPROTO_IP, IP_RECVERR)), sizeof error);
    CHECK_EQ(error.ee_errno, ECONNREFUSED);
    CHECK_ERR(recvmsg(one, &message, MSG_ERRQUEUE), EAGAIN);
}

static void controls6(void)
{
    if (!has_ipv6())
        SKIP("no IPv6 here");
    struct sockaddr_storage a, b;
    socklen_t length;
    char bytes[64], room[512];
    int one = bound(AF_INET6, SOCK_DGRAM, &a, &length), two = bound(AF_INET6, SOCK_DGRAM, &b, &length);
    set(two, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    set(two, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
    CHECK_EQ(sendto(one, "six", 3, 0, (struct sockaddr *)&b, length), 3);
    struct iovec piece = {bytes, 64};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    CHECK_EQ(recvmsg(two, &message, 0), 3);
    struct in6_pktinfo info;
    memcpy(&info, CMSG_DATA(find(&message, IPPROTO_IPV6, IPV6_PKTINFO)), sizeof info);
    CHECK(IN6_IS_ADDR_LOOPBACK(&info.ipi6_addr));
    CHECK_EQ(find(&message, IPPROTO_IPV6, IPV6_HOPLIMIT)->cmsg_len, CMSG_LEN(sizeof(int)));
}

static void batches(void)
{
    struct sockaddr_storage a, b;
    socklen_t length;
    int one = bound(AF_INET, SOCK_DGRAM, &a, &length), two = bound(AF_INET, SOCK_DGRAM, &b, &length);
    OK(connect(one, (struct sockaddr *)&b, length));
    char texts[20][8];
    struct iovec pieces[20];
    struct mmsghdr list[20];
    memset(list, 0, sizeof list);
    for (int i = 0; i < 20; i++) {
        pieces[i] = (struct iovec){texts[i], snprintf(texts[i], 8, "m%d", i)};
        list[i].msg_hdr.msg_iov = &pieces[i];
        list[i].msg_hdr.msg_iovlen = 1;
    }
    CHECK_EQ(sendmmsg(one, list, 20, 0), 20);
    CHECK_EQ(list[19].msg_len, 3);
    memset(texts, 0, sizeof texts);
    for (int i = 0; i < 20; i++)
        pieces[i].iov_len = 8;
    CHECK_EQ(recvmmsg(two, list, 10, MSG_WAITFORONE, NULL), 10);
    CHECK_EQ(recvmmsg(two, list + 10, 10, MSG_DONTWAIT, NULL), 10);
    CHECK(strcmp(texts[0], "m0") == 0 && strcmp(texts[19], "m19") == 0);
    CHECK_ERR(recvmmsg(two, list, 10, MSG_DONTWAIT, NULL), EAGAIN);
    /* Many pieces make one datagram. */
    static char parts[600][3];
    static struct iovec many[600];
    for (int i = 0; i < 600; i++)
        many[i] = (struct iovec){parts[i], 3};
    memset(parts, 'p', sizeof parts);
    CHECK_EQ(writev(one, many, 600), 1800);
    memset(parts, 0, sizeof parts);
    CHECK_EQ(readv(two, many, 600), 1800);
    CHECK(parts[0][0] == 'p' && parts[599][2] == 'p');
    /* Bad memory: an error, and the socket goes on. */
    CHECK_ERR(send(one, (void *)8, 100, 0), EFAULT);
    CHECK_EQ(send(one, "ok", 2, 0), 2);
    CHECK_EQ(recv(two, texts, 8, 0), 2);
}

static void multicast(void)
{
    struct sockaddr_in group = {.sin_family = AF_INET};
    struct ip_mreqn join = {.imr_address.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof group;
    char bytes[8];
    int one = FD(socket(AF_INET, SOCK_DGRAM, 0)), two = FD(socket(AF_INET, SOCK_DGRAM, 0));
    OK(bind(two, (struct sockaddr *)&group, length));
    OK(getsockname(two, (struct sockaddr *)&group, &length));
    CHECK(inet_aton("239.1.2.3", &join.imr_multiaddr));
    group.sin_addr = join.imr_multiaddr;
    OK(setsockopt(two, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join));
    CHECK_ERR(setsockopt(two, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join), EADDRINUSE);
    OK(setsockopt(one, IPPROTO_IP, IP_MULTICAST_IF, &join.imr_address, sizeof join.imr_address));
    set(one, IPPROTO_IP, IP_MULTICAST_TTL, 0);
    set(one, IPPROTO_IP, IP_MULTICAST_LOOP, 1);
    CHECK_EQ(sendto(one, "all", 3, 0, (struct sockaddr *)&group, length), 3);
    CHECK_EQ(events_of(two, POLLIN, PATIENCE_MS), POLLIN);
    CHECK_EQ(recv(two, bytes, 8, 0), 3);
    OK(setsockopt(two, IPPROTO_IP, IP_DROP_MEMBERSHIP, &join, sizeof join));
    CHECK_ERR(setsockopt(two, IPPROTO_IP, IP_DROP_MEMBERSHIP, &join, sizeof join), EADDRNOTAVAIL);
}

static void ping(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
    if (fd < 0 && errno == EACCES)
        SKIP("no ICMP datagrams for this group");
    CHECK(fd >= 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct icmphdr echo = {.type = ICMP_ECHO, .un.echo.sequence = htons(5)}, reply;
    CHECK_EQ(sendto(fd, &echo, sizeof echo, 0, (struct sockaddr *)&to, sizeof to), sizeof echo);
    CHECK_EQ(events_of(fd, POLLIN, PATIENCE_MS), POLLIN);
    CHECK_EQ(recv(fd, &reply, sizeof reply, 0), sizeof reply);
    CHECK(reply.type == ICMP_ECHOREPLY && reply.un.echo.sequence == htons(5));
}

static void interfaces(void)
{
    int fd = FD(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq request = {.ifr_name = "lo"};
    OK(ioctl(fd, SIOCGIFFLAGS, &request));
    CHECK(request.ifr_flags & IFF_LOOPBACK);
    OK(ioctl(fd, SIOCGIFINDEX, &request));
    CHECK_EQ(request.ifr_ifindex, if_nametoindex("lo"));
    strcpy(request.ifr_name, "nonesuch");
    CHECK_ERR(ioctl(fd, SIOCGIFFLAGS, &request), ENODEV);
    struct ifreq list[16];
    struct ifconf all = {.ifc_len = sizeof list, .ifc_req = list};
    OK(ioctl(fd, SIOCGIFCONF, &all));
    CHECK(all.ifc_len % sizeof(struct ifreq) == 0);
}

/* Bridges, bonds and VLANs are not for everyone. A host that has no module for some of them says so instead. */
static void changes_of_links(void)
{
    static const struct {
        unsigned long request;
        bool has_module;
    } changes[] = {{0x89a0, false}, {0x89a1, false}, {0x8983, false}, {0x89a2, false},
                   {0x89a3, false},  {0x8990, true},  {0x8991, true}};
    int fd = FD(socket(AF_INET, SOCK_DGRAM, 0));
    if (geteuid() == 0)
        OK(setresuid(12345, 12345, 12345));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct ifreq request = {.ifr_name = "nonesuch"};
        int result = ioctl(fd, changes[i].request, &request);
        if (result == 0 || (errno != EPERM && (changes[i].has_module || errno != ENOPKG)))
            FAIL("request %#lx: %d", changes[i].request, result);
    }
}

/* --- many --- */

static void many(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int server = listener(AF_INET, &address, &length);
    struct linger now = {1, 0}; /* leaves no TIME_WAIT */
    char byte;
    int count = (int)scaled(3000);
    for (int i = 0; i < count; i++) {
        int fd = FD(socket(AF_INET, SOCK_STREAM, 0));
        OK(connect(fd, (struct sockaddr *)&address, length));
        int other = FD(accept(server, NULL, NULL));
        CHECK_EQ(write(fd, "x", 1), 1);
        CHECK_EQ(read(other, &byte, 1), 1);
        OK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
        OK(close(fd));
        OK(close(other));
    }
    /* Many at once. */
    static int ends[2][400];
    for (int i = 0; i < 400; i++) {
        ends[0][i] = FD(socket(AF_INET, SOCK_STREAM, 0));
        OK(connect(ends[0][i], (struct sockaddr *)&address, length));
        ends[1][i] = FD(accept(server, NULL, NULL));
    }
    int set_fd = FD(epoll_create1(0));
    for (int i = 0; i < 400; i++) {
        struct epoll_event event = {EPOLLIN, {.u64 = i}};
        OK(epoll_ctl(set_fd, EPOLL_CTL_ADD, ends[1][i], &event));
        CHECK_EQ(write(ends[0][i], "y", 1), 1);
    }
    for (int seen = 0; seen < 400;) {
        struct epoll_event found[64];
        int got = epoll_wait(set_fd, found, 64, PATIENCE_MS);
        CHECK(got > 0);
        for (int i = 0; i < got; i++, seen++)
            CHECK_EQ(read(ends[1][found[i].data.u64], &byte, 1), 1);
    }
}

static bool has_arrived(int fd)
{
    int bytes = 0;
    OK(ioctl(fd, FIONREAD, &bytes));
    return bytes == 1;
}

/* What has arrived is seen beside the room to write that is there always. */
static void at_once(void)
{
    char byte;
    for (int round = 0; round < 50; round++) {
        int ends[2], set = FD(epoll_create1(EPOLL_CLOEXEC));
        pair_of(AF_INET, ends);
        struct pollfd both = {ends[0], POLLIN | POLLOUT, 0};
        CHECK_EQ(poll(&both, 1, 0), 1);
        CHECK_EQ(both.revents, POLLOUT);
        CHECK_EQ(write(ends[1], "x", 1), 1);
        AWAIT(has_arrived(ends[0]), 100);
        CHECK_EQ(poll(&both, 1, 0), 1);
        CHECK_EQ(both.revents, POLLIN | POLLOUT);
        CHECK_EQ(read(ends[0], &byte, 1), 1);

        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
        OK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
        CHECK_EQ(epoll_wait(set, &event, 1, 0), 1);
        CHECK_EQ(event.events, EPOLLOUT);
        CHECK_EQ(write(ends[1], "x", 1), 1);
        AWAIT(has_arrived(ends[0]), 100);
        CHECK_EQ(epoll_wait(set, &event, 1, 0), 1);
        CHECK_EQ(event.events, EPOLLIN | EPOLLOUT);
        CHECK_EQ(read(ends[0], &byte, 1), 1);

        OK(shutdown(ends[1], SHUT_WR));
        struct pollfd end = {ends[0], POLLRDHUP, 0};
        CHECK_EQ(poll(&end, 1, -1), 1);
        both.events |= POLLRDHUP;
        CHECK_EQ(poll(&both, 1, 0), 1);
        CHECK_EQ(both.revents, POLLIN | POLLOUT | POLLRDHUP);
        CHECK_EQ(epoll_wait(set, &event, 1, 0), 1);
        CHECK_EQ(event.events, EPOLLIN | EPOLLOUT);
        OK(close(ends[0]) | close(ends[1]) | close(set));
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(tcp),    TEST(tcp6),      TEST(kinds),    TEST(addresses), TEST(refused), TEST(resets),    TEST(descriptors), TEST(fast_open), TEST(blocking),
        TEST(epolls), TEST(at_once), TEST(bulk),      TEST(files),    TEST(urgent),    TEST(options), TEST(datagrams), TEST(controls),
        TEST(controls6), TEST(batches), TEST(multicast), TEST(ping),    TEST(interfaces), TEST(changes_of_links), TEST(many),
    };
    return RUN_TESTS("inet", tests, argc, argv);
}
