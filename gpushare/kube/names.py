"""Every name that we put on the wire, typed once; ``docs/protocol.md`` describes each.

The domain is one constant, so that a fork for another vendor changes one line.
"""

DOMAIN = "baidu.com"
"""The domain of all our resources, annotations and labels (seed 001)."""

PREFIX = f"{DOMAIN}/vcuda"
"""What every key of ours begins with; bytes without it are none of our business."""

CORE = f"{PREFIX}-core"
"""Resource: hundredths of a card's compute, 100 a card."""
MEMORY = f"{PREFIX}-memory"
"""Resource: units of 256 MiB of card memory."""

CARDS = f"{PREFIX}-cards"
"""Node annotation, written by the device plugin: the node's cards."""
CORDON = f"{PREFIX}-cordon"
"""Node annotation, written by operators: the UUIDs of cards that get nothing new."""
CLEAR = f"{PREFIX}-clear"
"""Node annotation, written by operators: the UUIDs of sick cards that are well again.

The device plugin removes it when it has done so.
"""
PLACEMENT = f"{PREFIX}-placement"
"""Pod annotation, written by the extender inside the Binding: the planned placement."""
ACTUAL = f"{PREFIX}-actual"
"""Pod annotation, written by the device plugin when kubelet chose otherwise."""
CONTAINERS = f"{PREFIX}-containers"
"""Pod annotation, written by users: ``apart`` lets each container have its own card."""
APART = "apart"
"""The one value of the annotation ``CONTAINERS`` that means something."""
POLICY = f"{PREFIX}-policy"
"""Pod annotation, written by users: the name of a policy."""
MODELS = f"{PREFIX}-models"
"""Pod annotation, written by users: the card models that the pod may have."""
UUIDS = f"{PREFIX}-uuids"
"""Pod annotation, written by users: the cards that the pod may have."""
BITFUSION_CLIENT = f"{PREFIX}-bitfusion-client"
"""Pod annotation, written by the webhook: the text of the stand-in ``bitfusion``."""
BITFUSION_LABEL = f"{PREFIX}-bitfusion"
"""Namespace label, written by operators: how its Bitfusion pods are translated."""
BITFUSION_MODES = ("all", "injection")
"""The values of ``BITFUSION_LABEL`` that mean something."""
BITFUSION_GPU = "bitfusion.io/gpu"
"""Resource of Bitfusion's: hundredths of a card, for quotas; it gives no card."""

SHARE_FOLDER = "/etc/vcuda"
"""Where a container finds ``allocation.json``: its cards and its share of them."""

GPU_NODE_LABEL = PREFIX
"""Node label: ``true`` where the device plugin is to run."""
SCHEDULER_NODE_LABEL = f"{PREFIX}-scheduler"
"""Node label, written by operators: ``true`` lets a second scheduler beside cards."""

COMPONENT = "vcuda"
"""Who our events are from, unless a part says otherwise."""

EXTENDER_PORT = 39999
"""Scheduler verbs, on loopback."""
EXTENDER_PUBLIC_PORT = 39998
"""Health, readiness and metrics, on the pod's address, read-only."""
EXTENDER_PREFIX = "/scheduler"
"""Path before the scheduler's verbs."""

WEBHOOK_NAME = "gpushare-webhook"
"""Of the webhook's Deployment, Service and both its configurations."""
WEBHOOK_PORT = 8443
"""Admission reviews, by TLS, on the pod's address."""
WEBHOOK_PUBLIC_PORT = 8080
"""Health, readiness and metrics of the webhook, on the pod's address, read-only."""
