"""``python -m deviceplugin``: the commands ``serve`` and ``check``."""

import sys

from gpushare import interrupt


def run() -> None:
    """Run the command line. Ctrl-C never shows a traceback, from here on."""
    interrupt.end_at_once()
    # Not at the top: Ctrl-C is likely while it is imported.
    if sys.argv[1:2] == ["export"]:
        # Manifests from before the exporter was a package of its own start it so.
        from exporter.command import main as export  # noqa: PLC0415

        export(sys.argv[2:])
    from deviceplugin.command import main  # noqa: PLC0415

    main()


if __name__ == "__main__":
    run()
