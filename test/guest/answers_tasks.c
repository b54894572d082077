/* What calls on processes answer at their edges: waiting, executing, zombies, scheduling. */
#include "check.h"
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

static int pidfd_open_(pid_t pid, unsigned flags)
{
    return (int)syscall(SYS_pidfd_open, pid, flags);
}

static int raw_waitid(int kind, int id, siginfo_t *info, int options)
{
    return (int)syscall(SYS_waitid, kind, id, info, options, NULL);
}

static pid_t zombie(void)
{
    pid_t pid = CHILD({});
    siginfo_t info;
    OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
    return pid;
}

/* A zombie will neither stop nor continue: whoever waits for that alone is told that there is no child. */
static void waiting_for_the_dead(void)
{
    siginfo_t info = {0};
    pid_t pid = zombie();
    CHECK_ERR(waitid(P_PID, pid, &info, WSTOPPED), ECHILD);
    CHECK_ERR(waitid(P_PID, pid, &info, WCONTINUED), ECHILD);
    CHECK_ERR(waitid(P_ALL, 0, &info, WSTOPPED | WNOHANG), ECHILD);
    OK(waitid(P_PID, pid, &info, WEXITED | WSTOPPED));
    CHECK_EQ(info.si_pid, pid);
    CHECK_ERR(waitid(P_PID, pid, &info, WEXITED), ECHILD);
    /* Beside a living child it waits, or says that nothing has come yet. */
    pid_t living = CHILD(pause());
    pid = zombie();
    info.si_pid = 77;
    OK(waitid(P_ALL, 0, &info, WSTOPPED | WNOHANG));
    CHECK_EQ(info.si_pid, 0);
    OK(kill(living, SIGKILL));
    CHECK_KILLED(living, SIGKILL);
    JOIN(pid);
}

/* A child that dies ends the wait for its stop. */
static void dying_while_waited_for(void)
{
    siginfo_t info = {0};
    pid_t pid = CHILD({ sleep_ms(50); });
    CHECK_ERR(waitid(P_PID, pid, &info, WSTOPPED), ECHILD);
    JOIN(pid);
}

static void waiting_by_descriptor(void)
{
    siginfo_t info = {0};
    pid_t pid = CHILD(pause());
    int fd = FD(pidfd_open_(pid, O_NONBLOCK));
    CHECK_ERR(raw_waitid(P_PIDFD, fd, &info, WEXITED), EAGAIN);
    OK(raw_waitid(P_PIDFD, fd, &info, WEXITED | WNOHANG));
    CHECK_EQ(info.si_pid, 0);
    CHECK_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    OK(kill(pid, SIGKILL));
    OK(fcntl(fd, F_SETFL, 0));
    OK(raw_waitid(P_PIDFD, fd, &info, WEXITED));
    CHECK_EQ(info.si_pid, pid);
    CHECK_ERR(raw_waitid(P_PIDFD, fd, &info, WEXITED), ECHILD);
    CHECK_ERR(raw_waitid(P_PIDFD, 0, &info, WEXITED), EBADF);
    CHECK_ERR(raw_waitid(P_PIDFD, -1, &info, WEXITED), EINVAL);
    CHECK_ERR(pidfd_open_(pid, 0), ESRCH);
    CHECK_ERR(pidfd_open_(-1, 0), EINVAL);
    CHECK_ERR(pidfd_open_(getpid(), 1), EINVAL);
}

static volatile sig_atomic_t keptsignal, keptcode, keptvalue;
static void on_signal(int number, siginfo_t *info, void *context UNUSED)
{
    keptsignal = number;
    keptcode = info->si_code;
    keptvalue = info->si_value.sival_int;
}

static int pidfd_signal(int fd, int number, siginfo_t *info, unsigned flags)
{
    return (int)syscall(SYS_pidfd_send_signal, fd, number, info, flags);
}

static void signalling_by_descriptor(void)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGUSR1, &action, NULL));
    int fd = FD(pidfd_open_(getpid(), 0));
    OK(pidfd_signal(fd, 0, NULL, 0));
    OK(pidfd_signal(fd, SIGUSR1, NULL, 0));
    CHECK_EQ(keptsignal, SIGUSR1);
    CHECK_EQ(keptcode, SI_USER);
    siginfo_t info = {.si_signo = SIGUSR1, .si_code = SI_QUEUE};
    info.si_value.sival_int = 4711;
    OK(pidfd_signal(fd, SIGUSR1, &info, 0));
    CHECK_EQ(keptvalue, 4711);
    /* To itself a process may say anything. */
    info.si_code = SI_USER;
    OK(pidfd_signal(fd, SIGUSR1, &info, 0));
    info.si_code = SI_KERNEL;
    OK(pidfd_signal(fd, SIGUSR1, &info, 0));
    CHECK_EQ(keptcode, SI_KERNEL);
    CHECK_ERR(pidfd_signal(fd, SIGUSR2, &info, 0), EINVAL);
    CHECK_ERR(pidfd_signal(fd, SIGUSR1, NULL, 77), EINVAL);
    CHECK_ERR(pidfd_signal(fd, 65, NULL, 0), EINVAL);
    int null = FD(open("/dev/null", O_RDONLY));
    CHECK_ERR(pidfd_signal(null, 0, NULL, 0), EBADF);
    CHECK_ERR(pidfd_signal(-1, 0, NULL, 0), EBADF);
    /* A process's folder in /proc is as good as a pidfd. */
    char path[64];
    snprintf(path, sizeof path, "/proc/%d", getpid());
    int folder = FD(open(path, O_RDONLY | O_DIRECTORY));
    keptsignal = 0;
    OK(pidfd_signal(folder, SIGUSR1, NULL, 0));
    CHECK_EQ(keptsignal, SIGUSR1);
    int proc = FD(open("/proc", O_RDONLY | O_DIRECTORY));
    CHECK_ERR(pidfd_signal(proc, 0, NULL, 0), EBADF);
    pid_t pid = CHILD(pause());
    snprintf(path, sizeof path, "/proc/%d", pid);
    int theirs = FD(open(path, O_RDONLY | O_DIRECTORY));
    info.si_code = SI_USER;
    CHECK_ERR(pidfd_signal(theirs, SIGUSR1, &info, 0), EPERM);
    OK(pidfd_signal(theirs, SIGKILL, NULL, 0));
    CHECK_KILLED(pid, SIGKILL);
    CHECK_ERR(pidfd_signal(theirs, SIGKILL, NULL, 0), ESRCH);
}

