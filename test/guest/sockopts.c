/* Options of internet sockets, and what they do: groups, devices, messages about what was sent, filters. */
#include "check.h"
#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

static void set(int fd, int level, int name, int value)
{
    OK(setsockopt(fd, level, name, &value, sizeof value));
}

static int get(int fd, int level, int name)
{
    int value = -7;
    socklen_t length = sizeof value;
    OK(getsockopt(fd, level, name, &value, &length));
    return value;
}

static int refuse(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

static bool readable(int fd, int timeout_ms)
{
    struct pollfd one = {fd, POLLIN, 0};
    return poll(&one, 1, timeout_ms) == 1 && one.revents & POLLIN;
}

/* A bound datagram socket, on an address of its family. */
static int bound(int family, struct sockaddr_storage *address, socklen_t *length)
{
    int fd = FD(socket(family, SOCK_DGRAM, 0));
    memset(address, 0, sizeof *address);
    address->ss_family = family;
    *length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (family == AF_INET)
        ((struct sockaddr_in *)address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        ((struct sockaddr_in6 *)address)->sin6_addr = in6addr_loopback;
    OK(bind(fd, (void *)address, *length));
    OK(getsockname(fd, (void *)address, length));
    return fd;
}

static void values(void)
{
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM};
    for (int t = 0; t < 2; t++) {
        int fd = FD(socket(AF_INET, types[t], 0));
        CHECK_EQ(get(fd, SOL_SOCKET, SO_TYPE), types[t]);
        CHECK_EQ(get(fd, SOL_SOCKET, SO_DOMAIN), AF_INET);
        CHECK_EQ(get(fd, SOL_SOCKET, SO_PROTOCOL), t ? IPPROTO_UDP : IPPROTO_TCP);
        static const int switches[] = {SO_REUSEADDR, SO_REUSEPORT, SO_DONTROUTE, SO_BROADCAST, SO_KEEPALIVE, SO_OOBINLINE,
                                       SO_TIMESTAMP, SO_NO_CHECK,  SO_RXQ_OVFL};
        for (size_t at = 0; at < sizeof switches / sizeof *switches; at++) {
            set(fd, SOL_SOCKET, switches[at], 300);
            CHECK_EQ(get(fd, SOL_SOCKET, switches[at]), 1);
            char little = 9;
            socklen_t length = 1;
            OK(getsockopt(fd, SOL_SOCKET, switches[at], &little, &length));
            CHECK(length == 1 && little == 1);
            CHECK_ERR(setsockopt(fd, SOL_SOCKET, switches[at], &little, 1), EINVAL);
            set(fd, SOL_SOCKET, switches[at], 0);
            CHECK_EQ(get(fd, SOL_SOCKET, switches[at]), 0);
        }
        CHECK_ERR(refuse(fd, SOL_SOCKET, SO_TYPE, 1), ENOPROTOOPT);
        CHECK_ERR(refuse(fd, SOL_SOCKET, SO_ERROR, 1), ENOPROTOOPT);
        CHECK_ERR(refuse(fd, SOL_SOCKET, 999, 1), ENOPROTOOPT);
        CHECK_ERR(refuse(fd, 999, 1, 1), ENOPROTOOPT);
        int buffer;
        socklen_t length = sizeof buffer;
        CHECK_ERR(getsockopt(fd, 999, 1, &buffer, &length), EOPNOTSUPP);
        set(fd, SOL_SOCKET, SO_SNDBUF, 20000);
        CHECK_EQ(get(fd, SOL_SOCKET, SO_SNDBUF), 40000);
        set(fd, SOL_SOCKET, SO_RCVBUF, 20000);
        CHECK_EQ(get(fd, SOL_SOCKET, SO_RCVBUF), 40000);
        set(fd, SOL_SOCKET, SO_RCVLOWAT, 0);
        CHECK_EQ(get(fd, SOL_SOCKET, SO_RCVLOWAT), 1);
        CHECK_EQ(get(fd, SOL_SOCKET, SO_BUSY_POLL), 0);
        CHECK_ERR(refuse(fd, SOL_SOCKET, SO_BUSY_POLL, -1), EINVAL);
        uint64_t cookie = 0;
        length = sizeof cookie;
        OK(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length));
        CHECK(cookie != 0);
        set(fd, IPPROTO_IP, IP_TTL, 9);
        CHECK_EQ(get(fd, IPPROTO_IP, IP_TTL), 9);
        CHECK_ERR(refuse(fd, IPPROTO_IP, IP_TTL, 256), EINVAL);
        set(fd, IPPROTO_IP, IP_TOS, 0x10);
        CHECK_EQ(get(fd, IPPROTO_IP, IP_TOS), 0x10);
        JOIN(CHILD({
            OK(setuid(1000));
            CHECK_ERR(refuse(fd, SOL_SOCKET, SO_MARK, 1), EPERM);
            CHECK_ERR(refuse(fd, SOL_SOCKET, SO_PRIORITY, 7), EPERM);
            set(fd, SOL_SOCKET, SO_PRIORITY, 6);
        }));
        OK(close(fd));
    }
    int fd = FD(socket(AF_INET, SOCK_STREAM, 0));
    char name[20] = "reno";
    socklen_t length = 4;
    OK(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, length));
    length = sizeof name;
    memset(name, 'x', sizeof name);
    OK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length));
    CHECK(length == 16 && strcmp(name, "reno") == 0);
    length = 3;
    OK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length));
    CHECK_EQ(length, 3);
    CHECK_ERR(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "nonesuch", 8), ENOENT);
    /* Layers above TCP: none until one is chosen by its name, which may be short. */
    CHECK_ERR(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "nonesuch", 8), ENOENT);
    CHECK_ERR(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "no", 2), ENOENT);
    CHECK_ERR(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "", 0), EINVAL);
    length = sizeof name;
    OK(getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &length));
    CHECK_EQ(length, 0);
    struct tcp_info info;
    length = sizeof info;
    OK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    CHECK(info.tcpi_state == TCP_CLOSE && length > 100);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
    CHECK_EQ(get(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 5000);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 100);
    CHECK_EQ(get(fd, IPPROTO_TCP, TCP_KEEPIDLE), 100);
    CHECK_ERR(refuse(fd, IPPROTO_TCP, TCP_KEEPIDLE, 0), EINVAL);
    int six = FD(socket(AF_INET6, SOCK_DGRAM, 0));
    set(six, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    CHECK_EQ(get(six, IPPROTO_IPV6, IPV6_V6ONLY), 1);
    set(six, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 7);
    CHECK_EQ(get(six, IPPROTO_IPV6, IPV6_UNICAST_HOPS), 7);
}

