/* What handlers of faults are told: signal, code, address, and the processor's vector and error code (sigaction(2)). */
#include "check.h"
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { PAGE = 4096, PRESENT = 1, WRITE = 2, USER = 4, FETCH = 16, PROTECTION = 13, PAGE_FAULT = 14 };

static sigjmp_buf back;
static volatile int signal_, code;
static void *volatile at;
static volatile long vector, error;

static void note(int number, siginfo_t *info, void *context)
{
    const greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    signal_ = number;
    code = info->si_code;
    at = info->si_addr;
    vector = registers[REG_TRAPNO];
    error = registers[REG_ERR] & 0xffff;
    siglongjmp(back, 1);
}

static void handle(void)
{
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_NODEFER};
    int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        OK(sigaction(signals[i], &action, NULL));
}

/* Runs the statement, which faults so. */
#define FAULTS(want_signal, want_code, want_vector, want_error, ...)                                                   \
    do {                                                                                                               \
        signal_ = 0;                                                                                                   \
        if (!sigsetjmp(back, 1)) {                                                                                     \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
        CHECK_EQ(signal_, want_signal);                                                                                \
        CHECK_EQ(code, want_code);                                                                                     \
        CHECK_EQ(vector, want_vector);                                                                                 \
        CHECK_EQ(error, want_error);                                                                                   \
    } while (0)

static void look(volatile char *from)
{
    (void)*from;
}

static volatile char *map(int prot, int flags, int fd, size_t bytes)
{
    void *place = mmap(NULL, bytes, prot, flags, fd, 0);
    CHECK(place != MAP_FAILED);
    return place;
}

static void anonymous_memory(void)
{
    handle();
    volatile char *page = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, PAGE);
    page[0] = 1;
    OK(mprotect((void *)page, PAGE, PROT_READ));
    FAULTS(SIGSEGV, SEGV_ACCERR, PAGE_FAULT, USER | WRITE | PRESENT, page[0] = 2);
    CHECK(at == page);
    FAULTS(SIGSEGV, SEGV_ACCERR, PAGE_FAULT, USER | FETCH | PRESENT, ((void (*)(void))page)());
    /* What may not be read is not shown to be there. */
    OK(mprotect((void *)page, PAGE, PROT_NONE));
    FAULTS(SIGSEGV, SEGV_ACCERR, PAGE_FAULT, USER, look(page));
    FAULTS(SIGSEGV, SEGV_ACCERR, PAGE_FAULT, USER | WRITE, page[0] = 2);
    OK(mprotect((void *)page, PAGE, PROT_READ));
    FAULTS(SIGSEGV, SEGV_ACCERR, PAGE_FAULT, USER | WRITE | PRESENT, page[0] = 2);
    CHECK_EQ(page[0], 1);
    JOIN(CHILD(FAULTS(SIGSEGV, SEGV_ACCERR, PAGE_FAULT, USER | WRITE | PRESENT, page[0] = 2)));
    OK(munmap((void *)page, PAGE));
    FAULTS(SIGSEGV, SEGV_MAPERR, PAGE_FAULT, USER, look(page));
    FAULTS(SIGSEGV, SEGV_MAPERR, PAGE_FAULT, USER | WRITE, page[0] = 1);
    /* What nobody has touched is not there yet. */
    page = map(PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, PAGE);
    FAULTS(SIGSEGV, SEGV_ACCERR, PAGE_FAULT, USER | WRITE, page[0] = 1);
    look(page);
    FAULTS(SIGSEGV, SEGV_ACCERR, PAGE_FAULT, USER | WRITE | PRESENT, page[0] = 1);
}

static void files(int fd)
{
    handle();
    OK(ftruncate(fd, 100));
    volatile char *page = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd, 2 * PAGE);
    page[0] = 1;
    volatile char *copy = map(PROT_READ, MAP_SHARED, fd, PAGE);
    FAULTS(SIGSEGV, SEGV_ACCERR, PAGE_FAULT, USER | WRITE, copy[0] = 1);
    look(copy);
    FAULTS(SIGSEGV, SEGV_ACCERR, PAGE_FAULT, USER | WRITE | PRESENT, copy[0] = 1);
    FAULTS(SIGBUS, BUS_ADRERR, PAGE_FAULT, USER, look(page + PAGE));
    CHECK(at == page + PAGE);
    OK(ftruncate(fd, 0));
    FAULTS(SIGBUS, BUS_ADRERR, PAGE_FAULT, USER, look(page));
}

static void files_in_memory(void)
{
    int fd = FD(memfd_create("faults", 0));
    files(fd);
    OK(ftruncate(fd, 100));
    volatile char *page = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd, PAGE);
    page[0] = 1;
    OK(ftruncate(fd, 0));
    FAULTS(SIGBUS, BUS_ADRERR, PAGE_FAULT, USER | WRITE, page[0] = 1);
}

static void files_on_disk(void)
{
    files(FD(open("file", O_RDWR | O_CREAT, 0600)));
}

static void where_no_program_is(void)
{
    handle();
    FAULTS(SIGSEGV, SEGV_MAPERR, PAGE_FAULT, USER | PRESENT, look((char *)0xffffffff80000000));
    FAULTS(SIGSEGV, SEGV_MAPERR, PAGE_FAULT, USER | WRITE | PRESENT, *(volatile char *)0xffff888000000000 = 1);
    FAULTS(SIGSEGV, SI_KERNEL, PROTECTION, 0, look((char *)0x8000000000000000));
}

static void instructions(void)
{
    handle();
    FAULTS(SIGILL, ILL_ILLOPN, 6, 0, asm volatile("ud2"));
    FAULTS(SIGTRAP, SI_KERNEL, 3, 0, asm volatile("int3"));
    FAULTS(SIGSEGV, SI_KERNEL, PROTECTION, 0, asm volatile("hlt"));
    FAULTS(SIGSEGV, SI_KERNEL, PROTECTION, error, asm volatile("int $5"));
    /* QEMU's emulation takes the size of an entry for what it is multiplied by. */
    CHECK(error == 5 * 8 + 2 || error == 5 * 16 + 2);
    FAULTS(SIGTRAP, TRAP_TRACE, 1, 0,
           asm volatile("pushf; orl $0x100, (%%rsp); popf; nop; nop" ::: "memory", "cc"));
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(anonymous_memory),    TEST(files_in_memory), TEST(files_on_disk),
        TEST(where_no_program_is), TEST(instructions),
    };
    return RUN_TESTS("faults", tests, argc, argv);
}
