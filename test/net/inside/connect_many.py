"""Opens many connections, holds them all, and speaks on each: connect_many.py PORT COUNT"""
import resource
import socket
import struct
import sys

port, count = int(sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
for number, connection in enumerate(held):
    connection.sendall(struct.pack("!I", number))
right = sum(connection.recv(4, socket.MSG_WAITALL) == struct.pack("!I", number) for number, connection in enumerate(held))
ports = {connection.getsockname()[1] for connection in held}
print(f"{len(held)} connections, {len(ports)} ports, {right} echoes")
