/* Small system calls that every program relies on without a thought. */
#include "check.h"
#include <limits.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/utsname.h>

static void identity(void)
{
    CHECK(getpid() > 0);
    CHECK_EQ(syscall(SYS_gettid), getpid());
    pid_t parent = getpid();
    pid_t pid = CHILD({
        CHECK_EQ(getppid(), parent);
        CHECK(getpid() != parent);
        CHECK_EQ(getsid(0), getsid(parent));
        CHECK_EQ(getpgrp(), getpgid(parent));
    });
    JOIN(pid);
    uid_t real, effective, saved;
    OK(getresuid(&real, &effective, &saved));
    CHECK_EQ(real, getuid());
    CHECK_EQ(effective, geteuid());
    gid_t groups[256];
    CHECK(getgroups(256, groups) >= 0);
    CHECK_ERR(syscall(SYS_getpgid, -1), ESRCH);
    CHECK_ERR(kill(INT_MAX, 0), ESRCH);
}

static void names(void)
{
    struct utsname name;
    OK(uname(&name));
    CHECK(strcmp(name.sysname, "Linux") == 0);
    CHECK(strcmp(name.machine, "x86_64") == 0);
    int major = 0, minor = 0;
    CHECK_EQ(sscanf(name.release, "%d.%d", &major, &minor), 2);
    CHECK(major >= 4);
    char host[256];
    OK(gethostname(host, sizeof host));
    CHECK(strcmp(host, name.nodename) == 0);

    char long_name[] = "a-name-that-is-too-long", got[17] = {0};
    OK(prctl(PR_SET_NAME, long_name));
    OK(prctl(PR_GET_NAME, got));
    CHECK(strcmp(got, "a-name-that-is-") == 0);
    char text[64] = {0};
    int fd = FD(open("/proc/self/comm", O_RDONLY));
    CHECK_EQ(read(fd, text, sizeof text), 16);
    CHECK(strcmp(text, "a-name-that-is-\n") == 0);
    OK(close(fd));
    CHECK_ERR(prctl(PR_SET_NAME, (char *)8), EFAULT);
    CHECK_ERR(prctl(12345, 0), EINVAL);
    OK(prctl(PR_SET_DUMPABLE, 0));
    CHECK_EQ(prctl(PR_GET_DUMPABLE), 0);
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK_EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
}

static void working_directory(void)
{
    char start[PATH_MAX], now[PATH_MAX];
    CHECK(getcwd(start, sizeof start) == start);
    OK(mkdir("below", 0755));
    OK(chdir("below"));
    CHECK(getcwd(now, sizeof now) == now);
    CHECK(strncmp(now, start, strlen(start)) == 0 && strcmp(now + strlen(start), "/below") == 0);
    CHECK_EQ(syscall(SYS_getcwd, now, sizeof now), strlen(now) + 1);
    CHECK_ERR(syscall(SYS_getcwd, now, 3), ERANGE);
    char link[PATH_MAX] = {0};
    CHECK_EQ(readlink("/proc/self/cwd", link, sizeof link), strlen(now));
    CHECK(strcmp(link, now) == 0);
    OK(chdir(".."));
    int fd = FD(open("below", O_RDONLY | O_DIRECTORY));
    OK(fchdir(fd));
    CHECK(getcwd(link, sizeof link) != NULL && strcmp(link, now) == 0);
    OK(rmdir("../below"));
    CHECK_ERR(syscall(SYS_getcwd, link, sizeof link), ENOENT);
    CHECK_ERR(open("file", O_CREAT | O_WRONLY, 0644), ENOENT);
    OK(chdir(".."));
    CHECK_ERR(chdir("absent"), ENOENT);
    write_file("plain", "", 0644);
    CHECK_ERR(chdir("plain"), ENOTDIR);
    CHECK_ERR(fchdir(99), EBADF);

    mode_t old = umask(027);
    CHECK_EQ(umask(0777777), 027);
    CHECK_EQ(umask(old), 0777);
}

