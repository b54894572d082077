/* Files and directories.  usage: files [DIR] [TEST...]; DIR must hold a slash (default $TMPDIR or /tmp). */
#include "check.h"
#include <pthread.h>
#include <dirent.h>
#include <limits.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_faccessat2
#define SYS_faccessat2 439
#endif

static int create(const char *path)
{
    return FD(open(path, O_RDWR | O_CREAT | O_EXCL, 0644));
}

static void touch(const char *path)
{
    OK(close(create(path)));
}

static off_t size_of(const char *path)
{
    struct stat info;
    OK(lstat(path, &info));
    return info.st_size;
}

static void expect_text(const char *path, const char *want)
{
    char text[4096] = {0};
    int fd = FD(open(path, O_RDONLY));
    CHECK_EQ(read(fd, text, sizeof text - 1), strlen(want));
    if (strcmp(text, want) != 0)
        FAIL("%s holds \"%s\", want \"%s\"", path, text, want);
    OK(close(fd));
}

static void opening(void)
{
    char byte;
    write_file("file", "12345", 0644);
    CHECK_ERR(open("file", O_CREAT | O_EXCL | O_RDWR, 0644), EEXIST);
    CHECK_ERR(open("absent", O_RDONLY), ENOENT);
    CHECK_ERR(open("file/below", O_RDONLY), ENOTDIR);
    CHECK_ERR(open("file", O_RDONLY | O_DIRECTORY), ENOTDIR);
    CHECK_ERR(open(".", O_WRONLY), EISDIR);
    CHECK_ERR(open("", O_RDONLY), ENOENT);
    OK(symlink("file", "link"));
    OK(symlink("absent", "dangling"));
    CHECK_ERR(open("link", O_RDONLY | O_NOFOLLOW), ELOOP);
    CHECK_ERR(open("dangling", O_RDONLY), ENOENT);
    CHECK_ERR(open("dangling", O_CREAT | O_EXCL | O_WRONLY, 0644), EEXIST);
    OK(close(FD(open("dangling", O_CREAT | O_WRONLY, 0644)))); /* makes what the link names */
    OK(access("absent", F_OK));
    int fd = FD(open("link", O_RDWR | O_TRUNC));
    CHECK_EQ(size_of("file"), 0);
    int append = FD(open("file", O_WRONLY | O_APPEND));
    CHECK_EQ(write(append, "ab", 2), 2);
    CHECK_EQ(write(fd, "X", 1), 1);
    CHECK_EQ(lseek(append, 0, SEEK_SET), 0);
    CHECK_EQ(write(append, "cd", 2), 2);
    expect_text("file", "Xbcd");
    CHECK_EQ(lseek(append, 0, SEEK_CUR), 4);
    CHECK_ERR(read(append, &byte, 1), EBADF);
    int read_only = FD(open("file", O_RDONLY | O_CLOEXEC));
    CHECK_ERR(write(read_only, "x", 1), EBADF);
    CHECK_EQ(fcntl(read_only, F_GETFD), FD_CLOEXEC);
    CHECK_EQ(fcntl(append, F_GETFL) & (O_ACCMODE | O_APPEND), O_WRONLY | O_APPEND);
    CHECK_ERR(read(9999, &byte, 1), EBADF);
    CHECK_ERR(close(9999), EBADF);

    int path = FD(open("link", O_PATH | O_NOFOLLOW));
    struct stat info;
    OK(fstat(path, &info));
    CHECK(S_ISLNK(info.st_mode));
    CHECK_ERR(read(path, &byte, 1), EBADF);
    CHECK_ERR(fchmod(path, 0600), EBADF);
    int directory = FD(open(".", O_PATH | O_DIRECTORY));
    OK(close(FD(openat(directory, "file", O_RDONLY))));
    CHECK_ERR(openat(path, "file", O_RDONLY), ENOTDIR);
    CHECK_ERR(openat(9999, "file", O_RDONLY), EBADF);
    CHECK(openat(9999, "/dev/null", O_RDONLY) >= 0); /* an absolute path needs no directory */

    int nameless = open(".", O_TMPFILE | O_RDWR, 0644);
    if (nameless < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
        NOTE("no O_TMPFILE here");
    } else {
        CHECK(nameless >= 0);
        CHECK_EQ(write(nameless, "n", 1), 1);
        OK(fstat(nameless, &info));
        CHECK_EQ(info.st_nlink, 0);
        char proc[64];
        snprintf(proc, sizeof proc, "/proc/self/fd/%d", nameless);
        OK(linkat(AT_FDCWD, proc, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
        expect_text("named", "n");
    }
    /* The lowest free number is used. */
    int low = FD(dup(0));
    OK(close(low));
    CHECK_EQ(open("file", O_RDONLY), low);
}

static void transfer(void)
{
    int fd = create("file");
    char buffer[64] = {0}, other[64] = {0};
    CHECK_EQ(write(fd, "0123456789", 10), 10);
    CHECK_EQ(pread(fd, buffer, 4, 3), 4);
    CHECK(memcmp(buffer, "3456", 4) == 0 && lseek(fd, 0, SEEK_CUR) == 10);
    CHECK_EQ(read(fd, buffer, 10), 0);
    CHECK_EQ(pread(fd, buffer, 10, 100), 0);
    CHECK_EQ(pwrite(fd, "AB", 2, 2), 2);
    CHECK_ERR(pread(fd, buffer, 1, -1), EINVAL);
    CHECK_EQ(write(fd, "", 0), 0);
    struct iovec parts[3] = {{buffer, 3}, {NULL, 0}, {other, 20}};
    CHECK_EQ(lseek(fd, 1, SEEK_SET), 1);
    CHECK_EQ(readv(fd, parts, 3), 9);
    CHECK(memcmp(buffer, "1AB", 3) == 0 && memcmp(other, "456789", 6) == 0);
    struct iovec out[2] = {{"xy", 2}, {"z", 1}};
    CHECK_EQ(writev(fd, out, 2), 3);
    CHECK_EQ(pwritev(fd, out, 2, 0), 3);
    CHECK_EQ(preadv(fd, parts, 3, 10), 3);
    CHECK(memcmp(buffer, "xyz", 3) == 0);
    CHECK_EQ(preadv2(fd, parts, 3, 0, 0), 13);
    CHECK_EQ(lseek(fd, 4, SEEK_SET), 4);
    CHECK_EQ(preadv2(fd, parts, 1, -1, 0), 3); /* -1: from the current place */
    CHECK(memcmp(buffer, "456", 3) == 0);
    CHECK_ERR(preadv2(fd, parts, 1, 0, 0x40000000), EOPNOTSUPP);
    CHECK_ERR(syscall(SYS_readv, fd, parts, 1025), EINVAL);
    CHECK_EQ(lseek(fd, -1, SEEK_END), 12);
    CHECK_EQ(lseek(fd, 1000000, SEEK_SET), 1000000);
    CHECK_EQ(write(fd, "!", 1), 1);
    CHECK_EQ(pread(fd, buffer, 1, 500000), 1);
    CHECK_EQ(buffer[0], 0);
    CHECK_ERR(lseek(fd, -1, SEEK_SET), EINVAL);
    CHECK_ERR(lseek(fd, 0, 99), EINVAL);
    int pipes[2];
    OK(pipe(pipes));
    CHECK_ERR(lseek(pipes[0], 0, SEEK_CUR), ESPIPE);
    CHECK_ERR(pread(pipes[0], buffer, 1, 0), ESPIPE);
    OK(fsync(fd));
    OK(fdatasync(fd));
    CHECK_ERR(fsync(pipes[0]), EINVAL);
    int null = FD(open("/dev/null", O_RDWR)), zero = FD(open("/dev/zero", O_RDONLY)), full = FD(open("/dev/full", O_WRONLY));
    CHECK_EQ(write(null, buffer, 64), 64);
    CHECK_EQ(read(null, buffer, 64), 0);
    memset(buffer, 1, 64);
    CHECK_EQ(read(zero, buffer, 64), 64);
    CHECK(buffer[0] == 0 && buffer[63] == 0);
    CHECK_ERR(write(full, "x", 1), ENOSPC);
}

static void sizes(void)
{
    int fd = create("file");
    char byte;
    OK(ftruncate(fd, 100000));
    CHECK_EQ(size_of("file"), 100000);
    CHECK_EQ(pwrite(fd, "x", 1, 50000), 1);
    OK(truncate("file", 50000));
    OK(truncate("file", 60000));
    CHECK_EQ(pread(fd, &byte, 1, 50000), 1);
    CHECK_EQ(byte, 0);
    CHECK_ERR(ftruncate(fd, -1), EINVAL);
    CHECK_ERR(truncate(".", 0), EISDIR);
    CHECK_ERR(ftruncate(FD(open("file", O_RDONLY)), 0), EINVAL);
    struct stat info;
    OK(fallocate(fd, 0, 0, 1 << 20));
    OK(fstat(fd, &info));
    CHECK(info.st_size == 1 << 20 && info.st_blocks * 512 >= 1 << 20);
    OK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 1 << 20, 65536));
    CHECK_EQ(size_of("file"), 1 << 20);
    char page[4096];
    memset(page, 'p', sizeof page);
    for (int i = 0; i < 16; i++)
        CHECK_EQ(pwrite(fd, page, 4096, i * 4096), 4096);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * 4096, 4 * 4096) == 0) {
        for (int i = 0; i < 16; i++) {
            CHECK_EQ(pread(fd, &byte, 1, i * 4096 + 7), 1);
            CHECK_EQ(byte, i >= 4 && i < 8 ? 0 : 'p');
        }
    } else {
        CHECK_EQ(errno, EOPNOTSUPP);
        NOTE("no hole punching here");
    }
    CHECK_ERR(fallocate(fd, 0, 0, 0), EINVAL);
    CHECK_ERR(fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 4096), EOPNOTSUPP);

    int sparse = create("sparse");
    CHECK_EQ(pwrite(sparse, page, 4096, 1 << 20), 4096);
    OK(ftruncate(sparse, 2 << 20));
    off_t data = lseek(sparse, 0, SEEK_DATA), hole = lseek(sparse, 1 << 20, SEEK_HOLE);
    /* A file system without holes may call everything data. */
    CHECK(data >= 0 && data <= 1 << 20);
    CHECK(hole > 1 << 20 && hole <= 2 << 20);
    CHECK_ERR(lseek(sparse, 3 << 20, SEEK_DATA), ENXIO);
}

