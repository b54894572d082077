/*
 * Makes the kernel keep as much for it as it will, one kind of thing at a time.  usage: kernelmem WHAT [DIR]
 *
 * Each attack goes on until it is refused honestly (ENOMEM, EAGAIN, ENOSPC, ENOLCK, EMFILE, ENFILE, ENOBUFS or
 * ETOOMANYREFS) or has taken as much as anybody would; then it prints "full WHAT", and keeps what it has until its standard
 * input ends. It may be killed meanwhile, and nothing else may be.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

/* Ends the attack: `what` failed for a good reason. Any other one is an error. */
static void refused(const char *what)
{
    switch (errno) {
    case ENOMEM: case EAGAIN: case ENOSPC: case ENOLCK: case EMFILE: case ENFILE: case ENOBUFS: case ETOOMANYREFS:
        return;
    }
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

static void many_descriptors(void)
{
    struct rlimit limit = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
        return;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static char *area_of(size_t bytes, int prot)
{
    char *area = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED) {
        refused("mmap");
        return NULL;
    }
    return area;
}

/* Calls of poll with a million entries each, at once. */
static struct pollfd *entries;
static const nfds_t ENTRIES = 1000000;

static void *poller(void *unused)
{
    (void)unused;
    if (poll(entries, ENTRIES, 2000) < 0 && errno != EINVAL)
        refused("poll");
    return NULL;
}

static void polls(void)
{
    many_descriptors();
    int event = eventfd(0, 0);
    entries = mmap(NULL, ENTRIES * sizeof *entries, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (entries == MAP_FAILED)
        return refused("mmap");
    for (nfds_t i = 0; i < ENTRIES; i++)
        entries[i] = (struct pollfd){.fd = event, .events = POLLIN};
    pthread_t threads[12];
    int made = 0;
    while (made < 12 && pthread_create(&threads[made], NULL, poller, NULL) == 0)
        made++;
    for (int i = 0; i < made; i++)
        pthread_join(threads[i], NULL);
}

/* Mounts, which outlive their makers: copies of a tree that doubles, and file systems of their own. */
static void mounts(void)
{
    /* Who watches any file is told when a file system's last mount goes, so that each that goes costs a look at the others. */
    if (inotify_add_watch(inotify_init(), ".", IN_CREATE) < 0)
        return refused("inotify_add_watch");
    if (mkdir("tree", 0700) != 0 || mkdir("tree/in", 0700) != 0)
        return refused("mkdir");
    while (mount("tree", "tree/in", NULL, MS_BIND | MS_REC, NULL) == 0)
        ;
    refused("mount");
    if (mkdir("m", 0700) != 0)
        return refused("mkdir");
    while (mount("none", "m", "tmpfs", 0, NULL) == 0)
        ;
    refused("mount");
}

/* Page tables: one page of a memfd at strides of `stride`. */
static void tables(size_t stride)
{
    int fd = memfd_create("page", 0);
    if (fd < 0 || ftruncate(fd, PAGE) != 0)
        return refused("memfd");
    for (uintptr_t at = 1UL << 32; at + PAGE < 0x7e0000000000UL; at += stride) {
        char *page = mmap((void *)at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
        if (page == MAP_FAILED && errno == EEXIST)
            continue;
        if (page == MAP_FAILED)
            return refused("mmap");
        *(volatile char *)page = 1;
    }
}

static void tables_2m(void) { tables(2UL << 20); }
static void tables_1g(void) { tables(1UL << 30); }

/* The same, of one mapping that is touched here and there: nothing but page faults, which cannot be refused. */
static void tables_touched(void)
{
    char *area = area_of(1UL << 42, PROT_READ | PROT_WRITE);
    for (size_t at = 0; area && at < 1UL << 42; at += 2UL << 20)
        (void)*(volatile char *)(area + at);
}

/* The same, in several processes. */
static void tables_sparse(void)
{
    for (int i = 0; i < 4; i++)
        if (fork() == 0)
            break;
    tables_touched();
}

static void mappings(void)
{
    for (int i = 0; i < 64; i++) {
        pid_t child = fork();
        if (child < 0)
            return refused("fork");
        if (child > 0)
            return;
        char *area = area_of(2UL * 65000 * PAGE, PROT_NONE);
        for (size_t k = 0; area && k < 65000; k++)
            if (mprotect(area + 2 * k * PAGE, PAGE, PROT_READ) != 0) {
                refused("mprotect");
                break;
            }
    }
}

static void pipes(void)
{
    int ends[2];
    static char data[65536];
    many_descriptors();
    while (pipe2(ends, O_NONBLOCK) == 0)
        if (write(ends[1], data, sizeof data) < 0)
            break;
    refused("pipe");
}

static void empty_pipes(void)
{
    int ends[2];
    many_descriptors();
    for (int i = 0; i < 64; i++) {
        while (pipe(ends) == 0)
            ;
        refused("pipe");
        pid_t child = fork();
        if (child < 0)
            return refused("fork");
        if (child > 0)
            return;
        close_range(3, ~0U, 0);
    }
}

static void sockets(void)
{
    int ends[2];
    static char data[4096];
    many_descriptors();
    while (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends) == 0)
        while (send(ends[0], data, sizeof data, 0) > 0)
            ;
    refused("socketpair");
}

/* Messages without a byte, which cost all the same. */
static void datagrams(void)
{
    int ends[2];
    many_descriptors();
    while (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends) == 0)
        while (send(ends[0], "", 0, 0) == 0)
            ;
    refused("socketpair");
}

static void epolls(void)
{
    many_descriptors();
    int event = eventfd(1, 0), made = 0;
    for (;;) {
        int set = epoll_create1(0);
        if (set < 0)
            return refused("epoll_create1");
        for (int fd = 0; fd < 100000; fd++) {
            struct epoll_event wanted = {.events = EPOLLIN};
            if (dup2(event, 1000 + fd % 20000) < 0)
                return refused("dup2");
            if (epoll_ctl(set, EPOLL_CTL_ADD, 1000 + fd % 20000, &wanted) != 0 && errno != EEXIST)
                return refused("epoll_ctl");
            if (fd >= 20000)
                break;
        }
        if (++made > 2000)
            return;
    }
}

static void locks(void)
{
    char name[] = "kernelmem.XXXXXX";
    many_descriptors();
    for (int files = 0; files < 2000; files++) {
        strcpy(name, "kernelmem.XXXXXX");
        int fd = mkstemp(name);
        if (fd < 0)
            return refused("mkstemp");
        unlink(name);
        for (off_t at = 0; at < 1000; at += 2) {
            struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
            if (fcntl(fd, F_SETLK, &lock) != 0)
                return refused("fcntl");
        }
    }
}

static void files(void)
{
    char name[300];
    for (int i = 0; i < 2000000; i++) {
        snprintf(name, sizeof name, "%0200d", i);
        int fd = open(name, O_CREAT | O_WRONLY, 0600);
        if (fd < 0)
            return refused("open");
        close(fd);
    }
}

static void directories(void)
{
    for (int i = 0; i < 1000000; i++)
        if (mkdir("deeper-and-deeper", 0700) != 0 || chdir("deeper-and-deeper") != 0)
            return refused("mkdir");
}

static void attributes(void)
{
    static char value[60000];
    char name[300];
    for (int i = 0; i < 100000; i++) {
        snprintf(name, sizeof name, "x%d", i);
        int fd = open(name, O_CREAT | O_WRONLY, 0600);
        if (fd < 0)
            return refused("open");
        if (fsetxattr(fd, "user.big", value, sizeof value, 0) != 0)
            return refused("fsetxattr");
        close(fd);
    }
}

/* Names that are not there. */
static void absent(void)
{
    char name[300];
    struct stat stat_of;
    for (int i = 0; i < 60000; i++) {
        snprintf(name, sizeof name, "/usr/%0240d", i);
        if (stat(name, &stat_of) == 0 || errno != ENOENT)
            return refused("stat");
    }
}

static void timers(void)
{
    for (int i = 0; i < 64; i++) {
        struct sigevent how = {.sigev_notify = SIGEV_NONE};
        timer_t timer;
        for (int k = 0; k < 4000 && timer_create(CLOCK_MONOTONIC, &how, &timer) == 0; k++) {
            struct itimerspec when = {.it_value = {.tv_sec = 1000000}};
            timer_settime(timer, 0, &when, NULL);
        }
        pid_t child = fork();
        if (child < 0)
            return refused("fork");
        if (child > 0)
            return;
    }
}

static void signals(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    struct rlimit limit = {1 << 24, 1 << 24};
    setrlimit(RLIMIT_SIGPENDING, &limit);
    for (int i = 0; i < 10000000; i++) {
        union sigval value = {.sival_int = i};
        if (sigqueue(getpid(), SIGRTMIN, value) != 0)
            return refused("sigqueue");
    }
}

static void *sleeper(void *unused)
{
    (void)unused;
    while (pause() < 0)
        ;
    return NULL;
}

static void threads(void)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN);
    for (int i = 0; i < 100000; i++) {
        pthread_t thread;
        errno = pthread_create(&thread, &attr, sleeper, NULL);
        if (errno != 0)
            return refused("pthread_create");
    }
}

