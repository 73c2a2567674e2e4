"""``gpusharectl ui``: the extender's page, in a browser on this machine."""

import os
import secrets
import sys
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from wsgiref.types import StartResponse, WSGIEnvironment

import click
import orjson
import urllib3

from gpushare.addresses import LOOPBACK, find_free_address
from gpushare.interrupt import wait_for_interrupt
from gpushare.kube import facts
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Forbidden, NotFound, Unavailable
from gpushare.kube.objects import Objects
from gpushare.server.listener import Listener
from gpushare.server.page_policy import (
    PAGE,
    STATE,
    STATE_HEADERS,
    USE,
    USE_HEADER,
    make_page_headers,
)
from gpushare.settings import Address
from gpusharectl.access import Access, access_options, reached
from gpusharectl.output import VERSION, encode
from gpusharectl.state.extender import (
    FILES,
    Tls,
    fetch_page,
    read_certificates,
    requires_certificate,
)
from gpusharectl.state.read import Setup, Trouble, detect_setup, is_demo, read_quotas
from gpusharectl.state.scrape import (
    NoAnswer,
    PageSeen,
    Result,
    scrape_exporters,
    sum_known,
)
from gpusharectl.state.troubles import check_quotas

if TYPE_CHECKING:
    from gpushare.kube.apiserver.api import ApiObjects

_SWITCH_ON = "gpusharectl install --ui"
_DEMO_S = 5.0
_SELECTOR = f"{facts.PART_NAME} in ({facts.EXTENDER},{facts.SECOND_SCHEDULER})"


class Extenders:
    """The cluster's extenders; the one that answered last is asked first.

    ``tls`` is for extenders that require a client certificate.
    """

    def __init__(self, objects: "ApiObjects", tls: Tls | None = None) -> None:
        self._objects = objects
        self._tls = tls
        self._last = ""

    def get(self, path: str) -> bytes:
        """GET a path of the first that answers; ``ClusterError`` says what to do."""
        because = ""
        for pod in self._ready():
            name = facts.name_of(pod)
            try:
                body = fetch_page(self._objects, pod, path, self._tls)
            except Forbidden:
                # The right to forward ports is missing, so for all of them.
                raise
            except ClusterError as error:
                because = f"{name}: {error}"
                if requires_certificate(pod) and self._tls is None:
                    files = ", ".join(FILES)
                    because += f", or name a folder with {files} with --certificates"
                on = facts.read_environment(pod).get("GPUSHARE_UI") == "on"
                if isinstance(error, NotFound) and not on:
                    because = f"{name} has no page; enable it with {_SWITCH_ON}"
            else:
                self._last = name
                return body
        raise Unavailable(because)

    def _ready(self) -> Sequence[Json]:
        pods = self._objects.list(
            "v1", "Pod", namespace=facts.SYSTEM, label_selector=_SELECTOR
        )
        if not pods:
            raise Unavailable(
                f"there is no extender pod in {facts.SYSTEM}; gpusharectl inspect "
                f"shows what else is wrong, and {_SWITCH_ON} starts one"
            )
        ready = [pod for pod in pods if facts.holds(pod, "Ready")]
        if not ready:
            raise Unavailable(
                f"no extender pod in {facts.SYSTEM} is ready; see "
                f"kubectl -n {facts.SYSTEM} describe pods -l "
                f"{facts.PART_NAME}={facts.label(pods[0], facts.PART_NAME)}"
            )
        return sorted(ready, key=lambda pod: facts.name_of(pod) != self._last)


def fetch_demo_page(host: str, path: str) -> bytes:
    """GET a path of the demo's extender, to which the demo's API server redirects."""
    try:
        answer = urllib3.request("GET", f"{host}{path}", retries=1, timeout=_DEMO_S)
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable(f"the demo's extender does not answer: {error}") from error
    if answer.status != HTTPStatus.OK:
        raise Unavailable(f"the demo's extender answers {answer.status} to {path}")
    return answer.data


def read_reported_use(objects: Objects) -> dict[str, Any]:
    """Return what the exporters report, as ``{v, nodes: {name: use}, troubles}``.

    A node of which nothing is known has ``{because, do}``, others ``{cards: {uuid:
    {used_mib, busy_percent}}, pods: [{card, namespace, name, used_mib, over,
    not_held}]}``. null is not known. ``troubles: [{about, what, do}]`` are of
    ResourceQuotas, which the extender has no right to read. ``ClusterError`` if the
    exporters' pods cannot be listed.
    """
    selector = f"{facts.PART_NAME}={facts.EXPORTER}"
    pods = objects.list("v1", "Pod", namespace=facts.SYSTEM, label_selector=selector)
    # A pod that is not bound yet has no node.
    nodes = {facts.node_of(pod) for pod in pods} - {""}
    results = scrape_exporters(objects, pods, nodes)
    troubles: list[Trouble] = []
    troubles += check_quotas(read_quotas(objects, troubles) or ())
    return {
        "v": VERSION,
        "nodes": {name: _use(result) for name, result in results.items()},
        "troubles": encode(troubles),
    }


def _use(result: Result) -> dict[str, Any]:
    if isinstance(result, NoAnswer):
        return {"because": result.because, "do": result.do}
    page = result.page
    cards = {
        uuid: {"used_mib": card.used_mib, "busy_percent": card.busy_percent}
        for uuid, card in page.cards.items()
    }
    return {"cards": cards, "pods": [*_pods(page)]}


