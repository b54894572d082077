"""Pods: several containers of one sandbox, written and restored as a whole."""
import json

from lib.network import free_port
from lib.outcome import Failure, check
from lib.waiting import comes
from world import PYTHON, Container, Held

KIND, POD = "io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id"
NAME, MEMORY = "io.kubernetes.cri.container-name", "io.kubernetes.cri.sandbox-memory"
SNAPSHOT = "dev.dormouse.snapshot"
POD_BYTES = 512 << 20
REDIS = "/usr/bin/redis-server"


class First(Container):
    """The container that a pod begins with."""

    def __init__(self, world):
        super().__init__(world, ("/bin/sleep", "infinity"))
        self.members = []

    def write_bundle(self, bundle=None, mounts=("/srv",), memory=None):
        bundle = super().write_bundle(bundle, mounts, memory)
        path = bundle / "config.json"
        spec = json.loads(path.read_text())
        # The pod has a limit, and this container none of its own.
        del spec["linux"]["resources"]
        path.write_text(json.dumps(spec))
        return annotated(bundle, {KIND: "sandbox", POD: self.id, MEMORY: str(POD_BYTES)})

    def check_memory(self):
        """The pod's, not the first container's own."""
        lines = self.world.dormouse("exec", self.id, "/bin/cat", "/proc/meminfo").stdout.splitlines()
        total = int(lines[0].split()[1]) << 10
        check(total == POD_BYTES, f"the pod has {lines[0]!r}")

    def pid(self):
        return json.loads(self.world.dormouse("state", self.id).stdout)["pid"]

    def member(self, name, program):
        """A further container, which holds `program`'s part."""
        program.first, program.name = self, name
        self.members.append(program)
        return self.world.add(program)

    def begin(self, *more):
        super().begin(*more)
        for member in self.members:
            member.begin()
        return self

    def restore(self, name, *more, members=None):
        """All of it, one after another; the last one has it go on."""
        super().restore(name, *more)
        for member in self.members if members is None else members:
            member.write_bundle()
            member.restore(name)

    def delete(self, force=False):
        for member in self.members:
            if member.id in self.world.ids():
                member.delete(force=True)
        super().delete(force)


def annotated(bundle, annotations):
    path = bundle / "config.json"
    spec = json.loads(path.read_text())
    spec["annotations"] = annotations
    path.write_text(json.dumps(spec))
    return bundle


class Member(Container):
    """A further container of the pod that `first` has begun."""

    first: First
    name: str
    mounts = ("/srv",)

    def write_bundle(self, bundle=None, mounts=None, memory=None):
        bundle = super().write_bundle(bundle, self.mounts if mounts is None else mounts, memory)
        path = bundle / "config.json"
        spec = json.loads(path.read_text())
        pid = self.first.pid()
        shared = {"ipc": f"/proc/{pid}/ns/ipc", "uts": f"/proc/{pid}/ns/uts"}
        for namespace in spec["linux"]["namespaces"]:
            if namespace["type"] in shared:
                namespace["path"] = shared[namespace["type"]]
        del spec["hostname"]
        path.write_text(json.dumps(spec))
        return annotated(bundle, {KIND: "container", POD: self.first.id, NAME: self.name})

    def begin(self, *more):
        self.write_bundle()
        # Where its memory goes is the pod's.
        self.world.launch("run", "--detach", "--bundle", self.bundle, self.id, log=self.log)
        return self

    def restore(self, name, *more):
        self.generation += 1
        self.world.launch("restore", "--detach", "--snapshot", name, "--bundle", self.bundle, *more, self.id, log=self.log)


class HeldMember(Member, Held):
    pass


def pod_of_three(world, topic="SystemV"):
    """A pod whose further containers are two programs with state of their own."""
    first = world.add(First(world))
    app = first.member("app", HeldMember(world, "Memory"))
    db = first.member("db", HeldMember(world, topic))
    for member in (app, db):
        (member.srv / member.name).touch()
    first.begin()
    return first, app, db


def step_all(*members):
    for member in members:
        member.call("step")


