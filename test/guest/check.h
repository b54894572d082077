/*
 * Shared by the guest programs: checks that name the failing line, and a small runner.
 *
 * Every test runs in a process of its own, in an empty directory of its own. A failing or hanging test is reported on
 * stderr as `not ok PROGRAM.TEST` and the others still run. Stdout carries exactly one line, `ok PROGRAM`, or nothing.
 *
 * Arguments: names of tests to run (all without any), a directory (anything with a slash) to work below instead of
 * $TMPDIR or /tmp, `--scale=PERCENT` for slow machines, `--timeout=SECONDS` a test, `--no-fork`, `--list`, `-v`.
 */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* Whether the kernel is of this version or newer. Older ones answer otherwise here and there. */
UNUSED static bool kernel_is(int major, int minor)
{
    struct utsname name;
    int has_major = 0, has_minor = 0;
    if (uname(&name) != 0 || sscanf(name.release, "%d.%d", &has_major, &has_minor) != 2)
        return false;
    return has_major > major || (has_major == major && has_minor >= minor);
}

UNUSED __attribute__((noreturn, format(printf, 3, 4))) static void fail_at(const char *file, int line,
                                                                           const char *format, ...)
{
    int error = errno;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dprintf(2, "%s:%d: %s (errno %d %s)\n", file, line, text, error, strerror(error));
    _exit(1);
}

#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)

/* The condition holds. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            FAIL("%s", #condition);                                                                                    \
    } while (0)

/* The number behind `key` at the start of a line of a file, in its own unit; -1: there is no such line. */
UNUSED static long number_in(const char *path, const char *key)
{
    char line[256];
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    long value = -1;
    while (value < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key)))
            value = atol(line + strlen(key));
    fclose(file);
    return value;
}