static void names(void)
{
    write_file("a", "A", 0644);
    write_file("b", "B", 0644);
    OK(rename("a", "b"));
    expect_text("b", "A");
    CHECK_ERR(access("a", F_OK), ENOENT);
    CHECK_ERR(rename("a", "c"), ENOENT);
    write_file("c", "C", 0644);
    CHECK_ERR(renameat2(AT_FDCWD, "b", AT_FDCWD, "c", RENAME_NOREPLACE), EEXIST);
    OK(renameat2(AT_FDCWD, "b", AT_FDCWD, "d", RENAME_NOREPLACE));
    if (renameat2(AT_FDCWD, "c", AT_FDCWD, "d", RENAME_EXCHANGE) == 0) {
        expect_text("c", "A");
        expect_text("d", "C");
    } else {
        CHECK_EQ(errno, EINVAL);
        NOTE("no RENAME_EXCHANGE here");
    }
    CHECK_ERR(renameat2(AT_FDCWD, "c", AT_FDCWD, "d", 0x100), EINVAL);
    OK(mkdir("directory", 0755));
    OK(mkdir("directory/sub", 0755));
    CHECK_ERR(mkdir("directory", 0755), EEXIST);
    CHECK_ERR(mkdir("absent/x", 0755), ENOENT);
    CHECK_ERR(rmdir("directory"), ENOTEMPTY);
    CHECK_ERR(rmdir("c"), ENOTDIR);
    CHECK_ERR(rmdir("directory/sub/."), EINVAL);
    CHECK_ERR(unlink("directory"), EISDIR);
    CHECK_ERR(unlink("absent"), ENOENT);
    CHECK_ERR(rename("directory", "directory/sub/x"), EINVAL);
    CHECK_ERR(rename("c", "directory"), EISDIR);
    CHECK_ERR(rename("directory", "c"), ENOTDIR);
    OK(mkdir("empty", 0755));
    CHECK_ERR(rename("empty", "directory"), ENOTEMPTY);
    OK(rename("directory", "empty")); /* onto an empty directory */
    OK(access("empty/sub", F_OK));
    OK(unlinkat(AT_FDCWD, "empty/sub", AT_REMOVEDIR));
    OK(rmdir("empty"));

    OK(link("c", "hard"));
    struct stat first, second;
    OK(stat("c", &first));
    OK(stat("hard", &second));
    CHECK(first.st_ino == second.st_ino && first.st_nlink == 2);
    CHECK_ERR(link("c", "hard"), EEXIST);
    CHECK_ERR(link(".", "loop"), EPERM);
    OK(rename("c", "hard")); /* two names of one file: nothing happens */
    OK(access("c", F_OK));
    OK(unlink("hard"));
    int fd = FD(open("c", O_RDWR));
    OK(unlink("c"));
    OK(fstat(fd, &first));
    CHECK_EQ(first.st_nlink, 0);
    CHECK_EQ(pwrite(fd, "still", 5, 0), 5);
    char text[256] = {0}, path[64];
    CHECK_EQ(pread(fd, text, 5, 0), 5);
    CHECK(strcmp(text, "still") == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, text, sizeof text - 1);
    CHECK(length > 10 && strcmp(text + length - 10, " (deleted)") == 0);
}

