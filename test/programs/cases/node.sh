# needs: node /made/npm/node_modules/express
# timeout: 120
. /programs/common.sh
ln -s /made/npm/node_modules node_modules
cat >app.js <<'P'
const express = require('express'), cluster = require('cluster'), { Worker } = require('worker_threads'), fs = require('fs');
const zlib = require('zlib'), crypto = require('crypto');
if (cluster.isPrimary) {
  let left = 2;
  for (let i = 0; i < 2; i++) cluster.fork();
  cluster.on('exit', (w, code, signal) => { console.log('worker ended', code, signal); if (--left === 0) process.exit(0); });
  process.on('SIGTERM', () => { for (const w of Object.values(cluster.workers)) w.process.kill('SIGTERM'); });
} else {
  const app = express();
  app.use(express.text({ limit: '5mb' }));
  app.get('/', (q, r) => r.send('hello ' + q.query.n + '\n'));
  app.post('/zip', (q, r) => zlib.gzip(q.body, (e, b) => zlib.gunzip(b, (e, c) => r.send(crypto.createHash('sha256').update(c).digest('hex') + '\n'))));
  app.get('/work', (q, r) => {
    const w = new Worker('const {parentPort,workerData}=require("worker_threads");let s=0;for(let i=0;i<workerData;i++)s+=i%7;parentPort.postMessage(s)', { eval: true, workerData: 3000000 });
    w.on('message', s => r.send(s + '\n'));
  });
  app.get('/pbkdf', (q, r) => crypto.pbkdf2('p', 's', 20000, 32, 'sha256', (e, k) => r.send(k.toString('hex') + '\n')));
  app.get('/file', (q, r) => fs.readFile(__filename, (e, d) => r.send(d.length > 100 ? 'read\n' : 'short\n')));
  const s = app.listen(28085, '127.0.0.1');
  process.on('SIGTERM', () => s.close(() => process.exit(0)) || s.closeIdleConnections());
}
P
node app.js & server=$!
until_served 28085
get 'localhost:28085/?n=1'
head -c 1000000 /dev/zero | tr '\0' a | get -H 'Content-Type: text/plain' --data-binary @- localhost:28085/zip
at_once 4 get localhost:28085/work
at_once 8 get localhost:28085/pbkdf
midst
get localhost:28085/file
at_once 50 'get "localhost:28085/?n=$((i % 2))"'
ends node $server
node -e '
const {spawnSync, execFile} = require("child_process"), fs = require("fs"), os = require("os");
console.log(spawnSync("sh", ["-c", "echo out; echo err >&2; exit 3"]).status, os.platform());
fs.watch(".", (e, f) => { console.log("watched", f); process.exit(0); });
setTimeout(() => fs.writeFileSync("seen", "x"), 50);
'
