/* System V shared memory, semaphores and message queues, by their manual pages. */
#include "check.h"
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#define PAGE 4096L

/* The C library hides some of these. */
enum { STAT_ANY_SHM = 15, STAT_ANY_SEM = 20, STAT_ANY_MSG = 13 };

union semun {
    int val;
    struct semid_ds *buf;
    unsigned short *array;
    struct seminfo *info;
};

/* A key that no other run uses. */
static key_t own_key(int number)
{
    return (key_t)(getpid() << 8 | number);
}

static void as_user(uid_t user)
{
    OK(setgroups(0, NULL));
    OK(setresgid(user, user, user));
    OK(setresuid(user, user, user));
}

/* Keeps these of the capabilities alone. */
static void keep_capabilities(uint64_t kept)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    OK((int)syscall(SYS_capget, &header, data));
    for (int half = 0; half < 2; half++)
        data[half].effective = data[half].permitted &= (uint32_t)(kept >> 32 * half);
    OK((int)syscall(SYS_capset, &header, data));
}

/* --- settings --- */

/* Natively in a namespace of its own. False: settings cannot be changed. */
static bool own_settings(void)
{
    if (geteuid() != 0)
        return false;
    if (unshare(CLONE_NEWIPC) < 0)
        errno = 0;
    return access("/proc/sys/kernel/msgmnb", W_OK) == 0;
}

