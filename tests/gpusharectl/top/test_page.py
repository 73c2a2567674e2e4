"""What top reads off an exporter's page, and off what is none."""

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest

from gpusharectl.top.scrape import CardSeen, ContainerSeen, UnreadableError, read_page
from tests.gpusharectl.pages import TICK, Says, Shown, Use, page

INFO = b'vcuda_exporter_info{version="0.1.0",driver="550"} 1.0\n'


def test_a_card_and_its_containers() -> None:
    """In MiB and percent, whatever unit the page has."""
    use = Use("app", 1024, 23, idle_s=60, over=True)
    seen = read_page(page(Shown("GPU-0", 3, 4000, 55, 61, 120, 512, uses=(use,))))
    assert seen.cards == {
        "GPU-0": CardSeen("GPU-0", "3", 4000, 55, 61, 120, 512, "process-utilization")
    }
    (one,) = seen.containers
    assert one == ContainerSeen(
        "GPU-0", "default", "app", "main", 1024, 23, TICK - 60, over=True
    )
    assert seen.of_pod("default", "app") == [one]
    assert seen.of_pod("default", "app", "GPU-1") == []
    assert seen.of_pod("edge", "app") == []


def test_what_is_not_on_the_page_is_unknown() -> None:
    """None, and not 0; while a 0 that is there stays one."""
    use = Use("app", None, 0, idle_s=None)
    shown = Shown("GPU-0", 0, None, None, None, None, None, uses=(use,))
    seen = read_page(page(shown))
    card, (one,) = seen.cards["GPU-0"], seen.containers
    assert (card.used_mib, card.busy, card.celsius, card.watts) == (None,) * 4
    assert card.unattributed_mib is None
    assert (one.used_mib, one.sm, one.last_busy, one.over) == (None, 0, None, False)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_number_is_unknown(value: str) -> None:
    """Nobody can add it up or draw it."""
    line = f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-0"}} {value}\n'
    seen = read_page(INFO + line.encode())
    assert seen.cards.get("GPU-0", CardSeen("GPU-0")).used_mib is None


def test_an_allotted_container_that_uses_nothing_yet_is_there() -> None:
    """By what it was allotted alone."""
    use = Use("app", None, None, idle_s=None)
    body = b"".join(
        line
        for line in page(Shown("GPU-0", uses=(use,))).splitlines(keepends=True)
        if b"over_share" not in line
    )
    (one,) = read_page(body).containers
    assert (one.pod, one.used_mib) == ("app", None)


def test_processes_outside_kubernetes_are_no_pod() -> None:
    """One series a card with empty names."""
    seen = read_page(page(Shown("GPU-0", outside=700), Shown("GPU-1", 1)))
    assert seen.outside_mib("GPU-0") == 700
    assert seen.outside_mib("GPU-1") is None


def test_what_the_exporter_says_of_itself() -> None:
    """A bad file of fields is said twice, and is one trouble."""
    told = Says(("pods", "config"), ("memory",), config_ok=False)
    seen = read_page(page(told=told))
    assert seen.troubles == ("config", "pods")
    assert seen.failed == ("memory",)
    assert seen.times["processes"] == TICK
    assert read_page(page(told=Says(config_ok=False))).troubles == ("config",)


def test_a_trouble_that_is_over_is_none() -> None:
    """A series may stay, with the value 0."""
    line = b'vcuda_exporter_trouble{about="pods"} 0\n'
    assert read_page(INFO + line).troubles == ()


def test_other_names_are_not_even_parsed() -> None:
    """They may be many, and parsing costs most of the time."""
    body = page(Shown("GPU-0"))
    assert read_page(body + b'DCGM_FI_DEV_XYZ{gpu="0} broken\n') == read_page(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it has no vcuda_exporter_info"),
        (b"<html>log in</html>", "it has no vcuda_exporter_info"),
        (b"up 1\n", "it has no vcuda_exporter_info"),
        (b"\xff\xfe", "it cannot be parsed"),
        (INFO + b"DCGM_FI_DEV_FB_USED{gpu=0} x\n", "it cannot be parsed"),
        (INFO + b'DCGM_FI_DEV_FB_USED{gpu="0', "it cannot be parsed"),
        (INFO + b"DCGM_FI_DEV_FB_USED{\n", "it cannot be parsed"),
        (INFO + b"DCGM_FI_DEV_FB_USED\n", "it cannot be parsed"),
    ],
)
def test_what_is_no_page_of_ours(body: bytes, words: str) -> None:
    """It is said in words, and nothing is guessed."""
    with pytest.raises(UnreadableError, match=words):
        read_page(body)


def test_names_that_must_be_escaped_come_back_as_they_were() -> None:
    """As prometheus_client writes them."""
    registry = CollectorRegistry()
    own = ("gpu", "UUID", "NamespaceName", "PodName", "ContainerName")
    used = Gauge("DCGM_CUSTOM_PROCESS_MEM_USED", "It.", own, registry=registry)
    used.labels("0", "GPU-0", "d", 'a"}{b\\', "线\n\u2028x").set(5)
    (one,) = read_page(INFO + generate_latest(registry)).containers
    assert (one.pod, one.name, one.used_mib) == ('a"}{b\\', "线\n\u2028x", 5)
