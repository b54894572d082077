# A small history with a branch, a merge, a clone and a garbage collection.  usage: sh git.sh
set -eu
dir=$(mktemp -d "${TMPDIR:-/tmp}/git.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export HOME=$dir GIT_CONFIG_NOSYSTEM=1 LC_ALL=C TZ=UTC
export GIT_AUTHOR_NAME=Tester GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=Tester GIT_COMMITTER_EMAIL=t@example.com
git init -q -b main repo
cd repo
commit() { GIT_AUTHOR_DATE="$1 +0000" GIT_COMMITTER_DATE="$1 +0000" git commit -q -m "$2"; }
for i in 1 2 3 4 5; do
    seq 1 $((i * 100)) > file.$i
    git add .
    commit $((1000000000 + i)) "commit $i"
done
git checkout -q -b side HEAD~2
echo side > side.txt; git add side.txt; commit 1000000100 "on the side"
git checkout -q main
GIT_AUTHOR_DATE='1000000200 +0000' GIT_COMMITTER_DATE='1000000200 +0000' git merge -q --no-ff -m "merge" side
git log --format='%h %ad %s' --date=iso
git log --graph --oneline | wc -l
echo change >> file.1; git diff --stat; git status --short; git stash -q; git stash pop -q; git checkout -q file.1
git fsck --strict > /dev/null 2>&1 && echo "fsck fine"
git gc -q && git count-objects -v | grep in-pack
git clone -q . ../clone && git -C ../clone rev-parse HEAD
git blame -s file.2 | head -n 2
git archive HEAD | tar -tf - | sort | tr '\n' ' '; echo
git grep -c 100 | head -n 3
