/* What calls and options answer that came to Linux late, that few programs use, or that only the host's owner may use. */
#include "check.h"
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <termios.h>

static const char *self;

static int pidfd_open_(pid_t pid, unsigned flags)
{
    return (int)syscall(434, pid, flags);
}

static int pidfd_signal(int fd, int signal, siginfo_t *info, unsigned flags)
{
    return (int)syscall(424, fd, signal, info, flags);
}

static short polled(int fd)
{
    struct pollfd wanted = {fd, POLLIN, 0};
    CHECK(poll(&wanted, 1, 0) >= 0);
    return wanted.revents;
}

/* --- descriptors of processes and threads --- */

enum { THREAD = O_EXCL, TO_THREAD = 1, TO_PROCESS = 2, TO_GROUP = 4 };

static void descriptors_of_processes(void)
{
    struct stat one, other;
    int fd = FD(pidfd_open_(getpid(), 0)), again = FD(pidfd_open_(getpid(), O_NONBLOCK));
    OK(fstat(fd, &one));
    OK(fstat(again, &other));
    if (kernel_is(6, 9))
        CHECK_EQ(one.st_ino, other.st_ino);
    pid_t child = CHILD({});
    int ended = FD(pidfd_open_(child, 0));
    OK(fstat(ended, &other));
    struct pollfd end = {ended, POLLIN, 0};
    CHECK_EQ(poll(&end, 1, PATIENCE_MS), 1);
    CHECK_EQ(end.revents, POLLIN);
    JOIN(child);
    if (kernel_is(6, 9)) {
        CHECK(one.st_ino != other.st_ino);
        CHECK_EQ(polled(ended), POLLIN | POLLHUP);
    }
    CHECK_ERR(pidfd_signal(ended, 0, NULL, 0), ESRCH);
    CHECK_ERR(pidfd_open_(getpid(), O_APPEND), EINVAL);
}

static atomic_int go_on;
static _Atomic pid_t ids[2];
static _Atomic pid_t signalled;
static atomic_int code;

static void on_signal(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    atomic_store(&code, info->si_code);
    atomic_store(&signalled, gettid());
}

static void *stay(void *number)
{
    atomic_store(&ids[(long)number], gettid());
    AWAIT(atomic_load(&go_on) > (long)number, 500);
    return NULL;
}

static void descriptors_of_threads(void)
{
    if (!kernel_is(6, 9)) {
        CHECK_ERR(pidfd_open_(getpid(), THREAD), EINVAL);
        SKIP("PIDFD_THREAD is newer than this kernel");
    }
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    OK(sigaction(SIGUSR1, &action, NULL));
    pthread_t threads[2];
    for (long i = 0; i < 2; i++)
        PT(pthread_create(&threads[i], NULL, stay, (void *)i));
    AWAIT(atomic_load(&ids[0]) != 0 && atomic_load(&ids[1]) != 0, 500);
    CHECK_EQ(pidfd_open_(ids[0], 0), -1);
    CHECK(errno == EINVAL || errno == ENOENT); /* The latter since Linux 6.15. */
    int fds[2] = {FD(pidfd_open_(ids[0], THREAD)), FD(pidfd_open_(ids[1], THREAD | O_NONBLOCK))};
    int own = FD(pidfd_open_(getpid(), THREAD)), process = FD(pidfd_open_(getpid(), 0));
    CHECK_EQ(polled(fds[0]), 0);
    for (int i = 0; i < 2; i++) {
        signalled = 0;
        OK(pidfd_signal(fds[i], SIGUSR1, NULL, 0));
        AWAIT(atomic_load(&signalled) != 0, 500);
        CHECK_EQ(signalled, ids[i]);
        CHECK_EQ(code, SI_TKILL);
    }
    OK(pidfd_signal(fds[0], SIGUSR1, NULL, TO_PROCESS));
    AWAIT(atomic_load(&code) == SI_USER, 500);
    OK(pidfd_signal(process, SIGUSR1, NULL, TO_THREAD));
    CHECK_EQ(signalled, getpid());
    CHECK_EQ(code, SI_TKILL);
    CHECK_ERR(pidfd_signal(process, SIGUSR1, NULL, TO_THREAD | TO_PROCESS), EINVAL);
    CHECK_ERR(pidfd_signal(process, SIGUSR1, NULL, 8), EINVAL);
    OK(setpgid(0, 0));
    JOIN(CHILD({
        signalled = 0;
        OK(pidfd_signal(process, SIGUSR1, NULL, TO_GROUP));
        CHECK_EQ(signalled, getpid());
    }));
    siginfo_t info = {.si_signo = SIGUSR1, .si_code = SI_USER};
    OK(pidfd_signal(process, SIGUSR1, &info, TO_PROCESS));
    CHECK_ERR(pidfd_signal(process, SIGUSR1, &info, TO_GROUP), EPERM);
    /* The end of one thread is that of no other. */
    atomic_store(&go_on, 1);
    PT(pthread_join(threads[0], NULL));
    struct pollfd end = {fds[0], POLLIN, 0};
    CHECK_EQ(poll(&end, 1, PATIENCE_MS), 1);
    AWAIT(polled(fds[0]) == (POLLIN | POLLHUP), 500);
    CHECK_EQ(polled(fds[0]), POLLIN | POLLHUP);
    CHECK_EQ(polled(fds[1]) | polled(own) | polled(process), 0);
    CHECK_ERR(pidfd_signal(fds[0], SIGUSR1, NULL, 0), ESRCH);
    atomic_store(&go_on, 2);
    PT(pthread_join(threads[1], NULL));
}

