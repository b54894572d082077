/* Unix sockets: whose messages they are, what travels with them, where reads stop, and what is told of it. */
#include "check.h"
#include <grp.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

static void set(int fd, int name, int value)
{
    OK(setsockopt(fd, SOL_SOCKET, name, &value, sizeof value));
}

static int get(int fd, int name)
{
    int value = -7;
    socklen_t length = sizeof value;
    OK(getsockopt(fd, SOL_SOCKET, name, &value, &length));
    CHECK_EQ(length, sizeof value);
    return value;
}

static void pair_of(int type, int ends[2])
{
    OK(socketpair(AF_UNIX, type, 0, ends));
}

static short events_of(int fd)
{
    struct pollfd one = {fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    CHECK(poll(&one, 1, 0) >= 0);
    return one.revents;
}

static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Sends bytes with descriptors and maybe credentials. */
static ssize_t send_with(int fd, const char *text, size_t length, const int *fds, int count, const struct ucred *creds)
{
    char space[CMSG_SPACE(300 * sizeof(int)) + CMSG_SPACE(sizeof *creds)];
    memset(space, 0, sizeof space);
    struct iovec iov = {(char *)text, length};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    size_t used = 0;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (count > 0) {
        *header = (struct cmsghdr){CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(header), fds, count * sizeof(int));
        used += CMSG_SPACE(count * sizeof(int));
    }
    if (creds) {
        header = (struct cmsghdr *)(space + used);
        *header = (struct cmsghdr){CMSG_LEN(sizeof *creds), SOL_SOCKET, SCM_CREDENTIALS};
        memcpy(CMSG_DATA(header), creds, sizeof *creds);
        used += CMSG_SPACE(sizeof *creds);
    }
    message.msg_controllen = used;
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

struct got {
    ssize_t length;
    int flags;
    int fds[300];
    int count;
    bool has_creds, has_pidfd;
    struct ucred creds;
    int pidfd;
    char text[4096];
};

/* Receives up to `room` bytes; `control`: bytes of room for what comes beside. */
static struct got receive(int fd, size_t room, size_t control, int flags)
{
    static char space[4096];
    struct got got = {.count = 0};
    struct iovec iov = {got.text, room};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control ? space : NULL, .msg_controllen = control};
    got.length = recvmsg(fd, &message, flags);
    if (got.length < 0)
        return got;
    got.flags = message.msg_flags;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
        CHECK_EQ(at->cmsg_level, SOL_SOCKET);
        if (at->cmsg_type == SCM_RIGHTS) {
            got.count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(got.fds, CMSG_DATA(at), got.count * sizeof(int));
        } else if (at->cmsg_type == SCM_CREDENTIALS) {
            got.has_creds = true;
            memcpy(&got.creds, CMSG_DATA(at), sizeof got.creds);
        } else if (at->cmsg_type == SCM_PIDFD) {
            got.has_pidfd = true;
            memcpy(&got.pidfd, CMSG_DATA(at), sizeof got.pidfd);
        } else
            FAIL("control message %d", at->cmsg_type);
    }
    return got;
}

static void close_all(struct got *got)
{
    for (int at = 0; at < got->count; at++)
        OK(close(got->fds[at]));
}

/* Every message says who sent it, once either side has asked. */
static void credentials(void)
{
    NEEDS_ROOT();
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    for (int t = 0; t < 3; t++) {
        int ends[2];
        pair_of(types[t], ends);
        CHECK_EQ(get(ends[1], SO_PASSCRED), 0);
        CHECK_EQ(send(ends[0], "x", 1, 0), 1);
        struct got got = receive(ends[1], 10, 512, 0);
        CHECK(got.length == 1 && !got.has_creds && got.flags == 0);
        set(ends[1], SO_PASSCRED, 5);
        CHECK_EQ(get(ends[1], SO_PASSCRED), 1);
        CHECK_EQ(send(ends[0], "y", 1, 0), 1);
        got = receive(ends[1], 10, 512, 0);
        CHECK(got.length == 1 && got.has_creds);
        CHECK(got.creds.pid == getpid() && got.creds.uid == getuid() && got.creds.gid == getgid());
        /* Without room for them that is said. */
        CHECK_EQ(write(ends[0], "z", 1), 1);
        got = receive(ends[1], 10, 0, 0);
        CHECK(got.length == 1 && got.flags == MSG_CTRUNC);
        /* The real ids, and the process that wrote. */
        pid_t child = CHILD({
            OK(setresgid(3003, 3004, 3005));
            OK(setresuid(2003, 2004, 2005));
            CHECK_EQ(write(ends[0], "c", 1), 1);
        });
        JOIN(child);
        got = receive(ends[1], 10, 512, 0);
        CHECK(got.has_creds && got.creds.pid == child && got.creds.uid == 2003 && got.creds.gid == 3003);
        /* The sender asked: the message carries them though the receiver asks only later. */
        set(ends[1], SO_PASSCRED, 0);
        set(ends[0], SO_PASSCRED, 1);
        CHECK_EQ(send(ends[0], "w", 1, 0), 1);
        set(ends[1], SO_PASSCRED, 1);
        got = receive(ends[1], 10, 512, 0);
        CHECK(got.has_creds && got.creds.pid == getpid());
        close(ends[0]), close(ends[1]);
    }
}

/* Whoever says who it is needs to be that, or a privilege. */
static void claims(void)
{
    NEEDS_ROOT();
    int ends[2];
    pair_of(SOCK_DGRAM, ends);
    set(ends[1], SO_PASSCRED, 1);
    struct ucred mine = {getpid(), 77, 78};
    CHECK_EQ(send_with(ends[0], "a", 1, NULL, 0, &mine), 1);
    struct got got = receive(ends[1], 10, 512, 0);
    CHECK(got.has_creds && got.creds.pid == getpid() && got.creds.uid == 77 && got.creds.gid == 78);
    struct ucred nobody = {4000000, 0, 0}, invalid = {getpid(), -1, 0};
    CHECK_ERR(send_with(ends[0], "a", 1, NULL, 0, &nobody), ESRCH);
    CHECK_ERR(send_with(ends[0], "a", 1, NULL, 0, &invalid), EINVAL);
    JOIN(CHILD({
        OK(setgid(500));
        OK(setresuid(600, 601, 602));
        struct ucred claim = {getpid(), 602, 500};
        CHECK_EQ(send_with(ends[0], "a", 1, NULL, 0, &claim), 1);
        claim.uid = 0;
        CHECK_ERR(send_with(ends[0], "a", 1, NULL, 0, &claim), EPERM);
        claim = (struct ucred){getpid(), 600, 0};
        CHECK_ERR(send_with(ends[0], "a", 1, NULL, 0, &claim), EPERM);
        claim = (struct ucred){getppid(), 600, 500};
        CHECK_ERR(send_with(ends[0], "a", 1, NULL, 0, &claim), EPERM);
    }));
    /* Control messages that are not what they say. */
    char space[CMSG_SPACE(64)];
    memset(space, 0, sizeof space);
    struct iovec iov = {"a", 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = CMSG_SPACE(8)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){CMSG_LEN(8), SOL_SOCKET, SCM_CREDENTIALS};
    CHECK_ERR(sendmsg(ends[0], &message, 0), EINVAL);
    *header = (struct cmsghdr){CMSG_LEN(8), SOL_SOCKET, 99};
    CHECK_ERR(sendmsg(ends[0], &message, 0), EINVAL);
    *header = (struct cmsghdr){CMSG_LEN(1000), SOL_SOCKET, SCM_RIGHTS};
    CHECK_ERR(sendmsg(ends[0], &message, 0), EINVAL);
    *header = (struct cmsghdr){3, SOL_SOCKET, SCM_RIGHTS};
    CHECK_ERR(sendmsg(ends[0], &message, 0), EINVAL);
    *header = (struct cmsghdr){CMSG_LEN(8), SOL_SOCKET, SCM_RIGHTS};
    ((int *)CMSG_DATA(header))[0] = 0;
    ((int *)CMSG_DATA(header))[1] = 1000;
    CHECK_ERR(sendmsg(ends[0], &message, 0), EBADF);
    *header = (struct cmsghdr){CMSG_LEN(8), SOL_SOCKET + 4, SCM_RIGHTS};
    CHECK_EQ(sendmsg(ends[0], &message, 0), 1);
}

