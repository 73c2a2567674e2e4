"""``install`` and ``uninstall`` against a real API server, without controllers.

The stand-ins of the unit tests play DaemonSet controller and kubelets here too. What
memory cannot tell is held here: how lists are merged when the same field manager
applies less than before, and which manager owns a field.
"""

import base64
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushare.kube import names
from gpushare.kube.apiserver.api import ApiObjects
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Conflict
from gpushare.kube.facts import OURS, SYSTEM, is_narrowed
from gpushare.kube.objects import Ref
from gpusharectl.installer.command import install, uninstall
from gpusharectl.installer.lock import LASTS_S, LEASE, hold_lease
from gpusharectl.installer.manifests import container_settings, load_manifests
from gpusharectl.installer.options import WebhookOptions
from gpusharectl.installer.pki import make_authority
from gpusharectl.installer.progress import Exit, InstallError
from gpusharectl.installer.rights import Right
from gpusharectl.installer.webhook import apply
from gpusharectl.installer.webhook.apply import (
    NAME,
    GuardedWriter,
    narrow_to_probe,
    probe_webhook,
)
from gpusharectl.installer.webhook.objects import (
    CONFIGURATIONS,
    DEPLOYMENT,
    SECRET,
    certificate_secret,
    secret_files,
)
from tests.controlplane.gate import raised
from tests.gpusharectl.installer.installed_cluster import (
    AFTER,
    BEFORE,
    KINDS,
    OPERATORS_KINDS,
    SCHEDULER,
    WEBHOOKS_KINDS,
    InstalledCluster,
)
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.objects import pod, sweep
from tests.testbed.operators import CERT_MANAGER, PROMETHEUS, forget_kinds, serve_kinds
from tests.testbed.waiting import wait_until

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

ALL_KINDS = (*KINDS, *WEBHOOKS_KINDS)
STILL = [kind for kind in ALL_KINDS if kind[1] != "Pod"]
EXTENDER = Ref("apps/v1", "DaemonSet", "gpushare-extender", SYSTEM)
WANTED = WebhookOptions(wanted=True)
SET = WebhookOptions(
    wanted=True, void=True, set_scheduler="vcuda-scheduler", bitfusion_quota=True
)
LESS = WebhookOptions(void=False, set_scheduler="", bitfusion_quota=False)
OWN_FIELDS = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "gpushare-exporter-fields", "namespace": SYSTEM},
    "data": {"fields.csv": "DCGM_FI_DEV_FB_USED, gauge, used\n"},
}
IN_ORDER = (
    "gpushare-device-plugin: running",
    "gpu-1: 1 card, 29 units",
    "gpushare-exporter: running",
)
INJECTED = {"cert-manager.io/inject-ca-from": "kube-system/gpushare-webhook"}
EVERY_VERB = ["get", "list", "watch", "create", "patch", "update", "delete"]
"""Neither escalate nor bind, which cluster-admin has by its asterisk."""


class Answered(ApiObjects):
    """An API server that gets through to the webhook, of which there is no process.

    Only in the installer's own trial; with ``lost`` it is the real one that answers.
    """

    lost = False

    def create(self, body: Json, *, dry_run: bool = False) -> Json:
        if self.lost or not dry_run:
            return super().create(body, dry_run=dry_run)
        answered: Json = deepcopy(body)
        (container,) = answered["spec"]["containers"]
        container["resources"]["limits"][names.CORE] = "1"
        return answered


@pytest.fixture
def objects(plane: ControlPlane) -> Iterator[Answered]:
    connected = Answered.connect(str(plane.kubeconfig(plane.admin.token, "installer")))
    yield connected
    # The webhook's first, which would keep pods from being made.
    for api_version, kind in reversed(ALL_KINDS):
        for body in connected.list(api_version, kind, label_selector=OURS):
            connected.delete(Ref.of(body), grace_period_s=0)
    forget_kinds(connected, PROMETHEUS | CERT_MANAGER)
    sweep(plane.rest)
    connected.close()


