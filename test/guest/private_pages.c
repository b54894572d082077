// Sums up a file's first pages through a private mapping, as they are and after it has written to each; then ends.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

enum { BYTES = 64 * 4096 };

static unsigned long sum(const unsigned char *bytes) {
    unsigned long total = 0;
    for (int at = 0; at < BYTES; at++)
        total = total * 31 + bytes[at];
    return total;
}

int main(int argc, char **argv) {
    int fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    unsigned char *bytes = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (fd < 0 || bytes == MAP_FAILED) {
        perror("private_pages");
        return 1;
    }
    unsigned long before = sum(bytes);
    for (int at = 0; at < BYTES; at += 4096)
        bytes[at] ^= 0x55;
    printf("%lu %lu\n", before, sum(bytes));
    return 0;
}
