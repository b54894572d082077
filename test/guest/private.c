// Private mappings of files: what is written to them is the process's own, its children's too, and never the file's; what
// is written to the file later is seen or not, but nothing else is.
#define _GNU_SOURCE
#include <sys/mman.h>

#include "check.h"

enum { PAGE = 4096, PAGES = 100 };

static void fill(int file, char what) {
    char page[PAGE];
    memset(page, what, sizeof page);
    for (int i = 0; i < PAGES; i++) CHECK(pwrite(file, page, PAGE, (off_t)i * PAGE) == PAGE);
}

static char at(const char *map, int page) { return ((volatile const char *)map)[page * PAGE + 17]; }

// Runs `what` in a child of a child, and checks that it holds.
#define IN_CHILDREN(what)                                   \
    do {                                                    \
        pid_t child = fork();                               \
        if (child == 0) {                                   \
            pid_t grandchild = fork();                      \
            if (grandchild == 0) _exit(!(what));            \
            int status;                                     \
            waitpid(grandchild, &status, 0);                \
            _exit(status != 0 || !(what));                  \
        }                                                   \
        int status;                                         \
        CHECK(waitpid(child, &status, 0) == child && status == 0); \
    } while (0)

static void test(int file) {
    fill(file, 'a');
    char *map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(map != MAP_FAILED);
    // Written without, and after, a read.
    map[1 * PAGE + 17] = 'b';
    CHECK(at(map, 2) == 'a');
    map[2 * PAGE + 17] = 'c';
    CHECK(at(map, 3) == 'a');
    IN_CHILDREN(at(map, 1) == 'b' && at(map, 2) == 'c' && at(map, 3) == 'a' && at(map, 50) == 'a');
    // The file changes under pages that were seen, were written, and were not touched yet.
    fill(file, 'd');
    CHECK(at(map, 1) == 'b' && at(map, 2) == 'c');
    CHECK(at(map, 3) == 'a' || at(map, 3) == 'd');
    map[3 * PAGE + 17] = 'e';
    IN_CHILDREN(at(map, 1) == 'b' && at(map, 2) == 'c' && at(map, 3) == 'e');
    CHECK(at(map, 99) == 'a' || at(map, 99) == 'd');
    // A new mapping shows what the file holds now.
    char *again = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(again != MAP_FAILED && at(again, 98) == 'd');
    // One that is shared is seen by both.
    char *shared = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(shared != MAP_FAILED);
    shared[97 * PAGE + 17] = 'f';
    char *third = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(third != MAP_FAILED && at(third, 97) == 'f');
    char byte;
    CHECK(pread(file, &byte, 1, 97 * PAGE + 17) == 1 && byte == 'f');
    CHECK(pread(file, &byte, 1, 3 * PAGE + 17) == 1 && byte == 'd');
    // Thrown away, pages are the file's again.
    CHECK(madvise(map, PAGES * PAGE, MADV_DONTNEED) == 0 && at(map, 1) == 'd' && at(map, 97) == 'f');
    munmap(map, PAGES * PAGE);
    munmap(again, PAGES * PAGE);
    munmap(shared, PAGES * PAGE);
    munmap(third, PAGES * PAGE);
}

static void of_files(void) {
    int file = FD(open("private", O_RDWR | O_CREAT, 0600));
    test(file);
    OK(close(file));
    // Nobody writes it any more.
    file = FD(open("private", O_RDONLY));
    char *map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(map != MAP_FAILED && at(map, 5) == 'd');
    map[5 * PAGE + 17] = 'g';
    IN_CHILDREN(at(map, 5) == 'g' && at(map, 6) == 'd');
    OK(truncate("private", 4 * PAGE));
    CHECK(at(map, 3) == 'd');
}

static void of_memfds(void) { test(FD(memfd_create("private", 0))); }

static const struct test tests[] = {TEST(of_files), TEST(of_memfds)};

int main(int argc, char **argv) { return RUN_TESTS("private", tests, argc, argv); }