static void paths(void)
{
    char text[PATH_MAX + 10];
    OK(mkdir("one", 0755));
    OK(mkdir("one/two", 0755));
    write_file("one/two/file", "F", 0644);
    expect_text("one/two/../two/./file", "F");
    expect_text(".//one///two//file", "F");
    expect_text("one/two/../../one/two/file", "F");
    OK(symlink("one/two", "short"));
    expect_text("short/file", "F");
    expect_text("short/../two/file", "F"); /* `..` of where the link leads */
    OK(symlink("../two/file", "one/two/up"));
    expect_text("short/up", "F");
    CHECK_EQ(readlink("short", text, sizeof text), 7);
    CHECK(memcmp(text, "one/two", 7) == 0);
    CHECK_EQ(readlink("short", text, 3), 3);
    CHECK_ERR(readlink("one", text, 10), EINVAL);
    CHECK_ERR(readlink("short", text, 0), EINVAL);
    CHECK_ERR(symlink("x", "short"), EEXIST);
    CHECK_ERR(symlink("", "nothing"), ENOENT);
    struct stat info;
    OK(lstat("short", &info));
    CHECK(S_ISLNK(info.st_mode) && info.st_size == 7);
    OK(lstat("short/", &info)); /* a slash at the end follows */
    CHECK(S_ISDIR(info.st_mode));
    CHECK_ERR(stat("one/two/file/", &info), ENOTDIR);
    CHECK_ERR(open("new/", O_CREAT | O_WRONLY, 0644), EISDIR);
    OK(mkdir("slash/", 0755));
    OK(symlink("loop2", "loop1"));
    OK(symlink("loop1", "loop2"));
    CHECK_ERR(stat("loop1", &info), ELOOP);
    OK(lstat("loop1", &info));
    char from[16], to[16]; /* a chain of 40 links is followed, one more is not */
    touch("chain0");
    for (int i = 1; i <= 41; i++) {
        snprintf(from, sizeof from, "chain%d", i - 1);
        snprintf(to, sizeof to, "chain%d", i);
        OK(symlink(from, to));
    }
    OK(stat("chain40", &info));
    CHECK_ERR(stat("chain41", &info), ELOOP);
    memset(text, 'n', sizeof text);
    text[256] = 0;
    CHECK_ERR(open(text, O_CREAT | O_RDWR, 0644), ENAMETOOLONG);
    text[255] = 0;
    touch(text);
    OK(unlink(text));
    for (int i = 0; i < PATH_MAX + 5; i++)
        text[i] = i % 2 ? '/' : '.';
    text[PATH_MAX] = 0;
    CHECK_ERR(stat(text, &info), ENAMETOOLONG);
    text[PATH_MAX - 1] = 0;
    OK(stat(text, &info));
    OK(stat("/..", &info)); /* nothing above the root */
    struct stat root;
    OK(stat("/", &root));
    CHECK(root.st_ino == info.st_ino && root.st_dev == info.st_dev);
    write_file("\xc3\xa4\xff\n name", "odd", 0644); /* names are bytes */
    expect_text("\xc3\xa4\xff\n name", "odd");
}

