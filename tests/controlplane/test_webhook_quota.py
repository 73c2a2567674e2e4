"""Quotas and limits hold for what pods have become: seed 004's 50 of 100."""

from collections.abc import Iterator

import pytest

from tests.controlplane.bitfusionpods import (
    ALL,
    BY_PERCENT,
    GPU,
    NAMESPACE,
    QUOTA,
    quota,
    share,
)
from tests.controlplane.gate import (
    Gate,
    asking,
    container,
    limits_of,
    raised,
    space_named,
)
from tests.controlplane.world import card_node
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import CORE, MEMORY, sweep
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

MIB = f"{MEMORY}-mib"
DESCRIBED = ["Resource", "Used", "Hard"]


OPTIONS = {"theirs": (f"requests.{GPU}", "on"), "ours": (f"requests.{CORE}", "off")}
"""What a quota names, and the option by which pods keep Bitfusion's own name."""


@pytest.fixture(scope="module", params=["theirs"])
def shared(
    plane: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Gate, str]]:
    """The webhook with its option, and what a quota of pods for Bitfusion names."""
    resource, kept = OPTIONS[request.param]
    folder = tmp_path_factory.mktemp("webhook-quota")
    settings = {
        "TOTAL_GPU_MEMORY": "16000",
        "GPUSHARE_BITFUSION_QUOTA": kept,
        "GPUSHARE_QUOTAS": "on",
    }
    with (
        space_named(plane, NAMESPACE),
        plane.start_controller_manager(["resourcequota-controller"]),
        raised(plane, folder, **settings) as gate,
    ):
        yield gate.at(NAMESPACE), resource


@pytest.fixture
def gate(shared: tuple[Gate, str]) -> Iterator[Gate]:
    gate, _ = shared
    yield gate
    sweep(gate.rest)
    for kind in ("resourcequotas", "limitranges"):
        gate.rest.must("DELETE", f"/api/v1/namespaces/{NAMESPACE}/{kind}")


def described(gate: Gate) -> list[str]:
    """Give the last line of ``kubectl describe quota``, word by word."""
    done = gate.kubectl("describe", "quota", "bitfusion-quota")
    assert done.returncode == 0, done.stderr
    head, _, *rows = (line.split() for line in done.stdout.strip().splitlines()[2:])
    assert head == DESCRIBED
    return rows[-1]


def half(name: str, percent: int = 50) -> Json:
    made = asking(container(share(percent)), annotations=ALL)
    made["metadata"]["name"] = name
    return made


@pytest.mark.parametrize("shared", OPTIONS, indirect=True)
def test_fifty_of_a_hundred(gate: Gate, shared: tuple[Gate, str]) -> None:
    """As the seed shows it; who would go over it hears the API server's own words."""
    _, resource = shared
    text = QUOTA.replace(f"requests.{GPU}", resource)
    assert gate.kubectl("apply", "-f", "-", stdin=text).returncode == 0
    wait_until(lambda: described(gate), "quota", accept=[resource, "0", "100"].__eq__)
    done = gate.kubectl("create", "-f", "-", stdin=BY_PERCENT)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: described(gate), "use", accept=[resource, "50", "100"].__eq__)
    over = gate.kubectl("create", "-f", "-", stdin=half("over", 51))
    assert over.returncode != 0
    assert over.stderr.strip().endswith(
        'pods "over" is forbidden: exceeded quota: bitfusion-quota, '
        f"requested: {resource}=51, used: {resource}=50, limited: {resource}=100"
    )
    assert gate.kubectl("create", "-f", "-", stdin=half("fits")).returncode == 0
    wait_until(lambda: described(gate), "both", accept=[resource, "100", "100"].__eq__)
    gate.kubectl("delete", "pod", "fits", "--now")
    wait_until(lambda: described(gate), "one", accept=[resource, "50", "100"].__eq__)


def bound(gate: Gate, cpu: str, **limits: dict[str, str]) -> None:
    """Set limits of containers, and wait until they hold, as one without GPUs shows.

    ``cpu`` is the default of this test alone: the API server goes on using the limits
    of the test before for a while after they were deleted.
    """
    default = {"cpu": cpu, **limits.pop("default", {})}
    one = {"type": "Container", "default": default, **limits}
    body = {"metadata": {"name": "bounds"}, "spec": {"limits": [one]}}
    gate.rest.must("POST", f"/api/v1/namespaces/{NAMESPACE}/limitranges", body)
    wait_until(
        lambda: default_cpu(gate.admitted(asking(container()))),
        "limits to hold",
        accept=cpu.__eq__,
    )


def default_cpu(a_pod: Json) -> str | None:
    limits: dict[str, str] = a_pod["spec"]["containers"][0]["resources"].get(
        "limits", {}
    )
    return limits.get("cpu")


def test_limits_hold_for_what_the_pod_has_become(gate: Gate) -> None:
    """Q2: nobody gets round them by asking in Bitfusion's words.

    The default is there because the API server would else give the most to everybody.
    """
    bound(gate, "1", max={CORE: "40"}, default={CORE: "0"})
    assert limits_of(gate.admitted(asking(container())))[CORE] == "0"
    told = gate.denied(half("half"))
    assert f"maximum {CORE} usage per Container is 40, but limit is 50" in told
    assert limits_of(gate.admitted(half("less", 40)))[CORE] == "40"


def test_limits_of_units_hold_for_memory_in_mib(gate: Gate) -> None:
    """The default of 0 units, which the API server adds before, does not contradict."""
    bound(gate, "2", max={MEMORY: "24"}, default={MEMORY: "0"})
    asked = limits_of(gate.admitted(asking(container({MIB: "5000"}))))
    assert asked[MEMORY] == "20"
    assert MIB not in asked
    told = gate.denied(asking(container({MIB: "8192"})))
    assert f"maximum {MEMORY} usage per Container is 24, but limit is 32" in told


def test_defaults_of_a_namespace_come_first(gate: Gate) -> None:
    """A default of memory is a request for a card, and gets its core from us."""
    bound(gate, "3", default={MEMORY: "4"})
    made = gate.admitted(asking(container({"cpu": "1"})))
    asked = limits_of(made)
    assert (asked[MEMORY], asked[CORE]) == ("4", "1")


def hold_to(gate: Gate, resource: str, number: int) -> None:
    """Set a quota and wait until it counts."""
    gate.rest.must(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/resourcequotas",
        quota("bitfusion-quota", resource, number),
    )
    zero = [resource, "0", str(number)]
    wait_until(lambda: described(gate), "quota", accept=zero.__eq__)


def test_the_memory_of_whole_cards_is_counted(gate: Gate) -> None:
    """Of the cluster's smallest card, in place of none, or of less than it holds."""
    card_node(gate.rest, "edge", 96, 29)
    hold_to(gate, f"requests.{MEMORY}", 60)
    whole = asking(container({CORE: 100}))
    full = {MEMORY: "29", CORE: "100"}
    wait_until(
        lambda: limits_of(gate.admitted(whole)),
        "the card to be known",
        accept=full.__eq__,
    )
    gate.admitted(whole, dry_run=False)
    less = asking(container({MEMORY: 1, CORE: 100}))
    less["metadata"]["name"] = "less"
    assert limits_of(gate.admitted(less, dry_run=False)) == full
    whole["metadata"]["name"] = "another"
    assert f"exceeded quota: bitfusion-quota, requested: requests.{MEMORY}=29" in (
        gate.denied(whole)
    )
