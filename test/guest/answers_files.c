/* What calls on files and descriptors answer at their edges: flags that contradict each other, offsets that overflow,
 * calls on pipes and sockets that are meant for files. */
#include "check.h"
#include <limits.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

static off_t size_of(const char *path)
{
    struct stat stat_;
    OK(stat(path, &stat_));
    return stat_.st_size;
}

static void truncating(void)
{
    NEEDS_ROOT();
    write_file("full", "content", 0644);
    int fd = FD(open("full", O_RDONLY | O_TRUNC));
    CHECK_EQ(size_of("full"), 0);
    OK(close(fd));
    write_file("read-only", "content", 0444);
    write_file("mine", "content", 0644);
    OK(chmod(".", 0755));
    JOIN(CHILD({
        OK(setgid(12345));
        OK(setuid(12345));
        CHECK_ERR(open("read-only", O_RDONLY | O_TRUNC), EACCES);
        CHECK_ERR(open("mine", O_RDONLY | O_TRUNC), EACCES);
        OK(close(FD(open("mine", O_RDONLY))));
    }));
    CHECK_EQ(size_of("read-only"), 7);
    CHECK_EQ(size_of("mine"), 7);
    CHECK_ERR(open(".", O_RDONLY | O_TRUNC), EISDIR);
    int shared = FD(memfd_create("sealed", MFD_ALLOW_SEALING));
    CHECK_EQ(write(shared, "content", 7), 7);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", shared);
    OK(close(FD(open(path, O_RDONLY | O_TRUNC))));
    CHECK_EQ(size_of(path), 0);
}

/* Access mode 3 asks for both permissions and gives neither; it is for ioctl alone. */
static void mode_three(void)
{
    NEEDS_ROOT();
    char byte = 0;
    write_file("file", "content", 0644);
    int fd = FD(open("file", O_ACCMODE));
    CHECK_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_ACCMODE);
    CHECK_ERR(read(fd, &byte, 1), EBADF);
    CHECK_ERR(write(fd, &byte, 1), EBADF);
    CHECK_ERR(pread(fd, &byte, 1, 0), EBADF);
    CHECK_ERR(ftruncate(fd, 0), EINVAL);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EACCES);
    struct stat stat_;
    OK(fstat(fd, &stat_));
    CHECK_EQ(stat_.st_size, 7);
    OK(close(fd));
    CHECK_ERR(open(".", O_ACCMODE), EISDIR);
    JOIN(CHILD({
        OK(setgid(12345));
        OK(setuid(12345));
        CHECK_ERR(open("file", O_ACCMODE), EACCES);
    }));
}

static void direct(void)
{
    write_file("file", "content", 0644);
    OK(mkfifo("fifo", 0644));
    CHECK_ERR(open(".", O_RDONLY | O_DIRECT), EINVAL);
    CHECK_ERR(open("/proc/self/stat", O_RDONLY | O_DIRECT), EINVAL);
    CHECK_ERR(open("/dev/null", O_RDONLY | O_DIRECT), EINVAL);
    int fd = FD(open("/dev/null", O_RDONLY));
    CHECK_ERR(fcntl(fd, F_SETFL, O_DIRECT), EINVAL);
    OK(close(fd));
    fd = FD(open(".", O_RDONLY));
    CHECK_ERR(fcntl(fd, F_SETFL, O_DIRECT), EINVAL);
    OK(close(fd));
    int ends[2];
    OK(pipe(ends));
    OK(fcntl(ends[1], F_SETFL, O_DIRECT));
    OK(fcntl(ends[1], F_SETFL, 0));
}

