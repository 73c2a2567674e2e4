"""What the real Helm makes of the chart: the objects of ``gpusharectl install``."""

import base64
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from deviceplugin.allocation.prestart import allocation_text
from deviceplugin.allocation.records import AllocationRecord
from gpushare import __version__
from gpushare.domain.model import Amount, CardUUID, PodUID
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.manifests import compose_install, load_manifests
from gpusharectl.installer.options import CARD_CLASSES, InstallOptions, WebhookOptions
from gpusharectl.installer.webhook.objects import SECRET, read_bundle
from tests.testbed.helm import CHART, KUBERNETES, Helm, settings

K3S_TLS = "/etc/rancher/k3s/vcuda/tls"
SERVICE = "gpushare-webhook.kube-system.svc"
ON = {"webhook.enabled": "true", "webhook.certificate.source": "given"}
BUNDLE = base64.b64encode(b"an authority").decode()
DIGEST = f"sha256:{'1f' * 32}"
GIVEN = {**ON, "webhook.certificate.caBundle": BUNDLE}
EVERYTHING = WebhookOptions(
    wanted=True,
    void=True,
    set_scheduler="vcuda-scheduler",
    set_runtime_class="nvidia",
    env_from="deny",
    quotas=True,
    bitfusion_card_mib="15258",
    bitfusion_shell="/bin/sh",
    bitfusion_strict=True,
    bitfusion_quota=True,
)


class Case:
    """Values of the chart, and the install that they stand for."""

    def __init__(
        self,
        values: Mapping[str, str],
        *,
        flavour: Flavour = Flavour.KUBEADM,
        **options: Any,
    ) -> None:
        self.values, self.flavour = values, flavour
        self.components: Sequence[str] = options.pop("components", ())
        self.by_cert_manager = options.pop("by_cert_manager", False)
        self.image: str = options.pop("image", "")
        self.options = InstallOptions(**options)

    def objects(self) -> dict[Ref, Json]:
        found = compose_install(
            load_manifests,
            self.flavour,
            self.options,
            image=self.image,
            components=self.components,
            by_cert_manager=self.by_cert_manager,
        )
        return {Ref.of(body): body for body in found}


CASES = {
    "kubeadm": Case({}),
    "image": Case(
        {"image.repository": "local.test:5000/gpushare", "image.tag": "9-rc"},
        image="local.test:5000/gpushare:9-rc",
    ),
    "digest": Case(
        {"image.repository": "Local.test:5000/gpushare", "image.digest": DIGEST},
        image=f"Local.test:5000/gpushare:{__version__}@{DIGEST}",
    ),
    "with-tls": Case({"extender.tls.enabled": "true"}, tls=True),
    "k3s-with-tls": Case(
        {"extender.tls.enabled": "true", "extender.tls.folder": K3S_TLS},
        flavour=Flavour.K3S,
        tls=True,
    ),
    "second-scheduler": Case(
        {"scheduler.kind": "second", "scheduler.image": "kube-scheduler:v1.36.3"},
        second_scheduler=True,
    ),
    "second-scheduler-packing": Case(
        {
            "scheduler.kind": "second",
            "scheduler.image": "kube-scheduler:v1.36.3",
            "extender.policy": "frag",
            "extender.ui": "true",
        },
        second_scheduler=True,
        policy="frag",
        ui=True,
    ),
    "settings": Case(
        {
            "extender.policy": "spread",
            "extender.ui": "true",
            "devicePlugin.isolation": "driver",
        },
        policy="spread",
        ui=True,
        isolation="driver",
    ),
    "nvidia-runtime": Case(
        {
            "runtimeClassName": "nvidia",
            "monitoring.enabled": "true",
            "monitoring.prometheusOperator": "on",
        },
        with_monitoring=True,
        components=["nvidia-runtime"],
    ),
    "compute": Case(
        {
            "devicePlugin.isolation": "preload",
            "monitoring.enabled": "true",
            "monitoring.compute": "share",
            "monitoring.prometheusOperator": "on",
        },
        isolation="preload",
        compute="share",
        with_monitoring=True,
    ),
    "webhook": Case(GIVEN, webhook=WebhookOptions(wanted=True)),
    "webhook-with-everything": Case(
        {
            **GIVEN,
            "webhook.void": "true",
            "webhook.setScheduler": "vcuda-scheduler",
            "webhook.setRuntimeClass": "nvidia",
            "webhook.envFrom": "deny",
            "webhook.quotas": "true",
            "webhook.bitfusion.shell": "/bin/sh",
            "webhook.bitfusion.strict": "true",
            "webhook.bitfusion.quota": "true",
        },
        webhook=EVERYTHING,
    ),
    "webhook-cert-manager": Case(
        {**ON, "webhook.certificate.source": "cert-manager", "webhook.void": "true"},
        webhook=WebhookOptions(wanted=True, void=True),
        by_cert_manager=True,
    ),
}
TEXTS = {"webhook-with-everything": ["--set-string=webhook.bitfusion.cardMib=15258"]}
"""Values that look like numbers."""


