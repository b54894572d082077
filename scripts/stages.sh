# Stages of checks, for scripts that source this: each stage's full output is kept in target/SCRIPT/STAGE.log; a failed stage
# shows its end. The script sets `wanted` to the stages that are asked for (none: all), and ends with `sum_up`.

results=target/$(basename "$0")
mkdir -p "$results"
counts=$results/counts failures=$results/failures
: >"$counts" >"$failures"
STAGE_SECONDS=${STAGE_SECONDS:-3000} TOTAL_SECONDS=${TOTAL_SECONDS:-5200}

is_wanted() {
    [ ${#wanted[@]} -eq 0 ] && return 0
    local stage
    for stage in "${wanted[@]}"; do [ "$stage" = "$1" ] && return 0; done
    return 1
}

# within SECONDS LOG COMMAND...: its status; after that time the log tells what was still running, and it ends.
within() {
    local limit=$1 log=$2 run dog status=0
    shift 2
    set -m
    "$@" >"$log" 2>&1 </dev/null &
    run=$!
    (
        sleep "$limit"
        echo "FAILED the stage was still running after $limit s:" >>"$log"
        ps -eo pid,ppid,etimes,stat,wchan:24,args --forest | grep -v '\[.*\]$' | cut -c1-240 >>"$log"
        grep 'has been running for over' "$log" | tail -n 5 >>"$log"
        kill -TERM -- "-$run"
        sleep 20
        kill -KILL -- "-$run"
    ) 2>/dev/null &
    dog=$!
    set +m
    wait "$run" || status=$?
    kill -TERM -- "-$dog" 2>/dev/null
    wait "$dog" 2>/dev/null
    return "$status"
}

# stage NAME COMMAND...: a stage whose output has no counts passes or fails as one.
# One that hangs is ended, so that the others are heard of too.
stage() {
    local name=$1 log=$results/$1.log start=$SECONDS status=0 p f s limit
    shift
    is_wanted "$name" || return 0
    limit=$((TOTAL_SECONDS - SECONDS < STAGE_SECONDS ? TOTAL_SECONDS - SECONDS : STAGE_SECONDS))
    within $((limit > 1 ? limit : 1)) "$log" "$@" || status=$?
    # cargo's `test result:` lines and the runner's `N passed, M failed, K skipped`.
    read -r p f s < <(awk '
        /^test result:/ { for (i = 1; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1); if ($i ~ /^ignored/) s += $(i-1) } }
        /^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; if ($6 ~ /^skipped/) s += $5 }
        END { print p + 0, f + 0, s + 0 }' "$log")
    if [ $((p + f)) -eq 0 ]; then
        [ "$status" -eq 0 ] && p=1 || f=1
    elif [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
    fi
    echo "$p $f $s" >>"$counts"
    # In one piece, whatever runs beside it.
    flock "$counts" cat <(tell "$name" "$p" "$f" "$s" $((SECONDS - start)) "$log")
}

# tell NAME PASSED FAILED SKIPPED SECONDS LOG: what came of a stage.
tell() {
    printf '%-13s %4d passed %3d failed %3d skipped  %4d s\n' "${@:1:5}"
    # Of what was still running the indented lines before say where it slept.
    awk '/^        [^ ]/ { if (n < 40) place[n++] = $0; next }
        /^(skipped |again |FAILED )/ { for (i = 0; i < n; i++) print "    " place[i]; print "    " $0 }
        { n = 0 }' "$6" | cut -c1-400
    if [ "$3" -gt 0 ]; then
        # What a test says of its failure is on the next lines.
        grep -E -A 3 '^test .*FAILED$|panicked at' "$6" | cut -c1-400 | sed 's/^/    /' | head -n 60
        grep -E '^test .*FAILED$|^FAILED ' "$6" | sed "s/^/$1: /" | cut -c1-400 | head -n 20 >>"$failures"
        tail -n 40 "$6" | sed 's/^/    | /'
    fi
}

lints() {
    cargo clippy --quiet --workspace --all-targets -- -D warnings &&
        # What only the kernel's own target has.
        cargo clippy --quiet --target x86_64-unknown-none -p qkernel --bin qkernel --features kernel,checks -- -D warnings
}

# The last line tells how many passed; the status, whether all did.
sum_up() {
    local passed failed skipped
    read -r passed failed skipped < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$counts")
    # Once more, at the end, where a long output is looked at first.
    cat "$failures"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
