"""Sends datagrams back to where they came from: echo_udp.py PORT. Says `ready` once it can."""
import socket
import sys

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
while True:
    data, sender = server.recvfrom(65536)
    server.sendto(data, sender)
