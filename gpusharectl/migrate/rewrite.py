"""Find what manifests ask of another system, and rewrite it in units and cores. Pure.

A pod is every mapping with a list ``containers``, so templates of any kind are found.
ResourceQuotas and LimitRanges are read by their kind, and every other mapping with
``resources`` is taken for a container, as in the values of a chart. A name of another
system in any other place is reported.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gpushare.domain.model import CORES_PER_CARD, Amount
from gpushare.domain.quantity import NotAQuantity, NotWhole, is_in_bytes, parse_whole
from gpushare.domain.refusal import Refusal, clean_text
from gpushare.domain.request import ContainerSpec, Role
from gpushare.kube import names
from gpushare.kube.annotations import read_card_selector
from gpushare.kube.resource_requests import build_claims_by_annotation
from gpushare.yaml_edit import (
    Field,
    NotEditable,
    YamlText,
    child,
    entries_of,
    items_of,
    text_of,
)
from gpusharectl.migrate import systems
from gpusharectl.migrate.systems import GPU, RESOURCES, Options, Part, System

_IN_QUOTAS = ("requests.", "limits.")
_IN_LIMIT_RANGES = (
    "max",
    "min",
    "default",
    "defaultRequest",
    "maxLimitRequestRatio",
)
_SKIPPED = (
    "status",
    "labels",
    "matchLabels",
    "matchExpressions",
    "nodeSelector",
    "tolerations",
    "taints",
    "startupTaints",
    "annotations",
)
"""Fields that have no amounts, or that no user writes."""
_OTHER_COUNT = re.compile(r"nvidia\.com/(?!mig-)|[^/]+/[^/]*gpu")
"""Names that may be another name of HAMi's number of cards, which it leaves open."""
_DENIED_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_", "NVIDIA_GPU_MEMORY_")
"""How variables begin that the webhook denies in containers with cards."""
_SEVERAL = "aliyun.com/gpu-count"
"""A label of a pod: its memory is spread over so many cards."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a person should read about one field of one object."""

    line: int
    """Counted from 1."""
    where: str
    """The object, and the container if it is about one."""
    text: str
    """The field, and what to do."""
    left: bool
    """Something was not carried over; otherwise it was, and this is a note."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The new text, how many objects changed, and what to read about them."""

    text: str
    objects: int = 0
    findings: Sequence[Finding] = ()


def rewrite(text: str, options: Options) -> Rewritten:
    """Rewrite all documents of a text; ``NotEditable`` if that is not possible."""
    if not _mentions(text, (*RESOURCES, GPU, systems.VOLCANO)):
        return Rewritten(text)
    found = _Migration(text, options)
    new = found.yaml.edited()
    if new != text:
        # No edit may break the text or leave something that the next run changes.
        try:
            final = _Migration(new, options).yaml.edited() == new
        except NotEditable:
            final = False
        if not final:
            raise NotEditable(
                "its layout or its anchors do not allow it; edit it by hand"
            )
    findings = sorted(dict.fromkeys(found.findings), key=lambda one: one.line)
    return Rewritten(new, len(found.changed), findings)


@dataclass(frozen=True, slots=True)
class _Field:
    """A resource of another system in a list of limits or requests."""

    name: ScalarNode
    system: System | None
    part: Part
    number: int | str
    """A text says why it cannot be read."""


@dataclass(frozen=True, slots=True)
class _Container:
    """A container; ``fields`` for each list of limits or requests that has some."""

    name: str
    node: Node
    role: Role
    fields: Sequence[tuple[MappingNode, Sequence[_Field]]]
    wanted: Amount | str
    """A text says why it is not known."""

    @property
    def amount(self) -> Amount:
        """What it asks for here; nothing if that is not known."""
        known = self.fields and isinstance(self.wanted, Amount)
        return self.wanted if known else Amount(0, 0)  # type: ignore[return-value]


