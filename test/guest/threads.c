/* Threads under load.  usage: threads [N_THREADS [SECONDS]] [TEST...], by default 8 threads and 0.1 seconds a torture. */
#include "check.h"
#include "vectors.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>

enum { MOST = 64 };
static int thread_count = 8;
static double seconds = 0.1;

static volatile bool stop;

/* Runs `work` in all threads until the time is over. */
static void torture(void *(*work)(void *))
{
    pthread_t threads[MOST];
    stop = false;
    for (long i = 0; i < thread_count; i++)
        PT(pthread_create(&threads[i], NULL, work, (void *)i));
    sleep_ms((long)(seconds * 1000));
    stop = true;
    for (int i = 0; i < thread_count; i++)
        PT(pthread_join(threads[i], NULL));
}

static long futex(void *word, int operation, uint32_t value, const struct timespec *timeout, void *second, uint32_t third)
{
    return syscall(SYS_futex, word, operation, value, timeout, second, third);
}

/* --- pthread objects --- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long plain[2], totals[MOST];

static void *lock_often(void *index)
{
    long rounds = 0;
    while (!stop) {
        PT(pthread_mutex_lock(&mutex));
        long before = plain[0]++;
        if (rounds % 64 == 0)
            sched_yield();
        CHECK_EQ(plain[1]++, before);
        PT(pthread_mutex_unlock(&mutex));
        rounds++;
    }
    totals[(long)index] = rounds;
    return NULL;
}

static void mutexes(void)
{
    torture(lock_often);
    long sum = 0;
    for (int i = 0; i < thread_count; i++)
        sum += totals[i];
    CHECK(sum > 0 && plain[0] == sum && plain[1] == sum);

    pthread_mutexattr_t attributes;
    pthread_mutex_t checked;
    PT(pthread_mutexattr_init(&attributes));
    PT(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK));
    PT(pthread_mutex_init(&checked, &attributes));
    PT(pthread_mutex_lock(&checked));
    CHECK_EQ(pthread_mutex_lock(&checked), EDEADLK);
    CHECK_EQ(pthread_mutex_trylock(&checked), EBUSY);
    struct timespec until;
    PT(pthread_mutex_lock(&mutex));
    OK(clock_gettime(CLOCK_REALTIME, &until));
    CHECK_EQ(pthread_mutex_timedlock(&mutex, &until), ETIMEDOUT);
    PT(pthread_mutex_unlock(&mutex));
}

enum { SLOTS = 4 };
static pthread_cond_t not_empty = PTHREAD_COND_INITIALIZER, not_full = PTHREAD_COND_INITIALIZER;
static long queue[SLOTS], queued, head, items;
static long long produced, consumed;

static void *produce_or_consume(void *index)
{
    bool producer = (long)index % 2 == 0;
    for (long i = 0; i < items; i++) {
        PT(pthread_mutex_lock(&mutex));
        if (producer) {
            while (queued == SLOTS)
                PT(pthread_cond_wait(&not_full, &mutex));
            long value = (long)index * 1000000 + i;
            queue[(head + queued++) % SLOTS] = value;
            produced += value;
            PT(pthread_cond_signal(&not_empty));
        } else {
            while (queued == 0)
                PT(pthread_cond_wait(&not_empty, &mutex));
            consumed += queue[head++ % SLOTS];
            queued--;
            PT(pthread_cond_signal(&not_full));
        }
        PT(pthread_mutex_unlock(&mutex));
    }
    return NULL;
}

static pthread_cond_t start_gate = PTHREAD_COND_INITIALIZER;
static int generation, awake;

static void *wait_for_gate(void *unused)
{
    PT(pthread_mutex_lock(&mutex));
    while (generation == 0)
        PT(pthread_cond_wait(&start_gate, &mutex));
    awake++;
    PT(pthread_mutex_unlock(&mutex));
    return unused;
}

static void conditions(void)
{
    thread_count &= ~1;
    items = scaled((long)(seconds * 20000));
    torture(produce_or_consume);
    CHECK(produced == consumed && queued == 0);

    pthread_t threads[MOST];
    for (int i = 0; i < thread_count; i++)
        PT(pthread_create(&threads[i], NULL, wait_for_gate, NULL));
    sleep_ms(5);
    PT(pthread_mutex_lock(&mutex));
    CHECK_EQ(awake, 0);
    generation = 1;
    PT(pthread_cond_broadcast(&start_gate));
    PT(pthread_mutex_unlock(&mutex));
    for (int i = 0; i < thread_count; i++)
        PT(pthread_join(threads[i], NULL));
    CHECK_EQ(awake, thread_count);

    pthread_condattr_t attributes;
    pthread_cond_t never;
    PT(pthread_condattr_init(&attributes));
    PT(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC));
    PT(pthread_cond_init(&never, &attributes));
    int64_t start = now_ns(CLOCK_MONOTONIC), target = start + 20000000;
    struct timespec until = {target / 1000000000, target % 1000000000};
    PT(pthread_mutex_lock(&mutex));
    CHECK_EQ(pthread_cond_timedwait(&never, &mutex, &until), ETIMEDOUT);
    PT(pthread_mutex_unlock(&mutex));
    CHECK(now_ns(CLOCK_MONOTONIC) >= target);
}

static pthread_barrier_t barrier;
static long phase_of[MOST];

static void *meet(void *index)
{
    for (long phase = 1; phase <= items; phase++) {
        phase_of[(long)index] = phase;
        int result = pthread_barrier_wait(&barrier);
        CHECK(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
        for (int i = 0; i < thread_count; i++)
            CHECK_EQ(phase_of[i], phase);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void barriers(void)
{
    PT(pthread_barrier_init(&barrier, NULL, thread_count));
    items = scaled((long)(seconds * 3000));
    torture(meet);
    PT(pthread_barrier_destroy(&barrier));
}

static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static volatile long guarded[4];

static void *read_or_write(void *index)
{
    for (long i = 0; !stop; i++) {
        if ((i + (long)index) % 8 == 0) {
            PT(pthread_rwlock_wrlock(&rwlock));
            long value = guarded[0] + 1;
            for (int k = 0; k < 4; k++)
                guarded[k] = value;
        } else {
            PT(pthread_rwlock_rdlock(&rwlock));
            long value = guarded[0];
            for (int k = 0; k < 4; k++)
                CHECK_EQ(guarded[k], value);
        }
        PT(pthread_rwlock_unlock(&rwlock));
    }
    return NULL;
}

static void rwlocks(void)
{
    torture(read_or_write);
    CHECK(guarded[0] > 0);
}

static sem_t tokens;
static int holders;

static void *hold_token(void *unused)
{
    while (!stop) {
        OK(sem_wait(&tokens));
        CHECK(__atomic_add_fetch(&holders, 1, __ATOMIC_SEQ_CST) <= 3);
        sched_yield();
        __atomic_sub_fetch(&holders, 1, __ATOMIC_SEQ_CST);
        OK(sem_post(&tokens));
    }
    return unused;
}

static void semaphores(void)
{
    OK(sem_init(&tokens, 0, 3));
    torture(hold_token);
    int value;
    OK(sem_getvalue(&tokens, &value));
    CHECK_EQ(value, 3);
    /* Between processes, in shared memory. */
    sem_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    OK(sem_init(&shared[0], 1, 0));
    OK(sem_init(&shared[1], 1, 0));
    long rounds = scaled(1000);
    pid_t child = CHILD(for (long i = 0; i < rounds; i++) {
        OK(sem_wait(&shared[0]));
        OK(sem_post(&shared[1]));
    });
    for (long i = 0; i < rounds; i++) {
        OK(sem_post(&shared[0]));
        OK(sem_wait(&shared[1]));
    }
    JOIN(child);
    struct timespec until;
    OK(clock_gettime(CLOCK_REALTIME, &until));
    CHECK_ERR(sem_timedwait(&shared[0], &until), ETIMEDOUT);
}

