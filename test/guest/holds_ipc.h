/* Families of holds.c: System V objects, POSIX message queues, and keys. */
#include "holds.h"
#include <mqueue.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

/* Two counts that are equal whenever nobody is between them. */
struct tally {
    volatile long count, again;
};

static void add_to(struct tally *tally)
{
    long count = tally->count;
    CHECK_EQ(tally->again, count);
    tally->count = count + 1;
    if (count % 4 == 0)
        sched_yield();
    tally->again = count + 1;
}

static void change_semaphore(int set, int number, int by)
{
    struct sembuf change = {(unsigned short)number, (short)by, SEM_UNDO};
    while (semop(set, &change, 1) < 0)
        CHECK_EQ(errno, EINTR);
}

struct sysv {
    int set, queue;
    struct tally *tally;
};

static void add_locked(const struct sysv *objects)
{
    change_semaphore(objects->set, 0, -1);
    add_to(objects->tally);
    change_semaphore(objects->set, 0, 1);
}

struct numbered {
    long kind, number, total;
    char rest[200];
};

/* Sends numbered messages of several lengths; the last one has kind 9 and says how often this process has counted. */
static void send_messages(const struct sysv *objects)
{
    struct numbered message = {.kind = 1};
    for (long number = 0;; number++) {
        bool is_last = !goes_on();
        message = (struct numbered){is_last ? 9 : 1 + number % 3, number, number, ""};
        MOVE(msgsnd(objects->queue, &message, 16 + (size_t)number % 200, 0), 0);
        if (is_last)
            return;
        add_locked(objects);
    }
}

/* A counter in a segment under a semaphore, whose holders die now and then, and messages in their order. */
static void sysv(void)
{
    int segment = FD(shmget(IPC_PRIVATE, PAGE, 0600));
    struct sysv objects = {FD(semget(IPC_PRIVATE, 2, 0600)), FD(msgget(IPC_PRIVATE, 0600)), shmat(segment, NULL, 0)};
    CHECK(objects.tally != (void *)-1);
    OK(shmctl(segment, IPC_RMID, NULL));
    OK(semctl(objects.set, 0, SETVAL, 1));
    pid_t sender = MEMBER(send_messages(&objects));
    struct numbered message = {.kind = 1};
    long received = 0;
    for (; message.kind != 9; received++) {
        AT();
        ssize_t size = msgrcv(objects.queue, &message, sizeof message - sizeof(long), 0, 0);
        CHECK_EQ(message.number, received);
        CHECK_EQ(size, 16 + received % 200);
        add_locked(&objects);
        if (received % 8 == 0) {
            JOIN(MEMBER({
                change_semaphore(objects.set, 0, -1);
                change_semaphore(objects.set, 1, 5);
            }));
            /* What the dead had done is undone. */
            CHECK_EQ(semctl(objects.set, 1, GETVAL), 0);
        }
    }
    JOIN(sender);
    CHECK_EQ(objects.tally->count, received + message.total);
    CHECK_EQ(semctl(objects.set, 0, GETVAL), 1);
    struct shmid_ds facts;
    OK(shmctl(segment, IPC_STAT, &facts));
    CHECK_EQ(facts.shm_nattch, 1);
    OK(semctl(objects.set, 0, IPC_RMID));
    OK(msgctl(objects.queue, IPC_RMID, NULL));
}

static mqd_t queue_of(const char *what, long most)
{
    char name[64];
    struct mq_attr attr = {.mq_maxmsg = most, .mq_msgsize = sizeof(long)};
    snprintf(name, sizeof name, "/holds.%s.%d", what, getpid());
    mqd_t queue = FD(mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &attr));
    OK(mq_unlink(name));
    return queue;
}

/* Sends three messages of several priorities whenever it is its turn, until the end. */
static void send_prioritized(mqd_t queue, int turn, int answer)
{
    for (long number = 0; take_turn(turn); number++) {
        static const unsigned ORDER[] = {1, 3, 2};
        for (int i = 0; i < 3; i++) {
            long value = number * 4 + ORDER[i];
            OK(mq_send(queue, (char *)&value, sizeof value, ORDER[i]));
        }
        give_turn(answer);
    }
}

