// Round trips of small messages over TCP: a server that echoes, and a client that measures.
//
//   roundtrip serve PORT                     serves one connection after another
//   roundtrip ask HOST PORT COUNT [BYTES]    prints the median and the 99th percentile in ns, on one line
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 65536

static void fail(const char *what) {
    fprintf(stderr, "roundtrip: cannot %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct sockaddr_in address(const char *host, const char *port) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    if (inet_pton(AF_INET, host, &addr.sin_addr) != 1) {
        errno = EINVAL;
        fail("read the address");
    }
    return addr;
}

// Small messages go out at once.
static int open_socket(void) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) fail("make a socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void send_all(int fd, const char *bytes, size_t len) {
    for (ssize_t sent; len > 0; bytes += sent, len -= sent)
        if ((sent = send(fd, bytes, len, MSG_NOSIGNAL)) <= 0) fail("send");
}

__attribute__((noreturn)) static void serve(const char *port) {
    static char buffer[MOST];
    struct sockaddr_in addr = address("0.0.0.0", port);
    int listener = open_socket(), one = 1;
    if (bind(listener, (void *)&addr, sizeof addr) != 0) fail("bind");
    if (listen(listener, 16) != 0) fail("listen");
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) fail("accept");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (ssize_t got; (got = recv(fd, buffer, sizeof buffer, 0)) > 0;) send_all(fd, buffer, got);
        close(fd);
    }
}

static int compare(const void *a, const void *b) {
    long long x = *(const long long *)a, y = *(const long long *)b;
    return (x > y) - (x < y);
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int ask(const char *host, const char *port, int count, size_t bytes) {
    static char sent[MOST], got[MOST];
    struct sockaddr_in addr = address(host, port);
    long long *took = calloc(count, sizeof *took);
    int fd = open_socket();
    if (!took || count < 1 || bytes < 1 || bytes > MOST) fail("use these numbers");
    if (connect(fd, (void *)&addr, sizeof addr) != 0) fail("connect");
    for (int turn = -count / 10; turn < count; turn++) {
        memset(sent, turn & 0xff, bytes);
        long long start = now_ns();
        send_all(fd, sent, bytes);
        if (recv(fd, got, bytes, MSG_WAITALL) != (ssize_t)bytes) fail("receive");
        if (turn >= 0) took[turn] = now_ns() - start;
        if (memcmp(sent, got, bytes) != 0) {
            errno = EBADMSG;
            fail("recognise the answer");
        }
    }
    qsort(took, count, sizeof *took, compare);
    printf("%lld %lld\n", took[count / 2], took[(long long)count * 99 / 100]);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "serve") == 0) serve(argv[2]);
    if (argc >= 5 && strcmp(argv[1], "ask") == 0)
        return ask(argv[2], argv[3], atoi(argv[4]), argc > 5 ? (size_t)atoi(argv[5]) : 64);
    fprintf(stderr, "usage: roundtrip serve PORT | ask HOST PORT COUNT [BYTES]\n");
    return 2;
}
