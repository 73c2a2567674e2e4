"""What peer projects do, held up against what we do: ``cases/peer_cases.yaml``.

Where we differ on purpose, and why: ``docs/decisions/0018-peer-cases.md``.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import yaml

from extender.scheduling.bind import Binder
from extender.scheduling.state import ExtenderState
from extender.scheduling.wire import BindingArgs
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    Card,
    CardUUID,
    NodeName,
    Placement,
    PodRequest,
    Reason,
    Refusal,
)
from gpushare.domain.placement import find_refusal, place, score_node
from gpushare.domain.policies import Policy, PolicyChoice
from gpushare.domain.request import Role, peak_amount
from gpushare.informers.nodes import NodeInformer
from gpushare.informers.pods import PodInformer
from gpushare.kube import codec, names
from gpushare.kube.annotations import decode_placement, encode_placement, read_cards
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.errors import Conflict, Forbidden, Unavailable
from gpushare.kube.json_reader import Malformed
from gpushare.kube.reflector import Reflector
from tests.builders import (
    AT,
    FIRST_FIT,
    bound_json,
    card,
    container_json,
    event,
    node_json,
    placement,
    pod_json,
    ref,
    request,
    share,
    spec,
)
from tests.deviceplugin.peer_runs import (
    run_again,
    run_containers,
    run_pending,
    run_preferred,
)

HERE = Path(__file__).parent
TEXT = (HERE / "cases" / "peer_cases.yaml").read_text()
RECORD = HERE.parent / "docs" / "decisions" / "0018-peer-cases.md"
# Each process that collects tests reads it: the C library is 8 times faster.
_READ = yaml.load(TEXT, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
CASES: Mapping[str, Json] = {one["id"]: one for one in _READ["cases"]}

N = NodeName("n")
UNITS_WHERE_NONE_ARE_GIVEN = 16
Outcome = dict[str, Any]


def card_of(index: int, described: Json) -> Card:
    units = described.get("mem", UNITS_WHERE_NONE_ARE_GIVEN)
    healthy = described.get("healthy", True)
    return card(index, units, uuid=str(described["id"]), healthy=healthy)


def cards_shared(name: str, node: Json, described: list[Json]) -> tuple[Card, ...]:
    """The cards as they are read off the node, a cordon included."""
    shared = [card_of(index, each) for index, each in enumerate(described)]
    cordon = node.get("annotations", {}).get("cordon", "")
    return read_cards(node_json(name, *shared, annotations={names.CORDON: cordon}))


def ledger_of(case: Json) -> Ledger:
    """The case's nodes, with what is used of their cards held by pods that share them.

    One for each card, and one for its 100th core: 100 in one hand are a whole card.
    """
    ledger = Ledger()
    for one in case["answer"].get("nodes") or case.get("nodes") or [{"cards": 1}]:
        name, described = NodeName(one.get("name", "n")), one["cards"]
        if isinstance(described, int):
            described = [{"id": number} for number in range(described)]
        ledger.set_cards(name, cards_shared(name, one, described))
        for each in described:
            used = each.get("used_mem", 0), each.get("used_core", 0)
            if not any(used) and each.get("used_slots"):
                used = (0, 1)  # the least that a pod of ours can ask
            mem, cores = used
            most = min(cores, 99)
            for part in filter(any, ((mem, most), (0, cores - most))):
                shares = [share(str(each["id"]), *part)]
                holder = f"{name}-{each['id']}-{part[1]}"
                ledger.record(placement(holder, node=name, shares=shares))
    for number, pod in enumerate(case.get("pods", ())):
        held = share(str(pod["card"]), pod.get("mem", 0), pod.get("core", 0))
        only = ledger.nodes()[0].name
        ledger.record(placement(f"pod-{number}", node=only, shares=[held]))
    return ledger


def pod_of(case: Json, asked: list[Json], name: str = "pod", **more: Any) -> Json:
    """The pod as the API server would hold it: containers ``c0``... and ``i0``..."""
    answer = case["answer"]
    inits = answer.get("ask_init", case.get("init", []))

    def containers(prefix: str, found: list[Json]) -> list[Json]:
        return [
            container_json(f"{prefix}{i}", one.get("mem"), one.get("core"))
            for i, one in enumerate(found)
        ]

    notes = {}
    if "policy" in answer:
        notes[names.POLICY] = answer["policy"]
    if "uuids" in answer:
        notes[names.UUIDS] = answer["uuids"]
    if answer.get("apart"):
        notes[names.CONTAINERS] = names.APART
    pod = pod_json(
        name,
        containers=containers("c", asked),
        init=containers("i", inits),
        **{"annotations": notes} | more,
    )
    if answer.get("requests_only"):
        for container in pod["spec"]["containers"]:
            container.get("resources", {}).pop("limits", None)
    return pod


def asked_by(case: Json) -> list[Json]:
    found: list[Json] = case["answer"].get("ask", case.get("request", []))
    return found


def cards_of(held: Placement, pod: Json, kind: str = "containers") -> list[list[str]]:
    """Of each container, the cards that it has a part of."""
    return [
        [
            str(one.card)
            for one in held.shares
            if any(part.name == container["name"] for part in one.containers)
        ]
        for container in pod["spec"].get(kind, ())
    ]


def charges(ledger: Ledger) -> Outcome:
    """All that is charged, and all that is free, over the nodes; in pairs."""
    charged: Outcome = {}
    free: Outcome = {}
    for page in ledger.nodes():
        charged |= {str(uuid): list(pair) for uuid, pair in page.charged.items()}
        free |= {str(uuid): [r.cores, r.units] for uuid, r in page.free.items()}
    return {"charged": charged, "free": free}


def run_placement(case: Json) -> Outcome:
    """Filter all nodes, score those that fit, place on the best, read it all back."""
    ledger = ledger_of(case)
    if not case.get("request") and "ask" not in case["answer"]:
        return charges(ledger)
    pod = pod_of(case, asked_by(case))
    asked = codec.read_pod_request(pod, codec.read_pod_ref(pod))
    if isinstance(asked, Refusal):
        return {
            "fit": False,
            "reason": asked.reason.value,
            "text": codec.refusal_text(asked),
        }
    policy = PolicyChoice().policy(asked.policy)
    assert isinstance(policy, Policy)
    refused = {page.name: find_refusal(asked, page, policy) for page in ledger.nodes()}
    fits = [page for page in ledger.nodes() if refused[page.name] is None]
    if not fits:
        found = [no for no in refused.values() if no is not None]
        (no,) = set(found)
        words = {"reason": no.reason.value, "text": codec.refusal_text(no)}
        return {"fit": False} | words | charges(ledger)
    placed = {page.name: place(asked, page, policy) for page in fits}
    scores = {page.name: score_node(page, policy) for page in fits}
    best = max(scores, key=lambda name: scores[name])
    held = placed[best]
    assert isinstance(held, Placement)
    return {
        "fit": True,
        "fit_nodes": [page.name for page in fits],
        "scores": scores,
        "best": best,
        "cards": cards_of(held, pod),
        "init_cards": cards_of(held, pod, "initContainers"),
        "per_node_cards": {
            name: cards_of(one, pod)
            for name, one in placed.items()
            if isinstance(one, Placement)
        },
    } | charges(read_back(ledger, pod, held))


def read_back(ledger: Ledger, pod: Json, held: Placement) -> Ledger:
    """The ledger as a restart would find it, with the pod bound."""
    again = Ledger()
    for page in ledger.nodes():
        NodeInformer(again).apply(event("ADDED", node_json(page.name, *page.cards)))
        for one in page.placements.values():
            PodInformer(again, PolicyChoice()).apply(event("ADDED", bound_json(one)))
    pod["spec"]["nodeName"] = held.node
    pod["metadata"]["annotations"] = {names.PLACEMENT: encode_placement(held, AT)}
    PodInformer(again, PolicyChoice()).apply(event("ADDED", pod))
    return again


def run_sequence(case: Json) -> Outcome:
    """Pods come and go, one after the other, on one node."""
    ledger, placed, pending = ledger_of(case), 0, 0
    steps: list[list[list[str]] | None] = []
    for number, step in enumerate(case["steps"]):
        if "delete" in step:
            ledger.release(ref(step["delete"]).uid)
            steps.append(None)
            continue
        for turn in range(step.get("repeat", 1)):
            name = step.get("pod", f"pod-{number}-{turn}")
            pod = pod_of(case, step["request"], name)
            asked = codec.read_pod_request(pod, codec.read_pod_ref(pod))
            assert isinstance(asked, PodRequest)
            policy = PolicyChoice().policy(asked.policy)
            assert isinstance(policy, Policy)
            held = ledger.reserve(asked, N, policy)
            if isinstance(held, Placement):
                placed += 1
                steps.append(cards_of(held, pod))
            else:
                pending += 1
                steps.append(None)
        if "then_occupy" in step:  # the answer is only looked at; others move in
            ledger.release(ref(name).uid)
            for one in step["then_occupy"]:
                whole = [share(str(one), UNITS_WHERE_NONE_ARE_GIVEN, 100)]
                ledger.record(placement(f"in-{one}", shares=whole))
    (page,) = ledger.nodes()
    free = [room.cores for room in page.free.values()]
    return {"steps": steps, "placed": placed, "pending": pending, "free_core": free}


def run_stale_assignment(case: Json) -> Outcome:
    """A pod that is not bound brings an assignment along."""
    stale = encode_placement(placement("pod", "0", 4, 10), AT)
    ledger = ledger_of(case)
    book = PodInformer(ledger, PolicyChoice())
    notes = {names.PLACEMENT: stale}
    book.apply(event("ADDED", pod_of(case, asked_by(case), annotations=notes)))
    before = ledger.placement(ref().uid) is not None
    return run_placement(case) | {"charged_before": before}


class Silent:
    """Stands in for ``Cluster``: an API server that does not answer."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop

    def list_page(self, kind: Kind, **wanted: Any) -> Iterator[Json]:
        self._stop.set()
        raise Unavailable("not there yet")


