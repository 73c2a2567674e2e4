"""What only a real API server tells of a webhook out of reach, and of versions."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gpushare.kube.api import ApiObjects
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Conflict
from gpushare.kube.facts import is_narrowed
from gpushare.kube.objects import Ref
from gpusharectl.install.manifests import load
from gpusharectl.install.options import WebhookOptions
from gpusharectl.install.progress import Exit, Trouble
from gpusharectl.install.webhook.apply import GuardedWriter, narrowed, probed
from gpusharectl.install.webhook.objects import (
    CONFIGURATIONS,
    DEPLOYMENT,
    SECRET,
    files_of,
    secret_of,
)
from tests.controlplane.gate import raised
from tests.controlplane.installing import Answered, bare, installing, there
from tests.gpusharectl.install.installed_cluster import InstalledCluster
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import pod
from tests.testbed.waiting import wait_until

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]
WANTED = WebhookOptions(wanted=True)


@pytest.fixture
def objects(plane: ControlPlane) -> Iterator[Answered]:
    with installing(plane) as found:
        yield found


@pytest.fixture
def world(objects: Answered, tmp_path: Path) -> InstalledCluster:
    return bare(objects, tmp_path)


def test_a_webhook_that_cannot_be_reached_is_not_asked(
    plane: ControlPlane, world: InstalledCluster, objects: Answered
) -> None:
    """In the API server's own words; what was asked for the trial goes again.

    Meanwhile pods with cards are made as if there were none of it.
    """
    objects.lost = True
    asking = pod("asking", "default", units=4, cores=1)
    where = "/api/v1/namespaces/default/pods"
    made: list[Json] = []

    def look() -> None:
        narrow = world.objects.get(CONFIGURATIONS[0])
        if narrow is not None and not made:
            assert is_narrowed(narrow)
            made.append(plane.rest.must("POST", where, asking))
        step()

    step, world.nodes.step = world.nodes.step, look
    # On a clock that only pauses move: a dozen tries, instead of sixty.
    world.clock.patience = partial(world.clock.patience, 12.0)
    assert world.install(webhook=WANTED) == Exit.STOPPED
    assert made
    text = " ".join(world.screen.text.split())
    assert 'failed calling webhook "pods.vcuda.baidu.com"' in text
    assert "not told to ask it, so pods are created as before" in text
    assert not any(world.objects.get(ref) for ref in CONFIGURATIONS)
    there(world, DEPLOYMENT)
    objects.lost = False
    assert world.install() == Exit.DONE, world.screen.text
    whole = [body for body in load("webhook") if Ref.of(body) in CONFIGURATIONS]
    for body in whole:
        found = there(world, Ref.of(body))["webhooks"]
        assert [one["matchConditions"] for one in found] == [
            one["matchConditions"] for one in body["webhooks"]
        ]


def test_a_secret_is_written_over_what_was_seen_alone(world: InstalledCluster) -> None:
    """The API server holds to the version, and to who was first where there is none."""
    first, second = (
        GuardedWriter(world.objects, {SECRET: world.objects.get(SECRET)})
        for _ in range(2)
    )
    first.put(made(b"1"))
    with pytest.raises(Trouble):
        second.put(made(b"2"))
    late = GuardedWriter(world.objects, {SECRET: world.objects.get(SECRET)})
    first.put(made(b"3"))
    with pytest.raises(Trouble):
        late.put(made(b"4"))
    stale = made(b"5")
    stale["metadata"]["resourceVersion"] = there(world, SECRET)["metadata"][
        "resourceVersion"
    ]
    world.objects.merge(SECRET, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        world.objects.apply(stale)
    assert files_of(there(world, SECRET)) == files_of(made(b"3"))
    # A label of somebody's is no reason to give way.
    first.put(made(b"6"))
    found = there(world, SECRET)
    assert files_of(found) == files_of(made(b"6"))
    assert found["metadata"]["labels"]["a"] == "b"


def made(content: bytes) -> Json:
    return secret_of(dict.fromkeys(("ca.crt", "tls.crt", "tls.key"), content))


def test_the_trial_before_the_real_webhook(plane: ControlPlane, tmp_path: Path) -> None:
    """It is answered; and of nobody else's pods is anything asked, whoever is down."""
    config = plane.kubeconfig(plane.admin.token, "trial")
    wrong = pod("wrong", units=4, cores=150)
    with raised(plane, tmp_path) as gate:
        objects = ApiObjects.connect(str(config))
        assert probed(objects).reached is True
        assert gate.post(wrong)[0] == 400
        alone = replace(
            gate, configurations=[narrowed(body) for body in gate.configurations]
        )
        alone.register()
        wait_until(lambda: gate.post(wrong)[0] == 201, "the narrowed ones to count")
        assert probed(objects).reached is True
        gate.webhook.stop()
        trial = probed(objects)
        assert trial.reached is False
        assert 'failed calling webhook "pods.vcuda.baidu.com"' in trial.words
        gate.admitted(wrong)
        objects.close()
