/* Processes: fork, wait, groups and sessions, orphans, exec in all its forms. */
#include "check.h"
#include <dirent.h>
#include <elf.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static char self[PATH_MAX];
extern char **environ;

/* --- what this program does when a test runs it again --- */

static int count_threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *entry; (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static int run_as_child(int argc, char **argv)
{
    if (strcmp(argv[1], "--args") == 0) { /* every argument, then exit 42 */
        for (int i = 0; i < argc; i++)
            dprintf(1, "%s|", argv[i]);
        return 42;
    }
    if (strcmp(argv[1], "--count") == 0) { /* numbers and bytes of arguments and environment */
        size_t bytes = 0, variables = 0;
        for (int i = 0; i < argc; i++)
            bytes += strlen(argv[i]) + 1;
        for (char **e = environ; *e; e++, variables++)
            bytes += strlen(*e) + 1;
        dprintf(1, "%d %zu %zu", argc, variables, bytes);
        return 0;
    }
    if (strcmp(argv[1], "--fds") == 0) { /* which of the numbers named are open */
        int open_bits = 0;
        for (int i = 2; i < argc; i++)
            open_bits |= (fcntl(atoi(argv[i]), F_GETFD) >= 0) << (i - 2);
        return open_bits;
    }
    if (strcmp(argv[1], "--identity") == 0) { /* pid, single thread, and the name exec gave */
        CHECK_EQ(syscall(SYS_gettid), getpid());
        CHECK_EQ(count_threads(), 1);
        dprintf(1, "%d", getpid());
        return 0;
    }
    if (strcmp(argv[1], "--signals") == 0) { /* dispositions and mask after exec */
        struct sigaction action;
        sigset_t mask;
        OK(sigaction(SIGUSR1, NULL, &action));
        CHECK(action.sa_handler == SIG_DFL);
        OK(sigaction(SIGUSR2, NULL, &action));
        CHECK(action.sa_handler == SIG_IGN);
        OK(sigprocmask(SIG_BLOCK, NULL, &mask));
        CHECK(sigismember(&mask, SIGTERM) && !sigismember(&mask, SIGINT));
        OK(sigpending(&mask));
        CHECK(sigismember(&mask, SIGTERM));
        return 0;
    }
    if (strcmp(argv[1], "--stop") == 0) { /* waits to be killed */
        dprintf(1, "r");
        for (;;)
            pause();
    }
    return 99;
}

/* Runs `exec_it` in a child and gives back what it printed and its status. */
static int capture(void (*exec_it)(void), char *output, size_t size)
{
    int out[2];
    OK(pipe2(out, O_CLOEXEC));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        dup2(out[1], 1);
        exec_it();
        FAIL("exec failed");
    }
    OK(close(out[1]));
    size_t length = 0;
    ssize_t got;
    while (length < size - 1 && (got = read(out[0], output + length, size - 1 - length)) > 0)
        length += got;
    output[length] = 0;
    OK(close(out[0]));
    return status_of(pid);
}

#define EXIT_CODE(code) ((code) << 8)

/* --- fork --- */

enum { PAGES = 64, PAGE = 4096 };

static void deep(void)
{
    int *data = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(data != MAP_FAILED);
    long depth = scaled(200);
    for (long level = 1; level <= depth; level++) {
        int page = level % PAGES;
        data[page * PAGE / 4] += 1;
        data[page * PAGE / 4 + 1] = (int)level;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid > 0) {
            JOIN(pid);
            /* The descendants' writes are not seen here. */
            for (int p = 0; p < PAGES; p++) {
                long want = level / PAGES + (p >= 1 && p <= level % PAGES);
                CHECK_EQ(data[p * PAGE / 4], want);
            }
            CHECK_EQ(data[page * PAGE / 4 + 1], level);
            if (level == 1)
                return;
            _exit(0);
        }
    }
    _exit(0);
}