/* --- birth and death --- */

static __thread long own = 7;
static __thread char block[5000];

static void *short_life(void *argument)
{
    CHECK_EQ(own, 7); /* thread-local data starts afresh */
    CHECK(block[0] == 0 && block[4999] == 0);
    own = (long)argument;
    memset(block, 1, sizeof block);
    sched_yield();
    CHECK_EQ(own, (long)argument);
    return (void *)(own * 3);
}

static void storms(void)
{
    own = 99;
    pthread_t threads[MOST];
    for (long round = 0; round < scaled((long)(seconds * 500)); round++) {
        for (long i = 0; i < thread_count; i++)
            PT(pthread_create(&threads[i], NULL, short_life, (void *)(round * 100 + i)));
        for (long i = 0; i < thread_count; i++) {
            void *result;
            PT(pthread_join(threads[i], &result));
            CHECK_EQ((long)result, (round * 100 + i) * 3);
        }
    }
    CHECK_EQ(own, 99);
    pthread_attr_t attributes; /* detached ones, many at once */
    PT(pthread_attr_init(&attributes));
    PT(pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED));
    PT(pthread_attr_setstacksize(&attributes, 65536));
    for (long i = 0; i < scaled(200); i++)
        PT(pthread_create(&threads[0], &attributes, short_life, (void *)i));
    for (int i = 0; i < 5000 && access("/proc/self/task", F_OK) == 0; i++) {
        struct stat info;
        OK(stat("/proc/self/task", &info));
        if (info.st_nlink == 3) /* ., .. and one thread */
            break;
        usleep(1000);
        CHECK(i < 4999);
    }
}

