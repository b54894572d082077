# PostgreSQL: a cluster is made, loaded and driven.
#
#   postgres.sh          then its server is killed in the middle of writes, recovers, and what was committed is looked for
#   postgres.sh midst    says "ready", and drives it until a line comes on standard input; "ok" if nothing was lost
set -eu
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
work=$(mktemp -d "${TMPDIR:-/tmp}/postgres.XXXXXX")
as=
if [ "$(id -u)" = 0 ]; then
    # It refuses to be root.
    chown postgres "$work"
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
fi
cd "$work"
export PGHOST="$work" PGDATABASE=postgres PGUSER=postgres LC_ALL=C
end() {
    status=$?
    [ "$status" = 0 ] || tail -n 20 log >&2
    $as "$bin/pg_ctl" -D data -m immediate stop >/dev/null 2>&1 || true
    cd /
    rm -rf "$work"
    exit "$status"
}
trap end EXIT
start() {
    $as "$bin/pg_ctl" -D data -w -t 60 -l log start >/dev/null \
        -o "-k '$work' -c listen_addresses= -c shared_buffers=32MB -c shared_memory_type=sysv"
}
segments() {
    awk 'NR > 1 && $1 != 0' /proc/sysvipc/shm | wc -l
}
drive() {
    $as "$bin/pgbench" -n -c 4 -j 2 "$@"
}
# Whether what the clients did agrees with what they noted, and whether they did more than so much.
check() {
    $as "$bin/psql" -qAtc "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
        (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history),
        (select count(*) from pgbench_history) > $1"
}

before=$(segments)
$as "$bin/initdb" -D data -U postgres -A trust --no-sync >/dev/null
start
[ "$(segments)" -gt "$before" ] || exit 1
$as "$bin/pgbench" -i -q -s 2 >/dev/null 2>&1

if [ "${1:-}" = midst ]; then
    drive -T 1000 >/dev/null 2>run &
    driver=$!
    echo ready
    read -r _
    kill "$driver"
    wait "$driver" 2>/dev/null || true
    # Clients hear of nothing but the end.
    ! grep -i error run >&2
    [ "$(check 100)" = "t|t|t" ] && echo ok
    exit
fi

drive -t "${TRANSACTIONS:-100}" 2>&1 | grep "number of transactions actually processed"
# A second server finds the segment of the first, whose lock file is gone.
pid=$(head -n 1 data/postmaster.pid)
mv data/postmaster.pid kept
! $as "$bin/postgres" -D data -k "$work" -c listen_addresses= -p 5433 >second 2>&1
grep -o "pre-existing shared memory block" second
mv kept data/postmaster.pid
drive -T 20 >/dev/null 2>&1 &
driver=$!
sleep 1
kill -9 "$pid"
wait "$driver" || true
# Its children end by themselves, and with the last of them the segment is free.
until [ "$(awk -v pid="$pid" 'NR > 1 && $5 == pid { sum += $7 } END { print sum + 0 }' /proc/sysvipc/shm)" = 0 ]; do
    sleep 0.1
done
while kill -0 "$pid" 2>/dev/null; do
    sleep 0.1
done
start 2>/dev/null
check "$((4 * ${TRANSACTIONS:-100}))"
grep -o "database system was not properly shut down" log
$as "$bin/pg_ctl" -D data -m fast -w stop >/dev/null
[ "$(segments)" = "$before" ] && echo "no segment is left"
