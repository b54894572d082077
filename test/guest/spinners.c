/*
 * Threads that hand a word on by spinning, and make no call after the first line.  usage: spinners [N_THREADS [SECONDS]]
 *
 * Ends by itself after some seconds, 120 unless told otherwise.
 */
#include "check.h"
#include <pthread.h>
#include <time.h>

enum { MOST_THREADS = 16 };

static volatile long word;
static volatile bool done;
static long thread_count = 2;

static void *spin(void *number)
{
    long mine = (long)number;
    while (!done)
        if (word % thread_count == mine)
            word = word + 1;
        else
            __builtin_ia32_pause();
    return NULL;
}

static double now(void)
{
    struct timespec time;
    OK(clock_gettime(CLOCK_MONOTONIC, &time));
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int count, char **args)
{
    if (count > 1)
        thread_count = atol(args[1]);
    double end = now() + (count > 2 ? atof(args[2]) : 120);
    CHECK(thread_count > 0 && thread_count <= MOST_THREADS);
    pthread_t threads[MOST_THREADS];
    for (long i = 1; i < thread_count; i++)
        CHECK(pthread_create(&threads[i], NULL, spin, (void *)i) == 0);
    puts("ready");
    fflush(stdout);
    while (now() < end)
        for (int turn = 0; turn < 1000; turn++)
            if (word % thread_count == 0)
                word = word + 1;
            else
                __builtin_ia32_pause();
    done = true;
    for (long i = 1; i < thread_count; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    printf("%ld\n", word);
    return 0;
}
