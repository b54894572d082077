/*
 * Makes processes until it may not or has N of them, then ends them all.  usage: forkbomb_bounded [N]
 *
 * Every process makes two more, so it grows as the real thing does. A refusal must be EAGAIN (or ENOMEM).
 */
#include "check.h"
#include <sys/mman.h>
#include <sys/prctl.h>

struct tally {
    long made, refused, odd, release;
};
static struct tally *tally;

static long bump(long *number)
{
    return __atomic_add_fetch(number, 1, __ATOMIC_SEQ_CST);
}

static long look(long *number)
{
    return __atomic_load_n(number, __ATOMIC_SEQ_CST);
}

/* A process of the bomb: two children, then waits for the end of the play. */
static void multiply(long most)
{
    for (int i = 0; i < 2 && look(&tally->refused) == 0; i++) {
        if (bump(&tally->made) > most) {
            __atomic_sub_fetch(&tally->made, 1, __ATOMIC_SEQ_CST);
            break;
        }
        pid_t pid = fork();
        if (pid == 0) {
            multiply(most);
            _exit(0);
        }
        if (pid < 0) {
            __atomic_sub_fetch(&tally->made, 1, __ATOMIC_SEQ_CST);
            if (errno != EAGAIN && errno != ENOMEM)
                bump(&tally->odd);
            bump(&tally->refused);
        }
    }
    while (!look(&tally->release))
        sleep_ms(10);
    while (wait(NULL) > 0 || errno == EINTR)
        ;
}

int main(int argc, char **argv)
{
    long most = argc > 1 ? atol(argv[1]) : 200;
    tally = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(tally != MAP_FAILED);
    pid_t first = CHILD({
        OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
        multiply(most);
    });
    /* Ready when enough are made, or one was refused and the number stands still. */
    for (long last = -1, now; (now = look(&tally->made)) < most; last = now) {
        if (look(&tally->refused) && now == last)
            break;
        sleep_ms(50);
    }
    dprintf(2, "%ld processes, %s\n", look(&tally->made), look(&tally->refused) ? "more were refused" : "as wanted");
    __atomic_store_n(&tally->release, 1, __ATOMIC_SEQ_CST);
    JOIN(first);
    CHECK_EQ(tally->odd, 0);
    CHECK(tally->made == most || tally->refused > 0);
    JOIN(CHILD(_exit(0))); /* there is room again */
    dprintf(1, "ok forkbomb_bounded\n");
    return 0;
}