/* si_errno is the sender's word and arrives as it was sent. */
static void error_numbers(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    OK(sigprocmask(SIG_BLOCK, &set, NULL));
    siginfo_t info = {.si_signo = SIGRTMIN, .si_errno = 1234, .si_code = SI_QUEUE}, got;
    info.si_pid = 99;
    info.si_uid = 98;
    info.si_value.sival_int = 97;
    OK(syscall(SYS_rt_sigqueueinfo, getpid(), SIGRTMIN, &info));
    CHECK_EQ(sigwaitinfo(&set, &got), SIGRTMIN);
    CHECK_EQ(got.si_errno, 1234);
    CHECK_EQ(got.si_pid, 99);
    CHECK_EQ(got.si_uid, 98);
    CHECK_EQ(got.si_value.sival_int, 97);
    OK(syscall(SYS_rt_tgsigqueueinfo, getpid(), getpid(), SIGRTMIN, &info));
    CHECK_EQ(sigwaitinfo(&set, &got), SIGRTMIN);
    CHECK_EQ(got.si_errno, 1234);
    int fd = FD(pidfd_open_(getpid(), 0));
    OK(pidfd_signal(fd, SIGRTMIN, &info, 0));
    CHECK_EQ(sigwaitinfo(&set, &got), SIGRTMIN);
    CHECK_EQ(got.si_errno, 1234);
}

static void *sleeper(void *unused UNUSED)
{
    pause();
    return NULL;
}

static void *execute_from_vfork(void *unused UNUSED)
{
    pid_t pid = vfork();
    if (pid == 0) {
        execl("/bin/true", "true", NULL);
        _exit(9);
    }
    JOIN(pid);
    return NULL;
}

/* A thread that is not the leader runs a program in the place of all, and by vfork one beside them. */
static void *execute_as_all(void *unused UNUSED)
{
    execl("/bin/sh", "sh", "-c", "exit 5", NULL);
    return NULL;
}

