/* What the calls of sched(7) and ioprio_set(2) take and refuse, and what they leave behind. */
#include "check.h"
#include <sys/resource.h>

enum { DEADLINE = 6 };
enum { RESET = 1, KEEP_POLICY = 8, KEEP_PARAMS = 16, CLAMP = 32 };

struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
    uint32_t util_min, util_max;
};

static long set_attributes(struct attributes attributes)
{
    attributes.size = sizeof attributes;
    return syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static struct attributes attributes_now(void)
{
    struct attributes attributes;
    OK(syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0));
    return attributes;
}

static long set_scheduler(pid_t tid, int policy, int priority)
{
    struct sched_param param = {priority};
    return syscall(SYS_sched_setscheduler, tid, policy, &param);
}

static long set_param(pid_t tid, int priority)
{
    struct sched_param param = {priority};
    return syscall(SYS_sched_setparam, tid, &param);
}

/* Whether the caller may have real-time priorities. Asked of a child, so that nothing stays. */
static bool is_privileged(void)
{
    int status = status_of(CHILD(_exit(set_scheduler(0, SCHED_FIFO, 99) != 0)));
    return status == 0;
}

static void become_nobody(void)
{
    struct rlimit none = {0, 0};
    OK(setrlimit(RLIMIT_RTPRIO, &none));
    OK(setrlimit(RLIMIT_NICE, &none));
    OK(setgid(65534));
    OK(setuid(65534));
}

static void policies_and_priorities(void)
{
    static const struct { int policy, priority; } bad[] = {
        {SCHED_OTHER, 1}, {SCHED_OTHER, -1},  {SCHED_FIFO, 0}, {SCHED_FIFO, 100}, {SCHED_FIFO, -1}, {SCHED_RR, 0},
        {SCHED_BATCH, 1}, {SCHED_IDLE, 1},    {4, 0},          {8, 0},            {100, 0},         {-1, 0},
        {DEADLINE, 0},    {DEADLINE, 1},      {SCHED_OTHER | SCHED_RESET_ON_FORK, 1},
        {DEADLINE | SCHED_RESET_ON_FORK, 0},  {0x10000000, 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERR(set_scheduler(0, bad[i].policy, bad[i].priority), EINVAL);
    CHECK_ERR(set_param(0, 1), EINVAL);
    CHECK_ERR(set_param(0, -1), EINVAL);
    OK(set_param(0, 0));
    OK(set_scheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, 0));
    CHECK_EQ(syscall(SYS_sched_getscheduler, 0), SCHED_BATCH | SCHED_RESET_ON_FORK);
    OK(set_param(0, 0));
    CHECK_EQ(syscall(SYS_sched_getscheduler, 0), SCHED_BATCH | SCHED_RESET_ON_FORK);
    static const int policies[] = {SCHED_OTHER, SCHED_BATCH, SCHED_IDLE, DEADLINE};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        OK(sched_get_priority_min(policies[i]));
        OK(sched_get_priority_max(policies[i]));
    }
    CHECK_EQ(sched_get_priority_max(SCHED_RR), 99);
    CHECK_EQ(sched_get_priority_min(SCHED_FIFO), 1);
    CHECK_ERR(sched_get_priority_max(SCHED_OTHER | SCHED_RESET_ON_FORK), EINVAL);
    CHECK_ERR(sched_get_priority_min(-1), EINVAL);
}

