"""Archives of the same files are the same bytes, whoever writes them, and when."""

import os
import subprocess
from pathlib import Path

import pytest

from release.archives import files_in, repack, write_sums, write_tar


def folder(path: Path, mode: int, time_s: int) -> Path:
    """Two files, one to execute, which were written in no order that is sorted."""
    for name, more in (("z", 0o100), ("inner/a", 0)):
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"content of {name}")
        file.chmod(mode | more)
        os.utime(file, (time_s, time_s))
    return path


@pytest.mark.parametrize("name", ["of.tar", "of.tar.gz", "of.tgz"])
def test_neither_times_nor_modes_nor_order_matter(tmp_path: Path, name: str) -> None:
    """An archive by another program, written again, is the same too."""
    first = folder(tmp_path / "first", 0o600, 1_000_000)
    second = folder(tmp_path / "other/second", 0o664, 2_000_000_000)
    one, other = tmp_path / name, tmp_path / "other" / name
    write_tar(one, files_in(first, "top"), 86400)
    backwards = dict(sorted(files_in(second, "top").items(), reverse=True))
    write_tar(other, backwards, 86400)
    assert one.read_bytes() == other.read_bytes()

    foreign = tmp_path / f"foreign-{name}"
    way = "-cf" if name == "of.tar" else "-czf"
    renamed = "--transform=s,^second,top,"
    subprocess.run(
        ["tar", way, foreign, renamed, "-C", second.parent, second.name], check=True
    )
    repack(foreign, 86400, tmp_path / "work")
    assert foreign.read_bytes() == one.read_bytes()


def test_an_archive_says_nothing_of_who_wrote_it(tmp_path: Path) -> None:
    """GNU tar lists it as one of root's, from the time that was given."""
    write_tar(
        tmp_path / "of.tgz", files_in(folder(tmp_path / "in", 0o666, 5), "top"), 86400
    )
    listed = subprocess.check_output(
        ["tar", "--utc", "--numeric-owner", "-tvzf", tmp_path / "of.tgz"], text=True
    )
    assert [line.split() for line in listed.splitlines()] == [
        ["-rw-r--r--", "0/0", "18", "1970-01-02", "00:00", "top/inner/a"],
        ["-rwxr-xr-x", "0/0", "12", "1970-01-02", "00:00", "top/z"],
    ]


def test_nothing_in_a_gzip_header_is_of_this_moment(tmp_path: Path) -> None:
    """Neither a name nor a time: no flag is set, and four bytes are 0."""
    write_tar(tmp_path / "of.tgz", {}, 86400)
    assert (tmp_path / "of.tgz").read_bytes()[3:8] == bytes(5)


def test_sums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("b")
    (tmp_path / "a").write_text("a")
    write_sums(tmp_path)
    sums = (tmp_path / "SHA256SUMS").read_text()
    assert [line.split()[1] for line in sums.splitlines()] == ["a", "b"]
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=tmp_path, check=True)
