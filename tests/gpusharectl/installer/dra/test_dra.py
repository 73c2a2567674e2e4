"""install --dra and --no-dra: the order, who is trusted, what is refused, what goes."""

import base64

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref
from gpusharectl.installer.dra.apply import find_unanswered
from gpusharectl.installer.dra.objects import (
    CLASS,
    CONFIGURATION,
    InstalledDra,
    judge_dra,
)
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.nodes.facts import survey_node
from gpusharectl.installer.options import InstallOptions, WebhookOptions
from gpusharectl.installer.progress import Exit
from gpusharectl.installer.survey import ClusterFacts, InstalledParts
from tests.builders import allocation_json, claim_json
from tests.gpusharectl.installer.fake_objects import copied
from tests.gpusharectl.installer.installed_cluster import (
    AUTHORITY,
    CONTROL_PLANE,
    EVERY_KIND,
    InstalledCluster,
    authority_of,
    node,
    slice_of,
)

PLUGIN = Ref("apps/v1", "DaemonSet", "gpushare-device-plugin", "kube-system")
EXTENDER = Ref("apps/v1", "DaemonSet", "gpushare-extender", "kube-system")
PLUGIN_POD = Ref("v1", "Pod", f"{PLUGIN.name}-gpu-1", PLUGIN.namespace)
SLICE = Ref.of(slice_of("gpu-1"))


@pytest.fixture
def on(world: InstalledCluster) -> InstalledCluster:
    """A cluster whose cards are offered to claims."""
    assert world.install(dra=True) == Exit.DONE, world.screen.text
    world.objects.writes.clear()
    return world


def offers(world: InstalledCluster) -> bool:
    """Whether the device plugin is told to offer cards to claims."""
    return world.settings(PLUGIN.name).get("GPUSHARE_DRA") == "on"


def trusted(world: InstalledCluster) -> bytes:
    """The authorities of those that the API server asks; empty if it asks nobody."""
    body = world.objects.get(CONFIGURATION) or {"webhooks": []}
    bundles = [one["clientConfig"]["caBundle"] for one in body["webhooks"]]
    return b"".join(map(base64.b64decode, bundles))


def in_this_order(world: InstalledCluster, *writes: str) -> None:
    made = world.objects.writes
    assert [one for one in made if one in writes] == list(writes), made


def test_cards_are_offered_only_while_the_arbiter_is_asked(
    world: InstalledCluster,
) -> None:
    """The extender first, then the webhook, then the plugins; TLS comes along."""
    assert world.install(dra=True) == Exit.DONE, world.screen.text
    in_this_order(
        world,
        f"apply {CLASS}",
        f"apply {EXTENDER}",
        f"apply {CONFIGURATION}",
        f"apply {PLUGIN}",
    )
    text = world.screen.text
    assert "DRA needs the certificates of --tls, so TLS is switched on too" in text
    assert "API server of cp asks the extender there" in text
    assert "gpu-1: cards are offered to claims too" in text
    assert trusted(world) == authority_of("cp")
    (container,) = world.spec("gpushare-extender")["containers"]
    env = {one["name"] for one in container["env"]}
    assert {"GPUSHARE_CLAIMS_LISTEN", "GPUSHARE_TLS_CERT"} <= env


def test_later_installs_keep_it_and_change_nothing(on: InstalledCluster) -> None:
    before = on.picture(EVERY_KIND)
    assert on.install(nodes=()) == Exit.DONE
    assert "cards stay offered to ResourceClaims (DRA); --no-dra" in on.screen.text
    assert on.objects.writes == []
    assert on.install(image="gpushare:2") == Exit.DONE
    assert offers(on)
    assert "cards are offered to ResourceClaims too" not in on.screen.text
    assert on.install(image="gpushare:0.1.0", nodes=()) == Exit.DONE
    assert on.picture(EVERY_KIND).keys() == before.keys()


def test_a_dry_run_shows_it(world: InstalledCluster) -> None:
    before = world.picture(EVERY_KIND)
    assert world.install(dra=True, dry_run=True) == Exit.DONE
    text = world.screen.text
    assert "- cards are offered to ResourceClaims too" in text
    assert f"+++ {CONFIGURATION}" in text
    assert "name: GPUSHARE_DRA\n" in text
    assert text.endswith(
        "To install: gpusharectl install --nodes gpu-1 --tls --dra --yes"
    )
    assert world.picture(EVERY_KIND) == before