static int cleaned;
static void clean(void *unused)
{
    (void)unused;
    cleaned++;
}

static void *sleep_for_cancel(void *kind)
{
    pthread_cleanup_push(clean, NULL);
    if (kind) {
        PT(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL));
        for (;;)
            ;
    }
    for (;;)
        sleep(100);
    pthread_cleanup_pop(1);
    return NULL;
}

static void cancellation(void)
{
    for (long kind = 0; kind < 2; kind++)
        for (int i = 0; i < scaled(20); i++) {
            pthread_t thread;
            void *result;
            PT(pthread_create(&thread, NULL, sleep_for_cancel, (void *)kind));
            if (i % 2)
                usleep(500);
            int before = cleaned;
            PT(pthread_cancel(thread));
            PT(pthread_join(thread, &result));
            CHECK(result == PTHREAD_CANCELED);
            CHECK(cleaned == before + 1 || i % 2 == 0);
        }
}

static volatile int signals_seen[MOST];
static __thread int my_index = -1;

static void count_signal(int signal)
{
    (void)signal;
    signals_seen[my_index]++;
}

static volatile bool ready[MOST];

static void *be_signalled(void *index)
{
    my_index = (int)(long)index;
    ready[my_index] = true;
    while (!stop)
        if (my_index % 2)
            usleep(1000);
    return NULL;
}

static void directed_signals(void)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
    OK(sigaction(SIGUSR1, &action, NULL));
    pthread_t threads[MOST];
    stop = false;
    for (long i = 0; i < thread_count; i++)
        PT(pthread_create(&threads[i], NULL, be_signalled, (void *)i));
    for (int i = 0; i < thread_count; i++) {
        while (!ready[i])
            usleep(200);
        for (int n = 0; n < 20; n++) {
            int before = signals_seen[i];
            PT(pthread_kill(threads[i], SIGUSR1));
            AWAIT(signals_seen[i] != before, 100);
            CHECK_EQ(signals_seen[i], before + 1);
        }
    }
    stop = true;
    for (int i = 0; i < thread_count; i++) {
        PT(pthread_join(threads[i], NULL));
        CHECK_EQ(signals_seen[i], 20);
    }
}

