// An HTTP server of Node: prints `ready` and its port.
const server = require("http").createServer((request, response) => {
  const answer = () => response.end("ok\n");
  if (request.url === "/sleep") return setTimeout(answer, 6000);
  if (request.url === "/stream") {
    response.write("first");
    // Not much longer than the 5 s that a connection gets which nobody uses.
    return setTimeout(answer, 6000);
  }
  answer();
});
server.listen(0, "127.0.0.1", () => console.log(`ready\n${server.address().port}`));
