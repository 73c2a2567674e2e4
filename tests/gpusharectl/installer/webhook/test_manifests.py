"""The webhook as we ship it: whom the API server asks about, and what stays possible.

What the conditions mean to a real API server: ``tests/controlplane/test_webhook.py``.
"""

import pytest
import yaml

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.installer.manifests import WEBHOOK_OVERLAYS, load_manifests
from gpusharectl.installer.pki import WEBHOOK
from gpusharectl.installer.webhook.objects import (
    CERTIFICATE,
    CONFIGURATIONS,
    DEPLOYMENT,
    SECRET,
    SECRETS,
)
from tests.gpusharectl.installer.test_manifests import of_kind, pods, shipped
from tests.testbed.manifests import FOLDER

STARTING = ["kube-system", "kube-public", "kube-node-lease"]
"""The namespaces that a cluster comes up from."""
KINDS = tuple(ref.kind for ref in CONFIGURATIONS)


def entries(*components: str) -> dict[str, Json]:
    """The entries of the configurations, by the start of their names."""
    return {
        f"{body['kind'][0]} {each['name'].partition('.')[0]}": each
        for body in load_manifests("webhook", components=components)
        if body["kind"] in KINDS
        for each in body["webhooks"]
    }


def test_what_every_entry_promises() -> None:
    """Pods wait for us only where they ask for us: with Fail there are conditions.

    Never in the namespaces that a cluster starts from, where our own pods are.
    """
    service = of_kind("webhook", "Service")[0]
    for name, each in entries("webhook-void").items():
        assert each["matchConditions"], name
        void = name == "M void"
        assert each["failurePolicy"] == ("Ignore" if void else "Fail")
        text = " ".join(each["matchConditions"][-1]["expression"].split())
        assert "baidu.com/" in text or "bitfusion" in text
        (first, *_) = each["namespaceSelector"]["matchExpressions"]
        assert first == {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": STARTING,
        }
        assert each["admissionReviewVersions"] == ["v1"]
        assert each["sideEffects"] == "None"
        assert each["timeoutSeconds"] == 5
        assert each["name"].endswith(".vcuda.baidu.com")
        assert all(rule["scope"] == "Namespaced" for rule in each["rules"])
        if name.startswith("M"):
            assert each["reinvocationPolicy"] == "IfNeeded"
        # By the Service's name, which the certificate has, and its port.
        asked = each["clientConfig"]["service"]
        assert asked["name"] == service["metadata"]["name"] == names.WEBHOOK_NAME
        assert asked["namespace"] == service["metadata"]["namespace"] == STARTING[0]
        assert asked["port"] == service["spec"]["ports"][0]["port"]
        assert "caBundle" not in each["clientConfig"]
    assert WEBHOOK.hosts == (f"{names.WEBHOOK_NAME}.{STARTING[0]}.svc",)


def test_its_certificate_is_renewed_in_place_and_its_own() -> None:
    """Of a file that is mounted by a subPath kubelet would renew nothing."""
    (spec,) = pods("webhook").values()
    mounts = spec["containers"][0]["volumeMounts"]
    assert not any("subPath" in each for each in mounts)
    (volume,) = [each for each in spec["volumes"] if each["name"] == "tls"]
    # Its own group may read it, and nobody else.
    assert volume["secret"] == {"secretName": SECRET.name, "defaultMode": 0o440}
    assert spec["securityContext"]["fsGroup"] == 65532


@pytest.mark.parametrize("overlay", WEBHOOK_OVERLAYS)
def test_the_asking_comes_last(overlay: str) -> None:
    """For who applies them in order; and the installer knows them by name."""
    made = [(body["kind"], body["metadata"]["name"]) for body in shipped(overlay)]
    assert made[-2:] == [(ref.kind, ref.name) for ref in CONFIGURATIONS]
    assert (DEPLOYMENT.kind, DEPLOYMENT.name) in made


def test_the_mode_is_read_alike_by_all_who_read_yaml() -> None:
    """A number with a leading 0 is octal to some and decimal to others."""
    for path in FOLDER.glob("webhook*/*.yaml"):
        for token in yaml.scan(path.read_text()):
            if isinstance(token, yaml.ScalarToken) and token.plain:
                text = token.value
                assert not text.isdigit() or text.lstrip("0") in (text, ""), path


BY_CERT_MANAGER = "webhook-cert-manager"
ITS_SECRET, AUTHORITY = (ref.name for ref in SECRETS)


def issued(kind: str, secret: str) -> Json:
    """The Certificate that makes a Secret, or the Issuer that signs by it."""
    (body,) = (
        body
        for body in of_kind(BY_CERT_MANAGER, kind)
        if secret == body["spec"].get("ca", body["spec"]).get("secretName")
    )
    return body


def test_cert_managers_certificate_is_for_the_name_that_is_called() -> None:
    """And is put where the pods look for it; of its authority both are told."""
    body = issued("Certificate", ITS_SECRET)
    where = body["metadata"]
    assert body["spec"]["dnsNames"] == [*WEBHOOK.hosts]
    assert where["name"] == CERTIFICATE.name
    assert pods(BY_CERT_MANAGER) == pods("webhook")
    told = f"{where['namespace']}/{where['name']}"
    for ref in CONFIGURATIONS:
        (body,) = of_kind(BY_CERT_MANAGER, ref.kind)
        annotations = {"cert-manager.io/inject-ca-from": told}
        assert body["metadata"]["annotations"] == annotations
        (plain,) = of_kind("webhook", ref.kind)
        assert "annotations" not in plain["metadata"]


def test_cert_managers_certificates_are_a_chain() -> None:
    """Else each renewal would bring an authority that no replica is signed by yet."""
    signed, signer = issued("Certificate", ITS_SECRET), issued("Issuer", AUTHORITY)
    own = issued("Certificate", AUTHORITY)
    (root,) = (body for body in of_kind(BY_CERT_MANAGER, "Issuer") if body != signer)
    for body, issuer in ((signed, signer), (own, root)):
        reference = {"kind": "Issuer", "name": issuer["metadata"]["name"]}
        assert body["spec"]["issuerRef"] == reference
    assert own["spec"]["isCA"] is True
    assert root["spec"] == {"selfSigned": {}}
    # With another key what it has signed would be good no more.
    assert own["spec"]["privateKey"]["rotationPolicy"] == "Never"
    assert signed["spec"]["privateKey"]["rotationPolicy"] == "Always"


def test_cert_managers_are_renewed_in_time() -> None:
    """When less than a third of their time is left, as ours; the authority's last."""
    (longest, left), (its_longest, its_left) = (
        [
            int(issued("Certificate", name)["spec"][key].removesuffix("h"))
            for key in ("duration", "renewBefore")
        ]
        for name in (ITS_SECRET, AUTHORITY)
    )
    assert (longest, its_longest) == (3 * left, 3 * its_left)
    # What it signs never outlives it.
    assert longest < its_left
