"""What is cut out of an answer before it is parsed, and what never is."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kube.apiserver.client import cut_managed_fields

FIELDS = {
    "f:metadata": {"f:annotations": {".": {}, "f:x": {}}},
    "f:spec": {'k:{"name":"}]},\\"spec\\":{"}': {".": {}, "f:env": {}}},
}
ENTRIES = [
    {"manager": "kubelet", "fieldsV1": FIELDS},
    {"manager": "kubectl", "fieldsV1": {"f:status": {}}, "subresource": "status"},
]


def thing(name: str, /, managed: object = ENTRIES, **fields: Any) -> dict[str, Any]:
    """Write an object in the order of kube-apiserver."""
    metadata = {"name": name, "annotations": {"x": "y"}}
    return {"metadata": metadata | {"managedFields": managed}} | fields


def cut(body: object) -> Any:
    return orjson.loads(cut_managed_fields(orjson.dumps(body)))


def test_all_objects_of_a_list() -> None:
    """They keep everything else, in their order."""
    items = [thing(name, spec={"a": name}, status={}) for name in "abc"]
    found = cut({"kind": "PodList", "metadata": {}, "items": items})
    for item in items:
        del item["metadata"]["managedFields"]
    assert found == {"kind": "PodList", "metadata": {}, "items": items}


def test_the_object_of_an_event() -> None:
    """A watch's line is one object."""
    found = cut({"type": "ADDED", "object": thing("a", spec={})})
    assert "managedFields" not in found["object"]["metadata"]


OWNED = {"metadata": {"name": "b", "ownerReferences": [{"uid": "1"}]}, "spec": {}}


@pytest.mark.parametrize(
    "items",
    [
        [thing("no-spec", status={}), OWNED],
        [thing("no-spec", data={}), thing("none", managed=[], spec={})],
        [thing("nothing", managed=[]), thing("none", managed=None, spec={})],
    ],
)
def test_one_object_never_ends_in_the_next(items: list[dict[str, Any]]) -> None:
    """Where ``spec`` does not follow, the cut would reach into the next object."""
    found = cut({"items": items})["items"]
    assert [item["metadata"]["name"] for item in found] == [
        item["metadata"]["name"] for item in items
    ]
    assert found[0] == items[0]


@given(st.text(max_size=40))
def test_no_text_of_a_user_is_taken_for_the_field(text: str) -> None:
    """A pod's annotations and the names in its fields are whatever its user writes."""
    for said in (text, ',"managedFields":[' + text, '}]},"spec":{' + text):
        one = thing("a", spec={"args": [said], said: said})
        one["metadata"]["annotations"] = {said: said}
        one["metadata"]["managedFields"] = [{"fieldsV1": {f"k:{said}": {}}}]
        found = cut({"items": [one, one]})["items"]
        del one["metadata"]["managedFields"]
        assert found == [one, one]
