// In the middle of something when its sandbox hibernates: each mode says "ready" once it waits, goes on when a line comes
// on standard input, and says "ok" if nothing was lost.
//
// midst futex|epoll|child|pipe|timer|signal|vfork|unread|family|ipc|inotify|promises|memory
// midst unread PORT | download PORT BYTES | server PORT THREADS | busy THREADS
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static void fail(const char *what) {
    printf("FAILED: %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

#define HOLDS(what) ((what) ? (void)0 : fail(#what))

static void ready(void) {
    puts("ready");
    fflush(stdout);
}

static void await_line(void) {
    char byte;
    do
        HOLDS(read(0, &byte, 1) == 1);
    while (byte != '\n');
}

static uint64_t word(uint64_t key, uint64_t at) {
    uint64_t x = (key + 1) * 0x9e3779b97f4a7c15ull ^ at * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 31;
    return x * 0xd6e8feb86659fd93ull;
}

static void fill(uint64_t *memory, uint64_t pages, uint64_t key) {
    for (uint64_t i = 0; i < pages * WORDS; i++)
        memory[i] = word(key, i);
}

static int is_filled(const uint64_t *memory, uint64_t pages, uint64_t key) {
    for (uint64_t i = 0; i < pages * WORDS; i++)
        if (memory[i] != word(key, i))
            return 0;
    return 1;
}

static uint64_t *pages_of(uint64_t pages, int flags) {
    void *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    HOLDS(memory != MAP_FAILED);
    return memory;
}

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static atomic_uint door;

static void *futex_waiter(void *argument) {
    (void)argument;
    while (door == 0)
        syscall(SYS_futex, &door, FUTEX_WAIT, 0, NULL, NULL, 0);
    return NULL;
}

/* Waits at two words at once, of which the second is the door. */
static void *waiter_of_two(void *argument) {
    static uint32_t other;
    struct {
        uint64_t value, address;
        uint32_t flags, reserved;
    } both[2] = {{0, (uintptr_t)&other, 2, 0}, {0, (uintptr_t)&door, 2, 0}};
    (void)argument;
    while (door == 0) {
        long which = syscall(449 /* futex_waitv */, both, 2, 0, NULL, 0);
        HOLDS(which == 1 || door != 0);
    }
    return NULL;
}

static uint32_t queue, owned;

/* Waits for a word, and is moved to a lock. */
static void *moved_waiter(void *argument) {
    (void)argument;
    HOLDS(syscall(SYS_futex, &queue, FUTEX_WAIT_REQUEUE_PI, 0, NULL, &owned, 0) == 0);
    HOLDS((owned & FUTEX_TID_MASK) == (uint32_t)syscall(SYS_gettid));
    HOLDS(syscall(SYS_futex, &owned, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0) == 0);
    return NULL;
}

static void move_one(void) {
    while (syscall(SYS_futex, &queue, FUTEX_CMP_REQUEUE_PI, 1, NULL, &owned, 0) == 0)
        usleep(100);
}

static int futex(void) {
    void *(*const runs[7])(void *) = {futex_waiter,  futex_waiter, futex_waiter, futex_waiter,
                                      waiter_of_two, moved_waiter, moved_waiter};
    pthread_t threads[7];
    HOLDS(syscall(SYS_futex, &owned, FUTEX_LOCK_PI, 0, NULL, NULL, 0) == 0);
    for (int i = 0; i < 7; i++)
        HOLDS(pthread_create(&threads[i], NULL, runs[i], NULL) == 0);
    move_one();
    ready();
    await_line();
    move_one();
    HOLDS(syscall(SYS_futex, &owned, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0) == 0);
    door = 1;
    syscall(SYS_futex, &door, FUTEX_WAKE, 100, NULL, NULL, 0);
    for (int i = 0; i < 7; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

static void *line_to_event(void *argument) {
    await_line();
    HOLDS(eventfd_write(*(int *)argument, 5) == 0);
    return NULL;
}

static int epoll(void) {
    int set = epoll_create1(0), event = eventfd(0, 0), quiet[2];
    HOLDS(pipe(quiet) == 0);
    struct epoll_event first = {.events = EPOLLIN, .data.u64 = 17}, second = {.events = EPOLLIN, .data.u64 = 18}, got;
    HOLDS(epoll_ctl(set, EPOLL_CTL_ADD, event, &first) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, quiet[0], &second) == 0);
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, line_to_event, &event) == 0);
    ready();
    HOLDS(epoll_wait(set, &got, 1, -1) == 1 && got.data.u64 == 17);
    eventfd_t value;
    HOLDS(eventfd_read(event, &value) == 0 && value == 5);
    HOLDS(epoll_wait(set, &got, 1, 0) == 0);
    pthread_join(thread, NULL);
    return 0;
}

/* Events lie in one queue, and another is waited for; watches go on after the sleep. */
static void *line_to_files(void *argument) {
    (void)argument;
    await_line();
    HOLDS(close(open("awaited/after", O_WRONLY | O_CREAT, 0600)) == 0);
    return NULL;
}

static int inotify(void) {
    char directory[] = "/tmp/midst.XXXXXX", bytes[4096] __attribute__((aligned(8)));
    const struct inotify_event *event = (struct inotify_event *)bytes;
    HOLDS(mkdtemp(directory) && chdir(directory) == 0);
    HOLDS(mkdir("queued", 0700) == 0 && mkdir("awaited", 0700) == 0);
    int queued = inotify_init1(IN_NONBLOCK), awaited = inotify_init();
    HOLDS(inotify_add_watch(queued, "queued", IN_CREATE | IN_DELETE) == 1);
    HOLDS(inotify_add_watch(awaited, "awaited", IN_CREATE) == 1);
    HOLDS(close(open("queued/before", O_WRONLY | O_CREAT, 0600)) == 0);
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, line_to_files, NULL) == 0);
    ready();
    HOLDS(read(awaited, bytes, sizeof bytes) == 32 && event->mask == IN_CREATE && strcmp(event->name, "after") == 0);
    HOLDS(unlink("queued/before") == 0);
    HOLDS(read(queued, bytes, 32) == 32 && event->mask == IN_CREATE && strcmp(event->name, "before") == 0);
    HOLDS(read(queued, bytes, 32) == 32 && event->mask == IN_DELETE && strcmp(event->name, "before") == 0);
    HOLDS(read(queued, bytes, 32) == -1 && errno == EAGAIN);
    pthread_join(thread, NULL);
    return 0;
}

