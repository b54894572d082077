"""A disk that reads at a rate: a file system (FUSE), whose reads last as long as that disk's. It has files without names in memory, or
(`SlowView`) shows a directory that is there, to be read only. A control group does this only for reads that are larger than what it allows in
100 ms."""

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
MNT_DETACH, MS_RDONLY = 2, 1
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
# As the kernel's linux/fuse.h has them.
ROOT = 1
FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE = 2, 3, 4, 14, 15, 16, 17, 18
FSYNC, FLUSH, INIT, OPENDIR, RELEASEDIR, FSYNCDIR, ACCESS, INTERRUPT = 20, 25, 26, 27, 29, 30, 34, 36
DESTROY, BATCH_FORGET, FALLOCATE, LOOKUP, READDIR, TMPFILE = 38, 42, 43, 1, 28, 51
READLINK, GETXATTR, LISTXATTR, LSEEK = 5, 22, 23, 46
NO_REPLY = {FORGET, BATCH_FORGET, INTERRUPT}
NOTHING_TO_DO = {RELEASE, RELEASEDIR, FSYNC, FSYNCDIR, FLUSH, ACCESS, READDIR, DESTROY}
ASYNC_READ, BIG_WRITES, ASYNC_DIRECT_IO, MAX_PAGES = 1 << 0, 1 << 5, 1 << 15, 1 << 22
PAST_THE_CACHE, PARALLEL_WRITES = 1 << 0, 1 << 6
SIZE_CHANGES = 1 << 3
IN_HEADER, OUT_HEADER = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
MOST_BYTES = 1 << 20
THREADS = 6
# Bytes that the kernel reads before they are asked for, as of a disk's files, and for how many seconds it believes what it was told.
READ_AHEAD, BELIEVED_SECONDS = 128 << 10, 3600


# What handing over a piece takes, which a disk does by itself meanwhile.
HEAD_START_SECONDS = 0.0005
# How long a disk that seeks stands idle for the task that it served last, and how long another one waits for it at most.
IDLE_SECONDS, SLICE_SECONDS = 0.002, 0.125


class Pace:
    """One reader after the other, each as long as its bytes take, beginning at most the head start before it asked. A read that does not
    follow the last one in the same file takes `seek_seconds` more; before the disk seeks for another task, it waits a moment for the last one
    to go on, as BFQ does."""

    def __init__(self, bytes_per_second, seek_seconds=0.0):
        self.rate, self.lock, self.free_at = bytes_per_second, threading.Lock(), 0.0
        self.seek_seconds, self.head, self.task = seek_seconds, None, None

    def anticipate(self, task, asked_at):
        """Lets the task that was served last go on, as long as it does, up to a bound."""
        while self.task not in (None, task) and (now := time.perf_counter()) < min(self.free_at + IDLE_SECONDS, asked_at + SLICE_SECONDS):
            time.sleep(max(min(IDLE_SECONDS / 4, self.free_at + IDLE_SECONDS - now), 0))

    def wait(self, size, asked_at, file=None, offset=0, task=None):
        if self.seek_seconds:
            self.anticipate(task, asked_at)
        with self.lock:
            seek = self.seek_seconds if self.head != (file, offset) else 0
            self.head, self.task = (file, offset + size), task
            self.free_at = max(self.free_at, asked_at - HEAD_START_SECONDS) + seek + size / self.rate
            until = self.free_at
        if (left := until - time.perf_counter()) > 0:
            time.sleep(left)


class FileSystem:
    """Answers the kernel's requests at `device`."""

    threads = THREADS

    def __init__(self, device, pace):
        self.device, self.pace = device, pace
        self.asking = threading.local()
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
        if kind not in self.actions:
            if kind in NOTHING_TO_DO:
                return 0, b""
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
            _, kind, unique, node, _, _, self.asking.task, *_ = IN_HEADER.unpack_from(room)
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


