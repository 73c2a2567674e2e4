"""The command lines: what they understand, and what they say to the rest."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusharectl.install.command import host_scheduler, install, uninstall

NOBODY = json.dumps(
    {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
)
"""A kubeconfig in order, of an API server that is not there."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", " ,"], "--nodes names no node; give --nodes gpu-1,gpu-2"),
        (["--nodes", "a", "--all-gpu-nodes"], "give --nodes or --all-gpu-nodes, not"),
        (["--scheduler-image", "x"], "--scheduler-image needs --second-scheduler"),
        (["--second-scheduler", "--tls"], "--tls is for the cluster's own"),
        (["--image", "a b"], "'a b' is no name of an image"),
        (["--image=--yes"], "'--yes' is no name of an image"),
        (["--timeout", "0"], "0.0 is not in the range x>=1"),
        (["--timeout", "soon"], "'soon' is not a valid float"),
        (["--node", "a"], "No such option"),
    ],
)
def test_a_command_line_that_is_not_understood(words: list[str], said: str) -> None:
    ran = CliRunner().invoke(install, words)
    assert ran.exit_code == 2, ran.output
    assert said in ran.output


@pytest.mark.parametrize("command", [install, uninstall])
def test_help_tells_the_exit_codes(command: object) -> None:
    ran = CliRunner().invoke(command, ["--help"])
    told = " ".join(ran.output.split())
    assert "Exit codes: 0 done, or nothing had to be done; 1 stopped on the way" in told
    assert "3 refused by the checks, nothing was changed." in told


@pytest.mark.parametrize("command", [install, uninstall])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file"),
        ("{", "correct the file"),
        (NOBODY, "cannot be reached"),
    ],
)
def test_no_way_to_the_cluster(
    tmp_path: Path, command: object, content: str | None, said: str
) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    ran = CliRunner().invoke(command, ["--kubeconfig", str(path), "--yes"])
    assert ran.exit_code == 1
    assert said in " ".join(ran.output.split())


def test_what_the_job_runs_sets_a_mounted_hosts_files(tmp_path: Path) -> None:
    """Where there is no manifest it says so, and fails."""
    words = ["apply", f"--root={tmp_path}", f"--into={tmp_path}/try"]
    ran = CliRunner().invoke(host_scheduler, [*words, "--kubernetes=v1.36.3"])
    assert ran.exit_code == 1
    assert "/etc/kubernetes/manifests/kube-scheduler.yaml does not exist" in ran.output