static void random_bytes(void)
{
    unsigned char first[64] = {0}, second[64] = {0};
    CHECK_EQ(getrandom(first, sizeof first, 0), sizeof first);
    CHECK_EQ(getrandom(second, sizeof second, GRND_NONBLOCK), sizeof second);
    CHECK(memcmp(first, second, sizeof first) != 0);
    int values = 0;
    for (int i = 0; i < 64; i++)
        values += first[i] != 0;
    CHECK(values > 32);
    CHECK_ERR(getrandom(first, sizeof first, 0x100), EINVAL);
    CHECK_ERR(syscall(SYS_getrandom, 8, 16, 0), EFAULT);
    int fd = FD(open("/dev/urandom", O_RDONLY));
    CHECK_EQ(read(fd, second, sizeof second), sizeof second);
    CHECK(memcmp(first, second, sizeof first) != 0);
    OK(close(fd));
}

static void system_information(void)
{
    struct sysinfo info;
    OK(sysinfo(&info));
    CHECK(info.totalram > 0 && info.freeram <= info.totalram);
    CHECK(info.uptime > 0 && info.procs > 0 && info.mem_unit >= 1);
    CHECK_ERR(syscall(SYS_sysinfo, 8), EFAULT);
    cpu_set_t set;
    CPU_ZERO(&set);
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof set, &set);
    CHECK(bytes > 0 && bytes % 8 == 0);
    CHECK(CPU_COUNT(&set) >= 1);
    CHECK(CPU_COUNT(&set) <= sysconf(_SC_NPROCESSORS_CONF));
    CHECK_ERR(syscall(SYS_sched_getaffinity, 0, 1, &set), EINVAL);
    unsigned cpu, node;
    OK(syscall(SYS_getcpu, &cpu, &node, NULL));
    CHECK(CPU_ISSET(cpu, &set));
    OK(sched_setaffinity(0, sizeof set, &set));
    OK(sched_yield());
    errno = 0;
    CHECK_EQ(getpriority(PRIO_PROCESS, 0), 0);
    OK(setpriority(PRIO_PROCESS, 0, 5));
    CHECK_EQ(getpriority(PRIO_PROCESS, 0), 5);
    CHECK_EQ(sched_getscheduler(0), SCHED_OTHER);
}

static void limits(void)
{
    struct rlimit limit, again;
    OK(getrlimit(RLIMIT_NOFILE, &limit));
    CHECK(limit.rlim_cur <= limit.rlim_max && limit.rlim_max >= 64);
    rlim_t old = limit.rlim_cur;
    limit.rlim_cur = 32;
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    OK(getrlimit(RLIMIT_NOFILE, &again));
    CHECK_EQ(again.rlim_cur, 32);
    CHECK_ERR(dup2(0, 32), EBADF);
    int count = 0, fd;
    while ((fd = dup(0)) >= 0)
        count++;
    CHECK_EQ(errno, EMFILE);
    CHECK(count > 0 && count < 32);
    JOIN(CHILD({
        OK(getrlimit(RLIMIT_NOFILE, &again));
        CHECK_EQ(again.rlim_cur, 32);
    }));
    limit.rlim_cur = limit.rlim_max + 1;
    if (limit.rlim_max != RLIM_INFINITY)
        CHECK_ERR(setrlimit(RLIMIT_NOFILE, &limit), EINVAL);
    limit.rlim_cur = old;
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    OK(prlimit(0, RLIMIT_CORE, NULL, &again));
    CHECK_ERR(prlimit(0, 99, NULL, &again), EINVAL);

    JOIN(CHILD({
        struct rlimit size = {8192, 8192};
        OK(setrlimit(RLIMIT_FSIZE, &size));
        signal(SIGXFSZ, SIG_IGN);
        int file = FD(open("limited", O_CREAT | O_RDWR, 0644));
        char page[4096] = {0};
        CHECK_EQ(pwrite(file, page, 4096, 6144), 2048);
        CHECK_ERR(pwrite(file, page, 1, 8192), EFBIG);
        signal(SIGXFSZ, SIG_DFL);
        CHECK_KILLED(CHILD(pwrite(file, page, 1, 8192)), SIGXFSZ);
        CHECK_KILLED(CHILD(fallocate(file, 0, 8192, 1)), SIGXFSZ);
        CHECK_KILLED(CHILD(ftruncate(file, 8193)), SIGXFSZ);
        CHECK_KILLED(CHILD(truncate("limited", 8193)), SIGXFSZ);
        CHECK_ERR(truncate(".", 8193), EISDIR);
        /* Only a file that grows is held to the limit. */
        size.rlim_cur = 4096;
        OK(setrlimit(RLIMIT_FSIZE, &size));
        OK(ftruncate(file, 8000));
        OK(truncate("limited", 6000));
        OK(fallocate(file, 0, 4096, 1));
    }));
    JOIN(CHILD({
        struct rlimit space = {64 << 20, 64 << 20};
        OK(setrlimit(RLIMIT_AS, &space));
        char *volatile block = malloc(256 << 20);
        CHECK(block == NULL && errno == ENOMEM);
    }));
}

