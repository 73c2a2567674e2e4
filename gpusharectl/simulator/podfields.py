"""Pods as a scenario writes them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from gpushare.domain.model import CORES_PER_CARD
from gpushare.domain.policies import POLICIES
from gpushare.domain.summary import Refusal, users_words
from gpushare.kube import codec
from gpushare.kube.cluster import Json
from gpushare.kube.codec import refusal_text
from gpushare.kube.fields import Malformed
from gpusharectl.simulator import made
from gpusharectl.simulator.durations import whole_ms
from gpusharectl.simulator.nodefields import read_labels, read_name
from gpusharectl.simulator.podtemplate import playable
from gpusharectl.simulator.yamlfields import MOST, Entry
from gpusharectl.simulator.yamltimes import moment, quantity

_SHORT = (
    *("units", "cores", "cpu", "memory", "models", "uuids", "policy"),
    *("priority", "node_selector"),
)
_LEAST_PRIORITY = -(2**31)
"""Kubernetes has 32 bits for it; the most is a user's, 1,000,000,000."""
_WHEN = ("name", "namespace", "count", "at", "every", "lasts")


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that are all alike, and come one after the other."""

    entry: Entry
    namespace: str
    name: str
    template: Json
    count: int
    numbered: bool
    at_s: float
    every_s: float
    lasts_s: float | None

    def name_of(self, number: int) -> str:
        """Name the pod of this number, from 0."""
        return f"{self.name}-{number + 1}" if self.numbered else self.name

    def comes_s(self, number: int) -> float:
        """Give the second in which the pod of this number comes."""
        return whole_ms(self.at_s + number * self.every_s)

    def pod(self, name: str) -> Json:
        """Make one of the pods."""
        return made.named_after(self.template, self.namespace, name)


def read_group(entry: Entry) -> Group:
    """Read one entry of ``pods``; what no card could ever meet is told at once."""
    entry.known(*_WHEN, *_SHORT, "template")
    name = read_name(entry)
    template = _template(entry) if entry.has("template") else _short(entry)
    namespace = read_name(entry, "namespace", _namespace(template))
    group = Group(
        entry,
        namespace,
        name,
        template,
        entry.integer("count", 1),
        entry.has("count"),
        moment(entry, "at", 0.0),
        moment(entry, "every", 0.0),
        moment(entry, "lasts", 0.0) if entry.has("lasts") else None,
    )
    _check(group)
    _check_length(group)
    return group


def _namespace(template: Json) -> str:
    return str((template.get("metadata") or {}).get("namespace") or "default")


def _short(entry: Entry) -> Json:
    policy = entry.one_of("policy", POLICIES, "") if entry.has("policy") else ""
    units = entry.integer("units", 0)
    asked = made.Asked(
        units=units,
        # As the webhook has it: who asks for memory has a core of it, at least.
        cores=entry.integer("cores", 1 if units else 0),
        cpu=quantity(entry, "cpu"),
        memory=quantity(entry, "memory"),
        models=tuple(entry.texts("models")),
        uuids=tuple(entry.texts("uuids")),
        policy=policy,
        priority=entry.integer("priority", 0, least=_LEAST_PRIORITY),
        node_selector=read_labels(entry, "node_selector"),
    )
    if asked.cores > CORES_PER_CARD and asked.cores % CORES_PER_CARD:
        raise entry.wrong(
            "cores",
            f"is {asked.cores}; 1 to 99 are a share of one card, 100, 200, … whole "
            "cards",
        )
    return made.pod("default", "pod", asked)


def _template(entry: Entry) -> Json:
    both = [key for key in _SHORT if entry.has(key)]
    if both:
        raise entry.wrong(both[0], "stands in the template, or here, but not in both")
    raw = entry.plain("template")
    try:
        found = orjson.loads(orjson.dumps(raw))
    except (TypeError, orjson.JSONEncodeError) as error:
        raise entry.wrong("template", f"is no Kubernetes object: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("spec"), Mapping):
        raise entry.wrong("template", "needs a spec, as a Pod or a Deployment has it")
    inner = found["spec"].get("template")
    try:
        pod = playable(inner if isinstance(inner, dict) and "spec" in inner else found)
    except Malformed as error:
        raise entry.wrong("template", str(error)) from error
    priority_class = pod["spec"].get("priorityClassName")
    if priority_class and "priority" not in pod["spec"]:
        raise entry.wrong(
            "template",
            f'spec.priorityClassName: is "{users_words(str(priority_class))}", and a '
            "scenario has no classes; give the value of that class as spec.priority",
        )
    return pod


def _check_length(group: Group) -> None:
    """Refuse pods that come, or end, beyond the times that a scenario knows."""
    length = group.at_s + group.every_s * group.count + (group.lasts_s or 0.0)
    if length > MOST:
        times = {"every": group.every_s, "lasts": group.lasts_s, "at": group.at_s}
        key = next(key for key, told_s in times.items() if told_s)
        raise group.entry.wrong(
            key, f"at + every x count + lasts is {length:.15g} s; it may be {MOST} s"
        )


def _check(group: Group) -> None:
    """Read a pod as the extender would: so its complaint has a line, too."""
    pod = group.pod(group.name_of(0))
    pod["metadata"]["uid"] = "checked"
    where = "template" if group.entry.has("template") else "name"
    try:
        asked = codec.pod_request(pod, codec.pod_ref(pod))
    except Malformed as error:
        raise group.entry.wrong(where, str(error)) from error
    if isinstance(asked, Refusal):
        raise group.entry.wrong(where, refusal_text(asked))
