"""Addresses to listen on: bind them, test them, and pick free ones."""

import secrets
import socket
import sys
from contextlib import suppress
from errno import EADDRINUSE
from pathlib import Path

from gpushare.settings import Address

LOOPBACK = "127.0.0.1"
_LISTENS = "0A"
"""The state in ``/proc/net/tcp`` of a socket that listens."""
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
    """Return why nobody can listen on an address now; empty if it is free.

    If an outgoing connection has the port, the answer says where it leads: a list of
    servers does not show it.
    """
    try:
        # An invalid host, such as "a..b", is detected by its encoding.
        address.host.strip("[]").encode("idna")
        listen(address).close()
    except (OSError, UnicodeError) as error:
        peer = (
            isinstance(error, OSError) and error.errno == EADDRINUSE and _peer(address)
        )
        has = f": a connection to {peer} has this port" if peer else ""
        return f"{error}{has}"
    return ""


def _peer(address: Address) -> str:
    """Return where the connection leads that has the port; "" if a server has it."""
    ends = []
    for name in ("tcp", "tcp6"):
        lines: list[str] = []
        with suppress(OSError):
            lines = Path("/proc/self/net", name).read_text().splitlines()[1:]
        for line in lines:
            _, local, other, state, *_ = line.split()
            if int(local.rpartition(":")[2], 16) == address.port:
                ends.append("" if state == _LISTENS else _readable(other))
    return ends[0] if all(ends) and ends else ""


def _readable(end: str) -> str:
    """Return an address of ``/proc/net/tcp``: words of 4 bytes in this host's order.

    >>> _readable("0100007F:094B")
    '127.0.0.1:2379'
    """
    host, _, port = end.partition(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    shown = socket.inet_ntop(family, packed).removeprefix("::ffff:")
    return f"[{shown}]:{int(port, 16)}" if ":" in shown else f"{shown}:{int(port, 16)}"


def find_free_address() -> Address:
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
        ports = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        return min(int(ports.split()[0]), _HIGHEST)
    return _HIGHEST
