"""How many more pods of a size fit into what a simulation has left."""

from collections.abc import Callable, Sequence

from gpushare.domain.model import CORES_PER_CARD, NodeName, Placement, PodRef
from gpushare.domain.policies import POLICIES
from gpushare.domain.quantity import NotAQuantity
from gpushare.domain.summary import Refusal, users_words
from gpushare.kube import codec
from gpushare.kube.codec import refusal_text
from gpusharectl.simulator import made
from gpusharectl.simulator.asking import asks
from gpusharectl.simulator.outcome import Room
from gpusharectl.simulator.podtemplate import check_amount
from gpusharectl.simulator.world import World

MOST = 10_000
"""Nobody counts on beyond this."""
_NAMESPACE = "room:for-more"
"""No pod's: a namespace in a cluster or a scenario has no colon."""
_MOST_DIGITS = 9
_KNOWN = ("units", "cores", "cards", "cpu", "memory", "model", "policy")
_EXAMPLE = "give 20, or units=20,cores=10,cpu=4,memory=8Gi, or cards=2"


Told = Callable[[int, int], None]
"""Called with how many have found room, and how many are tried at most."""


class SizeError(ValueError):
    """A size that cannot be read; the message says what is wrong, and the fix."""


def read_size(text: str) -> made.Asked:
    """Read ``20`` (units, with a core) or ``units=20,cpu=4,memory=8Gi,cards=2``.

    >>> read_size("20").units, read_size("cards=2").cores
    (20, 200)
    """
    if text.isdecimal():
        units = _number(text, "units", text)
        asked = made.Asked(units=units, cores=1 if units else 0)
    else:
        asked = _asked(text, _told(text))
    _check(text, asked)
    return asked


def _told(text: str) -> dict[str, str]:
    told: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in _KNOWN or not equals or not value:
            raise SizeError(f'"{text}" is no size of a pod; {_EXAMPLE}')
        if key in told:
            raise SizeError(f'"{text}" has {key} twice')
        told[key] = value
    return told


def _asked(text: str, told: dict[str, str]) -> made.Asked:
    for key in ("cpu", "memory"):
        _check_quantity(text, key, told.get(key, "0"))
    policy = told.get("policy", "")
    if policy and policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise SizeError(f'"{text}": no policy "{policy}"; known are {known}')
    units = _number(text, "units", told.get("units", "0"))
    cards = _number(text, "cards", told.get("cards", "0"))
    return made.Asked(
        units=units,
        cores=_cores(text, told, units, cards),
        cpu=told.get("cpu", ""),
        memory=told.get("memory", ""),
        models=(told["model"],) if "model" in told else (),
        policy=policy,
    )


def rooms(
    world: World,
    sizes: Sequence[made.Asked],
    told: Told = lambda _done, _most: None,
) -> list[Room]:
    """Count, for each size alone, how many more fit; the world is left as it was.

    Nothing is learnt of the pods that are counted with: they do not come.
    """
    world.learns = False
    found = [_room(world, asked, told) for asked in sizes]
    world.learns = True
    return found


def _room(world: World, asked: made.Asked, told: Told) -> Room:
    placed: list[tuple[PodRef, NodeName]] = []
    said = ""
    for number in range(MOST + 1):
        found = world.add(made.pod(_NAMESPACE, f"more-{number}", asked))
        if isinstance(found, Refusal):
            # read_size has refused such a size.
            raise SizeError(refusal_text(found))
        said = asks(found.question)
        decided = world.place(found)
        if not isinstance(decided, Placement):
            world.take_away(found.ref, None)
            break
        placed.append((found.ref, decided.node))
        told(len(placed), MOST)
    told(MOST, MOST)
    for ref, node in reversed(placed):
        world.take_away(ref, node)
    return Room(said, min(len(placed), MOST), more=len(placed) > MOST)


def _cores(text: str, told: dict[str, str], units: int, cards: int) -> int:
    if cards and "cores" in told:
        raise SizeError(f'"{text}": cards are whole ones; leave the cores out')
    if cards:
        return CORES_PER_CARD * cards
    # As the webhook has it: who asks for memory has a core of it, at least.
    return _number(text, "cores", told.get("cores", "1" if units else "0"))


def _number(text: str, key: str, value: str) -> int:
    most = MOST * CORES_PER_CARD
    fits = value.isdecimal() and len(value) <= _MOST_DIGITS and int(value) <= most
    if not fits:
        raise SizeError(
            f'"{users_words(text)}": {key} must be a whole number of 0 to {most}; '
            f"{_EXAMPLE}"
        )
    return int(value)


def _check(text: str, asked: made.Asked) -> None:
    """Read a pod of this size as the extender would, before anything is played."""
    pod = made.pod(_NAMESPACE, "more", asked)
    pod["metadata"]["uid"] = "checked"
    found = codec.pod_request(pod, codec.pod_ref(pod))
    if isinstance(found, Refusal):
        raise SizeError(f'"{users_words(text)}": {refusal_text(found)}')
    if not (asked.units or asked.cores or asked.cpu or asked.memory):
        raise SizeError(f'"{users_words(text)}" asks nothing; {_EXAMPLE}')


def _check_quantity(text: str, key: str, value: str) -> None:
    try:
        check_amount(value)
    except NotAQuantity as error:
        raise SizeError(f'"{text}": {key} is "{value}"; {_EXAMPLE}') from error
