"""``migrate-quota``: the planned changes, and the command."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kube.cluster import Json
from gpushare.kube.errors import Forbidden, Unavailable
from gpushare.kube.objects import Ref
from gpusharectl import access
from gpusharectl.commands import main
from gpusharectl.migrate.quota import (
    QuotaChange,
    QuotaClash,
    QuotaRename,
    plan_quota_change,
)
from tests.gpusharectl.cluster_states import BITFUSION, CORE, MEMORY, quota
from tests.gpusharectl.installer.fake_objects import FakeObjects


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> FakeObjects:
    """A cluster of four quotas: two to move, one done, one without cards."""
    objects = FakeObjects()
    objects.create(quota("edge", hard={BITFUSION: "100", "pods": "9"}))
    objects.create(quota("research", hard={BITFUSION: "250"}))
    objects.create(quota("done", hard={CORE: "100"}))
    objects.create(quota("plain", hard={"pods": "10"}))
    objects.calls.clear()
    objects.writes.clear()
    reached = SimpleNamespace(objects=objects, kubeconfig="", context="")
    objects.host = "https://cluster"  # type: ignore[attr-defined]
    reached.close = lambda: None
    monkeypatch.setattr(access, "reach", lambda *_, **__: reached)
    return objects


def ran(*words: str) -> Result:
    return CliRunner().invoke(main, ["migrate-quota", *words])


def hard(objects: FakeObjects, namespace: str) -> dict[str, str]:
    body = objects.backdoor().get(Ref("v1", "ResourceQuota", "gpu", namespace))
    assert body is not None
    return dict(body["spec"]["hard"])


def test_all_namespaces(objects: FakeObjects) -> None:
    done = ran("--from", BITFUSION)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        f"edge/gpu: 100 of {CORE}",
        f"research/gpu: 250 of {CORE}",
        f"Only cores are limited in edge, research: add {MEMORY} there.",
        f"2 quotas moved to {CORE}.",
    ]
    assert hard(objects, "edge") == {CORE: "100", "pods": "9"}
    assert hard(objects, "research") == {CORE: "250"}
    assert len(objects.writes) == 2
    again = ran()
    assert (again.exit_code, again.output) == (
        0,
        f"No quota is left to move from {BITFUSION} to {CORE}.\n",
    )
    assert len(objects.writes) == 2


def test_who_bounds_memory_too_is_not_reminded(objects: FakeObjects) -> None:
    for number in range(11):
        objects.create(quota(f"n{number:02}", hard={BITFUSION: "100"}))
    objects.create(quota("edge", name="memory", hard={MEMORY: "94"}))
    lines = ran("--dry-run").output.splitlines()
    first = ", ".join(f"n{number:02}" for number in range(10))
    assert lines[-2] == (
        f"Only cores are limited in {first} and 2 more: add {MEMORY} there."
    )


def test_the_old_name_may_be_kept(objects: FakeObjects) -> None:
    assert "edge/gpu: 100 of" in ran("-A", "--keep").output
    assert hard(objects, "edge") == {BITFUSION: "100", CORE: "100", "pods": "9"}
    assert "No quota is left" in ran("--keep").output
    assert ran("-n", "edge").output.endswith(f"1 quota moved to {CORE}.\n")
    assert hard(objects, "edge") == {CORE: "100", "pods": "9"}
    assert BITFUSION in hard(objects, "research")
    other = "requests.example.com/gpu"
    assert ran("--from", CORE, "--to", other, "-n", "done").exit_code == 0
    assert hard(objects, "done") == {other: "100"}


def test_two_numbers_are_left_and_said(objects: FakeObjects) -> None:
    both = {BITFUSION: "100", CORE: "50"}
    objects.create(quota("both", hard=both))
    done = ran()
    assert done.exit_code == 1
    assert done.stderr == (
        f"Error: both/gpu was not changed: it has 100 of {BITFUSION} and 50 of "
        f"{CORE}; remove the wrong one: kubectl -n both edit resourcequota gpu\n"
    )
    assert "2 quotas moved" in done.stdout
    assert hard(objects, "both") == both
    assert ran("--dry-run").exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "x", "-A"], "-n names one namespace, -A means all of them"),
        (["--from", "bitfusion.io/gpu"], "put requests. before it"),
        (["--to", "requests.gpu"], "--to: 'requests.gpu' is not how a quota names"),
        (["--to", "limits.a.b/c"], "--to: 'limits.a.b/c' is not how a quota names"),
        (["--to", BITFUSION], f"--from and --to are both {BITFUSION}"),
        (["--to", MEMORY], "the number would mean something else"),
        (["--from", "requests.nvidia.com/gpu"], "the number would mean something else"),
        (["--from", MEMORY], "the number would mean something else"),
        (["--to", f"{CORE}\x1b[2J"], "is not how a quota names"),
    ],
)
def test_a_command_line_that_is_not_understood(
    objects: FakeObjects, words: Sequence[str], said: str
) -> None:
    ended = ran(*words)
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert "\x1b" not in ended.stderr
    assert objects.calls == []


def test_a_namespace_that_is_not_there(objects: FakeObjects) -> None:
    objects.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "e"}})
    wrong = ran("-n", "edgy")
    assert (wrong.exit_code, wrong.stderr) == (
        1,
        'Error: there is no namespace "edgy"\n',
    )
    assert ran("-n", "e").output.startswith("No quota is left")


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (1, Forbidden("resourcequotas is forbidden"), "get this right"),
        (2, Unavailable("no answer"), "https://cluster: no answer"),
        (3, Forbidden("cannot patch resourcequotas"), "get this right"),
    ],
)
def test_what_fails_on_the_way(
    objects: FakeObjects, call: int, error: Exception, said: str
) -> None:
    objects.fails(call, lambda: error, done=False)
    ended = ran()
    assert ended.exit_code == 1
    assert said in ended.stderr
    assert len(ended.stdout.splitlines()) == max(0, call - 2)
    assert ran().exit_code == 0
    assert hard(objects, "research") == {CORE: "250"}


def test_nobodys_words_command_the_terminal(objects: FakeObjects) -> None:
    objects.create(quota("n", "q\x1b[2J", hard={BITFUSION: "1"}))
    assert "\x1b" not in ran("--dry-run").output
    assert "\x1b" not in ran().output


MOVED = QuotaRename(BITFUSION, CORE)
KEPT = QuotaRename(BITFUSION, CORE, keep=True)


def hard_after(body: Json, names: QuotaRename) -> dict[str, str]:
    """What an API server makes of the move; of none at all what is there."""
    objects = FakeObjects()
    ref = Ref.of(objects.create(body))
    planned = plan_quota_change(body, names)
    if isinstance(planned, QuotaChange):
        objects.json_patch(ref, planned.steps)
    after = objects.get(ref)
    assert after is not None
    return dict(after["spec"]["hard"])


@pytest.mark.parametrize(
    ("hard", "names", "after"),
    [
        ({BITFUSION: "100"}, MOVED, {CORE: "100"}),
        ({BITFUSION: "100"}, KEPT, {BITFUSION: "100", CORE: "100"}),
        ({BITFUSION: "1k", "pods": "3"}, MOVED, {CORE: "1k", "pods": "3"}),
        ({BITFUSION: "0"}, MOVED, {CORE: "0"}),
        ({BITFUSION: "100", CORE: "100"}, MOVED, {CORE: "100"}),
        ({BITFUSION: "1k", CORE: "1000"}, MOVED, {CORE: "1000"}),
        ({BITFUSION: "100", MEMORY: "9"}, MOVED, {CORE: "100", MEMORY: "9"}),
        ({"pods": "3"}, MOVED, None),
        ({CORE: "100"}, KEPT, None),
        ({BITFUSION: "100", CORE: "100"}, KEPT, None),
        ({BITFUSION: "0.1k", CORE: "100"}, KEPT, None),
        ({}, MOVED, None),
    ],
)
def test_the_number_stays(
    hard: dict[str, str], names: QuotaRename, after: dict[str, str] | None
) -> None:
    """None: nothing is left to do."""
    body = quota("edge", hard=hard)
    if after is None:
        assert plan_quota_change(body, names) is None
        assert plan_quota_change({**body, "spec": None}, names) is None
    else:
        assert hard_after(body, names) == after


@pytest.mark.parametrize("number", ["50", "1k", "0.5", "nonsense"])
def test_two_numbers_are_a_persons_to_choose_from(number: str) -> None:
    body = quota("edge", hard={BITFUSION: "100", CORE: number})
    assert plan_quota_change(body, MOVED) == QuotaClash(Ref.of(body), "100", number)


@given(
    st.dictionaries(
        st.sampled_from([BITFUSION, CORE, MEMORY, "pods", "requests.cpu"]),
        st.sampled_from(["0", "1", "100", "0.1k", "2k", "500m"]),
    ),
    st.booleans(),
)
def test_the_second_time_changes_nothing(hard: dict[str, str], keep: bool) -> None:
    names = QuotaRename(BITFUSION, CORE, keep)
    once = hard_after(quota("edge", hard=hard), names)
    again = quota("edge", hard=once)
    assert not isinstance(plan_quota_change(again, names), QuotaChange)
    assert hard_after(again, names) == once
    others = {key: value for key, value in hard.items() if key not in (BITFUSION, CORE)}
    assert others.items() <= once.items()