/* Who made the connection, or listened. */
static void peers(void)
{
    NEEDS_ROOT();
    gid_t groups[] = {30, 10, 20};
    OK(setgroups(3, groups));
    int listener = FD(socket(AF_UNIX, SOCK_STREAM, 0));
    struct sockaddr_un address = {AF_UNIX, "listener"};
    OK(bind(listener, (void *)&address, sizeof address));
    OK(listen(listener, 5));
    pid_t child = CHILD({
        gid_t others[] = {5, 4};
        OK(setgroups(2, others));
        OK(setresgid(7, 8, 9));
        OK(chmod("listener", 0777));
        OK(setresuid(17, 18, 19));
        int fd = FD(socket(AF_UNIX, SOCK_STREAM, 0));
        OK(connect(fd, (void *)&address, sizeof address));
        struct ucred creds;
        socklen_t length = sizeof creds;
        OK(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &creds, &length));
        CHECK(creds.pid == getppid() && creds.uid == 0 && length == sizeof creds);
        gid_t seen[8];
        length = sizeof seen;
        OK(getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, seen, &length));
        CHECK(length == 12 && seen[0] == 10 && seen[1] == 20 && seen[2] == 30);
        char end;
        CHECK_EQ(read(fd, &end, 1), 0);
    });
    int fd = FD(accept(listener, NULL, NULL));
    struct ucred creds;
    socklen_t length = sizeof creds;
    OK(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &creds, &length));
    CHECK(creds.pid == child && creds.uid == 18 && creds.gid == 8);
    length = 5;
    OK(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &creds, &length));
    CHECK_EQ(length, 5);
    gid_t seen[8] = {0};
    length = sizeof seen;
    OK(getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, seen, &length));
    CHECK(length == 8 && seen[0] == 4 && seen[1] == 5);
    length = 4;
    CHECK_ERR(getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, seen, &length), ERANGE);
    CHECK_EQ(length, 8);
    int pidfd = -1;
    length = sizeof pidfd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0) {
        CHECK(fcntl(pidfd, F_GETFD) == FD_CLOEXEC && length == sizeof pidfd);
        CHECK_EQ(events_of(pidfd), 0);
        OK(close(fd));
        JOIN(child);
        CHECK(events_of(pidfd) & POLLIN);
        OK(close(pidfd));
    } else {
        CHECK_EQ(errno, ENOPROTOOPT);
        OK(close(fd));
        JOIN(child);
    }
    int alone = FD(socket(AF_UNIX, SOCK_STREAM, 0));
    length = sizeof creds;
    OK(getsockopt(alone, SOL_SOCKET, SO_PEERCRED, &creds, &length));
    CHECK(creds.pid == 0 && creds.uid == (uid_t)-1 && creds.gid == (gid_t)-1);
    length = sizeof seen;
    CHECK_ERR(getsockopt(alone, SOL_SOCKET, SO_PEERGROUPS, seen, &length), ENODATA);
}

static void pidfds(void)
{
    int ends[2], on = 1;
    pair_of(SOCK_STREAM, ends);
    if (setsockopt(ends[1], SOL_SOCKET, SO_PASSPIDFD, &on, sizeof on) < 0)
        SKIP("no SO_PASSPIDFD");
    CHECK_EQ(get(ends[1], SO_PASSPIDFD), 1);
    CHECK_EQ(write(ends[0], "x", 1), 1);
    struct got got = receive(ends[1], 10, 512, 0);
    CHECK(got.length == 1 && got.has_pidfd && !got.has_creds && got.pidfd >= 0);
    CHECK_EQ(events_of(got.pidfd), 0);
    OK(syscall(SYS_pidfd_send_signal, got.pidfd, 0, NULL, 0));
    OK(close(got.pidfd));
    int before = open_descriptors();
    CHECK_EQ(write(ends[0], "x", 1), 1);
    got = receive(ends[1], 10, 0, 0);
    CHECK(got.length == 1 && (got.flags & MSG_CTRUNC) && open_descriptors() == before);
}

/* With the option, bytes of two processes are never read as one. */
static void senders_stay_apart(void)
{
    int ends[2];
    pair_of(SOCK_STREAM, ends);
    set(ends[1], SO_PASSCRED, 1);
    pid_t child[2];
    for (int round = 0; round < 4; round++) {
        CHECK_EQ(write(ends[0], "aa", 2), 2);
        CHECK_EQ(write(ends[0], "bb", 2), 2);
        child[0] = CHILD(CHECK_EQ(write(ends[0], "cccc", 4), 4));
        JOIN(child[0]);
        child[1] = CHILD(CHECK_EQ(write(ends[0], "dd", 2), 2));
        JOIN(child[1]);
        struct got got = {0};
        char text[100];
        struct iovec two[2] = {{text, 3}, {text + 3, 97}};
        switch (round) {
        case 0: /* As many as belong together, in one or two steps. */
            CHECK_EQ(receive(ends[1], 100, 512, MSG_PEEK).length, 4);
            got = receive(ends[1], 3, 512, 0);
            CHECK(got.length == 3 && got.creds.pid == getpid());
            got = receive(ends[1], 100, 512, 0);
            CHECK(got.length == 1 && got.creds.pid == getpid());
            got = receive(ends[1], 100, 512, 0);
            CHECK(got.length == 4 && got.creds.pid == child[0]);
            got = receive(ends[1], 100, 512, 0);
            CHECK(got.length == 2 && got.creds.pid == child[1]);
            break;
        case 1: /* Nor does a call that waits for all. */
            got = receive(ends[1], 100, 512, MSG_WAITALL);
            CHECK(got.length == 4 && got.creds.pid == getpid());
            CHECK_EQ(recv(ends[1], text, 100, MSG_WAITALL), 4);
            CHECK_EQ(recv(ends[1], text, 100, MSG_WAITALL | MSG_DONTWAIT), 2);
            break;
        case 2: /* Nor reads. */
            CHECK_EQ(read(ends[1], text, 100), 4);
            CHECK_EQ(readv(ends[1], two, 2), 4);
            CHECK(memcmp(text, "cccc", 4) == 0);
            CHECK_EQ(read(ends[1], text, 100), 2);
            break;
        default: /* Without the option they are one stream. */
            set(ends[1], SO_PASSCRED, 0);
            CHECK_EQ(read(ends[1], text, 100), 10);
        }
    }
}

