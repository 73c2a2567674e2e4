"""The adapter's rules over a page of metrics, in a real Prometheus."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.monitoring.adapter import Adapter, MetricsApi, rules_of
from tests.monitoring.pages import MetricsPage, PageServer
from tests.monitoring.scene import MENDED, SEED, lasting, names, page, paths, recorded
from tests.testbed.prometheus import Prometheus
from tests.testbed.served import MonitoringPrograms


@pytest.fixture(scope="module")
def prometheus(
    monitoring_programs: MonitoringPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    served = MetricsPage()
    served.text = page()
    folder = tmp_path_factory.mktemp("adapter")
    with PageServer(served.answer) as server:
        targets = {"exporter": [server.address]}
        with Prometheus(monitoring_programs, folder, targets) as made:
            made.wait_scraped()
            yield made


@pytest.mark.parametrize("rules", [SEED, MENDED], ids=["as printed", "mended"])
def test_the_real_adapter_answers_the_same(prometheus: Prometheus, rules: Path) -> None:
    """All that it was asked, over this very page: the list, values and refusals.

    A pod without samples is left out: an autoscaler must not take it for idle. What
    runs outside Kubernetes counts for its node and for no pod.
    """
    api = MetricsApi(Adapter(prometheus, rules_of(rules)), names)
    expected = recorded(rules)
    assert list(expected) == list(paths())
    for path, answer in expected.items():
        ours = api.answer(path)
        assert lasting(ours.status, json.loads(ours.body)) == answer, path
