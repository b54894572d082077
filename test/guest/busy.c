/*
 * Computes for ever, in some processes, and counts what they have done in a file that whoever wants may read: 8 bytes for each.
 *
 *   busy FILE PROCESSES          each computes without a pause
 *   busy FILE PROCESSES naps     each sleeps for a moment after each piece of work
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

enum { PIECE = 50000 };

static void compute(volatile uint64_t *done, int naps)
{
    uint64_t state = 88172645463325252u;
    for (;;) {
        for (int at = 0; at < PIECE; at++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        *done += state != 0;
        if (naps) usleep(100);
    }
}

int main(int argc, char **argv)
{
    int count = argc > 2 ? atoi(argv[2]) : 0;
    int file = argc > 2 ? open(argv[1], O_RDWR | O_CREAT, 0644) : -1;
    if (count < 1 || file < 0 || ftruncate(file, count * 8) < 0) {
        perror("busy");
        return 1;
    }
    uint64_t *done = mmap(0, count * 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (done == MAP_FAILED) return 1;
    for (int at = 1; at < count; at++) {
        pid_t child = fork();
        if (child < 0) return 2;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            compute(done + at, argc > 3);
        }
    }
    compute(done, argc > 3);
}
