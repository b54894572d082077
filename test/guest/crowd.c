/* Threads of one space that all touch new pages of a file, beside one that naps.  usage: crowd FILE [N_THREADS [ROUNDS]] */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { PAGE = 4096, MOST_PAGES = 2000, MOST_THREADS = 16 };

static volatile char *file, sink;
static long pages;
static int thread_count = 3, rounds = 10;
static volatile bool done;

static void *nap(void *none)
{
    while (!done)
        usleep(20);
    return none;
}

static void *touch(void *first)
{
    for (int round = 0; round < rounds; round++) {
        for (long page = (long)first; page < pages; page += thread_count)
            sink = file[page * PAGE];
        OK(madvise((void *)file, (size_t)(pages * PAGE), MADV_DONTNEED));
    }
    return NULL;
}

int main(int count, char **words)
{
    CHECK(count > 1);
    if (count > 2)
        thread_count = atoi(words[2]);
    if (count > 3)
        rounds = atoi(words[3]);
    CHECK(thread_count > 0 && thread_count <= MOST_THREADS);
    int fd = FD(open(words[1], O_RDONLY));
    struct stat about;
    OK(fstat(fd, &about));
    pages = about.st_size / PAGE < MOST_PAGES ? about.st_size / PAGE : MOST_PAGES;
    file = mmap(NULL, (size_t)(pages * PAGE), PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(file != MAP_FAILED);
    pthread_t threads[MOST_THREADS], napper;
    PT(pthread_create(&napper, NULL, nap, NULL));
    for (long i = 0; i < thread_count; i++)
        PT(pthread_create(&threads[i], NULL, touch, (void *)i));
    for (int i = 0; i < thread_count; i++)
        PT(pthread_join(threads[i], NULL));
    done = true;
    PT(pthread_join(napper, NULL));
    puts("ok");
    return 0;
}
