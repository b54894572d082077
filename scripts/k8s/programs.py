"""The programs of Kubernetes, built from its Go modules, and Debian's etcd."""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from lib.outcome import Skip
from lib.tree import TOP, missing

VERSION = "1.31.1"
CACHE = TOP / "target/kubernetes"
BIN = CACHE / f"bin-{VERSION}"
COMMANDS = ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubectl")
NEEDED = ("containerd", "runc", "ctr", "busybox", "python3", "ip", "iptables", "openssl", "unshare")


def go():
    """The Go compiler, wherever it is."""
    return next((path for path in ("/usr/local/go/bin/go", "/usr/bin/go") if Path(path).exists()), "go")


def run(words, cwd, env=None):
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, env=os.environ | (env or {}))
    if done.returncode != 0:
        raise Skip(f"`{' '.join(map(str, words[:3]))}` failed: {done.stderr.strip()[-600:]}")
    return done.stdout


def write_module(source, environment):
    """A module that requires Kubernetes, whose own go.mod leaves the versions of its parts open."""
    (source / "go.mod").write_text("module dormouse/kubernetes\n\ngo 1.22.0\n")
    module = f"k8s.io/kubernetes@v{VERSION}"
    described = json.loads(run([go(), "mod", "download", "-json", module], source, environment))
    parts = re.findall(r"^\s*(k8s\.io/[a-z-]+) v0\.0\.0$", Path(described["GoMod"]).read_text(), re.M)
    replaced = "".join(f"\t{part} => {part} v0.{VERSION[2:]}\n" for part in parts)
    (source / "go.mod").write_text(
        f"module dormouse/kubernetes\n\ngo 1.22.0\n\nrequire k8s.io/kubernetes v{VERSION}\n\nreplace (\n{replaced})\n")
    imports = "".join(f'\t_ "k8s.io/kubernetes/cmd/{command}"\n' for command in COMMANDS)
    (source / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\nimport (\n{imports})\n")


def build_commands():
    source = CACHE / "source"
    source.mkdir(parents=True, exist_ok=True)
    environment = {"GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0"}
    if missing("go") and not Path(go()).exists():
        raise Skip("Go is not installed")
    write_module(source, environment)
    fresh = CACHE / "bin.new"
    for command in COMMANDS:
        print(f"building {command} {VERSION}", flush=True)
        flags = ["-trimpath", "-ldflags", f"-s -w -X k8s.io/component-base/version.gitVersion=v{VERSION}"]
        run(["nice", "-n", "19", go(), "build", *flags, "-o", f"{fresh}/", f"k8s.io/kubernetes/cmd/{command}"],
            source, environment)
    fresh.rename(BIN)


def fetch_etcd():
    """Debian's etcd, unpacked and not installed: the package would start a server."""
    directory = CACHE / "debian"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    run(["apt-get", "download", "-qq", "etcd-server"], directory)
    package = next(directory.glob("etcd-server_*.deb"))
    run(["dpkg-deb", "-x", package, directory], directory)
    package.unlink()
    return directory / "usr/bin/etcd"


def etcd():
    return next((path for path in (Path("/usr/bin/etcd"), CACHE / "debian/usr/bin/etcd") if path.exists()), None)


def build():
    """Sees to it that all programs are there."""
    for program in NEEDED:
        if missing(program):
            raise Skip(f"{program} is not installed here; run scripts/deps")
    if not Path("/usr/lib/cni/bridge").exists():
        raise Skip("containernetworking-plugins is not installed here; run scripts/deps")
    if not BIN.exists():
        build_commands()
    if not etcd():
        fetch_etcd()
