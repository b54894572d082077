/*
 * Futexes beyond waiting and waking: several at once, those that move to a lock with an owner, the second interface; and
 * threads that do all of it at random while others end in the middle.
 */
#include "check.h"
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#define NR_futex_wake 454
#define NR_futex_wait 455
#define NR_futex_requeue 456

/* struct futex_waitv, which older headers do not have. */
struct waitv {
    uint64_t value, address;
    uint32_t flags, reserved;
};

enum { SIZE_U32 = 2, PRIVATE = 128, REALTIME = 256 };

static long futex(void *word, int operation, uint32_t value, const void *timeout, void *second, uint32_t third)
{
    return syscall(SYS_futex, word, operation, value, timeout, second, third);
}

static long waitv(struct waitv *waits, unsigned count, unsigned flags, const struct timespec *timeout, int clock)
{
    return syscall(SYS_futex_waitv, waits, count, flags, timeout, clock);
}

static struct timespec in_ms(clockid_t clock, long ms)
{
    int64_t at = now_ns(clock) + ms * 1000000;
    return (struct timespec){at / 1000000000, at % 1000000000};
}

static uint32_t tid(void)
{
    return (uint32_t)syscall(SYS_gettid);
}

static void ignore(int signal)
{
    (void)signal;
}

static void interrupt_by(int signal, int flags)
{
    struct sigaction action = {.sa_handler = ignore, .sa_flags = flags};
    OK(sigaction(signal, &action, NULL));
}

/* A thread's own state letter, so that it is known to sleep. */
static void wait_until_thread_sleeps(_Atomic uint32_t *id)
{
    char path[64], text[512];
    AWAIT(atomic_load(id) != 0, 100);
    snprintf(path, sizeof path, "/proc/self/task/%u/stat", atomic_load(id));
    for (int64_t end = patience_end(); !is_over(end); usleep(500)) {
        int fd = FD(open(path, O_RDONLY));
        ssize_t length = read(fd, text, sizeof text - 1);
        OK(close(fd));
        CHECK(length > 0);
        text[length] = 0;
        char *name_end = strrchr(text, ')');
        if (name_end && name_end[2] == 'S')
            return;
    }
    FAIL("a thread does not sleep");
}

static void errors(void)
{
    static uint32_t word, second;
    struct timespec soon = {0, 1000000};
    void *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(hole != MAP_FAILED);
    CHECK_ERR(futex(hole, FUTEX_WAKE, 1, NULL, NULL, 0), EFAULT);
    OK(munmap(hole, 4096));
    CHECK_ERR(futex(hole, FUTEX_WAKE, 1, NULL, NULL, 0), EFAULT);
    CHECK_EQ(futex(hole, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0), 0);
    CHECK_ERR(futex(&word, FUTEX_WAIT | REALTIME, 0, &soon, NULL, 0), ENOSYS);
    CHECK_ERR(futex(&word, FUTEX_WAIT_BITSET | REALTIME, 0, &soon, NULL, 1), ETIMEDOUT);
    /* An unknown comparison is told with the word changed, an unknown operation with the word as it was. */
    CHECK_ERR(futex(&word, FUTEX_WAKE_OP, 1, (void *)1, &second, FUTEX_OP(8, 35, 9, 0)), ENOSYS);
    CHECK_EQ(second, 8);
    CHECK_ERR(futex(&word, FUTEX_WAKE_OP, 1, (void *)1, &second, FUTEX_OP(7, 3, 0, 0)), ENOSYS);
    CHECK_EQ(second, 8);
    CHECK_ERR(futex(&word, FUTEX_WAIT_REQUEUE_PI, 0, NULL, &word, 0), EINVAL);
    CHECK_ERR(futex(&word, FUTEX_WAIT_REQUEUE_PI, 1, NULL, &second, 0), EAGAIN);
    CHECK_ERR(futex(&word, FUTEX_CMP_REQUEUE_PI, 1, NULL, &word, 0), EINVAL);
    CHECK_ERR(futex(&word, FUTEX_CMP_REQUEUE_PI, 2, NULL, &second, 0), EINVAL);
    CHECK_ERR(futex(&word, FUTEX_CMP_REQUEUE_PI, 1, (void *)-1, &second, 0), EINVAL);
    CHECK_ERR(futex(&word, FUTEX_CMP_REQUEUE_PI, 1, NULL, &second, 1), EAGAIN);
    second = 0;
    OK(futex(&word, FUTEX_CMP_REQUEUE_PI, 1, (void *)1, &second, 0));
    struct timespec at = in_ms(CLOCK_REALTIME, 1);
    CHECK_ERR(futex(&word, FUTEX_WAIT_REQUEUE_PI | REALTIME, 0, &at, &second, 0), ETIMEDOUT);
    CHECK_EQ(second, 0);
}