static void directories(void)
{
    int count = (int)scaled(2000) < 50 ? 50 : (int)scaled(2000);
    char name[32];
    OK(mkdir("many", 0755));
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "many/entry-%d", i);
        if (i % 10 == 0)
            OK(symlink("x", name));
        else
            touch(name);
    }
    DIR *directory = opendir("many");
    CHECK(directory != NULL);
    char *seen = calloc(count, 1);
    long places[20];
    char at_place[20][32];
    int found = 0, dots = 0, marked = 0;
    for (;;) {
        long place = telldir(directory);
        struct dirent *entry = readdir(directory);
        if (!entry)
            break;
        if (entry->d_name[0] == '.') {
            CHECK(entry->d_type == DT_DIR);
            dots++;
            continue;
        }
        int number = atoi(entry->d_name + 6);
        CHECK(number >= 0 && number < count && !seen[number]);
        CHECK(entry->d_type == (number % 10 == 0 ? DT_LNK : DT_REG) || entry->d_type == DT_UNKNOWN);
        seen[number] = 1;
        if (found++ % (count / 20) == 0 && marked < 20) {
            places[marked] = place;
            snprintf(at_place[marked++], 32, "%.31s", entry->d_name);
        }
    }
    CHECK(found == count && dots == 2);
    for (int i = marked - 1; i >= 0; i--) { /* back to remembered places, in any order */
        int pick = i * 7 % marked;
        seekdir(directory, places[pick]);
        struct dirent *entry = readdir(directory);
        CHECK(entry && strcmp(entry->d_name, at_place[pick]) == 0);
    }
    rewinddir(directory);
    for (found = 0; readdir(directory);)
        found++;
    CHECK_EQ(found, count + 2);
    /* Deleting while reading: everything goes. */
    rewinddir(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_name[0] != '.')
            OK(unlinkat(dirfd(directory), entry->d_name, 0));
    rewinddir(directory);
    for (found = 0; readdir(directory);)
        found++;
    CHECK_EQ(found, 2);
    char small[16];
    CHECK_EQ(lseek(dirfd(directory), 0, SEEK_SET), 0);
    CHECK_ERR(syscall(SYS_getdents64, dirfd(directory), small, sizeof small), EINVAL);
    closedir(directory);
    OK(rmdir("many"));
    CHECK_ERR(syscall(SYS_getdents64, create("plain"), at_place, sizeof at_place), ENOTDIR);
}

