// A heap of incompressible data that a server keeps, and checks in parts when asked to.
// usage: heap PORT MEGABYTES
// A client connects, sends a line, and reads one. "sparse N": 256 pages, scattered, of which 16 depend on N.
// "dense N": the first three quarters. Of the pages looked at one in four is changed. The answer: pages and a sum, or MISMATCH.
#include <sys/mman.h>

#include "line_server.h"

enum { WORDS = 512, SPARSE = 256, FRESH = 16 };

static uint64_t (*heap)[WORDS];
static uint64_t pages, sum;

// Word 0 counts changes; the others never change.
static int look(uint64_t page) {
    uint64_t at = 1 + mix(page ^ heap[page][0]) % (WORDS - 1);
    if (heap[page][at] != mix(page * WORDS + at)) return 0;
    sum += heap[page][at];
    if (page % 4 == 0) heap[page][0]++;
    return 1;
}

static int serve(const char *line, char *answer, size_t size) {
    unsigned long long number = 0;
    uint64_t looked = 0;
    int good = 1;
    sum = 0;
    if (sscanf(line, "sparse %llu", &number) == 1) {
        for (; looked < SPARSE; looked++)
            good &= look(mix(looked < FRESH ? mix(number) + looked : looked) % pages);
    } else if (sscanf(line, "dense %llu", &number) == 1) {
        for (; looked < pages / 4 * 3; looked++) good &= look(looked);
    } else {
        good = 0;
    }
    return good ? snprintf(answer, size, "%llu %016llx\n", (unsigned long long)looked, (unsigned long long)sum)
                : snprintf(answer, size, "MISMATCH\n");
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: heap PORT MEGABYTES\n"), 2;
    pages = strtoull(argv[2], NULL, 10) << 8;
    heap = mmap(NULL, pages * sizeof *heap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (heap == MAP_FAILED) return perror("mmap"), 1;
    for (uint64_t page = 0; page < pages; page++)
        for (uint64_t at = 0; at < WORDS; at++) heap[page][at] = at ? mix(page * WORDS + at) : 0;

    return serve_lines(argv[1], serve);
}
