"""What runs in pods: a small server. Files in /tmp make it sick, and unready."""
import http.server
import os
import signal
import socketserver
import sys
import threading

ANSWERS = {"/healthz": "/tmp/sick", "/ready": "/tmp/unready"}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        bad = ANSWERS.get(self.path)
        self.send_response(500 if bad and os.path.exists(bad) else 200)
        self.end_headers()
        self.wfile.write(f"{os.environ.get('VERSION', '')} {os.environ.get('HOSTNAME', '')}\n".encode())
        if self.path not in ANSWERS:
            print("asked", self.path, flush=True)

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self):
        # Without a look-up of the host's name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]


server = Server(("", int(sys.argv[1]) if len(sys.argv) > 1 else 8080), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
print("begun", flush=True)
server.serve_forever()
print("ended", flush=True)
