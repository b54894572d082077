/* Leases and locks of files: who has to make way, who may ask, and what goes when. */
#include "check.h"
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/mman.h>

#define SIG (SIGRTMIN + 4)
#include "awaited.h"

/* What may have a lease, and which. */
static void grants(void)
{
    NEEDS_ROOT();
    write_file("file", "content", 0644);
    int reader = FD(open("file", O_RDONLY));
    CHECK_EQ(fcntl(reader, F_GETLEASE), F_UNLCK);
    CHECK_ERR(fcntl(reader, F_SETLEASE, F_UNLCK), EAGAIN);
    CHECK_ERR(fcntl(reader, F_SETLEASE, 7), EINVAL);
    OK(fcntl(reader, F_SETLEASE, F_RDLCK));
    CHECK_EQ(fcntl(reader, F_GETLEASE), F_RDLCK);
    /* Alone with the file it may have more. */
    OK(fcntl(reader, F_SETLEASE, F_WRLCK));
    CHECK_EQ(fcntl(reader, F_GETLEASE), F_WRLCK);
    OK(fcntl(reader, F_SETLEASE, F_RDLCK));
    int second = FD(open("file", O_RDONLY));
    CHECK_EQ(fcntl(second, F_GETLEASE), F_UNLCK);
    CHECK_ERR(fcntl(reader, F_SETLEASE, F_WRLCK), EAGAIN);
    OK(fcntl(second, F_SETLEASE, F_RDLCK));
    OK(close(second));
    /* It is the description's. */
    int copy = FD(dup(reader));
    CHECK_EQ(fcntl(copy, F_GETLEASE), F_RDLCK);
    OK(close(reader));
    CHECK_EQ(fcntl(copy, F_GETLEASE), F_RDLCK);
    OK(fcntl(copy, F_SETLEASE, F_UNLCK));
    CHECK_EQ(fcntl(copy, F_GETLEASE), F_UNLCK);
    CHECK_ERR(fcntl(copy, F_SETLEASE, F_UNLCK), EAGAIN);
    /* Writers keep readers from it; a writer that is alone may have the other. */
    int writer = FD(open("file", O_RDWR));
    CHECK_ERR(fcntl(copy, F_SETLEASE, F_RDLCK), EAGAIN);
    CHECK_ERR(fcntl(writer, F_SETLEASE, F_RDLCK), EAGAIN);
    CHECK_ERR(fcntl(writer, F_SETLEASE, F_WRLCK), EAGAIN);
    OK(close(copy));
    OK(fcntl(writer, F_SETLEASE, F_WRLCK));
    OK(close(writer));
    /* Others' files, and what is no file. */
    JOIN(CHILD({
        OK(setresuid(1234, 1234, 1234));
        int fd = FD(open("file", O_RDONLY));
        CHECK_ERR(fcntl(fd, F_SETLEASE, F_RDLCK), EACCES);
    }));
    OK(chmod(".", 0755));
    OK(chown("file", 1234, 1234));
    JOIN(CHILD({
        OK(setresuid(1234, 1234, 1234));
        int fd = FD(open("file", O_RDONLY));
        OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    }));
    int directory = FD(open(".", O_RDONLY)), pipes[2];
    CHECK_ERR(fcntl(directory, F_SETLEASE, F_RDLCK), EINVAL);
    OK(pipe(pipes));
    CHECK_ERR(fcntl(pipes[0], F_SETLEASE, F_RDLCK), EINVAL);
    int named = FD(open("file", O_PATH));
    CHECK_ERR(fcntl(named, F_SETLEASE, F_RDLCK), EBADF);
}

