/*
 * Changes of users, and what users see of each other: set-id programs, another user's processes, names from within a
 * chroot, set-id bits of files. Most of it needs root, and a second user (1000), and is left out otherwise.
 */
#include "check.h"
#include <linux/capability.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <linux/xattr.h>

#define USER 1000

/* The privileges that a program finds it has; written to descriptor 1 by `privileges --report`. */
struct report {
    uid_t uid[3];
    gid_t gid[3];
    unsigned secure, death_signal, argc;
    int dumpable;
    uint64_t permitted, effective, ambient;
    /* See mark_program. */
    char mark;
};

/* The last character tells copies of this program apart, by what they are and not by their names. */
static volatile char mark[] = "which program this is: 0";

static void become(uid_t id)
{
    OK(syscall(SYS_setgroups, 0, NULL));
    OK(setresgid(id, id, id));
    OK(setresuid(id, id, id));
    OK(prctl(PR_SET_DUMPABLE, 1));
}

/* Whether this machine lets the tests change users. */
static bool has_users(void)
{
    if (geteuid() != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        _exit(setresgid(USER, USER, USER) || setresuid(USER, USER, USER));
    return status_of(pid) == 0;
}

#define NEEDS_USERS()                                                                                                  \
    do {                                                                                                               \
        if (!has_users())                                                                                              \
            SKIP("left out: only root with further users can try this");                                               \
        OK(chmod(".", 0755));                                                                                          \
    } while (0)

static uint64_t status_word(const char *name)
{
    char text[8192];
    int fd = FD(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
    ssize_t length = read(fd, text, sizeof text - 1);
    CHECK(length > 0);
    text[length] = 0;
    OK(close(fd));
    char *at = strstr(text, name);
    CHECK(at);
    return strtoull(at + strlen(name), NULL, 16);
}

static void report(int argc)
{
    struct report found = {.secure = getauxval(AT_SECURE), .argc = argc, .dumpable = prctl(PR_GET_DUMPABLE)};
    OK(getresuid(&found.uid[0], &found.uid[1], &found.uid[2]));
    OK(getresgid(&found.gid[0], &found.gid[1], &found.gid[2]));
    OK(prctl(PR_GET_PDEATHSIG, &found.death_signal));
    found.permitted = status_word("CapPrm:"), found.effective = status_word("CapEff:");
    found.ambient = status_word("CapAmb:");
    found.mark = mark[sizeof mark - 2];
    CHECK_EQ(write(1, &found, sizeof found), sizeof found);
    _exit(0);
}

/* A copy of this program with this owner and mode. */
static void copy_program(const char *name, uid_t owner, mode_t mode)
{
    int from = FD(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    int to = FD(open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755));
    while (sendfile(to, from, NULL, 1 << 20) > 0)
        ;
    OK(fchown(to, owner, owner));
    OK(fchmod(to, mode));
    OK(close(to) | close(from));
}

static int report_pipe[2];

static void run_report(const char *program)
{
    CHECK_EQ(dup2(report_pipe[1], 1), 1);
    execl(program, program, "--report", NULL);
    FAIL("exec of %s", program);
}

static struct report read_report(pid_t pid)
{
    struct report found;
    JOIN(pid);
    CHECK_EQ(read(report_pipe[0], &found, sizeof found), sizeof found);
    return found;
}

/* The report of `program` when a child runs it after these statements. */
#define REPORT(program, ...) read_report(CHILD(__VA_ARGS__; run_report(program)))

static int sleeper(void *arg)
{
    (void)arg;
    for (;;)
        pause();
    return 0;
}

static void *sleep_for_ever(void *arg)
{
    sleeper(arg);
    return NULL;
}

static pid_t clone_raw(unsigned long flags)
{
    return syscall(SYS_clone, flags, 0, 0, 0, 0);
}

static long all_capabilities(void)
{
    return (long)status_word("CapBnd:");
}

static void set_id_programs(void)
{
    NEEDS_USERS();
    OK(pipe2(report_pipe, O_CLOEXEC));
    copy_program("plain", 0, 0755);
    copy_program("set_uid", 0, 04755);
    copy_program("set_gid", 0, 02755);
    copy_program("locking", 0, 02745);
    copy_program("other", 1001, 04755);

    struct report found = REPORT("./plain", become(USER); OK(prctl(PR_SET_PDEATHSIG, SIGUSR1)));
    CHECK(found.uid[0] == USER && found.uid[1] == USER && found.uid[2] == USER && found.secure == 0);
    CHECK_EQ(found.dumpable, 1);
    CHECK_EQ(found.death_signal, SIGUSR1);
    CHECK_EQ(found.permitted, 0);

    found = REPORT("./set_uid", become(USER); OK(prctl(PR_SET_PDEATHSIG, SIGUSR1)));
    CHECK(found.uid[0] == USER && found.uid[1] == 0 && found.uid[2] == 0 && found.secure == 1);
    CHECK(found.dumpable != 1);
    CHECK_EQ(found.death_signal, 0);
    CHECK_EQ(found.permitted, all_capabilities());
    CHECK_EQ(found.effective, all_capabilities());

    found = REPORT("./set_gid", become(USER));
    CHECK(found.uid[1] == USER && found.gid[0] == USER && found.gid[1] == 0 && found.gid[2] == 0 && found.secure == 1);
    found = REPORT("./locking", become(USER));
    CHECK(found.gid[1] == USER && found.secure == 0);
    found = REPORT("./other", become(USER));
    CHECK(found.uid[0] == USER && found.uid[1] == 1001 && found.uid[2] == 1001 && found.secure == 1);
    CHECK_EQ(found.permitted, 0);

    /* A process with PR_SET_NO_NEW_PRIVS gets none. */
    found = REPORT("./set_uid", become(USER); OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
    CHECK(found.uid[1] == USER && found.uid[2] == USER);
    CHECK_EQ(found.permitted, 0);
    found = REPORT("./set_gid", become(USER); OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
    CHECK(found.gid[1] == USER && found.gid[2] == USER);
}

static void give_ambient(void);

/* Gives a file two capabilities, in effect from the start or not; false: the file system has no such attributes. */
static bool give_file(const char *name, uint32_t permitted, uint32_t inheritable, bool in_effect)
{
    uint32_t words[5] = {VFS_CAP_REVISION_2 | (in_effect ? VFS_CAP_FLAGS_EFFECTIVE : 0), permitted, inheritable, 0, 0};
    if (setxattr(name, XATTR_NAME_CAPS, words, sizeof words, 0) == 0)
        return true;
    CHECK(errno == EOPNOTSUPP || errno == EPERM);
    return false;
}

static void capabilities_of_files_in(const char *dir)
{
    enum { BIND = 1 << CAP_NET_BIND_SERVICE, CHOWN = 1 << CAP_CHOWN };
    OK(chdir(dir));
    copy_program("given", 0, 0755);
    copy_program("given_uid", 0, 04755);
    if (!give_file("given", BIND, CHOWN, true) || !give_file("given_uid", BIND, 0, true))
        return;
    struct report found = REPORT("./given", become(USER); OK(prctl(PR_SET_PDEATHSIG, SIGUSR1)));
    CHECK(found.uid[1] == USER && found.secure == 1 && found.dumpable != 1 && found.death_signal == 0);
    CHECK_EQ(found.permitted, BIND);
    CHECK_EQ(found.effective, BIND);
    /* A program that is set-user-id-root as well gives these alone, but not to root. */
    found = REPORT("./given_uid", become(USER));
    CHECK(found.uid[1] == 0 && found.permitted == BIND && found.effective == BIND);
    found = REPORT("./given_uid", (void)0);
    CHECK_EQ(found.permitted, all_capabilities());
    /* Ambient ones end, inherited ones are given where both sides have them. */
    found = REPORT("./given", give_ambient());
    CHECK(found.permitted == (BIND | CHOWN) && found.ambient == 0);
    found = REPORT("./given", become(USER); OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
    CHECK(found.permitted == 0 && found.effective == 0);
    /* Without them in its bounding set who relies on them is not run, root included; who looks for itself is. */
    JOIN(CHILD({
        OK(prctl(PR_CAPBSET_DROP, CAP_NET_BIND_SERVICE, 0, 0, 0));
        CHECK_ERR(execl("./given", "./given", "--report", NULL), EPERM);
    }));
    CHECK(give_file("given", BIND, 0, false));
    found = REPORT("./given", OK(prctl(PR_CAPBSET_DROP, CAP_NET_BIND_SERVICE, 0, 0, 0)); become(USER));
    CHECK_EQ(found.permitted, 0);
    found = REPORT("./given", become(USER));
    CHECK(found.permitted == BIND && found.effective == 0);
    /* They go with the content and with the owner. */
    unsigned char kept[32];
    int fd = FD(open("given", O_WRONLY | O_APPEND));
    CHECK_EQ(write(fd, "x", 1), 1);
    CHECK_ERR(getxattr("given", XATTR_NAME_CAPS, kept, sizeof kept), ENODATA);
    CHECK(give_file("given", BIND, 0, true));
    OK(ftruncate(fd, 100000));
    CHECK_ERR(getxattr("given", XATTR_NAME_CAPS, kept, sizeof kept), ENODATA);
    OK(close(fd));
    OK(chown("given_uid", 1001, 1001));
    CHECK_ERR(getxattr("given_uid", XATTR_NAME_CAPS, kept, sizeof kept), ENODATA);
    /* Nobody else gives them. */
    OK(chown("given", USER, USER));
    JOIN(CHILD({
        become(USER);
        CHECK(!give_file("given", BIND, 0, true));
    }));
    OK(unlink("given") | unlink("given_uid"));
}

/* Gives a copy of this program another mark. */
static void mark_program(const char *name, char to)
{
    struct stat facts;
    int fd = FD(open(name, O_RDWR | O_CLOEXEC));
    OK(fstat(fd, &facts));
    char *text = mmap(NULL, facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(text != MAP_FAILED);
    const char *at = memmem(text, facts.st_size, (const char *)mark, sizeof mark);
    CHECK(at != NULL);
    CHECK_EQ(pwrite(fd, &to, 1, at - text + (off_t)sizeof mark - 2), 1);
    OK(munmap(text, facts.st_size) | close(fd));
}

/* Names change places while a program is run by one of them: each program has the capabilities of its own file. */
static void capabilities_stay_with_their_file(const char *dir)
{
    enum { BIND = 1 << CAP_NET_BIND_SERVICE };
    OK(chdir(dir));
    copy_program("given", 0, 0755);
    copy_program("plain", USER, 0755);
    mark_program("plain", '1');
    if (!give_file("given", BIND, 0, true))
        return;
    /* It belongs to the user, who may change its names. */
    OK(chown(".", USER, USER));
    pid_t swapper = CHILD({
        become(USER);
        /* Without a pause nobody else gets at the names on some hosts. */
        for (;; usleep(100))
            syscall(SYS_renameat2, AT_FDCWD, "given", AT_FDCWD, "plain", 2 /* RENAME_EXCHANGE */);
    });
    for (long i = scaled(300); i > 0; i--) {
        struct report found = REPORT("./plain", become(USER));
        CHECK_EQ(found.permitted, found.mark == '1' ? 0 : BIND);
    }
    OK(kill(swapper, SIGKILL));
    CHECK_EQ(waitpid(swapper, NULL, 0), swapper);
    OK(chown(".", 0, 0));
    OK(unlink("given") | unlink("plain"));
}

/* A write that reaches a bad address leaves what came before it, and no capabilities. */
static void half_a_write(const char *dir)
{
    OK(chdir(dir));
    copy_program("half", 0, 0755);
    if (give_file("half", 1 << CAP_CHOWN, 0, true)) {
        char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        OK(munmap(page + 4096, 4096));
        int fd = FD(open("half", O_RDWR));
        UNUSED ssize_t done = pwrite(fd, page + 4000, 4096, 0);
        unsigned char kept[32];
        CHECK_ERR(getxattr("half", XATTR_NAME_CAPS, kept, sizeof kept), ENODATA);
        CHECK_ERR(setxattr("half", XATTR_NAME_CAPS, "nothing", 7, 0), EINVAL);
        OK(close(fd));
    }
    OK(unlink("half"));
}

/* Files with capabilities on disk and in memory. */
static void capabilities_of_files(void)
{
    NEEDS_USERS();
    OK(pipe2(report_pipe, O_CLOEXEC));
    OK(mkdir("disk", 0755));
    JOIN(CHILD({ capabilities_of_files_in("disk"); }));
    JOIN(CHILD({ capabilities_stay_with_their_file("disk"); }));
    JOIN(CHILD({ half_a_write("disk"); }));
    char memory[] = "/dev/shm/capabilities.XXXXXX";
    CHECK(mkdtemp(memory) != NULL);
    OK(chmod(memory, 0755));
    struct statfs fs;
    struct statvfs view;
    OK(statfs(memory, &fs) | statvfs(memory, &view));
    if (!(view.f_flag & (ST_NOEXEC | ST_NOSUID))) {
        JOIN(CHILD({ capabilities_of_files_in(memory); }));
        JOIN(CHILD({ capabilities_stay_with_their_file(memory); }));
    }
    JOIN(CHILD({ half_a_write(memory); }));
    OK(rmdir(memory));
}

/* A process that has become another user reaches its own descriptors by their names, and what it is is told. */
static void own_descriptors(void)
{
    NEEDS_USERS();
    int kept = FD(open("/dev/null", O_RDONLY));
    JOIN(CHILD({
        become(USER);
        char name[64], target[64] = "";
        snprintf(name, sizeof name, "/proc/self/fd/%d", kept);
        CHECK(readlink(name, target, sizeof target - 1) > 0 && strcmp(target, "/dev/null") == 0);
        OK(close(FD(open(name, O_RDONLY))));
        DIR *all = opendir("/proc/self/fd");
        CHECK(all != NULL && readdir(all) != NULL);
        OK(closedir(all));
        struct stat facts;
        OK(stat("/proc/self", &facts));
        CHECK(facts.st_uid == USER && facts.st_gid == USER);
        snprintf(name, sizeof name, "/proc/%d/fd", getppid());
        CHECK(opendir(name) == NULL && errno == EACCES);
    }));
}

/* An ordinary user with one ambient capability. */
static void give_ambient(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct one[2] = {{1 << CAP_CHOWN, 1 << CAP_CHOWN, 1 << CAP_CHOWN}, {0, 0, 0}};
    OK(prctl(PR_SET_KEEPCAPS, 1));
    OK(setresgid(1001, 1001, 1001));
    OK(setresuid(1001, 1001, 1001));
    OK(syscall(SYS_capset, &header, one));
    OK(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0));
}

/* Root gets its capabilities back by running a program, but not with no_new_privs. */
static void capabilities_of_root(void)
{
    NEEDS_USERS();
    OK(pipe2(report_pipe, O_CLOEXEC));
    copy_program("plain", 0, 0755);
    copy_program("other", USER, 04755);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct few[2] = {{1 << CAP_CHOWN, 1 << CAP_CHOWN, 0}, {0, 0, 0}};

    struct report found = REPORT("./plain", OK(syscall(SYS_capset, &header, few)));
    CHECK_EQ(found.permitted, all_capabilities());
    found = REPORT("./plain", OK(syscall(SYS_capset, &header, few)); OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
    CHECK_EQ(found.permitted, 1 << CAP_CHOWN);
    CHECK_EQ(found.effective, 1 << CAP_CHOWN);

    /* Ambient capabilities go with the ids. */
    found = REPORT("./plain", give_ambient());
    CHECK_EQ(found.permitted, 1 << CAP_CHOWN);
    CHECK_EQ(found.ambient, 1 << CAP_CHOWN);
    found = REPORT("./other", give_ambient());
    CHECK_EQ(found.uid[1], USER);
    CHECK_EQ(found.permitted, 0);
    CHECK_EQ(found.ambient, 0);
}

/* Whose root and working directory another process can change runs set-id programs as itself. */
static void shared_places(void)
{
    NEEDS_USERS();
    OK(pipe2(report_pipe, O_CLOEXEC));
    copy_program("set_uid", 0, 04755);
    copy_program("set_gid", 0, 02755);
    int ids[2];
    OK(pipe2(ids, O_CLOEXEC));

    pid_t partner;
#define WITH_PARTNER(flags)                                                                                            \
    become(USER);                                                                                                      \
    partner = clone_raw((flags) | SIGCHLD);                                                                            \
    if (partner == 0)                                                                                                  \
        _exit(sleeper(NULL));                                                                                          \
    CHECK(partner > 0);                                                                                                \
    CHECK_EQ(write(ids[1], &partner, sizeof partner), sizeof partner)
#define END_PARTNER()                                                                                                  \
    CHECK_EQ(read(ids[0], &partner, sizeof partner), sizeof partner);                                                  \
    OK(kill(partner, SIGKILL))

    struct report found = REPORT("./set_uid", WITH_PARTNER(CLONE_FS));
    END_PARTNER();
    CHECK(found.uid[0] == USER && found.uid[1] == USER && found.uid[2] == USER);
    CHECK_EQ(found.permitted, 0);
    found = REPORT("./set_gid", WITH_PARTNER(CLONE_FS));
    END_PARTNER();
    CHECK(found.gid[1] == USER && found.gid[2] == USER);

    /* Descriptors are parted with, so sharing them does no harm. */
    found = REPORT("./set_uid", WITH_PARTNER(CLONE_FILES));
    END_PARTNER();
    CHECK_EQ(found.uid[1], 0);

    /* The caller's other threads end, so they do not count. */
    pthread_t thread;
    found = REPORT("./set_uid", become(USER); PT(pthread_create(&thread, NULL, sleep_for_ever, NULL)));
    CHECK_EQ(found.uid[1], 0);
}

/* With which directories a set-id program starts is settled, however its process's other threads hurry. */
static void *share_places(void *arg)
{
    int *ids = arg;
    for (;;) {
        pid_t partner = clone_raw(CLONE_FS | SIGCHLD);
        if (partner == 0) {
            partner = getpid();
            _exit(write(ids[1], &partner, sizeof partner) < 0 || sleeper(NULL));
        }
    }
    return NULL;
}

static void sharing_while_executing(void)
{
    NEEDS_USERS();
    OK(pipe2(report_pipe, O_CLOEXEC));
    copy_program("set_uid", 0, 04755);
    for (long i = 0; i < scaled(20); i++) {
        int ids[2];
        OK(pipe2(ids, O_CLOEXEC | O_NONBLOCK));
        struct rlimit few = {40, 40};
        pthread_t thread;
        pid_t pid = CHILD({
            OK(setpgid(0, 0));
            become(USER);
            OK(setrlimit(RLIMIT_NPROC, &few));
            PT(pthread_create(&thread, NULL, share_places, ids));
            usleep(i * 50);
            CHECK_EQ(dup2(report_pipe[1], 1), 1);
            execl("./set_uid", "./set_uid", "--report", NULL);
            _exit(99);
        });
        int status = status_of(pid);
        struct report found = {.uid = {USER, USER, USER}};
        if (status == 0)
            CHECK_EQ(read(report_pipe[0], &found, sizeof found), sizeof found);
        else
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 99);
        pid_t partner;
        if (found.uid[1] == 0 && read(ids[0], &partner, sizeof partner) == sizeof partner)
            FAIL("set-id with a shared working directory, round %ld", i);
        kill(-pid, SIGKILL);
        OK(close(ids[0]) | close(ids[1]));
    }
}

/* A program that is run without arguments has one all the same. */
static void no_arguments(void)
{
    int ends[2];
    OK(pipe2(ends, O_CLOEXEC));
    char *none[] = {NULL}, *env[] = {"PRIVILEGES=count", NULL};
    JOIN(CHILD({
        CHECK_EQ(dup2(ends[1], 1), 1);
        execve("/proc/self/exe", none, env);
        FAIL("exec");
    }));
    int argc;
    CHECK_EQ(read(ends[0], &argc, sizeof argc), sizeof argc);
    CHECK_EQ(argc, 1);
}

static pid_t wait_for_pid(int fd)
{
    pid_t pid;
    CHECK_EQ(read(fd, &pid, sizeof pid), sizeof pid);
    return pid;
}

/* A file of /proc that was opened before its process ran a set-id program tells nothing of that program. */
static void looking_from_before(void)
{
    NEEDS_USERS();
    copy_program("set_uid", 0, 04755);
    OK(chmod("set_uid", 04755));
    int go[2], up[2];
    OK(pipe(go));
    OK(pipe(up));
    JOIN(CHILD({
        become(USER);
        pid_t pid = CHILD({
            char byte;
            CHECK_EQ(read(go[0], &byte, 1), 1);
            CHECK_EQ(dup2(up[1], 1), 1);
            execl("./set_uid", "./set_uid", "--wait", NULL);
            FAIL("exec");
        });
        char path[64];
        snprintf(path, sizeof path, "/proc/%d", pid);
        int dir = FD(open(path, O_PATH | O_DIRECTORY));
        int files[] = {FD(openat(dir, "maps", O_RDONLY)), FD(openat(dir, "environ", O_RDONLY)),
                       FD(openat(dir, "smaps", O_RDONLY)), FD(openat(dir, "mem", O_RDWR))};
        int descriptors = FD(openat(dir, "fd", O_PATH | O_DIRECTORY));
        uint64_t place = (uintptr_t)&go;
        char text[4096];
        CHECK(read(files[0], text, 64) == 64);
        CHECK_EQ(pread(files[3], text, 8, place), 8);
        OK(lseek(files[0], 0, SEEK_SET));
        CHECK_EQ(write(go[1], "x", 1), 1);
        CHECK_EQ(wait_for_pid(up[0]), pid);
        for (int i = 0; i < 3; i++)
            CHECK(pread(files[i], text, sizeof text, 0) <= 0);
        CHECK(pread(files[3], text, 8, place) <= 0);
        CHECK(pwrite(files[3], text, 8, place) <= 0);
        CHECK_ERR(readlinkat(descriptors, "1", text, sizeof text), EACCES);
        CHECK_ERR(openat(dir, "environ", O_RDONLY), EACCES);
        CHECK_ERR(openat(dir, "mem", O_RDONLY), EACCES);
        CHECK_ERR(readlinkat(dir, "cwd", text, sizeof text), EACCES);
        _exit(0);
    }));
}

/* A child cannot end its parent, which has become another user, by the signal of its own end. */
static void signals_of_children(void)
{
    NEEDS_USERS();
    copy_program("set_uid", 0, 04755);
    int hold[2], up[2];
    OK(pipe(hold));
    OK(pipe(up));
    pid_t pid = CHILD({
        become(USER);
        pid_t child = clone_raw(SIGUSR1);
        if (child == 0) {
            char byte;
            close(hold[1]);
            (void)!read(hold[0], &byte, 1);
            _exit(0);
        }
        CHECK(child > 0);
        OK(close(hold[1]));
        CHECK_EQ(dup2(up[1], 1), 1);
        execl("./set_uid", "./set_uid", "--wait-child", NULL);
    });
    CHECK_EQ(wait_for_pid(up[0]), pid);
    OK(close(hold[1]));
    JOIN(pid);
}

/* A user can do nothing to another's process. */
static void other_peoples_processes(void)
{
    NEEDS_USERS();
    pid_t pid = CHILD(sleeper(NULL));
    int pidfd = FD(syscall(SYS_pidfd_open, pid, 0));
    JOIN(CHILD({
        become(USER);
        char path[64];
        char text[256];
        static const char *const files[] = {"environ", "maps",  "smaps",   "mem",         "auxv",
                                            "io",      "stack", "syscall", "personality", "smaps_rollup"};
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(path, sizeof path, "/proc/%d/%s", pid, files[i]);
            int fd = open(path, O_RDONLY);
            if (fd >= 0 && read(fd, text, sizeof text) > 0)
                FAIL("%s can be read", path);
        }
        static const char *const links[] = {"cwd", "root", "exe", "fd/0", "ns/mnt", "task/%d/cwd"};
        for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
            char name[32];
            snprintf(name, sizeof name, links[i], pid);
            snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
            CHECK_ERR(readlink(path, text, sizeof text), EACCES);
            CHECK_ERR(open(path, O_RDONLY), EACCES);
        }
        snprintf(path, sizeof path, "/proc/%d/fd", pid);
        CHECK_ERR(open(path, O_RDONLY | O_DIRECTORY), EACCES);
        snprintf(path, sizeof path, "/proc/%d/comm", pid);
        CHECK_ERR(open(path, O_WRONLY), EACCES);
        snprintf(path, sizeof path, "/proc/%d/oom_score_adj", pid);
        CHECK_ERR(open(path, O_WRONLY), EACCES);

        CHECK_ERR(kill(pid, SIGTERM), EPERM);
        CHECK_ERR(syscall(SYS_tgkill, pid, pid, SIGTERM), EPERM);
        CHECK_ERR(syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0), EPERM);
        CHECK_ERR(syscall(SYS_pidfd_getfd, pidfd, 0, 0), EPERM);
        struct rlimit limit = {1, 1};
        CHECK_ERR(prlimit(pid, RLIMIT_NOFILE, &limit, NULL), EPERM);
        CHECK_ERR(prlimit(pid, RLIMIT_NOFILE, NULL, &limit), EPERM);
        void *head;
        size_t size;
        CHECK_ERR(syscall(SYS_get_robust_list, pid, &head, &size), EPERM);
        struct iovec mine = {text, 8}, theirs = {path, 8};
        CHECK(process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == -1);
        CHECK(process_vm_writev(pid, &mine, 1, &theirs, 1, 0) == -1);
        CHECK(ptrace(PTRACE_ATTACH, pid, 0, 0) == -1);
        CHECK_ERR(setpriority(PRIO_PROCESS, pid, 5), EPERM);
        struct {
            uint32_t size, policy;
            uint64_t flags;
            int32_t nice;
            uint32_t priority;
            uint64_t times[3];
        } attr = {48, SCHED_OTHER, 0, 7, 0, {0}};
        CHECK_ERR(syscall(SYS_sched_setattr, pid, &attr, 0), EPERM);
        CHECK_ERR(setpgid(pid, 0), ESRCH);
        CHECK_EQ(getpriority(PRIO_PROCESS, pid), 0);
    }));
    OK(kill(pid, SIGKILL));
    CHECK_KILLED(pid, SIGKILL);
}

/* Senders of messages are who they are. */
static void forged_senders(void)
{
    NEEDS_USERS();
    JOIN(CHILD({
        become(USER);
        int ends[2];
        OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
        for (int i = 0; i < 4; i++) {
            struct ucred who = {getpid(), USER, USER};
            if (i == 0)
                who.pid = 1;
            else if (i == 1)
                who.uid = 0;
            else if (i == 2)
                who.gid = 0;
            char control[CMSG_SPACE(sizeof who)];
            memset(control, 0, sizeof control);
            struct iovec iov = {"x", 1};
            struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                                    .msg_controllen = sizeof control};
            struct cmsghdr *message = CMSG_FIRSTHDR(&header);
            message->cmsg_level = SOL_SOCKET, message->cmsg_type = SCM_CREDENTIALS;
            message->cmsg_len = CMSG_LEN(sizeof who);
            memcpy(CMSG_DATA(message), &who, sizeof who);
            if (i < 3)
                CHECK_ERR(sendmsg(ends[0], &header, 0), EPERM);
            else
                CHECK_EQ(sendmsg(ends[0], &header, 0), 1);
        }
    }));
}

/* Calls that only root may make. */
static void privileged_calls(void)
{
    NEEDS_USERS();
    write_file("roots", "x", 0644);
    OK(mkdir("open", 0777));
    OK(chmod("open", 0777));
    write_file("open/users", "x", 0644);
    OK(chown("open/users", USER, USER));
    JOIN(CHILD({
        become(USER);
        CHECK_ERR(chroot("."), EPERM);
        CHECK_ERR(mount("none", "open", "tmpfs", 0, NULL), EPERM);
        CHECK_ERR(umount2("/proc", MNT_DETACH), EPERM);
        CHECK_ERR(mknod("open/null", S_IFCHR | 0666, makedev(1, 3)), EPERM);
        CHECK_ERR(chown("open/users", 0, -1), EPERM);
        CHECK_ERR(chown("open/users", -1, 0), EPERM);
        CHECK_ERR(chmod("roots", 0777), EPERM);
        const uint32_t capability[5] = {0x02000001, 1, 0, 0, 0};
        CHECK_ERR(setxattr("open/users", "security.capability", capability, sizeof capability, 0), EPERM);
        CHECK_ERR(setxattr("open/users", "trusted.x", "x", 1, 0), EPERM);
        CHECK_ERR(sethostname("x", 1), EPERM);
        CHECK_ERR(syscall(SYS_setgroups, 0, NULL), EPERM);
        CHECK_ERR(setresuid(-1, 0, -1), EPERM);
        CHECK_ERR(setresgid(-1, 0, -1), EPERM);
        CHECK_ERR(prctl(PR_CAPBSET_DROP, CAP_CHOWN), EPERM);
        CHECK_ERR(setpriority(PRIO_PROCESS, 0, -5), EACCES);
        CHECK(access("/dev/mem", R_OK) != 0 && access("/dev/kmsg", W_OK) != 0);
    }));
}

static int setting(const char *name)
{
    char path[64], text[16] = "";
    snprintf(path, sizeof path, "/proc/sys/fs/%s", name);
    int fd = FD(open(path, O_RDONLY | O_CLOEXEC));
    CHECK(read(fd, text, sizeof text - 1) > 0);
    OK(close(fd));
    return atoi(text);
}

/* Names in directories that all may write to. */
static void sticky_directories(void)
{
    NEEDS_USERS();
    write_file("roots", "x", 0600);
    OK(mkdir("all", 01777));
    OK(chmod("all", 01777));
    write_file("all/roots", "x", 0666);
    OK(mkdir("all/dir", 0777));
    OK(chmod("all/dir", 0777));
    OK(symlink("../roots", "all/rootlink"));
    JOIN(CHILD({
        become(USER);
        CHECK_ERR(unlink("all/roots"), EPERM);
        CHECK_ERR(rmdir("all/dir"), EPERM);
        CHECK_ERR(rename("all/roots", "all/mine"), EPERM);
        write_file("all/users", "x", 0666);
        CHECK_ERR(rename("all/users", "all/roots"), EPERM);
        CHECK_ERR(syscall(SYS_renameat2, AT_FDCWD, "all/users", AT_FDCWD, "all/roots", 2), EPERM);
        OK(mkfifo("all/fifo", 0666) | chmod("all/fifo", 0666));
        OK(symlink("../roots", "all/userlink"));
        if (setting("protected_hardlinks"))
            CHECK_ERR(link("roots", "all/hard"), EPERM);
    }));
    int links = setting("protected_symlinks"), fifos = setting("protected_fifos"), files = setting("protected_regular");
    CHECK_EQ(open("all/userlink", O_RDONLY) >= 0, !links);
    CHECK_EQ(access("all/userlink", R_OK) == 0, !links);
    CHECK(readlink("all/userlink", (char[16]){0}, 16) == 8);
    CHECK(open("all/rootlink", O_RDONLY) >= 0);
    CHECK_EQ(open("all/users", O_WRONLY | O_CREAT, 0600) >= 0, !files);
    CHECK_EQ(open("all/fifo", O_RDWR | O_CREAT | O_NONBLOCK, 0600) >= 0, !fifos);
    CHECK(open("all/users", O_WRONLY) >= 0);
    CHECK(open("all/roots", O_WRONLY | O_CREAT, 0600) >= 0);
}

static mode_t mode_of(int fd)
{
    struct stat info;
    OK(fstat(fd, &info));
    return info.st_mode & 07777;
}

/* A change of a program's content clears its set-id bits. */
static void set_id_bits_of_files(const char *dir)
{
    char path[128];
    char text[64];
    snprintf(path, sizeof path, "%s/privileges.%d", dir, getpid());
    int fd = FD(open(path, O_RDWR | O_CREAT | O_EXCL, 0755));
    OK(fchown(fd, USER, USER));
    int from = FD(open("/proc/self/exe", O_RDONLY));
    int ends[2];
    OK(pipe(ends));
    pid_t pid = CHILD({
        become(USER);
        struct iovec iov = {text, 4};
        for (int i = 0; i < 9; i++) {
            OK(fchmod(fd, 06755));
            CHECK_EQ(mode_of(fd), 06755);
            loff_t zero = 0;
            off_t start = 0;
            OK(lseek(fd, 0, SEEK_SET));
            switch (i) {
            case 0: CHECK_EQ(write(fd, "abcd", 4), 4); break;
            case 1: CHECK_EQ(pwritev(fd, &iov, 1, 0), 4); break;
            case 2: OK(ftruncate(fd, 10)); break;
            case 3: OK(truncate(path, 20)); break;
            case 4: OK(fallocate(fd, 0, 0, 8192)); break;
            case 5: CHECK_EQ(sendfile(fd, from, &start, 16), 16); break;
            case 6: {
                ssize_t copied = syscall(SYS_copy_file_range, from, &zero, fd, NULL, 16, 0);
                if (copied < 0 && errno == EXDEV)
                    continue;
                CHECK_EQ(copied, 16);
                break;
            }
            case 7:
                CHECK_EQ(write(ends[1], "abcd", 4), 4);
                CHECK_EQ(splice(ends[0], NULL, fd, &zero, 4, 0), 4);
                break;
            default: OK(close(FD(open(path, O_WRONLY | O_TRUNC)))); break;
            }
            if (mode_of(fd) != 0755)
                FAIL("the mode is %#o after change %d of %s", mode_of(fd), i, path);
        }
        /* Cutting what is empty changes the content, writing nothing does not. */
        OK(ftruncate(fd, 0));
        OK(fchmod(fd, 06755));
        CHECK_EQ(write(fd, "", 0), 0);
        CHECK_EQ(mode_of(fd), 06755);
        OK(ftruncate(fd, 0));
        CHECK_EQ(mode_of(fd), 0755);
        OK(fchmod(fd, 06755));
        OK(truncate(path, 0));
        CHECK_EQ(mode_of(fd), 0755);
        /* A group's bit without its right to run is for locks, and stays for members. */
        OK(fchmod(fd, 06745));
        CHECK_EQ(write(fd, "abcd", 4), 4);
        CHECK_EQ(mode_of(fd), 02745);
        OK(fchmod(fd, 06755));
    });
    JOIN(pid);
    /* Root's writes leave them, a new owner does not. */
    CHECK_EQ(write(fd, "abcd", 4), 4);
    CHECK_EQ(mode_of(fd), 06755);
    OK(fchown(fd, 1001, 1001));
    CHECK_EQ(mode_of(fd), 0755);
    OK(unlink(path));
    OK(close(fd) | close(from) | close(ends[0]) | close(ends[1]));
}

/* Rights that were taken away while a write went on do not come back with it. */
static void modes_set_during_writes(const char *dir)
{
    char path[128];
    snprintf(path, sizeof path, "%s/privileges.%d", dir, getpid());
    int fd = FD(open(path, O_RDWR | O_CREAT | O_EXCL, 0755));
    OK(fchown(fd, USER, USER));
    int ends[2];
    OK(pipe2(ends, O_NONBLOCK));
    pid_t pid = CHILD({
        become(USER);
        char end;
        while (read(ends[0], &end, 1) < 0)
            CHECK_EQ(pwrite(fd, "abcd", 4, 0), 4);
    });
    for (long i = scaled(2000); i > 0; i--) {
        OK(fchmod(fd, 06755));
        OK(fchmod(fd, 0600));
        for (int look = 0; look < 3; look++) {
            sched_yield();
            CHECK_EQ(mode_of(fd), 0600);
        }
    }
    CHECK_EQ(write(ends[1], "x", 1), 1);
    JOIN(pid);
    OK(unlink(path));
    OK(close(fd) | close(ends[0]) | close(ends[1]));
}

static void changed_programs(void)
{
    NEEDS_USERS();
    set_id_bits_of_files(".");
    set_id_bits_of_files("/dev/shm");
    modes_set_during_writes(".");
    modes_set_during_writes("/dev/shm");
}

/* Unnamed files have the mode that was asked for, also once they get a name. */
static void unnamed_files(const char *dir)
{
    char path[128], source[64];
    snprintf(path, sizeof path, "%s/privileges.%d", dir, getpid());
    umask(0);
    int fd = open(dir, O_TMPFILE | O_RDWR, 07777);
    /* A layer is an overlay of the host's, which have them since Linux 6.3. */
    if (fd < 0 && errno == EOPNOTSUPP && strcmp(dir, "/dev/shm"))
        return;
    FD(fd);
    CHECK_EQ(mode_of(fd), 07777);
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    OK(linkat(AT_FDCWD, source, AT_FDCWD, path, AT_SYMLINK_FOLLOW));
    struct stat info;
    OK(stat(path, &info));
    CHECK_EQ(info.st_mode & 07777, 07777);
    CHECK_EQ(mode_of(fd), 07777);
    CHECK_EQ(info.st_nlink, 1);
    /* Once the last name is gone none comes back. */
    OK(unlink(path));
    CHECK_ERR(linkat(AT_FDCWD, source, AT_FDCWD, path, AT_SYMLINK_FOLLOW), ENOENT);
    OK(close(fd));
    umask(022);
    fd = FD(open(dir, O_TMPFILE | O_WRONLY, 06777));
    CHECK_EQ(mode_of(fd), 06755);
    OK(close(fd));
    fd = FD(open(dir, O_TMPFILE | O_RDWR | O_EXCL, 0600));
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    CHECK_ERR(linkat(AT_FDCWD, source, AT_FDCWD, path, AT_SYMLINK_FOLLOW), ENOENT);
    OK(close(fd));
    fd = FD(open(path, O_CREAT | O_EXCL | O_RDWR, 06777));
    CHECK_EQ(mode_of(fd), 06755);
    OK(unlink(path));
    OK(close(fd));
}

static void modes_of_unnamed_files(void)
{
    unnamed_files(".");
    unnamed_files("/dev/shm");
}

static bool text_has(int proc, const char *name, const char *what)
{
    static char text[1 << 20];
    int fd = FD(openat(proc, name, O_RDONLY | O_CLOEXEC));
    size_t length = 0;
    ssize_t got;
    while ((got = read(fd, text + length, sizeof text - 1 - length)) > 0)
        length += got;
    text[length] = 0;
    OK(close(fd));
    return strstr(text, what) != NULL;
}

static void check_link(int proc, const char *name, const char *want)
{
    char text[4096];
    ssize_t length = readlinkat(proc, name, text, sizeof text - 1);
    CHECK(length > 0);
    text[length] = 0;
    if (strcmp(text, want))
        FAIL("%s leads to %s, want %s", name, text, want);
}

/* Names are shown as they are from the reader's root. */
static void names_in_a_chroot(void)
{
    char here[4096], name[64];
    CHECK(getcwd(here, sizeof here));
    OK(mkdir("root", 0755));
    OK(mkdir("root/dir", 0755));
    write_file("root/dir/file", "xxxx", 0644);
    write_file("outside", "xxxx", 0644);
    char outside[5000];
    snprintf(outside, sizeof outside, "%s/outside", here);
    int proc = FD(open("/proc", O_PATH | O_DIRECTORY));
    int inside = FD(open("root/dir/file", O_RDONLY));
    int other = FD(open("outside", O_RDONLY));
    int gone = FD(open("root/dir/gone", O_RDWR | O_CREAT, 0600));
    OK(unlink("root/dir/gone"));
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, inside, 0) != MAP_FAILED);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, other, 0) != MAP_FAILED);
    CHECK(text_has(proc, "self/maps", here));
    if (chroot("root") != 0) {
        CHECK_EQ(errno, EPERM);
        SKIP("left out: only root can change its root directory");
    }
    snprintf(name, sizeof name, "self/fd/%d", inside);
    check_link(proc, name, "/dir/file");
    snprintf(name, sizeof name, "self/fd/%d", gone);
    check_link(proc, name, "/dir/gone (deleted)");
    check_link(proc, "self/root", "/");
    snprintf(name, sizeof name, "self/fd/%d", other);
    check_link(proc, name, outside);
    check_link(proc, "self/cwd", here);
    char text[8192];
    CHECK(syscall(SYS_getcwd, text, sizeof text) > 0);
    CHECK(strncmp(text, "(unreachable)", 13) == 0);
    OK(chdir("/dir"));
    check_link(proc, "self/cwd", "/dir");
    CHECK(text_has(proc, "self/maps", " /dir/file\n"));
    CHECK(text_has(proc, "self/maps", outside));
    snprintf(text, sizeof text, "%s/root", here);
    CHECK(!text_has(proc, "self/maps", text));
    CHECK(!text_has(proc, "self/smaps", text));
    /* No mount begins within. */
    CHECK(!text_has(proc, "self/mounts", " "));
    CHECK(!text_has(proc, "self/mountinfo", " "));
    CHECK(!text_has(proc, "self/mountstats", "device"));
    /* There is nothing above the root. */
    OK(chdir("/../../.."));
    CHECK(access("dir/file", F_OK) == 0);
    struct open_how how = {.flags = O_RDONLY, .resolve = RESOLVE_BENEATH};
    int dir = FD(open("/dir", O_PATH));
    CHECK_ERR(syscall(SYS_openat2, dir, "../dir/file", &how, sizeof how), EXDEV);
    how.resolve = RESOLVE_IN_ROOT;
    CHECK(syscall(SYS_openat2, dir, "/../file", &how, sizeof how) >= 0);
}

