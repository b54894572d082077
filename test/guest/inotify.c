/*
 * inotify: which calls cause which events, in their order, to whom; queues, limits, watches that end, and how instances are
 * waited for.
 */
#include "check.h"
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/xattr.h>

enum { EVERYTHING = IN_ALL_EVENTS };

static int instance;

/* The next event, of which all is as wanted; `cookie`: that it has one. */
static struct inotify_event *next_event(void)
{
    static char buffer[8192] __attribute__((aligned(8)));
    static ssize_t length, at;
    static int of = -1;
    if (at >= length || of != instance) {
        length = read(instance, buffer, sizeof buffer);
        of = instance;
        at = 0;
        if (length < 0 && errno == EAGAIN)
            return NULL;
        CHECK(length >= (ssize_t)sizeof(struct inotify_event));
    }
    struct inotify_event *event = (struct inotify_event *)(buffer + at);
    CHECK_EQ(event->len % sizeof *event, 0);
    at += (ssize_t)(sizeof *event + event->len);
    CHECK(at <= length);
    return event;
}

static uint32_t expect_at(int line, int watch, uint32_t mask, const char *name)
{
    struct inotify_event *event = next_event();
    if (!event)
        fail_at(__FILE__, line, "no event, want %#x on \"%s\"", mask, name);
    const char *found = event->len ? event->name : "";
    if (event->mask != mask || strcmp(found, name) != 0 || event->wd != watch)
        fail_at(__FILE__, line, "event %#x on \"%s\" of %d, want %#x on \"%s\" of %d", event->mask, found, event->wd, mask,
                name, watch);
    if (event->len)
        CHECK_EQ(event->len, (strlen(name) + 1 + 15) / 16 * 16);
    return event->cookie;
}

#define EXPECT(watch, mask, name) expect_at(__LINE__, watch, mask, name)
#define NOTHING()                                                                                                      \
    do {                                                                                                               \
        struct inotify_event *left_ = next_event();                                                                    \
        if (left_)                                                                                                     \
            FAIL("an event is left: %#x on \"%s\" of %d", left_->mask, left_->len ? left_->name : "", left_->wd);      \
    } while (0)

static void begin(void)
{
    instance = FD(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
}

static int watch(const char *path, uint32_t mask)
{
    return FD(inotify_add_watch(instance, path, mask));
}

static void touch(const char *path)
{
    OK(close(FD(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644))));
}

