"""A real cluster: what kubeadm makes, with real kubelets and real containers."""

import base64
import json
import os
import secrets
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import yaml

from tests.testbed.audit import AuditLog, policy
from tests.testbed.kubeadm import files, network, scheduler_pod
from tests.testbed.kubeadm.instances import Claim, cgroup_prefix
from tests.testbed.kubeadm.namespaces import Namespaces, succeeded
from tests.testbed.kubeadm.network import Addresses
from tests.testbed.kubeadm.node import PROXY_CONFIG, Node
from tests.testbed.kubeadm.programs import Programs
from tests.testbed.process import Launcher
from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until


class Access:
    """What kubeadm gave the administrator, kept in a folder outside the nodes."""

    def __init__(self, admin_conf: str, host: str, folder: Path) -> None:
        self.host = host
        self.kubeconfig = folder / "admin.kubeconfig"
        self.kubeconfig.write_text(admin_conf)
        self.kubeconfig.chmod(0o600)
        config = yaml.safe_load(admin_conf)
        self._ca = _decoded(config["clusters"][0]["cluster"], "certificate-authority")
        user = config["users"][0]["user"]
        self._key = folder / "admin.pem"
        self._key.touch(0o600)
        certificate = _decoded(user, "client-certificate")
        self._key.write_text(certificate + _decoded(user, "client-key"))

    def rest(self, token: str | None = None) -> Rest:
        """Give a client: the administrator's, or the one this token belongs to."""
        tls = ssl.create_default_context(cadata=self._ca)
        if token is None:
            tls.load_cert_chain(self._key)
        return Rest(files.PORT, token, tls=tls, host=self.host)

    def kubectl(
        self, kubectl: str, arguments: Sequence[str], stdin: str | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [kubectl, f"--kubeconfig={self.kubeconfig}", *arguments],
            env={**os.environ, "GOGC": "off"},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            check=False,
        )


def _decoded(fields: dict[str, str], name: str) -> str:
    return base64.b64decode(fields[f"{name}-data"]).decode()


ADMIN_CONF = "/etc/kubernetes/admin.conf"
CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


def new_token(first: Node, rest: Rest) -> str:
    """Make a join token and wait until the controllers have signed by it.

    kubeadm would wait for that too, but looks only every five seconds.
    """
    token = f"{secrets.token_hex(3)}.{secrets.token_hex(8)}"
    first.must("kubeadm", f"--kubeconfig={ADMIN_CONF}", "token", "create", token)
    signature = f"jws-kubeconfig-{token.partition('.')[0]}"
    wait_until(
        lambda: signature in rest.must("GET", CLUSTER_INFO)["data"],
        "signature by the join token",
        120,
    )
    return token


def ready(rest: Rest, node: str, not_since: str | None = None) -> bool:
    """Say whether the node is ready, and was heard of after that sign of life."""
    try:
        heard = not_since is None or last_heard(rest, node) != not_since
        status, answer = rest.get(f"/api/v1/nodes/{node}")
    except OSError:
        # The API server is on its way as well.
        return False
    conditions = answer["status"].get("conditions", []) if status == 200 else []
    return heard and any(
        each["type"] == "Ready" and each["status"] == "True" for each in conditions
    )


