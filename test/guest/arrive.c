// Pages on their way: a heap that eight threads touch at random while others scan it, fork, exec, unmap and map parts of it
// anew, and read and write files from it, all at once and until SIGTERM. Its sandbox hibernates and wakes meanwhile. Each page
// says which one it is, and how often each thread has written it. Reports the first mismatch and ends with 1.
//
// arrive MEGABYTES
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, TOUCHERS = 8, MARKS = 16, PART = 256, SHARED = 512 };

static atomic_int stop;
static atomic_ullong checks;
static uint64_t (*heap)[WORDS], (*shared)[WORDS], pages;
static const char *self;

static void on_term(int sig) { (void)sig; stop = 1; }

static void die(const char *what) {
    fprintf(stderr, "arrive: %s: %s\n", what, strerror(errno));
    _exit(2);
}

static uint64_t word(uint64_t page, uint64_t at) {
    uint64_t x = (page + 1) * 0x9e3779b97f4a7c15ull ^ at * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 31;
    return x * 0xd6e8feb86659fd93ull;
}

static uint64_t next(uint64_t *seed) {
    *seed += 0x9e3779b97f4a7c15ull;
    return word(*seed, 7);
}

static void fill(uint64_t *page, uint64_t number) {
    for (uint64_t at = 0; at < WORDS; at++)
        page[at] = at < MARKS ? 0 : word(number, at);
}

// Looks at a few words; where in the page depends on `seed`.
static void check(const char *who, const uint64_t *page, uint64_t number, uint64_t seed) {
    for (int look = 0; look < 4; look++) {
        uint64_t at = MARKS + (seed >> (9 * look)) % (WORDS - MARKS);
        uint64_t found = ((volatile const uint64_t *)page)[at];
        if (found != word(number, at)) {
            printf("MISMATCH by %s: page %lu word %lu: %016lx instead of %016lx\n", who, number, at, found, word(number, at));
            fflush(stdout);
            _exit(1);
        }
    }
    checks++;
}

static void *touch(void *arg) {
    uint64_t me = (uintptr_t)arg, seed = me;
    uint32_t *mine = calloc(pages, sizeof *mine);
    if (!mine) die("calloc");
    while (!stop) {
        uint64_t number = next(&seed) % pages;
        check("a toucher", heap[number], number, next(&seed));
        if (seed % 4 == 0) heap[number][me] = ++mine[number];
        if (heap[number][me] != mine[number]) {
            printf("MISMATCH by a writer: page %lu has %lu of its %u marks\n", number, heap[number][me], mine[number]);
            fflush(stdout);
            _exit(1);
        }
        uint64_t common = seed % SHARED;
        check("a sharer", shared[common], common, next(&seed));
        // Now and then nobody runs.
        if (seed % 512 == 1) usleep(3000);
    }
    free(mine);
    return NULL;
}

static void *scan(void *arg) {
    (void)arg;
    while (!stop) {
        for (uint64_t number = 0; number < pages && !stop; number++)
            check("a scanner", heap[number], number, number * 77);
        usleep(20000);
    }
    return NULL;
}

static void await_child(pid_t child) {
    int status;
    if (child < 0) die("fork");
    if (waitpid(child, &status, 0) != child) die("waitpid");
    if (status) {
        printf("MISMATCH: a child ends with %#x\n", status);
        fflush(stdout);
        _exit(1);
    }
}

// Children that look at the heap and change their own copy of it, end in the middle of it, or run another program.
static void *have_children(void *arg) {
    (void)arg;
    for (uint64_t round = 0; !stop; round++) {
        pid_t child = fork();
        if (child == 0) {
            uint64_t seed = round << 20;
            for (int i = 0; i < 64; i++) {
                uint64_t number = next(&seed) % pages;
                check("a child", heap[number], number, seed);
                if (i % 2) fill(heap[number], number);
                check("a child, later", heap[number], number, seed);
                if (i == 20 && round % 3 == 0) execl(self, self, "child", NULL);
                if (i == 40 && round % 3 == 1) _exit(0);
            }
            _exit(0);
        }
        await_child(child);
        usleep(2000);
    }
    return NULL;
}

// A part of memory that goes while some of it has not come back.
static void *unmap(void *arg) {
    (void)arg;
    for (uint64_t round = 0; !stop; round++) {
        uint64_t (*part)[WORDS] =
            mmap(NULL, PART * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (part == MAP_FAILED) die("mmap");
        for (uint64_t number = 0; number < PART; number++) fill(part[number], number);
        // It may sleep meanwhile.
        usleep(15000);
        for (uint64_t number = round % 16; number < PART; number += 16) check("an unmapper", part[number], number, round);
        if (round % 2 && madvise(part + PART / 2, PART / 2 * PAGE, MADV_DONTNEED)) die("madvise");
        if (round % 2 && part[PART - 1][WORDS - 1]) {
            puts("MISMATCH: memory that was given up has come back");
            fflush(stdout);
            _exit(1);
        }
        if (munmap(part, PART * PAGE)) die("munmap");
    }
    return NULL;
}

// System calls that read and write the heap.
static void *copy(void *arg) {
    (void)arg;
    int file = memfd_create("copy", 0);
    if (file < 0) die("memfd_create");
    uint64_t seed = 99;
    while (!stop) {
        uint64_t number = next(&seed) % (pages - 32);
        if (pwrite(file, heap[number], 32 * PAGE, 0) != 32 * PAGE) die("pwrite");
        uint64_t (*back)[WORDS] = malloc(32 * PAGE);
        if (!back || pread(file, back, 32 * PAGE, 0) != 32 * PAGE) die("pread");
        for (uint64_t i = 0; i < 32; i++) check("a copier", back[i], number + i, seed);
        free(back);
        usleep(5000);
    }
    close(file);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "child")) return 0;
    if (argc != 2) return fprintf(stderr, "usage: arrive MEGABYTES\n"), 2;
    self = argv[0];
    pages = strtoull(argv[1], NULL, 10) << 8;
    heap = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    shared = mmap(NULL, SHARED * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (heap == MAP_FAILED || shared == MAP_FAILED) die("mmap");
    for (uint64_t number = 0; number < pages; number++) fill(heap[number], number);
    for (uint64_t number = 0; number < SHARED; number++) fill(shared[number], number);
    signal(SIGTERM, on_term);
    puts("ready");
    fflush(stdout);
    void *(*others[])(void *) = {scan, have_children, unmap, copy};
    enum { OTHERS = sizeof others / sizeof *others };
    pthread_t threads[TOUCHERS + OTHERS];
    for (uintptr_t i = 0; i < TOUCHERS + OTHERS; i++)
        if (pthread_create(&threads[i], NULL, i < TOUCHERS ? touch : others[i - TOUCHERS], (void *)i)) die("pthread_create");
    for (int i = 0; i < TOUCHERS + OTHERS; i++) pthread_join(threads[i], NULL);
    printf("ok %llu\n", (unsigned long long)checks);
    return 0;
}
