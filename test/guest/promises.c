/* What Linux promises about memory beyond plain mappings: locking and its limits, residency, advice, sealing, mappings at
 * the edges, moved mappings that stay, parts of files, memory policies, and no huge pages. */
#include "check.h"
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define PAGE 4096
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define NOBODY 65534

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#define MADV_DONTNEED_LOCKED_ 24
#define MADV_COLLAPSE_ 25
#define SYS_mseal_ 462
#define SYS_home_node 450

static char *map_at(void *at, size_t length, int prot, int flags, int fd, off_t offset)
{
    char *got = mmap(at, length, prot, flags, fd, offset);
    if (got == MAP_FAILED)
        FAIL("mmap failed");
    return got;
}

static char *map(size_t pages)
{
    return map_at(NULL, pages * PAGE, RW, ANON, -1, 0);
}

static int file_of(const char *path, size_t pages)
{
    int fd = FD(open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    char page[PAGE];
    for (size_t i = 0; i < pages; i++) {
        memset(page, 'a' + i, PAGE);
        CHECK_EQ(write(fd, page, PAGE), PAGE);
    }
    return fd;
}

static long locked_kb(void)
{
    return number_in("/proc/self/status", "VmLck:");
}

static bool is_resident(char *at)
{
    unsigned char byte = 9;
    OK(mincore(at, PAGE, &byte));
    return byte & 1;
}

static void become_nobody(rlim_t memlock)
{
    struct rlimit limit = {memlock, memlock};
    OK(setrlimit(RLIMIT_MEMLOCK, &limit));
    OK(setresgid(NOBODY, NOBODY, NOBODY));
    OK(setresuid(NOBODY, NOBODY, NOBODY));
}

static void locking(void)
{
    char *area = map(16);
    long before = locked_kb();
    OK(mlock(area + 100, PAGE)); /* two pages */
    CHECK_EQ(locked_kb() - before, 8);
    CHECK(is_resident(area) && is_resident(area + PAGE));
    OK(syscall(SYS_mlock2, area + 8 * PAGE, 4 * PAGE, MLOCK_ONFAULT));
    CHECK_EQ(locked_kb() - before, 24);
    CHECK(!is_resident(area + 10 * PAGE));
    CHECK_ERR(syscall(SYS_mlock2, area, PAGE, 2), EINVAL);
    OK(munlock(area, 16 * PAGE));
    CHECK_EQ(locked_kb(), before);
    OK(mlock(area, 0));
    /* Holes: what comes before is locked. */
    OK(munmap(area + 4 * PAGE, PAGE));
    CHECK_ERR(mlock(area + 2 * PAGE, 4 * PAGE), ENOMEM);
    CHECK_EQ(locked_kb() - before, 8);
    CHECK_ERR(munlock(area, 6 * PAGE), ENOMEM);
    CHECK_EQ(locked_kb(), before);
    OK(mprotect(area + 8 * PAGE, PAGE, PROT_NONE));
    CHECK_ERR(mlock(area + 8 * PAGE, PAGE), ENOMEM);
    /* A mapping that is locked from the beginning, and grows. */
    char *born = map_at(NULL, 4 * PAGE, RW, ANON | MAP_LOCKED, -1, 0);
    CHECK(is_resident(born + 3 * PAGE));
    born = mremap(born, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
    CHECK(born != MAP_FAILED && is_resident(born + 7 * PAGE));
    CHECK_EQ(locked_kb() - before, 36);
    CHECK_EQ(number_in("/proc/self/smaps_rollup", "Locked:") > 0, 1);
    JOIN(CHILD(CHECK_EQ(locked_kb(), 0))); /* a child has no locks */
    JOIN(CHILD({
        execl("/bin/sh", "sh", "-c", "grep -q 'VmLck:.* 0 kB' /proc/self/status", NULL);
        FAIL("exec");
    }));
}

static void locking_all(void)
{
    char *area = map(16);
    CHECK_ERR(mlockall(0), EINVAL);
    CHECK_ERR(mlockall(8), EINVAL);
    CHECK_ERR(mlockall(MCL_ONFAULT), EINVAL);
    OK(mlockall(MCL_FUTURE));
    char *later = map(8);
    CHECK(!is_resident(area + 8 * PAGE) && is_resident(later + 5 * PAGE));
    CHECK_EQ(locked_kb(), 32);
    OK(mlockall(MCL_CURRENT));
    CHECK(is_resident(area + 8 * PAGE) && locked_kb() > 96);
    char *free_one = map(64);
    CHECK(!is_resident(free_one + 40 * PAGE)); /* FUTURE is not said any more */
    OK(mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT));
    char *on_fault = map(64);
    CHECK(!is_resident(on_fault + 40 * PAGE));
    long now = locked_kb();
    char *end = sbrk(0);
    CHECK(sbrk(64 * PAGE) == end);
    CHECK_EQ(locked_kb() - now, 256);
    JOIN(CHILD(char *own = map(64); CHECK_EQ(locked_kb(), 0); CHECK(!is_resident(own + 40 * PAGE))));
    OK(munlockall());
    CHECK_EQ(locked_kb(), 0);
    CHECK(!is_resident(map(64) + 40 * PAGE));
}

static void limits_of_locking(void)
{
    char *area = map(64);
    JOIN(CHILD({
        become_nobody(0);
        CHECK_ERR(mlock(area, PAGE), EPERM);
        CHECK_ERR(mlockall(MCL_CURRENT), EPERM);
        CHECK_ERR((long)mmap(NULL, PAGE, RW, ANON | MAP_LOCKED, -1, 0), EPERM);
        OK(munlock(area, PAGE));
        OK(munlockall());
    }));
    JOIN(CHILD({
        become_nobody(16 * PAGE);
        CHECK_ERR(mlock(area, 17 * PAGE), ENOMEM);
        OK(mlock(area, 12 * PAGE));
        OK(mlock(area, 16 * PAGE)); /* the part that is locked counts once */
        CHECK_ERR(mlock(area + 16 * PAGE, PAGE), ENOMEM);
        CHECK_ERR(mlockall(MCL_CURRENT), ENOMEM);
        CHECK_ERR((long)mmap(NULL, PAGE, RW, ANON | MAP_LOCKED, -1, 0), EAGAIN);
        CHECK_ERR((long)mremap(area, 16 * PAGE, 80 * PAGE, MREMAP_MAYMOVE), EAGAIN);
        OK(munlock(area, 8 * PAGE));
        OK(mlockall(MCL_FUTURE));
        char *own = map(8);
        CHECK_EQ(locked_kb(), 64);
        CHECK_ERR((long)mmap(NULL, PAGE, RW, ANON, -1, 0), EAGAIN);
        CHECK(sbrk(4 * PAGE) == (void *)-1);
        OK(munmap(own, 8 * PAGE));
        CHECK_EQ(locked_kb(), 32);
        map(8);
    }));
}

static void residency(void)
{
    unsigned char bytes[64];
    char *area = map(64);
    area[0] = 1;
    OK(mincore(area, 64 * PAGE, bytes));
    CHECK(bytes[0] == 1 && bytes[60] == 0);
    OK(mincore(area, 1, bytes));
    OK(mincore(area, 0, bytes));
    CHECK_ERR(mincore(area + 1, PAGE, bytes), EINVAL);
    CHECK_ERR(mincore(area, PAGE, (void *)-4096), EFAULT);
    CHECK_ERR(mincore(area, PAGE, NULL), EFAULT);
    CHECK_ERR(mincore((void *)0xffff800000000000ul, PAGE, bytes), ENOMEM);
    CHECK_ERR(mincore(area, ~0ul << 12, bytes), ENOMEM);
    OK(madvise(area, PAGE, MADV_DONTNEED));
    CHECK(!is_resident(area));
    /* Shared memory counts what any process has touched, and so do files in memory. */
    char *shared = map_at(NULL, 8 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(!is_resident(shared + 7 * PAGE));
    JOIN(CHILD(shared[7 * PAGE] = 1));
    CHECK(is_resident(shared + 7 * PAGE));
    int fd = FD(memfd_create("held", MFD_CLOEXEC));
    OK(ftruncate(fd, 8 * PAGE));
    CHECK_EQ(pwrite(fd, "x", 1, 6 * PAGE), 1);
    char *held = map_at(NULL, 8 * PAGE, RW, MAP_SHARED, fd, 0);
    CHECK(is_resident(held + 6 * PAGE) && !is_resident(held + 2 * PAGE));
    char *fresh = map_at(NULL, 4 * PAGE, PROT_READ, MAP_PRIVATE, file_of("fresh", 4), 0);
    CHECK(is_resident(fresh + PAGE)); /* just written, so the file is in memory */
    /* What comes before a hole is told. */
    OK(munmap(area + 2 * PAGE, PAGE));
    area[PAGE] = 1;
    memset(bytes, 7, 64);
    CHECK_ERR(mincore(area, 4 * PAGE, bytes), ENOMEM);
    CHECK_EQ(bytes[1], 1);
}

static void advice(void)
{
    char *area = map(8);
    memset(area, 'x', 8 * PAGE);
    OK(mlock(area, 2 * PAGE));
    CHECK_ERR(madvise(area, 8 * PAGE, MADV_DONTNEED), EINVAL);
    CHECK_ERR(madvise(area, PAGE, MADV_FREE), EINVAL);
    CHECK_ERR(madvise(area, PAGE, MADV_COLD), EINVAL);
    CHECK_ERR(madvise(area, PAGE, MADV_PAGEOUT), EINVAL);
    CHECK_EQ(area[7 * PAGE], 'x');
    OK(madvise(area, PAGE, MADV_DONTNEED_LOCKED_));
    CHECK(area[0] == 0 && area[PAGE] == 'x');
    OK(munlockall());
    for (int good = MADV_NORMAL; good <= MADV_WILLNEED; good++)
        OK(madvise(area, 8 * PAGE, good));
    OK(madvise(area, 8 * PAGE, MADV_COLD));
    OK(madvise(area, 8 * PAGE, MADV_PAGEOUT));
    OK(madvise(area, 8 * PAGE, MADV_DONTDUMP));
    OK(madvise(area, 8 * PAGE, MADV_DODUMP));
    OK(madvise(area, 8 * PAGE, MADV_HUGEPAGE));
    OK(madvise(area, 8 * PAGE, MADV_NOHUGEPAGE));
    OK(madvise(area, 8 * PAGE, MADV_FREE));
    CHECK(area[7 * PAGE] == 'x' || area[7 * PAGE] == 0);
    int unknown[] = {5, 7, 26, 99, 102 + 50, -1};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        CHECK_ERR(madvise(area, PAGE, unknown[i]), EINVAL);
    CHECK_ERR(madvise(area + 1, PAGE, MADV_NORMAL), EINVAL);
    CHECK_ERR(madvise(area, ~0ul, MADV_NORMAL), EINVAL);
    OK(madvise(area, 0, MADV_DONTNEED));
    JOIN(CHILD({
        become_nobody(0);
        for (int poison = 100; poison <= 101; poison++)
            CHECK(madvise(area, PAGE, poison) < 0 && (errno == EPERM || errno == EINVAL));
    }));
    char *shared = map_at(NULL, 2 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK_ERR(madvise(shared, PAGE, MADV_FREE), EINVAL);
    CHECK_ERR(madvise(shared, PAGE, MADV_WIPEONFORK), EINVAL);
    memset(shared, 's', 2 * PAGE);
    OK(mlock(shared, PAGE));
    CHECK_ERR(madvise(shared, PAGE, MADV_REMOVE), EINVAL);
    OK(munlock(shared, PAGE));
    OK(madvise(shared, PAGE, MADV_REMOVE));
    CHECK(shared[0] == 0 && shared[PAGE] == 's');
    CHECK_ERR(madvise(area, PAGE, MADV_REMOVE), EINVAL);
    /* Marks for children, and taken back. */
    memset(area, 'y', 8 * PAGE);
    OK(madvise(area, PAGE, MADV_WIPEONFORK));
    OK(madvise(area + PAGE, PAGE, MADV_WIPEONFORK));
    OK(madvise(area + PAGE, PAGE, MADV_KEEPONFORK));
    OK(madvise(area + 2 * PAGE, PAGE, MADV_DONTFORK));
    OK(madvise(area + 2 * PAGE, PAGE, MADV_DOFORK));
    JOIN(CHILD(CHECK(area[0] == 0 && area[PAGE] == 'y' && area[2 * PAGE] == 'y')));
    OK(munmap(area + 4 * PAGE, PAGE));
    CHECK_ERR(madvise(area + 3 * PAGE, 3 * PAGE, MADV_DONTNEED), ENOMEM);
    CHECK(area[3 * PAGE] == 0 && area[5 * PAGE] == 0);
}

static void populating(void)
{
    char *area = map(64);
    OK(madvise(area, 16 * PAGE, MADV_POPULATE_READ));
    OK(madvise(area + 32 * PAGE, 16 * PAGE, MADV_POPULATE_WRITE));
    CHECK(is_resident(area + 15 * PAGE) && is_resident(area + 47 * PAGE));
    OK(mprotect(area, PAGE, PROT_READ));
    OK(madvise(area, PAGE, MADV_POPULATE_READ));
    CHECK_ERR(madvise(area, 2 * PAGE, MADV_POPULATE_WRITE), EINVAL);
    OK(mprotect(area, PAGE, PROT_NONE));
    CHECK_ERR(madvise(area, PAGE, MADV_POPULATE_READ), EINVAL);
    OK(munmap(area + 4 * PAGE, PAGE));
    CHECK_ERR(madvise(area + 3 * PAGE, 4 * PAGE, MADV_POPULATE_READ), ENOMEM);
    int fd = file_of("short", 1);
    char *over = map_at(NULL, 2 * PAGE, RW, MAP_PRIVATE, fd, 0);
    OK(madvise(over, PAGE, MADV_POPULATE_WRITE));
    CHECK_ERR(madvise(over, 2 * PAGE, MADV_POPULATE_READ), EFAULT);
    CHECK_EQ(over[0], 'a');
}

static void moved_but_kept(void)
{
    char *area = map(8);
    memset(area, 'm', 8 * PAGE);
    char *there = (char *)syscall(SYS_mremap, area + 2 * PAGE, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | 4, NULL);
    CHECK(there != MAP_FAILED && there[0] == 'm' && there[2 * PAGE - 1] == 'm');
    CHECK(area[2 * PAGE] == 0 && area[4 * PAGE - 1] == 0 && area[PAGE] == 'm' && area[4 * PAGE] == 'm');
    char *target = map(4);
    there = mremap(area, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | 4, target + PAGE);
    CHECK(there == target + PAGE && there[0] == 'm' && area[0] == 0 && target[0] == 0);
    CHECK_ERR(syscall(SYS_mremap, area, PAGE, 2 * PAGE, MREMAP_MAYMOVE | 4, NULL), EINVAL);
    CHECK_ERR(syscall(SYS_mremap, area, PAGE, PAGE, 4, NULL), EINVAL);
    CHECK_ERR(syscall(SYS_mremap, area, PAGE, PAGE, MREMAP_MAYMOVE | 4, area), EINVAL);
    CHECK_ERR(syscall(SYS_mremap, area, PAGE, PAGE, MREMAP_MAYMOVE | 8, NULL), EINVAL);
    CHECK_ERR((long)mremap(area, PAGE, PAGE, MREMAP_FIXED, target), EINVAL);
    CHECK_ERR((long)mremap(area, 0, PAGE, MREMAP_MAYMOVE), EINVAL);
    CHECK_ERR((long)mremap(area, PAGE, 0, MREMAP_MAYMOVE), EINVAL);
    CHECK_ERR((long)mremap(area, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target + 1), EINVAL);
    /* Two mappings cannot grow as one. */
    OK(mprotect(area + 4 * PAGE, PAGE, PROT_READ));
    CHECK_ERR((long)mremap(area + 3 * PAGE, 2 * PAGE, 20 * PAGE, MREMAP_MAYMOVE), EFAULT);
    /* Of a file the place that is left shows the file again. */
    char *shown = map_at(NULL, 2 * PAGE, RW, MAP_PRIVATE, file_of("kept", 2), 0);
    shown[0] = '!';
    there = (char *)syscall(SYS_mremap, shown, PAGE, PAGE, MREMAP_MAYMOVE | 4, NULL);
    CHECK(there != MAP_FAILED && there[0] == '!' && shown[0] == 'a' && shown[PAGE] == 'b');
}

static void parts_of_files(void)
{
    int fd = file_of("parts", 8);
    char *shown = map_at(NULL, 4 * PAGE, RW, MAP_SHARED, fd, 0);
    OK(remap_file_pages(shown + PAGE, 2 * PAGE, 0, 5, 0));
    CHECK(shown[0] == 'a' && shown[PAGE] == 'f' && shown[2 * PAGE] == 'g' && shown[3 * PAGE] == 'd');
    shown[PAGE] = 'F';
    char byte;
    CHECK_EQ(pread(fd, &byte, 1, 5 * PAGE), 1);
    CHECK_EQ(byte, 'F');
    CHECK_ERR(remap_file_pages(shown, PAGE, PROT_READ, 0, 0), EINVAL);
    CHECK_ERR(remap_file_pages(shown, 0, 0, 0, 0), EINVAL);
    CHECK_ERR(remap_file_pages(shown, PAGE, 0, -1, 0), EINVAL);
    CHECK_ERR(remap_file_pages(map(1), PAGE, 0, 0, 0), EINVAL);
    CHECK_ERR(remap_file_pages((void *)64, PAGE, 0, 0, 0), EINVAL);
}

static void sealing(void)
{
    char *area = map(8);
    memset(area, 'x', 8 * PAGE);
    if (syscall(SYS_mseal_, area, 0, 0) < 0)
        SKIP("no mseal");
    CHECK_ERR(syscall(SYS_mseal_, area, PAGE, 1), EINVAL);
    CHECK_ERR(syscall(SYS_mseal_, area + 1, PAGE, 0), EINVAL);
    CHECK_ERR(syscall(SYS_mseal_, area, ~0ul, 0), EINVAL);
    OK(munmap(area + 6 * PAGE, PAGE));
    CHECK_ERR(syscall(SYS_mseal_, area + 5 * PAGE, 3 * PAGE, 0), ENOMEM);
    OK(mprotect(area + 2 * PAGE, PAGE, PROT_READ));
    OK(syscall(SYS_mseal_, area + PAGE, 2 * PAGE, 0));
    OK(syscall(SYS_mseal_, area + PAGE, 2 * PAGE, 0));
    CHECK_ERR(munmap(area + PAGE, PAGE), EPERM);
    CHECK_ERR(mprotect(area + PAGE, PAGE, PROT_READ), EPERM);
    CHECK_ERR((long)mmap(area + 2 * PAGE, PAGE, RW, ANON | MAP_FIXED, -1, 0), EPERM);
    CHECK_ERR((long)mremap(area + PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EPERM);
    CHECK_ERR((long)mremap(area + 4 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, area + PAGE), EPERM);
    CHECK_ERR(madvise(area + 2 * PAGE, PAGE, MADV_DONTNEED), EPERM);
    OK(madvise(area + PAGE, PAGE, MADV_DONTNEED)); /* what it may write it may as well clear */
    CHECK(area[PAGE] == 0 && area[2 * PAGE] == 'x');
    JOIN(CHILD(CHECK_ERR(munmap(area + PAGE, PAGE), EPERM)));
    OK(munmap(area, PAGE));
}

static void edges(void)
{
    const unsigned long end = 0x7ffffffff000;
    CHECK_ERR((long)mmap((void *)end, PAGE, RW, ANON | MAP_FIXED, -1, 0), ENOMEM);
    CHECK_ERR((long)mmap((void *)(end - PAGE), 2 * PAGE, RW, ANON | MAP_FIXED, -1, 0), ENOMEM);
    CHECK_ERR((long)mmap(NULL, end + PAGE, PROT_NONE, ANON | MAP_NORESERVE, -1, 0), ENOMEM);
    CHECK_ERR((long)mmap(NULL, -1, PROT_NONE, ANON, -1, 0), ENOMEM);
    CHECK_ERR((long)mmap((void *)0xffff800000000000ul, PAGE, RW, ANON | MAP_FIXED, -1, 0), ENOMEM);
    /* The last page that there is; a sandbox on stub processes has fewer. */
    char *last = (char *)end - PAGE;
    while (mmap(last, PAGE, RW, ANON | MAP_FIXED, -1, 0) == MAP_FAILED) {
        CHECK_EQ(errno, ENOMEM);
        CHECK((unsigned long)last > end / 2);
        last -= 1ul << 30;
    }
    last[PAGE - 1] = 1;
    CHECK_ERR((long)mmap(last, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
    OK(munmap(last, PAGE));
    CHECK_ERR(munmap((void *)end, PAGE), EINVAL);
    JOIN(CHILD(become_nobody(0); CHECK_ERR((long)mmap(NULL, PAGE, RW, ANON | MAP_FIXED, -1, 0), EPERM)));
    CHECK_ERR((long)mmap(NULL, 0, RW, ANON, -1, 0), EINVAL);
    CHECK_ERR((long)mmap(NULL, PAGE, RW, MAP_ANONYMOUS, -1, 0), EINVAL);
    CHECK_ERR((long)mmap(NULL, PAGE, RW, MAP_SHARED_VALIDATE | MAP_ANONYMOUS, -1, 0), EINVAL);
    CHECK_ERR((long)mmap(NULL, PAGE, RW, MAP_PRIVATE, -1, 0), EBADF);
    int fd = file_of("edge", 1);
    CHECK_ERR((long)mmap(NULL, PAGE, RW, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0), EOPNOTSUPP);
    CHECK_ERR((long)mmap(NULL, PAGE, RW, MAP_SHARED_VALIDATE | 0x1000000, fd, 0), EOPNOTSUPP);
    CHECK_ERR((long)syscall(SYS_mmap, NULL, PAGE, RW, MAP_PRIVATE, fd, 1), EINVAL);
    CHECK_ERR((long)syscall(SYS_mmap, NULL, PAGE, RW, MAP_PRIVATE, fd, 0x7ffffffffffff000), EOVERFLOW);
    CHECK_ERR((long)syscall(SYS_mmap, NULL, PAGE, RW, MAP_PRIVATE | MAP_GROWSDOWN, fd, 0), EINVAL);
    CHECK_ERR((long)mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0), EINVAL);
    char *odd = (char *)syscall(SYS_mmap, NULL, PAGE, RW, ANON, -1, -PAGE); /* no file, no offset */
    CHECK((long)odd > 0);
    char *low = map_at(NULL, PAGE, RW, ANON | MAP_32BIT, -1, 0);
    CHECK((unsigned long)low < 1ul << 31);
    /* A hint that cannot be followed does not lead out of there. */
    for (int i = 0; i < 3; i++) {
        char *hints[] = {low, odd, (char *)(1ul << 31) - PAGE};
        char *other = map_at(hints[i], 2 * PAGE, RW, ANON | MAP_32BIT, -1, 0);
        CHECK(other != low && (unsigned long)other + 2 * PAGE <= 1ul << 31);
        OK(munmap(other, 2 * PAGE));
        CHECK(map_at(other, 2 * PAGE, RW, ANON | MAP_32BIT, -1, 0) == other);
    }
    CHECK_ERR((long)mmap(NULL, (1 << 30) + PAGE, PROT_NONE, ANON | MAP_NORESERVE | MAP_32BIT, -1, 0), ENOMEM);
    char *stack = map_at(NULL, 4 * PAGE, RW, ANON | MAP_GROWSDOWN, -1, 0);
    stack[0] = 1;
    /* There are no huge pages. */
    CHECK_ERR((long)mmap(NULL, 2 << 20, RW, ANON | MAP_HUGETLB, -1, 0), ENOMEM);
    CHECK_ERR((long)mmap(NULL, 2 << 20, RW, ANON | MAP_HUGETLB | 21 << 26, -1, 0), ENOMEM);
    CHECK_ERR((long)mmap(NULL, 2 << 20, RW, ANON | MAP_HUGETLB | 25 << 26, -1, 0), EINVAL);
    CHECK_ERR((long)mmap(NULL, 2 << 20, RW, MAP_PRIVATE | MAP_HUGETLB, fd, 0), EINVAL);
}

static void policies(void)
{
    unsigned long one = 1, two = 2, none = 0, got = 7;
    int mode = 7;
    if (syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0) < 0)
        SKIP("no memory policies");
    CHECK_EQ(mode, MPOL_DEFAULT);
    OK(syscall(SYS_get_mempolicy, NULL, &got, 64, NULL, MPOL_F_MEMS_ALLOWED));
    CHECK_EQ(got, 1);
    OK(syscall(SYS_set_mempolicy, MPOL_BIND, &one, 64));
    OK(syscall(SYS_get_mempolicy, &mode, &got, 64, NULL, 0));
    CHECK(mode == MPOL_BIND && got == 1);
    JOIN(CHILD(OK(syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0)); CHECK_EQ(mode, MPOL_BIND)));
    OK(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0));
    CHECK_ERR(syscall(SYS_set_mempolicy, MPOL_BIND, NULL, 0), EINVAL);
    CHECK_ERR(syscall(SYS_set_mempolicy, MPOL_BIND, &none, 64), EINVAL);
    CHECK_ERR(syscall(SYS_set_mempolicy, MPOL_BIND, &two, 64), EINVAL);
    CHECK_ERR(syscall(SYS_set_mempolicy, MPOL_DEFAULT, &one, 64), EINVAL);
    CHECK_ERR(syscall(SYS_set_mempolicy, 99, &one, 64), EINVAL);
    CHECK_ERR(syscall(SYS_set_mempolicy, MPOL_BIND, &one, 1 << 30), EINVAL);
    CHECK_ERR(syscall(SYS_set_mempolicy, MPOL_BIND, (void *)8, 64), EFAULT);
    CHECK_ERR(syscall(SYS_get_mempolicy, NULL, &got, 0, NULL, 0), EINVAL);
    CHECK_ERR(syscall(SYS_get_mempolicy, &mode, NULL, 0, &got, 0), EINVAL);
    CHECK_ERR(syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 8), EINVAL);
    CHECK_ERR(syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, MPOL_F_ADDR), EFAULT);
    char *area = map(4);
    OK(syscall(SYS_mbind, area, 2 * PAGE, MPOL_BIND, &one, 64, MPOL_MF_MOVE));
    OK(syscall(SYS_get_mempolicy, &mode, &got, 64, area + PAGE, MPOL_F_ADDR));
    CHECK(mode == MPOL_BIND && got == 1);
    OK(syscall(SYS_get_mempolicy, &mode, NULL, 0, area + 2 * PAGE, MPOL_F_ADDR));
    CHECK_EQ(mode, MPOL_DEFAULT);
    OK(syscall(SYS_get_mempolicy, &mode, NULL, 0, area, MPOL_F_ADDR | MPOL_F_NODE));
    CHECK_EQ(mode, 0);
    CHECK_ERR(syscall(SYS_mbind, area + 1, PAGE, MPOL_BIND, &one, 64, 0), EINVAL);
    CHECK_ERR(syscall(SYS_mbind, area, PAGE, MPOL_BIND, &one, 64, 64), EINVAL);
    OK(syscall(SYS_home_node, area, PAGE, 0, 0));
    CHECK_ERR(syscall(SYS_home_node, area, PAGE, 0, 1), EINVAL);
    CHECK_ERR(syscall(SYS_home_node, area, PAGE, 5000, 0), EINVAL);
    OK(munmap(area + 3 * PAGE, PAGE));
    CHECK_ERR(syscall(SYS_mbind, area, 4 * PAGE, MPOL_BIND, &one, 64, 0), EFAULT);
    /* Where pages are. */
    area[0] = 1;
    void *pages[3] = {area, area + 2 * PAGE, area + 3 * PAGE};
    int status[3] = {9, 9, 9}, nodes[3] = {0, 0, 5000};
    OK(madvise(area + 2 * PAGE, PAGE, MADV_DONTNEED));
    OK(syscall(SYS_move_pages, 0, 3, pages, NULL, status, 0));
    CHECK_EQ(status[0], 0);
    CHECK(!kernel_is(6, 12) || (status[1] == -ENOENT && status[2] == -EFAULT));
    OK(syscall(SYS_move_pages, 0, 1, pages, nodes, status, MPOL_MF_MOVE));
    CHECK_ERR(syscall(SYS_move_pages, 0, 1, pages, nodes + 2, status, MPOL_MF_MOVE), ENODEV);
    CHECK_ERR(syscall(SYS_move_pages, 0, 1, pages, NULL, status, 64), EINVAL);
    CHECK_ERR(syscall(SYS_move_pages, 0, 1, 8, NULL, status, 0), EFAULT);
    OK(syscall(SYS_migrate_pages, 0, 64, &one, &one));
    CHECK_ERR(syscall(SYS_migrate_pages, 0, 64, &one, &none), EINVAL);
    CHECK_ERR(syscall(SYS_migrate_pages, 1 << 22, 64, &one, &one), ESRCH);
}

