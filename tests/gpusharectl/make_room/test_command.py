"""The command line: what is asked, shown and printed as data, and the exit codes."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from gpusharectl.commands import main
from gpusharectl.cordon import Order, carry_out_order
from gpusharectl.make_room.command import carry_out_plan
from gpusharectl.make_room.evict import Eviction
from gpusharectl.make_room.proposal import Proposal, draw_proposal
from gpusharectl.make_room.situation import read_inputs
from tests.gpusharectl.golden import assert_as_kept, assert_data_as_kept, drawn
from tests.gpusharectl.make_room.small_cluster import SmallCluster, split_cluster
from tests.gpusharectl.make_room.test_evict import asked, planned


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with split_cluster(tmp_path) as found:
        yield found


def run(cluster: SmallCluster, *words: str, answer: str = "") -> Result:
    where = ["--kubeconfig", cluster.kubeconfig]
    return CliRunner().invoke(main, ["make-room", *words, *where], input=answer)


def test_the_screen_of_a_plan(cluster: SmallCluster) -> None:
    """Bars before and after, who moves where, and the command that does it."""
    view, again = (
        read_inputs(cluster.access, asked(cluster), ()),
        "gpusharectl make-room big",
    )
    found = Proposal(asked(cluster), view, planned(cluster), again)
    assert_as_kept(
        "make-room-plan", drawn(lambda console: draw_proposal(console, found))
    )


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
        pytest.param(["--memory", "12"], 0, "No moves are needed: it fits", id="fits"),
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
        pytest.param(
            ["--memory", "0", "--cores", "0"], 2, "are both 0", id="asks-nothing"
        ),
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


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(
            {"schedulingGates": [{"name": "later"}]},
            "default/odd has scheduling gates (later)",
            id="gates",
        ),
        pytest.param({}, "default/odd has ended, or is terminating", id="leaving"),
    ],
)
def test_no_room_is_made_for_a_pod_that_does_not_wait_for_it(
    cluster: SmallCluster, spec: dict[str, Any], said: str
) -> None:
    """The answer says what it is."""
    cluster.pod("odd", 20, **spec)
    if not spec:
        cluster.bind(cluster.get("odd"), "n2", "C")
        cluster.leave("odd")
    found = run(cluster, "odd")
    assert said in found.output
    assert found.exit_code == 1


def test_sigterm_ends_it_as_ctrl_c_does(cluster: SmallCluster) -> None:
    """With its cards open."""

    def say(text: str) -> None:
        if "evicted" in text:
            signal.raise_signal(signal.SIGTERM)

    plan, before = planned(cluster), signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run = Eviction(cluster.access, asked(cluster), (), say, cluster.patience)
    try:
        with pytest.raises(KeyboardInterrupt):
            carry_out_plan(run, plan)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert cluster.cordon() == ""


def test_pods_that_a_budget_protects_are_counted(cluster: SmallCluster) -> None:
    """The planner leaves them out; a pod that could be evicted later stays movable."""
    for name in ("ten", "five", "other"):
        cluster.budget(name, 0)
    found = run(cluster, "big")
    assert "3 pods that a PodDisruptionBudget protects now" in found.output
    assert found.exit_code == 3


def test_a_cordoned_card_is_named(cluster: SmallCluster) -> None:
    """A run that was killed may have left it."""
    carry_out_order(cluster.access, Order.CORDON, "n1", ["A", "B"])
    carry_out_order(cluster.access, Order.CORDON, "n2", ["C"])
    found = run(cluster, "--memory", "14")
    assert "gpusharectl uncordon-card n1 0" in found.output


def test_a_no_evicts_nothing(cluster: SmallCluster) -> None:
    """Neither does a question that nobody can answer."""
    for answer in ("n\n", ""):
        found = run(cluster, "big", "--evict", answer=answer)
        assert "Evict this pod?" in found.output
        assert found.exit_code == 1
    assert cluster.cards_of("ten") == ("A",)


def test_without_an_extender_nothing_is_asked_or_evicted(cluster: SmallCluster) -> None:
    """The plan is shown all the same."""
    cluster.extender(ready=False)
    found = run(cluster, "big", "--evict", "--yes")
    assert "Plan: 1 move" in found.output
    assert "nothing is evicted: no extender pod is ready" in found.output
    assert found.exit_code == 1
    assert (cluster.cards_of("ten"), cluster.cordon()) == (("A",), "")


def test_data_has_the_plan_and_its_outcome(cluster: SmallCluster) -> None:
    """Progress goes to standard error."""
    before = signal.getsignal(signal.SIGTERM)
    found = run(cluster, "big", "-o", "json", "--max-moves", "2")
    data = orjson.loads(found.stdout.replace(cluster.kubeconfig, "FILE"))
    data["moves"][0]["uid"] = "made by the API server"
    assert_data_as_kept("make-room-plan", data)
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
