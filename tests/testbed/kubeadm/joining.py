"""How another node is let into a cluster."""

import secrets

from tests.testbed.kubeadm.node import Node
from tests.testbed.rest import Rest
from tests.testbed.waiting import wait_until

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
