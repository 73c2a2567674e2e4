"""What the exporter says that ``gpusharectl install --with-monitoring`` has made."""

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.cluster.fresh import Fresh
from tests.cluster.site import SYSTEM

NAME = "app.kubernetes.io/name=gpushare-exporter"
PROMISED = "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"
USED = "DCGM_CUSTOM_PROCESS_MEM_USED"


def page(site: Fresh, path: str = "metrics") -> str:
    """Read a page of the exporter's only pod, through the API server."""
    (pod,) = site.get("pods", "-n", SYSTEM, "-l", NAME)["items"]
    name = pod["metadata"]["name"]
    proxy = f"/api/v1/namespaces/{SYSTEM}/pods/{name}:9400/proxy"
    return site.kubectl("get", "--raw", f"{proxy}/{path}")


def samples(site: Fresh, name: str) -> list[Sample]:
    """Give all samples of one metric."""
    return [
        sample
        for family in text_string_to_metric_families(page(site))
        for sample in family.samples
        if sample.name == name
    ]


def by_pod(site: Fresh, name: str, namespace: str) -> dict[str, float]:
    """Give a metric of the pods of a namespace."""
    return {
        sample.labels["PodName"]: sample.value
        for sample in samples(site, name)
        if sample.labels.get("NamespaceName") == namespace
    }


def disagreements(site: Fresh) -> dict[str, float]:
    """Give how many placements differ from what came of them, and from kubelet's."""
    found = samples(site, "vcuda_placement_disagreements")
    return {sample.labels["what"]: sample.value for sample in found}
