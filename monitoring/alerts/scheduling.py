"""Alerts on pods without a card, extender, device plugin and webhook."""

from monitoring.alerts.alert import Alert, Group, down, named_node
from monitoring.queries import (
    ITS_UUID,
    LARGEST_FREE,
    PENDING,
    PLACED,
    UNITS,
    booked,
    free_units,
)

_LATE_S = 60 * 86400
_EXTENDER = ("gpushare-extender", "gpushare-scheduler")
_PLUGIN = "gpushare-device-plugin"
_WEBHOOK = "gpushare-webhook"
_PODS = "kubectl -n kube-system get pods -o wide -l"
_EXTENDERS = f"{_PODS} 'app.kubernetes.io/name in ({','.join(_EXTENDER)})'."
_PLUGINS = f"{_PODS} app.kubernetes.io/name={_PLUGIN}."
_WEBHOOKS = f"{_PODS} app.kubernetes.io/name={_WEBHOOK}."
# Only if kube-state-metrics runs.
_CONFIGURATIONS = "kube_mutatingwebhookconfiguration_info"
_CONFIGURED = f'{_CONFIGURATIONS}{{mutatingwebhookconfiguration="{_WEBHOOK}"}}'
# Ours may have been the only one. It is removed some minutes before its pods.
_REPORTED = f"max(max_over_time({_CONFIGURATIONS}[35m])) and on() max(kube_node_info)"
_WITH_OPTIONS = "with the other options that you installed with"

_DOWN = (
    Alert(
        "VcudaExtenderDown",
        down(*_EXTENDER),
        "critical",
        "The extender of {{ $labels.NodeName }} ({{ $labels.instance }}) does not "
        "answer",
        f"kube-scheduler on this node places no pod that asks for a card. {_EXTENDERS}",
        "2m",
    ),
    Alert(
        "VcudaNoExtender",
        "absent(vcuda_extender_ready)",
        "critical",
        "No extender answers at all",
        "No pod of the cluster gets a card, and alerts that need the extender's "
        f"metrics do not fire. Or Prometheus does not scrape. {_EXTENDERS}",
        "2m",
    ),
    Alert(
        "VcudaPluginDown",
        down(_PLUGIN),
        "critical",
        "The device plugin of {{ $labels.NodeName }} ({{ $labels.instance }}) does not "
        "answer",
        "Running pods continue. The node starts no pod with a card, and the health of "
        f"its cards is not checked. {_PLUGINS}",
        "2m",
    ),
    Alert(
        "VcudaNoPlugin",
        "absent(vcuda_plugin_registered)",
        "critical",
        "No device plugin answers at all",
        f"No node starts a pod with a card, or Prometheus does not scrape. {_PLUGINS}",
        "2m",
    ),
)

