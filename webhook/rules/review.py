"""Judge one new pod: what is changed, denied and warned of; the patch of it. Pure."""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gpushare.kube.annotations import find_unknown_annotations
from gpushare.kube.cluster import Json
from gpushare.kube.facts import SYSTEM_NAMESPACES
from gpushare.kube.json_reader import Malformed
from webhook.bitfusion.resources import BitfusionRules
from webhook.bitfusion.translate import Translation, translate_pod
from webhook.pod import (
    asks_for_cards,
    copy_to_change,
    insist_on_shape,
    names_mib,
    pod_annotations,
)
from webhook.pool import CardPool
from webhook.rules import mutate
from webhook.rules.by_claims import replace_request_by_claim
from webhook.rules.validate import (
    EnvFrom,
    JudgedRequest,
    deny_card_variables,
    deny_forged_annotations,
    deny_mib_left,
    deny_mounts_over_share,
    judge_request,
    warn_of_unknown_resources,
    warn_of_waits,
)

_MIRROR = "kubernetes.io/config.mirror"
"""Annotation with which kubelet marks its static pods."""
_KUBELET = "system:node:"
"""Prefix of kubelets' user names; anybody can write the annotation."""
MOST_DENIALS = 20
"""Reported at once; a pod may have a thousand containers."""
MOST_WARNINGS = 100
"""In one answer; a pod may name 20,000 unknown resources."""
MOST_OF_A_WARNING = 256
"""Characters. kube-apiserver cuts each warning to as many if a response's are above
4096 together, and then leaves out the last ones (contracts 8)."""


@dataclass(frozen=True, slots=True)
class ReviewSettings:
    """The operator's settings for new pods."""

    void: bool = False
    """Whether containers without a card see none, under a RuntimeClass for cards."""
    set_scheduler: str = ""
    """Scheduler of pods that ask for cards; empty to leave it to the pod."""
    set_runtime_class: str = ""
    """RuntimeClass of pods that ask for cards and name none; empty for none."""
    env_from: EnvFrom = "auto"
    """Whether ``envFrom`` is denied where it could lift a pod's limit."""
    runtime_classes: frozenset[str] = frozenset()
    """More RuntimeClasses that bring cards, without nvidia in their names."""
    quotas: bool = False
    """Whether pods must ask for all that they hold, so that quotas count it."""
    bitfusion: BitfusionRules = field(default_factory=BitfusionRules)

    @property
    def bring_cards(self) -> frozenset[str]:
        """RuntimeClasses that bring cards, beside those with nvidia in their names."""
        return self.runtime_classes | {self.set_runtime_class}

    @property
    def may_change(self) -> bool:
        """Whether pods that specify everything may be changed too."""
        return bool(
            self.void or self.set_scheduler or self.set_runtime_class or self.quotas
        )


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """The result of one review.

    ``pod`` is the changed pod; ``denials`` are all that is wrong, each one line;
    ``warnings`` are about what is allowed but may not work.
    """

    pod: Json
    denials: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def review_pod(  # noqa: PLR0913
    pod: Json,
    *,
    namespace: str,
    mutating: bool,
    mode: str,
    rules: ReviewSettings,
    pool: CardPool,
    user: str = "",
    before_debugging: Json | None = None,
    before_update: Json | None = None,
    dra: bool = False,
) -> PodVerdict:
    """Judge a new pod; if ``mutating``, add what it did not specify.

    ``namespace`` is the request's, since a controller's pod may not name its own.
    ``mode`` tells how Bitfusion pods of the namespace are translated; if it is empty,
    only a pod's own annotation counts. ``before_debugging`` is the pod before a
    debugging container is added to it: then only that container is judged.
    ``before_update`` is the pod before an update, in which only memory in MiB is
    judged: a file that is applied again has it. ``dra`` tells that pods of the
    namespace get their cards by claims.
    """
    if namespace in SYSTEM_NAMESPACES:
        return PodVerdict(pod)
    try:
        insist_on_shape(pod)
        if user.startswith(_KUBELET) and _MIRROR in pod_annotations(pod):
            # kubelet runs what is in its own file, whatever is answered here.
            return PodVerdict(pod)
        if before_update is not None:
            insist_on_shape(before_update)
            return _updated(pod, before_update) if mutating else PodVerdict(pod)
        if before_debugging is not None:
            insist_on_shape(before_debugging)
            return _debugging(pod, before_debugging, rules, mutating=mutating)
        if not mutating:
            return _verdict(pod, pod, _denials(pod, judge_request(pod), rules), [])
        in_units, counted = pod, []
        if names_mib(pod):
            in_units = copy_to_change(pod)
            counted = mutate.replace_mib_by_units(in_units)
        translation = translate_pod(
            in_units, namespace=namespace, mode=mode, rules=rules.bitfusion, pool=pool
        )
        after, denials, warnings = _mutated(in_units, translation, rules, pool)
        if dra and not denials:
            second = bool(rules.set_scheduler)
            after, more = replace_request_by_claim(
                after, namespace, second_scheduler=second
            )
            # First, since a command in it is needed; the last ones may be left out.
            warnings = [*more, *warnings]
        return _verdict(pod, after, denials, [*([] if denials else counted), *warnings])
    except Malformed as error:
        return PodVerdict(pod, denials=(str(error),))