static void wide(void)
{
    long count = scaled(200);
    pid_t pids[200];
    unsigned char *data = malloc(PAGES * PAGE);
    memset(data, 255, PAGES * PAGE);
    int go[2];
    OK(pipe(go));
    for (int i = 0; i < count && i < 200; i++) {
        data[i % PAGES * PAGE] = (unsigned char)i;
        pids[i] = CHILD({
            char byte;
            CHECK_EQ(read(go[0], &byte, 1), 1);
            CHECK_EQ(data[i % PAGES * PAGE], i);
            memset(data, i, PAGES * PAGE);
            for (int at = 0; at < PAGES * PAGE; at += 1111)
                CHECK_EQ(data[at], i);
            _exit(i);
        });
    }
    for (int i = 0; i < count && i < 200; i++)
        CHECK_EQ(write(go[1], "g", 1), 1);
    CHECK_EQ(data[PAGE - 1], 255);
    for (int i = 0; i < count && i < 200; i++) {
        int pick = (int)(i * 77 % count);
        while (pids[pick] == 0)
            pick = (int)((pick + 1) % count);
        CHECK_EQ(status_of(pids[pick]), EXIT_CODE(pick));
        pids[pick] = 0;
    }
    CHECK_ERR(wait(NULL), ECHILD);
    CHECK_EQ(data[PAGE - 1], 255);
}

static void shared_parent(void)
{
    volatile int value = 1;
    pid_t pid = vfork();
    CHECK(pid >= 0);
    if (pid == 0) {
        value = 2;
        usleep(20000);
        value = 3;
        _exit(5);
    }
    CHECK_EQ(value, 3); /* the parent waited, and shares its memory */
    CHECK_EQ(status_of(pid), EXIT_CODE(5));
    for (volatile int i = 0; i < 5; i++) {
        pid = vfork();
        CHECK(pid >= 0);
        if (pid == 0) {
            execl(self, "forks", "--fds", "0", "987", NULL);
            _exit(100);
        }
        CHECK_EQ(status_of(pid), EXIT_CODE(1));
    }
}

static void *fork_many(void *argument)
{
    volatile long mine = (long)argument;
    for (int i = 0; i < scaled(20); i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            CHECK_EQ(mine, (long)argument);
            CHECK_EQ(count_threads(), 1);
            CHECK_EQ(syscall(SYS_gettid), getpid());
            char *block = malloc(100000); /* the allocator's locks are usable */
            memset(block, 1, 100000);
            free(block);
            _exit((int)mine);
        }
        CHECK_EQ(status_of(pid), EXIT_CODE(mine));
    }
    return NULL;
}

static void from_threads(void)
{
    pthread_t threads[4];
    for (long i = 0; i < 4; i++)
        PT(pthread_create(&threads[i], NULL, fork_many, (void *)(i + 1)));
    for (int i = 0; i < 4; i++)
        PT(pthread_join(threads[i], NULL));
}

static void *sleep_long(void *unused)
{
    for (;;)
        sleep(100);
    return unused;
}

static void *end_process(void *unused)
{
    usleep(10000);
    (void)unused;
    exit(9);
}

static void *outlive_leader(void *unused)
{
    (void)unused;
    AWAIT(state_of(getpid()) == 'Z', 1000);
    CHECK_EQ(state_of(getpid()), 'Z');
    CHECK(syscall(SYS_gettid) != getpid());
    _exit(11);
}

static void exits_with_threads(void)
{
    CHECK_EQ(status_of(CHILD({
                 pthread_t thread;
                 PT(pthread_create(&thread, NULL, sleep_long, NULL));
                 PT(pthread_create(&thread, NULL, end_process, NULL));
                 sleep_long(NULL);
             })),
             EXIT_CODE(9));
    CHECK_EQ(status_of(CHILD({
                 pthread_t thread;
                 PT(pthread_create(&thread, NULL, outlive_leader, NULL));
                 pthread_exit(NULL);
             })),
             EXIT_CODE(11));
}

/* --- wait --- */

static void zombies(void)
{
    pid_t pid = CHILD(_exit(3));
    siginfo_t info = {0};
    OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
    CHECK_EQ(info.si_pid, pid);
    CHECK_EQ(info.si_signo, SIGCHLD);
    CHECK_EQ(info.si_code, CLD_EXITED);
    CHECK_EQ(info.si_status, 3);
    CHECK_EQ(info.si_uid, getuid());
    CHECK_EQ(state_of(pid), 'Z');
    OK(kill(pid, 0)); /* a zombie still has its number */
    OK(kill(pid, SIGKILL));
    OK(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT));
    CHECK_EQ(status_of(pid), EXIT_CODE(3));
    CHECK_ERR(kill(pid, 0), ESRCH);
    CHECK_EQ(state_of(pid), 0);
    CHECK_ERR(waitpid(pid, NULL, 0), ECHILD);

    pid_t many[50];
    for (int i = 0; i < 50; i++)
        many[i] = CHILD(_exit(i));
    for (int i = 49; i >= 0; i--)
        CHECK_EQ(status_of(many[i]), EXIT_CODE(i));
}