static int child(void) {
    uint64_t *memory = pages_of(64, MAP_PRIVATE);
    fill(memory, 64, 1);
    pid_t pid = fork();
    HOLDS(pid >= 0);
    if (pid == 0) {
        ready();
        await_line();
        fill(memory, 64, 2);
        _exit(is_filled(memory, 64, 2) ? 7 : 1);
    }
    int status;
    HOLDS(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    HOLDS(is_filled(memory, 64, 1));
    return 0;
}

static int full_pipe(void) {
    int ends[2];
    HOLDS(pipe(ends) == 0);
    uint64_t *memory = pages_of(256, MAP_PRIVATE);
    fill(memory, 256, 3);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        for (size_t done = 0; done < 256 * PAGE;) {
            ssize_t moved = write(ends[1], (char *)memory + done, 256 * PAGE - done);
            HOLDS(moved > 0);
            done += (size_t)moved;
        }
        _exit(0);
    }
    close(ends[1]);
    usleep(20000);
    ready();
    await_line();
    uint64_t *copy = pages_of(256, MAP_PRIVATE);
    size_t done = 0;
    for (ssize_t moved; (moved = read(ends[0], (char *)copy + done, 5000)) > 0;)
        done += (size_t)moved;
    HOLDS(done == 256 * PAGE && is_filled(copy, 256, 3));
    int status;
    HOLDS(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}

static atomic_int alarms;
static void on_alarm(int signal) { (void)signal; alarms++; }

// Timers that fall due meanwhile come once it is awake, and none comes early.
static int timer(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    int clock = timerfd_create(CLOCK_MONOTONIC, 0);
    uint64_t start = now_ms();
    struct itimerspec due = {.it_value = {.tv_nsec = 300000000}};
    struct itimerval alarm = {.it_value = {.tv_usec = 300000}};
    HOLDS(timerfd_settime(clock, 0, &due, NULL) == 0 && setitimer(ITIMER_REAL, &alarm, NULL) == 0);
    ready();
    uint64_t expirations;
    HOLDS(read(clock, &expirations, 8) == 8 && expirations == 1);
    HOLDS(now_ms() - start >= 300);
    struct timespec rest = {.tv_nsec = 200000000};
    uint64_t slept = now_ms();
    HOLDS(clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, NULL) == 0 || errno == EINTR);
    HOLDS(now_ms() - slept >= 200 || alarms == 1);
    await_line();
    HOLDS(alarms == 1);
    return 0;
}

