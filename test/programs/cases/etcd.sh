# needs: etcd etcdctl
. /programs/common.sh
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=127.0.0.1:28103
for k in 1 2 3; do
    etcd --name n$k --data-dir "$WORK/n$k" --listen-peer-urls http://127.0.0.1:2811$k \
        --initial-advertise-peer-urls http://127.0.0.1:2811$k --listen-client-urls http://127.0.0.1:2810$k \
        --advertise-client-urls http://127.0.0.1:2810$k \
        --initial-cluster n1=http://127.0.0.1:28111,n2=http://127.0.0.1:28112,n3=http://127.0.0.1:28113 >log$k 2>&1 &
    pids[k]=$!
done
until_true 30 etcdctl endpoint health
etcdctl watch --prefix w/ >seen & watch=$!
for i in $(seq 50); do etcdctl put k/$i "v$i" >/dev/null; done
etcdctl get --prefix k/ --keys-only | grep -c k/
midst
until_true 30 etcdctl endpoint health
etcdctl put w/1 hello
kill -9 "${pids[1]}"
until_true 30 etcdctl put k/after 1
etcdctl get k/after --print-value-only
ETCDCTL_ENDPOINTS=127.0.0.1:28102 etcdctl get k/7 --print-value-only
until_true 10 grep -q hello seen && cat seen
kill $watch
for k in 2 3; do ends etcd "${pids[$k]}"; done
