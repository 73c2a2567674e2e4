"""The adapter's rules as they are shipped, and over a page in a real Prometheus."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpushare.domain.model import UNIT_MIB
from gpushare.kube.names import CORE, MEMORY
from tests.monitoring.adapter import Adapter, MetricsApi, rules_of
from tests.monitoring.pages import MetricsPage, PageServer
from tests.monitoring.scene import (
    ALLOCATED,
    MENDED,
    SEED,
    SM_UTIL,
    lasting,
    names,
    page,
    paths,
    recorded,
)
from tests.testbed.manifests import documents
from tests.testbed.prometheus import MonitoringPrograms, Prometheus

AS_PRINTED = (
    "- metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>) "
    "resources: overrides: NodeName: resource: node "
    "seriesQuery: DCGM_FI_DEV_GPU_UTIL{} "
    "- metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>) "
    "resources: overrides: NamespaceName: resource: namespace "
    "NodeName: resource: node PodName: resource: pod "
    "seriesQuery: DCGM_CUSTOM_PROCESS_SM_UTIL{} "
    "- metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>) "
    "resources: overrides: NodeName: resource: node "
    "seriesQuery: DCGM_FI_DEV_FB_USED{} "
    "- metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>) "
    "resources: overrides: NamespaceName: resource: namespace "
    "NodeName: resource: node PodName: resource: pod "
    "seriesQuery: DCGM_CUSTOM_PROCESS_MEM_USED{} "
    "- metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>) "
    "/ sum(DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED{}) by (<<.GroupBy>>) "
    "name: as: ${1}_GPU_MEM_USED_RATIO matches: ^(.*)_MEM_USED "
    "resources: overrides: NamespaceName: resource: namespace PodName: resource: pod "
    'seriesQuery: DCGM_CUSTOM_PROCESS_MEM_USED{NamespaceName!="",PodName!=""}'
)
"""Seed 002's, less its remarks."""


def test_the_rules_are_those_printed() -> None:
    rules = yaml.safe_load(SEED.read_text())["rules"]["custom"]
    assert " ".join(yaml.safe_dump(rules, width=1000).split()) == AS_PRINTED


def test_the_mended_rules_differ_in_one_divisor() -> None:
    printed, mended = rules_of(SEED), rules_of(MENDED)
    assert mended[:-1] == printed[:-1]
    last = printed[-1].metrics_query
    by_all = f"sum({ALLOCATED}{{}}) by (<<.GroupBy>>)"
    of_its_own = f"(sum({ALLOCATED}{{<<.LabelMatchers>>}}) by (<<.GroupBy>>) > 0)"
    assert mended[-1].metrics_query == last.replace(by_all, of_its_own)
    assert mended[-1].series_query == printed[-1].series_query


def test_both_autoscalers_want_the_same() -> None:
    """In the words of two ages of the API, of the service that is shipped."""
    (new,), (old,) = (
        documents(f"autoscaling/{name}.yaml") for name in ("gpu-hpa", "gpu-hpa-v2beta1")
    )
    versions = (new["apiVersion"], old["apiVersion"])
    assert versions == ("autoscaling/v2", "autoscaling/v2beta1")
    (now,), (before,) = (body["spec"].pop("metrics") for body in (new, old))
    assert new["spec"] == old["spec"]
    assert new["metadata"] == old["metadata"] == {"name": "gpu-hpa"}
    assert (new["spec"]["minReplicas"], new["spec"]["maxReplicas"]) == (1, 10)
    target = {"type": "Utilization", "averageValue": 20}
    pods = {"metric": {"name": SM_UTIL}, "target": target}
    assert now == {"type": "Pods", "pods": pods}
    pods = {"metricName": SM_UTIL, "targetAverageValue": 20}
    assert before == {"type": "Pods", "pods": pods}
    deployment, service = documents("autoscaling/bert-intent-detection.yaml")
    wanted = {key: deployment[key] for key in ("apiVersion", "kind")}
    wanted["name"] = deployment["metadata"]["name"]
    assert new["spec"]["scaleTargetRef"] == wanted
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels


def test_the_services_pods_ask_for_what_their_program_takes() -> None:
    """Of our two resources, in whole numbers, and of nobody else's.

    Seed 002's own nvidia-smi has this image's process at 15343 MiB: asked for less, it
    would be over its share from its first moment on.
    """
    deployment, service = documents("autoscaling/bert-intent-detection.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "bert-container"
    assert container["resources"] == {"limits": {MEMORY: 60, CORE: 25}}
    assert 0 <= 60 * UNIT_MIB - 15343 < UNIT_MIB
    assert service["metadata"]["name"] == "bert-intent-detection-svc"
    assert service["spec"]["type"] == "LoadBalancer"
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, 80)


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
