/*
 * Memory, messages, locks and sockets in common with other containers of a pod.
 *
 *   share put KEY TEXT     a System V segment gets the text, and stays
 *   share get KEY          prints it, and removes the segment
 *   share send KEY TEXT    a System V queue gets the text as a message
 *   share receive KEY      prints the message, which it waits for, and removes the queue
 *   share add FILE TIMES   adds 1 to a counter in the mapped file, so often, under a lock in it; prints nothing
 *   share sum FILE         prints the counter
 *   share wait FILE        waits at a futex in the mapped file until `share wake` comes
 *   share wake FILE        wakes it, and waits until there was somebody to wake
 *   share hold FILE        locks the file, by fcntl(2) and by flock(2), makes FILE.held, and ends when that has gone
 *   share try FILE         prints whether others hold these locks
 *   share listen PATH      prints what comes over one connection to the socket, and removes it
 *   share call PATH TEXT   connects to it, once it is there, and sends the text
 */
#include "check.h"
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

enum { SIZE = 4096, TEXT = 256 };

struct message {
    long kind;
    char text[TEXT];
};

struct page {
    /* 0: new, 1: somebody prepares it, 2: ready. */
    atomic_int state;
    pthread_mutex_t lock;
    long counter;
    atomic_int wakes;
};

static key_t key_of(const char *word)
{
    return (key_t)strtol(word, NULL, 0);
}

static void segment(const char *key, const char *text)
{
    int id = shmget(key_of(key), SIZE, text ? IPC_CREAT | 0600 : 0);
    CHECK(id >= 0);
    char *at = shmat(id, NULL, 0);
    CHECK(at != (void *)-1);
    if (text) {
        snprintf(at, SIZE, "%s", text);
        return;
    }
    puts(at);
    OK(shmctl(id, IPC_RMID, NULL));
}

static void queue(const char *key, const char *text)
{
    struct message message = {.kind = 1};
    int id = msgget(key_of(key), IPC_CREAT | 0600);
    CHECK(id >= 0);
    if (text) {
        snprintf(message.text, TEXT, "%s", text);
        OK(msgsnd(id, &message, TEXT, 0));
        return;
    }
    CHECK_EQ(msgrcv(id, &message, TEXT, 0, 0), TEXT);
    puts(message.text);
    OK(msgctl(id, IPC_RMID, NULL));
}

static struct page *map(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0);
    OK(ftruncate(file, sizeof(struct page)));
    struct page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(page != MAP_FAILED);
    int new = 0;
    if (atomic_compare_exchange_strong(&page->state, &new, 1)) {
        pthread_mutexattr_t shared;
        pthread_mutexattr_init(&shared);
        pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&page->lock, &shared);
        atomic_store(&page->state, 2);
    }
    while (atomic_load(&page->state) != 2)
        usleep(1000);
    return page;
}

static void add(struct page *page, long times)
{
    for (long i = 0; i < times; i++) {
        pthread_mutex_lock(&page->lock);
        page->counter++;
        pthread_mutex_unlock(&page->lock);
    }
}

static long futex(atomic_int *word, int operation, int value)
{
    return syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static void await(struct page *page)
{
    while (atomic_load(&page->wakes) == 0)
        futex(&page->wakes, FUTEX_WAIT, 0);
    puts("woken");
}

static void wake(struct page *page)
{
    /* The word changes only when somebody was woken, so who waits has needed the wake. */
    while (futex(&page->wakes, FUTEX_WAKE, 1) == 0)
        usleep(10000);
    atomic_store(&page->wakes, 1);
    futex(&page->wakes, FUTEX_WAKE, 1);
}

static void hold(const char *path)
{
    struct flock all = {.l_type = F_WRLCK};
    char held[TEXT];
    int file = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0);
    OK(fcntl(file, F_SETLKW, &all));
    OK(flock(file, LOCK_EX));
    snprintf(held, sizeof held, "%s.held", path);
    CHECK(open(held, O_RDWR | O_CREAT, 0600) >= 0);
    while (access(held, F_OK) == 0)
        usleep(10000);
}

static void try(const char *path)
{
    struct flock all = {.l_type = F_RDLCK};
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    int record = fcntl(file, F_SETLK, &all);
    CHECK(record == 0 || errno == EAGAIN || errno == EACCES);
    int whole = flock(file, LOCK_EX | LOCK_NB);
    CHECK(whole == 0 || errno == EWOULDBLOCK);
    printf("fcntl %s, flock %s\n", record ? "held" : "free", whole ? "held" : "free");
}

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return address;
}

static void listen_at(const char *path)
{
    struct sockaddr_un address = address_of(path);
    char text[TEXT] = "";
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    OK(bind(listener, (struct sockaddr *)&address, sizeof address));
    OK(listen(listener, 1));
    int peer = accept(listener, NULL, NULL);
    CHECK(peer >= 0);
    CHECK(read(peer, text, sizeof text - 1) > 0);
    puts(text);
    OK(unlink(path));
}

static void call(const char *path, const char *text)
{
    struct sockaddr_un address = address_of(path);
    int caller = socket(AF_UNIX, SOCK_STREAM, 0);
    for (int left = 1000; connect(caller, (struct sockaddr *)&address, sizeof address) != 0; left--) {
        CHECK(left > 0 && (errno == ENOENT || errno == ECONNREFUSED));
        usleep(10000);
    }
    CHECK_EQ(write(caller, text, strlen(text)), strlen(text));
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "";
    const char *text = argc > 3 ? argv[3] : NULL;
    if (!strcmp(what, "put") || !strcmp(what, "get"))
        segment(argv[2], text);
    else if (!strcmp(what, "send") || !strcmp(what, "receive"))
        queue(argv[2], text);
    else if (!strcmp(what, "add"))
        add(map(argv[2]), text ? strtol(text, NULL, 10) : 1);
    else if (!strcmp(what, "sum"))
        printf("%ld\n", map(argv[2])->counter);
    else if (!strcmp(what, "wait"))
        await(map(argv[2]));
    else if (!strcmp(what, "wake"))
        wake(map(argv[2]));
    else if (!strcmp(what, "hold"))
        hold(argv[2]);
    else if (!strcmp(what, "try"))
        try(argv[2]);
    else if (!strcmp(what, "listen"))
        listen_at(argv[2]);
    else if (!strcmp(what, "call") && text)
        call(argv[2], text);
    else
        return 2;
    return 0;
}
