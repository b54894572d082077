/* Descriptors of processes as files: one inode each, in a file system of their own, and the namespaces that they open. */
#include "check.h"
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/statfs.h>

enum { OF_THREAD = O_EXCL };
/* ioctl requests. */
enum { NS_KIND = 0xb703, GET_MOUNT = 0xff03 };
#define GET_INFO _IOWR(0xff, 11, uint64_t[8])

static int open_process(pid_t pid, unsigned flags)
{
    return (int)syscall(434, pid, flags);
}

static void one_inode_for_each_process(void)
{
    if (!kernel_is(6, 9))
        SKIP("descriptors of processes have no file system of their own before Linux 6.9");
    int own = FD(open_process(getpid(), 0)), again = FD(open_process(getpid(), OF_THREAD));
    pid_t child = CHILD(pause());
    int other = FD(open_process(child, 0)), event = FD(eventfd(0, 0));
    struct stat a, b, c, d;
    OK(fstat(own, &a));
    OK(fstat(again, &b));
    OK(fstat(other, &c));
    OK(fstat(event, &d));
    CHECK(a.st_ino == b.st_ino && a.st_dev == b.st_dev);
    CHECK(a.st_ino != c.st_ino && a.st_dev == c.st_dev && a.st_dev != d.st_dev);
    CHECK_EQ(a.st_mode & 0777, 0700);
    struct statfs files;
    OK(fstatfs(own, &files));
    CHECK_EQ(files.f_type, 0x50494446);
    OK(fstatfs(event, &files));
    CHECK_EQ(files.f_type, 0x09041934);
    CHECK_ERR(fchmod(own, 0600), EOPNOTSUPP);
    CHECK_EQ(fcntl(own, F_GETFL) & OF_THREAD, 0);
    CHECK_EQ(fcntl(again, F_GETFL) & OF_THREAD, OF_THREAD);
    OK(kill(child, SIGKILL));
    CHECK_KILLED(child, SIGKILL);
    OK(fstat(other, &d));
    CHECK_EQ(c.st_ino, d.st_ino);
}

static const char *const names[] = {"cgroup", "ipc", "mnt", "net", "pid", "pid_for_children",
                                    "time", "time_for_children", "user", "uts"};

static void namespaces(void)
{
    if (!kernel_is(6, 11))
        SKIP("descriptors of processes open namespaces since Linux 6.11");
    int own = FD(open_process(getpid(), 0)), thread = FD(open_process(getpid(), OF_THREAD));
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        struct stat link, opened;
        snprintf(path, sizeof path, "/proc/self/ns/%s", names[i]);
        if (stat(path, &link) != 0) {
            CHECK_ERR(ioctl(own, 0xff01 + i, 0), EOPNOTSUPP);
            NOTE("%s is not there", path);
            continue;
        }
        int fd = FD(ioctl(i % 2 ? own : thread, 0xff01 + i, 0)), named = FD(open(path, O_RDONLY));
        OK(fstat(fd, &opened));
        CHECK(opened.st_ino == link.st_ino && opened.st_dev == link.st_dev);
        CHECK_EQ(ioctl(fd, NS_KIND), ioctl(named, NS_KIND));
        CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
        close(fd);
        close(named);
    }
    CHECK_ERR(ioctl(own, GET_MOUNT, 1), EINVAL);
    CHECK_ERR(ioctl(own, 0xff00, 0), ENOTTY);
    CHECK_ERR(ioctl(own, 0xff63, 0), ENOTTY);
    CHECK_ERR(ioctl(own, 0x5401, 0), ENOTTY);
}

static void namespaces_of_the_ended(void)
{
    if (!kernel_is(6, 11))
        SKIP("descriptors of processes open namespaces since Linux 6.11");
    pid_t child = CHILD({});
    int fd = FD(open_process(child, 0));
    siginfo_t info;
    OK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT));
    CHECK_ERR(ioctl(fd, GET_MOUNT, 0), ESRCH);
    JOIN(child);
    CHECK_ERR(ioctl(fd, GET_MOUNT, 0), ESRCH);
}

static void namespaces_of_others(void)
{
    if (!kernel_is(6, 11))
        SKIP("descriptors of processes open namespaces since Linux 6.11");
    if (geteuid() != 0)
        SKIP("only root can become somebody else");
    pid_t parent = getpid();
    JOIN(CHILD({
        OK(setgid(65534));
        OK(setuid(65534));
        int fd = FD(open_process(parent, 0));
        CHECK_ERR(ioctl(fd, GET_MOUNT, 0), EACCES);
        CHECK_ERR(ioctl(fd, GET_MOUNT, 1), EINVAL);
        CHECK(ioctl(FD(open_process(getpid(), 0)), GET_MOUNT, 0) >= 0);
    }));
}

/* What came after 6.12 is answered as by a kernel that has not heard of it. */
static void what_came_later(void)
{
    uint64_t info[8] = {1};
    int own = FD(open_process(getpid(), 0));
    if (kernel_is(6, 11) && !kernel_is(6, 13))
        CHECK_ERR(ioctl(own, GET_INFO, info), EINVAL);
    if (!kernel_is(6, 14))
        CHECK_ERR(syscall(424, -10000, 0, NULL, 0), EBADF);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(one_inode_for_each_process), TEST(namespaces),      TEST(namespaces_of_the_ended),
        TEST(namespaces_of_others),       TEST(what_came_later),
    };
    return RUN_TESTS("pidfds", tests, argc, argv);
}