/* A read goes no further than a message with descriptors. */
static void rights_in_streams(void)
{
    int ends[2], pipes[2];
    pair_of(SOCK_STREAM, ends);
    OK(pipe(pipes));
    int before = open_descriptors();
    /* Bytes before it are read with it, bytes behind it are not. */
    CHECK_EQ(write(ends[0], "before", 6), 6);
    CHECK_EQ(send_with(ends[0], "with", 4, pipes, 2, NULL), 4);
    CHECK_EQ(write(ends[0], "after", 5), 5);
    struct got got = receive(ends[1], 100, 512, MSG_PEEK);
    CHECK(got.length == 10 && got.count == 2);
    close_all(&got);
    got = receive(ends[1], 100, 512, 0);
    CHECK(got.length == 10 && got.count == 2 && memcmp(got.text, "beforewith", 10) == 0);
    CHECK_EQ(write(got.fds[1], "p", 1), 1);
    close_all(&got);
    got = receive(ends[1], 100, 512, 0);
    CHECK(got.length == 5 && got.count == 0);
    /* They come with the first byte. */
    CHECK_EQ(send_with(ends[0], "with", 4, pipes, 1, NULL), 4);
    got = receive(ends[1], 1, 512, 0);
    CHECK(got.length == 1 && got.count == 1);
    close_all(&got);
    got = receive(ends[1], 100, 512, 0);
    CHECK(got.length == 3 && got.count == 0);
    /* Two messages are two reads, also for a call that waits for all. */
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(send_with(ends[0], "one", 3, pipes, 1, NULL), 3);
        CHECK_EQ(send_with(ends[0], "two", 3, pipes + 1, 1, NULL), 3);
        got = receive(ends[1], 100, 512, round ? MSG_WAITALL : 0);
        CHECK(got.length == 3 && got.count == 1);
        close_all(&got);
        got = receive(ends[1], 3, 512, round ? MSG_WAITALL : 0);
        CHECK(got.length == 3 && got.count == 1);
        close_all(&got);
    }
    /* A receive of no bytes takes them and leaves the bytes; a read of no bytes does nothing. */
    CHECK_EQ(send_with(ends[0], "zero", 4, pipes, 1, NULL), 4);
    char text[16];
    CHECK_EQ(read(ends[1], text, 0), 0);
    got = receive(ends[1], 0, 512, MSG_PEEK);
    CHECK(got.length == 0 && got.count == 1);
    close_all(&got);
    got = receive(ends[1], 0, 512, 0);
    CHECK(got.length == 0 && got.count == 1);
    close_all(&got);
    got = receive(ends[1], 100, 512, 0);
    CHECK(got.length == 4 && got.count == 0);
    CHECK_ERR(recv(ends[1], text, 0, MSG_DONTWAIT), EAGAIN);
    /* A plain read closes them; a short one takes them all the same. */
    CHECK_EQ(send_with(ends[0], "lost", 4, pipes, 2, NULL), 4);
    CHECK_EQ(read(ends[1], text, 2), 2);
    got = receive(ends[1], 100, 512, 0);
    CHECK(got.length == 2 && got.count == 0 && got.flags == 0);
    CHECK_EQ(open_descriptors(), before);
}

/* Room for descriptors, and how many there may be. */
static void room_for_rights(void)
{
    int ends[2], pipes[2], many[300];
    pair_of(SOCK_DGRAM, ends);
    OK(pipe(pipes));
    int before = open_descriptors();
    for (int at = 0; at < 300; at++)
        many[at] = pipes[at % 2];
    CHECK_ERR(send_with(ends[0], "x", 1, many, 254, NULL), EINVAL);
    CHECK_EQ(send_with(ends[0], "x", 1, many, 253, NULL), 1);
    struct got got = receive(ends[1], 10, CMSG_SPACE(253 * sizeof(int)), MSG_CMSG_CLOEXEC);
    CHECK(got.count == 253 && got.flags == MSG_CMSG_CLOEXEC);
    CHECK_EQ(fcntl(got.fds[252], F_GETFD), FD_CLOEXEC);
    close_all(&got);
    /* Those that fit come, the others are closed. */
    CHECK_EQ(send_with(ends[0], "x", 1, many, 10, NULL), 1);
    got = receive(ends[1], 10, CMSG_LEN(3 * sizeof(int)) + 2, 0);
    CHECK(got.count == 3 && got.flags == MSG_CTRUNC);
    close_all(&got);
    CHECK_EQ(send_with(ends[0], "x", 1, many, 10, NULL), 1);
    got = receive(ends[1], 10, 0, 0);
    CHECK(got.count == 0 && got.flags == MSG_CTRUNC);
    CHECK_EQ(open_descriptors(), before);
    /* Two control messages with descriptors are one. */
    char space[2 * CMSG_SPACE(sizeof(int))];
    memset(space, 0, sizeof space);
    struct iovec iov[3] = {{"ab", 2}, {NULL, 0}, {"cde", 3}};
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = 3, .msg_control = space, .msg_controllen = sizeof space};
    for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
        *at = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(at), pipes, sizeof(int));
    }
    CHECK_EQ(sendmsg(ends[0], &message, 0), 5);
    got = receive(ends[1], 10, 512, 0);
    CHECK(got.length == 5 && got.count == 2 && memcmp(got.text, "abcde", 5) == 0);
    close_all(&got);
    /* No more descriptors than the table has room for. */
    struct rlimit limit;
    OK(getrlimit(RLIMIT_NOFILE, &limit));
    int highest = FD(dup(0));
    OK(close(highest));
    CHECK_EQ(send_with(ends[0], "x", 1, many, 5, NULL), 1);
    struct rlimit low = {highest + 2, limit.rlim_max};
    OK(setrlimit(RLIMIT_NOFILE, &low));
    got = receive(ends[1], 10, 512, 0);
    CHECK(got.length == 1 && got.count == 2 && got.flags == MSG_CTRUNC);
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    close_all(&got);
}