def _mutated(
    pod: Json, translation: Translation, rules: ReviewSettings, pool: CardPool
) -> tuple[Json, list[str], list[str]]:
    """Return the changed pod, its denials and its warnings."""
    translated = translation.pod is not pod
    after, warnings = translation.pod, list(translation.warnings)
    if rules.may_change or mutate.lacks_cores(after):
        after = copy_to_change(after)
        warnings += _improve(after, rules, pool)
    judged = judge_request(after)
    denials = [*translation.denials, *_denials(after, judged, rules)]
    if judged.summed and translation.sharing:
        denials.append(translation.sharing)
    if not denials:
        warnings += [
            *warn_of_unknown_resources(after),
            *find_unknown_annotations(after),
        ]
    # The warnings of a translated pod are about the pool already, per container.
    if (translation.sharing or not translated) and judged.request is not None:
        warnings += warn_of_waits(judged.request, pool)
    return after, denials, warnings


def _updated(pod: Json, before: Json) -> PodVerdict:
    if names_mib(before):
        # It was created without this webhook, and cannot be changed any more.
        return PodVerdict(pod)
    after = copy_to_change(pod)
    denials = mutate.drop_known_mib(after)
    return _verdict(pod, after, denials, [])


def _debugging(
    pod: Json, before: Json, rules: ReviewSettings, *, mutating: bool
) -> PodVerdict:
    after, warnings = pod, []
    if mutating and rules.void:
        after = copy_to_change(pod)
        warnings = mutate.hide_cards(after, rules.bring_cards, before)
    variables = deny_card_variables(after, rules.env_from, before)
    return _verdict(pod, after, list(variables), warnings)


def _improve(pod: Json, rules: ReviewSettings, pool: CardPool) -> list[str]:
    """Add what the pod did not specify; return warnings."""
    warnings = []
    if asks_for_cards(pod):
        mutate.set_default_cores(pod, even_zero=rules.quotas)
        if rules.quotas:
            mutate.set_memory_of_whole_cards(pod, pool)
        if rules.set_runtime_class:
            mutate.set_runtime_class(pod, rules.set_runtime_class)
        if rules.set_scheduler:
            warnings += mutate.set_scheduler(pod, rules.set_scheduler)
    if rules.void:
        warnings += mutate.hide_cards(pod, rules.bring_cards, None)
    return warnings


def _denials(pod: Json, judged: JudgedRequest, rules: ReviewSettings) -> list[str]:
    return [
        *deny_forged_annotations(pod),
        *(deny_mib_left(pod) if names_mib(pod) else ()),
        *judged.complaints,
        *deny_card_variables(pod, rules.env_from),
        *deny_mounts_over_share(pod),
    ]


def _verdict(
    pod: Json, after: Json, denials: list[str], warnings: list[str]
) -> PodVerdict:
    shown = denials[:MOST_DENIALS]
    if len(denials) > MOST_DENIALS:
        shown.append(f"and {len(denials) - MOST_DENIALS} more")
    most = MOST_OF_A_WARNING
    brief = tuple(
        text if len(text) <= most else f"{text[: most - 1]}…"
        for text in islice(dict.fromkeys(warnings), MOST_WARNINGS)
    )
    # A denied pod stays as it arrived.
    return PodVerdict(pod if denials else after, tuple(shown), brief)


def patch_between(before: Json, after: Json) -> list[Json]:
    """Return the steps that make ``after`` out of ``before``; empty if they are equal.

    A JSON patch (RFC 6902). The rules change a copy of the pod, and the patch is the
    difference, so it always fits the object that arrived.

    The steps are ``add``, ``replace`` and ``remove``. A missing object is added whole,
    so no step needs a parent that another step makes. Lists are compared index by
    index: items are added and removed at the end.
    """
    steps: list[Json] = []
    _compare("", before, after, steps)
    return steps


def _compare(path: str, old: Any, new: Any, steps: list[Json]) -> None:  # noqa: ANN401
    if old is new:
        # Most parts of a pod: the copy shares what the rules do not change.
        return
    kind = type(old)
    # In Python, but not in JSON, true equals 1 and 1 equals 1.0.
    if kind is not type(new):
        steps.append({"op": "replace", "path": path, "value": new})
    elif kind is dict:
        _compare_objects(path, old, new, steps)
    elif kind is list:
        _compare_lists(path, old, new, steps)
    elif old != new:
        steps.append({"op": "replace", "path": path, "value": new})


def _compare_objects(path: str, before: Json, after: Json, steps: list[Json]) -> None:
    for key, old in before.items():
        if key not in after:
            steps.append({"op": "remove", "path": _pointer(path, key)})
        elif old is not after[key]:
            _compare(_pointer(path, key), old, after[key], steps)
    for key, new in after.items():
        if key not in before:
            steps.append({"op": "add", "path": _pointer(path, key), "value": new})


def _compare_lists(
    path: str, before: list[Any], after: list[Any], steps: list[Json]
) -> None:
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        _compare(f"{path}/{index}", old, new, steps)
    added = after[len(before) :]
    steps.extend({"op": "add", "path": f"{path}/-", "value": new} for new in added)
    # From the end, so that a removal moves no item that another step names.
    places = range(len(before) - 1, len(after) - 1, -1)
    steps.extend({"op": "remove", "path": f"{path}/{place}"} for place in places)


def _pointer(path: str, key: str) -> str:
    """Append a key to a JSON pointer (RFC 6901)."""
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
