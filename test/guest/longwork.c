/*
 * Work whose amount a program chooses, one family of loops of the kernel after the other (qkernel/src/loops.rs), while another task
 * measures for how long it is kept from running.
 *
 *   longwork [-v] [--gap=MS] [--most=SECONDS] [--list] [FAMILY...]
 *   longwork --for-ever FAMILY       does the worst again and again, and measures nothing
 *
 * For each family a child does the worst that it can, as another user where it can, until it is done or SECONDS are over, and is killed
 * then. Meanwhile this process sleeps for 10 ms at a time and opens a directory. It fails when it did not come to run for MS
 * milliseconds in each of three tries, or when the child outlives its death for so long.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20, NAME = 250 };

static char place[64];
static char buffer[MIB];
static char name_of_255[NAME + 1];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Memory for the attack, in MiB: a sixth of what there is, 384 at most. */
static size_t mib(void)
{
    long pages = sysconf(_SC_AVPHYS_PAGES);
    size_t sixth = (size_t)pages / 6 / 256;
    return sixth > 384 ? 384 : sixth < 16 ? 16 : sixth;
}

static char *memory(size_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static char *touched(size_t bytes)
{
    char *p = memory(bytes);
    for (size_t i = 0; p && i < bytes; i += PAGE)
        p[i] = 1;
    return p;
}

static void read_all(const char *path)
{
    int fd = open(path, O_RDONLY);
    while (fd >= 0 && read(fd, buffer, sizeof buffer) > 0)
        ;
    if (fd >= 0)
        close(fd);
}

/* Goes down as many directories as there may be. */
static int go_deep(int most)
{
    int depth = 0;
    while (depth < most && mkdir(name_of_255, 0700) == 0 && chdir(name_of_255) == 0)
        depth++;
    return depth;
}

static void deep_maps(void)
{
    go_deep(4000);
    int fd = open("f", O_CREAT | O_RDWR, 0600);
    if (fd < 0)
        return;
    ftruncate(fd, 2 * PAGE);
    for (int i = 0; i < 60000; i++)
        if (mmap(NULL, PAGE, i & 1 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED)
            break;
    int maps = open("/proc/self/maps", O_RDONLY);
    (void)!read(maps, buffer, PAGE);
    (void)!pread(maps, buffer, PAGE, 1 << 30);
    read_all("/proc/self/smaps");
}

static void many_maps(void)
{
    char *p = memory(PAGE * 130000UL);
    for (size_t i = 0; i < 64000; i++)
        if (mprotect(p + 2 * i * PAGE, PAGE, PROT_READ) != 0)
            break;
    for (int i = 0; i < 20; i++) {
        read_all("/proc/self/maps");
        read_all("/proc/self/smaps");
        read_all("/proc/self/numa_maps");
        if (fork() == 0)
            _exit(0);
        mlockall(MCL_CURRENT);
        munlockall();
        mprotect(p, PAGE * 128000UL, PROT_READ | PROT_WRITE);
        for (size_t k = 0; k < 64000; k++)
            if (mprotect(p + 2 * k * PAGE, PAGE, PROT_READ) != 0)
                break;
    }
}

static void deep_paths(void)
{
    int top = open(".", O_RDONLY | O_DIRECTORY);
    go_deep(20000);
    char dots[PAGE];
    memset(dots, 0, sizeof dots);
    for (int i = 0; i < 1300; i++)
        memcpy(dots + 3 * i, "../", 3);
    struct stat st;
    char cwd[PAGE];
    for (int i = 0; i < 200; i++) {
        (void)!getcwd(cwd, sizeof cwd);
        stat(dots, &st);
        (void)!readlink("/proc/self/cwd", cwd, sizeof cwd);
        renameat(top, name_of_255, AT_FDCWD, "x");
        read_all("/proc/self/mountinfo");
        int fd = open("f", O_CREAT | O_RDWR, 0600);
        if (fd >= 0)
            close(fd);
    }
}

/* Mounts upon mounts, and mounts in mounts (for who may mount). */
static void mounts(void)
{
    /* Where there are namespaces nobody else sees them. */
    if (unshare(CLONE_NEWNS) == 0)
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    mkdir("m", 0700);
    mkdir("n", 0700);
    for (int i = 0; i < 2000; i++)
        if (mount("none", "m", "tmpfs", 0, "size=4k") != 0)
            break;
    char path[PAGE] = "n";
    for (int i = 0; i < 1500; i++)
        if (mount("n", "n", NULL, MS_BIND | MS_REC, NULL) != 0 || i == 10)
            break;
    char ups[PAGE] = "";
    for (int i = 0; i < 700; i++)
        strcat(ups, "m/../");
    struct stat st;
    for (int i = 0; i < 100; i++) {
        stat(ups, &st);
        stat(path, &st);
        read_all("/proc/self/mounts");
        read_all("/proc/self/mountinfo");
    }
    umount2("n", MNT_DETACH);
    for (int i = 0; i < 2000; i++)
        umount2("m", MNT_DETACH);
}

static void vectors_of(const char *path, int flags, bool writes)
{
    static struct iovec v[1024];
    char *p = memory(2 * MIB);
    for (int i = 0; i < 1024; i++)
        v[i] = (struct iovec){p, 2 * MIB};
    for (int i = 0; i < 6; i++)
        if (fork() == 0) {
            int fd = open(path, flags);
            (void)!(writes ? writev(fd, v, 1024) : readv(fd, v, 1024));
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
}

static void random_bytes(void) { vectors_of("/dev/urandom", O_RDONLY, false); }
static void zeros(void) { vectors_of("/dev/zero", O_RDONLY, false); }
static void nothing(void) { vectors_of("/dev/null", O_WRONLY, true); }

static void random_call(void)
{
    char *p = memory(512UL * MIB);
    for (int i = 0; i < 4; i++)
        (void)!getrandom(p, 512UL * MIB > 33554431 ? 33554431 : 512UL * MIB, 0);
}

static void forks(void)
{
    size_t bytes = mib() * MIB;
    char *p = touched(bytes);
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (size_t k = 0; k < bytes / 8; k += PAGE)
                p[k] = 2;
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

static void pages(void)
{
    size_t bytes = mib() * MIB;
    for (int i = 0; i < 6; i++) {
        char *p = touched(bytes);
        if (!p)
            return;
        static unsigned char there[1 << 18];
        mprotect(p, bytes, PROT_READ);
        mprotect(p, bytes, PROT_READ | PROT_WRITE);
        for (size_t at = 0; at < bytes; at += PAGE * sizeof there)
            mincore(p + at, bytes - at < PAGE * sizeof there ? bytes - at : PAGE * sizeof there, there);
        msync(p, bytes, MS_SYNC);
        madvise(p, bytes / 2, MADV_DONTNEED);
        madvise(p, bytes / 2, MADV_POPULATE_WRITE);
        mlock(p, bytes);
        char *q = mremap(p, bytes, bytes + PAGE, MREMAP_MAYMOVE);
        if (q != MAP_FAILED)
            munmap(q, bytes + PAGE);
    }
}

static void end_of_process(void)
{
    for (int i = 0; i < 6; i++) {
        if (fork() == 0) {
            touched(mib() * MIB);
            if (i & 1)
                execl("/bin/true", "true", (char *)NULL);
            _exit(0);
        }
        wait(NULL);
    }
}

static void memory_files(void)
{
    size_t bytes = mib() * MIB / 2;
    int a = memfd_create("a", 0), b = memfd_create("b", 0);
    for (int i = 0; i < 4; i++) {
        if (fallocate(a, 0, 0, (off_t)bytes) != 0)
            return;
        lseek(a, 0, SEEK_SET);
        lseek(b, 0, SEEK_SET);
        loff_t from = 0, to = 0;
        while (copy_file_range(a, &from, b, &to, bytes, 0) > 0)
            ;
        off_t at = 0;
        while (sendfile(b, a, &at, bytes) > 0)
            ;
        char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a, 0);
        if (p != MAP_FAILED)
            for (size_t k = 0; k < bytes; k += PAGE)
                p[k] = 3;
        fallocate(a, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes / 2);
        ftruncate(a, 0);
        ftruncate(b, 0);
        ftruncate(a, 1L << 50);
        lseek(a, 1, SEEK_DATA);
        lseek(a, 1, SEEK_HOLE);
        ftruncate(a, 0);
        if (p != MAP_FAILED)
            munmap(p, bytes);
    }
}

static void most_descriptors(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void descriptors(void)
{
    most_descriptors();
    int fd = eventfd(0, 0), last = fd;
    while (last < 400000) {
        int next = dup(fd);
        if (next < 0)
            break;
        last = next;
    }
    struct pollfd *all = calloc((size_t)last + 1, sizeof *all);
    for (int i = 0; i <= last; i++)
        all[i] = (struct pollfd){i, POLLIN, 0};
    for (int i = 0; i < 8; i++) {
        poll(all, (nfds_t)last, 0);
        if (fork() == 0)
            _exit(0);
        if (fork() == 0) {
            close_range(3, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */);
            execl("/bin/true", "true", (char *)NULL);
            _exit(0);
        }
        while (wait(NULL) > 0)
            ;
    }
    read_all("/proc/self/status");
    close_range(3, ~0U, 0);
}

static void epoll_sets(void)
{
    most_descriptors();
    int set = epoll_create1(0), fd = eventfd(1, 0), n = 0;
    for (; n < 100000; n++) {
        int next = dup(fd);
        struct epoll_event e = {EPOLLIN, {.fd = next}};
        if (next < 0 || epoll_ctl(set, EPOLL_CTL_ADD, next, &e) != 0)
            break;
    }
    struct epoll_event *out = calloc(100000, sizeof *out);
    uint64_t one = 1;
    for (int i = 0; i < 20; i++) {
        epoll_wait(set, out, 100000, 0);
        (void)!write(fd, &one, 8);
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set);
        read_all(path);
    }
    close(set);
}

static void file_locks(void)
{
    int fd = open("locks", O_CREAT | O_RDWR, 0600);
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    for (int i = 0; i < 30000; i++) {
        l.l_start = 2 * i;
        if (fcntl(fd, F_SETLK, &l) != 0)
            break;
    }
    for (int i = 0; i < 40; i++) {
        pid_t child = fork();
        if (child == 0) {
            l = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 0};
            for (int k = 0; k < 20; k++)
                fcntl(fd, F_GETLK, &l);
            fcntl(fd, F_SETLK, &l);
            _exit(0);
        }
        read_all("/proc/locks");
        waitpid(child, NULL, 0);
    }
    l = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(fd, F_SETLK, &l);
}

static uint32_t futex_words[2];

static void *wait_on_futex(void *arg)
{
    (void)arg;
    syscall(SYS_futex, &futex_words[0], 0, 0, NULL, NULL, 0);
    return NULL;
}

static void futexes(void)
{
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    for (int i = 0; i < 3000; i++) {
        pthread_t t;
        if (pthread_create(&t, &small, wait_on_futex, NULL) != 0)
            break;
    }
    usleep(200000);
    for (int i = 0; i < 2000; i++) {
        syscall(SYS_futex, &futex_words[i & 1], 3 /* REQUEUE */, 0, INT32_MAX, &futex_words[!(i & 1)], 0);
        if (i % 100 == 0)
            read_all("/proc/self/status");
    }
    syscall(SYS_futex, &futex_words[0], 1, INT32_MAX, NULL, NULL, 0);
    syscall(SYS_futex, &futex_words[1], 1, INT32_MAX, NULL, NULL, 0);
}

static void processes(void)
{
    signal(SIGUSR1, SIG_IGN);
    for (int i = 0; i < 1500; i++) {
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pause();
            _exit(0);
        }
        if (child < 0)
            break;
    }
    for (int i = 0; i < 300; i++) {
        kill(0, SIGUSR1);
        setpriority(PRIO_PGRP, 0, 1);
        getpriority(PRIO_USER, getuid());
        read_all("/proc/loadavg");
        int dir = open("/proc", O_RDONLY | O_DIRECTORY);
        while (syscall(SYS_getdents64, dir, buffer, sizeof buffer) > 0)
            ;
        close(dir);
    }
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    while (wait(NULL) > 0)
        ;
}

static void directory(void)
{
    char name[32];
    for (int i = 0; i < 60000; i++) {
        snprintf(name, sizeof name, "f%d", i);
        int fd = open(name, O_CREAT | O_RDWR, 0600);
        if (fd < 0)
            break;
        close(fd);
    }
    for (int i = 0; i < 10; i++) {
        int dir = open(".", O_RDONLY | O_DIRECTORY);
        while (syscall(SYS_getdents64, dir, buffer, sizeof buffer) > 0)
            ;
        lseek(dir, 0, SEEK_END);
        close(dir);
    }
}

static void links(void)
{
    char target[PAGE];
    memset(target, 0, sizeof target);
    for (int i = 0; i < 1300; i++)
        memcpy(target + 3 * i, "s/.", 3);
    for (int i = 0; i < 1900; i++)
        memcpy(target + 2 * i, "./", 2);
    target[3800] = 0;
    strcat(target, "l1");
    symlink(".", "s");
    char from[16];
    for (int i = 0; i < 39; i++) {
        snprintf(from, sizeof from, "l%d", i);
        snprintf(target + 3800, 16, "l%d", i + 1);
        symlink(target, from);
    }
    struct stat st;
    for (int i = 0; i < 300; i++)
        stat("l0", &st);
}

static void sockets(void)
{
    most_descriptors();
    for (int i = 0; i < 60000; i++)
        if (socket(AF_UNIX, SOCK_DGRAM, 0) < 0)
            break;
    int pair[2];
    socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair);
    int most = 64 * MIB;
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
    for (int i = 0; i < 100000; i++)
        if (send(pair[0], "", 0, 0) < 0 && errno != EAGAIN)
            break;
    for (int i = 0; i < 10; i++) {
        read_all("/proc/net/unix");
        read_all("/proc/net/sockstat");
    }
}

