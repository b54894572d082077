// Both sides of HTTP/2 without TLS. As a server it prints `ready` and its port. With a port it is a client of one session: it asks,
// prints `ok`, sends a frame that nobody answers, and does so again for each line of its input.
const http2 = require("http2");
const port = process.argv[2];

if (port === undefined) {
  const server = http2.createServer((request, response) => response.end("ok\n"));
  server.listen(0, "127.0.0.1", () => console.log(`ready\n${server.address().port}`));
} else {
  const session = http2.connect(`http://127.0.0.1:${port}`);
  let window = 1 << 20;
  const ask = () => {
    const stream = session.request({ ":path": "/" });
    stream.resume();
    stream.on("end", () => session.setLocalWindowSize((window += 1 << 20), console.log("ok")));
  };
  require("readline").createInterface({ input: process.stdin }).on("line", ask).on("close", () => process.exit());
  session.on("connect", ask);
}