struct clone_arguments {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

static long clone3_(uint64_t flags, uint64_t exit_signal, uint64_t cgroup, size_t size)
{
    struct clone_arguments arguments = {.flags = flags, .exit_signal = exit_signal, .cgroup = cgroup};
    long pid = syscall(435, &arguments, size);
    if (pid == 0)
        _exit(0);
    if (pid > 0)
        JOIN((pid_t)pid);
    return pid;
}

static void flags_of_clone3(void)
{
    const uint64_t into_cgroup = 0x200000000, parent = 0x8000, detached = 0x400000;
    CHECK(clone3_(0, SIGCHLD, 0, 88) > 0);
    CHECK(clone3_(0, SIGCHLD, 0, 64) > 0);
    CHECK_ERR(clone3_(SIGCHLD, 0, 0, 88), EINVAL);
    CHECK_ERR(clone3_(1, SIGCHLD, 0, 88), EINVAL);
    CHECK_ERR(clone3_(detached, SIGCHLD, 0, 88), EINVAL);
    CHECK_ERR(clone3_(parent, SIGCHLD, 0, 88), EINVAL);
    CHECK_ERR(clone3_(0, 65, 0, 88), EINVAL);
    CHECK_ERR(clone3_(into_cgroup, SIGCHLD, 1000, 88), EBADF);
    CHECK_ERR(clone3_(into_cgroup, SIGCHLD, FD(open("/dev/null", O_RDONLY)), 88), EBADF);
    CHECK_ERR(clone3_(into_cgroup, SIGCHLD, 1UL << 32, 88), EINVAL);
    CHECK_ERR(clone3_(into_cgroup, SIGCHLD, 1000, 80), EINVAL);
}

/* --- prctl --- */

enum {
    MCE_KILL = 33,
    MCE_KILL_GET = 34,
    GET_SPECULATION = 52,
    SET_SPECULATION = 53,
    SET_IO_FLUSHER = 57,
    GET_IO_FLUSHER = 58,
    SET_MDWE = 65,
    GET_MDWE = 66,
    SET_MEMORY_MERGE = 67,
    GET_MEMORY_MERGE = 68,
    GET_AUXV = 0x41555856
};

static void no_gain_of_execution(void)
{
    if (!kernel_is(6, 3))
        SKIP("PR_SET_MDWE is newer than this kernel");
    const int write_execute = PROT_READ | PROT_WRITE | PROT_EXEC, anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    void *before = mmap(NULL, 8192, PROT_READ | PROT_EXEC, anonymous, -1, 0);
    void *plain = mmap(NULL, 4096, PROT_READ | PROT_WRITE, anonymous, -1, 0);
    CHECK(before != MAP_FAILED && plain != MAP_FAILED);
    CHECK_ERR(prctl(SET_MDWE, 4, 0, 0, 0), EINVAL);
    CHECK_ERR(prctl(SET_MDWE, 2, 0, 0, 0), EINVAL);
    CHECK_ERR(prctl(SET_MDWE, 1, 1, 0, 0), EINVAL);
    OK(prctl(GET_MDWE, 0, 0, 0, 0));
    if (kernel_is(6, 6))
        JOIN(CHILD({
            OK(prctl(SET_MDWE, 3, 0, 0, 0));
            CHECK_EQ(prctl(GET_MDWE, 0, 0, 0, 0), 3);
            JOIN(CHILD(OK(prctl(GET_MDWE, 0, 0, 0, 0))));
        }));
    OK(prctl(SET_MDWE, 0, 0, 0, 0));
    OK(prctl(SET_MDWE, 1, 0, 0, 0));
    OK(prctl(SET_MDWE, 1, 0, 0, 0));
    CHECK_ERR(prctl(SET_MDWE, 0, 0, 0, 0), EPERM);
    CHECK_EQ(prctl(GET_MDWE, 0, 0, 0, 0), 1);
    CHECK_ERR((long)mmap(NULL, 4096, write_execute, anonymous, -1, 0), EACCES);
    void *text = mmap(NULL, 4096, PROT_READ | PROT_EXEC, anonymous, -1, 0);
    CHECK(text != MAP_FAILED);
    OK(mprotect(text, 4096, PROT_READ | PROT_EXEC));
    CHECK_ERR(mprotect(text, 4096, write_execute), EACCES);
    OK(mprotect(text, 4096, PROT_READ));
    CHECK_ERR(mprotect(text, 4096, PROT_READ | PROT_EXEC), EACCES);
    CHECK_ERR(mprotect(plain, 4096, PROT_READ | PROT_EXEC), EACCES);
    OK(mprotect(plain, 4096, PROT_READ));
    OK(mprotect(before, 4096, PROT_EXEC));
    JOIN(CHILD({
        CHECK_EQ(prctl(GET_MDWE, 0, 0, 0, 0), 1);
        CHECK_ERR(mprotect(before, 8192, write_execute), EACCES);
        execl(self, self, "--mdwe", NULL);
    }));
}

static void kept_options(void)
{
    OK(prctl(MCE_KILL, 1, 1, 0, 0));
    CHECK_EQ(prctl(MCE_KILL_GET, 0, 0, 0, 0), 1);
    JOIN(CHILD(CHECK_EQ(prctl(MCE_KILL_GET, 0, 0, 0, 0), 1)));
    OK(prctl(MCE_KILL, 1, 0, 0, 0));
    OK(prctl(MCE_KILL_GET, 0, 0, 0, 0));
    CHECK_ERR(prctl(MCE_KILL, 1, 3, 0, 0), EINVAL);
    CHECK_ERR(prctl(MCE_KILL, 0, 1, 0, 0), EINVAL);
    CHECK_ERR(prctl(MCE_KILL, 2, 0, 0, 0), EINVAL);
    OK(prctl(MCE_KILL, 0, 0, 0, 0));
    CHECK_EQ(prctl(MCE_KILL_GET, 0, 0, 0, 0), 2);
    CHECK_ERR(prctl(MCE_KILL_GET, 1, 0, 0, 0), EINVAL);
    CHECK(prctl(GET_SPECULATION, 0, 0, 0, 0) >= 0);
    CHECK(prctl(GET_SPECULATION, 1, 0, 0, 0) >= 0);
    CHECK_ERR(prctl(GET_SPECULATION, 77, 0, 0, 0), ENODEV);
    CHECK_ERR(prctl(SET_SPECULATION, 77, 4, 0, 0), ENODEV);
    CHECK_ERR(prctl(GET_SPECULATION, 0, 1, 0, 0), EINVAL);
    CHECK_ERR(prctl(SET_SPECULATION, 0, 4, 1, 0), EINVAL);
    if (prctl(GET_IO_FLUSHER, 0, 0, 0, 0) == 0) { /* With CAP_SYS_RESOURCE. */
        OK(prctl(SET_IO_FLUSHER, 1, 0, 0, 0));
        CHECK_EQ(prctl(GET_IO_FLUSHER, 0, 0, 0, 0), 1);
        CHECK_ERR(prctl(SET_IO_FLUSHER, 2, 0, 0, 0), EINVAL);
        OK(prctl(SET_IO_FLUSHER, 0, 0, 0, 0));
    }
    JOIN(CHILD({
        if (geteuid() == 0)
            OK(setresuid(1000, 1000, 1000));
        CHECK_ERR(prctl(GET_IO_FLUSHER, 0, 0, 0, 0), EPERM);
        CHECK_ERR(prctl(SET_IO_FLUSHER, 1, 0, 0, 0), EPERM);
    }));
    if (!kernel_is(6, 4))
        return;
    OK(prctl(GET_MEMORY_MERGE, 0, 0, 0, 0));
    if (prctl(SET_MEMORY_MERGE, 1, 0, 0, 0) == 0) { /* Not on a kernel without it. */
        CHECK_EQ(prctl(GET_MEMORY_MERGE, 0, 0, 0, 0), 1);
        JOIN(CHILD(CHECK_EQ(prctl(GET_MEMORY_MERGE, 0, 0, 0, 0), 1)));
        OK(prctl(SET_MEMORY_MERGE, 0, 0, 0, 0));
        OK(prctl(GET_MEMORY_MERGE, 0, 0, 0, 0));
        CHECK_ERR(prctl(SET_MEMORY_MERGE, 1, 1, 0, 0), EINVAL);
    }
    unsigned long auxv[128] = {0};
    long bytes = prctl(GET_AUXV, auxv, sizeof auxv, 0, 0);
    CHECK(bytes > 100 && bytes < (long)sizeof auxv);
    bool found = false;
    for (int i = 0; i + 1 < 128 && auxv[i] != AT_NULL; i += 2)
        found |= auxv[i] == AT_RANDOM && auxv[i + 1] == getauxval(AT_RANDOM);
    CHECK(found);
    CHECK_EQ(prctl(GET_AUXV, auxv, 8, 0, 0), bytes);
    CHECK_ERR(prctl(GET_AUXV, 8, 16, 0, 0), EFAULT);
    CHECK_ERR(prctl(GET_AUXV, auxv, 16, 1, 0), EINVAL);
}

/* --- scheduling and clocks --- */

struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
    uint32_t util_min, util_max;
    char more[4096];
};