static void semaphores(void)
{
    int set = semget(IPC_PRIVATE, 32000, 0600);
    if (set < 0)
        return;
    unsigned short *values = calloc(32000, sizeof *values);
    struct sembuf ops[500];
    for (int i = 0; i < 500; i++)
        ops[i] = (struct sembuf){(unsigned short)(i * 60), 1, SEM_UNDO};
    for (int i = 0; i < 400; i++) {
        semctl(set, 0, SETALL, values);
        semop(set, ops, 500);
        semctl(set, 0, GETALL, values);
        memset(values, 0, 32000 * sizeof *values);
        read_all("/proc/sysvipc/sem");
    }
    semctl(set, 0, IPC_RMID);
}

static void timers(void)
{
    signal(SIGUSR1, SIG_IGN);
    struct sigevent e = {.sigev_notify = SIGEV_NONE};
    for (int i = 0; i < 20000; i++) {
        timer_t t;
        if (timer_create(CLOCK_MONOTONIC, &e, &t) != 0)
            break;
        struct itimerspec at = {{0, 1000000}, {0, 1000000}};
        timer_settime(t, 0, &at, NULL);
    }
    for (int i = 0; i < 20; i++) {
        usleep(50000);
        read_all("/proc/self/timers");
    }
}

static void watches(void)
{
    int queue = inotify_init1(IN_NONBLOCK);
    char name[32];
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "w%d", i);
        int fd = open(name, O_CREAT | O_RDWR, 0600);
        if (fd < 0 || inotify_add_watch(queue, name, IN_ALL_EVENTS) < 0)
            break;
        close(fd);
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", queue);
    for (int i = 0; i < 10; i++)
        read_all(path);
    close(queue);
}

