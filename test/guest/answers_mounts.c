/* What mount(2) and its options answer: the size and nodes of a tmpfs, remounts, moves, and times of access. */
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

enum { PAGE = 4096 };
static bool told;

/* Mounts in a namespace of one's own; in the sandbox there is one, and all are its own. */
static bool begin(void)
{
    if (unshare(CLONE_NEWNS) == 0)
        OK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
    OK(mkdir("place", 0755));
    if (mount("first", "place", "tmpfs", 0, NULL) != 0) {
        CHECK_EQ(errno, EPERM);
        return false;
    }
    OK(umount("place"));
    return true;
}

/* The options of the mount at `place`, without those of the kernel's own choice. */
static const char *shown(void)
{
    static char options[256];
    char line[1024], type[64], where[512];
    FILE *file = fopen("/proc/self/mounts", "r");
    CHECK(file != NULL);
    options[0] = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%*s %511s %63s %255s", where, type, options) == 3 && strlen(where) > 6 &&
            !strcmp(where + strlen(where) - 6, "/place"))
            break;
        else
            options[0] = 0;
    fclose(file);
    char *wide = strstr(options, ",inode64");
    if (wide)
        memmove(wide, wide + 8, strlen(wide + 8) + 1);
    return options;
}

#define SHOWS(options, expected)                                                                                      \
    do {                                                                                                               \
        OK(mount("none", "place", "tmpfs", 0, options));                                                              \
        if (strcmp(shown(), expected) != 0)                                                                            \
            FAIL("%s: %s", options, shown());                                                                         \
        OK(umount("place"));                                                                                           \
    } while (0)