/* A user has no more descriptors on their way than it may have open. */
static void rights_on_their_way(void)
{
    NEEDS_ROOT();
    JOIN(CHILD({
        struct rlimit limit = {40, 40};
        OK(setrlimit(RLIMIT_NOFILE, &limit));
        OK(setuid(4711));
        int ends[2], fds[30], sent = 0;
        pair_of(SOCK_DGRAM, ends);
        for (int at = 0; at < 30; at++)
            fds[at] = ends[0];
        while (sent < 6 && send_with(ends[0], "x", 1, fds, 30, NULL) == 1)
            sent++;
        CHECK_EQ(errno, ETOOMANYREFS);
        CHECK(sent >= 1 && sent <= 3);
        for (int at = 0; at < sent; at++) {
            struct got got = receive(ends[1], 10, 0, 0);
            CHECK(got.length == 1);
        }
        CHECK_EQ(send_with(ends[0], "x", 1, fds, 30, NULL), 1);
    }));
}

static void sizes(void)
{
    int ends[2];
    char text[300000];
    memset(text, 'x', sizeof text);
    pair_of(SOCK_DGRAM, ends);
    set(ends[0], SO_SNDBUF, 3000);
    int room = get(ends[0], SO_SNDBUF);
    CHECK_EQ(room, 6000);
    CHECK_ERR(send(ends[0], text, room - 31, MSG_DONTWAIT), EMSGSIZE);
    CHECK_EQ(send(ends[0], text, 1000, MSG_DONTWAIT), 1000);
    /* The message is cut, and its length told. */
    struct got got = receive(ends[1], 10, 0, MSG_PEEK | MSG_TRUNC);
    CHECK(got.length == 1000 && got.flags == MSG_TRUNC);
    CHECK_EQ(recv(ends[1], text, 10, MSG_PEEK), 10);
    got = receive(ends[1], 10, 0, 0);
    CHECK(got.length == 10 && got.flags == MSG_TRUNC);
    CHECK_ERR(recv(ends[1], text, 10, MSG_DONTWAIT), EAGAIN);
    /* Empty messages are messages. */
    CHECK_EQ(send(ends[0], "", 0, 0), 0);
    CHECK_EQ(send(ends[0], "x", 1, 0), 1);
    CHECK(events_of(ends[1]) & POLLIN);
    CHECK_EQ(recv(ends[1], text, 10, 0), 0);
    CHECK_EQ(recv(ends[1], text, 10, 0), 1);
    int full = 0;
    while (send(ends[0], text, 100, MSG_DONTWAIT) == 100)
        full++;
    CHECK(errno == EAGAIN && full >= 2 && full < 100);
    CHECK(!(events_of(ends[0]) & POLLOUT));
    while (recv(ends[1], text, 100, MSG_DONTWAIT) == 100)
        full--;
    CHECK_EQ(full, 0);
    CHECK(events_of(ends[0]) & POLLOUT);
    /* A stream takes what there is room for. */
    int stream[2];
    pair_of(SOCK_STREAM, stream);
    ssize_t first = send(stream[0], text, sizeof text, MSG_DONTWAIT), all = first;
    CHECK(first > 100000 && first < 300000);
    for (ssize_t more; (more = send(stream[0], text, sizeof text, MSG_DONTWAIT)) > 0;)
        all += more;
    CHECK_EQ(errno, EAGAIN);
    int queued;
    OK(ioctl(stream[1], SIOCINQ, &queued));
    CHECK_EQ(queued, all);
    OK(ioctl(stream[0], SIOCOUTQ, &queued));
    CHECK(queued >= all);
    OK(ioctl(stream[1], SIOCOUTQ, &queued));
    CHECK_EQ(queued, 0);
    CHECK_EQ(recv(stream[1], text, 100, MSG_TRUNC), 100);
}

/* The amounts that wait: of streams and packets all of them, of datagrams the first. */
static void amounts(void)
{
    static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
    for (int t = 0; t < 3; t++) {
        int ends[2], queued = -1;
        pair_of(types[t], ends);
        OK(ioctl(ends[1], SIOCINQ, &queued));
        CHECK_EQ(queued, 0);
        CHECK_EQ(write(ends[0], "abc", 3), 3);
        CHECK_EQ(write(ends[0], "de", 2), 2);
        OK(ioctl(ends[1], SIOCINQ, &queued));
        CHECK_EQ(queued, types[t] == SOCK_DGRAM ? 3 : 5);
        int alone = FD(socket(AF_UNIX, types[t], 0));
        OK(ioctl(alone, SIOCINQ, &queued));
        CHECK_EQ(queued, 0);
    }
    int listener = FD(socket(AF_UNIX, SOCK_STREAM, 0)), queued;
    struct sockaddr_un address = {AF_UNIX, ""};
    OK(bind(listener, (void *)&address, sizeof(sa_family_t)));
    OK(listen(listener, 1));
    CHECK_ERR(ioctl(listener, SIOCINQ, &queued), EINVAL);
}