static void other_memory(void)
{
    static struct iovec mine[1024], theirs[1024];
    char *p = memory(4 * MIB), *q = memory(4 * MIB);
    for (int i = 0; i < 1024; i++) {
        mine[i] = (struct iovec){p, 2 * MIB};
        theirs[i] = (struct iovec){q, 2 * MIB};
    }
    for (int i = 0; i < 3; i++)
        (void)!process_vm_readv(getpid(), mine, 1024, theirs, 1024, 0);
}

static void arguments(void)
{
    static char *args[20001];
    for (int i = 0; i < 20000; i++)
        args[i] = "an argument that is about a hundred bytes long, so that all together come near two megabytes....";
    for (int i = 0; i < 60; i++) {
        if (fork() == 0) {
            execv("/bin/true", args);
            _exit(0);
        }
        wait(NULL);
    }
}

static const struct family {
    const char *name;
    void (*attack)(void);
    bool as_root;
} families[] = {
    {"deep-maps", deep_maps, false},     {"many-maps", many_maps, false},     {"deep-paths", deep_paths, false},
    {"mounts", mounts, true},            {"random", random_bytes, false},     {"getrandom", random_call, false},
    {"zeros", zeros, false},             {"null", nothing, false},            {"forks", forks, false},
    {"pages", pages, false},             {"end", end_of_process, false},      {"memory-files", memory_files, false},
    {"descriptors", descriptors, false}, {"epoll", epoll_sets, false},        {"locks", file_locks, false},
    {"futexes", futexes, false},         {"processes", processes, false},     {"directory", directory, false},
    {"links", links, false},             {"sockets", sockets, false},         {"semaphores", semaphores, false},
    {"timers", timers, false},           {"watches", watches, false},         {"other-memory", other_memory, false},
    {"arguments", arguments, false},
};

