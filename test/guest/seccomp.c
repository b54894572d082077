/*
 * Filters of system calls: seccomp(2), the options of prctl(2) that do the same, what programs are taken, what each
 * action does, what is inherited, and which filter counts where several are.
 */
#include "check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#define NR() BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define RET(value) BPF_STMT(BPF_RET | BPF_K, value)
/* The next instruction is for this call alone. */
#define FOR(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1)
#define LOW(index) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * (index))
#define HIGH(index) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * (index) + 4)

static int install(unsigned flags, unsigned short count, struct sock_filter *code)
{
    struct sock_fprog program = {count, code};
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

#define INSTALL(flags, ...)                                                                                            \
    ({                                                                                                                 \
        struct sock_filter code_[] = {__VA_ARGS__};                                                                    \
        install(flags, sizeof code_ / sizeof *code_, code_);                                                           \
    })

/* `value` for one call, the others are allowed. */
#define REFUSE(number, value) INSTALL(0, NR(), FOR(number), RET(value), RET(SECCOMP_RET_ALLOW))

static void confine(void)
{
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

static long status_number(const char *path, const char *name)
{
    char text[4096] = "";
    int fd = FD(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t length = read(fd, text, sizeof text - 1);
    OK(close(fd));
    CHECK(length > 0);
    char *line = strstr(text, name);
    CHECK(line != NULL);
    return strtol(line + strlen(name), NULL, 10);
}

static void errors_are_the_filters(void)
{
    confine();
    OK(REFUSE(SYS_getppid, SECCOMP_RET_ERRNO | 123));
    CHECK_ERR(syscall(SYS_getppid), 123);
    CHECK(getpid() > 0);
    CHECK_EQ(prctl(PR_GET_SECCOMP), 2);
    CHECK_EQ(status_number("/proc/self/status", "\nSeccomp:\t"), 2);
    CHECK_EQ(status_number("/proc/self/status", "\nSeccomp_filters:\t"), 1);
    CHECK_EQ(status_number("/proc/self/status", "\nNoNewPrivs:\t"), 1);
    /* An error of 0 is success, and none is larger than 4095. Numbers of the kernel's own mean nothing. */
    OK(REFUSE(SYS_getpgrp, SECCOMP_RET_ERRNO));
    OK(REFUSE(SYS_getuid, SECCOMP_RET_ERRNO | 0xffff));
    OK(REFUSE(SYS_getgid, SECCOMP_RET_ERRNO | 512));
    OK(syscall(SYS_getpgrp));
    CHECK_ERR(syscall(SYS_getuid), 4095);
    CHECK_ERR(syscall(SYS_getgid), 512);
    CHECK_EQ(status_number("/proc/self/status", "\nSeccomp_filters:\t"), 4);
}

static void arguments_have_64_bits(void)
{
    confine();
    OK(INSTALL(0, NR(), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 1, 0), RET(SECCOMP_RET_ALLOW), LOW(1),
               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x1234, 0, 2), HIGH(1),
               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x5678, 1, 0), RET(SECCOMP_RET_ALLOW),
               RET(SECCOMP_RET_ERRNO | 99)));
    CHECK_ERR(syscall(SYS_ioctl, -1, 0x567800001234UL, 0), 99);
    CHECK_ERR(syscall(SYS_ioctl, -1, 0x1234, 0), EBADF);
    CHECK_ERR(syscall(SYS_ioctl, -1, 0x567800001235UL, 0), EBADF);
}

