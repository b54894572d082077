/* What files of a disk and of memory answer to what few programs ask: flags of single writes, their ioctls, renames and
 * times at the edge. Each test runs on the file system of the working directory and on one in memory. */
#include "check.h"
#include <linux/fs.h>
#include <asm/ioctls.h>
#include <sys/ioctl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#ifndef RWF_NOAPPEND
#define RWF_NOAPPEND 0x20
#endif

static ssize_t write_with(int fd, const char *text, off_t at, int flags)
{
    struct iovec piece = {(void *)(uintptr_t)text, strlen(text)};
    return pwritev2(fd, &piece, 1, at, flags);
}

static void check_text(int fd, const char *want)
{
    char got[64] = {0};
    CHECK_EQ(pread(fd, got, sizeof got - 1, 0), strlen(want));
    if (strcmp(got, want) != 0)
        FAIL("content is %s, want %s", got, want);
}

static void append_to(int fd, int appending)
{
    CHECK_EQ(write_with(fd, "0123", 0, 0), 4);
    CHECK_EQ(write_with(fd, "ab", 0, RWF_APPEND), 2);
    CHECK_EQ(lseek(fd, 0, SEEK_CUR), 0);
    CHECK_EQ(write_with(fd, "cd", -1, RWF_APPEND), 2);
    CHECK_EQ(lseek(fd, 0, SEEK_CUR), 8);
    CHECK_EQ(write_with(fd, "ef", 1, RWF_APPEND | RWF_DSYNC), 2);
    check_text(fd, "0123abcdef");
    CHECK_EQ(lseek(fd, 0, SEEK_CUR), 8);
    if (kernel_is(6, 9)) {
        CHECK_EQ(write_with(appending, "X", 1, RWF_NOAPPEND), 1);
        check_text(fd, "0X23abcdef");
        CHECK_EQ(lseek(appending, 2, SEEK_SET), 2);
        CHECK_EQ(write_with(appending, "Y", -1, RWF_NOAPPEND), 1);
        CHECK_EQ(lseek(appending, 0, SEEK_CUR), 3);
        CHECK_EQ(write_with(appending, "Z", 0, RWF_APPEND), 1);
        check_text(fd, "0XY3abcdefZ");
        CHECK_ERR(write_with(appending, "Z", 0, RWF_APPEND | RWF_NOAPPEND), EINVAL);
    }
}