/* Random and boundary arguments: whatever they answer, what is outside of the area stays. */
static void at_random(void)
{
    static const long calls[] = {SYS_mlock, SYS_munlock, SYS_mincore, SYS_madvise, SYS_mbind, SYS_get_mempolicy,
        SYS_move_pages, SYS_mremap, SYS_mlock2, SYS_remap_file_pages, SYS_home_node, SYS_mseal_, SYS_mprotect};
    char *room = map_at(NULL, 256 * PAGE, PROT_NONE, ANON | MAP_NORESERVE, -1, 0), *area = room + 128 * PAGE;
    char *witness = map(1);
    strcpy(witness, "here");
    JOIN(CHILD({
        uint64_t seed = 99;
        map_at(area, 32 * PAGE, RW, ANON | MAP_FIXED, -1, 0);
        for (long i = 0; i < scaled(4000); i++) {
            uint64_t args[6];
            for (int k = 0; k < 6; k++) {
                switch (next_random(&seed) % 6) {
                case 0: args[k] = (uint64_t)area + next_random(&seed) % 32 * PAGE; break;
                case 1: args[k] = next_random(&seed) % 33 * PAGE; break;
                case 2: args[k] = next_random(&seed) % 32; break;
                case 3: args[k] = (uint64_t)0 - next_random(&seed) % 3 * PAGE - next_random(&seed) % 2; break;
                case 4: args[k] = 0x7ffffffff000 - next_random(&seed) % 3 * PAGE; break;
                default: args[k] = (uint64_t)area + next_random(&seed) % (32 * PAGE);
                }
            }
            long call = calls[next_random(&seed) % (sizeof calls / sizeof *calls)];
            /* Ranges begin in the area and end in the room around it, or are no ranges. */
            args[0] = (uint64_t)area + next_random(&seed) % 32 * PAGE + (next_random(&seed) % 16 == 0);
            if (call == SYS_mremap)
                args[2] = args[2] % (64 * PAGE), args[3] &= ~(uint64_t)MREMAP_FIXED;
            if (args[1] > 32 * PAGE && args[1] < (uint64_t)0 - 3 * PAGE)
                args[1] %= 64 * PAGE;
            if (call == SYS_get_mempolicy)
                args[2] %= 1024;
            if (call == SYS_move_pages)
                args[0] = 0, args[1] %= 64;
            if (call == SYS_mincore)
                args[2] = (uint64_t)area;
            syscall(call, args[0], args[1], args[2], args[3], args[4], args[5]);
            if (i % 64 == 0)
                mmap(area, 32 * PAGE, RW, ANON | MAP_FIXED, -1, 0);
        }
        CHECK(!strcmp(witness, "here"));
    }));
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(locking),        TEST(locking_all), TEST(limits_of_locking), TEST(residency), TEST(advice),
        TEST(populating),     TEST(moved_but_kept), TEST(parts_of_files), TEST(sealing),   TEST(edges),
        TEST(policies),       TEST(at_random),
    };
    return RUN_TESTS("promises", tests, argc, argv);
}