/* --- robust and priority-inheriting mutexes --- */

static pthread_mutex_t *make_mutex(int robust, int protocol)
{
    pthread_mutex_t *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t attributes;
    PT(pthread_mutexattr_init(&attributes));
    PT(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED));
    PT(pthread_mutexattr_setrobust(&attributes, robust));
    PT(pthread_mutexattr_setprotocol(&attributes, protocol));
    int error = pthread_mutex_init(made, &attributes);
    if (error == ENOTSUP && protocol == PTHREAD_PRIO_INHERIT)
        return NULL;
    PT(error);
    return made;
}

static void *die_holding(void *lock)
{
    PT(pthread_mutex_lock(lock));
    return NULL;
}

static void *inherit(void *lock)
{
    int error = pthread_mutex_lock(lock);
    CHECK_EQ(error, EOWNERDEAD);
    PT(pthread_mutex_consistent(lock));
    PT(pthread_mutex_unlock(lock));
    return NULL;
}

static void robust_cases(int protocol)
{
    pthread_mutex_t *lock = make_mutex(PTHREAD_MUTEX_ROBUST, protocol);
    if (!lock)
        SKIP("no priority-inheriting mutexes");
    pthread_t thread;
    PT(pthread_create(&thread, NULL, die_holding, lock));
    PT(pthread_join(thread, NULL));
    inherit(lock);
    for (int kill_it = 0; kill_it < 2; kill_it++) {
        int out[2], in[2];
        char byte;
        OK(pipe(out));
        OK(pipe(in));
        pid_t child = CHILD({
            PT(pthread_mutex_lock(lock));
            CHECK_EQ(write(out[1], "l", 1), 1);
            if (kill_it)
                pause();
            CHECK_EQ(read(in[0], &byte, 1), 1);
            sleep_ms(20);
        });
        CHECK_EQ(read(out[0], &byte, 1), 1);
        CHECK_EQ(pthread_mutex_trylock(lock), EBUSY);
        PT(pthread_create(&thread, NULL, inherit, lock)); /* waits when the owner dies */
        if (kill_it) {
            sleep_ms(5);
            OK(kill(child, SIGKILL));
        } else
            CHECK_EQ(write(in[1], "d", 1), 1);
        status_of(child);
        PT(pthread_join(thread, NULL));
        for (int i = 0; i < 2; i++)
            close(out[i]), close(in[i]);
    }
    JOIN(CHILD({ /* by exec, too */
        if (fork() == 0) {
            PT(pthread_mutex_lock(lock));
            execl("/proc/self/exe", "threads", "--list", "--quiet", NULL);
        }
        int status;
        wait(&status);
        inherit(lock);
    }));
    PT(pthread_create(&thread, NULL, die_holding, lock));
    PT(pthread_join(thread, NULL));
    CHECK_EQ(pthread_mutex_lock(lock), EOWNERDEAD);
    PT(pthread_mutex_unlock(lock)); /* given up as inconsistent */
    CHECK_EQ(pthread_mutex_lock(lock), ENOTRECOVERABLE);
}

static void robust(void)
{
    robust_cases(PTHREAD_PRIO_NONE);
}

static pthread_mutex_t *pi_lock;

static void *lock_pi(void *unused)
{
    while (!stop) {
        PT(pthread_mutex_lock(pi_lock));
        long before = plain[0]++;
        CHECK_EQ(plain[1]++, before);
        PT(pthread_mutex_unlock(pi_lock));
    }
    return unused;
}

