"""The import rules of the packages, and other rules for the tree as a whole."""

import ast
import re
import subprocess
import sys
import tarfile
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gpusharectl.installer.command import install
from gpusharectl.installer.run import first_pod_commands
from tests.conftest import CLUSTER_OF, LONGEST
from tests.machine import needs

ROOT = Path(__file__).parents[1]
PACKAGES = (
    *("deviceplugin", "exporter", "extender"),
    *("gpushare", "gpusharectl", "webhook"),
)
GENERATED = "_pb2"
SUFFIXES = {"com", "custom", "io", "json", "md", "png", "py", "sock", "tar", "yaml"}
"""Ends of names with dots that are files, domains or values of other charts."""
VAGUE = {"utils", "common", "misc", "manager", "handler", "info", "data", "helper"}


def sources() -> list[Path]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [path for path in found if not path.stem.endswith(GENERATED)]


def test_import_contracts_hold() -> None:
    """setup.cfg says who may import whom; import-linter agrees."""
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_vague_names() -> None:
    """A module is named after its content."""
    assert not [path for path in sources() if path.stem in VAGUE]


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_happens_on_import(path: Path) -> None:
    """A module's top level defines; it starts nothing and reads no environment.

    gunicorn's configuration is the exception: gunicorn reads it by importing it.
    """
    if path.name == "gunicorn_conf.py":
        return
    for node in ast.parse(path.read_text()).body:
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        loops = isinstance(node, ast.For | ast.While | ast.With)
        assert not is_call, f"{path}:{node.lineno} calls something"
        assert not loops, f"{path}:{node.lineno} does something"


def test_every_package_ships() -> None:
    """setup.cfg names every package that there is."""
    setup = RawConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = setup["options"]["packages"].split()
    for path in sources():
        if path.name == "__init__.py":
            assert ".".join(path.parent.relative_to(ROOT).parts) in named


def test_an_sdist_has_every_file(tmp_path: Path) -> None:
    """So it builds the image and runs these tests; MANIFEST.in says which go in."""
    needs((ROOT / ".git").exists(), "the list of files in git", "run it in a clone")
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    there = {name for name in listed.splitlines() if (ROOT / name).exists()}
    # With an egg-info of its own: the checkout's would bring in what once was there.
    own = {"--global-option": ["--quiet", "egg_info", "--egg-base", str(tmp_path)]}
    program = (
        "from setuptools.build_meta import build_sdist; "
        f"build_sdist({str(tmp_path)!r}, {own!r})"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    assert there - packed == set()


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def code_of(page: str) -> str:
    """Return what a page has as code, between backticks, one piece a line."""
    fenced = re.findall(r"^```.*?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", rest)])


def is_there(name: str) -> bool:
    """Tell whether a dotted name is a module of ours, or a name in one."""
    parts = name.split(".")
    for stop in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:stop])
        if path.is_dir():
            return stop == len(parts)
        if (source := path.with_suffix(".py")).is_file():
            left = parts[stop : stop + 1]
            return all(re.search(rf"\b{one}\b", source.read_text()) for one in left)
    return False


def is_value(name: str) -> bool:
    """Tell whether a dotted name is a value of the Helm chart, or begins some."""
    found: Any = yaml.safe_load((ROOT / "charts/gpushare/values.yaml").read_text())
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found is not None


def missing_in(code: str) -> list[str]:
    """Return the paths and modules of ours in some code that do not exist."""
    ours = ("bench", "charts", "docs", "manifests", "monitoring", "tests")
    tops = "|".join((*PACKAGES, *ours))
    paths = re.findall(rf"(?<![\w./-])(?:{tops})/[\w./*-]*[\w*]", code)
    inner: dict[str, list[str]] = {}
    for top in PACKAGES:
        for folder in (ROOT / top).glob("*/"):
            inner.setdefault(folder.name, []).append(f"{top}.")
    heads = "|".join((*PACKAGES, "bench", "tests", *inner))
    named = re.findall(rf"(?<![\w./:-])((?:{heads})(?:\.[a-z_]\w*)+)(?![\w/=-])", code)
    modules = [one for one in named if one.rpartition(".")[2] not in SUFFIXES]
    modules = [one for one in modules if not is_value(one)]
    outer = {name: above for name, above in inner.items() if name not in PACKAGES}
    return [
        *(one for one in paths if not list(ROOT.glob(one))),
        *(
            one
            for one in modules
            if not is_value(one)
            and not any(is_there(o + one) for o in outer.get(one.split(".")[0], [""]))
        ),
    ]


def test_documents_name_what_is_there() -> None:
    """A path or module of ours that a page has as code exists."""
    assert missing_in("`deviceplugin.allocation.nowhere` and `tests/nothing.py`")
    missing = {
        path.name: found
        for path in documents()
        if (found := missing_in(code_of(path.read_text(encoding="utf-8"))))
    }
    assert not missing


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}


def leads_nowhere(link: str, path: Path) -> bool:
    """Tell whether a page has a link to a missing file or heading."""
    file, _, anchor = link.partition("#")
    if file.startswith(("http:", "https:")):
        return False
    target = path.parent / file if file else path
    if not target.exists():
        return True
    return bool(anchor) and anchor not in anchors(target.read_text(encoding="utf-8"))


def test_links_lead_somewhere() -> None:
    """Each link between pages has its file, and its heading."""
    assert leads_nowhere("README.md#nothing", ROOT / "README.md")
    assert not [
        (path.name, link)
        for path in documents()
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
        if leads_nowhere(link, path)
    ]


def test_the_first_pod_of_the_documents_is_the_one_that_install_prints() -> None:
    """Only the lines that a cluster needs of its own may differ."""
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    block, *_ = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    printed = first_pod_commands("", "")
    assert f"<<EOF\n{block}EOF\n" in printed
    *_, wait, logs, _ = printed.splitlines()
    assert f"{wait}\n{logs}\n" in page


def test_the_page_names_every_option_of_install() -> None:
    """Its table has a row for each; the chart's values stand beside them."""
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    table = page.partition("\n## Options\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(--[a-z-]+)", table))
    context = click.Context(install)
    options = {
        name
        for option in install.get_params(context)
        for name in option.opts
        if name.startswith("--")
    }
    assert named >= options - {"--help"}
    no = {
        name for option in install.get_params(context) for name in option.secondary_opts
    }
    assert named <= options | no


def test_a_decision_has_a_number_of_its_own() -> None:
    """Others name a decision by its number."""
    records = [path.name[:4] for path in (ROOT / "docs/decisions").glob("*.md")]
    assert records
    assert len(set(records)) == len(records)


def takes(path: Path, fixture: str) -> bool:
    """Tell whether a function of a file has this fixture among its parameters."""
    return any(
        isinstance(node, ast.arg) and node.arg == fixture
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_files_that_share_a_cluster_are_named() -> None:
    """Those with ``bare``, which a process with ``site`` would start beside it."""
    named = {
        ROOT / path
        for path, kind in CLUSTER_OF.items()
        if "knows nothing of us" in kind
    }
    files = (ROOT / "tests/cluster").glob("test_*.py")
    assert named == {path for path in files if takes(path, "bare")}


def test_files_that_begin_first_are_there() -> None:
    """A file with another name would be put last, with another cluster."""
    assert [
        path for path in (*CLUSTER_OF, *LONGEST) if not (ROOT / path).exists()
    ] == []
