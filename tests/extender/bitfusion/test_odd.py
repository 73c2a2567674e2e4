"""Pods that nobody would think of: without metadata, with filters of many words."""

import copy

import pytest

from extender.bitfusion.filter import wishes
from extender.pool import Pool
from extender.webhook.review import patch_between
from extender.webhook.rules import Rules, review
from gpushare.kube import names
from gpushare.kube.annotations import MOST_ENTRIES
from gpushare.kube.cluster import Json
from tests.extender.bitfusion.pods import ALL, HALF, pod, rules
from tests.extender.patching import patched

FILTER = "bitfusion-client/filter"


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": {}}])
@pytest.mark.parametrize("mode", ["all", "injection"])
def test_without_metadata(metadata: Json, mode: str) -> None:
    """A namespace's label translates it all the same, and the patch holds."""
    spec = pod({"containers": [{"command": ["a b"], "resources": HALF}]})["spec"]
    came = {**metadata, "spec": spec}
    before = copy.deepcopy(came)
    found = review(
        came,
        namespace="apps",
        mutating=True,
        mode=mode,
        rules=Rules(bitfusion=rules()),
        pool=Pool(),
    )
    assert found.denials == ()
    assert found.pod["metadata"]["annotations"]["auto-management/status"] == "injected"
    assert patched(came, patch_between(came, found.pod)) == found.pod
    assert came == before


@pytest.mark.parametrize(
    ("key", "value", "annotation"),
    [
        ("device.name", "T{}", names.MODELS),
        ("device.id", "GPU-{:08x}", names.UUIDS),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_more_cards_than_a_list_may_name(
    key: str, value: str, annotation: str, *, strict: bool
) -> None:
    """Told by the word that the user wrote, and not by our annotation."""
    words = [f"{key}={value.format(n)}" for n in range(MOST_ENTRIES + 1)]
    told = f"Filters by {key} after the first 32 are left out"
    came = pod(
        {
            "annotations": {**ALL, FILTER: " ".join(words)},
            "containers": [{"resources": HALF}],
        }
    )
    found = review(
        came,
        namespace="apps",
        mutating=True,
        mode="",
        rules=Rules(bitfusion=rules(strict=strict)),
        pool=Pool(),
    )
    if strict:
        assert found.denials == (told,)
        return
    assert found.warnings == (told,)
    assert found.denials == ()
    listed = found.pod["metadata"]["annotations"][annotation].split(",")
    assert len(listed) == MOST_ENTRIES


def test_a_uuid_longer_than_any_card_has() -> None:
    """It is told as the filter's, before our own rules look at it."""
    (told,) = wishes([f"device.id=GPU-{'0' * 200}"], Pool()).complaints
    assert "is left out: it is not a UUID" in told
