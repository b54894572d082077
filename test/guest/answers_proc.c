/* What /proc/PID answers beyond its text: polling the mounts, memory that is written as a debugger does, modes of
 * links to open files, settings that stay, and what files of the kernel's own tell. */
#include "check.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/vfs.h>

static int poll_once(int fd, int timeout_ms)
{
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLPRI | POLLOUT};
    int ready = poll(&one, 1, timeout_ms);
    CHECK(ready >= 0);
    return one.revents;
}

enum { NEWS = POLLIN | POLLPRI | POLLERR };

/* Whoever may mount has a namespace of its own, where other programs' mounts do not disturb. */
static bool may_mount(void)
{
    OK(mkdir("place", 0755));
    /* In the sandbox there is one namespace. */
    if (unshare(CLONE_NEWNS) == 0)
        OK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
    if (mount("first", "place", "tmpfs", 0, NULL) != 0) {
        CHECK_EQ(errno, EPERM);
        return false;
    }
    OK(umount("place"));
    return true;
}

static void polling_mounts(void)
{
    static const char *const files[] = {"/proc/self/mounts", "/proc/self/mountinfo"};
    int fds[2], set = FD(epoll_create1(0));
    bool mounts = may_mount();
    for (int i = 0; i < 2; i++) {
        fds[i] = FD(open(files[i], O_RDONLY));
        CHECK_EQ(poll_once(fds[i], 0), POLLIN);
        struct epoll_event event = {.events = EPOLLPRI, .data.fd = i};
        OK(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event));
    }
    struct epoll_event got[4];
    CHECK_EQ(epoll_wait(set, got, 4, 0), 0);
    static const char *const plain[] = {"/proc/self/mountstats", "/proc/self/status"};
    for (int i = 0; i < 2; i++) {
        int fd = FD(open(plain[i], O_RDONLY));
        struct epoll_event event = {.events = EPOLLIN};
        CHECK_ERR(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EPERM);
        CHECK_EQ(poll_once(fd, 0), POLLIN | POLLOUT);
    }
    if (!mounts)
        SKIP("may not mount");
    OK(mount("one", "place", "tmpfs", 0, NULL));
    CHECK_EQ(epoll_wait(set, got, 4, -1), 2);
    CHECK_EQ(got[0].events, EPOLLPRI | EPOLLERR);
    CHECK_EQ(epoll_wait(set, got, 4, 0), 0);
    OK(mount("none", "place", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
    CHECK_EQ(poll_once(fds[0], 0), NEWS);
    CHECK_EQ(poll_once(fds[0], 0), POLLIN);
    OK(umount("place"));
    CHECK_EQ(poll_once(fds[0], 0), NEWS);
    /* Another description has seen none of it, or all. */
    int late = FD(open("/proc/self/mounts", O_RDONLY));
    CHECK_EQ(poll_once(late, 0), POLLIN);
}

static void waiting_for_mounts(void)
{
    if (!may_mount())
        SKIP("may not mount");
    int fd = FD(open("/proc/self/mountinfo", O_RDONLY));
    pid_t me = getpid();
    pid_t child = CHILD({
        wait_until_asleep(me);
        OK(mount("one", "place", "tmpfs", 0, NULL));
    });
    struct pollfd one = {.fd = fd, .events = POLLPRI};
    CHECK_EQ(poll(&one, 1, -1), 1);
    CHECK_EQ(one.revents, POLLPRI | POLLERR);
    JOIN(child);
    child = CHILD({
        wait_until_asleep(me);
        OK(umount("place"));
    });
    fd_set urgent;
    FD_ZERO(&urgent);
    FD_SET(fd, &urgent);
    CHECK_EQ(select(fd + 1, NULL, NULL, &urgent, NULL), 1);
    JOIN(child);
}

static const char TEXT[] = "what the file has";

/* /proc/self/mem reads and writes what the mapping forbids, by copy-on-write, where the mapping is private. */
static void forced_writes(void)
{
    char got[16] = {0};
    long page = sysconf(_SC_PAGESIZE);
    int mem = FD(open("/proc/self/mem", O_RDWR));
    write_file("file", TEXT, 0644);
    int file = FD(open("file", O_RDONLY));
    char *ours = mmap(NULL, (size_t)page, PROT_READ, MAP_PRIVATE, file, 0);
    char *beside = mmap(NULL, (size_t)page, PROT_READ, MAP_PRIVATE, file, 0);
    char *shared = mmap(NULL, (size_t)page, PROT_READ, MAP_SHARED, file, 0);
    CHECK(ours != MAP_FAILED && beside != MAP_FAILED && shared != MAP_FAILED);
    CHECK_EQ(ours[0] + shared[0] + beside[0], 3 * 'w');
    CHECK_EQ(pwrite(mem, "WHAT", 4, (off_t)(uintptr_t)ours), 4);
    CHECK(memcmp(ours, "WHAT the", 8) == 0 && memcmp(beside, "what the", 8) == 0);
    CHECK_ERR(pwrite(mem, "WHAT", 4, (off_t)(uintptr_t)shared), EIO);
    CHECK(memcmp(shared, TEXT, 4) == 0);
    CHECK_EQ(pread(file, got, 4, 0), 4);
    CHECK(memcmp(got, TEXT, 4) == 0);
    /* A child has the page as it is, and makes its own of it. */
    JOIN(CHILD({
        CHECK(memcmp(ours, "WHAT the", 8) == 0);
        int own = FD(open("/proc/self/mem", O_RDWR));
        CHECK_EQ(pwrite(own, "wHAT", 4, (off_t)(uintptr_t)ours), 4);
        CHECK(memcmp(ours, "wHAT the", 8) == 0);
    }));
    CHECK(memcmp(ours, "WHAT the", 8) == 0);
    /* The program itself still may not write. */
    CHECK_KILLED(CHILD(*(volatile char *)ours = 1), SIGSEGV);

    char *none = mmap(NULL, (size_t)page * 4, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(none != MAP_FAILED);
    CHECK_EQ(pread(mem, got, 4, (off_t)(uintptr_t)none), 4);
    CHECK(memcmp(got, "\0\0\0\0", 4) == 0);
    /* Across two pages. */
    CHECK_EQ(pwrite(mem, "data", 4, (off_t)(uintptr_t)none + page - 2), 4);
    CHECK_EQ(pread(mem, got, 4, (off_t)(uintptr_t)none + page - 2), 4);
    CHECK(memcmp(got, "data", 4) == 0);
    CHECK_KILLED(CHILD((void)*(volatile char *)none), SIGSEGV);
    CHECK_KILLED(CHILD((void)*(volatile char *)(none + page)), SIGSEGV);
    OK(mprotect(none, (size_t)page * 4, PROT_READ));
    CHECK(memcmp(none + page - 2, "data", 4) == 0);
    CHECK_KILLED(CHILD(*(volatile char *)none = 1), SIGSEGV);
    OK(mprotect(none, (size_t)page * 4, PROT_READ | PROT_WRITE));
    none[page] = 'T';
    OK(mprotect(none, (size_t)page * 4, PROT_NONE));
    CHECK_EQ(pread(mem, got, 4, (off_t)(uintptr_t)none + page - 2), 4);
    CHECK(memcmp(got, "daTa", 4) == 0);
    CHECK_EQ(pwrite(mem, "!", 1, (off_t)(uintptr_t)none + page), 1);
    OK(mprotect(none, (size_t)page * 4, PROT_READ));
    CHECK(memcmp(none + page - 2, "da!a", 4) == 0);

    /* The text of a program, as breakpoints are set: another process writes it. */
    char *code = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(code != MAP_FAILED);
    static const unsigned char answer[] = {0xb8, 1, 0, 0, 0, 0xc3};
    memcpy(code, answer, sizeof answer);
    OK(mprotect(code, (size_t)page, PROT_READ | PROT_EXEC));
    int (*function)(void) = (int (*)(void))(uintptr_t)code;
    CHECK_EQ(function(), 1);
    CHECK_EQ(pwrite(mem, "\2", 1, (off_t)(uintptr_t)code + 1), 1);
    CHECK_EQ(function(), 2);
    OK(munmap(none, (size_t)page * 4));
    CHECK_ERR(pread(mem, got, 4, (off_t)(uintptr_t)none), EIO);
    CHECK_ERR(pwrite(mem, got, 4, (off_t)(uintptr_t)none), EIO);
    /* Positions are addresses. */
    CHECK_EQ(lseek(mem, (off_t)(uintptr_t)code, SEEK_SET), (off_t)(uintptr_t)code);
    CHECK_EQ(lseek(mem, 1, SEEK_CUR), (off_t)(uintptr_t)code + 1);
    CHECK_EQ(read(mem, got, 1), 1);
    CHECK_EQ(got[0], 2);
    CHECK_EQ(syscall(SYS_lseek, mem, -4096L, SEEK_SET), -4096);
    CHECK_ERR(read(mem, got, 1), EIO);
    CHECK_ERR(lseek(mem, 0, SEEK_END), EINVAL);
}

/* The program's own text: a call that is made often, whose code is then written. */
static void forced_text(void)
{
    int mem = FD(open("/proc/self/mem", O_RDWR));
    unsigned char byte, *function = (unsigned char *)(uintptr_t)getppid;
    for (int i = 0; i < 20000; i++)
        CHECK(getppid() > 0);
    CHECK_EQ(pread(mem, &byte, 1, (off_t)(uintptr_t)function), 1);
    /* The same content, of its own. */
    CHECK_EQ(pwrite(mem, &byte, 1, (off_t)(uintptr_t)function), 1);
    for (int i = 0; i < 20000; i++)
        CHECK(getppid() > 0);
    /* A breakpoint. */
    JOIN(CHILD({
        int own = FD(open("/proc/self/mem", O_RDWR));
        CHECK_EQ(pwrite(own, "\xcc", 1, (off_t)(uintptr_t)function), 1);
        CHECK_KILLED(CHILD(getppid()), SIGTRAP);
        CHECK_EQ(pwrite(own, &byte, 1, (off_t)(uintptr_t)function), 1);
        CHECK(getppid() > 0);
    }));
    CHECK(getppid() > 0);
}

static mode_t mode_of_link(int fd)
{
    char path[64];
    struct stat stat_;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    OK(lstat(path, &stat_));
    CHECK_EQ(stat_.st_size, 64);
    return stat_.st_mode;
}

static void links_to_open_files(void)
{
    int ends[2];
    CHECK_EQ(mode_of_link(FD(open("/dev/null", O_RDONLY))), S_IFLNK | 0500);
    CHECK_EQ(mode_of_link(FD(open("/dev/null", O_WRONLY))), S_IFLNK | 0300);
    CHECK_EQ(mode_of_link(FD(open("/dev/null", O_RDWR))), S_IFLNK | 0700);
    CHECK_EQ(mode_of_link(FD(open("/dev/null", O_PATH))), S_IFLNK);
    OK(pipe(ends));
    CHECK_EQ(mode_of_link(ends[0]), S_IFLNK | 0500);
    CHECK_EQ(mode_of_link(ends[1]), S_IFLNK | 0300);
    if (!kernel_is(6, 2))
        return;
    struct stat before, after;
    OK(stat("/proc/self/fd", &before));
    CHECK(before.st_size >= 6);
    OK(close(ends[0]));
    OK(stat("/proc/self/fd", &after));
    CHECK_EQ(after.st_size, before.st_size - 1);
}

/* What a write to a file of this process's answers: 0, or the error. */
static int store(const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/%s", name);
    int fd = FD(open(path, O_WRONLY));
    ssize_t written = write(fd, text, strlen(text));
    int error = written < 0 ? errno : 0;
    CHECK(error || written == (ssize_t)strlen(text));
    OK(close(fd));
    return error;
}

static void check_file(const char *name, const char *want)
{
    char path[64], got[256] = {0};
    snprintf(path, sizeof path, "/proc/self/%s", name);
    int fd = FD(open(path, O_RDONLY));
    CHECK(read(fd, got, sizeof got - 1) >= 0);
    OK(close(fd));
    if (strcmp(got, want) != 0)
        FAIL("%s is %s, want %s", path, got, want);
}

static void settings_that_stay(void)
{
    CHECK_EQ(store("coredump_filter", "0x3f\n"), 0);
    check_file("coredump_filter", "0000003f\n");
    JOIN(CHILD({
        check_file("coredump_filter", "0000003f\n");
        CHECK_EQ(store("coredump_filter", "7"), 0);
        execl("/bin/sh", "sh", "-c", "read word < /proc/$$/coredump_filter; test $word = 00000007", NULL);
        FAIL("exec");
    }));
    check_file("coredump_filter", "0000003f\n");
    CHECK_EQ(store("coredump_filter", "0xffffffff"), 0);
    check_file("coredump_filter", "000001ff\n");
    static const char *const bad[] = {"zz", "-1", "3 3", "08", " 1x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_EQ(store("coredump_filter", bad[i]), EINVAL);
    CHECK_EQ(store("coredump_filter", "0x1ffffffff"), ERANGE);
    CHECK_EQ(store("sched", "anything"), 0);
    static const char *const texts[] = {"limits", "stat", "cmdline", "personality", "wchan"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts && getuid() == 0; i++)
        CHECK_EQ(store(texts[i], "1"), EINVAL);
    CHECK_EQ(store("uid_map", "zz"), EPERM);
    CHECK_EQ(store("gid_map", "0 0 1"), EPERM);
    CHECK_EQ(store("projid_map", "0 0 1"), EPERM);
    if (access("/proc/self/autogroup", F_OK) == 0) {
        JOIN(CHILD({
            CHECK(setsid() > 0);
            /* Who has no privileges may not do it often. */
            if (store("autogroup", "5\n") == EAGAIN)
                _exit(0);
            char got[64] = {0};
            int fd = FD(open("/proc/self/autogroup", O_RDONLY));
            CHECK(read(fd, got, sizeof got - 1) > 0);
            CHECK(strncmp(got, "/autogroup-", 11) == 0 && strstr(got, " nice 5\n"));
            CHECK_EQ(store("autogroup", "20"), EINVAL);
            CHECK_EQ(store("autogroup", "-21"), EINVAL);
            CHECK_EQ(store("autogroup", "x"), EINVAL);
        }));
    }
    if (access("/proc/self/attr/current", F_OK) == 0 && access("/sys/fs/selinux/enforce", F_OK) != 0 &&
        access("/sys/module/apparmor", F_OK) != 0) {
        char byte;
        CHECK_EQ(store("attr/current", "x"), EINVAL);
        CHECK_EQ(store("attr/exec", "x"), EINVAL);
        CHECK_ERR(read(FD(open("/proc/self/attr/current", O_RDONLY)), &byte, 1), EINVAL);
    }
}

enum { PRESENT = 63, SWAPPED = 62, OF_FILE = 61, EXCLUSIVE = 56 };

static uint64_t page_word(int map, const void *page)
{
    uint64_t word;
    CHECK_EQ(pread(map, &word, 8, (off_t)((uintptr_t)page / (uintptr_t)sysconf(_SC_PAGESIZE) * 8)), 8);
    return word;
}

static bool has_bit(uint64_t word, int bit)
{
    return word >> bit & 1;
}

static void pages_of_memory(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int map = FD(open("/proc/self/pagemap", O_RDONLY));
    char byte, *memory = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    OK(madvise(memory, 4 * page, MADV_NOHUGEPAGE) == 0 || errno == EINVAL ? 0 : -1);
    memory[page] = 1;
    uint64_t word = page_word(map, memory + page);
    CHECK(has_bit(word, PRESENT) && has_bit(word, EXCLUSIVE) && !has_bit(word, OF_FILE) && !has_bit(word, SWAPPED));
    CHECK(getuid() == 0 || (word & ((1ULL << 55) - 1)) == 0);
    OK(munmap(memory, 4 * page));
    CHECK_EQ(page_word(map, memory + page), 0);
    write_file("file", "content", 0644);
    int file = FD(open("file", O_RDWR));
    char *shared = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *ours = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(shared != MAP_FAILED && ours != MAP_FAILED);
    CHECK_EQ(*(volatile char *)shared + *(volatile char *)ours, 2 * 'c');
    word = page_word(map, shared);
    CHECK(has_bit(word, PRESENT) && has_bit(word, OF_FILE));
    *(volatile char *)ours = 'C';
    word = page_word(map, ours);
    CHECK(has_bit(word, PRESENT) && has_bit(word, EXCLUSIVE) && !has_bit(word, OF_FILE));
    CHECK_ERR(pread(map, &byte, 1, 0), EINVAL);
    CHECK_ERR(pread(map, &word, 8, 4), EINVAL);
    CHECK_EQ(pread(map, &word, 8, (off_t)(1ULL << 52)), 0);
    for (const char *request = "12345"; *request; request++)
        CHECK_EQ(store("clear_refs", (char[]){*request, '\n', 0}), 0);
    CHECK_EQ(store("clear_refs", "6"), EINVAL);
    CHECK_EQ(store("clear_refs", "0"), EINVAL);
    CHECK_EQ(store("clear_refs", "x"), EINVAL);

    /* The file behind a mapping. */
    char path[128], target[256], want[256];
    snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)shared, (unsigned long)shared + page);
    struct stat stat_;
    OK(lstat(path, &stat_));
    CHECK(S_ISLNK(stat_.st_mode) && (stat_.st_mode & 0577) == 0400 && stat_.st_size == 64);
    ssize_t length = readlink(path, target, sizeof target - 1);
    CHECK(length > 0 && realpath("file", want) != NULL);
    target[length] = 0;
    CHECK(strcmp(target, want) == 0);
    int found = 0;
    DIR *all = opendir("/proc/self/map_files");
    CHECK(all != NULL);
    for (struct dirent *entry; (entry = readdir(all));)
        found += strcmp(entry->d_name, strrchr(path, '/') + 1) == 0;
    closedir(all);
    CHECK_EQ(found, 1);
    CHECK_ERR(lstat("/proc/self/map_files/1000-2000", &stat_), ENOENT);
    CHECK_ERR(lstat("/proc/self/map_files/x", &stat_), ENOENT);
    OK(munmap(shared, page));
    CHECK_ERR(lstat(path, &stat_), ENOENT);
    CHECK(number_in("/proc/self/smaps_rollup", "Pss_Anon:") > 0);
    CHECK(number_in("/proc/self/smaps_rollup", "Pss_File:") > 0);
    CHECK(number_in("/proc/self/smaps_rollup", "Pss_Shmem:") >= 0);
}

/* Nobody looks into another user's memory. */
static void others_pages(void)
{
    if (getuid() != 0)
        SKIP("needs root");
    OK(chmod(".", 0755));
    pid_t root = getpid();
    JOIN(CHILD({
        char path[64];
        OK(setgid(12345));
        OK(setuid(12345));
        snprintf(path, sizeof path, "/proc/%d/pagemap", root);
        CHECK_ERR(open(path, O_RDONLY), EACCES);
        snprintf(path, sizeof path, "/proc/%d/map_files", root);
        CHECK_ERR(open(path, O_RDONLY), EACCES);
        snprintf(path, sizeof path, "/proc/%d/clear_refs", root);
        CHECK_ERR(open(path, O_WRONLY), EACCES);
        snprintf(path, sizeof path, "/proc/%d/mem", root);
        CHECK_ERR(open(path, O_RDWR), EACCES);
        snprintf(path, sizeof path, "/proc/%d/coredump_filter", root);
        CHECK_ERR(open(path, O_WRONLY), EACCES);
    }));
}

static void clocks_of_the_namespace(void)
{
    if (access("/proc/self/timens_offsets", F_OK) != 0)
        SKIP("no time namespaces here");
    CHECK_EQ(store("timens_offsets", "zz"), EINVAL);
    CHECK_EQ(store("timens_offsets", "monotonic 1"), EINVAL);
    CHECK(store("timens_offsets", "monotonic 1 0\n") == (getuid() == 0 ? EACCES : EPERM));
    check_file("timens_offsets", "monotonic           0         0\nboottime            0         0\n");
}

/* A line of a descriptor's facts begins so; what follows is the number. */
static long fact(int fd, const char *key)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    return number_in(path, key);
}

