# needs: squid varnishd lighttpd curl
. /programs/common.sh
mkdir www; head -c 3000000 /usr/bin/bash | head -c 1000000 >www/big; echo small >www/small
cat >light.conf <<P
server.document-root = "$WORK/www"
server.port = 28141
server.bind = "127.0.0.1"
P
lighttpd -D -f light.conf >light.log 2>&1 & origin=$!
until_served 28141
varnishd -F -n "$WORK/v" -a 127.0.0.1:28142 -b 127.0.0.1:28141 -s malloc,32m >varnish.log 2>&1 & cache=$!
cat >squid.conf <<P
http_port 127.0.0.1:28143
http_access allow all
cache_mem 16 MB
pid_filename $WORK/squid.pid
cache_log $WORK/squid.log
access_log none
coredump_dir $WORK
cache_dir ufs $WORK/spool 50 16 16
shutdown_lifetime 1 second
visible_hostname here
pinger_enable off
P
mkdir spool; chmod 777 . spool
squid -f "$WORK/squid.conf" -z -N >/dev/null 2>&1; echo made $?
squid -f "$WORK/squid.conf" -N >squid.out 2>&1 & proxy=$!
until_served 28142; until_served 28143
want=$(sha256sum <www/big)
for port in 28141 28142 28142; do [ "$(get localhost:$port/big | sha256sum)" = "$want" ] && echo same; done
get -D - -o /dev/null localhost:28142/big | grep -c '^X-Varnish: [0-9]* [0-9]'
for k in 1 2; do get -x localhost:28143 http://127.0.0.1:28141/big | sha256sum | grep -c "${want%% *}"; done
at_once 60 'get -x localhost:28143 http://127.0.0.1:2814$((i % 2 + 1))/small'
midst
get localhost:28142/small
get -x localhost:28143 http://127.0.0.1:28141/small
get -r 10-19 localhost:28141/big | sha256sum
ends varnish $cache
ends squid $proxy
ends lighttpd $origin
