/* POSIX message queues, by mq_overview(7) and the pages it names. */
#include "check.h"
#include <grp.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/vfs.h>

/* A name that no other run uses. */
static const char *own_name(const char *what)
{
    static char name[64];
    snprintf(name, sizeof name, "/%s.%d", what, (int)getpid());
    return name;
}

static mqd_t make(const char *what, long messages, long size, int flags)
{
    struct mq_attr attr = {.mq_maxmsg = messages, .mq_msgsize = size};
    mqd_t queue = mq_open(own_name(what), O_CREAT | O_EXCL | O_RDWR | flags, 0600, &attr);
    CHECK(queue >= 0);
    OK(mq_unlink(own_name(what)));
    return queue;
}

static void names(void)
{
    const char *name = own_name("names");
    struct mq_attr attr = {.mq_maxmsg = 3, .mq_msgsize = 16}, got;
    CHECK_ERR(mq_open(name, O_RDWR), ENOENT);
    CHECK_ERR(mq_open("/a/b", O_RDWR | O_CREAT, 0600, NULL), EACCES);
    char longest[400] = "/";
    memset(longest + 1, 'x', 300);
    CHECK_ERR(mq_open(longest, O_RDWR | O_CREAT, 0600, NULL), ENAMETOOLONG);
    mqd_t queue = FD(mq_open(name, O_CREAT | O_EXCL | O_RDONLY | O_NONBLOCK, 0600, &attr));
    CHECK_ERR(mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &attr), EEXIST);
    mqd_t writer = FD(mq_open(name, O_WRONLY | O_CREAT, 0600, NULL));
    OK(mq_getattr(queue, &got));
    CHECK(got.mq_flags == O_NONBLOCK && got.mq_maxmsg == 3 && got.mq_msgsize == 16 && got.mq_curmsgs == 0);
    OK(mq_getattr(writer, &got));
    CHECK_EQ(got.mq_flags, 0);
    CHECK(fcntl(queue, F_GETFD) & FD_CLOEXEC);
    got.mq_flags = O_NONBLOCK;
    OK(mq_setattr(writer, &got, NULL));
    CHECK(fcntl(writer, F_GETFL) & O_NONBLOCK);
    got.mq_flags = O_APPEND;
    CHECK_ERR(mq_setattr(writer, &got, NULL), EINVAL);
    char text[16];
    CHECK_ERR(mq_receive(writer, text, sizeof text, NULL), EBADF);
    CHECK_ERR(mq_send(queue, text, 1, 0), EBADF);
    CHECK_ERR(mq_getattr(0, &got), EBADF);
    CHECK_ERR(mq_open(name, O_WRONLY | O_RDWR), EINVAL);
    /* One that cannot be opened is not made. */
    struct rlimit files, none;
    OK(getrlimit(RLIMIT_NOFILE, &files));
    none = files;
    none.rlim_cur = 0;
    OK(setrlimit(RLIMIT_NOFILE, &none));
    char other[64];
    strcpy(other, name);
    strcat(other, ".other");
    CHECK_ERR(mq_open(other, O_CREAT | O_RDWR, 0600, NULL), EMFILE);
    OK(setrlimit(RLIMIT_NOFILE, &files));
    CHECK_ERR(mq_unlink(other), ENOENT);
    OK(mq_unlink(name));
    CHECK_ERR(mq_unlink(name), ENOENT);
    /* It lives while it is open. */
    OK(mq_send(writer, "hello", 5, 1));
    CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 5);
    OK(mq_close(queue));
    OK(mq_close(writer));
    CHECK_ERR(mq_close(writer), EBADF);
    for (int i = 0; i < 4; i++) {
        struct mq_attr bad[] = {{.mq_maxmsg = 0, .mq_msgsize = 1},
                                {.mq_maxmsg = 1, .mq_msgsize = 0},
                                {.mq_maxmsg = -1, .mq_msgsize = 1},
                                {.mq_maxmsg = 1L << 40, .mq_msgsize = 1}};
        CHECK_ERR(mq_open(name, O_CREAT | O_RDWR, 0600, &bad[i]), EINVAL);
    }
}

