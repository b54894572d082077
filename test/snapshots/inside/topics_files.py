"""Files beneath a volume and of the sandbox's own."""
import fcntl
import os
import sqlite3
import struct

from calls import called

IN_MODIFY, IN_CREATE, IN_DELETE, IN_Q_OVERFLOW = 0x2, 0x100, 0x200, 0x4000


class Sqlite:
    """A database on a volume, with a transaction that is open from one step to the next."""

    def __init__(self):
        self.base = sqlite3.connect("/srv/base", isolation_level=None)
        self.base.execute("create table rows (number integer primary key, text)")
        self.base.execute("insert into rows values (0, 'committed')")
        self.turn = 0
        self._open()

    def _open(self):
        self.turn += 1
        self.base.execute("begin immediate")
        self.base.execute("insert into rows values (?, ?)", (self.turn, "x" * 5000))

    def step(self):
        self.base.execute("insert into rows values (?, 'second')", (self.turn + 1000,))
        self.base.execute("commit")
        found = [row[0] for row in self.base.execute("select number from rows where number < 1000 order by number")]
        assert found == list(range(self.turn + 1)), found
        assert self.base.execute("pragma integrity_check").fetchone() == ("ok",)
        self._open()
        return self.turn


class Open:
    """Open files of a volume and of the sandbox's own: positions, names that are gone, and a directory that is."""

    def __init__(self):
        self.files, self.lines = {}, {}
        for place in ("/srv", "/tmp"):
            for kind in ("kept", "gone"):
                file = self.files[place, kind] = open(f"{place}/{kind}", "w+b", buffering=0)
                self.lines[place, kind] = 0
                file.write(b"line 0\n" * 1000)
                file.seek(7 * 500)
            os.unlink(f"{place}/gone")
        self.append = open("/srv/log", "ab", buffering=0)
        self.turn = 0

    def step(self):
        for (place, kind), file in self.files.items():
            name = f"{place}/{kind}"
            assert file.tell() == 7 * (500 + self.turn), f"{name} stands at {file.tell()}"
            assert file.read(7) == b"line 0\n", f"{name} has other bytes"
            assert os.fstat(file.fileno()).st_size == 7000 + 8 * self.turn, f"{name} has {os.fstat(file.fileno()).st_size} bytes"
            os.pwrite(file.fileno(), b"appended", 7000 + 8 * self.turn)
            assert os.path.exists(name) == (kind == "kept"), f"{name} is there, or is not"
            assert os.fstat(file.fileno()).st_nlink == (kind == "kept"), f"{name} has other links"
        self.turn += 1
        self.append.write(b"%d\n" % self.turn)
        assert open("/srv/log").read().split() == [str(number + 1) for number in range(self.turn)], "the log has other lines"


class Directory:
    """A working directory that was deleted."""

    def __init__(self):
        os.mkdir("/tmp/away")
        os.chdir("/tmp/away")
        os.rmdir("/tmp/away")

    def step(self):
        assert os.readlink("/proc/self/cwd") == "/tmp/away (deleted)", os.readlink("/proc/self/cwd")
        assert os.listdir(".") == [], os.listdir(".")
        try:
            open("new", "w")
        except FileNotFoundError:
            return
        raise AssertionError("a file can be made in a directory that is gone")


class DirectoryOfVolume(Directory):
    """A working directory of a volume that was deleted."""

    def __init__(self):
        os.mkdir("/srv/away")
        os.chdir("/srv/away")
        os.rmdir("/srv/away")

    def step(self):
        assert os.readlink("/proc/self/cwd") == "/srv/away (deleted)", os.readlink("/proc/self/cwd")
        assert os.listdir(".") == [], os.listdir(".")


class Locks:
    """A lock of each kind on a file of a volume: of the process, of the open file, and flock(2)."""

    def __init__(self):
        self.files = {name: open(f"/srv/{name}", "w+b", buffering=0) for name in ("process", "open", "flock")}
        for file in self.files.values():
            file.write(b"locked")
        fcntl.lockf(self.files["process"], fcntl.LOCK_EX | fcntl.LOCK_NB, 4, 1)
        # An open file's: F_OFD_SETLK.
        fcntl.fcntl(self.files["open"], 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        fcntl.flock(self.files["flock"], fcntl.LOCK_EX | fcntl.LOCK_NB)

    def step(self):
        for name, file in self.files.items():
            assert os.pread(file.fileno(), 6, 0) == b"locked", name

    def let_go(self):
        fcntl.lockf(self.files["process"], fcntl.LOCK_UN, 4, 1)
        fcntl.fcntl(self.files["open"], 37, struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 0, 0))
        fcntl.flock(self.files["flock"], fcntl.LOCK_UN)


class Watches:
    """A watch of a directory of a volume."""

    def __init__(self):
        os.mkdir("/srv/watched")
        self.watch = called("inotify_init1", os.O_NONBLOCK)
        self.descriptor = called("inotify_add_watch", self.watch, b"/srv/watched", IN_MODIFY | IN_CREATE | IN_DELETE)

    def events(self):
        """Those that are there: descriptor, mask and name."""
        found = []
        try:
            while True:
                data = os.read(self.watch, 65536)
                while data:
                    descriptor, mask, _, count = struct.unpack_from("iIII", data)
                    found.append([descriptor, mask, data[16:16 + count].rstrip(b"\0").decode()])
                    data = data[16 + count:]
        except BlockingIOError:
            return found


class Mapped:
    """A private and a shared mapping of files on a volume, read anew after each restore."""

    SIZE = 1 << 20

    def __init__(self):
        import mmap
        self.text = bytes(range(256)) * (self.SIZE // 256)
        for name in ("private", "shared"):
            with open(f"/srv/{name}", "wb") as file:
                file.write(self.text)
        with open("/srv/private", "r+b") as file:
            self.private = mmap.mmap(file.fileno(), self.SIZE, flags=mmap.MAP_PRIVATE)
        with open("/srv/shared", "r+b") as file:
            self.shared = mmap.mmap(file.fileno(), self.SIZE)
        self.turn = 0

    def step(self):
        for mapping in (self.private, self.shared):
            assert int.from_bytes(mapping[:8], "little") == (self.turn or int.from_bytes(self.text[:8], "little"))
            assert mapping[8:] == self.text[8:], "a mapping has other bytes"
        self.turn += 1
        self.private[:8] = self.shared[:8] = self.turn.to_bytes(8, "little")
        self.shared.flush()
        assert open("/srv/shared", "rb").read(8) == self.turn.to_bytes(8, "little"), "the file has other bytes"
        assert open("/srv/private", "rb").read(8) == self.text[:8], "a private mapping reached its file"
