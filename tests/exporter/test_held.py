"""Whether a container is held: by what is counted of it, and by what it uses."""

import pytest

from exporter.held import ContainerLimit, HeldVerdict, judge_container
from gpushare.kubelet.limit_files import InnerPid
from gpushare.kubelet.pods import HardLimit
from tests.exporter.exporter_data import use

PRELOAD = HardLimit("preload", 2048, 2560)
INSIDE = {1: InnerPid(7, 100), 2: InnerPid(8, 200)}
MIB = 2**20


def counting(
    *mib: float, contexts: bool = True, start: int | None = None
) -> ContainerLimit:
    """A container of which so much is counted, of its first and second process."""
    names = [
        name if start is None else InnerPid(name.pid, start) for name in INSIDE.values()
    ]
    counted = {name: int(size * MIB) for name, size in zip(names, mib, strict=False)}
    return ContainerLimit(PRELOAD, counted, contexts)


HELD = True
UNKNOWN = None


@pytest.mark.parametrize(
    ("limit", "mib", "held"),
    [
        (counting(1000), [1000], HELD),
        (counting(1000), [1000 * 1.05 + 512], HELD),
        (counting(1000), [1000 * 1.05 + 513], "and the preload library counts 1000"),
        (counting(1000, 0), [1400, 512], HELD),
        (counting(1000, 0), [1400, 513], "its process 2 holds 513 MiB, and the"),
        (counting(1000, 2000), [100, 2000], HELD),
        (counting(2000, 0), [100, 600], "its process 2"),
        (counting(1000), [1000, 300], "its process 2 holds 300 MiB, of which"),
        (counting(1000, contexts=False), [1000, 300], UNKNOWN),
        (counting(1000, contexts=False), [1000, 513], "counts nothing"),
        (counting(), [300], "counts nothing"),
        (counting(1000, start=0), [1000], HELD),
        (counting(1000, start=5), [1000], "counts nothing"),
        (counting(1000), [], UNKNOWN),
        (counting(1000), [1000, None], UNKNOWN),
        (counting(0), [9000, None], "counts 0 MiB"),
        (counting(1000, 1, 1), [1000, 1, 1], UNKNOWN),
        (ContainerLimit(PRELOAD), [9000], UNKNOWN),
        (ContainerLimit(HardLimit("new tier", 1, 1), {}), [9000], UNKNOWN),
        (ContainerLimit(HardLimit("driver", 2560, 2560)), [2560], UNKNOWN),
        (
            ContainerLimit(HardLimit("driver", 2560, 2560)),
            [2000, 1000],
            "hold 3000 MiB, above the 2560 MiB to which the driver",
        ),
    ],
)
def test_who_is_held(
    limit: ContainerLimit, mib: list[float | None], held: bool | str | None
) -> None:
    """The sum may hide it: one process frees what is counted, another is not counted.

    The last process of three has no name inside: it has just ended.
    """
    processes = [use(pid, size) for pid, size in enumerate(mib, start=1)]
    verdict = judge_container(limit, processes, INSIDE, 512)
    if isinstance(held, str):
        assert verdict is not None
        assert not verdict.is_held
        assert held in verdict.because
    else:
        assert verdict == (HeldVerdict() if held else None)
