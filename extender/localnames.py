"""By which names a server for this machine alone is called. Pure.

A web page of anybody's can have its own name mean this machine, by DNS, and then read
in a browser here what the server says: to the browser it is the page's own server. It
cannot keep the browser from sending that name along.
"""

import re
from ipaddress import ip_address

_HOST = re.compile(r"(?:\[([^]]+)\]|([^:]+))(?::\d*)?", re.ASCII)
"""An address in brackets or a name, and a port or none."""
_LOCALHOST = "localhost"


def is_local(host: str) -> bool:
    """Tell whether a ``Host`` header can be one of somebody who means this machine.

    True for addresses, whichever, since no name was asked for; for ``localhost``, which
    means this machine everywhere; and where there is none, as in HTTP/1.0.

    >>> is_local("127.0.0.1:39999"), is_local("[::1]:39999"), is_local("a.example")
    (True, True, False)
    """
    parts = _HOST.fullmatch(host)
    if parts is None:
        return not host
    address, name = parts[1], (parts[2] or "").lower().removesuffix(".")
    if name == _LOCALHOST or name.endswith(f".{_LOCALHOST}"):
        return True
    return _is_address(address or name)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
