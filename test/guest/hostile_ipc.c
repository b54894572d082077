/*
 * System V objects and message queues under attack: random and boundary arguments, kills in the middle, forks, removals
 * while others wait, thousands of ids. In the end everything can be removed, and nothing is left.
 *
 *   hostile_ipc [SECONDS] [SEED]
 *
 * It removes objects that it has not made, so it runs in sandboxes alone.
 */
#include "random_calls.h"
#include <limits.h>
#include <mqueue.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/vfs.h>

enum { WORKERS = 12, KEYS = 6, PAGE = 4096, MOST_OPS = 600 };

/* A number that is often at a border. */
static long odd(void)
{
    static const long border[] = {0,       1,         -1,      2,        INT_MAX, INT_MIN,  LONG_MAX, LONG_MIN,
                                  UINT_MAX, 32767,    32768,   -32768,   65535,   PAGE,     PAGE - 1, PAGE + 1,
                                  1L << 47, -(1L << 47), 1L << 31, 1L << 15, 8192,    8193,     16384,    500};
    switch (any(3)) {
    case 0:
        return border[any(sizeof border / sizeof *border)];
    case 1:
        return (long)any(100);
    default:
        return (long)next_random(&state) >> any(64);
    }
}

static char *scratch;

/* An address: mostly good, at the end of what is mapped, or bad. */
static void *place(void)
{
    switch (any(6)) {
    case 0:
        return NULL;
    case 1:
        return (void *)odd();
    case 2:
        return scratch + 16 * PAGE - any(64);
    default:
        return scratch + any(PAGE) * 8;
    }
}

static key_t key(void)
{
    return any(8) == 0 ? IPC_PRIVATE : (key_t)(0x1000 + any(KEYS));
}

static int flags(void)
{
    return (int)(any(4) ? IPC_CREAT | 0666 : (unsigned long)odd());
}

/* The id of an object of this kind that there may be. */
static int id(int kind)
{
    switch (any(4)) {
    case 0:
        return (int)odd();
    case 1:
        return (int)(any(64) << 15 | any(64));
    default:
        return kind == 0 ? shmget(key(), 0, 0) : kind == 1 ? semget(key(), 0, 0) : msgget(key(), 0);
    }
}

static void shared_memory(void)
{
    static void *attached[16];
    switch (any(8)) {
    case 0:
        shmget(key(), any(3) ? any(64 * PAGE) : (size_t)odd(), flags());
        break;
    case 1:
    case 2: {
        unsigned at = (unsigned)any(16);
        char *got = shmat(id(0), any(3) ? NULL : place(), any(3) ? 0 : (int)odd() & ~SHM_REMAP);
        if (got == (void *)-1)
            break;
        if (attached[at])
            shmdt(attached[at]);
        attached[at] = got;
        if (any(2))
            madvise(got, PAGE, MADV_WILLNEED);
        if (any(4) == 0)
            munmap(got + PAGE, PAGE);
        if (any(4) == 0)
            mremap(got, PAGE, 2 * PAGE, any(2) ? MREMAP_MAYMOVE : 0);
        break;
    }
    case 3:
        shmdt(any(2) ? attached[any(16)] : place());
        break;
    case 4:
        syscall(SYS_shmctl, id(0), IPC_RMID, place());
        break;
    case 5: {
        /* A file's bytes by way of the kernel: a page that is gone is EFAULT, and no signal. */
        void *at = attached[any(16)];
        int fd = open("/proc/self/stat", O_RDONLY);
        if (at && fd >= 0 && read(fd, at, 100) < 0)
            errno = 0;
        close(fd);
        break;
    }
    default:
        syscall(SYS_shmctl, id(0), any(3) ? (long)any(17) : odd(), place());
    }
}

static void semaphores(void)
{
    static struct sembuf ops[MOST_OPS];
    long count = any(3) ? 1 + (long)any(4) : odd();
    for (int i = 0; i < MOST_OPS && i < 8; i++)
        ops[i] = (struct sembuf){(unsigned short)(any(10) ? any(4) : (uint64_t)odd()),
                                 (short)(any(10) ? (long)any(5) - 2 : odd()),
                                 (short)(any(2) ? SEM_UNDO : any(4) ? 0 : odd())};
    struct timespec soon = {0, (long)any(2000000)}, strange = {odd(), odd()};
    switch (any(6)) {
    case 0:
        semget(key(), any(4) ? (int)any(5) : (int)odd(), flags());
        break;
    case 1:
    case 2:
        syscall(SYS_semtimedop, id(1), any(16) ? (void *)ops : place(), count, any(20) ? &soon : &strange);
        break;
    case 3:
        if (any(3) == 0)
            syscall(SYS_semctl, id(1), 0, IPC_RMID, 0);
        break;
    default:
        syscall(SYS_semctl, id(1), any(3) ? (long)any(4) : odd(), any(4) ? (long)any(21) : odd(),
                any(2) ? (long)place() : odd());
    }
}

static void messages(void)
{
    long size = any(3) ? (long)any(9000) : odd();
    int how = any(3) ? IPC_NOWAIT : (int)odd() | IPC_NOWAIT;
    switch (any(6)) {
    case 0:
        msgget(key(), flags());
        break;
    case 1:
    case 2:
        *(long *)scratch = any(8) ? 1 + (long)any(4) : odd();
        syscall(SYS_msgsnd, id(2), any(8) ? scratch : place(), size, how);
        break;
    case 3:
        syscall(SYS_msgrcv, id(2), place(), size, any(2) ? (long)any(5) - 2 : odd(), how);
        break;
    case 4:
        if (any(3) == 0)
            syscall(SYS_msgctl, id(2), IPC_RMID, 0);
        break;
    default:
        syscall(SYS_msgctl, id(2), any(4) ? (long)any(14) : odd(), place());
    }
}