static void messages(void)
{
    mqd_t queue = make("messages", 4, 32, O_NONBLOCK);
    char text[64];
    unsigned priority = 99;
    CHECK_ERR(mq_receive(queue, text, sizeof text, NULL), EAGAIN);
    CHECK_ERR(mq_receive(queue, text, 31, NULL), EMSGSIZE);
    CHECK_ERR(mq_send(queue, text, 33, 0), EMSGSIZE);
    CHECK_ERR(mq_send(queue, text, 1, 32768), EINVAL);
    OK(mq_send(queue, "low", 3, 1));
    OK(mq_send(queue, "first", 5, 7));
    OK(mq_send(queue, "second", 6, 7));
    OK(mq_send(queue, "", 0, 32767));
    CHECK_ERR(mq_send(queue, "x", 1, 0), EAGAIN);
    struct mq_attr attr;
    OK(mq_getattr(queue, &attr));
    CHECK_EQ(attr.mq_curmsgs, 4);
    CHECK(mq_receive(queue, text, sizeof text, &priority) == 0 && priority == 32767);
    CHECK(mq_receive(queue, text, sizeof text, &priority) == 5 && priority == 7 && !memcmp(text, "first", 5));
    CHECK(mq_receive(queue, text, sizeof text, &priority) == 6 && priority == 7 && !memcmp(text, "second", 6));
    CHECK(mq_receive(queue, text, sizeof text, &priority) == 3 && priority == 1);
    OK(mq_close(queue));
}

static struct timespec in_ms(long ms)
{
    struct timespec at;
    OK(clock_gettime(CLOCK_REALTIME, &at));
    at.tv_nsec += ms * 1000000;
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    return at;
}

static void nothing(int signal)
{
    (void)signal;
}

static void waiting(void)
{
    mqd_t queue = make("waiting", 1, 32, 0);
    char text[32];
    pid_t child = CHILD(CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 2));
    wait_until_asleep(child);
    OK(mq_send(queue, "ab", 2, 0));
    JOIN(child);
    OK(mq_send(queue, "ab", 2, 0));
    struct timespec at = in_ms(20), bad = {0, -1};
    CHECK_ERR(mq_timedsend(queue, "c", 1, 0, &at), ETIMEDOUT);
    CHECK_ERR(mq_timedsend(queue, "c", 1, 0, &bad), EINVAL);
    child = CHILD(OK(mq_send(queue, "cde", 3, 0)));
    wait_until_asleep(child);
    CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 2);
    JOIN(child);
    CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 3);
    at = in_ms(20);
    CHECK_ERR(mq_timedreceive(queue, text, sizeof text, NULL, &at), ETIMEDOUT);
    for (int restart = 0; restart < 2; restart++) {
        child = CHILD({
            struct sigaction action = {.sa_handler = nothing, .sa_flags = restart ? SA_RESTART : 0};
            OK(sigaction(SIGUSR1, &action, NULL));
            if (restart)
                CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 1);
            else
                CHECK_ERR(mq_receive(queue, text, sizeof text, NULL), EINTR);
        });
        wait_until_asleep(child);
        OK(kill(child, SIGUSR1));
        sleep_ms(5);
        if (restart)
            OK(mq_send(queue, "x", 1, 0));
        JOIN(child);
    }
    OK(mq_close(queue));
}

static void polling(void)
{
    mqd_t queue = make("polling", 1, 32, O_NONBLOCK);
    struct pollfd one = {queue, POLLIN | POLLOUT, 0};
    CHECK_EQ(poll(&one, 1, 0), 1);
    CHECK_EQ(one.revents, POLLOUT);
    int set = FD(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, queue, &event));
    CHECK_EQ(epoll_wait(set, &event, 1, 0), 0);
    pid_t child = CHILD({
        sleep_ms(10);
        OK(mq_send(queue, "x", 1, 0));
    });
    CHECK_EQ(epoll_wait(set, &event, 1, 5000), 1);
    JOIN(child);
    CHECK_EQ(poll(&one, 1, 0), 1);
    CHECK_EQ(one.revents, POLLIN);
    char text[32];
    CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 1);
    OK(mq_close(queue));
}

static volatile sig_atomic_t got_code, got_value, got_pid;

static void note(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    got_value = info->si_value.sival_int;
    got_pid = info->si_pid;
    got_code = info->si_code;
}