static void sizes_of_attributes(void)
{
    enum { RESET = 1, KEEP_POLICY = 8, KEEP_PARAMS = 16 };
    static struct attributes a;
    CHECK_EQ(syscall(SYS_sched_getattr, 0, &a, 56, 0), 0);
    CHECK_EQ(a.size, 56);
    CHECK_EQ(syscall(SYS_sched_getattr, 0, &a, 48, 0), 0);
    CHECK_EQ(a.size, 48);
    CHECK_EQ(syscall(SYS_sched_getattr, 0, &a, 4096, 0), 0);
    CHECK_EQ(a.size, 56);
    CHECK_ERR(syscall(SYS_sched_getattr, 0, &a, 47, 0), EINVAL);
    CHECK_ERR(syscall(SYS_sched_getattr, 0, &a, 4097, 0), EINVAL);
    const uint32_t wrong[] = {1, 47, 4097};
    for (int i = 0; i < 3; i++) {
        a = (struct attributes){.size = wrong[i]};
        CHECK_ERR(syscall(SYS_sched_setattr, 0, &a, 0), E2BIG);
        CHECK_EQ(a.size, 56);
    }
    a = (struct attributes){.size = 64, .more = {1}};
    CHECK_ERR(syscall(SYS_sched_setattr, 0, &a, 0), E2BIG);
    CHECK_EQ(a.size, 56);
    a = (struct attributes){.size = 64, .nice = 3};
    OK(syscall(SYS_sched_setattr, 0, &a, 0));
    CHECK_EQ(getpriority(PRIO_PROCESS, 0), 3);
    a = (struct attributes){.size = 0, .nice = 4};
    OK(syscall(SYS_sched_setattr, 0, &a, 0));
    CHECK_EQ(getpriority(PRIO_PROCESS, 0), 4);
    a = (struct attributes){.size = 56, .policy = SCHED_BATCH, .nice = 9, .flags = KEEP_PARAMS};
    OK(syscall(SYS_sched_setattr, 0, &a, 0));
    CHECK_EQ(getpriority(PRIO_PROCESS, 0), 4);
    CHECK_EQ(sched_getscheduler(0), SCHED_OTHER);
    a = (struct attributes){.size = 56, .policy = SCHED_BATCH, .nice = 5};
    OK(syscall(SYS_sched_setattr, 0, &a, 0));
    a = (struct attributes){.size = 56, .policy = SCHED_OTHER, .nice = 9, .flags = KEEP_POLICY};
    OK(syscall(SYS_sched_setattr, 0, &a, 0));
    CHECK_EQ(getpriority(PRIO_PROCESS, 0), 9);
    CHECK_EQ(sched_getscheduler(0), SCHED_BATCH);
    a = (struct attributes){.size = 56, .policy = SCHED_OTHER, .nice = 9, .flags = RESET};
    OK(syscall(SYS_sched_setattr, 0, &a, 0));
    CHECK_EQ(sched_getscheduler(0), SCHED_OTHER | SCHED_RESET_ON_FORK);
    a = (struct attributes){.size = 56, .flags = 0x80};
    CHECK_ERR(syscall(SYS_sched_setattr, 0, &a, 0), EINVAL);
    a = (struct attributes){.size = 56, .policy = 0x80000000};
    CHECK_ERR(syscall(SYS_sched_setattr, 0, &a, 0), EINVAL);
}

