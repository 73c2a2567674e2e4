"""Pods that find no card, and those who should give them one."""

from monitoring.alerts.alert import Alert, Group, down, named_node
from monitoring.queries import LARGEST_FREE, PENDING, UNITS, free_units

_LATE_S = 60 * 86400
_EXTENDER = ("gpushare-extender", "gpushare-scheduler")
_PLUGIN = "gpushare-device-plugin"
_WEBHOOK = "gpushare-webhook"
_PODS = "kubectl -n kube-system get pods -o wide -l"
_EXTENDERS = f"{_PODS} 'app.kubernetes.io/name in ({','.join(_EXTENDER)})'."
_PLUGINS = f"{_PODS} app.kubernetes.io/name={_PLUGIN}."
_WEBHOOKS = f"{_PODS} app.kubernetes.io/name={_WEBHOOK}."
# kube-state-metrics tells it, where that is there.
_CONFIGURATIONS = "kube_mutatingwebhookconfiguration_info"
_CONFIGURED = f'{_CONFIGURATIONS}{{mutatingwebhookconfiguration="{_WEBHOOK}"}}'
# Ours may have been the only one. It goes some minutes before its pods do.
_TOLD = f"max(max_over_time({_CONFIGURATIONS}[35m])) and on() max(kube_node_info)"
_WITH_OPTIONS = "with the other options that you installed with"

_DOWN = (
    Alert(
        "VcudaExtenderDown",
        down(*_EXTENDER),
        "critical",
        "The extender of {{ $labels.NodeName }} ({{ $labels.instance }}) does not "
        "answer",
        f"kube-scheduler there places no pod that asks for a card. {_EXTENDERS}",
        "2m",
    ),
    Alert(
        "VcudaNoExtender",
        "absent(vcuda_extender_ready)",
        "critical",
        "No extender answers at all",
        "No pod of the cluster gets a card, and all alerts on the books are silent; or "
        f"Prometheus does not ask. {_EXTENDERS}",
        "2m",
    ),
    Alert(
        "VcudaPluginDown",
        down(_PLUGIN),
        "critical",
        "The device plugin of {{ $labels.NodeName }} ({{ $labels.instance }}) does not "
        "answer",
        "Pods that run go on; its node starts no pod with a card, and nobody looks "
        f"whether its cards are well. {_PLUGINS}",
        "2m",
    ),
    Alert(
        "VcudaNoPlugin",
        "absent(vcuda_plugin_registered)",
        "critical",
        "No device plugin answers at all",
        f"No node starts a pod with a card, or Prometheus does not ask. {_PLUGINS}",
        "2m",
    ),
)

_BOOKS = (
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
        "control plane takes it out; gpusharectl install puts it back, "
        f"{_WITH_OPTIONS}.",
        "5m",
    ),
    Alert(
        "VcudaExtenderNotReady",
        named_node("vcuda_extender_ready == 0"),
        "critical",
        "The extender of {{ $labels.NodeName }} ({{ $labels.instance }}) does not "
        "answer filter",
        "No pod gets a card from it. Its log and /readyz say what it waits for.",
        "5m",
    ),
    Alert(
        "VcudaPluginDeaf",
        named_node("vcuda_plugin_registered == 0"),
        "warning",
        "kubelet does not listen to the device plugin of {{ $labels.NodeName }} "
        "({{ $labels.instance }}): {{ $labels.resource }}",
        "Its node offers no part of a card. The plugin's log says why.",
        "5m",
    ),
    Alert(
        "VcudaCertificateEnds",
        named_node(
            f"vcuda_certificate_not_after_timestamp_seconds - time() < {_LATE_S}"
        ),
        "warning",
        "A certificate of the extender ends in {{ $value | humanizeDuration }}",
        f"gpusharectl install --tls, {_WITH_OPTIONS}, renews it on the "
        "control-plane host {{ $labels.NodeName }}; nothing else does. Its file: "
        "{{ $labels.file }}, at {{ $labels.instance }}.",
    ),
)


def _of_webhook(wrapped: str) -> str:
    """Choose the webhook's targets, by either mark that they may be found by."""
    marks = ("job", "app_kubernetes_io_name")
    return "\n  or ".join(wrapped.format(f'up{{{one}=~"{_WEBHOOK}"}}') for one in marks)


_ADMISSION = (
    Alert(
        "VcudaWebhookDown",
        # Where it has no pod at all nothing is there to be 0: it must still be asked by
        # the API server, or, where nobody tells that, be gone since lately.
        f"max(\n  {_of_webhook('{}')}\n) == 0\n"
        f"or absent(\n  {_of_webhook('{}')}\n) and on() (\n"
        f"  max(\n  {_of_webhook('max_over_time({}[30m])')}\n  )\n"
        f"  unless on() ({_TOLD})\n"
        f"  or max({_CONFIGURED})\n)",
        "critical",
        "No replica of the webhook answers",
        "Pods that ask for cards are not made; all others are. In need: gpusharectl "
        f"install --no-webhook, {_WITH_OPTIONS}. Without kube-state-metrics it "
        f"comes for half an hour after a wanted removal, too. {_WEBHOOKS}",
        "2m",
    ),
    Alert(
        "VcudaWebhookCertificateEnds",
        "min(vcuda_webhook_certificate_not_after_timestamp_seconds) - time()"
        f" < {_LATE_S}",
        "warning",
        "The webhook's certificate ends in {{ $value | humanizeDuration }}",
        "From then on no pod that asks for cards is made. gpusharectl install, "
        f"{_WITH_OPTIONS}, renews it; nothing else does, but cert-manager where that "
        "has made it.",
    ),
)

SCHEDULING = Group("vcuda-scheduling", "Scheduling", (*_DOWN, *_BOOKS, *_ADMISSION))
