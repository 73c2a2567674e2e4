"""New pods for the webhook: what users write, and what became of it."""

from tests.testbed.objects import pod
from tests.testbed.rest import Json


def container(
    limits: dict[str, object] | None = None, name: str = "main", **other: object
) -> Json:
    """Describe a container that asks this; requests follow limits by themselves."""
    asked = {"limits": {key: str(value) for key, value in (limits or {}).items()}}
    return {"name": name, "image": "local.test/pause:1", "resources": asked, **other}


def asking(
    *containers: Json, annotations: dict[str, str] | None = None, **spec: object
) -> Json:
    """Describe a pod of these containers."""
    made = pod("tried", annotations=annotations)
    del made["metadata"]["namespace"]
    made["spec"] = {
        "automountServiceAccountToken": False,
        "containers": list(containers),
        **spec,
    }
    return made


def limits_of(a_pod: Json, number: int = 0, kind: str = "containers") -> dict[str, str]:
    """Give what a container asks, insisting that it requests the same."""
    resources = a_pod["spec"][kind][number]["resources"]
    limits: dict[str, str] = resources.get("limits", {})
    assert resources.get("requests", {}) == limits
    return limits
