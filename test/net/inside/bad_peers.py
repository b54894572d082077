"""Meets peers with bad manners, and says what came of it: bad_peers.py RESET STALL DRIBBLE CLOSED (ports)"""
import errno
import select
import socket
import sys
import time

RESET, STALL, DRIBBLE, CLOSED = map(int, sys.argv[1:])


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def outcome(call):
    try:
        return repr(call())
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)


with connect(RESET) as peer:
    print("reset: read", outcome(lambda: peer.recv(10, socket.MSG_WAITALL)))
    poll = select.poll()
    poll.register(peer, select.POLLIN | select.POLLRDHUP)
    time.sleep(0.5)
    events = poll.poll(5000)[0][1]
    print("reset: poll", bool(events & select.POLLERR), bool(events & select.POLLHUP), bool(events & select.POLLIN))
    print("reset: read", outcome(lambda: peer.recv(10)))
    print("reset: read again", outcome(lambda: peer.recv(10)))
    print("reset: write", outcome(lambda: peer.send(b"x")))

with connect(STALL) as peer:
    peer.settimeout(0.3)
    start = time.monotonic()
    print("stall: read", outcome(lambda: peer.recv(1)), 0.25 < time.monotonic() - start < 3)
    # Until all buffers are full.
    sent = 0
    try:
        while True:
            sent += peer.send(bytes(65536))
    except TimeoutError:
        print("stall: write times out", sent >= 65536)
    peer.setblocking(False)
    while (result := outcome(lambda: peer.send(bytes(65536)))).isdigit():
        time.sleep(0.01)
    print("stall: write", result)
    print("stall: can be written", select.select([], [peer], [], 0.1)[1] == [peer])

with connect(DRIBBLE) as peer:
    start, got, times = time.monotonic(), b"", []
    while byte := peer.recv(100):
        got += byte
        times.append(time.monotonic() - start)
    print("dribble:", got, len(times), 1.5 < times[-1] < 6)

print("closed:", outcome(lambda: connect(CLOSED)))
late = socket.socket()
late.setblocking(False)
print("closed: at once", errno.errorcode[late.connect_ex(("127.0.0.1", CLOSED))])
select.select([], [late], [], 5)
print("closed: later", errno.errorcode[late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