static void facts_of_descriptors(void)
{
    int event = FD(eventfd(3, 0)), semaphore = FD(eventfd(3, EFD_SEMAPHORE));
    CHECK_EQ(fact(semaphore, "eventfd-count:"), 3);
    CHECK(fact(event, "eventfd-id:") != fact(semaphore, "eventfd-id:"));
    if (kernel_is(6, 5)) {
        CHECK_EQ(fact(event, "eventfd-semaphore:"), 0);
        CHECK_EQ(fact(semaphore, "eventfd-semaphore:"), 1);
    }
    int timer = FD(timerfd_create(CLOCK_REALTIME, 0));
    CHECK_EQ(fact(timer, "clockid:"), CLOCK_REALTIME);
    struct itimerspec far = {{7, 0}, {4000000000, 0}};
    OK(timerfd_settime(timer, TFD_TIMER_ABSTIME, &far, NULL));
    CHECK_EQ(fact(timer, "settime flags:"), 1);
    CHECK_EQ(fact(timer, "ticks:"), 0);
    CHECK_EQ(fact(timer, "it_interval: ("), 7);
    CHECK(fact(timer, "it_value: (") > 1000000);
    int ends[2], sent[2] = {0, event};
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    char byte = 'x', control[CMSG_SPACE(sizeof sent)] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof sent);
    memcpy(CMSG_DATA(header), sent, sizeof sent);
    CHECK_EQ(sendmsg(ends[0], &message, 0), 1);
    CHECK_EQ(fact(ends[0], "scm_fds:"), 0);
    CHECK_EQ(fact(ends[1], "scm_fds:"), 2);
    CHECK_EQ(recv(ends[1], &byte, 1, 0), 1);
    CHECK_EQ(fact(ends[1], "scm_fds:"), 0);
    /* They have no positions, but do not say so. */
    sigset_t none;
    sigemptyset(&none);
    CHECK_EQ(lseek(event, 5, SEEK_SET), 0);
    CHECK_EQ(lseek(timer, 5, SEEK_END), 0);
    CHECK_EQ(lseek(FD(signalfd(-1, &none, 0)), 5, SEEK_CUR), 0);
    CHECK_EQ(lseek(FD(epoll_create1(0)), 5, SEEK_CUR), 0);
    CHECK_ERR(pread(event, control, 8, 0), ESPIPE);
}