static void the_strictest_of_several_counts(void)
{
    confine();
    OK(REFUSE(SYS_getppid, SECCOMP_RET_ERRNO | 1));
    OK(REFUSE(SYS_getppid, SECCOMP_RET_ERRNO | 2));
    CHECK_ERR(syscall(SYS_getppid), 2);
    OK(REFUSE(SYS_getppid, SECCOMP_RET_ALLOW));
    OK(REFUSE(SYS_getppid, SECCOMP_RET_LOG));
    OK(REFUSE(SYS_getppid, SECCOMP_RET_TRACE | 9));
    CHECK_ERR(syscall(SYS_getppid), 2);
    pid_t pid = CHILD(OK(REFUSE(SYS_getppid, SECCOMP_RET_KILL_PROCESS)); syscall(SYS_getppid));
    CHECK_KILLED(pid, SIGSYS);
    OK(REFUSE(SYS_getpgrp, SECCOMP_RET_LOG));
    CHECK_EQ(syscall(SYS_getpgrp), getpgid(0));
    /* Nobody traces. */
    OK(REFUSE(SYS_getuid, SECCOMP_RET_TRACE | 9));
    CHECK_ERR(syscall(SYS_getuid), ENOSYS);
}

static volatile int trapped;
static siginfo_t trap_info;
static long trap_rax;

static void on_sigsys(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    trapped++;
    trap_info = *info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    trap_rax = registers[REG_RAX];
    registers[REG_RAX] = 4711;
}

static void a_trap_tells_what_was_called(void)
{
    confine();
    struct sigaction action = {.sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGSYS, &action, NULL));
    OK(REFUSE(SYS_getppid, SECCOMP_RET_TRAP | 77));
    CHECK_EQ(syscall(SYS_getppid), 4711);
    CHECK_EQ(trapped, 1);
    CHECK_EQ(trap_rax, SYS_getppid);
    CHECK_EQ(trap_info.si_signo, SIGSYS);
    CHECK_EQ(trap_info.si_code, 1);
    CHECK_EQ(trap_info.si_errno, 77);
    CHECK_EQ(trap_info.si_syscall, SYS_getppid);
    CHECK_EQ((unsigned)trap_info.si_arch, AUDIT_ARCH_X86_64);
    CHECK(trap_info.si_call_addr != NULL);
    CHECK_KILLED(CHILD(signal(SIGSYS, SIG_DFL); syscall(SYS_getppid)), SIGSYS);
    /* Ignored or blocked, it kills all the same. */
    CHECK_KILLED(CHILD(signal(SIGSYS, SIG_IGN); syscall(SYS_getppid)), SIGSYS);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGSYS);
    CHECK_KILLED(CHILD(sigprocmask(SIG_BLOCK, &set, NULL); syscall(SYS_getppid)), SIGSYS);
}

static void *call_getppid(void *arg)
{
    (void)arg;
    return (void *)syscall(SYS_getppid);
}

static void *sit(void *arg)
{
    (void)arg;
    pause();
    return NULL;
}

static void a_thread_may_be_killed_alone(void)
{
    confine();
    OK(REFUSE(SYS_getppid, SECCOMP_RET_KILL_THREAD));
    pthread_t thread;
    PT(pthread_create(&thread, NULL, sit, NULL));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pthread_t other;
        /* A thread that ends without pthread_exit is not joined, but its id is cleared. */
        PT(pthread_create(&other, NULL, call_getppid, NULL));
        PT(pthread_detach(other));
        AWAIT(status_number("/proc/self/status", "\nThreads:\t") <= 1, 1000);
        _exit(status_number("/proc/self/status", "\nThreads:\t") == 1 ? 42 : 43);
    }
    CHECK_EQ(status_of(child), 42 << 8);
    /* The last thread takes the process along. */
    CHECK_KILLED(CHILD(syscall(SYS_getppid)), SIGSYS);
    CHECK_KILLED(CHILD(PT(pthread_create(&thread, NULL, sit, NULL)); OK(REFUSE(SYS_getpgrp, SECCOMP_RET_KILL_PROCESS));
                       syscall(SYS_getpgrp)),
                 SIGSYS);
    /* What is not an action is the strictest. */
    CHECK_KILLED(CHILD(OK(REFUSE(SYS_getpgrp, 0x10000)); syscall(SYS_getpgrp)), SIGSYS);
}

