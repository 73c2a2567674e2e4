"""The group of commands under both of its names: gpusharectl, and kubectl vcuda."""

import sys
from pathlib import Path
from typing import Never

import click

from gpusharectl.inspection.completion import for_kubectl

_AS_PLUGIN = "kubectl-vcuda"
_PLUGINS_COMPLETION = "kubectl_complete-vcuda"


def program(path: str) -> str:
    """Give the name by which users call us, from the program's path.

    >>> program("/usr/bin/kubectl-vcuda"), program("/x/gpusharectl/__main__.py")
    ('kubectl vcuda', 'gpusharectl')
    """
    return "kubectl vcuda" if Path(path).name == _AS_PLUGIN else "gpusharectl"


class TwoNames(click.Group):
    """A group whose usage line says the name by which it was called.

    kubectl asks ``kubectl_complete-vcuda`` for the words of its plugin; a link of that
    name to us will do.
    """

    def run(self) -> Never:
        """Do what the command line says; for the programs that pip makes."""
        path = sys.argv[0]
        if Path(path).name == _PLUGINS_COMPLETION:
            click.echo(for_kubectl(self, sys.argv[1:]))
            sys.exit(0)
        name = program(path)
        variable = f"_{name.replace(' ', '_').upper()}_COMPLETE"
        self.main(prog_name=name, complete_var=variable)
