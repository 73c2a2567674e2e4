"""The way to the cluster that a command is meant for, and what to do without one."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from gpushare.kube.api import ApiObjects, ApiServer
from gpushare.kube.client import contexts
from gpushare.kube.errors import ClusterError, Forbidden

Command = TypeVar("Command", bound=Callable[..., Any])

HOST_KUBECONFIGS = (
    Path("/etc/kubernetes/admin.conf"),
    Path("/etc/rancher/k3s/k3s.yaml"),
)
"""What kubeadm and k3s leave on a control-plane host for its administrator."""
READ_ALL: Sequence[tuple[str, str]] = (("list", "nodes"), ("list", "pods"))
"""What every command reads, in all namespaces."""


class CannotReachError(click.ClickException):
    """There is no way to the cluster; the message ends with what to do."""


@dataclass(frozen=True, slots=True)
class Access:
    """A cluster that has answered, and the kubeconfig and context that lead there.

    Both are empty inside a pod, which has its service account instead.
    """

    objects: ApiObjects
    cluster: ApiServer
    kubeconfig: str
    context: str

    def close(self) -> None:
        """Close the connections."""
        self.objects.close()
        self.cluster.close()


def access_options(command: Command) -> Command:
    """Give a command ``--kubeconfig`` and ``--context``, for ``reach``."""
    context = click.option(
        "--context",
        metavar="NAME",
        help="The kubeconfig's context; else its current one.",
    )
    kubeconfig = click.option(
        "--kubeconfig",
        metavar="FILE",
        help="Else $KUBECONFIG, ~/.kube/config, or the host's own of kubeadm or k3s.",
    )
    return kubeconfig(context(command))


def reach(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    needs: Sequence[tuple[str, str]] = READ_ALL,
    environ: Mapping[str, str] = os.environ,
    places: Sequence[Path] | None = None,
) -> Access:
    """Find the cluster, and make sure that it answers and lets us do what is needed.

    ``needs`` are verbs and resources as in ``Objects.may``. ``places`` are looked
    through where neither an option nor the environment names a file. Raises
    ``CannotReachError`` and nothing else.
    """
    found = _found(kubeconfig, environ, _usual(environ) if places is None else places)
    chosen = _context(found, context) if found else ""
    try:
        objects = ApiObjects.connect(found or None, chosen or None)
        cluster = ApiServer.connect(found or None, chosen or None)
    except ClusterError as error:
        raise CannotReachError(
            f"{error}; mend the file, or name another by --kubeconfig"
        ) from error
    access = Access(objects, cluster, found, chosen)
    try:
        _knock(access, needs)
    except CannotReachError:
        access.close()
        raise
    return access


@contextmanager
def reached(kubeconfig: str | None, context: str | None) -> Iterator[Access]:
    """Reach the cluster; what goes wrong on the way is a sentence and exit code 1."""
    # Nobody is asked for rights beforehand: the refusal itself says what is missing.
    access = reach(kubeconfig, context, needs=())
    try:
        yield access
    except Forbidden as error:
        raise click.ClickException(
            f"{error}; take the administrator's kubeconfig by --kubeconfig, or have "
            "the right granted"
        ) from error
    except ClusterError as error:
        raise click.ClickException(f"{access.objects.host}: {error}") from error
    finally:
        access.close()


def _usual(environ: Mapping[str, str]) -> Sequence[Path]:
    home = environ.get("HOME")
    own = (Path(home, ".kube", "config"),) if home else ()
    return (*own, *HOST_KUBECONFIGS)


def _found(
    option: str | None, environ: Mapping[str, str], places: Sequence[Path]
) -> str:
    """Give the kubeconfig; empty for the pod's own service account."""
    if option is not None:
        return _readable([option], "--kubeconfig")
    if named := environ.get("KUBECONFIG"):
        # As kubectl has it: several files, of which some may be missing.
        parts = [part for part in named.split(os.pathsep) if part]
        there = [part for part in parts if _exists(Path(part))]
        return _readable(there or parts, "$KUBECONFIG")
    for place in places:
        if _exists(place):
            return _readable([str(place)], "the kubeconfig")
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return ""
    looked = ", ".join(["$KUBECONFIG", *map(str, places)])
    raise CannotReachError(
        f"no kubeconfig found (looked at {looked}); name one by "
        "--kubeconfig, or run this on a control-plane host as root"
    )


def _exists(place: Path) -> bool:
    """Tell whether there is a file; one that we may not even look at counts."""
    try:
        return place.exists()
    except PermissionError:
        return True


def _readable(paths: Sequence[str], way: str) -> str:
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                file.read(1)
        except FileNotFoundError as error:
            raise CannotReachError(
                f"{way}: there is no file {path}; give the path of a kubeconfig"
            ) from error
        except PermissionError as error:
            raise CannotReachError(
                f"{way}: {path} may not be read by this user; run this as root, or "
                "give another by --kubeconfig"
            ) from error
        except (OSError, ValueError) as error:
            raise CannotReachError(
                f"{way}: {path} cannot be read ({error}); give the path of a kubeconfig"
            ) from error
    return os.pathsep.join(paths)


def _context(kubeconfig: str, wanted: str | None) -> str:
    try:
        known = contexts(kubeconfig)
    except ClusterError as error:
        raise CannotReachError(
            f"{error}; mend the file, or name another by --kubeconfig"
        ) from error
    chosen = wanted if wanted is not None else known.current
    has = f"it has {', '.join(known.names)}" if known.names else "it has none"
    if not chosen:
        raise CannotReachError(
            f"{kubeconfig} names no current context ({has}); choose one by --context"
        )
    if chosen not in known.names:
        raise CannotReachError(
            f"{kubeconfig} has no context {chosen!r} ({has}); choose one by --context"
        )
    return chosen


def _knock(access: Access, needs: Sequence[tuple[str, str]]) -> None:
    by = f"by {access.kubeconfig}, context {access.context}"
    if not access.kubeconfig:
        by = "by the pod's service account"
    host = access.objects.host
    try:
        access.objects.version()
        missing = [
            f"{verb} {what}" for verb, what in needs if not _may(access, verb, what)
        ]
    except Forbidden as error:
        raise CannotReachError(
            f"{host} does not accept the credentials given {by} ({error}); take a "
            "newer kubeconfig, such as the administrator's, by --kubeconfig"
        ) from error
    except ClusterError as error:
        raise CannotReachError(
            f"{host} cannot be reached {by}: {error}; is the cluster up, and is this "
            "the one you mean? Choose another by --kubeconfig or --context"
        ) from error
    if missing:
        raise CannotReachError(
            f"{host} does not let you {', '.join(missing)} in all namespaces {by}; "
            "take the administrator's kubeconfig by --kubeconfig, or have the right "
            "granted"
        )


def _may(access: Access, verb: str, resource: str) -> bool:
    return access.objects.may(verb, resource)