/* A mount table of one's own, so that the tests' mounts bother nobody; false when that cannot be had. */
static bool enter_own_mounts(void)
{
    if (unshare(CLONE_NEWNS) == 0)
        return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
    /* Where namespaces cannot be made all mounts are the sandbox's own. */
    return errno == ENOSYS;
}

/* `statfs` and the tables of mounts tell the same. */
static void limits_of_mounts(void)
{
    if (geteuid() == 0 && enter_own_mounts()) {
        OK(mkdir("mounted", 0755));
        unsigned long flags[] = {0, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOSUID | MS_NODEV | MS_RDONLY};
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
            OK(mount("none", "mounted", "tmpfs", flags[i], "size=4k"));
            struct statfs found;
            OK(statfs("mounted", &found));
            CHECK_EQ(found.f_flags & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC), flags[i]);
            CHECK(found.f_flags & 0x20);
            OK(umount2("mounted", 0));
        }
        OK(rmdir("mounted"));
    }
    FILE *table = fopen("/proc/self/mountinfo", "r");
    CHECK(table);
    static char line[65536];
    int seen = 0;
    while (fgets(line, sizeof line, table)) {
        int id;
        char point[4096], options[4096];
        CHECK_EQ(sscanf(line, "%d %*d %*s %*s %4095s %4095s", &id, point, options), 3);
        struct statx place;
        struct statfs found;
        /* Those below another mount, or out of reach, cannot be asked. */
        if (strchr(point, '\\') || statx(AT_FDCWD, point, 0, STATX_MNT_ID, &place) || (int)place.stx_mnt_id != id ||
            statfs(point, &found))
            continue;
        char words[4100], super[64] = "";
        snprintf(words, sizeof words, ",%s,", options);
        char *end = strrchr(line, ' ');
        snprintf(super, sizeof super, "%.60s", end ? end + 1 : "");
        bool read_only = strstr(words, ",ro,") || strncmp(super, "ro", 2) == 0;
        if (read_only != !!(found.f_flags & MS_RDONLY) || !strstr(words, ",nosuid,") != !(found.f_flags & MS_NOSUID) ||
            !strstr(words, ",nodev,") != !(found.f_flags & MS_NODEV) ||
            !strstr(words, ",noexec,") != !(found.f_flags & MS_NOEXEC) ||
            !strstr(words, ",relatime,") != !(found.f_flags & 0x1000))
            FAIL("%s is mounted %s, but its flags are %#lx", point, options, (unsigned long)found.f_flags);
        seen++;
    }
    fclose(table);
    CHECK(seen > 0);
}