static void executing_from_threads(void)
{
    pthread_t thread;
    for (int i = 0; i < 20; i++) {
        PT(pthread_create(&thread, NULL, execute_from_vfork, NULL));
        PT(pthread_join(thread, NULL));
    }
    pid_t pid = CHILD({
        PT(pthread_create(&thread, NULL, sleeper, NULL));
        PT(pthread_create(&thread, NULL, execute_as_all, NULL));
        PT(pthread_join(thread, NULL));
    });
    int status = status_of(pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    /* The leader waits for its vfork'ed child; another thread executes meanwhile. */
    pid = CHILD({
        PT(pthread_create(&thread, NULL, execute_as_all, NULL));
        pid_t inner = vfork();
        if (inner == 0) {
            struct timespec left = {0, 300000000};
            syscall(SYS_nanosleep, &left, NULL);
            _exit(0);
        }
        for (;;)
            pause();
    });
    status = status_of(pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

struct clone_stack {
    char bytes[65536] __attribute__((aligned(16)));
};

static int thread_in_vfork(void *unused UNUSED)
{
    execl("/bin/sh", "sh", "-c", "exit 6", NULL);
    _exit(9);
}

/* A vfork'ed child that is executed by one of its own threads, while its leader waits. */
static void executing_by_a_vforked_thread(void)
{
    static struct clone_stack stack;
    pid_t pid = vfork();
    if (pid == 0) {
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
        clone(thread_in_vfork, stack.bytes + sizeof stack.bytes, flags, NULL);
        for (;;)
            syscall(SYS_pause);
    }
    int status = status_of(pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 6);
}

static ssize_t read_of(pid_t pid, const char *name, char *text, size_t room)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return -errno;
    ssize_t got = read(fd, text, room - 1);
    if (got < 0)
        got = -errno;
    else
        text[got] = 0;
    close(fd);
    return got;
}

static void zombies(void)
{
    pid_t pid = zombie();
    char text[4096], path[64];
    CHECK_EQ(state_of(pid), 'Z');
    CHECK(read_of(pid, "status", text, sizeof text) > 0);
    CHECK(strstr(text, "State:\tZ (zombie)") != NULL);
    CHECK(strstr(text, "VmSize") == NULL);
    CHECK(strstr(text, "Threads:\t1\n") != NULL);
    CHECK_EQ(read_of(pid, "cmdline", text, sizeof text), 0);
    CHECK_EQ(read_of(pid, "maps", text, sizeof text), 0);
    CHECK(read_of(pid, "environ", text, sizeof text) <= 0);
    CHECK(read_of(pid, "comm", text, sizeof text) > 0);
    CHECK(strcmp(text, "answers_tasks\n") == 0);
    CHECK(read_of(pid, "statm", text, sizeof text) > 0);
    CHECK(strcmp(text, "0 0 0 0 0 0 0\n") == 0);
    CHECK(read_of(pid, "limits", text, sizeof text) > 0);
    CHECK(read_of(pid, "cgroup", text, sizeof text) > 0);
    CHECK(read_of(pid, "oom_score_adj", text, sizeof text) > 0);
    static const char *links[] = {"exe", "cwd", "root"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, links[i]);
        CHECK_ERR(readlink(path, text, sizeof text), ENOENT);
    }
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *directory = opendir(path);
    if (directory) {
        int entries = 0;
        while (readdir(directory))
            entries++;
        CHECK(entries <= 2);
        closedir(directory);
    }
    OK(kill(pid, 0));
    OK(kill(pid, SIGKILL));
    CHECK_EQ(getpgid(pid), getpgrp());
    CHECK_EQ(getsid(pid), getsid(0));
    cpu_set_t set;
    OK(sched_getaffinity(pid, sizeof set, &set));
    OK(sched_setaffinity(pid, sizeof set, &set));
    struct sched_param param;
    struct timespec interval;
    OK(sched_getparam(pid, &param));
    CHECK_EQ(sched_getscheduler(pid), SCHED_OTHER);
    OK(sched_rr_get_interval(pid, &interval));
    OK(sched_setscheduler(pid, SCHED_BATCH, &param));
    errno = 0;
    CHECK(getpriority(PRIO_PROCESS, pid) == 0 && errno == 0);
    OK(setpriority(PRIO_PROCESS, pid, 5));
    CHECK_EQ(getpriority(PRIO_PROCESS, pid), 5);
    struct rlimit limit;
    OK(prlimit(pid, RLIMIT_NOFILE, NULL, &limit));
    int fd = FD(pidfd_open_(pid, 0));
    OK(pidfd_signal(fd, 0, NULL, 0));
    CHECK_ERR(syscall(SYS_pidfd_getfd, fd, 0, 0), ESRCH);
    clockid_t clock;
    struct timespec spent;
    OK(clock_getcpuclockid(pid, &clock));
    OK(clock_gettime(clock, &spent));
    JOIN(pid);
    CHECK_EQ(state_of(pid), 0);
    CHECK_ERR(sched_getaffinity(pid, sizeof set, &set), ESRCH);
    CHECK_ERR(sched_getscheduler(pid), ESRCH);
    CHECK_ERR(getpriority(PRIO_PROCESS, pid), ESRCH);
    CHECK_ERR(getpgid(pid), ESRCH);
    CHECK_ERR(kill(pid, 0), ESRCH);
}

static void affinity_masks(void)
{
    cpu_set_t all, one, kept;
    OK(sched_getaffinity(0, sizeof all, &all));
    for (int round = 0; round < 50; round++)
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (!CPU_ISSET(cpu, &all))
                continue;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            OK(sched_setaffinity(0, sizeof one, &one));
            CHECK(sched_getaffinity(0, sizeof kept, &kept) == 0 && CPU_EQUAL(&one, &kept));
        }
    OK(sched_setaffinity(0, sizeof all, &all));
    CPU_ZERO(&one);
    CHECK_ERR(sched_setaffinity(0, sizeof one, &one), EINVAL);
    CHECK_ERR(sched_setaffinity(0, sizeof one, (void *)8), EFAULT);
    CHECK_ERR(sched_setaffinity(-1, sizeof one, &all), ESRCH);
    CHECK_ERR(sched_setaffinity(INT_MAX, sizeof one, &all), ESRCH);
    /* Sets of any size of whole words are filled as far as the kernel's own goes. */
    static unsigned long large[4096];
    memset(large, 0xff, sizeof large);
    long got = syscall(SYS_sched_getaffinity, 0, sizeof large, large);
    CHECK(got > 0 && got <= 1024);
    CHECK_EQ(got % sizeof(long), 0);
    CHECK_EQ(large[got / sizeof(long)], -1UL);
    CHECK(memcmp(large, &all, got < 128 ? got : 128) == 0);
    CHECK_ERR(syscall(SYS_sched_getaffinity, 0, got - 1, large), EINVAL);
    CHECK_ERR(syscall(SYS_sched_getaffinity, 0, 7, large), EINVAL);
    CHECK_ERR(syscall(SYS_sched_getaffinity, -1, sizeof large, large), ESRCH);
    CHECK_ERR(syscall(SYS_sched_getaffinity, 0, got, 8), EFAULT);
    OK(syscall(SYS_sched_setaffinity, 0, sizeof large, memset(large, 0xff, sizeof large)));
    unsigned char byte = 0xff;
    OK(syscall(SYS_sched_setaffinity, 0, 1, &byte));
    OK(sched_setaffinity(0, sizeof all, &all));
}

static void memory_of_children(void)
{
    struct rusage usage, of_child;
    OK(getrusage(RUSAGE_CHILDREN, &usage));
    pid_t pid = CHILD({
        size_t bytes = 24 << 20;
        char *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(pages != MAP_FAILED);
        memset(pages, 1, bytes);
        OK(munmap(pages, bytes));
        struct rusage own;
        OK(getrusage(RUSAGE_SELF, &own));
        CHECK(own.ru_maxrss >= 24 << 10);
    });
    int status;
    CHECK_EQ(wait4(pid, &status, 0, &of_child), pid);
    CHECK_EQ(status, 0);
    CHECK(of_child.ru_maxrss >= 24 << 10);
    CHECK(of_child.ru_maxrss < 100 << 10);
    OK(getrusage(RUSAGE_CHILDREN, &usage));
    CHECK(usage.ru_maxrss >= 24 << 10);
    CHECK(usage.ru_maxrss < 100 << 10);
}

