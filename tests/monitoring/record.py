"""Ask the real prometheus-adapter: ``python -m tests.monitoring.record ADAPTER``.

It is built from its Go module, which takes a machine of two cores some minutes: a
go.mod with ``tool sigs.k8s.io/prometheus-adapter/cmd/adapter`` and ``require
sigs.k8s.io/prometheus-adapter v0.12.0``, then ``go mod tidy`` and ``go build tool``.
"""

import os
import sys
import tempfile
from pathlib import Path

import yaml

from gpushare.addresses import find_free_address
from tests.monitoring.adapter import ROOT
from tests.monitoring.pages import MetricsPage, PageServer
from tests.monitoring.scene import (
    LABELS,
    MENDED,
    NODES,
    SEED,
    lasting,
    page,
    paths,
    pods,
    record,
)
from tests.testbed.binaries import cache_folder, ensure_binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.prometheus import Prometheus, ensure_monitoring
from tests.testbed.rest import Rest

ACCOUNT = "prometheus-adapter"
LISTED = 10
"""Entries of the whole list."""
READ = ["get", "list", "watch"]
CHARTS_RIGHTS = [
    {"apiGroups": [group], "resources": resources, "verbs": verbs}
    for group, resources, verbs in (
        ("", ["namespaces", "pods", "services", "configmaps"], READ),
        ("authentication.k8s.io", ["tokenreviews"], ["create"]),
        ("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
    )
]
"""What the adapter's chart lets its account do: nodes are not among it."""


def main(program: str) -> None:
    """Write the answers of both files of rules."""
    cache = cache_folder(os.environ)
    served = MetricsPage()
    served.text = page()
    with (
        tempfile.TemporaryDirectory() as made,
        ControlPlane(ensure_binaries(cache), Path(made) / "plane") as plane,
        PageServer(served.answer) as server,
        Prometheus(
            ensure_monitoring(cache), Path(made) / "p", {"exporter": [server.address]}
        ) as prometheus,
    ):
        prometheus.wait_scraped()
        furnish(plane.rest)
        for rules in (SEED, MENDED):
            ask(program, plane, prometheus.url, rules)


def furnish(rest: Rest) -> None:
    """Make the objects that the scene's labels name."""
    for namespace in {space for space, _ in pods()} - {"default"}:
        rest.must("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    for node in NODES:
        made = {"metadata": {"name": node, "labels": LABELS}}
        rest.must("POST", "/api/v1/nodes", made)
    for namespace, name in pods():
        pod = {
            "metadata": {"name": name, "labels": LABELS},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }
        rest.must("POST", f"/api/v1/namespaces/{namespace}/pods", pod)


def ask(program: str, plane: ControlPlane, prometheus: str, rules: Path) -> None:
    """Run the adapter by these rules, and write down what it says."""
    custom = yaml.safe_load(rules.read_text())["rules"]["custom"]
    config = plane.folder / rules.name
    config.write_text(yaml.safe_dump({"rules": custom}))
    token = service_account_token(plane.rest, "default", ACCOUNT)
    grant(plane.rest, f"system:serviceaccount:default:{ACCOUNT}", CHARTS_RIGHTS)
    kubeconfig = plane.kubeconfig(token, "adapter")
    port = find_free_address().port
    flags = [
        f"--config={config}",
        f"--prometheus-url={prometheus}",
        f"--secure-port={port}",
        f"--cert-dir={plane.folder / rules.stem}",
        "--metrics-relist-interval=2s",
        # The bare control plane has no configuration for API servers beside it.
        "--authentication-tolerate-lookup-failure",
        *(
            f"--{use}-kubeconfig={kubeconfig}"
            for use in ("lister", "authentication", "authorization")
        ),
    ]
    with plane.launcher.start(f"adapter-{rules.stem}", [program, *flags]) as adapter:
        rest = Rest(port, plane.admin.token)
        adapter.wait_ready(
            lambda: len(rest.get(ROOT)[1].get("resources", ())) == LISTED
        )
        record(rules, {path: lasting(*rest.get(path)) for path in paths()})


if __name__ == "__main__":
    main(sys.argv[1])
