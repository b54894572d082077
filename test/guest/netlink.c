/* Netlink route sockets: questions and their answers, refusals, and messages that lie. */
#include "check.h"

#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sys/socket.h>

#define ROOM 65536

static int route_socket(void) { return FD(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)); }

static struct sockaddr_nl name_of(int fd)
{
    struct sockaddr_nl name = {0};
    socklen_t len = sizeof name;
    OK(getsockname(fd, (void *)&name, &len));
    CHECK_EQ(len, sizeof name);
    CHECK_EQ(name.nl_family, AF_NETLINK);
    return name;
}

/* Sends one message of `bytes` zero bytes beside its header, or with a body that begins with an interface's index. */
static void ask(int fd, int type, int flags, int seq, size_t bytes, int index)
{
    struct {
        struct nlmsghdr head;
        char body[64];
    } message = {{NLMSG_HDRLEN + bytes, type, flags, seq, 0}, {0}};
    CHECK(bytes <= sizeof message.body);
    if (index != 0)
        memcpy(message.body + 4, &index, sizeof index);
    CHECK_EQ(send(fd, &message, message.head.nlmsg_len, 0), message.head.nlmsg_len);
}

/* Receives until NLMSG_DONE or NLMSG_ERROR; hands the others to `each`. Result: the error. */
static int answers(int fd, int seq, void (*each)(struct nlmsghdr *, void *), void *with)
{
    static char buffer[ROOM];
    unsigned port = name_of(fd).nl_pid;
    for (;;) {
        struct sockaddr_nl from = {0};
        socklen_t from_len = sizeof from;
        ssize_t got = recvfrom(fd, buffer, sizeof buffer, 0, (void *)&from, &from_len);
        CHECK(got > 0);
        CHECK_EQ(from_len, sizeof from);
        CHECK_EQ(from.nl_pid, 0);
        size_t left = got;
        for (struct nlmsghdr *at = (void *)buffer; NLMSG_OK(at, left); at = NLMSG_NEXT(at, left)) {
            CHECK_EQ(at->nlmsg_seq, seq);
            CHECK_EQ(at->nlmsg_pid, port);
            if (at->nlmsg_type == NLMSG_DONE)
                return 0;
            if (at->nlmsg_type == NLMSG_ERROR) {
                struct nlmsgerr *error = NLMSG_DATA(at);
                CHECK_EQ(error->msg.nlmsg_seq, seq);
                return -error->error;
            }
            if (each)
                each(at, with);
        }
    }
}

static void find_loopback(struct nlmsghdr *message, void *found)
{
    struct ifaddrmsg *address = NLMSG_DATA(message);
    CHECK_EQ(message->nlmsg_type, RTM_NEWADDR);
    CHECK_EQ(address->ifa_family, AF_INET);
    int left = IFA_PAYLOAD(message);
    for (struct rtattr *at = IFA_RTA(address); RTA_OK(at, left); at = RTA_NEXT(at, left))
        if (at->rta_type == IFA_LOCAL && *(unsigned *)RTA_DATA(at) == htonl(INADDR_LOOPBACK))
            ++*(int *)found;
}

static void ask_addresses(int fd, int seq)
{
    struct {
        struct nlmsghdr head;
        struct ifaddrmsg body;
    } message = {{sizeof message, RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, seq, 0}, {.ifa_family = AF_INET}};
    CHECK_EQ(send(fd, &message, sizeof message, 0), sizeof message);
}

static void check_works(int fd, int seq)
{
    int found = 0;
    ask_addresses(fd, seq);
    CHECK_EQ(answers(fd, seq, find_loopback, &found), 0);
    CHECK_EQ(found, 1);
}

static void addresses(void)
{
    int fd = route_socket();
    struct pollfd polled = {fd, POLLIN | POLLOUT, 0};
    CHECK_EQ(poll(&polled, 1, 0), 1);
    CHECK_EQ(polled.revents, POLLOUT);
    ask_addresses(fd, 7);
    CHECK_EQ(poll(&polled, 1, PATIENCE_MS), 1);
    CHECK_EQ(polled.revents, POLLIN | POLLOUT);
    int found = 0;
    CHECK_EQ(answers(fd, 7, find_loopback, &found), 0);
    CHECK_EQ(found, 1);
    CHECK_ERR(recv(fd, &found, sizeof found, MSG_DONTWAIT), EAGAIN);
    for (int seq = 8; seq < 30; seq++)
        check_works(fd, seq);
    OK(close(fd));
}

