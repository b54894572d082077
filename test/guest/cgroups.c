/*
 * Control groups of version 2: groups are made and removed, processes move, events are told, limits hold.
 *
 * The file system is mounted by the program itself: in a mount namespace of its own natively, where the groups are the machine's
 * and what needs a controller that version 1 has taken is left out; in a sandbox where there is only the container's own.
 */
#include "check.h"

#include <linux/magic.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

/* The group of a test, below which it makes its own. */
static char base[700];

static bool in_sandbox(void)
{
    char text[256] = "";
    int fd = FD(open("/proc/version", O_RDONLY));
    CHECK(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return strstr(text, "dormouse") != NULL;
}

static const char *in_base(const char *name)
{
    static char paths[8][1024];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", base, name);
    return path;
}

/* Everything in a file, up to 4095 bytes. */
static const char *content(const char *path)
{
    static char texts[4][4096];
    static int next;
    char *text = texts[next++ % 4];
    int fd = FD(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t got = read(fd, text, sizeof texts[0] - 1);
    CHECK(got >= 0);
    text[got] = 0;
    close(fd);
    return text;
}

/* 0, or -1 and errno. */
static int put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t put = write(fd, text, strlen(text));
    int error = errno;
    close(fd);
    errno = error;
    return put == (ssize_t)strlen(text) ? 0 : -1;
}

static int put_number(const char *path, long number)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", number);
    return put(path, text);
}

static bool lists(const char *path, pid_t pid)
{
    char line[32];
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    bool found = false;
    while (fgets(line, sizeof line, file))
        found |= atoi(line) == pid;
    fclose(file);
    return found;
}

static bool is_populated(const char *group)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/cgroup.events", in_base(group));
    return number_in(path, "populated ") == 1;
}

/* Whether /proc/PID/cgroup says that a process is in a group whose path ends so. */
static bool is_in(pid_t pid, const char *end)
{
    char path[64], text[1100];
    snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    const char *line = strstr(content(path), "0::");
    CHECK(line != NULL);
    snprintf(text, sizeof text, "%s", line);
    text[strcspn(text, "\n")] = 0;
    size_t length = strlen(text);
    return length >= strlen(end) && !strcmp(text + length - strlen(end), end);
}

/* A child that sleeps until it is killed. */
static pid_t sleeper(void)
{
    return CHILD(for (;;) pause());
}

static void end(pid_t pid)
{
    OK(kill(pid, SIGKILL));
    CHECK_KILLED(pid, SIGKILL);
}

/* Mounts the file system and makes the test's own group; false if that cannot be. */
static bool begins(void)
{
    char place[512];
    CHECK(getcwd(place, sizeof place - 8) != NULL);
    strcat(place, "/fs");
    OK(mkdir(place, 0755));
    if (!in_sandbox() && (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)) {
        NOTE("a mount namespace of its own needs root");
        return false;
    }
    if (mount("cgroup2", place, "cgroup2", 0, NULL) != 0) {
        NOTE("cgroup2 cannot be mounted");
        return false;
    }
    snprintf(base, sizeof base, "%s/test-%d", place, getpid());
    if (mkdir(base, 0755) != 0) {
        NOTE("groups cannot be made in the machine's cgroup2");
        return false;
    }
    return true;
}

static void ends(void)
{
    OK(rmdir(base));
    OK(umount2("fs", MNT_DETACH));
}

#define BEGIN()                                                                                                        \
    do {                                                                                                               \
        if (!begins())                                                                                                 \
            return;                                                                                                    \
    } while (0)

