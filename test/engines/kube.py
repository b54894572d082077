"""Pods under containerd's CRI plugin, asked by a small client (`cri/`)."""
import os
import subprocess
from pathlib import Path

from world import IMAGE, PAUSE, RUNTIMES, TOP, Engine, Failure, Skip, image_tar, missing, until

PLUGINS = "/usr/lib/cni"
CLIENT = TOP / "target/engines/cri"


def configuration(directory):
    """The plugin's part of containerd's configuration."""
    runtimes = "".join(f"""
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
      runtime_type = "{kind}"
""" for name, kind in RUNTIMES.items())
    return f"""
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
{runtimes}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{directory}/cni"
"""


def build_client():
    """Builds the client, if there is a compiler for it."""
    go = next((path for path in ("/usr/local/go/bin/go", "/usr/bin/go") if Path(path).exists()), None)
    if not go:
        if missing("go"):
            raise Skip("Go is not installed")
        go = "go"
    CLIENT.parent.mkdir(parents=True, exist_ok=True)
    # The module's versions are fixed, and their checksums lie beside it.
    built = subprocess.run([go, "build", "-o", CLIENT, "."], cwd=TOP / "test/engines/cri", capture_output=True,
                           text=True, env=os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"})
    if built.returncode != 0:
        raise Skip(f"the client cannot be built: {built.stderr.strip().splitlines()[-1]}")


class Kube(Engine):
    """containerd with the CRI plugin."""

    def __init__(self):
        super().__init__("cri")
        self.namespace = "k8s.io"
        self.cri = configuration(self.dir)
        (self.dir / "cni").mkdir()
        number = os.getpid() % 200 + 20
        (self.dir / "cni/10-test.conflist").write_text(f"""{{
  "cniVersion": "0.4.0", "name": "engines-{os.getpid()}", "plugins": [
    {{"type": "ptp", "ipam": {{"type": "host-local", "subnet": "10.{number}.7.0/24", "dataDir": "{self.dir}/ipam"}}}}
  ]
}}
""")
        self.has_network = Path(PLUGINS, "ptp").exists()

    def pull(self):
        for name, command in ((IMAGE, ["/bin/sh"]), (PAUSE, ["/bin/sleep", "100000"])):
            tar = self.dir / "image.tar"
            image_tar(tar, name, command)
            self.run_ctr("image", "import", tar)
            tar.unlink()

    def live(self, runtime, network):
        """Takes a pod through its life; result: the lines that the client says."""
        logs = self.dir / f"logs-{runtime}-{network}"
        logs.mkdir()
        words = [CLIENT, "-socket", self.address, "-handler", runtime, "-image", IMAGE, "-logs", logs]
        done = subprocess.run([*words, *(["-network"] if network else [])], capture_output=True, text=True, timeout=300)
        return (done.stdout + done.stderr).splitlines()


def run(chosen, tell):
    """All of it: `tell` takes a verdict, a name and a remark."""
    build_client()
    engine = Kube()
    try:
        engine.start()
        engine.pull()
        until("the image in the plugin", lambda: IMAGE in engine.run_ctr("image", "ls", "-q").stdout)
        for network in [False, True]:
            kind = "own network" if network else "host's network"
            if network and not engine.has_network:
                tell("skipped", f"pod, {kind}", "no CNI plugins are installed here")
                continue
            for runtime in chosen["runtimes"]:
                for line in engine.live(runtime, network):
                    verdict, _, rest = line.partition(" ")
                    name, _, why = rest.partition(": ")
                    hint = "with runc, so the test is wrong: " if runtime == "runc" and why else ""
                    tell("ok" if verdict == "ok" else "FAILED", f"pod, {kind}, {runtime}: {name}", hint + why)
                try:
                    until(f"the end of {engine.remains()}", lambda: not engine.remains())
                    tell("ok", f"pod, {kind}, {runtime}: nothing is left", "")
                except Failure as why:
                    tell("FAILED", f"pod, {kind}, {runtime}: nothing is left", str(why))
        if chosen["verbose"]:
            print(engine.process.text())
    finally:
        engine.stop()
