/*
 * Takes memory and frees it again, a step for each line on standard input, and says what it has done.
 * usage: takes MIB FILE; FILE is made in memory, and removed.
 */
#include "check.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

static void says(const char *what)
{
    puts(what);
    fflush(stdout);
    if (getchar() == EOF)
        exit(0);
}

int main(int count, char **args)
{
    CHECK(count == 3);
    size_t bytes = (size_t)atol(args[1]) << 20;
    says("ready");
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 'x', bytes);
    says("taken");
    OK(munmap(memory, bytes));
    says("freed");
    int file = open(args[2], O_CREAT | O_EXCL | O_WRONLY, 0600);
    CHECK(file >= 0);
    static char part[1 << 20];
    memset(part, 'z', sizeof part);
    for (size_t at = 0; at < bytes; at += sizeof part)
        CHECK(write(file, part, sizeof part) == sizeof part);
    OK(close(file));
    says("written");
    OK(unlink(args[2]));
    says("removed");
    return 0;
}
