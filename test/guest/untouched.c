// Memory that is stamped once, and reached in one way after another when it has not been touched since a restore.
//
// untouched PAGES: fills so many pages, says "ready", and answers lines from standard input, each with one line:
//   ways          reaches pages in every way that there is, each way pages of its own; "ways ok", or what was wrong
//   page N        reads page N; "page N ok"
//   sum           reads all that no way has changed; "sum ok"
//   stripes       reads those, and writes every second one; "stripes ok"
//   free          reads pages and gives them up; "free ok"
//   reuse         writes to new memory; "reuse ok"
//   reused        looks whether it is what was written; "reused ok"
//   mark          makes a file, /srv/mark; "mark ok"
//   secret WORD   writes WORD to all pages that no way has changed; "secret ok"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, EACH = 24 };

static uint64_t *memory;
static size_t pages, next;
static char wrong[200];

#define FAIL(...) (snprintf(wrong, sizeof wrong, __VA_ARGS__), -1)
#define TRY(what) if ((what) < 0) return FAIL("%s: %s", #what, strerror(errno))

static uint64_t stamp(size_t page, size_t at) {
    uint64_t x = (uint64_t)page * 0x9e3779b97f4a7c15ull ^ (uint64_t)at * 0xbf58476d1ce4e5b9ull;
    return (x ^ x >> 29) * 0x94d049bb133111ebull;
}

static uint64_t *at(size_t page) { return memory + page * WORDS; }

static int same(const char *how, size_t page, const uint64_t *is, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (is[i - from] != stamp(page, i))
            return FAIL("%s: page %zu word %zu is %016lx instead of %016lx", how, page, i, is[i - from], stamp(page, i));
    return 0;
}

// So many pages that nobody has touched.
static size_t fresh(size_t count) {
    size_t first = next;
    next += count;
    if (next > pages) {
        puts("too few pages");
        exit(2);
    }
    return first;
}

static int all_same(const char *how, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++)
        if (same(how, i, at(i), 0, WORDS) < 0)
            return -1;
    return 0;
}

// A write to one word of a page leaves the others as they were.
static int written(const char *how, size_t page, size_t word, uint64_t value) {
    if (at(page)[word] != value)
        return FAIL("%s: page %zu lacks what was written", how, page);
    return same(how, page, at(page), 0, word) < 0 || same(how, page, at(page) + word + 1, word + 1, WORDS) < 0 ? -1 : 0;
}

static int loads(void) { return all_same("loads", fresh(EACH), EACH); }

static int stores(void) {
    size_t first = fresh(EACH);
    for (size_t i = first; i < first + EACH; i++) {
        // Half of them are read first.
        if (i % 2 && same("read before", i, at(i), 0, WORDS) < 0)
            return -1;
        at(i)[5] = i;
        if (written("stores", i, 5, i) < 0)
            return -1;
    }
    return 0;
}

static int locked_stores(void) {
    size_t first = fresh(EACH);
    for (size_t i = first; i < first + EACH; i++) {
        __atomic_fetch_add(at(i) + 9, 1, __ATOMIC_SEQ_CST);
        if (written("atomics", i, 9, stamp(i, 9) + 1) < 0)
            return -1;
    }
    return 0;
}

static int write_calls(void) {
    size_t first = fresh(EACH);
    int file = memfd_create("out", 0);
    TRY(file);
    TRY(write(file, at(first), EACH * PAGE));
    uint64_t back[WORDS];
    for (size_t i = 0; i < EACH; i++) {
        TRY(pread(file, back, PAGE, i * PAGE));
        if (same("write", first + i, back, 0, WORDS) < 0)
            return -1;
    }
    return close(file);
}

static int read_calls(void) {
    size_t first = fresh(EACH);
    int ends[2];
    TRY(pipe(ends));
    for (size_t i = first; i < first + EACH; i++) {
        uint64_t value = ~i;
        TRY(write(ends[1], &value, 8));
        TRY(read(ends[0], at(i) + 77, 8));
        if (written("read", i, 77, value) < 0)
            return -1;
    }
    return close(ends[0]) | close(ends[1]);
}

