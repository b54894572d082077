"""Ports, and a network of one's own."""
import contextlib
import ctypes
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000


def own_network() -> str:
    """Moves this process into a network of its own with a loopback interface, and into mounts of its own; result: why
    that cannot be, or nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET | CLONE_NEWNS) != 0:
        return f"cannot make a network namespace: {os.strerror(ctypes.get_errno())}; run as root"
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return ""


# Below those that the host gives to clients (ip_local_port_range): a client that tries again and again until somebody listens would at some
# time be given the port itself, be connected to itself, and wait for its own answer.
PORTS = range(12000, 32000)


def free_port() -> int:
    """A TCP port of this network that nobody listens at now, and no client is given."""
    while True:
        port = random.choice(PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def listeners(port: int) -> Iterator[int]:
    """For each socket of this network that listens at a TCP port, how many connections to it nobody has accepted: the receive
    queue of its row in proc(5)'s table."""
    for table in ("tcp", "tcp6"):
        for row in map(str.split, Path("/proc/net", table).read_text().splitlines()[1:]):
            if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port:
                yield int(row[4].rpartition(":")[2], 16)


def is_served(port: int) -> bool:
    """Whether somebody in this network listens at a TCP port. (Connecting would disturb servers like iperf3.)"""
    return any(True for _ in listeners(port))
