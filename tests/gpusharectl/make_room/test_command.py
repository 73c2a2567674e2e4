"""The command line: what is asked, shown and printed as data, and the exit codes."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from gpushare.domain.model import NodeName
from gpusharectl.commands import main
from gpusharectl.cordon import Order, carry_out
from gpusharectl.make_room.proposal import Proposal
from gpusharectl.make_room.render import draw
from gpusharectl.make_room.situation import Asked, look
from tests.builders import card
from tests.gpusharectl.golden import assert_as_kept, drawn
from tests.gpusharectl.make_room.small_cluster import SmallCluster, small_cluster
from tests.gpusharectl.make_room.test_evict import asked, planned


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    """Two nodes of 29 units a card; "big" waits for 20, and 31 are free on n1."""
    with small_cluster(tmp_path) as found:
        found.node("n1", card(0, uuid="A"), card(1, uuid="B"))
        found.node("n2", card(0, uuid="C"))
        found.place("ten", "n1", "A", 10)
        found.place("five", "n1", "A", 5)
        found.place("other", "n1", "B", 10, terminationGracePeriodSeconds=0)
        found.place("ds", "n2", "C", 20)
        found.bind(found.pod("bare", 2, owner=""), "n1", "B")
        found.pod("big", 20)
        yield found


def run(cluster: SmallCluster, *words: str, answer: str = "") -> Result:
    where = ["--kubeconfig", cluster.kubeconfig]
    return CliRunner().invoke(main, ["make-room", *words, *where], input=answer)


def test_the_screen_of_a_plan(cluster: SmallCluster) -> None:
    """Bars before and after, who moves where, and the command that does it."""
    view, again = look(cluster.access, asked(cluster), ()), "gpusharectl make-room big"
    found = Proposal(asked(cluster), view, planned(cluster), again)
    assert_as_kept("make-room-plan", drawn(lambda console: draw(console, found)))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["big"], 0, "Plan: 1 move; then it fits on n1 card 0.", id="plan"),
        pytest.param(
            ["--memory", "25", "--node", "n1", "--allow", "daemonsets"],
            0,
            "→ gpusharectl make-room --memory 25 --node n1 --allow daemonsets",
            id="next",
        ),
        pytest.param(["--memory", "12"], 0, "it fits on n1 now", id="fits"),
        pytest.param(["--memory", "30"], 3, "could hold it, even if empty", id="never"),
        pytest.param(
            ["--memory", "29", "--max-moves", "1"],
            3,
            "no plan of at most 1 move makes room",
            id="too-few-moves",
        ),
        pytest.param(
            ["--whole", "2", "--node", "n1"],
            3,
            "Not moved: 1 pod of DaemonSets, 1 pod without a controller.",
            id="who-stays",
        ),
        pytest.param(["--whole", "2"], 3, "Fragmentation is not what", id="not-in-sum"),
        pytest.param(["nope"], 1, "there is no pod default/nope", id="no-pod"),
        pytest.param(["ten"], 1, "default/ten is on n1 already", id="bound"),
        pytest.param(
            ["big", "--node", "n9"], 1, 'there is no node "n9"', id="no-such-node"
        ),
        pytest.param([], 2, "give either POD, or --memory or --whole", id="nothing"),
        pytest.param(["big", "--memory", "1"], 2, "give either POD", id="both"),
        pytest.param(["--cores", "5"], 2, "give --memory", id="no-memory"),
        pytest.param(["--memory", "1", "--cores", "150"], 2, "--whole", id="cores"),
        pytest.param(["a/b/c"], 2, "is not a pod", id="name"),
        pytest.param(["big", "--evict", "-o", "json"], 2, "give --yes", id="no-yes"),
    ],
)
def test_each_question_has_its_answer(
    cluster: SmallCluster, words: list[str], code: int, said: str
) -> None:
    """With the exit code that the help names."""
    found = run(cluster, *words)
    assert said in found.output
    assert found.exit_code == code


def test_pods_that_a_budget_protects_are_counted(cluster: SmallCluster) -> None:
    """The planner leaves them out; a pod that could be evicted later stays movable."""
    for name in ("ten", "five", "other"):
        cluster.budget(name, 0)
    found = run(cluster, "big")
    assert "3 pods that a PodDisruptionBudget protects now" in found.output
    assert found.exit_code == 3


def test_a_cordoned_card_is_named(cluster: SmallCluster) -> None:
    """A run that was killed may have left it."""
    carry_out(cluster.access, Order.CORDON, "n1", ["A", "B"])
    carry_out(cluster.access, Order.CORDON, "n2", ["C"])
    found = run(cluster, "--memory", "14")
    assert "gpusharectl uncordon-card n1 0" in found.output


def test_a_no_evicts_nothing(cluster: SmallCluster) -> None:
    """Neither does a question that nobody can answer."""
    for answer in ("n\n", ""):
        found = run(cluster, "big", "--evict", answer=answer)
        assert "Evict this pod?" in found.output
        assert found.exit_code == 1
    assert cluster.cards_of("ten") == ("A",)


def test_data_has_the_plan_and_its_outcome(cluster: SmallCluster) -> None:
    """Progress goes to standard error."""
    before = signal.getsignal(signal.SIGTERM)
    found = run(cluster, "big", "-o", "json", "--max-moves", "2")
    data = orjson.loads(found.stdout)
    assert (data["state"], data["why"], data["exact"]) == ("plan", None, True)
    assert data["fits_in_sum"]["node"] == "n1"
    (move,) = data["moves"]
    assert (move["name"], move["to"]) == (
        "ten",
        {"node": "n1", "cards": [{"uuid": "B", "index": 1}]},
    )
    cluster.budget("ten", 0)
    words = ("big", "--evict", "--yes", "--timeout", "0.1", "-o", "json")
    stopped = run(cluster, *words)
    data = orjson.loads(stopped.stdout)
    assert (data["state"], data["moves"][0]["name"]) == ("plan", "other")
    assert (data["done"], data["evicted"]) == (False, ["default/other"])
    assert data["outcome"].startswith("default/big still waits: ")
    assert data["code"] == stopped.exit_code == 3
    assert "cordoned" in stopped.stderr
    assert signal.getsignal(signal.SIGTERM) is before


def test_pods_stay_by_what_they_are(cluster: SmallCluster) -> None:
    """Each for a reason that the answer counts."""
    body = cluster.get("big")
    asks = Asked(asked(cluster).request, body)
    mark = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    cluster.place("job", "n2", "C", 1)
    cluster.annotate("other", mark)
    cluster.budget("five", 1)
    cluster.budget("five", 1, name="second")
    cluster.leave("ten")
    view = look(cluster.access, asks, ())
    assert dict(view.stay) == {
        "without a controller": 1,
        "of DaemonSets": 1,
        "of Jobs": 1,
        "with cluster-autoscaler.kubernetes.io/safe-to-evict=false": 1,
        "under several PodDisruptionBudgets": 1,
        "in termination": 1,
    }
    assert not view.situation.movable
    allowed = look(cluster.access, asks, ("jobs", "daemonsets"))
    assert len(allowed.situation.movable) == 2


HARD = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        pytest.param({}, "", id="none"),
        pytest.param(
            {"affinity": {"podAffinity": {HARD: [{}]}}},
            "required podAffinity",
            id="affinity",
        ),
        pytest.param(
            {"affinity": {"podAntiAffinity": {HARD: [{}]}}},
            "required podAntiAffinity",
            id="anti-affinity",
        ),
        pytest.param(
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            "topologySpreadConstraints",
            id="spreading",
        ),
        pytest.param(
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
            "",
            id="soft",
        ),
    ],
)
def test_a_rule_about_other_pods_keeps_a_pod_on_its_node(
    cluster: SmallCluster, rule: dict[str, Any], named: str
) -> None:
    """Elsewhere it may have no place; and of the waiting pod the rule is told."""
    cluster.place("ruled", "n2", "C", 1, **rule)
    view = look(cluster.access, Asked(asked(cluster).request, cluster.get("ruled")), ())
    (may_use,) = (
        one.may_use
        for one in view.situation.movable.values()
        if one.request.pod.name == "ruled"
    )
    assert (may_use(NodeName("n1")), may_use(NodeName("n2"))) == (not named, True)
    assert view.not_judged == named
    told = [text for text in view.guesses if f"The waiting pod has {named}." in text]
    assert len(told) == bool(named)


def test_a_pod_with_a_port_of_the_host_stays_on_its_node(cluster: SmallCluster) -> None:
    """Another node may have given the port to another pod."""
    body = cluster.get("big")
    body["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    view = look(cluster.access, Asked(asked(cluster).request, body), ())
    assert view.not_judged == "host ports"
