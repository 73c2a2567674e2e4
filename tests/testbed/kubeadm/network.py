"""A cluster's network: one bridge, a link to each node, and one to this machine."""

import json
import subprocess
from dataclasses import dataclass

from tests.testbed.kubeadm.namespaces import Namespaces, succeeded

INSTANCES = range(16)
NODES_EACH = range(2, 16)
SERVICES = "10.96.0.0/16"


@dataclass(frozen=True)
class Addresses:
    """The addresses of one cluster, by its number: no two clusters share one."""

    instance: int

    @property
    def machine(self) -> str:
        """This machine, as the nodes and their pods reach it."""
        return f"10.99.{self.instance}.1"

    @property
    def network(self) -> str:
        return f"10.99.{self.instance}.0/24"

    def node(self, number: int) -> str:
        return f"10.99.{self.instance}.{number}"

    def pods(self, number: int) -> str:
        """The network of one node's pods."""
        return f"10.98.{self.instance * 16 + number}.0/24"

    @property
    def link(self) -> str:
        """The name of the one link that shows on this machine."""
        return f"gpushare{self.instance}"


def taken() -> set[str]:
    routes = json.loads(_ip("-json", "route", "show", "table", "all"))
    return {str(route.get("dst", "")) for route in routes}


def make_switch(switch: Namespaces, addresses: Addresses) -> None:
    """Make the bridge, in a namespace of its own, and this machine's link to it.

    Were the bridge this machine's, its firewall could drop what goes between nodes.
    """
    switch.must("ip", "link", "add", "bridge", "type", "bridge")
    switch.must("ip", "link", "set", "bridge", "up")
    _connect(switch, "machine", ["name", addresses.link])
    _ip("address", "add", f"{addresses.machine}/24", "dev", addresses.link)
    _ip("link", "set", addresses.link, "up")


def join(
    switch: Namespaces, node: Namespaces, addresses: Addresses, number: int
) -> None:
    """Connect a node to the bridge, and give it its address and its routes."""
    peer = ["name", "eth0", "netns", str(node.pid)]
    _connect(switch, f"node{number}", peer)
    node.must("ip", "link", "set", "lo", "up")
    node.must("ip", "address", "add", f"{addresses.node(number)}/24", "dev", "eth0")
    node.must("ip", "link", "set", "eth0", "up")
    node.must("ip", "route", "add", "default", "via", addresses.machine)
    node.must("sysctl", "-qw", "net.ipv4.ip_forward=1")


def route_pods(seen_from: Namespaces, addresses: Addresses, number: int) -> None:
    """Tell one node where the pods of another one are."""
    via = ["via", addresses.node(number)]
    seen_from.must("ip", "route", "replace", addresses.pods(number), *via)


def route_pods_here(addresses: Addresses, number: int) -> None:
    _ip("route", "replace", addresses.pods(number), "via", addresses.node(number))


def remove_link(addresses: Addresses) -> None:
    """Remove this machine's link at once; the kernel would do it somewhat later."""
    subprocess.run(
        ["ip", "link", "delete", addresses.link], capture_output=True, check=False
    )


def _connect(switch: Namespaces, port: str, peer: list[str]) -> None:
    inside = ["type", "veth", "peer", "name", port, "netns", str(switch.pid)]
    _ip("link", "add", *peer, *inside)
    switch.must("ip", "link", "set", port, "master", "bridge", "up")


def _ip(*arguments: str) -> str:
    command = ["ip", *arguments]
    return succeeded(
        subprocess.run(command, capture_output=True, text=True, check=False)
    )