/* What is read, written and changed through a descriptor, seen by the file's watch and its directory's. */
static void contents(void)
{
    begin();
    OK(mkdir("d", 0755));
    touch("d/file");
    int dir = watch("d", EVERYTHING), file = watch("d/file", EVERYTHING);
#define BOTH(mask)                                                                                                     \
    do {                                                                                                               \
        EXPECT(dir, mask, "file");                                                                                     \
        EXPECT(file, mask, "");                                                                                        \
    } while (0)
    char bytes[64] = "some bytes";
    int fd = FD(open("d/file", O_RDWR));
    BOTH(IN_OPEN);
    CHECK_EQ(write(fd, bytes, 10), 10);
    BOTH(IN_MODIFY);
    CHECK_EQ(write(fd, bytes, 0), 0);
    CHECK_EQ(pread(fd, bytes, 5, 0), 5);
    BOTH(IN_ACCESS);
    CHECK_EQ(read(fd, bytes, 5), 0);
    NOTHING();
    OK(ftruncate(fd, 100));
    BOTH(IN_MODIFY);
    OK(truncate("d/file", 50));
    BOTH(IN_MODIFY);
    if (fallocate(fd, 0, 0, 200) == 0)
        BOTH(IN_MODIFY);
    struct iovec pieces[2] = {{bytes, 3}, {bytes, 4}};
    CHECK_EQ(pwritev2(fd, pieces, 2, 0, 0), 7);
    BOTH(IN_MODIFY);
    OK(fchmod(fd, 0600));
    BOTH(IN_ATTRIB);
    OK(chown("d/file", geteuid(), getegid()));
    BOTH(IN_ATTRIB);
    OK(futimens(fd, NULL));
    BOTH(IN_ATTRIB);
    struct timespec only_write[2] = {{0, UTIME_OMIT}, {5, 0}}, only_read[2] = {{5, 0}, {0, UTIME_OMIT}};
    OK(utimensat(AT_FDCWD, "d/file", only_write, 0));
    BOTH(IN_MODIFY);
    OK(utimensat(AT_FDCWD, "d/file", only_read, 0));
    BOTH(IN_ACCESS);
    if (fsetxattr(fd, "user.colour", "red", 3, 0) == 0) {
        BOTH(IN_ATTRIB);
        OK(fremovexattr(fd, "user.colour"));
        BOTH(IN_ATTRIB);
    }
    int again = dup(fd);
    OK(close(again));
    NOTHING();
    OK(close(fd));
    BOTH(IN_CLOSE_WRITE);
    fd = FD(open("d/file", O_RDONLY));
    OK(close(fd));
    EXPECT(dir, IN_OPEN, "file"), EXPECT(file, IN_OPEN, "");
    BOTH(IN_CLOSE_NOWRITE);
    OK(close(FD(open("d/file", O_WRONLY | O_TRUNC))));
    bool opens_first = kernel_is(6, 12);
    BOTH(opens_first ? IN_OPEN : IN_MODIFY);
    BOTH(opens_first ? IN_MODIFY : IN_OPEN);
    BOTH(IN_CLOSE_WRITE);
    OK(close(FD(open("d/file", O_PATH))));
    struct stat info;
    OK(stat("d/file", &info));
    NOTHING();
    /* A directory's own. */
    DIR *list = opendir("d");
    EXPECT(dir, IN_OPEN | IN_ISDIR, "");
    while (readdir(list))
        ;
    EXPECT(dir, IN_ACCESS | IN_ISDIR, "");
    closedir(list);
    EXPECT(dir, IN_CLOSE_NOWRITE | IN_ISDIR, "");
    OK(chmod("d", 0700));
    EXPECT(dir, IN_ATTRIB | IN_ISDIR, "");
    NOTHING();
}

/* Data that the kernel moves by itself. */
static void moved_data(void)
{
    /* Older kernels tell of both files in another order. */
    if (!kernel_is(6, 12))
        return;
    begin();
    OK(mkdir("d", 0755));
    write_file("d/from", "what is to be moved", 0644);
    touch("d/to");
    watch("d", IN_ACCESS | IN_MODIFY);
    int from = FD(open("d/from", O_RDONLY)), to = FD(open("d/to", O_RDWR)), ends[2];
    CHECK_EQ(copy_file_range(from, NULL, to, NULL, 10, 0), 10);
    EXPECT(1, IN_ACCESS, "from");
    EXPECT(1, IN_MODIFY, "to");
    off_t at = 0;
    CHECK_EQ(sendfile(to, from, &at, 5), 5);
    EXPECT(1, IN_ACCESS, "from");
    EXPECT(1, IN_MODIFY, "to");
    OK(pipe(ends));
    loff_t begin_at = 0;
    CHECK_EQ(splice(from, &begin_at, ends[1], NULL, 5, 0), 5);
    EXPECT(1, IN_ACCESS, "from");
    CHECK_EQ(splice(ends[0], NULL, to, NULL, 5, 0), 5);
    EXPECT(1, IN_MODIFY, "to");
    NOTHING();
}