/* The arguments of a program, in many processes at once. */
static void arguments(void)
{
    size_t count = 180000;
    char **list = calloc(count + 1, sizeof *list);
    for (size_t i = 0; list && i < count; i++)
        list[i] = "";
    if (!list)
        return;
    for (int i = 0; i < 16; i++) {
        pid_t child = fork();
        if (child < 0)
            refused("fork");
        if (child != 0)
            continue;
        execv("/nonexistent", list);
        execv("/bin/true", list);
        _exit(0);
    }
}

/* Descriptors on their way that nobody takes. */
static void rights(void)
{
    int ends[2], event = eventfd(0, 0);
    many_descriptors();
    while (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0) {
        char control[CMSG_SPACE(sizeof event)] = {0}, byte = 0;
        struct iovec piece = {&byte, 1};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
                                 .msg_controllen = sizeof control};
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof event);
        memcpy(CMSG_DATA(head), &event, sizeof event);
        if (sendmsg(ends[0], &message, 0) < 0)
            break;
    }
    refused("sendmsg");
}

/* The texts that open files of /proc keep. */
static void texts(void)
{
    many_descriptors();
    char *area = area_of(2UL * 30000 * PAGE, PROT_NONE), byte;
    for (size_t k = 0; area && k < 30000; k++)
        if (mprotect(area + 2 * k * PAGE, PAGE, PROT_READ) != 0)
            break;
    for (;;) {
        int fd = open("/proc/self/maps", O_RDONLY);
        if (fd < 0)
            return refused("open");
        if (read(fd, &byte, 1) < 0)
            return refused("read");
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} ATTACKS[] = {
    {"polls", polls},         {"tables-2m", tables_2m},   {"tables-1g", tables_1g},
    {"tables-touched", tables_touched}, {"tables-sparse", tables_sparse}, {"mappings", mappings},   {"pipes", pipes},           {"empty-pipes", empty_pipes}, {"sockets", sockets},
    {"datagrams", datagrams}, {"epolls", epolls},         {"locks", locks},         {"files", files},
    {"directories", directories}, {"attributes", attributes}, {"absent", absent},   {"timers", timers},
    {"signals", signals},     {"threads", threads},       {"arguments", arguments}, {"rights", rights},
    {"texts", texts},         {"mounts", mounts},
};

int main(int argc, char **argv)
{
    if (argc > 2 && chdir(argv[2]) != 0)
        return 2;
    for (size_t i = 0; i < sizeof ATTACKS / sizeof *ATTACKS; i++) {
        if (argc < 2 || strcmp(argv[1], ATTACKS[i].name) != 0)
            continue;
        pid_t me = getpid();
        ATTACKS[i].run();
        char byte;
        if (getpid() == me)
            dprintf(1, "full %s\n", argv[1]);
        while (read(0, &byte, 1) > 0)
            ;
        _exit(0);
    }
    fprintf(stderr, "usage: kernelmem WHAT [DIR]\n");
    return 2;
}
