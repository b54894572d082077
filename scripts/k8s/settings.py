"""The configuration of the cluster's programs, in the usual places of the machine."""
import json
import subprocess
from pathlib import Path

from images import PAUSE
from machine import ADDRESS

KUBERNETES = Path("/var/lib/kubernetes")
KUBECONFIG = KUBERNETES / "kubeconfig"
KUBELET = KUBERNETES / "kubelet.json"
PROXY = KUBERNETES / "proxy.json"
TOKEN = "dormouse-check"
PODS, SERVICES = "10.88.0.0/16", "10.96.0.0/16"
# By containerd's major version. This root may lack CAP_SYS_RESOURCE.
CONTAINERD = {1: f"""version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
""", 2: f"""version = 3

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/etc/cni/net.d"
"""}
NETWORK = {"cniVersion": "0.4.0", "name": "pods", "plugins": [
    {"type": "bridge", "bridge": "pods0", "isGateway": True, "ipMasq": True, "hairpinMode": True,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": True}},
]}


def write(machine, containerd):
    """Writes all of it. `containerd`: its major version."""
    KUBERNETES.mkdir()
    Path("/etc/containerd").mkdir(exist_ok=True)
    Path("/etc/containerd/config.toml").write_text(CONTAINERD[containerd])
    Path("/etc/cni/net.d").mkdir(parents=True, exist_ok=True)
    Path("/etc/cni/net.d/10-pods.conflist").write_text(json.dumps(NETWORK))
    (KUBERNETES / "tokens").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    subprocess.run(["openssl", "genrsa", "-out", KUBERNETES / "accounts.key", "2048"], check=True, capture_output=True)
    KUBECONFIG.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "node",
        "clusters": [{"name": "node", "cluster": {"server": f"https://{ADDRESS}:6443", "insecure-skip-tls-verify": True}}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "node", "context": {"cluster": "node", "user": "admin"}}],
    }))
    KUBELET.write_text(json.dumps(kubelet_configuration(machine)))
    PROXY.write_text(json.dumps({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "iptables",
        "clusterCIDR": PODS, "clientConnection": {"kubeconfig": str(KUBECONFIG)},
        # Those are the host's, and not the network's.
        "conntrack": {"maxPerCore": 0, "min": 0},
    }))


def kubelet_configuration(machine):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{machine.group}", "failSwapOn": False, "failCgroupV1": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins", "resolvConf": "/etc/resolv.conf",
        # To ask for less takes CAP_SYS_RESOURCE, and so do more files than this process may open.
        "oomScoreAdj": 0, "maxOpenFiles": 10000,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # A change of a ConfigMap is in its volumes sooner.
        "syncFrequency": "5s", "configMapAndSecretChangeDetectionStrategy": "Watch",
        "imageGCHighThresholdPercent": 100,
    }


def apiserver():
    key = KUBERNETES / "accounts.key"
    return (
        "--etcd-servers=http://127.0.0.1:2379", f"--advertise-address={ADDRESS}", f"--service-cluster-ip-range={SERVICES}",
        f"--cert-dir={KUBERNETES}", f"--token-auth-file={KUBERNETES}/tokens", "--authorization-mode=RBAC", "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}", "--kubelet-preferred-address-types=InternalIP",
    )


def controller_manager():
    return (
        f"--kubeconfig={KUBECONFIG}", f"--service-account-private-key-file={KUBERNETES}/accounts.key",
        f"--root-ca-file={KUBERNETES}/apiserver.crt", "--use-service-account-credentials=false", "--leader-elect=false",
    )


def scheduler():
    return f"--kubeconfig={KUBECONFIG}", "--leader-elect=false"


def kubelet():
    return f"--config={KUBELET}", f"--kubeconfig={KUBECONFIG}", "--hostname-override=node", f"--node-ip={ADDRESS}"


def kube_proxy():
    return f"--config={PROXY}", "--hostname-override=node"


def runc_class():
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "runc"}, "handler": "runc"}