static void attributes(void)
{
    struct stat info;
    struct statx wide;
    int fd = create("file");
    CHECK_EQ(write(fd, "12345", 5), 5);
    OK(fstat(fd, &info));
    CHECK(S_ISREG(info.st_mode) && info.st_size == 5 && info.st_nlink == 1);
    CHECK(info.st_uid == geteuid() && info.st_ino != 0 && info.st_blksize > 0);
    CHECK(llabs(info.st_mtime - time(NULL)) < 100);
    OK(statx(AT_FDCWD, "file", 0, STATX_BASIC_STATS, &wide));
    CHECK((wide.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
    CHECK(wide.stx_size == 5 && wide.stx_ino == info.st_ino && wide.stx_mode == info.st_mode);
    CHECK(makedev(wide.stx_dev_major, wide.stx_dev_minor) == info.st_dev);
    CHECK(wide.stx_mtime.tv_sec == info.st_mtim.tv_sec && wide.stx_mtime.tv_nsec == info.st_mtim.tv_nsec);
    OK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &wide));
    CHECK_EQ(wide.stx_ino, info.st_ino);
    CHECK_ERR(statx(AT_FDCWD, "file", 0x10000, STATX_BASIC_STATS, &wide), EINVAL);
    CHECK_ERR(fstatat(fd, "", &info, 0), ENOENT);
    OK(fstatat(fd, "", &info, AT_EMPTY_PATH));
    OK(stat("/dev/null", &info));
    CHECK(S_ISCHR(info.st_mode) && info.st_rdev == makedev(1, 3));

    OK(chmod("file", 04751));
    OK(stat("file", &info));
    CHECK_EQ(info.st_mode & 07777, 04751);
    OK(fchmod(fd, 0600));
    OK(fchmodat(AT_FDCWD, "file", 0640, 0));
    OK(fstat(fd, &info));
    CHECK_EQ(info.st_mode & 07777, 0640);
    mode_t old = umask(077);
    touch("masked");
    OK(mkdir("masked-directory", 0777));
    umask(old);
    OK(stat("masked", &info));
    CHECK_EQ(info.st_mode & 0777, 0600);
    OK(stat("masked-directory", &info));
    CHECK_EQ(info.st_mode & 0777, 0700);

    struct timespec times[2] = {{1000000000, 123456789}, {1100000000, 987654321}};
    OK(utimensat(AT_FDCWD, "file", times, 0));
    OK(stat("file", &info));
    CHECK(info.st_atim.tv_sec == 1000000000 && info.st_mtim.tv_sec == 1100000000);
    CHECK(info.st_atim.tv_nsec == 123456789 && info.st_mtim.tv_nsec == 987654321);
    CHECK(llabs(info.st_ctime - time(NULL)) < 100);
    struct timespec partial[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    OK(futimens(fd, partial));
    OK(fstat(fd, &info));
    CHECK(info.st_atim.tv_sec == 1000000000 && llabs(info.st_mtime - time(NULL)) < 100);
    OK(symlink("file", "link"));
    OK(utimensat(AT_FDCWD, "link", times, AT_SYMLINK_NOFOLLOW));
    OK(lstat("link", &info));
    CHECK_EQ(info.st_mtim.tv_sec, 1100000000);
    CHECK_ERR(utimensat(AT_FDCWD, "file", (struct timespec[2]){{0, 2000000000}, {0, 0}}, 0), EINVAL);
    /* Writing moves the modification time. */
    OK(futimens(fd, times));
    CHECK_EQ(write(fd, "x", 1), 1);
    OK(fstat(fd, &info));
    CHECK(info.st_mtim.tv_sec != 1100000000);

    if (geteuid() == 0) {
        OK(chown("file", 1234, 2345));
        OK(lchown("link", 11, 22));
        OK(stat("file", &info));
        CHECK(info.st_uid == 1234 && info.st_gid == 2345);
        OK(lstat("link", &info));
        CHECK(info.st_uid == 11 && info.st_gid == 22);
        OK(fchown(fd, -1, 99));
        OK(fstat(fd, &info));
        CHECK(info.st_uid == 1234 && info.st_gid == 99);
        OK(chmod("file", 06755));
        OK(chown("file", 1, 1)); /* takes the set-id bits away */
        OK(stat("file", &info));
        CHECK_EQ(info.st_mode & 07777, 0755);
    }
    struct statfs system;
    OK(statfs(".", &system));
    CHECK(system.f_bsize > 0 && system.f_namelen >= 255 && system.f_blocks >= system.f_bfree);
    OK(fstatfs(fd, &system));
    CHECK_ERR(statfs("absent", &system), ENOENT);
}

static void permissions(void)
{
    OK(access("/", R_OK | X_OK));
    CHECK_ERR(access("absent", F_OK), ENOENT);
    CHECK_ERR(access(".", 0x40), EINVAL);
    if (geteuid() != 0)
        SKIP("the permission checks need root to start with");
    OK(chmod(".", 0755));
    write_file("mine", "secret", 0600);
    write_file("public", "p", 0644);
    write_file("script", "x", 0644);
    OK(mkdir("closed", 0700));
    write_file("closed/file", "x", 0666);
    OK(mkdir("unlisted", 0711));
    write_file("unlisted/file", "u", 0644);
    OK(mkdir("sticky", 01777));
    OK(chmod("sticky", 01777));
    write_file("sticky/mine", "x", 0666);
    OK(access("mine", R_OK | W_OK)); /* root may all but execute what nobody may */
    CHECK_ERR(access("mine", X_OK), EACCES);
    JOIN(CHILD({
        struct stat info;
        OK(setgid(65534));
        OK(setuid(65534));
        CHECK_ERR(open("mine", O_RDONLY), EACCES);
        CHECK_ERR(open("public", O_WRONLY), EACCES);
        OK(close(FD(open("public", O_RDONLY))));
        CHECK_ERR(open("new", O_CREAT | O_WRONLY, 0644), EACCES);
        CHECK_ERR(mkdir("new", 0755), EACCES);
        CHECK_ERR(unlink("public"), EACCES);
        CHECK_ERR(rename("public", "new"), EACCES);
        CHECK_ERR(open("closed/file", O_RDONLY), EACCES);
        CHECK_ERR(stat("closed/file", &info), EACCES);
        CHECK_ERR(chdir("closed"), EACCES);
        OK(stat("unlisted/file", &info));
        CHECK(opendir("unlisted") == NULL && errno == EACCES);
        CHECK_ERR(unlink("sticky/mine"), EPERM);
        CHECK_ERR(chmod("public", 0777), EPERM);
        CHECK_ERR(chown("public", 65534, 65534), EPERM);
        CHECK_ERR(utimensat(AT_FDCWD, "public", NULL, 0), EACCES);
        CHECK_ERR(execl("script", "script", NULL), EACCES);
        CHECK_ERR(truncate("public", 0), EACCES);
        CHECK_ERR(access("mine", R_OK), EACCES);
        CHECK_ERR(chroot("."), EPERM);
        CHECK_ERR(setuid(0), EPERM);
        touch("sticky/ours");
        OK(unlink("sticky/ours"));
    }));
    /* access() asks for the real user, faccessat2 with AT_EACCESS for the effective one. */
    JOIN(CHILD({
        OK(setresuid(0, 65534, 0));
        OK(access("mine", R_OK));
        if (syscall(SYS_faccessat2, AT_FDCWD, "public", R_OK, AT_EACCESS) == 0)
            CHECK_ERR(syscall(SYS_faccessat2, AT_FDCWD, "mine", R_OK, AT_EACCESS), EACCES);
        else
            CHECK_EQ(errno, ENOSYS);
    }));
    OK(mkdir("jail", 0755));
    write_file("jail/inside", "I", 0644);
    JOIN(CHILD({
        OK(chroot("jail"));
        OK(chdir("/"));
        expect_text("/inside", "I");
        expect_text("/../../inside", "I");
        CHECK_ERR(access("/etc", F_OK), ENOENT);
        char where[64];
        CHECK(getcwd(where, sizeof where) && strcmp(where, "/") == 0);
    }));
}

static void copies(void)
{
    int in = create("in"), out = create("out");
    char data[10000], back[10000];
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)next_random(&seed);
    CHECK_EQ(write(in, data, sizeof data), sizeof data);
    off_t from = 1000;
    CHECK_EQ(sendfile(out, in, &from, 5000), 5000);
    CHECK(from == 6000 && lseek(in, 0, SEEK_CUR) == 10000);
    CHECK_EQ(pread(out, back, sizeof back, 0), 5000);
    CHECK(memcmp(back, data + 1000, 5000) == 0);
    CHECK_EQ(lseek(in, 9000, SEEK_SET), 9000);
    CHECK_EQ(sendfile(out, in, NULL, 5000), 1000);
    CHECK_EQ(sendfile(out, in, NULL, 5000), 0);
    int pipes[2];
    OK(pipe(pipes));
    from = 0;
    CHECK_EQ(sendfile(pipes[1], in, &from, 4096), 4096);
    CHECK_EQ(read(pipes[0], back, sizeof back), 4096);
    CHECK_EQ(memcmp(back, data, 4096), 0);
    off_t at = 0, to = 20000;
    ssize_t copied = copy_file_range(in, &at, out, &to, 10000, 0);
    if (copied < 0 && (errno == ENOSYS || errno == EOPNOTSUPP))
        SKIP("no copy_file_range");
    CHECK_EQ(copied, 10000);
    CHECK(at == 10000 && to == 30000);
    CHECK_EQ(pread(out, back, sizeof back, 20000), 10000);
    CHECK_EQ(memcmp(back, data, 10000), 0);
    CHECK_EQ(copy_file_range(in, &at, out, NULL, 10, 0), 0);
    CHECK_ERR(copy_file_range(in, &(off_t){0}, out, NULL, 10, 99), EINVAL);
}

