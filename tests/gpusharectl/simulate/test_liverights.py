"""Whose rights are missing, and which, in one sentence."""

from collections.abc import Mapping
from types import SimpleNamespace

from gpushare.kube.cluster import Json, Kind, Page
from gpushare.kube.errors import ClusterError, Forbidden, Unavailable
from gpushare.kube.objects import Ref
from gpusharectl.simulate.live import without_rights

FIRST = Forbidden("nodes is forbidden")
MEND = (
    "; take an administrator's kubeconfig by --kubeconfig, or have what is missing "
    "granted: docs/simulator.md has a ClusterRole"
)
APP = ("deployments.apps", Ref("apps/v1", "Deployment", "app", "edge"))
OTHER = ("deployments.apps", Ref("apps/v1", "Deployment", "other", "edge"))


class Guarded:
    """An API server on which some reads fail, by what they are called here."""

    host = "https://here"

    def __init__(
        self, fails: Mapping[str, ClusterError], who: Json | ClusterError
    ) -> None:
        self._fails, self._who = fails, who

    def list_page(self, kind: Kind, *, limit: int) -> Page:
        assert limit == 1, "a look, not a list"
        self._read(kind.value)
        return Page((), "1")

    def get(self, ref: Ref) -> None:
        self._read(ref.name)

    def create(self, body: Json) -> Json:
        assert body["kind"] == "SelfSubjectReview"
        if isinstance(self._who, ClusterError):
            raise self._who
        return {"status": self._who}

    def _read(self, name: str) -> None:
        if name in self._fails:
            raise self._fails[name]


def told(fails: Mapping[str, ClusterError], who: Json | ClusterError) -> str:
    server = Guarded(fails, who)
    access = SimpleNamespace(cluster=server, objects=server)
    return without_rights(access, [APP, OTHER], FIRST)  # type: ignore[arg-type]


JANE: Json = {"userInfo": {"username": "jane"}}
NO = Forbidden("no")


def test_all_at_once_and_each_once() -> None:
    fails = {Kind.NODES.value: NO, "app": NO, "other": NO}
    found = 'https://here does not let "jane" list nodes, get deployments.apps in edge'
    assert told(fails, JANE) == f"{found}{MEND}"


def test_what_nobody_can_tell_is_not_called_missing() -> None:
    """Such as an aggregated API that is down."""
    fails = {Kind.PODS.value: NO, "app": Unavailable("down")}
    found = 'https://here does not let "jane" list pods in all namespaces'
    assert told(fails, JANE) == f"{found}{MEND}"


def test_an_account_without_a_name() -> None:
    """Before Kubernetes 1.28, or where it may not be asked: the refusal has it."""
    found = "https://here does not let you list nodes (nodes is forbidden)"
    nameless: tuple[Json | ClusterError, ...] = (NO, {})
    for who in nameless:
        assert told({Kind.NODES.value: NO}, who) == f"{found}{MEND}"


def test_a_right_that_came_meanwhile() -> None:
    """Then the refusal itself is all there is."""
    assert told({}, JANE) == f"https://here: nodes is forbidden{MEND}"
