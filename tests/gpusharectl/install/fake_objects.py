"""``Objects`` in memory: what an installer needs of an API server, and its failures.

``tests/controlplane/test_install.py`` runs the same stories on a real one.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import orjson

from gpushare.fakeapi.rules import merge
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
)
from gpushare.kube.objects import Ref
from gpusharectl.install.webhook.objects import CONFIGURATIONS

Failure = Callable[[], BaseException]


def copied(thing: Any) -> Any:
    """A copy of what JSON can hold; ``deepcopy`` takes many times as long."""
    return orjson.loads(orjson.dumps(thing))


class FakeObjects:
    """Objects by kind and name; ``fails`` raises something at one of the calls.

    ``denied`` are verbs and resources, such as ``patch nodes``; ``unserved`` kinds;
    ``unreachable`` is why the API server cannot ask the webhook, if it cannot.
    """

    def __init__(self, version: str = "v1.36.3") -> None:
        self.kept: dict[Ref, Json] = {}
        self.denied: set[str] = set()
        self.unserved: set[str] = set()
        self.logs: dict[str, str] = {}
        self.calls: list[str] = []
        self.writes: list[str] = []
        self.refused: dict[str, str] = {}
        self.unreachable = ""
        self._version = version
        self._numbers = count(1)
        self._fails: tuple[int, bool, Failure] | None = None

    def backdoor(self) -> "FakeObjects":
        """The same objects, for stand-ins, whose calls neither count nor fail."""
        found = FakeObjects(self._version)
        found.kept, found._numbers = self.kept, self._numbers
        return found

    def fails(self, call: int, failure: Failure, *, done: bool) -> None:
        """Fail at the call of this number from now; ``done``: after it took effect."""
        self._fails = (len(self.calls) + call, done, failure)

    def version(self) -> str:
        return self._called("version", lambda: self._version)

    def serves(self, api_version: str, kind: str) -> bool:
        return self._called("serves", lambda: kind not in self.unserved)

    def may(self, verb: str, resource: str, namespace: str = "") -> bool:
        said = f"{verb} {resource}"
        return self._called(f"may {said}", lambda: said not in self.denied)

    def get(self, ref: Ref) -> Json | None:
        return self._called(f"get {ref}", lambda: copied(self.kept.get(ref)))

    def list(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> Sequence[Json]:
        def found() -> Sequence[Json]:
            return [
                copied(body)
                for ref, body in self.kept.items()
                if (ref.api_version, ref.kind) == (api_version, kind)
                and (not namespace or ref.namespace == namespace)
                and _labelled(body, label_selector)
                and _fits(body, field_selector)
            ]

        return self._called(f"list {kind}", found)

    def apply(self, body: Json, *, dry_run: bool = False) -> Json:
        ref = Ref.of(body)

        def done() -> Json:
            if ref.kind in self.refused:
                raise Forbidden(self.refused[ref.kind])
            old = self.kept.get(ref, {})
            version = body["metadata"].get("resourceVersion")
            if version not in (None, old.get("metadata", {}).get("resourceVersion")):
                raise Conflict(f"{ref} has been modified")
            new = merge(old, body)
            if dry_run:
                return copied(new)
            return self._keep(ref, old, new)

        word = "try" if dry_run else "apply"
        return self._called(f"{word} {ref}", done, write=not dry_run)

    def create(self, body: Json, *, dry_run: bool = False) -> Json:
        ref = Ref.of(body)

        def done() -> Json:
            if ref in self.kept:
                raise AlreadyExists(f"{ref} already exists")
            if dry_run:
                return self.admit(copied(body))
            return self._keep(ref, {}, copied(body))

        word = "try to create" if dry_run else "create"
        return self._called(f"{word} {ref}", done, write=not dry_run)

    def admit(self, pod: Json) -> Json:
        """What the webhook makes of a pod, where it is asked and can be reached."""
        if CONFIGURATIONS[0] in self.kept:
            if self.unreachable:
                raise Unavailable(self.unreachable)
            pod["spec"]["containers"][0]["resources"]["limits"][names.CORE] = "1"
        return pod

    def merge(self, ref: Ref, patch: Json, *, subresource: str = "") -> Json:
        def done() -> Json:
            old = self._there(ref)
            version = (patch.get("metadata") or {}).get("resourceVersion")
            if version not in (None, old["metadata"].get("resourceVersion")):
                raise Conflict(f"{ref} has been changed")
            wanted = patch
            if not subresource:
                wanted = {key: patch[key] for key in patch if key != "status"}
            return self._keep(ref, old, merge(old, wanted))

        return self._called(f"merge {ref}", done, write=True)

    def json_patch(
        self,
        ref: Ref,
        steps: Sequence[Mapping[str, Any]],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        def done() -> Json:
            old = self._there(ref)
            new = copied(old)
            for step in steps:
                *way, last = (
                    part.replace("~1", "/").replace("~0", "~")
                    for part in step["path"].split("/")[1:]
                )
                place = new
                for part in way:
                    place = place[part]
                if step["op"] == "add":
                    place[last] = step["value"]
                    continue
                if last not in place:
                    raise Invalid(f"there is no {step['path']}")
                if step["op"] == "test" and place[last] != step["value"]:
                    raise Invalid(f"{step['path']} is {place[last]}")
                if step["op"] == "remove":
                    del place[last]
            return new if dry_run else self._keep(ref, old, new)

        word = "try" if dry_run else "patch"
        return self._called(f"{word} {ref}", done, write=not dry_run)

    def delete(self, ref: Ref, *, grace_period_s: int | None = None) -> bool:
        return self._called(
            f"delete {ref}", lambda: self.kept.pop(ref, None) is not None, write=True
        )

    def log(
        self, namespace: str, pod: str, container: str = "", *, lines: int = 50
    ) -> str:
        return self._called(f"log {pod}", lambda: self.logs.get(pod, ""))

    def fetch(self, namespace: str, pod: str, port: int, path: str) -> bytes:
        raise NotFound(f"nobody listens at {pod}:{port}{path}")

    def _called(self, what: str, act: Callable[[], Any], *, write: bool = False) -> Any:
        self.calls.append(what)
        number, done, failure = self._fails or (0, False, KeyError)
        if number == len(self.calls) and not done:
            raise failure()
        if write:
            self.writes.append(what)
        answer = act()
        if number == len(self.calls) and done:
            raise failure()
        return answer

    def _there(self, ref: Ref) -> Json:
        if ref not in self.kept:
            raise NotFound(f"{ref} is not there")
        return self.kept[ref]

    def _keep(self, ref: Ref, old: Json, new: Json) -> Json:
        """Keep it with a new version, and a new generation where its spec is new."""
        if new == old:
            return copied(old)
        metadata = {**new["metadata"], "resourceVersion": str(next(self._numbers))}
        metadata.setdefault("uid", f"uid-{metadata['resourceVersion']}")
        if new.get("spec") != old.get("spec"):
            metadata["generation"] = metadata.get("generation", 0) + 1
        self.kept[ref] = {**copied(new), "metadata": metadata}
        return copied(self.kept[ref])


def _labelled(body: Json, selector: str) -> bool:
    labels = body["metadata"].get("labels") or {}
    pairs = [part.split("=") for part in selector.split(",") if part]
    return all(labels.get(key) == value for key, value in pairs)


def _fits(body: Json, selector: str) -> bool:
    for part in filter(None, selector.split(",")):
        path, value = part.split("=")
        place: Any = body
        for step in path.split("."):
            place = place.get(step, {})
        if place != value:
            return False
    return True
