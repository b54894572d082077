"""Servers for the tests of --idle-timeout: one for each way in which a program may wait while somebody waits for it.

usage: servers.py threads|asyncio|ticking

Prints `ready`, and its port. Each answer ends with `ok` and a line's end; an unknown path is answered at once.
"""
import asyncio
import http.server
import signal
import subprocess
import sys
import threading
import time

# Longer than the idle time of the tests, with what it takes to fall asleep.
LONG = 6
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"


def announce(port):
    print("ready")
    print(port, flush=True)


def poll():
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        time.sleep(0.05)


def retry():
    for turn in range(5):
        time.sleep(0.4 * (turn + 1))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    happened = threading.Event()
    waits = {
        "/sleep": lambda: time.sleep(LONG),
        "/child": lambda: subprocess.run(["sleep", str(LONG)], check=True),
        "/poll": poll,
        "/retry": retry,
        "/wait": lambda: Handler.happened.wait(),
        "/happen": lambda: Handler.happened.set(),
    }

    def do_GET(self):
        if self.path == "/echo":
            return self.echo()
        if self.path == "/stream":
            self.wfile.write(STREAM + b"first")
            self.wfile.flush()
            time.sleep(LONG)
            return self.wfile.write(b"ok\n")
        self.waits.get(self.path, lambda: None)()
        return self.wfile.write(HEAD % 3 + b"ok\n")

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        assert len(self.rfile.read(size)) == size
        self.wfile.write(HEAD % 3 + b"ok\n")

    def echo(self):
        while line := self.rfile.readline():
            self.wfile.write(line)

    def log_message(self, *_):
        pass


class Loop:
    """The same in one thread."""

    def __init__(self):
        self.happened = asyncio.Event()

    async def serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self.answer(head.split()[1], reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            writer.close()

    async def answer(self, path, reader, writer):
        if path == b"/echo":
            while line := await reader.readline():
                writer.write(line)
        if path == b"/sleep":
            await asyncio.sleep(LONG)
        if path == b"/child":
            child = await asyncio.create_subprocess_exec("sleep", str(LONG))
            await child.wait()
        if path == b"/poll":
            for _ in range(LONG * 20):
                await asyncio.sleep(0.05)
        if path == b"/alarm":
            alarmed = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, alarmed.set)
            signal.setitimer(signal.ITIMER_REAL, LONG)
            await alarmed.wait()
        if path == b"/wait":
            await self.happened.wait()
        if path == b"/happen":
            self.happened.set()
        if path == b"/stream":
            writer.write(STREAM + b"first")
            await writer.drain()
            await asyncio.sleep(LONG)
            writer.write(b"ok\n")
        elif path == b"/pool":
            writer.write(STREAM + b"first")
            await writer.drain()
            await asyncio.get_running_loop().run_in_executor(None, time.sleep, LONG)
            writer.write(b"ok\n")
        else:
            writer.write(HEAD % 3 + b"ok\n")

    async def run(self, ticks):
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        announce(server.sockets[0].getsockname()[1])
        # As uvicorn, which looks ten times a second whether it is to end. In a kernel with checks that is close to what counts as
        # computing.
        while ticks:
            await asyncio.sleep(0.4)
        await server.serve_forever()


if sys.argv[1] == "threads":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    announce(server.server_address[1])
    server.serve_forever()
else:
    asyncio.run(Loop().run(sys.argv[1] == "ticking"))
