"""What a simulation begins with: a file, or a cluster that runs."""

from collections.abc import Sequence
from pathlib import Path

import click

from gpushare.kube.errors import ClusterError, Forbidden
from gpusharectl.access import reach
from gpusharectl.simulator.live import LiveError, WhatIf
from gpusharectl.simulator.liveread import Further, read_live
from gpusharectl.simulator.liverights import without_rights
from gpusharectl.simulator.scenario import Scenario
from gpusharectl.simulator.scenariofile import read_scenario
from gpusharectl.simulator.yamlfields import ScenarioError


def from_file(path: Path) -> Scenario:
    """Read a scenario's file; what is wrong with it is a sentence and exit code 1."""
    try:
        return read_scenario(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise click.ClickException(
            f"{path} cannot be read: {error.strerror}; docs/simulator.md has an example"
        ) from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{path} is no text in UTF-8: {error}") from error
    except ScenarioError as error:
        raise click.ClickException(str(error)) from error


def from_cluster(
    kubeconfig: str | None,
    context: str | None,
    what: WhatIf,
    more: Sequence[Further],
) -> Scenario:
    """Read the cluster that runs, and write nothing there."""
    # The reads themselves show which rights are missing.
    access = reach(kubeconfig, context, needs=())
    try:
        return read_live(access, what, more, access.objects.host)
    except LiveError as error:
        raise click.ClickException(str(error)) from error
    except Forbidden as error:
        gets = [(one.resource, one.ref) for one in more]
        raise click.ClickException(without_rights(access, gets, error)) from error
    except ClusterError as error:
        raise click.ClickException(f"{access.objects.host}: {error}") from error
    finally:
        access.close()