static void path_only(void)
{
    char byte = 0;
    write_file("file", "content", 0644);
    OK(symlink("file", "link"));
    OK(mkdir("dir", 0755));
    /* All flags but four are ignored. */
    int fd = FD(open("file", O_PATH | O_WRONLY | O_TRUNC | O_CREAT | O_EXCL | O_APPEND));
    CHECK_EQ(size_of("file"), 7);
    CHECK_EQ(fcntl(fd, F_GETFL) & ~0100000, O_PATH);
    CHECK_ERR(read(fd, &byte, 1), EBADF);
    CHECK_ERR(write(fd, &byte, 1), EBADF);
    CHECK_ERR(lseek(fd, 0, SEEK_CUR), EBADF);
    CHECK_ERR(fchmod(fd, 0600), EBADF);
    CHECK_ERR(fchown(fd, 0, 0), EBADF);
    CHECK_ERR(ftruncate(fd, 0), EBADF);
    CHECK_ERR(fsync(fd), EBADF);
    CHECK_ERR(fdatasync(fd), EBADF);
    CHECK_ERR(flock(fd, LOCK_EX), EBADF);
    CHECK_ERR(fallocate(fd, 0, 0, 1), EBADF);
    CHECK_ERR(posix_fadvise(fd, 0, 1, 0) == EBADF ? (errno = EBADF, -1) : 0, EBADF);
    CHECK_ERR(readahead(fd, 0, 1), EBADF);
    CHECK_ERR(syncfs(fd), EBADF);
    CHECK_ERR(ioctl(fd, 0x5401, &byte), EBADF);
    CHECK_ERR(fcntl(fd, F_SETFL, 0), EBADF);
    CHECK_ERR(fcntl(fd, F_GETOWN), EBADF);
    CHECK_ERR(fgetxattr(fd, "user.x", &byte, 1), EBADF);
    CHECK_ERR(fsetxattr(fd, "user.x", &byte, 1, 0), EBADF);
    CHECK_ERR(flistxattr(fd, &byte, 1), EBADF);
    CHECK_ERR(fchdir(fd), ENOTDIR);
    CHECK_ERR(futimens(fd, NULL), EBADF);
    CHECK_ERR(syscall(SYS_getdents64, fd, &byte, 1), EBADF);
    CHECK_ERR(sendfile(fd, fd, NULL, 1), EBADF);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EBADF);
    struct stat stat_;
    struct statfs system_;
    OK(fstat(fd, &stat_));
    OK(fstatfs(fd, &system_));
    int copy = FD(dup(fd));
    OK(close(copy));
    OK(close(fd));
    CHECK_ERR(open("file", O_PATH | O_DIRECTORY), ENOTDIR);
    CHECK_ERR(open("none", O_PATH | O_CREAT, 0644), ENOENT);
    fd = FD(open("link", O_PATH | O_NOFOLLOW));
    OK(fstat(fd, &stat_));
    CHECK(S_ISLNK(stat_.st_mode));
    char target[16];
    CHECK_EQ(readlinkat(fd, "", target, sizeof target), 4);
    OK(close(fd));
    CHECK_ERR(open("link", O_PATH | O_NOFOLLOW | O_DIRECTORY), ENOTDIR);
    fd = FD(open("dir", O_PATH));
    OK(fchdir(fd));
    OK(chdir(".."));
    CHECK_ERR(syscall(SYS_getdents64, fd, &byte, 1), EBADF);
    OK(close(FD(openat(fd, "inside", O_WRONLY | O_CREAT, 0644))));
    OK(close(fd));
    struct {
        uint64_t flags, mode, resolve;
    } how = {O_PATH | O_WRONLY, 0, 0};
    CHECK_ERR(syscall(SYS_openat2, AT_FDCWD, "file", &how, sizeof how), EINVAL);
    how.flags = O_PATH | O_TRUNC;
    CHECK_ERR(syscall(SYS_openat2, AT_FDCWD, "file", &how, sizeof how), EINVAL);
    how.flags = O_PATH | O_CLOEXEC;
    OK(close(FD(syscall(SYS_openat2, AT_FDCWD, "file", &how, sizeof how))));
}