class View(FileSystem):
    """A directory that is there, with all below it. Holes take no time."""

    # Enough for those that wait for each other.
    threads = 16

    def __init__(self, device, pace, shown):
        super().__init__(device, pace)
        self.paths, self.numbers = {ROOT: os.fsencode(shown)}, {}
        self.actions = {INIT: self.init, GETATTR: self.getattr, OPEN: self.open, OPENDIR: self.opendir, READ: self.read, LOOKUP: self.lookup,
                        READDIR: self.readdir, READLINK: self.readlink, LSEEK: self.lseek, STATFS: self.statfs, RELEASE: self.release,
                        GETXATTR: self.getxattr, LISTXATTR: self.listxattr}

    def init(self, node, body):
        flags = ASYNC_READ | MAX_PAGES
        return struct.pack("<IIIIHHIIHH32x", 7, 31, READ_AHEAD, flags, 64, 48, MOST_BYTES, 1, MOST_BYTES // 4096, 0)

    def attributes(self, node):
        status = os.lstat(self.paths[node])
        times = [divmod(time_ns, 10**9) for time_ns in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)]
        return struct.pack("<6Q10I", node, status.st_size, status.st_blocks, *(seconds for seconds, _ in times), *(rest for _, rest in times),
                           status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_rdev, 4096, 0)

    def getattr(self, node, body):
        return struct.pack("<QII", BELIEVED_SECONDS, 0, 0) + self.attributes(node)

    def lookup(self, node, body):
        path = self.paths[node] + b"/" + bytes(body).rstrip(b"\0")
        os.lstat(path)
        with self.lock:
            if path not in self.numbers:
                self.last += 1
                self.numbers[path], self.paths[self.last] = self.last, path
            found = self.numbers[path]
        return struct.pack("<QQQQII", found, 0, BELIEVED_SECONDS, BELIEVED_SECONDS, 0, 0) + self.attributes(found)

    def open(self, node, body):
        return struct.pack("<QIi", os.open(self.paths[node], os.O_RDONLY | os.O_NOFOLLOW), 0, 0)

    def opendir(self, node, body):
        return struct.pack("<QIi", 0, 0, 0)

    def readdir(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        found = b""
        with os.scandir(self.paths[node]) as entries:
            rows = sorted((entry.name, entry.inode(), entry.stat(follow_symlinks=False).st_mode >> 12) for entry in entries)
        for number, (name, inode, kind) in enumerate(rows[offset:], offset + 1):
            row = struct.pack("<QQII", inode, number, len(name), kind) + name
            row += bytes(-len(row) % 8)
            if len(found) + len(row) > size:
                break
            found += row
        return found

    def readlink(self, node, body):
        return os.readlink(self.paths[node])

    def read(self, node, body):
        asked_at = time.perf_counter()
        file, offset, size = struct.unpack_from("<QQI", body)
        data = os.pread(file, size, offset)
        try:
            is_hole = os.lseek(file, offset, os.SEEK_DATA) >= offset + size
        except OSError:
            is_hole = True
        if not is_hole:
            self.pace.wait(len(data), asked_at, node, offset, self.asking.task)
        return data

    def lseek(self, node, body):
        file, offset, whence = struct.unpack_from("<QQI", body)
        return struct.pack("<Q", os.lseek(file, offset, whence))

    def getxattr(self, node, body):
        return self.sized(body, os.getxattr(self.paths[node], bytes(body[8:]).rstrip(b"\0"), follow_symlinks=False))

    def listxattr(self, node, body):
        names = os.listxattr(self.paths[node], follow_symlinks=False)
        return self.sized(body, b"".join(os.fsencode(name) + b"\0" for name in names))

    def sized(self, body, data):
        """Data for which there may be room, or how much of it is needed."""
        if (room := struct.unpack_from("<I", body)[0]) == 0:
            return struct.pack("<II", len(data), 0)
        if len(data) > room:
            raise OSError(errno.ERANGE, "")
        return data

    def release(self, node, body):
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def forget(self, kind, node, body):
        """Names are kept: there are few."""


class SlowDisk:
    """Mounted at a directory, in this process's mounts; served by a process of its own."""

    # Of the mount.
    flags = 0

    def __init__(self, directory, bytes_per_second):
        self.directory, self.rate = directory, bytes_per_second
        try:
            device = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            raise Failure(f"cannot make a slow disk: /dev/fuse cannot be opened ({error.strerror}); the kernel needs "
                          "CONFIG_FUSE_FS") from None
        options = f"fd={device},rootmode=40700,user_id=0,group_id=0,allow_other,max_read={MOST_BYTES}"
        if LIBC.mount(b"slow-disk", str(directory).encode(), b"fuse", self.flags, options.encode()) != 0:
            raise Failure(f"cannot mount a slow disk at {directory}: {os.strerror(ctypes.get_errno())}; run as root")
        self.server = os.fork()
        if self.server == 0:
            try:
                serve(self.system(device))
            finally:
                os._exit(0)
        os.close(device)

    def system(self, device):
        return FileSystem(device, Pace(self.rate))

    def remove(self):
        LIBC.umount2(str(self.directory).encode(), MNT_DETACH)
        try:
            os.kill(self.server, signal.SIGKILL)
            os.waitpid(self.server, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


class SlowView(SlowDisk):
    """A directory that is there, read as from a disk of this rate, on which a read elsewhere takes so much longer."""

    flags = MS_RDONLY

    def __init__(self, directory, shown, bytes_per_second, seek_seconds=0.0):
        self.shown, self.seek_seconds = shown, seek_seconds
        super().__init__(directory, bytes_per_second)

    def system(self, device):
        return View(device, Pace(self.rate, self.seek_seconds), self.shown)


def serve(system):
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Sleeps end when they should; each thread takes this over from the one that starts it.
    LIBC.prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    try:
        # A disk is not slower when the processors are busy.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        os.nice(-20)
    threads = [threading.Thread(target=system.serve) for _ in range(system.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
