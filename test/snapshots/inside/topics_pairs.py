"""Connections over loopback between the program's own processes and threads, which are made anew with all bytes that nobody has read.

Bytes are numbered: each word of 8 has the stream's number and its own, so that one that is lost, doubled or in another place is found.
"""
import array
import contextlib
import fcntl
import os
import queue
import select
import socket
import struct
import subprocess
import termios
import threading
import time
import traceback

HOSTS = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
SECONDS = 20


def words(stream, first, count):
    return array.array("Q", range(stream << 40 | first, stream << 40 | first + count)).tobytes()


def exactly(end, count, flags=0):
    parts = bytearray()
    while len(parts) < count:
        part = end.recv(min(count - len(parts), 1 << 18), flags)
        if not part:
            raise EOFError(f"the end after {len(parts)} of {count} bytes")
        parts += part
    return bytes(parts)


def unread(end):
    return struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, b"1234"))[0]


def family_of(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def listen(host):
    listener = socket.socket(family_of(host))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, 0))
    listener.listen(100)
    return listener


def connect(listener, host):
    client = socket.socket(family_of(host))
    client.settimeout(SECONDS)
    client.connect((host, listener.getsockname()[1]))
    return client


class Stream:
    """A direction of a connection: what was written, or what was read."""

    def __init__(self, number, end):
        self.number, self.end, self.written, self.read = number, end, 0, 0

    def write_behind(self, count):
        """A thread that writes."""
        data = words(self.number, self.written, count)
        self.written += count
        thread = threading.Thread(target=self.end.sendall, args=(data,), daemon=True)
        thread.start()
        return thread

    def check(self, count, flags=0):
        got = exactly(self.end, 8 * count, flags)
        wanted = words(self.number, self.read, count)
        if got != wanted:
            at = next(at for at in range(0, len(got), 8) if got[at:at + 8] != wanted[at:at + 8])
            raise AssertionError(f"stream {self.number}: word {self.read + at // 8} is {got[at:at + 8].hex()}")
        if not flags & socket.MSG_PEEK:
            self.read += count


class Full:
    """Connections with much that is unread in both directions, more than has arrived, of processes at both ends; a step reads and compares
    it, and writes as much anew."""

    WORDS = 150_000

    def __init__(self):
        self.ends, theirs = [], []
        for host in HOSTS:
            with listen(host) as listener:
                self.ends.append(connect(listener, host))
                theirs.append(listener.accept()[0])
        self.ask, answer = socket.socketpair()
        if os.fork() == 0:
            serve(theirs, answer)
        for end in theirs:
            end.close()
        self.streams = [(Stream(2 * at, end), Stream(2 * at + 1, end)) for at, end in enumerate(self.ends)]
        self._write()

    def _write(self):
        self.threads = [stream.write_behind(self.WORDS) for stream, _ in self.streams]
        self._have("write")

    def _have(self, what):
        self.ask.sendall(what.encode() + b"\n")
        said = self.ask.recv(1000).decode()
        assert said == "ok", said

    def step(self):
        for _, stream in self.streams:
            stream.check(100, socket.MSG_PEEK)
            assert unread(stream.end) >= 800, "FIONREAD tells of fewer bytes than there are"
            # Sizes that are no multiple of a buffer's or a page's.
            for count in (131, 70_001, self.WORDS - 70_132):
                stream.check(count)
        self._have("read")
        for thread in self.threads:
            thread.join(SECONDS)
            assert not thread.is_alive(), "a writer waits though all is read"
        self._write()


def serve(ends, answer):
    """The other process: it writes, or reads and compares, as it is asked to."""
    streams = [(Stream(2 * at + 1, end), Stream(2 * at, end)) for at, end in enumerate(ends)]
    for line in answer.makefile():
        try:
            for writes, reads in streams:
                if line == "write\n":
                    writes.write_behind(Full.WORDS)
                else:
                    reads.check(Full.WORDS)
            answer.sendall(b"ok")
        except Exception:
            answer.sendall(" ".join(traceback.format_exc(limit=-2).split()).encode())
    os._exit(0)