static void children_threads_and_programs_inherit(void)
{
    confine();
    OK(REFUSE(SYS_getppid, SECCOMP_RET_ERRNO | 55));
    JOIN(CHILD(CHECK_ERR(syscall(SYS_getppid), 55); CHECK_EQ(prctl(PR_GET_SECCOMP), 2)));
    pthread_t thread;
    void *result;
    PT(pthread_create(&thread, NULL, call_getppid, NULL));
    PT(pthread_join(thread, &result));
    CHECK_EQ((long)result, -1);
    JOIN(CHILD(execl("/proc/self/exe", "seccomp", "--inherited", NULL)));
}

static void what_is_no_program_is_refused(void)
{
    confine();
    struct sock_filter allow = RET(SECCOMP_RET_ALLOW);
    CHECK_ERR(install(0, 0, &allow), EINVAL);
    CHECK_ERR(install(0, 1, (struct sock_filter *)8), EFAULT);
    CHECK_ERR(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, 8), EFAULT);
    CHECK_ERR(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0x8000, NULL), EINVAL);
    CHECK_ERR(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL), EINVAL);
    CHECK_ERR(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, &allow), EINVAL);
    CHECK_ERR(syscall(SYS_seccomp, 77, 0, NULL), EINVAL);
    CHECK_ERR(prctl(PR_SET_SECCOMP, 3, 0, 0, 0), EINVAL);
    CHECK_ERR(prctl(PR_SET_SECCOMP, 2, 8, 0, 0), EFAULT);
    static struct sock_filter long_one[4097];
    for (int i = 0; i < 4097; i++)
        long_one[i] = allow;
    CHECK_ERR(install(0, 4097, long_one), EINVAL);
    const struct sock_filter bad[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 64), BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 3),
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0),  BPF_STMT(BPF_LD | BPF_MEM, 0),
        BPF_STMT(BPF_ST, 16),                   BPF_STMT(BPF_ALU | BPF_DIV | BPF_K, 0),
        BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, 2), BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 32),
        BPF_STMT(BPF_JMP | BPF_JA, 1),          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        BPF_STMT(0xffff, 0),
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sock_filter code[] = {bad[i], allow};
        errno = 0;
        if (install(0, 2, code) != -1 || errno != EINVAL)
            FAIL("program %zu was taken", i);
    }
    CHECK_ERR(INSTALL(0, NR()), EINVAL);
    CHECK_EQ(prctl(PR_GET_SECCOMP), 0);
    /* All filters together are bounded as well, by 32768 instructions, which Linux counts as it translates them. */
    int taken = 0;
    while (taken < 20 && install(0, 4096, long_one) == 0)
        taken++;
    CHECK_EQ(errno, ENOMEM);
    CHECK(taken >= 2 && taken <= 8);
}

static void actions_are_told(void)
{
    const uint32_t known[] = {SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_KILL_THREAD, SECCOMP_RET_TRAP, SECCOMP_RET_ERRNO,
                              SECCOMP_RET_TRACE,        SECCOMP_RET_LOG,         SECCOMP_RET_ALLOW};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        OK(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &known[i]));
    uint32_t unknown = 0x10000;
    CHECK_ERR(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &unknown), EOPNOTSUPP);
    CHECK_ERR(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 1, &unknown), EINVAL);
    CHECK_ERR(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, NULL), EFAULT);
}

static void who_could_gain_privileges_may_not(void)
{
    if (geteuid() != 0)
        SKIP("left out: only root can give its privileges up");
    JOIN(CHILD(OK(REFUSE(SYS_getppid, SECCOMP_RET_ERRNO | 5)); CHECK_ERR(syscall(SYS_getppid), 5);
               CHECK_EQ(status_number("/proc/self/status", "\nNoNewPrivs:\t"), 0)));
    if (setresuid(1000, 1000, 1000) != 0)
        SKIP("left out: there is no other user");
    CHECK_ERR(REFUSE(SYS_getppid, SECCOMP_RET_ERRNO | 5), EACCES);
    confine();
    OK(REFUSE(SYS_getppid, SECCOMP_RET_ERRNO | 5));
    CHECK_ERR(syscall(SYS_getppid), 5);
}

