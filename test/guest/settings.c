/* Settings under /proc/sys that the root of a container with a network of its own may change. */
#include "check.h"

#include <netinet/in.h>
#include <sys/socket.h>

static ssize_t store(const char *path, const char *text)
{
    int fd = FD(open(path, O_WRONLY));
    ssize_t done = write(fd, text, strlen(text));
    int error = errno;
    close(fd);
    errno = error;
    return done;
}

static void shows(const char *path, const char *want)
{
    char text[256] = "";
    int fd = FD(open(path, O_RDONLY));
    CHECK(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    if (strcmp(text, want))
        FAIL("%s is %s, want %s", path, text, want);
}

static void sets(const char *path, const char *text, const char *want)
{
    CHECK_EQ(store(path, text), (ssize_t)strlen(text));
    shows(path, want);
}

#define IPV4 "/proc/sys/net/ipv4/"

static void networks(void)
{
    sets(IPV4 "ip_forward", "1\n", "1\n");
    sets(IPV4 "ip_forward", "0", "0\n");
    CHECK_ERR(store(IPV4 "ip_forward", "abc"), EINVAL);
    CHECK_ERR(store(IPV4 "ip_forward", "99999999999"), EINVAL);
    shows(IPV4 "ip_forward", "0\n");
    sets(IPV4 "tcp_rmem", "10 20 30", "10\t20\t30\n");
    sets(IPV4 "tcp_rmem", "4096 5000", "4096\t5000\t30\n");
    sets("/proc/sys/net/core/somaxconn", "5", "5\n");
    CHECK_ERR(store("/proc/sys/net/core/somaxconn", "-1"), EINVAL);
    CHECK_ERR(store(IPV4 "ip_local_port_range", "2000 1000"), EINVAL);
    sets(IPV4 "ip_local_port_range", "2000 3000", "2000\t3000\n");
    CHECK_ERR(store(IPV4 "ip_default_ttl", "300"), EINVAL);
    sets(IPV4 "tcp_congestion_control", "reno", "reno\n");
    CHECK_ERR(store(IPV4 "tcp_congestion_control", "nonesuch"), ENOENT);
    sets(IPV4 "tcp_congestion_control", "cubic", "cubic\n");
    sets("/proc/sys/net/unix/max_dgram_qlen", "100", "100\n");
    JOIN(CHILD({
        OK(setuid(65534));
        CHECK_ERR(open(IPV4 "ip_forward", O_WRONLY), EACCES);
        shows(IPV4 "tcp_rmem", "4096\t5000\t30\n");
    }));
}

static int bind_as_user(int port)
{
    OK(setuid(65534));
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    return bind(FD(socket(AF_INET, SOCK_STREAM, 0)), (struct sockaddr *)&here, sizeof here);
}

/* This one is followed. */
static void first_free_port(void)
{
    JOIN(CHILD(CHECK_ERR(bind_as_user(500), EACCES)));
    CHECK_ERR(store(IPV4 "ip_unprivileged_port_start", "99999"), EINVAL);
    sets(IPV4 "ip_unprivileged_port_start", "400", "400\n");
    JOIN(CHILD(OK(bind_as_user(500))));
    JOIN(CHILD(CHECK_ERR(bind_as_user(399), EACCES)));
    sets(IPV4 "ip_unprivileged_port_start", "1024", "1024\n");
    JOIN(CHILD(CHECK_ERR(bind_as_user(500), EACCES)));
}

static int port_of(int fd)
{
    struct sockaddr_storage here;
    socklen_t length = sizeof here;
    OK(getsockname(fd, (struct sockaddr *)&here, &length));
    /* Both families have it in one place. */
    return ntohs(((struct sockaddr_in *)&here)->sin_port);
}

/* So is this: sockets that name no port get one of these. */
static void local_ports(void)
{
    enum { LOW = 3000, HIGH = 3015, PORTS = HIGH - LOW + 1 };
    sets(IPV4 "ip_local_port_range", "3000 3015", "3000\t3015\n");
    struct sockaddr_in nowhere = {.sin_family = AF_INET}, there = nowhere;
    struct sockaddr_in6 nowhere6 = {.sin6_family = AF_INET6};
    int fds[PORTS], on = 1;
    bool taken[PORTS] = {false};
    for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) {
        memset(taken, 0, sizeof taken);
        for (int i = 0; i < PORTS; i++) {
            bool is_new = i % 2;
            fds[i] = FD(socket(is_new ? AF_INET6 : AF_INET, kind, 0));
            OK(setsockopt(fds[i], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
            OK(is_new ? bind(fds[i], (void *)&nowhere6, sizeof nowhere6) : bind(fds[i], (void *)&nowhere, sizeof nowhere));
            int port = port_of(fds[i]), kept = 0;
            socklen_t length = sizeof kept;
            CHECK(port >= LOW && port <= HIGH && !taken[port - LOW]);
            taken[port - LOW] = true;
            OK(getsockopt(fds[i], SOL_SOCKET, SO_REUSEADDR, &kept, &length));
            CHECK_EQ(kept, 1);
            CHECK_ERR(bind(fds[i], (void *)&nowhere, sizeof nowhere), EINVAL);
        }
        int more = FD(socket(AF_INET6, kind, 0));
        CHECK_ERR(bind(more, (void *)&nowhere6, sizeof nowhere6), EADDRINUSE);
        close(more);
        for (int i = 0; i < PORTS; i++)
            close(fds[i]);
    }
    /* Without bind(2) as well. */
    int listener = FD(socket(AF_INET, SOCK_STREAM, 0)), client = FD(socket(AF_INET, SOCK_STREAM, 0));
    OK(listen(listener, 1));
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    there.sin_port = htons((uint16_t)port_of(listener));
    OK(connect(client, (void *)&there, sizeof there));
    CHECK(port_of(listener) >= LOW && port_of(listener) <= HIGH);
    CHECK(port_of(client) >= LOW && port_of(client) <= HIGH && port_of(client) != port_of(listener));
    int sender = FD(socket(AF_INET, SOCK_DGRAM, 0));
    CHECK_EQ(sendto(sender, "x", 1, 0, (void *)&there, sizeof there), 1);
    CHECK(port_of(sender) >= LOW && port_of(sender) <= HIGH);
    sets(IPV4 "ip_local_port_range", "32768 60999", "32768\t60999\n");
    int last = FD(socket(AF_INET, SOCK_STREAM, 0));
    OK(bind(last, (void *)&nowhere, sizeof nowhere));
    CHECK(port_of(last) >= 32768);
}

/* Whoever is in the way of a lease waits as long as this says. */
static void lease_times(void)
{
    const char *path = "/proc/sys/fs/lease-break-time";
    shows(path, "45\n");
    CHECK_ERR(store(path, "x"), EINVAL);
    sets(path, "1", "1\n");
    int fd = FD(open("file", O_CREAT | O_RDWR, 0600));
    OK(fcntl(fd, F_SETLEASE, F_WRLCK));
    signal(SIGIO, SIG_IGN);
    /* It is not given up, and goes all the same. */
    JOIN(CHILD(close(FD(open("file", O_RDWR)))));
    CHECK_EQ(fcntl(fd, F_GETLEASE), F_UNLCK);
    sets(path, "45", "45\n");
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(networks),
        TEST(first_free_port),
        TEST(local_ports),
        TEST(lease_times),
    };
    return RUN_TESTS("settings", tests, argc, argv);
}