@pytest.fixture
def world(objects: Answered, tmp_path: Path) -> InstalledCluster:
    """A cluster of two nodes that knows nothing of us."""
    # Others on this control plane have made our accounts.
    for name in ("extender", "device-plugin", "exporter", "webhook"):
        objects.delete(Ref("v1", "ServiceAccount", f"gpushare-{name}", SYSTEM))
    return InstalledCluster(objects, tmp_path).populate()


def there(world: InstalledCluster, ref: Ref) -> Json:
    body = world.objects.get(ref)
    assert body is not None, ref
    return body


def replace_values(
    world: InstalledCluster, ref: Ref, values: Mapping[str, object]
) -> None:
    steps = [
        {"op": "replace", "path": path, "value": value}
        for path, value in values.items()
    ]
    world.objects.json_patch(ref, steps)


def settings(world: InstalledCluster) -> dict[str, str]:
    return dict(container_settings([there(world, DEPLOYMENT)], "webhook"))


def entries(world: InstalledCluster) -> list[str]:
    webhooks = there(world, CONFIGURATIONS[0])["webhooks"]
    return [entry["name"].partition(".")[0] for entry in webhooks]


def bundles(world: InstalledCluster) -> set[str]:
    return {
        entry["clientConfig"].get("caBundle", "")
        for ref in CONFIGURATIONS
        for entry in there(world, ref)["webhooks"]
    }


def conditions(configuration: Json) -> list[Json]:
    return [entry.get("matchConditions") for entry in configuration["webhooks"]]


def assert_not_narrowed(world: InstalledCluster) -> None:
    """Insist that both configurations have their own conditions, and no other."""
    for body in load_manifests("webhook"):
        if (ref := Ref.of(body)) in CONFIGURATIONS:
            assert conditions(there(world, ref)) == conditions(body)


@pytest.mark.parametrize("webhook", [WebhookOptions(), SET], ids=["plain", "webhook"])
def test_there_and_back(world: InstalledCluster, webhook: WebhookOptions) -> None:
    """Every field is as before at the end; a second install writes nothing."""
    before = world.picture(STILL)
    assert world.install(webhook=webhook) == Exit.DONE, world.screen.text
    assert world.label("gpu-1") == "true"
    assert "gpu-1: 1 card, 29 units" in world.screen.text
    assert world.files.read(SCHEDULER) == AFTER
    if webhook.wanted:
        assert entries(world)[-1] == "void"
        assert len(bundles(world)) == 1
        assert there(world, SECRET)["type"] == "kubernetes.io/tls"
    versions = {
        Ref.of(body): body["metadata"]["resourceVersion"]
        for kind in STILL
        for body in world.objects.list(*kind)
    }
    assert len(versions) > 10
    # Without nodes it takes those labelled.
    assert world.install(nodes=()) == Exit.DONE
    assert "none changed" in world.screen.text
    assert "gpu-1: already labelled" in world.screen.text
    for ref, version in versions.items():
        assert there(world, ref)["metadata"]["resourceVersion"] == version, ref
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert world.picture(STILL) == before
    assert world.ours() == []
    assert world.files.read(SCHEDULER) == BEFORE


def test_there_and_back_with_monitoring(world: InstalledCluster) -> None:
    """Where Prometheus Operator's kinds are served and where not; twice is once.

    Which metrics there are is the operator's, and stays. The exporter is waited for
    when the cards are there, not before.
    """
    world.objects.create(OWN_FIELDS)
    before = world.picture(STILL)
    for served in (False, True):
        if served:
            serve_kinds(world.objects, PROMETHEUS)
        kinds = [*STILL, *OPERATORS_KINDS] if served else STILL
        assert world.install(with_monitoring=True) == Exit.DONE, world.screen.text
        lines = world.screen.lines
        plugin, cards, exporter = map(lines.index, IN_ORDER)
        assert plugin < cards < exporter
        assert ("Prometheus Operator is not installed" in world.screen.text) != served
        there = world.picture(kinds)
        assert {"Service", "ConfigMap"} < {ref.kind for ref in there}
        assert world.install(with_monitoring=True) == Exit.DONE
        assert "none changed" in world.screen.text
        assert world.picture(kinds) == there
        assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
        assert world.picture(STILL) == before
        assert not served or not any(
            world.objects.list(*kind) for kind in OPERATORS_KINDS
        )
    world.objects.delete(Ref.of(OWN_FIELDS))


