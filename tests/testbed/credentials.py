"""Users of the API server: static tokens, service accounts, kubeconfig files."""

import csv
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed.rest import Json, Rest

RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True)
class User:
    """Someone the API server knows from its start, by a token of their own."""

    name: str
    groups: tuple[str, ...] = ()
    token: str = field(default_factory=secrets.token_hex, repr=False)


def write_tokens(path: Path, users: Iterable[User]) -> None:
    with path.open("w", newline="") as file:
        for user in users:
            groups = ",".join(user.groups)
            csv.writer(file).writerow([user.token, user.name, user.name, groups])


def write_kubeconfig(
    path: Path, port: int, token: str, certificate: Path | None = None
) -> Path:
    """Write a kubeconfig for this token (JSON, which every YAML reader takes).

    Without the API server's certificate it trusts every server.
    """
    server: Json = {"server": f"https://127.0.0.1:{port}"}
    if certificate is None:
        server["insecure-skip-tls-verify"] = True
    else:
        server["certificate-authority"] = str(certificate)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": server}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [
            {"name": "testbed", "context": {"cluster": "testbed", "user": "user"}}
        ],
        "current-context": "testbed",
    }
    path.write_text(json.dumps(config, indent=2))
    return path


def grant(rest: Rest, user: str, rules: list[Json]) -> None:
    """Let a user do this everywhere: a ClusterRole and its binding, made or replaced.

    A rule is RBAC's own: ``{"apiGroups": …, "resources": …, "verbs": …}``.
    """
    name = f"testbed:{user}"
    role = {"kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    group = "rbac.authorization.k8s.io"
    binding = {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    _apply(rest, f"{RBAC}/clusterroles", role)
    _apply(rest, f"{RBAC}/clusterrolebindings", binding)


def service_account_token(rest: Rest, namespace: str, name: str) -> str:
    """Give a token of this service account, which is made where there is none.

    Its user name is ``system:serviceaccount:<namespace>:<name>``.
    """
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    if rest.get(f"{path}/{name}")[0] == 404:
        rest.must("POST", path, {"metadata": {"name": name}})
    wanted: Json = {"spec": {"audiences": [], "expirationSeconds": 24 * 3600}}
    answer = rest.must("POST", f"{path}/{name}/token", wanted)
    return str(answer["status"]["token"])


def _apply(rest: Rest, path: str, body: Json) -> None:
    status, _ = rest.get(f"{path}/{body['metadata']['name']}")
    if status == 404:
        rest.must("POST", path, body)
    else:
        rest.must("PUT", f"{path}/{body['metadata']['name']}", body)