class _Migration:
    """One look through a text; ``yaml`` takes the edits."""

    def __init__(self, text: str, options: Options) -> None:
        self.yaml = YamlText(text)
        self.findings: list[Finding] = []
        self.changed: set[int] = set()
        """Where the changed objects begin."""
        self._options = options
        self._seen: set[int] = set()
        self._understood: set[int] = set()
        self._object, self._start = "", 0
        self._names_hami = False
        """Whether the document names a resource that only HAMi has."""
        for number, document in enumerate(self.yaml.documents):
            self._object, self._start = f"document {number + 1}", -number
            written = text[document.start_mark.index : document.end_mark.index]
            self._names_hami = bool(_mentions(written, _HAMI_RESOURCES))
            self._walk(document, None)

    def _walk(self, node: Node, parent: Node | None) -> None:
        if id(node) in self._seen:
            # An alias of something that was read at its anchor.
            return
        self._seen.add(id(node))
        before = self._object, self._start
        if isinstance(node, MappingNode):
            self._enter(node)
            self._look(node, parent)
        for name, value in entries_of(node):
            if name.value not in _SKIPPED:
                self._check_place(name)
                self._walk(value, node)
        for item in items_of(node):
            self._walk(item, node)
        self._check_text(node)
        self._object, self._start = before

    def _enter(self, node: MappingNode) -> None:
        """Take down which object the following is about."""
        kind, name = text_of(child(node, "kind")), child(node, "metadata", "name")
        if kind and name is not None:
            namespace = text_of(child(node, "metadata", "namespace"))
            slash = f"{namespace}/" if namespace else ""
            self._object = f"{kind} {slash}{text_of(name)}"
            self._start = node.start_mark.index

    def _look(self, node: MappingNode, parent: Node | None) -> None:
        """Rewrite a pod, a container outside of pods, or limits."""
        kind = text_of(child(node, "kind"))
        if isinstance(child(node, "containers"), SequenceNode):
            is_spec = child(parent, "spec") is node
            self._pod(node, child(parent, "metadata") if is_spec else None)
        elif id(node) in self._understood:
            # A container of a pod.
            return
        elif isinstance(child(node, "resources"), MappingNode):
            self._convert([self._container(node, Role.APP, hami=False)])
        elif kind == "ResourceQuota":
            self._limits(child(node, "spec", "hard"), _IN_QUOTAS)
        elif kind == "LimitRange":
            for item in items_of(child(node, "spec", "limits")):
                for name in _IN_LIMIT_RANGES:
                    self._limits(child(item, name), ("",))

    def _check_place(self, name: ScalarNode) -> None:
        """Report a resource of another system in a place that is not known."""
        bare = name.value
        for prefix in _IN_QUOTAS:
            bare = bare.removeprefix(prefix)
        if bare.startswith(systems.VOLCANO):
            self._tell(name, systems.VOLCANO_HINT)
        elif self._is_meant(bare) and id(name) not in self._understood:
            self._tell(name, "it is not in a container or quota; change it by hand")

    def _is_meant(self, resource: str) -> bool:
        """Return whether a resource in a place that is not known is to be reported.

        nvidia.com/gpu is, if it is known which system's it is.
        """
        meaning = self._options.meaning(resource, hami=self._names_hami)
        return meaning is not None and meaning[0] is not None

    def _check_text(self, node: Node) -> None:
        """Report a text that names a resource, such as a patch or a file in a file."""
        meant = [one for one in (*RESOURCES, GPU) if self._is_meant(one)]
        if found := _mentions(text_of(node), meant):
            text = "a text names it; look whether it must change"
            line = node.start_mark.line + 1
            told = f"{found}: {text}"
            self.findings.append(Finding(line, self._object, told, left=True))

    def _tell(
        self,
        name: ScalarNode,
        text: str,
        container: str = "",
        *,
        about: str = "",
        left: bool = True,
    ) -> None:
        where = f"{self._object}, container {container}" if container else self._object
        line = name.start_mark.line + 1
        about = about or name.value
        self.findings.append(Finding(line, where, f"{about}: {text}", left))

    def _replace(self, node: Node, new: Mapping[str, Sequence[Field]]) -> None:
        if new and isinstance(node, MappingNode):
            self.yaml.rewrite_fields(node, new)
            self.changed.add(self._start)

    def _limits(self, node: Node | None, prefixes: Sequence[str]) -> None:
        """Rewrite the limits of a quota or LimitRange, each on its own."""
        present = {name.value for name, _ in entries_of(node)}
        new: dict[str, list[Field]] = {}
        for prefix in prefixes:
            bare = (name.removeprefix(prefix) for name in present)
            for one in self._fields(node, prefix=prefix, hami=self._is_hami(bare)):
                wanted = systems.limit(one.system, one.part, one.number, self._options)
                if isinstance(wanted, str):
                    self._tell(one.name, f"{wanted}; not changed")
                    continue
                # Quotas on resources of this kind count requests only.
                start = "requests." if prefix else ""
                pairs = [(f"{start}{key}", text) for key, text in _pairs(wanted)]
                if any(key in present for key, _ in pairs):
                    other = pairs[0][0]
                    self._tell(one.name, f"{other} is there already; not changed")
                    continue
                present |= {key for key, _ in pairs}
                new[one.name.value] = pairs
        if node is not None:
            self._replace(node, new)

    def _fields(
        self, node: Node | None, *, prefix: str = "", hami: bool
    ) -> list[_Field]:
        """Return the resources of other systems among the fields of a mapping."""
        found = []
        for name, value in entries_of(node):
            if not name.value.startswith(prefix):
                continue
            bare = name.value.removeprefix(prefix)
            meaning = self._options.meaning(bare, hami=hami)
            if meaning is not None:
                self._understood.add(id(name))
                found.append(_Field(name, *meaning, _number(value)))
        return found

    def _is_hami(self, resources: Iterable[str]) -> bool:
        """Return whether resources tell that nvidia.com/gpu beside them is HAMi's."""
        found = (RESOURCES.get(name, (None,))[0] for name in resources)
        return self._options.system in (None, System.HAMI) and System.HAMI in found

    def _pod(self, spec: MappingNode, metadata: Node | None) -> None:
        """Rewrite a pod or its template: containers, annotations, scheduler."""
        written = child(metadata, "annotations")
        found = {name.value: text_of(value) for name, value in entries_of(written)}
        scheduler = text_of(child(spec, "schedulerName"))
        hami = systems.is_hami(found, scheduler)
        containers = [
            self._container(node, _role(node, key), hami=hami)
            for key in ("initContainers", "containers")
            for node in items_of(child(spec, key))
        ]
        count = text_of(child(metadata, "labels", _SEVERAL))
        if count not in ("", "0", "1"):
            text = f"the pod's label {_SEVERAL} asks for parts of {count} cards"
            self._refuse(containers, f"{text}; here they are parts of one card")
        elif self._convert(containers):
            self._annotations(metadata, written, found)
            if scheduler == systems.HAMI_SCHEDULER:
                self._replace(spec, {"schedulerName": []})

    def _container(self, node: Node, role: Role, *, hami: bool) -> _Container:
        """Read what a container asks for, in its limits and in its requests."""
        lists = [child(node, "resources", key) for key in ("limits", "requests")]
        every = [name.value for each in lists for name, _ in entries_of(each)]
        hami = hami or self._is_hami(every)
        self._understood.add(id(node))
        fields = [
            (each, found)
            for each in lists
            if isinstance(each, MappingNode)
            and (found := self._fields(each, hami=hami))
        ]
        flat = [one for _, found in fields for one in found]
        wanted = _renamed_count(lists, flat) or self._wanted(flat, every)
        return _Container(text_of(child(node, "name")), node, role, fields, wanted)

    def _wanted(self, fields: Sequence[_Field], every: Iterable[str]) -> Amount | str:
        asked: dict[Part, int] = {}
        for one in fields:
            if isinstance(one.number, str):
                several = len({field.name.value for field in fields}) > 1
                return f"{one.name.value}: {one.number}" if several else one.number
            if asked.setdefault(one.part, one.number) != one.number:
                return f"{one.name.value} differs between limits and requests"
        if any(name in (names.MEMORY, names.CORE) for name in every):
            return f"the container asks for {names.PREFIX}-…, too; keep one of them"
        found = {one.system for one in fields}
        if len(found) > 1:
            return "the container names resources of several systems; keep one of them"
        return systems.amount(next(iter(found), None), asked, self._options)

    def _refuse(self, containers: Iterable[_Container], problem: str) -> None:
        for one in containers:
            if one.fields:
                self._tell_of([one], f"{problem}; not changed", one.name)

    def _tell_of(
        self,
        containers: Sequence[_Container],
        text: str,
        container: str = "",
        *,
        left: bool = True,
    ) -> None:
        """Report something that is about all resources of containers together."""
        fields = [field for one in containers for _, its in one.fields for field in its]
        every = ", ".join(dict.fromkeys(field.name.value for field in fields))
        self._tell(fields[0].name, text, container, about=every, left=left)

    def _convert(self, containers: Sequence[_Container]) -> bool:
        """Rewrite what containers ask for; return whether any was rewritten."""
        asking = [one for one in containers if one.amount]
        for one in containers:
            if one.fields and isinstance(one.wanted, str):
                self._refuse([one], one.wanted)
        # A core each, as the webhook sets it, unless the sum would be whole cards.
        total = sum(one.amount.cores for one in asking)
        bare = sum(not one.amount.cores for one in asking)
        least = 1 if total + bare < CORES_PER_CARD else 0
        for one in asking:
            amount = Amount(one.amount.cores or least, one.amount.units)
            for node, fields in one.fields:
                self._replace(node, _assigned(fields, _pairs(amount)))
            self._check_others(one)
        if asking:
            self._check(asking)
        return bool(asking)

    def _check(self, asking: Sequence[_Container]) -> None:
        """Report what the scheduler would refuse, and what it places otherwise."""
        specs = [ContainerSpec(one.name, one.role, one.amount) for one in asking]
        found = build_claims_by_annotation(specs, apart=False)
        system = asking[0].fields[0][1][0].system
        if isinstance(found, Refusal):
            self._tell_of(asking, f"the pod would be refused: {found.detail}")
        elif len(asking) > 1 and system is not System.GPUSHARE_EXTENDER:
            self._tell_of(
                asking,
                "its containers get one card together; for a card each set the "
                f"annotation {names.CONTAINERS}: {names.APART}",
                left=False,
            )

    def _check_others(self, one: _Container) -> None:
        """Report what would keep a rewritten container from its card."""
        for node, _ in one.fields:
            for name, _ in entries_of(node):
                known = id(name) in self._understood
                foreign = name.value.startswith(systems.FOREIGN)
                if (foreign or _OTHER_COUNT.match(name.value)) and not known:
                    text = "no node offers it here, so the pod would wait; remove it"
                    self._tell(name, text, one.name)
        for item in items_of(child(one.node, "env")):
            variable = child(item, "name")
            denied = text_of(variable).startswith(_DENIED_VARIABLES)
            if denied and isinstance(variable, ScalarNode):
                text = "remove it: it overrides the card, and the webhook denies it"
                self._tell(variable, text, one.name)

    def _annotations(
        self, metadata: Node | None, written: Node | None, found: Mapping[str, str]
    ) -> None:
        """Rewrite the annotations of a pod; if all go, their field goes, too."""
        carried = systems.annotations(found)
        problems = dict(carried.problems)
        new: dict[str, list[Field]] = {}
        done = set(found)
        for old, name in carried.sources.items():
            value = carried.values.get(name, "")
            refusal = read_card_selector({name: value})
            if name in found:
                problems[old] = f"{name} is there already; not changed"
            elif isinstance(refusal, Refusal):
                problems[old] = f"{refusal.detail}; not changed"
            else:
                new[old] = [] if not name or name in done else [(name, value)]
                done.add(name)
        for key, _ in entries_of(written):
            if key.value in problems:
                self._tell(key, problems[key.value])
        if written is not None and new:
            empty = not any(new.values()) and set(new) == set(found)
            if empty and metadata is not None:
                self._replace(metadata, {"annotations": []})
            else:
                self._replace(written, new)


