"""Our stanza in whatever configuration kube-scheduler had."""

import pytest
import yaml

from gpusharectl.kube_scheduler.config import (
    TlsFiles,
    Wanted,
    api_for,
    configured_by,
    has_stanza,
    parsed,
    with_stanza,
    without_stanza,
)
from gpusharectl.kube_scheduler.files import shipped_extender
from gpusharectl.kube_scheduler.host_files import Obstacle

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
WANTED = Wanted(OURS, "v1")


def added(old: str | None, wanted: Wanted = WANTED) -> dict:
    text = with_stanza(old, wanted)
    assert isinstance(text, str), text
    assert has_stanza(text)
    return yaml.safe_load(text)


def refusal(old: str) -> str:
    found = with_stanza(old, WANTED)
    assert isinstance(found, Obstacle)
    return str(found)


def test_from_kubeadms_flags() -> None:
    """Flags that a configuration makes ignored are in it, and no others."""
    assert added(None, Wanted(OURS, "v1", KUBEADM_FLAGS)) == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "leaderElection": {"leaderElect": True},
        "extenders": [OURS],
    }


def test_every_flag_that_moves() -> None:
    """Each comes with the type that the configuration wants."""
    flags = parsed(
        [
            "--kubeconfig=/k",
            "--kube-api-qps=12.5",
            "--kube_api_burst=7",
            "--kube-api-content-type=application/json",
            "--leader-elect=false",
            "--leader-elect-lease-duration=20s",
            "--leader-elect-renew-deadline",
            "15s",
            "--leader-elect-retry-period=3s",
            "--leader-elect-resource-lock=leases",
            "--leader-elect-resource-name=n",
            "--leader-elect-resource-namespace=s",
            "--profiling",
            "--contention-profiling=F",
            "--v=4",
            "--secure-port=10259",
        ]
    )
    assert configured_by(flags) == {
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
    """As kube-scheduler reads them, in one word or two."""
    words = ["--config=/a", "--config", "/b", "--leader-elect", "-v", "2"]
    assert parsed(words) == {"config": "/b", "leader-elect": "true", "v": "2"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("kube-api-qps", "many"), ("profiling", "yes"), ("kubeconfig", "$(WHERE)/k")],
)
def test_flag_that_is_not_understood(name: str, value: str) -> None:
    """It is named with its value; nothing is guessed."""
    found = configured_by({name: value})
    assert str(found) == f"--{name}={value} is not understood"


def test_flag_of_old_that_would_be_lost() -> None:
    """A policy file is silently ignored beside --config; so it is refused."""
    found = configured_by({"policy-config-file": "/p.json"})
    assert isinstance(found, Obstacle)
    assert "--policy-config-file is ignored beside --config" in str(found)


def test_own_configuration_stays() -> None:
    """All of it, other extenders in their order; flags then count for nothing."""
    found = added(OWN, Wanted(OURS, "v1beta3", KUBEADM_FLAGS))
    extenders = found.pop("extenders")
    expected = yaml.safe_load(OWN)
    assert extenders == [*expected.pop("extenders"), OURS]
    assert found == expected


def test_a_second_time_changes_nothing() -> None:
    """Ours is replaced, not added again; another version of it too."""
    text = with_stanza(OWN, WANTED)
    assert isinstance(text, str)
    assert with_stanza(text, WANTED) == text
    older = text.replace("weight: 5", "weight: 1")
    assert older != text
    assert with_stanza(older, WANTED) == text


def test_there_and_back() -> None:
    """Without our stanza it says what it said; a text without it is left alone."""
    text = with_stanza(OWN, WANTED)
    assert isinstance(text, str)
    bare = without_stanza(text, {})
    assert isinstance(bare, str)
    assert yaml.safe_load(bare) == yaml.safe_load(OWN)
    assert without_stanza(OWN, {}) == OWN
    alone = with_stanza(HEAD, WANTED)
    assert isinstance(alone, str)
    assert "extenders" not in str(without_stanza(alone, {}))


def test_tls() -> None:
    """With certificates: https, and the files that the scheduler shows and trusts."""
    files = TlsFiles("/t/ca.crt", "/t/client.crt", "/t/client.key", "name.svc")
    (found,) = added(HEAD, Wanted(OURS, "v1", tls=files))["extenders"]
    assert found["urlPrefix"] == "https://127.0.0.1:39999/scheduler"
    assert found["enableHTTPS"] is True
    assert found["tlsConfig"] == {
        "caFile": "/t/ca.crt",
        "certFile": "/t/client.crt",
        "keyFile": "/t/client.key",
        "serverName": "name.svc",
    }
    assert "enableHTTPS" not in OURS
    again = with_stanza(
        yaml.safe_dump(added(HEAD, Wanted(OURS, "v1", tls=files))), WANTED
    )
    assert isinstance(again, str)
    assert yaml.safe_load(again)["extenders"] == [OURS]


def test_kubeconfig_only_where_none_is_told() -> None:
    """k3s tells its own, unless the administrator has told another."""
    told = Wanted(OURS, "v1", kubeconfig="/k3s")
    assert added(HEAD, told)["clientConnection"] == {"kubeconfig": "/k3s"}
    qps = f"{HEAD}clientConnection: {{qps: 9}}\n"
    assert added(qps, told)["clientConnection"] == {"qps": 9, "kubeconfig": "/k3s"}
    other = "/etc/kubernetes/scheduler.conf"
    assert added(OWN, told)["clientConnection"] == {"kubeconfig": other}


@pytest.mark.parametrize(
    "extender",
    [
        "{urlPrefix: 'http://a:1/x', bindVerb: bind}",
        "{urlPrefix: 'http://a:1/x', managedResources: [{name: baidu.com/vcuda-core}]}",
    ],
)
def test_another_tool_is_refused(extender: str) -> None:
    """Another binder, or another with our resources, cannot stand beside us."""
    text = f"{HEAD}extenders: [{extender}]\n"
    assert "http://a:1/x" in refusal(text)
    assert not has_stanza(text)


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
    """It is said what it is instead."""
    assert words in refusal(text)
    assert isinstance(without_stanza(text, {}), Obstacle)


@pytest.mark.parametrize(
    ("version", "api"),
    [
        ("v1.36.3", "v1"),
        ("v1.25.0", "v1"),
        ("v1.24.17+k3s1", "v1beta3"),
        ("v1.23.1", "v1beta3"),
        ("1.22", "v1beta2"),
        ("v1.29+", "v1"),
    ],
)
def test_version_of_the_configuration(version: str, api: str) -> None:
    """The newest that this Kubernetes reads."""
    assert api_for(version) == api


@pytest.mark.parametrize(
    ("version", "words"), [("v1.21.9", "too old"), ("unknown", "'unknown'")]
)
def test_no_version_for_it(version: str, words: str) -> None:
    """Too old, or not told: in words."""
    found = api_for(version)
    assert isinstance(found, Obstacle)
    assert words in str(found)
