/* Memory: mappings, protections, faults and their signals, copy-on-write, file mappings, bad pointers. */
#include "check.h"
#include <limits.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>

enum { PAGE = 4096 };
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

static char *map_at(void *hint, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    char *address = mmap(hint, bytes, protection, flags, fd, offset);
    if (address == MAP_FAILED)
        FAIL("mmap of %zu bytes failed", bytes);
    return address;
}

static char *map(size_t bytes)
{
    return map_at(NULL, bytes, RW, ANON, -1, 0);
}

/* --- faults --- */

static sigjmp_buf resume;
static volatile int fault_signal, fault_code;
static void *volatile fault_address;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    fault_signal = signal;
    fault_code = info->si_code;
    fault_address = info->si_addr;
    siglongjmp(resume, 1);
}

static void catch_faults(void)
{
    static char stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    OK(sigaltstack(&alternate, NULL));
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    OK(sigaction(SIGSEGV, &action, NULL));
    OK(sigaction(SIGBUS, &action, NULL));
}

/* The statement faults with this signal, code and address. */
#define FAULTS(statement, signal, code, address)                                                                       \
    do {                                                                                                               \
        fault_signal = 0;                                                                                              \
        if (sigsetjmp(resume, 1) == 0) {                                                                               \
            statement;                                                                                                 \
        }                                                                                                              \
        CHECK_EQ(fault_signal, signal);                                                                                \
        CHECK_EQ(fault_code, code);                                                                                    \
        CHECK_EQ((uintptr_t)fault_address, (uintptr_t)(address));                                                      \
    } while (0)

/* One access of one byte, which the compiler knows nothing about. */
#define LOAD(address)                                                                                                  \
    ({                                                                                                                 \
        char byte_;                                                                                                    \
        __asm__ volatile("movb (%1), %0" : "=q"(byte_) : "r"((uintptr_t)(address)) : "memory");                        \
        (void)byte_;                                                                                                   \
    })
#define STORE(address) __asm__ volatile("movb $1, (%0)" : : "r"((uintptr_t)(address)) : "memory")

__attribute__((noinline)) static void load_is_denied(char *at)
{
    FAULTS(LOAD(at), SIGSEGV, SEGV_ACCERR, at);
}

__attribute__((noinline)) static void store_is_denied(char *at)
{
    FAULTS(STORE(at), SIGSEGV, SEGV_ACCERR, at);
}

static void unmapping(void)
{
    catch_faults();
    char *area = map(8 * PAGE);
    memset(area, 7, 8 * PAGE);
    OK(munmap(area + 2 * PAGE, 2 * PAGE));
    CHECK(area[2 * PAGE - 1] == 7 && area[4 * PAGE] == 7);
    FAULTS(LOAD(area + 2 * PAGE + 5), SIGSEGV, SEGV_MAPERR, area + 2 * PAGE + 5);
    FAULTS(STORE(area + 4 * PAGE - 1), SIGSEGV, SEGV_MAPERR, area + 4 * PAGE - 1);
    OK(munmap(area, 8 * PAGE)); /* over the hole */
    FAULTS(LOAD(area), SIGSEGV, SEGV_MAPERR, area);
    FAULTS(LOAD(area + 7 * PAGE), SIGSEGV, SEGV_MAPERR, area + 7 * PAGE);
    OK(munmap(area, 8 * PAGE)); /* nothing there is no error */
    CHECK_ERR(munmap(area + 1, PAGE), EINVAL);
    CHECK_ERR(munmap(area, 0), EINVAL);
    FAULTS(LOAD(16), SIGSEGV, SEGV_MAPERR, 16);
    CHECK_ERR((long)mmap(NULL, 0, RW, ANON, -1, 0), EINVAL);
    CHECK_ERR((long)mmap(NULL, PAGE, RW, MAP_PRIVATE, 99, 0), EBADF);
    CHECK_ERR((long)mmap(NULL, PAGE, RW, MAP_ANONYMOUS, -1, 0), EINVAL);
    CHECK_ERR((long)mmap((void *)1, PAGE, RW, ANON | MAP_FIXED, -1, 0), EINVAL);
    CHECK_ERR((long)mmap(NULL, 1UL << 47, RW, ANON, -1, 0), ENOMEM);
}

