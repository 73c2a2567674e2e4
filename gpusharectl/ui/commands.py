"""``ui``: the page of nodes, cards and pods, in a browser.

Exit codes:

====  ==================================================================
0     it was shown, until Ctrl-C
1     it could not be shown; a sentence says why
2     the command line is not understood
====  ==================================================================
"""

import os
import signal
import sys
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import click

from gpushare.listening import LOOPBACK
from gpusharectl.access import access_options, reached
from gpusharectl.ui.extenders import FILES, Extenders, Tls, tls_from
from gpusharectl.ui.window import PAGE, Window

_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
_HIGHEST_PORT = 65535
_CODES = (
    "Exit codes: 0 it was shown, until Ctrl-C; 1 it could not be shown; 2 the command "
    "line is not understood."
)


@click.command(epilog=_CODES)
@click.option(
    "--port",
    type=click.IntRange(0, _HIGHEST_PORT),
    default=0,
    metavar="N",
    help="On this machine; else any that is free.",
)
@click.option(
    "--no-open", is_flag=True, help="Open no browser: the address is printed anyway."
)
@click.option(
    "--certificates",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help=f"Where extenders with TLS: with {', '.join(FILES)}; else this host's own.",
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

    The page is the extender's own, read by port-forward, and only to be looked at. It
    is served on this machine alone, until Ctrl-C.
    """
    tls = _tls(certificates)
    with reached(kubeconfig, context) as access:
        extenders = Extenders(access.objects, tls)
        # Before anything is promised.
        extenders.get(PAGE)
        with _window(port, extenders.get) as window:
            browse = None if no_open else webbrowser.open
            for line in announced(window, browse, os.environ):
                click.echo(line)
            # As Ctrl-C: else the port-forwards would be torn off.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with suppress(KeyboardInterrupt):
                window.serve_forever()


def announced(
    window: Window, browse: Callable[[str], bool] | None, environ: Mapping[str, str]
) -> list[str]:
    """Open a browser, where there is one to open, and say where the page is."""
    lines = [f"The page is at {window.url}"]
    if browse is not None and not _has_screen(environ):
        number = window.server_port
        lines.append(
            "There is no screen here for a browser. From where you sit, forward it: "
            f"ssh -L {number}:{LOOPBACK}:{number} THIS-HOST, then open that address."
        )
    elif browse is not None and not browse(window.url):
        lines.append("No browser could be opened; open that address yourself.")
    return [*lines, "It is for who knows this address, until Ctrl-C."]


def _has_screen(environ: Mapping[str, str]) -> bool:
    """Tell whether a browser would have a window, and not take over the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(environ.get(name) for name in _SCREENS)


def _tls(folder: Path | None) -> Tls | None:
    try:
        return tls_from(folder)
    except OSError as error:
        raise click.ClickException(
            f"--certificates: {folder} cannot be used ({error}); name a folder with "
            f"{', '.join(FILES)}"
        ) from error


def _window(port: int, get: Callable[[str], bytes]) -> Window:
    try:
        return Window(port, get)
    except OSError as error:
        raise click.ClickException(
            f"--port: cannot listen on {LOOPBACK}:{port} ({error.strerror}); give "
            "another, or none"
        ) from error
