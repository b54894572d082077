# needs: redis-server redis-benchmark redis-cli
# quick: yes
. /programs/common.sh
start() {
    redis-server --port 26379 --dir "$WORK" --appendonly yes --appendfsync everysec --save '' --daemonize no --latency-tracking no >>log &
    server=$!
    until_true 20 redis-cli -p 26379 get nothing
}
cli() { redis-cli -p 26379 "$@"; }
start
redis-benchmark -p 26379 -q -n 20000 -c 20 -r 1000 -t set,incr,lpush,hset >&2 || echo benchmark failed
cli set kept here
cli eval 'local s = 0; for i = 1, 1000 do s = s + redis.call("incr", "n") end; return s' 0
cli bgrewriteaof
(for i in $(seq 1 3000); do echo "set key:$i $i"; done | cli --pipe >&2; cli subscribe news >news) &
listener=$!
midst
until_true 20 grep -q subscribe news
cli publish news hello
until_true 20 grep -q hello news
cli mget key:1 key:3000 n
until_true 20 test "$(cli info persistence | grep -c 'aof_rewrite_in_progress:0')" = 1
cli bgsave
until_true 20 test -s dump.rdb
size=$(cli dbsize)
sleep 1.2
kill -9 $server
wait $server 2>/dev/null
start
[ "$(cli dbsize)" = "$size" ] && echo same size
cli mget kept n key:2999
kill $listener 2>/dev/null
ends redis $server
redis-check-aof appendonlydir/*.manifest | tail -n 1
redis-check-rdb dump.rdb | grep -c 'Checksum OK'