/* Who opens the file in a way that the lease forbids waits, and the holder is told. */
static void breaks(void)
{
    watch();
    write_file("file", "content", 0644);
    int fd = FD(open("file", O_RDONLY)), other;
    OK(fcntl(fd, F_SETSIG, SIG));
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    /* Readers are welcome. */
    other = FD(open("file", O_RDONLY));
    OK(close(other));
    none();
    /* Without waiting a writer is turned away, and the lease is to go all the same. */
    CHECK_ERR(open("file", O_WRONLY | O_NONBLOCK), EAGAIN);
    siginfo_t info = next();
    CHECK(info.si_signo == SIG && info.si_fd == fd && info.si_code == POLL_MSG);
    CHECK_EQ(fcntl(fd, F_GETLEASE), F_UNLCK);
    CHECK_ERR(open("file", O_WRONLY | O_NONBLOCK), EAGAIN);
    none();
    OK(fcntl(fd, F_SETLEASE, F_UNLCK));
    CHECK_EQ(fcntl(fd, F_GETSIG), 0);
    other = FD(open("file", O_WRONLY | O_NONBLOCK));
    OK(close(other));
    /* One that waits goes on once the lease is given up, or its file closed. */
    for (int round = 0; round < 4; round++) {
        OK(fcntl(fd, F_SETSIG, SIG));
        OK(fcntl(fd, F_SETLEASE, F_RDLCK));
        pid_t child = CHILD({
            if (round == 0)
                FD(open("file", O_WRONLY));
            else if (round == 1)
                OK(truncate("file", 3));
            else
                FD(open("file", O_RDONLY | O_CREAT | O_TRUNC | (round == 2 ? O_RDWR : O_WRONLY), 0600));
        });
        next();
        sleep_ms(5);
        CHECK_EQ(waitpid(child, NULL, WNOHANG), 0);
        struct stat info;
        OK(fstat(fd, &info));
        CHECK(info.st_size != 0);
        if (round == 3) {
            /* The child has a descriptor of it, too. */
            OK(fcntl(fd, F_SETLEASE, F_UNLCK));
        } else
            OK(fcntl(fd, F_SETLEASE, F_UNLCK));
        JOIN(child);
        write_file("file", "content", 0644);
    }
    none();
    /* An exclusive one becomes a shared one for a reader. */
    OK(fcntl(fd, F_SETSIG, SIG));
    OK(fcntl(fd, F_SETLEASE, F_WRLCK));
    pid_t child = CHILD(FD(open("file", O_RDONLY)));
    next();
    CHECK_EQ(fcntl(fd, F_GETLEASE), F_RDLCK);
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    JOIN(child);
    CHECK_EQ(fcntl(fd, F_GETLEASE), F_RDLCK);
    /* Nobody gets a new one while a writer waits. */
    child = CHILD({
        signal(SIGALRM, SIG_DFL);
        FD(open("file", O_WRONLY));
    });
    next();
    OK(fcntl(fd, F_SETLEASE, F_UNLCK));
    JOIN(child);
    OK(close(fd));
}

static void on_alarm(int signal)
{
    (void)signal;
}

static void interruptions(void)
{
    watch();
    write_file("file", "content", 0644);
    int fd = FD(open("file", O_RDONLY));
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    int ready[2];
    char text;
    OK(pipe(ready));
    pid_t child = CHILD({
        close(fd);
        struct sigaction act = {.sa_handler = on_alarm};
        OK(sigaction(SIGUSR1, &act, NULL));
        CHECK_ERR(open("file", O_WRONLY), EINTR);
        CHECK_EQ(write(ready[1], "o", 1), 1);
        CHECK_ERR(truncate("file", 0), EINTR);
    });
    /* Without a choice it is SIGIO. */
    siginfo_t info = next();
    CHECK(info.si_signo == SIGIO && info.si_code == SI_KERNEL);
    wait_until_asleep(child);
    OK(kill(child, SIGUSR1));
    CHECK_EQ(read(ready[0], &text, 1), 1);
    wait_until_asleep(child);
    OK(kill(child, SIGUSR1));
    JOIN(child);
    none();
    /* The last descriptor takes the lease along. */
    child = CHILD(close(fd); FD(open("file", O_WRONLY)));
    wait_until_asleep(child);
    OK(close(fd));
    JOIN(child);
    /* As a process that ends does. */
    pid_t holder = CHILD({
        int own = FD(open("file", O_RDONLY));
        OK(fcntl(own, F_SETLEASE, F_WRLCK));
        CHECK_EQ(write(ready[1], "r", 1), 1);
        pause();
    });
    CHECK_EQ(read(ready[0], &text, 1), 1);
    child = CHILD(FD(open("file", O_RDONLY)));
    wait_until_asleep(child);
    OK(kill(holder, SIGKILL));
    status_of(holder);
    JOIN(child);
}

