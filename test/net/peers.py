"""The other end of each case: clients that verify what they get, and servers with bad manners."""
import asyncio
import hashlib
import os
import random
import select
import socket
import ssl
import struct
import threading
import time

from lib.network import listeners
from lib.outcome import Failure, check
from world import DNS_ADDRESS

HOST = "127.0.0.1"


def all_of(coroutines, timeout):
    """Runs them together; the first error ends all."""
    async def together():
        async with asyncio.timeout(timeout):
            await asyncio.gather(*coroutines)

    try:
        asyncio.run(together())
    except TimeoutError:
        raise Failure(f"the clients were not done after {timeout} s") from None


async def fetch(port, path, digest, turn, gate):
    """Connects once nobody else waits to be accepted, and asks once everybody is connected."""
    async with turn:
        while any(listeners(port)):
            await asyncio.sleep(0.002)
        reader, writer = await asyncio.open_connection(HOST, port)
    await gate.wait()
    writer.write(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
    answer = await reader.read(-1)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    check(b" 200 " in head.split(b"\r\n")[0], f"the server answered {head[:60]!r}")
    check(hashlib.sha256(body).hexdigest() == digest, f"{len(body)} bytes came, and they are not the file's")


def http_clients(port, path, digest, clients, timeout=60):
    """Clients that all ask at once. They connect one after another: http.server lets five wait, and for one more than
    that the host tries again after 1, 2, 4 ... s. One asks before: with the first answer the server reads a table of types,
    which each of its threads would do."""
    all_of([fetch(port, path, digest, asyncio.Lock(), asyncio.Barrier(1))], timeout)
    gate, turn = asyncio.Barrier(clients), asyncio.Lock()
    all_of([fetch(port, path, digest, turn, gate) for _ in range(clients)], timeout)


def client_tls():
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def talk(port, number, times, size, tls):
    reader, writer = await asyncio.open_connection(HOST, port, ssl=tls)
    for turn in range(times):
        message = bytes([number % 251]) * (size - 4) + struct.pack("!HH", number % 65536, turn)
        writer.write(message)
        echo = await reader.readexactly(size)
        check(echo == message, f"client {number} sent something else than came back in turn {turn}")
    writer.write_eof() if tls is None else None
    if tls is None:
        check(await reader.read() == b"", "bytes came that nobody sent")
    writer.close()


def echo_clients(port, clients, times, size, tls=None, timeout=60):
    """Each sends messages, and checks that they come back."""
    all_of([talk(port, number, times, size, tls) for number in range(clients)], timeout)


def many_connections(port, count, timeout=90):
    """Holds `count` connections at once, and speaks on each."""
    end = time.monotonic() + timeout
    held = []
    try:
        for _ in range(count):
            held.append(socket.create_connection((HOST, port), timeout=10))
        for number, connection in enumerate(held):
            connection.sendall(struct.pack("!I", number))
        for number, connection in enumerate(held):
            check(time.monotonic() < end, f"not done after {timeout} s")
            got = b""
            while len(got) < 4:
                part = connection.recv(4 - len(got))
                check(part, f"connection {number} was closed")
                got += part
            check(got == struct.pack("!I", number), f"connection {number} got another's bytes")
    finally:
        for connection in held:
            connection.close()


def udp_echo(port, count, window=32):
    """Sends datagrams, a few at a time, and counts those that come back as they were."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.connect((HOST, port))
        back = set()
        for start in range(0, count, window):
            wanted = range(start, min(start + window, count))
            for number in wanted:
                client.send(struct.pack("!I", number) + b"x" * (number % 1200))
            for _ in wanted:
                try:
                    datagram = client.recv(2048)
                except TimeoutError:
                    raise Failure(f"{len(back)} of {count} datagrams came back") from None
                number = struct.unpack("!I", datagram[:4])[0]
                check(len(datagram) == 4 + number % 1200, f"datagram {number} has {len(datagram)} bytes")
                back.add(number)
        check(len(back) == count, f"{len(back)} of {count} datagrams came back")


class Verifier(threading.Thread):
    """A Redis client that reads back what it writes, until it is told to stop."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.ending, self.done, self.error = port, threading.Event(), 0, None

    def run(self):
        try:
            with socket.create_connection((HOST, self.port), timeout=20) as connection:
                file = connection.makefile("rb")
                while not self.ending.is_set():
                    self.one_turn(connection, file)
                    self.done += 1
        except Exception as error:
            self.error = error

    def one_turn(self, connection, file):
        key, value = f"verify:{random.randrange(100)}".encode(), os.urandom(random.choice((1, 40, 3000, 70000)))
        connection.sendall(self.words(b"SET", key, value) + self.words(b"GET", key))
        check(file.readline() == b"+OK\r\n", "SET was not answered with OK")
        check(file.readline() == b"$%d\r\n" % len(value), "GET told another length")
        check(file.read(len(value) + 2) == value + b"\r\n", "GET gave another value")

    @staticmethod
    def words(*words):
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)

    def stop(self):
        self.ending.set()
        self.join(30)
        check(self.error is None and not self.is_alive(), f"the verifying client failed: {self.error}")
        check(self.done > 10, f"the verifying client made only {self.done} turns")


