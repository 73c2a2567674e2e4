"""What a container sees of its cards, held against what was promised."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from gpushare.domain.model import NOTHING, UNIT_MIB, Amount, Placement
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.demo.given import Given

_FILE = "allocation.json"


class NotAsPromisedError(Exception):
    """Something came out otherwise than the documents promise; says what."""


@dataclass(frozen=True, slots=True)
class Inside:
    """The words that a container's own variables say: UUIDs with commas, and MiB."""

    cards: str
    memory_mib: str


def look_inside(pod: Json, placement: Placement, given: Mapping[str, Given]) -> Inside:
    """Look into a pod's one container: variables and file must say its placement."""
    (container,) = pod["spec"]["containers"]
    name = container["name"]
    if name not in given:
        raise NotAsPromisedError(f"{_of(pod)}: {name} was never started")
    found = given[name]
    _insist(pod, "its variables", _variables(placement), dict(found.envs))
    told = _file(pod, found)
    whose = {"pod": _of(pod), "uid": pod["metadata"]["uid"], "container": name}
    _insist(pod, _FILE, whose, told)
    cards = {card["uuid"]: card for card in told["cards"]}
    if cards.keys() != set(placement.cards()):
        raise NotAsPromisedError(f"{_of(pod)}: {_FILE} names {list(cards)}")
    for share in placement.shares:
        _insist(pod, _FILE, _card(share.amount), cards[share.card])
    return Inside(found.envs["VCUDA_CARDS"], found.envs["VCUDA_MEMORY_LIMIT_MIB"])


def _variables(placement: Placement) -> dict[str, str]:
    cards = ",".join(placement.cards())
    total = sum((share.amount for share in placement.shares), NOTHING)
    return {
        "NVIDIA_VISIBLE_DEVICES": cards,
        "VCUDA_CARDS": cards,
        "VCUDA_MEMORY_LIMIT_MIB": str(total.units * UNIT_MIB),
        "VCUDA_CORES": str(total.cores),
    }


def _card(amount: Amount) -> Json:
    return {
        "cores": amount.cores,
        "units": amount.units,
        "memory_mib": amount.units * UNIT_MIB,
    }


def _file(pod: Json, given: Given) -> Json:
    if names.SHARE_FOLDER not in given.mounts:
        raise NotAsPromisedError(
            f"{_of(pod)}: nothing is mounted on {names.SHARE_FOLDER}"
        )
    path = Path(given.mounts[names.SHARE_FOLDER].host_path) / _FILE
    try:
        told: Json = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise NotAsPromisedError(f"{_of(pod)}: {_FILE}: {error}") from error
    return told


def _insist(pod: Json, where: str, wanted: Json, found: Json) -> None:
    said = {key: found.get(key) for key in wanted}
    if said != wanted:
        text = f"{_of(pod)}: {where} should say {wanted}, but it is {said}"
        raise NotAsPromisedError(text)


def _of(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
