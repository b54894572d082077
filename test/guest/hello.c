/* The smallest program: one line of output; with an argument it exits 7. */
#include "check.h"

int main(int argc, char **argv)
{
    (void)argv;
    puts("ok hello");
    return argc > 1 ? 7 : 0;
}
