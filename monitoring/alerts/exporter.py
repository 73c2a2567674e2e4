"""An exporter that is gone or does not see: the other alerts are then silent."""

from itertools import groupby

from deviceplugin.telemetry.fields import GROUPS as READINGS
from monitoring.alerts.alert import Alert, Group, down
from monitoring.queries import CARD, UNITS, booked

_NAME = "gpushare-exporter"
_LOOK = f"kubectl -n kube-system get pods -l app.kubernetes.io/name={_NAME} -o wide."
_LEAST_S = 120.0
_ROUNDS = 5


def _stale_after_s(every_s: float) -> float:
    return max(_LEAST_S, _ROUNDS * every_s)


def _blind() -> str:
    """Tell which groups fail or have stopped, each by its own interval."""
    lines = ["vcuda_collector_success == 0"]
    late = sorted((_stale_after_s(one.every_s), one.name) for one in READINGS)
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
            f"Nothing is known of the cards of its node. {_LOOK}",
            "2m",
        ),
        Alert(
            "VcudaNoExporter",
            "absent(vcuda_exporter_info)",
            "critical",
            "No exporter answers at all",
            f"Nothing is known of any card, or Prometheus does not ask. {_LOOK}",
            "2m",
        ),
        Alert(
            "VcudaCardUnseen",
            f"{booked(UNITS)} unless on ({CARD}) vcuda_card_info",
            "warning",
            "No exporter tells of a card of {{ $labels.NodeName }}",
            "The books have {{ $labels.UUID }}. Does an exporter run there, and does "
            "it see the driver? Its page's vcuda_exporter_trouble says.",
            "10m",
        ),
        Alert(
            "VcudaExporterBlind",
            _blind(),
            "warning",
            "The exporter of {{ $labels.NodeName }} has no {{ $labels.group }}",
            "Some card does not answer these questions, or none does. Its page's "
            "/healthz and its log say which and why.",
            "5m",
        ),
        Alert(
            "VcudaExporterTrouble",
            'vcuda_exporter_trouble{about!="config"} == 1',
            "warning",
            "The exporter of {{ $labels.NodeName }} lacks something: "
            "{{ $labels.about }}",
            "What is missing from its page, and why, is in its /healthz and log.",
            "10m",
        ),
        Alert(
            "VcudaExporterConfig",
            "vcuda_exporter_config_ok == 0",
            "warning",
            "The exporter of {{ $labels.NodeName }} was given fields that it cannot "
            "read",
            "It goes on with those from before. Its log names the line of the "
            "ConfigMap gpushare-exporter-fields.",
            "5m",
        ),
    ),
)