static int vectors(void) {
    size_t first = fresh(EACH);
    struct iovec pieces[EACH];
    int ends[2];
    TRY(pipe(ends));
    for (size_t i = 0; i < EACH; i++)
        pieces[i] = (struct iovec){at(first + i) + i, 64};
    TRY(writev(ends[1], pieces, EACH));
    uint64_t back[EACH][8];
    TRY(read(ends[0], back, sizeof back));
    for (size_t i = 0; i < EACH; i++)
        if (same("writev", first + i, back[i], i, i + 8) < 0)
            return -1;
    return close(ends[0]) | close(ends[1]);
}

static int other_process(void) {
    size_t first = fresh(EACH);
    uint64_t back[WORDS], value = 4711;
    for (size_t i = first; i < first + EACH; i++) {
        struct iovec ours = {back, PAGE}, theirs = {at(i), PAGE};
        TRY(process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0));
        if (same("process_vm_readv", i, back, 0, WORDS) < 0)
            return -1;
        ours = (struct iovec){&value, 8};
        theirs = (struct iovec){at(i) + 3, 8};
        TRY(process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0));
        if (written("process_vm_writev", i, 3, value) < 0)
            return -1;
    }
    return 0;
}

static int proc_mem(void) {
    size_t first = fresh(EACH);
    int file = open("/proc/self/mem", O_RDWR);
    TRY(file);
    // Also where the program itself may not.
    TRY(mprotect(at(first), EACH / 2 * PAGE, PROT_NONE));
    uint64_t back[WORDS], value = 1234;
    for (size_t i = first; i < first + EACH; i++) {
        TRY(pread(file, back, PAGE, (off_t)at(i)));
        if (same("/proc/self/mem", i, back, 0, WORDS) < 0)
            return -1;
        TRY(pwrite(file, &value, 8, (off_t)(at(i) + 20)));
    }
    TRY(mprotect(at(first), EACH / 2 * PAGE, PROT_READ | PROT_WRITE));
    for (size_t i = first; i < first + EACH; i++)
        if (written("/proc/self/mem", i, 20, value) < 0)
            return -1;
    return close(file);
}

static int forks(void) {
    size_t first = fresh(EACH);
    // A third is read before, a third written.
    for (size_t i = first; i < first + EACH; i++) {
        if (i % 3 == 0 && same("before fork", i, at(i), 0, WORDS) < 0)
            return -1;
        if (i % 3 == 1)
            at(i)[0] = stamp(i, 0);
    }
    pid_t child = fork();
    TRY(child);
    for (size_t i = first; i < first + EACH; i++) {
        at(i)[child ? 1 : 2] = child ? 10 : 20;
        if (at(i)[child ? 2 : 1] != stamp(i, child ? 2 : 1) || same("after fork", i, at(i) + 3, 3, WORDS) < 0) {
            if (!child)
                _exit(1);
            return FAIL("a page of the parent has what the child wrote, or is another");
        }
    }
    if (!child)
        _exit(all_same("in a child", fresh(EACH), EACH) < 0);
    int status;
    TRY(waitpid(child, &status, 0));
    if (status)
        return FAIL("the child found other pages (status %x)", status);
    // The child has read them, and here they are new.
    return all_same("after the child's end", fresh(EACH), EACH);
}

static int protections(void) {
    size_t first = fresh(EACH);
    if (all_same("before mprotect", first, EACH / 2) < 0)
        return -1;
    TRY(mprotect(at(first), EACH * PAGE, PROT_NONE));
    TRY(mprotect(at(first), EACH * PAGE, PROT_READ));
    if (all_same("after mprotect", first, EACH) < 0)
        return -1;
    TRY(mprotect(at(first), EACH * PAGE, PROT_READ | PROT_WRITE));
    for (size_t i = first; i < first + EACH; i++) {
        at(i)[500] = 1;
        if (written("mprotect", i, 500, 1) < 0)
            return -1;
    }
    return 0;
}