def last_heard(rest: Rest, node: str) -> str | None:
    """Give the kubelet's last sign of life, if it ever gave one."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}"
    status, lease = rest.get(path)
    return str(lease["spec"]["renewTime"]) if status == 200 else None


FIRST_NODE = "cp"
KUBEADM_YAML = "/etc/kubernetes/kubeadm.yaml"
RUNTIME_CLASS: Json = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
# No DNS and no proxy of kubeadm's, because their images cannot be had here.
SKIPPED = "addon/coredns,addon/kube-proxy,show-join-command"


class Cluster:
    """Runs a cluster; leaving it leaves nothing but the logs in ``folder``.

    The first node, ``cp``, has no taint, so that pods run there too. With ``proxy``
    each node runs kube-proxy, and Services answer, the API server's own included. With
    ``audit`` the API server logs who asked what. ``archives`` are further images, which
    every node has.
    """

    def __init__(
        self,
        programs: Programs,
        folder: Path,
        *,
        kept: bool = False,
        audit: bool = False,
        archives: Sequence[Path] = (),
    ) -> None:
        self.programs = programs
        self.folder = folder
        self.nodes: dict[str, Node] = {}
        self.launcher = Launcher(folder)
        self._audit = audit
        self._kept = kept
        self._archives = [*programs.images.all, *archives]
        self._switch: Namespaces | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._claim = Claim.take(self.folder / "nodes", kept=self._kept)
        try:
            self._bring_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def machine_address(self) -> str:
        """This machine, as nodes and pods reach what the test process serves."""
        return self.addresses.machine

    @property
    def addresses(self) -> Addresses:
        return Addresses(self._claim.record.instance)

    @property
    def audit(self) -> AuditLog:
        """What the API server was asked, where the cluster was made to tell."""
        return AuditLog(self.nodes[FIRST_NODE].path(files.AUDIT_LOG))

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, good from this machine's own network."""
        return self._access.kubeconfig

    def rest_as(self, token: str) -> Rest:
        return self._access.rest(token)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return succeeded(self.try_kubectl(*arguments, stdin=stdin))

    def try_kubectl(
        self, *arguments: str, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; look at its ``returncode``."""
        kubectl = self.programs.control_plane.path("kubectl")
        return self._access.kubectl(kubectl, arguments, stdin)

    def join(self, name: str, *, control_plane: bool = False) -> Node:
        """Add a node, which is a worker unless it becomes a second control plane."""
        node = self._make_node(name)
        first = self.nodes[FIRST_NODE]
        document = files.join_document(
            name,
            node.address,
            first.address,
            new_token(first, self.rest),
            control_plane=control_plane,
        )
        node.write(KUBEADM_YAML, document)
        if control_plane:
            self._write_given(node)
            for key in files.SHARED_KEYS:
                path = f"/etc/kubernetes/pki/{key}"
                node.write(path, first.path(path).read_text())
        self._kubeadm(node, "join")
        return node

    def import_image(self, archive: Path) -> None:
        """Give this image to every node, and to each that joins later."""
        self._archives.append(archive)
        for node in self.nodes.values():
            node.import_images([archive])

    def set_scheduler_config(
        self,
        config: str,
        extra: Mapping[str, str] | None = None,
        *,
        leader_elect: bool = False,
    ) -> None:
        """Give kube-scheduler this configuration and wait until it runs by it.

        Its kubeconfig is ``/etc/kubernetes/scheduler.conf``; ``extra`` are files that
        come to lie beside it, in ``/etc/kubernetes/scheduler``. Without election a
        new scheduler need not wait until its predecessor's lease has run out.
        """
        node = self.nodes[FIRST_NODE]
        scheduler_pod.configure(node, config, extra or {}, leader_elect=leader_elect)

    def wait_node_ready(self, name: str, timeout_s: float = 120.0) -> None:
        wait_until(lambda: ready(self.rest, name), f"node {name} ready", timeout_s)

    def reboot(self, name: str) -> None:
        """Reboot a node, and wait until it has reported itself ready again."""
        before = last_heard(self.rest, name)
        self.nodes[name].reboot()
        wait_until(lambda: ready(self.rest, name, before), f"{name} back", 120)

    def announce(self) -> None:
        """Let ``up`` and ``down`` see that the cluster is there for a person."""
        record = replace(
            self._claim.record,
            kubeconfig=str(self.kubeconfig),
            ready=True,
            control_plane=self.nodes[FIRST_NODE].spaces.pid,
        )
        self._claim.write(record)

    def close(self) -> None:
        """End every process and remove what the cluster has left on the machine."""
        for node in self.nodes.values():
            node.close()
        if self._switch:
            self._switch.close()
        self.launcher.end_all()
        self._claim.release()

    def _bring_up(self) -> None:
        switch = Namespaces(self.launcher, "switch", ["sleep", "infinity"])
        self._switch = switch
        network.make_switch(switch, self.addresses)
        node = self._make_node(FIRST_NODE)
        document = files.init_documents(
            node.name,
            node.address,
            self.programs.version,
            network.SERVICES,
            audit=self._audit,
        )
        self._write_given(node)
        node.write(KUBEADM_YAML, document)
        self._kubeadm(node, "init", f"--skip-phases={SKIPPED}")
        self.rest.must("POST", "/apis/node.k8s.io/v1/runtimeclasses", RUNTIME_CLASS)
        # Without it every pod is refused, and the controllers need a few seconds.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_until(
            lambda: self.rest.get(account)[0] == 200, "default service account", 120
        )

    def _write_given(self, node: Node) -> None:
        """Write what kubeadm's configuration of a control plane refers to."""
        if self._audit:
            node.write(files.AUDIT_POLICY, json.dumps(policy("Metadata")))
        for path, text in files.patches().items():
            node.write(path, text)

    def _make_node(self, name: str) -> Node:
        number = network.NODES_EACH[len(self.nodes)]
        node = Node(
            self.launcher,
            self.programs,
            name,
            self.folder / "nodes" / name,
            self.addresses.node(number),
            f"{cgroup_prefix(self.addresses.instance)}{name}",
        )
        self.nodes[name] = node
        assert self._switch is not None
        network.join(self._switch, node.spaces, self.addresses, number)
        self._route_pods(node, number)
        node.configure(self.addresses.pods(number))
        node.take_images(self._archives)
        node.start_containerd()
        return node

    def _route_pods(self, new: Node, number: int) -> None:
        network.route_pods_here(self.addresses, number)
        for other_number, other in zip(
            network.NODES_EACH, self.nodes.values(), strict=False
        ):
            if other is not new:
                network.route_pods(other.spaces, self.addresses, number)
                network.route_pods(new.spaces, self.addresses, other_number)

    def _kubeadm(self, node: Node, action: str, *flags: str) -> None:
        told = [f"--config={KUBEADM_YAML}", "--ignore-preflight-errors=all", *flags]
        node.kubeadm(action, *told)
        if action == "init":
            admin_conf = node.path(ADMIN_CONF).read_text()
            self._access = Access(admin_conf, node.address, self.folder)
            self.rest: Rest = self._access.rest()
        self._start_proxy(node)
        self.wait_node_ready(node.name)

    def _start_proxy(self, node: Node) -> None:
        kubeconfig = Path("/etc/kubernetes/proxy.conf")
        node.write(str(kubeconfig), self.kubeconfig.read_text())
        node.write(PROXY_CONFIG, files.proxy_document(kubeconfig))
        node.start_proxy()
