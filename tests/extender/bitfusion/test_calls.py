"""What a call in a command asks, where the container's resources say nothing."""

import pytest

from tests.extender.bitfusion.pods import ALL, HALF, translated

CORE, MEMORY = "baidu.com/vcuda-core", "baidu.com/vcuda-memory"


def asked(line: str) -> tuple[str, str]:
    found = translated({"annotations": ALL, "containers": [{"command": [line]}]})
    assert found.denials == ()
    limits = found.pod["spec"]["containers"][0]["resources"]["limits"]
    return limits[CORE], limits[MEMORY]


@pytest.mark.parametrize(
    ("options", "cores", "units"),
    [
        ("-n 1 -p 0.5", "50", "29"),
        ("-n 1 -p 1", "100", "59"),
        ("-n 1 -p 1.0", "100", "59"),
        ("-p .25", "25", "14"),
        ("-n 2", "200", "118"),
        ("", "100", "59"),
        ("-p 0.333", "33", "19"),
        ("-p 0.001", "1", "1"),
        ("-p 1e-9999999", "1", "1"),
        ("-m 8000", "50", "30"),
        ("-m 8Gi", "54", "32"),
        ("-m 8000 -p 0.1", "50", "30"),
    ],
)
def test_parts(options: str, cores: str, units: str) -> None:
    """A fraction becomes a percentage, rounded down; a plain number of -m is MB."""
    assert asked(f"bitfusion run {options} -- python a.py") == (cores, units)


@pytest.mark.parametrize(
    ("calls", "cores", "units"),
    [
        (("-p 0.2", "-p 0.5"), "50", "29"),
        (("-m 1000", "-m 8000"), "50", "30"),
        (("-m 1000", "-p 0.5"), "50", "29"),
        (("-m 12000", "-p 0.5"), "75", "45"),
        (("-m 12000", "-p 0.5", ""), "100", "59"),
        (("-n 2", "-p 0.5", "-m 8000"), "200", "118"),
    ],
)
def test_of_several_calls_the_most_counts(
    calls: tuple[str, ...], cores: str, units: str
) -> None:
    """One ends before the next begins, so each has enough with the most of them."""
    line = " && ".join(f"bitfusion run {options} -- a" for options in calls)
    assert asked(line) == (cores, units)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "-n 0",
            "gpuNum.Value() Error (spec.containers[0].command, bitfusion run -n is",
        ),
        ("-n $N", "gpuNum.Value() Error "),
        ("-p 0", "Invalid bitfusion.io/gpu-percent quantity: 0 "),
        ("-p 50", "a number above 0 and up to 1; write 0.5 for half of it"),
        ("-p nan", "quantity: nan "),
        ("-p 1e9999999", "quantity: 1e9999999 "),
        ("-m 0", "Memory value Error "),
        ("-m 99999", "Memory value Error "),
        ("-n 2 -p 0.5", "2 cards with 50 percent of each are not possible"),
    ],
)
def test_denials(options: str, says: str) -> None:
    """In the same words as for resources, with the option that is wrong."""
    line = f"bitfusion run {options} -- python a.py"
    found = translated({"annotations": ALL, "containers": [{"command": [line]}]})
    (told,) = found.denials
    assert says in told


def test_of_two_kinds_without_a_cards_size() -> None:
    """Nobody could tell which is more; memory alone needs no such size."""
    line = "bitfusion run -m 8000 -- a; bitfusion run -p 0.5 -- b"
    short = {"annotations": ALL, "containers": [{"command": [line]}]}
    (told,) = translated(short, total_mb="").denials
    assert told.startswith("Invalid bitfusion.io/gpu-percent quantity: 50 ")


def test_a_call_that_cannot_be_had_beside_one_that_can() -> None:
    """It is not hidden by the one that asks more."""
    line = "bitfusion run -n 2 -p 0.5 -- a; bitfusion run -n 4 -- b"
    found = translated({"annotations": ALL, "containers": [{"command": [line]}]})
    (told,) = found.denials
    assert "2 cards with 50 percent of each are not possible" in told


def test_of_wrong_calls_resources_make_right_ones() -> None:
    """What the resources say is what counts; the call's numbers are not looked at."""
    one = {"command": ["bitfusion run -n $N -p 7 -- python a.py"], "resources": HALF}
    found = translated({"annotations": ALL, "containers": [one]})
    assert found.denials == ()
    (made,) = found.pod["spec"]["containers"]
    assert made["command"] == ["/bin/bash", "-c", "python a.py"]
    assert made["resources"]["limits"] == {CORE: "50", MEMORY: "29"}