static int advice(void) {
    size_t first = fresh(EACH);
    unsigned char there[EACH];
    if (all_same("before madvise", first, EACH / 2) < 0)
        return -1;
    TRY(mincore(at(first), EACH * PAGE, there));
    TRY(madvise(at(first), EACH * PAGE, MADV_WILLNEED));
    TRY(madvise(at(first), EACH / 4 * PAGE, MADV_COLD));
    if (all_same("after madvise", first, EACH) < 0)
        return -1;
    // Given up, whether it was touched or not: zeros, and not what the snapshot has there.
    TRY(madvise(at(first), EACH * PAGE, MADV_DONTNEED));
    size_t untouched = fresh(EACH);
    TRY(madvise(at(untouched), EACH * PAGE, MADV_DONTNEED));
    for (size_t i = 0; i < EACH * WORDS; i++)
        if (at(first)[i] || at(untouched)[i])
            return FAIL("memory that was given up has content");
    return 0;
}

static int moves(void) {
    size_t first = fresh(EACH);
    if (all_same("before mremap", first, EACH / 2) < 0)
        return -1;
    uint64_t *to = mmap(NULL, EACH * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    to = mremap(at(first), EACH * PAGE, EACH * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (to == MAP_FAILED)
        return FAIL("mremap: %s", strerror(errno));
    for (size_t i = 0; i < EACH; i++) {
        if (same("mremap", first + i, to + i * WORDS, 0, WORDS) < 0)
            return -1;
        to[i * WORDS] = 3;
    }
    return munmap(to, EACH * PAGE);
}

static void *waits(void *word) {
    return (void *)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, *(uint32_t *)word, NULL, NULL, 0);
}

static int futexes(void) {
    size_t first = fresh(4);
    // A wait by the kernel's own look, on a page that nobody has touched: the value is another one.
    struct timespec soon = {0, 1000000};
    if (syscall(SYS_futex, at(first), FUTEX_WAIT, (uint32_t)stamp(first, 0) + 1, &soon, NULL, 0) == 0 || errno != EAGAIN)
        return FAIL("a futex with another value: %s", strerror(errno));
    if (syscall(SYS_futex, at(first + 1), FUTEX_WAIT, (uint32_t)stamp(first + 1, 0), &soon, NULL, 0) == 0 || errno != ETIMEDOUT)
        return FAIL("a futex with its value: %s", strerror(errno));
    // Who waits on a page that is only read is woken once it has been written.
    pthread_t thread;
    TRY(-pthread_create(&thread, NULL, waits, at(first + 2)));
    usleep(20000);
    at(first + 2)[1] = 1;
    for (int woken = 0; !woken; usleep(1000))
        woken = syscall(SYS_futex, at(first + 2), FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    pthread_join(thread, NULL);
    return written("futex", first + 2, 1, 1);
}

static int splices(void) {
    size_t first = fresh(4);
    int ends[2];
    TRY(pipe(ends));
    struct iovec piece = {at(first), 4 * PAGE};
    ssize_t moved = vmsplice(ends[1], &piece, 1, 0);
    if (moved < PAGE)
        return FAIL("vmsplice: %zd", moved);
    uint64_t back[4 * WORDS];
    TRY(read(ends[0], back, moved));
    for (ssize_t i = 0; i < moved / PAGE; i++)
        if (same("vmsplice", first + i, back + i * WORDS, 0, WORDS) < 0)
            return -1;
    return close(ends[0]) | close(ends[1]);
}

static int messages(void) {
    // As a whole or not at all: it cannot go in parts.
    enum { LONG = 40 };
    size_t first = fresh(LONG);
    int ends[2], room = 1 << 20;
    TRY(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    TRY(send(ends[0], at(first), LONG * PAGE, 0));
    static uint64_t back[LONG * WORDS];
    if (recv(ends[1], back, sizeof back, 0) != LONG * PAGE)
        return FAIL("a message came in part");
    for (size_t i = 0; i < LONG; i++)
        if (same("send", first + i, back + i * WORDS, 0, WORDS) < 0)
            return -1;
    // What was sent is written later.
    for (size_t i = first; i < first + LONG; i++) {
        at(i)[8] = 6;
        if (written("send", i, 8, 6) < 0)
            return -1;
    }
    return close(ends[0]) | close(ends[1]);
}

// Through the host: a file, and sockets over its loopback. Every third page was written before, so pieces lie in several places.
static size_t mixed(size_t count) {
    size_t first = fresh(count);
    for (size_t i = first; i < first + count; i += 3)
        at(i)[0] = stamp(i, 0);
    return first;
}

static int drained(const char *how, int from, size_t first, size_t bytes) {
    static uint64_t back[64 * WORDS];
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(from, (char *)back + done, bytes - done);
        if (got <= 0)
            return FAIL("%s: %zu of %zu bytes came", how, done, bytes);
        done += got;
    }
    for (size_t i = 0; i < bytes / PAGE; i++)
        if (same(how, first + i, back + i * WORDS, 0, WORDS) < 0)
            return -1;
    return 0;
}

static int host_files(void) {
    // Others with this memory may do so at the same time in the same directory.
    int file = open("/srv", O_TMPFILE | O_RDWR, 0600);
    if (file < 0 && (errno == ENOENT || errno == EROFS))
        return 0;
    TRY(file);
    size_t first = mixed(60);
    for (size_t done = 0; done < 60 * PAGE;) {
        ssize_t put = write(file, (char *)at(first) + done, 60 * PAGE - done);
        TRY(put);
        done += put;
    }
    TRY(lseek(file, 0, SEEK_SET));
    if (drained("a file", file, first, 60 * PAGE) < 0)
        return -1;
    // Across a border of pages, in one piece.
    size_t second = fresh(2);
    if (pwrite(file, (char *)at(second) + PAGE / 2, PAGE, 0) != PAGE)
        return FAIL("a small write is not whole");
    uint64_t back[WORDS];
    TRY(pread(file, back, PAGE, 0));
    return same("a small write", second, back, WORDS / 2, WORDS) < 0 || same("a small write", second + 1, back + WORDS / 2, 0, WORDS / 2) < 0
               ? -1 : close(file);
}

static void *sends(void *of) {
    size_t first = ((size_t *)of)[0];
    int to = (int)((size_t *)of)[1];
    for (size_t done = 0; done < 60 * PAGE;) {
        ssize_t put = send(to, (char *)at(first) + done, 60 * PAGE - done, 0);
        if (put <= 0)
            break;
        done += put;
    }
    shutdown(to, SHUT_WR);
    return NULL;
}

static int host_sockets(void) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof here;
    int listens = socket(AF_INET, SOCK_STREAM, 0), calls = socket(AF_INET, SOCK_STREAM, 0);
    TRY(bind(listens, (void *)&here, len));
    TRY(listen(listens, 1));
    TRY(getsockname(listens, (void *)&here, &len));
    TRY(connect(calls, (void *)&here, len));
    int other = accept(listens, NULL, NULL);
    TRY(other);
    size_t of[2] = {mixed(60), calls};
    pthread_t thread;
    TRY(-pthread_create(&thread, NULL, sends, of));
    int came = drained("tcp", other, of[0], 60 * PAGE);
    pthread_join(thread, NULL);
    if (came < 0)
        return -1;
    here.sin_port = 0;
    int gets = socket(AF_INET, SOCK_DGRAM, 0), puts_to = socket(AF_INET, SOCK_DGRAM, 0);
    TRY(bind(gets, (void *)&here, len));
    TRY(getsockname(gets, (void *)&here, &len));
    size_t first = mixed(8);
    TRY(sendto(puts_to, at(first), 8 * PAGE, 0, (void *)&here, len));
    return drained("udp", gets, first, 8 * PAGE) | close(gets) | close(puts_to) | close(calls) | close(other) | close(listens);
}

static const struct { const char *name; int (*go)(void); } WAYS[] = {
    {"loads", loads}, {"stores", stores}, {"atomics", locked_stores}, {"write", write_calls}, {"read", read_calls},
    {"vectors", vectors}, {"process_vm", other_process}, {"proc", proc_mem}, {"fork", forks}, {"mprotect", protections},
    {"madvise", advice}, {"mremap", moves}, {"futex", futexes}, {"vmsplice", splices}, {"messages", messages},
    {"files of the host", host_files}, {"sockets of the host", host_sockets},
};

static uint64_t *again;
enum { AGAIN = 200 };

// Reads pages and gives them up.
static const char *give_up(void) {
    size_t first = fresh(AGAIN);
    if (all_same("free", first, AGAIN) < 0)
        return wrong;
    return madvise(at(first), AGAIN * PAGE, MADV_DONTNEED) < 0 ? "madvise" : "free ok";
}

// Writes every second page, and leaves all as they are.
static const char *stripe(void) {
    for (size_t i = next; i < pages; i++) {
        if (same("stripes", i, at(i), 0, WORDS) < 0)
            return wrong;
        if (i % 2)
            at(i)[0] = stamp(i, 0);
    }
    return "stripes ok";
}

// Writes to new memory, or looks whether it is what was written.
static const char *reuse(int writes) {
    if (!again)
        again = mmap(NULL, 2 * AGAIN * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (again == MAP_FAILED)
        return "mmap";
    for (size_t i = 0; i < 2 * AGAIN * WORDS; i++) {
        if (writes)
            again[i] = ~stamp(1, i);
        else if (again[i] != ~stamp(1, i))
            return "new memory is not what was written";
    }
    return writes ? "reuse ok" : "reused ok";
}

static void answer(char *line) {
    size_t number;
    char word[64];
    if (!strcmp(line, "ways\n")) {
        for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++)
            if (WAYS[i].go() < 0) {
                printf("ways: %s: %s\n", WAYS[i].name, wrong);
                return;
            }
        puts("ways ok");
    } else if (sscanf(line, "page %zu", &number) == 1 && number < pages) {
        puts(same("page", number, at(number), 0, WORDS) < 0 ? wrong : "page ok");
    } else if (!strcmp(line, "free\n")) {
        puts(give_up());
    } else if (!strcmp(line, "reuse\n") || !strcmp(line, "reused\n")) {
        puts(reuse(line[5] == '\n'));
    } else if (!strcmp(line, "mark\n")) {
        int file = open("/srv/mark", O_CREAT | O_WRONLY, 0600);
        puts(file < 0 || close(file) < 0 ? "no mark" : "mark ok");
    } else if (!strcmp(line, "sum\n")) {
        puts(all_same("sum", next, pages - next) < 0 ? wrong : "sum ok");
    } else if (!strcmp(line, "stripes\n")) {
        puts(stripe());
    } else if (sscanf(line, "secret %60s", word) == 1) {
        for (size_t i = next; i < pages; i++)
            memcpy(at(i), word, strlen(word));
        puts("secret ok");
    } else {
        puts("what?");
    }
}

int main(int argc, char **argv) {
    pages = argc > 1 ? strtoul(argv[1], NULL, 0) : 1024;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    for (size_t page = 0; page < pages; page++)
        for (size_t i = 0; i < WORDS; i++)
            at(page)[i] = stamp(page, i);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    char line[128];
    while (fgets(line, sizeof line, stdin))
        answer(line);
    return 0;
}