/* A sender is told of by a signal each time that the queue was empty, and messages come by their priorities. */
static void mq_notified(void)
{
    enum { SIGNAL_MQ = 40 };
    block_signal(SIGNAL_MQ);
    mqd_t queue = queue_of("notified", 8);
    int turn = FD(eventfd(0, 0)), answer = FD(eventfd(0, 0));
    pid_t sender = MEMBER(send_prioritized(queue, turn, answer));
    for (long number = 0; goes_on(); number++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGNAL_MQ, .sigev_value.sival_int = (int)number};
        AT();
        OK(mq_notify(queue, &event));
        give_turn(turn);
        siginfo_t info = await_signal(SIGNAL_MQ);
        CHECK(info.si_code == SI_MESGQ && info.si_value.sival_int == (int)number && info.si_pid == sender);
        AT();
        take_turn(answer);
        for (unsigned priority = 3; priority > 0; priority--) {
            long value;
            unsigned got;
            MOVE(mq_receive(queue, (char *)&value, sizeof value, &got), sizeof value);
            CHECK(got == priority && value == number * 4 + priority);
        }
        struct mq_attr now;
        OK(mq_getattr(queue, &now));
        CHECK_EQ(now.mq_curmsgs, 0);
        CHECK(!take_signal(SIGNAL_MQ, &info));
    }
    end_turns(turn);
    JOIN(sender);
}

/* A queue that is full or empty most of the time. */
static void mq_stream(void)
{
    mqd_t queue = queue_of("stream", 2);
    pid_t sender = MEMBER({
        for (long number = 0;; number++) {
            bool is_last = !goes_on();
            long value = is_last ? -number : number;
            OK(mq_send(queue, (char *)&value, sizeof value, 0));
            if (is_last && number > 0)
                break;
        }
    });
    long number = 0, value = 0;
    for (; value >= 0; number++) {
        AT();
        MOVE(mq_receive(queue, (char *)&value, sizeof value, NULL), sizeof value);
        CHECK(value == number || value == -number);
    }
    JOIN(sender);
    CHECK_EQ(mq_close(queue), 0);
}

/* Keys in two keyrings, which two processes have in common; each has a content that its name says. */
static void use_keys(int32_t session, int32_t nested)
{
    enum { KEYS = 32, READ = 11, UNLINK = 9, INVALIDATE = 21 };
    do {
        AT();
        uint64_t number = random_below(KEYS), wanted[4], content[4];
        char name[16];
        snprintf(name, sizeof name, "%d", (int)number);
        for (int i = 0; i < 4; i++)
            wanted[i] = word(number, (uint64_t)i);
        int32_t ring = number % 2 ? session : nested;
        int32_t key = (int32_t)syscall(SYS_add_key, "user", name, wanted, sizeof wanted, ring);
        CHECK(key > 0);
        long size = syscall(SYS_keyctl, READ, key, content, sizeof content, 0);
        /* The other process may have ended it. */
        CHECK(size == sizeof content || errno == ENOKEY || errno == EACCES);
        CHECK(size < 0 || !memcmp(content, wanted, sizeof wanted));
        key = (int32_t)syscall(SYS_request_key, "user", name, NULL, 0);
        CHECK(key > 0 || errno == ENOKEY || errno == EKEYREVOKED);
        if (random_below(4) == 0)
            syscall(SYS_keyctl, random_below(2) ? UNLINK : INVALIDATE, key, ring, 0, 0);
    } while (goes_on());
}

static void keys(void)
{
    enum { JOIN_SESSION = 1 };
    int32_t session = (int32_t)syscall(SYS_keyctl, JOIN_SESSION, NULL, 0, 0, 0);
    if (session < 0 && (errno == EPERM || errno == ENOSYS)) {
        NOTE("no keys here");
        while (goes_on())
            ;
        return;
    }
    int32_t nested = FD(syscall(SYS_add_key, "keyring", "nested", NULL, 0, session));
    pid_t other = MEMBER(use_keys(session, nested));
    use_keys(session, nested);
    JOIN(other);
}