static int lock(int fd, int command, short type, off_t start, off_t length)
{
    struct flock wanted = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(fd, command, &wanted);
}

/* A descriptor that another thread closes while one waits for a lock by it. */
struct race {
    int fd, error;
    _Atomic pid_t thread;
};

static void *lock_by(void *argument)
{
    struct race *race = argument;
    race->thread = gettid();
    race->error = lock(race->fd, F_SETLKW, F_WRLCK, 0, 10) == 0 ? 0 : errno;
    return NULL;
}

static void lock_and_close(void)
{
    struct race race = {.fd = create("file")};
    int other = FD(open("file", O_RDWR));
    pthread_t thread;
    OK(lock(other, F_OFD_SETLK, F_WRLCK, 0, 10));
    CHECK_EQ(pthread_create(&thread, NULL, lock_by, &race), 0);
    while (race.thread == 0)
        usleep(1000);
    wait_until_asleep(race.thread);
    OK(close(race.fd));
    OK(lock(other, F_OFD_SETLK, F_UNLCK, 0, 10));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(race.error, EBADF);
    OK(lock(other, F_OFD_SETLK, F_WRLCK, 0, 10));
}

/* A child that locks, tells, waits to be told, and ends. */
static void locks(void)
{
    int fd = create("file"), again = FD(open("file", O_RDWR)), ready[2];
    OK(pipe(ready));
    char byte;
    OK(flock(fd, LOCK_EX));
    CHECK_ERR(flock(again, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    CHECK_ERR(flock(again, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    OK(flock(fd, LOCK_SH)); /* converted */
    OK(flock(again, LOCK_SH | LOCK_NB));
    OK(flock(again, LOCK_UN));
    OK(flock(fd, LOCK_EX));
    pid_t child = CHILD({
        OK(flock(again, LOCK_EX)); /* waits */
        CHECK_EQ(write(ready[1], "f", 1), 1);
    });
    wait_until_asleep(child);
    struct pollfd told = {ready[0], POLLIN, 0};
    CHECK_EQ(poll(&told, 1, 0), 0);
    OK(flock(fd, LOCK_UN));
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    JOIN(child);
    OK(flock(again, LOCK_UN)); /* the description is ours too */

    /* POSIX: by process, by range; other descriptors of this process do not conflict. */
    OK(lock(fd, F_SETLK, F_WRLCK, 0, 100));
    OK(lock(again, F_SETLK, F_WRLCK, 50, 10));
    JOIN(CHILD({
        CHECK_ERR(lock(again, F_SETLK, F_RDLCK, 99, 1), EAGAIN);
        OK(lock(again, F_SETLK, F_WRLCK, 100, 10));
        struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 1};
        OK(fcntl(again, F_GETLK, &asked));
        CHECK(asked.l_type == F_WRLCK && asked.l_pid == getppid() && asked.l_start == 0 && asked.l_len == 100);
    }));
    OK(lock(fd, F_SETLK, F_UNLCK, 40, 20)); /* splits */
    JOIN(CHILD({
        OK(lock(again, F_SETLK, F_WRLCK, 40, 20));
        CHECK_ERR(lock(again, F_SETLK, F_WRLCK, 39, 1), EAGAIN);
        CHECK_ERR(lock(again, F_SETLK, F_WRLCK, 60, 1), EAGAIN);
    }));
    child = CHILD({
        OK(lock(again, F_SETLKW, F_WRLCK, 0, 0)); /* waits */
        CHECK_EQ(write(ready[1], "p", 1), 1);
    });
    wait_until_asleep(child);
    CHECK_EQ(poll(&told, 1, 0), 0);
    OK(close(FD(open("file", O_PATH)))); /* no open file, so the locks stay */
    wait_until_asleep(child);
    CHECK_EQ(poll(&told, 1, 50), 0);
    OK(close(FD(open("file", O_RDONLY)))); /* closing any descriptor of the file drops them all */
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    JOIN(child);

    /* Two processes, each waiting for the other. */
    OK(lock(fd, F_SETLK, F_WRLCK, 0, 1));
    child = CHILD({
        OK(lock(fd, F_SETLK, F_WRLCK, 1, 1));
        CHECK_EQ(write(ready[1], "d", 1), 1);
        OK(lock(fd, F_SETLKW, F_WRLCK, 0, 1));
    });
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    wait_until_asleep(child);
    CHECK_ERR(lock(fd, F_SETLKW, F_WRLCK, 1, 1), EDEADLK);
    OK(lock(fd, F_SETLK, F_UNLCK, 0, 0));
    JOIN(child);

    /* OFD: by open file description, also within one process. */
    OK(lock(fd, F_OFD_SETLK, F_WRLCK, 0, 10));
    CHECK_ERR(lock(again, F_OFD_SETLK, F_WRLCK, 5, 1), EAGAIN);
    OK(close(FD(open("file", O_RDONLY))));
    CHECK_ERR(lock(again, F_OFD_SETLK, F_RDLCK, 5, 1), EAGAIN);
    struct flock asked = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    OK(fcntl(again, F_OFD_GETLK, &asked));
    CHECK(asked.l_type == F_WRLCK && asked.l_pid == -1);
    /* Which lock the description has itself; who asks of a process's is refused. */
    asked = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 3};
    CHECK_ERR(fcntl(fd, F_GETLK, &asked), EINVAL);
    if (kernel_is(6, 5)) {
        OK(fcntl(fd, F_OFD_GETLK, &asked));
        CHECK(asked.l_type == F_WRLCK && asked.l_start == 0 && asked.l_len == 10 && asked.l_pid == -1);
        asked = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 10};
        OK(fcntl(fd, F_OFD_GETLK, &asked));
        CHECK(asked.l_type == F_UNLCK && asked.l_start == 10 && asked.l_len == 0);
        asked = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET};
        OK(fcntl(again, F_OFD_GETLK, &asked));
        CHECK_EQ(asked.l_type, F_UNLCK);
    }
    OK(close(fd));
    OK(lock(again, F_OFD_SETLK, F_WRLCK, 5, 1));
    CHECK_ERR(lock(FD(open("file", O_RDONLY)), F_SETLK, F_WRLCK, 0, 1), EBADF);
    /* A lock dies with its process. */
    child = CHILD({
        OK(lock(again, F_SETLK, F_WRLCK, 100, 1));
        CHECK_EQ(write(ready[1], "k", 1), 1);
        for (;;)
            pause();
    });
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    CHECK_ERR(lock(again, F_SETLK, F_WRLCK, 100, 1), EAGAIN);
    OK(kill(child, SIGKILL));
    CHECK_KILLED(child, SIGKILL);
    OK(lock(again, F_SETLK, F_WRLCK, 100, 1));
}

