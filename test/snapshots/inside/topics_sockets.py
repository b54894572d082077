"""Sockets, between the program's own processes and with the host."""
import array
import os
import select
import socket
import threading


class Unix:
    """A pair with bytes and a descriptor on their way, and servers with a name in /tmp and an abstract one."""

    def __init__(self):
        self.left, self.right = socket.socketpair()
        self.packets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.turn = 0
        self._send()
        self.servers, self.clients = {}, {}
        for name in ("/tmp/served", "\0served"):
            server = self.servers[name] = socket.socket(socket.AF_UNIX)
            server.bind(name)
            server.listen()
            threading.Thread(target=self._serve, args=(server,), daemon=True).start()
            client = self.clients[name] = socket.socket(socket.AF_UNIX)
            client.connect(name)

    def _serve(self, server):
        while True:
            client, _ = server.accept()
            threading.Thread(target=self._echo, args=(client,), daemon=True).start()

    def _echo(self, client):
        while data := client.recv(100):
            client.sendall(data.upper())

    def _send(self):
        self.left.sendall(b"unread %d" % self.turn)
        read, write = os.pipe()
        os.write(write, b"through a descriptor")
        os.close(write)
        self.packets[0].sendmsg([b"packet %d" % self.turn], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [read]))])
        self.packets[0].send(b"second")
        os.close(read)

    def _receive(self):
        got = self.right.recv(100)
        assert got == b"unread %d" % self.turn, got
        data, parts, _, _ = self.packets[1].recvmsg(100, 100)
        assert data == b"packet %d" % self.turn and self.packets[1].recv(100) == b"second", data
        file = int.from_bytes(parts[0][2][:4], "little")
        assert os.read(file, 100) == b"through a descriptor"
        os.close(file)

    def step(self):
        self._receive()
        self.turn += 1
        self._send()
        for name, client in self.clients.items():
            client.settimeout(5)
            client.sendall(b"old %d" % self.turn)
            assert client.recv(100) == b"OLD %d" % self.turn
            with socket.socket(socket.AF_UNIX) as new:
                new.settimeout(5)
                new.connect(name)
                new.sendall(b"new")
                assert new.recv(100) == b"NEW"


class Udp:
    """A socket that answers from a port, and one that is connected to it."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.asked = 0
        threading.Thread(target=self._serve, daemon=True).start()
        self.client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.client.settimeout(5)
        self.client.connect(self.socket.getsockname())

    def _serve(self):
        while True:
            data, address = self.socket.recvfrom(2000)
            self.asked += 1
            self.socket.sendto(b"%d " % self.asked + data, address)

    def step(self):
        self.client.send(b"own")
        assert self.client.recv(100) == b"%d own" % self.asked
        return self.socket.getsockname()[1]


class OwnTcp:
    """A connection between two of the program's sockets, over loopback, with unread bytes."""

    def __init__(self):
        self.turn = 0
        self._connect()

    def _connect(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname())
            self.server, _ = listener.accept()
        self.client.settimeout(5)
        self.server.settimeout(5)
        self.server.sendall(b"unread %d" % self.turn)

    def step(self):
        got = self.client.recv(100)
        assert got == b"unread %d" % self.turn, got
        self.client.sendall(b"back")
        assert self.server.recv(100) == b"back"
        self.turn += 1
        self.server.sendall(b"unread %d" % self.turn)


class Load:
    """Threads that answer connections at a second port, with a number each."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.served = 0
        self.lock = threading.Lock()
        for _ in range(4):
            threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            client, _ = self.listener.accept()
            with client:
                try:
                    data = client.recv(100)
                    with self.lock:
                        self.served += 1
                    client.sendall(b"answer to " + data)
                except OSError:
                    pass

    def step(self):
        return [self.listener.getsockname()[1], self.served]


class Outside:
    """A connection to somebody on the host."""

    def connect(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(b"hello")
        return self.socket.recv(100).decode()

    def state(self):
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.poll(5000)
        try:
            return f"read {self.socket.recv(100)!r}"
        except OSError as error:
            return type(error).__name__