static void waiting(void)
{
    int status;
    CHECK_ERR(waitpid(-1, &status, 0), ECHILD);
    CHECK_ERR(waitpid(getpid(), &status, WNOHANG), ECHILD);
    CHECK_ERR(waitpid(-1, &status, 0x40000), EINVAL);
    CHECK_ERR(waitid(P_ALL, 0, NULL, WNOHANG), EINVAL);
    int go[2];
    OK(pipe(go));
    pid_t pid = CHILD({
        setpgid(0, 0);
        char byte;
        CHECK_EQ(read(go[0], &byte, 1), 1);
        _exit(1);
    });
    setpgid(pid, pid);
    CHECK_EQ(waitpid(pid, &status, WNOHANG), 0);
    siginfo_t info;
    memset(&info, 0xff, sizeof info);
    OK(waitid(P_PID, pid, &info, WEXITED | WNOHANG));
    CHECK_EQ(info.si_pid, 0);
    CHECK_ERR(waitpid(0, &status, WNOHANG), ECHILD); /* no child in our own group */
    CHECK_EQ(waitpid(-pid, &status, WNOHANG), 0);
    CHECK_EQ(write(go[1], "x", 1), 1);
    struct rusage usage;
    CHECK_EQ(wait4(-pid, &status, 0, &usage), pid);
    CHECK_EQ(status, EXIT_CODE(1));
    pid = CHILD(_exit(0));
    OK(waitid(P_PID, pid, NULL, WEXITED | WNOWAIT));
    for (int kind = P_PID; kind <= 3; kind++)
        CHECK_ERR(waitid(kind, (id_t)-1, NULL, WEXITED), EINVAL);
    CHECK_ERR(syscall(SYS_wait4, pid, 8, 0, NULL), EFAULT);
    for (int code = 0; code < 256; code += 51)
        CHECK_EQ(status_of(CHILD(_exit(code))), EXIT_CODE(code));
    CHECK_EQ(status_of(CHILD(_exit(256 + 7))), EXIT_CODE(7));
    static const int signals[] = {SIGKILL, SIGTERM, SIGABRT, SIGSEGV, SIGUSR1, SIGALRM, SIGPIPE, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        pid = CHILD({
            signal(signals[i], SIG_DFL);
            raise(signals[i]);
        });
        OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
        CHECK(info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED);
        CHECK_EQ(info.si_status, signals[i]);
        CHECK_KILLED(pid, signals[i]);
    }
    signal(SIGCHLD, SIG_IGN); /* children vanish by themselves */
    pid = CHILD(_exit(1));
    CHECK_ERR(waitpid(pid, &status, 0), ECHILD);
    AWAIT(kill(pid, 0) != 0, 1000); /* the number may outlive the wait by a moment */
    CHECK_ERR(kill(pid, 0), ESRCH);
}

static void stopping(void)
{
    int status;
    siginfo_t info;
    pid_t pid = CHILD(for (;;) pause());
    CHECK_EQ(waitpid(pid, &status, WNOHANG | WUNTRACED | WCONTINUED), 0);
    OK(kill(pid, SIGSTOP));
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED | WNOHANG), 0); /* told once */
    CHECK_EQ(state_of(pid), 'T');
    OK(kill(pid, SIGCONT));
    CHECK_EQ(waitpid(pid, &status, WCONTINUED), pid);
    CHECK(WIFCONTINUED(status));
    OK(kill(pid, SIGTSTP));
    OK(waitid(P_PID, pid, &info, WSTOPPED));
    CHECK(info.si_code == CLD_STOPPED && info.si_status == SIGTSTP);
    OK(kill(pid, SIGCONT));
    OK(waitid(P_PID, pid, &info, WCONTINUED));
    CHECK(info.si_code == CLD_CONTINUED && info.si_status == SIGCONT);
    OK(kill(pid, SIGSTOP));
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    OK(kill(pid, SIGTERM)); /* kept until it continues */
    sleep_ms(10);
    CHECK_EQ(waitpid(pid, &status, WNOHANG), 0);
    OK(kill(pid, SIGCONT));
    CHECK_KILLED(pid, SIGTERM);
    pid = CHILD(raise(SIGSTOP));
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    OK(kill(pid, SIGKILL)); /* even a stopped process dies */
    CHECK_KILLED(pid, SIGKILL);
}

/* --- orphans, groups, sessions --- */

