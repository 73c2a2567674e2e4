"""Pods written for Bitfusion, rewritten for cards of this cluster. Pure.

What each field becomes, the texts of denials, and what cannot be had:
``docs/bitfusion.md``.
"""

from dataclasses import dataclass

from extender import bitfusionclient, bitfusionnames
from extender.bitfusionfilter import wishes
from extender.bitfusionpod import Asking, parts_of, read_pod
from extender.bitfusionrewrite import Plan, rewritten, why_they_share
from extender.bitfusionrules import BitfusionRules, CardTotal, total_of
from extender.pool import Pool
from gpushare.domain.summary import users_words
from gpushare.kube import names
from gpushare.kube.cluster import Json

__all__ = ["BitfusionRules", "CardTotal", "Translation", "total_of", "translate"]

EXCLUDED = frozenset({"kube-system", "kube-public", "kube-node-lease"})
"""Namespaces whose pods are left alone; the first is our own too."""

_ALL, _INJECTION = "all", "injection"
_YES = frozenset({"y", "yes", "true", "on", _ALL})
_NO = frozenset({"", "n", "no", "false", "off", "none"})
_MOST_SHOWN = 30


@dataclass(frozen=True, slots=True)
class Translation:
    """A pod after its translation, or as it came where there was nothing to translate.

    With ``denials``, all that is wrong with it, it is as it came. ``sharing`` says why
    several containers that ask are not apart, and what would make them so.
    """

    pod: Json
    denials: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    sharing: str = ""


@dataclass(frozen=True, slots=True)
class _Mode:
    """``word`` is all, injection or empty; ``own`` where the pod itself says so."""

    word: str
    own: bool
    warnings: tuple[str, ...] = ()


def translate(
    pod: Json, *, namespace: str, mode: str, rules: BitfusionRules, pool: Pool
) -> Translation:
    """Rewrite a pod that asks for parts of Bitfusion's cards; it is not changed itself.

    ``namespace`` is the request's, since the pods of controllers name none; ``mode``
    (all, injection, or empty) holds where the pod's annotation is silent. A pod whose
    requests are not its limits is left to the API server, which refuses it.
    """
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    chosen = _mode(annotations, mode)
    status = annotations.get(bitfusionnames.STATUS) or ""
    if namespace in EXCLUDED or status.lower() == bitfusionnames.INJECTED:
        return Translation(pod)
    if not chosen.word:
        return Translation(pod, warnings=chosen.warnings)
    found = read_pod(pod["spec"], shell=rules.shell, calls=chosen.own)
    sized = parts_of(found.asking, rules, pool)
    denials = [*found.denials, *sized.denials]
    if denials:
        return Translation(pod, tuple(denials))
    if found.uneven:
        return Translation(pod)
    if not found.asking:
        return Translation(pod, warnings=_nothing_asked(chosen))
    asking = tuple(found.asking)
    wished = wishes(_filters(annotations, asking), pool)
    may_fail = [*wished.complaints, *_no_node(pool), *sized.waits]
    if rules.strict and may_fail:
        return Translation(pod, tuple(may_fail))
    plan = Plan(asking, sized, wished, commands=chosen.word == _ALL)
    warnings = [
        *_packing(annotations, chosen),
        *may_fail,
        *sized.remarks,
        *_commands(plan),
    ]
    after = rewritten(pod, plan, rules)
    sharing = why_they_share(after["spec"], asking)
    return Translation(after, (), tuple(warnings), sharing)


def _mode(annotations: Json, of_namespace: str) -> _Mode:
    """Say how to translate; the pod's own word goes before its namespace's."""
    own = annotations.get(bitfusionnames.MODE)
    if own is None:
        return _Mode(of_namespace, own=False)
    word = own.strip().lower()
    if word in _YES:
        return _Mode(_ALL, own=True)
    if word == _INJECTION:
        return _Mode(_INJECTION, own=True)
    if word in _NO:
        return _Mode("", own=True)
    shown = users_words(own)[:_MOST_SHOWN]
    told = f'{bitfusionnames.MODE} is "{shown}"; only all, injection and none are known'
    return _Mode("", own=True, warnings=(told,))


def _nothing_asked(chosen: _Mode) -> tuple[str, ...]:
    if not chosen.own:
        return ()
    asked = bitfusionnames.AMOUNT
    return (f"{bitfusionnames.MODE} is {chosen.word}, but no container asks {asked}",)


def _filters(annotations: Json, asking: tuple[Asking, ...]) -> list[str]:
    texts = [annotations.get(bitfusionnames.FILTER) or ""]
    for one in asking:
        for run in one.command.runs:
            texts += run.filters
    return texts


def _no_node(pool: Pool) -> tuple[str, ...]:
    if pool.has_resource is not False:
        return ()
    return (f"Resource validation failed: no node has {names.MEMORY} yet",)


def _packing(annotations: Json, chosen: _Mode) -> tuple[str, ...]:
    if not chosen.own or bitfusionclient.packed(annotations):
        return ()
    described = f"{bitfusionnames.OS} or {bitfusionnames.VERSION}"
    return (
        f"{described} is missing or unknown, which does no harm: no client is used",
    )


def _commands(plan: Plan) -> list[str]:
    if not plan.commands:
        return []
    return [
        f"{one.path}.command {warning}"
        for one in plan.asking
        for warning in one.command.warnings
    ]