/* Many leases, many that wait, and holders that do not care. */
static void hostile(void)
{
    watch();
    write_file("file", "content", 0644);
    int fds[200];
    for (int at = 0; at < 200; at++) {
        fds[at] = FD(open("file", O_RDONLY));
        OK(fcntl(fds[at], F_SETLEASE, F_RDLCK));
        OK(fcntl(fds[at], F_SETLEASE, F_RDLCK));
    }
    pid_t children[20];
    for (int at = 0; at < 20; at++)
        children[at] = CHILD({
            for (int fd = 0; fd < 200; fd++)
                close(fds[fd]);
            FD(open("file", at % 2 ? O_RDWR : O_WRONLY));
        });
    next();
    OK(kill(children[0], SIGKILL));
    CHECK_KILLED(children[0], SIGKILL);
    for (int at = 0; at < 200; at++)
        if (at % 2)
            OK(close(fds[at]));
        else
            OK(fcntl(fds[at], F_SETLEASE, F_UNLCK));
    for (int at = 1; at < 20; at++)
        JOIN(children[at]);
    /* A lease whose signals go nowhere, or to somebody else. */
    int fd = FD(open("other", O_RDONLY | O_CREAT, 0600));
    OK(fcntl(fd, F_SETLEASE, F_WRLCK));
    OK(fcntl(fd, F_SETOWN, 0));
    CHECK_ERR(open("other", O_RDONLY | O_NONBLOCK), EAGAIN);
    OK(close(fd));
    OK(close(FD(open("other", O_RDONLY | O_NONBLOCK))));
    /* A descriptor on its way keeps the lease. */
    int ends[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    fd = FD(open("other", O_RDONLY));
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    char space[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {"x", 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof fd);
    CHECK_EQ(sendmsg(ends[0], &message, 0), 1);
    OK(close(fd));
    CHECK_ERR(open("other", O_WRONLY | O_NONBLOCK), EAGAIN);
    OK(close(ends[0]));
    OK(close(ends[1]));
    OK(close(FD(open("other", O_WRONLY | O_NONBLOCK))));
}

static int lock(int fd, int command, short type, long start, long length)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(fd, command, &lock);
}

/* The lock that is in the way. */
static struct flock in_the_way(int fd, int command, short type, long start, long length)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    OK(fcntl(fd, command, &lock));
    return lock;
}

static void record_locks(void)
{
    int fd = FD(open("file", O_RDWR | O_CREAT, 0600)), reader = FD(open("file", O_RDONLY)),
        writer = FD(open("file", O_WRONLY));
    OK(ftruncate(fd, 100));
    CHECK_ERR(lock(reader, F_SETLK, F_WRLCK, 0, 1), EBADF);
    CHECK_ERR(lock(writer, F_SETLK, F_RDLCK, 0, 1), EBADF);
    CHECK_ERR(lock(fd, F_SETLK, 9, 0, 1), EINVAL);
    CHECK_ERR(lock(fd, F_SETLK, F_WRLCK, -1, 1), EINVAL);
    CHECK_ERR(lock(fd, F_SETLK, F_WRLCK, 5, -6), EINVAL);
    CHECK_ERR(lock(fd, F_SETLK, F_WRLCK, INT64_MAX, 2), EOVERFLOW);
    OK(lock(fd, F_SETLK, F_WRLCK, INT64_MAX, 1));
    OK(lock(fd, F_SETLK, F_UNLCK, 0, 0));
    struct flock from_end = {F_WRLCK, SEEK_END, -10, 5, 0};
    OK(fcntl(fd, F_SETLK, &from_end));
    from_end = (struct flock){F_WRLCK, SEEK_END, INT64_MAX, 5, 0};
    CHECK_ERR(fcntl(fd, F_SETLK, &from_end), EOVERFLOW);
    from_end.l_whence = 3;
    CHECK_ERR(fcntl(fd, F_SETLK, &from_end), EINVAL);
    /* Ten bytes before 20: from 10 on. */
    OK(lock(fd, F_SETLK, F_RDLCK, 20, -10));
    JOIN(CHILD({
        struct flock held = in_the_way(fd, F_GETLK, F_WRLCK, 0, 0);
        CHECK(held.l_type == F_RDLCK && held.l_start == 10 && held.l_len == 10 && held.l_pid == getppid());
        held = in_the_way(fd, F_GETLK, F_WRLCK, 50, 0);
        CHECK(held.l_type == F_WRLCK && held.l_start == 90 && held.l_len == 5 && held.l_whence == SEEK_SET);
        held = in_the_way(fd, F_GETLK, F_RDLCK, 0, 50);
        CHECK(held.l_type == F_UNLCK);
        CHECK_ERR(lock(fd, F_SETLK, F_WRLCK, 19, 1), EAGAIN);
        OK(lock(fd, F_SETLK, F_RDLCK, 19, 1));
        /* Its own come in no way. */
        OK(lock(fd, F_SETLK, F_WRLCK, 0, 5));
        held = in_the_way(fd, F_GETLK, F_WRLCK, 0, 5);
        CHECK_EQ(held.l_type, F_UNLCK);
        /* Closing any descriptor of the file gives all up. */
        OK(close(reader));
        JOIN(CHILD(OK(lock(fd, F_SETLK, F_WRLCK, 0, 5))));
    }));
    OK(close(FD(open("file", O_RDONLY))));
    JOIN(CHILD(CHECK_EQ(in_the_way(fd, F_GETLK, F_WRLCK, 0, 0).l_type, F_UNLCK)));
}