static void orphans(void)
{
    OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
    int is_reaper = 0, out[2];
    OK(prctl(PR_GET_CHILD_SUBREAPER, &is_reaper));
    CHECK_EQ(is_reaper, 1);
    OK(pipe(out));
    pid_t reaper = getpid();
    pid_t middle = CHILD({
        pid_t parent = getpid();
        CHILD({
            OK(prctl(PR_GET_CHILD_SUBREAPER, &is_reaper));
            CHECK_EQ(is_reaper, 0);
            AWAIT(getppid() != parent, 1000);
            CHECK_EQ(getppid(), reaper);
            pid_t me = getpid();
            CHECK_EQ(write(out[1], &me, sizeof me), sizeof me);
            _exit(17);
        });
    });
    JOIN(middle);
    pid_t orphan;
    CHECK_EQ(read(out[0], &orphan, sizeof orphan), sizeof orphan);
    CHECK_EQ(status_of(orphan), EXIT_CODE(17));
    OK(prctl(PR_SET_CHILD_SUBREAPER, 0));
}

static volatile sig_atomic_t odd_signals, usual_signals;

static void count_signal(int number)
{
    if (number == SIGCHLD)
        usual_signals++;
    else
        odd_signals++;
}

/* The signal that a process chose for its end goes to who made it, and to nobody else: not to who adopts it, nor to the
 * program that its parent has become. */
static void chosen_end_signals(void)
{
    OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
    signal(SIGUSR1, count_signal);
    signal(SIGCHLD, count_signal);
    int ends[2];
    OK(pipe(ends));
    pid_t adopter = getpid(), orphan;
    JOIN(CHILD({
        pid_t parent = getpid();
        if (syscall(SYS_clone, SIGUSR1, 0, 0, 0, 0) == 0) {
            AWAIT(getppid() != parent, 1000);
            pid_t me = getpid();
            CHECK_EQ(getppid(), adopter);
            CHECK_EQ(write(ends[1], &me, sizeof me), sizeof me);
            _exit(0);
        }
    }));
    ssize_t got;
    while ((got = read(ends[0], &orphan, sizeof orphan)) < 0 && errno == EINTR)
        ;
    CHECK_EQ(got, sizeof orphan);
    usual_signals = 0;
    for (int i = 0; i < 3000 && usual_signals + odd_signals == 0; i++)
        usleep(1000);
    CHECK_EQ(odd_signals, 0);
    CHECK_EQ(status_of(orphan), 0);
    signal(SIGCHLD, SIG_DFL);
    OK(prctl(PR_SET_CHILD_SUBREAPER, 0));
    /* The child ends when exec has closed the other end. */
    pid_t parent = CHILD({
        int until[2];
        OK(pipe2(until, O_CLOEXEC));
        if (syscall(SYS_clone, SIGKILL, 0, 0, 0, 0) == 0) {
            char byte;
            close(until[1]);
            CHECK_EQ(read(until[0], &byte, 1), 0);
            _exit(0);
        }
        execl("/bin/sh", "sh", "-c", "sleep 0.3; exit 5", NULL);
    });
    CHECK_EQ(status_of(parent), EXIT_CODE(5));
}

static void parent_death(void)
{
    int out[2];
    OK(pipe(out));
    OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
    pid_t parent = CHILD({
        pid_t child = CHILD({
            alarm(30);
            OK(prctl(PR_SET_PDEATHSIG, SIGUSR1));
            int got = 0;
            OK(prctl(PR_GET_PDEATHSIG, &got));
            CHECK_EQ(got, SIGUSR1);
            CHECK_EQ(write(out[1], "r", 1), 1);
            for (;;)
                pause();
        });
        char byte;
        CHECK_EQ(read(out[0], &byte, 1), 1);
        CHECK_EQ(write(out[1], &child, sizeof child), sizeof child);
        sleep_long(NULL);
    });
    pid_t child;
    /* The pipe carries the ready byte to the parent first. */
    int available = 0;
    for (int64_t end = patience_end(); available < (int)sizeof child && !is_over(end);) {
        struct pollfd wait_for = {out[0], POLLIN, 0};
        poll(&wait_for, 1, 1);
        char state = state_of(parent);
        CHECK(state != 'Z' && state != 0);
        int queued = 0;
        OK(syscall(SYS_ioctl, out[0], 0x541b /* FIONREAD */, &queued));
        available = queued;
        usleep(1000);
    }
    CHECK_EQ(read(out[0], &child, sizeof child), sizeof child);
    OK(kill(parent, SIGKILL));
    CHECK_KILLED(parent, SIGKILL);
    CHECK_KILLED(child, SIGUSR1);
}

