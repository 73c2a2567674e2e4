"""The command: files, standard output, the report and the exit code."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpusharectl.commands import main

OLD = "spec: {containers: [{resources: {limits: {aliyun.com/gpu-mem: 1}}}]}\n"
NEW = OLD.replace(
    "aliyun.com/gpu-mem: 1", "baidu.com/vcuda-memory: 4, baidu.com/vcuda-core: 1"
)
LEFT = "resources: {limits: {nvidia.com/gpu: 1}}"
NONE = "# nothing of ours\r\na:   1"


def ran(*words: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["migrate", *map(str, words)], input=stdin)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files: one to rewrite, one to report, one with nothing to migrate."""
    found = []
    for name, text in (("old", OLD), ("left", LEFT), ("none", NONE)):
        path = tmp_path / f"{name}.yaml"
        path.write_bytes(text.encode())
        found.append(path)
    return found


def test_the_result_goes_to_standard_output(files: list[Path]) -> None:
    """Several files are one stream of documents; the report is on standard error."""
    old, left, none = files
    done = ran(old, left, none)
    assert done.exit_code == 3
    assert done.stdout_bytes.decode() == f"{NEW}---\n{LEFT}\n---\n{NONE}"
    assert done.stderr.splitlines()[0].startswith(
        f"{left}:1: document 1: nvidia.com/gpu"
    )
    assert done.stderr.endswith("1 object rewritten; 1 field left to you, see above.\n")
    assert old.read_text() == OLD


@pytest.mark.parametrize("text", ["", NONE, "# one\n---\n---\n", "\ufeffa: b\n"])
def test_nothing_to_migrate(text: str) -> None:
    """Such a file comes out byte for byte, and the exit code is 0."""
    done = ran("-", stdin=text)
    assert (done.exit_code, done.stdout_bytes) == (0, text.encode())
    assert done.stderr == "Nothing of the other systems was found.\n"


def test_write_replaces_files(files: list[Path]) -> None:
    """Only files that change are written; they keep their mode, links stay links."""
    old, left, none = files
    old.chmod(0o640)
    link = old.with_name("link.yaml")
    link.symlink_to(old)
    before = none.stat().st_ino
    done = ran("--write", link, left, none)
    assert (done.exit_code, done.stdout) == (3, "")
    assert (old.read_text(), left.read_text()) == (NEW, LEFT)
    assert old.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert none.stat().st_ino == before
    assert len(list(old.parent.iterdir())) == 4
    assert ran("--write", old).exit_code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xff\xfea", "UTF-8"),
        (b"a: [nvidia.com/gpumem", "is not YAML: line 1: "),
        (b"{{ if }}\nnvidia.com/gpumem: {{ x }}", "helm template"),
        (b"- " * 99_000 + b"nvidia.com/gpumem", "nested too deeply"),
        (None, "cannot be read"),
    ],
    ids=["utf-16", "not yaml", "template", "deep", "missing"],
)
def test_a_file_that_cannot_be_read(
    files: list[Path], text: bytes | None, words: str
) -> None:
    """No file is changed and nothing is printed, because the result would lack one."""
    bad = files[0].with_name("bad.yaml")
    if text is not None:
        bad.write_bytes(text)
    for options in ((), ("--write",)):
        done = ran(*options, files[0], bad)
        assert (done.exit_code, done.stdout) == (1, "")
        assert words in done.stderr
        assert str(bad) in done.stderr
    assert files[0].read_text() == OLD


def test_standard_input_cannot_be_written() -> None:
    assert ran("--write", "-", stdin=OLD).exit_code == 2
    assert ran().exit_code == 2