static void devices(void)
{
    int fd = FD(socket(AF_INET, SOCK_DGRAM, 0));
    char name[IFNAMSIZ] = "";
    socklen_t room = sizeof name;
    OK(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &room));
    CHECK_EQ(room, 0);
}

/* Groups of both families, by each of the ways to join. */
static void groups(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    socklen_t length = sizeof to;
    char text[8];
    int sender = FD(socket(AF_INET, SOCK_DGRAM, 0)), receiver = FD(socket(AF_INET, SOCK_DGRAM, 0));
    set(receiver, SOL_SOCKET, SO_REUSEADDR, 1);
    OK(bind(receiver, (void *)&to, length));
    OK(getsockname(receiver, (void *)&to, &length));
    CHECK(inet_aton("239.77.1.2", &to.sin_addr));
    struct ip_mreqn own = {.imr_multiaddr = to.sin_addr, .imr_ifindex = if_nametoindex("lo")};
    OK(setsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &own, sizeof own));
    CHECK_EQ(get(sender, IPPROTO_IP, IP_MULTICAST_TTL), 1);
    CHECK_EQ(get(sender, IPPROTO_IP, IP_MULTICAST_LOOP), 1);
    set(sender, IPPROTO_IP, IP_MULTICAST_TTL, 0);
    for (int way = 0; way < 3; way++) {
        struct ip_mreq plain = {to.sin_addr, {htonl(INADDR_LOOPBACK)}};
        struct group_req request = {.gr_interface = own.imr_ifindex};
        memcpy(&request.gr_group, &to, sizeof to);
        if (way == 0)
            OK(setsockopt(receiver, IPPROTO_IP, IP_ADD_MEMBERSHIP, &plain, sizeof plain));
        else if (way == 1)
            OK(setsockopt(receiver, IPPROTO_IP, IP_ADD_MEMBERSHIP, &own, sizeof own));
        else
            OK(setsockopt(receiver, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request));
        CHECK_EQ(sendto(sender, "all", 3, 0, (void *)&to, length), 3);
        CHECK(readable(receiver, 2000));
        CHECK_EQ(recv(receiver, text, 8, 0), 3);
        if (way == 2)
            OK(setsockopt(receiver, IPPROTO_IP, MCAST_LEAVE_GROUP, &request, sizeof request));
        else
            OK(setsockopt(receiver, IPPROTO_IP, IP_DROP_MEMBERSHIP, &own, sizeof own));
        CHECK_EQ(sendto(sender, "left", 4, 0, (void *)&to, length), 4);
        CHECK(!readable(receiver, 0));
    }
    CHECK_ERR(setsockopt(receiver, IPPROTO_IP, IP_DROP_MEMBERSHIP, &own, sizeof own), EADDRNOTAVAIL);
    own.imr_multiaddr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_ERR(setsockopt(receiver, IPPROTO_IP, IP_ADD_MEMBERSHIP, &own, sizeof own), EINVAL);
    CHECK_ERR(setsockopt(receiver, IPPROTO_IP, IP_ADD_MEMBERSHIP, &own, 3), EINVAL);
    struct sockaddr_in broadcast = to;
    broadcast.sin_addr.s_addr = htonl(0x7fffffff);
    CHECK_ERR(sendto(sender, "x", 1, 0, (void *)&broadcast, length), EACCES);
    set(sender, SOL_SOCKET, SO_BROADCAST, 1);
    CHECK_EQ(sendto(sender, "x", 1, 0, (void *)&broadcast, length), 1);
    CHECK(readable(receiver, 2000));
}