class Echo:
    """Fifty connections to one port, whose other ends are another process's: it waits in `epoll_wait`, for edges or levels, or in `recv`.
    Between steps each has a question's answer that nobody has read."""

    COUNT = 50

    def __init__(self):
        self.listener = listen("127.0.0.1")
        if os.fork() == 0:
            self._serve()
        self.clients, self.turn = [], 0
        for number in range(self.COUNT):
            client = connect(self.listener, "127.0.0.1")
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, number % 2)
            client.sendall(b"%c" % number)
            self.clients.append(client)
        self.names = [(client.getsockname()[0], client.getpeername()) for client in self.clients]
        # The other process accepts no more.
        self._ask()

    def _serve(self):
        sets = (select.epoll(), select.epoll())
        ends = {}
        for _ in range(self.COUNT):
            end, _ = self.listener.accept()
            number = exactly(end, 1)[0]
            if number % 3 == 2:
                threading.Thread(target=self._echo, args=(end,), daemon=True).start()
                continue
            end.setblocking(False)
            ends[end.fileno()] = end
            sets[number % 3].register(end, select.EPOLLIN | (select.EPOLLET if number % 3 else 0))
        threads = [threading.Thread(target=self._wait, args=(each, ends), daemon=True) for each in sets]
        for thread in threads:
            thread.start()
        threads[0].join()
        os._exit(1)

    def _echo(self, end):
        while data := end.recv(1 << 16):
            end.sendall(data.upper())

    def _wait(self, epoll, ends):
        while True:
            for file, _ in epoll.poll():
                with contextlib.suppress(BlockingIOError):
                    while data := ends[file].recv(7):
                        ends[file].sendall(data.upper())

    def _ask(self):
        self.turn += 1
        for number, client in enumerate(self.clients):
            client.sendall(b"question %d of %d" % (self.turn, number))

    def step(self):
        for number, client in enumerate(self.clients):
            wanted = b"QUESTION %d OF %d" % (self.turn, number)
            got = exactly(client, len(wanted))
            assert got == wanted, f"{got} is no {wanted}"
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == number % 2, "TCP_NODELAY is another"
            assert (client.getsockname()[0], client.getpeername()) == self.names[number], "an end has another address"
        assert not select.select(self.clients, [], [], 0)[0], "there is more to be read"
        self._ask()
        client = connect(self.listener, "127.0.0.1")
        client.close()


class Halves:
    """Connections of which one side has ended writing, with bytes before the end that nobody has read."""

    def __init__(self):
        self.turn = 0
        self._make()

    def _make(self):
        self.kept = []
        for host in HOSTS:
            for shut in (0, 1):
                with listen(host) as listener:
                    client = connect(listener, host)
                    server = listener.accept()[0]
                server.settimeout(SECONDS)
                server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                first, second = (client, server)[::-1 if shut else 1]
                first.sendall(words(7, self.turn, 30000))
                first.shutdown(socket.SHUT_WR)
                second.sendall(words(8, self.turn, 10))
                self.kept.append((first, second, server))

    def step(self):
        for first, second, server in self.kept:
            assert server.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1, "SO_KEEPALIVE is gone"
            assert exactly(second, 240000) == words(7, self.turn, 30000), "other bytes before the end"
            assert second.recv(1) == b"", "no end"
            second.sendall(words(8, self.turn + 10, 10))
            assert exactly(first, 160) == words(8, self.turn, 20), "other bytes of the side that goes on"
            try:
                first.send(b"x")
                raise AssertionError("a side that has ended writing writes")
            except BrokenPipeError:
                pass
            second.close()
            assert first.recv(1) == b"", "no end of the other side"
            first.close()
        self.turn += 1
        self._make()