@pytest.fixture(scope="module")
def helm(helm_program: str, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(helm_program, tmp_path_factory.mktemp("helm"))


def objects_in(text: str) -> dict[Ref, Json]:
    found = [body for body in yaml.safe_load_all(text) if body]
    refs = [Ref.of(body) for body in found]
    assert len(refs) == len(set(refs))
    return dict(zip(refs, found, strict=True))


def without_bundles(bodies: Mapping[Ref, Json]) -> dict[Ref, Json]:
    """The installer and Helm write these later, or of their own."""
    return {ref: _without(body) for ref, body in bodies.items()}


def _without(body: Json) -> Json:
    hooks = body.get("webhooks")
    if not hooks:
        return body
    clients = [
        {k: v for k, v in one["clientConfig"].items() if k != "caBundle"}
        for one in hooks
    ]
    pairs = zip(hooks, clients, strict=True)
    return {**body, "webhooks": [{**one, "clientConfig": two} for one, two in pairs]}


@pytest.mark.parametrize("name", CASES)
def test_the_chart_is_what_is_installed(helm: Helm, name: str) -> None:
    """Object for object, to the order of variables: neither can drift."""
    case = CASES[name]
    found = objects_in(helm.template(case.values, *TEXTS.get(name, ())))
    wanted = case.objects()
    assert found.keys() == wanted.keys()
    plain = without_bundles(found)
    for ref, body in wanted.items():
        assert plain[ref] == body, ref


def of_kind(bodies: Mapping[Ref, Json], kind: str, name: str) -> Json:
    return next(
        body for ref, body in bodies.items() if (ref.kind, ref.name) == (kind, name)
    )


def hooks(bodies: Mapping[Ref, Json]) -> list[Json]:
    return [body for body in bodies.values() if "webhooks" in body]


def test_a_given_authority_is_in_every_entry(helm: Helm) -> None:
    """Those of a component too; with cert-manager there is none to differ from."""
    given = hooks(objects_in(helm.template({**GIVEN, "webhook.void": "true"})))
    found = {
        one["clientConfig"]["caBundle"] for body in given for one in body["webhooks"]
    }
    assert found == {BUNDLE}
    managed = {**ON, "webhook.certificate.source": "cert-manager"}
    text = helm.template(managed)
    assert "caBundle:" not in text
    assert helm.template(managed) == text


def test_helms_own_certificate_is_trusted(helm: Helm) -> None:
    """By the authority in every entry, for the name that the API server calls."""
    bodies = objects_in(helm.template({"webhook.enabled": "true"}))
    data = {k: base64.b64decode(v) for k, v in bodies[SECRET]["data"].items()}
    assert bodies[SECRET]["type"] == "kubernetes.io/tls"
    authority, leaf = (
        x509.load_pem_x509_certificate(data[key]) for key in ("ca.crt", "tls.crt")
    )
    assert read_bundle(hooks(bodies)).strip() == data["ca.crt"].strip()
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [SERVICE]


def test_what_only_the_chart_has(helm: Helm) -> None:
    """Variables, resources, secrets of registries, replicas, other RuntimeClasses."""
    values = {
        **GIVEN,
        "extender.env.GPUSHARE_LOG_LEVEL": "DEBUG",
        # Without extender.tls the chart has none.
        "extender.env.GPUSHARE_TLS_CERT": "/mine.crt",
        "devicePlugin.resources.requests.cpu": "1",
        "imagePullSecrets[0].name": "registry",
        "webhook.replicas": "3",
        "webhook.cardClasses": "{cards,others}",
        "monitoring.enabled": "true",
        "monitoring.evict": "true",
        "monitoring.dashboards": "false",
    }
    bodies = objects_in(helm.template(values))

    def pod(kind: str, name: str) -> Json:
        found: Json = of_kind(bodies, kind, name)["spec"]["template"]["spec"]
        assert found["imagePullSecrets"] == [{"name": "registry"}]
        return found

    (extender,) = pod("DaemonSet", "gpushare-extender")["containers"]
    level = {"name": "GPUSHARE_LOG_LEVEL", "value": "DEBUG"}
    own = {"name": "GPUSHARE_TLS_CERT", "value": "/mine.crt"}
    assert extender["env"][-2:] == [level, own]
    (plugin,) = pod("DaemonSet", "gpushare-device-plugin")["containers"]
    assert plugin["resources"] == {"requests": {"cpu": 1}}
    (webhook,) = pod("Deployment", "gpushare-webhook")["containers"]
    assert {"name": CARD_CLASSES, "value": "cards,others"} in webhook["env"]
    assert of_kind(bodies, "Deployment", "gpushare-webhook")["spec"]["replicas"] == 3
    evicting = objects_in_order(
        load_manifests("exporter", components=["exporter-evict"])
    )
    for ref, body in evicting.items():
        if ref.kind != "DaemonSet":
            assert bodies[ref] == body
    assert not [ref for ref in bodies if "dashboards" in ref.name]


def test_kubelets_other_folder(helm: Helm) -> None:
    """kubelet's --root-dir moves pod-resources alone; the pods have the paths of ever.

    So the programs in them need no setting.
    """
    on = {"monitoring.enabled": "true"}
    usual = objects_in(helm.template(on))
    found = objects_in(helm.template({**on, "kubeletRootDir": "/data/kubelet"}))
    changed = {ref.name: body for ref, body in found.items() if body != usual[ref]}
    assert sorted(changed) == ["gpushare-device-plugin", "gpushare-exporter"]
    for name, body in changed.items():
        volumes = body["spec"]["template"]["spec"]["volumes"]
        (volume,) = (one for one in volumes if one["name"] == "pod-resources")
        assert volume["hostPath"]["path"] == "/data/kubelet/pod-resources"
        volume["hostPath"]["path"] = "/var/lib/kubelet/pod-resources"
        assert body == of_kind(usual, "DaemonSet", name)


def objects_in_order(bodies: Sequence[Json]) -> dict[Ref, Json]:
    return {Ref.of(body): body for body in bodies}


def test_prometheus_operator_is_seen(helm: Helm) -> None:
    """With ``auto`` by the kinds that the API server serves."""
    values = {"monitoring.enabled": "true"}
    kind = "--api-versions=monitoring.coreos.com/v1/ServiceMonitor"
    operators = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}

    def kinds(*more: str) -> set[str]:
        return {
            ref.kind for ref in objects_in(helm.template(values, *more))
        } & operators

    assert kinds() == set()
    assert kinds(kind) == operators
    # As YAML reads on and off without quotes.
    for word, expected in {"off": set(), "false": set(), "true": operators}.items():
        told = f"--set=monitoring.prometheusOperator={word}"
        assert kinds(kind, told) == expected