static void clocks_to_sleep_by(void)
{
    struct timespec no_time = {0, 0};
    const clockid_t good[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_TAI};
    for (int i = 0; i < 4; i++)
        OK(clock_nanosleep(good[i], 0, &no_time, NULL));
    const clockid_t bad[] = {CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC_COARSE};
    for (int i = 0; i < 3; i++)
        CHECK_EQ(clock_nanosleep(bad[i], 0, &no_time, NULL), EOPNOTSUPP);
    CHECK_ERR(syscall(SYS_clock_nanosleep, CLOCK_THREAD_CPUTIME_ID, 0, &no_time, NULL), EOPNOTSUPP);
    CHECK_ERR(syscall(SYS_clock_nanosleep, -2, 0, &no_time, NULL), EINVAL);
    CHECK_ERR(syscall(SYS_clock_nanosleep, 10, 0, &no_time, NULL), EINVAL);
    CHECK_ERR(syscall(SYS_clock_nanosleep, 99, 0, &no_time, NULL), EINVAL);
}

static void places_of_timers(void)
{
    JOIN(CHILD({
        if (geteuid() == 0)
            OK(setresuid(54321, 54321, 54321)); /* Whose signals nobody else has any of. */
        struct rlimit two = {2, 2};
        OK(setrlimit(RLIMIT_SIGPENDING, &two));
        sigset_t blocked;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGRTMIN);
        OK(sigprocmask(SIG_BLOCK, &blocked, NULL));
        while (sigqueue(getpid(), SIGRTMIN, (union sigval){0}) == 0)
            ;
        CHECK_EQ(errno, EAGAIN);
        timer_t timer;
        CHECK_ERR(timer_create(CLOCK_MONOTONIC, NULL, &timer), EAGAIN);
    }));
}

/* --- calls --- */

static void keys_of_protection(void)
{
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    OK(syscall(SYS_pkey_mprotect, page, 4096, PROT_READ, -1));
    CHECK_EQ(syscall(SYS_pkey_mprotect, page, 4096, PROT_READ | PROT_WRITE, -1), 0);
    page[0] = 1;
    CHECK_ERR(syscall(SYS_pkey_mprotect, page, 4096, PROT_READ, 77), EINVAL);
    CHECK_ERR(syscall(SYS_pkey_alloc, 1, 0), EINVAL);
    CHECK_ERR(syscall(SYS_pkey_alloc, 0, 8), EINVAL);
    long key = syscall(SYS_pkey_alloc, 0, 0);
    if (key < 0) /* ENOSPC by the manual, where the processor has none. */
        CHECK(errno == ENOSPC || errno == EINVAL);
    else
        OK(syscall(SYS_pkey_free, key));
    CHECK_ERR(syscall(SYS_pkey_free, 77), EINVAL);
}

static void pages_of_files(void)
{
    enum { cachestat = 451 };
    uint64_t range[2] = {0, 0}, found[5];
    int fd = FD(memfd_create("pages", 0));
    OK(ftruncate(fd, 10 * 4096));
    CHECK_EQ(pwrite(fd, "x", 1, 0), 1);
    CHECK_EQ(pwrite(fd, "xx", 2, 5 * 4096 - 1), 2);
    if (syscall(cachestat, fd, range, found, 0) != 0) {
        CHECK_EQ(errno, ENOSYS);
        CHECK(!kernel_is(6, 5));
        return;
    }
    CHECK_EQ(found[0], 3);
    CHECK_EQ(found[2] | found[3] | found[4], 0);
    range[0] = 4096;
    range[1] = 4 * 4096;
    OK(syscall(cachestat, fd, range, found, 0));
    CHECK_EQ(found[0], 1);
    range[0] = 1 << 30;
    OK(syscall(cachestat, fd, range, found, 0));
    CHECK_EQ(found[0], 0);
    /* Holes cost nothing. */
    OK(ftruncate(fd, 1L << 50));
    range[0] = range[1] = 0;
    OK(syscall(cachestat, fd, range, found, 0));
    CHECK_EQ(found[0], 3);
    CHECK_ERR(syscall(cachestat, fd, range, found, 1), EINVAL);
    CHECK_ERR(syscall(cachestat, fd, 8, found, 0), EFAULT);
    CHECK_ERR(syscall(cachestat, fd, range, 8, 0), EFAULT);
    CHECK_ERR(syscall(cachestat, -1, range, found, 0), EBADF);
    if (geteuid() != 0)
        return;
    /* What others do with a file that one may only read is not told. */
    fd = FD(open("roots", O_RDWR | O_CREAT, 0644));
    int readable = FD(open("roots", O_RDONLY));
    JOIN(CHILD({
        OK(setresuid(1000, 1000, 1000));
        OK(syscall(cachestat, fd, range, found, 0));
        long told = syscall(cachestat, readable, range, found, 0);
        CHECK(told == -1 ? errno == EPERM : !kernel_is(6, 12));
    }));
}

