/*
 * inotify under attack: random and boundary arguments by processes that are killed in the middle, limits that change, unread
 * queues, users without end, watches of nodes that go; and how the sandbox is as ever afterwards.
 *
 *   hostile_inotify [SECONDS] [SEED]
 *
 * It changes the limits of its container, so it runs in sandboxes alone, as root.
 */
#include "random_calls.h"
#include <limits.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>

enum { WORKERS = 8, PAGE = 4096, FDS = 16 };

/* A number that is often at a border. */
static long odd(void)
{
    static const long border[] = {0, 1, -1, 2, INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, UINT_MAX, 1L << 47, PAGE, 15, 16, 17, 31, 32};
    return any(2) ? border[any(sizeof border / sizeof *border)] : (long)next_random(&state) >> any(64);
}

static char *scratch;

static void *place(void)
{
    switch (any(6)) {
    case 0:
        return NULL;
    case 1:
        return (void *)odd();
    case 2:
        return scratch + 16 * PAGE - any(64);
    default:
        return scratch + any(8) * PAGE;
    }
}

static const char *path(void)
{
    static const char *const paths[] = {"d",   "d/a",        "d/b",           "e",    "e/a",        "m",  "m/a",
                                        "e/s", "/proc/self", "/proc/self/fd/5", "/dev/null", "/dev/pts", ".", "/"};
    return paths[any(sizeof paths / sizeof *paths)];
}

static int fds[FDS];

static void one_call(void)
{
    unsigned at = (unsigned)any(FDS);
    int fd = any(16) ? fds[at] : (int)odd();
    switch (any(14)) {
    case 0:
        if (fds[at] > 2)
            close(fds[at]);
        fds[at] = (int)syscall(SYS_inotify_init1, any(8) ? O_NONBLOCK : odd());
        if (fds[at] >= 0)
            fcntl(fds[at], F_SETFL, O_NONBLOCK);
        break;
    case 1:
    case 2:
    case 3:
        syscall(SYS_inotify_add_watch, fd, any(16) ? (void *)path() : place(), any(3) ? IN_ALL_EVENTS : odd());
        break;
    case 4:
        syscall(SYS_inotify_rm_watch, fd, any(3) ? (long)any(20) : odd());
        break;
    case 5:
        /* The descriptor may be standard input, which must not be waited for. */
        if (fd > 2)
            syscall(SYS_read, fd, place(), any(2) ? (long)any(400) : odd());
        break;
    case 6: {
        int count;
        ioctl(fd, FIONREAD, any(2) ? (void *)&count : place());
        break;
    }
    case 7:
        rename(path(), path());
        break;
    case 8:
        if (unlink(any(2) ? "d/a" : "e/a") == 0 && any(2))
            symlink("../d", "e/s");
        break;
    case 9: {
        int file = open(any(2) ? "d/a" : "m/a", O_RDWR | O_CREAT | O_NONBLOCK, 0666);
        if (file >= 0) {
            if (write(file, "x", any(2)) < 0 || read(file, scratch, 1) < 0)
                errno = 0;
            close(file);
        }
        break;
    }
    case 10:
        if (any(8) == 0 && mount("none", "m", "tmpfs", 0, "size=1m") == 0 && any(2))
            umount2("m", any(2) ? MNT_DETACH : 0);
        else if (any(4) == 0)
            umount2("m", MNT_DETACH);
        break;
    case 11:
        if (any(4) == 0) {
            rmdir("d");
            mkdir("d", 0777);
        }
        break;
    case 12: {
        char name[64];
        snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
        int facts = open(name, O_RDONLY);
        if (facts >= 0 && read(facts, scratch, PAGE) < 0)
            errno = 0;
        close(facts);
        break;
    }
    default:
        if (any(50) == 0 && fork() == 0)
            _exit(0);
    }
}

