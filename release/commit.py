"""The commit of which a release is made, as a tree of files of its own.

A checkout has more: files that git ignores, modes of this user's umask, line ends of
this user's configuration. None of them may get into a release.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from release.archives import unpack

# Whatever the user's configuration says.
_PLAIN = ("-c", "core.autocrlf=false", "-c", "tar.umask=0022")


class StepFailedError(Exception):
    """A program that builds something has failed, after it said why."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that is checked out in ``root``; ``epoch`` is its time in seconds."""

    root: Path
    name: str
    epoch: int

    def export(self, folder: Path) -> "Tree":
        """Write the tree of its files to ``folder``, which must not exist."""
        archive = folder.with_suffix(".tar")
        _git(self.root, *_PLAIN, "archive", f"--output={archive}", self.name)
        unpack(archive, folder)
        archive.unlink()
        return Tree(self, folder)


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of a commit, in which programs run that build a release."""

    commit: Commit
    folder: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """What these programs see: nothing of this user's time zone and language."""
        # The make that started this one would share its options and jobs.
        kept = {key: text for key, text in os.environ.items() if "MAKE" not in key}
        fixed = {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
        return {**kept, **fixed, "SOURCE_DATE_EPOCH": str(self.commit.epoch)}

    def run(self, *words: str) -> None:
        """Run a program in the tree; raises ``StepFailedError``."""
        done = subprocess.run(  # noqa: S603
            words, cwd=self.folder, env=self.environment, check=False
        )
        if done.returncode:
            raise StepFailedError(f"{' '.join(words[:2])} failed, see above")


def checked_out(root: Path) -> Commit | str:
    """Return the commit of a checkout, or why none can be released from there."""
    try:
        top = Path(_git(root, "rev-parse", "--show-toplevel"))
        name, epoch = _git(root, "log", "-1", "--format=%H %ct").split()
        changed = _git(root, "status", "--porcelain", "--untracked-files=normal")
    except FileNotFoundError:
        return "missing: git; cure: apt-get install git"
    except subprocess.CalledProcessError as error:
        # More than one line where git says what to do.
        why = error.stderr.strip() or "git failed"
        return (
            f"{root} has no commit to release; cure: run make release in a clone of "
            f"the repository, or do what git says:\n{why}"
        )
    if top.resolve() != root.resolve():
        return (
            f"{root} is not a clone of its own, but a folder of {top}; cure: run "
            "make release in a clone of the repository"
        )
    if changed:
        return (
            "files differ from the commit that would be released; cure: commit or "
            f"stash them:\n{changed}"
        )
    return Commit(root, name, int(epoch))


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(  # noqa: S603
        ["git", "-C", root, *words],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.rstrip("\n")
