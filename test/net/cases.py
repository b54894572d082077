"""The cases: each a program on one side and its peers outside."""
import json
import os
import re
import time
from pathlib import Path

import peers
from lib.outcome import Failure, Skip, check
from lib.tree import SEARCH
from lib.waiting import comes
from world import INSIDE, new_port

MB = 1 << 20
ALL = []


class Case:
    def __init__(self, run, name, needs, sides):
        self.run, self.name, self.needs, self.sides = run, name, needs, sides


def case(*needs, sides=("native", "sandbox")):
    """A case, named as its function; `needs`: programs it cannot do without."""
    def add(run):
        ALL.append(Case(run, run.__name__.replace("_", "-"), needs, sides))
        return run
    return add


def inside(name):
    return INSIDE / name


@case("python3")
def http_server(side):
    """python -m http.server under 200 concurrent clients."""
    path, digest = side.file("page", 20_000)
    port = new_port()
    side.serve(port, "python3", "-m", "http.server", "--bind", "127.0.0.1", "--directory", path.parent, port)
    peers.http_clients(port, f"/{path.name}", digest, clients=200)


@case("python3")
def asyncio_server(side):
    port = new_port()
    side.serve(port, "python3", inside("echo_asyncio.py"), port)
    peers.echo_clients(port, clients=200, times=20, size=1000)
    peers.echo_clients(port, clients=4, times=4, size=MB)


