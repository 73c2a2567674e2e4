"""Alerts on cards that are sick, hot or full, or will be soon.

The gauge DCGM_FI_DEV_XID_ERRORS is never
used, because it keeps the last XID forever.
"""

from exporter.telemetry import fields
from gpushare.cards.xids import CARD_XIDS, PROGRAM_XIDS
from monitoring.alerts.alert import Alert, Group
from monitoring.queries import (
    CARD,
    HEALTHY_BY_BOOKS,
    HEALTHY_BY_EXPORTER,
    ITS_NUMBER,
    ITS_UUID,
    ours,
)

_XIDS = "vcuda_xid_errors_total"
_WHERE = f"card {ITS_NUMBER} of {{{{ $labels.NodeName }}}}"
_WHICH = f"{ITS_UUID} on {{{{ $labels.NodeName }}}}"
_CORDON = (
    "`gpusharectl cordon-card {{ $labels.NodeName }} "
    "{{ or $labels.GPU_I_UUID $labels.gpu }}`"
)
_THROTTLED = 1e9
"""Nanoseconds in a second: the rate of a violation counter that never pauses."""


def _recent(matcher: str) -> str:
    """Return an expression for XIDs of the last 5 minutes.

    The counter of an XID that the exporter does not know by name appears with the first
    such XID, and increase() of a new series is 0. So a new series counts too, but only
    if the card was seen 5 minutes ago: otherwise all old XIDs would be new to a
    Prometheus that has just started.
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
        _recent(_one_of(CARD_XIDS)),
        "critical",
        f"XID {{{{ $labels.xid }}}} on {_WHERE}",
        f"The card, its memory or its link is damaged. Run {_CORDON}, move its pods, "
        "and reset the card or restart the node. Replace the card if the fault "
        f"returns. Its UUID is {ITS_UUID}.",
        labels={"page": "true"},
    ),
    Alert(
        "VcudaGpuXid",
        _recent(_one_of((*PROGRAM_XIDS, *CARD_XIDS), is_not=True)),
        "critical",
        f"XID {{{{ $labels.xid }}}} on {_WHERE}",
        "NVIDIA's catalogue of XID errors explains the number. dmesg on the node shows "
        f"the process. The card is {_WHICH}.",
    ),
    Alert(
        "VcudaGpuXidApp",
        _recent(_one_of(PROGRAM_XIDS)),
        "info",
        f"A program failed on {_WHERE}: XID {{{{ $labels.xid }}}}",
        "Most likely this is a fault of the program. dmesg on the node shows the "
        "process.",
    ),
)

_FAULT_ALERTS = (
    Alert(
        "VcudaGpuLost",
        f"{HEALTHY_BY_BOOKS} == 0",
        "critical",
        "A card of {{ $labels.NodeName }} is sick or lost, says its device plugin",
        "The card gets no new pods. Pods on it may hang. `gpusharectl inspect` shows "
        "the reason. When the card is repaired, run `gpusharectl clear-card {{ "
        f"$labels.NodeName }}}} {ITS_UUID}`.",
        "2m",
        {"by": "books"},
    ),
    Alert(
        "VcudaGpuLost",
        f"{HEALTHY_BY_EXPORTER} == 0\nunless on ({CARD}) {HEALTHY_BY_BOOKS} == 0",
        "critical",
        f"No answer to the exporter: {_WHERE}",
        "Pods on the card may hang, and the extender still places new pods on it: run "
        f"{_CORDON}. The exporter's log shows which query failed; nvidia-smi on the "
        "node shows what the driver sees. The UUID is " + ITS_UUID + ".",
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
        f"The results of its pods may be wrong. Run {_CORDON}, move its pods and reset "
        "the card. If a row cannot be remapped, replace the card. Its UUID is "
        f"{ITS_UUID}.",
    ),
    Alert(
        "VcudaEcc",
        f"increase({ours(fields.ECC_SBE_VOL_TOTAL)}[1h]) > 10\n"
        f"or {ours(fields.RETIRED_PENDING)} > 0",
        "warning",
        f"Memory errors on {_WHERE}",
        "The errors were corrected: more than 10 in an hour, or memory pages wait to "
        "be retired. A reset of the card retires them; move its pods first. The card "
        f"is {_WHICH}.",
    ),
    Alert(
        "VcudaHot",
        f"{ours(fields.GPU_TEMP)} > 85",
        "warning",
        f"{{{{ $value }}}} °C: {_WHERE}",
        "The card will soon reduce its clock. Check fans, air flow and the load of "
        "other cards nearby.",
        "5m",
    ),
    Alert(
        "VcudaThrottled",
        f"rate({ours(fields.THERMAL_VIOLATION)}[5m]) / {_THROTTLED:.0f} > 0.05",
        "warning",
        f"Slowed down for heat {{{{ $value | humanizePercentage }}}} of the time: "
        f"{_WHERE}",
        "Its pods are slower than they should be. Check fans and air flow.",
        "5m",
        {"cause": "heat"},
    ),
    Alert(
        "VcudaThrottled",
        f"rate({ours(fields.POWER_VIOLATION)}[5m]) / {_THROTTLED:.0f} > 0.5",
        "warning",
        f"Slowed down for power {{{{ $value | humanizePercentage }}}} of the time: "
        f"{_WHERE}",
        "A little of this is normal under full load. This is much: check the power "
        "limit.",
        "5m",
        {"cause": "power"},
    ),
    Alert(
        "VcudaCardNearlyFull",
        f"{ours(fields.FB_USED)} / {ours(fields.FB_TOTAL)} > 0.95",
        "warning",
        f"{{{{ $value | humanizePercentage }}}} of the memory is in use: {_WHERE}",
        "The next allocation of memory on the card fails. `gpusharectl top --by pod` "
        "shows whether a pod is over its share.",
        "10m",
    ),
)

CARDS = Group("vcuda-cards", "Cards", (*_XID_ALERTS, *_FAULT_ALERTS))
