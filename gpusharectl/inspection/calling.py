"""The group of commands under both of its names: gpusharectl, and kubectl vcuda."""

import os
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
        try:
            self.main(prog_name=name, complete_var=variable)
        except OSError as error:
            if error.filename is not None or _takes_more():
                raise
            _end_unwritten(error)


def _takes_more() -> bool:
    """Try whether standard output can be written; a closed pipe is click's."""
    try:
        click.echo()
    except OSError:
        return False
    return True


def _end_unwritten(error: OSError) -> Never:
    """End with a sentence, since what was to be said has no place."""
    # What is left in the buffer would be tried, and complained of, once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    click.echo(f"Error: standard output cannot be written: {error.strerror}", err=True)
    sys.exit(1)
