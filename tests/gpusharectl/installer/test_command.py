"""The command lines: what they understand, and what they say to the rest."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusharectl.installer.command import host_scheduler, install, uninstall
from gpusharectl.installer.options import (
    CommonOptions,
    InstallOptions,
    UninstallOptions,
    WebhookOptions,
)
from tests.testbed.credentials import write_kubeconfig


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", " ,"], "--nodes names no node; give --nodes gpu-1,gpu-2"),
        (["--nodes", "a", "--all-gpu-nodes"], "give --nodes or --all-gpu-nodes, not"),
        (["--scheduler-image", "x"], "--scheduler-image needs --second-scheduler"),
        (["--second-scheduler", "--tls"], "--tls is for the cluster's own"),
        (["--second-scheduler", "--dra"], "--dra is for the cluster's own"),
        (["--dra", "--no-tls"], "--dra needs the certificates that --no-tls removes"),
        (["--force"], "--force is for --no-dra"),
        (["--force", "--dra"], "--force is for --no-dra"),
        (
            ["--host-only", "--tls", "--nodes", "a", "--void", "--yes"],
            "leave out --nodes, --tls, --void. What",
        ),
        (["--image", "a b"], "'a b' is no name of an image"),
        (["--image=--yes"], "'--yes' is no name of an image"),
        (["--timeout", "0"], "0.0 is not in the range x>=1"),
        (["--timeout", "soon"], "'soon' is not a valid float"),
        (["--node", "a"], "No such option"),
        (["--no-webhook", "--void"], "--void is a setting of the webhook, which --no-"),
        (["--set-scheduler", "A b"], "'A b' is no valid name in Kubernetes"),
        (["--set-scheduler", "-a"], "'-a' is no valid name in Kubernetes"),
        (["--set-runtime-class", "a" * 254], "is no valid name in Kubernetes"),
        (["--env-from", "never"], "'never' is none of auto, deny, allow"),
        (["--bitfusion-card-mib", "0"], "'0' is neither auto nor a number of MiB"),
        (["--bitfusion-card-mib", "16G"], "'16G' is neither auto nor a number of MiB"),
        (["--bitfusion-card-mib", "٣"], "is neither auto nor a number of MiB"),
        (["--bitfusion-shell", "bash"], "'bash' is no path of a shell"),
        (["--bitfusion-shell", "/bin/sh -e"], "'/bin/sh -e' is no path of a shell"),
    ],
)
def test_a_command_line_that_is_not_understood(words: list[str], said: str) -> None:
    ran = CliRunner().invoke(install, words)
    assert ran.exit_code == 2, ran.output
    assert said in " ".join(ran.output.split())


@pytest.mark.parametrize("command", [install, uninstall])
@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "there is no file"), ("{", "correct the file"), ("", "cannot be reached")],
)
def test_no_way_to_the_cluster(
    tmp_path: Path, command: object, content: str | None, said: str
) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    if content == "":
        write_kubeconfig(path, 9, "t")
    ran = CliRunner().invoke(command, ["--kubeconfig", str(path), "--yes"])
    assert ran.exit_code == 1
    assert said in " ".join(ran.output.split())


def test_what_the_job_runs_sets_a_mounted_hosts_files(tmp_path: Path) -> None:
    """Where there is no manifest it says so, and fails."""
    words = ["apply", f"--root={tmp_path}", f"--into={tmp_path}/try"]
    ran = CliRunner().invoke(host_scheduler, [*words, "--kubernetes=v1.36.3"])
    assert ran.exit_code == 1
    assert "/etc/kubernetes/manifests/kube-scheduler.yaml does not exist" in ran.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (InstallOptions(dry_run=True), "install"),
        (
            InstallOptions(
                nodes=("a", "b"),
                yes=True,
                image="x/y:1",
                tls=True,
                ui=False,
                with_monitoring=True,
                runtime_class=False,
                restart=True,
                this_node="cp",
                access=("--kubeconfig", "my file"),
            ),
            (
                "install --kubeconfig 'my file' --nodes a,b --no-runtime-class --tls "
                "--no-ui --with-monitoring --yes --image x/y:1 --restart --this-node cp"
            ),
        ),
        (
            InstallOptions(
                webhook=WebhookOptions(
                    wanted=True, void=False, set_scheduler="", bitfusion_quota=True
                )
            ),
            "install --with-webhook --no-void --set-scheduler '' --bitfusion-quota",
        ),
        (InstallOptions(webhook=WebhookOptions(wanted=False)), "install --no-webhook"),
        (InstallOptions(policy="frag"), "install --policy frag"),
        (InstallOptions(isolation="none"), "install --isolation none"),
        (InstallOptions(compute="share"), "install --compute share"),
        (InstallOptions(dra=True, yes=True), "install --dra --yes"),
        (InstallOptions(dra=False, force=True), "install --no-dra --force"),
        (
            UninstallOptions(yes=True, force=True, timeout_s=60.0),
            "uninstall --force --yes --timeout 60",
        ),
    ],
)
def test_the_command_that_goes_on_has_what_was_given_and_no_more(
    options: CommonOptions, words: str
) -> None:
    assert options.again() == f"gpusharectl {words}"
