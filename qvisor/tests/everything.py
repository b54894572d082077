"""Makes the guest's kernel ask its VMM for everything it can: each line of the VMM's list of system calls is needed by
something here. Runs inside a sandbox, in a directory of the host's. A line it prints asks the test for something on the
host, which answers with a line; the last one is `done`."""
import ctypes, fcntl, mmap, os, select, signal, socket, subprocess, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)


def ask_host(what):
    print(what, flush=True)
    assert sys.stdin.readline().strip() == "go on"


def attributes(file):
    os.setxattr(file, "user.a", b"1")
    os.getxattr(file, "user.a")
    os.listxattr(file)
    os.removexattr(file, "user.a")


def files():
    os.mkdir("d")
    with open("d/f", "wb") as f:
        f.write(b"x" * 100_000)
        f.flush()
        os.fsync(f.fileno())
        os.fdatasync(f.fileno())
        os.ftruncate(f.fileno(), 90_000)
        os.posix_fallocate(f.fileno(), 0, 200_000)
        os.lseek(f.fileno(), 0, os.SEEK_DATA)
    os.chmod("d/f", 0o600)
    os.chown("d/f", 0, 0)
    os.utime("d/f", (1, 1))
    os.truncate("d/f", 50_000)
    attributes("d/f")
    nameless = os.open("d", os.O_TMPFILE | os.O_RDWR)
    os.fchmod(nameless, 0o640)
    attributes(nameless)
    os.close(nameless)
    os.symlink("f", "d/s")
    os.readlink("d/s")
    os.link("d/f", "d/g")
    os.rename("d/g", "d/h")
    os.mkfifo("d/p")
    os.unlink("d/p")
    os.listdir("d")
    os.statvfs("d")
    with open("d/f", "rb") as f, open("d/h2", "wb") as g:
        os.copy_file_range(f.fileno(), g.fileno(), 1000)
    with open("d/f", "r+b") as f, mmap.mmap(f.fileno(), 0) as shared:
        shared[0:1] = b"y"
        shared.flush()
    # From one file system to another the host does not copy.
    with open("d/f", "rb") as f, open("/elsewhere/f", "wb") as g:
        try:
            os.copy_file_range(f.fileno(), g.fileno(), 1000)
        except OSError:
            pass
    for name in ("f", "h", "h2", "s"):
        os.unlink("d/" + name)
    os.rmdir("d")


def locks():
    with open("locked", "wb") as f:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(f, fcntl.LOCK_UN)
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.unlink("locked")


def shortened():
    """A file whose mapping ends too early, seen by the kernel's own copy."""
    with open("short", "wb") as f:
        f.write(b"x" * 8192)
    with open("short", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[5000] == 120
        ask_host("shorten")
        address = (ctypes.c_char * 1).from_buffer_copy(b"x")
        del address
        _, writer = os.pipe()
        try:
            os.write(writer, memoryview(mapped)[4096:])
        except OSError:
            pass
    os.unlink("short")


def streams():
    select.select([sys.stdin], [], [], 0.01)
    # The test makes it /dev/null, to be read and written.
    os.write(2, b"x")
    os.read(2, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    print("signal", flush=True)
    signal.sigwait([signal.SIGUSR1])
    assert sys.stdin.readline().strip() == "go on"
    sleeper = threading.Thread(target=lambda: time.sleep(0.2))
    sleeper.start()
    ask_host("stop")
    sleeper.join()


def sockets():
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(5)
        server.getsockname()
        client.connect(server.getsockname())
        peer, _ = server.accept()
        peer.getpeername()
        peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.sendall(b"hello")
        while fcntl.ioctl(peer, 0x541B, b"\0" * 4) == b"\0" * 4:
            pass
        assert peer.recv(5) == b"hello"
        with open(__file__, "rb") as this:
            assert os.sendfile(client.fileno(), this.fileno(), 0, 5) == 5
        assert len(peer.recv(5, socket.MSG_WAITALL)) == 5
        client.shutdown(socket.SHUT_WR)
        # Nothing to do until it comes.
        threading.Timer(0.05, peer.close).start()
        client.recv(1)
    socket.if_nameindex()


def processes():
    for _ in range(3):
        subprocess.run(["/bin/true"], check=True)
    # A process that lives on is interrupted: nobody waits for a deadline alone.
    child = subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"])
    threads = [threading.Thread(target=lambda: sum(range(300_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    # More processes at a time than are kept for another use.
    sleepers = [subprocess.Popen(["/bin/sleep", "5"]) for _ in range(14)]
    for sleeper in sleepers:
        sleeper.kill()
    for sleeper in sleepers:
        sleeper.wait()
    os.urandom(10)
    time.process_time()


def memory():
    block = bytearray(40 << 20)
    block[:: 4096] = b"\1" * len(block[:: 4096])
    del block


def watches():
    instance = libc.inotify_init1(os.O_NONBLOCK)
    os.mkdir("watched")
    descriptor = libc.inotify_add_watch(instance, b"watched", 0xFFF)
    assert descriptor > 0
    open("watched/file", "w").close()
    assert len(os.read(instance, 4096)) > 0
    assert libc.inotify_rm_watch(instance, descriptor) == 0
    os.close(instance)


files()
locks()
watches()
shortened()
streams()
sockets()
processes()
memory()
print("done", flush=True)
