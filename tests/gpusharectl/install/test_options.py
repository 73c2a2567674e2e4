"""What was typed, and the command that goes on."""

import pytest

from gpusharectl.install.options import (
    CommonOptions,
    InstallOptions,
    UninstallOptions,
    WebhookOptions,
)


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
        (
            InstallOptions(webhook=WebhookOptions(wanted=False)),
            "install --no-webhook",
        ),
        (InstallOptions(policy="frag"), "install --policy frag"),
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
