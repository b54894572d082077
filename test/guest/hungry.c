/*
 * Eats all the memory it is allowed.  usage: hungry [MOST_MIB]
 *
 * Takes memory by 1 MiB and touches every page, until an allocation fails honestly (exit 3) or MOST_MIB are held
 * (exit 0; 4096 without an argument), or something kills it. Before it ends it looks whether everything it wrote is
 * still there (exit 1 if not).
 */
#include "check.h"
#include <sys/mman.h>

enum { PIECE = 1 << 20, PAGE = 4096 };

int main(int argc, char **argv)
{
    size_t most = argc > 1 ? strtoul(argv[1], NULL, 10) : 4096, held = 0;
    /* The list of pieces is taken first, so that an honest end needs no more memory. */
    uint64_t **pieces = mmap(NULL, most * sizeof *pieces + PAGE, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(pieces != MAP_FAILED);
    bool refused = false;
    while (held < most) {
        uint64_t *piece = malloc(PIECE);
        if (!piece) {
            CHECK_EQ(errno, ENOMEM);
            refused = true;
            break;
        }
        for (size_t at = 0; at < PIECE / 8; at += PAGE / 8)
            piece[at] = held << 20 | at;
        pieces[held++] = piece;
        if (held % 64 == 0)
            dprintf(2, "%zu MiB\n", held);
    }
    for (size_t i = 0; i < held; i++)
        for (size_t at = 0; at < PIECE / 8; at += PAGE / 8)
            CHECK_EQ(pieces[i][at], i << 20 | at);
    dprintf(1, "ok hungry\n");
    dprintf(2, "%zu MiB held, %s\n", held, refused ? "more was refused" : "that was all we wanted");
    return refused ? 3 : 0;
}