static void groups6(void)
{
    struct sockaddr_in6 to = {.sin6_family = AF_INET6};
    socklen_t length = sizeof to;
    char text[8];
    int sender = FD(socket(AF_INET6, SOCK_DGRAM, 0)), receiver = FD(socket(AF_INET6, SOCK_DGRAM, 0));
    int loopback = if_nametoindex("lo");
    OK(bind(receiver, (void *)&to, length));
    OK(getsockname(receiver, (void *)&to, &length));
    CHECK_EQ(inet_pton(AF_INET6, "ff02::77:1", &to.sin6_addr), 1);
    to.sin6_scope_id = loopback;
    set(sender, IPPROTO_IPV6, IPV6_MULTICAST_IF, loopback);
    CHECK_EQ(get(sender, IPPROTO_IPV6, IPV6_MULTICAST_IF), loopback);
    CHECK_EQ(get(sender, IPPROTO_IPV6, IPV6_MULTICAST_HOPS), 1);
    for (int way = 0; way < 2; way++) {
        struct ipv6_mreq join = {to.sin6_addr, loopback};
        struct group_req request = {.gr_interface = loopback};
        memcpy(&request.gr_group, &to, sizeof to);
        if (way == 0)
            OK(setsockopt(receiver, IPPROTO_IPV6, IPV6_JOIN_GROUP, &join, sizeof join));
        else
            OK(setsockopt(receiver, IPPROTO_IPV6, MCAST_JOIN_GROUP, &request, sizeof request));
        if (sendto(sender, "all", 3, 0, (void *)&to, length) < 0 && (errno == ENETUNREACH || errno == EADDRNOTAVAIL))
            SKIP("no route for groups of IPv6");
        CHECK(readable(receiver, 2000));
        CHECK_EQ(recv(receiver, text, 8, 0), 3);
        if (way == 0)
            OK(setsockopt(receiver, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &join, sizeof join));
        else
            OK(setsockopt(receiver, IPPROTO_IPV6, MCAST_LEAVE_GROUP, &request, sizeof request));
        CHECK_ERR(setsockopt(receiver, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &join, sizeof join), EADDRNOTAVAIL);
    }
}

/* The next message about what was sent: the first and the last number it is about. */
static void told(int fd, int family, uint32_t first, uint32_t last)
{
    char space[256];
    struct msghdr message = {.msg_control = space, .msg_controllen = sizeof space};
    CHECK_EQ(recvmsg(fd, &message, MSG_ERRQUEUE), 0);
    CHECK(message.msg_flags & MSG_ERRQUEUE);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header != NULL);
    CHECK_EQ(header->cmsg_level, family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6);
    CHECK_EQ(header->cmsg_type, family == AF_INET ? IP_RECVERR : IPV6_RECVERR);
    struct sock_extended_err error;
    memcpy(&error, CMSG_DATA(header), sizeof error);
    CHECK(error.ee_errno == 0 && error.ee_origin == SO_EE_ORIGIN_ZEROCOPY);
    CHECK_EQ(error.ee_code, SO_EE_CODE_ZEROCOPY_COPIED);
    CHECK(error.ee_info == first && error.ee_data == last);
}

