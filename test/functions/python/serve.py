"""A function behind a web server. `GET /?seed=N` asks for the answer to the input that the seed makes."""

import http.server
import json
import sys
import urllib.parse


def numbers(seed):
    """The numbers that every function draws its input from, each below 32768; those of Node and Java are the same."""
    state = seed & 0x7FFFFFFF
    while True:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        yield state >> 16


class Handler(http.server.BaseHTTPRequestHandler):
    answer = None

    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        body = json.dumps(type(self).answer(int(query["seed"][0]))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(answer):
    """Serves at the port that the command line names."""
    Handler.answer = staticmethod(answer)
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
