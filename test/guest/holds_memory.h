/* Families of holds.c: memory of every kind, copies over fork, and memory of other processes. */
#include "holds.h"
#include <sys/uio.h>

enum { REGION = 48, REGION_MAX = 2 * REGION, GAP = 8 };

/* A region of private memory, and the key of each of its pages; 0: zeros. */
struct region {
    uint64_t *at;
    size_t pages;
    uint64_t keys[REGION_MAX];
};

static uint64_t *page_of(const struct region *region, size_t page) { return region->at + page * WORDS; }

static void write_some(struct region *region)
{
    for (int i = 0; i < 6; i++) {
        size_t page = random_below(region->pages);
        region->keys[page] = 1 + random_below(1000000);
        fill_page(page_of(region, page), region->keys[page]);
    }
}

static void check_region(const struct region *region)
{
    for (size_t page = 0; page < region->pages; page++)
        PAGE_HOLDS(page_of(region, page), region->keys[page]);
}

/* Advice: what may go is either there or zeros, and everything else is there. */
static void advise(struct region *region)
{
    static const int ADVICE[] = {MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_WILLNEED};
    int advice = ADVICE[random_below(sizeof ADVICE / sizeof *ADVICE)];
    size_t first = random_below(region->pages), count = 1 + random_below(region->pages - first);
    if (advice == MADV_HUGEPAGE || advice == MADV_NOHUGEPAGE) {
        first = 0; /* it would be two mappings, which cannot move as one */
        count = region->pages;
    }
    if (madvise(page_of(region, first), count * PAGE, advice) < 0) {
        CHECK_EQ(errno, EINVAL); /* without huge pages, or of locked memory */
        return;
    }
    for (size_t page = first; page < first + count; page++) {
        if (advice == MADV_FREE) {
            /* It may go at any time until it is written to, so that is done at once: who sees zeros writes all. */
            volatile uint64_t *words = page_of(region, page);
            uint64_t was = words[0];
            words[0] = was;
            bool is_gone = words[1] == 0 && words[WORDS - 1] == 0;
            if (is_gone)
                words[0] = 0;
            region->keys[page] = is_gone ? 0 : region->keys[page];
        } else if (advice == MADV_DONTNEED)
            region->keys[page] = 0;
    }
}