/* Waiters for the tests below. */
static uint32_t word, lock;

struct waiter {
    pthread_t thread;
    _Atomic uint32_t id;
    long result;
    int error;
    long timeout_ms;
    atomic_bool go_on;
};

static void *wait_for_lock(void *argument)
{
    struct waiter *me = argument;
    atomic_store(&me->id, tid());
    struct timespec at = in_ms(CLOCK_MONOTONIC, me->timeout_ms ? me->timeout_ms : 60000);
    me->result = futex(&word, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 0, &at, &lock, 0);
    me->error = errno;
    if (me->result == 0) {
        CHECK_EQ(lock & FUTEX_TID_MASK, tid());
        AWAIT(atomic_load(&me->go_on), 100);
        OK(futex(&lock, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    }
    return NULL;
}

static void start(struct waiter *waiter, void *(*run)(void *))
{
    PT(pthread_create(&waiter->thread, NULL, run, waiter));
    wait_until_thread_sleeps(&waiter->id);
}

static long requeue(uintptr_t moves)
{
    return futex(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, (void *)moves, &lock, 0);
}

static void to_a_lock(void)
{
    struct waiter first = {0}, second = {0}, third = {0};
    start(&first, wait_for_lock);
    start(&second, wait_for_lock);
    start(&third, wait_for_lock);
    /* They cannot be woken, nor moved to anything but the lock that they named. */
    CHECK_ERR(futex(&word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0), EINVAL);
    uint32_t other = 0;
    CHECK_ERR(futex(&word, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)1, &other, 0), EINVAL);
    CHECK_ERR(futex(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, (void *)1, &other, 0), EINVAL);
    CHECK_EQ(other, 0);
    /* The lock is free: the longest waiting gets it, the others wait for it. */
    CHECK_EQ(requeue(1), 2);
    AWAIT((lock & FUTEX_TID_MASK) == first.id, 100);
    CHECK_EQ(lock, first.id | FUTEX_WAITERS);
    CHECK_ERR(futex(&lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0), EINVAL);
    CHECK_EQ(requeue(5), 1);
    OK(requeue(5));
    atomic_store(&first.go_on, true);
    atomic_store(&second.go_on, true);
    atomic_store(&third.go_on, true);
    PT(pthread_join(first.thread, NULL));
    PT(pthread_join(second.thread, NULL));
    PT(pthread_join(third.thread, NULL));
    CHECK_EQ(first.result | second.result | third.result, 0);
    CHECK_EQ(lock & FUTEX_TID_MASK, 0);
    /* The caller has the lock: nobody gets it before it is given back. */
    struct waiter next = {.go_on = true};
    lock = 0;
    OK(futex(&lock, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    start(&next, wait_for_lock);
    CHECK_EQ(requeue(0), 1);
    CHECK_EQ(lock, tid() | FUTEX_WAITERS);
    OK(futex(&lock, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    PT(pthread_join(next.thread, NULL));
    OK(next.result);
}

/* Time runs out and signals come before and after the move. */
static void interrupted_moves(void)
{
    interrupt_by(SIGUSR1, 0);
    OK(futex(&lock, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    struct waiter late = {.timeout_ms = 30};
    start(&late, wait_for_lock);
    PT(pthread_join(late.thread, NULL));
    CHECK_EQ(late.error, ETIMEDOUT);
    struct waiter moved = {.timeout_ms = 300};
    start(&moved, wait_for_lock);
    CHECK_EQ(requeue(0), 1);
    PT(pthread_join(moved.thread, NULL));
    CHECK_EQ(moved.error, ETIMEDOUT);
    /* Before the move the wait goes on; behind it the word is looked at anew. */
    struct waiter signalled = {0};
    start(&signalled, wait_for_lock);
    PT(pthread_kill(signalled.thread, SIGUSR1));
    usleep(1000);
    wait_until_thread_sleeps(&signalled.id);
    long done = 0;
    AWAIT((done = requeue(0)) != 0, 100);
    CHECK_EQ(done, 1);
    PT(pthread_kill(signalled.thread, SIGUSR1));
    PT(pthread_join(signalled.thread, NULL));
    CHECK_EQ(signalled.error, EAGAIN);
    OK(futex(&lock, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    CHECK_EQ(lock & FUTEX_TID_MASK, 0);
}

static void *take_and_end(void *argument)
{
    struct waiter *me = argument;
    OK(futex(&lock, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    atomic_store(&me->id, tid());
    AWAIT(atomic_load(&me->go_on), 100);
    return NULL;
}

/* The owner ends without giving the lock back: who was moved to it gets it, and is told. */
static void owners_that_end(void)
{
    struct waiter owner = {0}, heir = {.go_on = true};
    PT(pthread_create(&owner.thread, NULL, take_and_end, &owner));
    AWAIT(atomic_load(&owner.id) != 0, 100);
    start(&heir, wait_for_lock);
    CHECK_EQ(requeue(0), 1);
    CHECK_EQ(lock, owner.id | FUTEX_WAITERS);
    atomic_store(&owner.go_on, true);
    PT(pthread_join(owner.thread, NULL));
    PT(pthread_join(heir.thread, NULL));
    OK(heir.result);
    /* A process that is killed while its threads wait leaves nothing behind that others of the futex meet. */
    uint32_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    pid_t child = CHILD(futex(&shared[0], FUTEX_WAIT_REQUEUE_PI, 0, NULL, &shared[1], 0));
    wait_until_asleep(child);
    OK(kill(child, SIGKILL));
    CHECK_KILLED(child, SIGKILL);
    OK(futex(&shared[0], FUTEX_CMP_REQUEUE_PI, 1, (void *)9, &shared[1], 0));
    OK(futex(&shared[1], FUTEX_LOCK_PI, 0, NULL, NULL, 0));
    child = CHILD(futex(&shared[0], FUTEX_WAIT_REQUEUE_PI, 0, NULL, &shared[1], 0));
    wait_until_asleep(child);
    CHECK_EQ(futex(&shared[0], FUTEX_CMP_REQUEUE_PI, 1, NULL, &shared[1], 0), 1);
    OK(kill(child, SIGKILL));
    CHECK_KILLED(child, SIGKILL);
    OK(futex(&shared[1], FUTEX_UNLOCK_PI, 0, NULL, NULL, 0));
    CHECK_EQ(shared[1] & FUTEX_TID_MASK, 0);
    OK(futex(&shared[1], FUTEX_LOCK_PI, 0, NULL, NULL, 0));
    OK(futex(&shared[1], FUTEX_UNLOCK_PI, 0, NULL, NULL, 0));
}

static uint32_t words[128];
static struct waitv many[129];

static void set_many(uint32_t flags)
{
    memset(words, 0, sizeof words);
    for (int i = 0; i < 128; i++)
        many[i] = (struct waitv){0, (uintptr_t)&words[i], flags, 0};
}

static void *wait_for_many(void *argument)
{
    struct waiter *me = argument;
    struct timespec at = in_ms(CLOCK_MONOTONIC, me->timeout_ms ? me->timeout_ms : 60000);
    atomic_store(&me->id, tid());
    me->result = waitv(many, 128, 0, &at, CLOCK_MONOTONIC);
    me->error = errno;
    return NULL;
}

static void several(void)
{
    set_many(SIZE_U32 | PRIVATE);
    struct timespec past = {0, 0}, odd = {0, 1000000000};
    CHECK_ERR(waitv(many, 0, 0, NULL, 0), EINVAL);
    CHECK_ERR(waitv(many, 129, 0, NULL, 0), EINVAL);
    CHECK_ERR(waitv(NULL, 1, 0, NULL, 0), EINVAL);
    CHECK_ERR(waitv((void *)8, 1, 0, &past, CLOCK_MONOTONIC), EFAULT);
    CHECK_ERR(waitv(many, 1, 1, NULL, 0), EINVAL);
    CHECK_ERR(waitv(many, 1, 0, &past, CLOCK_BOOTTIME), EINVAL);
    CHECK_ERR(waitv(many, 1, 0, &odd, CLOCK_MONOTONIC), EINVAL);
    CHECK_ERR(waitv(many, 1, 0, (void *)8, CLOCK_MONOTONIC), EFAULT);
    CHECK_ERR(waitv(many, 128, 0, &past, CLOCK_MONOTONIC), ETIMEDOUT);
    CHECK_ERR(waitv(many, 128, 0, &past, CLOCK_REALTIME), ETIMEDOUT);
    many[3].reserved = 1;
    CHECK_ERR(waitv(many, 128, 0, &past, CLOCK_MONOTONIC), EINVAL);
    many[3].reserved = 0;
    for (uint32_t flags = 0; flags < 4; flags++) {
        many[3].flags = flags;
        CHECK_ERR(waitv(many, 128, 0, &past, CLOCK_MONOTONIC), flags == SIZE_U32 ? ETIMEDOUT : EINVAL);
    }
    many[3].value = 1;
    many[3].flags = SIZE_U32;
    CHECK_ERR(waitv(many, 128, 0, &past, CLOCK_MONOTONIC), EAGAIN);
    many[3].value = 0;
    many[3].address = 8;
    CHECK_ERR(waitv(many, 128, 0, &past, CLOCK_MONOTONIC), EFAULT);
    many[3].address = (uintptr_t)&words[3] + 1;
    CHECK_ERR(waitv(many, 128, 0, &past, CLOCK_MONOTONIC), EINVAL);
    set_many(SIZE_U32 | PRIVATE);
    for (int i = 0; i < 128; i += 127) {
        struct waiter waiter = {0};
        start(&waiter, wait_for_many);
        long woken = 0;
        AWAIT((woken = futex(&words[i], FUTEX_WAKE_PRIVATE, 5, NULL, NULL, 0)) != 0, 100);
        CHECK_EQ(woken, 1);
        PT(pthread_join(waiter.thread, NULL));
        CHECK_EQ(waiter.result, i);
        /* None is left at the other words. */
        for (int j = 0; j < 128; j++)
            OK(futex(&words[j], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
    }
    /* Interrupted, with and without a handler that has it go on. */
    interrupt_by(SIGUSR1, 0);
    struct waiter waiter = {0};
    start(&waiter, wait_for_many);
    for (int64_t end = patience_end(); pthread_tryjoin_np(waiter.thread, NULL) == EBUSY && !is_over(end); usleep(500))
        (void)pthread_kill(waiter.thread, SIGUSR1);
    CHECK_EQ(waiter.error, EINTR);
    interrupt_by(SIGUSR1, SA_RESTART);
    struct waiter again = {0};
    start(&again, wait_for_many);
    PT(pthread_kill(again.thread, SIGUSR1));
    long woken = 0;
    AWAIT((woken = futex(&words[77], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0)) != 0, 100);
    PT(pthread_join(again.thread, NULL));
    CHECK_EQ(again.result, 77);
}

static void *wait_by_mask(void *argument)
{
    struct waiter *me = argument;
    atomic_store(&me->id, tid());
    me->result = syscall(NR_futex_wait, &word, 0UL, 4UL, SIZE_U32 | PRIVATE, NULL, CLOCK_MONOTONIC);
    return NULL;
}

static void second_interface(void)
{
    unsigned flags = SIZE_U32 | PRIVATE;
    struct timespec past = {0, 0};
    if (!kernel_is(6, 7)) {
        CHECK_ERR(syscall(NR_futex_wake, &word, 1UL, 1, flags), ENOSYS);
        SKIP("futex_wake(2) is newer than this kernel");
    }
    OK(syscall(NR_futex_wake, &word, 1UL, 1, flags));
    CHECK_ERR(syscall(NR_futex_wake, &word, 0UL, 1, flags), EINVAL);
    CHECK_ERR(syscall(NR_futex_wake, &word, 1UL << 32, 1, flags), EINVAL);
    CHECK_ERR(syscall(NR_futex_wake, &word, 1UL, 1, 0), EINVAL);
    CHECK_ERR(syscall(NR_futex_wake, &word, 1UL, 1, 0x40), EINVAL);
    CHECK_ERR(syscall(NR_futex_wait, &word, 1UL, 1UL, flags, &past, CLOCK_MONOTONIC), EAGAIN);
    CHECK_ERR(syscall(NR_futex_wait, &word, 0UL, 1UL, flags, &past, CLOCK_MONOTONIC), ETIMEDOUT);
    CHECK_ERR(syscall(NR_futex_wait, &word, 0UL, 0UL, flags, &past, CLOCK_MONOTONIC), EINVAL);
    CHECK_ERR(syscall(NR_futex_wait, &word, 1UL << 32, 1UL, flags, &past, CLOCK_MONOTONIC), EINVAL);
    CHECK_ERR(syscall(NR_futex_wait, &word, 0UL, 1UL, flags, &past, CLOCK_TAI), EINVAL);
    struct waiter waiter = {0};
    start(&waiter, wait_by_mask);
    OK(syscall(NR_futex_wake, &word, 8UL, 1, flags));
    OK(syscall(NR_futex_wake, &word, 4UL, 0, flags));
    static uint32_t other;
    struct waitv two[2] = {{1, (uintptr_t)&word, flags, 0}, {0, (uintptr_t)&other, SIZE_U32, 0}};
    CHECK_ERR(syscall(NR_futex_requeue, two, 0, 0, 1), EINVAL);
    two[1].flags = flags;
    CHECK_ERR(syscall(NR_futex_requeue, two, 0, 0, 1), EAGAIN);
    CHECK_ERR(syscall(NR_futex_requeue, two, 1, 0, 1), EINVAL);
    CHECK_ERR(syscall(NR_futex_requeue, NULL, 0, 0, 1), EINVAL);
    two[0].value = 0;
    CHECK_ERR(syscall(NR_futex_requeue, two, 0, -1, 1), EINVAL);
    CHECK_EQ(syscall(NR_futex_requeue, two, 0, 0, 1), 1);
    OK(syscall(NR_futex_wake, &word, 4UL, 1, flags));
    OK(syscall(NR_futex_wake, &other, 4UL, 1, SIZE_U32));
    CHECK_EQ(syscall(NR_futex_wake, &other, 4UL, 1, flags), 1);
    PT(pthread_join(waiter.thread, NULL));
    OK(waiter.result);
}

/* What the threads of a process do to two words and two locks until time is over: nothing in it may stay. */
enum { WORDS = 2, LOCKS = 2, THREADS = 8 };
static uint32_t *shared_words, *shared_locks;
static atomic_bool over;

static void unlock(int at)
{
    if ((__atomic_load_n(&shared_locks[at], __ATOMIC_SEQ_CST) & FUTEX_TID_MASK) == tid())
        futex(&shared_locks[at], FUTEX_UNLOCK_PI, 0, NULL, NULL, 0);
}

static void *act(void *seed)
{
    unsigned random = (unsigned)(uintptr_t)seed;
    while (!atomic_load(&over)) {
        uint32_t *from = &shared_words[rand_r(&random) % WORDS], *to = &shared_words[rand_r(&random) % WORDS];
        int at = rand_r(&random) % LOCKS;
        uint32_t *owned = &shared_locks[at];
        struct timespec soon = in_ms(CLOCK_MONOTONIC, rand_r(&random) % 3), wall = in_ms(CLOCK_REALTIME, 2);
        struct waitv both[2] = {{0, (uintptr_t)from, SIZE_U32, 0}, {0, (uintptr_t)to, SIZE_U32, 0}};
        uintptr_t number = rand_r(&random) % 4;
        switch (rand_r(&random) % 11) {
        case 0:
        case 1:
            if (futex(from, FUTEX_WAIT_REQUEUE_PI, 0, &soon, owned, 0) == 0)
                unlock(at);
            break;
        case 2:
        case 3: futex(from, FUTEX_CMP_REQUEUE_PI, 1, (void *)number, owned, 0); break;
        case 4: waitv(both, 2, 0, &soon, CLOCK_MONOTONIC); break;
        case 5: futex(from, FUTEX_WAKE, (uint32_t)number, NULL, NULL, 0); break;
        case 6: futex(from, FUTEX_CMP_REQUEUE, (uint32_t)number, (void *)number, to, 0); break;
        case 7:
            if (futex(owned, FUTEX_LOCK_PI, 0, &wall, NULL, 0) == 0 && rand_r(&random) % 4)
                unlock(at);
            break;
        case 8: futex(owned, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0); break;
        case 9: syscall(SYS_tgkill, getpid(), getpid() + (int)number, SIGUSR1); break;
        default:
            if (rand_r(&random) % 16 == 0)
                return NULL; /* With whatever it has. */
        }
    }
    return NULL;
}

static void begin(uintptr_t seed)
{
    pthread_t thread;
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&thread, NULL, act, (void *)(seed * 100 + i)) == 0)
            pthread_detach(thread);
}

static void at_random(void)
{
    interrupt_by(SIGUSR1, 0);
    shared_words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared_words != MAP_FAILED);
    shared_locks = shared_words + WORDS;
    int64_t end = now_ns(CLOCK_MONOTONIC) + 1000000000LL;
    for (uintptr_t seed = 1; now_ns(CLOCK_MONOTONIC) < end; seed += 4) {
        pid_t children[2];
        for (int i = 0; i < 2; i++)
            children[i] = CHILD({
                for (unsigned round = 0; round < 3; round++, usleep(5000))
                    begin(seed + i + 10 * round);
                for (;;)
                    pause();
            });
        usleep(20000);
        for (int i = 0; i < 2; i++) {
            OK(kill(children[i], SIGKILL));
            CHECK_KILLED(children[i], SIGKILL);
        }
        /* Nobody is left: neither waits anyone, nor does the word of a lock matter once it is free. */
        for (int i = 0; i < WORDS; i++)
            OK(futex(&shared_words[i], FUTEX_WAKE, 9, NULL, NULL, 0));
        for (int i = 0; i < LOCKS; i++) {
            OK(futex(&shared_locks[i], FUTEX_WAKE, 9, NULL, NULL, 0));
            shared_locks[i] = 0;
            OK(futex(&shared_locks[i], FUTEX_LOCK_PI, 0, NULL, NULL, 0));
            CHECK_EQ(shared_locks[i], tid());
            OK(futex(&shared_locks[i], FUTEX_UNLOCK_PI, 0, NULL, NULL, 0));
        }
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(errors),  TEST(to_a_lock),        TEST(interrupted_moves), TEST(owners_that_end),
        TEST(several), TEST(second_interface), TEST(at_random),
    };
    return RUN_TESTS("futexes", tests, argc, argv);
}
