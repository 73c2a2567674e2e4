"""The applications of seed 001, as its two exercises deploy them."""

from collections.abc import Mapping

from tests.cluster.manifests import SEED_COMMAND, container, deployment
from tests.testbed.rest import Json

ONE_CARD_APPS: Mapping[str, int] = {
    "nvidia-cuda11-base-1": 50,
    "nvidia-cuda11-base-2": 40,
    "nvidia-cuda11-base-3": 1,
}
"""Units of 256 MiB of the one RTX 3090."""
TWO_CARD_APPS: Mapping[str, int] = {
    "edgekit-gpu-cuda10-2": 4,
    "edgekit-gpu-cuda10-2-2": 20,
    "edgekit-gpu-cuda10-2-3": 20,
}
"""Units of 256 MiB of the two P4."""
LINGER = "until [ -e /tmp/end ]; do sleep 0.2; done; exit"


def replaced_first(made: Json) -> Json:
    """Let a Deployment give up its old pod before the new one runs.

    As the seed's platform does: else the new pod would wait for room, and the old one
    would stay until then.
    """
    made["spec"]["strategy"] = {"rollingUpdate": {"maxUnavailable": 1}}
    return made


def lingering(name: str, units: int) -> Json:
    """Make an application of which each pod's end waits for its file ``/tmp/end``."""
    one = container("main", units, 1, script=f"trap '{LINGER}' TERM; {SEED_COMMAND}")
    made = deployment(name, None, containers=[one], terminationGracePeriodSeconds=120)
    return replaced_first(made)