static int try_setting(const char *name, const char *value)
{
    char path[128];
    snprintf(path, sizeof path, "/proc/sys/%s", name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = write(fd, value, strlen(value)) == (ssize_t)strlen(value) ? 0 : errno;
    close(fd);
    return error;
}

static const char *setting(const char *name)
{
    static char text[64];
    char path[128];
    snprintf(path, sizeof path, "/proc/sys/%s", name);
    int fd = FD(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t len = read(fd, text, sizeof text - 1);
    CHECK(len > 0);
    text[len - 1] = 0;
    close(fd);
    return text;
}

/* --- shared memory --- */

static long attached(int id)
{
    struct shmid_ds now;
    OK(shmctl(id, IPC_STAT, &now));
    return (long)now.shm_nattch;
}

static void shm_objects(void)
{
    key_t key = own_key(1);
    CHECK_ERR(shmget(key, 100, 0600), ENOENT);
    CHECK_ERR(shmget(key, 0, IPC_CREAT | 0600), EINVAL);
    time_t before = time(NULL);
    int id = FD(shmget(key, 5000, IPC_CREAT | IPC_EXCL | 0640));
    CHECK_EQ(shmget(key, 0, 0), id);
    CHECK_EQ(shmget(key, 5000, IPC_CREAT | 0600), id);
    CHECK_ERR(shmget(key, 5001, 0), EINVAL);
    CHECK_ERR(shmget(key, 5000, IPC_CREAT | IPC_EXCL), EEXIST);
    struct shmid_ds now;
    OK(shmctl(id, IPC_STAT, &now));
    CHECK(now.shm_segsz == 5000 && now.shm_nattch == 0 && now.shm_cpid == getpid() && now.shm_lpid == 0);
    CHECK(now.shm_perm.__key == key && now.shm_perm.mode == 0640);
    CHECK(now.shm_perm.uid == geteuid() && now.shm_perm.cgid == getegid());
    CHECK(now.shm_atime == 0 && now.shm_dtime == 0 && now.shm_ctime >= before);
    char *first = shmat(id, NULL, 0);
    CHECK(first != (void *)-1);
    CHECK(first[0] == 0 && first[4999] == 0);
    first[0] = 'a';
    first[8191] = 'z'; /* up to the end of the page */
    const char *second = shmat(id, NULL, SHM_RDONLY);
    CHECK(second != (void *)-1 && second != first && second[0] == 'a' && second[8191] == 'z');
    CHECK_EQ(attached(id), 2);
    CHECK_ERR(mprotect((void *)second, PAGE, PROT_READ | PROT_WRITE), EACCES);
    CHECK_KILLED(CHILD(*(volatile char *)second = 1), SIGSEGV);
    OK(shmctl(id, IPC_STAT, &now));
    CHECK(now.shm_lpid != 0 && now.shm_atime >= before);
    OK(shmdt(second));
    CHECK_ERR(shmdt(second), EINVAL);
    CHECK_ERR(shmdt(first + 1), EINVAL);
    CHECK_ERR(shmdt(first + PAGE), EINVAL);
    OK(shmdt(first));
    OK(shmctl(id, IPC_STAT, &now));
    CHECK(now.shm_nattch == 0 && now.shm_dtime >= before);
    now.shm_perm.mode = 0604 | 01000;
    OK(shmctl(id, IPC_SET, &now));
    OK(shmctl(id, IPC_STAT, &now));
    CHECK_EQ(now.shm_perm.mode, 0604);
    /* Content stays while nobody maps it. */
    first = shmat(id, NULL, 0);
    CHECK(first[0] == 'a');
    OK(shmdt(first));
    OK(shmctl(id, IPC_RMID, NULL));
    CHECK_ERR(shmctl(id, IPC_STAT, &now), EINVAL);
    CHECK_ERR((long)shmat(id, NULL, 0), EINVAL);
    CHECK_ERR(shmget(key, 0, 0), ENOENT);
    CHECK_ERR(shmctl(-1, IPC_STAT, &now), EINVAL);
    CHECK_ERR(shmctl(0, 77, &now), EINVAL);
}

static void shm_places(void)
{
    int id = FD(shmget(IPC_PRIVATE, 3 * PAGE, 0600));
    volatile char *area = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(area != MAP_FAILED);
    CHECK_ERR((long)shmat(id, (char *)area, 0), EINVAL);          /* taken */
    CHECK_ERR((long)shmat(id, (char *)area + 1, SHM_REMAP), EINVAL); /* not at a page */
    CHECK_ERR((long)shmat(id, NULL, SHM_REMAP), EINVAL);
    CHECK(shmat(id, (char *)area + 4 * PAGE, SHM_REMAP) == area + 4 * PAGE);
    OK(munmap((char *)area, 4 * PAGE));
    CHECK(shmat(id, (char *)area + 7, SHM_RND) == area);
    area[0] = 'x';
    CHECK(area[4 * PAGE] == 'x');
    CHECK_EQ(attached(id), 2);
    /* A hole makes two of one; what is left goes by one call. */
    OK(munmap((char *)area + 5 * PAGE, PAGE));
    CHECK_EQ(attached(id), 3);
    OK(munmap((char *)area, PAGE));
    CHECK_EQ(attached(id), 3);
    OK(shmdt((char *)area + 4 * PAGE));
    CHECK_EQ(attached(id), 1);
    OK(shmdt((char *)area));
    CHECK_EQ(attached(id), 0);
    /* One that moves is the same, and can be detached where it is then. */
    char *moved = shmat(id, NULL, 0);
    char *to = mremap(moved, 3 * PAGE, 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (char *)area + 8 * PAGE);
    CHECK(to == area + 8 * PAGE);
    CHECK_EQ(attached(id), 1);
    CHECK_ERR(shmdt(moved), EINVAL);
    OK(shmdt(to));
    CHECK_EQ(attached(id), 0);
    OK(shmctl(id, IPC_RMID, NULL));
    OK(munmap((char *)area, 16 * PAGE));
}

static void shm_lives(void)
{
    int id = FD(shmget(IPC_PRIVATE, 2 * PAGE, 0600));
    int *shared = shmat(id, NULL, 0);
    CHECK(shared != (void *)-1);
    pid_t child = CHILD({
        CHECK_EQ(attached(id), 2);
        shared[1] = 42;
        OK(shmdt(shared));
        CHECK_EQ(attached(id), 1);
    });
    JOIN(child);
    CHECK_EQ(shared[1], 42);
    child = CHILD({
        CHECK_EQ(attached(id), 2);
        execl("/bin/true", "true", NULL);
        _exit(1);
    });
    int status = status_of(child);
    CHECK_EQ(status, 0);
    CHECK_EQ(attached(id), 1);
    child = CHILD(pause());
    wait_until_asleep(child);
    CHECK_EQ(attached(id), 2);
    /* Removed, it stays for those who have it, and by its id for others. */
    OK(shmctl(id, IPC_RMID, NULL));
    struct shmid_ds now;
    OK(shmctl(id, IPC_STAT, &now));
    CHECK(now.shm_perm.mode & SHM_DEST);
    CHECK_EQ(now.shm_perm.__key, IPC_PRIVATE);
    int *again = shmat(id, NULL, 0);
    CHECK(again != (void *)-1 && again[1] == 42);
    OK(shmdt(shared));
    OK(shmdt(again));
    CHECK_EQ(attached(id), 1);
    OK(kill(child, SIGKILL));
    CHECK_KILLED(child, SIGKILL);
    CHECK_ERR(shmctl(id, IPC_STAT, &now), EINVAL);
}

static void shm_sharing(void)
{
    enum { COUNT = 4, ROUNDS = 2000 };
    int id = FD(shmget(IPC_PRIVATE, 64 * PAGE, 0600));
    long *shared = shmat(id, NULL, 0);
    pid_t children[COUNT];
    for (int i = 0; i < COUNT; i++)
        children[i] = CHILD(for (long n = 0; n < scaled(ROUNDS); n++) {
            __atomic_fetch_add(&shared[n % 64 * PAGE / 8], 1, __ATOMIC_SEQ_CST);
        });
    for (int i = 0; i < COUNT; i++)
        JOIN(children[i]);
    long sum = 0;
    for (int page = 0; page < 64; page++)
        sum += shared[page * PAGE / 8];
    CHECK_EQ(sum, COUNT * scaled(ROUNDS));
    OK(shmdt(shared));
    OK(shmctl(id, IPC_RMID, NULL));
}

static void shm_facts(void)
{
    struct shminfo limits;
    struct shm_info usage;
    struct shmid_ds now;
    int id = FD(shmget(IPC_PRIVATE, PAGE, 0600));
    CHECK(shmctl(0, IPC_INFO, (void *)&limits) >= 0);
    CHECK(limits.shmmin == 1 && limits.shmmni >= 1);
    int last = shmctl(0, SHM_INFO, (void *)&usage);
    CHECK(last >= 0 && usage.used_ids >= 1 && usage.shm_tot >= 1);
    bool found = false;
    for (int index = 0; index <= last; index++)
        found |= shmctl(index, SHM_STAT, &now) == id && now.shm_cpid == getpid();
    CHECK(found);
    CHECK_ERR(shmctl(INT_MAX, SHM_STAT, &now), EINVAL);
    OK(shmctl(id, SHM_LOCK, NULL));
    OK(shmctl(id, IPC_STAT, &now));
    CHECK(now.shm_perm.mode & SHM_LOCKED);
    OK(shmctl(id, SHM_UNLOCK, NULL));
    OK(shmctl(id, IPC_STAT, &now));
    CHECK_EQ(now.shm_perm.mode, 0600);
    FILE *list = fopen("/proc/sysvipc/shm", "r");
    CHECK(list != NULL);
    char line[512];
    int key, shmid, lines = 0;
    while (fgets(line, sizeof line, list))
        lines += sscanf(line, "%d %d", &key, &shmid) == 2 && shmid == id;
    fclose(list);
    CHECK_EQ(lines, 1);
    CHECK_ERR(shmctl(id, IPC_STAT, (void *)8), EFAULT);
    OK(shmctl(id, IPC_RMID, NULL));
    CHECK_ERR(shmget(IPC_PRIVATE, ULONG_MAX, 0600), EINVAL);
    CHECK_ERR(shmget(IPC_PRIVATE, PAGE, 0600 | SHM_HUGETLB | 5 << 26), EINVAL);
}

/* Pages of shared memory are not to be removed by those who cannot write to it. */
static void removal_of_pages(void)
{
    int id = FD(shmget(IPC_PRIVATE, 2 * PAGE, 0600));
    char *writable = shmat(id, NULL, 0), *readable = shmat(id, NULL, SHM_RDONLY);
    CHECK(writable != (void *)-1 && readable != (void *)-1);
    writable[0] = 'a';
    writable[PAGE] = 'b';
    CHECK_ERR(madvise(readable, PAGE, MADV_REMOVE), EACCES);
    CHECK(readable[0] == 'a' && readable[PAGE] == 'b');
    OK(madvise(writable, PAGE, MADV_REMOVE));
    CHECK(readable[0] == 0 && readable[PAGE] == 'b');
    /* A mapping that could be written to may be used, though it is not written to now. */
    OK(mprotect(writable, 2 * PAGE, PROT_READ));
    OK(madvise(writable + PAGE, PAGE, MADV_REMOVE));
    CHECK_EQ(readable[PAGE], 0);
    OK(shmctl(id, IPC_RMID, NULL));

    int file = FD(memfd_create("pages", MFD_ALLOW_SEALING));
    OK(ftruncate(file, PAGE));
    char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(shared != MAP_FAILED && own != MAP_FAILED);
    shared[0] = 'c';
    CHECK_ERR(madvise(own, PAGE, MADV_REMOVE), EACCES);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int reader = FD(open(path, O_RDONLY));
    char *shown = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(shown != MAP_FAILED);
    CHECK_ERR(madvise(shown, PAGE, MADV_REMOVE), EACCES);
    OK(fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
    CHECK_ERR(madvise(shared, PAGE, MADV_REMOVE), EPERM);
    CHECK_EQ(shown[0], 'c');
    shared[0] = 'd'; /* what was mapped before may be written to */
    CHECK_EQ(shown[0], 'd');
    OK(munmap(shared, PAGE));
    OK(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE));
    CHECK_ERR(madvise(shown, PAGE, MADV_REMOVE), EACCES);
    CHECK_EQ(shown[0], 'd');

    char tmp[] = "file.XXXXXX";
    file = FD(mkstemp(tmp));
    OK(ftruncate(file, PAGE));
    CHECK_EQ(pwrite(file, "e", 1, 0), 1);
    reader = FD(open(tmp, O_RDONLY));
    shown = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(shown != MAP_FAILED);
    CHECK_ERR(madvise(shown, PAGE, MADV_REMOVE), EACCES);
    CHECK_EQ(shown[0], 'e');

    shown = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_ERR(madvise(shown, PAGE, MADV_REMOVE), EINVAL);
}

/* Segments go with their last mapping, or with their maker, where that is set. */
static void shm_forced(void)
{
    if (!own_settings())
        SKIP("settings cannot be changed");
    struct shmid_ds now;
    int kept = FD(shmget(IPC_PRIVATE, PAGE, 0600));
    OK(try_setting("kernel/shm_rmid_forced", "1"));
    int id = FD(shmget(IPC_PRIVATE, PAGE, 0600));
    OK(shmctl(id, IPC_STAT, &now)); /* its maker lives */
    char *first = shmat(id, NULL, 0), *second = shmat(id, NULL, 0);
    CHECK(first != (void *)-1 && second != (void *)-1);
    OK(shmdt(first));
    OK(shmctl(id, IPC_STAT, &now));
    OK(shmdt(second));
    CHECK_ERR(shmctl(id, IPC_STAT, &now), EINVAL);
    id = FD(shmget(IPC_PRIVATE, PAGE, 0600));
    first = shmat(id, NULL, 0);
    OK(munmap(first, PAGE));
    CHECK_ERR(shmctl(id, IPC_STAT, &now), EINVAL);
    /* By the end of a process, and by another program. */
    for (int round = 0; round < 2; round++) {
        int by_attacher = FD(shmget(IPC_PRIVATE, PAGE, 0600));
        int tell[2];
        OK(pipe(tell));
        pid_t child = CHILD({
            CHECK(shmat(by_attacher, NULL, 0) != (void *)-1);
            int made = FD(shmget(IPC_PRIVATE, PAGE, 0600));
            CHECK_EQ(write(tell[1], &made, sizeof made), sizeof made);
            if (round) {
                OK(fcntl(tell[1], F_SETFD, FD_CLOEXEC));
                execl("/bin/sleep", "sleep", "100", NULL);
            }
        });
        OK(close(tell[1]));
        int made;
        CHECK_EQ(read(tell[0], &made, sizeof made), sizeof made);
        if (round) {
            CHECK_EQ(read(tell[0], &made + 1, 0), 0);
            char byte;
            CHECK_EQ(read(tell[0], &byte, 1), 0);
            while (shmctl(by_attacher, IPC_STAT, &now) == 0)
                sleep_ms(1);
            CHECK_EQ(errno, EINVAL);
            OK(shmctl(made, IPC_STAT, &now));
            OK(kill(child, SIGKILL));
            CHECK_KILLED(child, SIGKILL);
        } else {
            JOIN(child);
            CHECK_ERR(shmctl(by_attacher, IPC_STAT, &now), EINVAL);
        }
        CHECK_ERR(shmctl(made, IPC_STAT, &now), EINVAL);
        OK(close(tell[0]));
    }
    OK(shmctl(kept, IPC_STAT, &now));
    OK(try_setting("kernel/shm_rmid_forced", "0"));
    OK(shmctl(kept, IPC_RMID, NULL));
}

static void settings(void)
{
    if (!own_settings())
        SKIP("settings cannot be changed");
    /* Nobody but root changes them. */
    static const char *const names[] = {"kernel/shmmax",      "kernel/shmall",  "kernel/shmmni", "kernel/sem",
                                        "kernel/msgmax",      "kernel/msgmnb",  "kernel/msgmni", "kernel/shm_rmid_forced",
                                        "fs/mqueue/msg_max",  "fs/mqueue/queues_max"};
    JOIN(CHILD({
        as_user(12345);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strcmp(names[i], "fs/mqueue/msg_max") < 0 || access("/proc/sys/fs/mqueue", F_OK) == 0)
                CHECK_EQ(try_setting(names[i], "1\n"), EACCES);
    }));
    CHECK_EQ(try_setting("kernel/shm_rmid_forced", "2\n"), EINVAL);
    OK(try_setting("kernel/msgmax", "10\n"));
    CHECK_EQ(strcmp(setting("kernel/msgmax"), "10"), 0);
    int queue = FD(msgget(IPC_PRIVATE, 0600));
    struct { long kind; char text[20]; } message = {1, ""};
    OK(msgsnd(queue, &message, 10, 0));
    CHECK_ERR(msgsnd(queue, &message, 11, 0), EINVAL);
    OK(msgctl(queue, IPC_RMID, NULL));
    OK(try_setting("kernel/msgmax", "8192\n"));
    /* The id of the next object. */
    if (access("/proc/sys/kernel/msg_next_id", F_OK) < 0)
        SKIP("no msg_next_id");
    CHECK_EQ(strcmp(setting("kernel/msg_next_id"), "-1"), 0);
    OK(try_setting("kernel/msg_next_id", "98309\n"));
    CHECK_EQ(strcmp(setting("kernel/msg_next_id"), "98309"), 0);
    queue = FD(msgget(IPC_PRIVATE, 0600));
    CHECK_EQ(queue, 98309);
    CHECK_EQ(strcmp(setting("kernel/msg_next_id"), "-1"), 0);
    OK(msgctl(queue, IPC_RMID, NULL));
    OK(try_setting("kernel/sem_next_id", "65543\n"));
    int set = FD(semget(IPC_PRIVATE, 1, 0600));
    CHECK_EQ(set, 65543);
    OK(semctl(set, 0, IPC_RMID));
    OK(try_setting("kernel/shm_next_id", "65543\n"));
    int memory = FD(shmget(IPC_PRIVATE, 1, 0600));
    CHECK_EQ(memory, 65543);
    OK(shmctl(memory, IPC_RMID, NULL));
    JOIN(CHILD({
        keep_capabilities(~(1ull << CAP_SYS_ADMIN | 1ull << CAP_CHECKPOINT_RESTORE));
        CHECK(try_setting("kernel/msg_next_id", "5\n") != 0);
    }));
}

/* --- semaphores --- */

static int value(int id, int number)
{
    return semctl(id, number, GETVAL);
}

static int change(int id, int number, int by, int flags)
{
    struct sembuf op = {(unsigned short)number, (short)by, (short)flags};
    return semop(id, &op, 1);
}

static void sem_objects(void)
{
    key_t key = own_key(2);
    CHECK_ERR(semget(key, 1, 0600), ENOENT);
    CHECK_ERR(semget(key, 0, IPC_CREAT | 0600), EINVAL);
    CHECK_ERR(semget(key, -1, IPC_CREAT | 0600), EINVAL);
    time_t before = time(NULL);
    int id = FD(semget(key, 3, IPC_CREAT | IPC_EXCL | 0600));
    CHECK_ERR(semget(key, 4, 0), EINVAL);
    CHECK_EQ(semget(key, 2, 0), id);
    struct semid_ds now;
    OK(semctl(id, 0, IPC_STAT, (union semun){.buf = &now}));
    CHECK(now.sem_nsems == 3 && now.sem_otime == 0 && now.sem_ctime >= before && now.sem_perm.__key == key);
    unsigned short values[3] = {1, 2, 32767}, got[3];
    OK(semctl(id, 0, SETALL, (union semun){.array = values}));
    OK(semctl(id, 0, GETALL, (union semun){.array = got}));
    OK(memcmp(values, got, sizeof got));
    CHECK_ERR(semctl(id, 0, SETVAL, (union semun){.val = 32768}), ERANGE);
    CHECK_ERR(semctl(id, 0, SETVAL, (union semun){.val = -1}), ERANGE);
    CHECK_ERR(semctl(id, 3, SETVAL, (union semun){.val = 1}), EINVAL);
    CHECK_ERR(semctl(id, 3, GETVAL), EINVAL);
    CHECK_ERR(change(id, 2, 1, 0), ERANGE);
    CHECK_ERR(change(id, 3, 1, 0), EFBIG);
    CHECK_ERR(change(id, 0, -2, IPC_NOWAIT), EAGAIN);
    CHECK_ERR(change(id, 0, 0, IPC_NOWAIT), EAGAIN);
    struct sembuf ops[501] = {{0, -1, 0}, {0, 0, 0}, {1, 5, 0}};
    OK(semop(id, ops, 3));
    CHECK(value(id, 0) == 0 && value(id, 1) == 7);
    CHECK_EQ(semctl(id, 1, GETPID), getpid());
    struct sembuf partly[] = {{1, -7, 0}, {0, -1, IPC_NOWAIT}};
    CHECK_ERR(semop(id, partly, 2), EAGAIN);
    CHECK_EQ(value(id, 1), 7);
    CHECK_ERR(semop(id, ops, 0), EINVAL);
    CHECK_ERR(semop(id, ops, 501), E2BIG);
    CHECK_ERR(semop(id, (void *)8, 1), EFAULT);
    CHECK_ERR(semop(-1, ops, 1), EINVAL);
    OK(semctl(id, 0, IPC_STAT, (union semun){.buf = &now}));
    CHECK(now.sem_otime >= before);
    OK(semctl(id, 0, IPC_RMID));
    CHECK_ERR(semctl(id, 0, GETVAL), EINVAL);
    CHECK_ERR(semctl(id, 0, SETVAL, (union semun){.val = 1}), EINVAL);
    CHECK_ERR(semctl(id, 0, SETVAL, (union semun){.val = -1}), ERANGE);
    CHECK_ERR(change(id, 0, 1, 0), EINVAL);
}

/* A child that does one operation, and has been seen asleep in it. */
static pid_t waiter(int id, int number, int by, int flags)
{
    pid_t child = CHILD({
        OK(change(id, number, by, flags));
    });
    wait_until_asleep(child);
    return child;
}

static void sem_waiting(void)
{
    int id = FD(semget(IPC_PRIVATE, 2, 0600));
    pid_t first = waiter(id, 0, -2, 0), second = waiter(id, 0, -1, 0);
    CHECK_EQ(semctl(id, 0, GETNCNT), 2);
    CHECK_EQ(semctl(id, 0, GETZCNT), 0);
    OK(change(id, 0, 1, 0)); /* enough for the second */
    JOIN(second);
    CHECK_EQ(semctl(id, 0, GETNCNT), 1);
    OK(change(id, 0, 2, 0));
    JOIN(first);
    CHECK_EQ(value(id, 0), 0);
    CHECK_EQ(semctl(id, 0, GETPID), first);
    /* Zero that lasts no time at all is seen. */
    OK(semctl(id, 1, SETVAL, (union semun){.val = 1}));
    pid_t zero = waiter(id, 1, 0, 0);
    CHECK_EQ(semctl(id, 1, GETZCNT), 1);
    OK(semctl(id, 1, SETVAL, (union semun){.val = 0}));
    OK(semctl(id, 1, SETVAL, (union semun){.val = 3}));
    JOIN(zero);
    /* One goes on by what another does that goes on. */
    pid_t last = waiter(id, 0, -1, 0);
    pid_t chain = CHILD({
        struct sembuf ops[] = {{1, -4, 0}, {0, 1, 0}};
        OK(semop(id, ops, 2));
    });
    wait_until_asleep(chain);
    OK(change(id, 1, 1, 0));
    JOIN(chain);
    JOIN(last);
    CHECK(value(id, 0) == 0 && value(id, 1) == 0);
    pid_t removed = CHILD(CHECK_ERR(change(id, 0, -1, 0), EIDRM));
    wait_until_asleep(removed);
    OK(semctl(id, 0, IPC_RMID));
    JOIN(removed);
}

static void nothing(int signal)
{
    (void)signal;
}

static void sem_ends_of_waits(void)
{
    int id = FD(semget(IPC_PRIVATE, 1, 0600));
    struct sembuf op = {0, -1, 0};
    struct timespec soon = {0, 30000000}, bad = {0, 1000000000};
    int64_t start = now_ns(CLOCK_MONOTONIC);
    CHECK_ERR(semtimedop(id, &op, 1, &soon), EAGAIN);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 30000000);
    CHECK_ERR(semtimedop(id, &op, 1, &bad), EINVAL);
    pid_t child = CHILD({
        struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
        OK(sigaction(SIGUSR1, &action, NULL));
        CHECK_ERR(semop(id, &op, 1), EINTR);
    });
    wait_until_asleep(child);
    OK(kill(child, SIGUSR1));
    JOIN(child);
    child = waiter(id, 0, -1, 0);
    OK(kill(child, SIGKILL));
    CHECK_KILLED(child, SIGKILL);
    CHECK_EQ(semctl(id, 0, GETNCNT), 0);
    OK(semctl(id, 0, IPC_RMID));
}

