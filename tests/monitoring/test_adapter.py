"""The adapter's rules over a page of metrics, in a real Prometheus."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.monitoring.adapter import Adapter, Metric, rules_of
from tests.monitoring.metricsapi import ROOT, MetricsApi
from tests.monitoring.pages import MetricsPage, PageServer
from tests.monitoring.questions import lasting, names, paths, recorded
from tests.monitoring.scene import (
    FB_USED,
    GPU_UTIL,
    MEM_USED,
    MENDED,
    RATIO,
    SEED,
    SM_UTIL,
    page,
)
from tests.testbed.prometheus import Prometheus
from tests.testbed.served import MonitoringPrograms


@dataclass
class Bench:
    prometheus: Prometheus

    def adapter(self, rules: Path = SEED) -> Adapter:
        return Adapter(self.prometheus, rules_of(rules))

    def value(
        self,
        resource: str,
        name: str,
        *of: str,
        namespace: str = "",
        rules: Path = SEED,
    ) -> dict[str, float]:
        namespaced = resource == "pods"
        metric = Metric(resource, name, namespaced)
        return self.adapter(rules).values(metric, namespace, *of)


@pytest.fixture(scope="module")
def bench(
    monitoring_programs: MonitoringPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    served = MetricsPage()
    served.text = page()
    folder = tmp_path_factory.mktemp("adapter")
    with (
        PageServer(served.answer) as server,
        Prometheus(
            monitoring_programs, folder, {"exporter": [server.address]}
        ) as prometheus,
    ):
        prometheus.wait_scraped()
        yield Bench(prometheus)


def test_the_list_that_an_autoscaler_finds(bench: Bench) -> None:
    """All of a kind: pods are of a namespace, namespaces and nodes of none."""
    about = {
        GPU_UTIL: ["nodes"],
        FB_USED: ["nodes"],
        SM_UTIL: ["nodes", "namespaces", "pods"],
        MEM_USED: ["nodes", "namespaces", "pods"],
        RATIO: ["namespaces", "pods"],
    }
    expected = [
        {
            "name": f"{resource}/{metric}",
            "singularName": "",
            "namespaced": resource == "pods",
            "kind": "MetricValueList",
            "verbs": ["get"],
        }
        for metric, resources in about.items()
        for resource in resources
    ]
    for rules in (SEED, MENDED):
        listed = bench.adapter(rules).listed()
        assert listed == sorted(expected, key=lambda one: str(one["name"]))


def test_the_five_values(bench: Bench) -> None:
    """Averages of utilization, sums of memory, and memory beside what was allotted."""
    assert bench.value("nodes", GPU_UTIL, "node-1", "node-2") == {
        "node-1": 10,
        "node-2": 40,
    }
    assert bench.value("nodes", FB_USED, "node-1", "node-2") == {
        "node-1": 2200,
        "node-2": 4000,
    }
    pods = ("bert-a", "bert-b")
    assert bench.value("pods", SM_UTIL, *pods, namespace="default") == {
        "bert-a": 23,
        "bert-b": 0,
    }
    assert bench.value("pods", MEM_USED, *pods, namespace="default") == {
        "bert-a": 512,
        "bert-b": 0,
    }
    assert bench.value("pods", RATIO, *pods, namespace="default") == {
        "bert-a": 0.5,
        "bert-b": 0,
    }


def test_the_same_by_node_and_by_namespace(bench: Bench) -> None:
    """What runs outside Kubernetes counts for its node and for no pod."""
    assert bench.value("nodes", SM_UTIL, "node-1") == {"node-1": 11}
    assert bench.value("nodes", MEM_USED, "node-1") == {"node-1": 1124}
    assert bench.value("namespaces", SM_UTIL, "default") == {"default": 11.5}
    assert bench.value("namespaces", MEM_USED, "default", "bank") == {
        "default": 512,
        "bank": 256,
    }
    assert bench.value("namespaces", RATIO, "default") == {"default": 0.25}


def test_a_pod_of_the_same_name_elsewhere_halves_the_printed_ratio(
    bench: Bench,
) -> None:
    """512 of 1024 MiB are a half; the rule as printed says a quarter."""
    shop = "shop"
    printed = bench.value("pods", RATIO, "web-0", namespace=shop)
    assert printed == {"web-0": 0.25}
    mended = bench.value("pods", RATIO, "web-0", namespace=shop, rules=MENDED)
    assert mended == {"web-0": 0.5}
    of_bank = bench.value("pods", RATIO, "web-0", namespace="bank", rules=MENDED)
    assert of_bank == {"web-0": 0.25}


def test_a_pod_without_samples_is_left_out(bench: Bench) -> None:
    """Unknown is nothing: an autoscaler must not take it for idle."""
    asked = ("bert-a", "starting")
    found = bench.value("pods", SM_UTIL, *asked, namespace="default")
    assert found == {"bert-a": 23}


@pytest.mark.parametrize("rules", [SEED, MENDED], ids=["as printed", "mended"])
def test_the_real_adapter_answers_the_same(bench: Bench, rules: Path) -> None:
    """All that it was asked, over this very page: the list, values and refusals."""
    api = MetricsApi(bench.adapter(rules), names)
    expected = recorded(rules)
    assert list(expected) == list(paths())
    for path, answer in expected.items():
        ours = api.answer(path)
        assert lasting(ours.status, json.loads(ours.body)) == answer, path


@pytest.mark.parametrize("path", ["/apis", f"{ROOT}/far/too/many/words/in/it"])
def test_a_path_that_is_nobodys(bench: Bench, path: str) -> None:
    answer = MetricsApi(bench.adapter(), names).answer(path)
    assert answer.status == 404
    assert json.loads(answer.body)["kind"] == "Status"
