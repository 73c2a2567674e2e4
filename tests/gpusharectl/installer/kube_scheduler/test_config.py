"""Our entry in whatever configuration kube-scheduler had."""

import pytest
import yaml

from gpusharectl.installer.kube_scheduler.config import (
    ConfigTarget,
    configuration_of_flags,
    has_extender,
    parse_flags,
    with_extender,
    without_extender,
)
from gpusharectl.installer.kube_scheduler.files import shipped_extender
from gpusharectl.installer.kube_scheduler.host_files import Obstacle

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
OWN = f"""\
{HEAD}clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
leaderElection:
  leaderElect: false
percentageOfNodesToScore: 70
profiles:
- schedulerName: theirs
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
extenders:
- urlPrefix: http://127.0.0.1:8888/other
  filterVerb: filter
  managedResources:
  - name: example.org/fpga
"""
KUBEADM_FLAGS = {
    "authentication-kubeconfig": "/etc/kubernetes/scheduler.conf",
    "bind-address": "127.0.0.1",
    "kubeconfig": "/etc/kubernetes/scheduler.conf",
    "leader-elect": "true",
}
OURS = shipped_extender()
WANTED = ConfigTarget(OURS)


def added(old: str | None, wanted: ConfigTarget = WANTED) -> dict:
    text = with_extender(old, wanted)
    assert has_extender(text)
    return yaml.safe_load(text)


def test_every_flag_that_moves() -> None:
    words = """
        --kubeconfig=/k
        --kube-api-qps=12.5
        --kube_api_burst=7
        --kube-api-content-type=application/json
        --leader-elect=false
        --leader-elect-lease-duration=20s
        --leader-elect-renew-deadline
        15s
        --leader-elect-retry-period=3s
        --leader-elect-resource-lock=leases
        --leader-elect-resource-name=n
        --leader-elect-resource-namespace=s
        --profiling
        --contention-profiling=F
        --v=4
        --secure-port=10259
    """
    flags = parse_flags(words.split())
    assert configuration_of_flags(flags) == {
        "clientConnection": {
            "kubeconfig": "/k",
            "qps": 12.5,
            "burst": 7,
            "contentType": "application/json",
        },
        "leaderElection": {
            "leaderElect": False,
            "leaseDuration": "20s",
            "renewDeadline": "15s",
            "retryPeriod": "3s",
            "resourceLock": "leases",
            "resourceName": "n",
            "resourceNamespace": "s",
        },
        "enableProfiling": True,
        "enableContentionProfiling": False,
    }


def test_last_flag_of_a_name_counts() -> None:
    words = ["--config=/a", "--config", "/b", "--leader-elect", "-v", "2"]
    assert parse_flags(words) == {"config": "/b", "leader-elect": "true", "v": "2"}


def test_kubeconfig_only_where_none_is_told() -> None:
    told = ConfigTarget(OURS, kubeconfig="/k3s")
    assert added(HEAD, told)["clientConnection"] == {"kubeconfig": "/k3s"}
    qps = f"{HEAD}clientConnection: {{qps: 9}}\n"
    assert added(qps, told)["clientConnection"] == {"qps": 9, "kubeconfig": "/k3s"}
    other = "/etc/kubernetes/scheduler.conf"
    assert added(OWN, told)["clientConnection"] == {"kubeconfig": other}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"kube-api-qps": "many"}, "--kube-api-qps=many is not understood"),
        ({"profiling": "yes"}, "--profiling=yes is not understood"),
        ({"kubeconfig": "$(WHERE)/k"}, "WHERE"),
    ],
)
def test_flags_that_would_be_lost(flags: dict[str, str], words: str) -> None:
    with pytest.raises(Obstacle, match=words):
        configuration_of_flags(flags)


def test_there_and_back() -> None:
    """All that was there stays, other extenders in their order; flags do not count."""
    text = with_extender(OWN, ConfigTarget(OURS, KUBEADM_FLAGS))
    found, expected = yaml.safe_load(text), yaml.safe_load(OWN)
    assert found.pop("extenders") == [*expected.pop("extenders"), OURS]
    assert found == expected
    assert with_extender(text, WANTED) == text
    assert with_extender(text.replace("weight: 5", "weight: 1"), WANTED) == text
    assert yaml.safe_load(without_extender(text, {})) == yaml.safe_load(OWN)
    assert without_extender(OWN, {}) == OWN
    assert "extenders" not in without_extender(with_extender(HEAD, WANTED), {})


@pytest.mark.parametrize("end", ["", "# last\n", "profiles: []\n"])
@pytest.mark.parametrize("other", ["", "- {urlPrefix: 'http://a:1/x'} # theirs\n"])
def test_comments_stay(other: str, end: str) -> None:
    """What somebody wrote into the file is theirs, also how it is written."""
    ours = yaml.safe_dump([OURS])
    text = f"# mine\n{HEAD}parallelism: 8 # few\nextenders:\n{{}}{end}"
    kept = text.replace("extenders:\n", "") if not other else text
    assert without_extender(text.format(f"{other}{ours}"), {}) == kept.format(other)


def test_tls() -> None:
    files = {"caFile": "/t/ca.crt"}
    text = with_extender(HEAD, ConfigTarget(OURS, tls=files))
    (found,) = yaml.safe_load(text)["extenders"]
    assert found["urlPrefix"] == "https://127.0.0.1:39999/scheduler"
    assert found["enableHTTPS"] is True
    assert found["tlsConfig"] == files
    assert added(text)["extenders"] == [OURS]


BINDS = "{urlPrefix: 'http://a:1/x', bindVerb: bind}"
MANAGES = (
    "{urlPrefix: 'http://a:1/x', managedResources: [{name: baidu.com/vcuda-core}]}"
)


@pytest.mark.parametrize("extender", [BINDS, MANAGES])
def test_another_tool_is_refused(extender: str) -> None:
    """kube-scheduler allows one binder, and one extender of a resource."""
    text = f"{HEAD}extenders: [{extender}]\n"
    with pytest.raises(Obstacle, match="http://a:1/x"):
        with_extender(text, WANTED)
    assert not has_extender(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 documents"),
        ("a: [", "is not YAML"),
        ("- a\n", "must hold one KubeSchedulerConfiguration"),
        (f"{HEAD}---\n{HEAD}", "has 2 documents"),
        (HEAD.replace("KubeScheduler", "Kubelet"), "KubeletConfiguration"),
        (HEAD.replace("kubescheduler", "kubelet"), "kubelet.config.k8s.io/v1"),
        (f"{HEAD}extenders: [a]\n", "extenders is not a list of extenders"),
        (f"{HEAD}extenders: a\n", "extenders is not a list of extenders"),
    ],
)
def test_what_is_no_configuration(text: str, words: str) -> None:
    for edit in (with_extender, without_extender):
        with pytest.raises(Obstacle, match=words):
            edit(text, WANTED)
