/* Calls that come back at once, or soon, where a kernel might wait for ever. */
#include "check.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <termios.h>

enum { PROGRAM_ENDS_WITH = 7, STACK = 64 << 10 };

static int run_program(void *unused)
{
    (void)unused;
    /* Its creator is asleep by then, and has to end while it sleeps. */
    struct timespec moment = {0, 50000000};
    syscall(SYS_nanosleep, &moment, NULL);
    char *arguments[] = {"standstills", "end", NULL}, *environment[] = {NULL};
    syscall(SYS_execve, "/proc/self/exe", arguments, environment);
    return 1;
}

static void a_thread_that_its_process_waits_for_runs_a_program(void)
{
    int status = status_of(CHILD({
        char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(stack != MAP_FAILED);
        clone(run_program, stack + STACK,
              CLONE_VM | CLONE_VFORK | CLONE_THREAD | CLONE_SIGHAND | CLONE_FS | CLONE_FILES, NULL);
        FAIL("the process goes on beside its new program");
    }));
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), PROGRAM_ENDS_WITH);
}

static void splices_that_nothing_takes(void)
{
    int pipes[2];
    OK(pipe(pipes));
    sigset_t none;
    sigemptyset(&none);
    int takers[] = {FD(epoll_create1(0)),
                    FD(eventfd(0, 0)),
                    FD(timerfd_create(CLOCK_MONOTONIC, 0)),
                    FD(signalfd(-1, &none, 0)),
                    FD(syscall(434, getpid(), 0)),
                    FD(open("/dev/full", O_RDWR))};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof takers / sizeof *takers; i++)
            CHECK_ERR(splice(pipes[0], NULL, takers[i], NULL, 8, 0), EINVAL);
        /* Whether there is something to take makes no difference. */
        CHECK_EQ(write(pipes[1], "\1\0\0\0\0\0\0\0", 8), 8);
    }
    CHECK_EQ(splice(pipes[0], NULL, FD(open("/dev/null", O_WRONLY)), NULL, 16, 0), 16);
}

enum { ON_PAPER = 1, BYTES_ALONE = 2, SILENT = 4 };

/* Types `keys`, and the end of the line; what the screen shows meanwhile and what the program reads. */
static void types(int how, const char *keys, const char *shown, const char *read_)
{
    int controller = FD(posix_openpt(O_RDWR | O_NOCTTY));
    char name[64], text[256];
    OK(grantpt(controller));
    OK(unlockpt(controller));
    OK(ptsname_r(controller, name, sizeof name));
    int terminal = FD(open(name, O_RDWR | O_NOCTTY));
    struct termios settings;
    OK(tcgetattr(terminal, &settings));
    if (!(how & BYTES_ALONE))
        settings.c_iflag |= IUTF8;
    if (how & ON_PAPER)
        settings.c_lflag |= ECHOPRT;
    if (how & SILENT)
        settings.c_lflag &= ~(tcflag_t)ECHO;
    OK(tcsetattr(terminal, TCSANOW, &settings));
    CHECK_EQ(write(controller, keys, strlen(keys)), strlen(keys));
    CHECK_EQ(write(controller, "\n", 1), 1);
    struct pollfd line = {terminal, POLLIN, 0};
    CHECK_EQ(poll(&line, 1, PATIENCE_MS), 1);
    ssize_t got = read(terminal, text, sizeof text);
    if (got != (ssize_t)strlen(read_) || memcmp(text, read_, (size_t)got))
        FAIL("what is read of %s is not %s", keys, read_);
    /* The echo may come in pieces. */
    size_t want = strlen(shown), have = 0;
    while (have < want) {
        CHECK((got = read(controller, text + have, sizeof text - have)) > 0);
        have += (size_t)got;
    }
    if (have != want || memcmp(text, shown, want))
        FAIL("the echo of %s is not %s", keys, shown);
    close(terminal);
    close(controller);
}

#define E_ACUTE "\xc3\xa9"
#define EURO "\xe2\x82\xac"
#define WIPED "\b \b"

static void characters_that_are_taken_back(void)
{
    types(0, "a" E_ACUTE "\x7f" "b", "a" E_ACUTE WIPED "b\r\n", "ab\n");
    types(SILENT, "a" E_ACUTE "\x7f" "b", "", "ab\n");
    types(BYTES_ALONE, "a" E_ACUTE "\x7f" "b", "a" E_ACUTE WIPED "b\r\n", "a\xc3" "b\n");
    types(0, "a" EURO "\x7f\x7f", "a" EURO WIPED WIPED "\r\n", "\n");
    /* A byte that begins no character cannot be taken back. */
    types(0, "\xa9\x7f\x7f\x15z", "\xa9z\r\n", "\xa9z\n");
    types(0, "ab " E_ACUTE E_ACUTE "\x17", "ab " E_ACUTE E_ACUTE WIPED WIPED "\r\n", "ab \n");
    types(BYTES_ALONE, "ab " E_ACUTE E_ACUTE "\x17",
          "ab " E_ACUTE E_ACUTE WIPED WIPED "\r\n", "ab " E_ACUTE "\n");
    types(0, "ab" E_ACUTE "\x15" "c", "ab" E_ACUTE WIPED WIPED WIPED "c\r\n", "c\n");
    types(0, "a\t" E_ACUTE "\t\x7f" "b", "a\t" E_ACUTE "\t\b\b\b\b\b\b\b" "b\r\n", "a\t" E_ACUTE "b\n");
    types(ON_PAPER, "ab" E_ACUTE "\x7f\x7f" "c", "ab" E_ACUTE "\\" E_ACUTE "b/c\r\n", "ac\n");
    types(ON_PAPER, E_ACUTE "\x7f" "d", E_ACUTE "\\" E_ACUTE "/d\r\n", "d\n");
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "end") == 0)
        return PROGRAM_ENDS_WITH;
    static const struct test tests[] = {
        TEST(a_thread_that_its_process_waits_for_runs_a_program),
        TEST(splices_that_nothing_takes),
        TEST(characters_that_are_taken_back),
    };
    return RUN_TESTS("standstills", tests, argc, argv);
}
