# needs: haproxy curl python3 wrk
. /programs/common.sh
cat >conf <<P
global
  stats socket $WORK/admin level admin
  nbthread 2
defaults
  mode http
  timeout connect 5s
  timeout client 20s
  timeout server 20s
frontend f
  bind 127.0.0.1:28082
  default_backend b
backend b
  balance roundrobin
  server a 127.0.0.1:28083 check inter 500
  server b 127.0.0.1:28084 check inter 500
P
for p in 28083 28084; do
    mkdir $p; echo "from $p" >$p/f
    python3 -m http.server --bind 127.0.0.1 -d $p $p >/dev/null 2>&1 &
    eval "s$p=$!"
done
until_served 28083; until_served 28084
haproxy -W -f conf -p "$WORK/pid" 2>log & server=$!
until_served 28082
for i in 1 2 3 4; do get localhost:28082/f; done | sort | uniq -c
wrk -t 2 -c 20 -d 2 http://127.0.0.1:28082/f >wrk.log 2>&1
grep -c 'Non-2xx' wrk.log
midst
kill $s28083; wait $s28083 2>/dev/null
sleep 3
for i in 1 2 3 4; do get localhost:28082/f; done | sort | uniq -c
kill -USR2 $server
sleep 2
get localhost:28082/f
kill -USR1 $server; wait $server; echo "ended with $?"
