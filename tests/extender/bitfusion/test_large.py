"""Pods of megabytes: each piece is read once, or these tests would not end."""

import pytest

from extender.bitfusion.command_line import command_of
from tests.extender.bitfusion.pods import ALL, HALF, translated

MANY = 300_000


@pytest.mark.parametrize(
    "line",
    [
        "bitfusion run " * MANY,
        "bitfusion run -n 1 -- a; " * MANY,
        "{" * 10 * MANY,
        "/" * 10 * MANY,
        "/bitfusion" * MANY,
        "bitfusion run " + "-n 1 " * MANY,
        "bitfusion run --odd " + "a " * MANY + "--",
        "bitfusion run -n 1 -- '" + "a " * MANY + "'",
        "bitfusion run -n 1 -- " + "a" * MANY + "'",
        "bitfusion run " + '"' * MANY,
        "bitfusion run " + "\\" * MANY,
    ],
    ids=lambda line: str(line)[:30].strip(),
)
def test_a_long_line(line: str) -> None:
    found = command_of({"command": ["/bin/sh", "-c", line]}, "/bin/bash")
    assert found.command[:2] == ("/bin/sh", "-c")
    assert len(found.command[2]) <= len(line) + len("/bin/bash -c ")


def test_many_words() -> None:
    found = command_of({"command": ["bitfusion", "run", *["-n"] * MANY]}, "/bin/bash")
    assert len(found.command) == MANY + 2


def test_a_long_filter() -> None:
    """What is left out is said, in few words."""
    text = " ".join(f"server.hostname=n{number}" for number in range(20_000))
    annotations = {**ALL, "bitfusion-client/filter": text}
    found = translated(
        {"annotations": annotations, "containers": [{"resources": HALF}]}
    )
    assert found.warnings == ("Filters after the first 64 words are left out",)


def test_a_thousand_containers() -> None:
    containers = [{"name": f"c{number}", "resources": HALF} for number in range(1000)]
    found = translated({"annotations": ALL, "containers": containers})
    assert len(found.pod["spec"]["containers"]) == 1000
    wrong = [
        {"name": one["name"], "resources": {"limits": {"bitfusion.io/x": 1}}}
        for one in containers
    ]
    assert len(translated({"annotations": ALL, "containers": wrong}).denials) == 1000