__attribute__((noreturn)) static void work(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    scratch = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(scratch != MAP_FAILED);
    memset(fds, 0xff, sizeof fds);
    for (unsigned round = 0;; round++) {
        one_call();
        while (round % 64 == 0 && waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}

static int set_limit(const char *name, const char *value)
{
    char file[100];
    snprintf(file, sizeof file, "/proc/sys/fs/inotify/%s", name);
    int fd = FD(open(file, O_WRONLY));
    int result = write(fd, value, strlen(value)) == (ssize_t)strlen(value) ? 0 : -1;
    close(fd);
    return result;
}

static void limits(void)
{
    static const char *const bad[] = {"-1", "x", "", "2147483648", "99999999999999999999"};
    for (unsigned i = 0; i < 5; i++)
        if (*bad[i])
            CHECK_ERR(set_limit("max_user_watches", bad[i]), EINVAL);
    OK(set_limit("max_user_instances", "2"));
    OK(set_limit("max_user_watches", "3"));
    OK(set_limit("max_queued_events", "1"));
    /* What those had who were killed may still be on its way out. */
    int one, other;
    AWAIT((one = inotify_init1(IN_NONBLOCK)) >= 0, 10000);
    AWAIT((other = inotify_init1(IN_NONBLOCK)) >= 0, 10000);
    CHECK(one >= 0 && other >= 0);
    CHECK_ERR(inotify_init(), EMFILE);
    CHECK_EQ(inotify_add_watch(one, "d", IN_CREATE), 1);
    CHECK_EQ(inotify_add_watch(one, "e", IN_CREATE), 2);
    CHECK_EQ(inotify_add_watch(other, "e", IN_CREATE), 1);
    CHECK_ERR(inotify_add_watch(other, "d", IN_CREATE), ENOSPC);
    CHECK_EQ(inotify_add_watch(other, "e", IN_DELETE), 1);
    OK(inotify_rm_watch(one, 1));
    CHECK_EQ(inotify_add_watch(other, "d", IN_CREATE), 2);
    /* One event and the word of those lost are queued. */
    OK(close(FD(open("d/n1", O_CREAT, 0600))));
    OK(close(FD(open("d/n2", O_CREAT, 0600))));
    int count;
    OK(ioctl(other, FIONREAD, &count));
    CHECK_EQ(count, 32 + 16);
    OK(unlink("d/n1"));
    OK(unlink("d/n2"));
    close(one);
    close(other);
    OK(set_limit("max_user_instances", "128"));
    OK(set_limit("max_user_watches", "65536"));
    OK(set_limit("max_queued_events", "16384"));
}

/* Users without end, each with what it may have. */
static void users(void)
{
    OK(set_limit("max_user_instances", "3"));
    for (int uid = 1000; uid < 3000; uid++) {
        OK(seteuid((uid_t)uid));
        int made[4];
        for (int i = 0; i < 3; i++)
            made[i] = FD(inotify_init());
        CHECK_ERR(inotify_init(), EMFILE);
        for (int i = 0; i < 3; i++)
            OK(close(made[i]));
        OK(seteuid(0));
    }
    OK(set_limit("max_user_instances", "128"));
}

/* One directory has very many watches, and is used meanwhile; all end at once. */
static void one_for_many(void)
{
    enum { MANY = 20000 };
    struct rlimit most = {MANY + 100, MANY + 100};
    OK(setrlimit(RLIMIT_NOFILE, &most));
    OK(set_limit("max_user_instances", "1000000"));
    OK(mkdir("many", 0755));
    static int all[MANY];
    int count = 0;
    while (count < MANY && (all[count] = inotify_init1(IN_NONBLOCK)) >= 0 &&
           inotify_add_watch(all[count], "many", IN_CREATE | IN_DELETE_SELF) == 1)
        count++;
    CHECK(count > 1000);
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "many/%d", i);
        OK(close(FD(open(name, O_CREAT, 0600))));
        OK(unlink(name));
    }
    OK(rmdir("many"));
    for (int i = 0; i < count; i += 997) {
        int bytes;
        OK(ioctl(all[i], FIONREAD, &bytes));
        CHECK_EQ(bytes, 5 * 32 + 2 * 16);
    }
    OK(set_limit("max_user_instances", "128"));
}

/* Queues that nobody reads, as long as memory lasts: events are lost then, and all else goes on. */
static void unread(void)
{
    OK(set_limit("max_queued_events", "2147483647"));
    int fd = FD(inotify_init1(IN_NONBLOCK));
    OK(set_limit("max_queued_events", "16384"));
    char longest[NAME_MAX + 3] = "d/";
    memset(longest + 2, 'y', NAME_MAX);
    CHECK_EQ(inotify_add_watch(fd, "d", IN_OPEN | IN_CLOSE), 1);
    for (int i = 0; i < 60000; i++) {
        int file = open(longest, O_RDONLY | O_CREAT, 0600);
        if (file >= 0)
            close(file);
    }
    int bytes = 0;
    OK(ioctl(fd, FIONREAD, &bytes));
    CHECK(bytes > 1 << 20);
    OK(unlink(longest));
}

int main(int argc, char **argv)
{
    struct campaign campaign = campaign_of(argc, argv, 8);
    char directory[] = "/tmp/hostile_inotify.XXXXXX";
    CHECK(mkdtemp(directory) != NULL);
    OK(chdir(directory));
    OK(mkdir("d", 0777));
    OK(mkdir("e", 0777));
    OK(mkdir("m", 0777));
    attack(campaign, WORKERS, work);
    while (umount2("m", MNT_DETACH) == 0)
        ;
    /* Some file may have got their names. */
    unlink("d");
    unlink("e");
    mkdir("d", 0777);
    mkdir("e", 0777);
    JOIN(CHILD(limits()));
    JOIN(CHILD(users()));
    JOIN(CHILD(one_for_many()));
    JOIN(CHILD(unread()));
    JOIN(CHILD(limits()));
    puts("ok hostile_inotify");
    return 0;
}