/* A set-id program on a mount that says nosuid is a program like others. */
static void mounts_without_set_id(void)
{
    NEEDS_USERS();
    if (!enter_own_mounts())
        SKIP("left out: no mounts of its own");
    OK(pipe2(report_pipe, O_CLOEXEC));
    OK(mkdir("mounted", 0755));
    OK(mount("none", "mounted", "tmpfs", MS_NOSUID, "mode=0755"));
    copy_program("mounted/set_uid", 0, 04755);
    struct report found = REPORT("mounted/set_uid", become(USER));
    CHECK(found.uid[1] == USER && found.uid[2] == USER && found.permitted == 0 && found.secure == 0);
    OK(umount2("mounted", MNT_DETACH));
}

/* A terminal belongs to who opened it; nobody types into it, or takes it, for them. */
static void other_peoples_terminals(void)
{
    NEEDS_USERS();
    int controller = FD(posix_openpt(O_RDWR | O_NOCTTY));
    OK(grantpt(controller));
    OK(unlockpt(controller));
    char name[64];
    OK(ptsname_r(controller, name, sizeof name));
    struct stat info;
    OK(stat(name, &info));
    CHECK_EQ(info.st_uid, 0);
    CHECK_EQ(info.st_mode & 0007, 0);
    int ready[2];
    OK(pipe(ready));
    pid_t leader = CHILD({
        CHECK(setsid() > 0);
        int terminal = FD(open(name, O_RDWR));
        OK(ioctl(terminal, TIOCSCTTY, 0));
        CHECK_EQ(write(ready[1], "x", 1), 1);
        sleeper(NULL);
    });
    char byte;
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    int terminal = FD(open(name, O_RDWR | O_NOCTTY));
    JOIN(CHILD({
        become(USER);
        CHECK_ERR(open(name, O_RDWR | O_NOCTTY), EACCES);
        CHECK(setsid() > 0);
        CHECK_ERR(ioctl(terminal, TIOCSCTTY, 0), EPERM);
        CHECK_ERR(ioctl(terminal, TIOCSCTTY, 1), EPERM);
        CHECK(ioctl(terminal, TIOCSTI, "x") == -1);
        CHECK_ERR(ioctl(terminal, TIOCSPGRP, &(int){getpid()}), ENOTTY);
        CHECK_ERR(ioctl(terminal, TIOCNOTTY, 0), ENOTTY);
    }));
    OK(kill(leader, SIGKILL));
    CHECK_KILLED(leader, SIGKILL);
}

