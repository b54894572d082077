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
        TEST(lease_times),
    };
    return RUN_TESTS("settings", tests, argc, argv);
}
