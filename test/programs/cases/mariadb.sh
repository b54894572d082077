# needs: mariadbd mariadb-install-db mariadb-slap
# timeout: 180
. /programs/common.sh
sql() { mariadb --socket="$WORK/s" -N "$@"; }
start() {
    mariadbd --no-defaults --user=mysql --datadir="$WORK/data" --socket="$WORK/s" --port=23306 --bind-address=127.0.0.1 \
        --innodb-buffer-pool-size=64M --pid-file="$WORK/pid" 2>>log &
    server=$!
    until_true 60 sql -e 'select 1'
}
chown mysql "$WORK"
mariadb-install-db --no-defaults --user=mysql --datadir="$WORK/data" --auth-root-authentication-method=normal \
    --skip-test-db >install.log 2>&1 || tail install.log
start
sql -e 'select version() > "10"; create database d; create table d.t (i int primary key auto_increment, s varchar(100), key (s)) engine=innodb'
mariadb-slap --socket="$WORK/s" --concurrency=8 --iterations=1 --number-of-queries=2000 --auto-generate-sql \
    --auto-generate-sql-load-type=mixed --auto-generate-sql-unique-write-number=100 >&2 || echo slap failed
for c in 1 2 3 4; do
    (for i in $(seq 1 250); do echo "insert into d.t (s) values (repeat('x', $i % 90));"; done | sql) &
    clients="${clients:-} $!"
done
midst
wait $clients
sql -e 'select count(*), sum(length(s)) from d.t'
# A client whose answer comes over TCP.
mariadb --protocol=tcp --port=23306 -N -e 'select sum(i) from d.t; show engines' d | cut -f 1 | sort
# Killed in the middle of a transaction: what was committed is there, what was not is not.
(echo 'begin; insert into d.t (s) values ("lost"); select "open"; select sleep(30);' | sql --unbuffered 2>/dev/null >open) &
until_true 20 grep -q open open
kill -9 $server
wait $server 2>/dev/null
start
grep -c 'crash recovery\|Starting crash' log | sed 's/[1-9][0-9]*/recovered/'
sql -e 'select count(*), sum(length(s)), sum(s = "lost") from d.t; check table d.t; truncate d.t; optimize table d.t' | cut -f 1,3-
mariadb-dump --socket="$WORK/s" d 2>&1 | grep -c 'CREATE TABLE'
ends mariadb $server
