"""Whether an address can be listened on: asked before anything starts."""

import socket

from gpushare.settings import Address


def socket_address(address: Address) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Give an address as the socket interface wants it, an IPv6 one without brackets.

    >>> socket_address(Address("[::1]", 80))[1]
    ('::1', 80)
    """
    host = address.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return family, (host, address.port)


def why_not_listen(address: Address) -> str:
    """Say why nobody can listen there now; empty where one can."""
    family, where = socket_address(address)
    try:
        # A host that is no name at all, such as "a..b", is told by its encoding.
        where[0].encode("idna")
        socket.create_server(where, family=family).close()
    except (OSError, UnicodeError) as error:
        return str(error)
    return ""
