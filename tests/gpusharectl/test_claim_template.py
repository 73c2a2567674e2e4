"""``claim-template``: what kubectl applies, or what a name must be."""

import yaml
from click.testing import CliRunner

from gpushare.domain.model import Amount
from gpushare.kube.resource_claims.templates import write_template
from gpusharectl.commands import main


def test_a_template_for_each_name() -> None:
    words = ["claim-template", "vcuda-m20-c20", "vcuda-m8-c20-m4-c1"]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 0
    assert list(yaml.safe_load_all(found.stdout)) == [
        write_template([Amount(20, 20)]),
        write_template([Amount(20, 8), Amount(1, 4)]),
    ]


def test_another_name() -> None:
    found = CliRunner().invoke(main, ["claim-template", "vcuda-m20-c200"])
    assert found.exit_code == 2
    assert "'vcuda-m20-c200' is no template" in found.stderr
    assert found.stdout == ""