/* Touches new pages: faults of this thread. */
static void touch_pages(void)
{
    size_t bytes = 1 << 20;
    char *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    memset(pages, 1, bytes);
    OK(munmap(pages, bytes));
}

static void *count_own(void *used)
{
    struct rusage before;
    OK(getrusage(RUSAGE_THREAD, &before));
    touch_pages();
    sleep_ms(1);
    OK(getrusage(RUSAGE_THREAD, used));
    CHECK(((struct rusage *)used)->ru_minflt > before.ru_minflt);
    CHECK(((struct rusage *)used)->ru_nvcsw > before.ru_nvcsw);
    return NULL;
}

/* The counts by which /proc/self/stat knows faults: minflt, cminflt, majflt, cmajflt. */
static void fault_counts(unsigned long counts[4])
{
    char text[1024] = {0};
    int fd = FD(open("/proc/self/stat", O_RDONLY));
    CHECK(read(fd, text, sizeof text - 1) > 0);
    OK(close(fd));
    const char *behind = strrchr(text, ')');
    CHECK(behind != NULL);
    CHECK_EQ(sscanf(behind, ") %*c %*d %*d %*d %*d %*d %*u %lu %lu %lu %lu", &counts[0], &counts[1], &counts[2],
                    &counts[3]), 4);
}

/* Faults and switches of threads and children that have ended still count. */
static void counts_of_the_ended(void)
{
    struct rusage before, of_thread, after, children, more;
    unsigned long counts[4];
    OK(getrusage(RUSAGE_SELF, &before));
    pthread_t thread;
    PT(pthread_create(&thread, NULL, count_own, &of_thread));
    PT(pthread_join(thread, NULL));
    OK(getrusage(RUSAGE_SELF, &after));
    CHECK(after.ru_minflt >= before.ru_minflt + of_thread.ru_minflt);
    CHECK(after.ru_nvcsw >= before.ru_nvcsw + of_thread.ru_nvcsw);
    fault_counts(counts);
    CHECK(counts[0] >= (unsigned long)after.ru_minflt);
    CHECK(counts[2] >= (unsigned long)after.ru_majflt);
    OK(getrusage(RUSAGE_CHILDREN, &children));
    pid_t pid = CHILD(touch_pages());
    int status;
    struct rusage of_child;
    CHECK_EQ(wait4(pid, &status, 0, &of_child), pid);
    CHECK_EQ(status, 0);
    CHECK(of_child.ru_minflt > 0);
    OK(getrusage(RUSAGE_CHILDREN, &more));
    CHECK_EQ(more.ru_minflt, children.ru_minflt + of_child.ru_minflt);
    CHECK_EQ(more.ru_majflt, children.ru_majflt + of_child.ru_majflt);
    CHECK_EQ(more.ru_nvcsw, children.ru_nvcsw + of_child.ru_nvcsw);
    fault_counts(counts);
    CHECK_EQ(counts[1], more.ru_minflt);
    CHECK_EQ(counts[3], more.ru_majflt);
}

/* What a program is told of its own name. */
static void executed_names(void)
{
    char self[PATH_MAX] = {0}, text[256] = {0};
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    OK(symlink(self, "by-link"));
    int ends[2];
    OK(pipe(ends));
    const char *paths[] = {self, "./by-link"};
    for (int i = 0; i < 2; i++) {
        JOIN(CHILD({
            OK(dup2(ends[1], 1) - 1);
            execl(paths[i], "name", "--execfn", NULL);
        }));
        ssize_t got = read(ends[0], text, sizeof text - 1);
        CHECK(got >= 0);
        text[got] = 0;
        CHECK(strcmp(text, paths[i]) == 0);
    }
    int fd = FD(open(self, O_RDONLY));
    char want[64];
    snprintf(want, sizeof want, "/dev/fd/%d", fd);
    JOIN(CHILD({
        OK(dup2(ends[1], 1) - 1);
        char *arguments[] = {"name", "--execfn", NULL}, *none[] = {NULL};
        syscall(SYS_execveat, fd, "", arguments, none, AT_EMPTY_PATH);
    }));
    ssize_t got = read(ends[0], text, sizeof text - 1);
    text[got] = 0;
    CHECK(strcmp(text, want) == 0);
    int dir = FD(open(".", O_RDONLY | O_DIRECTORY));
    snprintf(want, sizeof want, "/dev/fd/%d/by-link", dir);
    JOIN(CHILD({
        OK(dup2(ends[1], 1) - 1);
        char *arguments[] = {"name", "--execfn", NULL}, *none[] = {NULL};
        syscall(SYS_execveat, dir, "by-link", arguments, none, 0);
    }));
    got = read(ends[0], text, sizeof text - 1);
    text[got] = 0;
    CHECK(strcmp(text, want) == 0);
    CHECK_ERR(syscall(SYS_execveat, dir, "by-link", NULL, NULL, AT_SYMLINK_NOFOLLOW), ELOOP);
    CHECK_ERR(syscall(SYS_execveat, dir, "by-link", NULL, NULL, 0x80), EINVAL);
}