@case("python3", "openssl")
def tls_server(side):
    port, certificate = new_port(), side.dir / "certificate.pem"
    key = side.dir / "key.pem"
    side.run_outside("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                     "-subj", "/CN=test", "-days", "1", "-keyout", key, "-out", certificate)
    certificate.write_text(certificate.read_text() + key.read_text())
    side.serve(port, "python3", inside("echo_tls.py"), port, certificate)
    peers.echo_clients(port, clients=200, times=3, size=20_000, tls=peers.client_tls())


def nginx_configuration(side, port, root):
    file = side.dir / "nginx.conf"
    temporary = "".join(f"{kind}_temp_path {side.dir}/{kind};" for kind in
                        ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file.write_text(f"""
        user root; worker_processes 2; daemon off; pid {side.dir}/nginx.pid; error_log stderr warn;
        events {{ worker_connections 2048; }}
        http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; {temporary}
            dav_methods off; client_max_body_size 0;
            server {{ listen 127.0.0.1:{port} backlog=4096; listen [::1]:{port}; root {root}; }} }}""".replace(
                "dav_methods off;", ""))
    return file


def start_nginx(side, root):
    port = new_port()
    configuration = nginx_configuration(side, port, root)
    side.serve(port, "nginx", "-p", side.dir, "-e", "stderr", "-c", configuration)
    return port


@case("curl", "nginx")
def curl_from_inside(side):
    """A large file comes to the sandbox's curl whole, and a short one over IPv6."""
    path, digest = side.file("large", 1024 * MB if side.full else 100 * MB)
    port, configuration = new_port(), None
    configuration = nginx_configuration(side, port, path.parent)
    server = side.outside("nginx", "-p", side.dir, "-e", "stderr", "-c", configuration)
    side.until_served(server, port)
    got = side.run("sh", "-c", f"curl -sS http://127.0.0.1:{port}/{path.name} | sha256sum", timeout=300)
    check(got[:64] == digest, f"the file came with checksum {got[:64]} instead of {digest}")
    small, digest = side.file("page", 20_000)
    got = side.run("sh", "-c", f"curl -sS -6 'http://[::1]:{port}/{small.name}' | sha256sum")
    check(got[:64] == digest, "the file that came over IPv6 is another")


def same_file(original, copy):
    """Fails with what a copy has instead."""
    with open(original, "rb") as right, open(copy, "rb") as got:
        at = 0
        while True:
            ours, theirs = right.read(MB), got.read(MB)
            if ours != theirs:
                first = next((n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
                last = max((n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b), default=first)
                zeros = not any(theirs[first:last + 1])
                raise Failure(f"the copy has {os.path.getsize(copy)} bytes and differs from {at + first} to "
                              f"{at + last}{', zeros there' if zeros else ''}: {theirs[first:first + 40]!r}")
            if not ours:
                return
            at += len(ours)


@case("curl", "nginx")
def curl_to_inside(side):
    """A large file comes whole from a server in the sandbox."""
    path, _ = side.file("large", 1024 * MB if side.full else 100 * MB)
    port = start_nginx(side, path.parent)
    copy = side.dir / "copy"
    side.run_outside("curl", "-sS", "-f", "-o", copy, f"http://127.0.0.1:{port}/{path.name}", timeout=300)
    same_file(path, copy)


class Uploads:
    """A server outside that takes one upload after another and remembers their checksums."""

    def __init__(self):
        self.digests = []

    def serve(self, connection):
        import hashlib
        file = connection.makefile("rb")
        length = 0
        while line := file.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
            if line.lower() == b"expect: 100-continue":
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        digest, left = hashlib.sha256(), length
        while left and (part := file.read1(min(left, MB))):
            digest.update(part)
            left -= len(part)
        self.digests.append(digest.hexdigest())
        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@case("curl")
def curl_upload(side):
    """A large file goes out of the sandbox whole."""
    path, digest = side.file("large", 1024 * MB if side.full else 100 * MB)
    uploads = Uploads()
    with peers.Server(uploads.serve) as server:
        side.run("curl", "-sS", "-f", "-T", path, f"http://127.0.0.1:{server.port}/", timeout=300)
    check(uploads.digests == [digest], f"what arrived has checksum {uploads.digests}")


@case("redis-server", "redis-benchmark")
def redis(side):
    """redis-benchmark, and beside it a client that reads back what it writes."""
    port = new_port()
    side.serve(port, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", side.dir)
    verifier = peers.Verifier(port)
    verifier.start()
    count = 200_000 if side.full else 20_000
    text = side.run_outside("redis-benchmark", "-p", port, "-c", "50", "-n", count, "-q", "-t",
                            "ping,set,get,incr,lpush,mset", timeout=120)
    piped = side.run_outside("redis-benchmark", "-p", port, "-c", "50", "-n", count, "-q", "-P", "16", "-t", "set,get")
    verifier.stop()
    rates = re.findall(r"([\d.]+) requests per second", text + piped)
    check(len(rates) == 9, f"redis-benchmark gave {len(rates)} figures: {text.split()}")
    error = side.run_outside("redis-cli", "-p", port, "info", "stats")
    check("total_error_replies:0" in error.replace("\r", ""), "redis answered with errors")


@case("nginx", "wrk", "curl")
def nginx(side):
    small, small_digest = side.file("page", 1024)
    large, large_digest = side.file("page", 100 << 10)
    port = start_nginx(side, small.parent)
    for file, digest in ((small, small_digest), (large, large_digest)):
        url = f"http://127.0.0.1:{port}/{file.name}"
        text = side.run_outside("wrk", "-t2", "-c50", "-d5s" if side.full else "-d1s", url)
        check("Socket errors" not in text and "Non-2xx" not in text, f"wrk saw errors: {' '.join(text.split())}")
        check(re.search(r"Requests/sec: +[1-9]", text), f"wrk got no answers: {' '.join(text.split())}")
        got = side.run_outside("sh", "-c", f"curl -sS {url} | sha256sum")
        check(got[:64] == digest, f"{file.name} came with another checksum")


@case("memcached")
def memcached(side):
    port = new_port()
    side.serve(port, "memcached", "-u", "root", "-l", "127.0.0.1", "-p", port, "-U", "0", "-t", "2")
    peers.memcached_clients(port, clients=100, times=40 if side.full else 12)


def iperf3_bytes(text, extra):
    answer = json.loads(text)
    check("error" not in answer, f"iperf3: {answer.get('error')}")
    end = answer["end"]
    sent, received = end["sum_sent"]["bytes"], end["sum_received"]["bytes"]
    check(received > 0 and sent >= received, f"iperf3 {extra}: {sent} bytes were sent and {received} received")


@case("iperf3")
def iperf3(side):
    """As server and as client, in both directions, and over UDP."""
    seconds = "5" if side.full else "1"
    port = new_port()
    side.serve(port, "iperf3", "-s", "-p", port)
    for extra in ([], ["-R"], ["-P", "4"]):
        text = side.run_outside("iperf3", "-c", "127.0.0.1", "-p", port, "-t", seconds, "-J", *extra)
        iperf3_bytes(text, extra)
    port = new_port()
    side.until_served(side.outside("iperf3", "-s", "-p", port), port)
    for extra in ([], ["-R"]):
        iperf3_bytes(side.run("iperf3", "-c", "127.0.0.1", "-p", port, "-t", seconds, "-J", *extra), extra)
    text = side.run("iperf3", "-c", "127.0.0.1", "-p", port, "-t", "1", "-u", "-b", "20M", "-J")
    check(json.loads(text)["end"]["sum"]["lost_percent"] < 20, "iperf3 lost a fifth of its datagrams")


@case("sshd", "ssh", "scp", "ssh-keygen")
def openssh(side):
    """A login with a command's status, one with a terminal, and files by scp both ways."""
    port, host_key, key = new_port(), side.dir / "host", side.dir / "key"
    for file in (host_key, key):
        side.run_outside("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file)
    configuration = side.dir / "sshd_config"
    configuration.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {host_key}\nAuthorizedKeysFile {key}.pub\nStrictModes no\n"
        "UsePAM no\nPermitRootLogin yes\nPidFile none\nSubsystem sftp internal-sftp\nPrintMotd no\nPrintLastLog no\n"
        "UseDNS no\n")
    # As an absolute path, since it starts itself again.
    server = next(f"{folder}/sshd" for folder in SEARCH.split(":") if Path(folder, "sshd").exists())
    side.serve(port, "sh", "-c", f"mkdir -p /run/sshd; exec {server} -D -e -f {configuration}")
    options = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o",
               "LogLevel=ERROR", "-o", "BatchMode=yes", "-i", key]
    ssh = ["ssh", *options, "-p", port, "root@127.0.0.1"]
    text = side.run_outside(*ssh, "echo hello from $SSH_CONNECTION; exit 7", code=7)
    check(re.fullmatch(rf"hello from 127.0.0.1 \d+ 127.0.0.1 {port}\n", text), f"the login said {text!r}")
    text = side.run_outside("ssh", "-tt", *ssh[1:], "stty size; tty; echo done")
    check("/dev/pts/" in text and "done" in text, f"the login with a terminal said {text!r}")
    path, digest = side.file("scp", 5 * MB)
    back = side.dir / "back"
    target = f"{side.dir}/up"
    side.run_outside("scp", *options, "-P", port, path, f"root@127.0.0.1:{target}")
    check(side.run_outside(*ssh, f"sha256sum {target}")[:64] == digest, "the file arrived with another checksum")
    side.run_outside("scp", *options, "-P", port, f"root@127.0.0.1:{target}", back)
    got = side.run_outside("sha256sum", back)
    check(got[:64] == digest, "the file came back with another checksum")


@case("getent", "python3")
def dns(side):
    """glibc's resolver asks over UDP, and over TCP when the answer is cut."""
    with peers.NameServer():
        text = side.run("getent", "ahostsv4", "one.example.test")
        check(text.split()[0] == "10.1.2.3", f"getent said {text!r}")
        script = "import socket; print(len({a[4][0] for a in socket.getaddrinfo('big.example.test', 1, 0, 1)}))"
        check(side.run("python3", "-c", script) == "40\n", "not all addresses of the long answer came")
        side.run("getent", "hosts", "nobody.elsewhere", code=2)


@case("python3")
def udp_echo(side):
    port = new_port()
    server = side.launch("python3", inside("echo_udp.py"), port)
    ready = comes(lambda: "ready" in Path(server.out_path).read_text() or server.process.poll() is not None, 20)
    check(ready and server.process.poll() is None, f"no server: {server.remarks()}")
    start = time.monotonic()
    peers.udp_echo(port, 100_000)
    side.note(f"{100_000 / (time.monotonic() - start):.0f} datagrams/s")


def room_for(count):
    import resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < count + 500:
        raise Skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@case("python3")
def ten_thousand_out(side):
    """A program that opens 10,000 connections."""
    room_for(10_000)
    with peers.EchoMany() as server:
        text = side.run("python3", inside("connect_many.py"), server.port, 10_000, timeout=120)
        check(text == "10000 connections, 10000 ports, 10000 echoes\n", text)
        check(server.most == 10_000, f"the server saw {server.most} at once")


@case("python3")
def ten_thousand_in(side):
    """A server that holds 10,000 connections."""
    room_for(10_000)
    port = new_port()
    side.serve(port, "python3", inside("echo_asyncio.py"), port)
    peers.many_connections(port, 10_000)
    # It lives, and what is closed is closed.
    peers.echo_clients(port, clients=10, times=2, size=100)


BAD_PEERS = """\
reset: read b'0123456789'
reset: poll True True True
reset: read ECONNRESET
reset: read again b''
reset: write EPIPE
stall: read TimeoutError True
stall: write times out True
stall: write EAGAIN
stall: can be written False
dribble: b'abc' 3 True
closed: ECONNREFUSED
closed: at once EINPROGRESS
closed: later ECONNREFUSED
"""


@case("python3")
def bad_peers(side):
    """Peers that reset, stall, or send one byte a second."""
    closed = new_port()
    with peers.Server(peers.reset) as reset, peers.Server(peers.stall) as stall, peers.Server(peers.dribble) as dribble:
        text = side.run("python3", inside("bad_peers.py"), reset.port, stall.port, dribble.port, closed)
    for got, wanted in zip(text.splitlines(), BAD_PEERS.splitlines()):
        check(got == wanted, f"{got!r} instead of {wanted!r}")
    check(text == BAD_PEERS, "lines are missing or too many")


@case("python3")
def bad_clients(side):
    """Clients that reset, stall, and dribble do not keep a server from its others."""
    import socket
    import struct
    port = new_port()
    side.serve(port, "python3", inside("echo_asyncio.py"), port)
    stalled = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    try:
        for connection in stalled:
            connection.setblocking(False)
            try:
                # Never reads what comes back.
                while connection.send(bytes(65536)):
                    pass
            except BlockingIOError:
                pass
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"x" * 5000)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        slow = socket.create_connection(("127.0.0.1", port))
        for byte in b"abc":
            slow.sendall(bytes([byte]))
            check(slow.recv(1) == bytes([byte]), "a single byte did not come back")
            peers.echo_clients(port, clients=20, times=5, size=1000, timeout=20)
            time.sleep(0.3)
        slow.close()
    finally:
        for connection in stalled:
            connection.close()
    peers.echo_clients(port, clients=20, times=5, size=1000, timeout=20)


@case("ping")
def ping(side):
    text = side.run("ping", "-n", "-c", "3", "-i", "0.2", "127.0.0.1")
    check("3 packets transmitted, 3 received, 0% packet loss" in text, text)
    text = side.run("ping", "-6", "-n", "-c", "2", "-i", "0.2", "::1")
    check("2 packets transmitted, 2 received" in text, text)


# Values that Linux counts, or measures, between one look and the next.
CHANGING = re.compile(r"valid_lft \S+ preferred_lft \S+|used \S+|\b[RT]X.*(\n.*)?|STALE|REACHABLE|DELAY")


def same_inside_and_outside(side, *words):
    ours, theirs = side.run_outside(*words), side.run(*words)
    # Linux keeps addresses in a hash table, and shows them in its order.
    ours, theirs = (sorted(CHANGING.sub("", text).splitlines()) for text in (ours, theirs))
    check(ours, f"{' '.join(map(str, words))} says nothing")
    for our, their in zip(ours, theirs):
        check(our == their, f"{' '.join(map(str, words))} says {their!r} instead of {our!r}")
    check(len(ours) == len(theirs), f"{' '.join(map(str, words))} says {len(theirs)} lines instead of {len(ours)}")


@case("ip", sides=("sandbox",))
def ip_shows_the_network(side):
    for words in ("ip addr", "ip -d link", "ip route", "ip -6 route", "ip route show table all", "ip neigh", "ip rule",
                  "ip -j addr show dev lo", "ip route get 127.0.0.1", "cat /proc/net/route", "cat /proc/net/if_inet6",
                  "cat /proc/net/arp"):
        same_inside_and_outside(side, *words.split())


@case("ip")
def ip_changes_nothing(side):
    if side.name == "native":
        return
    for words in ("ip link set lo down", "ip addr add 10.99.0.1/24 dev lo", "ip route add 10.99.0.0/16 dev lo",
                  "ip link add name other type dummy"):
        side.run(*words.split(), code=2)
    check("10.99" not in side.run_outside("ip", "addr"), "the sandbox changed the host's addresses")
    check("UP" in side.run_outside("ip", "link", "show", "lo"), "the sandbox took lo down")


@case("hostname", "ifconfig", "python3", sides=("sandbox",))
def getifaddrs(side):
    same_inside_and_outside(side, "hostname", "-I")
    same_inside_and_outside(side, "python3", "-c", "import socket; print(socket.if_nameindex())")
    same_inside_and_outside(side, "ifconfig", "-a")
    same_inside_and_outside(side, "python3", inside("interfaces.py"))


OWN_SOCKETS = """\
tcp client listener 01 00000000 b
tcp listener - 0A 00000000 a
tcp listener client 01 00000005 c
tcp6 ['00000000000000000000000001000000']
udp [('0100007F', '07')]
unix [['00010000', '0001', '01']]
"""


@case("python3")
def own_sockets(side):
    """/proc/net has the program's sockets as Linux shows them, and in a sandbox nobody else's."""
    with peers.Server(peers.stall) as foreign:
        text = side.run("python3", inside("own_sockets.py"), foreign.port)
    wanted = OWN_SOCKETS + f"foreign {side.name == 'native'}\n"
    check(text == wanted, f"{text.split()} instead of {wanted.split()}")


@case("ss", "nginx")
def ss_lists(side):
    """`ss` and `netstat`, which fall back on /proc/net."""
    port = new_port()
    script = (f"python3 {inside('echo_asyncio.py')} {port} & i=0; "
              f"until ss -Htln 2>/dev/null | grep -q ':{port} ' || [ $i = 300 ]; do i=$((i+1)); sleep 0.1; done; "
              "ss -Htln 2>/dev/null; kill $!")
    text = side.run("sh", "-c", script)
    check(re.search(rf"LISTEN +\d+ +\d+ +127.0.0.1:{port} ", text), f"ss said {text!r}")


@case("python3", "ip", sides=("sandbox",))
def no_network(side):
    """`--net none`: loopback works, and nothing else is there."""
    side.prefix.insert(2, "--net=none")
    text = side.run("ip", "-o", "addr")
    check(text.count("\n") == 2 and " 127.0.0.1/8 " in text and "eth" not in text, f"ip said {text!r}")
    with peers.Server(peers.dribble) as server:
        script = (f"import socket\ns = socket.create_server(('127.0.0.1', {server.port}))\n"
                  f"c = socket.create_connection(('127.0.0.1', {server.port})); a, _ = s.accept(); c.send(b'own')\n"
                  "print(a.recv(9)); s.close(); c.close(); a.close()\n"
                  f"try: socket.create_connection(('10.77.0.1', {server.port}), 2)\nexcept OSError as e: print(e.errno)")
        text = side.run("python3", "-c", script)
    check(text == "b'own'\n101\n", f"{text!r} instead of its own loopback alone")