/* How a set would ask network devices is kept. */
static void settings_of_epoll(void)
{
    struct {
        uint32_t usecs;
        uint16_t budget;
        uint8_t prefers, pad;
    } set = {100, 8, 1, 0}, got = {0};
    int fd = FD(epoll_create1(0));
    if (ioctl(fd, _IOR(0x8a, 2, set), &got) < 0) {
        CHECK(errno == ENOTTY || errno == EINVAL || errno == EOPNOTSUPP);
        CHECK(!kernel_is(6, 9) || errno == EOPNOTSUPP);
        SKIP("not known here");
    }
    CHECK(got.usecs == 0 && got.budget == 0 && got.prefers == 0);
    OK(ioctl(fd, _IOW(0x8a, 1, set), &set));
    OK(ioctl(fd, _IOR(0x8a, 2, set), &got));
    CHECK(memcmp(&set, &got, sizeof set) == 0);
    set.prefers = 2;
    CHECK_ERR(ioctl(fd, _IOW(0x8a, 1, set), &set), EINVAL);
    set.prefers = 1;
    set.pad = 1;
    CHECK_ERR(ioctl(fd, _IOW(0x8a, 1, set), &set), EINVAL);
    set.pad = 0;
    set.usecs = 1u << 31;
    CHECK_ERR(ioctl(fd, _IOW(0x8a, 1, set), &set), EINVAL);
    CHECK_ERR(ioctl(fd, _IOW(0x8a, 1, set), NULL), EFAULT);
    CHECK_ERR(ioctl(fd, _IO(0x8a, 9), NULL), EINVAL);
}

