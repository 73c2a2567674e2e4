"""What other systems' resources and annotations mean, in units and cores. Pure.

The systems are HAMi, gpushare-scheduler-extender, gpu-manager and the time-slicing of
NVIDIA's device plugin; ``docs/migrate.md`` compares them. A problem is returned as a
text that says what to do.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpushare.domain.card_selector import ANY, NOT
from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB, Amount
from gpushare.kube import names


class System(StrEnum):
    """A system that shares cards; the value is that of ``--from``."""

    HAMI = "hami"
    GPUSHARE_EXTENDER = "gpushare-scheduler-extender"
    GPU_MANAGER = "gpu-manager"
    TIME_SLICING = "time-slicing"


class Part(StrEnum):
    """What a resource counts."""

    MEMORY = "memory"
    PERCENT = "percent of a card's memory"
    CORES = "cores"
    CARDS = "cards"
    OTHER = "other"
    """Something that has no counterpart here."""


GPU = "nvidia.com/gpu"
"""HAMi's name for cards; that of time-slicing, too, and of NVIDIA's whole cards."""
_GPU_COUNT = "aliyun.com/gpu-count"
RESOURCES: Mapping[str, tuple[System, Part]] = {
    "nvidia.com/gpumem": (System.HAMI, Part.MEMORY),
    "nvidia.com/gpumem-percentage": (System.HAMI, Part.PERCENT),
    "nvidia.com/gpucores": (System.HAMI, Part.CORES),
    "nvidia.com/priority": (System.HAMI, Part.OTHER),
    "aliyun.com/gpu-mem": (System.GPUSHARE_EXTENDER, Part.MEMORY),
    "aliyun.com/gpu-core.percentage": (System.GPUSHARE_EXTENDER, Part.CORES),
    _GPU_COUNT: (System.GPUSHARE_EXTENDER, Part.CARDS),
    "tencent.com/vcuda-memory": (System.GPU_MANAGER, Part.MEMORY),
    "tencent.com/vcuda-core": (System.GPU_MANAGER, Part.CORES),
    f"{GPU}.shared": (System.TIME_SLICING, Part.CARDS),
}
"""The resources of which one name tells the system."""

_HAMI_ANNOTATIONS = (
    "hami.io/",
    "nvidia.com/use-gpu",
    "nvidia.com/nouse-gpu",
    "nvidia.com/vgpu-mode",
)
HAMI_SCHEDULER = "hami-scheduler"
_MORE_GIB_THAN_A_CARD = 300
_UNIT_MIB = {
    System.HAMI: 1,
    System.GPUSHARE_EXTENDER: 1024,
    System.GPU_MANAGER: UNIT_MIB,
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the manifests do not say; None where the user has not said it either."""

    system: System | None = None
    """The only system whose resources are rewritten."""
    card_mib: int | None = None
    """The memory of the cards."""
    replicas: int | None = None
    """Into how many shares time-slicing divides a card; 1 for whole cards."""
    unit_mib: int | None = None
    """The unit of the old system's memory, if it is not its default."""

    def meaning(self, name: str, *, hami: bool) -> tuple[System | None, Part] | None:
        """Return what a resource counts; None if it is not to be rewritten.

        ``hami`` tells that the pod has other signs of HAMi. The system is None if it
        cannot be known.
        """
        meaning: tuple[System | None, Part] | None = RESOURCES.get(name)
        if name == GPU:
            guess = System.HAMI if hami else None
            sliced = System.TIME_SLICING if self.replicas else None
            both = (System.HAMI, System.TIME_SLICING)
            chosen = self.system if self.system in both else None
            meaning = (chosen or guess or sliced, Part.CARDS)
            if self.system and not chosen:
                return None
        if meaning and self.system and meaning[0] not in (self.system, None):
            return None
        return meaning

    def units(self, system: System, amount: int) -> int:
        """Return the units for an amount of the old system's memory, rounded up."""
        # gpu-manager's unit cannot be set.
        unit_mib = self.unit_mib if system is not System.GPU_MANAGER else None
        return -(-amount * (unit_mib or _UNIT_MIB[system]) // UNIT_MIB)


def is_hami(annotations: Mapping[str, str], scheduler: str) -> bool:
    """Return whether a pod without HAMi's own resources was written for HAMi."""
    marked = any(key.startswith(_HAMI_ANNOTATIONS) for key in annotations)
    return marked or scheduler == HAMI_SCHEDULER


_WHICH = (
    "it may be whole cards, or shares by time-slicing or HAMi: give --replicas N "
    "(1 for whole cards), or --from hami"
)
_SIZE = "it is a part of a card of unknown memory: give --card-mib"


def convert_amount(
    system: System | None, numbers: Mapping[Part, int], options: Options
) -> Amount | str:
    """Return what one container asks for; a text says why it cannot be known."""
    if system is None:
        return _WHICH
    if numbers.get(Part.CARDS) == 0:
        return "it asks for 0 cards: remove it"
    convert: Mapping[System, Callable[[Mapping[Part, int], Options], Amount | str]] = {
        System.HAMI: _hami,
        System.GPUSHARE_EXTENDER: _gpushare_extender,
        System.GPU_MANAGER: _gpu_manager,
        System.TIME_SLICING: _time_slicing,
    }
    amount = convert[system](numbers, options)
    if isinstance(amount, Amount) and not amount:
        return "it asks for nothing: remove it"
    return amount


def _hami(numbers: Mapping[Part, int], options: Options) -> Amount | str:
    """Convert for HAMi: memory and cores are those of each card."""
    cards, memory = numbers.get(Part.CARDS, 1), numbers.get(Part.MEMORY, 0)
    percent = numbers.get(Part.PERCENT, 100)
    # HAMi gives more than 100 as 100, and whole memory with 100 cores.
    whole = not memory and percent >= CORES_PER_CARD
    cores = min(numbers.get(Part.CORES, CORES_PER_CARD if whole else 0), CORES_PER_CARD)
    exclusive = cores == CORES_PER_CARD
    if cards > 1 and not exclusive:
        return (
            f"parts of {cards} cards in one container; here a container gets a part of "
            "one card, or whole cards: ask for less, or for 100 cores of each card"
        )
    if exclusive and whole:
        return Amount(cores * cards, 0)
    if memory:
        units = options.units(System.HAMI, memory)
    elif options.card_mib is None:
        return _SIZE
    else:
        # Rounded down, so that shares of 40 % and 60 % go on sharing a card.
        units = max(1, options.card_mib // UNIT_MIB * min(percent, 100) // 100)
    return Amount(cores * cards, units * cards)


def _gpushare_extender(numbers: Mapping[Part, int], options: Options) -> Amount | str:
    cards = numbers.get(Part.CARDS, 1)
    if cards > 1:
        return (
            f"parts of {cards} cards in one pod; here a pod gets a part of one card: "
            f"remove {_GPU_COUNT}, or ask for whole cards, {names.CORE}: {cards * 100}"
        )
    if not numbers.get(Part.MEMORY):
        return "it asks for no aliyun.com/gpu-mem: say how much memory it needs"
    memory = numbers[Part.MEMORY]
    if options.unit_mib is None and memory >= _MORE_GIB_THAN_A_CARD:
        return (
            f"{memory} GiB are more than a card has: give --unit-mib 1 if the old "
            "system counts MiB, or --unit-mib 1024"
        )
    units = options.units(System.GPUSHARE_EXTENDER, memory)
    return Amount(numbers.get(Part.CORES, 0), units)


def _gpu_manager(numbers: Mapping[Part, int], options: Options) -> Amount | str:
    units = options.units(System.GPU_MANAGER, numbers.get(Part.MEMORY, 0))
    return Amount(numbers.get(Part.CORES, 0), units)


def _time_slicing(numbers: Mapping[Part, int], options: Options) -> Amount | str:
    cards, replicas = numbers[Part.CARDS], options.replicas
    if replicas is None:
        return f"{_SIZE}, and into how many shares it was divided: --replicas"
    if replicas == 1:
        return Amount(CORES_PER_CARD * cards, 0)
    if cards > 1:
        return (
            f"{cards} shares in one container; they may be of one card or of several: "
            "ask for 1, or write by hand how much memory it needs"
        )
    return _SIZE if options.card_mib is None else _share(options.card_mib, replicas)


def _share(card_mib: int, replicas: int) -> Amount:
    """Return one of equal shares; rounded down, so that as many fit as before."""
    cores = max(1, CORES_PER_CARD // replicas)
    return Amount(cores, max(1, card_mib // UNIT_MIB // replicas))


def convert_limit(
    system: System | None, part: Part, number: int | str, options: Options
) -> Amount | str:
    """Return what a limit of a quota or LimitRange on one resource becomes.

    A number that cannot be read is a text that says so.
    """
    if isinstance(number, str):
        return number
    if system is None:
        return _WHICH
    if part is Part.MEMORY:
        return Amount(0, options.units(system, number))
    if part is Part.CORES:
        return Amount(number, 0)
    if part is Part.CARDS and system is System.TIME_SLICING:
        share = _time_slicing({Part.CARDS: 1}, options)
        if isinstance(share, str):
            return share
        return Amount(share.cores * number, share.units * number)
    return f"a limit on it has no counterpart: limit {names.MEMORY} and {names.CORE}"


_VENDOR = re.compile(r"(nvidia[- ]+)+", re.IGNORECASE)
_POLICIES = {"binpack": "best-fit", "spread": "spread"}
_POLICY = "hami.io/gpu-scheduler-policy"
_NODE_POLICY = "hami.io/node-scheduler-policy"
_LISTS = {
    "nvidia.com/use-gputype": (names.MODELS, "", ANY),
    "nvidia.com/nouse-gputype": (names.MODELS, NOT, ANY),
    "nvidia.com/use-gpuuuid": (names.UUIDS, "", ""),
    "nvidia.com/nouse-gpuuuid": (names.UUIDS, NOT, ""),
}
_MODE = ("nvidia.com/vgpu-mode", "hami-core")
VOLCANO = "volcano.sh/vgpu-"
VOLCANO_HINT = (
    "Volcano's vGPU plugin is not rewritten: write its vgpu-memory (MiB) divided by "
    f"{UNIT_MIB} and rounded up as {names.MEMORY}, and its vgpu-cores as {names.CORE}"
)
FOREIGN = ("hami.io/", "nvidia.com/", "aliyun.com/", "tencent.com/")
"""How the names of the systems' resources and annotations begin."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """How a pod's annotations are carried over."""

    values: Mapping[str, str]
    """The new annotations."""
    sources: Mapping[str, str]
    """The new name for each old one; an old name may be empty: it is removed."""
    problems: Mapping[str, str]
    """What is left as it is, and why."""


def translate_annotations(annotations: Mapping[str, str]) -> Annotations:
    """Translate the annotations of a pod that was written for one of the systems."""
    values: dict[str, str] = {}
    sources: dict[str, str] = {}
    problems: dict[str, str] = {}
    for key, text in annotations.items():
        if key in _LISTS:
            name, sign, star = _LISTS[key]
            bare = [_VENDOR.sub("", word.strip(), count=1) for word in text.split(",")]
            entries = ", ".join(f"{sign}{star}{word}{star}" for word in bare if word)
            values[name] = ", ".join(filter(None, (values.get(name, ""), entries)))
            sources[key] = name if entries else ""
        elif key in (_POLICY, _NODE_POLICY) and text in _POLICIES:
            # Here one policy ranks nodes and cards; the cards' one counts.
            if key == _POLICY or _POLICY not in annotations:
                values[names.POLICY], sources[key] = _POLICIES[text], names.POLICY
            elif annotations[_POLICY] == text:
                sources[key] = ""
            else:
                problems[key] = f"one policy is for nodes and cards: {names.POLICY}"
        elif (key, text) == _MODE:
            sources[key] = ""
        elif key.startswith(FOREIGN):
            problems[key] = "it has no counterpart, and no effect here"
    return Annotations({k: v for k, v in values.items() if v}, sources, problems)
