"""Addresses to listen on: bind them, test them, and pick free ones."""

import secrets
import socket
from contextlib import suppress
from pathlib import Path

from gpushare.settings import Address

LOOPBACK = "127.0.0.1"
_LOWEST = 20_000
_HIGHEST = 30_000
"""The start of Kubernetes' node ports."""


def socket_address(address: Address) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the family and address for ``socket``, IPv6 without brackets.

    >>> socket_address(Address("[::1]", 80))[1]
    ('::1', 80)
    """
    host = address.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return family, (host, address.port)


def listen(address: Address, backlog: int | None = None) -> socket.socket:
    """Listen on an address; ``[::]`` accepts IPv4 too. Raises ``OSError``."""
    family, where = socket_address(address)
    both = family is socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server(
        where, family=family, backlog=backlog, dualstack_ipv6=both
    )


def why_not_listen(address: Address) -> str:
    """Return why nobody can listen on an address now; empty if it is free."""
    try:
        # An invalid host, such as "a..b", is detected by its encoding.
        address.host.strip("[]").encode("idna")
        listen(address).close()
    except (OSError, UnicodeError) as error:
        return str(error)
    return ""


def free_address() -> Address:
    """Return a free address on loopback, for a server that starts later."""
    ports = ports_to_pick_from()
    while True:
        # Not seeded by tests, or two programs would pick the same port.
        address = Address(LOOPBACK, secrets.choice(ports))
        if not why_not_listen(address):
            return address


def ports_to_pick_from() -> range:
    """Return the ports below the range of outgoing connections.

    An outgoing connection could otherwise take the port before the server does.
    """
    return range(_LOWEST, max(_lowest_outgoing(), _LOWEST + 1000))


def _lowest_outgoing() -> int:
    with suppress(OSError):
        found = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        return min(int(found.split()[0]), _HIGHEST)
    return _HIGHEST
