"""``gpusharectl claim-template``: the template that the webhook names in a pod."""

import click
import yaml

from gpushare.kube.resource_claims.templates import (
    MOST_PARTS,
    read_template_name,
    write_template,
)

_CODES = "Exit codes: 0 it was written; 2 no template has this name."


@click.command(epilog=_CODES)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def claim_template(names: tuple[str, ...]) -> None:
    """Write ResourceClaimTemplates as YAML, for kubectl apply -f -.

    NAME says what a template has: vcuda-m20-c20 is 20 units of 256 MiB and 20 cores of
    one card; vcuda-m20-c20-m4-c1 has a second part of the same card, 4 units and 1
    core, for the second container that asks.
    """
    wrong = [name for name in names if not read_template_name(name)]
    if wrong:
        raise click.UsageError(
            f"{wrong[0]!r} is no template of gpushare: the name is vcuda and, for each "
            "container, -m with units and -c with cores, as in vcuda-m20-c20; at most "
            f"{MOST_PARTS} containers, with 1 to 99 cores together"
        )
    written = [write_template(read_template_name(name)) for name in names]
    click.echo(yaml.safe_dump_all(written, sort_keys=False), nl=False)