class Closing:
    """A connection that is closed with bytes unread resets the other end, and one that waits to be accepted is reset by a restore. Where one
    side or both have ended there are the bytes before the end."""

    def __init__(self):
        self.listener = listen("127.0.0.1")
        self._make()

    def _pair(self):
        client = connect(self.listener, "127.0.0.1")
        server = self.listener.accept()[0]
        server.settimeout(SECONDS)
        return client, server

    def _make(self):
        self.client, self.server = self._pair()
        self.client.sendall(b"never read")
        gone, self.left = self._pair()
        gone.sendall(words(9, 0, 3000))
        gone.close()
        self.both = self._pair()
        for end in self.both:
            end.sendall(words(10, 0, 10000))
            end.shutdown(socket.SHUT_WR)
        self.waiting = connect(self.listener, "127.0.0.1")

    def close(self, is_restored):
        self.server.close()
        try:
            raise AssertionError(f"a client reads {self.client.recv(1)!r}")
        except ConnectionResetError:
            self.client.close()
        assert exactly(self.left, 24000) == words(9, 0, 3000), "other bytes of a connection that is closed"
        assert self.left.recv(1) == b"", "no end"
        for end in self.both:
            assert exactly(end, 80000) == words(10, 0, 10000), "other bytes where both sides have ended"
            assert end.recv(1) == b"", "no end where both sides have ended"
            end.close()
        if is_restored:
            try:
                raise AssertionError(f"{self.left.send(b'x')} bytes are sent to nobody")
            except BrokenPipeError:
                pass
            self._is_reset(self.waiting)
        else:
            server, _ = self.listener.accept()
            self.waiting.sendall(b"served")
            assert server.recv(100) == b"served"
            server.close()
        self.left.close()
        self.waiting.close()
        self._make()

    def _is_reset(self, end):
        try:
            raise AssertionError(f"one that waited reads {end.recv(1)!r}")
        except ConnectionResetError:
            pass


class Redis:
    """Clients that keep their connections to a redis in the same container: one has an answer that nobody has read, and one waits in BLPOP."""

    def __init__(self):
        port = self._begin()
        self.asking, self.waiting, self.pushing = (self._connect(port) for _ in range(3))
        self.ids = [self._ask(client, "CLIENT ID") for client in (self.asking, self.waiting, self.pushing)]
        self.turn, self.popped = 0, queue.Queue()
        threading.Thread(target=self._pop, daemon=True).start()
        self._leave()

    def _begin(self):
        with listen("127.0.0.1") as found:
            port = found.getsockname()[1]
        subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", "/tmp"],
                         stdout=subprocess.DEVNULL)
        return port

    def _connect(self, port):
        end = time.monotonic() + SECONDS
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port)).makefile("rwb")
            except ConnectionRefusedError:
                assert time.monotonic() < end, "redis does not listen"
                time.sleep(0.05)

    def _send(self, client, line):
        client.write(line.encode() + b"\r\n")
        client.flush()

    def _answer(self, client):
        line = client.readline().decode().strip()
        if line[0] == "*":
            return [self._answer(client) for _ in range(int(line[1:]))]
        return client.read(int(line[1:]) + 2)[:-2].decode() if line[0] == "$" else line

    def _ask(self, client, line):
        self._send(client, line)
        return self._answer(client)

    def _pop(self):
        while True:
            self.popped.put(self._ask(self.waiting, "BLPOP list 0"))

    def _leave(self):
        self.turn += 1
        self._send(self.asking, "INCR count")

    def step(self):
        count = self._answer(self.asking)
        assert count == f":{self.turn}", f"the answer is {count}, not {self.turn}"
        self._ask(self.pushing, f"RPUSH list item{self.turn}")
        popped = self.popped.get(timeout=SECONDS)
        assert popped == ["list", f"item{self.turn}"], popped
        ids = [self._ask(client, "CLIENT ID") for client in (self.asking, self.pushing)]
        assert ids == [self.ids[0], self.ids[2]], "redis knows a client by another number"
        self._leave()


class RedisBeside(Redis):
    """Clients of a redis in another container of the pod."""

    def _begin(self):
        return int(os.environ["REDIS_PORT"])
