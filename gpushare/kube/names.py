"""All names that other programs see; ``docs/protocol.md`` describes each.

The domain is one constant, so that a fork for another vendor changes one line.
"""

DOMAIN = "baidu.com"
"""The domain of all gpushare resources, annotations and labels."""

PREFIX = f"{DOMAIN}/vcuda"
"""The prefix of all gpushare keys; keys without it are ignored."""

CORE = f"{PREFIX}-core"
"""Resource: hundredths of a card's compute, 100 a card."""
MEMORY = f"{PREFIX}-memory"
"""Resource: units of 256 MiB of card memory."""
MEMORY_MIB = f"{MEMORY}-mib"
"""What users may write in place of ``MEMORY``: MiB, which the webhook turns into units.

No node offers it.
"""

CARDS = f"{PREFIX}-cards"
"""Node annotation, written by the device plugin: the node's cards."""
CORDON = f"{PREFIX}-cordon"
"""Node annotation, written by operators: UUIDs of cards without new placements."""
CLEAR = f"{PREFIX}-clear"
"""Node annotation, written by operators: UUIDs of unhealthy cards that are repaired.

The device plugin removes it when it has marked them healthy.
"""
PLACEMENT = f"{PREFIX}-placement"
"""Pod annotation, written by the extender inside the Binding: the planned placement."""
ACTUAL = f"{PREFIX}-actual"
"""Pod annotation, written by the device plugin when kubelet chose otherwise."""
ISOLATION = f"{PREFIX}-isolation"
"""Written by the device plugin: a node's isolation tier as its label, and as an
annotation of a pod the tier with which it started, if that is not ``none``."""
CONTAINERS = f"{PREFIX}-containers"
"""Pod annotation, written by users: ``apart`` lets each container have its own card."""
APART = "apart"
"""The only valid value of the annotation ``CONTAINERS``."""
POLICY = f"{PREFIX}-policy"
"""Pod annotation, written by users: the name of a policy."""
MODELS = f"{PREFIX}-models"
"""Pod annotation, written by users: the card models that the pod may have."""
UUIDS = f"{PREFIX}-uuids"
"""Pod annotation, written by users: the cards that the pod may have."""
BITFUSION_CLIENT = f"{PREFIX}-bitfusion-client"
"""Pod annotation, written by the webhook: the script that replaces ``bitfusion``."""
BITFUSION_LABEL = f"{PREFIX}-bitfusion"
"""Namespace label, written by operators: how its Bitfusion pods are translated."""
BITFUSION_MODES = ("all", "injection")
"""The valid values of ``BITFUSION_LABEL``."""
DRA_DRIVER = f"vcuda.{DOMAIN}"
"""The driver of our devices for Dynamic Resource Allocation (DRA)."""
DRA_CLASS = "vcuda"
"""The DeviceClass that we ship."""
DRA_MEMORY = "memory"
"""Capacity of a DRA device: bytes, in steps of 256 MiB."""
DRA_CORES = "cores"
"""Capacity of a DRA device: hundredths of a card's compute."""
DRA_UUID = f"{DRA_DRIVER}/uuid"
"""Attribute of a DRA device: the card's UUID."""
DRA_LABEL = f"{PREFIX}-dra"
"""Namespace label, written by operators: ``true`` gives its pods cards by claims."""

BITFUSION_GPU = "bitfusion.io/gpu"
"""Resource of Bitfusion: hundredths of a card, for quotas only."""

SHARE_FOLDER = "/etc/vcuda"
"""The folder with a container's ``allocation.json``: its cards and shares."""
PRELOAD_FILE = "/etc/ld.so.preload"
"""The file of a container that names what each of its programs loads first."""
LIBRARY_FOLDER = "/usr/lib/vcuda"
"""A container's folder with the library of the tier ``preload``."""
REGION_FOLDER = "/run/vcuda"
"""A container's folder with the file in which that library counts what it uses."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""The variable that tells the NVIDIA container runtime which cards to show."""
VOID = "void"
"""Its value for no card, which overrides an image's own ``all``."""

STARTUP_TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/vcuda"
"""Node taint, written by whoever creates nodes: no pods before the cards are offered.

Cluster Autoscaler knows it by the prefix, Karpenter by a NodePool's ``startupTaints``.
The device plugin takes it away if it is told to.
"""
GPU_NODE_LABEL = PREFIX
"""Node label: ``true`` where the device plugin is to run."""
SCHEDULER_NODE_LABEL = f"{PREFIX}-scheduler"
"""Node label, written by operators: ``true`` allows a second scheduler on the node."""

DEMO_BUILD = "+gpushare-demo"
"""How the version of the demo's API server ends, as ``+k3s1`` ends that of k3s."""

COMPONENT = "vcuda"
"""The source of gpushare's events, unless a component sets another."""

EXTENDER_PORT = 39999
"""Scheduler verbs, on loopback."""
EXTENDER_SERVER_NAME = "gpushare-extender.kube-system.svc"
"""The name in its certificate; ``serverName`` in kube-scheduler's configuration."""
EXTENDER_PUBLIC_PORT = 39998
"""Health, readiness and metrics, on the pod's address, read-only."""
EXTENDER_CLAIMS_PORT = 39996
"""Reviews of ResourceClaims, by TLS, on loopback, for the API server of the host."""
CLAIMS_PATH = "/claims"
"""Path of these reviews."""
CLAIMS_WEBHOOK = f"claims.{DRA_DRIVER}"
"""The name of the webhook that reviews ResourceClaims, and of its configuration."""
EXTENDER_PREFIX = "/scheduler"
"""Path before the scheduler's verbs."""

WEBHOOK_NAME = "gpushare-webhook"
"""The name of the webhook's Deployment, Service and both configurations."""
WEBHOOK_PORT = 8443
"""Admission reviews, by TLS, on the pod's address."""
WEBHOOK_PUBLIC_PORT = 8080
"""Health, readiness and metrics of the webhook, on the pod's address, read-only."""
