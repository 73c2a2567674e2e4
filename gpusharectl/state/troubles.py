"""What an operator should look at, each with the next step. Pure.

One function for one kind of trouble; to add one, write it and name it in ``_ALL``.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from gpushare.domain.model import CORES_PER_CARD
from gpushare.domain.node import Node
from gpushare.kube import codec, facts, names, words
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpusharectl.state.read import Picture, Trouble

OUR_FOLDERS = ("/etc/kubernetes/vcuda/", "/etc/rancher/k3s/vcuda/")
"""Where the installer puts kube-scheduler's configuration."""
_HELD_BACK = "CreateContainerConfigError"
"""kubelet's word where a device plugin says no before the start."""
_ASKS_NOBODY = (
    "is started without --config, so it does not ask the extender, and pods are bound "
    "without a card"
)
_MOST = 3


def troubles(picture: Picture) -> Iterator[Trouble]:
    """Give all troubles, those of the whole cluster first."""
    yield from picture.troubles
    for look in _ALL:
        yield from look(picture)


def extender(picture: Picture) -> Iterator[Trouble]:
    """Nobody chooses cards while no extender is ready."""
    pods = [pod for pod in picture.parts if facts.is_extender(pod)]
    where = f"kubectl -n {facts.SYSTEM}"
    if not pods:
        what = (
            f"no pod of it is in {facts.SYSTEM}; unless it runs in another way, pods "
            "that ask for cards wait, or are bound without one"
        )
        yield Trouble("extender", what, "gpusharectl install")
    elif not any(facts.holds(pod, "Ready") for pod in pods):
        what = f"none of its pods in {facts.SYSTEM} is ready: {len(pods)} there"
        selector = f"-l {facts.PART_NAME}={facts.label(pods[0], facts.PART_NAME)}"
        yield Trouble("extender", what, f"{where} logs {selector}")


def scheduler(picture: Picture) -> Iterator[Trouble]:
    """kube-scheduler must have our stanza, or it binds pods without a card."""
    if any(facts.is_part(pod, facts.SECOND_SCHEDULER) for pod in picture.parts):
        return
    told = {one.about for one in picture.troubles}
    for pod in picture.parts:
        if not facts.is_kube_scheduler(pod) or facts.node_of(pod) in told:
            continue
        config = _config_of(pod)
        if config.startswith(OUR_FOLDERS):
            continue
        what = _ASKS_NOBODY
        if config:
            what = (
                f"is started with --config={config}, which the installer does not "
                "make: without our stanza in it, pods are bound without a card"
            )
        yield Trouble(facts.name_of(pod), what, "gpusharectl install, on that host")


def webhook(picture: Picture) -> Iterator[Trouble]:
    """While the API server asks it and none is ready, no pod with cards is made."""
    pods = [pod for pod in picture.parts if facts.is_part(pod, facts.WEBHOOK)]
    if any(facts.holds(pod, "Ready") for pod in pods):
        return
    look = f"kubectl -n {facts.SYSTEM} describe"
    if pods:
        what = f"none of its pods in {facts.SYSTEM} is ready: {len(pods)} there"
        look += f" pods -l {facts.PART_NAME}={facts.WEBHOOK}"
    elif picture.reviewed:
        what = f"the API server asks it, and no pod of it is in {facts.SYSTEM}"
        look += f" deployment {facts.WEBHOOK}"
    else:
        return
    so = "until one is, no pod that asks for a card is made"
    if picture.reviewed is False:
        so = "the API server does not ask it either, so pods are made unseen"
    yield Trouble("webhook", f"{what}; {so}", look)


def device_plugin(picture: Picture) -> Iterator[Trouble]:
    """A node that is to share its cards needs a device plugin that is ready."""
    for node in picture.nodes:
        name = facts.name_of(node)
        ready = picture.plugins.get(name)
        if ready or not facts.is_labelled(node):
            continue
        state = "has no device plugin" if ready is None else "its plugin is not ready"
        what = f"is labelled {names.GPU_NODE_LABEL}=true, and {state}"
        selector = f"-l {facts.PART_NAME}={facts.DEVICE_PLUGIN}"
        look = f"kubectl -n {facts.SYSTEM} describe pods {selector}"
        yield Trouble(name, what, look)


def node_ready(picture: Picture) -> Iterator[Trouble]:
    """Nothing starts on a node that is not ready, whatever its cards have free."""
    for node, _ in _with_cards(picture):
        if facts.holds(node, "Ready") is not True:
            lost = facts.holds(node, "Ready") is None
            state = "has not been heard of" if lost else "is not ready"
            what = f"{state}; nothing starts there, what runs stays charged"
            name = facts.name_of(node)
            yield Trouble(name, what, f"kubectl describe node {name}")