static void usage(void)
{
    struct rusage before, after, children;
    OK(getrusage(RUSAGE_SELF, &before));
    struct tms start, end;
    clock_t from = times(&start);
    CHECK(from != (clock_t)-1);
    int64_t cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID), until = cpu + 60000000;
    while (now_ns(CLOCK_PROCESS_CPUTIME_ID) < until)
        ;
    OK(getrusage(RUSAGE_SELF, &after));
    int64_t used = (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec)
                       * 1000000LL
                   + after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    CHECK(used >= 30000);
    CHECK(after.ru_maxrss > 0);
    clock_t to = times(&end);
    CHECK(to - from >= 4);
    CHECK(end.tms_utime + end.tms_stime - start.tms_utime - start.tms_stime >= 2);
    JOIN(CHILD({
        int64_t stop = now_ns(CLOCK_PROCESS_CPUTIME_ID) + 30000000;
        while (now_ns(CLOCK_PROCESS_CPUTIME_ID) < stop)
            ;
    }));
    OK(getrusage(RUSAGE_CHILDREN, &children));
    CHECK(children.ru_utime.tv_sec + children.ru_stime.tv_sec > 0
          || children.ru_utime.tv_usec + children.ru_stime.tv_usec >= 10000);
    OK(getrusage(RUSAGE_THREAD, &after));
    CHECK_ERR(getrusage(77, &after), EINVAL);
}

