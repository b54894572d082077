# needs: python3 curl /made/py/flask /made/py/gunicorn
. /programs/common.sh
export PYTHONPATH=/made/py
cat >app.py <<'P'
import flask, os, threading
app = flask.Flask('app')
@app.get('/')
def index(): return f'hello {flask.request.args.get("n")}\n'
@app.post('/up')
def up(): return f'{len(flask.request.get_data())}\n'
P
python3 -m gunicorn -w 3 -k gthread --threads 4 -b 127.0.0.1:28090 --pid pid app:app 2>log & server=$!
until_served 28090
get 'localhost:28090/?n=1'
head -c 3000000 /dev/zero | get --data-binary @- localhost:28090/up
at_once 60 'get "localhost:28090/?n=$((i % 3))"'
midst
get 'localhost:28090/?n=2'
kill -HUP $server
sleep 2
get 'localhost:28090/?n=3'
kill -TTOU $server; kill -USR1 $server
# A worker that is killed is replaced.
kill -9 $(pgrep -P $server | head -n 1)
sleep 1.5
get 'localhost:28090/?n=4'
pgrep -c -P $server
ends gunicorn $server
