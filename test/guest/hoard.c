/*
 * Takes sockets, as many as it gets, in as many processes as that takes.
 *
 *   hoard          says how many it has got, and keeps them
 *   hoard MOST     takes so many at most, says how many it has got, and ends
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 4096 };

struct got {
    long count;
    int error;
};

/* What a process gets; 0: as many as it wanted. */
static struct got take(long most)
{
    struct got got = {0, 0};
    while (got.count < most) {
        if (socket(AF_INET, SOCK_DGRAM, 0) < 0) {
            got.error = errno;
            break;
        }
        got.count++;
    }
    return got;
}

int main(int argc, char **argv)
{
    long most = argc > 1 ? atol(argv[1]) : 1L << 40;
    long sum = 0;
    static pid_t children[CHILDREN];
    int count = 0;
    struct got got;
    do {
        int ends[2];
        if (pipe(ends) < 0) return 1;
        pid_t child = fork();
        if (child < 0) return 2;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            got = take(most - sum);
            if (write(ends[1], &got, sizeof got) != sizeof got) return 3;
            for (;;) pause();
        }
        if (read(ends[0], &got, sizeof got) != sizeof got) return 4;
        children[count++] = child;
        close(ends[0]);
        close(ends[1]);
        sum += got.count;
        /* A full table of its own is no reason to stop. */
    } while (got.error == EMFILE && count < CHILDREN);
    printf("%ld sockets%s\n", sum, got.error == ENFILE ? ", the next one is refused" : "");
    fflush(stdout);
    while (argc <= 1) pause();
    for (int at = 0; at < count; at++) {
        kill(children[at], SIGKILL);
        waitpid(children[at], NULL, 0);
    }
    return got.error == 0 || got.error == ENFILE ? 0 : 5;
}