def run_before_sync(case: Json) -> Outcome:
    """What filter and bind are to wait for after a restart."""
    ledger, stop = Ledger(), Event()
    book = PodInformer(ledger, PolicyChoice())
    reflector = Reflector(Silent(stop), Kind.PODS, book)  # type: ignore[arg-type]
    reflector.run(stop)
    return {"synced": reflector.synced.is_set()}


def run_life(case: Json) -> Outcome:
    """One bound pod, event by event."""
    (held,) = case["containers_on"]
    ours = placement("pod", str(held["card"]), held["mem"], held["core"])
    ledger = Ledger()
    book, charged = PodInformer(ledger, PolicyChoice()), []
    for step in case["steps"]:
        word = step["event"]
        phase = "Succeeded" if word == "phase Succeeded" else "Running"
        leaving = word.startswith("deletionTimestamp")
        told = bound_json(ours, phase=phase, terminating=leaving)
        book.apply(event("MODIFIED", told))
        charged.append(ledger.placement(ours.pod.uid) is not None)
    return {"charged": charged}


def run_committed(case: Json) -> Outcome:
    """A rollback reaches what was reserved, not what the API server holds."""
    ledger = Ledger()
    PodInformer(ledger, PolicyChoice()).apply(event("ADDED", bound_json(placement())))
    ledger.cancel(ref().uid)
    return {"charged": ledger.placement(ref().uid) is not None}