static void notify_signal(void)
{
    mqd_t queue = make("signal", 3, 32, O_NONBLOCK);
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGUSR1, &action, NULL));
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 42};
    OK(mq_notify(queue, &event));
    CHECK_ERR(mq_notify(queue, &event), EBUSY);
    JOIN(CHILD({
        CHECK_ERR(mq_notify(queue, &event), EBUSY);
        OK(mq_notify(queue, NULL)); /* another's stays */
    }));
    char text[32];
    lseek(queue, 0, SEEK_SET);
    CHECK(read(queue, text, sizeof text) > 0);
    pid_t sender = CHILD(OK(mq_send(queue, "x", 1, 0)));
    JOIN(sender);
    while (!got_code)
        sleep_ms(1);
    CHECK(got_code == SI_MESGQ && got_value == 42 && got_pid == sender);
    /* Once only, and only when the queue was empty. */
    got_code = 0;
    OK(mq_notify(queue, &event));
    OK(mq_send(queue, "x", 1, 0));
    sleep_ms(5);
    CHECK_EQ(got_code, 0);
    OK(mq_notify(queue, NULL));
    /* Who waits for the message gets it, and nobody is told. */
    CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 1);
    CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 1);
    OK(mq_notify(queue, &event));
    struct mq_attr attr = {.mq_flags = 0};
    OK(mq_setattr(queue, &attr, NULL));
    pid_t receiver = CHILD(CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 1));
    wait_until_asleep(receiver);
    OK(mq_send(queue, "x", 1, 0));
    JOIN(receiver);
    sleep_ms(5);
    CHECK_EQ(got_code, 0);
    OK(mq_send(queue, "x", 1, 0));
    while (!got_code)
        sleep_ms(1);
    /* The end of a process withdraws what it has registered. */
    CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 1);
    JOIN(CHILD(OK(mq_notify(queue, &event))));
    event.sigev_notify = SIGEV_NONE;
    OK(mq_notify(queue, &event));
    event.sigev_notify = 77;
    CHECK_ERR(mq_notify(queue, &event), EINVAL);
    event = (struct sigevent){.sigev_notify = SIGEV_SIGNAL, .sigev_signo = 65};
    CHECK_ERR(mq_notify(queue, &event), EINVAL);
    OK(mq_close(queue));
}

/* What a process has asked for is not for the program that it runs next, which may have more rights. */
static void notify_and_exec(void)
{
    mqd_t queue = make("exec", 3, 32, O_NONBLOCK);
    int running[2];
    OK(pipe2(running, O_CLOEXEC));
    pid_t child = CHILD({
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
        OK(mq_notify(queue, &event));
        OK(fcntl(queue, F_SETFD, 0));
        execl("/bin/sleep", "sleep", "100", NULL);
    });
    OK(close(running[1]));
    char byte, text[128] = "";
    CHECK_EQ(read(running[0], &byte, 1), 0);
    OK(close(running[0]));
    lseek(queue, 0, SEEK_SET);
    CHECK(read(queue, text, sizeof text - 1) > 0 && strstr(text, "SIGNO:9 "));
    OK(mq_send(queue, "x", 1, 0));
    sleep_ms(50);
    CHECK_EQ(waitpid(child, NULL, WNOHANG), 0);
    OK(kill(child, SIGTERM));
    CHECK_KILLED(child, SIGTERM);
    OK(mq_close(queue));
}

static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told_cond = PTHREAD_COND_INITIALIZER;
static int told;

static void tell(union sigval value)
{
    PT(pthread_mutex_lock(&told_lock));
    told = value.sival_int;
    PT(pthread_cond_signal(&told_cond));
    PT(pthread_mutex_unlock(&told_lock));
}

static void notify_thread(void)
{
    mqd_t queue = make("thread", 3, 32, 0);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_value.sival_int = 7};
    event.sigev_notify_function = tell;
    for (int round = 0; round < 3; round++) {
        told = 0;
        event.sigev_value.sival_int = 7 + round;
        OK(mq_notify(queue, &event));
        OK(mq_send(queue, "x", 1, 0));
        PT(pthread_mutex_lock(&told_lock));
        while (!told)
            PT(pthread_cond_wait(&told_cond, &told_lock));
        PT(pthread_mutex_unlock(&told_lock));
        CHECK_EQ(told, 7 + round);
        char text[32];
        CHECK_EQ(mq_receive(queue, text, sizeof text, NULL), 1);
    }
    OK(mq_notify(queue, &event));
    OK(mq_notify(queue, NULL));
    OK(mq_close(queue));
}

