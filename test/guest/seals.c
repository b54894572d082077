/* Seals of memory files against mappings that may be written through (memfd_create(2), fcntl(2)). */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { PAGE = 4096, TURNS = 400 };

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

static int memory(void)
{
    int fd = FD(memfd_create("sealed", MFD_ALLOW_SEALING));
    OK(ftruncate(fd, 4 * PAGE));
    return fd;
}

static void future_writes(void)
{
    int fd = memory();
    char *old = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *reader = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(old != MAP_FAILED && reader != MAP_FAILED);
    OK(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
    /* What is there stays, and may be made writable. */
    old[0] = 1;
    OK(mprotect(reader, PAGE, PROT_READ | PROT_WRITE));
    reader[1] = 2;
    JOIN(CHILD(old[2] = 3));
    CHECK(old[0] == 1 && old[1] == 2 && old[2] == 3);
    CHECK_ERR(write(fd, "x", 1), EPERM);
    CHECK_ERR((intptr_t)mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), EPERM);
    if (kernel_is(6, 7))
        CHECK_ERR(remap_file_pages(old, PAGE, 0, 1, 0), EPERM);
    /* New ones read, and only that. */
    char *late = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(late != MAP_FAILED && late[0] == 1);
    CHECK_ERR(mprotect(late, PAGE, PROT_READ | PROT_WRITE), EACCES);
    /* Copies are nobody else's. */
    char *copy = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(copy != MAP_FAILED);
    copy[0] = 9;
    CHECK_EQ(old[0], 1);
    CHECK_ERR(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY);
}

static void writes(void)
{
    int fd = memory();
    char *old = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(old != MAP_FAILED);
    CHECK_ERR(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY);
    OK(munmap(old, PAGE));
    OK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
    CHECK_ERR((intptr_t)mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), EPERM);
    char *late = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    if (late == MAP_FAILED) { /* before Linux 6.7 */
        CHECK_EQ(errno, EPERM);
        CHECK(!kernel_is(6, 14));
    } else {
        CHECK_ERR(mprotect(late, PAGE, PROT_READ | PROT_WRITE), EACCES);
    }
}

/* What the two threads race for. */
static atomic_int fd_now, turn_now, mapped_turn;
static char *volatile mapping;
static int how;
enum { MAPS, RAISES, MOVES };

static void *maps(void *unused)
{
    for (int turn = 1; turn <= TURNS; turn++) {
        while (turn_now < turn)
            sched_yield();
        char *at = MAP_FAILED, *former = mapping;
        if (how == MAPS) {
            at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd_now, 0);
        } else if (how == RAISES) {
            at = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd_now, 0);
            if (at != MAP_FAILED && mprotect(at, PAGE, PROT_READ | PROT_WRITE) != 0) {
                OK(munmap(at, PAGE));
                at = MAP_FAILED;
            }
        } else {
            /* Another page of the file where one of it is shown, which goes meanwhile. */
            at = remap_file_pages(former, PAGE, 0, 1, 0) == 0 ? former : MAP_FAILED;
        }
        mapping = at;
        mapped_turn = turn;
    }
    return unused;
}

static void race(int way, int seal)
{
    how = way;
    turn_now = mapped_turn = 0;
    pthread_t thread;
    PT(pthread_create(&thread, NULL, maps, NULL));
    for (int turn = 1; turn <= TURNS; turn++) {
        int fd = memory();
        char *former = MAP_FAILED;
        if (way == MOVES) {
            former = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            CHECK(former != MAP_FAILED);
        }
        mapping = former;
        fd_now = fd;
        turn_now = turn;
        for (volatile int i = 0; i < turn % 40 * 20; i++)
            ;
        if (former != MAP_FAILED)
            OK(munmap(former, PAGE));
        int sealed = fcntl(fd, F_ADD_SEALS, seal) == 0;
        if (!sealed)
            CHECK_EQ(errno, EBUSY);
        /* Once a seal against all writes is there, there is no mapping, nor will there be one. */
        while (mapped_turn < turn)
            sched_yield();
        if (sealed && way == MOVES) {
            /* It went before the seal, moved or not. */
            CHECK_ERR(msync(former, PAGE, MS_ASYNC), ENOMEM);
            mapping = MAP_FAILED;
        }
        if (sealed && seal == F_SEAL_WRITE)
            CHECK(mapping == MAP_FAILED);
        if (seal == F_SEAL_FUTURE_WRITE)
            CHECK(sealed);
        if (mapping != MAP_FAILED)
            OK(munmap((char *)mapping, PAGE));
        close(fd);
    }
    PT(pthread_join(thread, NULL));
}

static void mapping_against_sealing(void)
{
    race(MAPS, F_SEAL_WRITE);
    race(MAPS, F_SEAL_FUTURE_WRITE);
}

static void raising_against_sealing(void)
{
    race(RAISES, F_SEAL_WRITE);
}

static void moving_against_sealing(void)
{
    race(MOVES, F_SEAL_WRITE);
}

/* A child gets its parent's mapping, and the parent lets go of its own: one of the two is found. */
static void forking_against_sealing(void)
{
    for (int turn = 0; turn < 60; turn++) {
        int fd = memory();
        int ends[2];
        OK(pipe(ends));
        char *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(at != MAP_FAILED);
        pid_t owner = CHILD({
            pid_t heir = CHILD({
                char byte;
                close(ends[1]);
                CHECK_EQ(read(ends[0], &byte, 1), 0);
            });
            OK(munmap(at, PAGE));
            close(ends[1]);
            JOIN(heir);
        });
        OK(munmap(at, PAGE));
        /* Until the last of them has gone. */
        for (int i = 0; i < 20; i++)
            CHECK_ERR(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY);
        close(ends[0]);
        close(ends[1]);
        JOIN(owner);
        OK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
        close(fd);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(future_writes),
        TEST(writes),
        TEST(mapping_against_sealing),
        TEST(raising_against_sealing),
        TEST(moving_against_sealing),
        TEST(forking_against_sealing),
    };
    return RUN_TESTS("seals", tests, argc, argv);
}