static void zero_copies(void)
{
    static const int families[] = {AF_INET, AF_INET6};
    for (int f = 0; f < 2; f++) {
        struct sockaddr_storage address;
        socklen_t length = families[f] == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        memset(&address, 0, sizeof address);
        address.ss_family = families[f];
        if (families[f] == AF_INET)
            ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        else
            ((struct sockaddr_in6 *)&address)->sin6_addr = in6addr_loopback;
        int listener = socket(families[f], SOCK_STREAM, 0), fd = socket(families[f], SOCK_STREAM, 0);
        if (families[f] == AF_INET6 && (listener < 0 || bind(listener, (void *)&address, length) != 0)) {
            CHECK(errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT);
            break; /* A host without IPv6. */
        }
        if (families[f] == AF_INET)
            OK(bind(listener, (void *)&address, length));
        OK(listen(listener, 1));
        OK(getsockname(listener, (void *)&address, &length));
        OK(connect(fd, (void *)&address, length));
        int peer = FD(accept(listener, NULL, NULL));
        static char bytes[40000];
        /* Without the option the flag means nothing. */
        CHECK_EQ(get(fd, SOL_SOCKET, SO_ZEROCOPY), 0);
        CHECK_EQ(send(fd, bytes, 10, MSG_ZEROCOPY), 10);
        struct msghdr message = {0};
        CHECK_ERR(recvmsg(fd, &message, MSG_ERRQUEUE), EAGAIN);
        CHECK_ERR(refuse(fd, SOL_SOCKET, SO_ZEROCOPY, 2), EINVAL);
        set(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
        CHECK_EQ(get(fd, SOL_SOCKET, SO_ZEROCOPY), 1);
        for (int round = 0; round < 3; round++) {
            CHECK_EQ(send(fd, bytes, sizeof bytes, MSG_ZEROCOPY), sizeof bytes);
            for (size_t left = sizeof bytes + (round == 0 ? 10 : 0); left > 0;) {
                ssize_t got = recv(peer, bytes, left < sizeof bytes ? left : sizeof bytes, 0);
                CHECK(got > 0);
                left -= got;
            }
            struct pollfd one = {fd, 0, 0};
            CHECK_EQ(poll(&one, 1, PATIENCE_MS), 1);
            CHECK_EQ(one.revents, POLLERR);
            told(fd, families[f], round, round);
        }
        CHECK_EQ(send(fd, bytes, 10, 0), 10);
        CHECK_ERR(recvmsg(fd, &message, MSG_ERRQUEUE), EAGAIN);
        CHECK_EQ(get(fd, SOL_SOCKET, SO_ERROR), 0);
        close(fd), close(peer), close(listener);
    }
}

/* Options of Linux 5.15 to 5.18, and one of TCP that not every kernel before had. */
static void later_values(void)
{
    enum { BUF_LOCK = 72, TXREHASH = 74, TX_DELAY = 37 };
    if (!kernel_is(5, 18))
        SKIP("this kernel is older than SO_TXREHASH");
    int tcp = FD(socket(AF_INET, SOCK_STREAM, 0)), local = FD(socket(AF_UNIX, SOCK_STREAM, 0)), value;
    socklen_t length = sizeof value;
    int both[] = {tcp, local};
    for (int i = 0; i < 2; i++) {
        OK(getsockopt(both[i], SOL_SOCKET, BUF_LOCK, &value, &length));
        CHECK_EQ(value, 0);
        OK(setsockopt(both[i], SOL_SOCKET, SO_RCVBUF, &(int){8192}, sizeof value));
        OK(getsockopt(both[i], SOL_SOCKET, BUF_LOCK, &value, &length));
        CHECK_EQ(value, 2);
        OK(setsockopt(both[i], SOL_SOCKET, BUF_LOCK, &(int){1}, sizeof value));
        OK(getsockopt(both[i], SOL_SOCKET, BUF_LOCK, &value, &length));
        CHECK_EQ(value, 1);
        CHECK_ERR(setsockopt(both[i], SOL_SOCKET, BUF_LOCK, &(int){4}, sizeof value), EINVAL);
        CHECK_ERR(setsockopt(both[i], SOL_SOCKET, BUF_LOCK, &(int){-1}, sizeof value), EINVAL);
    }
    OK(setsockopt(tcp, SOL_SOCKET, TXREHASH, &(int){0}, sizeof value));
    OK(getsockopt(tcp, SOL_SOCKET, TXREHASH, &value, &length));
    CHECK_EQ(value, 0);
    CHECK_ERR(setsockopt(tcp, SOL_SOCKET, TXREHASH, &(int){2}, sizeof value), EINVAL);
    OK(getsockopt(tcp, IPPROTO_TCP, TX_DELAY, &value, &length));
    CHECK_EQ(value, 0);
    OK(setsockopt(tcp, IPPROTO_TCP, TX_DELAY, &(int){1000}, sizeof value));
    OK(getsockopt(tcp, IPPROTO_TCP, TX_DELAY, &value, &length));
    CHECK_EQ(value, 1000);
    OK(setsockopt(tcp, IPPROTO_TCP, TX_DELAY, &(int){0}, sizeof value));
}

/* Filters see the header of a datagram of UDP as well. */
static void filters(void)
{
    struct sockaddr_storage address, from;
    socklen_t length, from_length;
    int receiver = bound(AF_INET, &address, &length), sender = bound(AF_INET, &from, &from_length);
    OK(connect(sender, (void *)&address, length));
    in_port_t source = ntohs(((struct sockaddr_in *)&from)->sin_port);
    in_port_t port = ntohs(((struct sockaddr_in *)&address)->sin_port);
    /* From this port, to that one, with as many bytes as are there, and 'k' at the start. */
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0),  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, source, 0, 7),
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 2),  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 0, 5),
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 4),  BPF_STMT(BPF_LDX | BPF_W | BPF_LEN, 0),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 8),  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'k', 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 12),          BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {10, code};
    OK(setsockopt(receiver, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    char text[16];
    CHECK_EQ(send(sender, "drop", 4, 0), 4);
    CHECK_EQ(send(sender, "keep it", 7, 0), 7);
    CHECK_EQ(send(sender, "drop", 4, 0), 4);
    CHECK_EQ(send(sender, "k", 1, 0), 1);
    CHECK_EQ(recv(receiver, text, 16, MSG_PEEK), 4);
    CHECK_EQ(recv(receiver, text, 16, 0), 4);
    CHECK(memcmp(text, "keep", 4) == 0);
    struct sockaddr_in seen = {0};
    socklen_t seen_length = sizeof seen;
    CHECK_EQ(recvfrom(receiver, text, 16, 0, (void *)&seen, &seen_length), 1);
    CHECK_EQ(ntohs(seen.sin_port), source);
    CHECK_ERR(recv(receiver, text, 16, MSG_DONTWAIT), EAGAIN);
    CHECK_EQ(send(sender, "", 0, 0), 0);
    CHECK_ERR(recv(receiver, text, 16, MSG_DONTWAIT), EAGAIN);
    OK(setsockopt(receiver, SOL_SOCKET, SO_DETACH_FILTER, &(int){0}, 4));
    CHECK_EQ(send(sender, "drop", 4, 0), 4);
    CHECK_EQ(recv(receiver, text, 16, 0), 4);
}

/* A receive of no bytes waits for some, and takes none. */
static void nothing(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = FD(socket(AF_INET, SOCK_STREAM, 0)), fd = FD(socket(AF_INET, SOCK_STREAM, 0));
    OK(bind(listener, (void *)&address, length));
    OK(listen(listener, 1));
    OK(getsockname(listener, (void *)&address, &length));
    OK(connect(fd, (void *)&address, length));
    int peer = FD(accept(listener, NULL, NULL));
    char text[8];
    CHECK_ERR(recv(peer, text, 0, MSG_DONTWAIT), EAGAIN);
    CHECK_EQ(read(peer, text, 0), 0);
    pid_t child = CHILD(CHECK_EQ(recv(peer, text, 0, 0), 0));
    wait_until_asleep(child);
    CHECK_EQ(write(fd, "abc", 3), 3);
    JOIN(child);
    CHECK_EQ(recv(peer, text, 0, 0), 0);
    CHECK_EQ(recv(peer, text, 8, 0), 3);
    OK(close(fd));
    CHECK_EQ(recv(peer, text, 0, 0), 0);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(values), TEST(devices), TEST(groups), TEST(groups6), TEST(zero_copies), TEST(filters), TEST(nothing),
        TEST(later_values),
    };
    return RUN_TESTS("sockopts", tests, argc, argv);
}
