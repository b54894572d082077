/* One of several users of a directory.  usage: party DIR
 * Reads commands, a line each, and answers each by a line: what it found, "ok", or the error's name. N is a number from 0 to 9 by
 * which it knows a file; WAY is `try` or `wait`.
 *   open N NAME r|w|rw|new|dir   new: O_CREAT|O_EXCL            close N
 *   flock N sh|ex|un WAY         posix|ofd N r|w|u START LEN WAY
 *   getlk posix|ofd N r|w|u START LEN      free, or the kind, start, length and process of a lock
 *   put N AT TEXT   get N AT LEN   size N   age N (of its time, in ms)   cut N LEN   map N   poke AT TEXT   peek AT LEN
 *   rename OLD NEW   same N NAME (whether that is the file)   watch   told (names and events so far)
 *   add NAME TIMES flock|posix|ofd  (four children add one to a number in the file so often, each time under a lock)
 *   child COMMAND...   a child does that, and answers when it is done; kill: ends it   many N COUNT (locks every other byte) */
#include "check.h"
#include <fcntl.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>

static int files[10];
static char *mapped;
static int watch = -1;
static pid_t child;

static const char *name_of(int error)
{
    switch (error) {
    case 0: return "ok";
    case EAGAIN: return "EAGAIN";
    case EACCES: return "EACCES";
    case EEXIST: return "EEXIST";
    case EDEADLK: return "EDEADLK";
    case ENOLCK: return "ENOLCK";
    case EROFS: return "EROFS";
    case EBADF: return "EBADF";
    case ENOENT: return "ENOENT";
    case EINVAL: return "EINVAL";
    case ENFILE: return "ENFILE";
    default: return strerror(error);
    }
}

static const char *result(long value)
{
    return name_of(value < 0 ? errno : 0);
}

static short kind_of(const char *word)
{
    return *word == 'w' ? F_WRLCK : *word == 'u' ? F_UNLCK : F_RDLCK;
}

static void told(void)
{
    char buffer[16384] __attribute__((aligned(8)));
    ssize_t got;
    while ((got = read(watch, buffer, sizeof buffer)) > 0)
        for (char *at = buffer; at < buffer + got;) {
            const struct inotify_event *event = (const struct inotify_event *)at;
            const char *what = event->mask & IN_CREATE ? "create" : event->mask & IN_MODIFY ? "modify"
                : event->mask & IN_MOVED_FROM ? "from" : event->mask & IN_MOVED_TO ? "to" : "?";
            printf("%s:%s ", event->len ? event->name : "-", what);
            at += sizeof *event + event->len;
        }
    puts(".");
}

static int fcntl_for(const char *family, const char *way)
{
    bool waits = !strcmp(way, "wait");
    return !strcmp(family, "ofd") ? (waits ? F_OFD_SETLKW : F_OFD_SETLK) : waits ? F_SETLKW : F_SETLK;
}

static void obey(char **word, int words);

static void run_child(char **word, int words)
{
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        obey(word, words);
        fflush(stdout);
        /* It keeps its locks. */
        pause();
    }
}

static void many(int file, long count)
{
    long done = 0;
    for (; done < count; done++) {
        struct flock lock = {.l_type = F_WRLCK, .l_start = 2 * done, .l_len = 1};
        if (fcntl(file, F_OFD_SETLK, &lock) != 0)
            break;
    }
    printf("%ld %s\n", done, name_of(done < count ? errno : 0));
}

static void lock(char **word, int words)
{
    int n = words > 1 ? files[atoi(word[1])] : -1;
    if (!strcmp(word[0], "flock")) {
        int operation = !strcmp(word[2], "ex") ? LOCK_EX : !strcmp(word[2], "sh") ? LOCK_SH : LOCK_UN;
        puts(result(flock(n, operation | (strcmp(word[3], "wait") ? LOCK_NB : 0))));
    } else if (!strcmp(word[0], "getlk")) {
        struct flock found = {.l_type = kind_of(word[3]), .l_start = atol(word[4]), .l_len = atol(word[5])};
        int r = fcntl(files[atoi(word[2])], !strcmp(word[1], "ofd") ? F_OFD_GETLK : F_GETLK, &found);
        if (r != 0)
            puts(result(r));
        else if (found.l_type == F_UNLCK)
            puts("free");
        else
            printf("%c %ld %ld %s\n", found.l_type == F_WRLCK ? 'w' : 'r', (long)found.l_start, (long)found.l_len,
                   found.l_pid == -1 ? "file" : found.l_pid == 0 ? "unknown" : "process");
    } else {
        struct flock wanted = {.l_type = kind_of(word[2]), .l_start = atol(word[3]), .l_len = atol(word[4])};
        puts(result(fcntl(n, fcntl_for(word[0], word[5]), &wanted)));
    }
}

