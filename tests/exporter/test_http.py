"""What is answered over HTTP, out of the snapshot alone."""

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as plain
from werkzeug.test import Client, TestResponse
from werkzeug.wrappers import Request

from exporter.http import ExporterPages, collect_page
from exporter.snapshot import ProcessRound, Round, TelemetrySnapshot
from exporter.telemetry.base import CardAnswer, ProcessesAnswer
from exporter.telemetry.fields import FB_TOTAL, FB_USED, MEMORY
from gpushare.cards.source import FoundCards
from tests.deviceplugin.node_fixture import found_card
from tests.exporter.exporter_data import A, B, snapshot

NODE = "docker-desktop"
SEED = f"""{{"{NODE}": {{"deviceNum": 2, "devices": [\
{{"percent": 0.1, "totalMemory": 1000, "usedMemory": 100}}, \
{{"percent": 0.1008991008991009, "totalMemory": 1001, "usedMemory": 101}}], \
"percent": 0.10044977511244378, "totalMemory": 2001, "usedMemory": 201}}}}
"""
"""Seed 000's answer, digits included: the node's share is of the sums."""
NOTHING = {
    "deviceNum": 0,
    "devices": [],
    "percent": 0.0,
    "totalMemory": 0,
    "usedMemory": 0,
}


def memory(used: float, total: float) -> dict[str, float]:
    return {FB_USED: used, FB_TOTAL: total}


VALUES = {A: memory(100.0, 1000.0), B: memory(101.0, 1001.0)}
TWO = snapshot(values=VALUES)
LOST = replace(TWO, rounds={MEMORY: Round(MEMORY, 0, 0, {}, "gone")})


def pages(
    seen: TelemetrySnapshot = TWO, unit: Any = "mib", **troubles: str
) -> ExporterPages:
    registry = CollectorRegistry()
    Gauge("one", "The first.", ["UUID"], registry=registry).labels(A).set(1)
    Gauge("other", "The second.", registry=registry).set(2)
    return ExporterPages(NODE, unit, lambda: seen, registry, lambda: troubles)


def get(path: str, made: ExporterPages | None = None, **headers: str) -> TestResponse:
    application = Request.application((made or pages()).every)
    return Client(application).get(path, headers=headers)


def get_alone(path: str) -> TestResponse:
    return Client(Request.application(pages().collect_alone)).get(path)


def names(text: str) -> set[str]:
    return {sample.name for family in plain(text) for sample in family.samples}


OPEN, TEXT = "application/openmetrics-text", "text/plain"
PROMETHEUS = f"{OPEN};version=1.0.0;q=0.5,{TEXT};version=0.0.4;q=0.3,*/*;q=0.2"
BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", TEXT),
        (BROWSER, TEXT),
        (PROMETHEUS, OPEN),
        (f"{OPEN};version=1.0.0;q=0.5,{TEXT};version=0.0.4;q=0.8", TEXT),
        (f"{OPEN};version=1.0.0;q=0.5,*/*;q=0.8", TEXT),
        (f"{TEXT};q=0.5,{OPEN};version=1.0.0;q=0.8", OPEN),
        (f"{TEXT};q=0.5, {OPEN} ; version=1.0.0 ; Q=0.8", OPEN),
        (f"{TEXT};q=0.5,{OPEN};version=1.0.0", OPEN),
        (f"{TEXT};q=0.5,{OPEN};version=1.0.0;q=0", TEXT),
        (f"{TEXT};q=0.5,{OPEN};version=1.0.0;q=much", TEXT),
        (f"{OPEN};version=1.0.0,{TEXT};version=0.0.4", OPEN),
        (f"{OPEN};version=0.0.1,{TEXT};q=0.1", TEXT),
        (f"text/html,{OPEN};version=1.0.0;q=0.1", OPEN),
        (f"{OPEN};version=1.0.0;q=0", TEXT),
        ("image/png", TEXT),
        (";,=;q", TEXT),
    ],
)
def test_the_format_with_the_highest_q(accept: str, kind: str) -> None:
    """Of those we have; of equal ones the first; text where there is none."""
    answer = get("/metrics", accept=accept)
    assert answer.status_code == 200
    assert answer.content_type.startswith(kind)
    assert answer.data.endswith(b"# EOF\n") is (kind == OPEN)
    if kind == OPEN:
        assert len(list(openmetrics(answer.text))) == 2
    else:
        assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
        assert names(answer.text) == {"one", "other"}
    assert "Content-Encoding" not in answer.headers