/* Names that are made and removed, of every kind. */
static void names(void)
{
    begin();
    OK(mkdir("d", 0755));
    int dir = watch("d", IN_CREATE | IN_DELETE | IN_ATTRIB | IN_MOVE);
    touch("d/file");
    EXPECT(dir, IN_CREATE, "file");
    touch("d/file");
    OK(mkdir("d/sub", 0755));
    EXPECT(dir, IN_CREATE | IN_ISDIR, "sub");
    OK(symlink("nowhere", "d/link"));
    EXPECT(dir, IN_CREATE, "link");
    OK(mkfifo("d/fifo", 0600));
    EXPECT(dir, IN_CREATE, "fifo");
    int file = watch("d/file", EVERYTHING);
    OK(link("d/file", "d/other"));
    EXPECT(file, IN_ATTRIB, "");
    EXPECT(dir, IN_CREATE, "other");
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "d/socket"};
    int server = FD(socket(AF_UNIX, SOCK_STREAM, 0));
    OK(bind(server, (struct sockaddr *)&address, sizeof address));
    EXPECT(dir, IN_CREATE, "socket");
    CHECK_ERR(mkdir("d/sub", 0755), EEXIST);
    CHECK_ERR(unlink("d/absent"), ENOENT);
    NOTHING();
    OK(unlink("d/other"));
    EXPECT(file, IN_ATTRIB, "");
    EXPECT(dir, IN_DELETE, "other");
    OK(unlink("d/file"));
    EXPECT(file, IN_ATTRIB, "");
    EXPECT(file, IN_DELETE_SELF, "");
    EXPECT(file, IN_IGNORED, "");
    EXPECT(dir, IN_DELETE, "file");
    int sub = watch("d/sub", EVERYTHING);
    OK(rmdir("d/sub"));
    EXPECT(sub, IN_DELETE_SELF, "");
    EXPECT(sub, IN_IGNORED, "");
    EXPECT(dir, IN_DELETE | IN_ISDIR, "sub");
    OK(unlink("d/link"));
    EXPECT(dir, IN_DELETE, "link");
    OK(unlink("d/socket"));
    EXPECT(dir, IN_DELETE, "socket");
    char longest[NAME_MAX + 3] = "d/";
    memset(longest + 2, 'x', NAME_MAX);
    touch(longest);
    EXPECT(dir, IN_CREATE, longest + 2);
    OK(unlink(longest));
    EXPECT(dir, IN_DELETE, longest + 2);
    NOTHING();
}

static void renames(void)
{
    begin();
    OK(mkdir("a", 0755));
    OK(mkdir("b", 0755));
    touch("a/one");
    int a = watch("a", IN_MOVE | IN_CREATE | IN_DELETE), b = watch("b", IN_MOVE | IN_CREATE | IN_DELETE);
    int one = watch("a/one", IN_MOVE_SELF | IN_ATTRIB | IN_DELETE_SELF);
    OK(rename("a/one", "b/two"));
    uint32_t cookie = EXPECT(a, IN_MOVED_FROM, "one");
    CHECK(cookie != 0);
    CHECK_EQ(EXPECT(b, IN_MOVED_TO, "two"), cookie);
    CHECK_EQ(EXPECT(one, IN_MOVE_SELF, ""), 0);
    OK(rename("b/two", "b/three"));
    uint32_t next = EXPECT(b, IN_MOVED_FROM, "two");
    CHECK(next != cookie);
    CHECK_EQ(EXPECT(b, IN_MOVED_TO, "three"), next);
    EXPECT(one, IN_MOVE_SELF, "");
    /* The watch goes with the file, under its new name. */
    int fd = FD(open("b/three", O_RDONLY));
    OK(fchmod(fd, 0600));
    EXPECT(one, IN_ATTRIB, "");
    OK(close(fd));
    /* A file that is replaced. */
    touch("b/new");
    EXPECT(b, IN_CREATE, "new");
    OK(rename("b/new", "b/three"));
    EXPECT(b, IN_MOVED_FROM, "new");
    EXPECT(b, IN_MOVED_TO, "three");
    EXPECT(one, IN_ATTRIB, "");
    EXPECT(one, IN_DELETE_SELF, "");
    EXPECT(one, IN_IGNORED, "");
    /* Directories. */
    OK(mkdir("a/dir", 0755));
    EXPECT(a, IN_CREATE | IN_ISDIR, "dir");
    int dir = watch("a/dir", EVERYTHING);
    OK(rename("a/dir", "b/dir"));
    EXPECT(a, IN_MOVED_FROM | IN_ISDIR, "dir");
    EXPECT(b, IN_MOVED_TO | IN_ISDIR, "dir");
    EXPECT(dir, IN_MOVE_SELF, "");
    touch("b/dir/inside");
    EXPECT(dir, IN_CREATE, "inside");
    EXPECT(dir, IN_OPEN, "inside");
    EXPECT(dir, IN_CLOSE_WRITE, "inside");
    NOTHING();
    /* An exchange is two moves. */
    touch("a/x");
    EXPECT(a, IN_CREATE, "x");
    if (syscall(SYS_renameat2, AT_FDCWD, "a/x", AT_FDCWD, "b/dir", 2) == 0) {
        cookie = EXPECT(a, IN_MOVED_FROM, "x");
        CHECK_EQ(EXPECT(b, IN_MOVED_TO, "dir"), cookie);
        next = EXPECT(b, IN_MOVED_FROM | IN_ISDIR, "dir");
        CHECK(next != cookie);
        CHECK_EQ(EXPECT(a, IN_MOVED_TO | IN_ISDIR, "x"), next);
        EXPECT(dir, IN_MOVE_SELF, "");
    }
    NOTHING();
}