static void content(char **word, int words)
{
    int n = words > 1 ? files[atoi(word[1]) % 10] : -1;
    char text[4096] = "";
    struct stat stat_, other;
    if (!strcmp(word[0], "put"))
        puts(result(pwrite(n, word[3], strlen(word[3]), atol(word[2]))));
    else if (!strcmp(word[0], "get")) {
        pread(n, text, (size_t)atol(word[3]), atol(word[2])) < 0 ? puts(result(-1)) : puts(text);
    } else if (!strcmp(word[0], "size") && fstat(n, &stat_) == 0)
        printf("%ld\n", (long)stat_.st_size);
    else if (!strcmp(word[0], "age") && fstat(n, &stat_) == 0) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        printf("%ld\n", (now.tv_sec - stat_.st_mtim.tv_sec) * 1000 + (now.tv_nsec - stat_.st_mtim.tv_nsec) / 1000000);
    } else if (!strcmp(word[0], "cut"))
        puts(result(ftruncate(n, atol(word[2]))));
    else if (!strcmp(word[0], "map")) {
        mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, n, 0);
        puts(result(mapped == MAP_FAILED ? -1 : 0));
    } else if (!strcmp(word[0], "poke")) {
        memcpy(mapped + atol(word[1]), word[2], strlen(word[2]));
        puts("ok");
    } else if (!strcmp(word[0], "peek")) {
        memcpy(text, mapped + atol(word[1]), (size_t)atol(word[2]));
        puts(text);
    } else if (!strcmp(word[0], "same"))
        puts(fstat(n, &stat_) == 0 && stat(word[2], &other) == 0 && stat_.st_ino == other.st_ino ? "yes" : "no");
    else
        puts("?");
}

static void add(const char *name, long times, const char *family)
{
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        CHECK((children[i] = fork()) >= 0);
        if (children[i] != 0)
            continue;
        for (long at = 0; at < times; at++) {
            char text[32] = "";
            struct flock all = {.l_type = F_WRLCK};
            int file = open(name, O_RDWR | O_CLOEXEC);
            CHECK(file >= 0);
            OK(*family == 'f' ? flock(file, LOCK_EX) : fcntl(file, fcntl_for(family, "wait"), &all));
            CHECK(pread(file, text, sizeof text - 1, 0) >= 0);
            int len = snprintf(text, sizeof text, "%ld\n", atol(text) + 1);
            CHECK_EQ(pwrite(file, text, (size_t)len, 0), len);
            if (at % 2 == 0) {
                all.l_type = F_UNLCK;
                OK(*family == 'f' ? flock(file, LOCK_UN) : fcntl(file, fcntl_for(family, "try"), &all));
            }
            OK(close(file));
            /* Others' turn. */
            usleep(2000);
        }
        _exit(0);
    }
    int good = 0, status;
    for (int i = 0; i < 4; i++)
        good += waitpid(children[i], &status, 0) == children[i] && status == 0;
    puts(good == 4 ? "ok" : "a child failed");
}

static void obey(char **word, int words)
{
    if (words == 0)
        puts("?");
    else if (!strcmp(word[0], "open")) {
        static const struct { const char *name; int flags; } modes[] = {{"r", O_RDONLY}, {"w", O_WRONLY},
            {"rw", O_RDWR | O_CREAT}, {"new", O_RDWR | O_CREAT | O_EXCL}, {"dir", O_RDONLY | O_DIRECTORY}};
        int flags = 0;
        for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
            flags = strcmp(word[3], modes[i].name) ? flags : modes[i].flags;
        int opened = open(word[2], flags | O_CLOEXEC, 0666);
        puts(result(opened));
        files[atoi(word[1])] = opened;
    } else if (!strcmp(word[0], "close"))
        puts(result(close(files[atoi(word[1])])));
    else if (!strcmp(word[0], "flock") || !strcmp(word[0], "posix") || !strcmp(word[0], "ofd") || !strcmp(word[0], "getlk"))
        lock(word, words);
    else if (!strcmp(word[0], "rename"))
        puts(result(rename(word[1], word[2])));
    else if (!strcmp(word[0], "watch")) {
        CHECK((watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) >= 0);
        puts(result(inotify_add_watch(watch, ".", IN_CREATE | IN_MODIFY | IN_MOVE)));
    } else if (!strcmp(word[0], "told"))
        told();
    else if (!strcmp(word[0], "child"))
        run_child(word + 1, words - 1);
    else if (!strcmp(word[0], "kill")) {
        OK(kill(child, SIGKILL));
        CHECK_EQ(waitpid(child, NULL, 0), child);
        puts("ok");
    } else if (!strcmp(word[0], "add"))
        add(word[1], atol(word[2]), word[3]);
    else if (!strcmp(word[0], "many"))
        many(files[atoi(word[1])], atol(word[2]));
    else
        content(word, words);
}

int main(int argc, char **argv)
{
    char line[4096];
    CHECK(argc == 2 && chdir(argv[1]) == 0);
    setvbuf(stdout, NULL, _IOLBF, 4096);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        char *word[16], *rest = NULL;
        int words = 0;
        for (char *at = strtok_r(line, " \n", &rest); at && words < 16; at = strtok_r(NULL, " \n", &rest))
            word[words++] = at;
        obey(word, words);
    }
    return 0;
}