static void groups(void)
{
    CHECK_ERR(setpgid(0, 999999), EPERM);
    CHECK_ERR(setpgid(0, -1), EINVAL);
    CHECK_ERR(setpgid(999999, 0), ESRCH);
    int go[2], ready[2];
    OK(pipe(go));
    OK(pipe(ready));
    pid_t first = CHILD({
        char byte;
        CHECK_EQ(read(go[0], &byte, 1), 1);
        CHECK_EQ(getpgrp(), getpid());
        CHECK_EQ(getpgid(0), getpid());
        CHECK_ERR(setsid(), EPERM); /* a group leader cannot */
    });
    OK(setpgid(first, 0));
    CHECK_EQ(getpgid(first), first);
    pid_t second = CHILD({
        char byte;
        CHECK_EQ(read(go[0], &byte, 1), 1);
        CHECK_EQ(getpgrp(), first);
        OK(prctl(PR_SET_PDEATHSIG, SIGKILL)); /* out of the runner's reach, should the test fail */
        pid_t session = setsid();
        CHECK_EQ(session, getpid());
        CHECK(getsid(0) == session && getpgrp() == session);
        CHECK_ERR(setpgid(0, 0), EPERM);
        CHECK_ERR(setsid(), EPERM);
        CHECK_EQ(write(ready[1], "r", 1), 1);
        for (;;)
            pause();
    });
    OK(setpgid(second, first));
    CHECK_EQ(write(go[1], "gg", 2), 2);
    JOIN(first);
    char byte;
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    CHECK_ERR(setpgid(second, getpgrp()), EPERM); /* another session's */
    CHECK_EQ(getsid(second), second);
    OK(kill(-second, SIGTERM));
    CHECK_KILLED(second, SIGTERM);
    CHECK_ERR(kill(-second, 0), ESRCH);

    pid_t executed = fork();
    CHECK(executed >= 0);
    if (executed == 0) {
        dup2(ready[1], 1);
        execl(self, "forks", "--stop", NULL);
        _exit(1);
    }
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    CHECK_ERR(setpgid(executed, 0), EACCES); /* too late after exec */
    OK(kill(executed, SIGKILL));
    CHECK_KILLED(executed, SIGKILL);

    /* A signal to a group reaches all of it, in whatever order it was made. */
    pid_t members[5];
    for (int i = 0; i < 5; i++) {
        members[i] = CHILD({
            setpgid(0, i ? members[0] : 0);
            CHECK_EQ(write(ready[1], "r", 1), 1);
            for (;;)
                pause();
        });
        setpgid(members[i], members[0]);
        CHECK_EQ(read(ready[0], &byte, 1), 1);
    }
    OK(kill(-members[0], SIGUSR2));
    for (int i = 0; i < 5; i++)
        CHECK_KILLED(members[i], SIGUSR2);
}

static int orphan_pipe;
static void tell(int signal)
{
    char byte = signal == SIGHUP ? 'h' : 'c';
    if (write(orphan_pipe, &byte, 1) != 1)
        _exit(1);
}

/* A stopped group that is orphaned gets SIGHUP and SIGCONT. */
static void orphaned_group(void)
{
    OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
    int out[2];
    OK(pipe(out));
    orphan_pipe = out[1];
    JOIN(CHILD({
        CHECK(setsid() > 0);
        int status;
        pid_t pid = CHILD({
            setpgid(0, 0);
            alarm(30); /* out of the runner's reach, should the test fail */
            signal(SIGHUP, tell);
            signal(SIGCONT, tell);
            raise(SIGSTOP);
            for (;;)
                pause();
        });
        CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
        CHECK_EQ(write(out[1], &pid, sizeof pid), sizeof pid);
    }));
    pid_t pid;
    CHECK_EQ(read(out[0], &pid, sizeof pid), sizeof pid);
    char got[2] = {0};
    CHECK_EQ(read(out[0], &got[0], 1), 1);
    CHECK_EQ(read(out[0], &got[1], 1), 1);
    CHECK(got[0] + got[1] == 'h' + 'c');
    OK(kill(pid, SIGKILL));
    CHECK_KILLED(pid, SIGKILL);
}

/* --- exec --- */

enum { MANY = 1000 };

static void exec_many(void)
{
    char *arguments[MANY + 3] = {"forks", "--count"}, *variables[MANY + 1] = {0};
    static char text[500], variable[500];
    memset(text, 'a', sizeof text - 1);
    memset(variable, 'v', sizeof variable - 1);
    variable[5] = '=';
    for (int i = 0; i < MANY; i++)
        arguments[i + 2] = text, variables[i] = variable;
    execve(self, arguments, variables);
}

