"""The adapter's rules as they are shipped, and as the adapter renders them."""

import yaml

from gpushare.domain.model import UNIT_MIB
from gpushare.kube import names
from tests.monitoring.adapter import rules_of
from tests.monitoring.scene import ALLOCATED, MENDED, SEED, SM_UTIL
from tests.testbed.manifests import documents

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
    (now,), (before,) = (one["spec"].pop("metrics") for one in (new, old))
    assert new["spec"] == old["spec"]
    assert new["metadata"] == old["metadata"] == {"name": "gpu-hpa"}
    assert (new["spec"]["minReplicas"], new["spec"]["maxReplicas"]) == (1, 10)
    assert now == {
        "type": "Pods",
        "pods": {
            "metric": {"name": SM_UTIL},
            "target": {"type": "Utilization", "averageValue": 20},
        },
    }
    assert before == {
        "type": "Pods",
        "pods": {"metricName": SM_UTIL, "targetAverageValue": 20},
    }
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
    assert container["resources"] == {"limits": {names.MEMORY: 60, names.CORE: 25}}
    assert 0 <= 60 * UNIT_MIB - 15343 < UNIT_MIB
    assert service["metadata"]["name"] == "bert-intent-detection-svc"
    assert service["spec"]["type"] == "LoadBalancer"
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, 80)