static int64_t raw_ns(clockid_t clock)
{
    struct timespec now;
    OK(syscall(SYS_clock_gettime, clock, &now));
    CHECK(now.tv_nsec >= 0 && now.tv_nsec < 1000000000);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* The vDSO and the system call, read in turns, never run backwards; coarse clocks may lag by a tick. */
static void clocks(void)
{
    static const clockid_t all[] = {CLOCK_REALTIME,           CLOCK_MONOTONIC,        CLOCK_MONOTONIC_RAW,
                                    CLOCK_BOOTTIME,           CLOCK_TAI,              CLOCK_REALTIME_COARSE,
                                    CLOCK_MONOTONIC_COARSE,   CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};
    for (size_t c = 0; c < sizeof all / sizeof *all; c++) {
        struct timespec resolution;
        OK(clock_getres(all[c], &resolution));
        CHECK(resolution.tv_sec == 0 && resolution.tv_nsec > 0 && resolution.tv_nsec <= 20000000);
        int64_t last = now_ns(all[c]), first = last;
        for (long i = 0; i < scaled(2000); i++) {
            int64_t raw = raw_ns(all[c]);
            if (raw < last)
                FAIL("clock %d: the system call is %lld ns behind the vDSO", all[c], (long long)(last - raw));
            last = now_ns(all[c]);
            if (last < raw)
                FAIL("clock %d: the vDSO is %lld ns behind the system call", all[c], (long long)(raw - last));
        }
        CHECK(last - first < 60000000000LL);
    }
    struct timeval day;
    OK(gettimeofday(&day, NULL));
    int64_t drift = now_ns(CLOCK_REALTIME) - (day.tv_sec * 1000000000LL + day.tv_usec * 1000LL);
    CHECK(drift >= 0 && drift < 5000000000LL);
    time_t seconds = time(NULL);
    CHECK(seconds >= day.tv_sec && seconds < day.tv_sec + 6);
    CHECK(seconds > 1700000000);
    int64_t coarse = now_ns(CLOCK_MONOTONIC_COARSE), fine = now_ns(CLOCK_MONOTONIC);
    CHECK(coarse <= fine && fine - coarse < 1000000000LL);
    CHECK(now_ns(CLOCK_BOOTTIME) >= now_ns(CLOCK_MONOTONIC) - 1000000);
    struct timespec none;
    CHECK_ERR(syscall(SYS_clock_gettime, 99, &none), EINVAL);
    CHECK_ERR(syscall(SYS_clock_gettime, CLOCK_REALTIME, 8), EFAULT);
}

/* The clock goes on at the same pace as the sleeps: measured on three clocks that must agree. */
static void sleeps(void)
{
    static const long wanted_ms[] = {0, 1, 5, 20, 50};
    for (size_t i = 0; i < sizeof wanted_ms / sizeof *wanted_ms; i++) {
        struct timespec wanted = {0, wanted_ms[i] * 1000000};
        int64_t start = now_ns(CLOCK_MONOTONIC);
        OK(nanosleep(&wanted, NULL));
        int64_t slept = now_ns(CLOCK_MONOTONIC) - start;
        CHECK(slept >= wanted.tv_nsec);
        CHECK(slept < wanted.tv_nsec + 3000000000LL);
        start = now_ns(CLOCK_MONOTONIC);
        int64_t target = start + wanted.tv_nsec;
        struct timespec until = {target / 1000000000, target % 1000000000};
        OK(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL));
        CHECK(now_ns(CLOCK_MONOTONIC) >= target);
    }
    struct timespec past = {1, 0}, bad = {0, 1000000000}, negative = {-1, 0};
    CHECK_EQ(clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &past, NULL), 0);
    CHECK_ERR(nanosleep(&bad, NULL), EINVAL);
    CHECK_ERR(nanosleep(&negative, NULL), EINVAL);
    CHECK_ERR(syscall(SYS_nanosleep, 8, NULL), EFAULT);

    int64_t monotonic = now_ns(CLOCK_MONOTONIC), real = now_ns(CLOCK_REALTIME), raw = now_ns(CLOCK_MONOTONIC_RAW);
    sleep_ms(100);
    monotonic = now_ns(CLOCK_MONOTONIC) - monotonic;
    real = now_ns(CLOCK_REALTIME) - real;
    raw = now_ns(CLOCK_MONOTONIC_RAW) - raw;
    CHECK(llabs(monotonic - real) < 50000000 + monotonic / 10);
    CHECK(llabs(monotonic - raw) < 50000000 + monotonic / 10);
}

/* An unknown number is refused and nothing worse; so is a number with rubbish in its upper half. */
static void unknown(void)
{
    static const long numbers[] = {400, 423, 999, 1000, 5000, 0x7fffffff, -1, -2, 0x3fffffff};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        CHECK_ERR(syscall(numbers[i], 1, 2, 3, 4, 5, 6), ENOSYS);
    CHECK_ERR(syscall(180), ENOSYS); /* nfsservctl, gone for long */
    long result;
    /* rcx and r11 are clobbered, all else is kept. */
    register long r8 __asm__("r8") = 0x1111, r9 __asm__("r9") = 0x2222, r10 __asm__("r10") = 0x3333;
    long rbx = 0x4444, rdi = 0x5555, rsi = 0x6666, rdx = 0x7777;
    __asm__ volatile("syscall"
                     : "=a"(result), "+r"(r8), "+r"(r9), "+r"(r10), "+b"(rbx), "+D"(rdi), "+S"(rsi), "+d"(rdx)
                     : "a"(5000L)
                     : "rcx", "r11", "memory");
    CHECK_EQ(result, -ENOSYS);
    CHECK(r8 == 0x1111 && r9 == 0x2222 && r10 == 0x3333);
    CHECK(rbx == 0x4444 && rdi == 0x5555 && rsi == 0x6666 && rdx == 0x7777);
    /* The kernel looks at the lower 32 bits of the number only. */
    __asm__ volatile("syscall" : "=a"(result) : "a"(0x100000000L | SYS_getpid) : "rcx", "r11", "memory");
    CHECK_EQ(result, getpid());
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(identity), TEST(names),  TEST(working_directory), TEST(random_bytes), TEST(system_information),
        TEST(limits),   TEST(usage),  TEST(clocks),            TEST(sleeps),       TEST(unknown),
    };
    return RUN_TESTS("syscalls", tests, argc, argv);
}
