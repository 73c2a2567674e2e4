"""Where the stand-in lies, in pods that have volumes and lists of their own."""

from extender.bitfusion.client import SCRIPT
from gpushare.kube.cluster import Json
from tests.extender.bitfusion.pods import ALL, HALF, translated

INJECTION = {**ALL, "auto-management/bitfusion": "injection"}
CLIENT = "baidu.com/vcuda-bitfusion-client"
USUAL = "/usr/bin/bitfusion"
PACKED = "/bitfusion/bitfusion-client-ubuntu1804_4.5.0-4_amd64.deb/usr/bin/bitfusion"


def injected(annotations: Json = INJECTION, **container: object) -> Json:
    one = {"resources": HALF, **container}
    found = translated({"annotations": annotations, "containers": [one]})
    assert found.denials == ()
    return found.pod


def paths(a_pod: Json) -> list[str]:
    (one,) = a_pod["spec"]["containers"]
    return [mount["mountPath"] for mount in one["volumeMounts"]]


def test_where_the_containers_own_words_look_for_it() -> None:
    """In its command, its args and its variables, each place once."""
    found = injected(
        command=["/bitfusion/a_1.deb/usr/bin/bitfusion run -n 1 -- x"],
        args=["/bitfusion/a_1.deb/usr/bin/bitfusion"],
        env=[
            {"name": "PATH", "value": "/bitfusion/b-2.rpm/usr/bin:/bin"},
            {"name": "ELSE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "NOT", "value": "/bitfusion/usr/bin /bitfusion/../usr/binary"},
        ],
    )
    assert paths(found) == [
        USUAL,
        "/bitfusion/a_1.deb/usr/bin/bitfusion",
        "/bitfusion/b-2.rpm/usr/bin/bitfusion",
        PACKED,
    ]


def test_an_unknown_client_lies_at_the_usual_place() -> None:
    found = injected({"auto-management/bitfusion": "injection"})
    assert paths(found) == [USUAL]


def test_a_file_of_the_pods_own_stays() -> None:
    """Two mounts at one place the API server refuses."""
    own = {"name": "tools", "mountPath": USUAL}
    found = injected(volumeMounts=[own])
    (one,) = found["spec"]["containers"]
    assert one["volumeMounts"][0] == own
    assert paths(found) == [USUAL, PACKED]


def test_a_volume_of_that_name_stays() -> None:
    """Ours takes the next name."""
    taken: Json = {"name": "vcuda-bitfusion-client", "emptyDir": {}}
    one = {"resources": HALF}
    found = translated(
        {"annotations": INJECTION, "volumes": [taken], "containers": [one]}
    )
    first, second = found.pod["spec"]["volumes"]
    assert first == taken
    assert second["name"] == "vcuda-bitfusion-client-2"
    (made,) = found.pod["spec"]["containers"]
    assert {mount["name"] for mount in made["volumeMounts"]} == {second["name"]}


def test_only_ours_is_laid_there() -> None:
    """Whatever a user writes into the annotation before."""
    found = injected({**INJECTION, CLIENT: "#!/bin/sh\nexec evil"})
    assert found["metadata"]["annotations"][CLIENT] == SCRIPT


def test_in_mode_all_only_where_it_is_called() -> None:
    """Another word of the command may still call it."""
    plain = injected(ALL, command=["python a.py"])
    assert CLIENT not in plain["metadata"]["annotations"]
    assert "volumes" not in plain["spec"]
    calling = injected(ALL, command=["bitfusion run -n 1 -- a; bitfusion health"])
    (one,) = calling["spec"]["containers"]
    assert one["command"] == ["/bin/bash", "-c", "a; bitfusion health"]
    assert paths(calling) == [USUAL, PACKED]


def test_lists_of_the_pods_own_stay() -> None:
    """A filter never widens nor replaces what the pod says in our words."""
    own = {"baidu.com/vcuda-models": "A10"}
    wish = {"bitfusion-client/filter": "device.name=T4 device.id=GPU-9f12f917"}
    found = translated(
        {"annotations": {**ALL, **own, **wish}, "containers": [{"resources": HALF}]}
    )
    annotations = found.pod["metadata"]["annotations"]
    assert annotations["baidu.com/vcuda-models"] == "A10"
    assert annotations["baidu.com/vcuda-uuids"] == "GPU-9f12f917"


def test_apart_as_the_pod_says() -> None:
    """An annotation that stands there is not ours to change."""
    annotations = {**ALL, "baidu.com/vcuda-containers": "together"}
    containers = [{"resources": HALF}, {"name": "b", "resources": HALF}]
    found = translated({"annotations": annotations, "containers": containers})
    kept = found.pod["metadata"]["annotations"]["baidu.com/vcuda-containers"]
    assert kept == "together"
