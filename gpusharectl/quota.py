"""``gpusharectl migrate-quota``: give the numbers of ResourceQuotas another name."""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click

from gpushare.domain.quantity import NotAQuantity, NotWhole, whole
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.words import counted, listed
from gpusharectl.access import access_options, reached
from gpusharectl.output import ObjectChange, fit_to_show, tidy

_HARD = "/spec/hard"


class Names(NamedTuple):
    """The old and the new resource, as quotas name them; ``keep`` the old one, too."""

    old: str
    new: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """One quota to change: ``steps`` are a JSON patch, ``number`` the value."""

    ref: Ref
    before: Json
    number: str
    steps: Sequence[Json]


@dataclass(frozen=True, slots=True)
class Clash:
    """One quota with both names and two different numbers: a person must choose."""

    ref: Ref
    old_number: str
    new_number: str


def move(quota: Json, names: Names) -> Move | Clash | None:
    """Plan the change of one ResourceQuota; None if there is nothing to do.

    The API server refuses the patch if the limits have changed since they were read.
    """
    hard = _hard(quota)
    if names.old not in hard:
        return None
    ref, number = Ref.of(quota), str(hard[names.old])
    steps: list[Json] = [{"op": "test", "path": _HARD, "value": hard}]
    if names.new not in hard:
        steps.append({"op": "add", "path": _path(names.new), "value": number})
    elif not _same(number, str(hard[names.new])):
        return Clash(ref, number, str(hard[names.new]))
    if not names.keep:
        steps.append({"op": "remove", "path": _path(names.old)})
    return Move(ref, quota, number, steps) if len(steps) > 1 else None


def without_bound(
    quotas: Sequence[Json], moves: Sequence[Move], resource: str
) -> tuple[str, ...]:
    """Return the namespaces of these moves without a quota on the resource."""
    bounded = {Ref.of(quota).namespace for quota in quotas if resource in _hard(quota)}
    return tuple(sorted({one.ref.namespace for one in moves} - bounded))


def _hard(quota: Json) -> Json:
    return (quota.get("spec") or {}).get("hard") or {}


def _path(resource: str) -> str:
    return f"{_HARD}/{resource.replace('~', '~0').replace('/', '~1')}"


def _same(one: str, other: str) -> bool:
    """Return whether two quantities are equal: ``1k`` is ``1000``."""
    try:
        return whole(one) == whole(other)
    except (NotAQuantity, NotWhole):
        return one == other


OLD = f"requests.{names.BITFUSION_GPU}"
NEW = f"requests.{names.CORE}"
_UNITS = f"requests.{names.MEMORY}"
_NAME = re.compile(r"requests\.[a-z0-9.-]+/[A-Za-z0-9._-]+")
_LEFT = 1
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
    wish = Names(old, new, keep)
    with reached(kubeconfig, context) as access:
        quotas = access.objects.list("v1", "ResourceQuota", namespace=namespace or "")
        found = [move(quota, wish) for quota in quotas]
        moves = [one for one in found if isinstance(one, Move)]
        name = Ref("v1", "Namespace", namespace or "")
        if not quotas and namespace and access.objects.get(name) is None:
            raise click.ClickException(f'there is no namespace "{namespace}"')
        if dry_run:
            _show(access.objects, moves)
        else:
            _do(access.objects, moves, wish)
    if new == NEW:
        _remind(without_bound(quotas, moves, _UNITS))
    _close(moves, wish, dry_run=dry_run)
    sys.exit(_complain([one for one in found if isinstance(one, Clash)], wish))


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


def _show(objects: Objects, moves: Iterable[Move]) -> None:
    """Show the result of each change, by the API server's dry run."""
    for one in moves:
        after = objects.json_patch(one.ref, one.steps, dry_run=True)
        change = ObjectChange(one.ref, tidy(one.before), tidy(after))
        click.echo(fit_to_show(change.diff()), nl=False)


def _do(objects: Objects, moves: Iterable[Move], wish: Names) -> None:
    for one in moves:
        objects.json_patch(one.ref, one.steps)
        # Reported one by one, because the next one may fail.
        where = f"{one.ref.namespace}/{one.ref.name}"
        beside = ", the old name kept" if wish.keep else ""
        click.echo(fit_to_show(f"{where}: {one.number} of {wish.new}{beside}"))


def _remind(namespaces: tuple[str, ...]) -> None:
    """Remind of a quota on memory: a pod may request it with almost no cores."""
    if namespaces:
        shown = listed(namespaces, _MOST_SHOWN)
        told = f"Only cores are limited in {shown}: add {_UNITS} there."
        click.echo(fit_to_show(told))


def _close(moves: list[Move], wish: Names, *, dry_run: bool) -> None:
    quotas = counted(len(moves), "quota")
    if not moves:
        click.echo(f"No quota is left to move from {wish.old} to {wish.new}.")
    elif dry_run:
        click.echo(f"{quotas} would be moved to {wish.new}; nothing was changed.")
    else:
        click.echo(f"{quotas} moved to {wish.new}.")


def _complain(clashes: list[Clash], wish: Names) -> int:
    for one in clashes:
        words = (
            f"{one.ref.namespace}/{one.ref.name} was not changed: it has "
            f"{one.old_number} of {wish.old} and {one.new_number} of {wish.new}; "
            "remove the wrong one: "
            f"kubectl -n {one.ref.namespace} edit resourcequota {one.ref.name}"
        )
        click.echo(fit_to_show(f"Error: {words}"), err=True)
    return _LEFT if clashes else 0
