/*
 * Numbers at the edge.  usage: extremes [SECONDS]
 *
 * Makes every system call with arguments, and structures behind them, made of the values at which sums and shifts overflow:
 * 0, 1, the largest and the smallest of each width, and those beside the edges of pages and of user memory. Children do
 * it, each for a moment; whatever becomes of them, the kernel has to go on. Belongs inside a sandbox, in an empty directory.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const uint64_t EDGES[] = {
    0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 65, 4095, 4096, 4097, INT_MAX, (uint64_t)INT_MAX + 1, (uint64_t)INT_MIN, UINT_MAX,
    (uint64_t)UINT_MAX + 1, LONG_MAX, LONG_MAX - 1, LONG_MAX - 4095, (uint64_t)LONG_MIN, (uint64_t)LONG_MIN + 1, ULONG_MAX,
    ULONG_MAX - 1, ULONG_MAX - 7, ULONG_MAX - 4095, ULONG_MAX - 4096, 0x7fff00000000, 0x7ffefffff000, 0x7fffffffffff,
    999999999, 1000000000, LONG_MAX / 1000000000, LONG_MAX / 1000000000 + 1, ULONG_MAX / 1000000000,
};
enum { EDGE_COUNT = sizeof EDGES / sizeof *EDGES, WORDS = 512 };

static uint64_t state;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t edge(void) { return EDGES[next() % EDGE_COUNT]; }

static uint64_t *area;
static int fds[16], fd_count;

static void keep(int fd)
{
    if (fd >= 0 && fd_count < 16)
        fds[fd_count++] = fd;
}

static void make_files(void)
{
    int ends[2];
    keep(open("file", O_RDWR | O_CREAT, 0600));
    keep(open("/proc/self/maps", O_RDONLY));
    keep(open("/proc/self/oom_score_adj", O_RDWR));
    keep(open(".", O_RDONLY | O_DIRECTORY));
    keep(memfd_create("memory", MFD_ALLOW_SEALING));
    keep(eventfd(1, EFD_NONBLOCK));
    keep(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    keep(epoll_create1(0));
    keep(open("/dev/shm/extremes", O_RDWR | O_CREAT, 0600));
    if (pipe2(ends, O_NONBLOCK) == 0)
        keep(ends[0]), keep(ends[1]);
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends) == 0)
        keep(ends[0]), keep(ends[1]);
    keep(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    keep(socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, 0));
}

/* Memory full of edges, with a pointer here and there. */
static void fill(void)
{
    for (int i = 0; i < WORDS; i++)
        switch (next() % 6) {
        case 0: area[i] = (uintptr_t)(area + next() % WORDS); break;
        case 1: area[i] = edge() << 32 | (uint32_t)edge(); break;
        case 2: area[i] = fd_count ? (uint64_t)fds[next() % fd_count] : 0; break;
        default: area[i] = edge();
        }
}

static uint64_t argument(void)
{
    switch (next() % 8) {
    case 0: case 1: return (uintptr_t)(area + next() % WORDS);
    case 2: case 3: return fd_count ? (uint64_t)fds[next() % fd_count] : 0;
    case 4: return next() % 70;
    default: return edge();
    }
}

/* Calls that would end or hide the test rather than try the kernel. */
static int is_left_out(long number)
{
    static const int OUT[] = {SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_fork, SYS_vfork, SYS_clone, SYS_clone3,
                              SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
                              SYS_pidfd_send_signal, SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_reboot, SYS_mount,
                              SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_setuid, SYS_setreuid, SYS_setresuid};
    for (size_t i = 0; i < sizeof OUT / sizeof *OUT; i++)
        if (number == OUT[i])
            return 1;
    return 0;
}

static void wake(int signal) { (void)signal; }

static void attack(uint64_t seed)
{
    state = seed * 0x9e3779b97f4a7c15 | 1;
    struct sigaction action = {.sa_handler = wake};
    sigaction(SIGALRM, &action, NULL);
    area = mmap(NULL, WORDS * sizeof *area, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED)
        _exit(0);
    make_files();
    for (int round = 0; round < 400; round++) {
        /* Calls that wait are interrupted. */
        struct itimerval soon = {{0, 5000}, {0, 5000}};
        setitimer(ITIMER_REAL, &soon, NULL);
        long number = (long)(next() % 453);
        fill();
        if (!is_left_out(number))
            syscall(number, argument(), argument(), argument(), argument(), argument(), argument());
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 5);
    for (uint64_t seed = 1; time(NULL) < end; seed++) {
        pid_t child = fork();
        if (child == 0) {
            /* Nobody reads the bytes that it writes to a descriptor. */
            int null = open("/dev/null", O_RDWR);
            for (int fd = 0; fd < 3; fd++)
                dup2(null, fd);
            setsid();
            attack(seed);
        }
        for (int i = 0; child > 0 && waitpid(child, NULL, WNOHANG) == 0; i++) {
            if (i > 2000)
                kill(child, SIGKILL);
            usleep(500);
        }
        if (child < 0)
            return 1;
    }
    printf("ok extremes\n");
    return 0;
}
