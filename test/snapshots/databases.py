"""Programs that promise to keep what they acknowledged, under writes in sandboxes of `do`: snapshots at moments of which nobody knows.

Of each snapshot memory and files are looked at together, in a clone that goes on, and the files without the memory: in a clone whose
program is killed, and in the layer as it is on the disk, which is all that a program finds after a power failure.
"""
import json
import os
import random
import re
import shutil
import time

from commands import check_nothing_left, layers
from lib.command import finish
from lib.outcome import check
from lib.waiting import until
from programs import postgres_here
from sandboxes import Sandbox, clone
from world import ANSWER_SECONDS, HERE, PYTHON


class Writer(Sandbox):
    """A sandbox with the host's files, in which a program of `inside/writers.py` is under writes."""

    def __init__(self, world, program, *arguments):
        self.words = (PYTHON, "-c", (HERE / "inside/writers.py").read_text(), program)
        self.arguments = arguments
        super().__init__(world, (*self.words, "begin", *arguments), root=False)

    def noted(self):
        return json.loads(self.inside("/bin/cat", "/dev/shm/note"))

    def moments(self, rounds):
        """Snapshots at so many moments under writes, with the notes before and after each."""
        until("its first write", lambda: self.world.dormouse("exec", self.id, "/bin/cat", "/dev/shm/note", code=None).returncode == 0, 30)
        rng, beside = random.Random(os.getpid()), []
        for number in range(rounds):
            time.sleep(rng.uniform(0, 0.4))
            before = self.noted()
            name, _ = self.checkpoint(f"{self.id}-{number}", leave=True)
            after = self.noted()
            yield name, before, after
            until("a further write", lambda: count(self.noted()) > count(after) or self.noted()["verdict"] != "whole", ANSWER_SECONDS)
            check_goes_on("the sandbox", before, self.noted())
            beside.append(count(after) - count(before))
            self.world.dormouse("snapshot", "remove", name)
        self.world.notes.append(f"{max(beside)} writes beside a checkpoint at most, of {count(after)}")

    def found(self, name, verb):
        return json.loads(clone(self.world, name, *self.words, verb, *self.arguments).stdout)

    def take_from_layer(self, name, path, uid, gid):
        """Takes a directory out of a snapshot's layer, for a user of the host. The snapshot is good for nothing any more."""
        taken = self.world.directory / "taken"
        shutil.rmtree(taken, ignore_errors=True)
        (self.world.snapshots / name / "layer/0" / path).rename(taken)
        for one in (taken, *taken.rglob("*")):
            os.chown(one, uid, gid, follow_symlinks=False)
        return taken


def count(noted):
    """How many writes were acknowledged."""
    return len(noted["kept"]) if isinstance(noted["kept"], list) else noted["kept"]


def check_goes_on(who, before, noted):
    """A note is by the writer that has written the one before, and that has found all of its writes so far."""
    check(noted["verdict"] == "whole", f"the writer of {who} says: {noted['verdict']}")
    check(noted["nonce"] == before["nonce"], f"the writer of {who} has begun anew")
    check(count(noted) >= count(before), f"{who} has {count(noted)} writes noted, and {count(before)} were acknowledged before")


def moment_of(before, after, examined):
    """How many writes there were at most when a snapshot was made, by the writer of its clone, which goes on; at least there was one less."""
    check_goes_on("the clone", examined["noted"], examined["later"])
    moment = examined["later"]["first"]
    check(moment and count(before) <= moment <= count(after) + 1,
          f"the clone begins with {moment} writes, and the sandbox had {count(before)} before and {count(after)} after")
    return moment


def check_rows(who, least, most, *answers):
    """Answers of a count, a least and a highest number: no row is missing."""
    for answer in answers:
        rows, first, last = map(int, answer.split("|"))
        check(least <= rows <= most, f"{who} has {rows} rows, and {least} to {most} have to be there")
        check((first, last) == (1, rows), f"{who} has {rows} rows from {first} to {last}")


def check_server(who, before, found):
    """A server of a clone has the rows that were noted and at most one more, by its table and its index."""
    check_goes_on(who, before, found["noted"])
    noted = count(found["noted"])
    check_rows(who, noted, noted + 1, found["table"], found["index"])
    checked = found["checked"]
    check(checked is None or checked["code"] == 0, f"pg_amcheck of {who} says: {checked}")