static void memory_of_the_killed(void)
{
    enum { process_mrelease = 448 };
    int fd = FD(pidfd_open_(getpid(), 0));
    CHECK_ERR(syscall(process_mrelease, fd, 1), EINVAL);
    CHECK_ERR(syscall(process_mrelease, fd, 0), EINVAL);
    CHECK_ERR(syscall(process_mrelease, -1, 0), EBADF);
    CHECK_ERR(syscall(process_mrelease, FD(open("/dev/null", O_RDONLY)), 0), EBADF);
    pid_t child = CHILD({});
    siginfo_t info;
    OK(waitid(P_PID, child, &info, WEXITED | WNOWAIT));
    CHECK_ERR(syscall(process_mrelease, FD(pidfd_open_(child, 0)), 0), ESRCH);
    JOIN(child);
}

static void old_calls(void)
{
    long count = syscall(SYS_sysfs, 3, 0, 0);
    if (count < 0) { /* A kernel that was built without it. */
        CHECK_EQ(errno, ENOSYS);
    } else {
        char name[64];
        CHECK(count > 3);
        long at = syscall(SYS_sysfs, 1, "tmpfs", 0);
        CHECK(at >= 0 && at < count);
        OK(syscall(SYS_sysfs, 2, at, name));
        CHECK(strcmp(name, "tmpfs") == 0);
        CHECK_ERR(syscall(SYS_sysfs, 1, "nonesuch", 0), EINVAL);
        CHECK_ERR(syscall(SYS_sysfs, 2, count, name), EINVAL);
        CHECK_ERR(syscall(SYS_sysfs, 4, 0, 0), EINVAL);
    }
    char table[256];
    memset(table, 1, sizeof table);
    long bytes = syscall(SYS_modify_ldt, 0, table, sizeof table);
    if (bytes < 0) {
        CHECK_EQ(errno, ENOSYS);
    } else {
        CHECK_EQ(bytes, 0);
        CHECK_EQ(syscall(SYS_modify_ldt, 2, table, sizeof table), 128);
        CHECK_EQ(table[0] | table[127], 0);
        CHECK_EQ(table[128], 1);
    }
}

/* Or a kernel that was built without the call. */
#define REFUSED(want, ...)                                                                                             \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        CHECK_EQ(syscall(__VA_ARGS__), -1);                                                                            \
        if (errno != ENOSYS)                                                                                           \
            CHECK_EQ(errno, want);                                                                                     \
    } while (0)

static void what_needs_capabilities(void)
{
    if (geteuid() == 0)
        OK(setresuid(1000, 1000, 1000));
    REFUSED(EPERM, SYS_acct, NULL);
    REFUSED(EPERM, SYS_swapon, "/nonesuch", 0);
    REFUSED(EINVAL, SYS_swapon, "/nonesuch", 0x80000);
    REFUSED(EPERM, SYS_swapoff, "/nonesuch");
    REFUSED(EPERM, SYS_reboot, 0, 0, 0, NULL);
    REFUSED(EPERM, SYS_init_module, NULL, 0, "");
    REFUSED(EPERM, SYS_finit_module, -1, "", 0);
    REFUSED(EPERM, SYS_delete_module, "nonesuch", O_NONBLOCK);
    REFUSED(EPERM, SYS_kexec_load, 0, 0, NULL, 0);
    REFUSED(EPERM, SYS_kexec_file_load, -1, -1, 0, NULL, 0);
    REFUSED(EINVAL, SYS_quotactl, 0x800000 << 8 | 3, NULL, 0, NULL);
    REFUSED(EPERM, SYS_vhangup);
    REFUSED(EPERM, SYS_iopl, 3);
    REFUSED(EINVAL, SYS_iopl, 4);
    REFUSED(EPERM, SYS_ioperm, 0x80, 1, 1);
    REFUSED(EINVAL, SYS_ioperm, 65536, 1, 1);
    CHECK(syscall(SYS_iopl, 0) == 0 || errno == ENOSYS);
    CHECK(syscall(SYS_ioperm, 0x80, 1, 0) == 0 || errno == ENOSYS);
    CHECK(syscall(SYS_bpf, 0, NULL, 0) == -1);
    CHECK(syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0) == -1);
}

