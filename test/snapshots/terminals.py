"""A shell on a terminal with jobs, which gets another terminal with each restore."""
import array
import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
import time

from lib.outcome import Failure, check
from lib.waiting import comes, until
from world import ANSWER_SECONDS

SIZES = ((24, 80), (50, 132), (33, 101))


class Terminal:
    """The caller's end of a container's terminal."""

    def __init__(self, container, begin):
        """`begin` is called with further options, and has the container send its terminal."""
        place = container.place / "console"
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
            place.unlink(missing_ok=True)
            listener.bind(str(place))
            listener.listen()
            listener.settimeout(ANSWER_SECONDS)
            begin("--console-socket", place)
            peer, _ = listener.accept()
            with peer:
                _, parts, _, _ = peer.recvmsg(4096, socket.CMSG_SPACE(4))
        self.file = array.array("i", parts[0][2])[0]
        self.said, self.marks = "", 0

    def type(self, text):
        os.write(self.file, text.encode())

    def expect(self, text):
        """Waits until something is said, and forgets all up to there."""
        end = time.monotonic() + ANSWER_SECONDS
        while text not in self.said:
            if not select.select([self.file], [], [], max(end - time.monotonic(), 0))[0]:
                raise Failure(f"the terminal does not say {text!r}, but {self.said[-300:]!r}")
            self.said += os.read(self.file, 4096).decode(errors="replace")
        before, self.said = self.said.split(text, 1)
        return before

    def output_of(self, command):
        """The lines of a command's output."""
        self.marks += 1
        # What is typed comes back, and has no such number.
        self.type(f"echo $((7000 + {self.marks})); {command}; echo $((8000 + {self.marks}))\n")
        self.expect(f"{7000 + self.marks}\r\n")
        return self.expect(f"{8000 + self.marks}\r\n").splitlines()

    def resize(self, rows, columns):
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self):
        os.close(self.file)


class Shell:
    """An interactive bash with a job that runs, one that is stopped, and one in the foreground."""

    def __init__(self, world):
        self.world = world
        self.container = world.container("/bin/bash", "--norc", "--noprofile", "-i", environment=["TERM=dumb", "PS1=$ "], terminal=True)
        self.terminal = Terminal(self.container, self.container.begin)
        self.turn, self.ticks = 0, self.container.srv / "ticks"
        self.terminal.type("nonce=$(cat /proc/sys/kernel/random/uuid)\n")
        self.nonce = self.terminal.output_of("echo $nonce")
        self.terminal.type("(while :; do echo; sleep 0.02; done) >/srv/ticks &\n")
        self.terminal.type("sed -u y/abc/ABC/\n")
        self.stop()
        self.jobs = self.listed()
        check([job.split()[2] for job in self.jobs] == ["Running", "Stopped"], f"the jobs are {self.jobs}")
        self.wait()

    def wait(self):
        """A job in the foreground, which has begun."""
        # Not bash's own subshell: it catches SIGINT until it executes, and loses one that comes just before.
        self.terminal.type("sh -c 'echo $((6000 + 1)); exec sleep 1000000'\n")
        self.terminal.expect("6001\r\n")

    def listed(self):
        # Which of them is the current one changes.
        return [job.replace("+", " ").replace("-", " ", 1) for job in self.terminal.output_of("jobs -l") if job.startswith("[")]

    def stop(self):
        """The stopped job works in the foreground, and is stopped again."""
        self.terminal.type("abc\n")
        self.terminal.expect("ABC\r\n")
        self.terminal.type("\x1a")
        self.terminal.expect("Stopped")
        self.terminal.expect("$ ")

    def look(self):
        terminal, self.turn = self.terminal, self.turn + 1
        # Ends the job in the foreground.
        terminal.type("\x03")
        terminal.expect("$ ")
        check(terminal.output_of("echo $nonce") == self.nonce, "the shell has begun anew")
        check(self.listed() == self.jobs, f"the jobs were {self.jobs}, and are {self.listed()}")
        rows, columns = SIZES[self.turn % len(SIZES)]
        terminal.resize(rows, columns)
        size, wanted = [], [f"{rows} {columns}"]

        def is_new():
            size[:] = terminal.output_of("stty size")
            if size != wanted:
                # Before each prompt bash reads the size and sets it again: a new one that comes in between is lost.
                terminal.resize(rows, columns - 1)
                terminal.resize(rows, columns)
            return size == wanted
        check(comes(is_new, ANSWER_SECONDS), f"the size of the terminal is {size}, not {wanted}, after {self.container.generation} restores")
        terminal.type("fg %2\n")
        terminal.expect("sed -u")
        self.stop()
        size = self.ticks.stat().st_size
        until("the job in the background", lambda: self.ticks.stat().st_size > size, ANSWER_SECONDS)
        self.wait()

    def cycle(self):
        name, _ = self.container.checkpoint()
        self.container.delete()
        self.terminal.close()
        self.terminal = Terminal(self.container, lambda *more: self.container.restore(name, *more))
        return name


def shell(world):
    shell = Shell(world)
    shell.look()
    shell.container.checkpoint(leave=True)
    shell.look()
    for turn in range(world.rounds):
        name = shell.cycle()
        if turn == 0:
            bare = f"{shell.container.id}-bare"
            said = world.refused("restore", "--detach", "--snapshot", name, "--bundle", shell.container.bundle, bare)
            check("terminal" in said or "console" in said, f"a restore without a terminal is refused with {said!r}")
            world.check_gone(bare)
        world.dormouse("snapshot", "remove", name)
        shell.look()
        shell.container.walk()
    shell.terminal.type("\x03")
    shell.terminal.expect("$ ")
    shell.terminal.type("exit\n")
    shell.terminal.expect("stopped jobs")
    shell.terminal.type("exit\n")
    until("its end", lambda: world.status(shell.container.id) == "stopped", ANSWER_SECONDS)
    shell.terminal.close()


CASES = [("shell-on-a-terminal", shell, ("bash", "sh", "stty", "sed"))]
