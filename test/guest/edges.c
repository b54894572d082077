/* What calls answer at the edges: arguments that contradict, descriptors that name only a place, processes that have ended. */
#include "check.h"

#include <linux/filter.h>
#include <mqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
enum { PAGE = 4096, GUARD_INSTALL = 102, GUARD_REMOVE = 103, UNICAST_IF = 50, UNICAST_IF6 = 76 };

static void large_ids(void)
{
    NEEDS_ROOT();
    close(FD(open("file", O_CREAT | O_RDWR, 0644)));
    OK(mkdir("directory", 0755));
    OK(symlink("file", "link"));
    const uid_t ids[] = {1, 65534, 100000, 0x1ffffffdu, 0};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        struct stat stat_of;
        OK(chown("file", ids[i], ids[i]));
        OK(stat("file", &stat_of));
        CHECK(stat_of.st_uid == ids[i] && stat_of.st_gid == ids[i]);
        OK(lchown("link", ids[i], ids[i]));
        OK(lstat("link", &stat_of));
        CHECK(stat_of.st_uid == ids[i]);
        OK(chown("directory", ids[i], ids[i]));
        OK(stat("directory", &stat_of));
        CHECK(stat_of.st_uid == ids[i]);
    }
    OK(chown("file", -1, 7));
    struct stat stat_of;
    OK(stat("file", &stat_of));
    CHECK(stat_of.st_uid == 0 && stat_of.st_gid == 7);
}

static void places_are_no_files(void)
{
    close(FD(open("file", O_CREAT | O_RDWR, 0644)));
    int place = FD(open("file", O_PATH)), set = FD(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    CHECK_ERR(epoll_ctl(set, EPOLL_CTL_ADD, place, &event), EBADF);
    unsigned long mask = 0;
    CHECK_ERR(syscall(SYS_signalfd4, place, &mask, 8, 0), EBADF);
    char name[32], bytes[9000];
    snprintf(name, sizeof name, "/edges-%d", getpid());
    struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 8192};
    mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, &attr);
    CHECK(queue >= 0);
    OK(mq_unlink(name));
    snprintf(name, sizeof name, "/proc/self/fd/%d", queue);
    mqd_t of_queue = FD(open(name, O_PATH));
    CHECK_ERR(mq_receive(of_queue, bytes, sizeof bytes, NULL), EBADF);
    CHECK_ERR(mq_send(of_queue, bytes, 1, 0), EBADF);
    CHECK_ERR(syscall(SYS_mq_notify, of_queue, NULL), EBADF);
    CHECK_ERR(mq_getattr(of_queue, &attr), EBADF);
}

static void files(void)
{
    int file = FD(open("file", O_CREAT | O_RDWR, 0644)), reader = FD(open("file", O_RDONLY));
    CHECK_ERR(syscall(SYS_copy_file_range, file, NULL, reader, NULL, 5L, 1), EINVAL);
    CHECK_ERR(syscall(SYS_copy_file_range, file, NULL, reader, NULL, 5L, 0), EBADF);
    int ends[2];
    OK(pipe(ends));
    OK(futimens(ends[0], NULL));
    CHECK_EQ(lseek(FD(open("/proc/self", O_RDONLY)), 0, SEEK_END), 0);
    /* Notices of the kinds that inotify has replaced are not there, or work. */
    int dir = FD(open(".", O_RDONLY));
    if (fcntl(dir, F_NOTIFY, DN_CREATE) != 0)
        CHECK_EQ(errno, EINVAL);
    if (syscall(SYS_fanotify_init, 0, 0) < 0)
        CHECK(errno == ENOSYS || errno == EPERM);
}

static void memory(void)
{
    char *at = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    OK(mprotect(at + PAGE, PAGE, PROT_READ));
    /* It may not grow or move across mappings, but shrink. */
    CHECK_ERR((intptr_t)mremap(at, 2 * PAGE, 8 * PAGE, 0), EFAULT);
    at[0] = 5;
    CHECK(mremap(at, 4 * PAGE, PAGE, 0) == at && at[0] == 5);
    unsigned char vec[1];
    CHECK_ERR(mincore(at + PAGE, PAGE, vec), ENOMEM);
    /* Linux 6.13 has guards. */
    if (madvise(at, PAGE, GUARD_INSTALL) != 0) {
        CHECK_EQ(errno, EINVAL);
        CHECK(!kernel_is(6, 13));
        CHECK_ERR(madvise(at, PAGE, GUARD_REMOVE), EINVAL);
    } else {
        OK(madvise(at, PAGE, GUARD_REMOVE));
    }
    /* A page cannot become a large one. */
    if (kernel_is(6, 1)) {
        CHECK_ERR(madvise(at, PAGE, MADV_COLLAPSE), EINVAL);
        CHECK_ERR(madvise(at + 1, PAGE, MADV_COLLAPSE), EINVAL);
        OK(madvise(at, 0, MADV_COLLAPSE));
    }
}