/* Sends a descriptor to itself; 0 or errno. */
static int send_descriptor(int socket)
{
    struct {
        struct cmsghdr header;
        int descriptor;
    } control = {{CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}, socket};
    struct iovec bytes = {"x", 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    return sendmsg(socket, &message, MSG_DONTWAIT) < 0 ? errno : 0;
}

/* Descriptors that a user has sent, and nobody receives, keep no other user from sending some. */
static void descriptors_on_their_way(void)
{
    NEEDS_USERS();
    int ready[2], go[2];
    struct rlimit few = {64, 64};
    OK(pipe(ready));
    OK(pipe(go));
    pid_t full = CHILD({
        become(USER);
        OK(setrlimit(RLIMIT_NOFILE, &few));
        int pair[2], sent = 0, error;
        OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
        for (error = 0; error == 0 && sent < 1000; sent++) {
            error = send_descriptor(pair[sent % 2]);
            if (error == EAGAIN) {
                OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
                error = 0;
            }
        }
        CHECK_EQ(error, ETOOMANYREFS);
        CHECK_EQ(write(ready[1], "", 1), 1);
        char byte;
        close(go[1]);
        CHECK_EQ(read(go[0], &byte, 1), 0);
    });
    char byte;
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    JOIN(CHILD({
        become(USER + 1);
        OK(setrlimit(RLIMIT_NOFILE, &few));
        int pair[2];
        OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
        CHECK_EQ(send_descriptor(pair[0]), 0);
    }));
    close(go[1]);
    JOIN(full);
}

int main(int argc, char **argv)
{
    const char *count = getenv("PRIVILEGES");
    if (count && !strcmp(count, "count"))
        return write(1, &argc, sizeof argc) != sizeof argc;
    if (argc == 2 && !strcmp(argv[1], "--report"))
        report(argc);
    if (argc == 2 && !strncmp(argv[1], "--wait", 6)) {
        pid_t me = getpid();
        CHECK_EQ(write(1, &me, sizeof me), sizeof me);
        if (!strcmp(argv[1], "--wait-child"))
            return waitpid(-1, NULL, __WALL) < 0;
        alarm(5);
        for (;;)
            pause();
    }
    static const struct test tests[] = {
        TEST(set_id_programs),         TEST(capabilities_of_root),  TEST(capabilities_of_files), TEST(own_descriptors),  TEST(shared_places),
        TEST(sharing_while_executing), TEST(no_arguments),          TEST(looking_from_before),
        TEST(signals_of_children),     TEST(other_peoples_processes), TEST(forged_senders),
        TEST(privileged_calls),        TEST(sticky_directories),    TEST(changed_programs),
        TEST(modes_of_unnamed_files),  TEST(names_in_a_chroot),     TEST(limits_of_mounts),
        TEST(mounts_without_set_id),   TEST(other_peoples_terminals), TEST(descriptors_on_their_way),
    };
    return RUN_TESTS("privileges", tests, argc, argv);
}
