# needs: supervisord qemu-x86_64 ant sysbench
# timeout: 200
. /programs/common.sh
cat >s.conf <<P
[supervisord]
nodaemon=true
logfile=$WORK/s.log
pidfile=$WORK/s.pid
[unix_http_server]
file=$WORK/s.sock
[supervisorctl]
serverurl=unix://$WORK/s.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[program:a]
command=/bin/sh -c 'echo begun >>$WORK/a; exec sleep 1000'
[program:b]
command=/bin/sh -c 'echo once; exit 0'
startsecs=0
autorestart=false
P
supervisord -c s.conf >out 2>&1 & s=$!
ctl() { supervisorctl -c s.conf "$@"; }
until_true 20 sh -c 'supervisorctl -c s.conf status a | grep -q RUNNING'
ctl signal KILL a
until_true 20 sh -c '[ "$(wc -l <a)" = 2 ]' && cat a
midst
until_true 20 sh -c 'supervisorctl -c s.conf status a | grep -q RUNNING'
ctl restart a; ctl status | awk '{print $1, $2}'
ends supervisord $s
qemu-x86_64 /bin/sh -c 'echo emulated; for i in 1 2 3; do /bin/echo $i; done'
qemu-x86_64 /usr/bin/python3 -c 'import threading; t = [threading.Thread(target=print, args=(k,)) for k in range(3)]; [x.start() or x.join() for x in t]'
echo '<project default="a"><target name="a"><echo message="ant ran"/><exec executable="echo"><arg value="child"/></exec></target></project>' >build.xml; ant -q -S 2>/dev/null; ant 2>/dev/null | grep exec
sysbench --threads=4 --events=400 --time=0 mutex run | grep -c 'events (avg'
sysbench --threads=2 --time=0 --events=400 fileio --file-total-size=8M --file-num=4 --file-test-mode=rndrw prepare | grep -c 'bytes written'
sysbench --threads=2 --time=0 --events=400 fileio --file-total-size=8M --file-num=4 --file-test-mode=rndrw --file-io-mode=mmap run | grep -c 'total number of events'