static void ids_and_addresses(void)
{
    struct timespec slice;
    struct sched_param param = {0};
    void *nowhere = (void *)8;
    static const pid_t nobodies[] = {99999999, 0x7fffffff};
    for (int i = 0; i < 2; i++) {
        CHECK_ERR(set_scheduler(nobodies[i], SCHED_OTHER, 0), ESRCH);
        CHECK_ERR(set_scheduler(nobodies[i], 77, 0), ESRCH);
        CHECK_ERR(set_param(nobodies[i], 0), ESRCH);
        CHECK_ERR(syscall(SYS_sched_getscheduler, nobodies[i]), ESRCH);
        CHECK_ERR(syscall(SYS_sched_getparam, nobodies[i], &param), ESRCH);
        CHECK_ERR(syscall(SYS_sched_rr_get_interval, nobodies[i], &slice), ESRCH);
        CHECK_ERR(syscall(SYS_sched_setaffinity, nobodies[i], 8, &(uint64_t){1}), ESRCH);
    }
    CHECK_ERR(set_scheduler(-5, SCHED_OTHER, 0), EINVAL);
    CHECK_ERR(syscall(SYS_sched_getscheduler, -5), EINVAL);
    CHECK_ERR(syscall(SYS_sched_rr_get_interval, -5, &slice), EINVAL);
    CHECK_ERR(syscall(SYS_sched_setaffinity, -5, 8, &(uint64_t){1}), ESRCH);
    CHECK_ERR(syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, nowhere), EFAULT);
    CHECK_ERR(syscall(SYS_sched_setscheduler, 99999999, SCHED_OTHER, nowhere), EFAULT);
    CHECK_ERR(syscall(SYS_sched_setscheduler, 0, 77, NULL), EINVAL);
    CHECK_ERR(syscall(SYS_sched_getparam, 0, nowhere), EFAULT);
    CHECK_ERR(syscall(SYS_sched_rr_get_interval, 0, nowhere), EFAULT);
    CHECK_ERR(syscall(SYS_sched_setaffinity, 0, 8, nowhere), EFAULT);
    CHECK_ERR(syscall(SYS_sched_setaffinity, 0, 0, NULL), EINVAL);
    CHECK_ERR(syscall(SYS_sched_setaffinity, 0, 8, &(uint64_t){0}), EINVAL);
    CHECK_ERR(syscall(SYS_sched_getattr, 0, nowhere, 56, 0), EFAULT);
    CHECK_ERR(syscall(SYS_sched_getattr, 0, &slice, 56, 1), EINVAL);
    CHECK_ERR(syscall(SYS_sched_setattr, 0, nowhere, 0), EFAULT);
}

