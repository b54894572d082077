// Keeps a keyed pattern in every kind of memory and changes and checks it all the time: private memory, copy-on-write
// children, private and shared file mappings, a tmpfs file, a memfd. Reports the first mismatch and ends with 1.
//
// pattern DIR ROUNDS [THREADS [REST [SHARE]]]: DIR is on a disk; 0 rounds: until SIGTERM, then "ok" and the number of
// checks. After each round a thread rests for REST microseconds; SHARE: one part in so many of the usual memory. At SIGUSR1
// all threads check all their memory once more, and it says "whole" and how often it was asked.
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

enum { PAGE = 4096, MAX_THREADS = 64, PAGES = 512, FILE_PAGES = 128, WORDS = PAGE / 8 };

static atomic_int stop, asked, answered;
static atomic_ullong checks;
static unsigned long rounds, threads = 4, rest_us, share = 1;

static void on_term(int sig) { (void)sig; stop = 1; }

static void on_usr1(int sig) { (void)sig; asked++; }

static void die(const char *what) {
    fprintf(stderr, "pattern: %s: %s\n", what, strerror(errno));
    exit(2);
}

static uint64_t word(uint64_t key, uint64_t page, uint64_t version, uint64_t at) {
    uint64_t x = key * 0x9e3779b97f4a7c15ull ^ page * 0xbf58476d1ce4e5b9ull ^ version * 0x94d049bb133111ebull ^ at;
    x ^= x >> 31;
    return x * 0xd6e8feb86659fd93ull;
}

// Every 8th page is of one repeated word, every 16th of zeros.
static uint64_t content(uint64_t key, uint64_t page, uint64_t version, uint64_t at) {
    if (page % 16 == 7)
        return version ? 0 : 0x1111;
    return word(key, page, version, page % 8 == 3 ? 0 : at);
}

static void fill(uint64_t *page, uint64_t key, uint64_t number, uint64_t version) {
    for (uint64_t i = 0; i < WORDS; i++)
        page[i] = content(key, number, version, i);
}

static void check(const char *what, const uint64_t *page, uint64_t key, uint64_t number, uint64_t version) {
    for (uint64_t i = 0; i < WORDS; i++) {
        uint64_t want = content(key, number, version, i);
        if (page[i] != want) {
            fprintf(stdout, "MISMATCH in %s: page %lu word %lu version %lu: %016lx instead of %016lx\n", what, number, i,
                    version, page[i], want);
            fflush(stdout);
            _exit(1);
        }
    }
    checks++;
}

struct area {
    const char *name;
    uint64_t key;
    uint64_t pages;
    uint64_t *memory;
    int fd; // or -1: checked with pread as well
    uint8_t *versions;
};

static void make(struct area *area, const char *name, uint64_t key, uint64_t pages, int fd, int flags) {
    pages /= share;
    *area = (struct area){name, key, pages, NULL, flags & MAP_SHARED ? fd : -1, calloc(pages, 1)};
    area->memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (area->memory == MAP_FAILED)
        die(name);
    for (uint64_t i = 0; i < pages; i++)
        fill(area->memory + i * WORDS, key, i, 0);
}

static void step(struct area *area, unsigned *seed) {
    for (int n = 0; n < 16; n++) {
        uint64_t at = rand_r(seed) % area->pages;
        uint64_t *page = area->memory + at * WORDS;
        check(area->name, page, area->key, at, area->versions[at]);
        if (rand_r(seed) % 2) {
            fill(page, area->key, at, ++area->versions[at]);
            check(area->name, page, area->key, at, area->versions[at]);
        }
        if (area->fd >= 0) {
            uint64_t copy[WORDS];
            if (pread(area->fd, copy, PAGE, at * PAGE) != PAGE)
                die("pread");
            check(area->name, copy, area->key, at, area->versions[at]);
        }
    }
}

static void check_all(struct area *area, const char *what) {
    for (uint64_t i = 0; i < area->pages; i++)
        check(what, area->memory + i * WORDS, area->key, i, area->versions[i]);
}