static pid_t begin(const struct family *family)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!family->as_root && getuid() == 0 && (setgroups(0, NULL) || setresgid(1000, 1000, 1000) || setresuid(1000, 1000, 1000)))
        _exit(1);
    if (chdir(place) != 0)
        _exit(1);
    family->attack();
    _exit(0);
}

/* The longest time for which this process did not come to run, in seconds. */
static double watch(const struct family *family, double most)
{
    double start = now(), last = start, worst = 0;
    pid_t child = begin(family);
    bool killed = false, ended = false;
    while (!ended) {
        usleep(10000);
        int fd = open("/tmp", O_RDONLY | O_DIRECTORY);
        close(fd);
        double at = now();
        if (at - last > worst)
            worst = at - last;
        last = at;
        if (!killed && at - start > most) {
            kill(-child, SIGKILL);
            killed = true;
            start = at;
        }
        ended = waitpid(child, NULL, WNOHANG) == child;
        if (killed && at - start > 30) {
            printf("not ok %s outlives its death\n", family->name);
            exit(1);
        }
    }
    kill(-child, SIGKILL);
    double dying = now() - (killed ? start : now());
    return dying > worst ? dying : worst;
}

static void clean(void)
{
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/rm", "rm", "-rf", place, (char *)NULL);
        _exit(1);
    }
    waitpid(child, NULL, 0);
}

