"""What ``up`` puts into a cluster that a person will use, on top of Kubernetes."""

from tests.testbed.kubeadm.cluster import Cluster


def furnish(cluster: Cluster) -> None:
    """Called once every node is ready: the place for cards, plugin and extender."""