def run_release_twice(case: Json) -> Outcome:
    """Sums after each step; what is released twice is credited once."""
    ledger, sums = Ledger(), []
    for step in case["steps"]:
        if "add" in step:
            ledger.record(placement("pod", 0, step["add"]["mem"], step["add"]["core"]))
        else:
            ledger.release(ref().uid)
        charged = charges(ledger)["charged"]
        sums.append(charged.get("GPU-0", [0, 0]))
    return {"charged": sums}


def run_effective(case: Json) -> Outcome:
    """What a pod holds at its peak, by the formula."""
    peaks = []
    for row in case["table"]:
        asking = [
            *(spec("i", one["mem"], role=Role.INIT) for one in row["init"]),
            *(spec("c", one["mem"]) for one in row["containers"]),
        ]
        peaks.append(peak_amount(asking).units)
    return {"effective": peaks}


def run_annotation(case: Json) -> Outcome:
    """The same entries in our annotation: read whole, or the field that is wrong."""
    rows: list[object] = []
    for row in case["table"]:
        entries = [one.split(",") for one in row["raw"].split(":") if one]
        shares = []
        for uuid, _type, *rest in entries:
            units, cores = [*rest, "null", "null"][:2]
            units = units if re.fullmatch(r"-?\d+|null", units) else f'"{units}"'
            shares.append(f'{{"card": "{uuid}", "units": {units}, "cores": {cores}}}')
        text = f'{{"v": 1, "uid": "uid-pod", "shares": [{", ".join(shares)}]}}'
        try:
            held = decode_placement(text, ref(), N)
        except Malformed as error:
            rows.append(error.field.rpartition(".")[2])
        else:
            assert held is not None
            rows.append([[s.card, s.amount.cores, s.amount.units] for s in held.shares])
    return {"rows": rows}