/* A file that is open outlives its name, and so do its watches. */
static void open_and_deleted(void)
{
    begin();
    OK(mkdir("d", 0755));
    int fd = FD(open("d/file", O_RDWR | O_CREAT, 0644));
    int file = watch("d/file", EVERYTHING);
    int dir = watch("d", IN_MODIFY), strict = FD(inotify_init1(IN_NONBLOCK));
    CHECK_EQ(inotify_add_watch(strict, "d", IN_MODIFY | IN_EXCL_UNLINK), 1);
    CHECK_EQ(write(fd, "x", 1), 1);
    OK(unlink("d/file"));
    CHECK_EQ(write(fd, "x", 1), 1);
    EXPECT(dir, IN_MODIFY, "file");
    EXPECT(file, IN_MODIFY, "");
    EXPECT(file, IN_ATTRIB, "");
    EXPECT(dir, IN_MODIFY, "file");
    EXPECT(file, IN_MODIFY, "");
    OK(close(fd));
    EXPECT(file, IN_CLOSE_WRITE, "");
    EXPECT(file, IN_DELETE_SELF, "");
    EXPECT(file, IN_IGNORED, "");
    NOTHING();
    instance = strict;
    EXPECT(1, IN_MODIFY, "file");
    NOTHING();
    /* A name is taken again by another file: that is not watched. */
    begin();
    touch("d/again");
    watch("d/again", EVERYTHING);
    OK(unlink("d/again"));
    touch("d/again");
    EXPECT(1, IN_ATTRIB, "");
    EXPECT(1, IN_DELETE_SELF, "");
    EXPECT(1, IN_IGNORED, "");
    NOTHING();
    /* All names of a file lead to its watch. */
    touch("d/first");
    OK(link("d/first", "d/second"));
    file = watch("d/first", IN_OPEN | IN_DELETE_SELF);
    CHECK_EQ(watch("d/second", IN_OPEN | IN_DELETE_SELF), file);
    OK(unlink("d/first"));
    OK(close(FD(open("d/second", O_RDONLY))));
    EXPECT(file, IN_OPEN, "");
    OK(unlink("d/second"));
    EXPECT(file, IN_DELETE_SELF, "");
    EXPECT(file, IN_IGNORED, "");
    NOTHING();
    /* A directory that is open, or a working directory. */
    OK(mkdir("d/sub", 0755));
    int held = FD(open("d/sub", O_RDONLY));
    file = watch("d/sub", IN_DELETE_SELF);
    OK(rmdir("d/sub"));
    NOTHING();
    OK(close(held));
    EXPECT(file, IN_DELETE_SELF, "");
    EXPECT(file, IN_IGNORED, "");
    NOTHING();
}