struct load {
    double one, five, fifteen;
    int running, tasks, last;
};

static struct load load_now(void)
{
    struct load load;
    FILE *file = fopen("/proc/loadavg", "r");
    CHECK(file);
    CHECK_EQ(fscanf(file, "%lf %lf %lf %d/%d %d", &load.one, &load.five, &load.fifteen, &load.running,
                    &load.tasks, &load.last),
             6);
    fclose(file);
    return load;
}

/* Whether the id of the process that was made last is told. On a machine where others make some it may not be. */
static bool tells_last_id(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(child > 0);
    int last = load_now().last;
    CHECK_EQ(waitpid(child, NULL, 0), child);
    return last == child;
}

static void load_averages(void)
{
    /* Samples are taken every five seconds, and one of them sees the loop. */
    pid_t busy = fork();
    if (busy == 0)
        for (;;)
            ;
    CHECK(busy > 0);
    AWAIT(load_now().one > 0.04, 100000);
    CHECK(load_now().one > 0);
    struct load load = load_now();
    CHECK(load.running >= 1 && load.tasks >= 2 && load.running <= load.tasks);
    struct sysinfo info;
    OK(sysinfo(&info));
    CHECK(info.loads[0] > 0);
    OK(kill(busy, SIGKILL));
    CHECK_EQ(waitpid(busy, NULL, 0), busy);
    bool told = false;
    AWAIT((told = tells_last_id()), 1000);
    CHECK(told);
}

