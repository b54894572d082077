// A function behind a web server. `GET /?seed=N` asks for the answer to the input that the seed makes.
'use strict';
const http = require('http');

// The numbers that every function draws its input from, each below 32768; those of Python and Java are the same.
function numbers(seed) {
  let state = seed & 0x7fffffff;
  return () => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return state >> 16;
  };
}

function serve(answer) {
  const handle = (request, response) => {
    const seed = Number(new URL(request.url, 'http://localhost').searchParams.get('seed'));
    const body = JSON.stringify(answer(seed));
    response.writeHead(200, {'Content-Type': 'application/json', 'Content-Length': body.length, 'Connection': 'close'});
    response.end(body);
  };
  http.createServer(handle).listen(Number(process.argv[2]), '127.0.0.1');
}

module.exports = {numbers, serve};
