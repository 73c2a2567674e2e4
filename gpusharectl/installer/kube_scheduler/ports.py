"""Reserve the extender's ports on a host: no outgoing connection may be given one.

Linux takes the ports of outgoing connections from a range that has both. A long
connection that was given one, such as kube-apiserver's to etcd, keeps the extender of
that host from starting until the connection ends.
"""

import os
from collections.abc import Iterable, Iterator, Sequence

from gpushare.kube.names import (
    EXTENDER_CLAIMS_PORT,
    EXTENDER_PORT,
    EXTENDER_PUBLIC_PORT,
)
from gpusharectl.installer.kube_scheduler.host_files import FileChange, HostFiles

RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
"""The setting as it is now; Linux' documentation ``ip-sysctl`` has its form."""
AT_BOOT = "/etc/sysctl.d/99-gpushare.conf"
"""What makes it so after a reboot."""
_OURS = {EXTENDER_CLAIMS_PORT, EXTENDER_PUBLIC_PORT, EXTENDER_PORT}
"""Also the claims' port where DRA is off: it may be switched on later."""
_TEXT = """\
# Made by gpusharectl install; gpusharectl uninstall removes it. No outgoing connection
# may be given the ports of gpushare's extender. The other ports were in the setting
# before: it is one list.
net.ipv4.ip_local_reserved_ports = {}
"""


def plan_reserved_ports(files: HostFiles) -> Sequence[FileChange]:
    """Return what reserves the ports beside those that are reserved already.

    Nothing if they are, or if this host does not let the setting be written.
    """
    now = _read(files)
    if now is None or now.issuperset(_OURS):
        return []
    wanted = _written(now | _OURS)
    return [
        _change(files, AT_BOOT, _TEXT.format(wanted).encode(), mode=0o644),
        _change(files, RESERVED, f"{wanted}\n".encode()),
    ]


def plan_released_ports(files: HostFiles) -> Sequence[FileChange]:
    """Return what undoes it; nothing if somebody else has reserved the ports."""
    if files.read(AT_BOOT) is None:
        return []
    gone = [_change(files, AT_BOOT, None)]
    now = _read(files)
    if now is not None and now & _OURS:
        others = _written(now - _OURS)
        gone.append(_change(files, RESERVED, f"{others}\n".encode()))
    return gone


def _change(
    files: HostFiles, path: str, after: bytes | None, mode: int = 0o600
) -> FileChange:
    return FileChange(path, files.read(path), after, mode)


def _read(files: HostFiles) -> set[int] | None:
    """Return the reserved ports; None where they cannot be read and written."""
    if not os.access(files.place(RESERVED), os.R_OK | os.W_OK):
        return None
    return set(_ports((files.read(RESERVED) or b"").decode()))


def _ports(text: str) -> Iterator[int]:
    """Read a list of ports.

    >>> [*_ports("8080,9000-9002")], [*_ports(" ")]
    ([8080, 9000, 9001, 9002], [])
    """
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _written(ports: Iterable[int]) -> str:
    """Write a list of ports as Linux does.

    >>> _written({9002, 8080, 9001, 9000})
    '8080,9000-9002'
    """
    runs: list[list[int]] = []
    for port in sorted(ports):
        if runs and port == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], port]
        else:
            runs.append([port])
    return ",".join("-".join(map(str, run)) for run in runs)