static void strict_mode_leaves_four_calls(void)
{
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
        char byte;
        syscall(SYS_write, pipes[1], "x", 1);
        syscall(SYS_read, pipes[0], &byte, 1);
        syscall(SYS_exit, byte);
    }
    CHECK_EQ(status_of(pid), 'x' << 8);
    CHECK_KILLED(CHILD(OK(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL)); syscall(SYS_getpid)), SIGKILL);
    confine();
    JOIN(CHILD(OK(REFUSE(SYS_getppid, SECCOMP_RET_ERRNO | 5)); CHECK_ERR(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT), EINVAL)));
}

struct worker {
    pthread_t thread;
    pthread_barrier_t *barrier;
    pid_t tid;
    int own, error;
};

static void *work(void *arg)
{
    struct worker *worker = arg;
    worker->tid = (pid_t)syscall(SYS_gettid);
    if (worker->own) {
        confine();
        OK(REFUSE(SYS_getuid, SECCOMP_RET_ERRNO | 9));
    }
    pthread_barrier_wait(worker->barrier);
    pthread_barrier_wait(worker->barrier);
    errno = 0;
    worker->error = syscall(SYS_getppid) == -1 ? errno : 0;
    return NULL;
}

/* Gives all threads a filter; `own`: one of them has one of its own. The result of the call. */
static long synchronize(unsigned flags, int own, struct worker *workers, size_t count)
{
    pthread_barrier_t barrier;
    PT(pthread_barrier_init(&barrier, NULL, (unsigned)count + 1));
    for (size_t i = 0; i < count; i++) {
        workers[i] = (struct worker){.barrier = &barrier, .own = own && i == 0};
        PT(pthread_create(&workers[i].thread, NULL, work, &workers[i]));
    }
    pthread_barrier_wait(&barrier);
    errno = 0;
    long result = INSTALL(flags, NR(), FOR(SYS_getppid), RET(SECCOMP_RET_ERRNO | 66), RET(SECCOMP_RET_ALLOW));
    int error = errno;
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < count; i++)
        PT(pthread_join(workers[i].thread, NULL));
    errno = error;
    return result;
}

static void all_threads_get_a_filter_or_none(void)
{
    struct worker workers[3];
    confine();
    OK(REFUSE(SYS_getpgrp, SECCOMP_RET_ERRNO | 8));
    CHECK_EQ(synchronize(SECCOMP_FILTER_FLAG_TSYNC, 1, workers, 3), workers[0].tid);
    CHECK_EQ(workers[1].error, 0);
    CHECK_ERR(synchronize(SECCOMP_FILTER_FLAG_TSYNC | 16, 1, workers, 3), ESRCH);
    CHECK_EQ(workers[1].error, 0);
    CHECK(syscall(SYS_getppid) > 0);
    OK(synchronize(SECCOMP_FILTER_FLAG_TSYNC, 0, workers, 3));
    for (int i = 0; i < 3; i++)
        CHECK_EQ(workers[i].error, 66);
    CHECK_ERR(syscall(SYS_getppid), 66);
}

static void one_thread_alone_has_its_own(void)
{
    struct worker workers[2];
    confine();
    OK(synchronize(0, 0, workers, 2));
    CHECK_EQ(workers[0].error, 0);
    CHECK_ERR(syscall(SYS_getppid), 66);
}

static void on_alarm(int signal)
{
    (void)signal;
    OK(REFUSE(SYS_read, SECCOMP_RET_ERRNO | 44));
}

