"""A cluster that stays up for a person, until it is told to go.

``python -m tests.testbed.kubeadm up [--nodes 2]`` brings one up, and prints how to
reach it; ``down`` removes it, and whatever killed clusters have left on the machine.
"""

import argparse
import os
import sys
from pathlib import Path

from tests.testbed.binaries import cache_folder
from tests.testbed.kubeadm import keeper
from tests.testbed.kubeadm.programs import ensure_programs
from tests.testbed.toolchain import BinariesUnavailableError


def main(words: list[str] | None = None) -> int:
    chosen = _parser().parse_args(words)
    try:
        if chosen.action == "down":
            return keeper.down()
        programs = ensure_programs(cache_folder(os.environ))
    except BinariesUnavailableError as error:
        print(f"No cluster here: {error}", file=sys.stderr)
        return 1
    if chosen.action == "keep":
        keeper.keep(programs, chosen.folder, chosen.nodes)
        return 0
    return keeper.up(programs, chosen.nodes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.testbed.kubeadm", description=__doc__
    )
    actions = parser.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="bring a cluster up and leave it")
    actions.add_parser("down", help="remove it, and what killed ones have left")
    keep = actions.add_parser("keep", help="what `up` leaves running")
    keep.add_argument("folder", type=Path)
    for parser_with_nodes in (up, keep):
        parser_with_nodes.add_argument("--nodes", type=int, default=1, help="how many")
    return parser


if __name__ == "__main__":
    sys.exit(main())