static void handles(void)
{
    struct {
        uint32_t bytes;
        int32_t type;
        char handle[128];
    } handle = {.bytes = 128};
    int mount;
    CHECK_ERR(syscall(SYS_name_to_handle_at, AT_FDCWD, ".", &handle, &mount, 0x8000), EINVAL);
    CHECK_ERR(syscall(SYS_name_to_handle_at, AT_FDCWD, "nonesuch", &handle, &mount, 0), ENOENT);
    CHECK_ERR(syscall(SYS_name_to_handle_at, AT_FDCWD, "", &handle, &mount, 0), ENOENT);
    CHECK_ERR(syscall(SYS_name_to_handle_at, -1, "", &handle, &mount, AT_EMPTY_PATH), EBADF);
    handle.bytes = 129;
    CHECK_ERR(syscall(SYS_name_to_handle_at, AT_FDCWD, ".", &handle, &mount, 0), EINVAL);
    handle.bytes = 128;
    if (syscall(SYS_name_to_handle_at, AT_FDCWD, "/proc/self/fd", &handle, &mount, 0) == -1)
        CHECK_EQ(errno, EOPNOTSUPP);
    if (geteuid() == 0)
        OK(setresuid(1000, 1000, 1000));
    /* Since Linux 6.13 others may, for what is theirs. */
    CHECK_EQ(syscall(SYS_open_by_handle_at, AT_FDCWD, &handle, O_RDONLY), -1);
}

/* --- signals --- */

static void flags_of_actions(void)
{
    struct {
        void *handler;
        uint64_t flags;
        void *restorer;
        uint64_t mask;
    } action = {.handler = SIG_IGN, .flags = SA_NODEFER | 0x800 | 0x400}, kept;
    OK(syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8));
    OK(syscall(SYS_rt_sigaction, SIGUSR1, NULL, &kept, 8));
    if (kernel_is(5, 11)) /* SA_EXPOSE_TAGBITS is known, and SA_UNSUPPORTED is never. */
        CHECK_EQ(kept.flags & ~0x4000000UL, SA_NODEFER | 0x800);
}

/* --- memory --- */