_HAMI_RESOURCES = tuple(
    name for name, (system, _) in RESOURCES.items() if system is System.HAMI
)


def _mentions(text: str, resources: Iterable[str]) -> str:
    """Return a resource that a text names, also as in a JSON patch; or nothing.

    nvidia.com/gpu alone does not stand for longer names that begin with it.
    """
    plain = text.replace("~1", "/")
    return next((name for name in resources if _is_named(name, plain)), "")


def _is_named(resource: str, text: str) -> bool:
    if resource != GPU:
        return resource in text
    return re.search(rf"{re.escape(GPU)}(?![-.\w])", text) is not None


def _renamed_count(lists: Iterable[Node | None], fields: Sequence[_Field]) -> str:
    """Return why a container of HAMi may be of several cards, or "".

    An operator of HAMi may give the number of cards another name than nvidia.com/gpu.
    """
    if not any(field.system is System.HAMI for field in fields):
        return ""
    known = {field.name.value for field in fields}
    for name, value in (entry for each in lists for entry in entries_of(each)):
        number = _number(value)
        is_other = bool(_OTHER_COUNT.match(name.value)) and name.value not in known
        if is_other and isinstance(number, int) and number > 1:
            return (
                f"{name.value}: {number} may be HAMi's number of cards under another "
                "name; a container gets a part of one card here, or whole cards: "
                "write by hand what it needs"
            )
    return ""


