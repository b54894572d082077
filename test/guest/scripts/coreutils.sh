# The GNU tools on a small tree.  usage: sh coreutils.sh
set -eu
export LC_ALL=C TZ=UTC
dir=$(mktemp -d "${TMPDIR:-/tmp}/coreutils.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
seq 1 5000 > numbers
sort -R --random-source=numbers numbers | sort -n | cmp - numbers && echo sorted
sha256sum numbers | cut -c 1-32; md5sum < numbers; b2sum numbers | cut -c 1-32; cksum numbers
mkdir -p tree/a/b tree/c; cp numbers tree/a; ln -s ../a/numbers tree/c/link; ln tree/a/numbers tree/c/hard
cp -a tree copy; diff -r tree copy && echo "trees equal"
find copy -type l -printf '%p -> %l\n'; find copy -type f | sort | xargs wc -l
mv copy/a copy/z; ls -R copy; rm -rf copy
touch -d '2001-02-03 04:05:06' tree/a/numbers; stat -c '%n %s %h %a %y' tree/a/numbers
date -u -d @1234567890 +%FT%T; date -d '2000-02-28 +2 days' +%F
chmod u=rwx,g=rx,o= tree; stat -c %A tree; install -m 0711 numbers installed; stat -c %a installed
dd if=numbers of=out bs=1k count=5 skip=2 conv=notrunc status=none; tail -c 10 out | od -c
split -b 5000 -d numbers part.; cat part.* | cmp - numbers && ls part.* | wc -l
head -n 3 numbers | tee copy1 copy2 | paste -s -d,; comm -12 copy1 copy2 | wc -l; join copy1 copy2 | head -n 1
tac copy1 | nl | expand | fold -w 5 | head -n 4; printf 'a\tb\n' | expand -t 4; echo hello world | fmt -w 5
tr -d 0-8 < numbers | sort -u | wc -l; cut -c 1 numbers | sort | uniq -c | sort -rn | awk '{print $2, $1}' | head -n 3
base64 copy1 | base64 -d | cmp - copy1; echo 'x y' | sed 's/\(x\) \(y\)/\2 \1/'; grep -E '^(12|34)5$' numbers
truncate -s 1M sparse; du --apparent-size -b sparse | cut -f 1; shred -n 1 -u copy2; ls copy2 2>/dev/null || echo shredded
realpath --relative-to=. tree/c/link; readlink tree/c/link; basename /x/y.z .z; dirname /x/y; pathchk ok && echo ok
env -i A=b env; printenv HOME > /dev/null || true; nice -n 3 nice; timeout 0.2 sleep 5 || echo "timeout $?"
factor 987654321; expr 17 % 5; numfmt --to=iec 1048576; seq -w 8 11 | tr '\n' ' '; echo; yes | head -n 2
mktemp -u name.XXX | wc -c; test -L tree/c/link && echo link; mkfifo p; (cat numbers > p) & wc -l < p; wait
tsort <<END
a b
b c
END
stdbuf -oL echo buffered; nohup echo nohup 2>/dev/null; csplit -s -z copy1 2; cat xx00; ptx -G copy1 | wc -l