/* A call that is made again after a signal is filtered again. */
static void restarts_are_seen(void)
{
    confine();
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    OK(sigaction(SIGALRM, &action, NULL));
    int pipes[2];
    OK(pipe(pipes));
    struct itimerval soon = {{0, 0}, {0, 20000}};
    OK(setitimer(ITIMER_REAL, &soon, NULL));
    char byte;
    CHECK_ERR(read(pipes[0], &byte, 1), 44);
}

/* A copy of this program that belongs to root and has the set-uid bit; the caller is another user from now on. */
static void become_a_user_with_a_set_id_program(void)
{
    if (geteuid() != 0 || access("/proc/self/exe", X_OK) != 0)
        SKIP("left out: only root can make a set-id program");
    char self[512];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(length > 0);
    self[length] = 0;
    int from = FD(open(self, O_RDONLY)), to = FD(open("suid", O_WRONLY | O_CREAT, 0755));
    char buffer[65536];
    for (ssize_t got; (got = read(from, buffer, sizeof buffer)) > 0;)
        CHECK_EQ(write(to, buffer, (size_t)got), got);
    OK(close(from));
    OK(close(to));
    OK(chmod("suid", 04755));
    OK(chmod(".", 0755));
    if (setresuid(1000, 1000, 1000) != 0)
        SKIP("left out: there is no other user");
}

static void set_id_programs_give_nothing_to_the_confined(void)
{
    become_a_user_with_a_set_id_program();
    confine();
    OK(REFUSE(SYS_getppid, SECCOMP_RET_ERRNO | 55));
    JOIN(CHILD(execl("./suid", "suid", "--inherited", NULL)));
}

static volatile int racer_is_ready;

static void spin(int rounds)
{
    for (volatile int at = 0; at < rounds; at++)
        ;
}

static void *confine_all_at_some_time(void *rounds)
{
    confine();
    racer_is_ready = 1;
    spin((int)(long)rounds);
    /* The other thread may be beyond it by now: then this one ends in the call. */
    (void)INSTALL(SECCOMP_FILTER_FLAG_TSYNC, NR(), FOR(SYS_getppid), RET(SECCOMP_RET_ERRNO | 55),
                  RET(SECCOMP_RET_ALLOW));
    pause();
    return NULL;
}

static void no_thread_filters_a_set_id_program(void)
{
    become_a_user_with_a_set_id_program();
    unsigned dice = 1;
    for (int attempt = 0; attempt < 100; attempt++) {
        dice = dice * 1103515245 + 12345;
        int thread_spins = (int)(dice >> 16) % 30000, main_spins = (int)(dice >> 8) % 30000;
        JOIN(CHILD({
            pthread_t racer;
            CHECK_EQ(pthread_create(&racer, NULL, confine_all_at_some_time, (void *)(long)thread_spins), 0);
            while (!racer_is_ready)
                sched_yield();
            spin(main_spins);
            execl("./suid", "suid", "--raced", NULL);
        }));
    }
}

static const struct test tests[] = {
    TEST(errors_are_the_filters),
    TEST(arguments_have_64_bits),
    TEST(the_strictest_of_several_counts),
    TEST(a_trap_tells_what_was_called),
    TEST(a_thread_may_be_killed_alone),
    TEST(children_threads_and_programs_inherit),
    TEST(what_is_no_program_is_refused),
    TEST(actions_are_told),
    TEST(who_could_gain_privileges_may_not),
    TEST(strict_mode_leaves_four_calls),
    TEST(all_threads_get_a_filter_or_none),
    TEST(one_thread_alone_has_its_own),
    TEST(restarts_are_seen),
    TEST(set_id_programs_give_nothing_to_the_confined),
    TEST(no_thread_filters_a_set_id_program),
};

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--inherited") == 0) {
        CHECK_ERR(syscall(SYS_getppid), 55);
        CHECK_EQ(getuid(), geteuid());
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--raced") == 0) {
        CHECK_EQ(geteuid() == 0, prctl(PR_GET_SECCOMP) == 0);
        return 0;
    }
    return RUN_TESTS("seccomp", tests, argc, argv);
}
