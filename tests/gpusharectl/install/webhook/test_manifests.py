"""The webhook as we ship it: whom the API server asks about, and what stays possible.

What the conditions mean to a real API server: ``tests/controlplane/test_webhook.py``.
"""

from pathlib import Path

import pytest
import yaml

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.install.manifests import WEBHOOK_OVERLAYS, load
from gpusharectl.install.webhook.objects import CONFIGURATIONS, DEPLOYMENT, SECRET
from gpusharectl.pki import WEBHOOK as CERTIFICATE
from tests.testbed.manifests import FOLDER

STARTING = ["kube-system", "kube-public", "kube-node-lease"]
"""The namespaces that a cluster comes up from."""
KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def one(kind: str, overlay: str = "webhook", *components: str) -> Json:
    found = load(overlay, components=components)
    (body,) = [each for each in found if each["kind"] == kind]
    return body


def entries(*components: str) -> list[Json]:
    return [
        each for kind in KINDS for each in one(kind, "webhook", *components)["webhooks"]
    ]


def pod() -> Json:
    found: Json = one("Deployment")["spec"]["template"]["spec"]
    return found


def test_pods_wait_for_us_only_where_they_ask_for_us() -> None:
    """With Fail there are conditions; what asks for nothing is let through."""
    for each in entries("webhook-void"):
        assert each["matchConditions"], each["name"]
        void = each["name"] == "void.vcuda.baidu.com"
        assert each["failurePolicy"] == ("Ignore" if void else "Fail")
        text = " ".join(each["matchConditions"][-1]["expression"].split())
        assert "baidu.com/" in text or "bitfusion" in text


def test_never_the_namespaces_that_a_cluster_starts_from() -> None:
    """Ours is among them: its own pods wait for no webhook."""
    assert one("Deployment")["metadata"]["namespace"] in STARTING
    for each in entries("webhook-void"):
        (first, *_) = each["namespaceSelector"]["matchExpressions"]
        assert first == {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": STARTING,
        }


def test_what_every_entry_promises() -> None:
    for each in entries("webhook-void"):
        assert each["admissionReviewVersions"] == ["v1"]
        assert each["sideEffects"] == "None"
        assert each["timeoutSeconds"] == 5
        assert each["name"].endswith(".vcuda.baidu.com")
        assert all(rule["scope"] == "Namespaced" for rule in each["rules"])
    for each in one(KINDS[0])["webhooks"]:
        assert each["reinvocationPolicy"] == "IfNeeded"


def test_which_path_answers_whom() -> None:
    asked = {
        each["name"].partition(".")[0]: each["clientConfig"]["service"]["path"]
        for each in one(KINDS[0], "webhook", "webhook-void")["webhooks"]
    }
    assert asked == {
        "pods": "/mutate",
        "bitfusion": "/mutate",
        "bitfusion-all": "/mutate/bitfusion-all",
        "bitfusion-injection": "/mutate/bitfusion-injection",
        "void": "/mutate",
    }
    (validating,) = one(KINDS[1])["webhooks"]
    assert validating["clientConfig"]["service"]["path"] == "/validate"


MADE, DEBUGGED = ("CREATE", "pods"), ("UPDATE", "pods/ephemeralcontainers")


def rules(kind: str, *components: str) -> dict[str, set[tuple[str, ...]]]:
    return {
        each["name"].partition(".")[0]: {
            (*rule["operations"], *rule["resources"]) for rule in each["rules"]
        }
        for each in one(kind, "webhook", *components)["webhooks"]
    }


def test_pods_are_changed_when_they_are_made_and_never_later() -> None:
    """Containers for debugging come later; those are only looked at."""
    assert set(map(frozenset, rules(KINDS[0]).values())) == {frozenset({MADE})}
    assert rules(KINDS[1]) == {"pods": {MADE, DEBUGGED}}


def test_void_hides_the_cards_from_debugging_containers_too() -> None:
    """Whatever their image says: of pods with a card, and of all others."""
    found = rules(KINDS[0], "webhook-void")
    assert {name for name, asked in found.items() if DEBUGGED in asked} == {
        "pods",
        "void",
    }


