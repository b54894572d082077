/* Bytes between the memory of two processes, and advice about another's: what is moved, what is refused, and to whom. */
#include "check.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define PAGE 4096
#define RW (PROT_READ | PROT_WRITE)
#define NOBODY 65534

static char *map(size_t length, int prot)
{
    char *at = mmap(NULL, length, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static ssize_t get(pid_t pid, void *to, const void *from, size_t length)
{
    struct iovec local = {to, length}, remote = {(void *)from, length};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

static ssize_t put(pid_t pid, const void *from, void *to, size_t length)
{
    struct iovec local = {(void *)from, length}, remote = {to, length};
    return process_vm_writev(pid, &local, 1, &remote, 1, 0);
}

static int tell[2];

/* A child that says when it is ready, and runs the statements once its parent closes the pipe's other end. */
#define PARTNER(before, after)                                                                                         \
    ({                                                                                                                 \
        int ready_[2];                                                                                                 \
        OK(pipe(tell));                                                                                                \
        OK(pipe(ready_));                                                                                              \
        pid_t partner_ = CHILD({                                                                                       \
            close(tell[1]);                                                                                            \
            before;                                                                                                    \
            CHECK_EQ(write(ready_[1], "x", 1), 1);                                                                     \
            char byte_;                                                                                                \
            CHECK_EQ(read(tell[0], &byte_, 1), 0);                                                                     \
            after;                                                                                                     \
        });                                                                                                            \
        char byte_;                                                                                                    \
        CHECK_EQ(read(ready_[0], &byte_, 1), 1);                                                                       \
        close(ready_[0]), close(ready_[1]), close(tell[0]);                                                            \
        partner_;                                                                                                      \
    })

static void end_partner(pid_t pid)
{
    close(tell[1]);
    JOIN(pid);
}

static void both_ways(void)
{
    char *area = map(8 * PAGE, RW);
    memset(area, 'p', 8 * PAGE);
    char *mine = map(8 * PAGE, RW);
    pid_t pid = PARTNER(memset(area, 'c', 8 * PAGE), {
        for (int i = 0; i < 3 * PAGE; i++)
            CHECK_EQ(area[PAGE / 2 + i], 'w');
        CHECK(area[PAGE / 2 - 1] == 'c' && area[PAGE / 2 + 3 * PAGE] == 'c');
    });
    CHECK_EQ(get(pid, mine, area, 8 * PAGE), 8 * PAGE);
    CHECK(mine[0] == 'c' && mine[8 * PAGE - 1] == 'c' && area[0] == 'p');
    memset(mine, 'w', 3 * PAGE);
    CHECK_EQ(put(pid, mine, area + PAGE / 2, 3 * PAGE), 3 * PAGE);
    CHECK_EQ(area[PAGE], 'p');
    /* Several pieces of different lengths, an empty one among them. */
    struct iovec local[3] = {{mine + 5, 10}, {mine + 100, 0}, {mine + PAGE - 3, 100}};
    struct iovec remote[3] = {{area + PAGE / 2 - 2, 4}, {area, 0}, {area, 2 * PAGE}};
    CHECK_EQ(process_vm_readv(pid, local, 3, remote, 3, 0), 110);
    CHECK(!memcmp(mine + 5, "ccwwcccccc", 10));
    CHECK_EQ(mine[PAGE + 96], 'c');
    end_partner(pid);
}

/* A page that parent and child still share is written for one of them alone. */
static void own_copies(void)
{
    char *area = map(2 * PAGE, RW);
    strcpy(area, "both");
    pid_t pid = PARTNER(, CHECK(!strcmp(area, "child")));
    CHECK_EQ(put(pid, "child", area, 6), 6);
    CHECK(!strcmp(area, "both"));
    /* And of itself. */
    CHECK_EQ(put(getpid(), "self!", area + PAGE, 6), 6);
    CHECK(!strcmp(area + PAGE, "self!"));
    CHECK_EQ(get(getpid(), area, area + 1, PAGE), PAGE);
    end_partner(pid);
}

static void what_is_refused(void)
{
    char *area = map(4 * PAGE, RW), *mine = map(4 * PAGE, RW);
    OK(mprotect(area + PAGE, PAGE, PROT_READ));
    OK(mprotect(area + 2 * PAGE, PAGE, PROT_NONE));
    OK(munmap(area + 3 * PAGE, PAGE));
    pid_t pid = PARTNER(memset(area, 'c', PAGE), CHECK_EQ(area[PAGE], 0));
    CHECK_ERR(put(pid, mine, area + PAGE, 1), EFAULT);
    CHECK_EQ(get(pid, mine, area + PAGE, 1), 1);
    CHECK_ERR(get(pid, mine, area + 2 * PAGE, 1), EFAULT);
    CHECK_ERR(get(pid, mine, area + 3 * PAGE, 1), EFAULT);
    CHECK_ERR(get(pid, mine, (void *)0xffff800000000000ul, 1), EFAULT);
    CHECK_ERR(get(pid, mine, (void *)-1, 1), EFAULT);
    /* Up to the first page that cannot be reached. */
    CHECK_EQ(get(pid, mine, area + PAGE - 5, 4 * PAGE), PAGE + 5);
    CHECK_EQ(put(pid, mine, area + PAGE - 5, 10), 5);
    struct iovec local = {mine, 4 * PAGE}, two[2] = {{area, 10}, {area + 3 * PAGE, 10}};
    CHECK_EQ(process_vm_readv(pid, &local, 1, two, 2, 0), 10);
    /* Flags, counts, lengths. */
    struct iovec bad = {mine, -1}, none = {mine, 0}, *many = (void *)map(17 * PAGE, RW);
    CHECK_ERR(process_vm_readv(pid, &local, 1, two, 1, 1), EINVAL);
    CHECK_ERR(process_vm_readv(pid, &bad, 1, two, 1, 0), EINVAL);
    CHECK_ERR(process_vm_readv(pid, &local, 1, &bad, 1, 0), EINVAL);
    CHECK_ERR(process_vm_readv(pid, many, 1025, two, 1, 0), EINVAL);
    CHECK_ERR(process_vm_readv(pid, &local, 1, many, 1025, 0), EINVAL);
    CHECK_ERR(process_vm_readv(pid, (void *)8, 1, two, 1, 0), EFAULT);
    CHECK_ERR(process_vm_readv(pid, &local, 1, (void *)8, 1, 0), EFAULT);
    CHECK_EQ(process_vm_readv(pid, &none, 1, two, 1, 0), 0);
    CHECK_EQ(process_vm_readv(pid, &local, 0, two, 1, 0), 0);
    CHECK_EQ(process_vm_readv(pid, &local, 1, &none, 1, 0), 0);
    CHECK_EQ(process_vm_readv(pid, &local, 1, two, 0, 0), 0);
    CHECK_EQ(process_vm_readv(pid, many, 1024, many, 1024, 0), 0);
    end_partner(pid);
    CHECK_ERR(get(pid, mine, area, 1), ESRCH);
    CHECK_ERR(get(-1, mine, area, 1), ESRCH);
}

/* Who may: root, and the same user as long as the other is dumpable and has no more rights. */
static void rights(void)
{
    char *area = map(PAGE, RW), *mine = map(PAGE, RW);
    pid_t root = PARTNER(, );
    JOIN(CHILD({
        OK(setresgid(NOBODY, NOBODY, NOBODY));
        OK(setresuid(NOBODY, NOBODY, NOBODY));
        CHECK_ERR(get(root, mine, area, 1), EPERM);
        CHECK_ERR(put(root, mine, area, 1), EPERM);
        CHECK_ERR(syscall(SYS_move_pages, root, 0, NULL, NULL, NULL, 0), EPERM);
        CHECK_ERR(syscall(SYS_migrate_pages, root, 64, &(long){1}, &(long){1}), EPERM);
        OK(prctl(PR_SET_DUMPABLE, 1));
        int ends[2];
        OK(pipe(ends));
        pid_t same = CHILD(char byte; close(ends[1]); CHECK_EQ(read(ends[0], &byte, 1), 0));
        CHECK_EQ(get(same, mine, area, 1), 1);
        OK(prctl(PR_SET_DUMPABLE, 0));
        pid_t hidden = CHILD(char byte; close(ends[1]); CHECK_EQ(read(ends[0], &byte, 1), 0));
        CHECK_ERR(get(hidden, mine, area, 1), EPERM);
        CHECK_EQ(get(getpid(), mine, area, 1), 1);
        close(ends[1]);
        JOIN(same);
        JOIN(hidden);
    }));
    end_partner(root);
}

static void advice_for_others(void)
{
    char *area = map(4 * PAGE, RW);
    memset(area, 'x', 4 * PAGE);
    pid_t pid = PARTNER(, CHECK(area[0] == 'x' && area[4 * PAGE - 1] == 'x'));
    int fd = FD(syscall(SYS_pidfd_open, pid, 0));
    struct iovec pieces[2] = {{area, 2 * PAGE}, {area + 2 * PAGE, 2 * PAGE}};
    CHECK_EQ(syscall(SYS_process_madvise, fd, pieces, 2, MADV_WILLNEED, 0), 4 * PAGE);
    CHECK_EQ(syscall(SYS_process_madvise, fd, pieces, 2, 20 /* COLD */, 0), 4 * PAGE);
    CHECK_ERR(syscall(SYS_process_madvise, fd, pieces, 2, MADV_DONTNEED, 0), EINVAL);
    CHECK_ERR(syscall(SYS_process_madvise, fd, pieces, 2, MADV_WILLNEED, 1), EINVAL);
    CHECK_ERR(syscall(SYS_process_madvise, fd, pieces, 1025, MADV_WILLNEED, 0), EINVAL);
    CHECK_ERR(syscall(SYS_process_madvise, -1, pieces, 2, MADV_WILLNEED, 0), EBADF);
    JOIN(CHILD({
        OK(setresuid(NOBODY, NOBODY, NOBODY));
        CHECK_ERR(syscall(SYS_process_madvise, fd, pieces, 2, MADV_WILLNEED, 0), EACCES);
    }));
    end_partner(pid);
}

/* Whatever addresses and lengths: an error or some bytes, never more than asked for. */
static void at_random(void)
{
    uint64_t seed = 4242;
    char *area = map(40 * PAGE, RW);
    memset(area, 1, 16 * PAGE);
    OK(munmap(area + 6 * PAGE, PAGE));
    OK(munmap(area + 16 * PAGE, 24 * PAGE));
    pid_t pid = PARTNER(, );
    for (long i = 0; i < scaled(3000); i++) {
        struct iovec local[4], remote[4];
        size_t wanted[2] = {0, 0};
        for (int k = 0; k < 4; k++) {
            uint64_t length = next_random(&seed) % 9 ? next_random(&seed) % (3 * PAGE) : next_random(&seed);
            uint64_t at = next_random(&seed) % 9 ? (uint64_t)area + next_random(&seed) % (17 * PAGE) : next_random(&seed);
            local[k] = (struct iovec){area + next_random(&seed) % (13 * PAGE), next_random(&seed) % (2 * PAGE)};
            remote[k] = (struct iovec){(void *)at, length};
            wanted[0] += local[k].iov_len;
        }
        int count = next_random(&seed) % 5;
        ssize_t got = next_random(&seed) % 2 ? process_vm_readv(pid, local, 4, remote, count, 0)
                                             : process_vm_writev(pid, local, 4, remote, count, 0);
        CHECK(got <= (ssize_t)wanted[0]);
        if (got < 0)
            CHECK(errno == EFAULT || errno == EINVAL);
    }
    end_partner(pid);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(both_ways), TEST(own_copies),        TEST(what_is_refused),
        TEST(rights),    TEST(advice_for_others), TEST(at_random),
    };
    return RUN_TESTS("procvm", tests, argc, argv);
}
