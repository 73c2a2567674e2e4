"""How the image of ours is kept and packed, as far as it can be told without one."""

from pathlib import Path

import pytest

from tests.testbed.kubeadm.appimage import ROOT, fingerprint, sent

SOURCES = {
    "Dockerfile": "FROM scratch",
    ".dockerignore": (
        "# Only these.\n*\n!setup.cfg\n!build/libvcuda.so.1\n!ours\n**/*.pyc\n"
    ),
    "setup.cfg": "[metadata]\n",
    "ours/a.py": "a = 1",
    "ours/deep/b.yaml": "b: 1",
}
COMPILED_BEFORE = {"isolation/preload/a.c": "int a;", "isolation/preload/build.sh": ""}
NOT_SENT = (
    "build/libvcuda.so.1",
    "ours/__pycache__/a.cpython-311.pyc",
    "notes.md",
    "other/c.py",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {
        **SOURCES,
        **COMPILED_BEFORE,
        **dict.fromkeys(NOT_SENT, ""),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_what_is_sent(checkout: Path) -> None:
    """What ``.dockerignore`` lets through, and nothing that Python left behind."""
    names = [str(path.relative_to(checkout)) for path in sent(checkout)]
    assert names == ["ours/a.py", "ours/deep/b.yaml", "setup.cfg"]


def test_all_packages_are_sent() -> None:
    """A package that ``.dockerignore`` forgot would be missed only in the cluster."""
    names = {path.relative_to(ROOT).parts[0] for path in sent(ROOT)}
    packages = {"deviceplugin", "exporter", "extender", "gpushare", "gpusharectl"}
    packages |= {"manifests", "webhook"}
    rest = {"setup.cfg", "pyproject.toml", "requirements", "README.md"}
    assert names == packages | rest


def test_a_changed_source_is_another_image(checkout: Path) -> None:
    """A renamed one too, and one of the library; other files make none."""
    found = {fingerprint(checkout)}
    for name in NOT_SENT:
        (checkout / name).write_text("changed")
    assert fingerprint(checkout) in found
    for name in (*SOURCES, *COMPILED_BEFORE):
        with (checkout / name).open("a") as file:
            file.write("\n")
        found.add(fingerprint(checkout))
    (checkout / "ours/a.py").rename(checkout / "ours/deep/a.py")
    found.add(fingerprint(checkout))
    assert len(found) == len(SOURCES) + len(COMPILED_BEFORE) + 2