static void groups_are_directories(void)
{
    BEGIN();
    struct statfs fs;
    OK(statfs(base, &fs));
    CHECK_EQ(fs.f_type, CGROUP2_SUPER_MAGIC);
    OK(mkdir(in_base("a"), 0750));
    struct stat stat_a, stat_file;
    OK(stat(in_base("a"), &stat_a));
    CHECK_EQ(stat_a.st_mode & 07777, 0750 & ~umask(022));
    OK(stat(in_base("a/cgroup.procs"), &stat_file));
    CHECK(S_ISREG(stat_file.st_mode));
    CHECK_EQ(stat_file.st_mode & 0777, 0644);
    CHECK_EQ(stat_file.st_uid, getuid());
    OK(stat(in_base("a/cgroup.events"), &stat_file));
    CHECK_EQ(stat_file.st_mode & 0777, 0444);
    CHECK_ERR(mkdir(in_base("a"), 0755), EEXIST);
    CHECK_ERR(mkdir(in_base("cgroup.procs"), 0755), EEXIST);
    CHECK_ERR(mkdir(in_base("a\nb"), 0755), EINVAL);
    CHECK_ERR(rmdir(in_base("cgroup.procs")), ENOTDIR);
    CHECK_ERR(unlink(in_base("cgroup.procs")), EPERM);
    CHECK_ERR(rename(in_base("a"), in_base("b")), EPERM);
    CHECK_ERR(symlink("x", in_base("link")), EPERM);
    CHECK_ERR(open(in_base("file"), O_RDWR | O_CREAT, 0644), EACCES);
    CHECK_ERR(mkfifo(in_base("fifo"), 0644), EPERM);
    OK(mkdir(in_base("a/b"), 0755));
    CHECK_ERR(rmdir(in_base("a")), EBUSY);
    CHECK_EQ(number_in(in_base("cgroup.stat"), "nr_descendants "), 2);
    CHECK(!strcmp(content(in_base("a/cgroup.type")), "domain\n"));
    /* A file that is open outlives its group, and says so. */
    int events = FD(open(in_base("a/b/cgroup.events"), O_RDONLY));
    int directory = FD(open(in_base("a/b"), O_RDONLY | O_DIRECTORY));
    OK(rmdir(in_base("a/b")));
    char byte;
    CHECK_ERR(read(events, &byte, 1), ENODEV);
    CHECK_ERR(openat(directory, "cgroup.procs", O_RDONLY), ENOENT);
    CHECK_ERR(mkdirat(directory, "x", 0755), ENOENT);
    CHECK_ERR(access(in_base("a/b"), F_OK), ENOENT);
    OK(rmdir(in_base("a")));
    ends();
}

static void depth_and_number_are_limited(void)
{
    BEGIN();
    OK(put(in_base("cgroup.max.depth"), "1"));
    OK(mkdir(in_base("a"), 0755));
    CHECK_ERR(mkdir(in_base("a/b"), 0755), EAGAIN);
    OK(put(in_base("cgroup.max.depth"), "max"));
    OK(put(in_base("cgroup.max.descendants"), "2"));
    CHECK(!strcmp(content(in_base("cgroup.max.descendants")), "2\n"));
    OK(mkdir(in_base("a/b"), 0755));
    CHECK_ERR(mkdir(in_base("c"), 0755), EAGAIN);
    CHECK_ERR(put(in_base("cgroup.max.depth"), "-1"), ERANGE);
    CHECK_ERR(put(in_base("cgroup.max.depth"), "x"), EINVAL);
    OK(rmdir(in_base("a/b")));
    OK(rmdir(in_base("a")));
    ends();
}

static void *until_told(void *pipe)
{
    char byte;
    CHECK_EQ(read(*(int *)pipe, &byte, 1), 1);
    return NULL;
}

static void processes_move_with_their_threads(void)
{
    BEGIN();
    OK(mkdir(in_base("a"), 0755));
    OK(mkdir(in_base("b"), 0755));
    pid_t child = sleeper();
    OK(put_number(in_base("a/cgroup.procs"), child));
    CHECK(is_in(child, "/a"));
    CHECK(!is_in(getpid(), "/a"));
    CHECK(lists(in_base("a/cgroup.procs"), child));
    CHECK(lists(in_base("a/cgroup.threads"), child));
    CHECK(!lists(in_base("cgroup.procs"), child));
    CHECK(is_populated("a") && is_populated(".") && !is_populated("b"));
    CHECK_ERR(rmdir(in_base("a")), EBUSY);
    OK(put_number(in_base("b/cgroup.procs"), child));
    CHECK(is_in(child, "/b"));
    OK(rmdir(in_base("a")));
    CHECK_ERR(put(in_base("b/cgroup.procs"), "x"), EINVAL);
    CHECK_ERR(put(in_base("b/cgroup.procs"), "4194303"), ESRCH);

    /* Its own process as 0, with a thread that was there before; a fork stays beside it. */
    JOIN(CHILD({
        int told[2];
        pthread_t thread;
        OK(pipe(told));
        PT(pthread_create(&thread, NULL, until_told, &told[0]));
        OK(put(in_base("b/cgroup.procs"), "0"));
        int threads = 0;
        DIR *tasks = opendir("/proc/self/task");
        for (struct dirent *entry; (entry = readdir(tasks));)
            threads += atoi(entry->d_name) && lists(in_base("b/cgroup.threads"), atoi(entry->d_name));
        closedir(tasks);
        CHECK_EQ(threads, 2);
        JOIN(CHILD(CHECK(is_in(getpid(), "/b")); CHECK(lists(in_base("b/cgroup.procs"), getpid()))));
        CHECK_EQ(write(told[1], "x", 1), 1);
        PT(pthread_join(thread, NULL));
    }));

    /* One that has ended but was not waited for is nobody's. */
    OK(kill(child, SIGKILL));
    siginfo_t info;
    OK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT));
    AWAIT(!is_populated("b"), 1000);
    CHECK(!is_populated("b") && !lists(in_base("b/cgroup.procs"), child));
    OK(rmdir(in_base("b")));
    CHECK(is_in(child, " (deleted)"));
    CHECK_KILLED(child, SIGKILL);
    ends();
}

