"""``gpusharectl migrate-quota``: give the numbers of ResourceQuotas another name."""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click

from gpushare.domain.quantity import NotAQuantity, NotWhole, parse_whole
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.words import counted, listed
from gpusharectl.access import access_options, reached
from gpusharectl.output import ObjectChange, fit_to_show, tidy

_HARD = "/spec/hard"


class QuotaRename(NamedTuple):
    """The old and the new resource, as quotas name them; ``keep`` the old one, too."""

    old: str
    new: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """One quota to change: ``steps`` are a JSON patch, ``number`` the value."""

    ref: Ref
    before: Json
    number: str
    steps: Sequence[Json]


@dataclass(frozen=True, slots=True)
class QuotaClash:
    """One quota with both names and two different numbers: a person must choose."""

    ref: Ref
    old_number: str
    new_number: str


def plan_quota_change(
    quota: Json, rename: QuotaRename
) -> QuotaChange | QuotaClash | None:
    """Plan the change of one ResourceQuota; None if there is nothing to do.

    The API server refuses the patch if the limits have changed since they were read.
    """
    hard = _hard(quota)
    if rename.old not in hard:
        return None
    ref, number = Ref.of(quota), str(hard[rename.old])
    steps: list[Json] = [{"op": "test", "path": _HARD, "value": hard}]
    if rename.new not in hard:
        steps.append({"op": "add", "path": _path(rename.new), "value": number})
    elif not _is_same(number, str(hard[rename.new])):
        return QuotaClash(ref, number, str(hard[rename.new]))
    if not rename.keep:
        steps.append({"op": "remove", "path": _path(rename.old)})
    return QuotaChange(ref, quota, number, steps) if len(steps) > 1 else None


def _unbounded_namespaces(
    quotas: Sequence[Json], changes: Sequence[QuotaChange], resource: str
) -> list[str]:
    """Return the namespaces of these changes without a quota on the resource."""
    bounded = {Ref.of(quota).namespace for quota in quotas if resource in _hard(quota)}
    return sorted({change.ref.namespace for change in changes} - bounded)


def _hard(quota: Json) -> Json:
    return (quota.get("spec") or {}).get("hard") or {}


def _path(resource: str) -> str:
    return f"{_HARD}/{resource.replace('~', '~0').replace('/', '~1')}"


def _is_same(number: str, other: str) -> bool:
    """Return whether two quantities are equal: ``1k`` is ``1000``."""
    try:
        return parse_whole(number) == parse_whole(other)
    except (NotAQuantity, NotWhole):
        return number == other


OLD = f"requests.{names.BITFUSION_GPU}"
NEW = f"requests.{names.CORE}"
_UNITS = f"requests.{names.MEMORY}"
_NAME = re.compile(r"requests\.[a-z0-9.-]+/[A-Za-z0-9._-]+")
_UNDECIDED = 1
_MOST_SHOWN = 10
_CODES = (
    "Exit codes: 0 the quotas are now as requested, or --dry-run has shown every "
    "change; 1 it could not be done, or a quota has both names with different numbers; "
    "2 wrong command line."
)