static void descriptors(void)
{
    int fd = create("file"), copy = FD(dup(fd));
    CHECK_EQ(write(fd, "abc", 3), 3);
    CHECK_EQ(lseek(copy, 0, SEEK_CUR), 3); /* one place for both */
    CHECK_EQ(lseek(FD(open("file", O_RDONLY)), 0, SEEK_CUR), 0);
    CHECK_EQ(dup2(fd, 100), 100);
    CHECK_EQ(dup2(fd, fd), fd);
    CHECK_ERR(dup3(fd, fd, 0), EINVAL);
    CHECK_ERR(dup2(9999, 3), EBADF);
    CHECK_EQ(dup3(fd, 101, O_CLOEXEC), 101);
    CHECK_EQ(fcntl(101, F_GETFD), FD_CLOEXEC);
    CHECK_EQ(fcntl(100, F_GETFD), 0);
    int high = FD(fcntl(fd, F_DUPFD_CLOEXEC, 50));
    CHECK(high >= 50 && fcntl(high, F_GETFD) == FD_CLOEXEC);
    OK(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
    CHECK_EQ(fcntl(copy, F_GETFL) & (O_APPEND | O_NONBLOCK | O_ACCMODE), O_APPEND | O_NONBLOCK | O_RDWR);
    CHECK_ERR(fcntl(fd, F_SETFL + 9000, 0), EINVAL);
    CHECK_ERR(fcntl(9999, F_GETFD), EBADF);
    int available = -1;
    CHECK_EQ(lseek(fd, 1, SEEK_SET), 1);
    OK(ioctl(fd, FIONREAD, &available));
    CHECK_EQ(available, 2);
    CHECK_ERR(ioctl(fd, 0x12345678, 0), ENOTTY);
    OK(ioctl(fd, FIOCLEX));
    CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    if (syscall(SYS_close_range, 100, 101, 0) == 0) {
        CHECK_ERR(fcntl(100, F_GETFD), EBADF);
        CHECK_ERR(fcntl(101, F_GETFD), EBADF);
        OK(fcntl(fd, F_SETFD, 0));
        OK(syscall(SYS_close_range, fd, ~0U, 4 /* mark, do not close */));
        CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
        CHECK_ERR(syscall(SYS_close_range, 5, 3, 0), EINVAL);
    } else {
        CHECK_EQ(errno, ENOSYS);
        NOTE("no close_range");
    }
    JOIN(CHILD({ /* a child shares the place in the file */
        CHECK_EQ(lseek(fd, 2, SEEK_SET), 2);
    }));
    CHECK_EQ(lseek(fd, 0, SEEK_CUR), 2);
    char path[64], text[PATH_MAX] = {0};
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(readlink(path, text, sizeof text - 1) > 5 && strcmp(text + strlen(text) - 5, "/file") == 0);
    CHECK_EQ(lseek(FD(open(path, O_RDONLY)), 0, SEEK_CUR), 0); /* opened anew */
}

static void extended_attributes(void)
{
    char value[64];
    touch("file");
    if (setxattr("file", "user.color", "brown", 5, 0) < 0 && (errno == ENOTSUP || errno == ENOSYS))
        SKIP("no user attributes here");
    CHECK_EQ(getxattr("file", "user.color", value, sizeof value), 5);
    CHECK_EQ(memcmp(value, "brown", 5), 0);
    CHECK_EQ(getxattr("file", "user.color", NULL, 0), 5);
    CHECK_ERR(getxattr("file", "user.color", value, 2), ERANGE);
    CHECK_ERR(getxattr("file", "user.absent", value, 2), ENODATA);
    CHECK_ERR(setxattr("file", "user.color", "x", 1, XATTR_CREATE), EEXIST);
    CHECK_ERR(setxattr("file", "user.new", "x", 1, XATTR_REPLACE), ENODATA);
    OK(setxattr("file", "user.new", "", 0, 0));
    char list[256];
    ssize_t length = listxattr("file", list, sizeof list);
    int ours = 0;
    for (ssize_t at = 0; at < length; at += (ssize_t)strlen(list + at) + 1)
        ours += strcmp(list + at, "user.new") == 0 || strcmp(list + at, "user.color") == 0;
    CHECK_EQ(ours, 2);
    OK(removexattr("file", "user.new"));
    CHECK_ERR(removexattr("file", "user.new"), ENODATA);
    int fd = FD(open("file", O_RDONLY));
    CHECK_EQ(fgetxattr(fd, "user.color", value, sizeof value), 5);
    CHECK_ERR(setxattr("file", "nonsense", "x", 1, 0), EOPNOTSUPP);
}

static void expect_event(int fd, uint32_t mask, const char *name)
{
    static char buffer[4096] __attribute__((aligned(8)));
    static ssize_t length, at;
    if (at >= length) {
        length = read(fd, buffer, sizeof buffer);
        CHECK(length > 0);
        at = 0;
    }
    struct inotify_event *event = (struct inotify_event *)(buffer + at);
    at += (ssize_t)(sizeof *event + event->len);
    if ((event->mask & ~(uint32_t)IN_ISDIR) != mask || strcmp(event->len ? event->name : "", name) != 0)
        FAIL("event %#x on \"%s\", want %#x on \"%s\"", event->mask, event->len ? event->name : "", mask, name);
}

static void notification(void)
{
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd < 0 && errno == ENOSYS)
        SKIP("no inotify");
    CHECK(fd >= 0);
    OK(mkdir("watched", 0755));
    int watch = FD(inotify_add_watch(fd, "watched", IN_CREATE | IN_DELETE | IN_MODIFY | IN_MOVE | IN_CLOSE_WRITE));
    char byte[256];
    CHECK_ERR(read(fd, byte, sizeof byte), EAGAIN);
    int file = create("watched/a");
    CHECK_EQ(write(file, "x", 1), 1);
    OK(close(file));
    OK(rename("watched/a", "watched/b"));
    OK(unlink("watched/b"));
    struct pollfd ready = {fd, POLLIN, 0};
    CHECK_EQ(poll(&ready, 1, 5000), 1);
    expect_event(fd, IN_CREATE, "a");
    expect_event(fd, IN_MODIFY, "a");
    expect_event(fd, IN_CLOSE_WRITE, "a");
    expect_event(fd, IN_MOVED_FROM, "a");
    expect_event(fd, IN_MOVED_TO, "b");
    expect_event(fd, IN_DELETE, "b");
    OK(inotify_rm_watch(fd, watch));
    expect_event(fd, IN_IGNORED, "");
    CHECK_ERR(inotify_rm_watch(fd, watch), EINVAL);
    CHECK_ERR(inotify_add_watch(fd, "absent", IN_CREATE), ENOENT);
}

