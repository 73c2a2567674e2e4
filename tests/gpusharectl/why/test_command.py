"""Suggestions for a pod's name that does not exist."""

import pytest

from gpusharectl.why.command import suggestions

PODS = [
    "default/web-7d9f-x1",
    "default/train",
    "edge/train",
    "edge/big",
]


@pytest.mark.parametrize(
    ("namespace", "name", "found"),
    [
        ("default", "big", ["edge/big"]),
        ("default", "trian", ["default/train"]),
        ("default", "web", ["default/web-7d9f-x1"]),
        ("default", "zzz", []),
        ("nowhere", "train", ["default/train", "edge/train"]),
    ],
    ids=["elsewhere", "slip", "beginning", "none", "no-such-namespace"],
)
def test_nearest(namespace: str, name: str, found: list[str]) -> None:
    """The same name elsewhere, a slip of the key, a controller's name."""
    assert suggestions(namespace, name, PODS) == found