def list_of(row: Json) -> str | None:
    """The row's two lists as the one that is ours; None where it has neither."""
    given = [row.get("use"), row.get("nouse")]
    if given == [None, None]:
        return None
    use, nouse = (text.split(",") if text else [] for text in given)
    return ",".join([*use, *(f"!{entry}" for entry in nouse)])


def run_lists(case: Json) -> Outcome:
    """Where each row's pod is placed; of one id alone, whether it matches at all."""
    rows: list[object] = []
    for row in case["table"]:
        listed = list_of(row)
        told = {} if listed is None else {"uuids": listed}
        one = {"nodes": [{"cards": [{"id": row.get("id")}]}], "request": [{"mem": 1}]}
        found = run_placement({**one, **case, "answer": told})
        if found.get("reason") == Reason.INVALID.value:
            rows.append("refused")
        else:
            rows.append(found["fit"] if "id" in row else found.get("cards"))
    return {"rows": rows}


class Answers:
    """Stands in for ``Cluster``: a pod, and what its binding comes to."""

    def __init__(self, pod: Json, binding: Exception | None, reaches: bool) -> None:
        self.pod, self._binding, self._reaches = pod, binding, reaches

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        return self.pod

    def bind(
        self, pod: PodTarget, node: str, annotations: Json, *, timeout_s: float
    ) -> None:
        if self.pod["spec"].get("nodeName"):
            raise Conflict("already bound")
        if self._reaches:
            self.pod["spec"]["nodeName"] = node
            self.pod["metadata"]["annotations"] = dict(annotations)
        if self._binding is not None:
            raise self._binding


def run_bind(case: Json) -> Outcome:
    """Bind once, or as often as the case says, and count what is left charged."""
    api = case.get("api", {})
    binding: Exception | None = None
    if "pod_update" in api:
        binding = Forbidden("not allowed")
    if "binding" in api or case["kind"] == "lifecycle":
        binding = Conflict("precondition failed")
    state = ExtenderState(wait_s=0, pending_for_s=5)
    ledger, whole = state.ledger, card(0, UNITS_WHERE_NONE_ARE_GIVEN)
    state.nodes.apply(event("ADDED", node_json("n", whole)))
    pod = pod_json("pod", units=4, cores=10)
    state.pods.apply(event("ADDED", pod))
    cluster = Answers(pod, binding, reaches=binding is None)
    binder = Binder(cluster, state, timeout_s=4)  # type: ignore[arg-type]
    args = BindingArgs("default", "pod", ref().uid, N)
    binds = len(case.get("steps", [None])) if case["kind"] == "bind" else 1
    errors = [bool(binder.bind(args).error) for _ in range(binds)]
    charged = charges(ledger)
    reservations = len(ledger.reservations())
    return {
        "errors": errors,
        "reservations": [reservations],
        "free": charged["free"]["GPU-0"],
    }


