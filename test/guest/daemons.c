/*
 * What daemons, their PAM modules and their profilers ask of the kernel: who logged in, the groups of interfaces, and
 * which thread uses the processor.
 */
#include "check.h"
#include <pthread.h>
#include <sys/time.h>

#define NOBODY 4294967295U

static const char *login_path(const char *name)
{
    static char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/%s", (long)syscall(SYS_gettid), name);
    return path;
}

static unsigned login_number(const char *name)
{
    char text[32] = "";
    int fd = FD(open(login_path(name), O_RDONLY));
    CHECK(read(fd, text, sizeof text - 1) > 0);
    OK(close(fd));
    return (unsigned)strtoul(text, NULL, 10);
}

/* The result of writing a login, or minus the error. */
static int log_in(const char *text)
{
    int fd = FD(open("/proc/thread-self/loginuid", O_WRONLY));
    ssize_t wrote = write(fd, text, strlen(text));
    int error = errno;
    OK(close(fd));
    return wrote < 0 ? -error : (int)wrote;
}

static void drop_rights(void)
{
    if (geteuid() == 0) {
        OK(syscall(SYS_setgroups, 0, NULL));
        OK(setresgid(65534, 65534, 65534));
        OK(setresuid(65534, 65534, 65534));
        /* Files of /proc are its own again. */
        OK(prctl(PR_SET_DUMPABLE, 1));
    }
}

static void *check_inherited(void *wanted)
{
    CHECK_EQ(login_number("loginuid"), *(unsigned *)wanted);
    return NULL;
}

static void logins(void)
{
    if (access("/proc/self/loginuid", F_OK) != 0)
        SKIP("left out: this kernel keeps no logins");
    if (geteuid() != 0 || login_number("loginuid") != NOBODY)
        SKIP("left out: somebody logged in already");
    CHECK_EQ(login_number("sessionid"), NOBODY);
    CHECK_EQ(log_in("x"), -EINVAL);
    CHECK_EQ(log_in("-1"), -EINVAL);
    CHECK_EQ(log_in("4294967296"), -ERANGE);
    CHECK_EQ(log_in("1000"), 4);
    CHECK_EQ(login_number("loginuid"), 1000);
    unsigned session = login_number("sessionid"), user = 1000;
    CHECK(session != NOBODY);

    /* It stays, whatever user one becomes, in children and threads. */
    pid_t child = CHILD({
        drop_rights();
        pthread_t thread;
        PT(pthread_create(&thread, NULL, check_inherited, &user));
        PT(pthread_join(thread, NULL));
        CHECK_EQ(login_number("loginuid"), 1000);
        CHECK_EQ(login_number("sessionid"), session);
        /* And who is nobody in particular does not change it. */
        CHECK_EQ(log_in("0"), -EPERM);
        CHECK_EQ(log_in("4294967295"), -EPERM);
    });
    JOIN(child);

    /* Nobody says it of another one. */
    child = CHILD(pause());
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/loginuid", child);
    int fd = FD(open(path, O_WRONLY));
    CHECK_ERR(write(fd, "7", 1), EPERM);
    OK(close(fd));
    OK(kill(child, SIGKILL));
    status_of(child);
    CHECK_EQ(login_number("loginuid"), 1000);
}

/* Of the interface that every machine has. */
static void groups_of_loopback(void)
{
    char line[256], group[64];
    bool found = false, is_loopback = false;
    FILE *file = fopen("/proc/net/igmp", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file)) {
        unsigned index, users;
        char name[32];
        if (line[0] == '\t')
            found |= is_loopback && sscanf(line, " %63s %u", group, &users) == 2 && !strcmp(group, "010000E0");
        else if (sscanf(line, "%u %31[^ :] :", &index, name) == 2)
            is_loopback = !strcmp(name, "lo");
    }
    fclose(file);
    CHECK(found);
    file = fopen("/proc/net/igmp6", "r");
    if (!file)
        SKIP("left out: no IPv6");
    found = false;
    while (fgets(line, sizeof line, file)) {
        unsigned index, users, flags;
        char name[32];
        CHECK_EQ(sscanf(line, "%u %31s %63s %u %x", &index, name, group, &users, &flags), 5);
        found |= !strcmp(name, "lo") && !strcmp(group, "ff020000000000000000000000000001");
    }
    fclose(file);
    CHECK(found);
}

static volatile pid_t busy_thread;
static volatile int samples_of_busy, samples_of_others;

static void take_sample(int signal)
{
    (void)signal;
    if ((pid_t)syscall(SYS_gettid) == busy_thread)
        samples_of_busy++;
    else
        samples_of_others++;
}

static void *use_processor(void *unused)
{
    busy_thread = (pid_t)syscall(SYS_gettid);
    while (samples_of_busy + samples_of_others < 20)
        for (volatile int i = 0; i < 1000; i++)
            ;
    return unused;
}

/* A profiler's signal goes to the thread that used the time, though the first thread and others could take it. */
static void profile_of_threads(void)
{
    struct sigaction action = {.sa_handler = take_sample, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    for (int virtual = 0; virtual < 2; virtual++) {
        int which = virtual ? ITIMER_VIRTUAL : ITIMER_PROF;
        samples_of_busy = samples_of_others = 0;
        OK(sigaction(virtual ? SIGVTALRM : SIGPROF, &action, NULL));
        pthread_t thread;
        OK(setitimer(which, &often, NULL));
        PT(pthread_create(&thread, NULL, use_processor, NULL));
        PT(pthread_join(thread, NULL));
        OK(setitimer(which, &never, NULL));
        if (samples_of_busy <= samples_of_others)
            FAIL("%d samples of the busy thread, %d of others", samples_of_busy, samples_of_others);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {TEST(logins), TEST(groups_of_loopback), TEST(profile_of_threads)};
    return RUN_TESTS("daemons", tests, argc, argv);
}