static void priority_inheritance(void)
{
    uint32_t word = 0;
    if (futex(&word, FUTEX_LOCK_PI, 0, NULL, NULL, 0) < 0 && errno == ENOSYS)
        SKIP("no priority-inheriting futexes");
    CHECK_EQ(word, syscall(SYS_gettid));
    CHECK_ERR(futex(&word, FUTEX_LOCK_PI, 0, NULL, NULL, 0), EDEADLK);
    OK(futex(&word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0));
    CHECK_EQ(word, 0);
    pi_lock = make_mutex(PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_INHERIT);
    if (!pi_lock)
        SKIP("no priority-inheriting mutexes");
    torture(lock_pi);
    CHECK(plain[0] > 0 && plain[0] == plain[1]);
    robust_cases(PTHREAD_PRIO_INHERIT);
}

/* --- futexes by hand --- */

static uint32_t word, other_word, woken;

static void *wait_on_word(void *mask)
{
    long result;
    if (mask)
        result = futex(&word, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL, NULL, (uint32_t)(long)mask);
    else
        result = futex(&word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    CHECK_EQ(result, 0);
    __atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void expect_woken(uint32_t want)
{
    for (int i = 0; i < 5000 && __atomic_load_n(&woken, __ATOMIC_SEQ_CST) != want; i++)
        usleep(1000);
    CHECK_EQ(woken, want);
}

/* Waits until so many threads sleep: asked by a requeue onto the same word, which counts without waking. */
static void expect_waiters(int count)
{
    for (int i = 0; i < 5000; i++) {
        if (futex(&word, FUTEX_CMP_REQUEUE_PRIVATE, 0, (void *)(long)INT_MAX, &word, word) == count)
            return;
        usleep(1000);
    }
    FAIL("not %d waiters", count);
}

static void raw_futexes(void)
{
    pthread_t threads[4];
    CHECK_ERR(futex(&word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0), EAGAIN);
    CHECK_EQ(futex(&word, FUTEX_WAKE_PRIVATE, 10, NULL, NULL, 0), 0);
    for (int i = 0; i < 4; i++)
        PT(pthread_create(&threads[i], NULL, wait_on_word, NULL));
    expect_waiters(4);
    CHECK_ERR(futex(&word, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)10L, &other_word, 5), EAGAIN);
    /* One wakes, two move to the other word, one stays. */
    CHECK_EQ(futex(&word, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)2L, &other_word, 0), 3);
    expect_woken(1);
    CHECK_EQ(futex(&other_word, FUTEX_WAKE_PRIVATE, 10, NULL, NULL, 0), 2);
    expect_woken(3);
    CHECK_EQ(futex(&word, FUTEX_WAKE_PRIVATE, 10, NULL, NULL, 0), 1);
    expect_woken(4);
    for (int i = 0; i < 4; i++)
        PT(pthread_join(threads[i], NULL));

    woken = 0;
    for (long i = 0; i < 4; i++)
        PT(pthread_create(&threads[i], NULL, wait_on_word, (void *)(1L << i)));
    expect_waiters(4);
    CHECK_EQ(futex(&word, FUTEX_WAKE_BITSET_PRIVATE, 10, NULL, NULL, 0x10), 0);
    CHECK_EQ(futex(&word, FUTEX_WAKE_BITSET_PRIVATE, 10, NULL, NULL, 0x5), 2);
    expect_woken(2);
    CHECK_EQ(futex(&word, FUTEX_WAKE_PRIVATE, 10, NULL, NULL, 0), 2);
    for (int i = 0; i < 4; i++)
        PT(pthread_join(threads[i], NULL));
    CHECK_ERR(futex(&word, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL, NULL, 0), EINVAL);
    CHECK_ERR(futex((char *)&word + 1, FUTEX_WAIT, 0, NULL, NULL, 0), EINVAL);
    CHECK_ERR(futex(&word, 99, 0, NULL, NULL, 0), ENOSYS);

    /* Wake-and-change: adds 5 to the other word and wakes there too if it was above 2. */
    other_word = 3;
    int change = FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_GT, 2);
    CHECK_EQ(futex(&word, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1L, &other_word, change), 0);
    CHECK_EQ(other_word, 8);
    /* A private waiter and a shared waker do not meet across processes; shared ones do. */
    uint32_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = CHILD(OK(futex(shared, FUTEX_WAIT, 0, NULL, NULL, 0)));
    wait_until_asleep(child);
    long result = 0;
    for (int i = 0; i < 5000 && result == 0; i++, usleep(1000))
        result = futex(shared, FUTEX_WAKE, 1, NULL, NULL, 0);
    CHECK_EQ(result, 1);
    JOIN(child);
    /* Through a file mapped twice the word is the same. */
    int fd = FD(open("word", O_CREAT | O_RDWR, 0644));
    OK(ftruncate(fd, 4096));
    uint32_t *here = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint32_t *there = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(here != there);
    child = CHILD(OK(futex(here, FUTEX_WAIT, 0, NULL, NULL, 0)));
    result = 0;
    for (int i = 0; i < 5000 && result == 0; i++, usleep(1000))
        result = futex(there, FUTEX_WAKE, 1, NULL, NULL, 0);
    CHECK_EQ(result, 1);
    JOIN(child);
}