/* A thread of another group's process is not taken. */
static void threads_stay_with_their_process(void)
{
    BEGIN();
    OK(mkdir(in_base("a"), 0755));
    pid_t child = sleeper();
    CHECK_ERR(put_number(in_base("a/cgroup.threads"), child), EOPNOTSUPP);
    OK(put_number(in_base("a/cgroup.procs"), child));
    OK(put_number(in_base("a/cgroup.threads"), child));
    end(child);
    AWAIT(!is_populated("a"), 1000);
    OK(rmdir(in_base("a")));
    ends();
}

static void changes_are_told(void)
{
    BEGIN();
    OK(mkdir(in_base("a"), 0755));
    OK(mkdir(in_base("a/b"), 0755));
    int events = FD(open(in_base("a/cgroup.events"), O_RDONLY));
    int notes = FD(inotify_init1(IN_NONBLOCK));
    int watch = FD(inotify_add_watch(notes, in_base("a/cgroup.events"), IN_MODIFY));
    char text[4096];
    CHECK(pread(events, text, sizeof text, 0) > 0);
    struct pollfd polled = {.fd = events, .events = POLLPRI};
    CHECK_EQ(poll(&polled, 1, 0), 0);
    for (int round = 0; round < 2; round++) {
        pid_t child = sleeper();
        OK(put_number(in_base("a/b/cgroup.procs"), child));
        CHECK_EQ(poll(&polled, 1, PATIENCE_MS), 1);
        CHECK_EQ(polled.revents & POLLPRI, POLLPRI);
        CHECK(pread(events, text, sizeof text, 0) > 0);
        CHECK(strstr(text, "populated 1"));
        struct pollfd noted = {.fd = notes, .events = POLLIN};
        CHECK_EQ(poll(&noted, 1, PATIENCE_MS), 1);
        struct inotify_event *event = (void *)text;
        CHECK(read(notes, text, sizeof text) >= (ssize_t)sizeof *event);
        CHECK_EQ(event->wd, watch);
        CHECK_EQ(event->mask, IN_MODIFY);
        end(child);
        AWAIT(!is_populated("a"), 1000);
        CHECK_EQ(poll(&polled, 1, PATIENCE_MS), 1);
        CHECK(pread(events, text, sizeof text, 0) > 0);
        CHECK(strstr(text, "populated 0"));
        CHECK_EQ(poll(&noted, 1, PATIENCE_MS), 1);
        AWAIT(read(notes, text, sizeof text) < 0, 1000);
        while (poll(&polled, 1, 0) == 1)
            CHECK(pread(events, text, sizeof text, 0) > 0);
    }
    OK(rmdir(in_base("a/b")));
    OK(rmdir(in_base("a")));
    ends();
}

