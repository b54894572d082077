# Some 60 applets of busybox and its shell; prints only what is the same everywhere.  usage: busybox sh busybox.sh
set -eu
bb=${BUSYBOX:-busybox}
dir=$($bb mktemp -d "${TMPDIR:-/tmp}/busybox.XXXXXX")
trap '$bb rm -rf "$dir"' EXIT
cd "$dir"
run() { name=$1; shift; printf '%s: ' "$name"; "$@"; }

run echo $bb echo one two
run seq $bb seq -s , 1 10
$bb seq 1 1000 > numbers
run head $bb head -n 1 numbers
run tail $bb tail -n 1 numbers
run wc sh -c "$bb wc < numbers"
run md5sum $bb md5sum numbers
run sha256sum $bb sha256sum numbers
run sha512sum sh -c "$bb sha512sum numbers | $bb cut -c 1-20"
run grep $bb grep -c 7 numbers
run sed sh -c "$bb sed -n '10,12s/1/x/p' numbers | $bb tr '\n' ' '; echo"
run awk $bb awk '{ s += $1 } END { print s }' numbers
run sort sh -c "$bb sort -rn numbers | $bb head -n 1"
run uniq sh -c "$bb cut -c 1 numbers | $bb sort | $bb uniq -c | $bb tr -s ' ' | $bb tr '\n' ';'; echo"
run tr sh -c "echo hello | $bb tr a-z A-Z"
run cut sh -c "echo a:b:c | $bb cut -d : -f 2"
run rev sh -c "echo abc | $bb rev"
run tac sh -c "$bb tac numbers | $bb head -n 1"
run nl sh -c "$bb head -n 2 numbers | $bb nl | $bb tr -s ' \t\n' ' '; echo"
run od sh -c "printf 'AB' | $bb od -An -tx1"
run hexdump sh -c "printf 'AB' | $bb hexdump -C | $bb head -n 1"
run base64 sh -c "printf 'dormouse' | $bb base64"
run xxd sh -c "printf 'AB' | $bb xxd -p"
run dd sh -c "$bb dd if=numbers of=part bs=100 count=3 2>/dev/null; $bb wc -c < part"
run cp sh -c "$bb cp numbers copy && $bb cmp numbers copy && echo same"
run mv sh -c "$bb mv copy moved && ls"
run ln sh -c "$bb ln -s moved link && $bb readlink link"
run hard sh -c "$bb ln moved hard && $bb stat -c %h moved"
run chmod sh -c "$bb chmod 640 moved && $bb stat -c %a moved"
run touch sh -c "$bb touch -d '2020-01-02 03:04:05' moved && TZ=UTC $bb date -r moved +%Y-%m-%dT%H:%M:%S"
run mkdir sh -c "$bb mkdir -p a/b/c && $bb find a | $bb sort | $bb tr '\n' ' '; echo"
run rmdir sh -c "$bb rmdir a/b/c && $bb ls a/b | $bb wc -l"
run gzip sh -c "$bb gzip -c numbers | $bb gunzip -c | $bb cmp - numbers && echo same"
run bzip2 sh -c "$bb bzip2 -c numbers | $bb bunzip2 -c | $bb cmp - numbers && echo same"
run tar sh -c "$bb tar cf t.tar numbers moved && $bb tar tf t.tar | $bb tr '\n' ' '; echo"
run cpio sh -c "echo numbers | $bb cpio -o -H newc 2>/dev/null | $bb cpio -t 2>/dev/null"
run paste sh -c "$bb paste -d - part part | $bb head -n 1"
run diff sh -c "$bb diff numbers part > d || $bb head -n 1 d"
run xargs sh -c "$bb head -n 5 numbers | $bb xargs -n 2 echo | $bb tr '\n' ';'; echo"
run expr $bb expr 6 '*' 7
run test sh -c "$bb test -f numbers && echo yes"
run basename $bb basename /a/b/c.txt .txt
run dirname $bb dirname /a/b/c.txt
run realpath sh -c "test \"\$($bb realpath link)\" = \"\$($bb pwd -P)/moved\" && echo same"
run env sh -c "$bb env -i A=1 $bb env"
run printf $bb printf '%05d %s\n' 42 x
run factor $bb factor 1234567
run date sh -c "$bb date -u -d @1000000000 +%F_%T"
run sleep sh -c "$bb sleep 0.1 && echo slept"
run timeout sh -c "$bb timeout 1 $bb sleep 20 || echo \$?"
run kill sh -c "$bb sleep 20 & $bb kill \$!; wait \$! || echo \$?"
run tee sh -c "echo teed | $bb tee out && $bb cat out"
run du sh -c "$bb du -a part | $bb cut -f 2"
run truncate sh -c "$bb truncate -s 12345 hole && $bb stat -c %s hole"
run mkfifo sh -c "$bb mkfifo pipe; echo through > pipe & $bb cat pipe"
run uname $bb uname -s
run id sh -c "$bb id -u > /dev/null && echo ok"
run ps sh -c "$bb ps | $bb grep -q 'busybo[x]\|s[h]' && echo ok"
run dc sh -c "echo '3 4 + p' | $bb dc"
run bc sh -c "echo '2^100' | $bb bc"
run nproc sh -c "test \$($bb nproc) -ge 1 && echo ok"
run shell $bb sh -c 'x=abcdef; echo ${x#ab} ${x%ef} ${#x} $((7 * 6)); f() { local y=1; return 3; }; f || echo $?
    for i in 1 2 3; do [ $i = 2 ] && continue; echo $i; done | while read n; do echo "<$n>"; done
    case foo in f*) echo matched;; esac; (exit 4) || echo $?; cat <<END
here $x
END'
