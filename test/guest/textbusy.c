/* Programs that run are not written, and files that are written are not run (ETXTBSY), on every file system. */
#include "check.h"

#include <sys/mman.h>

/* Whether the kernel keeps writers from programs that run. Linux 6.11 and 6.12 do not, unless the latter is Dormouse. */
static bool keeps_writers_off(const char *path)
{
    int writer = open(path, O_WRONLY);
    if (writer < 0)
        return true;
    close(writer);
    CHECK(kernel_is(6, 11) && !kernel_is(6, 13));
    return false;
}

/* Starts it; it says so and waits until the descriptor it gets is closed. */
static pid_t start(const char *path, int *leash)
{
    int said[2], wait[2];
    OK(pipe(said));
    OK(pipe2(wait, O_CLOEXEC));
    pid_t child = CHILD({
        CHECK_EQ(dup2(wait[0], 10), 10);
        CHECK_EQ(dup2(said[1], 11), 11);
        close(said[0]);
        close(said[1]);
        char *arguments[] = {"textbusy", "--wait", NULL};
        execv(path, arguments);
        FAIL("execv");
    });
    close(said[1]);
    close(wait[0]);
    char byte;
    CHECK_EQ(read(said[0], &byte, 1), 1);
    close(said[0]);
    *leash = wait[1];
    return child;
}

static int run(const char *path)
{
    char *arguments[] = {"textbusy", "--list", NULL}, *none[] = {NULL};
    pid_t child = CHILD({
        int null = FD(open("/dev/null", O_WRONLY));
        dup2(null, 1);
        execve(path, arguments, none);
        _exit(errno == ETXTBSY ? 77 : 78);
    });
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void is_busy(const char *path)
{
    int leash;
    pid_t child = start(path, &leash);
    if (!keeps_writers_off(path)) {
        close(leash);
        JOIN(child);
        return;
    }
    CHECK_ERR(open(path, O_WRONLY), ETXTBSY);
    CHECK_ERR(open(path, O_RDWR), ETXTBSY);
    CHECK_ERR(open(path, O_WRONLY | O_TRUNC), ETXTBSY);
    CHECK_ERR(open(path, O_RDONLY | O_TRUNC), ETXTBSY);
    CHECK_ERR(open(path, O_WRONLY | O_CREAT, 0755), ETXTBSY);
    CHECK_ERR(truncate(path, 0), ETXTBSY);
    close(FD(open(path, O_RDONLY)));
    OK(chmod(path, 0700));
    CHECK_EQ(run(path), 0);
    /* A child of it runs the same program. */
    close(leash);
    JOIN(child);
    int writer = FD(open(path, O_WRONLY));
    CHECK_EQ(run(path), 77);
    int other = FD(open(path, O_RDWR));
    close(writer);
    CHECK_EQ(run(path), 77);
    close(other);
    CHECK_EQ(run(path), 0);
    OK(truncate(path, 0));
    OK(unlink(path));
}

static void on_disk(void)
{
    copy_program_to("program");
    is_busy("program");
}

static void in_memory(void)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/textbusy-%d", getpid());
    copy_program_to(path);
    is_busy(path);
}

static void by_other_names(void)
{
    copy_program_to("program");
    OK(link("program", "other"));
    int leash;
    pid_t child = start("program", &leash);
    if (keeps_writers_off("other")) {
        CHECK_ERR(open("other", O_WRONLY), ETXTBSY);
        OK(unlink("program"));
        CHECK_ERR(open("other", O_WRONLY), ETXTBSY);
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/exe", child);
        CHECK_ERR(open(path, O_WRONLY), ETXTBSY);
    }
    close(leash);
    JOIN(child);
    close(FD(open("other", O_WRONLY)));
}

/* It is replaced instead, as programs that install others do. */
static void replacing(void)
{
    copy_program_to("program");
    copy_program_to("new");
    int leash;
    pid_t child = start("program", &leash);
    OK(rename("new", "program"));
    close(FD(open("program", O_WRONLY)));
    close(leash);
    JOIN(child);
}

/* A script is not kept from being changed while its interpreter runs. */
static void scripts(void)
{
    copy_program_to("program");
    int fd = FD(open("script", O_WRONLY | O_CREAT, 0755));
    static const char text[] = "#!./program --script\n";
    CHECK_EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    CHECK_EQ(run("./script"), 77);
    close(fd);
    int leash;
    pid_t child = start("./script", &leash);
    close(FD(open("script", O_WRONLY)));
    keeps_writers_off("program");
    close(leash);
    JOIN(child);
}

/* Shared mappings write as well, when the descriptor is closed. */
static void mappings(void)
{
    copy_program_to("program");
    int fd = FD(open("program", O_RDWR));
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    close(fd);
    CHECK_EQ(run("program"), 77);
    OK(munmap(at, 4096));
    CHECK_EQ(run("program"), 0);
}

static void memory_files(void)
{
    int from = FD(open("/proc/self/exe", O_RDONLY)), fd = FD(memfd_create("program", 0));
    char buffer[65536], path[64];
    ssize_t got;
    while ((got = read(from, buffer, sizeof buffer)) > 0)
        CHECK_EQ(write(fd, buffer, (size_t)got), got);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), fd);
    /* The descriptor that made it does not count. */
    CHECK_EQ(run(path), 0);
    int leash;
    pid_t child = start(path, &leash);
    if (keeps_writers_off(path)) {
        CHECK_ERR(open(path, O_RDWR), ETXTBSY);
        CHECK_ERR(truncate(path, 0), ETXTBSY);
    }
    close(leash);
    JOIN(child);
    int writer = FD(open(path, O_RDWR));
    CHECK_EQ(run(path), 77);
    close(writer);
    CHECK_EQ(run(path), 0);
}

/* A program that ends is free before anybody waits for it. */
static void ending(void)
{
    copy_program_to("program");
    for (int turn = 0; turn < 10; turn++) {
        int leash;
        pid_t child = start("program", &leash);
        OK(kill(child, SIGKILL));
        siginfo_t info;
        OK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT));
        close(FD(open("program", O_WRONLY)));
        CHECK_EQ(waitpid(child, NULL, 0), child);
        close(leash);
    }
}

int main(int argc, char **argv)
{
    if (argc >= 2 && (strcmp(argv[1], "--wait") == 0 || strcmp(argv[1], "--script") == 0)) {
        char byte;
        if (write(11, "x", 1) != 1)
            return 1;
        return read(10, &byte, 1) != 0;
    }
    static const struct test tests[] = {
        TEST(on_disk),
        TEST(in_memory),
        TEST(by_other_names),
        TEST(replacing),
        TEST(scripts),
        TEST(mappings),
        TEST(memory_files),
        TEST(ending),
    };
    return RUN_TESTS("textbusy", tests, argc, argv);
}