def _role(node: Node, key: str) -> Role:
    if key == "containers":
        return Role.APP
    stays = text_of(child(node, "restartPolicy")) == "Always"
    return Role.SIDECAR if stays else Role.INIT


def _number(node: Node) -> int | str:
    """Read an amount; a text says why it is none."""
    text = text_of(node)
    try:
        if not is_in_bytes(text):
            return parse_whole(text)
    except (NotAQuantity, NotWhole):
        pass
    shown = clean_text(text)
    return f'"{shown}" is not a plain whole number' if shown else "it has no number"


def _pairs(amount: Amount) -> list[Field]:
    """Return the fields of an amount."""
    both = ((names.MEMORY, amount.units), (names.CORE, amount.cores))
    return [(name, str(number)) for name, number in both if number]


def _assigned(
    fields: Sequence[_Field], pairs: Sequence[Field]
) -> dict[str, list[Field]]:
    """Choose which old field becomes which new one; the others are removed.

    Memory becomes memory and cores become cores, so that comments stay with them.
    """
    left = dict(pairs)
    new: dict[str, list[Field]] = {one.name.value: [] for one in fields}
    like = {
        Part.MEMORY: names.MEMORY,
        Part.PERCENT: names.MEMORY,
        Part.CORES: names.CORE,
    }
    for one in fields:
        name = like.get(one.part, "")
        if name in left:
            new[one.name.value].append((name, left.pop(name)))
    for one in fields:
        if left and not new[one.name.value]:
            name = next(iter(left))
            new[one.name.value].append((name, left.pop(name)))
    next(found for found in reversed(new.values()) if found).extend(left.items())
    return new