static void places_of_memory(void)
{
    char line[512];
    FILE *file = fopen("/proc/self/numa_maps", "r");
    if (!file && !fopen("/sys/devices/system/node/possible", "r"))
        SKIP("no NUMA");
    CHECK(file);
    bool has_heap = false, has_stack = false, has_file = false;
    free(malloc(1));
    while (fgets(line, sizeof line, file)) {
        unsigned long start;
        char policy[32];
        CHECK_EQ(sscanf(line, "%lx %31s", &start, policy), 2);
        CHECK(!strcmp(policy, "default"));
        has_heap |= strstr(line, " heap") != NULL;
        has_stack |= strstr(line, " stack") != NULL && strstr(line, " N0=") != NULL;
        has_file |= strstr(line, " file=/") != NULL;
        if (strstr(line, " N0="))
            CHECK(strstr(line, " kernelpagesize_kB=4\n"));
    }
    fclose(file);
    CHECK(has_heap && has_stack && has_file);
}

static void processes(void)
{
    CHECK_ERR(setpgid(-1, 0), EINVAL);
    CHECK_ERR(setpgid(-1, 1), ESRCH);
    CHECK_ERR(setpgid(0, -1), EINVAL);
    CHECK_ERR(syscall(SYS_clock_settime, CLOCK_MONOTONIC, NULL), EINVAL);
    pid_t child = CHILD();
    siginfo_t info;
    OK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT));
    /* Until it is waited for it is there to be signalled, by its thread as well. */
    OK(kill(child, 0));
    OK(syscall(SYS_tgkill, child, child, 0));
    OK(syscall(SYS_tgkill, child, child, SIGTERM));
    OK(syscall(SYS_tkill, child, 0));
    CHECK_ERR(syscall(SYS_tgkill, child, child, 65), EINVAL);
    CHECK_ERR(syscall(SYS_tgkill, getpid(), child, 0), ESRCH);
    JOIN(child);
    CHECK_ERR(syscall(SYS_tgkill, child, child, 0), ESRCH);
}

static int option(int socket, int level, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    OK(getsockopt(socket, level, name, &value, &size));
    CHECK_EQ(size, sizeof value);
    return value;
}

static int set_option(int socket, int level, int name, int value)
{
    return setsockopt(socket, level, name, &value, sizeof value);
}