static void description_locks(void)
{
    int first = FD(open("file", O_RDWR | O_CREAT, 0600)), second = FD(open("file", O_RDWR));
    struct flock bad = {.l_type = F_WRLCK, .l_pid = 5};
    CHECK_ERR(fcntl(first, F_OFD_SETLK, &bad), EINVAL);
    OK(lock(first, F_OFD_SETLK, F_WRLCK, 0, 10));
    CHECK_ERR(lock(second, F_OFD_SETLK, F_RDLCK, 5, 1), EAGAIN);
    struct flock held = in_the_way(second, F_OFD_GETLK, F_RDLCK, 5, 1);
    CHECK(held.l_type == F_WRLCK && held.l_pid == -1 && held.l_start == 0 && held.l_len == 10);
    /* The process's own locks are another's to them. */
    CHECK_ERR(lock(first, F_SETLK, F_WRLCK, 5, 1), EAGAIN);
    OK(lock(first, F_SETLK, F_WRLCK, 20, 1));
    CHECK_ERR(lock(first, F_OFD_SETLK, F_WRLCK, 20, 1), EAGAIN);
    /* A child has the same description; closing another changes nothing. */
    JOIN(CHILD(OK(lock(first, F_OFD_SETLK, F_WRLCK, 0, 10))));
    OK(close(FD(open("file", O_RDONLY))));
    CHECK_ERR(lock(second, F_OFD_SETLK, F_RDLCK, 5, 1), EAGAIN);
    int copy = FD(dup(first));
    OK(close(first));
    CHECK_ERR(lock(second, F_OFD_SETLK, F_RDLCK, 5, 1), EAGAIN);
    pid_t child = CHILD(close(copy); OK(lock(second, F_OFD_SETLKW, F_RDLCK, 5, 1)));
    wait_until_asleep(child);
    OK(close(copy));
    JOIN(child);
}

/* Two that wait for each other are not left to wait. */
static void deadlocks(void)
{
    int fd = FD(open("file", O_RDWR | O_CREAT, 0600));
    int ready[2];
    char text;
    OK(pipe(ready));
    OK(lock(fd, F_SETLK, F_WRLCK, 0, 1));
    pid_t child = CHILD({
        OK(lock(fd, F_SETLK, F_WRLCK, 1, 1));
        CHECK_EQ(write(ready[1], "r", 1), 1);
        OK(lock(fd, F_SETLKW, F_WRLCK, 0, 1));
    });
    CHECK_EQ(read(ready[0], &text, 1), 1);
    wait_until_asleep(child);
    CHECK_ERR(lock(fd, F_SETLKW, F_WRLCK, 1, 1), EDEADLK);
    OK(lock(fd, F_SETLK, F_UNLCK, 0, 1));
    JOIN(child);
    OK(lock(fd, F_SETLKW, F_WRLCK, 1, 1));
}

static void whole_locks(void)
{
    int first = FD(open("file", O_RDWR | O_CREAT, 0600)), second = FD(open("file", O_RDONLY));
    OK(flock(first, LOCK_SH));
    OK(flock(second, LOCK_SH));
    CHECK_ERR(flock(first, LOCK_EX | LOCK_NB), EAGAIN);
    /* The attempt has cost the old one. */
    OK(flock(second, LOCK_EX | LOCK_NB));
    CHECK_ERR(flock(first, LOCK_SH | LOCK_NB), EAGAIN);
    OK(flock(second, LOCK_SH | LOCK_NB));
    OK(flock(first, LOCK_SH | LOCK_NB));
    CHECK_ERR(flock(first, 0), EINVAL);
    CHECK_ERR(flock(first, LOCK_EX | LOCK_SH), EINVAL);
    CHECK_ERR(flock(-1, LOCK_SH), EBADF);
    /* It is the description's, and in nobody's way who asks with fcntl. */
    int copy = FD(dup(second));
    OK(close(second));
    CHECK_ERR(flock(first, LOCK_EX | LOCK_NB), EAGAIN);
    OK(lock(first, F_SETLK, F_WRLCK, 0, 0));
    OK(close(copy));
    OK(flock(first, LOCK_EX | LOCK_NB));
    JOIN(CHILD(OK(flock(first, LOCK_UN))));
    int third = FD(open("file", O_RDONLY));
    OK(flock(third, LOCK_EX | LOCK_NB));
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(grants),        TEST(breaks),            TEST(interruptions), TEST(hostile),
        TEST(record_locks),  TEST(description_locks), TEST(deadlocks),     TEST(whole_locks),
    };
    return RUN_TESTS("leases", tests, argc, argv);
}