@pytest.mark.parametrize("mode", names.BITFUSION_MODES)
def test_a_namespaces_label_chooses_one_mode(mode: str) -> None:
    (each,) = [one for one in entries() if one["name"].startswith(f"bitfusion-{mode}")]
    *_, label = each["namespaceSelector"]["matchExpressions"]
    assert label == {"key": names.BITFUSION_LABEL, "operator": "In", "values": [mode]}
    assert len(each["matchConditions"]) == 2


def test_the_api_server_reaches_the_process() -> None:
    """By the Service's name, which the certificate has, and its port."""
    service = one("Service")
    where = service["metadata"]
    for each in entries("webhook-void"):
        asked = each["clientConfig"]["service"]
        assert asked["name"] == where["name"] == names.WEBHOOK_NAME
        assert asked["namespace"] == where["namespace"]
        assert asked["port"] == service["spec"]["ports"][0]["port"]
        assert "caBundle" not in each["clientConfig"]
    host = f"{where['name']}.{where['namespace']}.svc"
    assert CERTIFICATE.hosts == (host,)
    (container,) = pod()["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {
        "reviews": names.WEBHOOK_PORT,
        "public": names.WEBHOOK_PUBLIC_PORT,
    }
    assert service["spec"]["ports"][0]["targetPort"] == "reviews"
    labels = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_its_certificate_is_where_its_settings_say() -> None:
    (container,) = pod()["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tls"]
    for name, file in (("CERT", "tls.crt"), ("KEY", "tls.key")):
        assert env[f"GPUSHARE_TLS_{name}"] == f"{mount['mountPath']}/{file}"
    # Of a file that is mounted by a subPath kubelet would renew nothing.
    assert "subPath" not in mount
    (volume,) = [each for each in pod()["volumes"] if each["name"] == "tls"]
    # Its own group may read it, and nobody else.
    assert volume["secret"] == {"secretName": SECRET.name, "defaultMode": 0o440}
    assert pod()["securityContext"]["fsGroup"] == 65532


def test_while_it_rolls_there_is_always_one_that_answers() -> None:
    spec = one("Deployment")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert spec["replicas"] == 2
    (container,) = pod()["containers"]
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 5
    assert one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_of_the_host_and_the_cluster_it_has_next_to_nothing() -> None:
    assert not [each for each in pod()["volumes"] if "hostPath" in each]
    assert "hostNetwork" not in pod()
    assert one("ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
    ]
    made = {each["kind"] for each in load("webhook")}
    assert "Role" not in made


@pytest.mark.parametrize("overlay", WEBHOOK_OVERLAYS)
def test_the_asking_comes_last(overlay: str) -> None:
    """For who applies them in order."""
    kinds = [body["kind"] for body in load(overlay)]
    assert tuple(kinds[-2:]) == KINDS


def test_the_installer_knows_them_by_name() -> None:
    made = {(body["kind"], body["metadata"]["name"]) for body in load("webhook")}
    for ref in (*CONFIGURATIONS, DEPLOYMENT):
        assert (ref.kind, ref.name) in made


def test_void_brings_its_setting_and_its_entry() -> None:
    plain = {each["name"] for each in one(KINDS[0])["webhooks"]}
    with_it = one(KINDS[0], "webhook", "webhook-void")["webhooks"]
    assert {each["name"] for each in with_it} - plain == {"void.vcuda.baidu.com"}
    (container,) = one("Deployment", "webhook", "webhook-void")["spec"]["template"][
        "spec"
    ]["containers"]
    assert {"name": "GPUSHARE_VOID", "value": "on"} in container["env"]


def test_the_mode_is_read_alike_by_all_who_read_yaml() -> None:
    """A number with a leading 0 is octal to some and decimal to others."""
    for path in Path(FOLDER).glob("webhook*/*.yaml"):
        text = path.read_text()
        tokens = [t for t in yaml.scan(text) if isinstance(t, yaml.ScalarToken)]
        assert not [
            t.value
            for t in tokens
            if t.plain
            and t.value.isdigit()
            and t.value.lstrip("0") not in (t.value, "")
        ]
