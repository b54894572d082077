// A heap of incompressible data whose pages are touched after a sleep, by a number of threads, while a clock runs.
// usage: cold PORT MEGABYTES
// A client connects, sends a line, and reads one. Every touched page is checked; the answer to a wrong one is MISMATCH.
// "random N TASKS": N pages in no order, split among the tasks. The answer: pages, microseconds.
// "scan TASKS": all pages in order, a part for each task. The answer: bytes, microseconds.
// "single N": N pages far from each other, one at a time. The answer: pages, and nanoseconds a touch (50 %, 90 %, 99 %).
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#include "line_server.h"

enum { WORDS = 512, TASKS_MAX = 16, SINGLES_MAX = 4096 };
static const uint64_t VERSION = 1;

static uint64_t (*heap)[WORDS];
static uint64_t pages;
// Requests so far: each one touches in another order.
static uint64_t requests;

static uint64_t stamp(uint64_t page) {
    return mix(mix(page) + VERSION);
}

static int touch(uint64_t page) {
    return ((volatile uint64_t *)heap[page])[0] == stamp(page);
}

// A permutation of the numbers below `limit`: a few rounds that can be undone over the next power of two, repeated until
// the result is in range.
static uint64_t permute(uint64_t x, uint64_t limit, uint64_t seed) {
    unsigned bits = 1;
    while (1ull << bits < limit) bits++;
    uint64_t mask = (1ull << bits) - 1;
    do {
        for (int round = 0; round < 3; round++) {
            x = (x * (mix(seed + round) | 1) + mix(~seed - round)) & mask;
            x ^= x >> (bits / 2 + 1);
        }
    } while (x >= limit);
    return x;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// What the tasks have to do. They wait for a new `round`.
static struct {
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    uint64_t round, seed, count;
    unsigned tasks, busy;
    int in_order, good;
} work = {.lock = PTHREAD_MUTEX_INITIALIZER, .begin = PTHREAD_COND_INITIALIZER, .end = PTHREAD_COND_INITIALIZER};

static void *task(void *index) {
    uint64_t number = (uintptr_t)index, seen = 0;
    pthread_mutex_lock(&work.lock);
    for (;;) {
        while (work.round == seen) pthread_cond_wait(&work.begin, &work.lock);
        seen = work.round;
        if (number >= work.tasks) continue;
        uint64_t first = work.count * number / work.tasks, end = work.count * (number + 1) / work.tasks;
        pthread_mutex_unlock(&work.lock);
        int good = 1;
        for (uint64_t at = first; at < end; at++) good &= touch(work.in_order ? at : permute(at, pages, work.seed));
        pthread_mutex_lock(&work.lock);
        work.good &= good;
        if (--work.busy == 0) pthread_cond_signal(&work.end);
    }
    return NULL;
}

// Has the tasks touch `count` pages; result: nanoseconds, or 0 when one of them did not hold what it should.
static uint64_t touch_all(uint64_t count, unsigned tasks, int in_order) {
    pthread_mutex_lock(&work.lock);
    work.count = count, work.tasks = work.busy = tasks, work.in_order = in_order, work.good = 1;
    work.seed = mix(requests);
    work.round++;
    uint64_t start = now_ns();
    pthread_cond_broadcast(&work.begin);
    while (work.busy) pthread_cond_wait(&work.end, &work.lock);
    uint64_t took = now_ns() - start;
    int good = work.good;
    pthread_mutex_unlock(&work.lock);
    return good ? took : 0;
}

static int in_order_of_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int touch_singly(uint64_t count, char *answer, size_t size) {
    static uint64_t took[SINGLES_MAX];
    uint64_t width = pages / count, seed = mix(requests);
    int good = 1;
    memset(took, 0, sizeof took);
    for (uint64_t i = 0; i < count; i++) {
        // In the first half of a stretch of its own, so half a stretch away from any other at least.
        uint64_t page = permute(i, count, seed) * width + mix(seed + i) % ((width + 1) / 2);
        uint64_t start = now_ns();
        good &= touch(page);
        took[i] = now_ns() - start;
    }
    qsort(took, count, sizeof *took, in_order_of_size);
    return good ? snprintf(answer, size, "%llu %llu %llu %llu\n", (unsigned long long)count,
                           (unsigned long long)took[count / 2], (unsigned long long)took[count * 9 / 10],
                           (unsigned long long)took[count * 99 / 100])
                : snprintf(answer, size, "MISMATCH\n");
}

static int serve(const char *line, char *answer, size_t size) {
    unsigned long long count = 0, unit = 1;
    unsigned tasks = 0;
    int in_order = 0;
    requests++;
    if (sscanf(line, "single %llu", &count) == 1 && count > 0 && count <= SINGLES_MAX && count <= pages)
        return touch_singly(count, answer, size);
    if (sscanf(line, "scan %u", &tasks) == 1)
        count = pages, unit = sizeof *heap, in_order = 1;
    else if (sscanf(line, "random %llu %u", &count, &tasks) != 2)
        tasks = 0;
    if (tasks == 0 || tasks > TASKS_MAX || count > pages) return snprintf(answer, size, "UNKNOWN\n");
    uint64_t took = touch_all(count, tasks, in_order);
    return took ? snprintf(answer, size, "%llu %llu\n", count * unit, (unsigned long long)(took + 999) / 1000)
                : snprintf(answer, size, "MISMATCH\n");
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: cold PORT MEGABYTES\n"), 2;
    pages = strtoull(argv[2], NULL, 10) << 8;
    heap = mmap(NULL, pages * sizeof *heap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (heap == MAP_FAILED) return perror("mmap"), 1;
    for (uint64_t page = 0; page < pages; page++)
        for (uint64_t at = 0; at < WORDS; at++) heap[page][at] = at ? mix(page * WORDS + at) : stamp(page);
    for (uintptr_t index = 0; index < TASKS_MAX; index++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, task, (void *)index)) return fprintf(stderr, "no thread\n"), 1;
    }

    return serve_lines(argv[1], serve);
}
