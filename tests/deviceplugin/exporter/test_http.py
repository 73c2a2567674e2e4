"""What is answered over HTTP, out of the snapshot alone."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as plain

from deviceplugin.cards.source import Found
from deviceplugin.exporter.http import ExporterPages, Request, Response
from deviceplugin.exporter.snapshot import ProcessRound, Round, Snapshot
from deviceplugin.telemetry.base import CardAnswer, ProcessesAnswer
from deviceplugin.telemetry.fields import FB_TOTAL, FB_USED, MEMORY
from tests.deviceplugin.node_fixture import found_card
from tests.deviceplugin.scripted_telemetry import A, B

SEED = Snapshot(
    found=Found((found_card(0), found_card(1))),
    rounds={
        MEMORY: Round(
            MEMORY,
            1000.0,
            0.002,
            {
                A: CardAnswer({FB_USED: 100.0, FB_TOTAL: 1000.0}),
                B: CardAnswer({FB_USED: 101.0, FB_TOTAL: 1001.0}),
            },
        )
    },
)
"""Seed 000's two cards."""
BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def pages(
    snapshot: Snapshot = SEED,
    unit: Any = "mib",
    troubles: Mapping[str, str] | None = None,
) -> ExporterPages:
    registry = CollectorRegistry()
    Gauge("one", "The first.", ["UUID"], registry=registry).labels(A).set(1)
    Gauge("other", "The second.", registry=registry).set(2)
    return ExporterPages(
        "docker-desktop", unit, lambda: snapshot, registry, lambda: troubles or {}
    )


def get(
    path: str, made: ExporterPages | None = None, query: Any = None, **headers: str
) -> Response:
    asked = Request(path, query or {}, headers)
    return (made or pages()).every(asked)


def names(text: str) -> set[str]:
    return {one.name for family in plain(text) for one in family.samples}


def test_metrics_in_prometheus_s_text() -> None:
    """Whoever asks for nothing in particular, or for HTML, gets the plain format."""
    for headers in ({}, {"accept": BROWSER}):
        answer = get("/metrics", **headers)
        assert answer.status == HTTPStatus.OK
        assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
        assert names(answer.body.decode()) == {"one", "other"}
        assert "Content-Encoding" not in answer.headers


def test_openmetrics_where_it_is_asked_for() -> None:
    """As Prometheus asks."""
    answer = get("/metrics", accept=PROMETHEUS)
    assert answer.content_type.startswith("application/openmetrics-text")
    assert len(list(openmetrics(answer.body.decode()))) == 2


OPEN, TEXT = "application/openmetrics-text", "text/plain"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
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
        ("image/png", TEXT),
        (";,=;q", TEXT),
    ],
)
def test_the_format_with_the_highest_q(accept: str, kind: str) -> None:
    """Of those we have; of equal ones the first; text where there is none."""
    answer = get("/metrics", accept=accept)
    assert answer.content_type.startswith(kind)
    assert answer.body.endswith(b"# EOF\n") is (kind == OPEN)


def test_gzip_where_it_is_taken() -> None:
    """The same page, shorter, and caches know that there are two."""
    answer = get("/metrics", **{"accept-encoding": "deflate, gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(answer.body) == get("/metrics").body
    assert answer.headers["Vary"] == "Accept, Accept-Encoding"


def test_some_names_alone() -> None:
    """``name[]`` as in any exporter; help and type stay."""
    answer = get("/metrics", query={"name[]": ["other"]}).body.decode()
    assert names(answer) == {"other"}
    assert "# HELP other The second." in answer
    assert not get("/metrics", query={"name[]": ["nothing"]}).body


def test_the_edge_agent_s_golden_values() -> None:
    """Seed 000, digits included, on both addresses."""
    request = Request("/v1/collect")
    for answer in (pages().every(request), pages().collect_alone(request)):
        assert answer.content_type == "application/json"
        assert json.loads(answer.body) == {
            "docker-desktop": {
                "deviceNum": 2,
                "devices": [
                    {"percent": 0.1, "totalMemory": 1000, "usedMemory": 100},
                    {
                        "percent": 0.1008991008991009,
                        "totalMemory": 1001,
                        "usedMemory": 101,
                    },
                ],
                "percent": 0.10044977511244378,
                "totalMemory": 2001,
                "usedMemory": 201,
            }
        }
        assert b"0.10044977511244378," in answer.body


def test_the_edge_agent_s_unit() -> None:
    """Bytes where they are asked for."""
    body = json.loads(get("/v1/collect", pages(unit="bytes")).body)
    assert body["docker-desktop"]["usedMemory"] == 201 << 20


@pytest.mark.parametrize(
    "snapshot",
    [
        Snapshot(),
        Snapshot(no_cards="the driver is not loaded"),
        replace(SEED, rounds={MEMORY: Round(MEMORY, 0, 0, {}, "gone")}),
    ],
)
def test_every_page_answers_whatever_is_known(snapshot: Snapshot) -> None:
    """Before the first round, without a driver, after it went: never an error."""
    for path in ("/", "/metrics", "/healthz", "/v1/collect"):
        assert get(path, pages(snapshot)).status == HTTPStatus.OK
    assert json.loads(get("/v1/collect", pages(snapshot)).body) == {
        "docker-desktop": {
            "deviceNum": 0,
            "devices": [],
            "percent": 0.0,
            "totalMemory": 0,
            "usedMemory": 0,
        }
    }


def test_the_agents_address_has_one_page() -> None:
    """No other route is asked for there."""
    for path in ("/", "/metrics", "/healthz", "/v1/collect/", "/v1", "/V1/collect"):
        answer = pages().collect_alone(Request(path))
        assert answer.status == HTTPStatus.NOT_FOUND


def test_the_front_page_says_where_to_go() -> None:
    """And what is nowhere is not found."""
    assert b"/metrics" in get("/").body
    assert get("/metric").status == HTTPStatus.NOT_FOUND


def test_health_names_what_is_missing() -> None:
    """Troubles, ages and failures; it is well as long as the process answers."""
    says = {A: CardAnswer(), B: CardAnswer(failure="it was lost")}
    used = ProcessRound(1000.0, 0.25, {A: ProcessesAnswer(failure="late")}, {}, "")
    snapshot = replace(
        SEED,
        driver_version="550.54.15",
        no_cards="gone",
        rounds={MEMORY: Round(MEMORY, 1000.0, 0.5, says, "")},
        processes=used,
    )
    made = pages(snapshot, troubles={"config": "line 1 will not do"})
    answer = get("/healthz", made)
    page = json.loads(answer.body)
    assert answer.status == HTTPStatus.OK
    assert (page["node"], page["driver"]) == ("docker-desktop", "550.54.15")
    assert (page["cards"], page["no_cards"]) == (2, "gone")
    assert page["troubles"] == {"config": "line 1 will not do"}
    memory, processes = page["groups"]["memory"], page["groups"]["processes"]
    assert memory["failed_cards"] == {B: "it was lost"}
    assert processes["failed_cards"] == {A: "late"}
    assert (memory["took_s"], processes["took_s"]) == (0.5, 0.25)
    assert memory["age_s"] > 1e9