enum { NS_GET_USERNS_ = 0xb701, NS_GET_PARENT_, NS_GET_NSTYPE_, NS_GET_OWNER_UID_, NSFS_MAGIC_ = 0x6e736673 };

static const struct {
    const char *name;
    int flag;
} spaces[] = {
    {"cgroup", CLONE_NEWCGROUP}, {"ipc", CLONE_NEWIPC},   {"mnt", CLONE_NEWNS},   {"net", CLONE_NEWNET},
    {"pid", CLONE_NEWPID},       {"user", CLONE_NEWUSER}, {"uts", CLONE_NEWUTS}, {"time", 0x80},
};

static int space(const char *of, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/%s", of, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static void namespaces(void)
{
    for (unsigned i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        char path[64], text[64] = {0}, want[64];
        snprintf(path, sizeof path, "/proc/self/ns/%s", spaces[i].name);
        CHECK(readlink(path, text, sizeof text - 1) > 0);
        struct stat named, open, link;
        OK(stat(path, &named));
        OK(lstat(path, &link));
        CHECK(S_ISLNK(link.st_mode));
        CHECK_EQ(named.st_mode, S_IFREG | 0444);
        snprintf(want, sizeof want, "%s:[%lu]", spaces[i].name, (unsigned long)named.st_ino);
        CHECK(strcmp(text, want) == 0);
        int fd = FD(space("self", spaces[i].name));
        OK(fstat(fd, &open));
        CHECK(open.st_dev == named.st_dev && open.st_ino == named.st_ino);
        struct statfs system;
        OK(fstatfs(fd, &system));
        CHECK_EQ(system.f_type, NSFS_MAGIC_);
        CHECK_EQ(ioctl(fd, NS_GET_NSTYPE_), spaces[i].flag);
        bool nests = spaces[i].flag == CLONE_NEWPID || spaces[i].flag == CLONE_NEWUSER;
        CHECK_ERR(ioctl(fd, NS_GET_PARENT_), nests ? EPERM : EINVAL);
        uid_t owner = 7;
        if (spaces[i].flag == CLONE_NEWUSER)
            OK(ioctl(fd, NS_GET_OWNER_UID_, &owner));
        else
            CHECK_ERR(ioctl(fd, NS_GET_OWNER_UID_, &owner), EINVAL);
        CHECK_ERR(ioctl(fd, 0xb7f0), ENOTTY);
        CHECK_ERR(read(fd, text, 1), EINVAL);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        memset(text, 0, sizeof text);
        CHECK(readlink(path, text, sizeof text - 1) > 0);
        CHECK(strcmp(text, want) == 0);
        close(fd);
    }
    /* A child is in the same ones. */
    struct stat mine, its;
    OK(stat("/proc/self/ns/net", &mine));
    JOIN(CHILD({
        OK(stat("/proc/self/ns/net", &its));
        CHECK(mine.st_dev == its.st_dev && mine.st_ino == its.st_ino);
    }));
}

/* Whoever may not look into a process does not get its namespaces. */
static void namespaces_of_others(void)
{
    if (getuid() != 0)
        SKIP("needs root");
    char root[16];
    snprintf(root, sizeof root, "%d", getpid());
    JOIN(CHILD({
        OK(setgid(12345));
        OK(setuid(12345));
        CHECK_ERR(space(root, "mnt"), EACCES);
    }));
}

static void entering_namespaces(void)
{
    bool may = getuid() == 0;
    for (unsigned i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        int fd = FD(space("self", spaces[i].name));
        CHECK_ERR(setns(fd, spaces[i].flag == CLONE_NEWNET ? CLONE_NEWPID : CLONE_NEWNET), EINVAL);
        /* In a process of its own: it may leave its directory. */
        JOIN(CHILD({
            if (spaces[i].flag == CLONE_NEWUSER)
                CHECK_ERR(setns(fd, 0), EINVAL);
            else if (setns(fd, spaces[i].flag) != 0)
                CHECK(errno == EPERM && !may);
            else
                CHECK(may);
        }));
        close(fd);
    }
    CHECK_ERR(setns(-1, 0), EBADF);
    int plain = FD(open("/dev/null", O_RDONLY));
    CHECK_ERR(setns(plain, CLONE_NEWNET), EINVAL);
    int pidfd = FD(syscall(SYS_pidfd_open, getpid(), 0));
    CHECK_ERR(setns(pidfd, 0), EINVAL);
    CHECK_ERR(setns(pidfd, 1), EINVAL);
    if (may)
        OK(setns(pidfd, CLONE_NEWNET | CLONE_NEWUTS));
    else
        CHECK_ERR(setns(pidfd, CLONE_NEWNET | CLONE_NEWUTS), EPERM);
}

/* Whether a file has a line about this inode: what is before the numbers, and what comes after. */
static bool has_lock(const char *path, const char *before, ino_t ino, const char *after)
{
    char line[256], ends[64];
    bool found = false;
    FILE *file = fopen(path, "r");
    CHECK(file);
    snprintf(ends, sizeof ends, ":%lu %s\n", (unsigned long)ino, after);
    while (!found && fgets(line, sizeof line, file)) {
        size_t len = strlen(line), end = strlen(ends);
        char *text = strncmp(line, "lock:\t", 6) == 0 ? line + 6 : line;
        unsigned long number;
        int at = 0;
        if (len < end || strcmp(line + len - end, ends) != 0 || sscanf(text, "%lu: %n", &number, &at) != 1)
            continue;
        found = strncmp(text + at, before, strlen(before)) == 0;
    }
    fclose(file);
    return found;
}

static bool locked(const char *before, ino_t ino, const char *after)
{
    return has_lock("/proc/locks", before, ino, after);
}

static bool locked_by(int fd, const char *before, ino_t ino, const char *after)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    return has_lock(path, before, ino, after);
}

