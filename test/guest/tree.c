/* Going through directories and asking for the attributes of what is listed: whatever is changed meanwhile is seen at once. */
#include "check.h"
#include <sys/mman.h>

#define FILES 100

static void name_of(char *name, int number)
{
    snprintf(name, 32, "f%03d", number);
}

static void make_files(const char *dir, int count)
{
    char path[96], name[32];
    OK(mkdir(dir, 0755));
    for (int i = 0; i < count; i++) {
        name_of(name, i);
        snprintf(path, sizeof path, "%s/%s", dir, name);
        write_file(path, "x", 0644);
    }
}

/* How many entries a stream still has, "." and ".." left out, and whether `wanted` is among them. */
static int rest_of(DIR *stream, const char *wanted, bool *found)
{
    int count = 0;
    *found = false;
    for (struct dirent *entry; (entry = readdir(stream));) {
        *found |= wanted && strcmp(entry->d_name, wanted) == 0;
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    return count;
}

/* Asks for the attributes of all entries in the order of the list; `change` is called once with the names of two that follow. */
static void ask_in_order(const char *dir, void (*change)(int dir, const char *done, const char *next))
{
    DIR *stream = opendir(dir);
    CHECK(stream != NULL);
    int at = dirfd(stream), count = 0;
    static char names[FILES][32];
    for (struct dirent *entry; (entry = readdir(stream));)
        if (entry->d_name[0] != '.')
            snprintf(names[count++], 32, "%.31s", entry->d_name);
    CHECK_EQ(count, FILES);
    for (int i = 0; i < count; i++) {
        struct stat info;
        if (i == 20)
            change(at, names[10], names[25]);
        else if (i != 25)
            OK(fstatat(at, names[i], &info, AT_SYMLINK_NOFOLLOW));
    }
    OK(closedir(stream));
}

static void written(int dir, const char *done, const char *next)
{
    const char *both[] = {done, next};
    for (int i = 0; i < 2; i++) {
        struct stat info;
        OK(fstatat(dir, both[i], &info, 0));
        CHECK_EQ(info.st_size, 1);
        int fd = FD(openat(dir, both[i], O_WRONLY | O_APPEND | O_CLOEXEC));
        CHECK_EQ(write(fd, "yz", 2), 2);
        OK(fstatat(dir, both[i], &info, AT_SYMLINK_NOFOLLOW));
        CHECK_EQ(info.st_size, 3);
        OK(close(fd));
        OK(fstatat(dir, both[i], &info, AT_SYMLINK_NOFOLLOW));
        CHECK_EQ(info.st_size, 3);
        OK(fchmodat(dir, both[i], 0600, 0));
        OK(fstatat(dir, both[i], &info, AT_SYMLINK_NOFOLLOW));
        CHECK_EQ(info.st_mode & 07777, 0600);
    }
}

static void replaced(int dir, const char *done, const char *next)
{
    struct stat before, after, info;
    OK(fstatat(dir, done, &before, AT_SYMLINK_NOFOLLOW));
    OK(fstatat(dir, next, &after, AT_SYMLINK_NOFOLLOW));
    OK(renameat(dir, done, dir, next));
    CHECK_ERR(fstatat(dir, done, &info, AT_SYMLINK_NOFOLLOW), ENOENT);
    OK(fstatat(dir, next, &info, AT_SYMLINK_NOFOLLOW));
    CHECK_EQ(info.st_ino, before.st_ino);
    OK(symlinkat("nowhere", dir, done));
    OK(fstatat(dir, done, &info, AT_SYMLINK_NOFOLLOW));
    CHECK(S_ISLNK(info.st_mode));
    CHECK_ERR(fstatat(dir, done, &info, 0), ENOENT);
    OK(unlinkat(dir, next, 0));
    CHECK_ERR(fstatat(dir, next, &info, AT_SYMLINK_NOFOLLOW), ENOENT);
    OK(mkdirat(dir, next, 0700));
    OK(fstatat(dir, next, &info, AT_SYMLINK_NOFOLLOW));
    CHECK(S_ISDIR(info.st_mode));
}

static void linked(int dir, const char *done, const char *next)
{
    struct stat info;
    OK(linkat(dir, done, dir, "other", 0));
    OK(fstatat(dir, done, &info, AT_SYMLINK_NOFOLLOW));
    CHECK_EQ(info.st_nlink, 2);
    OK(linkat(dir, next, dir, "another", 0));
    OK(fstatat(dir, next, &info, AT_SYMLINK_NOFOLLOW));
    CHECK_EQ(info.st_nlink, 2);
    OK(unlinkat(dir, next, 0));
    OK(fstatat(dir, "another", &info, AT_SYMLINK_NOFOLLOW));
    CHECK_EQ(info.st_nlink, 1);
    CHECK_ERR(fstatat(dir, next, &info, 0), ENOENT);
}

static void changes_are_seen(void)
{
    make_files("one", FILES);
    ask_in_order("one", written);
    ask_in_order("one", replaced);
    make_files("two", FILES);
    ask_in_order("two", linked);
}

static void who_may_not_search_learns_nothing(void)
{
    NEEDS_ROOT();
    make_files("d", 20);
    OK(chmod("d", 0755));
    OK(chmod(".", 0755));
    int at = FD(open("d", O_RDONLY | O_DIRECTORY));
    DIR *stream = fdopendir(dup(at));
    bool found;
    CHECK_EQ(rest_of(stream, "f003", &found), 20);
    struct stat info;
    for (int i = 0; i < 3; i++) {
        char name[32];
        name_of(name, i);
        OK(fstatat(at, name, &info, AT_SYMLINK_NOFOLLOW));
    }
    JOIN(CHILD({
        OK(fchmod(at, 0700));
        OK(setgid(12345));
        OK(setuid(12345));
        CHECK_ERR(fstatat(at, "f001", &info, AT_SYMLINK_NOFOLLOW), EACCES);
        CHECK_ERR(fstatat(at, "f004", &info, AT_SYMLINK_NOFOLLOW), EACCES);
    }));
    OK(closedir(stream));
}

/* One writes and tells how much, another asks by listings: no answer is older than what was told. */
static void no_answer_is_old(void)
{
    enum { COUNT = 40 };
    make_files("d", COUNT);
    volatile int *told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(told != MAP_FAILED);
    int rounds = (int)scaled(60);
    pid_t writer = CHILD({
        int at = FD(open("d", O_RDONLY | O_DIRECTORY));
        for (int round = 0; round < rounds; round++)
            for (int i = 0; i < COUNT; i++) {
                char name[32];
                name_of(name, (i * 7 + round) % COUNT);
                int fd = FD(openat(at, name, O_WRONLY | O_APPEND | O_CLOEXEC));
                CHECK_EQ(write(fd, "x", 1), 1);
                if (round & 1)
                    OK(close(fd));
                __atomic_fetch_add(&told[(i * 7 + round) % COUNT], 1, __ATOMIC_SEQ_CST);
                if (!(round & 1))
                    OK(close(fd));
            }
    });
    int status;
    while (waitpid(writer, &status, WNOHANG) == 0) {
        DIR *stream = opendir("d");
        CHECK(stream != NULL);
        for (struct dirent *entry; (entry = readdir(stream));) {
            if (entry->d_name[0] == '.')
                continue;
            int number = atoi(entry->d_name + 1), before = __atomic_load_n(&told[number], __ATOMIC_SEQ_CST);
            struct stat info;
            OK(fstatat(dirfd(stream), entry->d_name, &info, AT_SYMLINK_NOFOLLOW));
            if (info.st_size < before + 1)
                FAIL("%s has %lld bytes, want %d", entry->d_name, (long long)info.st_size, before + 1);
        }
        OK(closedir(stream));
    }
    CHECK_EQ(status, 0);
}

/* A name that goes to and fro between two directories is in one of them, and its attributes are its own. */
static void renames_while_others_list(void)
{
    make_files("a", 30);
    make_files("b", 30);
    write_file("a/moved", "12345", 0640);
    int rounds = (int)scaled(400);
    pid_t mover = CHILD({
        for (int round = 0; round < rounds; round++) {
            OK(rename("a/moved", "b/moved"));
            OK(rename("b/moved", "a/moved"));
        }
    });
    int status;
    while (waitpid(mover, &status, WNOHANG) == 0)
        for (int i = 0; i < 2; i++) {
            DIR *stream = opendir(i ? "b" : "a");
            CHECK(stream != NULL);
            for (struct dirent *entry; (entry = readdir(stream));) {
                struct stat info;
                bool moves = strcmp(entry->d_name, "moved") == 0;
                if (fstatat(dirfd(stream), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
                    CHECK(moves && errno == ENOENT);
                    continue;
                }
                if (entry->d_name[0] != '.')
                    CHECK_EQ(info.st_size, moves ? 5 : 1);
            }
            OK(closedir(stream));
        }
    CHECK_EQ(status, 0);
    struct stat info;
    OK(stat("a/moved", &info));
    CHECK_ERR(stat("b/moved", &info), ENOENT);
}

/* A directory that was there before the program: its listing shows what is made in it from its next beginning on. */
static void a_directory_of_the_host(void)
{
    char dir[512];
    ssize_t length = readlink("/proc/self/exe", dir, sizeof dir - 1);
    CHECK(length > 0);
    dir[length] = 0;
    *strrchr(dir, '/') = 0;
    DIR *stream = opendir(dir);
    CHECK(stream != NULL);
    int at = dirfd(stream);
    if (faccessat(at, ".", W_OK, 0) != 0)
        SKIP("%s cannot be changed", dir);
    char made[64];
    snprintf(made, sizeof made, "made-by-tree.%d", (int)getpid());
    bool found;
    int before = rest_of(stream, made, &found);
    CHECK(!found && before > 0);
    CHECK(readdir(stream) == NULL);
    rewinddir(stream);
    CHECK(readdir(stream) != NULL);
    OK(mkdirat(at, made, 0755));
    rest_of(stream, made, &found);
    rewinddir(stream);
    CHECK_EQ(rest_of(stream, made, &found), before + 1);
    CHECK(found);
    OK(fsync(at));
    struct stat info;
    OK(fstatat(at, made, &info, AT_SYMLINK_NOFOLLOW));
    CHECK(S_ISDIR(info.st_mode));
    OK(unlinkat(at, made, AT_REMOVEDIR));
    rewinddir(stream);
    CHECK_EQ(rest_of(stream, made, &found), before);
    CHECK(!found);
    CHECK_ERR(fstatat(at, made, &info, AT_SYMLINK_NOFOLLOW), ENOENT);
    OK(closedir(stream));
}

/* Listings and attributes agree on numbers and types. */
static void numbers_and_types_agree(void)
{
    const char *const dirs[] = {"/usr", "/usr/bin", "/usr/lib", "/usr/share", "/etc"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        DIR *stream = opendir(dirs[i]);
        if (!stream)
            continue;
        struct dirent *entry;
        for (int count = 0; count < 500 && (entry = readdir(stream)); count++) {
            struct stat info;
            if (strcmp(entry->d_name, "..") == 0 || fstatat(dirfd(stream), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0)
                continue;
            if (entry->d_type != DT_UNKNOWN)
                CHECK_EQ(entry->d_type, IFTODT(info.st_mode));
            /* A mount point shows what is mounted. */
            if (!S_ISDIR(info.st_mode) && strcmp(dirs[i], "/etc") != 0)
                CHECK_EQ(entry->d_ino, info.st_ino);
        }
        OK(closedir(stream));
    }
}

/* What a directory says of reads, writes and positions. */
static void directories_are_no_files(void)
{
    int fd = FD(open("/usr", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    char byte = 0, list[1024];
    CHECK_ERR(read(fd, &byte, 1), EISDIR);
    CHECK_ERR(pread(fd, &byte, 1, 0), EISDIR);
    CHECK_ERR(write(fd, &byte, 1), EBADF);
    CHECK_ERR(ftruncate(fd, 0), EINVAL);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == ENODEV);
    /* Too little room for a name is told, and nothing is lost. */
    CHECK_ERR(syscall(SYS_getdents64, fd, list, 8), EINVAL);
    long all = 0, got;
    while ((got = syscall(SYS_getdents64, fd, list, sizeof list)) > 0)
        all += got;
    CHECK_EQ(got, 0);
    CHECK_EQ(syscall(SYS_getdents64, fd, list, sizeof list), 0);
    OK(lseek(fd, 0, SEEK_SET));
    long again = 0;
    while ((got = syscall(SYS_getdents64, fd, list, 280)) > 0)
        again += got;
    CHECK_EQ(again, all);
    OK(close(fd));
}

/* Far more directories open than are kept, each in the middle of its listing. */
static void many_streams(void)
{
    enum { COUNT = 300 };
    static DIR *streams[COUNT];
    char name[32];
    for (int i = 0; i < COUNT; i++) {
        name_of(name, i);
        make_files(name, 3);
        streams[i] = opendir(name);
        CHECK(streams[i] != NULL && readdir(streams[i]) != NULL);
    }
    for (int i = 0; i < COUNT; i++) {
        bool found;
        CHECK(rest_of(streams[i], "f001", &found) <= 3);
        struct stat info;
        OK(fstatat(dirfd(streams[i]), "f001", &info, AT_SYMLINK_NOFOLLOW));
        CHECK_EQ(info.st_size, 1);
    }
    for (int i = 0; i < COUNT; i++)
        OK(closedir(streams[i]));
}

static const struct test tests[] = {
    TEST(changes_are_seen),
    TEST(who_may_not_search_learns_nothing),
    TEST(no_answer_is_old),
    TEST(renames_while_others_list),
    TEST(a_directory_of_the_host),
    TEST(numbers_and_types_agree),
    TEST(directories_are_no_files),
    TEST(many_streams),
};

int main(int argc, char **argv)
{
    return RUN_TESTS("tree", tests, argc, argv);
}
