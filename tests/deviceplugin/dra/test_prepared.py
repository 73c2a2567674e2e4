"""Prepared claims on disk: whenever the plugin is killed, nothing is lost or left."""

from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.dra import prepared
from deviceplugin.dra.prepared import PreparedResourceClaims, RequestFiles
from gpushare.kubelet.claim_records import PreparedDevice, PreparedResourceClaim
from gpushare.kubelet.limit_files import REGION
from gpushare.kubelet.pods import HardLimit
from tests.builders import card, node, placement
from tests.deviceplugin.node_fixture import NODE, UUIDS

DEVICE = PreparedDevice("card", "gpu-a", UUIDS[0], 10, 4, "share", ("k=uid-card",))
LIMIT = HardLimit("preload", 1024, 1536)
CLAIM = PreparedResourceClaim(
    "uid", "default", "c", (DEVICE,), {"card": LIMIT}, {"kind": "k"}
)
FILES = [RequestFiles("card", "allocation", "limits")]


class Killed(BaseException):
    """The process ends here."""


def claims(folder: Path) -> PreparedResourceClaims:
    """What a plugin that has just started reads."""
    return PreparedResourceClaims(folder / "claims", folder / "cdi", NODE)


def left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    claims(tmp_path).put(CLAIM, FILES)
    (found,) = claims(tmp_path).all()
    assert found == CLAIM
    assert not claims(tmp_path).lacking(CLAIM)


def test_two_requests_of_50_cores_leave_the_rest_of_the_memory(tmp_path: Path) -> None:
    """As in the extender's ledger, so that what is bound beside them can start."""
    halves = [replace(DEVICE, request=name, cores=50) for name in ("a", "b")]
    claims(tmp_path).put(replace(CLAIM, devices=tuple(halves)), [])
    ((key, found),) = claims(tmp_path).placements().items()
    assert key == "claim/uid"
    page = node(card(0, 29, uuid=UUIDS[0]), holds=[found, placement("p", UUIDS[0], 21)])
    assert page.charged == {UUIDS[0]: (100, 29)}


@pytest.mark.parametrize("name", ["allocation.json", "limits", REGION])
def test_each_file_of_a_container_is_missed(tmp_path: Path, name: str) -> None:
    """Without any of them the container could not start again."""
    found = claims(tmp_path)
    found.put(CLAIM, FILES)
    (found.folder("uid", "card") / name).unlink()
    assert found.lacking(CLAIM) == {"card"}


@pytest.mark.parametrize("steps", range(5))
def test_killed_while_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The record, the limit, its region, what the container reads, and the names.

    The next plugin knows the claim if anything of it is there, and removes all of it.
    """
    done = 0

    def killed_at(name: str) -> None:
        real = getattr(prepared, name)

        def write(*what: object) -> None:
            nonlocal done
            if done == steps:
                raise Killed
            done += 1
            real(*what)

        monkeypatch.setattr(prepared, name, write)

    killed_at("replace_file")
    killed_at("make_region")
    killed_at("put_specification")
    with pytest.raises(Killed):
        claims(tmp_path).put(CLAIM, FILES)
    monkeypatch.undo()
    after = claims(tmp_path)
    assert len(after.all()) == bool(steps)
    assert bool(after.lacking(CLAIM)) == (steps < 4)
    assert bool(left(tmp_path)) == bool(steps)
    after.remove("uid")
    assert not left(tmp_path)


@pytest.mark.parametrize("text", ["", '{"v": 1', '{"v": 2, "uid": "uid"}', "[]"])
def test_a_record_that_is_not_understood(tmp_path: Path, text: str) -> None:
    """It holds nothing, but kubelet has still to take its claim back."""
    claims(tmp_path).put(CLAIM, FILES)
    (tmp_path / "claims" / "uid.json").write_text(text)
    found = claims(tmp_path)
    assert not found.all()
    assert found.are_left()
    found.remove("uid")
    assert not found.are_left()
    assert not left(tmp_path)