static void appending(void)
{
    int memory = FD(memfd_create("m", 0)), other = FD(memfd_create("n", 0));
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/answers_disk.%d", getpid());
    const char *const files[] = {"file", path};
    for (int i = 0; i < 2; i++) {
        int fd = FD(open(files[i], O_RDWR | O_CREAT | O_EXCL, 0644));
        append_to(fd, FD(open(files[i], O_RDWR | O_APPEND)));
        OK(unlink(files[i]));
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    append_to(memory, FD(open(path, O_RDWR | O_APPEND)));
    OK(fcntl(other, F_SETFL, O_APPEND));
    CHECK_EQ(write(other, "text", 4), 4);
    CHECK_EQ(lseek(other, 0, SEEK_SET), 0);
    CHECK_EQ(write(other, "", 0), 0);
    CHECK_EQ(lseek(other, 0, SEEK_CUR), 0);
}

static void flags_of_one_call(void)
{
    char byte;
    struct iovec piece = {&byte, 1}, nothing = {&byte, 0};
    int fd = FD(open("file", O_RDWR | O_CREAT, 0644)), ends[2], sockets[2];
    CHECK_EQ(write(fd, "0123", 4), 4);
    CHECK_EQ(preadv2(fd, &piece, 1, 0, RWF_HIPRI | RWF_SYNC | RWF_APPEND), 1);
    CHECK_ERR(preadv2(fd, &piece, 1, 0, 1 << 20), EOPNOTSUPP);
    CHECK_ERR(pwritev2(fd, &piece, 1, 0, 1 << 20), EOPNOTSUPP);
    /* Looked at once there is something to move. */
    CHECK_EQ(preadv2(fd, &nothing, 1, 0, 1 << 20), 0);
    CHECK_EQ(pwritev2(fd, &nothing, 1, 0, 1 << 20), 0);
    CHECK_ERR(pwritev2(-1, &piece, 1, 0, 1 << 20), EBADF);
    CHECK_ERR(pwritev2(fd, &piece, 1, -2, 1 << 20), EINVAL);
    int read_only = FD(open("file", O_RDONLY)), write_only = FD(open("file", O_WRONLY));
    CHECK_ERR(pwritev2(read_only, &piece, 1, 0, 1 << 20), EBADF);
    CHECK_ERR(preadv2(write_only, &piece, 1, 0, 1 << 20), EBADF);
    OK(pipe(ends));
    CHECK_EQ(write_with(ends[1], "y", -1, RWF_APPEND), 1);
    CHECK_ERR(write_with(ends[1], "x", 0, RWF_NOWAIT), ESPIPE);
    /* Pipes have known it since then. */
    if (kernel_is(6, 4)) {
        CHECK_EQ(preadv2(ends[0], &piece, 1, -1, RWF_NOWAIT), 1);
        CHECK_ERR(preadv2(ends[0], &piece, 1, -1, RWF_NOWAIT), EAGAIN);
        CHECK_EQ(write_with(ends[1], "x", -1, RWF_NOWAIT), 1);
        OK(fcntl(ends[1], F_SETFL, O_NONBLOCK));
        while (write(ends[1], "z", 1) == 1)
            continue;
        OK(fcntl(ends[1], F_SETFL, 0));
        CHECK_ERR(write_with(ends[1], "x", -1, RWF_NOWAIT), EAGAIN);
        OK(close(ends[0]));
        signal(SIGPIPE, SIG_IGN);
        CHECK_ERR(write_with(ends[1], "x", -1, RWF_NOWAIT), EPIPE);
    }
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    CHECK_EQ(write_with(sockets[0], "x", -1, RWF_APPEND), 1);
    /* An address that no program has is bad, whatever the length. */
    struct iovec far[2] = {{&byte, 1}, {(void *)-4096L, 0}};
    CHECK_ERR(readv(fd, far, 2), EFAULT);
    CHECK_ERR(read(fd, (void *)-4096L, 0), EFAULT);
    CHECK_EQ(read(fd, NULL, 0), 0);
}

/* Requests that the kernel answers for every file, and those that file systems do. */
static void check_requests(int fd, bool is_kept, bool is_regular)
{
    struct stat stat_;
    int block = 0;
    loff_t bytes = -1;
    OK(fstat(fd, &stat_));
    OK(ioctl(fd, FIGETBSZ, &block));
    CHECK_EQ(block, stat_.st_blksize);
    if (S_ISREG(stat_.st_mode) || S_ISDIR(stat_.st_mode)) {
        OK(ioctl(fd, FIOQSIZE, &bytes));
        CHECK_EQ(bytes, stat_.st_blocks * 512);
    } else {
        CHECK_ERR(ioctl(fd, FIOQSIZE, &bytes), ENOTTY);
    }
    CHECK_ERR(ioctl(fd, FICLONE, -1), EBADF);
    CHECK_ERR(ioctl(fd, FICLONERANGE, NULL), EFAULT);
    struct fsxattr attributes;
    uint64_t flags = 0;
    if (!is_kept) {
        CHECK_ERR(ioctl(fd, FS_IOC_GETFLAGS, &flags), ENOTTY);
        CHECK_ERR(ioctl(fd, FS_IOC_SETFLAGS, &flags), ENOTTY);
        CHECK_ERR(ioctl(fd, FS_IOC_FSGETXATTR, &attributes), ENOTTY);
        return;
    }
    OK(ioctl(fd, FS_IOC_GETFLAGS, &flags));
    CHECK(!(flags & (FS_IMMUTABLE_FL | FS_APPEND_FL)));
    OK(ioctl(fd, FS_IOC_SETFLAGS, &flags));
    OK(ioctl(fd, FS_IOC_FSGETXATTR, &attributes));
    CHECK(attributes.fsx_projid == 0 && !(attributes.fsx_xflags & (FS_XFLAG_IMMUTABLE | FS_XFLAG_APPEND)));
    OK(ioctl(fd, FS_IOC_FSSETXATTR, &attributes));
    CHECK_ERR(ioctl(fd, FS_IOC_GETFLAGS, NULL), EFAULT);
    if (is_regular)
        CHECK(ioctl(fd, FICLONE, fd) < 0 && (errno == EOPNOTSUPP || errno == EINVAL));
}

static void requests(void)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/answers_disk.%d", getpid());
    int ends[2], file = FD(open("file", O_RDWR | O_CREAT, 0644)), dir = FD(open(".", O_RDONLY));
    int memory = FD(open(path, O_RDWR | O_CREAT | O_EXCL, 0644)), shared = FD(memfd_create("m", 0));
    OK(unlink(path));
    CHECK_EQ(write(file, "0123", 4), 4);
    CHECK_EQ(write(memory, "0123", 4), 4);
    /* What it takes on a disk is known then. */
    OK(fsync(file));
    OK(pipe(ends));
    check_requests(file, true, true);
    check_requests(dir, true, false);
    if (kernel_is(6, 1)) {
        check_requests(memory, true, true);
        check_requests(shared, true, true);
    }
    check_requests(FD(open("/proc/self/stat", O_RDONLY)), false, false);
    check_requests(ends[0], false, false);
    /* Clones: between file systems, of directories, and without the right to write. */
    CHECK_ERR(ioctl(file, FICLONE, FD(open("/proc/self/stat", O_RDONLY))), EXDEV);
    /* A directory of an overlay may be of another device than a file in it. */
    CHECK(ioctl(dir, FICLONE, file) == -1 && (errno == EISDIR || errno == EXDEV));
    CHECK_ERR(ioctl(ends[0], FICLONE, ends[1]), EINVAL);
    CHECK_ERR(ioctl(FD(open("file", O_RDONLY)), FICLONE, file), EBADF);
    uint64_t dedupe[3] = {0, 1, 0};
    CHECK_ERR(ioctl(dir, FIDEDUPERANGE, dedupe), EISDIR);
    CHECK_ERR(ioctl(ends[0], FIDEDUPERANGE, dedupe), EINVAL);
    CHECK_ERR(ioctl(file, FIDEDUPERANGE, NULL), EFAULT);
    /* Only an owner sets flags. */
    OK(chmod(".", 0755));
    if (getuid() == 0)
        JOIN(CHILD({
            int flags = 0;
            int own = FD(open("file", O_RDONLY));
            OK(setgid(12345));
            OK(setuid(12345));
            OK(ioctl(own, FS_IOC_GETFLAGS, &flags));
            flags |= FS_NODUMP_FL;
            CHECK_ERR(ioctl(own, FS_IOC_SETFLAGS, &flags), EPERM);
        }));
    /* A flag is followed, or refused. */
    int flags;
    OK(ioctl(file, FS_IOC_GETFLAGS, &flags));
    flags |= FS_IMMUTABLE_FL;
    if (ioctl(file, FS_IOC_SETFLAGS, &flags) == 0) {
        CHECK_ERR(open("file", O_WRONLY), EPERM);
        flags &= ~FS_IMMUTABLE_FL;
        OK(ioctl(file, FS_IOC_SETFLAGS, &flags));
    } else {
        CHECK(errno == EOPNOTSUPP || errno == EPERM);
    }
    OK(close(FD(open("file", O_WRONLY))));
}