static void one_write_kills_all(void)
{
    BEGIN();
    OK(mkdir(in_base("a"), 0755));
    OK(mkdir(in_base("a/b"), 0755));
    if (access(in_base("a/cgroup.kill"), F_OK) != 0) {
        OK(rmdir(in_base("a/b")));
        OK(rmdir(in_base("a")));
        ends();
        SKIP("Linux before 5.14 has no cgroup.kill");
    }
    pid_t outside = sleeper();
    pid_t below = sleeper();
    OK(put_number(in_base("a/b/cgroup.procs"), below));
    /* One that forks all the time, and whose children do nothing. */
    pid_t forks = CHILD({
        OK(put(in_base("a/cgroup.procs"), "0"));
        signal(SIGCHLD, SIG_IGN);
        for (int count = 0;; count++) {
            pid_t child = fork();
            if (child == 0) {
                usleep(20000);
                _exit(0);
            }
            usleep(500);
        }
    });
    AWAIT(is_in(forks, "/a"), 1000);
    CHECK_ERR(put(in_base("a/cgroup.kill"), "0"), ERANGE);
    OK(put(in_base("a/cgroup.kill"), "1"));
    CHECK_KILLED(below, SIGKILL);
    CHECK_KILLED(forks, SIGKILL);
    AWAIT(!is_populated("a"), 1000);
    CHECK(!is_populated("a"));
    /* It may not have come to sleep yet; one that is killed never does. */
    AWAIT(state_of(outside) == 'S', 1000);
    CHECK(state_of(outside) == 'S');
    end(outside);
    OK(rmdir(in_base("a/b")));
    OK(rmdir(in_base("a")));
    ends();
}

enum { USER = 12345 };

static void rights_are_those_of_the_files(void)
{
    if (getuid() != 0)
        SKIP("other users' rights need root");
    BEGIN();
    OK(chmod("..", 0755));
    OK(mkdir(in_base("a"), 0755));
    OK(mkdir(in_base("b"), 0755));
    pid_t stranger = sleeper();
    JOIN(CHILD({
        OK(setresgid(USER, USER, USER));
        OK(setresuid(USER, USER, USER));
        CHECK_ERR(mkdir(in_base("a/x"), 0755), EACCES);
        CHECK_ERR(put(in_base("a/cgroup.procs"), "0"), EACCES);
        CHECK_ERR(rmdir(in_base("a")), EACCES);
    }));
    /* A group that is handed to a user, as systemd does it. */
    OK(chown(in_base("a"), USER, USER));
    OK(chown(in_base("a/cgroup.procs"), USER, USER));
    OK(chown(in_base("a/cgroup.subtree_control"), USER, USER));
    pid_t inside = sleeper();
    OK(put_number(in_base("a/cgroup.procs"), inside));
    JOIN(CHILD({
        OK(setresgid(USER, USER, USER));
        OK(setresuid(USER, USER, USER));
        OK(mkdir(in_base("a/x"), 0755));
        struct stat stat_x;
        OK(stat(in_base("a/x/cgroup.max.depth"), &stat_x));
        CHECK_EQ(stat_x.st_uid, USER);
        OK(put_number(in_base("a/x/cgroup.procs"), inside));
        CHECK(is_in(inside, "/a/x"));
        /* Not from outside, nor to the outside. */
        CHECK_ERR(put_number(in_base("a/x/cgroup.procs"), stranger), EACCES);
        CHECK_ERR(put(in_base("a/cgroup.procs"), "0"), EACCES);
        CHECK_ERR(put_number(in_base("b/cgroup.procs"), inside), EACCES);
        CHECK_ERR(put(in_base("a/cgroup.max.depth"), "5"), EACCES);
        OK(put_number(in_base("a/cgroup.procs"), inside));
        OK(rmdir(in_base("a/x")));
    }));
    end(inside);
    end(stranger);
    AWAIT(!is_populated("a"), 1000);
    OK(rmdir(in_base("a")));
    OK(rmdir(in_base("b")));
    ends();
}

static void attributes_are_kept(void)
{
    if (getuid() != 0)
        SKIP("trusted attributes need root");
    BEGIN();
    OK(mkdir(in_base("a"), 0755));
    if (setxattr(in_base("a"), "trusted.invocation_id", "0123", 4, 0) != 0) {
        CHECK(!in_sandbox());
        OK(rmdir(in_base("a")));
        ends();
        SKIP("trusted attributes need a capability");
    }
    CHECK_ERR(setxattr(in_base("a"), "trusted.invocation_id", "0123", 4, XATTR_CREATE), EEXIST);
    char value[16];
    CHECK_EQ(getxattr(in_base("a"), "trusted.invocation_id", value, sizeof value), 4);
    CHECK(!memcmp(value, "0123", 4));
    CHECK_ERR(getxattr(in_base("a"), "trusted.delegate", value, sizeof value), ENODATA);
    OK(removexattr(in_base("a"), "trusted.invocation_id"));
    OK(rmdir(in_base("a")));
    ends();
}

