"""HTTP headers of gpushare's page, which limit the code that a browser runs. Pure.

The extender serves the page, and ``gpusharectl ui`` in front of it.
"""

import base64
import hashlib
import re
from collections.abc import Mapping

_INLINE = re.compile(rb"<(style|script)>(.*?)</\1>", re.DOTALL)
_CLOSED = (
    "default-src 'none'",
    "connect-src 'self'",
    "img-src data:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
)
"""No foreign content, no frames, and no text of a pod as code."""

PAGE, STATE = "/ui", "/ui/state"
"""The paths of the page and of what it shows, as JSON."""
USE = "/ui/use"
"""The path of what the exporters report, which ``gpusharectl ui`` alone serves."""
USE_HEADER = "Vcuda-Use"
"""In the answer to ``STATE``: the path of ``USE``, where it is served."""

STATE_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of the data that the page reads, of type ``application/json``."""


def make_page_headers(html: bytes) -> Mapping[str, str]:
    """Return the headers of a page that may run only its own style and script.

    Style and script are named by their hashes, so ``unsafe-inline`` is not needed.
    """
    hashes: dict[bytes, list[str]] = {b"style": [], b"script": []}
    for kind, text in _INLINE.findall(html):
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    sources = (
        f"{kind.decode()}-src {' '.join(of)}" for kind, of in hashes.items() if of
    )
    return {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join([*_CLOSED, *sources]),
        "Cache-Control": "no-cache",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