static void options_of_tmpfs(void)
{
    if (!begin())
        SKIP("may not mount");
    SHOWS("", "rw,relatime");
    SHOWS("size=1m,mode=0700,uid=5", "rw,relatime,size=1024k,mode=700,uid=5");
    SHOWS(",,size=0x1001,gid=010,", "rw,relatime,size=8k,gid=8");
    /* Half of the pages is the default, which is not shown. A percentage is rounded up, the default down: of an odd number of
     * pages they differ. */
    long pages = sysconf(_SC_PHYS_PAGES);
    char half[64] = "rw,relatime";
    if (pages % 2)
        snprintf(half, sizeof half, "rw,relatime,size=%ldk", (pages + 1) / 2 * (PAGE / 1024));
    SHOWS("size=50%", half);
    SHOWS("size=0", "rw,relatime,size=0k");
    SHOWS("size=1m,size=2m,nr_blocks=3,nr_inodes=1k", "rw,relatime,size=12k,nr_inodes=1024");
    SHOWS("mode=17777,huge=never,=5", "rw,relatime,mode=7777");
    SHOWS("ro", "ro,relatime");
    SHOWS("sync,mode=755", "rw,sync,relatime,mode=755");
    static const char *const wrong[] = {"size",      "size=",          "size=1mm",  "size=-1", "nr_blocks=10%", "mode=9",
                                        "mode=0x7",  "uid=-1",         "uid=a",     "bogus=1", "huge=deny",     "noatime",
                                        "relatime",  "uid=4294967295", "noswap=1",  "size= 1", "mpol=x",        "mpol=bind"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_ERR(mount("none", "place", "tmpfs", 0, wrong[i]), EINVAL);
    CHECK_ERR(mount("none", "place", "tmpfs", 0, (void *)8), EFAULT);
    OK(mount("none", "place", "tmpfs", 0, "mode=0750,uid=5,gid=6"));
    struct stat st;
    OK(stat("place", &st));
    CHECK(st.st_mode == (S_IFDIR | 0750) && st.st_uid == 5 && st.st_gid == 6);
    OK(umount("place"));
    OK(mount("none", "place", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOATIME | MS_SYNCHRONOUS, NULL));
    CHECK(strcmp(shown(), "rw,sync,nosuid,nodev,noatime") == 0);
    struct statvfs fs;
    OK(statvfs("place", &fs));
    CHECK((fs.f_flag & (ST_NOATIME | ST_NOSUID | ST_RELATIME | ST_SYNCHRONOUS)) == (ST_NOATIME | ST_NOSUID | ST_SYNCHRONOUS));
    OK(mount("none", "place", NULL, MS_REMOUNT | MS_BIND | MS_NOEXEC, NULL));
    CHECK(strcmp(shown(), "rw,sync,noexec,noatime") == 0);
    OK(mount("none", "place", NULL, MS_REMOUNT | MS_BIND | MS_STRICTATIME | MS_NODIRATIME, NULL));
    CHECK(strcmp(shown(), "rw,sync,nodiratime") == 0);
    OK(mount("none", "place", NULL, MS_REMOUNT | MS_RELATIME, NULL));
    CHECK(strcmp(shown(), "rw,relatime") == 0);
    OK(umount("place"));
}

static void room_of_tmpfs(void)
{
    if (!begin())
        SKIP("may not mount");
    OK(mount("none", "place", "tmpfs", 0, "size=16k,nr_inodes=5"));
    struct statvfs fs;
    OK(statvfs("place", &fs));
    CHECK(fs.f_blocks == 4 && fs.f_bfree == 4 && fs.f_files == 5 && fs.f_ffree == 4);
    int fd = FD(open("place/a", O_CREAT | O_RDWR, 0600));
    static char pages[5 * PAGE];
    CHECK_EQ(write(fd, pages, sizeof pages), 4 * PAGE);
    CHECK_ERR(write(fd, pages, 1), ENOSPC);
    OK(ftruncate(fd, 2 * PAGE));
    CHECK_ERR(fallocate(fd, 0, 0, 5 * PAGE), ENOSPC);
    OK(fallocate(fd, 0, 0, 3 * PAGE));
    OK(statvfs("place", &fs));
    CHECK_EQ(fs.f_bfree, 1);
    OK(ftruncate(fd, 5 * PAGE));
    char *map = mmap(NULL, 5 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    map[3 * PAGE] = 1;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGBUS, SIG_DFL);
        map[4 * PAGE] = 1;
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    OK(munmap(map, 5 * PAGE));
    /* One name, one node; three are left. */
    OK(link("place/a", "place/b"));
    OK(mkdir("place/d", 0700));
    OK(symlink("x", "place/l"));
    CHECK_ERR(mknod("place/f", S_IFIFO | 0600, 0), ENOSPC);
    CHECK_ERR(link("place/a", "place/c"), ENOSPC);
    CHECK_ERR(open("place/c", O_CREAT | O_RDWR, 0600), ENOSPC);
    OK(unlink("place/a"));
    OK(statvfs("place", &fs));
    CHECK_EQ(fs.f_ffree, 1);
    OK(mkdir("place/e", 0700));
    OK(unlink("place/b"));
    OK(close(fd));
    OK(statvfs("place", &fs));
    CHECK(fs.f_ffree == 1 && fs.f_bfree == 4);
    OK(umount("place"));
}

/* Takes a name away when told to. */
static void *unlink_when_told(void *path)
{
    while (!__atomic_load_n(&told, __ATOMIC_ACQUIRE))
        ;
    OK(unlink(path));
    return NULL;
}

static uint64_t free_nodes(void)
{
    struct statvfs facts;
    OK(statvfs("place", &facts));
    return facts.f_ffree;
}

/* The space of nodes is right however names come and go. */
static void names_that_race(void)
{
    if (!begin())
        SKIP("may not mount");
    OK(mount("none", "place", "tmpfs", 0, "nr_inodes=50"));
    OK(mkdir("place/one", 0755) | mkdir("place/two", 0755));
    uint64_t before = free_nodes();
    for (long round = scaled(2000); round > 0; round--) {
        OK(close(FD(open("place/one/file", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644))));
        OK(link("place/one/file", "place/two/file"));
        CHECK_EQ(free_nodes(), before - 2);
        pthread_t threads[2];
        told = false;
        CHECK_EQ(pthread_create(&threads[0], NULL, unlink_when_told, "place/one/file"), 0);
        CHECK_EQ(pthread_create(&threads[1], NULL, unlink_when_told, "place/two/file"), 0);
        __atomic_store_n(&told, true, __ATOMIC_RELEASE);
        for (int at = 0; at < 2; at++)
            CHECK_EQ(pthread_join(threads[at], NULL), 0);
        CHECK_EQ(free_nodes(), before);
    }
    OK(umount("place"));
}

static void remounts(void)
{
    if (!begin())
        SKIP("may not mount");
    OK(mount("none", "place", "tmpfs", 0, "size=16k,nr_inodes=9,mode=700"));
    int fd = FD(open("place/a", O_CREAT | O_RDWR, 0600));
    static char pages[3 * PAGE];
    CHECK_EQ(write(fd, pages, sizeof pages), sizeof pages);
    CHECK_ERR(mount("none", "place", NULL, MS_REMOUNT, "size=8k"), EINVAL);
    CHECK_ERR(mount("none", "place", NULL, MS_REMOUNT, "nr_inodes=1"), EINVAL);
    CHECK_ERR(mount("none", "place", NULL, MS_REMOUNT, "bogus"), EINVAL);
    CHECK_ERR(mount("none", "place", NULL, MS_REMOUNT | MS_RDONLY, "size=32k"), EBUSY);
    CHECK_ERR(mount("none", "place", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), EBUSY);
    CHECK(strcmp(shown(), "rw,relatime,size=16k,nr_inodes=9,mode=700") == 0);
    OK(mount("none", "place", NULL, MS_REMOUNT, "size=12k,mode=755"));
    CHECK(strcmp(shown(), "rw,relatime,size=12k,nr_inodes=9,mode=700") == 0);
    CHECK_ERR(write(fd, pages, 1), ENOSPC);
    OK(mount("none", "place", NULL, MS_REMOUNT, "size=1m"));
    CHECK_EQ(write(fd, pages, sizeof pages), sizeof pages);
    OK(close(fd));
    fd = FD(open("place/a", O_RDONLY));
    OK(mount("none", "place", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
    CHECK_ERR(open("place/a", O_RDWR), EROFS);
    OK(mount("none", "place", NULL, MS_REMOUNT, NULL));
    OK(close(FD(open("place/a", O_RDWR))));
    CHECK_ERR(umount("place"), EBUSY);
    CHECK_ERR(umount2("place", MNT_EXPIRE), EBUSY);
    OK(close(fd));
    CHECK_ERR(umount2("place", MNT_EXPIRE | MNT_DETACH), EINVAL);
    CHECK_ERR(umount2("place", MNT_EXPIRE), EAGAIN);
    OK(access("place/a", F_OK));
    CHECK_ERR(umount2("place", MNT_EXPIRE), EAGAIN);
    OK(umount2("place", MNT_EXPIRE));
    OK(mount("none", "place", "tmpfs", 0, "size=0"));
    CHECK_ERR(mount("none", "place", NULL, MS_REMOUNT, "size=1m"), EINVAL);
    OK(umount("place"));
}

static void moves(void)
{
    if (!begin())
        SKIP("may not mount");
    OK(mkdir("other", 0755));
    OK(mount("one", "place", "tmpfs", 0, "size=1m"));
    OK(mkdir("place/sub", 0755));
    OK(mount("two", "place/sub", "tmpfs", 0, NULL));
    OK(close(FD(open("place/sub/f", O_CREAT | O_RDWR, 0600))));
    OK(mount("place", "other", NULL, MS_MOVE, NULL));
    CHECK_ERR(access("place/sub", F_OK), ENOENT);
    OK(access("other/sub/f", F_OK));
    CHECK_ERR(umount("place"), EINVAL);
    CHECK_ERR(umount("other"), EBUSY);
    CHECK_ERR(mount("other", "other/sub", NULL, MS_MOVE, NULL), ELOOP);
    CHECK_ERR(mount("other/sub/f", "place", NULL, MS_MOVE, NULL), EINVAL);
    CHECK_ERR(mount("place", "other", NULL, MS_MOVE, NULL), EINVAL);
    CHECK_ERR(mount("nowhere", "other", NULL, MS_MOVE, NULL), ENOENT);
    OK(mount("other/sub", "place", NULL, MS_MOVE, NULL));
    OK(umount("other"));
    OK(access("place/f", F_OK));
    CHECK_ERR(mount(NULL, "place", NULL, MS_SHARED | MS_PRIVATE, NULL), EINVAL);
    CHECK_ERR(mount(NULL, "place", NULL, MS_PRIVATE | MS_RDONLY, NULL), EINVAL);
    OK(mount(NULL, "place", NULL, MS_PRIVATE | MS_REC | MS_SILENT, NULL));
    CHECK_ERR(mount(NULL, "other", NULL, MS_PRIVATE, NULL), EINVAL);
    /* On the mount of the root, or on another one whose root it is not. */
    CHECK(syscall(SYS_pivot_root, "other", "other") == -1 && (errno == EBUSY || errno == EINVAL));
    CHECK_ERR(syscall(SYS_pivot_root, "nowhere", "other"), ENOENT);
    CHECK_ERR(syscall(SYS_pivot_root, "place/f", "other"), ENOTDIR);
    OK(symlink("f", "place/l"));
    OK(mount("none", "place", NULL, MS_REMOUNT | MS_BIND | 256, NULL));
    if (strstr(shown(), "nosymfollow"))
        CHECK_ERR(open("place/l", O_RDONLY), ELOOP);
    OK(umount("place"));
}

/* Whether a file is there. */
static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

static void make_place(const char *path)
{
    OK(close(FD(open(path, O_CREAT | O_WRONLY, 0600))));
}

/* A tree of mounts: place, place/a, place/a/in, and two over each other at place/b. */
static void make_tree(void)
{
    OK(mount("tree", "place", "tmpfs", 0, NULL));
    OK(mkdir("place/a", 0755));
    OK(mkdir("place/b", 0755));
    OK(mount("a", "place/a", "tmpfs", 0, NULL));
    make_place("place/a/file");
    OK(mkdir("place/a/in", 0755));
    OK(mount("in", "place/a/in", "tmpfs", MS_NOEXEC, NULL));
    make_place("place/a/in/file");
    OK(mount("b", "place/b", "tmpfs", 0, NULL));
    make_place("place/b/lower");
    OK(mount("bb", "place/b", "tmpfs", 0, NULL));
    make_place("place/b/upper");
}

static void trees(void)
{
    if (!begin())
        SKIP("may not mount");
    make_tree();
    OK(mkdir("other", 0755));
    OK(mount("place", "other", NULL, MS_BIND, NULL));
    CHECK(is_there("other/a") && !is_there("other/a/file") && !is_there("other/b/lower"));
    OK(umount("other"));
    OK(mount("place", "other", NULL, MS_BIND | MS_REC, NULL));
    CHECK(is_there("other/a/file") && is_there("other/a/in/file") && is_there("other/b/upper") && !is_there("other/b/lower"));
    struct statvfs fs;
    OK(statvfs("other/a/in", &fs));
    CHECK(fs.f_flag & ST_NOEXEC);
    OK(umount("other/b"));
    CHECK(is_there("other/b/lower") && is_there("place/b/upper"));
    CHECK_ERR(umount("other"), EBUSY);
    int dir = FD(open("other/a", O_RDONLY | O_DIRECTORY));
    OK(umount2("other", MNT_DETACH));
    CHECK(!is_there("other/a") && is_there("place/a/in/file"));
    /* Each goes on its own: what was mounted in it is not seen in it any more. */
    OK(faccessat(dir, "file", F_OK, 0));
    CHECK_ERR(faccessat(dir, "in/file", F_OK, 0), ENOENT);
    CHECK_ERR(mount("place", "other/a", NULL, MS_BIND, NULL), ENOENT);
    OK(close(dir));
    /* Only what is mounted below the part that is bound. */
    OK(mount("place/a/in", "other", NULL, MS_BIND | MS_REC, NULL));
    CHECK(is_there("other/file") && !is_there("other/in"));
    OK(umount("other"));
    /* A tree in itself is what it was before. */
    OK(mkdir("place/self", 0755));
    OK(mount("place", "place/self", NULL, MS_BIND | MS_REC, NULL));
    CHECK(is_there("place/self/a/in/file") && is_there("place/self/self") && !is_there("place/self/self/a"));
    OK(umount2("place/self", MNT_DETACH));
    OK(umount2("place", MNT_DETACH));
    CHECK(!is_there("place/a"));
    CHECK_ERR(umount("place"), EINVAL);
    OK(rmdir("other"));
}

/* In a place that is mounted nowhere any more nothing can be mounted. */
static void nowhere(void)
{
    if (!begin())
        SKIP("may not mount");
    make_tree();
    int was = FD(open(".", O_RDONLY | O_DIRECTORY));
    OK(chdir("place"));
    OK(umount2("../place", MNT_DETACH));
    CHECK(is_there("a") && !is_there("a/file"));
    /* Linux has changed its mind about the error. */
    CHECK(mount("none", "a", "tmpfs", 0, NULL) == -1 && (errno == EINVAL || errno == ENOENT));
    CHECK(mount("b", "a", NULL, MS_BIND, NULL) == -1 && (errno == EINVAL || errno == ENOENT));
    CHECK_ERR(umount("."), EINVAL);
    pid_t child = CHILD({
        OK(chroot("."));
        CHECK(mount("none", "/a", "tmpfs", 0, NULL) == -1 && (errno == EINVAL || errno == ENOENT));
        CHECK(mount("/b", "/a", NULL, MS_BIND | MS_REC, NULL) == -1 && (errno == EINVAL || errno == ENOENT));
    });
    JOIN(child);
    OK(fchdir(was));
    OK(close(was));
    char path[64];
    OK(mkdir("gone", 0755));
    int gone = FD(open("gone", O_PATH | O_DIRECTORY));
    OK(rmdir("gone"));
    snprintf(path, sizeof path, "/proc/self/fd/%d", gone);
    CHECK_ERR(mount("none", path, "tmpfs", 0, NULL), ENOENT);
    OK(close(gone));
}

static void set_times(const char *path, time_t atime, time_t mtime)
{
    struct timespec times[2] = {{atime, 0}, {mtime, 0}};
    OK(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW));
}

static time_t atime_of(const char *path)
{
    struct stat st;
    OK(lstat(path, &st));
    return st.st_atime;
}

/* Whether reading `path` moves its time of access from long ago. */
static bool reading_moves(const char *path, int flags)
{
    set_times(path, 1000, 1000);
    CHECK_EQ(atime_of(path), 1000);
    int fd = FD(open(path, flags));
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 1);
    struct stat st;
    OK(fstat(fd, &st));
    OK(close(fd));
    CHECK_EQ(atime_of(path), st.st_atime);
    return st.st_atime > 1000;
}

static bool listing_moves(const char *path)
{
    set_times(path, 1000, 1000);
    CHECK_EQ(atime_of(path), 1000);
    DIR *dir = opendir(path);
    CHECK(dir != NULL && readdir(dir) != NULL);
    OK(closedir(dir));
    return atime_of(path) > 1000;
}

static void make_file(const char *path)
{
    int fd = FD(open(path, O_CREAT | O_RDWR, 0600));
    CHECK_EQ(write(fd, "hello", 5), 5);
    OK(close(fd));
}

static void times_of_access(void)
{
    if (!begin())
        SKIP("may not mount");
    OK(mount("none", "place", "tmpfs", 0, NULL));
    make_file("place/f");
    OK(mkdir("place/d", 0700));
    OK(symlink("f", "place/l"));
    CHECK(reading_moves("place/f", O_RDONLY));
    CHECK(reading_moves("place/f", O_RDWR));
    CHECK(!reading_moves("place/f", O_RDONLY | O_NOATIME));
    CHECK(listing_moves("place/d"));
    set_times("place/l", 1000, 1000);
    OK(access("place/l", F_OK));
    CHECK(atime_of("place/l") > 1000);
    set_times("place/l", 1000, 1000);
    char text[8];
    CHECK_EQ(readlink("place/l", text, sizeof text), 1);
    CHECK(atime_of("place/l") > 1000);
    set_times("place/f", 1000, 1000);
    int fd = FD(open("place/f", O_RDONLY));
    void *map = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK(atime_of("place/f") > 1000);
    OK(munmap(map, PAGE));
    /* It was read since it was changed, and not long ago. */
    char byte;
    CHECK_EQ(pread(fd, &byte, 1, 0), 1);
    struct stat before, after;
    OK(fstat(fd, &before));
    CHECK_EQ(pread(fd, &byte, 1, 0), 1);
    OK(fstat(fd, &after));
    CHECK(memcmp(&before.st_atim, &after.st_atim, sizeof before.st_atim) == 0);
    OK(close(fd));
    OK(mount("none", "place", NULL, MS_REMOUNT | MS_BIND | MS_NODIRATIME | MS_RELATIME, NULL));
    CHECK(!listing_moves("place/d") && reading_moves("place/f", O_RDONLY));
    OK(mount("none", "place", NULL, MS_REMOUNT | MS_BIND | MS_NOATIME, NULL));
    CHECK(!listing_moves("place/d") && !reading_moves("place/f", O_RDONLY));
    OK(mount("none", "place", NULL, MS_REMOUNT | MS_BIND | MS_STRICTATIME, NULL));
    time_t soon = time(NULL) + 3600;
    set_times("place/f", soon, 1000);
    fd = FD(open("place/f", O_RDONLY));
    CHECK_EQ(read(fd, &byte, 1), 1);
    CHECK(atime_of("place/f") < soon);
    OK(close(fd));
    set_times("place/f", 1000, 1000);
    OK(mount("none", "place", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
    fd = FD(open("place/f", O_RDONLY));
    CHECK_EQ(read(fd, &byte, 1), 1);
    CHECK_EQ(atime_of("place/f"), 1000);
    OK(close(fd));
    OK(umount("place"));
}

/* Where the disk keeps these times at all, every reader moves them. */
static void times_on_disk(void)
{
    make_file("f");
    make_file("g");
    if (!reading_moves("f", O_RDWR))
        SKIP("no times of access are kept");
    CHECK(reading_moves("f", O_RDONLY));
    CHECK(reading_moves("g", O_RDONLY));
    CHECK(!reading_moves("g", O_RDONLY | O_NOATIME));
    OK(mkdir("d", 0700));
    make_file("d/f");
    CHECK(listing_moves("d"));
}

/* The mark that overlays know a removed name by is no device that gives anybody anything. */
static void whiteouts_of_users(void)
{
    if (!begin())
        SKIP("may not mount");
    OK(mount("none", "place", "tmpfs", 0, NULL));
    pid_t child = CHILD({
        if (getuid() == 0)
            OK(setresuid(1000, 1000, 1000));
        OK(mknod("place/w", S_IFCHR, 0));
        CHECK_ERR(mknod("place/n", S_IFCHR, 0x103), EPERM);
        CHECK_ERR(mknod("place/b", S_IFBLK, 0), EPERM);
    });
    JOIN(child);
    struct stat st;
    OK(lstat("place/w", &st));
    CHECK(S_ISCHR(st.st_mode) && st.st_rdev == 0 && st.st_uid == 1000);
    OK(umount("place"));
}

static void attributes_of_users(void)
{
    if (!begin())
        SKIP("may not mount");
    OK(mount("none", "place", "tmpfs", 0, "nr_inodes=4"));
    make_file("place/f");
    CHECK_ERR(setxattr("place/f", "user.", "x", 1, 0), EINVAL);
    CHECK_ERR(getxattr("place/f", "trusted.", NULL, 0), EINVAL);
    if (setxattr("place/f", "user.a", "x", 1, 0) != 0) {
        CHECK(errno == EOPNOTSUPP && !kernel_is(6, 6));
        OK(umount("place"));
        SKIP("not known here");
    }
    static char value[2000];
    CHECK_ERR(setxattr("place/f", "user.b", value, sizeof value, 0), ENOSPC);
    OK(setxattr("place/f", "user.b", value, 900, 0));
    struct statvfs fs;
    OK(statvfs("place", &fs));
    CHECK_EQ(fs.f_ffree, 1);
    OK(mkdir("place/d", 0700));
    CHECK_ERR(mkdir("place/e", 0700), ENOSPC);
    OK(removexattr("place/f", "user.b"));
    OK(rmdir("place/d"));
    OK(setxattr("place/f", "user.a", value, 1900, 0));
    OK(unlink("place/f"));
    OK(statvfs("place", &fs));
    CHECK_EQ(fs.f_ffree, 3);
    OK(umount("place"));
}

static const struct test tests[] = {
    TEST(options_of_tmpfs),
    TEST(room_of_tmpfs),
    TEST(names_that_race),
    TEST(remounts),
    TEST(moves),
    TEST(trees),
    TEST(nowhere),
    TEST(times_of_access),
    TEST(times_on_disk),
    TEST(whiteouts_of_users),
    TEST(attributes_of_users),
};

int main(int argc, char **argv)
{
    return RUN_TESTS("answers_mounts", tests, argc, argv);
}
