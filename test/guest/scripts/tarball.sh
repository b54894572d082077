# Packs and unpacks MB megabytes in many files and compares.  usage: MB=200 sh tarball.sh
set -eu
export LC_ALL=C
mb=${MB:-200}
dir=$(mktemp -d "${TMPDIR:-/tmp}/tarball.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
mkdir in out
i=0
while [ $i -lt "$mb" ]; do
    mkdir -p in/$((i % 7))
    # Half of every file compresses well, half does not; the bytes depend on nothing but the number.
    { seq $((i * 1000)) $((i * 1000 + 65000)) | head -c 524288
      seq $i $((i + 100000)) | gzip -1n | head -c 131072
      head -c 393216 /dev/zero; } > in/$((i % 7))/file.$i
    i=$((i + 1))
done
tar -C in -cf - . | gzip -1 > all.tar.gz
tar -C out -xzf all.tar.gz
(cd in && find . -type f | sort | xargs sha256sum) > in.sums
(cd out && sha256sum --quiet -c ../in.sums)
diff -r in out
echo "$(find out -type f | wc -l) files, $(du -sb --apparent-size out/0 | cut -f 1 | grep -c .) sum"
sha256sum < in.sums
