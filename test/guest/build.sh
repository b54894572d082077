#!/bin/sh
# Builds every guest program twice, dynamic into OUT/ and static into OUT/static/.  usage: build.sh [OUT] [NAME...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../out}
[ $# -gt 0 ] && shift
mkdir -p "$out/static"
[ $# -gt 0 ] || set -- $(cd "$here" && ls *.c | sed 's/\.c$//')
for name; do
    ${CC:-gcc} -O2 -Wall -Wextra -Werror -pthread -o "$out/$name" "$here/$name.c"
    ${CC:-gcc} -O2 -Wall -Wextra -Werror -pthread -static -o "$out/static/$name" "$here/$name.c"
done
