/*
 * Wakes every processor of the lab from another one, several times a second.
 *
 * QEMU's emulation of SVM changes a processor's pending interrupts without a lock while a device's thread adds one
 * (QEMU 7.2, do_vmexit). An interrupt that is lost by that stays in the interrupt controller until the next one comes.
 * A processor that lost its timer's, and has nothing else to do, would sleep for good; an interrupt from another one
 * brings both.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD_MS = 100, CPUS_MAX = 64 };

static long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void beat(int cpu, int mine, int next)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
    for (long long due = now_ms();;) {
        struct pollfd woken = {mine, POLLIN, 0};
        char bytes[64];
        poll(&woken, 1, PERIOD_MS);
        while (read(mine, bytes, sizeof bytes) > 0)
            ;
        if (now_ms() < due)
            continue;
        due = now_ms() + PERIOD_MS;
        if (write(next, "", 1) < 0)
            continue; /* it has not read the last ones yet */
    }
}

int main(void)
{
    int pipes[CPUS_MAX][2];
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (cpus < 2)
        return 0;
    if (cpus > CPUS_MAX)
        cpus = CPUS_MAX;
    for (long i = 0; i < cpus; i++)
        if (pipe2(pipes[i], O_NONBLOCK | O_CLOEXEC) < 0)
            return 1;
    for (long i = 1; i < cpus; i++)
        if (fork() == 0) {
            prctl(PR_SET_NAME, "lab-pulse");
            beat((int)i, pipes[i][0], pipes[(i + 1) % cpus][1]);
        }
    beat(0, pipes[0][0], pipes[1][1]);
}
