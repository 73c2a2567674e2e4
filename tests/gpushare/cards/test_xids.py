"""Whose fault an XID is: the device plugin, the alerts and the docs agree.

``tests/exporter/test_collector.py`` has the exporter's counters.
"""

import re
from pathlib import Path

from deviceplugin.cards.health import Health
from gpushare.cards.source import XidEvent
from gpushare.cards.xids import CARD_XIDS, PROGRAM_XIDS
from gpushare.domain.model import CardUUID
from monitoring.alerts.cards import CARDS

DOCS = Path(__file__).parents[3] / "docs"
UUID = CardUUID("GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7")


def test_only_a_programs_fault_leaves_its_card_well() -> None:
    for xid in (*PROGRAM_XIDS, *CARD_XIDS, 62):
        health = Health()
        health.set_known([UUID])
        assert health.record_fault(XidEvent(UUID, xid)) == (xid not in PROGRAM_XIDS), (
            xid
        )


def test_no_program_pages_an_operator() -> None:
    by_severity = {
        alert.labels.get("page", alert.severity): set(
            map(int, re.findall(r"\d+", re.findall(r'xid=~"([\d|]+)"', alert.expr)[0]))
        )
        for alert in CARDS.alerts
        if 'xid=~"' in alert.expr
    }
    assert by_severity == {"true": set(CARD_XIDS), "info": set(PROGRAM_XIDS)}


def test_the_docs_name_those_of_programs() -> None:
    text = (DOCS / "deviceplugin.md").read_text()
    sentence = re.search(r"XIDs ([\d, and]+) are faults of a program", text)
    assert sentence is not None
    assert set(map(int, re.findall(r"\d+", sentence[1]))) == set(PROGRAM_XIDS)