static void protection(void)
{
    catch_faults();
    char *area = map(6 * PAGE);
    memset(area, 1, 6 * PAGE);
    OK(mprotect(area + PAGE, PAGE, PROT_READ));
    OK(mprotect(area + 3 * PAGE, PAGE, PROT_NONE));
    LOAD(area + PAGE);
    FAULTS(STORE(area + PAGE + 9), SIGSEGV, SEGV_ACCERR, area + PAGE + 9);
    FAULTS(LOAD(area + 3 * PAGE), SIGSEGV, SEGV_ACCERR, area + 3 * PAGE);
    STORE(area + 2 * PAGE);
    STORE(area + 4 * PAGE);
    OK(mprotect(area, 6 * PAGE, RW));
    STORE(area + PAGE);
    CHECK_EQ(area[3 * PAGE + 1], 1); /* contents survived PROT_NONE */
    CHECK_ERR(mprotect(area + 1, PAGE, RW), EINVAL);
    CHECK_ERR(syscall(SYS_mprotect, area, PAGE, 1L << 32 | RW), EINVAL);
    OK(munmap(area + 5 * PAGE, PAGE));
    CHECK_ERR(mprotect(area + 4 * PAGE, 2 * PAGE, PROT_READ), ENOMEM);
    char *none = map_at(NULL, PAGE, PROT_NONE, ANON, -1, 0);
    FAULTS(LOAD(none), SIGSEGV, SEGV_ACCERR, none);
    /* Two accesses over a page border: the second page faults, and its address is reported. */
    char *border = map(2 * PAGE);
    OK(mprotect(border + PAGE, PAGE, PROT_NONE));
    FAULTS((void)*(volatile uint64_t *)(border + PAGE - 4), SIGSEGV, SEGV_ACCERR, border + PAGE);
}

/* Code can be run where PROT_EXEC says so, and nowhere else. */
static void execution(void)
{
    catch_faults();
    static const unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3}; /* mov eax, 42; ret */
    char *area = map(PAGE);
    memcpy(area, code, sizeof code);
    int (*function)(void) = (int (*)(void))(uintptr_t)area;
    FAULTS(function(), SIGSEGV, SEGV_ACCERR, area);
    OK(mprotect(area, PAGE, PROT_READ | PROT_EXEC));
    CHECK_EQ(function(), 42);
    FAULTS(STORE(area + 1), SIGSEGV, SEGV_ACCERR, area + 1);
    OK(mprotect(area, PAGE, RW | PROT_EXEC));
    area[1] = 43;
    CHECK_EQ(function(), 43);
    OK(mprotect(area, PAGE, PROT_READ));
    FAULTS(function(), SIGSEGV, SEGV_ACCERR, area);
    FAULTS(((void (*)(void))16UL)(), SIGSEGV, SEGV_MAPERR, 16);
}

static void fill(char *area, int pages, int seed)
{
    for (int i = 0; i < pages; i++)
        memset(area + i * PAGE, seed + i, PAGE);
}

static void check_filled(const char *area, int pages, int seed)
{
    for (int i = 0; i < pages; i++)
        CHECK(area[i * PAGE] == (char)(seed + i) && area[i * PAGE + PAGE - 1] == (char)(seed + i));
}