BY_KIND: Mapping[str, Callable[[Json], Outcome]] = {
    "placement": run_placement,
    "score": run_placement,
    "request_validate": run_placement,
    "request_parse": run_placement,
    "accounting": run_placement,
    "sequence": run_sequence,
    "annotation_parse": run_annotation,
    "preferred_allocation": run_preferred,
    "bind": run_bind,
    "selector": run_lists,
}
BY_ID: Mapping[str, Callable[[Json], Outcome]] = {
    "ga-already-predicated-pod": run_stale_assignment,
    "ga-filter-before-cache-sync": run_before_sync,
    "hami-cordon-one-card": run_placement,
    "hami-fit-use-uuid-mismatch": run_placement,
    "hami-cordon-all-cards": run_placement,
    "hami-terminating-pod-still-charged": run_life,
    "gse-terminating-pod-freed-early": run_life,
    "hami-filter-of-same-pod-evicts-stale-entry": run_bind,
    "vol-release-keeps-committed": run_committed,
    "hami-quota-release-twice-not-negative": run_release_twice,
    "vol-memory-peak-init": run_effective,
    "gm-allocate-is-idempotent": run_again,
    "gm-same-core-different-memory": run_pending,
    "gsd-multi-container-allocate": run_containers,
    "gsd-same-size-pods-swapped": run_pending,
}
HOW_IT_ASKS = frozenset(
    ("ask", "ask_init", "nodes", "policy", "uuids", "apart", "requests_only", "differs")
) | {"units", "gpus"}


def as_text(value: object) -> object:
    """Card ids as text, whether YAML takes them for numbers or not."""
    match value:
        case bool():
            return value
        case int():
            return str(value)
        case list():
            return [as_text(one) for one in value]
        case dict():
            return {str(key): as_text(one) for key, one in value.items()}
    return value


HERE = [case_id for case_id, case in CASES.items() if case["kind"] != "quota"]


@pytest.mark.parametrize("case_id", HERE)
def test_our_answer(case_id: str) -> None:
    """Each outcome that the case's answer names is ours."""
    case = CASES[case_id]
    run = BY_ID.get(case_id) or BY_KIND[case["kind"]]
    found = run(case)
    wanted = {k: v for k, v in case["answer"].items() if k not in HOW_IT_ASKS}
    text = wanted.pop("text", "")
    assert text in found.get("text", "")
    assert as_text({key: found.get(key) for key in wanted}) == as_text(wanted)


def test_no_case_is_forgotten() -> None:
    """Each has an answer; those of quotas are asked of a real API server."""
    assert [case_id for case_id, case in CASES.items() if "answer" not in case] == []
    assert len(CASES) == 74


@pytest.mark.parametrize("key", ["fit", "cards", "init_cards", "fit_nodes"])
def test_a_difference_has_its_reason(key: str) -> None:
    """Where our outcome is not the one that the case calls right, it says why."""
    for case_id, case in CASES.items():
        answer = case.get("answer", {})
        right: Json = case.get("ours") or case.get("expect") or {}
        if key in answer and key in right and "differs" not in answer:
            assert as_text(answer[key]) == as_text(right[key]), case_id


def test_the_decision_record_tells_each_difference() -> None:
    """Its table names just the cases that differ."""
    told = set(re.findall(r"(?m)^\| `([a-z0-9-]+)` \|", RECORD.read_text()))
    differing = {i for i, case in CASES.items() if "differs" in case.get("answer", {})}
    assert told == differing


def test_a_case_is_run_on_what_it_says() -> None:
    """The used part of a card is charged before the pod comes."""
    ledger = ledger_of(CASES["gse-best-fit-memory"])
    (page,) = ledger.nodes()
    assert [page.free[CardUUID(i)].units for i in "012"] == [12, 6, 2]
    assert find_refusal(request(units=13), page, FIRST_FIT) is not None