/* Parameters that are kept are checked like others, and the flag alone changes. */
static void what_is_kept(void)
{
    OK(set_attributes((struct attributes){.policy = SCHED_OTHER, .nice = 2}));
    static const struct attributes bad[] = {
        {.policy = SCHED_OTHER, .flags = KEEP_PARAMS, .priority = 1},
        {.policy = SCHED_OTHER, .flags = KEEP_PARAMS | KEEP_POLICY, .priority = 99},
        {.policy = SCHED_FIFO, .flags = KEEP_PARAMS | KEEP_POLICY, .priority = 1},
        {.policy = SCHED_FIFO, .flags = KEEP_PARAMS},
        {.policy = SCHED_OTHER | SCHED_RESET_ON_FORK},
        {.policy = SCHED_OTHER | SCHED_RESET_ON_FORK, .flags = CLAMP},
        {.policy = SCHED_OTHER, .flags = 1 << 7},
        {.policy = SCHED_OTHER, .flags = 1ull << 40},
        {.policy = SCHED_OTHER, .priority = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERR(set_attributes(bad[i]), EINVAL);
    /* Bounds of the speed have no room in the first version. */
    struct attributes first = {.size = 48, .policy = SCHED_OTHER, .flags = CLAMP};
    CHECK_ERR(syscall(SYS_sched_setattr, 0, &first, 0), EINVAL);
    OK(set_attributes((struct attributes){.policy = SCHED_BATCH, .flags = KEEP_PARAMS | RESET, .nice = 7}));
    struct attributes now = attributes_now();
    CHECK(now.policy == SCHED_OTHER && now.flags == RESET && now.nice == 2 && now.priority == 0);
    /* What idles keeps the nice value that it had. */
    OK(set_attributes((struct attributes){.policy = SCHED_IDLE, .flags = RESET, .nice = 9}));
    now = attributes_now();
    CHECK(now.policy == SCHED_IDLE && now.nice == 2);
    CHECK_EQ(getpriority(PRIO_PROCESS, 0), 2);
}

static void real_time(void)
{
    if (!is_privileged())
        SKIP("real-time priorities are not for this user");
    OK(set_attributes((struct attributes){.policy = SCHED_OTHER, .nice = 3}));
    OK(set_attributes((struct attributes){.policy = SCHED_RR, .nice = 5, .priority = 10}));
    struct attributes now = attributes_now();
    CHECK(now.policy == SCHED_RR && now.nice == 0 && now.priority == 10 && now.runtime == 0);
    CHECK_EQ(getpriority(PRIO_PROCESS, 0), 3);
    /* The priority that there is goes with the policy that there is. */
    CHECK_ERR(set_attributes((struct attributes){.policy = SCHED_OTHER, .flags = KEEP_PARAMS}), EINVAL);
    OK(set_attributes((struct attributes){.policy = SCHED_FIFO, .flags = KEEP_PARAMS}));
    now = attributes_now();
    CHECK(now.policy == SCHED_RR && now.priority == 10);
    OK(set_param(0, 20));
    CHECK_EQ(attributes_now().priority, 20);
    CHECK_ERR(set_param(0, 0), EINVAL);
}

static void without_privileges(void)
{
    if (geteuid() != 0)
        SKIP("only root can become somebody else");
    become_nobody();
    CHECK_ERR(set_scheduler(0, SCHED_FIFO, 1), EPERM);
    CHECK_ERR(set_scheduler(0, SCHED_RR, 100), EINVAL);
    CHECK_ERR(set_scheduler(1, SCHED_OTHER, 0), EPERM);
    OK(set_attributes((struct attributes){.policy = SCHED_OTHER, .nice = 5}));
    CHECK_ERR(set_attributes((struct attributes){.policy = SCHED_OTHER, .nice = 4}), EPERM);
    CHECK_ERR(set_attributes((struct attributes){.policy = SCHED_BATCH, .nice = 4, .flags = CLAMP}), EPERM);
    CHECK_ERR(setpriority(PRIO_PROCESS, 0, 4), EACCES);
    struct attributes deadline = {.policy = DEADLINE, .runtime = 10000000, .deadline = 30000000, .period = 30000000};
    CHECK_ERR(set_attributes(deadline), EPERM);
    deadline.period = 20000000;
    CHECK_ERR(set_attributes(deadline), EINVAL);
    /* The flag stays once it is set, and so does idling. */
    JOIN(CHILD({
        OK(set_scheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, 0));
        CHECK_ERR(set_scheduler(0, SCHED_OTHER, 0), EPERM);
        OK(set_scheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, 0));
    }));
    JOIN(CHILD({
        OK(set_scheduler(0, SCHED_IDLE, 0));
        CHECK_ERR(set_scheduler(0, SCHED_OTHER, 0), EPERM);
        OK(set_scheduler(0, SCHED_IDLE, 0));
    }));
}

static void priorities_of_io(void)
{
    enum { PROCESS = 1, BEST = 2 << 13, IDLE = 3 << 13 };
    OK(syscall(SYS_ioprio_set, PROCESS, 0, BEST | 4));
    CHECK_EQ(syscall(SYS_ioprio_get, PROCESS, 0), BEST | 4);
    CHECK_ERR(syscall(SYS_ioprio_set, PROCESS, 0, 4 << 13), EINVAL);
    CHECK_ERR(syscall(SYS_ioprio_set, PROCESS, 0, 7), EINVAL);
    CHECK_ERR(syscall(SYS_ioprio_set, 0, 0, BEST), EINVAL);
    CHECK_ERR(syscall(SYS_ioprio_set, PROCESS, 99999999, BEST), ESRCH);
    OK(syscall(SYS_ioprio_set, PROCESS, 0, IDLE | 7));
    CHECK_EQ(syscall(SYS_ioprio_get, PROCESS, 0) >> 13, 3);
    /* Bits above the class mean nothing. */
    if (kernel_is(6, 5)) {
        OK(syscall(SYS_ioprio_set, PROCESS, 0, 1 << 16 | BEST | 2));
        CHECK_EQ(syscall(SYS_ioprio_get, PROCESS, 0), BEST | 2);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(policies_and_priorities), TEST(ids_and_addresses),  TEST(what_is_kept),
        TEST(real_time),               TEST(without_privileges), TEST(priorities_of_io),
    };
    return RUN_TESTS("scheduling", tests, argc, argv);
}
