"""Objects that few programs have: processes in rare states, descriptors of rare kinds, and listeners with options."""
import ctypes
import mmap
import os
import select
import signal
import socket

from calls import called, libc

MAP_GROWSDOWN, MAP_NORESERVE, MREMAP_MAYMOVE = 0x100, 0x4000, 1
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]


def state_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


class States:
    """A zombie, a stopped process, the descriptor of a process, and signals that wait."""

    def __init__(self):
        self.zombie = self._fork(lambda: os._exit(7))
        self.stopped, self.watched = (self._fork(signal.pause) for _ in range(2))
        os.kill(self.stopped, signal.SIGSTOP)
        self.pidfd = os.pidfd_open(self.watched)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGRTMIN})
        self.turn = 0
        self._send()

    def _fork(self, act):
        pid = os.fork()
        if not pid:
            while True:
                act()
        return pid

    def _send(self):
        """Signals that wait until they are taken: of one kind once, of the other each."""
        self.turn += 1
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGRTMIN)

    def _take(self):
        found = []
        while info := signal.sigtimedwait({signal.SIGUSR1, signal.SIGRTMIN}, 0):
            assert info.si_pid == os.getpid(), info
            found.append(info.si_signo)
        assert found == [signal.SIGUSR1] + 3 * [signal.SIGRTMIN], found

    def step(self):
        self._take()
        self._send()
        assert (state_of(self.zombie), state_of(self.stopped)) == ("Z", "T"), (state_of(self.zombie), state_of(self.stopped))
        os.kill(self.stopped, signal.SIGCONT)
        assert os.waitpid(self.stopped, os.WCONTINUED)[0] == self.stopped
        os.kill(self.stopped, signal.SIGSTOP)
        assert os.waitpid(self.stopped, os.WUNTRACED)[0] == self.stopped
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        assert not poll.poll(0), "a process that lives has ended"
        signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
        assert poll.poll(5000), "the descriptor of a process that ends says nothing"
        assert os.waitpid(self.watched, 0)[1] == signal.SIGTERM
        os.close(self.pidfd)
        self.watched = self._fork(signal.pause)
        self.pidfd = os.pidfd_open(self.watched)
        return [self.zombie, self.stopped]

    def reap(self):
        assert os.waitpid(self.zombie, 0)[1] == 7 << 8


class Descriptors:
    """A directory that is half read, O_PATH, a file without a name, FIFOs, files of /proc, and a socket's name in a volume."""

    def __init__(self):
        os.mkdir("/srv/many")
        self.names = {f"name{number}" for number in range(500)}
        for name in self.names:
            open(f"/srv/many/{name}", "w").close()
        self.found = set()
        self.listing = os.scandir("/srv/many")
        self.path = os.open("/srv/many", os.O_PATH)
        self.unnamed = os.open("/srv", os.O_TMPFILE | os.O_RDWR, 0o600)
        os.write(self.unnamed, b"without a name")
        os.mkfifo("/srv/fifo")
        self.fifo = os.open("/srv/fifo", os.O_RDWR)
        os.write(self.fifo, b"turn 0")
        self.status = open("/proc/self/status")
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind("/srv/socket")
        self.server.listen()
        self.devices = [os.open(f"/dev/{name}", os.O_RDWR) for name in ("null", "zero", "full", "urandom")]
        self.turn = 0

    def step(self):
        for _ in range(20):
            if entry := next(self.listing, None):
                assert entry.name in self.names - self.found, entry.name
                self.found.add(entry.name)
        assert os.readlink(f"/proc/self/fd/{self.path}") == "/srv/many"
        assert os.stat("name1", dir_fd=self.path).st_size == 0
        assert os.pread(self.unnamed, 100, 0) == b"without a name" and os.fstat(self.unnamed).st_nlink == 0
        assert os.read(self.fifo, 100) == b"turn %d" % self.turn
        self.turn += 1
        os.write(self.fifo, b"turn %d" % self.turn)
        self.status.seek(0)
        assert self.status.readline().startswith("Name:")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect("/srv/socket")
            peer, _ = self.server.accept()
            with peer:
                peer.sendall(b"hello")
                assert client.recv(10) == b"hello"
        null, zero, full, random = self.devices
        assert os.read(null, 10) == b"" and os.read(zero, 3) == bytes(3) and len(os.read(random, 9)) == 9
        try:
            os.write(full, b"x")
        except OSError:
            return
        raise AssertionError("/dev/full takes bytes")

    def rest(self):
        """All that is left of the listing."""
        self.found |= {entry.name for entry in self.listing}
        assert self.found == self.names, self.names - self.found


