// Servers that are asked by a line and answer by one, a connection each; and numbers that look random.
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// Serves for ever; the result is that of a server that cannot begin, or go on.
static int serve_lines(const char *port, int (*serve)(const char *line, char *answer, size_t size)) {
    int server = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (server < 0 || bind(server, (void *)&here, sizeof here) || listen(server, 16)) return perror("listen"), 1;
    for (;;) {
        int client = accept(server, NULL, NULL);
        if (client < 0) return perror("accept"), 1;
        char line[64], answer[96];
        size_t have = 0;
        ssize_t got;
        while (have < sizeof line - 1 && (got = read(client, line + have, sizeof line - 1 - have)) > 0) {
            have += got;
            if (memchr(line, '\n', have)) break;
        }
        line[have] = 0;
        int size = serve(line, answer, sizeof answer);
        if (write(client, answer, size) != size) perror("write");
        close(client);
    }
}