static void masks(void)
{
    begin();
    OK(mkdir("d", 0755));
    touch("d/file");
    OK(symlink("d", "link"));
    CHECK_ERR(inotify_add_watch(instance, "d", 0), EINVAL);
    CHECK_ERR(inotify_add_watch(instance, "d", 0x1000), EINVAL);
    CHECK_ERR(inotify_add_watch(instance, "d", IN_OPEN | IN_MASK_ADD | IN_MASK_CREATE), EINVAL);
    CHECK_ERR(inotify_add_watch(instance, "d/file", IN_OPEN | IN_ONLYDIR), ENOTDIR);
    CHECK_ERR(inotify_add_watch(instance, "absent", IN_OPEN), ENOENT);
    CHECK_ERR(inotify_add_watch(instance, "", IN_OPEN), ENOENT);
    CHECK_ERR(inotify_add_watch(instance, (char *)8, IN_OPEN), EFAULT);
    CHECK_ERR(inotify_add_watch(instance, "d/file/x", IN_OPEN), ENOTDIR);
    CHECK_ERR(inotify_add_watch(-1, "d", IN_OPEN), EBADF);
    CHECK_ERR(inotify_add_watch(0, "d", IN_OPEN), EINVAL);
    CHECK_ERR(inotify_rm_watch(instance, 1), EINVAL);
    CHECK_ERR(inotify_rm_watch(instance, -1), EINVAL);
    CHECK_ERR(inotify_rm_watch(-1, 1), EBADF);
    CHECK_ERR(inotify_rm_watch(0, 1), EINVAL);
    CHECK_ERR(inotify_init1(1), EINVAL);
    CHECK_ERR(write(instance, "x", 1), EBADF);
    int dir = watch("d", IN_CREATE);
    CHECK_EQ(watch("link", IN_CREATE), dir);
    CHECK_ERR(inotify_add_watch(instance, "d", IN_OPEN | IN_MASK_CREATE), EEXIST);
    /* A link itself. */
    int link = watch("link", IN_ATTRIB | IN_DELETE_SELF | IN_DONT_FOLLOW);
    CHECK(link != dir);
    CHECK_ERR(inotify_add_watch(instance, "link", IN_OPEN | IN_DONT_FOLLOW | IN_ONLYDIR), ENOTDIR);
    OK(unlink("link"));
    EXPECT(link, IN_ATTRIB, "");
    EXPECT(link, IN_DELETE_SELF, "");
    EXPECT(link, IN_IGNORED, "");
    /* The mask is replaced, or added to. */
    watch("d", IN_DELETE);
    touch("d/new");
    NOTHING();
    watch("d", IN_CREATE | IN_MASK_ADD);
    OK(unlink("d/new"));
    touch("d/new");
    EXPECT(dir, IN_DELETE, "new");
    EXPECT(dir, IN_CREATE, "new");
    /* Once. */
    int once = watch("d/file", IN_OPEN | IN_ONESHOT);
    OK(close(FD(open("d/file", O_RDONLY))));
    OK(close(FD(open("d/file", O_RDONLY))));
    EXPECT(once, IN_OPEN, "");
    EXPECT(once, IN_IGNORED, "");
    CHECK_ERR(inotify_rm_watch(instance, once), EINVAL);
    CHECK(watch("d/file", IN_OPEN) != once);
    OK(inotify_rm_watch(instance, dir));
    EXPECT(dir, IN_IGNORED, "");
    OK(unlink("d/new"));
    NOTHING();
}

