"""A disk that reads at a rate, for files without names: a file system in memory (FUSE), whose reads last as long as that
disk's. A control group does this only for reads that are larger than what it allows in 100 ms."""

import ctypes
import errno
import os
import signal
import stat
import struct
import threading
import time

from lib.outcome import Failure

LIBC = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
# As the kernel's linux/fuse.h has them.
ROOT = 1
FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE = 2, 3, 4, 14, 15, 16, 17, 18
FSYNC, FLUSH, INIT, OPENDIR, RELEASEDIR, FSYNCDIR, ACCESS, INTERRUPT = 20, 25, 26, 27, 29, 30, 34, 36
DESTROY, BATCH_FORGET, FALLOCATE, LOOKUP, READDIR, TMPFILE = 38, 42, 43, 1, 28, 51
NO_REPLY = {FORGET, BATCH_FORGET, INTERRUPT}
NOTHING_TO_DO = {RELEASE, RELEASEDIR, FSYNC, FSYNCDIR, FLUSH, ACCESS, READDIR, DESTROY}
ASYNC_READ, BIG_WRITES, ASYNC_DIRECT_IO, MAX_PAGES = 1 << 0, 1 << 5, 1 << 15, 1 << 22
PAST_THE_CACHE, PARALLEL_WRITES = 1 << 0, 1 << 6
SIZE_CHANGES = 1 << 3
IN_HEADER, OUT_HEADER = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
MOST_BYTES = 1 << 20
THREADS = 6


# What handing over a piece takes, which a disk does by itself meanwhile.
HEAD_START_SECONDS = 0.0005


class Pace:
    """One reader after the other, each as long as its bytes take, beginning at most the head start before it asked."""

    def __init__(self, bytes_per_second):
        self.rate, self.lock, self.free_at = bytes_per_second, threading.Lock(), 0.0

    def wait(self, size, asked_at):
        with self.lock:
            self.free_at = max(self.free_at, asked_at - HEAD_START_SECONDS) + size / self.rate
            until = self.free_at
        if (left := until - time.perf_counter()) > 0:
            time.sleep(left)


