"""A cluster that stays up for a person, until it is told to go.

``python -m tests.testbed.kubeadm up [--nodes 2]`` brings one up, and prints how to
reach it; with ``--bare`` nothing of ours is installed. ``shell`` opens a shell on its
control-plane node. ``down`` removes it, and whatever killed clusters have left on the
machine.
"""

import argparse
import os
import sys
from pathlib import Path

from tests.testbed.binaries import cache_folder
from tests.testbed.kubeadm import keeper
from tests.testbed.kubeadm.appimage import ensure_app_image
from tests.testbed.kubeadm.programs import ensure_programs
from tests.testbed.toolchain import BinariesUnavailableError

BARE = "install nothing of ours: only its image is on the nodes"


def main(words: list[str] | None = None) -> int:
    chosen = _parser().parse_args(words)
    try:
        if chosen.action == "down":
            return keeper.down()
        programs = ensure_programs(cache_folder(os.environ))
        if chosen.action == "shell":
            return keeper.shell(programs, chosen.command)
        archive = ensure_app_image(cache_folder(os.environ))
    except BinariesUnavailableError as error:
        print(f"No cluster here: {error}", file=sys.stderr)
        return 1
    wanted = keeper.Wanted(chosen.nodes, archive, bare=chosen.bare)
    if chosen.action == "keep":
        keeper.keep(programs, chosen.folder, wanted)
        return 0
    return keeper.up(programs, wanted)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.testbed.kubeadm", description=__doc__
    )
    actions = parser.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="bring a cluster up and leave it")
    actions.add_parser("down", help="remove it, and what killed ones have left")
    shell = actions.add_parser("shell", help="a shell on its control-plane node")
    shell.add_argument(
        "command", nargs=argparse.REMAINDER, help="a command instead of the shell"
    )
    keep = actions.add_parser("keep", help="what `up` leaves running")
    keep.add_argument("folder", type=Path)
    for parser_with_nodes in (up, keep):
        parser_with_nodes.add_argument("--nodes", type=int, default=1, help="how many")
        parser_with_nodes.add_argument("--bare", action="store_true", help=BARE)
    return parser


if __name__ == "__main__":
    sys.exit(main())
