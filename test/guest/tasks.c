/*
 * Many tasks that wait: PROCESSES processes with THREADS threads each, of which every second waits for a futex that all have in
 * common, and the others for a byte in their process's pipe. At SIGUSR1 each one is woken once, and once all have said so it prints
 * "all", how often it was asked, and how many answers came. One that is missing ends it with 1.
 *
 * tasks PROCESSES THREADS
 */
#include "check.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { STACK_BYTES = 64 << 10, MOST_MS = 60000 };

struct board {
    _Atomic uint32_t asked;
    atomic_long answers;
};

static struct board *board;
static int (*pipes)[2];

static void *wait_for_word(void *none)
{
    for (uint32_t seen = 0;;) {
        syscall(SYS_futex, &board->asked, FUTEX_WAIT, seen, NULL, NULL, 0);
        if (board->asked != seen) {
            CHECK(board->asked == ++seen);
            board->answers++;
        }
    }
    return none;
}

static void *wait_for_byte(void *pipe)
{
    for (char byte;;) {
        CHECK(read(*(int *)pipe, &byte, 1) == 1);
        board->answers++;
    }
    return NULL;
}

static void be_process(int number, int threads)
{
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0);
    for (int i = 1; i < threads; i++) {
        pthread_t id;
        CHECK(pthread_create(&id, &attributes, i % 2 ? wait_for_word : wait_for_byte, &pipes[number][0]) == 0);
    }
    wait_for_word(NULL);
}

static void ask(int processes, int threads)
{
    board->answers = 0;
    uint32_t question = ++board->asked;
    syscall(SYS_futex, &board->asked, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    for (int i = 0; i < processes; i++)
        for (int j = 2; j < threads; j += 2)
            CHECK(write(pipes[i][1], "", 1) == 1);
    for (int waited = 0; board->answers < (long)processes * threads; waited++) {
        if (waited > MOST_MS)
            FAIL("%ld of %d tasks were woken", (long)board->answers, processes * threads);
        usleep(1000);
    }
    usleep(10000);
    printf("all %u %ld\n", question, (long)board->answers);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int processes = argc > 1 ? atoi(argv[1]) : 4, threads = argc > 2 ? atoi(argv[2]) : 4, sig;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pipes = calloc((size_t)processes, sizeof *pipes);
    CHECK(board != MAP_FAILED && pipes);
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &usr1, NULL) == 0);
    for (int i = 0; i < processes; i++) {
        CHECK(pipe(pipes[i]) == 0);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            be_process(i, threads);
    }
    ask(processes, threads);
    while (sigwait(&usr1, &sig) == 0)
        ask(processes, threads);
    return 0;
}