class FileSystem:
    """Answers the kernel's requests at `device`."""

    def __init__(self, device, bytes_per_second):
        self.device, self.pace = device, Pace(bytes_per_second)
        self.lock, self.files, self.last = threading.Lock(), {}, ROOT
        self.actions = {INIT: self.init, GETATTR: self.getattr, SETATTR: self.setattr, OPEN: self.open, OPENDIR: self.open,
                        READ: self.read, WRITE: self.write, STATFS: self.statfs, FALLOCATE: self.fallocate,
                        TMPFILE: self.tmpfile}

    def init(self, node, body):
        # Version 7.31 of the protocol.
        flags = ASYNC_READ | BIG_WRITES | ASYNC_DIRECT_IO | MAX_PAGES
        return struct.pack("<IIIIHHIIHH32x", 7, 31, MOST_BYTES, flags, 64, 48, MOST_BYTES, 1, MOST_BYTES // 4096, 0)

    def attributes(self, node):
        if node == ROOT:
            size, blocks, mode, links = 0, 0, stat.S_IFDIR | 0o700, 2
        else:
            status = os.fstat(self.files[node])
            size, blocks, mode, links = status.st_size, status.st_blocks, stat.S_IFREG | 0o600, 0
        return struct.pack("<6Q10I", node, size, blocks, 0, 0, 0, 0, 0, 0, mode, links, 0, 0, 0, 4096, 0)

    def getattr(self, node, body):
        return struct.pack("<QII", 0, 0, 0) + self.attributes(node)

    def setattr(self, node, body):
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & SIZE_CHANGES:
            os.ftruncate(self.files[node], size)
        return self.getattr(node, body)

    def open(self, node, body):
        return struct.pack("<QIi", node, 0 if node == ROOT else PAST_THE_CACHE | PARALLEL_WRITES, 0)

    def tmpfile(self, node, body):
        with self.lock:
            self.last += 1
            made = self.last
            self.files[made] = os.memfd_create("slow-disk")
        return struct.pack("<QQQQII", made, 0, 0, 0, 0, 0) + self.attributes(made) + self.open(made, body)

    def read(self, node, body):
        asked_at = time.perf_counter()
        _, offset, size = struct.unpack_from("<QQI", body)
        data = os.pread(self.files[node], size, offset)
        self.pace.wait(len(data), asked_at)
        return data

    def write(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(self.files[node], body[40:40 + size], offset), 0)

    def fallocate(self, node, body):
        _, offset, length, mode = struct.unpack_from("<QQQI", body)
        if LIBC.fallocate(self.files[node], mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
            raise OSError(ctypes.get_errno(), "")
        return b""

    def statfs(self, node, body):
        return struct.pack("<5Q4I24x", 1 << 24, 1 << 23, 1 << 23, 1 << 20, 1 << 20, 4096, 255, 4096, 0)

    def forget(self, kind, node, body):
        if kind == FORGET:
            nodes = [node]
        elif kind == BATCH_FORGET:
            count, _ = struct.unpack_from("<II", body)
            nodes = [struct.unpack_from("<QQ", body, 8 + 16 * at)[0] for at in range(count)]
        else:
            return
        for one in nodes:
            with self.lock:
                file = self.files.pop(one, None)
            if file is not None:
                os.close(file)

    def answer(self, kind, node, body):
        """The answer's error, and its body."""
        if kind in NOTHING_TO_DO:
            return 0, b""
        if kind not in self.actions:
            return (errno.ENOENT if kind == LOOKUP else errno.ENOSYS), b""
        try:
            return 0, self.actions[kind](node, body)
        except OSError as error:
            return error.errno, b""
        except KeyError:
            return errno.ESTALE, b""

    def serve(self):
        room = bytearray(MOST_BYTES + 2 * 4096)
        while True:
            try:
                size = os.readv(self.device, [room])
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EAGAIN):
                    continue
                # It is unmounted.
                return
            _, kind, unique, node, *_ = IN_HEADER.unpack_from(room)
            body = memoryview(room)[IN_HEADER.size:size]
            if kind in NO_REPLY:
                self.forget(kind, node, body)
                continue
            failure, data = self.answer(kind, node, body)
            try:
                os.writev(self.device, [OUT_HEADER.pack(OUT_HEADER.size + len(data), -failure, unique), data])
            except OSError as error:
                # Who asked has ended meanwhile.
                if error.errno != errno.ENOENT:
                    return


class SlowDisk:
    """Mounted at a directory, in this process's mounts; served by a process of its own."""

    def __init__(self, directory, bytes_per_second):
        self.directory, self.rate = directory, bytes_per_second
        try:
            device = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            raise Failure(f"cannot make a slow disk: /dev/fuse cannot be opened ({error.strerror}); the kernel needs "
                          "CONFIG_FUSE_FS") from None
        options = f"fd={device},rootmode=40700,user_id=0,group_id=0,allow_other,max_read={MOST_BYTES}"
        if LIBC.mount(b"slow-disk", str(directory).encode(), b"fuse", 0, options.encode()) != 0:
            raise Failure(f"cannot mount a slow disk at {directory}: {os.strerror(ctypes.get_errno())}; run as root")
        self.server = os.fork()
        if self.server == 0:
            try:
                serve(device, bytes_per_second)
            finally:
                os._exit(0)
        os.close(device)

    def remove(self):
        LIBC.umount2(str(self.directory).encode(), MNT_DETACH)
        try:
            os.kill(self.server, signal.SIGKILL)
            os.waitpid(self.server, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def serve(device, bytes_per_second):
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Sleeps end when they should; each thread takes this over from the one that starts it.
    LIBC.prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    try:
        # A disk is not slower when the processors are busy.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        os.nice(-20)
    system = FileSystem(device, bytes_per_second)
    threads = [threading.Thread(target=system.serve) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