static void *undo_in_thread(void *id)
{
    CHECK_EQ(change(*(int *)id, 0, 1, SEM_UNDO), 0);
    return NULL;
}

static void sem_undo(void)
{
    int id = FD(semget(IPC_PRIVATE, 2, 0600));
    OK(semctl(id, 0, SETVAL, (union semun){.val = 5}));
    JOIN(CHILD({
        OK(change(id, 0, -3, SEM_UNDO));
        OK(change(id, 0, 1, SEM_UNDO));
        OK(change(id, 1, 4, SEM_UNDO));
        OK(change(id, 1, 4, 0));
        CHECK_EQ(value(id, 0), 3);
    }));
    CHECK(value(id, 0) == 5 && value(id, 1) == 4);
    /* What a process holds comes back when it is killed, and wakes others. */
    OK(semctl(id, 0, SETVAL, (union semun){.val = 1}));
    pid_t holder = CHILD({
        OK(change(id, 0, -1, SEM_UNDO));
        pause();
    });
    while (value(id, 0) != 0)
        sleep_ms(1);
    pid_t next = waiter(id, 0, -1, 0);
    OK(kill(holder, SIGKILL));
    CHECK_KILLED(holder, SIGKILL);
    JOIN(next);
    /* SETVAL forgets; a fork has none; values stay in their range. */
    JOIN(CHILD({
        OK(change(id, 0, 3, SEM_UNDO));
        OK(semctl(id, 0, SETVAL, (union semun){.val = 2}));
    }));
    CHECK_EQ(value(id, 0), 2);
    JOIN(CHILD({
        OK(change(id, 0, 5, SEM_UNDO));
        OK(change(id, 0, -6, 0));
        JOIN(CHILD());
        CHECK_EQ(value(id, 0), 1);
    }));
    CHECK_EQ(value(id, 0), 0);
    /* Threads have one list: nothing is undone when one ends. */
    JOIN(CHILD({
        pthread_t thread;
        PT(pthread_create(&thread, NULL, undo_in_thread, &id));
        PT(pthread_join(thread, NULL));
        CHECK_EQ(value(id, 0), 1);
        execl("/bin/true", "true", NULL);
    }));
    CHECK_EQ(value(id, 0), 0);
    OK(semctl(id, 0, IPC_RMID));
}

