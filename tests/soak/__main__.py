"""``make soak``: pods and claims that live and die while parts are killed.

Exit status 1 where a card was over-committed, a unit leaked, or a pod went without a
verdict; the message has the seed and the log of kills. Then, for as long, a driver that
hangs and comes back: 1 where its library uses what was freed, or a card stays away.
"""

import argparse
import json
import os
import platform
import secrets
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from gpushare.domain.policies import DEFAULT_POLICY, POLICIES
from tests.controlplane.extender import USER
from tests.soak.driver import run_sanitized
from tests.soak.run import Plan, Report, soak
from tests.soak.site import site
from tests.testbed.binaries import cache_folder
from tests.testbed.controlplane import ControlPlane
from tests.testbed.kubernetes import ensure_kubernetes
from tests.testbed.objects import new_namespace

RESULTS = Path(__file__).parents[2] / "bench" / "results" / "soak.json"


def main() -> int:
    given = _arguments()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    plan = Plan(60 * given.minutes, seed, given.kill_every, given.at_once)
    under = f"{given.minutes} minutes under {given.policy}"
    print(f"Soak for {under}, seed {seed} ...", flush=True)
    binaries = ensure_kubernetes(cache_folder(os.environ))
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        plane = ControlPlane(binaries, Path(folder), users=[USER], audit="None")
        with plane, site(plane, seed, POLICY=given.policy) as found:
            try:
                report = soak(found, new_namespace(plane.rest), plan, _tell)
            except AssertionError as error:
                print(error, file=sys.stderr)
                return 1
    _show(report)
    _keep(given.policy, report)
    print(f"Written to {RESULTS}")
    print("A driver that hangs and comes back, for as long ...", flush=True)
    try:
        print(run_sanitized(plan.seconds, seed))
    except AssertionError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _keep(policy: str, report: Report) -> None:
    """Write the run down, in place of the last under this policy."""
    runs = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else {}
    runs[policy] = report.as_json()
    RESULTS.write_text(json.dumps(_machine() | {"runs": runs}, indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="as an earlier run printed it")
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds")
    parser.add_argument("--policy", default=DEFAULT_POLICY, choices=POLICIES)
    parser.add_argument("--at-once", type=int, default=Plan.at_once, help="pods")
    return parser.parse_args()


def _tell(line: str) -> None:
    print(line, flush=True)


def _show(report: Report) -> None:
    ended = ", ".join(f"{count:,} {how}" for how, count in report.ended.items())
    kills = ", ".join(f"{part} {count}" for part, count in report.kills.items())
    print(f"{report.lives:,} lives, {report.per_minute:,.0f} a minute: {ended}.")
    print(f"Killed: {kills}.")
    print(f"{report.moments:,} moments looked at, none with a card over-committed;")
    print(f"the cards were {report.mean_held:.0%} full, at most {report.fullest:.0%}.")
    print("The books ended as those of an empty cluster.")


def _machine() -> dict[str, str]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