static void holes_under_mappings(void)
{
    char text[3 * 4096];
    struct stat info;
    memset(text, 'x', sizeof text);
    int fd = FD(open("file", O_RDWR | O_CREAT, 0600));
    CHECK_EQ(write(fd, text, sizeof text), sizeof text);
    char *map = mmap(NULL, sizeof text, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK_EQ(map[4096], 'x');
    if (madvise(map + 4096, 4096, MADV_REMOVE) != 0) {
        CHECK_EQ(errno, EOPNOTSUPP); /* A file system without holes. */
    } else {
        CHECK_EQ(map[4096], 0);
        CHECK(map[4095] == 'x' && map[8192] == 'x');
        CHECK_EQ(pread(fd, text, 3, 4095), 3);
        CHECK(text[0] == 'x' && text[1] == 0);
        map[4097] = 'y';
        CHECK_EQ(pread(fd, text, 1, 4097), 1);
        CHECK_EQ(text[0], 'y');
    }
    OK(fstat(fd, &info));
    CHECK_EQ(info.st_size, sizeof text);
    OK(mlock(map, 4096));
    CHECK_ERR(msync(map, 4096, MS_INVALIDATE), EBUSY);
    OK(msync(map, 4096, MS_SYNC));
    OK(msync(map + 4096, 4096, MS_INVALIDATE));
    OK(munlock(map, 4096));
    OK(msync(map, 4096, MS_INVALIDATE | MS_SYNC));
}

static void droppable_memory(void)
{
    enum { DROPPABLE = 8 };
    const int prot = PROT_READ | PROT_WRITE;
    if (!kernel_is(6, 11)) {
        CHECK_ERR((long)mmap(NULL, 4096, prot, DROPPABLE | MAP_ANONYMOUS, -1, 0), EINVAL);
        return;
    }
    char *page = mmap(NULL, 4096, prot, DROPPABLE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    *page = 'x';
    JOIN(CHILD({
        CHECK_EQ(*page, 0);
        *page = 'y';
    }));
    CHECK(*page == 'x' || *page == 0);
    OK(munmap(page, 4096));
    CHECK_ERR((long)mmap(NULL, 4096, prot, DROPPABLE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0), EINVAL);
    CHECK_ERR((long)mmap(NULL, 4096, prot, DROPPABLE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0), EINVAL);
    CHECK_ERR((long)mmap(NULL, 4096, prot, DROPPABLE, FD(open("file", O_RDWR | O_CREAT, 0600)), 0), EINVAL);
}

/* --- sockets and terminals --- */

static void options_of_the_network(void)
{
    enum { MAX_PACING_RATE = 47, INCOMING_CPU = 49, INCOMING_NAPI_ID = 56 };
    int fd = FD(socket(AF_UNIX, SOCK_STREAM, 0)), number = 0;
    uint64_t rate = 0;
    socklen_t length = sizeof rate;
    OK(getsockopt(fd, SOL_SOCKET, MAX_PACING_RATE, &rate, &length));
    CHECK(length == sizeof rate && rate == UINT64_MAX);
    OK(setsockopt(fd, SOL_SOCKET, MAX_PACING_RATE, &(uint64_t){1000}, sizeof(uint64_t)));
    OK(setsockopt(fd, SOL_SOCKET, MAX_PACING_RATE, &(int){2000}, sizeof(int)));
    OK(getsockopt(fd, SOL_SOCKET, MAX_PACING_RATE, &rate, &length));
    CHECK_EQ(rate, 2000);
    length = sizeof number;
    OK(getsockopt(fd, SOL_SOCKET, MAX_PACING_RATE, &number, &length));
    CHECK_EQ(number, 2000);
    OK(getsockopt(fd, SOL_SOCKET, INCOMING_CPU, &number, &length));
    CHECK_EQ(number, -1);
    OK(setsockopt(fd, SOL_SOCKET, INCOMING_CPU, &(int){2}, sizeof(int)));
    OK(getsockopt(fd, SOL_SOCKET, INCOMING_CPU, &number, &length));
    CHECK_EQ(number, 2);
    OK(getsockopt(fd, SOL_SOCKET, INCOMING_NAPI_ID, &number, &length));
    OK(number);
    CHECK_ERR(setsockopt(fd, SOL_SOCKET, INCOMING_NAPI_ID, &number, length), ENOPROTOOPT);
    char name[16];
    length = sizeof name;
    OK(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length));
    CHECK_EQ(length, 0);
}

static int at_mark(int fd)
{
    int answer = -1;
    OK(ioctl(fd, SIOCATMARK, &answer));
    return answer;
}

/* What a receive without MSG_OOB yields. */
static void check_bytes(int fd, const char *wanted, int flags)
{
    char text[64];
    ssize_t got = recv(fd, text, sizeof text, flags | MSG_DONTWAIT);
    if (got != (ssize_t)strlen(wanted) || memcmp(text, wanted, (size_t)got) != 0)
        FAIL("received %zd bytes, %.*s, want %s", got, got > 0 ? (int)got : 0, text, wanted);
}

static volatile sig_atomic_t urged;

static void on_urgent(int signal)
{
    (void)signal;
    urged++;
}

static void urgent_bytes(void)
{
    int ends[2];
    char byte;
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    int to = ends[0], from = ends[1];
    if (send(to, "x", 1, MSG_OOB) != 1)
        SKIP("this kernel was built without urgent bytes of Unix sockets");
    CHECK_EQ(recv(from, &byte, 1, MSG_OOB), 1);
    CHECK_EQ(byte, 'x');
    if (!kernel_is(6, 12))
        SKIP("what follows an urgent byte was mended up to Linux 6.12");
    CHECK_ERR(recv(from, &byte, 1, MSG_OOB), EINVAL);
    CHECK_ERR(recv(from, &byte, 1, MSG_DONTWAIT), EAGAIN);
    CHECK_ERR(send(to, "", 0, MSG_OOB), EOPNOTSUPP);
    OK(at_mark(from));
    /* A receive ends at the mark, and the next one passes it. */
    CHECK_EQ(send(to, "abc", 3, MSG_OOB), 3);
    CHECK_EQ(send(to, "def", 3, 0), 3);
    struct pollfd urgent = {from, POLLIN | POLLPRI, 0};
    CHECK_EQ(poll(&urgent, 1, 0), 1);
    CHECK_EQ(urgent.revents, POLLIN | POLLPRI);
    OK(at_mark(from));
    check_bytes(from, "ab", MSG_PEEK);
    check_bytes(from, "ab", MSG_WAITALL);
    CHECK_EQ(at_mark(from), 1);
    CHECK_EQ(recv(from, &byte, 1, MSG_OOB | MSG_PEEK), 1);
    CHECK_EQ(recv(from, &byte, 1, MSG_OOB), 1);
    CHECK_EQ(byte, 'c');
    CHECK_EQ(poll(&urgent, 1, 0), 1);
    CHECK_EQ(urgent.revents, POLLIN);
    check_bytes(from, "def", 0);
    /* What is not asked for is lost. */
    CHECK_EQ(send(to, "gh", 2, MSG_OOB), 2);
    CHECK_EQ(send(to, "i", 1, 0), 1);
    check_bytes(from, "g", 0);
    check_bytes(from, "i", 0);
    CHECK_ERR(recv(from, &byte, 1, MSG_OOB), EINVAL);
    /* There is one at a time: the former one becomes as others. */
    CHECK_EQ(send(to, "j", 1, MSG_OOB), 1);
    CHECK_EQ(send(to, "k", 1, MSG_OOB), 1);
    CHECK_EQ(send(to, "l", 1, 0), 1);
    check_bytes(from, "j", 0);
    CHECK_EQ(recv(from, &byte, 1, MSG_OOB), 1);
    CHECK_EQ(byte, 'k');
    check_bytes(from, "l", 0);
    /* In line it is one of the others, behind the mark. */
    OK(setsockopt(from, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int)));
    CHECK_EQ(send(to, "mn", 2, MSG_OOB), 2);
    CHECK_EQ(send(to, "o", 1, 0), 1);
    CHECK_ERR(recv(from, &byte, 1, MSG_OOB), EINVAL);
    check_bytes(from, "m", 0);
    CHECK_EQ(at_mark(from), 1);
    check_bytes(from, "no", 0);
    OK(setsockopt(from, SOL_SOCKET, SO_OOBINLINE, &(int){0}, sizeof(int)));
    /* The owner gets a signal, and many bytes in a row do not fill the queue. */
    struct sigaction action = {.sa_handler = on_urgent, .sa_flags = SA_RESTART};
    OK(sigaction(SIGURG, &action, NULL));
    OK(fcntl(from, F_SETOWN, getpid()));
    for (int i = 1; i <= 200; i++) {
        CHECK_EQ(send(to, "p", 1, MSG_OOB), 1);
        AWAIT(urged >= i, 100);
        CHECK_EQ(urged, i);
        CHECK_EQ(recv(from, &byte, 1, MSG_OOB), 1);
    }
    CHECK_EQ(send(to, "q", 1, 0), 1);
    check_bytes(from, "q", 0);
    CHECK_EQ(urged, 200);
    /* A write waits for room, and its last byte is the urgent one. */
    static char many[1000000], all[sizeof many];
    memset(many, 'r', sizeof many);
    many[sizeof many - 1] = 's';
    pid_t sender = CHILD(CHECK_EQ(send(to, many, sizeof many, MSG_OOB), sizeof many));
    size_t got = 0;
    while (got < sizeof many - 1) {
        ssize_t more = recv(from, all + got, sizeof many - got, 0);
        CHECK(more > 0);
        got += (size_t)more;
    }
    JOIN(sender);
    CHECK_EQ(recv(from, &byte, 1, MSG_OOB), 1);
    CHECK_EQ(byte, 's');
    OK(close(to));
    CHECK_EQ(recv(from, &byte, 1, 0), 0);
    int packets[2];
    OK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets));
    CHECK_ERR(send(packets[0], "x", 1, MSG_OOB), EOPNOTSUPP);
    CHECK_ERR(recv(packets[0], &byte, 1, MSG_OOB), EOPNOTSUPP);
}

