"""Pods that find no card, and those who should give them one."""

from monitoring.alerts.alert import Alert, Group
from monitoring.queries import LARGEST_FREE, PENDING, UNITS, free_units

_LATE_S = 60 * 86400

SCHEDULING = Group(
    "vcuda-scheduling",
    "Scheduling",
    (
        Alert(
            "VcudaPending",
            f"max({PENDING}) > 0",
            "warning",
            "Pods wait for a card: {{ $value }}",
            "gpusharectl inspect lists them and what would fit; gpusharectl why POD "
            "gives each card's answer in numbers.",
            "10m",
        ),
        Alert(
            "VcudaNothingFree",
            f"max({LARGEST_FREE}) == 0",
            "info",
            "No card of the cluster has room for one unit",
            "The next pod that asks for a card will wait. Free some, or add cards.",
            "10m",
        ),
        Alert(
            "VcudaFragmented",
            f"max({LARGEST_FREE}) < 0.5 * max({UNITS})\n"
            f"and on () {free_units()} >= max({UNITS})",
            "info",
            "A whole card's worth of units is free, {{ $value }} of them at most on "
            "one card",
            "Pods that are larger wait while small ones fit. Move small pods together "
            "(delete them one by one under the policy best-fit).",
            "15m",
        ),
        Alert(
            "VcudaPodWithoutPlacement",
            "max(vcuda_extender_pods_without_placement) > 0",
            "warning",
            "Pods were bound without the extender: {{ $value }}",
            "Is the stanza still in kube-scheduler's configuration? An upgrade of the "
            "control plane takes it out; gpusharectl install puts it back.",
            "5m",
        ),
        Alert(
            "VcudaExtenderNotReady",
            "vcuda_extender_ready == 0",
            "critical",
            "The extender {{ $labels.instance }} does not answer filter",
            "No pod gets a card from it. Its log and /readyz say what it waits for.",
            "5m",
        ),
        Alert(
            "VcudaPluginDeaf",
            "vcuda_plugin_registered == 0",
            "warning",
            "kubelet does not listen to the device plugin {{ $labels.instance }} "
            "({{ $labels.resource }})",
            "Its node offers no part of a card. The plugin's log says why.",
            "5m",
        ),
        Alert(
            "VcudaCertificateEnds",
            f"vcuda_certificate_not_after_timestamp_seconds - time() < {_LATE_S}",
            "warning",
            "A certificate of the extender ends in {{ $value | humanizeDuration }}",
            "gpusharectl install renews it on the control-plane host; nothing else "
            "does. Its file: {{ $labels.file }}, at {{ $labels.instance }}.",
        ),
    ),
)
