# needs: rabbitmq-server rabbitmqctl /made/py/pika
# timeout: 300
. /programs/common.sh
export PYTHONPATH=/made/py RABBITMQ_MNESIA_BASE=$WORK/mnesia RABBITMQ_LOG_BASE=$WORK/log RABBITMQ_NODENAME=r@localhost
export RABBITMQ_NODE_PORT=25672 RABBITMQ_DIST_PORT=25673 RABBITMQ_PID_FILE=$WORK/pid HOME=$WORK ERL_EPMD_ADDRESS=127.0.0.1
mkdir mnesia log
chown -R rabbitmq "$WORK" 
start() {
    rabbitmq-server >out 2>&1 &
    server=$!
    rabbitmqctl wait --timeout 90 "$WORK/pid" >>wait.log 2>&1 || { echo 'did not start'; tail -n 30 out wait.log; }
}
cat >client.py <<'P'
import sys, pika, zlib
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 25672, heartbeat=0))
channel = connection.channel()
channel.queue_declare("q", durable=True)
channel.confirm_delivery()
if sys.argv[1] == "put":
    for i in range(int(sys.argv[2])):
        channel.basic_publish("", "q", b"%d " % i * 50, pika.BasicProperties(delivery_mode=2))
    print("put", i + 1)
else:
    n = total = 0
    for method, _, body in channel.consume("q", inactivity_timeout=5):
        if method is None:
            break
        n, total = n + 1, zlib.crc32(body, total)
        channel.basic_ack(method.delivery_tag)
        if n == int(sys.argv[2]):
            break
    channel.cancel()
    print("got", n, total)
connection.close()
P
start
python3 client.py put 500
python3 client.py get 100
midst
python3 client.py put 300
rabbitmqctl list_queues -q name messages
rabbitmqctl stop >/dev/null 2>&1
wait $server
echo "ended with $?"
start
python3 client.py get 700
rabbitmqctl eval 'erlang:system_info(schedulers) > 0.'
ends rabbitmq $server
