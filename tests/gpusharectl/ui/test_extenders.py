"""Whom the page is asked of."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Forbidden, NotFound, Unavailable
from gpusharectl.pki import SERVER_NAME
from gpusharectl.ui import Extenders, Tls, tls_from
from tests.gpusharectl.pictures import extender
from tests.testbed.certificates import Certificates, certificates


class Hands:
    """Stands in for ``ApiObjects``: what each extender answers."""

    def __init__(
        self, answers: Mapping[str, bytes | ClusterError], pods: Sequence[Json] = ()
    ) -> None:
        self.answers = dict(answers)
        self.pods = pods or [extender(name) for name in answers]
        self.asked: list[tuple[str, bool]] = []

    def list(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str = "",
        label_selector: str = "",
    ) -> Sequence[Json]:
        assert (api_version, kind, namespace) == ("v1", "Pod", "kube-system")
        assert "gpushare-extender,gpushare-scheduler" in label_selector
        return self.pods

    def fetch(
        self, namespace: str, pod: str, port: int, path: str, *, tls: Tls | None = None
    ) -> bytes:
        assert (namespace, port, path) == ("kube-system", 39999, "/ui")
        self.asked.append((pod, tls is not None))
        answer = self.answers[pod]
        if isinstance(answer, ClusterError):
            raise answer
        return answer


def guarded(name: str) -> Json:
    pod = extender(name)
    setting = {"name": "GPUSHARE_TLS_CLIENT_CA", "value": "/tls/ca.crt"}
    pod["spec"]["containers"][0]["env"] = [setting]
    return pod


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("ui") / "tls")


def test_the_first_that_answers_and_then_it_again() -> None:
    """One that does not is passed over, and whoever answered is asked first."""
    hands = Hands({"x": Unavailable("connection refused"), "y": b"page"})
    found = Extenders(hands)
    assert found.get("/ui") == b"page"
    assert found.get("/ui") == b"page"
    assert [name for name, _ in hands.asked] == ["x", "y", "y"]


def test_another_takes_over_when_it_goes() -> None:
    """Whoever looks at the page sees no more than a late answer."""
    hands = Hands({"x": b"page", "y": b"other"})
    found = Extenders(hands)
    assert found.get("/ui") == b"page"
    hands.answers["x"] = Unavailable("gone")
    assert found.get("/ui") == b"other"


@pytest.mark.parametrize(
    ("hands", "words"),
    [
        (Hands({}), "no extender's pod is in kube-system"),
        (Hands({"x": b""}, [extender("x", ready=False)]), "is ready; see kubectl -n"),
        (Hands({"x": NotFound("/ui answers 404")}), "x has no page; .*install --ui"),
        (Hands({"x": Unavailable("reset")}), "^x: reset"),
    ],
    ids=["none", "not-ready", "switched-off", "silent"],
)
def test_what_to_do_when_nobody_answers(hands: Hands, words: str) -> None:
    """One sentence."""
    with pytest.raises(Unavailable, match=words):
        Extenders(hands).get("/ui")


def test_a_right_that_is_missing_is_told_as_it_is() -> None:
    """The next extender would be behind the same door."""
    hands = Hands({"x": Forbidden("no pods/portforward"), "y": b"page"})
    with pytest.raises(Forbidden, match="portforward"):
        Extenders(hands).get("/ui")


def test_certificates_are_for_those_that_want_them(held: Certificates) -> None:
    """Each by its own settings."""
    hands = Hands({"x": Unavailable("no"), "y": b"page"}, [guarded("x"), extender("y")])
    assert Extenders(hands, tls_from(held.folder)).get("/ui") == b"page"
    assert hands.asked == [("x", True), ("y", False)]


def test_without_certificates_nobody_guarded_is_asked() -> None:
    """What would help is said."""
    hands = Hands({"x": b"page"}, [guarded("x")])
    with pytest.raises(Unavailable, match=r"as root .* by --certificates"):
        Extenders(hands).get("/ui")
    assert hands.asked == []


def test_the_hosts_own_certificates_are_found(held: Certificates) -> None:
    """The first folder that has them; a host without any is no error."""
    nowhere = Path("/nowhere")
    found = tls_from(None, [nowhere, held.folder])
    assert found is not None
    assert found[1] == SERVER_NAME
    assert found[0].get_ca_certs()
    assert tls_from(None, [nowhere]) is None


def test_a_folder_that_was_named_must_have_them(
    held: Certificates, tmp_path: Path
) -> None:
    """The file that is missing is named, and one that is none is an error too."""
    (tmp_path / "ca.crt").write_bytes(held.read()["ca.crt"])
    with pytest.raises(FileNotFoundError, match=r"client\.crt"):
        tls_from(tmp_path)
    for name in ("client.crt", "client.key"):
        (tmp_path / name).write_text("none")
    with pytest.raises(OSError):
        tls_from(tmp_path)