_BOOKS = (
    Alert(
        "VcudaPending",
        f"max({PENDING}) > 0",
        "warning",
        "Pods wait for a card: {{ $value }}",
        "`gpusharectl inspect` lists them and what would fit. `gpusharectl why POD` "
        "shows what each card lacks. Pods that wait for ResourceClaims do not count.",
        "10m",
    ),
    Alert(
        "VcudaNothingFree",
        f"max({LARGEST_FREE}) == 0",
        "info",
        "No card of the cluster has room for a pod of one unit and one core",
        "The next pod that asks for a card will wait. `gpusharectl inspect` shows "
        "whether memory or cores are used up. Free some, or add cards.",
        "10m",
    ),
    Alert(
        "VcudaFragmented",
        f"max({LARGEST_FREE}) < 0.5 * max({UNITS})\n"
        f"and on () {free_units()} >= max({UNITS})",
        "info",
        "Free units would fill a card, but at most {{ $value }} of them are on one "
        "card",
        "Large pods wait while small ones fit. Move small pods together: delete them "
        "one by one under the policy best-fit.",
        "15m",
    ),
    Alert(
        "VcudaPodWithoutPlacement",
        "max(vcuda_extender_pods_without_placement) > 0",
        "warning",
        "Pods were bound without the extender: {{ $value }}",
        "Check the stanza in kube-scheduler's configuration. An upgrade of the control "
        f"plane removes it. Run gpusharectl install, {_WITH_OPTIONS}, to restore it.",
        "5m",
    ),
    Alert(
        "VcudaOverPlaced",
        f"{booked(PLACED)} > {booked(UNITS)}",
        "warning",
        "A card of {{ $labels.NodeName }} has less than the {{ $value }} units that "
        "are placed on it",
        f"The card is {ITS_UUID}. `gpusharectl inspect --node "
        "{{ $labels.NodeName }}` lists its pods and ResourceClaims: delete pods until "
        "they fit. Where claims are used, the API server must ask the extender about "
        "them: docs/dra.md, One ledger.",
        "5m",
    ),
    Alert(
        "VcudaClaimNotUnderstood",
        "max(vcuda_extender_claims_not_understood) > 0",
        "warning",
        "ResourceClaims that the extender cannot read: {{ $value }}",
        "What they hold of cards is not known: what they held before stays charged. "
        "The extender's log names each claim and its wrong field.",
        "5m",
    ),
    Alert(
        "VcudaExtenderNotReady",
        named_node("vcuda_extender_ready == 0"),
        "critical",
        "The extender of {{ $labels.NodeName }} ({{ $labels.instance }}) does not "
        "answer filter",
        "It places no pods. Its log and /readyz show what it waits for.",
        "5m",
    ),
    Alert(
        "VcudaPluginDeaf",
        named_node("vcuda_plugin_registered == 0"),
        "warning",
        "Not registered with kubelet: the device plugin of {{ $labels.NodeName }} "
        "({{ $labels.instance }}): {{ $labels.resource }}",
        "The node offers no part of a card. The plugin's log shows the reason.",
        "5m",
    ),
    Alert(
        "VcudaCertificateEnds",
        named_node(
            f"vcuda_certificate_not_after_timestamp_seconds - time() < {_LATE_S}"
        ),
        "warning",
        "A certificate of the extender expires in {{ $value | humanizeDuration }}",
        f"Run gpusharectl install --tls, {_WITH_OPTIONS}, on the control-plane host "
        "{{ $labels.NodeName }}. Nothing else renews it. The file is "
        "{{ $labels.file }}, at {{ $labels.instance }}.",
    ),
)


def _of_webhook(wrapped: str) -> str:
    """Select the webhook's targets, by job or by label."""
    marks = ("job", "app_kubernetes_io_name")
    return "\n  or ".join(
        wrapped.format(f'up{{{mark}=~"{_WEBHOOK}"}}') for mark in marks
    )


_ADMISSION = (
    Alert(
        "VcudaWebhookDown",
        # Without any pod no series is 0. Then the API server must still be configured
        # to call it or, if that is unknown, its pods must have ended recently.
        f"max(\n  {_of_webhook('{}')}\n) == 0\n"
        f"or absent(\n  {_of_webhook('{}')}\n) and on() (\n"
        f"  max(\n  {_of_webhook('max_over_time({}[30m])')}\n  )\n"
        f"  unless on() ({_REPORTED})\n"
        f"  or max({_CONFIGURED})\n)",
        "critical",
        "No replica of the webhook answers",
        "Pods that ask for cards cannot be created; others can. In an emergency: "
        f"gpusharectl install --no-webhook, {_WITH_OPTIONS}. Without "
        "kube-state-metrics it also fires for half an hour after an intended removal. "
        f"{_WEBHOOKS}",
        "2m",
    ),
    Alert(
        "VcudaWebhookCertificateEnds",
        "min(vcuda_webhook_certificate_not_after_timestamp_seconds) - time()"
        f" < {_LATE_S}",
        "warning",
        "The webhook's certificate expires in {{ $value | humanizeDuration }}",
        "After that no pod that asks for cards can be created. Run gpusharectl "
        f"install, {_WITH_OPTIONS}, to renew it. Nothing else renews it, except "
        "cert-manager if that has made it.",
    ),
)

SCHEDULING = Group("vcuda-scheduling", "Scheduling", (*_DOWN, *_BOOKS, *_ADMISSION))
