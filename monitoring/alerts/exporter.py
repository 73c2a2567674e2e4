"""Alerts on exporters that are down or cannot read: other alerts then do not fire."""

from itertools import groupby

from exporter.telemetry.fields import GROUPS as READINGS
from monitoring.alerts.alert import Alert, Group, down
from monitoring.queries import CARD, ITS_UUID, UNITS, booked

_NAME = "gpushare-exporter"
_LOOK = f"kubectl -n kube-system get pods -l app.kubernetes.io/name={_NAME} -o wide."
_LEAST_S = 120.0
_ROUNDS = 5


def _blind() -> str:
    """Return an expression for groups that fail or are late for their own interval."""
    lines = ["vcuda_collector_success == 0"]
    late = sorted(
        (max(_LEAST_S, _ROUNDS * reading.every_s), reading.name) for reading in READINGS
    )
    for after_s, groups in groupby(late, key=lambda pair: pair[0]):
        names = "|".join(name for _, name in groups)
        when = f'vcuda_collect_timestamp_seconds{{group=~"{names}"}}'
        lines.append(f"or time() - {when} > {after_s:.0f}")
    return "\n".join(lines)


EXPORTER = Group(
    "vcuda-exporter",
    "Exporter",
    (
        Alert(
            "VcudaExporterDown",
            down(_NAME),
            "critical",
            "The exporter of {{ $labels.NodeName }} ({{ $labels.instance }}) does not "
            "answer",
            f"The state of the node's cards is unknown. {_LOOK}",
            "2m",
        ),
        Alert(
            "VcudaNoExporter",
            "absent(vcuda_exporter_info)",
            "critical",
            "No exporter answers at all",
            f"The state of all cards is unknown, or Prometheus does not scrape."
            f" {_LOOK}",
            "2m",
        ),
        Alert(
            "VcudaCardUnseen",
            f"{booked(UNITS)} unless on ({CARD}) vcuda_card_info",
            "warning",
            "No exporter reports a card of {{ $labels.NodeName }}",
            f"The extender knows the card {ITS_UUID}. Check that an exporter "
            "runs on the node and reaches the driver: vcuda_exporter_trouble on its "
            "page.",
            "10m",
        ),
        Alert(
            "VcudaExporterBlind",
            _blind(),
            "warning",
            "The exporter of {{ $labels.NodeName }} has no {{ $labels.group }}",
            "One or all cards do not answer queries of this group. /healthz and the "
            "log of the exporter show which cards and why.",
            "5m",
        ),
        Alert(
            "VcudaExporterTrouble",
            'vcuda_exporter_trouble{about!="config"} == 1',
            "warning",
            "The exporter of {{ $labels.NodeName }} cannot read: {{ $labels.about }}",
            "/healthz and the log of the exporter show what is missing on its page and "
            "why.",
            "10m",
        ),
        Alert(
            "VcudaExporterConfig",
            "vcuda_exporter_config_ok == 0",
            "warning",
            "The list of metrics of the exporter of {{ $labels.NodeName }} is invalid",
            "The exporter keeps the previous list. Its log names the line of the "
            "ConfigMap gpushare-exporter-fields.",
            "5m",
        ),
    ),
)
