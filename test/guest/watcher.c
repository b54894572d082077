/* Watches a directory and tells what it is told, a line an event.  usage: watcher DIR MODE
 * MODE: `waits`: for each event; `polls`: by an epoll set, edge-triggered; `early`: the same, by a thread that waits before there is
 * anything to wait for; `later`: reads all there is when a line comes on its
 * standard input, and says "end" then; `hoards`: all that is in the directory as well, and tells of nothing. */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/inotify.h>

static void say(const struct inotify_event *event)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } names[] = {
        {IN_ACCESS, "ACCESS"}, {IN_MODIFY, "MODIFY"}, {IN_ATTRIB, "ATTRIB"}, {IN_CLOSE_WRITE, "CLOSE_WRITE"},
        {IN_CLOSE_NOWRITE, "CLOSE_NOWRITE"}, {IN_OPEN, "OPEN"}, {IN_MOVED_FROM, "MOVED_FROM"}, {IN_MOVED_TO, "MOVED_TO"},
        {IN_CREATE, "CREATE"}, {IN_DELETE, "DELETE"}, {IN_DELETE_SELF, "DELETE_SELF"}, {IN_MOVE_SELF, "MOVE_SELF"},
        {IN_UNMOUNT, "UNMOUNT"}, {IN_Q_OVERFLOW, "Q_OVERFLOW"}, {IN_IGNORED, "IGNORED"}, {IN_ISDIR, "ISDIR"},
    };
    static uint32_t cookie;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (event->mask & names[i].bit)
            printf("%s ", names[i].name);
    if (event->mask & IN_MOVED_FROM)
        cookie = event->cookie;
    else if (event->mask & IN_MOVED_TO && event->cookie == cookie)
        printf("same ");
    printf("%s\n", event->len ? event->name : "-");
    fflush(stdout);
}

/* Reads once; 0: there is nothing. */
static int tell(int fd)
{
    char buffer[8192] __attribute__((aligned(8)));
    ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0) {
        CHECK_EQ(errno, EAGAIN);
        return 0;
    }
    for (char *at = buffer; at < buffer + got;) {
        const struct inotify_event *event = (const struct inotify_event *)at;
        say(event);
        at += sizeof *event + event->len;
    }
    return 1;
}

/* Tells of a set's events as they come. */
static void *tell_all(void *argument)
{
    const int *fds = argument;
    struct epoll_event event;
    for (;;) {
        CHECK_EQ(epoll_wait(fds[0], &event, 1, -1), 1);
        while (tell(fds[1]))
            ;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int waits = strcmp(argv[2], "waits") == 0;
    int fd = FD(inotify_init1(waits ? 0 : IN_NONBLOCK));
    uint32_t mask = IN_ALL_EVENTS & ~(IN_ACCESS | IN_OPEN | IN_CLOSE_NOWRITE);
    int early = strcmp(argv[2], "early") == 0;
    if (!early)
        FD(inotify_add_watch(fd, argv[1], mask));
    if (strcmp(argv[2], "hoards") == 0) {
        OK(chdir(argv[1]));
        DIR *dir = opendir(".");
        CHECK(dir != NULL);
        for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
            FD(inotify_add_watch(fd, entry->d_name, mask));
        printf("ready\n");
        fflush(stdout);
        for (;;)
            pause();
    }
    if (strcmp(argv[2], "later") == 0) {
        char line[16];
        do {
            printf("ready\n");
            fflush(stdout);
            if (fgets(line, sizeof line, stdin) == NULL)
                return 0;
            while (tell(fd))
                ;
            printf("end\n");
        } while (1);
    }
    int epoll = FD(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    OK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    int fds[] = {epoll, fd};
    if (early) {
        pthread_t thread;
        PT(pthread_create(&thread, NULL, tell_all, fds));
        sleep_ms(50);
        FD(inotify_add_watch(fd, argv[1], mask));
        printf("ready\n");
        fflush(stdout);
        PT(pthread_join(thread, NULL));
    }
    printf("ready\n");
    fflush(stdout);
    while (waits)
        CHECK(tell(fd));
    tell_all(fds);
}
