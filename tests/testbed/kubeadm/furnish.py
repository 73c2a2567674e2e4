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
        # Cards: cp has two Tesla P4 of 29 units of 256 MiB each, and worker1, where
        # there is one, has an RTX 3090 of 94.
        kubectl describe nodes | grep -E '^Name:|vcuda'
        # Seed 001's applications: of 4, 20 and 20 units on cp; of 50, 40 and 1 on
        # worker1.
        kubectl apply -f {folder / APPS}
        kubectl get pods -n baetyl-edge -o wide
        # The one card that each of them sees, and what it was told of its share:
        kubectl exec -n baetyl-edge deploy/edgekit-gpu-cuda10-2 -- nvidia-smi -L
        kubectl exec -n baetyl-edge deploy/edgekit-gpu-cuda10-2-2 -- nvidia-smi -L
        kubectl exec -n baetyl-edge deploy/edgekit-gpu-cuda10-2-3 -- nvidia-smi -L
        kubectl exec -n baetyl-edge deploy/nvidia-cuda11-base-3 -- \\
            cat /etc/vcuda/allocation.json
        # More than worker1 has left: the new pod waits, and its events say why.
        kubectl set resources -n baetyl-edge deploy/nvidia-cuda11-base-3 \\
            --limits=baidu.com/vcuda-memory=10
        kubectl describe pods -n baetyl-edge -l app=nvidia-cuda11-base-3
    """).strip()


def _write_apps(path: Path) -> None:
    import yaml

    from tests.cluster.manifests import deployment
    from tests.cluster.seed import ONE_CARD_APPS, TWO_CARD_APPS, replaced_first
    from tests.cluster.site import EDGE

    made = []
    for node, apps in (("cp", TWO_CARD_APPS), ("worker1", ONE_CARD_APPS)):
        there = {"nodeSelector": {"kubernetes.io/hostname": node}}
        for name, units in apps.items():
            one = replaced_first(deployment(name, units, **there))
            one["metadata"]["namespace"] = EDGE
            made.append(one)
    path.write_text(yaml.safe_dump_all(made, sort_keys=False))