static void ticks_of_timeouts(void)
{
    int fd = FD(socket(AF_UNIX, SOCK_STREAM, 0));
    struct timeval time = {3, 1};
    socklen_t length = sizeof time;
    OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
    OK(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, &length));
    CHECK_EQ(time.tv_sec, 3);
    CHECK(time.tv_usec >= 1000 && time.tv_usec <= 10000);
}

static void terminals(void)
{
    int controller = FD(posix_openpt(O_RDWR | O_NOCTTY));
    OK(grantpt(controller));
    OK(unlockpt(controller));
    char name[64], text[16];
    snprintf(name, sizeof name, "%s", ptsname(controller));
    int terminal = FD(open(name, O_RDWR | O_NOCTTY));
    struct termios settings;
    OK(tcgetattr(terminal, &settings));
    /* Another open is refused unless one may anything. */
    OK(ioctl(terminal, TIOCEXCL));
    pid_t others = CHILD({
        if (geteuid() == 0)
            OK(setresuid(1000, 1000, 1000));
        CHECK(open(name, O_RDWR | O_NOCTTY) < 0 && (errno == EBUSY || errno == EACCES));
        CHECK(ioctl(terminal, TIOCSTI, "x") < 0 && (errno == EIO || errno == EPERM));
    });
    JOIN(others);
    if (geteuid() == 0) {
        int again = open(name, O_RDWR | O_NOCTTY);
        CHECK(again >= 0 || errno == EBUSY); /* Without CAP_SYS_ADMIN. */
        if (again >= 0) {
            OK(close(again));
            OK(ioctl(terminal, TIOCSTI, "a"));
            OK(ioctl(terminal, TIOCSTI, "\n"));
            CHECK_EQ(read(terminal, text, sizeof text), 2);
            CHECK(memcmp(text, "a\n", 2) == 0);
            CHECK_EQ(read(controller, text, sizeof text), 3);
        }
    }
    OK(ioctl(terminal, TIOCNXCL));
    /* The keys of flow control go to the other side. */
    OK(tcflow(terminal, TCIOFF));
    CHECK_EQ(read(controller, text, sizeof text), 1);
    CHECK_EQ(text[0], 023);
    OK(tcflow(terminal, TCION));
    CHECK_EQ(read(controller, text, sizeof text), 1);
    CHECK_EQ(text[0], 021);
    /* A byte that marks begin with is doubled, and echoed once. */
    struct termios marked = settings;
    marked.c_iflag |= PARMRK;
    marked.c_iflag &= ~ISTRIP;
    marked.c_lflag &= ~ICANON;
    marked.c_lflag |= ECHO;
    OK(tcsetattr(terminal, TCSANOW, &marked));
    CHECK_EQ(write(controller, "\377b", 2), 2);
    size_t got = 0;
    while (got < 3) {
        ssize_t more = read(terminal, text + got, 3 - got);
        CHECK(more > 0);
        got += more;
    }
    CHECK(memcmp(text, "\377\377b", 3) == 0);
    for (got = 0; got < 2;) {
        ssize_t more = read(controller, text + got, sizeof text - got);
        CHECK(more > 0);
        got += more;
    }
    CHECK(got == 2 && memcmp(text, "\377b", 2) == 0);
    OK(tcsetattr(terminal, TCSANOW, &settings));
    /* In packet mode the controller that edits the lines hears of changes. */
    OK(ioctl(controller, TIOCPKT, &(int){1}));
    marked = settings;
    marked.c_lflag |= EXTPROC;
    OK(tcsetattr(terminal, TCSANOW, &marked));
    CHECK_EQ(read(controller, text, sizeof text), 1);
    CHECK_EQ(text[0], TIOCPKT_IOCTL);
    OK(tcsetattr(terminal, TCSANOW, &settings));
    CHECK_EQ(read(controller, text, sizeof text), 1);
    CHECK_EQ(text[0], TIOCPKT_IOCTL);
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 2 && strcmp(argv[1], "--mdwe") == 0)
        return prctl(GET_MDWE, 0, 0, 0, 0) != 1;
    static const struct test tests[] = {
        TEST(descriptors_of_processes), TEST(descriptors_of_threads), TEST(flags_of_clone3),
        TEST(no_gain_of_execution),     TEST(kept_options),           TEST(sizes_of_attributes),
        TEST(clocks_to_sleep_by),       TEST(places_of_timers),       TEST(keys_of_protection),
        TEST(pages_of_files),           TEST(memory_of_the_killed),   TEST(old_calls),
        TEST(what_needs_capabilities),  TEST(handles),
        TEST(flags_of_actions),
        TEST(holes_under_mappings),     TEST(droppable_memory),       TEST(ticks_of_timeouts),
        TEST(terminals),                TEST(urgent_bytes),           TEST(options_of_the_network),
    };
    return RUN_TESTS("answers_newer", tests, argc, argv);
}
