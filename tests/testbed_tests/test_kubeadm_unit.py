"""What a cluster is made of, as far as it can be told without one."""

from pathlib import Path

from tests.testbed.kubeadm import instances, network, scheduler_pod
from tests.testbed.kubeadm.images import Image, write_archive
from tests.testbed.kubeadm.network import Addresses


def test_an_image_is_the_same_each_time(tmp_path: Path) -> None:
    """No clock goes into it, so that a node need not take it twice."""
    image = Image(("a:1",), {"/a": Path(__file__)})
    for name in ("one", "two"):
        write_archive(image, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_scheduler_configuration_is_named_by_its_content() -> None:
    """Another content makes for another pod, the files beside it included."""
    names = {
        scheduler_pod.config_files(config, extra)[0]
        for config, extra in (("a", {}), ("b", {}), ("a", {"ca.crt": "x"}))
    }
    _, texts = scheduler_pod.config_files("a", {"ca.crt": "x"})
    assert len(names) == 3
    assert texts[f"{scheduler_pod.FOLDER}/ca.crt"] == "x"


def test_no_two_clusters_share_an_address() -> None:
    """Nodes' and pods' networks, the links' names and the groups' are one's own."""
    everyone = [Addresses(number) for number in network.INSTANCES]
    pods = [each.pods(node) for each in everyone for node in network.NODES_EACH]
    assert len(set(pods)) == len(pods)
    assert len({each.network for each in everyone}) == len(everyone)
    assert not instances.cgroup_prefix(10).startswith(instances.cgroup_prefix(1))
