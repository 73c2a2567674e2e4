"""A card that is sick, hot, full, or about to be.

The XID numbers are of NVIDIA's catalogue. Never the gauge DCGM_FI_DEV_XID_ERRORS: it
keeps the last one for ever.
"""

from deviceplugin.telemetry import fields
from monitoring.alerts.alert import Alert, Group
from monitoring.queries import CARD, healthy_by_books, healthy_by_exporter, ours

APPLICATION_XIDS = (13, 31, 43, 45, 68, 109)
"""The fault of the program on the card, not of the card."""
PAGED_XIDS = (48, 63, 64, 74, 79, 94, 95, 119, 120)
"""The card, its memory or its link is damaged, or it is gone."""

_XIDS = "vcuda_xid_errors_total"
_WHERE = "card {{ $labels.gpu }} of {{ $labels.NodeName }}"
_WHICH = "{{ $labels.UUID }} on {{ $labels.NodeName }}"
_CORDON = "`gpusharectl cordon-card {{ $labels.NodeName }} {{ $labels.gpu }}`"
_THROTTLED = 1e9
"""Nanoseconds in a second: the rate of a violation counter that never pauses."""


def _told(matcher: str) -> str:
    """Tell which XIDs came within 5 minutes.

    The counter of an XID that the exporter does not know by name is there from its
    first time on, and of one that was not there before, increase() says 0. The card has
    to have been seen 5 minutes ago, or all old XIDs would be new ones to a Prometheus
    that has just begun.
    """
    return (
        f"increase({_XIDS}{{{matcher}}}[5m]) > 0\n"
        "or (\n"
        f"  {_XIDS}{{{matcher}}} > 0\n"
        f"  unless {_XIDS}{{{matcher}}} offset 5m\n"
        f") and on ({CARD}) vcuda_card_info offset 5m"
    )


def _one_of(xids: tuple[int, ...], *, is_not: bool = False) -> str:
    return f'xid{"!" if is_not else "="}~"{"|".join(map(str, xids))}"'


_XID_ALERTS = (
    Alert(
        "VcudaGpuXid",
        _told(_one_of(PAGED_XIDS)),
        "critical",
        f"XID {{{{ $labels.xid }}}} on {_WHERE}",
        f"The card, its memory or its link is damaged. {_CORDON}, move its pods, reset "
        "it or restart the node; see it replaced if it comes back so. It is "
        "{{ $labels.UUID }}.",
        labels={"page": "true"},
    ),
    Alert(
        "VcudaGpuXid",
        _told(_one_of((*APPLICATION_XIDS, *PAGED_XIDS), is_not=True)),
        "critical",
        f"XID {{{{ $labels.xid }}}} on {_WHERE}",
        "Look it up in NVIDIA's catalogue of XID errors, and dmesg on the node for the "
        f"process. It is {_WHICH}.",
    ),
    Alert(
        "VcudaGpuXidApp",
        _told(_one_of(APPLICATION_XIDS)),
        "info",
        f"A program failed on {_WHERE}: XID {{{{ $labels.xid }}}}",
        "Most likely the program's own fault; dmesg on the node names the process.",
    ),
)

_FAULT_ALERTS = (
    Alert(
        "VcudaGpuLost",
        f"{healthy_by_books()} == 0",
        "critical",
        "A card of {{ $labels.NodeName }} is sick or gone: its device plugin says so",
        "It gets no new pods; those on it may hang. gpusharectl inspect says why. Once "
        "you have seen to it: `gpusharectl clear-card {{ $labels.NodeName }} "
        "{{ $labels.UUID }}`.",
        "2m",
        {"by": "books"},
    ),
    Alert(
        "VcudaGpuLost",
        f"{healthy_by_exporter()} == 0\nunless on ({CARD}) {healthy_by_books()} == 0",
        "critical",
        f"It does not answer the exporter: {_WHERE}",
        "Those on it may hang, and the books still give it new pods: "
        f"{_CORDON}. The exporter's log says which question failed, nvidia-smi on the "
        "node what the driver sees. It is {{ $labels.UUID }}.",
        "2m",
        {"by": "exporter"},
    ),
    Alert(
        "VcudaEcc",
        f"increase({ours(fields.ECC_DBE_VOL_TOTAL)}[15m]) > 0\n"
        f"or increase({ours(fields.ECC_DBE_AGG_TOTAL)}[15m]) > 0\n"
        f"or increase({ours(fields.UNCORRECTABLE_REMAPPED_ROWS)}[15m]) > 0\n"
        f"or {ours(fields.ROW_REMAP_FAILURE)} > 0",
        "critical",
        f"Memory errors that cannot be corrected on {_WHERE}",
        f"What its pods compute may be wrong. {_CORDON}, move its pods and reset it; "
        "if a row cannot be remapped it has to be replaced. It is {{ $labels.UUID }}.",
    ),
    Alert(
        "VcudaEcc",
        f"increase({ours(fields.ECC_SBE_VOL_TOTAL)}[1h]) > 10\n"
        f"or {ours(fields.RETIRED_PENDING)} > 0",
        "warning",
        f"Memory errors on {_WHERE}",
        "Corrected so far: more than 10 in an hour, or pages that wait to be retired, "
        "which a reset of the card does once you could move its pods. It is "
        f"{_WHICH}.",
    ),
    Alert(
        "VcudaHot",
        f"{ours(fields.GPU_TEMP)} > 85",
        "warning",
        f"{{{{ $value }}}} °C: {_WHERE}",
        "It throttles soon. Look at fans, air flow and the neighbours' load.",
        "5m",
    ),
    Alert(
        "VcudaThrottled",
        f"rate({ours(fields.THERMAL_VIOLATION)}[5m]) / {_THROTTLED:.0f} > 0.05",
        "warning",
        f"Slowed down for heat {{{{ $value | humanizePercentage }}}} of the time: "
        f"{_WHERE}",
        "Its pods are slower than they should be. Look at fans and air flow.",
        "5m",
        {"cause": "heat"},
    ),
    Alert(
        "VcudaThrottled",
        f"rate({ours(fields.POWER_VIOLATION)}[5m]) / {_THROTTLED:.0f} > 0.5",
        "warning",
        f"Slowed down for power {{{{ $value | humanizePercentage }}}} of the time: "
        f"{_WHERE}",
        "Some of it is usual under full load. This much: look at the power limit.",
        "5m",
        {"cause": "power"},
    ),
    Alert(
        "VcudaCardNearlyFull",
        f"{ours(fields.FB_USED)} / {ours(fields.FB_TOTAL)} > 0.95",
        "warning",
        f"{{{{ $value | humanizePercentage }}}} of the memory is in use: {_WHERE}",
        "The next allocation fails, whosever it is. Is a pod over its share? "
        "gpusharectl top --by pod.",
        "10m",
    ),
)

CARDS = Group("vcuda-cards", "Cards", (*_XID_ALERTS, *_FAULT_ALERTS))
