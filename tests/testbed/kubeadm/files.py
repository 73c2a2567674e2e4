"""The files that a node is configured by, as text."""

import json
import textwrap
from pathlib import Path

import yaml

from tests.testbed.process import GO_ENVIRONMENT
from tests.testbed.rest import Json

CONTAINERD_SOCKET = "unix:///run/containerd/containerd.sock"
IMAGE_REPOSITORY = "local.test"
RUNC = "/usr/sbin/runc"
CNI_PROGRAMS = "/usr/lib/cni"
CDI_SPECS = "/etc/cdi"
CDI_OF_CLAIMS = "/run/cdi"
"""Containerd's other folder by default, for what is gone after a reboot."""
AUDIT = "/var/lib/audit"
AUDIT_POLICY = f"{AUDIT}/policy.json"
AUDIT_LOG = f"{AUDIT}/log"
PATCHES = "/var/lib/kubeadm/patches"
PATIENCE = {"kubernetesAPICall": "4m0s"}
"""kubeadm's own minute is short on a machine that is busy."""
PORT = 6443
SHARED_KEYS = (
    *("ca.crt", "ca.key", "sa.key", "sa.pub"),
    *("front-proxy-ca.crt", "front-proxy-ca.key", "etcd/ca.crt", "etcd/ca.key"),
)
"""What all control planes of a cluster share, below ``/etc/kubernetes/pki``."""
STATIC_PODS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def containerd_toml(nvidia_runtime: str, pause_image: str) -> str:
    """Describe containerd, with runc and with NVIDIA's runtime in front of runc."""
    return _dedented(f"""
        version = 3
        root = "/var/lib/containerd"
        state = "/run/containerd"
        [plugins.'io.containerd.cri.v1.images']
          snapshotter = "overlayfs"
          [plugins.'io.containerd.cri.v1.images'.pinned_images]
            sandbox = "{pause_image}"
        [plugins.'io.containerd.cri.v1.runtime']
          cdi_spec_dirs = ["{CDI_SPECS}", "{CDI_OF_CLAIMS}"]
          # Without the right to lower it, runc dies with "can't get final child's PID".
          restrict_oom_score_adj = true
          [plugins.'io.containerd.cri.v1.runtime'.cni]
            bin_dirs = ["{CNI_PROGRAMS}"]
            conf_dir = "/etc/cni/net.d"
    """) + "".join(
        _runtime(name, program)
        for name, program in (("runc", RUNC), ("nvidia", nvidia_runtime))
    )


def _runtime(name: str, program: str) -> str:
    table = f"plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{name}"
    return _dedented(f"""
        [{table}]
          runtime_type = "io.containerd.runc.v2"
          [{table}.options]
            BinaryName = "{program}"
            SystemdCgroup = false
    """)


def cni_conflist(pods: str) -> str:
    """Describe the pods' network: a bridge on the node, addresses in turn."""
    ranges = [[{"subnet": pods}]]
    routes = [{"dst": "0.0.0.0/0"}]
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        # Lets a pod reach itself through its own Service.
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
    }
    network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
    return json.dumps(network, indent=2)


def nvidia_toml() -> str:
    """Describe NVIDIA's runtime: it takes cards from CDI specs, named by UUID."""
    return _dedented(f"""
        [nvidia-container-runtime]
        mode = "cdi"
        runtimes = ["{RUNC}"]
        log-level = "info"
        [nvidia-container-runtime.modes.cdi]
        spec-dirs = ["{CDI_SPECS}"]
        default-kind = "nvidia.com/gpu"
        annotation-prefixes = ["cdi.k8s.io/"]
    """)


