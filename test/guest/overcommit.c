/* More memory may be mapped than there is: only who touches it goes, and the kernel's log says so. For a sandbox with 64 MiB:
 * settings are changed, and a process is killed. */
#include "check.h"
#include <sys/klog.h>
#include <sys/mman.h>

#define MIB (1ul << 20)
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define SETTING "/proc/sys/vm/overcommit_memory"

static long set(const char *path, const char *text)
{
    int fd = FD(open(path, O_WRONLY | O_CLOEXEC));
    long wrote = write(fd, text, strlen(text));
    int error = errno;
    close(fd);
    errno = error;
    return wrote;
}

static void map_much_touch_little(void)
{
    CHECK_EQ(number_in(SETTING, ""), 0);
    char *area = mmap(NULL, 200 * MIB, RW, ANON, -1, 0);
    CHECK(area != MAP_FAILED);
    for (size_t at = 0; at < 200 * MIB; at += 40 * MIB)
        area[at] = 1;
    CHECK(mmap(NULL, 200 * MIB, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    JOIN(CHILD(CHECK_EQ(area[40 * MIB], 1)));
    /* Beyond doubt too much: more than the host has. */
    CHECK_ERR((long)mmap(NULL, 1ul << 46, RW, ANON, -1, 0), ENOMEM);
    CHECK(mmap(NULL, 1ul << 44, RW, ANON | MAP_NORESERVE, -1, 0) != MAP_FAILED);
    CHECK(mmap(NULL, 1ul << 44, PROT_NONE, ANON, -1, 0) != MAP_FAILED);
    CHECK_ERR((long)mmap(NULL, 1ul << 46, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0), ENOMEM);
}

static void who_touches_goes(void)
{
    static char log[16384];
    pid_t pid = CHILD({
        OK(prctl(PR_SET_NAME, "glutton\n<0>x"));
        CHECK_EQ(set("/proc/self/oom_score_adj", "500"), 3);
        char *area = mmap(NULL, 200 * MIB, RW, ANON, -1, 0);
        CHECK(area != MAP_FAILED);
        for (size_t at = 0; at < 200 * MIB; at += 4096)
            area[at] = 1;
    });
    CHECK_KILLED(pid, SIGKILL);
    int length = klogctl(3, log, sizeof log - 1);
    CHECK(length > 0);
    log[length] = 0;
    char want[64];
    snprintf(want, sizeof want, "Out of memory: Killed process %d (glutton?<0>x)", pid);
    if (!strstr(log, want))
        FAIL("the log has no \"%s\": %s", want, log);
    CHECK(strstr(log, "oom_score_adj:500\n") != NULL);
    CHECK_EQ(klogctl(9, NULL, 0), length);
    CHECK_EQ(klogctl(2, log, 20), 0); /* no line fits */
    CHECK_EQ(klogctl(2, log, sizeof log), length);
    CHECK_EQ(klogctl(9, NULL, 0), 0);
    CHECK_EQ(klogctl(4, log, sizeof log), length);
    CHECK_EQ(klogctl(3, log, sizeof log), 0);
    CHECK_ERR(klogctl(3, NULL, 10), EINVAL);
    CHECK_ERR(klogctl(3, log, -1), EINVAL);
    CHECK_ERR(klogctl(11, log, 1), EINVAL);
}

static void settings(void)
{
    CHECK_ERR(set(SETTING, "3"), EINVAL);
    CHECK_ERR(set(SETTING, "-1"), EINVAL);
    CHECK_ERR(set(SETTING, "x"), EINVAL);
    JOIN(CHILD(OK(setuid(65534)); CHECK_ERR(open(SETTING, O_WRONLY), EACCES)));
    CHECK_EQ(set(SETTING, "1\n"), 2);
    char *area = mmap(NULL, 1ul << 45, RW, ANON, -1, 0);
    CHECK(area != MAP_FAILED);
    OK(munmap(area, 1ul << 45));
    CHECK_EQ(set("/proc/sys/vm/overcommit_kbytes", "49152"), 5);
    CHECK_EQ(number_in("/proc/sys/vm/overcommit_ratio", ""), 0);
    CHECK_EQ(number_in("/proc/meminfo", "CommitLimit:"), 49152);
    CHECK_EQ(set(SETTING, "2"), 1);
    long before = number_in("/proc/meminfo", "Committed_AS:");
    CHECK_ERR((long)mmap(NULL, 48 * MIB, RW, ANON | MAP_NORESERVE, -1, 0), ENOMEM);
    char *half = mmap(NULL, 30 * MIB, RW, ANON, -1, 0);
    CHECK(half != MAP_FAILED);
    CHECK_EQ(number_in("/proc/meminfo", "Committed_AS:") - before, 30 * 1024);
    CHECK_ERR((long)fork(), ENOMEM); /* everything would be promised twice */
    OK(mprotect(half, 30 * MIB, PROT_READ));
    OK(mprotect(half, 30 * MIB, RW));
    CHECK_ERR((long)mremap(half, 30 * MIB, 60 * MIB, MREMAP_MAYMOVE), ENOMEM);
    char *none = mmap(NULL, 48 * MIB, PROT_NONE, ANON, -1, 0);
    CHECK(none != MAP_FAILED);
    CHECK_ERR(mprotect(none, 48 * MIB, RW), ENOMEM);
    CHECK_ERR((long)mmap(NULL, 48 * MIB, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0), ENOMEM);
    char *shared = mmap(NULL, 4 * MIB, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    CHECK_EQ(number_in("/proc/meminfo", "Committed_AS:") - before, 34 * 1024);
    OK(munmap(shared, 4 * MIB));
    OK(munmap(half, 30 * MIB));
    CHECK_EQ(number_in("/proc/meminfo", "Committed_AS:") - before, 0);
    CHECK_EQ(set("/proc/sys/vm/overcommit_ratio", "50"), 2);
    CHECK_EQ(number_in("/proc/sys/vm/overcommit_kbytes", ""), 0);
    CHECK_EQ(set(SETTING, "0"), 1);
    JOIN(CHILD());
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {TEST(map_much_touch_little), TEST(who_touches_goes), TEST(settings)};
    return RUN_TESTS("overcommit", tests, argc, argv);
}