def test_an_older_cluster_has_no_policies(helm: Helm) -> None:
    """Before Kubernetes 1.30 their kinds are unknown, and Helm would stop."""
    kinds = {ref.kind for ref in objects_in(helm.template({}, "--kube-version=1.29.5"))}
    assert "DaemonSet" in kinds
    assert not [kind for kind in kinds if "Policy" in kind]


SECOND = {"scheduler.kind": "second", "scheduler.image": "kube-scheduler:v1.36.3"}


@pytest.mark.parametrize(
    ("values", "scheduler", "remedy"),
    [
        ({}, None, "as root: gpusharectl install --host-only"),
        (SECOND, "vcuda-scheduler", "did not ask the extender for a card"),
    ],
)
def test_the_pod_of_helm_test(
    helm: Helm,
    tmp_path: Path,
    values: Mapping[str, str],
    scheduler: str | None,
    remedy: str,
) -> None:
    """It reads what the device plugin writes, or says why there is nothing."""
    only = "--show-only=templates/tests/card.yaml"
    version = f"--kube-version={KUBERNETES}"
    wanted = ("template", "gpushare", CHART, only, version, *settings(values))
    spec = yaml.safe_load(helm.must(*wanted))["spec"]
    assert spec.get("schedulerName") == scheduler
    assert spec["tolerations"] == [{"operator": "Exists"}]
    (container,) = spec["containers"]
    assert container["resources"] == {"limits": {names.MEMORY: 1, names.CORE: 1}}

    owner = AllocationRecord(
        "kube-system", "gpushare-test", PodUID("u"), "test", "", ()
    )
    file = tmp_path / "allocation.json"
    file.write_text(allocation_text(owner, {CardUUID("GPU-1"): Amount(1, 1)}, None))
    (*_, script) = container["command"]
    command = [
        sys.executable,
        "-c",
        script.replace("/etc/vcuda/allocation.json", f"{file}"),
    ]

    def says(placement: str) -> subprocess.CompletedProcess[str]:
        env = {"PLACEMENT": placement}
        return subprocess.run(
            command, env=env, capture_output=True, text=True, check=False
        )

    assert says("{}").stdout == "this pod has 256 MiB of card GPU-1\n"
    missing = says("")
    assert missing.returncode == 1
    assert missing.stderr.endswith(f"{remedy}\n")


