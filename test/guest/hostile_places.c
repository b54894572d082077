/*
 * Masks of CPUs, seals and programs under attack: random calls by processes that are killed in the middle. Afterwards nothing is left
 * of what they did: a file that was run can be written, one that was written can be run, and every CPU runs whoever is bound to it.
 *
 * Arguments: seconds (8), seed (the time).
 */
#include "random_calls.h"
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>

enum { WORKERS = 10, PAGE = 4096, FILES = 3 };

static const char *const names[FILES] = {"a", "b", "/dev/shm/hostile_places"};

static unsigned long odd_mask(void)
{
    static const unsigned long border[] = {0, 1, 2, 3, ULONG_MAX, LONG_MAX, 1ul << 15, 1ul << 63};
    return any(2) ? border[any(sizeof border / sizeof *border)] : next_random(&state) >> any(64);
}

static void *spins(void *unused)
{
    for (;;) {
        if (any(3) == 0)
            usleep((unsigned)any(300));
        for (volatile int i = 0; i < 20000; i++)
            ;
    }
    return unused;
}

static void bind_somebody(void)
{
    unsigned long mask[3] = {odd_mask(), odd_mask(), 0};
    pid_t tid = any(3) == 0 ? 0 : getpid() + (pid_t)any(200) - 100;
    syscall(SYS_sched_setaffinity, tid, any(4) ? 8 : any(30), any(20) ? mask : NULL);
    syscall(SYS_sched_getaffinity, tid, 8, mask);
}

static void run_or_write(void)
{
    const char *name = names[any(FILES)];
    char *arguments[] = {"hostile_places", "--end", NULL}, *none[] = {NULL};
    switch (any(6)) {
    case 0:
        truncate(name, (off_t)(1 << 30)); /* sparse, and the program stays whole */
        break;
    case 1: {
        int fd = open(name, O_RDWR);
        void *at = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        usleep((unsigned)any(500));
        if (at != MAP_FAILED && any(2))
            munmap(at, PAGE);
        close(fd);
        break;
    }
    case 2:
        close(open(name, any(2) ? O_WRONLY : O_RDONLY));
        break;
    default: {
        pid_t child = any(2) ? fork() : vfork();
        if (child == 0) {
            execve(name, arguments, none);
            _exit(1);
        }
        if (any(2))
            kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    }
}

static int memory = -1;

static void *maps(void *unused)
{
    for (;;) {
        char *at = mmap(NULL, PAGE, (int)any(4), MAP_SHARED, memory, 0);
        if (at == MAP_FAILED)
            continue;
        mprotect(at, PAGE, PROT_READ | PROT_WRITE);
        remap_file_pages(at, PAGE, 0, any(3), 0);
        madvise(at, PAGE, (int)any(30));
        size_t size = PAGE * (1 + any(3));
        char *moved = mremap(at, PAGE, size, MREMAP_MAYMOVE);
        if (moved != MAP_FAILED)
            munmap(moved, size);
        else
            munmap(at, PAGE);
    }
    return unused;
}

static void seal(void)
{
    if (memory < 0 || any(4) == 0) {
        close(memory);
        memory = FD(memfd_create("x", MFD_ALLOW_SEALING));
        ftruncate(memory, 3 * PAGE);
    }
    bool sealed = fcntl(memory, F_ADD_SEALS, (int)(any(3) ? 1ul << any(5) : any(64))) == 0;
    if (sealed && fcntl(memory, F_GET_SEALS) & F_SEAL_WRITE) {
        /* Nothing writes to it from here on. */
        char before[PAGE] = "", after[PAGE] = "";
        ssize_t had = pread(memory, before, PAGE, 0);
        usleep((unsigned)any(100));
        CHECK_EQ(pread(memory, after, PAGE, 0), had);
        CHECK(!memcmp(before, after, PAGE));
    }
}

static void work(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pthread_t thread;
    memory = FD(memfd_create("x", MFD_ALLOW_SEALING));
    PT(pthread_create(&thread, NULL, spins, NULL));
    PT(pthread_create(&thread, NULL, maps, NULL));
    for (;;)
        switch (any(3)) {
        case 0:
            bind_somebody();
            break;
        case 1:
            run_or_write();
            break;
        default:
            seal();
        }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--end") == 0)
        return 0;
    struct campaign campaign = campaign_of(argc, argv, 8);
    unsigned long all = 0;
    CHECK(syscall(SYS_sched_getaffinity, 0, sizeof all, &all) > 0);
    char directory[] = "/tmp/hostile_places.XXXXXX";
    CHECK(mkdtemp(directory) != NULL);
    OK(chdir(directory));
    for (int i = 0; i < FILES; i++)
        copy_program_to(names[i]);
    attack(campaign, WORKERS, work);
    char *arguments[] = {"hostile_places", "--end", NULL}, *none[] = {NULL};
    for (int i = 0; i < FILES; i++) {
        /* The last of those that ran it may end a little later. */
        int writer;
        for (int turn = 0; (writer = open(names[i], O_WRONLY)) < 0 && turn < 500; turn++)
            sleep_ms(20);
        FD(writer);
        JOIN(CHILD(CHECK_ERR(execve(names[i], arguments, none), ETXTBSY)));
        close(writer);
        JOIN(CHILD({
            execve(names[i], arguments, none);
            FAIL("execve");
        }));
        OK(unlink(names[i]));
    }
    OK(rmdir(directory));
    OK(syscall(SYS_sched_setaffinity, 0, sizeof all, &all));
    for (int cpu = 0; cpu < 64; cpu++) {
        unsigned long mask = 1ul << cpu;
        unsigned here = 99;
        if (!(all & mask))
            continue;
        OK(syscall(SYS_sched_setaffinity, 0, sizeof mask, &mask));
        OK(syscall(SYS_getcpu, &here, NULL, NULL));
        CHECK_EQ(here, cpu);
    }
    puts("ok hostile_places");
    return 0;
}
