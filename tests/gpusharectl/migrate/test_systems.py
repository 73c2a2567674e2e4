"""What amounts and annotations of other systems become."""

import pytest

from gpushare.domain.model import Amount
from gpusharectl.migrate.systems import (
    Options,
    Part,
    System,
    convert_amount,
    convert_limit,
    translate_annotations,
)

A_CARD = Options(card_mib=7611)
TENTHS = Options(card_mib=24259, replicas=10)


@pytest.mark.parametrize(
    ("system", "numbers", "options", "wanted"),
    [
        ("hami", {"memory": 3000}, Options(), Amount(0, 12)),
        ("hami", {"memory": 3073, "cores": 30}, Options(), Amount(30, 13)),
        ("hami", {"memory": 1, "percent": 90}, Options(), Amount(0, 1)),
        ("hami", {"memory": 3}, Options(unit_mib=1000), Amount(0, 12)),
        ("hami", {"cards": 1}, Options(), Amount(100, 0)),
        ("hami", {"cards": 3}, Options(), Amount(300, 0)),
        ("hami", {"cards": 2, "percent": 100}, Options(), Amount(200, 0)),
        ("hami", {"cards": 2, "cores": 100, "memory": 300}, Options(), Amount(200, 4)),
        ("hami", {"cores": 120, "memory": 300}, Options(), Amount(100, 2)),
        ("hami", {"percent": 50}, A_CARD, Amount(0, 14)),
        ("hami", {"percent": 1}, A_CARD, Amount(0, 1)),
        ("hami", {"percent": 40}, Options(card_mib=24259), Amount(0, 37)),
        ("hami", {"percent": 60}, Options(card_mib=24259), Amount(0, 56)),
        ("hami", {"percent": 100, "cores": 30}, A_CARD, Amount(30, 29)),
        ("gpushare-scheduler-extender", {"memory": 3}, Options(), Amount(0, 12)),
        (
            "gpushare-scheduler-extender",
            {"memory": 300},
            Options(unit_mib=1),
            Amount(0, 2),
        ),
        (
            "gpushare-scheduler-extender",
            {"memory": 3, "cores": 20, "cards": 1},
            Options(),
            Amount(20, 12),
        ),
        ("gpu-manager", {"memory": 30, "cores": 50}, Options(), Amount(50, 30)),
        ("gpu-manager", {"memory": 60, "cores": 200}, Options(), Amount(200, 60)),
        ("gpu-manager", {"memory": 30}, Options(unit_mib=1), Amount(0, 30)),
        ("time-slicing", {"cards": 1}, TENTHS, Amount(10, 9)),
        ("time-slicing", {"cards": 2}, Options(replicas=1), Amount(200, 0)),
        (
            "time-slicing",
            {"cards": 1},
            Options(card_mib=512, replicas=200),
            Amount(1, 1),
        ),
    ],
    ids=str,
)
def test_amounts(
    system: str, numbers: dict[str, int], options: Options, wanted: Amount
) -> None:
    """Memory is rounded up to units; shares of a card down, so that all of them fit."""
    parts = {Part[name.upper()]: number for name, number in numbers.items()}
    assert convert_amount(System(system), parts, options) == wanted


@pytest.mark.parametrize(
    ("system", "numbers", "options", "words"),
    [
        ("hami", {"cards": 2, "memory": 300}, Options(), "parts of 2 cards"),
        ("hami", {"cards": 0}, Options(), "0 cards"),
        ("hami", {"percent": 50}, Options(), "--card-mib"),
        ("hami", {"percent": 100, "cores": 30}, Options(), "--card-mib"),
        (
            "gpushare-scheduler-extender",
            {"memory": 8, "cards": 4},
            Options(),
            "parts of 4 cards",
        ),
        ("gpushare-scheduler-extender", {"cards": 1}, Options(), "how much memory"),
        ("gpushare-scheduler-extender", {"memory": 300}, Options(), "--unit-mib 1 if"),
        ("gpu-manager", {"memory": 0}, Options(), "asks for nothing"),
        ("time-slicing", {"cards": 1}, Options(card_mib=512), "--replicas"),
        ("time-slicing", {"cards": 1}, Options(replicas=4), "--card-mib"),
        ("time-slicing", {"cards": 2}, TENTHS, "2 shares"),
        (None, {"cards": 1}, Options(), "--from hami"),
    ],
    ids=str,
)
def test_what_cannot_be_known(
    system: str | None, numbers: dict[str, int], options: Options, words: str
) -> None:
    """Nothing is guessed: a text says what is missing, and the option for it."""
    parts = {Part[name.upper()]: number for name, number in numbers.items()}
    problem = convert_amount(System(system) if system else None, parts, options)
    assert isinstance(problem, str)
    assert words in problem


@pytest.mark.parametrize(
    ("system", "part", "wanted"),
    [
        ("hami", "memory", Amount(0, 4)),
        ("hami", "cores", Amount(1000, 0)),
        ("hami", "cards", None),
        ("hami", "percent", None),
        ("gpushare-scheduler-extender", "memory", Amount(0, 4000)),
        ("gpushare-scheduler-extender", "cards", None),
        ("gpu-manager", "memory", Amount(0, 1000)),
        ("time-slicing", "cards", Amount(10_000, 9_000)),
    ],
)
def test_limits(system: str, part: str, wanted: Amount | None) -> None:
    """A limit becomes one of the same thing; a number of shares has no counterpart."""
    limit = convert_limit(System(system), Part[part.upper()], 1000, TENTHS)
    assert limit == wanted if wanted else isinstance(limit, str)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            {"nvidia.com/use-gputype": "A100, NVIDIA-NVIDIA V100"},
            {"baidu.com/vcuda-models": "*A100*, *V100*"},
        ),
        (
            {"nvidia.com/use-gputype": "A", "nvidia.com/nouse-gputype": "A10,"},
            {"baidu.com/vcuda-models": "*A*, !*A10*"},
        ),
        (
            {"nvidia.com/use-gpuuuid": "GPU-12345678", "nvidia.com/vgpu-mode": "mig"},
            {"baidu.com/vcuda-uuids": "GPU-12345678"},
        ),
        ({"nvidia.com/use-gpuuuid": " ", "nvidia.com/vgpu-mode": "hami-core"}, {}),
        ({"hami.io/gpu-scheduler-policy": "mutex"}, {}),
        (
            {"hami.io/node-scheduler-policy": "spread"},
            {"baidu.com/vcuda-policy": "spread"},
        ),
        (
            {
                "hami.io/node-scheduler-policy": "spread",
                "hami.io/gpu-scheduler-policy": "binpack",
            },
            {"baidu.com/vcuda-policy": "best-fit"},
        ),
    ],
    ids=str,
)
def test_annotations(old: dict[str, str], new: dict[str, str]) -> None:
    """HAMi's lists name parts of models; its policy for cards wins over that for nodes.

    What is not carried over is a problem, except what is the rule here anyway.
    """
    carried = translate_annotations({"app": "x", **old})
    assert carried.values == new
    problems = {
        "nvidia.com/vgpu-mode": "mig",
        "hami.io/gpu-scheduler-policy": "mutex",
        "hami.io/node-scheduler-policy": "spread",
    }
    expected = {key for key, text in problems.items() if old.get(key) == text}
    assert set(carried.problems) == expected - set(carried.sources)