def test_an_arbiter_that_does_not_answer(world: InstalledCluster) -> None:
    """Nobody is asked and nothing offered; classic pods share; then it goes on."""
    world.objects.arbiters["cp"] = authority_of("another")
    assert world.install(dra=True) == Exit.STOPPED
    assert "the arbiter on cp: certificate verify failed" in world.screen.text
    assert trusted(world) == b""
    assert world.objects.get(PLUGIN) is None
    world.objects.arbiters["cp"] = authority_of("cp")
    assert world.install(dra=True) == Exit.DONE
    assert offers(world)


def test_what_was_begun_goes_without_the_option(world: InstalledCluster) -> None:
    """A first --dra that stopped before any card was offered is no setting."""
    assert world.install() == Exit.DONE
    before, spec = world.picture(EVERY_KIND), world.spec("gpushare-extender")
    world.objects.arbiters.clear()
    assert world.install(dra=True) == Exit.STOPPED
    assert world.objects.get(CLASS)
    assert world.install(tls=False) == Exit.DONE, world.screen.text
    assert "what an earlier install has begun of DRA" in world.screen.text
    assert world.picture(EVERY_KIND).keys() == before.keys()
    assert world.spec("gpushare-extender") == spec


def test_it_is_taken_back_in_the_opposite_order(on: InstalledCluster) -> None:
    """TLS stays: it is a setting of its own."""
    assert on.install("y", dra=False) == Exit.DONE, on.screen.text
    in_this_order(
        on,
        f"apply {PLUGIN}",
        f"delete {SLICE}",
        f"delete {CONFIGURATION}",
        f"apply {EXTENDER}",
        f"delete {CLASS}",
    )
    text = on.screen.text
    assert "- cards are no longer offered to ResourceClaims" in text
    assert "1 ResourceSlice deleted" in text
    left = on.picture(EVERY_KIND)
    assert on.install(dra=False) == Exit.DONE
    assert on.picture(EVERY_KIND) == left
    assert not offers(on)
    assert not [ref for ref in left if "dra" in ref.name or "claims" in ref.name]
    assert "/etc/vcuda/tls" in str(on.spec("gpushare-extender"))


def test_the_asking_goes_when_no_plugin_offers_cards(on: InstalledCluster) -> None:
    """A pod that was not replaced yet writes its slice again: run again, it waits."""
    assert on.objects.delete(PLUGIN_POD)
    on.nodes.stuck.add(PLUGIN_POD.name)
    for _ in range(2):
        assert on.install(dra=False) == Exit.STOPPED
        assert "gpushare-device-plugin on gpu-1" in on.screen.text
        assert trusted(on) == authority_of("cp")
    on.nodes.stuck.clear()
    assert on.objects.delete(PLUGIN_POD)
    assert on.install(dra=False) == Exit.DONE, on.screen.text
    assert trusted(on) == b""


def test_a_dry_run_shows_what_goes(on: InstalledCluster) -> None:
    assert on.install(dra=False, dry_run=True) == Exit.DONE
    assert f"- {CLASS}" in on.screen.text
    assert f"- {CONFIGURATION}" in on.screen.text
    assert on.objects.writes == []


