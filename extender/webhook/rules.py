"""The rules for one new pod: what is put right, denied, and warned of. Pure."""

from dataclasses import dataclass, field

from extender.bitfusion.resources import BitfusionRules
from extender.bitfusion.translate import Translation, translate
from extender.pool import Pool
from extender.webhook import mutate
from extender.webhook.pod import insist_on_shape, opened
from extender.webhook.validate import (
    EnvFrom,
    Judged,
    card_variables,
    covered,
    forged,
    judged_request,
    pool_warnings,
    unknown_resources,
)
from gpushare.kube import codec
from gpushare.kube.cluster import Json
from gpushare.kube.facts import SYSTEM_NAMESPACES
from gpushare.kube.json_reader import Malformed

_MIRROR = "kubernetes.io/config.mirror"
"""Annotation by which kubelet tells that a pod is a static one of its own."""
_KUBELET = "system:node:"
"""What the names of kubelets' users begin with; anybody can write the annotation."""
MOST_DENIALS = 20
"""Told at once; a pod may have a thousand containers, each wrong in its own way."""
MOST_OF_A_WARNING = 120
"""Characters; what is longer some API servers cut in the middle of a word."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator chose for new pods."""

    void: bool = False
    """Whether containers under nvidia's RuntimeClass that ask for nothing see none."""
    set_scheduler: str = ""
    """Who schedules pods that ask for cards; empty leaves it to the pod."""
    set_runtime_class: str = ""
    """RuntimeClass of pods that ask for cards and name none; empty for none."""
    env_from: EnvFrom = "auto"
    """Whether ``envFrom`` is denied: where it could hide a pod's card, or as said."""
    runtime_classes: frozenset[str] = frozenset()
    """More RuntimeClasses that bring cards, where their names do not tell."""
    quotas: bool = False
    """Whether pods ask for all that they hold, so that quotas count it."""
    bitfusion: BitfusionRules = field(default_factory=BitfusionRules)

    @property
    def bring_cards(self) -> frozenset[str]:
        """RuntimeClasses that bring cards, beside those with nvidia in their names."""
        return self.runtime_classes | {self.set_runtime_class}

    @property
    def may_change(self) -> bool:
        """Whether they change pods that have said all themselves."""
        return bool(
            self.void or self.set_scheduler or self.set_runtime_class or self.quotas
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one review.

    ``pod`` is the pod as it is to be; ``denials`` say all that is wrong at once, one
    a line; ``warnings`` what may yet work.
    """

    pod: Json
    denials: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def review(  # noqa: PLR0913
    pod: Json,
    *,
    namespace: str,
    mutating: bool,
    mode: str,
    rules: Rules,
    pool: Pool,
    user: str = "",
    old: Json | None = None,
) -> Verdict:
    """Judge a new pod, and where ``mutating``, give it what it did not say.

    ``namespace`` is the request's, since a controller's pod may not name its own;
    ``mode`` is how the namespace's pods for Bitfusion are translated, empty where only
    a pod's own annotation counts. ``old`` is the pod as it was, where a debugging
    container is added to it: then only that container is looked at.
    """
    if namespace in SYSTEM_NAMESPACES:
        return Verdict(pod)
    try:
        insist_on_shape(pod)
        if user.startswith(_KUBELET) and _MIRROR in _annotations(pod):
            # kubelet runs what its own file says, whatever stands here.
            return Verdict(pod)
        if old is not None:
            insist_on_shape(old)
            return _debugging(pod, old, rules, mutating=mutating)
        if not mutating:
            return _verdict(pod, pod, _denials(pod, judged_request(pod), rules), [])
        told = translate(
            pod, namespace=namespace, mode=mode, rules=rules.bitfusion, pool=pool
        )
        return _put_right(pod, told, rules, pool)
    except Malformed as error:
        return Verdict(pod, denials=(str(error),))


def _put_right(pod: Json, told: Translation, rules: Rules, pool: Pool) -> Verdict:
    translated = told.pod is not pod
    after, warnings = told.pod, list(told.warnings)
    if rules.may_change or mutate.lacks_cores(after):
        after = opened(after)
        warnings += _improve(after, rules, pool)
    judged = judged_request(after)
    denials = [*told.denials, *_denials(after, judged, rules)]
    if judged.summed and told.sharing:
        denials.append(told.sharing)
    if not denials:
        warnings += [*unknown_resources(after), *codec.unknown_annotations(after)]
    # Of a translated pod its own warnings speak of the pool already, each container's.
    if (told.sharing or not translated) and judged.request is not None:
        warnings += pool_warnings(judged.request, pool)
    return _verdict(pod, after, denials, warnings)


def _debugging(pod: Json, old: Json, rules: Rules, *, mutating: bool) -> Verdict:
    after, warnings = pod, []
    if mutating and rules.void:
        after = opened(pod)
        warnings = mutate.void(after, rules.bring_cards, old)
    variables = card_variables(after, rules.env_from, rules.bring_cards, old)
    return _verdict(pod, after, list(variables), warnings)


def _improve(pod: Json, rules: Rules, pool: Pool) -> list[str]:
    """Return the pod what it did not say; its warnings."""
    warnings = []
    if mutate.asks(pod):
        mutate.default_cores(pod, even_zero=rules.quotas)
        if rules.quotas and pool.smallest_units:
            mutate.memory_of_whole_cards(pod, pool.smallest_units)
        if rules.set_runtime_class:
            mutate.runtime_class(pod, rules.set_runtime_class)
        if rules.set_scheduler:
            warnings += mutate.scheduler(pod, rules.set_scheduler)
    if rules.void:
        warnings += mutate.void(pod, rules.bring_cards, None)
    return warnings


def _denials(pod: Json, judged: Judged, rules: Rules) -> list[str]:
    return [
        *forged(pod),
        *judged.complaints,
        *card_variables(pod, rules.env_from, rules.bring_cards),
        *covered(pod),
    ]


def _verdict(
    pod: Json, after: Json, denials: list[str], warnings: list[str]
) -> Verdict:
    if denials:
        more = len(denials) - MOST_DENIALS
        told = denials[:MOST_DENIALS]
        if more > 0:
            told.append(f"and {more} more")
        # Whatever was put right meanwhile: what is denied stays as it came.
        after = pod
    else:
        told = []
    brief = tuple(_brief(text) for text in dict.fromkeys(warnings))
    return Verdict(after, tuple(told), brief)


def _annotations(pod: Json) -> Json:
    return (pod.get("metadata") or {}).get("annotations") or {}


def _brief(text: str) -> str:
    if len(text) <= MOST_OF_A_WARNING:
        return text
    return text[: MOST_OF_A_WARNING - 1] + "…"