static int pending_signal(void) {
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGUSR1, &action, NULL);
    sigset_t set, seen;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    kill(getpid(), SIGUSR1);
    for (int i = 0; i < 3; i++)
        HOLDS(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 40 + i}) == 0);
    ready();
    await_line();
    HOLDS(alarms == 0 && sigpending(&seen) == 0 && sigismember(&seen, SIGUSR1) && sigismember(&seen, SIGRTMIN));
    sigdelset(&set, SIGUSR1);
    for (int i = 0; i < 3; i++) {
        siginfo_t info;
        HOLDS(sigwaitinfo(&set, &info) == SIGRTMIN && info.si_value.sival_int == 40 + i);
    }
    sigemptyset(&set);
    sigprocmask(SIG_SETMASK, &set, NULL);
    HOLDS(alarms == 1);
    return 0;
}

static int open_vfork(void) {
    volatile int left = 1;
    ready();
    pid_t pid = vfork();
    if (pid == 0) {
        await_line();
        left = 2;
        _exit(9);
    }
    int status;
    HOLDS(pid > 0 && left == 2 && waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 9);
    return 0;
}

static struct sockaddr_in loopback(const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return to;
}

static int client_of(const char *port) {
    struct sockaddr_in to = loopback(port);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    HOLDS(client >= 0 && connect(client, (struct sockaddr *)&to, sizeof to) == 0);
    return client;
}

// The peer sends 3 pages of key 4 at once, and nothing more.
static int unread(const char *port) {
    int client = client_of(port);
    struct pollfd some = {.fd = client, .events = POLLIN};
    HOLDS(poll(&some, 1, -1) == 1);
    ready();
    await_line();
    uint64_t *copy = pages_of(3, MAP_PRIVATE);
    HOLDS(recv(client, copy, 3 * PAGE, MSG_WAITALL) == 3 * PAGE && is_filled(copy, 3, 4));
    return 0;
}

// The peer sends the words of key 5.
static int download(const char *port, uint64_t bytes) {
    int client = client_of(port);
    ready();
    uint64_t at = 0;
    for (uint64_t buffer[4 * WORDS]; at < bytes;) {
        ssize_t moved = recv(client, buffer, sizeof buffer, MSG_WAITALL);
        HOLDS(moved > 0 && moved % 8 == 0);
        for (ssize_t i = 0; i < moved / 8; i++)
            HOLDS(buffer[i] == word(5, at / 8 + (uint64_t)i));
        at += (uint64_t)moved;
    }
    char more;
    HOLDS(recv(client, &more, 1, 0) == 0);
    return 0;
}

// Answers each request, 8 bytes with a number, by the number's word out of memory that was filled at the start.
static uint64_t *answers;
static int listener;
enum { ANSWER_PAGES = 256 };

static void *serve(void *argument) {
    (void)argument;
    for (;;) {
        int client = accept4(listener, NULL, NULL, 0);
        if (client < 0)
            continue;
        uint64_t number;
        while (recv(client, &number, 8, MSG_WAITALL) == 8)
            if (send(client, &answers[number % (ANSWER_PAGES * WORDS)], 8, MSG_NOSIGNAL) != 8)
                break;
        close(client);
    }
    return NULL;
}

static int server(const char *port, int threads) {
    struct sockaddr_in at = loopback(port);
    int on = 1;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    HOLDS(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 128) == 0);
    answers = pages_of(ANSWER_PAGES, MAP_PRIVATE);
    fill(answers, ANSWER_PAGES, 6);
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        HOLDS(pthread_create(&thread, NULL, serve, NULL) == 0);
    }
    ready();
    await_line();
    HOLDS(is_filled(answers, ANSWER_PAGES, 6));
    return 0;
}

// A parent and three children share frames by fork and by a shared mapping. A line makes the children look and write.
enum { FAMILY_PAGES = 512 };