static pthread_barrier_t together;

static void *first_undo(void *id)
{
    pthread_barrier_wait(&together);
    CHECK_EQ(change(*(int *)id, 0, -1, SEM_UNDO), 0);
    return NULL;
}

/* Threads that are the first of their process to change a set, at once. */
static void sem_undo_at_once(void)
{
    int id = FD(semget(IPC_PRIVATE, 8, 0600));
    for (long round = 0; round < scaled(300); round++) {
        OK(semctl(id, 0, SETVAL, (union semun){.val = 2}));
        JOIN(CHILD({
            pthread_t threads[2];
            PT(pthread_barrier_init(&together, NULL, 2));
            for (int i = 0; i < 2; i++)
                PT(pthread_create(&threads[i], NULL, first_undo, &id));
            for (int i = 0; i < 2; i++)
                PT(pthread_join(threads[i], NULL));
            CHECK_EQ(value(id, 0), 0);
        }));
        CHECK_EQ(value(id, 0), 2);
    }
    OK(semctl(id, 0, IPC_RMID));
}

enum { CROWD = 400 };

struct place {
    int id, number;
};

/* Waits for its own semaphore, and gives the one before it. */
static void *one_of_a_chain(void *argument)
{
    const struct place *place = argument;
    struct sembuf ops[] = {{(unsigned short)place->number, -1, 0}, {(unsigned short)(place->number - 1), 1, 0}};
    CHECK_EQ(semop(place->id, ops, 2), 0);
    return NULL;
}

