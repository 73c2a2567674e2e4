"""What pods do with the part of a card that they were allotted."""

from monitoring.alerts.alert import Alert, Group
from monitoring.queries import (
    ALLOTTED,
    CARD,
    CONTAINER,
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
            # Who has a card alone takes nothing from anybody. The exporter judges: it
            # knows what of the memory is CUDA's contexts.
            used_of_allotted(by(CONTAINER, USED), by(CONTAINER, ALLOTTED, _SHARED))
            + f"\nand max by ({CONTAINER}) (vcuda_container_over_share) == 1",
            "warning",
            f"{_WHO} uses {{{{ $value | humanizePercentage }}}} of its share",
            "It takes memory that others of its card were promised: on "
            "{{ $labels.NodeName }}. Give it a larger share or less to do; the "
            "exporter's watchdog can evict such pods.",
            "2m",
        ),
        Alert(
            "VcudaIdleAllocation",
            # By labels alone: a new exporter pod must not make every pod young.
            f"{by(_ON_CARD, ALLOTTED)} > 0\n"
            f"and max by ({_ON_CARD}) (max_over_time({SM}[{_IDLE_FOR}])) == 0\n"
            f"and max by ({_ON_CARD}) ({SM} offset {_IDLE_FOR}) == 0\n"
            f"and sum by ({_ON_CARD}) ({ALLOTTED} offset {_IDLE_FOR}) > 0",
            "info",
            f"{_WHO} has held {{{{ $value }}}} MiB for two hours without using it",
            "Nothing ran on its part of {{ $labels.UUID }} on {{ $labels.NodeName }}. "
            "Ask its owner, or scale it down.",
        ),
        Alert(
            "VcudaUnattributedMemory",
            f"vcuda_card_unattributed_memory_bytes > {512 * 2**20}",
            "warning",
            "{{ $value | humanize1024 }}B of card {{ $labels.gpu }} of "
            "{{ $labels.NodeName }} belong to no pod that runs",
            "Some of it is the driver's own. Ask nvidia-smi on the node first: a "
            "process of a pod that is gone can be ended there. Only if it lists none, "
            "a reset of the card gives the memory back, and ends all others on it.",
            "15m",
        ),
        Alert(
            "VcudaDrift",
            "max by (NodeName, what) (vcuda_placement_disagreements) > 0",
            "warning",
            "{{ $value }} pods of {{ $labels.NodeName }} are not where the books say "
            "(by {{ $labels.what }})",
            f"The extender's plan and the node's record differ: {_MISPLACED}. By "
            "actual the books follow the node; by kubelet a pod may use another card "
            "than the one that it is charged for. Delete it, and it is placed anew.",
            "10m",
        ),
    ),
)