/* Moves, grows or shrinks it. */
static void remap(struct region *region)
{
    size_t pages = REGION / 2 + random_below(REGION_MAX - REGION / 2 + 1);
    uint64_t *to = pages_of(REGION_MAX + GAP, MAP_PRIVATE);
    uint64_t *got = mremap(region->at, region->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    CHECK(got == to);
    OK(munmap(to + pages * WORDS, (REGION_MAX + GAP - pages) * PAGE));
    for (size_t page = region->pages; page < pages; page++)
        region->keys[page] = 0;
    region->at = to;
    region->pages = pages;
}

static void protect(struct region *region)
{
    OK(mprotect(region->at, region->pages * PAGE, PROT_READ));
    check_region(region);
    OK(mprotect(region->at, region->pages * PAGE, PROT_READ | PROT_WRITE));
}

static struct region *new_region(void)
{
    struct region *region = pages_of((sizeof *region + PAGE - 1) / PAGE, MAP_PRIVATE);
    region->pages = REGION;
    region->at = pages_of(REGION, MAP_PRIVATE);
    return region;
}

/* One region is advised, moved and changed at random; another one, that is locked, is changed alone. */
static void *change_regions(void *unused)
{
    struct region *free = new_region(), *locked = new_region();
    OK(mlock(locked->at, REGION * PAGE));
    do {
        static void (*const WAYS[])(struct region *) = {write_some, advise, remap, protect};
        AT();
        WAYS[random_below(4)](free);
        write_some(locked);
        check_region(free);
        check_region(locked);
    } while (goes_on());
    return unused;
}

enum { SEALED = 32 };

/* Memory files: one is sealed, of another one only what was mapped before can be written. */
static void memory(void)
{
    int sealed = FD(memfd_create("sealed", MFD_ALLOW_SEALING)), kept = FD(memfd_create("kept", MFD_ALLOW_SEALING));
    OK(ftruncate(sealed, SEALED * PAGE));
    OK(ftruncate(kept, SEALED * PAGE));
    uint64_t *writable = mmap(NULL, SEALED * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, kept, 0), page[WORDS];
    CHECK(writable != MAP_FAILED);
    for (uint64_t i = 0; i < SEALED; i++) {
        fill_page(page, 50 + i);
        MOVE(pwrite(sealed, page, PAGE, (off_t)i * PAGE), PAGE);
    }
    OK(fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    OK(fcntl(kept, F_ADD_SEALS, 0x10 | F_SEAL_SHRINK)); /* F_SEAL_FUTURE_WRITE */
    uint64_t *shown = mmap(NULL, SEALED * PAGE, PROT_READ, MAP_SHARED, sealed, 0);
    CHECK(shown != MAP_FAILED);
    pthread_t changer = thread_of(change_regions, NULL);
    for (uint64_t round = 1; !atomic_load(&board->ends); round++) {
        uint64_t at = random_below(SEALED), key = round * SEALED + at;
        AT();
        PAGE_HOLDS(shown + at * WORDS, 50 + at);
        fill_page(writable + at * WORDS, key);
        MOVE(pread(kept, page, PAGE, (off_t)at * PAGE), PAGE);
        PAGE_HOLDS(page, key);
        CHECK_ERR(pwrite(sealed, page, 8, 0), EPERM);
        CHECK_ERR(pwrite(kept, page, 8, 0), EPERM);
        CHECK_ERR(ftruncate(kept, PAGE), EPERM);
        if (round % 64 == 0)
            OK(fallocate(kept, FALLOC_FL_KEEP_SIZE, 0, SEALED * PAGE));
        usleep(200);
    }
    PT(pthread_join(changer, NULL));
}

enum { COPIED = 64, SHARED_WORDS = 4 };

/* Looks at what it inherited, changes some of it, has a child that does the same, and looks again. */
static void inherit(struct region *region, atomic_long *shared, int generations)
{
    check_region(region);
    write_some(region);
    shared[0]++;
    if (generations > 0)
        JOIN(MEMBER(inherit(region, shared, generations - 1)));
    check_region(region);
}

/* Pages that parents, children and their children have in common until one of them writes. */
static void copies(void)
{
    struct region *region = new_region();
    uint64_t *wiped = pages_of(4, MAP_PRIVATE), *heap = pages_of(3 * 512, MAP_PRIVATE);
    atomic_long *shared = pages_of(1, MAP_SHARED);
    OK(madvise(wiped, 4 * PAGE, MADV_WIPEONFORK));
    madvise(heap, 3 * 512 * PAGE, MADV_HUGEPAGE);
    heap = (uint64_t *)(((uintptr_t)heap + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1)); /* one huge page at least */
    fill_page(wiped, 70);
    for (uint64_t i = 0; i < 512; i += 8)
        fill_page(heap + i * WORDS, 80 + i);
    long rounds = 0;
    do {
        AT();
        pid_t child = MEMBER({
            PAGE_HOLDS(wiped, 0);
            fill_page(wiped, 71);
            fill_page(heap + rounds % 64 * 8 * WORDS, 7);
            inherit(region, shared, 2);
            PAGE_HOLDS(wiped, 71);
        });
        write_some(region);
        check_region(region);
        JOIN(child);
        PAGE_HOLDS(wiped, 70);
        uint64_t page = (uint64_t)rounds % 64 * 8;
        PAGE_HOLDS(heap + page * WORDS, 80 + page);
        rounds++;
    } while (goes_on());
    for (uint64_t i = 0; i < 512; i += 8)
        PAGE_HOLDS(heap + i * WORDS, 80 + i);
    CHECK_EQ(shared[0], 3 * rounds);
}

/* Has its first half read by its parent and its other half written, in turns. */
static void lend(uint64_t *area, int turn, int answer)
{
    for (uint64_t round = 1;; round++) {
        for (uint64_t i = 0; i < 8; i++)
            fill_page(area + i * WORDS, round * 16 + i);
        give_turn(answer);
        if (!take_turn(turn))
            return;
        for (uint64_t i = 8; i < 16; i++)
            PAGE_HOLDS(area + i * WORDS, round * 16 + i);
    }
}

static void other_memory(void)
{
    uint64_t *area = pages_of(16, MAP_PRIVATE), *mine = pages_of(8, MAP_PRIVATE);
    int turn = FD(eventfd(0, 0)), answer = FD(eventfd(0, 0));
    pid_t child = MEMBER(lend(area, turn, answer));
    uint64_t round = 1;
    do {
        struct iovec local = {mine, 8 * PAGE}, theirs = {area, 8 * PAGE}, second = {area + 8 * WORDS, 8 * PAGE};
        AT();
        take_turn(answer);
        MOVE(process_vm_readv(child, &local, 1, &theirs, 1, 0), 8 * PAGE);
        for (uint64_t i = 0; i < 8; i++) {
            PAGE_HOLDS(mine + i * WORDS, round * 16 + i);
            fill_page(mine + i * WORDS, round * 16 + 8 + i);
        }
        MOVE(process_vm_writev(child, &local, 1, &second, 1, 0), 8 * PAGE);
        give_turn(turn);
        round++;
    } while (goes_on());
    end_turns(turn);
    JOIN(child);
    PAGE_HOLDS(area, 0);
}