static void *one_of_many(void *argument)
{
    const struct place *place = argument;
    CHECK_EQ(change(place->id, place->number, -1, 0), 0);
    return NULL;
}

/* One change lets many go on, all by itself or one after the other, last come first served. */
static void sem_crowd(void)
{
    int id = FD(semget(IPC_PRIVATE, CROWD + 1, 0600));
    static struct place places[CROWD];
    static pthread_t threads[CROWD];
    pthread_attr_t small;
    PT(pthread_attr_init(&small));
    PT(pthread_attr_setstacksize(&small, 64 << 10));
    for (int chain = 0; chain < 2; chain++) {
        for (int i = 0; i < CROWD; i++) {
            places[i] = (struct place){id, chain ? i + 1 : 0};
            PT(pthread_create(&threads[i], &small, chain ? one_of_a_chain : one_of_many, &places[i]));
            while (semctl(id, places[i].number, GETNCNT) != (chain ? 1 : i + 1))
                sched_yield();
        }
        OK(semctl(id, chain ? CROWD : 0, SETVAL, (union semun){.val = chain ? 1 : CROWD}));
        for (int i = 0; i < CROWD; i++)
            PT(pthread_join(threads[i], NULL));
        CHECK_EQ(value(id, 0), chain);
        CHECK_EQ(semctl(id, CROWD, GETNCNT), 0);
    }
    OK(semctl(id, 0, IPC_RMID));
}

static void sem_lock_under_load(void)
{
    enum { COUNT = 6, ROUNDS = 300 };
    int id = FD(semget(IPC_PRIVATE, 1, 0600)), memory = FD(shmget(IPC_PRIVATE, PAGE, 0600));
    volatile long *counter = shmat(memory, NULL, 0);
    OK(semctl(id, 0, SETVAL, (union semun){.val = 1}));
    pid_t children[COUNT];
    for (int i = 0; i < COUNT; i++)
        children[i] = CHILD(for (long n = 0; n < scaled(ROUNDS); n++) {
            OK(change(id, 0, -1, SEM_UNDO));
            long now = *counter;
            if (n % 16 == 0)
                sched_yield();
            *counter = now + 1;
            OK(change(id, 0, 1, SEM_UNDO));
        });
    for (int i = 0; i < COUNT; i++)
        JOIN(children[i]);
    CHECK_EQ(*counter, COUNT * scaled(ROUNDS));
    CHECK_EQ(value(id, 0), 1);
    OK(semctl(id, 0, IPC_RMID));
    OK(shmctl(memory, IPC_RMID, NULL));
}

