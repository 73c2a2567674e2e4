"""Addresses to listen on: whether one can be had, asked before anything starts."""

import secrets
import socket
from contextlib import suppress
from pathlib import Path

from gpushare.settings import Address

LOOPBACK = "127.0.0.1"
_LOWEST = 20_000
_HIGHEST = 30_000
"""Where Kubernetes' own ports for services begin."""


def socket_address(address: Address) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return an address as the socket interface wants it, an IPv6 one without brackets.

    >>> socket_address(Address("[::1]", 80))[1]
    ('::1', 80)
    """
    host = address.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return family, (host, address.port)


def listen(address: Address, backlog: int | None = None) -> socket.socket:
    """Begin to listen there; ``[::]`` takes IPv4 too. ``OSError`` where one cannot."""
    family, where = socket_address(address)
    both = family is socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server(
        where, family=family, backlog=backlog, dualstack_ipv6=both
    )


def why_not_listen(address: Address) -> str:
    """Return why nobody can listen there now; empty where one can."""
    try:
        # A host that is no name at all, such as "a..b", is told by its encoding.
        address.host.strip("[]").encode("idna")
        listen(address).close()
    except (OSError, UnicodeError) as error:
        return str(error)
    return ""


def free_address() -> Address:
    """Pick an address on loopback that nobody has, for a server that starts later."""
    ports = ports_to_pick_from()
    while True:
        # Not by the seed of a test: two programs would pick the same.
        address = Address(LOOPBACK, secrets.choice(ports))
        if not why_not_listen(address):
            return address


def ports_to_pick_from() -> range:
    """Return the ports below the range of outgoing connections.

    One of those could otherwise take the port before its server does, or while the
    server is down.
    """
    return range(_LOWEST, max(_lowest_outgoing(), _LOWEST + 1000))


def _lowest_outgoing() -> int:
    with suppress(OSError):
        found = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        return min(int(found.split()[0]), _HIGHEST)
    return _HIGHEST
