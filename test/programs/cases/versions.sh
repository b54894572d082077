# needs: git hg svn borg restic rclone gpg
# timeout: 200
. /programs/common.sh
export HOME=$WORK
git config --global user.email a@b; git config --global user.name a; git config --global init.defaultBranch main
git init -q --bare far.git; git clone -q far.git near 2>/dev/null; cd near
for i in $(seq 30); do echo $i >f$((i % 7)); git add .; git -c gc.auto=0 commit -qm "c$i"; done
git push -q origin main 2>&1; git gc -q; git fsck 2>&1 | head -n 2; git log --oneline | wc -l
git daemon --base-path="$WORK" --export-all --port=28160 --listen=127.0.0.1 >/dev/null 2>&1 & daemon=$!
until_served 28160; cd ..; git clone -q git://127.0.0.1:28160/far.git third && git -C third log --oneline | wc -l
git -C third worktree add -q ../fourth -b side && git -C fourth status -s | wc -l; kill $daemon
mkdir h; cd h; hg init; for i in 1 2 3; do echo $i >a; [ $i != 1 ] || hg -q add a; hg -q commit -m $i -u a; done; hg log -T '{rev} {desc}\n'; hg verify -q; cd ..; hg clone -q h h2 && hg -R h2 tip -T '{rev}\n'
svnadmin create s; svn -q co "file://$WORK/s" sw; echo a >sw/a; svn -q add sw/a; svn -q ci -m one sw; svn up -q sw; svn log -q sw | grep -c '^r1'; svnadmin verify -q s; echo $?
svnserve -d --foreground -r "$WORK" --listen-host 127.0.0.1 --listen-port 28161 & daemon=$!; until_served 28161; svn cat svn://127.0.0.1:28161/s/a; kill $daemon
midst
export BORG_PASSPHRASE=p RESTIC_PASSWORD=p
borg init -e repokey b 2>/dev/null; borg create b::one near; mkdir out; (cd out; borg extract ../b::one; diff -r near ../near && echo borg same); borg check b; echo $?
restic init -q -r r; restic backup -q -r r near; restic restore -q -r r latest --target out2 >/dev/null; diff -r "out2$WORK/near" near 2>/dev/null || diff -r out2/near near && echo restic same; restic check -q -r r; echo $?
rclone -q copy --create-empty-src-dirs near near2 && diff -r near near2 && echo rclone same
gpg -q --batch --passphrase '' --quick-gen-key a@b 2>/dev/null; echo secret | gpg -q --batch --trust-model always -e -r a@b | gpg -q --batch -d 2>/dev/null
gpgconf --kill all
