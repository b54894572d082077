# needs: unbound dnsmasq dig
. /programs/common.sh
dnsmasq -k -C /dev/null -p 28131 --listen-address=127.0.0.1 --bind-interfaces --no-resolv --no-hosts -u root --address=/a.test/10.1.2.3 --txt-record=t.test,words -x "$WORK/pid" & first=$!
cat >conf <<P
server:
  directory: "$WORK"
  chroot: ""
  username: ""
  use-syslog: no
  interface: 127.0.0.1
  port: 28132
  do-daemonize: no
  num-threads: 2
  do-not-query-localhost: no
  module-config: "iterator"
  local-zone: "test." transparent
  pidfile: "$WORK/unbound.pid"
forward-zone:
  name: "test"
  forward-addr: 127.0.0.1@28131
P
unbound -c conf -d >log 2>&1 & second=$!
ask() { dig +short +time=5 +tries=4 @127.0.0.1 -p "$@"; }
until_true 20 sh -c 'dig +short +time=1 +tries=1 @127.0.0.1 -p 28131 a.test | grep -q 10.1'
until_true 20 sh -c 'dig +short +time=1 +tries=1 @127.0.0.1 -p 28132 a.test | grep -q 10.1'
ask 28131 t.test TXT
ask 28132 x.a.test
ask 28132 t.test TXT +tcp
at_once 40 'ask 28132 n$((i % 3)).a.test'
midst
ask 28132 late.a.test
ends dnsmasq $first
ends unbound $second
