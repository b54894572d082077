//! The program whose sandbox gets one VMM after the other.

/// It prints the port that it serves, and answers each line of its input: `right WORD`, or what was wrong.
pub const TEXT: &str = r#"
import ctypes, fcntl, hashlib, mmap, os, select, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
# With a word behind it the next VMM has none of the sandbox's files: what is on the host without a name is lost, and so is who was there.
is_afresh = len(sys.argv) > 1
wrong = []
def check(what, holds):
    if not holds: wrong.append(what)

# Made once, and the same ever after.
nonce = os.urandom(16)
heap = [os.urandom(32) for _ in range(5000)]
pattern = b"".join(struct.pack("<QQ", os.getpid(), at) for at in range(1 << 18))
digests = [hashlib.sha256(part).digest() for part in (pattern, b"".join(heap))]
private = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
private[:] = nonce * (1 << 16)
shared = mmap.mmap(-1, 1 << 16)
image = open("/usr/bin/python3", "rb")
mapped = mmap.mmap(image.fileno(), 1 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
first_page = hashlib.sha256(mapped[:1 << 20]).digest()

# Bytes that lie in pipes and sockets, half read; in a file of the host's; positions.
r, w = os.pipe()
os.write(w, bytes(range(250)) * 200)
ours, theirs = socket.socketpair()
tcp_server = socket.create_server(("127.0.0.1", 0))
tcp_ours = socket.create_connection(tcp_server.getsockname())
tcp_theirs, _ = tcp_server.accept()
datagrams = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for one in datagrams: one.bind(("127.0.0.1", 0))
log = open("/srv/log", "w+b", buffering=0)
unlinked = open("/srv/gone", "w+b", buffering=0)
os.unlink("/srv/gone")
fcntl.lockf(log, fcntl.LOCK_EX, 10, 5)
fcntl.flock(log, fcntl.LOCK_SH)

# Waiters of all kinds.
epoll = select.epoll()
epoll.register(ours, select.EPOLLIN | select.EPOLLET)
epoll.register(tcp_ours, select.EPOLLIN)
event = os.eventfd(3, os.EFD_NONBLOCK)
timer = libc.timerfd_create(1, 0o4000)
libc.timerfd_settime(timer, 0, struct.pack("4q", 0, 20_000_000, 0, 20_000_000), None)
notify = libc.inotify_init1(0o4000)
watch = libc.inotify_add_watch(notify, b"/srv", 0x100)
assert min(timer, notify, watch) >= 0
alarms = 0
def alarm(*_):
    global alarms
    alarms += 1
signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)

# System V objects.
segment = libc.shmget(0, 8192, 0o1600)
libc.shmat.restype = ctypes.c_void_p
at = libc.shmat(segment, None, 0)
ctypes.memmove(at, nonce, 16)
semaphore = libc.semget(0, 1, 0o1600)
queue = libc.msgget(0, 0o1600)
class Message(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_long), ("text", ctypes.c_char * 16)]
def send(): return libc.msgsnd(queue, ctypes.byref(Message(1, nonce[:15])), 16, 0)
check("msgsnd", send() == 0)

# A child, threads, and a lock between them.
child = os.fork()
if child == 0:
    signal.setitimer(signal.ITIMER_REAL, 0)
    ours.close()
    while byte := theirs.recv(1):
        shared[ord(byte)] = (shared[ord(byte)] + 1) % 256
        theirs.send(b"done")
    os._exit(3)
ticks = 0
def tick():
    global ticks
    while True:
        time.sleep(0.01)
        ticks += 1
threading.Thread(target=tick, daemon=True).start()
asked, answered = threading.Semaphore(0), threading.Semaphore(0)
def answer():
    while asked.acquire(): answered.release()
threading.Thread(target=answer, daemon=True).start()