def test_a_dry_run_is_the_api_servers_own(world: InstalledCluster) -> None:
    """Nothing is written, and what is shown has the API server's defaults in it."""
    before = world.versions()
    assert world.install(dry_run=True, webhook=SET) == Exit.DONE, world.screen.text
    assert world.versions() == before
    assert world.files.read(SCHEDULER) == BEFORE
    assert f"+++ {SCHEDULER}" in world.screen.text
    assert "+# ours" in world.screen.text
    assert '+ Node gpu-1: label baidu.com/vcuda: "true"' in world.screen.text
    assert "To install: gpusharectl install --nodes gpu-1" in world.screen.text
    assert "+kind: ValidatingAdmissionPolicyBinding" in world.screen.text
    assert "+++ DaemonSet kube-system/gpushare-extender" in world.screen.text
    assert "+      terminationGracePeriodSeconds: 30" in world.screen.text
    assert "its contents are not shown" in world.screen.text
    assert "+  matchPolicy: Equivalent" in world.screen.text
    assert world.install() == Exit.DONE
    assert world.install(dry_run=True, image="gpushare:9") == Exit.DONE
    # Behind the list of what changes.
    _, *diffs = world.screen.text.split("\n--- ")
    lines = "\n".join(diffs).splitlines()
    changed = [line for line in lines if line[:2] in ("+ ", "- ")]
    assert [line.split()[1:] for line in changed] == [
        ["image:", "gpushare:0.1.0"],
        ["image:", "gpushare:9"],
    ] * 2


def test_over_objects_that_kubectl_put_there(world: InstalledCluster) -> None:
    """What ``apply -k`` or a hand has changed becomes ours again, in place.

    But for the image, which is the operator's, and stays until another is asked for.
    """
    assert world.install() == Exit.DONE
    world.objects.merge(EXTENDER, {"spec": {"minReadySeconds": 7}})
    container = "/spec/template/spec/containers/0"
    changes = {
        f"{container}/image": "x:1",
        f"{container}/securityContext/readOnlyRootFilesystem": False,
    }
    replace_values(world, EXTENDER, changes)
    for wanted, runs in (("", "x:1"), ("gpushare:9", "gpushare:9")):
        assert world.install(image=wanted) == Exit.DONE
        spec = there(world, EXTENDER)["spec"]
        (extender,) = spec["template"]["spec"]["containers"]
        assert extender["image"] == runs
        assert extender["securityContext"]["readOnlyRootFilesystem"] is True
        assert spec["minReadySeconds"] == 7


def test_tls_stays_until_it_is_taken_away(world: InstalledCluster) -> None:
    """The API server takes the certificates' variables and folder out again."""
    assert world.install(image="x/gpushare:1", tls=True) == Exit.DONE
    before = world.versions()
    assert world.install() == Exit.DONE, world.screen.text
    assert world.versions() == before
    assert "GPUSHARE_TLS_CERT" in str(there(world, EXTENDER))
    assert world.install(tls=False) == Exit.DONE
    body = there(world, EXTENDER)
    assert "tls" not in str(body["spec"]["template"]["spec"]).lower()
    assert "x/gpushare:1" in str(body["spec"])