static void limits(void)
{
    struct rlimit limit;
    OK(getrlimit(RLIMIT_MSGQUEUE, &limit));
    limit.rlim_cur = 20000;
    const char *name = own_name("limits");
    struct mq_attr attr = {.mq_maxmsg = 10, .mq_msgsize = 1000};
    OK(setrlimit(RLIMIT_MSGQUEUE, &limit));
    if (geteuid() == 0) {
        /* Another user's queues do not count. */
        OK(setresuid(23456, 23456, 23456));
    }
    mqd_t first = FD(mq_open(name, O_CREAT | O_RDWR, 0600, &attr));
    CHECK_ERR(mq_open(own_name("limits2"), O_CREAT | O_RDWR, 0600, &attr), EMFILE);
    struct mq_attr large = {.mq_maxmsg = 11, .mq_msgsize = 8};
    int fd = open("/proc/sys/fs/mqueue/msg_max", O_RDONLY);
    char text[16] = "";
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    if (geteuid() != 0 && atoi(text) == 10)
        CHECK_ERR(mq_open(own_name("limits2"), O_CREAT | O_RDWR, 0600, &large), EINVAL);
    OK(mq_unlink(own_name("limits")));
    OK(mq_close(first));
    /* With the last descriptor its bytes are free again. */
    first = FD(mq_open(own_name("limits3"), O_CREAT | O_RDWR, 0600, &attr));
    OK(mq_unlink(own_name("limits3")));
}

static void permissions(void)
{
    if (geteuid() != 0)
        SKIP("not root: no other users to be");
    umask(0);
    const char *name = own_name("permissions");
    mqd_t queue = FD(mq_open(name, O_CREAT | O_RDWR, 0604, NULL));
    pid_t child = fork();
    if (child == 0) {
        OK(setgroups(0, NULL));
        OK(setresgid(12345, 12345, 12345));
        OK(setresuid(12345, 12345, 12345));
        CHECK_ERR(mq_open(name, O_RDWR), EACCES);
        CHECK_ERR(mq_open(name, O_WRONLY), EACCES);
        FD(mq_open(name, O_RDONLY));
        CHECK_ERR(mq_unlink(name), EACCES); /* the C library makes it of EPERM */
        _exit(0);
    }
    JOIN(child);
    OK(mq_unlink(name));
    OK(mq_close(queue));
}

static void as_user(uid_t user)
{
    OK(setgroups(0, NULL));
    OK(setresgid(user, user, user));
    OK(setresuid(user, user, user));
}

/* Where the queues of this process's namespace are shown; NULL: nowhere. That is a mount of the test's own where it may make one,
 * so that nobody else's directory is changed. A directory /dev/mqueue alone says nothing. */
static const char *shown_at(void)
{
    const char *place = "/dev/mqueue";
    if (unshare(CLONE_NEWNS | CLONE_NEWIPC) == 0) {
        OK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
        OK(mkdir("queues", 0755));
        place = mount("none", "queues", "mqueue", 0, NULL) == 0 ? "queues" : NULL;
    }
    struct statfs shown;
    return place && statfs(place, &shown) == 0 && shown.f_type == 0x19800202 ? place : NULL;
}

