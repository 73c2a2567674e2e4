"""Connect to the cluster of ``--kubeconfig`` and ``--context``, or say what to do."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpushare import interrupt
from gpushare.kube.errors import ClusterError, Forbidden

if TYPE_CHECKING:
    from gpushare.kube.apiserver.api import ApiObjects, ApiServer

Command = TypeVar("Command", bound=Callable[..., Any])

HOST_KUBECONFIGS = (
    Path("/etc/kubernetes/admin.conf"),
    Path("/etc/rancher/k3s/k3s.yaml"),
)
"""The administrator's kubeconfigs of kubeadm and k3s on a control-plane host."""
READ_ALL: Sequence[tuple[str, str]] = (("list", "nodes"), ("list", "pods"))
"""What most commands read, in all namespaces."""


class CannotReachError(click.ClickException):
    """The cluster cannot be reached; the message ends with what to do."""


@dataclass(frozen=True, slots=True)
class Access:
    """Clients of a cluster that has answered, with the kubeconfig and context used.

    Both are empty inside a pod, where the service account is used.
    """

    objects: "ApiObjects"
    cluster: "ApiServer"
    kubeconfig: str
    context: str

    def close(self) -> None:
        """Close the connections."""
        self.objects.close()
        self.cluster.close()


def access_options(command: Command) -> Command:
    """Add ``--kubeconfig`` and ``--context`` to a command, for ``reach``."""
    context = click.option(
        "--context",
        metavar="NAME",
        help="A context of the kubeconfig; default: its current one.",
    )
    kubeconfig = click.option(
        "--kubeconfig",
        metavar="FILE",
        help="Default: $KUBECONFIG, ~/.kube/config, or that of kubeadm or k3s.",
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
    """Connect, and check that the cluster answers and grants what is needed.

    ``needs`` are verbs and resources as in ``Objects.may``. ``places`` are searched if
    neither an option nor the environment names a file. Raises ``CannotReachError``
    only.
    """
    files = _found(kubeconfig, environ, _usual(environ) if places is None else places)
    _import_client()
    from gpushare.kube.apiserver.api import ApiObjects, ApiServer  # noqa: PLC0415

    chosen = _context(files, context) if files else ""
    with _file_is_well():
        objects = ApiObjects.connect(files or None, chosen or None)
        cluster = ApiServer.connect(files or None, chosen or None)
    access = Access(objects, cluster, files, chosen)
    try:
        _check(access, needs)
    except CannotReachError:
        access.close()
        raise
    return access


def _import_client() -> None:
    """Import the Kubernetes client, which takes half a second.

    Not at the top: neither ``--help`` nor a simulation of a file needs it.
    """
    with interrupt.ending_at_once():
        import_module("gpushare.kube.apiserver.api")


@contextmanager
def reached(kubeconfig: str | None, context: str | None) -> Iterator[Access]:
    """Connect; an error of the cluster is shown as a sentence, with exit code 1."""
    # Rights are not checked first: the API server's refusal says what is missing.
    access = reach(kubeconfig, context, needs=())
    try:
        yield access
    except Forbidden as error:
        raise click.ClickException(
            f"{error}; name the administrator's kubeconfig with --kubeconfig, or get "
            "this right"
        ) from error
    except ClusterError as error:
        raise click.ClickException(f"{access.objects.host}: {error}") from error
    finally:
        access.close()


@contextmanager
def _file_is_well() -> Iterator[None]:
    try:
        yield
    except ClusterError as error:
        raise CannotReachError(
            f"{error}; correct the file, or name another with --kubeconfig"
        ) from error


def _usual(environ: Mapping[str, str]) -> Sequence[Path]:
    home = environ.get("HOME")
    of_user = (Path(home, ".kube", "config"),) if home else ()
    return (*of_user, *HOST_KUBECONFIGS)


def _found(
    option: str | None, environ: Mapping[str, str], places: Sequence[Path]
) -> str:
    if option is not None:
        return _readable([option], "--kubeconfig")
    if named := environ.get("KUBECONFIG"):
        # As for kubectl: several files, some of which may be missing.
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
        f"no kubeconfig found (searched: {looked}); name one with --kubeconfig, or run "
        "this on a control-plane host as root"
    )


def _exists(place: Path) -> bool:
    """Return whether there is a file; one that is not accessible counts."""
    try:
        return place.exists()
    except PermissionError:
        return True


def _readable(paths: Sequence[str], way: str) -> str:
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                file.read(1)
        except (OSError, ValueError) as error:
            why = f"{path} cannot be read ({error}); name a kubeconfig"
            if isinstance(error, FileNotFoundError):
                why = f"there is no file {path}; name a kubeconfig"
            if isinstance(error, PermissionError):
                why = f"this user may not read {path}; run this as root, or name "
                why += "another with --kubeconfig"
            raise CannotReachError(f"{way}: {why}") from error
    return os.pathsep.join(paths)


def _context(kubeconfig: str, wanted: str | None) -> str:
    from gpushare.kube.apiserver.client import read_contexts  # noqa: PLC0415

    with _file_is_well():
        known = read_contexts(kubeconfig)
    chosen = wanted if wanted is not None else known.current
    if chosen and chosen in known.names:
        return chosen
    missing = f"context {chosen!r}" if chosen else "current context"
    raise CannotReachError(
        f"{kubeconfig} has no {missing} (it has {', '.join(known.names) or 'none'}); "
        "choose one with --context"
    )


def _check(access: Access, needs: Sequence[tuple[str, str]]) -> None:
    by = f"with {access.kubeconfig}, context {access.context}"
    if not access.kubeconfig:
        by = "with the pod's service account"
    host = access.objects.host
    try:
        access.objects.version()
        may = access.objects.may
        missing = [f"{verb} {what}" for verb, what in needs if not may(verb, what)]
    except Forbidden as error:
        raise CannotReachError(
            f"{host} does not accept the credentials {by} ({error}); name a newer "
            "kubeconfig, such as the administrator's, with --kubeconfig"
        ) from error
    except ClusterError as error:
        raise CannotReachError(
            f"{host} cannot be reached {by}: {error}; check that the cluster runs, or "
            "choose another with --kubeconfig or --context"
        ) from error
    if missing:
        raise CannotReachError(
            f"{host} does not let you {', '.join(missing)} in all namespaces {by}; "
            "name the administrator's kubeconfig with --kubeconfig, or get this right"
        )