static void queues(void)
{
    static int open_queues[8];
    char name[16];
    snprintf(name, sizeof name, "q%d", (int)any(KEYS));
    struct mq_attr attr = {.mq_maxmsg = any(2) ? (long)any(12) : odd(), .mq_msgsize = any(2) ? (long)any(9000) : odd()};
    struct timespec soon = {1, 0}, strange = {odd(), odd()};
    int fd = any(8) ? open_queues[any(8)] : (int)odd();
    if (fd <= 2)
        fd = -1;
    switch (any(8)) {
    case 0:
        fd = (int)syscall(SYS_mq_open, name, any(8) ? O_CREAT | O_RDWR : odd(), 0666, any(3) ? &attr : place());
        if (fd > 2) {
            unsigned at = (unsigned)any(8);
            if (open_queues[at] > 2)
                close(open_queues[at]);
            open_queues[at] = fd;
        }
        break;
    case 1:
        syscall(SYS_mq_unlink, any(4) ? (void *)name : place());
        break;
    case 2:
    case 3:
        syscall(SYS_mq_timedsend, fd, place(), any(2) ? (long)any(100) : odd(), any(2) ? (long)any(9) : odd(),
                any(4) ? &soon : &strange);
        break;
    case 4:
        syscall(SYS_mq_timedreceive, fd, place(), any(2) ? 9000L : odd(), place(), any(4) ? &soon : &strange);
        break;
    case 5: {
        struct sigevent event = {.sigev_notify = any(2) ? (int)any(5) : (int)odd(),
                                 .sigev_signo = any(2) ? SIGUSR1 : (int)odd()};
        event.sigev_value.sival_ptr = place();
        syscall(SYS_mq_notify, fd, any(4) ? (void *)&event : place());
        break;
    }
    case 6:
        syscall(SYS_mq_getsetattr, fd, any(2) ? place() : NULL, place());
        break;
    default: {
        char text[100];
        if (fd >= 0 && read(fd, text, sizeof text) < 0)
            errno = 0;
    }
    }
}

/* Ids until there are no more, at least for others. */
static void hoard(void)
{
    static int ids[3][6000];
    int counts[3] = {0};
    for (int i = 0; i < 6000; i++) {
        int made[] = {shmget(IPC_PRIVATE, PAGE, 0600), semget(IPC_PRIVATE, 5, 0600), msgget(IPC_PRIVATE, 0600)};
        for (int kind = 0; kind < 3; kind++)
            if (made[kind] >= 0)
                ids[kind][counts[kind]++] = made[kind];
            else
                CHECK(errno == ENOSPC || errno == ENOMEM);
    }
    CHECK(counts[0] >= 1000 && counts[1] >= 1000 && counts[2] >= 1000);
    for (int i = 0; i < 6000; i++) {
        if (i < counts[0])
            shmctl(ids[0][i], IPC_RMID, NULL);
        if (i < counts[1])
            semctl(ids[1][i], 0, IPC_RMID);
        if (i < counts[2])
            msgctl(ids[2][i], IPC_RMID, NULL);
    }
}

__attribute__((noreturn)) static void work(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGUSR1, SIG_IGN);
    scratch = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(scratch != MAP_FAILED);
    static void (*const kinds[])(void) = {shared_memory, semaphores, messages, queues};
    for (unsigned round = 0;; round++) {
        kinds[any(4)]();
        if (any(500) == 0 && fork() == 0)
            _exit(0);
        while (round % 64 == 0 && waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}

/* Removes all that is listed, but what another removes meanwhile; how many there were. */
static int remove_all(const char *path, int kind)
{
    FILE *list = fopen(path, "r");
    CHECK(list != NULL);
    char line[512];
    int key, id, count = 0;
    while (fgets(line, sizeof line, list))
        if (sscanf(line, "%d %d", &key, &id) == 2) {
            count++;
            OK(kind == 0   ? shmctl(id, IPC_RMID, NULL)
               : kind == 1 ? semctl(id, 0, IPC_RMID)
                           : msgctl(id, IPC_RMID, NULL));
        }
    fclose(list);
    return count;
}

int main(int argc, char **argv)
{
    struct campaign campaign = campaign_of(argc, argv, 10);
    attack(campaign, WORKERS, work);
    static const char *const lists[] = {"/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg"};
    for (int kind = 0; kind < 3; kind++) {
        remove_all(lists[kind], kind);
        CHECK_EQ(remove_all(lists[kind], kind), 0);
    }
    JOIN(CHILD(hoard()));
    for (int kind = 0; kind < 3; kind++)
        CHECK_EQ(remove_all(lists[kind], kind), 0);
    /* A directory of this name need not be the mount. */
    struct statfs shown;
    bool is_mount = statfs("/dev/mqueue", &shown) == 0 && shown.f_type == 0x19800202;
    DIR *files = is_mount ? opendir("/dev/mqueue") : NULL;
    for (struct dirent *entry; files && (entry = readdir(files));)
        if (entry->d_name[0] != '.')
            OK((int)syscall(SYS_mq_unlink, entry->d_name));
    puts("ok hostile_ipc");
    return 0;
}