@click.command("migrate-quota", epilog=_CODES)
@click.option(
    "--from",
    "old",
    default=OLD,
    metavar="NAME",
    show_default=True,
    help="The resource that the quotas name now.",
)
@click.option(
    "--to",
    "new",
    default=NEW,
    metavar="NAME",
    show_default=True,
    help="The resource that they will name, with the same number.",
)
@click.option(
    "-n", "--namespace", metavar="NAME", help="Only this namespace; default: all."
)
@click.option(
    "-A", "--all-namespaces", is_flag=True, help="All namespaces; the default."
)
@click.option("--keep", is_flag=True, help="Keep the old name beside the new one.")
@click.option(
    "--dry-run", is_flag=True, help="Show every change as a diff, and change nothing."
)
@access_options
def migrate_quota(  # noqa: PLR0913
    *,
    old: str,
    new: str,
    namespace: str | None,
    all_namespaces: bool,
    keep: bool,
    dry_run: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Let quotas that were made for Bitfusion count what pods request now.

    100 of bitfusion.io/gpu was one card, and 100 of baidu.com/vcuda-core is one card,
    too: each ResourceQuota keeps its number under the new name. Its other limits and
    scopes stay. A second run changes nothing.
    """
    if namespace is not None and all_namespaces:
        raise click.UsageError("-n names one namespace, -A means all of them")
    _check(old, new)
    rename = QuotaRename(old, new, keep)
    with reached(kubeconfig, context) as access:
        quotas = access.objects.list("v1", "ResourceQuota", namespace=namespace or "")
        planned = [plan_quota_change(quota, rename) for quota in quotas]
        changes = [change for change in planned if isinstance(change, QuotaChange)]
        place = Ref("v1", "Namespace", namespace or "")
        if not quotas and namespace and access.objects.get(place) is None:
            raise click.ClickException(f'there is no namespace "{namespace}"')
        if dry_run:
            _show_diffs(access.objects, changes)
        else:
            _apply_changes(access.objects, changes, rename)
    unbounded = _unbounded_namespaces(quotas, changes, _UNITS)
    if new == NEW and unbounded:
        # A pod may request memory with almost no cores.
        shown = listed(unbounded, _MOST_SHOWN)
        words = f"Only cores are limited in {shown}: add {_UNITS} there."
        click.echo(fit_to_show(words))
    _summarize(len(changes), rename, dry_run=dry_run)
    clashes = [clash for clash in planned if isinstance(clash, QuotaClash)]
    sys.exit(_report_clashes(clashes, rename))


def _check(old: str, new: str) -> None:
    """Refuse names that no quota can have, and two that count different things."""
    for way, name in (("--from", old), ("--to", new)):
        if _NAME.fullmatch(name) is None:
            raise click.UsageError(
                f"{way}: {name!r} is not how a quota names an extended resource; put "
                f"requests. before it, as in {OLD}"
            )
    if old == new:
        raise click.UsageError(f"--from and --to are both {old}; choose another --to")
    if new in (NEW, _UNITS) and (old, new) != (OLD, NEW):
        raise click.UsageError(
            f"{old} and {new} count different things, so the number would mean "
            f"something else; only {OLD} can become {NEW}; change others by hand"
        )


def _show_diffs(objects: Objects, changes: Iterable[QuotaChange]) -> None:
    """Show the result of each change, by the API server's dry run."""
    for change in changes:
        after = objects.json_patch(change.ref, change.steps, dry_run=True)
        shown = ObjectChange(change.ref, tidy(change.before), tidy(after))
        click.echo(fit_to_show(shown.diff()), nl=False)


def _apply_changes(
    objects: Objects, changes: Iterable[QuotaChange], rename: QuotaRename
) -> None:
    beside = ", the old name kept" if rename.keep else ""
    for change in changes:
        objects.json_patch(change.ref, change.steps)
        # Reported one by one, because the next one may fail.
        where = f"{change.ref.namespace}/{change.ref.name}"
        click.echo(fit_to_show(f"{where}: {change.number} of {rename.new}{beside}"))


def _summarize(count: int, rename: QuotaRename, *, dry_run: bool) -> None:
    quotas = counted(count, "quota")
    if not count:
        click.echo(f"No quota is left to move from {rename.old} to {rename.new}.")
    elif dry_run:
        click.echo(f"{quotas} would be moved to {rename.new}; nothing was changed.")
    else:
        click.echo(f"{quotas} moved to {rename.new}.")


def _report_clashes(clashes: Sequence[QuotaClash], rename: QuotaRename) -> int:
    for clash in clashes:
        words = (
            f"{clash.ref.namespace}/{clash.ref.name} was not changed: it has "
            f"{clash.old_number} of {rename.old} and {clash.new_number} of "
            f"{rename.new}; remove the wrong one: kubectl -n {clash.ref.namespace} "
            f"edit resourcequota {clash.ref.name}"
        )
        click.echo(fit_to_show(f"Error: {words}"), err=True)
    return _UNDECIDED if clashes else 0