def used_claim(name: str = "claim", node: str = "gpu-1") -> Json:
    """A claim of ours that a pod uses."""
    body = claim_json(name, allocation_json(node=node))
    body |= {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    users = [{"resource": "pods", "name": "trainer", "uid": "u1"}]
    body["status"]["reservedFor"] = users
    return body


def test_claims_in_use_forbid_it(on: InstalledCluster) -> None:
    """kubelet could not end their pods; ``--force`` is for who knows that."""
    body = used_claim()
    on.objects.create(body)
    idle = used_claim("idle")
    del idle["status"]["reservedFor"]
    on.objects.create(idle)
    before = on.picture(EVERY_KIND)
    named = f"{Ref.of(body).namespace}/claim on gpu-1, used by trainer"
    for refused in (on.install(dra=False), on.uninstall()):
        assert refused == Exit.REFUSED
        assert f"pods use ResourceClaims with cards: {named}. Without" in on.screen.text
        assert "To go on: delete these pods first, or:\n  gpusharectl" in on.screen.text
        assert " --force" in on.screen.text
    assert on.picture(EVERY_KIND) == before
    assert on.install(dra=False, force=True) == Exit.DONE
    assert not offers(on)


def set_driver(world: InstalledCluster, value: str) -> None:
    """As by ``kubectl set env``; with off, pods with claims end by themselves."""
    body = copied(world.objects.get(PLUGIN) or {})
    (container,) = body["spec"]["template"]["spec"]["containers"]
    others = [one for one in container["env"] if one["name"] != "GPUSHARE_DRA"]
    container["env"] = [*others, {"name": "GPUSHARE_DRA", "value": value}]
    world.objects.apply(body)
    world.objects.writes.clear()


def test_claims_are_in_use_also_without_the_driver(on: InstalledCluster) -> None:
    """Switched off by hand, or by an install that was cut off: their pods still run."""
    set_driver(on, "off")
    on.objects.create(used_claim())
    on.objects.writes.clear()
    for refused in (on.install(dra=False), on.install(), on.uninstall()):
        assert refused == Exit.REFUSED
        assert "claim on gpu-1, used by trainer. Without" in on.screen.text
    assert on.objects.writes == []
    assert on.install() == Exit.REFUSED
    assert "install --nodes gpu-1 --tls --no-dra --force --yes" in on.screen.text
    assert on.uninstall(force=True) == Exit.DONE
    assert "gpu-1: /var/lib/vcuda stays" in on.screen.text


@pytest.mark.parametrize("understood", [True, False])
def test_a_forced_uninstall_leaves_their_files(
    on: InstalledCluster, *, understood: bool
) -> None:
    """On all nodes where it is not known which one it is."""
    body = used_claim()
    if not understood:
        del body["status"]["allocation"]["devices"]["results"][0]["pool"]
    on.objects.create(body)
    assert on.uninstall(force=True) == Exit.DONE, on.screen.text
    assert "gpu-1: /var/lib/vcuda stays" in on.screen.text
    assert not [one for one in on.objects.writes if "gpushare-clean" in one]
    assert on.objects.get(CLASS) is None


def test_a_claim_that_is_not_understood_counts_as_used(on: InstalledCluster) -> None:
    body = used_claim()
    del body["status"]["allocation"]["devices"]["results"][0]["pool"]
    on.objects.create(body)
    assert on.install(dra=False) == Exit.REFUSED
    assert "claim, which is not understood: status.allocation" in on.screen.text


def test_an_uninstall_takes_it_in_the_opposite_order(on: InstalledCluster) -> None:
    assert on.uninstall() == Exit.DONE, on.screen.text
    in_this_order(
        on,
        f"delete {PLUGIN}",
        f"delete {SLICE}",
        f"delete {CONFIGURATION}",
        f"delete {EXTENDER}",
        f"delete {CLASS}",
    )
    assert on.ours() == []


def test_set_by_hand_it_is_not_taken_for_off(on: InstalledCluster) -> None:
    """Applying keeps what another tool has set; the API server must go on asking."""
    apply = on.objects.apply

    def keeping(body: Json, *, dry_run: bool = False) -> Json:
        if Ref.of(body) == PLUGIN:
            return apply(on.objects.get(PLUGIN) or body, dry_run=dry_run)
        return apply(body, dry_run=dry_run)

    on.objects.apply = keeping
    assert on.install(dra=False) == Exit.STOPPED
    assert "still has GPUSHARE_DRA=on, set by somebody else" in on.screen.text
    assert "env daemonset/gpushare-device-plugin GPUSHARE_DRA-" in on.screen.text
    assert trusted(on) == authority_of("cp")


def test_hosts_only_is_not_enough(on: InstalledCluster) -> None:
    """It may renew a host's authority, and the API server trusts the one before."""
    assert on.install(nodes=(), host_only=True) == Exit.DONE
    assert "afterwards also: gpusharectl install (docs/dra.md)" in on.screen.text


def test_a_second_scheduler_with_the_driver_on(world: InstalledCluster) -> None:
    """Somebody has set the variable; an install for another reason does not keep it."""
    second = {"second_scheduler": True, "scheduler_image": "kube-scheduler:v1.36.3"}
    assert world.install(**second) == Exit.DONE, world.screen.text
    set_driver(world, "on")
    assert world.install(**second) == Exit.REFUSED
    assert "(GPUSHARE_DRA=on), and with a second scheduler" in world.screen.text
    assert "To go on: install with --no-dra" in world.screen.text
    assert world.objects.writes == []
    assert world.install(dra=False, **second) == Exit.DONE, world.screen.text
    assert not offers(world)


def test_a_driver_that_offers_nothing_is_told(world: InstalledCluster) -> None:
    """Cards are shared by classic pods all the same."""
    world.nodes.driver_works = False
    assert world.install(dra=True) == Exit.STOPPED
    assert "gpu-1: no ResourceSlice yet. Its device plugin" in world.screen.text
    assert "gpu-1: 1 card, 29 units" in world.screen.text
    world.objects.create(slice_of("cp"))
    assert world.install(nodes=("cp", "gpu-1")) == Exit.DONE
    assert "cp: cards are offered to claims too" in world.screen.text
    assert "gpu-1: no ResourceSlice yet" in world.screen.text


REFUSED = {
    "too old": ("v1.35.4", "DRA needs Kubernetes 1.36 or newer"),
    "not served": ("v1.36.3", "which serves resource.k8s.io/v1, and this is 1.36.3"),
    "not shared": ("v1.36.3", "feature gate DRAConsumableCapacity is off"),
    "elsewhere": ("v1.36.3", "scheduler.conf names https://lb:6443"),
    "no right": ("v1.36.3", "you may not create resourceslices.resource.k8s.io"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_where_it_cannot_be_nothing_is_changed(
    world: InstalledCluster, case: str
) -> None:
    version, words = REFUSED[case]
    world.objects._version = version
    if case == "not served":
        world.objects.unserved |= {"DeviceClass", "ResourceSlice"}
    if case == "not shared":
        world.objects.shares = False
    if case == "elsewhere":
        world.scheduler.ill["elsewhere"] = words
    if case == "no right":
        world.objects.denied.add("create resourceslices.resource.k8s.io")
    before = dict(world.objects.kept)
    assert world.install(dra=True) == Exit.REFUSED
    assert words in world.screen.text
    assert world.objects.kept == before
    assert world.install() == Exit.DONE, world.screen.text


def test_no_tls_is_refused_while_it_is_on(on: InstalledCluster) -> None:
    assert on.install(tls=False) == Exit.REFUSED
    assert "DRA needs the certificates that --no-tls removes" in on.screen.text
    assert on.install(tls=False, dra=False) == Exit.DONE


def rights_of(on: InstalledCluster, *denied: str) -> str:
    on.objects.denied |= set(denied)
    assert on.install(dra=False) == Exit.REFUSED
    return on.screen.text


def test_rights_to_take_it_back_are_named_first(on: InstalledCluster) -> None:
    text = rights_of(on, "delete resourceslices.resource.k8s.io")
    assert "you may not delete resourceslices.resource.k8s.io" in text
    on.objects.denied.clear()
    text = rights_of(on, "delete deviceclasses.resource.k8s.io")
    assert "you may not delete deviceclasses.resource.k8s.io" in text
    assert on.objects.writes == []


def test_a_missing_right_is_named_once(on: InstalledCluster) -> None:
    """Also where the webhook needs it, too."""
    assert on.install(webhook=WebhookOptions(wanted=True)) == Exit.DONE
    on.objects.denied.add("create services")
    assert on.install() == Exit.REFUSED
    assert on.screen.text.count("create services in kube-system   refused") == 1
    assert "create services in kube-system, " not in on.screen.text


@pytest.fixture
def two(world: InstalledCluster) -> InstalledCluster:
    """A second control-plane host, whose Job reads its authority."""
    world.objects.create(node("cp-2", "10.0.0.8", labels={CONTROL_PLANE: ""}))
    for known in (world.objects.arbiters, world.scheduler.authorities):
        known["cp-2"] = authority_of("cp-2")
    return world


def test_all_hosts_are_trusted(two: InstalledCluster) -> None:
    """Also one that joins later, or has a new authority; one that left is not."""
    both = authority_of("cp") + authority_of("cp-2")
    assert two.install(dra=True) == Exit.DONE, two.screen.text
    assert trusted(two) == both
    did = two.scheduler.did
    assert did.index("look at cp-2") < did.index("apply on cp-2")
    two.objects.writes.clear()
    assert two.install(nodes=()) == Exit.DONE
    assert two.objects.writes == []
    for known in (two.objects.arbiters, two.scheduler.authorities):
        known["cp-2"] = authority_of("renewed")
    assert two.install(nodes=()) == Exit.DONE
    assert trusted(two) == authority_of("cp") + authority_of("renewed")
    assert two.install(nodes=(), dry_run=True) == Exit.DONE
    assert "a dry run does not look at cp-2: whether the API" in two.screen.text
    two.objects.delete(Ref("v1", "Node", "cp-2"))
    assert two.install(nodes=(), dry_run=True) == Exit.DONE
    assert f"+++ {CONFIGURATION}" in two.screen.text
    assert two.install(nodes=()) == Exit.DONE
    assert trusted(two) == authority_of("cp")


def test_a_host_that_writes_elsewhere_is_found_first(two: InstalledCluster) -> None:
    """Before anything is changed, by a Job that only reads."""
    before = two.picture(EVERY_KIND)
    two.scheduler.ill["cp-2"] = "scheduler.conf names https://lb:6443"
    assert two.install(dra=True) == Exit.STOPPED
    assert "on cp-2: scheduler.conf names https://lb:6443" in two.screen.text
    assert two.picture(EVERY_KIND) == before
    assert two.files.read(AUTHORITY) is None


def test_a_host_without_its_authority(two: InstalledCluster) -> None:
    two.scheduler.authorities["cp-2"] = b"\n"
    assert two.install(dra=True) == Exit.STOPPED
    assert "cp-2 has no authority in its folder of TLS files" in two.screen.text
    assert trusted(two) == b""


def test_who_is_waited_for(two: InstalledCluster) -> None:
    """A pod that is on its way; not one that would let in the API server alone."""
    assert two.install(dra=True) == Exit.DONE
    hosts = {"cp": authority_of("cp"), "cp-2": authority_of("cp-2")}
    assert find_unanswered(two.objects, hosts) == []
    pod = Ref("v1", "Pod", "gpushare-extender-cp-2", "kube-system")
    body = two.objects.get(pod) or {}
    two.objects.arbiters.clear()
    env = body["spec"]["containers"][0]["env"]
    env.append({"name": "GPUSHARE_CLAIMS_TLS_CLIENT_CA", "value": "/ca.crt"})
    two.objects.delete(pod)
    two.objects.create(body)
    (left,) = find_unanswered(two.objects, hosts)
    assert str(left) == "the arbiter on cp: certificate verify failed"
    two.objects.delete(pod)
    assert "the extender on cp-2: its pod" in map(
        str, find_unanswered(two.objects, hosts)
    )
    (left, _) = find_unanswered(two.objects, {"cp": b"no PEM", "cp-2": b""})
    assert left.who == "the arbiter on cp"


@pytest.mark.parametrize("back", ["install", "uninstall"])
def test_where_no_api_server_knows_claims(world: InstalledCluster, back: str) -> None:
    """Somebody has set the variable there; the driver has stayed off."""
    world.objects.unserved |= {"DeviceClass", "ResourceSlice", "ResourceClaim"}
    assert world.install() == Exit.DONE
    body = world.objects.get(PLUGIN)
    assert body is not None
    (container,) = body["spec"]["template"]["spec"]["containers"]
    container["env"].append({"name": "GPUSHARE_DRA", "value": "on"})
    world.objects.apply(body)
    assert world.install() == Exit.REFUSED
    assert "install with --no-dra" in world.screen.text
    done = world.install(dra=False) if back == "install" else world.uninstall()
    assert done == Exit.DONE, world.screen.text
    assert not offers(world)


@pytest.mark.parametrize(("servers", "refused"), [(1, []), (2, ["install without"])])
def test_k3s_with_several_servers(servers: int, refused: list[str]) -> None:
    """One command reads one server's authority."""
    nodes = [
        survey_node(node(f"s{number}", "10.0.0.1", labels={CONTROL_PLANE: ""}))
        for number in range(servers)
    ]
    installed = InstalledParts(tls=True)
    facts = ClusterFacts("v1.36.3", Flavour.K3S, tuple(nodes), installed=installed)
    found = judge_dra(facts, InstallOptions(dra=True), InstalledDra(shares=True))
    assert [one.remedy[: len("install without")] for one in found] == refused