static void exec_nothing(void)
{
    char *arguments[] = {"", "--args", "", " ", "a b", "\xff\xfe", NULL}, *none[] = {NULL};
    execve(self, arguments, none);
}

static void arguments(void)
{
    char output[1024], want[256];
    CHECK_EQ(capture(exec_many, output, sizeof output), 0);
    snprintf(want, sizeof want, "%d %d %d", MANY + 2, MANY, 6 + 8 + MANY * 1000);
    if (strcmp(output, want) != 0)
        FAIL("got %s, want %s", output, want);
    CHECK_EQ(capture(exec_nothing, output, sizeof output), EXIT_CODE(42));
    CHECK(strcmp(output, "|--args|| |a b|\xff\xfe|") == 0);

    struct rlimit limit = {8 << 20, 8 << 20};
    OK(setrlimit(RLIMIT_STACK, &limit));
    static char big[140000], fitting[100000];
    memset(big, 'b', sizeof big - 1);
    memset(fitting, 'f', sizeof fitting - 1);
    char *one[] = {"forks", big, NULL}, *total[64] = {"forks"}, *none[] = {NULL};
    CHECK_ERR(execve(self, one, none), E2BIG); /* one string over 128 KiB */
    for (int i = 1; i < 40; i++)
        total[i] = fitting;
    CHECK_ERR(execve(self, total, none), E2BIG); /* all over a quarter of the stack */
    CHECK_ERR(execve(self, none, total), E2BIG);
    total[1] = (char *)8;
    total[2] = NULL;
    CHECK_ERR(execve(self, total, none), EFAULT);
    char *bad = (char *)8;
    CHECK_ERR(syscall(SYS_execve, self, bad, none), EFAULT);
}

static void refusals(void)
{
    char *none[] = {"x", NULL};
    write_file("text", "just text\n", 0755);
    write_file("plain", "#!/bin/sh\n", 0644);
    write_file("empty", "", 0755);
    write_file("lost", "#!/no/such/interpreter\n", 0755);
    write_file("cut", "\177ELF\2\1\1", 0755);
    OK(mkdir("directory", 0755));
    OK(symlink("loop", "loop"));
    CHECK_ERR(execve("text", none, none), ENOEXEC);
    CHECK_ERR(execve("empty", none, none), ENOEXEC);
    CHECK_ERR(execve("cut", none, none), ENOEXEC);
    CHECK_ERR(execve("plain", none, none), EACCES);
    CHECK_ERR(execve("directory", none, none), EACCES);
    CHECK_ERR(execve("lost", none, none), ENOENT);
    CHECK_ERR(execve("absent", none, none), ENOENT);
    CHECK_ERR(execve("text/below", none, none), ENOTDIR);
    CHECK_ERR(execve("loop", none, none), ELOOP);
    CHECK_ERR(execve("", none, none), ENOENT);
    /* A good ELF header with rubbish behind it. */
    int in = FD(open(self, O_RDONLY)), out = FD(open("rubbish", O_CREAT | O_WRONLY, 0755));
    Elf64_Ehdr header;
    CHECK_EQ(read(in, &header, sizeof header), sizeof header);
    CHECK_EQ(write(out, &header, sizeof header), sizeof header);
    OK(close(out));
    pid_t pid = CHILD({
        execve("rubbish", none, none);
        _exit(55);
    });
    int status = status_of(pid);
    CHECK(status == EXIT_CODE(55) || WIFSIGNALED(status));
    header.e_machine = EM_ARM;
    out = FD(open("foreign", O_CREAT | O_WRONLY, 0755));
    CHECK_EQ(write(out, &header, sizeof header), sizeof header);
    OK(close(out));
    CHECK_ERR(execve("foreign", none, none), ENOEXEC);
    out = FD(open("text", O_WRONLY));
    CHECK_ERR(execve("text", none, none), ETXTBSY);
}

static void exec_script(void) { execl("./script", "zero", "one", "two words", NULL); }
static void exec_nested(void) { execl("./nested", "zero", "one", NULL); }

