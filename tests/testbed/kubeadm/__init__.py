"""A real kubeadm cluster on this one machine: kubelets, containerd, runc, pods."""

from tests.testbed.kubeadm.cluster import Cluster
from tests.testbed.kubeadm.machine import why_not
from tests.testbed.kubeadm.node import Node
from tests.testbed.kubeadm.programs import Programs, ensure_programs

__all__ = ["Cluster", "Node", "Programs", "ensure_programs", "why_not"]