static void sem_facts(void)
{
    struct seminfo info;
    struct semid_ds now;
    int id = FD(semget(IPC_PRIVATE, 7, 0600));
    CHECK(semctl(0, 0, IPC_INFO, (union semun){.info = &info}) >= 0);
    CHECK(info.semvmx == 32767 && info.semmsl > 0 && info.semopm > 0);
    int last = semctl(0, 0, SEM_INFO, (union semun){.info = &info});
    CHECK(last >= 0 && info.semusz >= 1 && info.semaem >= 7);
    bool found = false;
    for (int index = 0; index <= last; index++)
        found |= semctl(index, 0, SEM_STAT, (union semun){.buf = &now}) == id && now.sem_nsems == 7;
    CHECK(found);
    OK(semctl(id, 0, IPC_RMID));
}

/* --- messages --- */

struct message {
    long kind;
    char text[9000];
};

static int put(int id, long kind, const char *text, int flags)
{
    struct message message = {.kind = kind};
    strcpy(message.text, text);
    return msgsnd(id, &message, strlen(text), flags);
}

/* Takes a message, and compares its text. */
#define CHECK_GOT(id, wanted, flags, want_kind, want_text)                                                             \
    do {                                                                                                               \
        struct message got_;                                                                                           \
        CHECK_EQ(msgrcv(id, &got_, sizeof got_.text, wanted, flags), (ssize_t)strlen(want_text));                      \
        CHECK_EQ(got_.kind, want_kind);                                                                                \
        OK(memcmp(got_.text, want_text, strlen(want_text)));                                                           \
    } while (0)

static void msg_objects(void)
{
    key_t key = own_key(3);
    struct message message;
    CHECK_ERR(msgget(key, 0), ENOENT);
    time_t before = time(NULL);
    int id = FD(msgget(key, IPC_CREAT | IPC_EXCL | 0600));
    CHECK_EQ(msgget(key, 0), id);
    CHECK_ERR(msgget(key, IPC_CREAT | IPC_EXCL), EEXIST);
    struct msqid_ds now;
    OK(msgctl(id, IPC_STAT, &now));
    CHECK(now.msg_qnum == 0 && now.msg_qbytes > 0 && now.msg_stime == 0 && now.msg_ctime >= before);
    CHECK_ERR(msgrcv(id, &message, 10, 0, IPC_NOWAIT), ENOMSG);
    CHECK_ERR(put(id, 0, "x", 0), EINVAL);
    CHECK_ERR(put(id, -1, "x", 0), EINVAL);
    CHECK_ERR(msgsnd(id, &message, -1, 0), EINVAL);
    CHECK_ERR(msgsnd(id, (void *)8, 1, 0), EFAULT);
    CHECK_ERR(msgrcv(id, &message, -1, 0, 0), EINVAL);
    OK(put(id, 5, "five", 0));
    OK(put(id, 3, "three", 0));
    OK(put(id, 3, "again", 0));
    OK(put(id, 9, "", 0));
    OK(msgctl(id, IPC_STAT, &now));
    CHECK(now.msg_qnum == 4 && now.__msg_cbytes == 14 && now.msg_lspid == getpid() && now.msg_stime >= before);
    CHECK_GOT(id, 3, 0, 3, "three");
    CHECK_GOT(id, -4, 0, 3, "again");
    CHECK_GOT(id, 5, MSG_EXCEPT, 9, "");
    CHECK_ERR(msgrcv(id, &message, 3, 0, 0), E2BIG);
    CHECK_EQ(msgrcv(id, &message, 3, 0, MSG_NOERROR), 3);
    CHECK(message.kind == 5 && memcmp(message.text, "fiv", 3) == 0);
    OK(msgctl(id, IPC_STAT, &now));
    CHECK(now.msg_qnum == 0 && now.msg_lrpid == getpid() && now.msg_rtime >= before);
    /* Copies leave what they show. The kernel may be built without them. */
    OK(put(id, 1, "one", 0));
    OK(put(id, 2, "two", 0));
    errno = 0;
    if (msgrcv(id, &message, sizeof message.text, 1, MSG_COPY | IPC_NOWAIT) < 0 && errno == ENOSYS) {
        NOTE("no MSG_COPY");
    } else {
        CHECK_GOT(id, 1, MSG_COPY | IPC_NOWAIT, 2, "two");
        CHECK_ERR(msgrcv(id, &message, 10, 2, MSG_COPY | IPC_NOWAIT), ENOMSG);
        CHECK_ERR(msgrcv(id, &message, 10, 0, MSG_COPY), EINVAL);
        CHECK_ERR(msgrcv(id, &message, 10, 0, MSG_COPY | MSG_EXCEPT | IPC_NOWAIT), EINVAL);
    }
    CHECK_GOT(id, 0, 0, 1, "one");
    OK(msgctl(id, IPC_RMID, NULL));
    CHECK_ERR(msgctl(id, IPC_STAT, &now), EINVAL);
    CHECK_ERR(put(id, 1, "x", 0), EINVAL);
}

static void msg_waiting(void)
{
    int id = FD(msgget(IPC_PRIVATE, 0600));
    pid_t receiver = CHILD(CHECK_GOT(id, 7, 0, 7, "seven"));
    wait_until_asleep(receiver);
    OK(put(id, 6, "six", 0));
    OK(put(id, 7, "seven", 0));
    JOIN(receiver);
    struct msqid_ds now;
    OK(msgctl(id, IPC_STAT, &now));
    CHECK(now.msg_qnum == 1 && now.msg_lrpid == receiver);
    /* A full queue. */
    now.msg_qbytes = 10;
    OK(msgctl(id, IPC_SET, &now));
    OK(put(id, 1, "1234567", 0));
    CHECK_ERR(put(id, 1, "1", IPC_NOWAIT), EAGAIN);
    pid_t sender = CHILD(OK(put(id, 2, "later", 0)));
    wait_until_asleep(sender);
    CHECK_GOT(id, 6, 0, 6, "six");
    CHECK_GOT(id, 1, 0, 1, "1234567");
    JOIN(sender);
    CHECK_GOT(id, 0, 0, 2, "later");
    struct message message;
    pid_t interrupted = CHILD({
        struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
        OK(sigaction(SIGUSR1, &action, NULL));
        CHECK_ERR(msgrcv(id, &message, 10, 0, 0), EINTR);
    });
    wait_until_asleep(interrupted);
    OK(kill(interrupted, SIGUSR1));
    JOIN(interrupted);
    pid_t removed = CHILD(CHECK_ERR(msgrcv(id, &message, 10, 0, 0), EIDRM));
    wait_until_asleep(removed);
    OK(msgctl(id, IPC_RMID, NULL));
    JOIN(removed);
}