/* Reads, what is readable, and events that are alike. */
static void queue(void)
{
    begin();
    OK(mkdir("d", 0755));
    watch("d", IN_CREATE | IN_DELETE | IN_MODIFY);
    struct pollfd ready = {instance, POLLIN, 0};
    CHECK_EQ(poll(&ready, 1, 0), 0);
    char bytes[4096];
    CHECK_ERR(read(instance, bytes, sizeof bytes), EAGAIN);
    int count = -1, fd = FD(open("d/0123456789abcde", O_WRONLY | O_CREAT, 0644));
    OK(ioctl(instance, FIONREAD, &count));
    CHECK_EQ(count, 32);
    for (int i = 0; i < 5; i++)
        CHECK_EQ(write(fd, "x", 1), 1);
    OK(ioctl(instance, FIONREAD, &count));
    CHECK_EQ(count, 64);
    CHECK_EQ(poll(&ready, 1, 0), 1);
    CHECK_EQ(ready.revents, POLLIN);
    CHECK_ERR(read(instance, bytes, 31), EINVAL);
    CHECK_ERR(read(instance, bytes, 0), EINVAL);
    CHECK_EQ(read(instance, bytes, 63), 32);
    CHECK_EQ(write(fd, "x", 1), 1);
    touch("d/0123456789abcdef");
    OK(ioctl(instance, FIONREAD, &count));
    CHECK_EQ(count, 32 + 48);
    CHECK_EQ(read(instance, bytes, 79), 32);
    CHECK_EQ(read(instance, bytes, sizeof bytes), 48);
    struct inotify_event *event = (struct inotify_event *)bytes;
    CHECK_EQ(event->len, 32);
    for (unsigned i = 16; i < event->len; i++)
        CHECK_EQ(event->name[i], 0);
    CHECK_ERR(read(instance, bytes, sizeof bytes), EAGAIN);
    touch("d/x");
    CHECK_ERR(syscall(SYS_read, instance, (char *)8, sizeof bytes), EFAULT);
    /* What is in /proc about it. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", instance);
    struct stat info;
    OK(stat("d", &info));
    FILE *facts = fopen(path, "r");
    CHECK(facts != NULL);
    unsigned found = 0;
    for (char line[512]; fgets(line, sizeof line, facts);) {
        unsigned wd, dev, mask;
        unsigned long ino;
        if (sscanf(line, "inotify wd:%x ino:%lx sdev:%x mask:%x ignored_mask:0", &wd, &ino, &dev, &mask) == 4) {
            CHECK_EQ(wd, 1);
            CHECK_EQ(ino, info.st_ino);
            CHECK_EQ(mask & EVERYTHING, IN_CREATE | IN_DELETE | IN_MODIFY);
            found++;
        }
    }
    fclose(facts);
    CHECK_EQ(found, 1);
    snprintf(path, sizeof path, "/proc/self/fd/%d", instance);
    ssize_t length = readlink(path, bytes, sizeof bytes);
    CHECK(length > 0 && memcmp(bytes, "anon_inode:inotify", 18) == 0);
}

static void *touches_later(void *path)
{
    sleep_ms(20);
    touch(path);
    return NULL;
}

/* A read that sleeps, poll, select and epoll, and a signal meanwhile. */
static void on_alarm(int signal)
{
    (void)signal;
}

static void waiting(void)
{
    instance = FD(inotify_init());
    OK(mkdir("d", 0755));
    watch("d", IN_CREATE);
    pthread_t other;
    PT(pthread_create(&other, NULL, touches_later, "d/a"));
    EXPECT(1, IN_CREATE, "a");
    PT(pthread_join(other, NULL));
    PT(pthread_create(&other, NULL, touches_later, "d/b"));
    struct pollfd ready = {instance, POLLIN, 0};
    CHECK_EQ(poll(&ready, 1, -1), 1);
    EXPECT(1, IN_CREATE, "b");
    PT(pthread_join(other, NULL));
    int set = FD(epoll_create1(0));
    struct epoll_event event = {EPOLLIN | EPOLLET, {.u32 = 7}};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, instance, &event));
    PT(pthread_create(&other, NULL, touches_later, "d/c"));
    CHECK_EQ(epoll_wait(set, &event, 1, -1), 1);
    CHECK_EQ(event.data.u32, 7);
    CHECK_EQ(epoll_wait(set, &event, 1, 0), 0);
    PT(pthread_join(other, NULL));
    EXPECT(1, IN_CREATE, "c");
    fd_set set_of;
    FD_ZERO(&set_of);
    FD_SET(instance, &set_of);
    PT(pthread_create(&other, NULL, touches_later, "d/d"));
    CHECK_EQ(select(instance + 1, &set_of, NULL, NULL, NULL), 1);
    PT(pthread_join(other, NULL));
    EXPECT(1, IN_CREATE, "d");
    struct sigaction action = {.sa_handler = on_alarm};
    OK(sigaction(SIGUSR1, &action, NULL));
    pid_t reader = CHILD({
        char bytes[100];
        CHECK_ERR(read(instance, bytes, sizeof bytes), EINTR);
    });
    wait_until_asleep(reader);
    int status;
    for (int64_t end = patience_end(); !is_over(end);) {
        kill(reader, SIGUSR1);
        if (waitpid(reader, &status, WNOHANG) == reader) {
            CHECK_EQ(status, 0);
            return;
        }
        sleep_ms(5);
    }
    FAIL("the reader was not interrupted");
}

static int limit(const char *name)
{
    char path[100], text[20] = "";
    snprintf(path, sizeof path, "/proc/sys/fs/inotify/%s", name);
    int fd = FD(open(path, O_RDONLY));
    CHECK(read(fd, text, sizeof text - 1) > 0);
    OK(close(fd));
    return atoi(text);
}