async def memcached_client(port, number, times):
    reader, writer = await asyncio.open_connection(HOST, port)
    for turn in range(times):
        value = random.Random(number * 1000 + turn).randbytes((1, 100, 5000, 100_000)[(number + turn) % 4])
        key = f"k{number}".encode()
        writer.write(b"set %s 0 0 %d\r\n%s\r\nget %s\r\n" % (key, len(value), value, key))
        check(await reader.readline() == b"STORED\r\n", "set was not answered with STORED")
        check(await reader.readline() == b"VALUE %s 0 %d\r\n" % (key, len(value)), "get told another value")
        check(await reader.readexactly(len(value) + 7) == value + b"\r\nEND\r\n", "get gave another value")
    writer.close()


def memcached_clients(port, clients, times, timeout=60):
    all_of([memcached_client(port, number, times) for number in range(clients)], timeout)


class Server:
    """A server outside, a thread for each connection, until the case ends."""

    def __init__(self, serve, port=0, host=HOST):
        self.serve = serve
        self.socket = socket.create_server((host, port), backlog=512)
        self.port = self.socket.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.one, args=(connection,), daemon=True).start()

    def one(self, connection):
        with connection:
            try:
                self.serve(connection)
            except OSError:
                pass


def reset(connection):
    """Sends a little, and drops the connection."""
    connection.sendall(b"0123456789")
    time.sleep(0.2)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def stall(connection):
    """Neither reads nor writes."""
    time.sleep(30)


def dribble(connection):
    """One byte a second."""
    for byte in b"abc":
        connection.sendall(bytes([byte]))
        time.sleep(1)


class EchoMany:
    """An echo server for very many connections, with one thread."""

    def __enter__(self):
        self.socket = socket.create_server((HOST, 0), backlog=4096)
        self.socket.setblocking(False)
        self.port, self.most, self.ending = self.socket.getsockname()[1], 0, False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending = True
        self.thread.join(5)
        self.socket.close()

    def run(self):
        poller, held = select.epoll(), {}
        poller.register(self.socket, select.EPOLLIN)
        while not self.ending:
            for number, _ in poller.poll(0.2):
                try:
                    if number == self.socket.fileno():
                        connection, _ = self.socket.accept()
                        held[connection.fileno()] = connection
                        poller.register(connection, select.EPOLLIN)
                        self.most = max(self.most, len(held))
                    elif data := held[number].recv(65536):
                        held[number].sendall(data)
                    else:
                        held.pop(number).close()
                except OSError:
                    if connection := held.pop(number, None):
                        connection.close()


class NameServer:
    """Answers every question for a name below example.test: over UDP, or for names with `big` over TCP alone."""

    def __enter__(self):
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind((DNS_ADDRESS, 53))
        self.tcp = Server(self.over_tcp, 53, DNS_ADDRESS).__enter__()
        self.thread = threading.Thread(target=self.over_udp, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.tcp.__exit__()
        # Closing alone would not wake the thread.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"", (DNS_ADDRESS, 53))
        self.thread.join(5)

    def over_udp(self):
        with self.udp:
            while True:
                question, sender = self.udp.recvfrom(4096)
                if not question:
                    return
                cut = b"big" in question
                self.udp.sendto(self.answer(question, 0 if cut else 1, cut), sender)

    def over_tcp(self, connection):
        while size := connection.recv(2, socket.MSG_WAITALL):
            question = connection.recv(struct.unpack("!H", size)[0], socket.MSG_WAITALL)
            answer = self.answer(question, 40, False)
            connection.sendall(struct.pack("!H", len(answer)) + answer)

    @staticmethod
    def answer(question, count, cut):
        end = 12
        while question[end]:
            end += question[end] + 1
        name, kind = question[12:end + 1], struct.unpack("!H", question[end + 1:end + 3])[0]
        known = name.lower().endswith(b"\x07example\x04test\x00")
        # A addresses alone.
        count = count if known and kind == 1 else 0
        flags = 0x8180 | (0x200 if cut and known else 0) | (0 if known else 3)
        head = question[:2] + struct.pack("!HHHHH", flags, 1, count, 0, 0)
        records = b"".join(b"\xc0\x0c" + struct.pack("!HHIH4B", 1, 1, 60, 4, 10, 1, 2, 3 + at) for at in range(count))
        return head + question[12:end + 5] + records