enum { BLOCK = 4096 };

/* With O_DIRECT offsets and lengths are whole blocks of the disk; here all are of one that any disk has. */
static void direct_blocks(void)
{
    struct statfs system_;
    OK(statfs(".", &system_));
    int fd = open("file", O_RDWR | O_CREAT | O_DIRECT, 0644);
    if (fd < 0 || system_.f_type == 0x01021994)
        SKIP("no O_DIRECT here");
    char *block;
    CHECK_EQ(posix_memalign((void **)&block, BLOCK, 2 * BLOCK), 0);
    memset(block, 'x', 2 * BLOCK);
    CHECK_ERR(write(fd, block, 100), EINVAL);
    CHECK_ERR(pwrite(fd, block, BLOCK, 100), EINVAL);
    CHECK_EQ(write(fd, block, BLOCK), BLOCK);
    CHECK_EQ(write(fd, block, 0), 0);
    CHECK_ERR(pread(fd, block, 100, 0), EINVAL);
    CHECK_ERR(pread(fd, block, BLOCK, 100), EINVAL);
    /* Behind the end there is nothing to read. */
    CHECK_EQ(pread(fd, block, 100, BLOCK), 0);
    CHECK_EQ(pread(fd, block, 2 * BLOCK, 0), BLOCK);
    OK(ftruncate(fd, BLOCK - 100));
    CHECK_EQ(pread(fd, block, BLOCK, 0), BLOCK - 100);
    OK(fcntl(fd, F_SETFL, O_APPEND | O_DIRECT));
    CHECK_ERR(write(fd, block, BLOCK), EINVAL);
    OK(fcntl(fd, F_SETFL, 0));
    CHECK_EQ(pwrite(fd, block, 100, 1), 100);
    OK(fcntl(fd, F_SETFL, O_DIRECT));
    CHECK_ERR(pwrite(fd, block, 100, 0), EINVAL);
}