def test_a_weaker_user_hears_all_that_is_missing(
    plane: ControlPlane, world: InstalledCluster
) -> None:
    """Also that RBAC lets nobody give rights that he has not: before anything is done.

    The first round lacks verbs; the second has them all but for what the roles hold.
    """
    token = service_account_token(plane.rest, "default", "weak")
    user = "system:serviceaccount:default:weak"
    grant(plane.rest, user, [_rule("", "nodes", "pods", verbs=["get", "list"])])
    weak = ApiObjects.connect(str(plane.kubeconfig(token, "weak")))
    strong, world.objects = world.objects, weak
    assert world.install() == Exit.REFUSED
    text = world.screen.text
    assert "you may not patch nodes, create pods in kube-system, " in text
    assert "patch daemonsets.apps in kube-system" in text
    grant(
        plane.rest,
        user,
        [
            _rule("", "nodes", "pods", "pods/log", "events", "serviceaccounts"),
            _rule("apps", "daemonsets", "deployments", "controllerrevisions"),
            _rule("batch", "jobs"),
            _rule("coordination.k8s.io", "leases"),
            _rule("node.k8s.io", "runtimeclasses"),
            _rule("rbac.authorization.k8s.io", "clusterroles", "clusterrolebindings"),
            _rule(
                "admissionregistration.k8s.io",
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings",
            ),
        ],
    )
    assert world.install() == Exit.STOPPED, world.screen.text
    assert "attempting to grant RBAC permissions not currently held" in (
        world.screen.text
    )
    assert "Done: the checks, the choice of nodes. Not done: the dry run" in (
        world.screen.text
    )
    world.objects = strong
    assert world.ours() == []
    weak.close()


@pytest.mark.parametrize("what", ["install", "uninstall"])
def test_the_rights_that_are_asked_for_suffice(
    plane: ControlPlane, world: InstalledCluster, what: str
) -> None:
    """Whoever gets what the refusals name, and no more, comes to the end.

    Beside them only what RBAC wants of somebody who makes roles. An uninstall does not
    ask for the right that only the proof takes.
    """
    token = service_account_token(plane.rest, "default", what)
    user = f"system:serviceaccount:default:{what}"
    roles = [f"{kind}.rbac.authorization.k8s.io" for kind in ("roles", "clusterroles")]
    rights = {Right(verb, kind) for verb in ("escalate", "bind") for kind in roles}
    weak = Answered.connect(str(plane.kubeconfig(token, what)))
    act, strong = getattr(world, what), world.objects
    if what == "uninstall":
        assert world.install(webhook=SET, with_monitoring=True) == Exit.DONE
    options = {"webhook": SET, "with_monitoring": True}
    for _ in range(4):
        grant(plane.rest, user, [_granted(right) for right in sorted(rights)])
        world.objects = weak
        code = act(**(options if what == "install" else {"wait": True}))
        world.objects = strong
        if code != Exit.REFUSED:
            break
        rights |= set(_named(world.screen.text))
    assert code == Exit.DONE, world.screen.text
    assert (Right("patch", "pods", SYSTEM) in rights) == (what == "install")
    weak.close()


def _named(text: str) -> Iterator[Right]:
    """The rights in a refusal: ``you may not list nodes, get pods in kube-system;``."""
    listed = text.partition("you may not ")[2].partition("   refused")[0]
    for words in listed.split(", "):
        verb, resource, *where = words.split()
        yield Right(verb, resource, where[1] if where else "")


def _granted(right: Right) -> dict[str, object]:
    plural, _, group = right.resource.partition(".")
    return _rule(group, plural, verbs=[right.verb])


def _rule(
    group: str, *resources: str, verbs: list[str] | None = None
) -> dict[str, object]:
    return {
        "apiGroups": [group],
        "resources": list(resources),
        "verbs": verbs or EVERY_VERB,
    }


def test_the_command_line_all_the_way(
    plane: ControlPlane, world: InstalledCluster
) -> None:
    """With the real wiring: on a host without a control plane, on this API server."""
    assert world.label("gpu-1") is None
    path = plane.kubeconfig(plane.admin.token, "by-command")
    words = ["--kubeconfig", str(path), "--nodes", "gpu-1", "--dry-run"]
    words += ["--second-scheduler", "--scheduler-image", "ks:1"]
    ran = CliRunner().invoke(install, words)
    assert ran.exit_code == Exit.DONE, ran.output
    assert "+++ Deployment kube-system/gpushare-scheduler" in ran.output
    assert ran.output.rstrip().endswith(
        f"To install: gpusharectl install --kubeconfig {path} --nodes gpu-1 "
        "--second-scheduler --scheduler-image ks:1"
    )
    ran = CliRunner().invoke(uninstall, ["--kubeconfig", str(path), "--yes"])
    assert (ran.exit_code, ran.output.splitlines()[-1]) == (
        Exit.DONE,
        "Nothing of gpushare is installed here.",
    )