/* Random reads, writes, truncations and mappings of one file, compared with an array. */
static void model(void)
{
    enum { MOST = 200000 };
    static unsigned char want[MOST], got[MOST];
    int fd = create("file");
    long size = 0;
    uint64_t seed = 77;
    for (long round = 0; round < scaled(3000); round++) {
        long at = (long)(next_random(&seed) % (MOST - 20000)), length = (long)(next_random(&seed) % 20000);
        switch (next_random(&seed) % 5) {
        case 0:
        case 1:
            memset(got, (int)round, (size_t)length);
            CHECK_EQ(pwrite(fd, got, (size_t)length, at), length);
            memset(want + at, (int)round, (size_t)length);
            if (length > 0 && at + length > size)
                size = at + length;
            break;
        case 2:
            OK(ftruncate(fd, at));
            if (at < size)
                memset(want + at, 0, (size_t)(size - at));
            size = at;
            break;
        case 3:
            if (size > 0) {
                unsigned char *map = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                CHECK(map != MAP_FAILED);
                long byte = at % size;
                CHECK_EQ(map[byte], want[byte]);
                map[byte] = want[byte] = (unsigned char)(round * 3);
                OK(munmap(map, (size_t)size));
            }
            break;
        default: {
            long expect = at >= size ? 0 : length < size - at ? length : size - at;
            CHECK_EQ(pread(fd, got, (size_t)length, at), expect);
            CHECK_EQ(memcmp(got, want + at, (size_t)expect), 0);
        }
        }
    }
    struct stat info;
    OK(fstat(fd, &info));
    CHECK_EQ(info.st_size, size);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(opening),     TEST(transfer),    TEST(sizes),       TEST(names),       TEST(paths),
        TEST(directories), TEST(attributes),  TEST(permissions), TEST(copies),      TEST(locks), TEST(lock_and_close),
        TEST(descriptors), TEST(extended_attributes), TEST(notification), TEST(model),
    };
    return RUN_TESTS("files", tests, argc, argv);
}