static void marks(void)
{
    NEEDS_ROOT();
    const int families[][2] = {
        {AF_INET, SOCK_STREAM}, {AF_INET, SOCK_DGRAM}, {AF_INET6, SOCK_DGRAM}, {AF_UNIX, SOCK_STREAM}};
    for (int i = 0; i < 4; i++) {
        int socket_of = socket(families[i][0], families[i][1], 0);
        if (socket_of < 0 && families[i][0] == AF_INET6)
            continue;
        FD(socket_of);
        CHECK_EQ(option(socket_of, SOL_SOCKET, SO_MARK), 0);
        OK(set_option(socket_of, SOL_SOCKET, SO_MARK, 0x1234));
        CHECK_EQ(option(socket_of, SOL_SOCKET, SO_MARK), 0x1234);
        CHECK_ERR(setsockopt(socket_of, SOL_SOCKET, SO_MARK, "xx", 2), EINVAL);
        JOIN(CHILD({
            OK(setuid(65534));
            CHECK_ERR(set_option(socket_of, SOL_SOCKET, SO_MARK, 7), EPERM);
        }));
        /* There is no program behind these. */
        CHECK_ERR(set_option(socket_of, SOL_SOCKET, SO_ATTACH_BPF, 99), EBADF);
        CHECK_ERR(set_option(socket_of, SOL_SOCKET, SO_ATTACH_BPF, 0), EINVAL);
        close(socket_of);
    }
    int listener = FD(socket(AF_INET, SOCK_STREAM, 0)), client = FD(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    OK(set_option(listener, SOL_SOCKET, SO_MARK, 5));
    OK(bind(listener, (struct sockaddr *)&here, sizeof here));
    OK(listen(listener, 1));
    OK(getsockname(listener, (struct sockaddr *)&here, &size));
    OK(connect(client, (struct sockaddr *)&here, sizeof here));
    CHECK_EQ(option(FD(accept(listener, NULL, NULL)), SOL_SOCKET, SO_MARK), 5);
}

static void locked_filters(void)
{
    int socket_of = FD(socket(AF_INET, SOCK_DGRAM, 0));
    struct sock_filter keep = {BPF_RET | BPF_K, 0, 0, 0xffff}, wrong = {0, 0, 0, 0};
    struct sock_fprog good = {1, &keep}, bad = {1, &wrong};
    CHECK_ERR(set_option(socket_of, SOL_SOCKET, SO_DETACH_FILTER, 0), ENOENT);
    CHECK_ERR(setsockopt(socket_of, SOL_SOCKET, SO_ATTACH_FILTER, &bad, sizeof bad), EINVAL);
    CHECK_ERR(setsockopt(socket_of, SOL_SOCKET, SO_ATTACH_FILTER, &good, sizeof good - 1), EINVAL);
    OK(setsockopt(socket_of, SOL_SOCKET, SO_ATTACH_FILTER, &good, sizeof good));
    OK(set_option(socket_of, SOL_SOCKET, SO_LOCK_FILTER, 0));
    OK(set_option(socket_of, SOL_SOCKET, SO_LOCK_FILTER, 1));
    CHECK_EQ(option(socket_of, SOL_SOCKET, SO_LOCK_FILTER), 1);
    CHECK_ERR(set_option(socket_of, SOL_SOCKET, SO_LOCK_FILTER, 0), EPERM);
    CHECK_ERR(set_option(socket_of, SOL_SOCKET, SO_DETACH_FILTER, 0), EPERM);
    CHECK_ERR(setsockopt(socket_of, SOL_SOCKET, SO_ATTACH_FILTER, &good, sizeof good), EPERM);
    CHECK_ERR(set_option(socket_of, SOL_SOCKET, SO_ATTACH_BPF, 0), EPERM);
}

static int send_by(int socket_of, struct sockaddr_in *to, int interface)
{
    char control[CMSG_SPACE(sizeof(struct in_pktinfo))] = {0};
    struct iovec piece = {"x", 1};
    struct msghdr message = {to, sizeof *to, &piece, 1, control, sizeof control, 0};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_IP;
    header->cmsg_type = IP_PKTINFO;
    header->cmsg_len = CMSG_LEN(sizeof(struct in_pktinfo));
    ((struct in_pktinfo *)CMSG_DATA(header))->ipi_ifindex = interface;
    return (int)sendmsg(socket_of, &message, 0);
}

/* Interfaces have the numbers that the sandbox sees, and which one is chosen is kept. */
static void interfaces(void)
{
    int loopback = (int)if_nametoindex("lo");
    CHECK(loopback > 0);
    int sender = FD(socket(AF_INET, SOCK_DGRAM, 0)), receiver = FD(socket(AF_INET, SOCK_DGRAM, 0));
    CHECK_EQ(option(sender, IPPROTO_IP, UNICAST_IF), 0);
    OK(set_option(sender, IPPROTO_IP, UNICAST_IF, (int)htonl((uint32_t)loopback)));
    CHECK_EQ(option(sender, IPPROTO_IP, UNICAST_IF), htonl((uint32_t)loopback));
    CHECK_ERR(set_option(sender, IPPROTO_IP, UNICAST_IF, (int)htonl(99999)), EADDRNOTAVAIL);
    CHECK_ERR(setsockopt(sender, IPPROTO_IP, UNICAST_IF, "x", 1), EINVAL);
    CHECK_ERR(set_option(sender, IPPROTO_IPV6, UNICAST_IF6, 0), ENOPROTOOPT);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    OK(bind(receiver, (struct sockaddr *)&here, sizeof here));
    OK(getsockname(receiver, (struct sockaddr *)&here, &size));
    OK(set_option(receiver, IPPROTO_IP, IP_PKTINFO, 1));
    for (int turn = 0; turn < 2; turn++) {
        CHECK_EQ(send_by(sender, &here, turn == 0 ? 0 : loopback), 1);
        char control[256], byte;
        struct iovec piece = {&byte, 1};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
                                 .msg_controllen = sizeof control};
        CHECK_EQ(recvmsg(receiver, &message, 0), 1);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        CHECK(header && header->cmsg_type == IP_PKTINFO);
        CHECK_EQ(((struct in_pktinfo *)CMSG_DATA(header))->ipi_ifindex, loopback);
    }
    OK(set_option(sender, IPPROTO_IP, UNICAST_IF, 0));
    CHECK_EQ(option(sender, IPPROTO_IP, UNICAST_IF), 0);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(large_ids),
        TEST(places_are_no_files),
        TEST(files),
        TEST(memory),
        TEST(places_of_memory),
        TEST(processes),
        TEST(marks),
        TEST(locked_filters),
        TEST(interfaces),
    };
    return RUN_TESTS("edges", tests, argc, argv);
}
