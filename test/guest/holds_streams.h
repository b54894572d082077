/* Families of holds.c: pipes and FIFOs with splices of all kinds, and terminals. */
#include "holds.h"
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <termios.h>

/* A stream is these words again and again. Nobody changes them, since a pipe may have the pages themselves. */
enum { CYCLE = 64 * PAGE };
static char *cycle;

struct stream {
    int from, to, copy;
    long bytes;
};

/* Reads it to its end. */
static void *check_stream(void *argument)
{
    struct stream *stream = argument;
    char buffer[9000];
    for (;;) {
        ssize_t size = read(stream->from, buffer, 1 + random_below(sizeof buffer));
        CHECK(size >= 0);
        if (size == 0)
            return NULL;
        long at = stream->bytes % CYCLE, head = CYCLE - at < size ? CYCLE - at : size;
        if (memcmp(buffer, cycle + at, (size_t)head) != 0 || memcmp(buffer + head, cycle, (size_t)(size - head)) != 0)
            FAIL("%zd bytes at %ld of a stream are wrong", size, stream->bytes);
        stream->bytes += size;
    }
}

/* Copies what comes by `tee`, and hands it on by `splice`. */
static void *split_stream(void *argument)
{
    struct stream *stream = argument;
    for (;;) {
        ssize_t size = tee(stream->from, stream->copy, 1 + random_below(30000), 0);
        CHECK(size >= 0);
        if (size == 0)
            break;
        for (ssize_t done = 0, moved; done < size; done += moved) {
            moved = splice(stream->from, NULL, stream->to, NULL, (size_t)(size - done), 0);
            CHECK(moved > 0);
        }
        stream->bytes += size;
    }
    OK(close(stream->to));
    OK(close(stream->copy));
    return NULL;
}

/* Writes by turns with a copy and without, until the end. */
static void write_stream(int fifo, atomic_long *bytes)
{
    do {
        long at = *bytes % CYCLE, most = CYCLE - at;
        struct iovec piece = {cycle + at, 1 + random_below(most < 20000 ? (uint64_t)most : 20000)};
        ssize_t moved = random_below(2) ? vmsplice(fifo, &piece, 1, 0) : write(fifo, piece.iov_base, piece.iov_len);
        CHECK(moved > 0);
        *bytes += moved;
    } while (goes_on());
}

static void pipes(void)
{
    cycle = pages_of(CYCLE / PAGE, MAP_PRIVATE);
    for (uint64_t i = 0; i < CYCLE / PAGE; i++)
        fill_page((uint64_t *)cycle + i * WORDS, 90 + i);
    atomic_long *written = pages_of(1, MAP_SHARED);
    OK(mkfifo("fifo", 0600));
    pid_t writer = MEMBER(write_stream(FD(open("fifo", O_WRONLY)), written));
    int fifo = FD(open("fifo", O_RDONLY)), middle[2], ends[2][2];
    OK(pipe(middle));
    for (int i = 0; i < 2; i++)
        OK(pipe(ends[i]));
    struct stream split = {middle[0], ends[0][1], ends[1][1], 0};
    struct stream checked[2] = {{ends[0][0], -1, -1, 0}, {ends[1][0], -1, -1, 0}};
    pthread_t threads[3] = {thread_of(split_stream, &split), thread_of(check_stream, &checked[0]),
                            thread_of(check_stream, &checked[1])};
    ssize_t moved;
    while ((moved = splice(fifo, NULL, middle[1], NULL, 1 + random_below(40000), SPLICE_F_MOVE)) > 0)
        AT();
    CHECK_EQ(moved, 0);
    OK(close(middle[1]));
    for (int i = 0; i < 3; i++)
        PT(pthread_join(threads[i], NULL));
    JOIN(writer);
    CHECK_EQ(split.bytes, *written);
    CHECK_EQ(checked[0].bytes, *written);
    CHECK_EQ(checked[1].bytes, *written);
}

/* Answers lines on its terminal with the same number. */
static void answer_lines(void)
{
    char line[64], want[64];
    for (long number = 0;; number++) {
        ssize_t size = read(0, line, sizeof line - 1);
        CHECK(size > 0);
        line[size] = 0;
        if (!strcmp(line, "end\n"))
            return;
        snprintf(want, sizeof want, "line %ld\n", number);
        if (strcmp(line, want) != 0)
            FAIL("a terminal has \"%s\", want \"%s\"", line, want);
        size = snprintf(line, sizeof line, "answer %ld\n", number);
        MOVE(write(1, line, (size_t)size), size);
    }
}

/* Reads answers from the terminal's other side, as they may be cut. */
static void expect_answer(int master, long number)
{
    char want[64], got[64];
    ssize_t size = snprintf(want, sizeof want, "answer %ld\r\n", number);
    for (ssize_t done = 0, moved; done < size; done += moved) {
        moved = read(master, got + done, (size_t)(size - done));
        CHECK(moved > 0);
    }
    if (memcmp(got, want, (size_t)size) != 0)
        FAIL("answer %ld is wrong: \"%.*s\"", number, (int)size, got);
}

/* Lines to a session on a terminal of its own, some of them mended on their way, and answers from there. */
static void terminals(void)
{
    struct termios settings;
    int master;
    pid_t child = FD(forkpty(&master, NULL, NULL, NULL));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        OK(tcgetattr(0, &settings));
        settings.c_lflag &= ~(tcflag_t)ECHO;
        OK(tcsetattr(0, TCSANOW, &settings));
        MOVE(write(1, "!", 1), 1);
        answer_lines();
        _exit(0);
    }
    char text[64], byte;
    MOVE(read(master, &byte, 1), 1);
    long number = 0;
    do {
        long ahead = 1 + (long)random_below(8);
        AT();
        for (long i = 0; i < ahead; i++) {
            const char *form = (number + i) % 2 ? "line %ld\n" : "lime\x7f\x7fne %ld\n";
            int size = snprintf(text, sizeof text, form, number + i);
            MOVE(write(master, text, (size_t)size), size);
        }
        for (long i = 0; i < ahead; i++)
            expect_answer(master, number + i);
        number += ahead;
    } while (goes_on());
    MOVE(write(master, "end\n", 4), 4);
    JOIN(child);
    CHECK(read(master, &byte, 1) < 0 && errno == EIO);
}