/* Programs that look for the end of a dump in a message of its own find it there. */
static void ends(void)
{
    int fd = route_socket();
    struct {
        struct nlmsghdr head;
        struct ifinfomsg body;
    } question = {{sizeof question, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {0}};
    CHECK_EQ(send(fd, &question, sizeof question, 0), sizeof question);
    static char buffer[ROOM];
    int links = 0, kind = 0;
    while (kind != NLMSG_DONE) {
        ssize_t got = recv(fd, buffer, sizeof buffer, 0);
        CHECK(got > 0);
        size_t left = (size_t)got;
        for (struct nlmsghdr *at = (void *)buffer; NLMSG_OK(at, left); at = NLMSG_NEXT(at, left)) {
            kind = at->nlmsg_type;
            CHECK(kind == RTM_NEWLINK || kind == NLMSG_DONE);
            links += kind == RTM_NEWLINK;
            if (kind == NLMSG_DONE && (void *)at != buffer) {
                CHECK(kernel_is(6, 9) && !kernel_is(6, 10)); /* It saved the message for a while. */
                SKIP("this kernel has the end of a dump beside the rest");
            }
        }
    }
    CHECK(links > 0);
    CHECK_ERR(recv(fd, buffer, sizeof buffer, MSG_DONTWAIT), EAGAIN);
    OK(close(fd));
}

static void peeking(void)
{
    int fd = route_socket();
    char small[8];
    ask_addresses(fd, 1);
    ssize_t size = recv(fd, NULL, 0, MSG_PEEK | MSG_TRUNC);
    CHECK(size > 40);
    CHECK_EQ(recv(fd, NULL, 0, MSG_PEEK | MSG_TRUNC), size);
    struct iovec piece = {small, sizeof small};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    CHECK_EQ(recvmsg(fd, &message, 0), sizeof small);
    CHECK(message.msg_flags & MSG_TRUNC);
    OK(close(fd));
}

static void ports(void)
{
    int a = route_socket(), b = route_socket();
    struct sockaddr_nl any = {.nl_family = AF_NETLINK}, other = any;
    CHECK_EQ(name_of(a).nl_pid, 0);
    OK(bind(a, (void *)&any, sizeof any));
    CHECK_EQ(name_of(a).nl_pid, getpid());
    other.nl_pid = getpid();
    CHECK_ERR(bind(b, (void *)&other, sizeof other), EADDRINUSE);
    OK(bind(b, (void *)&any, sizeof any));
    CHECK(name_of(b).nl_pid != (unsigned)getpid());
    OK(close(a));
    a = route_socket();
    OK(bind(a, (void *)&other, sizeof other));
    other.nl_pid++;
    CHECK_ERR(bind(a, (void *)&other, sizeof other), EINVAL);
    CHECK_ERR(bind(b, (void *)&any, 4), EINVAL);
    any.nl_family = AF_INET;
    CHECK_ERR(bind(b, (void *)&any, sizeof any), EINVAL);
    check_works(a, 1);
    check_works(b, 2);
    OK(close(a));
    OK(close(b));
}

static void other_calls(void)
{
    NEEDS_ROOT();
    CHECK_ERR(socket(AF_NETLINK, SOCK_STREAM, NETLINK_ROUTE), ESOCKTNOSUPPORT);
    CHECK_ERR(socket(AF_NETLINK, SOCK_RAW, 31), EPROTONOSUPPORT);
    CHECK_ERR(socket(AF_NETLINK, SOCK_RAW, 77), EPROTONOSUPPORT);
    int fd = route_socket();
    CHECK_ERR(listen(fd, 1), EOPNOTSUPP);
    CHECK_ERR(accept(fd, NULL, NULL), EOPNOTSUPP);
    CHECK_ERR(shutdown(fd, SHUT_RDWR), EOPNOTSUPP);
    struct sockaddr_nl to = {.nl_family = AF_NETLINK};
    OK(connect(fd, (void *)&to, sizeof to));
    check_works(fd, 3);
    to.nl_pid = 0x7ffffff1;
    CHECK_ERR(sendto(fd, "0123456789abcdef", 16, 0, (void *)&to, sizeof to), ECONNREFUSED);
    int value = 0;
    socklen_t len = sizeof value;
    OK(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value, &len));
    CHECK_EQ(value, NETLINK_ROUTE);
    OK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &len));
    CHECK_EQ(value, AF_NETLINK);
    CHECK_ERR(setsockopt(fd, SOL_NETLINK, 99, &value, sizeof value), ENOPROTOOPT);
    OK(close(fd));
}

static void count(struct nlmsghdr *message, void *found)
{
    struct ifaddrmsg *address = NLMSG_DATA(message);
    CHECK_EQ(message->nlmsg_type, RTM_NEWADDR);
    CHECK_EQ(address->ifa_index, 1);
    ++*(int *)found;
}