/* More events than the queue holds. */
static void overflow(void)
{
    int most = limit("max_queued_events");
    CHECK(most > 0 && most % 2 == 0);
    if (most > 1 << 17)
        SKIP("a queue holds %d events", most);
    begin();
    OK(mkdir("d", 0755));
    watch("d", IN_OPEN | IN_CLOSE);
    touch("d/a");
    touch("d/b");
    for (int i = 0; i < most / 2 + 10; i++)
        touch(i % 2 ? "d/b" : "d/a");
    for (int i = 0; i < most; i++)
        EXPECT(1, i % 2 ? IN_CLOSE_WRITE : IN_OPEN, i / 2 % 2 ? "b" : "a");
    EXPECT(-1, IN_Q_OVERFLOW, "");
    NOTHING();
    touch("d/a");
    EXPECT(1, IN_OPEN, "a");
    EXPECT(1, IN_CLOSE_WRITE, "a");
    NOTHING();
}

/* A user's instances and watches are counted, and come back. */
static void counted(void)
{
    int most = limit("max_user_instances");
    if (most > 5000)
        SKIP("users may have %d instances", most);
    if (setresuid(12345, 12345, 12345) != 0)
        SKIP("not root");
    for (int round = 0; round < 3; round++) {
        int *fds = malloc(sizeof(int) * (size_t)(most + 1)), count = 0;
        while (count <= most && (fds[count] = inotify_init1(IN_CLOEXEC)) >= 0)
            count++;
        CHECK_EQ(errno, EMFILE);
        CHECK_EQ(count, most);
        while (count > 0)
            OK(close(fds[--count]));
        free(fds);
    }
}

static void permissions(void)
{
    OK(mkdir("secret", 0711));
    write_file("secret/file", "x", 0644);
    write_file("hidden", "x", 0600);
    write_file("open", "x", 0644);
    OK(chmod(".", 0755));
    if (setresgid(12345, 12345, 12345) != 0 || setresuid(12345, 12345, 12345) != 0)
        SKIP("not root");
    begin();
    if (access("open", R_OK) != 0)
        SKIP("the directory is out of reach");
    CHECK_ERR(inotify_add_watch(instance, "secret", IN_OPEN), EACCES);
    CHECK_ERR(inotify_add_watch(instance, "hidden", IN_OPEN), EACCES);
    CHECK_EQ(inotify_add_watch(instance, "secret/file", IN_OPEN), 1);
    CHECK_EQ(inotify_add_watch(instance, "open", IN_OPEN), 2);
    CHECK_ERR(open("/proc/sys/fs/inotify/max_user_watches", O_WRONLY), EACCES);
}

/* A file system that is unmounted. */
static void unmounting(void)
{
    OK(mkdir("m", 0755));
    if (mount("none", "m", "tmpfs", 0, NULL) != 0)
        SKIP("no mount");
    begin();
    OK(mkdir("m/sub", 0755));
    int root = watch("m", EVERYTHING), sub = watch("m/sub", IN_CREATE);
    OK(umount("m"));
    uint32_t seen = 0;
    for (int i = 0; i < 4; i++) {
        struct inotify_event *event = next_event();
        CHECK(event != NULL && (event->wd == root || event->wd == sub));
        CHECK(event->mask == (IN_UNMOUNT | IN_ISDIR) || event->mask == IN_IGNORED);
        seen |= (event->mask & IN_UNMOUNT ? 1u : 4u) << (event->wd == sub);
    }
    CHECK_EQ(seen, 15);
    NOTHING();
    CHECK_ERR(inotify_rm_watch(instance, root), EINVAL);
}