static void scripts(void)
{
    char output[4 * PATH_MAX];
    /* By a name without blanks, wherever the program lies. */
    OK(symlink(self, "program"));
    write_file("script", "#! ./program --args given  twice \nrest\n", 0755);
    /* Everything after the interpreter is one argument, so it is not understood. */
    CHECK_EQ(capture(exec_script, output, sizeof output), EXIT_CODE(99));
    write_file("script", "#!./program --args\n", 0755);
    CHECK_EQ(capture(exec_script, output, sizeof output), EXIT_CODE(42));
    CHECK(strcmp(output, "./program|--args|./script|one|two words|") == 0);
    write_file("nested", "#!./script  inner arg \n", 0755);
    CHECK_EQ(capture(exec_nested, output, sizeof output), EXIT_CODE(42));
    CHECK(strcmp(output, "./program|--args|./script|inner arg|./nested|one|") == 0);
    /* Nested without end. */
    write_file("endless", "#!./endless\n", 0755);
    char *none[] = {"x", NULL};
    CHECK_ERR(execve("./endless", none, none), ELOOP);
}

static int exec_fd;
static void exec_memory(void)
{
    char *arguments[] = {"memory", "--args", "m", NULL};
    fexecve(exec_fd, arguments, environ);
}

static void exec_through_proc(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", exec_fd);
    execl(path, "deleted", "--args", "d", NULL);
}

static void exec_self_exe(void) { execl("/proc/self/exe", "again", "--args", "e", NULL); }

static void copy_self(int out)
{
    char buffer[65536];
    int in = FD(open(self, O_RDONLY | O_CLOEXEC));
    for (ssize_t got; (got = read(in, buffer, sizeof buffer)) > 0;)
        CHECK_EQ(write(out, buffer, got), got);
    OK(close(in));
}

static void unnamed_files(void)
{
    char output[1024];
    exec_fd = FD(memfd_create("program", MFD_CLOEXEC));
    copy_self(exec_fd);
    CHECK_EQ(capture(exec_memory, output, sizeof output), EXIT_CODE(42));
    CHECK(strcmp(output, "memory|--args|m|") == 0);
    OK(close(exec_fd));

    int out = FD(open("copy", O_CREAT | O_WRONLY, 0755));
    copy_self(out);
    OK(close(out));
    exec_fd = FD(open("copy", O_RDONLY));
    OK(unlink("copy"));
    CHECK_EQ(capture(exec_through_proc, output, sizeof output), EXIT_CODE(42));
    CHECK(strcmp(output, "deleted|--args|d|") == 0);
    CHECK_EQ(capture(exec_memory, output, sizeof output), EXIT_CODE(42));
    CHECK_EQ(capture(exec_self_exe, output, sizeof output), EXIT_CODE(42));
    CHECK(strcmp(output, "again|--args|e|") == 0);
}

static void close_on_exec(void)
{
    int kept = FD(open("/dev/null", O_RDONLY)), closed = FD(open("/dev/null", O_RDONLY | O_CLOEXEC));
    int late = FD(open("/dev/null", O_RDONLY)), early = FD(dup3(closed, 200, O_CLOEXEC));
    OK(fcntl(late, F_SETFD, FD_CLOEXEC));
    OK(fcntl(early, F_SETFD, 0));
    char numbers[4][12];
    snprintf(numbers[0], 12, "%d", kept);
    snprintf(numbers[1], 12, "%d", closed);
    snprintf(numbers[2], 12, "%d", late);
    snprintf(numbers[3], 12, "%d", early);
    pid_t pid = CHILD(execl(self, "forks", "--fds", numbers[0], numbers[1], numbers[2], numbers[3], NULL));
    CHECK_EQ(status_of(pid), EXIT_CODE(1 | 8));
    CHECK_ERR(execl("absent", "absent", NULL), ENOENT);
    CHECK_EQ(fcntl(closed, F_GETFD), FD_CLOEXEC); /* a failed exec closes nothing */
}

static void *exec_from_thread(void *unused)
{
    CHECK(syscall(SYS_gettid) != getpid());
    execl(self, "forks", "--identity", NULL);
    return unused;
}

static void exec_in_thread(void)
{
    pthread_t thread;
    for (int i = 0; i < 3; i++)
        PT(pthread_create(&thread, NULL, sleep_long, NULL));
    PT(pthread_create(&thread, NULL, exec_from_thread, NULL));
    sleep_long(NULL);
}

static void non_leader(void)
{
    char output[64];
    for (int i = 0; i < scaled(5); i++) {
        int out[2];
        OK(pipe(out));
        pid_t pid = CHILD({
            dup2(out[1], 1);
            exec_in_thread();
        });
        JOIN(pid);
        memset(output, 0, sizeof output);
        CHECK(read(out[0], output, sizeof output - 1) > 0);
        CHECK_EQ(atoi(output), pid);
        close(out[0]), close(out[1]);
    }
}

static void handler(int signal) { (void)signal; }

