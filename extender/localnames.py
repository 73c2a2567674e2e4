"""By which names a server for this machine alone is called. Pure.

A web page of anybody's can have its own name mean this machine, by DNS, and then read
in a browser here what the server says: to the browser it is the page's own server. It
cannot keep the browser from sending that name along.
"""

from ipaddress import ip_address

_LOCALHOST = "localhost"


def is_local(host: str) -> bool:
    """Tell whether a ``Host`` header can be one of somebody who means this machine.

    True for addresses, whichever, since no name was asked for; for ``localhost``, which
    means this machine everywhere; and where there is none, as in HTTP/1.0.

    >>> is_local("127.0.0.1:39999"), is_local("[::1]:39999"), is_local("a.example")
    (True, True, False)
    """
    if host.startswith("["):
        name, bracket, _ = host[1:].partition("]")
        return bool(bracket) and _is_address(name)
    name = host.partition(":")[0].lower().removesuffix(".")
    if name in ("", _LOCALHOST) or name.endswith(f".{_LOCALHOST}"):
        return True
    return _is_address(name)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