static void msg_stream(void)
{
    enum { ROUNDS = 3000 };
    int id = FD(msgget(IPC_PRIVATE, 0600));
    pid_t sender = CHILD({
        struct message message = {.kind = 1};
        for (long n = 0; n < scaled(ROUNDS); n++) {
            size_t len = sizeof n + n % 500;
            memset(message.text, (int)n, len);
            memcpy(message.text, &n, sizeof n);
            OK(msgsnd(id, &message, len, 0));
        }
    });
    struct message message;
    for (long n = 0; n < scaled(ROUNDS); n++) {
        long number;
        CHECK_EQ(msgrcv(id, &message, sizeof message.text, 0, 0), (ssize_t)sizeof n + n % 500);
        memcpy(&number, message.text, sizeof number);
        CHECK_EQ(number, n);
        for (long at = sizeof n; at < (long)sizeof n + n % 500; at++)
            CHECK_EQ(message.text[at], (char)n);
    }
    JOIN(sender);
    OK(msgctl(id, IPC_RMID, NULL));
}

/* --- permissions --- */

static void msg_facts(void)
{
    struct msginfo info;
    struct msqid_ds now;
    int id = FD(msgget(IPC_PRIVATE, 0600));
    OK(put(id, 1, "four", 0));
    OK(put(id, 1, "three", 0));
    int last = msgctl(0, MSG_INFO, (void *)&info);
    CHECK(last >= 0 && info.msgpool >= 1 && info.msgmap >= 2 && info.msgtql >= 9);
    bool found = false;
    for (int index = 0; index <= last; index++)
        found |= msgctl(index, MSG_STAT, &now) == id && now.msg_qnum == 2 && now.__msg_cbytes == 9;
    CHECK(found);
    CHECK_ERR(msgctl(INT_MAX, MSG_STAT, &now), EINVAL);
    CHECK_GOT(id, 0, 0, 1, "four");
    CHECK_GOT(id, 0, 0, 1, "three");
    for (int round = 0; round < 2; round++) {
        /* What limits say, and what they follow from, do not depend on each other. */
        CHECK(msgctl(0, IPC_INFO, (void *)&info) >= 0);
        CHECK(info.msgpool == 512000 && info.msgmap == 16384 && info.msgtql == 16384);
        CHECK(info.msgssz == 16 && info.msgseg == 0xffff);
        CHECK_EQ(info.msgmax, atoi(setting("kernel/msgmax")));
        CHECK_EQ(info.msgmnb, atoi(setting("kernel/msgmnb")));
        CHECK_EQ(info.msgmni, atoi(setting("kernel/msgmni")));
        CHECK(msgctl(0, MSG_INFO, (void *)&info) >= 0);
        OK(msgctl(id, IPC_RMID, NULL));
        if (round == 0 && !own_settings())
            SKIP("settings cannot be changed");
        OK(try_setting("kernel/msgmnb", round ? "16384" : "2147483647"));
        id = FD(msgget(IPC_PRIVATE, 0600));
    }
    OK(msgctl(id, IPC_RMID, NULL));
}

/* Everybody sees by index what only some may see by id. */
static void stat_any(void)
{
    if (geteuid() != 0)
        SKIP("not root: no other users to be");
    int ids[] = {FD(shmget(IPC_PRIVATE, PAGE, 0600)), FD(semget(IPC_PRIVATE, 1, 0600)), FD(msgget(IPC_PRIVATE, 0600))};
    JOIN(CHILD({
        as_user(12345);
        union {
            struct shmid_ds shm;
            struct semid_ds sem;
            struct msqid_ds msg;
        } now;
        CHECK_ERR(shmctl(ids[0] & 0x7fff, SHM_STAT, &now.shm), EACCES);
        CHECK_EQ(shmctl(ids[0] & 0x7fff, STAT_ANY_SHM, &now.shm), ids[0]);
        CHECK_EQ(now.shm.shm_segsz, PAGE);
        CHECK_ERR(semctl(ids[1] & 0x7fff, 0, SEM_STAT, (union semun){.buf = &now.sem}), EACCES);
        CHECK_EQ(syscall(SYS_semctl, ids[1] & 0x7fff, 0, STAT_ANY_SEM, &now.sem), ids[1]);
        CHECK_EQ(now.sem.sem_nsems, 1);
        CHECK_ERR(msgctl(ids[2] & 0x7fff, MSG_STAT, &now.msg), EACCES);
        CHECK_EQ(msgctl(ids[2] & 0x7fff, STAT_ANY_MSG, &now.msg), ids[2]);
        CHECK_EQ(now.msg.msg_perm.mode, 0600);
    }));
    OK(shmctl(ids[0], IPC_RMID, NULL));
    OK(semctl(ids[1], 0, IPC_RMID));
    OK(msgctl(ids[2], IPC_RMID, NULL));
}

/* Root uses others' objects by CAP_IPC_OWNER, and changes them by CAP_SYS_ADMIN, not because it is root. */
static void capabilities(void)
{
    if (geteuid() != 0)
        SKIP("not root");
    int tell[2];
    OK(pipe(tell));
    pid_t child = CHILD({
        as_user(12345);
        int made[] = {FD(shmget(IPC_PRIVATE, PAGE, 0600)), FD(semget(IPC_PRIVATE, 1, 0600)), FD(msgget(IPC_PRIVATE, 0600))};
        CHECK_EQ(write(tell[1], made, sizeof made), sizeof made);
    });
    int ids[3];
    CHECK_EQ(read(tell[0], ids, sizeof ids), sizeof ids);
    JOIN(child);
    for (int has = 0; has < 2; has++)
        JOIN(CHILD({
            keep_capabilities(has ? 1ull << CAP_IPC_OWNER : 0);
            errno = 0;
            CHECK_EQ(shmat(ids[0], NULL, 0) != (void *)-1, has);
            CHECK_EQ(errno, has ? 0 : EACCES);
            CHECK_EQ(semctl(ids[1], 0, GETVAL), has ? 0 : -1);
            CHECK_EQ(change(ids[1], 0, 0, 0), has ? 0 : -1);
            CHECK_EQ(put(ids[2], 1, "x", 0), has ? 0 : -1);
            CHECK_ERR(shmctl(ids[0], IPC_RMID, NULL), EPERM);
            CHECK_ERR(semctl(ids[1], 0, IPC_RMID), EPERM);
            CHECK_ERR(msgctl(ids[2], IPC_RMID, NULL), EPERM);
        }));
    JOIN(CHILD({
        keep_capabilities(1ull << CAP_SYS_ADMIN);
        CHECK_ERR((long)shmat(ids[0], NULL, 0), EACCES);
        OK(shmctl(ids[0], IPC_RMID, NULL));
        OK(semctl(ids[1], 0, IPC_RMID));
        OK(msgctl(ids[2], IPC_RMID, NULL));
    }));
}