@pytest.mark.parametrize("values", [{}, CASES["webhook"].values])
def test_helm_has_no_complaint(helm: Helm, values: Mapping[str, str]) -> None:
    """``helm lint`` as strict as it can be."""
    version = f"--kube-version={KUBERNETES}"
    said = helm.must("lint", CHART, "--strict", version, *settings(values))
    assert "0 chart(s) failed" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"devicePlugin.isolation": "hard"}, "/devicePlugin/isolation"),
        ({"extnder.ui": "true"}, "'extnder' not allowed"),
        ({"extender.env.A": "1"}, "/extender/env/A': got number, want string"),
        ({"webhook.replicas": "0"}, "/webhook/replicas': minimum: got 0, want 1"),
        ({"scheduler.kind": "second"}, "scheduler.image is empty: with"),
        (
            {
                "scheduler.kind": "second",
                "scheduler.image": "kube-scheduler:v1.36.3",
                "extender.tls.enabled": "true",
            },
            "extender.tls.enabled is for the cluster's own kube-scheduler",
        ),
        ({"monitoring.evict": "true"}, "add monitoring.enabled=true"),
        ({"monitoring.compute": "share"}, "add monitoring.enabled=true"),
        (
            {"monitoring.enabled": "true", "monitoring.compute": "share"},
            "add devicePlugin.isolation=preload",
        ),
        (
            {"monitoring.enabled": "true", "exporter.env.GPUSHARE_COMPUTE": "share"},
            "exporter.env.GPUSHARE_COMPUTE: use monitoring.compute",
        ),
        (ON, "webhook.certificate.caBundle is empty"),
        ({"scheduler.kind": "null"}, "'/scheduler': missing property 'kind'"),
        ({"webhook": "null"}, "missing property 'webhook'"),
        (
            {"image.repository": "local.test:5000/gpushare:9-rc"},
            "image.repository has a tag or digest",
        ),
        (
            {"extender.env.GPUSHARE_POLICY": "spread"},
            "extender.env.GPUSHARE_POLICY: the chart sets this variable itself",
        ),
        (
            {
                "monitoring.enabled": "true",
                "monitoring.evict": "true",
                "exporter.env.GPUSHARE_WATCHDOG": "report",
            },
            "exporter.env.GPUSHARE_WATCHDOG: the chart sets",
        ),
    ],
)
def test_values_that_cannot_be_are_refused(
    helm: Helm, values: Mapping[str, str], said: str
) -> None:
    """With a sentence that names the value."""
    version = f"--kube-version={KUBERNETES}"
    done = helm.run("template", "gpushare", CHART, version, *settings(values))
    assert done.returncode != 0
    assert said in done.stderr


def test_places_that_cannot_be_are_refused(helm: Helm) -> None:
    """Another namespace, a cluster that is too old for the webhook or for all."""
    elsewhere = Helm(helm.program, helm.home, namespace="elsewhere")
    template = ("template", "gpushare", CHART)
    done = elsewhere.run(*template, f"--kube-version={KUBERNETES}")
    assert "install it with --namespace kube-system" in done.stderr
    old = [*template, "--kube-version=1.29.5", "--set=webhook.enabled=true"]
    assert "Kubernetes 1.30 or newer, and this is v1.29.5" in helm.run(*old).stderr
    assert ">=1.26.0-0" in helm.run(*template, "--kube-version=1.25.0").stderr


def test_a_chart_can_depend_on_this_one(helm: Helm, tmp_path: Path) -> None:
    """Also by the usual condition, which Helm passes on with the values."""
    parent = tmp_path / "parent"
    shutil.copytree(CHART, parent / "charts/gpushare")
    (parent / "values.yaml").write_text("gpushare: {enabled: true}")
    needs = {"name": "gpushare", "version": "*", "condition": "gpushare.enabled"}
    about = {"apiVersion": "v2", "name": "parent", "version": "1.0.0"}
    (parent / "Chart.yaml").write_text(
        yaml.safe_dump({**about, "dependencies": [needs]})
    )
    template = ("template", "parent", parent, f"--kube-version={KUBERNETES}")
    assert "gpushare-device-plugin" in helm.must(*template)
    assert helm.must(*template, "--set=gpushare.enabled=false").strip() == ""
