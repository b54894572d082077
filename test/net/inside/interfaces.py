"""getifaddrs(3), and the requests of netdevice(7), for every interface."""
import ctypes
import fcntl
import socket
import struct

FLAGS, ADDRESS, NETMASK, MTU, HARDWARE, INDEX = 0x8913, 0x8915, 0x891B, 0x8921, 0x8927, 0x8933


class IfAddrs(ctypes.Structure):
    pass


IfAddrs._fields_ = [("next", ctypes.POINTER(IfAddrs)), ("name", ctypes.c_char_p), ("flags", ctypes.c_uint),
                    ("addr", ctypes.c_void_p), ("netmask", ctypes.c_void_p), ("broadcast", ctypes.c_void_p),
                    ("data", ctypes.c_void_p)]


def shown(pointer):
    if not pointer:
        return "-"
    family = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_ushort))[0]
    sizes = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16), socket.AF_PACKET: (4, 4)}
    at, size = sizes[family]
    return f"{family}:{ctypes.string_at(pointer + at, size).hex()}"


first = ctypes.POINTER(IfAddrs)()
assert ctypes.CDLL(None).getifaddrs(ctypes.byref(first)) == 0
entry = first
while entry:
    it = entry.contents
    print(it.name.decode(), hex(it.flags), shown(it.addr), shown(it.netmask), shown(it.broadcast))
    entry = it.next

for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    asker = socket.socket(family)
    for _, name in socket.if_nameindex():
        for request in (FLAGS, ADDRESS, NETMASK, MTU, HARDWARE, INDEX):
            try:
                answer = fcntl.ioctl(asker, request, struct.pack("16s24x", name.encode()))
                # Addresses and numbers alike are in the first eight bytes.
                print(name, hex(request), answer[16:24].hex())
            except OSError as error:
                print(name, hex(request), error.errno)
    space = bytearray(4096)
    view = (ctypes.c_char * 4096).from_buffer(space)
    length, _ = struct.unpack("iL", fcntl.ioctl(asker, 0x8912, struct.pack("iL", 4096, ctypes.addressof(view)).ljust(16, b"\0"))[:16])
    print("SIOCGIFCONF", [bytes(space[at:at + 16]).rstrip(b"\0") for at in range(0, length, 40)])
