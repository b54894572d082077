# Compiles, links, archives and runs a program of several files.  usage: sh compile.sh
set -eu
dir=$(mktemp -d "${TMPDIR:-/tmp}/compile.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat > sieve.c <<'END'
#include <stdlib.h>
int count_primes(int below)
{
    char *composite = calloc(below, 1);
    int count = 0;
    for (int i = 2; i < below; i++) {
        count += !composite[i];
        for (long j = (long)i * i; !composite[i] && j < below; j += i)
            composite[j] = 1;
    }
    free(composite);
    return count;
}
END
cat > main.c <<'END'
#include <math.h>
#include <stdio.h>
#include <string.h>
int count_primes(int below);
int main(int argc, char **argv)
{
    printf("%d primes, sqrt %.6f, %d arguments, %s\n", count_primes(1000000), sqrt(2), argc - 1, strrchr(argv[0], '/'));
    return 3;
}
END
gcc -O2 -Wall -c sieve.c main.c
gcc -o dynamic main.o sieve.o -lm
ar rcs libsieve.a sieve.o
gcc -static -o static main.o -L. -lsieve -lm
gcc -O1 -fPIC -shared -o libshared.so sieve.c
gcc -o shared main.c -L. -lshared -lm -Wl,-rpath,"$dir"
for program in dynamic static shared; do
    ./$program a b || echo "exit $?"
done
echo 'int main(void) { return x; }' > broken.c
gcc broken.c 2> errors || grep -c "undeclared" errors
nm libsieve.a | grep -c ' T count_primes'
echo '#include <stdio.h>' | gcc -E - | grep -c 'extern int printf'