/* Two integers are equal; prints both when not. */
#define CHECK_EQ(left, right)                                                                                          \
    do {                                                                                                               \
        long long left_ = (long long)(left), right_ = (long long)(right);                                              \
        if (left_ != right_)                                                                                           \
            FAIL("%s is %lld (%#llx), want %s = %lld", #left, left_, left_, #right, right_);                           \
    } while (0)

/* The call fails with exactly this errno. */
#define CHECK_ERR(call, want)                                                                                          \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long long result_ = (long long)(call);                                                                         \
        if (result_ != -1 || errno != (want))                                                                          \
            FAIL("%s returned %lld, want -1 with %s", #call, result_, #want);                                          \
    } while (0)

/* The call returns 0. */
#define OK(call) CHECK_EQ(call, 0)

/* A pthread function returns 0. */
#define PT(call)                                                                                                       \
    do {                                                                                                               \
        int error_ = (call);                                                                                           \
        if (error_ != 0) {                                                                                             \
            errno = error_;                                                                                            \
            FAIL("%s returned %d", #call, error_);                                                                     \
        }                                                                                                              \
    } while (0)

/* A descriptor (or any non-negative number) from a call that must not fail. */
#define FD(call)                                                                                                       \
    ({                                                                                                                 \
        int fd_ = (int)(call);                                                                                         \
        if (fd_ < 0)                                                                                                   \
            FAIL("%s failed", #call);                                                                                  \
        fd_;                                                                                                           \
    })

/* Says on stderr that something was left out, and why. */
#define NOTE(...) (dprintf(2, "note: " __VA_ARGS__), dprintf(2, "\n"))

/* Ends the calling test, successfully, with a note. */
#define SKIP(...)                                                                                                      \
    do {                                                                                                               \
        NOTE(__VA_ARGS__);                                                                                             \
        return;                                                                                                        \
    } while (0)

/* For a test that takes on other users, or gives files to them. */
#define NEEDS_ROOT()                                                                                                   \
    do {                                                                                                               \
        if (geteuid() != 0)                                                                                            \
            SKIP("left out: only root may do this");                                                                   \
    } while (0)

/* Runs the statements in a child process, which exits 0 after it; evaluates to the child's pid. */
#define CHILD(...)                                                                                                     \
    ({                                                                                                                 \
        pid_t child_ = fork();                                                                                         \
        if (child_ < 0)                                                                                                \
            FAIL("fork failed");                                                                                       \
        if (child_ == 0) {                                                                                             \
            __VA_ARGS__;                                                                                               \
            _exit(0);                                                                                                  \
        }                                                                                                              \
        child_;                                                                                                        \
    })

/* The child ends with exit code 0. */
#define JOIN(...)                                                                                                      \
    do {                                                                                                               \
        int status_ = status_of(__VA_ARGS__);                                                                          \
        if (status_ != 0)                                                                                              \
            FAIL("a child ended with wait status %#x", (unsigned)status_);                                             \
    } while (0)

/* The child was killed by this signal; whether it dumped core does not matter. */
#define CHECK_KILLED(pid, signal)                                                                                      \
    do {                                                                                                               \
        int status_ = status_of(pid);                                                                                  \
        if (!WIFSIGNALED(status_) || WTERMSIG(status_) != (signal))                                                    \
            FAIL("wait status is %#x, want death by %s", (unsigned)status_, #signal);                                  \
    } while (0)

static int scale_percent = 100;

/* `count` scaled for the machine's speed, never less than 1. */
UNUSED static long scaled(long count)
{
    long result = count * scale_percent / 100;
    return result < 1 ? 1 : result;
}

UNUSED static int status_of(pid_t pid)
{
    int status;
    pid_t got;
    do {
        got = waitpid(pid, &status, 0);
    } while (got < 0 && errno == EINTR);
    CHECK_EQ(got, pid);
    return status;
}

UNUSED static int64_t now_ns(clockid_t clock)
{
    struct timespec now;
    OK(clock_gettime(clock, &now));
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

UNUSED static void sleep_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) < 0)
        CHECK_EQ(errno, EINTR);
}

/* State and parent of a process from /proc; false when it is gone. */
UNUSED static bool read_stat(pid_t pid, char *state, pid_t *parent)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return false;
    text[length] = 0;
    char *end = strrchr(text, ')');
    return end && sscanf(end + 1, " %c %d", state, parent) == 2;
}

/* The one-letter state of a process, or 0 when it is gone. */
UNUSED static char state_of(pid_t pid)
{
    char state;
    pid_t parent;
    return read_stat(pid, &state, &parent) ? state : 0;
}

UNUSED static pid_t parent_of(pid_t pid)
{
    char state;
    pid_t parent;
    return pid > 0 && read_stat(pid, &state, &parent) ? parent : 0;
}

/* For what takes no time, on a machine that may be very busy. */
enum { PATIENCE_MS = 30000 };

/* When patience ends, for `is_over`. */
UNUSED static int64_t patience_end(void)
{
    return now_ns(CLOCK_MONOTONIC) + PATIENCE_MS * 1000000LL;
}

UNUSED static bool is_over(int64_t end)
{
    return now_ns(CLOCK_MONOTONIC) > end;
}

/* Waits until the condition holds, or patience ends: whoever uses it checks the condition afterwards. */
#define AWAIT(condition, pause_us)                                                                                     \
    do {                                                                                                               \
        for (int64_t end_ = patience_end(); !(condition) && !is_over(end_);)                                           \
            usleep(pause_us);                                                                                          \
    } while (0)

/* Waits until the process sleeps in a system call, or has ended. */
UNUSED static void wait_until_asleep(pid_t pid)
{
    int64_t end = patience_end();
    for (char state; (state = state_of(pid)) != 'S' && state != 'Z' && state != 0; sleep_ms(1))
        if (is_over(end))
            FAIL("process %d does not sleep: its state is %c", pid, state);
    sleep_ms(1);
}

UNUSED static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = FD(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
    CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
    OK(fchmod(fd, mode));
    OK(close(fd));
}

/* A cheap seeded generator (xorshift64*). */
UNUSED static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dULL;
}

struct test {
    const char *name;
    void (*run)(void);
};
#define TEST(function) {#function, function}

UNUSED static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path);
}

/* Waits for a test with a time limit; its wait status, or -1 after killing it. */
UNUSED static int wait_at_most(pid_t pid, int seconds)
{
    int64_t end = now_ns(CLOCK_MONOTONIC) + seconds * 1000000000LL;
    long pause_us = 50;
    int status;
    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return status;
        CHECK(got == 0 || errno == EINTR);
        if (now_ns(CLOCK_MONOTONIC) > end) {
            kill(-pid, SIGKILL);
            kill(pid, SIGKILL);
            status_of(pid);
            return -1;
        }
        usleep(pause_us);
        pause_us = pause_us < 5000 ? pause_us * 2 : pause_us;
    }
}

