# needs: mosquitto mosquitto_pub beanstalkd memcached python3
. /programs/common.sh
mosquitto -p 28120 >log 2>&1 & mqtt=$!
until_served 28120
mosquitto_sub -p 28120 -t 'a/#' -q 1 -C 103 >got & sub=$!
sleep 1
for i in $(seq 100); do echo "m$i"; done | mosquitto_pub -p 28120 -t a/b -q 1 -l
until_true 10 sh -c '[ $(wc -l <got) = 100 ]'
midst
for i in 1 2 3; do mosquitto_pub -p 28120 -t a/c -q 2 -m "late $i"; done
wait $sub; sort got | sha256sum
ends mosquitto $mqtt
beanstalkd -b "$WORK" -l 127.0.0.1 -p 28121 & jobs=$!
memcached -u nobody -l 127.0.0.1 -p 28122 -t 4 & cache=$!
until_served 28121; until_served 28122
cat >t.py <<'P'
import socket, threading
def line(s): return s.readline().strip().decode()
def jobs(k):
    s = socket.create_connection(('127.0.0.1', 28121)); f = s.makefile('rwb')
    for i in range(100):
        f.write(b'put 0 0 60 4\r\nabcd\r\n'); f.flush(); assert line(f).startswith('INSERTED')
    for i in range(100):
        f.write(b'reserve\r\n'); f.flush(); word, n, size = line(f).split(); f.readline(); f.write(f'delete {n}\r\n'.encode()); f.flush(); assert line(f) == 'DELETED'
def cache(k):
    s = socket.create_connection(('127.0.0.1', 28122)); f = s.makefile('rwb')
    for i in range(300):
        f.write(f'set {k}.{i} 0 0 3\r\nabc\r\nget {k}.{i}\r\nincr n 1\r\n'.encode()); f.flush(); assert [line(f) for _ in range(4)] == ['STORED', f'VALUE {k}.{i} 0 3', 'abc', 'END']; f.readline()
s = socket.create_connection(('127.0.0.1', 28122)); f = s.makefile('rwb'); f.write(b'set n 0 0 1\r\n0\r\n'); f.flush(); f.readline()
t = [threading.Thread(target=w, args=(k,)) for w in (jobs, cache) for k in range(4)]
[x.start() for x in t]; [x.join() for x in t]
f.write(b'get n\r\n'); f.flush(); f.readline(); print(line(f))
P
python3 t.py
ends beanstalkd $jobs
ends memcached $cache