def whole(world):
    """Three containers with files, memory, ids and names of their own, and what they have in common."""
    first, app, db = pod_of_three(world)
    step_all(app, db)
    first.check_memory()
    for turn in range(world.rounds):
        name, figures = first.checkpoint(leave=turn % 2 == 0)
        listed = figures["manifest"]["container"]["pod"]
        check([one["container"]["annotations"][NAME] for one in listed] == ["app", "db"], f"the snapshot has {listed}")
        step = turn % 2 == 0
        if step:
            # They go on: what they do now is not in the snapshot.
            asked = app.asked, db.asked
            step_all(app, db)
            app.asked, db.asked = asked
        first.delete(force=True)
        # Each has its own files, wherever they are among its mounts.
        app.mounts = ("/opt", "/media", "/mnt", "/srv")[max(0, 3 - turn):]
        first.restore(name)
        step_all(app, db)
        first.check_memory()
        app.walk()
        for member in (app, db):
            host = world.dormouse("exec", member.id, "/bin/hostname").stdout.strip()
            check(host == "sleeper", f"{member.name} has the name {host!r}")
            root = world.dormouse("exec", member.id, "/bin/ls", "/srv").stdout.split()
            check(member.name in root, f"{member.name} sees {root}")
        check(world.status(app.id) == world.status(db.id) == "running", "not all of it runs")
        world.dormouse("hibernate", first.id)
        step_all(app, db)
    # A further one begins as in any pod, and each ends by itself.
    app.world.dormouse("kill", app.id, "KILL")
    db.call("step")
    first.delete(force=True)
    check(not world.ids(), f"{world.ids()} is left")


def one_by_one(world):
    """Nothing goes on before all have come and are started, in whatever order; who goes meanwhile may come again."""
    first, app, db = pod_of_three(world)
    step_all(app, db)
    name, _ = first.checkpoint()
    first.delete(force=True)
    first.restore(name, members=())
    check(world.status(first.id) == "running", f"the first one is {world.status(first.id)}")
    for words in (("exec", first.id, "/bin/true"), ("checkpoint", first.id), ("hibernate", first.id)):
        world.refused(*words)
    for member in (db, app):
        member.write_bundle()
    stranger = world.add(HeldMember(world, "Memory"))
    stranger.first, stranger.name = first, "other"
    stranger.write_bundle()
    world.refused("run", "--detach", "--bundle", stranger.bundle, stranger.id, says=("restore and start",))
    world.refused("restore", "--detach", "--snapshot", name, "--bundle", stranger.bundle, stranger.id, says=("app, db",))
    world.refused("restore", "--detach", "--snapshot", name, "--bundle", app.bundle, "--port", "80=81", app.id, says=("first",))
    db.restore(name)
    check(world.status(db.id) == "running", f"one that has come is {world.status(db.id)}")
    world.refused("restore", "--detach", "--snapshot", name, "--bundle", db.bundle, stranger.id, says=("already",))
    world.dormouse("delete", "--force", db.id)
    check(db.id not in world.ids(), "one that was deleted is listed")
    # One that is stopped as engines do it: what came for it goes with it.
    app.restore(name)
    world.dormouse("kill", app.id, "TERM")
    for order in (("pause",), ("ps",), ("update", "--memory", "1000000000")):
        world.refused(*order, app.id, says=("waits",))
    world.dormouse("kill", app.id, "KILL")
    world.dormouse("delete", app.id)
    app.write_bundle()
    app.restore(name)
    try:
        app.call("step", patience=1)
    except Failure as why:
        check("no answer" in str(why) or "nobody listens" in str(why), f"the pod does not wait: {why}")
    else:
        raise AssertionError("the pod goes on without one of its containers")
    # By its name, whatever its annotation says.
    db.name = "something"
    db.write_bundle()
    db.restore(name, "--container", "db")
    step_all(app, db)
    first.delete(force=True)


