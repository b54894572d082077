"""What /proc/net says about this program's own sockets: own_sockets.py FOREIGN (a port that somebody else listens at)"""
import os
import socket
import sys


def rows(table):
    with open(f"/proc/net/{table}") as file:
        return [line.split() for line in file.readlines()[1:]]


def port_of(end):
    return int(end.rsplit(":", 1)[1], 16)


listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
client = socket.create_connection(("127.0.0.1", port))
server, _ = listener.accept()
client.sendall(b"12345")
names = {port: "listener", client.getsockname()[1]: "client"}
found = []
for row in rows("tcp"):
    local, remote, state, queues, inode = row[1], row[2], row[3], row[4], int(row[9])
    # Somebody may have had the same port lately (TIME_WAIT).
    if port_of(local) not in names or state == "06":
        continue
    found.append((names[port_of(local)], names.get(port_of(remote), "-"), state, queues.split(":")[1], inode))
owners = {os.stat(each.fileno()).st_ino: name for each, name in ((listener, "a"), (client, "b"), (server, "c"))}
for local, remote, state, waiting, inode in sorted(found):
    print("tcp", local, remote, state, waiting, owners.get(inode, "?"))
six = socket.create_server(("::1", 0), family=socket.AF_INET6)
print("tcp6", [row[1].split(":")[0] for row in rows("tcp6") if port_of(row[1]) == six.getsockname()[1]])
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 0))
print("udp", [(row[1].split(":")[0], row[3]) for row in rows("udp") if port_of(row[1]) == udp.getsockname()[1]])
unix = socket.socket(socket.AF_UNIX)
unix.bind("\0dormouse-own-sockets")
unix.listen()
print("unix", [row[3:6] for row in rows("unix") if row[-1] == "@dormouse-own-sockets"])
print("foreign", any(port_of(row[1]) == int(sys.argv[1]) for row in rows("tcp")))
