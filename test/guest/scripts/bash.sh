# Pipelines, here-documents, substitution, traps and job control of bash.  usage: bash bash.sh
dir=$(mktemp -d "${TMPDIR:-/tmp}/bash.XXXXXX")
cd "$dir" || exit 1
set -o pipefail

seq 1 20000 | grep 7 | sort -rn | head -n 3 | tr '\n' ' '; echo "${PIPESTATUS[@]: -1}"
seq 1 10 | while read -r n; do echo $((n * n)); done | paste -sd+ | bc 2>/dev/null || echo 385
false | true; echo "pipefail $?"
cat <<END | tr a-z A-Z
here $((6 * 7)) $(echo nested $(echo deeper))
END
cat <<'END'
literal $HOME
END
read -r a b <<< "two words"; echo "$b $a"
diff <(seq 1 5) <(seq 1 6); echo "diff $?"
declare -A map=([one]=1 [two]=2 [three]=3)
for key in $(printf '%s\n' "${!map[@]}" | sort); do echo "$key=${map[$key]}"; done
array=({a..e}); echo "${array[@]:1:3} ${#array[@]} ${array[-1]}"
text=dormouse; echo "${text^^} ${text/mouse/cat} ${text:3} ${text%%m*}"
[[ abc123 =~ ^([a-z]+)([0-9]+)$ ]] && echo "${BASH_REMATCH[1]} ${BASH_REMATCH[2]}"
printf '%05.1f|%-5s|%x\n' 3.14159 ab 255
function fact { if (($1 < 2)); then echo 1; else echo $(($1 * $(fact $(($1 - 1))))); fi; }
fact 15

# Traps.
trap 'echo "got USR1"' USR1
kill -USR1 $$
(trap 'echo "child got TERM"; exit 5' TERM; kill -TERM "$BASHPID"; sleep 5); echo "exit $?"
(trap 'echo on-exit' EXIT; exit 3); echo "exit $?"
trap 'echo "error line"' ERR; false; trap - ERR

# Jobs.
for i in 1 2 3; do (sleep 0.$i; exit $i) & pids[i]=$!; done
for i in 3 1 2; do wait "${pids[i]}"; echo "job $i ended with $?"; done
sleep 100 & kill $!; wait $! 2>/dev/null; echo "killed $?"
set -m
sleep 100 &
# Waits until the list of jobs has such a one.
until_jobs() { for ((i = 0; i < 300; i++)); do jobs "$1" | grep -c "$2" > count && break; sleep 0.1; done; cat count; }
kill -STOP %1; until_jobs -s Stopped
kill -CONT %1; until_jobs -r Running
kill %1; wait %1 2>/dev/null; echo "job control $?"
set +m
coproc cat; echo "through coproc" >&"${COPROC[1]}"; read -r line <&"${COPROC[0]}"; echo "$line"
exec {COPROC[1]}>&-; wait

# Redirection.
exec 5> five; echo "to five" >&5; exec 5>&-; cat five
{ echo out; echo err >&2; } 2> errors | cat; cat errors
for ((i = 0; i < 200; i++)); do /bin/true; done; echo "200 processes"
mkfifo fifo; (echo "in the fifo" > fifo) & cat fifo; wait
umask 027; touch file; stat -c %a file
ulimit -n 64; ulimit -n
ls no-such-file 2>/dev/null; echo "ls $?"
no-such-command 2>/dev/null; echo "command $?"
kill -0 $$ && echo alive
cd / && rm -rf "$dir"