static void unnamed(void)
{
    NEEDS_ROOT();
    char path[64];
    write_file("file", "content", 0644);
    CHECK_ERR(open(".", O_TMPFILE | O_RDONLY, 0600), EINVAL);
    CHECK_ERR(open(".", O_TMPFILE | O_RDWR | O_CREAT, 0600), EINVAL);
    CHECK_ERR(open("file", O_TMPFILE | O_RDWR, 0600), ENOTDIR);
    CHECK_ERR(open("none", O_TMPFILE | O_RDWR, 0600), ENOENT);
    int fd = open(".", O_TMPFILE | O_RDWR, 0640);
    if (fd < 0 && errno == EOPNOTSUPP) {
        NOTE("no O_TMPFILE here");
        return;
    }
    CHECK(fd >= 0);
    struct stat stat_;
    OK(fstat(fd, &stat_));
    CHECK_EQ(stat_.st_nlink, 0);
    CHECK_EQ(stat_.st_mode, S_IFREG | 0640);
    CHECK_EQ(write(fd, "text", 4), 4);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    OK(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
    CHECK_EQ(size_of("named"), 4);
    OK(fstat(fd, &stat_));
    CHECK_EQ(stat_.st_nlink, 1);
    OK(close(fd));
    fd = FD(open(".", O_TMPFILE | O_WRONLY | O_EXCL, 0600));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK_ERR(linkat(AT_FDCWD, path, AT_FDCWD, "never", AT_SYMLINK_FOLLOW), ENOENT);
    OK(close(fd));
    OK(chmod(".", 0755));
    JOIN(CHILD({
        OK(setgid(12345));
        OK(setuid(12345));
        CHECK_ERR(open(".", O_TMPFILE | O_RDWR, 0600), EACCES);
    }));
}

static void creating(void)
{
    OK(mkdir("dir", 0755));
    write_file("file", "content", 0644);
    OK(symlink("dangling-target", "dangling"));
    CHECK_ERR(open("", O_RDONLY), ENOENT);
    CHECK_ERR(open("dir", O_RDONLY | O_CREAT, 0644), EISDIR);
    CHECK_ERR(open("dir", O_WRONLY), EISDIR);
    CHECK_ERR(open("new/", O_RDONLY | O_CREAT, 0644), EISDIR);
    CHECK_ERR(open("file/", O_RDONLY), ENOTDIR);
    CHECK_ERR(open("file/", O_RDONLY | O_CREAT, 0644), EISDIR);
    CHECK_ERR(open("dir", O_CREAT | O_EXCL, 0644), EEXIST);
    CHECK_ERR(open("dangling", O_CREAT | O_EXCL | O_WRONLY, 0644), EEXIST);
    CHECK_ERR(open("dangling", O_CREAT | O_NOFOLLOW | O_WRONLY, 0644), ELOOP);
    CHECK_ERR(open("dir", O_RDONLY | O_CREAT | O_DIRECTORY, 0644), EINVAL);
    CHECK_ERR(open("file", O_RDONLY | O_DIRECTORY), ENOTDIR);
    CHECK_ERR(open("file/below", O_RDONLY | O_CREAT, 0644), ENOTDIR);
    OK(close(FD(open("dangling", O_CREAT | O_WRONLY, 0644))));
    CHECK_EQ(size_of("dangling-target"), 0);
}

static void streams_have_no_offsets(void)
{
    int ends[2], pair[2];
    char bytes[8] = "1234567";
    struct iovec piece = {bytes, 4};
    OK(pipe(ends));
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    for (int i = 0; i < 2; i++) {
        CHECK_ERR(pread(ends[i], bytes, 1, 0), ESPIPE);
        CHECK_ERR(pwrite(ends[i], bytes, 1, 0), ESPIPE);
        CHECK_ERR(pread(ends[i], bytes, 0, 0), ESPIPE);
        CHECK_ERR(preadv(ends[i], &piece, 1, 0), ESPIPE);
        CHECK_ERR(pwritev(ends[i], &piece, 1, 0), ESPIPE);
        CHECK_ERR(lseek(ends[i], 0, SEEK_CUR), ESPIPE);
        CHECK_ERR(lseek(ends[i], 0, 77), EINVAL);
        CHECK_ERR(pread(ends[i], bytes, 1, -1), EINVAL);
        CHECK_ERR(pread(pair[i], bytes, 1, 0), ESPIPE);
        CHECK_ERR(pwrite(pair[i], bytes, 1, 0), ESPIPE);
        CHECK_ERR(lseek(pair[i], 0, SEEK_CUR), ESPIPE);
        CHECK_ERR(ftruncate(ends[i], 0), EINVAL);
        CHECK_ERR(ftruncate(pair[i], 0), EINVAL);
        CHECK_ERR(fsync(ends[i]), EINVAL);
        CHECK_ERR(fsync(pair[i]), EINVAL);
        CHECK_ERR(sync_file_range(ends[i], 0, 1, 0), ESPIPE);
        CHECK_EQ(posix_fadvise(ends[i], 0, 1, 0), ESPIPE);
        CHECK_ERR(fallocate(ends[1], 0, 0, 1), ESPIPE);
        CHECK_ERR(fallocate(ends[0], 0, 0, 1), EBADF);
        CHECK_ERR(fallocate(pair[i], 0, 0, 1), ENODEV);
        CHECK_ERR(readahead(pair[i], 0, 1), EINVAL);
    }
    CHECK_ERR(readahead(ends[0], 0, 1), EINVAL);
    CHECK_ERR(readahead(ends[1], 0, 1), EBADF);
    CHECK_EQ(pwritev2(ends[1], &piece, 1, -1, 0), 4);
    CHECK_EQ(preadv2(ends[0], &piece, 1, -1, 0), 4);
    CHECK_ERR(pread(-1, bytes, 1, -1), EINVAL);
    CHECK_ERR(read(ends[1], bytes, 1), EBADF);
    CHECK_ERR(write(ends[0], bytes, 1), EBADF);
}

/* Pipes and sockets have inodes too: they can be locked, and given modes and owners. */
static void inodes_of_streams(void)
{
    NEEDS_ROOT();
    int ends[2], pair[2];
    struct stat stat_;
    OK(pipe(ends));
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    OK(flock(ends[0], LOCK_EX));
    CHECK_ERR(flock(ends[1], LOCK_EX | LOCK_NB), EWOULDBLOCK);
    CHECK_ERR(flock(ends[1], LOCK_SH | LOCK_NB), EWOULDBLOCK);
    OK(flock(ends[0], LOCK_UN));
    OK(flock(ends[1], LOCK_EX | LOCK_NB));
    OK(flock(pair[0], LOCK_EX | LOCK_NB));
    OK(flock(pair[1], LOCK_EX | LOCK_NB));
    int files[] = {ends[0], pair[0], pair[1]};
    for (int i = 0; i < 3; i++) {
        OK(fchmod(files[i], 0640));
        OK(fchown(files[i], 12, 34));
        OK(fstat(files[i], &stat_));
        CHECK_EQ(stat_.st_mode & 07777, 0640);
        CHECK_EQ(stat_.st_uid, 12);
        CHECK_EQ(stat_.st_gid, 34);
    }
    OK(fstat(ends[1], &stat_));
    CHECK_EQ(stat_.st_mode, S_IFIFO | 0640);
    CHECK_EQ(stat_.st_uid, 12);
    OK(fchown(ends[1], -1, 56));
    OK(fstat(ends[0], &stat_));
    CHECK_EQ(stat_.st_uid, 12);
    CHECK_EQ(stat_.st_gid, 56);
    JOIN(CHILD({
        OK(setgid(777));
        OK(setuid(777));
        CHECK_ERR(fchmod(ends[0], 0600), EPERM);
        CHECK_ERR(fchown(ends[0], 777, -1), EPERM);
        CHECK_ERR(fchmod(pair[0], 0600), EPERM);
        int own[2];
        OK(pipe(own));
        OK(fchmod(own[0], 0600));
        OK(fchown(own[0], 777, 777));
        CHECK_ERR(fchown(own[0], 778, -1), EPERM);
    }));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    OK(fcntl(ends[1], F_SETLK, &lock));
    lock.l_type = F_UNLCK;
    OK(fcntl(ends[1], F_SETLK, &lock));
    lock.l_type = F_RDLCK;
    CHECK_ERR(fcntl(ends[1], F_SETLK, &lock), EBADF);
    OK(fcntl(pair[0], F_SETLK, &lock));
}

static void sending(void)
{
    write_file("in", "0123456789", 0644);
    int in = FD(open("in", O_RDONLY)), out = FD(open("out", O_RDWR | O_CREAT, 0644));
    int append = FD(open("out", O_WRONLY | O_APPEND)), ends[2];
    OK(pipe(ends));
    off_t offset = -1;
    CHECK_ERR(sendfile(out, in, NULL, -1), EINVAL);
    CHECK_ERR(sendfile(out, in, NULL, (size_t)1 << 63), EINVAL);
    CHECK_ERR(sendfile(out, in, &offset, 1), EINVAL);
    CHECK_ERR(sendfile(-1, in, (off_t *)8, 1), EFAULT);
    CHECK_ERR(sendfile(out, -1, NULL, 1), EBADF);
    CHECK_ERR(sendfile(out, out, NULL, -1), EINVAL);
    CHECK_ERR(sendfile(in, out, NULL, 1), EBADF);
    CHECK_ERR(sendfile(append, in, NULL, 1), EINVAL);
    CHECK_ERR(sendfile(out, ends[0], NULL, 1), EINVAL);
    CHECK_EQ(sendfile(out, in, NULL, 0), 0);
    CHECK_EQ(sendfile(out, in, NULL, LONG_MAX), 10);
    CHECK_EQ(lseek(in, 0, SEEK_CUR), 10);
    offset = 3;
    CHECK_EQ(sendfile(ends[1], in, &offset, 4), 4);
    CHECK_EQ(offset, 7);
    CHECK_ERR(copy_file_range(in, NULL, out, NULL, 1, 1), EINVAL);
    CHECK_ERR(copy_file_range(in, NULL, append, NULL, 1, 0), EBADF);
    offset = 100;
    CHECK_EQ(sendfile(out, in, &offset, 1), 0);
}

struct entry {
    uint64_t ino;
    int64_t next;
    unsigned short length;
    unsigned char kind;
    char name[];
};

/* Entries that fit before the hole are given; the rest comes with the next call. */
static void half_bad_listing(void)
{
    char name[32];
    OK(mkdir("list", 0755));
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "list/%02d-some-entry", i);
        write_file(name, "", 0644);
    }
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    OK(munmap(pages + 4096, 4096));
    int fd = FD(open("list", O_RDONLY | O_DIRECTORY)), seen = 0;
    CHECK_ERR(syscall(SYS_getdents64, fd, pages + 4096, 4096), EFAULT);
    CHECK_ERR(syscall(SYS_getdents64, fd, pages + 4090, 4096), EFAULT);
    CHECK_ERR(syscall(SYS_getdents64, fd, pages, 8), EINVAL);
    for (;;) {
        char *at = pages + 4096 - 200;
        long got = syscall(SYS_getdents64, fd, at, 4096);
        CHECK(got >= 0 && got <= 200);
        if (got == 0)
            break;
        for (char *end = at + got; at < end; at += ((struct entry *)at)->length)
            seen++;
    }
    CHECK_EQ(seen, 42);
    CHECK_ERR(syscall(SYS_getdents64, fd, NULL, 0) ?: syscall(SYS_getdents64, -1, NULL, 0), EBADF);
}

