"""The administrator's way in, from outside the cluster: kubeconfig and REST."""

import base64
import http.client
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.testbed.rest import Rest

PORT = 6443


class ClusterRest(Rest):
    """Calls the API server of a cluster, by a token or by the administrator's key."""

    def __init__(self, host: str, tls: ssl.SSLContext, token: str | None) -> None:
        super().__init__(PORT, token)
        self._host = host
        self._trust = tls

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(
            self._host, self.port, timeout=60, context=self._trust
        )


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

    def rest(self, token: str | None = None) -> ClusterRest:
        """Give a client: the administrator's, or the one this token belongs to."""
        tls = ssl.create_default_context(cadata=self._ca)
        if token is None:
            tls.load_cert_chain(self._key)
        return ClusterRest(self.host, tls, token)

    def kubectl(
        self, kubectl: str, arguments: Sequence[str], stdin: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator to its end."""
        return subprocess.run(
            [kubectl, f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            check=False,
        )


def _decoded(fields: dict[str, str], name: str) -> str:
    return base64.b64decode(fields[f"{name}-data"]).decode()