static void options(void)
{
    int fd = route_socket(), on = 1, found = 0, group = RTNLGRP_LINK;
    socklen_t len = sizeof found;
    OK(setsockopt(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &on, sizeof on));
    OK(getsockopt(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &found, &len));
    CHECK_EQ(found, 1);
    /* With strict checking the index counts. */
    found = 0;
    ask(fd, RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, 5, sizeof(struct ifaddrmsg), 1);
    CHECK_EQ(answers(fd, 5, count, &found), 0);
    CHECK(found >= 1);
    OK(setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group));
    CHECK_EQ(name_of(fd).nl_groups, 1);
    OK(setsockopt(fd, SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, &group, sizeof group));
    CHECK_EQ(name_of(fd).nl_groups, 0);
    OK(close(fd));
}

static void verdicts(void)
{
    int fd = route_socket();
    char byte;
    ask(fd, RTM_BASE + 4 * 200 + 2, NLM_F_REQUEST, 1, 16, 0);
    CHECK_EQ(answers(fd, 1, NULL, NULL), EOPNOTSUPP);
    ask(fd, RTM_GETLINK, NLM_F_REQUEST, 2, 16, 0x7ffffff1);
    CHECK_EQ(answers(fd, 2, NULL, NULL), ENODEV);
    ask(fd, NLMSG_NOOP, NLM_F_REQUEST | NLM_F_ACK, 3, 0, 0);
    CHECK_EQ(answers(fd, 3, NULL, NULL), 0);
    /* No request. */
    ask(fd, RTM_GETLINK, NLM_F_DUMP, 4, 16, 0);
    ask(fd, NLMSG_NOOP, NLM_F_REQUEST, 5, 0, 0);
    CHECK_ERR(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
    check_works(fd, 6);
    OK(close(fd));
}

static void become_nobody(void) { OK(setresuid(65534, 65534, 65534)); }

static void refusals(void)
{
    NEEDS_ROOT();
    become_nobody();
    int fd = route_socket();
    static const int changes[] = {RTM_NEWLINK, RTM_DELLINK, RTM_NEWADDR, RTM_DELADDR, RTM_NEWROUTE, RTM_DELROUTE,
                                  RTM_NEWNEIGH, RTM_NEWRULE, RTM_SETLINK};
    for (unsigned at = 0; at < sizeof changes / sizeof *changes; at++) {
        ask(fd, changes[at], NLM_F_REQUEST | NLM_F_ACK, 10 + at, 16, 1);
        CHECK_EQ(answers(fd, 10 + at, NULL, NULL), EPERM);
    }
    check_works(fd, 99);
    OK(close(fd));
}

static void drain(int fd)
{
    static char buffer[ROOM];
    while (recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) >= 0)
        ;
}

/* Lengths that lie, and noise. */
static void lies(void)
{
    NEEDS_ROOT();
    become_nobody();
    int fd = route_socket();
    char bytes[4096];
    static const unsigned lengths[] = {0, 1, 15, 16, 17, 19, 100, 4096, 4097, 0x7fffffff, 0xffffffff};
    for (unsigned at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        memset(bytes, 0, sizeof bytes);
        *(struct nlmsghdr *)bytes = (struct nlmsghdr){lengths[at], RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0};
        CHECK_EQ(send(fd, bytes, sizeof bytes, 0), sizeof bytes);
        drain(fd);
    }
    unsigned long long seed = 88172645463325252ULL;
    int turns = scaled(2000);
    for (int turn = 0; turn < turns; turn++) {
        for (unsigned at = 0; at < 256; at++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            bytes[at] = turn % 2 ? seed : seed % 8;
        }
        struct nlmsghdr *head = (void *)bytes;
        head->nlmsg_len = 16 + seed % 240;
        head->nlmsg_type = RTM_BASE + (seed >> 8) % 100 / 4 * 4 + 2;
        head->nlmsg_flags = NLM_F_REQUEST | (seed >> 16 & NLM_F_DUMP);
        CHECK_EQ(send(fd, bytes, 256, 0), 256);
        drain(fd);
    }
    CHECK_ERR(send(fd, NULL, 64, 0), EFAULT);
    check_works(fd, 1);
    OK(close(fd));
}

/* Questions whose answers nobody reads. */
static void unread(void)
{
    int fd = route_socket();
    struct {
        struct nlmsghdr head;
        struct ifaddrmsg body;
    } message = {{sizeof message, RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {.ifa_family = AF_INET}};
    for (int turn = 0; turn < scaled(5000); turn++) {
        ssize_t sent = send(fd, &message, sizeof message, MSG_DONTWAIT);
        CHECK(sent == sizeof message || (sent == -1 && (errno == ENOBUFS || errno == EAGAIN)));
    }
    drain(fd);
    OK(close(fd));
    fd = route_socket();
    check_works(fd, 1);
    OK(close(fd));
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(addresses), TEST(peeking),  TEST(ports), TEST(other_calls), TEST(options),
        TEST(verdicts),  TEST(refusals), TEST(lies),  TEST(unread),      TEST(ends),
    };
    return RUN_TESTS("netlink", tests, argc, argv);
}