static void seeking(void)
{
    write_file("file", "0123456789", 0644);
    int fd = FD(open("file", O_RDWR)), dir = FD(open(".", O_RDONLY));
    CHECK_EQ(lseek(fd, 5, SEEK_SET), 5);
    CHECK_ERR(lseek(fd, -6, SEEK_CUR), EINVAL);
    CHECK_ERR(lseek(fd, -11, SEEK_END), EINVAL);
    CHECK_ERR(lseek(fd, LLONG_MAX, SEEK_CUR), EINVAL);
    CHECK_ERR(lseek(fd, LLONG_MAX, SEEK_END), EINVAL);
    CHECK_ERR(lseek(fd, LLONG_MIN, SEEK_SET), EINVAL);
    CHECK_ERR(lseek(fd, LLONG_MIN, SEEK_CUR), EINVAL);
    CHECK_ERR(lseek(fd, LLONG_MIN, SEEK_END), EINVAL);
    CHECK_ERR(lseek(fd, 0, 5), EINVAL);
    CHECK_ERR(lseek(fd, 0, -1), EINVAL);
    CHECK_EQ(lseek(fd, 0, SEEK_CUR), 5);
    CHECK_ERR(lseek(fd, 10, SEEK_DATA), ENXIO);
    CHECK_ERR(lseek(fd, 10, SEEK_HOLE), ENXIO);
    CHECK_ERR(lseek(fd, -1, SEEK_DATA), ENXIO);
    CHECK_ERR(lseek(fd, -1, SEEK_HOLE), ENXIO);
    CHECK_ERR(lseek(fd, LLONG_MAX, SEEK_DATA), ENXIO);
    CHECK_EQ(lseek(fd, 9, SEEK_DATA), 9);
    CHECK_EQ(lseek(fd, 9, SEEK_HOLE), 10);
    CHECK_EQ(lseek(fd, 0, SEEK_HOLE), 10);
    int empty = FD(open("empty", O_RDWR | O_CREAT, 0644));
    CHECK_ERR(lseek(empty, 0, SEEK_DATA), ENXIO);
    CHECK_ERR(lseek(empty, 0, SEEK_HOLE), ENXIO);
    int memory = FD(memfd_create("memory", 0));
    OK(ftruncate(memory, 1 << 20));
    CHECK_ERR(lseek(memory, 0, SEEK_DATA), ENXIO);
    CHECK_EQ(lseek(memory, 4096, SEEK_HOLE), 4096);
    CHECK_ERR(lseek(memory, 1 << 20, SEEK_HOLE), ENXIO);
    CHECK_EQ(pwrite(memory, "x", 1, 65536), 1);
    CHECK_EQ(lseek(memory, 0, SEEK_DATA), 65536);
    CHECK_ERR(lseek(memory, LLONG_MAX, SEEK_END), EINVAL);
    char byte;
    CHECK_ERR(pread(fd, &byte, 1, LLONG_MIN), EINVAL);
    CHECK_ERR(lseek(dir, -1, SEEK_SET), EINVAL);
    CHECK_EQ(lseek(dir, 0, SEEK_CUR), 0);
}

