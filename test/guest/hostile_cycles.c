/*
 * Sockets in each other's messages under attack: processes of one user pass random sockets, sets of epoll, memory files and the
 * host's files through each other, in cycles and out of them, and are killed in the middle. Another user measures meanwhile: its own
 * messages, files and memory are never refused. Once the attackers are gone nothing is left of what they held.
 *
 *   hostile_cycles [SECONDS] [SEED]
 *
 * It measures the memory of its whole sandbox, so it runs in sandboxes alone, as root.
 */
#include "random_calls.h"
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/un.h>

enum { WORKERS = 6, FDS = 24, MOST = 4, MIB = 1 << 20, MEASURER = 2000, ATTACKER = 1000 };
/* The files of the host that the attackers hold at once are fewer than there may be, unless some are never given back. */
enum { HOST_FILES = 4 };

static int fds[FDS];
static const char *host_file;

static ssize_t send_files(int to, const int *files, int count)
{
    struct iovec piece = {"x", 1};
    char control[CMSG_SPACE(MOST * sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control};
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), files, count * sizeof(int));
    return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Receives files, or drops them for want of room; one of them. */
static int receive_file(int from, int flags, size_t room)
{
    char byte[4], control[CMSG_SPACE(MOST * sizeof(int))];
    struct iovec piece = {byte, sizeof byte};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    if (recvmsg(from, &message, flags | MSG_DONTWAIT) < 0)
        return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS)
        return -1;
    int got = -1;
    for (size_t at = 0; CMSG_LEN((at + 1) * sizeof(int)) <= header->cmsg_len; at++) {
        if (got >= 0)
            close(got);
        memcpy(&got, CMSG_DATA(header) + at * sizeof(int), sizeof got);
    }
    return got;
}

static void put(int fd)
{
    int *slot = &fds[any(FDS)];
    if (fd < 0)
        return;
    if (*slot >= 0)
        close(*slot);
    *slot = fd;
}

static int one(void)
{
    return fds[any(FDS)];
}

static void make(void)
{
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    int ends[2];
    switch (any(8)) {
    case 0:
        put(open(host_file, O_RDONLY));
        break;
    case 1: {
        static const char left[MIB / 8] = "left";
        int memory = memfd_create("left", 0);
        (void)!write(memory, left, sizeof left);
        put(memory);
        break;
    }
    case 2:
        put(epoll_create1(0));
        break;
    case 3: {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "cycles%d", (int)any(4));
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0)
            listen(fd, 8);
        else if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
            errno = 0;
        put(fd);
        break;
    }
    default:
        if (socketpair(AF_UNIX, types[any(3)] | SOCK_NONBLOCK, 0, ends) == 0) {
            put(ends[0]);
            put(ends[1]);
        }
    }
}

static void one_call(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    switch (any(12)) {
    case 0:
    case 1:
        make();
        break;
    case 2:
    case 3:
    case 4:
    case 5: {
        int files[MOST], count = 1 + (int)any(MOST);
        for (int i = 0; i < count; i++)
            if ((files[i] = one()) < 0)
                return;
        send_files(one(), files, count);
        break;
    }
    case 6:
        put(receive_file(one(), any(4) ? 0 : MSG_PEEK, any(4) ? CMSG_SPACE(MOST * sizeof(int)) : 0));
        break;
    case 7: {
        int listener = one(), is_listening = 0;
        socklen_t size = sizeof is_listening;
        if (getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) == 0 && is_listening
            && fcntl(listener, F_SETFL, O_NONBLOCK) == 0)
            put(accept(listener, NULL, NULL));
        break;
    }
    case 8: {
        int *slot = &fds[any(FDS)];
        if (*slot >= 0)
            close(*slot);
        *slot = -1;
        break;
    }
    case 9:
        epoll_ctl(one(), EPOLL_CTL_ADD, one(), &event);
        epoll_wait(one(), &event, 1, 0);
        break;
    case 10:
        if (any(8) == 0)
            shutdown(one(), (int)any(3));
        break;
    default:
        if (any(64) == 0) {
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            if (child > 0)
                waitpid(child, NULL, 0);
        }
    }
}

__attribute__((noreturn)) static void work(void)
{
    OK(setresgid(ATTACKER, ATTACKER, ATTACKER));
    OK(setresuid(ATTACKER, ATTACKER, ATTACKER));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(fds, 0xff, sizeof fds);
    for (;;)
        one_call();
}

/* The other user: all that it asks for is granted, whatever the attackers hold. Prints its longest gap at the end. */
static atomic_bool is_told;

static void tell(int signal)
{
    (void)signal;
    is_told = true;
}

static void measure(void)
{
    OK(setresgid(MEASURER, MEASURER, MEASURER));
    OK(setresuid(MEASURER, MEASURER, MEASURER));
    int64_t longest = 0, last = now_ns(CLOCK_MONOTONIC);
    while (!is_told) {
        int ends[2], files[HOST_FILES];
        OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
        for (int i = 0; i < HOST_FILES; i++)
            files[i] = FD(open(host_file, O_RDONLY));
        CHECK_EQ(send_files(ends[0], files, HOST_FILES), 1);
        OK(close(FD(receive_file(ends[1], 0, CMSG_SPACE(MOST * sizeof(int))))));
        for (int i = 0; i < HOST_FILES; i++)
            OK(close(files[i]));
        OK(close(ends[0]) | close(ends[1]));
        char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        CHECK(memory != MAP_FAILED);
        OK(munmap(memory, MIB));
        usleep(2000);
        int64_t now = now_ns(CLOCK_MONOTONIC);
        longest = now - last > longest ? now - last : longest;
        last = now;
    }
    dprintf(2, "the longest gap of another user was %lld ms\n", (long long)(longest / 1000000));
    /* The attackers have several times the tasks of the measurer, and no more than a time slice each before it is its turn. */
    CHECK(longest < 5000000000LL);
}

static int64_t free_bytes(void)
{
    struct sysinfo info;
    OK(sysinfo(&info));
    return (int64_t)info.freeram * info.mem_unit;
}

/* A socket is closed, and with it goes what nobody can reach. */
static bool stirred(void)
{
    int ends[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    CHECK(send_files(ends[0], ends, 2) == 1);
    OK(close(ends[0]) | close(ends[1]));
    return true;
}

int main(int argc, char **argv)
{
    struct campaign campaign = campaign_of(argc, argv, 8);
    host_file = argv[0];
    /* Once, so that caches have what they will have. */
    attack((struct campaign){1, campaign.seed}, WORKERS, work);
    sleep_ms(200);
    stirred();
    int64_t before = free_bytes();
    signal(SIGTERM, tell);
    pid_t measurer = CHILD(measure());
    attack(campaign, WORKERS, work);
    OK(kill(measurer, SIGTERM));
    JOIN(measurer);
    AWAIT(stirred() && free_bytes() > before - 16 * MIB, 20000);
    dprintf(2, "%lld KiB were free before, and %lld KiB are now\n", (long long)before / 1024, (long long)free_bytes() / 1024);
    CHECK(free_bytes() > before - 16 * MIB);
    puts("ok hostile_cycles");
    return 0;
}
