const crypto = require("crypto"), http = require("http");
const nonce = crypto.randomUUID();
let asked = 0, ticks = 0;
setInterval(() => ticks++, 10);
http.createServer((request, response) => {
  const before = ticks;
  const wait = () => ticks > before ? response.end(`${nonce} ${++asked}`) : setTimeout(wait, 5);
  wait();
}).listen(Number(process.argv[2]), "127.0.0.1");