static void seeking_in_proc(void)
{
    int fd = FD(open("/proc/self/status", O_RDONLY));
    char first[8], again[8];
    CHECK_EQ(read(fd, first, 8), 8);
    CHECK_EQ(lseek(fd, 0, SEEK_CUR), 8);
    CHECK_EQ(lseek(fd, 2, SEEK_SET), 2);
    CHECK_EQ(read(fd, again, 4), 4);
    CHECK(memcmp(again, first + 2, 4) == 0);
    CHECK_EQ(lseek(fd, -4, SEEK_CUR), 2);
    CHECK_ERR(lseek(fd, -3, SEEK_CUR), EINVAL);
    CHECK_ERR(lseek(fd, -1, SEEK_SET), EINVAL);
    CHECK_ERR(lseek(fd, 0, SEEK_END), EINVAL);
    CHECK_ERR(lseek(fd, 0, SEEK_DATA), EINVAL);
    CHECK_EQ(pread(fd, again, 8, 0), 8);
    CHECK(memcmp(again, first, 8) == 0);
    OK(close(fd));
    int memory = FD(open("/proc/self/mem", O_RDONLY));
    CHECK_EQ(lseek(memory, (long)first, SEEK_SET), (long)first);
    CHECK_ERR(lseek(memory, 0, SEEK_END), EINVAL);
    int sys = FD(open("/proc/sys/kernel/ostype", O_RDONLY));
    CHECK_EQ(read(sys, first, 8), 6);
    CHECK_EQ(read(sys, first, 8), 0);
    CHECK_EQ(lseek(sys, 2, SEEK_SET), 2);
    int null = FD(open("/dev/null", O_RDONLY)), zero = FD(open("/dev/zero", O_RDONLY));
    CHECK_EQ(lseek(null, 12345, SEEK_SET), 0);
    CHECK_EQ(lseek(zero, 12345, SEEK_CUR), 0);
    CHECK_EQ(lseek(null, -1, SEEK_END), 0);
}

/* The process's own limit is told before any other. */
static void too_many(void)
{
    struct rlimit limit;
    OK(getrlimit(RLIMIT_NOFILE, &limit));
    long most = limit.rlim_max < 20000 ? (long)limit.rlim_max : 20000;
    limit.rlim_cur = most;
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    write_file("file", "content", 0644);
    int last = FD(open("file", O_RDONLY));
    closefrom(last + 1);
    long count = last + 1;
    while (dup(last) >= 0)
        count++;
    CHECK_EQ(errno, EMFILE);
    CHECK_EQ(count, most);
    closefrom(last + 1);
    for (count = last + 1; open("file", O_RDONLY) >= 0; count++)
        ;
    CHECK_EQ(errno, EMFILE);
    CHECK_EQ(count, most);
    closefrom(last + 1);
    for (count = last + 1; socket(AF_INET, SOCK_DGRAM, 0) >= 0; count++)
        ;
    CHECK_EQ(errno, EMFILE);
    CHECK_EQ(count, most);
    int ends[2];
    CHECK_ERR(pipe(ends), EMFILE);
    CHECK_ERR(socket(AF_INET, SOCK_STREAM, 0), EMFILE);
    CHECK_ERR(open("none", O_WRONLY | O_CREAT, 0644), EMFILE);
    CHECK_ERR(access("none", F_OK), ENOENT);
    CHECK_ERR(open("nothing", O_RDONLY), EMFILE);
}

/* Owners are 32 bits without a sign, and -1 leaves one as it is. In memory: a disk's file system may know fewer owners
 * in a container. */
static void large_owners(void)
{
    NEEDS_ROOT();
    struct stat stat_;
    char directory[] = "/dev/shm/owners.XXXXXX";
    CHECK(mkdtemp(directory) != NULL);
    OK(chdir(directory));
    write_file("file", "content", 0644);
    int fd = FD(open("file", O_RDONLY));
    OK(chown("file", 0x80000001u, 0xfffffffeu));
    OK(stat("file", &stat_));
    CHECK_EQ(stat_.st_uid, 0x80000001u);
    CHECK_EQ(stat_.st_gid, 0xfffffffeu);
    OK(fchown(fd, -1, 70000));
    OK(fchown(fd, -1, -1));
    OK(fstat(fd, &stat_));
    CHECK_EQ(stat_.st_uid, 0x80000001u);
    CHECK_EQ(stat_.st_gid, 70000);
    OK(fchownat(AT_FDCWD, "file", 0x7fffffff, -1, 0));
    OK(fstat(fd, &stat_));
    CHECK_EQ(stat_.st_uid, 0x7fffffff);
    OK(chmod("file", 04755));
    OK(chown("file", -1, -1));
    OK(fstat(fd, &stat_));
    CHECK_EQ(stat_.st_mode & 07777, 0755);
    OK(unlink("file"));
    OK(rmdir(directory));
}

