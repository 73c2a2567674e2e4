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

from gpushare.domain.model import CORES_PER_CARD, Amount, Refusal, clean_text
from gpushare.domain.quantity import NotAQuantity, NotWhole, is_in_bytes, parse_whole
from gpushare.domain.request import ContainerSpec, Role
from gpushare.kube import names
from gpushare.kube.annotations import read_card_selector
from gpushare.kube.codec import build_claims_by_annotation
from gpushare.yaml_edit import (
    Field,
    NotEditable,
    YamlText,
    child_of,
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
_DENIED_VARIABLES = (names.VISIBLE, "CUDA_MPS_", "NVIDIA_GPU_MEMORY_")
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
    by_hand: bool
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
    migration = _Migration(text, options)
    new = migration.yaml.edited()
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
    findings = dict.fromkeys(migration.findings)
    by_line = sorted(findings, key=lambda finding: finding.line)
    return Rewritten(new, len(migration.changed), by_line)


@dataclass(frozen=True, slots=True)
class _ResourceField:
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
    fields: Sequence[tuple[MappingNode, Sequence[_ResourceField]]]
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
        kind, name = text_of(child_of(node, "kind")), child_of(node, "metadata", "name")
        if kind and name is not None:
            namespace = text_of(child_of(node, "metadata", "namespace"))
            slash = f"{namespace}/" if namespace else ""
            self._object = f"{kind} {slash}{text_of(name)}"
            self._start = node.start_mark.index

    def _look(self, node: MappingNode, parent: Node | None) -> None:
        """Rewrite a pod, a container outside of pods, or limits."""
        kind = text_of(child_of(node, "kind"))
        if isinstance(child_of(node, "containers"), SequenceNode):
            is_spec = child_of(parent, "spec") is node
            self._pod(node, child_of(parent, "metadata") if is_spec else None)
        elif id(node) in self._understood:
            # A container of a pod.
            return
        elif isinstance(child_of(node, "resources"), MappingNode):
            self._convert([self._container(node, Role.APP, hami=False)])
        elif kind == "ResourceQuota":
            self._limits(child_of(node, "spec", "hard"), _IN_QUOTAS)
        elif kind == "LimitRange":
            for item in items_of(child_of(node, "spec", "limits")):
                for name in _IN_LIMIT_RANGES:
                    self._limits(child_of(item, name), ("",))

    def _check_place(self, name: ScalarNode) -> None:
        """Report a resource of another system in a place that is not known."""
        bare = name.value
        for prefix in _IN_QUOTAS:
            bare = bare.removeprefix(prefix)
        if bare.startswith(systems.VOLCANO):
            self._report_field(name, systems.VOLCANO_HINT)
        elif self._is_meant(bare) and id(name) not in self._understood:
            self._report_field(
                name, "it is not in a container or quota; change it by hand"
            )

    def _is_meant(self, resource: str) -> bool:
        """Return whether a resource in a place that is not known is to be reported.

        nvidia.com/gpu is, if it is known which system's it is.
        """
        meaning = self._options.meaning(resource, hami=self._names_hami)
        return meaning is not None and meaning[0] is not None

    def _check_text(self, node: Node) -> None:
        """Report a text that names a resource, such as a patch or a file in a file."""
        meant = [name for name in (*RESOURCES, GPU) if self._is_meant(name)]
        if name := _mentions(text_of(node), meant):
            self._report(node, f"{name}: a text names it; look whether it must change")

    def _report(
        self, node: Node, text: str, container: str = "", *, by_hand: bool = True
    ) -> None:
        where = f"{self._object}, container {container}" if container else self._object
        self.findings.append(Finding(node.start_mark.line + 1, where, text, by_hand))

    def _report_field(self, name: ScalarNode, text: str, container: str = "") -> None:
        self._report(name, f"{name.value}: {text}", container)

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
            for field in self._fields(node, prefix=prefix, hami=self._is_hami(bare)):
                limit = systems.convert_limit(
                    field.system, field.part, field.number, self._options
                )
                if isinstance(limit, str):
                    self._report_field(field.name, f"{limit}; not changed")
                    continue
                # Quotas on resources of this kind count requests only.
                start = "requests." if prefix else ""
                pairs = [(f"{start}{key}", text) for key, text in _pairs(limit)]
                if any(key in present for key, _ in pairs):
                    problem = f"{pairs[0][0]} is there already; not changed"
                    self._report_field(field.name, problem)
                    continue
                present |= {key for key, _ in pairs}
                new[field.name.value] = pairs
        if node is not None:
            self._replace(node, new)

    def _fields(
        self, node: Node | None, *, prefix: str = "", hami: bool
    ) -> list[_ResourceField]:
        fields = []
        for name, value in entries_of(node):
            if not name.value.startswith(prefix):
                continue
            bare = name.value.removeprefix(prefix)
            meaning = self._options.meaning(bare, hami=hami)
            if meaning is not None:
                self._understood.add(id(name))
                fields.append(_ResourceField(name, *meaning, _number(value)))
        return fields

    def _is_hami(self, resources: Iterable[str]) -> bool:
        """Return whether resources tell that nvidia.com/gpu beside them is HAMi's."""
        named = (RESOURCES.get(name, (None,))[0] for name in resources)
        return self._options.system in (None, System.HAMI) and System.HAMI in named

    def _pod(self, spec: MappingNode, metadata: Node | None) -> None:
        """Rewrite a pod or its template: containers, annotations, scheduler."""
        written = child_of(metadata, "annotations")
        annotations = {
            name.value: text_of(value) for name, value in entries_of(written)
        }
        scheduler = text_of(child_of(spec, "schedulerName"))
        hami = systems.is_hami(annotations, scheduler)
        containers = [
            self._container(node, _role(node, key), hami=hami)
            for key in ("initContainers", "containers")
            for node in items_of(child_of(spec, key))
        ]
        count = text_of(child_of(metadata, "labels", _SEVERAL))
        if count not in ("", "0", "1"):
            text = f"the pod's label {_SEVERAL} asks for parts of {count} cards"
            self._refuse(containers, f"{text}; here they are parts of one card")
        elif self._convert(containers):
            self._annotate(metadata, written, annotations)
            if scheduler == systems.HAMI_SCHEDULER:
                self._replace(spec, {"schedulerName": []})

    def _container(self, node: Node, role: Role, *, hami: bool) -> _Container:
        lists = [child_of(node, "resources", key) for key in ("limits", "requests")]
        every = [name.value for resources in lists for name, _ in entries_of(resources)]
        hami = hami or self._is_hami(every)
        self._understood.add(id(node))
        fields = [
            (resources, some)
            for resources in lists
            if isinstance(resources, MappingNode)
            and (some := self._fields(resources, hami=hami))
        ]
        flat = [field for _, some in fields for field in some]
        wanted = _renamed_count(lists, flat) or self._wanted(flat, every)
        return _Container(text_of(child_of(node, "name")), node, role, fields, wanted)

    def _wanted(
        self, fields: Sequence[_ResourceField], every: Iterable[str]
    ) -> Amount | str:
        numbers: dict[Part, int] = {}
        several = len({field.name.value for field in fields}) > 1
        for field in fields:
            name, number = field.name.value, field.number
            if isinstance(number, str):
                return f"{name}: {number}" if several else number
            if numbers.setdefault(field.part, number) != number:
                return f"{name} differs between limits and requests"
        if any(name in (names.MEMORY, names.CORE) for name in every):
            return f"the container asks for {names.PREFIX}-…, too; keep one of them"
        named = {field.system for field in fields}
        if len(named) > 1:
            return "the container names resources of several systems; keep one of them"
        system = next(iter(named), None)
        return systems.convert_amount(system, numbers, self._options)

    def _refuse(self, containers: Iterable[_Container], problem: str) -> None:
        for container in containers:
            if container.fields:
                text = f"{problem}; not changed"
                self._report_all([container], text, container.name)

    def _report_all(
        self,
        containers: Sequence[_Container],
        text: str,
        container: str = "",
        *,
        by_hand: bool = True,
    ) -> None:
        """Report something that is about all resources of containers together."""
        lists = [some for each in containers for _, some in each.fields]
        resources = dict.fromkeys(each.name.value for some in lists for each in some)
        words = f"{', '.join(resources)}: {text}"
        self._report(lists[0][0].name, words, container, by_hand=by_hand)

    def _convert(self, containers: Sequence[_Container]) -> bool:
        asking = [container for container in containers if container.amount]
        for container in containers:
            if container.fields and isinstance(container.wanted, str):
                self._refuse([container], container.wanted)
        # A core each, as the webhook sets it, unless the sum would be whole cards.
        total = sum(container.amount.cores for container in asking)
        bare = sum(not container.amount.cores for container in asking)
        least = 1 if total + bare < CORES_PER_CARD else 0
        for container in asking:
            amount = container.amount
            amount = Amount(amount.cores or least, amount.units)
            for node, fields in container.fields:
                self._replace(node, _assigned(fields, _pairs(amount)))
            self._check_others(container)
        if asking:
            self._check(asking)
        return bool(asking)

    def _check(self, asking: Sequence[_Container]) -> None:
        """Report what the scheduler would refuse, and what it places otherwise."""
        specs = [ContainerSpec(each.name, each.role, each.amount) for each in asking]
        claims = build_claims_by_annotation(specs, apart=False)
        system = asking[0].fields[0][1][0].system
        if isinstance(claims, Refusal):
            self._report_all(asking, f"the pod would be refused: {claims.detail}")
        elif len(asking) > 1 and system is not System.GPUSHARE_EXTENDER:
            self._report_all(
                asking,
                "its containers get one card together; for a card each set the "
                f"annotation {names.CONTAINERS}: {names.APART}",
                by_hand=False,
            )

    def _check_others(self, container: _Container) -> None:
        """Report what would keep a rewritten container from its card."""
        for node, _ in container.fields:
            for name, _ in entries_of(node):
                known = id(name) in self._understood
                foreign = name.value.startswith(systems.FOREIGN)
                if (foreign or _OTHER_COUNT.match(name.value)) and not known:
                    text = "no node offers it here, so the pod would wait; remove it"
                    self._report_field(name, text, container.name)
        for item in items_of(child_of(container.node, "env")):
            variable = child_of(item, "name")
            denied = text_of(variable).startswith(_DENIED_VARIABLES)
            if denied and isinstance(variable, ScalarNode):
                text = "remove it: it overrides the card, and the webhook denies it"
                self._report_field(variable, text, container.name)

    def _annotate(
        self,
        metadata: Node | None,
        written: Node | None,
        annotations: Mapping[str, str],
    ) -> None:
        """Rewrite the annotations of a pod; if all go, their field goes, too."""
        carried = systems.translate_annotations(annotations)
        problems = dict(carried.problems)
        new: dict[str, list[Field]] = {}
        done = set(annotations)
        for old, name in carried.sources.items():
            value = carried.values.get(name, "")
            refusal = read_card_selector({name: value})
            if name in annotations:
                problems[old] = f"{name} is there already; not changed"
            elif isinstance(refusal, Refusal):
                problems[old] = f"{refusal.detail}; not changed"
            else:
                new[old] = [] if not name or name in done else [(name, value)]
                done.add(name)
        for key, _ in entries_of(written):
            if key.value in problems:
                self._report_field(key, problems[key.value])
        if written is not None and new:
            empty = not any(new.values()) and set(new) == set(annotations)
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


def _renamed_count(
    lists: Iterable[Node | None], fields: Sequence[_ResourceField]
) -> str:
    """Return why a container of HAMi may be of several cards, or "".

    An operator of HAMi may give the number of cards another name than nvidia.com/gpu.
    """
    if not any(field.system is System.HAMI for field in fields):
        return ""
    known = {field.name.value for field in fields}
    for name, value in (entry for node in lists for entry in entries_of(node)):
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
    stays = text_of(child_of(node, "restartPolicy")) == "Always"
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
    both = ((names.MEMORY, amount.units), (names.CORE, amount.cores))
    return [(name, str(number)) for name, number in both if number]


def _assigned(
    fields: Sequence[_ResourceField], pairs: Sequence[Field]
) -> dict[str, list[Field]]:
    """Choose which old field becomes which new one; the others are removed.

    Memory becomes memory and cores become cores, so that comments stay with them.
    """
    rest = dict(pairs)
    new: dict[str, list[Field]] = {field.name.value: [] for field in fields}
    like = {
        Part.MEMORY: names.MEMORY,
        Part.PERCENT: names.MEMORY,
        Part.CORES: names.CORE,
    }
    for field in fields:
        name = like.get(field.part, "")
        if name in rest:
            new[field.name.value].append((name, rest.pop(name)))
    for field in fields:
        if rest and not new[field.name.value]:
            name = next(iter(rest))
            new[field.name.value].append((name, rest.pop(name)))
    next(pairs for pairs in reversed(new.values()) if pairs).extend(rest.items())
    return new
