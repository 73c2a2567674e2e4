"""``python -m release``: build the files of a release from the commit checked out.

Nothing is pushed anywhere. Exit codes: 0 all files are there; 1 some are left out, or
nothing was built; 2 wrong command line.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpushare import __version__
from release.archives import files_in, repack, write_sums, write_tar
from release.commit import Commit, StepFailedError, Tree, checked_out
from release.image import build_image, cannot_build
from release.krew import write_plugin
from release.sbom import read_wheels, write_bill

ROOT = Path(__file__).parents[1]
_DIST = ROOT / "dist/release"
_ON_PURPOSE = "To leave images out on purpose: IMAGES=amd64, or IMAGES= for none"
_OURS = "gpushare-vcuda"
_SDIST = """
from setuptools.build_meta import build_sdist
build_sdist({folder!r}, {{"--global-option": ["--quiet"]}})
"""


def main(words: Sequence[str]) -> int:
    """Build the release that the words ask for; say what it has, and what not."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--url", required=True, help="From where krew will fetch.")
    parser.add_argument("--images", default="amd64 arm64", help="Architectures.")
    options = parser.parse_args(words)
    commit = checked_out(ROOT)
    if isinstance(commit, str):
        print(f"Nothing was built: {commit}", file=sys.stderr)
        return 1
    # The modes of what others write, such as wheels.
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="release-") as place:
        work, built = Path(place), Path(place, "built")
        built.mkdir()
        try:
            tree = commit.export(work / "tree")
            _packages(tree, built, options.venv.absolute(), options.url)
        except StepFailedError as error:
            print(f"Nothing was built: {error}", file=sys.stderr)
            return 1
        left_out = images(tree, built, options.images.split())
        publish(built, _DIST)
    return tell(commit, left_out, _DIST)


def _packages(tree: Tree, folder: Path, venv: Path, url: str) -> None:
    """Write the sources, the wheel, the one file, krew's plugin and the chart."""
    epoch = tree.commit.epoch
    # First, because setuptools would pack what the next steps leave in the tree.
    tree.run(str(venv / "bin/python"), "-c", _SDIST.format(folder=str(folder)))
    (sources,) = folder.glob("*.tar.gz")
    repack(sources, epoch, tree.folder.with_name("sources"))
    # The environment is the checkout's: make must not install this tree there. By a
    # link, because the path of the checkout may have spaces.
    link = tree.folder.with_name("venv")
    link.symlink_to(venv)
    tree.run("make", "gpusharectl", "-o", f"{link}/.runtime", f"VENV={link}")
    executable, wheels = tree.folder / "dist/gpusharectl", tree.folder / "build/wheels"
    parts = read_wheels(wheels)
    (about,) = (part for part in parts if part.name == _OURS)
    bill = folder / f"gpusharectl-{__version__}.cdx.json"
    write_bill(bill, about, parts, tree.commit)
    write_plugin(executable, __version__, url, epoch, folder)
    (wheel,) = wheels.glob("gpushare_vcuda-*.whl")
    for path in (executable, wheel):
        path.rename(folder / path.name)
    # As helm package names it, which writes the time into it.
    chart = files_in(tree.folder / "charts/gpushare", "gpushare")
    write_tar(folder / f"gpushare-{__version__}.tgz", chart, epoch)


def images(tree: Tree, folder: Path, architectures: Sequence[str]) -> list[str]:
    """Write the images; return which are left out, and why."""
    left_out = []
    for architecture in architectures:
        why = cannot_build(architecture)
        if not why:
            try:
                build_image(tree, __version__, architecture, folder)
            except StepFailedError as error:
                why = str(error)
        if why:
            left_out.append(f"the image for {architecture}: {why}")
    return left_out


def publish(built: Path, dist: Path) -> None:
    """Put a release and its sums in the place of the one before, or nothing of it."""
    write_sums(built)
    dist.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-", dir=dist.parent) as place:
        # On the disk of dist first, so that two renames are all that is left to do.
        new = Path(shutil.copytree(built, Path(place, "new")))
        if dist.exists():
            dist.rename(Path(place, "old"))
        new.rename(dist)


def tell(commit: Commit, left_out: Sequence[str], dist: Path) -> int:
    """Say what the release has, and what not; return the exit code."""
    print(f"dist/release/ has the release {__version__} of commit {commit.name}:")
    for path in sorted(dist.iterdir()):
        print(f"  {path.name}")
    for why in left_out:
        print(f"Left out: {why}", file=sys.stderr)
    if left_out:
        print(_ON_PURPOSE, file=sys.stderr)
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
