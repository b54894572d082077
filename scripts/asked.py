"""What servers that sleep are asked: the workloads of scripts/bench-hibernate."""

import random
import shutil
import socket
import subprocess
import time

from lib.outcome import Failure
from lib.tree import TOP
from sleepers import copy_python, copy_with_libraries

HEAP = TOP / "target/guest/static/heap"
COLD = TOP / "target/guest/static/cold"
SERVER = TOP / "test/guest/servers/answer.py"


class Python:
    """A web server in python3 that has imported much more than it needs to answer."""

    name, words = "python", "python3, a web server"
    requests, turns = 20, 12

    def fill(self, root):
        copy_python(root)
        shutil.copy2(SERVER, root)

    def command(self, port):
        return ["/usr/bin/python3", "/answer.py", port]

    def request(self, number):
        return b"GET /page/%d HTTP/1.0\r\n\r\n" % number

    def is_loading(self, answer):
        return False

    def is_answer(self, answer, number):
        return answer.startswith(b"HTTP/1.0 200 ") and b'"number": %d,' % number in answer


class Redis:
    """redis with 100,000 values of 1000 random bytes, loaded from its file at the start; a request gets one of them."""

    name, words = "redis", "redis, 100 MB of data"
    requests, turns = 20, 6
    keys, value_bytes = 100_000, 1000

    def __init__(self, directory):
        self.data = directory / "redis"

    def value(self, key):
        return random.Random(key).randbytes(self.value_bytes)

    def set(self, key):
        name = b"key:%d" % key
        return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, self.value_bytes, self.value(key))

    def arguments(self, directory):
        return ["--dir", directory, "--save", "", "--protected-mode", "no"]

    def make_data(self):
        """Has a server of its own write the file that the others load."""
        self.data.mkdir()
        socket_path = self.data / "socket"
        words = ["redis-server", "--port", "0", "--unixsocket", socket_path, *self.arguments(self.data)]
        with subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
            for _ in range(500):
                if socket_path.exists():
                    break
                time.sleep(0.01)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(socket_path))
                for first in range(0, self.keys, 1000):
                    client.sendall(b"".join(self.set(key) for key in range(first, first + 1000)))
                    said = b""
                    while len(said) < 1000 * len(b"+OK\r\n"):
                        said += client.recv(1 << 16)
                client.sendall(b"SAVE\r\n")
                client.recv(16)
            server.terminate()
        if not (self.data / "dump.rdb").exists():
            raise Failure("redis-server did not write its data")

    def fill(self, root):
        if not self.data.exists():
            self.make_data()
        copy_with_libraries([shutil.which("redis-server")], root)
        shutil.copy2(self.data / "dump.rdb", root)

    def command(self, port):
        return [shutil.which("redis-server"), "--port", port, "--bind", "127.0.0.1", *self.arguments("/")]

    def key(self, number):
        return number * 7919 % self.keys

    def request(self, number):
        return b"GET key:%d\r\nQUIT\r\n" % self.key(number)

    def is_loading(self, answer):
        return answer.startswith(b"-LOADING")

    def is_answer(self, answer, number):
        return answer == b"$%d\r\n%b\r\n+OK\r\n" % (self.value_bytes, self.value(self.key(number)))


class Heap:
    """A heap of incompressible data. A request looks at parts of it, checks them, and changes some."""

    def __init__(self, name, requests, turns, megabytes=256):
        self.name, self.words = name, f"{name} heap, {megabytes} MB"
        self.requests, self.turns, self.megabytes = requests, turns, megabytes

    def fill(self, root):
        shutil.copy2(HEAP, root)

    def command(self, port):
        return ["/heap", port, self.megabytes]

    def request(self, number):
        return f"{self.name} {number}\n".encode()

    def is_loading(self, answer):
        return False

    def is_answer(self, answer, number):
        # The server itself has checked what each page holds.
        looked = 256 if self.name == "sparse" else self.megabytes * 256 // 4 * 3
        return answer.startswith(b"%d " % looked)


class Cold:
    """A heap of incompressible data that is touched page by page while its own clock runs."""

    name = "cold"

    def __init__(self, megabytes):
        self.megabytes = megabytes

    def fill(self, root):
        shutil.copy2(COLD, root)

    def command(self, port):
        return ["/cold", port, self.megabytes]

    def request(self, number):
        return b"single 1\n"

    def is_loading(self, answer):
        return False

    def is_answer(self, answer, number):
        return answer.startswith(b"1 ")


def all_workloads(directory):
    return [Python(), Redis(directory), Heap("sparse", 20, 6), Heap("dense", 8, 6)]
