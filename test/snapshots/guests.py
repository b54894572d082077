"""Programs of test/guest that hold many kinds of kernel objects and of memory, and check them all the time."""
import re
import shutil

from lib.outcome import Skip, check
from lib.tree import TOP
from lib.waiting import comes

PATIENCE = 60


def guest(container, name):
    """Puts a program of test/guest into the container's volume."""
    built = TOP / "target/guest/static" / name
    if not built.exists():
        raise Skip(f"{built} is not there; run test/guest/build.sh")
    shutil.copy(built, container.srv)


def after(container, what, found, patience=PATIENCE):
    """Waits for something that the program says. If it does not come, what it said last is told."""
    if got := comes(found, patience):
        return got
    status = container.world.status(container.id)
    check(False, f"{what} did not come in {patience} s after {container.generation} restores; it is {status}, and said "
                 f"{container.said()[-300:]!r}")


def signalled(container, name):
    """Sends SIGUSR1 to the oldest process of a name."""
    container.world.dormouse("exec", container.id, "/usr/bin/pkill", "--oldest", "-USR1", "-x", name)


# Modes of `holds`, and how many families of processes each has. (Connections over TCP do not outlive a restore.)
MODES = {"ipc": 4, "files": 3, "sockets": 4, "timers": 4, "memory": 3, "threads": 4, "streams": 2}


def holds(mode):
    """A case of `holds`, whose families of processes use objects of a kind in rounds."""
    def case(world):
        container = world.container("/bin/sh", "-c", f"sleep 1000000 | /srv/holds {mode}; echo ended with $?")
        guest(container, "holds")
        container.begin()
        after(container, "the beginning", lambda: "ready" in container.said())

        def rounds():
            """How many rounds each family had when it was asked last, once all have said so."""
            said = re.findall(r"^(\w+): (\d+) rounds, at line \d+, goes on$", container.said(), re.MULTILINE)
            found = {name: int(count) for name, count in said}
            return found if len(found) == MODES[mode] else {}

        def look():
            signalled(container, "holds")
            before = after(container, "word of the rounds", rounds)

            def all_went_on():
                signalled(container, "holds")
                return all(count > before[name] + 2 for name, count in rounds().items())
            after(container, f"further rounds than {before}", all_went_on)
        look()
        for _ in range(world.rounds):
            container.cycle()
            look()
        container.walk()
        world.dormouse("exec", container.id, "/usr/bin/pkill", "-x", "sleep")
        after(container, "its end", lambda: "ended with" in container.said())
        check("ended with 0" in container.said(), f"in the end it said {container.said()[-300:]!r}")
    return case


class Asked:
    """A program that answers SIGUSR1 with a line of a word, how often it was asked, and maybe more."""

    def __init__(self, container, word, more="", asked=0):
        self.container, self.word, self.more, self.asked = container, word, more, asked

    def __call__(self):
        self.asked += 1
        self.container.world.dormouse("kill", self.container.id, "USR1")
        wanted = f"{self.word} {self.asked}{self.more}"
        after(self.container, wanted, lambda: wanted in self.container.said().splitlines())


def keyed(world):
    """Memory with a keyed pattern, which is checked as a whole after each cycle: clones of clones, and now and then two at once."""
    container = world.container("/srv/pattern", "/srv", "0", "4", "5000", "8")
    guest(container, "pattern")
    container.begin()
    after(container, "the beginning", lambda: "ready" in container.said())
    look = Asked(container, "whole")
    look()
    for turn in range(world.cycles):
        name, _ = container.checkpoint()
        container.delete()
        if turn % 5 == 4:
            # Its answers go to the same file.
            container.restore(name)
            look()
            container.delete(force=True)
            look.asked -= 1
            container.log.write_text("")
        container.restore(name)
        world.dormouse("snapshot", "remove", name)
        look()
    world.dormouse("kill", container.id, "TERM")
    after(container, "its end", lambda: re.search(r"^ok \d+$", container.said(), re.MULTILINE))
    check("MISMATCH" not in container.said(), container.said()[-300:])
    world.notes.append(f"{world.cycles} cycles")


def tasks(world):
    """5,000 tasks, all of which are woken after each restore."""
    container = world.container("/srv/tasks", "50", "100")
    guest(container, "tasks")
    container.begin()
    look = Asked(container, "all", " 5000", asked=1)
    after(container, "the beginning", lambda: "all 1 5000" in container.said())
    look()
    for _ in range(world.rounds):
        container.cycle()
        look()


CASES = [
    *((f"holds-{mode}", holds(mode), ("pkill",)) for mode in MODES),
    ("keyed", keyed, ()),
    ("tasks", tasks, ()),
]