# A server, for somebody outside.
server = socket.create_server(("127.0.0.1", 0))
resets, options = 0, [(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 0), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
for option in options: server.setsockopt(*option)
def serve(connection):
    global resets
    try:
        while line := connection.recv(100): connection.sendall(b"again " + line)
    except ConnectionResetError:
        resets += 1
        check("after reset", connection.recv(10) == b"" and select.select([connection], [], [], 0)[0])
def accept():
    while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
print(server.getsockname()[1], flush=True)

for rounds, line in enumerate(sys.stdin, 1):
    # The answers of the last round have waited meanwhile.
    if rounds > 1:
        check("epoll", ours.fileno() in [fd for fd, _ in epoll.poll(10)])
        check("socket", ours.recv(4) == b"done")
        if is_afresh:
            until = time.monotonic() + 60
            while resets < rounds - 1 and time.monotonic() < until: time.sleep(0.001)
            check("resets", resets == rounds - 1)
            check("option", all(bool(server.getsockopt(*option[:2])) == bool(option[2]) for option in options))
        else:
            check("datagram", datagrams[1].recv(100) == b"number %d" % (rounds - 1))
        # Its own connection is kept, and what lies in it.
        check("tcp", tcp_ours.recv(100) == b"number %d" % (rounds - 1))
        check("inotify", len(os.read(notify, 4096)) > 16)
        check("log", os.pread(log.fileno(), 100, 10 * (rounds - 2)) == b"%9d\n" % (rounds - 1))
        os.wait()
    before, began, alarmed = ticks, time.monotonic(), alarms
    while ticks - before < 3 or alarms == alarmed: time.sleep(0.001)
    check("time", 0.02 <= time.monotonic() - began < 60)
    check("timerfd", struct.unpack("Q", os.read(timer, 8))[0] > 0 if select.select([timer], [], [], 30)[0] else False)
    check("memory", [hashlib.sha256(part).digest() for part in (pattern, b"".join(heap))] == digests)
    check("private", private[:] == nonce * (1 << 16))
    check("file", hashlib.sha256(mapped[:1 << 20]).digest() == first_page)
    check("shm", ctypes.string_at(at, 16) == nonce)
    message = Message()
    check("msgrcv", libc.msgrcv(queue, ctypes.byref(message), 16, 0, 0) == 16 and message.text == nonce[:15].split(b"\0")[0] and send() == 0)
    check("semaphore", libc.semctl(semaphore, 0, 16, rounds) == 0 and libc.semctl(semaphore, 0, 12) == rounds)
    if rounds <= 200: check("pipe", os.read(r, 250) == bytes(range(250)))
    check("eventfd", os.eventfd_read(event) == 3)
    os.eventfd_write(event, 3)
    asked.release()
    check("futex", answered.acquire(timeout=60))
    os.write(log.fileno(), b"%9d\n" % rounds)
    unlinked.write(nonce)
    check("unlinked", unlinked.tell() == 16 * rounds and os.pread(unlinked.fileno(), 1 << 20, 0) == nonce * rounds)
    open(f"/srv/made-{rounds % 3}", "w").close()
    if rounds % 3 == 0:
        for at_ in range(3): os.unlink(f"/srv/made-{at_}")
    ours.send(b"x")
    while shared[ord("x")] != rounds % 256: time.sleep(0.001)
    tcp_theirs.sendall(b"number %d" % rounds)
    datagrams[0].sendto(b"number %d" % rounds, datagrams[1].getsockname())
    if is_afresh: check("datagram", datagrams[1].recv(100) == b"number %d" % rounds)
    if os.fork() == 0:
        # A child that has ended and is waited for under the next VMM.
        os._exit(0)
    print("wrong: " + " ".join(wrong) if wrong else f"right {line.strip()}", flush=True)
    wrong.clear()
# Unread bytes would be a reset for the child.
ours.recv(4)
theirs.close()
ours.close()
os._exit(7 if os.waitpid(child, 0)[1] == 3 << 8 else 1)
"#;

/// A server of some 25 MB, which says no more than the other of each line, and does nothing else.
pub const SERVER: &str = r#"
import asyncio, concurrent.futures, decimal, email.message, http.server, json, os, socket, sqlite3, ssl, sys, threading, unittest, xml.dom.minidom
held = [bytes([at % 251]) * 1000 for at in range(6000)]
server = socket.create_server(("127.0.0.1", 0))
def serve(connection):
    while line := connection.recv(100): connection.sendall(b"again " + line)
def accept():
    while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
print(server.getsockname()[1], flush=True)
for line in sys.stdin: print(f"right {line.strip()}", flush=True)
os._exit(7)
"#;
