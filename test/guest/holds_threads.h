/* Families of holds.c: threads bound to CPUs, counters of CPUs, and locks of several kinds. */
#include "holds.h"
#include "restartable.h"
#include <linux/futex.h>
#include <sys/rseq.h>

enum { ADDERS = 4, SLOTS = 256 };
static struct {
    volatile long count;
    char rest[56];
} slots[SLOTS];
static atomic_long added;
static int cpus[CPU_SETSIZE], cpu_count;

static void find_cpus(void)
{
    cpu_set_t set;
    OK(sched_getaffinity(0, sizeof set, &set));
    for (int cpu = 0; cpu < SLOTS; cpu++)
        if (CPU_ISSET(cpu, &set))
            cpus[cpu_count++] = cpu;
}

static void bind_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    OK(sched_setaffinity(0, sizeof set, &set));
}

/* The place that the C library has registered. */
static volatile struct area *own_area(void)
{
    return __rseq_size == 0 ? NULL : (volatile struct area *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

/* Counts by restartable sequences, wherever it runs. */
static void *add_to_counters(void *unused)
{
    volatile struct area *area = own_area();
    do {
        for (int i = 0; i < 2000; i++) {
            uint32_t cpu;
            do {
                cpu = area->cpu_start;
                CHECK(cpu < SLOTS);
            } while (add_on(area, &slots[cpu].count, cpu) != 0);
        }
        added += 2000;
    } while (goes_on());
    return unused;
}

/* Runs on the CPU that it is bound to, and on no other one. */
static void *stay_on_cpus(void *unused)
{
    volatile struct area *area = own_area();
    do {
        int cpu = cpus[random_below((uint64_t)cpu_count)];
        unsigned got;
        bind_to(cpu);
        for (int i = 0; i < 20; i++) {
            OK((int)syscall(SYS_getcpu, &got, NULL, NULL));
            CHECK_EQ(got, cpu);
            CHECK_EQ(sched_getcpu(), cpu);
            if (area)
                CHECK_EQ(area->cpu, cpu);
        }
    } while (goes_on());
    return unused;
}

static void cpu_counters(void)
{
    find_cpus();
    AT();
    pthread_t threads[ADDERS + 2];
    int count = own_area() ? ADDERS : 0;
    for (int i = 0; i < count; i++)
        threads[i] = thread_of(add_to_counters, NULL);
    for (int i = 0; i < 2; i++)
        threads[count++] = thread_of(stay_on_cpus, NULL);
    for (int i = 0; i < count; i++)
        PT(pthread_join(threads[i], NULL));
    long sum = 0;
    for (int i = 0; i < SLOTS; i++)
        sum += slots[i].count;
    CHECK_EQ(sum, added);
}

/* What processes share: a lock whose holders may die, with what it protects. */
struct robust {
    pthread_mutex_t mutex;
    volatile long count, again;
    atomic_long deaths;
};

static void lock_robust(struct robust *shared)
{
    int error = pthread_mutex_lock(&shared->mutex);
    if (error == EOWNERDEAD) {
        CHECK_EQ(shared->count, shared->again + 1);
        shared->again++;
        atomic_fetch_add(&shared->deaths, 1);
        PT(pthread_mutex_consistent(&shared->mutex));
        error = 0;
    }
    PT(error);
    CHECK_EQ(shared->count, shared->again);
}

static void count_robust(struct robust *shared)
{
    lock_robust(shared);
    shared->count++;
    if (random_below(4) == 0)
        sched_yield();
    shared->again++;
    PT(pthread_mutex_unlock(&shared->mutex));
}

static void init_mutex(pthread_mutex_t *mutex, bool is_robust, int protocol)
{
    pthread_mutexattr_t attributes;
    PT(pthread_mutexattr_init(&attributes));
    PT(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED));
    if (is_robust)
        PT(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
    PT(pthread_mutexattr_setprotocol(&attributes, protocol));
    PT(pthread_mutex_init(mutex, &attributes));
}

/* Processes count under a lock, and some of them die with it. */
static void robust_locks_of(int protocol)
{
    struct robust *shared = pages_of(1, MAP_SHARED);
    atomic_long *counted = pages_of(1, MAP_SHARED);
    init_mutex(&shared->mutex, true, protocol);
    pid_t other = MEMBER({
        do {
            count_robust(shared);
            counted[0]++;
        } while (goes_on());
    });
    long own = 0, dead = 0;
    do {
        AT();
        count_robust(shared);
        if (++own % 4 == 0) {
            JOIN(MEMBER({
                lock_robust(shared);
                shared->count++;
            }));
            dead++;
        }
    } while (goes_on());
    JOIN(other);
    lock_robust(shared);
    CHECK_EQ(shared->count, counted[0] + own + dead);
    CHECK_EQ(shared->deaths, dead);
}

static void robust_locks(void) { robust_locks_of(PTHREAD_PRIO_NONE); }
static void inheriting_locks(void) { robust_locks_of(PTHREAD_PRIO_INHERIT); }

enum { ROOM = 3, PUTTERS = 2 };

/* A small store between threads, under a lock that hands priority on, with conditions for room and content. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t room, content;
    long items[ROOM];
    int count;
} store = {.room = PTHREAD_COND_INITIALIZER, .content = PTHREAD_COND_INITIALIZER};

static void put(long item)
{
    PT(pthread_mutex_lock(&store.lock));
    while (store.count == ROOM)
        PT(pthread_cond_wait(&store.room, &store.lock));
    store.items[store.count++] = item;
    PT(pthread_cond_broadcast(&store.content));
    PT(pthread_mutex_unlock(&store.lock));
}

static long take(void)
{
    PT(pthread_mutex_lock(&store.lock));
    while (store.count == 0)
        PT(pthread_cond_wait(&store.content, &store.lock));
    long item = store.items[0];
    memmove(store.items, store.items + 1, sizeof *store.items * (size_t)--store.count);
    PT(pthread_cond_broadcast(&store.room));
    PT(pthread_mutex_unlock(&store.lock));
    return item;
}

static void *put_numbers(void *which)
{
    long number = 0;
    do
        put(number++ * PUTTERS + (long)which);
    while (goes_on());
    put(-1);
    return NULL;
}

static void conditions(void)
{
    init_mutex(&store.lock, false, PTHREAD_PRIO_INHERIT);
    pthread_t threads[PUTTERS];
    for (long i = 0; i < PUTTERS; i++)
        threads[i] = thread_of(put_numbers, (void *)i);
    long next[PUTTERS] = {0}, item;
    for (int ended = 0; ended < PUTTERS;) {
        AT();
        if ((item = take()) < 0)
            ended++;
        else
            CHECK_EQ(item / PUTTERS, next[item % PUTTERS]++);
    }
    for (int i = 0; i < PUTTERS; i++)
        PT(pthread_join(threads[i], NULL));
    CHECK_EQ(store.count, 0);
}