def rows_on_disk(programs, user, data):
    """Rows by the table and by its index that PostgreSQL finds on the host in a directory whose server has gone without a word."""
    # The process that it names was the sandbox's.
    (data / "postmaster.pid").unlink()
    numbers = "select count(*), min(number), max(number) from rows where number > 0\n"
    done = finish("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", programs / "postgres", "--single",
                  "-D", data, "-c", "exit_on_error=on", "postgres", environment={"LC_ALL": "C"},
                  stdin=f"set enable_indexonlyscan = off\nset enable_indexscan = off\nset enable_bitmapscan = off\n{numbers}"
                        f"reset all\nset enable_seqscan = off\n{numbers}")
    check("automatic recovery in progress" in done.stderr, f"it did not recover: {done.stderr.strip()[-300:]}")
    found = re.findall(r' = "(\d+)"', done.stdout)
    check(len(found) == 6, f"it says {done.stdout.strip()[-300:]!r} {done.stderr.strip()[-300:]!r}")
    return "|".join(found[:3]), "|".join(found[3:])


def postgres(world):
    """Rows that were acknowledged are in the server that goes on, in one that recovers, and on the disk."""
    there, (programs, user) = layers(), postgres_here()
    writer = world.add(Writer(world, "postgres", programs)).begin()
    for name, before, after in writer.moments(world.rounds):
        examined = writer.found(name, "examine")
        check_server("the clone's server", before, examined)
        moment = moment_of(before, after, examined)
        recovered = writer.found(name, "recover")
        check(recovered["recovered"], "PostgreSQL found nothing to recover from")
        check_server("the server that recovered", before, recovered)
        data = writer.take_from_layer(name, "kept/data", user.pw_uid, user.pw_gid)
        check_rows("the layer", moment - 1, moment, *rows_on_disk(programs, user, data))
    writer.close()
    check_nothing_left(world, there)


def check_commits(who, noted, found):
    """Commits that were noted are the branch's, which has at most one more; result: how many it has."""
    check(found["checked"]["code"] == 0, f"git fsck of {who} says: {found['checked']['said']}")
    lost = set(noted) - set(found["there"])
    check(not lost, f"the branch of {who} lacks {len(lost)} of {len(noted)} commits")
    check(found["there"][:len(noted)] == noted, f"the branch of {who} has the commits in another order")
    return len(found["there"])


def check_repository(who, before, found):
    """A repository of a clone has the commits that were noted and at most one more."""
    check_goes_on(who, before, found["noted"])
    noted = found["noted"]["kept"]
    check(noted[:count(before)] == before["kept"], f"{who} has others noted than were acknowledged before")
    for one in (found, found.get("recovered", found)):
        commits = check_commits(who, noted, one)
        check(commits <= len(noted) + 1, f"the branch of {who} has {commits} commits, and {len(noted)} were noted")


def git_on_disk(repository):
    """The answers of the host's git about a repository whose writer has gone without a word."""
    environment = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    checked = finish("git", "-C", repository, "fsck", "--full", "--strict", code=None, environment=environment)
    there = finish("git", "-C", repository, "rev-list", "--reverse", "main", environment=environment).stdout.split()
    return {"checked": {"code": checked.returncode, "said": (checked.stdout + checked.stderr).strip()[-300:]}, "there": there}


def git(world):
    """Commits that were acknowledged are in the repository whose writer goes on, or was killed, and on the disk."""
    there = layers()
    writer = world.add(Writer(world, "git")).begin()
    for name, before, after in writer.moments(2 * world.rounds):
        examined = writer.found(name, "examine")
        check_repository("the clone", before, examined)
        moment = moment_of(before, after, examined)
        check_repository("the clone whose git was killed", before, writer.found(name, "recover"))
        repository = writer.take_from_layer(name, "kept/repository", os.getuid(), os.getgid())
        commits = check_commits("the layer", examined["later"]["kept"][:moment - 1], git_on_disk(repository))
        check(commits <= moment, f"the branch of the layer has {commits} commits, and there were at most {moment} at its moment")
    writer.close()
    check_nothing_left(world, there)


CASES = [
    ("sandbox-postgres", postgres, ("initdb", "setpriv")),
    ("sandbox-git", git, ("git",)),
]