def test_one_command_at_a_time(world: InstalledCluster) -> None:
    """A Lease that nobody renews is taken by the next command."""
    context = world.context()
    with hold_lease(context, "uninstall"), hold_lease(context, "install"):
        # On a busy machine the first one may come to renew it meanwhile.
        assert world.clock.now_s >= LASTS_S
        holder = there(world, LEASE)["spec"]["holderIdentity"]
        assert holder.startswith("install on ")
    assert world.objects.get(LEASE) is None


def test_settings_are_members_of_lists(world: InstalledCluster) -> None:
    """What is taken away is gone; what ``kubectl set env`` wrote is another's field."""
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    path = "/spec/template/spec/containers/0/env/-"
    total = {"name": "TOTAL_GPU_MEMORY", "value": "16000"}
    step = {"op": "add", "path": path, "value": total}
    world.objects.json_patch(DEPLOYMENT, [step])
    assert world.install(webhook=SET) == Exit.DONE, world.screen.text
    assert settings(world)["TOTAL_GPU_MEMORY"] == "16000"
    assert settings(world)["GPUSHARE_VOID"] == "on"
    assert world.install(webhook=LESS) == Exit.DONE, world.screen.text
    assert settings(world)["TOTAL_GPU_MEMORY"] == "16000"
    given = {"GPUSHARE_VOID", "GPUSHARE_SET_SCHEDULER", "GPUSHARE_BITFUSION_QUOTA"}
    assert not given & set(settings(world))
    assert "void" not in entries(world)
    plugin = Ref("apps/v1", "DaemonSet", "gpushare-device-plugin", SYSTEM)
    assert "GPUSHARE_BITFUSION_QUOTA" not in str(there(world, plugin)["spec"])


def test_what_cert_manager_has_written_stays(world: InstalledCluster) -> None:
    """Neither its annotation nor its authorities nor its Secret are touched."""
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    serve_kinds(world.objects, CERT_MANAGER)
    for ref in CONFIGURATIONS:
        world.objects.merge(ref, {"metadata": {"annotations": INJECTED}})
    ours, secret = bundles(world), there(world, SECRET)["data"]
    # Also before cert-manager has come round to it.
    assert world.install() == Exit.DONE, world.screen.text
    assert bundles(world) == ours
    authority = make_authority(world.now).certificate_pem
    before = {base64.b64encode(authority).decode()}
    for ref in CONFIGURATIONS:
        _injected(world, ref, before)
    assert bundles(world) == before != ours
    world.now += timedelta(days=250)
    assert world.install() == Exit.DONE, world.screen.text
    assert "cert-manager makes the webhook's certificate" in world.screen.text
    assert bundles(world) == before
    assert there(world, SECRET)["data"] == secret
    for kind in ("Issuer", "Certificate"):
        for name in ("gpushare-webhook", "gpushare-webhook-ca"):
            there(world, Ref("cert-manager.io/v1", kind, name, SYSTEM))
    # Deleted in need, as docs/webhook.md tells: the Certificates say whose it is.
    for ref in CONFIGURATIONS:
        world.objects.delete(ref)
    assert world.install() == Exit.DONE, world.screen.text
    assert there(world, SECRET)["data"] == secret
    assert bundles(world) == {""}
    assert world.uninstall() == Exit.DONE, world.screen.text
    assert not world.objects.list("cert-manager.io/v1", "Certificate")


def _injected(world: InstalledCluster, ref: Ref, authorities: set[str]) -> None:
    """Write authorities as cert-manager does, so that they are no fields of ours."""
    (text,) = authorities
    numbers = range(len(there(world, ref)["webhooks"]))
    paths = (f"/webhooks/{number}/clientConfig/caBundle" for number in numbers)
    replace_values(world, ref, dict.fromkeys(paths, text))


