# What the programs' scripts have in common. They print the same on every machine; what a program itself writes goes to
# standard error where it tells of numbers or times.
set -u
export LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
WORK=$(mktemp -d /tmp/program.XXXXXX)
chmod 755 "$WORK"
cd "$WORK"

# Here the sandbox hibernates and wakes.
midst() {
    echo midst
    read -r _
}

# until_true SECONDS COMMAND...: whether it became true in that time.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "not after all that time: $*"; return 1; }
        sleep 0.1
    done
}

# Whether somebody listens at a port of loopback.
is_served() {
    (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

until_served() {
    until_true "${2:-30}" is_served "$1"
}

get() {
    curl -s --max-time 20 "$@"
}

# ends NAME PID: asks a program to end, and tells how it did.
ends() {
    kill -TERM "$2"
    wait "$2"
    echo "$1 ended with $?"
}

# at_once COUNT COMMAND...: runs so many at the same time, each with its number as the variable `i`; then prints how often
# each answer came.
at_once() {
    local count=$1 i pids=()
    shift
    mkdir -p answers
    for i in $(seq 1 "$count"); do
        (eval "$@" >"answers/$i"; echo >>"answers/$i") &
        pids+=($!)
    done
    wait "${pids[@]}"
    sort -b answers/* | grep -v '^$' | uniq -c
    rm -r answers
}