def refused(world):
    """What is no whole pod is refused in a sentence, and the pod goes on."""
    first, app, db = pod_of_three(world, "Open")
    step_all(app, db)
    world.refused("checkpoint", app.id, says=(first.id,))
    world.dormouse("pause", app.id)
    world.refused("checkpoint", "--name", "none", first.id, says=("paused",))
    world.dormouse("resume", app.id)
    late = first.member("late", Member(world, ("/bin/sleep", "infinity")))
    late.write_bundle()
    world.launch("create", "--bundle", late.bundle, late.id, log=late.log)
    world.refused("checkpoint", "--name", "none", first.id, says=("start it first",))
    world.dormouse("delete", "--force", late.id)
    first.members.remove(late)
    step_all(app, db)
    check(not world.names() and not world.left_overs(), "something is left")
    name, _ = first.checkpoint()
    first.delete(force=True)
    # A bundle that is of no pod, a bundle that lacks a mount, another snapshot, and a file that has changed.
    plain = world.container(PYTHON, "-c", "import time; time.sleep(1000)")
    plain.write_bundle()
    world.refused("restore", "--detach", "--snapshot", name, "--bundle", plain.bundle, plain.id, says=("pod",))
    world.refused("do", "--from", name, "--", "true", says=("pod",))
    world.refused("restore", "--detach", "--snapshot", name, "--after", "true", "--bundle", first.bundle, first.id, says=("--after",))
    first.restore(name, members=())
    app.write_bundle(mounts=())
    world.refused("restore", "--detach", "--snapshot", name, "--bundle", app.bundle, app.id, says=("/srv",))
    other = world.container(PYTHON, "-c", "import time; time.sleep(1000)").begin()
    another, _ = other.checkpoint()
    app.write_bundle()
    world.refused("restore", "--detach", "--snapshot", another, "--bundle", app.bundle, app.id, says=("pod",))
    app.restore(name)
    with (db.srv / "log").open("a", encoding="ascii") as log:
        log.write("changed\n")
    db.write_bundle()
    db.generation += 1
    said = world.refused("restore", "--detach", "--snapshot", name, "--bundle", db.bundle, db.id)
    check("/log" in said, f"a file that has changed is refused with {said!r}")
    for one in (db, app, first):
        world.dormouse("delete", "--force", one.id, code=None)
    check(not world.ids() - {other.id}, f"{world.ids()} is left")


def redis(world):
    """Clients in one container keep their connections to the redis in another, over the pod's loopback."""
    first = world.add(First(world))
    port = free_port()
    server = first.member("redis", Member(world, (REDIS, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", "/tmp")))
    app = first.member("app", HeldMember(world, "RedisBeside", environment=(f"REDIS_PORT={port}",)))
    first.begin()
    for turn in range(world.rounds):
        app.call("step")
        name, _ = first.checkpoint(leave=turn % 2 == 1)
        first.delete(force=True)
        first.restore(name)
    app.call("step")
    check(world.status(server.id) == "running", "redis does not run")


def gone(world):
    """A container that is deleted once all have come is not waited for; one of an annotation begins anew in a pod that has gone on."""
    first, app, db = pod_of_three(world)
    step_all(app, db)
    name, _ = first.checkpoint()
    first.delete(force=True)
    configuration = world.directory / "node.toml"
    configuration.write_text('allow = ["snapshot"]\n')
    first.restore(name, members=())
    for member in (app, db):
        member.generation += 1
        annotated(member.write_bundle(), {KIND: "container", POD: first.id, NAME: member.name, SNAPSHOT: name})
        world.launch("--config", configuration, "create", "--bundle", member.bundle, member.id, log=member.log)
    world.dormouse("delete", "--force", db.id)
    world.dormouse("start", app.id)
    app.call("step")
    world.dormouse("kill", app.id, "KILL")
    check(comes(lambda: world.status(app.id) == "stopped", 5), "one that is killed does not end")
    world.dormouse("delete", app.id)
    for member in (app, db):
        world.launch("--config", configuration, "run", "--detach", "--bundle", member.bundle, member.id, log=member.log)
        member.nonce, member.asked = None, 0
        member.call("step")
    first.delete(force=True)


CASES = [
    ("pod-whole", whole, ()),
    ("pod-order", one_by_one, ()),
    ("pod-refused", refused, ()),
    ("pod-gone", gone, ()),
    ("pod-redis", redis, (REDIS,)),
]