static void a_new_process_begins_in_a_group(void)
{
    BEGIN();
    OK(mkdir(in_base("a"), 0755));
    int group = FD(open(in_base("a"), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct clone_args args = {.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)group};
    pid_t child = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (child == 0) {
        for (;;)
            pause();
    }
    CHECK(child > 0);
    CHECK(is_in(child, "/a"));
    end(child);
    AWAIT(!is_populated("a"), 1000);
    OK(rmdir(in_base("a")));
    CHECK_ERR(syscall(SYS_clone3, &args, sizeof args), ENOENT);
    args.cgroup = (uint64_t)FD(open("/", O_RDONLY | O_DIRECTORY));
    CHECK_ERR(syscall(SYS_clone3, &args, sizeof args), EBADF);
    ends();
}

/* Hands controllers to the test's group; false if the machine cannot give them. Natively nothing of the machine's own groups is
 * changed. */
static bool has_controllers(const char *names[])
{
    char around[1100], control[1200];
    snprintf(around, sizeof around, "%s/..", base);
    snprintf(control, sizeof control, "%s/cgroup.subtree_control", around);
    if (in_sandbox()) {
        /* Its own group has processes: they go aside first. */
        char aside[1200];
        snprintf(aside, sizeof aside, "%s/aside", around);
        if (mkdir(aside, 0755) != 0)
            CHECK_EQ(errno, EEXIST);
        char procs[1300], line[32];
        snprintf(procs, sizeof procs, "%s/cgroup.procs", aside);
        snprintf(around + strlen(around), sizeof around - strlen(around), "/cgroup.procs");
        FILE *all = fopen(around, "r");
        CHECK(all != NULL);
        while (fgets(line, sizeof line, all))
            if (put(procs, line) != 0)
                CHECK_EQ(errno, ESRCH);
        fclose(all);
        OK(put(control, "+pids +memory +cpu"));
    }
    for (; *names; names++)
        if (!strstr(content(in_base("cgroup.controllers")), *names)) {
            CHECK(!in_sandbox());
            ends();
            NOTE("this machine's cgroup2 does not hand on %s", *names);
            return false;
        }
    return true;
}

static void tasks_are_limited(void)
{
    BEGIN();
    if (!has_controllers((const char *[]){"pids", NULL}))
        return;
    OK(mkdir(in_base("a"), 0755));
    CHECK_ERR(access(in_base("a/pids.max"), F_OK), ENOENT);
    OK(put(in_base("cgroup.subtree_control"), "+pids"));
    CHECK(!strcmp(content(in_base("a/cgroup.controllers")), "pids\n"));
    CHECK(!strcmp(content(in_base("a/pids.max")), "max\n"));
    OK(put(in_base("a/pids.max"), "2"));
    CHECK_ERR(put(in_base("a/pids.max"), "-1"), EINVAL);
    JOIN(CHILD({
        OK(put(in_base("a/cgroup.procs"), "0"));
        pid_t one = sleeper();
        CHECK_EQ(atoi(content(in_base("a/pids.current"))), 2);
        CHECK_ERR(fork(), EAGAIN);
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, until_told, NULL), EAGAIN);
        CHECK_EQ(number_in(in_base("a/pids.events"), "max "), 2);
        end(one);
        JOIN(CHILD());
    }));
    AWAIT(!is_populated("a"), 1000);
    OK(put(in_base("cgroup.subtree_control"), "-pids"));
    CHECK_ERR(access(in_base("a/pids.max"), F_OK), ENOENT);
    OK(rmdir(in_base("a")));
    ends();
}

static void controllers_go_down_where_no_process_competes(void)
{
    BEGIN();
    if (!has_controllers((const char *[]){"pids", "memory", NULL}))
        return;
    OK(mkdir(in_base("a"), 0755));
    pid_t child = sleeper();
    OK(put_number(in_base("cgroup.procs"), child));
    CHECK_ERR(put(in_base("cgroup.subtree_control"), "+memory"), EBUSY);
    CHECK_ERR(put(in_base("cgroup.subtree_control"), "+nothing"), EINVAL);
    CHECK_ERR(put(in_base("a/cgroup.subtree_control"), "+memory"), ENOENT);
    OK(put_number(in_base("a/cgroup.procs"), child));
    OK(put(in_base("cgroup.subtree_control"), "+memory +pids"));
    CHECK(!strcmp(content(in_base("cgroup.subtree_control")), "memory pids\n"));
    CHECK_ERR(put_number(in_base("cgroup.procs"), child), EBUSY);
    CHECK(atol(content(in_base("a/memory.current"))) > 0);
    CHECK_EQ(number_in(in_base("a/memory.events"), "oom_kill "), 0);
    OK(put(in_base("a/memory.max"), "max"));
    OK(put(in_base("a/memory.swap.max"), "0"));
    OK(put(in_base("a/memory.low"), "4M"));
    CHECK(!strcmp(content(in_base("a/memory.low")), "4194304\n"));
    end(child);
    AWAIT(!is_populated("a"), 1000);
    OK(put(in_base("cgroup.subtree_control"), "-memory -pids"));
    OK(rmdir(in_base("a")));
    ends();
}