/* Ends what a test left behind, whatever group or session it fled to; the runner adopts all orphans. */
UNUSED static void end_leftovers(void)
{
    for (int round = 0; round < 1000 && waitpid(-1, NULL, WNOHANG) >= 0; round++) {
        DIR *processes = opendir("/proc");
        if (!processes)
            return;
        for (struct dirent *entry; (entry = readdir(processes));)
            if (parent_of(atoi(entry->d_name)) == getpid())
                kill(atoi(entry->d_name), SIGKILL);
        closedir(processes);
        usleep(1000);
    }
}

UNUSED static bool run_one(const char *program, const struct test *test, bool in_place, int timeout_seconds)
{
    OK(mkdir(test->name, 0755));
    if (in_place) {
        OK(chdir(test->name));
        test->run();
        OK(chdir(".."));
        return true;
    }
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        setpgid(0, 0);
        OK(chdir(test->name));
        test->run();
        exit(0);
    }
    setpgid(pid, pid);
    int status = wait_at_most(pid, timeout_seconds);
    kill(-pid, SIGKILL);
    end_leftovers();
    if (status == 0)
        return true;
    if (status == -1)
        dprintf(2, "not ok %s.%s: no end after %d s\n", program, test->name, timeout_seconds);
    else
        dprintf(2, "not ok %s.%s: wait status %#x\n", program, test->name, (unsigned)status);
    return false;
}

/* Runs the tests that `argv` selects; the program's exit code. */
UNUSED static int run_tests(const char *program, const struct test *tests, size_t count, int argc, char **argv)
{
    const char *base = getenv("TMPDIR");
    bool in_place = false, verbose = false, named = false, all_good = true;
    int timeout_seconds = 60;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--scale=", 8) == 0)
            scale_percent = atoi(argv[i] + 8);
        else if (strncmp(argv[i], "--timeout=", 10) == 0)
            timeout_seconds = atoi(argv[i] + 10);
        else if (strcmp(argv[i], "--no-fork") == 0)
            in_place = true;
        else if (strcmp(argv[i], "-v") == 0)
            verbose = true;
        else if (strcmp(argv[i], "--list") == 0) {
            for (size_t t = 0; t < count; t++)
                puts(tests[t].name);
            return 0;
        } else if (strchr(argv[i], '/') || strcmp(argv[i], ".") == 0)
            base = argv[i];
        else {
            named = true;
            bool known = false;
            for (size_t t = 0; t < count; t++)
                known |= strcmp(argv[i], tests[t].name) == 0;
            if (!known) {
                dprintf(2, "%s: no test is called %s (see --list)\n", program, argv[i]);
                return 2;
            }
        }
    }
    char directory[512], *resolved = realpath(base ? base : "/tmp", NULL);
    CHECK(resolved != NULL);
    snprintf(directory, sizeof directory, "%.400s/%s.XXXXXX", resolved, program);
    free(resolved);
    CHECK(mkdtemp(directory) != NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    OK(chdir(directory));
    /* Tests say what others may do with the files that they make; whoever runs them may have chosen otherwise. */
    umask(022);
    for (size_t t = 0; t < count; t++) {
        bool wanted = !named;
        for (int i = 1; i < argc; i++)
            wanted |= strcmp(argv[i], tests[t].name) == 0;
        if (!wanted)
            continue;
        int64_t start = now_ns(CLOCK_MONOTONIC);
        bool good = run_one(program, &tests[t], in_place, timeout_seconds);
        if (verbose)
            dprintf(2, "%s %s.%s %lld ms\n", good ? "passed" : "failed", program, tests[t].name,
                    (long long)(now_ns(CLOCK_MONOTONIC) - start) / 1000000);
        all_good &= good;
    }
    OK(chdir("/"));
    nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    if (!all_good)
        return 1;
    dprintf(1, "ok %s\n", program);
    return 0;
}

#define RUN_TESTS(program, tests, argc, argv) run_tests(program, tests, sizeof(tests) / sizeof *(tests), argc, argv)

/* A copy of the program that runs. */
UNUSED static void copy_program_to(const char *path)
{
    int from = FD(open("/proc/self/exe", O_RDONLY)), to = FD(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0755));
    char buffer[65536];
    ssize_t got;
    while ((got = read(from, buffer, sizeof buffer)) > 0)
        CHECK_EQ(write(to, buffer, (size_t)got), got);
    CHECK_EQ(got, 0);
    close(from);
    close(to);
}

#endif