class Listeners:
    """Listeners with options: IPv6, both families, two at one port; and bound sockets."""

    OPTIONS = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
               (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 33),
               (socket.SOL_SOCKET, socket.SO_RCVBUF, 50000), (socket.SOL_SOCKET, socket.SO_PRIORITY, 3))

    def __init__(self):
        self.six = socket.socket(socket.AF_INET6)
        self.six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self.six.bind(("::1", 0))
        self.six.listen(7)
        self.dual = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.shared = [socket.create_server(("127.0.0.1", 0), reuse_port=True)]
        self.shared.append(socket.create_server(self.shared[0].getsockname(), reuse_port=True))
        for level, option, value in self.OPTIONS:
            self.six.setsockopt(level, option, value)
        self.before = self._options()
        self.bound = socket.socket()
        self.bound.bind(("127.0.0.1", 0))
        self.datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.datagrams.bind(("::1", 0))
        self.datagrams.settimeout(5)

    def _options(self):
        return [self.six.getsockopt(level, option) for level, option, _ in self.OPTIONS]

    def _reached(self, listeners, address, family=socket.AF_INET):
        with socket.socket(family) as client:
            client.settimeout(5)
            client.connect(address)
            ready = select.select(listeners, [], [], 5)[0]
            assert ready, f"nobody is asked at {address}"
            peer, _ = ready[0].accept()
            with peer:
                peer.sendall(b"hello")
                assert client.recv(10) == b"hello"

    def step(self):
        assert self._options() == self.before, f"{self._options()} instead of {self.before}"
        self._reached([self.six], self.six.getsockname()[:2], socket.AF_INET6)
        port = self.dual.getsockname()[1]
        self._reached([self.dual], ("127.0.0.1", port))
        self._reached([self.dual], ("::1", port), socket.AF_INET6)
        for _ in range(10):
            self._reached(self.shared, self.shared[0].getsockname())
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as client:
            client.sendto(b"six", self.datagrams.getsockname())
            assert self.datagrams.recvfrom(10)[0] == b"six"
        return [one.getsockname()[1] for one in (self.six, self.dual, *self.shared, self.bound, self.datagrams)]

    def listen(self):
        """The bound socket takes connections from now on."""
        self.bound.listen()
        self._reached([self.bound], self.bound.getsockname())


class Mappings:
    """Memory behind rare rights: unreadable, read-only, locked, advised, growing down, without reserve, and moved."""

    def __init__(self):
        self.pages = {}
        for name, flags in (("hidden", 0), ("constant", 0), ("locked", 0), ("moved", 0), ("down", MAP_GROWSDOWN), ("sparse", MAP_NORESERVE)):
            address = called("mmap", None, 1 << 20, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags, -1, 0)
            for page in range(16, 48):
                ctypes.memset(address + page * 4096, page, 4096)
            self.pages[name] = address
        called("mlock", self.pages["locked"], 1 << 20)
        called("mprotect", self.pages["hidden"], 1 << 20, 0)
        called("mprotect", self.pages["constant"], 1 << 20, 1)
        self.pages["moved"] = libc.mremap(self.pages["moved"], 1 << 20, 2 << 20, MREMAP_MAYMOVE)
        # A child of before, which has its pages in common.
        self.read, write = os.pipe()
        self.ask_read, self.ask = os.pipe()
        if not os.fork():
            while os.read(self.ask_read, 1):
                os.write(write, b"ok" if self._right() else b"no")

    def _right(self):
        called("mprotect", self.pages["hidden"], 1 << 20, 1)
        right = all(ctypes.string_at(address + page * 4096, 4096) == bytes([page if 16 <= page < 48 else 0]) * 4096
                    for address in self.pages.values() for page in range(8, 56))
        called("mprotect", self.pages["hidden"], 1 << 20, 0)
        return right

    def step(self):
        assert self._right(), "pages have other bytes"
        os.write(self.ask, b"?")
        assert os.read(self.read, 2) == b"ok", "a child's pages have other bytes"