static void timeouts(void)
{
    struct timespec relative = {0, 20000000}, bad = {0, 1000000000}, until;
    int64_t start = now_ns(CLOCK_MONOTONIC);
    CHECK_ERR(futex(&word, FUTEX_WAIT_PRIVATE, 0, &relative, NULL, 0), ETIMEDOUT);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 20000000);
    CHECK_ERR(futex(&word, FUTEX_WAIT_PRIVATE, 0, &bad, NULL, 0), EINVAL);
    static const int clocks[] = {CLOCK_MONOTONIC, CLOCK_REALTIME};
    for (int c = 0; c < 2; c++) {
        int operation = FUTEX_WAIT_BITSET_PRIVATE | (clocks[c] == CLOCK_REALTIME ? FUTEX_CLOCK_REALTIME : 0);
        int64_t target = now_ns(clocks[c]) + 20000000;
        until = (struct timespec){target / 1000000000, target % 1000000000};
        CHECK_ERR(futex(&word, operation, 0, &until, NULL, FUTEX_BITSET_MATCH_ANY), ETIMEDOUT);
        CHECK(now_ns(clocks[c]) >= target);
        CHECK_ERR(futex(&word, operation, 0, &until, NULL, FUTEX_BITSET_MATCH_ANY), ETIMEDOUT); /* past */
    }
}

/* Strict turns between all threads by futex: any lost wake-up hangs it. */
static uint32_t turn;

