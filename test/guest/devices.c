/* Sockets that choose the device their messages take, in a network that is not the host's: socket(7), ip(7), ipv6(7). */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

enum { BIND_TO_INDEX = 62, UNICAST_IF = 50, UNICAST_IF6 = 76 };

static int bound_index(int fd)
{
    int index = -1;
    socklen_t size = sizeof index;
    OK(getsockopt(fd, SOL_SOCKET, BIND_TO_INDEX, &index, &size));
    return index;
}

static int bind_to(int fd, const char *name)
{
    return setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, (socklen_t)strlen(name) + 1);
}

static void by_name(int family, int kind)
{
    int fd = FD(socket(family, kind, 0));
    char name[IFNAMSIZ] = "?";
    socklen_t size = sizeof name;
    OK(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &size));
    CHECK_EQ(size, 0);
    CHECK_EQ(bound_index(fd), 0);
    CHECK_ERR(bind_to(fd, "nosuch0"), ENODEV);
    /* Not bound, it is bound no more. */
    OK(bind_to(fd, ""));
    OK(bind_to(fd, "lo"));
    size = 2;
    CHECK_ERR(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &size), EINVAL);
    size = sizeof name;
    OK(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &size));
    CHECK_EQ(size, 3);
    CHECK(strcmp(name, "lo") == 0);
    CHECK_EQ(bound_index(fd), if_nametoindex("lo"));
    OK(close(fd));
}

static void by_number(void)
{
    int fd = FD(socket(AF_INET, SOCK_DGRAM, 0)), loopback = (int)if_nametoindex("lo"), none = -1;
    CHECK_ERR(setsockopt(fd, SOL_SOCKET, BIND_TO_INDEX, &none, sizeof none), EINVAL);
    OK(setsockopt(fd, SOL_SOCKET, BIND_TO_INDEX, &loopback, sizeof loopback));
    CHECK_EQ(bound_index(fd), loopback);
    OK(close(fd));
}

/* Two servers of one address that are told apart by their devices, and a message that comes by one of them. */
static void messages(void)
{
    int receiver = FD(socket(AF_INET, SOCK_DGRAM, 0)), sender = FD(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    OK(bind_to(receiver, "lo"));
    OK(bind(receiver, (struct sockaddr *)&here, sizeof here));
    OK(getsockname(receiver, (struct sockaddr *)&here, &size));
    OK(bind_to(sender, "lo"));
    CHECK_EQ(sendto(sender, "one", 3, 0, (struct sockaddr *)&here, sizeof here), 3);
    char text[8] = "";
    CHECK_EQ(recv(receiver, text, sizeof text, 0), 3);
    CHECK(strcmp(text, "one") == 0);
    /* Whom nothing leads to by this device is not there. */
    struct sockaddr_in far = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0xc0000201)};
    CHECK(sendto(sender, "x", 1, 0, (struct sockaddr *)&far, sizeof far) == 1 || errno == ENETUNREACH || errno == EINVAL);
    OK(close(receiver));
    OK(close(sender));
}

static void kept(int family, int level, int name)
{
    int fd = FD(socket(family, SOCK_DGRAM, 0)), value = (int)htonl(if_nametoindex("lo")), found = 0;
    int none = (int)htonl(99999);
    socklen_t size = sizeof found;
    OK(setsockopt(fd, level, name, &value, sizeof value));
    OK(getsockopt(fd, level, name, &found, &size));
    CHECK_EQ(found, value);
    CHECK_ERR(setsockopt(fd, level, name, &none, sizeof none), EADDRNOTAVAIL);
    OK(close(fd));
}

static void by_message(void)
{
    int receiver = FD(socket(AF_INET, SOCK_DGRAM, 0)), sender = FD(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    OK(bind(receiver, (struct sockaddr *)&here, sizeof here));
    OK(getsockname(receiver, (struct sockaddr *)&here, &size));
    char control[CMSG_SPACE(sizeof(struct in_pktinfo))] = {0};
    struct iovec piece = {"x", 1};
    struct msghdr message = {&here, sizeof here, &piece, 1, control, sizeof control, 0};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_IP;
    header->cmsg_type = IP_PKTINFO;
    header->cmsg_len = CMSG_LEN(sizeof(struct in_pktinfo));
    struct in_pktinfo *info = (struct in_pktinfo *)CMSG_DATA(header);
    info->ipi_ifindex = (int)if_nametoindex("lo");
    CHECK_EQ(sendmsg(sender, &message, 0), 1);
    info->ipi_ifindex = 99999;
    CHECK_ERR(sendmsg(sender, &message, 0), ENODEV);
    OK(close(receiver));
    OK(close(sender));
}

int main(void)
{
    for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) {
        by_name(AF_INET, kind);
        by_name(AF_INET6, kind);
    }
    by_number();
    messages();
    kept(AF_INET, IPPROTO_IP, UNICAST_IF);
    kept(AF_INET6, IPPROTO_IPV6, UNICAST_IF6);
    by_message();
    puts("ok devices");
}
