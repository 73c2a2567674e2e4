"""What ``up`` puts into a cluster that a person will use, on top of Kubernetes."""

import textwrap
from pathlib import Path

from tests.testbed.kubeadm.cluster import Cluster

APPS = "apps.yaml"


def furnish(cluster: Cluster) -> None:
    """Give ``cp`` two cards and ``worker1`` one, with all that shares them."""
    # Not above, because the exercises are themselves built on this folder.
    from tests.cluster.cards import RTX_3090, TWO_P4
    from tests.cluster.site import Site
    from tests.nvml.build import the_stub

    folder = cluster.folder / "site"
    folder.mkdir()
    site = Site(cluster, the_stub(), folder)
    site.install()
    for name, cards in {"cp": TWO_P4, "worker1": [RTX_3090]}.items():
        if name in cluster.nodes:
            site.add_cards(cluster.nodes[name], cards)
    _write_apps(cluster.folder / APPS)


def things_to_try(folder: Path) -> str:
    """Say what a person may do with such a cluster, whose folder this is."""
    return textwrap.dedent(f"""
        # Cards: cp has two Tesla P4 (29 units each), worker1 an RTX 3090 (94 units).
        kubectl describe nodes | grep -E '^Name:|vcuda'
        # Seed 001's three applications of 4, 20 and 20 units of 256 MiB:
        kubectl apply -f {folder / APPS}
        kubectl get pods -n baetyl-edge -o wide --watch
        # The one card that each of them sees, and what it was told of its share:
        kubectl exec -n baetyl-edge deploy/edgekit-gpu-cuda10-2 -- nvidia-smi -L
        kubectl exec -n baetyl-edge deploy/edgekit-gpu-cuda10-2-2 -- nvidia-smi -L
        kubectl exec -n baetyl-edge deploy/edgekit-gpu-cuda10-2-3 -- nvidia-smi -L
        kubectl exec -n baetyl-edge deploy/edgekit-gpu-cuda10-2 -- \\
            cat /etc/vcuda/allocation.json
        # More than any card has: the pod waits, and its events say why.
        kubectl set resources -n baetyl-edge deploy/edgekit-gpu-cuda10-2-3 \\
            --limits=baidu.com/vcuda-memory=100
        kubectl describe pods -n baetyl-edge -l app=edgekit-gpu-cuda10-2-3
    """).strip()


def _write_apps(path: Path) -> None:
    import yaml

    from tests.cluster.site import EDGE, deployment
    from tests.cluster.test_two_cards import APPS as UNITS

    made = [deployment(name, units) for name, units in UNITS.items()]
    for one in made:
        one["metadata"]["namespace"] = EDGE
    path.write_text(yaml.safe_dump_all(made, sort_keys=False))