// A child sees its own copy, whatever both change.
static void child(struct area *area, unsigned *seed) {
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        for (int n = 0; n < 8; n++) {
            uint64_t at = rand_r(seed) % area->pages;
            fill(area->memory + at * WORDS, area->key, at, ++area->versions[at]);
            usleep(1000);
        }
        check_all(area, "a child's copy");
        _exit(0);
    }
    for (int n = 0; n < 4; n++)
        step(area, seed);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid");
    if (status != 0) {
        printf("MISMATCH: a child ended with %#x\n", status);
        fflush(stdout);
        _exit(1);
    }
    check_all(area, "the parent's copy");
}

static int file(const char *dir, const char *name, uint64_t key) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%d.%d", dir, name, (int)getpid(), (int)key);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, FILE_PAGES * PAGE) < 0)
        die(path);
    unlink(path);
    return fd;
}

static const char *directory;
static pthread_barrier_t made;

// The last thread to answer says so.
static void answer(struct area **all, int question) {
    for (int i = 0; i < 6; i++)
        check_all(all[i], all[i]->name);
    if (++answered % (int)threads == 0) {
        printf("whole %d\n", question);
        fflush(stdout);
    }
}

static void *run(void *argument) {
    uint64_t key = (uintptr_t)argument * 16 + 1;
    unsigned seed = (unsigned)key;
    struct area private, shared, mine, tmp, mem, anon;
    make(&private, "private memory", key, PAGES, -1, MAP_PRIVATE | MAP_ANONYMOUS);
    make(&anon, "shared memory", key + 1, FILE_PAGES, -1, MAP_SHARED | MAP_ANONYMOUS);
    make(&shared, "a shared file", key + 2, FILE_PAGES, file(directory, "shared", key), MAP_SHARED);
    make(&mine, "a private file", key + 3, FILE_PAGES, file(directory, "private", key), MAP_PRIVATE);
    make(&tmp, "a tmpfs file", key + 4, FILE_PAGES, file("/dev/shm", "tmp", key), MAP_SHARED);
    int fd = memfd_create("pattern", 0);
    if (fd < 0 || ftruncate(fd, FILE_PAGES * PAGE) < 0)
        die("memfd");
    make(&mem, "a memfd", key + 5, FILE_PAGES, fd, MAP_SHARED);
    pthread_barrier_wait(&made);
    struct area *all[] = {&private, &shared, &mine, &tmp, &mem, &anon};
    int last = 0;
    for (unsigned long round = 0; !stop && (rounds == 0 || round < rounds); round++) {
        if (last != asked)
            answer(all, ++last);
        step(all[round % 6], &seed);
        // One thread forks: the others' state is not the child's to check.
        if (key == 1 && round % 64 == 63)
            child(&private, &seed);
        if (rest_us)
            usleep(rest_us);
        else if (round % 8 == 7)
            usleep(500);
    }
    for (int i = 0; i < 6; i++)
        check_all(all[i], all[i]->name);
    return NULL;
}

int main(int argc, char **argv) {
    directory = argc > 1 ? argv[1] : "/tmp";
    rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 200;
    threads = argc > 3 ? strtoul(argv[3], NULL, 10) : threads;
    rest_us = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;
    share = argc > 5 ? strtoul(argv[5], NULL, 10) : 1;
    if (threads < 1 || threads > MAX_THREADS || share < 1 || share > 32) {
        fputs("usage: pattern DIR ROUNDS [THREADS [REST [SHARE]]]\n", stderr);
        return 2;
    }
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler = on_usr1;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    pthread_t ids[MAX_THREADS];
    pthread_barrier_init(&made, NULL, threads + 1);
    for (uintptr_t i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, run, (void *)i))
            die("thread");
    pthread_barrier_wait(&made);
    puts("ready");
    fflush(stdout);
    for (unsigned long i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    if (rounds)
        puts("ok");
    else
        printf("ok %llu\n", (unsigned long long)checks);
    return 0;
}