static void owners_and_locks(void)
{
    struct {
        int kind, id;
    } owner = {-1, -1};
    int ends[2];
    OK(pipe(ends));
    OK(fcntl(ends[0], F_GETOWN_EX, &owner));
    CHECK_EQ(owner.id, 0);
    owner.kind = F_OWNER_PID, owner.id = getpid();
    OK(fcntl(ends[0], F_SETOWN_EX, &owner));
    owner.kind = owner.id = -1;
    OK(fcntl(ends[0], F_GETOWN_EX, &owner));
    CHECK_EQ(owner.kind, F_OWNER_PID);
    CHECK_EQ(owner.id, getpid());
    owner.kind = 9;
    CHECK_ERR(fcntl(ends[0], F_SETOWN_EX, &owner), EINVAL);
    CHECK_ERR(fcntl(ends[0], F_SETOWN, INT_MIN), EINVAL);
    OK(fcntl(ends[0], F_SETOWN, -getpgrp()));
    CHECK_EQ(fcntl(ends[0], F_GETOWN), -getpgrp());
    OK(fcntl(ends[0], F_SETOWN, 0));
    CHECK_EQ(fcntl(ends[0], F_GETOWN), 0);
    CHECK_ERR(fcntl(ends[0], F_SETOWN_EX, (void *)8), EFAULT);

    write_file("file", "content", 0644);
    int fd = FD(open("file", O_RDWR)), other = FD(open("file", O_RDWR));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)1 << 40, .l_len = (off_t)1 << 33};
    OK(fcntl(fd, F_OFD_SETLK, &lock));
    OK(fcntl(other, F_OFD_GETLK, &lock));
    CHECK_EQ(lock.l_type, F_WRLCK);
    CHECK_EQ(lock.l_pid, -1);
    CHECK_EQ(lock.l_start, (off_t)1 << 40);
    CHECK_EQ(lock.l_len, (off_t)1 << 33);
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = LLONG_MAX, .l_len = 2};
    CHECK_ERR(fcntl(fd, F_SETLK, &lock), EOVERFLOW);
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = -1};
    CHECK_ERR(fcntl(fd, F_SETLK, &lock), EINVAL);
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_END, .l_start = LLONG_MAX};
    CHECK_ERR(fcntl(fd, F_SETLK, &lock), EOVERFLOW);
    lock = (struct flock){.l_type = 7, .l_whence = SEEK_SET};
    CHECK_ERR(fcntl(fd, F_SETLK, &lock), EINVAL);
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = 9};
    CHECK_ERR(fcntl(fd, F_SETLK, &lock), EINVAL);
    lock = (struct flock){.l_type = F_RDLCK, .l_pid = 1};
    CHECK_ERR(fcntl(fd, F_OFD_SETLK, &lock), EINVAL);
    CHECK_ERR(fcntl(fd, F_SETLK, (void *)8), EFAULT);
    CHECK_ERR(fcntl(fd, 4711, 0), EINVAL);
    CHECK_ERR(flock(fd, 0), EINVAL);
    CHECK_ERR(flock(fd, LOCK_NB), EINVAL);
}

static bool has_capability(int capability)
{
    char text[4096], *line;
    int fd = FD(open("/proc/self/status", O_RDONLY));
    ssize_t got = read(fd, text, sizeof text - 1);
    CHECK(got > 0);
    text[got] = 0;
    OK(close(fd));
    line = strstr(text, "CapEff:");
    CHECK(line != NULL);
    return strtoull(line + 7, NULL, 16) >> capability & 1;
}