static int family(void) {
    uint64_t *mine = pages_of(FAMILY_PAGES, MAP_PRIVATE), *ours = pages_of(FAMILY_PAGES, MAP_SHARED);
    int go[2];
    HOLDS(pipe(go) == 0);
    fill(mine, FAMILY_PAGES, 10);
    fill(ours, FAMILY_PAGES, 11);
    pid_t pids[3];
    for (uint64_t i = 0; i < 3; i++) {
        pids[i] = fork();
        HOLDS(pids[i] >= 0);
        if (pids[i] == 0) {
            char byte;
            HOLDS(read(go[0], &byte, 1) == 1);
            HOLDS(is_filled(mine, FAMILY_PAGES, 10));
            fill(mine, 4, 20 + i);
            ours[i * WORDS] = 100 + i;
            HOLDS(is_filled(mine, 4, 20 + i));
            _exit(0);
        }
    }
    ready();
    await_line();
    HOLDS(is_filled(ours, FAMILY_PAGES, 11));
    HOLDS(write(go[1], "aaa", 3) == 3);
    for (int i = 0; i < 3; i++) {
        int status;
        HOLDS(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
    }
    for (uint64_t i = 0; i < 3; i++)
        HOLDS(ours[i * WORDS] == 100 + i);
    HOLDS(is_filled(mine, FAMILY_PAGES, 10));
    return 0;
}

// Waits with some MiB of memory, which it checks at the end.
static int memory(uint64_t mib) {
    uint64_t *all = pages_of(mib * 256, MAP_PRIVATE);
    fill(all, mib * 256, 30);
    ready();
    await_line();
    HOLDS(is_filled(all, mib * 256, 30));
    return 0;
}

static volatile int enough;
static pthread_barrier_t begun;

static void *spin(void *argument) {
    pthread_barrier_wait(&begun);
    while (!enough)
        ;
    return argument;
}

// Threads that all want a processor, and never call the kernel.
static int busy(int count) {
    pthread_t ids[512];
    HOLDS(count <= 512 && pthread_barrier_init(&begun, NULL, (unsigned)count + 1) == 0);
    for (int i = 0; i < count; i++)
        HOLDS(pthread_create(&ids[i], NULL, spin, NULL) == 0);
    pthread_barrier_wait(&begun);
    ready();
    await_line();
    enough = 1;
    for (int i = 0; i < count; i++)
        HOLDS(pthread_join(ids[i], NULL) == 0);
    return 0;
}

static void nothing(int number) {
    (void)number;
}

// Memory that is locked, sealed, or moved and kept, and a thread's word for restartable sequences, which names its processor.
static int promises(void) {
    enum { PAGES = 64, SEAL = 462, SIGNATURE = 0x53053053 };
    static struct { uint32_t start, cpu; uint64_t sequence; uint32_t rest[12]; } place __attribute__((aligned(32)));
    uint64_t *area = pages_of(PAGES, MAP_PRIVATE), *other = pages_of(PAGES, MAP_PRIVATE);
    HOLDS(mlock(area, PAGES * PAGE) == 0);
    fill(area, PAGES, 60);
    fill(other, PAGES, 61);
    uint64_t *moved = (uint64_t *)syscall(SYS_mremap, other, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | 4, NULL);
    HOLDS(moved != MAP_FAILED && syscall(SEAL, moved, PAGES * PAGE, 0) == 0);
    pthread_t thread = pthread_self();
    bool own = syscall(SYS_rseq, &place, 32, 0, SIGNATURE) == 0; // or the C library has registered its own
    signal(SIGUSR1, nothing);
    ready();
    await_line();
    HOLDS(is_filled(area, PAGES, 60) && is_filled(moved, PAGES, 61));
    HOLDS(munmap(moved, PAGE) < 0 && errno == EPERM && other[PAGE / 8] == 0);
    HOLDS(madvise(area, PAGE, MADV_DONTNEED) < 0 && errno == EINVAL);
    HOLDS(pthread_kill(thread, SIGUSR1) == 0);
    for (int tries = 0; own && tries < 1000; tries++) {
        unsigned cpu;
        HOLDS(syscall(SYS_getcpu, &cpu, NULL, NULL) == 0);
        if (((volatile typeof(place) *)&place)->cpu == cpu)
            return 0;
    }
    return own;
}

// System V objects and message queues: a segment that nobody maps, one that is mapped and removed, messages, and children
// that wait for each kind.
static int ipc(void) {
    enum { SEGMENT_PAGES = 600, WAITERS = 3 };
    int unmapped = shmget(IPC_PRIVATE, SEGMENT_PAGES * PAGE, 0600), removed = shmget(IPC_PRIVATE, 8 * PAGE, 0600);
    int set = semget(IPC_PRIVATE, 2, 0600), queue = msgget(IPC_PRIVATE, 0600);
    HOLDS(unmapped >= 0 && removed >= 0 && set >= 0 && queue >= 0);
    uint64_t *segment = shmat(unmapped, NULL, 0), *mapped = shmat(removed, NULL, 0);
    HOLDS(segment != (void *)-1 && mapped != (void *)-1);
    fill(segment, SEGMENT_PAGES, 40);
    fill(mapped, 8, 41);
    HOLDS(shmdt(segment) == 0 && shmctl(removed, IPC_RMID, NULL) == 0);
    char name[32];
    snprintf(name, sizeof name, "/midst.%d", getpid());
    struct mq_attr attr = {.mq_maxmsg = 4, .mq_msgsize = 64};
    mqd_t waited = mq_open(name, O_CREAT | O_RDWR, 0600, &attr);
    HOLDS(waited >= 0 && mq_unlink(name) == 0);
    mqd_t filled = mq_open(name, O_CREAT | O_RDWR, 0600, &attr);
    HOLDS(filled >= 0 && mq_send(filled, "low", 3, 1) == 0 && mq_send(filled, "high", 4, 9) == 0);
    struct { long kind; char text[64]; } message = {3, "a message"};
    HOLDS(msgsnd(queue, &message, 10, 0) == 0);
    pid_t pids[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        pids[i] = fork();
        HOLDS(pids[i] >= 0);
        if (pids[i] != 0)
            continue;
        struct sembuf down[] = {{0, -1, SEM_UNDO}, {1, 2, 0}};
        if (i == 0)
            HOLDS(semop(set, down, 2) == 0);
        else if (i == 1)
            HOLDS(msgrcv(queue, &message, 64, 7, 0) == 5 && strcmp(message.text, "late") == 0);
        else
            HOLDS(mq_receive(waited, message.text, 64, NULL) == 6 && strcmp(message.text, "first") == 0);
        _exit(0);
    }
    while (semctl(set, 0, GETNCNT) != 1)
        usleep(1000);
    ready();
    await_line();
    HOLDS(semctl(set, 0, GETNCNT) == 1 && is_filled(mapped, 8, 41));
    struct shmid_ds facts;
    HOLDS(shmctl(removed, IPC_STAT, &facts) == 0 && facts.shm_nattch == 4);
    HOLDS(shmctl(unmapped, IPC_STAT, &facts) == 0 && facts.shm_nattch == 0);
    segment = shmat(unmapped, NULL, SHM_RDONLY);
    HOLDS(segment != (void *)-1 && is_filled(segment, SEGMENT_PAGES, 40));
    struct sembuf up = {0, 1, 0};
    HOLDS(semop(set, &up, 1) == 0 && mq_send(waited, "first", 6, 0) == 0);
    struct { long kind; char text[64]; } late = {7, "late"};
    HOLDS(msgsnd(queue, &late, 5, 0) == 0);
    for (int i = 0; i < WAITERS; i++) {
        int status;
        HOLDS(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
    }
    HOLDS(semctl(set, 0, GETVAL) == 1 && semctl(set, 1, GETVAL) == 2);
    HOLDS(msgrcv(queue, &message, 64, 0, 0) == 10 && strcmp(message.text, "a message") == 0);
    unsigned priority;
    HOLDS(mq_receive(filled, message.text, 64, &priority) == 4 && priority == 9);
    HOLDS(mq_receive(filled, message.text, 64, &priority) == 3 && priority == 1);
    HOLDS(mq_unlink(name) == 0 && shmctl(unmapped, IPC_RMID, NULL) == 0);
    HOLDS(semctl(set, 0, IPC_RMID) == 0 && msgctl(queue, IPC_RMID, NULL) == 0);
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "", *one = argc > 2 ? argv[2] : "0", *two = argc > 3 ? argv[3] : "1";
    struct {
        const char *name;
        int (*run)(void);
    } simple[] = {{"futex", futex},          {"epoll", epoll},      {"child", child},   {"pipe", full_pipe}, {"timer", timer},
                  {"signal", pending_signal}, {"vfork", open_vfork}, {"family", family}, {"ipc", ipc},     {"promises", promises},
                  {"inotify", inotify}};
    int status = 2;
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (!strcmp(mode, simple[i].name))
            status = simple[i].run();
    if (!strcmp(mode, "unread"))
        status = unread(one);
    if (!strcmp(mode, "download"))
        status = download(one, strtoull(two, NULL, 10));
    if (!strcmp(mode, "server"))
        status = server(one, atoi(two));
    if (!strcmp(mode, "busy"))
        status = busy(atoi(one));
    if (!strcmp(mode, "memory"))
        status = memory(strtoull(one, NULL, 10));
    puts(status == 0 ? "ok" : "usage: see the source");
    return status;
}
