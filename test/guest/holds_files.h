/* Families of holds.c: watched files, leases, and locks of every kind. */
#include "holds.h"
#include <sys/file.h>
#include <sys/inotify.h>

static atomic_long changed, noticed;

/* Makes, renames and removes files; the last one is called "end". */
static void *change_files(void *unused)
{
    char name[32], other[32];
    do {
        snprintf(name, sizeof name, "watched/a%ld", changed);
        snprintf(other, sizeof other, "watched/b%ld", changed);
        int fd = FD(open(name, O_WRONLY | O_CREAT | O_EXCL, 0600));
        MOVE(write(fd, "x", 1), 1);
        OK(close(fd));
        OK(rename(name, other));
        OK(unlink(other));
        changed++;
        while (changed > noticed + 500)
            usleep(500);
    } while (goes_on());
    OK(mkdir("watched/end", 0700));
    return unused;
}

static void expect_event(const struct inotify_event *event, uint32_t mask, char letter)
{
    char name[32];
    snprintf(name, sizeof name, "%c%ld", letter, noticed);
    if (event->mask != mask || strcmp(event->name, name) != 0)
        FAIL("event %#x of %s; want %#x of %s", event->mask, event->name, mask, name);
}

/* Every change is told, once and in its order. */
static void inotify(void)
{
    static const uint32_t MASKS[] = {IN_CREATE, IN_MODIFY, IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_DELETE};
    enum { KINDS = sizeof MASKS / sizeof *MASKS };
    OK(mkdir("watched", 0700));
    int fd = FD(inotify_init());
    uint32_t all = 0, cookie = 0;
    for (int i = 0; i < KINDS; i++)
        all |= MASKS[i];
    FD(inotify_add_watch(fd, "watched", all));
    pthread_t changer = thread_of(change_files, NULL);
    char bytes[2048] __attribute__((aligned(8)));
    for (int at = 0;;) {
        AT();
        ssize_t size = read(fd, bytes, sizeof bytes);
        CHECK(size > 0);
        const struct inotify_event *event;
        for (char *next = bytes; next < bytes + size; next += sizeof *event + event->len) {
            event = (const struct inotify_event *)next;
            if (event->mask == (IN_CREATE | IN_ISDIR) && !strcmp(event->name, "end")) {
                CHECK_EQ(at, 0);
                PT(pthread_join(changer, NULL));
                CHECK_EQ(noticed, changed);
                return;
            }
            expect_event(event, MASKS[at], MASKS[at] & (IN_MOVED_TO | IN_DELETE) ? 'b' : 'a');
            CHECK(MASKS[at] != IN_MOVED_TO || event->cookie == cookie);
            cookie = event->cookie;
            at = (at + 1) % KINDS;
            noticed += at == 0;
        }
    }
}

/* A reader's lease, which a writer breaks again and again. */
static void leases(void)
{
    enum { SIGNAL_LEASE = 41 };
    block_signal(SIGNAL_LEASE);
    write_file("leased", "", 0600);
    atomic_long *openings = pages_of(1, MAP_SHARED);
    pid_t writer = MEMBER({
        do {
            int fd = FD(open("leased", O_WRONLY | O_APPEND));
            MOVE(write(fd, "x", 1), 1);
            openings[0]++;
            OK(close(fd));
        } while (goes_on());
        openings[1] = 1;
    });
    int fd = FD(open("leased", O_RDONLY));
    long breaks = 0, left_alone = 0;
    siginfo_t info;
    while (!openings[1]) {
        AT();
        OK(fcntl(fd, F_SETSIG, SIGNAL_LEASE)); /* a lease that goes takes it along */
        if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0) {
            CHECK_EQ(errno, EAGAIN); /* it is open for writing */
            usleep(100);
            continue;
        }
        while (!openings[1] && !take_signal(SIGNAL_LEASE, &info))
            usleep(100);
        long before = openings[0];
        struct stat facts;
        OK(fstat(fd, &facts));
        if (fcntl(fd, F_GETLEASE) == F_RDLCK) {
            left_alone++;
            CHECK(openings[1]);
        } else {
            CHECK(info.si_fd == fd && info.si_code == POLL_MSG);
            CHECK_EQ(openings[0], before);
            breaks++;
        }
        OK(fcntl(fd, F_SETLEASE, F_UNLCK));
    }
    JOIN(writer);
    struct stat facts;
    OK(fstat(fd, &facts));
    CHECK_EQ(facts.st_size, openings[0]);
    CHECK(breaks <= openings[0] && left_alone <= 1);
}

enum { LOCKERS = 3, KINDS_OF_LOCKS = 3 };

/* Locks the file's first byte in one of three ways, or lets go of it. */
static void lock_file(int fd, int kind, int type)
{
    struct flock whole = {.l_type = (short)type, .l_whence = SEEK_SET, .l_len = 1};
    int result;
    do
        result = kind == 0   ? flock(fd, type == F_UNLCK ? LOCK_UN : LOCK_EX)
                 : kind == 1 ? fcntl(fd, F_OFD_SETLKW, &whole)
                             : fcntl(fd, F_SETLKW, &whole);
    while (result < 0 && errno == EINTR);
    OK(result);
}

/* Counts under each kind of lock, in the file itself. */
static void count_in_files(long *counted)
{
    int files[KINDS_OF_LOCKS];
    for (int kind = 0; kind < KINDS_OF_LOCKS; kind++) {
        char name[8] = {'l', (char)('0' + kind)};
        files[kind] = FD(open(name, O_RDWR | O_CREAT, 0600));
    }
    while (goes_on()) {
        int kind = (int)random_below(KINDS_OF_LOCKS);
        long value = 0;
        AT();
        lock_file(files[kind], kind, F_WRLCK);
        CHECK(pread(files[kind], &value, sizeof value, 8) >= 0);
        value++;
        MOVE(pwrite(files[kind], &value, sizeof value, 8), sizeof value);
        lock_file(files[kind], kind, F_UNLCK);
        counted[kind]++;
    }
}

static void locks(void)
{
    long *counted = pages_of(LOCKERS, MAP_SHARED);
    pid_t lockers[LOCKERS];
    for (int i = 0; i < LOCKERS; i++)
        lockers[i] = MEMBER(count_in_files(counted + i * WORDS));
    for (int i = 0; i < LOCKERS; i++)
        JOIN(lockers[i]);
    for (int kind = 0; kind < KINDS_OF_LOCKS; kind++) {
        char name[8] = {'l', (char)('0' + kind)};
        int fd = FD(open(name, O_RDONLY));
        long value = 0, sum = 0;
        CHECK(pread(fd, &value, sizeof value, 8) >= 0);
        for (int i = 0; i < LOCKERS; i++)
            sum += counted[i * WORDS + kind];
        CHECK_EQ(value, sum);
    }
}