/* Files without a name keep no attributes; a socket tells its protocol, by its descriptor and by the link in /proc. */
static void attributes_of_nameless(void)
{
    static const struct {
        int family, kind;
        const char *name;
    } sockets[] = {
        {AF_UNIX, SOCK_STREAM, "UNIX-STREAM"}, {AF_UNIX, SOCK_DGRAM, "UNIX"}, {AF_UNIX, SOCK_SEQPACKET, "UNIX"},
        {AF_INET, SOCK_STREAM, "TCP"},         {AF_INET, SOCK_DGRAM, "UDP"},  {AF_INET6, SOCK_STREAM, "TCPv6"},
        {AF_INET6, SOCK_DGRAM, "UDPv6"},       {AF_NETLINK, SOCK_RAW, "NETLINK"},
    };
    static const char name[] = "system.sockprotoname";
    char value[64], link[64];
    int pipe_[2];
    for (size_t i = 0; i < sizeof sockets / sizeof *sockets; i++) {
        int size = (int)strlen(sockets[i].name) + 1;
        int fd = FD(socket(sockets[i].family, sockets[i].kind, 0));
        CHECK_EQ(fgetxattr(fd, name, NULL, 0), size);
        CHECK_EQ(fgetxattr(fd, name, value, sizeof value), size);
        CHECK(strcmp(value, sockets[i].name) == 0);
        CHECK_ERR(fgetxattr(fd, name, value, size - 1), ERANGE);
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        CHECK_EQ(getxattr(link, name, value, sizeof value), size);
        CHECK_EQ(listxattr(link, value, sizeof value), sizeof name);
        CHECK_EQ(flistxattr(fd, value, sizeof value), sizeof name);
        CHECK(strcmp(value, name) == 0);
        CHECK_ERR(flistxattr(fd, value, 1), ERANGE);
        CHECK_ERR(fsetxattr(fd, name, "x", 1, 0), EOPNOTSUPP);
        CHECK_ERR(fremovexattr(fd, name), EOPNOTSUPP);
        CHECK_ERR(fgetxattr(fd, "user.x", value, sizeof value), ENODATA);
        CHECK_ERR(fsetxattr(fd, "user.x", "x", 1, 0), EPERM);
        OK(close(fd));
    }
    OK(pipe(pipe_));
    CHECK_ERR(fgetxattr(pipe_[0], name, value, sizeof value), EOPNOTSUPP);
    CHECK_ERR(fgetxattr(pipe_[0], "user.x", value, sizeof value), ENODATA);
    CHECK_ERR(fsetxattr(pipe_[0], "user.x", "x", 1, 0), EPERM);
    CHECK_ERR(fremovexattr(pipe_[1], "user.x"), EPERM);
    CHECK_EQ(flistxattr(pipe_[0], value, sizeof value), 0);
    OK(close(pipe_[0]));
    OK(close(pipe_[1]));
}

/* trusted.* is seen and changed with CAP_SYS_ADMIN alone; security.* may be read by all and is the administrator's. */
static void attributes(void)
{
    NEEDS_ROOT();
    char value[16];
    write_file("file", "content", 0666);
    /* Where the file system keeps no attributes for users the sandbox keeps none of the others either. */
    if (setxattr("file", "user.x", "x", 1, 0) != 0 && errno == EOPNOTSUPP)
        return;
    OK(removexattr("file", "user.x"));
    if (has_capability(21)) {
        OK(setxattr("file", "trusted.mark", "abc", 3, 0));
        CHECK_EQ(getxattr("file", "trusted.mark", value, sizeof value), 3);
        OK(setxattr("file", "security.mark", "abc", 3, 0));
        CHECK_EQ(getxattr("file", "security.mark", value, sizeof value), 3);
        JOIN(CHILD({
            OK(setgid(12345));
            OK(setuid(12345));
            CHECK_ERR(getxattr("file", "trusted.mark", value, sizeof value), ENODATA);
            CHECK_ERR(setxattr("file", "trusted.mark", "x", 1, 0), EPERM);
            CHECK_ERR(removexattr("file", "trusted.mark"), EPERM);
            /* Older kernels forget to ask where they have the security module `bpf`. */
            if (kernel_is(6, 12)) {
                CHECK_ERR(setxattr("file", "security.mark", "x", 1, 0), EPERM);
                CHECK_ERR(removexattr("file", "security.mark"), EPERM);
                CHECK_EQ(getxattr("file", "security.mark", value, sizeof value), 3);
            }
        }));
        OK(removexattr("file", "trusted.mark"));
        OK(removexattr("file", "security.mark"));
    } else {
        CHECK_ERR(setxattr("file", "trusted.mark", "abc", 3, 0), EPERM);
        CHECK_ERR(getxattr("file", "trusted.mark", value, sizeof value), ENODATA);
        CHECK_ERR(setxattr("file", "security.mark", "abc", 3, 0), EPERM);
    }
    CHECK_ERR(getxattr("file", "security.mark", value, sizeof value), ENODATA);
    static const unsigned char capability[20] = {0, 0, 0, 2, 1};
    if (has_capability(31)) {
        OK(setxattr("file", "security.capability", capability, sizeof capability, 0));
        unsigned char got[24];
        CHECK_EQ(getxattr("file", "security.capability", got, sizeof got), 20);
        CHECK(memcmp(got, capability, 20) == 0);
        CHECK_ERR(setxattr("file", "security.capability", "x", 1, 0), EINVAL);
        /* Writing takes the capabilities of a file away. */
        int fd = FD(open("file", O_WRONLY));
        CHECK_EQ(write(fd, "x", 1), 1);
        CHECK_ERR(getxattr("file", "security.capability", got, sizeof got), ENODATA);
        OK(close(fd));
    }
    JOIN(CHILD({
        OK(setgid(12345));
        OK(setuid(12345));
        CHECK_ERR(setxattr("file", "security.capability", capability, sizeof capability, 0), EPERM);
    }));
    CHECK_ERR(setxattr("file", "nothing.known", "x", 1, 0), EOPNOTSUPP);
    CHECK_ERR(setxattr("file", "user.", "x", 1, 0), EINVAL);
    CHECK_ERR(setxattr("file", "", "x", 1, 0), ERANGE);
    CHECK_ERR(setxattr("file", "user.x", "x", 1, 7), EINVAL);
    static const char large[65537];
    CHECK_ERR(setxattr("file", "user.x", large, sizeof large, 0), E2BIG);
    CHECK_ERR(setxattr("/dev/null", "user.x", "x", 1, 0), EPERM);
    OK(symlink("file", "link"));
    CHECK_ERR(lsetxattr("link", "user.x", "x", 1, 0), EPERM);
}