def init_documents(
    name: str, address: str, version: str, services: str, *, audit: bool = False
) -> str:
    """Give the configuration of ``kubeadm init``.

    With ``audit`` the API server logs each request; the policy must lie there already,
    as ``patches`` must.
    """
    return _documents(
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "InitConfiguration",
            "localAPIEndpoint": {"advertiseAddress": address, "bindPort": PORT},
            "nodeRegistration": _registration(name, address),
            "patches": {"directory": PATCHES},
            "timeouts": PATIENCE,
        },
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "kubernetesVersion": version,
            "imageRepository": IMAGE_REPOSITORY,
            # Without it no other control plane may join.
            "controlPlaneEndpoint": f"{address}:{PORT}",
            "networking": {"serviceSubnet": services},
            # What a power cut would cost is nothing here: the machine itself goes on.
            "etcd": {
                "local": {"extraArgs": [{"name": "unsafe-no-fsync", "value": "true"}]}
            },
            # By itself it looks every 15 seconds.
            "controllerManager": {
                "extraArgs": [
                    {"name": "horizontal-pod-autoscaler-sync-period", "value": "3s"}
                ]
            },
            **({"apiServer": _audited()} if audit else {}),
        },
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "resolvConf": "",
            "makeIPTablesUtilChains": False,
            # What a device plugin offers is told at once, and the same again seldom.
            "nodeStatusUpdateFrequency": "500ms",
            "nodeStatusReportFrequency": "10s",
            # Static pods that ran before the node was known are shown at the next look
            # at all pods: after a minute by default.
            "syncFrequency": "5s",
            "evictionHard": dict.fromkeys(
                ("memory.available", "nodefs.available", "imagefs.available"), "0%"
            ),
            # Never: on a machine whose disk is nearly full kubelet would remove the
            # images that no pod uses just now, and no registry has them.
            "imageGCHighThresholdPercent": 100,
        },
    )


def patches() -> dict[str, str]:
    """Give the changes to kubeadm's static pods, by file.

    By kubeadm's own manifests kubelet looks after ten seconds whether one has started,
    and then every ten: each of the many restarts would wait for that.
    """
    soon = {"initialDelaySeconds": 0, "periodSeconds": 1, "failureThreshold": 240}
    own = [{"name": name, "value": value} for name, value in GO_ENVIRONMENT.items()]
    return {
        f"{PATCHES}/{name}+strategic.yaml": yaml.safe_dump(
            {"spec": {"containers": [{"name": name, "startupProbe": soon, "env": own}]}}
        )
        for name in STATIC_PODS
    }


def _audited() -> Json:
    arguments = {
        "audit-policy-file": AUDIT_POLICY,
        "audit-log-path": AUDIT_LOG,
        "audit-log-maxsize": "0",
    }
    volume = {
        "name": "audit",
        "hostPath": AUDIT,
        "mountPath": AUDIT,
        "pathType": "DirectoryOrCreate",
    }
    return {
        "extraArgs": [{"name": n, "value": v} for n, v in arguments.items()],
        "extraVolumes": [volume],
    }


def join_document(
    name: str,
    address: str,
    api_server: str,
    token: str,
    *,
    control_plane: bool = False,
) -> str:
    """Give the configuration of ``kubeadm join``.

    A control plane needs the first one's ``SHARED_KEYS`` and ``patches`` before.
    """
    bootstrap = {
        "apiServerEndpoint": f"{api_server}:{PORT}",
        "token": token,
        # The address is one that we made ourselves.
        "unsafeSkipCAVerification": True,
    }
    return _documents(
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "JoinConfiguration",
            "discovery": {"bootstrapToken": bootstrap},
            "nodeRegistration": _registration(name, address),
            "timeouts": PATIENCE,
            **(_controlling(address) if control_plane else {}),
        }
    )


def _controlling(address: str) -> Json:
    endpoint = {"advertiseAddress": address, "bindPort": PORT}
    return {
        "controlPlane": {"localAPIEndpoint": endpoint},
        "patches": {"directory": PATCHES},
    }


def _registration(name: str, address: str) -> Json:
    return {
        "name": name,
        "criSocket": CONTAINERD_SOCKET,
        "imagePullPolicy": "Never",
        "taints": [],
        "kubeletExtraArgs": [{"name": "node-ip", "value": address}],
    }


def proxy_document(kubeconfig: Path) -> str:
    """Describe a kube-proxy that leaves this machine's own settings alone."""
    return _documents(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "mode": "iptables",
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )


def _documents(*documents: Json) -> str:
    # Not JSON in one line: some Kubernetes readers take what begins with "{" for JSON
    # altogether and stumble over the second document.
    return "---\n".join(yaml.safe_dump(each, sort_keys=False) for each in documents)


def _dedented(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")