def test_gzip_where_it_is_taken() -> None:
    answer = get("/metrics", **{"accept-encoding": "deflate, gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(answer.data) == get("/metrics").data
    assert answer.headers["Vary"] == "Accept, Accept-Encoding"


def test_some_names_alone() -> None:
    answer = get("/metrics?name[]=other").text
    assert names(answer) == {"other"}
    assert "# HELP other The second." in answer
    assert not get("/metrics?name[]=nothing").data


def test_the_edge_agent_s_golden_values() -> None:
    for answer in (get("/v1/collect"), get_alone("/v1/collect")):
        assert answer.content_type == "application/json"
        assert answer.text == SEED


@pytest.mark.parametrize(
    "seen",
    [
        TelemetrySnapshot(),
        TelemetrySnapshot(found=FoundCards(())),
        TelemetrySnapshot(no_cards="the driver is not loaded"),
        snapshot(values={}),
        LOST,
    ],
)
def test_every_page_answers_whatever_is_known(seen: TelemetrySnapshot) -> None:
    """Before the first round, without a driver, after it went: never an error."""
    for path in ("/", "/metrics", "/healthz", "/v1/collect"):
        assert get(path, pages(seen)).status_code == 200
    assert get("/v1/collect", pages(seen)).json == {NODE: NOTHING}


def test_the_agents_address_has_one_page() -> None:
    for path in ("/", "/metrics", "/healthz", "/v1/collect/", "/v1", "/V1/collect"):
        assert get_alone(path).status_code == 404
    assert b"/metrics" in get("/").data
    assert get("/metric").status_code == 404


def test_health_names_what_is_missing() -> None:
    late = {A: ProcessesAnswer(failure="late")}
    says = {A: CardAnswer(), B: CardAnswer(failure="it was lost")}
    seen = replace(
        TWO,
        no_cards="gone",
        rounds={MEMORY: Round(MEMORY, 1000.0, 0.5, says, "")},
        processes=ProcessRound("processes", 1000.0, 0.25, late),
    )
    page = get("/healthz", pages(seen, config="line 1 is not valid")).json
    assert page is not None
    ages = [group.pop("age_s") for group in page["groups"].values()]
    assert min(ages) > 1e9
    assert page == {
        "node": NODE,
        "driver": "550.54.15",
        "cards": 2,
        "no_cards": "gone",
        "troubles": {"config": "line 1 is not valid"},
        "groups": {
            MEMORY: {"took_s": 0.5, "failure": "", "failed_cards": {B: "it was lost"}},
            "processes": {"took_s": 0.25, "failure": "", "failed_cards": {A: "late"}},
        },
    }


def test_a_card_of_which_nobody_knows_the_use_is_left_out() -> None:
    """Of the list, the count and the sums: it is not free."""
    unknown = snapshot(values={A: memory(100, 1000), B: {FB_TOTAL: 1001.0}})
    fails = snapshot(values=VALUES, failures={B: "it hangs"})
    absent = snapshot(values={A: memory(100, 1000)})
    first = {"percent": 0.1, "totalMemory": 1000, "usedMemory": 100}
    for seen in (unknown, fails, absent):
        wanted = {"deviceNum": 1, "devices": [first]} | first
        assert collect_page(seen, "n") == {"n": wanted}


def test_a_card_without_a_total_has_the_one_it_was_found_with() -> None:
    """Such as those of an inventory; one of no memory divides nothing by zero."""
    values = {A: {FB_USED: 76.0}, B: memory(0, 0)}
    seen = snapshot(found_card(1), found_card(0), values=values)
    # By index, whatever order they were found in.
    first, second = collect_page(seen, "n")["n"]["devices"]
    assert first["totalMemory"] == 29 * 256 + 100
    assert second == {"percent": 0.0, "totalMemory": 0, "usedMemory": 0}


@pytest.mark.parametrize(("unit", "factor"), [("mib", 1), ("bytes", 1 << 20)])
def test_counts_are_whole_numbers(unit: Any, factor: int) -> None:
    """Go reads them as unsigned; parts of a MiB are cut off."""
    seen = snapshot(values={A: memory(100.7, 1000.2)})
    body = json.loads(get("/v1/collect", pages(seen, unit)).data)[NODE]
    told = [body["usedMemory"], body["devices"][0]["totalMemory"]]
    assert told == [100 * factor, 1000 * factor]
    assert {type(count) for count in told} == {int}