static void peek_offsets(void)
{
    int ends[2];
    char text[16];
    pair_of(SOCK_STREAM, ends);
    CHECK_EQ(get(ends[1], SO_PEEK_OFF), -1);
    CHECK_EQ(write(ends[0], "abcdefgh", 8), 8);
    set(ends[1], SO_PEEK_OFF, 2);
    CHECK_EQ(recv(ends[1], text, 3, MSG_PEEK), 3);
    CHECK(memcmp(text, "cde", 3) == 0 && get(ends[1], SO_PEEK_OFF) == 5);
    CHECK_EQ(recv(ends[1], text, 10, MSG_PEEK), 3);
    CHECK(memcmp(text, "fgh", 3) == 0 && get(ends[1], SO_PEEK_OFF) == 8);
    CHECK_ERR(recv(ends[1], text, 10, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
    /* What is read moves it back. */
    CHECK_EQ(read(ends[1], text, 5), 5);
    CHECK_EQ(get(ends[1], SO_PEEK_OFF), 3);
    CHECK_EQ(write(ends[0], "ij", 2), 2);
    CHECK_EQ(recv(ends[1], text, 10, MSG_PEEK), 2);
    CHECK(memcmp(text, "ij", 2) == 0);
    set(ends[1], SO_PEEK_OFF, -1);
    CHECK_EQ(recv(ends[1], text, 10, MSG_PEEK), 5);
    CHECK(memcmp(text, "fghij", 5) == 0);
    /* Of messages, too; one after the other. */
    int packets[2];
    pair_of(SOCK_DGRAM, packets);
    CHECK_EQ(write(packets[0], "abcd", 4), 4);
    CHECK_EQ(write(packets[0], "efgh", 4), 4);
    set(packets[1], SO_PEEK_OFF, 1);
    struct got got = receive(packets[1], 2, 0, MSG_PEEK);
    CHECK(got.length == 2 && memcmp(got.text, "bc", 2) == 0 && got.flags == MSG_TRUNC);
    got = receive(packets[1], 10, 0, MSG_PEEK);
    CHECK(got.length == 1 && got.text[0] == 'd' && got.flags == 0);
    got = receive(packets[1], 10, 0, MSG_PEEK);
    CHECK(got.length == 4 && memcmp(got.text, "efgh", 4) == 0);
    CHECK_ERR(recv(packets[1], text, 10, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
    CHECK_EQ(recv(packets[1], text, 10, 0), 4);
    CHECK(memcmp(text, "abcd", 4) == 0 && get(packets[1], SO_PEEK_OFF) == 4);
}

static void names(void)
{
    struct sockaddr_un address = {AF_UNIX, ""}, seen = {0};
    socklen_t length = sizeof seen;
    int fd = FD(socket(AF_UNIX, SOCK_DGRAM, 0));
    OK(getsockname(fd, (void *)&seen, &length));
    CHECK_EQ(length, sizeof(sa_family_t));
    OK(bind(fd, (void *)&address, sizeof(sa_family_t)));
    length = sizeof seen;
    OK(getsockname(fd, (void *)&seen, &length));
    CHECK(length == sizeof(sa_family_t) + 6 && seen.sun_path[0] == 0 && strspn(seen.sun_path + 1, "0123456789abcdef") == 5);
    /* Abstract names are as long as they are said to be. */
    memcpy(address.sun_path, "\0name\0x", 7);
    int first = FD(socket(AF_UNIX, SOCK_DGRAM, 0)), second = FD(socket(AF_UNIX, SOCK_DGRAM, 0));
    OK(bind(first, (void *)&address, sizeof(sa_family_t) + 5));
    CHECK_ERR(bind(second, (void *)&address, sizeof(sa_family_t) + 5), EADDRINUSE);
    OK(bind(second, (void *)&address, sizeof(sa_family_t) + 7));
    CHECK_EQ(sendto(fd, "x", 1, 0, (void *)&address, sizeof(sa_family_t) + 7), 1);
    char text[4];
    length = sizeof seen;
    CHECK_EQ(recvfrom(second, text, 4, MSG_DONTWAIT, (void *)&seen, &length), 1);
    CHECK_EQ(length, sizeof(sa_family_t) + 6);
    CHECK_ERR(sendto(fd, "x", 1, 0, (void *)&address, sizeof(sa_family_t) + 6), ECONNREFUSED);
    OK(close(second));
    CHECK_ERR(sendto(fd, "x", 1, 0, (void *)&address, sizeof(sa_family_t) + 7), ECONNREFUSED);
    /* Kinds do not mix, and nobody is nobody. */
    int stream = FD(socket(AF_UNIX, SOCK_STREAM, 0)), packets = FD(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    CHECK_ERR(connect(stream, (void *)&address, sizeof(sa_family_t) + 5), ECONNREFUSED);
    CHECK_ERR(connect(packets, (void *)&address, sizeof(sa_family_t) + 5), ECONNREFUSED);
    OK(bind(stream, (void *)&address, sizeof(sa_family_t) + 5));
    struct sockaddr_un path = {AF_UNIX, "path"};
    int bound = FD(socket(AF_UNIX, SOCK_DGRAM, 0));
    OK(bind(bound, (void *)&path, sizeof path));
    CHECK_ERR(connect(stream, (void *)&path, sizeof path), EPROTOTYPE);
    CHECK_ERR(connect(packets, (void *)&path, sizeof path), EPROTOTYPE);
    CHECK_ERR(send(stream, "x", 1, 0), ENOTCONN);
    CHECK_ERR(send(packets, "x", 1, 0), ENOTCONN);
    CHECK_ERR(recv(packets, text, 1, 0), ENOTCONN);
    CHECK_ERR(recv(stream, text, 1, 0), EINVAL);
    int fresh = FD(socket(AF_UNIX, SOCK_DGRAM, 0));
    CHECK_ERR(send(fresh, "x", 1, 0), ENOTCONN);
    length = sizeof seen;
    CHECK_ERR(getpeername(fresh, (void *)&seen, &length), ENOTCONN);
    /* A socket that tells who it is gets a name to tell. */
    set(fresh, SO_PASSCRED, 1);
    OK(connect(fresh, (void *)&address, sizeof(sa_family_t) + 5));
    length = sizeof seen;
    OK(getsockname(fresh, (void *)&seen, &length));
    CHECK_EQ(length, sizeof(sa_family_t) + 6);
    int sender = FD(socket(AF_UNIX, SOCK_DGRAM, 0));
    set(sender, SO_PASSCRED, 1);
    CHECK_EQ(sendto(sender, "x", 1, 0, (void *)&address, sizeof(sa_family_t) + 5), 1);
    length = sizeof seen;
    OK(getsockname(sender, (void *)&seen, &length));
    CHECK_EQ(length, sizeof(sa_family_t) + 6);
}

static void ends(void)
{
    int pair[2];
    char text[8];
    pair_of(SOCK_STREAM, pair);
    CHECK_EQ(events_of(pair[0]), POLLOUT);
    OK(shutdown(pair[0], SHUT_WR));
    CHECK_EQ(events_of(pair[0]), POLLOUT);
    CHECK_EQ(events_of(pair[1]), POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(read(pair[1], text, 8), 0);
    CHECK_ERR(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(write(pair[1], "back", 4), 4);
    CHECK_EQ(read(pair[0], text, 8), 4);
    OK(shutdown(pair[1], SHUT_WR));
    CHECK_EQ(events_of(pair[0]), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
    CHECK_ERR(shutdown(pair[0], 3), EINVAL);
    close(pair[0]), close(pair[1]);
    /* Who stops receiving stops the sender. */
    pair_of(SOCK_STREAM, pair);
    CHECK_EQ(write(pair[0], "left", 4), 4);
    OK(shutdown(pair[1], SHUT_RD));
    CHECK_ERR(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(read(pair[1], text, 8), 4);
    CHECK_EQ(read(pair[1], text, 8), 0);
    close(pair[0]), close(pair[1]);
    /* A peer that goes without having read everything. */
    pair_of(SOCK_STREAM, pair);
    CHECK_EQ(write(pair[0], "left", 4), 4);
    OK(close(pair[1]));
    CHECK_EQ(events_of(pair[0]), POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
    CHECK_EQ(get(pair[0], SO_ERROR), ECONNRESET);
    CHECK_EQ(read(pair[0], text, 8), 0);
    OK(close(pair[0]));
    /* Only streams send SIGPIPE. */
    signal(SIGPIPE, SIG_DFL);
    pair_of(SOCK_SEQPACKET, pair);
    OK(close(pair[1]));
    CHECK_ERR(write(pair[0], "x", 1), EPIPE);
    OK(close(pair[0]));
    pair_of(SOCK_DGRAM, pair);
    OK(close(pair[1]));
    CHECK_ERR(write(pair[0], "x", 1), ECONNREFUSED);
    CHECK_ERR(write(pair[0], "x", 1), ENOTCONN);
    OK(close(pair[0]));
    pair_of(SOCK_DGRAM, pair);
    OK(shutdown(pair[0], SHUT_WR));
    CHECK_ERR(write(pair[0], "x", 1), EPIPE);
    CHECK_EQ(write(pair[1], "x", 1), 1);
    OK(shutdown(pair[0], SHUT_RD));
    CHECK_EQ(events_of(pair[0]), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
    CHECK_ERR(write(pair[1], "x", 1), EPIPE);
    close(pair[0]), close(pair[1]);
    pair_of(SOCK_STREAM, pair);
    OK(close(pair[1]));
    CHECK_KILLED(CHILD(CHECK_EQ(write(pair[0], "x", 1), 1)), SIGPIPE);
    /* What is not connected. */
    int alone = FD(socket(AF_UNIX, SOCK_STREAM, 0));
    CHECK_EQ(events_of(alone), POLLOUT | POLLHUP);
    OK(shutdown(alone, SHUT_RDWR));
}

/* Packets keep their borders on a connection. */
static void packets(void)
{
    int pair[2];
    char text[8];
    pair_of(SOCK_SEQPACKET, pair);
    CHECK_EQ(write(pair[0], "abcdef", 6), 6);
    CHECK_EQ(write(pair[0], "gh", 2), 2);
    CHECK_EQ(read(pair[1], text, 4), 4);
    CHECK_EQ(read(pair[1], text, 4), 2);
    CHECK(memcmp(text, "gh", 2) == 0);
    struct iovec two[2] = {{"ij", 2}, {"k", 1}};
    CHECK_EQ(writev(pair[0], two, 2), 3);
    CHECK_EQ(recv(pair[1], text, 8, MSG_WAITALL), 3);
    OK(close(pair[0]));
    CHECK_EQ(read(pair[1], text, 4), 0);
    int listener = FD(socket(AF_UNIX, SOCK_SEQPACKET, 0)), fd = FD(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    struct sockaddr_un address = {AF_UNIX, "packets"};
    OK(bind(listener, (void *)&address, sizeof address));
    CHECK_ERR(connect(fd, (void *)&address, sizeof address), ECONNREFUSED);
    OK(listen(listener, 1));
    OK(connect(fd, (void *)&address, sizeof address));
    CHECK_ERR(connect(fd, (void *)&address, sizeof address), EISCONN);
    int accepted = FD(accept(listener, NULL, NULL));
    /* An address makes no difference. */
    CHECK_EQ(sendto(fd, "xyz", 3, 0, (void *)&address, sizeof address), 3);
    CHECK_EQ(recv(accepted, text, 2, MSG_TRUNC), 3);
}

static int datagrams_to(int fd, const struct sockaddr_un *to, int most)
{
    int sent = 0;
    while (sent < most && sendto(fd, "x", 1, MSG_DONTWAIT, (void *)to, to ? sizeof *to : 0) == 1)
        sent++;
    CHECK(sent == most || errno == EAGAIN);
    return sent;
}

/* So many datagrams wait at most, but for those of the one socket that the receiver sends to. */
static void full_receivers(void)
{
    int limit = 0;
    FILE *file = fopen("/proc/sys/net/unix/max_dgram_qlen", "r");
    CHECK(file && fscanf(file, "%d", &limit) == 1);
    fclose(file);
    if (limit > 64)
        SKIP("the sender's buffer is full before");
    int receiver = FD(socket(AF_UNIX, SOCK_DGRAM, 0)), sender = FD(socket(AF_UNIX, SOCK_DGRAM, 0));
    int connected = FD(socket(AF_UNIX, SOCK_DGRAM, 0));
    struct sockaddr_un box = {AF_UNIX, "box"}, back = {AF_UNIX, "back"};
    OK(bind(receiver, (void *)&box, sizeof box));
    OK(bind(connected, (void *)&back, sizeof back));
    OK(connect(connected, (void *)&box, sizeof box));
    CHECK_EQ(datagrams_to(sender, &box, 100), limit + 1);
    CHECK_EQ(datagrams_to(connected, NULL, 100), 0);
    CHECK_EQ(events_of(sender), POLLOUT);
    CHECK_EQ(events_of(connected), 0);
    char text[8];
    CHECK_EQ(read(receiver, text, 8), 1);
    CHECK_EQ(events_of(connected), POLLOUT);
    CHECK_EQ(datagrams_to(connected, NULL, 100), 1);
    CHECK_EQ(datagrams_to(sender, &box, 100), 0);
    /* Those that wait for a place go on, connected or not. */
    pid_t first = CHILD(CHECK_EQ(write(connected, "y", 1), 1));
    pid_t second = CHILD(CHECK_EQ(sendto(sender, "z", 1, 0, (void *)&box, sizeof box), 1));
    wait_until_asleep(first);
    wait_until_asleep(second);
    CHECK_EQ(read(receiver, text, 8), 1);
    CHECK_EQ(read(receiver, text, 8), 1);
    JOIN(first);
    JOIN(second);
    CHECK_EQ(datagrams_to(sender, &box, 100), 0);
    /* An answer is on its way whatever waits. */
    OK(connect(receiver, (void *)&back, sizeof back));
    CHECK_EQ(events_of(connected), POLLOUT);
    CHECK_EQ(datagrams_to(connected, NULL, 2 * limit), 2 * limit);
    int pair[2];
    pair_of(SOCK_DGRAM, pair);
    CHECK_EQ(datagrams_to(pair[0], NULL, 3 * limit), 3 * limit);
    int own = FD(socket(AF_UNIX, SOCK_DGRAM, 0));
    struct sockaddr_un self = {AF_UNIX, "self"};
    OK(bind(own, (void *)&self, sizeof self));
    CHECK_EQ(datagrams_to(own, &self, 3 * limit), 3 * limit);
}

/* A peer that goes without having read everything is told of before what it had sent. */
static void reset_packets(void)
{
    int pair[2];
    char text[8];
    pair_of(SOCK_SEQPACKET, pair);
    CHECK_EQ(write(pair[0], "left", 4), 4);
    CHECK_EQ(write(pair[1], "data", 4), 4);
    OK(close(pair[1]));
    CHECK_ERR(read(pair[0], text, 8), ECONNRESET);
    CHECK_EQ(read(pair[0], text, 8), 4);
    CHECK_EQ(read(pair[0], text, 8), 0);
}

/* Values of options that any socket has. */
static void options(void)
{
    NEEDS_ROOT();
    int pair[2];
    pair_of(SOCK_STREAM, pair);
    int fd = pair[0];
    CHECK_EQ(get(fd, SO_TYPE), SOCK_STREAM);
    CHECK_EQ(get(fd, SO_DOMAIN), AF_UNIX);
    CHECK_EQ(get(fd, SO_PROTOCOL), 0);
    CHECK_EQ(get(fd, SO_ACCEPTCONN), 0);
    CHECK_EQ(get(fd, SO_ERROR), 0);
    static const int fixed[] = {SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ACCEPTCONN, SO_ERROR, SO_PEERCRED, SO_SNDLOWAT, 9999};
    for (size_t at = 0; at < sizeof fixed / sizeof *fixed; at++) {
        int one = 1;
        CHECK_ERR(setsockopt(fd, SOL_SOCKET, fixed[at], &one, sizeof one), ENOPROTOOPT);
    }
    /* Switches are 0 or 1. */
    static const int switches[] = {SO_REUSEADDR, SO_DONTROUTE, SO_BROADCAST, SO_KEEPALIVE, SO_OOBINLINE, SO_PASSCRED,
                                   SO_TIMESTAMP, SO_TIMESTAMPNS, SO_RXQ_OVFL, SO_NO_CHECK, SO_SELECT_ERR_QUEUE};
    for (size_t at = 0; at < sizeof switches / sizeof *switches; at++) {
        int name = switches[at], value = -7;
        socklen_t length = 1;
        CHECK_EQ(get(fd, name), 0);
        set(fd, name, 77);
        CHECK_EQ(get(fd, name), 1);
        *(char *)&value = 0;
        OK(getsockopt(fd, SOL_SOCKET, name, &value, &length));
        CHECK(length == 1 && *(char *)&value == 1);
        set(fd, name, 0);
        CHECK_EQ(get(fd, name), 0);
        CHECK_ERR(setsockopt(fd, SOL_SOCKET, name, &value, 3), EINVAL);
        CHECK_ERR(setsockopt(fd, SOL_SOCKET, name, NULL, 4), EFAULT);
    }
    long long wide[2] = {1, 0};
    socklen_t length = sizeof wide;
    OK(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, wide, sizeof wide));
    OK(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, wide, &length));
    CHECK_EQ(length, 4);
    length = -1;
    CHECK_ERR(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, wide, &length), EINVAL);
    length = 4;
    CHECK_ERR(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, NULL, &length), EFAULT);
    CHECK_ERR(getsockopt(fd, SOL_SOCKET, 9999, wide, &length), ENOPROTOOPT);
    /* Buffers have twice the size, within bounds. */
    set(fd, SO_SNDBUF, 10000);
    CHECK_EQ(get(fd, SO_SNDBUF), 20000);
    set(fd, SO_SNDBUF, 0);
    CHECK_EQ(get(fd, SO_SNDBUF), 4608);
    set(fd, SO_RCVBUF, 10000);
    CHECK_EQ(get(fd, SO_RCVBUF), 20000);
    set(fd, SO_RCVBUF, 1);
    CHECK_EQ(get(fd, SO_RCVBUF), 2304);
    set(fd, SO_SNDBUF, -1);
    CHECK(get(fd, SO_SNDBUF) >= 2 * 212992);
    set(fd, SO_RCVLOWAT, 100);
    CHECK_EQ(get(fd, SO_RCVLOWAT), 100);
    set(fd, SO_RCVLOWAT, 0);
    CHECK_EQ(get(fd, SO_RCVLOWAT), 1);
    set(fd, SO_RCVLOWAT, -1);
    CHECK_EQ(get(fd, SO_RCVLOWAT), INT32_MAX);
    set(fd, SO_RCVLOWAT, 1);
    CHECK_EQ(get(fd, SO_SNDLOWAT), 1);
    set(fd, SO_PRIORITY, 6);
    CHECK_EQ(get(fd, SO_PRIORITY), 6);
    CHECK_EQ(get(fd, SO_MARK), 0);
    CHECK_EQ(get(fd, SO_BUSY_POLL), 0);
    uint64_t cookies[2] = {0, 0};
    for (int at = 0; at < 2; at++) {
        length = 8;
        OK(getsockopt(pair[at], SOL_SOCKET, SO_COOKIE, &cookies[at], &length));
        CHECK(length == 8 && cookies[at] != 0);
    }
    CHECK(cookies[0] != cookies[1]);
    length = 4;
    CHECK_ERR(getsockopt(fd, SOL_SOCKET, SO_COOKIE, cookies, &length), EINVAL);
    int on = 1;
    CHECK_ERR(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), EOPNOTSUPP);
    CHECK_ERR(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on), EOPNOTSUPP);
    JOIN(CHILD({
        OK(setuid(99));
        CHECK_ERR(setsockopt(fd, SOL_SOCKET, SO_MARK, &on, sizeof on), EPERM);
        CHECK_ERR(setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &on, sizeof on), EPERM);
        CHECK_ERR(setsockopt(fd, SOL_SOCKET, SO_DEBUG, &on, sizeof on), EACCES);
        int seven = 7;
        CHECK_ERR(setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &seven, sizeof seven), EPERM);
    }));
    /* Other levels are not Unix sockets'. */
    CHECK_ERR(setsockopt(fd, 6, 1, &on, sizeof on), EOPNOTSUPP);
    CHECK_ERR(getsockopt(fd, 41, 1, &on, &length), EOPNOTSUPP);
}

static void timeouts(void)
{
    int pair[2];
    char text[8];
    pair_of(SOCK_STREAM, pair);
    struct timeval seen = {9, 9}, time = {0, 30000};
    socklen_t length = sizeof seen;
    OK(getsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &seen, &length));
    CHECK(length == sizeof seen && seen.tv_sec == 0 && seen.tv_usec == 0);
    for (int name = 0; name < 2; name++) {
        int option = name ? 66 : SO_RCVTIMEO;
        OK(setsockopt(pair[0], SOL_SOCKET, option, &time, sizeof time));
        OK(getsockopt(pair[0], SOL_SOCKET, name ? SO_RCVTIMEO : 66, &seen, &length));
        CHECK(seen.tv_sec == 0 && seen.tv_usec >= 30000 && seen.tv_usec < 40000);
        CHECK_ERR(read(pair[0], text, 8), EAGAIN);
        CHECK_ERR(setsockopt(pair[0], SOL_SOCKET, option, &time, 8), EINVAL);
        struct timeval bad = {0, 1000000}, none = {0, 0};
        CHECK_ERR(setsockopt(pair[0], SOL_SOCKET, option, &bad, sizeof bad), EDOM);
        OK(setsockopt(pair[0], SOL_SOCKET, option, &none, sizeof none));
    }
    OK(setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time));
    static char much[1 << 20];
    CHECK(send(pair[0], much, sizeof much, 0) < (ssize_t)sizeof much);
    CHECK_ERR(send(pair[0], much, sizeof much, 0), EAGAIN);
    struct linger linger = {1, 5};
    OK(setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    CHECK_ERR(setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &linger, 4), EINVAL);
    linger = (struct linger){9, 9};
    length = sizeof linger;
    OK(getsockopt(pair[0], SOL_SOCKET, SO_LINGER, &linger, &length));
    CHECK(linger.l_onoff == 1 && linger.l_linger == 5 && length == sizeof linger);
}

/* When a datagram came. */
static void stamps(void)
{
    static const int options[] = {SO_TIMESTAMP, SO_TIMESTAMPNS};
    int pair[2];
    pair_of(SOCK_DGRAM, pair);
    for (int at = 0; at < 2; at++) {
        set(pair[1], options[at], 1);
        CHECK(get(pair[1], options[at]) == 1 && get(pair[1], options[1 - at]) == 0);
        CHECK_EQ(write(pair[0], "x", 1), 1);
        char text[4], space[256];
        struct iovec iov = {text, 4};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
        CHECK_EQ(recvmsg(pair[1], &message, 0), 1);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        CHECK(header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == options[at]);
        struct timespec when;
        memcpy(&when, CMSG_DATA(header), sizeof when);
        CHECK(when.tv_sec > 1000000000 && when.tv_nsec < (at ? 1000000000 : 1000000));
        CHECK(CMSG_NXTHDR(&message, header) == NULL);
    }
}

/* A program that looks at datagrams before they are received. */
static void filters(void)
{
    int pair[2];
    char text[16];
    pair_of(SOCK_DGRAM, pair);
    /* Messages that begin with 'k' are kept, 'c' are cut to three bytes, others are dropped. */
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0),       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'k', 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0xffff),           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'c', 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 3),                BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {6, code};
    CHECK_ERR(setsockopt(pair[1], SOL_SOCKET, SO_DETACH_FILTER, &(int){0}, 4), ENOENT);
    OK(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    CHECK_EQ(send(pair[0], "keep this", 9, 0), 9);
    CHECK_EQ(send(pair[0], "drop this", 9, 0), 9);
    CHECK_EQ(send(pair[0], "cut this", 8, 0), 8);
    CHECK_EQ(send(pair[0], "", 0, 0), 0);
    CHECK_EQ(recv(pair[1], text, 16, MSG_DONTWAIT), 9);
    CHECK_EQ(recv(pair[1], text, 16, MSG_DONTWAIT), 3);
    CHECK(memcmp(text, "cut", 3) == 0);
    CHECK_ERR(recv(pair[1], text, 16, MSG_DONTWAIT), EAGAIN);
    /* Lengths, half words, the index register. */
    struct sock_filter by_length[] = {
        BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 0),      BPF_STMT(BPF_LD | BPF_H | BPF_IND, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x6162, 0, 3), BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 6, 0, 1), BPF_STMT(BPF_RET | BPF_A, 0),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    program = (struct sock_fprog){7, by_length};
    OK(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    CHECK_EQ(send(pair[0], "\x01...abc", 7, 0), 7);
    CHECK_EQ(send(pair[0], "\x01...ab", 6, 0), 6);
    CHECK_EQ(send(pair[0], "\x0f...abc", 7, 0), 7);
    CHECK_EQ(recv(pair[1], text, 16, MSG_DONTWAIT), 7);
    CHECK_ERR(recv(pair[1], text, 16, MSG_DONTWAIT), EAGAIN);
    /* What no program may be. */
    struct sock_filter endless[] = {BPF_STMT(BPF_JMP | BPF_JA, 0xffffffff), BPF_STMT(BPF_RET | BPF_K, 0)};
    struct sock_filter open_end[] = {BPF_STMT(BPF_LD | BPF_IMM, 0)};
    struct sock_filter by_zero[] = {BPF_STMT(BPF_ALU | BPF_DIV | BPF_K, 0), BPF_STMT(BPF_RET | BPF_K, 0)};
    struct sock_fprog bad[] = {{2, endless}, {1, open_end}, {2, by_zero}, {0, code}, {5000, code}};
    for (int at = 0; at < 5; at++)
        CHECK_ERR(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, &bad[at], sizeof *bad), EINVAL);
    CHECK_ERR(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, 8), EINVAL);
    program.filter = NULL;
    CHECK_ERR(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), EINVAL);
    program.filter = (void *)8;
    CHECK_ERR(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), EFAULT);
    /* A locked one stays. */
    set(pair[1], SO_LOCK_FILTER, 1);
    CHECK_EQ(get(pair[1], SO_LOCK_FILTER), 1);
    program.filter = by_length;
    CHECK_ERR(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), EPERM);
    CHECK_ERR(setsockopt(pair[1], SOL_SOCKET, SO_DETACH_FILTER, &(int){0}, 4), EPERM);
    CHECK_ERR(setsockopt(pair[1], SOL_SOCKET, SO_LOCK_FILTER, &(int){0}, 4), EPERM);
    close(pair[0]), close(pair[1]);
    pair_of(SOCK_DGRAM, pair);
    program = (struct sock_fprog){6, code};
    OK(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    OK(setsockopt(pair[1], SOL_SOCKET, SO_DETACH_FILTER, &(int){0}, 4));
    CHECK_EQ(send(pair[0], "drop this", 9, 0), 9);
    CHECK_EQ(recv(pair[1], text, 16, MSG_DONTWAIT), 9);
    /* A filter that drops a message drops its descriptors. */
    OK(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    int pipes[2];
    OK(pipe(pipes));
    CHECK_EQ(send_with(pair[0], "drop", 4, pipes + 1, 1, NULL), 4);
    OK(close(pipes[1]));
    CHECK_EQ(read(pipes[0], text, 1), 0);
}

/* What waits for the least amount, waits. */
static void least(void)
{
    int pair[2];
    char text[16];
    pair_of(SOCK_STREAM, pair);
    set(pair[1], SO_RCVLOWAT, 4);
    CHECK_EQ(write(pair[0], "ab", 2), 2);
    pid_t child = CHILD(sleep_ms(20); CHECK_EQ(write(pair[0], "cdef", 4), 4));
    ssize_t got = recv(pair[1], text, 16, 0);
    CHECK(got == 6 && memcmp(text, "abcdef", 6) == 0);
    JOIN(child);
    CHECK_EQ(write(pair[0], "ab", 2), 2);
    CHECK_EQ(recv(pair[1], text, 16, MSG_DONTWAIT), 2);
    CHECK_EQ(write(pair[0], "ab", 2), 2);
    CHECK_EQ(recv(pair[1], text, 1, 0), 1);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(credentials),     TEST(claims),  TEST(peers),   TEST(pidfds),       TEST(senders_stay_apart), TEST(rights_in_streams),
        TEST(room_for_rights), TEST(rights_on_their_way),    TEST(sizes),        TEST(amounts),            TEST(peek_offsets),
        TEST(names),           TEST(ends),    TEST(packets), TEST(options),      TEST(timeouts),           TEST(filters),
        TEST(stamps),        TEST(least),     TEST(full_receivers), TEST(reset_packets),
    };
    return RUN_TESTS("sockets", tests, argc, argv);
}
