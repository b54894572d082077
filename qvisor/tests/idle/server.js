// An HTTP server of Node: prints `ready` and its port.
const server = require("http").createServer((request, response) => {
  const answer = () => response.end("ok\n");
  if (request.url === "/sleep") return setTimeout(answer, 6000);
  if (request.url === "/stream") {
    response.write("first");
    // Much longer than the 5 s of a connection that nobody uses. What is left of those can be learned as a habit if the connection ended
    // before the loop waited for them, and a wait of about that length is taken for it: 6 s would try that limit (docs/hibernation.md).
    return setTimeout(answer, 9000);
  }
  answer();
});
server.listen(0, "127.0.0.1", () => console.log(`ready\n${server.address().port}`));