def test_a_trial_that_was_cut_off_is_finished(
    world: InstalledCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(apply, "probe_webhook", interrupted)
        assert world.install(webhook=WANTED) == Exit.STOPPED
    assert is_narrowed(there(world, CONFIGURATIONS[0]))
    assert world.install() == Exit.DONE, world.screen.text
    assert_not_narrowed(world)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_webhook_that_cannot_be_reached_is_not_asked(
    plane: ControlPlane, world: InstalledCluster, objects: Answered
) -> None:
    """In the API server's own words; what was asked for the trial goes again.

    Meanwhile pods with cards are made as if there were none of it.
    """
    objects.lost = True
    asking = pod("asking", "default", units=4, cores=1)
    where = "/api/v1/namespaces/default/pods"
    pods: list[Json] = []

    def look() -> None:
        narrow = world.objects.get(CONFIGURATIONS[0])
        if narrow is not None and not pods:
            assert all(is_narrowed(there(world, ref)) for ref in CONFIGURATIONS)
            pods.append(plane.rest.must("POST", where, asking))
        step()

    step, world.nodes.step = world.nodes.step, look
    # On a clock that only pauses move: a dozen tries, instead of sixty.
    world.clock.patience = partial(world.clock.patience, 12.0)
    assert world.install(webhook=WANTED) == Exit.STOPPED
    assert pods
    text = " ".join(world.screen.text.split())
    assert 'failed calling webhook "pods.vcuda.baidu.com"' in text
    assert "Stopped at the webhook's configurations: the webhook's pods" in text
    assert "does not call it, so pods are created as before" in text
    assert (
        f"To go on: open port {names.WEBHOOK_PORT} of the pods to the control plane, "
        "then: gpusharectl install --nodes gpu-1 --with-webhook"
    ) in text
    assert any("failed calling" in wait.what for wait in world.screen.waits)
    assert world.objects.get(Ref("v1", "Pod", NAME, "default")) is None
    assert not any(world.objects.get(ref) for ref in CONFIGURATIONS)
    there(world, DEPLOYMENT)
    objects.lost = False
    assert world.install() == Exit.DONE, world.screen.text
    assert_not_narrowed(world)


def test_a_secret_is_written_over_what_was_seen_alone(world: InstalledCluster) -> None:
    """The API server holds to the version, and to who was first where there is none."""
    first, second = (
        GuardedWriter(world.objects, {SECRET: world.objects.get(SECRET)})
        for _ in range(2)
    )
    first.put(made(b"1"))
    with pytest.raises(InstallError):
        second.put(made(b"2"))
    late = GuardedWriter(world.objects, {SECRET: world.objects.get(SECRET)})
    first.put(made(b"3"))
    with pytest.raises(InstallError):
        late.put(made(b"4"))
    stale = made(b"5")
    seen = there(world, SECRET)["metadata"]
    stale["metadata"]["resourceVersion"] = seen["resourceVersion"]
    world.objects.merge(SECRET, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        world.objects.apply(stale)
    assert secret_files(there(world, SECRET)) == secret_files(made(b"3"))
    # A label of somebody's is no reason to give way.
    first.put(made(b"6"))
    secret = there(world, SECRET)
    assert secret_files(secret) == secret_files(made(b"6"))
    assert secret["metadata"]["labels"]["a"] == "b"


def made(content: bytes) -> Json:
    return certificate_secret(dict.fromkeys(("ca.crt", "tls.crt", "tls.key"), content))


def test_the_trial_before_the_real_webhook(plane: ControlPlane, tmp_path: Path) -> None:
    """It is answered; and of nobody else's pods is anything asked, whoever is down."""
    config = plane.kubeconfig(plane.admin.token, "trial")
    wrong = pod("wrong", units=4, cores=150)
    with raised(plane, tmp_path) as gate:
        objects = ApiObjects.connect(str(config))
        assert probe_webhook(objects).reached is True
        assert gate.post(wrong)[0] == 400
        alone = replace(
            gate, configurations=[narrow_to_probe(body) for body in gate.configurations]
        )
        alone.register()
        wait_until(lambda: gate.post(wrong)[0] == 201, "the narrowed ones to count")
        assert probe_webhook(objects).reached is True
        gate.webhook.stop()
        trial = probe_webhook(objects)
        assert trial.reached is False
        assert 'failed calling webhook "pods.vcuda.baidu.com"' in trial.words
        gate.admitted(wrong)
        objects.close()