static void links_to_directories(void)
{
    OK(mkdir("dir", 0755));
    OK(symlink("dir", "link"));
    CHECK_ERR(open("link", O_RDONLY | O_NOFOLLOW), ELOOP);
    CHECK_ERR(open("link", O_RDONLY | O_NOFOLLOW | O_DIRECTORY), ENOTDIR);
    CHECK_ERR(open("link", O_PATH | O_NOFOLLOW | O_DIRECTORY), ENOTDIR);
    OK(close(FD(open("link", O_RDONLY | O_DIRECTORY))));
}

static void copying_a_range(void)
{
    int out = FD(open("out", O_RDWR | O_CREAT, 0644)), in = FD(open("in", O_RDWR | O_CREAT, 0644));
    CHECK_EQ(write(in, "0123456789", 10), 10);
    int text = FD(open("/proc/self/status", O_RDONLY)), dir = FD(open(".", O_RDONLY));
    CHECK_ERR(copy_file_range(text, NULL, out, NULL, 100, 0), EXDEV);
    CHECK_ERR(copy_file_range(in, NULL, dir, NULL, 10, 0), EISDIR);
    CHECK_ERR(copy_file_range(dir, NULL, out, NULL, 10, 0), EISDIR);
    CHECK_ERR(copy_file_range(in, NULL, out, NULL, 10, 1), EINVAL);
    CHECK_ERR(copy_file_range(in, NULL, -1, NULL, 10, 0), EBADF);
    loff_t from = 2;
    CHECK_EQ(copy_file_range(in, &from, out, NULL, 100, 0), 8);
    CHECK_EQ(from, 10);
    /* As much as a file may have. */
    JOIN(CHILD({
        signal(SIGXFSZ, SIG_IGN);
        OK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){12, 12}));
        loff_t begin = 0;
        CHECK_EQ(copy_file_range(in, &begin, out, NULL, 10, 0), 4);
        CHECK_ERR(copy_file_range(in, &begin, out, NULL, 6, 0), EFBIG);
        int memory = FD(memfd_create("m", 0));
        CHECK_EQ(write(memory, "0123456789abcdef", 16), 12);
        CHECK_ERR(write(memory, "x", 1), EFBIG);
    }));
    OK(close(text));
    OK(close(dir));
    OK(close(in));
    OK(close(out));
}

static void roots_of_mounts(void)
{
    struct statx facts;
    OK(statx(AT_FDCWD, "/proc", 0, STATX_BASIC_STATS | STATX_BTIME, &facts));
    CHECK(facts.stx_attributes_mask & 0x2000 && facts.stx_attributes & 0x2000);
    CHECK((facts.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS && !(facts.stx_mask & STATX_BTIME));
    OK(statx(AT_FDCWD, "/proc/self", 0, STATX_BASIC_STATS, &facts));
    CHECK(facts.stx_attributes_mask & 0x2000 && !(facts.stx_attributes & 0x2000));
}

static void what_files_are_told(void)
{
    int file = FD(open("file", O_RDWR | O_CREAT | O_APPEND, 0644)), other = FD(open("file", O_RDONLY));
    uint64_t life = 7;
    OK(fcntl(file, 1035 /* F_GET_RW_HINT */, &life));
    CHECK_EQ(life, 0);
    CHECK_ERR(fcntl(file, 1036 /* F_SET_RW_HINT */, &(uint64_t){6}), EINVAL);
    OK(fcntl(file, 1036, &(uint64_t){2}));
    OK(fcntl(file, 1035, &life));
    CHECK_EQ(life, 2);
    if (kernel_is(6, 10)) {
        int copy = FD(dup(file));
        CHECK_EQ(fcntl(file, 1027 /* F_DUPFD_QUERY */, copy), 1);
        CHECK_EQ(fcntl(file, 1027, other), 0);
        CHECK_ERR(fcntl(file, 1027, -1), EBADF);
    }
    CHECK_EQ(write(file, "text", 4), 4);
    CHECK_EQ(lseek(file, 0, SEEK_SET), 0);
    CHECK_EQ(write(file, "", 0), 0);
    CHECK_EQ(lseek(file, 0, SEEK_CUR), 0);
    struct statfs fs;
    int ends[2], sockets[2], event = FD(eventfd(0, 0));
    OK(pipe2(ends, O_DIRECT));
    CHECK(!(fcntl(ends[0], F_GETFL) & O_DIRECT) && fcntl(ends[1], F_GETFL) & O_DIRECT);
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    OK(fstatfs(ends[0], &fs));
    CHECK_EQ(fs.f_type, 0x50495045);
    OK(fstatfs(sockets[0], &fs));
    CHECK_EQ(fs.f_type, 0x534f434b);
    OK(fstatfs(event, &fs));
    CHECK_EQ(fs.f_type, 0x09041934);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(truncating),   TEST(mode_three),  TEST(direct),           TEST(path_only),
        TEST(unnamed),      TEST(creating),    TEST(streams_have_no_offsets),
        TEST(inodes_of_streams), TEST(sending), TEST(half_bad_listing), TEST(seeking),
        TEST(seeking_in_proc), TEST(too_many), TEST(large_owners),     TEST(owners_and_locks),
        TEST(attributes),   TEST(links_to_directories), TEST(copying_a_range), TEST(roots_of_mounts),
        TEST(what_files_are_told), TEST(attributes_of_nameless),
    };
    return RUN_TESTS("answers_files", tests, argc, argv);
}