def offered(picture: Picture) -> Iterator[Trouble]:
    """Kubelet must count what the device plugin has published."""
    for node, page in _with_cards(picture):
        well = [card for card in page.cards if card.healthy]
        wanted = {
            names.MEMORY: sum(card.units for card in well),
            names.CORE: CORES_PER_CARD * len(well),
        }
        found = {key: facts.allocatable(node, key) for key in wanted}
        if found != wanted and any((*wanted.values(), *found.values())):
            what = "; ".join(
                f"kubelet offers {_told(found[key])} of {key}, the cards have {number}"
                for key, number in wanted.items()
                if found[key] != number
            )
            do = "see the device plugin's log there: is it registered with kubelet?"
            yield Trouble(facts.name_of(node), what, do)


def annotations(picture: Picture) -> Iterator[Trouble]:
    """What cannot be read counts for nothing, and cards that are not there too."""
    for node in picture.nodes:
        name = facts.name_of(node)
        try:
            here = {card.uuid for card in codec.cards(node)}
        except Malformed as error:
            what = f"shares no cards, since its annotation cannot be read: {error}"
            yield Trouble(name, what, "see who wrote it; the device plugin mends it")
            continue
        for key, command in ((names.CORDON, "uncordon-card"), (names.CLEAR, "")):
            strays = codec.uuids(facts.annotation(node, key)) - here
            if strays:
                told = words.listed(sorted(strays), _MOST)
                what = f"{key} names cards that are not there: {told}"
                by_hand = f"kubectl annotate node {name} {key}-"
                ours = f"gpusharectl {command} {name} {min(strays)}"
                yield Trouble(name, what, ours if command else by_hand)


def placements(picture: Picture) -> Iterator[Trouble]:
    """A placement that cannot be believed is charged on every card."""
    for record, pod in picture.read.values():
        if record.complaint:
            do = "delete the pod; if it comes again, find out who writes placements"
            yield Trouble(facts.full_name(pod), record.complaint, do)


def unplaced(picture: Picture) -> Iterator[Trouble]:
    """Pods that came without the extender keep room on every card of their node."""
    for page in picture.books.pages:
        if page.unplaced:
            pods = sorted(str(asked.pod) for asked in page.unplaced.values())
            what = (
                f"nobody knows the card of {words.listed(pods, _MOST)}: charged on "
                "each card here"
            )
            do = (
                "wait for the device plugin to tell; if it stays so, see whether "
                "kube-scheduler asks the extender"
            )
            yield Trouble(str(page.name), what, do)


def over_placed(picture: Picture) -> Iterator[Trouble]:
    """More is held than there is: a smaller card came, or somebody wrote placements."""
    for page in picture.books.pages:
        charged = replace(page, nominations={}).charged
        for card in page.cards:
            cores, units = charged.get(card.uuid, (0, 0))
            if units > card.units or cores > CORES_PER_CARD:
                what = (
                    f"card {card.index} is promised {units} of {card.units} units and "
                    f"{cores} of {CORES_PER_CARD} cores"
                )
                do = "delete pods there until it is no longer so"
                yield Trouble(str(page.name), what, do)


def not_started(picture: Picture) -> Iterator[Trouble]:
    """A bound pod whose container the device plugin keeps waiting."""
    for record, pod in picture.read.values():
        waits = facts.waits_because(pod)
        if record.node and waits.startswith(_HELD_BACK):
            do = f"gpusharectl why {facts.full_name(pod)}"
            yield Trouble(facts.full_name(pod), f"does not start: {waits}", do)


def misspelt(picture: Picture) -> Iterator[Trouble]:
    """An annotation of a pod that looks like ours and means nothing."""
    found: dict[str, list[str]] = {}
    for pod in picture.pods:
        for text in codec.unknown_annotations(pod):
            found.setdefault(text, []).append(facts.full_name(pod))
    for text, pods in found.items():
        do = "write it as it should be where such pods are made"
        yield Trouble(words.listed(pods, _MOST), text, do)


_ALL: tuple[Callable[[Picture], Iterator[Trouble]], ...] = (
    extender,
    scheduler,
    webhook,
    device_plugin,
    node_ready,
    offered,
    annotations,
    placements,
    unplaced,
    over_placed,
    not_started,
    misspelt,
)


def _with_cards(picture: Picture) -> Iterator[tuple[Json, Node]]:
    for page in picture.books.pages:
        node = picture.node(page.name)
        if node is not None and page.cards:
            yield node, page


def _told(number: int | None) -> str:
    return words.NOT_KNOWN if number is None else str(number)


def _config_of(pod: Json) -> str:
    said = list(facts.words_run(pod))
    for word, following in zip(said, [*said[1:], ""], strict=True):
        if word.startswith("--config="):
            return word.removeprefix("--config=")
        if word == "--config":
            return following
    return ""