/* A process that runs a script has the script's name, also where the interpreter is a script itself. */
static void names_of_scripts(void)
{
    write_file("first", "#!/bin/sh\nread name </proc/$$/comm\n[ \"$name\" = \"$2\" ] && [ \"${1##*/}\" = second -o $# = 2 ] && exit 5\n", 0755);
    write_file("second", "#!./first\n", 0755);
    int status;
    pid_t child = CHILD({ execl("./first", "any", "1", "first", NULL); });
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    child = CHILD({ execl("./second", "any", "second", NULL); });
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

/* An interpreter could not open its script by a descriptor that is closed: ENOENT, as for any missing interpreter. */
static void scripts_by_descriptor(void)
{
    write_file("script", "#!/bin/sh\nexit 3\n", 0755);
    char *arguments[] = {"script", NULL}, *none[] = {NULL};
    int fd = FD(open("script", O_RDONLY | O_CLOEXEC));
    CHECK_ERR(syscall(SYS_execveat, fd, "", arguments, none, AT_EMPTY_PATH), ENOENT);
    int dir = FD(open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    CHECK_ERR(syscall(SYS_execveat, dir, "script", arguments, none, 0), ENOENT);
    OK(fcntl(fd, F_SETFD, 0));
    int status = status_of(CHILD(syscall(SYS_execveat, fd, "", arguments, none, AT_EMPTY_PATH)));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    OK(fcntl(dir, F_SETFD, 0));
    status = status_of(CHILD(syscall(SYS_execveat, dir, "script", arguments, none, 0)));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    char program[PATH_MAX] = {0};
    CHECK(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
    fd = FD(open(program, O_RDONLY | O_CLOEXEC));
    char *quiet[] = {"name", "--list", NULL};
    JOIN(CHILD({
        OK(close(1));
        FD(open("/dev/null", O_WRONLY));
        syscall(SYS_execveat, fd, "", quiet, none, AT_EMPTY_PATH);
    }));
    write_file("lost", "#!/no/such/interpreter\n", 0755);
    CHECK_ERR(execl("lost", "lost", NULL), ENOENT);
    write_file("empty", "", 0755);
    CHECK_ERR(execl("empty", "empty", NULL), ENOEXEC);
    write_file("bare", "#!\n", 0755);
    CHECK_ERR(execl("bare", "bare", NULL), ENOEXEC);
    write_file("loop", "#!./loop\n", 0755);
    CHECK_ERR(execl("loop", "loop", NULL), ELOOP);
    write_file("closed", "#!/bin/sh\n", 0644);
    CHECK_ERR(execl("closed", "closed", NULL), EACCES);
    CHECK_ERR(execl(".", "dir", NULL), EACCES);
    CHECK_ERR(execl("", "none", NULL), ENOENT);
}

/* One version everywhere, and new enough for the calls that are there. */
static void version(void)
{
    struct utsname name;
    char release[256] = {0}, text[1024] = {0};
    OK(uname(&name));
    int major, minor;
    CHECK_EQ(sscanf(name.release, "%d.%d", &major, &minor), 2);
    CHECK(major > 6 || (major == 6 && minor >= 12) || major * 100 + minor >= 504);
    int fd = FD(open("/proc/sys/kernel/osrelease", O_RDONLY));
    ssize_t got = read(fd, release, sizeof release - 1);
    CHECK_EQ(got, strlen(name.release) + 1);
    CHECK(strncmp(release, name.release, got - 1) == 0);
    fd = FD(open("/proc/version", O_RDONLY));
    CHECK(read(fd, text, sizeof text - 1) > 0);
    snprintf(release, sizeof release, "Linux version %s ", name.release);
    CHECK(strncmp(text, release, strlen(release)) == 0);
    CHECK(strstr(text, name.version) != NULL);
}

static void *work_apart(void *argument)
{
    UNUSED void *nothing = argument;
    OK(unshare(CLONE_FS | CLONE_FILES | CLONE_SYSVSEM));
    OK(mkdir("apart", 0755));
    OK(chdir("apart"));
    umask(077);
    OK(close(0));
    return NULL;
}

/* A thread that has its own working directory and descriptors. */
static void unsharing(void)
{
    OK(unshare(0));
    OK(unshare(CLONE_FILES));
    OK(unshare(CLONE_THREAD | CLONE_SIGHAND | CLONE_VM));
    CHECK_ERR(unshare(1), EINVAL);
    char before[PATH_MAX], after[PATH_MAX];
    CHECK(getcwd(before, sizeof before) != NULL);
    mode_t mask = umask(022);
    int zero = FD(open("/dev/null", O_RDONLY));
    if (zero != 0)
        OK(dup2(zero, 0));
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, work_apart, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(getcwd(after, sizeof after) != NULL && strcmp(before, after) == 0);
    CHECK_EQ(umask(mask), 022);
    OK(fcntl(0, F_GETFD));
}

static void *unshare_memory(void *argument)
{
    *(int *)argument = unshare(CLONE_VM) < 0 ? errno : 0;
    return NULL;
}

static void threads_share_their_memory(void)
{
    int error = 0;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, unshare_memory, &error), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(error, EINVAL);
}

/* kcmp(2), which kernels may be built without. */
static void comparing(void)
{
    enum { OF_FILES = 0, OF_MEMORY = 1, OF_TABLES = 2, UNKNOWN = 99 };
    int one = FD(open("/dev/null", O_RDONLY)), copy = FD(dup(one)), other = FD(open("/dev/null", O_RDONLY));
    long me = getpid(), same = syscall(SYS_kcmp, me, me, OF_FILES, one, copy);
    if (same < 0 && errno == ENOSYS)
        return;
    CHECK_EQ(same, 0);
    long order = syscall(SYS_kcmp, me, me, OF_FILES, one, other), back = syscall(SYS_kcmp, me, me, OF_FILES, other, one);
    CHECK(order + back == 3 && (order == 1 || order == 2));
    CHECK_EQ(syscall(SYS_kcmp, me, me, OF_MEMORY, 0, 0), 0);
    CHECK_ERR(syscall(SYS_kcmp, me, me, OF_FILES, one, 999), EBADF);
    CHECK_ERR(syscall(SYS_kcmp, me, me, UNKNOWN, 0, 0), EINVAL);
    CHECK_ERR(syscall(SYS_kcmp, me, 999999, OF_MEMORY, 0, 0), ESRCH);
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    CHECK_EQ(syscall(SYS_kcmp, me, child, OF_FILES, one, one), 0);
    CHECK(syscall(SYS_kcmp, me, child, OF_TABLES, 0, 0) > 0 && syscall(SYS_kcmp, me, child, OF_MEMORY, 0, 0) > 0);
    OK(kill(child, SIGKILL));
    CHECK_EQ(waitpid(child, NULL, 0), child);
}

/* pidfd_getfd(2). */
static void descriptors_of_others(void)
{
    int ends[2], told[2];
    OK(pipe(told));
    pid_t child = fork();
    if (child == 0) {
        OK(pipe(ends));
        CHECK_EQ(write(ends[1], "x", 1), 1);
        CHECK_EQ(write(told[1], ends, sizeof ends), sizeof ends);
        for (;;)
            pause();
    }
    CHECK_EQ(read(told[0], ends, sizeof ends), sizeof ends);
    int process = FD((int)syscall(SYS_pidfd_open, child, 0));
    CHECK_ERR(syscall(SYS_pidfd_getfd, process, ends[0], 1), EINVAL);
    CHECK_ERR(syscall(SYS_pidfd_getfd, process, 999, 0), EBADF);
    CHECK_ERR(syscall(SYS_pidfd_getfd, told[0], 0, 0), EBADF);
    int got = FD((int)syscall(SYS_pidfd_getfd, process, ends[0], 0));
    CHECK_EQ(fcntl(got, F_GETFD), FD_CLOEXEC);
    char byte;
    CHECK_EQ(read(got, &byte, 1), 1);
    /* One of another user. */
    if (geteuid() == 0)
        JOIN(CHILD({
            OK(setgid(12345));
            OK(setuid(12345));
            CHECK_ERR(syscall(SYS_pidfd_getfd, process, ends[0], 0), EPERM);
        }));
    OK(kill(child, SIGKILL));
    CHECK_EQ(waitpid(child, NULL, 0), child);
    CHECK_ERR(syscall(SYS_pidfd_getfd, process, ends[0], 0), ESRCH);
}

static void what_is_kept(void)
{
    int number = 0, *address = NULL;
    OK(prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0));
    CHECK_EQ(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), 1000);
    JOIN(CHILD({
        CHECK_EQ(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), 1000);
        OK(prctl(PR_SET_TIMERSLACK, 2000, 0, 0, 0));
        OK(prctl(PR_SET_TIMERSLACK, 0, 0, 0, 0));
        CHECK_EQ(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), 1000);
    }));
    OK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    CHECK_EQ(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 1);
    JOIN(CHILD({ CHECK_EQ(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 1); }));
    OK(prctl(PR_SET_TIMING, PR_TIMING_STATISTICAL, 0, 0, 0));
    CHECK_ERR(prctl(PR_SET_TIMING, PR_TIMING_TIMESTAMP, 0, 0, 0), EINVAL);
    OK(prctl(PR_GET_TSC, &number, 0, 0, 0));
    CHECK_EQ(number, PR_TSC_ENABLE);
    if (prctl(PR_GET_TID_ADDRESS, &address, 0, 0, 0) == 0)
        CHECK(address != NULL);
}