static void *take_turns(void *index)
{
    for (long i = 0; i < items; i++) {
        uint32_t mine = (uint32_t)(i * thread_count + (long)index), now;
        while ((now = __atomic_load_n(&turn, __ATOMIC_SEQ_CST)) != mine)
            futex(&turn, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
        __atomic_store_n(&turn, mine + 1, __ATOMIC_SEQ_CST);
        futex(&turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
    return NULL;
}

static void turns(void)
{
    turn = 0;
    items = scaled((long)(seconds * 3000));
    torture(take_turns);
    CHECK_EQ(turn, items * thread_count);
}

/* --- registers --- */

static int width;

static void spoil_vectors(int signal)
{
    struct vectors mine, out;
    memset(&mine, signal, sizeof mine);
    with_vectors(width, &mine, &out, 1, -1, 0, 0, 0);
}

static void *keep_vectors(void *index)
{
    struct vectors in, out;
    uint64_t seed = 1000 + (uint64_t)(long)index;
    unsigned control = 0x1f80 | ((unsigned)(long)index & 3) << 13, got;
    __asm__ volatile("ldmxcsr %0" : : "m"(control));
    long calls[] = {-1, SYS_sched_yield, SYS_getppid, SYS_gettid};
    for (long i = 0; !stop; i++) {
        for (size_t b = 0; b < sizeof in.bytes; b += 8) {
            uint64_t value = next_random(&seed);
            memcpy(in.bytes + b, &value, 8);
        }
        long call = calls[i % 4], pid = getpid(), tid = syscall(SYS_gettid);
        if (i % 16 == 15)
            OK(with_vectors(width, &in, &out, 1, SYS_tgkill, pid, tid, SIGUSR1));
        else
            with_vectors(width, &in, &out, 500, call, 0, 0, 0);
        if (memcmp(in.bytes, out.bytes, vectors_used(width)) != 0)
            FAIL("thread %ld lost its vector registers in round %ld (system call %ld)", (long)index, i, call);
        __asm__ volatile("stmxcsr %0" : "=m"(got));
        CHECK_EQ(got & 0x7f80, control & 0x7f80);
    }
    return NULL;
}

static void vector_registers(void)
{
    width = vector_bytes();
    struct sigaction action = {.sa_handler = spoil_vectors, .sa_flags = SA_RESTART};
    OK(sigaction(SIGUSR1, &action, NULL));
    OK(sigaction(SIGALRM, &action, NULL));
    timer_t timer;
    struct itimerspec spec = {{0, 1000000}, {0, 1000000}};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    OK(timer_create(CLOCK_MONOTONIC, &event, &timer));
    pid_t child = CHILD(torture(keep_vectors)); /* a second process beside us, with the same registers in use */
    OK(timer_settime(timer, 0, &spec, NULL));
    stop = false;
    pthread_t threads[MOST];
    for (long i = 0; i < thread_count; i++)
        PT(pthread_create(&threads[i], NULL, keep_vectors, (void *)i));
    sleep_ms((long)(seconds * 1000));
    stop = true;
    for (int i = 0; i < thread_count; i++)
        PT(pthread_join(threads[i], NULL));
    OK(timer_delete(timer));
    JOIN(child);
}

/* Threads change one address space while others use it. */
static void *map_and_touch(void *index)
{
    for (long i = 0; !stop; i++) {
        size_t bytes = 4096 * (1 + (size_t)(i + (long)index) % 16);
        char *mine = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(mine != MAP_FAILED);
        for (size_t at = 0; at < bytes; at += 4096) {
            CHECK_EQ(mine[at], 0);
            mine[at] = (char)(long)index + 1;
        }
        sched_yield();
        for (size_t at = 0; at < bytes; at += 4096)
            CHECK_EQ(mine[at], (char)(long)index + 1);
        OK(mprotect(mine, 4096, PROT_READ));
        CHECK_EQ(mine[0], (char)(long)index + 1);
        OK(munmap(mine, bytes));
        if (i % 16 == 0)
            CHECK_EQ(status_of(CHILD(_exit((int)(long)index))), (int)(long)index << 8);
    }
    return NULL;
}

static void address_space(void)
{
    torture(map_and_touch);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(mutexes),      TEST(conditions),       TEST(barriers),             TEST(rwlocks),     TEST(semaphores),
        TEST(storms),       TEST(cancellation),     TEST(directed_signals),     TEST(robust),
        TEST(priority_inheritance), TEST(raw_futexes), TEST(timeouts),          TEST(turns),
        TEST(vector_registers), TEST(address_space),
    };
    if (argc == 3 && strcmp(argv[2], "--quiet") == 0)
        return 0; /* the robust test's exec */
    if (argc > 1 && argv[1][0] >= '0' && argv[1][0] <= '9') {
        thread_count = atoi(argv[1]);
        CHECK(thread_count >= 2 && thread_count <= MOST);
        argc--, argv++;
        if (argc > 1 && argv[1][0] >= '0' && argv[1][0] <= '9') {
            seconds = atof(argv[1]);
            argc--, argv++;
        }
    }
    return RUN_TESTS("threads", tests, argc, argv);
}