static void permissions(void)
{
    if (geteuid() != 0)
        SKIP("not root: no other users to be");
    key_t key = own_key(4);
    int memory = FD(shmget(key, PAGE, IPC_CREAT | 0604)), set = FD(semget(IPC_PRIVATE, 1, 0640));
    int queue = FD(msgget(IPC_PRIVATE, 0622));
    struct shmid_ds segment;
    struct msqid_ds messages;
    struct message message;
    JOIN(CHILD({
        as_user(12345);
        CHECK_EQ(shmget(key, 0, 0), memory);
        CHECK_EQ(shmget(key, PAGE, 0004), memory);
        CHECK_ERR(shmget(key, PAGE, 0006), EACCES);
        OK(shmctl(memory, IPC_STAT, &segment));
        CHECK(shmat(memory, NULL, SHM_RDONLY) != (void *)-1);
        CHECK_ERR((long)shmat(memory, NULL, 0), EACCES);
        CHECK_ERR((long)shmat(memory, NULL, SHM_RDONLY | SHM_EXEC), EACCES);
        CHECK_ERR(shmctl(memory, IPC_RMID, NULL), EPERM);
        CHECK_ERR(shmctl(memory, IPC_SET, &segment), EPERM);
        CHECK_ERR(shmctl(memory, SHM_LOCK, NULL), EPERM);
        CHECK_ERR(semctl(set, 0, GETVAL), EACCES);
        CHECK_ERR(semctl(set, 0, SETVAL, (union semun){.val = 1}), EACCES);
        CHECK_ERR(change(set, 0, 1, 0), EACCES);
        CHECK_ERR(change(set, 0, 0, 0), EACCES);
        OK(put(queue, 1, "in", 0));
        CHECK_ERR(msgrcv(queue, &message, 10, 0, 0), EACCES);
        CHECK_ERR(msgctl(queue, IPC_STAT, &messages), EACCES);
    }));
    /* The owner may change, though another has made it. */
    OK(shmctl(memory, IPC_STAT, &segment));
    segment.shm_perm.uid = 12345;
    OK(shmctl(memory, IPC_SET, &segment));
    OK(msgctl(queue, IPC_STAT, &messages));
    messages.msg_perm.uid = 12345;
    OK(msgctl(queue, IPC_SET, &messages));
    JOIN(CHILD({
        as_user(12345);
        OK(shmctl(memory, IPC_RMID, NULL));
        messages.msg_qbytes = 1 << 20;
        CHECK_ERR(msgctl(queue, IPC_SET, &messages), EPERM);
        OK(msgctl(queue, IPC_RMID, NULL));
    }));
    OK(semctl(set, 0, IPC_RMID));
}

/* --- many, and in each other's way --- */

static int by_number(const void *left, const void *right)
{
    int a = *(const int *)left, b = *(const int *)right;
    return (a > b) - (a < b);
}

static void many(void)
{
    enum { COUNT = 1000 };
    static int ids[COUNT];
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < COUNT; i++) {
            ids[i] = kind == 0   ? shmget(IPC_PRIVATE, PAGE, 0600)
                     : kind == 1 ? semget(IPC_PRIVATE, 3, 0600)
                                 : msgget(IPC_PRIVATE, 0600);
            CHECK(ids[i] >= 0);
        }
        static int sorted[COUNT];
        memcpy(sorted, ids, sizeof ids);
        qsort(sorted, COUNT, sizeof *sorted, by_number);
        for (int i = 1; i < COUNT; i++)
            CHECK(sorted[i - 1] < sorted[i]);
        for (int i = 0; i < COUNT; i++)
            OK(kind == 0   ? shmctl(ids[i], IPC_RMID, NULL)
               : kind == 1 ? semctl(ids[i], 0, IPC_RMID)
                           : msgctl(ids[i], IPC_RMID, NULL));
    }
}

static void races(void)
{
    key_t key = own_key(5);
    enum { COUNT = 4 };
    pid_t children[COUNT];
    for (int i = 0; i < COUNT; i++)
        children[i] = CHILD(for (long n = 0; n < scaled(200); n++) {
            int memory = shmget(key, PAGE, IPC_CREAT | 0600);
            CHECK(memory >= 0 || errno == EIDRM || errno == EINVAL);
            char *shared = shmat(memory, NULL, 0);
            if (shared != (void *)-1) {
                shared[n % PAGE] = 1;
                shmctl(memory, IPC_RMID, NULL);
                OK(shmdt(shared));
            }
            int set = semget(key, 2, IPC_CREAT | 0600);
            if (set >= 0) {
                struct timespec soon = {0, 1000000};
                struct sembuf ops[] = {{0, 1, SEM_UNDO}, {1, (short)(n % 3 - 1), SEM_UNDO}};
                int done = semtimedop(set, ops, 2, &soon);
                CHECK(done == 0 || errno == EAGAIN || errno == EIDRM || errno == EINVAL);
                if (n % 4 == 0)
                    semctl(set, 0, IPC_RMID);
            }
            int queue = msgget(key, IPC_CREAT | 0600);
            if (queue >= 0) {
                int sent = put(queue, n % 3 + 1, "text", IPC_NOWAIT);
                CHECK(sent == 0 || errno == EAGAIN || errno == EIDRM || errno == EINVAL);
                if (n % 4 == 1)
                    msgctl(queue, IPC_RMID, NULL);
            }
        });
    for (int i = 0; i < COUNT; i++)
        JOIN(children[i]);
    semctl(semget(key, 0, 0), 0, IPC_RMID);
    msgctl(msgget(key, 0), IPC_RMID, NULL);
    shmctl(shmget(key, 0, 0), IPC_RMID, NULL);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(shm_objects),       TEST(shm_places),       TEST(shm_lives),  TEST(shm_sharing),       TEST(shm_facts),
        TEST(removal_of_pages),  TEST(shm_forced),       TEST(settings),   TEST(sem_objects),       TEST(sem_waiting),
        TEST(sem_undo),          TEST(sem_undo_at_once), TEST(sem_crowd),  TEST(sem_ends_of_waits), TEST(sem_facts),
        TEST(sem_lock_under_load), TEST(msg_objects),    TEST(msg_waiting), TEST(msg_stream),       TEST(msg_facts),
        TEST(stat_any),          TEST(capabilities),     TEST(permissions), TEST(many),             TEST(races),
    };
    return RUN_TESTS("sysv", tests, argc, argv);
}