static void make_place(void)
{
    /* In memory, where directories may be nested deeply. */
    snprintf(place, sizeof place, "%s/longwork.XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(place) || chmod(place, 0777) != 0) {
        perror(place);
        exit(1);
    }
}

static bool passes(const struct family *family, double gap, double most, bool verbose)
{
    for (int try = 0; try < 3; try++) {
        make_place();
        double worst = watch(family, most);
        clean();
        if (verbose)
            fprintf(stderr, "%-14s %5.0f ms\n", family->name, worst * 1e3);
        if (worst < gap)
            return true;
    }
    return false;
}

int main(int count, char **args)
{
    double gap = 1.0, most = 4;
    bool verbose = false, named = false, ok = true;
    memset(name_of_255, 'a', NAME);
    if (count == 3 && strcmp(args[1], "--for-ever") == 0)
        for (size_t k = 0; k < sizeof families / sizeof *families; k++)
            if (strcmp(args[2], families[k].name) == 0) {
                make_place();
                if (chdir(place) != 0)
                    return 1;
                puts("begins");
                fflush(stdout);
                for (;;)
                    families[k].attack();
            }
    for (int i = 1; i < count; i++) {
        if (strcmp(args[i], "-v") == 0)
            verbose = true;
        else if (strncmp(args[i], "--gap=", 6) == 0)
            gap = atof(args[i] + 6) / 1e3;
        else if (strncmp(args[i], "--most=", 7) == 0)
            most = atof(args[i] + 7);
        else if (strcmp(args[i], "--list") == 0) {
            for (size_t k = 0; k < sizeof families / sizeof *families; k++)
                puts(families[k].name);
            return 0;
        } else
            named = true;
    }
    for (size_t k = 0; k < sizeof families / sizeof *families; k++) {
        bool wanted = !named;
        for (int i = 1; i < count; i++)
            wanted |= strcmp(args[i], families[k].name) == 0;
        if (wanted && !passes(&families[k], gap, most, verbose)) {
            printf("not ok %s\n", families[k].name);
            ok = false;
        }
    }
    if (ok)
        puts("ok longwork");
    return !ok;
}