/* The fields that older headers do not have. */
struct newer_statx {
    uint8_t before[0x90];
    uint64_t mount;
    uint32_t memory_align, offset_align;
    uint8_t after[0x60];
};

static void newer_facts(void)
{
    struct newer_statx facts, other;
    struct statfs system_;
    uint32_t mask;
    close(FD(open("file", O_RDWR | O_CREAT, 0644)));
    OK(statfs(".", &system_));
    if (kernel_is(6, 1) && system_.f_type != 0x01021994) {
        OK(syscall(SYS_statx, AT_FDCWD, "file", 0, 0x2000 /* STATX_DIOALIGN */, &facts));
        memcpy(&mask, &facts, sizeof mask);
        if (mask & 0x2000)
            CHECK(facts.offset_align >= 512 && (facts.offset_align & (facts.offset_align - 1)) == 0);
        /* A directory has no such thing. */
        OK(syscall(SYS_statx, AT_FDCWD, ".", 0, 0x2000, &facts));
        CHECK_EQ(facts.offset_align, 0);
    }
    if (!kernel_is(6, 8))
        return;
    OK(syscall(SYS_statx, AT_FDCWD, ".", 0, 0x4000 /* STATX_MNT_ID_UNIQUE */, &facts));
    memcpy(&mask, &facts, sizeof mask);
    CHECK(mask & 0x4000 && !(mask & 0x1000));
    CHECK(facts.mount >= 1u << 31);
    OK(syscall(SYS_statx, AT_FDCWD, "/proc", 0, 0x4000, &other));
    CHECK(facts.mount != other.mount);
    OK(syscall(SYS_statx, AT_FDCWD, ".", 0, 0x1000 /* STATX_MNT_ID */, &facts));
    memcpy(&mask, &facts, sizeof mask);
    CHECK(mask & 0x1000 && !(mask & 0x4000) && facts.mount < 1u << 31);
}

/* A path that no buffer holds. */
static void long_directories(void)
{
    static char name[201], path[16384];
    memset(name, 'n', sizeof name - 1);
    for (int i = 0; i < 25; i++) {
        OK(mkdir(name, 0755));
        OK(chdir(name));
    }
    CHECK_ERR(syscall(SYS_getcwd, path, sizeof path), ENAMETOOLONG);
    for (int i = 0; i < 10; i++)
        OK(chdir(".."));
    CHECK(syscall(SYS_getcwd, path, sizeof path) > 3000);
    CHECK_ERR(syscall(SYS_getcwd, path, 3000), ERANGE);
    for (int i = 0; i < 15; i++)
        OK(chdir(".."));
    /* Nothing is left that is hard to remove. */
    for (int depth = 25; depth > 0; depth--) {
        for (int i = 1; i < depth; i++)
            OK(chdir(name));
        OK(rmdir(name));
        for (int i = 1; i < depth; i++)
            OK(chdir(".."));
    }
}

static void odd_answers(void)
{
    int ends[2], dir = FD(open(".", O_RDONLY));
    OK(pipe(ends));
    CHECK_ERR(splice(dir, NULL, ends[1], NULL, 10, 0), EINVAL);
    if (kernel_is(5, 17))
        OK(flock(dir, 32 /* LOCK_MAND */ | LOCK_SH));
    CHECK_ERR(flock(dir, 64), EINVAL);
    if (getuid() != 0)
        return;
    CHECK_ERR(mkdir("/proc/no-such-name", 0755), ENOENT);
    CHECK_ERR(open("/proc/no-such-name", O_WRONLY | O_CREAT, 0644), ENOENT);
    CHECK_ERR(symlink("x", "/proc/self/no-such-name"), ENOENT);
}

static const struct test tests[] = {
    TEST(appending),   TEST(flags_of_one_call), TEST(requests),    TEST(direct_blocks),
    TEST(newer_facts), TEST(long_directories),  TEST(odd_answers),
};

int main(int argc, char **argv)
{
    return RUN_TESTS("answers_disk", tests, argc, argv);
}