static void limited_data(void)
{
    JOIN(CHILD({
        OK(setrlimit(RLIMIT_DATA, &(struct rlimit){1 << 20, 1 << 20}));
        size_t size = 4 << 20;
        CHECK_ERR((long)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), ENOMEM);
        void *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        void *read_only = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(shared != MAP_FAILED && read_only != MAP_FAILED);
        void *small = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(small != MAP_FAILED);
        CHECK_ERR((long)mremap(small, 1 << 16, size, MREMAP_MAYMOVE), ENOMEM);
        CHECK(mremap(shared, size, 2 * size, MREMAP_MAYMOVE) != MAP_FAILED);
        CHECK_ERR(mprotect(read_only, size, PROT_READ | PROT_WRITE), ENOMEM);
        OK(mprotect(read_only, 1 << 16, PROT_READ | PROT_WRITE));
        /* What is replaced makes room for what replaces it. */
        size_t part = 1 << 16;
        void *last = NULL, *next;
        while ((next = mmap(NULL, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED)
            last = next;
        CHECK(last != NULL);
        CHECK(mmap(last, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == last);
    }));
}

static void always_in_the_same_place(void)
{
    enum { NO_RANDOMIZE = 0x40000, ASK = 0xffffffff };
    CHECK_EQ(personality(ASK), 0);
    /* As a sandbox of another runtime might forbid. */
    if (personality(NO_RANDOMIZE) < 0)
        return;
    CHECK_EQ(personality(ASK), NO_RANDOMIZE);
    char before[64], now[64], text[16] = "";
    for (int round = 0; round < 3; round++) {
        FILE *told = popen("sed -n '/\\[stack\\]/s/.*-\\([^ ]*\\) .*/\\1/p' /proc/self/maps", "r");
        CHECK(told != NULL && fgets(now, sizeof now, told) != NULL);
        CHECK_EQ(pclose(told), 0);
        CHECK(round == 0 || strcmp(before, now) == 0);
        strcpy(before, now);
    }
    int fd = FD(open("/proc/self/personality", O_RDONLY));
    CHECK_EQ(read(fd, text, sizeof text), 9);
    CHECK(strcmp(text, "00040000\n") == 0);
    CHECK_EQ(personality(0), NO_RANDOMIZE);
}

/* Personalities of which only uname(2) tells. */
static void names_of_the_system(void)
{
    enum { LINUX32 = 8, UNAME26_ = 0x20000, ASK = 0xffffffff };
    struct utsname plain, other;
    OK(uname(&plain));
    CHECK_EQ(personality(LINUX32), 0);
    OK(uname(&other));
    CHECK(strcmp(other.machine, "i686") == 0 && strcmp(other.release, plain.release) == 0);
    FILE *told = popen("uname -m", "r");
    char text[65] = "";
    CHECK(told != NULL && fgets(text, sizeof text, told) != NULL && strcmp(text, "i686\n") == 0);
    CHECK_EQ(pclose(told), 0);
    CHECK_EQ(personality(UNAME26_), LINUX32);
    OK(uname(&other));
    CHECK(strcmp(other.machine, plain.machine) == 0 && strncmp(other.release, "2.6.", 4) == 0);
    CHECK(strcmp(strchr(other.release, '-') ?: "", strchr(plain.release, '-') ?: "") == 0);
    CHECK_EQ(personality(UNAME26_ | LINUX32), UNAME26_);
    CHECK_EQ(personality(ASK), UNAME26_ | LINUX32);
    CHECK_EQ(personality(0), UNAME26_ | LINUX32);
}

static void names_of_interpreters(void)
{
    static const struct {
        const char *text;
        int error;
    } scripts[] = {{"#!/bin/true\r\n", ENOENT}, {"#! \t/bin/true \t\n", 0}, {"#!/bin/true\0x y\n", 0}, {"#!  \n", ENOEXEC}};
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        int fd = FD(open("script", O_WRONLY | O_CREAT | O_TRUNC, 0755));
        size_t length = i == 2 ? 16 : strlen(scripts[i].text);
        CHECK_EQ(write(fd, scripts[i].text, length), length);
        OK(close(fd));
        JOIN(CHILD({
            char *arguments[] = {"script", NULL};
            execve("./script", arguments, environ);
            CHECK_EQ(errno, scripts[i].error);
        }));
    }
}

static void children_of_a_thread(void)
{
    char name[64], text[64] = "", wanted[16];
    snprintf(name, sizeof name, "/proc/self/task/%d/children", getpid());
    int fd = open(name, O_RDONLY);
    if (fd < 0)
        return; /* A kernel that was built without it. */
    CHECK_EQ(read(fd, text, sizeof text), 0);
    OK(close(fd));
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    fd = FD(open(name, O_RDONLY));
    snprintf(wanted, sizeof wanted, "%d ", child);
    CHECK_EQ(read(fd, text, sizeof text - 1), strlen(wanted));
    CHECK(strcmp(text, wanted) == 0);
    OK(close(fd));
    OK(kill(child, SIGKILL));
    CHECK_EQ(waitpid(child, NULL, 0), child);
}

/* A user's own processes count, and those of others do not. */
static void processes_of_a_user(void)
{
    if (geteuid() != 0)
        SKIP("needs root");
    enum { LIMIT = 4, USER = 54321 };
    JOIN(CHILD({
        struct rlimit limit = {LIMIT, LIMIT};
        pid_t others[LIMIT];
        for (int i = 0; i < LIMIT; i++)
            others[i] = CHILD(pause());
        OK(setrlimit(RLIMIT_NPROC, &limit));
        JOIN(CHILD({
            OK(setresuid(USER, USER, USER));
            pid_t own[LIMIT];
            int made = 0;
            while (made < LIMIT && (own[made] = fork()) >= 0) {
                if (own[made++] == 0) {
                    prctl(PR_SET_PDEATHSIG, SIGKILL);
                    pause();
                }
            }
            CHECK(errno == EAGAIN);
            CHECK_EQ(made, LIMIT - 1);
            for (int i = 0; i < made; i++)
                OK(kill(own[i], SIGKILL));
        }));
        for (int i = 0; i < LIMIT; i++) {
            OK(kill(others[i], SIGKILL));
            status_of(others[i]);
        }
    }));
}

/* membarrier(2): private barriers are for those who have registered; children have what their parent had, programs begin anew. */
static int barrier(int command)
{
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

static void barriers_are_registered_for(void)
{
    enum { QUERY, GLOBAL, GLOBAL_EXPEDITED, REGISTER_GLOBAL = 4, PRIVATE = 8, REGISTER_PRIVATE = 16, SYNC_CORE = 32,
           REGISTER_SYNC_CORE = 64, REGISTRATIONS = 512 };
    int known = barrier(QUERY);
    if (known == -1) {
        CHECK_EQ(errno, ENOSYS);
        SKIP("not known here");
    }
    CHECK_EQ(known & 31, 31);
    CHECK_ERR((int)syscall(SYS_membarrier, QUERY, 1, 0), EINVAL);
    CHECK_ERR(barrier(PRIVATE), EPERM);
    CHECK_ERR(barrier(3), EINVAL);
    CHECK_ERR(barrier(1 << 20), EINVAL);
    OK(barrier(GLOBAL));
    OK(barrier(GLOBAL_EXPEDITED));
    OK(barrier(REGISTER_GLOBAL));
    CHECK_ERR(barrier(PRIVATE), EPERM);
    if (known & REGISTRATIONS)
        CHECK_EQ(barrier(REGISTRATIONS), REGISTER_GLOBAL);
    if (known & SYNC_CORE) {
        CHECK_ERR(barrier(SYNC_CORE), EPERM);
        OK(barrier(REGISTER_SYNC_CORE));
        OK(barrier(SYNC_CORE));
        CHECK_ERR(barrier(PRIVATE), EPERM);
    }
    OK(barrier(REGISTER_PRIVATE));
    OK(barrier(PRIVATE));
    pid_t child = CHILD(OK(barrier(PRIVATE)));
    JOIN(child);
}

static atomic_int wants[2], said;

/* Says that it wants, and looks whether the other does: one of the two sees the other, although only one has a barrier. */
static void *wants_cheaply(void *rounds)
{
    for (int round = 1; round <= (int)(long)rounds; round++) {
        atomic_store_explicit(&wants[0], round, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst);
        int seen = atomic_load_explicit(&wants[1], memory_order_relaxed);
        atomic_store_explicit(&said, seen == round ? 1 : 2, memory_order_release);
        /* The other begins the next round. */
        while (atomic_load_explicit(&said, memory_order_acquire) != 0)
            sched_yield();
    }
    return NULL;
}

static void a_barrier_is_one_for_the_others(void)
{
    enum { PRIVATE = 8, REGISTER_PRIVATE = 16 };
    if (barrier(REGISTER_PRIVATE) != 0)
        SKIP("not known here");
    int rounds = (int)scaled(2000);
    pthread_t thread;
    PT(pthread_create(&thread, NULL, wants_cheaply, (void *)(long)rounds));
    for (int round = 1; round <= rounds; round++) {
        atomic_store_explicit(&wants[1], round, memory_order_relaxed);
        OK(barrier(PRIVATE));
        bool seen = atomic_load_explicit(&wants[0], memory_order_relaxed) == round;
        int other;
        while ((other = atomic_load_explicit(&said, memory_order_acquire)) == 0)
            sched_yield();
        if (!seen && other != 1)
            FAIL("round %d: neither saw the other", round);
        atomic_store_explicit(&said, 0, memory_order_release);
    }
    PT(pthread_join(thread, NULL));
}

/* Who sees a descriptor closed by execve(2) sees no trace of the former program. */
static void closed_for_a_new_program(void)
{
    for (int round = 0; round < 20; round++) {
        int hold[2], shut[2];
        char path[32], end, text[256];
        OK(pipe2(hold, O_CLOEXEC));
        OK(pipe2(shut, O_CLOEXEC));
        pid_t child = fork();
        if (child == 0) {
            char *args[] = {"answers_tasks", "--wait", NULL}, *env[] = {"NEW=1", NULL};
            CHECK_EQ(dup2(hold[0], 0), 0);
            execve("/proc/self/exe", args, env);
            _exit(1);
        }
        CHECK(child > 0);
        close(shut[1]);
        close(hold[0]);
        CHECK_EQ(read(shut[0], &end, 1), 0);
        snprintf(path, sizeof path, "/proc/%d/environ", child);
        int fd = FD(open(path, O_RDONLY));
        ssize_t got = read(fd, text, sizeof text);
        /* It may be so new that it has none yet. */
        CHECK(got == 0 || (got == 6 && strcmp(text, "NEW=1") == 0));
        close(fd);
        close(hold[1]);
        close(shut[0]);
        JOIN(child);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--execfn") == 0) {
        const char *name = (const char *)getauxval(AT_EXECFN);
        return write(1, name, strlen(name)) < 0;
    }
    if (argc == 2 && strcmp(argv[1], "--wait") == 0) {
        char end;
        return read(0, &end, 1) != 0;
    }
    static const struct test tests[] = {
        TEST(closed_for_a_new_program),
        TEST(waiting_for_the_dead),
        TEST(dying_while_waited_for),
        TEST(waiting_by_descriptor),
        TEST(signalling_by_descriptor),
        TEST(error_numbers),
        TEST(executing_from_threads),
        TEST(executing_by_a_vforked_thread),
        TEST(zombies),
        TEST(affinity_masks),
        TEST(memory_of_children),
        TEST(counts_of_the_ended),
        TEST(executed_names),
        TEST(names_of_scripts), TEST(scripts_by_descriptor),
        TEST(version),
        TEST(unsharing),
        TEST(threads_share_their_memory),
        TEST(comparing),
        TEST(descriptors_of_others),
        TEST(what_is_kept),
        TEST(limited_data),
        TEST(children_of_a_thread),
        TEST(always_in_the_same_place),
        TEST(names_of_the_system),
        TEST(names_of_interpreters),
        TEST(processes_of_a_user),
        TEST(barriers_are_registered_for),
        TEST(a_barrier_is_one_for_the_others),
    };
    return RUN_TESTS("answers_tasks", tests, argc, argv);
}
