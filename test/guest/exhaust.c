/* Makes the kernel keep as much for it as it will: mappings, then descriptors, in many processes.  Everything must be
 * refused honestly in the end, and what was taken must come back.  usage: exhaust [PROCESSES] */
#include "check.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void take_mappings(void)
{
    size_t page = 4096, most = 70000;
    char *area = mmap(NULL, 2 * most * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED)
        return;
    for (size_t i = 0; i < most; i++)
        if (mprotect(area + 2 * i * page, page, PROT_READ) != 0)
            break;
}

static void take_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max < 20000 ? limit.rlim_max : 20000;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    int ends[2];
    while (pipe(ends) == 0 && write(ends[1], "x", 1) == 1)
        if (epoll_create1(0) < 0)
            break;
}

int main(int argc, char **argv)
{
    int processes = argc > 1 ? atoi(argv[1]) : 40, made = 0;
    int hold[2];
    if (pipe(hold) != 0)
        return 1;
    for (int i = 0; i < processes; i++) {
        pid_t pid = fork();
        if (pid < 0)
            break;
        if (pid == 0) {
            char byte;
            close(hold[1]);
            take_mappings();
            take_descriptors();
            if (read(hold[0], &byte, 1) < 0)
                _exit(1);
            _exit(0);
        }
        made++;
    }
    sleep(2);
    close(hold[0]);
    close(hold[1]);
    for (int i = 0; i < made; i++)
        if (wait(NULL) < 0)
            return 2;
    void *again = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (again == MAP_FAILED)
        return 3;
    printf("ok exhaust\n");
    return 0;
}
