# Pipelines, one that is read slowly and one that is full, background jobs, and a signal that is trapped.
nonce=$(cat /proc/sys/kernel/random/uuid)
echo "$nonce" >>/srv/starts
(i=0; while :; do echo $i; i=$((i + 1)); done) | while read -r n; do echo "$n" >>/srv/numbers; sleep 0.01; done &
yes | sleep 100000 &
full=$!
sleep 100000 &
job=$!
trap 'echo "$nonce" >>/srv/signals' USR1
while :; do
    sleep 0.05
    kill -0 $job && kill -0 $full && echo "$nonce" >/srv/alive
done
