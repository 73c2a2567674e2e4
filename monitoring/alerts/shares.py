"""Alerts on pods and what they do with their share of a card."""

from monitoring.alerts.alert import Alert, Group
from monitoring.queries import (
    ALLOTTED,
    CARD,
    CONTAINER,
    ITS_NUMBER,
    ITS_UUID,
    SM,
    USED,
    by,
    used_of_allotted,
)

_WHO = "{{ $labels.NamespaceName }}/{{ $labels.PodName }} ({{ $labels.ContainerName }})"
_SHARED = 'AllocateMode="share"'
_IDLE_FOR = "2h"
_ON_CARD = f"{CARD}, NamespaceName, PodName, ContainerName"
_MISPLACED = (
    '{{ range printf "vcuda_pod_misplaced{NodeName=%q,what=%q}" '
    "$labels.NodeName $labels.what | query }}"
    "{{ .Labels.NamespaceName }}/{{ .Labels.PodName }} {{ end }}"
)

SHARES = Group(
    "vcuda-shares",
    "Shares",
    (
        Alert(
            "VcudaMemoryOverAllocation",
            # A pod with a whole card takes nothing from other pods. The exporter
            # decides who is over: it knows how much of the memory is CUDA contexts.
            used_of_allotted(by(CONTAINER, USED), by(CONTAINER, ALLOTTED, _SHARED))
            + f"\nand max by ({CONTAINER}) (vcuda_container_over_share) == 1",
            "warning",
            f"{_WHO} uses {{{{ $value | humanizePercentage }}}} of its share",
            "It takes memory that is promised to other pods on its card, on "
            "{{ $labels.NodeName }}. Give it a larger share or less work. The "
            "exporter's watchdog can evict such pods.",
            "2m",
        ),
        Alert(
            "VcudaNotHeld",
            f"min by ({CONTAINER}) (vcuda_container_held) == 0",
            "warning",
            f"{_WHO} is not held to its share",
            "The isolation tier of {{ $labels.NodeName }} does not limit it: it can "
            "take memory of other pods. The event VcudaNotHeld of the "
            "pod has the reason. If the pod is older than the tier, delete it, so that "
            "a new one is made. Else use a dynamically linked program with glibc that "
            "calls CUDA, or give the pod a whole card.",
            "5m",
        ),
        Alert(
            "VcudaIdleAllocation",
            # By these labels only: a restart of the exporter must not reset the time.
            f"{by(_ON_CARD, ALLOTTED)} > 0\n"
            f"and max by ({_ON_CARD}) (max_over_time({SM}[{_IDLE_FOR}])) == 0\n"
            f"and max by ({_ON_CARD}) ({SM} offset {_IDLE_FOR}) == 0\n"
            f"and sum by ({_ON_CARD}) ({ALLOTTED} offset {_IDLE_FOR}) > 0",
            "info",
            f"{_WHO} has held {{{{ $value }}}} MiB for two hours without using it",
            f"Nothing ran on its part of the card {ITS_UUID} on "
            "{{ $labels.NodeName }}. Ask its owner, or scale it down.",
        ),
        Alert(
            "VcudaUnattributedMemory",
            f"vcuda_card_unattributed_memory_bytes > {512 * 2**20}",
            "warning",
            f"{{{{ $value | humanize1024 }}}}B of card {ITS_NUMBER} of "
            "{{ $labels.NodeName }} belong to no running pod",
            "Some of it belongs to the driver. First run nvidia-smi on the node: if it "
            "lists a process of a pod that is gone, end the process. If it lists none, "
            "only a reset of the card frees the memory; it ends all pods on the card.",
            "15m",
        ),
        Alert(
            "VcudaDrift",
            "max by (NodeName, what) (vcuda_placement_disagreements) > 0",
            "warning",
            "{{ $value }} pods of {{ $labels.NodeName }} are not on their recorded "
            "cards (by {{ $labels.what }})",
            f"The extender's plan and the node's record differ: {_MISPLACED}. With "
            "`actual` the extender uses the node's record. With `kubelet` a pod may "
            "use another card than the one that is charged. Delete the pod; it is then "
            "placed again.",
            "10m",
        ),
    ),
)