/* Names are made, found and removed as the directory's permissions say. */
static void directory(void)
{
    const char *place = geteuid() == 0 ? shown_at() : NULL;
    if (!place)
        SKIP("not root, or no file system of message queues is mounted");
    umask(0);
    char name[64], new[64];
    strcpy(name, own_name("directory"));
    strcpy(new, own_name("new"));
    mqd_t queue = FD(mq_open(name, O_CREAT | O_RDWR, 0666, NULL));
    OK(chmod(place, 0755));
    JOIN(CHILD({
        as_user(12345);
        CHECK_ERR(mq_open(new, O_CREAT | O_RDWR, 0600, NULL), EACCES);
        CHECK_ERR(mq_unlink(name), EACCES);
        CHECK_ERR(mq_unlink(new), ENOENT);
        OK(mq_close(mq_open(name, O_RDWR)));
        OK(mq_close(mq_open(name, O_RDWR | O_CREAT, 0600, NULL)));
    }));
    OK(chmod(place, 0766));
    JOIN(CHILD({
        as_user(12345);
        CHECK_ERR(mq_open(new, O_CREAT | O_RDWR, 0600, NULL), EACCES);
        CHECK_ERR(mq_unlink(name), EACCES);
    }));
    OK(chmod(place, 0777)); /* not sticky */
    JOIN(CHILD({
        as_user(12345);
        OK(mq_unlink(name));
    }));
    OK(chmod(place, 01777));
    OK(mq_close(queue));
}

/* The file system shows the same queues. */
static void files(void)
{
    const char *place = shown_at();
    char path[128], text[128] = "";
    if (!place)
        SKIP("no file system of message queues is mounted");
    const char *name = own_name("files");
    struct mq_attr attr = {.mq_maxmsg = 3, .mq_msgsize = 16};
    mqd_t queue = FD(mq_open(name, O_CREAT | O_RDWR | O_NONBLOCK, 0640, &attr));
    snprintf(path, sizeof path, "%s%s", place, name);
    if (access(path, F_OK) < 0) {
        OK(mq_unlink(name));
        SKIP("/dev/mqueue is of another namespace");
    }
    OK(mq_send(queue, "hello", 5, 0));
    int fd = FD(open(path, O_RDONLY));
    CHECK(read(fd, text, sizeof text - 1) > 0);
    CHECK(strncmp(text, "QSIZE:5 ", 8) == 0 && strstr(text, " NOTIFY:0 ") && strstr(text, " NOTIFY_PID:0"));
    OK(close(fd));
    struct stat info;
    OK(stat(path, &info));
    CHECK(S_ISREG(info.st_mode) && info.st_size == 80 && info.st_uid == geteuid());
    bool found = false;
    DIR *list = opendir(place);
    for (struct dirent *entry; (entry = readdir(list));)
        found |= strcmp(entry->d_name, name + 1) == 0;
    closedir(list);
    CHECK(found);
    /* It can be used, and goes, by its path as well. */
    fd = FD(open(path, O_RDWR));
    CHECK_EQ(mq_receive(fd, text, sizeof text, NULL), 5);
    OK(close(fd));
    OK(unlink(path));
    CHECK_ERR(mq_unlink(name), ENOENT);
    fd = FD(open(path, O_RDWR | O_CREAT, 0600));
    OK(mq_getattr(fd, &attr));
    CHECK(attr.mq_maxmsg > 0 && attr.mq_msgsize > 0);
    OK(mq_unlink(name));
    CHECK_ERR(open(path, O_RDONLY), ENOENT);
}

static void stream(void)
{
    enum { ROUNDS = 3000, SENDERS = 3 };
    mqd_t queue = make("stream", 8, 64, 0);
    pid_t senders[SENDERS];
    for (int i = 0; i < SENDERS; i++)
        senders[i] = CHILD(for (long n = 0; n < scaled(ROUNDS); n++) {
            long pair[2] = {i, n};
            OK(mq_send(queue, (char *)pair, sizeof pair, (unsigned)i));
        });
    long next[SENDERS] = {0};
    for (long n = 0; n < SENDERS * scaled(ROUNDS); n++) {
        long pair[8];
        unsigned priority;
        CHECK_EQ(mq_receive(queue, (char *)pair, sizeof pair, &priority), 16);
        CHECK_EQ(priority, pair[0]);
        CHECK_EQ(pair[1], next[pair[0]]++);
    }
    for (int i = 0; i < SENDERS; i++)
        JOIN(senders[i]);
    OK(mq_close(queue));
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(names),         TEST(messages),      TEST(waiting),     TEST(polling),   TEST(notify_signal),
        TEST(notify_thread), TEST(notify_and_exec), TEST(limits),    TEST(permissions), TEST(directory),
        TEST(files),         TEST(stream),
    };
    return RUN_TESTS("mq", tests, argc, argv);
}