static void locks_are_listed(void)
{
    char flocked[64], waits[64], posix[64], lease[64], other[64];
    snprintf(flocked, sizeof flocked, "FLOCK  ADVISORY  WRITE %d ", getpid());
    snprintf(posix, sizeof posix, "POSIX  ADVISORY  READ %d ", getpid());
    snprintf(lease, sizeof lease, "LEASE  ACTIVE    READ %d ", getpid());
    int fd = FD(open("file", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    int second = FD(open("file", O_RDWR | O_CLOEXEC));
    struct stat stat;
    OK(fstat(fd, &stat));
    ino_t ino = stat.st_ino;
    CHECK(!locked("", ino, "0 EOF"));
    OK(flock(fd, LOCK_EX));
    CHECK(locked(flocked, ino, "0 EOF"));
    CHECK(locked_by(fd, flocked, ino, "0 EOF") && !locked_by(second, "", ino, "0 EOF"));
    struct flock range = {.l_type = F_RDLCK, .l_start = 10, .l_len = 10};
    OK(fcntl(fd, F_SETLK, &range));
    struct flock own = {.l_type = F_WRLCK, .l_start = 100};
    OK(fcntl(second, F_OFD_SETLK, &own));
    CHECK(locked(posix, ino, "10 19") && locked_by(fd, posix, ino, "10 19"));
    CHECK(locked("OFDLCK ADVISORY  WRITE -1 ", ino, "100 EOF"));
    CHECK(locked_by(second, "OFDLCK ADVISORY  WRITE -1 ", ino, "100 EOF") && !locked_by(fd, "OFD", ino, "100 EOF"));
    /* Who waits is told with what it waits for. */
    pid_t child = fork();
    if (child == 0) {
        int again = FD(open("file", O_RDWR));
        OK(flock(again, LOCK_SH));
        _exit(0);
    }
    snprintf(waits, sizeof waits, "-> FLOCK  ADVISORY  READ %d ", child);
    snprintf(other, sizeof other, "-> POSIX  ADVISORY  WRITE %d ", child);
    AWAIT(locked(waits, ino, "0 EOF"), 1000);
    CHECK(locked(waits, ino, "0 EOF") && !locked_by(fd, waits, ino, "0 EOF"));
    OK(flock(fd, LOCK_UN));
    JOIN(child);
    CHECK(!locked(waits, ino, "0 EOF") && !locked("FLOCK", ino, "0 EOF"));
    child = fork();
    if (child == 0) {
        struct flock all = {.l_type = F_WRLCK, .l_start = 12, .l_len = 3};
        OK(fcntl(fd, F_SETLKW, &all));
        _exit(0);
    }
    snprintf(other, sizeof other, "-> POSIX  ADVISORY  WRITE %d ", child);
    AWAIT(locked(other, ino, "12 14"), 1000);
    CHECK(locked(other, ino, "12 14"));
    close(fd);
    JOIN(child);
    close(second);
    CHECK(!locked("", ino, "100 EOF") && !locked("", ino, "10 19"));
    /* Leases. */
    fd = FD(open("file", O_RDONLY | O_CLOEXEC));
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    CHECK(locked(lease, ino, "0 EOF") && locked_by(fd, lease, ino, "0 EOF"));
    OK(fcntl(fd, F_SETLEASE, F_UNLCK));
    CHECK(!locked(lease, ino, "0 EOF"));
    /* A pipe's. */
    int ends[2];
    OK(pipe(ends));
    OK(fstat(ends[0], &stat));
    OK(flock(ends[0], LOCK_EX));
    CHECK(locked(flocked, stat.st_ino, "0 EOF") && locked_by(ends[0], flocked, stat.st_ino, "0 EOF"));
}

/* The reader's own call, in both its directories. */
static void own_call(void)
{
    char name[64], text[256], want[128];
    snprintf(name, sizeof name, "/proc/self/task/%d/syscall", (int)gettid());
    for (int turn = 0; turn < 2; turn++) {
        int fd = open(turn ? name : "/proc/self/syscall", O_RDONLY);
        if (fd < 0 && errno == ENOENT)
            SKIP("not known here");
        FD(fd);
        memset(text, 0, sizeof text);
        CHECK(syscall(SYS_read, fd, text, sizeof text - 1) > 0);
        unsigned long sp, pc;
        int end = snprintf(want, sizeof want, "%d 0x%x %p 0x%zx ", SYS_read, fd, (void *)text, sizeof text - 1);
        CHECK(strncmp(text, want, (size_t)end) == 0);
        CHECK_EQ(sscanf(text + end, "%*x %*x %*x %lx %lx", &sp, &pc), 2);
        CHECK(sp < (unsigned long)__builtin_frame_address(0) && sp > (unsigned long)__builtin_frame_address(0) - 65536 && pc > 4096);
        OK(close(fd));
    }
}


/* What has been read and written. */
struct transfers {
    unsigned long read_bytes, written_bytes, reads, writes;
    /* Bytes of the file that told it, which count from then on. */
    ssize_t told;
};

static struct transfers transfers_of(const char *path)
{
    struct transfers all = {0};
    char text[512];
    int fd = FD(open(path, O_RDONLY));
    all.told = read(fd, text, sizeof text - 1);
    CHECK(all.told > 0);
    text[all.told] = 0;
    CHECK_EQ(sscanf(text, "rchar: %lu wchar: %lu syscr: %lu syscw: %lu", &all.read_bytes, &all.written_bytes,
                    &all.reads, &all.writes),
             4);
    close(fd);
    return all;
}

static void counted_transfers(void)
{
    char bytes[1000] = {0};
    int ends[2], file = FD(open("file", O_RDWR | O_CREAT, 0600));
    struct iovec two[2] = {{bytes, 100}, {bytes + 100, 100}};
    off_t at = 0;
    OK(pipe2(ends, O_NONBLOCK));
    struct transfers before = transfers_of("/proc/self/io"), after;
    CHECK_EQ(write(ends[1], bytes, 1000), 1000);
    CHECK_EQ(writev(ends[1], two, 2), 200);
    CHECK_EQ(pwrite(file, bytes, 300, 0), 300);
    CHECK_EQ(read(ends[0], bytes, 1000), 1000);
    CHECK_EQ(readv(ends[0], two, 2), 200);
    CHECK_EQ(pread(file, bytes, 500, 100), 200);
    /* Nothing moves, but the call was good. */
    CHECK_ERR(read(ends[0], bytes, 1), EAGAIN);
    CHECK_ERR(read(-1, bytes, 1), EBADF);
    CHECK_ERR(write(ends[0], bytes, 1), EBADF);
    CHECK_EQ(sendfile(ends[1], file, &at, 300), 300);
    after = transfers_of("/proc/self/io");
    CHECK_EQ(after.read_bytes - before.read_bytes, 1000 + 200 + 200 + 300 + (unsigned long)before.told);
    CHECK_EQ(after.written_bytes - before.written_bytes, 1000 + 200 + 300 + 300);
    CHECK_EQ(after.reads - before.reads, 6);
    CHECK_EQ(after.writes - before.writes, 4);
    /* The process has what children had, once it has waited for them; the thread has its own. */
    struct transfers thread = transfers_of("/proc/thread-self/io");
    JOIN(CHILD({ CHECK_EQ(pwrite(file, bytes, 700, 0), 700); }));
    before = after;
    after = transfers_of("/proc/self/io");
    CHECK(after.written_bytes - before.written_bytes >= 700);
    CHECK_EQ(transfers_of("/proc/thread-self/io").written_bytes, thread.written_bytes);
}

/* Each protocol has a line of names and one of as many numbers. */
static void counters_of_protocols(void)
{
    static const char *const files[] = {"/proc/net/snmp", "/proc/net/netstat"};
    static char names[8192], numbers[8192];
    bool asked = false, octets = false;
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(files[i], "r");
        CHECK(file != NULL);
        while (fgets(names, sizeof names, file) != NULL) {
            CHECK(fgets(numbers, sizeof numbers, file) != NULL);
            CHECK_EQ(strncmp(names, numbers, strcspn(names, " ")), 0);
            asked |= strncmp(names, "Icmp: ", 6) == 0 && strstr(names, " InEchos ") != NULL;
            octets |= strncmp(names, "IpExt: ", 7) == 0 && strstr(names, " InBcastOctets ") != NULL;
            int count = 0;
            for (char *at = names; (at = strchr(at, ' ')) != NULL; at++)
                count++;
            for (char *at = numbers; (at = strchr(at, ' ')) != NULL; at++)
                count--;
            CHECK_EQ(count, 0);
        }
        fclose(file);
    }
    CHECK(asked && octets);
    FILE *file = fopen("/proc/net/snmp6", "r");
    int found = 0;
    unsigned long number;
    CHECK(file != NULL);
    while (fgets(names, sizeof names, file) != NULL) {
        CHECK_EQ(sscanf(names, "%s %lu", numbers, &number), 2);
        found += strcmp(numbers, "Ip6InReceives") == 0 || strcmp(numbers, "Udp6NoPorts") == 0;
    }
    CHECK_EQ(found, 2);
    fclose(file);
}

/* Programs that look for batteries list them. */
static void kinds_of_devices(void)
{
    static const char *const kinds[] = {"/sys/class/power_supply", "/sys/class/thermal", "/sys/class/net"};
    for (int i = 0; i < 3; i++)
        close(FD(open(kinds[i], O_RDONLY | O_DIRECTORY)));
}

static const struct test tests[] = {
    TEST(own_call),
    TEST(counted_transfers),   TEST(counters_of_protocols), TEST(kinds_of_devices),
    TEST(polling_mounts),      TEST(waiting_for_mounts), TEST(forced_writes),   TEST(forced_text),
    TEST(links_to_open_files), TEST(settings_that_stay), TEST(pages_of_memory), TEST(others_pages),
    TEST(clocks_of_the_namespace), TEST(facts_of_descriptors), TEST(settings_of_epoll),
    TEST(load_averages),       TEST(namespaces),         TEST(namespaces_of_others), TEST(entering_namespaces),
    TEST(locks_are_listed),
};

int main(int argc, char **argv)
{
    return RUN_TESTS("answers_proc", tests, argc, argv);
}