static void remapping(void)
{
    catch_faults();
    char *room = map(64 * PAGE);
    OK(munmap(room + 4 * PAGE, 60 * PAGE));
    fill(room, 4, 10);
    CHECK(mremap(room, 4 * PAGE, 8 * PAGE, 0) == room); /* room behind it */
    check_filled(room, 4, 10);
    CHECK_EQ(room[7 * PAGE], 0);
    map_at(room + 8 * PAGE, PAGE, RW, ANON | MAP_FIXED, -1, 0)[0] = 5;
    CHECK_ERR((long)mremap(room, 8 * PAGE, 16 * PAGE, MREMAP_FIXED), EINVAL);
    CHECK_ERR(syscall(SYS_mremap, room, 8 * PAGE, 16 * PAGE, 1L << 32 | MREMAP_MAYMOVE, NULL), EINVAL);
    /* A neighbour mapped with the same rights may merge; the range named must still move alone. */
    char *moved = mremap(room, 8 * PAGE, 32 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved != room);
    check_filled(moved, 4, 10);
    CHECK_EQ(moved[31 * PAGE], 0);
    FAULTS(LOAD(room), SIGSEGV, SEGV_MAPERR, room);
    CHECK_EQ(room[8 * PAGE], 5);
    CHECK(mremap(moved, 32 * PAGE, 2 * PAGE, 0) == moved);
    FAULTS(LOAD(moved + 2 * PAGE), SIGSEGV, SEGV_MAPERR, moved + 2 * PAGE);
    check_filled(moved, 2, 10);
    char *target = map(4 * PAGE);
    fill(target, 4, 90);
    CHECK(mremap(moved, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target + PAGE) == target + PAGE);
    check_filled(target + PAGE, 2, 10);
    CHECK(target[0] == 90 && target[3 * PAGE] == 93);
    FAULTS(LOAD(moved), SIGSEGV, SEGV_MAPERR, moved);
    CHECK_ERR((long)mremap(moved, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EFAULT);
    CHECK_ERR((long)mremap(target + 1, PAGE, PAGE, 0), EINVAL);
    CHECK_ERR((long)mremap(target, 2 * PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target), EINVAL);
    /* A middle part moves away and leaves a hole. */
    char *three = map(3 * PAGE);
    fill(three, 3, 50);
    char *middle = mremap(three + PAGE, PAGE, 8 * PAGE, MREMAP_MAYMOVE);
    CHECK(middle != MAP_FAILED && middle[0] == 51 && three[0] == 50 && three[2 * PAGE] == 52);
    FAULTS(LOAD(three + PAGE), SIGSEGV, SEGV_MAPERR, three + PAGE);
}

static void advice(void)
{
    char *area = map(8 * PAGE);
    fill(area, 8, 1);
    OK(madvise(area + 2 * PAGE, 3 * PAGE, MADV_DONTNEED));
    for (int i = 0; i < 8; i++)
        CHECK_EQ(area[i * PAGE + 17], i >= 2 && i < 5 ? 0 : i + 1);
    area[3 * PAGE] = 9;
    CHECK_EQ(area[3 * PAGE], 9);
    CHECK_ERR(madvise(area + 1, PAGE, MADV_DONTNEED), EINVAL);
    CHECK_ERR(madvise(area, PAGE, 9999), EINVAL);
    OK(madvise(area, 8 * PAGE, MADV_WILLNEED));
    OK(madvise(area, 8 * PAGE, MADV_SEQUENTIAL));
    OK(munmap(area + 6 * PAGE, PAGE));
    CHECK_ERR(madvise(area, 8 * PAGE, MADV_DONTNEED), ENOMEM);
    CHECK_EQ(area[7 * PAGE], 0); /* ...but the mapped parts were done */
    char *shared = map_at(NULL, 2 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(shared, 2, 3);
    OK(madvise(shared, 2 * PAGE, MADV_DONTNEED));
    check_filled(shared, 2, 3); /* shared contents stay */
    /* A child does not get what its parent keeps back, and gets zeros for what it asks to be wiped. */
    char *kept = map(2 * PAGE);
    fill(kept, 2, 20);
    if (madvise(kept, PAGE, MADV_WIPEONFORK) == 0)
        JOIN(CHILD(CHECK(kept[0] == 0 && kept[PAGE] == 21)));
    OK(madvise(kept, PAGE, MADV_DONTFORK));
    JOIN(CHILD({
        catch_faults();
        FAULTS(LOAD(kept), SIGSEGV, SEGV_MAPERR, kept);
        CHECK_EQ(kept[PAGE], 21);
    }));
}

static void program_break(void)
{
    catch_faults();
    char *start = sbrk(0);
    char *aligned = (char *)(((uintptr_t)start + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    OK(brk(aligned + 16 * PAGE));
    CHECK(sbrk(0) == aligned + 16 * PAGE);
    for (int i = 0; i < 16; i++)
        CHECK_EQ(aligned[i * PAGE], 0);
    fill(aligned, 16, 1);
    OK(brk(aligned + 4 * PAGE));
    check_filled(aligned, 4, 1);
    FAULTS(LOAD(aligned + 4 * PAGE), SIGSEGV, SEGV_MAPERR, aligned + 4 * PAGE);
    OK(brk(aligned + 6 * PAGE));
    CHECK_EQ(aligned[5 * PAGE], 0); /* fresh zeros, not the old bytes */
    CHECK_EQ(syscall(SYS_brk, 0), (long)(aligned + 6 * PAGE));
    CHECK_EQ(syscall(SYS_brk, 16), (long)(aligned + 6 * PAGE)); /* refused: the break stays */
    CHECK_EQ(syscall(SYS_brk, -1L), (long)(aligned + 6 * PAGE));
    OK(brk(start));
}

static void fixed(void)
{
    catch_faults();
    char *area = map(8 * PAGE);
    fill(area, 8, 1);
    CHECK(map_at(area + 2 * PAGE, 3 * PAGE, PROT_READ, ANON | MAP_FIXED, -1, 0) == area + 2 * PAGE);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(area[i * PAGE], i >= 2 && i < 5 ? 0 : i + 1);
    FAULTS(STORE(area + 4 * PAGE), SIGSEGV, SEGV_ACCERR, area + 4 * PAGE);
    STORE(area + 5 * PAGE);
    CHECK_ERR((long)mmap(area + 7 * PAGE, 2 * PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
    OK(munmap(area + 6 * PAGE, 2 * PAGE));
    CHECK(map_at(area + 6 * PAGE, 2 * PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == area + 6 * PAGE);
    CHECK_EQ(area[6 * PAGE], 0);
    /* A hint in the way is only a hint. */
    CHECK(map_at(area, PAGE, RW, ANON, -1, 0) != area);
    CHECK(area[0] == 1);
}

__attribute__((noinline)) static int eat_stack(int pages)
{
    volatile char page[PAGE];
    page[0] = (char)pages;
    page[PAGE - 1] = 1;
    return pages == 0 ? 0 : eat_stack(pages - 1) + page[PAGE - 1] + (page[0] - (char)pages);
}

#pragma GCC diagnostic push
#if __GNUC__ >= 12
#pragma GCC diagnostic ignored "-Winfinite-recursion"
#endif
__attribute__((noinline)) static int eat_all_stack(volatile char *above)
{
    volatile char page[PAGE];
    page[0] = above ? above[0] : 0;
    return eat_all_stack(page) + page[0];
}
#pragma GCC diagnostic pop

static void stack(void)
{
    JOIN(CHILD({ /* before the stack has grown */
        struct rlimit limit;
        OK(getrlimit(RLIMIT_STACK, &limit));
        limit.rlim_cur = 2 << 20;
        OK(setrlimit(RLIMIT_STACK, &limit));
        catch_faults();
        char here;
        fault_signal = 0;
        if (sigsetjmp(resume, 1) == 0)
            eat_all_stack(NULL);
        CHECK_EQ(fault_signal, SIGSEGV);
        long depth = (char *)(uintptr_t)&here - (char *)fault_address;
        CHECK(depth > (1 << 20) && depth < (3 << 20));
    }));
    /* No handler can run without a stack: the process dies of the fault. */
    CHECK_KILLED(CHILD({
                     struct rlimit limit;
                     OK(getrlimit(RLIMIT_STACK, &limit));
                     limit.rlim_cur = 1 << 20;
                     OK(setrlimit(RLIMIT_STACK, &limit));
                     struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
                     OK(sigaction(SIGSEGV, &action, NULL));
                     _exit(eat_all_stack(NULL));
                 }),
                 SIGSEGV);
    CHECK_EQ(eat_stack(1100), 1100); /* more than 4 MB */
    /* A guard page stops an overrun of a thread-like stack. */
    catch_faults();
    char *area = map(4 * PAGE);
    OK(mprotect(area, PAGE, PROT_NONE));
    FAULTS(STORE(area + PAGE - 1), SIGSEGV, SEGV_ACCERR, area + PAGE - 1);
}

static void huge_reservation(void)
{
    size_t bytes = 64UL << 30;
    char *area = map_at(NULL, bytes, RW, ANON | MAP_NORESERVE, -1, 0);
    for (size_t at = 0; at < bytes; at += bytes / 16)
        area[at + 123] = (char)(at / (bytes / 16) + 1);
    for (size_t at = 0; at < bytes; at += bytes / 16)
        CHECK(area[at + 123] == (char)(at / (bytes / 16) + 1) && area[at + 122] == 0);
    CHECK_EQ(area[bytes - 1], 0);
    OK(munmap(area, bytes));
}

static void shared_anonymous(void)
{
    volatile int *shared = (int *)map_at(NULL, 2 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int *private_copy = (int *)map(PAGE);
    shared[0] = 1;
    private_copy[0] = 1;
    pid_t pid = CHILD({
        CHECK_EQ(shared[0], 1);
        shared[0] = 2;
        shared[PAGE / 4] = 3; /* first touched here */
        private_copy[0] = 2;
    });
    JOIN(pid);
    CHECK_EQ(shared[0], 2);
    CHECK_EQ(shared[PAGE / 4], 3);
    CHECK_EQ(private_copy[0], 1);
}

static int make_file(const char *name, int pages)
{
    int fd = FD(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    char page[PAGE];
    for (int i = 0; i < pages; i++) {
        memset(page, 'a' + i, PAGE);
        CHECK_EQ(write(fd, page, PAGE), PAGE);
    }
    return fd;
}

static void private_file(void)
{
    catch_faults();
    int fd = make_file("file", 4);
    char *area = map_at(NULL, 4 * PAGE, RW, MAP_PRIVATE, fd, 0);
    char byte;
    check_filled(area, 4, 'a');
    area[PAGE] = 'Z';
    CHECK_EQ(pread(fd, &byte, 1, PAGE), 1);
    CHECK_EQ(byte, 'b');
    CHECK_EQ(pwrite(fd, "Y", 1, PAGE + 1), 1);
    CHECK_EQ(area[PAGE], 'Z');
    JOIN(CHILD({
        CHECK_EQ(area[PAGE], 'Z');
        area[PAGE] = 'X';
        area[0] = 'X';
    }));
    CHECK(area[PAGE] == 'Z' && area[0] == 'a');
    OK(madvise(area, 4 * PAGE, MADV_DONTNEED));
    CHECK(area[PAGE] == 'b' && area[PAGE + 1] == 'Y'); /* the file's bytes again */
    /* An offset, and a descriptor closed under the mapping. */
    char *tail = map_at(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 3 * PAGE);
    OK(close(fd));
    OK(unlink("file"));
    CHECK_EQ(tail[5], 'd');
    int read_only = FD(open("other", O_CREAT | O_RDONLY, 0644));
    CHECK_ERR((long)mmap(NULL, PAGE, RW, MAP_SHARED, read_only, 0), EACCES);
    CHECK_ERR((long)mmap(NULL, PAGE, PROT_READ, MAP_SHARED, read_only, 1), EINVAL);
    /* MAP_SHARED_VALIDATE: for files, and with flags that are known. */
    OK(munmap(map_at(NULL, PAGE, PROT_READ, 3, read_only, 0), PAGE));
    CHECK_ERR((long)mmap(NULL, PAGE, PROT_READ, 3 | 0x2000000, read_only, 0), EOPNOTSUPP);
    CHECK_ERR(syscall(SYS_mmap, NULL, PAGE, PROT_READ, 1L << 40 | 3, read_only, 0), EOPNOTSUPP);
    CHECK_ERR((long)mmap(NULL, PAGE, PROT_READ, 3 | MAP_ANONYMOUS, -1, 0), EINVAL);
    int write_only = FD(open("other", O_WRONLY));
    CHECK_ERR((long)mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, write_only, 0), EACCES);
    char *fixed_rights = map_at(NULL, PAGE, PROT_READ, MAP_SHARED, read_only, 0);
    CHECK_ERR(mprotect(fixed_rights, PAGE, RW), EACCES);
    int directory = FD(open(".", O_RDONLY));
    CHECK_ERR((long)mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, directory, 0), ENODEV);
    char *zeros = map_at(NULL, PAGE, RW, MAP_PRIVATE, FD(open("/dev/zero", O_RDWR)), 0);
    CHECK_EQ(zeros[99], 0);
    STORE(zeros);
}

static void shared_file(void)
{
    int fd = make_file("file", 4);
    char *area = map_at(NULL, 4 * PAGE, RW, MAP_SHARED, fd, 0);
    char *other = map_at(NULL, PAGE, PROT_READ, MAP_SHARED, fd, PAGE);
    char byte;
    area[PAGE + 3] = '1';
    CHECK_EQ(pread(fd, &byte, 1, PAGE + 3), 1);
    CHECK_EQ(byte, '1');
    CHECK_EQ(other[3], '1');
    CHECK_EQ(pwrite(fd, "2", 1, PAGE + 4), 1);
    CHECK(area[PAGE + 4] == '2' && other[4] == '2');
    JOIN(CHILD({
        CHECK_EQ(area[PAGE + 3], '1');
        area[2 * PAGE] = '3';
        CHECK_EQ(pwrite(fd, "4", 1, 3 * PAGE), 1);
    }));
    CHECK(area[2 * PAGE] == '3' && area[3 * PAGE] == '4');
    OK(msync(area, 4 * PAGE, MS_SYNC));
    OK(msync(area, 4 * PAGE, MS_ASYNC));
    CHECK_ERR(msync(area + 1, PAGE, MS_SYNC), EINVAL);
    CHECK_ERR(msync(area, PAGE, MS_SYNC | MS_ASYNC), EINVAL);
    OK(munmap(area, 4 * PAGE));
    CHECK_ERR(msync(area, PAGE, MS_SYNC), ENOMEM);
    int again = FD(open("file", O_RDONLY));
    CHECK_EQ(pread(again, &byte, 1, 2 * PAGE), 1);
    CHECK_EQ(byte, '3');
}

static void end_of_file(void)
{
    catch_faults();
    int fd = make_file("file", 2);
    OK(ftruncate(fd, PAGE + 100));
    char *area = map_at(NULL, 4 * PAGE, RW, MAP_SHARED, fd, 0);
    CHECK(area[PAGE + 99] == 'b' && area[PAGE + 100] == 0); /* zeros up to the page's end */
    FAULTS(LOAD(area + 2 * PAGE), SIGBUS, BUS_ADRERR, area + 2 * PAGE);
    FAULTS(STORE(area + 3 * PAGE + 7), SIGBUS, BUS_ADRERR, area + 3 * PAGE + 7);
    FAULTS(LOAD(area + 4 * PAGE + 1 - PAGE), SIGBUS, BUS_ADRERR, area + 3 * PAGE + 1);
    CHECK_ERR(write(FD(open("out", O_CREAT | O_WRONLY, 0644)), area + 2 * PAGE, 1), EFAULT);
    OK(ftruncate(fd, 4 * PAGE)); /* growing makes the pages appear */
    CHECK_EQ(area[3 * PAGE], 0);
    area[3 * PAGE] = 'q';
    OK(ftruncate(fd, PAGE)); /* shrinking takes touched pages away */
    FAULTS(LOAD(area + 3 * PAGE), SIGBUS, BUS_ADRERR, area + 3 * PAGE);
    FAULTS(LOAD(area + PAGE), SIGBUS, BUS_ADRERR, area + PAGE);
    CHECK_EQ(area[0], 'a');
    OK(ftruncate(fd, 4 * PAGE));
    CHECK_EQ(area[3 * PAGE], 0);
    /* Private copies of what is cut off go too. */
    char *copy = map_at(NULL, 2 * PAGE, RW, MAP_PRIVATE, fd, 0);
    copy[PAGE] = 'c';
    OK(ftruncate(fd, PAGE));
    FAULTS(LOAD(copy + PAGE), SIGBUS, BUS_ADRERR, copy + PAGE);
}

static void bad_pointers(void)
{
    int fd = make_file("file", 1), pipes[2];
    OK(pipe(pipes));
    char *read_only = map_at(NULL, PAGE, PROT_READ, ANON, -1, 0);
    char *hole = map(2 * PAGE) + PAGE;
    OK(munmap(hole, PAGE));
    void *bad[] = {hole, (void *)8, (void *)-1L, (void *)-4096L, (void *)0x7ffffffff000, (void *)0x800000000000,
                   (void *)0xffff800000000000, (void *)0xffffffff81000000};
    struct stat info;
    struct timespec time = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_ERR(pread(fd, bad[i], 10, 0), EFAULT);
        CHECK_ERR(pwrite(fd, bad[i], 10, 0), EFAULT);
        CHECK_ERR(write(pipes[1], bad[i], 10), EFAULT);
        CHECK_ERR(syscall(SYS_stat, bad[i], &info), EFAULT);
        CHECK_ERR(syscall(SYS_stat, "file", bad[i]), EFAULT);
        CHECK_ERR(syscall(SYS_open, bad[i], O_RDONLY), EFAULT);
        CHECK_ERR(syscall(SYS_uname, bad[i]), EFAULT);
        CHECK_ERR(syscall(SYS_pipe2, bad[i], 0), EFAULT);
        CHECK_ERR(syscall(SYS_nanosleep, bad[i], &time), EFAULT);
        CHECK_ERR(syscall(SYS_rt_sigaction, SIGUSR1, bad[i], NULL, 8), EFAULT);
        CHECK_ERR(syscall(SYS_rt_sigprocmask, SIG_BLOCK, bad[i], NULL, 8), EFAULT);
        CHECK_ERR(syscall(SYS_execve, bad[i], NULL, NULL), EFAULT);
        CHECK_ERR(syscall(SYS_readlink, "/proc/self/exe", bad[i], 100), EFAULT);
        CHECK_ERR(syscall(SYS_futex, bad[i], 0, 0, NULL), (uintptr_t)bad[i] % 4 ? EINVAL : EFAULT);
        CHECK_ERR(syscall(SYS_poll, bad[i], 1, 0), EFAULT);
        CHECK_ERR(syscall(SYS_getrlimit, RLIMIT_NOFILE, bad[i]), EFAULT);
    }
    CHECK_ERR(pread(fd, read_only, 10, 0), EFAULT);
    CHECK_EQ(write(pipes[1], "0123456789", 10), 10);
    CHECK_ERR(read(pipes[0], read_only, 10), EFAULT);
    /* Partly good memory: as much as can be done is done. */
    CHECK_EQ(pread(fd, hole - 5, 10, 0), 5);
    CHECK_EQ(memcmp(hole - 5, "aaaaa", 5), 0);
    memcpy(hole - 3, "xyz", 3);
    CHECK_EQ(pwrite(fd, hole - 3, 10, 0), 3);
    struct iovec parts[2] = {{hole - 2, 2}, {hole, 5}};
    CHECK_EQ(pwritev(fd, parts, 2, 0), 2);
    strcpy(hole - 5, "file"); /* a name that ends at the last mapped byte */
    OK(stat(hole - 5, &info));
    memcpy(hole - 4, "file", 4); /* ...and one that does not end */
    CHECK_ERR(stat(hole - 4, &info), EFAULT);
    CHECK_ERR(syscall(SYS_writev, fd, parts, -1), EINVAL);
    CHECK_ERR(syscall(SYS_writev, fd, bad[1], 1), EFAULT);
}

static void residency(void)
{
    char *wide = map(64 * PAGE); /* a kernel may bring in a few pages around the touched one, never all */
    unsigned char all[64];
    wide[PAGE] = 1;
    OK(mincore(wide, 64 * PAGE, all));
    CHECK_EQ(all[1] & 1, 1);
    CHECK_EQ(all[40] & 1, 0);
    char *area = map(4 * PAGE);
    unsigned char present[4];
    CHECK_ERR(mincore(area + 1, PAGE, present), EINVAL);
    OK(munmap(area + 3 * PAGE, PAGE));
    CHECK_ERR(mincore(area, 4 * PAGE, present), ENOMEM);
    OK(mlock(area, 2 * PAGE));
    OK(munlock(area, 2 * PAGE));
    CHECK_ERR(mlock(area, 4 * PAGE), ENOMEM);
    char *populated = map_at(NULL, 8 * PAGE, RW, ANON | MAP_POPULATE, -1, 0);
    OK(mincore(populated, 8 * PAGE, all));
    for (int i = 0; i < 8; i++)
        CHECK_EQ(all[i] & 1, 1);
}

/* /proc/self/maps tells the truth about a mapping. */
static void maps_file(void)
{
    char *area = map_at(NULL, 3 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    OK(mprotect(area + PAGE, PAGE, PROT_READ | PROT_EXEC));
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    char line[PATH_MAX + 128], rights[8];
    unsigned long from, to, last = 0;
    int found = 0, stack_seen = 0;
    while (fgets(line, sizeof line, maps)) {
        CHECK_EQ(sscanf(line, "%lx-%lx %7s", &from, &to, rights), 3);
        CHECK(from >= last && to > from);
        last = to;
        stack_seen |= strstr(line, "[stack]") != NULL;
        if (from == (unsigned long)area + PAGE) {
            CHECK_EQ(to, from + PAGE);
            CHECK(strcmp(rights, "r-xs") == 0);
            found = 1;
        }
    }
    CHECK(found && stack_seen);
    fclose(maps);
}

/* Many small mappings with alternating rights, changed at random and compared with a model. */
static void model(void)
{
    catch_faults();
    enum { PAGES = 64 };
    char *area = map(PAGES * PAGE);
    int rights[PAGES], value[PAGES] = {0};
    uint64_t seed = 12345;
    for (int i = 0; i < PAGES; i++)
        rights[i] = RW;
    for (long round = 0; round < scaled(2000); round++) {
        int from = (int)(next_random(&seed) % PAGES), count = 1 + (int)(next_random(&seed) % (PAGES - from));
        static const int choices[] = {RW, PROT_READ, PROT_NONE, -1};
        int choice = choices[next_random(&seed) % 4];
        if (choice < 0) {
            map_at(area + from * PAGE, count * PAGE, RW, ANON | MAP_FIXED, -1, 0);
            for (int i = from; i < from + count; i++)
                rights[i] = RW, value[i] = 0;
        } else {
            OK(mprotect(area + from * PAGE, count * PAGE, choice));
            for (int i = from; i < from + count; i++)
                rights[i] = choice;
        }
        for (int tries = 0; tries < 4; tries++) {
            int page = (int)(next_random(&seed) % PAGES);
            char *at = area + page * PAGE;
            if (rights[page] == PROT_NONE) {
                load_is_denied(at);
            } else {
                CHECK_EQ(*(volatile char *)at, value[page]);
                if (rights[page] == PROT_READ)
                    store_is_denied(at);
                else
                    *(volatile char *)at = (char)(value[page] = (int)(round % 100));
            }
        }
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(unmapping),     TEST(protection),       TEST(execution),        TEST(remapping),    TEST(advice),
        TEST(program_break), TEST(fixed),            TEST(stack),            TEST(huge_reservation),
        TEST(shared_anonymous), TEST(private_file),  TEST(shared_file),      TEST(end_of_file),
        TEST(bad_pointers),  TEST(residency),        TEST(maps_file),        TEST(model),
    };
    return RUN_TESTS("mem", tests, argc, argv);
}