static void time_counts_for_the_group_it_was_used_in(void)
{
    BEGIN();
    OK(mkdir(in_base("a"), 0755));
    OK(mkdir(in_base("b"), 0755));
    pid_t busy = CHILD(for (volatile long count = 0;; count++));
    OK(put_number(in_base("a/cgroup.procs"), busy));
    AWAIT(number_in(in_base("a/cpu.stat"), "usage_usec ") > 50000, 5000);
    long user = number_in(in_base("a/cpu.stat"), "user_usec ");
    CHECK(number_in(in_base("a/cpu.stat"), "usage_usec ") > 50000 && user > 0);
    OK(put_number(in_base("b/cgroup.procs"), busy));
    long moved = number_in(in_base("a/cpu.stat"), "usage_usec ");
    AWAIT(number_in(in_base("b/cpu.stat"), "usage_usec ") > 50000, 5000);
    CHECK(number_in(in_base("b/cpu.stat"), "usage_usec ") > 50000);
    end(busy);
    AWAIT(!is_populated("b"), 1000);
    CHECK_EQ(number_in(in_base("a/cpu.stat"), "usage_usec "), moved);
    /* The group around both has all of it, and keeps it. */
    long all = number_in(in_base("cpu.stat"), "usage_usec ");
    CHECK(all >= moved + 50000);
    OK(rmdir(in_base("a")));
    OK(rmdir(in_base("b")));
    CHECK(number_in(in_base("cpu.stat"), "usage_usec ") >= all);
    ends();
}

/* What would not be held to is refused in a sandbox, and what is the runtime's is not the container's to change. */
static void limits_that_would_not_hold_are_refused(void)
{
    if (!in_sandbox())
        SKIP("it is about sandboxes");
    BEGIN();
    CHECK(has_controllers((const char *[]){"pids", "memory", "cpu", NULL}));
    OK(put(in_base("cgroup.subtree_control"), "+memory +cpu"));
    OK(mkdir(in_base("a"), 0755));
    CHECK_ERR(put(in_base("a/memory.max"), "64M"), EOPNOTSUPP);
    CHECK_ERR(put(in_base("a/memory.high"), "64M"), EOPNOTSUPP);
    CHECK_ERR(put(in_base("a/cpu.max"), "50000 100000"), EOPNOTSUPP);
    OK(put(in_base("a/cpu.max"), "max 50000"));
    CHECK(!strcmp(content(in_base("a/cpu.max")), "max 50000\n"));
    OK(put(in_base("a/cpu.weight"), "50"));
    CHECK_ERR(put(in_base("a/cpu.weight"), "0"), ERANGE);
    CHECK_ERR(put(in_base("a/cgroup.type"), "threaded"), EOPNOTSUPP);
    CHECK_ERR(put(in_base("../memory.max"), "64M"), EPERM);
    CHECK_ERR(put(in_base("../pids.max"), "5"), EPERM);
    CHECK_ERR(put(in_base("../cgroup.kill"), "1"), EPERM);
    OK(rmdir(in_base("a")));
    ends();
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(groups_are_directories),
        TEST(depth_and_number_are_limited),
        TEST(processes_move_with_their_threads),
        TEST(threads_stay_with_their_process),
        TEST(changes_are_told),
        TEST(one_write_kills_all),
        TEST(rights_are_those_of_the_files),
        TEST(attributes_are_kept),
        TEST(a_new_process_begins_in_a_group),
        TEST(tasks_are_limited),
        TEST(controllers_go_down_where_no_process_competes),
        TEST(time_counts_for_the_group_it_was_used_in),
        TEST(limits_that_would_not_hold_are_refused),
    };
    return RUN_TESTS("cgroups", tests, argc, argv);
}