def _pods(page: PageSeen) -> Iterator[dict[str, Any]]:
    used = [use for use in page.containers if use.pod]
    keys = {(use.card, use.namespace, use.pod) for use in used}
    for card, namespace, name in sorted(keys):
        seen = page.of_pod(namespace, name, card)
        yield {
            "card": card,
            "namespace": namespace,
            "name": name,
            "used_mib": sum_known([use.used_mib for use in seen]),
            "over": any(use.over for use in seen),
            "not_held": any(use.held == 0 for use in seen),
        }


_ROOTS = ("", "/")
"""They redirect to the page."""


class PageServer:
    """Serve the page on this machine; ``OSError`` if the port is taken.

    ``get`` reads a path of an extender, ``use`` what the exporters report; None if
    nobody can be asked. ``port`` 0 takes a free one. Only the page is answered, and
    only under an address that contains a secret: a plain port-forward would open the
    extender's API to every local process and web page.
    """

    def __init__(
        self,
        port: int,
        get: Callable[[str], bytes],
        use: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._get = get
        self._use = use
        self.place = f"/{secrets.token_urlsafe(12)}"
        self.address = Address(LOOPBACK, port) if port else find_free_address()
        self._listener = Listener({self.address: self._answer})

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    @property
    def url(self) -> str:
        """The whole address, with the secret."""
        return f"http://{self.address}{self.place}{PAGE}"

    def _answer(
        self, environ: WSGIEnvironment, start: StartResponse
    ) -> Iterable[bytes]:
        status = "200 OK"
        headers = [*STATE_HEADERS.items(), ("Content-Type", "application/json")]
        path = self._path(environ)
        if path is None:
            text = "not found: use the address that gpusharectl ui has printed"
            status, body = "404 Not Found", orjson.dumps({"error": text})
        elif path in _ROOTS:
            status, body = "302 Found", b""
            headers.append(("Location", self.place + PAGE))
        else:
            try:
                if path == USE and self._use:
                    body = orjson.dumps(self._use())
                else:
                    body = self._get(path)
            except ClusterError as error:
                body = orjson.dumps({"error": str(error)})
                status = "502 Bad Gateway"
            else:
                if path == PAGE:
                    headers = [*make_page_headers(body).items()]
                elif self._use:
                    headers.append((USE_HEADER, self.place + USE))
        start(status, headers)
        return [body]

    def _path(self, environ: WSGIEnvironment) -> str | None:
        """Return the path below the secret; None if it is not answered."""
        # Against DNS rebinding: a foreign page whose host name now points here.
        if environ.get("HTTP_HOST", "").partition(":")[0] not in (
            LOOPBACK,
            "localhost",
        ):
            return None
        asked = environ["PATH_INFO"].encode()
        known = [PAGE, STATE, *_ROOTS] + ([USE] if self._use else [])
        for path in known:
            if secrets.compare_digest(asked, (self.place + path).encode()):
                return path
        return None


_CODES = (
    "Exit codes: 0 it was shown, until Ctrl-C; 1 it could not be shown; 2 wrong "
    "command line."
)


@click.command(epilog=_CODES)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port on this machine; default: a free one.",
)
@click.option(
    "--no-open", is_flag=True, help="Do not open a browser; only print the address."
)
@click.option(
    "--certificates",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help=f"For extenders with TLS: {', '.join(FILES)}; default: this host's.",
)
@access_options
def ui(
    *,
    port: int,
    no_open: bool,
    certificates: Path | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show nodes, cards and pods in a browser, kept up to date.

    The page comes from the extender by port-forward and is read-only; what pods use
    comes from the exporters. It is served on this machine only, until Ctrl-C.
    """
    try:
        tls = read_certificates(certificates)
    except OSError as error:
        raise click.ClickException(
            f"--certificates: {certificates} cannot be used ({error}); name a folder "
            f"with {', '.join(FILES)}"
        ) from error
    with reached(kubeconfig, context) as access:
        get = _source(access, tls)
        # The demo has no exporters.
        use = partial(read_reported_use, access.objects)
        try:
            server = PageServer(port, get, None if is_demo(access.objects) else use)
        except OSError as error:
            raise click.ClickException(
                f"--port: cannot listen on {LOOPBACK}:{port} ({error.strerror}); "
                "choose another port, or none"
            ) from error
        with server:
            browse = None if no_open else webbrowser.open
            for line in announce_page(server, browse, os.environ):
                click.echo(line)
            # Port-forwards are closed after it.
            wait_for_interrupt()


def _source(access: Access, tls: Tls | None) -> Callable[[str], bytes]:
    """Return what reads the page, after it was read once."""
    get: Callable[[str], bytes]
    if is_demo(access.objects):
        get = partial(fetch_demo_page, access.objects.host)
    else:
        get = Extenders(access.objects, tls).get
    try:
        get(PAGE)
    except Unavailable as error:
        if detect_setup(access) is Setup.ABSENT:
            raise Unavailable(
                f"gpushare is not installed in this cluster; run {_SWITCH_ON}"
            ) from error
        raise
    return get


def announce_page(
    server: PageServer, browse: Callable[[str], bool] | None, environ: Mapping[str, str]
) -> list[str]:
    """Open a browser if there is a screen, and return where the page is."""
    lines = [f"The page is at {server.url}"]
    if browse is not None and not _has_screen(environ):
        number = server.address.port
        lines.append(
            "This machine has no screen. On your own machine run "
            f"ssh -L {number}:{LOOPBACK}:{number} THIS-HOST, then open that address."
        )
    elif browse is not None and not browse(server.url):
        lines.append("No browser could be opened; open the address yourself.")
    return [*lines, "Everyone who has this address can read the page until Ctrl-C."]


def _has_screen(environ: Mapping[str, str]) -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform in ("darwin", "win32") or any(map(environ.get, names))