static void kept_over_exec(void)
{
    pid_t pid = CHILD({
        signal(SIGUSR1, handler);
        signal(SIGUSR2, SIG_IGN);
        sigset_t mask;
        sigemptyset(&mask);
        sigaddset(&mask, SIGTERM);
        OK(sigprocmask(SIG_BLOCK, &mask, NULL));
        raise(SIGTERM);
        execl(self, "forks", "--signals", NULL);
    });
    JOIN(pid);
}

static void auxiliary_vector(void)
{
    CHECK_EQ(getauxval(AT_PAGESZ), 4096);
    CHECK_EQ(getauxval(AT_CLKTCK), 100);
    CHECK_EQ(getauxval(AT_PHENT), sizeof(Elf64_Phdr));
    CHECK(getauxval(AT_PHNUM) > 3 && getauxval(AT_ENTRY) != 0);
    CHECK_EQ(getauxval(AT_UID), getuid());
    CHECK_EQ(getauxval(AT_EUID), geteuid());
    CHECK_EQ(getauxval(AT_GID), getgid());
    CHECK_EQ(getauxval(AT_SECURE), 0);
    const Elf64_Phdr *headers = (const Elf64_Phdr *)getauxval(AT_PHDR);
    CHECK(headers != NULL);
    int loads = 0;
    for (unsigned long i = 0; i < getauxval(AT_PHNUM); i++)
        loads += headers[i].p_type == PT_LOAD;
    CHECK(loads >= 1);
    const unsigned char *random = (const unsigned char *)getauxval(AT_RANDOM);
    CHECK(random != NULL);
    int nonzero = 0;
    for (int i = 0; i < 16; i++)
        nonzero += random[i] != 0;
    CHECK(nonzero > 4);
    CHECK(strcmp((const char *)getauxval(AT_PLATFORM), "x86_64") == 0);
    char resolved[PATH_MAX];
    CHECK(getauxval(AT_EXECFN) != 0);
    CHECK(((const char *)getauxval(AT_EXECFN))[0] != '/'
          || (realpath((const char *)getauxval(AT_EXECFN), resolved) && strcmp(resolved, self) == 0));
    const unsigned char *vdso = (const unsigned char *)getauxval(AT_SYSINFO_EHDR);
    if (vdso)
        CHECK(memcmp(vdso, ELFMAG, SELFMAG) == 0);
    else
        NOTE("no vDSO");
}

static void descriptors_of_processes(void)
{
    pid_t pid = CHILD(for (;;) pause());
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0 && errno == ENOSYS) {
        OK(kill(pid, SIGKILL));
        SKIP("no pidfd_open");
    }
    CHECK(fd >= 0);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
    struct pollfd wait_for = {fd, POLLIN, 0};
    CHECK_EQ(poll(&wait_for, 1, 0), 0);
    OK(syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0));
    CHECK_EQ(poll(&wait_for, 1, 10000), 1);
    siginfo_t info;
    OK(waitid(P_PIDFD, fd, &info, WEXITED));
    CHECK(info.si_pid == pid && info.si_status == SIGTERM);
    CHECK_ERR(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0), ESRCH);
}

/* A clone that is refused late leaves nothing, however often it is tried. Only a first process has none to be a sister to. */
static void refused_sisters(void)
{
    if (getpid() != 1)
        SKIP("not the first process");
    for (int i = 0; i < 5000; i++)
        CHECK_ERR(syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL), EINVAL);
}

int main(int argc, char **argv)
{
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(length > 0);
    if (argc > 1 && strncmp(argv[1], "--", 2) == 0 && strncmp(argv[1], "--scale", 7) != 0
        && strncmp(argv[1], "--timeout", 9) != 0 && strcmp(argv[1], "--list") != 0 && strcmp(argv[1], "--no-fork") != 0)
        return run_as_child(argc, argv);
    static const struct test tests[] = {
        TEST(deep),          TEST(wide),       TEST(shared_parent),  TEST(from_threads),   TEST(exits_with_threads),
        TEST(zombies),       TEST(waiting),    TEST(stopping),       TEST(orphans),        TEST(parent_death),
        TEST(groups),        TEST(orphaned_group), TEST(arguments),  TEST(refusals),       TEST(scripts),
        TEST(unnamed_files), TEST(close_on_exec), TEST(non_leader),  TEST(kept_over_exec), TEST(auxiliary_vector),
        TEST(descriptors_of_processes), TEST(chosen_end_signals), TEST(refused_sisters),
    };
    return RUN_TESTS("forks", tests, argc, argv);
}
