"""``Objects`` in memory: what an installer needs of an API server, and its failures.

``tests/controlplane/test_install.py`` runs the same stories on a real one.
"""

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import jsonpatch
import orjson

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
from gpusharectl.demo.fakeapi.rules import merge_patch
from gpusharectl.installer.webhook.objects import CONFIGURATIONS

Failure = Callable[[], BaseException]


def copied(thing: Any) -> Any:
    """A copy of what JSON can hold; ``deepcopy`` takes many times as long."""
    return orjson.loads(orjson.dumps(thing))


class FakeObjects:
    """Objects by kind and name; ``fails`` raises something at one of the calls.

    ``denied`` are verbs and resources, such as ``patch nodes``; ``unserved`` kinds;
    ``unreachable`` is why the API server cannot ask the webhook, if it cannot.
    ``shares``: whether it lets several claims share a device. ``arbiters``: the
    authority by which the arbiter of each node can be known, if it answers.
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
        self.shares = True
        self.arbiters: dict[str, bytes] = {}
        self._version = version
        self._numbers = count(1)
        self._fails: tuple[int, bool, Failure] | None = None
        self.down = False
        """Whether a failure lasts."""

    def backdoor(self) -> "FakeObjects":
        """The same objects, for stand-ins, whose calls neither count nor fail."""
        found = FakeObjects(self._version)
        found.kept, found._numbers = self.kept, self._numbers
        return found

    def fails(self, call: int, failure: Failure, *, done: bool) -> None:
        """Fail at the call of this number from now; ``done``: after it took effect."""
        self._fails = (len(self.calls) + call, done, failure)

    @contextmanager
    def _called(self, what: str, *, write: bool = False) -> Iterator[None]:
        self.calls.append(what)
        number, done, failure = self._fails or (0, False, KeyError)
        fails = number == len(self.calls) or (self.down and number < len(self.calls))
        if fails and not done:
            raise failure()
        if write:
            self.writes.append(what)
        yield
        if fails and done:
            raise failure()

    def version(self) -> str:
        with self._called("version"):
            return self._version

    def serves(self, api_version: str, kind: str) -> bool:
        with self._called("serves"):
            return kind not in self.unserved

    def may(self, verb: str, resource: str, namespace: str = "") -> bool:
        with self._called(f"may {verb} {resource}"):
            return f"{verb} {resource}" not in self.denied

    def get(self, ref: Ref) -> Json | None:
        with self._called(f"get {ref}"):
            return copied(self.kept.get(ref))

    def list(self, api_version: str, kind: str, **chosen: str) -> Sequence[Json]:
        namespace = chosen.get("namespace", "")
        with self._called(f"list {kind}"):
            if kind in self.unserved:
                raise NotFound(f"the API server does not serve {kind}")
            return [
                copied(body)
                for ref, body in self.kept.items()
                if (ref.api_version, ref.kind) == (api_version, kind)
                and (not namespace or ref.namespace == namespace)
                and _fits(body, **chosen)
            ]

    def apply(self, body: Json, *, dry_run: bool = False) -> Json:
        ref = Ref.of(body)
        with self._called(f"{'try' if dry_run else 'apply'} {ref}", write=not dry_run):
            if ref.kind in self.refused:
                raise Forbidden(self.refused[ref.kind])
            old = self.kept.get(ref, {})
            _check_version(ref, old, body)
            new = merge_patch(old, body)
            return copied(new) if dry_run else self._keep(ref, old, new)

    def create(self, body: Json, *, dry_run: bool = False) -> Json:
        ref = Ref.of(body)
        word = "try to create" if dry_run else "create"
        with self._called(f"{word} {ref}", write=not dry_run):
            if ref in self.kept:
                raise AlreadyExists(f"{ref} already exists")
            if dry_run and ref.kind == "ResourceSlice":
                return self._as_slice(copied(body))
            if dry_run:
                return self.admit(copied(body))
            return self._keep(ref, {}, copied(body))

    def admit(self, pod: Json) -> Json:
        """What the webhook makes of a pod, where it is asked and can be reached."""
        if CONFIGURATIONS[0] in self.kept:
            if self.unreachable:
                raise Unavailable(self.unreachable)
            pod["spec"]["containers"][0]["resources"]["limits"][names.CORE] = "1"
        return pod

    def _as_slice(self, body: Json) -> Json:
        """It drops fields of features that are off, without a word."""
        for device in body["spec"]["devices"] if not self.shares else ():
            del device["allowMultipleAllocations"]
        return body

    def fetch(
        self,
        namespace: str,
        pod: str,
        port: int,
        path: str,
        *,
        tls: tuple[ssl.SSLContext, str] | None = None,
    ) -> bytes:
        """Only arbiters answer: on their port, by TLS, to those who trust them."""
        with self._called(f"fetch {path} of {pod}"):
            node = self._there(Ref("v1", "Pod", pod, namespace))["spec"]["nodeName"]
            assert tls is not None
            assert (port, path, tls[1]) == (39996, "/readyz", "127.0.0.1")
            trusted = [
                ssl.DER_cert_to_PEM_cert(one)
                for one in tls[0].get_ca_certs(binary_form=True)
            ]
            if self.arbiters.get(node, b"").decode() not in trusted:
                raise Unavailable("certificate verify failed")
            return b"ok\n"

    def merge(self, ref: Ref, patch: Json, *, subresource: str = "") -> Json:
        with self._called(f"merge {ref}", write=True):
            old = self._there(ref)
            _check_version(ref, old, patch)
            wanted = {k: v for k, v in patch.items() if subresource or k != "status"}
            return self._keep(ref, old, merge_patch(old, wanted))

    def json_patch(
        self, ref: Ref, steps: Sequence[Json], *, dry_run: bool = False, **_: str
    ) -> Json:
        with self._called(f"{'try' if dry_run else 'patch'} {ref}", write=not dry_run):
            old = self._there(ref)
            try:
                new = jsonpatch.apply_patch(old, steps)
            except jsonpatch.JsonPatchException as error:
                raise Invalid(str(error)) from error
            return new if dry_run else self._keep(ref, old, new)

    def delete(self, ref: Ref, *, grace_period_s: int | None = None) -> bool:
        with self._called(f"delete {ref}", write=True):
            return self.kept.pop(ref, None) is not None

    def log(
        self, namespace: str, pod: str, container: str = "", *, lines: int = 50
    ) -> str:
        with self._called(f"log {pod}"):
            return self.logs.get(pod, "")

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


def _check_version(ref: Ref, old: Json, new: Json) -> None:
    seen, there = (
        (body.get("metadata") or {}).get("resourceVersion") for body in (new, old)
    )
    if seen not in (None, there):
        raise Conflict(f"{ref} has been modified")


def _fits(
    body: Json, *, label_selector: str = "", field_selector: str = "", **_: str
) -> bool:
    found = body["metadata"].get("labels") or {}
    pairs = [part.split("=") for part in label_selector.split(",") if part]
    if any(found.get(key) != value for key, value in pairs):
        return False
    path, _, value = field_selector.partition("=")
    place: Any = body
    for step in path.split(".") if path else ():
        place = place.get(step, {})
    return not path or place == value
