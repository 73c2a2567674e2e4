"""Where a path of a host lies that is mounted somewhere: its links are its own."""

from pathlib import Path

import pytest

from gpushare.host_root import on_host


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/usr/lib/libcuda.so", "usr/lib/libcuda.so"),
        ("usr/lib", "usr/lib"),
        # Two dots are those of where a link leads, and there is nothing above a root.
        ("/var/run/../usr", "usr"),
        ("/lib/by-run", "usr"),
        ("/lib/up", "usr"),
        ("/../../usr", "usr"),
        ("/var/run/nowhere/file", "run/nowhere/file"),
    ],
)
def test_links_are_the_hosts_own(tmp_path: Path, path: str, place: str) -> None:
    for folder in ("usr/lib", "run", "var"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "var/run").symlink_to("/run/")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "lib/by-run").symlink_to("/var/run/../usr")
    (tmp_path / "lib/up").symlink_to("../../../usr")
    assert on_host(path, tmp_path) == tmp_path / place


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("/round")
    with pytest.raises(OSError, match="too many symbolic links"):
        on_host("/round/x", tmp_path)
