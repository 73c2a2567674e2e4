"""The webhook's certificates where cert-manager makes them: what we ship for it."""

from gpushare.kube.cluster import Json
from gpusharectl.install.manifests import load
from gpusharectl.install.webhook.objects import CERTIFICATE, CONFIGURATIONS, SECRETS
from gpusharectl.pki import WEBHOOK

SECRET, AUTHORITY = (ref.name for ref in SECRETS)


def shipped(kind: str) -> list[Json]:
    return [body for body in load("webhook-cert-manager") if body["kind"] == kind]


def issued(kind: str, secret: str) -> Json:
    """The Certificate that makes a Secret, or the Issuer that signs by it."""
    (body,) = [
        body
        for body in shipped(kind)
        if secret == body["spec"].get("ca", body["spec"]).get("secretName")
    ]
    return body


def test_the_certificate_is_for_the_name_that_the_api_server_calls() -> None:
    """And is put where the pods look for it; the installer knows it by its name."""
    body = issued("Certificate", SECRET)
    assert body["spec"]["dnsNames"] == [*WEBHOOK.hosts]
    assert body["metadata"]["name"] == CERTIFICATE.name
    (deployment,) = shipped("Deployment")
    (volume,) = [
        each["secret"]["secretName"]
        for each in deployment["spec"]["template"]["spec"]["volumes"]
        if "secret" in each
    ]
    assert volume == SECRET


def test_cert_manager_is_told_of_both_configurations() -> None:
    """Of the authority that has signed what the replicas show, not of a newer one."""
    where = issued("Certificate", SECRET)["metadata"]
    for ref in CONFIGURATIONS:
        (body,) = shipped(ref.kind)
        assert body["metadata"]["annotations"] == {
            "cert-manager.io/inject-ca-from": f"{where['namespace']}/{where['name']}"
        }
        (plain,) = [each for each in load("webhook") if each["kind"] == ref.kind]
        assert "annotations" not in plain["metadata"]


def test_cert_managers_certificates_are_a_chain() -> None:
    """Else each renewal would bring an authority that no replica is signed by yet."""
    signed, signer = issued("Certificate", SECRET), issued("Issuer", AUTHORITY)
    assert signed["spec"]["issuerRef"] == _reference(signer)
    own = issued("Certificate", AUTHORITY)
    assert own["spec"]["isCA"] is True
    # With another key what it has signed would be good no more.
    assert own["spec"]["privateKey"]["rotationPolicy"] == "Never"
    assert signed["spec"]["privateKey"]["rotationPolicy"] == "Always"
    (root,) = [body for body in shipped("Issuer") if body != signer]
    assert root["spec"] == {"selfSigned": {}}
    assert own["spec"]["issuerRef"] == _reference(root)


def test_cert_managers_are_renewed_in_time() -> None:
    """When less than a third of their time is left, as ours; the authority's last."""
    hours = [
        [
            int(issued("Certificate", name)["spec"][key].removesuffix("h"))
            for key in ("duration", "renewBefore")
        ]
        for name in (SECRET, AUTHORITY)
    ]
    assert all(whole == 3 * left for whole, left in hours)
    (longest, _), (_, left) = hours
    # What it signs never outlives it.
    assert longest < left


def _reference(issuer: Json) -> Json:
    return {"kind": "Issuer", "name": issuer["metadata"]["name"]}