/* Programs that are run, files in /proc, in memory, and in /dev. */
static void everywhere(void)
{
    begin();
    int self = watch("/proc/self/status", EVERYTHING), dir = watch("/proc/sys/kernel", IN_CREATE);
    CHECK(self != dir);
    OK(mkdir("d", 0755));
    char self_path[PATH_MAX] = "";
    CHECK(readlink("/proc/self/exe", self_path, sizeof self_path - 1) > 0);
    OK(inotify_rm_watch(instance, self));
    EXPECT(self, IN_IGNORED, "");
    int program = watch(self_path, IN_OPEN | IN_CLOSE_NOWRITE | IN_ATTRIB);
    pid_t child = CHILD({
        int nothing = open("/dev/null", O_WRONLY);
        dup2(nothing, 1);
        execl(self_path, "inotify", "--list", NULL);
    });
    JOIN(child);
    EXPECT(program, IN_OPEN, "");
    EXPECT(program, IN_CLOSE_NOWRITE, "");
    NOTHING();
    OK(inotify_rm_watch(instance, program));
    EXPECT(program, IN_IGNORED, "");
    int shm = watch("/dev/shm", IN_CREATE | IN_DELETE);
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/inotify-%d", getpid());
    touch(path);
    OK(unlink(path));
    EXPECT(shm, IN_CREATE, path + 9);
    EXPECT(shm, IN_DELETE, path + 9);
    NOTHING();
    /* The descriptors of one instance are one. */
    int other = dup(instance);
    pid_t maker = CHILD(touch(path); OK(unlink(path)));
    JOIN(maker);
    OK(close(instance));
    instance = other;
    EXPECT(shm, IN_CREATE, path + 9);
    EXPECT(shm, IN_DELETE, path + 9);
    NOTHING();
}

static _Atomic bool over;

static void *renames_on(void *unused)
{
    (void)unused;
    while (!over) {
        touch("d/a");
        rename("d/a", "e/b");
        rename("e/b", "d/a");
        unlink("d/a");
    }
    return NULL;
}

static void *watches_on(void *unused)
{
    (void)unused;
    char bytes[4096];
    while (!over) {
        int fd = inotify_init1(IN_NONBLOCK);
        if (fd < 0)
            continue;
        for (int i = 0; i < 20; i++) {
            static const char *const paths[] = {"d", "e", "d/a", "e/b", "."};
            int wd = inotify_add_watch(fd, paths[i % 5], EVERYTHING | (i % 3 ? 0u : IN_ONESHOT));
            if (i % 4 == 0 && wd > 0)
                inotify_rm_watch(fd, wd);
            while (read(fd, bytes, sizeof bytes) > 0)
                ;
        }
        close(fd);
    }
    return NULL;
}

/* Watches come and go while what they watch is renamed and removed; afterwards all is as ever. */
static void storm(void)
{
    OK(mkdir("d", 0755));
    OK(mkdir("e", 0755));
    enum { THREADS = 3 };
    pthread_t threads[2 * THREADS];
    for (int i = 0; i < THREADS; i++) {
        PT(pthread_create(&threads[2 * i], NULL, renames_on, NULL));
        PT(pthread_create(&threads[2 * i + 1], NULL, watches_on, NULL));
    }
    sleep_ms(scaled(700));
    over = true;
    for (int i = 0; i < 2 * THREADS; i++)
        PT(pthread_join(threads[i], NULL));
    begin();
    watch("d", IN_CREATE);
    touch("d/last");
    EXPECT(1, IN_CREATE, "last");
    NOTHING();
}

/* Many watches of many files, and how a stranger's hoard harms nobody else. */
static void hoard(void)
{
    begin();
    long count = scaled(2000);
    char path[64];
    for (long i = 0; i < count; i++) {
        snprintf(path, sizeof path, "f%ld", i);
        touch(path);
        CHECK_EQ(watch(path, EVERYTHING), i + 1);
    }
    for (long i = 0; i < count; i += 2) {
        snprintf(path, sizeof path, "f%ld", i);
        OK(unlink(path));
    }
    for (long i = 0; i < count; i += 2) {
        EXPECT((int)i + 1, IN_ATTRIB, "");
        EXPECT((int)i + 1, IN_DELETE_SELF, "");
        EXPECT((int)i + 1, IN_IGNORED, "");
    }
    NOTHING();
    OK(close(instance));
    begin();
    CHECK_EQ(watch(".", IN_CREATE), 1);
    touch("next");
    EXPECT(1, IN_CREATE, "next");
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(contents),    TEST(moved_data), TEST(names),       TEST(renames),    TEST(open_and_deleted),
        TEST(masks),       TEST(queue),      TEST(waiting),     TEST(overflow),   TEST(counted),
        TEST(permissions), TEST(unmounting), TEST(everywhere),  TEST(storm),      TEST(hoard),
    };
    return RUN_TESTS("inotify", tests, argc, argv);
}
