"""The group of all commands, under both its names; each is imported when it is used.

The names are ``gpusharectl`` and ``kubectl vcuda``. To import all commands would take
1.2 s of CPU time, so a command's line of help stands here and in its docstring.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Never

import click
from click.shell_completion import ShellComplete

from gpushare import __version__, interrupt

_LAST_WORD = ":4"
"""cobra's ShellCompDirective for: these are all, do not offer files."""
_AS_PLUGIN = "kubectl-vcuda"
_PLUGINS_COMPLETION = "kubectl_complete-vcuda"
_COMPLETE = "__complete"
"""The first word to cobra's programs when a shell completes the words after it.

kubectl calls ``kubectl_complete-vcuda``, mostly a script that calls this.
"""


class LazyCommand(click.Command):
    """A command that is imported when it is used, not when it is listed."""

    def __init__(self, name: str, module: str, about: str) -> None:
        super().__init__(name, short_help=about, hidden=not about)
        self._place = f"gpusharectl.{module}", name.replace("-", "_")

    def loaded(self) -> click.Command:
        """Return the command itself."""
        module, name = self._place
        command: click.Command = getattr(import_module(module), name)
        return command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401
    ) -> click.Context:
        """Parse its arguments; click then runs the command of this context."""
        command = self.loaded()
        interrupt.raise_again()
        return command.make_context(info_name, args, parent, **extra)


_COMMANDS = {
    "claim_template": {
        "claim-template": "Write the ResourceClaimTemplate that a pod needs (DRA).",
    },
    "cordon": {
        "clear-card": "Declare sick cards healthy, after they were repaired.",
        "cordon-card": "Let no new pod come to cards; running pods stay.",
        "uncordon-card": "Open cards to new pods again.",
    },
    "demo.command": {
        "demo": "Show what this does, without a GPU, a cluster or root.",
    },
    "inspect": {"inspect": "Show nodes, their cards and the pods on them."},
    "installer.command": {
        "check-node": "Check whether nodes have what gpushare needs.",
        "install": "Let a cluster share the cards of its nodes.",
        "uninstall": "Restore a cluster to its state before install.",
        "host-clean": "",
        "host-scheduler": "",
    },
    "make_room.command": {
        "make-room": "Move pods so that a waiting pod has room on one card.",
    },
    "migrate.command": {
        "migrate": "Rewrite manifests that were made for another system.",
    },
    "migrate.quota": {"migrate-quota": "Rename quotas that were made for Bitfusion."},
    "simulator.command": {
        "simulate": "Play a scenario, or a change of the running cluster.",
    },
    "top.command": {"top": "Show what pods and cards use, beside their shares."},
    "ui": {"ui": "Show nodes, cards and pods in a browser."},
    "version": {"version": "Show this command's version and what runs in the cluster."},
    "why.command": {"why": "Explain why a pod waits, or why it is on its card."},
}
"""By module each command's line in the list; those without one are not listed."""


class TwoNames(click.Group):
    """A group whose usage line shows the name by which it was called.

    It also completes words: as ``kubectl_complete-vcuda``, or after ``__complete``.
    """

    def run(self) -> Never:
        """Run the command line; the entry point of the programs."""
        path = sys.argv[0]
        try:
            if Path(path).name == _PLUGINS_COMPLETION:
                sys.argv.insert(1, _COMPLETE)
            if sys.argv[1:2] == [_COMPLETE]:
                click.echo(for_kubectl(self, sys.argv[2:]))
                sys.exit(0)
            name = program(path)
            variable = f"_{name.replace(' ', '_').upper()}_COMPLETE"
            self.main(prog_name=name, complete_var=variable)
        except KeyboardInterrupt:
            sys.exit(interrupt.INTERRUPTED)
        except OSError as error:
            if error.filename is not None or _takes_more():
                raise
            _end_unwritten(error)
        finally:
            interrupt.end_at_once()

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401
        """Run a command; Ctrl-C ends it with the code that shells show for it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # The terminal has written ^C; what comes next begins on its own line.
            click.echo(err=True)
            raise click.exceptions.Exit(interrupt.INTERRUPTED) from None


@click.group(
    cls=TwoNames,
    commands=[
        LazyCommand(name, module, about)
        for module, commands in _COMMANDS.items()
        for name, about in commands.items()
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="gpusharectl")
def main() -> None:
    """Share GPU cards between Kubernetes pods, by memory."""


def program(path: str) -> str:
    """Return the name by which users call the program, from its path.

    >>> program("/usr/bin/kubectl-vcuda"), program("/x/gpusharectl/__main__.py")
    ('kubectl vcuda', 'gpusharectl')
    """
    return "kubectl vcuda" if Path(path).name == _AS_PLUGIN else "gpusharectl"


def for_kubectl(command: click.Command, arguments: Sequence[str]) -> str:
    """Complete words as kubectl asks its plugins to.

    The last argument is the word to complete; the answer has a line for each offer.
    """
    *before, begun = arguments or [""]
    shell = ShellComplete(command, {}, "kubectl vcuda", "")
    items = shell.get_completions(list(before), begun)
    lines = [
        f"{item.value}\t{item.help}" if item.help else item.value for item in items
    ]
    return "\n".join([*lines, _LAST_WORD])


def _takes_more() -> bool:
    try:
        click.echo()
    except OSError:
        return False
    return True


def _end_unwritten(error: OSError) -> Never:
    # Otherwise Python tries to write the rest of the buffer and fails again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    click.echo(f"Error: standard output cannot be written: {error.strerror}", err=True)
    sys.exit(1)
