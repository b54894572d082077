# needs: zsh fish ksh mksh expect vim emacs screen socat
. /programs/common.sh
export TERM=xterm HOME=$WORK
for shell in zsh ksh mksh; do
    "$shell" -c 'f() { trap "echo trapped" USR1; kill -USR1 $$; }; f; (exit 3); echo $?; echo a b c | while read x y; do echo $y; done; sleep 0.1 & wait $!; echo $((1 << 10)); set -o pipefail; false | true; echo $?' 2>&1
done
fish -c 'for i in (seq 3); echo $i; end; sleep 0.1 &; wait; false; echo $status; echo (math 2^10)'
cat >t.exp <<'P'
expect_after timeout { puts "\nlate" }
set timeout 20
foreach sh {{zsh -f} {mksh} {bash --norc}} {
    spawn -noecho {*}$sh
    send "PS1='READY> '\r"
    expect -re {[^']READY> }
    send "sleep 100\r"
    sleep 0.5
    send "\x1a"
    expect -nocase -re {stopped|suspended}
    expect "READY> "
    send "kill %1; fg; echo st=\$((1+1))\r"
    expect "st=2"
    send "exit\r"
    expect eof
    puts "\n[lindex $sh 0] done"
}
P
expect t.exp 2>&1 | grep -E ' done|late'
vim -u NONE -N -es -c 'call setline(1, range(1, 100))' -c '%s/1/x/g' -c 'call append("$", system("echo from shell"))' -c 'w out' -c 'qa!'; sha256sum out
vim -u NONE -N -es -c 'let j = job_start(["cat"])' -c 'call ch_sendraw(j, "hello\n")' -c 'call writefile([ch_read(j)], "job")' -c 'qa!'; cat job
emacs -Q --batch --eval '(progn (princ (shell-command-to-string "echo from emacs")) (let ((p (make-network-process :name "s" :server t :host "127.0.0.1" :service t :family (quote ipv4)))) (princ (processp p))))'; echo
midst
screen -dmS one bash --norc
until_true 10 sh -c 'screen -ls | grep -q one'
screen -S one -X stuff 'echo inside >seen\n'
until_true 10 test -s seen; cat seen
screen -S one -X hardcopy "$WORK/copy"; until_true 10 test -e copy
screen -S one -X quit; until_true 10 sh -c '! screen -ls | grep -q one' && echo gone
echo over pty | socat - 'EXEC:cat,pty,raw,echo=0'
socat -u OPEN:out CREATE:out2 && cmp out out2 && echo equal
