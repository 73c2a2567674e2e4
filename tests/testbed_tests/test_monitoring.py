"""The real Prometheus of the test bed, and its promtool."""

import math

import pytest

from tests.monitoring.pages import MetricsPage, PageServer
from tests.testbed.fixtures import StartPrometheus
from tests.testbed.prometheus import CAMEL_CASE, Promtool

PAGE = '# HELP warm Warmth.\n# TYPE warm gauge\nwarm{NodeName="n"} 1\n'


def test_promtool_excuses_our_labels_and_nothing_else(promtool: Promtool) -> None:
    assert promtool.complaints(PAGE) == []
    assert promtool.complaints(PAGE, excused="not this") == [f"warm {CAMEL_CASE}"]
    (told,) = promtool.complaints(f"{PAGE}cold 1\n")
    assert told.startswith("cold ")
    with pytest.raises(AssertionError, match="parsing error"):
        promtool.complaints("warm 1 2 3\n")


def test_what_was_scraped_is_what_the_page_says_now(
    prometheus: StartPrometheus,
) -> None:
    """A page changed before ``wait_scraped`` is the one that it has read."""
    served = MetricsPage()
    served.text = PAGE
    with PageServer(served.answer) as page:
        server = prometheus(targets={"house": [page.address]})
        server.wait_scraped()
        (found,) = server.query("warm")
        assert (found.name, found.labels["NodeName"], found.value) == ("warm", "n", 1)
        served.text = PAGE.replace("} 1", "} 2")
        server.wait_scraped()
        assert server.value("warm") == 2
        assert math.isnan(server.value("cold"))
        assert server.health() == {page.address: ""}
